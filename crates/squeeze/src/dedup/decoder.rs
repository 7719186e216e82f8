//! From items to content: one direction of a stream on its way from the link.

use std::sync::Arc;

use super::keys::TAG;
use super::receiver::Receiver;
use super::store::MIN_KEPT;
use super::wire::{Item, MAX_ITEM, tag_at};

/// Why a direction of a stream cannot go on: the stream is to be reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bad {
    /// An item that means nothing.
    Item,
    /// The peer's answer is not what it had referred to.
    Chunk,
}

/// What the reader gets next.
#[derive(Debug, PartialEq, Eq)]
pub enum Shown<'a> {
    /// Content of a chunk. [`ItemDecoder::took`] tells how much of the input is done.
    Content(&'a [u8]),
    /// So many of the input's next bytes are content as they are.
    AsItIs(u64),
    /// The input's next bytes are read and done.
    Head(usize),
    /// A chunk is loaded, or on its way from the peer: [`Receiver::poll_ready`] tells when.
    Waiting,
    /// More of the input must come first.
    More,
}

/// Items that one look ahead passes.
const ITEMS_AT_ONCE: usize = 256;

/// One direction of a stream on its way from the link.
///
/// Content is loaded when the host can take it, one chunk at a time. The last byte of an item
/// that refers to chunks counts as done only when the host has taken all of them, so the
/// stream's credit tells the sender what it need not keep any more.
pub struct ItemDecoder {
    state: State,
    last: u64,
    /// The beginning of an item that has not come whole.
    head: Vec<u8>,
    /// Bytes of the chunk that is coming, as far as the store has seen it.
    chunk: usize,
    /// How much of the input that is.
    seen: usize,
    key: u64,
    /// How far into the input was looked for what is to be asked for, and the last number there.
    ahead: (usize, u64),
    /// Content of the chunk that is shown, how much of it was taken.
    shown: Option<Arc<[u8]>>,
    taken: usize,
}

enum State {
    Head,
    /// Bytes left, whether they end a chunk, and its number if it is to be kept.
    Literal {
        left: usize,
        ends: bool,
        number: Option<u64>,
    },
    /// The first number, the tags, and how many chunks are done.
    References(u64, Vec<u8>, usize),
    Rest,
}

impl Default for ItemDecoder {
    fn default() -> ItemDecoder {
        ItemDecoder {
            state: State::Head,
            last: 0,
            head: Vec::new(),
            chunk: 0,
            seen: 0,
            key: 0,
            ahead: (0, 0),
            shown: None,
            taken: 0,
        }
    }
}

