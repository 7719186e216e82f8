//! Hosts' UDP datagrams, as services take and answer them (spec/service.md, "Datagrams").

use std::net::{IpAddr, SocketAddr};

use units::internet_sum;

use crate::packet::{Packet, UDP};

/// Bytes of an answer at most: it fits the smallest MTU of IPv6 and needs no fragments.
pub const MAX_ANSWER: usize = 1232;

/// The datagram in a packet that is one, whole: from where, to where, and what is in it.
pub fn parse(packet: &[u8]) -> Option<(SocketAddr, SocketAddr, &[u8])> {
    let p = Packet::parse(packet)?;
    let facts = p.facts(packet);
    let (from, to) = facts.ports.filter(|_| facts.protocol == UDP)?;
    let (head, is_fragment) = match p.source {
        IpAddr::V4(_) => (usize::from(packet[0] & 15) * 4, packet[6] & 0x20 != 0),
        IpAddr::V6(_) => (40, false),
    };
    let udp = packet.get(head..).filter(|_| !is_fragment)?;
    let len = usize::from(u16::from_be_bytes([*udp.get(4)?, *udp.get(5)?]));
    let payload = udp.get(8..len)?;
    Some((SocketAddr::new(p.source, from), SocketAddr::new(p.destination, to), payload))
}

/// A packet with a datagram. `None` where the addresses are of two families, or it is too long.
pub fn packet(from: SocketAddr, to: SocketAddr, payload: &[u8]) -> Option<Vec<u8>> {
    let len = u16::try_from(payload.len() + 8).ok()?;
    let (addresses, mut packet) = match (from.ip(), to.ip()) {
        (IpAddr::V4(a), IpAddr::V4(b)) => {
            let total = len.checked_add(20)?.to_be_bytes();
            let addresses = [a.octets(), b.octets()].concat();
            let mut head = vec![0x45, 0, total[0], total[1], 0, 0, 0x40, 0, 64, UDP, 0, 0];
            head.extend_from_slice(&addresses);
            let sum = internet_sum(&[&head]);
            head[10..12].copy_from_slice(&sum.to_be_bytes());
            (addresses, head)
        }
        (IpAddr::V6(a), IpAddr::V6(b)) => {
            let addresses = [a.octets(), b.octets()].concat();
            let mut head = vec![0x60, 0, 0, 0];
            head.extend_from_slice(&len.to_be_bytes());
            head.extend_from_slice(&[UDP, 64]);
            head.extend_from_slice(&addresses);
            (addresses, head)
        }
        _ => return None,
    };
    let mut udp = [from.port(), to.port(), len, 0].map(u16::to_be_bytes).concat();
    let pseudo = [0, UDP, (len >> 8) as u8, len as u8];
    let sum = match internet_sum(&[&addresses, &pseudo, &udp, payload]) {
        0 => 0xffff, // 0 says that there is none.
        sum => sum,
    };
    udp[6..8].copy_from_slice(&sum.to_be_bytes());
    packet.extend_from_slice(&udp);
    packet.extend_from_slice(payload);
    Some(packet)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagrams_are_read_as_they_were_written() {
        for (a, b) in [("10.1.0.2:4000", "10.2.0.2:53"), ("[fd01::2]:4000", "[fd02::2]:53")] {
            let (a, b) = (a.parse().unwrap(), b.parse().unwrap());
            for payload in [&b""[..], b"odd", b"even"] {
                let whole = packet(a, b, payload).unwrap();
                assert_eq!(parse(&whole), Some((a, b, payload)));
                for cut in 0..whole.len() {
                    assert_eq!(parse(&whole[..cut]), None);
                }
            }
        }
        let (v4, v6) = ("10.1.0.2:4".parse().unwrap(), "[fd01::2]:4".parse().unwrap());
        assert_eq!(packet(v4, v6, b""), None);
        assert_eq!(packet(v4, v4, &[0; 65_536]), None);
    }

    #[test]
    fn fragments_and_other_protocols_are_no_datagrams() {
        let (a, b) = ("10.1.0.2:4000".parse().unwrap(), "10.2.0.2:53".parse().unwrap());
        let whole = packet(a, b, b"question").unwrap();
        for (at, value) in [(6, 0x20), (7, 1), (9, 6)] {
            let mut other = whole.clone();
            other[at] = value;
            assert_eq!(parse(&other), None);
        }
    }
}
