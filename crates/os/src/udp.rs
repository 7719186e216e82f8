//! The carrier: a UDP socket that moves many packets with one system call.
//!
//! Sending cuts one buffer of equal segments in the kernel (GSO), receiving gets
//! runs of equal datagrams in one piece (GRO) and several pieces per call
//! (`recvmmsg`). Both fall back to plain datagrams where the kernel refuses.
//!
//! Written on the system calls rather than on quinn-udp or socket2: the link must
//! tell "too big", "no buffers" and "refused" apart (quinn-udp swallows the first),
//! must know how much of a batch the kernel took, and gives GSO up only when plain
//! datagrams of the same size do go through.

mod control;
mod errors;
pub mod filter;
mod group;

use std::fmt;
use std::io;
use std::mem;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::slice::ChunksExactMut;

use units::Duration;

use crate::OsError;
use crate::error::{OrCannot, bind_error};
use crate::stamp::{age, wall_clock};
use crate::sys::{self, RawAddr, check, check_len, retry, set_option, set_text_option};
use control::Control;
pub use errors::{Icmp, NotArrived};
pub use group::Instruction;

/// Room that one received piece needs while GRO is on: the longest IP packet.
pub const GRO_SLOT: usize = 1 << 16;
/// Pieces per receive call at most.
const MAX_PIECES: usize = 16;
/// Segments per GSO call at most (`UDP_MAX_SEGMENTS` of the oldest kernels with GSO).
const MAX_SEGMENTS: usize = 64;
/// Bytes per GSO call at most: the longest IP packet less its headers, in round figures.
const MAX_GSO_BYTES: usize = 65_000;

/// A packet does not wait longer in a socket: its wall clock was set meanwhile.
const OLDEST: Duration = Duration::from_secs(10);

/// How packets relate to the path's MTU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum MtuDiscovery {
    /// Never fragment, and send whatever the interface takes, ignoring what routers have
    /// said (`IP_PMTUDISC_PROBE`): the link probes the path by itself.
    #[default]
    Probe,
    /// Never fragment, and refuse what is larger than the path's known MTU.
    Obey,
    /// Let the kernel and routers fragment.
    Fragment,
}

/// How a carrier socket is made.
#[derive(Clone, Debug)]
pub struct UdpConfig {
    /// Where to listen; port 0 takes a free one. `[::]` carries IPv4 as well.
    pub local: SocketAddr,
    /// The routing mark of everything sent (needs CAP_NET_ADMIN).
    pub mark: Option<u32>,
    /// Packets leave and come by this network interface only.
    pub interface: Option<String>,
    /// Kernel buffer for packets not yet received, in bytes.
    pub receive_buffer: usize,
    /// Kernel buffer for packets not yet sent, in bytes. Small keeps the queue ours.
    pub send_buffer: usize,
    /// Let the kernel cut batches into segments.
    pub gso: bool,
    /// Let the kernel join runs of equal datagrams.
    pub gro: bool,
    /// What to do about packets longer than the path's MTU.
    pub mtu_discovery: MtuDiscovery,
    /// Let several sockets share the port (one per shard).
    pub reuse_port: bool,
    /// The longest datagram expected when GRO is off, in bytes.
    pub max_datagram: usize,
}

impl UdpConfig {
    /// A socket on `local` with batches in both directions and 4 MiB buffers.
    pub fn new(local: SocketAddr) -> UdpConfig {
        UdpConfig {
            local,
            mark: None,
            interface: None,
            receive_buffer: 4 << 20,
            send_buffer: 4 << 20,
            gso: true,
            gro: true,
            mtu_discovery: MtuDiscovery::Probe,
            reuse_port: false,
            max_datagram: 2048,
        }
    }
}

/// Why the socket did not do what it was asked.
#[derive(Debug)]
pub enum UdpError {
    /// Nothing to read, or no room to write: wait for the poller.
    Blocked,
    /// The kernel or the device has no memory for more packets: try again shortly.
    NoBuffers,
    /// The datagram is longer than the path's known MTU or the interface's.
    TooBig,
    /// The far host says that nobody listens there.
    Refused,
    /// No route, interface down, or forbidden by a firewall: for the link, an outage.
    Unreachable(io::Error),
    /// Anything else.
    Failed(io::Error),
}

