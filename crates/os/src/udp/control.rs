//! Control messages of UDP packets: own address, segment size, time of arrival.

use std::mem::size_of;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ptr;

use crate::stamp::nanos;

/// Room for the control messages of one packet: a packet-info of either family
/// (at most 40 bytes with its header), a segment size (24), a timestamp (32) and some to
/// spare.
const ROOM: usize = 128;

/// What control messages told of a packet that was received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Told {
    /// Our own address that it was sent to.
    pub to: Option<IpAddr>,
    /// The length of each datagram, where several were joined.
    pub stride: Option<usize>,
    /// When the kernel received it, by the wall clock in nanoseconds.
    pub stamp: Option<u64>,
}

/// Control messages, to be sent or as received: our own address, the segment size, and
/// when the packet came.
///
/// ```text
/// | length (8) | level (4) | type (4) | data … padded to 8 |  next message …
/// ```
#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub(super) struct Control {
    bytes: [u8; ROOM],
    len: usize,
}

impl Default for Control {
    fn default() -> Control {
        Control { bytes: [0; ROOM], len: 0 }
    }
}

impl Control {
    /// Empty, and offered to the kernel in full length.
    pub fn room() -> Control {
        Control { len: ROOM, ..Control::default() }
    }
    /// Where the kernel finds the messages and how long they are.
    pub fn raw(&mut self) -> (*mut libc::c_void, usize) {
        (self.bytes.as_mut_ptr().cast(), self.len)
    }

    /// Sends from this own address.
    pub fn put_source(&mut self, from: Option<IpAddr>, v6_socket: bool) {
        match from {
            Some(IpAddr::V4(ip)) if !v6_socket => self.put(
                libc::IPPROTO_IP,
                libc::IP_PKTINFO,
                libc::in_pktinfo {
                    ipi_ifindex: 0,
                    ipi_spec_dst: libc::in_addr { s_addr: u32::from_ne_bytes(ip.octets()) },
                    ipi_addr: libc::in_addr { s_addr: 0 },
                },
            ),
            Some(ip) => {
                let ip = match ip {
                    IpAddr::V4(v4) => v4.to_ipv6_mapped(),
                    IpAddr::V6(v6) => v6,
                };
                let info = libc::in6_pktinfo {
                    ipi6_addr: libc::in6_addr { s6_addr: ip.octets() },
                    ipi6_ifindex: 0,
                };
                self.put(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, info);
            }
            None => {}
        }
    }

    /// Cuts the payload into datagrams of this length.
    pub fn put_segment(&mut self, segment: u16) {
        self.put(libc::SOL_UDP, libc::UDP_SEGMENT, segment);
    }

    fn put<T>(&mut self, level: libc::c_int, kind: libc::c_int, data: T) {
        let (head, total) = (data_offset(), space(size_of::<T>()));
        assert!(self.len + total <= ROOM, "the control buffer has room for all we send");
        let header = libc::cmsghdr {
            cmsg_len: (head + size_of::<T>()) as _,
            cmsg_level: level,
            cmsg_type: kind,
        };
        let at = self.bytes[self.len..].as_mut_ptr();
        // SAFETY: `total` bytes from `at` lie within the buffer (asserted above); unaligned
        // writes ask nothing of the address.
        unsafe {
            ptr::write_unaligned(at.cast(), header);
            ptr::write_unaligned(at.add(head).cast(), data);
        }
        self.len += total;
    }

    /// What the first `len` bytes tell.
    pub fn read(&self, len: usize) -> Told {
        let mut told = Told::default();
        each_message(&self.bytes[..len.min(ROOM)], |level, kind, data| match (level, kind) {
            (libc::IPPROTO_IP, libc::IP_PKTINFO) => told.to = read_v4(data),
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => told.to = read_v6(data),
            (libc::SOL_UDP, libc::UDP_GRO) => told.stride = read_stride(data),
            (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS) => told.stamp = read_stamp(data),
            _ => {}
        });
        told
    }
}

/// Takes each of the messages in `bytes`: level, type, data.
pub(super) fn each_message(bytes: &[u8], mut take: impl FnMut(libc::c_int, libc::c_int, &[u8])) {
    let mut rest = bytes;
    while rest.len() >= data_offset() {
        // SAFETY: `rest` is long enough for a header (data_offset() is no less), and
        // cmsghdr is plain integers.
        let header: libc::cmsghdr = unsafe { ptr::read_unaligned(rest.as_ptr().cast()) };
        let end = header.cmsg_len as usize;
        if end < data_offset() || end > rest.len() {
            break;
        }
        let data = &rest[data_offset()..end];
        take(header.cmsg_level, header.cmsg_type, data);
        rest = rest.get(space(data.len())..).unwrap_or(&[]);
    }
}

fn read_v4(data: &[u8]) -> Option<IpAddr> {
    // struct in_pktinfo: interface index (4), local address (4), destination address (4).
    let spec_dst: [u8; 4] = data.get(4..8)?.try_into().ok()?;
    Some(Ipv4Addr::from(spec_dst).into())
}

fn read_v6(data: &[u8]) -> Option<IpAddr> {
    let octets: [u8; 16] = data.get(..16)?.try_into().ok()?;
    Some(IpAddr::V6(Ipv6Addr::from(octets)).to_canonical())
}

fn read_stride(data: &[u8]) -> Option<usize> {
    let n = libc::c_int::from_ne_bytes(data.get(..4)?.try_into().ok()?);
    usize::try_from(n).ok().filter(|n| *n > 0)
}

fn read_stamp(data: &[u8]) -> Option<u64> {
    if data.len() < size_of::<libc::timespec>() {
        return None;
    }
    // SAFETY: `data` is long enough, and a timespec is plain integers.
    Some(nanos(unsafe { ptr::read_unaligned(data.as_ptr().cast()) }))
}

/// Where a message's data begins.
const fn data_offset() -> usize {
    // SAFETY: CMSG_LEN only computes.
    unsafe { libc::CMSG_LEN(0) as usize }
}

/// The whole length of a message with `data` bytes.
const fn space(data: usize) -> usize {
    // SAFETY: CMSG_SPACE only computes.
    unsafe { libc::CMSG_SPACE(data as u32) as usize }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_put_in_is_read_back() {
        let mut control = Control::default();
        control.put_source(Some("192.0.2.1".parse().unwrap()), true);
        control.put_segment(1200);
        let told = control.read(control.len);
        assert_eq!(told.to, Some("192.0.2.1".parse().unwrap()));
        // A segment size that is sent is another message than one received.
        assert_eq!((told.stride, told.stamp), (None, None));
        control.put(libc::SOL_UDP, libc::UDP_GRO, 1200 as libc::c_int);
        assert_eq!(control.read(control.len).stride, Some(1200));
        let time = libc::timespec { tv_sec: 7, tv_nsec: 5 };
        let mut control = Control::default();
        control.put(libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS, time);
        assert_eq!(control.read(control.len).stamp, Some(7_000_000_005));
    }

    #[test]
    fn a_cut_off_message_is_ignored() {
        let mut control = Control::default();
        control.put(libc::SOL_UDP, libc::UDP_GRO, 9 as libc::c_int);
        for len in 0..data_offset() + 4 {
            assert_eq!(control.read(len), Told::default());
        }
    }
}
