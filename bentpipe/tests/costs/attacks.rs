//! The worst that each kind of frame can say.

use link::session::LinkConfig;
use link::wire::{
    FragmentFrame, Frame, LossesSeen, Origin, PathFacts, PathNews, Reader, ResetReason,
    StreamFrame, StreamId, Target, Writer, frame_len,
};
use link::{CarrierName, PathId};
use units::varint;

use crate::node::{Node, PACKET, link};

#[path = "chunks.rs"]
pub mod chunks;

/// A packet's hint, and its frames behind it.
type Write = fn(&mut Node, u64, &mut Vec<u8>) -> u8;

pub struct Attack {
    pub name: &'static str,
    pub config: fn() -> LinkConfig,
    pub prepare: fn(&mut Node),
    pub write: Write,
}

const fn attack(name: &'static str, write: Write) -> Attack {
    Attack { name, config: link, prepare: |_| {}, write }
}

const fn prepared(name: &'static str, prepare: fn(&mut Node), write: Write) -> Attack {
    Attack { name, config: link, prepare, write }
}

fn uncoded() -> LinkConfig {
    LinkConfig { history: units::ByteCount(0), ..link() }
}

/// All that there are.
pub fn all() -> impl Iterator<Item = &'static Attack> {
    FRAMES.iter().chain(chunks::ALL)
}

