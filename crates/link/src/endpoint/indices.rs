//! Receiver indices, and which shard of a node gave one out.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::peer::PeerId;
use crate::keys::Entropy;

/// The shard, of `shards`, that gave out a receiver index: what shares no state shares the
/// indices by their remainder, which a program in the kernel can compute.
pub const fn shard_of(index: u32, shards: u32) -> u32 {
    index % shards
}

/// One shard of so many.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Place {
    pub(super) number: u32,
    pub(super) of: u32,
}

impl Place {
    /// An index near `index` that is this shard's; `None` beyond the largest of all.
    const fn own(self, index: u32) -> Option<u32> {
        (index - index % self.of).checked_add(self.number)
    }
}

/// Receiver indices: whose they are, and which are free.
pub(super) struct IndexTable {
    place: Place,
    owners: BTreeMap<u32, PeerId>,
    /// The same by their owners.
    of: BTreeSet<(PeerId, u32)>,
    /// Freed lately: not given out again yet, so that late packets meet nobody.
    resting: VecDeque<u32>,
    entropy: Entropy,
    /// How often those in use have changed.
    changes: u64,
}

/// Indices that rest.
const RESTING: usize = 256;
/// With more than this many in use at all shards, indices take 4 bytes instead of 2.
const SHORT_INDICES: usize = 16_384;

impl IndexTable {
    pub(super) fn new(entropy: Entropy, place: Place) -> IndexTable {
        let (owners, of) = (BTreeMap::new(), BTreeSet::new());
        IndexTable { place, owners, of, resting: VecDeque::new(), entropy, changes: 0 }
    }

    pub(super) fn owner(&self, index: u32) -> Option<PeerId> {
        self.owners.get(&index).copied()
    }

    /// The shard that an index is for, if that is another one than this, the first: what the
    /// kernel joined behind an initiation comes here, whosever it is. No other shard hands over.
    pub(super) fn elsewhere(&self, index: u32) -> Option<u32> {
        let shard = shard_of(index, self.place.of);
        // None is given out that takes one byte.
        (self.place.number == 0 && index > 0xff && shard != 0).then_some(shard)
    }

    pub(super) fn giver(&mut self, peer: PeerId) -> impl FnMut() -> u32 + '_ {
        move || loop {
            let draw = self.entropy.next_u32();
            let few = self.owners.len() < SHORT_INDICES / self.place.of as usize;
            let longest = if few { 0xffff } else { u32::MAX };
            let Some(index) = self.place.own(draw & longest) else { continue };
            let taken = self.owners.contains_key(&index) || self.resting.contains(&index);
            if index > 0xff && index <= longest && !taken {
                self.owners.insert(index, peer);
                self.of.insert((peer, index));
                self.changes += 1;
                return index;
            }
        }
    }

    /// Another number whenever those in use have changed.
    pub(super) fn changes(&self) -> u64 {
        self.changes
    }

    /// How many are in use.
    pub(super) fn len(&self) -> usize {
        self.owners.len()
    }

    /// Those in use, in their order.
    pub(super) fn known(&self) -> impl Iterator<Item = u32> + '_ {
        self.owners.keys().copied()
    }

    /// Those of a peer.
    pub(super) fn of(&self, peer: PeerId) -> impl Iterator<Item = u32> + '_ {
        self.of.range((peer, 0)..=(peer, u32::MAX)).map(|(_, index)| *index)
    }

    pub(super) fn free(&mut self, index: u32) {
        self.changes += 1;
        if let Some(peer) = self.owners.remove(&index) {
            self.of.remove(&(peer, index));
        }
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
        self.changes += 1;
        let indices: Vec<_> = self.of(peer).collect();
        for index in indices {
            self.owners.remove(&index);
            self.of.remove(&(peer, index));
        }
    }
}
