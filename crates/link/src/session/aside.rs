//! Reports about a path that loses much go by another one as well (L-PT-13). Where a path loses
//! both ways its own reports are lost, too, and until one comes its sender cannot know that the
//! path should be left. The receiver knows at once, by the numbers that are missing.

use units::{ByteCount, Duration, Instant};

use super::path::Path;
use super::paths::Paths;
use super::trust::{MILLION, POOR_PPM};
use crate::wire::Writer;

/// A receiver judges by so many numbers at least.
const ENOUGH: u64 = 32;
/// Bytes of runs in a report by another path: it is there for what is new.
const MAX_ASIDE: usize = 300;
/// Such reports take at most one part in this many of the path that carries them.
const SHARE: u64 = 20;

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
    fn on_packet(&mut self, now: Instant, highest: u64, span: Duration) {
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
}

impl Path {
    /// A packet of this number came on the path.
    pub(super) fn note_came(&mut self, now: Instant, number: u64) {
        if self.is_beside_others {
            let highest = self.received.highest().map_or(number, |hi| hi.max(number));
            self.missing.on_packet(now, highest, self.report_interval());
        }
    }

    /// When the next report about this path goes by another one, which sends at its own pace.
    fn aside_due(&self, by: &Path) -> Option<Instant> {
        let wanted = self.missing.much || self.trust.is_poor();
        if !wanted || !self.missing.news {
            return None;
        }
        let share = by.pacer.rate().time_for(ByteCount(MAX_ASIDE as u64 * SHARE));
        let share = share.min(self.rtt.smoothed());
        Some(self.missing.told_at + self.report_interval().max(share))
    }
}

impl Paths {
    /// The path that reports about another are told by: the active one, or the best that stands by
    /// where what it carries costs nothing.
    fn messenger(&self, about: usize) -> Option<usize> {
        let active = self.active_at();
        if about != active {
            return self[active].is_alive().then_some(active);
        }
        let may = |at: &usize| *at != about && self[*at].is_carrying() && self[*at].is_free();
        (0..self.len()).filter(may).min_by_key(|at| (self[*at].config.priority, self[*at].id))
    }

    /// When this path is to carry a report about another.
    pub fn aside_at(&self, by: usize) -> Option<Instant> {
        if self.is_single() {
            return None;
        }
        let due = |about: usize| {
            let due = self[about].aside_due(&self[by])?;
            (self.messenger(about) == Some(by)).then_some(due)
        };
        (0..self.len()).filter(|about| *about != by).filter_map(due).min()
    }

    /// Writes the reports about other paths that are due on this one.
    pub fn write_asides(&mut self, now: Instant, by: usize, w: &mut Writer<'_>) {
        while let Some(about) = self.next_aside(now, by) {
            let path = &mut self[about];
            path.received.write_aside(now, path.id, MAX_ASIDE, w);
            (path.missing.told_at, path.missing.news) = (now, false);
        }
    }

    fn next_aside(&self, now: Instant, by: usize) -> Option<usize> {
        if self.aside_at(by).is_none_or(|t| t > now) {
            return None;
        }
        let is_due = |about: &usize| {
            let due = self[*about].aside_due(&self[by]);
            due.is_some_and(|t| t <= now) && self.messenger(*about) == Some(by)
        };
        (0..self.len()).filter(|about| *about != by).find(is_due)
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
