//! Two sessions over a pipe that loses, repeats and delays what it is told to, used in
//! any order, with or without packets that only a hostile peer would make.

use std::collections::{BTreeMap, BTreeSet};

use units::{BitRate, ByteCount, Duration, Instant};

use super::Bytes;
use crate::path::PathId;
use crate::session::{Carry, Compress, Event, Label, LinkConfig, Params, RecvState, Session};
use crate::wire::{
    FragmentFrame, Frame, Origin, ResetReason, StreamFrame, StreamId, Target, Writer,
};

const SEALING: u64 = 25;
const DELAY: Duration = Duration::from_millis(50);
/// Streams that one side opens at most; the rest of the bytes has other uses.
const STREAMS: usize = 24;

/// Whereto, its number, its hint and its plaintext.
type Packet = (usize, u64, u8, Vec<u8>);

struct World {
    now: Instant,
    sides: [Session; 2],
    flight: BTreeMap<(Instant, u64), Packet>,
    sequence: u64,
    seen: [BTreeSet<u64>; 2],
    /// Streams known to a side's user, with the bytes written and taken.
    streams: [BTreeMap<StreamId, (u64, u64)>; 2],
    /// Streams of which a side's bytes refer to chunks.
    refers: BTreeSet<(usize, StreamId)>,
    /// The next packets' fates: each byte serves once, then all arrive.
    fates: Vec<u8>,
    hostile: bool,
    stuck: u32,
    memory: u64,
}

/// Runs what `data` says. Without hostile packets everything must converge at the end.
pub fn sessions(data: &[u8]) {
    let mut bytes = Bytes(data);
    let mut world = World::new(&mut bytes);
    while !bytes.is_empty() {
        world.act(&mut bytes);
        world.settle();
    }
    if world.hostile {
        world.run(Duration::from_secs(3));
    } else {
        world.converge();
    }
}

fn pattern(id: StreamId, offset: u64) -> u8 {
    (offset.wrapping_mul(2_654_435_761).wrapping_add(id.0.wrapping_mul(97)) >> 11) as u8
}

fn origin() -> Origin {
    let target = Target::Address(([10, 2, 0, 2], 80).into());
    Origin { client: Some(([10, 1, 0, 2], 40_000).into()), target, dscp: 0 }
}

impl World {
    fn new(bytes: &mut Bytes<'_>) -> World {
        let mtu = [128, 300, 1500, 9000][usize::from(bytes.u8() % 4)];
        let rate = [2_400, 64_000, 20_000_000, 500_000_000][usize::from(bytes.u8() % 4)];
        let memory = [1 << 16, 1 << 20, 1 << 24][usize::from(bytes.u8() % 3)];
        let config = LinkConfig {
            send_rate: BitRate::from_bps(rate),
            rate_mode: Default::default(),
            receive_rate: BitRate::from_bps(rate),
            rtt: Duration::from_millis(100),
            mtu,
            packet: mtu,
            queue: crate::session::NEARLY_EMPTY,
            bit_errors: units::Ratio::ZERO,
            overhead: u16::from(bytes.u8() % 2) * 40,
            memory: ByteCount(memory),
            stream_buffer: None,
            max_streams: [3, 100][usize::from(bytes.u8() % 2)],
            headers: true,
            history: ByteCount([0, 1 << 20][usize::from(bytes.u8() % 2)]),
            dedup: true,
            facts: Default::default(),
            classes: Vec::new(),
        };
        let now = Instant::from_nanos(1);
        let mut sides = [0, 1].map(|side| Session::new(now, config.clone(), side));
        let (params, v6) = (sides[0].params(), bytes.u8() % 2 == 1);
        for side in &mut sides {
            side.set_peer(params);
            side.first_mut().set_ipv6(v6);
        }
        World {
            now,
            sides,
            flight: BTreeMap::new(),
            sequence: 0,
            seen: Default::default(),
            streams: Default::default(),
            refers: BTreeSet::new(),
            fates: Vec::new(),
            hostile: false,
            stuck: 0,
            memory,
        }
    }

