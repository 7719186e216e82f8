//! What outlives the program: usage by day, the log of outages, and when it was last alive.
//!
//! The loop keeps it in memory ([`usage::Book`], [`outages::Outages`]) and hands what is to be
//! written to a thread ([`keeper::Keeper`]), because disks block. Each file is written beside
//! the old one, flushed and moved over it, so that a crash leaves one or the other; files are
//! their owner's alone. After a crash at most the last minute is lost: shards tell every 20 s,
//! and every 40 s it is written.

mod keeper;
mod outages;
mod usage;

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::path::{Path, PathBuf};

use control::{Answer, By, Event, Notice, Outage};
use link::keys::PublicKey;
use os::OsError;
use os::poll::{Interest, Poller};
use units::{Duration, Instant};

use super::shard::tidings::PeerUsage;
use crate::calendar;
use crate::human;
use crate::state_directory::{read_whole, state_directory};
use keeper::{Job, Keeper};
use outages::{Alive, Outages};
use usage::Book;

pub use usage::Range;

/// How often it is written down that the gateway is alive: so exactly is known when it was
/// killed.
const ALIVE: Duration = Duration::from_secs(60);
/// Events that are kept for a log of outages that cannot be read; the oldest go first.
const MOST_EVENTS: usize = 10_000;
/// Between two writes of the log of outages.
const SPACING: Duration = Duration::from_secs(2);
/// Between two writes of the day: with what shards tell every 20 s it makes the minute that a crash
/// may cost.
const USAGE_SPACING: Duration = Duration::from_secs(40);
/// Earlier days that may wait to be written. Of more the oldest is lost.
const MOST_WAITING: usize = 8;

/// The files, and what is to be in them.
pub struct Kept {
    files: Option<Files>,
    keeper: Keeper,
    book: Book,
    /// Earlier days that the thread had no room for, or whose file cannot be read yet.
    waiting: Vec<Book>,
    outages: Outages,
    /// The log of outages could not be read: until it is, nothing is written over it.
    unread: Option<Unread>,
    alive_at: Instant,
    outages_at: Instant,
    usage_at: Option<Instant>,
    /// Jobs that the thread has not finished.
    asked: Vec<Asked>,
}

struct Files {
    usage: PathBuf,
    outages: PathBuf,
    alive: PathBuf,
}

/// What the log of outages is to know of the start.
struct Start {
    at_ms: u64,
    /// The peers' keys.
    peers: BTreeSet<String>,
}

/// What is made of the log of outages once it can be read.
struct Unread {
    start: Start,
    /// Events since the start, by the peer's key.
    events: VecDeque<(String, Notice)>,
}

impl Unread {
    fn keep(&mut self, key: String, notice: &Notice) {
        if Outages::is_concerned(&notice.event) {
            self.events.push_back((key, notice.clone()));
        }
        if self.events.len() > MOST_EVENTS {
            self.events.pop_front();
        }
    }
}

impl Files {
    /// The log of outages as it is at the start.
    fn read_outages(&self, start: &Start) -> io::Result<Outages> {
        let mut outages: Outages = read_whole(&self.outages)?.unwrap_or_default();
        outages.begin(read_whole(&self.alive)?, &start.peers, start.at_ms);
        Ok(outages)
    }
}

/// A client that waits for a report.
pub struct Asked {
    pub token: u64,
    /// Which of the clients that had this token.
    pub serial: u64,
}

impl Kept {
    /// What is kept of the node with this key and these peers, read from the state directory.
    /// `token` is for news of the thread, which starts with the first job.
    ///
    /// # Errors
    /// If the system has no more descriptors.
    pub fn open(
        node: &PublicKey,
        peers: &[PublicKey],
        poller: &Poller,
        token: u64,
    ) -> Result<Kept, OsError> {
        Kept::at(state_directory().as_deref(), node, peers, poller, token)
    }

