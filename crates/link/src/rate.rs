//! The sending rate (R-RATE). One controller for every mode: it starts at the
//! configured rate, which is also the most, and follows what the link carries.
//!
//! - Loss alone changes nothing. A *queue* does: packets that take longer than the
//!   fastest ones lately, by more than noise, for some time, and by more or for longer than the
//!   jitter of the link explains ([`jitter`], after CoDel, RFC 8289). While a queue stands the
//!   line is busy, so what comes through is what it carries: the **delivery rate**.
//! - On a queue the rate becomes the delivery rate, and stays below it for as long as it
//!   takes to send the backlog, which is known: what was sent, less what the line took.
//!   Where the delivery rate falls from one queue to the next, as in a fade, the rate becomes
//!   what it will be two round trips later.
//! - Below the configured rate the controller **probes**: a little more for a round trip,
//!   and when no queue appears again more, in growing steps. The first is as large as the
//!   round trip allows without a queue that is felt.
//! - Losses that are as regular as a policer's ([`losses`]) call for a **trial**: the rate
//!   becomes what came through. If the losses go the link drops what exceeds its rate: then
//!   probes look at losses as well. If they stay they were noise, and the rate goes back.
//!
//! Both ends of the scale meet: a link that is configured right never queues and is never
//! slowed, and its first packet leaves at the full rate.

mod dark;
mod jitter;
mod losses;
mod measure;

use units::{BitRate, ByteCount, Duration, Instant};

use dark::After;
use jitter::Jitter;
use losses::{Losses, Regular};
pub(crate) use measure::Told;
use measure::{Mark, Measure};

/// How the rate of a link is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RateMode {
    /// It is the configured one. Should a queue show that the link carries less, less is
    /// sent, and more is tried from time to time.
    #[default]
    Fixed,
    /// The modem says what it is, as often as it changes.
    Reported,
    /// It varies and nobody says how: more is tried all the time.
    Learned,
}

/// What the controller does, for `status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateStatus {
    /// How the rate is known.
    pub mode: RateMode,
    /// The configured or reported rate, which is the most.
    pub cap: BitRate,
    /// The rate in force: below `capacity` while a queue is drained, above in a probe.
    pub rate: BitRate,
    /// What the link is known to carry.
    pub capacity: BitRate,
    /// What came through lately.
    pub delivery: BitRate,
    /// How long packets queue on the way.
    pub queueing: Duration,
}

/// A queue of less than this, and two packets' time, is jitter: hosts that are late, and
/// the 11 ms that a pacer may make good at once.
const JITTER: Duration = Duration::from_millis(20);
/// Steps of a probe, in twentieths of the rate; the last is repeated, or the last that makes no
/// longer queue than this in the time until it is noticed.
const STEPS: [u64; 4] = [1, 5, 10, 20];
const PROBE_QUEUE: Duration = Duration::from_millis(400);
/// An outage is long when the link may have become another one.
const LONG_OUTAGE: Duration = Duration::from_secs(60);
/// The longest time between probes where the rate is said to be known.
const LONGEST_HOLD: Duration = Duration::from_secs(60);
/// The same where it is learned and round trips are short: a queue is felt there, and what is
/// gained after an outage is looked for at once.
const LONGEST_NEAR_HOLD: Duration = Duration::from_millis(1_600);
/// The same where losses that are probed for hurt.
const LONGEST_POLICED_HOLD: Duration = Duration::from_secs(15);
/// After a trial that showed nothing, the next may come no sooner than this, and then twice as
/// long after it each time.
const FIRST_TRIAL_PAUSE: Duration = Duration::from_secs(10);
const LONGEST_TRIAL_PAUSE: Duration = Duration::from_secs(600);
/// Packets that a trial would lose if nothing had changed, and a probe at a policer.
const TRIAL_LOSSES: u64 = 16;
const PROBE_LOSSES: u64 = 12;
/// A bucket that a rate a little too low has filled meanwhile lasts for about so long.
const PASSED_AT_ONCE: Duration = Duration::from_millis(500);
/// Packets over which losses are looked at while a policer lets all pass.
const SPAN: u64 = 1_000;
/// A queue that comes up so many round trips after the last was drained tells of a rate that
/// falls, if it fell; then this is done for what it will be so much later.
const TREND_RTTS: u64 = 4;
const AHEAD_RTTS: u64 = 2;
/// A competitor may take this share of what the link carried lately before its queue is
/// borne: one half.
const YIELD: u64 = 2;
/// What the link carried "lately": the last one to two of these.
const LATELY: Duration = Duration::from_secs(15);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The rate is `good`; below the cap it is probed at this time.
    Hold { until: Instant },
    /// Below `good` until the backlog is sent. The line has been busy since the mark.
    Drain { until: Instant },
    /// Above `good` since then, by this step.
    Probe { since: Instant, step: usize },
    /// Below `good`, where so many parts per million were lost, to see whether they still are.
    Trial { lost_ppm: u64 },
    /// Far below `good`, because reports stay away.
    Dark,
}

