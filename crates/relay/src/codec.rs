//! The codec of streams: compresses what hosts send into blocks, and decompresses blocks into what
//! hosts get (R-COMPRESS; spec/link.md, "Compressed streams").
//!
//! Bytes are read from a host, and compressed at once, only when the link can take some. Until
//! then they stay in the host's socket, so that the next block is made of all of them. A block is
//! decompressed when the host takes its content. Until then it stays in the link's buffers, where
//! flow control counts it.
//!
//! Where the link deduplicates (spec/link.md, "Deduplication"), content becomes items first, and
//! blocks are made of these (`outward.rs`). On the way back blocks become items, and items content
//! (`inward.rs`). A chunk is looked up only when it is whole, so some content is held here. It is
//! looked at again when the link has credit, or nothing left to send.

mod accounts;
mod chunks;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod held;
mod history;
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
use squeeze::stream::{BlockDecoder, BlockEncoder, Requests, Spent, Stopwatch, Zstd};
use units::{Duration, Instant};

use crate::flows::{Flow, FlowId, Flows};

use accounts::BadStreams;
pub use accounts::{
    BadStream, ChunkCounts, CompressionCounts, LinkCompression, Malformed, StreamCounts,
};
use chunks::Chunks;
use held::Held;

/// Processor time for each byte of content that is cut into chunks and hashed, or verified and
/// kept, in nanoseconds: measured (docs/decisions/chunks-by-number.md).
const HASHING: u64 = 2;
/// Decompressed bytes that may wait for hosts, in all; beyond that they are dropped, and
/// decompressed again when the host takes them.
const WAITING: usize = 16 << 20;
/// A peer may exceed our history limit by this factor: its accounting runs ahead.
const LENIENCE: u64 = 2;
/// One stream may have one part in this many of the free history.
const SHARE: u64 = 4;
/// With less room than this no block is made; there is more when the link needs it.
const LEAST_ROOM: usize = 64;
/// Departed streams that are looked at for each block that is made: more than one, so that they
/// do not pile up.
const DEPARTED_AT_ONCE: usize = 4;

#[derive(Default)]
struct FlowCodec {
    /// `None` until the first bytes decide whether the direction is compressed.
    encoder: Option<BlockEncoder>,
    items: Items,
    decoder: BlockDecoder,
    /// The decoder of items, if streams are deduplicated.
    from_items: Option<Box<dedup::ItemDecoder>>,
    /// What arrives are not blocks: the session's streams are not compressed.
    no_blocks: bool,
    /// Bytes from before the peer's parameters were known: those that an explicit proxy got
    /// with its client's request.
    early: Vec<u8>,
    /// The host ended its direction after them.
    early_end: bool,
    /// The host ended its direction and content is held: its end follows that.
    ended: bool,
    /// Its history was needed for others: nothing more of it is delivered, and it is to be ended.
    gives_way: bool,
    /// When content that is held has waited for long enough.
    due: Option<Instant>,
    counts: CompressionCounts,
}

/// How a direction is deduplicated, ahead of compression.
#[derive(Default)]
enum Items {
    /// No content has come yet.
    #[default]
    Undecided,
    /// Not deduplicated.
    Plain,
    /// Content becomes items.
    Chunks(Box<dedup::ItemEncoder>),
}

#[derive(Default)]
struct Link {
    /// History that the peer keeps for what we send, and that we keep for what it sends.
    kept_there: u64,
    kept_here: u64,
    /// Streams whose flows are over here, and for which the peer may still keep history.
    departed: VecDeque<Departed>,
    /// Counts of the streams that are over.
    over: LinkCompression,
    /// Its chunks, if the link deduplicates.
    chunks: Option<Box<Chunks>>,
    /// It deduplicates, and its chunks are still being read: what the peer sends waits.
    awaits_chunks: bool,
    /// Flows whose bytes have waited for them.
    awaiting: BTreeSet<FlowId>,
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

/// A flow whose session goes on, at the moment `now`.
pub(crate) struct ActiveFlow<'a> {
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

/// The codecs of all flows of a node.
#[derive(Default)]
pub(crate) struct Codecs {
    zstd: Zstd,
    /// The blocks of one call. They are written to the link at once, because how much waits decides
    /// the stream's priority.
    blocks: Vec<u8>,
    /// The items of one call, before they are compressed.
    pulled: Vec<u8>,
    flows: BTreeMap<FlowId, Box<FlowCodec>>,
    /// Requests on their way to servers here, whose answers are compressed.
    requests: BTreeMap<FlowId, Requests>,
    links: BTreeMap<PeerId, Link>,
    /// Decompressed bytes that wait for hosts.
    waiting: usize,
    /// Content that waits for its chunk to be whole.
    held: Held,
    /// Bytes of content that were hashed.
    hashed: u64,
    /// Timers: what is due when.
    due: BTreeSet<(Instant, Due)>,
    /// Peers that may have to be told something about chunks.
    touched: BTreeSet<PeerId>,
    /// Peers whose files may have to be served.
    files: BTreeSet<PeerId>,
    /// Flows that are to be ended, because their history was needed for others.
    give_way: Vec<FlowId>,
    bad: BadStreams,
}

impl Codecs {
    pub fn set_stopwatch(&mut self, stopwatch: Stopwatch) {
        self.zstd = Zstd::new(Some(stopwatch));
    }

