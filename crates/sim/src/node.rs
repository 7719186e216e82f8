//! A node: a real relay with real keys, at an address.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use link::endpoint::{Endpoint, EndpointConfig};
use link::keys::{PresharedKey, PrivateKey, PublicKey};
use link::session::{ClassConfig, ClassId, LinkConfig, PathConfig, Session};
use link::{CarrierId, CarrierName, CarrierNames, PathId, PeerConfig, PeerId, Remote};
use relay::{FlowId, Policy, Relay, Rule, Share};
use squeeze::dedup::disk::Disk;
use squeeze::dedup::{Keys, Limits};
use units::{Duration, Instant, Rng};

use crate::check::Meter;
use crate::plan::{Plan, Second};

/// One of the two nodes.
pub(crate) struct Node {
    /// `None` while it is down.
    pub relay: Option<Relay>,
    /// The other node's slot in this one's table.
    pub peer: PeerId,
    pub address: SocketAddr,
    /// Which connection's socket a flow is.
    pub flows: BTreeMap<FlowId, usize>,
    /// Of each carrier.
    pub meters: [Meter; 2],
    /// Paths that this node put down, by carrier.
    pub down: [bool; 2],
    /// When its driver wakes up for the timeout that it was told.
    pub wake: Option<(Instant, Instant)>,
    pub rng: Rng,
    key: PrivateKey,
    moves: u16,
    /// Where the other node was when this one died: the last endpoints are stored.
    stored: Option<SocketAddr>,
    /// The files of its chunks, which outlive it.
    pub disk: Disk,
}

/// The address block behind a node.
pub(crate) fn prefix(node: usize) -> String {
    format!("10.{}.0.0/16", node + 1)
}

impl Node {
    /// A node that is down.
    pub fn new(node: usize, plan: &Plan, rng: &mut Rng) -> Node {
        let mut rng = rng.fork();
        Node {
            relay: None,
            peer: PeerId::from_index(0),
            address: SocketAddr::new(address(node, plan), 4500),
            flows: BTreeMap::new(),
            meters: meters(node, plan),
            down: [false; 2],
            wake: None,
            key: PrivateKey::from_bytes(bytes32(&mut rng)),
            rng,
            moves: 0,
            stored: None,
            disk: Disk::default(),
        }
    }

    pub fn public_key(&self) -> PublicKey {
        *self.key.public()
    }

    /// Starts the program: new randomness, the same key, and the stored endpoint.
    pub fn start(
        &mut self,
        now: Instant,
        node: usize,
        plan: &Plan,
        peer_key: PublicKey,
        known: Option<SocketAddr>,
        resolved: bool,
    ) {
        let endpoint = Endpoint::new(EndpointConfig {
            private_key: self.key.clone(),
            seed: bytes32(&mut self.rng),
            hardware_aes: self.rng.below(2) == 0,
            initiations_per_second: 1000,
            key_lifetime: plan.key_lifetime,
            fresh: None,
        });
        let mut relay = Relay::new(endpoint);
        let config = PeerConfig {
            public_key: peer_key,
            preshared_key: PresharedKey::NONE,
            endpoint: if resolved { known } else { self.stored.or(known) }.map(Remote::from),
            link: link_config(node, plan),
            keepalive: plan.keepalives[node],
        };
        let policy = Policy {
            routes: vec![prefix(1 - node).parse().expect("a prefix")],
            allow: vec![prefix(node).parse().expect("a prefix")],
            deny: vec![],
            keep_source: true,
            rules: crate::datagrams::rules().into_iter().chain(bulk(plan)).collect(),
            plain_classes: Vec::new(),
            plain_headers: Vec::new(),
            dedup: plan.dedup[node].unwrap_or(Share::Off),
            dedup_classes: Vec::new(),
            open: plan.open,
            fast_ports: vec![],
            refuse_quic: false,
            connects: None,
        };
        self.peer = relay.add_peer(now, config, policy).expect("two different keys");
        if plan.dedup[node].is_some() {
            let secret = relay.endpoint.chunk_secret(self.peer).expect("there is such a peer");
            let keys = Arc::new(Keys::new(&secret));
            let dedup = self.disk.recover(&keys, &limits(plan), self.rng.next_u64() | 1);
            relay.set_dedup(self.peer, dedup);
        }
        if let Some(second) = plan.second.filter(|_| node == 0) {
            let to = second_remote(1, plan);
            let config = second_path(node, plan, &second);
            relay.endpoint.add_path(now, self.peer, config, to.carrier, Some(to));
            relay.endpoint.set_path_habits(now, self.peer, PathId::FIRST, (0, Some(PROBE)));
            relay.endpoint.name_path(now, self.peer, PathId::FIRST, carrier("first"));
        }
        if plan.spread {
            relay.endpoint.set_spread(now, self.peer, true);
        }
        self.down = [false; 2];
        self.relay = Some(relay);
        self.meters = meters(node, plan);
        self.wake = None;
    }

