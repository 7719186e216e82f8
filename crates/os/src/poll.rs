//! What a single-threaded driver waits with: [`Poller`], [`Clock`], [`Waker`], [`Signals`].
//!
//! ```no_run
//! # use os::poll::{Clock, Events, Interest, Poller, Signals};
//! # fn main() -> Result<(), os::OsError> {
//! let clock = Clock::start();
//! let signals = Signals::take()?; // before the first thread is started
//! let mut poller = Poller::new()?;
//! poller.add(&signals, 0, Interest::READ)?;
//! let mut events = Events::with_capacity(256);
//! loop {
//!     poller.wait(&mut events, Some(units::Duration::from_millis(20)))?;
//!     let now = clock.now();
//!     for event in events.iter() { /* … */ }
//! # let _ = now; break;
//! }
//! # Ok(()) }
//! ```

mod clock;
mod signals;
mod waker;

pub use clock::{Clock, ClockSource, asleep};
pub use signals::{Signal, Signals};
pub use waker::Waker;

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;

use units::Duration;

use crate::OsError;
use crate::error::OrCannot;
use crate::sys::{check, own, retry};

/// Reads and writes of the descriptor return at once.
pub fn set_nonblocking(fd: &impl AsFd) -> io::Result<()> {
    crate::sys::set_nonblocking(fd.as_fd())
}

/// What to be told about a descriptor. Errors and hang-ups are always told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interest(u32);

impl Interest {
    /// Nothing but errors: a descriptor that is registered and at rest.
    pub const NONE: Interest = Interest(0);
    /// It can be read, or the far side has closed its half.
    pub const READ: Interest = Interest((libc::EPOLLIN | libc::EPOLLRDHUP) as u32);
    /// It can be written.
    pub const WRITE: Interest = Interest(libc::EPOLLOUT as u32);
    /// Both.
    pub const READ_WRITE: Interest = Interest(Interest::READ.0 | Interest::WRITE.0);

    /// Tell only changes: after each event read or write until it would block.
    /// Saves a system call per change of mind, which counts at 10,000 connections.
    pub const fn edge(self) -> Interest {
        Interest(self.0 | libc::EPOLLET as u32)
    }
}

/// One descriptor's news.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The number the descriptor was registered under.
    pub token: u64,
    /// There is something to read, an end included.
    pub readable: bool,
    /// There is room to write.
    pub writable: bool,
    /// The far side closed its half; what it sent before can still be read.
    pub read_closed: bool,
    /// Both halves are gone, or the descriptor has an error waiting.
    pub failed: bool,
}

/// Room for the events of one wait.
pub struct Events {
    buf: Vec<libc::epoll_event>,
    len: usize,
}

impl Events {
    /// Room for `n` events (at least 1); what does not fit comes with the next wait.
    pub fn with_capacity(n: usize) -> Events {
        Events { buf: vec![libc::epoll_event { events: 0, u64: 0 }; n.max(1)], len: 0 }
    }
    /// How many events the last wait brought.
    pub fn len(&self) -> usize {
        self.len
    }
    /// True after a wait that ran out of time.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
    /// The events of the last wait.
    pub fn iter(&self) -> impl Iterator<Item = Event> + '_ {
        self.buf[..self.len].iter().map(|e| {
            let has = |bits: libc::c_int| e.events & bits as u32 != 0;
            Event {
                token: e.u64,
                readable: has(libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLHUP | libc::EPOLLERR),
                writable: has(libc::EPOLLOUT | libc::EPOLLHUP | libc::EPOLLERR),
                read_closed: has(libc::EPOLLRDHUP | libc::EPOLLHUP),
                failed: has(libc::EPOLLHUP | libc::EPOLLERR),
            }
        })
    }
}

/// The token the fallback timer is registered under; callers may not use it.
const TIMER_TOKEN: u64 = u64::MAX;

/// An epoll instance with nanosecond time-outs.
pub struct Poller {
    epoll: OwnedFd,
    /// Only on kernels older than 5.11, which have no `epoll_pwait2`.
    timer: Option<OwnedFd>,
}