/// The controller.
#[derive(Clone, Debug)]
pub(crate) struct Rate {
    mode: RateMode,
    cap: BitRate,
    /// What the link is known to carry.
    good: BitRate,
    /// What is sent.
    rate: BitRate,
    phase: Phase,
    hold: Duration,
    measure: Measure,
    jitter: Jitter,
    losses: Losses,
    /// The link drops what exceeds its rate, and does not queue it.
    policed: bool,
    /// A trial has just shown that the losses before it were the rate's.
    caused: bool,
    /// When a trial may begin, and how long after it the next, if this one shows nothing.
    trial_at: Instant,
    trial_pause: Duration,
    /// Packets from this number on left at no less than what was good: where their delay falls,
    /// it falls by itself.
    undisturbed_from: u64,
    /// The newest packet that reports told of.
    told: u64,
    /// The first mark that shows what the rate in force does.
    judged: Option<Mark>,
    /// An outage has taken what left before: the busy time of the line begins anew.
    dark: bool,
    after: After,
    /// What the link carried before the step that is being drained, if it was one.
    carried: BitRate,
    /// What was good before the first step.
    proven: BitRate,
    /// A step was good and the next too large: the link rises, or lies between. The next probe
    /// does not wait and begins with the second step.
    rising: bool,
    /// The rate that made a queue last: the link carries less.
    exceeded: BitRate,
    /// Packets from this number on show what the rate in force does.
    judge_from: u64,
    /// Where the busy time of the line began that is being drained.
    busy_from: Mark,
    /// The newer half of that time.
    newer_from: Mark,
    /// When the last drain ended, and what the line carried then.
    fell: Option<(Instant, BitRate)>,
    /// By so much the line's rate falls, in bit/s each second.
    falling: u64,
    /// The queueing delay for which the rate was lowered last, and the highest since.
    lowered_for: Duration,
    worst: Duration,
    /// It stood as it was when its backlog should have gone.
    undrained: bool,
    /// Losses of the link itself, measured while there is no queue, in parts per million.
    link_loss_ppm: u64,
    /// The most that was good lately.
    best: [BitRate; 2],
    best_since: Instant,
    delivery: BitRate,
    /// Half of the rate until the first report: the outage was long.
    halved: bool,
}

impl Rate {
    pub fn new(mode: RateMode, cap: BitRate) -> Rate {
        Rate {
            mode,
            cap,
            good: cap,
            rate: cap,
            phase: Phase::Hold { until: Instant::ZERO },
            hold: Duration::ZERO,
            measure: Measure::new(),
            jitter: Jitter::default(),
            losses: Losses::new(),
            policed: false,
            caused: false,
            trial_at: Instant::ZERO,
            trial_pause: FIRST_TRIAL_PAUSE,
            undisturbed_from: 0,
            told: 0,
            fell: None,
            falling: 0,
            newer_from: Mark::default(),
            judged: None,
            dark: false,
            after: After::default(),
            carried: BitRate::from_bps(0),
            proven: BitRate::from_bps(0),
            rising: false,
            exceeded: cap,
            judge_from: 0,
            busy_from: Mark::default(),
            lowered_for: Duration::ZERO,
            worst: Duration::ZERO,
            undrained: false,
            link_loss_ppm: 0,
            best: [BitRate::from_bps(0); 2],
            best_since: Instant::ZERO,
            delivery: BitRate::from_bps(0),
            halved: false,
        }
    }

