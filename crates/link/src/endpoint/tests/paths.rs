//! Two nodes with two carriers between them: a satellite (carrier 0: 10 Mbit/s, 300 ms each
//! way) and a faster line (carrier 1: 4 Mbit/s, 20 ms).

use super::*;
use crate::path::{CarrierId, CarrierName, CarrierNames};
use crate::session::{
    Carry, ChosenBy, ClassConfig, ClassId, Label, PathConfig, RateMode, RecvState,
};
use crate::wire::{Origin, ResetReason, StreamId, Target};

const SHIP: usize = 0;
const SHORE: usize = 1;
const SECOND: Duration = Duration::from_secs(1);
const DELAYS: [u64; 2] = [300, 20];

/// The bytes of the transfer, at any offset.
fn byte(offset: u64) -> u8 {
    (offset.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

/// One direction of a transfer.
#[derive(Default)]
struct Transfer {
    from: usize,
    id: Option<StreamId>,
    /// Where the other node knows it.
    far: Option<StreamId>,
    written: u64,
    total: u64,
    read: u64,
}

struct World {
    now: Instant,
    nodes: [Endpoint; 2],
    peers: [PeerId; 2],
    flight: BTreeMap<(Instant, u64), (usize, Remote, Vec<u8>)>,
    serial: u64,
    /// Carriers on which nothing arrives, by sender.
    dead: [[bool; 2]; 2],
    /// Packets that left, by sender and carrier.
    left: [[u64; 2]; 2],
    transfers: Vec<Transfer>,
    used: [PathId; 2],
    /// How often they were told that.
    told: [u32; 2],
    /// Silences that they were told of, and their ends.
    silences: [u32; 2],
    backs: [u32; 2],
}

/// Where `node` is on `carrier`, as the other one sees it.
fn at(carrier: usize, node: usize) -> Remote {
    let addr = std::net::SocketAddr::from(([10, carrier as u8, 0, node as u8 + 1], 4500));
    Remote { carrier: CarrierId(carrier as u8), addr: Some(addr) }
}

fn second_path() -> PathConfig {
    let rate = BitRate::from_mbps(4);
    PathConfig {
        send_rate: rate,
        receive_rate: rate,
        rtt: Duration::from_millis(40),
        name: name("line"),
        priority: 10,
        ..link().path()
    }
}

/// The port tells transfers apart.
fn target(transfer: usize) -> Target {
    Target::Address(([192, 0, 2, 80], 80 + transfer as u16).into())
}

fn name(text: &str) -> CarrierName {
    CarrierName::new(text.as_bytes()).expect("it is short")
}

impl World {
    /// The ship calls the shore, by the satellite.
    fn new() -> World {
        World::at(BitRate::from_mbps(10))
    }

    /// The same with a satellite of this rate.
    fn at(rate: BitRate) -> World {
        let key = |n: u8| PrivateKey::from_bytes([n; 32]);
        let make = |own: u8, peer: u8, known: Option<Remote>| {
            let (mut endpoint, _) = node(own, 99, None);
            endpoint.remove_peer(PeerId::from_index(0));
            let config = PeerConfig {
                public_key: *key(peer).public(),
                preshared_key: PresharedKey::NONE,
                endpoint: known,
                link: LinkConfig {
                    rtt: Duration::from_millis(600),
                    send_rate: rate,
                    receive_rate: rate,
                    ..link()
                },
                keepalive: None,
            };
            let id = endpoint.add_peer(Instant::from_nanos(1), config).expect("two keys");
            (endpoint, id)
        };
        let (ship, shore_id) = make(1, 2, Some(at(0, SHORE)));
        let (shore, ship_id) = make(2, 1, None);
        World {
            now: Instant::from_nanos(1),
            nodes: [ship, shore],
            peers: [shore_id, ship_id],
            flight: BTreeMap::new(),
            serial: 0,
            dead: Default::default(),
            left: Default::default(),
            transfers: Vec::new(),
            used: [PathId::FIRST; 2],
            told: [0; 2],
            silences: [0; 2],
            backs: [0; 2],
        }
    }

    /// With both paths open; answers the second's name.
    fn with_two() -> (World, PathId) {
        let mut w = World::new();
        let (to, carrier) = (at(1, SHORE), CarrierId(1));
        let id = w.peers[SHIP];
        let path = w.nodes[SHIP].add_path(w.now, id, second_path(), carrier, Some(to));
        w.run(SECOND.times(3));
        (w, path.expect("there is room for it"))
    }

    /// The same, and a class of its own goes by these carriers at a node.
    fn with_class(node: usize, carriers: &[&str]) -> (World, ClassId) {
        let (w, [class]) = World::with_classes(node, [carriers]);
        (w, class)
    }

    /// The same with more classes.
    fn with_classes<const N: usize>(node: usize, all: [&[&str]; N]) -> (World, [ClassId; N]) {
        let (mut w, _) = World::with_two();
        w.nodes[SHIP].name_path(w.now, w.peers[SHIP], PathId::FIRST, name("satellite"));
        let mut classes = vec![ClassConfig::default(); ClassId::BUILT_IN];
        let ids = std::array::from_fn(|n| ClassId::from_index(ClassId::BUILT_IN + n));
        for carriers in all {
            let names: Vec<CarrierName> = carriers.iter().map(|text| name(text)).collect();
            let carriers = CarrierNames::new(&names).expect("few names");
            classes.push(ClassConfig { carriers, ..ClassConfig::default() });
        }
        let now = w.now;
        w.session(node).set_classes(now, &classes);
        w.run(SECOND);
        w.take_left();
        (w, ids)
    }

    fn session(&mut self, node: usize) -> &mut Session {
        let id = self.peers[node];
        self.nodes[node].session_mut(id).expect("a peer")
    }

    fn path(&self, node: usize, path: PathId) -> PathStatus {
        let all = self.nodes[node].paths(self.now, self.peers[node]);
        all.into_iter().find(|p| p.id == path).expect("it is there")
    }

    fn active(&self, node: usize) -> PathId {
        self.nodes[node].session(self.peers[node]).expect("a peer").active_path()
    }

    fn begin(&mut self, from: usize, total: u64) {
        self.begin_in(from, total, ClassId::NORMAL);
    }

    /// The same in a class.
    fn begin_in(&mut self, from: usize, total: u64, class: ClassId) {
        let target = target(self.transfers.len());
        let now = self.now;
        let origin = Origin { client: None, target, dscp: 0 };
        let id = self.session(from).open(now, origin);
        self.session(from).set_class(id.expect("there is room"), class, ChosenBy::Operator);
        self.transfers.push(Transfer { from, id, total, ..Transfer::default() });
    }

    /// Everything that both nodes can do now.
    fn drain(&mut self) {
        let mut buf = [0; 2000];
        for node in 0..2 {
            while let Some(event) = self.nodes[node].poll_event() {
                match event {
                    EndpointEvent::Stream(_, Event::Opened(id, origin)) => {
                        let mut numbered = self.transfers.iter_mut().enumerate();
                        let new = numbered.find(|(n, _)| origin.target == target(*n));
                        new.expect("it was begun").1.far = Some(id);
                    }
                    EndpointEvent::Link(_, LinkEvent::Using(path, _)) => {
                        self.used[node] = path;
                        self.told[node] += 1;
                    }
                    EndpointEvent::Link(_, LinkEvent::NothingReceived(_)) => {
                        self.silences[node] += 1;
                    }
                    EndpointEvent::Link(_, LinkEvent::Back) => self.backs[node] += 1,
                    EndpointEvent::SessionLost(..) => panic!("the session outlives everything"),
                    _ => {}
                }
            }
            self.serve(node);
            while let Some(t) = self.nodes[node].poll_transmit(self.now, &mut buf) {
                let carrier = usize::from(t.to.carrier.0);
                self.left[node][carrier] += 1;
                assert_eq!(t.to, at(carrier, 1 - node), "nobody moved");
                if !self.dead[node][carrier] {
                    self.serial += 1;
                    let arrival = self.now + Duration::from_millis(DELAYS[carrier]);
                    let packet = (1 - node, at(carrier, node), buf[..t.len].to_vec());
                    self.flight.insert((arrival, self.serial), packet);
                }
            }
        }
    }

    /// Writes and reads what can be, and compares each byte.
    fn serve(&mut self, node: usize) {
        let (now, peer) = (self.now, self.peers[node]);
        for t in &mut self.transfers {
            let Some(session) = self.nodes[node].session_mut(peer) else { continue };
            match (t.from == node, t.id, t.far) {
                (true, Some(id), _) if t.written < t.total => loop {
                    let n = (t.total - t.written).min(4096);
                    let bytes: Vec<u8> = (t.written..t.written + n).map(byte).collect();
                    let taken = session.write(now, id, &bytes) as u64;
                    t.written += taken;
                    if taken < n || t.written == t.total {
                        break;
                    }
                },
                (false, _, Some(id)) => loop {
                    let bytes = session.peek(id);
                    let n = bytes.len();
                    let right = |(i, b): (usize, &u8)| *b == byte(t.read + i as u64);
                    assert!(bytes.iter().enumerate().all(right), "bytes at {}", t.read);
                    session.recv_state(id);
                    if n == 0 {
                        break;
                    }
                    session.consume(now, id, n);
                    t.read += n as u64;
                },
                _ => {}
            }
        }
    }

    fn run(&mut self, time: Duration) {
        let until = self.now + time;
        let mut stuck = 0;
        loop {
            self.drain();
            let timers = self.nodes.iter().filter_map(|n| n.poll_timeout(self.now));
            let arrival = self.flight.keys().next().map(|(at, _)| *at);
            let next = timers.chain(arrival).min().filter(|at| *at <= until);
            let Some(next) = next else { break };
            stuck = if next > self.now { 0 } else { stuck + 1 };
            assert!(stuck < 1000, "time stands still: {:#?}", self.timers());
            self.now = self.now.max(next);
            while let Some(entry) = self.flight.first_entry().filter(|e| e.key().0 <= self.now) {
                let (to, from, mut packet) = entry.remove();
                self.nodes[to].handle_packet(self.now, self.now, from, &mut packet);
            }
            for node in &mut self.nodes {
                node.handle_timeout(self.now);
            }
        }
        self.now = self.now.max(until);
    }

    fn timers(&self) -> [Vec<(&'static str, Option<Instant>)>; 2] {
        let at = |n: usize| self.nodes[n].session(self.peers[n]).map(|s| s.timers(self.now));
        [at(SHIP), at(SHORE)].map(Option::unwrap_or_default)
    }

    fn is_done(&self) -> bool {
        self.transfers.iter().all(|t| t.read == t.total)
    }

    fn take_left(&mut self) -> [[u64; 2]; 2] {
        std::mem::take(&mut self.left)
    }
}

/// L-PT-1, L-PT-3, L-PT-5: both nodes know the path, its rates and its state, and use the first.
#[test]
fn a_path_that_one_node_opens_is_there_at_both_and_stands_by() {
    let (mut w, second) = World::with_two();
    assert_eq!(w.nodes[SHORE].paths(w.now, w.peers[SHORE]).len(), 2);
    for node in [SHIP, SHORE] {
        let path = w.path(node, second);
        assert!(path.is_alive && path.is_up && path.is_peer_up && !path.is_active, "{path:?}");
        assert_eq!(path.rate.rate, BitRate::from_mbps(4));
        assert_eq!(path.remote, Some(at(1, 1 - node)));
        assert_eq!(w.active(node), PathId::FIRST);
    }
    w.take_left();
    w.begin(SHIP, 1_000_000);
    w.begin(SHORE, 1_000_000);
    w.run(SECOND.times(5));
    assert!(w.is_done());
    assert_eq!([w.left[SHIP][1], w.left[SHORE][1]], [0, 0], "it is silent");
}

/// L-PT-6, L-PT-9: reports of both paths go on while transfers move.
#[test]
fn a_command_at_either_end_moves_transfers_both_ways_and_back() {
    for end in [SHIP, SHORE] {
        let (mut w, second) = World::with_two();
        w.begin(SHIP, 8_000_000);
        w.begin(SHORE, 8_000_000);
        w.run(SECOND.times(2));
        for (path, carrier) in [(second, 1), (PathId::FIRST, 0), (second, 1)] {
            let (now, id) = (w.now, w.peers[end]);
            w.nodes[end].use_path(now, id, Some(path));
            w.run(SECOND.times(2));
            assert_eq!([w.active(SHIP), w.active(SHORE)], [path; 2]);
            assert_eq!(w.used, [path; 2], "and they say so");
            w.take_left();
            let before: u64 = w.transfers.iter().map(|t| t.read).sum();
            w.run(SECOND);
            let other = [w.left[SHIP][1 - carrier], w.left[SHORE][1 - carrier]];
            assert!(other.iter().all(|n| *n < 10), "{other:?}: only reports, if anything");
            assert!(w.transfers.iter().map(|t| t.read).sum::<u64>() > before + 500_000);
        }
        w.run(SECOND.times(40));
        assert!(w.is_done());
        let lost: u64 = [SHIP, SHORE].map(|n| w.session(n).stats().retransmitted).iter().sum();
        assert_eq!(lost, 0, "nothing was lost, and nothing sent twice");
    }
}

/// What was under way on a carrier that dies goes by the other, and everything comes back to
/// the first when it lives again.
#[test]
fn a_carrier_that_dies_in_mid_transfer_is_left_and_taken_up_again() {
    for directions in [[true, true], [true, false], [false, true]] {
        let (mut w, second) = World::with_two();
        w.begin(SHIP, 6_000_000);
        w.begin(SHORE, 6_000_000);
        w.run(SECOND.times(2));
        for (sender, dies) in directions.into_iter().enumerate() {
            w.dead[sender][0] = dies;
        }
        w.run(SECOND.times(8));
        assert_eq!([w.active(SHIP), w.active(SHORE)], [second; 2], "{directions:?}");
        let before: u64 = w.transfers.iter().map(|t| t.read).sum();
        w.run(SECOND.times(2));
        let moved = w.transfers.iter().map(|t| t.read).sum::<u64>() - before;
        assert!(moved > 500_000, "{directions:?}: {moved}");
        assert!(!w.path(SHIP, PathId::FIRST).is_alive);
        w.dead = Default::default();
        w.run(SECOND.times(10));
        assert_eq!([w.active(SHIP), w.active(SHORE)], [PathId::FIRST; 2], "{directions:?}");
        w.run(SECOND.times(20));
        assert!(w.is_done(), "{directions:?}");
    }
}

/// L-PT-7.
#[test]
fn with_every_path_down_nothing_is_sent_for_an_hour_and_streams_go_on() {
    let (mut w, second) = World::with_two();
    w.begin(SHIP, 4_000_000);
    w.begin(SHORE, 4_000_000);
    w.run(SECOND.times(2));
    for node in [SHIP, SHORE] {
        for path in [PathId::FIRST, second] {
            let (now, id) = (w.now, w.peers[node]);
            w.nodes[node].set_path_up(now, id, path, false);
        }
    }
    w.drain();
    w.run(SECOND); // What is in the air arrives.
    w.take_left();
    w.session(SHIP).ping();
    w.run(Duration::from_secs(3600));
    assert_eq!(w.left, [[0; 2]; 2]);
    assert!(!w.is_done());
    for node in [SHIP, SHORE] {
        let (now, id) = (w.now, w.peers[node]);
        w.nodes[node].set_path_up(now, id, PathId::FIRST, true);
    }
    w.run(SECOND.times(20));
    assert!(w.is_done());
    assert_eq!([w.left[SHIP][1], w.left[SHORE][1]], [0, 0], "the other one is down still");
    assert_eq!(w.nodes[SHIP].session_number(w.peers[SHIP]), 0, "the session is the same");
}

/// L-PT-21: a line that is raised and dead costs a handful of packets, and not a second at its
/// rate.
#[test]
fn a_path_that_was_set_up_carries_a_window_until_something_is_heard_on_it() {
    let (mut w, second) = World::with_two();
    let id = w.peers[SHIP];
    let set_up = |w: &mut World, up: bool| {
        let now = w.now;
        w.nodes[SHIP].set_path_up(now, id, second, up);
    };
    w.begin(SHIP, 4_000_000);
    w.run(SECOND);
    set_up(&mut w, false);
    w.run(SECOND);
    w.dead = [[true; 2]; 2];
    w.run(SECOND.times(5));
    for _ in 0..3 {
        w.take_left();
        set_up(&mut w, true);
        w.run(SECOND.times(10));
        let left = w.left[SHIP][1];
        assert!(
            (1..=30).contains(&left),
            "{left} packets in ten seconds of which nothing is heard"
        );
        set_up(&mut w, false);
        w.run(SECOND);
    }
    w.dead = Default::default();
    w.nodes[SHIP].set_path_up(w.now, id, PathId::FIRST, false);
    set_up(&mut w, true);
    w.run(SECOND.times(20));
    assert!(w.is_done(), "once it is heard it carries at its rate");
}

/// L-DG-5: what a host said hours ago is not what a line is raised for.
#[test]
fn old_datagrams_do_not_wait_for_a_line_and_leave_their_room_to_new_ones() {
    for carry in [Carry::Plain, Carry::Ordered] {
        let (mut w, second) = World::with_two();
        w.run(SECOND.times(2));
        let id = w.peers[SHIP];
        for path in [PathId::FIRST, second] {
            let now = w.now;
            w.nodes[SHIP].set_path_up(now, id, path, false);
        }
        let say = |w: &mut World, n: u16| {
            let mut packet = vec![0; 1_200];
            packet[..2].copy_from_slice(&n.to_be_bytes());
            let now = w.now;
            w.session(SHIP).send_datagram(now, &packet, &Label { carry, ..Label::default() });
        };
        // For an hour, a packet each five seconds: more than their queue holds.
        for n in 0..720 {
            say(&mut w, n);
            w.run(SECOND.times(5));
        }
        let set_up = |w: &mut World, up: bool| {
            let now = w.now;
            w.nodes[SHIP].set_path_up(now, id, PathId::FIRST, up);
        };
        let heard = |w: &mut World| {
            let mut got = Vec::new();
            w.run(SECOND.times(20));
            while w.session(SHORE).take_datagram(|d| got.push(u16::from_be_bytes([d[0], d[1]]))) {}
            got
        };
        set_up(&mut w, true);
        w.run(SECOND);
        say(&mut w, 720);
        let since = if carry == Carry::Plain { 708 } else { 720 };
        assert_eq!(heard(&mut w), Vec::from_iter(since..=720), "{carry:?}");
        // At once more than their queue holds: the newest are kept.
        set_up(&mut w, false);
        (1_000..5_000).for_each(|n| say(&mut w, n));
        set_up(&mut w, true);
        w.run(SECOND);
        let got = heard(&mut w);
        if carry == Carry::Plain {
            assert!(got.len() < 4_000 && got.last() == Some(&4_999), "{got:?}");
        } else {
            assert_eq!(got, []);
        }
    }
}

/// The file names other carriers: paths go and come in mid-transfer, the one that sessions begin
/// with too.
#[test]
fn a_path_that_is_removed_is_silent_and_one_in_its_place_is_taken_up_without_a_byte_lost() {
    for gone_first in [true, false] {
        let (mut w, second) = World::with_two();
        w.begin(SHIP, 8_000_000);
        w.begin(SHORE, 8_000_000);
        w.run(SECOND.times(2));
        let (now, id) = (w.now, w.peers[SHIP]);
        let (gone, carrier) = if gone_first { (PathId::FIRST, 0) } else { (second, 1) };
        w.nodes[SHIP].use_path(now, id, Some(gone));
        w.run(SECOND.times(2));
        let now = w.now;
        w.nodes[SHIP].remove_path(now, id, gone);
        w.run(SECOND);
        w.take_left();
        let before: u64 = w.transfers.iter().map(|t| t.read).sum();
        w.run(SECOND.times(2));
        assert_eq!([w.left[SHIP][carrier], w.left[SHORE][carrier]], [0, 0], "it is silent");
        assert!(w.transfers.iter().map(|t| t.read).sum::<u64>() > before + 500_000);
        assert_eq!(w.nodes[SHIP].paths(w.now, id).len(), 1);
        // Its carrier is back, under another number.
        let config = PathConfig { priority: 0, ..second_path() };
        let (now, to) = (w.now, at(carrier, SHORE));
        let path = w.nodes[SHIP].add_path(now, id, config, to.carrier, Some(to)).expect("a path");
        let stays = if gone_first { second } else { PathId::FIRST };
        w.nodes[SHIP].set_path_habits(now, id, stays, (7, None));
        w.run(SECOND.times(3));
        assert!(path != gone && w.active(SHIP) == path && w.active(SHORE) == path, "{path}");
        let now = w.now;
        w.nodes[SHIP].set_path_habits(now, id, path, (9, None));
        w.run(SECOND);
        assert_eq!([w.active(SHIP), w.active(SHORE)], [stays; 2], "by the new priority");
        let rate = BitRate::from_mbps(1);
        w.nodes[SHIP].set_path_rates(w.now, id, path, RateMode::Fixed, [rate; 2]);
        w.run(SECOND);
        assert_eq!([SHIP, SHORE].map(|n| w.path(n, path).rate.cap), [rate; 2]);
        w.run(SECOND.times(40));
        assert!(w.is_done(), "every byte is compared as it comes");
        assert_eq!(w.nodes[SHIP].session_number(id), 0, "the session is the same");
    }
}

/// One of two is down: the other carries everything, and the peer does not use it either.
#[test]
fn a_path_that_one_node_puts_down_is_silent_at_both_ends() {
    let (mut w, second) = World::with_two();
    w.begin(SHIP, 3_000_000);
    w.begin(SHORE, 3_000_000);
    w.run(SECOND);
    let (now, id) = (w.now, w.peers[SHIP]);
    w.nodes[SHIP].set_path_up(now, id, PathId::FIRST, false);
    w.drain();
    assert_eq!(w.active(SHIP), second);
    w.run(SECOND);
    assert_eq!(w.active(SHORE), second);
    w.take_left();
    w.run(SECOND.times(20));
    assert!(w.is_done());
    assert_eq!([w.left[SHIP][0], w.left[SHORE][0]], [0, 0]);
    let (now, id) = (w.now, w.peers[SHIP]);
    w.nodes[SHIP].set_path_up(now, id, PathId::FIRST, true);
    w.run(SECOND.times(3));
    assert_eq!([w.active(SHIP), w.active(SHORE)], [PathId::FIRST; 2], "by priority");
}

/// A line that was down is raised because the other carrier died: that it is up cannot be told by
/// that one.
#[test]
fn a_path_that_comes_up_when_the_other_is_dead_carries_everything() {
    for end in [SHIP, SHORE] {
        let (mut w, second) = World::with_two();
        let (now, id) = (w.now, w.peers[end]);
        w.nodes[end].set_path_up(now, id, second, false);
        w.run(SECOND.times(2));
        w.begin(SHIP, 1_000_000);
        w.begin(SHORE, 1_000_000);
        w.dead = [[true, false]; 2];
        w.run(SECOND.times(10));
        assert!(!w.is_done());
        let now = w.now;
        w.nodes[end].set_path_up(now, id, second, true);
        w.run(SECOND.times(15));
        assert!(w.is_done(), "{end}");
    }
}

/// L-LO-6: a silence ends when the peer is heard, not when there is one more path to try.
#[test]
fn a_path_that_comes_up_ends_no_silence_until_the_peer_is_heard_on_it() {
    let (mut w, second) = World::with_two();
    let id = w.peers[SHIP];
    w.nodes[SHIP].set_path_up(w.now, id, second, false);
    w.run(SECOND.times(2));
    w.begin(SHIP, 1_000_000);
    w.dead = [[true; 2]; 2];
    for _ in 0..3 {
        w.run(SECOND.times(10));
        w.nodes[SHIP].set_path_up(w.now, id, second, true);
        w.run(SECOND.times(10));
        w.nodes[SHIP].set_path_up(w.now, id, second, false);
    }
    assert_eq!((w.silences[SHIP], w.backs[SHIP]), (1, 0));
    w.nodes[SHIP].set_path_up(w.now, id, second, true);
    w.dead = [[true, false]; 2];
    w.run(Duration::from_millis(30));
    assert_eq!(w.backs[SHIP], 0, "an answer takes 40 ms");
    w.run(SECOND);
    assert_eq!((w.silences[SHIP], w.backs[SHIP]), (1, 1));
}

/// Handshakes go by another path where the first one comes to nothing.
#[test]
fn a_session_begins_on_the_second_path_where_the_first_is_dead() {
    let mut w = World::new();
    w.dead = [[true, false]; 2];
    let (now, id) = (w.now, w.peers[SHIP]);
    let to = Some(at(1, SHORE));
    let second = w.nodes[SHIP].add_path(now, id, second_path(), CarrierId(1), to);
    w.begin(SHIP, 1_000_000);
    w.run(SECOND.times(10));
    assert!(w.is_done());
    assert_eq!(Some(w.active(SHORE)), second);
    w.dead = Default::default();
    w.run(SECOND.times(10));
    w.begin(SHORE, 1_000_000);
    w.run(SECOND.times(5));
    assert!(w.is_done());
}

/// L-PT-4: keys are the session's, and any path may carry the handshake that replaces them.
#[test]
fn keys_are_renewed_by_whichever_path_is_used() {
    let (mut w, second) = World::with_two();
    let (now, id) = (w.now, w.peers[SHIP]);
    w.nodes[SHIP].use_path(now, id, Some(second));
    w.begin(SHIP, 2_000_000);
    w.run(SECOND);
    w.nodes[SHIP].distrust_keys(w.now);
    w.take_left();
    w.run(SECOND.times(10));
    assert!(w.is_done());
    assert_eq!(w.left[SHIP][0], 0, "all of it went by the path in use");
    assert_eq!(w.nodes[SHIP].peer_stats(id).handshakes, 2);
}

/// L-PT-8: a packet in the short form that was under way on the first path when bytes came on
/// another is no packet any more, and its bytes come again.
#[test]
fn what_is_late_on_one_path_is_never_put_to_a_wrong_place() {
    // So little is under way that two bytes of an offset serve.
    let mut w = World::at(BitRate::from_kbps(256));
    w.begin(SHIP, 3_000_000);
    w.run(SECOND.times(5));
    // The second path is opened in mid-transfer, and carries much before that arrives.
    let (now, id) = (w.now, w.peers[SHIP]);
    let to = Some(at(1, SHORE));
    let fast = BitRate::from_mbps(100);
    let config = PathConfig { send_rate: fast, receive_rate: fast, ..second_path() };
    let path = w.nodes[SHIP].add_path(now, id, config, CarrierId(1), to).expect("a path");
    w.nodes[SHIP].use_path(now, id, Some(path));
    w.run(SECOND.times(20));
    assert!(w.is_done(), "every byte is compared as it comes");
}

/// L-PT-4, L-PT-7: a peer that starts anew is answered on a path that is up, and only there.
#[test]
fn a_path_that_is_down_answers_no_handshake() {
    let (mut w, second) = World::with_two();
    let (now, ship) = (w.now, w.peers[SHORE]);
    w.nodes[SHORE].set_path_up(now, ship, PathId::FIRST, false);
    w.run(SECOND.times(2));
    w.take_left();
    w.nodes[SHIP].distrust_keys(w.now);
    w.begin(SHIP, 1_000_000);
    w.run(SECOND.times(20));
    assert!(w.is_done());
    assert_eq!(w.left[SHORE][0], 0);
    assert_eq!(w.active(SHORE), second);
}

/// L-PT-3.
#[test]
fn a_peer_opens_so_many_paths_and_no_more() {
    let (mut w, _) = World::with_two();
    let (now, id) = (w.now, w.peers[SHIP]);
    let add = |w: &mut World| {
        let to = Some(at(1, SHORE));
        w.nodes[SHIP].add_path(now, id, second_path(), CarrierId(1), to)
    };
    let more = (0..10).filter_map(|_| add(&mut w)).count();
    assert_eq!(more, crate::path::MAX_PATHS - 2);
    w.run(SECOND.times(3));
    assert_eq!(w.nodes[SHORE].paths(w.now, w.peers[SHORE]).len(), crate::path::MAX_PATHS);
}

#[test]
fn of_a_peer_that_wishes_another_path_without_end_not_each_time_is_told() {
    let (mut w, second) = World::with_two();
    let told = w.told[SHORE];
    let wish = |w: &mut World, path| {
        let id = w.peers[SHIP];
        w.nodes[SHIP].use_path(w.now, id, Some(path));
        w.run(Duration::from_millis(400));
    };
    (0..400).for_each(|n| wish(&mut w, if n % 2 == 0 { second } else { PathId::FIRST }));
    let told = w.told[SHORE] - told;
    assert!((50..=175).contains(&told), "{told} in 160 seconds");
    wish(&mut w, second);
    w.run(SECOND.times(5));
    w.begin(SHIP, 100_000);
    w.run(SECOND.times(5));
    assert!(w.is_done());
    assert_eq!((w.active(SHORE), w.used[SHORE]), (second, second), "what holds in the end is");
}

/// L-PT-5, L-PT-18: at the node that opened the paths and at the other one, which has their names
/// from it.
#[test]
fn a_class_goes_by_its_carrier_beside_what_goes_by_the_best() {
    for node in [SHIP, SHORE] {
        let (mut w, class) = World::with_class(node, &["line"]);
        w.begin_in(node, 300_000, class);
        w.run(SECOND.times(5));
        assert!(w.is_done());
        let [satellite, line] = w.take_left()[node];
        assert!(line > 200, "{line} packets by the line");
        assert!(satellite <= 30, "{satellite} by the satellite: reports and credit");
        w.begin_in(node, 300_000, class);
        w.begin(node, 300_000);
        w.run(SECOND.times(5));
        assert!(w.is_done());
        let left = w.take_left()[node];
        assert!(left.iter().all(|n| *n > 200), "both carry: {left:?}");
        let status = w.nodes[node].paths(w.now, w.peers[node]);
        let told = status.iter().map(|p| (p.name.as_str(), p.classes));
        assert_eq!(told.collect::<Vec<_>>(), [("satellite", 0b01111), ("line", 0b10000)]);
    }
}

/// L-PT-18: rather than by another carrier it does not go at all.
#[test]
fn a_class_waits_for_its_only_carrier_and_takes_the_next_of_several() {
    for (carriers, waits) in [(&["line"][..], true), (&["line", "satellite"], false)] {
        let (mut w, class) = World::with_class(SHIP, carriers);
        w.dead[SHIP][1] = true;
        w.dead[SHORE][1] = true;
        w.begin_in(SHIP, 300_000, class);
        w.run(SECOND.times(20));
        assert_eq!(w.is_done(), !waits, "{carriers:?}");
        w.begin(SHIP, 300_000);
        w.run(SECOND.times(5));
        let read = |w: &World| w.transfers.iter().map(|t| t.read).collect::<Vec<_>>();
        assert_eq!(read(&w)[1], 300_000, "others do not wait");
        w.dead = Default::default();
        w.run(SECOND.times(20));
        assert!(w.is_done(), "{carriers:?}: {:?}", read(&w));
    }
}

/// L-PT-7, L-PT-18: what may go by another path does so, with what was under way, although a class
/// that may not waits for the one that died; whichever of the two that was.
#[test]
fn what_may_go_elsewhere_does_not_wait_for_a_class_that_may_not() {
    for (carrier, bound, free) in [
        (1, &["line"][..], &["line", "satellite"][..]),
        (0, &["satellite"], &[]),
        (0, &["satellite"], &["satellite", "line"]),
    ] {
        let (mut w, [bound, free]) = World::with_classes(SHIP, [bound, free]);
        w.begin_in(SHIP, 600_000, bound);
        w.begin_in(SHIP, 600_000, free);
        w.run(Duration::from_millis(700));
        for node in [SHIP, SHORE] {
            w.dead[node][carrier] = true;
        }
        w.run(SECOND.times(12));
        assert!(w.transfers[1].read == 600_000, "{carrier}: {}", w.transfers[1].read);
        assert!(w.transfers[0].read < 600_000, "{carrier}: it waits");
        w.dead = Default::default();
        w.run(SECOND.times(20));
        assert!(w.is_done(), "{carrier}");
    }
}

/// A class that waits for its carrier asks the peer nothing by another one, its datagrams do not
/// wait, and streams that nobody wants any more leave no trace.
#[test]
fn a_class_that_waits_is_silent_and_holds_no_places() {
    let (mut w, class) = World::with_class(SHIP, &["line"]);
    let (now, id) = (w.now, w.peers[SHIP]);
    let all = w.nodes[SHIP].paths(now, id);
    let second = all.iter().find(|p| p.name == name("line")).expect("two paths").id;
    w.nodes[SHIP].set_path_up(now, id, second, false);
    w.begin_in(SHIP, 100_000, class);
    w.run(SECOND.times(10));
    w.take_left();
    w.run(SECOND.times(3_600));
    assert!(w.left[SHIP][0] < 40, "{} packets in an hour", w.left[SHIP][0]);
    let label = Label { class, ..Label::default() };
    let now = w.now;
    assert!(!w.session(SHIP).send_datagram(now, &[0x45; 100], &label));
    let in_order = Label { carry: Carry::Ordered, ..label };
    let held = w.session(SHIP).memory_used();
    assert!(!w.session(SHIP).send_datagram(now, &[0x45; 100], &in_order));
    assert_eq!(w.session(SHIP).memory_used(), held);
    let before = w.session(SHIP).streams();
    for n in 0..2_000 {
        let origin = Origin { client: None, target: target(7), dscp: 0 };
        let id = w.session(SHIP).open(now, origin).expect("there is room");
        w.session(SHIP).set_class(id, class, ChosenBy::Operator);
        // Also one whose host has sent something before it gave up.
        let has_sent = n % 2 == 1;
        if has_sent {
            assert_eq!(w.session(SHIP).write(now, id, b"x"), 1);
        }
        w.session(SHIP).reset(now, id, ResetReason::HostReset, has_sent);
        w.session(SHIP).release(now, id);
    }
    assert_eq!(w.session(SHIP).streams(), before);
    assert_eq!(w.session(SHIP).memory_used(), held);
    w.nodes[SHIP].set_path_up(now, id, second, true);
    w.run(SECOND.times(10));
    assert!(w.is_done());
}

/// L-PT-20: nor do those that were queued in its last moment cross hours later.
#[test]
fn datagrams_of_a_class_that_loses_its_carrier_are_dropped() {
    let (mut w, class) = World::with_class(SHIP, &["line"]);
    let (now, id) = (w.now, w.peers[SHIP]);
    let all = w.nodes[SHIP].paths(now, id);
    let second = all.iter().find(|p| p.name == name("line")).expect("two paths").id;
    let label = Label { class, ..Label::default() };
    let dropped = w.session(SHIP).stats().datagrams_dropped;
    for _ in 0..10 {
        assert!(w.session(SHIP).send_datagram(now, &[0x45; 1_000], &label));
    }
    w.nodes[SHIP].set_path_up(now, id, second, false);
    assert_eq!(w.session(SHIP).stats().datagrams_dropped, dropped + 10);
}

/// A connection that the peer knows, although it could not say so, ends there too.
#[test]
fn what_arrived_and_seems_lost_is_reset_when_its_carrier_is_back() {
    let (mut w, class) = World::with_class(SHIP, &["line"]);
    w.dead[SHORE][1] = true;
    w.begin_in(SHIP, 0, class);
    let (now, id) = (w.now, w.transfers[0].id.expect("it was opened"));
    w.session(SHIP).announce(id);
    w.run(SECOND.times(20));
    let far = w.transfers[0].far.expect("the OPEN arrived");
    w.session(SHIP).reset(now, id, ResetReason::HostReset, false);
    w.session(SHIP).release(now, id);
    w.dead = Default::default();
    w.run(SECOND.times(20));
    let reset = RecvState::Reset(ResetReason::HostReset);
    assert_eq!(w.session(SHORE).recv_state(far), reset);
}

/// A carrier that is gone leaves its name to another.
#[test]
fn a_name_goes_over_to_the_carrier_that_is_called_so_now() {
    let (mut w, class) = World::with_class(SHORE, &["line"]);
    let (now, id) = (w.now, w.peers[SHIP]);
    let all = w.nodes[SHIP].paths(now, id);
    let second = all.iter().find(|p| p.name == name("line")).expect("two paths").id;
    w.nodes[SHIP].remove_path(now, id, second);
    w.run(SECOND);
    let to = Some(at(1, SHORE));
    w.nodes[SHIP].add_path(now, id, second_path(), CarrierId(1), to).expect("one more");
    w.run(SECOND.times(3));
    w.take_left();
    w.begin_in(SHORE, 300_000, class);
    w.run(SECOND.times(5));
    assert!(w.is_done());
    assert!(w.left[SHORE][1] > 200 && w.left[SHORE][0] < 30, "{:?}", w.left);
    let names = w.nodes[SHORE].paths(w.now, w.peers[SHORE]);
    assert_eq!(names.iter().filter(|p| p.name == name("line")).count(), 1);
}

/// L-PT-18: also where the carrier is not dead but down, and the whole link after it.
#[test]
fn a_class_waits_while_its_carrier_is_down() {
    let (mut w, class) = World::with_class(SHIP, &["line"]);
    let (now, id) = (w.now, w.peers[SHIP]);
    let all = w.nodes[SHIP].paths(now, id);
    let second = all.iter().find(|p| p.name == name("line")).expect("two paths").id;
    w.nodes[SHIP].set_path_up(now, id, second, false);
    w.begin_in(SHIP, 100_000, class);
    w.run(SECOND.times(10));
    assert!(!w.is_done());
    assert_eq!(w.take_left()[SHIP][1], 0);
    let now = w.now;
    w.nodes[SHIP].set_path_up(now, id, PathId::FIRST, false);
    w.run(SECOND.times(600));
    let now = w.now;
    w.nodes[SHIP].set_path_up(now, id, second, true);
    w.run(SECOND.times(10));
    assert!(w.is_done());
}

/// L-PT-18: a name that no path has says nothing to the node that was called; the one that names
/// its carriers has none for it now.
#[test]
fn a_class_whose_carriers_nobody_knows_goes_as_everything_does_or_waits() {
    for (node, waits) in [(SHORE, false), (SHIP, true)] {
        let (mut w, class) = World::with_class(node, &["lien"]);
        w.begin_in(node, 300_000, class);
        w.run(SECOND.times(5));
        assert_eq!(w.is_done(), !waits);
        assert_eq!(w.left[node][1], 0);
    }
}
