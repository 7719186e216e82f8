//! Where answers lie on disk: a book of the files, about 150 bytes for each.

use std::collections::BTreeMap;
use std::rc::Rc;

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

/// What has no room any more, because something else grew.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Gone {
    /// Files.
    pub places: Vec<Place>,
    /// Numbers of files that are not whole.
    pub unfinished: Vec<u64>,
}

/// A file that is not whole.
#[derive(Debug)]
struct Growing {
    holder: Rc<str>,
    bytes: u64,
    /// When it grew last.
    grew: u64,
}

/// All files, within a limit; the least recently used go first.
#[derive(Debug)]
pub struct Index {
    targets: BTreeMap<Digest, Vec<(Place, u64)>>,
    /// By when they were used last.
    by_use: BTreeMap<u64, (Digest, u64)>,
    last_use: u64,
    bytes: u64,
    /// Files that are not whole, by number.
    growing: BTreeMap<u64, Growing>,
    growing_bytes: u64,
    limit: u64,
}

impl Index {
    /// For so many bytes on disk.
    pub fn new(limit: u64) -> Index {
        let (targets, by_use, last_use, bytes) = Default::default();
        let (growing, growing_bytes) = Default::default();
        Index { targets, by_use, last_use, bytes, growing, growing_bytes, limit }
    }

    /// The files of a target, newest first.
    pub fn of_target(&self, digest: Digest) -> Vec<Place> {
        let all = self.targets.get(&digest);
        all.map(|all| all.iter().rev().map(|(place, _)| *place).collect()).unwrap_or_default()
    }

    /// Is there any of this target?
    pub fn has(&self, digest: Digest) -> bool {
        self.targets.contains_key(&digest)
    }

    /// The files of a target and of its parts.
    pub fn of_target_and_parts(&self, digest: Digest) -> Vec<Place> {
        let all = self.targets.range(parts_of(digest));
        all.flat_map(|(_, all)| all.iter().map(|(place, _)| *place)).collect()
    }

    /// It was used.
    pub fn touch(&mut self, digest: Digest, number: u64) {
        let Some(all) = self.targets.get_mut(&digest) else { return };
        let Some((_, used)) = all.iter_mut().find(|(p, _)| p.number == number) else { return };
        self.by_use.remove(used);
        self.last_use += 1;
        *used = self.last_use;
        self.by_use.insert(*used, (digest, number));
    }

    /// Notes a file, in place of one of the same number; those that are beyond the limits now are
    /// forgotten, and to be removed.
    pub fn insert(&mut self, place: Place) -> Vec<Place> {
        self.forget(place.digest, place.number);
        self.last_use += 1;
        self.by_use.insert(self.last_use, (place.digest, place.number));
        self.bytes += place.size();
        let all = self.targets.entry(place.digest).or_default();
        all.push((place, self.last_use));
        let crowded = (all.len() > VARIANTS).then(|| all[0].0);
        let crowded = crowded.and_then(|old| self.forget(old.digest, old.number));
        let mut gone: Vec<Place> = crowded.into_iter().collect();
        gone.extend(self.shrink());
        gone
    }

    /// Forgets what is beyond the limits.
    fn shrink(&mut self) -> Vec<Place> {
        let mut gone = Vec::new();
        while (self.bytes + self.growing_bytes > self.limit || self.by_use.len() > MAX_FILES)
            && let Some(oldest) = self.forget_oldest()
        {
            gone.push(oldest);
        }
        gone
    }

    /// A file of this holder's begins that is not whole.
    pub fn begin(&mut self, number: u64, holder: Rc<str>) {
        self.last_use += 1;
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

    /// Forgets the least recently used one.
    pub fn forget_oldest(&mut self) -> Option<Place> {
        let (_, &(digest, number)) = self.by_use.first_key_value()?;
        self.forget(digest, number)
    }

    /// Forgets one.
    pub fn forget(&mut self, digest: Digest, number: u64) -> Option<Place> {
        let all = self.targets.get_mut(&digest)?;
        let at = all.iter().position(|(p, _)| p.number == number)?;
        let (place, used) = all.remove(at);
        if all.is_empty() {
            self.targets.remove(&digest);
        }
        self.by_use.remove(&used);
        self.bytes -= place.size();
        Some(place)
    }

    /// All of them.
    pub fn all(&self) -> impl Iterator<Item = Place> {
        self.targets.values().flatten().map(|(place, _)| *place)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.by_use.len()
    }

    /// Is there none?
    pub fn is_empty(&self) -> bool {
        self.by_use.is_empty()
    }

    /// Bytes that they take, without those that are not whole.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}