const FRAMES: &[Attack] = &[
    attack("PING", |_, _, out| fill(out, |_| Frame::Ping)),
    attack("FLOOR", |_, n, out| fill(out, |i| Frame::Floor(n * 300 + i))),
    attack("RECOVERED", |_, n, out| {
        fill(out, |i| {
            Frame::Recovered(LossesSeen { recovered: n + i, gaps: i * 7, missing: n * i })
        })
    }),
    attack("CHALLENGE, RESPONSE", |_, _, out| {
        fill(out, |i| if i % 2 == 0 { Frame::Challenge(i) } else { Frame::Response(i) })
    }),
    prepared("STATE, all is news", have_much_in_flight, |node, n, out| {
        // Every second packet from the newest down, so that there are ever more pieces.
        let span = 1_300;
        let hi = node.marked.saturating_sub(n * (span + 2) % 60_000);
        state(out, hi, hi.min(span), 1, 600)
    }),
    prepared("STATE, towards the middle", have_much_in_flight, |node, n, out| {
        // From both ends at once: what is between is moved for each.
        let (span, all) = (1_198, 64_000);
        let reach = n / 2 * (span + 2) % (all / 2);
        let lowest = node.marked - all;
        match n % 2 {
            0 => state(out, node.marked - reach, span, 1, 600),
            _ => state(out, lowest + reach + span, span, 1, 600),
        }
    }),
    prepared("STATE, all is old", have_much_in_flight, |node, n, out| {
        let hi = node.newest.saturating_sub(n % 7);
        for _ in 0..8 {
            state(out, hi, hi.min(170), 1, 80);
        }
        0
    }),
    prepared("STATE, of single packets", have_much_in_flight, |node, n, out| {
        for i in 0..120 {
            let hi = node.newest.saturating_sub((n * 120 + i) * 2 % 60_000);
            state(out, hi, 0, 1, 1);
        }
        0
    }),
    // Each packet had a byte of one stream: what is acknowledged of it lies in ever more pieces.
    Attack {
        name: "STATE, a stream in pieces",
        config: uncoded,
        prepare: |node| {
            let mut payload = Vec::new();
            put(&mut payload, &open(0));
            node.receive(0, &payload);
            assert_eq!(node.flows.len(), 1);
            have_in_flight(node, 32_000);
            node.pieces = 32_000;
        },
        write: |node, n, out| {
            let (span, all) = (1_198, 31_000);
            let hi = node.marked.saturating_sub(n * (span + 2) % all);
            state(out, hi, hi.min(span), 1, 600)
        },
    },
    prepared("STATE_OF", have_much_in_flight, |node, n, out| {
        let span = 1_300;
        let hi = node.marked.saturating_sub(n * (span + 2) % 60_000);
        report(out, &[0x1b, 0], hi, hi.min(span), 1, 600)
    }),
    attack("PATH", |_, n, out| {
        fill(out, |i| Frame::Path(news(i, n * 300 + i, (n / 3 + i) % 2 == 0)))
    }),
    prepared("PATH, USE", have_much_in_flight, |_, n, out| {
        fill(out, |i| match i % 2 {
            0 => Frame::Path(news(i / 2, n * 300 + i, true)),
            _ => Frame::Use { sequence: n * 300 + i, path: Some(path(i / 2 + n)) },
        })
    }),
    prepared("USE", have_much_in_flight, |_, n, out| {
        fill(out, |i| Frame::Use { sequence: n * 400 + i, path: None })
    }),
    // Nothing of the session is left after the first.
    prepared("CLOSE", open_thousand, |_, _, out| {
        fill(out, |_| Frame::Close(ResetReason::ShuttingDown))
    }),
    attack("OPEN", |_, n, out| fill(out, |i| open(n * 1_000 + i))),
    prepared(
        "OPEN, nobody answers",
        |node| node.accepts = false,
        |_, n, out| fill(out, |i| open(n * 1_000 + i)),
    ),
    attack("OPEN of names", |_, n, out| {
        let name = format!("{n}.{}.example", "x".repeat(40));
        fill(out, |i| {
            let target = Target::Name(name.clone(), 80);
            Frame::Open(id(n * 1_000 + i), Origin { client: None, target, dscp: 0 })
        })
    }),
    attack("OPEN, RESET", |_, n, out| {
        fill(out, |i| match i % 2 {
            0 => open(n * 1_000 + i),
            _ => reset(n * 1_000 + i - 1, 0),
        })
    }),
    attack("RESET of nothing", |_, n, out| fill(out, |i| reset((n * 400 + i) * 1_000, 0))),
    attack("RESET far behind", |_, n, out| fill(out, |i| reset(n * 400 + i, 1 << 40))),
    attack("PACKETS, MESSAGES", |_, n, out| {
        fill(out, |i| match i % 2 {
            0 => Frame::Packets(id(n * 400 + i)),
            _ => Frame::Messages(id(n * 400 + i)),
        })
    }),
    attack("MESSAGES, filled", |_, n, out| {
        if n == 0 {
            put(out, &Frame::Messages(id(0)));
        }
        data(out, 0, n * 1_300, &[1; 1_300]);
        0
    }),
    attack("PACKETS, filled", |_, n, out| {
        if n == 0 {
            put(out, &Frame::Packets(id(0)));
        }
        data(out, 0, n * 1_300, &[1; 1_300]);
        0
    }),
    attack("ACCEPTED", |_, n, out| fill(out, |i| Frame::Accepted(id(n * 300 + i)))),
    prepared("CREDIT", open_thousand, |_, n, out| {
        fill(out, |i| Frame::Credit(id(i * 7 % 1_000), n * 400 + i))
    }),
    attack("DATAGRAM, tiny", |_, _, out| fill_short(out, |_| Frame::Datagram(&[0x45]))),
    attack("DATAGRAM, small", |_, n, out| {
        fill_short(out, |i| Frame::Datagram(if (n + i) % 2 == 0 { &UDP } else { &OTHER }))
    }),
    attack("HEADERS", |_, n, out| {
        fill_short(out, |i| Frame::Headers(&NOISE[((n * 31 + i * 7) % 230) as usize..][..24]))
    }),
    attack("FRAGMENT, one of each", |_, n, out| {
        fill(out, |i| {
            let id = n * 300 + i;
            Frame::Fragment(FragmentFrame { id, total: 9_000, offset: 8_999, data: &[1] })
        })
    }),
    attack("FRAGMENT, of holes", |_, n, out| {
        fill(out, |i| {
            let offset = (n * 150 + i) * 2 % 9_000;
            Frame::Fragment(FragmentFrame { id: n / 30, total: 9_000, offset, data: &[1] })
        })
    }),
    Attack {
        name: "STREAM, of holes",
        config: uncoded,
        prepare: |node| node.reads = false,
        write: |_, n, out| {
            begin(out, n);
            fill(out, |i| stream(0, (n * 200 + i) * 2 + 1, b"x"))
        },
    },
    Attack {
        name: "STREAM, holes to the middle",
        config: uncoded,
        prepare: |node| node.reads = false,
        write: |_, n, out| {
            begin(out, n);
            let (from, all) = (n / 2 * 300 % 4_000, 8_000);
            fill_up_to(out, 150, |i| match n % 2 {
                0 => stream(0, 1 + from + i * 2, b"x"),
                _ => stream(0, 1 + all - from - i * 2, b"x"),
            })
        },
    },
    Attack {
        name: "STREAM, far apart",
        config: uncoded,
        prepare: |node| node.reads = false,
        write: |_, n, out| {
            begin(out, n);
            fill(out, |i| stream(0, (n * 150 + i) * 8_192 % 4_000_000 + 1, b"x"))
        },
    },
    Attack {
        name: "STREAM, long and far apart",
        config: uncoded,
        prepare: |node| node.reads = false,
        write: |_, n, out| {
            begin(out, n);
            // Each over an edge, wherever blocks have theirs.
            data(out, 0, (n + 1) * 8_192 % 4_000_000 - 8, &[b'x'; 1_040]);
            0
        },
    },
    // In the reserve of each, which no window counts.
    Attack {
        name: "STREAM, holes in each of many",
        config: uncoded,
        prepare: |node| node.reads = false,
        write: |_, n, out| {
            let (of, from) = (n / 40, n % 40 * 150);
            fill_up_to(out, 151, |i| match i {
                0 => open(of),
                _ => stream(of, (from + i) * 2, b"x"),
            })
        },
    },
    Attack {
        name: "STREAM, a byte of each",
        config: uncoded,
        prepare: |node| node.reads = false,
        write: |_, n, out| {
            fill(out, |i| match i % 2 {
                0 => open((n * 400 + i) / 2),
                _ => stream((n * 400 + i - 1) / 2, 0, b"x"),
            })
        },
    },
    Attack {
        name: "STREAM, byte by byte",
        config: uncoded,
        prepare: |_| {},
        write: |_, n, out| {
            begin(out, n);
            let from = n * 200;
            fill_up_to(out, 200, |i| stream(0, from + i, b"x"))
        },
    },
    Attack {
        name: "STREAM, backwards",
        config: uncoded,
        prepare: |node| node.reads = false,
        write: |_, n, out| {
            begin(out, n);
            fill(out, |i| stream(0, 2_000_000 - (n * 150 + i) * 2 % 1_900_000, b"x"))
        },
    },
    prepared("blocks, empty heads", |_| {}, |_, n, out| coded(out, n, &[0x00, 0x10, 0x04, 0x78])),
    prepared("blocks, stored bytes", |_| {}, |_, n, out| coded(out, n, &[0x04, 0x78])),
    // A kilobyte at first, so that there is history; then frames of nothing that refer to it.
    prepared(
        "blocks, with history",
        |_| {},
        |_, n, out| match n {
            0..12 => {
                begin(out, n);
                let mut block = vec![0x80 | (1_000 << 2 >> 8) as u8, (1_000 << 2 & 255) as u8];
                block.resize(1_002, b'h');
                data(out, 0, n * 1_002, &block);
                0
            }
            _ => coded_at(out, n - 12, 12 * 1_002, &squeezed()),
        },
    ),
    attack("REPAIR", |_, n, out| {
        if n % 2 == 0 {
            return fill(out, |_| Frame::Ping);
        }
        out.extend((0..PACKET as u64).map(|i| (n * 31 + i * 7) as u8));
        1
    }),
    attack("REPAIR, short", |_, n, out| {
        out.extend((0..40).map(|i| (n * 31 + i * 7) as u8));
        1
    }),
];

