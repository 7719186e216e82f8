//! A peer that does its worst beside an honest one on the same shard: at the 20 Mbit/s of its link,
//! and at ten times that, which is more than the shard can take.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use bentpipe::admin::LinkStatus;
use link::wire::{Frame, Origin, ResetReason, StreamId, Target, Writer};
use os::netns::veth;

use crate::gateway::Keys;
use crate::harness::{LAN, Plan, World, root_alone, spaces, wait_for};
use crate::raw_peer::{RawPeer, push_varint};
use crate::tcp::{SERVER, joined, listen, pattern, read_to_end, send_all};

/// Where the hostile peer's connections go, and a port on which nobody is.
const SINK: ([u8; 4], u16) = ([10, 2, 0, 2], 7777);
const NOBODY: u16 = 7778;
const PACKET: usize = 1_350;
/// Of [`PACKET`] bytes at 20 Mbit/s, and at 200.
const OF_ITS_LINK: Duration = Duration::from_micros(560);
const FLOOD: Duration = Duration::from_micros(56);
const BYTES: usize = 12_000_000;
const KEYS: usize = 60;

/// Of the smallest packets, so many runs of so many at once: 500,000 a second.
const RUNS: usize = 8;
const CHEAP: usize = 64;
const CHEAP_SPACING: Duration = Duration::from_micros(1_024);

/// Packets that are dropped one by one before a flood is thinned, at most: 20,000 in each of 25
/// seconds, and some.
const DROPPED_UNTHINNED: u64 = 600_000;

const ROUNDS: usize = 5;

/// What an honest host has: bytes a second, and the echo of its second slowest keystroke of 60;
/// and of a processor, in the transfer, what its hub's shard ran and what it waited for one.
#[derive(Clone, Copy, Debug)]
struct Had {
    rate: f64,
    keystroke: Duration,
    ran: f64,
    waited: f64,
}

fn honest(world: &World, listener: &TcpListener, seed: u64) -> Had {
    let (mut near, far) = joined(&world.client, listener);
    let data = pattern(seed, BYTES);
    let (before, begin) = (world.b.ran_and_waited(), Instant::now());
    let sending = send_all(&far, data.clone());
    near.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    far.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    assert!(read_to_end(&mut near).0 == data, "the transfer is whole");
    let seconds = begin.elapsed().as_secs_f64();
    let after = world.b.ran_and_waited();
    let [ran, waited] = [0, 1].map(|n| (after[n] - before[n]).as_secs_f64() / seconds);
    sending.join().unwrap().unwrap();
    let (mut near, mut far) = joined(&world.client, listener);
    for stream in [&near, &far] {
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    }
    let mut times: Vec<Duration> = (0..KEYS).map(|_| keystroke(&mut near, &mut far)).collect();
    times.sort_unstable();
    let keystroke = times[KEYS - 1 - KEYS / 50];
    Had { rate: BYTES as f64 / seconds, keystroke, ran, waited }
}

fn median<T: Copy>(
    all: &[Had],
    of: impl Fn(&Had) -> T,
    order: fn(&T, &T) -> std::cmp::Ordering,
) -> T {
    let mut them: Vec<T> = all.iter().map(of).collect();
    them.sort_by(order);
    them[them.len() / 2]
}

fn keystroke(near: &mut TcpStream, far: &mut TcpStream) -> Duration {
    let begin = Instant::now();
    near.write_all(b"k").unwrap();
    far.read_exact(&mut [0]).unwrap();
    far.write_all(b"K").unwrap();
    near.read_exact(&mut [0]).unwrap();
    begin.elapsed()
}

/// Takes all that anybody sends, for as long as the test's network is there.
fn sink(world: &World) {
    let listener = listen(&world.server, "10.2.0.2:7777");
    listener.set_nonblocking(false).expect("a socket");
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || std::io::copy(&mut &stream, &mut std::io::sink()));
        }
    });
}

