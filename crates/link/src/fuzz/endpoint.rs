//! Two endpoints, their handshakes included, over a pipe that loses, repeats, changes and
//! redirects what it is told to.

use std::collections::VecDeque;
use std::net::SocketAddr;

use units::{BitRate, ByteCount, Duration, Instant};

use super::Bytes;
use crate::PeerId;
use crate::endpoint::{Endpoint, EndpointConfig, EndpointEvent, PeerConfig};
use crate::keys::{PresharedKey, PrivateKey};
use crate::path::Remote;
use crate::session::{Event, LinkConfig};
use crate::wire::{Origin, ResetReason, StreamId, Target};

const DELAY: Duration = Duration::from_millis(40);

struct Node {
    endpoint: Endpoint,
    peer: PeerId,
    at: Remote,
    streams: Vec<StreamId>,
}

struct World {
    now: Instant,
    nodes: [Node; 2],
    /// When, whereto, from, what.
    flight: VecDeque<(Instant, usize, Remote, Vec<u8>)>,
    /// Packets that came by, to be sent again.
    kept: Vec<(usize, Remote, Vec<u8>)>,
    fates: Vec<u8>,
    stuck: u32,
    /// Steps of time that one input may take: a keepalive a second for hours is no news.
    steps: u32,
    buf: Vec<u8>,
}

/// Runs what `data` says, then a while without faults.
pub fn endpoints(data: &[u8]) {
    let mut bytes = Bytes(data);
    let mut world = World::new(&mut bytes);
    while !bytes.is_empty() {
        world.act(&mut bytes);
        world.settle();
    }
    world.fates.clear();
    world.steps += 200;
    world.run(Duration::from_secs(20));
}

fn address(n: u8) -> Remote {
    let address: SocketAddr = match n % 4 {
        3 => (std::net::Ipv6Addr::LOCALHOST, 4500 + u16::from(n)).into(),
        _ => ([192, 0, 2, n % 4 + 1], 4500).into(),
    };
    address.into()
}

impl World {
    fn new(bytes: &mut Bytes<'_>) -> World {
        let now = Instant::from_nanos(1);
        let keys = [1, 2].map(|n| PrivateKey::from_bytes([n; 32]));
        let setting = bytes.u8();
        let config = |keepalive| LinkSetting { keepalive, slow: setting & 2 != 0 };
        let nodes = [0usize, 1].map(|n| {
            let mut endpoint = Endpoint::new(EndpointConfig {
                private_key: keys[n].clone(),
                seed: [n as u8 + 7; 32],
                hardware_aes: false,
                initiations_per_second: 5,
                key_lifetime: crate::endpoint::MAX_KEY_LIFETIME,
                fresh: None,
            });
            let known = n == 0 || setting & 4 != 0;
            let peer = endpoint
                .add_peer(
                    now,
                    config(setting & 1 != 0 && n == 0)
                        .peer(keys[1 - n].public(), known.then(|| address(1 - n as u8))),
                )
                .expect("two different keys");
            Node { endpoint, peer, at: address(n as u8), streams: Vec::new() }
        });
        let (flight, kept) = (VecDeque::new(), Vec::new());
        World {
            now,
            nodes,
            flight,
            kept,
            fates: Vec::new(),
            stuck: 0,
            steps: 400,
            buf: vec![0; 9000],
        }
    }

    fn act(&mut self, bytes: &mut Bytes<'_>) {
        let op = bytes.u8();
        let n = usize::from(op >> 7);
        let now = self.now;
        match op % 16 {
            0..=3 => self.run(Duration::from_millis(1 << (bytes.u8() % 15))),
            4 => self.fates.extend_from_slice(bytes.take(usize::from(op >> 4 & 7) * 2 + 1)),
            5 => self.open(n),
            6 | 7 => self.write(n, bytes),
            8 => {
                let node = &mut self.nodes[n];
                if let Some(session) = node.endpoint.session_mut(node.peer) {
                    session.send_datagram(
                        now,
                        &vec![3; usize::from(bytes.u16()) % 9000],
                        &crate::session::Label::default(),
                    );
                }
            }
            9 => self.resend(bytes),
            10 => {
                let mut junk = bytes.take(usize::from(bytes.0.first().copied().unwrap_or(0)));
                junk = &junk[..junk.len().min(255)];
                let mut junk = junk.to_vec();
                self.nodes[n].endpoint.handle_packet(now, now, address(op >> 4), &mut junk);
            }
            11 => self.nodes[n].at = address(bytes.u8()),
            12 => {
                let to = address(bytes.u8());
                let node = &mut self.nodes[n];
                node.endpoint.set_endpoint(now, node.peer, to);
            }
            13 => self.nodes[n].endpoint.close_all(ResetReason::ShuttingDown),
            14 => self.end_stream(n, bytes),
            _ => self.run(Duration::from_secs(u64::from(bytes.u8()) * 60)),
        }
    }

    fn open(&mut self, n: usize) {
        let node = &mut self.nodes[n];
        let target = Target::Name("example.org".to_owned(), 443);
        let now = self.now;
        let opened = node
            .endpoint
            .session_mut(node.peer)
            .filter(|s| s.streams() < 30)
            .and_then(|s| s.open(now, Origin { client: None, target, dscp: 0 }));
        node.streams.extend(opened);
    }

    fn write(&mut self, n: usize, bytes: &mut Bytes<'_>) {
        let (pick, len) = (usize::from(bytes.u8()), usize::from(bytes.u16()));
        let node = &mut self.nodes[n];
        let Some(id) = node.streams.get(pick % node.streams.len().max(1)).copied() else { return };
        if let Some(session) = node.endpoint.session_mut(node.peer) {
            session.write(self.now, id, &vec![9; len]);
        }
    }

