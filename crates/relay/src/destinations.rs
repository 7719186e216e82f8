//! The destination cache: which servers behind a peer answered in the last hour, and which did
//! not. A client that connects to one that answered gets its SYN-ACK before the far connection
//! is established (`open = "auto"`, R-SEMANTICS).

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use link::PeerId;
use link::wire::Target;
use units::{Duration, Instant, IpPrefix};

/// How long an answer counts (R-SEMANTICS, `auto`: "within the last hour").
const AGE: Duration = Duration::from_secs(3600);
/// Entries of each kind that are kept; the oldest gives way. About 200 bytes each.
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
#[derive(Debug, Default)]
pub(crate) struct DestinationCache {
    answered: Aged<(PeerId, Destination)>,
    /// Servers that did not answer although their site was known to.
    failed: Aged<(PeerId, SocketAddr)>,
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

    /// A connection to `target` was established.
    pub fn on_answer(&mut self, now: Instant, peer: PeerId, target: &Target) {
        let destination = match target {
            Target::Service(..) => return,
            Target::Name(name, port) => Destination::Name(name.clone(), *port),
            Target::Address(to) => {
                self.failed.forget(&(peer, *to));
                self.answered.note(now, (peer, Destination::Family(is_v4(to.ip()))));
                site(*to)
            }
        };
        self.answered.note(now, (peer, destination));
    }

    /// A connection to `target` failed.
    pub fn on_failure(&mut self, now: Instant, peer: PeerId, target: &Target, listed: &[u16]) {
        match target {
            Target::Name(name, port) => {
                self.answered.forget(&(peer, Destination::Name(name.clone(), *port)));
            }
            // Only a failure that contradicts the cache is kept: a port scan is not.
            Target::Address(to) if self.expects(now, peer, target, listed) => {
                self.failed.note(now, (peer, *to));
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
#[derive(Debug)]
pub(crate) struct Aged<K> {
    noted: BTreeMap<K, Instant>,
    order: BTreeSet<(Instant, K)>,
}

impl<K> Default for Aged<K> {
    fn default() -> Aged<K> {
        Aged { noted: BTreeMap::new(), order: BTreeSet::new() }
    }
}

impl<K: Ord + Clone> Aged<K> {
    pub fn note(&mut self, now: Instant, key: K) {
        if let Some(before) = self.noted.insert(key.clone(), now) {
            self.order.remove(&(before, key.clone()));
        }
        self.order.insert((now, key));
        if self.noted.len() > MOST
            && let Some((_, oldest)) = self.order.pop_first()
        {
            self.noted.remove(&oldest);
        }
    }

    pub fn holds(&self, now: Instant, key: &K) -> bool {
        self.noted.get(key).is_some_and(|at| now.since(*at) < AGE)
    }

    pub fn forget(&mut self, key: &K) {
        if let Some(at) = self.noted.remove(key) {
            self.order.remove(&(at, key.clone()));
        }
    }

    pub fn retain(&mut self, keep: impl Fn(&K) -> bool) {
        self.noted.retain(|key, _| keep(key));
        self.order.retain(|(_, key)| keep(key));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WEB: [u16; 2] = [80, 443];

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
        cache.on_answer(at(0), peer, &to("192.0.2.1:22"));
        cache.on_answer(at(0), peer, &to("[2001:db8:1::1]:22"));
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
        cache.on_answer(at(0), peer, &to("192.0.2.1:22"));
        assert!(cache.expects(at(1), peer, &to("198.51.100.1:443"), &WEB));
        assert!(!cache.expects(at(1), peer, &to("198.51.100.1:25"), &WEB));
        assert!(!cache.expects(at(1), peer, &to("[2001:db8::1]:443"), &WEB));
    }

    #[test]
    fn a_server_that_fails_is_asked_first_until_it_answers() {
        let (mut cache, peer) = (DestinationCache::default(), PeerId::from_index(0));
        cache.on_answer(at(0), peer, &to("192.0.2.1:80"));
        cache.on_failure(at(1), peer, &to("192.0.2.7:80"), &WEB);
        assert!(!cache.expects(at(2), peer, &to("192.0.2.7:80"), &WEB));
        assert!(cache.expects(at(2), peer, &to("192.0.2.1:80"), &WEB), "the others answer");
        cache.on_answer(at(3), peer, &to("192.0.2.7:80"));
        assert!(cache.expects(at(4), peer, &to("192.0.2.7:80"), &WEB));
        let name = Target::Name("a.example".into(), 80);
        cache.on_answer(at(5), peer, &name);
        assert!(cache.expects(at(6), peer, &name, &WEB));
        cache.on_failure(at(7), peer, &name, &WEB);
        assert!(!cache.expects(at(8), peer, &name, &WEB));
    }

    #[test]
    fn entries_are_bounded_and_the_oldest_goes() {
        let mut aged = Aged::default();
        for n in 0..2 * MOST as u64 {
            aged.note(at(n / 1000), n);
            aged.note(at(n / 1000), 0);
        }
        assert_eq!((aged.noted.len(), aged.order.len()), (MOST, MOST));
        assert!(aged.holds(at(9), &0), "what is noted again stays");
        assert!(!aged.holds(at(9), &1));
        assert!(aged.holds(at(9), &(2 * MOST as u64 - 1)));
    }
}
