//! What two nodes share once they have keys: streams, datagrams, receive state,
//! credit and the departure clock. It outlives keys, addresses and darkness.
//!
//! The order in which packets are filled (`send.rs`): reports that are due, then
//! control frames, then streams and datagrams as `schedule.rs` says; what counts as
//! urgent among them is in `urgency.rs`. What arrives is taken apart in `receive.rs`;
//! how much each stream may have outstanding is in `credit.rs`.
//!
//! There is no congestion window: the departure clock (R-RATE) and credit are the
//! only limits, so a lost packet delays the bytes it carried and nothing else.

mod coded;
mod config;
mod credit;
mod facts;
mod hearing;
mod hosts;
mod messages;
mod packets;
mod path;
mod receive;
mod repair;
mod schedule;
mod send;
mod show;
mod streams;
mod urgency;

use std::collections::{BTreeMap, VecDeque};

use squeeze::headers::Decompressor;
use squeeze::stream::Stopwatch;
use units::{BitRate, ByteCount, Duration, Instant};

use crate::buffer::Pool;
use crate::datagram::{Inbox, MAX_DATAGRAM, Outbox};
use crate::kept::Kept;
use crate::pacer::Pacer;
use crate::path_mtu::PathMtu;
use crate::ranges::RangeSet;
use crate::rate::Rate;
use crate::received::Received;
use crate::rtt::Rtt;
use crate::sent::Sent;
use crate::stream::{Carries, Delivery, Queue, Stream};
use crate::wire::{Origin, ResetReason, StreamId};

pub use crate::rate::{RateMode, RateStatus};
pub use coded::Coding;
pub(crate) use config::Params;
pub use config::{LinkConfig, NEARLY_EMPTY, best_packet};
pub use facts::{Disagreements, End, Facts, Families, Services};
use facts::{Told, rate_bits};
use hearing::Hearing;
pub use hearing::Reach;
pub(crate) use hosts::HostId;
pub use packets::Carry;
use packets::LaneHeaders;
pub(crate) use receive::PathFrame;
use receive::Touched;
use repair::Repair;
use schedule::Schedule;
pub use schedule::{ClassConfig, ClassId};
use urgency::Flows;
pub use urgency::{Compress, Label};

/// A mistake that a test plants in a session.
#[cfg(feature = "mistakes")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    /// What a report says has arrived is forgotten now and then.
    DroppedAcknowledgement,
    /// Bytes that the reader took are shown again now and then.
    DoubleDelivery,
    /// Credit for bytes that the reader took is never told.
    CreditLeak,
}

/// What happened, for the user of the link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The peer opened a stream.
    Opened(StreamId, Origin),
    /// The far connection of our stream stands.
    Accepted(StreamId),
    /// There is something to take from the stream: bytes, its end, or its reset.
    Readable(StreamId),
    /// The stream takes bytes again.
    Writable(StreamId),
    /// The peer gave the stream up; what it sent before can still be taken.
    Reset(StreamId, ResetReason),
    /// There is something of the peer's messages about chunks to take.
    Messages,
}

/// What stands behind the bytes that [`Session::peek`] shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RecvState {
    /// More may come.
    Open,
    /// All was taken and the peer closed in good order.
    Finished,
    /// All that will come was taken and the peer gave up.
    Reset(ResetReason),
}

/// Counts for `status`.
#[derive(Clone, Copy, Debug, Default)]
pub struct SessionStats {
    /// Stream bytes taken from, and given to, the user of the link.
    pub stream_bytes_in: u64,
    /// See `stream_bytes_in`.
    pub stream_bytes_out: u64,
    /// Stream bytes sent again.
    pub retransmitted: u64,
    /// Datagrams taken, given, dropped.
    pub datagrams_in: u64,
    /// See `datagrams_in`.
    pub datagrams_out: u64,
    /// See `datagrams_in`.
    pub datagrams_dropped: u64,
    /// Datagrams that were lost and sent again.
    pub datagrams_repeated: u64,
    /// Bytes of the datagrams taken and given.
    pub datagram_bytes_in: u64,
    /// See `datagram_bytes_in`.
    pub datagram_bytes_out: u64,
    /// Bytes of datagrams that compression kept off the link, out and in: as often as
    /// they were sent.
    pub datagram_bytes_saved_out: u64,
    /// See `datagram_bytes_saved_out`.
    pub datagram_bytes_saved_in: u64,
    /// The processor's time that compressing and decompressing their payloads took; zero
    /// without a stopwatch.
    pub datagram_cpu: Duration,
    /// Packets that the peer has, that were deemed lost, and of those that came late.
    pub packets_arrived: u64,
    /// See `packets_arrived`.
    pub packets_lost: u64,
    /// See `packets_arrived`.
    pub packets_late: u64,
    /// Authentic packets that broke the protocol, and credit that was overrun.
    pub violations: u64,
    /// Of these, REPAIR packets that contradicted what had arrived or come back: the decoder was
    /// emptied.
    pub contradictions: u64,
    /// REPAIR packets of the peer that were not worked out: they cost more than their bytes earn.
    pub too_dear: u64,
    /// Streams opened by either side so far.
    pub streams_total: u64,
    /// Packets that came back by repair, here and at the peer; repair packets sent.
    pub recovered: u64,
    /// See `recovered`.
    pub peer_recovered: u64,
    /// See `recovered`.
    pub repairs_sent: u64,
    /// Reports written.
    pub reports: u64,
    /// Probes after silence.
    pub probes: u64,
}

