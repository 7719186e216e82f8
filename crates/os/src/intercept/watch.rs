//! What the kernel tells of changes that others make: rules and routes of ours that go, and
//! addresses of this host (rtnetlink(7)). Who reads a line of it looks at everything anew, so
//! only whether there is one counts.

use std::os::fd::{AsFd, BorrowedFd};

use super::routes::PROTOCOL;
use crate::OsError;
use crate::error::OrCannot;
use crate::netlink::{self, HEAD, Netlink, messages};

/// Bits of the groups RTNLGRP_IPV4_IFADDR, IPV4_ROUTE, IPV4_RULE, IPV6_IFADDR, IPV6_ROUTE and
/// IPV6_RULE: their numbers less one.
const GROUPS: u32 = 1 << 4 | 1 << 6 | 1 << 7 | 1 << 8 | 1 << 10 | 1 << 18;
/// Where `rtm_protocol` is in a message.
const ROUTE_PROTOCOL: usize = HEAD + 5;

/// A socket that hears of them.
pub(super) struct Watch(Netlink);

impl Watch {
    /// In the calling thread's network namespace.
    pub fn open() -> Result<Watch, OsError> {
        let listen = Netlink::open(libc::SOCK_NONBLOCK, GROUPS);
        listen.map(Watch).or_cannot(|| "watch the system's rules and routes".into())
    }

    /// Takes all that was told: may something of ours have gone, or an address have changed?
    pub fn any_news(&mut self) -> bool {
        let mut any = false;
        loop {
            match self.0.receive(|bytes| messages(bytes).any(concerns_us)) {
                Ok(concerns_us) => any |= concerns_us,
                // More was told than there is room for.
                Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => any = true,
                Err(_) => return any,
            }
        }
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn concerns_us(message: &[u8]) -> bool {
    match netlink::kind(message) {
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
}
