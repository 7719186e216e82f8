//! Two tunnels and the network between them.

use std::collections::{BTreeMap, VecDeque};

use super::*;
use crate::cookie::{Guard, Verdict};
use crate::handshake::{Asked, HandshakeError, Hello, Initiation};
use crate::seal::TAG_LEN;

mod chaos;
mod crossing;
mod explored;
mod hostile;
mod keys;
mod load;
mod moving;
mod sessions;

/// A node with one peer.
struct Node {
    key: PrivateKey,
    tunnel: Tunnel,
    guard: Guard,
    entropy: Entropy,
    addr: Remote,
    indices: BTreeMap<u32, ()>,
    next_index: u32,
    /// What was opened: number and content.
    received: Vec<(u64, Vec<u8>)>,
    events: Vec<Event>,
    /// Sessions begun: the owner's count of "not resumed".
    sessions: u32,
    handshake_drops: Vec<HandshakeError>,
    packet_drops: Vec<PacketError>,
    peer: u8,
    preshared: PresharedKey,
    /// Gives out index 0, as on a carrier with one peer.
    nameless: bool,
}

/// Numbers in sequence, or always 0.
struct Sequence<'a> {
    indices: &'a mut BTreeMap<u32, ()>,
    next: &'a mut u32,
    nameless: bool,
}

impl Indices for Sequence<'_> {
    fn allocate(&mut self) -> u32 {
        if self.nameless {
            return 0;
        }
        *self.next += 1;
        self.indices.insert(*self.next, ());
        *self.next
    }
}

/// A packet under way.
#[derive(Clone, Debug)]
struct Flying {
    from: Remote,
    to: Remote,
    bytes: Vec<u8>,
}

/// A question that any packet answers, as a session asks it (L-HS-8).
const PING: &[u8] = b"P12345678";

fn addr(host: u8) -> Remote {
    Remote::from(std::net::SocketAddr::from(([192, 0, 2, host], 4500)))
}

fn key(n: u8) -> PrivateKey {
    PrivateKey::generate([n; 32])
}

impl Node {
    fn new(own: u8, peer: u8, endpoint: Option<Remote>, seed: u8) -> Node {
        Node::with_psk(own, peer, endpoint, seed, PresharedKey::NONE)
    }

    fn with_psk(
        own: u8,
        peer: u8,
        endpoint: Option<Remote>,
        seed: u8,
        preshared: PresharedKey,
    ) -> Node {
        let mut entropy = Entropy::new([seed; 32]);
        let config = TunnelConfig {
            local: key(own),
            peer: *key(peer).public(),
            preshared: preshared.clone(),
            offer: Offer::new(true),
            params: Params::new(&[own; 20]).expect("20 bytes fit"),
            endpoint,
            key_lifetime: MAX_KEY_LIFETIME,
        };
        Node {
            key: key(own),
            tunnel: Tunnel::new(config, entropy.fork()),
            guard: {
                let mut entropy = entropy.fork();
                Guard::new(key(own).public(), 100, entropy.bytes32(), entropy)
            },
            entropy,
            addr: addr(own),
            indices: BTreeMap::new(),
            next_index: u32::from(seed) * 1000 + 300,
            received: Vec::new(),
            events: Vec::new(),
            sessions: 0,
            handshake_drops: Vec::new(),
            packet_drops: Vec::new(),
            peer,
            preshared,
            nameless: false,
        }
    }

    /// The node after a crash: only its configuration and the last endpoint are left.
    fn restart(&mut self, own: u8, seed: u8) {
        let endpoint = self.tunnel.endpoint(PathId::FIRST);
        let addr = self.addr;
        *self = Node::with_psk(own, self.peer, endpoint, seed, self.preshared.clone());
        self.addr = addr;
    }

    /// The endpoint's work for one packet; answers go to `out`.
    fn handle(&mut self, now: Instant, packet: &Flying, out: &mut VecDeque<Flying>) {
        let mut bytes = packet.bytes.clone();
        match PacketKind::of(&bytes) {
            None => self.packet_drops.push(PacketError::Malformed),
            Some(PacketKind::Data { .. }) => {
                match self.tunnel.open_packet(now, packet.from, &mut bytes) {
                    Ok(opened) => {
                        let announced = self.tunnel.established.is_some();
                        assert!(!opened.confirmed_now || announced, "an event announces new keys");
                        self.drain_events();
                        self.handle_payload(now, packet.from, &bytes[opened.payload.clone()], out);
                        self.received.push((opened.number, bytes[opened.payload].to_vec()));
                    }
                    Err(e) => self.packet_drops.push(e),
                }
            }
            Some(kind) => {
                if let Err(e) = self.handle_handshake(now, packet, kind, out) {
                    self.handshake_drops.push(e);
                }
            }
        }
        self.drain(now, out);
    }

