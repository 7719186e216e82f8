//! A pair of Unix sockets of whole packets, which carry descriptors with them (unix(7),
//! SCM_RIGHTS): how a gateway and another program hand sockets to each other.

use std::io::{self, ErrorKind, IoSlice};
use std::mem::{size_of, zeroed};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::Arc;

use crate::OsError;
use crate::closing::{Closer, Held, Shared};
use crate::error::OrCannot;
use crate::sys::{check, check_len, get_option, own, retry};

/// Descriptors that a packet may carry.
pub const MAX_DESCRIPTORS: usize = 4;

/// One end of a pair.
#[derive(Debug)]
pub struct SeqPacket {
    fd: Held,
}

/// What came in a packet.
#[derive(Debug)]
pub struct Received {
    /// Its length; 0: the other end is closed.
    pub len: usize,
    /// Its descriptors, closed on exec.
    pub descriptors: Vec<OwnedFd>,
}

/// Room for the header of [`MAX_DESCRIPTORS`] descriptors, aligned for headers.
#[repr(align(8))]
struct Room([u8; 64]);

/// What the header of so many takes.
const fn space(descriptors: usize) -> usize {
    // SAFETY: it is arithmetic.
    unsafe { libc::CMSG_SPACE((descriptors * size_of::<RawFd>()) as u32) as usize }
}

const _: () = assert!(space(MAX_DESCRIPTORS) <= 64);