    /// The same for a new session with the peer: what the link carries is still known,
    /// the peer's clock is another.
    pub fn renewed(&self) -> Rate {
        let (good, policed) = (self.good, self.policed);
        Rate { good, rate: good, policed, ..Rate::new(self.mode, self.cap) }
    }

    /// The rate to send at.
    pub fn rate(&self) -> BitRate {
        if self.halved { BitRate::from_bps(self.rate.as_bps() / 2) } else { self.rate }
    }

    pub fn status(&self) -> RateStatus {
        RateStatus {
            mode: self.mode,
            cap: self.cap,
            rate: self.rate(),
            capacity: self.good,
            delivery: self.delivery,
            queueing: self.measure.queueing(),
        }
    }

    /// Another mode, by the configuration.
    pub fn set_mode(&mut self, mode: RateMode) {
        self.mode = mode;
    }

    /// The configured or reported rate is another: it is believed at once.
    pub fn set_cap(&mut self, cap: BitRate, next_number: u64) {
        if cap == self.cap {
            return;
        }
        (self.cap, self.good, self.rate) = (cap, cap, cap);
        self.hold = Duration::ZERO;
        self.policed = false;
        self.after = After::default();
        self.phase = Phase::Hold { until: Instant::ZERO };
        self.judge_anew(next_number);
    }

    /// The peer is heard again after `silence`: the last good rate is taken up, half of it
    /// after a long time.
    pub fn on_return(&mut self, silence: Duration, next_number: u64) {
        self.rate = self.good;
        self.halved = silence >= LONG_OUTAGE;
        self.after = After::default();
        self.phase = Phase::Hold { until: Instant::ZERO };
        self.judge_anew(next_number);
        self.measure.forget_marks();
        self.jitter.interrupt();
    }

    /// What was known of the link is not believed any more: it is tried at `rate`.
    pub fn try_again(&mut self, rate: BitRate, next_number: u64) {
        (self.good, self.rate) = (rate, rate);
        (self.halved, self.policed, self.rising) = (false, false, false);
        self.hold = Duration::ZERO;
        self.after = After::default();
        self.phase = Phase::Hold { until: Instant::ZERO };
        self.judge_anew(next_number);
        self.measure.forget_marks();
        self.jitter.interrupt();
    }

    /// Are the losses that are being reported caused by the rate?
    pub fn causes_losses(&self) -> bool {
        match self.phase {
            Phase::Hold { .. } | Phase::Drain { .. } | Phase::Dark => {
                self.policed && self.told < self.judge_from
            }
            Phase::Probe { .. } => self.policed,
            Phase::Trial { .. } => true,
        }
    }

    /// Answers once, after a trial, whether the losses before were caused by the rate.
    pub fn take_caused(&mut self) -> bool {
        std::mem::take(&mut self.caused)
    }

    /// What leaves from here on shows what the rate does.
    fn judge_anew(&mut self, next_number: u64) {
        self.judge_from = next_number;
        self.judged = None;
        self.losses.forget();
    }

    /// When the rate changes by itself.
    pub fn poll_timeout(&self) -> Option<Instant> {
        match self.phase {
            Phase::Drain { until } => Some(until),
            _ => None,
        }
    }

    /// Ends a drain whose time has come.
    pub fn handle_timeout(&mut self, now: Instant, rtt: Duration, next_number: u64) {
        if let Phase::Drain { until } = self.phase
            && until <= now
        {
            if let Some(deeper) = self.deeper() {
                self.phase = Phase::Drain { until: now + deeper.times(4).divided_by(3) };
                return;
            }
            self.fell = Some((now, self.good));
            self.good = self.expected(self.good, rtt);
            self.rate = self.good;
            self.carried = BitRate::from_bps(0);
            self.after = After::default();
            self.undisturbed_from = next_number;
            let hold = self.hold.max(self.shortest_hold(rtt));
            let hold = if self.rising { Duration::ZERO } else { hold };
            self.phase = Phase::Hold { until: now + hold };
            self.judge_anew(next_number);
            self.jitter.interrupt();
        }
    }

