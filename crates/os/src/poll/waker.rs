//! Wakes a poller from another thread, by an eventfd.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use crate::OsError;
use crate::error::OrCannot;
use crate::sys::own;

/// Wakes a [`Poller`](super::Poller) from another thread. Clones wake the same one.
/// Any number of wakes between two waits count as one.
#[derive(Clone, Debug)]
pub struct Waker(Arc<OwnedFd>);

impl Waker {
    /// A waker; the poller watches it with [`Interest::READ`](super::Interest::READ).
    pub fn new() -> Result<Waker, OsError> {
        // SAFETY: no pointers are passed.
        let fd = own(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })
            .or_cannot(|| "create an event descriptor".into())?;
        Ok(Waker(Arc::new(fd)))
    }

    /// Ends the other thread's wait, now or when it next waits.
    pub fn wake(&self) {
        // Fails only when 2^64−2 wakes are pending, and then the poller wakes anyway.
        // SAFETY: eight bytes are read from a value that outlives the call.
        unsafe { libc::write(self.0.as_raw_fd(), (&raw const ONE).cast(), 8) };
    }

    /// Forgets the wakes so far; true if there were any. Call before looking at what
    /// the other thread left, so that nothing left later goes unseen.
    pub fn clear(&self) -> bool {
        let mut count = 0u64;
        loop {
            // SAFETY: eight bytes are written to a value that outlives the call.
            let n = unsafe { libc::read(self.0.as_raw_fd(), (&raw mut count).cast(), 8) };
            if n == 8 {
                return true;
            }
            if io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
                return false;
            }
        }
    }
}

static ONE: u64 = 1;

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Events, Interest, Poller};
    use super::*;

    #[test]
    fn another_thread_ends_the_wait_and_many_wakes_count_once() {
        let waker = Waker::new().unwrap();
        let mut poller = Poller::new().unwrap();
        poller.add(&waker, 3, Interest::READ).unwrap();
        let far = waker.clone();
        let thread = std::thread::spawn(move || (0..10).for_each(|_| far.wake()));
        let mut events = Events::with_capacity(1);
        poller.wait(&mut events, None).unwrap();
        assert_eq!(events.iter().next().unwrap().token, 3);
        thread.join().unwrap();
        assert!(waker.clear());
        assert!(!waker.clear());
    }
}
