//! One way to the peer: its packet numbers, what is under way on it, its round trip, rate,
//! packet sizes and repair, and whether it is alive.
//!
//! What belongs to a path is decided by what a packet of it can tell: a report speaks of the
//! numbers of one path, a loss is a loss of that path. What a packet carries (bytes of
//! streams, credit, datagrams) is the session's and may go again on another path.

use squeeze::headers::{Compressor, Decompressor};
use squeeze::stream::Stopwatch;
use units::{BitRate, ByteCount, Duration, Instant};

use super::config::PathConfig;
use super::control::Control;
use super::health::{Liveness, PathHealth};
use super::missing::Missing;
use super::repair::Repair;
use super::said::Said;
use super::schedule::Schedule;
use super::status::{PathStatus, PathTraffic, SessionStats, Why};
use super::trust::Trust;
use crate::pacer::Pacer;
use crate::path::{CarrierName, PathId, Remote};
use crate::path_mtu::PathMtu;
use crate::rate::{Rate, RateMode};
use crate::received::{MAX_STATE, Received};
use crate::rtt::Rtt;
use crate::sent::{Report, Sent};
use crate::traffic::ClassId;
use crate::wire::{Frame, Writer};

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
    /// What waits, and which way the path is, where it carries some of it.
    pub schedule: Option<(&'a Schedule, usize)>,
    /// Control frames wait.
    pub control: bool,
    /// Somebody waits for single packets, or did lately.
    pub interactive_until: Instant,
}

impl<'a> Load<'a> {
    /// What goes this way; nothing without one.
    pub fn of(
        way: Option<usize>,
        schedule: &'a Schedule,
        control: &Control,
        interactive_until: Instant,
    ) -> Load<'a> {
        let control = way.is_some_and(|way| control.has(schedule, way));
        let is_quick = way.is_some_and(|way| schedule.way(ClassId::INTERACTIVE) == way);
        let interactive_until = if is_quick { interactive_until } else { Instant::ZERO };
        Load { schedule: way.map(|way| (schedule, way)), control, interactive_until }
    }

    /// Does something wait that a user waits for?
    pub fn is_urgent(&self) -> bool {
        self.control || self.schedule.is_some_and(|(s, way)| s.has_small(way))
    }

    /// Has a stream or a datagram something to be sent?
    pub fn has_data(&self) -> bool {
        self.schedule.is_some_and(|(s, way)| s.has_any(way))
    }

    /// May some of it be sent now, as far as caps allow?
    pub fn is_due(&self, now: Instant) -> bool {
        self.schedule.is_some_and(|(s, way)| s.has_work(now, way, true))
    }
}

/// A packet's plaintext that was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Built {
    /// Its packet number.
    pub number: u64,
    /// Bytes of plaintext.
    pub len: usize,
    /// The header's first-frame hint.
    pub hint: u8,
}

/// Packets that leave by a path that has just been set up before anything is heard on it: an
/// initial window (RFC 6928). A line that was raised may be dead all the same, and each byte on it
/// be paid for.
const UNPROVEN: u64 = 10;