impl From<io::Error> for UdpError {
    fn from(e: io::Error) -> UdpError {
        match e.raw_os_error() {
            Some(libc::EAGAIN) => UdpError::Blocked,
            Some(libc::ENOBUFS | libc::ENOMEM) => UdpError::NoBuffers,
            Some(libc::EMSGSIZE) => UdpError::TooBig,
            Some(libc::ECONNREFUSED) => UdpError::Refused,
            Some(
                libc::ENETUNREACH
                | libc::EHOSTUNREACH
                | libc::ENETDOWN
                | libc::EHOSTDOWN
                | libc::EADDRNOTAVAIL
                | libc::EPERM
                | libc::EACCES
                | libc::ENODEV
                | libc::ENXIO,
            ) => UdpError::Unreachable(e),
            _ => UdpError::Failed(e),
        }
    }
}

impl fmt::Display for UdpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UdpError::Blocked => write!(f, "the carrier socket would block"),
            UdpError::NoBuffers => write!(f, "the kernel has no memory for more packets"),
            UdpError::TooBig => write!(f, "the packet is longer than the path's MTU"),
            UdpError::Refused => write!(f, "nobody listens at the far address"),
            UdpError::Unreachable(e) => write!(f, "the far address cannot be reached: {e}"),
            UdpError::Failed(e) => write!(f, "the carrier socket failed: {e}"),
        }
    }
}
impl std::error::Error for UdpError {}

/// What could not be sent of a batch.
#[derive(Debug)]
pub struct SendError {
    /// Bytes at the head of the payload that the kernel took, whole segments.
    pub sent: usize,
    /// What stopped the segment behind them.
    pub reason: UdpError,
}

/// One batch for one destination.
#[derive(Clone, Copy, Debug)]
pub struct Transmit<'a> {
    /// The far address.
    pub to: SocketAddr,
    /// The own address to send from, where the host has several (`None`: the route's).
    pub from: Option<IpAddr>,
    /// Datagrams laid end to end.
    pub payload: &'a [u8],
    /// The length of each datagram but the last, which may be shorter. 0: just one.
    pub segment: usize,
}

/// One datagram received.
#[derive(Debug)]
pub struct Datagram<'b> {
    /// Its content, free to be decrypted in place.
    pub payload: &'b mut [u8],
    /// Who sent it; an IPv4 address is always given as such.
    pub from: SocketAddr,
    /// The own address it was sent to, if the socket listens on all of them.
    pub to: Option<IpAddr>,
    /// How long it has waited in the socket, as far as the kernel says.
    pub age: Duration,
}

/// A carrier socket.
#[derive(Debug)]
pub struct UdpSocket {
    fd: OwnedFd,
    local: SocketAddr,
    /// An IPv6 socket: IPv4 addresses take their mapped form.
    v6: bool,
    gso: bool,
    slot: usize,
}

/// An ordinary socket that speaks with `to` only. What it sends has the routing mark `mark`, as
/// the carrier's packets have, and passes the tunnel by like them.
pub fn marked_socket(to: SocketAddr, mark: u32) -> Result<std::net::UdpSocket, OsError> {
    let any: IpAddr = match to.is_ipv4() {
        true => Ipv4Addr::UNSPECIFIED.into(),
        false => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = std::net::UdpSocket::bind((any, 0)).or_cannot(|| "open a UDP socket".into())?;
    set_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_MARK, mark).map_err(|e| {
        OsError::new("mark a UDP socket", e).mend("grant CAP_NET_ADMIN or run as root")
    })?;
    socket.connect(to).or_cannot(|| format!("speak with {to}"))?;
    Ok(socket)
}

impl UdpSocket {
    /// Opens and binds the socket. A missing buffer size, mark or offload is an error
    /// only for the mark: without it packets would loop into the tunnel.
    pub fn bind(config: &UdpConfig) -> Result<UdpSocket, OsError> {
        let v6 = config.local.is_ipv6();
        let fd = sys::socket(sys::family(&config.local), libc::SOCK_DGRAM)
            .or_cannot(|| "open a UDP socket".into())?;
        let gro = config.gro && set_option(fd.as_fd(), libc::SOL_UDP, libc::UDP_GRO, 1).is_ok();
        set_up(fd.as_fd(), config).or_cannot(|| "set up the carrier socket".into())?;
        if let Some(mark) = config.mark {
            set_option(fd.as_fd(), libc::SOL_SOCKET, libc::SO_MARK, mark).map_err(|e| {
                OsError::new("mark the carrier's packets", e)
                    .mend("grant CAP_NET_ADMIN or run as root")
            })?;
        }
        if let Some(name) = &config.interface {
            set_text_option(fd.as_fd(), libc::SOL_SOCKET, libc::SO_BINDTODEVICE, name).map_err(
                |e| {
                    OsError::new(format!("bind a carrier to the interface \"{name}\""), e)
                        .mend("`ip link` lists the interfaces; start when it is there")
                },
            )?;
        }
        sys::bind(fd.as_fd(), config.local, false)
            .map_err(|e| bind_error("UDP", config.local, e))?;
        let local =
            sys::local_addr(fd.as_fd()).or_cannot(|| "read the carrier's address".into())?;
        let slot = if gro { GRO_SLOT } else { config.max_datagram.max(576) };
        Ok(UdpSocket { fd, local, v6, gso: config.gso, slot })
    }