    /// Challenges, questions and their answers: a letter and the token.
    fn handle_payload(
        &mut self,
        now: Instant,
        from: Remote,
        payload: &[u8],
        out: &mut VecDeque<Flying>,
    ) {
        let Ok([letter, token @ ..]) = <[u8; 9]>::try_from(payload) else { return };
        match letter {
            b'C' => {
                let mut answer = self.seal(now, &[&b"R"[..], &token].concat()).expect("a session");
                answer.to = from;
                out.push_back(answer);
            }
            b'P' => out.extend(self.seal(now, b"")),
            b'R' => {
                self.tunnel.on_challenge_response(PathId::FIRST, from, u64::from_be_bytes(token));
            }
            _ => {}
        }
    }

    fn handle_handshake(
        &mut self,
        now: Instant,
        packet: &Flying,
        kind: PacketKind,
        out: &mut VecDeque<Flying>,
    ) -> Result<(), HandshakeError> {
        let bytes = &packet.bytes;
        match kind {
            PacketKind::CookieReply { .. } => return self.tunnel.handle_cookie_reply(now, bytes),
            PacketKind::Response { receiver } if !self.tunnel.awaits_response(receiver) => {
                return Err(HandshakeError::Unsolicited);
            }
            _ => {}
        }
        if let Verdict::Refused(why, reply) = self.guard.admit(now, packet.from.source(), bytes) {
            if let Some(reply) = reply {
                assert!(reply.as_bytes().len() < bytes.len(), "never longer than the question");
                out.push_back(Flying {
                    from: packet.to,
                    to: packet.from,
                    bytes: reply.as_bytes().to_vec(),
                });
            }
            return Err(why);
        }
        match kind {
            PacketKind::Initiation => {
                let initiation = Initiation::open(&self.key, &mut self.entropy, bytes)?;
                let mut indices = Sequence {
                    indices: &mut self.indices,
                    next: &mut self.next_index,
                    nameless: self.nameless,
                };
                self.tunnel.accept(now, packet.from, initiation, &mut self.guard, &mut indices)
            }
            _ => {
                self.tunnel.handle_response(now, packet.from, bytes)?;
                self.drain_events();
                out.extend(self.seal(now, PING));
                Ok(())
            }
        }
    }

    fn drain_events(&mut self) {
        while let Some(event) = self.tunnel.poll_event() {
            if matches!(event, Event::Established { resumed: false, .. }) {
                self.sessions += 1;
            }
            self.events.push(event);
        }
        while let Some(index) = self.tunnel.poll_freed_index() {
            let ours = self.indices.remove(&index).is_some();
            assert!(ours || self.nameless, "freed once, and ours");
        }
    }

    /// Everything that the node has to send now.
    fn drain(&mut self, now: Instant, out: &mut VecDeque<Flying>) {
        self.drain_events();
        loop {
            let mut indices = Sequence {
                indices: &mut self.indices,
                next: &mut self.next_index,
                nameless: self.nameless,
            };
            let Some((to, message)) = self.tunnel.poll_transmit(now, &mut indices) else { break };
            out.push_back(Flying { from: self.addr, to, bytes: message.as_bytes().to_vec() });
        }
        if self.tunnel.asks_for_confirmation(now) {
            out.extend(self.seal(now, PING));
        }
        if self.tunnel.owes_packet().is_some() {
            out.push_back(self.seal(now, b"").expect("keys that owe a packet can seal one"));
        }
        while let Some((_, to, token)) = self.tunnel.poll_challenge(now) {
            let mut packet = self.seal(now, &[&b"C"[..], &token.to_be_bytes()].concat());
            let packet = packet.as_mut().expect("a session");
            packet.to = to;
            out.push_back(packet.clone());
        }
        self.drain_events();
        assert!(self.indices.len() <= 20, "current, 3 old, 8 pending, 8 tries: no leak");
    }