/// One way to the peer.
pub(crate) struct Path {
    pub(super) id: PathId,
    pub(super) config: PathConfig,
    /// This node opened it, and tells what it is.
    pub(super) is_own: bool,
    /// Its carrier is there no more: it is down for good, and the next session has it not.
    pub(super) is_retired: bool,
    /// This node sends on it; else it is down.
    pub(super) up: bool,
    /// What it goes by has a link, as far as this host knows; else nothing is sent.
    pub(super) linked: bool,
    /// The session has others, of which one carries everything.
    pub(super) is_beside_others: bool,
    pub(super) stands_by: bool,
    /// How far it is relied upon.
    pub(super) trust: Trust,
    /// What is missing of the peer's packets.
    pub(super) missing: Missing,
    /// The peer's address is known.
    pub(super) reachable: bool,
    /// A packet of this session came on it.
    pub(super) heard_here: bool,
    /// The same since it last became one that may be sent on.
    pub(super) heard_since_rise: bool,
    /// The number of the first packet since this node set it up, until something is heard.
    pub(super) unproven_from: Option<u64>,
    /// It is known what it carries: by the file, or from its opener.
    pub(super) is_described: bool,
    /// What was under way on it when it went down or died goes on another.
    pub(super) given_up: bool,
    /// Content of classes whose carriers are named goes by it.
    pub(super) carries_classes: bool,
    pub(super) priority: u8,
    /// What this node says of it, and the peer.
    pub(super) said: Said,
    pub(super) peer: Said,
    /// What is known of datagrams' headers that leave here, and that come.
    pub(super) headers: Compressor,
    pub(super) peer_headers: Decompressor,
    last_sent: Instant,
    traffic: PathTraffic,
    /// The largest IP packet that the peer takes.
    pub(super) peer_mtu: u64,

    pub(super) sent: Sent,
    pub(super) received: Received,
    pub(super) rtt: Rtt,
    pub(super) pacer: Pacer,
    pub(super) rate: Rate,
    pub(super) mtu: PathMtu,
    pub(super) repair: Repair,
    pub(super) liveness: Liveness,

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
    /// Since when the peer is heard without a longer pause.
    pub(super) heard_since: Instant,
    /// The peer does not answer, or does not hear: streams wait.
    pub(super) silent: bool,
    pub(super) floor_told: u64,
    pub(super) floor_told_at: Instant,
    /// Bytes of the packet being filled that streams' bytes may reach to.
    pub(super) longest_piece: usize,
    /// IP and UDP header bytes of a packet.
    ip_headers: u64,
    pub(super) stats: PathStats,
}

