//! A node of many: a real relay, with a peer for each of its links.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use link::endpoint::{Endpoint, EndpointConfig};
use link::keys::{PresharedKey, PrivateKey, PublicKey};
use link::session::LinkConfig;
use link::{PeerConfig, PeerId, Remote};
use relay::{FlowId, Policy, Relay, Share, streams_for};
use units::{BitRate, ByteCount, Duration, Instant, IpPrefix, Ratio, Rng};

use super::plan::NetPlan;
use crate::check::Meter;

/// Peers that are promised a part of the memory as if there were no more, and what each has at
/// least: as the program has it.
const ACTIVE: usize = 64;
const FLOOR: u64 = 64 << 10;
const MTU: u16 = 1500;
/// Two challenges, or an empty packet and one; and the answer to one.
const UNPACED: ByteCount = ByteCount(3 * (60 + 28));

/// What a flow's socket is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Socket {
    /// A host's: which connection's, and which host (0 client, 1 server).
    Host(usize, usize),
    /// One of the two of a connection that goes on to the next hop: which, and which end.
    Pipe(usize, usize),
}

/// What a node has of a link.
#[derive(Clone, Debug)]
pub(crate) struct Neighbour {
    pub node: usize,
    pub id: PeerId,
    /// The channel that this node sends by.
    pub channel: usize,
    pub meter: Meter,
    rates: [BitRate; 2],
    calls: bool,
}

pub(crate) struct NetNode {
    /// `None` while it is down.
    pub relay: Option<Relay>,
    /// In the order of the links.
    pub neighbours: Vec<Neighbour>,
    /// Where they are in that order, by their node.
    by_node: BTreeMap<usize, usize>,
    pub flows: BTreeMap<FlowId, Socket>,
    /// When its driver wakes up, for the timeout that it was told.
    pub wake: Option<(Instant, Instant)>,
    /// Something happened to it.
    pub dirty: bool,
    pub rng: Rng,
    /// It was started before: it knows where its peers were.
    knows: bool,
    key: PrivateKey,
}

impl NetNode {
    /// A node that is down.
    pub fn new(node: usize, plan: &NetPlan, rng: &mut Rng) -> NetNode {
        let mut rng = rng.fork();
        let mut neighbours = Vec::new();
        for link in &plan.links {
            let Some(end) = link.ends.iter().position(|n| *n == node) else { continue };
            let rates = [link.rates[end], link.rates[1 - end]];
            neighbours.push(Neighbour {
                node: link.ends[1 - end],
                id: PeerId::from_index(0),
                channel: link.channels[end],
                meter: Meter::new(rates[0], UNPACED),
                rates,
                calls: end == 0,
            });
        }
        let by_node = neighbours.iter().enumerate().map(|(at, n)| (n.node, at)).collect();
        let mut key = [0; 32];
        rng.fill(&mut key);
        NetNode {
            relay: None,
            neighbours,
            by_node,
            flows: BTreeMap::new(),
            wake: None,
            dirty: false,
            rng,
            knows: false,
            key: PrivateKey::from_bytes(key),
        }
    }

    pub fn public_key(&self) -> PublicKey {
        *self.key.public()
    }

    /// What it has of the link to a node.
    pub fn neighbour(&self, node: usize) -> Option<&Neighbour> {
        self.by_node.get(&node).map(|at| &self.neighbours[*at])
    }

    /// The same, to change something.
    pub fn neighbour_mut(&mut self, node: usize) -> Option<&mut Neighbour> {
        self.by_node.get(&node).map(|at| &mut self.neighbours[*at])
    }

    /// Its part of the pool of memory, and what each peer has at least.
    fn pool(&self, plan: &NetPlan) -> (Option<ByteCount>, ByteCount) {
        let peers = self.neighbours.len();
        let floor = plan.memory.0 / peers.max(1) as u64;
        ((peers > ACTIVE).then_some(plan.memory), ByteCount(floor.max(FLOOR)))
    }

    /// The most that all its peers' streams may take, of which there are so many.
    pub fn most_memory(&self, plan: &NetPlan, streams: u64) -> u64 {
        let (pool, floor) = self.pool(plan);
        let floors = if pool.is_some() { floor.0 * self.neighbours.len() as u64 } else { 0 };
        plan.memory.0 + floors + streams * crate::traffic::PER_STREAM
    }

