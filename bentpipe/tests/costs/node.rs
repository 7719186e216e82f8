//! A relay with one peer, whose packets are made here.

use std::net::SocketAddr;
use std::sync::{Arc, LazyLock};

use link::PathId;
use link::endpoint::{Endpoint, EndpointConfig, MAX_KEY_LIFETIME};
use link::handshake::{Offer, Params};
use link::keys::{Entropy, PresharedKey, PrivateKey};
use link::seal::TAG_LEN;
use link::session::{LinkConfig, RecvState};
use link::tunnel::{PacketKind, Tunnel, TunnelConfig};
use link::{PeerConfig, PeerId};
use relay::{Action, FlowId, Policy, Relay};
use squeeze::dedup::{Dedup, Keys, Limits, Store};
use units::{BitRate, ByteCount, Duration, Instant, varint};

pub const PEER: PeerId = PeerId::from_index(0);
/// Bytes of a packet's frames.
pub const PACKET: usize = 1400;
/// What the node may use for this peer.
pub const MEMORY: i64 = 16 << 20;
/// A packet of [`PACKET`] bytes at 20 Mbit/s.
const SPACING: Duration = Duration::from_micros(570);

/// The node, and its peer's end of the tunnel.
pub struct Node {
    pub now: Instant,
    pub relay: Relay,
    tunnel: Tunnel,
    /// Flows that the peer opened and the node connected.
    pub flows: Vec<FlowId>,
    /// Its servers take what comes.
    pub reads: bool,
    /// Its servers accept.
    pub accepts: bool,
    /// The first flow's server sends a byte so many times after each packet that comes; without a
    /// flow a host of the node sends as many datagrams.
    pub sends: usize,
    /// The newest packet of the node's that came, and that of a moment that an attack chose.
    pub newest: u64,
    pub marked: u64,
    /// Pieces that reports may cut a stream of the node's into: each packet in flight has one.
    pub pieces: i64,
}

fn address(side: u8) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, side], 4500))
}

pub fn link() -> LinkConfig {
    LinkConfig {
        send_rate: BitRate::from_mbps(20),
        rate_mode: Default::default(),
        receive_rate: BitRate::from_mbps(20),
        rtt: Duration::from_millis(600),
        mtu: 1500,
        packet: 1500,
        queue: Default::default(),
        bit_errors: units::Ratio::ZERO,
        overhead: 0,
        memory: ByteCount(MEMORY as u64),
        stream_buffer: None,
        max_streams: 1024,
        headers: true,
        history: ByteCount(2 << 20),
        dedup: false,
        facts: Default::default(),
        classes: Default::default(),
    }
}

/// As much of everything as a peer can offer.
fn moon() -> Params {
    let (mut bytes, mut out) = (Vec::new(), [0; varint::MAX_LEN]);
    for n in [9000, 1 << 40, 1 << 40, 1024, 1 << 10, 1 << 40, 1] {
        let len = varint::put(n, &mut out);
        bytes.extend_from_slice(&out[..len]);
    }
    Params::new(&bytes).expect("they fit")
}

/// In memory alone: files are another thread's work.
fn dedup() -> Dedup {
    let limits = Limits { memory: 1 << 20, disk: 0, assembling: 1 << 20, ..Limits::default() };
    let keys = Arc::new(Keys::new(&[5; 32]));
    Dedup::new(keys.clone(), Store::new(keys, limits.memory, 0, 9), &limits)
}

impl Node {
    pub fn new(link: LinkConfig) -> Node {
        let keys = [1u8, 2].map(|n| PrivateKey::from_bytes([n; 32]));
        let now = Instant::ZERO + Duration::from_secs(1_000);
        let mut relay = Relay::new(Endpoint::new(EndpointConfig {
            private_key: keys[0].clone(),
            seed: [7; 32],
            fresh: None,
            hardware_aes: true,
            initiations_per_second: 1000,
            key_lifetime: MAX_KEY_LIFETIME,
        }));
        let config = PeerConfig {
            public_key: *keys[1].public(),
            preshared_key: PresharedKey::NONE,
            endpoint: None,
            link: link.clone(),
            keepalive: None,
        };
        let policy = Policy {
            routes: vec!["10.2.0.0/16".parse().expect("a prefix")],
            allow: vec!["10.1.0.0/16".parse().expect("a prefix")],
            keep_source: true,
            refuse_quic: false,
            connects: Some(1_000_000),
            ..Policy::default()
        };
        relay.add_peer(now, config, policy).expect("two keys");
        if link.dedup {
            relay.set_dedup(PEER, dedup());
        }
        // Deduplication and compression measure themselves, as in the program.
        relay.set_stopwatch(|| Instant::ZERO + os::proc::thread_cpu());
        let config = TunnelConfig {
            local: keys[1].clone(),
            peer: *keys[0].public(),
            preshared: PresharedKey::NONE,
            offer: Offer::new(true),
            params: moon(),
            endpoint: Some(address(1).into()),
            key_lifetime: MAX_KEY_LIFETIME,
        };
        let tunnel = Tunnel::new(config, Entropy::new([9; 32]));
        let mut node = Node {
            now,
            relay,
            tunnel,
            flows: Vec::new(),
            reads: true,
            accepts: true,
            sends: 0,
            newest: 0,
            marked: 0,
            pieces: 0,
        };
        node.shake_hands();
        node
    }