    fn act(&mut self, bytes: &mut Bytes<'_>) {
        let op = bytes.u8();
        let side = usize::from(op >> 7);
        let now = self.now;
        match op % 32 {
            0 | 1 => self.open(side),
            2..=6 => self.write(side, bytes),
            7 => self.each(side, bytes, |s, id| s.finish(now, id)),
            8 => self.each(side, bytes, |s, id| s.reset(now, id, ResetReason::HostReset, true)),
            9 => self.each(side, bytes, |s, id| s.reset(now, id, ResetReason::Refused, false)),
            10 => self.release(side, bytes),
            11 => match op >> 5 & 3 {
                0 => self.each(side, bytes, |s, id| s.accept(id)),
                1 | 2 => self.refer(side, bytes),
                _ => self.say(side, bytes),
            },
            12..=14 => {
                let (id, max) = (self.pick(side, bytes), bytes.number());
                self.take(side, id, max);
            }
            15 => self.send_datagram(side, bytes),
            16 => while self.sides[side].take_datagram(|_| {}) {},
            17..=21 => self.run(Duration::from_millis(1 << (bytes.u8() % 14))),
            22 => self.fates.extend_from_slice(bytes.take(usize::from(op >> 5 & 3) * 4 + 1)),
            23 => self.sides[side].ping(),
            24 => {
                let rate = BitRate::from_bps(2_400 + (bytes.number() & 0xfff_ffff));
                self.sides[side].set_send_rate(self.now, rate);
            }
            25 => self.inject_raw(side, bytes),
            26..=29 => self.inject(side, bytes),
            30 => self.offer(side, bytes),
            _ => {
                self.hostile = true; // What is open will not converge.
                self.sides[side].close(ResetReason::ShuttingDown);
            }
        }
    }

    /// A UDP packet of some flow, in the open or in order, with headers and a payload that may
    /// be coded; or something that is no packet.
    fn send_datagram(&mut self, side: usize, bytes: &mut Bytes<'_>) {
        let (how, flow, len) = (bytes.u8(), bytes.u8() % 4, usize::from(bytes.u16()) % 9001);
        let mut packet = vec![7; len];
        if how & 1 == 0 && len >= 28 {
            let total = (len as u16).to_be_bytes();
            packet[..10].copy_from_slice(&[0x45, 0, total[0], total[1], 0, 0, 64, 0, 64, 17]);
            let udp = (len as u16 - 20).to_be_bytes();
            packet[12..28].copy_from_slice(&[
                10, 1, 0, flow, 10, 2, 0, 2, 9, flow, 7, 7, udp[0], udp[1], 0, 0,
            ]);
        }
        let carry = match how >> 1 & 3 {
            0 | 1 => Carry::Plain,
            _ => Carry::Ordered,
        };
        let label = Label {
            flow: u32::from(flow),
            host: Some([10, 1, 0, flow].into()),
            carry,
            compress: [Compress::All, Compress::Headers, Compress::Nothing]
                [usize::from(how >> 3) % 3],
            ..Label::default()
        };
        self.sides[side].send_datagram(self.now, &packet, &label);
    }

    fn open(&mut self, side: usize) {
        if self.streams[side].len() < STREAMS
            && let Some(id) = self.sides[side].open(self.now, origin())
        {
            self.streams[side].insert(id, (0, 0));
        }
    }

    fn pick(&self, side: usize, bytes: &mut Bytes<'_>) -> StreamId {
        let n = usize::from(bytes.u8());
        let known = &self.streams[side];
        known.keys().nth(n % known.len().max(1)).copied().unwrap_or(StreamId(n as u64))
    }

    fn each(
        &mut self,
        side: usize,
        bytes: &mut Bytes<'_>,
        act: impl FnOnce(&mut Session, StreamId),
    ) {
        let id = self.pick(side, bytes);
        if self.streams[side].contains_key(&id) {
            act(&mut self.sides[side], id);
        }
    }

    /// Bytes that refer to chunks.
    fn refer(&mut self, side: usize, bytes: &mut Bytes<'_>) {
        let id = self.pick(side, bytes);
        if self.write_some(side, id, bytes) > 0 {
            self.sides[side].mark_referring(id);
            self.refers.insert((side, id));
        }
    }

    fn write(&mut self, side: usize, bytes: &mut Bytes<'_>) {
        let id = self.pick(side, bytes);
        self.write_some(side, id, bytes);
    }

    fn write_some(&mut self, side: usize, id: StreamId, bytes: &mut Bytes<'_>) -> u64 {
        let len = u64::from(bytes.u16());
        let Some((written, _)) = self.streams[side].get_mut(&id) else { return 0 };
        let data: Vec<u8> = (*written..*written + len).map(|at| pattern(id, at)).collect();
        let room = self.sides[side].writable_bytes(id);
        let taken = self.sides[side].write(self.now, id, &data) as u64;
        assert!(taken <= len && taken <= room);
        *written += taken;
        taken
    }