    /// Takes a report. `sent` are the link bytes sent so far, `next_number` is that of the
    /// next packet.
    pub fn on_report(
        &mut self,
        now: Instant,
        told: &Told,
        rtt: Duration,
        sent: u64,
        next_number: u64,
    ) {
        self.handle_timeout(now, rtt, next_number);
        let state = self.measure.take(now, told);
        self.told = told.number;
        self.end_dark(now, told.number, state.queueing, rtt, next_number);
        if self.halved && told.number >= self.judge_from {
            self.halved = false;
        }
        if let Phase::Drain { .. } = self.phase {
            self.drain(now, &state, sent);
        } else if told.number >= self.undisturbed_from {
            self.jitter.on_report(now, &state, self.rate);
        }
        let packets = self.rate.time_for(ByteCount(8 * 1500));
        let spacing = rtt.divided_by(16).max(Duration::from_millis(10)).max(packets);
        if self.measure.mark(state, spacing)
            && let Some(window) = self.measure.window()
        {
            self.judge(now, &window, rtt, sent, next_number);
        }
    }

    /// A queue that is one.
    fn threshold(&self) -> Duration {
        JITTER + self.rate.time_for(ByteCount(2 * 1500))
    }

    fn judge(&mut self, now: Instant, w: &[Mark; 3], rtt: Duration, sent: u64, next_number: u64) {
        let [before, last, newest] = w;
        self.delivery = newest.delivery_rate(before);
        let threshold = self.threshold();
        if newest.queueing < threshold && !self.policed && !self.causes_losses() {
            let seen = newest.loss_ppm(last);
            self.link_loss_ppm = (self.link_loss_ppm * 15 + seen.min(500_000)) / 16;
        }
        let sending = newest.sending_rate(before);
        // A sender that pauses does not show what the link carries.
        let busy = sending.as_bps() / 3 >= self.least_sent().as_bps() / 4;
        if let Phase::Probe { since, .. } = &mut self.phase
            && !busy
            && before.number >= self.judge_from
        {
            *since = now;
        }
        match self.phase {
            Phase::Drain { .. } => {
                self.move_busy(newest, rtt);
            }
            Phase::Hold { .. } if newest.number < self.judge_from => {
                self.correct(newest, rtt, next_number);
            }
            _ => {}
        }
        if let Phase::Trial { .. } = self.phase
            && !busy
        {
            // It shows nothing.
            self.rate = self.good;
            self.phase = Phase::Hold { until: now };
            self.judge_anew(next_number);
        }
        if !busy || matches!(self.phase, Phase::Drain { .. }) {
            self.jitter.interrupt();
            self.losses.forget();
            self.judged = None;
            return;
        }
        if before.number >= self.undisturbed_from {
            self.jitter.on_mark(newest, threshold);
        }
        if before.number < self.judge_from {
            if let Phase::Probe { .. } = self.phase
                && self.jitter.height() == Duration::ZERO
                && last.queueing.min(newest.queueing) > threshold
            {
                // What was good before the step has become too much.
                self.hold = Duration::ZERO;
                self.rising = false;
                self.lower(now, w, (last.queueing.min(newest.queueing), *last), rtt, sent);
            }
            return;
        }
        if newest.queueing < threshold.divided_by(2) {
            // What was let go has gone.
            self.lowered_for = Duration::ZERO;
            self.undrained = false;
        }
        let judged = *self.judged.get_or_insert(*before);
        let regular = self.losses.on_mark(newest);
        let (queueing, busy_from) = self.jitter.standing(last, newest);
        // Where there is jitter half a queue is none.
        let half =
            if self.jitter.height() > Duration::ZERO { threshold } else { threshold.divided_by(2) };
        match self.phase {
            _ if queueing > threshold && !matches!(self.phase, Phase::Probe { .. }) => {
                self.note_best(now);
                self.on_queue(now, w, (queueing, busy_from), sending, rtt, sent);
            }
            Phase::Hold { until } => {
                self.note_best(now);
                let suspicion = regular.or_else(|| self.losses_of_policer(&judged, newest));
                if let Some(regular) = suspicion.filter(|_| now >= self.trial_at) {
                    self.attempt(regular, next_number);
                } else if self.rate < self.cap && until <= now && self.after.half_until.is_none() {
                    if queueing <= half {
                        let step = self.first_step(rtt).max(usize::from(self.rising));
                        self.proven = self.good;
                        self.rising = false;
                        self.step(now, step, next_number);
                    } else if self.is_undrained(w, queueing, sending) && self.stood_before() {
                        self.accept(queueing);
                    } else {
                        self.lower(now, w, (queueing, busy_from), rtt, sent);
                    }
                }
            }
            Phase::Probe { since, step } => {
                if queueing > half {
                    self.rising = self.good > self.proven && !self.policed;
                    if step == self.first_step(rtt) {
                        self.lengthen_hold(rtt);
                    } else {
                        self.hold = Duration::ZERO;
                    }
                    self.carried = self.good;
                    self.lower(now, w, (queueing, busy_from), rtt, sent);
                } else if self.policed && self.is_too_much(&judged, newest) {
                    self.give_way(now, newest.delivery_rate(before), rtt, next_number);
                } else if now.since(since) >= self.evident_after(rtt, step)
                    && (!self.policed || is_enough(&judged, newest, step))
                {
                    self.good = self.rate;
                    self.note_best(now);
                    if self.rate < self.cap {
                        let most =
                            if self.policed { 1 } else { largest_step(rtt, PROBE_QUEUE).max(1) };
                        self.step(now, (step + 1).min(most), next_number);
                    } else {
                        self.hold = Duration::ZERO;
                        self.policed = false;
                        self.phase = Phase::Hold { until: now };
                    }
                }
            }
            Phase::Trial { lost_ppm } => {
                self.judge_trial(now, lost_ppm, &judged, newest, rtt, next_number);
            }
            Phase::Drain { .. } | Phase::Dark => {}
        }
    }

