//! The chunks that a receiver holds: in memory first, then on disk.
//!
//! New chunks are in memory, are written to the log in batches ([`Op::Append`]), and stay in
//! memory until newer ones need the room. On disk the oldest segment gives way as a whole
//! when the limit is reached: nothing is ever moved within a file. A chunk that is read from
//! the older half of the log is written again at its end, so what is used stays (FIFO with a
//! second chance): nearly what least-recently-used would keep, without a write for each use.
//!
//! A write that finds the disk full costs what it was to write, and the store makes do with less
//! until segments fit again. One that fails for another reason (no descriptor, a file system that
//! is read-only) costs nothing that is there: its chunks wait for a later try. Bytes that do not
//! have their id, or are not there, put their whole segment into quarantine; a read that fails
//! costs its chunk, because it may say more of the machine than of the file. While files are late
//! ([`Store::set_late`]) what is only on disk counts as not there.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use super::keys::{Id, Keys};
use super::log::{HEADER, MAX_DATA, RECORD, Record, header};

/// Chunks are written when so many bytes of them wait.
const BATCH: usize = 256 * 1024;
/// The log has so many segments at its limit, unless they would be larger than 16 MB.
const SEGMENTS: u64 = 16;
/// The smallest segment: beside less than two of these there is no disk.
const MIN_SEGMENT: u64 = 128 * 1024;

/// Shorter chunks are not kept: they would cost more memory than they save on the link.
pub(super) const MIN_KEPT: usize = 256;
/// Chunks that are read from disk at once for what streams will come to. Each is one of the few
/// operations that a peer may have under way, and a disk that is slow serves several peers.
const READ_AHEAD: usize = 16;
/// As many chunks are held as fit if they have this length: half of the average.
const USUAL: u64 = 4096;

/// What the store wants of files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Append `data` to the segment's data, then `index` to its index; both begin empty. Then
    /// [`Store::appended`].
    Append {
        /// The segment.
        segment: u64,
        /// Bytes of chunks.
        data: Vec<u8>,
        /// Their records.
        index: Vec<u8>,
    },
    /// Read `len` bytes at `offset` of the segment's data. Then [`Store::loaded`].
    Load {
        /// The chunk that lies there.
        number: u64,
        /// The segment.
        segment: u64,
        /// Where its bytes begin.
        offset: u32,
        /// How many there are.
        len: u32,
    },
    /// Remove both files of the segment.
    Remove {
        /// The segment.
        segment: u64,
    },
    /// Put both files of the segment aside, in place of those that were put aside before.
    Quarantine {
        /// The segment.
        segment: u64,
    },
}

/// What came of an [`Op::Append`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// All of it was written.
    All,
    /// There was no room for it.
    Full,
    /// It could not be written, for a reason that says nothing of room.
    Failed,
}

/// What came of an [`Op::Load`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loaded<'a> {
    /// What stood there.
    Content(&'a [u8]),
    /// The file ends before, or there is none.
    Short,
    /// It could not be read, for a reason that need not be the file's.
    Failed,
}

/// Where a chunk is.
pub(super) enum Found {
    Memory(Arc<[u8]>),
    /// [`Op::Load`] was asked for.
    Loading,
    No,
}

struct Entry {
    id: Id,
    /// The bytes, and when they came to be in memory: the key in `recent` or `unwritten`.
    memory: Option<(u64, Arc<[u8]>)>,
    /// Segment, offset, length.
    disk: Option<(u64, u32, u32)>,
}

#[derive(Default)]
struct Segment {
    /// Bytes of data and index.
    len: u64,
    data: u64,
    numbers: Vec<u64>,
}

struct Append {
    segment: u64,
    records: Vec<Record>,
    len: u64,
    data: u64,
    /// It is the segment's first.
    begins: bool,
}

/// What a store uses of so many bytes of disk.
fn usable(disk: u64) -> u64 {
    if disk < 2 * MIN_SEGMENT { 0 } else { disk }
}