/// Streams and datagrams with one peer.
pub struct Session {
    config: LinkConfig,
    params: Params,
    peer: Params,
    /// The peer has told its parameters.
    told: bool,
    /// 0 for the node with the lower public key, else 1.
    side: u64,

    pub(crate) sent: Sent,
    received: Received,
    rtt: Rtt,
    pacer: Pacer,
    rate: Rate,
    path: PathMtu,
    pool: Pool,
    streams: BTreeMap<StreamId, Box<Stream>>,
    next_stream: u64,
    /// Streams of the peer that are over, as `id / 2`.
    closed: RangeSet,

    schedule: Schedule,
    blocked: VecDeque<StreamId>,
    /// Credit came back: streams that wait for it are to be looked at.
    freed: bool,
    control: VecDeque<StreamId>,
    /// OPENs that wait for first data, with their deadline.
    opening: VecDeque<(Instant, StreamId)>,
    credits: VecDeque<StreamId>,
    credit_due: Option<Instant>,
    outbox: Outbox,
    inbox: Inbox,
    /// What the peer's headers refer to.
    headers: Decompressor,
    /// Datagrams that go again if they are lost.
    kept: Kept,
    /// Our streams of packets, and how many there are of both sides.
    lanes: BTreeMap<(ClassId, HostId), StreamId>,
    packet_streams: usize,
    /// What is known of headers in them.
    lane_headers: LaneHeaders,
    /// The streams of messages about chunks, ours and the peer's.
    messages: [Option<StreamId>; 2],
    /// Datagrams that were sent lately, by flow.
    flows: Flows,
    /// Somebody waits for single packets, or did lately.
    interactive_until: Instant,
    /// Somebody waits for an answer, or hears a call: what comes is to be read at once.
    awaited_until: Instant,
    repair: Repair,
    excess: u64,
    recv_excess: u64,
    events: VecDeque<Event>,

    ping: bool,
    /// Bytes of the packet being filled that streams' bytes may reach to.
    longest_piece: usize,
    /// The next PING goes alone, so that its packet is small.
    alone: bool,
    /// Small packets that asked since something was heard of what left, and when the last did.
    asked: u32,
    asked_at: Instant,
    loss_check: Option<Instant>,
    backoff: u32,
    last_eliciting: Instant,
    last_progress: Instant,
    last_heard: Instant,
    /// The peer does not answer, or does not hear: streams wait.
    silent: bool,
    hearing: Hearing,
    floor_told: u64,
    floor_told_at: Instant,
    closing: Option<ResetReason>,
    /// Copies of CLOSE to be sent yet: nothing asks for a lost one again.
    closes_left: u8,
    /// When the next of them is due.
    close_at: Instant,
    peer_closed: bool,
    /// The packet in hand had a report, after which losses were looked for.
    looked_for_losses: bool,
    /// The packet in hand spoke of a stream that not even a refusal has room for.
    overfull: bool,
    touched: Touched,
    #[cfg(feature = "mistakes")]
    mistake: Option<Mistake>,
    /// IP and UDP header bytes, and framing, that the link counts per packet.
    wire_overhead: u64,
    stats: SessionStats,
}

/// A client's SYN is answered at once, and its first bytes usually follow within a
/// millisecond; OPEN waits this long for them (link-notes, "Opening").
const OPEN_WAIT: Duration = Duration::from_millis(20);
/// Copies of CLOSE that are sent.
const CLOSES: u8 = 3;
/// Time between them: losses come in bursts.
const CLOSE_SPACING: Duration = Duration::from_millis(50);

