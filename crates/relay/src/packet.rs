//! The little that the relay reads in an unsplit IP packet: addresses, and whether
//! it opens a TCP connection.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use units::internet_sum;

/// The protocol number of TCP.
pub const TCP: u8 = 6;
/// The protocol number of UDP.
pub(crate) const UDP: u8 = 17;

/// What rules look at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// The IP protocol.
    pub protocol: u8,
    /// Source and destination port, where the protocol has them and they can be seen.
    pub ports: Option<(u16, u16)>,
    /// The differentiated services code point.
    pub dscp: u8,
}

/// An IP packet's addresses and, for TCP, its ports and flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Source address.
    pub source: IpAddr,
    /// Destination address.
    pub destination: IpAddr,
    /// Where the transport header starts, if it is here (no later fragment).
    transport: Option<usize>,
    /// The IP protocol.
    pub protocol: u8,
}

const SYN: u8 = 0x02;
const ACK: u8 = 0x10;

impl Packet {
    /// Reads the header; `None` for what is not a whole IP packet.
    pub fn parse(bytes: &[u8]) -> Option<Packet> {
        match bytes.first()? >> 4 {
            4 => Packet::parse_v4(bytes),
            6 => Packet::parse_v6(bytes),
            _ => None,
        }
    }

    fn parse_v4(bytes: &[u8]) -> Option<Packet> {
        let head: &[u8; 20] = bytes.first_chunk()?;
        let header = usize::from(head[0] & 15) * 4;
        let total = usize::from(u16::from_be_bytes([head[2], head[3]]));
        if header < 20 || total < header || total > bytes.len() {
            return None;
        }
        let first_fragment = u16::from_be_bytes([head[6], head[7]]) & 0x1fff == 0;
        Some(Packet {
            source: IpAddr::V4(Ipv4Addr::new(head[12], head[13], head[14], head[15])),
            destination: IpAddr::V4(Ipv4Addr::new(head[16], head[17], head[18], head[19])),
            transport: first_fragment.then_some(header),
            protocol: head[9],
        })
    }

    fn parse_v6(bytes: &[u8]) -> Option<Packet> {
        let head: &[u8; 40] = bytes.first_chunk()?;
        if 40 + usize::from(u16::from_be_bytes([head[4], head[5]])) > bytes.len() {
            return None;
        }
        let address = |at: usize| -> Option<IpAddr> {
            let octets: [u8; 16] = head[at..at + 16].try_into().ok()?;
            Some(IpAddr::V6(Ipv6Addr::from(octets)))
        };
        // Extension headers hide TCP; such packets pass unchanged.
        Some(Packet {
            source: address(8)?,
            destination: address(24)?,
            transport: Some(40),
            protocol: head[6],
        })
    }

