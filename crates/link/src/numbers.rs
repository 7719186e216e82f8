//! Sets of packet numbers, and of bytes, that a peer's reports tear into pieces: whatever it
//! reports, and in whatever order, a new piece costs the logarithm of their number.
//!
//! [`RangeSet`](crate::ranges::RangeSet) is smaller and quicker where members come nearly in order,
//! and has half of its pieces moved where they do not.

use std::collections::BTreeMap;
use std::ops::Range;

/// A set of `u64` as disjoint, non-touching ranges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Numbers {
    /// The highest range, which honest reports extend.
    last: Option<Range<u64>>,
    /// Those below, by their start: their ends.
    others: BTreeMap<u64, u64>,
}

impl Numbers {
    /// Adds `new`; answers how many of its members were not there before.
    pub fn insert(&mut self, new: Range<u64>) -> u64 {
        if new.start >= new.end {
            return 0;
        }
        match &mut self.last {
            None => {
                let n = size(&new);
                self.last = Some(new);
                n
            }
            Some(last) if new.start > last.end => {
                let n = size(&new);
                let last = std::mem::replace(last, new);
                self.others.insert(last.start, last.end);
                n
            }
            Some(last) if new.start >= last.start => {
                let added = new.end.saturating_sub(last.end);
                last.end = last.end.max(new.end);
                added
            }
            Some(last) if new.end >= last.start => {
                let last = last.clone();
                let (all, had) = self.merged(new.start..last.end.max(new.end));
                let added = size(&all) - had - size(&last);
                self.last = Some(all);
                added
            }
            Some(_) => {
                let (all, had) = self.merged(new);
                self.others.insert(all.start, all.end);
                size(&all) - had
            }
        }
    }

    /// Takes out the lower ranges that `new` meets or touches; answers all of them as one, and how
    /// many members they had.
    fn merged(&mut self, new: Range<u64>) -> (Range<u64>, u64) {
        let (mut all, mut had) = (new, 0);
        while let Some((&start, &end)) = self.others.range(..=all.end).next_back() {
            if end < all.start {
                break;
            }
            self.others.remove(&start);
            had += end - start;
            all = all.start.min(start)..all.end.max(end);
        }
        (all, had)
    }

    /// Takes `gone` out of the set.
    pub fn remove(&mut self, gone: Range<u64>) {
        let Some(last) = self.last.clone().filter(|_| gone.start < gone.end) else { return };
        while let Some((&start, &end)) = self.others.range(..gone.end).next_back() {
            if end <= gone.start {
                break;
            }
            self.others.remove(&start);
            if end > gone.end {
                self.others.insert(gone.end, end);
            }
            if start < gone.start {
                self.others.insert(start, gone.start);
            }
        }
        if gone.start >= last.end || gone.end <= last.start {
            return;
        }
        let (head, tail) = (last.start..gone.start, gone.end..last.end);
        self.last = match (head.is_empty(), tail.is_empty()) {
            (true, false) => Some(tail),
            (false, true) => Some(head),
            (false, false) => {
                self.others.insert(head.start, head.end);
                Some(tail)
            }
            (true, true) => self.others.pop_last().map(|(start, end)| start..end),
        };
    }

    /// The lowest range.
    pub fn first(&self) -> Option<Range<u64>> {
        let other = self.others.first_key_value().map(|(start, end)| *start..*end);
        other.or_else(|| self.last.clone())
    }

    /// Takes at most `max` members from the low end, as one range.
    pub fn pop_first(&mut self, max: u64) -> Option<Range<u64>> {
        let first = self.first()?;
        let taken = first.start..first.end.min(first.start.saturating_add(max));
        self.remove_below(taken.end);
        Some(taken)
    }

    /// No members?
    pub fn is_empty(&self) -> bool {
        self.last.is_none()
    }

    /// Forgets everything and gives its memory back.
    pub fn clear(&mut self) {
        *self = Numbers::default();
    }

    /// Gives back what more ranges took: an empty map may keep some of it.
    pub fn shrink(&mut self) {
        if self.others.is_empty() {
            self.others = BTreeMap::new();
        }
    }

