//! Two sessions over a pipe in virtual time, without keys: what the protocol
//! promises about bytes, whatever the pipe does. The simulator does the same to
//! whole nodes.

mod codec;
mod found;
mod gone;
mod headers;
mod hostile;
mod liveness;
mod messages;
mod packets;
mod path;
mod repair;
mod scheduling;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use units::{BitRate, ByteCount, Duration, Instant, Ratio, Rng};

use super::facts::Told;
use super::*;
use crate::datagram::MAX_DATAGRAM;
use crate::path::PathId;
use crate::wire::{Frame, Origin, ResetReason, StreamFrame, StreamId, Target, Writer};

fn config() -> LinkConfig {
    LinkConfig {
        send_rate: BitRate::from_mbps(20),
        rate_mode: Default::default(),
        receive_rate: BitRate::from_mbps(20),
        rtt: Duration::from_millis(600),
        mtu: 1500,
        packet: 1500,
        queue: NEARLY_EMPTY,
        bit_errors: Ratio::ZERO,
        overhead: 0,
        memory: ByteCount(64 << 20),
        stream_buffer: None,
        max_streams: 2000,
        headers: true,
        history: ByteCount(0),
        dedup: false,
        facts: Default::default(),
        classes: Vec::new(),
    }
}

fn origin() -> Origin {
    let client: SocketAddr = "10.1.0.2:40000".parse().unwrap();
    let target = Target::Address("10.2.0.2:80".parse().unwrap());
    Origin { client: Some(client), target, dscp: 0 }
}

#[derive(Clone, Copy)]
struct Pipe {
    loss: f64,
    reorder: f64,
    duplicate: f64,
}

const CLEAN: Pipe = Pipe { loss: 0.0, reorder: 0.0, duplicate: 0.0 };

/// Sender, number, hint, plaintext.
type Packet = (usize, u64, u8, Vec<u8>);

/// Two sessions, and what is on its way between them.
struct World {
    now: Instant,
    sides: [Session; 2],
    flight: BTreeMap<(Instant, u64), Packet>,
    sequence: u64,
    pipe: Pipe,
    rng: Rng,
    wire_bytes: [u64; 2],
    /// The longest plaintext of each side.
    longest: [usize; 2],
    seen: [std::collections::BTreeSet<u64>; 2],
    /// Test hook: packets of this side that are dropped.
    dead: [bool; 2],
    /// Longer IP packets vanish.
    path_mtu: usize,
    stuck: u32,
    config: LinkConfig,
}

/// Sealing costs that the endpoint would add: header 5, tag 16.
const SEALING: u64 = 21;

impl World {
    fn new(seed: u64, pipe: Pipe, config: LinkConfig) -> World {
        let now = Instant::from_nanos(1);
        let mut sides = [0, 1].map(|side| Session::new(now, config.clone(), side));
        let params = sides[0].params();
        for s in &mut sides {
            s.set_peer(params);
        }
        World {
            now,
            sides,
            flight: BTreeMap::new(),
            sequence: 0,
            pipe,
            rng: Rng::new(seed),
            wire_bytes: [0; 2],
            longest: [0; 2],
            seen: Default::default(),
            dead: [false; 2],
            path_mtu: usize::MAX,
            stuck: 0,
            config,
        }
    }

    fn transmit(&mut self) {
        for side in 0..2 {
            let room = self.sides[side].first().max_packet() - SEALING as usize;
            let mut buf = vec![0u8; room];
            while let Some(b) =
                self.sides[side].poll_packet(self.now, PathId::FIRST, &mut buf, SEALING)
            {
                self.longest[side] = self.longest[side].max(b.len);
                self.wire_bytes[side] += b.len as u64 + SEALING + 28;
                let copies = 1 + usize::from(self.rng.chance(Ratio::from_f64(self.pipe.duplicate)));
                for _ in 0..copies {
                    let long = b.len + SEALING as usize + 28 > self.path_mtu;
                    if long || self.dead[side] || self.rng.chance(Ratio::from_f64(self.pipe.loss)) {
                        continue;
                    }
                    let mut at = self.now + self.config.rtt.divided_by(2);
                    if self.rng.chance(Ratio::from_f64(self.pipe.reorder)) {
                        at += Duration::from_micros(self.rng.below(40_000));
                    }
                    self.sequence += 1;
                    let packet = (side, b.number, b.hint, buf[..b.len].to_vec());
                    self.flight.insert((at, self.sequence), packet);
                }
            }
        }
    }

