//! Packets of peers that do not pass, and connections: how many their senders hear of, and what the
//! operator is told.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use link::PeerId;
use link::wire::Target;
use units::{BitRate, ByteCount, Duration, Instant, one_host};

use crate::packet::Packet;
use crate::refusal;

/// Answers take at most this share of the link, and this much of a fast one: who sends
/// what does not pass must not crowd out what does.
const SHARE: u64 = 20;
const MOST: BitRate = BitRate::from_kbps(64);
/// So much of that may come at once, in time: a few pings, a traceroute.
const BURST: Duration = Duration::from_secs(2);
/// On average so far apart are answers to hosts here (Linux' `icmp_msgs_per_sec` is 1,000).
const HERE: Duration = Duration::from_millis(1);
/// A host, or one of many addresses of its network, may have one answer in so many.
const HOSTS: u64 = 4;
/// Hosts whose answers are counted; of more none has any, until one has not had any for a while.
const MOST_HOSTS: usize = 1024;
/// The operator is told at once of the first packet, and then at most this often.
const TOLD_AGAIN: Duration = Duration::from_secs(10);

/// Why a packet of a peer does not pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotPassed {
    /// Its source is not in the peer's routes.
    Foreign,
    /// It begins something, or nobody knows of it, and its destination is closed to the peer.
    Denied,
}

/// A peer's packet that did not pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefusedPacket {
    /// Who sent it.
    pub peer: PeerId,
    /// Its source.
    pub from: IpAddr,
    /// Its destination.
    pub to: IpAddr,
    /// Its IP protocol.
    pub protocol: u8,
    /// Why it did not pass.
    pub why: NotPassed,
    /// Packets of any peer that did not pass since the last that was told.
    pub others: u64,
}

impl RefusedPacket {
    /// A packet of the peer's.
    pub(crate) fn of(packet: &Packet, peer: PeerId, why: NotPassed) -> RefusedPacket {
        let Packet { source: from, destination: to, protocol, .. } = *packet;
        RefusedPacket { peer, from, to, protocol, why, others: 0 }
    }
}

/// A connection that a peer asked for and that is closed to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedConnection {
    /// Who asked.
    pub peer: PeerId,
    /// The host that it is for, where the peer told.
    pub client: Option<SocketAddr>,
    /// Where it was to lead.
    pub to: Target,
    /// Connections of any peer that were refused since the last that was told.
    pub others: u64,
}

/// The next that the operator is told of, how many others there are, and when it was last.
#[derive(Debug)]
struct News<T> {
    next: Option<(T, u64)>,
    told: Option<Instant>,
}

impl<T> Default for News<T> {
    fn default() -> News<T> {
        News { next: None, told: None }
    }
}

impl<T> News<T> {
    fn note(&mut self, what: T) {
        match &mut self.next {
            Some((_, others)) => *others += 1,
            None => self.next = Some((what, 0)),
        }
    }

    fn poll(&mut self, now: Instant) -> Option<(T, u64)> {
        let is_due = self.told.is_none_or(|at| now.since(at) >= TOLD_AGAIN);
        let next = self.next.take_if(|_| is_due)?;
        self.told = Some(now);
        Some(next)
    }
}

/// What is known of them.
#[derive(Debug, Default)]
pub(crate) struct Refused {
    /// Until when the answers so far take each peer's share.
    taken_until: BTreeMap<PeerId, Instant>,
    /// The same of answers to hosts here, of all and of each that had some lately.
    taken_here_until: Instant,
    taken_by_host_until: BTreeMap<IpAddr, Instant>,
    packets: News<RefusedPacket>,
    connections: News<RefusedConnection>,
}

impl Refused {
    /// Notes a packet for the operator.
    pub fn note(&mut self, packet: RefusedPacket) {
        self.packets.note(packet);
    }

    /// Notes a connection for the operator.
    pub fn note_connection(&mut self, connection: RefusedConnection) {
        self.connections.note(connection);
    }

    /// The answer to a packet that is denied, if there is to be one; `rate` is what this node
    /// sends to the peer.
    pub fn answer(
        &mut self,
        now: Instant,
        peer: PeerId,
        rate: BitRate,
        packet: &[u8],
    ) -> Option<Vec<u8>> {
        let taken_until = self.taken_until.entry(peer).or_insert(now);
        if *taken_until >= now + BURST {
            return None;
        }
        let answer = refusal::prohibited(packet)?;
        let rate = BitRate::from_bps(rate.as_bps() / SHARE).min(MOST);
        let time = rate.time_for(ByteCount(answer.len() as u64));
        *taken_until = now.max(*taken_until) + time;
        Some(answer)
    }

    /// The answer to a packet of a host here, made by `make`, if there is to be one.
    pub fn answer_here(
        &mut self,
        now: Instant,
        packet: &[u8],
        make: fn(&[u8]) -> Option<Vec<u8>>,
    ) -> Option<Vec<u8>> {
        if self.taken_here_until >= now + BURST {
            return None;
        }
        let host = one_host(Packet::parse(packet)?.source);
        if self.taken_by_host_until.len() >= MOST_HOSTS {
            self.taken_by_host_until.retain(|_, until| *until > now);
        }
        let is_one_more = self.taken_by_host_until.len() < MOST_HOSTS;
        let its = self.taken_by_host_until.get(&host).copied();
        if its.is_some_and(|its| its >= now + BURST) || its.is_none() && !is_one_more {
            return None;
        }
        let answer = make(packet)?;
        let its = now.max(its.unwrap_or(now)) + HERE.times(HOSTS);
        self.taken_by_host_until.insert(host, its);
        self.taken_here_until = now.max(self.taken_here_until) + HERE;
        Some(answer)
    }

    /// The peer is no more: nobody is to be named in its place.
    pub fn forget(&mut self, peer: PeerId) {
        self.taken_until.remove(&peer);
        self.packets.next.take_if(|(packet, _)| packet.peer == peer);
        self.connections.next.take_if(|(connection, _)| connection.peer == peer);
    }

    /// The packet that the operator is to be told of now.
    pub fn poll(&mut self, now: Instant) -> Option<RefusedPacket> {
        self.packets.poll(now).map(|(packet, others)| RefusedPacket { others, ..packet })
    }

    /// The connection that the operator is to be told of now.
    pub fn poll_connection(&mut self, now: Instant) -> Option<RefusedConnection> {
        self.connections.poll(now).map(|(c, others)| RefusedConnection { others, ..c })
    }
}
