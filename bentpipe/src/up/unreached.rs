//! Packets that did not arrive, as far as ICMP or the system says so: for the operator to
//! read, and of no effect on what is sent. Anybody can forge ICMP, so little is kept.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};

use os::udp::{Icmp, NotArrived};
use units::{Duration, Instant};

/// Addresses that are remembered; the one not told of for longest gives way.
const MAX_ADDRESSES: usize = 64;
/// What is older says nothing of the present: initiations come at least so often.
const FRESH: Duration = Duration::from_secs(400);

/// Why packets to an address do not arrive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// A router or the host there said so, if it is known who.
    Icmp(Icmp, Option<IpAddr>),
    /// This system did not send them.
    System(String),
}

/// The last that was told of each address.
#[derive(Default)]
pub struct Unreached {
    addresses: BTreeMap<SocketAddr, (Instant, Why)>,
}

impl Unreached {
    /// ICMP told of a packet.
    pub fn on_icmp(&mut self, now: Instant, told: NotArrived) {
        self.note(now, told.to, Why::Icmp(told.icmp, told.by));
    }

    /// The system refused to send.
    pub fn on_refused(&mut self, now: Instant, to: SocketAddr, error: &io::Error) {
        self.note(now, to, Why::System(crate::human::reason(error)));
    }

    fn note(&mut self, now: Instant, to: SocketAddr, why: Why) {
        let to = canonical(to);
        if self.addresses.len() >= MAX_ADDRESSES
            && !self.addresses.contains_key(&to)
            && let Some(oldest) =
                self.addresses.iter().min_by_key(|(_, (at, _))| *at).map(|(to, _)| *to)
        {
            self.addresses.remove(&oldest);
        }
        self.addresses.insert(to, (now, why));
    }

    /// Why packets to `to` did not arrive lately.
    pub fn why(&self, now: Instant, to: SocketAddr) -> Option<&Why> {
        let (at, why) = self.addresses.get(&canonical(to))?;
        (now.since(*at) < FRESH).then_some(why)
    }
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn the_last_that_was_told_of_an_address_counts_while_it_is_fresh() {
        let mut unreached = Unreached::default();
        let to: SocketAddr = "192.0.2.2:4500".parse().unwrap();
        let mapped: SocketAddr = "[::ffff:192.0.2.2]:4500".parse().unwrap();
        let told = |icmp| NotArrived { to: mapped, icmp, by: None };
        unreached.on_icmp(at(1), told(Icmp::HostUnreachable));
        unreached.on_icmp(at(2), told(Icmp::PortUnreachable));
        assert_eq!(unreached.why(at(3), to), Some(&Why::Icmp(Icmp::PortUnreachable, None)));
        assert_eq!(unreached.why(at(500), to), None);
        assert_eq!(unreached.why(at(3), "192.0.2.2:4501".parse().unwrap()), None);
    }

    #[test]
    fn forged_errors_take_little_memory() {
        let mut unreached = Unreached::default();
        for n in 0..10_000u16 {
            let to = SocketAddr::from(([192, 0, 2, 1], n));
            unreached
                .on_icmp(at(u64::from(n)), NotArrived { to, icmp: Icmp::Prohibited, by: None });
        }
        assert_eq!(unreached.addresses.len(), MAX_ADDRESSES);
    }
}