impl Path {
    /// A path on which nothing was sent yet. `memory` and `contexts` are the session's: bytes,
    /// and flows whose headers are kept.
    pub fn new(
        now: Instant,
        id: PathId,
        config: PathConfig,
        peer_mtu: u64,
        (memory, contexts): (ByteCount, u64),
    ) -> Path {
        let mut path = Path {
            id,
            is_own: false,
            is_retired: false,
            up: true,
            linked: true,
            is_beside_others: false,
            stands_by: false,
            trust: Trust::default(),
            missing: Missing::default(),
            reachable: id.is_first(),
            heard_here: false,
            heard_since_rise: false,
            unproven_from: None,
            is_described: id.is_first(),
            given_up: false,
            carries_classes: false,
            priority: config.priority,
            said: Said::default(),
            peer: Said::default(),
            headers: Compressor::new(0),
            peer_headers: Decompressor::new(contexts as usize),
            last_sent: now,
            traffic: PathTraffic::default(),
            peer_mtu,
            sent: Sent::new(),
            received: Received::new(),
            rtt: Rtt::new(config.rtt),
            pacer: Pacer::new(config.send_rate, config.queue),
            rate: Rate::new(config.rate_mode, config.send_rate),
            mtu: PathMtu::new(config.packet.min(config.mtu)),
            repair: Repair::new(&config, memory),
            liveness: Liveness::default(),
            ping: false,
            alone: false,
            asked: 0,
            asked_at: now,
            loss_check: None,
            backoff: 0,
            last_eliciting: now,
            last_progress: now,
            last_heard: now,
            heard_since: now,
            silent: false,
            floor_told: 0,
            floor_told_at: now,
            longest_piece: 0,
            ip_headers: 28,
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

    /// The same path in a new session, with what the one before knew of it.
    pub fn renewed(&self, now: Instant, memory: (ByteCount, u64)) -> Path {
        let mut path = Path::new(now, self.id, self.config, self.peer_mtu, memory);
        (path.is_own, path.up, path.reachable) = (self.is_own, self.up, self.reachable);
        path.is_retired = self.is_retired;
        (path.is_described, path.linked) = (self.is_described, self.linked);
        path.trust = self.trust.renewed();
        (path.priority, path.ip_headers) = (self.priority, self.ip_headers);
        (path.last_sent, path.traffic) = (self.last_sent, self.traffic);
        path.inherit(now, self);
        path
    }

    /// What a carrier puts before each packet depends on where the peer is.
    pub fn set_remote(&mut self, remote: Remote) {
        self.ip_headers = match remote.addr {
            None => 0,
            Some(_) if remote.is_ipv6() => 48,
            Some(_) => 28,
        };
        self.fit_sizes();
    }

    /// The peer is at an IPv6 address, or at an IPv4 one.
    #[cfg(any(test, fuzzing))]
    pub fn set_ipv6(&mut self, ipv6: bool) {
        self.ip_headers = if ipv6 { 48 } else { 28 };
        self.fit_sizes();
    }

    pub(super) fn set_framing(&mut self, overhead: u16) {
        self.config.overhead = overhead;
        self.fit_sizes();
    }

    pub(super) fn set_stopwatch(&mut self, stopwatch: Option<Stopwatch>) {
        self.headers.set_stopwatch(stopwatch);
        self.peer_headers.set_stopwatch(stopwatch);
    }

    /// What the link counts per packet beside our bytes.
    pub fn wire_overhead(&self) -> u64 {
        self.ip_headers + u64::from(self.config.overhead)
    }

    /// Nobody uses the session: what lies ready for the next packet is given back.
    pub(super) fn give_back(&mut self) {
        self.sent.shrink();
        self.received.shrink();
        self.repair.give_back();
        self.headers.forget();
        // What the peer may refer to stays: in the dark it goes on to send, and knows nothing of
        // this.
    }

    /// What is known of it, but for where the peer is and whether it is the active one.
    pub fn status(&self, now: Instant) -> PathStatus {
        PathStatus {
            id: self.id,
            remote: None,
            is_active: false,
            name: self.name(),
            classes: 0,
            is_up: self.up,
            is_peer_up: self.peer.says.up,
            is_alive: self.is_alive(),
            health: self.health(),
            rate: self.rate.status(),
            rtt: self.rtt.smoothed(),
            mtu: self.path_mtu(),
            arrived: self.sent.counts.arrived,
            lost: self.sent.counts.lost,
            traffic: self.traffic,
            held_until: self.trust.held_until().filter(|t| *t > now),
            fault: self.fault(now),
        }
    }

    /// What its opener calls its carrier.
    pub fn name(&self) -> CarrierName {
        if self.config.name.is_empty() { self.peer.says.name } else { self.config.name }
    }

    /// Of both nodes' priorities the larger: the opener's, as the other one has none.
    pub(super) fn priority(&self) -> u8 {
        self.priority.max(self.peer.says.priority)
    }

    /// What speaks against it.
    pub(super) fn fault(&self, now: Instant) -> Option<Why> {
        Some(match self.health() {
            _ if !self.up => Why::Down,
            _ if !self.linked => Why::NoLink,
            _ if !self.peer.says.up => Why::PeerDown,
            PathHealth::TransmitDead { .. } | PathHealth::NoAcks { .. } => Why::TransmitDead,
            PathHealth::NothingReceived { .. } => Why::NothingReceived,
            PathHealth::Alive if !self.heard_here => Why::NothingReceived,
            PathHealth::Alive if !self.peer.says.hears => Why::Missed,
            PathHealth::Alive if self.trust.is_poor() => Why::Poor,
            PathHealth::Alive if self.trust.is_held(now) => Why::Held,
            PathHealth::Alive => return None,
        })
    }

    // ---- its life ---------------------------------------------------------------

    /// Do both nodes want it used?
    pub(super) fn is_up(&self) -> bool {
        self.up && self.linked && self.peer.says.up
    }

    /// May anything at all be sent on it?
    pub fn is_open(&self) -> bool {
        self.is_up() && self.reachable
    }

    /// Does it carry packets both ways, as far as is known, and is it known how many?
    pub fn is_alive(&self) -> bool {
        let works = self.heard_here && !self.silent && self.peer.says.hears;
        works && self.is_described && self.is_open()
    }

    /// Has as much left since it was set up as may before anything is heard on it?
    pub(super) fn holds_back(&self) -> bool {
        self.unproven_from.is_some_and(|first| self.sent.next_number() >= first + UNPROVEN)
    }

    /// Did something not come that should have?
    pub(super) fn misses_packets(&self) -> bool {
        matches!(self.health(), PathHealth::NothingReceived { .. })
    }

    /// It may be sent on, from now on. What was before says nothing.
    pub(super) fn rise(&mut self, now: Instant) {
        let dark = now.since(self.last_sent);
        self.rest();
        (self.last_eliciting, self.last_progress, self.last_heard) = (now, now, now);
        (self.asked_at, self.heard_since) = (now, now);
        self.heard_since_rise = false;
        if self.sent.next_number() > 0 {
            self.rtt.distrust_before(now);
            self.rate.on_return(dark, self.sent.next_number());
            self.follow_rate(now);
        }
        // Where nobody has anything to say, it would never be known that it carries.
        self.ping = self.is_own || self.heard_here;
    }

    /// Nothing more is asked or awaited.
    pub(super) fn rest(&mut self) {
        (self.ping, self.alone, self.silent) = (false, false, false);
        (self.backoff, self.asked) = (0, 0);
        (self.liveness, self.loss_check) = (Liveness::default(), None);
        self.repair.forget_sent();
    }

    /// Is nothing on its way, or nothing that may be heard of?
    pub(super) fn is_settled(&self) -> bool {
        self.sent.in_flight() == 0 || self.given_up
    }

    pub(super) fn add_to(&self, stats: &mut SessionStats) {
        let (c, own) = (self.sent.counts, self.stats);
        stats.packets_arrived += c.arrived;
        stats.packets_lost += c.lost;
        stats.packets_late += c.late;
        stats.violations += own.violations;
        stats.contradictions += own.contradictions;
        stats.too_dear += own.too_dear;
        stats.recovered += own.recovered;
        stats.peer_recovered += own.peer_recovered;
        stats.repairs_sent += own.repairs_sent;
        stats.reports += own.reports;
        stats.probes += own.probes;
        stats.datagram_cpu += self.headers.spent() + self.peer_headers.spent();
    }

    /// A packet of `len` bytes left.
    pub fn on_left(&mut self, now: Instant, len: usize) {
        self.last_sent = now;
        self.traffic.packets_out += 1;
        self.traffic.bytes_out += len as u64 + self.wire_overhead();
    }

    /// A handshake's message of `len` bytes came. Whether the path works it does not tell.
    pub fn on_message(&mut self, len: usize) {
        self.traffic.bytes_in += len as u64 + self.wire_overhead();
    }

    /// An authentic packet of `len` bytes came.
    pub fn on_came(&mut self, now: Instant, len: usize) {
        self.traffic.packets_in += 1;
        self.traffic.bytes_in += len as u64 + self.wire_overhead();
        self.traffic.heard = Some(now);
    }

    /// When something is to be sent, whatever it is.
    pub fn keepalive_at(&self) -> Option<Instant> {
        let probe = self.config.probe.filter(|_| self.stands_by && !self.silent);
        let interval = match (self.config.keepalive, probe) {
            (Some(keepalive), Some(probe)) => keepalive.min(probe),
            (keepalive, probe) => keepalive.or(probe)?,
        };
        (self.is_open() && !self.ping).then(|| self.last_sent + interval)
    }

    /// How often a peer is asked that does not answer on a path which stands by.
    pub(super) fn asks_often(&self) -> Option<Duration> {
        let often = self.config.probe?.divided_by(10).max(LEAST_PROBE);
        Some(often.max(self.pacer.rate().time_for(ByteCount(LEAST_PACKET))))
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
        (packet - self.wire_overhead()) as usize
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
        let number = self.sent.push_packet(now, false, len as u64 + self.wire_overhead());
        self.repair.keep_between(number, 0, payload);
    }

    /// Link time of a packet that is not the session's (a handshake).
    pub fn on_other_sent(&mut self, now: Instant, len: usize) {
        self.pacer.on_sent(now, len as u64 + self.wire_overhead());
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

    /// Reports and the floor, in as far as they are due; answers whether they were.
    pub(super) fn write_reports(&mut self, now: Instant, w: &mut Writer<'_>) -> bool {
        // Whoever asks tells as well (L-LO-5).
        let report = self.ping || self.report_due().is_some_and(|t| t <= now);
        if report {
            self.tell_losses(now, w);
            self.write_report(now, MAX_STATE, w);
        }
        let floor = self.sent.floor();
        let floor_age = self.rtt.smoothed().divided_by(2);
        if floor > self.floor_told
            && now.since(self.floor_told_at) >= floor_age
            && w.put(&Frame::Floor(floor))
        {
            self.floor_told = floor;
            self.floor_told_at = now;
        }
        report
    }

    /// Books a packet of `size` bytes as the link counts them, and answers its number.
    /// `is_report`: nothing but reports, credit and control. `alone`: a question in between.
    pub(super) fn book(
        &mut self,
        now: Instant,
        size: u64,
        is_report: bool,
        eliciting: bool,
        alone: bool,
    ) -> u64 {
        self.pacer.on_sent(now, size);
        if is_report {
            // The return link's share.
            self.received.set_cost(size);
        }
        if eliciting {
            // A question in between does not put off the probe that follows data.
            self.last_eliciting = if alone { self.last_eliciting } else { now };
            self.mtu.on_sent(now, size - u64::from(self.config.overhead));
        }
        self.sent.push_packet(now, eliciting, size)
    }

    /// Is something under way of which the peer, if it is there, will tell?
    pub(super) fn waits(&self) -> bool {
        !self.silent && self.sent.in_flight() > 0
    }

    /// The length of packet numbers grows with the distance to the last that is known to
    /// have arrived, and nobody reports reports: then ask.
    pub(super) fn knows_too_little(&self) -> bool {
        let known = self.sent.confirmed().map_or(0, |n| n + 1);
        self.sent.in_flight() == 0 && self.sent.next_number() - known >= ASK_AFTER
    }

    /// A report told what became of packets, `dark` of which an outage had taken before.
    pub(super) fn on_report(&mut self, now: Instant, report: &Report, dark: u64) {
        self.follow_path(now);
        self.end_tail_that_arrived();
        if report.progress {
            self.last_progress = now;
            self.backoff = 0;
            self.asked = 0;
        }
        if self.sent.counts.in_the_dark > dark {
            self.rate.on_outage(self.rtt.smoothed(), self.sent.next_number());
        }
        if let Some(told) = &report.told {
            let (sent, next) = (self.sent.sent_bytes(), self.sent.next_number());
            self.rate.on_report(now, told, self.rtt.smoothed(), sent, next);
            self.follow_rate(now);
        }
        let caused = self.rate.causes_losses();
        self.repair.observe(self.sent.counts, caused);
        if self.rate.take_caused() {
            self.repair.forget_losses(&self.config);
            self.sent.by_size.forget();
        }
    }

    // ---- probes ----------------------------------------------------------------

    /// When to ask, if no report comes: a round trip with margin and the peer's
    /// report timer after the last packet or progress, then doubling.
    pub(super) fn probe_at(&self, overdue: Duration) -> Option<Instant> {
        if self.sent.in_flight() == 0 && !self.silent {
            return None;
        }
        let longest = Duration::from_secs(2).max(self.rtt.smoothed().times(2)).max(overdue);
        let wait = overdue.times(1 << self.backoff.min(16));
        let wait = match self.asks_often() {
            Some(often) if self.silent && self.stands_by => often,
            // What it costs to ask nobody wants to pay all the time.
            None if self.silent && self.stands_by => wait.min(longest.max(LONGEST_PAUSE)),
            _ => wait.min(longest),
        };
        let wait = self.probe_interval().unwrap_or(wait);
        Some(self.last_eliciting.max(self.last_progress) + wait)
    }

    /// When reports have stayed away for so long that nothing seems to cross.
    pub(super) fn dark_at(&self) -> Option<Instant> {
        if !self.rate.watches_reports(self.rtt.smoothed()) {
            return None;
        }
        let oldest = self.sent.oldest_in_flight()?;
        let late = self.rtt.with_margin() - self.rtt.smoothed();
        let last = self.sent.reported().max(oldest + self.rtt.smoothed());
        Some(last + late + self.report_interval().times(2))
    }

    /// When the peer counts as silent: new data then waits for its first sign of life.
    pub(super) fn silent_at(&self) -> Instant {
        let heard =
            self.sent.oldest_in_flight().map_or(self.last_heard, |t| t.max(self.last_heard));
        heard + self.peer_timeout() + self.on_line()
    }

    /// No report for so long after a packet left: it, or the report, is lost.
    pub(super) fn report_overdue(&self) -> Duration {
        self.rtt.with_margin() + self.report_interval() + self.sent.reorder_window()
    }

    /// The same for the packet that takes longest.
    pub(super) fn overdue(&self) -> Duration {
        self.report_overdue() + self.on_line()
    }

    /// When to ask with a small packet, because nothing is heard of those that left: it may
    /// be for their size (L-PM-3).
    pub(super) fn ask_at(&self, overdue: Duration) -> Option<Instant> {
        // A peer that is heard and confirms nothing may be missing only what is too long.
        let dark = self.misses_packets();
        if dark || !self.mtu.can_shrink() {
            return None;
        }
        let mut since = self.last_progress.max(self.sent.oldest_in_flight()?);
        if self.asked > 0 {
            since = since.max(self.asked_at);
        }
        Some(since + overdue.times(1 << self.asked.min(6)))
    }

    /// Asks in a packet of its own, which arrives whatever the path takes.
    pub(super) fn ask_alone(&mut self, now: Instant) {
        (self.asked, self.asked_at) = (self.asked.saturating_add(1), now);
        (self.alone, self.ping) = (self.mtu.can_shrink(), true);
    }

    /// The round trip by which memory is bounded: not as long as a peer likes to make it seem.
    pub(super) fn believed_rtt(&self) -> Duration {
        self.full_rtt().min(self.config.rtt.times(4).max(Duration::from_secs(2)))
    }

    /// How many packets may be unsettled: those of a round trip, or 65,536 (L-LO-8).
    pub(super) fn most_unsettled(&self) -> usize {
        let trip = self.pacer.rate().bytes_in(self.believed_rtt()).0 / LEAST_PACKET;
        // What the peer says a path is it may make up.
        let is_ours = self.is_own || self.id.is_first();
        let trip = if is_ours { trip } else { trip.min(MOST_BY_HEARSAY) };
        MOST_UNSETTLED.max(trip as usize)
    }
}

/// Packets that may leave in a row without word that one arrived: numbers of 2 bytes
/// serve for twice as many.
const ASK_AFTER: u64 = 0x4000;
/// L-LO-8: packets that may wait to be settled, or those of a round trip if they are this short.
pub(super) const MOST_UNSETTLED: usize = 65_536;
const LEAST_PACKET: u64 = 256;
/// The most of them on a path whose rates and round trip are known from the peer alone.
const MOST_BY_HEARSAY: u64 = 4 * MOST_UNSETTLED as u64;
/// A path that stands by and does not work is asked about no more often than this,
const LEAST_PROBE: Duration = Duration::from_millis(100);
/// and at least so often where asking costs.
const LONGEST_PAUSE: Duration = Duration::from_secs(64);
