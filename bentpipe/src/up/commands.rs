//! The commands that raise and drop a line. They may block, so each runs on a thread of its own;
//! a line has one at a time.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration as StdDuration;

use os::OsError;
use os::poll::{Interest, Poller, Waker};

use super::modem::output_of;

/// A command that drops a line and has not ended by then is ended.
const PATIENCE: StdDuration = StdDuration::from_secs(30);

/// What came of a command.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The line was to be raised.
    Raised(Result<(), String>),
    /// The line was to be dropped.
    Dropped(Result<(), String>),
}

/// A line's commands.
pub struct Commands {
    outcomes: Receiver<Outcome>,
    outcome_to: Sender<Outcome>,
    pub waker: Waker,
    running: Option<(Sender<()>, JoinHandle<()>)>,
}

impl Commands {
    /// None runs yet; the poller tells under `token` when one has ended.
    pub fn new(poller: &Poller, token: u64) -> Result<Commands, OsError> {
        let (outcome_to, outcomes) = channel();
        let waker = Waker::new()?;
        poller.add(&waker, token, Interest::READ)?;
        Ok(Commands { outcomes, outcome_to, waker, running: None })
    }

    /// Raises the line; what ran is ended.
    pub fn raise(&mut self, command: String, patience: StdDuration) {
        self.start(command, patience, |told| Outcome::Raised(told.map(drop)));
    }

    /// Drops the line; what ran is ended.
    pub fn drop(&mut self, command: String) {
        self.start(command, PATIENCE, |told| Outcome::Dropped(told.map(drop)));
    }

    fn start(
        &mut self,
        command: String,
        patience: StdDuration,
        outcome: impl Fn(Result<String, String>) -> Outcome + Send + 'static,
    ) {
        self.give_up();
        let (hold, held) = channel();
        let (to, waker) = (self.outcome_to.clone(), self.waker.clone());
        let run = move || {
            let told = output_of(&command, patience, &held);
            let told = told.map_err(|why| format!("\"{command}\" {why}"));
            let _ = to.send(outcome(told));
            waker.wake();
        };
        match thread::Builder::new().name("line".into()).spawn(run) {
            Ok(thread) => self.running = Some((hold, thread)),
            Err(why) => {
                let _ = self.outcome_to.send(Outcome::Raised(Err(format!("no thread: {why}"))));
            }
        }
    }

    /// Ends what runs; nobody hears of it.
    pub fn give_up(&mut self) {
        if let Some((hold, thread)) = self.running.take() {
            std::mem::drop(hold);
            let _ = thread.join();
            while self.outcomes.try_recv().is_ok() {}
        }
    }

    /// Waits for what runs.
    pub fn finish(&mut self) {
        if let Some((_hold, thread)) = self.running.take() {
            let _ = thread.join();
        }
    }

    /// The next outcome.
    pub fn poll(&mut self) -> Option<Outcome> {
        self.outcomes.try_recv().ok()
    }
}

impl Drop for Commands {
    fn drop(&mut self) {
        self.give_up();
    }
}
