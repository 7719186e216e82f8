//! What the peer holds, as far as it has told: the sender's side.
//!
//! The catalogue outlives the program in a *journal*, so that a sender that restarts knows
//! what it may refer to. Only what was confirmed is in it, and the peer's STORE message is
//! needed before any of it is used, so a journal that is old, cut or lost costs bytes on the
//! link and nothing else.
//!
//! ```text
//! journal  "bpnames1" ‖ epoch of the peer's store 8 ‖ check 8 ‖ records
//! record   number 8 ‖ scope 8 ‖ id 16 ‖ hint 4 ‖ zeros 4 ‖ check 8
//! ```

use std::collections::BTreeMap;

use super::keys::{Id, Keys};
use super::wire::MAX_NUMBER;

const MAGIC: &[u8; 8] = b"bpnames1";
const HEADER: usize = 24;
const RECORD: usize = 48;
/// A definition that is as many numbers old and not confirmed came to nothing: its stream was
/// reset. The chunk is named anew when it comes again.
const GIVEN_UP: u64 = 4096;

/// What is to become of the journal's file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Journal {
    /// It is to have these bytes and no others. Best written beside it and renamed.
    Replace(Vec<u8>),
    /// These bytes are to be added.
    Append(Vec<u8>),
}

/// What is known of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Known {
    /// The peer holds it under this number.
    Held(u64),
    /// It was sent and named; the peer has not spoken of it yet.
    Named,
    /// Nothing.
    No,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    scope: u64,
    id: Id,
    hint: u32,
    held: bool,
    written: bool,
}

#[derive(Debug)]
pub(super) struct Catalogue {
    /// The most entries.
    limit: usize,
    by_number: BTreeMap<u64, Entry>,
    by_content: BTreeMap<(u64, Id), u64>,
    /// How many chunks of a scope that the peer holds begin so.
    hints: BTreeMap<(u64, u32), u32>,
    /// The epoch of the peer's store that the numbers belong to.
    epoch: Option<u64>,
    /// The peer has told in this session what it holds.
    told: bool,
    next: u64,
    /// Records for the journal, and how many it has.
    new: Vec<u8>,
    written: usize,
    replace: bool,
}

impl Catalogue {
    pub fn new(limit: usize) -> Catalogue {
        Catalogue {
            limit,
            by_number: BTreeMap::new(),
            by_content: BTreeMap::new(),
            hints: BTreeMap::new(),
            epoch: None,
            told: false,
            next: 1,
            new: Vec::new(),
            written: 0,
            replace: false,
        }
    }

    /// Takes over what an earlier run of the program knew. A journal that is not sound to its
    /// end is believed up to there and written anew.
    pub fn load(&mut self, keys: &Keys, journal: &[u8]) {
        let Some((header, records)) = journal.split_at_checked(HEADER) else { return };
        if &header[..8] != MAGIC || header[16..] != keys.check(&[&header[..16]]) {
            return;
        }
        self.epoch = Some(number(&header[8..]));
        for record in records.chunks(RECORD) {
            let sound = record.len() == RECORD
                && record[40..] == keys.check(&[&header[8..16], &record[..40]]);
            if !sound || !(1..=MAX_NUMBER).contains(&number(record)) {
                self.replace = true;
                break;
            }
            let id = record[16..32].try_into().expect("the length of an id");
            let hint = u32::from_be_bytes(record[32..36].try_into().expect("four bytes"));
            let scope = number(&record[8..]);
            let entry = Entry { scope, id, hint, held: true, written: true };
            self.insert(number(record), entry);
            self.written += 1;
        }
    }

    /// A session begins: nothing is used until the peer has told what it holds.
    pub fn begin(&mut self) {
        self.told = false;
    }

