//! A token bucket before the queue, which drops what exceeds a rate.

use serde::{Deserialize, Serialize};
use units::{BitRate, ByteCount, Instant};

use crate::text;

/// A token bucket before the queue, as throttles and fair-use rules have it: what exceeds it is
/// dropped at once and never waits. Written `{ rate = "2Mbit", burst = "1MB" }`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Policer {
    /// The rate at which the bucket fills.
    #[serde(with = "text::unit")]
    pub rate: BitRate,
    /// What the bucket holds: so much passes at once after a pause. From 1,500 bytes to 1 GB.
    #[serde(with = "text::bytes")]
    pub burst: ByteCount,
}

/// The bucket and what is in it, in bits × nanoseconds per second, so that nothing is rounded.
#[derive(Clone, Debug)]
pub(crate) struct Bucket {
    policer: Policer,
    tokens: u64,
    filled: Instant,
}

const BYTE: u64 = 8_000_000_000;

impl Bucket {
    /// A full bucket at `now`; `burst` is at most [`Policer::burst`]'s bound.
    pub(crate) fn new(policer: Policer, now: Instant) -> Bucket {
        Bucket { policer, tokens: policer.burst.0.saturating_mul(BYTE), filled: now }
    }

    /// Other sizes from `now` on; what is in it stays as far as it fits.
    pub(crate) fn change(&mut self, policer: Policer, now: Instant) {
        self.fill(now);
        self.policer = policer;
        self.tokens = self.tokens.min(policer.burst.0.saturating_mul(BYTE));
    }

    /// Does a packet of `len` bytes pass at `now`? One that does not takes nothing.
    pub(crate) fn passes(&mut self, now: Instant, len: ByteCount) -> bool {
        self.fill(now);
        let needs = len.0.saturating_mul(BYTE);
        let passes = needs <= self.tokens;
        if passes {
            self.tokens -= needs;
        }
        passes
    }

    fn fill(&mut self, now: Instant) {
        let elapsed = now.since(self.filled).as_nanos();
        self.filled = self.filled.max(now);
        let more = u128::from(elapsed) * u128::from(self.policer.rate.as_bps());
        let full = self.policer.burst.0.saturating_mul(BYTE);
        self.tokens = (u128::from(self.tokens) + more).min(u128::from(full)) as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use units::Duration;

    const POLICER: Policer = Policer { rate: BitRate::from_mbps(2), burst: ByteCount(1_000_000) };

    #[test]
    fn a_burst_passes_and_then_exactly_the_rate() {
        let mut bucket = Bucket::new(POLICER, Instant::ZERO);
        let mut passed = 0;
        // 20 Mbit/s for 100 s, a packet each 600 µs.
        for i in 0..166_667 {
            let now = Instant::ZERO + Duration::from_micros(600).times(i);
            passed += u64::from(bucket.passes(now, ByteCount(1_500))) * 1_500;
        }
        // 1 MB and 100 s of 2 Mbit/s, to a packet.
        assert!(passed.abs_diff(26_000_000) <= 1_500, "{passed}");
    }

    #[test]
    fn a_pause_fills_it_to_the_brim_and_not_beyond() {
        let mut bucket = Bucket::new(POLICER, Instant::ZERO);
        assert!(bucket.passes(Instant::ZERO, ByteCount(1_000_000)));
        assert!(!bucket.passes(Instant::ZERO, ByteCount(1)));
        let late = Instant::FAR_FUTURE;
        assert!(!bucket.passes(late, ByteCount(1_000_001)));
        assert!(bucket.passes(late, ByteCount(1_000_000)));
    }

    #[test]
    fn time_that_runs_backwards_gives_nothing_twice() {
        let mut bucket = Bucket::new(POLICER, Instant::ZERO);
        let second = Instant::ZERO + Duration::from_secs(1);
        assert!(bucket.passes(second, ByteCount(1_000_000)));
        assert!(!bucket.passes(Instant::ZERO, ByteCount(1)));
        assert!(!bucket.passes(second, ByteCount(1)));
    }
}
