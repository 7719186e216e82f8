//! The state of a session: what it keeps, how it begins, and what it tells of the whole. What it
//! does with its parts is in the files beside this one.

use std::collections::{BTreeMap, VecDeque};

use squeeze::headers::Token;
use squeeze::stream::Stopwatch;
use units::{BitRate, Duration, Instant};

use super::config::{LinkConfig, Params};
use super::control::Control;
use super::event::Event;
#[cfg(feature = "mistakes")]
use super::event::Mistake;
use super::facts::{Disagreements, Facts, Services, Told, rate_bits};
use super::flows::Flows;
use super::health::PathHealth;
use super::lane_headers::LaneHeaders;
use super::packets::{Lane, LaneKey};
use super::path::Path;
use super::paths::Paths;
use super::schedule::Schedule;
use super::status::SessionStats;
use crate::buffer::Pool;
use crate::datagram::{Inbox, MAX_DATAGRAM, Outbox};
use crate::path::PathId;
use crate::ranges::RangeSet;
use crate::rate::{RateMode, RateStatus};
use crate::sent::{Fate, SentFrame};
use crate::stream::Stream;
use crate::traffic::ClassConfig;
use crate::wire::{ResetReason, StreamId};

/// Streams and datagrams with one peer.
pub struct Session {
    pub(super) config: LinkConfig,
    pub(super) params: Params,
    /// As far as this node takes up what the peer offers.
    pub(super) peer: Params,
    /// The reserve that the peer told: it sends no credit for less of a stream that is complete.
    pub(super) peer_reserve: u64,
    /// The peer has told its parameters.
    pub(super) told: bool,
    /// What it told of its services last, in this session or in one before.
    pub(super) services: Option<Services>,
    /// 0 for the node with the lower public key, else 1.
    pub(super) side: u64,

    pub(super) paths: Paths,
    pub(super) pool: Pool,
    pub(super) streams: BTreeMap<StreamId, Box<Stream>>,
    pub(super) next_stream: u64,
    /// Streams of the peer that are over, as `id / 2`.
    pub(super) closed: RangeSet,
    /// Below it `closed` has numbers that never came.
    pub(super) skipped_below: u64,

    pub(super) schedule: Schedule,
    pub(super) blocked: VecDeque<StreamId>,
    /// Credit came back: streams that wait for it are to be looked at.
    pub(super) freed: bool,
    pub(super) control: Control,
    /// OPENs that wait for first data, with their deadline.
    pub(super) opening: VecDeque<(Instant, StreamId)>,
    pub(super) credits: VecDeque<StreamId>,
    pub(super) credit_due: Option<Instant>,
    pub(super) outbox: Outbox,
    pub(super) inbox: Inbox,
    /// Our streams of packets, and how many there are of both sides.
    pub(super) lanes: BTreeMap<LaneKey, Lane>,
    pub(super) packet_streams: usize,
    /// What is known of headers in them.
    pub(super) lane_headers: LaneHeaders,
    /// The streams of messages about chunks, ours and the peer's.
    pub(super) messages: [Option<StreamId>; 2],
    pub(super) stopwatch: Option<Stopwatch>,
    /// Datagrams that were sent lately, by flow.
    pub(super) flows: Flows,
    /// Somebody waits for single packets, or did lately.
    pub(super) interactive_until: Instant,
    /// Somebody waits for an answer, or hears a call: what comes is to be read at once.
    pub(super) awaited_until: Instant,
    /// Bytes beyond the streams' reserves: outstanding at the peer, and received here.
    pub(super) over_reserve: u64,
    pub(super) recv_over_reserve: u64,
    /// The same of streams that the peer has reset: it does not count them any more.
    pub(super) reset_over_reserve: u64,
    pub(super) events: VecDeque<Event>,

