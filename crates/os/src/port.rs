//! Ethernet ports of the link emulator: whole frames in and out, many to one wake.
//!
//! A [`Port`] is one end of a wire that the emulator pulls through a satellite:
//!
//! * [`Port::interface`] takes over an interface that exists (a network card, or one
//!   end of a veth pair), by a packet socket. It asks the kernel for the time at which
//!   each frame came, so that the emulated line starts when the frame was there and
//!   not when the emulator looked.
//! * [`Port::tap`] makes a new interface inside a namespace, whose other side is the
//!   emulator. The host in the namespace sees an ordinary network card.
//!
//! Frames never carry offloads: a super-packet that a host's segmentation offload left
//! whole would count as one packet for loss, queue and capture. Offloads are switched
//! off where the port can reach them; a frame that is longer than the port's MTU allows
//! all the same is marked [`Frame::too_long`] and must not go on. Checksums that a host
//! left to its hardware are filled in.

mod offload;
mod packet;
mod priority;
mod tap;

pub use priority::hurry;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use units::Duration;

use crate::OsError;

/// The length of an Ethernet header without a VLAN tag.
pub const ETHERNET_HEADER: usize = 14;

/// How many frames one receive or send call moves at most.
pub const BATCH: usize = 64;

/// One port.
pub struct Port {
    name: String,
    mtu: usize,
    io: Io,
}

enum Io {
    Packet(packet::PacketSocket),
    Tap(tap::Tap),
}

/// Room for the frames of one receive call.
pub struct Batch {
    memory: Vec<u8>,
    slot: usize,
    frames: Vec<Slot>,
}

#[derive(Clone, Copy)]
struct Slot {
    len: usize,
    age: Duration,
    too_long: bool,
}

/// A frame as it came.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// From the destination address on; cut to the MTU when it was longer.
    pub bytes: &'a [u8],
    /// How long before the end of the receive call it came. Zero where the kernel
    /// does not tell.
    pub age: Duration,
    /// Longer than the MTU allows: the sender's offloads are on.
    pub too_long: bool,
}

/// What a receive call found besides frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// So many frames; there may be more when it is [`BATCH`].
    Frames(usize),
    /// The interface is down for now. Frames flow again when it is up.
    Down,
    /// The interface is gone for good.
    Gone,
}

/// What happened to the frames of a send call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// The kernel took them.
    pub frames: usize,
    /// The kernel refused them: its buffers are full or the interface is down.
    pub refused: usize,
}

impl Port {
    /// Takes over the interface `name` of this thread's network namespace: it is
    /// brought up, made promiscuous and its offloads are switched off until the port is
    /// dropped. It should have no addresses.
    pub fn interface(name: &str) -> Result<Port, OsError> {
        let (socket, mtu) = packet::PacketSocket::open(name)?;
        Ok(Port { name: name.to_owned(), mtu, io: Io::Packet(socket) })
    }

    /// Makes the interface `name` with `mtu` (68…9,000) in the namespace of `netns`
    /// (a descriptor of `/run/netns/x` or `/proc/n/ns/net`; `None`: this thread's) and
    /// brings it up, without any address: a link-local one too must be given by hand.
    /// It vanishes with the port.
    pub fn tap(netns: Option<BorrowedFd<'_>>, name: &str, mtu: usize) -> Result<Port, OsError> {
        let tap = tap::Tap::create(netns, name, mtu)?;
        Ok(Port { name: name.to_owned(), mtu, io: Io::Tap(tap) })
    }

    /// The interface's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The largest IP packet that fits.
    pub fn mtu(&self) -> usize {
        self.mtu
    }

    /// True if frames come with the time they came at ([`Frame::age`]).
    pub fn has_timestamps(&self) -> bool {
        matches!(self.io, Io::Packet(_))
    }

