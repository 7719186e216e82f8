//! What a client hears of a connection that does not come to be, or a host of a packet that
//! does not pass, as the server or a router would have told it: a reset (RFC 9293, section
//! 3.10.7.1) or an ICMP error (RFC 792, RFC 4443), in the server's name.

use std::net::IpAddr;

use link::wire::ResetReason;
use units::internet_sum;

use crate::policy::never;
use crate::tracking::{Kind, Role, Upper};

/// ICMP "destination unreachable" codes (RFC 1812, section 5.2.7.1; RFC 4443, section 3.1).
const NET_UNREACHABLE: u8 = 0;
const NO_ROUTE_V6: u8 = 0;
const HOST_UNREACHABLE: u8 = 1;
const PORT_UNREACHABLE: u8 = 3;
const PROHIBITED: u8 = 13;
const ADDRESS_UNREACHABLE_V6: u8 = 3;
const PORT_UNREACHABLE_V6: u8 = 4;
const PROHIBITED_V6: u8 = 1;
/// An ICMP error is at most this long (RFC 1812, section 4.3.2.3), an ICMPv6 error that
/// (RFC 4443, section 2.4).
const MOST_V4: usize = 576;
const MOST_V6: usize = 1280;
const TTL: u8 = 64;

/// The packet that answers `syn`, a whole SYN of TCP without IPv6 extension headers;
/// `None` where a client hears nothing and tries again, or gives up by itself.
pub fn answer(syn: &[u8], reason: ResetReason) -> Option<Vec<u8>> {
    let v4 = syn.first()? >> 4 == 4;
    match (reason, v4) {
        // It asks again: with the next session, or in vain as it would without gateways.
        (ResetReason::TimedOut | ResetReason::PeerRestarted | ResetReason::ShuttingDown, _) => None,
        (ResetReason::Icmp(code), true) => icmp(syn, code),
        (ResetReason::Icmpv6(code), false) => icmpv6(syn, code),
        (ResetReason::Denied, true) => icmp(syn, PROHIBITED),
        (ResetReason::Denied, false) => icmpv6(syn, PROHIBITED_V6),
        (
            ResetReason::Unreachable
            | ResetReason::NoSuchName
            | ResetReason::Icmp(_)
            | ResetReason::Icmpv6(_),
            v4,
        ) => match v4 {
            true => icmp(syn, HOST_UNREACHABLE),
            false => icmpv6(syn, ADDRESS_UNREACHABLE_V6),
        },
        (
            ResetReason::Refused
            | ResetReason::HostReset
            | ResetReason::Exhausted
            | ResetReason::Protocol
            | ResetReason::NoSuchService,
            _,
        ) => reset(syn),
    }
}

/// The ICMP error that tells a host that its `packet` may not pass ("administratively
/// prohibited"); `None` for what no error answers (RFC 1122, section 3.2.2; RFC 4443, section
/// 2.4): errors, answers, later fragments, what goes to many or comes from nobody.
pub(crate) fn prohibited(packet: &[u8]) -> Option<Vec<u8>> {
    is_answerable(packet).then(|| match packet[0] >> 4 {
        4 => icmp(packet, PROHIBITED),
        _ => icmpv6(packet, PROHIBITED_V6),
    })?
}

/// The same where there is no way for the packet ("no route").
pub(crate) fn no_route(packet: &[u8]) -> Option<Vec<u8>> {
    is_answerable(packet).then(|| match packet[0] >> 4 {
        4 => icmp(packet, NET_UNREACHABLE),
        _ => icmpv6(packet, NO_ROUTE_V6),
    })?
}

/// The same where nobody is to answer it ("port unreachable"), as of a server without such a port.
pub(crate) fn port_unreachable(packet: &[u8]) -> Option<Vec<u8>> {
    is_answerable(packet).then(|| match packet[0] >> 4 {
        4 => icmp(packet, PORT_UNREACHABLE),
        _ => icmpv6(packet, PORT_UNREACHABLE_V6),
    })?
}