    fn at(
        dir: Option<&Path>,
        node: &PublicKey,
        peers: &[PublicKey],
        poller: &Poller,
        token: u64,
    ) -> Result<Kept, OsError> {
        let keeper = Keeper::new()?;
        poller.add(&keeper.waker, token, Interest::READ)?;
        // Base64 may hold a slash.
        let name = node.to_string().replace('/', "_");
        let files = dir.map(|dir| Files {
            usage: dir.join(format!("{name}.usage")),
            outages: dir.join(format!("{name}.outages.json")),
            alive: dir.join(format!("{name}.alive.json")),
        });
        let now_ms = calendar::milliseconds();
        let usage = files.as_ref().map(|files| files.usage.as_path());
        let book = Book::open(now_ms / 86_400_000, usage);
        let (mut outages, mut unread) = (Outages::default(), None);
        let peers = peers.iter().map(ToString::to_string).collect();
        let start = Start { at_ms: now_ms, peers };
        match files.as_ref().map(|files| files.read_outages(&start)) {
            Some(Ok(read)) => outages = read,
            Some(Err(why)) => {
                let why = human::reason(&why);
                crate::log!(Error, "outages cannot be read, and are tried again", why = why);
                unread = Some(Unread { start, events: VecDeque::new() });
            }
            None => crate::log!(
                Info,
                "usage and outages are not kept: there is no state directory",
                mend = "run as root, or set STATE_DIRECTORY"
            ),
        }
        let (alive_at, outages_at) = (Instant::ZERO, Instant::ZERO);
        let (waiting, usage_at, asked) = (Vec::new(), None, Vec::new());
        Ok(Kept {
            files,
            keeper,
            book,
            waiting,
            outages,
            unread,
            alive_at,
            outages_at,
            usage_at,
            asked,
        })
    }

    /// Follows an event of the peer with this key; answers what it means for the log of outages.
    pub fn follow(&mut self, key: &PublicKey, notice: &Notice) -> Option<Notice> {
        let key = key.to_string();
        let event = self.outages.follow(&key, notice);
        if let Some(unread) = &mut self.unread {
            unread.keep(key, notice);
        }
        let event = event?;
        Some(Notice { at_ms: notice.at_ms, peer: notice.peer.clone(), event })
    }

    /// Books what a peer and its hosts had; answers it as watchers hear it.
    pub fn add(&mut self, had: &PeerUsage) -> Notice {
        let at_ms = calendar::milliseconds();
        self.turn(at_ms / 86_400_000);
        let (hosts, total) = self.book.add(had);
        let event = Event::Usage { day: self.book.day_name(), hosts, total: Box::new(total) };
        Notice { at_ms, peer: Some(had.name.clone()), event }
    }

    /// Goes over to the next day, if it has come. It has a file already where the clock stood in
    /// the past at the start.
    fn turn(&mut self, today: u64) {
        let day = self.book.day();
        // A clock that was set back by some hours does not open a day again; one that had been far
        // ahead for a moment does.
        if (day.saturating_sub(1)..=day).contains(&today) {
            return;
        }
        self.write_usage();
        let usage = self.files.as_ref().map(|files| files.usage.as_path());
        let before = std::mem::replace(&mut self.book, Book::open(today, usage));
        let Some(usage) = usage else { return };
        self.keeper.give(Job::Prune(usage.to_owned()));
        if before.changed {
            self.waiting.push(before);
        }
        if self.waiting.len() > MOST_WAITING {
            let day = self.waiting.remove(0).day_name();
            crate::log!(Error, "the usage of a day could not be written and is lost", day = day);
        }
    }

    /// Outages that have not ended, of a peer or of all.
    pub fn open_outages(&self, peer: Option<&str>) -> Vec<Outage> {
        self.outages.open(peer)
    }

    /// All that are kept, of a peer or of all.
    pub fn log(&self, peer: Option<&str>) -> Vec<Outage> {
        self.outages.log(peer)
    }

