//! What a receiver knows of the packets of a path that did not come: by the numbers that are
//! missing it can tell before its peer that much is lost.

use units::{Duration, Instant};

use super::trust::{MILLION, POOR_PPM};

/// A receiver judges by so many numbers at least.
const ENOUGH: u64 = 32;

/// What is missing of a path's packets.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Missing {
    /// Packets with numbers from here on are counted, since then, and so many came.
    from: u64,
    since: Instant,
    came: u64,
    /// Of those counted before so much was missing that the peer should leave the path.
    much: bool,
    /// When the last report went by another path, and whether packets came after it.
    told_at: Instant,
    news: bool,
}

impl Missing {
    /// A packet came that no one before it had the number of; `highest` of all that came. Packets
    /// are judged together that come within `span`.
    pub fn on_packet(&mut self, now: Instant, highest: u64, span: Duration) {
        self.news = true;
        self.came += 1;
        let numbers = (highest + 1).saturating_sub(self.from);
        if numbers < ENOUGH || now.since(self.since) < span {
            return;
        }
        let missing = numbers.saturating_sub(self.came);
        self.much = missing * MILLION >= numbers * POOR_PPM;
        (self.from, self.since, self.came) = (highest + 1, now, 0);
    }

    /// Is there something to report of a path of which much is missing, or that is poor? When the
    /// last report went by another path.
    pub fn news_since(&self, is_poor: bool) -> Option<Instant> {
        ((self.much || is_poor) && self.news).then_some(self.told_at)
    }

    /// A report goes by another path.
    pub fn on_told(&mut self, now: Instant) {
        (self.told_at, self.news) = (now, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Packets of which each `nth` is lost, a millisecond apart.
    fn after(missing: &mut Missing, packets: std::ops::Range<u64>, nth: u64) {
        for number in packets.filter(|n| n % nth != 0) {
            let now = Instant::ZERO + Duration::from_millis(number);
            missing.on_packet(now, number, Duration::from_millis(20));
        }
    }

    #[test]
    fn a_receiver_notices_within_a_report_s_time_that_much_is_missing_and_that_it_is_no_more() {
        let mut missing = Missing::default();
        after(&mut missing, 0..500, 10);
        assert!(!missing.much, "a tenth is not much");
        after(&mut missing, 500..580, 5);
        assert!(missing.much);
        after(&mut missing, 580..660, 10);
        assert!(!missing.much);
    }
}
