//! Who holds how much of a table that is bounded, and what gives way when it is full: [`Shares`].

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv6Addr};

/// Entries of a bounded table by their holder, a member of a group.
///
/// When the table is full, the group with the most gives way, in it the member with the most, and
/// of its entries the one with the lowest key: its oldest, where keys count up. Whoever holds little
/// loses nothing to one who holds much, under however many names of one group that one comes.
#[derive(Clone, Debug)]
pub struct Shares<G, M, K> {
    groups: BTreeMap<G, Group<M, K>>,
    sums: BTreeSet<(usize, G)>,
    sum: usize,
}

#[derive(Clone, Debug)]
struct Group<M, K> {
    members: BTreeMap<M, Member<K>>,
    sums: BTreeSet<(usize, M)>,
    sum: usize,
}

#[derive(Clone, Debug)]
struct Member<K> {
    /// With their weights.
    entries: BTreeMap<K, usize>,
    sum: usize,
}

impl<G, M, K> Default for Shares<G, M, K> {
    fn default() -> Shares<G, M, K> {
        Shares { groups: BTreeMap::new(), sums: BTreeSet::new(), sum: 0 }
    }
}

impl<G: Ord + Clone, M: Ord + Clone, K: Ord> Shares<G, M, K> {
    /// An entry that weighs so much. It is not there yet.
    pub fn add(&mut self, holder: &(G, M), key: K, weight: usize) {
        let (g, m) = holder;
        let group = self.groups.entry(g.clone()).or_insert_with(|| Group {
            members: BTreeMap::new(),
            sums: BTreeSet::new(),
            sum: 0,
        });
        let member = (group.members.entry(m.clone()))
            .or_insert_with(|| Member { entries: BTreeMap::new(), sum: 0 });
        group.sums.remove(&(member.sum, m.clone()));
        self.sums.remove(&(group.sum, g.clone()));
        member.entries.insert(key, weight);
        (member.sum, group.sum, self.sum) =
            (member.sum + weight, group.sum + weight, self.sum + weight);
        group.sums.insert((member.sum, m.clone()));
        self.sums.insert((group.sum, g.clone()));
    }

    /// The entry is no more.
    pub fn remove(&mut self, holder: &(G, M), key: &K) {
        let (g, m) = holder;
        let Some(group) = self.groups.get_mut(g) else { return };
        let Some(member) = group.members.get_mut(m) else { return };
        let Some(weight) = member.entries.remove(key) else { return };
        group.sums.remove(&(member.sum, m.clone()));
        self.sums.remove(&(group.sum, g.clone()));
        (member.sum, group.sum, self.sum) =
            (member.sum - weight, group.sum - weight, self.sum - weight);
        match member.entries.is_empty() {
            true => drop(group.members.remove(m)),
            false => drop(group.sums.insert((member.sum, m.clone()))),
        }
        match group.members.is_empty() {
            true => drop(self.groups.remove(g)),
            false => drop(self.sums.insert((group.sum, g.clone()))),
        }
    }

    /// What all entries weigh.
    pub fn sum(&self) -> usize {
        self.sum
    }

    /// The entry that gives way, whoever comes.
    pub fn gives_way(&self) -> Option<&K> {
        let group = self.groups.get(&self.sums.last()?.1)?;
        group.oldest()
    }

    /// The entry that gives way to one of `holder` that weighs so much; `None`: the holder has as
    /// much as those who have the most.
    pub fn gives_way_to(&self, holder: &(G, M), weight: usize) -> Option<&K> {
        let (most, group) = self.sums.last()?;
        let its = self.groups.get(&holder.0);
        if *most > its.map_or(0, |its| its.sum) + weight {
            return self.groups.get(group)?.oldest();
        }
        let its = its?;
        let (most, _) = its.sums.last()?;
        let has = its.members.get(&holder.1).map_or(0, |member| member.sum);
        (*most > has + weight).then(|| its.oldest())?
    }
}

impl<M: Ord, K: Ord> Group<M, K> {
    fn oldest(&self) -> Option<&K> {
        let member = self.members.get(&self.sums.last()?.1)?;
        member.entries.first_key_value().map(|(key, _)| key)
    }
}

/// A host as a holder: its network of 24 bits, or of 64 bits in IPv6, in which one host may have as
/// many addresses as it likes, and its address.
pub fn host_in_network(host: IpAddr) -> (IpAddr, IpAddr) {
    let host = host.to_canonical();
    let network = match host {
        IpAddr::V4(ip) => IpAddr::V4((ip.to_bits() & !0xff).into()),
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64).into(),
    };
    (network, host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_the_most_gives_way_first_its_oldest() {
        let mut shares = Shares::default();
        for n in 0..5 {
            shares.add(&("a", "hog"), n, 1);
        }
        for n in 5..8 {
            shares.add(&("b", "one"), n, 1);
        }
        assert_eq!(shares.gives_way(), Some(&0));
        shares.remove(&("a", "hog"), &0);
        assert_eq!((shares.gives_way(), shares.sum()), (Some(&1), 7));
        // An even share is nobody's to take.
        assert_eq!(shares.gives_way_to(&("b", "one"), 1), None);
        assert_eq!(shares.gives_way_to(&("a", "hog"), 1), None);
        assert_eq!(shares.gives_way_to(&("c", "new"), 1), Some(&1));
        // Beside the hog in its own group, too.
        assert_eq!(shares.gives_way_to(&("a", "new"), 1), Some(&1));
    }

    #[test]
    fn a_group_of_many_members_gives_way_to_one_of_few() {
        let mut shares = Shares::default();
        for n in 0..100 {
            shares.add(&("spoofed", n), n, 1);
        }
        shares.add(&("honest", 0), 1_000, 1);
        shares.add(&("honest", 0), 1_001, 1);
        let displaced = shares.gives_way_to(&("honest", 0), 1);
        assert!(displaced.is_some_and(|key| *key < 100), "{displaced:?}");
    }

    #[test]
    fn a_host_is_in_its_network() {
        let network = |a: &str| host_in_network(a.parse().expect("an address")).0.to_string();
        assert_eq!(network("10.1.2.3"), "10.1.2.0");
        assert_eq!(network("::ffff:10.1.2.3"), "10.1.2.0");
        assert_eq!(network("fd01:2:3:4:5:6:7:8"), "fd01:2:3:4::");
    }

    #[test]
    fn sums_are_those_of_the_entries() {
        let mut rng = crate::Rng::new(1);
        let (mut shares, mut model) = (Shares::default(), BTreeMap::new());
        for step in 0..5_000 {
            let holder = (rng.below(3), rng.below(3));
            let key = (holder.0, holder.1, rng.below(9));
            // Grows, and shrinks to nothing.
            let adds = rng.below(10) < if step % 1_000 < 500 { 8 } else { 1 };
            if adds && !model.contains_key(&key) {
                let weight = rng.between(1, 9) as usize;
                shares.add(&holder, key, weight);
                model.insert(key, weight);
            } else if !adds {
                shares.remove(&holder, &key);
                model.remove(&key);
            }
            assert_eq!(shares.sum(), model.values().sum::<usize>());
            let of = |g| model.iter().filter(|(k, _)| k.0 == g).map(|(_, w)| w).sum::<usize>();
            let (way, most) = (shares.gives_way(), (0..3).map(of).max());
            assert_eq!(way.map(|key| of(key.0)), most.filter(|most| *most > 0));
        }
    }
}
