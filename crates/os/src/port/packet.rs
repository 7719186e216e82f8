//! A port on an interface that exists, by a packet socket.

use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;

use units::{Duration, internet_sum};

use super::offload::Offloads;
use super::{BATCH, Batch, Received, Sent, Slot};
use crate::OsError;
use crate::error::OrCannot;
use crate::stamp::{age, nanos, wall_clock};
use crate::sys::{check, get_option, retry, set_buffer, set_option, socket};

/// 64 MB: the kernel counts about 2.3 kB for a full frame, so this is a second of
/// 250 Mbit/s before anything is lost to a busy machine.
const SOCKET_BUFFER: usize = 64 << 20;

/// A timestamp older than this says that the wall clock was set meanwhile.
const OLDEST: Duration = Duration::from_secs(1);

pub(super) struct PacketSocket {
    fd: OwnedFd,
    name: String,
    overruns: u64,
    _offloads: Offloads,
}

/// `struct virtio_net_hdr` of linux/virtio_net.h, in the machine's byte order.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct VnetHeader {
    flags: u8,
    gso_type: u8,
    header_len: u16,
    gso_size: u16,
    checksum_start: u16,
    checksum_offset: u16,
}

/// VIRTIO_NET_HDR_F_NEEDS_CSUM.
const NEEDS_CHECKSUM: u8 = 1;

/// Room for one timestamp message, aligned as the kernel wants it.
type Control = [u64; 8];

impl PacketSocket {
    /// The port on `name` and its MTU.
    pub(super) fn open(name: &str) -> Result<(PacketSocket, usize), OsError> {
        let mut request = super::request(name)?;
        let fd = socket(libc::AF_PACKET, libc::SOCK_RAW).map_err(|e| {
            OsError::new("open a packet socket", e).mend("run as root or give CAP_NET_RAW")
        })?;
        let index = interface_index(fd.as_fd(), &mut request)
            .map_err(|e| OsError::new(format!("find the interface {name}"), e))?;
        let mtu = interface_mtu(fd.as_fd(), &mut request)
            .or_cannot(|| format!("read the MTU of {name}"))?;
        configure(fd.as_fd(), index).or_cannot(|| format!("set up the packet socket on {name}"))?;
        super::bring_up(fd.as_fd(), &mut request).or_cannot(|| format!("bring {name} up"))?;
        let offloads = Offloads::off(name)?;
        bind(fd.as_fd(), index).or_cannot(|| format!("listen on {name}"))?;
        let socket = PacketSocket { fd, name: name.to_owned(), overruns: 0, _offloads: offloads };
        Ok((socket, mtu))
    }

    pub(super) fn receive(&mut self, batch: &mut Batch) -> Received {
        let mut vnet = [VnetHeader::default(); BATCH];
        let mut control: [Control; BATCH] = [[0; 8]; BATCH];
        let mut iovecs: [[libc::iovec; 2]; BATCH] = [[EMPTY_IOVEC; 2]; BATCH];
        let mut messages: [libc::mmsghdr; BATCH] = [EMPTY_MESSAGE; BATCH];
        let slots = batch.memory.chunks_mut(batch.slot);
        for (i, slot) in slots.enumerate() {
            iovecs[i] = [
                libc::iovec {
                    iov_base: (&raw mut vnet[i]).cast(),
                    iov_len: size_of::<VnetHeader>(),
                },
                libc::iovec { iov_base: slot.as_mut_ptr().cast(), iov_len: slot.len() },
            ];
            messages[i].msg_hdr.msg_iov = iovecs[i].as_mut_ptr();
            messages[i].msg_hdr.msg_iovlen = 2;
            messages[i].msg_hdr.msg_control = control[i].as_mut_ptr().cast();
            messages[i].msg_hdr.msg_controllen = size_of::<Control>();
        }
        // SAFETY: every message points to live, exclusive memory of the stated length:
        // the vnet headers, control buffers and iovecs above and the batch's slots.
        let received = retry(|| unsafe {
            check(libc::recvmmsg(
                self.fd.as_raw_fd(),
                messages.as_mut_ptr(),
                BATCH as libc::c_uint,
                libc::MSG_DONTWAIT,
                ptr::null_mut(),
            ))
        });
        let count = match received {
            Ok(n) => n as usize,
            Err(e) => return self.why_nothing(&e),
        };
        let now = wall_clock();
        let longest = batch.longest();
        for (i, message) in messages[..count].iter().enumerate() {
            let len = (message.msg_len as usize).saturating_sub(size_of::<VnetHeader>());
            let too_long = len > longest || vnet[i].gso_type != 0;
            let len = len.min(longest);
            if vnet[i].flags & NEEDS_CHECKSUM != 0 && !too_long {
                let start = i * batch.slot;
                fill_checksum(&mut batch.memory[start..start + len], &vnet[i]);
            }
            // SAFETY: the kernel has filled the message's control buffer and its length.
            let stamp = unsafe { timestamp(&message.msg_hdr) };
            batch.frames.push(Slot { len, age: age(now, stamp, OLDEST), too_long });
        }
        Received::Frames(count)
    }

