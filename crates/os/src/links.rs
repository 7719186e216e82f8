//! Which of this host's network interfaces have a link, and when that or their addresses change.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd};

use crate::OsError;
use crate::error::OrCannot;
use crate::netlink::Netlink;
use crate::sys::check;

/// A socket that hears of interfaces and of addresses that come, go and change (rtnetlink(7)).
pub struct LinkWatch(Netlink);

impl LinkWatch {
    /// In the calling thread's network namespace.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn open() -> Result<LinkWatch, OsError> {
        let groups = [libc::RTMGRP_LINK, libc::RTMGRP_IPV4_IFADDR, libc::RTMGRP_IPV6_IFADDR];
        let groups = groups.iter().fold(0, |all, group| all | *group as u32);
        let listen = Netlink::open(libc::SOCK_NONBLOCK, groups);
        listen.map(LinkWatch).or_cannot(|| "watch the system's interfaces".into())
    }

    /// Takes all that was told; [`linked`] says what is the case now.
    pub fn clear(&mut self) {
        loop {
            match self.0.receive(|_| ()) {
                Ok(()) => {}
                // More was told than there is room for.
                Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => {}
                Err(_) => return,
            }
        }
    }
}

impl AsFd for LinkWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The number of an interface of the calling thread's network namespace; another one of the same
/// name has another. `None`: it is not there.
pub fn index(name: &str) -> Option<u32> {
    crate::tun::index_of(name).ok()
}

/// The interfaces that are up and have a link, of the calling thread's network namespace.
///
/// # Errors
/// If the system does not tell.
pub fn linked() -> Result<Vec<String>, OsError> {
    const READY: u32 = (libc::IFF_UP | libc::IFF_RUNNING) as u32;
    let mut first = std::ptr::null_mut();
    // SAFETY: `first` is written by the call.
    check(unsafe { libc::getifaddrs(&mut first) })
        .or_cannot(|| "list this host's interfaces".into())?;
    let (mut all, mut at) = (Vec::new(), first);
    // SAFETY: the list stays valid until it is freed below.
    while let Some(entry) = unsafe { at.as_ref() } {
        if entry.ifa_flags & READY == READY {
            // SAFETY: an entry's name is a string that lives as long as the list.
            let name = unsafe { CStr::from_ptr(entry.ifa_name) };
            all.push(name.to_string_lossy().into_owned());
        }
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
    use units::Duration;

    use super::*;
    use crate::netns::{NetNs, root_alone, veth};
    use crate::poll::{Events, Interest, Poller};

    /// The kernel tells of an address apart from its interface's link.
    #[test]
    fn an_address_that_comes_or_goes_is_told() {
        if !root_alone() {
            return;
        }
        let ns = NetNs::unique("ostest", "address").unwrap();
        ns.ip("link set lo up").unwrap();
        let mut watch = ns.run(LinkWatch::open).unwrap();
        let (mut poller, mut events) = (Poller::new().unwrap(), Events::with_capacity(4));
        poller.add(&watch, 1, Interest::READ).unwrap();
        for change in
            ["add 10.3.0.1/24", "delete 10.3.0.1/24", "add fd03::1/64", "delete fd03::1/64"]
        {
            watch.clear();
            ns.ip(&format!("address {change} dev lo")).unwrap();
            let told = poller.wait(&mut events, Some(Duration::from_secs(10))).unwrap();
            assert!(told > 0, "{change}");
        }
    }

    #[test]
    fn an_interface_whose_other_end_goes_down_has_no_link_and_that_is_told() {
        if !root_alone() {
            return;
        }
        let [near, far] = ["near", "far"].map(|role| NetNs::unique("ostest", role).unwrap());
        veth(&near, "sat0", &far, "sat0").unwrap();
        for ns in [&near, &far] {
            ns.ip("link set sat0 up").unwrap();
        }
        let mut watch = near.run(LinkWatch::open).unwrap();
        let (mut poller, mut events) = (Poller::new().unwrap(), Events::with_capacity(4));
        poller.add(&watch, 1, Interest::READ).unwrap();
        let has_link = || near.run(|| linked().unwrap()).contains(&"sat0".to_owned());
        let mut wait_for = |wanted: bool| {
            while has_link() != wanted {
                assert!(poller.wait(&mut events, Some(Duration::from_secs(10))).unwrap() > 0);
                watch.clear();
            }
        };
        wait_for(true);
        far.ip("link set sat0 down").unwrap();
        wait_for(false);
        far.ip("link set sat0 up").unwrap();
        wait_for(true);
        far.ip("link delete sat0").unwrap();
        wait_for(false);
    }
}
