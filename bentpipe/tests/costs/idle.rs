//! A thousand peers at a hub that had traffic, and have none any more.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use link::endpoint::{Endpoint, EndpointConfig, EndpointEvent, MAX_KEY_LIFETIME};
use link::keys::{PresharedKey, PrivateKey};
use link::session::{Event, LinkConfig, RecvState};
use link::wire::{Origin, StreamId, Target};
use link::{PeerConfig, PeerId};
use relay::{Action, FlowId, Policy, Relay};
use units::{ByteCount, Duration, Instant};

use super::node::{PEER, link};

const PEERS: usize = 1_000;
/// What each fetches, and from when to when their requests come.
const CONTENT: usize = 200_000;
const SPACING: Duration = Duration::from_millis(20);
/// Flows of datagrams from the hub to each.
const FLOWS: u16 = 24;
/// Of so many packets one is lost.
const LOST: u64 = 60;
/// Until nothing is to be done with sessions any more, and some.
const IDLE: Duration = Duration::from_secs(400);
/// What an idle session may take at the hub.
const MOST: i64 = 20_000;

fn key(n: usize) -> PrivateKey {
    let mut seed = [0x1d; 32];
    seed[8..16].copy_from_slice(&(n as u64).to_le_bytes());
    PrivateKey::generate(seed)
}

/// Where the terminal of this number is; the hub is the first.
fn address(n: usize) -> SocketAddr {
    SocketAddr::from(([192, 0, 2 + (n >> 8) as u8, n as u8], 4500))
}

fn number(at: SocketAddr) -> usize {
    let SocketAddr::V4(at) = at else { panic!("{at}") };
    let [_, _, high, low] = at.ip().octets();
    usize::from(high - 2) << 8 | usize::from(low)
}

fn endpoint(n: usize) -> Endpoint {
    Endpoint::new(EndpointConfig {
        private_key: key(n),
        seed: [n as u8; 32],
        fresh: None,
        hardware_aes: true,
        initiations_per_second: 1000,
        key_lifetime: MAX_KEY_LIFETIME,
    })
}

fn peer(n: usize, to: Option<SocketAddr>, keepalive: Option<Duration>) -> PeerConfig {
    PeerConfig {
        public_key: *key(n).public(),
        preshared_key: PresharedKey::NONE,
        endpoint: to.map(Into::into),
        link: link_config(),
        keepalive,
    }
}

/// Streams are not compressed: terminals are endpoints without a relay.
fn link_config() -> LinkConfig {
    LinkConfig { memory: ByteCount(1 << 20), history: ByteCount(0), ..link() }
}

struct Terminal {
    endpoint: Endpoint,
    stream: Option<StreamId>,
    had: usize,
}

struct World {
    now: Instant,
    hub: Relay,
    /// Numbered from 1.
    terminals: Vec<Terminal>,
    timers: BTreeSet<(Instant, usize)>,
    timer: Vec<Option<Instant>>,
    /// Bytes that servers have for clients yet, by connection.
    answers: BTreeMap<FlowId, usize>,
    packets: u64,
}

impl World {
    fn new() -> World {
        let now = Instant::ZERO + Duration::from_secs(1_000);
        let mut hub = Relay::new(endpoint(0));
        for n in 1..=PEERS {
            let policy = Policy {
                routes: vec![format!("10.{}.{}.0/24", 16 + (n >> 8), n & 255).parse().unwrap()],
                allow: vec!["192.168.0.0/16".parse().unwrap()],
                ..Policy::default()
            };
            hub.add_peer(now, peer(n, None, None), policy).expect("another key");
        }
        World {
            now,
            hub,
            terminals: Vec::new(),
            timers: BTreeSet::new(),
            timer: vec![None; PEERS + 1],
            answers: BTreeMap::new(),
            packets: 0,
        }
    }

    /// Terminals, every other of which is behind NAT.
    fn add_terminals(&mut self) {
        for n in 1..=PEERS {
            let mut endpoint = endpoint(n);
            let keepalive = (n % 2 == 0).then_some(Duration::from_secs(25));
            endpoint.add_peer(self.now, peer(0, Some(address(0)), keepalive)).expect("keys");
            self.terminals.push(Terminal { endpoint, stream: None, had: 0 });
        }
    }

    /// Is this packet lost?
    fn loses(&mut self) -> bool {
        self.packets += 1;
        self.packets.is_multiple_of(LOST)
    }

