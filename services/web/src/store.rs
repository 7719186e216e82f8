//! Where answers are kept: in memory, and in files that threads read and write, so that no disk
//! holds up the loop.

mod file_body;
mod giving;
mod keeping;
mod writer;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::ErrorKind;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bentpipe_web::cache::record::{MAX_ABOUT, PIECE, Record};
use bentpipe_web::cache::{
    Asked, Digest, Gone, Holder, Index, Key, Memory, Now, Place, Stored, parts_of,
};
use bentpipe_web::disk::{Disk, Loaded};
use bytes::Bytes;
use tokio::sync::mpsc::UnboundedReceiver;

use crate::clock::Clock;
use crate::counted::Counted;
use crate::local::Local;
use crate::shares::Places;
pub use file_body::FileBody;
pub use keeping::{Keep, kept};
use writer::{Job, Told, Writer};

/// Bytes of one answer where there is no disk.
const LONGEST: u64 = 1 << 20;
/// Bytes of answers that are on their way to memory are this part of those that may be there;
/// beyond that, and beyond its
/// holder's share, none is begun.
const ON_THEIR_WAY: usize = 2;
/// What one answer may take of the disk: this part.
const PART: u64 = 8;
/// After this time answers are not new to the program any more ([`Index::end_start`]).
const START: Duration = Duration::from_secs(86_400);
/// Bytes of one answer on disk, however large that is: its file has room for the checks of so many
/// pieces (8 bytes each) beside 64 KiB of all else that it says of it.
const LARGEST: u64 = ((MAX_ABOUT - (64 << 10)) / 8 * PIECE) as u64;

/// All that is kept.
pub struct Store {
    memory: RefCell<Memory>,
    index: RefCell<Index>,
    files: RefCell<Option<Files>>,
    /// Answers that are on their way here, by number.
    pending: RefCell<BTreeMap<u64, Pending>>,
    /// Bytes that they have so far in memory, by who asked for them.
    on_their_way: Rc<Places<Holder>>,
    last: Cell<u64>,
    clock: Clock,
    largest: u64,
    counted: Rc<Counted>,
}

/// What an answer on its way is to: its digest, and that of its URI; and who asked.
struct Pending {
    digest: Digest,
    uri: u64,
    holder: Holder,
}

struct Files {
    disk: Arc<Disk>,
    writer: Writer,
}

/// An answer that was found, and its body.
#[derive(Clone)]
pub struct Found {
    pub stored: Arc<Stored>,
    pub body: FoundBody,
}

/// Where a body is.
#[derive(Clone)]
pub enum FoundBody {
    Memory(Bytes),
    File { file: Arc<File>, checks: Arc<[u64]>, place: Place },
}

impl Store {
    /// So many bytes in memory, and `limit` in `directory` if there is one, from when it has been
    /// read.
    pub fn open(
        directory: Option<&Path>,
        memory: usize,
        limit: u64,
        counted: Rc<Counted>,
    ) -> Rc<Store> {
        let (files, pending, last) = Default::default();
        let store = Rc::new(Store {
            memory: Memory::new(memory).into(),
            index: Index::new(limit).into(),
            files,
            pending,
            on_their_way: Places::new(memory / ON_THEIR_WAY),
            last,
            clock: Clock::start(),
            largest: (limit / PART).min(LARGEST),
            counted,
        });
        if let Some(directory) = directory {
            let (writer, told) = Writer::start(directory);
            Local::spawn(store.clone().hear(writer, told));
        }
        store
    }

    /// What the clocks say.
    pub fn now(&self) -> Now {
        self.clock.now()
    }

    /// The answer that is kept for this request, which is this one's.
    pub async fn find(&self, asked: &Asked, by: &Holder) -> Option<Found> {
        for digest in asked.digests() {
            let found = self.memory.borrow_mut().find(digest, asked);
            if let Some((stored, body)) = found {
                self.index.borrow_mut().touch(digest, stored.number, by);
                return Some(Found { stored, body: FoundBody::Memory(body) });
            }
            let places = self.index.borrow().of_target(digest);
            for place in places {
                let Some(loaded) = self.load(place).await else { continue };
                if loaded.record.stored.answers(asked) {
                    return Some(self.found(place, loaded, by));
                }
            }
        }
        None
    }

    /// For whom this answer is kept still, or is on its way to the disk. What was read of one may
    /// have been forgotten meanwhile.
    fn holder(&self, digest: Digest, number: u64) -> Option<Holder> {
        let in_memory = self.memory.borrow().holder(digest, number).cloned();
        let on_disk = || self.index.borrow().holder(digest, number).cloned();
        let pending = || self.pending.borrow().get(&number).map(|it| it.holder.clone());
        in_memory.or_else(on_disk).or_else(pending)
    }

    /// Is something kept of this target, or on its way here?
    pub fn has(&self, target: Digest) -> bool {
        self.memory.borrow().has(target)
            || self.index.borrow().has(target)
            || self.pending.borrow().values().any(|it| it.digest == target)
    }

