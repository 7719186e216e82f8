//! Memory for streams that all peers share: each may take what it was promised as long as there is
//! some, and has a floor whatever the others take.
//!
//! Of thousands of peers few are active at a time, and nobody knows which. So what they are promised
//! is more than there is, and what they take is counted. Where all is taken, sessions that have more
//! than their floor get no more (L-CR-6): hosts' bytes for them wait, and the peer's that would take
//! memory count as lost packets, but for what each stream has in reserve.

use units::ByteCount;

use super::{Endpoint, PeerId};

/// What all peers may take together.
#[derive(Default)]
pub(super) struct SharedMemory {
    /// `None`: each has a part of its own.
    limit: Option<u64>,
    floor: u64,
    used: u64,
}

impl SharedMemory {
    /// A peer took so much, and now so much.
    fn count(&mut self, before: u64, now: u64) {
        self.used = self.used + now - before;
    }

    /// Is there none for a peer that has so much?
    fn is_short(&self, has: u64) -> bool {
        self.limit.is_some_and(|limit| self.used >= limit) && has >= self.floor
    }
}

impl Endpoint {
    /// All peers' streams together may take `limit`, however much each was promised, and each has
    /// at least `floor`. With `None` nothing is shared.
    pub fn share_memory(&mut self, limit: Option<ByteCount>, floor: ByteCount) {
        self.memory.limit = limit.map(|limit| limit.0);
        self.memory.floor = floor.0;
    }

    /// What all peers' streams take, as far as it was counted.
    pub fn memory_used(&self) -> ByteCount {
        ByteCount(self.memory.used)
    }

    /// Counts what a peer takes, and tells its session whether there is more.
    pub(super) fn count_memory(&mut self, id: PeerId) {
        let Some(peer) = self.peers[id.index()].as_deref_mut() else { return };
        let now = peer.session.memory_used();
        self.memory.count(std::mem::replace(&mut peer.memory, now), now);
        peer.session.set_short(self.memory.is_short(now));
    }

    /// A peer is no more.
    pub(super) fn forget_memory(&mut self, counted: u64) {
        self.memory.count(counted, 0);
    }
}
