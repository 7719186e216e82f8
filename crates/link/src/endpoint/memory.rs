//! Memory for streams that all peers share: each may take what it was promised as long as there is
//! some, and has a floor whatever the others take.
//!
//! Of thousands of peers few are active at a time, and nobody knows which. So what they are
//! promised is more than there is, and what they take is counted. Where all is taken, sessions that
//! have more than their floor get no more (L-CR-6): hosts' bytes for them wait, and the peer's that
//! would take memory count as lost packets, but for what each stream has in reserve.

use units::ByteCount;

/// What all peers may take together.
#[derive(Default)]
pub(super) struct SharedMemory {
    /// `None`: each has a part of its own.
    limit: Option<u64>,
    floor: u64,
    used: u64,
}

impl SharedMemory {
    /// All may take `limit` together, and each has at least `floor`.
    pub fn share(&mut self, limit: Option<ByteCount>, floor: ByteCount) {
        self.limit = limit.map(|limit| limit.0);
        self.floor = floor.0;
    }

    /// What all take, as far as it was counted.
    pub fn used(&self) -> ByteCount {
        ByteCount(self.used)
    }

    /// A peer took so much, and now so much.
    pub fn count(&mut self, before: u64, now: u64) {
        self.used = self.used + now - before;
    }

    /// Is there none for a peer that has so much?
    pub fn is_short(&self, has: u64) -> bool {
        self.limit.is_some_and(|limit| self.used >= limit) && has >= self.floor
    }
}
