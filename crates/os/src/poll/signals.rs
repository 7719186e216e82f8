//! Signals as something to poll.

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;

use crate::OsError;
use crate::error::OrCannot;
use crate::sys::own;

/// A signal that the program answers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// SIGTERM: end in good order.
    Terminate,
    /// SIGINT (Ctrl-C): end in good order.
    Interrupt,
    /// SIGHUP: read the configuration anew.
    HangUp,
    /// SIGUSR1: free for the program.
    User1,
}

const TAKEN: [(libc::c_int, Signal); 4] = [
    (libc::SIGTERM, Signal::Terminate),
    (libc::SIGINT, Signal::Interrupt),
    (libc::SIGHUP, Signal::HangUp),
    (libc::SIGUSR1, Signal::User1),
];

/// TERM, INT, HUP and USR1 as something to poll rather than as interruptions.
///
/// Children inherit the block: start them with [`crate::proc::reset_signals`].
pub struct Signals(OwnedFd);

impl Signals {
    /// Blocks the four signals for this thread and for all that it starts from now on,
    /// and opens a descriptor that reports them. Call it before the first thread starts.
    pub fn take() -> Result<Signals, OsError> {
        let set = set_of_taken();
        // SAFETY: `set` is initialised and outlives both calls.
        let fd = unsafe {
            libc::pthread_sigmask(libc::SIG_BLOCK, &set, ptr::null_mut());
            own(libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK))
        }
        .or_cannot(|| "open a signal descriptor".into())?;
        Ok(Signals(fd))
    }

    /// The next signal that has come, if any.
    pub fn next_signal(&self) -> Option<Signal> {
        let mut info = MaybeUninit::<libc::signalfd_siginfo>::zeroed();
        let size = size_of::<libc::signalfd_siginfo>();
        loop {
            // SAFETY: `info` has room for `size` bytes.
            let n = unsafe { libc::read(self.0.as_raw_fd(), info.as_mut_ptr().cast(), size) };
            if n == size as isize {
                break;
            }
            if io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
                return None;
            }
        }
        // SAFETY: the kernel has filled the whole struct, which is plain integers.
        let number = unsafe { info.assume_init() }.ssi_signo as libc::c_int;
        TAKEN.iter().find(|(n, _)| *n == number).map(|(_, s)| *s)
    }
}

fn set_of_taken() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: sigemptyset initialises the set before anything is added to it.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for (number, _) in TAKEN {
            libc::sigaddset(set.as_mut_ptr(), number);
        }
        set.assume_init()
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blocked_signal_is_read_from_the_descriptor_once() {
        // Directed at this thread only, so that the other tests' threads live on.
        let signals = Signals::take().unwrap();
        assert_eq!(signals.next_signal(), None);
        // SAFETY: the signals are blocked in this very thread.
        unsafe {
            libc::pthread_kill(libc::pthread_self(), libc::SIGHUP);
            libc::pthread_kill(libc::pthread_self(), libc::SIGTERM);
        }
        let mut seen = [signals.next_signal(), signals.next_signal()];
        seen.sort_by_key(|s| *s == Some(Signal::Terminate));
        assert_eq!(seen, [Some(Signal::HangUp), Some(Signal::Terminate)]);
        assert_eq!(signals.next_signal(), None);
    }
}