/// The chunks that a receiver holds.
pub struct Store {
    keys: Arc<Keys>,
    epoch: u64,
    memory_limit: usize,
    /// There are files for it, also where they may take nothing now.
    has_files: bool,
    /// As configured, and as the file system lets us have.
    disk_limit: u64,
    disk_have: u64,
    entries: BTreeMap<u64, Entry>,
    /// What is in memory, oldest first: what may go, and what is to be written before.
    recent: BTreeMap<u64, u64>,
    unwritten: BTreeMap<u64, u64>,
    turn: u64,
    memory: usize,
    unwritten_bytes: usize,
    /// Chunks that are being loaded: none is asked for twice.
    loading: BTreeSet<u64>,
    late: bool,
    flush: bool,
    /// After a write that failed: bytes that are yet to come before the next one.
    rests: usize,
    segments: BTreeMap<u64, Segment>,
    disk: u64,
    next_segment: u64,
    /// The segment that is written to.
    open: Option<u64>,
    append: Option<Append>,
    ops: VecDeque<Op>,
    gone: Vec<u64>,
    bad: u64,
}

impl Store {
    /// An empty store. `epoch` is a random number other than 0 that no store of this node
    /// had before.
    pub fn new(keys: Arc<Keys>, memory: usize, disk: u64, epoch: u64) -> Store {
        let disk = usable(disk);
        Store {
            keys,
            epoch,
            memory_limit: memory,
            has_files: disk > 0,
            disk_limit: disk,
            disk_have: disk,
            entries: BTreeMap::new(),
            recent: BTreeMap::new(),
            unwritten: BTreeMap::new(),
            turn: 0,
            memory: 0,
            unwritten_bytes: 0,
            loading: BTreeSet::new(),
            late: false,
            flush: false,
            rests: 0,
            segments: BTreeMap::new(),
            disk: 0,
            next_segment: 1,
            open: None,
            append: None,
            ops: VecDeque::new(),
            gone: Vec::new(),
            bad: 0,
        }
    }

    /// Keeps so much from now on. A store without files stays without.
    pub(super) fn set_limits(&mut self, memory: usize, disk: u64) {
        self.memory_limit = memory;
        if self.has_files {
            (self.disk_limit, self.disk_have) = (usable(disk), usable(disk));
        }
        if self.disk_have == 0 {
            // It waits for nothing any more.
            self.recent.append(&mut self.unwritten);
            self.unwritten_bytes = 0;
        }
        while self.disk > self.disk_have {
            self.remove_oldest();
        }
        self.trim();
    }

    /// Forgets everything: the store is new, under `epoch` (as for [`Store::new`]).
    pub(super) fn rebuild(&mut self, epoch: u64) {
        let ops = std::mem::take(&mut self.ops);
        let old = std::mem::take(&mut self.segments);
        let (next, late, has_files) = (self.next_segment, self.late, self.has_files);
        *self = Store::new(self.keys.clone(), self.memory_limit, self.disk_limit, epoch);
        (self.next_segment, self.late, self.has_files) = (next, late, has_files);
        self.ops = ops.into_iter().filter(|op| !matches!(op, Op::Load { .. })).collect();
        self.ops.extend(old.into_keys().map(|segment| Op::Quarantine { segment }));
    }

    /// The store's epoch.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Chunks that are held.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Nothing is held.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Bytes in memory, and bytes on disk.
    pub fn size(&self) -> (usize, u64) {
        (self.memory, self.disk)
    }

    /// Segments that went into quarantine since the start.
    pub fn quarantined(&self) -> u64 {
        self.bad
    }

    /// Files do not answer, or do again. Meanwhile what is only on disk is not there, so that
    /// nothing waits for them.
    pub fn set_late(&mut self, late: bool) {
        self.late = late;
    }

    pub(super) fn keys(&self) -> &Arc<Keys> {
        &self.keys
    }

    pub(super) fn numbers(&self) -> impl DoubleEndedIterator<Item = u64> {
        self.entries.keys().copied()
    }

