//! Files in memory, with a program that may die over them: for tests and simulations.

use std::collections::BTreeMap;
use std::sync::Arc;

use units::Rng;

use super::{Dedup, Keys, Limits, Loaded, MAX_INDEX, Op, Recovery, Written};

/// The files of one store.
#[derive(Clone, Default)]
pub struct Disk {
    /// By segment.
    pub data: BTreeMap<u64, Vec<u8>>,
    /// By segment.
    pub index: BTreeMap<u64, Vec<u8>>,
    /// The catalogue's.
    pub journal: Vec<u8>,
    /// Segments that were put aside.
    pub quarantined: u64,
    /// Operations that were done.
    pub served: u64,
    /// Appends fail once there are so many bytes.
    pub room: Option<usize>,
    /// Appends fail although there is room.
    pub is_broken: bool,
}

impl Disk {
    /// Bytes of all segments.
    pub fn len(&self) -> usize {
        self.data.values().chain(self.index.values()).map(Vec::len).sum()
    }

    /// There are no segments.
    pub fn is_empty(&self) -> bool {
        self.data.is_empty() && self.index.is_empty()
    }

    /// Does what is to be done.
    pub fn serve(&mut self, dedup: &mut Dedup) {
        while let Some(op) = dedup.receiver.poll_op() {
            self.served += 1;
            match op {
                Op::Append { segment, data, index } => {
                    let len = self.len() + data.len() + index.len();
                    let written = match self.room {
                        _ if self.is_broken => Written::Failed,
                        Some(room) if len > room => Written::Full,
                        _ => Written::All,
                    };
                    // A write that fails may have written half.
                    let ok = written == Written::All;
                    let n = if ok { data.len() } else { data.len() / 2 };
                    self.data.entry(segment).or_default().extend(&data[..n]);
                    if ok {
                        self.index.entry(segment).or_default().extend(index);
                    }
                    dedup.receiver.appended(segment, written);
                }
                Op::Load { number, segment, offset, len } => {
                    let (from, to) = (offset as usize, offset as usize + len as usize);
                    let content = self.data.get(&segment).and_then(|d| d.get(from..to));
                    let loaded = content.map_or(Loaded::Short, Loaded::Content);
                    dedup.receiver.loaded(number, segment, loaded);
                }
                Op::Remove { segment } => {
                    self.data.remove(&segment);
                    self.index.remove(&segment);
                }
                Op::Quarantine { segment } => {
                    self.data.remove(&segment);
                    self.index.remove(&segment);
                    self.quarantined += 1;
                }
            }
        }
        if let Some(journal) = dedup.sender.poll_journal() {
            if journal.replaces {
                self.journal.clear();
            }
            self.journal.extend(journal.into_bytes());
        }
    }

    /// A program that starts over these files.
    pub fn recover(&self, keys: &Arc<Keys>, limits: &Limits, fresh: u64) -> Dedup {
        let mut recovery = Recovery::new(keys.clone(), limits.memory, limits.disk);
        let numbers: std::collections::BTreeSet<u64> =
            self.data.keys().chain(self.index.keys()).copied().collect();
        for n in numbers {
            let index = self.index.get(&n).map_or(&[][..], |i| &i[..i.len().min(MAX_INDEX)]);
            let data = self.data.get(&n).map_or(0, |d| d.len() as u64);
            recovery.segment(n, index, data);
        }
        let mut dedup = Dedup::new(keys.clone(), recovery.finish(fresh), limits);
        dedup.sender.load_journal(&self.journal);
        dedup
    }

    /// A byte of one of the files.
    pub fn anywhere(&mut self, rng: &mut Rng) -> Option<&mut u8> {
        let files = self.data.values_mut().chain(self.index.values_mut());
        let mut files: Vec<_> =
            files.chain([&mut self.journal]).filter(|f| !f.is_empty()).collect();
        if files.is_empty() {
            return None;
        }
        let file = files.swap_remove(rng.below(files.len() as u64) as usize);
        let at = rng.below(file.len() as u64) as usize;
        file.get_mut(at)
    }
}