    fn release(&mut self, side: usize, bytes: &mut Bytes<'_>) {
        let id = self.pick(side, bytes);
        if self.streams[side].remove(&id).is_some() {
            self.sides[side].release(self.now, id);
        }
    }

    fn take(&mut self, side: usize, id: StreamId, max: u64) {
        if self.refers.contains(&(1 - side, id)) {
            self.sides[side].mark_referred(id);
        }
        let Some((_, taken)) = self.streams[side].get_mut(&id) else { return };
        let mut left = max;
        loop {
            let piece = self.sides[side].peek(id);
            let n = piece.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            if n == 0 {
                return;
            }
            if !self.hostile {
                let good = (*taken..).zip(&piece[..n]).all(|(at, b)| *b == pattern(id, at));
                assert!(good, "{id:?} at {taken}");
            }
            *taken += n as u64;
            left -= n as u64;
            self.sides[side].consume(self.now, id, n);
        }
    }

    /// Messages about chunks, and what came of the other side's.
    fn say(&mut self, side: usize, bytes: &mut Bytes<'_>) {
        let now = self.now;
        self.sides[side].take_messages(now, |_| {});
        if self.sides[side].has_message_room() {
            self.sides[side].send_messages(now, &vec![5; usize::from(bytes.u16())]);
        }
        if bytes.u8() == 77 {
            self.hostile = true; // An honest peer's messages are never refused.
            self.sides[side].refuse_messages(now);
        }
    }

    /// Parameters of any size, and the other address family.
    fn offer(&mut self, side: usize, bytes: &mut Bytes<'_>) {
        self.hostile = true;
        let params = Params {
            mtu: bytes.number(),
            stream_window: bytes.number(),
            total_window: bytes.number(),
            reserve: bytes.number(),
            contexts: bytes.number(),
            history: bytes.number(),
            dedup: u64::from(side == 0),
            told: None,
        };
        if let Some(params) = Params::decode(&params.encode()) {
            self.sides[side].set_peer(params);
            self.sides[side].first_mut().set_ipv6(bytes.u8() & 1 == 0);
        }
    }

    fn inject_raw(&mut self, side: usize, bytes: &mut Bytes<'_>) {
        let (jump, hint, len) = (bytes.number(), bytes.u8() % 8, usize::from(bytes.u8()));
        let payload = bytes.take(len).to_vec();
        self.deliver_forged(side, jump, hint, &payload);
    }

    /// Frames that can be read, with numbers that hurt.
    fn inject(&mut self, side: usize, bytes: &mut Bytes<'_>) {
        let jump = bytes.number();
        let mut buf = [0; 2048];
        let mut writer = Writer::new(&mut buf);
        for _ in 0..=bytes.u8() % 8 {
            let id = match bytes.u8() % 4 {
                0 => StreamId(bytes.number()),
                _ => self.pick(side, bytes),
            };
            let zeros = [0; 200];
            let data = &zeros[..usize::from(bytes.u8()) % 200];
            let near = self.streams[side].get(&id).map_or(0, |(written, taken)| written + taken);
            let (offset, fin) = (near.saturating_add(bytes.number()), bytes.u8() & 3 == 0);
            let frame = match bytes.u8() % 12 {
                0 => Frame::Ping,
                1 => Frame::Floor(offset),
                2 => Frame::Open(id, origin()),
                3 => Frame::Accepted(id),
                4 => Frame::Reset { id, reason: ResetReason::Protocol, end: offset },
                5 => Frame::Credit(id, offset),
                6 => Frame::Challenge(offset),
                7 if fin => Frame::Messages(id),
                7 if offset & 1 == 0 => Frame::Packets(id),
                7 => Frame::Fragment(FragmentFrame { id: id.0, total: 9000, offset: 0, data }),
                8 => {
                    let top = self.sides[side].first().next_number();
                    let hi = top.saturating_sub(1 + offset % 40);
                    let run = hi.saturating_sub(bytes.number())..hi + 1;
                    let delay = Duration::from_nanos(offset);
                    writer.state(None, [run].iter(), 0, delay, Instant::from_nanos(offset), 2000);
                    continue;
                }
                _ => Frame::Stream(StreamFrame { id, offset: offset % (1 << 61), fin, data }),
            };
            writer.put(&frame);
        }
        let len = writer.len();
        self.deliver_forged(side, jump, 0, &buf[..len]);
    }

