//! From hosts to the link: content → items → blocks → the stream.

use link::session::Coding;
use squeeze::dedup::{self, PLAIN, Scope};
use squeeze::stream::{BlockEncoder, Requests, Terms, mixes_secrets};
use units::BitRate;

use super::{Coders, Due, Items, SHARE, Turn, content_for, hashing, time_between};
use crate::flows::FlowId;

/// Content that is held in all while its chunks are not whole. Each direction may hold this
/// part of what is free of it, and in any case a piece. While more than a half is held, by
/// directions whose readers stopped, those that begin are not deduplicated.
const HELD: usize = 16 << 20;
const PART: usize = 4;
const PIECE: usize = 2 * 1024;
/// Above this rate of the link directions are not deduplicated. A byte costs little there, while
/// each that is new is cut, named, checked, and written to a disk at the other end: at this rate a
/// terabyte a day, which is what flash is made to bear for some years, and a store of 1 GB
/// remembers the last minute or two only (docs/deduplication.md).
const FAST: BitRate = BitRate::from_mbps(100);

impl Coders {
    /// How much content of the flow's host is wanted now: as much as surely fits, and no
    /// more than makes one block, because everything else waits while it is made. Where it
    /// becomes items: enough for some chunks, most of which may cost next to nothing.
    pub fn room(&self, turn: &mut Turn<'_>) -> usize {
        let room = content_for(turn.session.writable_for_codec(turn.f.stream) as usize);
        let coder = self.flows.get(&turn.flow);
        let coding = turn.session.coding();
        match coder.map(|c| &c.items) {
            _ if room == 0 => 0,
            // Its timer, or the link, says when it goes, and that there is room again.
            Some(Items::Chunks(items)) => {
                items.room().min(may_hold(self.held).saturating_sub(items.held()))
            }
            None | Some(Items::Undecided) if coding.is_some_and(|c| c.dedup) => room,
            _ => {
                let codes = turn.f.kind.compress && coding.is_some_and(|c| c.history > 0);
                let appetite =
                    |encoder: &BlockEncoder| encoder.appetite(turn.session.rate_status().rate);
                room.min(match coder.and_then(|c| c.encoder.as_ref()) {
                    Some(encoder) => appetite(encoder),
                    None if codes => appetite(&BlockEncoder::default()),
                    None => usize::MAX,
                })
            }
        }
    }

    pub fn encode(&mut self, turn: &mut Turn<'_>, coding: Coding, data: &[u8]) -> usize {
        self.flush(turn, coding);
        self.encode_now(turn, coding, data);
        data.len()
    }

    fn encode_now(&mut self, turn: &mut Turn<'_>, coding: Coding, data: &[u8]) {
        if data.is_empty() {
            return;
        }
        let coder = self.flows.entry(turn.flow).or_default();
        let link = self.links.entry(turn.f.peer).or_default();
        coder.squeezed.sent += data.len() as u64;
        if coding.history > 0 && coder.encoder.is_none() {
            let secrets = turn.f.kind.from_here && mixes_secrets(turn.f.kind.port, data);
            let codes = turn.f.kind.compress && !secrets;
            coder.encoder =
                Some(if codes { BlockEncoder::default() } else { BlockEncoder::plain() });
        }
        let answers_proof = self.requests.get(&turn.flow).is_some_and(Requests::prove);
        if let Some(encoder) = coder.encoder.as_mut().filter(|_| answers_proof) {
            encoder.stop();
        }
        if let Some(chunks) = &mut link.chunks {
            chunks.enter(turn.f.session);
        }
        let first = matches!(coder.items, Items::Undecided);
        if first {
            let is_crowded = self.held > HELD / 2;
            let worth = !is_sealed(data) && !is_crowded && turn.session.rate_status().rate <= FAST;
            let own = |scope| match (answers_proof, turn.f.kind.host) {
                (true, host) => host.map(Scope::Host), // It is nobody else's.
                (false, _) => Some(scope),
            };
            coder.items = match (&link.chunks, turn.f.kind.scope.and_then(own)) {
                (Some(chunks), Some(scope)) if coding.dedup && worth => {
                    let items = dedup::ItemEncoder::new(&chunks.dedup.sender, scope);
                    Items::Chunks(Box::new(items))
                }
                _ => Items::Plain,
            };
        }
        match (&mut coder.items, &link.chunks) {
            (Items::Chunks(items), Some(chunks)) => {
                items.push(turn.now, &chunks.dedup.sender, data);
                self.held += data.len();
                self.hashed += data.len() as u64;
                coder.squeezed.cpu += hashing(data.len() as u64);
                self.pull(turn, coding, false);
            }
            _ if first && coding.dedup => {
                let mut pulled = std::mem::take(&mut self.pulled);
                pulled.clear();
                pulled.extend_from_slice(&PLAIN);
                pulled.extend_from_slice(data);
                self.code(turn, coding, &pulled);
                self.pulled = pulled;
            }
            _ => self.code(turn, coding, data),
        }
    }