impl Poller {
    /// A poller that watches nothing yet.
    pub fn new() -> Result<Poller, OsError> {
        // SAFETY: no pointers are passed.
        let epoll = own(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })
            .or_cannot(|| "create an epoll instance".into())?;
        let mut poller = Poller { epoll, timer: None };
        if !has_epoll_pwait2(&poller.epoll) {
            poller.use_timer()?;
        }
        Ok(poller)
    }

    /// Watches `fd` under `token` (any number but `u64::MAX`). The caller keeps the
    /// descriptor and may just close it: that ends the watch.
    pub fn add(&self, fd: &impl AsFd, token: u64, interest: Interest) -> Result<(), OsError> {
        debug_assert_ne!(token, TIMER_TOKEN, "u64::MAX is the poller's own token");
        self.control(libc::EPOLL_CTL_ADD, fd, token, interest)
            .or_cannot(|| "watch a descriptor".into())
    }

    /// Changes what is told about a watched `fd`.
    pub fn modify(&self, fd: &impl AsFd, token: u64, interest: Interest) -> Result<(), OsError> {
        self.control(libc::EPOLL_CTL_MOD, fd, token, interest)
            .or_cannot(|| "change the watch on a descriptor".into())
    }

    /// Ends the watch on `fd`.
    pub fn remove(&self, fd: &impl AsFd) -> Result<(), OsError> {
        self.control(libc::EPOLL_CTL_DEL, fd, 0, Interest::NONE)
            .or_cannot(|| "end the watch on a descriptor".into())
    }

    /// Waits for news, for at most `timeout` (`None`: for ever), and returns how many
    /// events came. A signal ends the wait early with none. The wait's precision is
    /// the thread's timer slack: see [`crate::proc::precise_timers`].
    pub fn wait(
        &mut self,
        events: &mut Events,
        timeout: Option<Duration>,
    ) -> Result<usize, OsError> {
        events.len = 0;
        let n = match &self.timer {
            None => pwait2(&self.epoll, &mut events.buf, timeout),
            Some(timer) => wait_with_timer(&self.epoll, timer, &mut events.buf, timeout),
        };
        events.len = match n {
            Ok(n) => n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => 0,
            Err(e) => return Err(OsError::new("wait for events", e)),
        };
        if self.timer.is_some() {
            events.drop_timer();
        }
        Ok(events.len)
    }

    fn control(
        &self,
        op: libc::c_int,
        fd: &impl AsFd,
        token: u64,
        interest: Interest,
    ) -> io::Result<()> {
        let mut event = libc::epoll_event { events: interest.0, u64: token };
        let (epoll, fd) = (self.epoll.as_raw_fd(), fd.as_fd().as_raw_fd());
        // SAFETY: `event` outlives the call; both descriptors are open because they are borrowed.
        check(unsafe { libc::epoll_ctl(epoll, op, fd, &mut event) }).map(drop)
    }

    fn use_timer(&mut self) -> Result<(), OsError> {
        // SAFETY: no pointers are passed.
        let timer = own(unsafe {
            libc::timerfd_create(libc::CLOCK_BOOTTIME, libc::TFD_CLOEXEC | libc::TFD_NONBLOCK)
        })
        .or_cannot(|| "create a timer".into())?;
        self.control(libc::EPOLL_CTL_ADD, &timer, TIMER_TOKEN, Interest::READ)
            .or_cannot(|| "watch the timer".into())?;
        self.timer = Some(timer);
        Ok(())
    }
}

