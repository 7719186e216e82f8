//! The destination cache: which servers behind a peer answered in the last hour, and which did
//! not. A client that connects to one that answered gets its SYN-ACK before the far connection
//! is established (`open = "auto"`, R-SEMANTICS).

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use link::PeerId;
use link::wire::Target;
use units::{Duration, Instant, IpPrefix, Shares, host_in_network, one_host};

/// How long an answer counts (R-SEMANTICS, `auto`: "within the last hour").
const AGE: Duration = Duration::from_secs(3600);
/// Entries of each kind that are kept. About 500 bytes each.
const MOST: usize = 4096;

/// Neighbouring addresses belong to one site: if one of them answered at a port, all are
/// expected to. These are the usual sizes of a site's own prefixes.
const SITE_V4: u8 = 24;
const SITE_V6: u8 = 48;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Destination {
    /// A site's prefix, and the port.
    Site(IpPrefix, u16),
    /// A name that the far node resolves, and the port.
    Name(String, u16),
    /// An address family (true: IPv4), whatever the site.
    Family(bool),
}

/// What is known of the destinations behind all peers.
///
/// Entries are their clients', by network: one that goes everywhere makes others' opens no slower.
#[derive(Debug, Default)]
pub(crate) struct DestinationCache {
    answered: Aged<Network, Network, (PeerId, Destination)>,
    /// Servers that did not answer although their site was known to.
    failed: Aged<Network, Network, (PeerId, SocketAddr)>,
}

/// A client, or its network; `None`: it is not known.
type Network = Option<IpAddr>;

fn holder(client: Option<IpAddr>) -> (Network, Network) {
    (client.map(|client| host_in_network(client).0), client.map(one_host))
}

impl DestinationCache {
    /// Is an answer to be expected from `target`? `listed`: ports at which every site is
    /// expected to answer, if anything of its address family has answered.
    pub fn expects(&self, now: Instant, peer: PeerId, target: &Target, listed: &[u16]) -> bool {
        let answered = |destination| self.answered.holds(now, &(peer, destination));
        match target {
            Target::Name(name, port) => answered(Destination::Name(name.clone(), *port)),
            Target::Service(..) => false,
            Target::Address(to) if self.failed.holds(now, &(peer, *to)) => false,
            Target::Address(to) => {
                let works = || answered(Destination::Family(is_v4(to.ip())));
                answered(site(*to)) || listed.contains(&to.port()) && works()
            }
        }
    }

    /// A connection of `client` to `target` was established.
    pub fn on_answer(
        &mut self,
        now: Instant,
        client: Option<IpAddr>,
        peer: PeerId,
        target: &Target,
    ) {
        let by = holder(client);
        let destination = match target {
            Target::Service(..) => return,
            Target::Name(name, port) => Destination::Name(name.clone(), *port),
            Target::Address(to) => {
                self.failed.forget(&(peer, *to));
                self.answered.note(now, &by, (peer, Destination::Family(is_v4(to.ip()))));
                site(*to)
            }
        };
        self.answered.note(now, &by, (peer, destination));
    }

    /// A connection of `client` to `target` failed.
    pub fn on_failure(
        &mut self,
        now: Instant,
        client: Option<IpAddr>,
        peer: PeerId,
        target: &Target,
        listed: &[u16],
    ) {
        match target {
            Target::Name(name, port) => {
                self.answered.forget(&(peer, Destination::Name(name.clone(), *port)));
            }
            // Only a failure that contradicts the cache is kept: a port scan is not.
            Target::Address(to) if self.expects(now, peer, target, listed) => {
                self.failed.note(now, &holder(client), (peer, *to));
            }
            Target::Address(_) | Target::Service(..) => {}
        }
    }

    /// The peer was removed.
    pub fn forget_peer(&mut self, peer: PeerId) {
        self.answered.retain(|(p, _)| *p != peer);
        self.failed.retain(|(p, _)| *p != peer);
    }
}

fn is_v4(addr: IpAddr) -> bool {
    addr.to_canonical().is_ipv4()
}

