//! What a header is: which protocols it has, how long it is and where its fields are.

use super::{MAX_HEADER, MAX_PACKET};

/// The protocols of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// IP alone: the rest is payload.
    Ip,
    Udp,
    /// RTP over UDP (RFC 3550), with its list of sources.
    Rtp,
    Tcp,
    /// ICMP or ICMPv6 echo.
    Echo,
    /// ESP's index and sequence number (RFC 4303).
    Esp,
}

impl Kind {
    const ALL: [Kind; 6] = [Kind::Ip, Kind::Udp, Kind::Rtp, Kind::Tcp, Kind::Echo, Kind::Esp];

    pub fn from_u8(n: u8) -> Option<Kind> {
        Kind::ALL.get(usize::from(n)).copied()
    }

    pub fn to_u8(self) -> u8 {
        self as u8
    }
}

/// One field that changes from packet to packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Field {
    pub at: u8,
    /// In bytes: 1, 2 or 4.
    pub width: u8,
}

impl Field {
    pub fn get(self, header: &[u8]) -> u32 {
        let (at, width) = (usize::from(self.at), usize::from(self.width));
        header[at..at + width].iter().fold(0, |n, b| n << 8 | u32::from(*b))
    }

    pub fn set(self, header: &mut [u8], value: u32) {
        let (at, width) = (usize::from(self.at), usize::from(self.width));
        header[at..at + width].copy_from_slice(&value.to_be_bytes()[4 - width..]);
    }

    /// `to` less `from`, the shorter way round.
    pub fn difference(self, to: u32, from: u32) -> i32 {
        let bits = 32 - 8 * u32::from(self.width);
        (to.wrapping_sub(from) << bits) as i32 >> bits
    }
}

/// The most fields of a header: seven of TCP with timestamps, three of IPv4.
pub(super) const MAX_FIELDS: usize = 10;

/// Where things are in a header. Those of [`Shape::read`] lie within it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub kind: Kind,
    pub v6: bool,
    /// Bytes of the IP header.
    pub ip: usize,
    /// Bytes of the whole header.
    pub len: usize,
    fields: [Field; MAX_FIELDS],
    count: usize,
    /// IPv4's identification, as an index of `fields`.
    pub id: Option<usize>,
}

pub(super) const UDP: u8 = 17;
pub(super) const TCP: u8 = 6;
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;
const ESP: u8 = 50;

/// What a packet may be, from its IP header: its protocol and where that starts. `None` for
/// what is no whole packet, is a fragment, or has no right IPv4 checksum.
pub(super) fn protocol(packet: &[u8]) -> Option<(u8, usize)> {
    if packet.len() > MAX_PACKET {
        return None;
    }
    match packet.first()? >> 4 {
        4 => {
            let head: &[u8; 20] = packet.first_chunk()?;
            let ip = usize::from(head[0] & 15) * 4;
            let is_whole = usize::from(u16::from_be_bytes([head[2], head[3]])) == packet.len();
            // More fragments, or an offset.
            let is_fragment = u16::from_be_bytes([head[6], head[7]]) & 0x3fff != 0;
            (ip >= 20 && packet.len() >= ip && is_whole && !is_fragment).then_some((head[9], ip))
        }
        6 => {
            let head: &[u8; 40] = packet.first_chunk()?;
            let is_whole = 40 + usize::from(u16::from_be_bytes([head[4], head[5]])) == packet.len();
            is_whole.then_some((head[6], 40))
        }
        _ => None,
    }
}

impl Shape {
    /// The shape of a packet's header. RTP is not told from other UDP.
    pub fn of(packet: &[u8]) -> Option<Shape> {
        let (protocol, at) = protocol(packet)?;
        let kind = match protocol {
            UDP => Kind::Udp,
            TCP => Kind::Tcp,
            ICMP | ICMPV6 => Kind::Echo,
            ESP => Kind::Esp,
            _ => Kind::Ip,
        };
        // What is cut short or not an echo is IP.
        Shape::read(packet, kind).or_else(|| Shape::read(packet, Kind::Ip)).filter(|s| s.ip == at)
    }

    /// The shape of the packet's header as one of `kind`; `None` if it cannot be one.
    pub fn read(packet: &[u8], kind: Kind) -> Option<Shape> {
        let v6 = packet.first()? >> 4 == 6;
        let ip = if v6 { 40 } else { usize::from(packet[0] & 15) * 4 };
        if ip < 20 || packet.len() < ip || !v6 && packet[0] >> 4 != 4 {
            return None;
        }
        let protocol = packet[if v6 { 6 } else { 9 }];
        let rest = &packet[ip..];
        let fixed = |of: u8, len: usize| (protocol == of).then_some(len);
        let transport = match kind {
            Kind::Ip => 0,
            Kind::Udp => fixed(UDP, 8)?,
            Kind::Rtp => fixed(UDP, 8)? + 12 + 4 * usize::from(rest.get(8)? & 15),
            Kind::Tcp => fixed(TCP, usize::from(rest.get(12)? >> 4) * 4).filter(|n| *n >= 20)?,
            Kind::Echo => {
                let types = if v6 { [128, 129] } else { [8, 0] };
                let is_echo = types.contains(rest.first()?);
                fixed(if v6 { ICMPV6 } else { ICMP }, 8).filter(|_| is_echo)?
            }
            Kind::Esp => fixed(ESP, 8)?,
        };
        let len = ip + transport;
        if len > MAX_HEADER || packet.len() < len {
            return None;
        }
        let mut shape = Shape { kind, v6, ip, len, fields: Default::default(), count: 0, id: None };
        shape.find_fields(&packet[..len]);
        Some(shape)
    }

