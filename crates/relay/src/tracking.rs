//! Which unsplit packets answer what a host on this side began: those pass whatever the
//! policy says of their destination, as through any stateful firewall.
//!
//! A flow is a peer, two addresses, a protocol and ports (ICMP: the query's identifier and
//! type). A packet that leaves here makes it and keeps it; packets that come from the peer
//! keep it, too. A TCP connection in the middle is taken up when a host here speaks, so that
//! it survives a restart. ICMP errors pass if the packet that they quote is of a flow. Later
//! fragments, which have no ports, pass if there is any flow of their addresses: without its
//! first fragment, which is looked at, a packet is never put together.
//!
//! Where a peer may reach less than before, what it began there is over, though hosts here may
//! go on for a while: for some seconds they begin nothing, and then nothing that the peer was
//! refused meanwhile.
//!
//! A flow ends when nothing came for as long as Linux' connection tracking waits, which many
//! gateways have beside this one (Linux: Documentation/networking/nf_conntrack-sysctl.rst).
//! Flows with the same patience are in one queue, the one that nothing came of for longest
//! first: keeping a flow moves it to the end of its queue and allocates nothing. What is over
//! is taken out when a flow is added.
//!
//! Where there are too many, the network of hosts here that has the most loses one
//! ([`HostShares`]), so that a host which asks everybody everything, under however many addresses,
//! does not make the others' answers strange. Which one goes the order of [`Life`] says: those
//! without an answer before those with one, as the kernel's `early_drop` does.

mod kind;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use link::PeerId;
use units::{Duration, HostShares, Instant};

use crate::destinations::Aged;
use crate::packet::{TCP, UDP};
use crate::policy::Policy;
use kind::{ICMP, ICMPV6};
pub(crate) use kind::{Kind, Role, Tuple, Upper};

/// Flows at once, about 450 bytes each, and more where each is another host's.
const MOST: usize = 32_768;
/// A host that has no more is taken for one of many addresses of its network.
const FEW: usize = 128;
/// How old the time may be by which a flow of its kind gives way before others: to note it for
/// each packet would cost more than the rest.
const NOTED_EACH: Duration = Duration::from_secs(10);
/// UDP that goes both ways for longer is a stream and no question (Linux: `udp_packet`).
const UDP_STREAM: Duration = Duration::from_secs(2);
/// How long nothing begins where a peer may not go any more: most of what goes on both ways
/// says something.
const SILENCE: Duration = Duration::from_secs(5);
/// Flows that are over, met and taken out by one later fragment at most.
const WALKED: usize = 64;
/// No flow.
const NONE: u32 = u32::MAX;

/// How long a flow is kept when nothing comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Life {
    /// TCP that was reset.
    Closed,
    /// ICMP, and UDP that has not gone both ways for 2 s.
    Question,
    /// TCP without an answer.
    Opening,
    /// TCP of which a direction has ended.
    Closing,
    /// Protocols of which nothing else is known.
    Other,
    /// UDP both ways.
    Stream,
    /// TCP both ways.
    Open,
}

impl Life {
    const ALL: [Life; 7] = [
        Life::Closed,
        Life::Question,
        Life::Opening,
        Life::Closing,
        Life::Other,
        Life::Stream,
        Life::Open,
    ];

    /// Linux' `nf_conntrack_…_timeout`s.
    const fn patience(self) -> Duration {
        Duration::from_secs(match self {
            Life::Closed => 10,    // tcp_timeout_close
            Life::Question => 30,  // udp_timeout, icmp_timeout, icmpv6_timeout
            Life::Opening => 120,  // tcp_timeout_syn_sent
            Life::Closing => 120,  // tcp_timeout_fin_wait, tcp_timeout_time_wait
            Life::Other => 600,    // generic_timeout
            Life::Stream => 120,   // udp_timeout_stream
            Life::Open => 432_000, // tcp_timeout_established
        })
    }
}

/// A flow, as this side sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    peer: PeerId,
    local: IpAddr,
    remote: IpAddr,
    protocol: u8,
    /// Here and there.
    ports: (u16, u16),
}

impl Key {
    /// Of a packet from here.
    fn outward(peer: PeerId, tuple: &Tuple) -> Key {
        let Tuple { source, destination, protocol, ports } = *tuple;
        Key { peer, local: source, remote: destination, protocol, ports }
    }

    /// Of a packet from the peer.
    fn inward(peer: PeerId, tuple: &Tuple) -> Key {
        let Tuple { source, destination, protocol, ports } = *tuple;
        Key { peer, local: destination, remote: source, protocol, ports: (ports.1, ports.0) }
    }
}

#[derive(Clone, Copy, Debug)]
struct Flow {
    key: Key,
    life: Life,
    began: Instant,
    /// When a packet last came or left.
    kept: Instant,
    /// The same, as [`Tracking::shares`] knows it.
    noted: Instant,
    /// Neighbours in the queue.
    earlier: u32,
    later: u32,
}