    /// One step of time; false when nothing will ever happen again or `until` is reached.
    fn step(&mut self, until: Instant) -> bool {
        self.transmit();
        let now = self.now;
        let timers = self.sides.iter().filter_map(|s| s.poll_timeout(now));
        let arrival = self.flight.keys().next().map(|(t, _)| *t);
        let Some(next) = timers.chain(arrival).min() else { return false };
        self.stuck = if next <= now { self.stuck + 1 } else { 0 };
        assert!(
            self.stuck < 1000,
            "time stands still: {:?}",
            self.sides.each_ref().map(|s| s.timers(now))
        );
        self.now = next.max(now);
        if self.now > until {
            self.now = until;
            return false;
        }
        while let Some(entry) = self.flight.first_entry() {
            if entry.key().0 > self.now {
                break;
            }
            let (from, number, hint, payload) = entry.remove();
            // The replay window's part.
            if self.seen[1 - from].insert(number) {
                self.sides[1 - from].handle_packet(
                    self.now,
                    self.now,
                    (PathId::FIRST, number),
                    hint,
                    &payload,
                    &mut |_| {},
                );
            }
        }
        for side in &mut self.sides {
            side.handle_timeout(self.now);
        }
        true
    }

    fn run(&mut self, d: Duration, mut each: impl FnMut(&mut World)) {
        let until = self.now + d;
        each(self);
        while self.step(until) {
            each(self);
        }
    }
}

fn pattern(id: StreamId, offset: u64) -> u8 {
    ((offset.wrapping_mul(2654435761).wrapping_add(id.0 * 97)) >> 11) as u8
}

/// Feeds a stream from a pattern.
#[derive(Default)]
struct Feeder {
    left: BTreeMap<StreamId, (u64, u64)>,
}

impl Feeder {
    fn feed(&mut self, now: Instant, session: &mut Session) {
        self.left.retain(|id, (at, end)| {
            while *at < *end {
                let n = session.writable_bytes(*id).min(*end - *at).min(10_000);
                if n == 0 {
                    return true;
                }
                let data: Vec<u8> = (*at..*at + n).map(|o| pattern(*id, o)).collect();
                *at += session.write(now, *id, &data) as u64;
            }
            session.finish(now, *id);
            false
        });
    }
}

/// Takes all that arrives and checks it against the pattern.
#[derive(Default)]
struct Drain {
    got: BTreeMap<StreamId, u64>,
    finished: Vec<StreamId>,
}

impl Drain {
    fn drain(&mut self, now: Instant, session: &mut Session) {
        while let Some(event) = session.poll_event() {
            let id = match event {
                Event::Readable(id) => id,
                Event::Reset(id, reason) => panic!("{id:?} was reset: {reason:?}"),
                _ => continue,
            };
            let got = self.got.entry(id).or_default();
            loop {
                let n = session.peek(id).len();
                if n == 0 {
                    break;
                }
                for (i, b) in session.peek(id).iter().enumerate() {
                    assert_eq!(*b, pattern(id, *got + i as u64), "{id:?} at {}", *got + i as u64);
                }
                *got += n as u64;
                session.consume(now, id, n);
            }
            if session.recv_state(id) == RecvState::Finished {
                self.finished.push(id);
                session.finish(now, id);
                session.release(now, id);
            }
        }
    }
}