    fn found(&self, place: Place, loaded: Loaded, by: &Holder) -> Found {
        let Loaded { record, body, file } = loaded;
        self.index.borrow_mut().touch(place.digest, place.number, by);
        let stored = Arc::new(record.stored);
        let body = match body {
            Some(body) => {
                if self.holder(place.digest, place.number).is_some() {
                    let (stored, body) = (Arc::clone(&stored), body.clone());
                    // There it is for who had it read.
                    self.memory.borrow_mut().insert(place.digest, stored, body, by.clone());
                }
                FoundBody::Memory(body)
            }
            None => FoundBody::File { file: file.into(), checks: record.checks.into(), place },
        };
        Found { stored, body }
    }

    async fn load(&self, place: Place) -> Option<Loaded> {
        let disk = self.files.borrow().as_ref().map(|files| Arc::clone(&files.disk))?;
        let now = self.now();
        let loaded = tokio::task::spawn_blocking(move || disk.load(&place, now)).await.ok()?;
        match loaded {
            Ok(loaded) => Some(loaded),
            // It was freshened or removed meanwhile.
            Err(e) if e.kind() == ErrorKind::NotFound => None,
            Err(why) => {
                self.is_damaged(place, &why.to_string());
                None
            }
        }
    }

    /// A file is not what it was: it is as good as none.
    pub fn is_damaged(&self, place: Place, why: &str) {
        eprintln!("an answer on disk cannot be read, and is removed: {why}");
        Counted::add(&self.counted.damaged);
        self.forget(place.digest, place.number);
    }

    /// Forgets one answer.
    pub fn forget(&self, digest: Digest, number: u64) {
        self.memory.borrow_mut().forget(digest, number);
        self.pending.borrow_mut().remove(&number);
        let place = self.index.borrow_mut().forget(digest, number);
        place.into_iter().for_each(|place| self.remove_file(place));
    }

    /// Forgets all answers to what `key` names, parts and those on their way here, too.
    pub fn forget_target(&self, key: &Key) {
        let digest = key.digest();
        self.memory.borrow_mut().forget_target(digest);
        self.pending.borrow_mut().retain(|_, it| !parts_of(digest).contains(&it.digest));
        let places = self.index.borrow().of_target_and_parts(digest);
        places.into_iter().for_each(|place| self.forget(place.digest, place.number));
    }

    /// An answer that had been stale holds again, as this. One that was forgotten while its server
    /// was asked is given once more, and stays forgotten.
    pub fn freshen(&self, old: &Found, new: Stored) -> Found {
        let (digest, stored) = (new.digest(), Arc::new(new));
        let found = Found { stored: Arc::clone(&stored), body: old.body.clone() };
        let Some(holder) = self.holder(digest, stored.number) else { return found };
        let body = match &old.body {
            FoundBody::Memory(body) => {
                let (stored, body) = (Arc::clone(&stored), body.clone());
                self.memory.borrow_mut().insert(digest, stored, body.clone(), holder);
                Some(body)
            }
            FoundBody::File { .. } => None,
        };
        let checks = match &old.body {
            FoundBody::File { checks, .. } => checks.to_vec(),
            FoundBody::Memory(_) => Vec::new(),
        };
        let places = self.index.borrow().of_target(digest);
        if let Some(place) = places.into_iter().find(|place| place.number == stored.number) {
            let record = Box::new(Record { stored: (*stored).clone(), checks });
            self.order(Job::Freshen { place, record, body, now: self.now() });
        }
        found
    }

    fn order(&self, job: Job) -> bool {
        self.files.borrow().as_ref().is_some_and(|files| files.writer.order(job))
    }

    fn remove_file(&self, place: Place) {
        self.order(Job::Remove(place));
    }

    /// Follows what the writing thread tells.
    async fn hear(self: Rc<Store>, writer: Writer, mut told: UnboundedReceiver<Told>) {
        let mut writer = Some(writer);
        while let Some(it) = told.recv().await {
            match it {
                Told::Opened(disk, places) => {
                    let newest = places.last().map_or(0, |place| place.number);
                    self.last.set(self.last.get().max(newest));
                    if let Some(writer) = writer.take() {
                        *self.files.borrow_mut() = Some(Files { disk, writer });
                    }
                    places.into_iter().for_each(|place| self.note(place, Holder::Nobody));
                }
                Told::Kept(place) => {
                    self.index.borrow_mut().end(place.number);
                    // It may have been forgotten meanwhile.
                    match self.pending.borrow_mut().remove(&place.number) {
                        Some(it) => {
                            Counted::add(&self.counted.stored);
                            self.note(place, it.holder);
                        }
                        None => self.remove_file(place),
                    }
                }
                Told::Moved(old, new) => {
                    let known = self.index.borrow().holder(old.digest, old.number).cloned();
                    match known {
                        // In place of the old one, which has the same number.
                        Some(holder) => self.note(new, holder),
                        None => self.remove_file(new),
                    }
                }
                Told::Failed { number, full } => {
                    self.pending.borrow_mut().remove(&number);
                    self.index.borrow_mut().end(number);
                    Counted::add(&self.counted.not_written);
                    self.make_room(full);
                }
            }
        }
    }

