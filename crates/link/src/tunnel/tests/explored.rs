//! A bounded exploration of two real tunnels: every place of every fault in a short life.
//!
//! The network delivers in order and time passes when nothing flies. Into such a run faults are
//! put, one or two or three, of each kind at each step: packets are lost, repeated, delayed,
//! changed, replayed, carried over from a third place; nodes start anew, renew their keys, move;
//! a stranger with a key of his own asks for sessions. At each step must hold
//!
//! * **No session twice.** A node begins each session once, and each payload arrives once.
//! * **Authentic.** A session's other name is one that the peer drew, and what arrives is what
//!   the peer sent. Nobody's address but the peer's own becomes its endpoint.
//! * **Secret.** No number is sealed twice under a key, no handshake repeats an ephemeral key, and
//!   whoever has both private keys and all that ever flew opens nothing of it. It is tried in each
//!   life in which a handshake's message flies that flew in none before: in others it is the same.
//!
//! and once the faults are over both talk, in the same session. What is left out: faults beyond
//! the number and the steps, and what cryptography itself must keep (the spec's L-HS and Noise's
//! own proofs are for that).
//!
//! `cargo test -p link explored` takes some of it; `make test-long` all, with
//! `cargo test --release -p link explored -- --ignored`.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Lose,
    Duplicate,
    Delay,
    Corrupt,
    /// Somebody passes the packet on from another address.
    Carry,
    ReplayFirst,
    ReplayLast,
    /// The newest handshake message that is not the first packet.
    ReplayHandshake,
    Stranger,
    Restart(usize),
    Renew(usize),
    Move(usize),
}

const FAULTS: [Fault; 15] = [
    Fault::Lose,
    Fault::Duplicate,
    Fault::Delay,
    Fault::Corrupt,
    Fault::Carry,
    Fault::ReplayFirst,
    Fault::ReplayLast,
    Fault::ReplayHandshake,
    Fault::Stranger,
    Fault::Restart(0),
    Fault::Restart(1),
    Fault::Renew(0),
    Fault::Renew(1),
    Fault::Move(0),
    Fault::Move(1),
];

/// How a run begins.
#[derive(Clone, Copy, Debug)]
enum Start {
    /// One side calls.
    One,
    /// Both call at once.
    Crossing,
    /// There is a session, and both renew its keys at once.
    Renewing,
}

const STARTS: [Start; 3] = [Start::One, Start::Crossing, Start::Renewing];
/// The address of whoever carries packets over.
const THIRD: u8 = 66;
/// The key of the stranger.
const STRANGER: u8 = 9;

struct Explored {
    w: World,
    seed: u8,
    sent: u64,
    /// Payloads that arrived, sessions begun, and all names that a side ever had for one.
    arrived: BTreeSet<(usize, u64)>,
    begun: BTreeSet<(usize, u64, u64)>,
    epochs: [BTreeSet<u64>; 2],
    /// Whom a packet was sealed for (a key's index) and its number there.
    sealed: BTreeSet<(u32, u64)>,
    ephemerals: BTreeSet<Vec<u8>>,
    /// Packets of the log that were looked at.
    seen: usize,
    both_moved: [bool; 2],
}

impl Explored {
    fn new(start: Start) -> Explored {
        let mut w = match start {
            Start::Renewing => World::established(),
            _ => World::new(),
        };
        let now = w.now;
        match start {
            Start::One => w.a.tunnel.connect(now),
            Start::Crossing => {
                w.a.tunnel.connect(now);
                w.b.tunnel.connect(now);
            }
            Start::Renewing => {
                w.a.tunnel.renew(now);
                w.b.tunnel.renew(now);
            }
        }
        let mut explored = Explored {
            w,
            seed: 100,
            sent: 0,
            arrived: BTreeSet::new(),
            begun: BTreeSet::new(),
            epochs: Default::default(),
            sealed: BTreeSet::new(),
            ephemerals: BTreeSet::new(),
            seen: 0,
            both_moved: [false; 2],
        };
        explored.check();
        explored
    }

    fn node(&mut self, side: usize) -> &mut Node {
        if side == 0 { &mut self.w.a } else { &mut self.w.b }
    }

    /// One step without a fault: a packet arrives, or time passes.
    fn step(&mut self) {
        self.w.drain();
        if let Some(packet) = self.w.net.pop_front() {
            self.w.deliver(&packet);
            return;
        }
        let due = [&self.w.a, &self.w.b].into_iter().filter_map(|n| n.tunnel.poll_timeout()).min();
        let soon = self.w.now + Duration::from_secs(1);
        self.w.now = due.unwrap_or(soon).clamp(self.w.now + Duration::from_millis(10), soon);
        self.send(0);
        self.send(1);
    }

