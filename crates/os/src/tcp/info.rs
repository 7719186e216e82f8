//! What the kernel measured of a connection (`TCP_INFO`).

use std::io;
use std::os::fd::BorrowedFd;

use units::Duration;

use crate::sys::get_option;

/// The kernel's measurements of one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpInfo {
    /// Smoothed round-trip time to the host; zero before the first measurement.
    pub rtt: Duration,
    /// Its variation.
    pub rtt_variation: Duration,
    /// Segments the sender may have in flight.
    pub congestion_window: u32,
    /// Segments in flight.
    pub in_flight: u32,
    /// Bytes of payload per segment towards the host.
    pub send_mss: u32,
    /// Segments sent again in the connection's life.
    pub retransmissions: u32,
    /// Bytes of content sent for the first time: how far the highest sequence number is.
    pub sent: u64,
    /// Bytes of content that the far host has acknowledged.
    pub acknowledged: u64,
    /// Time since data was last received.
    pub idle: Duration,
    /// Bytes the kernel is ready to buffer for reading.
    pub receive_space: u32,
    /// True from the handshake's end until a close begins.
    pub established: bool,
    /// The connection is over: the kernel sends nothing any more, and waits for nothing.
    pub closed: bool,
}

/// `TCP_ESTABLISHED` of the kernel's state numbers.
const ESTABLISHED: u8 = 1;
/// `TCP_CLOSE`, which a socket in TIME_WAIT shows as well.
const CLOSED: u8 = 7;

impl TcpInfo {
    pub(super) fn of(fd: BorrowedFd<'_>) -> io::Result<TcpInfo> {
        let raw: libc::tcp_info = get_option(fd, libc::IPPROTO_TCP, libc::TCP_INFO)?;
        Ok(TcpInfo {
            rtt: Duration::from_micros(raw.tcpi_rtt.into()),
            rtt_variation: Duration::from_micros(raw.tcpi_rttvar.into()),
            congestion_window: raw.tcpi_snd_cwnd,
            in_flight: raw.tcpi_unacked,
            send_mss: raw.tcpi_snd_mss,
            retransmissions: raw.tcpi_total_retrans,
            sent: raw.tcpi_bytes_sent.saturating_sub(raw.tcpi_bytes_retrans),
            acknowledged: raw.tcpi_bytes_acked,
            idle: Duration::from_millis(raw.tcpi_last_data_recv.into()),
            receive_space: raw.tcpi_rcv_space,
            established: raw.tcpi_state == ESTABLISHED,
            closed: raw.tcpi_state == CLOSED,
        })
    }
}
