//! The children that outlive a kill: their own session, no descriptor but their pipes.

use std::fs::File;
use std::io::{self, Seek, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::thread;
use std::time::Duration;

use crate::OsError;
use crate::command::start_error;
use crate::error::OrCannot;
use crate::proc::{Right, confine, unblock_signals};
use crate::sys::check;

/// What the watchdog does until its pipe closes; then the script follows.
const WAIT: &str = "exec 3<&2 2>/dev/null
read -r line && [ \"$line\" = begin ] || exit
how=blackhole
while read -r line; do
if [ \"$line\" = ending ]; then how=unreachable; else exit; fi
done
export how
exec /bin/sh <&3
";

/// How long a child may take over its last work, in ms.
const PATIENCE: i32 = 10_000;

/// A child and the descriptor that tells of its death.
pub(super) struct Kept {
    child: Child,
    pidfd: OwnedFd,
    /// Closing it ends the child.
    pub stdin: Option<ChildStdin>,
    /// It may be killed, and nothing is lost.
    expendable: bool,
    /// It is known to do nothing any more.
    pub hangs: bool,
}

impl Kept {
    /// Starts `command` with a pipe to its standard input, apart from the terminal, and with the
    /// right to change the network and no other: what comes through its pipe can have it open no
    /// file that is not everybody's.
    pub fn start(mut command: Command, expendable: bool) -> Result<Kept, OsError> {
        let name = command.get_program().to_string_lossy().into_owned();
        let apart = || stand_apart().and_then(|()| confine(Right::NetAdmin));
        // SAFETY: the closure makes plain system calls and allocates nothing, so it may
        // run between fork and exec.
        unsafe { command.pre_exec(apart) };
        #[cfg(test)]
        crate::faults::call().map_err(|e| start_error(&name, e))?;
        let mut child = command.stdin(Stdio::piped()).spawn().map_err(|e| start_error(&name, e))?;
        let stdin = child.stdin.take();
        let pidfd = match open_pidfd(child.id()) {
            Ok(pidfd) => pidfd,
            Err(e) => {
                drop(stdin);
                reap(&mut child);
                return Err(OsError::new(format!("watch the child `{name}`"), e));
            }
        };
        Ok(Kept { child, pidfd, stdin, expendable, hangs: false })
    }

    /// Readable when the child has died.
    pub fn death(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    pub fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    #[cfg(test)]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Kept {
    /// Ends the child by its pipe and waits until it has done its last work, for some seconds.
    /// One that hangs then is killed, if this process may; or goes on alone, where its work may
    /// be to block.
    fn drop(&mut self) {
        drop(self.stdin.take());
        let patience = if self.hangs { 0 } else { PATIENCE };
        let ended = readable_within(self.pidfd.as_fd(), patience).is_ok_and(|ended| ended);
        // Not for long: the data path waits. Of a child that is another user's nothing can be
        // asked but to read the end of its pipe.
        if ended || self.expendable && self.child.kill().is_ok() {
            let _ = self.child.wait();
        }
    }
}

/// Waits a moment for a child that nothing tells of; without its pipe it ends by itself.
fn reap(child: &mut Child) {
    let _ = child.kill();
    for _ in 0..100 {
        if !matches!(child.try_wait(), Ok(None)) {
            return;
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// Runs commands when the pipe to it closes, for whatever reason.
pub(super) struct Watchdog(Kept);

impl Watchdog {
    /// Starts one that will run the shell commands in `script`, for which `$how` is
    /// "unreachable" after [`Watchdog::announce_end`] and "blackhole" otherwise. It shares
    /// the lock, so that a next run waits until it has finished. Its work is its own only once it
    /// was told to begin: one whose start fails half-way must take nothing away.
    pub fn start(script: &str, lock: &UnixListener) -> Result<Watchdog, OsError> {
        let mut command = Command::new("/bin/sh");
        let lock: OwnedFd =
            lock.as_fd().try_clone_to_owned().or_cannot(|| "share the lock".into())?;
        // An argument has 128 kB at most (Linux: MAX_ARG_STRLEN). Of descriptors the standard
        // three pass, so the shell takes its script from where errors would go.
        command.args(["-c", WAIT]);
        let script = sealed(script).or_cannot(|| "keep a script in memory".into())?;
        command.stdout(Stdio::from(lock)).stderr(Stdio::from(script));
        let mut kept = Kept::start(command, false)?;
        if let Some(pipe) = &mut kept.stdin {
            pipe.write_all(b"begin\n").or_cannot(|| "speak to the watchdog".into())?;
        }
        Ok(Watchdog(kept))
    }

    /// Ends it without its work being done: another one has taken over.
    pub fn dismiss(mut self) {
        if let Some(pipe) = &mut self.0.stdin {
            // If it is dead already, it has done its work, and the new one's is the same.
            let _ = pipe.write_all(b"dismissed\n");
        }
    }

    /// Tells it that the program is about to end in order, which its script may note.
    pub fn announce_end(&mut self) {
        if let Some(pipe) = &mut self.0.stdin {
            // Without it the end looks like that of a crash, and that is all.
            let _ = pipe.write_all(b"ending\n");
        }
    }

    pub fn is_alive(&mut self) -> bool {
        self.0.is_alive()
    }

    pub fn death(&self) -> BorrowedFd<'_> {
        self.0.death()
    }

    #[cfg(test)]
    pub fn pid(&self) -> u32 {
        self.0.pid()
    }
}

/// A file without a name that nobody can write to, at its beginning.
fn sealed(text: &str) -> io::Result<File> {
    #[cfg(test)]
    crate::faults::call()?;
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: the name is a constant that ends in a zero.
    let fd = unsafe { libc::memfd_create(c"bentpipe".as_ptr(), flags) };
    let mut file = File::from(crate::sys::own(fd)?);
    file.write_all(text.as_bytes())?;
    file.rewind()?;
    let seals = libc::F_SEAL_WRITE | libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
    // SAFETY: no pointers are passed.
    check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) })?;
    Ok(file)
}

/// In the child, before exec: a session of its own, so that Ctrl-C and a closing terminal
/// pass it by; deaf to the signals by which a service manager stops everything at once,
/// because the program drains first and both must outlast it; and nothing inherited but
/// the standard three descriptors.
fn stand_apart() -> io::Result<()> {
    // SAFETY: no pointers are passed but constants; close_range with CLOEXEC only marks
    // descriptors.
    unsafe {
        check(libc::setsid())?;
        for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM] {
            libc::signal(signal, libc::SIG_IGN);
        }
        // Kernels before 5.11 cannot; there close-on-exec at each opening has to do.
        libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, libc::CLOSE_RANGE_CLOEXEC);
    }
    unblock_signals()
}

fn open_pidfd(pid: u32) -> io::Result<OwnedFd> {
    #[cfg(test)]
    crate::faults::call()?;
    // SAFETY: no pointers are passed.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid as libc::pid_t, 0u32) };
    crate::sys::own(fd as libc::c_int)
}

/// Waits until `fd` can be read, at most `millis`.
pub(super) fn readable_within(fd: BorrowedFd<'_>, millis: i32) -> io::Result<bool> {
    let mut poll = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one pollfd that outlives the call.
    check(unsafe { libc::poll(&mut poll, 1, millis) }).map(|n| n > 0)
}
