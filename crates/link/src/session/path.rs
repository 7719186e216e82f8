//! One way to the peer: its packet numbers, what is under way on it, its round trip, rate,
//! packet sizes and repair, and whether it is alive.
//!
//! What belongs to a path is decided by what a packet of it can tell: a report speaks of the
//! numbers of one path, a loss is a loss of that path. What a packet carries (bytes of
//! streams, credit, datagrams) is the session's and may go again on another path.

use std::collections::VecDeque;

use units::{BitRate, ByteCount, Duration, Instant, Ratio};

use super::hearing::Hearing;
use super::repair::Repair;
use super::schedule::Schedule;
use crate::pacer::Pacer;
use crate::path_mtu::PathMtu;
use crate::rate::{Rate, RateMode};
use crate::received::Received;
use crate::rtt::Rtt;
use crate::sent::Sent;
use crate::wire::{StreamId, Writer};

/// What one path of a link is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathConfig {
    /// The rate we send at, counted on IP packets (R-RATE).
    pub send_rate: BitRate,
    /// How that rate is known.
    pub rate_mode: RateMode,
    /// The rate the peer sends at.
    pub receive_rate: BitRate,
    /// The round trip that the profile promises: two one-way delays.
    pub rtt: Duration,
    /// The largest IP packet of the path in bytes, 128…9000.
    pub mtu: u16,
    /// The largest IP packet that we send, at most `mtu`.
    pub packet: u16,
    /// What the modem may hold, in time at `send_rate`.
    pub queue: Duration,
    /// The bit-error ratio that the profile promises: repair starts from it.
    pub bit_errors: Ratio,
    /// Bytes of framing that the link adds to each IP packet and that its rate counts.
    pub overhead: u16,
}

impl PathConfig {
    /// The round trip of a message, where packets take `rtt`: each way a full packet may be on
    /// the line before it, for which the slowest links take seconds.
    pub(crate) fn full_rtt(&self, rtt: Duration) -> Duration {
        let full = ByteCount(self.packet.into());
        rtt + self.send_rate.time_for(full) + self.receive_rate.time_for(full)
    }
}

/// Counts of one path.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PathStats {
    pub violations: u64,
    pub contradictions: u64,
    pub too_dear: u64,
    pub recovered: u64,
    pub peer_recovered: u64,
    pub repairs_sent: u64,
    pub reports: u64,
    pub probes: u64,
}

/// What the session has to send on a path, for the path's own decisions.
#[derive(Clone, Copy)]
pub(super) struct Load<'a> {
    /// What waits, where the path is the one that carries it.
    pub schedule: Option<&'a Schedule>,
    /// Control frames wait.
    pub control: bool,
    /// Somebody waits for single packets, or did lately.
    pub interactive_until: Instant,
}

impl<'a> Load<'a> {
    /// That of the path that carries everything.
    pub fn of(
        schedule: &'a Schedule,
        control: &VecDeque<StreamId>,
        interactive_until: Instant,
    ) -> Load<'a> {
        Load { schedule: Some(schedule), control: !control.is_empty(), interactive_until }
    }

    /// Does something wait that a user waits for?
    pub fn is_urgent(&self) -> bool {
        self.control || self.schedule.is_some_and(Schedule::has_small)
    }

    /// Has a stream or a datagram something to be sent?
    pub fn has_data(&self) -> bool {
        self.schedule.is_some_and(|s| !s.is_empty())
    }

    /// May some of it be sent now, as far as caps allow?
    pub fn is_due(&self, now: Instant) -> bool {
        self.schedule.is_some_and(|s| s.has_work(now, true))
    }
}

/// One way to the peer.
pub(crate) struct Path {
    pub(super) config: PathConfig,
    /// The largest IP packet that the peer takes.
    pub(super) peer_mtu: u64,

    pub(super) sent: Sent,
    pub(super) received: Received,
    pub(super) rtt: Rtt,
    pub(super) pacer: Pacer,
    pub(super) rate: Rate,
    pub(super) mtu: PathMtu,
    pub(super) repair: Repair,
    pub(super) hearing: Hearing,

    /// The peer is to be asked for a report.
    pub(super) ping: bool,
    /// The next PING goes alone, so that its packet is small.
    pub(super) alone: bool,
    /// Small packets that asked since something was heard of what left, and when the last did.
    pub(super) asked: u32,
    pub(super) asked_at: Instant,
    pub(super) loss_check: Option<Instant>,
    pub(super) backoff: u32,
    pub(super) last_eliciting: Instant,
    pub(super) last_progress: Instant,
    pub(super) last_heard: Instant,
    /// The peer does not answer, or does not hear: streams wait.
    pub(super) silent: bool,
    pub(super) floor_told: u64,
    pub(super) floor_told_at: Instant,
    /// Bytes of the packet being filled that streams' bytes may reach to.
    pub(super) longest_piece: usize,
    /// The packet in hand had a report, after which losses were looked for.
    pub(super) looked_for_losses: bool,
    /// IP and UDP header bytes, and framing, that the link counts per packet.
    wire_overhead: u64,
    pub(super) stats: PathStats,
}

