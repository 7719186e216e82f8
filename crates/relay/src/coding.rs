//! Coded streams: what hosts send becomes blocks, and blocks become what hosts get
//! (R-COMPRESS; spec/link.md, "Coded streams").
//!
//! A stream's bytes are coded the moment they are read from its host, and they are read
//! when the link can take some: while it cannot they stay with the host, so that the next
//! block is made of all of them. A block is undone when the host takes its content; until
//! then it stays in the link's buffers, on the account of its credit.
//!
//! Where the link deduplicates (spec/link.md, "Deduplication") content becomes items first
//! and blocks are made of these (`outward.rs`); on the way back blocks become items, and items
//! content (`inward.rs`). Then some content is held here, because a chunk is judged when all
//! of it is there, so the link is looked at again when it has credit, or has run dry.

mod accounts;
mod chunks;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod inward;
mod outward;
mod requests;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use link::PeerId;
use link::session::Session;
use link::wire::StreamId;
use squeeze::dedup::{self, Dedup};
use squeeze::stream::{BlockDecoder, BlockEncoder, Codec, Requests, Spent, Stopwatch};
use units::{Duration, Instant};

use crate::flows::{Flow, FlowId, Flows};

use accounts::BadStreams;
pub use accounts::{BadStream, ChunkCounts, LinkSqueezed, Malformed, Squeezed, StreamSqueezed};
use chunks::Chunks;

/// What a byte of content costs to be cut and named, or checked and kept, ns: measured
/// (docs/decisions/chunks-by-number.md).
const HASHING: u64 = 2;
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
    encoder: Option<BlockEncoder>,
    items: Items,
    decoder: BlockDecoder,
    /// Where streams are deduplicated.
    from_items: Option<Box<dedup::ItemDecoder>>,
    /// What came is no blocks: the session's streams are not coded.
    no_blocks: bool,
    /// Bytes from before the peer told what it takes: those that an explicit proxy got
    /// with its client's request.
    early: Vec<u8>,
    /// The host ended its direction after them.
    early_end: bool,
    /// The host ended its direction and content is held: its end follows that.
    ended: bool,
    /// When content that is held has waited for long enough.
    due: Option<Instant>,
    squeezed: Squeezed,
}

/// What becomes of a direction before it is coded.
#[derive(Default)]
enum Items {
    /// Nothing has come of it.
    #[default]
    Undecided,
    /// Content goes as it is.
    Plain,
    /// Content becomes items.
    Chunks(Box<dedup::ItemEncoder>),
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
    /// If the link deduplicates.
    chunks: Option<Box<Chunks>>,
}

/// A stream whose flow is over here: what the peer may still need of it.
struct Departed {
    session: u64,
    stream: StreamId,
    /// History that it may hold yet.
    kept: u64,
    /// Chunks that were referred to and that it may ask for yet.
    items: Option<Box<dedup::ItemEncoder>>,
}

/// A flow whose session goes on, at a moment.
pub(crate) struct Turn<'a> {
    pub now: Instant,
    pub flow: FlowId,
    pub f: Flow,
    pub session: &'a mut Session,
}

/// What waits for a time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    /// Content of a flow, for its chunk to be whole.
    Content(FlowId),
    /// News of chunks for a peer.
    News(PeerId),
}

/// The coders of all flows of a node.
#[derive(Default)]
pub(crate) struct Coders {
    codec: Codec,
    /// What a call coded: the link is told at once of all of it, because how much waits
    /// says how urgent it is.
    coded: Vec<u8>,
    /// What a call made of content before it is coded.
    pulled: Vec<u8>,
    flows: BTreeMap<FlowId, Box<Coder>>,
    /// Requests on their way to servers here, whose answers are compressed.
    requests: BTreeMap<FlowId, Requests>,
    links: BTreeMap<PeerId, Link>,
    /// Content that waits for hosts.
    waiting: usize,
    /// Content that waits for its chunk to be whole.
    held: usize,
    /// Content whose chunks were looked for, or kept.
    hashed: u64,
    /// What has waited for long enough, and when.
    due: BTreeSet<(Instant, Due)>,
    /// Peers about whose chunks something happened.
    touched: BTreeSet<PeerId>,
    /// Peers whose files may have to be served.
    files: BTreeSet<PeerId>,
    bad: BadStreams,
}