    pub(super) fn send(&mut self, frames: &[&[u8]]) -> Sent {
        let mut vnet = VnetHeader::default();
        let mut iovecs: [[libc::iovec; 2]; BATCH] = [[EMPTY_IOVEC; 2]; BATCH];
        let mut messages: [libc::mmsghdr; BATCH] = [EMPTY_MESSAGE; BATCH];
        let frames = &frames[..frames.len().min(BATCH)];
        for (i, frame) in frames.iter().enumerate() {
            iovecs[i] = [
                libc::iovec { iov_base: (&raw mut vnet).cast(), iov_len: size_of::<VnetHeader>() },
                libc::iovec { iov_base: frame.as_ptr().cast_mut().cast(), iov_len: frame.len() },
            ];
            messages[i].msg_hdr.msg_iov = iovecs[i].as_mut_ptr();
            messages[i].msg_hdr.msg_iovlen = 2;
        }
        let mut outcome = Sent::default();
        let mut next = 0;
        while next < frames.len() {
            let rest = &mut messages[next..frames.len()];
            // SAFETY: every message points to live memory of the stated length, which
            // sending only reads.
            let sent = retry(|| unsafe {
                check(libc::sendmmsg(
                    self.fd.as_raw_fd(),
                    rest.as_mut_ptr(),
                    rest.len() as libc::c_uint,
                    libc::MSG_DONTWAIT,
                ))
            });
            match sent {
                Ok(n) if n > 0 => {
                    outcome.frames += n as usize;
                    next += n as usize;
                }
                _ => {
                    outcome.refused += 1;
                    next += 1;
                }
            }
        }
        outcome
    }

    pub(super) fn overruns(&mut self) -> u64 {
        let read = get_option::<libc::tpacket_stats>(
            self.fd.as_fd(),
            libc::SOL_PACKET,
            libc::PACKET_STATISTICS,
        );
        // Reading resets the kernel's count.
        self.overruns += read.map_or(0, |s| u64::from(s.tp_drops));
        self.overruns
    }

    fn why_nothing(&self, e: &io::Error) -> Received {
        match e.raw_os_error() {
            Some(libc::ENETDOWN | libc::ENXIO | libc::ENODEV) => {
                let exists = super::request(&self.name)
                    .is_ok_and(|mut r| interface_index(self.fd.as_fd(), &mut r).is_ok());
                if exists { Received::Down } else { Received::Gone }
            }
            _ => Received::Frames(0),
        }
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

const EMPTY_IOVEC: libc::iovec = libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 };
const EMPTY_MESSAGE: libc::mmsghdr = libc::mmsghdr {
    msg_hdr: libc::msghdr {
        msg_name: ptr::null_mut(),
        msg_namelen: 0,
        msg_iov: ptr::null_mut(),
        msg_iovlen: 0,
        msg_control: ptr::null_mut(),
        msg_controllen: 0,
        msg_flags: 0,
    },
    msg_len: 0,
};

fn configure(fd: BorrowedFd<'_>, index: libc::c_int) -> io::Result<()> {
    let on: libc::c_int = 1;
    // Else every frame that the emulator sends would come back as received.
    set_option(fd, libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, on)?;
    set_option(fd, libc::SOL_PACKET, libc::PACKET_VNET_HDR, on)?;
    set_option(fd, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, on)?;
    refuse_tagged(fd)?;
    set_buffer(fd, libc::SO_RCVBUFFORCE, libc::SO_RCVBUF, SOCKET_BUFFER)?;
    set_buffer(fd, libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, SOCKET_BUFFER)?;
    let all = libc::packet_mreq {
        mr_ifindex: index,
        mr_type: libc::PACKET_MR_PROMISC as libc::c_ushort,
        mr_alen: 0,
        mr_address: [0; 8],
    };
    set_option(fd, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, all)
}

/// From here on every frame of the interface comes to the socket.
fn bind(fd: BorrowedFd<'_>, index: libc::c_int) -> io::Result<()> {
    let address = libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as libc::c_ushort,
        sll_protocol: (libc::ETH_P_ALL as u16).to_be(),
        sll_ifindex: index,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    let length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: `address` is a link address of this length and outlives the call.
    check(unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), length) }).map(drop)
}

