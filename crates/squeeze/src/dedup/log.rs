//! The files of a store: a log in segments.
//!
//! ```text
//! segment n   two files, both only ever appended to: data, the chunks' bytes one after
//!             another, and index
//! index       "bpchunk1" ‖ epoch 8 ‖ n 8 ‖ check 8 ‖ records
//! record      number 8 ‖ offset in the data 4 ‖ length 4 ‖ id 16 ‖ check 8
//! ```
//!
//! Data is written before its records, and a chunk is believed only when its bytes have its
//! id, so nothing has to be flushed in any order: after a crash the records that are cut,
//! or speak of more data than there is, are the end of their segment. A segment that is
//! damaged within goes into quarantine with all that it holds. No segment is written to by a
//! later run of the program.

use std::sync::Arc;

use super::chunker::MAX_CHUNK;
use super::keys::{Id, Keys};
use super::store::{Op, Store};
use super::wire::MAX_NUMBER;

const MAGIC: &[u8; 8] = b"bpchunk1";
pub(super) const HEADER: usize = 32;
pub(super) const RECORD: usize = 40;
/// The most data, and the longest index, that a segment has.
pub(super) const MAX_DATA: u64 = 16 << 20;
/// The longest index that a segment has, bytes: more of a file need not be read.
pub const MAX_INDEX: usize = HEADER + RECORD * 64 * 1024;

/// What a record says.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record {
    pub number: u64,
    pub offset: u32,
    pub len: u32,
    pub id: Id,
}

pub(super) fn header(keys: &Keys, epoch: u64, segment: u64) -> Vec<u8> {
    let mut bytes = [&MAGIC[..], &epoch.to_be_bytes(), &segment.to_be_bytes()].concat();
    bytes.extend_from_slice(&keys.check(&[&bytes]));
    bytes
}

impl Record {
    pub fn write(&self, keys: &Keys, (epoch, segment): (u64, u64), out: &mut Vec<u8>) {
        let at = out.len();
        out.extend_from_slice(&self.number.to_be_bytes());
        out.extend_from_slice(&self.offset.to_be_bytes());
        out.extend_from_slice(&self.len.to_be_bytes());
        out.extend_from_slice(&self.id);
        out.extend_from_slice(&check(keys, epoch, segment, &out[at..]));
    }

    fn read(keys: &Keys, (epoch, segment): (u64, u64), bytes: &[u8]) -> Option<Record> {
        let (said, sum) = bytes.split_at_checked(RECORD - 8)?;
        if sum != check(keys, epoch, segment, said) {
            return None;
        }
        let four = |at: usize| u32::from_be_bytes(said[at..at + 4].try_into().expect("four"));
        let number = u64::from_be_bytes(said[..8].try_into().expect("eight bytes"));
        let id = said[16..].try_into().expect("the length of an id");
        let record = Record { number, offset: four(8), len: four(12), id };
        let sane = (1..=MAX_NUMBER).contains(&number) && (1..=MAX_CHUNK as u32).contains(&four(12));
        sane.then_some(record)
    }

    fn end(&self) -> u64 {
        u64::from(self.offset) + u64::from(self.len)
    }
}

fn check(keys: &Keys, epoch: u64, segment: u64, said: &[u8]) -> [u8; 8] {
    keys.check(&[&epoch.to_be_bytes(), &segment.to_be_bytes(), said])
}

/// The epoch of a segment, if its index begins as it must.
fn epoch_of(keys: &Keys, segment: u64, index: &[u8]) -> Option<u64> {
    let epoch = u64::from_be_bytes(index.get(8..16)?.try_into().ok()?);
    (index.get(..HEADER)? == header(keys, epoch, segment)).then_some(epoch)
}

/// The records of a segment; `None` if it is damaged, not only cut.
fn records(keys: &Keys, key: (u64, u64), index: &[u8], data: u64) -> Option<Vec<Record>> {
    let mut found = Vec::new();
    let mut cut = false;
    for bytes in index[HEADER..].chunks(RECORD) {
        match Record::read(keys, key, bytes).filter(|record| record.end() <= data) {
            Some(_) if cut => return None, // What follows the cut was written before it.
            Some(record) => found.push(record),
            None => cut = true,
        }
    }
    Some(found)
}

/// A store that is found on disk when the program starts.
pub struct Recovery {
    store: Store,
    epoch: Option<u64>,
}

impl Recovery {
    /// Begins with an empty store that keeps up to `memory` bytes in memory and `disk` bytes
    /// in files.
    pub fn new(keys: Arc<Keys>, memory: usize, disk: u64) -> Recovery {
        Recovery { store: Store::new(keys, memory, disk, 0), epoch: None }
    }

    /// A segment: its number, its index (no more than [`MAX_INDEX`] bytes of it) and the
    /// length of its data. To be called in ascending order of numbers.
    pub fn segment(&mut self, segment: u64, index: &[u8], data: u64) {
        let keys = self.store.keys().clone();
        let data = data.min(u64::from(u32::MAX));
        let epoch = epoch_of(&keys, segment, index);
        let found =
            epoch.and_then(|epoch| Some((epoch, records(&keys, (epoch, segment), index, data)?)));
        let Some((epoch, records)) = found else {
            // An index that is shorter than its header was begun when the program died.
            let begun = index.len() < HEADER;
            let op = if begun { Op::Remove { segment } } else { Op::Quarantine { segment } };
            return self.store.found_bad(segment, op);
        };
        if self.epoch.is_some_and(|known| known != epoch) {
            self.store.quarantine_all();
        }
        self.epoch = Some(epoch);
        self.store.found(segment, data + index.len() as u64, &records);
    }

    /// The store. `fresh` is a random number, other than 0: the epoch of the store if nothing
    /// of an earlier one was found.
    pub fn finish(mut self, fresh: u64) -> Store {
        self.store.found_all(self.epoch.unwrap_or(fresh));
        self.store
    }
}
