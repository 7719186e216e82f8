//! What every module needs of the system call layer: return values as results,
//! socket options by type, addresses to and from the kernel's form.

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// −1 becomes the thread's error number.
pub(crate) fn check(ret: libc::c_int) -> io::Result<libc::c_int> {
    if ret < 0 { Err(io::Error::last_os_error()) } else { Ok(ret) }
}

/// A count of bytes or messages, or the thread's error number.
pub(crate) fn check_len(ret: libc::ssize_t) -> io::Result<usize> {
    usize::try_from(ret).map_err(|_| io::Error::last_os_error())
}

/// Repeats a call that a signal interrupted.
pub(crate) fn retry<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

/// Takes ownership of a descriptor that a system call has just returned.
pub(crate) fn own(ret: libc::c_int) -> io::Result<OwnedFd> {
    let fd: RawFd = check(ret)?;
    // SAFETY: the call that returned `fd` succeeded, so it is open, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Calls on the descriptor return at once.
pub(crate) fn set_nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: no pointers are passed.
    let flags = check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) })?;
    // SAFETY: the same.
    check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, flags | libc::O_NONBLOCK) }).map(drop)
}

/// A new socket: close-on-exec, non-blocking.
pub(crate) fn socket(domain: libc::c_int, kind: libc::c_int) -> io::Result<OwnedFd> {
    let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: no pointers are passed.
    own(unsafe { libc::socket(domain, kind | flags, 0) })
}

/// Sets one socket option. `T` must be the C type that the option takes.
pub(crate) fn set_option<T: Copy>(
    fd: BorrowedFd<'_>,
    level: libc::c_int,
    name: libc::c_int,
    value: T,
) -> io::Result<()> {
    // SAFETY: pointer and length describe `value`, which outlives the call.
    check(unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            name,
            (&raw const value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    })
    .map(drop)
}

/// Sets an option that takes text (a congestion control, an interface name).
pub(crate) fn set_text_option(
    fd: BorrowedFd<'_>,
    level: libc::c_int,
    name: libc::c_int,
    text: &str,
) -> io::Result<()> {
    // SAFETY: pointer and length describe `text`, which outlives the call.
    check(unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            name,
            text.as_ptr().cast(),
            text.len() as libc::socklen_t,
        )
    })
    .map(drop)
}

/// Reads one socket option into a plain C value; what the kernel leaves out is zero.
pub(crate) fn get_option<T: Copy>(
    fd: BorrowedFd<'_>,
    level: libc::c_int,
    name: libc::c_int,
) -> io::Result<T> {
    let mut value = MaybeUninit::<T>::zeroed();
    let mut len = size_of::<T>() as libc::socklen_t;
    // SAFETY: pointer and length describe `value`; the kernel writes at most `len` bytes.
    check(unsafe {
        libc::getsockopt(fd.as_raw_fd(), level, name, value.as_mut_ptr().cast(), &mut len)
    })?;
    // SAFETY: every `T` used here is an integer or a C struct of integers, for which
    // zeroed memory, overwritten in part or in whole, is a valid value.
    Ok(unsafe { value.assume_init() })
}

/// Asks for a socket buffer of `bytes`, beyond the system's limit where the rights allow.
pub(crate) fn set_buffer(
    fd: BorrowedFd<'_>,
    force: libc::c_int,
    plain: libc::c_int,
    bytes: usize,
) -> io::Result<()> {
    // The kernel doubles what it is given, for its own overhead.
    let n = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX / 2);
    set_option(fd, libc::SOL_SOCKET, force, n)
        .or_else(|_| set_option(fd, libc::SOL_SOCKET, plain, n))
}

/// Room for any socket address, in the kernel's form.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) union RawAddr {
    pub v4: libc::sockaddr_in,
    pub v6: libc::sockaddr_in6,
    family: libc::sa_family_t,
}

impl RawAddr {
    pub const SIZE: libc::socklen_t = size_of::<RawAddr>() as libc::socklen_t;

    pub fn empty() -> RawAddr {
        // SAFETY: all fields are integers or arrays of them; zero is valid and means AF_UNSPEC.
        unsafe { MaybeUninit::<RawAddr>::zeroed().assume_init() }
    }

