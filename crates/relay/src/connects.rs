//! How many connections a peer may cause here (L-ST-8): what it opens leaves this node as SYNs from
//! this node's own address, and a stream costs the peer a few bytes.
//!
//! Three things are counted, for each peer, for each destination that it asks for, and for each
//! of its clients:
//!
//! | what | a peer | a destination |
//! |---|---|---|
//! | connections | `R` a second, 20 `R` at once | a half of it |
//! | connections that no server answered | `R`/10 a second, 4 `R` at once | a half of it |
//! | connections that wait for their server | 4 `R` | a half of it |
//!
//! `R` is [`Policy::connects`](crate::Policy::connects). A connection counts as unanswered until
//! its server has accepted it: a scan and a flood of SYNs are made of such, a fleet that loads
//! pages is not.
//!
//! The limits are shared by a dynamic threshold: a client's own count and that of everybody
//! (itself among them) may not exceed the limit together. One client that scans gets a half, and
//! the other half stays for those who ask for little. A peer may invent clients, so that this
//! only shares what the limits of the peer allow.
//!
//! What is beyond the limits waits until there is room: a burst is a flood only if it goes on.
//! A packet that opens a connection outside of streams counts as one that no server answered,
//! until an answer passes. Beyond the limits it is dropped: its host sends it again.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};

use link::PeerId;
use link::wire::Target;
use units::{Duration, Instant};

use crate::debt::{Debt, ONE};
use crate::flows::FlowId;

/// Connections per second unless the file says otherwise: four pages of thirty connections
/// each for every one of a thousand hosts within a minute.
pub const DEFAULT: u32 = 2_000;

/// Names a connection that a service wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConnectId(u64);

impl ConnectId {
    /// As a number, for poll tokens.
    pub fn to_u64(self) -> u64 {
        self.0
    }

    /// The inverse of [`ConnectId::to_u64`].
    pub fn from_u64(n: u64) -> ConnectId {
        ConnectId(n)
    }
}

/// Whom a connection to a server here is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Caller {
    /// A stream that the peer opened.
    Flow(FlowId),
    /// A service that works for the peer.
    Service(ConnectId),
}

/// How long a connection waits for room.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often it is looked for, ...
const AGAIN: Duration = Duration::from_millis(20);
/// ... and for how many of one peer each time: 2 % of a processor for one who opens without end.
const AT_A_TIME: usize = 256;

/// Entries of one peer's tables that are looked through for such as count nothing any more
/// only when there are twice as many as were left the last time, and more than this.
const FEW: usize = 256;

/// What is counted of a peer, a destination or a client.
#[derive(Clone, Copy, Debug, Default)]
struct Account {
    all: Debt,
    unanswered: Debt,
    waiting: u64,
}

impl Account {
    fn settle(&mut self, now: Instant, limits: &Limits) {
        self.all.settle(now, limits.all);
        self.unanswered.settle(now, limits.unanswered);
    }

    fn begin(&mut self) {
        self.all.millionths += ONE;
        self.unanswered.millionths += ONE;
        self.waiting += 1;
    }

    fn end(&mut self, answered: bool) {
        self.waiting -= 1;
        if answered {
            self.unanswered.millionths = self.unanswered.millionths.saturating_sub(ONE);
        }
    }

    /// Has it room for one more of a client whose own counts are `own`?
    fn admits(&self, own: &Account, limits: &Limits) -> bool {
        let [all, unanswered, waiting] = limits.at_once;
        let fits = |mine: u64, everybodys: u64, most: u64| mine + everybodys < most;
        fits(own.all.millionths, self.all.millionths, all * ONE)
            && fits(own.unanswered.millionths, self.unanswered.millionths, unanswered * ONE)
            && fits(own.waiting, self.waiting, waiting)
    }

    fn is_nothing(&self) -> bool {
        self.all.millionths == 0 && self.unanswered.millionths == 0 && self.waiting == 0
    }
}

/// What there may be of connections, of unanswered ones and of waiting ones.
#[derive(Clone, Copy, Debug)]
struct Limits {
    all: u64,
    unanswered: u64,
    at_once: [u64; 3],
}

impl Limits {
    fn of_peer(rate: u64) -> Limits {
        let rate = rate.max(1);
        Limits {
            all: rate,
            unanswered: (rate / 10).max(1),
            at_once: [20 * rate, 4 * rate, 4 * rate],
        }
    }

