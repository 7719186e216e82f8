//! What the kernel tells of changes that others make: rules and routes of ours that go, and
//! addresses of this host (rtnetlink(7)). Who reads a line of it looks at everything anew, so
//! only whether there is one counts.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use super::routes::PROTOCOL;
use crate::OsError;
use crate::error::OrCannot;
use crate::sys::{check, own};

/// Bits of the groups RTNLGRP_IPV4_IFADDR, IPV4_ROUTE, IPV4_RULE, IPV6_IFADDR, IPV6_ROUTE and
/// IPV6_RULE: their numbers less one.
const GROUPS: u32 = 1 << 4 | 1 << 6 | 1 << 7 | 1 << 8 | 1 << 10 | 1 << 18;
/// The head of a message, and where `rtm_protocol` is behind it.
const HEAD: usize = 16;
const ROUTE_PROTOCOL: usize = HEAD + 5;

/// A socket that hears of them.
pub(super) struct Watch(OwnedFd);

impl Watch {
    /// In the calling thread's network namespace.
    pub fn open() -> Result<Watch, OsError> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        let listen = || -> io::Result<OwnedFd> {
            // SAFETY: no pointers are passed.
            let socket = own(unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_ROUTE) })?;
            // SAFETY: a sockaddr_nl is integers; all zero is valid.
            let mut address: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
            address.nl_family = libc::AF_NETLINK as libc::sa_family_t;
            address.nl_groups = GROUPS;
            let len = size_of_val(&address) as libc::socklen_t;
            // SAFETY: the address outlives the call, and its length is its own.
            check(unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len) })?;
            Ok(socket)
        };
        listen().map(Watch).or_cannot(|| "watch the system's rules and routes".into())
    }

    /// Takes all that was told: may something of ours have gone, or an address have changed?
    pub fn any_news(&mut self) -> bool {
        let mut buf = [0u8; 32 << 10];
        let mut any = false;
        loop {
            // SAFETY: the buffer outlives the call, and its length is its own.
            let n =
                unsafe { libc::recv(self.0.as_raw_fd(), buf.as_mut_ptr().cast(), buf.len(), 0) };
            match usize::try_from(n) {
                Ok(0) => return any,
                Ok(n) => any |= messages(&buf[..n]).any(concerns_us),
                Err(_) => match io::Error::last_os_error().raw_os_error() {
                    Some(libc::EINTR) => {}
                    // More was told than there is room for.
                    Some(libc::ENOBUFS) => any = true,
                    _ => return any,
                },
            }
        }
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Messages of one read, each with its head.
fn messages(mut bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let len = u32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?) as usize;
        let message = bytes.get(..len).filter(|m| m.len() >= HEAD)?;
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some(message)
    })
}

fn concerns_us(message: &[u8]) -> bool {
    match u16::from_ne_bytes([message[4], message[5]]) {
        libc::RTM_NEWADDR | libc::RTM_DELADDR | libc::RTM_DELRULE => true,
        libc::RTM_DELROUTE => message.get(ROUTE_PROTOCOL) == Some(&PROTOCOL),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netns::{NetNs, root_alone};

    #[test]
    fn news_are_rules_that_go_addresses_and_routes_of_ours_that_go() {
        if !root_alone() {
            return;
        }
        let ns = NetNs::unique("ostest", "watch").unwrap();
        let mut watch = ns.run(Watch::open).unwrap();
        let mut news = |words: &str| {
            ns.ip(words).unwrap();
            watch.any_news()
        };
        assert!(!news("rule add to 10.0.0.0/8 lookup 7"));
        assert!(news("rule delete to 10.0.0.0/8 lookup 7"));
        assert!(!news("-6 rule add to fd00::/8 lookup 7"));
        assert!(news("-6 rule delete to fd00::/8 lookup 7"));
        assert!(news("address add 10.0.0.1/24 dev lo"));
        assert!(!news("route add 10.7.0.0/16 dev lo"));
        assert!(!news("route delete 10.7.0.0/16 dev lo"));
        assert!(!news("route add 10.7.0.0/16 dev lo proto 143 table 7"));
        assert!(news("route delete 10.7.0.0/16 dev lo proto 143 table 7"));
        assert!(!watch.any_news());
    }

    #[test]
    fn bytes_that_are_no_messages_end_them() {
        for bytes in [&[][..], &[1, 0, 0, 0], &[255; 40], &[0; 64], &[17, 0, 0, 0, 20, 0, 0, 0]] {
            assert_eq!(messages(bytes).count(), 0, "{bytes:?}");
        }
    }
}