    /// A payload; its lowest bit tells from whom.
    fn send(&mut self, side: usize) {
        self.sent += 1;
        let (now, n) = (self.w.now, self.sent * 2 + side as u64);
        if let Some(packet) = self.node(side).seal(now, &[&b"data"[..], &n.to_be_bytes()].concat())
        {
            self.w.net.push_back(packet);
        }
    }

    fn apply(&mut self, fault: Fault) {
        self.w.drain();
        let now = self.w.now;
        match fault {
            Fault::Lose | Fault::Duplicate | Fault::Delay | Fault::Corrupt | Fault::Carry => {
                let Some(mut packet) = self.w.net.pop_front() else { return };
                match fault {
                    Fault::Lose => return self.w.log.push(packet),
                    Fault::Delay => return self.w.net.push_back(packet),
                    Fault::Duplicate => self.w.net.push_back(packet.clone()),
                    Fault::Corrupt => {
                        self.w.log.push(packet.clone());
                        let middle = packet.bytes.len() / 2;
                        packet.bytes[middle] ^= 4;
                        return self.w.b_or_a(&packet);
                    }
                    _ => packet.from = addr(THIRD),
                }
                self.w.deliver(&packet);
            }
            Fault::ReplayFirst => self.replay(0),
            Fault::ReplayLast => self.replay(self.w.log.len().saturating_sub(1)),
            Fault::ReplayHandshake => {
                if let Some(at) = self.w.log.iter().rposition(Flying::is_handshake) {
                    self.replay(at);
                }
            }
            Fault::Stranger => self.intrude(),
            Fault::Restart(side) => {
                self.seed += 1;
                let (seed, (a, b)) = (self.seed, World::ordered());
                let node = self.node(side);
                node.restart(if side == 0 { a } else { b }, seed);
                node.tunnel.connect(now);
            }
            Fault::Renew(side) => self.node(side).tunnel.renew(now),
            Fault::Move(side) => {
                self.both_moved[side] = true;
                self.seed += 1;
                let host = self.seed;
                self.node(side).addr = addr(host);
            }
        }
    }

    fn replay(&mut self, at: usize) {
        if let Some(packet) = self.w.log.get(at).cloned() {
            self.w.b_or_a(&packet);
        }
    }

    /// Somebody whom neither knows asks both for a session, in good form.
    fn intrude(&mut self) {
        let mut out = VecDeque::new();
        for side in 0..2 {
            let (a, b) = World::ordered();
            let to = if side == 0 { a } else { b };
            let at = self.node(side).addr;
            let mut stranger = Node::new(STRANGER, to, Some(at), 50);
            stranger.addr = addr(STRANGER);
            stranger.tunnel.connect(self.w.now);
            stranger.drain(self.w.now, &mut out);
        }
        for packet in out {
            self.w.b_or_a(&packet);
        }
    }

    fn check(&mut self) {
        let third = [addr(THIRD), addr(STRANGER)].map(Remote::from);
        for side in 0..2 {
            let node = self.node(side);
            assert!(
                node.tunnel.endpoint(PathId::FIRST).is_none_or(|at| !third.contains(&at)),
                "a foreign end"
            );
            let (fresh, id) = (node.tunnel.fresh_epoch, node.tunnel.session());
            let (events, received) =
                (std::mem::take(&mut node.events), std::mem::take(&mut node.received));
            self.epochs[side].extend([fresh].into_iter().chain(id.map(|id| id.local)));
            for event in events {
                if let (Event::Established { resumed: false, .. }, Some(id)) = (event, id) {
                    assert!(self.begun.insert((side, id.local, id.remote)), "begun twice");
                }
            }
            for (_, payload) in received {
                let Some(n) = payload.strip_prefix(b"data") else { continue };
                let n = u64::from_be_bytes(n.try_into().expect("eight bytes"));
                assert!(n % 2 != side as u64 && n / 2 <= self.sent, "not what the peer sent");
                assert!(self.arrived.insert((side, n)), "payload {n} arrived twice");
            }
        }
        for side in 0..2 {
            let remote = self.node(side).tunnel.session().map(|id| id.remote);
            assert!(remote.is_none_or(|r| self.epochs[1 - side].contains(&r)), "a foreign name");
        }
        self.look_at_what_flies();
    }

    /// What left for the first time: `net` and `log` together hold each packet once.
    fn look_at_what_flies(&mut self) {
        for at in std::mem::replace(&mut self.seen, self.w.log.len())..self.w.log.len() {
            let bytes = &self.w.log[at].bytes;
            if self.w.log[..at].iter().any(|before| before.bytes == *bytes) {
                continue; // The network repeats it, not its sender.
            }
            match PacketKind::of(bytes) {
                Some(PacketKind::Data { .. }) => {
                    let header = DataHeader::read(bytes).expect("it was sealed");
                    let place = (header.receiver, u64::from(header.truncated));
                    assert!(self.sealed.insert(place), "{place:?} is sealed twice");
                }
                Some(PacketKind::Initiation) => {
                    let is_new = self.ephemerals.insert(bytes[6..38].to_vec());
                    assert!(is_new, "an ephemeral key comes again");
                }
                _ => {}
            }
        }
    }