    fn tcp<'a>(&self, bytes: &'a [u8]) -> Option<&'a [u8]> {
        if self.protocol != TCP {
            return None;
        }
        bytes.get(self.transport?..).filter(|t| t.len() >= 20)
    }

    /// What rules look at.
    pub fn facts(&self, bytes: &[u8]) -> Facts {
        // TCP, UDP, DCCP and SCTP begin with their ports.
        let has_ports = matches!(self.protocol, TCP | UDP | 33 | 132);
        let transport = self.transport.filter(|_| has_ports).and_then(|at| bytes.get(at..));
        let ports = transport.and_then(|t| t.first_chunk::<4>());
        let pair =
            |p: &[u8; 4]| (u16::from_be_bytes([p[0], p[1]]), u16::from_be_bytes([p[2], p[3]]));
        let class = match bytes {
            [_, second, ..] if self.source.is_ipv4() => *second,
            [first, second, ..] => first << 4 | second >> 4,
            _ => 0,
        };
        Facts { protocol: self.protocol, ports: ports.map(pair), dscp: class >> 2 }
    }

    /// A TCP segment's addresses and ports: from where to where.
    pub fn connection(&self, bytes: &[u8]) -> Option<(SocketAddr, SocketAddr)> {
        let tcp = self.tcp(bytes)?;
        let port = |at: usize| u16::from_be_bytes([tcp[at], tcp[at + 1]]);
        Some((SocketAddr::new(self.source, port(0)), SocketAddr::new(self.destination, port(2))))
    }

    /// Does the packet open a TCP connection? Then: from where to where.
    pub fn opens(&self, bytes: &[u8]) -> Option<(SocketAddr, SocketAddr)> {
        let tcp = self.tcp(bytes)?;
        (tcp[13] & (SYN | ACK) == SYN).then(|| self.connection(bytes))?
    }

    /// Does the packet begin QUIC at a server for the web? Those do that have the long header,
    /// whatever its version (RFC 8999, section 5.1); DTLS, VPNs and what else uses the port has
    /// not.
    pub fn begins_quic(&self, bytes: &[u8]) -> bool {
        let udp = self.transport.filter(|_| self.protocol == UDP).and_then(|at| bytes.get(at..));
        matches!(udp, Some([_, _, 0x01, 0xbb, _, _, _, _, first, version @ ..])
            if first & 0xc0 == 0xc0 && version.first_chunk::<4>().is_some_and(|v| *v != [0; 4]))
    }

    /// Lowers the maximum segment size that a SYN offers to what a whole datagram of
    /// `max_ip` bytes holds, so that unsplit TCP needs no fragments on the link
    /// (RFC 9293 section 3.7.1). The checksum follows (RFC 1624).
    pub fn clamp_mss(&self, bytes: &mut [u8], max_ip: usize) {
        let Some(tcp) = self.tcp(bytes) else { return };
        let headers = if self.source.is_ipv4() { 40 } else { 60 };
        let Ok(max) = u16::try_from(max_ip.saturating_sub(headers).max(64)) else { return };
        let options_end = (usize::from(tcp[12] >> 4) * 4).min(tcp.len());
        if tcp[13] & SYN == 0 || options_end < 20 {
            return;
        }
        let Some(at) = find_mss(&tcp[..options_end]) else { return };
        let old = u16::from_be_bytes([tcp[at], tcp[at + 1]]);
        if old <= max {
            return;
        }
        let start = self.transport.unwrap_or(0);
        // An option on an odd offset crosses two checksum words.
        let swap = |n: u16| if at % 2 == 0 { n } else { n.swap_bytes() };
        let sum = u16::from_be_bytes([tcp[16], tcp[17]]);
        let sum = checksum_replace(sum, swap(old), swap(max)).to_be_bytes();
        bytes[start + 16..start + 18].copy_from_slice(&sum);
        bytes[start + at..start + at + 2].copy_from_slice(&max.to_be_bytes());
    }

    /// Gives a packet of ICMP another source of the same family. ICMPv6's checksum has the
    /// addresses in it and follows (RFC 1624); where extension headers hide it nothing changes.
    pub(crate) fn rename_icmp_source(&mut self, bytes: &mut [u8], to: IpAddr) {
        const ICMPV6: u8 = 58;
        match (self.source, to) {
            (IpAddr::V4(_), IpAddr::V4(to)) => {
                bytes[12..16].copy_from_slice(&to.octets());
                bytes[10..12].fill(0);
                let header = usize::from(bytes[0] & 15) * 4;
                let sum = internet_sum(&[&bytes[..header]]);
                bytes[10..12].copy_from_slice(&sum.to_be_bytes());
            }
            (IpAddr::V6(old), IpAddr::V6(to)) if self.protocol == ICMPV6 && bytes.len() >= 44 => {
                let sum = [!bytes[42], !bytes[43]];
                let sum = internet_sum(&[&sum, &old.octets().map(|b| !b), &to.octets()]);
                bytes[42..44].copy_from_slice(&sum.to_be_bytes());
                bytes[8..24].copy_from_slice(&to.octets());
            }
            _ => return,
        }
        self.source = to;
    }
}

