//! What an authenticated peer's packets cost a node, whatever is in them: for each kind of frame
//! a peer that does its worst, in virtual time, against a whole relay with its keys.
//!
//! Processor time and memory are this thread's own. Times are those of a release build
//! (`make test-long`); what a debug build takes is bounded loosely.

mod attacks;
mod idle;
mod node;

use attacks::Attack;
use link::wire::{Frame, Reader};
use node::{MEMORY, Node, PACKET};

#[global_allocator]
static HEAP: os::heap::Counting = os::heap::Counting;

/// The most processor time for a packet, in µs, but for one in a thousand: the machine has other
/// work.
const MOST_US: u64 = if cfg!(debug_assertions) { 40_000 } else { 1_000 };
/// Beyond so much, which no peer can add to, and what a stream that is open may have (by which
/// `memory` limits their number), memory follows the bytes that came.
const FIXED: i64 = 1 << 20;
const PER_STREAM: i64 = 16 << 10;
/// What a piece may have of a stream that this node sent, which is acknowledged or lost by itself:
/// how many there are follows from what is in flight.
const PER_PIECE: i64 = 64;
const PER_BYTE: i64 = 4;

/// What an attack came to.
#[derive(Default)]
struct Cost {
    packets: u64,
    bytes: i64,
    /// Of each packet, in µs.
    times: Vec<u64>,
    most_memory: i64,
    /// Bytes held beyond [`FIXED`], [`PER_STREAM`] and [`PER_PIECE`] for each byte received, at the
    /// worst moment, in hundredths.
    per_byte: i64,
}

impl Cost {
    fn of(attack: &Attack, packets: u64) -> Cost {
        let mut node = Node::new((attack.config)());
        (attack.prepare)(&mut node);
        let mut cost = Cost { packets, ..Cost::default() };
        let mut payload = Vec::with_capacity(PACKET);
        cost.times.reserve(packets as usize);
        let begin = os::heap::held();
        for n in 0..packets {
            os::heap::begin();
            payload.clear();
            let hint = (attack.write)(&mut node, n, &mut payload);
            assert!(payload.len() <= PACKET, "{} bytes", payload.len());
            cost.times.push(node.receive(hint, &payload));
            cost.bytes += payload.len() as i64 + 20;
            let more = os::heap::most() - begin;
            cost.most_memory = cost.most_memory.max(more);
            let own = node.streams() * PER_STREAM + node.pieces * PER_PIECE;
            let rest = more - FIXED - own;
            cost.per_byte = cost.per_byte.max(rest * 100 / cost.bytes);
        }
        cost.times.sort_unstable();
        if attacks::chunks::MESSAGES.contains(&attack.name) {
            let [understood, others] = node.messages();
            let read = if attack.name.ends_with("at all") { others } else { understood };
            assert!(read >= packets, "{}: {read} messages of {packets} packets", attack.name);
        }
        cost
    }

    fn worst(&self) -> u64 {
        self.times[self.times.len() - 1 - self.times.len() / 1000]
    }

    fn check(&self, name: &str) -> Result<(), String> {
        let mean = self.times.iter().sum::<u64>() / self.packets;
        let (worst, memory) = (self.worst(), self.most_memory >> 10);
        let line = format!(
            "{name:>28}: {} packets, {mean} µs each, {worst} µs at worst ({} µs once), {memory} kB \
             at most, {}.{:02} bytes for each",
            self.packets,
            self.times[self.times.len() - 1],
            self.per_byte.max(0) / 100,
            self.per_byte.max(0) % 100
        );
        println!("{line}");
        let too_dear = worst > MOST_US;
        let too_large = self.per_byte > PER_BYTE * 100 || self.most_memory > MEMORY + FIXED;
        if too_dear || too_large { Err(line) } else { Ok(()) }
    }
}

fn check_all(packets: u64) {
    let only = std::env::var("ATTACK").unwrap_or_default();
    let mut faults = Vec::new();
    for attack in attacks::all().filter(|a| a.name.contains(&only)) {
        faults.extend(Cost::of(attack, packets).check(attack.name).err());
    }
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

#[test]
fn no_packet_of_a_peer_costs_more_than_its_part() {
    check_all(3_000);
}

/// Two minutes of a link of 20 Mbit/s.
#[test]
#[ignore = "takes minutes"]
fn no_packet_of_a_peer_that_goes_on_for_minutes_costs_more_than_its_part() {
    check_all(200_000);
}

/// A kind of frame that is new is named here, and has to have an attack.
#[test]
fn every_kind_of_frame_is_attacked() {
    let kind = |frame: &Frame<'_>| match frame {
        Frame::Ping => 0,
        Frame::State(_) => 1,
        Frame::StateOf(..) => 2,
        Frame::Floor(_) => 3,
        Frame::Recovered(_) => 4,
        Frame::Open(..) => 5,
        Frame::Packets(_) => 6,
        Frame::Messages(_) => 7,
        Frame::Accepted(_) => 8,
        Frame::Reset { .. } => 9,
        Frame::Credit(..) => 10,
        Frame::Challenge(_) => 11,
        Frame::Response(_) => 12,
        Frame::Close(_) => 13,
        Frame::Datagram(_) => 14,
        Frame::Headers(_) => 15,
        Frame::Fragment(_) => 16,
        Frame::Stream(_) => 17,
        Frame::Path(_) => 18,
        Frame::Use { .. } => 19,
    };
    let mut attacked = std::collections::BTreeSet::new();
    for attack in attacks::all() {
        let mut node = Node::new((attack.config)());
        (attack.prepare)(&mut node);
        for n in 0..2 {
            let mut payload = Vec::new();
            if (attack.write)(&mut node, n, &mut payload) == 0 {
                let mut reader = Reader::new(&payload);
                while let Ok(Some(frame)) = reader.frame() {
                    attacked.insert(kind(&frame));
                }
            }
        }
    }
    assert!(attacked.iter().copied().eq(0..20), "{attacked:?}");
}