    /// The program dies.
    pub fn stop(&mut self) {
        if let Some(relay) = self.relay.take() {
            let first = relay
                .endpoint
                .paths(Instant::ZERO, self.peer)
                .into_iter()
                .find(|p| p.id == PathId::FIRST);
            self.stored = first.and_then(|p| p.remote?.addr).or(self.stored);
        }
        self.flows.clear();
    }

    /// Does what the chunks want of their files, on a disk that is sound or not; false if that
    /// is nothing.
    pub fn serve_files(&mut self, rots: bool) -> bool {
        let mut any = false;
        while let Some(relay) = &mut self.relay {
            let Some(peer) = relay.poll_files() else { break };
            let disk = &mut self.disk;
            relay.serve_files(peer, |dedup| {
                let before = disk.served;
                disk.serve(dedup);
                any |= disk.served != before;
                disk.served != before
            });
            if rots
                && any
                && let Some(byte) = self.disk.anywhere(&mut self.rng)
            {
                *byte ^= 0x40;
            }
        }
        any
    }

    /// Where this node is on a carrier.
    pub fn at(&self, carrier: CarrierId) -> Remote {
        match carrier.0 {
            0 => self.address.into(),
            _ => Remote { carrier, addr: Some(SocketAddr::new(self.address.ip(), SECOND_PORT)) },
        }
    }

    /// The path over a carrier, if there is one.
    fn path(&self, carrier: usize) -> Option<PathId> {
        let paths = self.relay.as_ref()?.endpoint.paths(Instant::ZERO, self.peer);
        paths.into_iter().map(|p| p.id).find(|id| (*id == PathId::FIRST) == (carrier == 0))
    }

    /// A command: everything goes by the path over this carrier.
    pub fn use_path(&mut self, now: Instant, carrier: usize) {
        if let Some(path) = self.path(carrier)
            && let Some(relay) = &mut self.relay
        {
            relay.endpoint.use_path(now, self.peer, Some(path));
        }
    }

    /// The path over this carrier is up, or down.
    pub fn set_path_up(&mut self, now: Instant, carrier: usize, up: bool) {
        if let Some(path) = self.path(carrier)
            && let Some(relay) = &mut self.relay
        {
            relay.endpoint.set_path_up(now, self.peer, path, up);
            self.down[carrier] = !up;
        }
    }

    /// The session's names, its own first, if there is one.
    pub fn session_names(&self) -> Option<(u64, u64)> {
        let id = self.relay.as_ref()?.endpoint.session_id(self.peer)?;
        Some((id.local, id.remote))
    }

    /// A new address.
    pub fn relocate(&mut self) {
        self.moves += 1;
        self.address.set_port(4500 + self.moves);
    }

    /// Its clock has leapt: timers are due at other times, and a packet that the line was
    /// busy with has long left.
    pub fn on_leap(&mut self, now: Instant, node: usize, plan: &Plan) {
        self.wake = None;
        if let Some(relay) = &mut self.relay {
            relay.endpoint.distrust_keys(now);
        }
        self.meters = meters(node, plan);
    }

    /// What it shares with the other node, if it runs.
    pub fn session(&self) -> Option<&Session> {
        self.relay.as_ref()?.endpoint.session(self.peer)
    }

    /// The same, for a test to meddle with.
    #[cfg(test)]
    pub fn session_mut(&mut self) -> Option<&mut Session> {
        self.relay.as_mut()?.endpoint.session_mut(self.peer)
    }

    /// When its driver wakes up next: as late as drivers are. Its clock is `ahead`.
    pub fn wake_at(&mut self, now: Instant, ahead: Duration, late: Duration) -> Option<Instant> {
        let local = now + ahead;
        let due = self.relay.as_ref()?.poll_timeout(local)?;
        if let Some((for_timeout, at)) = self.wake
            && for_timeout == due
        {
            return Some(at.max(now));
        }
        let late = self.rng.below(late.as_nanos() + 1);
        let at = now + due.since(local) + Duration::from_nanos(late);
        self.wake = Some((due, at));
        Some(at)
    }
}