/// For the fuzzers: any bytes from a TUN device. The clamp changes a size and a checksum.
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub fn fuzz(data: &[u8]) {
    let Some(packet) = Packet::parse(data) else { return };
    let _ = (packet.opens(data), packet.facts(data), packet.begins_quic(data));
    let mut clamped = data.to_vec();
    packet.clamp_mss(&mut clamped, 1400);
    let changed = clamped.iter().zip(data).filter(|(a, b)| a != b).count();
    assert!(changed <= 4 && clamped.len() == data.len());
    assert_eq!(Packet::parse(&clamped), Some(packet), "the addresses stay");
    let once = clamped.clone();
    packet.clamp_mss(&mut clamped, 1400);
    assert_eq!(clamped, once, "once is enough");
}

/// The offset of the value of the MSS option (kind 2, length 4) in a TCP header.
fn find_mss(header: &[u8]) -> Option<usize> {
    let mut at = 20;
    while let Some(&kind) = header.get(at) {
        match kind {
            0 => return None,
            1 => at += 1,
            kind => {
                let len = usize::from(*header.get(at + 1)?);
                if kind == 2 && len == 4 && at + 4 <= header.len() {
                    return Some(at + 2);
                }
                at += len.max(2);
            }
        }
    }
    None
}

/// A client's SYN without options, as the simulator's and the tests' hosts send it. Both
/// addresses must be of one family.
///
/// # Panics
/// If they are not.
pub fn syn(from: SocketAddr, to: SocketAddr, sequence: u32) -> Vec<u8> {
    let mut out = match (from.ip(), to.ip()) {
        (IpAddr::V4(a), IpAddr::V4(b)) => {
            let mut head = vec![0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, TCP, 0, 0];
            head.extend_from_slice(&[a.octets(), b.octets()].concat());
            let sum = internet_sum(&[&head]);
            head[10..12].copy_from_slice(&sum.to_be_bytes());
            head
        }
        (IpAddr::V6(a), IpAddr::V6(b)) => {
            let mut head = vec![0x60, 0, 0, 0, 0, 20, TCP, 64];
            head.extend_from_slice(&[a.octets(), b.octets()].concat());
            head
        }
        _ => panic!("{from} and {to} are of different families"),
    };
    let at = out.len();
    out.extend_from_slice(&from.port().to_be_bytes());
    out.extend_from_slice(&to.port().to_be_bytes());
    out.extend_from_slice(&sequence.to_be_bytes());
    out.extend_from_slice(&[0, 0, 0, 0, 0x50, SYN, 0xff, 0xff, 0, 0, 0, 0]);
    let addresses = if at == 20 { 12..20 } else { 8..40 };
    let sum = internet_sum(&[&out[addresses], &[0, TCP, 0, 20], &out[at..]]);
    out[at + 16..at + 18].copy_from_slice(&sum.to_be_bytes());
    out
}

/// An IP packet with this payload, as tests' hosts send it. Both addresses must be of one
/// family.
#[cfg(test)]
pub(crate) fn plain(from: IpAddr, to: IpAddr, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut out = match (from, to) {
        (IpAddr::V4(a), IpAddr::V4(b)) => {
            let len = ((20 + payload.len()) as u16).to_be_bytes();
            let mut head = vec![0x45, 0, len[0], len[1], 0, 0, 0, 0, 64, protocol, 0, 0];
            head.extend_from_slice(&[a.octets(), b.octets()].concat());
            let sum = internet_sum(&[&head]);
            head[10..12].copy_from_slice(&sum.to_be_bytes());
            head
        }
        (IpAddr::V6(a), IpAddr::V6(b)) => {
            let len = (payload.len() as u16).to_be_bytes();
            let mut head = vec![0x60, 0, 0, 0, len[0], len[1], protocol, 64];
            head.extend_from_slice(&[a.octets(), b.octets()].concat());
            head
        }
        _ => panic!("{from} and {to} are of different families"),
    };
    out.extend_from_slice(payload);
    out
}