/// `count` streams of `size` bytes one way; answers the time until all have ended.
fn transfer(seed: u64, pipe: Pipe, config: LinkConfig, count: u64, size: u64) -> (Duration, World) {
    let mut w = World::new(seed, pipe, config);
    let (mut feeder, mut drain) = (Feeder::default(), Drain::default());
    for _ in 0..count {
        let id = w.sides[0].open(w.now, origin()).unwrap();
        feeder.left.insert(id, (0, size));
    }
    let start = w.now;
    let mut done = None;
    let mut closer = Drain::default();
    w.run(Duration::from_secs(600), |w| {
        let now = w.now;
        feeder.feed(now, &mut w.sides[0]);
        drain.drain(now, &mut w.sides[1]);
        closer.drain(now, &mut w.sides[0]);
        if drain.finished.len() as u64 == count && done.is_none() {
            done = Some(now.since(start));
        }
    });
    assert_eq!(drain.finished.len() as u64, count, "all streams end");
    assert!(drain.got.values().all(|n| *n == size));
    for side in &w.sides {
        assert_eq!(side.streams(), 0, "nothing is left over");
        assert_eq!(side.memory_used(), 0);
        assert_eq!((side.over_reserve, side.recv_over_reserve), (0, 0), "credit does not leak");
        assert_eq!(side.stats.violations, 0);
        assert_eq!(side.paths[0].sent.in_flight(), 0);
    }
    (done.unwrap(), w)
}

#[test]
fn packets_are_as_long_as_errors_make_best() {
    let best = |ber| best_packet(1500, Ratio::from_f64(ber));
    assert_eq!(best(0.0), 1500);
    assert!((825..=840).contains(&best(1e-5)));
    assert_eq!(best(1e-6), 1500);
    assert_eq!(best_packet(128, Ratio::ONE), 128);
}

#[test]
fn a_clean_link_is_filled_from_the_first_packet() {
    let (time, w) = transfer(1, CLEAN, config(), 1, 20_000_000);
    // 20 MB at 20 Mbit/s × 1448/1500, and half a round trip.
    let limit = 20_000_000.0 * 8.0 / 20e6 * 1500.0 / 1448.0 + 0.3;
    let time = time.as_secs_f64();
    assert!(time > limit * 0.999 && time < limit * 1.01, "{time} s, the limit is {limit} s");
    assert_eq!(w.sides[0].stats().retransmitted, 0);
}

#[test]
fn loss_costs_what_was_lost_and_a_tail() {
    let (time, w) = transfer(2, Pipe { loss: 0.01, ..CLEAN }, config(), 1, 10_000_000);
    let limit = 10_000_000.0 * 8.0 / 20e6 * 1500.0 / 1448.0 / 0.99 + 0.3;
    assert!(time.as_secs_f64() < limit + 1.5, "{time}, the limit is {limit} s");
    let again = w.sides[0].stats().retransmitted as f64 / 10_000_000.0;
    assert!(again < 0.011, "{again} of the bytes went again");
}

#[test]
fn every_byte_arrives_once_and_in_order_over_bad_links() {
    for seed in 0..12 {
        let pipe = Pipe {
            loss: [0.0, 0.05, 0.5][seed as usize % 3],
            reorder: [0.0, 0.25][seed as usize % 2],
            duplicate: [0.0, 0.1][seed as usize / 2 % 2],
        };
        let (_, w) = transfer(seed, pipe, config(), 1 + seed * 7, 100_000);
        if seed % 3 == 0 {
            let late = w.sides[0].stats().packets_lost;
            assert!(late < 152, "reordering is not taken for loss for long: {late}");
        }
    }
}

#[test]
fn the_rate_is_never_exceeded() {
    let mut config = config();
    config.send_rate = BitRate::from_kbps(64);
    config.receive_rate = config.send_rate;
    let (time, w) = transfer(5, Pipe { loss: 0.1, ..CLEAN }, config, 3, 60_000);
    let allowed = BitRate::from_kbps(64).bytes_in(time + Duration::from_secs(60)).0;
    assert!(w.wire_bytes[0] < allowed);
}

