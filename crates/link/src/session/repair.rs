//! Repair of a path's packets (R-COPIES; spec/link.md, "Repair"): what is kept for it, and how much
//! of it there is. When repair packets leave is in `repair_packets.rs`.
//!
//! - Where one stream has most of the link, one of so many packets is repair (`code_rate`): it
//!   saves that stream the round trip that each loss would cost. Many streams share that
//!   head-of-line delay, and retransmission is cheaper.
//! - Where the sender pauses, or the last packet that a user waits for has left while bulk goes
//!   on, that tail gets as many repair packets as the measured loss asks for (`tail_fec`).

use units::{BitRate, ByteCount, Duration, Instant};

use super::config::PathConfig;
use crate::repair::{
    BulkCode, BurstEstimate, FecDecoder, FecEncoder, LossEstimate, LossModel, MAX_WINDOW,
    tail_repairs, told_window,
};
use crate::sent::SentCounts;
use crate::wire::{LossesSeen, StreamId, WireError};

/// Below this loss ratio nothing is repaired: a tail of a hundred packets would be whole
/// without it all but once in a thousand times.
const LEAST: f64 = 1e-5;
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
    pub encoder: FecEncoder,
    pub decoder: FecDecoder,
    loss: LossEstimate,
    bursts: BurstEstimate,
    counted: SentCounts,
    pub code: Option<BulkCode>,
    /// The first number that its windows cover: before, more may be missing than it was made
    /// for, and that would spoil all windows that reach there.
    pub since: u64,
    /// The newest repair packet of a steady flow.
    pub last: u64,
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
    pub first: Option<u64>,
    pub tail_due: Option<Instant>,
    /// The tail that is being sent.
    pub tail: Tail,
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
    pub untold: u64,
    /// What the peer was told, and what it told last.
    pub told: LossesSeen,
    heard: LossesSeen,
    pub used: Instant,
    pub content: Vec<u8>,
}

/// Repair packets of a tail that are yet to be sent.
#[derive(Clone, Copy, Default)]
pub(super) struct Tail {
    pub left: u32,
    /// The first number that they cover, and the one after the last.
    pub first: u64,
    pub end: u64,
    /// It is a pause of bulk, which has nothing but idle time for it.
    pub in_pause: bool,
    /// When the next may leave on an idle link, and how long after it another: a burst is
    /// as long as the packets that would fill it.
    pub at: Instant,
    pub gap: Duration,
    /// Which number it has at least where others' data goes on, and how many more another.
    pub number: u64,
    pub stride: u64,
}

/// What a path is to its tails.
#[derive(Clone, Copy)]
pub(super) struct Line {
    pub rtt: Duration,
    pub rate: BitRate,
    /// Bytes of a full packet.
    pub packet: u64,
}

impl Tail {
    /// A repair packet of this number leaves.
    pub fn took(&mut self, now: Instant, number: u64) {
        self.left -= 1;
        self.at = now + self.gap;
        self.number = number + self.stride;
    }
}

