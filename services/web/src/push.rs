//! Page push: what a page will ask for is fetched at the hub, and sent ahead of the request.
//!
//! The hub reads HTML and style sheets as they stream by ([`scan`]) and decides what of that it
//! fetches ([`plan`]). Before a byte that names an object crosses the link, the terminal is told
//! that the object comes ([`frames`]), so that a host's request for it waits for it there instead
//! of crossing ([`shelf`]). Which fields say so is in [`fields`].

pub mod fields;
pub mod frames;
pub mod held;
pub mod plan;
pub mod scan;
pub mod shelf;

mod css;
mod html;

use std::net::IpAddr;

/// By what an object is known at both ends: host and target.
pub use crate::cache::plain_uri as name_of;

/// What an object is to a page, in the order in which objects are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Where a redirect leads, or a frame's page.
    Page,
    /// A style sheet.
    Style,
    /// A script.
    Script,
    /// A font.
    Font,
    /// An image, and everything else that nothing waits for.
    Image,
}

impl Kind {
    /// Does a browser show nothing before it has these?
    pub fn is_urgent(self) -> bool {
        self != Kind::Image
    }
}

/// An object that a text names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// As it is written there.
    pub reference: String,
    /// What it is to the page.
    pub kind: Kind,
}

/// Does this address belong to nobody in the wide world? No page may have the hub look there.
pub fn is_private(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(v4) => {
            let [a, b, ..] = v4.octets();
            v4.is_private()
                || v4.is_loopback()
                || v4.is_link_local()
                || v4.is_multicast()
                || v4.is_broadcast()
                || a == 0
                || (a == 100 && b & 0xc0 == 64)
        }
        IpAddr::V6(v6) => {
            v6.is_loopback()
                || v6.is_unspecified()
                || v6.is_multicast()
                || v6.is_unique_local()
                || v6.is_unicast_link_local()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_nobody_are_known_in_every_way_of_writing_them() {
        for private in [
            "10.0.0.1",
            "127.0.0.1",
            "169.254.169.254",
            "172.31.0.1",
            "192.168.1.1",
            "100.64.0.1",
            "0.0.0.0",
            "224.0.0.1",
            "::1",
            "::",
            "fe80::1",
            "fd00::1",
            "::ffff:10.0.0.1",
        ] {
            assert!(is_private(private.parse().unwrap()), "{private}");
        }
        for public in ["9.9.9.9", "100.128.0.1", "172.32.0.1", "2001:db8::1"] {
            assert!(!is_private(public.parse().unwrap()), "{public}");
        }
    }

    #[test]
    fn an_object_has_one_name_however_its_host_is_written() {
        for uri in ["http://A.test/x?y", "http://a.test:80/x?y"] {
            assert_eq!(name_of(&uri.parse().unwrap()), "a.test/x?y");
        }
        assert_eq!(name_of(&"http://a.test:8080/".parse().unwrap()), "a.test:8080/");
    }
}
