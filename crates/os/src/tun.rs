//! A TUN device: whole IP packets in and out of the kernel's routing.
//!
//! No packet-info header and no offloads: every read is one IP packet of at most the
//! device's MTU, because each of them crosses the link as it is. The device vanishes
//! with its descriptor, and the routes into it vanish with the device.

use std::fmt;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

use crate::OsError;
use crate::error::OrCannot;
use crate::sys::{self, check, check_len, retry};

/// The longest name of an interface (`IFNAMSIZ` less the closing zero).
pub const MAX_NAME: usize = libc::IFNAMSIZ - 1;

/// Packets to neighbours, passed over in one call at most.
const PASSED_OVER: usize = 64;

/// Why a packet was not moved.
#[derive(Debug)]
pub enum TunError {
    /// Nothing to read, or no room to write: wait for the poller.
    Blocked,
    /// The device is down; it was set up when opened, so an operator did that.
    Down,
    /// What was to be written is not an IP packet, or longer than the device takes.
    NotAPacket,
    /// Anything else; a deleted device among them.
    Failed(io::Error),
}

impl From<io::Error> for TunError {
    fn from(e: io::Error) -> TunError {
        match e.raw_os_error() {
            Some(libc::EAGAIN) => TunError::Blocked,
            Some(libc::EIO) => TunError::Down,
            Some(libc::EINVAL | libc::EMSGSIZE) => TunError::NotAPacket,
            _ => TunError::Failed(e),
        }
    }
}

impl fmt::Display for TunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TunError::Blocked => write!(f, "the TUN device would block"),
            TunError::Down => write!(f, "the TUN device has been set down"),
            TunError::NotAPacket => write!(f, "that is not an IP packet"),
            TunError::Failed(e) => write!(f, "the TUN device failed: {e}"),
        }
    }
}
impl std::error::Error for TunError {}

/// An open TUN device, up and non-blocking.
#[derive(Debug)]
pub struct Tun {
    fd: OwnedFd,
    name: String,
    index: u32,
}

impl Tun {
    /// Creates the device `name` with an MTU of `mtu` bytes, switches it up, and turns
    /// off what would disturb it: the reverse-path filter, because packets put back by
    /// the program have sources that lie behind other interfaces, and the kernel's own
    /// IPv6 chatter, because on a thin link it costs seconds.
    pub fn open(name: &str, mtu: u16) -> Result<Tun, OsError> {
        check_name(name)?;
        let fd: OwnedFd = fs::OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK)
            .open("/dev/net/tun")
            .map_err(open_error)?
            .into();
        create(fd.as_fd(), name).map_err(|e| create_error(name, e))?;
        let index = index_of(name).or_cannot(|| format!("find the new device {name}"))?;
        quieten(name)?;
        set_mtu(name, mtu).or_cannot(|| format!("set the MTU of {name} to {mtu}"))?;
        set_up(name).or_cannot(|| format!("switch {name} up"))?;
        Ok(Tun { fd, name: name.to_owned(), index })
    }

    /// The same device once more, for another thread to write to. It vanishes only when
    /// all are closed.
    pub fn try_clone(&self) -> Result<Tun, OsError> {
        let fd = self.fd.try_clone().or_cannot(|| format!("share the device {}", self.name))?;
        Ok(Tun { fd, name: self.name.clone(), index: self.index })
    }

    /// The device's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The device's interface index.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Reads one packet that the kernel routed into the device; its length. A packet
    /// longer than `buf` is cut off, so give it at least the MTU. What the kernel says
    /// to its neighbours on a link of its own (multicast reports) is left out: there are
    /// no neighbours here. After [`PASSED_OVER`] of these in a row the answer is
    /// [`TunError::Blocked`]: any program may send them, and a level-triggered poller tells of
    /// the rest.
    pub fn read(&self, buf: &mut [u8]) -> Result<usize, TunError> {
        let fd = self.fd.as_raw_fd();
        for _ in 0..PASSED_OVER {
            let (ptr, len) = (buf.as_mut_ptr().cast(), buf.len());
            // SAFETY: pointer and length describe `buf`.
            let n = retry(|| check_len(unsafe { libc::read(fd, ptr, len) }))?;
            if !is_for_neighbours(&buf[..n]) {
                return Ok(n);
            }
        }
        Err(TunError::Blocked)
    }

    /// Hands one whole packet to the kernel as if the device had received it.
    pub fn write(&self, packet: &[u8]) -> Result<(), TunError> {
        let fd = self.fd.as_raw_fd();
        // SAFETY: pointer and length describe `packet`.
        retry(|| check_len(unsafe { libc::write(fd, packet.as_ptr().cast(), packet.len()) }))?;
        Ok(())
    }
}