fn put(out: &mut Vec<u8>, frame: &Frame<'_>) {
    let len = out.len();
    out.resize(len + 64, 0);
    let mut writer = Writer::new(&mut out[len..]);
    assert!(writer.put(frame), "it fits");
    let written = writer.len();
    out.truncate(len + written);
}

fn open(id: u64, port: u16) -> Frame<'static> {
    let client = Some(([10, 66, 0, (id % 200) as u8], 40_000).into());
    let target = Target::Address((SINK.0, port).into());
    Frame::Open(StreamId(id), Origin { client, target, dscp: 0 })
}

/// Blocks of a compressed stream, of one byte each, that use 16 kB of history.
fn blocks(peer: &mut RawPeer, stream: u64, n: u64) {
    let id = peer.stream(2 * stream);
    let mut packet = Vec::new();
    let (offset, bytes) = match n {
        0..20 => {
            // A stored block of a kilobyte: history.
            let mut block = vec![0x80 | (1_000 << 2 >> 8) as u8, (1_000 << 2 & 255) as u8];
            block.resize(1_002, b'h');
            (n * 1_002, block)
        }
        // A block: its head, how much history, and a frame of zstd with one raw byte.
        _ => {
            let block = [6 << 2 | 2, 0x55, 0x20, 1, 0x09, 0, 0, b'x'];
            (20 * 1_002 + (n - 20) * 1_280, block.repeat(160))
        }
    };
    if n == 0 {
        put(&mut packet, &open(id, SINK.1));
    }
    packet.push(0x10 | 2 | 4);
    for n in [id, offset, bytes.len() as u64] {
        push_varint(&mut packet, n);
    }
    packet.extend_from_slice(&bytes);
    peer.say(&packet);
}

/// Tiny UDP packets, each of which the node gives to its kernel.
fn datagrams(peer: &mut RawPeer, n: u64) {
    let mut udp = [0; 28];
    udp[..10].copy_from_slice(&[0x45, 0, 0, 28, 0, 0, 0x40, 0, 64, 17]);
    udp[12..28].copy_from_slice(&[10, 66, 0, 9, 10, 2, 0, 2, 9, 9, 0, 9, 0, 8, 0, 0]);
    let mut packet = Vec::new();
    while packet.len() + udp.len() + 2 < PACKET {
        udp[15] = (n % 200) as u8;
        packet.extend_from_slice(&[0x0c, udp.len() as u8]);
        packet.extend_from_slice(&udp);
    }
    peer.say(&packet);
}

/// Streams to where nobody listens, and their resets.
fn opens(peer: &mut RawPeer, first: u64) -> u64 {
    let (mut packet, mut n) = (Vec::new(), 0);
    while packet.len() < PACKET - 60 {
        let id = peer.stream(2 * (first + n) + 1);
        put(&mut packet, &open(id, NOBODY));
        if n % 2 == 0 {
            let (id, reason) = (StreamId(id), ResetReason::HostReset);
            put(&mut packet, &Frame::Reset { id, reason, end: 0 });
        }
        n += 1;
    }
    peer.say(&packet);
    n
}

/// Goes on until told to stop, one packet every `spacing`. Counts packets, and what its own thread
/// takes of a processor, in microseconds.
fn attack(
    mut peer: RawPeer,
    spacing: Duration,
    on: &AtomicBool,
    over: &AtomicBool,
    [said, cpu]: [&AtomicU64; 2],
) {
    let mut next = Instant::now();
    let (mut stream, mut n, mut opened, mut tiny) = (0, 0, 0, 0);
    while !over.load(Ordering::Relaxed) {
        thread::sleep(next.saturating_duration_since(Instant::now()));
        next = (next + spacing).max(Instant::now() - Duration::from_millis(20));
        if !on.load(Ordering::Relaxed) {
            next = Instant::now() + Duration::from_millis(500);
            peer.say(&[0x01]);
            continue;
        }
        cpu.store(os::proc::thread_cpu().as_micros(), Ordering::Relaxed);
        // Beyond half of the places that there are, blocks would find none.
        if said.fetch_add(1, Ordering::Relaxed) % 16 == 15 && opened < 8_000 {
            opened += opens(&mut peer, opened);
            continue;
        }
        tiny += 1;
        if spacing == FLOOD && tiny % 4 != 0 {
            datagrams(&mut peer, tiny);
            continue;
        }
        blocks(&mut peer, stream, n);
        n += 1;
        if n == 300 {
            (stream, n) = (stream + 1, 0);
        }
    }
}

