//! What is remembered of peers for a while.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use tokio::time::Instant;
use units::Shares;

/// A table that is bounded. When it is full the oldest entry goes of the peer with the most, so
/// that nobody who fills it keeps others out.
pub struct Lately<K, V> {
    entries: BTreeMap<(Rc<str>, K), Entry<V>>,
    /// Their keys, the oldest first.
    order: BTreeMap<u64, (Rc<str>, K)>,
    shares: Shares<Rc<str>, (), u64>,
    last: u64,
    most: usize,
    holds: Duration,
}

struct Entry<V> {
    value: V,
    number: u64,
    since: Instant,
}

impl<K: Ord + Clone, V> Lately<K, V> {
    /// So many entries at most, each for so long.
    pub fn new(most: usize, holds: Duration) -> Lately<K, V> {
        let (entries, order, last) = Default::default();
        Lately { entries, order, shares: Shares::default(), last, most, holds }
    }

    /// What is remembered of the peer by this key.
    pub fn find(&self, key: &(Rc<str>, K)) -> Option<&V> {
        let it = self.entries.get(key)?;
        (it.since.elapsed() < self.holds).then_some(&it.value)
    }

    /// Remembers it, in place of what was there.
    pub fn keep(&mut self, key: (Rc<str>, K), value: V) {
        self.forget(&key);
        while let Some((_, oldest)) = self.order.first_key_value()
            && self.find(oldest).is_none()
        {
            self.forget(&oldest.clone());
        }
        self.last += 1;
        let (number, since) = (self.last, Instant::now());
        self.shares.add(&(key.0.clone(), ()), number, 1);
        self.order.insert(number, key.clone());
        self.entries.insert(key, Entry { value, number, since });
        while self.entries.len() > self.most
            && let Some(oldest) = self.shares.gives_way()
            && let Some(key) = self.order.get(oldest).cloned()
        {
            self.forget(&key);
        }
    }

    /// Forgets all but these.
    pub fn retain(&mut self, stays: impl Fn(&(Rc<str>, K), &V) -> bool) {
        let goes = self.entries.iter().filter(|(key, it)| !stays(key, &it.value));
        for key in goes.map(|(key, _)| key.clone()).collect::<Vec<_>>() {
            self.forget(&key);
        }
    }

    fn forget(&mut self, key: &(Rc<str>, K)) {
        if let Some(it) = self.entries.remove(key) {
            self.order.remove(&it.number);
            self.shares.remove(&(key.0.clone(), ()), &it.number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(peer: &str, n: u32) -> (Rc<str>, u32) {
        (peer.into(), n)
    }

    #[test]
    fn whoever_fills_the_table_keeps_nobody_out_and_displaces_his_own() {
        let mut table = Lately::new(100, Duration::from_secs(60));
        table.keep(of("ship", 0), "before");
        (0..1_000).for_each(|n| table.keep(of("evil", n), "x"));
        table.keep(of("late", 0), "after");
        for peer in ["ship", "late"] {
            assert!(table.find(&of(peer, 0)).is_some(), "{peer}");
        }
        assert!(table.find(&of("evil", 999)).is_some() && table.find(&of("evil", 900)).is_none());
        assert_eq!((table.entries.len(), table.order.len(), table.shares.sum()), (100, 100, 100));
        // One that is there already takes no room.
        table.keep(of("ship", 0), "again");
        assert_eq!((table.find(&of("ship", 0)), table.entries.len()), (Some(&"again"), 100));
        table.retain(|key, _| &*key.0 != "evil");
        assert_eq!((table.entries.len(), table.order.len(), table.shares.sum()), (2, 2, 2));
    }

    #[test]
    fn what_is_past_its_time_is_not_found_and_leaves_its_room() {
        let mut table = Lately::new(100, Duration::ZERO);
        (0..10).for_each(|n| table.keep(of("ship", n), ()));
        assert_eq!((table.find(&of("ship", 9)), table.entries.len()), (None, 1));
    }
}