    /// Forgets everything below `floor`.
    pub fn remove_below(&mut self, floor: u64) {
        while let Some(first) = self.others.first_entry() {
            let (start, end) = (*first.key(), *first.get());
            if start >= floor {
                return;
            }
            first.remove();
            if end > floor {
                self.others.insert(floor, end);
                return;
            }
        }
        self.last = match self.last.take() {
            Some(last) if last.end > floor => Some(last.start.max(floor)..last.end),
            _ => None,
        };
    }

    /// The ranges that have members at or above `from`, in order.
    pub fn from(&self, from: u64) -> impl Iterator<Item = Range<u64>> {
        let before = self.others.range(..from).next_back();
        let before = before.filter(|(_, end)| **end > from);
        let others = before.into_iter().chain(self.others.range(from..));
        let last = self.last.clone().filter(|last| last.end > from);
        others.map(|(start, end)| *start..*end).chain(last)
    }

    /// The ranges that have members in `range`.
    pub fn overlapping(&self, range: &Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let end = range.end;
        // Mostly there are none but the last.
        let last_only = self.last.as_ref().is_some_and(|last| last.start <= range.start);
        let from = if last_only { self.last.as_ref().map_or(0, |l| l.start) } else { range.start };
        let others = (!last_only).then(|| self.from(from));
        let last = self.last.clone().filter(|last| last_only && last.end > range.start);
        others.into_iter().flatten().chain(last).take_while(move |r| r.start < end)
    }

    /// Appends to `out` the parts of `range` that are not in the set.
    pub fn missing(&self, range: Range<u64>, out: &mut Vec<Range<u64>>) {
        let mut from = range.start;
        for r in self.overlapping(&range) {
            if from < r.start {
                out.push(from..r.start);
            }
            from = r.end;
        }
        if from < range.end {
            out.push(from..range.end);
        }
    }

    /// Is `x` a member?
    pub fn contains(&self, x: u64) -> bool {
        match &self.last {
            Some(last) if last.start <= x => x < last.end,
            _ => self.others.range(..=x).next_back().is_some_and(|(_, end)| *end > x),
        }
    }

    /// The number of ranges.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.others.len() + usize::from(self.last.is_some())
    }
}

fn size(range: &Range<u64>) -> u64 {
    range.end - range.start
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ranges::RangeSet;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn behaves_as_a_range_set(
            ops in prop::collection::vec((0u8..7, 0u64..60, 0u64..12), 0..80)
        ) {
            let (mut set, mut model) = (Numbers::default(), RangeSet::default());
            for (op, start, len) in ops {
                let range = start..start + len;
                match op {
                    0..3 => {
                        prop_assert_eq!(set.insert(range.clone()), model.insert(range.clone()));
                    }
                    3 => {
                        set.remove(range.clone());
                        model.remove(range.clone());
                    }
                    4 => prop_assert_eq!(set.pop_first(len), model.pop_first(len)),
                    _ => {
                        set.remove_below(start);
                        model.remove_below(start);
                    }
                }
                prop_assert_eq!(set.len(), model.len());
                prop_assert_eq!((set.first(), set.is_empty()), (model.first(), model.is_empty()));
                let of = |from: u64| set.from(from).collect::<Vec<_>>();
                prop_assert_eq!(of(0), model.overlapping(&(0..1_000)).cloned().collect::<Vec<_>>());
                prop_assert_eq!(of(start), model.overlapping(&(start..1_000)).cloned().collect::<Vec<_>>());
                let mut gaps = [vec![], vec![]];
                set.missing(range.clone(), &mut gaps[0]);
                model.missing(range.clone(), &mut gaps[1]);
                prop_assert_eq!(&gaps[0], &gaps[1]);
                if !range.is_empty() {
                    let both = [
                        set.overlapping(&range).collect::<Vec<_>>(),
                        model.overlapping(&range).cloned().collect::<Vec<_>>(),
                    ];
                    prop_assert_eq!(&both[0], &both[1]);
                }
                for x in 0..80 {
                    prop_assert_eq!(set.contains(x), model.contains(x));
                }
            }
        }
    }
}
