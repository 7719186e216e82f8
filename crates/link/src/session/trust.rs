//! The record of a path: whether it is used while it works (L-PT-10, L-PT-11, L-PT-16). One that
//! failed is left alone until it has held, and one that lost much or became thin until it has shown
//! that it carries again.

use units::{Duration, Instant};

use crate::rate::{Rate, RateMode};
use crate::sent::{Sent, SentCounts};

/// A path that failed is used again when nothing spoke against it for so long, and for twice as
/// long after each further failure ...
const FIRST_HOLD: Duration = Duration::from_secs(2);
/// ... up to 2^7 times as long: four minutes.
const MOST_DOUBLINGS: u32 = 7;
/// After so long without a failure, and as long as it was left alone, the next is the first.
const FORGOTTEN: Duration = Duration::from_secs(60);
/// Losses by so many at least, for which up to so many of these times are waited; what it carries
/// is believed where so many are told of,
const ENOUGH: u64 = 64;
const MOST_WINDOWS: u64 = 8;
const FEW: u64 = 8;
/// twice in a row.
const POOR_WINDOWS: u32 = 2;
/// It is poor where it loses so many parts per million, or carries less than half of its rate.
pub(super) const POOR_PPM: u64 = 150_000;
pub(super) const MILLION: u64 = 1_000_000;
/// One in so many may be lost by accident, and by chance more.
const ACCIDENTS: u64 = 10;

/// What became of a trial.
#[derive(Clone, Copy, Debug)]
pub(super) enum Trial {
    /// Packets that carry nothing leave until then; what was told of others before is no part of
    /// it.
    Sending(Instant, SentCounts),
    /// Then all that left has been told of.
    Waiting(Instant, SentCounts),
}

/// What is judged together.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    /// What the path carries is looked at in windows of time.
    began: Instant,
    /// Losses since then, when this was known of packets, and so many were under way.
    lost_since: Instant,
    before: SentCounts,
    in_flight: u64,
}

impl Window {
    fn begin(now: Instant, sent: &Sent) -> Window {
        let (before, in_flight) = (sent.counts, sent.in_flight() as u64);
        Window { began: now, lost_since: now, before, in_flight }
    }
}

/// The record of a path.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Trust {
    /// It was alive when it was last looked at.
    works: bool,
    /// It failed, and has not come back since.
    failed: bool,
    /// Failures in a row.
    failures: u32,
    /// Until then something spoke against it.
    bad_until: Instant,
    /// It failed by what it carried, and is to show that it does better.
    poor: bool,
    pub trial: Option<Trial>,
    window: Window,
    /// Windows in a row in which it was poor.
    poor_windows: u32,
    /// The most that it carried lately, in bits per second.
    most: u64,
    /// Parts per million that were lost in the last one.
    lost_ppm: u64,
}

impl Trust {
    /// The same in a new session.
    pub fn renewed(&self) -> Trust {
        let (failed, poor) = (self.failed || self.works, self.poor);
        let (failures, bad_until) = (self.failures, self.bad_until);
        Trust { failed: failed && failures > 0, failures, bad_until, poor, ..Trust::default() }
    }

    fn hold(&self) -> Duration {
        FIRST_HOLD.times(1 << self.failures.saturating_sub(1).min(MOST_DOUBLINGS))
    }

    /// Until when it is left alone although it works.
    pub fn held_until(&self) -> Option<Instant> {
        (self.failures > 0).then(|| self.bad_until + self.hold())
    }

    /// Is it left alone?
    pub fn is_held(&self, now: Instant) -> bool {
        self.poor || self.held_until().is_some_and(|t| t > now)
    }

    /// Is it left alone for what it carries?
    pub fn is_poor(&self) -> bool {
        self.poor
    }

    fn fail(&mut self, now: Instant) {
        let forgiven = self.held_until().map(|t| t + FORGOTTEN.max(self.hold()));
        if forgiven.is_some_and(|t| t <= now) {
            self.failures = 0;
        }
        self.failures += 1;
        self.bad_until = now;
        (self.trial, self.poor_windows) = (None, 0);
    }