    /// A data packet to the endpoint.
    fn seal(&mut self, now: Instant, payload: &[u8]) -> Option<Flying> {
        let header = self.tunnel.header_len(PathId::FIRST, 2)?;
        let mut bytes = vec![0; header];
        bytes.extend(payload);
        bytes.extend([0; TAG_LEN]);
        self.tunnel.seal_packet(now, PathId::FIRST, 3, 2, &mut bytes).expect("a session");
        let to = self
            .tunnel
            .endpoint(PathId::FIRST)
            .expect("an established tunnel knows where the peer is");
        Some(Flying { from: self.addr, to, bytes })
    }
}

/// Two nodes, `a` with the lower key, and what flies between them.
struct World {
    now: Instant,
    a: Node,
    b: Node,
    net: VecDeque<Flying>,
    /// Everything that ever flew.
    log: Vec<Flying>,
}

impl World {
    /// Node numbers such that the first one's key is the lower.
    fn ordered() -> (u8, u8) {
        if key(1).public() < key(2).public() { (1, 2) } else { (2, 1) }
    }

    /// `a` and `b`, each with the other's address.
    fn new() -> World {
        World::of(PresharedKey::NONE, PresharedKey::NONE)
    }

    fn of(psk_a: PresharedKey, psk_b: PresharedKey) -> World {
        let (a, b) = World::ordered();
        World {
            now: Instant::ZERO + Duration::from_secs(1000),
            a: Node::with_psk(a, b, Some(addr(b)), 10, psk_a),
            b: Node::with_psk(b, a, Some(addr(a)), 20, psk_b),
            net: VecDeque::new(),
            log: Vec::new(),
        }
    }

    /// Both connected, `a` the initiator.
    fn established() -> World {
        let mut w = World::new();
        w.a.tunnel.connect(w.now);
        w.run();
        assert!(w.a.tunnel.is_established() && w.b.tunnel.is_established());
        w
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
    }

    /// Lets both nodes send what is due.
    fn drain(&mut self) {
        self.a.drain(self.now, &mut self.net);
        self.b.drain(self.now, &mut self.net);
    }

    /// Delivers one packet of those under way.
    fn deliver(&mut self, packet: &Flying) {
        self.log.push(packet.clone());
        if packet.to == self.a.addr {
            self.a.handle(self.now, packet, &mut self.net);
        } else if packet.to == self.b.addr {
            self.b.handle(self.now, packet, &mut self.net);
        }
    }

    /// Everything under way is lost.
    fn lose_all(&mut self) {
        self.drain();
        self.log.extend(self.net.drain(..));
    }

    /// Delivers everything, in order, until nothing flies.
    fn run(&mut self) {
        self.drain();
        for _ in 0..1000 {
            let Some(packet) = self.net.pop_front() else { return };
            self.deliver(&packet);
        }
        panic!("the nodes go on talking for ever");
    }

    /// Both have something to send, and go on trying until it arrives.
    fn settle(&mut self) {
        self.a.tunnel.set_wanted(self.now, true);
        self.b.tunnel.set_wanted(self.now, true);
        for _ in 0..60 {
            self.run();
            // Twice: two handshakes that crossed may swap their sessions at the first.
            if self.probe() && self.probe() {
                break;
            }
            self.pass(Duration::from_secs(1));
        }
        self.a.tunnel.set_wanted(self.now, false);
        self.b.tunnel.set_wanted(self.now, false);
        self.run();
    }

    /// Whether a packet arrives each way.
    fn probe(&mut self) -> bool {
        let probes = [self.a.seal(self.now, b"probe"), self.b.seal(self.now, b"probe")];
        let before = [self.a.received.len(), self.b.received.len()];
        self.net.extend(probes.into_iter().flatten());
        self.run();
        self.a.received.len() > before[0] && self.b.received.len() > before[1]
    }

    /// Sends `payload` each way and asserts that it arrives.
    fn assert_talking(&mut self) {
        for payload in [&b"question"[..], b"answer"] {
            let packet = self.a.seal(self.now, payload).expect("a session at a");
            self.deliver(&packet);
            assert_eq!(self.b.received.last().map(|(_, p)| &p[..]), Some(payload));
            self.run();
            let packet = self.b.seal(self.now, payload).expect("a session at b");
            self.deliver(&packet);
            assert_eq!(self.a.received.last().map(|(_, p)| &p[..]), Some(payload));
            self.run();
        }
    }
}
