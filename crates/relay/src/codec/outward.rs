//! Compression, from hosts to the link: content → items → blocks → the stream.

use link::session::StreamCodec;
use squeeze::dedup::{self, PLAIN, Scope};
use squeeze::stream::{BlockEncoder, Requests, Terms, mixes_secrets};
use units::BitRate;

use super::{ActiveFlow, Codecs, Due, Items, SHARE, content_for, hashing, time_between};
use crate::flows::FlowId;

/// Above this rate of the link directions are not deduplicated. A byte costs little there, but
/// each new one is hashed, verified, and written to the peer's disk. At this rate that is a
/// terabyte a day, which flash bears for some years, and a store of 1 GB holds only the last
/// minute or two (docs/deduplication.md).
const FAST: BitRate = BitRate::from_mbps(100);

impl Codecs {
    /// How many bytes may be read from the flow's host now: what fits in the worst case, and at
    /// most one block, because all else waits while that is made. If content becomes items: enough
    /// for some chunks, most of which may be sent as references.
    pub fn room(&self, active: &mut ActiveFlow<'_>) -> usize {
        let flow_codec = self.flows.get(&active.flow);
        let as_they_are = flow_codec.is_some_and(|c| {
            matches!(c.items, Items::Plain) && c.encoder.as_ref().is_some_and(BlockEncoder::passes)
        });
        let unsent = active.session.writable_for_codec(active.f.stream, as_they_are);
        let room = content_for(unsent as usize);
        let codec = active.session.codec();
        match flow_codec.map(|c| &c.items) {
            _ if room == 0 => 0,
            // Its timer, or the link, says when it goes, and that there is room again.
            Some(Items::Chunks(items)) => {
                items.room().min(self.held.may_hold(&active.f).saturating_sub(items.held()))
            }
            None | Some(Items::Undecided) if codec.is_some_and(|c| c.dedup) => room,
            _ => {
                let codes = active.f.kind.compress && codec.is_some_and(|c| c.history > 0);
                let appetite =
                    |encoder: &BlockEncoder| encoder.appetite(active.session.rate_status().rate);
                room.min(match flow_codec.and_then(|c| c.encoder.as_ref()) {
                    Some(encoder) => appetite(encoder),
                    None if codes => appetite(&BlockEncoder::default()),
                    None => usize::MAX,
                })
            }
        }
    }

    pub fn encode(
        &mut self,
        active: &mut ActiveFlow<'_>,
        codec: StreamCodec,
        data: &[u8],
    ) -> usize {
        self.flush(active, codec);
        self.encode_now(active, codec, data);
        data.len()
    }

    fn encode_now(&mut self, active: &mut ActiveFlow<'_>, codec: StreamCodec, data: &[u8]) {
        if data.is_empty() {
            return;
        }
        let flow_codec = self.flows.entry(active.flow).or_default();
        let link = self.links.entry(active.f.peer).or_default();
        flow_codec.counts.sent += data.len() as u64;
        if codec.history > 0 && flow_codec.encoder.is_none() {
            let secrets = active.f.kind.from_here && mixes_secrets(active.f.kind.port, data);
            let codes = active.f.kind.compress && !secrets;
            flow_codec.encoder =
                Some(if codes { BlockEncoder::default() } else { BlockEncoder::plain() });
        }
        let answers_proof = self.requests.get(&active.flow).is_some_and(Requests::prove);
        if let Some(encoder) = flow_codec.encoder.as_mut().filter(|_| answers_proof) {
            encoder.stop();
        }
        if let Some(chunks) = &mut link.chunks {
            chunks.enter(active.f.session);
        }
        let first = matches!(flow_codec.items, Items::Undecided);
        if first {
            let is_crowded = self.held.is_crowded(&active.f);
            let worth =
                !is_sealed(data) && !is_crowded && active.session.rate_status().rate <= FAST;
            let own = |scope| match (answers_proof, active.f.kind.host) {
                (true, host) => host.map(Scope::Host), // It is nobody else's.
                (false, _) => Some(scope),
            };
            flow_codec.items = match (&link.chunks, active.f.kind.scope.and_then(own)) {
                (Some(chunks), Some(scope)) if codec.dedup && worth => {
                    let items = dedup::ItemEncoder::new(&chunks.dedup.sender, scope);
                    Items::Chunks(Box::new(items))
                }
                _ => Items::Plain,
            };
        }
        match (&mut flow_codec.items, &link.chunks) {
            (Items::Chunks(items), Some(chunks)) => {
                items.push(active.now, &chunks.dedup.sender, data);
                self.held.add(&active.f, data.len());
                self.hashed += data.len() as u64;
                flow_codec.counts.cpu += hashing(data.len() as u64);
                self.pull(active, codec, false);
            }
            _ if first && codec.dedup => {
                let mut pulled = std::mem::take(&mut self.pulled);
                pulled.clear();
                pulled.extend_from_slice(&PLAIN);
                pulled.extend_from_slice(data);
                self.code(active, codec, &pulled);
                self.pulled = pulled;
            }
            _ => self.code(active, codec, data),
        }
    }

