//! Who holds how much of a table that is bounded, and what gives way when it is full: [`Shares`],
//! and for hosts [`HostShares`].

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv6Addr};

/// Entries of a bounded table by their holder, a member of a group.
///
/// When the table is full, the group with the most gives way, in it the member with the most, and
/// of its entries the one with the lowest key: its oldest, where keys count up. Whoever holds
/// little loses nothing to one who holds much, under however many names of one group that one
/// comes.
#[derive(Clone, Debug)]
pub struct Shares<G, M, K> {
    /// With their weights. Flat, as all of this: a map for each member takes many times as much
    /// where members have one entry each.
    entries: BTreeMap<(G, M, After<K>), usize>,
    members: BTreeMap<(G, M), usize>,
    by_sum: BTreeSet<(G, usize, After<M>)>,
    groups: BTreeMap<G, usize>,
    groups_by_sum: BTreeSet<(usize, G)>,
    sum: usize,
}

/// `None` comes before every value: where a search begins.
type After<T> = Option<T>;

impl<G, M, K> Default for Shares<G, M, K> {
    fn default() -> Shares<G, M, K> {
        Shares {
            entries: BTreeMap::new(),
            members: BTreeMap::new(),
            by_sum: BTreeSet::new(),
            groups: BTreeMap::new(),
            groups_by_sum: BTreeSet::new(),
            sum: 0,
        }
    }
}

impl<G: Ord + Clone, M: Ord + Clone, K: Ord + Clone> Shares<G, M, K> {
    /// An entry that weighs so much, and something. It is not there yet.
    pub fn add(&mut self, holder: &(G, M), key: K, weight: usize) {
        let (g, m) = holder.clone();
        self.entries.insert((g, m, Some(key)), weight);
        let (group, member) = (self.of_group(&holder.0), self.of_member(holder));
        self.recount(holder, (group, group + weight), (member, member + weight));
    }

    /// The entry is no more.
    pub fn remove(&mut self, holder: &(G, M), key: &K) {
        let (g, m) = holder.clone();
        let Some(weight) = self.entries.remove(&(g, m, Some(key.clone()))) else { return };
        let (group, member) = (self.of_group(&holder.0), self.of_member(holder));
        self.recount(holder, (group, group - weight), (member, member - weight));
    }

    /// The sums of the holder and its group were these and are those.
    fn recount(&mut self, holder: &(G, M), group: (usize, usize), member: (usize, usize)) {
        let (g, m) = holder;
        self.sum = self.sum + group.1 - group.0;
        self.groups_by_sum.remove(&(group.0, g.clone()));
        self.by_sum.remove(&(g.clone(), member.0, Some(m.clone())));
        match group.1 {
            0 => drop(self.groups.remove(g)),
            sum => {
                self.groups.insert(g.clone(), sum);
                self.groups_by_sum.insert((sum, g.clone()));
            }
        }
        match member.1 {
            0 => drop(self.members.remove(holder)),
            sum => {
                self.members.insert(holder.clone(), sum);
                self.by_sum.insert((g.clone(), sum, Some(m.clone())));
            }
        }
    }

    /// What all entries weigh.
    pub fn sum(&self) -> usize {
        self.sum
    }

    /// The entry that gives way, whoever comes.
    pub fn gives_way(&self) -> Option<&K> {
        self.oldest(&self.groups_by_sum.last()?.1)
    }

    /// The entry that gives way to one of `holder` that weighs so much; `None`: the holder has as
    /// much as those who have the most.
    pub fn gives_way_to(&self, holder: &(G, M), weight: usize) -> Option<&K> {
        let (most, group) = self.groups_by_sum.last()?;
        if *most > self.of_group(&holder.0) + weight {
            return self.oldest(group);
        }
        let (most, _) = self.largest(&holder.0)?;
        (most > self.of_member(holder) + weight).then(|| self.oldest(&holder.0))?
    }

    fn of_group(&self, group: &G) -> usize {
        self.groups.get(group).copied().unwrap_or(0)
    }

    fn of_member(&self, holder: &(G, M)) -> usize {
        self.members.get(holder).copied().unwrap_or(0)
    }

    /// The member of the group that has the most.
    fn largest(&self, group: &G) -> Option<(usize, &M)> {
        let all = (group.clone(), 0, None)..(group.clone(), usize::MAX, None);
        let (_, most, member) = self.by_sum.range(all).next_back()?;
        member.as_ref().map(|member| (*most, member))
    }

    /// The oldest entry of the group's member that has the most.
    fn oldest(&self, group: &G) -> Option<&K> {
        let (_, member) = self.largest(group)?;
        self.first_of(&(group.clone(), member.clone()))
    }

    /// The holder's entry with the lowest key: its oldest.
    pub fn first_of(&self, holder: &(G, M)) -> Option<&K> {
        let (g, m) = holder;
        let ((of, member, key), _) = self.entries.range((g.clone(), m.clone(), None)..).next()?;
        key.as_ref().filter(|_| (of, member) == (g, m))
    }
}