    /// A terminal takes what is there, and sends.
    fn serve(&mut self, n: usize) {
        let mut buf = [0; 9000];
        let terminal = &mut self.terminals[n - 1];
        while let Some(event) = terminal.endpoint.poll_event() {
            let EndpointEvent::Stream(_, Event::Readable(id)) = event else { continue };
            let session = terminal.endpoint.session_mut(PEER).expect("a session");
            while let len @ 1.. = session.peek(id).len() {
                session.consume(self.now, id, len);
                terminal.had += len;
            }
            let state = session.recv_state(id);
            if state != RecvState::Open {
                assert_eq!(state, RecvState::Finished, "terminal {n}");
                session.release(self.now, id);
                terminal.stream = None;
            }
        }
        while let Some(t) = self.terminals[n - 1].endpoint.poll_transmit(self.now, &mut buf) {
            if !self.loses() {
                self.hub.handle_carrier(self.now, self.now, address(n), &mut buf[..t.len]);
            }
        }
        let next = self.terminals[n - 1].endpoint.poll_timeout(self.now);
        let before = std::mem::replace(&mut self.timer[n], next);
        before.map(|at| self.timers.remove(&(at, n)));
        next.map(|at| self.timers.insert((at, n)));
    }

    /// The hub's servers, and what it sends, until nothing moves.
    fn serve_hub(&mut self) {
        let mut buf = [0; 9000];
        loop {
            self.act();
            let mut met = BTreeSet::new();
            while let Some(t) = self.hub.poll_transmit(self.now, &mut buf) {
                if !self.loses() {
                    let n = number(t.to.addr.expect("an address"));
                    let packet = &mut buf[..t.len];
                    let endpoint = &mut self.terminals[n - 1].endpoint;
                    endpoint.handle_packet(self.now, self.now, address(0).into(), packet);
                    met.insert(n);
                }
            }
            if met.is_empty() {
                return;
            }
            met.into_iter().for_each(|n| self.serve(n));
        }
    }

    fn act(&mut self) {
        while let Some(action) = self.hub.poll_action(self.now) {
            match action {
                Action::Connect { flow, .. } => {
                    self.hub.connected(flow);
                    self.answers.insert(flow, CONTENT);
                    self.answer(flow);
                }
                Action::Write(flow) => {
                    let mut slices: [&[u8]; 4] = [&[]; 4];
                    let n = self.hub.outgoing(self.now, flow, &mut slices);
                    let len = slices[..n].iter().map(|s| s.len()).sum();
                    self.hub.wrote(self.now, flow, len);
                    self.hub.outgoing_state(flow);
                    self.answer(flow);
                }
                Action::Read(flow) => self.answer(flow),
                Action::PeerReset(flow, reason) => panic!("{flow:?}: {reason:?}"),
                _ => {}
            }
        }
        while self.hub.poll_link_event().is_some() {}
        while self.hub.poll_tun(self.now, |_| {}) {}
        while self.hub.endpoint.poll_woken().is_some() {}
    }

    fn answer(&mut self, flow: FlowId) {
        let Some(left) = self.answers.get_mut(&flow) else { return };
        while *left > 0 {
            let room = self.hub.writable_bytes(self.now, flow).min(*left).min(16_384);
            let took = self.hub.local_data(self.now, flow, &vec![room as u8; room]);
            *left -= took;
            if took == 0 {
                return;
            }
        }
        self.hub.local_end(self.now, flow);
        if self.hub.outgoing_state(flow) == RecvState::Finished {
            self.hub.closed(self.now, flow);
            self.answers.remove(&flow);
        }
    }

    fn run_until(&mut self, until: Instant) {
        loop {
            self.serve_hub();
            let terminals = self.timers.first().map(|(at, _)| *at);
            let hub = self.hub.poll_timeout(self.now);
            match terminals.into_iter().chain(hub).min() {
                Some(next) if next <= until => self.now = self.now.max(next),
                _ => break,
            }
            self.hub.handle_timeout(self.now);
            while let Some((_, n)) = self.timers.first().copied().filter(|t| t.0 <= self.now) {
                self.terminals[n - 1].endpoint.handle_timeout(self.now);
                self.serve(n);
            }
        }
        self.now = until;
    }