    /// Writes items of the flow to the link, as many as it has room for; `all`: everything that is
    /// held, because the flow is about to end. To be called when content came, when the link has
    /// room, credit or nothing left of the stream, and when content has waited long enough.
    pub fn pull(&mut self, active: &mut ActiveFlow<'_>, codec: StreamCodec, all: bool) {
        let mut pulled = std::mem::take(&mut self.pulled);
        while self.pull_some(active, codec, all, &mut pulled) {
            self.code(active, codec, &pulled);
            let (written, _) = active.session.written(active.f.stream);
            let flow_codec = self.flows.get_mut(&active.flow);
            if let Some(Items::Chunks(items)) = flow_codec.map(|c| &mut c.items) {
                items.written(written);
                if items.is_referring() {
                    active.session.mark_referring(active.f.stream);
                }
            }
        }
        self.pulled = pulled;
        self.rest(active);
    }

    /// Takes the next items into `pulled`; false if there are none now.
    fn pull_some(
        &mut self,
        active: &mut ActiveFlow<'_>,
        codec: StreamCodec,
        all: bool,
        pulled: &mut Vec<u8>,
    ) -> bool {
        let ActiveFlow { now, flow, f, ref mut session } = *active;
        pulled.clear();
        let Some(flow_codec) = self.flows.get_mut(&flow) else { return false };
        let chunks = self.links.get_mut(&f.peer).and_then(|link| link.chunks.as_mut());
        let (Items::Chunks(items), Some(chunks)) = (&mut flow_codec.items, chunks) else {
            return false;
        };
        let sender = &mut chunks.dedup.sender;
        if let Some(taken) = session.taken(f.stream) {
            items.consumed(sender, taken);
        }
        if session.messages_are_refused() {
            sender.mute();
        }
        let before = items.held();
        let is_full = before >= self.held.may_hold(&f);
        let room = if all {
            items.hurry();
            usize::MAX
        } else {
            let appetite = flow_codec
                .encoder
                .as_ref()
                .map_or(usize::MAX, |encoder| encoder.appetite(session.rate_status().rate));
            content_for(session.writable_for_codec(f.stream, false) as usize).min(appetite)
        };
        if room == 0 {
            return false;
        }
        let (room, mut put) = ((room, codec.window as usize), |bytes: &[u8]| {
            pulled.extend_from_slice(bytes);
        });
        // A part of a chunk is sent only if the link would idle, or no more can be held.
        let mut n = items.pull(now, sender, room, all, &mut put);
        if n == 0 && (is_full || session.written(f.stream).1 == 0) {
            n = items.pull(now, sender, room, true, &mut put);
        }
        self.held.remove(&f, before - items.held());
        n > 0
    }

