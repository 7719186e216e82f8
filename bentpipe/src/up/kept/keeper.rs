//! The thread that writes and reads files, because disks block.

use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread;

use control::{By, UsageReport};
use os::OsError;
use os::poll::Waker;
use serde::Serialize;

use super::usage::{self, Book, Range};
use crate::human;
use crate::state_directory::write_whole;

/// Jobs that may wait. Writes beyond are put off; reports are few, because clients are.
const MOST: usize = 32;
/// Files that wait for the disk to take them. Of more the one that has waited longest is lost.
const MOST_REFUSED: usize = 16;
/// How long the end waits for a disk that does not answer.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(5);

/// What the thread is to do.
pub(super) enum Job {
    /// Write a file.
    Write(PathBuf, Vec<u8>),
    /// Remove days that are too old.
    Prune(PathBuf),
    /// Sum up what is kept, and the days in memory.
    Report { dir: Option<PathBuf>, live: Vec<Book>, by: By, range: Range },
}

/// The thread, started with the first job: rights are a thread's own, and the program gives its
/// own up before.
pub(super) struct Keeper {
    pub waker: Waker,
    jobs: Option<SyncSender<Job>>,
    reports: Option<Receiver<UsageReport>>,
    ended: Option<Receiver<()>>,
}

impl Keeper {
    /// Without a thread yet.
    ///
    /// # Errors
    /// If the system has no more descriptors.
    pub fn new() -> Result<Keeper, OsError> {
        Ok(Keeper { waker: Waker::new()?, jobs: None, reports: None, ended: None })
    }

    /// Has a value written to a file; false if too much waits already.
    pub fn write(&mut self, path: PathBuf, value: &impl Serialize) -> bool {
        match serde_json::to_vec(value) {
            Ok(bytes) => self.give(Job::Write(path, bytes)),
            Err(e) => {
                crate::log!(Error, "cannot be written down", file = path.display(), error = e);
                true
            }
        }
    }

    /// Gives it a job; false if too many wait already.
    pub fn give(&mut self, job: Job) -> bool {
        if self.jobs.is_none()
            && let Err(e) = self.start()
        {
            crate::log!(Error, "no thread to write usage and outages", error = e);
        }
        self.jobs.as_ref().is_some_and(|jobs| jobs.try_send(job).is_ok())
    }

    fn start(&mut self) -> io::Result<()> {
        let (jobs, to_do) = sync_channel(MOST);
        let (report_to, reports) = channel();
        let (end, ended) = sync_channel(1);
        let waker = self.waker.clone();
        thread::Builder::new().name("kept".into()).spawn(move || {
            work(&to_do, &report_to, &waker);
            let _ = end.send(());
        })?;
        (self.jobs, self.reports, self.ended) = (Some(jobs), Some(reports), Some(ended));
        Ok(())
    }

    /// A report that was asked for.
    pub fn next_report(&mut self) -> Option<UsageReport> {
        self.reports.as_ref()?.try_recv().ok()
    }

    /// Waits until all is done, for a while.
    pub fn finish(&mut self) {
        self.jobs = None;
        if let Some(ended) = self.ended.take()
            && ended.recv_timeout(PATIENCE).is_err()
        {
            crate::log!(Warn, "the disk does not answer: the last usage and outages are lost");
        }
    }
}

/// Does jobs until nobody has any more.
fn work(jobs: &Receiver<Job>, reports: &Sender<UsageReport>, waker: &Waker) {
    os::proc::go_with_others();
    let mut refused = Refused::default();
    while let Ok(job) = jobs.recv() {
        match job {
            Job::Write(path, bytes) => {
                refused.put(path, bytes);
                refused.write();
            }
            Job::Prune(dir) => usage::prune(&dir),
            Job::Report { dir, live, by, range } => {
                refused.write();
                // At the end of the program nobody asks any more.
                let _ = reports.send(usage::report(dir.as_deref(), &live, by, &range));
                waker.wake();
            }
        }
    }
    refused.write();
    for (path, _) in &refused.files {
        crate::log!(Error, "not written down, and lost", file = path.display());
    }
}

/// What is to be in files that could not be written yet, the newest of each. It is tried with each
/// write that follows: the sign of life is one every minute.
#[derive(Default)]
struct Refused {
    files: Vec<(PathBuf, Vec<u8>)>,
    told: bool,
}

impl Refused {
    /// Takes what is to be in a file, in place of what was to be before.
    fn put(&mut self, path: PathBuf, bytes: Vec<u8>) {
        self.files.retain(|(other, _)| *other != path);
        self.files.push((path, bytes));
        if self.files.len() > MOST_REFUSED {
            let (path, _) = self.files.remove(0);
            crate::log!(Error, "not written down, and lost", file = path.display());
        }
    }

    /// Writes what can be written.
    fn write(&mut self) {
        let mut first = None;
        self.files.retain(|(path, bytes)| match write_whole(path, bytes) {
            Ok(()) => false,
            Err(e) => {
                first.get_or_insert_with(|| (path.clone(), human::reason(&e)));
                true
            }
        });
        if let Some((file, why)) = first.as_ref().filter(|_| !self.told) {
            let file = file.display();
            crate::log!(Warn, "not written down, and tried again", file = file, why = why);
        }
        self.told = first.is_some();
    }
}
