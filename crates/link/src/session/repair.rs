//! Repair of a path's packets (R-COPIES; spec/link.md, "Repair"): when repair packets
//! leave, and what comes back by them.
//!
//! - Where one stream has most of the link, one of so many packets is repair (`code_rate`): it
//!   saves that stream the round trip that each loss would cost. Many streams share that
//!   head-of-line delay, and retransmission is cheaper.
//! - Where the sender pauses, or the last packet that a user waits for has left while bulk goes
//!   on, that tail gets as many repair packets as the measured loss asks for (`tail_fec`).

use units::{ByteCount, Duration, Instant};

use super::Session;
use super::path::{Load, Path, PathConfig};
use super::send::Built;
use crate::repair::{
    BulkCode, BurstEstimate, FecDecoder, FecEncoder, HINT, LossEstimate, LossModel, MAX_WINDOW,
    Purpose, tail_repairs, told_window,
};
use crate::sent::SentCounts;
use crate::wire::{Frame, LossesSeen, StreamId, Writer};

/// Bytes by which packets stay below a full one while there is repair, which has a head of
/// two bytes and one of the symbol beside the plaintexts that it combines.
const HEAD: usize = 3;
/// Below this loss ratio nothing is repaired: a tail of a hundred packets would be whole
/// without it all but once in a thousand times.
const LEAST: f64 = 1e-5;
/// What a pause must last to be one: the sender's host may be in the middle of writing.
const PAUSE: Duration = Duration::from_millis(2);
/// Kept plaintexts are given back after so long without use.
const KEEP: Duration = Duration::from_secs(10);
/// For its first packets a link whose losses are unknown is taken to lose this share: the
/// first answer that a user waits for should not be delayed by the first loss. Not so where
/// serialization of a packet takes more than this part of a round trip.
const FIRST_CONTACT: u64 = 64;
const FIRST_LOSS: f64 = 0.02;
const FIRST_PACKET: u64 = 4;
/// Packets missing from a tail that repair is to bring back, on average, at most.
const MOST_MISSING: f64 = 40.0;

/// What a session repairs, and what came back to it.
pub(super) struct Repair {
    encoder: FecEncoder,
    decoder: FecDecoder,
    loss: LossEstimate,
    bursts: BurstEstimate,
    counted: SentCounts,
    code: Option<BulkCode>,
    /// The first number that its windows cover: before, more may be missing than it was made
    /// for, and that would spoil all windows that reach there.
    since: u64,
    /// The newest repair packet of a steady flow.
    last: u64,
    /// The stream that most packets since then were of, and by how many more.
    favourite: Option<StreamId>,
    lead: u64,

    /// The packet being filled has what a user waits for, and its end.
    waited_for: bool,
    ends: bool,
    /// It has more than reports and credit.
    has_content: bool,
    /// The first packet of that kind, and of any, that no tail has covered, and the last.
    first_waited_for: Option<u64>,
    last_waited_for: u64,
    first: Option<u64>,
    tail_due: Option<Instant>,
    /// The tail that is being sent.
    tail: Tail,
    /// The next number when the last tail began.
    tail_end: u64,

    /// Nothing is known of the link's losses: our first packets leave, the peer's come.
    sends_first: bool,
    receives_first: bool,
    /// Does the peer repair?
    armed: bool,
    /// The longest window of ours, and of the peer's.
    window: usize,
    slots: usize,
    mtu: usize,
    /// Packets that came back and that the next report of the whole state tells of.
    untold: u64,
    /// What the peer was told, and what it told last.
    told: LossesSeen,
    heard: LossesSeen,
    used: Instant,
    content: Vec<u8>,
}

