//! How many repair packets a tail deserves, whether losses come singly or in bursts.
//!
//! Losses are taken for those of a Markov chain with two states (Gilbert, "Capacity of a
//! burst-noise channel", 1960): in the bad one every packet is lost. The loss ratio p and the
//! mean length of bursts B say what it is: a burst goes on with q = 1 − 1/B, and losses that
//! are independent of each other are those with q = p.

use super::exact;

/// How often what is protected may still need a round trip.
const RESIDUAL: f64 = 1e-3;
/// Repairs to one tail, at most.
const MAX_TAIL: usize = 64;
/// Gaps that are believed before any was seen, and the packets missing in them.
const PRIOR: (f64, f64) = (2.0, 3.0);
/// Gaps over which the length of bursts is taken: it must follow the weather.
const MEMORY: f64 = 400.0;
/// Bursts are so much longer than by chance, or they are none: the estimate is rough.
const CLEARLY: f64 = 1.2;
/// What is longer about bursts than single losses counts so much more: of a few dozen gaps
/// the mean is a fifth off.
const DOUBT: f64 = 1.25;
/// The longest burst that is believed.
const LONGEST: f64 = 32.0;

/// How long bursts are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BurstEstimate {
    gaps: f64,
    missing: f64,
}

impl BurstEstimate {
    pub fn new() -> BurstEstimate {
        BurstEstimate { gaps: PRIOR.0, missing: PRIOR.1 }
    }

    /// In `gaps` more between packets that arrived `missing` were missing.
    pub fn observe(&mut self, gaps: u64, missing: u64) {
        self.gaps += gaps as f64;
        self.missing += missing as f64;
        if self.gaps > MEMORY {
            // However many there were: half the memory is left for what comes.
            self.missing *= MEMORY / 2.0 / self.gaps;
            self.gaps = MEMORY / 2.0;
        }
    }

    /// The losses, whose ratio is known.
    pub fn sky(&self, loss: f64) -> Sky {
        let alone = Sky::alone(loss);
        let burst = (self.missing / self.gaps).clamp(1.0, LONGEST);
        if burst <= alone.burst * CLEARLY {
            return alone;
        }
        Sky { loss, burst: alone.burst + (burst - alone.burst) * DOUBT }
    }
}

/// What losses are like.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sky {
    /// Their ratio, 0 … 0.9.
    pub loss: f64,
    /// Packets lost in a row on average, 1/(1 − loss) where they are independent.
    pub burst: f64,
}

impl Sky {
    /// Losses that are independent of each other.
    pub fn alone(loss: f64) -> Sky {
        Sky { loss, burst: 1.0 / (1.0 - loss) }
    }

    /// Do losses come in bursts?
    pub fn is_bursty(&self) -> bool {
        self.burst * (1.0 - self.loss) > CLEARLY
    }

    /// A packet is lost whose predecessor by `steps` was lost, and one whose was not.
    fn follows(&self, steps: u64) -> (f64, f64) {
        let after_loss = 1.0 - 1.0 / self.burst;
        let after_none = self.loss * (1.0 - after_loss) / (1.0 - self.loss);
        let memory = exact::power((after_loss - after_none).clamp(0.0, 1.0), steps);
        (self.loss + (1.0 - self.loss) * memory, self.loss - self.loss * memory)
    }
}

/// How many packets of a row are lost, the last of them among these or not.
struct Lost {
    bad: [f64; MAX_TAIL + 1],
    good: [f64; MAX_TAIL + 1],
    /// More than that.
    beyond: f64,
}

impl Lost {
    /// Of one packet.
    fn of_first(loss: f64) -> Lost {
        let mut lost = Lost { bad: [0.0; MAX_TAIL + 1], good: [0.0; MAX_TAIL + 1], beyond: 0.0 };
        (lost.bad[1], lost.good[0]) = (loss, 1.0 - loss);
        lost
    }

    /// Of one packet more.
    fn step(&mut self, (after_loss, after_none): (f64, f64)) {
        let mut carry = 0.0;
        for k in 0..=MAX_TAIL {
            let (bad, good) = (self.bad[k], self.good[k]);
            self.bad[k] = carry;
            self.good[k] = bad * (1.0 - after_loss) + good * (1.0 - after_none);
            carry = bad * after_loss + good * after_none;
        }
        self.beyond += carry;
    }

    fn more_than(&self, k: usize) -> f64 {
        let of = |side: &[f64]| side[k + 1..].iter().sum::<f64>();
        of(&self.bad) + of(&self.good) + self.beyond
    }
}

