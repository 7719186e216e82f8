//! All faults at once: messages that are lost, overtake each other and come twice, stores
//! that lose chunks, epochs that change, programs that die, disks that fill and rot, and
//! capacities far too small. What comes is what was sent, and when the faults end everything
//! comes.

use std::net::IpAddr;

use proptest::prelude::*;
use units::{Duration, Rng};

use super::ends::{Pair, Stream, random};
use crate::dedup::{Limits, Scope};

struct World {
    pair: Pair,
    rng: Rng,
    streams: Vec<Stream>,
    next_key: u64,
    /// Messages under way, to far and to near.
    to_far: Vec<Vec<u8>>,
    to_near: Vec<Vec<u8>>,
    delivered: usize,
    pool: Vec<Vec<u8>>,
}

fn world(seed: u64) -> World {
    let mut rng = Rng::new(seed);
    let mut of = |choices: &[u64]| choices[rng.below(choices.len() as u64) as usize] as usize;
    let limits = Limits {
        memory: of(&[0, 20_000, 40_000, 300_000, 2_000_000]),
        disk: of(&[0, 300_000, 1_000_000, 50_000_000]) as u64,
        sources: of(&[0, 50_000, 10_000_000]),
        assembling: of(&[0, 10_000, 1_000_000]),
        chunks: of(&[1, 20, 100_000]),
    };
    let pool = (0..6).map(|n| random(1000 << of(&[0, 3, 5, 6, 7]), seed ^ n)).collect();
    World {
        pair: Pair::new(limits),
        rng,
        streams: Vec::new(),
        next_key: 1,
        to_far: Vec::new(),
        to_near: Vec::new(),
        delivered: 0,
        pool,
    }
}

impl World {
    fn begin_stream(&mut self) {
        let mut content = Vec::new();
        for _ in 0..=self.rng.below(2) {
            let n = self.rng.below(self.pool.len() as u64) as usize;
            content.extend_from_slice(&self.pool[n]);
        }
        if self.rng.below(3) == 0 {
            let at = self.rng.below(content.len() as u64) as usize;
            content.insert(at, 7);
        }
        let scope = match self.rng.below(6) {
            0 => None,
            1 => Some(Scope::Lan),
            n => Some(Scope::Host(IpAddr::from([10, 0, 0, n as u8 % 2]))),
        };
        self.streams.push(Stream::new(&self.pair, self.next_key, scope, content));
        self.next_key += 1;
    }

    /// Everything moves a little.
    fn turn(&mut self, faults: bool) {
        let World { pair, rng, streams, .. } = self;
        pair.later(Duration::from_millis(rng.below(15)));
        for stream in streams.iter_mut() {
            let window = 1 << (10 + rng.below(10));
            stream.push(pair, rng.below(40_000) as usize);
            stream.pull(pair, rng.below(60_000) as usize, window, rng.below(2) == 0);
            let arrived = match rng.below(3) {
                0 => stream.wire.len(),
                _ => rng.below(stream.wire.len() as u64 + 1) as usize,
            };
            let most = rng.below(60_000) as usize;
            stream.take(pair, arrived, most).expect("the peer is honest");
            if rng.below(4) == 0 {
                stream.decoder.forget();
            }
            if rng.below(3) == 0 {
                stream.credit(pair);
            }
            let same = stream.content.starts_with(&stream.got);
            assert!(same, "what came is what was sent");
        }
        if rng.below(3) == 0 {
            if rng.below(3) == 0 {
                pair.far.dedup.receiver.store.flush();
            }
            pair.near.disk.serve(&mut pair.near.dedup);
            pair.far.disk.serve(&mut pair.far.dedup);
        }
        let mut message = Vec::new();
        while pair.far.dedup.poll_message(rng.below(2) == 0, &mut message) {
            self.to_near.push(std::mem::take(&mut message));
        }
        while pair.near.dedup.poll_message(true, &mut message) {
            self.to_far.push(std::mem::take(&mut message));
        }
        self.deliver(faults);
        for n in (0..self.streams.len()).rev() {
            let reset = faults && self.rng.below(200) == 0;
            if reset || self.streams[n].is_over() {
                let mut stream = self.streams.swap_remove(n);
                self.delivered += usize::from(!reset);
                stream.close(&mut self.pair);
            }
        }
    }