    fn deliver_forged(&mut self, side: usize, jump: u64, hint: u8, payload: &[u8]) {
        self.hostile = true;
        let highest = self.seen[side].last().map_or(0, |n| n + 1);
        let number = highest.saturating_add(jump % 5000).min((1 << 62) - 1);
        if self.seen[side].insert(number) {
            self.sides[side].handle_packet(
                self.now,
                self.now,
                (PathId::FIRST, number),
                hint,
                payload,
                &mut |_| {},
            );
        }
    }

    /// What an owner does after every change.
    fn settle(&mut self) {
        for side in 0..2 {
            while let Some(event) = self.sides[side].poll_event() {
                if let Event::Opened(id, _) = event {
                    self.streams[side].insert(id, (0, 0));
                }
            }
            self.transmit(side);
            let session = &self.sides[side];
            let bound = 2 * self.memory + session.streams() as u64 * (96 << 10) + (1 << 18);
            let used = session.memory_used();
            assert!(used <= bound, "{used} bytes held, {bound} at most");
        }
    }

    fn transmit(&mut self, side: usize) {
        let room = self.sides[side].first().max_packet() - SEALING as usize;
        let mut buf = vec![0; room];
        while let Some(built) =
            self.sides[side].poll_packet(self.now, PathId::FIRST, &mut buf, SEALING)
        {
            assert!(built.len > 0 && built.len <= room);
            let fate = self.fates.pop().unwrap_or(255);
            let copies = [0, 0, 2, 1][usize::from(fate % 4)];
            for copy in 0..copies {
                self.sequence += 1;
                let late = if fate == 255 { 0 } else { u64::from(fate >> 2) * (copy + 1) };
                let at = self.now + DELAY + Duration::from_millis(late);
                let packet = (1 - side, built.number, built.hint, buf[..built.len].to_vec());
                self.flight.insert((at, self.sequence), packet);
            }
        }
    }

    fn run(&mut self, d: Duration) {
        let until = self.now + d;
        loop {
            self.settle();
            let now = self.now;
            let timers = self.sides.iter().filter_map(|s| s.poll_timeout(now));
            let arrival = self.flight.keys().next().map(|(at, _)| *at);
            let Some(next) = timers.chain(arrival).min().filter(|at| *at <= until) else { break };
            self.stuck = if next <= now { self.stuck + 1 } else { 0 };
            let timers = || self.sides.each_ref().map(|s| s.timers(now));
            assert!(self.stuck < 200, "time stands still: {:?}", timers());
            self.now = next.max(now);
            self.arrive();
            for side in &mut self.sides {
                side.handle_timeout(self.now);
            }
        }
        self.now = until.max(self.now);
    }

    fn arrive(&mut self) {
        while let Some(entry) = self.flight.first_entry() {
            if entry.key().0 > self.now {
                return;
            }
            let (to, number, hint, payload) = entry.remove();
            if self.seen[to].insert(number) {
                self.sides[to].handle_packet(
                    self.now,
                    self.now,
                    (PathId::FIRST, number),
                    hint,
                    &payload,
                    &mut |_| {},
                );
            }
        }
    }

    /// Both users read on and close what they know, the pipe is sound: nothing may be left.
    fn converge(&mut self) {
        self.fates.clear();
        for side in &mut self.sides {
            side.set_send_rate(self.now, BitRate::from_mbps(100));
        }
        for _ in 0..400 {
            for side in 0..2 {
                let ids: Vec<StreamId> = self.streams[side].keys().copied().collect();
                for id in ids {
                    self.take(side, id, u64::MAX);
                    self.sides[side].finish(self.now, id);
                    if self.sides[side].recv_state(id) != RecvState::Open {
                        self.streams[side].remove(&id);
                        self.sides[side].release(self.now, id);
                    }
                }
            }
            self.run(Duration::from_millis(500));
            // What is taken now is told to the other side in the next round.
            let mut taken = false;
            for side in &mut self.sides {
                while side.take_datagram(|_| {}) {}
                side.take_messages(self.now, |_| taken = true);
            }
            if !taken && self.sides.iter().all(|s| s.is_quiet() && !s.has_events()) {
                break;
            }
        }
        for side in &self.sides {
            assert!(side.is_quiet(), "something is left: {side:?}");
            assert_eq!(side.memory_used(), 0);
            assert_eq!(side.credit_in_use(), (0, 0), "credit leaks");
            assert_eq!(side.stats().violations, 0, "both were honest");
        }
    }
}
