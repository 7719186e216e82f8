//! What the fuzzers call; see `fuzz/`.

use std::sync::Arc;

use link::session::LinkConfig;
use link::wire::{Origin, Target};
use squeeze::dedup::disk::Disk;
use squeeze::dedup::{Keys, Limits};
use units::{ByteCount, Duration, Rng};

use crate::gateways::{Gateways, PEER, address, link};
use crate::{Action, FlowId, ResetReason, Share};

const LIMITS: Limits = Limits {
    memory: 64 << 10,
    disk: 1 << 20,
    sources: 64 << 10,
    assembling: 64 << 10,
    chunks: 300,
};
/// Connections at once.
const MOST: usize = 6;
/// What hosts send is of this, so that it comes again.
const CONTENT: usize = 200_000;

/// One connection: its ends, what each host sent and got, and whether its bytes are a sender's.
struct Connection {
    ends: [FlowId; 2],
    sent: [Vec<u8>; 2],
    got: [usize; 2],
    honest: bool,
}

struct World {
    g: Gateways,
    disks: [Disk; 2],
    connections: Vec<Connection>,
    content: Vec<u8>,
    epoch: u64,
}

/// Two gateways that deduplicate, hosts that send, take, end and reset when they like, a link
/// that fails for a while, stores that lose what they hold, and a far gateway that says by
/// messages and on streams whatever it likes. Nothing panics, what is kept is bounded, and no
/// host gets what its peer did not send.
///
/// The input is a sequence of operations: kind, number (2 bytes), and for some of them as many
/// bytes.
pub(crate) fn peer(mut bytes: &[u8]) {
    let history = match bytes.split_first() {
        Some((first, rest)) => {
            bytes = rest;
            if first & 1 == 0 { 0 } else { 1 << 20 }
        }
        None => 0,
    };
    let mut world = World::new(history);
    for _ in 0..200 {
        let [kind, high, low, rest @ ..] = bytes else { break };
        let n = usize::from(u16::from_be_bytes([*high, *low]));
        bytes = rest;
        let takes = matches!(kind % 14, 5..=7);
        let piece = if takes { &rest[..n.min(rest.len())] } else { &[] };
        bytes = &bytes[piece.len()..];
        world.act(*kind, n, piece);
        world.check();
    }
    world.pass(Duration::from_secs(3));
    world.take();
    world.check();
}

impl World {
    fn new(history: u64) -> World {
        let config = LinkConfig { dedup: true, history: ByteCount(history), ..link() };
        let g = Gateways::apart([config.clone(), config], |policy| policy.dedup = Share::Lan);
        let mut content = vec![0; CONTENT];
        Rng::new(1).fill(&mut content);
        let disks = [Disk::default(), Disk::default()];
        let mut world = World { g, disks, connections: Vec::new(), content, epoch: 9 };
        for side in 0..2 {
            let relay = &mut world.g.sides[side];
            let secret = relay.endpoint.chunk_secret(PEER).expect("a peer");
            let dedup = world.disks[side].recover(&Arc::new(Keys::new(&secret)), &LIMITS, 9);
            relay.set_dedup(PEER, dedup);
        }
        world.g.meet();
        world
    }

    fn act(&mut self, kind: u8, n: usize, piece: &[u8]) {
        let side = usize::from(kind >> 7);
        let now = self.g.now;
        let count = self.connections.len().max(1);
        match kind % 14 {
            0 => self.connect(n as u8),
            1..=3 => self.send(side, n % count, n),
            4 => self.take(),
            5 => {
                let Some(c) = self.connections.get_mut(n % count) else { return };
                c.honest = false;
                let flow = c.ends[1];
                let Some(f) = self.g.sides[1].flows.get(flow) else { return };
                if let Some(session) = self.g.sides[1].endpoint.session_mut(PEER) {
                    session.write_compressed(now, f.stream, piece);
                }
            }
            6 | 7 => {
                let Some(session) = self.g.sides[1].endpoint.session_mut(PEER) else { return };
                if !session.has_message_room() {
                    return;
                }
                if kind % 14 == 6 && !piece.is_empty() {
                    // The length, as a varint of two bytes.
                    let len = piece.len().min(16_383) as u16 | 0x8000;
                    session.send_messages(now, &len.to_be_bytes());
                }
                session.send_messages(now, &piece[..piece.len().min(16_383)]);
            }
            8 => self.serve(side, n),
            9 => {
                self.epoch += 1 + n as u64;
                let epoch = if n & 1 == 0 { 9 } else { self.epoch };
                self.g.sides[side].serve_files(PEER, |dedup| {
                    dedup.receiver.rebuild(epoch);
                    true
                });
            }
            10 => {
                if let Some(c) = self.connections.get(n % count) {
                    self.g.sides[side].local_end(now, c.ends[side]);
                }
            }
            11 => {
                let Some(c) = self.connections.get(n % count) else { return };
                let flow = c.ends[side];
                match n / 8 % 3 {
                    0 => self.g.sides[side].local_reset(now, flow, ResetReason::HostReset),
                    1 => self.g.sides[side].connect_failed(now, flow, ResetReason::Refused),
                    _ => self.g.sides[side].closed(now, flow),
                }
                if n / 8 % 4 == 3 {
                    self.connections.remove(n % count);
                }
            }
            12 => self.dark(side, Duration::from_millis(n as u64 % 500)),
            _ => self.pass(Duration::from_millis(n as u64 % 200 + 1)),
        }
    }