    /// Chunks that are held no more, since the last call.
    pub(super) fn take_gone(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.gone)
    }

    pub(super) fn id(&self, number: u64) -> Option<&Id> {
        self.entries.get(&number).map(|entry| &entry.id)
    }

    /// Holds a chunk from now on; false if there is no room for it at all.
    pub(super) fn insert(&mut self, number: u64, id: Id, content: Arc<[u8]>) -> bool {
        if content.len() > self.memory_limit || content.len() < MIN_KEPT {
            return false;
        }
        self.remove(number);
        self.entries.insert(number, Entry { id, memory: None, disk: None });
        self.remember(number, content);
        self.trim();
        true
    }

    /// Puts a chunk's bytes into memory, to be written.
    fn remember(&mut self, number: u64, content: Arc<[u8]>) {
        let Some(entry) = self.entries.get_mut(&number) else { return };
        if entry.memory.is_some() {
            return;
        }
        self.memory += content.len();
        self.rests = self.rests.saturating_sub(content.len());
        self.turn += 1;
        if self.disk_have > 0 {
            self.unwritten.insert(self.turn, number);
            self.unwritten_bytes += content.len();
        } else {
            self.recent.insert(self.turn, number);
        }
        entry.memory = Some((self.turn, content));
    }

    /// A chunk's bytes are in memory no more.
    fn forget(&mut self, number: u64) {
        let entry = self.entries.get_mut(&number);
        let Some((turn, content)) = entry.and_then(|entry| entry.memory.take()) else { return };
        self.memory -= content.len();
        self.recent.remove(&turn);
        if self.unwritten.remove(&turn).is_some() {
            self.unwritten_bytes -= content.len();
        }
    }

    /// A chunk's bytes, which are in memory, need not be written any more.
    fn settle(&mut self, number: u64) {
        let entry = self.entries.get(&number);
        let Some((turn, content)) = entry.and_then(|entry| entry.memory.as_ref()) else { return };
        if self.unwritten.remove(turn).is_some() {
            self.unwritten_bytes -= content.len();
            self.recent.insert(*turn, number);
        }
    }

    /// Holds a chunk no more.
    pub(super) fn remove(&mut self, number: u64) {
        self.forget(number);
        self.entries.remove(&number);
    }

    /// Is it to be read from disk?
    pub(super) fn is_on_disk(&self, number: u64) -> bool {
        let on_disk = |entry: &Entry| entry.memory.is_none() && entry.disk.is_some();
        !self.late && self.entries.get(&number).is_some_and(on_disk)
    }

    /// No more is to be read ahead for now.
    pub(super) fn reads_enough(&self) -> bool {
        self.loading.len() >= READ_AHEAD
    }

    /// Looks a chunk up, and has it loaded if it is on disk.
    pub(super) fn find(&mut self, number: u64) -> Found {
        let Some(entry) = self.entries.get(&number) else { return Found::No };
        match (&entry.memory, entry.disk) {
            (Some((_, content)), _) => Found::Memory(content.clone()),
            (None, Some(_)) if self.late => Found::No,
            (None, Some((segment, offset, len))) => {
                if self.loading.insert(number) {
                    self.ops.push_back(Op::Load { number, segment, offset, len });
                }
                Found::Loading
            }
            (None, None) => Found::No,
        }
    }

    /// Keeps to the limits of memory, and of chunks.
    fn trim(&mut self) {
        let most = (self.memory_limit as u64 + self.disk_limit) / USUAL + 1;
        while self.entries.len() as u64 > most {
            let oldest = self.recent.values().chain(self.unwritten.values()).next().copied();
            match oldest {
                _ if !self.segments.is_empty() => self.remove_oldest(),
                Some(number) => {
                    self.remove(number);
                    self.gone.push(number);
                }
                None => break,
            }
        }
        while self.memory > self.memory_limit {
            let oldest = match self.recent.first_key_value() {
                None => {
                    // All waits for the disk, which has as much time as memory takes to fill
                    // twice.
                    self.flush = true;
                    let over = self.memory > 2 * self.memory_limit;
                    self.unwritten.first_key_value().filter(|_| over)
                }
                written => written,
            };
            let Some(number) = oldest.map(|(_, number)| *number) else { break };
            self.forget(number);
            if self.entries.get(&number).is_some_and(|entry| entry.disk.is_none()) {
                self.entries.remove(&number);
                self.gone.push(number);
            }
        }
    }

    // ---- files -----------------------------------------------------------------------

    /// Has everything written that is not: when the program ends, or nothing happens. What could
    /// not be written is tried again.
    pub fn flush(&mut self) {
        (self.flush, self.rests) = (true, 0);
    }

    /// What is written next begins a new segment.
    #[cfg(any(test, fuzzing))]
    pub(super) fn close_segment(&mut self) {
        self.open = None;
    }

    /// The next thing to be done. Operations are to be done in this order.
    pub fn poll_op(&mut self) -> Option<Op> {
        if let Some(op) = self.ops.pop_front() {
            return Some(op);
        }
        if self.append.is_some() || self.disk_have == 0 || self.rests > 0 {
            return None;
        }
        if self.unwritten.is_empty() {
            self.flush = false;
        }
        if !self.flush && self.unwritten_bytes < self.batch_size() {
            return None;
        }
        self.batch()
    }

    fn batch_size(&self) -> usize {
        BATCH.min(self.memory_limit / 2)
    }

    fn segment_size(&self) -> u64 {
        (self.disk_have / SEGMENTS).clamp(MIN_SEGMENT, MAX_DATA)
    }

    fn batch(&mut self) -> Option<Op> {
        let full = |segment: &Segment| segment.len >= self.segment_size();
        if self.open.and_then(|n| self.segments.get(&n)).is_none_or(full) {
            self.open = None;
        }
        let segment = self.open.unwrap_or(self.next_segment);
        let room = self.segment_size();
        let begun = self.segments.get(&segment);
        let (mut data, mut index) = (Vec::new(), Vec::new());
        let start = begun.map_or(0, |s| s.data);
        let size = begun.map_or(0, |s| s.len);
        let begins = begun.is_none();
        if begins {
            index = header(&self.keys, self.epoch, segment);
        }
        let mut records = Vec::new();
        for number in self.unwritten.values().copied() {
            let found = self.entries.get(&number);
            let found = found.and_then(|entry| Some((entry.id, &entry.memory.as_ref()?.1)));
            let Some((id, content)) = found else { continue };
            let added = (data.len() + index.len() + content.len() + RECORD) as u64;
            if data.len() >= BATCH || !data.is_empty() && size + added > room {
                break;
            }
            let offset = (start + data.len() as u64) as u32;
            let record = Record { number, offset, len: content.len() as u32, id };
            record.write(&self.keys, (self.epoch, segment), &mut index);
            data.extend_from_slice(content);
            records.push(record);
        }
        if records.is_empty() {
            return None;
        }
        self.next_segment = self.next_segment.max(segment.saturating_add(1));
        let len = (data.len() + index.len()) as u64;
        self.append = Some(Append { segment, records, len, data: data.len() as u64, begins });
        Some(Op::Append { segment, data, index })
    }

    /// An [`Op::Append`] is done, or has failed.
    pub fn appended(&mut self, segment: u64, written: Written) {
        let Some(append) = self.append.take_if(|append| append.segment == segment) else { return };
        if written == Written::Failed {
            return self.failed(&append);
        }
        for record in &append.records {
            // What came under its number since is not what was written.
            if self.id(record.number) == Some(&record.id) {
                self.settle(record.number);
            }
        }
        if written == Written::Full {
            return self.ran_full(segment);
        }
        if !append.begins && !self.segments.contains_key(&segment) {
            return; // The segment was put away meanwhile, and this with it.
        }
        let size = self.segment_size();
        let s = self.segments.entry(segment).or_default();
        s.len += append.len;
        s.data += append.data;
        self.disk += append.len;
        for record in append.records {
            let same = |entry: &&mut Entry| entry.id == record.id;
            if let Some(entry) = self.entries.get_mut(&record.number).filter(same) {
                entry.disk = Some((segment, record.offset, record.len));
                s.numbers.push(record.number);
            }
        }
        self.open = Some(segment);
        if s.len >= size {
            // A segment is full: a little more may be tried than what fitted last.
            self.disk_have = self.disk_limit.min(self.disk_have + size / 8);
        }
        while self.disk > self.disk_have {
            self.remove_oldest();
        }
        self.trim();
    }

    /// Files could not be written to: what there is stays, and what was to be written is written
    /// with the next batch. What came of it is never referred to, so another segment begins.
    fn failed(&mut self, append: &Append) {
        self.open = None;
        self.flush = false;
        self.rests = self.batch_size();
        if append.begins {
            self.ops.push_back(Op::Remove { segment: append.segment });
        }
    }

    /// The file system took no more: what was to be written stays in memory for as long as
    /// there is room, and the oldest segment gives way.
    fn ran_full(&mut self, segment: u64) {
        // What there may be of the failed write is never referred to; it goes with the rest.
        self.open = None;
        self.next_segment = self.next_segment.max(segment.saturating_add(1));
        self.segments.entry(segment).or_default();
        self.remove_oldest();
        self.disk_have = self.disk;
        if self.disk_have < MIN_SEGMENT {
            // Again when as much as memory holds has come; until then there is no disk.
            self.disk_have = 2 * MIN_SEGMENT.min(self.disk_limit);
            self.flush = false;
        }
        self.trim();
    }

    fn remove_oldest(&mut self) {
        let Some((&segment, _)) = self.segments.first_key_value() else { return };
        self.drop_segment(segment);
        self.ops.push_back(Op::Remove { segment });
    }

    fn drop_segment(&mut self, segment: u64) {
        let Some(old) = self.segments.remove(&segment) else { return };
        self.disk -= old.len;
        self.open = self.open.filter(|open| *open != segment);
        for number in old.numbers {
            let Some(entry) = self.entries.get_mut(&number) else { continue };
            if entry.disk.is_none_or(|(there, ..)| there != segment) {
                continue;
            }
            entry.disk = None;
            if entry.memory.is_none() {
                self.entries.remove(&number);
                self.gone.push(number);
            }
        }
    }

    /// An [`Op::Load`] is done. Answers the chunk if these are its bytes.
    pub(super) fn loaded(
        &mut self,
        number: u64,
        segment: u64,
        loaded: Loaded<'_>,
    ) -> Option<Arc<[u8]>> {
        self.loading.remove(&number);
        let entry = self.entries.get(&number)?;
        if let Some((_, content)) = &entry.memory {
            return Some(content.clone());
        }
        if entry.disk?.0 != segment {
            return None; // It has been moved meanwhile.
        }
        let content: Arc<[u8]> = match loaded {
            Loaded::Content(content) if self.keys.id(content) == entry.id => content.into(),
            Loaded::Content(_) | Loaded::Short => {
                self.quarantine(segment);
                return None;
            }
            Loaded::Failed => {
                self.remove(number);
                self.gone.push(number);
                return None;
            }
        };
        let newer = self.segments.range(segment..).count();
        if newer * 2 > self.segments.len() && self.segments.len() > 2 {
            self.remember(number, content.clone());
            self.trim();
        }
        Some(content)
    }

    fn quarantine(&mut self, segment: u64) {
        self.drop_segment(segment);
        self.ops.push_back(Op::Quarantine { segment });
        self.bad += 1;
    }

    // ---- recovery --------------------------------------------------------------------

    pub(super) fn found(&mut self, segment: u64, len: u64, records: &[Record]) {
        self.next_segment = self.next_segment.max(segment.saturating_add(1));
        let mut numbers = Vec::with_capacity(records.len());
        for record in records {
            let disk = Some((segment, record.offset, record.len));
            self.entries.insert(record.number, Entry { id: record.id, memory: None, disk });
            numbers.push(record.number);
        }
        self.disk += len;
        self.segments.insert(segment, Segment { len, data: 0, numbers });
    }

    pub(super) fn found_bad(&mut self, segment: u64, op: Op) {
        self.next_segment = self.next_segment.max(segment.saturating_add(1));
        self.bad += u64::from(matches!(op, Op::Quarantine { .. }));
        self.ops.push_back(op);
    }

    pub(super) fn quarantine_all(&mut self) {
        let all: Vec<u64> = self.segments.keys().copied().collect();
        all.into_iter().for_each(|segment| self.quarantine(segment));
    }

    pub(super) fn found_all(&mut self, epoch: u64) {
        self.epoch = epoch;
        while self.disk > self.disk_have {
            self.remove_oldest();
        }
        // An empty segment, or none at all, holds nothing that is worth a file.
        let empty = |s: &Segment| s.numbers.is_empty() && s.len <= HEADER as u64;
        let empty: Vec<u64> =
            self.segments.iter().filter(|(_, s)| empty(s)).map(|(n, _)| *n).collect();
        for segment in empty {
            self.drop_segment(segment);
            self.ops.push_back(Op::Remove { segment });
        }
        self.gone.clear();
    }
}