/// True for packets that never leave a link: 224.0.0.0/24 (RFC 5771 section 4) and
/// ff02::/16 (RFC 4291 section 2.7).
fn is_for_neighbours(packet: &[u8]) -> bool {
    match packet.first().map(|b| b >> 4) {
        Some(4) => packet.get(16..19) == Some(&[224, 0, 0]),
        Some(6) => packet.get(24..26) == Some(&[0xff, 0x02]),
        _ => false,
    }
}

impl AsFd for Tun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Refuses what the kernel would refuse or, with `%`, take for a pattern.
pub(crate) fn check_name(name: &str) -> Result<(), OsError> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.@".contains(c);
    let good = !name.is_empty() && name.len() <= MAX_NAME && name.chars().all(plain);
    if good && name != "." && name != ".." && name != "lo" {
        return Ok(());
    }
    Err(OsError::refused(format!("\"{name}\" cannot be the name of a network interface"))
        .mend(format!("use 1 to {MAX_NAME} letters, digits, - or _")))
}

fn create(fd: BorrowedFd<'_>, name: &str) -> io::Result<()> {
    let mut request = request_for(name);
    request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as libc::c_short;
    // SAFETY: `request` is a zero-terminated name and flags, and outlives the call.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETIFF, &raw mut request) }).map(drop)
}

fn set_mtu(name: &str, mtu: u16) -> io::Result<()> {
    let mut request = request_for(name);
    request.ifr_ifru.ifru_mtu = libc::c_int::from(mtu);
    interface_ioctl(libc::SIOCSIFMTU, &mut request)
}

fn set_up(name: &str) -> io::Result<()> {
    let mut request = request_for(name);
    interface_ioctl(libc::SIOCGIFFLAGS, &mut request)?;
    // SAFETY: the call before filled in the flags.
    let flags = unsafe { request.ifr_ifru.ifru_flags };
    request.ifr_ifru.ifru_flags = flags | libc::IFF_UP as libc::c_short;
    interface_ioctl(libc::SIOCSIFFLAGS, &mut request)
}

pub(crate) fn index_of(name: &str) -> io::Result<u32> {
    let mut request = request_for(name);
    interface_ioctl(libc::SIOCGIFINDEX, &mut request)?;
    // SAFETY: the call filled in the index.
    Ok(unsafe { request.ifr_ifru.ifru_ifindex } as u32)
}

fn interface_ioctl(what: libc::Ioctl, request: &mut libc::ifreq) -> io::Result<()> {
    let socket = sys::socket(libc::AF_INET, libc::SOCK_DGRAM)?;
    // SAFETY: `request` is a valid ifreq of the kind that `what` takes, and outlives the call.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), what, request) }).map(drop)
}

fn request_for(name: &str) -> libc::ifreq {
    // SAFETY: an ifreq is integers; all zero is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().take(MAX_NAME).zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request
}

/// Per-device settings, best effort where a kernel lacks IPv6 or hides /proc/sys.
fn quieten(name: &str) -> Result<(), OsError> {
    set_rp_filter(name)?;
    // No link-local address: no router solicitations, no multicast reports.
    let _ = fs::write(format!("/proc/sys/net/ipv6/conf/{name}/addr_gen_mode"), "1");
    let _ = fs::write(format!("/proc/sys/net/ipv6/conf/{name}/accept_ra"), "0");
    Ok(())
}

/// The kernel takes the stricter of "all" and the device's own value, where loose (2)
/// ranks above strict (1). Loose passes what is routable at all, which is enough here.
fn set_rp_filter(name: &str) -> Result<(), OsError> {
    let all = fs::read_to_string("/proc/sys/net/ipv4/conf/all/rp_filter").unwrap_or_default();
    let value = if all.trim() == "0" { "0" } else { "2" };
    fs::write(format!("/proc/sys/net/ipv4/conf/{name}/rp_filter"), value).map_err(|e| {
        OsError::new(format!("turn off the reverse-path filter of {name}"), e)
            .mend(format!("run `sysctl net.ipv4.conf.{name}.rp_filter={value}` yourself"))
    })
}

fn open_error(e: io::Error) -> OsError {
    let mend = match e.raw_os_error() {
        Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => {
            "load the driver with `modprobe tun`, or let the container have /dev/net/tun"
        }
        _ => "run as root, or let this user read and write /dev/net/tun",
    };
    OsError::new("open /dev/net/tun", e).mend(mend)
}

fn create_error(name: &str, e: io::Error) -> OsError {
    let mend = match e.raw_os_error() {
        Some(libc::EBUSY) => {
            format!(
                "an interface {name} exists already: is another bentpipe running? choose another name"
            )
        }
        Some(libc::EINVAL) => {
            format!("an interface {name} of another kind exists: choose another name")
        }
        _ => "run as root or grant CAP_NET_ADMIN".to_owned(),
    };
    OsError::new(format!("create the TUN device {name}"), e).mend(mend)
}

#[cfg(test)]
mod tests;
