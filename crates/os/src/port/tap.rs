//! A port that makes its own interface, in a namespace of the caller's choice.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::process::Command;

use units::Duration;

use super::{BATCH, Batch, Received, Sent, Slot, interface_ioctl};
use crate::OsError;
use crate::command;
use crate::error::OrCannot;
use crate::sys::{check, check_len, retry};

/// Frames that the kernel keeps for the emulator. A host hands over a whole congestion
/// window at once, since its network card knows no rate.
const QUEUE: libc::c_int = 10_000;

const MTU_RANGE: std::ops::RangeInclusive<usize> = 68..=9_000;

pub(super) struct Tap {
    fd: OwnedFd,
    /// `/proc/net/dev` of the namespace, where the interface's drops are counted.
    counters: File,
}

impl Tap {
    pub(super) fn create(
        netns: Option<BorrowedFd<'_>>,
        name: &str,
        mtu: usize,
    ) -> Result<Tap, OsError> {
        if !MTU_RANGE.contains(&mtu) {
            return Err(OsError::refused(format!("an MTU of {mtu} is not within 68 to 9000")));
        }
        match netns {
            None => Tap::create_here(name, mtu),
            // A thread of its own enters the namespace and is gone afterwards.
            Some(netns) => std::thread::scope(|scope| {
                let inside = scope.spawn(|| {
                    enter(netns).or_cannot(|| "enter the network namespace".into())?;
                    Tap::create_here(name, mtu)
                });
                inside.join().expect("creating an interface does not panic")
            }),
        }
    }

    fn create_here(name: &str, mtu: usize) -> Result<Tap, OsError> {
        let mut request = super::request(name)?;
        let fd = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
            .open("/dev/net/tun")
            .map(OwnedFd::from)
            .map_err(|e| {
                OsError::new("open /dev/net/tun", e).mend("load the module tun and run as root")
            })?;
        request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI) as libc::c_short;
        // SAFETY: `request` outlives the call, which reads and writes only this struct.
        check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETIFF as _, &mut request) })
            .or_cannot(|| format!("make the interface {name}"))?;
        // No TUNSETOFFLOAD: without it the kernel cuts everything into plain frames.
        let control = super::control_socket().or_cannot(|| "open a control socket".into())?;
        request.ifr_ifru.ifru_mtu = mtu as libc::c_int;
        interface_ioctl(control.as_fd(), libc::SIOCSIFMTU as libc::c_ulong, &mut request)
            .or_cannot(|| format!("give {name} an MTU of {mtu}"))?;
        // The kernel's ifr_qlen shares its place with the MTU's.
        request.ifr_ifru.ifru_mtu = QUEUE;
        let set = libc::SIOCSIFTXQLEN as libc::c_ulong;
        if interface_ioctl(control.as_fd(), set, &mut request).is_err() {
            // In a user namespace this call wants rights over the whole machine, while
            // rtnetlink is content with those over the network namespace.
            let length = QUEUE.to_string();
            let words = ["link", "set", "dev", name, "txqueuelen", &length];
            command::run(Command::new("ip").args(words), "")?;
        }
        keep_quiet(name);
        super::bring_up(control.as_fd(), &mut request).or_cannot(|| format!("bring {name} up"))?;
        let counters = File::open("/proc/thread-self/net/dev")
            .or_cannot(|| "open /proc/thread-self/net/dev".into())?;
        Ok(Tap { fd, counters })
    }

    pub(super) fn receive(&mut self, batch: &mut Batch) -> Received {
        let longest = batch.longest();
        for slot in batch.memory.chunks_mut(batch.slot) {
            // SAFETY: the slot is live, exclusive memory of this length.
            let read = retry(|| unsafe {
                check_len(libc::read(self.fd.as_raw_fd(), slot.as_mut_ptr().cast(), slot.len()))
            });
            match read {
                Ok(len) => batch.frames.push(Slot {
                    len: len.min(longest),
                    age: Duration::ZERO,
                    too_long: len > longest,
                }),
                Err(e) if e.raw_os_error() == Some(libc::EBADFD) => return Received::Gone,
                Err(_) => break,
            }
        }
        Received::Frames(batch.frames.len())
    }

    pub(super) fn send(&mut self, frames: &[&[u8]]) -> Sent {
        let mut outcome = Sent::default();
        for frame in &frames[..frames.len().min(BATCH)] {
            // SAFETY: the frame is live memory of this length, which writing only reads.
            let written = retry(|| unsafe {
                check_len(libc::write(self.fd.as_raw_fd(), frame.as_ptr().cast(), frame.len()))
            });
            match written {
                Ok(_) => outcome.frames += 1,
                Err(_) => outcome.refused += 1,
            }
        }
        outcome
    }

    pub(super) fn overruns(&mut self, name: &str) -> u64 {
        let mut text = String::new();
        let read = self.counters.rewind().and_then(|()| self.counters.read_to_string(&mut text));
        if read.is_err() {
            return 0;
        }
        transmit_drops(&text, name).unwrap_or(0)
    }
}

impl AsFd for Tap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Keeps the kernel from giving the interface a link-local address, with which some
/// 200 bytes of announcements would go over the link: a second of a slow one. Without
/// IPv6 in the kernel there is nothing to keep quiet.
fn keep_quiet(name: &str) {
    const NO_ADDRESS: &str = "1";
    let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{name}/addr_gen_mode"), NO_ADDRESS);
}

fn enter(netns: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: no pointers are passed, and this thread ends before anybody else's work
    // could run in it.
    check(unsafe { libc::setns(netns.as_raw_fd(), libc::CLONE_NEWNET) }).map(drop)
}

/// The twelfth number of the interface's line in `/proc/net/dev`: frames that its host
/// could not hand over because the queue was full.
fn transmit_drops(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|l| l.trim_start().strip_prefix(name)?.strip_prefix(':'))?;
    line.split_whitespace().nth(11)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_drops_of_the_right_interface_are_found() {
        let text = "Inter-|   Receive  |  Transmit\n face |bytes packets\n\
                    \x20 sat0: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n\
                    sat01: 0 0 0 0 0 0 0 0 0 0 0 99 0 0 0 0\n";
        assert_eq!(transmit_drops(text, "sat0"), Some(12));
        assert_eq!(transmit_drops(text, "sat01"), Some(99));
        assert_eq!(transmit_drops(text, "sat"), None);
    }

    #[test]
    fn an_absurd_mtu_or_name_is_refused_in_one_sentence() {
        for (name, mtu) in [("sat0", 0), ("sat0", 70_000)] {
            let e = Tap::create(None, name, mtu).err().unwrap();
            assert!(e.to_string().contains("not within 68 to 9000"), "{e}");
        }
        for name in ["", "much-too-long-for-it", "a/b"] {
            let e = Tap::create(None, name, 1_500).err().unwrap();
            assert!(e.to_string().contains("no interface name"), "{e}");
        }
    }
}