impl Session {
    /// A session before its first handshake. `side`: 0 for the lower public key.
    pub(crate) fn new(now: Instant, config: LinkConfig, side: u64) -> Session {
        let params = Params::of(&config);
        let half_second = config.send_rate.bytes_in(Duration::from_millis(500)).0;
        let queue = half_second.max(MAX_DATAGRAM as u64);
        let mut session = Session {
            params,
            // Nothing is known of what it can take apart.
            peer: Params { contexts: 0, told: None, ..params },
            told: false,
            side,
            sent: Sent::new(),
            received: Received::new(),
            rtt: Rtt::new(config.rtt),
            pacer: Pacer::new(config.send_rate, config.queue),
            rate: Rate::new(config.rate_mode, config.send_rate),
            path: PathMtu::new(config.packet.min(config.mtu)),
            pool: Pool::default(),
            streams: BTreeMap::new(),
            next_stream: 0,
            closed: RangeSet::default(),
            schedule: Schedule::new(&config.classes, config.packet),
            blocked: VecDeque::new(),
            freed: false,
            control: VecDeque::new(),
            opening: VecDeque::new(),
            credits: VecDeque::new(),
            credit_due: None,
            outbox: Outbox::new(2 * queue as usize),
            inbox: Inbox::new(4 << 20),
            headers: Decompressor::new(params.contexts as usize),
            kept: Kept::new(config.memory.0 as usize / 8),
            lanes: BTreeMap::new(),
            packet_streams: 0,
            lane_headers: LaneHeaders::default(),
            messages: [None; 2],
            flows: Flows::default(),
            interactive_until: Instant::ZERO,
            awaited_until: Instant::ZERO,
            repair: Repair::new(&config),
            excess: 0,
            recv_excess: 0,
            events: VecDeque::new(),
            ping: false,
            longest_piece: 0,
            alone: false,
            asked: 0,
            asked_at: now,
            loss_check: None,
            backoff: 0,
            last_eliciting: now,
            last_progress: now,
            last_heard: now,
            silent: false,
            hearing: Hearing::default(),
            floor_told: 0,
            floor_told_at: now,
            closing: None,
            closes_left: 0,
            close_at: now,
            peer_closed: false,
            looked_for_losses: false,
            overfull: false,
            touched: Touched::default(),
            #[cfg(feature = "mistakes")]
            mistake: None,
            wire_overhead: 28 + u64::from(config.overhead),
            stats: SessionStats::default(),
            config,
        };
        session.fit_sizes();
        session
    }

    /// Our side's parameters, for the handshake.
    pub(crate) fn params(&self) -> Params {
        self.params
    }

    /// The handshake told the peer's parameters.
    pub(crate) fn set_peer(&mut self, peer: Params, ipv6: bool) {
        let peer = self.params.limited(peer);
        // Whether streams are coded is settled once (L-CO-1, L-DD-11).
        let settled = if self.told { self.peer } else { peer };
        self.peer = Params { history: settled.history, dedup: settled.dedup, ..peer };
        self.outbox.set_contexts(self.peer.contexts as usize);
        self.set_ipv6(ipv6);
        self.set_largest_packet();
        if !std::mem::replace(&mut self.told, true) {
            self.wake_coded();
        }
    }

    /// What the peer's file and ours cannot both be right about; nothing while the peer has
    /// not told, or is of a version that does not.
    pub fn disagreements(&self) -> Disagreements {
        let both = self.params.told.zip(self.peer.told);
        both.map_or_else(Disagreements::default, |(own, peer)| Disagreements::between(&own, &peer))
    }

    /// The file says something else of the link: the next handshake tells it.
    pub(crate) fn set_facts(&mut self, facts: Facts, rates: [BitRate; 2]) {
        self.config.facts = facts;
        let [send, receive] = rates.map(rate_bits);
        self.params.told = Some(Told { facts, send, receive });
    }

    /// The peer is at an IPv6 address, or at an IPv4 one: their headers differ.
    pub(crate) fn set_ipv6(&mut self, ipv6: bool) {
        self.wire_overhead = if ipv6 { 48 } else { 28 } + u64::from(self.config.overhead);
        self.fit_sizes();
    }

    /// The largest UDP payload of this link.
    pub(crate) fn max_packet(&self) -> usize {
        self.payload_of(u64::from(self.config.mtu))
    }