    /// Lets items of the flow go as far as the link has room for them, or `all` that is held, for
    /// the flow is about to be over. To be called when content came, when the link has room,
    /// credit or nothing left of the stream, and when content has waited for long enough.
    pub fn pull(&mut self, turn: &mut Turn<'_>, coding: Coding, all: bool) {
        let mut pulled = std::mem::take(&mut self.pulled);
        while self.pull_some(turn, coding, all, &mut pulled) {
            self.code(turn, coding, &pulled);
            let (written, _) = turn.session.written(turn.f.stream);
            let coder = self.flows.get_mut(&turn.flow);
            if let Some(Items::Chunks(items)) = coder.map(|c| &mut c.items) {
                items.written(written);
                if items.is_referring() {
                    turn.session.mark_referring(turn.f.stream);
                }
            }
        }
        self.pulled = pulled;
        self.rest(turn);
    }

    /// Takes what goes next into `pulled`; false if nothing does now.
    fn pull_some(
        &mut self,
        turn: &mut Turn<'_>,
        coding: Coding,
        all: bool,
        pulled: &mut Vec<u8>,
    ) -> bool {
        let Turn { now, flow, f, ref mut session } = *turn;
        pulled.clear();
        let Some(coder) = self.flows.get_mut(&flow) else { return false };
        let chunks = self.links.get_mut(&f.peer).and_then(|link| link.chunks.as_mut());
        let (Items::Chunks(items), Some(chunks)) = (&mut coder.items, chunks) else {
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
        let is_full = before >= may_hold(self.held);
        let room = if all {
            items.hurry();
            usize::MAX
        } else {
            let appetite = coder
                .encoder
                .as_ref()
                .map_or(usize::MAX, |encoder| encoder.appetite(session.rate_status().rate));
            content_for(session.writable_for_codec(f.stream) as usize).min(appetite)
        };
        if room == 0 {
            return false;
        }
        let (room, mut put) = ((room, coding.window as usize), |bytes: &[u8]| {
            pulled.extend_from_slice(bytes);
        });
        // What is no whole chunk goes only where the link would idle, or no more can be held.
        let mut n = items.pull(now, sender, room, all, &mut put);
        if n == 0 && (is_full || session.written(f.stream).1 == 0) {
            n = items.pull(now, sender, room, true, &mut put);
        }
        self.held -= before - items.held();
        n > 0
    }

    /// Sees to it that what is held is looked at again, and ends what is done.
    fn rest(&mut self, turn: &mut Turn<'_>) {
        let Turn { now, flow, f, ref mut session } = *turn;
        let Some(coder) = self.flows.get_mut(&flow) else { return };
        let chunks = self.links.get_mut(&f.peer).and_then(|link| link.chunks.as_mut());
        let (Items::Chunks(items), Some(chunks)) = (&mut coder.items, chunks) else { return };
        if coder.ended && items.is_done() {
            coder.ended = false;
            session.finish(now, f.stream);
        }
        if !session.takes_bytes(f.stream) {
            self.held -= items.held();
            items.give_up();
        }
        let waits = session.written(f.stream).1 > 0;
        if waits {
            session.tell_idle(f.stream);
        }
        let due = items.poll_timeout(&chunks.dedup.sender).filter(|_| !waits);
        if due != coder.due {
            if let Some(at) = coder.due {
                self.due.remove(&(at, Due::Content(flow)));
            }
            self.due.extend(due.map(|at| (at, Due::Content(flow))));
            coder.due = due;
        }
    }

    /// Codes `data` and writes it to the stream.
    fn code(&mut self, turn: &mut Turn<'_>, coding: Coding, data: &[u8]) {
        let Turn { now, flow, f, ref mut session } = *turn;
        let coder = self.flows.entry(flow).or_default();
        let link = self.links.entry(f.peer).or_default();
        coder.squeezed.sent_items += data.len() as u64;
        // What goes as it is takes no detour.
        let encoder = coder.encoder.as_mut().and_then(|e| (!e.pass(data.len())).then_some(e));
        let Some(encoder) = encoder else {
            coder.squeezed.sent_as += data.len() as u64;
            return session.write_coded(now, f.stream, data);
        };
        link.forget_departed(f.session, session);
        let kept = encoder.kept() as u64;
        let free = coding.history.saturating_sub(link.kept_there - kept);
        let terms = Terms {
            rate: session.rate_status().rate,
            longest: coding.longest as usize,
            history: (free / SHARE) as usize,
        };
        let before = self.codec.spent();
        self.coded.clear();
        encoder.encode(&mut self.codec, &terms, data, |bytes| self.coded.extend_from_slice(bytes));
        session.write_coded(now, f.stream, &self.coded);
        link.kept_there = link.kept_there - kept + encoder.kept() as u64;
        coder.squeezed.sent_as += self.coded.len() as u64;
        coder.squeezed.cpu += time_between(before, self.codec.spent());
    }

    /// The peer has not told yet what it takes: keeps `data` until it has.
    pub fn wait(&mut self, turn: &mut Turn<'_>, data: &[u8]) -> usize {
        turn.session.writable_for_codec(turn.f.stream); // Its event says when the peer has told.
        self.flows.entry(turn.flow).or_default().early.extend_from_slice(data);
        data.len()
    }

    pub fn has_early(&self, flow: FlowId) -> bool {
        self.flows.get(&flow).is_some_and(|c| !c.early.is_empty() || c.early_end)
    }

    /// The host ended its direction; true if its bytes wait yet.
    pub fn end(&mut self, turn: &mut Turn<'_>) -> bool {
        let Some(coder) = self.flows.get_mut(&turn.flow) else { return false };
        if !coder.early.is_empty() {
            coder.early_end = true;
            return true;
        }
        let Items::Chunks(items) = &mut coder.items else { return false };
        items.finish();
        coder.ended = true;
        if let Some(coding) = turn.session.coding() {
            self.pull(turn, coding, false);
        }
        true
    }

    pub fn flush(&mut self, turn: &mut Turn<'_>, coding: Coding) {
        let Some(coder) = self.flows.get_mut(&turn.flow) else { return };
        let (early, end) = (std::mem::take(&mut coder.early), std::mem::take(&mut coder.early_end));
        self.encode_now(turn, coding, &early);
        if end && !self.end(turn) {
            turn.session.finish(turn.now, turn.f.stream);
        }
    }
}

/// Content that a direction may hold where so much is held in all.
fn may_hold(held: usize) -> usize {
    (HELD.saturating_sub(held) / PART).max(PIECE)
}

/// Does a direction begin as one whose content is never the same twice? TLS (a record of type 22,
/// version 3.x: RFC 8446, section 5.1) and SSH (RFC 4253, section 4.2).
fn is_sealed(data: &[u8]) -> bool {
    data.starts_with(&[0x16, 0x03]) || data.starts_with(b"SSH-")
}