    /// The address it is bound to, with the real port.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// True while batches go to the kernel in one piece; it turns false by itself when
    /// the kernel refuses them.
    pub fn gso(&self) -> bool {
        self.gso
    }

    /// The least length of the buffer given to [`UdpSocket::receive`]; a buffer of n
    /// times this takes n pieces per call, up to 16.
    pub fn slot(&self) -> usize {
        self.slot
    }

    /// Receives what is there, into `buf`. Iterate over the answer for the datagrams.
    /// Datagrams longer than a slot are dropped: they cannot be ours.
    pub fn receive<'b>(&self, buf: &'b mut [u8]) -> Result<Received<'b>, UdpError> {
        debug_assert!(buf.len() >= self.slot, "the receive buffer is shorter than a slot");
        let mut pieces = [NO_PIECE; MAX_PIECES];
        let n = retry(|| self.receive_pieces(buf, &mut pieces))?;
        let asked = (buf.len() / self.slot).min(MAX_PIECES);
        let slots = buf.chunks_exact_mut(self.slot);
        Ok(Received { slots, pieces, n, asked, next: 0, current: &mut [] })
    }

    /// Sends one batch. On an error the head that the kernel took is known, so the
    /// caller can go on behind it, or behind the one segment that failed.
    pub fn send(&mut self, t: &Transmit<'_>) -> Result<(), SendError> {
        let segment = if t.segment == 0 { t.payload.len().max(1) } else { t.segment };
        let mut sent = 0;
        while sent < t.payload.len() || (t.payload.is_empty() && sent == 0) {
            let rest = &t.payload[sent..];
            let whole = (MAX_GSO_BYTES / segment).clamp(1, MAX_SEGMENTS) * segment;
            let piece = &rest[..whole.min(rest.len())];
            let took = if self.gso && piece.len() > segment {
                self.send_gso(t, piece, segment)
            } else {
                self.send_singles(t, &rest[..rest.len().min(MAX_PIECES * segment)], segment)
            };
            match took {
                Ok(_) if t.payload.is_empty() => return Ok(()),
                Ok(n) => sent += n,
                Err(e) => return Err(SendError { sent, reason: e.into() }),
            }
        }
        Ok(())
    }

    /// What the kernel believes the path's MTU to `to` is, IP header included.
    pub fn path_mtu(&self, to: SocketAddr) -> Option<u16> {
        let probe = sys::socket(sys::family(&to), libc::SOCK_DGRAM).ok()?;
        let mark: u32 = sys::get_option(self.fd.as_fd(), libc::SOL_SOCKET, libc::SO_MARK).ok()?;
        if mark != 0 {
            set_option(probe.as_fd(), libc::SOL_SOCKET, libc::SO_MARK, mark).ok()?;
        }
        sys::connect(probe.as_fd(), to, false).ok()?;
        let (level, name) = match to {
            SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_MTU),
            SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_MTU),
        };
        let mtu: libc::c_int = sys::get_option(probe.as_fd(), level, name).ok()?;
        u16::try_from(mtu.min(65_535)).ok()
    }

    /// One batch by GSO. Where the kernel refuses, the same bytes go as single
    /// datagrams; when those pass, GSO is what was wrong, and it stays off.
    fn send_gso(&mut self, t: &Transmit<'_>, piece: &[u8], segment: usize) -> io::Result<usize> {
        let refused = match self.send_one(t, piece, segment) {
            Err(e)
                if matches!(e.raw_os_error(), Some(libc::EIO | libc::EINVAL | libc::EMSGSIZE)) =>
            {
                e
            }
            other => return other,
        };
        let first = &piece[..piece.len().min(MAX_PIECES * segment)];
        let took = self.send_singles(t, first, segment)?;
        if refused.raw_os_error() != Some(libc::EMSGSIZE) {
            self.gso = false;
        }
        Ok(took)
    }

    fn send_one(&self, t: &Transmit<'_>, piece: &[u8], segment: usize) -> io::Result<usize> {
        let (mut addr, addr_len) = RawAddr::from_socket_addr(t.to, self.v6);
        let mut iov = iovec(piece);
        let mut control = Control::default();
        control.put_source(t.from, self.v6);
        control.put_segment(segment as u16);
        let header = msghdr((addr.as_mut_ptr(), addr_len), &raw mut iov, control.raw());
        // SAFETY: `header` points to an address, an iovec over `piece` and a control
        // buffer, all of which outlive the call; the kernel only reads them.
        retry(|| check_len(unsafe { libc::sendmsg(self.fd.as_raw_fd(), &header, SEND_FLAGS) }))
    }

    /// Up to 16 datagrams in one call; returns the bytes of those that were taken.
    fn send_singles(&self, t: &Transmit<'_>, piece: &[u8], segment: usize) -> io::Result<usize> {
        let (mut addr, addr_len) = RawAddr::from_socket_addr(t.to, self.v6);
        let mut control = Control::default();
        control.put_source(t.from, self.v6);
        let mut iovs = [iovec(&[]); MAX_PIECES];
        let n = piece.len().div_ceil(segment).clamp(1, MAX_PIECES);
        for (iov, datagram) in iovs.iter_mut().zip(piece.chunks(segment)) {
            *iov = iovec(datagram);
        }
        let (name, control) = ((addr.as_mut_ptr(), addr_len), control.raw());
        let mut headers = iovs
            .each_mut()
            .map(|iov| libc::mmsghdr { msg_hdr: msghdr(name, iov, control), msg_len: 0 });
        let (fd, headers) = (self.fd.as_raw_fd(), headers.as_mut_ptr());
        // SAFETY: the first `n` headers point to the address, the control buffer and
        // iovecs over `piece`, all of which outlive the call; the kernel reads them and
        // writes only each `msg_len`.
        let took = retry(|| check(unsafe { libc::sendmmsg(fd, headers, n as u32, SEND_FLAGS) }))?;
        Ok((took as usize * segment).min(piece.len()))
    }

    fn receive_pieces(
        &self,
        buf: &mut [u8],
        pieces: &mut [Piece; MAX_PIECES],
    ) -> io::Result<usize> {
        let mut addrs = [RawAddr::empty(); MAX_PIECES];
        let mut controls = [Control::room(); MAX_PIECES];
        let mut iovs = [iovec(&[]); MAX_PIECES];
        let mut n = 0;
        for (iov, slot) in iovs.iter_mut().zip(buf.chunks_exact_mut(self.slot)) {
            *iov = libc::iovec { iov_base: slot.as_mut_ptr().cast(), iov_len: slot.len() };
            n += 1;
        }
        let mut headers: [libc::mmsghdr; MAX_PIECES] = std::array::from_fn(|i| libc::mmsghdr {
            msg_hdr: msghdr(
                (addrs[i].as_mut_ptr(), RawAddr::SIZE),
                &raw mut iovs[i],
                controls[i].raw(),
            ),
            msg_len: 0,
        });
        // SAFETY: the first `n` headers point to room for an address, a control buffer and
        // iovecs over disjoint slots of `buf`; all outlive the call.
        let got = check(unsafe {
            libc::recvmmsg(
                self.fd.as_raw_fd(),
                headers.as_mut_ptr(),
                n as u32,
                libc::MSG_DONTWAIT,
                std::ptr::null_mut(),
            )
        })? as usize;
        let now = wall_clock();
        for i in 0..got {
            pieces[i] = Piece::new(&headers[i], addrs[i], &controls[i], now);
        }
        Ok(got)
    }
}

