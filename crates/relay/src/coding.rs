//! Coded streams: what hosts send becomes blocks, and blocks become what hosts get
//! (R-COMPRESS; spec/link.md, "Coded streams").
//!
//! A stream's bytes are coded the moment they are read from its host, and they are read
//! when the link can take some: while it cannot they stay with the host, so that the next
//! block is made of all of them. A block is undone when the host takes its content; until
//! then it stays in the link's buffers, on the account of its credit.

use std::collections::BTreeMap;

use link::PeerId;
use link::session::{Coding, Session};
use squeeze::stream::{Codec, Decoder, Encoder, Shown, Spent, Stopwatch, Terms, mixes_secrets};
use units::{Duration, Instant};

use crate::ResetReason;
use crate::flows::{Flow, FlowId};

/// Content that waits for hosts in all; beyond that it is made anew when they take it.
const WAITING: usize = 16 << 20;
/// What the peer may exceed our offer of history by: its books run ahead of ours.
const LENIENCE: u64 = 2;
/// The part of the free history that one stream may have.
const SHARE: u64 = 4;

/// What compression did on one link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Squeezed {
    /// Bytes that hosts sent, and what they became on the link's streams.
    pub content_sent: u64,
    /// See `content_sent`.
    pub coded_sent: u64,
    /// Bytes for hosts, and what they were on the link's streams.
    pub content_received: u64,
    /// See `content_received`.
    pub coded_received: u64,
    /// Directions that were ended because what came could not be undone.
    pub bad: u64,
    /// The time that compression and decompression took.
    pub cpu: Duration,
}

#[derive(Default)]
struct Coder {
    /// Until the first bytes say how it is coded.
    encoder: Option<Encoder>,
    decoder: Decoder,
    /// Bytes from before the peer told what it takes.
    early: Vec<u8>,
    /// The host ended its direction after them.
    early_end: bool,
}

#[derive(Default)]
struct Link {
    /// History kept for what we send and for what we get.
    kept_there: u64,
    kept_here: u64,
    counts: Squeezed,
}

/// The coders of all flows of a node.
#[derive(Default)]
pub(crate) struct Coders {
    codec: Codec,
    flows: BTreeMap<FlowId, Box<Coder>>,
    links: BTreeMap<PeerId, Link>,
    /// Content that waits for hosts.
    waiting: usize,
}

impl Coders {
    pub fn set_stopwatch(&mut self, stopwatch: Stopwatch) {
        self.codec = Codec::new(Some(stopwatch));
    }

    pub fn squeezed(&self, peer: PeerId) -> Squeezed {
        self.links.get(&peer).map_or(Squeezed::default(), |l| l.counts)
    }

    /// How much content surely fits into `room` bytes of a stream.
    pub fn content_for(room: usize) -> usize {
        let content = room - room / 64;
        // Less is not worth a block, and there is more when the link wants it.
        if room < 64 || Encoder::worst(content) > room { 0 } else { content }
    }

    // ---- from the host -------------------------------------------------------------

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
            let secrets = f.from_here && mixes_secrets(f.port, data);
            if f.compress && !secrets { Encoder::default() } else { Encoder::plain() }
        });
        let kept = encoder.kept() as u64;
        let free = coding.history.saturating_sub(link.kept_there - kept);
        let terms = Terms {
            rate: session.rate_status().rate,
            longest: coding.longest as usize,
            history: (free / SHARE) as usize,
        };
        let (before, mut coded) = (self.codec.spent(), 0);
        encoder.encode(&mut self.codec, &terms, data, |bytes| {
            coded += bytes.len() as u64;
            session.write_coded(now, f.stream, bytes);
        });
        link.kept_there = link.kept_there - kept + encoder.kept() as u64;
        link.counts.content_sent += data.len() as u64;
        link.counts.coded_sent += coded;
        link.book(before, self.codec.spent());
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
        let result = loop {
            let mut pieces: [&[u8]; 16] = [&[]; 16];
            let n = session.peek_slices(f.stream, &mut pieces);
            match coder.decoder.show(&mut self.codec, &pieces[..n]) {
                Ok(Shown::Content(_)) => break Ok(()),
                Ok(Shown::AsItIs(n)) => {
                    as_it_is = n;
                    break Ok(());
                }
                Ok(Shown::Head(n)) => {
                    link.counts.coded_received += n as u64;
                    session.consume(now, f.stream, n);
                }
                Ok(Shown::More) if n > 0 && session.is_complete(f.stream) => {
                    if !session.is_reset_by_peer(f.stream) {
                        break Err(());
                    }
                    // A block that was cut off is nobody's; the reset follows it.
                    let left = pieces[..n].iter().map(|p| p.len()).sum();
                    session.consume(now, f.stream, left);
                }
                Ok(Shown::More) => break Ok(()),
                Err(_) => break Err(()),
            }
        };
        link.book(before, self.codec.spent());
        link.kept_here = link.kept_here - kept + coder.decoder.kept() as u64;
        self.waiting = self.waiting - waiting + coder.decoder.waiting();
        if result.is_err() || link.kept_here > coding.own_history.saturating_mul(LENIENCE) {
            link.counts.bad += 1;
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
        link.counts.content_received += n as u64;
        link.counts.coded_received += done as u64;
        if self.waiting > WAITING {
            coder.decoder.forget();
        }
        link.kept_here = link.kept_here - kept + coder.decoder.kept() as u64;
        self.waiting = self.waiting - waiting + coder.decoder.waiting();
        done
    }

    pub fn forget(&mut self, flow: FlowId, peer: PeerId) {
        let Some(coder) = self.flows.remove(&flow) else { return };
        self.waiting -= coder.decoder.waiting();
        if let Some(link) = self.links.get_mut(&peer) {
            link.kept_here -= coder.decoder.kept() as u64;
            link.kept_there -= coder.encoder.map_or(0, |e| e.kept()) as u64;
        }
    }

    pub fn forget_peer(&mut self, peer: PeerId) {
        self.links.remove(&peer);
    }
}

impl Link {
    fn book(&mut self, before: Spent, after: Spent) {
        let more = |a: Duration, b: Duration| b.as_nanos() - a.as_nanos();
        let ns = more(before.compressing, after.compressing)
            + more(before.decompressing, after.decompressing);
        self.counts.cpu += Duration::from_nanos(ns);
    }
}
