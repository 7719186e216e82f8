//! A node under attack: what strangers cost it, and what they cannot do to its links.

use std::collections::VecDeque;

use units::{BitRate, ByteCount, Duration, Instant, Ratio};

use super::super::receive::MAX_REPLIES;
use super::super::*;
use crate::cookie::MacKeys;
use crate::keys::{PresharedKey, PrivateKey};
use crate::path::Remote;
use crate::session::{Event, LinkConfig};
use crate::wire::{Origin, StreamId, Target};

const DELAY: Duration = Duration::from_millis(300);
const RATE: BitRate = BitRate::from_mbps(5);
const PEER: PeerId = PeerId::from_index(0);
/// An initiation, and how many of them come in a millisecond.
const QUESTION: usize = 168;
const FLOOD: u32 = 50;

fn address(node: usize) -> Remote {
    Remote::from(std::net::SocketAddr::from(([192, 0, 2, node as u8 + 1], 4500)))
}

/// Two nodes and a stream from the first to the second.
struct World {
    now: Instant,
    nodes: [Endpoint; 2],
    flight: VecDeque<(Instant, usize, Vec<u8>)>,
    stream: Option<StreamId>,
    read: u64,
    /// Answers to strangers, and the largest of them.
    answers: u64,
    largest: usize,
}

impl World {
    /// The first node, the initiator, draws its random values from `seed`.
    fn new(seed: u8) -> World {
        let now = Instant::from_nanos(1);
        let keys = [1, 2].map(|n| PrivateKey::from_bytes([n; 32]));
        let link = LinkConfig {
            send_rate: RATE,
            rate_mode: Default::default(),
            receive_rate: RATE,
            rtt: DELAY.times(2),
            mtu: 1500,
            packet: 1500,
            queue: crate::session::NEARLY_EMPTY,
            bit_errors: Ratio::ZERO,
            overhead: 0,
            memory: ByteCount(8 << 20),
            stream_buffer: None,
            max_streams: 64,
            classes: Vec::new(),
            headers: true,
            history: ByteCount(0),
            dedup: false,
            facts: Default::default(),
        };
        let nodes = [0, 1].map(|n| {
            let mut endpoint = Endpoint::new(EndpointConfig {
                private_key: keys[n].clone(),
                seed: [if n == 0 { seed } else { 7 }; 32],
                hardware_aes: true,
                initiations_per_second: 100,
                key_lifetime: crate::endpoint::MAX_KEY_LIFETIME,
                fresh: None,
            });
            let config = PeerConfig {
                public_key: *keys[1 - n].public(),
                preshared_key: PresharedKey::NONE,
                endpoint: (n == 0).then(|| address(1)),
                link: link.clone(),
                keepalive: None,
            };
            endpoint.add_peer(now, config).expect("two different keys");
            endpoint
        });
        let flight = VecDeque::new();
        World { now, nodes, flight, stream: None, read: 0, answers: 0, largest: 0 }
    }

    /// Lets the nodes do what is due, and one write all that it may.
    fn settle(&mut self) {
        let mut buf = [0; 2048];
        if let (Some(id), Some(session)) = (self.stream, self.nodes[0].session_mut(PEER)) {
            while session.writable_bytes(id) > 0 {
                session.write(self.now, id, &[7; 4096]);
            }
        }
        for (n, node) in self.nodes.iter_mut().enumerate() {
            node.handle_timeout(self.now);
            while let Some(t) = node.poll_transmit(self.now, &mut buf) {
                if t.peer.is_none() {
                    self.answers += 1;
                    self.largest = self.largest.max(t.len);
                }
                if t.to == address(1 - n) {
                    self.flight.push_back((self.now + DELAY, 1 - n, buf[..t.len].to_vec()));
                }
            }
            while let Some(event) = node.poll_event() {
                if let EndpointEvent::Stream(_, Event::Readable(id)) = event
                    && let Some(session) = node.session_mut(PEER)
                {
                    while !session.peek(id).is_empty() {
                        let len = session.peek(id).len();
                        session.consume(self.now, id, len);
                        self.read += len as u64;
                    }
                    session.recv_state(id);
                }
            }
        }
    }

    /// Lets a time pass, a millisecond after the other; `each` comes before each.
    fn pass(&mut self, millis: u64, mut each: impl FnMut(&mut World)) {
        for _ in 0..millis {
            each(self);
            self.settle();
            self.now += Duration::from_millis(1);
            while self.flight.front().is_some_and(|f| f.0 <= self.now) {
                let (_, to, mut packet) = self.flight.pop_front().expect("it was there");
                self.nodes[to].handle_packet(self.now, self.now, address(1 - to), &mut packet);
            }
        }
    }

