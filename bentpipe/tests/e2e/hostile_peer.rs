//! A peer that does its worst, at 20 Mbit/s, beside an honest one on the same shard.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

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
/// Of [`PACKET`] bytes at 20 Mbit/s.
const SPACING: Duration = Duration::from_micros(560);
const BYTES: usize = 12_000_000;
const KEYS: usize = 60;

/// What an honest host has: bytes a second, and the echo of its second slowest keystroke of 60.
#[derive(Clone, Copy, Debug)]
struct Had {
    rate: f64,
    keystroke: Duration,
}

fn honest(world: &World, listener: &TcpListener, seed: u64) -> Had {
    let (mut near, far) = joined(&world.client, listener);
    let data = pattern(seed, BYTES);
    let begin = Instant::now();
    let sending = send_all(&far, data.clone());
    near.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    far.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    assert!(read_to_end(&mut near).0 == data, "the transfer is whole");
    let rate = BYTES as f64 / begin.elapsed().as_secs_f64();
    sending.join().unwrap().unwrap();
    let (mut near, mut far) = joined(&world.client, listener);
    for stream in [&near, &far] {
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    }
    let mut times: Vec<Duration> = (0..KEYS).map(|_| keystroke(&mut near, &mut far)).collect();
    times.sort_unstable();
    Had { rate, keystroke: times[KEYS - 1 - KEYS / 50] }
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

/// Blocks of a coded stream of one byte each that use 16 kB of history.
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

/// Goes on until told to stop, at the rate of its link.
fn attack(mut peer: RawPeer, on: &AtomicBool, over: &AtomicBool, said: &AtomicU64) {
    let mut next = Instant::now();
    let (mut stream, mut n, mut opened) = (0, 0, 0);
    while !over.load(Ordering::Relaxed) {
        thread::sleep(next.saturating_duration_since(Instant::now()));
        next = (next + SPACING).max(Instant::now() - Duration::from_millis(20));
        if !on.load(Ordering::Relaxed) {
            next = Instant::now() + Duration::from_millis(500);
            peer.say(&[0x01]);
            continue;
        }
        // Beyond half of the places that there are, blocks would find none.
        if said.fetch_add(1, Ordering::Relaxed) % 16 == 15 && opened < 8_000 {
            opened += opens(&mut peer, opened);
            continue;
        }
        blocks(&mut peer, stream, n);
        n += 1;
        if n == 300 {
            (stream, n) = (stream + 1, 0);
        }
    }
}

#[test]
#[ignore = "takes a minute, and is about times"]
fn a_peer_that_does_its_worst_leaves_an_honest_one_its_rate_and_its_keystrokes() {
    if !root_alone() {
        return;
    }
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
    let said = Arc::new(AtomicU64::new(0));
    let (begun, ended, count) = (on.clone(), over.clone(), said.clone());
    let attacker = thread::spawn(move || attack(peer, &begun, &ended, &count));

    let listener = listen(&world.server, SERVER);
    honest(&world, &listener, 1);
    let mut best = (0.0, Duration::MAX);
    for round in 1..=3 {
        let alone = honest(&world, &listener, 10 * round);
        on.store(true, Ordering::Relaxed);
        let before = said.load(Ordering::Relaxed);
        wait_for("the attack", || {
            let n = said.load(Ordering::Relaxed) - before;
            (n > 500).then_some(()).ok_or(format!("{n} packets"))
        });
        let (cpu, begin) = (world.b.cpu(), Instant::now());
        let beside = honest(&world, &listener, 10 * round + 1);
        let cpu = (world.b.cpu() - cpu).as_secs_f64() / begin.elapsed().as_secs_f64();
        on.store(false, Ordering::Relaxed);
        let (share, later) =
            (beside.rate / alone.rate, beside.keystroke.saturating_sub(alone.keystroke));
        println!(
            "alone {alone:?}, beside {beside:?}: {:.1} %, {later:?} later; the shard takes {:.0} % \
             of a processor",
            share * 100.0,
            cpu * 100.0
        );
        best = (f64::max(best.0, share), best.1.min(later));
    }
    over.store(true, Ordering::Relaxed);
    attacker.join().unwrap();
    let evil = world.b.status().links.into_iter().find(|l| l.peer == "evil").expect("its link");
    println!(
        "{} packets, {} streams of the hostile peer's",
        evil.receive.packets, evil.streams_total
    );
    assert!(evil.receive.packets > 3_000 && evil.streams_total > 1_000, "it did its worst");
    assert!(best.0 >= 0.9, "the honest one has {:.2} of its rate", best.0);
    assert!(best.1 <= Duration::from_millis(50), "keystrokes take {:?} longer", best.1);
}