/// Repair packets of a tail that are yet to be sent.
#[derive(Clone, Copy, Default)]
struct Tail {
    left: u32,
    /// The first number that they cover, and the one after the last.
    first: u64,
    end: u64,
    /// It is a pause of bulk, which has nothing but idle time for it.
    in_pause: bool,
    /// When the next may leave on an idle link, and how long after it another: a burst is
    /// as long as the packets that would fill it.
    at: Instant,
    gap: Duration,
    /// Which number it has at least where others' data goes on, and how many more another.
    number: u64,
    stride: u64,
}

impl Tail {
    fn took(&mut self, now: Instant, number: u64) {
        self.left -= 1;
        self.at = now + self.gap;
        self.number = number + self.stride;
    }
}

impl Repair {
    pub fn new(config: &PathConfig, memory: ByteCount) -> Repair {
        let in_flight = config.send_rate.bytes_in(config.rtt).0 / u64::from(config.packet);
        let promises = config.bit_errors.as_f64() > 0.0;
        // Both directions' plaintexts take a sixteenth of the memory at most.
        let affordable = (memory.0 / 32 / u64::from(config.mtu)).max(16);
        let most = affordable.min(MAX_WINDOW as u64);
        Repair {
            encoder: FecEncoder::default(),
            decoder: FecDecoder::default(),
            loss: LossEstimate::new(config.bit_errors, config.packet),
            bursts: BurstEstimate::new(),
            counted: SentCounts::default(),
            code: None,
            since: 0,
            last: 0,
            favourite: None,
            lead: 0,
            waited_for: false,
            ends: false,
            has_content: false,
            first_waited_for: None,
            last_waited_for: 0,
            first: None,
            tail_due: None,
            tail: Tail::default(),
            tail_end: 0,
            sends_first: !promises && in_flight >= FIRST_PACKET,
            receives_first: true,
            armed: promises,
            window: in_flight.max(64).min(most) as usize,
            slots: most as usize,
            mtu: usize::from(config.mtu),
            untold: 0,
            told: LossesSeen::default(),
            heard: LossesSeen::default(),
            used: Instant::ZERO,
            content: Vec::new(),
        }
    }

    /// Goes on with what the session before knew of the link's losses.
    pub fn learned_from(&mut self, before: &Repair) {
        (self.loss, self.bursts) = (before.loss, before.bursts);
        self.sends_first = before.sends_first;
    }

    /// Gives back what packets took that nobody asks for any more.
    pub fn give_back(&mut self) {
        self.encoder.release();
        self.decoder.release();
        self.content = Vec::new();
    }

    /// Is there loss enough to repair anything?
    pub fn is_on(&self) -> bool {
        self.sends_first || self.loss.ratio() >= LEAST
    }

    /// Control frames of a stream went into the packet being filled.
    pub fn on_control(&mut self, wrote: bool) {
        self.has_content |= wrote;
        self.waited_for |= wrote;
        self.ends |= wrote;
    }

    /// A piece of a stream, small until then, went into the packet being filled, and no
    /// more of it waits.
    pub fn after_stream(&mut self, small: bool, drained: bool) {
        self.ends |= small && drained;
    }

    /// A piece of a stream goes into the packet being filled.
    pub fn on_stream(&mut self, id: StreamId, small: bool) {
        self.has_content = true;
        self.waited_for |= small;
        // Boyer and Moore's majority vote.
        if self.favourite == Some(id) {
            self.lead += 1;
        } else if self.lead == 0 {
            (self.favourite, self.lead) = (Some(id), 1);
        } else {
            self.lead -= 1;
        }
    }

    /// The peer's reports told more. Losses that the sending rate caused are not the link's.
    pub fn observe(&mut self, counts: SentCounts, caused_by_rate: bool) {
        // What was too long for the path is not the link's loss (L-PM-4), and against an
        // outage no code would have helped.
        let lost = |c: SentCounts| c.lost.saturating_sub(c.too_long + c.in_outages);
        let settled = |c: SentCounts| c.arrived + lost(c);
        let packets = settled(counts).saturating_sub(settled(self.counted));
        let lost = lost(counts).saturating_sub(lost(self.counted));
        self.counted = counts;
        if caused_by_rate {
            return;
        }
        self.loss.observe(packets, lost);
        self.sends_first &= lost == 0;
    }

