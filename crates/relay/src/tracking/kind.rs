//! What an IP packet is to the connection tracking: of which flow, an error about one, or a
//! later fragment.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::packet::{TCP, UDP};

/// Protocol numbers.
pub(super) const ICMP: u8 = 1;
pub(super) const ICMPV6: u8 = 58;
const UDP_LITE: u8 = 136;
const DCCP: u8 = 33;
const SCTP: u8 = 132;
/// IPv6 extension headers (RFC 8200, section 4; RFC 4302).
const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const AUTHENTICATION: u8 = 51;
const DESTINATION_OPTIONS: u8 = 60;
/// Extension headers beyond these are not looked through.
const MOST_EXTENSIONS: usize = 8;
/// Where a TCP header has its flags.
const FLAGS: usize = 13;
/// TCP's flags.
const FIN: u8 = 0x01;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const ACK: u8 = 0x10;

/// A packet's addresses and where its upper layer begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Upper {
    pub source: IpAddr,
    pub destination: IpAddr,
    pub protocol: u8,
    at: usize,
    later_fragment: bool,
}

/// Which direction of a flow a packet is, by its addresses, protocol and ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tuple {
    pub source: IpAddr,
    pub destination: IpAddr,
    pub protocol: u8,
    /// Source and destination port. ICMP queries have their identifier and the query's type,
    /// their answers the same the other way round; other protocols have none.
    pub ports: (u16, u16),
}

/// What a packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A packet of a flow.
    Flow(Tuple, Role),
    /// An ICMP error about a packet of this flow, which went from the error's receiver.
    Error(Tuple),
    /// An ICMP error about a packet whose flow cannot be seen.
    BlindError,
    /// A fragment without the ports.
    LaterFragment,
    /// Nothing that has an answer, or nothing that can be read.
    Other,
}

/// What a packet means for its flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// It asks: it begins a flow, and answers none.
    Asks,
    /// It answers: it begins none.
    Answers,
    /// TCP that opens a connection.
    Opens,
    /// TCP that ends a direction.
    Ends,
    /// TCP that ends the connection.
    Resets,
    /// Either: protocols that do not tell.
    Either,
}

impl Upper {
    /// Reads the headers of a packet, or of as much of one as an error quotes.
    pub fn of(bytes: &[u8]) -> Option<Upper> {
        match bytes.first()? >> 4 {
            4 => Upper::of_v4(bytes),
            6 => Upper::of_v6(bytes),
            _ => None,
        }
    }

    fn of_v4(bytes: &[u8]) -> Option<Upper> {
        let head: &[u8; 20] = bytes.first_chunk()?;
        let address = |at: usize| {
            IpAddr::V4(Ipv4Addr::new(head[at], head[at + 1], head[at + 2], head[at + 3]))
        };
        Some(Upper {
            source: address(12),
            destination: address(16),
            protocol: head[9],
            at: (usize::from(head[0] & 15) * 4).max(20),
            later_fragment: u16::from_be_bytes([head[6], head[7]]) & 0x1fff != 0,
        })
    }

    fn of_v6(bytes: &[u8]) -> Option<Upper> {
        let head: &[u8; 40] = bytes.first_chunk()?;
        let address = |at: usize| -> Option<IpAddr> {
            let octets: [u8; 16] = head[at..at + 16].try_into().ok()?;
            Some(IpAddr::V6(Ipv6Addr::from(octets)))
        };
        let (mut protocol, mut at, mut later_fragment) = (head[6], 40, false);
        for _ in 0..MOST_EXTENSIONS {
            let Some(&[next, len, offset, more, ..]) = bytes.get(at..) else { break };
            at += match protocol {
                HOP_BY_HOP | ROUTING | DESTINATION_OPTIONS => (usize::from(len) + 1) * 8,
                AUTHENTICATION => (usize::from(len) + 2) * 4,
                FRAGMENT => {
                    later_fragment = u16::from_be_bytes([offset, more]) >> 3 != 0;
                    8
                }
                _ => break,
            };
            protocol = next;
            if later_fragment {
                break;
            }
        }
        let (source, destination) = (address(8)?, address(24)?);
        Some(Upper { source, destination, protocol, at, later_fragment })
    }

    /// Does the packet open a TCP connection? One whose flags cannot be seen, because they are in
    /// another fragment or behind more headers than are read, might.
    pub fn opens_tcp(&self, bytes: &[u8]) -> bool {
        let is_hidden = matches!(
            self.protocol,
            HOP_BY_HOP | ROUTING | DESTINATION_OPTIONS | AUTHENTICATION | FRAGMENT
        );
        let flags = self.payload(bytes).get(FLAGS).map(|flags| flags & (SYN | ACK));
        let is_tcp = self.protocol == TCP && !self.later_fragment;
        is_hidden && !self.later_fragment || is_tcp && flags.is_none_or(|flags| flags == SYN)
    }