/// L-CR-2.
#[test]
fn a_reader_that_stops_holds_its_buffer_and_no_more() {
    let mut w = World::new(3, CLEAN, config());
    let id = w.sides[0].open(w.now, origin()).unwrap();
    let mut feeder = Feeder::default();
    feeder.left.insert(id, (0, 100_000_000));
    w.run(Duration::from_secs(30), |w| feeder.feed(w.now, &mut w.sides[0]));
    let window = w.sides[1].params().stream_window;
    let held = w.sides[1].memory_used();
    assert!(held <= window + 16 * 1024, "{held} held, {window} promised");
    assert_eq!(w.sides[1].stats().violations, 0);
    let mut drain = Drain::default();
    w.run(Duration::from_secs(60), |w| {
        feeder.feed(w.now, &mut w.sides[0]);
        drain.drain(w.now, &mut w.sides[1]);
    });
    assert_eq!(drain.finished, [id], "it goes on where it stopped");
}

/// As long as the tests last that `make test-long` runs.
const HOURS: Duration = Duration::from_secs(4 * 3_600);

#[test]
fn a_thousand_stopped_readers_leave_an_active_stream_its_rate() {
    a_thousand_readers_stop(Duration::from_secs(60));
}

#[test]
#[ignore = "4 hours of virtual time"]
fn a_thousand_readers_that_stop_for_hours_leave_an_active_stream_its_rate() {
    a_thousand_readers_stop(HOURS);
}

fn a_thousand_readers_stop(time: Duration) {
    let mut w = World::new(4, CLEAN, config());
    let mut feeder = Feeder::default();
    for _ in 0..1000 {
        let id = w.sides[0].open(w.now, origin()).unwrap();
        feeder.left.insert(id, (0, 100_000_000));
    }
    let mut most = [0; 2];
    w.run(time, |w| {
        feeder.feed(w.now, &mut w.sides[0]);
        most = [0, 1].map(|side| most[side].max(w.sides[side].memory_used()));
    });
    println!("{time}: {most:?} bytes of streams at most");
    let bound = 2 * w.config.memory.0;
    assert!(most.iter().all(|bytes| *bytes <= bound), "{most:?} of {bound}");
    while w.sides[1].poll_event().is_some() {}
    let active = w.sides[0].open(w.now, origin()).unwrap();
    feeder.left.insert(active, (0, 100_000_000));
    let mut drain = Drain::default();
    let mut each = |w: &mut World| {
        feeder.feed(w.now, &mut w.sides[0]);
        drain.drain(w.now, &mut w.sides[1]);
    };
    // With little memory free it starts at its reserve and earns more each round trip.
    w.run(Duration::from_secs(4), &mut each);
    let before = w.sides[1].stats().stream_bytes_out;
    w.run(Duration::from_secs(20), &mut each);
    let got = w.sides[1].stats().stream_bytes_out - before;
    let full = 20 * 20_000_000 / 8 * 1448 / 1500;
    assert!(got > full * 97 / 100, "{got} of {full} bytes");
}

#[test]
fn an_outage_stops_new_data_and_everything_resumes() {
    let mut w = World::new(6, Pipe { loss: 0.01, ..CLEAN }, config());
    let id = w.sides[0].open(w.now, origin()).unwrap();
    let (mut feeder, mut drain) = (Feeder::default(), Drain::default());
    feeder.left.insert(id, (0, 30_000_000));
    let each = |w: &mut World, feeder: &mut Feeder, drain: &mut Drain| {
        feeder.feed(w.now, &mut w.sides[0]);
        drain.drain(w.now, &mut w.sides[1]);
    };
    w.run(Duration::from_secs(3), |w| each(w, &mut feeder, &mut drain));
    w.dead = [true, true];
    w.run(Duration::from_secs(5), |w| each(w, &mut feeder, &mut drain));
    let before = w.wire_bytes[0];
    w.run(Duration::from_secs(3600), |w| each(w, &mut feeder, &mut drain));
    assert!(w.wire_bytes[0] - before < 200_000, "an hour of darkness costs few bytes");
    assert!(matches!(w.sides[0].health(), PathHealth::NothingReceived { .. }));
    w.dead = [false, false];
    w.run(Duration::from_secs(16), |w| each(w, &mut feeder, &mut drain));
    assert_eq!(drain.finished, [id]);
}