static NOISE: [u8; 256] = {
    let (mut bytes, mut n) = ([0; 256], 0);
    while n < 256 {
        bytes[n] = (n * n * 31 + n * 7) as u8;
        n += 1;
    }
    bytes
};

const UDP: [u8; 28] =
    [0x45, 0, 0, 28, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 2, 0, 2, 10, 1, 0, 2, 0, 9, 0, 9, 0, 8, 0, 0];
const OTHER: [u8; 28] =
    [0x45, 0, 0, 28, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 2, 0, 3, 10, 1, 0, 9, 1, 9, 7, 9, 0, 8, 0, 0];

/// Streams of the peer's: it has the higher key or the lower.
fn id(n: u64) -> StreamId {
    StreamId(n * 2 + crate::node::parity())
}

fn open(n: u64) -> Frame<'static> {
    let client = Some(([10, 2, (n >> 8) as u8, n as u8], 40_000).into());
    let target = Target::Address(([10, 1, (n >> 10) as u8, n as u8], 80).into());
    Frame::Open(id(n), Origin { client, target, dscp: 0 })
}

fn reset(n: u64, end: u64) -> Frame<'static> {
    Frame::Reset { id: id(n), reason: ResetReason::HostReset, end }
}

/// One of the paths that the peer may open.
fn path(n: u64) -> PathId {
    PathId::of_side(crate::node::parity()).nth((n % 7) as usize).expect("a side has more")
}

fn news(n: u64, version: u64, up: bool) -> PathNews {
    let facts = PathFacts { send: 90, receive: 90, rtt: 600, mtu: 1_500, overhead: 0 };
    let name = CarrierName::new(b"vsat").expect("a short name");
    let (hears, free, priority) = (!n.is_multiple_of(3), true, n as u8);
    PathNews { path: path(n), version, up, hears, free, priority, name, facts: Some(facts) }
}

fn stream(n: u64, offset: u64, data: &[u8]) -> Frame<'_> {
    Frame::Stream(StreamFrame { id: id(n), offset, fin: false, data })
}

/// In the first packet: the stream begins, which is compressed from then on or not.
fn begin(out: &mut Vec<u8>, n: u64) {
    if n == 0 {
        put(out, &open(0));
    }
}

fn data(out: &mut Vec<u8>, n: u64, offset: u64, bytes: &[u8]) {
    put(out, &stream(n, offset, bytes));
}

