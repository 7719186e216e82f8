//! The hosts' TCP connections: taken over with their original addresses, and made
//! with addresses that are not ours.
//!
//! * [`Listener::accept`] gives connections that the kernel's TPROXY handed over: their
//!   local address is the server that the client meant, their peer the client.
//! * [`connect`] opens one to a server, from the client's own address where asked.
//! * A [`Stream`] resets when it is dropped, from birth until
//!   [`Stream::close_in_order`] is called: a dying gateway must not end a connection
//!   cleanly whose last bytes it still holds (R-SEMANTICS).
//!
//! * [`pair`] makes two that are connected with each other, to hand one to another program.
//!
//! Every call is non-blocking, whatever another program does that has the socket, too, and so is
//! the end ([`Stream::given`]). A `Stream` is one descriptor and nothing else.

mod info;
mod listener;
mod options;
mod outcome;
mod pair;

pub use info::TcpInfo;
pub use listener::{Accepted, Listener, TransparentListener};
pub use options::TcpOptions;
pub use outcome::{Failure, Unreachable};
pub use pair::pair;

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use units::Duration;

use crate::OsError;
use crate::closing::{Closer, Held, Shared};
use crate::sys::{self, check, check_len, get_option, retry, set_option};

/// How bytes are written.
const AT_ONCE: libc::c_int = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;

/// How to connect.
#[derive(Clone, Copy, Debug)]
pub struct Connect<'a> {
    /// The server.
    pub to: SocketAddr,
    /// The address to come from. One that is not ours needs CAP_NET_ADMIN, and a way for
    /// the answers to come back here ([`crate::intercept`]). Port 0 lets the kernel
    /// choose at connect time, so that one port serves many servers.
    pub from: Option<SocketAddr>,
    /// The routing mark of its packets ([`crate::intercept::Marks`]); needs CAP_NET_ADMIN.
    pub mark: Option<u32>,
    /// Options to set from birth.
    pub options: &'a TcpOptions,
}

/// Why a connection could not even be begun.
#[derive(Debug)]
pub enum ConnectError {
    /// The far side cannot be reached: no route, or a firewall forbids it. Carries the
    /// system's error for the reset or ICMP error that the client gets.
    Unreachable(io::Error),
    /// The wanted source address and port are taken by another connection.
    SourceInUse,
    /// No descriptors or no memory left, or rights are missing.
    Failed(OsError),
}

/// Begins a connection. When the poller says writable, [`Stream::outcome`] tells whether
/// it stands.
pub fn connect(how: &Connect<'_>) -> Result<Stream, ConnectError> {
    let fd = sys::socket(sys::family(&how.to), libc::SOCK_STREAM)
        .map_err(|e| failed("open a TCP socket", e))?;
    how.options.apply(fd.as_fd()).map_err(ConnectError::Failed)?;
    if let Some(mark) = how.mark {
        set_option(fd.as_fd(), libc::SOL_SOCKET, libc::SO_MARK, mark)
            .map_err(|e| failed("mark a TCP socket", e))?;
    }
    if let Some(from) = how.from {
        come_from(fd.as_fd(), from)?;
    }
    // Without it the error is less exact, and that is all.
    let _ = outcome::keep_errors(fd.as_fd(), how.to.is_ipv4(), true);
    match sys::connect(fd.as_fd(), how.to, false) {
        Ok(()) => Ok(Stream { fd: fd.into() }),
        Err(e) => Err(match e.raw_os_error() {
            Some(libc::EADDRNOTAVAIL | libc::EADDRINUSE) => ConnectError::SourceInUse,
            Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOBUFS) => {
                failed("connect", e)
            }
            _ => ConnectError::Unreachable(e),
        }),
    }
}

fn failed(what: &str, e: io::Error) -> ConnectError {
    ConnectError::Failed(OsError::new(what, e))
}

/// Binds to an address that need not be ours.
fn come_from(fd: BorrowedFd<'_>, from: SocketAddr) -> Result<(), ConnectError> {
    set_transparent(fd, from).map_err(|e| {
        ConnectError::Failed(
            OsError::new("use a foreign source address", e)
                .mend("grant CAP_NET_ADMIN or run as root, or set source = \"nat\""),
        )
    })?;
    // With a port of its own, a connection whose predecessor is in TIME_WAIT may be made.
    let _ = set_option(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1);
    if from.port() == 0 {
        let _ = set_option(fd, libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, 1);
    }
    sys::bind(fd, from, false).map_err(|e| match e.raw_os_error() {
        Some(libc::EADDRINUSE) => ConnectError::SourceInUse,
        _ => failed(&format!("use the source address {from}"), e),
    })
}

