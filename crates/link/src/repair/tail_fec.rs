//! How many repair packets a tail (the last packets before a pause) gets, whether losses come
//! singly or in bursts.
//!
//! The loss model is a Markov chain with two states (Gilbert, "Capacity of a burst-noise
//! channel", 1960): in the bad state every packet is lost. Its parameters are the loss ratio p
//! and the mean burst length B. After a loss the next packet is lost with q = 1 − 1/B; where
//! losses are independent, q = p.

use super::exact;

/// The most tails that may still need a retransmission: one in a thousand.
const RESIDUAL: f64 = 1e-3;
/// The most repair packets for one tail.
const MAX_TAIL: usize = 64;
/// The estimate starts as if it had seen so many gaps, with so many packets missing in them.
const PRIOR: (f64, f64) = (2.0, 3.0);
/// Burst lengths are averaged over so many gaps: the estimate must follow the weather.
const MEMORY: f64 = 400.0;
/// Losses count as bursty only if bursts are so much longer than by chance: the estimate is
/// rough.
const CLEARLY: f64 = 1.2;
/// Scale of the excess burst length: over a few dozen gaps the mean is ±20 %.
const BURST_MARGIN: f64 = 1.25;
/// The longest burst that is believed.
const LONGEST: f64 = 32.0;

/// The mean burst length, measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BurstEstimate {
    gaps: f64,
    missing: f64,
}

impl BurstEstimate {
    pub fn new() -> BurstEstimate {
        BurstEstimate { gaps: PRIOR.0, missing: PRIOR.1 }
    }

    /// `gaps` more gaps showed, in which `missing` packets were missing.
    pub fn observe(&mut self, gaps: u64, missing: u64) {
        self.gaps += gaps as f64;
        self.missing += missing as f64;
        if self.gaps > MEMORY {
            // However many came at once, half of the weight is left for what comes.
            self.missing *= MEMORY / 2.0 / self.gaps;
            self.gaps = MEMORY / 2.0;
        }
    }

    /// The model for a known loss ratio.
    pub fn loss_model(&self, loss: f64) -> LossModel {
        let independent = LossModel::independent(loss);
        let burst = (self.missing / self.gaps).clamp(1.0, LONGEST);
        if burst <= independent.burst * CLEARLY {
            return independent;
        }
        LossModel { loss, burst: independent.burst + (burst - independent.burst) * BURST_MARGIN }
    }
}

/// A model of the link's losses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LossModel {
    /// The loss ratio, 0 … 0.9.
    pub loss: f64,
    /// Packets lost in a row on average, 1/(1 − loss) where they are independent.
    pub burst: f64,
}

impl LossModel {
    /// Losses that are independent of each other.
    pub fn independent(loss: f64) -> LossModel {
        LossModel { loss, burst: 1.0 / (1.0 - loss) }
    }

    /// Do losses come in bursts?
    pub fn is_bursty(&self) -> bool {
        self.burst * (1.0 - self.loss) > CLEARLY
    }

    /// The probability that a packet is lost if the one `steps` before it was lost, and if
    /// that one arrived.
    fn follows(&self, steps: u64) -> (f64, f64) {
        let after_loss = 1.0 - 1.0 / self.burst;
        let after_none = self.loss * (1.0 - after_loss) / (1.0 - self.loss);
        let memory = exact::power((after_loss - after_none).clamp(0.0, 1.0), steps);
        (self.loss + (1.0 - self.loss) * memory, self.loss - self.loss * memory)
    }
}

/// The distribution of losses among consecutive packets: the probability of each count, with
/// the last packet lost (`bad`) or not (`good`).
struct Lost {
    bad: [f64; MAX_TAIL + 1],
    good: [f64; MAX_TAIL + 1],
    /// The probability of more losses than [`MAX_TAIL`].
    beyond: f64,
}

impl Lost {
    /// For one packet.
    fn of_first(loss: f64) -> Lost {
        let mut lost = Lost { bad: [0.0; MAX_TAIL + 1], good: [0.0; MAX_TAIL + 1], beyond: 0.0 };
        (lost.bad[1], lost.good[0]) = (loss, 1.0 - loss);
        lost
    }

