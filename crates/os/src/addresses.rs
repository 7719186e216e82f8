//! This host's own addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ptr;

use crate::OsError;
use crate::error::OrCannot;
use crate::sys::check;

/// All addresses of all interfaces in this network namespace, loopback included.
pub fn own_addresses() -> Result<Vec<IpAddr>, OsError> {
    let mut list: *mut libc::ifaddrs = ptr::null_mut();
    // SAFETY: on success `list` is a list that `freeifaddrs` below frees once.
    check(unsafe { libc::getifaddrs(&mut list) })
        .map(drop)
        .or_cannot(|| "list this host's addresses".into())?;
    let mut addresses = Vec::new();
    let mut entry = list;
    while !entry.is_null() {
        // SAFETY: `entry` is an element of the list, which lives until it is freed.
        let (address, next) = unsafe { (address_of((*entry).ifa_addr), (*entry).ifa_next) };
        addresses.extend(address);
        entry = next;
    }
    // SAFETY: the list came from `getifaddrs` and nothing borrows from it any more.
    unsafe { libc::freeifaddrs(list) };
    Ok(addresses)
}

/// # Safety
/// `address` is null or points to a socket address of the family it names.
unsafe fn address_of(address: *const libc::sockaddr) -> Option<IpAddr> {
    if address.is_null() {
        return None;
    }
    // SAFETY: the caller promises; reads are unaligned-safe because they copy.
    unsafe {
        match i32::from((*address).sa_family) {
            libc::AF_INET => {
                let v4 = ptr::read_unaligned(address.cast::<libc::sockaddr_in>());
                Some(IpAddr::V4(Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr))))
            }
            libc::AF_INET6 => {
                let v6 = ptr::read_unaligned(address.cast::<libc::sockaddr_in6>());
                Some(IpAddr::V6(Ipv6Addr::from(v6.sin6_addr.s6_addr)))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn loopback_is_among_the_own_addresses() {
        let own = super::own_addresses().unwrap();
        assert!(own.contains(&"127.0.0.1".parse().unwrap()), "{own:?}");
    }
}