    /// What compression did for a peer's streams so far. Only the peer's own flows are looked at.
    pub fn compression(&self, peer: PeerId, flows: &Flows) -> LinkCompression {
        let mut told =
            self.links.get(&peer).map_or_else(LinkCompression::default, |l| l.over.clone());
        for id in flows.before(peer, u64::MAX) {
            let (Some(flow_codec), Some(f)) = (self.flows.get(&id), flows.get(id)) else {
                continue;
            };
            let (kind, counts) = (f.kind, flow_codec.counts);
            told.book(&kind, counts);
            let (host, port, class) = (kind.host, kind.port, kind.class);
            told.streams.push(StreamCounts { host, port, class, counts });
        }
        told
    }

    /// Counts of the peer's deduplication.
    pub fn chunk_counts(&self, peer: PeerId, session: Option<&Session>) -> Option<ChunkCounts> {
        let chunks = self.links.get(&peer)?.chunks.as_ref()?;
        let in_use = session.and_then(Session::codec).is_some_and(|codec| codec.dedup);
        Some(chunks.counts(in_use))
    }

    /// The processor time that codecs have taken so far: measured for compression, computed from
    /// the bytes for chunks.
    pub fn spent(&self) -> Duration {
        let codec = time_between(Spent::default(), self.zstd.spent());
        codec + hashing(self.hashed)
    }

    /// A stream that was reset because it could not be decompressed.
    pub fn poll_bad_stream(&mut self, now: Instant) -> Option<BadStream> {
        self.bad.poll(now)
    }

    // ---- chunks --------------------------------------------------------------------

    /// The link to a peer deduplicates from now on, if the peer does, too.
    pub fn set_dedup(&mut self, peer: PeerId, dedup: Dedup) {
        let link = self.links.entry(peer).or_default();
        link.chunks = Some(Box::new(Chunks::new(dedup)));
        if link.awaits_chunks {
            self.touched.insert(peer);
        }
    }

    /// The link to a peer will deduplicate: [`Codecs::set_dedup`] follows.
    pub fn await_dedup(&mut self, peer: PeerId) {
        self.links.entry(peer).or_default().awaits_chunks = true;
    }

    /// The chunks of a link, for whoever serves their files.
    pub fn dedup_mut(&mut self, peer: PeerId) -> Option<&mut Dedup> {
        self.links.get_mut(&peer)?.chunks.as_mut().map(|chunks| &mut chunks.dedup)
    }

    /// The peer may have to be told something about chunks.
    pub fn touch(&mut self, peer: PeerId) {
        self.touched.insert(peer);
    }

    /// The next peer that may have to be told something about chunks.
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

    /// Sends the peer what it has to be told about chunks, and gives to `ready` the flows whose
    /// chunks have arrived.
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
        if std::mem::take(&mut link.awaits_chunks) {
            chunks.receive(now, session);
            std::mem::take(&mut link.awaiting).into_iter().for_each(&mut ready);
        }
        while let Some(key) = chunks.dedup.receiver.poll_ready() {
            ready(FlowId::from_u64(key));
        }
        chunks.send(now, session, &mut self.pulled);
        self.due.extend(chunks.due.map(|at| (at, Due::News(peer))));
        self.files.insert(peer);
    }

    /// When [`Codecs::handle_timeout`] is to be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Timers are due: gives to `flows` all whose content has waited long enough, before anything
    /// is done for one of them, so that each has one turn.
    pub fn handle_timeout(&mut self, now: Instant, flows: &mut Vec<FlowId>) {
        while let Some((_, due)) = self.due.first().filter(|(at, _)| *at <= now).copied() {
            self.due.pop_first();
            match due {
                Due::News(peer) => {
                    self.touched.insert(peer);
                }
                Due::Content(flow) => {
                    if let Some(flow_codec) = self.flows.get_mut(&flow) {
                        flow_codec.due = None;
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
        let Some(mut flow_codec) = self.flows.remove(&flow) else { return };
        self.waiting -= flow_codec.waiting();
        if let Some(at) = flow_codec.due {
            self.due.remove(&(at, Due::Content(flow)));
        }
        if let Items::Chunks(items) = &flow_codec.items {
            self.held.remove(&f, items.held());
        }
        let Some(link) = self.links.get_mut(&f.peer) else { return };
        link.awaiting.remove(&flow);
        link.kept_here -= flow_codec.decoder.kept() as u64;
        link.over.book(&f.kind, flow_codec.counts);
        let kept = flow_codec.encoder.map_or(0, |e| e.kept()) as u64;
        let mut items = match flow_codec.items {
            Items::Chunks(items) => Some(items).filter(|items| items.is_referring()),
            _ => None,
        };
        if let Some(chunks) = &mut link.chunks {
            self.touched.insert(f.peer);
            if let Some(decoder) = &mut flow_codec.from_items {
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

impl FlowCodec {
    /// Content that waits for the host.
    fn waiting(&self) -> usize {
        self.decoder.waiting() + self.from_items.as_ref().map_or(0, |d| d.waiting())
    }

    /// Drops content that waits and can be decompressed, or fetched, again.
    fn forget_waiting(&mut self) {
        self.decoder.forget();
        if let Some(decoder) = &mut self.from_items {
            decoder.forget();
        }
    }
}

impl Link {
    /// Frees what is kept for some departed streams, if the peer no longer needs it.
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

/// How much content fits into `room` bytes of a stream in the worst case.
fn content_for(room: usize) -> usize {
    let content = room - room / 64;
    if room < LEAST_ROOM || BlockEncoder::worst(content) > room { 0 } else { content }
}

/// Processor time for the chunks of so much content.
fn hashing(content: u64) -> Duration {
    Duration::from_nanos(content.saturating_mul(HASHING))
}

fn time_between(before: Spent, after: Spent) -> Duration {
    let more = |a: Duration, b: Duration| b.as_nanos() - a.as_nanos();
    let ns = more(before.compressing, after.compressing)
        + more(before.decompressing, after.decompressing);
    Duration::from_nanos(ns)
}
