//! Answers in memory: those used last, whole.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

use super::holder::{Holder, Holdings, oldest_of_most};
use super::{Asked, Digest, Stored, parts_of};

/// What an answer counts for beside its body and fields.
const OVERHEAD: usize = 512;
/// Answers to one target that are told apart by `Vary`.
const VARIANTS: usize = 8;

/// Answers with their bodies, within a limit. Of the holder with the most the least recently used
/// go first.
#[derive(Debug)]
pub struct Memory {
    targets: BTreeMap<Digest, Vec<Slot>>,
    holdings: Holdings,
    last_use: u64,
    count: usize,
    limit: usize,
}

#[derive(Debug)]
struct Slot {
    stored: Arc<Stored>,
    body: Bytes,
    holder: Holder,
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
        let (targets, last_use, count) = Default::default();
        Memory { targets, holdings: Holdings::default(), last_use, count, limit }
    }

    /// The newest that answers this.
    pub fn find(&mut self, digest: Digest, asked: &Asked) -> Option<(Arc<Stored>, Bytes)> {
        let slots = self.targets.get_mut(&digest)?;
        let slot = slots.iter_mut().rev().find(|slot| slot.stored.answers(asked))?;
        let (holder, number) = (slot.holder.in_group(), slot.stored.number);
        self.holdings.remove(&holder, &(slot.used, digest, number));
        self.last_use += 1;
        slot.used = self.last_use;
        self.holdings.add(&holder, (slot.used, digest, number), slot.size());
        Some((Arc::clone(&slot.stored), slot.body.clone()))
    }

    /// Is there any of this target?
    pub fn has(&self, digest: Digest) -> bool {
        self.targets.contains_key(&digest)
    }

    /// For whom this answer is kept; `None`: it is not.
    pub fn holder(&self, digest: Digest, number: u64) -> Option<&Holder> {
        let slots = self.targets.get(&digest)?;
        Some(&slots.iter().find(|slot| slot.stored.number == number)?.holder)
    }

    /// Keeps an answer in place of the one that it replaces.
    pub fn insert(&mut self, digest: Digest, stored: Arc<Stored>, body: Bytes, holder: Holder) {
        self.last_use += 1;
        let slot = Slot { stored, body, holder, used: self.last_use };
        if slot.size() > self.limit {
            return;
        }
        while let Some(old) = self.displaced(digest, &slot) {
            self.forget(digest, old);
        }
        let (holder, size) = (slot.holder.in_group(), slot.size());
        // Where its own holder has the most his older ones go, and then others', so that it stays.
        while self.bytes() + size > self.limit {
            let of_others = self.holdings.gives_way_to(&holder, size);
            let gives_way = of_others.or_else(|| self.holdings.first_of(&holder));
            let Some(&(_, digest, number)) = gives_way.or_else(|| self.holdings.gives_way()) else {
                break;
            };
            self.forget(digest, number);
        }
        let used = (slot.used, digest, slot.stored.number);
        self.holdings.add(&holder, used, size);
        self.count += 1;
        self.targets.entry(digest).or_default().push(slot);
    }

    /// Who has to go for `new`.
    fn displaced(&self, digest: Digest, new: &Slot) -> Option<u64> {
        let slots = self.targets.get(&digest)?;
        let is_same = |s: &Stored| s.number == new.stored.number || new.stored.replaces(s);
        let same = slots.iter().find(|slot| is_same(&slot.stored));
        let oldest = || {
            let at = oldest_of_most(slots.iter().chain([new]).map(|slot| &slot.holder))?;
            slots.get(at).filter(|_| slots.len() >= VARIANTS)
        };
        same.or_else(oldest).map(|slot| slot.stored.number)
    }

    /// Forgets one.
    pub fn forget(&mut self, digest: Digest, number: u64) {
        let Some(slots) = self.targets.get_mut(&digest) else { return };
        if let Some(at) = slots.iter().position(|slot| slot.stored.number == number) {
            let Slot { holder, used, .. } = slots.remove(at);
            self.holdings.remove(&holder.in_group(), &(used, digest, number));
            self.count -= 1;
        }
        if slots.is_empty() {
            self.targets.remove(&digest);
        }
    }

    /// Forgets all variants and parts of a target.
    pub fn forget_target(&mut self, digest: Digest) {
        let of_target: Vec<_> = self.targets.range(parts_of(digest)).map(|(of, _)| *of).collect();
        for digest in of_target {
            for Slot { stored, holder, used, .. } in
                self.targets.remove(&digest).unwrap_or_default()
            {
                self.holdings.remove(&holder.in_group(), &(used, digest, stored.number));
                self.count -= 1;
            }
        }
    }

    /// All, by target.
    pub fn all(&self) -> impl Iterator<Item = (Digest, &Arc<Stored>)> {
        self.targets.iter().flat_map(|(digest, slots)| slots.iter().map(|s| (*digest, &s.stored)))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Is there none?
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Bytes that they take.
    pub fn bytes(&self) -> usize {
        self.holdings.sum()
    }
}