impl Path {
    /// A path on which nothing was sent yet. `memory`: bytes for the whole session.
    pub fn new(now: Instant, config: PathConfig, peer_mtu: u64, memory: ByteCount) -> Path {
        let mut path = Path {
            peer_mtu,
            sent: Sent::new(),
            received: Received::new(),
            rtt: Rtt::new(config.rtt),
            pacer: Pacer::new(config.send_rate, config.queue),
            rate: Rate::new(config.rate_mode, config.send_rate),
            mtu: PathMtu::new(config.packet.min(config.mtu)),
            repair: Repair::new(&config, memory),
            hearing: Hearing::default(),
            ping: false,
            alone: false,
            asked: 0,
            asked_at: now,
            loss_check: None,
            backoff: 0,
            last_eliciting: now,
            last_progress: now,
            last_heard: now,
            silent: false,
            floor_told: 0,
            floor_told_at: now,
            longest_piece: 0,
            looked_for_losses: false,
            wire_overhead: 28 + u64::from(config.overhead),
            stats: PathStats::default(),
            config,
        };
        path.fit_sizes();
        path
    }

    /// Goes on with what the session before knew of the path.
    pub fn inherit(&mut self, now: Instant, before: &Path) {
        self.rate = before.rate.renewed();
        self.mtu = before.mtu.renewed();
        self.sent.by_size = before.sent.by_size.renewed();
        self.repair.learned_from(&before.repair);
        self.use_path_mtu();
        self.follow_rate(now);
    }

    /// The peer is at an IPv6 address, or at an IPv4 one: their headers differ.
    pub fn set_ipv6(&mut self, ipv6: bool) {
        self.wire_overhead = if ipv6 { 48 } else { 28 } + u64::from(self.config.overhead);
        self.fit_sizes();
    }

    /// What the link counts per packet beside our bytes.
    pub fn wire_overhead(&self) -> u64 {
        self.wire_overhead
    }

    /// The largest UDP payload of this path.
    pub fn max_packet(&self) -> usize {
        self.payload_of(u64::from(self.config.mtu))
    }

    /// The largest UDP payload that is worth its risk: repair alone may be longer.
    pub fn best_packet(&self) -> usize {
        self.payload_of(u64::from(self.config.packet.min(self.config.mtu))).min(self.path_packet())
    }

    /// The largest UDP payload that crosses the path as far as is known (L-PM-1).
    pub(super) fn path_packet(&self) -> usize {
        let limit = self.mtu.limit().unwrap_or(self.config.mtu);
        self.payload_of(u64::from(limit.min(self.config.mtu)))
    }

    pub(super) fn payload_of(&self, packet: u64) -> usize {
        let packet = packet.min(self.peer_mtu) + u64::from(self.config.overhead);
        (packet - self.wire_overhead) as usize
    }

    /// The number of the next packet.
    pub fn next_number(&self) -> u64 {
        self.sent.next_number()
    }

    /// The highest packet number that the peer is known to have received.
    pub fn confirmed(&self) -> Option<u64> {
        self.sent.confirmed()
    }

    /// Books a packet of `len` bytes that the endpoint filled with `payload`.
    pub fn book_other(&mut self, now: Instant, payload: &[u8], len: usize) {
        self.on_other_sent(now, len);
        let number = self.sent.push_packet(now, false, len as u64 + self.wire_overhead);
        self.repair.keep_between(number, 0, payload);
    }

    /// Link time of a packet that is not the session's (a handshake).
    pub fn on_other_sent(&mut self, now: Instant, len: usize) {
        self.pacer.on_sent(now, len as u64 + self.wire_overhead);
    }

    // ---- rate and time ---------------------------------------------------------

    /// Sets how the sending rate is known, and the most that it may be (R-RATE).
    pub fn set_rate(&mut self, now: Instant, mode: Option<RateMode>, cap: BitRate) {
        if let Some(mode) = mode {
            self.rate.set_mode(mode);
        }
        self.rate.set_cap(cap, self.sent.next_number());
        self.follow_rate(now);
    }

    pub(super) fn follow_rate(&mut self, now: Instant) {
        if self.rate.rate() != self.pacer.rate() {
            self.pacer.set_rate(now, self.rate.rate());
        }
    }

