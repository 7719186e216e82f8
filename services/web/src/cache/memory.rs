//! Answers in memory: those used last, whole.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

use super::{Asked, Digest, Stored, parts_of};

/// What an answer counts for beside its body and fields.
const OVERHEAD: usize = 512;
/// Answers to one target that are told apart by `Vary`.
const VARIANTS: usize = 8;

/// Answers with their bodies, within a limit; the least recently used go first.
#[derive(Debug)]
pub struct Memory {
    targets: BTreeMap<Digest, Vec<Slot>>,
    /// By when they were used last.
    by_use: BTreeMap<u64, (Digest, u64)>,
    last_use: u64,
    bytes: usize,
    limit: usize,
}

#[derive(Debug)]
struct Slot {
    stored: Arc<Stored>,
    body: Bytes,
    used: u64,
}

impl Slot {
    fn size(&self) -> usize {
        self.body.len() + self.stored.weight() + OVERHEAD
    }
}

impl Memory {
    /// For so many bytes.
    pub fn new(limit: usize) -> Memory {
        let (targets, by_use, last_use, bytes) = Default::default();
        Memory { targets, by_use, last_use, bytes, limit }
    }

    /// The newest that answers this.
    pub fn find(&mut self, digest: Digest, asked: &Asked) -> Option<(Arc<Stored>, Bytes)> {
        let slots = self.targets.get_mut(&digest)?;
        let slot = slots.iter_mut().rev().find(|slot| slot.stored.answers(asked))?;
        self.by_use.remove(&slot.used);
        self.last_use += 1;
        slot.used = self.last_use;
        self.by_use.insert(slot.used, (digest, slot.stored.number));
        Some((Arc::clone(&slot.stored), slot.body.clone()))
    }

    /// Is there any of this target?
    pub fn has(&self, digest: Digest) -> bool {
        self.targets.contains_key(&digest)
    }

    /// Is there this answer?
    pub fn has_one(&self, digest: Digest, number: u64) -> bool {
        let slots = self.targets.get(&digest);
        slots.is_some_and(|slots| slots.iter().any(|slot| slot.stored.number == number))
    }

    /// Keeps an answer in place of the one that it replaces.
    pub fn insert(&mut self, digest: Digest, stored: Arc<Stored>, body: Bytes) {
        self.last_use += 1;
        let slot = Slot { stored, body, used: self.last_use };
        if slot.size() > self.limit {
            return;
        }
        while let Some(old) = self.displaced(digest, &slot.stored) {
            self.forget(digest, old);
        }
        self.bytes += slot.size();
        self.by_use.insert(slot.used, (digest, slot.stored.number));
        self.targets.entry(digest).or_default().push(slot);
        while self.bytes > self.limit
            && let Some((_, &(digest, number))) = self.by_use.first_key_value()
        {
            self.forget(digest, number);
        }
    }

    /// Who has to go for `new`.
    fn displaced(&self, digest: Digest, new: &Stored) -> Option<u64> {
        let slots = self.targets.get(&digest)?;
        let same = slots.iter().find(|s| s.stored.number == new.number || new.replaces(&s.stored));
        let oldest = slots.first().filter(|_| slots.len() >= VARIANTS);
        same.or(oldest).map(|slot| slot.stored.number)
    }

    /// Forgets one.
    pub fn forget(&mut self, digest: Digest, number: u64) {
        let Some(slots) = self.targets.get_mut(&digest) else { return };
        if let Some(at) = slots.iter().position(|slot| slot.stored.number == number) {
            let slot = slots.remove(at);
            self.by_use.remove(&slot.used);
            self.bytes -= slot.size();
        }
        if slots.is_empty() {
            self.targets.remove(&digest);
        }
    }

    /// Forgets all variants and parts of a target.
    pub fn forget_target(&mut self, digest: Digest) {
        let of_target: Vec<_> = self.targets.range(parts_of(digest)).map(|(of, _)| *of).collect();
        for slot in of_target.iter().flat_map(|of| self.targets.remove(of)).flatten() {
            self.by_use.remove(&slot.used);
            self.bytes -= slot.size();
        }
    }

    /// All, by target.
    pub fn all(&self) -> impl Iterator<Item = (Digest, &Arc<Stored>)> {
        self.targets.iter().flat_map(|(digest, slots)| slots.iter().map(|s| (*digest, &s.stored)))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.by_use.len()
    }

    /// Is there none?
    pub fn is_empty(&self) -> bool {
        self.by_use.is_empty()
    }

    /// Bytes that they take.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}
