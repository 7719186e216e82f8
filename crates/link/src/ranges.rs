//! Sets of integers kept as ascending, disjoint, non-touching half-open ranges:
//! stream bytes received or lost, packet numbers seen, streams finished.

use std::collections::VecDeque;
use std::ops::Range;

/// So many ranges have room in the least memory that a set takes, which is not counted.
const FEW: usize = 4;

/// A set of `u64` as ranges. Cheap where new members mostly extend the last
/// range, which is how packets and stream bytes arrive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RangeSet {
    ranges: VecDeque<Range<u64>>,
}

impl RangeSet {
    /// Adds `new`; answers how many of its members were not there before.
    pub fn insert(&mut self, new: Range<u64>) -> u64 {
        if new.start >= new.end {
            return 0;
        }
        // The common cases: beyond the last range, or touching its end.
        match self.ranges.back_mut() {
            None => {
                let n = new.end - new.start;
                self.ranges.push_back(new);
                return n;
            }
            Some(last) if new.start > last.end => {
                let n = new.end - new.start;
                self.ranges.push_back(new);
                return n;
            }
            Some(last) if new.start >= last.start => {
                let added = new.end.saturating_sub(last.end);
                last.end = last.end.max(new.end);
                return added;
            }
            _ => {}
        }
        self.insert_inside(new)
    }

    fn insert_inside(&mut self, new: Range<u64>) -> u64 {
        let first = self.ranges.partition_point(|r| r.end < new.start);
        let last = self.ranges.partition_point(|r| r.start <= new.end);
        if first == last {
            let n = new.end - new.start;
            self.ranges.insert(first, new);
            return n;
        }
        let had: u64 = self.ranges.range(first..last).map(|r| r.end - r.start).sum();
        let merged =
            self.ranges[first].start.min(new.start)..self.ranges[last - 1].end.max(new.end);
        let has = merged.end - merged.start;
        self.ranges[first] = merged;
        self.ranges.drain(first + 1..last);
        has - had
    }

    /// Takes `gone` out of the set.
    #[cfg(test)]
    pub fn remove(&mut self, gone: Range<u64>) {
        if gone.start >= gone.end {
            return;
        }
        let first = self.ranges.partition_point(|r| r.end <= gone.start);
        let last = self.ranges.partition_point(|r| r.start < gone.end);
        if first >= last {
            return;
        }
        let head = self.ranges[first].start..gone.start;
        let tail = gone.end..self.ranges[last - 1].end;
        self.ranges.drain(first..last);
        if tail.start < tail.end {
            self.ranges.insert(first, tail);
        }
        if head.start < head.end {
            self.ranges.insert(first, head);
        }
    }

    /// Forgets everything below `floor`.
    pub fn remove_below(&mut self, floor: u64) {
        while let Some(r) = self.ranges.front_mut() {
            if r.end <= floor {
                self.ranges.pop_front();
            } else {
                r.start = r.start.max(floor);
                break;
            }
        }
    }

    /// The lowest range.
    pub fn first(&self) -> Option<Range<u64>> {
        self.ranges.front().cloned()
    }

    /// Takes at most `max` members from the low end, as one range.
    #[cfg(test)]
    pub fn pop_first(&mut self, max: u64) -> Option<Range<u64>> {
        let r = self.ranges.front_mut()?;
        let end = r.end.min(r.start.saturating_add(max));
        let taken = r.start..end;
        r.start = end;
        if r.start >= r.end {
            self.ranges.pop_front();
        }
        Some(taken)
    }

    /// Drops the lowest range.
    pub fn forget_first(&mut self) {
        self.ranges.pop_front();
    }

    /// Adds what lies between the lowest two ranges; answers where that ended.
    pub fn close_lowest_gap(&mut self) -> u64 {
        let Some(lowest) = self.ranges.pop_front() else { return 0 };
        let Some(next) = self.ranges.front_mut() else { return 0 };
        std::mem::replace(&mut next.start, lowest.start)
    }

    /// The ranges that have members in `range`.
    pub fn overlapping(&self, range: &Range<u64>) -> impl Iterator<Item = &Range<u64>> {
        let first = self.ranges.partition_point(|r| r.end <= range.start);
        let end = range.end;
        self.ranges.range(first..).take_while(move |r| r.start < end)
    }

    /// Appends to `out` the parts of `range` that are not in the set.
    #[cfg(test)]
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
        let i = self.ranges.partition_point(|r| r.end <= x);
        self.ranges.get(i).is_some_and(|r| r.start <= x)
    }

    /// The ranges from the highest to the lowest.
    pub fn descending(&self) -> impl Iterator<Item = &Range<u64>> {
        self.ranges.iter().rev()
    }

    /// The number of ranges.
    pub fn len(&self) -> usize {
        self.ranges.len()
    }

    /// No members?
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Gives back what more ranges took.
    pub fn shrink(&mut self) {
        self.ranges.shrink_to_fit();
    }

    /// Gives back what many more ranges took, and all of it but for that of a few where there are
    /// none.
    pub fn shrink_if_sparse(&mut self) {
        match self.ranges.len() {
            0 if self.memory() > 0 => self.clear(),
            len if self.ranges.capacity() >= 8 * len.max(FEW) => {
                self.ranges.shrink_to((2 * len).max(FEW));
            }
            _ => {}
        }
    }

    /// Bytes of memory that the ranges take, but for those of a few.
    pub fn memory(&self) -> usize {
        match self.ranges.capacity() {
            0..=FEW => 0,
            many => many * size_of::<Range<u64>>(),
        }
    }

    /// Forgets everything and gives its memory back.
    pub fn clear(&mut self) {
        self.ranges = VecDeque::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn behaves_as_a_set_of_integers(
            ops in prop::collection::vec((0u8..4, 0u64..60, 0u64..12), 0..80)
        ) {
            let mut set = RangeSet::default();
            let mut model = BTreeSet::new();
            for (op, start, len) in ops {
                let range = start..start + len;
                match op {
                    0 | 1 => {
                        let added = range.clone().filter(|x| model.insert(*x)).count() as u64;
                        prop_assert_eq!(set.insert(range), added);
                    }
                    2 => {
                        set.remove(range.clone());
                        model.retain(|x| !range.contains(x));
                    }
                    _ => {
                        set.remove_below(start);
                        model.retain(|x| *x >= start);
                    }
                }
                for x in 0..80 {
                    prop_assert_eq!(set.contains(x), model.contains(&x));
                }
                let mut gaps = vec![];
                set.missing(start..start + len, &mut gaps);
                let gaps: Vec<u64> = gaps.into_iter().flatten().collect();
                let absent: Vec<u64> =
                    (start..start + len).filter(|x| !model.contains(x)).collect();
                prop_assert_eq!(gaps, absent);
                let mut last_end = None;
                for r in set.ranges.iter() {
                    prop_assert!(r.start < r.end);
                    prop_assert!(last_end.is_none_or(|e| e < r.start), "ranges touch");
                    last_end = Some(r.end);
                }
            }
        }
    }

    #[test]
    fn pop_first_takes_from_the_low_end() {
        let mut set = RangeSet::default();
        set.insert(10..20);
        assert_eq!(set.pop_first(4), Some(10..14));
        assert_eq!(set.pop_first(40), Some(14..20));
        assert_eq!(set.pop_first(1), None);
    }
}
