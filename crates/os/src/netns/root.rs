//! Turns for tests that need root: a few at once, or one alone.

use std::cell::RefCell;
use std::io::Write as _;
use std::sync::{Condvar, Mutex, PoisonError};
use std::{env, io, thread};

/// The variable with which tests that need root are skipped.
const SKIP: &str = "BENTPIPE_SKIP_ROOT_TESTS";

/// How many tests may run at once: most of them mostly wait, for a tenth of a core each.
const SHARES: u32 = 8;

/// The first thing that a test calls which needs root, mostly to build networks. A few of them
/// run at once, if there are as many test threads: it waits here for its turn.
///
/// False without root if `BENTPIPE_SKIP_ROOT_TESTS` is set: the test is skipped, which is
/// printed.
///
/// # Panics
/// Without root and without that variable, so that no test passes that did not run.
#[must_use]
pub fn root() -> bool {
    is_root_with(1)
}

/// The same for a test that asserts how fast something is or how long it takes: it has the
/// machine to itself among the tests of its program.
///
/// # Panics
/// As [`root`] does.
#[must_use]
pub fn root_alone() -> bool {
    is_root_with(SHARES)
}

fn is_root_with(shares: u32) -> bool {
    // SAFETY: the call only reads the process's own number.
    let is_root = unsafe { libc::geteuid() } == 0;
    if is_root {
        wait_for_turn(shares);
        return true;
    }
    assert!(env::var_os(SKIP).is_some(), "this test needs root; {SKIP}=1 skips such tests");
    let name = thread::current().name().unwrap_or("a test").to_owned();
    // Not by `eprintln!`: the test harness would swallow it.
    let _ = writeln!(io::stderr(), "skipped {name}: it needs root");
    false
}

/// Shares of the machine that no test holds.
static FREE: Mutex<u32> = Mutex::new(SHARES);
static GIVEN_BACK: Condvar = Condvar::new();

/// Shares that are given back when their thread ends.
struct Held(u32);

impl Drop for Held {
    fn drop(&mut self) {
        *FREE.lock().unwrap_or_else(PoisonError::into_inner) += self.0;
        GIVEN_BACK.notify_all();
    }
}

fn wait_for_turn(shares: u32) {
    thread_local! {
        static HELD: RefCell<Option<Held>> = const { RefCell::new(None) };
    }
    HELD.with(|held| {
        // With a single test thread all tests run on it.
        let mut held = held.borrow_mut();
        if held.as_ref().is_some_and(|h| h.0 >= shares) {
            return;
        }
        *held = None;
        let free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
        let mut free = GIVEN_BACK
            .wait_while(free, |free| *free < shares)
            .unwrap_or_else(PoisonError::into_inner);
        *free -= shares;
        *held = Some(Held(shares));
    });
}