    // ---- losses that the rate causes --------------------------------------------------

    /// Sends what came through lately, to see whether losses go.
    fn attempt(&mut self, regular: Regular, next_number: u64) {
        self.rate = below(regular.delivery).min(self.good);
        self.phase = Phase::Trial { lost_ppm: regular.ppm };
        self.judge_anew(next_number);
    }

    fn judge_trial(
        &mut self,
        now: Instant,
        lost_ppm: u64,
        judged: &Mark,
        newest: &Mark,
        rtt: Duration,
        next_number: u64,
    ) {
        let packets = newest.number.saturating_sub(judged.number);
        if packets * lost_ppm < TRIAL_LOSSES * 1_000_000 {
            return;
        }
        let left = newest.loss_ppm(judged);
        if left < lost_ppm / 2 {
            self.good = self.rate;
            self.link_loss_ppm = left;
            (self.policed, self.caused) = (true, true);
            self.trial_pause = FIRST_TRIAL_PAUSE;
            self.hold = Duration::ZERO;
            self.lengthen_hold(rtt);
        } else {
            // The link itself loses that many.
            self.rate = self.good;
            self.link_loss_ppm = left.min(500_000);
            self.trial_at = now + self.trial_pause;
            self.trial_pause = self.trial_pause.times(2).min(LONGEST_TRIAL_PAUSE);
        }
        self.phase = Phase::Hold { until: now + self.hold.max(self.shortest_hold(rtt)) };
        self.judge_anew(next_number);
    }

    /// Is more lost since `judged` than the link itself loses?
    fn is_too_much(&self, judged: &Mark, newest: &Mark) -> bool {
        let packets = newest.number.saturating_sub(judged.number);
        let expected = packets * self.link_loss_ppm / 1_000_000;
        let lost = judged.lost_packets(newest).max(0).unsigned_abs();
        lost > expected + packets / 100 && lost > expected + 4 + 3 * (expected + 1).isqrt()
    }

