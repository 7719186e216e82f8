//! The stores of chunks that came from peers: their files, served by a thread of their own
//! because files block (R-COMPRESS; spec/link.md, "Deduplication").
//!
//! The thread (`chunks/thread.rs`) does one thing after the other and answers each, so what has
//! no answer is counted, and there is a limit for each peer: what does not go to the thread
//! waits in the peer's store, which is bounded. Where an answer does not come within [`LATE`],
//! files count as not there and peers are asked for what is in them, until the thread has
//! caught up.
//!
//! The thread also opens them, and reads what they hold. Until it has, what the peer sends waits;
//! where it does nothing for [`OPENED`] the peer's chunks are kept in memory.

#[cfg(test)]
mod tests;
mod thread;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};

use link::PeerId;
use link::keys::PublicKey;
use os::OsError;
use os::poll::Waker;
use relay::Relay;
use squeeze::dedup::{Dedup, Keys, Limits, Op, Store, Written};
use units::{Duration, Instant};

use crate::calendar;
use crate::chunk_files::{Done, UNLISTED};
use thread::{Answer, Job, Outcome, Task, Worker};

/// What a peer's store may have under way: a read chunk, or 256 kB that are written, each.
const UNDER_WAY: usize = 16;
/// Less of a disk than this is of no use to a peer's store.
const LEAST: u64 = 256 << 10;
/// The part of a disk's room that is taken unasked: one in so many.
const PART: u64 = 4;
/// Streams wait no longer for a file.
const LATE: Duration = Duration::from_secs(1);
/// A peer's streams wait no longer for its files to be opened, from when the thread last did
/// anything: at the start of a hub it opens those of many peers, one after the other.
const OPENED: Duration = Duration::from_secs(10);
/// The thread has caught up when it answers within this: well below [`LATE`], and not only when
/// nothing is asked for, which with several busy peers may never be.
const CAUGHT_UP: Duration = Duration::from_millis(250);
/// What waits is written, and what the peer holds written down, so long after it came: what a
/// program that is killed loses.
const SAVED_AFTER: Duration = Duration::from_secs(1);
/// After a failure nothing is written for so long but what fills a batch: of what the peer holds
/// it is all, then.
const AFTER_FAILURE: Duration = Duration::from_secs(60);
/// Failures are told no more often than this: a disk that is full, or gone, fails all the time.
const TOLD_AGAIN: Duration = Duration::from_secs(600);
/// What is left at the end of the program is waited for so long, and where files are late.
const END: std::time::Duration = std::time::Duration::from_secs(5);
const LATE_END: std::time::Duration = std::time::Duration::from_millis(100);

/// What is known of one peer's files.
#[derive(Default)]
struct Known {
    store: u64,
    /// Operations without an answer, and what of them is an append.
    under_way: usize,
    appending: Option<u64>,
    saving: bool,
    /// What waits is written, and what the peer holds written down, from then on.
    rests_until: Option<Instant>,
}

/// A peer whose files are being opened.
struct Opening {
    asked: Instant,
    dir: PathBuf,
    keys: Arc<Keys>,
}

/// The files of all peers' chunks.
pub struct ChunkStores {
    place: ChunkPlace,
    worker: Option<Worker>,
    pub waker: Waker,
    known: BTreeMap<PeerId, Known>,
    opening: BTreeMap<PeerId, Opening>,
    /// Whose a store is.
    peers: BTreeMap<u64, PeerId>,
    stores: u64,
    /// When what has no answer was asked for, in this order.
    asked: VecDeque<Instant>,
    /// When the thread last answered.
    answered: Instant,
    /// What each peer's chunks may cost.
    limits: Limits,
    late: bool,
    /// Peers whose files have to be served.
    busy: BTreeSet<PeerId>,
    /// Peers whose chunks changed, and when they are to be saved.
    changed: BTreeSet<PeerId>,
    save_at: Option<Instant>,
    /// It was told that there is no room on disk, and that a peer's files cannot be used.
    told_no_room: bool,
    told_unusable: bool,
    /// When a failure was told last, and that the disk does not answer.
    failure_told: Option<Instant>,
    late_told: Option<Instant>,
    /// When another day is noted for peers that are gone.
    note_at: Option<Instant>,
}

/// Files of a peer that is no longer in the configuration stay for so many days.
const KEPT: usize = 30;
/// The length of a key's name.
const KEY_NAME: usize = 44;

/// A key as the name of a directory: base64 may hold a slash.
fn name(key: &PublicKey) -> String {
    key.to_string().replace('/', "_")
}

