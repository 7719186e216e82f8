//! Messages of netlink sockets (netlink(7), rtnetlink(7)).

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use crate::sys::{check, check_len, own, retry};

/// The head of a message: `struct nlmsghdr`.
pub(crate) const HEAD: usize = 16;
/// Bytes that one call takes. The kernel fills no more of them at once.
const BUFFER: usize = 32 << 10;

/// A socket that asks the kernel, and hears of changes, of the calling thread's network namespace.
pub(crate) struct Netlink(OwnedFd);

impl Netlink {
    /// Hears of the groups with these bits; calls return at once where `kind` says
    /// `SOCK_NONBLOCK`.
    pub fn open(kind: libc::c_int, groups: u32) -> io::Result<Netlink> {
        #[cfg(test)]
        crate::faults::call()?;
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | kind;
        // SAFETY: no pointers are passed.
        let socket = own(unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_ROUTE) })?;
        // SAFETY: a sockaddr_nl is integers; all zero is valid.
        let mut address: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
        address.nl_family = libc::AF_NETLINK as libc::sa_family_t;
        address.nl_groups = groups;
        let len = size_of_val(&address) as libc::socklen_t;
        // SAFETY: the address outlives the call, and its length is its own.
        check(unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len) })?;
        Ok(Netlink(socket))
    }

    /// Sends one message.
    pub fn send(&self, message: &[u8]) -> io::Result<()> {
        // SAFETY: the message outlives the call, and its length is its own.
        let call =
            || unsafe { libc::send(self.0.as_raw_fd(), message.as_ptr().cast(), message.len(), 0) };
        retry(|| check_len(call())).map(drop)
    }

    /// Calls `take` with what one call gives: whole messages.
    pub fn receive<T>(&self, take: impl FnOnce(&[u8]) -> T) -> io::Result<T> {
        let mut buf = [0u8; BUFFER];
        // SAFETY: the buffer outlives the call, and its length is its own.
        let call = |buf: &mut [u8]| unsafe {
            libc::recv(self.0.as_raw_fd(), buf.as_mut_ptr().cast(), buf.len(), 0)
        };
        let n = retry(|| check_len(call(&mut buf)))?;
        Ok(take(&buf[..n]))
    }
}

impl AsFd for Netlink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Messages of one read, each with its head.
pub(crate) fn messages(mut bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let len = u32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?) as usize;
        let message = bytes.get(..len).filter(|m| m.len() >= HEAD)?;
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some(message)
    })
}

/// The type of a message with its head.
pub(crate) fn kind(message: &[u8]) -> u16 {
    u16::from_ne_bytes([message[4], message[5]])
}

/// What is behind a message's fixed part: each attribute's type and value.
pub(crate) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let [a, b, c, d] = *bytes.first_chunk()?;
        let len = usize::from(u16::from_ne_bytes([a, b]));
        let value = bytes.get(4..len)?;
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((u16::from_ne_bytes([c, d]), value))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_are_no_messages_end_them() {
        for bytes in [&[][..], &[1, 0, 0, 0], &[255; 40], &[0; 64], &[17, 0, 0, 0, 20, 0, 0, 0]] {
            assert_eq!(messages(bytes).count(), 0, "{bytes:?}");
        }
    }

    #[test]
    fn bytes_that_are_no_attributes_end_them() {
        for bytes in [&[][..], &[4, 0], &[3, 0, 1, 0], &[9, 0, 1, 0, 7], &[0; 8]] {
            assert_eq!(attributes(bytes).count(), 0, "{bytes:?}");
        }
        let two = [5, 0, 1, 0, 7, 0, 0, 0, 4, 0, 2, 0];
        assert_eq!(attributes(&two).collect::<Vec<_>>(), [(1, &[7][..]), (2, &[])]);
    }
}
