//! The addresses that this host has.

use std::net::IpAddr;

use crate::OsError;
use crate::error::OrCannot;
use crate::sys::{RawAddr, check};

/// Every address of every interface, loopback's and link-local ones included, each once.
/// Of the calling thread's network namespace. It changes with the network: ask anew.
pub fn own_addresses() -> Result<Vec<IpAddr>, OsError> {
    let mut first = std::ptr::null_mut();
    // SAFETY: `first` is written by the call.
    check(unsafe { libc::getifaddrs(&mut first) })
        .or_cannot(|| "list this host's addresses".into())?;
    let mut all = Vec::new();
    let mut at = first;
    // SAFETY: the list stays valid until it is freed below.
    while let Some(entry) = unsafe { at.as_ref() } {
        // SAFETY: an entry's address is null or whole, and lives as long as the list.
        let address = unsafe { RawAddr::copied_from(entry.ifa_addr) };
        all.extend(address.to_socket_addr().map(|a| a.ip()));
        at = entry.ifa_next;
    }
    // SAFETY: it was allocated by getifaddrs and is not used afterwards.
    unsafe { libc::freeifaddrs(first) };
    all.sort_unstable();
    all.dedup();
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netns::{NetNs, root};

    #[test]
    fn addresses_of_both_families_are_listed_once_and_follow_changes() {
        if !root() {
            return;
        }
        let ns = NetNs::unique("ostest", "addr").unwrap();
        let list = || ns.run(|| own_addresses().unwrap());
        let as_text = |all: Vec<IpAddr>| all.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(as_text(list()), ["127.0.0.1", "::1"]);
        ns.ip("address add 10.3.0.1/24 dev lo").unwrap();
        ns.ip("address add fd03::1/64 dev lo nodad").unwrap();
        assert_eq!(as_text(list()), ["10.3.0.1", "127.0.0.1", "::1", "fd03::1"]);
    }
}