impl AsFd for UdpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

const SEND_FLAGS: libc::c_int = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;

/// What came in one slot: one datagram, or a run of equal ones joined by GRO.
#[derive(Clone, Copy)]
struct Piece {
    from: Option<SocketAddr>,
    to: Option<IpAddr>,
    len: usize,
    stride: usize,
    age: Duration,
}

const NO_PIECE: Piece = Piece { from: None, to: None, len: 0, stride: 0, age: Duration::ZERO };

impl Piece {
    /// What came by `now` of the wall clock.
    fn new(header: &libc::mmsghdr, addr: RawAddr, control: &Control, now: u64) -> Piece {
        let flags = header.msg_hdr.msg_flags;
        if flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0 {
            return NO_PIECE;
        }
        let len = header.msg_len as usize;
        let told = control.read(header.msg_hdr.msg_controllen);
        Piece {
            from: addr.to_socket_addr(),
            to: told.to,
            len,
            stride: told.stride.unwrap_or(len),
            age: age(now, told.stamp, OLDEST),
        }
    }
}

/// The datagrams of one receive call, empty ones too.
pub struct Received<'b> {
    slots: ChunksExactMut<'b, u8>,
    pieces: [Piece; MAX_PIECES],
    /// How many of `pieces` came, how many were asked for, and which of them is next.
    n: usize,
    asked: usize,
    next: usize,
    /// What is left of the piece before `next`.
    current: &'b mut [u8],
}

