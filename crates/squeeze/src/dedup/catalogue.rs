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
use std::sync::Arc;

use super::keys::{Id, Keys};
use super::wire::MAX_NUMBER;

const MAGIC: &[u8; 8] = b"bpnames1";
const HEADER: usize = 24;
const RECORD: usize = 48;
/// What of a record its check is for.
const CHECKED: usize = 40;
/// A definition that is as many numbers old and not confirmed came to nothing: its stream was
/// reset. The chunk is named anew when it comes again.
const GIVEN_UP: u64 = 4096;

/// What is to become of the journal's file.
pub struct Journal {
    /// The file is to have these bytes and no others, best written beside it and renamed; else
    /// they are to be added.
    pub replaces: bool,
    keys: Arc<Keys>,
    epoch: u64,
    /// Records without their checks.
    records: Vec<u8>,
}

impl Journal {
    /// The bytes. Their checks are computed here, a fraction of a microsecond for each record,
    /// of which there may be a hundred thousands: not where packets wait.
    pub fn into_bytes(self) -> Vec<u8> {
        let count = self.records.len() / CHECKED;
        let mut bytes = Vec::with_capacity(HEADER + count * RECORD);
        if self.replaces {
            bytes.extend_from_slice(MAGIC);
            bytes.extend_from_slice(&self.epoch.to_be_bytes());
            let check = self.keys.check(&[&bytes]);
            bytes.extend_from_slice(&check);
        }
        for record in self.records.chunks(CHECKED) {
            bytes.extend_from_slice(record);
            bytes.extend_from_slice(&self.keys.check(&[&self.epoch.to_be_bytes(), record]));
        }
        bytes
    }
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
    /// It is in the journal.
    written: bool,
}

/// What the peer tells of many numbers at once costs what it changes: each entry is named,
/// confirmed and removed once, however often a peer repeats itself.
#[derive(Debug)]
pub(super) struct Catalogue {
    /// The most entries.
    limit: usize,
    /// By number: what the peer holds, and what was named and it has not spoken of.
    held: BTreeMap<u64, Entry>,
    named: BTreeMap<u64, Entry>,
    by_content: BTreeMap<(u64, Id), u64>,
    /// How many chunks of a scope that the peer holds begin so.
    hints: BTreeMap<(u64, u32), u32>,
    /// The epoch of the peer's store that the numbers belong to.
    epoch: Option<u64>,
    /// The peer has told in this session what it holds.
    told: bool,
    next: u64,
    /// Records for the journal, without checks, and how many it has.
    new: Vec<u8>,
    written: usize,
    replace: bool,
}

