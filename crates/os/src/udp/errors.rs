//! What routers and hosts say of packets that did not arrive: ICMP errors, which the kernel
//! keeps beside the socket (`IP_RECVERR`).
//!
//! Anybody can forge them who knows a pair of addresses, so they are for people to read and
//! change nothing of what is sent.

use std::fmt;
use std::mem::size_of;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd as _;
use std::ptr;

use super::control::each_message;
use super::{UdpSocket, iovec, msghdr};
use crate::sys::{RawAddr, check_len};

/// What an ICMP error says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Icmp {
    /// The host is there, and nobody listens on the port.
    PortUnreachable,
    /// The last router does not find the host.
    HostUnreachable,
    /// A router knows no way.
    NetworkUnreachable,
    /// A filter on the way forbids it.
    Prohibited,
    /// Routers pass it in a circle, or too far.
    TooManyHops,
    /// Another, by its type and code.
    Other(u8, u8),
}

impl Icmp {
    fn of(origin: u8, kind: u8, code: u8) -> Option<Icmp> {
        Some(match (origin, kind, code) {
            (libc::SO_EE_ORIGIN_ICMP, 3, 3) | (libc::SO_EE_ORIGIN_ICMP6, 1, 4) => {
                Icmp::PortUnreachable
            }
            // A packet that is too long is the business of whoever measures the path.
            (libc::SO_EE_ORIGIN_ICMP, 3, 4) | (libc::SO_EE_ORIGIN_ICMP6, 2, _) => return None,
            (libc::SO_EE_ORIGIN_ICMP, 3, 1 | 7 | 8 | 12) | (libc::SO_EE_ORIGIN_ICMP6, 1, 3) => {
                Icmp::HostUnreachable
            }
            (libc::SO_EE_ORIGIN_ICMP, 3, 0 | 6 | 11) | (libc::SO_EE_ORIGIN_ICMP6, 1, 0) => {
                Icmp::NetworkUnreachable
            }
            (libc::SO_EE_ORIGIN_ICMP, 3, 9 | 10 | 13..=15)
            | (libc::SO_EE_ORIGIN_ICMP6, 1, 1 | 5 | 6) => Icmp::Prohibited,
            (libc::SO_EE_ORIGIN_ICMP, 11, _) | (libc::SO_EE_ORIGIN_ICMP6, 3, _) => {
                Icmp::TooManyHops
            }
            (libc::SO_EE_ORIGIN_ICMP | libc::SO_EE_ORIGIN_ICMP6, kind, code) => {
                Icmp::Other(kind, code)
            }
            _ => return None,
        })
    }
}

impl fmt::Display for Icmp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Icmp::PortUnreachable => write!(f, "port unreachable"),
            Icmp::HostUnreachable => write!(f, "host unreachable"),
            Icmp::NetworkUnreachable => write!(f, "network unreachable"),
            Icmp::Prohibited => write!(f, "prohibited by a filter"),
            Icmp::TooManyHops => write!(f, "too many hops"),
            Icmp::Other(kind, code) => write!(f, "ICMP type {kind} code {code}"),
        }
    }
}

/// A packet of ours that did not arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotArrived {
    /// Where it was to go.
    pub to: SocketAddr,
    /// What was said of it.
    pub icmp: Icmp,
    /// Who said so, if the kernel knows.
    pub by: Option<IpAddr>,
}

/// Room for what the kernel tells with an error: the error itself (60 bytes with its header,
/// padded to 64), our own address (40), a timestamp (32) and some to spare, in units of 8.
const ROOM: usize = 24;

/// What the kernel keeps for one error.
enum Kept {
    Icmp(NotArrived),
    /// Of the kernel's own, which the call that caused it has told already.
    Other,
}

impl UdpSocket {
    /// The next ICMP error that came, if there is one. The poller tells of them as of
    /// packets, until all are taken.
    pub fn next_error(&self) -> Option<NotArrived> {
        loop {
            match self.take_error()? {
                Kept::Icmp(error) => return Some(error),
                Kept::Other => {}
            }
        }
    }

    fn take_error(&self) -> Option<Kept> {
        let mut addr = RawAddr::empty();
        let mut control = [0u64; ROOM];
        let mut iov = iovec(&[]);
        let name = (addr.as_mut_ptr(), RawAddr::SIZE);
        let mut header =
            msghdr(name, &raw mut iov, (control.as_mut_ptr().cast(), size_of_val(&control)));
        let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
        // SAFETY: `header` points to room for an address, to an empty iovec and to a control
        // buffer, all of which outlive the call.
        check_len(unsafe { libc::recvmsg(self.fd.as_raw_fd(), &raw mut header, flags) }).ok()?;
        let bytes: Vec<u8> = control.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let mut error = None;
        each_message(
            &bytes[..bytes.len().min(header.msg_controllen as usize)],
            |level, kind, data| {
                let v4 = (libc::IPPROTO_IP, libc::IP_RECVERR);
                if [v4, (libc::IPPROTO_IPV6, libc::IPV6_RECVERR)].contains(&(level, kind)) {
                    error = Extended::read(data);
                }
            },
        );
        let told = error.and_then(|e| Some((e, Icmp::of(e.origin, e.kind, e.code)?)));
        Some(match (addr.to_socket_addr(), told) {
            (Some(to), Some((e, icmp))) => Kept::Icmp(NotArrived { to, icmp, by: e.by }),
            _ => Kept::Other,
        })
    }
}

/// A `sock_extended_err` with the address behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Extended {
    origin: u8,
    kind: u8,
    code: u8,
    by: Option<IpAddr>,
}

impl Extended {
    /// Reads what the kernel wrote:
    ///
    /// ```text
    /// errno (4)  origin (1)  type (1)  code (1)  padding (1)  info (4)  data (4)  address …
    /// ```
    fn read(data: &[u8]) -> Option<Extended> {
        const FIXED: usize = size_of::<libc::sock_extended_err>();
        let fixed = data.get(..FIXED)?;
        let mut addr = RawAddr::empty();
        let rest = &data[FIXED..];
        let len = rest.len().min(RawAddr::SIZE as usize);
        // SAFETY: `len` bytes lie within both, which do not overlap.
        unsafe { ptr::copy_nonoverlapping(rest.as_ptr(), addr.as_mut_ptr().cast(), len) };
        let by = addr.to_socket_addr().map(|a| a.ip());
        Some(Extended { origin: fixed[4], kind: fixed[5], code: fixed[6], by })
    }
}
