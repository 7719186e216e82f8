//! A node and a peer that has its key and says in handshakes what it likes: payloads of any bytes,
//! parameters of any values, as the one who asks and the one who answers, again and again; and
//! frames of any bytes in the sessions that come of them.

use std::net::SocketAddr;

use units::{BitRate, ByteCount, Duration, Instant};

use super::Bytes;
use crate::PeerId;
use crate::endpoint::{Endpoint, EndpointConfig, EndpointEvent, MAX_KEY_LIFETIME, PeerConfig};
use crate::handshake::{Initiation, Message, Offer, Params, forged};
use crate::keys::{Entropy, PresharedKey, PrivateKey};
use crate::path::PathId;
use crate::seal::TAG_LEN;
use crate::session::{Label, LinkConfig};
use crate::tunnel::{MAX_HINT, PacketKind, Tunnel, TunnelConfig};
use crate::wire::{Origin, Target};

/// Steps of one input: a handshake costs as much as thousands of bytes.
const STEPS: usize = 60;
/// Packets in answer to one.
const ANSWERS: usize = 100;
const MEMORY: u64 = 1 << 20;

struct World {
    now: Instant,
    node: Endpoint,
    peer: PeerId,
    /// The peer's end, its key, and what it answers the node's next initiation with.
    tunnel: Tunnel,
    key: PrivateKey,
    entropy: Entropy,
    answer: Option<Vec<u8>>,
    next_index: u32,
}

/// Runs what `data` says.
pub fn handshakes(data: &[u8]) {
    let mut bytes = Bytes(data);
    let mut world = World::new();
    for _ in 0..STEPS {
        if bytes.is_empty() {
            break;
        }
        world.act(&mut bytes);
        world.exchange();
        if let Some(session) = world.node.session(world.peer) {
            assert!(session.memory_used() <= 2 * MEMORY, "{} bytes", session.memory_used());
        }
    }
}

fn address(n: u8) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, n], 4500))
}

impl World {
    fn new() -> World {
        let now = Instant::ZERO + Duration::from_secs(1_000);
        let keys = [1, 2].map(|n| PrivateKey::from_bytes([n; 32]));
        let mut node = Endpoint::new(EndpointConfig {
            private_key: keys[0].clone(),
            seed: [7; 32],
            hardware_aes: false,
            initiations_per_second: 1_000,
            key_lifetime: MAX_KEY_LIFETIME,
            fresh: None,
        });
        let peer = PeerConfig {
            public_key: *keys[1].public(),
            preshared_key: PresharedKey::NONE,
            endpoint: Some(address(2).into()),
            link: link(),
            keepalive: None,
        };
        let peer = node.add_peer(now, peer).expect("two keys");
        let mut entropy = Entropy::new([9; 32]);
        let tunnel = Tunnel::new(
            TunnelConfig {
                local: keys[1].clone(),
                peer: *keys[0].public(),
                preshared: PresharedKey::NONE,
                offer: Offer::new(false),
                params: Params::EMPTY,
                endpoint: Some(address(1).into()),
                key_lifetime: MAX_KEY_LIFETIME,
            },
            entropy.fork(),
        );
        let [_, key] = keys;
        World { now, node, peer, tunnel, key, entropy, answer: None, next_index: 1 }
    }

    fn act(&mut self, bytes: &mut Bytes<'_>) {
        let now = self.now;
        match bytes.u8() % 8 {
            0 | 1 => {
                let len = usize::from(bytes.u8()) % 65;
                self.tunnel.set_params(Params::new(bytes.take(len)).expect("64 bytes at most"));
                if !self.tunnel.is_established() {
                    self.tunnel.connect(now);
                }
                self.tunnel.renew(now);
            }
            2 => {
                let len = usize::from(bytes.u8());
                let (payload, peer) = (bytes.take(len), *self.node.public_key());
                let index = self.index();
                let made = forged::initiation(&self.key, &peer, index, payload, &mut self.entropy);
                self.arrive(made.as_ref().map_or(&[], Message::as_bytes));
            }
            3 => {
                let len = usize::from(bytes.u8());
                self.answer = Some(bytes.take(len).to_vec());
                self.node.distrust_keys(now);
            }
            4 => {
                let len = usize::from(bytes.u8()) * 4;
                self.say(bytes.u8() % (MAX_HINT + 1), bytes.take(len));
            }
            5 => self.use_session(bytes),
            6 => self.pass(Duration::from_millis(1 << (bytes.u8() % 17))),
            _ => self.pass(Duration::from_secs(3_000)),
        }
    }

