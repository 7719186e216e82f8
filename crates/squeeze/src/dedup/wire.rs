//! Items in streams, and messages (spec/link.md, "Deduplication").
//!
//! ```text
//! item     n × 4 + kind (varint) …
//! kind 0   literal: n bytes (1 … 32,768) of a chunk that goes on
//! kind 1   chunk: name (varint) ‖ n bytes (1 … 32,768) that end a chunk
//! kind 2   references: distance (zigzag varint) ‖ n tags (1 … 16) of 8 bytes
//! kind 3   n = 0: all that follows is content as it is
//! name     0: not to be kept; else zigzag(number − last) + 1
//!
//! message  kind 1 …
//! 1 STORE  epoch 8 ‖ next (varint) ‖ ranges held: all that there is
//! 2 NEWS   epoch 8 ‖ ranges held ‖ ranges gone
//! 3 WANT   numbers (varints)
//! 4 BYTES  number (varint) ‖ content of the chunk
//! ranges   count ‖ { distance to the end of the one before ‖ length − 1 }  (varints)
//! ```

use units::varint;

use super::chunker::MAX_CHUNK;
use super::keys::{TAG, Tag};

/// The most chunks that one item refers to.
pub(super) const MAX_REFERENCES: usize = 16;
/// The longest head: two varints.
const MAX_HEAD: usize = 18;
/// The longest item but for the bytes of literals and chunks.
pub(super) const MAX_ITEM: usize = MAX_HEAD + MAX_REFERENCES * TAG;
/// Numbers of chunks are 1 … this.
pub(super) const MAX_NUMBER: u64 = 1 << 48;
/// The most ranges, and numbers wanted, that one message has.
pub(super) const MAX_RANGES: usize = 512;
pub(super) const MAX_WANTED: usize = 64;

/// The longest message: a chunk and its number, or the most ranges that there are, twice.
pub const MAX_MESSAGE: usize = 36 * 1024;
/// What a direction begins with that goes as it is (L-DD-1).
pub const PLAIN: [u8; 1] = [3];

/// What the head of an item says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Item {
    Literal(usize),
    Chunk { number: Option<u64>, len: usize },
    References { first: u64, count: usize },
    Rest,
}

/// Appends a varint of the link's (spec/link.md, "Frames").
pub(super) fn put_varint(n: u64, out: &mut Vec<u8>) {
    let mut bytes = [0; varint::MAX_LEN];
    let len = varint::put(n, &mut bytes);
    out.extend_from_slice(&bytes[..len]);
}

fn zigzag(n: i64) -> u64 {
    (n << 1 ^ n >> 63) as u64
}

fn unzigzag(n: u64) -> i64 {
    (n >> 1) as i64 ^ -((n & 1) as i64)
}

/// Takes numbers off the front; `None` where the bytes have run out.
#[derive(Clone, Copy)]
pub(super) struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    pub fn bytes(&mut self, n: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(bytes)
    }

    pub fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?.try_into().ok()
    }

    pub fn varint(&mut self) -> Option<u64> {
        let (n, len) = varint::take(self.0)?;
        self.0 = &self.0[len..];
        Some(n)
    }

    fn ranges(&mut self) -> Option<Vec<(u64, u64)>> {
        let count = self.varint().filter(|n| *n <= MAX_RANGES as u64)?;
        let mut end = 0_u64;
        let mut ranges = Vec::new();
        for _ in 0..count {
            let first = end.checked_add(self.varint()?)?;
            let last = first.checked_add(self.varint()?).filter(|n| *n <= MAX_NUMBER)?;
            ranges.push((first, last));
            end = last + 1;
        }
        Some(ranges)
    }
}

impl Item {
    /// Appends the head; `last` is the number that the direction named last.
    pub fn write(self, last: u64, out: &mut Vec<u8>) {
        let mut head = |n: usize, kind: u64| put_varint((n as u64) << 2 | kind, out);
        let distance = |number: u64| zigzag(number as i64 - last as i64);
        match self {
            Item::Literal(n) => head(n, 0),
            Item::Chunk { number, len } => {
                head(len, 1);
                put_varint(number.map_or(0, |n| distance(n) + 1), out);
            }
            Item::References { first, count } => {
                head(count, 2);
                put_varint(distance(first), out);
            }
            Item::Rest => head(0, 3),
        }
    }

    /// Reads a head with its length; `Ok(None)` if it is not all there.
    pub fn read(bytes: &[u8], last: u64) -> Result<Option<(Item, usize)>, ()> {
        let mut reader = Reader(bytes);
        let number = |distance: u64| {
            let number = (last as i64).checked_add(unzigzag(distance)).ok_or(())?;
            u64::try_from(number).ok().filter(|n| (1..=MAX_NUMBER).contains(n)).ok_or(())
        };
        let Some(v) = reader.varint() else { return Ok(None) };
        let (kind, n) = (v & 3, (v >> 2) as usize);
        let most = [MAX_CHUNK, MAX_CHUNK, MAX_REFERENCES, 0][kind as usize];
        if n > most || n == 0 && kind < 3 {
            return Err(());
        }
        let item = match kind {
            0 => Item::Literal(n),
            3 => Item::Rest,
            _ => match (kind, reader.varint()) {
                (_, None) => return Ok(None),
                (1, Some(0)) => Item::Chunk { number: None, len: n },
                (1, Some(name)) => Item::Chunk { number: Some(number(name - 1)?), len: n },
                (_, Some(distance)) => {
                    let first = number(distance)?;
                    if first + n as u64 > MAX_NUMBER {
                        return Err(());
                    }
                    Item::References { first, count: n }
                }
            },
        };
        Ok(Some((item, bytes.len() - reader.0.len())))
    }
}