impl Coders {
    pub fn set_stopwatch(&mut self, stopwatch: Stopwatch) {
        self.codec = Codec::new(Some(stopwatch));
    }

    /// What was done for a peer's streams so far. Only the peer's own flows are looked at.
    pub fn squeezed(&self, peer: PeerId, flows: &Flows) -> LinkSqueezed {
        let mut told = self.links.get(&peer).map_or_else(LinkSqueezed::default, |l| l.over.clone());
        for id in flows.before(peer, u64::MAX) {
            let (Some(coder), Some(f)) = (self.flows.get(&id), flows.get(id)) else { continue };
            let (kind, squeezed) = (f.kind, coder.squeezed);
            told.book(&kind, squeezed);
            let (host, port, class) = (kind.host, kind.port, kind.class);
            told.streams.push(StreamSqueezed { host, port, class, squeezed });
        }
        told
    }

    /// What deduplication holds and did.
    pub fn chunk_counts(&self, peer: PeerId, session: Option<&Session>) -> Option<ChunkCounts> {
        let chunks = self.links.get(&peer)?.chunks.as_ref()?;
        let in_use = session.and_then(Session::coding).is_some_and(|coding| coding.dedup);
        Some(chunks.counts(in_use))
    }

    /// The processor time that coding has taken so far, what chunks took by their bytes.
    pub fn spent(&self) -> Duration {
        let coding = time_between(Spent::default(), self.codec.spent());
        coding + hashing(self.hashed)
    }

    /// A stream that was reset because what came could not be undone.
    pub fn poll_bad_stream(&mut self, now: Instant) -> Option<BadStream> {
        self.bad.poll(now)
    }

    // ---- chunks --------------------------------------------------------------------

    /// The link to a peer deduplicates from now on, if the peer does, too.
    pub fn set_dedup(&mut self, peer: PeerId, dedup: Dedup) {
        self.links.entry(peer).or_default().chunks = Some(Box::new(Chunks::new(dedup)));
    }

    /// The chunks of a link, for whoever serves their files.
    pub fn dedup_mut(&mut self, peer: PeerId) -> Option<&mut Dedup> {
        self.links.get_mut(&peer)?.chunks.as_mut().map(|chunks| &mut chunks.dedup)
    }

    /// Something may be to be said to the peer about chunks.
    pub fn touch(&mut self, peer: PeerId) {
        self.touched.insert(peer);
    }

    /// The next peer about whose chunks something happened.
    pub fn next_touched(&mut self) -> Option<PeerId> {
        self.touched.pop_first()
    }

    /// Is there one?
    pub fn has_files(&self) -> bool {
        !self.files.is_empty()
    }

    /// A peer whose files may have to be served.
    pub fn next_files(&mut self) -> Option<PeerId> {
        self.files.pop_first()
    }

    /// The peer has sent messages.
    pub fn on_messages(&mut self, now: Instant, peer: PeerId, number: u64, session: &mut Session) {
        let chunks = self.links.get_mut(&peer).and_then(|link| link.chunks.as_mut());
        if let Some(chunks) = chunks {
            chunks.enter(number);
            chunks.receive(now, session);
            self.touched.insert(peer);
        }
    }

    /// Says to the peer what there is to be said; gives to `ready` the flows that waited for
    /// chunks that are there now.
    pub fn settle_chunks(
        &mut self,
        now: Instant,
        peer: PeerId,
        (number, session): (u64, &mut Session),
        mut ready: impl FnMut(FlowId),
    ) {
        let Some(link) = self.links.get_mut(&peer) else { return };
        link.forget_departed(number, session);
        let Some(chunks) = &mut link.chunks else { return };
        chunks.enter(number);
        while let Some(key) = chunks.dedup.receiver.poll_ready() {
            ready(FlowId::from_u64(key));
        }
        chunks.send(now, session, &mut self.pulled);
        self.due.extend(chunks.due.map(|at| (at, Due::News(peer))));
        self.files.insert(peer);
    }