    fn deliver(&mut self, faults: bool) {
        for far in [true, false] {
            let queue = if far { &mut self.to_far } else { &mut self.to_near };
            for _ in 0..self.rng.below(6) {
                if queue.is_empty() {
                    break;
                }
                let n = self.rng.below(queue.len() as u64) as usize;
                let message = queue.swap_remove(n);
                match self.rng.below(10) {
                    0..3 if faults => continue,
                    3 => queue.push(message.clone()),
                    _ => {}
                }
                let node = if far { &mut self.pair.far } else { &mut self.pair.near };
                node.dedup.handle_message(&message);
                assert_eq!(node.dedup.violations(), 0);
            }
        }
    }

    fn fault(&mut self) {
        let fresh = self.rng.next_u64() | 1;
        match self.rng.below(12) {
            0 => {
                let store = &mut self.pair.far.dedup.receiver.store;
                let numbers: Vec<u64> = store.numbers().collect();
                for number in numbers {
                    if self.rng.below(3) == 0 {
                        store.remove(number);
                    }
                }
            }
            1 => self.pair.far.dedup.receiver.rebuild(fresh),
            2 => self.restart(fresh, true, true),
            3 => self.restart(fresh, true, false),
            4 => {
                self.pair.far.disk = Default::default();
                self.restart(fresh, true, false);
            }
            5 => {
                self.pair.near.disk = Default::default();
                self.restart(fresh, false, true);
            }
            6 => self.restart(fresh, false, false),
            7 | 8 => {
                for _ in 0..self.rng.below(30) {
                    for disk in [&mut self.pair.far.disk, &mut self.pair.near.disk] {
                        if let Some(byte) = disk.anywhere(&mut self.rng) {
                            *byte ^= 1 << self.rng.below(8);
                        }
                    }
                }
            }
            9 => {
                let room = self.rng.below(1_000_000) as usize;
                self.pair.far.disk.room = (self.rng.below(2) == 0).then_some(room);
            }
            _ => self.pair.far.dedup.repeat(),
        }
    }

    /// A new session, because a program died, or both, or none.
    fn restart(&mut self, fresh: u64, far: bool, near: bool) {
        for mut stream in std::mem::take(&mut self.streams) {
            stream.close(&mut self.pair);
        }
        self.to_far.clear();
        self.to_near.clear();
        let World { pair, .. } = self;
        if far {
            pair.far.dedup = pair.far.disk.recover(&pair.keys, &pair.limits, fresh);
        }
        if near {
            pair.near.dedup = pair.near.disk.recover(&pair.keys, &pair.limits, fresh);
        }
        pair.near.dedup.begin_session();
        pair.far.dedup.begin_session();
    }
}

fn run(seed: u64) {
    let mut world = world(seed);
    for _ in 0..300 {
        if world.streams.len() < 4 && world.rng.below(4) == 0 {
            world.begin_stream();
        }
        world.turn(true);
        if world.rng.below(30) == 0 {
            world.fault();
        }
    }
    // The faults end: everything that is under way comes.
    world.begin_stream();
    let mut turns = 0;
    while !world.streams.is_empty() {
        world.turn(false);
        if turns % 50 == 0 {
            world.pair.far.dedup.repeat();
        }
        turns += 1;
        assert!(turns < 20_000, "seed {seed}: {} streams are stuck", world.streams.len());
    }
    let (pending, _, assembling) = world.pair.far.dedup.receiver.burden();
    assert_eq!((pending, assembling), (0, 0), "nothing is left of streams that are over");
    assert_eq!(world.pair.near.dedup.sender.sources(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn what_comes_is_what_was_sent_and_all_of_it_comes(seed in any::<u64>()) {
        // L-DD-5, L-DD-6, L-DD-7
        run(seed);
    }
}
