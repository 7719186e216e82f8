//! The end of what a direction has carried, as both sides keep it.

/// Content that later blocks may refer to.
#[derive(Debug, Default)]
pub(super) struct History {
    bytes: Vec<u8>,
    /// How much of the end may be referred to: the same on both sides, whatever more is
    /// in memory.
    held: usize,
    /// How much is kept, as the last block said.
    kept: usize,
}

/// Memory that is not given back for so little.
const SLACK: usize = 8 * 1024;

impl History {
    pub fn kept(&self) -> usize {
        self.kept
    }

    /// Bytes that a block may refer to.
    pub fn len(&self) -> usize {
        self.held
    }

    /// The last `n` bytes, or what there is of them.
    pub fn tail(&self, n: usize) -> &[u8] {
        &self.bytes[self.bytes.len() - n.min(self.held)..]
    }

    /// Room for `n` bytes behind what is kept, to be filled by the caller.
    pub fn extend(&mut self, n: usize) -> &mut [u8] {
        let at = self.bytes.len();
        self.bytes.reserve_exact(n);
        self.bytes.resize(at + n, 0);
        &mut self.bytes[at..]
    }

    /// The last `n` bytes, whether they are kept or not.
    pub fn last(&self, n: usize) -> &[u8] {
        &self.bytes[self.bytes.len() - n..]
    }

    /// Takes the last `n` bytes back.
    pub fn retract(&mut self, n: usize) {
        self.bytes.truncate(self.bytes.len() - n);
    }

    /// The last `n` bytes are new content; from now on so much is kept.
    pub fn commit(&mut self, n: usize, kept: usize) {
        self.held = (self.held + n).min(kept);
        self.kept = kept;
        // Moved to the front now and then, not for each block.
        if self.bytes.len() > self.held + kept / 2 {
            let from = self.bytes.len() - self.held;
            self.bytes.copy_within(from.., 0);
            self.bytes.truncate(self.held);
        }
        if self.bytes.capacity() > 2 * kept + SLACK {
            self.bytes.shrink_to(kept);
        }
    }

    /// Adds `content`, of which no more than `kept` is needed.
    pub fn push(&mut self, content: &[u8], kept: usize) {
        let content = &content[content.len().saturating_sub(kept)..];
        self.bytes.reserve_exact(content.len());
        self.bytes.extend_from_slice(content);
        self.commit(content.len(), kept);
    }

    /// Bytes of memory.
    #[cfg(test)]
    pub fn memory(&self) -> usize {
        self.bytes.capacity()
    }
}