    /// The losses so far were caused by the sending rate.
    pub fn forget_losses(&mut self, config: &PathConfig) {
        self.loss = LossEstimate::new(config.bit_errors, config.packet);
        self.bursts = BurstEstimate::new();
        self.code = None;
    }

    /// Packets are missing: those that arrive are kept, for repair packets come soon (L-RP-9).
    pub fn arm_if(&mut self, any_missing: bool) {
        self.armed |= any_missing;
    }

    /// A packet arrived that is not repair.
    pub fn on_packet(&mut self, now: Instant, number: u64, hint: u8, payload: &[u8]) {
        self.receives_first &= number < FIRST_CONTACT;
        if self.armed || self.receives_first {
            self.used = now;
            self.decoder.make_room(self.slots, self.mtu);
            self.decoder.on_packet(number, hint, payload);
        }
    }

    /// Keeps what need not come back, where it left between what must: windows have no holes.
    pub fn keep_between(&mut self, number: u64, hint: u8, packet: &[u8]) {
        if self.is_on() && !self.encoder.is_empty() {
            self.encoder.keep(number, hint, packet, self.window, self.mtu);
        }
    }

    /// When a tail begins or goes on, if that is later than now.
    pub fn poll_timeout(&self, now: Instant) -> Option<Instant> {
        let next = (self.tail.left > 0).then_some(self.tail.at);
        [next, self.tail_due].into_iter().flatten().filter(|t| *t > now).min()
    }

    fn loss_model(&self) -> LossModel {
        match self.sends_first {
            true => LossModel::independent(FIRST_LOSS),
            false => self.bursts.loss_model(self.loss.ratio_soon()),
        }
    }

    /// What left is not to be combined any more.
    pub fn forget_sent(&mut self) {
        self.encoder.release();
        (self.first, self.first_waited_for, self.tail_due) = (None, None, None);
        self.tail.left = 0;
    }

    /// When kept plaintexts are given back.
    pub fn release_at(&self) -> Option<Instant> {
        let any = !self.encoder.is_empty() || !self.decoder.is_empty();
        any.then(|| self.used + KEEP)
    }

    pub fn release(&mut self, now: Instant) {
        if self.release_at().is_some_and(|t| t <= now) {
            self.encoder.release();
            self.decoder.release();
        }
    }
}

impl Path {
    /// Is a repair packet to be sent now?
    pub(super) fn repair_waits(&self, now: Instant, load: Load<'_>) -> bool {
        let begins = self.repair.tail_due.is_some_and(|t| t <= now);
        (begins || self.tail_goes_on(now, load)) && !load.is_urgent()
    }

    /// Is it time for the tail's next repair packet?
    fn tail_goes_on(&self, now: Instant, load: Load<'_>) -> bool {
        let tail = &self.repair.tail;
        tail.left > 0
            && if load.is_due(now) {
                tail.number <= self.sent.next_number()
            } else {
                tail.at <= now
            }
    }

    /// Has a stream or a datagram something that may be sent here? While the peer is silent
    /// none has.
    fn data_waits(&self, load: Load<'_>) -> bool {
        !self.silent && load.has_data()
    }