    /// For one packet more.
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
/// one before, so that all but one tail in a thousand is complete without a retransmission.
/// Repair fails if more packets are lost, sources and repairs together, than there are repairs.
pub(crate) fn tail_repairs(sources: u64, losses: LossModel, stride: u64) -> u32 {
    if sources == 0 || losses.loss <= 0.0 {
        return 0;
    }
    if !losses.is_bursty() {
        let fails = |repairs: &u32| binomial_tail(sources, *repairs, losses.loss);
        return (0..MAX_TAIL as u32).find(|r| fails(r) < RESIDUAL).unwrap_or(MAX_TAIL as u32);
    }
    let mut lost = Lost::of_first(losses.loss);
    let next = losses.follows(1);
    for _ in 1..sources {
        lost.step(next);
    }
    let next = losses.follows(stride);
    for repairs in 0..MAX_TAIL {
        if lost.more_than(repairs) < RESIDUAL {
            return repairs as u32;
        }
        lost.step(next);
    }
    MAX_TAIL as u32
}

/// The probability that more than `repairs` of `sources` + `repairs` packets are lost,
/// independently of each other.
fn binomial_tail(sources: u64, repairs: u32, loss: f64) -> f64 {
    let packets = sources + u64::from(repairs);
    let n = packets as f64;
    // The sum of the probabilities that 0 … `repairs` are lost.
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

    fn bursts(loss: f64, burst: f64) -> LossModel {
        LossModel { loss, burst }
    }

    #[test]
    fn tails_are_repaired_by_the_losses_expected() {
        assert_eq!(tail_repairs(10, LossModel::independent(0.0), 1), 0);
        assert_eq!(tail_repairs(1, LossModel::independent(1e-5), 1), 0);
        // One packet and its copies.
        assert_eq!(tail_repairs(1, LossModel::independent(0.01), 1), 1);
        assert_eq!(tail_repairs(1, LossModel::independent(0.09), 1), 2);
        assert!((4..9).contains(&tail_repairs(15, LossModel::independent(0.064), 1)));
        assert_eq!(tail_repairs(1, LossModel::independent(0.9), 1), MAX_TAIL as u32);
    }

    #[test]
    fn the_chain_without_memory_is_the_binomial_distribution() {
        for (sources, loss) in [(1, 0.01), (15, 0.064), (200, 0.02), (40, 0.3)] {
            let losses = LossModel::independent(loss);
            let mut lost = Lost::of_first(loss);
            (1..sources + 3).for_each(|_| lost.step(losses.follows(1)));
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
        assert!(
            tail_repairs(50, bursts(0.01, 5.0), 1)
                > tail_repairs(50, LossModel::independent(0.01), 1)
        );
    }

    #[test]
    fn the_chain_loses_what_it_is_said_to() {
        let losses = bursts(0.02, 4.0);
        for steps in [1, 3, 50] {
            let (after_loss, after_none) = losses.follows(steps);
            let mean = losses.loss * after_loss + (1.0 - losses.loss) * after_none;
            assert!((mean - losses.loss).abs() < 1e-12, "{steps}");
        }
        let mut lost = Lost::of_first(losses.loss);
        (0..20).for_each(|_| lost.step(losses.follows(1)));
        let all = lost.bad.iter().chain(&lost.good).sum::<f64>() + lost.beyond;
        assert!((all - 1.0).abs() < 1e-9);
    }

    #[test]
    fn bursts_are_known_by_their_gaps_and_independent_losses_are_none() {
        let mut burst = BurstEstimate::new();
        burst.observe(60, 62);
        assert!(!burst.loss_model(0.02).is_bursty());
        for _ in 0..20 {
            burst.observe(30, 150);
        }
        let losses = burst.loss_model(0.02);
        assert!(losses.is_bursty() && (5.4..6.2).contains(&losses.burst), "{losses:?}");
        // Of losses of a half every other gap is longer than one.
        assert!(!BurstEstimate { gaps: 100.0, missing: 200.0 }.loss_model(0.5).is_bursty());
    }
}