fn link_config(node: usize, plan: &Plan) -> LinkConfig {
    LinkConfig {
        send_rate: plan.rates[node],
        rate_mode: Default::default(),
        receive_rate: plan.rates[1 - node],
        rtt: plan.promised_rtt,
        mtu: plan.mtus[node],
        queue: link::session::NEARLY_EMPTY,
        bit_errors: plan.bit_errors,
        overhead: plan.overhead,
        packet: plan.packets[node],
        memory: plan.memories[node],
        stream_buffer: plan.stream_buffer,
        max_streams: relay::streams_for(plan.max_streams[node]),
        headers: true,
        history: plan.histories[node],
        dedup: plan.dedup[node].is_some(),
        facts: Default::default(),
        classes: if plan.bound { bound_classes() } else { Vec::new() },
    }
}

fn carrier(name: &str) -> CarrierName {
    CarrierName::new(name.as_bytes()).expect("a short name")
}

/// Bulk goes by the second carrier or not at all, normal by either; what is small goes by the best.
fn bound_classes() -> Vec<ClassConfig> {
    let mut classes = vec![ClassConfig::default(); ClassId::BUILT_IN];
    let names = [carrier("second"), carrier("first")];
    let of = |names| CarrierNames::new(names).expect("two names");
    classes[ClassId::NORMAL.index()].carriers = of(&names);
    classes[ClassId::BULK.index()].carriers = of(&names[..1]);
    classes
}

/// Where carriers are named every third connection is bulk.
fn bulk(plan: &Plan) -> Option<Rule> {
    let ports = (0..plan.connections.len() as u16).filter(|port| port % 3 == 0);
    plan.bound.then(|| Rule {
        protocol: Some(TCP),
        ports: ports.map(|port| port..=port).collect(),
        dscp: None,
        class: Some(ClassId::BULK),
        carry: None,
        compress: None,
        headers: None,
        dedup: None,
        via: None,
    })
}

const TCP: u8 = 6;

/// Little memory, so that chunks are read from files; and often little of these, so that chunks
/// go while they are referred to.
fn limits(plan: &Plan) -> Limits {
    let memory = if plan.disks_rot || plan.seed.is_multiple_of(4) { 32 << 10 } else { 1 << 20 };
    let disk = if plan.seed.is_multiple_of(3) { 300_000 } else { 16 << 20 };
    Limits { memory, disk, sources: 2 << 20, assembling: 256 << 10, chunks: 1 << 14 }
}

/// Two challenges, or an empty packet and one; and the answer to one.
const UNPACED: u64 = 3 * (60 + 48);

fn meters(node: usize, plan: &Plan) -> [Meter; 2] {
    let second = plan.second.map_or(plan.rates[node], |s| s.rates[node]);
    let unpaced = units::ByteCount(UNPACED + 2 * u64::from(plan.overhead));
    [plan.rates[node], second].map(|rate| Meter::new(rate, unpaced))
}

const SECOND_PORT: u16 = 5500;
/// How often node 0 asks about the path that stands by.
pub(crate) const PROBE: Duration = Duration::from_secs(5);

fn second_remote(node: usize, plan: &Plan) -> Remote {
    let addr = Some(SocketAddr::new(address(node, plan), SECOND_PORT));
    Remote { carrier: CarrierId(1), addr }
}

fn second_path(node: usize, plan: &Plan, second: &Second) -> PathConfig {
    PathConfig {
        send_rate: second.rates[node],
        receive_rate: second.rates[1 - node],
        rtt: second.delays[0] + second.delays[1],
        name: carrier("second"),
        priority: 10,
        probe: Some(PROBE),
        ..link_config(node, plan).path()
    }
}

fn address(node: usize, plan: &Plan) -> IpAddr {
    match plan.ipv6 {
        false => IpAddr::from([192, 0, 2, node as u8 + 1]),
        true => IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, node as u16 + 1]),
    }
}

fn bytes32(rng: &mut Rng) -> [u8; 32] {
    let mut bytes = [0; 32];
    rng.fill(&mut bytes);
    bytes
}
