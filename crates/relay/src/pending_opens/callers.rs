//! Which callers have SYNs pending, and whose SYN gives way when there are too many.
//!
//! A source that completed a handshake within the last hour is a *host*: its address is not
//! forged. All others together are *strangers*: new hosts, and every forged address. Each host is
//! a caller; all strangers together are one. Where too many hosts are known the network with the
//! most loses its oldest, so that one with many addresses makes no other network's hosts strangers.
//!
//! - When all places are taken, the caller with the most pending SYNs loses its oldest. A host
//!   with few loses none to one with many, and forged SYNs displace forged SYNs first. At 270
//!   forged SYNs a second a place lasts 15 s; a new host's server has answered long before.
//! - Each request costs some fifty bytes of the link. A caller may use a sixteenth of the link's
//!   rate for requests, with a burst of some dozens. Beyond that its SYNs are dropped. A
//!   stranger's retransmitted SYN has a second budget of the same size, because senders of forged
//!   SYNs seldom retransmit.
//! - A connection that is answered before the peer is asked costs as much, from the same budget of
//!   its host: at its SYN, or at the end of the handshake where the SYN was a stranger's. So forged
//!   SYNs, which are not asked for, use up nobody's budget there.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, SocketAddr};

use link::PeerId;
use units::{Instant, host_in_network};

use crate::debt::{Debt, ONE};
use crate::destinations::Aged;

/// The client's address and the server's.
type Pair = (SocketAddr, SocketAddr);

/// `None`: the strangers.
type Caller = Option<IpAddr>;

/// Link bytes for one request: OPEN with two addresses, RESET, and their share of the packets'
/// headers.
const COST: u64 = 64;
/// Requests may use one part in this many of the link's rate.
const PART: u64 = 16;
/// The burst of requests: this many on the slowest link, or so many seconds of the allowed rate
/// on a faster one.
const AT_ONCE: u64 = 64;
const AT_ONCE_SECONDS: u64 = 16;
/// Dropped SYNs of strangers that are remembered; the oldest is forgotten first.
const REMEMBERED: usize = 4096;
/// With more callers than this, those without debt are removed.
const DEBTORS: usize = 1024;

#[derive(Debug, Default)]
pub(super) struct Callers {
    /// Sources whose handshake was completed.
    hosts: Aged<IpAddr, (), IpAddr>,
    waiting: BTreeMap<Caller, BTreeSet<(Instant, Pair)>>,
    /// How many each has.
    counts: BTreeSet<(usize, Caller)>,
    callers: BTreeMap<Pair, Caller>,
    /// What callers have asked for: the first time, or (true) strangers again; and how many
    /// they may ask for in a second.
    debts: BTreeMap<(PeerId, Caller, bool), (Debt, u64)>,
    left: usize,
    dropped: BTreeSet<Pair>,
    dropped_first: VecDeque<Pair>,
}

impl Callers {
    /// A client's handshake was completed.
    pub fn on_handshake(&mut self, now: Instant, client: IpAddr) {
        let (network, host) = host_in_network(client);
        self.hosts.note(now, &(network, ()), host);
    }

    fn caller(&self, now: Instant, client: SocketAddr) -> Caller {
        let client = client.ip().to_canonical();
        self.hosts.holds(now, &client).then_some(client)
    }

    /// May the peer be asked for a client, by a link of so many bits a second?
    pub fn may_ask(&mut self, now: Instant, peer: PeerId, rate: u64, pair: Pair) -> bool {
        let caller = self.caller(now, pair.0);
        if self.charge(now, rate, (peer, caller, false)) {
            return true;
        }
        if caller.is_some() {
            return false;
        }
        if self.dropped.remove(&pair) {
            return self.charge(now, rate, (peer, caller, true));
        }
        if self.dropped_first.len() >= REMEMBERED
            && let Some(first) = self.dropped_first.pop_front()
        {
            self.dropped.remove(&first);
        }
        self.dropped.insert(pair);
        self.dropped_first.push_back(pair);
        false
    }

    /// May a host be answered before the peer is asked, by a link of so many bits a second? `None`
    /// of a stranger: that shows when it completes the handshake.
    pub fn may_open(
        &mut self,
        now: Instant,
        peer: PeerId,
        rate: u64,
        client: SocketAddr,
    ) -> Option<bool> {
        let host = self.caller(now, client)?;
        Some(self.charge(now, rate, (peer, Some(host), false)))
    }

    /// Charges a caller for one request, if it may make one.
    fn charge(&mut self, now: Instant, rate: u64, debtor: (PeerId, Caller, bool)) -> bool {
        let per_second = (rate / 8 / PART / COST).max(1);
        let at_once = AT_ONCE.max(per_second * AT_ONCE_SECONDS);
        self.forgive(now);
        let (debt, rate) = self.debts.entry(debtor).or_default();
        *rate = per_second;
        debt.settle(now, per_second);
        let may = debt.millionths + ONE <= at_once * ONE;
        debt.millionths += if may { ONE } else { 0 };
        may
    }

    /// Takes out callers that owe nothing.
    fn forgive(&mut self, now: Instant) {
        if self.debts.len() > DEBTORS.max(2 * self.left) {
            self.debts.retain(|_, (debt, rate)| {
                debt.settle(now, *rate);
                debt.millionths > 0
            });
            self.left = self.debts.len();
        }
    }

    /// A SYN waits.
    pub fn add(&mut self, now: Instant, pair: Pair) {
        let caller = self.caller(now, pair.0);
        self.callers.insert(pair, caller);
        let all = self.waiting.entry(caller).or_default();
        self.counts.remove(&(all.len(), caller));
        all.insert((now, pair));
        self.counts.insert((all.len(), caller));
    }

    /// A SYN that has waited since `first` waits no longer.
    pub fn remove(&mut self, first: Instant, pair: Pair) {
        let Some(caller) = self.callers.remove(&pair) else { return };
        let Some(all) = self.waiting.get_mut(&caller) else { return };
        self.counts.remove(&(all.len(), caller));
        all.remove(&(first, pair));
        match all.len() {
            0 => drop(self.waiting.remove(&caller)),
            left => drop(self.counts.insert((left, caller))),
        }
    }

    /// The SYN that gives way to another.
    pub fn gives_way(&self) -> Option<Pair> {
        let (_, caller) = self.counts.last()?;
        self.waiting.get(caller)?.first().map(|(_, pair)| *pair)
    }

    /// The peer is no more.
    pub fn forget_peer(&mut self, peer: PeerId) {
        self.debts.retain(|(of, ..), _| *of != peer);
    }
}

#[cfg(test)]
mod tests {
    use units::Duration;

    use super::*;

    #[test]
    fn a_host_of_many_addresses_makes_no_stranger_of_another_networks() {
        let mut callers = Callers::default();
        let host: SocketAddr = "10.1.0.2:40000".parse().expect("an address");
        callers.on_handshake(Instant::ZERO, host.ip());
        let now = Instant::ZERO + Duration::from_secs(1);
        for n in 0..10_000_u128 {
            callers.on_handshake(now, (0xfd01 << 112 | n).to_be_bytes().into());
        }
        assert_eq!(callers.caller(now, host), Some(host.ip()));
    }
}