/// Lets the socket have addresses that are not this host's.
pub(crate) fn set_transparent(fd: BorrowedFd<'_>, like: SocketAddr) -> io::Result<()> {
    match like {
        SocketAddr::V4(_) => set_option(fd, libc::IPPROTO_IP, libc::IP_TRANSPARENT, 1),
        SocketAddr::V6(_) => set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_TRANSPARENT, 1),
    }
}

/// One TCP connection. Dropping it resets it, unless [`Stream::close_in_order`] was called.
#[derive(Debug)]
pub struct Stream {
    fd: Held,
}

/// A connection made elsewhere, as it is: blocking or not, and with the close that it
/// was given. For programs that only want to look at it.
impl From<std::net::TcpStream> for Stream {
    fn from(stream: std::net::TcpStream) -> Stream {
        Stream { fd: OwnedFd::from(stream).into() }
    }
}

impl Stream {
    /// A descriptor that another program gave, if it is a TCP connection. It resets when it is
    /// dropped, like any.
    pub fn given(fd: Shared) -> io::Result<Stream> {
        let protocol: libc::c_int = get_option(fd.as_fd(), libc::SOL_SOCKET, libc::SO_PROTOCOL)?;
        if protocol != libc::IPPROTO_TCP {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        sys::peer_addr(fd.as_fd())?;
        sys::set_nonblocking(fd.as_fd())?;
        set_linger(fd.as_fd(), true)?;
        Ok(Stream { fd: Held::Shared(fd) })
    }

    /// The socket, of which another program is about to have a copy.
    pub fn share(self, closer: &Arc<Closer>) -> Shared {
        Shared::new(self.into(), closer)
    }

    /// Reads into `buf`. 0 is the far side's end; `WouldBlock` means wait. A reset comes
    /// as `ConnectionReset` once what arrived before it has been read.
    pub fn read(&self, buf: &mut [u8]) -> io::Result<usize> {
        let fd = self.fd.as_raw_fd();
        retry(|| {
            // SAFETY: pointer and length describe `buf`.
            check_len(unsafe {
                libc::recv(fd, buf.as_mut_ptr().cast(), buf.len(), libc::MSG_DONTWAIT)
            })
        })
    }

    /// Writes what the socket takes of `bytes` and says how much; `WouldBlock` means wait.
    pub fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        let (fd, ptr, len) = (self.fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len());
        // SAFETY: pointer and length describe `bytes`.
        retry(|| check_len(unsafe { libc::send(fd, ptr, len, AT_ONCE) }))
    }

    /// Writes several pieces in one call, as [`Stream::write`]. At most 1,024 pieces.
    pub fn write_vectored(&self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        // SAFETY: a msghdr is integers and pointers; all zero is valid.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        // The standard library promises that an IoSlice is laid out as an iovec.
        header.msg_iov = pieces.as_ptr().cast_mut().cast();
        header.msg_iovlen = pieces.len().min(1024) as _;
        let fd = self.fd.as_raw_fd();
        // SAFETY: `header` points to `pieces`, which outlive the call and are only read.
        retry(|| check_len(unsafe { libc::sendmsg(fd, &header, AT_ONCE) }))
    }

    /// Looks at what has arrived without taking it.
    pub fn peek(&self, buf: &mut [u8]) -> io::Result<usize> {
        let (fd, ptr, len) = (self.fd.as_raw_fd(), buf.as_mut_ptr().cast(), buf.len());
        retry(|| {
            // SAFETY: pointer and length describe `buf`.
            check_len(unsafe { libc::recv(fd, ptr, len, libc::MSG_PEEK | libc::MSG_DONTWAIT) })
        })
    }

    /// Ends our half: the far side reads an end once all that was written has arrived.
    pub fn shutdown_write(&self) -> io::Result<()> {
        // SAFETY: no pointers are passed.
        check(unsafe { libc::shutdown(self.fd.as_raw_fd(), libc::SHUT_WR) }).map(drop)
    }

    /// From now on a drop closes in order instead of resetting. For connections whose
    /// both ends have been relayed.
    pub fn close_in_order(&self) -> io::Result<()> {
        set_linger(self.fd.as_fd(), false)
    }

