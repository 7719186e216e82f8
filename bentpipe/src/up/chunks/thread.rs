//! The thread that does what blocks: one job after the other, each of which is answered.

use std::collections::BTreeMap;
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use os::poll::Waker;
use squeeze::dedup::{Journal, Op};

use super::{ChunkPlace, note_day, today};
use crate::chunk_files::{ChunkFiles, Done};

/// What the thread does for the store of this number.
pub(super) struct Job(pub u64, pub Task);

pub(super) enum Task {
    /// It has these files from now on. Has no answer, nor has the end of it.
    Open(Box<ChunkFiles>),
    Op(Op),
    Save(Journal),
    Close,
    /// A day more for the files of peers that are gone. Has no answer.
    NoteDay(ChunkPlace),
}

/// What came of it, and why it failed.
pub(super) struct Answer(pub u64, pub Done, pub Option<io::Error>);

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

/// Does jobs until nobody has any more.
fn work(jobs: &Receiver<Job>, answers: &Sender<Answer>, waker: &Waker) {
    os::proc::go_with_others();
    let mut stores: BTreeMap<u64, Box<ChunkFiles>> = BTreeMap::new();
    while let Ok(Job(store, task)) = jobs.recv() {
        let done = match task {
            Task::Open(files) => {
                stores.insert(store, files);
                continue;
            }
            Task::Close => {
                stores.remove(&store);
                continue;
            }
            Task::NoteDay(place) => {
                note_day(&place, today());
                continue;
            }
            Task::Op(op) => stores.get_mut(&store).map(|files| (files.perform(op), files)),
            Task::Save(journal) => {
                stores.get_mut(&store).map(|files| (files.write_journal(journal), files))
            }
        };
        let Some((done, files)) = done else { continue };
        // At the end of the program nobody asks any more.
        let _ = answers.send(Answer(store, done, files.take_failure()));
        waker.wake();
    }
}
