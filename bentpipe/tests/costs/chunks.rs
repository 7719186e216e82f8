//! The worst that deduplication's items and messages can say.

use link::session::LinkConfig;
use link::wire::Frame;

use super::{Attack, begin, data, id, link, open, push_varint, put, reset, uncoded};
use crate::node::PACKET;

fn chunks() -> LinkConfig {
    LinkConfig { dedup: true, ..uncoded() }
}

fn packed() -> LinkConfig {
    LinkConfig { dedup: true, ..link() }
}

const fn attack(name: &'static str, write: super::Write) -> Attack {
    Attack { name, config: chunks, prepare: |_| {}, write }
}

pub const ALL: &[Attack] = &[
    attack("DEDUP, missing chunks", |_, n, out| {
        // Sixteen of each stream, which are asked for; the streams end before an answer.
        for i in (0..).map(|i| n * 8 + i).take(8) {
            put(out, &open(i));
            data(out, i, 0, &references(i * 16 + 1, 16, i));
            if let Some(old) = i.checked_sub(400) {
                put(out, &reset(old, 0));
            }
        }
        0
    }),
    attack("DEDUP, missing, all wait", |_, n, out| {
        for i in (0..).map(|i| n * 8 + i).take(8) {
            put(out, &open(i));
            data(out, i, 0, &references(1 + i % 3, 16, i));
        }
        0
    }),
    attack("DEDUP, chunks of a byte", |_, n, out| {
        begin(out, n);
        // The next number, and each chunk another.
        items(out, n, 3, |i| [1 << 2 | 1, 3, (n + i) as u8])
    }),
    attack("DEDUP, one number for all", |_, n, out| {
        begin(out, n);
        items(out, n, 3, |i| [1 << 2 | 1, if n + i == 0 { 3 } else { 1 }, (n + i) as u8])
    }),
    attack("DEDUP, chunks without names", |_, n, out| {
        begin(out, n);
        items(out, n, 3, |i| [1 << 2 | 1, 0, i as u8])
    }),
    attack("DEDUP, literals of a byte", |_, n, out| {
        begin(out, n);
        items(out, n, 2, |i| [1 << 2, i as u8])
    }),
    attack("DEDUP, behind a missing one", |_, n, out| {
        // The stream waits for a chunk, and each packet has it looked at again.
        begin(out, n);
        let (missing, literals) = (references(1, 1, 1), [1 << 2, b'x'].repeat(420));
        let at = |n: u64| missing.len() as u64 + n * literals.len() as u64;
        match n {
            0 => data(out, 0, 0, &missing),
            1..=100 => data(out, 0, at(n - 1), &literals),
            _ => (0..150).for_each(|_| data(out, 0, at(100), &[])),
        }
        0
    }),
    Attack {
        name: "DEDUP, empty blocks",
        config: packed,
        prepare: |_| {},
        write: |_, n, out| super::coded(out, n, &[0x00, 0x10, 0x04, 0x78]),
    },
    attack("DEDUP, STORE", |_, n, out| messages(out, n, |i| store(n * 4 + i, 300))),
    attack("DEDUP, NEWS", |_, n, out| match n {
        0 => messages(out, n, |_| store(7, 400)),
        _ => messages(out, n, |i| {
            let mut message = vec![2];
            message.extend_from_slice(&7_u64.to_be_bytes());
            for _ in 0..2 {
                ranges(&mut message, 150, n % 50 + i);
            }
            message
        }),
    }),
    attack("DEDUP, WANT", |_, n, out| {
        messages(out, n, |i| {
            let mut message = vec![3];
            (0..64).for_each(|k| push_varint(&mut message, (n * 31 + i * 64 + k) % 16_000));
            message
        })
    }),
    attack("DEDUP, BYTES of nothing", |_, n, out| {
        messages(out, n, |i| {
            let mut message = vec![4];
            push_varint(&mut message, n * 300 + i + 1);
            message.push(b'x');
            message
        })
    }),
    attack("DEDUP, no message at all", |_, n, out| messages(out, n, |_| vec![9])),
];

/// Those that say messages: nearly each of their packets is to bring one to the code that reads
/// them.
pub const MESSAGES: [&str; 5] = [
    "DEDUP, STORE",
    "DEDUP, NEWS",
    "DEDUP, WANT",
    "DEDUP, BYTES of nothing",
    "DEDUP, no message at all",
];

/// References to so many chunks from the first of them on, in the first item of a direction.
fn references(first: u64, count: u64, seed: u64) -> Vec<u8> {
    let mut item = Vec::new();
    push_varint(&mut item, count << 2 | 2);
    push_varint(&mut item, first << 1);
    for k in 0..count {
        item.extend_from_slice(&(seed * 31 + k + 1).to_be_bytes());
    }
    item
}

/// The next bytes of stream 0: 420 items of `len` bytes each.
fn items<const N: usize>(out: &mut Vec<u8>, n: u64, len: u64, item: impl Fn(u64) -> [u8; N]) -> u8 {
    let bytes: Vec<u8> = (0..420).flat_map(item).collect();
    data(out, 0, n * 420 * len, &bytes);
    0
}

fn store(epoch: u64, count: u64) -> Vec<u8> {
    let mut message = vec![1];
    message.extend_from_slice(&(epoch + 7).to_be_bytes());
    push_varint(&mut message, 1 << 30);
    ranges(&mut message, count, 1);
    message
}

/// Ranges as far apart as they are short.
fn ranges(message: &mut Vec<u8>, count: u64, from: u64) {
    push_varint(message, count);
    for i in 0..count {
        push_varint(message, if i == 0 { from } else { 1 });
        push_varint(message, 0);
    }
}

/// As many messages as fit; the stream's bytes are as many in every packet.
fn messages(out: &mut Vec<u8>, n: u64, mut message: impl FnMut(u64) -> Vec<u8>) -> u8 {
    const BYTES: usize = PACKET - 40;
    if n == 0 {
        put(out, &Frame::Messages(id(0)));
    }
    let mut bytes = Vec::new();
    for i in 0.. {
        let message = message(i);
        // Room for one more of two bytes at least.
        if bytes.len() + message.len() + 4 > BYTES {
            break;
        }
        push_varint(&mut bytes, message.len() as u64);
        bytes.extend_from_slice(&message);
    }
    // Messages that mean nothing fill the rest, the last of them with two bytes if need be.
    while bytes.len() < BYTES {
        match BYTES - bytes.len() {
            3 => bytes.extend_from_slice(&[2, 9, 9]),
            _ => bytes.extend_from_slice(&[1, 9]),
        }
    }
    assert_eq!(bytes.len(), BYTES);
    data(out, 0, n * BYTES as u64, &bytes);
    0
}