impl ItemDecoder {
    /// Shows what comes next. `input`: what has come of the stream in order and is not done,
    /// in pieces. `key` names the stream to [`Receiver::poll_ready`].
    ///
    /// # Errors
    /// If it cannot be what a sender makes.
    pub fn show<'a>(
        &'a mut self,
        receiver: &mut Receiver,
        key: u64,
        input: &[&[u8]],
    ) -> Result<Shown<'a>, Bad> {
        self.key = key;
        if let State::Head = self.state {
            match self.read_head(input)? {
                None => return Ok(Shown::More),
                Some(0) => {}
                Some(n) => return Ok(Shown::Head(n)),
            }
        }
        match &self.state {
            State::Rest => Ok(Shown::AsItIs(u64::MAX)),
            &State::Literal { left, ends, .. } => {
                // One that is never kept costs a peer's packet of hundreds too much.
                let is_kept = !ends || self.chunk > 0 || left >= MIN_KEPT;
                if is_kept {
                    self.assemble(receiver, left, input);
                }
                Ok(Shown::AsItIs(left as u64))
            }
            // The last byte of its item is there until the item is done, unless the stream was
            // reset.
            State::References(..) if input.iter().all(|piece| piece.is_empty()) => Ok(Shown::More),
            State::References(..) => self.show_chunk(receiver, key, input),
            State::Head => Err(Bad::Item),
        }
    }

    /// Answers how many bytes of the input are done; `None`: there are none.
    fn read_head(&mut self, input: &[&[u8]]) -> Result<Option<usize>, Bad> {
        let mut start = [0; MAX_ITEM];
        let before = self.head.len();
        start[..before].copy_from_slice(&self.head);
        let n = before + copy(input, &mut start[before..]);
        let start = &start[..n];
        let whole = match Item::read(start, self.last).map_err(|()| Bad::Item)? {
            Some((Item::References { count, .. }, len)) if len + count * TAG > n => None,
            read => read,
        };
        let Some((item, mut len)) = whole else {
            // It is cut where whatever lies under us was cut, so what there is is taken.
            if n == before {
                return Ok(None);
            }
            self.head = start.to_vec();
            self.passed(n - before);
            return Ok(Some(n - before));
        };
        self.state = match item {
            Item::Literal(left) => State::Literal { left, ends: false, number: None },
            Item::Chunk { number, len } => {
                self.last = number.unwrap_or(self.last);
                State::Literal { left: len, ends: true, number }
            }
            Item::References { first, count } => {
                let tags = start[len..len + count * TAG].to_vec();
                self.last = first + count as u64 - 1;
                len += tags.len() - 1; // The last byte is done with the last chunk.
                State::References(first, tags, 0)
            }
            Item::Rest => State::Rest,
        };
        self.seen = 0;
        self.head = Vec::new();
        self.passed(len - before);
        if matches!(self.state, State::References(..)) && self.ahead.0 == 0 {
            self.ahead = (1, self.last); // Behind the byte that is left of the item.
        }
        Ok(Some(len - before))
    }

    /// So many bytes of the input are done: what was looked at ahead is nearer by these.
    fn passed(&mut self, n: usize) {
        self.ahead.0 = self.ahead.0.saturating_sub(n);
    }

    /// Takes what has come of a literal for the store, whatever the host has taken.
    fn assemble(&mut self, receiver: &mut Receiver, left: usize, input: &[&[u8]]) {
        let mut skip = self.seen;
        for piece in input {
            let new = &piece[skip.min(piece.len())..];
            skip -= skip.min(piece.len());
            let new = &new[..new.len().min(left - self.seen)];
            self.seen += new.len();
            if !new.is_empty() {
                receiver.assemble(self.key, self.chunk, new);
                self.chunk = self.chunk.saturating_add(new.len());
            }
        }
    }

    fn show_chunk(
        &mut self,
        receiver: &mut Receiver,
        key: u64,
        input: &[&[u8]],
    ) -> Result<Shown<'_>, Bad> {
        let State::References(first, tags, done) = &self.state else { return Err(Bad::Item) };
        let (first, done) = (*first, *done);
        if self.shown.is_none() {
            let number = first + done as u64;
            let Some(content) = receiver.get(number, tag_at(tags, done), key)? else {
                // What is asked for now does not cost a round trip later.
                for n in done + 1..tags.len() / TAG {
                    receiver.ahead(first + n as u64, tag_at(tags, n), key);
                }
                self.look_ahead(receiver, key, input);
                return Ok(Shown::Waiting);
            };
            // The host may have taken part of it before it was given up.
            self.taken = self.taken.min(content.len() - 1);
            self.shown = Some(content);
        }
        Ok(Shown::Content(self.content()))
    }

    /// Asks for what the stream refers to further on and is not there. The stream stands still
    /// meanwhile, so that each look goes on where the one before ended: a stream that waits is
    /// looked at at each of its packets.
    fn look_ahead(&mut self, receiver: &mut Receiver, key: u64, input: &[&[u8]]) {
        let mut start = [0; MAX_ITEM];
        for _ in 0..ITEMS_AT_ONCE {
            let (mut skip, mut last) = self.ahead;
            let n = copy_from(input, skip, &mut start);
            let start = &start[..n];
            let Ok(Some((item, len))) = Item::read(start, last) else { return };
            skip += len;
            match item {
                Item::Rest => return,
                Item::Literal(n) => skip += n,
                Item::Chunk { number, len } => {
                    last = number.unwrap_or(last);
                    skip += len;
                }
                Item::References { first, count } => {
                    let Some(tags) = start.get(len..len + count * TAG) else { return };
                    for n in 0..count {
                        if !receiver.ahead(first + n as u64, tag_at(tags, n), key) {
                            return; // There is no room now; the next look begins here.
                        }
                    }
                    skip += tags.len();
                    last = first + count as u64 - 1;
                }
            }
            self.ahead = (skip, last);
        }
        // The rest has its turn when others have had theirs.
        receiver.look_again(key);
    }

    /// The content that [`ItemDecoder::show`] found.
    pub fn content(&self) -> &[u8] {
        self.shown.as_ref().map_or(&[], |content| &content[self.taken..])
    }

    /// The host took `n` bytes of what was shown. Answers how many bytes of the input are
    /// done.
    pub fn took(&mut self, receiver: &mut Receiver, n: usize) -> usize {
        let done = self.took_of_item(receiver, n);
        self.passed(done);
        done
    }

    fn took_of_item(&mut self, receiver: &mut Receiver, n: usize) -> usize {
        match &mut self.state {
            State::Head => 0,
            State::Rest => n,
            State::Literal { left, ends, number } => {
                let n = n.min(*left);
                *left -= n;
                self.seen = self.seen.saturating_sub(n);
                if *left > 0 {
                    return n;
                }
                let (ends, number) = (*ends, *number);
                self.state = State::Head;
                if ends {
                    receiver.end_chunk(self.key, std::mem::take(&mut self.chunk), number);
                }
                n
            }
            State::References(_, tags, done) => {
                let Some(content) = &self.shown else { return 0 };
                self.taken += n;
                if self.taken < content.len() {
                    return 0;
                }
                (self.shown, self.taken) = (None, 0);
                *done += 1;
                if *done * TAG < tags.len() {
                    return 0;
                }
                self.state = State::Head;
                1
            }
        }
    }

    /// Content that is shown is that of a chunk that was referred to.
    pub fn is_referring(&self) -> bool {
        matches!(self.state, State::References(..))
    }

    /// What comes is content as it is, to the end: no chunks are made of it.
    pub fn is_plain(&self) -> bool {
        matches!(self.state, State::Rest)
    }

    /// Gives up content that waits for the host: it is fetched again when the host can take
    /// it.
    pub fn forget(&mut self) {
        self.shown = None;
    }

    /// Bytes of content that wait for the host.
    pub fn waiting(&self) -> usize {
        self.content().len()
    }

    /// The direction may end here: it ends with no item half done.
    pub fn is_whole(&self) -> bool {
        match self.state {
            State::Rest => true,
            State::Head => self.head.is_empty(),
            State::Literal { .. } | State::References(..) => false,
        }
    }

    /// The stream is over. To be called before the decoder is dropped.
    pub fn close(&mut self, receiver: &mut Receiver, key: u64) {
        receiver.leave(key);
    }
}

/// Copies the beginning of `pieces`; answers how much there was.
fn copy(pieces: &[&[u8]], to: &mut [u8]) -> usize {
    copy_from(pieces, 0, to)
}

fn copy_from(pieces: &[&[u8]], mut skip: usize, to: &mut [u8]) -> usize {
    let mut at = 0;
    for piece in pieces {
        let from = skip.min(piece.len());
        skip -= from;
        let n = (piece.len() - from).min(to.len() - at);
        to[at..at + n].copy_from_slice(&piece[from..from + n]);
        at += n;
    }
    at
}