/// Entries of a bounded table by the hosts that hold them and these hosts' networks
/// ([`host_in_network`]).
///
/// When the table is full, the network with the most gives way. In it the host with the most loses
/// its entry with the lowest key, if that host has more than `few`. Else the network is many hosts
/// with few entries each, or one host with many addresses, and nobody can tell which: then the
/// network loses its entry with the lowest key, whoever's that is.
#[derive(Clone, Debug)]
pub struct HostShares<K> {
    shares: Shares<IpAddr, IpAddr, K>,
    of_networks: BTreeSet<(IpAddr, After<K>)>,
    few: usize,
}

impl<K: Ord + Clone> HostShares<K> {
    /// No entries. A host with `few` of them or less counts as one of many.
    pub fn new(few: usize) -> HostShares<K> {
        HostShares { shares: Shares::default(), of_networks: BTreeSet::new(), few: few.max(1) }
    }

    /// The host has an entry more. It is not there yet.
    pub fn add(&mut self, host: IpAddr, key: K) {
        let holder = host_in_network(host);
        self.shares.add(&holder, key.clone(), 1);
        self.of_networks.insert((holder.0, Some(key)));
    }

    /// The entry of the host is no more.
    pub fn remove(&mut self, host: IpAddr, key: &K) {
        let holder = host_in_network(host);
        self.shares.remove(&holder, key);
        self.of_networks.remove(&(holder.0, Some(key.clone())));
    }

    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.shares.sum()
    }

    /// Are there none?
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The entry that gives way to one more of the host's; `None`: there is no entry.
    pub fn gives_way_to(&self, host: IpAddr) -> Option<&K> {
        let holder = host_in_network(host);
        let (most, largest) = self.shares.groups_by_sum.last()?;
        let has = self.shares.of_group(&holder.0);
        // An even share is nobody's to take, but from whoever has nothing at all.
        let network = if *most > has + 1 || has == 0 { *largest } else { holder.0 };
        let (most, member) = self.shares.largest(&network)?;
        if most <= self.few {
            let (of, key) = self.of_networks.range((network, None)..).next()?;
            return key.as_ref().filter(|_| *of == network);
        }
        let loses_its_own = network == holder.0 && most <= self.shares.of_member(&holder) + 1;
        self.shares.first_of(&(network, if loses_its_own { holder.1 } else { *member }))
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

/// What a host counts as where it is told from others alone: its address, or its network of 64 bits
/// in IPv6, in which it has as many addresses as it likes.
pub fn one_host(host: IpAddr) -> IpAddr {
    match host_in_network(host) {
        (network @ IpAddr::V6(_), _) => network,
        (_, address) => address,
    }
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

    fn host(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn a_host_with_many_addresses_loses_its_own_and_one_with_few_of_another_network_nothing() {
        let mut shares = HostShares::new(4);
        let many = |n: u128| IpAddr::from(Ipv6Addr::from_bits(0xfd01 << 112 | n));
        assert_eq!(shares.gives_way_to(many(0)), None);
        for key in 0..10 {
            shares.add(host("10.2.0.1"), key);
        }
        for n in 0..20 {
            shares.add(many(n), 100 + n as u32);
        }
        // Whoever comes: the oldest of the network with the most.
        for newcomer in [host("10.2.0.1"), host("10.2.0.2"), host("10.9.0.9"), many(99)] {
            assert_eq!(shares.gives_way_to(newcomer), Some(&100), "{newcomer}");
        }
        for n in 0..11 {
            shares.remove(many(n), &(100 + n as u32));
        }
        // Even shares: both lose their own, and the newcomer takes one of the largest.
        assert_eq!(shares.gives_way_to(many(99)), Some(&111));
        assert_eq!(shares.gives_way_to(host("10.2.0.1")), Some(&0));
        assert_eq!(shares.gives_way_to(host("10.2.0.7")), Some(&0));
        assert_eq!(shares.gives_way_to(host("10.9.0.9")), Some(&0));
    }

    #[test]
    fn within_a_network_the_host_with_the_most_gives_way_unless_all_have_few() {
        let mut shares = HostShares::new(4);
        shares.add(host("10.2.0.2"), 0);
        for key in 1..4 {
            shares.add(host("10.2.0.1"), key);
        }
        assert_eq!(shares.gives_way_to(host("10.2.0.1")), Some(&0), "all have few: the oldest");
        for key in 4..9 {
            shares.add(host("10.2.0.1"), key);
        }
        for newcomer in ["10.2.0.1", "10.2.0.2", "10.2.0.3", "::ffff:10.2.0.3"] {
            assert_eq!(shares.gives_way_to(host(newcomer)), Some(&1), "{newcomer}");
        }
        (0..9).for_each(|key| shares.remove(host("10.2.0.1"), &key));
        shares.remove(host("10.2.0.2"), &0);
        assert_eq!(shares.gives_way_to(host("10.2.0.1")), None);
        assert!(shares.is_empty() && shares.of_networks.is_empty());
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