impl Repair {
    pub fn new(config: &PathConfig, memory: ByteCount) -> Repair {
        let in_flight = config.send_rate.bytes_in(config.rtt).0 / u64::from(config.packet);
        let promises = config.bit_errors.as_f64() > 0.0;
        // Both directions' plaintexts of this path take a sixteenth of the memory at most.
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

    /// A packet left: it is kept. If it has content for repair to cover, answers whether a user
    /// waits for no more of it.
    pub fn keep(
        &mut self,
        now: Instant,
        number: u64,
        hint: u8,
        packet: &[u8],
        eliciting: bool,
    ) -> Option<bool> {
        let waited_for = std::mem::take(&mut self.waited_for);
        let ends = std::mem::take(&mut self.ends);
        let has_content = std::mem::take(&mut self.has_content);
        self.sends_first &= number < FIRST_CONTACT;
        if !self.is_on() {
            return None;
        }
        if !eliciting {
            self.keep_between(number, hint, packet);
            return None;
        }
        self.used = now;
        self.encoder.keep(number, hint, packet, self.window, self.mtu);
        if !has_content {
            return None;
        }
        self.first.get_or_insert(number);
        if waited_for {
            self.first_waited_for.get_or_insert(number);
            self.last_waited_for = number;
        }
        Some(ends)
    }

    /// REPAIR packet `number` came.
    pub fn on_repair(
        &mut self,
        now: Instant,
        number: u64,
        payload: &[u8],
    ) -> Result<(), WireError> {
        self.armed |= !self.receives_first;
        self.used = now;
        self.decoder.make_room(self.slots, self.mtu);
        self.decoder.on_repair(number, payload)
    }

    /// The peer told how many packets were missing, of which so many `more` came back.
    pub fn on_losses_seen(&mut self, seen: LossesSeen, more: u64) {
        if seen.gaps > self.heard.gaps && seen.missing > self.heard.missing {
            self.bursts.observe(seen.gaps - self.heard.gaps, seen.missing - self.heard.missing);
            self.heard = seen;
        }
        self.loss.observe(0, more);
    }

    // ---- how much of it ------------------------------------------------------------

    /// The pause is one, or what a user waited for has left: how many repair packets does what left
    /// before it get? Nothing is reported from `unreported` on; `newest` is the next number.
    pub fn begin_tail(
        &mut self,
        now: Instant,
        pauses: bool,
        newest: u64,
        unreported: u64,
        line: Line,
    ) {
        let waited_for = self.first_waited_for.take();
        let in_pause = waited_for.is_none();
        let Some(first) = (if pauses { self.first.take() } else { waited_for }) else { return };
        // What is left of the last tail goes on in this one.
        let owed = self.tail.left;
        let first = if owed > 0 { first.min(self.tail.first) } else { first };
        let losses = self.loss_model();
        let loss = losses.loss;
        let most = ((MOST_MISSING / loss) as u64).clamp(1, self.window as u64);
        let first = first.max(unreported).max(newest.saturating_sub(most));
        // Others' data between is lost with it where losses come in bursts, and left out.
        let end = if pauses { newest } else { (self.last_waited_for + 1).max(first + 1) };
        let sources = end - first;
        // Between others' data tails have a budget: a hub's small streams end all the time.
        let since = newest - std::mem::replace(&mut self.tail_end, newest);
        let budget = ((since as f64 * (0.02 + 2.0 * loss)) as u32).max(1) + owed;
        // A burst takes what follows it closely, too. Yet all are to leave well before sending
        // again would help, and before what they tell of is forgotten.
        let time = line.rtt.divided_by(2);
        let room = line.rate.bytes_in(time).0 / line.packet;
        let room = room.min((self.window as u64).saturating_sub(newest - first)).max(1);
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
        let packet = line.rate.time_for(ByteCount(line.packet));
        let most = time.divided_by(u64::from(left.max(1)));
        let gap = if losses.is_bursty() { packet.min(most) } else { Duration::ZERO };
        let next = newest + if stride > 1 { stride } else { 0 };
        // Where one tail comes after the other none puts off what the last one has still to say.
        let number = if owed > 0 { next.min(self.tail.number) } else { next };
        self.tail = Tail { left, first, end, in_pause, at: now, gap, number, stride };
    }

    /// Is it time for a repair packet of a steady flow with this number?
    pub fn is_bulk_due(&self, number: u64) -> bool {
        number - self.last >= self.code.map_or(8, |c| c.interval.max(2))
    }

    /// The first number that it covers, if there is one, and its distance from the one before. So
    /// many packets are in flight, so many bytes leave in a second, and more wait if it is `busy`.
    pub fn next_bulk(
        &mut self,
        number: u64,
        in_flight: f64,
        rate: f64,
        busy: bool,
    ) -> Option<(u64, u64)> {
        let code = self.code;
        let due = number - self.last;
        let dominant = self.lead >= due / 4;
        // Where tails took its places it goes on in step.
        self.last = number - code.map_or(0, |c| due % c.interval);
        (self.favourite, self.lead) = (None, 0);
        let losses = self.bursts.loss_model(self.loss.ratio());
        let most = in_flight.min(self.window as f64);
        let next = BulkCode::new(losses, (in_flight, most), rate, dominant, code.is_some());
        let next = next.filter(|_| busy);
        self.code = match (code, next) {
            // A steady interval takes fewest bytes to tell.
            (Some(old), Some(new))
                if (old.interval..=old.interval * 9 / 8).contains(&new.interval) =>
            {
                Some(old)
            }
            _ => next,
        };
        if code.map(|c| c.interval) != self.code.map(|c| c.interval) {
            self.since = number + 1;
        }
        let interval = code?.interval;
        // No longer than asked for: what is older has been sent again, and if it did not come
        // back it is missing for good.
        let window = told_window((self.code?.window as usize).min(self.window));
        Some((number.saturating_sub(window as u64).max(self.since), interval))
    }

    // ---- its time ------------------------------------------------------------------

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