    /// The terminal asks for its content, and hosts of the hub send datagrams to its host.
    fn ask(&mut self, n: usize) {
        let session = self.terminals[n - 1].endpoint.session_mut(PEER).expect("a session");
        let stream = session.open(self.now, origin(n)).expect("a stream");
        session.write(self.now, stream, b"hello");
        session.finish(self.now, stream);
        self.terminals[n - 1].stream = Some(stream);
        self.serve(n);
        for flow in 0..FLOWS {
            for _ in 0..3 {
                self.hub.handle_tun(self.now, &mut datagram(n, flow), false);
            }
        }
    }
}

fn id(n: usize) -> PeerId {
    PeerId::from_index(n - 1)
}

fn origin(n: usize) -> Origin {
    Origin {
        client: Some(SocketAddr::from(([10, 16 + (n >> 8) as u8, n as u8, 1], 1))),
        target: Target::Address(([192, 168, 0, 1], 80).into()),
        dscp: 0,
    }
}

fn datagram(n: usize, flow: u16) -> [u8; 60] {
    let mut packet = [0; 60];
    packet[..10].copy_from_slice(&[0x45, 0, 0, 60, 0, 0, 0x40, 0, 64, 17]);
    packet[12..16].copy_from_slice(&[192, 168, 0, 9]);
    packet[16..20].copy_from_slice(&[10, 16 + (n >> 8) as u8, n as u8, 1]);
    packet[20..22].copy_from_slice(&(1_000 + flow).to_be_bytes());
    packet[24..26].copy_from_slice(&40u16.to_be_bytes());
    packet
}

#[test]
fn a_thousand_peers_that_went_idle_take_little_and_are_understood_at_once() {
    let before = os::heap::held();
    let mut w = World::new();
    let asleep = os::heap::held();
    w.add_terminals();
    let begin = w.now;
    (1..=PEERS).for_each(|n| w.serve(n));
    w.run_until(begin + Duration::from_secs(30));
    for n in 1..=PEERS {
        let next = w.now + SPACING;
        w.ask(n);
        w.run_until(next);
    }
    w.run_until(w.now + Duration::from_secs(30));
    let late: Vec<_> = w.terminals.iter().filter(|t| t.stream.is_some()).map(|t| t.had).collect();
    assert!(late.is_empty(), "{} have not all: {late:?}", late.len());
    let had = w.terminals.iter().map(|t| t.had);
    let other: Vec<_> = had.filter(|had| *had != CONTENT).collect();
    assert!(other.is_empty(), "{} have not all, but {other:?}", other.len());
    assert_eq!((w.answers.len(), w.hub.flow_count()), (0, 0));
    w.run_until(w.now + IDLE);

    let handshakes = |w: &World, n: usize| w.hub.endpoint.peer_stats(id(n)).handshakes;
    let counts: Vec<u64> = (1..=PEERS).map(|n| handshakes(&w, n)).collect();
    let both = os::heap::held();
    // Terminals are in this thread, too.
    let mut terminals = std::mem::take(&mut w.terminals);
    let some = terminals.split_off(PEERS - 20);
    let own = {
        let held = os::heap::held();
        drop(terminals);
        (held - os::heap::held()) * PEERS as i64 / (PEERS as i64 - 20)
    };
    let each = (both - before - own) / PEERS as i64;
    let never_called = (asleep - before) / PEERS as i64;
    println!("{each} bytes each at the hub, {never_called} while they had never called");
    assert!(each <= MOST, "{each} bytes each");

    // The next packet of one of them opens a stream, under the keys that there are.
    for (at, mut terminal) in some.into_iter().enumerate() {
        let n = PEERS - 19 + at;
        let mut buf = [0; 9000];
        let session = terminal.endpoint.session_mut(PEER).expect("a session");
        let stream = session.open(w.now, origin(n)).expect("a stream");
        session.write(w.now, stream, b"hello");
        while let Some(sent) = terminal.endpoint.poll_transmit(w.now, &mut buf) {
            w.hub.handle_carrier(w.now, w.now, address(n), &mut buf[..sent.len]);
        }
        let mut actions = std::iter::from_fn(|| w.hub.poll_action(w.now));
        let connects = actions.any(|action| matches!(action, Action::Connect { .. }));
        assert!(connects, "terminal {n}");
        assert_eq!(handshakes(&w, n), counts[n - 1]);
    }
}