/// Goes on likewise with packets that cost next to nothing, and very many of them.
fn flood(mut peer: RawPeer, on: &AtomicBool, over: &AtomicBool, [said, cpu]: [&AtomicU64; 2]) {
    let mut next = Instant::now();
    while !over.load(Ordering::Relaxed) {
        thread::sleep(next.saturating_duration_since(Instant::now()));
        next = (next + CHEAP_SPACING).max(Instant::now() - Duration::from_millis(20));
        if !on.load(Ordering::Relaxed) {
            next = Instant::now() + Duration::from_millis(500);
            peer.say(&[0x01]);
            continue;
        }
        cpu.store(os::proc::thread_cpu().as_micros(), Ordering::Relaxed);
        (0..RUNS).for_each(|_| peer.say_often(&[0x01], CHEAP));
        said.fetch_add((RUNS * CHEAP) as u64, Ordering::Relaxed);
    }
}

#[test]
#[ignore = "takes a minute, and is about times"]
fn a_peer_that_floods_with_cheap_packets_leaves_an_honest_one_most_of_its_rate() {
    if !root_alone() {
        return;
    }
    let (world, evil, had) = beside(flood);
    println!("{:?}", evil.dropped);
    // What a shard has the time for it takes, all of it.
    let log = world.b.log();
    let is_thinned = log.contains("a flood of packets is thinned");
    let dropped: u64 = evil.dropped.values().sum();
    assert!(is_thinned || dropped < DROPPED_UNTHINNED, "{dropped} packets dropped: {log}");
    assert!(had.share >= 0.9, "the honest one has {:.2} of its rate", had.share);
}

#[test]
#[ignore = "takes a minute, and is about times"]
fn a_peer_that_does_its_worst_leaves_an_honest_one_its_rate_and_its_keystrokes() {
    if root_alone() {
        check_beside(OF_ITS_LINK);
    }
}

#[test]
#[ignore = "takes a minute, and is about times"]
fn a_peer_that_fills_the_processor_leaves_an_honest_one_its_rate_and_its_keystrokes() {
    if !root_alone() {
        return;
    }
    let (world, evil) = check_beside(FLOOD);
    let dropped = evil.dropped.get("over its part").copied().unwrap_or_default();
    println!("{dropped} packets dropped");
    assert!(dropped > 1_000, "{:?}", evil.dropped);
    let log = world.b.log();
    let lines = log.lines().filter(|l| l.contains("more than its part of the processor"));
    let told: Vec<_> = lines.collect();
    assert!((1..=5).contains(&told.len()) && told[0].contains("peer=evil"), "{told:?}");
    let honest = world.b.status().links.into_iter().find(|l| l.peer != "evil").expect("its link");
    assert_eq!(honest.dropped.get("over its part"), None, "nothing of the honest one's");
}

fn check_beside(spacing: Duration) -> (World, LinkStatus) {
    let (world, evil, had) =
        beside(move |peer, on, over, counts| attack(peer, spacing, on, over, counts));
    assert!(evil.receive.packets > 3_000 && evil.streams_total > 1_000, "it did its worst");
    assert!(had.share >= 0.9, "the honest one has {:.2} of its rate", had.share);
    assert!(had.later <= Duration::from_millis(50), "keystrokes take {:?} longer", had.later);
    (world, evil)
}

/// What an honest one has left: of its rate, and how much later its keystrokes come.
struct Left {
    share: f64,
    later: Duration,
}