fn is_answerable(packet: &[u8]) -> bool {
    let Some(upper) = Upper::of(packet) else { return false };
    let is_asked = match upper.kind(packet) {
        Kind::Flow(_, role) => !matches!(role, Role::Answers | Role::Resets),
        Kind::Other => !upper.is_icmp_error(packet),
        Kind::Error(_) | Kind::BlindError | Kind::LaterFragment => false,
    };
    is_asked && !never(upper.destination) && is_a_host(upper.source)
}

fn is_a_host(addr: IpAddr) -> bool {
    let reserved = matches!(addr, IpAddr::V4(a) if a.octets()[0] == 0 || a.octets()[0] >= 240);
    !never(addr) && !addr.is_loopback() && !reserved
}

/// Headers of an answer from the packet's destination to its source.
fn reply_header(to: &[u8], protocol: u8, payload: usize) -> Option<Vec<u8>> {
    if to.first()? >> 4 == 4 {
        let head: &[u8; 20] = to.first_chunk()?;
        let total = u16::try_from(20 + payload).ok()?.to_be_bytes();
        let mut out = vec![0x45, 0, total[0], total[1], 0, 0, 0x40, 0, TTL, protocol, 0, 0];
        out.extend_from_slice(&head[16..20]);
        out.extend_from_slice(&head[12..16]);
        let sum = internet_sum(&[&out]);
        out[10..12].copy_from_slice(&sum.to_be_bytes());
        Some(out)
    } else {
        let head: &[u8; 40] = to.first_chunk()?;
        let len = u16::try_from(payload).ok()?.to_be_bytes();
        let mut out = vec![0x60, 0, 0, 0, len[0], len[1], protocol, TTL];
        out.extend_from_slice(&head[24..40]);
        out.extend_from_slice(&head[8..24]);
        Some(out)
    }
}

/// The pseudo-header of a checksum: both addresses, the length and the protocol.
fn pseudo_header(head: &[u8], protocol: u8, payload: usize) -> Vec<u8> {
    let addresses = if head.len() == 20 { &head[12..] } else { &head[8..] };
    let mut out = addresses.to_vec();
    out.extend_from_slice(&(payload as u32).to_be_bytes());
    out.extend_from_slice(&[0, 0, 0, protocol]);
    out
}

fn reset(syn: &[u8]) -> Option<Vec<u8>> {
    let (start, end) = match syn.first()? >> 4 {
        4 => {
            let total = u16::from_be_bytes([*syn.get(2)?, *syn.get(3)?]);
            (usize::from(syn[0] & 15) * 4, usize::from(total))
        }
        _ => (40, 40 + usize::from(u16::from_be_bytes([*syn.get(4)?, *syn.get(5)?]))),
    };
    let tcp = syn.get(start..end)?;
    let head: &[u8; 20] = tcp.first_chunk()?;
    let data = tcp.len().checked_sub(usize::from(head[12] >> 4) * 4)?;
    let sequence = u32::from_be_bytes([head[4], head[5], head[6], head[7]]);
    let acknowledged = sequence.wrapping_add(1).wrapping_add(data as u32);
    let mut out = reply_header(syn, 6, 20)?;
    let at = out.len();
    out.extend_from_slice(&[head[2], head[3], head[0], head[1], 0, 0, 0, 0]);
    out.extend_from_slice(&acknowledged.to_be_bytes());
    out.extend_from_slice(&[0x50, 0x14, 0, 0, 0, 0, 0, 0]); // RST and ACK
    let sum = internet_sum(&[&pseudo_header(&out[..at], 6, 20), &out[at..]]);
    out[at + 16..at + 18].copy_from_slice(&sum.to_be_bytes());
    Some(out)
}

fn icmp(syn: &[u8], code: u8) -> Option<Vec<u8>> {
    let quoted = &syn[..syn.len().min(MOST_V4 - 28)];
    let mut out = reply_header(syn, 1, 8 + quoted.len())?;
    out.extend_from_slice(&[3, code, 0, 0, 0, 0, 0, 0]);
    out.extend_from_slice(quoted);
    let sum = internet_sum(&[&out[20..]]);
    out[22..24].copy_from_slice(&sum.to_be_bytes());
    Some(out)
}

