//! Where answers lie on disk: a book of the files, about 350 bytes for each.

use std::collections::BTreeMap;

use super::holder::{Holder, Holdings, oldest_of_most};
use super::{Digest, parts_of};

/// Files that are known at most.
const MAX_FILES: usize = 200_000;
/// Answers to one target that are told apart by `Vary`.
const VARIANTS: usize = 8;
/// What a file takes of a disk: whole blocks, and its name.
const BLOCK: u64 = 4096;
/// Files that are not whole take this part of the limit at most: whoever never ends them gets none
/// of the rest.
const UNFINISHED: u64 = 4;

/// One file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Names the target.
    pub digest: Digest,
    /// Names it for all servers ([`super::uri_digest`]).
    pub uri: u64,
    /// Tells it from others. Greater ones are newer.
    pub number: u64,
    /// Bytes of the file.
    pub length: u64,
}

impl Place {
    fn size(&self) -> u64 {
        self.length.div_ceil(BLOCK) * BLOCK + BLOCK / 16
    }
}

/// What a file counts for when one has to give way: its bytes and its part of the files that are
/// known, so that whoever takes these with small ones has the most. In units of which a `usize` of
/// 32 bits holds a terabyte.
fn weight(place: &Place, limit: u64) -> usize {
    ((place.size() + limit / MAX_FILES as u64) / (BLOCK / 8)) as usize
}

/// What has no room any more, because something else grew.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Gone {
    /// Files.
    pub places: Vec<Place>,
    /// Numbers of files that are not whole.
    pub unfinished: Vec<u64>,
}

/// A file that is whole.
#[derive(Debug)]
struct Entry {
    place: Place,
    holder: Holder,
    used: u64,
}

/// A file that is not whole.
#[derive(Debug)]
struct Growing {
    holder: Holder,
    bytes: u64,
    /// When it grew last.
    grew: u64,
}

/// All files, within a limit. Of the holder with the most the least recently used go first.
#[derive(Debug)]
pub struct Index {
    targets: BTreeMap<Digest, Vec<Entry>>,
    holdings: Holdings,
    /// What nobody was given since the start goes before all else.
    is_past_start: bool,
    last_use: u64,
    count: usize,
    bytes: u64,
    /// Files that are not whole, by number.
    growing: BTreeMap<u64, Growing>,
    growing_bytes: u64,
    limit: u64,
}

impl Index {
    /// For so many bytes on disk.
    pub fn new(limit: u64) -> Index {
        let (targets, is_past_start, last_use, count, bytes) = Default::default();
        let (growing, growing_bytes) = Default::default();
        Index {
            targets,
            holdings: Holdings::default(),
            is_past_start,
            last_use,
            count,
            bytes,
            growing,
            growing_bytes,
            limit,
        }
    }

    /// The files of a target, newest first.
    pub fn of_target(&self, digest: Digest) -> Vec<Place> {
        let all = self.targets.get(&digest);
        all.map(|all| all.iter().rev().map(|it| it.place).collect()).unwrap_or_default()
    }

    /// Is there any of this target?
    pub fn has(&self, digest: Digest) -> bool {
        self.targets.contains_key(&digest)
    }

    /// The files of a target and of its parts.
    pub fn of_target_and_parts(&self, digest: Digest) -> Vec<Place> {
        let all = self.targets.range(parts_of(digest));
        all.flat_map(|(_, all)| all.iter().map(|it| it.place)).collect()
    }

    /// For whom this file is kept; `None`: it is not.
    pub fn holder(&self, digest: Digest, number: u64) -> Option<&Holder> {
        let it = self.targets.get(&digest)?.iter().find(|it| it.place.number == number)?;
        Some(&it.holder)
    }

    /// This one was given it. What was nobody's is his.
    pub fn touch(&mut self, digest: Digest, number: u64, by: &Holder) {
        let Some(all) = self.targets.get_mut(&digest) else { return };
        let Some(it) = all.iter_mut().find(|it| it.place.number == number) else { return };
        self.holdings.remove(&it.holder.in_group(), &(it.used, digest, number));
        self.last_use += 1;
        it.used = self.last_use;
        if it.holder == Holder::Nobody {
            it.holder = by.clone();
        }
        let used = (it.used, digest, number);
        self.holdings.add(&it.holder.in_group(), used, weight(&it.place, self.limit));
    }