impl SeqPacket {
    /// Both ends, closed on exec.
    pub fn pair() -> Result<(SeqPacket, SeqPacket), OsError> {
        let mut ends = [-1; 2];
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
        // SAFETY: `ends` has room for two descriptors.
        check(unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) })
            .or_cannot(|| "make a pair of sockets".into())?;
        let [a, b] = ends.map(|fd| {
            // SAFETY: the call succeeded, so both are open and nobody else's.
            SeqPacket { fd: unsafe { OwnedFd::from_raw_fd(fd) }.into() }
        });
        Ok((a, b))
    }

    /// The end that this process was started with as descriptor `number`. Once for each.
    pub fn inherited(number: RawFd) -> Result<SeqPacket, OsError> {
        let what = || format!("use descriptor {number} as a socket of packets");
        // SAFETY: no pointers are passed. A number that is not open is refused.
        let fd = own(unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 3) }).or_cannot(what)?;
        let kind: libc::c_int =
            get_option(fd.as_fd(), libc::SOL_SOCKET, libc::SO_TYPE).or_cannot(what)?;
        if kind != libc::SOCK_SEQPACKET {
            return Err(OsError::refused(format!("descriptor {number} is no socket of packets")));
        }
        // SAFETY: no pointers are passed. It is open (see above), and who calls this gives it up.
        unsafe { libc::close(number) };
        Ok(SeqPacket { fd: fd.into() })
    }

    /// The same, to be closed by `closer`: with it go descriptors that the other end has sent and
    /// that were not received.
    pub fn closed_by(self, closer: &Arc<Closer>) -> SeqPacket {
        SeqPacket { fd: Held::Shared(Shared::new(self.into(), closer)) }
    }

    /// Memory that packets take which the other end has not read. 0: it has read all.
    pub fn unread(&self) -> io::Result<usize> {
        let mut n: libc::c_int = 0;
        // SAFETY: the request writes one int, to a value that outlives the call.
        check(unsafe { libc::ioctl(self.fd.as_raw_fd(), libc::TIOCOUTQ, &raw mut n) })?;
        Ok(n.max(0) as usize)
    }

    /// Another descriptor of this end.
    pub fn try_clone(&self) -> io::Result<SeqPacket> {
        Ok(SeqPacket { fd: self.fd.as_fd().try_clone_to_owned()?.into() })
    }

    /// Sends `parts` as one packet with `descriptors`, of which the caller keeps its own. Where
    /// there is no room it waits if `wait`, and else it is `WouldBlock`.
    pub fn send(
        &self,
        parts: &[IoSlice<'_>],
        descriptors: &[BorrowedFd<'_>],
        wait: bool,
    ) -> io::Result<()> {
        if descriptors.len() > MAX_DESCRIPTORS {
            return Err(ErrorKind::InvalidInput.into());
        }
        let mut room = Room([0; 64]);
        // SAFETY: a msghdr is integers and pointers; all zero is valid.
        let mut header: libc::msghdr = unsafe { zeroed() };
        // The standard library promises that an IoSlice is laid out as an iovec.
        header.msg_iov = parts.as_ptr().cast_mut().cast();
        header.msg_iovlen = parts.len() as _;
        if !descriptors.is_empty() {
            header.msg_control = room.0.as_mut_ptr().cast();
            header.msg_controllen = space(descriptors.len()) as _;
            let bytes = (descriptors.len() * size_of::<RawFd>()) as u32;
            // SAFETY: `room` has space for one header with so many descriptors, and is aligned.
            unsafe {
                let first = libc::CMSG_FIRSTHDR(&header);
                (*first).cmsg_level = libc::SOL_SOCKET;
                (*first).cmsg_type = libc::SCM_RIGHTS;
                (*first).cmsg_len = libc::CMSG_LEN(bytes) as _;
                let mut at = libc::CMSG_DATA(first).cast::<RawFd>();
                for fd in descriptors {
                    ptr::write_unaligned(at, fd.as_raw_fd());
                    at = at.add(1);
                }
            }
        }
        let flags = libc::MSG_NOSIGNAL | if wait { 0 } else { libc::MSG_DONTWAIT };
        // SAFETY: `header` points to `parts` and `room`, which outlive the call.
        retry(|| check_len(unsafe { libc::sendmsg(self.fd.as_raw_fd(), &header, flags) }))
            .map(drop)
            // This user's descriptors that nobody has received yet are too many.
            .map_err(|e| match e.raw_os_error() {
                Some(libc::ETOOMANYREFS) => ErrorKind::WouldBlock.into(),
                _ => e,
            })
    }

    /// Takes the next packet into `buf`. Where there is none it waits if `wait`, and else it is
    /// `WouldBlock`. A packet that is longer than `buf`, or whose descriptors did not all fit or
    /// find a place in this process, is `InvalidData`, and lost.
    pub fn receive(&self, buf: &mut [u8], wait: bool) -> io::Result<Received> {
        let (received, is_whole) = self.take(buf, wait)?;
        is_whole.then_some(received).ok_or_else(|| ErrorKind::InvalidData.into())
    }

    /// As [`SeqPacket::receive`], without waiting, of a program that is not trusted: `closer`
    /// closes what it sends. The packet's length and its descriptors.
    pub fn receive_shared(
        &self,
        buf: &mut [u8],
        closer: &Arc<Closer>,
    ) -> io::Result<(usize, Vec<Shared>)> {
        let (received, is_whole) = self.take(buf, false)?;
        let shared = received.descriptors.into_iter().map(|fd| Shared::new(fd, closer)).collect();
        is_whole.then_some((received.len, shared)).ok_or_else(|| ErrorKind::InvalidData.into())
    }

    /// The next packet, and whether that is all of it.
    fn take(&self, buf: &mut [u8], wait: bool) -> io::Result<(Received, bool)> {
        let mut room = Room([0; 64]);
        let mut piece = libc::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: buf.len() };
        // SAFETY: a msghdr is integers and pointers; all zero is valid.
        let mut header: libc::msghdr = unsafe { zeroed() };
        header.msg_iov = &raw mut piece;
        header.msg_iovlen = 1;
        header.msg_control = room.0.as_mut_ptr().cast();
        header.msg_controllen = space(MAX_DESCRIPTORS) as _;
        let flags = libc::MSG_CMSG_CLOEXEC | if wait { 0 } else { libc::MSG_DONTWAIT };
        let len = retry(|| {
            // SAFETY: `header` points to `piece` and `room`, which outlive the call.
            check_len(unsafe { libc::recvmsg(self.fd.as_raw_fd(), &raw mut header, flags) })
        })?;
        let mut descriptors = Vec::new();
        // SAFETY: the kernel has filled `room` with whole headers, as long as the header says;
        // the descriptors in them are new and nobody else's.
        unsafe {
            let mut at = libc::CMSG_FIRSTHDR(&header);
            while !at.is_null() {
                if ((*at).cmsg_level, (*at).cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                    let bytes = (*at).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
                    let first = libc::CMSG_DATA(at).cast::<RawFd>();
                    for n in 0..bytes / size_of::<RawFd>() {
                        descriptors.push(OwnedFd::from_raw_fd(ptr::read_unaligned(first.add(n))));
                    }
                }
                at = libc::CMSG_NXTHDR(&header, at);
            }
        }
        let is_whole = header.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) == 0;
        Ok((Received { len, descriptors }, is_whole))
    }
}