/// Which flow of a host goes first: of this kind, kept until then, in this place.
type Rank = (Life, Instant, u32);

#[derive(Clone, Copy, Debug)]
struct Queue {
    first: u32,
    last: u32,
}

/// The flows of all peers.
#[derive(Debug)]
pub(crate) struct Tracking {
    by_key: BTreeMap<Key, u32>,
    flows: Vec<Flow>,
    /// Places in `flows` that are free.
    free: Vec<u32>,
    queues: [Queue; Life::ALL.len()],
    /// Which hosts here have how many flows.
    shares: HostShares<Rank>,
    /// What peers could reach until a moment ago, and until when nothing begins there.
    narrowed: Vec<(PeerId, Instant, Policy)>,
    /// What peers were refused lately where they could go before. The peer that was refused the
    /// most loses its own.
    ended: Aged<PeerId, IpAddr, Key>,
    most: usize,
    /// Flows that were forgotten before their time.
    pub forgotten: u64,
}

impl Default for Tracking {
    fn default() -> Tracking {
        Tracking::with_room(MOST)
    }
}

impl Tracking {
    fn with_room(most: usize) -> Tracking {
        Tracking {
            by_key: BTreeMap::new(),
            flows: Vec::new(),
            free: Vec::new(),
            queues: [Queue { first: NONE, last: NONE }; Life::ALL.len()],
            shares: HostShares::new(FEW),
            narrowed: Vec::new(),
            ended: Aged::default(),
            most,
            forgotten: 0,
        }
    }

    /// The peer may reach less than `before`.
    pub fn on_narrowed(&mut self, now: Instant, peer: PeerId, before: Policy) {
        self.narrowed.retain(|(of, until, _)| *of != peer && *until > now);
        self.narrowed.push((peer, now + SILENCE, before));
    }

    /// Was the peer allowed to reach `addr` until a moment ago?
    fn is_narrowed(&self, now: Instant, peer: PeerId, addr: IpAddr) -> bool {
        let all = self.narrowed.iter().filter(|(of, until, _)| *of == peer && *until > now);
        all.into_iter().any(|(_, _, before)| before.permits(addr, &[]))
    }

    /// A packet of the peer's was refused.
    pub fn on_denied(&mut self, now: Instant, peer: PeerId, packet: &[u8]) {
        if !self.narrowed.is_empty()
            && let Some(Kind::Flow(tuple, _)) = Upper::of(packet).map(|u| u.kind(packet))
            && self.is_narrowed(now, peer, tuple.destination)
        {
            self.ended.note(now, &(peer, tuple.destination), Key::inward(peer, &tuple));
        }
    }

    /// A packet leaves for the peer, from a host that the peer may not reach by itself.
    pub fn on_sent(&mut self, now: Instant, peer: PeerId, packet: &[u8]) {
        let Some(Kind::Flow(tuple, role)) = Upper::of(packet).map(|u| u.kind(packet)) else {
            return;
        };
        let key = Key::outward(peer, &tuple);
        if let Some(at) = self.find(now, &key) {
            let life = after_sent(self.flows[at as usize].life, role);
            return self.keep(now, at, life);
        }
        let is_over = !self.narrowed.is_empty()
            && (self.is_narrowed(now, peer, key.local) || self.ended.holds(now, &key));
        if !is_over && !matches!(role, Role::Answers | Role::Resets) {
            self.add(now, key, first_life(tuple.protocol, role));
        }
    }

    /// Does a packet from the peer answer what a host here began?
    pub fn is_answer(&mut self, now: Instant, peer: PeerId, packet: &[u8]) -> bool {
        let Some(upper) = Upper::of(packet) else { return false };
        match upper.kind(packet) {
            Kind::Flow(_, Role::Asks) | Kind::BlindError | Kind::Other => false,
            Kind::Flow(tuple, role) => {
                let Some(at) = self.find(now, &Key::inward(peer, &tuple)) else { return false };
                let flow = &self.flows[at as usize];
                // Both ends may open at once (RFC 9293, section 3.5); later it is the peer's own.
                if role == Role::Opens && flow.life != Life::Opening {
                    return false;
                }
                let age = now.since(flow.began);
                let life = after_answer(flow.life, tuple.protocol, role, age);
                self.keep(now, at, life);
                true
            }
            Kind::Error(tuple) => self.find(now, &Key::outward(peer, &tuple)).is_some(),
            Kind::LaterFragment => {
                let key = |port| Key {
                    peer,
                    local: upper.destination,
                    remote: upper.source,
                    protocol: upper.protocol,
                    ports: (port, port),
                };
                // Those that are over go, a few each time: they are not walked again and again.
                let between = key(0)..=key(u16::MAX);
                for _ in 0..WALKED {
                    let Some((_, &at)) = self.by_key.range(between.clone()).next() else { break };
                    if !self.is_over(now, at) {
                        return true;
                    }
                    self.remove(at);
                }
                false
            }
        }
    }