    /// Sets the timer for content that is held, and ends the direction when it is done.
    fn rest(&mut self, active: &mut ActiveFlow<'_>) {
        let ActiveFlow { now, flow, f, ref mut session } = *active;
        let Some(flow_codec) = self.flows.get_mut(&flow) else { return };
        let chunks = self.links.get_mut(&f.peer).and_then(|link| link.chunks.as_mut());
        let (Items::Chunks(items), Some(chunks)) = (&mut flow_codec.items, chunks) else { return };
        if flow_codec.ended && items.is_done() {
            flow_codec.ended = false;
            session.finish(now, f.stream);
        }
        if !session.takes_bytes(f.stream) {
            self.held.remove(&f, items.held());
            items.give_up();
        }
        let waits = session.written(f.stream).1 > 0;
        if waits {
            session.tell_idle(f.stream);
        }
        let due = items.poll_timeout(&chunks.dedup.sender).filter(|_| !waits);
        if due != flow_codec.due {
            if let Some(at) = flow_codec.due {
                self.due.remove(&(at, Due::Content(flow)));
            }
            self.due.extend(due.map(|at| (at, Due::Content(flow))));
            flow_codec.due = due;
        }
    }

    /// Compresses `data` and writes it to the stream.
    fn code(&mut self, active: &mut ActiveFlow<'_>, codec: StreamCodec, data: &[u8]) {
        let ActiveFlow { now, flow, f, ref mut session } = *active;
        let flow_codec = self.flows.entry(flow).or_default();
        let link = self.links.entry(f.peer).or_default();
        flow_codec.counts.sent_items += data.len() as u64;
        // Data that is not compressed is written directly.
        let encoder = flow_codec.encoder.as_mut().and_then(|e| (!e.pass(data.len())).then_some(e));
        let Some(encoder) = encoder else {
            flow_codec.counts.sent_as += data.len() as u64;
            return session.write_compressed(now, f.stream, data);
        };
        link.forget_departed(f.session, session);
        let kept = encoder.kept() as u64;
        let free = codec.history.saturating_sub(link.kept_there - kept);
        let terms = Terms {
            rate: session.rate_status().rate,
            longest: codec.longest as usize,
            history: (free / SHARE) as usize,
        };
        let before = self.zstd.spent();
        self.blocks.clear();
        encoder.encode(&mut self.zstd, &terms, data, |bytes| self.blocks.extend_from_slice(bytes));
        session.write_compressed(now, f.stream, &self.blocks);
        link.kept_there = link.kept_there - kept + encoder.kept() as u64;
        flow_codec.counts.sent_as += self.blocks.len() as u64;
        flow_codec.counts.cpu += time_between(before, self.zstd.spent());
    }

    /// The peer's parameters are not known yet: keeps `data` until they are.
    pub fn wait(&mut self, active: &mut ActiveFlow<'_>, data: &[u8]) -> usize {
        // Asks for an event when they are.
        active.session.writable_for_codec(active.f.stream, false);
        self.flows.entry(active.flow).or_default().early.extend_from_slice(data);
        data.len()
    }

    pub fn has_early(&self, flow: FlowId) -> bool {
        self.flows.get(&flow).is_some_and(|c| !c.early.is_empty() || c.early_end)
    }

    /// The host ended its direction; true if bytes of it still wait.
    pub fn end(&mut self, active: &mut ActiveFlow<'_>) -> bool {
        let Some(flow_codec) = self.flows.get_mut(&active.flow) else { return false };
        if !flow_codec.early.is_empty() {
            flow_codec.early_end = true;
            return true;
        }
        let Items::Chunks(items) = &mut flow_codec.items else { return false };
        items.finish();
        flow_codec.ended = true;
        if let Some(codec) = active.session.codec() {
            self.pull(active, codec, false);
        }
        true
    }

    pub fn flush(&mut self, active: &mut ActiveFlow<'_>, codec: StreamCodec) {
        let Some(flow_codec) = self.flows.get_mut(&active.flow) else { return };
        let (early, end) =
            (std::mem::take(&mut flow_codec.early), std::mem::take(&mut flow_codec.early_end));
        self.encode_now(active, codec, &early);
        if end && !self.end(active) {
            active.session.finish(active.now, active.f.stream);
        }
    }
}

/// Does a direction begin as one whose content is never the same twice? TLS (a record of type 22,
/// version 3.x: RFC 8446, section 5.1) and SSH (RFC 4253, section 4.2).
fn is_sealed(data: &[u8]) -> bool {
    data.starts_with(&[0x16, 0x03]) || data.starts_with(b"SSH-")
}
