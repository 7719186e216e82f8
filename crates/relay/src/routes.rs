//! Cryptokey routing: which peer an address belongs to, longest prefix first. A peer
//! can neither receive nor send for prefixes not its own, as in WireGuard.

use std::collections::BTreeMap;
use std::net::IpAddr;

use link::PeerId;
use units::IpPrefix;

/// Prefixes and their peers, or whatever else (`P`) they lead to. A look-up costs one map
/// look-up per prefix length in use.
#[derive(Debug)]
pub struct Routes<P = PeerId> {
    v4: BTreeMap<u8, BTreeMap<IpPrefix, P>>,
    v6: BTreeMap<u8, BTreeMap<IpPrefix, P>>,
}

impl<P> Default for Routes<P> {
    fn default() -> Routes<P> {
        Routes { v4: BTreeMap::new(), v6: BTreeMap::new() }
    }
}

impl<P: Copy + PartialEq> Routes<P> {
    /// Gives `prefix` to `peer`; whoever had exactly this prefix loses it.
    pub fn insert(&mut self, prefix: IpPrefix, peer: P) {
        let family = if prefix.is_v4() { &mut self.v4 } else { &mut self.v6 };
        family.entry(prefix.len()).or_default().insert(prefix, peer);
    }

    /// Takes `prefix` from `peer`, if it has it.
    pub fn remove(&mut self, prefix: &IpPrefix, peer: P) {
        let family = if prefix.is_v4() { &mut self.v4 } else { &mut self.v6 };
        let Some(map) = family.get_mut(&prefix.len()) else { return };
        if map.get(prefix) == Some(&peer) {
            map.remove(prefix);
        }
        if map.is_empty() {
            family.remove(&prefix.len());
        }
    }

    /// The peer behind `addr`.
    pub fn lookup(&self, addr: IpAddr) -> Option<P> {
        self.find(addr).map(|(peer, _)| peer)
    }

    /// The peer that has the Internet, of IPv4 before IPv6: whoever routes what is nobody's
    /// (RFC 5737, RFC 3849).
    pub fn default_route(&self) -> Option<P> {
        let nobodys = [0x2001, 0xdb8, 0, 0, 0, 0, 0, 0];
        self.lookup(IpAddr::from([192, 0, 2, 0])).or_else(|| self.lookup(IpAddr::from(nobodys)))
    }

    /// The same, with the length of the prefix: 0 is a default route.
    pub fn find(&self, addr: IpAddr) -> Option<(P, u8)> {
        let addr = addr.to_canonical();
        let family = if addr.is_ipv4() { &self.v4 } else { &self.v6 };
        family
            .iter()
            .rev()
            .find_map(|(len, map)| map.get(&IpPrefix::new(addr, *len)).map(|peer| (*peer, *len)))
    }
}

/// Whose an address is, for a peer that speaks for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// The peer's, by a prefix of this length.
    Its(u8),
    /// Another peer's.
    Another,
    /// No peer's.
    Nobody,
}

/// Prefixes of this node's peers and of those that other threads have.
#[derive(Debug, Default)]
pub(crate) struct Owners {
    pub here: Routes,
    elsewhere: Routes<()>,
}

impl Owners {
    /// Prefixes of peers that other relays of this node have.
    pub fn set_elsewhere(&mut self, prefixes: impl IntoIterator<Item = IpPrefix>) {
        self.elsewhere = Routes::default();
        prefixes.into_iter().for_each(|prefix| self.elsewhere.insert(prefix, ()));
    }

    /// Is `addr` behind a peer, another shard's too, and not only where all of the Internet is?
    pub fn is_behind_a_peer(&self, addr: IpAddr) -> bool {
        self.here.find(addr).is_some_and(|(_, length)| length > 0)
            || self.elsewhere.find(addr).is_some_and(|(_, length)| length > 0)
    }

    /// May the peer send from `addr`? Not if a longer prefix is another's. Answers the length
    /// of the prefix that says so: 0 is a default route.
    pub fn owned(&self, peer: PeerId, addr: IpAddr) -> Option<u8> {
        match self.owner(peer, addr) {
            Owner::Its(len) => Some(len),
            Owner::Another | Owner::Nobody => None,
        }
    }

    /// Whose `addr` is, as the peer sees it.
    pub fn owner(&self, peer: PeerId, addr: IpAddr) -> Owner {
        match (self.here.find(addr), self.elsewhere.find(addr)) {
            (None, None) => Owner::Nobody,
            (Some((owner, len)), other)
                if owner == peer && other.is_none_or(|((), other)| other < len) =>
            {
                Owner::Its(len)
            }
            _ => Owner::Another,
        }
    }
}

/// Is the address in one of these networks, which is longer than the prefix?
pub(crate) fn is_in_longer(networks: &[IpPrefix], address: IpAddr, prefix: u8) -> bool {
    networks.iter().any(|network| network.len() > prefix && network.contains(address))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_prefix_wins_and_mapped_forms_mean_the_same() {
        let mut routes = Routes::default();
        let (hub, ship) = (PeerId::from_index(0), PeerId::from_index(1));
        routes.insert("0.0.0.0/0".parse().unwrap(), hub);
        routes.insert("10.1.0.0/16".parse().unwrap(), ship);
        routes.insert("::/0".parse().unwrap(), hub);
        let at = |routes: &Routes, s: &str| routes.lookup(s.parse().unwrap());
        assert_eq!(at(&routes, "10.1.2.3"), Some(ship));
        assert_eq!(at(&routes, "::ffff:10.1.2.3"), Some(ship));
        assert_eq!(at(&routes, "10.2.0.1"), Some(hub));
        assert_eq!(at(&routes, "2001:db8::1"), Some(hub));
        routes.remove(&"0.0.0.0/0".parse().unwrap(), ship);
        assert_eq!(at(&routes, "10.2.0.1"), Some(hub), "it is not the ship's");
        routes.remove(&"0.0.0.0/0".parse().unwrap(), hub);
        assert_eq!(routes.lookup("10.2.0.1".parse().unwrap()), None);
    }
}
