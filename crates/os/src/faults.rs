//! Faults for tests: the steps that change the system, or ask it, fail or hang. Each is counted
//! where it is taken, on its thread: tools that run and end, children that stay, what these are
//! told, and system calls.

use std::cell::Cell;
use std::io;
use std::process::Command;

use units::Duration;

/// How long one that is to hang is waited for.
pub(crate) const PATIENCE: Duration = Duration::from_millis(50);

/// What becomes of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It does nothing and says so.
    Fails,
    /// It does its work and says that it failed.
    FailsWhenDone,
    /// It does nothing and never ends. System calls do not hang.
    Hangs,
}

/// Which steps are broken, and how.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fault {
    pub kind: Kind,
    /// The first one, from 1 on.
    pub at: usize,
    /// All that follow, too.
    pub goes_on: bool,
}

thread_local! {
    static FAULT: Cell<Option<Fault>> = const { Cell::new(None) };
    static STEPS: Cell<usize> = const { Cell::new(0) };
}

/// Breaks steps from now on, of which none was taken yet, or none any more.
pub(crate) fn set(fault: Option<Fault>) {
    FAULT.set(fault);
    STEPS.set(0);
}

/// What is set.
pub(crate) fn fault() -> Option<Fault> {
    FAULT.get()
}

/// How many steps were taken since then.
pub(crate) fn steps() -> usize {
    STEPS.get()
}

/// Takes a step: what becomes of it, if it is broken.
pub(crate) fn step() -> Option<Kind> {
    let now = STEPS.get() + 1;
    STEPS.set(now);
    let fault = FAULT.get()?;
    (now == fault.at || fault.goes_on && now > fault.at).then_some(fault.kind)
}

/// Takes a step that is a system call.
pub(crate) fn call() -> io::Result<()> {
    match step() {
        Some(Kind::Fails | Kind::FailsWhenDone) => Err(io::Error::from_raw_os_error(libc::EMFILE)),
        Some(Kind::Hangs) | None => Ok(()),
    }
}

/// Takes a step that is a tool: what runs in its place, and how long it may take.
pub(crate) fn tool(command: &Command, patience: Duration) -> (Option<Command>, Duration) {
    let script = match step() {
        None => return (None, patience),
        Some(Kind::Fails) => "echo 'broken by the test' >&2; exit 1",
        Some(Kind::FailsWhenDone) => "\"$0\" \"$@\"; echo 'broken by the test' >&2; exit 1",
        Some(Kind::Hangs) => "exec sleep 60",
    };
    let mut broken = Command::new("sh");
    broken.args(["-c", script]).arg(command.get_program()).args(command.get_args());
    (Some(broken), if script.ends_with("60") { PATIENCE } else { patience })
}
