//! Linux, as bentpipe needs it, and the only place for `unsafe`.
//!
//! Everything here is synchronous and serves one thread with one epoll loop: the
//! driver waits in [`poll::Poller`], asks [`poll::Clock`] for the time, and moves
//! bytes between the sockets here and the core crates, which know no operating system.
//!
//! * [`poll`]: waiting, time, waking, signals.
//! * [`udp`]: the carrier socket, many packets to one system call.
//! * [`tun`]: whole IP packets in and out of the kernel's routing.
//! * [`tcp`]: the hosts' connections, taken over and made with their own addresses.
//! * [`intercept`]: rules and routes that bring the hosts' traffic here, and go with us.
//! * [`netns`]: whole networks of hosts on one machine.
//! * [`port`]: whole Ethernet frames, for the link emulator.
//! * [`proc`]: limits, rights, use of memory and time; and children.
//! * [`serial`]: a modem's line, and ptys that look like one.
//! * [`seqpacket`]: packets and descriptors between programs.
//! * [`closing`]: the end of descriptors that programs have which are not trusted.
//! * [`copies`]: whether this machine may have been copied while it ran.
//! * [`addresses`]: the addresses that this host has.
//! * [`links`]: which of its interfaces have a link.
//! * [`local_time`]: how far this host's time zone is from UTC.
//! * [`heap`]: what threads hold of memory, for tests.
//! * [`settings`]: its own routes and kernel parameters, changed and put back.

pub mod addresses;
pub mod closing;
mod command;
pub mod copies;
pub mod disk;
mod error;
#[cfg(test)]
mod faults;
pub mod heap;
pub mod intercept;
pub mod links;
pub mod local_time;
mod netlink;
pub mod netns;
pub mod poll;
pub mod port;
pub mod proc;
pub mod seqpacket;
pub mod serial;
pub mod settings;
mod stamp;
mod sys;
pub mod tcp;
pub mod tun;
pub mod udp;

pub use error::OsError;