    pub(super) closing: Option<ResetReason>,
    /// Copies of CLOSE to be sent yet: nothing asks for a lost one again.
    pub(super) closes_left: u8,
    /// When the next of them is due.
    pub(super) close_at: Instant,
    pub(super) peer_closed: bool,
    /// The packet in hand spoke of a stream that not even a refusal has room for.
    pub(super) overfull: bool,
    /// The node has no memory left for all its peers, and this session has its part of it.
    pub(super) short: bool,
    pub(super) touched: Touched,
    /// The packet in hand had a report, after which losses were looked for.
    pub(super) looked_for_losses: bool,
    pub(super) rest: Rest,
    #[cfg(feature = "mistakes")]
    pub(super) mistake: Option<Mistake>,
    pub(super) stats: SessionStats,
}

/// What the report in hand spoke of; kept for its memory.
#[derive(Default)]
pub(super) struct Touched {
    pub streams: Vec<StreamId>,
    pub references: Vec<(Token, Fate)>,
    pub paths: Vec<(SentFrame, Fate)>,
}

/// Whether a session rests.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rest {
    /// Somebody used it then last.
    used: Instant,
    rests: bool,
}

impl Rest {
    pub fn new(now: Instant) -> Rest {
        Rest { used: now, rests: false }
    }

    /// Does it?
    pub fn rests(&self) -> bool {
        self.rests
    }

    /// When it is to be looked whether it does from now on.
    pub fn due(&self) -> Option<Instant> {
        (!self.rests).then(|| self.used + REST)
    }

    /// It rests until somebody uses it.
    pub fn begin(&mut self) {
        self.rests = true;
    }
}

/// Copies of CLOSE that are sent.
const CLOSES: u8 = 3;
/// Without a stream or a datagram for so long a session rests.
const REST: Duration = Duration::from_secs(300);

impl Session {
    /// A session before its first handshake. `side`: 0 for the lower public key.
    pub(crate) fn new(now: Instant, config: LinkConfig, side: u64) -> Session {
        let params = Params::of(&config);
        let memory = (config.memory, params.contexts);
        let first = Path::new(now, PathId::FIRST, config.path(), params.mtu, memory);
        let half_second = config.send_rate.bytes_in(Duration::from_millis(500)).0;
        let queue = half_second.max(MAX_DATAGRAM as u64);
        Session {
            params,
            // Nothing is known of what it can take apart.
            peer: Params { contexts: 0, told: None, ..params },
            peer_reserve: params.reserve,
            told: false,
            services: None,
            side,
            paths: Paths::new(first, side),
            pool: Pool::default(),
            streams: BTreeMap::new(),
            next_stream: 0,
            closed: RangeSet::default(),
            skipped_below: 0,
            schedule: Schedule::new(&config.classes, config.packet),
            blocked: VecDeque::new(),
            freed: false,
            control: Control::default(),
            opening: VecDeque::new(),
            credits: VecDeque::new(),
            credit_due: None,
            outbox: Outbox::new(2 * queue as usize),
            inbox: Inbox::new(4 << 20),
            lanes: BTreeMap::new(),
            packet_streams: 0,
            lane_headers: LaneHeaders::default(),
            messages: [None; 2],
            stopwatch: None,
            flows: Flows::default(),
            interactive_until: Instant::ZERO,
            awaited_until: Instant::ZERO,
            over_reserve: 0,
            recv_over_reserve: 0,
            reset_over_reserve: 0,
            events: VecDeque::new(),
            closing: None,
            closes_left: 0,
            close_at: now,
            peer_closed: false,
            overfull: false,
            short: false,
            touched: Touched::default(),
            looked_for_losses: false,
            rest: Rest::new(now),
            #[cfg(feature = "mistakes")]
            mistake: None,
            stats: SessionStats::default(),
            config,
        }
    }

    /// Our side's parameters, for the handshake.
    pub(crate) fn params(&self) -> Params {
        self.params
    }