fn site(to: SocketAddr) -> Destination {
    let addr = to.ip().to_canonical();
    let len = if addr.is_ipv4() { SITE_V4 } else { SITE_V6 };
    Destination::Site(IpPrefix::new(addr, len), to.port())
}

/// A bounded set whose members are forgotten [`AGE`] after they were last noted.
///
/// Each is the holder's who noted it first, a member of a group. When there are too many, the group
/// with the most loses its oldest ([`Shares`]).
#[derive(Debug)]
pub(crate) struct Aged<G, M, K> {
    noted: BTreeMap<K, (Instant, (G, M))>,
    shares: Shares<G, M, (Instant, K)>,
}

impl<G, M, K> Default for Aged<G, M, K> {
    fn default() -> Aged<G, M, K> {
        Aged { noted: BTreeMap::new(), shares: Shares::default() }
    }
}

impl<G: Ord + Clone, M: Ord + Clone, K: Ord + Clone> Aged<G, M, K> {
    pub fn note(&mut self, now: Instant, by: &(G, M), key: K) {
        // Who notes what others need, too, does not take it along when it loses its own.
        let by = match self.forget(&key) {
            Some((at, first)) if now.since(at) < AGE => first,
            _ => by.clone(),
        };
        self.shares.add(&by, (now, key.clone()), 1);
        self.noted.insert(key, (now, by));
        if self.noted.len() > MOST
            && let Some((_, key)) = self.shares.gives_way().cloned()
        {
            self.forget(&key);
        }
    }

    pub fn holds(&self, now: Instant, key: &K) -> bool {
        self.noted.get(key).is_some_and(|(at, _)| now.since(*at) < AGE)
    }

    /// Answers when it was noted, and whose it was.
    pub fn forget(&mut self, key: &K) -> Option<(Instant, (G, M))> {
        let (at, by) = self.noted.remove(key)?;
        self.shares.remove(&by, &(at, key.clone()));
        Some((at, by))
    }

