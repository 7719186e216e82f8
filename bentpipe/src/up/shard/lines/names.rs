//! By which names hosts know addresses, as they were told in DNS answers: [`HostNames`].
//!
//! Rules of a line may be by name, and a connection's packets have only an address.

use std::collections::BTreeMap;
use std::net::IpAddr;

use dial::books::Name;
use relay::dns::Named;
use units::{Duration, Instant, Shares, host_in_network};

/// Addresses that are remembered; the oldest of the host that has the most give way.
const MOST: usize = 4_096;
/// An address that has two names within this time has none: a rule for the one is not for the
/// other.
const APART: Duration = Duration::from_secs(3_600);

struct Known {
    /// `None`: several.
    name: Option<Name>,
    told: Instant,
}

/// A host, and an address that it knows.
type Place = (IpAddr, IpAddr);

/// Names by host and address.
#[derive(Default)]
pub(in crate::up::shard) struct HostNames {
    of: BTreeMap<Place, Known>,
    /// Places by the order in which they were taken.
    shares: Shares<IpAddr, IpAddr, (u64, Place)>,
    last: u64,
}

impl HostNames {
    /// A host was answered.
    pub fn told(&mut self, now: Instant, host: IpAddr, named: &Named) {
        let name: Name = named.name.to_ascii_lowercase().into();
        for addr in &named.addresses {
            let place = (host, *addr);
            match self.of.get_mut(&place) {
                Some(known) => {
                    let is_other = known.name.as_ref() != Some(&name);
                    let is_late = now.since(known.told) >= APART;
                    known.name = (!is_other || is_late).then(|| name.clone());
                    known.told = now;
                }
                None => {
                    self.last += 1;
                    self.shares.add(&host_in_network(host), (self.last, place), 1);
                    self.of.insert(place, Known { name: Some(name.clone()), told: now });
                }
            }
        }
        while self.of.len() > MOST
            && let Some(oldest) = self.shares.gives_way().copied()
        {
            let (_, place) = oldest;
            self.shares.remove(&host_in_network(place.0), &oldest);
            self.of.remove(&place);
        }
    }

    /// The one name by which the host knows the address.
    pub fn get(&self, host: IpAddr, addr: IpAddr) -> Option<Name> {
        self.of.get(&(host, addr))?.name.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str, addr: &str) -> Named {
        let addresses = vec![addr.parse().expect("an address")];
        Named { name: name.into(), addresses, ..Named::default() }
    }

    #[test]
    fn an_address_has_the_name_that_its_host_was_told_and_none_of_two() {
        let mut names = HostNames::default();
        let [host, other, addr] = ["10.1.0.2", "10.1.0.3", "192.0.2.1"].map(|a| a.parse().unwrap());
        let at = |seconds| Instant::ZERO + Duration::from_secs(seconds);
        names.told(at(0), host, &named("Captive.Apple.com", "192.0.2.1"));
        assert_eq!(names.get(host, addr).as_deref(), Some("captive.apple.com"));
        assert_eq!(names.get(other, addr), None);
        // One content network serves noise and pages by one address.
        names.told(at(10), host, &named("www.example.org", "192.0.2.1"));
        assert_eq!(names.get(host, addr), None);
        names.told(at(20), host, &named("www.example.org", "192.0.2.1"));
        assert_eq!(names.get(host, addr), None, "it had two a moment ago");
        names.told(at(20 + 3_600), host, &named("www.example.org", "192.0.2.1"));
        assert_eq!(names.get(host, addr).as_deref(), Some("www.example.org"));
    }

    #[test]
    fn the_oldest_give_way() {
        let mut names = HostNames::default();
        let host = "10.1.0.2".parse().unwrap();
        let addr = |n: u32| IpAddr::from((0x0a00_0000 + n).to_be_bytes());
        for n in 0..=MOST as u32 {
            names.told(Instant::ZERO, host, &named(&format!("h{n}.org"), &addr(n).to_string()));
        }
        assert_eq!((names.of.len(), names.shares.sum()), (MOST, MOST));
        assert_eq!(names.get(host, addr(0)), None);
        assert!(names.get(host, addr(MOST as u32)).is_some());
    }

    #[test]
    fn a_host_that_knows_everybody_leaves_the_others_what_they_know() {
        let mut names = HostNames::default();
        let addr = |n: u32| IpAddr::from((0xc000_0000 + n).to_be_bytes());
        let [one, neighbour] = ["10.1.0.2", "10.2.0.2"].map(|a| a.parse().unwrap());
        for host in [one, neighbour] {
            names.told(Instant::ZERO, host, &named("www.example.org", "192.0.2.1"));
        }
        // By the addresses of all its network, too.
        for n in 0..5 * MOST as u32 {
            let hog = IpAddr::from([10, 1, 0, 3 + (n % 250) as u8]);
            names.told(Instant::ZERO, hog, &named(&format!("h{n}.org"), &addr(n).to_string()));
        }
        assert_eq!(names.of.len(), MOST);
        for host in [one, neighbour] {
            let name = names.get(host, "192.0.2.1".parse().unwrap());
            assert_eq!(name.as_deref(), Some("www.example.org"), "{host}");
        }
    }
}