    /// The peer is no more.
    pub fn forget_peer(&mut self, peer: PeerId) {
        self.narrowed.retain(|(of, ..)| *of != peer);
        self.ended.retain(|key| key.peer != peer);
        let zero = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        let from = Key { peer, local: zero, remote: zero, protocol: 0, ports: (0, 0) };
        while let Some((_, &at)) = self.by_key.range(from..).next().filter(|(k, _)| k.peer == peer)
        {
            self.remove(at);
        }
    }

    fn is_over(&self, now: Instant, at: u32) -> bool {
        let flow = &self.flows[at as usize];
        now.since(flow.kept) >= flow.life.patience()
    }

    fn find(&self, now: Instant, key: &Key) -> Option<u32> {
        self.by_key.get(key).copied().filter(|at| !self.is_over(now, *at))
    }

    fn add(&mut self, now: Instant, key: Key, life: Life) {
        self.expire(now);
        if let Some(&over) = self.by_key.get(&key) {
            self.remove(over);
        }
        if self.by_key.len() >= self.most {
            self.forgotten += 1;
            if let Some(&(.., at)) = self.shares.gives_way_to(key.local) {
                self.remove(at);
            }
        }
        let flow =
            Flow { key, life, began: now, kept: now, noted: now, earlier: NONE, later: NONE };
        let at = match self.free.pop() {
            Some(at) => {
                self.flows[at as usize] = flow;
                at
            }
            None => {
                self.flows.push(flow);
                (self.flows.len() - 1) as u32
            }
        };
        self.by_key.insert(key, at);
        self.shares.add(key.local, (life, now, at));
        self.push(at);
    }

    /// Takes out what is over: of each kind the oldest two, so that one that is added never
    /// pays for many.
    fn expire(&mut self, now: Instant) {
        for queue in 0..self.queues.len() {
            for _ in 0..2 {
                let first = self.queues[queue].first;
                if first != NONE && self.is_over(now, first) {
                    self.remove(first);
                }
            }
        }
    }

    fn keep(&mut self, now: Instant, at: u32, life: Life) {
        let flow = &mut self.flows[at as usize];
        if flow.life != life || now.since(flow.noted) >= NOTED_EACH {
            self.shares.remove(flow.key.local, &(flow.life, flow.noted, at));
            self.shares.add(flow.key.local, (life, now, at));
            flow.noted = now;
        }
        let is_last = self.queues[self.flows[at as usize].life as usize].last == at;
        if !(is_last && self.flows[at as usize].life == life) {
            self.unlink(at);
            self.flows[at as usize].life = life;
            self.push(at);
        }
        self.flows[at as usize].kept = now;
    }

    fn remove(&mut self, at: u32) {
        self.unlink(at);
        let Flow { key, life, noted, .. } = self.flows[at as usize];
        self.by_key.remove(&key);
        self.shares.remove(key.local, &(life, noted, at));
        self.free.push(at);
    }

    /// Puts a flow at the end of its queue.
    fn push(&mut self, at: u32) {
        let queue = &mut self.queues[self.flows[at as usize].life as usize];
        let before = std::mem::replace(&mut queue.last, at);
        match before {
            NONE => queue.first = at,
            before => self.flows[before as usize].later = at,
        }
        let flow = &mut self.flows[at as usize];
        (flow.earlier, flow.later) = (before, NONE);
    }

    fn unlink(&mut self, at: u32) {
        let Flow { life, earlier, later, .. } = self.flows[at as usize];
        let queue = &mut self.queues[life as usize];
        match earlier {
            NONE => queue.first = later,
            earlier => self.flows[earlier as usize].later = later,
        }
        match later {
            NONE => self.queues[life as usize].last = earlier,
            later => self.flows[later as usize].earlier = earlier,
        }
    }
}

fn first_life(protocol: u8, role: Role) -> Life {
    match (protocol, role) {
        (TCP, Role::Ends) => Life::Closing,
        (TCP, _) => Life::Opening,
        (UDP | ICMP | ICMPV6, _) => Life::Question,
        _ => Life::Other,
    }
}

fn after_sent(life: Life, role: Role) -> Life {
    match role {
        Role::Resets => Life::Closed,
        Role::Ends => Life::Closing,
        // A new connection from the same port.
        Role::Opens if life == Life::Closing => Life::Opening,
        // So is this, or the reset was not for the host's connection.
        _ if life == Life::Closed => Life::Opening,
        _ => life,
    }
}

fn after_answer(life: Life, protocol: u8, role: Role, age: Duration) -> Life {
    match (protocol, role) {
        (TCP, Role::Resets) => Life::Closed,
        (TCP, Role::Ends) => Life::Closing,
        (TCP, _) if life == Life::Opening => Life::Open,
        (UDP, _) if age > UDP_STREAM => Life::Stream,
        _ => life,
    }
}
