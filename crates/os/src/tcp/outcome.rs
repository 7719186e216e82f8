//! How a connection attempt ended, with the ICMP error that ended it: the socket's own
//! error number does not tell "host unreachable" from "administratively prohibited".

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use super::Stream;
use crate::sys::{check_len, set_option};

/// Why a connection was not made.
#[derive(Debug)]
pub struct Failure {
    /// The system's error.
    pub error: io::Error,
    /// What a router or the server said of it, if that was an ICMP "destination unreachable".
    pub unreachable: Option<Unreachable>,
}

/// An ICMP error "destination unreachable".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreachable {
    /// ICMP type 3 with this code (RFC 792).
    V4(u8),
    /// ICMPv6 type 1 with this code (RFC 4443).
    V6(u8),
}

/// Keeps ICMP errors for [`Stream::outcome`], or ends that: an established connection
/// must not fail by one that may be transient (RFC 9293, section 3.9.2.2).
pub(super) fn keep_errors(fd: BorrowedFd<'_>, v4: bool, on: bool) -> io::Result<()> {
    match v4 {
        true => set_option(fd, libc::IPPROTO_IP, libc::IP_RECVERR, libc::c_int::from(on)),
        false => set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_RECVERR, libc::c_int::from(on)),
    }
}

impl Stream {
    /// How the attempt of [`super::connect`] ended, once the poller said that it did.
    ///
    /// # Errors
    /// Why there is no connection.
    pub fn outcome(&self) -> Result<(), Failure> {
        let error = self.take_error().unwrap_or_else(Some);
        let unreachable = error.as_ref().and_then(|_| self.last_icmp_error());
        match error {
            Some(error) => Err(Failure { error, unreachable }),
            None => {
                let v4 = self.peer_addr().is_ok_and(|a| a.is_ipv4());
                let _ = keep_errors(self.as_fd(), v4, false);
                Ok(())
            }
        }
    }

    /// The newest "destination unreachable" on the socket's error queue.
    fn last_icmp_error(&self) -> Option<Unreachable> {
        let mut newest = None;
        // A host may send several, one for each SYN.
        for _ in 0..64 {
            match self.next_icmp_error() {
                Ok(found) => newest = found.or(newest),
                Err(_) => break,
            }
        }
        newest
    }

    fn next_icmp_error(&self) -> io::Result<Option<Unreachable>> {
        /// Room for the error and the address of who sent it, aligned for headers.
        #[repr(align(8))]
        struct Room([u8; 512]);
        let mut room = Room([0; 512]);
        // SAFETY: a msghdr is integers and pointers; all zero is valid.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        header.msg_control = room.0.as_mut_ptr().cast();
        header.msg_controllen = room.0.len() as _;
        let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
        // SAFETY: `header` points to `room`, which outlives the call and is as long as it says.
        check_len(unsafe { libc::recvmsg(self.fd.as_raw_fd(), &mut header, flags) })?;
        // SAFETY: `header` is as the kernel left it; its control data lie in `room`.
        let mut at = unsafe { libc::CMSG_FIRSTHDR(&header) };
        while !at.is_null() {
            // SAFETY: not null, so it points to a whole header in `room`.
            let head = unsafe { at.read() };
            let whole = size_of::<libc::cmsghdr>() + size_of::<libc::sock_extended_err>();
            let is_error = matches!(
                (head.cmsg_level, head.cmsg_type),
                (libc::IPPROTO_IP, libc::IP_RECVERR) | (libc::IPPROTO_IPV6, libc::IPV6_RECVERR)
            );
            if is_error && head.cmsg_len as usize >= whole {
                let mut error = MaybeUninit::<libc::sock_extended_err>::uninit();
                // SAFETY: the header says that its data hold a whole extended error.
                let error = unsafe {
                    error.as_mut_ptr().cast::<u8>().copy_from_nonoverlapping(
                        libc::CMSG_DATA(at),
                        size_of::<libc::sock_extended_err>(),
                    );
                    error.assume_init()
                };
                return Ok(match (error.ee_origin, error.ee_type) {
                    (libc::SO_EE_ORIGIN_ICMP, 3) => Some(Unreachable::V4(error.ee_code)),
                    (libc::SO_EE_ORIGIN_ICMP6, 1) => Some(Unreachable::V6(error.ee_code)),
                    _ => None,
                });
            }
            // SAFETY: as for the first one.
            at = unsafe { libc::CMSG_NXTHDR(&header, at) };
        }
        Ok(None)
    }
}
