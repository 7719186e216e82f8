//! Decompression, from the link to hosts: the stream → blocks → items → content.

use link::session::StreamCodec;
use squeeze::dedup::{self, Receiver};
use squeeze::stream::{BadBlock, Shown, Zstd};

use super::{ActiveFlow, Codecs, FlowCodec, Malformed, WAITING, hashing, time_between};
use crate::ResetReason;
use crate::flows::{FlowId, Flows};
use link::PeerId;

/// The most pieces that a stream's bytes are looked at in.
const PIECES: usize = 16;

/// Where the next bytes for the host come from.
enum Next {
    /// Content of a chunk.
    Chunk,
    /// Content of a block, at most so many bytes.
    Block(u64),
    /// Bytes of the stream as they are, at most so many.
    Stream(u64),
    /// Nothing now.
    Nothing,
}

impl Codecs {
    /// Shows what the flow's host gets next; answers how many slices.
    pub fn decode<'a>(
        &'a mut self,
        mut active: ActiveFlow<'a>,
        codec: StreamCodec,
        flows: &Flows,
        slices: &mut [&'a [u8]],
    ) -> usize {
        let ActiveFlow { now, flow, f, .. } = active;
        let flow_codec = self.flows.entry(flow).or_default();
        if flow_codec.gives_way {
            return 0;
        }
        let link = self.links.entry(f.peer).or_default();
        if codec.dedup && link.chunks.is_none() {
            if link.awaits_chunks {
                link.awaiting.insert(flow);
                return 0;
            }
            // We said that we take items, but have no store for chunks.
            active.session.reset(now, f.stream, ResetReason::Protocol, false);
            return 0;
        }
        flow_codec.no_blocks = codec.history == 0;
        let mut receiver = match &mut link.chunks {
            Some(chunks) if codec.dedup => {
                chunks.enter(f.session);
                self.touched.insert(f.peer);
                flow_codec.from_items.get_or_insert_default();
                Some(&mut chunks.dedup.receiver)
            }
            _ => None,
        };
        let (kept, waiting) = (flow_codec.decoder.kept() as u64, flow_codec.waiting());
        let before = self.zstd.spent();
        let mut result = loop {
            let step = flow_codec.step(&mut active, &mut self.zstd, receiver.as_deref_mut());
            if let Some(result) = step.transpose() {
                break result;
            }
        };
        flow_codec.counts.cpu += time_between(before, self.zstd.spent());
        let kept_now = flow_codec.decoder.kept() as u64;
        link.kept_here = link.kept_here - kept + kept_now;
        self.waiting = self.waiting - waiting + flow_codec.waiting();
        if kept_now > kept && !self.has_room_for_history(&active, codec, flows) {
            result = result.and(Err(BadBlock::History.into()));
        }
        let watches = codec.history > 0 && f.kind.compress && !f.kind.from_here;
        let mut watch = |pieces: &[&[u8]]| {
            if watches {
                self.requests.entry(flow).or_default().offered(pieces);
            }
        };
        let next = match result {
            Ok(next) => next,
            Err(bad) => {
                let link = self.links.entry(f.peer).or_default();
                match bad {
                    Malformed::Block(bad) => *link.over.bad.entry(bad).or_default() += 1,
                    Malformed::Item => link.over.bad_items += 1,
                }
                self.bad.add(&f, bad);
                self.drop_history(flow, f.peer);
                active.session.reset(now, f.stream, ResetReason::Protocol, false);
                return 0;
            }
        };
        if let Next::Nothing = next {
            let is_over = active.session.is_complete(f.stream)
                && active.session.peek_slices(f.stream, &mut [&[]]) == 0;
            match is_over {
                // Its host may go on in the other direction for long.
                true => self.drop_history(flow, f.peer),
                // It may wait long for a chunk, and holds a block meanwhile.
                false => self.not_taken(flow, f.peer),
            }
            return 0;
        }
        let Some(flow_codec) = self.flows.get(&flow) else { return 0 };
        match next {
            Next::Chunk => slices[0] = flow_codec.from_items.as_ref().map_or(&[], |d| d.content()),
            Next::Block(most) => slices[0] = first(flow_codec.decoder.content(), most),
            Next::Stream(most) => {
                let count = active.session.peek_slices(f.stream, slices);
                let count = shorten(&mut slices[..count], most);
                watch(&slices[..count]);
                return count;
            }
            Next::Nothing => return 0,
        }
        watch(&slices[..1]);
        usize::from(!slices[0].is_empty())
    }

    /// As [`crate::Relay::comes_as_it_is`].
    pub fn comes_as_it_is(&self, flow: FlowId) -> bool {
        let items = self.flows.get(&flow).and_then(|codec| codec.from_items.as_ref());
        items.is_none_or(|items| items.is_plain())
    }

