//! Receiver indices.

use std::collections::{BTreeMap, VecDeque};

use super::PeerId;
use crate::keys::Entropy;

/// Receiver indices: whose they are, and which are free.
pub(super) struct IndexTable {
    owners: BTreeMap<u32, PeerId>,
    /// Freed lately: not given out again yet, so that late packets meet nobody.
    resting: VecDeque<u32>,
    entropy: Entropy,
}

/// Indices that rest.
const RESTING: usize = 256;
/// With more than this many in use, indices take 4 bytes instead of 2.
const SHORT_INDICES: usize = 16_384;

impl IndexTable {
    pub(super) fn new(entropy: Entropy) -> IndexTable {
        IndexTable { owners: BTreeMap::new(), resting: VecDeque::new(), entropy }
    }

    pub(super) fn owner(&self, index: u32) -> Option<PeerId> {
        self.owners.get(&index).copied()
    }

    pub(super) fn giver(&mut self, peer: PeerId) -> impl FnMut() -> u32 + '_ {
        move || loop {
            let draw = self.entropy.next_u32();
            let index = if self.owners.len() < SHORT_INDICES { draw & 0xffff } else { draw };
            let taken = self.owners.contains_key(&index) || self.resting.contains(&index);
            if index > 0xff && !taken {
                self.owners.insert(index, peer);
                return index;
            }
        }
    }

    pub(super) fn free(&mut self, index: u32) {
        self.owners.remove(&index);
        self.resting.push_back(index);
        if self.resting.len() > RESTING {
            self.resting.pop_front();
        }
    }

    /// Indices in use, and those that rest.
    #[cfg(test)]
    pub(super) fn sizes(&self) -> [usize; 2] {
        [self.owners.len(), self.resting.len()]
    }

    pub(super) fn forget(&mut self, peer: PeerId) {
        self.owners.retain(|_, p| *p != peer);
    }
}
