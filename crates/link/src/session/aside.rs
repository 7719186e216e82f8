//! Reports about a path that loses much go by another one as well (L-PT-13). Where a path loses
//! both ways its own reports are lost, too, and until one comes its sender cannot know that the
//! path should be left. The receiver knows at once, by the numbers that are missing.

use units::{ByteCount, Instant};

use super::path::Path;
use super::paths::Paths;
use crate::wire::Writer;

/// Bytes of runs in a report by another path: it is there for what is new.
const MAX_ASIDE: usize = 300;
/// Such reports take at most one part in this many of the path that carries them.
const SHARE: u64 = 20;

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
        let told_at = self.missing.news_since(self.trust.is_poor())?;
        let share = by.pacer.rate().time_for(ByteCount(MAX_ASIDE as u64 * SHARE));
        let share = share.min(self.rtt.smoothed());
        Some(told_at + self.report_interval().max(share))
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
            path.missing.on_told(now);
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
