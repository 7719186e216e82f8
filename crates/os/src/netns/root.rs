use std::cell::Cell;
use std::io::Write as _;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::{env, io, thread};

/// The variable with which tests that need root are skipped.
const SKIP: &str = "BENTPIPE_SKIP_ROOT_TESTS";

/// The first thing that a test calls which needs root, mostly to build networks. Such a test
/// has the machine to itself: it waits here until no other of this program runs, and the others
/// wait until its thread ends.
///
/// False without root if `BENTPIPE_SKIP_ROOT_TESTS` is set: the test is skipped, which is
/// printed.
///
/// # Panics
/// Without root and without that variable, so that no test passes that did not run.
#[must_use]
pub fn root() -> bool {
    // SAFETY: the call only reads the process's own number.
    let is_root = unsafe { libc::geteuid() } == 0;
    if is_root {
        wait_for_turn();
        return true;
    }
    assert!(env::var_os(SKIP).is_some(), "this test needs root; {SKIP}=1 skips such tests");
    let name = thread::current().name().unwrap_or("a test").to_owned();
    // Not by `eprintln!`: the test harness would swallow it.
    let _ = writeln!(io::stderr(), "skipped {name}: it needs root");
    false
}

fn wait_for_turn() {
    static TURN: Mutex<()> = Mutex::new(());
    thread_local! {
        static HELD: Cell<Option<MutexGuard<'static, ()>>> = const { Cell::new(None) };
    }
    HELD.with(|held| {
        // With a single test thread all tests run on it.
        let turn = held.take();
        let turn = turn.unwrap_or_else(|| TURN.lock().unwrap_or_else(PoisonError::into_inner));
        held.set(Some(turn));
    });
}