impl AsFd for Poller {
    /// Readable while there is news: a poller may watch another one.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

impl Events {
    /// The fallback timer's own event only ends the wait; nobody else sees it.
    fn drop_timer(&mut self) {
        let timer = |e: &libc::epoll_event| e.u64 == TIMER_TOKEN;
        if let Some(at) = self.buf[..self.len].iter().position(timer) {
            self.buf.swap(at, self.len - 1);
            self.len -= 1;
        }
    }
}

fn timespec(d: Duration) -> libc::timespec {
    let ns = d.as_nanos();
    // The kernel refuses seconds beyond its own range; 30 years is for ever here.
    let secs = (ns / 1_000_000_000).min(1_000_000_000);
    libc::timespec { tv_sec: secs as libc::time_t, tv_nsec: (ns % 1_000_000_000) as libc::c_long }
}

fn pwait2(
    epoll: &OwnedFd,
    buf: &mut [libc::epoll_event],
    timeout: Option<Duration>,
) -> io::Result<usize> {
    let limit = timeout.map(timespec);
    let limit_ptr = limit.as_ref().map_or(ptr::null(), |t| &raw const *t);
    // Called by number: the C library has had a wrapper only since glibc 2.35.
    // SAFETY: `buf` has room for `buf.len()` events, `limit_ptr` is null or points to
    // `limit`, and a null signal mask leaves the mask alone.
    let n = unsafe {
        libc::syscall(
            libc::SYS_epoll_pwait2,
            epoll.as_raw_fd(),
            buf.as_mut_ptr(),
            buf.len() as libc::c_int,
            limit_ptr,
            ptr::null::<libc::sigset_t>(),
            0usize,
        )
    };
    usize::try_from(n).map_err(|_| io::Error::last_os_error())
}

fn has_epoll_pwait2(epoll: &OwnedFd) -> bool {
    let mut none = [libc::epoll_event { events: 0, u64: 0 }];
    !matches!(
        retry(|| pwait2(epoll, &mut none, Some(Duration::ZERO))),
        Err(e) if e.raw_os_error() == Some(libc::ENOSYS)
    )
}

fn wait_with_timer(
    epoll: &OwnedFd,
    timer: &OwnedFd,
    buf: &mut [libc::epoll_event],
    timeout: Option<Duration>,
) -> io::Result<usize> {
    let at_once = timeout == Some(Duration::ZERO);
    if !at_once {
        // A zero time disarms the timer; setting it also forgets an earlier expiry.
        let value = timespec(timeout.unwrap_or(Duration::ZERO));
        let spec = libc::itimerspec { it_interval: timespec(Duration::ZERO), it_value: value };
        // SAFETY: `spec` outlives the call; the old value is not asked for.
        check(unsafe { libc::timerfd_settime(timer.as_raw_fd(), 0, &spec, ptr::null_mut()) })?;
    }
    let millis = if at_once { 0 } else { -1 };
    // SAFETY: `buf` has room for `buf.len()` events.
    check(unsafe {
        libc::epoll_wait(epoll.as_raw_fd(), buf.as_mut_ptr(), buf.len() as libc::c_int, millis)
    })
    .map(|n| n as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    fn with_both_timers(test: impl Fn(Poller)) {
        test(Poller::new().unwrap());
        let mut old_kernel = Poller::new().unwrap();
        old_kernel.use_timer().unwrap();
        test(old_kernel);
    }

    #[test]
    fn a_wait_ends_with_the_token_of_what_became_readable() {
        with_both_timers(|mut poller| {
            let (mut near, far) = UnixStream::pair().unwrap();
            poller.add(&far, 7, Interest::READ).unwrap();
            let mut events = Events::with_capacity(4);
            assert_eq!(poller.wait(&mut events, Some(Duration::ZERO)).unwrap(), 0);
            near.write_all(b"x").unwrap();
            assert_eq!(poller.wait(&mut events, None).unwrap(), 1);
            let event = events.iter().next().unwrap();
            assert_eq!((event.token, event.readable, event.failed), (7, true, false));
        });
    }

    #[test]
    fn an_idle_wait_lasts_its_time_and_brings_nothing() {
        with_both_timers(|mut poller| {
            let clock = Clock::start();
            let mut events = Events::with_capacity(1);
            let timeout = Duration::from_micros(1_500);
            assert_eq!(poller.wait(&mut events, Some(timeout)).unwrap(), 0);
            assert!(clock.now().since(units::Instant::ZERO) >= timeout);
            // A time-out left over must not end the next wait early.
            assert_eq!(poller.wait(&mut events, Some(Duration::ZERO)).unwrap(), 0);
        });
    }

    #[test]
    fn an_edge_is_told_once_and_a_level_every_time() {
        let mut poller = Poller::new().unwrap();
        let (mut near, far) = UnixStream::pair().unwrap();
        let mut events = Events::with_capacity(4);
        near.write_all(b"x").unwrap();
        poller.add(&far, 1, Interest::READ.edge()).unwrap();
        assert_eq!(poller.wait(&mut events, Some(Duration::ZERO)).unwrap(), 1);
        assert_eq!(poller.wait(&mut events, Some(Duration::ZERO)).unwrap(), 0);
        poller.modify(&far, 1, Interest::READ).unwrap();
        assert_eq!(poller.wait(&mut events, Some(Duration::ZERO)).unwrap(), 1);
        assert_eq!(poller.wait(&mut events, Some(Duration::ZERO)).unwrap(), 1);
        poller.remove(&far).unwrap();
        assert_eq!(poller.wait(&mut events, Some(Duration::ZERO)).unwrap(), 0);
    }

    #[test]
    fn a_closed_far_side_is_told() {
        let mut poller = Poller::new().unwrap();
        let (near, far) = UnixStream::pair().unwrap();
        poller.add(&far, 1, Interest::READ).unwrap();
        drop(near);
        let mut events = Events::with_capacity(4);
        poller.wait(&mut events, None).unwrap();
        let event = events.iter().next().unwrap();
        assert!(event.read_closed && event.readable && event.failed);
    }
}