    fn end_stream(&mut self, n: usize, bytes: &mut Bytes<'_>) {
        let how = bytes.u8();
        let node = &mut self.nodes[n];
        let at = usize::from(how >> 2) % node.streams.len().max(1);
        let Some(id) = node.streams.get(at).copied() else { return };
        let Some(session) = node.endpoint.session_mut(node.peer) else { return };
        match how % 4 {
            0 => session.finish(self.now, id),
            1 => session.reset(self.now, id, ResetReason::HostReset, true),
            _ => {
                session.release(self.now, id);
                node.streams.swap_remove(at);
            }
        }
    }

    /// A packet that came by, whole or changed, from where it came or from elsewhere.
    fn resend(&mut self, bytes: &mut Bytes<'_>) {
        let (pick, how, place) = (usize::from(bytes.u8()), bytes.u8(), usize::from(bytes.u16()));
        if self.kept.is_empty() {
            return;
        }
        let (to, mut from, mut packet) = self.kept[pick % self.kept.len()].clone();
        if how & 1 != 0 {
            from = address(how >> 3);
        }
        if how & 2 != 0 {
            let at = place % packet.len();
            packet[at] ^= 1 << (how >> 5);
        }
        if how & 4 != 0 {
            packet.truncate(place % packet.len());
        }
        self.nodes[to].endpoint.handle_packet(self.now, self.now, from, &mut packet);
    }

    /// What an owner does after every change.
    fn settle(&mut self) {
        let mut buf = std::mem::take(&mut self.buf);
        for n in 0..2 {
            while let Some(t) = self.nodes[n].endpoint.poll_transmit(self.now, &mut buf) {
                self.transmit(n, t.to, &buf[..t.len]);
            }
            self.take_events(n);
        }
        self.buf = buf;
    }

    fn transmit(&mut self, from: usize, to: Remote, packet: &[u8]) {
        let reached = self.nodes[1 - from].at == to;
        if self.kept.len() < 64 {
            self.kept.push((1 - from, self.nodes[from].at, packet.to_vec()));
        }
        let fate = self.fates.pop().unwrap_or(255);
        if !reached || fate & 3 == 0 {
            return;
        }
        for copy in 0..if fate % 4 == 1 { 2 } else { 1 } {
            let late = if fate == 255 { 0 } else { u64::from(fate >> 2) * copy };
            let at = self.now + DELAY + Duration::from_millis(late);
            self.flight.push_back((at, 1 - from, self.nodes[from].at, packet.to_vec()));
        }
    }

    fn take_events(&mut self, n: usize) {
        let node = &mut self.nodes[n];
        while let Some(event) = node.endpoint.poll_event() {
            match event {
                EndpointEvent::SessionLost(..) => node.streams.clear(),
                EndpointEvent::Stream(_, Event::Opened(id, _)) => node.streams.push(id),
                EndpointEvent::Stream(peer, Event::Readable(id)) => {
                    let Some(session) = node.endpoint.session_mut(peer) else { continue };
                    while !session.peek(id).is_empty() {
                        let len = session.peek(id).len();
                        session.consume(self.now, id, len);
                    }
                    session.recv_state(id);
                }
                _ => {}
            }
        }
        while let Some(peer) = node.endpoint.peer_with_datagrams() {
            let Some(session) = node.endpoint.session_mut(peer) else { break };
            session.take_datagram(|_| {});
        }
    }

    fn run(&mut self, d: Duration) {
        let until = self.now + d;
        while self.steps > 0 {
            self.steps -= 1;
            self.settle();
            let now = self.now;
            let timers = self.nodes.iter().filter_map(|n| n.endpoint.poll_timeout(now));
            let arrival = self.flight.iter().map(|p| p.0).min();
            let Some(next) = timers.chain(arrival).min().filter(|at| *at <= until) else { break };
            self.stuck = if next <= now { self.stuck + 1 } else { 0 };
            assert!(self.stuck < 200, "time stands still");
            self.now = next.max(now);
            self.arrive();
            for node in &mut self.nodes {
                node.endpoint.handle_timeout(self.now);
            }
        }
        self.now = until.max(self.now);
    }

    fn arrive(&mut self) {
        while let Some(i) = self.flight.iter().position(|p| p.0 <= self.now) {
            let Some((_, to, from, mut packet)) = self.flight.remove(i) else { return };
            self.nodes[to].endpoint.handle_packet(self.now, self.now, from, &mut packet);
        }
    }
}

struct LinkSetting {
    keepalive: bool,
    slow: bool,
}

impl LinkSetting {
    fn peer(&self, key: &crate::keys::PublicKey, endpoint: Option<Remote>) -> PeerConfig {
        let rate = BitRate::from_bps(if self.slow { 2_400 } else { 5_000_000 });
        PeerConfig {
            public_key: *key,
            preshared_key: PresharedKey::NONE,
            endpoint,
            link: LinkConfig {
                send_rate: rate,
                rate_mode: Default::default(),
                receive_rate: rate,
                rtt: Duration::from_millis(80),
                mtu: 1500,
                packet: 1500,
                queue: crate::session::NEARLY_EMPTY,
                bit_errors: units::Ratio::ZERO,
                overhead: 0,
                memory: ByteCount(1 << 20),
                stream_buffer: None,
                max_streams: 64,
                headers: true,
                history: ByteCount(0),
                dedup: false,
                facts: Default::default(),
                classes: Vec::new(),
            },
            keepalive: self.keepalive.then(|| Duration::from_secs(1)),
        }
    }
}