    /// More is lost at a rate that a policer let pass.
    fn losses_of_policer(&mut self, judged: &Mark, newest: &Mark) -> Option<Regular> {
        let lost_ppm = newest.loss_ppm(judged);
        if self.policed
            && self.is_too_much(judged, newest)
            && lost_ppm > self.link_loss_ppm + 20_000
        {
            return Some(Regular { ppm: lost_ppm, delivery: newest.delivery_rate(judged) });
        }
        if newest.number.saturating_sub(judged.number) > SPAN {
            self.judged = Some(*newest);
        }
        None
    }

    /// A step is dropped: back to what comes through, or what did before.
    fn give_way(&mut self, now: Instant, coming: BitRate, rtt: Duration, next_number: u64) {
        self.good = below(coming).min(self.good).max(self.proven);
        self.rate = self.good;
        self.lengthen_hold(rtt);
        self.phase = Phase::Hold { until: now + self.hold.max(self.shortest_hold(rtt)) };
        self.judge_anew(next_number);
    }

    // ---- probes -------------------------------------------------------------------------

    /// The first step: the largest that makes no queue of more than jitter in the time until
    /// it is noticed.
    fn first_step(&self, rtt: Duration) -> usize {
        if self.policed || self.jitter.height() > Duration::ZERO {
            return 0;
        }
        if self.may_be_handed_over(rtt) && !self.after.is_eager {
            return 0;
        }
        largest_step(rtt, JITTER)
    }

    fn step(&mut self, now: Instant, step: usize, next_number: u64) {
        let more = self.good.as_bps().saturating_mul(20 + STEPS[step]) / 20;
        self.rate = BitRate::from_bps(more + 1).min(self.cap);
        self.phase = Phase::Probe { since: now, step };
        self.judge_anew(next_number);
    }

    /// After this a step that the link does not carry has made a queue that shows: twice
    /// what counts as one in a probe, a round trip and two marks later.
    fn evident_after(&self, rtt: Duration, step: usize) -> Duration {
        let queue = self.threshold().times(20).divided_by(STEPS[step]);
        let jitter = self.jitter.interval();
        let queue = if jitter > Duration::ZERO { queue.times(2) } else { queue };
        // What a policer passes at once must be gone before it shows, and its loss be reported.
        let policer = if self.policed { rtt + PASSED_AT_ONCE } else { Duration::ZERO };
        rtt + queue + marks(rtt) + jitter + policer
    }

    /// The shortest time between probes.
    fn shortest_hold(&self, rtt: Duration) -> Duration {
        let round_trips = if self.mode == RateMode::Learned { 2 } else { 3 };
        rtt.times(round_trips).max(Duration::from_millis(400))
    }

    /// Where the rate is said to be known, probes that fail become rare, and so they do where
    /// what exceeds it is dropped.
    fn lengthen_hold(&mut self, rtt: Duration) {
        let most = match self.mode {
            RateMode::Learned if self.policed => LONGEST_POLICED_HOLD,
            RateMode::Learned if self.may_be_handed_over(rtt) => LONGEST_NEAR_HOLD,
            RateMode::Learned => Duration::ZERO,
            RateMode::Fixed | RateMode::Reported => LONGEST_HOLD,
        };
        self.hold = self.hold.times(2).max(self.shortest_hold(rtt).times(2)).min(most);
    }

    /// Does a queue stand as it was, though its backlog should have gone?
    fn is_undrained(&self, w: &[Mark; 3], queueing: Duration, sending: BitRate) -> bool {
        let [before, _, newest] = w;
        let coming = newest.delivery_rate(before).as_bps();
        self.lowered_for > Duration::ZERO
            && self.falling == 0
            && queueing.times(4) >= self.lowered_for.times(3)
            && coming * 20 >= sending.as_bps() * 19
    }

    /// Did it after the drain before, too? The backlog of one may have been taken for less than
    /// it was.
    fn stood_before(&mut self) -> bool {
        std::mem::replace(&mut self.undrained, true)
    }

    fn accept(&mut self, queueing: Duration) {
        self.measure.accept(queueing);
        self.jitter.interrupt();
        self.lowered_for = Duration::ZERO;
        self.undrained = false;
    }