    /// The error that waits on the socket, and forgets it: the outcome of a connection
    /// attempt, or what ended an established connection.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        let n: libc::c_int = get_option(self.fd.as_fd(), libc::SOL_SOCKET, libc::SO_ERROR)?;
        Ok((n != 0).then(|| io::Error::from_raw_os_error(n)))
    }

    /// Our end's address: of an intercepted connection, the server the client meant.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        sys::local_addr(self.fd.as_fd())
    }

    /// The far end's address.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        sys::peer_addr(self.fd.as_fd())
    }

    /// The kernel's measurements of this connection.
    pub fn info(&self) -> io::Result<TcpInfo> {
        TcpInfo::of(self.fd.as_fd())
    }

    /// Bytes written that the far host has not acknowledged.
    pub fn unacknowledged(&self) -> io::Result<usize> {
        self.count(libc::TIOCOUTQ)
    }

    /// How much the kernel still has for the far host, in bytes, of which an end counts as one:
    /// what is lost if the connection is reset, or its way here closed, now. 0 where the
    /// connection is over, whatever was not acknowledged of it.
    pub fn under_way(&self) -> usize {
        match self.unacknowledged() {
            Ok(n) if n > 0 && self.info().is_ok_and(|info| !info.closed) => n,
            _ => 0,
        }
    }

    /// Bytes received that have not been read.
    pub fn unread(&self) -> io::Result<usize> {
        self.count(libc::FIONREAD)
    }

    /// Bounds the bytes that the kernel keeps for the far host while they are unsent:
    /// the poller says writable again only below this.
    pub fn set_unsent_limit(&self, bytes: u32) -> io::Result<()> {
        set_option(self.fd.as_fd(), libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, bytes)
    }

    /// Fixes the kernel's send buffer, ending its own tuning.
    pub fn set_send_buffer(&self, bytes: usize) -> io::Result<()> {
        sys::set_buffer(self.fd.as_fd(), libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, bytes)
    }

    /// Fixes the kernel's receive buffer, ending its own tuning.
    pub fn set_receive_buffer(&self, bytes: usize) -> io::Result<()> {
        sys::set_buffer(self.fd.as_fd(), libc::SO_RCVBUFFORCE, libc::SO_RCVBUF, bytes)
    }

    /// Bounds the window that is advertised, and leaves the kernel's tuning on below it.
    pub fn set_window_limit(&self, bytes: u32) -> io::Result<()> {
        set_option(self.fd.as_fd(), libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP, bytes)
    }

    /// Has the kernel send an acknowledgement that it holds back. It delays one for 40 ms
    /// or more when a segment arrives and nobody reads, which the far host takes for a
    /// longer round trip.
    pub fn acknowledge(&self) -> io::Result<()> {
        set_option(self.fd.as_fd(), libc::IPPROTO_TCP, libc::TCP_QUICKACK, 1)
    }

    /// Sets options that it was not born with.
    ///
    /// # Errors
    /// The kernel refuses one of them.
    pub fn set_options(&self, options: &TcpOptions) -> Result<(), OsError> {
        options.apply(self.fd.as_fd())
    }

    /// Sends at most so many bytes of content a second, evenly (`SO_MAX_PACING_RATE`).
    pub fn set_pace(&self, bytes: u64) -> io::Result<()> {
        set_option(self.fd.as_fd(), libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE, bytes)
    }

    /// Gives up when written data is not acknowledged within `d`; zero is the system's default.
    pub fn set_user_timeout(&self, d: Duration) -> io::Result<()> {
        let millis = u32::try_from(d.as_millis()).unwrap_or(u32::MAX);
        set_option(self.fd.as_fd(), libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, millis)
    }

    fn count(&self, what: libc::Ioctl) -> io::Result<usize> {
        let mut n: libc::c_int = 0;
        // SAFETY: these requests write one int, to a value that outlives the call.
        check(unsafe { libc::ioctl(self.fd.as_raw_fd(), what, &raw mut n) })?;
        Ok(n.max(0) as usize)
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl From<OwnedFd> for Stream {
    /// Takes over a connected, non-blocking socket.
    fn from(fd: OwnedFd) -> Stream {
        Stream { fd: fd.into() }
    }
}

impl From<Stream> for OwnedFd {
    /// The socket, which resets when it is closed, as the stream would have done.
    fn from(stream: Stream) -> OwnedFd {
        stream.fd.into()
    }
}

/// From now on closing the socket ends the connection instead of resetting it. For sockets that
/// another program gave (see [`Stream::close_in_order`]).
pub fn close_in_order(fd: BorrowedFd<'_>) -> io::Result<()> {
    set_linger(fd, false)
}

/// From now on who closes the last copy of the socket waits for up to `d`, in whole seconds, for
/// the far host: what a program that is not trusted may do, for tests.
pub fn linger(fd: BorrowedFd<'_>, d: Duration) -> io::Result<()> {
    let linger = libc::linger { l_onoff: 1, l_linger: d.as_millis().div_ceil(1000) as libc::c_int };
    set_option(fd, libc::SOL_SOCKET, libc::SO_LINGER, linger)
}

/// With `reset`, closing sends a reset and forgets unsent data.
fn set_linger(fd: BorrowedFd<'_>, reset: bool) -> io::Result<()> {
    let linger = libc::linger { l_onoff: libc::c_int::from(reset), l_linger: 0 };
    set_option(fd, libc::SOL_SOCKET, libc::SO_LINGER, linger)
}

#[cfg(test)]
mod tests;
