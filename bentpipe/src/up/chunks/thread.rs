//! The thread that does what blocks: one job after the other, each of which is answered.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use os::poll::Waker;
use squeeze::dedup::{Dedup, Journal, Keys, Limits, Op};

use super::{ChunkPlace, note_day, today};
use crate::chunk_files::{ChunkFiles, Done, locked};

/// Files that are in use are tried again after this.
const AGAIN: Duration = Duration::from_millis(20);
/// For so long, where this process has not closed them: the thread of another shard may have much
/// to write for a peer that was taken out and is back.
const OWN: Duration = Duration::from_secs(5);
/// And where another process has them, which may be about to end.
const OTHERS: Duration = Duration::from_secs(1);

/// What the thread does for the store of this number.
pub(super) struct Job(pub u64, pub Task);

pub(super) enum Task {
    /// Reads what the files in this directory hold. They are the store's from now on, until
    /// [`Task::Close`], which has no answer.
    Open(PathBuf, Arc<Keys>, Limits),
    Op(Op),
    Save(Journal),
    Close,
    /// A day more for the files of peers that are gone. Has no answer.
    NoteDay(ChunkPlace),
}

/// What came of a job for the store of this number.
pub(super) struct Answer(pub u64, pub Outcome);

pub(super) enum Outcome {
    /// Of [`Task::Open`]: what the files hold.
    Opened(io::Result<Box<Dedup>>),
    /// Of anything else, and why it failed.
    Done(Done, Option<io::Error>),
}

/// The thread.
pub(super) struct Worker {
    pub jobs: Sender<Job>,
    pub answers: Receiver<Answer>,
}

impl Worker {
    /// A thread that wakes by `waker` with each answer.
    pub fn start(waker: Waker) -> io::Result<Worker> {
        let (jobs, to_do) = channel();
        let (answer_to, answers) = channel();
        thread::Builder::new()
            .name("chunks".into())
            .spawn(move || work(&to_do, &answer_to, &waker))?;
        Ok(Worker { jobs, answers })
    }
}

/// Files that are to be opened.
struct Opening {
    store: u64,
    dir: PathBuf,
    keys: Arc<Keys>,
    limits: Limits,
    since: Instant,
}

/// What the thread has.
struct Files<'a> {
    answers: &'a Sender<Answer>,
    waker: &'a Waker,
    open: BTreeMap<u64, ChunkFiles>,
    /// Files that are still in use: each is tried again.
    opening: Vec<Opening>,
    tried: Instant,
}

/// Does jobs until nobody has any more.
fn work(jobs: &Receiver<Job>, answers: &Sender<Answer>, waker: &Waker) {
    os::proc::go_with_others();
    let (open, opening) = (BTreeMap::new(), Vec::new());
    let mut files = Files { answers, waker, open, opening, tried: Instant::now() };
    loop {
        let job = match files.opening.is_empty() {
            true => jobs.recv().map_err(|_| RecvTimeoutError::Disconnected),
            false => jobs.recv_timeout(AGAIN),
        };
        match job {
            Ok(Job(store, task)) => files.work(store, task),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        if !files.opening.is_empty() && files.tried.elapsed() >= AGAIN {
            files.tried = Instant::now();
            std::mem::take(&mut files.opening)
                .into_iter()
                .for_each(|opening| files.try_open(opening));
        }
    }
}

impl Files<'_> {
    fn work(&mut self, store: u64, task: Task) {
        match task {
            Task::Open(dir, keys, limits) => {
                self.try_open(Opening { store, dir, keys, limits, since: Instant::now() });
            }
            Task::Close => {
                self.open.remove(&store);
                self.opening.retain(|opening| opening.store != store);
            }
            Task::NoteDay(place) => note_day(&place, today()),
            Task::Op(op) => self.perform(store, |files| files.perform(op)),
            Task::Save(journal) => self.perform(store, |files| files.write_journal(journal)),
        }
    }

    fn perform(&mut self, store: u64, act: impl FnOnce(&mut ChunkFiles) -> Done) {
        if let Some(files) = self.open.get_mut(&store) {
            let done = act(files);
            let failure = files.take_failure();
            self.answer(store, Outcome::Done(done, failure));
        }
    }

    fn try_open(&mut self, opening: Opening) {
        let Opening { store, dir, keys, limits, since } = &opening;
        let opened = match ChunkFiles::open(dir, keys, limits) {
            Ok((files, dedup)) => {
                self.open.insert(*store, files);
                Ok(Box::new(dedup))
            }
            Err(e) => {
                let patience = locked(&e).map(|by| if by.is_own { OWN } else { OTHERS });
                if patience.is_some_and(|patience| since.elapsed() < patience) {
                    return self.opening.push(opening);
                }
                Err(e)
            }
        };
        self.answer(*store, Outcome::Opened(opened));
    }

    fn answer(&self, store: u64, outcome: Outcome) {
        // At the end of the program nobody asks any more.
        let _ = self.answers.send(Answer(store, outcome));
        self.waker.wake();
    }
}
