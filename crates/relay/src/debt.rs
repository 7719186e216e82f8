//! A leaky bucket: allows a burst, then so many a second.

use units::Instant;

/// One, in the parts that counts are kept in.
pub(crate) const ONE: u64 = 1_000_000;

/// A count that time takes back at a rate per second, in millionths.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Debt {
    pub millionths: u64,
    at: Instant,
}

impl Debt {
    /// Takes back what the time since the last call is worth.
    pub fn settle(&mut self, now: Instant, per_second: u64) {
        let paid = now.since(self.at).as_micros().saturating_mul(per_second);
        self.millionths = self.millionths.saturating_sub(paid);
        self.at = now;
    }
}