    /// Reads up to [`BATCH`] frames, without waiting; see [`Batch::frames`].
    pub fn receive(&mut self, batch: &mut Batch) -> Received {
        batch.shape_for(self.mtu);
        match &mut self.io {
            Io::Packet(socket) => socket.receive(batch),
            Io::Tap(tap) => tap.receive(batch),
        }
    }

    /// Sends up to [`BATCH`] frames in order, without waiting. What the kernel refuses
    /// is gone.
    pub fn send(&mut self, frames: &[&[u8]]) -> Sent {
        match &mut self.io {
            Io::Packet(socket) => socket.send(frames),
            Io::Tap(tap) => tap.send(frames),
        }
    }

    /// Frames that the kernel dropped since the port was made because the emulator
    /// did not read fast enough. Costs a system call or two.
    pub fn overruns(&mut self) -> u64 {
        match &mut self.io {
            Io::Packet(socket) => socket.overruns(),
            Io::Tap(tap) => tap.overruns(&self.name),
        }
    }
}

impl AsFd for Port {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.io {
            Io::Packet(socket) => socket.as_fd(),
            Io::Tap(tap) => tap.as_fd(),
        }
    }
}

impl Batch {
    /// Room for one call; it grows to the port's MTU when it is used.
    pub fn new() -> Batch {
        Batch { memory: Vec::new(), slot: 0, frames: Vec::with_capacity(BATCH) }
    }

    /// The frames of the last receive call, in the order they came.
    pub fn frames(&self) -> impl Iterator<Item = Frame<'_>> {
        let slots = self.memory.chunks(self.slot.max(1));
        self.frames.iter().zip(slots).map(|(slot, bytes)| Frame {
            bytes: &bytes[..slot.len],
            age: slot.age,
            too_long: slot.too_long,
        })
    }

    /// One byte more than the longest frame, so that a longer one is noticed.
    fn shape_for(&mut self, mtu: usize) {
        let slot = mtu + ETHERNET_HEADER + 1;
        if slot != self.slot {
            self.slot = slot;
            self.memory = vec![0; slot * BATCH];
        }
        self.frames.clear();
    }

    fn longest(&self) -> usize {
        self.slot - 1
    }
}

impl Default for Batch {
    fn default() -> Batch {
        Batch::new()
    }
}

/// A request about the interface `name`: zeroed but for the name.
fn request(name: &str) -> Result<libc::ifreq, OsError> {
    let fits = !name.is_empty() && name.len() < libc::IFNAMSIZ && !name.contains(['/', '\0', ' ']);
    if !fits {
        return Err(OsError::refused(format!(
            "\"{name}\" is no interface name: 1 to 15 characters, no spaces or slashes"
        )));
    }
    // SAFETY: the struct is integers, arrays and a pointer; zero is valid for all.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (slot, byte) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *slot = byte as libc::c_char;
    }
    Ok(request)
}

/// A socket for questions about interfaces.
fn control_socket() -> io::Result<OwnedFd> {
    crate::sys::socket(libc::AF_INET, libc::SOCK_DGRAM)
}

fn interface_ioctl(
    control: BorrowedFd<'_>,
    command: libc::c_ulong,
    request: &mut libc::ifreq,
) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    // SAFETY: `request` outlives the call, and all commands used here read or write
    // nothing but this struct.
    crate::sys::check(unsafe { libc::ioctl(control.as_raw_fd(), command as _, request) }).map(drop)
}

/// Brings the interface of `request` up.
fn bring_up(control: BorrowedFd<'_>, request: &mut libc::ifreq) -> io::Result<()> {
    interface_ioctl(control, libc::SIOCGIFFLAGS as libc::c_ulong, request)?;
    // SAFETY: SIOCGIFFLAGS has just filled this field of the union.
    let flags = unsafe { request.ifr_ifru.ifru_flags };
    request.ifr_ifru.ifru_flags = flags | libc::IFF_UP as libc::c_short;
    interface_ioctl(control, libc::SIOCSIFFLAGS as libc::c_ulong, request)
}
