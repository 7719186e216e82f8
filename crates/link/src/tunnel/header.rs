//! The header of a data packet, and what kind a packet is.
//!
//! ```text
//!  1 ii pp hhh   receiver index (0, 1, 2 or 4)   packet number (1…4)   [ppppp hhh]
//!                sealed frames   tag (16)
//! ```
//!
//! `ii` tells the length of the index (codes 0…3), `pp` that of the packet number less
//! one; `hhh` is a hint for the receiver's frames. The index takes as few bytes as it
//! needs, and 0, which names no index, takes none: such a packet belongs to the only
//! peer of its carrier. A packet of another path than the first has the hint 7 and behind its
//! number a byte with the path's number and its true hint (L-PT-2). All of the header is
//! authenticated as sent (L-PP-1, L-PP-2).

use std::ops::RangeInclusive;

use crate::handshake::{COOKIE_REPLY, INITIATION, RESPONSE, be32};
use crate::path::PathId;
use crate::seal::TAG_LEN;

/// Bytes that a packet costs beyond its frames with the longest header: 1 + 4 + 4 + 1 + 16.
/// With a 2-byte index and number it is 21 on the first path.
pub const MAX_OVERHEAD: usize = 1 + 4 + 4 + 1 + TAG_LEN;
/// The lengths that a packet number may take.
pub const NUMBER_LENS: RangeInclusive<usize> = 1..=4;
/// The largest hint.
pub const MAX_HINT: u8 = 6;

const DATA: u8 = 0x80;
/// The bits of a hint, and the hint that the path and the true hint follow.
const HINT: u8 = 7;
const OTHER_PATH: u8 = 7;

/// What a packet is, by its first bytes: enough to find whom it concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketKind {
    /// A handshake's first message: whose it is, only opening it tells.
    Initiation,
    /// A handshake's second message.
    Response {
        /// The index that our initiation gave.
        receiver: u32,
    },
    /// A request to try again with a cookie.
    CookieReply {
        /// The index that our message gave.
        receiver: u32,
    },
    /// Sealed frames.
    Data {
        /// The index that we gave out for these keys; 0 for "the carrier's only peer".
        receiver: u32,
    },
}

impl PacketKind {
    /// `None` for what cannot be a packet of ours.
    pub fn of(packet: &[u8]) -> Option<PacketKind> {
        let field = |at: usize| packet.get(at..at + 4).map(be32);
        match *packet.first()? {
            INITIATION => Some(PacketKind::Initiation),
            RESPONSE => Some(PacketKind::Response { receiver: field(6)? }),
            COOKIE_REPLY => Some(PacketKind::CookieReply { receiver: field(2)? }),
            _ => Some(PacketKind::Data { receiver: DataHeader::read(packet)?.receiver }),
        }
    }

    /// The index that whom it concerns gave out; an initiation has none.
    pub fn receiver(self) -> Option<u32> {
        match self {
            PacketKind::Initiation => None,
            PacketKind::Response { receiver }
            | PacketKind::CookieReply { receiver }
            | PacketKind::Data { receiver } => Some(receiver),
        }
    }
}

/// A data packet's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DataHeader {
    pub receiver: u32,
    pub path: PathId,
    pub hint: u8,
    /// The low bits of the packet number.
    pub truncated: u32,
    pub number_len: usize,
}

impl DataHeader {
    /// Bytes that the header takes.
    pub const fn len(&self) -> usize {
        header_len(self.receiver, self.path, self.number_len)
    }

    /// Writes the header to the front of `out`.
    pub fn write(&self, out: &mut [u8]) {
        let index_len = index_len(self.receiver);
        let code = if index_len == 4 { 3 } else { index_len as u8 };
        let hint = if self.path.is_first() { self.hint } else { OTHER_PATH };
        out[0] = DATA | code << 5 | (self.number_len as u8 - 1) << 3 | hint;
        let number_end = 1 + index_len + self.number_len;
        put(self.receiver, &mut out[1..1 + index_len]);
        put(self.truncated, &mut out[1 + index_len..number_end]);
        if !self.path.is_first() {
            out[number_end] = self.path.number() << 3 | self.hint;
        }
    }