    /// `addr` and its length. With `mapped`, an IPv4 address takes its IPv6 form,
    /// as an IPv6 socket that also carries IPv4 wants it.
    pub fn from_socket_addr(addr: SocketAddr, mapped: bool) -> (RawAddr, libc::socklen_t) {
        let mut raw = RawAddr::empty();
        match addr {
            SocketAddr::V4(a) if mapped => {
                raw.v6 = in6(SocketAddrV6::new(a.ip().to_ipv6_mapped(), a.port(), 0, 0));
                (raw, size_of::<libc::sockaddr_in6>() as libc::socklen_t)
            }
            SocketAddr::V4(a) => {
                raw.v4 = libc::sockaddr_in {
                    sin_family: libc::AF_INET as libc::sa_family_t,
                    sin_port: a.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(a.ip().octets()) },
                    sin_zero: [0; 8],
                };
                (raw, size_of::<libc::sockaddr_in>() as libc::socklen_t)
            }
            SocketAddr::V6(a) => {
                raw.v6 = in6(a);
                (raw, size_of::<libc::sockaddr_in6>() as libc::socklen_t)
            }
        }
    }

    /// A copy of what `addr` points to.
    ///
    /// # Safety
    /// `addr` is null or points to a socket address as long as its family says.
    pub unsafe fn copied_from(addr: *const libc::sockaddr) -> RawAddr {
        let mut raw = RawAddr::empty();
        if addr.is_null() {
            return raw;
        }
        // SAFETY: the caller vouches for the family and for as many bytes as it implies.
        unsafe {
            match libc::c_int::from((*addr).sa_family) {
                libc::AF_INET => raw.v4 = addr.cast::<libc::sockaddr_in>().read_unaligned(),
                libc::AF_INET6 => raw.v6 = addr.cast::<libc::sockaddr_in6>().read_unaligned(),
                _ => {}
            }
        }
        raw
    }

    /// The address as Rust knows it; IPv4-mapped IPv6 becomes IPv4. `None` for other families.
    pub fn to_socket_addr(self) -> Option<SocketAddr> {
        // SAFETY: the whole union is initialised (it starts zeroed), and any bit pattern
        // is a valid value of each of its fields.
        unsafe {
            match libc::c_int::from(self.family) {
                libc::AF_INET => {
                    let ip = Ipv4Addr::from(self.v4.sin_addr.s_addr.to_ne_bytes());
                    Some(SocketAddrV4::new(ip, u16::from_be(self.v4.sin_port)).into())
                }
                libc::AF_INET6 => {
                    let ip = Ipv6Addr::from(self.v6.sin6_addr.s6_addr);
                    let port = u16::from_be(self.v6.sin6_port);
                    Some(match ip.to_ipv4_mapped() {
                        Some(v4) => SocketAddrV4::new(v4, port).into(),
                        None => SocketAddrV6::new(ip, port, 0, self.v6.sin6_scope_id).into(),
                    })
                }
                _ => None,
            }
        }
    }

    pub fn as_ptr(&self) -> *const libc::sockaddr {
        (&raw const *self).cast()
    }
    pub fn as_mut_ptr(&mut self) -> *mut libc::sockaddr {
        (&raw mut *self).cast()
    }
}

fn in6(a: SocketAddrV6) -> libc::sockaddr_in6 {
    libc::sockaddr_in6 {
        sin6_family: libc::AF_INET6 as libc::sa_family_t,
        sin6_port: a.port().to_be(),
        sin6_flowinfo: a.flowinfo().to_be(),
        sin6_addr: libc::in6_addr { s6_addr: a.ip().octets() },
        sin6_scope_id: a.scope_id(),
    }
}

/// The address a socket is bound to.
pub(crate) fn local_addr(fd: BorrowedFd<'_>) -> io::Result<SocketAddr> {
    let mut raw = RawAddr::empty();
    let mut len = RawAddr::SIZE;
    // SAFETY: `raw` has room for `len` bytes.
    check(unsafe { libc::getsockname(fd.as_raw_fd(), raw.as_mut_ptr(), &mut len) })?;
    raw.to_socket_addr().ok_or_else(|| io::Error::from_raw_os_error(libc::EAFNOSUPPORT))
}

/// The address a socket is connected to.
pub(crate) fn peer_addr(fd: BorrowedFd<'_>) -> io::Result<SocketAddr> {
    let mut raw = RawAddr::empty();
    let mut len = RawAddr::SIZE;
    // SAFETY: `raw` has room for `len` bytes.
    check(unsafe { libc::getpeername(fd.as_raw_fd(), raw.as_mut_ptr(), &mut len) })?;
    raw.to_socket_addr().ok_or_else(|| io::Error::from_raw_os_error(libc::EAFNOSUPPORT))
}

/// Binds a socket; `mapped` as in [`RawAddr::from_socket_addr`].
pub(crate) fn bind(fd: BorrowedFd<'_>, addr: SocketAddr, mapped: bool) -> io::Result<()> {
    let (raw, len) = RawAddr::from_socket_addr(addr, mapped);
    // SAFETY: `raw` is an address of `len` bytes that outlives the call.
    check(unsafe { libc::bind(fd.as_raw_fd(), raw.as_ptr(), len) }).map(drop)
}

/// Starts a connection; `EINPROGRESS` is success on these non-blocking sockets.
pub(crate) fn connect(fd: BorrowedFd<'_>, addr: SocketAddr, mapped: bool) -> io::Result<()> {
    let (raw, len) = RawAddr::from_socket_addr(addr, mapped);
    // SAFETY: `raw` is an address of `len` bytes that outlives the call.
    match check(unsafe { libc::connect(fd.as_raw_fd(), raw.as_ptr(), len) }) {
        Err(e) if e.raw_os_error() == Some(libc::EINPROGRESS) => Ok(()),
        other => other.map(drop),
    }
}

/// The family constant of an address.
pub(crate) fn family(addr: &SocketAddr) -> libc::c_int {
    if addr.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_the_kernels_form() {
        for text in ["192.0.2.1:80", "[2001:db8::1]:443"] {
            let addr: SocketAddr = text.parse().unwrap();
            assert_eq!(RawAddr::from_socket_addr(addr, false).0.to_socket_addr(), Some(addr));
        }
    }

    #[test]
    fn a_mapped_ipv4_address_comes_back_as_ipv4() {
        let addr: SocketAddr = "192.0.2.1:80".parse().unwrap();
        let (raw, len) = RawAddr::from_socket_addr(addr, true);
        assert_eq!(len as usize, size_of::<libc::sockaddr_in6>());
        assert_eq!(raw.to_socket_addr(), Some(addr));
        assert_eq!(RawAddr::empty().to_socket_addr(), None);
    }
}