impl AsFd for SeqPacket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl From<SeqPacket> for OwnedFd {
    fn from(socket: SeqPacket) -> OwnedFd {
        socket.fd.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::Read as _;
    use std::os::fd::IntoRawFd as _;

    fn text(text: &str) -> [IoSlice<'_>; 1] {
        [IoSlice::new(text.as_bytes())]
    }

    #[test]
    fn a_packet_arrives_whole_with_its_descriptors() {
        let (a, b) = SeqPacket::pair().unwrap();
        let (reader, writer) = io::pipe().unwrap();
        let parts = [IoSlice::new(b"two "), IoSlice::new(b"parts")];
        a.send(&parts, &[writer.as_fd(), reader.as_fd()], false).unwrap();
        a.send(&text("and another"), &[], false).unwrap();
        drop((reader, writer));
        let mut buf = [0; 100];
        let mut got = b.receive(&mut buf, false).unwrap();
        assert_eq!((&buf[..got.len], got.descriptors.len()), (&b"two parts"[..], 2));
        io::Write::write_all(&mut File::from(got.descriptors.remove(0)), b"hello").unwrap();
        let mut said = String::new();
        File::from(got.descriptors.remove(0)).read_to_string(&mut said).unwrap();
        assert_eq!(said, "hello");
        let got = b.receive(&mut buf, false).unwrap();
        assert_eq!((&buf[..got.len], got.descriptors.len()), (&b"and another"[..], 0));
        assert_eq!(b.receive(&mut buf, false).unwrap_err().kind(), ErrorKind::WouldBlock);
        drop(a);
        // Another test's child has it, too, until it runs its program.
        assert_eq!(b.receive(&mut buf, true).unwrap().len, 0, "the end");
    }

    #[test]
    fn who_does_not_read_blocks_nobody_who_does_not_wait() {
        let (a, b) = SeqPacket::pair().unwrap();
        let mut sent = 0;
        let end = loop {
            match a.send(&text("x"), &[], false) {
                Ok(()) => sent += 1,
                Err(e) => break e.kind(),
            }
            assert!(sent < 100_000, "there is no end of room");
        };
        assert_eq!(end, ErrorKind::WouldBlock);
        assert!(a.unread().unwrap() > sent);
        while b.receive(&mut [0; 4], false).is_ok() {}
        assert_eq!(a.unread().unwrap(), 0);
    }

    #[test]
    fn a_packet_that_is_too_long_or_has_too_many_descriptors_is_none() {
        let (a, b) = SeqPacket::pair().unwrap();
        a.send(&text("too long"), &[a.as_fd()], false).unwrap();
        let mut buf = [0; 4];
        assert_eq!(b.receive(&mut buf, false).unwrap_err().kind(), ErrorKind::InvalidData);
        assert_eq!(b.receive(&mut buf, false).unwrap_err().kind(), ErrorKind::WouldBlock);
        let many = [a.as_fd(); MAX_DESCRIPTORS + 1];
        assert_eq!(a.send(&text("x"), &many, false).unwrap_err().kind(), ErrorKind::InvalidInput);
    }

    #[test]
    fn only_a_socket_of_packets_is_inherited() {
        let (a, b) = SeqPacket::pair().unwrap();
        let number = OwnedFd::from(b).into_raw_fd();
        let b = SeqPacket::inherited(number).unwrap();
        a.send(&text("x"), &[], false).unwrap();
        assert_eq!(b.receive(&mut [0; 4], false).unwrap().len, 1);
        let null = File::open("/dev/null").unwrap();
        assert!(SeqPacket::inherited(null.as_raw_fd()).is_err());
        assert!(SeqPacket::inherited(1_000_000).is_err());
    }
}