    /// The handshake told the peer's parameters.
    pub(crate) fn set_peer(&mut self, peer: Params) {
        self.peer_reserve = peer.reserve;
        let peer = self.params.limited(peer);
        // Whether streams are compressed is settled once (L-CO-1, L-DD-11).
        let settled = if self.told { self.peer } else { peer };
        self.services = Some(peer.told.map(|told| told.facts.services).unwrap_or_default());
        self.peer = Params { history: settled.history, dedup: settled.dedup, ..peer };
        for path in self.paths.iter_mut() {
            path.headers.set_contexts(peer.contexts as usize);
            path.set_largest_packet(peer.mtu);
            // The peer does not know of it yet.
            path.ping |= path.is_own && !path.heard_here;
        }
        if !std::mem::replace(&mut self.told, true) {
            self.wake_codec_streams();
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

    /// The largest IP packet that crosses in one piece.
    pub fn max_whole_datagram(&self) -> usize {
        // The longest header and tag (26) and the frame's type.
        self.paths.active().best_packet().saturating_sub(27)
    }

    /// The largest IP packet that is sent now: what the configuration allows, or what is
    /// known to cross the path.
    pub fn path_mtu(&self) -> u16 {
        self.paths.active().path_mtu()
    }

    /// The kernel refuses packets of `len` bytes of UDP payload on a path: the way out is narrower.
    pub fn on_too_big(&mut self, now: Instant, path: PathId, len: usize) {
        if let Some(path) = self.path_mut(path) {
            path.on_too_big(now, len);
        }
    }

    /// Which directions work, as far as this node knows.
    pub fn health(&self) -> PathHealth {
        self.paths.active().health()
    }

    /// Is the health of the path in use more than an assumption? That a path may be sent on again
    /// says nothing of the peer until something came on it.
    pub(crate) fn is_health_known(&self) -> bool {
        let path = self.paths.active();
        path.heard_since_rise || !path.is_open()
    }

    /// Do datagrams wait to be taken?
    pub fn has_datagrams(&self) -> bool {
        !self.inbox.is_empty()
    }

    /// Do events wait?
    pub(crate) fn has_events(&self) -> bool {
        !self.events.is_empty()
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
            s.credit_event_queued = false;
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

    /// Sets how the sending rate of the first path is known, and the most that it may be (R-RATE).
    pub fn set_rate_mode(&mut self, now: Instant, mode: RateMode, cap: BitRate) {
        self.paths[0].set_rate(now, Some(mode), cap);
    }

    /// Changes what classes may have of the link ([`LinkConfig::classes`]).
    pub fn set_classes(&mut self, now: Instant, classes: &[ClassConfig]) {
        self.schedule.set_classes(now, classes);
        self.config.classes = classes.to_vec();
        self.follow_paths(now);
    }

    /// The configuration or the modem says what the link carries: it is believed at once,
    /// and is the most that is sent.
    pub fn set_send_rate(&mut self, now: Instant, cap: BitRate) {
        self.paths[0].set_rate(now, None, cap);
    }

    /// The rate that is sent at, the most that it may be, and what they follow from.
    pub fn rate_status(&self) -> RateStatus {
        self.paths.active().rate.status()
    }

    /// Goes on with what the session before knew of the link.
    pub(crate) fn inherit_link(&mut self, now: Instant, before: &Session) {
        let memory = (self.config.memory, self.params.contexts);
        for path in before.paths.iter().filter(|p| before.paths.outlasts(p)) {
            let renewed = path.renewed(now, memory);
            match path.id.is_first() {
                true => self.paths[0] = renewed,
                false => drop(self.paths.push(renewed)),
            }
        }
        self.paths.inherit_choice(&before.paths);
        self.services = before.services;
        self.follow_paths(now);
    }

    /// What a question and its answer may take with which nothing goes wrong.
    pub(crate) fn full_rtt(&self) -> Duration {
        self.paths.active().full_rtt()
    }

    /// The smoothed round-trip time.
    pub fn rtt(&self) -> Duration {
        self.paths.active().rtt.smoothed()
    }

    /// How many round trips were measured so far, and the newest, which unlike
    /// [`Session::rtt`] is not smoothed.
    pub fn newest_rtt(&self) -> (u64, Duration) {
        self.paths.active().rtt.newest()
    }

    /// Has the peer told that it answers self-tests (L-TE-1)?
    pub fn peer_answers_tests(&self) -> bool {
        self.peer.told.is_some_and(|told| told.facts.tests)
    }

    /// May the peer have a service of this name (L-SV-2)? What it told last holds, also after its
    /// session has ended. `None`: it has told nothing since this node started.
    pub fn peer_may_have(&self, service: &str) -> Option<bool> {
        self.services.map(|services| services.may_have(service))
    }

    /// Open streams, but for those that carry packets.
    pub fn streams(&self) -> usize {
        self.streams.len() - self.packet_streams
    }

    /// Memory that streams take: for their bytes, and for the pieces that these lie in.
    pub fn memory_used(&self) -> u64 {
        self.pool.used()
    }

    /// Nothing is on its way or waiting: a drain is over.
    pub fn is_quiet(&self) -> bool {
        self.streams() == 0 && self.is_drained()
    }

    /// Nothing is on its way or waiting, though streams may be open.
    pub fn is_drained(&self) -> bool {
        let waits = !self.schedule.is_empty() || !self.outbox.is_empty();
        !waits && self.paths.iter().all(Path::is_settled)
    }

    /// Since when something has been waiting for the peer's answer.
    pub(crate) fn waiting_since(&self) -> Option<Instant> {
        let in_flight = self.paths.active().sent.oldest_in_flight();
        if in_flight.is_none() && (!self.streams.is_empty() || !self.outbox.is_empty()) {
            // What waits for another path's carrier is no question to the peer.
            let active = self.paths.active_at();
            let has_work = self.control.has(&self.schedule, active)
                || self.schedule.has_any(active)
                || !self.opening.is_empty();
            return has_work.then_some(self.paths.active().last_eliciting);
        }
        in_flight
    }

    /// Counts so far.
    pub fn stats(&self) -> SessionStats {
        let mut stats = self.stats;
        for path in self.paths.iter() {
            path.add_to(&mut stats);
        }
        SessionStats {
            datagrams_dropped: self.outbox.dropped + self.inbox.dropped,
            datagram_bytes_saved_out: self.outbox.saved.max(0) as u64,
            datagram_bytes_saved_in: self.inbox.saved.max(0) as u64,
            datagram_cpu: stats.datagram_cpu + self.lane_headers.spent(),
            ..stats
        }
    }

    /// Measures the compression of datagrams by this clock of processor time.
    pub fn set_stopwatch(&mut self, stopwatch: Option<Stopwatch>) {
        self.stopwatch = stopwatch;
        self.paths.iter_mut().for_each(|p| p.set_stopwatch(stopwatch));
        self.lane_headers.stopwatch = stopwatch;
    }

    /// Bytes on the accounts of both directions, beyond the reserves.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn credit_in_use(&self) -> (u64, u64) {
        (self.over_reserve, self.recv_over_reserve)
    }

    /// The first path.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn first(&self) -> &Path {
        &self.paths[0]
    }

    /// The same, to change something.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn first_mut(&mut self) -> &mut Path {
        &mut self.paths[0]
    }

    /// From now on the session makes this mistake.
    #[cfg(feature = "mistakes")]
    pub fn plant(&mut self, mistake: Mistake) {
        self.mistake = Some(mistake);
    }

    /// Is it time to make the mistake that happens now and then?
    #[cfg(feature = "mistakes")]
    pub(super) fn errs(&self, mistake: Mistake) -> bool {
        self.mistake == Some(mistake) && self.stats.stream_bytes_out % 16 == 7
    }

    /// Asks the peer for a sign of life.
    pub fn ping(&mut self) {
        self.paths.active_mut().ping = true;
    }
}