/// How many repair packets a tail of `sources` packets gets, each `stride` packets after the
/// one before, so that it is whole without a round trip all but once in a thousand times.
/// More is lost than repair brings back where of all of them more than the repairs are.
pub(crate) fn tail_repairs(sources: u64, sky: Sky, stride: u64) -> u32 {
    if sources == 0 || sky.loss <= 0.0 {
        return 0;
    }
    if !sky.is_bursty() {
        let fails = |repairs: &u32| binomial_tail(sources, *repairs, sky.loss);
        return (0..MAX_TAIL as u32).find(|r| fails(r) < RESIDUAL).unwrap_or(MAX_TAIL as u32);
    }
    let mut lost = Lost::of_first(sky.loss);
    let next = sky.follows(1);
    for _ in 1..sources {
        lost.step(next);
    }
    let next = sky.follows(stride);
    for repairs in 0..MAX_TAIL {
        if lost.more_than(repairs) < RESIDUAL {
            return repairs as u32;
        }
        lost.step(next);
    }
    MAX_TAIL as u32
}

/// The probability that of `sources` + `repairs` packets more than `repairs` are lost, each for
/// itself.
fn binomial_tail(sources: u64, repairs: u32, loss: f64) -> f64 {
    let packets = sources + u64::from(repairs);
    let n = packets as f64;
    // The distribution's head, from none lost on.
    let mut p = exact::power(1.0 - loss, packets);
    let mut sum = p;
    for k in 0..repairs {
        p *= (n - f64::from(k)) / f64::from(k + 1) * loss / (1.0 - loss);
        sum += p;
    }
    1.0 - sum
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bursts(loss: f64, burst: f64) -> Sky {
        Sky { loss, burst }
    }

    #[test]
    fn tails_are_repaired_by_the_losses_expected() {
        assert_eq!(tail_repairs(10, Sky::alone(0.0), 1), 0);
        assert_eq!(tail_repairs(1, Sky::alone(1e-5), 1), 0);
        // One packet and its copies.
        assert_eq!(tail_repairs(1, Sky::alone(0.01), 1), 1);
        assert_eq!(tail_repairs(1, Sky::alone(0.09), 1), 2);
        assert!((4..9).contains(&tail_repairs(15, Sky::alone(0.064), 1)));
        assert_eq!(tail_repairs(1, Sky::alone(0.9), 1), MAX_TAIL as u32);
    }

    #[test]
    fn the_chain_without_memory_is_the_binomial_distribution() {
        for (sources, loss) in [(1, 0.01), (15, 0.064), (200, 0.02), (40, 0.3)] {
            let sky = Sky::alone(loss);
            let mut lost = Lost::of_first(loss);
            (1..sources + 3).for_each(|_| lost.step(sky.follows(1)));
            let difference = lost.more_than(3) - binomial_tail(sources, 3, loss);
            assert!(difference.abs() < 1e-9, "{sources} at {loss}: {difference}");
        }
    }

    #[test]
    fn what_is_lost_in_bursts_gets_more_copies_or_copies_with_others_between() {
        // 0.01 × 0.8^n < 0.001.
        assert_eq!(tail_repairs(1, bursts(0.01, 5.0), 1), 11);
        assert_eq!(tail_repairs(1, bursts(0.01, 2.0), 1), 4);
        // 0.01 × (0.01 + 0.99 × 0.8^10)^n, nearly.
        assert_eq!(tail_repairs(1, bursts(0.01, 5.0), 10), 2);
        assert!(tail_repairs(50, bursts(0.01, 5.0), 1) > tail_repairs(50, Sky::alone(0.01), 1));
    }

    #[test]
    fn the_chain_loses_what_it_is_said_to() {
        let sky = bursts(0.02, 4.0);
        for steps in [1, 3, 50] {
            let (after_loss, after_none) = sky.follows(steps);
            let mean = sky.loss * after_loss + (1.0 - sky.loss) * after_none;
            assert!((mean - sky.loss).abs() < 1e-12, "{steps}");
        }
        let mut lost = Lost::of_first(sky.loss);
        (0..20).for_each(|_| lost.step(sky.follows(1)));
        let all = lost.bad.iter().chain(&lost.good).sum::<f64>() + lost.beyond;
        assert!((all - 1.0).abs() < 1e-9);
    }

    #[test]
    fn bursts_are_known_by_their_gaps_and_independent_losses_are_none() {
        let mut burst = BurstEstimate::new();
        burst.observe(60, 62);
        assert!(!burst.sky(0.02).is_bursty());
        for _ in 0..20 {
            burst.observe(30, 150);
        }
        let sky = burst.sky(0.02);
        assert!(sky.is_bursty() && (5.4..6.2).contains(&sky.burst), "{sky:?}");
        // Of losses of a half every other gap is longer than one.
        assert!(!BurstEstimate { gaps: 100.0, missing: 200.0 }.sky(0.5).is_bursty());
    }
}