    /// When [`Coders::handle_timeout`] is to be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Something has waited for long enough; gives to `flows` those whose content has, before
    /// anything is done for one of them: each has its turn once.
    pub fn handle_timeout(&mut self, now: Instant, flows: &mut Vec<FlowId>) {
        while let Some((_, due)) = self.due.first().filter(|(at, _)| *at <= now).copied() {
            self.due.pop_first();
            match due {
                Due::News(peer) => {
                    self.touched.insert(peer);
                }
                Due::Content(flow) => {
                    if let Some(coder) = self.flows.get_mut(&flow) {
                        coder.due = None;
                        flows.push(flow);
                    }
                }
            }
        }
    }

    // ---- ends ----------------------------------------------------------------------

    /// The flow is over. `session`: its session, if it goes on.
    pub fn forget(&mut self, flow: FlowId, f: Flow, session: Option<&Session>) {
        self.requests.remove(&flow);
        let Some(mut coder) = self.flows.remove(&flow) else { return };
        self.waiting -= coder.waiting();
        if let Some(at) = coder.due {
            self.due.remove(&(at, Due::Content(flow)));
        }
        let Some(link) = self.links.get_mut(&f.peer) else { return };
        link.kept_here -= coder.decoder.kept() as u64;
        link.over.book(&f.kind, coder.squeezed);
        let kept = coder.encoder.map_or(0, |e| e.kept()) as u64;
        let mut items = match coder.items {
            Items::Chunks(items) => {
                self.held -= items.held();
                Some(items).filter(|items| items.is_referring())
            }
            _ => None,
        };
        if let Some(chunks) = &mut link.chunks {
            self.touched.insert(f.peer);
            if let Some(decoder) = &mut coder.from_items {
                decoder.close(&mut chunks.dedup.receiver, flow.to_u64());
            }
        }
        let goes_on = session.is_some_and(|s| s.contains(f.stream));
        if goes_on && (kept > 0 || items.is_some()) {
            let (session, stream) = (f.session, f.stream);
            link.departed.push_back(Departed { session, stream, kept, items });
            return;
        }
        link.kept_there -= kept;
        if let (Some(items), Some(chunks)) = (&mut items, &mut link.chunks) {
            items.close(&mut chunks.dedup.sender);
        }
    }

    /// The peer's session is another: counts begin anew, as the session's do.
    pub fn forget_peer(&mut self, peer: PeerId) {
        self.links.remove(&peer);
        self.bad.forget(peer);
    }
}

impl Coder {
    /// Content that waits for the host.
    fn waiting(&self) -> usize {
        self.decoder.waiting() + self.from_items.as_ref().map_or(0, |d| d.waiting())
    }

    /// Gives up what waits and can be made, or fetched, anew.
    fn forget_waiting(&mut self) {
        self.decoder.forget();
        if let Some(decoder) = &mut self.from_items {
            decoder.forget();
        }
    }
}

impl Link {
    /// Gives back what is kept for some streams that the peer has done with.
    fn forget_departed(&mut self, number: u64, session: &Session) {
        for _ in 0..self.departed.len().min(DEPARTED_AT_ONCE) {
            let Some(mut d) = self.departed.pop_front() else { return };
            let taken =
                Some(d.stream).filter(|_| d.session == number).and_then(|id| session.taken(id));
            if let (Some(items), Some(chunks)) = (&mut d.items, &mut self.chunks) {
                match taken {
                    Some(taken) => items.consumed(&mut chunks.dedup.sender, taken),
                    None => items.close(&mut chunks.dedup.sender),
                }
            }
            if taken.is_some() {
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
    if room < LEAST_ROOM || BlockEncoder::worst(content) > room { 0 } else { content }
}

/// What chunks of so much content take to be found, or checked and kept.
fn hashing(content: u64) -> Duration {
    Duration::from_nanos(content.saturating_mul(HASHING))
}

fn time_between(before: Spent, after: Spent) -> Duration {
    let more = |a: Duration, b: Duration| b.as_nanos() - a.as_nanos();
    let ns = more(before.compressing, after.compressing)
        + more(before.decompressing, after.decompressing);
    Duration::from_nanos(ns)
}