    /// Starts the program. `ways`: by destination, the neighbour on the way there.
    pub fn start(&mut self, now: Instant, plan: &NetPlan, keys: &[PublicKey], ways: &[usize]) {
        let mut seed = [0; 32];
        self.rng.fill(&mut seed);
        let mut relay = Relay::new(Endpoint::new(EndpointConfig {
            private_key: self.key.clone(),
            seed,
            hardware_aes: self.rng.below(2) == 0,
            initiations_per_second: 1000,
            key_lifetime: link::endpoint::MAX_KEY_LIFETIME,
            fresh: None,
        }));
        let (pool, floor) = self.pool(plan);
        relay.endpoint.share_memory(pool, floor);
        let part = ByteCount(plan.memory.0 / self.neighbours.len().clamp(1, ACTIVE) as u64);
        let only = self.neighbours.len() == 1;
        for neighbour in &mut self.neighbours {
            let knows = neighbour.calls || self.knows;
            let config = PeerConfig {
                public_key: keys[neighbour.node],
                preshared_key: PresharedKey::NONE,
                endpoint: knows.then(|| Remote::from(address(neighbour.node))),
                link: link_config(neighbour.rates, part, plan),
                keepalive: None,
            };
            let behind = |n: &usize| ways[*n] == neighbour.node;
            let routes = match only {
                true => vec![everybody()],
                false => (0..plan.nodes).filter(behind).map(prefix).collect(),
            };
            let policy = Policy {
                routes,
                allow: vec![everybody()],
                keep_source: true,
                open: relay::Open::Fast,
                dedup: Share::Off,
                ..Policy::default()
            };
            neighbour.id = relay.add_peer(now, config, policy).expect("different keys");
            neighbour.meter = Meter::new(neighbour.rates[0], UNPACED);
        }
        self.knows = true;
        self.relay = Some(relay);
        self.wake = None;
    }

    /// All its sessions do something wrong from now on.
    #[cfg(test)]
    pub fn plant(&mut self, mistake: link::session::Mistake) {
        let Some(relay) = &mut self.relay else { return };
        for neighbour in &self.neighbours {
            if relay.endpoint.session(neighbour.id).is_some()
                && let Some(session) = relay.endpoint.session_mut(neighbour.id)
            {
                session.plant(mistake);
            }
        }
    }

    /// The program dies.
    pub fn stop(&mut self) {
        self.relay = None;
        self.flows.clear();
    }

    /// When its driver wakes up next: as late as drivers are.
    pub fn wake_at(&mut self, now: Instant, late: Duration) -> Option<Instant> {
        let due = self.relay.as_ref()?.poll_timeout(now)?;
        if let Some((for_timeout, at)) = self.wake
            && for_timeout == due
        {
            return Some(at.max(now));
        }
        let late = Duration::from_nanos(self.rng.below(late.as_nanos() + 1));
        let at = due.max(now) + late;
        self.wake = Some((due, at));
        Some(at)
    }
}

fn link_config(rates: [BitRate; 2], part: ByteCount, plan: &NetPlan) -> LinkConfig {
    LinkConfig {
        send_rate: rates[0],
        rate_mode: plan.mode,
        receive_rate: rates[1],
        rtt: plan.delay.times(2),
        mtu: MTU,
        packet: MTU,
        queue: link::session::NEARLY_EMPTY,
        bit_errors: Ratio::ZERO,
        overhead: 0,
        memory: part,
        stream_buffer: None,
        max_streams: streams_for((part.0 / (16 << 10)).clamp(64, 100_000) as u32),
        headers: true,
        history: ByteCount(0),
        dedup: false,
        facts: Default::default(),
        classes: Vec::new(),
    }
}

/// Where a node is.
pub(crate) fn address(node: usize) -> SocketAddr {
    let ip = Ipv4Addr::new(192, 0, (node >> 8) as u8, node as u8);
    SocketAddr::new(ip.into(), 4500)
}

/// The node that is there.
pub(crate) fn node_at(address: SocketAddr) -> Option<usize> {
    let IpAddr::V4(ip) = address.ip() else { return None };
    let [.., high, low] = ip.octets();
    Some(usize::from(high) << 8 | usize::from(low))
}

/// The hosts behind a node.
fn prefix(node: usize) -> IpPrefix {
    format!("10.{}.{}.0/24", node >> 8, node & 0xff).parse().expect("a prefix")
}

/// All hosts.
fn everybody() -> IpPrefix {
    "10.0.0.0/8".parse().expect("a prefix")
}

/// Where a host of this connection is: the port is its number.
pub(crate) fn host_address(node: usize, connection: usize) -> SocketAddr {
    let ip = Ipv4Addr::new(10, (node >> 8) as u8, node as u8, 1);
    SocketAddr::new(ip.into(), 1000 + connection as u16)
}

/// The node and the connection of a host's address.
pub(crate) fn host_at(address: SocketAddr) -> Option<(usize, usize)> {
    let IpAddr::V4(ip) = address.ip() else { return None };
    let [_, high, low, _] = ip.octets();
    let connection = usize::from(address.port()).checked_sub(1000)?;
    Some((usize::from(high) << 8 | usize::from(low), connection))
}
