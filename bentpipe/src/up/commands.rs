//! The commands that raise and drop a line. They may block, so each runs on a thread of its own;
//! a line has one at a time.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration as StdDuration;

use os::OsError;
use os::poll::{Interest, Poller, Waker};

use super::shell::{name_of, run_command};

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

struct Running {
    /// It ends when nobody holds this.
    hold: Sender<()>,
    thread: JoinHandle<()>,
    drops: bool,
}

/// A line's commands.
pub struct Commands {
    outcomes: Receiver<Outcome>,
    outcome_to: Sender<Outcome>,
    pub waker: Waker,
    running: Option<Running>,
    /// What raises the line, once what drops it has ended.
    next: Option<(String, StdDuration)>,
    /// A file that is there from before the line is raised until it has been dropped, so that a
    /// program that comes after a kill drops it.
    mark: Option<PathBuf>,
}

impl Commands {
    /// None runs yet; the poller tells under `token` when one has ended. `mark`: a file that tells
    /// that the line may be raised.
    pub fn new(poller: &Poller, token: u64, mark: Option<PathBuf>) -> Result<Commands, OsError> {
        let (outcome_to, outcomes) = channel();
        let waker = Waker::new()?;
        poller.add(&waker, token, Interest::READ)?;
        Ok(Commands { outcomes, outcome_to, waker, running: None, next: None, mark })
    }

    /// A program before this one, or a drop that failed, may have left the line raised.
    pub fn may_be_raised(&self) -> bool {
        self.mark.as_ref().is_some_and(|mark| mark.exists())
    }

    /// Raises the line, when what drops it has ended.
    pub fn raise(&mut self, command: String, patience: StdDuration) {
        match self.drops() {
            true => self.next = Some((command, patience)),
            false => self.start(command, patience, Outcome::Raised),
        }
    }

    /// Drops the line, if that is not being done; what raises it is ended.
    pub fn drop(&mut self, command: String) {
        self.next = None;
        if !self.drops() {
            self.start(command, PATIENCE, Outcome::Dropped);
        }
    }

    fn drops(&self) -> bool {
        self.running.as_ref().is_some_and(|running| running.drops)
    }

    fn start(
        &mut self,
        command: String,
        patience: StdDuration,
        outcome: fn(Result<(), String>) -> Outcome,
    ) {
        self.give_up();
        let drops = outcome(Ok(())) == Outcome::Dropped(Ok(()));
        let (hold, held) = channel();
        let (to, waker) = (self.outcome_to.clone(), self.waker.clone());
        let mark = self.mark.clone();
        let run = move || {
            // Without a directory for it the line works all the same.
            let mark = mark.as_deref();
            let mut options = OpenOptions::new();
            options.write(true).create(true).truncate(true).mode(0o600);
            let _ = mark.filter(|_| !drops).map(|mark| options.open(mark));
            let told = run_command(&command, patience, &held);
            let _ = mark.filter(|_| drops && told.is_ok()).map(fs::remove_file);
            let name = name_of(&command);
            let _ = to.send(outcome(told.map_err(|why| format!("\"{name}\" {why}"))));
            waker.wake();
        };
        match thread::Builder::new().name("line".into()).spawn(run) {
            Ok(thread) => self.running = Some(Running { hold, thread, drops }),
            Err(why) => {
                let _ = self.outcome_to.send(outcome(Err(format!("no thread: {why}"))));
                self.waker.wake();
            }
        }
    }

    /// Ends what runs; nobody hears of it.
    pub fn give_up(&mut self) {
        self.next = None;
        if let Some(Running { hold, thread, .. }) = self.running.take() {
            std::mem::drop(hold);
            let _ = thread.join();
            while self.outcomes.try_recv().is_ok() {}
        }
    }

    /// Waits for what runs.
    pub fn finish(&mut self) {
        if let Some(Running { hold: _hold, thread, .. }) = self.running.take() {
            let _ = thread.join();
        }
    }

    /// The next outcome.
    pub fn poll(&mut self) -> Option<Outcome> {
        let outcome = self.outcomes.try_recv().ok()?;
        // Its thread has nothing more to do.
        self.finish();
        if let Some((command, patience)) = self.next.take() {
            self.start(command, patience, Outcome::Raised);
        }
        Some(outcome)
    }
}

impl Drop for Commands {
    fn drop(&mut self) {
        self.give_up();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_raised_after_what_drops_it_and_a_raise_gives_way_to_a_drop() {
        let poller = Poller::new().expect("a poller");
        let mark = std::env::temp_dir().join(format!("bentpipe-mark-{}", std::process::id()));
        let mut commands = Commands::new(&poller, 1, Some(mark.clone())).expect("commands");
        let file = std::env::temp_dir().join(format!("bentpipe-line-{}", std::process::id()));
        let say = |word: &str| format!("echo {word} >> {}", file.display());
        commands.raise("sleep 1000".into(), PATIENCE);
        commands.drop(format!("sleep 1; {}", say("dropped")));
        commands.raise(say("raised"), PATIENCE);
        let mut outcomes = Vec::new();
        while outcomes.len() < 2 {
            outcomes.extend(commands.poll());
            thread::sleep(StdDuration::from_millis(5));
        }
        assert_eq!(outcomes, [Outcome::Dropped(Ok(())), Outcome::Raised(Ok(()))]);
        assert_eq!(std::fs::read_to_string(&file).expect("words"), "dropped\nraised\n");
        assert!(commands.may_be_raised());
        for (command, remains) in [("exit 1", true), ("true", false)] {
            commands.drop(command.into());
            commands.finish();
            assert_eq!(commands.may_be_raised(), remains, "{command}");
        }
        std::fs::remove_file(&file).expect("it is there");
    }
}
