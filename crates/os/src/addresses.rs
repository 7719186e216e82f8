//! The addresses that this host answers to.

mod local;

use std::ffi::CStr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use units::IpPrefix;

use crate::OsError;
use crate::error::OrCannot;
use crate::sys::{RawAddr, check};

/// Every address of every interface, loopback's and link-local ones included, and with each
/// the others that its network makes this host's: the broadcast addresses, and IPv6's anycast
/// address of routers (RFC 4291, 2.6.1). Then what the kernel's table "local" delivers here beside
/// these, which may be whole prefixes (`ip route add local 198.51.100.0/24 dev lo`), but for
/// loopback's. None lies in another. Of the calling thread's network namespace. It changes with the
/// network: ask anew.
pub fn own_addresses() -> Result<Vec<IpPrefix>, OsError> {
    let mut all = Vec::new();
    each_address(|_, address, mask| {
        all.push(IpPrefix::host(address));
        let others = mask.into_iter().flat_map(|mask| of_network(address, mask));
        all.extend(others.map(IpPrefix::host));
    })?;
    all.extend(local::delivered()?.into_iter().filter(|block| !block.addr().is_loopback()));
    Ok(outermost(all))
}

/// Those that lie in no other.
fn outermost(mut all: Vec<IpPrefix>) -> Vec<IpPrefix> {
    // Of two blocks one holds the other or they are apart: what holds a block comes right before
    // the others that it holds.
    all.sort_unstable();
    all.dedup_by(|next, kept| kept.covers(next));
    all
}

/// The networks that this host's interfaces are in, by their addresses, each with its interface.
pub fn networks() -> Result<Vec<(String, IpPrefix)>, OsError> {
    let mut all = Vec::new();
    each_address(|entry, address, mask| {
        // SAFETY: an entry's name is a string that lives as long as the list.
        let name = unsafe { CStr::from_ptr(entry.ifa_name) }.to_string_lossy().into_owned();
        all.extend(mask.map(|mask| (name, IpPrefix::new(address, length_of(mask)))));
    })?;
    all.sort_unstable();
    all.dedup();
    Ok(all)
}

/// The addresses of this host's interfaces, each with the network that it has there.
pub fn interfaces() -> Result<Vec<(IpAddr, IpPrefix)>, OsError> {
    let mut all = Vec::new();
    each_address(|_, address, mask| {
        all.extend(mask.map(|mask| (address, IpPrefix::new(address, length_of(mask)))));
    })?;
    all.sort_unstable();
    all.dedup();
    Ok(all)
}

fn length_of(mask: IpAddr) -> u8 {
    let len = match mask {
        IpAddr::V4(m) => Ipv4Addr::to_bits(m).count_ones(),
        IpAddr::V6(m) => Ipv6Addr::to_bits(m).count_ones(),
    };
    len as u8
}

/// Goes through the addresses of all interfaces, with their masks.
fn each_address(
    mut take: impl FnMut(&libc::ifaddrs, IpAddr, Option<IpAddr>),
) -> Result<(), OsError> {
    let mut first = std::ptr::null_mut();
    // SAFETY: `first` is written by the call.
    check(unsafe { libc::getifaddrs(&mut first) })
        .or_cannot(|| "list this host's addresses".into())?;
    let mut at = first;
    // SAFETY: the list stays valid until it is freed below.
    while let Some(entry) = unsafe { at.as_ref() } {
        let [address, mask] = [entry.ifa_addr, entry.ifa_netmask].map(|a| {
            // SAFETY: an entry's addresses are null or whole, and live as long as the list.
            let copy = unsafe { RawAddr::copied_from(a) };
            copy.to_socket_addr().map(|a| a.ip())
        });
        if let Some(address) = address {
            take(entry, address, mask);
        }
        at = entry.ifa_next;
    }
    // SAFETY: it was allocated by getifaddrs and is not used afterwards.
    unsafe { libc::freeifaddrs(first) };
    Ok(())
}

