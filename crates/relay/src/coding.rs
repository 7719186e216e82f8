//! Coded streams: what hosts send becomes blocks, and blocks become what hosts get
//! (R-COMPRESS; spec/link.md, "Coded streams").
//!
//! A stream's bytes are coded the moment they are read from its host, and they are read
//! when the link can take some: while it cannot they stay with the host, so that the next
//! block is made of all of them. A block is undone when the host takes its content; until
//! then it stays in the link's buffers, on the account of its credit.

mod accounts;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};

use link::PeerId;
use link::session::{Coding, Session};
use link::wire::StreamId;
use squeeze::stream::{
    BadBlock, Codec, Decoder, Encoder, Shown, Spent, Stopwatch, Terms, mixes_secrets,
};
use units::{Duration, Instant};

use crate::ResetReason;
use crate::flows::{Flow, FlowId, Flows};

pub use accounts::{LinkSqueezed, Squeezed, StreamSqueezed};

/// Content that waits for hosts in all; beyond that it is made anew when they take it.
const WAITING: usize = 16 << 20;
/// What the peer may exceed our offer of history by: its books run ahead of ours.
const LENIENCE: u64 = 2;
/// The part of the free history that one stream may have.
const SHARE: u64 = 4;
/// Less room than this is not worth a block, and there is more when the link wants it.
const LEAST_ROOM: usize = 64;
/// Departed streams that are looked at for each that is coded: more than one, so that they
/// do not gather.
const DEPARTED_AT_ONCE: usize = 4;

#[derive(Default)]
struct Coder {
    /// Until the first bytes say how it is coded.
    encoder: Option<Encoder>,
    decoder: Decoder,
    /// Bytes from before the peer told what it takes: those that an explicit proxy got
    /// with its client's request.
    early: Vec<u8>,
    /// The host ended its direction after them.
    early_end: bool,
    squeezed: Squeezed,
}

#[derive(Default)]
struct Link {
    /// History kept for what we send and for what we get.
    kept_there: u64,
    kept_here: u64,
    /// History of streams whose flows are over here, while the peer may hold it yet.
    departed: VecDeque<Departed>,
    /// Of streams that are over.
    over: LinkSqueezed,
}

struct Departed {
    session: u64,
    stream: StreamId,
    kept: u64,
}

/// The coders of all flows of a node.
#[derive(Default)]
pub(crate) struct Coders {
    codec: Codec,
    /// What a call coded: the link is told at once of all of it, because how much waits
    /// says how urgent it is.
    coded: Vec<u8>,
    flows: BTreeMap<FlowId, Box<Coder>>,
    links: BTreeMap<PeerId, Link>,
    /// Content that waits for hosts.
    waiting: usize,
}

impl Coders {
    pub fn set_stopwatch(&mut self, stopwatch: Stopwatch) {
        self.codec = Codec::new(Some(stopwatch));
    }

    /// What was done for a peer's streams since its session began.
    pub fn squeezed(&self, peer: PeerId, flows: &Flows) -> LinkSqueezed {
        let mut told = self.links.get(&peer).map_or_else(LinkSqueezed::default, |l| l.over.clone());
        for (id, coder) in &self.flows {
            let Some(f) = flows.get(*id).filter(|f| f.peer == peer) else { continue };
            let (kind, squeezed) = (f.kind, coder.squeezed);
            told.book(&kind, squeezed);
            let (host, port, class) = (kind.host, kind.port, kind.class);
            told.streams.push(StreamSqueezed { host, port, class, squeezed });
        }
        told
    }

    // ---- from the host -------------------------------------------------------------

    /// How much content of the flow's host is wanted now: as much as surely fits, and no
    /// more than makes one block, because everything else waits while it is made.
    pub fn room(&self, flow: FlowId, f: Flow, session: &mut Session) -> usize {
        let room = content_for(session.room_to_code(f.stream) as usize);
        let encoder = self.flows.get(&flow).and_then(|c| c.encoder.as_ref());
        let rate = session.rate_status().rate;
        let appetite = match encoder {
            Some(encoder) => encoder.appetite(rate),
            None if f.kind.compress => Encoder::default().appetite(rate),
            None => usize::MAX,
        };
        room.min(appetite)
    }