    /// A queue has come up though the rate was known to be good.
    fn on_queue(
        &mut self,
        now: Instant,
        w: &[Mark; 3],
        queue: (Duration, Mark),
        sending: BitRate,
        rtt: Duration,
        sent: u64,
    ) {
        let [before, _, newest] = w;
        let coming = newest.delivery_rate(before).as_bps();
        let steady = coming * 20 >= sending.as_bps() * 17;
        // Either it stands as it was; or it creeps up again and again, because somebody else
        // takes what is given up.
        let squeezed = self.good.as_bps() * YIELD <= self.recent_best().as_bps();
        let stands = self.is_undrained(w, queue.0, sending) && self.stood_before();
        if stands || steady && squeezed && self.falling == 0 {
            return self.accept(queue.0);
        }
        self.hold = Duration::ZERO;
        self.rising = false;
        self.lower(now, w, queue, rtt, sent);
    }

    /// Goes to what the link delivers, and below it until the backlog is sent.
    fn lower(
        &mut self,
        now: Instant,
        w: &[Mark; 3],
        (queueing, busy_from): (Duration, Mark),
        rtt: Duration,
        sent: u64,
    ) {
        let [before, last, newest] = *w;
        (self.busy_from, self.newer_from) = (busy_from, newest);
        self.lowered_for = queueing;
        self.worst = newest.queueing;
        self.exceeded = self.rate.max(self.good);
        // A few reports tell of repairs by fits and starts: the more favourable span counts.
        let longer = self.line_rate_since(&before, &newest);
        self.good = self.line_rate(&newest).max(longer);
        self.falling = self.slope(now, rtt);
        self.phase = Phase::Drain { until: now };
        self.jitter.interrupt();
        self.set_drain(now, &newest, sent, newest.loss_ppm(&last) > self.link_loss_ppm + 50_000);
    }

    /// What the line carries, by what came through since it became busy. What may be jitter's
    /// doing is not held against it.
    fn line_rate(&self, newest: &Mark) -> BitRate {
        self.line_rate_since(&self.busy_from, newest)
    }

    fn line_rate_since(&self, earlier: &Mark, newest: &Mark) -> BitRate {
        let coming = newest.delivery_rate_after(earlier, self.jitter.height()).as_bps();
        let whole = coming as u128 * 1_000_000 / u128::from(1_000_000 - self.link_loss_ppm);
        // The rest of a rounding must not make a queue.
        let whole = whole - whole / 128;
        let line = BitRate::from_bps(u64::try_from(whole).unwrap_or(u64::MAX).max(1_000));
        // What was carried before a step is known better than by these few packets.
        let known = line.as_bps() / 15 >= self.carried.as_bps() / 16;
        let line = if known { line.max(self.carried) } else { line };
        line.min(self.exceeded)
    }

    /// Of a long time what the line carries is told by the newer part, and so is whether it
    /// still falls. Answers whether that part is another.
    fn move_busy(&mut self, newest: &Mark, rtt: Duration) -> bool {
        let packets = self.good.time_for(ByteCount(64 * 1500));
        let span = rtt.divided_by(2).max(Duration::from_millis(100)).max(packets);
        let span = span.max(self.jitter.height().times(8));
        let moves = newest.arrival > self.newer_from.arrival + span.as_nanos();
        if moves {
            let [was, is] = [
                self.newer_from.delivery_rate(&self.busy_from),
                newest.delivery_rate(&self.newer_from),
            ];
            if self.falling > 0 && self.newer_from.arrival > self.busy_from.arrival {
                let time = newest.arrival - self.busy_from.arrival;
                let less = was.as_bps().saturating_sub(is.as_bps());
                self.falling = a_second(less, Duration::from_nanos(time / 2)).max(1);
            }
            (self.busy_from, self.newer_from) = (self.newer_from, *newest);
        }
        moves
    }