    fn shake_hands(&mut self) {
        self.tunnel.connect(self.now);
        let mut indices = || 77;
        let (_, message) = self.tunnel.poll_transmit(self.now, &mut indices).expect("a question");
        self.relay.handle_carrier(self.now, self.now, address(2), &mut message.as_bytes().to_vec());
        let mut buf = [0; 9000];
        let answer = self.relay.poll_transmit(self.now, &mut buf).expect("an answer");
        let packet = &buf[..answer.len];
        assert!(matches!(PacketKind::of(packet), Some(PacketKind::Response { .. })));
        self.tunnel.handle_response(self.now, address(1).into(), packet).expect("a good answer");
        self.receive(0, &[]);
        assert!(self.relay.endpoint.is_established(PEER));
    }

    /// The node takes a packet with these frames and does all that follows, until the next could
    /// come. Answers the processor time, in µs.
    pub fn receive(&mut self, hint: u8, payload: &[u8]) -> u64 {
        self.now += SPACING;
        let head = self.tunnel.header_len(PathId::FIRST, 4).expect("a session");
        let mut packet = vec![0; head];
        packet.extend_from_slice(payload);
        packet.resize(packet.len() + TAG_LEN, 0);
        self.tunnel.seal_packet(self.now, PathId::FIRST, hint, 4, &mut packet).expect("a session");
        let begin = os::proc::thread_cpu();
        self.relay.handle_carrier(self.now, self.now, address(2), &mut packet);
        self.act();
        let time = os::proc::thread_cpu() - begin;
        self.take_packets();
        for _ in 0..self.sends {
            self.now += SPACING.divided_by(self.sends as u64);
            match self.flows.first() {
                Some(flow) => {
                    self.relay.local_data(self.now, *flow, b"x");
                }
                None => {
                    self.relay.handle_tun(self.now, &mut datagram(), true);
                }
            }
            self.relay.handle_timeout(self.now);
            self.take_packets();
        }
        time.as_nanos() / 1000
    }

    /// Those that are open.
    pub fn streams(&self) -> i64 {
        self.relay.endpoint.session(PEER).map_or(0, |s| s.streams() as i64)
    }

    /// Messages about chunks that were understood, and those that mean nothing.
    pub fn messages(&self) -> [u64; 2] {
        let counts = self.relay.compression(PEER).chunks.expect("a node that deduplicates");
        assert!(counts.in_use, "both ends deduplicate");
        [counts.messages, counts.violations]
    }

    fn act(&mut self) {
        while let Some(action) = self.relay.poll_action(self.now) {
            match action {
                Action::Connect { flow, .. } if self.accepts => {
                    self.relay.connected(flow);
                    self.flows.push(flow);
                }
                Action::Write(flow) if self.reads => self.read(flow),
                Action::PeerReset(flow, _) | Action::Abort(flow, _) => {
                    self.flows.retain(|f| *f != flow);
                    self.relay.closed(self.now, flow);
                }
                _ => {}
            }
        }
        while self.relay.poll_tun(self.now, |_| {}) {}
        self.relay.handle_timeout(self.now);
    }

    /// The server takes all that there is.
    fn read(&mut self, flow: FlowId) {
        loop {
            let mut slices: [&[u8]; 16] = [&[]; 16];
            let n = self.relay.outgoing(self.now, flow, &mut slices);
            let len = slices[..n].iter().map(|s| s.len()).sum::<usize>();
            if len == 0 {
                break;
            }
            self.relay.wrote(self.now, flow, len);
        }
        if self.relay.outgoing_state(flow) == RecvState::Finished {
            self.relay.local_end(self.now, flow);
        }
    }

    /// What the node sends, and what the peer makes of it: nothing but the number.
    fn take_packets(&mut self) {
        let mut buf = [0; 9000];
        while let Some(t) = self.relay.poll_transmit(self.now, &mut buf) {
            let opened = self.tunnel.open_packet(self.now, address(1).into(), &mut buf[..t.len]);
            if let Ok(opened) = opened {
                self.newest = self.newest.max(opened.number);
            }
        }
        while self.tunnel.poll_event().is_some() {}
    }
}

/// A UDP packet of a host here to one behind the peer.
fn datagram() -> [u8; 32] {
    let mut packet = [0; 32];
    packet[..10].copy_from_slice(&[0x45, 0, 0, 32, 0, 0, 0x40, 0, 64, 17]);
    packet[12..28].copy_from_slice(&[10, 1, 0, 2, 10, 2, 0, 2, 9, 9, 7, 7, 0, 12, 0, 0]);
    packet
}

/// The lowest bit of the peer's streams' numbers: even if its key is the lower.
pub fn parity() -> u64 {
    static PARITY: LazyLock<u64> = LazyLock::new(|| {
        let [node, peer] = [1u8, 2].map(|n| *PrivateKey::from_bytes([n; 32]).public());
        u64::from(node < peer)
    });
    *PARITY
}