    pub fn retain(&mut self, keep: impl Fn(&K) -> bool) {
        let others: Vec<K> = self.noted.keys().filter(|key| !keep(key)).cloned().collect();
        others.iter().for_each(|key| drop(self.forget(key)));
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const WEB: [u16; 2] = [80, 443];
    const CLIENT: Option<IpAddr> = Some(IpAddr::V4(Ipv4Addr::new(10, 1, 0, 2)));

    fn to(text: &str) -> Target {
        Target::Address(text.parse().unwrap())
    }

    fn at(secs: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(secs)
    }

    #[test]
    fn a_site_and_port_that_answered_is_expected_to_for_an_hour() {
        let (mut cache, peer) = (DestinationCache::default(), PeerId::from_index(0));
        let expects =
            |cache: &DestinationCache, secs, t| cache.expects(at(secs), peer, &to(t), &[]);
        assert!(!expects(&cache, 0, "192.0.2.1:22"));
        cache.on_answer(at(0), CLIENT, peer, &to("192.0.2.1:22"));
        cache.on_answer(at(0), CLIENT, peer, &to("[2001:db8:1::1]:22"));
        for (target, expected) in [
            ("192.0.2.1:22", true),
            ("192.0.2.200:22", true),
            ("192.0.2.1:23", false),
            ("192.0.3.1:22", false),
            ("[2001:db8:1:2::9]:22", true),
            ("[2001:db8:2::1]:22", false),
            ("[::ffff:192.0.2.9]:22", true),
        ] {
            assert_eq!(expects(&cache, 3599, target), expected, "{target}");
        }
        assert!(!expects(&cache, 3600, "192.0.2.1:22"));
        let other = PeerId::from_index(1);
        assert!(!cache.expects(at(1), other, &to("192.0.2.1:22"), &[]));
        cache.forget_peer(peer);
        assert!(!expects(&cache, 1, "192.0.2.1:22"));
    }

    #[test]
    fn a_listed_port_is_expected_to_answer_where_its_family_works() {
        let (mut cache, peer) = (DestinationCache::default(), PeerId::from_index(0));
        cache.on_answer(at(0), CLIENT, peer, &to("192.0.2.1:22"));
        assert!(cache.expects(at(1), peer, &to("198.51.100.1:443"), &WEB));
        assert!(!cache.expects(at(1), peer, &to("198.51.100.1:25"), &WEB));
        assert!(!cache.expects(at(1), peer, &to("[2001:db8::1]:443"), &WEB));
    }

    #[test]
    fn a_server_that_fails_is_asked_first_until_it_answers() {
        let (mut cache, peer) = (DestinationCache::default(), PeerId::from_index(0));
        cache.on_answer(at(0), CLIENT, peer, &to("192.0.2.1:80"));
        cache.on_failure(at(1), CLIENT, peer, &to("192.0.2.7:80"), &WEB);
        assert!(!cache.expects(at(2), peer, &to("192.0.2.7:80"), &WEB));
        assert!(cache.expects(at(2), peer, &to("192.0.2.1:80"), &WEB), "the others answer");
        cache.on_answer(at(3), CLIENT, peer, &to("192.0.2.7:80"));
        assert!(cache.expects(at(4), peer, &to("192.0.2.7:80"), &WEB));
        let name = Target::Name("a.example".into(), 80);
        cache.on_answer(at(5), CLIENT, peer, &name);
        assert!(cache.expects(at(6), peer, &name, &WEB));
        cache.on_failure(at(7), CLIENT, peer, &name, &WEB);
        assert!(!cache.expects(at(8), peer, &name, &WEB));
    }

    #[test]
    fn entries_are_bounded_and_the_oldest_goes() {
        let mut aged = Aged::default();
        for n in 0..2 * MOST as u64 {
            aged.note(at(n / 1000), &((), ()), n);
            aged.note(at(n / 1000), &((), ()), 0);
        }
        assert_eq!((aged.noted.len(), aged.shares.sum()), (MOST, MOST));
        assert!(aged.holds(at(9), &0), "what is noted again stays");
        assert!(!aged.holds(at(9), &1));
        assert!(aged.holds(at(9), &(2 * MOST as u64 - 1)));
        aged.retain(|n| n % 2 == 0);
        assert!((aged.noted.len(), aged.shares.sum()) == (MOST / 2, MOST / 2));
    }

    #[test]
    fn a_client_that_goes_everywhere_leaves_the_others_their_destinations() {
        for from in [|_| [10, 1, 0, 3].into(), |n: u128| (0xfd01 << 112 | n).to_be_bytes().into()] {
            let (mut cache, peer) = (DestinationCache::default(), PeerId::from_index(0));
            cache.on_answer(at(0), CLIENT, peer, &to("192.0.2.1:22"));
            cache.on_answer(at(0), CLIENT, peer, &to("198.51.100.1:22"));
            cache.on_failure(at(0), CLIENT, peer, &to("198.51.100.9:22"), &[]);
            for n in 0..2 * MOST as u32 {
                let (hog, site) = (Some(from(n.into())), to(&format!("203.0.113.1:{}", 1 + n)));
                cache.on_answer(at(1), hog, peer, &site);
                cache.on_failure(at(1), hog, peer, &to(&format!("203.0.113.2:{}", 1 + n)), &[]);
                // It goes there, too, which does not make it its own.
                cache.on_answer(at(1), hog, peer, &to("192.0.2.1:22"));
            }
            for (target, expected) in
                [("192.0.2.1:22", true), ("198.51.100.1:22", true), ("198.51.100.9:22", false)]
            {
                assert_eq!(cache.expects(at(2), peer, &to(target), &[]), expected, "{target}");
            }
        }
    }

    #[test]
    fn what_nobody_needed_for_an_hour_is_his_who_needs_it_next() {
        let mut aged = Aged::default();
        aged.note(at(0), &("a", ()), 1);
        aged.note(at(3599), &("b", ()), 1);
        assert_eq!(aged.forget(&1), Some((at(3599), ("a", ()))));
        aged.note(at(0), &("a", ()), 1);
        aged.note(at(3600), &("b", ()), 1);
        assert_eq!(aged.forget(&1), Some((at(3600), ("b", ()))));
    }
}