    /// Has a report of these days made for a client, which [`Kept::next_report`] gives.
    /// False if too much is to be done already.
    pub fn report(&mut self, asked: Asked, by: By, range: Range) -> bool {
        let dir = self.files.as_ref().map(|files| files.usage.clone());
        if let Some(files) = &self.files {
            let books = self.waiting.iter_mut().chain([&mut self.book]);
            // What cannot be read yet the report names.
            books.for_each(|book| drop(book.read(&files.usage)));
        }
        let live = self.waiting.iter().chain([&self.book]).cloned().collect();
        let given = self.keeper.give(Job::Report { dir, live, by, range });
        self.asked.extend(Some(asked).filter(|_| given));
        given
    }

    /// A report that was made, and who waits for it.
    pub fn next_report(&mut self) -> Option<(Asked, Answer)> {
        let report = self.keeper.next_report()?;
        // They are made in the order in which they were asked for.
        (!self.asked.is_empty()).then(|| (self.asked.remove(0), Answer::Usage(Box::new(report))))
    }

    /// When [`Kept::save`] is to be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.files.as_ref()?;
        let outages = self.has_outages().then_some(self.outages_at + SPACING);
        let usage = self.has_usage().then(|| self.usage_due());
        [Some(self.alive_at + ALIVE), outages, usage].into_iter().flatten().min()
    }

    /// Writes what has changed and is due.
    pub fn save(&mut self, now: Instant) {
        if self.files.is_none() {
            return;
        }
        if self.has_usage() && self.usage_due() <= now {
            self.write_usage();
            self.usage_at = Some(now);
        }
        if self.has_outages() && now >= self.outages_at + SPACING {
            self.write_outages();
            self.outages_at = now;
        }
        if now >= self.alive_at + ALIVE || self.alive_at == Instant::ZERO {
            self.write_alive(false);
            self.alive_at = now;
        }
    }

    /// The end in good order: all is written, and that this is the end.
    pub fn finish(&mut self) {
        self.write_usage();
        self.write_outages();
        if self.files.is_some() && (self.has_usage() || self.has_outages()) {
            crate::log!(Error, "usage or outages since the start could not be kept and are lost");
        }
        self.write_alive(true);
        self.keeper.finish();
    }

    fn usage_due(&self) -> Instant {
        self.usage_at.map_or(Instant::ZERO, |at| at + USAGE_SPACING)
    }

    /// Is there usage to be written?
    fn has_usage(&self) -> bool {
        self.book.changed || !self.waiting.is_empty()
    }

    fn write_usage(&mut self) {
        let Some(files) = &self.files else { return };
        for book in self.waiting.iter_mut().chain([&mut self.book]).filter(|book| book.changed) {
            if book.read(&files.usage).is_ok() {
                let path = files.usage.join(book.file_name());
                book.changed = !self.keeper.write(path, book.of_the_day());
            }
        }
        self.waiting.retain(|book| book.changed);
    }

    /// Are there outages to be written, or still to be read?
    fn has_outages(&self) -> bool {
        self.outages.changed || self.unread.is_some()
    }

    fn write_outages(&mut self) {
        let Some(files) = self.files.as_ref().filter(|_| self.has_outages()) else { return };
        if let Some(unread) = &self.unread {
            let Ok(mut read) = files.read_outages(&unread.start) else { return };
            unread.events.iter().for_each(|(key, notice)| drop(read.follow(key, notice)));
            (self.outages, self.unread) = (read, None);
        }
        if self.keeper.write(files.outages.clone(), &self.outages) {
            self.outages.changed = false;
        }
    }

    fn write_alive(&mut self, stopped: bool) {
        // Without the log nothing is made of the last one yet.
        if let Some(files) = self.files.as_ref().filter(|_| self.unread.is_none()) {
            let alive = Alive { at_ms: calendar::milliseconds(), stopped };
            self.keeper.write(files.alive.clone(), &alive);
        }
    }

    /// The thread has news.
    pub fn clear(&self) {
        self.keeper.waker.clear();
    }
}

#[cfg(test)]
mod tests;