    /// Is the packet the answer to one that opened a TCP connection?
    pub fn accepts_tcp(&self, bytes: &[u8]) -> bool {
        let flags = self.payload(bytes).get(FLAGS).map(|flags| flags & (SYN | ACK));
        self.protocol == TCP && !self.later_fragment && flags == Some(SYN | ACK)
    }

    /// The bytes behind the IP headers.
    fn payload<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        bytes.get(self.at..).unwrap_or_default()
    }

    fn tuple(&self, ports: (u16, u16)) -> Tuple {
        let Upper { source, destination, protocol, .. } = *self;
        Tuple { source, destination, protocol, ports }
    }

    fn is_icmp(&self) -> bool {
        self.protocol == if self.source.is_ipv4() { ICMP } else { ICMPV6 }
    }

    /// What the packet is.
    pub fn kind(&self, bytes: &[u8]) -> Kind {
        let payload = self.payload(bytes);
        if self.later_fragment {
            return Kind::LaterFragment;
        }
        if self.is_icmp() && self.is_icmp_error(bytes) {
            return self.error(payload);
        }
        self.flow(payload).map_or(Kind::Other, |(tuple, role)| Kind::Flow(tuple, role))
    }

    /// Is it ICMP, and no query or answer to one? To such a thing no error is sent (RFC 1122,
    /// section 3.2.2; RFC 4443, section 2.4).
    pub fn is_icmp_error(&self, bytes: &[u8]) -> bool {
        self.is_icmp()
            && self.payload(bytes).first().is_none_or(|kind| match self.source {
                // Echo, router discovery, timestamp, information and mask; and their answers.
                IpAddr::V4(_) => !matches!(kind, 0 | 8..=10 | 13..=18),
                IpAddr::V6(_) => *kind < 128,
            })
    }

    fn error(&self, payload: &[u8]) -> Kind {
        let quoted = payload.get(8..).unwrap_or_default();
        let told = match (self.source, payload.first()) {
            // Unreachable, time exceeded, parameter problem.
            (IpAddr::V4(_), Some(3 | 11 | 12)) | (IpAddr::V6(_), Some(1..=4)) => Upper::of(quoted),
            _ => None,
        };
        // The packet it is about must be one of its receiver's.
        let Some(told) = told.filter(|told| told.source == self.destination) else {
            return Kind::BlindError;
        };
        match told.flow(told.payload(quoted)) {
            Some((tuple, _)) if !told.later_fragment => Kind::Error(tuple),
            _ => Kind::BlindError,
        }
    }

    fn flow(&self, payload: &[u8]) -> Option<(Tuple, Role)> {
        let word = |at: usize| Some(u16::from_be_bytes([*payload.get(at)?, *payload.get(at + 1)?]));
        match self.protocol {
            TCP => {
                // An error may quote no more than the ports.
                let role = payload.get(13).map_or(Role::Either, |flags| tcp_role(*flags));
                Some((self.tuple((word(0)?, word(2)?)), role))
            }
            UDP | UDP_LITE | DCCP | SCTP => Some((self.tuple((word(0)?, word(2)?)), Role::Either)),
            ICMP | ICMPV6 if self.is_icmp() => {
                let (id, kind) = (word(4)?, *payload.first()?);
                match (self.source, kind) {
                    (IpAddr::V4(_), 8 | 13) | (IpAddr::V6(_), 128) => {
                        Some((self.tuple((id, kind.into())), Role::Asks))
                    }
                    (IpAddr::V4(_), 0) => Some((self.tuple((8, id)), Role::Answers)),
                    (IpAddr::V4(_), 14) => Some((self.tuple((13, id)), Role::Answers)),
                    (IpAddr::V6(_), 129) => Some((self.tuple((128, id)), Role::Answers)),
                    _ => None,
                }
            }
            _ => Some((self.tuple((0, 0)), Role::Either)),
        }
    }
}

fn tcp_role(flags: u8) -> Role {
    match flags {
        f if f & RST != 0 => Role::Resets,
        f if f & (SYN | ACK) == SYN => Role::Opens,
        f if f & SYN != 0 => Role::Answers,
        f if f & FIN != 0 => Role::Ends,
        _ => Role::Either,
    }
}