    fn find_fields(&mut self, header: &[u8]) {
        let ip = self.ip;
        // What changes most comes first: seven of them fit one byte of a mask.
        match self.kind {
            Kind::Ip | Kind::Udp => {}
            // Sequence number; time; mark and payload type.
            Kind::Rtp => self.add(&[(ip + 10, 2), (ip + 12, 4), (ip + 9, 1)]),
            Kind::Tcp => {
                // Sequence number, acknowledgement, flags, window.
                self.add(&[(ip + 4, 4), (ip + 8, 4), (ip + 13, 1), (ip + 14, 2)]);
                if let Some(at) = timestamps(&header[ip..]) {
                    self.add(&[(ip + at, 4), (ip + at + 4, 4)]);
                }
            }
            Kind::Echo => self.add(&[(ip + 6, 2)]),
            Kind::Esp => self.add(&[(ip + 4, 4)]),
        }
        if self.v6 {
            // Class and flow label with the version; hop limit.
            self.add(&[(0, 4), (7, 1)]);
        } else {
            self.id = Some(self.count);
            // Identification, class, time to live.
            self.add(&[(4, 2), (1, 1), (8, 1)]);
        }
    }

    fn add(&mut self, fields: &[(usize, u8)]) {
        for (at, width) in fields {
            self.fields[self.count] = Field { at: *at as u8, width: *width };
            self.count += 1;
        }
    }

    pub fn fields(&self) -> &[Field] {
        &self.fields[..self.count]
    }

    /// The field that counts packets, where the protocol has one: the first.
    pub fn counts(&self) -> bool {
        matches!(self.kind, Kind::Rtp | Kind::Echo | Kind::Esp)
    }

    /// Where the transport's checksum is.
    pub fn checksum(&self) -> Option<usize> {
        match self.kind {
            Kind::Udp | Kind::Rtp => Some(self.ip + 6),
            Kind::Tcp => Some(self.ip + 16),
            Kind::Echo => Some(self.ip + 2),
            Kind::Ip | Kind::Esp => None,
        }
    }

    /// Where UDP's length is.
    pub fn udp_length(&self) -> Option<usize> {
        matches!(self.kind, Kind::Udp | Kind::Rtp).then_some(self.ip + 4)
    }
}

/// Where in a TCP header the values of its timestamps are (RFC 7323).
fn timestamps(tcp: &[u8]) -> Option<usize> {
    let mut at = 20;
    while let Some(kind) = tcp.get(at) {
        match kind {
            0 => return None,
            1 => at += 1,
            8 if tcp.get(at + 1) == Some(&10) && at + 10 <= tcp.len() => return Some(at + 2),
            _ => at += usize::from(*tcp.get(at + 1)?).max(2),
        }
    }
    None
}

/// The bytes that tell flows apart: addresses, ports and the like, as many as fit.
pub(super) type Key = [u8; 46];

impl Shape {
    /// What tells the packet's flow from others.
    pub fn key(&self, header: &[u8]) -> Key {
        let mut key = [0; 46];
        let addresses = if self.v6 { &header[8..40] } else { &header[12..20] };
        key[0] = self.kind.to_u8() << 1 | u8::from(self.v6);
        key[1] = header[if self.v6 { 6 } else { 9 }];
        key[2..2 + addresses.len()].copy_from_slice(addresses);
        let ip = self.ip;
        let names = match self.kind {
            Kind::Ip => ip..ip,
            Kind::Udp | Kind::Rtp | Kind::Tcp | Kind::Esp => ip..ip + 4,
            Kind::Echo => ip + 4..ip + 6,
        };
        key[34..34 + names.len()].copy_from_slice(&header[names]);
        match self.kind {
            // A source is a flow of its own.
            Kind::Rtp => key[38..42].copy_from_slice(&header[ip + 16..ip + 20]),
            Kind::Echo => key[38] = header[ip],
            _ => {}
        }
        key
    }
}

/// May a UDP packet be RTP? Version 2, and not a type that RTCP has (RFC 7983, RFC 5761).
pub(super) fn may_be_rtp(packet: &[u8], udp: &Shape) -> bool {
    let payload = &packet[udp.len..];
    payload.len() >= 12 && payload[0] >> 6 == 2 && !(192..224).contains(&payload[1])
}
