//! From blocks to content.

use super::block::{BadBlock, Head, MAX_HEAD, PREFIX_LEAST, PREFIX_TIMES, size_of};
use super::history::History;
use super::zstd::Zstd;

/// What the reader gets next.
#[derive(Debug, PartialEq, Eq)]
pub enum Shown<'a> {
    /// Content of a block. When the reader has taken all of it [`BlockDecoder::took`] tells how
    /// much of the stream is done.
    Content(&'a [u8]),
    /// So many of the stream's next bytes are content as they are.
    AsItIs(u64),
    /// The stream's next bytes are a head and done.
    Head(usize),
    /// More of the stream must come first.
    More,
}

/// One direction of a stream on its way from the link.
///
/// A block stays on the stream until the reader has taken all of its content, so what
/// credit bounds is all that waits; the content itself can be made anew and is given up
/// where memory is short ([`BlockDecoder::forget`]).
#[derive(Debug, Default)]
pub struct BlockDecoder {
    history: History,
    /// Bytes left of a run.
    run: u64,
    /// The block whose content lies at the end of the history.
    block: Option<Block>,
    /// Content of the next block that the reader has taken already.
    skip: usize,
    /// The head before was one that only keeps.
    kept_only: bool,
}

#[derive(Clone, Copy, Debug)]
struct Block {
    content: usize,
    taken: usize,
    /// Bytes on the stream.
    len: usize,
    kept: usize,
}

impl BlockDecoder {
    /// Shows what comes next. `stream`: what has come of it in order and is not done, in
    /// pieces.
    ///
    /// # Errors
    /// If it cannot be what a sender makes: the stream is to be reset.
    pub fn show(&mut self, zstd: &mut Zstd, stream: &[&[u8]]) -> Result<Shown<'_>, BadBlock> {
        if self.block.is_none() {
            if self.run > 0 {
                return Ok(Shown::AsItIs(self.run));
            }
            let mut start = [0; MAX_HEAD];
            let n = copy(stream, 0, &mut start);
            let Some((head, len)) = Head::read(&start[..n])? else { return Ok(Shown::More) };
            let keeps = matches!(head, Head::Keep(_));
            if keeps && std::mem::replace(&mut self.kept_only, keeps) {
                return Err(BadBlock::Head);
            }
            match head {
                Head::Keep(kept) => self.history.commit(0, size_of(kept)),
                Head::Run(run) => self.run = run as u64,
                Head::Rest => self.run = u64::MAX,
                Head::Stored(n) if !self.stored(stream, len, n) => return Ok(Shown::More),
                Head::Zstd { len: n, used, kept }
                    if !self.unpack(zstd, stream, len, n, (used, kept))? =>
                {
                    return Ok(Shown::More);
                }
                Head::Stored(_) | Head::Zstd { .. } => {}
            }
            self.kept_only = keeps;
            if self.block.is_none() {
                return Ok(Shown::Head(len));
            }
        }
        Ok(Shown::Content(self.content()))
    }

    /// The content that [`BlockDecoder::show`] found.
    pub fn content(&self) -> &[u8] {
        self.block.as_ref().map_or(&[], |b| &self.history.last(b.content)[b.taken..])
    }

    /// The reader took `n` bytes of what was shown. Answers how many bytes of the stream
    /// are done.
    pub fn took(&mut self, n: usize) -> usize {
        let Some(b) = &mut self.block else {
            if self.run != u64::MAX {
                self.run = self.run.saturating_sub(n as u64);
            }
            return n;
        };
        b.taken += n;
        if b.taken < b.content {
            return 0;
        }
        let b = *b;
        self.block = None;
        self.history.commit(b.content, b.kept);
        b.len
    }

    /// Bytes of content that wait for the reader.
    pub fn waiting(&self) -> usize {
        self.block.map_or(0, |b| b.content - b.taken)
    }

    /// Gives up content that waits: it is made anew when the reader can take it.
    pub fn forget(&mut self) {
        if let Some(b) = self.block.take() {
            self.history.retract(b.content);
            self.history.commit(0, self.history.kept());
            self.skip = b.taken;
        }
    }

    /// Bytes of history that the peer makes this node keep.
    pub fn kept(&self) -> usize {
        self.block.map_or(0, |b| b.kept).max(self.history.kept())
    }

    #[cfg(test)]
    pub(super) fn memory(&self) -> usize {
        size_of_val(self) + self.history.memory()
    }

    fn stored(&mut self, stream: &[&[u8]], head: usize, n: usize) -> bool {
        let content = self.history.extend(n);
        if copy(stream, head, content) < n {
            self.history.retract(n);
            return false;
        }
        self.begin(n, head + n, self.history.kept());
        true
    }

    fn unpack(
        &mut self,
        zstd: &mut Zstd,
        stream: &[&[u8]],
        head: usize,
        n: usize,
        (used, kept): (u8, u8),
    ) -> Result<bool, BadBlock> {
        let mut pieces: [&[u8]; PIECES] = [&[]; PIECES];
        let (mut count, mut from, mut left) = (0, head, n);
        for piece in stream {
            let skipped = from.min(piece.len());
            let piece = &piece[skipped..];
            from -= skipped;
            let piece = &piece[..left.min(piece.len())];
            if !piece.is_empty() {
                // A block longer than this is none of ours.
                *pieces.get_mut(count).ok_or(BadBlock::Head)? = piece;
                count += 1;
                left -= piece.len();
            }
        }
        if left > 0 {
            return Ok(false);
        }
        let content = zstd.content_size(&pieces[..count])?;
        // Each block costs us as much as the history that it uses.
        if size_of(used) > PREFIX_LEAST.max(content * PREFIX_TIMES) * 2 {
            return Err(BadBlock::Head);
        }
        zstd.set_prefix(self.history.tail(size_of(used)));
        if let Err(e) = zstd.decompress(self.history.extend(content)) {
            self.history.retract(content);
            return Err(e);
        }
        self.begin(content, head + n, size_of(kept));
        Ok(true)
    }

    fn begin(&mut self, content: usize, len: usize, kept: usize) {
        let taken = std::mem::take(&mut self.skip).min(content);
        self.block = Some(Block { content, taken, len, kept });
    }
}

/// Pieces of one block: a stream lies in memory in blocks of 8 kB.
const PIECES: usize = 16;

/// Copies what there is of `stream` from `at` on; answers how much.
fn copy(stream: &[&[u8]], mut at: usize, out: &mut [u8]) -> usize {
    let mut n = 0;
    for piece in stream {
        let skipped = at.min(piece.len());
        at -= skipped;
        let piece = &piece[skipped..];
        let take = piece.len().min(out.len() - n);
        out[n..n + take].copy_from_slice(&piece[..take]);
        n += take;
    }
    n
}