    fn of_destination(rate: u64) -> Limits {
        Limits::of_peer(rate.div_ceil(2))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Destination {
    Address(IpAddr),
    Name(String),
    Service(String),
}

impl Destination {
    fn of(target: &Target) -> Destination {
        match target {
            Target::Address(to) => Destination::Address(to.ip().to_canonical()),
            Target::Name(name, _) => Destination::Name(name.to_ascii_lowercase()),
            Target::Service(name, _) => Destination::Service(name.clone()),
        }
    }
}

type Client = Option<IpAddr>;

#[derive(Debug, Default)]
struct OfPeer {
    whole: Account,
    destinations: Accounts<Destination>,
    clients: Accounts<Client>,
    refused: u64,
}

#[derive(Debug)]
struct Accounts<K> {
    by: BTreeMap<K, Account>,
    /// How many were left when it was last looked through.
    left: usize,
}

impl<K> Default for Accounts<K> {
    fn default() -> Accounts<K> {
        Accounts { by: BTreeMap::new(), left: 0 }
    }
}

impl<K: Ord> Accounts<K> {
    /// An account as it is now.
    fn look(&mut self, now: Instant, key: &K, limits: &Limits) -> Account {
        let Some(account) = self.by.get_mut(key) else {
            return Account::default();
        };
        account.settle(now, limits);
        *account
    }

    /// Takes a connection down on an account. Those that count nothing are taken out: each of
    /// the others is a part of what the peer may have.
    fn begin(&mut self, now: Instant, key: K, limits: &Limits) {
        if self.by.len() > FEW.max(2 * self.left) {
            self.by.retain(|_, account| {
                account.settle(now, limits);
                !account.is_nothing()
            });
            self.left = self.by.len();
        }
        let account = self.by.entry(key).or_default();
        account.settle(now, limits);
        account.begin();
    }

    fn end(&mut self, key: &K, answered: bool) {
        if let Some(account) = self.by.get_mut(key) {
            account.end(answered);
        }
    }
}

/// Connections to servers that peers caused.
#[derive(Debug, Default)]
pub(crate) struct Connects {
    peers: BTreeMap<PeerId, OfPeer>,
    waiting: BTreeMap<Caller, (PeerId, Destination, Client)>,
}

impl Connects {
    /// May the peer have one more? Then it has.
    pub fn begin(
        &mut self,
        now: Instant,
        (peer, rate): (PeerId, u32),
        caller: Caller,
        target: &Target,
        client: Client,
    ) -> bool {
        let to = Destination::of(target);
        let client = client.map(|c| c.to_canonical());
        let admitted = self.admit(now, (peer, rate), to.clone(), client);
        if admitted {
            self.waiting.insert(caller, (peer, to, client));
        }
        admitted
    }

    fn admit(
        &mut self,
        now: Instant,
        (peer, rate): (PeerId, u32),
        to: Destination,
        client: Client,
    ) -> bool {
        let of = self.peers.entry(peer).or_default();
        let [limits, one] = [Limits::of_peer(rate.into()), Limits::of_destination(rate.into())];
        of.whole.settle(now, &limits);
        let own = of.clients.look(now, &client, &limits);
        let there = of.destinations.look(now, &to, &one);
        if !(of.whole.admits(&own, &limits) && there.admits(&own, &one)) {
            return false;
        }
        of.whole.begin();
        of.clients.begin(now, client, &limits);
        of.destinations.begin(now, to, &one);
        true
    }

    /// May a packet of the peer's pass that opens a connection? It counts as one that no server
    /// answered, until [`Connects::on_answered`].
    pub fn takes_packet(
        &mut self,
        now: Instant,
        (peer, rate): (PeerId, u32),
        to: IpAddr,
        client: IpAddr,
    ) -> bool {
        let (to, client) = (Destination::Address(to.to_canonical()), Some(client.to_canonical()));
        let takes = self.admit(now, (peer, rate), to.clone(), client);
        match takes {
            true => self.settle(peer, &to, client, false),
            false => self.refuse(peer),
        }
        takes
    }

    /// A packet is on its way to the peer that answers one that opened a connection.
    pub fn on_answered(&mut self, peer: PeerId, server: IpAddr, client: IpAddr) {
        let Some(of) = self.peers.get_mut(&peer) else { return };
        let to = Destination::Address(server.to_canonical());
        // A server answers no more than it was asked, however often it says so.
        let asked = of.destinations.by.get(&to).map_or(0, |there| there.unanswered.millionths);
        let answered = asked.min(ONE);
        let accounts = [
            Some(&mut of.whole),
            of.clients.by.get_mut(&Some(client.to_canonical())),
            of.destinations.by.get_mut(&to),
        ];
        for account in accounts.into_iter().flatten() {
            let unanswered = &mut account.unanswered.millionths;
            *unanswered = unanswered.saturating_sub(answered);
        }
    }

    /// The name that a connection goes to is at `to`, which counts from here on: many names may
    /// lead to one host. False if that has too many.
    pub fn leads_to(&mut self, now: Instant, rate: u32, caller: Caller, to: IpAddr) -> bool {
        let Some((peer, named, client)) = self.waiting.get_mut(&caller) else { return true };
        let Some(of) = self.peers.get_mut(peer) else { return true };
        let to = Destination::Address(to.to_canonical());
        let [limits, one] = [Limits::of_peer(rate.into()), Limits::of_destination(rate.into())];
        let own = of.clients.look(now, client, &limits);
        let there = of.destinations.look(now, &to, &one);
        if !there.admits(&own, &one) {
            of.refused += 1;
            return false;
        }
        of.destinations.begin(now, to.clone(), &one);
        of.destinations.end(&std::mem::replace(named, to), true);
        true
    }

    /// Where the connection leads did not answer, and `to` is tried in its place: that is one more.
    /// False if the peer may not have it.
    pub fn leads_on(&mut self, now: Instant, rate: u32, caller: Caller, to: IpAddr) -> bool {
        let Some((peer, before, client)) = self.waiting.remove(&caller) else { return true };
        self.settle(peer, &before, client, false);
        let to = Destination::Address(to.to_canonical());
        let admitted = self.admit(now, (peer, rate), to.clone(), client);
        match admitted {
            true => drop(self.waiting.insert(caller, (peer, to, client))),
            false => self.refuse(peer),
        }
        admitted
    }

    /// The server has accepted, or nobody wants it any more.
    pub fn end(&mut self, caller: Caller, answered: bool) {
        if let Some((peer, to, client)) = self.waiting.remove(&caller) {
            self.settle(peer, &to, client, answered);
        }
    }

    /// It waits no more.
    fn settle(&mut self, peer: PeerId, to: &Destination, client: Client, answered: bool) {
        let Some(of) = self.peers.get_mut(&peer) else { return };
        of.whole.end(answered);
        of.clients.end(&client, answered);
        of.destinations.end(to, answered);
    }

    /// One waited in vain.
    pub fn refuse(&mut self, peer: PeerId) {
        self.peers.entry(peer).or_default().refused += 1;
    }

    /// Connections that were refused.
    pub fn refused(&self, peer: PeerId) -> u64 {
        self.peers.get(&peer).map_or(0, |of| of.refused)
    }

    /// The peer is no more, and none of its flows.
    pub fn forget_peer(&mut self, peer: PeerId) {
        self.peers.remove(&peer);
        self.waiting.retain(|_, (of, ..)| *of != peer);
    }
}

/// A connection that a peer asked for.
#[derive(Debug)]
pub(crate) struct Asked {
    pub caller: Caller,
    pub target: Target,
    /// What it is to come from, if not this node's own address.
    pub source: Option<SocketAddr>,
    pub client: Client,
    pub since: Instant,
}

/// Connections that wait for room.
#[derive(Debug, Default)]
pub(crate) struct Held {
    by: BTreeMap<PeerId, VecDeque<Asked>>,
    count: usize,
    /// How many [`Held::retain`] left the last time.
    left: usize,
    again: Option<Instant>,
}

impl Held {
    pub fn push(&mut self, now: Instant, peer: PeerId, asked: Asked) {
        self.by.entry(peer).or_default().push_back(asked);
        self.count += 1;
        self.again.get_or_insert(now + AGAIN);
    }

    /// When there may be room for one.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.again
    }

    /// Those whose turn it is to be tried; who gets no room comes back by [`Held::push`].
    pub fn take_due(&mut self, now: Instant) -> Vec<(PeerId, Asked)> {
        if self.again.is_none_or(|at| at > now) {
            return Vec::new();
        }
        let mut due = Vec::new();
        self.by.retain(|peer, asked| {
            due.extend(asked.drain(..asked.len().min(AT_A_TIME)).map(|a| (*peer, a)));
            !asked.is_empty()
        });
        self.count -= due.len();
        self.left = self.left.min(self.count);
        self.again = (!self.by.is_empty()).then_some(now + AGAIN);
        due
    }

    /// Drops those that nobody wants any more.
    pub fn retain(&mut self, exists: impl Fn(Caller) -> bool) {
        self.by.values_mut().for_each(|asked| asked.retain(|a| exists(a.caller)));
        self.count = self.by.values().map(VecDeque::len).sum();
        self.left = self.count;
    }

    /// Are there twice as many as [`Held::retain`] left? Before that it finds too few to be worth
    /// a walk through all.
    pub fn has_doubled(&self) -> bool {
        self.count >= 2 * self.left
    }

    /// How many there are of a peer.
    pub fn len(&self, peer: PeerId) -> usize {
        self.by.get(&peer).map_or(0, VecDeque::len)
    }
}

impl Asked {
    /// Has it waited in vain?
    pub fn is_over(&self, now: Instant) -> bool {
        now.since(self.since) >= PATIENCE
    }
}

#[cfg(test)]
mod tests;