fn beside(
    attack: impl FnOnce(RawPeer, &AtomicBool, &AtomicBool, [&AtomicU64; 2]) + Send + 'static,
) -> (World, LinkStatus, Left) {
    let evil = Keys::new();
    let mut plan = Plan::default();
    plan.b.listen = "0.0.0.0:4500".into();
    plan.b.peer = format!(
        "[[peer]]\nname = \"evil\"\npublic_key = \"{}\"\nroutes = [\"10.66.0.0/16\"]\n\
         allow = [\"10.2.0.0/24\"]\nsource = \"nat\"\n\
         link = {{ send = \"20Mbit\", receive = \"20Mbit\", delay = \"50ms\" }}\n",
        evil.public
    );
    let mut world = World::without_gateways(&plan);
    let (_, [place, ..]) = spaces();
    veth(&place, LAN, &world.gwb, "evil0").unwrap();
    place.address(LAN, "203.0.113.66/24").unwrap();
    world.gwb.address("evil0", "203.0.113.1/24").unwrap();
    world.b.start();
    world.a.start();
    sink(&world);
    let peer = RawPeer::connect(&place, &evil, world.b.keys(), "203.0.113.1:4500");
    world.a.wait_until_up();
    world.b.wait_until_up();
    assert_eq!(world.b.status().node.shards, 1);
    let [on, over] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
    let [said, took] = [(); 2].map(|()| Arc::new(AtomicU64::new(0)));
    let (begun, ended, count, used) = (on.clone(), over.clone(), said.clone(), took.clone());
    let attacker = thread::spawn(move || attack(peer, &begun, &ended, [&count, &used]));

    let listener = listen(&world.server, SERVER);
    honest(&world, &listener, 1);
    let (mut alone, mut beside) = (Vec::new(), Vec::new());
    for round in 1..=ROUNDS as u64 {
        alone.push(honest(&world, &listener, 10 * round));
        on.store(true, Ordering::Relaxed);
        let before = said.load(Ordering::Relaxed);
        wait_for("the attack", || {
            let n = said.load(Ordering::Relaxed) - before;
            (n > 500).then_some(()).ok_or(format!("{n} packets"))
        });
        let counts = || [&said, &took].map(|n| n.load(Ordering::Relaxed) as f64);
        let (before, begin) = (counts(), Instant::now());
        beside.push(honest(&world, &listener, 10 * round + 1));
        let (after, seconds) = (counts(), begin.elapsed().as_secs_f64());
        on.store(false, Ordering::Relaxed);
        println!(
            "alone {:?}\nbeside {:?}\n  by {:.0} packets a second, {:.0} % of a processor to make",
            alone[alone.len() - 1],
            beside[beside.len() - 1],
            (after[0] - before[0]) / seconds,
            (after[1] - before[1]) / seconds / 10_000.0
        );
    }
    let rate = |of: &[Had]| median(of, |had| had.rate, f64::total_cmp);
    let key = |of: &[Had]| median(of, |had| had.keystroke, Duration::cmp);
    let share = rate(&beside) / rate(&alone);
    let later = key(&beside).saturating_sub(key(&alone));
    println!(
        "medians of {ROUNDS}: {:.2} MB/s alone, {:.2} beside: {:.1} %; keystrokes {:?}, {:?}: \
         {later:?} later",
        rate(&alone) / 1e6,
        rate(&beside) / 1e6,
        share * 100.0,
        key(&alone),
        key(&beside)
    );
    for (when, had) in [("alone", &alone), ("beside", &beside)] {
        let [ran, waited] =
            [|had: &Had| had.ran, |had: &Had| had.waited].map(|of| median(had, of, f64::total_cmp));
        println!(
            "{when}, the shard runs {ran:.3} of the time and waits {waited:.3} for a processor"
        );
    }
    over.store(true, Ordering::Relaxed);
    attacker.join().unwrap();
    let evil = world.b.status().links.into_iter().find(|l| l.peer == "evil").expect("its link");
    println!(
        "{} packets, {} streams of the hostile peer's",
        evil.receive.packets, evil.streams_total
    );
    (world, evil, Left { share, later })
}
