//! A carrier like PPP over a modem, as hosts dialled in by around 1999: what gateways are compared
//! with on a telephone line. The kernel's own is not everywhere, and says nothing of its times.
//!
//! [`frame`] is RFC 1662's framing, [`negotiation`] the options of RFC 1661 and 1332 and the proof
//! of RFC 1994, without input or output; [`line`](mod@line) dials, and carries the packets of a TUN
//! device.

pub mod frame;
pub mod line;
pub mod negotiation;

/// Protocol numbers (RFC 1661, 2).
pub mod protocol {
    /// Packets of IPv4.
    pub const IP: u16 = 0x0021;
    /// Addresses of IPv4 (RFC 1332).
    pub const IPCP: u16 = 0x8021;
    /// Compression (RFC 1962), which nobody here has.
    pub const CCP: u16 = 0x80fd;
    /// The link.
    pub const LCP: u16 = 0xc021;
    /// The proof (RFC 1994).
    pub const CHAP: u16 = 0xc223;
}