    pub fn known(&self, scope: u64, id: &Id) -> Known {
        let Some(number) = self.by_content.get(&(scope, *id)).filter(|_| self.told) else {
            return Known::No;
        };
        match self.by_number.get(number) {
            Some(entry) if entry.held => Known::Held(*number),
            Some(_) if self.next - number < GIVEN_UP => Known::Named,
            _ => Known::No,
        }
    }

    /// Whether a chunk of this scope that the peer holds begins so.
    pub fn begins(&self, scope: u64, hint: u32) -> bool {
        self.told && self.hints.contains_key(&(scope, hint))
    }

    /// A number for a chunk that is sent now, if the peer is to keep it.
    pub fn name(&mut self, scope: u64, id: Id, hint: u32) -> Option<u64> {
        if !self.told || self.next > MAX_NUMBER || self.known(scope, &id) != Known::No {
            return None;
        }
        let number = self.next;
        self.insert(number, Entry { scope, id, hint, held: false, written: false });
        Some(number)
    }

    fn insert(&mut self, number: u64, entry: Entry) {
        self.remove(number);
        self.next = self.next.max(number + 1);
        let before = self.by_content.insert((entry.scope, entry.id), number);
        if let Some(old) = before.and_then(|old| self.by_number.remove(&old)) {
            self.forget_hint(&old);
        }
        self.by_number.insert(number, entry);
        if entry.held {
            *self.hints.entry((entry.scope, entry.hint)).or_default() += 1;
        }
        while self.by_number.len() > self.limit {
            let Some((first, _)) = self.by_number.first_key_value() else { break };
            self.remove(*first);
        }
    }

    fn remove(&mut self, number: u64) {
        if let Some(entry) = self.by_number.remove(&number) {
            self.by_content.remove(&(entry.scope, entry.id));
            self.forget_hint(&entry);
        }
    }

    fn forget_hint(&mut self, entry: &Entry) {
        if !entry.held {
            return;
        }
        let hint = (entry.scope, entry.hint);
        if let Some(count) = self.hints.get_mut(&hint) {
            *count -= 1;
            if *count == 0 {
                self.hints.remove(&hint);
            }
        }
    }

    // ---- what the peer tells ---------------------------------------------------------

    /// The peer holds these and no others.
    pub fn holds(&mut self, keys: &Keys, epoch: u64, next: u64, held: &[(u64, u64)]) {
        if self.epoch != Some(epoch) {
            (self.by_number, self.by_content, self.hints) = Default::default();
            self.epoch = Some(epoch);
            self.replace = true;
        }
        // Numbers never come again, so that whatever is late means what it meant.
        self.next = self.next.max(next);
        // In the middle of a session what is newer than all that the peer has seen is on its
        // way.
        let coming = |n: u64, entry: &Entry| self.told && n >= next && !entry.held;
        let unheld = self.by_number.iter().filter(|(n, e)| !within(held, **n) && !coming(**n, e));
        let lost: Vec<u64> = unheld.map(|(n, _)| *n).collect();
        lost.into_iter().for_each(|n| self.remove(n));
        self.told = true;
        for range in held {
            self.confirm(keys, *range);
        }
    }

    /// News of the peer's store.
    pub fn news(&mut self, keys: &Keys, epoch: u64, held: &[(u64, u64)], gone: &[(u64, u64)]) {
        if self.epoch != Some(epoch) || !self.told {
            return;
        }
        for (first, last) in gone {
            let gone: Vec<u64> = self.by_number.range(first..=last).map(|(n, _)| *n).collect();
            gone.into_iter().for_each(|n| self.remove(n));
        }
        for range in held {
            self.confirm(keys, *range);
        }
    }

    /// The peer lacks a chunk that it held.
    pub fn lacks(&mut self, number: u64) {
        let Some(entry) = self.by_number.get_mut(&number) else { return };
        let before = *entry;
        entry.held = false;
        self.forget_hint(&before);
    }

