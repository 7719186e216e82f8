//! Anything that a network and two machines can do, in any order; then peace.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

#[derive(Clone, Copy, Debug)]
enum Op {
    Send(Side),
    Want(Side, bool),
    Deliver(usize),
    Lose(usize),
    Duplicate(usize),
    Corrupt(usize, usize),
    Replay(usize),
    Pass(u64),
    Renew(Side),
    Restart(Side),
    Move(Side),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Side {
    A,
    B,
}

fn side() -> impl Strategy<Value = Side> {
    prop_oneof![Just(Side::A), Just(Side::B)]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => side().prop_map(Op::Send),
        3 => (side(), any::<bool>()).prop_map(|(s, w)| Op::Want(s, w)),
        12 => (0usize..6).prop_map(Op::Deliver),
        3 => (0usize..6).prop_map(Op::Lose),
        2 => (0usize..6).prop_map(Op::Duplicate),
        2 => (0usize..6, any::<usize>()).prop_map(|(i, bit)| Op::Corrupt(i, bit)),
        2 => any::<usize>().prop_map(Op::Replay),
        6 => prop_oneof![0u64..100, 0u64..3_000, 0u64..60_000].prop_map(Op::Pass),
        1 => side().prop_map(Op::Renew),
        1 => side().prop_map(Op::Restart),
        1 => side().prop_map(Op::Move),
    ]
}

struct Chaos {
    w: World,
    sent: u64,
    seen: BTreeSet<(Side, u64)>,
    seed: u8,
    host: u8,
}

impl Chaos {
    fn node(&mut self, side: Side) -> &mut Node {
        match side {
            Side::A => &mut self.w.a,
            Side::B => &mut self.w.b,
        }
    }

    /// Payload `n` travels from one side only; its parity tells which.
    fn send(&mut self, side: Side) {
        self.sent += 1;
        let n = self.sent * 2 + u64::from(side == Side::B);
        let now = self.w.now;
        if let Some(packet) = self.node(side).seal(now, &[&b"data"[..], &n.to_be_bytes()].concat())
        {
            self.w.net.push_back(packet);
        }
    }

    fn apply(&mut self, op: Op) {
        let now = self.w.now;
        let pick = |w: &World, i: usize| (!w.net.is_empty()).then(|| i % w.net.len());
        match op {
            Op::Send(side) => self.send(side),
            Op::Want(side, wanted) => self.node(side).tunnel.set_wanted(now, wanted),
            Op::Pass(ms) => self.w.pass(Duration::from_millis(ms)),
            Op::Renew(side) => {
                let tunnel = &mut self.node(side).tunnel;
                tunnel.renew = tunnel.is_established().then_some(now);
            }
            Op::Restart(side) => {
                self.seed = self.seed.wrapping_add(1);
                let seed = self.seed;
                let (a, b) = World::ordered();
                let node = self.node(side);
                node.restart(if side == Side::A { a } else { b }, seed);
                node.tunnel.connect(now);
            }
            Op::Move(side) => {
                self.host = self.host.wrapping_add(1).max(10);
                let host = self.host;
                self.node(side).addr = addr(host);
            }
            Op::Replay(i) if !self.w.log.is_empty() => {
                let packet = self.w.log[i % self.w.log.len()].clone();
                self.w.net.push_back(packet);
            }
            Op::Replay(_) => {}
            Op::Deliver(i) | Op::Lose(i) | Op::Duplicate(i) | Op::Corrupt(i, _) => {
                let Some(i) = pick(&self.w, i) else { return };
                let mut packet = self.w.net.remove(i).expect("it was picked");
                match op {
                    Op::Lose(_) => return,
                    Op::Duplicate(_) => self.w.net.push_back(packet.clone()),
                    Op::Corrupt(_, bit) => {
                        let bit = bit % (packet.bytes.len() * 8);
                        packet.bytes[bit / 8] ^= 1 << (bit % 8);
                    }
                    _ => {}
                }
                self.w.deliver(&packet);
            }
        }
    }

    /// Each payload arrives at most once, and only what the other side sent.
    fn check(&mut self) {
        for side in [Side::A, Side::B] {
            for (_, payload) in std::mem::take(&mut self.node(side).received) {
                let Some(n) = payload.strip_prefix(b"data") else { continue };
                let n = u64::from_be_bytes(n.try_into().expect("eight bytes"));
                assert_eq!(n % 2 == 1, side == Side::A, "from the other side");
                assert!(n / 2 <= self.sent);
                assert!(self.seen.insert((side, n)), "payload {n} arrived twice");
            }
        }
        assert!(self.w.net.len() < 400, "the nodes do not flood the network");
    }
}

proptest! {
    #[test]
    fn after_any_chaos_the_two_talk_again_and_nothing_arrived_twice(
        ops in prop::collection::vec(op(), 0..120)
    ) {
        let mut chaos = Chaos {
            w: World::new(), sent: 0, seen: BTreeSet::new(), seed: 100, host: 10,
        };
        chaos.w.a.tunnel.connect(chaos.w.now);
        for op in ops {
            chaos.apply(op);
            chaos.w.drain();
            chaos.check();
        }
        chaos.w.net.clear();
        chaos.w.a.received.clear();
        chaos.w.b.received.clear();
        // If both moved at once neither knows where the other is; then one is told.
        let there = chaos.w.a.addr;
        chaos.w.b.tunnel.set_endpoint(chaos.w.now, PathId::FIRST, there);
        chaos.w.settle();
        chaos.w.assert_talking();
        chaos.w.pass(Duration::from_secs(60));
        chaos.w.run();
        chaos.w.assert_talking();
    }
}