    fn connect(&mut self, host: u8) {
        let origin = Origin {
            client: Some(([10, 1, 0, host], 40_000).into()),
            target: Target::Address(([10, 2, 0, 1], 5432).into()),
            dscp: 0,
        };
        if self.connections.len() >= MOST {
            self.connections.remove(0);
        }
        let Some(near) = self.g.sides[0].open(self.g.now, PEER, origin) else { return };
        self.pass(Duration::from_millis(30));
        let Some(far) = self.g.asked.pop() else { return };
        self.g.sides[1].connected(far);
        let (sent, got) = Default::default();
        self.connections.push(Connection { ends: [near, far], sent, got, honest: true });
    }

    /// A host sends some of the content.
    fn send(&mut self, side: usize, at: usize, n: usize) {
        let Some(c) = self.connections.get_mut(at) else { return };
        let from = n * 37 % CONTENT;
        let most = self.g.sides[side].writable_bytes(self.g.now, c.ends[side]);
        let piece = &self.content[from..(from + n).min(CONTENT)];
        let piece = &piece[..piece.len().min(most)];
        let taken = self.g.sides[side].local_data(self.g.now, c.ends[side], piece);
        c.sent[side].extend_from_slice(&piece[..taken]);
    }

    /// All hosts take what there is for them.
    fn take(&mut self) {
        for c in &mut self.connections {
            for side in 0..2 {
                loop {
                    let mut slices: [&[u8]; 3] = [&[]; 3];
                    let n = self.g.sides[side].outgoing(self.g.now, c.ends[side], &mut slices);
                    let shown = slices[..n].concat();
                    if shown.is_empty() {
                        break;
                    }
                    let from = c.got[side];
                    c.got[side] += shown.len();
                    if c.honest || side == 1 {
                        let sent = &c.sent[1 - side];
                        assert!(sent.get(from..c.got[side]) == Some(&shown[..]), "other bytes");
                    }
                    self.g.sides[side].wrote(self.g.now, c.ends[side], shown.len());
                }
                let _ = self.g.sides[side].outgoing_state(c.ends[side]);
            }
        }
    }

    /// Files that work, take only so much, do not answer, or rot.
    fn serve(&mut self, side: usize, n: usize) {
        let disk = &mut self.disks[side];
        disk.room = (n % 5 == 1).then_some(n);
        if n % 5 == 2
            && let Some(byte) = disk.anywhere(&mut Rng::new(n as u64))
        {
            *byte ^= 0x40;
        }
        self.g.sides[side].serve_files(PEER, |dedup| {
            dedup.receiver.set_late(n % 5 == 3);
            dedup.receiver.store.flush();
            disk.serve(dedup);
            true
        });
    }

    fn pass(&mut self, time: Duration) {
        self.g.pass(time);
        for action in std::mem::take(&mut self.g.others) {
            match action {
                Action::PeerReset(flow, _) => self.g.sides[0].closed(self.g.now, flow),
                Action::Abort(..) | Action::Read(_) | Action::Write(_) => {}
                Action::Connect { .. }
                | Action::ServiceConnect { .. }
                | Action::ServiceRefused(..)
                | Action::Accepted(_)
                | Action::ToClient(_)
                | Action::ToHost(_) => {}
            }
        }
    }

    /// What `side` sends is lost.
    fn dark(&mut self, side: usize, time: Duration) {
        let until = self.g.now + time;
        let mut buf = [0; 2048];
        while self.g.now < until {
            self.g.now += Duration::from_millis(1);
            for from in 0..2 {
                self.g.sides[from].handle_timeout(self.g.now);
                while let Some(t) = self.g.sides[from].poll_transmit(self.g.now, &mut buf) {
                    if from != side {
                        let (now, packet) = (self.g.now, &mut buf[..t.len]);
                        self.g.sides[1 - from].handle_carrier(now, now, address(from), packet);
                    }
                }
                self.g.act(from);
            }
        }
    }

    fn check(&mut self) {
        for side in 0..2 {
            let mut sizes = (0, 0);
            self.g.sides[side].serve_files(PEER, |dedup| {
                let (memory, disk) = dedup.receiver.store.size();
                assert!(memory <= 2 * LIMITS.memory && disk <= LIMITS.disk);
                sizes = (dedup.sender.sources(), memory);
                false
            });
            assert!(sizes.0 <= LIMITS.sources, "{sizes:?}");
            // A timer that has passed is gone when it was handled.
            let now = self.g.now;
            self.g.sides[side].handle_timeout(now);
            let due = self.g.sides[side].codecs.poll_timeout();
            assert!(due.is_none_or(|at| at > now), "it would be handled for ever");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_corpus_of_deduplicating_peers_replays() {
        // L-DD-10
        corpus::replay("dedup-peer", peer);
    }

    /// Random operations, most of them honest.
    #[test]
    fn no_order_of_events_between_two_gateways_brings_other_bytes() {
        let mut rng = Rng::new(12);
        for _ in 0..150 {
            let mut input = vec![rng.below(256) as u8];
            for _ in 0..rng.below(80) {
                let likely = [0, 1, 2, 3, 4, 4, 8, 8, 9, 10, 11, 12, 13, 13, 13, 13, 1, 2];
                let kind = match rng.below(20) {
                    0 => 5 + rng.below(3) as u8,
                    _ => likely[rng.below(18) as usize],
                };
                let n = rng.below(if kind == 5 || kind == 6 || kind == 7 { 60 } else { 65_536 });
                input.push(kind + if rng.below(2) == 0 && kind >= 2 { 126 } else { 0 });
                input.extend((n as u16).to_be_bytes());
                if (5..8).contains(&kind) {
                    let byte = |rng: &mut Rng| [0, 1, 2, 3, 5, 9, 66, 255][rng.below(8) as usize];
                    input.extend((0..n).map(|_| byte(&mut rng)));
                }
            }
            peer(&input);
        }
    }
}