    /// No more faults: both talk, in one session. The thief comes where a handshake's message flew
    /// that he has not `seen` in another life: of the others he has learned what there is.
    fn make_peace(mut self, seen: &mut Messages) {
        if self.both_moved == [true; 2] {
            // Neither knows where the other is; then one is told.
            let (now, there) = (self.w.now, self.w.a.addr);
            self.w.b.tunnel.set_endpoint(now, PathId::FIRST, there);
        }
        self.w.settle();
        self.w.assert_talking();
        let [a, b] = [&self.w.a, &self.w.b].map(|n| n.tunnel.session().expect("a session"));
        assert_eq!((a.local, a.remote), (b.remote, b.local), "one session, by both its names");
        let handshakes = self.w.log.iter().filter(|p| p.is_handshake());
        if handshakes.filter(|p| seen.insert(p.bytes.clone())).count() > 0 {
            self.rob();
        }
    }

    /// A thief has both nodes' private keys and all that ever flew.
    fn rob(&mut self) {
        let (a, b) = World::ordered();
        let mut out = VecDeque::new();
        for (own, peer) in [(a, b), (b, a)] {
            let mut thief = Node::new(own, peer, Some(addr(peer)), 60);
            thief.tunnel.connect(self.w.now);
            for packet in &self.w.log {
                thief.handle(self.w.now, packet, &mut out);
            }
            assert!(thief.received.is_empty() && !thief.tunnel.is_established(), "keys leaked");
        }
    }
}

impl Flying {
    fn is_handshake(&self) -> bool {
        self.bytes.first().is_some_and(|b| *b < 0x80)
    }
}

impl World {
    /// Delivers what is not to be in the log again.
    fn b_or_a(&mut self, packet: &Flying) {
        if packet.to == self.a.addr {
            self.a.handle(self.now, packet, &mut self.net);
        } else if packet.to == self.b.addr {
            self.b.handle(self.now, packet, &mut self.net);
        }
    }
}

/// Messages of handshakes that the thief has seen.
type Messages = BTreeSet<Vec<u8>>;

/// One life with these faults before the steps of these numbers.
fn live(start: Start, steps: usize, faults: &[(usize, Fault)], seen: &mut Messages) {
    let mut explored = Explored::new(start);
    for at in 0..steps {
        for (_, fault) in faults.iter().filter(|(step, _)| *step == at) {
            explored.apply(*fault);
            explored.check();
        }
        explored.step();
        explored.check();
    }
    explored.make_peace(seen);
}

/// All ways to put up to `left` more faults at or after step `from`; answers how many.
fn explore(
    start: Start,
    steps: usize,
    from: usize,
    left: usize,
    faults: &mut Vec<(usize, Fault)>,
    seen: &mut Messages,
) -> u64 {
    let told = catch_unwind(AssertUnwindSafe(|| live(start, steps, faults, seen)));
    assert!(told.is_ok(), "{start:?} with {faults:?}");
    let mut lives = 1;
    for at in (from..steps).filter(|_| left > 0) {
        for fault in FAULTS {
            faults.push((at, fault));
            lives += explore(start, steps, at, left - 1, faults, seen);
            faults.pop();
        }
    }
    lives
}

fn explore_all(steps: usize, most: usize) -> u64 {
    let mut seen = Messages::new();
    let of = |start| explore(start, steps, 0, most, &mut Vec::new(), &mut seen);
    let lives = STARTS.into_iter().map(of).sum();
    println!("{} messages of handshakes", seen.len());
    lives
}

#[test]
fn explored_lives_with_a_fault_or_two_keep_every_promise() {
    let lives = explore_all(14, 1) + explore_all(7, 2);
    println!("{lives} lives");
}

/// What more than two faults have shown.
#[test]
fn lives_that_were_found_by_exploring_further_keep_every_promise() {
    let faults = [(0, Fault::Move(1)), (4, Fault::Restart(1)), (6, Fault::Move(0))];
    live(Start::Crossing, 7, &faults, &mut Messages::new());
}

/// Every pair of faults in 16 steps, every three in 7.
#[test]
#[ignore = "takes many minutes"]
fn explored_lives_with_three_faults_keep_every_promise() {
    let lives = explore_all(16, 2) + explore_all(7, 3);
    println!("{lives} lives");
}