/// What sender and receiver tell each other beside the streams.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Message<'a> {
    /// All that the receiver holds, newest at the end; `next` is above all numbers it knows.
    Store { epoch: u64, next: u64, held: Vec<(u64, u64)> },
    /// What it holds now, and what it holds no more.
    News { epoch: u64, held: Vec<(u64, u64)>, gone: Vec<(u64, u64)> },
    /// What was referred to and is not there.
    Want(Vec<u64>),
    /// What was wanted.
    Bytes { number: u64, content: &'a [u8] },
}

impl<'a> Message<'a> {
    pub fn write(&self, out: &mut Vec<u8>) {
        match self {
            Message::Store { epoch, next, held } => {
                out.push(1);
                out.extend_from_slice(&epoch.to_be_bytes());
                put_varint(*next, out);
                put_ranges(held, out);
            }
            Message::News { epoch, held, gone } => {
                out.push(2);
                out.extend_from_slice(&epoch.to_be_bytes());
                put_ranges(held, out);
                put_ranges(gone, out);
            }
            Message::Want(numbers) => {
                out.push(3);
                numbers.iter().for_each(|n| put_varint(*n, out));
            }
            Message::Bytes { number, content } => {
                out.push(4);
                put_varint(*number, out);
                out.extend_from_slice(content);
            }
        }
    }

    /// Reads a message; `None` if it is malformed.
    pub fn read(bytes: &'a [u8]) -> Option<Message<'a>> {
        let mut reader = Reader(bytes);
        let [kind] = reader.array()?;
        let message = match kind {
            1 => Message::Store {
                epoch: u64::from_be_bytes(reader.array()?),
                next: reader.varint().filter(|n| *n <= MAX_NUMBER + 1)?,
                held: reader.ranges()?,
            },
            2 => Message::News {
                epoch: u64::from_be_bytes(reader.array()?),
                held: reader.ranges()?,
                gone: reader.ranges()?,
            },
            3 => {
                let mut numbers = Vec::new();
                while !reader.0.is_empty() && numbers.len() < MAX_WANTED {
                    numbers.push(reader.varint()?);
                }
                Message::Want(numbers)
            }
            4 => {
                let number = reader.varint()?;
                let content = reader.bytes(reader.0.len())?;
                if content.is_empty() || content.len() > MAX_CHUNK {
                    return None;
                }
                Message::Bytes { number, content }
            }
            _ => return None,
        };
        reader.0.is_empty().then_some(message)
    }
}

fn put_ranges(ranges: &[(u64, u64)], out: &mut Vec<u8>) {
    put_varint(ranges.len() as u64, out);
    let mut end = 0;
    for (first, last) in ranges {
        put_varint(first - end, out);
        put_varint(last - first, out);
        end = last + 1;
    }
}

/// Numbers in ascending order as ranges.
pub(super) fn ranges(numbers: impl Iterator<Item = u64>) -> Vec<(u64, u64)> {
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for n in numbers {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == n => *last = n,
            _ => ranges.push((n, n)),
        }
    }
    ranges
}

/// A tag out of an item.
pub(super) fn tag_at(tags: &[u8], n: usize) -> Tag {
    tags[n * TAG..][..TAG].try_into().expect("the length of a tag")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_read_as_they_were_written_and_a_cut_one_waits() {
        let items = [
            (Item::Literal(1), 1),
            (Item::Literal(MAX_CHUNK), 3),
            (Item::Chunk { number: Some(1001), len: 8192 }, 4),
            (Item::Chunk { number: Some(1), len: 8192 }, 5),
            (Item::Chunk { number: None, len: 10 }, 2),
            (Item::References { first: 1001, count: 16 }, 2),
            (Item::References { first: MAX_NUMBER - 16, count: 16 }, 8),
            (Item::Rest, 1),
        ];
        for (item, len) in items {
            let mut bytes = Vec::new();
            item.write(1000, &mut bytes);
            assert_eq!(bytes.len(), len, "{item:?}");
            assert_eq!(Item::read(&bytes, 1000), Ok(Some((item, len))));
            for cut in 0..len {
                assert_eq!(Item::read(&bytes[..cut], 1000), Ok(None), "{item:?}");
            }
        }
        for bad in [&[0][..], &[2, 2], &[7], &[0x80 | 0x01, 0x06], &[6, 1], &[0xc2, 0x00, 0x04]] {
            assert_eq!(Item::read(bad, 1), Err(()), "{bad:x?}");
        }
    }

    #[test]
    fn messages_read_as_they_were_written_and_malformed_ones_not_at_all() {
        let messages = [
            Message::Store { epoch: 5, next: 77, held: vec![(1, 1), (3, 70)] },
            Message::News { epoch: u64::MAX, held: vec![], gone: vec![(2, MAX_NUMBER)] },
            Message::Want(vec![1, 200, 70_000]),
            Message::Bytes { number: 9, content: b"content" },
        ];
        for message in messages {
            let mut bytes = Vec::new();
            message.write(&mut bytes);
            assert_eq!(Message::read(&bytes), Some(message));
        }
        for bad in [&b""[..], &[0], &[1, 0, 0], &[4, 1], &[2, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0]] {
            assert_eq!(Message::read(bad), None, "{bad:x?}");
        }
    }
}