/// What else reaches a host that has `address` in a network of this mask.
fn of_network(address: IpAddr, mask: IpAddr) -> Vec<IpAddr> {
    match (address, mask) {
        // Two hosts alone (RFC 3021) have no broadcast address.
        (IpAddr::V4(a), IpAddr::V4(m)) if m.to_bits().count_ones() <= 30 => {
            let network = a.to_bits() & m.to_bits();
            [network, network | !m.to_bits()].map(|b| Ipv4Addr::from(b).into()).into()
        }
        // Between two routers there is no anycast address (RFC 6164).
        (IpAddr::V6(a), IpAddr::V6(m)) if m.to_bits().count_ones() <= 126 => {
            vec![Ipv6Addr::from(a.to_bits() & m.to_bits()).into()]
        }
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netns::{NetNs, root_alone};

    #[test]
    fn of_blocks_in_others_the_outermost_are_left() {
        let blocks = |all: &[&str]| all.iter().map(|p| p.parse().unwrap()).collect::<Vec<_>>();
        let all =
            blocks(&["10.1.0.9/32", "10.1.0.0/16", "10.1.0.0/24", "10.2.0.0/32", "10.1.9.0/24"]);
        assert_eq!(outermost(all), blocks(&["10.1.0.0/16", "10.2.0.0/32"]));
    }

    #[test]
    fn addresses_of_both_families_are_listed_once_and_follow_changes() {
        if !root_alone() {
            return;
        }
        let ns = NetNs::unique("ostest", "addr").unwrap();
        let list = || {
            let all = ns.run(|| own_addresses().unwrap());
            let alone = |p: &IpPrefix| *p == IpPrefix::host(p.addr());
            let text = |p: &IpPrefix| if alone(p) { p.addr().to_string() } else { p.to_string() };
            all.iter().map(text).collect::<Vec<_>>()
        };
        let before = ["127.0.0.0", "127.0.0.1", "127.255.255.255", "::1"];
        assert_eq!(list(), before);
        ns.ip("link add sat0 type veth peer name sat1").unwrap();
        ns.ip("address add 10.3.0.1/24 dev sat0").unwrap();
        ns.ip("address add 10.4.0.0/31 dev sat0").unwrap();
        ns.ip("address add fd03::1/64 dev sat0 nodad").unwrap();
        ns.ip("address add fd04::1/127 dev sat0 nodad").unwrap();
        let (v4, v6) = (["10.3.0.0", "10.3.0.1", "10.3.0.255", "10.4.0.0"], ["fd03::", "fd03::1"]);
        let all = [&v4[..], &before, &v6, &["fd04::1"]].concat();
        assert_eq!(list(), all);
        // Whole prefixes, and only those of the table that every packet is looked up in.
        ns.ip("link set lo up").unwrap();
        for route in [
            "-4 route add local 198.51.100.0/24 dev lo",
            "-4 route add local 198.51.100.128/25 dev lo",
            "-4 route add local 0.0.0.0/0 dev lo table 25400",
            // A network on loopback is all of it this host's.
            "-4 address add 192.0.2.9/28 dev lo",
            "-4 route add 203.0.113.0/24 dev lo",
            "-6 route add local 2001:db8:7::/48 dev lo",
            "-6 route add local ::/0 dev lo table 25400",
        ] {
            ns.ip(route).unwrap();
        }
        let more = ["192.0.2.0/28", "198.51.100.0/24", "::1", "2001:db8:7::/48"];
        let all = [&v4[..], &before[..3], &more, &v6, &["fd04::1"]].concat();
        assert_eq!(list(), all);
        ns.ip("-4 route delete local 198.51.100.0/24 dev lo").unwrap();
        assert!(list().contains(&"198.51.100.128/25".to_owned()), "{:?}", list());
        let with_networks = ns.run(|| interfaces().unwrap());
        let with_networks: Vec<String> =
            with_networks.iter().map(|(address, network)| format!("{address} {network}")).collect();
        let v4 = ["10.3.0.1 10.3.0.0/24", "10.4.0.0 10.4.0.0/31", "127.0.0.1 127.0.0.0/8"];
        let lo = ["192.0.2.9 192.0.2.0/28"];
        let v6 = ["::1 ::1/128", "fd03::1 fd03::/64", "fd04::1 fd04::/127"];
        assert_eq!(with_networks, [&v4[..], &lo, &v6].concat());
    }
}
