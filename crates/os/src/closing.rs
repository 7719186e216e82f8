//! The end of descriptors that a program has, too, which is not trusted.
//!
//! Who closes the last copy of a socket waits for as long as its SO_LINGER says, also where the
//! socket does not block, and each program that has a copy may set that at any time. So such
//! descriptors are closed on a thread, one for each such program: it holds up nobody but itself.

use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Sender, channel};
use std::thread;

use crate::OsError;
use crate::error::OrCannot;

/// Closes what one program has copies of.
#[derive(Debug)]
pub struct Closer {
    queue: Sender<OwnedFd>,
    waiting: Arc<AtomicUsize>,
}

impl Closer {
    /// Starts its thread, which ends with it.
    ///
    /// # Errors
    /// If the system has no more threads.
    pub fn start() -> Result<Arc<Closer>, OsError> {
        let (queue, taken) = channel::<OwnedFd>();
        let waiting = Arc::new(AtomicUsize::new(0));
        let count = waiting.clone();
        let close = move || {
            for fd in taken {
                drop(fd);
                count.fetch_sub(1, Relaxed);
            }
        };
        let thread = thread::Builder::new().name("closer".into());
        thread.spawn(close).or_cannot(|| "start a thread that closes sockets".into())?;
        Ok(Arc::new(Closer { queue, waiting }))
    }

    /// Descriptors that are yet to be closed. Many: the program makes their end wait.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Relaxed)
    }

    fn close(&self, fd: OwnedFd) {
        self.waiting.fetch_add(1, Relaxed);
        // The thread takes all until there is no sender any more.
        let _ = self.queue.send(fd);
    }
}

/// A descriptor that another program has, too, or had.
#[derive(Debug)]
pub struct Shared {
    fd: ManuallyDrop<OwnedFd>,
    closer: Arc<Closer>,
}

impl Shared {
    /// To be closed by `closer`.
    pub fn new(fd: OwnedFd, closer: &Arc<Closer>) -> Shared {
        Shared { fd: ManuallyDrop::new(fd), closer: closer.clone() }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: nothing uses it after this.
        self.closer.close(unsafe { ManuallyDrop::take(&mut self.fd) });
    }
}

impl AsFd for Shared {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A descriptor, whoever has it.
#[derive(Debug)]
pub(crate) enum Held {
    Own(OwnedFd),
    Shared(Shared),
}

impl AsFd for Held {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Held::Own(fd) => fd.as_fd(),
            Held::Shared(fd) => fd.as_fd(),
        }
    }
}

impl AsRawFd for Held {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl From<Held> for OwnedFd {
    /// It is the caller's to close, and to wait for.
    fn from(held: Held) -> OwnedFd {
        match held {
            Held::Own(fd) => fd,
            Held::Shared(shared) => {
                let mut shared = ManuallyDrop::new(shared);
                // SAFETY: both are taken once, and the rest of `shared` is not used or dropped.
                unsafe {
                    std::ptr::drop_in_place(&raw mut shared.closer);
                    ManuallyDrop::take(&mut shared.fd)
                }
            }
        }
    }
}

impl From<OwnedFd> for Held {
    fn from(fd: OwnedFd) -> Held {
        Held::Own(fd)
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::seqpacket::SeqPacket;
    use crate::tcp::{Stream, TcpOptions, linger, pair};

    /// A socket whose last close waits for half a minute, and who could end that.
    fn lingering() -> (OwnedFd, Stream) {
        let (a, b) = pair(&TcpOptions::default(), &TcpOptions::default()).unwrap();
        while a.write(&[0; 1 << 16]).is_ok() {}
        linger(a.as_fd(), LINGER).unwrap();
        (a.into(), b)
    }

    fn takes(what: impl FnOnce()) -> Duration {
        let begin = Instant::now();
        what();
        begin.elapsed()
    }

    const LINGER: units::Duration = units::Duration::from_secs(30);
    const SOON: Duration = Duration::from_secs(15);

    #[test]
    fn who_drops_a_shared_socket_does_not_wait_for_what_another_program_made_of_it() {
        let closer = Closer::start().unwrap();
        let begin = Instant::now();
        // Where another test's child has it too, until it runs its program, its end waits there.
        let other = loop {
            let (fd, other) = lingering();
            assert!(takes(|| drop(Shared::new(fd, &closer))) < SOON);
            thread::sleep(Duration::from_millis(20));
            if closer.waiting() == 1 {
                break other;
            }
            assert!(begin.elapsed() < SOON, "its end waits");
        };
        let (fd, another) = lingering();
        let set = || -> io::Result<()> {
            let stream = Stream::given(Shared::new(fd, &closer))?;
            linger(stream.as_fd(), LINGER)
        };
        assert!(takes(|| set().unwrap()) < SOON);
        drop((other, another));
        let begin = Instant::now();
        while closer.waiting() > 0 {
            assert!(begin.elapsed() < SOON, "both are closed");
            thread::sleep(Duration::from_millis(2));
        }
    }

    #[test]
    fn who_drops_a_socket_with_descriptors_in_it_does_not_wait_either() {
        let closer = Closer::start().unwrap();
        let (ours, theirs) = SeqPacket::pair().unwrap();
        let ours = ours.closed_by(&closer);
        let mut others = Vec::new();
        for text in ["too long for the room", "x", "y"] {
            let (fd, other) = lingering();
            theirs.send(&[io::IoSlice::new(text.as_bytes())], &[fd.as_fd()], false).unwrap();
            others.push(other);
        }
        assert!(takes(|| drop(ours.receive_shared(&mut [0; 4], &closer).unwrap_err())) < SOON);
        assert_eq!(ours.receive_shared(&mut [0; 4], &closer).unwrap().0, 1);
        assert!(takes(|| drop(ours)) < SOON);
    }
}