    pub fn encode(
        &mut self,
        now: Instant,
        flow: FlowId,
        f: Flow,
        session: &mut Session,
        coding: Coding,
        data: &[u8],
    ) -> usize {
        self.flush(now, flow, f, session, coding);
        self.encode_now(now, flow, f, session, coding, data);
        data.len()
    }

    fn encode_now(
        &mut self,
        now: Instant,
        flow: FlowId,
        f: Flow,
        session: &mut Session,
        coding: Coding,
        data: &[u8],
    ) {
        if data.is_empty() {
            return;
        }
        let coder = self.flows.entry(flow).or_default();
        let link = self.links.entry(f.peer).or_default();
        let encoder = coder.encoder.get_or_insert_with(|| {
            let secrets = f.kind.from_here && mixes_secrets(f.kind.port, data);
            if f.kind.compress && !secrets { Encoder::default() } else { Encoder::plain() }
        });
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
        coder.squeezed.sent += data.len() as u64;
        coder.squeezed.sent_as += self.coded.len() as u64;
        coder.squeezed.cpu += time_between(before, self.codec.spent());
    }

    /// The peer has not told yet what it takes: keeps `data` until it has.
    pub fn wait(&mut self, flow: FlowId, f: Flow, session: &mut Session, data: &[u8]) -> usize {
        session.room_to_code(f.stream); // Its event says when the peer has told.
        self.flows.entry(flow).or_default().early.extend_from_slice(data);
        data.len()
    }

    pub fn has_early(&self, flow: FlowId) -> bool {
        self.flows.get(&flow).is_some_and(|c| !c.early.is_empty() || c.early_end)
    }

    /// The host ended its direction; true if its bytes wait yet.
    pub fn end(&mut self, flow: FlowId) -> bool {
        let coder = self.flows.get_mut(&flow).filter(|c| !c.early.is_empty());
        coder.map(|c| c.early_end = true).is_some()
    }

    pub fn flush(
        &mut self,
        now: Instant,
        flow: FlowId,
        f: Flow,
        session: &mut Session,
        coding: Coding,
    ) {
        let Some(coder) = self.flows.get_mut(&flow) else { return };
        let (early, end) = (std::mem::take(&mut coder.early), std::mem::take(&mut coder.early_end));
        if coding.history > 0 {
            self.encode_now(now, flow, f, session, coding, &early);
        } else {
            session.write_coded(now, f.stream, &early);
        }
        if end {
            session.finish(now, f.stream);
        }
    }

    // ---- to the host ---------------------------------------------------------------

    /// Shows what the flow's host gets next; answers how many slices.
    pub fn decode<'a>(
        &'a mut self,
        now: Instant,
        flow: FlowId,
        f: Flow,
        session: &'a mut Session,
        coding: Coding,
        slices: &mut [&'a [u8]],
    ) -> usize {
        let coder = self.flows.entry(flow).or_default();
        let link = self.links.entry(f.peer).or_default();
        let (kept, waiting) = (coder.decoder.kept() as u64, coder.decoder.waiting());
        let before = self.codec.spent();
        let mut as_it_is = 0;
        let mut result = loop {
            let mut pieces: [&[u8]; 16] = [&[]; 16];
            let n = session.peek_slices(f.stream, &mut pieces);
            if n == 0 && coder.decoder.waiting() > 0 {
                // The stream was reset meanwhile: its block is nobody's.
                coder.decoder.forget();
                break Ok(());
            }
            match coder.decoder.show(&mut self.codec, &pieces[..n]) {
                Ok(Shown::Content(_)) => break Ok(()),
                Ok(Shown::AsItIs(n)) => {
                    as_it_is = n;
                    break Ok(());
                }
                Ok(Shown::Head(n)) => {
                    coder.squeezed.received_as += n as u64;
                    session.consume(now, f.stream, n);
                }
                Ok(Shown::More) if n > 0 && session.is_complete(f.stream) => {
                    if !session.is_reset_by_peer(f.stream) {
                        break Err(BadBlock::Cut);
                    }
                    // A block that was cut off is nobody's; the reset follows it.
                    let left = pieces[..n].iter().map(|p| p.len()).sum();
                    session.consume(now, f.stream, left);
                }
                Ok(Shown::More) => break Ok(()),
                Err(bad) => break Err(bad),
            }
        };
        coder.squeezed.cpu += time_between(before, self.codec.spent());
        link.kept_here = link.kept_here - kept + coder.decoder.kept() as u64;
        self.waiting = self.waiting - waiting + coder.decoder.waiting();
        if link.kept_here > coding.own_history.saturating_mul(LENIENCE) {
            result = result.and(Err(BadBlock::History));
        }
        if let Err(bad) = result {
            *link.over.bad.entry(bad).or_default() += 1;
            session.reset(now, f.stream, ResetReason::Protocol, false);
            return 0;
        }
        if as_it_is == 0 {
            slices[0] = coder.decoder.content();
            return usize::from(!slices[0].is_empty());
        }
        let count = session.peek_slices(f.stream, slices);
        for (n, slice) in slices[..count].iter_mut().enumerate() {
            if as_it_is == 0 {
                return n;
            }
            *slice = &slice[..slice.len().min(usize::try_from(as_it_is).unwrap_or(usize::MAX))];
            as_it_is -= slice.len() as u64;
        }
        count
    }