    /// The part of a packet's room that data may fill.
    pub(super) fn data_room<'a>(&self, buf: &'a mut [u8]) -> &'a mut [u8] {
        let spare = self.max_packet() - self.best_packet();
        let room = buf.len().saturating_sub(spare);
        &mut buf[..room]
    }

    /// Bytes of that to be left by a stream that is coded, or whose end is near, so that
    /// a repair packet can hold it with its head.
    pub(super) fn room_for_repair(&self, near_end: bool) -> usize {
        let spare = self.path_packet() - self.best_packet();
        let wanted = self.repair.is_on() && (near_end || self.repair.code.is_some());
        if wanted { HEAD.saturating_sub(spare) } else { 0 }
    }

    /// Packets in a round trip.
    fn packets_in_flight(&self) -> f64 {
        let bytes = self.pacer.rate().bytes_in(self.rtt.smoothed()).0;
        bytes as f64 / self.sent.by_size.best() as f64
    }

    /// Keeps what left, and sees whether the sender pauses.
    pub(super) fn keep_for_repair(
        &mut self,
        now: Instant,
        load: Load<'_>,
        number: u64,
        hint: u8,
        packet: &[u8],
        eliciting: bool,
    ) {
        let waited_for = std::mem::take(&mut self.repair.waited_for);
        let ends = std::mem::take(&mut self.repair.ends);
        let has_content = std::mem::take(&mut self.repair.has_content);
        self.repair.sends_first &= number < FIRST_CONTACT;
        if !self.repair.is_on() {
            return;
        }
        if !eliciting {
            return self.repair.keep_between(number, hint, packet);
        }
        let r = &mut self.repair;
        r.used = now;
        r.encoder.keep(number, hint, packet, r.window, r.mtu);
        if !has_content {
            return;
        }
        r.first.get_or_insert(number);
        if waited_for {
            r.first_waited_for.get_or_insert(number);
            r.last_waited_for = number;
        }
        let drained = !load.is_urgent();
        if drained && self.repair.tail_due.is_none() && (ends || !self.data_waits(load)) {
            self.repair.tail_due = Some(now + PAUSE);
        }
    }

    /// Writes a repair packet if one is due. Reports go first.
    pub(super) fn write_repair(
        &mut self,
        now: Instant,
        load: Load<'_>,
        buf: &mut [u8],
        sealing: u64,
    ) -> Option<Built> {
        if !self.repair.is_on() || self.silent {
            self.repair.tail_due = None;
            self.repair.tail.left = 0;
            return None;
        }
        // Those of a steady flow keep their distance: it is told in one byte then.
        let since = self.sent.next_number() - self.repair.last;
        let steady = self.repair.code.is_some_and(|c| since >= c.interval);
        if !steady && self.report_due().is_some_and(|t| t <= now) {
            return None;
        }
        let busy = self.data_waits(load);
        let tail = &mut self.repair.tail;
        if tail.left > 0 && tail.in_pause && busy {
            self.repair.first = Some(tail.first);
            tail.left = 0;
        }
        self.begin_tail(now, load);
        let number = self.sent.next_number();
        let (first, purpose) = if self.tail_goes_on(now, load) && !load.is_urgent() {
            self.repair.tail.took(now, number);
            if self.repair.tail.in_pause {
                self.repair.since = number;
            }
            (self.repair.tail.first, Purpose::Tail(self.repair.tail.end))
        } else {
            let (first, period) = self.bulk_repair_due(load, number)?;
            (first, Purpose::Flow(period))
        };
        let room = buf.len().saturating_sub(self.max_packet() - self.path_packet());
        let mut w = Writer::new(&mut buf[..room]);
        let Some(covers) = self.repair.encoder.write(number, first, purpose, &mut w) else {
            self.repair.tail.left = 0;
            return None;
        };
        let len = w.len();
        let size = len as u64 + sealing + self.wire_overhead();
        self.pacer.on_sent(now, size);
        self.stats.repairs_sent += 1;
        self.repair.used = now;
        Some(Built { number: self.sent.push_repair(now, covers, size), len, hint: HINT })
    }

    /// The pause is one: how many repair packets does what left before it get?
    fn begin_tail(&mut self, now: Instant, load: Load<'_>) {
        if self.repair.tail_due.is_none_or(|t| t > now) {
            return;
        }
        self.repair.tail_due = None;
        if load.is_urgent() {
            return; // It goes on; another pause comes.
        }
        let pauses = !self.data_waits(load);
        let newest = self.sent.next_number();
        // What left a round trip ago has been reported.
        let unreported = self.sent.first_since(now - self.rtt.smoothed());
        let r = &mut self.repair;
        let waited_for = r.first_waited_for.take();
        let in_pause = waited_for.is_none();
        let Some(first) = (if pauses { r.first.take() } else { waited_for }) else { return };
        // What is left of the last tail goes on in this one.
        let owed = r.tail.left;
        let first = if owed > 0 { first.min(r.tail.first) } else { first };
        let losses = r.loss_model();
        let loss = losses.loss;
        let most = ((MOST_MISSING / loss) as u64).clamp(1, r.window as u64);
        let first = first.max(unreported).max(newest.saturating_sub(most));
        // Others' data between is lost with it where losses come in bursts, and left out.
        let end = if pauses { newest } else { (r.last_waited_for + 1).max(first + 1) };
        let sources = end - first;
        // Between others' data tails have a budget: a hub's small streams end all the time.
        let since = newest - std::mem::replace(&mut r.tail_end, newest);
        let budget = ((since as f64 * (0.02 + 2.0 * loss)) as u32).max(1) + owed;
        // A burst takes what follows it closely, too. Yet all are to leave well before sending
        // again would help, and before what they tell of is forgotten.
        let time = self.rtt.smoothed().divided_by(2);
        let room = self.pacer.rate().bytes_in(time).0 / u64::from(self.config.packet);
        let room = room.min((r.window as u64).saturating_sub(newest - first)).max(1);
        let apart = if losses.is_bursty() && !pauses { (losses.burst * 2.0) as u64 } else { 1 };
        let mut stride = apart.min(room);
        let left = loop {
            let repairs = tail_repairs(sources, losses, stride);
            let left = if pauses { repairs } else { repairs.min(budget) };
            if stride == 1 || u64::from(left) * stride <= room {
                break left;
            }
            stride /= 2;
        };
        let packet = self.pacer.rate().time_for(ByteCount(u64::from(self.config.packet)));
        let most = time.divided_by(u64::from(left.max(1)));
        let gap = if losses.is_bursty() { packet.min(most) } else { Duration::ZERO };
        let next = newest + if stride > 1 { stride } else { 0 };
        // Where one tail comes after the other none puts off what the last one has still to say.
        let number = if owed > 0 { next.min(r.tail.number) } else { next };
        r.tail = Tail { left, first, end, in_pause, at: now, gap, number, stride };
    }

    /// No tail goes on for what the peer has: on a thin link that takes long, and where much was
    /// lost a tail may have tens of packets.
    pub(super) fn end_tail_that_arrived(&mut self) {
        let tail = &mut self.repair.tail;
        if tail.left > 0 && self.sent.all_arrived(tail.first..tail.end) {
            tail.left = 0;
        }
    }

    /// The first number that the repair packet of a steady flow covers, if it is due, and its
    /// distance from the one before.
    fn bulk_repair_due(&mut self, load: Load<'_>, number: u64) -> Option<(u64, u64)> {
        let code = self.repair.code;
        if number - self.repair.last < code.map_or(8, |c| c.interval.max(2)) {
            return None;
        }
        // One of these in eight or so more packets decides anew.
        let in_flight = self.packets_in_flight();
        let rate = self.pacer.rate().bytes_in(Duration::from_secs(1)).0 as f64;
        let r = &mut self.repair;
        let due = number - r.last;
        let dominant = r.lead >= due / 4;
        let busy = self.data_waits(load);
        let r = &mut self.repair;
        // Where tails took its places it goes on in step.
        r.last = number - code.map_or(0, |c| due % c.interval);
        (r.favourite, r.lead) = (None, 0);
        let losses = r.bursts.loss_model(r.loss.ratio());
        let most = in_flight.min(r.window as f64);
        let next = BulkCode::new(losses, (in_flight, most), rate, dominant, code.is_some());
        let next = next.filter(|_| busy);
        r.code = match (code, next) {
            // A steady interval takes fewest bytes to tell.
            (Some(old), Some(new))
                if (old.interval..=old.interval * 9 / 8).contains(&new.interval) =>
            {
                Some(old)
            }
            _ => next,
        };
        if code.map(|c| c.interval) != r.code.map(|c| c.interval) {
            r.since = number + 1;
        }
        let interval = code?.interval;
        // No longer than asked for: what is older has been sent again, and if it did not come
        // back it is missing for good.
        let window = told_window((r.code?.window as usize).min(r.window));
        Some((number.saturating_sub(window as u64).max(r.since), interval))
    }

    /// REPAIR packet `number` came.
    pub(super) fn on_repair(&mut self, now: Instant, number: u64, payload: &[u8]) {
        let r = &mut self.repair;
        r.armed |= !r.receives_first;
        r.used = now;
        r.decoder.make_room(r.slots, r.mtu);
        if r.decoder.on_repair(number, payload).is_err() {
            self.stats.violations += 1;
        }
    }

    /// Packet `number` came back.
    fn on_recovered(&mut self, number: u64, eliciting: bool) {
        self.stats.recovered += u64::from(eliciting);
        if number < self.received.always_told() {
            self.repair.untold += u64::from(eliciting);
        }
    }

    /// All that could come back did.
    fn after_recovery(&mut self) {
        self.stats.too_dear += self.repair.decoder.take_too_dear();
        if self.repair.decoder.take_contradiction() {
            self.repair.decoder.release();
            self.stats.contradictions += 1;
            self.stats.violations += 1;
        }
    }

    /// Tells the peer what was lost here, whether it came back or not. Gaps are told when
    /// there are an eighth, or 32, more: they only show how long bursts are.
    pub(super) fn tell_losses(&mut self, now: Instant, w: &mut Writer<'_>) {
        let (gaps, missing) = self.received.gaps();
        if self.received.tells_all(now) {
            self.repair.untold = 0;
        }
        // What the report does not name yet the peer must not take off what arrived.
        let recovered = self.stats.recovered - self.repair.untold;
        let seen = LossesSeen { recovered, gaps, missing };
        let told = self.repair.told;
        let news = seen.recovered > told.recovered || gaps > told.gaps + (told.gaps / 8).min(32);
        if news && w.put(&Frame::Recovered(seen)) {
            self.repair.told = seen;
        }
    }

    /// The peer told how many of our packets were missing and came back so far.
    pub(super) fn on_losses_seen(&mut self, seen: LossesSeen) {
        let r = &mut self.repair;
        if seen.gaps > r.heard.gaps && seen.missing > r.heard.missing {
            r.bursts.observe(seen.gaps - r.heard.gaps, seen.missing - r.heard.missing);
            r.heard = seen;
        }
        let more = seen.recovered.saturating_sub(self.stats.peer_recovered);
        self.stats.peer_recovered += more;
        let mean = self.sent.sent_bytes() / self.sent.next_number().max(1);
        self.sent.discount(more.saturating_mul(mean));
        self.repair.loss.observe(0, more);
    }
}

impl Session {
    /// Takes the packets that came back on a path.
    pub(super) fn take_recovered(&mut self, now: Instant, arrived: Instant, at: usize) {
        let mut content = std::mem::take(&mut self.paths[at].repair.content);
        while let Some((number, hint)) = self.paths[at].repair.decoder.next_recovered(&mut content)
        {
            let source = super::receive::Source::Repair;
            if !self.paths[at].received.has(number)
                && let Some(eliciting) =
                    self.handle_content(now, arrived, (at, number), hint, &content, source)
            {
                self.paths[at].on_recovered(number, eliciting);
            }
        }
        let path = &mut self.paths[at];
        path.repair.content = content;
        path.after_recovery();
    }
}