/// Bytes of the files in the directories below `dir`.
fn used(dir: &Path) -> u64 {
    let entries = |dir: &Path| std::fs::read_dir(dir).into_iter().flatten().flatten();
    let lengths = entries(dir).flat_map(|store| entries(&store.path()));
    lengths.filter_map(|file| Some(file.metadata().ok()?.len())).sum()
}

/// Bytes that stores take unasked of a disk with so many free, where they have `used` already: a
/// disk that is full when the program starts leaves them a part of these. None where files are in
/// memory (`free` is `None`).
fn room(free: Option<u64>, used: u64) -> u64 {
    free.map_or(0, |free| free.saturating_add(used) / PART)
}

/// Where a node's stores are.
#[derive(Clone)]
pub struct ChunkPlace {
    /// `None`: chunks are kept in memory only.
    dir: Option<PathBuf>,
    /// The most that all of them may take of the disk.
    room: u64,
}

impl ChunkPlace {
    /// For the node with this key under `dir`, with as much of the disk as there is room for
    /// where nobody said how much.
    pub fn find(dir: Option<&Path>, is_given: bool, node: &PublicKey) -> ChunkPlace {
        let dir = dir.map(|dir| dir.join(name(node)));
        // A disk that does not say what is free counts as full.
        let of = |dir: &PathBuf| room(os::disk::free(dir).unwrap_or(Some(0)), used(dir));
        ChunkPlace { room: if is_given { u64::MAX } else { dir.as_ref().map_or(0, of) }, dir }
    }

    /// Deletes the files of peers that are to have none (`off`), and of those that have not been
    /// in the configuration for [`KEPT`]: what their hosts got is not to stay for ever, and a
    /// key that was mistyped for a while costs nothing. `on`: the peers that have files, each
    /// `part` bytes of disk. If that is of no use they have none either: nobody would ever open
    /// them. `today`: as [`today`] says.
    pub fn forget_others(&self, on: &[PublicKey], off: &[PublicKey], part: u64, today: u64) {
        let Some(dir) = &self.dir else { return };
        let names = |keys: &[PublicKey]| keys.iter().map(name).collect::<BTreeSet<_>>();
        let (mut on, mut off) = (names(on), names(off));
        if part < LEAST {
            off.append(&mut on);
        }
        for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
            let Ok(key) = entry.file_name().into_string() else { continue };
            if key.len() != KEY_NAME || on.contains(&key) {
                continue;
            }
            let is_over = off.contains(&key) || days_gone(&entry.path(), today, true) >= KEPT;
            if is_over && std::fs::remove_dir_all(entry.path()).is_ok() {
                let why = match off.contains(&key) {
                    true => "deduplication is off for it, or its part of the disk too small",
                    false => "it has not been in the configuration for 30 days",
                };
                let peer = key.replace('_', "/");
                crate::log!(
                    Info,
                    "the stored chunks of a peer were deleted",
                    peer = peer,
                    why = why
                );
            }
        }
    }
}

/// Days since 1970.
pub fn today() -> u64 {
    calendar::seconds() / 86_400
}

/// On how many days other than `today` it was seen that the peer whose files are in `dir` is not in
/// the configuration. A file has their dates, and is gone when its files are opened again: dates
/// and not a time, because a clock that is set, or that begins in 1970 at each start, then adds a
/// day at most. `begins`: a file that is not there is made.
fn days_gone(dir: &Path, today: u64, begins: bool) -> usize {
    let (mark, today) = (dir.join(UNLISTED), calendar::day(today));
    let text = std::fs::read_to_string(&mark).unwrap_or_default();
    let mut days: BTreeSet<&str> = text.lines().filter(|line| calendar::is_day(line)).collect();
    if days.remove(today.as_str()) {
        return days.len();
    }
    let file = std::fs::File::options().create(begins).append(true).open(&mark);
    let is_written = file.and_then(|mut file| writeln!(file, "{today}")).is_ok();
    if is_written && days.is_empty() {
        let dir = dir.display();
        crate::log!(
            Warn,
            "chunks of a peer that is not in the configuration are kept for 30 days",
            dir = dir
        );
    }
    days.len()
}

/// Notes another day for all that are gone: a program that is seldom started counts as well.
fn note_day(place: &ChunkPlace, today: u64) {
    for store in place.dir.iter().flat_map(std::fs::read_dir).flatten().flatten() {
        days_gone(&store.path(), today, false);
    }
}

