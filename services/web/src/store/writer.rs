//! The thread that writes files, and removes them.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Write as _};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use bentpipe_web::cache::record::{PIECE, Record, check};
use bentpipe_web::cache::{Now, Place, Stored};
use bentpipe_web::disk::{Disk, Growing};
use bytes::Bytes;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// Bytes of bodies that wait for the disk; what is more is not kept.
const WAITING: usize = 8 << 20;
/// What a job counts for beside its bytes.
const JOB: usize = 1 << 10;

/// What is to be done.
pub enum Job {
    /// A file begins.
    Begin(u64),
    /// It goes on.
    Append(u64, Bytes),
    /// It is whole.
    Finish(Box<Stored>, Now),
    /// It will not be.
    Drop(u64),
    /// A file's answer holds again. A body that was in memory is checked anew.
    Freshen { place: Place, record: Box<Record>, body: Option<Bytes>, now: Now },
    /// A file is not needed any more.
    Remove(Place),
}

impl Job {
    fn weight(&self) -> usize {
        JOB + match self {
            Job::Append(_, bytes) => bytes.len(),
            _ => 0,
        }
    }
}

/// What became of it.
pub enum Told {
    /// The directory can be used, and these files are in it, the oldest first.
    Opened(Arc<Disk>, Vec<Place>),
    /// An answer is on disk.
    Kept(Place),
    /// It has another name.
    Moved(Place, Place),
    /// It could not be written; bytes that it had, if the disk is full.
    Failed { number: u64, full: u64 },
}

/// The thread, as it is asked.
pub struct Writer {
    jobs: Sender<Job>,
    /// Bytes that wait for it.
    waiting: Arc<AtomicUsize>,
}

impl Writer {
    /// Starts it. It ends with this, or when it cannot open its directory, which it says.
    pub fn start(directory: &Path) -> (Writer, UnboundedReceiver<Told>) {
        let ((jobs, todo), (tell, told)) = (channel(), unbounded_channel());
        let waiting = Arc::new(AtomicUsize::new(0));
        let (directory, counter) = (directory.to_owned(), Arc::clone(&waiting));
        thread::spawn(move || write(&directory, &todo, &counter, &tell));
        (Writer { jobs, waiting }, told)
    }

    /// Asks for something; false if that is too much now. What frees room is always taken.
    pub fn order(&self, job: Job) -> bool {
        let frees = matches!(job, Job::Remove(_) | Job::Drop(_));
        if !frees && self.waiting.load(Relaxed) + job.weight() > WAITING {
            return false;
        }
        self.waiting.fetch_add(job.weight(), Relaxed);
        self.jobs.send(job).is_ok()
    }
}

fn write(
    directory: &Path,
    todo: &Receiver<Job>,
    waiting: &AtomicUsize,
    tell: &UnboundedSender<Told>,
) {
    let disk = match Disk::open(directory) {
        Ok((disk, places)) => {
            let disk = Arc::new(disk);
            // Nobody hears it when the program ends.
            let _ = tell.send(Told::Opened(Arc::clone(&disk), places));
            disk
        }
        Err(why) => return eprintln!("answers are kept in memory alone: {why}"),
    };
    let mut files = Files { disk, growing: BTreeMap::new() };
    for job in todo {
        waiting.fetch_sub(job.weight(), Relaxed);
        if let Some(told) = files.work(job) {
            let _ = tell.send(told);
        }
    }
}

struct Files {
    disk: Arc<Disk>,
    growing: BTreeMap<u64, Growing>,
}

impl Files {
    fn work(&mut self, job: Job) -> Option<Told> {
        match job {
            Job::Begin(number) => match self.disk.begin(number) {
                Ok(file) => drop(self.growing.insert(number, file)),
                Err(why) => return Some(failed(number, 0, &why)),
            },
            Job::Append(number, bytes) => {
                let file = self.growing.get_mut(&number)?;
                if let Err(why) = file.write_all(&bytes) {
                    let had = file.length() + bytes.len() as u64;
                    self.growing.remove(&number);
                    return Some(failed(number, had, &why));
                }
            }
            Job::Finish(stored, now) => {
                let number = stored.number;
                let file = self.growing.remove(&number)?;
                let had = file.length();
                let record = Record { stored: *stored, checks: Vec::new() };
                return Some(match self.disk.finish(file, record, now) {
                    Ok(place) => Told::Kept(place),
                    Err(why) => failed(number, had, &why),
                });
            }
            Job::Drop(number) => drop(self.growing.remove(&number)),
            Job::Freshen { place, mut record, body, now } => {
                if let Some(body) = body {
                    record.checks = body.chunks(PIECE).map(check).collect();
                }
                // If it fails the file is as it was: it is asked for again when it is needed.
                let new = self.disk.freshen(place, &record, now).ok()?;
                return Some(Told::Moved(place, new));
            }
            Job::Remove(place) => {
                if let Err(why) = self.disk.remove(&place) {
                    eprintln!("an answer on disk cannot be removed: {why}");
                }
            }
        }
        None
    }
}

fn failed(number: u64, had: u64, why: &io::Error) -> Told {
    let is_full = matches!(why.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded);
    eprintln!("an answer cannot be written to disk: {why}");
    Told::Failed { number, full: if is_full { had.max(1) } else { 0 } }
}