    fn index(&mut self) -> u32 {
        self.next_index += 1;
        self.next_index
    }

    /// A packet of the peer's, whatever it says.
    fn say(&mut self, hint: u8, payload: &[u8]) {
        let Some(head) = self.tunnel.header_len(PathId::FIRST, 2) else { return };
        let mut packet = vec![0; head];
        packet.extend_from_slice(payload);
        packet.resize(packet.len() + TAG_LEN, 0);
        if self.tunnel.seal_packet(self.now, PathId::FIRST, hint, 2, &mut packet).is_ok() {
            self.arrive(&packet);
        }
    }

    fn arrive(&mut self, packet: &[u8]) {
        self.node.handle_packet(self.now, self.now, address(2).into(), &mut packet.to_vec());
    }

    fn use_session(&mut self, bytes: &mut Bytes<'_>) {
        let (len, now) = (usize::from(bytes.u16()), self.now);
        let Some(session) = self.node.session_mut(self.peer) else { return };
        session.send_datagram(now, &vec![3; len % 9_000], &Label::default());
        let target = Target::Name("example.org".to_owned(), 443);
        if let Some(id) = session.open(now, Origin { client: None, target, dscp: 0 }) {
            session.write(now, id, &vec![9; len]);
        }
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        self.node.handle_timeout(self.now);
    }

    /// All that both have to say now.
    fn exchange(&mut self) {
        let mut buf = vec![0; 9000];
        for _ in 0..ANSWERS {
            while self.node.poll_event().is_some_and(|e| !matches!(e, EndpointEvent::Link(..))) {}
            if let Some(t) = self.node.poll_transmit(self.now, &mut buf) {
                assert!(t.len <= buf.len());
                self.hear(&buf[..t.len]);
            } else if let Some(packet) = self.next_of_peer() {
                self.arrive(&packet);
            } else {
                break;
            }
        }
    }

    fn next_of_peer(&mut self) -> Option<Vec<u8>> {
        let next = &mut self.next_index;
        let mut indices = || {
            *next += 1;
            *next
        };
        while self.tunnel.poll_event().is_some() {}
        while self.tunnel.poll_freed_index().is_some() {}
        let message = self.tunnel.poll_transmit(self.now, &mut indices);
        if let Some((_, message)) = message {
            return Some(message.as_bytes().to_vec());
        }
        if self.tunnel.owes_packet().is_some() {
            self.say(0, &[]);
        }
        None
    }

    /// A packet of the node's. Its questions are answered as the input says, or honestly.
    fn hear(&mut self, packet: &[u8]) {
        match PacketKind::of(packet) {
            Some(PacketKind::Response { .. }) => {
                let _ = self.tunnel.handle_response(self.now, address(1).into(), packet);
                if self.tunnel.owes_packet().is_some() {
                    self.say(0, &[]);
                }
            }
            Some(PacketKind::Initiation) => {
                let read = Initiation::open(&self.key, &mut self.entropy, packet);
                assert!(read.is_ok_and(|i| i.peer() == self.node.public_key()));
                let Some(payload) = self.answer.take() else { return };
                let index = self.index();
                let made = forged::response(&self.key, packet, index, &payload, &mut self.entropy);
                self.arrive(made.as_ref().map_or(&[], Message::as_bytes));
            }
            Some(PacketKind::Data { .. }) => {
                let _ = self.tunnel.open_packet(self.now, address(1).into(), &mut packet.to_vec());
            }
            _ => {}
        }
    }
}

fn link() -> LinkConfig {
    LinkConfig {
        send_rate: BitRate::from_mbps(5),
        rate_mode: Default::default(),
        receive_rate: BitRate::from_mbps(5),
        rtt: Duration::from_millis(80),
        mtu: 1500,
        packet: 1500,
        queue: crate::session::NEARLY_EMPTY,
        bit_errors: units::Ratio::ZERO,
        overhead: 0,
        memory: ByteCount(MEMORY),
        stream_buffer: None,
        max_streams: 64,
        headers: true,
        history: ByteCount(1 << 18),
        dedup: true,
        facts: Default::default(),
        classes: Vec::new(),
    }
}
