//! The hosts of a LAN as the scheduler knows them: by address, each with what it sent lately.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;

use units::{BitRate, Instant};

use crate::traffic::HostId;

#[derive(Clone, Copy, Debug, Default)]
struct Host {
    address: Option<IpAddr>,
    /// Streams and waiting datagrams that name it.
    uses: u32,
    /// Bytes it sent lately beyond its part of the link.
    recent: u64,
    at: Instant,
    /// The same of what went before others, in strict classes.
    quick: u64,
    quick_at: Instant,
    /// That was more than it may.
    over: bool,
}

/// Hosts that streams and datagrams name.
#[derive(Debug)]
pub(crate) struct Hosts {
    hosts: Vec<Host>,
    by_address: BTreeMap<IpAddr, HostId>,
    free: Vec<HostId>,
    /// Hosts that nothing names, the one that was named last behind.
    idle: VecDeque<HostId>,
}

/// Hosts beyond this many share one place: that of this node.
const MAX: usize = 4096;
/// What so many hosts sent lately is remembered while nothing names them. A host whose packets
/// leave at once, because they go before all others, has none that waits.
const MOST_IDLE: usize = 64;
/// What a host may send beyond its part before its small streams lose their privilege: some
/// pages.
const LIGHT: u64 = 256 * 1024;
/// The same of what goes in strict classes.
const QUICK: u64 = 64 * 1024;

impl Default for Hosts {
    fn default() -> Hosts {
        // The first is this node, and whoever has no address.
        Hosts {
            hosts: vec![Host::default()],
            by_address: BTreeMap::new(),
            free: Vec::new(),
            idle: VecDeque::new(),
        }
    }
}

impl Hosts {
    /// Forgets all of them, if nothing names one.
    pub fn shrink(&mut self) {
        if self.by_address.len() == self.idle.len() {
            *self = Hosts::default();
        }
    }

    /// One more stream or datagram names the host.
    pub fn hold(&mut self, address: Option<IpAddr>) -> HostId {
        let Some(address) = address.map(|a| a.to_canonical()) else { return HostId::default() };
        if let Some(&id) = self.by_address.get(&address) {
            let host = &mut self.hosts[id.index()];
            if host.uses == 0 {
                self.idle.retain(|idle| *idle != id);
            }
            host.uses += 1;
            return id;
        }
        let id = match self.free.pop() {
            Some(id) => id,
            None if self.hosts.len() >= MAX => return HostId::default(),
            None => {
                self.hosts.push(Host::default());
                HostId::from_index(self.hosts.len() - 1)
            }
        };
        self.hosts[id.index()] = Host { address: Some(address), uses: 1, ..Host::default() };
        self.by_address.insert(address, id);
        id
    }

    /// One more does of those that name it already.
    pub fn hold_again(&mut self, id: HostId) {
        let host = &mut self.hosts[id.index()];
        host.uses += u32::from(host.address.is_some());
    }

    /// One less does.
    pub fn release(&mut self, id: HostId) {
        let host = &mut self.hosts[id.index()];
        if host.address.is_none() {
            return;
        }
        host.uses -= 1;
        if host.uses > 0 {
            return;
        }
        self.idle.push_back(id);
        if self.idle.len() > MOST_IDLE {
            // One that keeps to its part is not missed.
            let of = |id: &HostId| self.hosts[id.index()].quick < QUICK / 2;
            let first = self.idle.iter().position(of).unwrap_or_default();
            if let Some(id) = self.idle.remove(first) {
                self.forget(id);
            }
        }
    }

    fn forget(&mut self, id: HostId) {
        if let Some(address) = self.hosts[id.index()].address.take() {
            self.by_address.remove(&address);
            self.free.push(id);
        }
    }

    /// Streams and datagrams that name a host.
    #[cfg(test)]
    pub fn holds(&self) -> u32 {
        self.hosts.iter().filter(|h| h.address.is_some()).map(|h| h.uses).sum()
    }