    /// The drain of a rate that fell is over, and its queue still shows. If the line does not
    /// fall as it was expected to, what it carries is known from that.
    fn correct(&mut self, newest: &Mark, rtt: Duration, next_number: u64) {
        let stands = newest.queueing > self.threshold();
        if self.falling == 0 || !stands || !self.move_busy(newest, rtt) {
            return;
        }
        let good = self.line_rate(newest);
        let expected = self.expected(good, rtt);
        if expected > self.good {
            (self.good, self.rate) = (expected, expected);
            self.judge_anew(next_number);
        }
    }

    /// By how much the line's rate falls: a queue came up soon after the last one was drained,
    /// and less comes through than then.
    fn slope(&self, now: Instant, rtt: Duration) -> u64 {
        let Some((then, was)) = self.fell else { return 0 };
        let (was, is, time) = (was.as_bps(), self.good.as_bps(), now.since(then));
        if time > rtt.times(TREND_RTTS) || is / 9 >= was / 10 {
            return 0;
        }
        a_second(was - is, time)
    }

    /// What the line will carry when it gets what leaves from now on, and until more is known.
    fn expected(&self, good: BitRate, rtt: Duration) -> BitRate {
        let ahead = rtt.times(AHEAD_RTTS);
        let less = BitRate::from_bps(self.falling.max(1)).bytes_in(ahead).0 * 8;
        let good = good.as_bps();
        BitRate::from_bps(good - less.min(good / 2))
    }

    /// More is known while the backlog is sent.
    fn drain(&mut self, now: Instant, state: &Mark, sent: u64) {
        if std::mem::take(&mut self.dark) {
            (self.busy_from, self.newer_from) = (*state, *state);
        }
        self.worst = self.worst.max(state.queueing);
        let least = Duration::from_millis(20) + self.jitter.height().times(8);
        let long_enough = state.arrival > self.busy_from.arrival + least.as_nanos();
        if state.queueing > self.threshold() && long_enough {
            self.good = self.line_rate(state);
        }
        let overflowing = state.loss_ppm(&self.busy_from) > self.link_loss_ppm + 50_000;
        self.set_drain(now, state, sent, overflowing);
    }

    fn set_drain(&mut self, now: Instant, state: &Mark, sent: u64, overflowing: bool) {
        if self.after.goes_deeper {
            return;
        }
        let line = self.good;
        let mut backlog = state.backlog(now, sent, line);
        if overflowing {
            // What does not fit into the queue is not in it.
            backlog = backlog.min(line.bytes_in(self.worst));
        }
        let time = line.time_for(backlog);
        self.rate = BitRate::from_bps((line.as_bps() / 4).max(1));
        // A quarter of the line's time is still used.
        self.phase = Phase::Drain { until: now + time.times(4).divided_by(3) };
    }

    fn note_best(&mut self, now: Instant) {
        if now.since(self.best_since) >= LATELY {
            self.best = [self.best[1], BitRate::from_bps(0)];
            self.best_since = now;
        }
        self.best[1] = self.best[1].max(self.good);
    }

    fn recent_best(&self) -> BitRate {
        self.best[0].max(self.best[1])
    }
}

fn a_second(bps: u64, time: Duration) -> u64 {
    let a_second = u128::from(bps) * 1_000_000_000 / u128::from(time.as_nanos().max(1));
    u64::try_from(a_second).unwrap_or(u64::MAX)
}

/// What two marks take, and their report.
fn marks(rtt: Duration) -> Duration {
    rtt.divided_by(8).max(Duration::from_millis(20))
}

/// The largest step whose queue is no longer than `queue` until it is noticed.
fn largest_step(rtt: Duration, queue: Duration) -> usize {
    let noticed = rtt + marks(rtt);
    STEPS.iter().rposition(|step| noticed.times(*step) <= queue.times(20)).unwrap_or(0)
}

/// A little less: a policer has no room for what a rounding adds.
fn below(rate: BitRate) -> BitRate {
    BitRate::from_bps((rate.as_bps() - rate.as_bps() / 64).max(1_000))
}

/// Would the step have lost enough to show, if the link did not carry it?
fn is_enough(judged: &Mark, newest: &Mark, step: usize) -> bool {
    newest.number.saturating_sub(judged.number) * STEPS[step] >= PROBE_LOSSES * 20
}
