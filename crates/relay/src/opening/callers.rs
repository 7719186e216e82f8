//! Whose SYNs wait for the far side, and who is to give way.
//!
//! A source whose handshake was completed within the last hour is a *host*: it gets what is sent
//! to it. All others together are *strangers*: among them are hosts that are new, and every
//! address that somebody invents. Hosts one by one and the strangers as one are callers.
//!
//! - Where all places are taken, the caller with the most of them loses its oldest. A host with
//!   few loses none to one that asks for many, and what is invented falls first upon what was
//!   invented. The oldest is that which has waited longest in vain: at 270 invented SYNs a
//!   second the places turn over in 15 s, in which a new host's server has long answered.
//! - Asking costs some fifty bytes of the link. Each caller may use a sixteenth of its rate for
//!   that, and some dozens at once. Beyond that SYNs are dropped; a stranger's that is sent
//!   again is taken then, as often again, because whoever invents addresses seldom asks twice.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, SocketAddr};

use link::PeerId;
use units::Instant;

use crate::debt::{Debt, ONE};
use crate::known::Aged;

/// The client's address and the server's.
type Pair = (SocketAddr, SocketAddr);

/// `None`: the strangers.
type Caller = Option<IpAddr>;

/// Bytes of the link that asking costs: OPEN with two addresses, RESET, and what they share of
/// packets.
const COST: u64 = 64;
/// The part of the link's rate for it.
const PART: u64 = 16;
/// What may be asked at once on the slowest link, and in how many seconds' worth of a faster.
const AT_ONCE: u64 = 64;
const AT_ONCE_SECONDS: u64 = 16;
/// SYNs of strangers that were dropped and are remembered, the newest.
const REMEMBERED: usize = 4096;
/// Callers whose debts are kept; those without any are looked for when there are more.
const DEBTORS: usize = 1024;

#[derive(Debug, Default)]
pub(super) struct Callers {
    /// Sources whose handshake was completed.
    hosts: Aged<IpAddr>,
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
        self.hosts.note(now, client.to_canonical());
    }

    fn caller(&self, now: Instant, client: SocketAddr) -> Caller {
        let client = client.ip().to_canonical();
        self.hosts.holds(now, &client).then_some(client)
    }

    /// May the peer be asked for a client, by a link of so many bits a second?
    pub fn may_ask(&mut self, now: Instant, peer: PeerId, rate: u64, pair: Pair) -> bool {
        let caller = self.caller(now, pair.0);
        let per_second = (rate / 8 / PART / COST).max(1);
        let at_once = AT_ONCE.max(per_second * AT_ONCE_SECONDS);
        self.forgive(now);
        let mut asks = |again| {
            let (debt, rate) = self.debts.entry((peer, caller, again)).or_default();
            *rate = per_second;
            debt.settle(now, per_second);
            let may = debt.millionths + ONE <= at_once * ONE;
            debt.millionths += if may { ONE } else { 0 };
            may
        };
        if asks(false) {
            return true;
        }
        if caller.is_some() {
            return false;
        }
        if self.dropped.remove(&pair) {
            return asks(true);
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