    /// Notes a file, in place of one of the same number; those that are beyond the limits now are
    /// forgotten, and to be removed.
    pub fn insert(&mut self, place: Place, holder: Holder) -> Vec<Place> {
        self.forget(place.digest, place.number);
        self.last_use += 1;
        let used = (self.last_use, place.digest, place.number);
        self.holdings.add(&holder.in_group(), used, weight(&place, self.limit));
        self.count += 1;
        self.bytes += place.size();
        let all = self.targets.entry(place.digest).or_default();
        all.reserve_exact(1); // Most have one.
        all.push(Entry { place, holder, used: self.last_use });
        let oldest = || oldest_of_most(all.iter().map(|it| &it.holder)).map(|at| all[at].place);
        let crowded = (all.len() > VARIANTS).then(oldest).flatten();
        let crowded = crowded.and_then(|old| self.forget(old.digest, old.number));
        let mut gone: Vec<Place> = crowded.into_iter().collect();
        gone.extend(self.shrink());
        gone
    }

    /// Forgets what is beyond the limits.
    fn shrink(&mut self) -> Vec<Place> {
        let mut gone = Vec::new();
        while (self.bytes + self.growing_bytes > self.limit || self.count > MAX_FILES)
            && let Some(place) = self.forget_one()
        {
            gone.push(place);
        }
        gone
    }

    /// A file of this holder's begins that is not whole.
    pub fn begin(&mut self, number: u64, holder: Holder) {
        self.last_use += 1;
        let holder = holder.as_one();
        self.growing.insert(number, Growing { holder, bytes: 0, grew: self.last_use });
    }

    /// It has more bytes. What has no room then is forgotten, and to be removed: of files that are
    /// not whole those of the holder with the most bytes that have not grown for longest. `None`:
    /// it was one of these itself.
    pub fn grow(&mut self, number: u64, bytes: u64) -> Option<Gone> {
        let it = self.growing.get_mut(&number)?;
        self.last_use += 1;
        (it.bytes, it.grew) = (it.bytes + bytes, self.last_use);
        self.growing_bytes += bytes;
        let mut unfinished = Vec::new();
        while self.growing_bytes > self.limit / UNFINISHED
            && let Some(number) = self.unfinished_that_gives_way()
        {
            self.end(number);
            unfinished.push(number);
        }
        Some(Gone { places: self.shrink(), unfinished })
    }

    fn unfinished_that_gives_way(&self) -> Option<u64> {
        let mut sums = BTreeMap::new();
        for it in self.growing.values() {
            *sums.entry(&it.holder).or_insert(0) += it.bytes;
        }
        let (most, _) = sums.into_iter().max_by_key(|(_, bytes)| *bytes)?;
        let its = self.growing.iter().filter(|(_, it)| it.holder == *most);
        its.min_by_key(|(_, it)| it.grew).map(|(number, _)| *number)
    }

    /// A file that was not whole is, or is given up.
    pub fn end(&mut self, number: u64) {
        if let Some(it) = self.growing.remove(&number) {
            self.growing_bytes -= it.bytes;
        }
    }

    /// What nobody was given since the program started goes first from now on. All hosts have had
    /// their time to ask for it, and no new answer of nobody's would ever displace it.
    pub fn end_start(&mut self) {
        self.is_past_start = true;
    }

    /// Forgets the one that gives way.
    pub fn forget_one(&mut self) -> Option<Place> {
        let of_nobody = self.holdings.first_of(&Holder::Nobody.in_group());
        let gives_way = of_nobody.filter(|_| self.is_past_start);
        let &(_, digest, number) = gives_way.or_else(|| self.holdings.gives_way())?;
        self.forget(digest, number)
    }

    /// Forgets one.
    pub fn forget(&mut self, digest: Digest, number: u64) -> Option<Place> {
        let all = self.targets.get_mut(&digest)?;
        let at = all.iter().position(|it| it.place.number == number)?;
        let Entry { place, holder, used } = all.remove(at);
        if all.is_empty() {
            self.targets.remove(&digest);
        }
        self.holdings.remove(&holder.in_group(), &(used, digest, number));
        self.count -= 1;
        self.bytes -= place.size();
        Some(place)
    }

    /// All of them.
    pub fn all(&self) -> impl Iterator<Item = Place> {
        self.targets.values().flatten().map(|it| it.place)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Is there none?
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Bytes that they take, without those that are not whole.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}