    fn confirm(&mut self, keys: &Keys, (first, last): (u64, u64)) {
        let Some(epoch) = self.epoch else { return };
        for (number, entry) in self.by_number.range_mut(first..=last) {
            if !entry.held {
                entry.held = true;
                *self.hints.entry((entry.scope, entry.hint)).or_default() += 1;
            }
            if !entry.written && !self.replace {
                entry.written = true;
                put_record(keys, epoch, *number, entry, &mut self.new);
            }
        }
    }

    // ---- the journal -----------------------------------------------------------------

    pub fn journal(&mut self, keys: &Keys) -> Option<Journal> {
        let epoch = self.epoch?;
        if !self.replace && self.new.is_empty() {
            return None;
        }
        self.written += self.new.len() / RECORD;
        // What is gone stays in the journal until it is most of it.
        if !self.replace && self.written <= 2 * self.by_number.len() + 1024 && self.written > 0 {
            let first = self.written * RECORD == self.new.len();
            let mut bytes = if first { header(keys, epoch) } else { Vec::new() };
            bytes.append(&mut self.new);
            return Some(if first { Journal::Replace(bytes) } else { Journal::Append(bytes) });
        }
        let mut bytes = header(keys, epoch);
        self.written = 0;
        for (number, entry) in self.by_number.iter_mut().filter(|(_, entry)| entry.held) {
            entry.written = true;
            self.written += 1;
            put_record(keys, epoch, *number, entry, &mut bytes);
        }
        self.new.clear();
        self.replace = false;
        Some(Journal::Replace(bytes))
    }

    /// What was to be written is not: all is written anew the next time.
    pub fn journal_failed(&mut self) {
        self.replace = true;
    }

    #[cfg(any(test, fuzzing))]
    pub fn len(&self) -> usize {
        self.by_number.len()
    }
}

fn header(keys: &Keys, epoch: u64) -> Vec<u8> {
    let mut bytes = [&MAGIC[..], &epoch.to_be_bytes()].concat();
    bytes.extend_from_slice(&keys.check(&[&bytes]));
    bytes
}

fn put_record(keys: &Keys, epoch: u64, number: u64, entry: &Entry, out: &mut Vec<u8>) {
    let at = out.len();
    out.extend_from_slice(&number.to_be_bytes());
    out.extend_from_slice(&entry.scope.to_be_bytes());
    out.extend_from_slice(&entry.id);
    out.extend_from_slice(&entry.hint.to_be_bytes());
    out.extend_from_slice(&[0; 4]);
    let check = keys.check(&[&epoch.to_be_bytes(), &out[at..]]);
    out.extend_from_slice(&check);
}

fn number(bytes: &[u8]) -> u64 {
    u64::from_be_bytes(bytes[..8].try_into().expect("eight bytes"))
}