    /// So many packets were lost, of so many, if these are enough; and so much should be carried,
    /// and is. `is_old`: it has not been known for long how many are lost.
    fn judge(&mut self, losses: Option<(u64, u64)>, (most, capacity): (u64, u64), is_old: bool) {
        if let Some((lost, told)) = losses {
            self.lost_ppm = lost * MILLION / told;
        }
        let is_thin = |share: u64| capacity < most / (2 * share);
        let is_poor = losses.is_some_and(is_lossy) || is_thin(1);
        // What is twice as thin needs no second look. Losses do: those of a second may be told of
        // together.
        let windows = u32::from(is_poor) + u32::from(is_thin(2));
        if windows > 0 {
            self.poor_windows += windows;
        } else if losses.is_some() || is_old {
            self.poor_windows = 0;
        }
    }

    /// Looks whether the path works. `wanted`: both nodes want it used. If it came back it may
    /// have been back for `hidden` without being noticed.
    pub fn see(&mut self, now: Instant, works: bool, wanted: bool, hidden: Duration) {
        if std::mem::replace(&mut self.works, works) == works {
            return;
        }
        if !works && wanted {
            self.failed = true;
            self.fail(now);
        }
        if works && std::mem::take(&mut self.failed) {
            self.bad_until = self.bad_until.max(now - hidden);
        }
    }

    /// It carries everything from now on: what it did before says nothing of that.
    pub fn begin_to_weigh(&mut self, now: Instant, sent: &Sent) {
        self.window = Window::begin(now, sent);
        self.poor_windows = 0;
    }

    /// Is so little of what leaves told to arrive that another path may be better? What is told of
    /// within `time` is judged together.
    pub fn weigh(&mut self, now: Instant, time: Duration, sent: &Sent, rate: &Rate) -> bool {
        let Window { began, lost_since, before, in_flight } = self.window;
        if now.since(began) >= time {
            self.window.began = now;
            let (lost, told) = losses(&sent.counts, &before);
            // Losses are told of later than arrivals: where less leaves than is told of, as at the
            // end of a transfer, they seem to be more.
            let left = (told + sent.in_flight() as u64).saturating_sub(in_flight);
            let is_lossy = told >= ENOUGH && left >= told / 4 * 3;
            let is_old = now.since(lost_since) >= time.times(MOST_WINDOWS);
            let (most, capacity) = self.most_and_capacity(rate);
            let thin = (most, if told >= FEW { capacity } else { most });
            self.judge(is_lossy.then_some((lost, told)), thin, is_old);
            if told >= ENOUGH || is_old {
                self.window = Window::begin(now, sent);
            }
        }
        self.poor_windows >= POOR_WINDOWS
    }

    /// What it should carry (its rate or, where that varies, the most lately) and carries.
    fn most_and_capacity(&mut self, rate: &Rate) -> (u64, u64) {
        let rate = rate.status();
        let capacity = rate.capacity.as_bps();
        self.most = capacity.max(self.most - self.most / 16);
        let most = if rate.mode == RateMode::Learned { self.most } else { rate.cap.as_bps() };
        (most, capacity)
    }

    /// Parts per million that arrive, as far as is known.
    pub fn arriving_ppm(&self) -> u64 {
        MILLION - self.lost_ppm.min(MILLION)
    }

    /// The path is left for another that carries more.
    pub fn leave(&mut self, now: Instant) {
        self.fail(now);
        self.poor = true;
    }

    // ---- a trial ---------------------------------------------------------------

    /// When the record changes by itself, if the path works.
    pub fn timeout(&self) -> Option<Instant> {
        match self.trial {
            Some(Trial::Sending(until, _) | Trial::Waiting(until, _)) => Some(until),
            None => self.held_until(),
        }
    }

    /// Is the path poor, and has held for long enough to be tried?
    pub fn wants_trial(&self, now: Instant) -> bool {
        self.poor && self.held_until().is_none_or(|t| t <= now)
    }

