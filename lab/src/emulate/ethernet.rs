//! What the emulator wants to know of a frame: how long it is for the link, and what
//! kind it is for the statistics.

use std::ops::Range;

use os::port::ETHERNET_HEADER;
use units::ByteCount;

/// What is in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// An IP packet.
    Ip,
    /// ARP, or IPv6 neighbour discovery: the hosts looking for each other.
    Neighbour,
    /// Anything else.
    Other,
}

const ETHERTYPE_IPV4: [u8; 2] = [0x08, 0x00];
const ETHERTYPE_IPV6: [u8; 2] = [0x86, 0xdd];
const ETHERTYPE_ARP: [u8; 2] = [0x08, 0x06];
const ICMPV6: u8 = 58;
/// Router and neighbour solicitation and advertisement, redirect (RFC 4861).
const DISCOVERY: std::ops::RangeInclusive<u8> = 133..=137;

/// The length that counts on the link, and the kind. It is the length that the IP
/// header states, so that Ethernet's padding of short frames costs nothing; where the
/// header says nonsense, and for what is not IP, it is the frame without its Ethernet
/// header.
pub(super) fn classify(frame: &[u8]) -> (ByteCount, Kind) {
    let Some((header, payload)) = frame.split_at_checked(ETHERNET_HEADER) else {
        return (ByteCount(frame.len() as u64), Kind::Other);
    };
    let (stated, kind) = match [header[12], header[13]] {
        ETHERTYPE_IPV4 => (ipv4_length(payload), Kind::Ip),
        ETHERTYPE_IPV6 => (ipv6_length(payload), ipv6_kind(payload)),
        ETHERTYPE_ARP => (None, Kind::Neighbour),
        _ => (None, Kind::Other),
    };
    let plausible = stated.filter(|n| (20..=payload.len()).contains(n));
    (ByteCount(plausible.unwrap_or(payload.len()) as u64), kind)
}

/// Where the bytes that count lie in a frame, for flipping one of them.
pub(super) fn counted_bytes(frame: &[u8]) -> Range<usize> {
    let (len, _) = classify(frame);
    let start = ETHERNET_HEADER.min(frame.len());
    start..(start + len.0 as usize).min(frame.len())
}

fn word(bytes: &[u8], at: usize) -> Option<usize> {
    let pair = bytes.get(at..at + 2)?;
    Some(usize::from(u16::from_be_bytes([pair[0], pair[1]])))
}

fn ipv4_length(packet: &[u8]) -> Option<usize> {
    word(packet, 2)
}

fn ipv6_length(packet: &[u8]) -> Option<usize> {
    word(packet, 4).map(|payload| payload + 40)
}

fn ipv6_kind(packet: &[u8]) -> Kind {
    match (packet.get(6), packet.get(40)) {
        (Some(&ICMPV6), Some(kind)) if DISCOVERY.contains(kind) => Kind::Neighbour,
        _ => Kind::Ip,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(ethertype: [u8; 2], payload: &[u8]) -> Vec<u8> {
        [&[0u8; 12][..], &ethertype, payload].concat()
    }

    #[test]
    fn the_padding_of_a_short_frame_does_not_count() {
        let mut packet = [0u8; 46];
        packet[0] = 0x45;
        packet[3] = 40;
        assert_eq!(classify(&frame(ETHERTYPE_IPV4, &packet)), (ByteCount(40), Kind::Ip));
        assert_eq!(counted_bytes(&frame(ETHERTYPE_IPV4, &packet)), 14..54);
    }

    #[test]
    fn an_ipv6_header_counts_beside_its_payload() {
        let mut packet = [0u8; 100];
        packet[0] = 0x60;
        packet[5] = 24;
        packet[6] = ICMPV6;
        packet[40] = 135;
        assert_eq!(classify(&frame(ETHERTYPE_IPV6, &packet)), (ByteCount(64), Kind::Neighbour));
        packet[40] = 128;
        assert_eq!(classify(&frame(ETHERTYPE_IPV6, &packet)), (ByteCount(64), Kind::Ip));
    }

    #[test]
    fn a_header_that_lies_counts_as_what_is_there() {
        for stated in [0u16, 19, 47, 65_535] {
            let mut packet = [0u8; 46];
            packet[2..4].copy_from_slice(&stated.to_be_bytes());
            assert_eq!(classify(&frame(ETHERTYPE_IPV4, &packet)).0, ByteCount(46));
        }
    }

    #[test]
    fn frames_of_every_length_are_taken() {
        let whole = frame(ETHERTYPE_ARP, &[0; 28]);
        for len in 0..whole.len() {
            let (counted, _) = classify(&whole[..len]);
            assert!(counted.0 <= len as u64);
            assert!(counted_bytes(&whole[..len]).end <= len);
        }
        assert_eq!(classify(&whole), (ByteCount(28), Kind::Neighbour));
    }
}
