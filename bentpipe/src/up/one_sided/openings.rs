//! Connections whose server has not answered, by the hosts that ask.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use units::HostShares;

/// The most of them. Beyond that whoever has the most loses its oldest, so that neither one host
/// nor forged SYNs keep others from connecting.
const MOST: usize = 4096;
/// A host with so many or fewer is one of many.
const FEW: usize = 8;

/// A client's address and a server's.
pub type Ends = (SocketAddr, SocketAddr);

/// The table of them: numbers of connections, of which later ones are larger.
pub struct Openings {
    numbers: BTreeMap<Ends, u64>,
    shares: HostShares<u64>,
}

impl Openings {
    /// None.
    pub fn new() -> Openings {
        Openings { numbers: BTreeMap::new(), shares: HostShares::new(FEW) }
    }

    /// Are there none?
    pub fn is_empty(&self) -> bool {
        self.numbers.is_empty()
    }

    /// The connection between these.
    pub fn get(&self, ends: &Ends) -> Option<u64> {
        self.numbers.get(ends).copied()
    }

    /// All of them.
    pub fn numbers(&self) -> impl Iterator<Item = u64> {
        self.numbers.values().copied()
    }

    /// The one that has to be removed before the host has one more, if there is no room.
    pub fn gives_way_to(&self, host: IpAddr) -> Option<u64> {
        (self.numbers.len() >= MOST).then(|| self.shares.gives_way_to(host).copied())?
    }

    /// One more, between ends that have none.
    pub fn add(&mut self, ends: Ends, number: u64) {
        self.numbers.insert(ends, number);
        self.shares.add(ends.0.ip(), number);
    }

    /// It is over, if it was there.
    pub fn remove(&mut self, ends: &Ends) {
        if let Some(number) = self.numbers.remove(ends) {
            self.shares.remove(ends.0.ip(), &number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As a SYN is admitted; the number that gave way.
    fn admit(openings: &mut Openings, client: &str, number: u64) -> Option<u64> {
        let port = 1024 + number as u16;
        let ends = |port| (SocketAddr::new(client.parse().expect("an address"), port), server());
        let gone = openings.gives_way_to(ends(port).0.ip());
        let of_gone = openings.numbers.iter().find(|(_, n)| Some(**n) == gone).map(|(e, _)| *e);
        of_gone.iter().for_each(|ends| openings.remove(ends));
        openings.add(ends(port), number);
        gone
    }

    fn server() -> SocketAddr {
        SocketAddr::from(([10, 2, 0, 2], 80))
    }

    #[test]
    fn a_host_that_asks_for_all_there_is_gives_way_to_another() {
        let mut openings = Openings::new();
        for number in 0..MOST as u64 {
            assert_eq!(admit(&mut openings, "10.1.0.2", number), None);
        }
        for (n, other) in ["10.1.0.3", "10.9.0.1", "10.1.0.3"].iter().enumerate() {
            let number = MOST as u64 + n as u64;
            assert_eq!(admit(&mut openings, other, number), Some(n as u64), "its oldest");
            assert!(openings.numbers().any(|there| there == number), "it is admitted");
        }
        // Nor has it more for asking on.
        let number = MOST as u64 + 3;
        assert_eq!(admit(&mut openings, "10.1.0.2", number), Some(3));
        assert_eq!((openings.numbers.len(), openings.shares.len()), (MOST, MOST));
    }

    #[test]
    fn forged_addresses_of_one_network_give_way_to_a_host_of_another() {
        let mut openings = Openings::new();
        for number in 0..MOST as u64 {
            assert_eq!(admit(&mut openings, &format!("10.1.0.{}", number % 256), number), None);
        }
        let number = MOST as u64;
        assert!(admit(&mut openings, "10.9.0.1", number).is_some());
        assert!(openings.numbers().any(|there| there == number));
    }
}