    /// Bytes of the host left: `first`, in a strict class.
    pub fn on_sent(&mut self, id: HostId, bytes: u64, first: bool) {
        let host = &mut self.hosts[id.index()];
        host.recent = host.recent.saturating_add(bytes);
        if first {
            host.quick = host.quick.saturating_add(bytes);
        }
    }

    /// Does what the host sends in strict classes keep to its part of the link? Many small streams
    /// of one host are none.
    pub fn is_quick(&mut self, id: HostId, now: Instant, rate: BitRate, others: usize) -> bool {
        let host = &mut self.hosts[id.index()];
        let part = rate.bytes_in(now.since(host.quick_at)).0 / (others as u64 + 1);
        if part > 0 {
            host.quick = host.quick.saturating_sub(part);
            host.quick_at = now;
        }
        host.quick < QUICK
    }

    /// The same for packets, which overtake each other where they change class: one that did not
    /// keep to its part has to owe less by half before it does again.
    pub fn stays_quick(&mut self, id: HostId, now: Instant, rate: BitRate, others: usize) -> bool {
        let is_quick = self.is_quick(id, now, rate, others);
        let host = &mut self.hosts[id.index()];
        host.over = !is_quick || host.over && host.quick >= QUICK / 2;
        !host.over
    }

    /// Does the host keep to its part of the link, of which `others` hosts want one too?
    pub fn is_light(&mut self, id: HostId, now: Instant, rate: BitRate, others: usize) -> bool {
        let host = &mut self.hosts[id.index()];
        let part = rate.bytes_in(now.since(host.at)).0 / (others as u64 + 1);
        // Time of which no byte has become yet stays on the clock.
        if part > 0 {
            host.recent = host.recent.saturating_sub(part);
            host.at = now;
        }
        host.recent < LIGHT
    }
}

#[cfg(test)]
mod tests {
    use units::Duration;

    use super::*;

    #[test]
    fn a_host_is_one_while_something_names_it_and_a_crowd_shares_a_place() {
        let mut hosts = Hosts::default();
        let at = |n: u32| Some(IpAddr::from((10u32 << 24 | n).to_be_bytes()));
        let (a, b) = (hosts.hold(at(1)), hosts.hold(at(2)));
        assert!(a != b && a == hosts.hold(at(1)) && a != HostId::default());
        hosts.release(a);
        assert_eq!(hosts.hold(Some("::ffff:10.0.0.1".parse().unwrap())), a);
        hosts.on_sent(a, 2 * QUICK, true);
        for _ in 0..2 {
            hosts.release(a);
        }
        let now = Instant::from_nanos(1);
        let rate = BitRate::from_kbps(8);
        assert_eq!(hosts.hold(at(1)), a, "it is remembered");
        assert!(!hosts.is_quick(a, now, rate, 0), "with what it sent");
        hosts.release(a);
        for n in 100..100 + MOST_IDLE as u32 {
            let id = hosts.hold(at(n));
            assert_ne!(id, a, "those who owe nothing go first");
            hosts.release(id);
        }
        assert!(hosts.idle.len() == MOST_IDLE && hosts.by_address.len() == MOST_IDLE + 1);
        let again = now + Duration::from_secs(100);
        assert!(hosts.hold(at(1)) == a && hosts.is_quick(a, again, rate, 0), "it has paid");
        hosts.release(a);
        for n in 1_000..1_000 + 2 * MOST_IDLE as u32 {
            let id = hosts.hold(at(n));
            hosts.release(id);
        }
        assert!(!hosts.by_address.contains_key(&at(1).unwrap()), "one of so many");
        for n in 4..20_000 {
            let id = hosts.hold(at(n));
            assert!(id.index() < MAX);
        }
        assert_eq!(hosts.hold(at(30_000)), HostId::default());
        hosts.release(HostId::default());
        assert_eq!(hosts.by_address.len(), MAX - 1);
    }
}
