//! What a command needs that makes namespaces: rights, and to leave nothing behind.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::process::Command;
use std::thread;

use miette::{IntoDiagnostic as _, miette};
use os::poll::{Events, Interest, Poller, Signal, Signals};

use super::topology::PREFIX;

/// Exit code of a program ended by a signal, as shells count it: 128 and the number.
const INTERRUPTED: i32 = 130;
const TERMINATED: i32 = 143;

/// Makes this process able to build networks, and clean them up when it is interrupted.
/// Call it first thing, while there is a single thread.
///
/// Root works as root; others become root of a user namespace of their own.
///
/// # Errors
/// One sentence, if the system allows neither.
pub fn prepare() -> miette::Result<()> {
    // The owner of /proc/self is the effective user.
    let uid = fs::metadata("/proc/self").into_diagnostic()?.uid();
    if uid != 0 {
        os::netns::enter_user_namespace().map_err(|e| miette!("{e}"))?;
    }
    let signals = Signals::take().map_err(|e| miette!("{e}"))?;
    let poller = Poller::new().map_err(|e| miette!("{e}"))?;
    poller.add(&signals, 0, Interest::READ).map_err(|e| miette!("{e}"))?;
    thread::spawn(move || wait_for_the_end(&signals, poller));
    Ok(())
}

fn wait_for_the_end(signals: &Signals, mut poller: Poller) {
    let mut events = Events::with_capacity(1);
    let code = loop {
        if poller.wait(&mut events, None).is_err() {
            return;
        }
        match signals.next_signal() {
            Some(Signal::Interrupt) => break INTERRUPTED,
            Some(Signal::Terminate | Signal::HangUp) => break TERMINATED,
            Some(Signal::User1) | None => {}
        }
    };
    eprintln!("\nbentpipe-lab: interrupted; taking the networks down");
    remove_own();
    // The gateways end with the threads that started them.
    std::process::exit(code);
}

/// Removes the namespaces and files of this process. What runs in them ends with it.
fn remove_own() {
    let own = format!("{PREFIX}-{}-", std::process::id());
    let names_in = |dir: &std::path::Path| -> Vec<String> {
        let entries = fs::read_dir(dir).into_iter().flatten().flatten();
        let names = entries.filter_map(|e| e.file_name().into_string().ok());
        names.filter(|n| n.starts_with(&own)).collect()
    };
    for name in names_in("/run/netns".as_ref()) {
        let _ = Command::new("ip").args(["netns", "delete", &name]).status();
    }
    let files = std::env::temp_dir();
    for name in names_in(&files) {
        let _ = fs::remove_dir_all(files.join(name));
    }
}
