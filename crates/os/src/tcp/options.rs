//! The options that every TCP socket gets.

use std::os::fd::BorrowedFd;

use units::Duration;

use super::set_linger;
use crate::OsError;
use crate::error::OrCannot;
use crate::sys::{self, set_option, set_text_option};

/// What a connection has from birth. Set on a listener, Linux hands all of it down to
/// what is accepted, at no system call per connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TcpOptions {
    /// Dropping resets. Off only for sockets that carry no host's data.
    pub reset_on_drop: bool,
    /// Small writes leave at once (`TCP_NODELAY`).
    pub no_delay: bool,
    /// Ask a silent far host after this time whether it lives.
    pub keep_alive: Option<Duration>,
    /// Urgent data stays in its place in the stream, so that relaying keeps it.
    pub urgent_in_line: bool,
    /// Routing mark of what is sent (needs CAP_NET_ADMIN).
    pub mark: Option<u32>,
    /// Writable again only below this many unsent bytes (`TCP_NOTSENT_LOWAT`).
    pub unsent_limit: Option<u32>,
    /// A fixed receive buffer in bytes in place of the kernel's tuning.
    pub receive_buffer: Option<usize>,
    /// A fixed send buffer in bytes in place of the kernel's tuning.
    pub send_buffer: Option<usize>,
    /// The longest segment in bytes (`TCP_MAXSEG`, 88 to 32,767; what is beyond counts as that), to
    /// which the far host keeps, too.
    pub longest_segment: Option<u32>,
    /// The kernel's congestion control by name.
    pub congestion: Option<String>,
}

impl Default for TcpOptions {
    /// What a relayed connection wants: reset on drop, no delay, keep-alive after two
    /// hours as hosts have it (RFC 9293 section 3.8.4), urgent data in line, 128 KiB unsent.
    fn default() -> TcpOptions {
        TcpOptions {
            reset_on_drop: true,
            no_delay: true,
            keep_alive: Some(Duration::from_secs(7200)),
            urgent_in_line: true,
            mark: None,
            unsent_limit: Some(128 << 10),
            receive_buffer: None,
            send_buffer: None,
            longest_segment: None,
            congestion: None,
        }
    }
}

impl TcpOptions {
    pub(super) fn apply(&self, fd: BorrowedFd<'_>) -> Result<(), OsError> {
        self.apply_plain(fd).or_cannot(|| "set the options of a TCP socket".into())?;
        if let Some(mark) = self.mark {
            set_option(fd, libc::SOL_SOCKET, libc::SO_MARK, mark).map_err(|e| {
                OsError::new("mark a TCP connection", e).mend("grant CAP_NET_ADMIN or run as root")
            })?;
        }
        if let Some(name) = &self.congestion {
            set_text_option(fd, libc::IPPROTO_TCP, libc::TCP_CONGESTION, name).map_err(|e| {
                OsError::new(format!("use the congestion control \"{name}\""), e)
                    .mend("see `sysctl net.ipv4.tcp_allowed_congestion_control`")
            })?;
        }
        Ok(())
    }

    fn apply_plain(&self, fd: BorrowedFd<'_>) -> std::io::Result<()> {
        if self.reset_on_drop {
            set_linger(fd, true)?;
        }
        if self.no_delay {
            set_option(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1)?;
        }
        if self.urgent_in_line {
            set_option(fd, libc::SOL_SOCKET, libc::SO_OOBINLINE, 1)?;
        }
        if let Some(idle) = self.keep_alive {
            // The kernel takes 1 to 32,767 seconds.
            let secs = (idle.as_millis() / 1000).clamp(1, 32_767) as libc::c_int;
            set_option(fd, libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1)?;
            set_option(fd, libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, secs)?;
        }
        if let Some(bytes) = self.unsent_limit {
            set_option(fd, libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, bytes)?;
        }
        if let Some(bytes) = self.receive_buffer {
            sys::set_buffer(fd, libc::SO_RCVBUFFORCE, libc::SO_RCVBUF, bytes)?;
        }
        if let Some(bytes) = self.send_buffer {
            sys::set_buffer(fd, libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, bytes)?;
        }
        if let Some(bytes) = self.longest_segment {
            // The kernel refuses what is outside of its own bounds.
            let bytes = bytes.clamp(88, 32_767);
            set_option(fd, libc::IPPROTO_TCP, libc::TCP_MAXSEG, bytes)?;
        }
        Ok(())
    }
}