    /// The largest UDP payload that is worth its risk: repair alone may be longer.
    fn best_packet(&self) -> usize {
        self.payload_of(u64::from(self.config.packet.min(self.config.mtu))).min(self.path_packet())
    }

    /// The largest UDP payload that crosses the path as far as is known (L-PM-1).
    fn path_packet(&self) -> usize {
        let limit = self.path.limit().unwrap_or(self.config.mtu);
        self.payload_of(u64::from(limit.min(self.config.mtu)))
    }

    fn payload_of(&self, packet: u64) -> usize {
        let packet = packet.min(self.peer.mtu) + u64::from(self.config.overhead);
        (packet - self.wire_overhead) as usize
    }

    /// What the link counts per packet beside our bytes.
    pub(crate) fn wire_overhead(&self) -> u64 {
        self.wire_overhead
    }

    /// The largest IP packet that crosses in one piece.
    pub fn max_whole_datagram(&self) -> usize {
        // The longest header and tag (25) and the frame's type.
        self.best_packet().saturating_sub(26)
    }

    /// The number of the next packet.
    pub(crate) fn next_number(&self) -> u64 {
        self.sent.next_number()
    }

    /// The highest packet number that the peer is known to have received.
    pub(crate) fn confirmed(&self) -> Option<u64> {
        self.sent.confirmed()
    }

    /// Books a packet of `len` bytes that the endpoint filled with `payload`.
    pub(crate) fn book_other(&mut self, now: Instant, payload: &[u8], len: usize) {
        self.on_other_sent(now, len);
        let number = self.sent.push_packet(now, false, len as u64 + self.wire_overhead);
        self.repair.keep_between(number, 0, payload);
    }

    /// Do datagrams wait to be taken?
    pub fn has_datagrams(&self) -> bool {
        !self.inbox.is_empty()
    }

    /// Do events wait?
    pub(crate) fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// Link time of a packet that is not the session's (a handshake).
    pub(crate) fn on_other_sent(&mut self, now: Instant, len: usize) {
        self.pacer.on_sent(now, len as u64 + self.wire_overhead);
    }

    // ---- datagrams -----------------------------------------------------------

    /// Lends the next datagram that arrived; false if there is none.
    pub fn take_datagram(&mut self, take: impl FnOnce(&mut [u8])) -> bool {
        let stats = &mut self.stats;
        self.inbox.pop(|data| {
            stats.datagrams_out += 1;
            stats.datagram_bytes_out += data.len() as u64;
            take(data);
        })
    }