/// RFC 1624, equation 3.
fn checksum_replace(sum: u16, old: u16, new: u16) -> u16 {
    internet_sum(&[&(!sum).to_be_bytes(), &(!old).to_be_bytes(), &new.to_be_bytes()])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A TCP SYN over IPv4 with `options`, checksum valid.
    fn syn_with(options: &[u8]) -> Vec<u8> {
        let padded = options.len().next_multiple_of(4);
        let mut p = vec![0u8; 40 + padded];
        let total = p.len() as u16;
        p[0] = 0x45;
        p[2..4].copy_from_slice(&total.to_be_bytes());
        p[9] = TCP;
        p[12..20].copy_from_slice(&[10, 1, 0, 2, 10, 2, 0, 2]);
        p[20..24].copy_from_slice(&[0x9c, 0x40, 0, 80]);
        p[32] = ((20 + padded) << 2) as u8;
        p[33] = SYN;
        p[40..40 + options.len()].copy_from_slice(options);
        let sum = tcp_sum(&p);
        p[36..38].copy_from_slice(&(!sum).to_be_bytes());
        p
    }

    /// The one's complement sum over pseudo-header and TCP; 0xffff when valid.
    fn tcp_sum(p: &[u8]) -> u16 {
        let len = p.len() - 20;
        let words =
            p[12..].chunks(2).map(|c| u32::from(c[0]) << 8 | c.get(1).map_or(0, |b| u32::from(*b)));
        let mut s: u32 = words.sum::<u32>() + u32::from(TCP) + len as u32;
        while s > 0xffff {
            s = (s & 0xffff) + (s >> 16);
        }
        s as u16
    }

    #[test]
    fn a_syn_is_seen_and_its_mss_lowered_with_a_valid_checksum() {
        for options in [&[2, 4, 0x05, 0xb4][..], &[1, 2, 4, 0x05, 0xb4, 1, 3, 3, 7]] {
            let mut p = syn_with(options);
            assert_eq!(tcp_sum(&p), 0xffff, "the test's own packet is valid");
            let packet = Packet::parse(&p).unwrap();
            let (from, to) = packet.opens(&p).unwrap();
            assert_eq!(
                (from.to_string(), to.to_string()),
                ("10.1.0.2:40000".into(), "10.2.0.2:80".into())
            );
            packet.clamp_mss(&mut p, 1450);
            assert_eq!(tcp_sum(&p), 0xffff);
            let at = 20 + find_mss(&p[20..]).unwrap();
            assert_eq!(u16::from_be_bytes([p[at], p[at + 1]]), 1410);
            let before = p.clone();
            packet.clamp_mss(&mut p, 1500);
            assert_eq!(p, before, "a smaller offer stays");
        }
    }

    #[test]
    fn ports_and_code_points_are_found_in_both_families() {
        let mut v4 = syn_with(&[]);
        v4[1] = 46 << 2 | 1;
        let facts = Packet::parse(&v4).unwrap().facts(&v4);
        assert_eq!(facts, Facts { protocol: TCP, ports: Some((40_000, 80)), dscp: 46 });
        v4[7] = 3;
        assert_eq!(Packet::parse(&v4).unwrap().facts(&v4).ports, None, "a later fragment");
        let mut v6 = vec![0u8; 48];
        // The code point is in the second and third half byte and two bits.
        v6[..2].copy_from_slice(&[0x62, 0x10]);
        (v6[5], v6[6]) = (8, 17);
        v6[40..44].copy_from_slice(&[0, 53, 1, 0]);
        let facts = Packet::parse(&v6).unwrap().facts(&v6);
        assert_eq!(facts, Facts { protocol: 17, ports: Some((53, 256)), dscp: 8 });
    }

    #[test]
    fn the_corpus_of_packets_replays() {
        corpus::replay("packet", fuzz);
    }

    proptest! {
        #[test]
        fn random_bytes_never_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..120), v6: bool) {
            if let Some(b) = bytes.first_mut() {
                *b = if v6 { 0x60 } else { 0x45 };
            }
            if let Some(p) = Packet::parse(&bytes) {
                let _ = p.opens(&bytes);
                p.clamp_mss(&mut bytes, 1000);
            }
        }
    }
}