fn icmpv6(syn: &[u8], code: u8) -> Option<Vec<u8>> {
    let quoted = &syn[..syn.len().min(MOST_V6 - 48)];
    let payload = 8 + quoted.len();
    let mut out = reply_header(syn, 58, payload)?;
    out.extend_from_slice(&[1, code, 0, 0, 0, 0, 0, 0]);
    out.extend_from_slice(quoted);
    let sum = internet_sum(&[&pseudo_header(&out[..40], 58, payload), &out[40..]]);
    out[42..44].copy_from_slice(&sum.to_be_bytes());
    Some(out)
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use proptest::prelude::*;

    use super::*;
    use crate::packet::{Packet, syn};

    fn pair(v4: bool) -> (SocketAddr, SocketAddr) {
        match v4 {
            true => ("10.1.0.2:40000".parse().unwrap(), "10.2.0.2:80".parse().unwrap()),
            false => ("[fd01::2]:40000".parse().unwrap(), "[fd02::2]:80".parse().unwrap()),
        }
    }

    #[test]
    fn every_reason_is_told_as_the_servers_side_would_have() {
        for v4 in [true, false] {
            let (client, server) = pair(v4);
            let packet = syn(client, server, 77);
            let said = |reason| answer(&packet, reason).map(|a| kind(&a, client, server, &packet));
            assert_eq!(said(ResetReason::Refused), Some((6, 0)));
            assert_eq!(said(ResetReason::Exhausted), Some((6, 0)));
            assert_eq!(said(ResetReason::TimedOut), None);
            assert_eq!(said(ResetReason::ShuttingDown), None);
            let (icmp, own, other) = match v4 {
                true => (1, ResetReason::Icmp as fn(u8) -> _, ResetReason::Icmpv6 as fn(u8) -> _),
                false => (58, ResetReason::Icmpv6 as fn(u8) -> _, ResetReason::Icmp as fn(u8) -> _),
            };
            for code in 0..16 {
                assert_eq!(said(own(code)), Some((icmp, code)));
            }
            let host = if v4 { 1 } else { 3 };
            assert_eq!(said(other(0)), Some((icmp, host)), "of the other family");
            assert_eq!(said(ResetReason::Unreachable), Some((icmp, host)));
            assert_eq!(said(ResetReason::Denied), Some((icmp, if v4 { 13 } else { 1 })));
        }
    }

    /// Checks addresses, checksums and what is quoted; protocol and ICMP code.
    fn kind(answer: &[u8], client: SocketAddr, server: SocketAddr, syn: &[u8]) -> (u8, u8) {
        let packet = Packet::parse(answer).expect("a whole packet");
        assert_eq!((packet.source, packet.destination), (server.ip(), client.ip()));
        let head = if client.is_ipv4() { 20 } else { 40 };
        let protocol = if head == 20 { answer[9] } else { answer[6] };
        if head == 20 {
            assert_eq!(internet_sum(&[&answer[..20]]), 0);
        }
        let body = &answer[head..];
        let pseudo = match protocol {
            1 => vec![],
            _ => pseudo_header(&answer[..head], protocol, body.len()),
        };
        assert_eq!(internet_sum(&[&pseudo, body]), 0);
        if protocol == 6 {
            assert_eq!(body[..4], [0, 80, 0x9c, 0x40], "the ports, the other way");
            assert_eq!(body[8..14], [0, 0, 0, 78, 0x50, 0x14], "it acknowledges the SYN");
            return (protocol, 0);
        }
        assert_eq!(&body[8..], syn, "the whole SYN is quoted");
        assert_eq!(body[0], if protocol == 1 { 3 } else { 1 });
        (protocol, body[1])
    }

    proptest! {
        #[test]
        fn whatever_is_answered_the_answer_is_a_packet(
            mut bytes in prop::collection::vec(any::<u8>(), 0..200), v6: bool, reason in 0u8..16,
        ) {
            if let Some(b) = bytes.first_mut() {
                *b = if v6 { 0x60 } else { 0x45 };
            }
            for reason in [ResetReason::Refused, ResetReason::Icmp(reason), ResetReason::Icmpv6(reason)] {
                if let Some(answer) = answer(&bytes, reason) {
                    prop_assert!(Packet::parse(&answer).is_some());
                }
            }
        }
    }
}