/// The kernel hands VLAN tags over beside the frame, so a tagged frame would go on
/// untagged, into the wrong network. It is dropped in the kernel instead.
fn refuse_tagged(fd: BorrowedFd<'_>) -> io::Result<()> {
    let instruction = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let tag_present = (libc::SKF_AD_OFF + libc::SKF_AD_VLAN_TAG_PRESENT) as u32;
    let mut program = [
        instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, tag_present),
        instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, 0),
        instruction(libc::BPF_RET | libc::BPF_K, 0, 0, u32::MAX),
        instruction(libc::BPF_RET | libc::BPF_K, 0, 0, 0),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    set_option(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, filter)
}

fn interface_index(fd: BorrowedFd<'_>, request: &mut libc::ifreq) -> io::Result<libc::c_int> {
    super::interface_ioctl(fd, libc::SIOCGIFINDEX as libc::c_ulong, request)?;
    // SAFETY: SIOCGIFINDEX has just filled this field of the union.
    Ok(unsafe { request.ifr_ifru.ifru_ifindex })
}

fn interface_mtu(fd: BorrowedFd<'_>, request: &mut libc::ifreq) -> io::Result<usize> {
    super::interface_ioctl(fd, libc::SIOCGIFMTU as libc::c_ulong, request)?;
    // SAFETY: SIOCGIFMTU has just filled this field of the union.
    Ok(unsafe { request.ifr_ifru.ifru_mtu } as usize)
}

/// The time at which the message came, by the wall clock in nanoseconds.
///
/// # Safety
/// `message` must have been filled by a receive call, and its control buffer be alive.
unsafe fn timestamp(message: &libc::msghdr) -> Option<u64> {
    // SAFETY: the caller promises a filled header with a live control buffer.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        while let Some(h) = header.as_ref() {
            if h.cmsg_level == libc::SOL_SOCKET && h.cmsg_type == libc::SCM_TIMESTAMPNS {
                let time: libc::timespec = ptr::read_unaligned(libc::CMSG_DATA(header).cast());
                return Some(nanos(time));
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
        None
    }
}

/// Finishes an Internet checksum (RFC 1071) whose field holds the sum of the pseudo
/// header so far. Offsets outside of the frame leave it as it is.
fn fill_checksum(frame: &mut [u8], header: &VnetHeader) {
    let start = usize::from(header.checksum_start);
    let field = start + usize::from(header.checksum_offset);
    if field + 2 > frame.len() {
        return;
    }
    // For UDP zero means "none", and its other form is the same number for all others.
    let checksum = match internet_sum(&[&frame[start..]]) {
        0 => 0xffff,
        n => n,
    };
    frame[field..field + 2].copy_from_slice(&checksum.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checksum_left_to_the_hardware_is_filled_in() {
        // A UDP datagram of RFC 768 from 10.0.0.1:1 to 10.0.0.2:2 with "abc" in it.
        let pseudo: u32 = 0x0a00 + 0x0001 + 0x0a00 + 0x0002 + 17 + 11;
        let mut frame = vec![0xee; 4];
        frame.extend([0, 1, 0, 2, 0, 11]);
        frame.extend((pseudo as u16).to_be_bytes());
        frame.extend(b"abc");
        let header = VnetHeader { checksum_start: 4, checksum_offset: 6, ..VnetHeader::default() };
        fill_checksum(&mut frame, &header);
        let mut sum = pseudo;
        for word in frame[4..].chunks(2) {
            sum += u32::from(word[0]) << 8 | u32::from(*word.get(1).unwrap_or(&0));
        }
        assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff);
    }

    #[test]
    fn offsets_outside_of_the_frame_change_nothing() {
        for (start, offset) in [(0, 10), (100, 0), (u16::MAX, u16::MAX)] {
            let mut frame = [7u8; 11];
            let header = VnetHeader {
                checksum_start: start,
                checksum_offset: offset,
                ..VnetHeader::default()
            };
            fill_checksum(&mut frame, &header);
            assert_eq!(frame, [7u8; 11]);
        }
    }
}
