//! The sending rate (R-RATE). One controller for every mode: it starts at the
//! configured rate, which is also the most, and follows what the link carries.
//!
//! - Loss alone changes nothing. A *queue* does: packets that take longer than the
//!   fastest ones lately, by more than jitter, for some time. While a queue stands the
//!   line is busy, so what comes through is what it carries: the **delivery rate**.
//! - On a queue the rate becomes the delivery rate, and stays below it for as long as it
//!   takes to send the backlog, which is known: what was sent, less what the line took.
//! - Below the configured rate the controller **probes**: a little more for a round trip,
//!   and when no queue appears again more, in growing steps.
//!
//! Both ends of the scale meet: a link that is configured right never queues and is never
//! slowed, and its first packet leaves at the full rate.

mod measure;

use units::{BitRate, ByteCount, Duration, Instant};

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
/// the 11 ms that a departure clock may make good at once.
const JITTER: Duration = Duration::from_millis(20);
/// Steps of a probe, in twentieths of the rate; the last is repeated.
const STEPS: [u64; 4] = [1, 3, 8, 20];
/// An outage is long when the link may have become another one.
const LONG_OUTAGE: Duration = Duration::from_secs(60);
/// The longest time between probes where the rate is said to be known.
const LONGEST_HOLD: Duration = Duration::from_secs(60);
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
    /// Packets from this number on show what the rate in force does.
    judge_from: u64,
    /// Where the busy time of the line began that is being drained.
    busy_from: Mark,
    /// The queueing delay for which the rate was lowered last, and the highest since.
    lowered_for: Duration,
    worst: Duration,
    /// Losses while there is no queue, in parts per million: the sky's.
    sky_ppm: u64,
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
            judge_from: 0,
            busy_from: Mark::default(),
            lowered_for: Duration::ZERO,
            worst: Duration::ZERO,
            sky_ppm: 0,
            best: [BitRate::from_bps(0); 2],
            best_since: Instant::ZERO,
            delivery: BitRate::from_bps(0),
            halved: false,
        }
    }

    /// The same for a new session with the peer: what the link carries is still known,
    /// the peer's clock is another.
    pub fn renewed(&self) -> Rate {
        Rate { good: self.good, rate: self.good, ..Rate::new(self.mode, self.cap) }
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
        self.phase = Phase::Hold { until: Instant::ZERO };
        self.judge_from = next_number;
    }

    /// The peer is heard again after `silence`: the last good rate is taken up, half of it
    /// after a long time.
    pub fn on_return(&mut self, silence: Duration, next_number: u64) {
        self.rate = self.good;
        self.halved = silence >= LONG_OUTAGE;
        self.phase = Phase::Hold { until: Instant::ZERO };
        self.judge_from = next_number;
        self.measure.forget_marks();
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
            self.rate = self.good;
            self.phase = Phase::Hold { until: now + self.hold.max(shortest_hold(rtt)) };
            self.judge_from = next_number;
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
        if self.halved && told.number >= self.judge_from {
            self.halved = false;
        }
        if let Phase::Drain { .. } = self.phase {
            self.drain(now, &state, sent);
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
        if newest.queueing < threshold {
            let seen = newest.loss_ppm(last);
            self.sky_ppm = (self.sky_ppm * 15 + seen.min(500_000)) / 16;
        }
        let sending = newest.sending_rate(before);
        // A sender that pauses does not show what the link carries.
        let busy = sending.as_bps() / 3 >= self.rate.as_bps() / 4;
        if let Phase::Probe { since, .. } = &mut self.phase
            && !busy
        {
            *since = now;
        }
        if before.number < self.judge_from || !busy || matches!(self.phase, Phase::Drain { .. }) {
            return;
        }
        let queueing = newest.queueing.min(last.queueing);
        match self.phase {
            Phase::Hold { until } => {
                self.note_best(now);
                if queueing > threshold {
                    self.on_queue(now, w, queueing, sending, sent);
                } else if self.rate < self.cap && until <= now {
                    if queueing > threshold.divided_by(2) {
                        self.lower(now, w, queueing, sent);
                    } else {
                        self.step(now, 0, next_number);
                    }
                }
            }
            Phase::Probe { since, step } => {
                if queueing > threshold.divided_by(2) {
                    if step == 0 {
                        self.lengthen_hold(rtt);
                    } else {
                        self.hold = Duration::ZERO;
                    }
                    self.lower(now, w, queueing, sent);
                } else if now.since(since) >= self.evident_after(rtt, step) {
                    self.good = self.rate;
                    self.note_best(now);
                    if self.rate < self.cap {
                        self.step(now, (step + 1).min(STEPS.len() - 1), next_number);
                    } else {
                        self.hold = Duration::ZERO;
                        self.phase = Phase::Hold { until: now };
                    }
                }
            }
            Phase::Drain { .. } => {}
        }
    }

    fn step(&mut self, now: Instant, step: usize, next_number: u64) {
        let more = self.good.as_bps().saturating_mul(20 + STEPS[step]) / 20;
        self.rate = BitRate::from_bps(more + 1).min(self.cap);
        self.phase = Phase::Probe { since: now, step };
        self.judge_from = next_number;
    }

    /// After this a step that the link does not carry has made a queue that shows: twice
    /// what counts as one in a probe, a round trip and two marks later.
    fn evident_after(&self, rtt: Duration, step: usize) -> Duration {
        let marks = rtt.divided_by(8).max(Duration::from_millis(20));
        rtt + self.threshold().times(20).divided_by(STEPS[step]) + marks
    }

    /// Where the rate is said to be known, probes that fail become rare.
    fn lengthen_hold(&mut self, rtt: Duration) {
        self.hold = match self.mode {
            RateMode::Learned => Duration::ZERO,
            RateMode::Fixed | RateMode::Reported => {
                self.hold.times(2).max(shortest_hold(rtt).times(2)).min(LONGEST_HOLD)
            }
        };
    }

    /// A queue has come up though the rate was known to be good.
    fn on_queue(
        &mut self,
        now: Instant,
        w: &[Mark; 3],
        queueing: Duration,
        sending: BitRate,
        sent: u64,
    ) {
        let [before, _, newest] = w;
        let coming = newest.delivery_rate(before).as_bps();
        let steady = coming * 20 >= sending.as_bps() * 17;
        // Either it stands as it was, though its backlog should have gone; or it creeps up
        // again and again, because somebody else takes what is given up.
        let undrained = self.lowered_for > Duration::ZERO
            && queueing.times(4) >= self.lowered_for.times(3)
            && coming * 20 >= sending.as_bps() * 19;
        let squeezed = self.good.as_bps() * YIELD <= self.recent_best().as_bps();
        if undrained || steady && squeezed {
            self.measure.accept(queueing);
            self.lowered_for = Duration::ZERO;
            return;
        }
        self.hold = Duration::ZERO;
        self.lower(now, w, queueing, sent);
    }

    /// Goes to what the link delivers, and below it until the backlog is sent.
    fn lower(&mut self, now: Instant, w: &[Mark; 3], queueing: Duration, sent: u64) {
        let [_, last, newest] = *w;
        self.busy_from = last;
        self.lowered_for = queueing;
        self.worst = newest.queueing;
        let line = self.line_rate(&newest);
        self.good = line.min(self.rate);
        self.phase = Phase::Drain { until: now };
        self.set_drain(now, &newest, sent, newest.loss_ppm(&last) > self.sky_ppm + 50_000);
    }

    /// What the line carries, by what came through since it became busy.
    fn line_rate(&self, newest: &Mark) -> BitRate {
        let coming = newest.delivery_rate(&self.busy_from).as_bps();
        let whole = coming as u128 * 1_000_000 / u128::from(1_000_000 - self.sky_ppm);
        // The rest of a rounding must not make a queue.
        let whole = whole - whole / 128;
        BitRate::from_bps(u64::try_from(whole).unwrap_or(u64::MAX).max(1_000)).min(self.cap)
    }

    /// More is known while the backlog is sent.
    fn drain(&mut self, now: Instant, state: &Mark, sent: u64) {
        self.worst = self.worst.max(state.queueing);
        let long_enough = state.arrival > self.busy_from.arrival + 20_000_000;
        if state.queueing > self.threshold() && long_enough {
            self.good = self.line_rate(state);
        }
        let overflowing = state.loss_ppm(&self.busy_from) > self.sky_ppm + 50_000;
        self.set_drain(now, state, sent, overflowing);
    }

    fn set_drain(&mut self, now: Instant, state: &Mark, sent: u64, overflowing: bool) {
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

fn shortest_hold(rtt: Duration) -> Duration {
    rtt.times(3).max(Duration::from_millis(500))
}