fn put(out: &mut Vec<u8>, frame: &Frame<'_>) {
    if let Frame::Stream(f) = frame {
        // With its offset and its length, so that another may follow.
        out.push(0x10 | 2 | 4);
        for n in [f.id.0, f.offset, f.data.len() as u64] {
            push_varint(out, n);
        }
        return out.extend_from_slice(f.data);
    }
    let len = out.len();
    out.resize(len + frame_len(frame), 0);
    let written = {
        let mut writer = Writer::new(&mut out[len..]);
        assert!(writer.put(frame), "it fits");
        writer.len()
    };
    out.truncate(len + written);
}

/// As many as fit.
fn fill<'a>(out: &mut Vec<u8>, frame: impl FnMut(u64) -> Frame<'a>) -> u8 {
    fill_up_to(out, u64::MAX, frame)
}

fn fill_up_to<'a>(out: &mut Vec<u8>, most: u64, mut frame: impl FnMut(u64) -> Frame<'a>) -> u8 {
    for i in 0..most {
        let len = out.len();
        put(out, &frame(i));
        if out.len() > PACKET {
            out.truncate(len);
            break;
        }
    }
    assert!(Reader::new(out).frame().is_ok_and(|f| f.is_some()), "the node can read it");
    0
}

/// Datagrams and headers, each with its length.
fn fill_short<'a>(out: &mut Vec<u8>, mut frame: impl FnMut(u64) -> Frame<'a>) -> u8 {
    for i in 0.. {
        let (kind, body) = match frame(i) {
            Frame::Datagram(body) => (0x0c, body),
            Frame::Headers(body) => (0x7e, body),
            other => unreachable!("{other:?}"),
        };
        if out.len() + body.len() + 3 > PACKET {
            break;
        }
        out.push(kind);
        push_varint(out, body.len() as u64);
        out.extend_from_slice(body);
    }
    0
}

fn push_varint(out: &mut Vec<u8>, n: u64) {
    let mut bytes = [0; varint::MAX_LEN];
    let len = varint::put(n, &mut bytes);
    out.extend_from_slice(&bytes[..len]);
}

/// A report of `count` packets below `hi`, each apart from the next by `gap`.
fn state(out: &mut Vec<u8>, hi: u64, span: u64, gap: u64, count: u64) -> u8 {
    report(out, &[0x02], hi, span, gap, count)
}

fn report(out: &mut Vec<u8>, head: &[u8], hi: u64, span: u64, gap: u64, count: u64) -> u8 {
    let count = count.min(span / (gap + 1) + 1);
    out.extend_from_slice(head);
    for n in [hi, span, 0, 0, count] {
        push_varint(out, n);
    }
    for i in 0..count {
        push_varint(out, 0);
        if i + 1 < count {
            push_varint(out, gap - 1);
        }
    }
    0
}

/// A host here sends very much, and the peer reports nothing of it.
fn have_much_in_flight(node: &mut Node) {
    have_in_flight(node, 65_000);
}

/// The same of more than `all` packets: how many there are differs by what they carry.
fn have_in_flight(node: &mut Node, all: u64) {
    node.sends = 16;
    for _ in 0..4_500 {
        node.receive(0, &[1]);
    }
    assert!(node.newest > all, "{} packets", node.newest);
    node.marked = node.newest;
    node.sends = 0;
    // The oldest arrived only now: the way is very long, and nothing is lost for long.
    for i in 0..30 {
        let mut payload = Vec::new();
        state(&mut payload, node.marked - all + 500 + i, 0, 1, 1);
        node.receive(0, &payload);
    }
}

fn open_thousand(node: &mut Node) {
    for n in 0..10 {
        let mut payload = Vec::new();
        fill_up_to(&mut payload, 50, |i| open(n * 50 + i));
        node.receive(0, &payload);
        payload.clear();
        fill_up_to(&mut payload, 50, |i| open(500 + n * 50 + i));
        node.receive(0, &payload);
    }
    assert!(node.flows.len() > 400, "{} flows", node.flows.len());
}

/// As many of these bytes of a compressed stream as fit, over and over.
fn coded(out: &mut Vec<u8>, n: u64, piece: &[u8]) -> u8 {
    begin(out, n);
    coded_at(out, n, 0, piece)
}

fn coded_at(out: &mut Vec<u8>, n: u64, from: u64, piece: &[u8]) -> u8 {
    let bytes = piece.repeat(1_250 / piece.len());
    data(out, 0, from + n * bytes.len() as u64, &bytes);
    0
}

/// A block of one byte that uses the most history that it may, and keeps all of it: a frame of
/// zstd with one raw block.
fn squeezed() -> Vec<u8> {
    // Descriptor: single segment, size in one byte; a last, raw block of one byte.
    let frame = [0x20, 1, 0x09, 0, 0, b'x'];
    let mut block = vec![(frame.len() << 2 | 2) as u8, 0x55];
    block.extend_from_slice(&frame);
    block
}