    fn established() -> World {
        let mut w = World::new(8);
        w.pass(3_000, |_| {});
        assert!(w.nodes.iter().all(|n| n.is_established(PEER)));
        let origin =
            Origin { client: None, target: Target::Name("example.org".into(), 80), dscp: 0 };
        let now = w.now;
        w.stream = w.nodes[0].session_mut(PEER).expect("a peer").open(now, origin);
        w.pass(3_000, |_| {});
        w
    }

    /// What a node has because of packets.
    fn holdings(&self, n: usize) -> [usize; 6] {
        let node = &self.nodes[n];
        let [owners, resting] = node.indices.sizes();
        let lists = node.dirty.len() + node.noisy.len() + node.timers.len();
        [node.peers.len(), owners, resting, lists, node.events.len(), node.drops.len()]
    }
}

/// Initiations with a right mac1, each from an address of its own.
struct Flood {
    macs: MacKeys,
    count: u32,
}

impl Flood {
    fn next(&mut self) -> (Remote, [u8; QUESTION]) {
        self.count += 1;
        let n = self.count.to_be_bytes();
        let mut packet = [0x5a; QUESTION];
        packet[..2].copy_from_slice(&[1, 1]);
        packet[2..6].copy_from_slice(&n);
        packet[6..10].copy_from_slice(&n);
        let mac1 = self.macs.mac1(&packet[..QUESTION - 32]);
        packet[QUESTION - 32..QUESTION - 16].copy_from_slice(&mac1);
        packet[QUESTION - 16..].fill(0);
        (Remote::from(std::net::SocketAddr::from(([10, n[1], n[2], n[3]], 1024))), packet)
    }
}

/// L-CK-1, L-CK-2, L-CK-4, L-HS-5, L-HS-8.
#[test]
fn a_flood_of_initiations_takes_no_memory_no_bandwidth_and_nothing_from_a_link() {
    let mut calm = World::established();
    let begun = calm.read;
    calm.pass(5_000, |_| {});
    let undisturbed = calm.read - begun;
    assert!(undisturbed * 8 > 5 * RATE.as_bps() * 9 / 10, "{undisturbed} bytes in 5 s");

    let mut w = World::established();
    let before = (w.nodes[1].session_id(PEER), w.nodes[1].peer_endpoint(PEER), w.read);
    let had = w.holdings(1);
    let mut flood = Flood { macs: MacKeys::of(w.nodes[1].public_key()), count: 0 };
    w.pass(5_000, |w| {
        for _ in 0..FLOOD {
            let (from, mut packet) = flood.next();
            w.nodes[1].handle_packet(w.now, w.now, from, &mut packet);
        }
        assert!(w.nodes[1].replies.len() <= MAX_REPLIES);
    });
    assert_eq!(w.read - before.2, undisturbed, "the link carries what it carried");
    assert_eq!(w.nodes[1].session_id(PEER), before.0);
    assert_eq!(w.nodes[1].peer_endpoint(PEER), before.1);
    assert_eq!(w.nodes[1].peer_stats(PEER).handshakes, 1);

    let now = w.holdings(1);
    assert_eq!(now[..3], had[..3], "no peer and no index is a stranger's");
    assert!(now[3] <= had[3] + 2 && now[4] <= had[4] && now[5] <= had[5] + 3, "{had:?} {now:?}");
    // Some had arithmetic spent on them before the load showed; the others a cookie at most.
    let drops = w.nodes[1].drops();
    let forged = drops.get("forged").copied().unwrap_or(0);
    let refused = drops.get("no cookie").copied().unwrap_or(0);
    assert!(forged <= 101 && forged + refused == u64::from(flood.count), "{drops:?}");
    assert!(w.answers > 0 && w.answers <= refused && w.largest < QUESTION, "{}", w.largest);

    // And a handshake goes on in the midst of it, for whoever receives at its address.
    let mut restarted = World::new(9);
    std::mem::swap(&mut restarted.nodes[1], &mut w.nodes[1]);
    restarted.now = w.now;
    restarted.pass(15_000, |w| {
        for _ in 0..FLOOD {
            let (from, mut packet) = flood.next();
            w.nodes[1].handle_packet(w.now, w.now, from, &mut packet);
        }
    });
    assert_eq!(restarted.nodes[0].peer_stats(PEER).handshakes, 1, "by a cookie");
    assert_eq!(restarted.nodes[1].peer_stats(PEER).handshakes, 2);
}