    /// The flow's host took `n` bytes. Answers how many bytes of the stream are consumed by that,
    /// and how many of `n` were content of chunks that the stream refers to.
    pub fn took(&mut self, flow: FlowId, peer: PeerId, n: usize) -> (usize, usize) {
        if let Some(requests) = self.requests.get_mut(&flow) {
            requests.took(n);
        }
        let Some(flow_codec) = self.flows.get_mut(&flow) else { return (n, 0) };
        if flow_codec.gives_way {
            return (0, 0);
        }
        let mut referred = 0;
        let link = self.links.entry(peer).or_default();
        let (kept, waiting) = (flow_codec.decoder.kept() as u64, flow_codec.waiting());
        let items = match (&mut flow_codec.from_items, &mut link.chunks) {
            (Some(decoder), Some(chunks)) => {
                self.touched.insert(peer);
                if decoder.is_referring() {
                    referred = n;
                }
                if !decoder.is_plain() {
                    self.hashed += n as u64;
                    flow_codec.counts.cpu += hashing(n as u64);
                }
                decoder.took(&mut chunks.dedup.receiver, n)
            }
            _ => n,
        };
        flow_codec.counts.received += n as u64;
        let done = flow_codec.done(items);
        if self.waiting > WAITING {
            flow_codec.forget_waiting();
        }
        link.kept_here = link.kept_here - kept + flow_codec.decoder.kept() as u64;
        self.waiting = self.waiting - waiting + flow_codec.waiting();
        (done, referred)
    }

    /// The flow's host takes nothing now.
    pub fn not_taken(&mut self, flow: FlowId, peer: PeerId) {
        if self.waiting > WAITING
            && let Some(flow_codec) = self.flows.get_mut(&flow)
        {
            self.waiting -= flow_codec.waiting();
            let kept = flow_codec.decoder.kept() as u64;
            flow_codec.forget_waiting();
            // A block that is not to be read yet may hold more than is kept behind it.
            let link = self.links.entry(peer).or_default();
            link.kept_here = link.kept_here - kept + flow_codec.decoder.kept() as u64;
        }
    }
}

impl FlowCodec {
    /// `n` bytes of items are done. Answers how many bytes of the stream are consumed by that.
    fn done(&mut self, n: usize) -> usize {
        let done = if self.no_blocks || n == 0 { n } else { self.decoder.took(n) };
        self.counts.received_items += n as u64;
        self.counts.received_as += done as u64;
        done
    }

    /// Looks at the next bytes of the stream. `None`: they were a header, and more follows.
    fn step(
        &mut self,
        active: &mut ActiveFlow<'_>,
        zstd: &mut Zstd,
        receiver: Option<&mut Receiver>,
    ) -> Result<Option<Next>, Malformed> {
        let ActiveFlow { now, flow, f, ref mut session } = *active;
        let mut pieces: [&[u8]; PIECES] = [&[]; PIECES];
        let count = session.peek_slices(f.stream, &mut pieces);
        if count == 0 && self.waiting() > 0 {
            // The stream was reset meanwhile: its content is not delivered.
            self.forget_waiting();
            return Ok(Some(Next::Nothing));
        }
        let mut most = u64::MAX;
        let shown = match self.no_blocks {
            true => Shown::AsItIs(u64::MAX),
            false => self.decoder.show(zstd, &pieces[..count])?,
        };
        let input: &[&[u8]] = match shown {
            Shown::Content(content) => &[content],
            Shown::AsItIs(n) => {
                most = n;
                let count = shorten(&mut pieces[..count], n);
                &pieces[..count]
            }
            Shown::Head(n) => {
                self.counts.received_as += n as u64;
                session.consume(now, f.stream, n);
                return Ok(None);
            }
            Shown::More if count > 0 && session.is_complete(f.stream) => {
                if !session.is_reset_by_peer(f.stream) {
                    return Err(BadBlock::Cut.into());
                }
                // A block that was cut off is not delivered; the reset follows it.
                let left = pieces[..count].iter().map(|p| p.len()).sum();
                session.consume(now, f.stream, left);
                return Ok(None);
            }
            Shown::More => &[],
        };
        let of_block = matches!(shown, Shown::Content(_));
        let plain = |most| if of_block { Next::Block(most) } else { Next::Stream(most) };
        let (Some(decoder), Some(receiver)) = (&mut self.from_items, receiver) else {
            return Ok(Some(if input.is_empty() { Next::Nothing } else { plain(most) }));
        };
        let n = match decoder.show(receiver, flow.to_u64(), input).map_err(|_| Malformed::Item)? {
            dedup::Shown::Content(_) => {
                session.mark_referred(f.stream);
                return Ok(Some(Next::Chunk));
            }
            dedup::Shown::Waiting => {
                session.mark_referred(f.stream);
                return Ok(Some(Next::Nothing));
            }
            dedup::Shown::AsItIs(_) | dedup::Shown::More if input.is_empty() => {
                let cut = !decoder.is_whole()
                    && session.is_complete(f.stream)
                    && !session.is_reset_by_peer(f.stream);
                return if cut { Err(Malformed::Item) } else { Ok(Some(Next::Nothing)) };
            }
            dedup::Shown::AsItIs(n) => return Ok(Some(plain(most.min(n)))),
            dedup::Shown::More => return Ok(Some(Next::Nothing)),
            dedup::Shown::Head(n) => n,
        };
        let done = self.done(n);
        session.consume(now, f.stream, done);
        Ok(None)
    }
}

fn first(bytes: &[u8], most: u64) -> &[u8] {
    &bytes[..bytes.len().min(usize::try_from(most).unwrap_or(usize::MAX))]
}

/// Makes `pieces` no longer than `most` together; answers how many are left.
fn shorten(pieces: &mut [&[u8]], mut most: u64) -> usize {
    for (n, piece) in pieces.iter_mut().enumerate() {
        if most == 0 {
            return n;
        }
        *piece = first(piece, most);
        most -= piece.len() as u64;
    }
    pieces.len()
}