impl Catalogue {
    pub fn new(limit: usize) -> Catalogue {
        Catalogue {
            limit,
            held: BTreeMap::new(),
            named: BTreeMap::new(),
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
                && record[CHECKED..] == keys.check(&[&header[8..16], &record[..CHECKED]]);
            if !sound || !(1..=MAX_NUMBER).contains(&number(record)) {
                self.replace = true;
                break;
            }
            let id = record[16..32].try_into().expect("the length of an id");
            let hint = u32::from_be_bytes(record[32..36].try_into().expect("four bytes"));
            let scope = number(&record[8..]);
            self.name_as(number(record), Entry { scope, id, hint, written: true });
            self.confirm((number(record), number(record)));
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
        if self.held.contains_key(number) {
            Known::Held(*number)
        } else if self.named.contains_key(number) && self.next - number < GIVEN_UP {
            Known::Named
        } else {
            Known::No
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
        self.name_as(number, Entry { scope, id, hint, written: false });
        Some(number)
    }

    fn name_as(&mut self, number: u64, entry: Entry) {
        self.remove(number);
        if let Some(old) = self.by_content.get(&(entry.scope, entry.id)).copied() {
            self.remove(old);
        }
        self.next = self.next.max(number + 1);
        self.by_content.insert((entry.scope, entry.id), number);
        self.named.insert(number, entry);
        self.trim();
    }

    /// Remembers so many chunks from now on.
    pub fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
        self.trim();
    }

    fn trim(&mut self) {
        while self.held.len() + self.named.len() > self.limit {
            let first = |entries: &BTreeMap<u64, Entry>| entries.keys().next().copied();
            let oldest = first(&self.held).into_iter().chain(first(&self.named)).min();
            let Some(oldest) = oldest else { break };
            self.remove(oldest);
        }
    }

    fn remove(&mut self, number: u64) {
        let held = self.held.remove(&number);
        if let Some(entry) = held {
            self.forget_hint(&entry);
        }
        if let Some(entry) = held.or_else(|| self.named.remove(&number)) {
            self.by_content.remove(&(entry.scope, entry.id));
        }
    }

    fn forget_hint(&mut self, entry: &Entry) {
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
    pub fn holds(&mut self, epoch: u64, next: u64, held: &[(u64, u64)]) {
        if self.epoch != Some(epoch) {
            (self.held, self.named) = Default::default();
            (self.by_content, self.hints) = Default::default();
            self.epoch = Some(epoch);
            self.replace = true;
        }
        // Numbers never come again, so that whatever is late means what it meant.
        self.next = self.next.max(next);
        for range in held {
            self.confirm(*range);
        }
        // In the middle of a session what is newer than all that the peer has seen is on its
        // way.
        let seen = if self.told { next } else { u64::MAX };
        let lost: Vec<u64> = self.named.range(..seen).map(|(number, _)| *number).collect();
        lost.into_iter().for_each(|number| self.remove(number));
        let mut from = 0;
        for (first, last) in held.iter().copied().chain([(u64::MAX, u64::MAX)]) {
            let lost: Vec<u64> = self.held.range(from..first).map(|(number, _)| *number).collect();
            lost.into_iter().for_each(|number| self.remove(number));
            from = last.saturating_add(1).max(from);
        }
        self.told = true;
    }

    /// News of the peer's store.
    pub fn news(&mut self, epoch: u64, held: &[(u64, u64)], gone: &[(u64, u64)]) {
        if self.epoch != Some(epoch) || !self.told {
            return;
        }
        for (first, last) in gone {
            let numbers = |entries: &BTreeMap<u64, Entry>| -> Vec<u64> {
                entries.range(first..=last).map(|(number, _)| *number).collect()
            };
            let gone = [numbers(&self.held), numbers(&self.named)].concat();
            gone.into_iter().for_each(|number| self.remove(number));
        }
        for range in held {
            self.confirm(*range);
        }
    }

    /// The peer lacks a chunk that it held. `answered`: it is sent to it again, under the same
    /// number.
    pub fn lacks(&mut self, number: u64, answered: bool) {
        if !answered {
            return self.remove(number);
        }
        if let Some(entry) = self.held.remove(&number) {
            self.forget_hint(&entry);
            self.named.insert(number, entry);
        }
    }

    fn confirm(&mut self, (first, last): (u64, u64)) {
        while let Some(number) = self.named.range(first..=last).next().map(|(number, _)| *number) {
            let Some(mut entry) = self.named.remove(&number) else { return };
            *self.hints.entry((entry.scope, entry.hint)).or_default() += 1;
            if !entry.written && !self.replace {
                entry.written = true;
                put_record(number, &entry, &mut self.new);
            }
            self.held.insert(number, entry);
        }
    }

    // ---- the journal -----------------------------------------------------------------

    pub fn journal(&mut self, keys: Arc<Keys>) -> Option<Journal> {
        let epoch = self.epoch?;
        if !self.replace && self.new.is_empty() {
            return None;
        }
        self.written += self.new.len() / CHECKED;
        // What is gone stays in the journal until it is most of it.
        let entries = self.held.len() + self.named.len();
        if !self.replace && self.written <= 2 * entries + 1024 {
            let replaces = self.written * CHECKED == self.new.len();
            let records = std::mem::take(&mut self.new);
            return Some(Journal { replaces, keys, epoch, records });
        }
        let mut records = Vec::with_capacity(self.held.len() * CHECKED);
        for (number, entry) in &mut self.held {
            entry.written = true;
            put_record(*number, entry, &mut records);
        }
        self.written = self.held.len();
        self.new = Vec::new();
        self.replace = false;
        Some(Journal { replaces: true, keys, epoch, records })
    }

    /// What was to be written is not: all is written anew the next time.
    pub fn journal_failed(&mut self) {
        self.replace = true;
    }

    #[cfg(any(test, fuzzing))]
    pub fn len(&self) -> usize {
        self.held.len() + self.named.len()
    }
}

fn put_record(number: u64, entry: &Entry, out: &mut Vec<u8>) {
    out.extend_from_slice(&number.to_be_bytes());
    out.extend_from_slice(&entry.scope.to_be_bytes());
    out.extend_from_slice(&entry.id);
    out.extend_from_slice(&entry.hint.to_be_bytes());
    out.extend_from_slice(&[0; 4]);
}

fn number(bytes: &[u8]) -> u64 {
    u64::from_be_bytes(bytes[..8].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys() -> Arc<Keys> {
        Arc::new(Keys::new(&[3; 32]))
    }

    /// Does to the file what the journal says.
    fn write(file: &mut Vec<u8>, journal: Journal) {
        if journal.replaces {
            file.clear();
        }
        file.extend(journal.into_bytes());
    }

    fn id(n: u8) -> Id {
        [n; 16]
    }

    #[test]
    fn what_is_not_confirmed_is_not_referred_to() {
        // L-DD-3
        let mut c = Catalogue::new(100);
        assert_eq!(c.name(1, id(1), 7), None, "the peer has not told yet what it holds");
        c.holds(5, 10, &[]);
        assert_eq!(c.name(1, id(1), 7), Some(10), "numbers begin where the peer says");
        assert_eq!(c.known(1, &id(1)), Known::Named);
        assert_eq!(c.name(1, id(1), 7), None, "it is on its way already");
        assert!(!c.begins(1, 7));
        c.news(4, &[(10, 10)], &[]);
        assert_eq!(c.known(1, &id(1)), Known::Named, "another store's news");
        c.news(5, &[(10, 10)], &[]);
        assert_eq!(c.known(1, &id(1)), Known::Held(10));
        assert!(c.begins(1, 7) && !c.begins(2, 7));
        // L-DD-4: another scope knows nothing of it.
        assert_eq!(c.known(2, &id(1)), Known::No);
        c.lacks(10, true);
        assert_eq!(c.known(1, &id(1)), Known::Named);
        c.news(5, &[], &[(1, 20)]);
        assert_eq!(c.known(1, &id(1)), Known::No);
        assert!(c.hints.is_empty() && c.by_content.is_empty());
        // What the peer lacks and does not get again is named anew.
        assert_eq!(c.name(1, id(1), 7), Some(11));
        c.news(5, &[(11, 11)], &[]);
        c.lacks(11, false);
        assert_eq!(c.name(1, id(1), 7), Some(12));
    }

    /// Whatever a peer says of all numbers at once, and however often.
    #[test]
    fn what_is_on_its_way_outlives_a_store_message_and_nothing_else_does() {
        let mut c = Catalogue::new(100);
        c.holds(5, 1, &[]);
        for n in 1..=9 {
            c.name(1, id(n), 0);
        }
        c.news(5, &[(1, 4)], &[]);
        c.holds(5, 7, &[(2, 3), (5, 5)]);
        let of = |known: fn(Known) -> bool| -> Vec<u8> {
            (1..=9).filter(|n| known(c.known(1, &id(*n)))).collect()
        };
        assert_eq!(of(|known| matches!(known, Known::Held(_))), [2, 3, 5]);
        assert_eq!(of(|known| known == Known::Named), [7, 8, 9]);
        c.news(5, &[(0, u64::MAX)], &[]);
        c.news(5, &[], &[(0, u64::MAX)]);
        assert_eq!((c.len(), c.hints.len(), c.by_content.len()), (0, 0, 0));
    }

    #[test]
    fn another_epoch_is_another_store() {
        // L-DD-5
        let mut c = Catalogue::new(100);
        c.holds(5, 1, &[]);
        let number = c.name(1, id(1), 7).expect("a number");
        c.news(5, &[(number, number)], &[]);
        c.holds(6, 1, &[(number, number)]);
        assert_eq!(c.known(1, &id(1)), Known::No);
        assert_eq!(c.name(1, id(1), 7), Some(number + 1), "no number comes again");
    }

    #[test]
    fn a_session_begins_with_what_the_peer_still_holds() {
        let mut c = Catalogue::new(100);
        c.holds(5, 1, &[]);
        for n in 1..=9 {
            c.name(1, id(n), 0);
        }
        c.news(5, &[(1, 9)], &[]);
        c.begin();
        assert_eq!(c.known(1, &id(4)), Known::No, "until it has told");
        c.holds(5, 10, &[(3, 4), (8, 9)]);
        let held: Vec<u8> = (1..=9).filter(|n| c.known(1, &id(*n)) != Known::No).collect();
        assert_eq!(held, [3, 4, 8, 9]);
    }

    #[test]
    fn the_journal_brings_the_catalogue_back_and_a_bad_one_what_is_sound() {
        let (keys, mut c) = (keys(), Catalogue::new(100));
        c.holds(5, 1, &[]);
        let mut file = Vec::new();
        for n in 1..=20 {
            c.name(1, id(n), u32::from(n));
            c.news(5, &[(u64::from(n), u64::from(n))], &[]);
            write(&mut file, c.journal(keys.clone()).expect("there is something to be written"));
        }
        let load = |file: &[u8]| {
            let mut c = Catalogue::new(100);
            c.load(&keys, file);
            c.holds(5, 1, &[(1, 100)]);
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
        c.holds(5, 1, &[]);
        let mut file = 0;
        for n in 1..=10_000_u64 {
            let mut id = [0; 16];
            id[..8].copy_from_slice(&n.to_be_bytes());
            c.name(1, id, n as u32);
            c.news(5, &[(n, n)], &[]);
            if let Some(journal) = c.journal(keys.clone()) {
                let before = if journal.replaces { 0 } else { file };
                file = before + journal.into_bytes().len();
            }
            assert!(c.len() <= 100 && c.hints.len() <= 100 && c.by_content.len() <= 100);
            assert!(file <= 1300 * RECORD, "{file}");
        }
    }
}