impl ChunkStores {
    /// None yet.
    ///
    /// # Errors
    /// If there is no descriptor for the waker.
    pub fn new(place: ChunkPlace) -> Result<ChunkStores, OsError> {
        Ok(ChunkStores {
            place,
            worker: None,
            waker: Waker::new()?,
            known: BTreeMap::new(),
            opening: BTreeMap::new(),
            peers: BTreeMap::new(),
            stores: 0,
            asked: VecDeque::new(),
            answered: Instant::ZERO,
            limits: Limits::default(),
            late: false,
            busy: BTreeSet::new(),
            changed: BTreeSet::new(),
            save_at: None,
            told_no_room: false,
            told_unusable: false,
            failure_told: None,
            late_told: None,
            note_at: None,
        })
    }

    /// The most of the disk that one of so many peers may have.
    pub fn room(&self, peers: usize) -> u64 {
        self.place.room / peers.max(1) as u64
    }

    /// Each peer's chunks may cost so much from now on.
    pub fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
    }

    /// Deduplicates the streams of a peer, within the limits, as soon as its files are open. Where
    /// they cannot be used chunks are kept in memory, which is told once.
    pub fn add(&mut self, now: Instant, relay: &mut Relay, peer: PeerId, key: &PublicKey) {
        let Some(secret) = relay.endpoint.chunk_secret(peer) else { return };
        let keys = Arc::new(Keys::new(&secret));
        let has_room = self.limits.disk >= LEAST;
        let can = has_room || self.place.room == u64::MAX;
        if !can && !std::mem::replace(&mut self.told_no_room, true) {
            let help = "dedup_disk says how much is used in any case";
            crate::log!(Info, "no room on disk: chunks are kept in memory only", help = help);
        }
        let Some(dir) = self.place.dir.as_ref().filter(|_| has_room).map(|dir| dir.join(name(key)))
        else {
            return self.keep_in_memory(relay, peer, keys);
        };
        if self.worker.is_none() {
            match Worker::start(self.waker.clone()) {
                Ok(worker) => self.worker = Some(worker),
                Err(e) => {
                    self.tell_unusable(&dir, &e);
                    return self.keep_in_memory(relay, peer, keys);
                }
            }
        }
        relay.await_dedup(peer);
        self.stores += 1;
        self.send(Job(self.stores, Task::Open(dir.clone(), keys.clone(), self.limits)));
        self.opening.insert(peer, Opening { asked: now, dir, keys });
        self.known.insert(peer, Known { store: self.stores, ..Known::default() });
        self.peers.insert(self.stores, peer);
    }

    fn keep_in_memory(&self, relay: &mut Relay, peer: PeerId, keys: Arc<Keys>) {
        // A system without randomness has no node: its keys would be none.
        let Ok(epoch) = os::proc::entropy().map(|bytes| u64::from_ne_bytes(bytes) | 1) else {
            return;
        };
        let store = Store::new(keys.clone(), self.limits.memory, 0, epoch);
        relay.set_dedup(peer, Dedup::new(keys, store, &Limits { disk: 0, ..self.limits }));
    }

    fn tell_unusable(&mut self, dir: &Path, why: &dyn std::fmt::Display) {
        if !std::mem::replace(&mut self.told_unusable, true) {
            crate::log!(
                Warn,
                "chunks are kept in memory only",
                dir = dir.display(),
                error = why,
                mend = "name a directory of this user's with dedup_dir in [node], or set \
                        dedup_disk = \"0B\""
            );
        }
    }

    /// The thread has opened a peer's files, or could not.
    fn on_opened(&mut self, relay: &mut Relay, peer: PeerId, opened: std::io::Result<Box<Dedup>>) {
        let Some(Opening { dir, keys, .. }) = self.opening.remove(&peer) else { return };
        match opened {
            Ok(mut dedup) => {
                dedup.set_limits(&self.limits);
                dedup.receiver.set_late(self.late);
                relay.set_dedup(peer, *dedup);
                self.busy.insert(peer);
            }
            Err(e) => {
                self.tell_unusable(&dir, &e);
                self.do_without(relay, peer, keys);
            }
        }
    }

    /// The peer has no files, and its chunks are in memory.
    fn do_without(&mut self, relay: &mut Relay, peer: PeerId, keys: Arc<Keys>) {
        if let Some(known) = self.known.remove(&peer) {
            self.peers.remove(&known.store);
            self.send(Job(known.store, Task::Close));
        }
        self.keep_in_memory(relay, peer, keys);
    }

    /// Peers whose files were not opened in time do without them.
    fn give_up_opening(&mut self, now: Instant, relay: &mut Relay) {
        if self.opening_due().is_none_or(|at| at > now) {
            return;
        }
        for (peer, opening) in std::mem::take(&mut self.opening) {
            self.tell_unusable(&opening.dir, &"the disk does not answer");
            self.do_without(relay, peer, opening.keys);
        }
    }

    /// When peers whose files are being opened do without them.
    fn opening_due(&self) -> Option<Instant> {
        let asked = self.opening.values().map(|opening| opening.asked).min()?;
        Some(asked.max(self.answered) + OPENED)
    }

    /// Hands over what is answered.
    fn ask_for(&mut self, now: Instant, store: u64, task: Task) {
        self.asked.push_back(now);
        self.send(Job(store, task));
    }

    fn send(&self, job: Job) {
        if let Some(worker) = &self.worker {
            // Without a thread nothing is answered: files are late for ever.
            let _ = worker.jobs.send(job);
        }
    }

    /// The peer is about to be taken out. What there is of it is written when the thread comes
    /// to it.
    pub fn remove(&mut self, now: Instant, relay: &mut Relay, peer: PeerId) {
        if let Some(known) = self.known.remove(&peer) {
            self.peers.remove(&known.store);
            relay.serve_files(peer, |dedup| {
                self.send_all(now, &known, dedup);
                false
            });
            self.send(Job(known.store, Task::Close));
        }
        self.opening.remove(&peer);
        self.busy.remove(&peer);
        self.changed.remove(&peer);
    }

    /// Hands over all that is to be written, as if it had been.
    fn send_all(&mut self, now: Instant, known: &Known, dedup: &mut Dedup) {
        dedup.receiver.store.flush();
        if let Some(segment) = known.appending {
            dedup.receiver.appended(segment, Written::All);
        }
        while let Some(op) = dedup.receiver.poll_op() {
            let segment = segment_of(&op);
            if !matches!(op, Op::Load { .. }) {
                self.ask_for(now, known.store, Task::Op(op));
            }
            if let Some(segment) = segment {
                dedup.receiver.appended(segment, Written::All);
            }
        }
        if let Some(journal) = dedup.sender.poll_journal() {
            self.ask_for(now, known.store, Task::Save(journal));
        }
    }

    /// Hands over all that there is to be written, at the end of the program.
    pub fn finish(&mut self, now: Instant, relay: &mut Relay) -> Finishing {
        let peers: Vec<PeerId> = self.known.keys().copied().collect();
        peers.into_iter().for_each(|peer| self.remove(now, relay, peer));
        // The thread, which has no more to come, ends after the last.
        let answers = self.worker.take().map(|worker| worker.answers);
        Finishing { answers, patience: if self.late { LATE_END } else { END } }
    }

    /// When [`ChunkStores::work`] is to be called although nothing else happens.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let late = self.asked.front().filter(|_| !self.late).map(|at| *at + LATE);
        let opening = self.opening_due();
        self.save_at.into_iter().chain(late).chain(self.note_at).chain(opening).min()
    }

    /// Asks for what chunks want of files, and tells what came of it.
    pub fn work(&mut self, now: Instant, relay: &mut Relay) {
        self.take_answers(now, relay);
        self.give_up_opening(now, relay);
        while let Some(peer) = relay.poll_files() {
            if self.known.contains_key(&peer) {
                self.busy.insert(peer);
                self.changed.insert(peer);
                self.save_at.get_or_insert(now + SAVED_AFTER);
            }
        }
        if self.save_at.is_some_and(|at| at <= now) {
            self.save_at = None;
            for peer in std::mem::take(&mut self.changed) {
                self.save(now, relay, peer);
            }
        }
        if self.worker.is_some() && self.note_at.is_none_or(|at| at <= now) {
            self.note_at = Some(now + Duration::from_secs(86_400));
            self.send(Job(0, Task::NoteDay(self.place.clone())));
        }
        while let Some(peer) = self.busy.pop_first() {
            self.ask(now, relay, peer);
        }
        if !self.late && self.asked.front().is_some_and(|at| now.since(*at) >= LATE) {
            if is_due(&mut self.late_told, now) {
                crate::log!(Warn, "the disk of chunks does not answer: peers are asked meanwhile");
            }
            self.set_late(relay, true);
        }
    }

    fn take_answers(&mut self, now: Instant, relay: &mut Relay) {
        while let Some(Ok(Answer(store, outcome))) =
            self.worker.as_ref().map(|worker| worker.answers.try_recv())
        {
            self.answered = now;
            let peer = self.peers.get(&store).copied();
            let (done, error) = match outcome {
                Outcome::Done(done, error) => (done, error),
                Outcome::Opened(opened) => {
                    if let Some(peer) = peer {
                        self.on_opened(relay, peer, opened);
                    }
                    continue;
                }
            };
            self.asked.pop_front();
            if let Some(error) = error
                && is_due(&mut self.failure_told, now)
            {
                crate::log!(Warn, "chunks could not be written or read", error = error);
            }
            let Some(peer) = peer else { continue };
            let Some(known) = self.known.get_mut(&peer) else { continue };
            match &done {
                Done::Saved { ok } => {
                    known.saving = false;
                    known.rests_until = (!ok).then(|| now + AFTER_FAILURE);
                }
                Done::Appended { written, .. } => {
                    (known.appending, known.under_way) = (None, known.under_way - 1);
                    if *written == Written::Failed {
                        known.rests_until = Some(now + AFTER_FAILURE);
                    }
                }
                Done::Loaded { .. } | Done::PutAway => known.under_way -= 1,
            }
            relay.serve_files(peer, |dedup| {
                done.tell(dedup);
                true
            });
            self.busy.insert(peer);
        }
        let in_time = |at: &Instant| now.since(*at) < CAUGHT_UP;
        if self.late && self.asked.front().is_none_or(in_time) {
            self.set_late(relay, false);
        }
    }

    fn set_late(&mut self, relay: &mut Relay, late: bool) {
        self.late = late;
        for peer in self.known.keys() {
            relay.serve_files(*peer, |dedup| {
                dedup.receiver.set_late(late);
                true
            });
        }
    }

    /// Hands to the thread what a peer's store wants, as far as there is room for it.
    fn ask(&mut self, now: Instant, relay: &mut Relay, peer: PeerId) {
        let Some(known) = self.known.get_mut(&peer) else { return };
        let (store, mut ops) = (known.store, Vec::new());
        relay.serve_files(peer, |dedup| {
            while known.under_way < UNDER_WAY {
                let Some(op) = dedup.receiver.poll_op() else { break };
                known.under_way += 1;
                known.appending = segment_of(&op).or(known.appending);
                ops.push(op);
            }
            false
        });
        ops.into_iter().for_each(|op| self.ask_for(now, store, Task::Op(op)));
    }

    fn save(&mut self, now: Instant, relay: &mut Relay, peer: PeerId) {
        let Some(known) = self.known.get_mut(&peer) else { return };
        self.busy.insert(peer);
        let mut journal = None;
        relay.serve_files(peer, |dedup| {
            let rests = known.rests_until.is_some_and(|until| now < until);
            if !rests {
                dedup.receiver.store.flush();
            }
            journal = if rests || known.saving { None } else { dedup.sender.poll_journal() };
            false
        });
        let rests_until = known.rests_until.filter(|until| now < *until);
        if known.saving || rests_until.is_some() {
            self.changed.insert(peer);
            self.save_at.get_or_insert(now + SAVED_AFTER);
        }
        if let Some(journal) = journal {
            known.saving = true;
            let store = known.store;
            self.ask_for(now, store, Task::Save(journal));
        }
    }
}

/// A thread that writes what is left.
pub struct Finishing {
    answers: Option<Receiver<Answer>>,
    patience: std::time::Duration,
}

impl Finishing {
    /// Waits for it, for a few seconds from `begin` on: several have them in common.
    pub fn wait(self, begin: std::time::Instant) {
        let Some(answers) = self.answers else { return };
        loop {
            let left = self.patience.saturating_sub(begin.elapsed());
            match answers.recv_timeout(left) {
                Ok(_) => {}
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => break,
            }
        }
        crate::log!(Warn, "not all chunks were written: the disk does not answer");
    }
}

fn segment_of(op: &Op) -> Option<u64> {
    match op {
        Op::Append { segment, .. } => Some(*segment),
        Op::Load { .. } | Op::Remove { .. } | Op::Quarantine { .. } => None,
    }
}

/// Is it to be told now what was told then?
fn is_due(told: &mut Option<Instant>, now: Instant) -> bool {
    let is_due = told.is_none_or(|at| now.since(at) >= TOLD_AGAIN);
    if is_due {
        *told = Some(now);
    }
    is_due
}