    // ---- the session itself --------------------------------------------------

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        let event = self.events.pop_front()?;
        if let Event::Writable(id) = event
            && let Some(s) = self.streams.get_mut(&id)
        {
            s.told_credit = false;
        }
        Some(event)
    }

    /// Ends the session in good order: the peer resets what is open.
    pub fn close(&mut self, reason: ResetReason) {
        self.closing = Some(reason);
        self.closes_left = CLOSES;
    }

    /// Are there copies of CLOSE to be sent yet?
    pub fn is_closing(&self) -> bool {
        self.closes_left > 0
    }

    /// Has the peer ended the session?
    pub fn peer_closed(&self) -> bool {
        self.peer_closed
    }

    /// Sets how the sending rate is known, and the most that it may be (R-RATE).
    pub fn set_rate_mode(&mut self, now: Instant, mode: RateMode, cap: BitRate) {
        self.rate.set_mode(mode);
        self.set_send_rate(now, cap);
    }

    /// Changes what classes may have of the link ([`LinkConfig::classes`]).
    pub fn set_classes(&mut self, classes: &[ClassConfig]) {
        self.schedule.set_classes(classes);
        self.config.classes = classes.to_vec();
    }

    /// The configuration or the modem says what the link carries: it is believed at once,
    /// and is the most that is sent.
    pub fn set_send_rate(&mut self, now: Instant, cap: BitRate) {
        self.rate.set_cap(cap, self.sent.next_number());
        self.follow_rate(now);
    }

    /// The rate that is sent at, the most that it may be, and what they follow from.
    pub fn rate_status(&self) -> RateStatus {
        self.rate.status()
    }

    /// Goes on with what the session before knew of the link.
    pub(crate) fn inherit_link(&mut self, now: Instant, before: &Session) {
        self.rate = before.rate.renewed();
        self.path = before.path.renewed();
        self.sent.by_size = before.sent.by_size.renewed();
        self.repair.learned_from(&before.repair);
        self.use_path_mtu();
        self.follow_rate(now);
    }

    fn follow_rate(&mut self, now: Instant) {
        if self.rate.rate() != self.pacer.rate() {
            self.pacer.set_rate(now, self.rate.rate());
        }
    }

    /// What a full packet takes on the line, and the first report of one, before the round trip
    /// is known: on the slowest links longer than all else together.
    fn on_line(&self) -> Duration {
        let report = if self.rtt.is_sampled() { 0 } else { 100 };
        self.config.send_rate.time_for(ByteCount(self.config.packet.into()))
            + self.config.receive_rate.time_for(ByteCount(report))
    }

    /// What a question and its answer may take with which nothing goes wrong.
    pub(crate) fn full_rtt(&self) -> Duration {
        self.config.full_rtt(self.rtt.smoothed())
    }

    /// The smoothed round-trip time.
    pub fn rtt(&self) -> Duration {
        self.rtt.smoothed()
    }

    /// How many round trips were measured so far, and the newest, which unlike
    /// [`Session::rtt`] is not smoothed.
    pub fn newest_rtt(&self) -> (u64, Duration) {
        self.rtt.newest()
    }

    /// Has the peer told that it answers self-tests (L-TE-1)?
    pub fn peer_answers_tests(&self) -> bool {
        self.peer.told.is_some_and(|told| told.facts.tests)
    }

    /// Has the peer told that it may have a service of this name (L-SV-2)?
    pub fn peer_may_have(&self, service: &str) -> bool {
        self.peer.told.is_some_and(|told| told.facts.services.may_have(service))
    }

    /// Open streams, but for those that carry packets.
    pub fn streams(&self) -> usize {
        self.streams.len() - self.packet_streams
    }

    /// Stream bytes in memory.
    pub fn memory_used(&self) -> u64 {
        self.pool.used()
    }

    /// Nothing is on its way or waiting: a drain is over.
    pub fn is_quiet(&self) -> bool {
        let waits = !self.schedule.is_empty() || !self.outbox.is_empty();
        self.streams() == 0 && !waits && self.sent.in_flight() == 0
    }

    /// Since when something has been waiting for the peer's answer.
    pub(crate) fn waiting_since(&self) -> Option<Instant> {
        let in_flight = self.sent.oldest_in_flight();
        if in_flight.is_none() && (!self.streams.is_empty() || !self.outbox.is_empty()) {
            let has_work = !self.control.is_empty()
                || !self.schedule.is_empty()
                || !self.opening.is_empty()
                || !self.outbox.is_empty();
            return has_work.then_some(self.last_eliciting);
        }
        in_flight
    }

    /// Counts so far.
    pub fn stats(&self) -> SessionStats {
        let c = self.sent.counts;
        SessionStats {
            packets_arrived: c.arrived,
            packets_lost: c.lost,
            packets_late: c.late,
            datagrams_dropped: self.outbox.dropped + self.inbox.dropped,
            datagram_bytes_saved_out: self.outbox.saved.max(0) as u64,
            datagram_bytes_saved_in: self.inbox.saved.max(0) as u64,
            datagram_cpu: self.outbox.spent() + self.headers.spent() + self.lane_headers.spent(),
            ..self.stats
        }
    }

    /// Measures the compression of datagrams by this clock of processor time.
    pub fn set_stopwatch(&mut self, stopwatch: Option<Stopwatch>) {
        self.outbox.set_stopwatch(stopwatch);
        self.headers.set_stopwatch(stopwatch);
        self.lane_headers.stopwatch = stopwatch;
    }

    /// Bytes on the accounts of both directions, beyond the reserves.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn credit_in_use(&self) -> (u64, u64) {
        (self.excess, self.recv_excess)
    }

    /// From now on the session makes this mistake.
    #[cfg(feature = "mistakes")]
    pub fn plant(&mut self, mistake: Mistake) {
        self.mistake = Some(mistake);
    }

    /// Is it time to make the mistake that happens now and then?
    #[cfg(feature = "mistakes")]
    fn errs(&self, mistake: Mistake) -> bool {
        self.mistake == Some(mistake) && self.stats.stream_bytes_out % 16 == 7
    }

    /// Asks the peer for a sign of life.
    pub fn ping(&mut self) {
        self.ping = true;
    }

    /// Does the question wait for the departure clock?
    pub(crate) fn ping_waits(&self) -> bool {
        self.ping
    }

    fn report_interval(&self) -> Duration {
        self.rtt.smoothed().divided_by(8).max(Duration::from_millis(20))
    }
}

#[cfg(test)]
mod tests;