/// `ranges` ascend.
fn within(ranges: &[(u64, u64)], n: u64) -> bool {
    let at = ranges.partition_point(|(first, _)| *first <= n);
    at > 0 && ranges[at - 1].1 >= n
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys() -> Keys {
        Keys::new(&[3; 32])
    }

    fn id(n: u8) -> Id {
        [n; 16]
    }

    #[test]
    fn what_is_not_confirmed_is_not_referred_to() {
        // L-DD-3
        let (keys, mut c) = (keys(), Catalogue::new(100));
        assert_eq!(c.name(1, id(1), 7), None, "the peer has not told yet what it holds");
        c.holds(&keys, 5, 10, &[]);
        assert_eq!(c.name(1, id(1), 7), Some(10), "numbers begin where the peer says");
        assert_eq!(c.known(1, &id(1)), Known::Named);
        assert_eq!(c.name(1, id(1), 7), None, "it is on its way already");
        assert!(!c.begins(1, 7));
        c.news(&keys, 4, &[(10, 10)], &[]);
        assert_eq!(c.known(1, &id(1)), Known::Named, "another store's news");
        c.news(&keys, 5, &[(10, 10)], &[]);
        assert_eq!(c.known(1, &id(1)), Known::Held(10));
        assert!(c.begins(1, 7) && !c.begins(2, 7));
        // L-DD-4: another scope knows nothing of it.
        assert_eq!(c.known(2, &id(1)), Known::No);
        c.lacks(10);
        assert_eq!(c.known(1, &id(1)), Known::Named);
        c.news(&keys, 5, &[], &[(1, 20)]);
        assert_eq!(c.known(1, &id(1)), Known::No);
        assert!(c.hints.is_empty() && c.by_content.is_empty());
    }

    #[test]
    fn another_epoch_is_another_store() {
        // L-DD-5
        let (keys, mut c) = (keys(), Catalogue::new(100));
        c.holds(&keys, 5, 1, &[]);
        let number = c.name(1, id(1), 7).expect("a number");
        c.news(&keys, 5, &[(number, number)], &[]);
        c.holds(&keys, 6, 1, &[(number, number)]);
        assert_eq!(c.known(1, &id(1)), Known::No);
        assert_eq!(c.name(1, id(1), 7), Some(number + 1), "no number comes again");
    }

    #[test]
    fn a_session_begins_with_what_the_peer_still_holds() {
        let (keys, mut c) = (keys(), Catalogue::new(100));
        c.holds(&keys, 5, 1, &[]);
        for n in 1..=9 {
            c.name(1, id(n), 0);
        }
        c.news(&keys, 5, &[(1, 9)], &[]);
        c.begin();
        assert_eq!(c.known(1, &id(4)), Known::No, "until it has told");
        c.holds(&keys, 5, 10, &[(3, 4), (8, 9)]);
        let held: Vec<u8> = (1..=9).filter(|n| c.known(1, &id(*n)) != Known::No).collect();
        assert_eq!(held, [3, 4, 8, 9]);
    }

    #[test]
    fn the_journal_brings_the_catalogue_back_and_a_bad_one_what_is_sound() {
        let (keys, mut c) = (keys(), Catalogue::new(100));
        c.holds(&keys, 5, 1, &[]);
        let mut file = Vec::new();
        for n in 1..=20 {
            c.name(1, id(n), u32::from(n));
            c.news(&keys, 5, &[(u64::from(n), u64::from(n))], &[]);
            match c.journal(&keys) {
                Some(Journal::Replace(bytes)) => file = bytes,
                Some(Journal::Append(bytes)) => file.extend(bytes),
                None => panic!("there is something to be written"),
            }
        }
        let load = |file: &[u8]| {
            let mut c = Catalogue::new(100);
            c.load(&keys, file);
            c.holds(&keys, 5, 1, &[(1, 100)]);
            (1..=20).filter(|n| matches!(c.known(1, &id(*n)), Known::Held(_))).count()
        };
        assert_eq!(load(&file), 20);
        assert_eq!(load(&file[..file.len() - 1]), 19);
        assert_eq!(load(&file[..30]), 0);
        file[HEADER + 10 * RECORD + 3] ^= 1;
        assert_eq!(load(&file), 10);
        file[3] ^= 1;
        assert_eq!(load(&file), 0);
    }

    #[test]
    fn catalogue_and_journal_are_bounded() {
        let (keys, mut c) = (keys(), Catalogue::new(100));
        c.holds(&keys, 5, 1, &[]);
        let mut file = 0;
        for n in 1..=10_000_u64 {
            let mut id = [0; 16];
            id[..8].copy_from_slice(&n.to_be_bytes());
            c.name(1, id, n as u32);
            c.news(&keys, 5, &[(n, n)], &[]);
            match c.journal(&keys) {
                Some(Journal::Replace(bytes)) => file = bytes.len(),
                Some(Journal::Append(bytes)) => file += bytes.len(),
                None => {}
            }
            assert!(c.len() <= 100 && c.hints.len() <= 100 && c.by_content.len() <= 100);
            assert!(file <= 1300 * RECORD, "{file}");
        }
    }
}
