//! What a run is measured by: its hash, the link's rate, and the sentence that says
//! what went wrong.

use std::fmt;

use units::{BitRate, ByteCount, Duration, Instant};

/// Why a seed failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// What `bentpipe-lab sim` repeats it by.
    pub repeat: String,
    /// When, in virtual time.
    pub at: Instant,
    /// What was promised and did not hold.
    pub what: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Failure { repeat, at, what } = self;
        write!(f, "{what} (at {at:?}); repeat it with: bentpipe-lab sim {repeat}")
    }
}
impl std::error::Error for Failure {}

/// A running hash of everything that happens. Two runs of a seed must agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Digest(u64);

impl Digest {
    pub fn new(seed: u64) -> Digest {
        Digest(seed ^ 0x6a09_e667_f3bc_c908)
    }

    /// Takes in one number.
    pub fn take(&mut self, n: u64) {
        let x = (self.0.rotate_left(23) ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = x ^ (x >> 32);
    }

    /// Takes in the last eight bytes of a packet: its tag, which depends on all others.
    pub fn take_tail(&mut self, bytes: &[u8]) {
        let tail = bytes.last_chunk::<8>().map_or(0, |t| u64::from_le_bytes(*t));
        self.take(tail);
    }

    pub fn value(self) -> u64 {
        self.0
    }
}

/// How late a driver's bytes may be made good, and how early they may come: what the
/// link's pacer promises.
const CATCH_UP: Duration = Duration::from_millis(10);
const LEAD: Duration = Duration::from_millis(1);
const BULK_LEAD: Duration = Duration::from_millis(3);
const BULK_FROM: BitRate = BitRate::from_mbps(12);

/// Measures that a node never hands a channel more than the link's rate, over any span of
/// time: rate × (time + 11 ms, or 13 ms on faster links) and one packet (L-RA-1, L-RA-9).
#[derive(Clone, Debug)]
pub(crate) struct Meter {
    rate: BitRate,
    free_at: Instant,
    /// Small packets that may leave without waiting their turn: challenges, and the
    /// empty packet that confirms new keys.
    slack: Duration,
}

impl Meter {
    pub fn new(rate: BitRate, unpaced: ByteCount) -> Meter {
        Meter { rate, free_at: Instant::ZERO, slack: rate.time_for(unpaced) }
    }

    /// A packet of `len` bytes leaves now; `paced`: the pacer was to hold it
    /// back. Answers by how much it came too early.
    pub fn on_packet(&mut self, now: Instant, len: ByteCount, paced: bool) -> Duration {
        let lead = if self.rate < BULK_FROM { LEAD } else { BULK_LEAD };
        let early = self.free_at.since(now + lead + self.slack);
        self.free_at = self.free_at.max(now - CATCH_UP) + self.rate.time_for(len);
        if paced { early } else { Duration::ZERO }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sender_above_the_rate_is_seen_and_one_at_the_rate_is_not() {
        let rate = BitRate::from_kbps(1_000);
        for (gap_us, fine) in [(12_000, true), (11_900, false)] {
            let mut meter = Meter::new(rate, ByteCount(0));
            let mut early = Duration::ZERO;
            for i in 0..1_000 {
                let now = Instant::ZERO + Duration::from_micros(gap_us).times(i);
                early = early.max(meter.on_packet(now, ByteCount(1_500), true));
            }
            assert_eq!(early == Duration::ZERO, fine, "{early}");
        }
    }
}
