//! Who has how many of the program's places: one that is full turns nobody away who has few.

use std::collections::BTreeMap;
use std::net::IpAddr;

use units::{Shares, host_in_network};

/// Whose a place is: a host's, in its network or behind its peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder(Group, IpAddr);

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Group {
    Network(IpAddr),
    Peer(String),
}

impl Holder {
    /// A host of this side.
    pub fn host(ip: IpAddr) -> Holder {
        let (network, host) = host_in_network(ip);
        Holder(Group::Network(network), host)
    }

    /// What a peer calls its host.
    pub fn behind(peer: &str, host: IpAddr) -> Holder {
        Holder(Group::Peer(peer.to_owned()), host)
    }
}

/// All places are taken, and by nobody who has more than this holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// See the module. Places have numbers that count up.
#[derive(Debug)]
pub struct Places {
    most: usize,
    taken: BTreeMap<u64, Holder>,
    shares: Shares<Group, IpAddr, u64>,
}

impl Places {
    /// So many, all of them free.
    pub fn new(most: usize) -> Places {
        Places { most, taken: BTreeMap::new(), shares: Shares::default() }
    }

    /// Takes a place, of a number that none has. If all are taken, a holder with more of them loses
    /// its oldest: that number is to end. Behind a peer a host that has none gets one, too, where
    /// nobody has more than one: the oldest is to end, of its own peer's if that has any.
    ///
    /// # Errors
    /// If there is none.
    pub fn take(&mut self, number: u64, holder: Holder) -> Result<Option<u64>, Full> {
        let Holder(group, host) = holder.clone();
        let share = (group, host);
        let ends = if self.taken.len() < self.most {
            None
        } else {
            let ends = self.shares.gives_way_to(&share, 1).copied();
            Some(ends.or_else(|| self.gives_way_to_newcomer(&holder)).ok_or(Full)?)
        };
        ends.iter().for_each(|number| self.leave(*number));
        self.shares.add(&share, number, 1);
        self.taken.insert(number, holder);
        Ok(ends)
    }

    /// Many hosts behind a peer may be one with many addresses, which is to keep nobody out. A host
    /// of this side that is turned away is carried without a place.
    fn gives_way_to_newcomer(&self, holder: &Holder) -> Option<u64> {
        let has_one = self.taken.values().any(|it| it == holder);
        if has_one || matches!(holder.0, Group::Network(_)) {
            return None;
        }
        let own = self.taken.iter().find(|(_, it)| it.0 == holder.0);
        own.or(self.taken.first_key_value()).map(|(number, _)| *number)
    }

    /// The place of this number is free again, if it was taken.
    pub fn leave(&mut self, number: u64) {
        if let Some(Holder(group, host)) = self.taken.remove(&number) {
            self.shares.remove(&(group, host), &number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(n: u32) -> IpAddr {
        IpAddr::V4(n.into())
    }

    /// One after the other, as long as there are any; what was ended.
    fn fill(places: &mut Places, numbers: std::ops::Range<u64>, holder: &Holder) -> Vec<u64> {
        numbers.map_while(|n| places.take(n, holder.clone()).ok()).flatten().collect()
    }

    #[test]
    fn a_peer_with_all_places_leaves_them_to_others_its_oldest_first() {
        let mut places = Places::new(40);
        let evil = Holder::behind("evil", ip(1));
        assert_eq!(fill(&mut places, 0..50, &evil), []);
        assert_eq!(places.take(50, evil.clone()), Err(Full), "nobody has more");
        let ship = Holder::behind("ship", ip(1));
        assert_eq!(fill(&mut places, 51..90, &ship), (0..20).collect::<Vec<_>>());
        assert_eq!(places.take(90, evil), Err(Full), "an even share is nobody's to take");
    }

    #[test]
    fn a_host_with_all_places_of_its_peer_or_network_leaves_them_to_its_neighbours() {
        let behind = |n| Holder::behind("ship", ip(n));
        for holder in [&behind as &dyn Fn(u32) -> Holder, &|n| Holder::host(ip(n))] {
            let mut places = Places::new(10);
            fill(&mut places, 0..10, &holder(1));
            assert_eq!(places.take(10, holder(2)), Ok(Some(0)));
            assert_eq!(places.take(11, holder(3)), Ok(Some(1)));
            places.leave(5);
            places.leave(5);
            assert_eq!(places.take(12, holder(2)), Ok(None));
        }
    }

    #[test]
    fn a_host_behind_a_peer_that_has_none_gets_one_where_all_have_one() {
        let mut places = Places::new(100);
        let behind = |peer, n| Holder::behind(peer, ip(n));
        for n in 0..100 {
            places.take(n, behind(if n < 50 { "one" } else { "two" }, n as u32)).unwrap();
        }
        // Its own peer's oldest ends, and no other's.
        assert_eq!(places.take(100, behind("two", 1000)), Ok(Some(50)));
        assert_eq!(places.take(101, behind("two", 1000)), Err(Full), "it has one");
        assert_eq!(places.take(102, behind("two", 99)), Err(Full), "so has this one");
        // A peer that has none takes from those that have the most.
        assert!(matches!(places.take(103, behind("three", 1)), Ok(Some(51..=100))));
        // Peers with one each.
        let mut places = Places::new(3);
        for (n, peer) in ["one", "two", "three"].into_iter().enumerate() {
            places.take(n as u64, behind(peer, 1)).unwrap();
        }
        assert_eq!(places.take(3, behind("four", 1)), Ok(Some(0)));
        assert_eq!(places.take(4, behind("four", 1)), Err(Full));
    }

    #[test]
    fn hosts_of_this_side_end_nothing_where_all_have_one() {
        let mut places = Places::new(10);
        for n in 0..10 {
            places.take(n, Holder::host(ip(n as u32))).unwrap();
        }
        assert_eq!(places.take(10, Holder::host(ip(10))), Err(Full));
        // Of the network with the most one does.
        assert!(matches!(places.take(11, Holder::host(ip(1 << 20))), Ok(Some(0..10))));
    }

    #[test]
    fn who_has_few_loses_nothing_to_who_has_many_under_many_names() {
        let mut places = Places::new(100);
        let ship = Holder::behind("ship", ip(1));
        fill(&mut places, 0..3, &ship);
        for n in 3..1000 {
            let ends = places.take(n, Holder::behind("evil", ip(n as u32)));
            assert!(!matches!(ends, Ok(Some(0..3))), "{ends:?}");
        }
        assert!((0..3).all(|n| places.taken.get(&n) == Some(&ship)));
    }
}
