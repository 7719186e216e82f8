//! Round-trip time: RFC 6298's smoothing over samples free of the peer's delay.

use units::{Duration, Instant};

/// The estimate, started from the link's profile so that timers are right before
/// the first sample (R-TUNE: a wrong initial timeout costs a satellite link dearly).
#[derive(Clone, Debug)]
pub(crate) struct Rtt {
    smoothed: Duration,
    variation: Duration,
    sampled: bool,
    /// The newest sample, and how many there were.
    newest: Duration,
    samples: u64,
    /// Packets that left before were in flight during an outage, or while this machine slept.
    distrusted_before: Instant,
}

impl Rtt {
    pub fn new(expected: Duration) -> Rtt {
        Rtt {
            smoothed: expected,
            variation: expected.divided_by(4),
            sampled: false,
            newest: expected,
            samples: 0,
            distrusted_before: Instant::ZERO,
        }
    }

    /// Sets the expected round trip, unless one was measured.
    pub fn expect(&mut self, expected: Duration) {
        if !self.sampled {
            *self = Rtt { distrusted_before: self.distrusted_before, ..Rtt::new(expected) };
        }
    }

    /// A time without packets that is longer says nothing about the round trip.
    pub fn longest_pause(&self) -> Duration {
        Duration::from_secs(10).max(self.smoothed.times(4))
    }

    /// Nothing was heard for [`Rtt::longest_pause`] or longer until `now`: samples as long as that
    /// from packets that left before are ignored.
    pub fn distrust_before(&mut self, now: Instant) {
        self.distrusted_before = now;
    }

    /// Has there been a sample?
    pub fn is_sampled(&self) -> bool {
        self.sampled
    }

    /// A packet that left at `sent` gives the sample `rtt`.
    pub fn on_packet(&mut self, sent: Instant, rtt: Duration) {
        if sent >= self.distrusted_before || rtt < self.longest_pause() {
            self.sample(rtt);
        }
    }

    fn sample(&mut self, rtt: Duration) {
        self.newest = rtt;
        self.samples += 1;
        if !self.sampled {
            self.sampled = true;
            self.smoothed = rtt;
            self.variation = rtt.divided_by(8);
            return;
        }
        let error = self.smoothed.max(rtt) - self.smoothed.min(rtt);
        self.variation = (self.variation.times(3) + error).divided_by(4);
        self.smoothed = (self.smoothed.times(7) + rtt).divided_by(8);
    }

    /// How many samples there were so far, and the newest.
    pub fn newest(&self) -> (u64, Duration) {
        (self.samples, self.newest)
    }

    pub fn smoothed(&self) -> Duration {
        self.smoothed
    }

    /// Smoothed plus a margin for its variation, at least 10 ms.
    pub fn with_margin(&self) -> Duration {
        self.smoothed + self.variation.times(4).max(Duration::from_millis(10))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// L-CL-2.
    #[test]
    fn what_took_as_long_as_a_pause_is_no_round_trip() {
        let second = |n| Instant::ZERO + Duration::from_secs(n);
        let mut rtt = Rtt::new(Duration::from_millis(600));
        rtt.on_packet(second(0), Duration::from_millis(600));
        rtt.distrust_before(second(100));
        rtt.on_packet(second(50), Duration::from_secs(50));
        rtt.on_packet(second(90), rtt.longest_pause());
        assert_eq!(rtt.smoothed(), Duration::from_millis(600));
        // A shorter one counts, and so does whatever left later.
        rtt.on_packet(second(99), Duration::from_secs(1));
        assert_eq!(rtt.smoothed(), Duration::from_millis(650));
        rtt.on_packet(second(100), Duration::from_millis(20_650));
        assert_eq!(rtt.smoothed(), Duration::from_millis(3_150));
    }
}