    /// What a full packet takes on the line, and the first report of one, before the round trip
    /// is known: on the slowest links longer than all else together.
    pub(super) fn on_line(&self) -> Duration {
        let report = if self.rtt.is_sampled() { 0 } else { 100 };
        self.config.send_rate.time_for(ByteCount(self.config.packet.into()))
            + self.config.receive_rate.time_for(ByteCount(report))
    }

    /// What a question and its answer may take with which nothing goes wrong.
    pub fn full_rtt(&self) -> Duration {
        self.config.full_rtt(self.rtt.smoothed())
    }

    // ---- reports ---------------------------------------------------------------

    pub(super) fn report_interval(&self) -> Duration {
        self.rtt.smoothed().divided_by(8).max(Duration::from_millis(20))
    }

    pub(super) fn report_due(&self) -> Option<Instant> {
        self.received.due(self.report_interval(), self.rtt.smoothed(), self.pacer.rate())
    }

    /// Writes what has arrived, in `max` bytes.
    pub(super) fn write_report(&mut self, now: Instant, max: usize, w: &mut Writer<'_>) {
        let interval = self.report_interval();
        self.stats.reports += u64::from(self.received.write(now, interval, max, w));
    }

    /// The length of packet numbers grows with the distance to the last that is known to
    /// have arrived, and nobody reports reports: then ask.
    pub(super) fn knows_too_little(&self) -> bool {
        let known = self.sent.confirmed().map_or(0, |n| n + 1);
        self.sent.in_flight() == 0 && self.sent.next_number() - known >= ASK_AFTER
    }

    // ---- probes ----------------------------------------------------------------

    /// When to ask, if no report comes: a round trip with margin and the peer's
    /// report timer after the last packet or progress, then doubling.
    pub(super) fn probe_at(&self) -> Option<Instant> {
        if self.sent.in_flight() == 0 && !self.silent {
            return None;
        }
        let first = self.report_overdue() + self.on_line();
        let longest = Duration::from_secs(2).max(self.rtt.smoothed().times(2)).max(first);
        let wait = first.times(1 << self.backoff.min(6)).min(longest);
        let wait = self.doubt_interval().unwrap_or(wait);
        Some(self.last_eliciting.max(self.last_progress) + wait)
    }

    /// When the peer counts as silent: new data then waits for its first sign of life.
    pub(super) fn silent_at(&self) -> Instant {
        let heard =
            self.sent.oldest_in_flight().map_or(self.last_heard, |t| t.max(self.last_heard));
        heard + self.patience() + self.on_line()
    }

    /// No report for so long after a packet left: it, or the report, is lost.
    pub(super) fn report_overdue(&self) -> Duration {
        self.rtt.with_margin() + self.report_interval() + self.sent.reorder_window()
    }

    /// When to ask with a small packet, because nothing is heard of those that left: it may
    /// be for their size (L-PM-3).
    pub(super) fn ask_at(&self) -> Option<Instant> {
        // A peer that is heard and confirms nothing may be missing only what is too long.
        let dark = matches!(self.reach(), super::Reach::NothingReceived { .. });
        if dark || !self.mtu.can_shrink() {
            return None;
        }
        let mut since = self.last_progress.max(self.sent.oldest_in_flight()?);
        if self.asked > 0 {
            since = since.max(self.asked_at);
        }
        Some(since + (self.report_overdue() + self.on_line()).times(1 << self.asked.min(6)))
    }

    /// Asks in a packet of its own, which arrives whatever the path takes.
    pub(super) fn ask_alone(&mut self, now: Instant) {
        (self.asked, self.asked_at) = (self.asked.saturating_add(1), now);
        (self.alone, self.ping) = (self.mtu.can_shrink(), true);
    }

    /// How many packets may be unsettled: those of a round trip, or 65,536 (L-LO-8).
    pub(super) fn most_unsettled(&self) -> usize {
        // Not by the round trip alone, which a peer can stretch.
        let trip = self.full_rtt().min(self.config.rtt.times(4).max(Duration::from_secs(2)));
        let trip = self.pacer.rate().bytes_in(trip).0 / LEAST_PACKET;
        MOST_UNSETTLED.max(trip as usize)
    }
}

/// Packets that may leave in a row without word that one arrived: numbers of 2 bytes
/// serve for twice as many.
const ASK_AFTER: u64 = 0x4000;
/// L-LO-8: packets that may wait to be settled, or those of a round trip if they are this short.
pub(super) const MOST_UNSETTLED: usize = 65_536;
const LEAST_PACKET: u64 = 256;
