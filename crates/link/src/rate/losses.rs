//! Losses that the rate may cause: how regular they are.
//!
//! A policer passes what its rate allows and drops the rest: of equal numbers of packets that
//! are sent evenly it drops the same, give or take one. What noise takes of them scatters: of n
//! packets with loss p by p (1 − p) n at least, and by more where losses come in bursts. So
//! regular losses are a suspicion, for which it is worth to try a lower rate. Losses that are
//! not cost nothing.

use super::measure::Mark;
use units::BitRate;

/// Spans that are compared. With 32 of them what scatters by p (1 − p) n seems to scatter by a
/// fifth of that less than once in a million times.
const SPANS: usize = 32;
const REGULAR: u128 = 5;
/// Packets lost in each, at least: rounding is much less than what noise would do.
const LOST: i64 = 8;
/// The part of packets lost below which nothing is tried, in parts per million.
const LEAST_PPM: u64 = 30_000;

/// What was sent and lost lately, span by span.
#[derive(Clone, Debug)]
pub(super) struct Losses {
    /// Where the spans begin and end, in a ring.
    marks: [Mark; SPANS + 1],
    known: usize,
    next: usize,
}

/// Regular losses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Regular {
    /// The part that was lost, in parts per million.
    pub ppm: u64,
    /// What came through.
    pub delivery: BitRate,
}

impl Losses {
    pub fn new() -> Losses {
        Losses { marks: [Mark::default(); SPANS + 1], known: 0, next: 0 }
    }

    /// What follows is not to be compared with what was before.
    pub fn forget(&mut self) {
        (self.known, self.next) = (0, 0);
    }

    /// Takes a mark; answers what is regular about the losses up to it.
    pub fn on_mark(&mut self, mark: &Mark) -> Option<Regular> {
        if self.known > 0 && self.newest().lost_packets(mark) < LOST {
            return None;
        }
        self.marks[self.next] = *mark;
        self.next = (self.next + 1) % self.marks.len();
        self.known = (self.known + 1).min(self.marks.len());
        if self.known < self.marks.len() {
            return None;
        }
        let oldest = &self.marks[self.next];
        let ppm = mark.loss_ppm(oldest);
        (ppm >= LEAST_PPM && self.are_regular(oldest, mark))
            .then(|| Regular { ppm, delivery: mark.delivery_rate(oldest) })
    }

    fn newest(&self) -> &Mark {
        &self.marks[(self.next + SPANS) % self.marks.len()]
    }

    /// With X of N packets lost, x of n in a span: is Σ (x − n X/N)², over all spans, less than a
    /// fifth of X/N (1 − X/N) N? Both sides are taken times N².
    fn are_regular(&self, oldest: &Mark, newest: &Mark) -> bool {
        let all = i128::from(newest.number.saturating_sub(oldest.number));
        let lost = i128::from(oldest.lost_packets(newest));
        let mut scatter = 0;
        for i in 0..SPANS {
            let [from, to] = [i, i + 1].map(|i| &self.marks[(self.next + i) % self.marks.len()]);
            let sent = i128::from(to.number.saturating_sub(from.number));
            let x = i128::from(from.lost_packets(to));
            scatter += (x * all - sent * lost).pow(2).unsigned_abs();
        }
        let noise = (lost * (all - lost).max(0) * all).unsigned_abs();
        scatter * REGULAR < noise
    }
}

#[cfg(test)]
mod tests {
    use units::{Instant, Rng};

    use super::*;

    /// Marks of 50 packets of 1,500 bytes each, one a millisecond, of which `lost(number)` are
    /// lost; answers the first regular losses.
    fn regular(mut lost: impl FnMut(u64) -> bool) -> Option<Regular> {
        let (mut losses, mut mark) = (Losses::new(), Mark::default());
        for number in 1..20_000 {
            mark.number = number;
            mark.sent = Instant::from_nanos(number * 1_000_000);
            mark.arrival = number * 1_000_000;
            mark.through += 1500;
            mark.delivered += if lost(number) { 0 } else { 1500 };
            if number % 50 == 0
                && let Some(regular) = losses.on_mark(&mark)
            {
                return Some(regular);
            }
        }
        None
    }

    #[test]
    fn what_a_policer_drops_is_regular() {
        // It passes so many of a thousand.
        for passes in [100, 400, 900, 960] {
            let mut tokens = 0;
            let regular = regular(|_| {
                tokens += passes;
                let lost = tokens < 1000;
                tokens -= if lost { 0 } else { 1000 };
                lost
            });
            let regular = regular.expect("regular");
            let lost = (1000 - passes) * 1000;
            assert!((lost * 9 / 10..lost * 11 / 10).contains(&regular.ppm), "{regular:?}");
            // 12 Mbit/s are sent.
            let passed = passes * 12_000;
            let delivery = regular.delivery.as_bps();
            assert!((passed * 95 / 100..passed * 105 / 100).contains(&delivery), "{regular:?}");
        }
    }

    #[test]
    fn what_noise_and_bursts_take_is_not() {
        for seed in 0..50 {
            let mut rng = Rng::new(seed);
            for thousandths in [50, 100, 300, 600] {
                let found = regular(|_| rng.below(1000) < thousandths);
                assert!(found.is_none(), "{thousandths} of 1,000, seed {seed}: {found:?}");
            }
            let mut rng = Rng::new(seed);
            let mut bad = false;
            let found = regular(|_| {
                bad = if bad { rng.below(20) > 0 } else { rng.below(300) == 0 };
                bad
            });
            assert!(found.is_none(), "bursts, seed {seed}: {found:?}");
        }
    }

    #[test]
    fn few_losses_are_not_looked_at() {
        assert!(regular(|number| number % 50 == 0).is_none());
    }
}