/// L-ST-5.
#[test]
fn a_reset_after_data_still_delivers_what_was_written() {
    let mut w = World::new(7, Pipe { loss: 0.2, ..CLEAN }, config());
    let id = w.sides[0].open(w.now, origin()).unwrap();
    let data: Vec<u8> = (0..50_000).map(|o| pattern(id, o)).collect();
    assert_eq!(w.sides[0].write(w.now, id, &data), 50_000);
    w.sides[0].reset(w.now, id, ResetReason::HostReset, true);
    w.sides[0].release(w.now, id);
    let (mut got, mut told) = (0, None);
    w.run(Duration::from_secs(60), |w| {
        while let Some(event) = w.sides[1].poll_event() {
            if let Event::Reset(_, reason) = event {
                told = Some(reason);
            }
        }
        while !w.sides[1].peek(id).is_empty() {
            let n = w.sides[1].peek(id).len();
            got += n;
            w.sides[1].consume(w.now, id, n);
        }
        if w.sides[1].recv_state(id) == RecvState::Reset(ResetReason::HostReset) {
            w.sides[1].release(w.now, id);
        }
    });
    assert_eq!((got, told), (50_000, Some(ResetReason::HostReset)));
    assert_eq!((w.sides[0].streams(), w.sides[1].streams()), (0, 0));
}

#[test]
fn datagrams_get_their_turn_beside_a_bulk_stream() {
    let mut w = World::new(8, CLEAN, config());
    let id = w.sides[0].open(w.now, origin()).unwrap();
    let (mut feeder, mut drain) = (Feeder::default(), Drain::default());
    feeder.left.insert(id, (0, 10_000_000));
    let mut sent = 0;
    let mut arrived = 0;
    w.run(Duration::from_secs(4), |w| {
        feeder.feed(w.now, &mut w.sides[0]);
        drain.drain(w.now, &mut w.sides[1]);
        while sent * 20 < w.now.as_nanos() / 1_000_000 {
            assert!(w.sides[0].send_datagram(w.now, &[7; 1500], &Label::default()));
            sent += 1;
        }
        while w.sides[1].take_datagram(|d| assert_eq!(d, [7; 1500])) {
            arrived += 1;
        }
    });
    assert!(sent - arrived < 20, "{arrived} of {sent}: only those still on their way are missing");
}

/// L-DG-4
#[test]
fn full_sized_datagrams_that_ask_for_less_than_half_get_it_beside_a_bulk_stream() {
    let mut w = World::new(8, CLEAN, config());
    let id = w.sides[0].open(w.now, origin()).unwrap();
    let (mut feeder, mut drain) = (Feeder::default(), Drain::default());
    feeder.left.insert(id, (0, 100_000_000));
    let (mut sent, mut refused, mut arrived) = (0, 0, 0);
    let each = config().send_rate.time_for(ByteCount(1500 * 100 / 45)).as_nanos();
    w.run(Duration::from_secs(10), |w| {
        feeder.feed(w.now, &mut w.sides[0]);
        drain.drain(w.now, &mut w.sides[1]);
        while sent * each < w.now.as_nanos() {
            sent += 1;
            let taken = w.sides[0].send_datagram(w.now, &[7; 1500], &Label::default());
            refused += u64::from(!taken);
        }
        while w.sides[1].take_datagram(|d| assert_eq!(d, [7; 1500])) {
            arrived += 1;
        }
    });
    assert_eq!(refused, 0, "{arrived} of {sent} arrived");
    assert!(arrived * 100 > sent * 90, "{arrived} of {sent}");
}