    /// The trial is over. Having passed it the path is poor no more.
    pub fn end_trial(&mut self, now: Instant, passed: bool) {
        self.trial = None;
        if !passed {
            return self.fail(now);
        }
        (self.poor, self.lost_ppm, self.poor_windows) = (false, 0, 0);
    }

    /// Does a trial send?
    pub fn tries(&self, now: Instant) -> bool {
        matches!(self.trial, Some(Trial::Sending(until, _)) if until > now)
    }
}

/// Is so much lost, and more than chance makes of what may be lost by accident? A tenth of n
/// packets varies by 0.3 √n, of which this is four times.
fn is_lossy((lost, told): (u64, u64)) -> bool {
    let chance = (told * 3 / 2).isqrt();
    lost * MILLION >= told * POOR_PPM && lost >= told / ACCIDENTS + chance
}

/// What was lost since then, outages left out, and of how many packets.
pub(super) fn losses(now: &SentCounts, then: &SentCounts) -> (u64, u64) {
    let lost = |c: &SentCounts| c.lost.saturating_sub(c.in_outages);
    let lost = lost(now).saturating_sub(lost(then));
    (lost, lost + now.arrived.saturating_sub(then.arrived))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + SECOND.times(seconds)
    }

    /// Dies and comes back at these times, noticed at once.
    fn flap(trust: &mut Trust, dies: u64, returns: u64) {
        trust.see(at(dies), false, true, Duration::ZERO);
        trust.see(at(returns), true, true, Duration::ZERO);
    }

    #[test]
    fn a_path_is_held_for_twice_as_long_after_each_failure_and_is_forgiven_in_time() {
        let mut trust = Trust::default();
        trust.see(at(0), true, true, SECOND);
        assert!(!trust.is_held(at(0)), "it has not failed yet");
        let mut now = 10;
        for hold in [2, 4, 8, 16, 32, 64, 128, 256, 256] {
            flap(&mut trust, now, now + 1);
            assert!(trust.is_held(at(now + hold)), "{hold}");
            assert!(!trust.is_held(at(now + 1 + hold)), "{hold}");
            now += 1 + hold;
        }
        now += 256;
        flap(&mut trust, now, now + 1);
        assert!(!trust.is_held(at(now + 3)), "the last failure was long ago");
    }

    #[test]
    fn the_time_in_which_a_return_was_hidden_counts() {
        let mut trust = Trust::default();
        trust.see(at(0), true, true, SECOND);
        trust.see(at(5), false, true, SECOND);
        trust.see(at(30), true, true, SECOND);
        assert_eq!(trust.held_until(), Some(at(31)));
    }

    /// How many of `told` packets are lost, each with so many parts per million.
    fn draw(rng: &mut units::Rng, told: u64, ppm: u64) -> u64 {
        (0..told).filter(|_| rng.below(MILLION) < ppm).count() as u64
    }

    /// Days of windows: chance never makes a path poor that loses a tenth.
    #[test]
    fn random_losses_of_a_tenth_are_not_poor_and_of_a_third_are_soon() {
        let mut rng = units::Rng::new(17);
        for told in [ENOUGH, 100, 300, 1_000] {
            let mut trust = Trust::default();
            for window in 0..20_000 {
                trust.judge(Some((draw(&mut rng, told, 100_000), told)), (1, 1), false);
                assert!(trust.poor_windows < POOR_WINDOWS, "{told} packets, window {window}");
            }
            let mut windows = 0;
            while trust.poor_windows < POOR_WINDOWS {
                trust.judge(Some((draw(&mut rng, told, 333_000), told)), (1, 1), false);
                windows += 1;
            }
            assert!(windows <= 8, "{told} packets: {windows}");
        }
    }

    #[test]
    fn what_a_command_took_down_has_not_failed() {
        let mut trust = Trust::default();
        trust.see(at(0), true, true, SECOND);
        trust.see(at(5), false, false, SECOND);
        trust.see(at(6), true, true, SECOND);
        assert!(!trust.is_held(at(6)));
    }
}