    /// Reads the header of a packet that is long enough to be one; `None` for what is
    /// not a data packet or wastes bytes on its index (L-PP-2).
    pub fn read(packet: &[u8]) -> Option<DataHeader> {
        let first = *packet.first()?;
        if first & DATA == 0 {
            return None;
        }
        let index_len = [0, 1, 2, 4][usize::from(first >> 5 & 3)];
        let number_len = usize::from(first >> 3 & 3) + 1;
        let (index, rest) = packet[1..].split_at_checked(index_len)?;
        let (number, sealed) = rest.split_at_checked(number_len)?;
        let (path, hint, sealed) = match first & HINT {
            OTHER_PATH => {
                let (byte, sealed) = sealed.split_first()?;
                let path = PathId::new(byte >> 3).filter(|path| !path.is_first())?;
                let hint = Some(byte & HINT).filter(|hint| *hint <= MAX_HINT)?;
                (path, hint, sealed)
            }
            hint => (PathId::FIRST, hint, sealed),
        };
        let receiver = get(index);
        let canonical = self::index_len(receiver) == index_len;
        (canonical && sealed.len() >= TAG_LEN).then(|| DataHeader {
            receiver,
            path,
            hint,
            truncated: get(number),
            number_len,
        })
    }
}

/// Bytes of a header.
pub(crate) const fn header_len(receiver: u32, path: PathId, number_len: usize) -> usize {
    1 + index_len(receiver) + number_len + !path.is_first() as usize
}

/// Bytes that an index takes in a data packet.
pub(crate) const fn index_len(index: u32) -> usize {
    match index {
        0 => 0,
        1..=0xff => 1,
        0x100..=0xffff => 2,
        _ => 4,
    }
}

fn put(value: u32, out: &mut [u8]) {
    let skip = 4 - out.len();
    out.copy_from_slice(&value.to_be_bytes()[skip..]);
}

fn get(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0, |value, byte| value << 8 | u32::from(*byte))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_header_looks_as_drawn() {
        let path = PathId::FIRST;
        let (receiver, number_len) = (0x1234, 3);
        let header = DataHeader { receiver, path, hint: 5, truncated: 0xab_cdef, number_len };
        let mut out = [0; 6];
        header.write(&mut out);
        assert_eq!(out, [0b1101_0101, 0x12, 0x34, 0xab, 0xcd, 0xef]);
        let nameless = DataHeader { receiver: 0, path, hint: 0, truncated: 7, number_len: 1 };
        let mut out = [0; 2];
        nameless.write(&mut out);
        assert_eq!(out, [0b1000_0000, 7]);
        let path = PathId::new(3).expect("a path");
        let other = DataHeader { receiver: 0x12, path, hint: 4, truncated: 7, number_len: 1 };
        let mut out = [0; 4];
        other.write(&mut out);
        assert_eq!(out, [0b1010_0111, 0x12, 7, 0b0001_1100]);
    }

    /// L-PT-2.
    #[test]
    fn a_path_in_another_form_than_its_own_is_no_header() {
        for byte in [0b0000_0000, 0b0000_1000, 0b0001_0111] {
            let mut packet = vec![0b1000_0111, 9, byte];
            packet.extend([0; TAG_LEN]);
            assert_eq!(DataHeader::read(&packet), None, "{byte:b}");
        }
    }

    /// L-PP-2.
    #[test]
    fn an_index_in_more_bytes_than_it_needs_is_no_header() {
        let mut packet = vec![0b1100_0000, 0x00, 0x34, 9];
        packet.extend([0; TAG_LEN]);
        assert_eq!(DataHeader::read(&packet), None);
        packet[1] = 1;
        assert!(DataHeader::read(&packet).is_some());
    }

    proptest! {
        #[test]
        fn a_header_comes_back_as_it_was_written(
            receiver in prop_oneof![Just(0u32), 0u32..0x100, 0u32..0x1_0000, any::<u32>()],
            number in any::<u32>(), number_len in 1usize..=4, hint in 0u8..=MAX_HINT,
            path in prop_oneof![2 => Just(0u8), 1 => 2u8..=31],
        ) {
            let mask = u32::MAX >> (32 - 8 * number_len);
            let path = PathId::new(path).expect("a number of a path");
            let header = DataHeader { receiver, path, hint, truncated: number & mask, number_len };
            let mut packet = vec![0; header.len() + TAG_LEN];
            header.write(&mut packet);
            prop_assert_eq!(DataHeader::read(&packet), Some(header));
            prop_assert_eq!(PacketKind::of(&packet), Some(PacketKind::Data { receiver }));
            for short in 0..packet.len() {
                prop_assert_eq!(DataHeader::read(&packet[..short]), None);
            }
        }

        #[test]
        fn any_bytes_are_judged_without_a_panic(
            packet in prop::collection::vec(any::<u8>(), 0..300)
        ) {
            let _ = PacketKind::of(&packet);
        }
    }
}
