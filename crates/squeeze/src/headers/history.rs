//! Learns by how much the fields of a flow grow from packet to packet.

use super::code::Deltas;
use super::shape::{MAX_FIELDS, Shape};

/// Packets further apart than this do not count for the deltas.
const NEAR: i32 = 64;
/// An identification counts as random after [`RANDOM`] jumps by more than this.
const JUMP: i32 = 4096;
const RANDOM: u8 = 4;

/// What a flow's packets showed so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct History {
    shape: Option<Shape>,
    last: [u32; MAX_FIELDS],
    deltas: Deltas,
    /// Deltas of the last pair of packets. A delta is used when two pairs in a row agree; the
    /// first pair's is used at once.
    seen: Deltas,
    pairs: u32,
    jumps: u8,
    /// Packets so far.
    pub count: u32,
}

impl History {
    /// Has it seen how packets of this shape follow each other?
    pub fn knows(&self, shape: &Shape) -> bool {
        self.shape == Some(*shape)
    }

    pub fn observe(&mut self, packet: &[u8], shape: &Shape) {
        self.count = self.count.wrapping_add(1);
        if self.shape != Some(*shape) {
            *self = History { shape: Some(*shape), count: self.count, ..History::default() };
        } else {
            let mut steps = 1;
            let mut is_near = true;
            for (i, field) in shape.fields().iter().enumerate() {
                let grown = field.difference(field.get(packet), self.last[i]);
                if i == 0 && shape.counts() {
                    steps = grown;
                    is_near = (1..=NEAR).contains(&grown);
                }
                if shape.id == Some(i) {
                    let jumps = grown.abs() > JUMP;
                    self.jumps = if jumps { self.jumps + 1 } else { self.jumps.saturating_sub(1) };
                    self.jumps = self.jumps.min(2 * RANDOM);
                }
                if field.width == 1 || !is_near || grown % steps != 0 {
                    continue;
                }
                let delta = grown / steps;
                if self.pairs == 0 || self.seen[i] == delta {
                    self.deltas[i] = delta;
                }
                self.seen[i] = delta;
            }
            self.pairs = self.pairs.saturating_add(u32::from(is_near));
        }
        for (last, field) in self.last.iter_mut().zip(shape.fields()) {
            *last = field.get(packet);
        }
    }

    pub fn deltas(&self) -> &Deltas {
        &self.deltas
    }

    pub fn has_random_id(&self) -> bool {
        self.jumps >= RANDOM
    }
}