    /// The flow's host took `n` bytes. Answers how many of the stream are done.
    pub fn took(&mut self, flow: FlowId, peer: PeerId, n: usize) -> usize {
        let Some(coder) = self.flows.get_mut(&flow) else { return n };
        let link = self.links.entry(peer).or_default();
        let (kept, waiting) = (coder.decoder.kept() as u64, coder.decoder.waiting());
        let done = coder.decoder.took(n);
        coder.squeezed.received += n as u64;
        coder.squeezed.received_as += done as u64;
        if self.waiting > WAITING {
            coder.decoder.forget();
        }
        link.kept_here = link.kept_here - kept + coder.decoder.kept() as u64;
        self.waiting = self.waiting - waiting + coder.decoder.waiting();
        done
    }

    /// The flow's host takes nothing now.
    pub fn not_taken(&mut self, flow: FlowId) {
        if self.waiting > WAITING
            && let Some(coder) = self.flows.get_mut(&flow)
        {
            self.waiting -= coder.decoder.waiting();
            coder.decoder.forget();
        }
    }

    /// The processor time that coding has taken so far.
    pub fn spent(&self) -> Duration {
        time_between(Spent::default(), self.codec.spent())
    }

    // ---- ends ----------------------------------------------------------------------

    /// The flow is over. `session`: its session, if it goes on.
    pub fn forget(&mut self, flow: FlowId, f: Flow, session: Option<&Session>) {
        let Some(coder) = self.flows.remove(&flow) else { return };
        self.waiting -= coder.decoder.waiting();
        let Some(link) = self.links.get_mut(&f.peer) else { return };
        link.kept_here -= coder.decoder.kept() as u64;
        link.over.book(&f.kind, coder.squeezed);
        let kept = coder.encoder.map_or(0, |e| e.kept()) as u64;
        if kept > 0 && session.is_some_and(|s| s.contains(f.stream)) {
            let (session, stream) = (f.session, f.stream);
            link.departed.push_back(Departed { session, stream, kept });
        } else {
            link.kept_there -= kept;
        }
    }

    /// The peer's session is another: counts begin anew, as the session's do.
    pub fn begin_session(&mut self, peer: PeerId) {
        if let Some(link) = self.links.get_mut(&peer) {
            link.over = LinkSqueezed::default();
        }
    }

    pub fn forget_peer(&mut self, peer: PeerId) {
        self.links.remove(&peer);
    }
}

impl Link {
    /// Gives back the history of some streams that the peer has done with.
    fn forget_departed(&mut self, number: u64, session: &Session) {
        for _ in 0..self.departed.len().min(DEPARTED_AT_ONCE) {
            let Some(d) = self.departed.pop_front() else { return };
            if d.session == number && session.contains(d.stream) {
                self.departed.push_back(d);
            } else {
                self.kept_there -= d.kept;
            }
        }
    }
}

/// How much content surely fits into `room` bytes of a stream.
fn content_for(room: usize) -> usize {
    let content = room - room / 64;
    if room < LEAST_ROOM || Encoder::worst(content) > room { 0 } else { content }
}

fn time_between(before: Spent, after: Spent) -> Duration {
    let more = |a: Duration, b: Duration| b.as_nanos() - a.as_nanos();
    let ns = more(before.compressing, after.compressing)
        + more(before.decompressing, after.decompressing);
    Duration::from_nanos(ns)
}