impl<'b> Received<'b> {
    /// May more wait in the socket? If not, it was empty when the call ended: the next
    /// datagram is news for a poller that tells changes ([`crate::poll::Interest::edge`]).
    pub fn is_full(&self) -> bool {
        self.n == self.asked
    }

    /// The next piece's bytes, or false after the last one.
    fn advance(&mut self) -> bool {
        if self.next == self.n {
            return false;
        }
        let piece = &self.pieces[self.next];
        self.next += 1;
        if let Some(slot) = self.slots.next()
            && piece.from.is_some()
        {
            self.current = &mut slot[..piece.len];
        }
        true
    }
}

impl<'b> Iterator for Received<'b> {
    type Item = Datagram<'b>;

    fn next(&mut self) -> Option<Datagram<'b>> {
        while self.current.is_empty() {
            if !self.advance() {
                return None;
            }
            let piece = &self.pieces[self.next - 1];
            if let (0, Some(from)) = (piece.len, piece.from) {
                return Some(Datagram { payload: &mut [], from, to: piece.to, age: piece.age });
            }
        }
        let piece = &self.pieces[self.next - 1];
        let take = piece.stride.clamp(1, self.current.len());
        let (payload, rest) = mem::take(&mut self.current).split_at_mut(take);
        self.current = rest;
        Some(Datagram { payload, from: piece.from?, to: piece.to, age: piece.age })
    }
}

fn iovec(bytes: &[u8]) -> libc::iovec {
    libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }
}

/// A message header over parts that must outlive its use.
fn msghdr(
    addr: (*mut libc::sockaddr, libc::socklen_t),
    iov: *mut libc::iovec,
    control: (*mut libc::c_void, usize),
) -> libc::msghdr {
    // SAFETY: a msghdr is integers and pointers; all zero is valid (some C libraries
    // add padding fields, so it cannot be written as a literal).
    let mut header: libc::msghdr = unsafe { mem::zeroed() };
    header.msg_name = addr.0.cast();
    header.msg_namelen = addr.1;
    header.msg_iov = iov;
    header.msg_iovlen = 1;
    if control.1 > 0 {
        header.msg_control = control.0;
        header.msg_controllen = control.1 as _;
    }
    header
}

fn set_up(fd: BorrowedFd<'_>, config: &UdpConfig) -> io::Result<()> {
    let any = config.local.ip().is_unspecified();
    sys::set_buffer(fd, libc::SO_RCVBUFFORCE, libc::SO_RCVBUF, config.receive_buffer)?;
    sys::set_buffer(fd, libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, config.send_buffer)?;
    if config.reuse_port {
        set_option(fd, libc::SOL_SOCKET, libc::SO_REUSEPORT, 1)?;
    }
    // Without stamps packets count as having come when they are read.
    let _ = set_option(fd, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1);
    // Without them nobody learns why nothing comes back: no reason not to run.
    let _ = set_option(fd, libc::IPPROTO_IP, libc::IP_RECVERR, 1);
    if config.local.is_ipv6() {
        let _ = set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_RECVERR, 1);
    }
    // The values for IPv4 and IPv6 are the same numbers.
    let discovery = match config.mtu_discovery {
        MtuDiscovery::Probe => libc::IP_PMTUDISC_PROBE,
        MtuDiscovery::Obey => libc::IP_PMTUDISC_DO,
        MtuDiscovery::Fragment => libc::IP_PMTUDISC_DONT,
    };
    // On an IPv6 socket the IPv4 options rule the IPv4 packets that it carries.
    set_option(fd, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, discovery)?;
    if config.local.is_ipv6() {
        set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, i32::from(!any))?;
        set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, discovery)?;
        set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, i32::from(any))?;
    } else {
        set_option(fd, libc::IPPROTO_IP, libc::IP_PKTINFO, i32::from(any))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
