//! Whether another machine may run with a copy of this one's memory: a virtual machine that was
//! restored from a snapshot, or one that slept on a disk.
//!
//! The kernel tells of the first in a uevent, where the hypervisor changes the generation that
//! it shows to its guests (`NEW_VMGENID=1`, drivers/virt/vmgenid.c). The second shows in two
//! clocks that part. A hypervisor that says neither copies unnoticed.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use units::Duration;

use crate::OsError;
use crate::error::OrCannot;
use crate::poll::asleep;
use crate::sys::{check, own};

/// The kernel's own uevents; udev's are group 2.
const KERNEL: u32 = 1;
const NEW_GENERATION: &[u8] = b"NEW_VMGENID=1";
/// Less is what lies between two readings.
const SLEPT: Duration = Duration::from_secs(1);

/// Finds that this machine may have been copied.
pub struct CopyWatch {
    uevents: OwnedFd,
    asleep: Duration,
    sleep_clock: fn() -> Duration,
}

impl CopyWatch {
    /// In the calling thread's network namespace. One that belongs to a user namespace hears
    /// of no uevents.
    ///
    /// # Errors
    /// If the kernel gives no socket.
    pub fn open() -> Result<CopyWatch, OsError> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        let listen = || -> io::Result<OwnedFd> {
            // SAFETY: no pointers are passed.
            let socket =
                own(unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_KOBJECT_UEVENT) })?;
            // SAFETY: a sockaddr_nl is integers; all zero is valid.
            let mut address: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
            address.nl_family = libc::AF_NETLINK as libc::sa_family_t;
            address.nl_groups = KERNEL;
            let len = size_of_val(&address) as libc::socklen_t;
            // SAFETY: the address outlives the call, and its length is its own.
            check(unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len) })?;
            Ok(socket)
        };
        let uevents = listen().or_cannot(|| "hear of snapshots of this machine".into())?;
        Ok(CopyWatch { uevents, asleep: asleep(), sleep_clock: asleep })
    }

    /// Asks this, and not the kernel, for how long the machine has slept since it was booted.
    pub fn set_sleep_clock(&mut self, clock: fn() -> Duration) {
        (self.asleep, self.sleep_clock) = (clock(), clock);
    }

    /// Takes all uevents: did one tell of a snapshot?
    pub fn restored(&mut self) -> bool {
        let mut buf = [0u8; 16 << 10];
        let mut restored = false;
        loop {
            // SAFETY: a sockaddr_nl is integers; all zero is valid.
            let mut from: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
            let mut len = size_of_val(&from) as libc::socklen_t;
            // SAFETY: buffer and address outlive the call, and their lengths are their own.
            let n = unsafe {
                libc::recvfrom(
                    self.uevents.as_raw_fd(),
                    buf.as_mut_ptr().cast(),
                    buf.len(),
                    0,
                    (&raw mut from).cast(),
                    &mut len,
                )
            };
            match usize::try_from(n) {
                Ok(n) => restored |= from.nl_pid == 0 && tells_of_snapshot(&buf[..n]),
                Err(_) => match io::Error::last_os_error().raw_os_error() {
                    Some(libc::EINTR) => {}
                    // More was told than there is room for.
                    Some(libc::ENOBUFS) => restored = true,
                    _ => return restored,
                },
            }
        }
    }

    /// Did the machine sleep since the last call?
    pub fn slept(&mut self) -> bool {
        let before = std::mem::replace(&mut self.asleep, (self.sleep_clock)());
        self.asleep - before >= SLEPT
    }
}

impl AsFd for CopyWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.uevents.as_fd()
    }
}

fn tells_of_snapshot(uevent: &[u8]) -> bool {
    uevent.split(|b| *b == 0).any(|line| line == NEW_GENERATION)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netns::{NetNs, root_alone};

    /// Root may have the kernel tell its listeners of a uevent of its own making
    /// (lib/kobject_uevent.c, uevent_net_rcv).
    fn tell(uevent: &[u8]) -> io::Result<()> {
        // SAFETY: no pointers are passed.
        let socket = own(unsafe {
            libc::socket(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_KOBJECT_UEVENT)
        })?;
        let mut message = ((16 + uevent.len()) as u32).to_ne_bytes().to_vec();
        message.extend(16u16.to_ne_bytes()); // a type above those of netlink itself
        message.extend((libc::NLM_F_REQUEST as u16).to_ne_bytes());
        message.extend([0; 8]);
        message.extend(uevent);
        // SAFETY: a sockaddr_nl is integers; all zero is valid.
        let mut kernel: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
        kernel.nl_family = libc::AF_NETLINK as libc::sa_family_t;
        let len = size_of_val(&kernel) as libc::socklen_t;
        // SAFETY: message and address outlive the call, and their lengths are their own.
        let sent = unsafe {
            libc::sendto(
                socket.as_raw_fd(),
                message.as_ptr().cast(),
                message.len(),
                0,
                (&raw const kernel).cast(),
                len,
            )
        };
        check(sent as i32).map(drop)
    }

    #[test]
    fn a_restored_snapshot_is_told_and_other_devices_are_not() {
        if !root_alone() {
            return;
        }
        let ns = NetNs::unique("ostest", "copies").unwrap();
        ns.run(|| {
            let mut watch = CopyWatch::open().unwrap();
            assert!(!watch.restored());
            tell(b"add@/devices/usb\0ACTION=add\0NEW_VMGENID=10\0").unwrap();
            assert!(!watch.restored());
            tell(b"change@/devices/v\0ACTION=change\0NEW_VMGENID=1\0").unwrap();
            assert!(watch.restored());
            assert!(!watch.restored(), "once");
        });
    }

    #[test]
    fn a_machine_that_is_awake_did_not_sleep() {
        let Ok(mut watch) = CopyWatch::open() else { return };
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert!(!watch.slept());
    }
}
