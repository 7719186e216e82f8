//! Sets of packet numbers that a peer's reports tear into pieces: whatever it reports, and in
//! whatever order, a new piece costs the logarithm of their number.
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
    /// Adds `new`.
    pub fn insert(&mut self, new: Range<u64>) {
        if new.start >= new.end {
            return;
        }
        match &mut self.last {
            None => self.last = Some(new),
            Some(last) if new.start > last.end => {
                let last = std::mem::replace(last, new);
                self.others.insert(last.start, last.end);
            }
            Some(last) if new.start >= last.start => last.end = last.end.max(new.end),
            Some(last) if new.end >= last.start => {
                *last = new.start..last.end.max(new.end);
                self.last = self.last.take().map(|last| self.merged(last));
            }
            Some(_) => {
                let all = self.merged(new);
                self.others.insert(all.start, all.end);
            }
        }
    }

    /// Takes out the lower ranges that `new` meets or touches; answers all of them as one.
    fn merged(&mut self, new: Range<u64>) -> Range<u64> {
        let mut all = new;
        while let Some((&start, &end)) = self.others.range(..=all.end).next_back() {
            if end < all.start {
                break;
            }
            self.others.remove(&start);
            all = all.start.min(start)..all.end.max(end);
        }
        all
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ranges::RangeSet;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn behaves_as_a_range_set(
            ops in prop::collection::vec((0u8..5, 0u64..60, 0u64..12), 0..80)
        ) {
            let (mut set, mut model) = (Numbers::default(), RangeSet::default());
            for (op, start, len) in ops {
                let range = start..start + len;
                match op {
                    0..3 => {
                        set.insert(range.clone());
                        model.insert(range.clone());
                    }
                    _ => {
                        set.remove_below(start);
                        model.remove_below(start);
                    }
                }
                prop_assert_eq!(set.len(), model.len());
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