    fn note(&self, place: Place, holder: Holder) {
        let mut index = self.index.borrow_mut();
        if self.now().steady >= START {
            index.end_start();
        }
        let gone = index.insert(place, holder);
        drop(index);
        gone.into_iter().for_each(|place| self.gives_way(place));
    }

    fn gives_way(&self, place: Place) {
        self.memory.borrow_mut().forget(place.digest, place.number);
        self.remove_file(place);
    }

    /// A file that is not whole grows; false if it is to be no more.
    fn grow(&self, number: u64, bytes: usize) -> bool {
        let gone = self.index.borrow_mut().grow(number, bytes as u64);
        let Some(Gone { places, unfinished }) = gone else { return false };
        places.into_iter().for_each(|place| self.gives_way(place));
        for number in unfinished {
            Counted::add(&self.counted.not_written);
            self.pending.borrow_mut().remove(&number);
            self.order(Job::Drop(number));
        }
        true
    }

    /// The disk is full before the limit is reached: others have it. So that something new finds
    /// room, what would have taken `bytes` and more goes.
    fn make_room(&self, bytes: u64) {
        let mut freed = 0;
        while freed < bytes.saturating_mul(2) {
            let Some(place) = self.index.borrow_mut().forget_one() else { return };
            freed += place.length;
            self.remove_file(place);
        }
    }

    /// Forgets what is kept of a URI, or everything; how many that was.
    pub fn purge(&self, uri: Option<u64>) -> usize {
        let is = |of: u64| uri.is_none_or(|uri| uri == of);
        let held: Vec<_> = {
            let (memory, index) = (self.memory.borrow(), self.index.borrow());
            let in_memory = memory.all().filter(|(_, it)| is(it.key.uri_digest()));
            let in_memory = in_memory.map(|(digest, it)| (digest, it.number));
            let on_disk = index.all().filter(|place| is(place.uri));
            let on_disk = on_disk.map(|place| (place.digest, place.number));
            in_memory.chain(on_disk).collect::<BTreeSet<_>>().into_iter().collect()
        };
        held.iter().for_each(|(digest, number)| self.forget(*digest, *number));
        // What is on its way is obsolete, too.
        self.pending.borrow_mut().retain(|_, it| !is(it.uri));
        held.len()
    }

    /// What is kept of a URI, and where: `most` of it in memory, and on disk.
    pub async fn all_of(&self, uri: u64, most: usize) -> Vec<(Arc<Stored>, &'static str)> {
        let mut all: Vec<_> = {
            let memory = self.memory.borrow();
            let its = memory.all().filter(|(_, it)| it.key.uri_digest() == uri);
            its.take(most).map(|(_, it)| (Arc::clone(it), "in memory")).collect()
        };
        let places: Vec<_> = {
            let index = self.index.borrow();
            index.all().filter(|place| place.uri == uri).take(most).collect()
        };
        for place in places {
            match all.iter_mut().find(|(it, _)| it.number == place.number) {
                Some((_, at)) => *at = "in memory and on disk",
                None => {
                    let loaded = self.load(place).await;
                    all.extend(loaded.map(|it| (Arc::new(it.record.stored), "on disk")));
                }
            }
        }
        all
    }

    /// Answers in memory and on disk, and the bytes that they take.
    pub fn sizes(&self) -> Sizes {
        let (memory, index) = (self.memory.borrow(), self.index.borrow());
        Sizes {
            in_memory: memory.len() as u64,
            memory_bytes: memory.bytes() as u64,
            on_disk: index.len() as u64,
            disk_bytes: index.bytes(),
        }
    }
}

impl Store {
    /// What was given out of it and is in it, by name.
    pub fn told(&self) -> Vec<(&'static str, u64)> {
        let c = &self.counted;
        let counted = [
            ("hits", &c.hits),
            ("hit_bytes", &c.hit_bytes),
            ("validated", &c.validated),
            ("stored", &c.stored),
            ("not_written", &c.not_written),
            ("damaged", &c.damaged),
        ];
        let counted = counted.map(|(name, n)| (name, n.get()));
        counted.into_iter().chain(self.sizes().named()).collect()
    }
}

/// How much is kept.
pub struct Sizes {
    in_memory: u64,
    memory_bytes: u64,
    on_disk: u64,
    disk_bytes: u64,
}

impl Sizes {
    /// As they are told.
    pub fn named(&self) -> [(&'static str, u64); 4] {
        [
            ("in_memory", self.in_memory),
            ("memory_bytes", self.memory_bytes),
            ("on_disk", self.on_disk),
            ("disk_bytes", self.disk_bytes),
        ]
    }
}

#[cfg(test)]
mod tests;
