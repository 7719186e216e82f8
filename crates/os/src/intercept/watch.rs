//! What the kernel tells of changes that others make: rules and routes of ours that go, addresses
//! of this host and, where they are followed, the routes of `main` (rtnetlink(7)). Who reads a
//! line of it looks at everything anew, so only whether there is one counts.

use std::os::fd::{AsFd, BorrowedFd};

use crate::OsError;
use crate::error::OrCannot;
use crate::netlink::{self, HEAD, Netlink, messages};

/// Bits of the groups RTNLGRP_IPV4_IFADDR, IPV4_ROUTE, IPV4_RULE, IPV6_IFADDR, IPV6_ROUTE and
/// IPV6_RULE: their numbers less one.
const GROUPS: u32 = 1 << 4 | 1 << 6 | 1 << 7 | 1 << 8 | 1 << 10 | 1 << 18;
/// Where `rtm_table` and `rtm_protocol` are in a message.
const ROUTE_TABLE: usize = HEAD + 4;
const ROUTE_PROTOCOL: usize = HEAD + 5;

/// A socket that hears of them.
pub(super) struct Watch {
    socket: Netlink,
    protocol: u8,
    follows_main: bool,
}

impl Watch {
    /// Hears of our routes, which have this `protocol`, in the calling thread's network namespace.
    pub fn open(protocol: u8) -> Result<Watch, OsError> {
        let socket = Netlink::open(libc::SOCK_NONBLOCK, GROUPS)
            .or_cannot(|| "watch the system's rules and routes".into())?;
        Ok(Watch { socket, protocol, follows_main: false })
    }

    /// The same, and every change of a route of `main`, whoever made it.
    pub fn with_main(protocol: u8) -> Result<Watch, OsError> {
        Ok(Watch { follows_main: true, ..Watch::open(protocol)? })
    }

    /// Takes all that was told: may something of ours have gone, or what it follows have changed?
    pub fn any_news(&mut self) -> bool {
        let mut any = false;
        loop {
            match self.socket.receive(|bytes| messages(bytes).any(|m| self.concerns_us(m))) {
                Ok(concerns_us) => any |= concerns_us,
                // More was told than there is room for.
                Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => any = true,
                Err(_) => return any,
            }
        }
    }

    fn concerns_us(&self, message: &[u8]) -> bool {
        let of_main =
            || self.follows_main && message.get(ROUTE_TABLE) == Some(&libc::RT_TABLE_MAIN);
        match netlink::kind(message) {
            libc::RTM_NEWADDR | libc::RTM_DELADDR | libc::RTM_DELRULE => true,
            libc::RTM_NEWROUTE => of_main(),
            libc::RTM_DELROUTE => message.get(ROUTE_PROTOCOL) == Some(&self.protocol) || of_main(),
            _ => false,
        }
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
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
        let mut watch = ns.run(|| Watch::open(143)).unwrap();
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
    fn of_main_every_route_is_news_where_it_is_followed() {
        if !root_alone() {
            return;
        }
        let ns = NetNs::unique("ostest", "watchmain").unwrap();
        let mut watch = ns.run(|| Watch::with_main(144)).unwrap();
        let mut news = |words: &str| {
            ns.ip(words).unwrap();
            watch.any_news()
        };
        for verb in ["add", "delete"] {
            assert!(news(&format!("route {verb} 10.7.0.0/16 dev lo")));
            assert!(news(&format!("-6 route {verb} fd07::/32 dev lo metric 7")));
            assert!(!news(&format!("route {verb} 10.7.0.0/16 dev lo table 7")));
            let own = news(&format!("route {verb} 10.7.0.0/16 dev lo table 8 proto 144"));
            assert_eq!(own, verb == "delete");
        }
    }
}
