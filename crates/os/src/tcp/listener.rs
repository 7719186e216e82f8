//! Listening sockets, and those on which intercepted connections arrive.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use super::{Stream, TcpOptions, set_transparent};
use crate::OsError;
use crate::error::{OrCannot, bind_error};
use crate::sys::{self, RawAddr, check, own, retry, set_option};

/// Connections that may wait to be accepted; the kernel cuts it to `net.core.somaxconn`.
const BACKLOG: libc::c_int = 4096;

/// A connection just accepted.
#[derive(Debug)]
pub struct Accepted {
    /// The connection, non-blocking, with the listener's options.
    pub stream: Stream,
    /// The client.
    pub client: SocketAddr,
    /// Where the client meant to connect to: for an intercepted connection the server's
    /// address, for any other the listener's own.
    pub server: SocketAddr,
}

/// Connections that nobody meant, passed over in one call at most.
const PASSED_OVER: usize = 64;

/// A listening socket, non-blocking.
#[derive(Debug)]
pub struct Listener {
    fd: OwnedFd,
    local: SocketAddr,
    transparent: bool,
}

impl Listener {
    /// Listens on `local` (port 0: a free one) as any server does. `[::]` takes IPv4 too.
    pub fn bind(local: SocketAddr, options: &TcpOptions) -> Result<Listener, OsError> {
        Listener::open(local, options, false)
    }

    /// Listens on `local` for connections to any address that TPROXY hands over.
    pub fn transparent(local: SocketAddr, options: &TcpOptions) -> Result<Listener, OsError> {
        Listener::open(local, options, true)
    }

    fn open(
        local: SocketAddr,
        options: &TcpOptions,
        transparent: bool,
    ) -> Result<Listener, OsError> {
        let fd = sys::socket(sys::family(&local), libc::SOCK_STREAM)
            .or_cannot(|| "open a TCP socket".into())?;
        options.apply(fd.as_fd())?;
        set_option(fd.as_fd(), libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)
            .or_cannot(|| "set up a listening socket".into())?;
        if local.is_ipv6() {
            let only = i32::from(transparent || !local.ip().is_unspecified());
            set_option(fd.as_fd(), libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, only)
                .or_cannot(|| "set up a listening socket".into())?;
        }
        if transparent {
            set_transparent(fd.as_fd(), local).map_err(|e| {
                OsError::new("accept connections to other hosts' addresses", e)
                    .mend("grant CAP_NET_ADMIN or run as root")
            })?;
        }
        sys::bind(fd.as_fd(), local, false).map_err(|e| bind_error("TCP", local, e))?;
        // SAFETY: no pointers are passed.
        check(unsafe { libc::listen(fd.as_raw_fd(), BACKLOG) })
            .map_err(|e| bind_error("TCP", local, e))?;
        let local = sys::local_addr(fd.as_fd()).or_cannot(|| "read a listener's address".into())?;
        Ok(Listener { fd, local, transparent })
    }

    /// The address it listens on, with the real port.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// The next connection; `WouldBlock` when there is none. With `EMFILE` or `ENFILE`
    /// (`raw_os_error`) it stays queued, and a level-triggered poller keeps telling:
    /// stop watching until a connection has ended.
    ///
    /// A connection that ended before it was accepted is passed over. A transparent
    /// listener resets what was addressed to itself: nobody there can be meant. After
    /// [`PASSED_OVER`] of either in a row the answer is `WouldBlock`, so that a program that
    /// connects all the time does not keep the caller: a level-triggered poller tells of the rest.
    pub fn accept(&self) -> io::Result<Accepted> {
        for _ in 0..PASSED_OVER {
            let (stream, client) = match retry(|| self.accept_one()) {
                Err(e) if is_over(&e) => continue,
                other => other?,
            };
            let server = stream.local_addr()?;
            if !(self.transparent && server == self.local) {
                return Ok(Accepted { stream, client, server });
            }
        }
        Err(io::ErrorKind::WouldBlock.into())
    }

    fn accept_one(&self) -> io::Result<(Stream, SocketAddr)> {
        let mut raw = RawAddr::empty();
        let mut len = RawAddr::SIZE;
        let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: `raw` has room for `len` bytes.
        let fd =
            own(unsafe { libc::accept4(self.fd.as_raw_fd(), raw.as_mut_ptr(), &mut len, flags) })?;
        let client =
            raw.to_socket_addr().ok_or_else(|| io::Error::from_raw_os_error(libc::ECONNABORTED))?;
        Ok((Stream::from(fd), client))
    }
}

/// Errors that Linux reports for the connection it would have given, not for the listener.
fn is_over(e: &io::Error) -> bool {
    matches!(
        e.raw_os_error(),
        Some(
            libc::ECONNABORTED
                | libc::EPROTO
                | libc::ENETDOWN
                | libc::ENETUNREACH
                | libc::EHOSTDOWN
                | libc::EHOSTUNREACH
                | libc::ENONET
                | libc::ENOPROTOOPT
        )
    )
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Where intercepted connections arrive: one port on both loopback addresses, which no
/// other host can reach directly.
#[derive(Debug)]
pub struct TransparentListener {
    /// For IPv4.
    pub v4: Listener,
    /// For IPv6; none where the kernel has no IPv6.
    pub v6: Option<Listener>,
}

impl TransparentListener {
    /// Listens on `port` of 127.0.0.1 and ::1; port 0 takes one that is free on both.
    pub fn bind(port: u16, options: &TcpOptions) -> Result<TransparentListener, OsError> {
        let mut tries = if port == 0 { 16 } else { 1 };
        loop {
            tries -= 1;
            match TransparentListener::bind_once(port, options) {
                Err(e) if e.errno() == Some(libc::EADDRINUSE) && tries > 0 => {}
                other => return other,
            }
        }
    }

    /// The port of both.
    pub fn port(&self) -> u16 {
        self.v4.local_addr().port()
    }

    fn bind_once(port: u16, options: &TcpOptions) -> Result<TransparentListener, OsError> {
        let v4 = Listener::transparent((Ipv4Addr::LOCALHOST, port).into(), options)?;
        let same_port = (Ipv6Addr::LOCALHOST, v4.local_addr().port()).into();
        let v6 = match Listener::transparent(same_port, options) {
            Ok(listener) => Some(listener),
            Err(e) if matches!(e.errno(), Some(libc::EAFNOSUPPORT | libc::EADDRNOTAVAIL)) => None,
            Err(e) => return Err(e),
        };
        Ok(TransparentListener { v4, v6 })
    }
}
