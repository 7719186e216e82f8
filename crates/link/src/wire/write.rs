//! Frames, written in place into a packet.

use std::net::{IpAddr, SocketAddr};

use units::{Duration, Instant, varint};

use super::*;

/// Writes frames into a packet, front to back.
pub struct Writer<'a> {
    buf: &'a mut [u8],
    at: usize,
}

impl<'a> Writer<'a> {
    /// A writer into `buf`.
    pub fn new(buf: &'a mut [u8]) -> Writer<'a> {
        Writer { buf, at: 0 }
    }
    /// Bytes still free.
    pub fn room(&self) -> usize {
        self.buf.len() - self.at
    }
    /// Bytes written.
    pub fn len(&self) -> usize {
        self.at
    }
    /// Nothing written yet?
    pub fn is_empty(&self) -> bool {
        self.at == 0
    }

    fn byte(&mut self, b: u8) {
        self.buf[self.at] = b;
        self.at += 1;
    }
    pub(super) fn bytes(&mut self, b: &[u8]) {
        self.buf[self.at..self.at + b.len()].copy_from_slice(b);
        self.at += b.len();
    }
    pub(crate) fn varint(&mut self, n: u64) {
        self.at += varint::put(n, &mut self.buf[self.at..]);
    }

    /// The next `n` bytes, to be filled by the caller.
    pub fn reserve(&mut self, n: usize) -> &mut [u8] {
        let start = self.at;
        self.at += n;
        &mut self.buf[start..start + n]
    }

    /// Writes a frame without stream data if it fits; answers whether it did.
    pub fn put(&mut self, frame: &Frame<'_>) -> bool {
        if frame_len(frame) > self.room() {
            return false;
        }
        match frame {
            Frame::Ping => self.byte(PING),
            Frame::Floor(floor) => {
                self.byte(FLOOR);
                self.varint(*floor);
            }
            Frame::Recovered(seen) => {
                self.byte(RECOVERED);
                for n in [seen.recovered, seen.gaps, seen.missing] {
                    self.varint(n);
                }
            }
            Frame::Open(id, origin) => {
                self.byte(OPEN);
                self.varint(id.0);
                self.origin(origin);
            }
            Frame::Accepted(id) => {
                self.byte(ACCEPTED);
                self.varint(id.0);
            }
            Frame::Packets(id) => {
                self.byte(PACKETS);
                self.varint(id.0);
            }
            Frame::Messages(id) => {
                self.byte(MESSAGES);
                self.varint(id.0);
            }
            Frame::Reset { id, reason, end } => {
                self.byte(RESET);
                self.varint(id.0);
                self.byte(reason.to_u8());
                self.varint(*end);
            }
            Frame::Credit(id, consumed) => {
                self.byte(CREDIT);
                self.varint(id.0);
                self.varint(*consumed);
            }
            Frame::Challenge(token) => {
                self.byte(CHALLENGE);
                self.bytes(&token.to_be_bytes());
            }
            Frame::Response(token) => {
                self.byte(RESPONSE);
                self.bytes(&token.to_be_bytes());
            }
            Frame::Close(reason) => {
                self.byte(CLOSE);
                self.byte(reason.to_u8());
            }
            Frame::Headers(body) => {
                self.headers_head(body.len());
                self.bytes(body);
            }
            Frame::Datagram(data) => {
                self.byte(DATAGRAM_LEN);
                self.varint(data.len() as u64);
                self.bytes(data);
            }
            Frame::Fragment(f) => {
                self.byte(FRAGMENT);
                self.varint(f.id);
                self.varint(f.total);
                self.varint(f.offset);
                self.varint(f.data.len() as u64);
                self.bytes(f.data);
            }
            Frame::Stream(f) => {
                let head = self.stream_head(f.id, f.offset, Some(f.data.len()), f.fin);
                debug_assert!(head > 0);
                self.bytes(f.data);
            }
            Frame::State(f) => self.state_frame(None, f),
            Frame::StateOf(path, f) => self.state_frame(Some(*path), f),
            Frame::Path(news) => self.path_news(news),
            Frame::Use { sequence, path } => {
                self.byte(USE);
                self.varint(*sequence);
                self.byte(path.map_or(NO_PATH, PathId::number));
            }
        }
        true
    }

    fn path_news(&mut self, news: &PathNews) {
        let flag = |bit: u8, set: bool| if set { bit } else { 0 };
        let state = flag(PATH_UP, news.up) | flag(PATH_HEARS, news.hears);
        let state = state | flag(PATH_FREE, news.free);
        self.byte(PATH);
        self.byte(news.path.number());
        self.varint(news.version);
        let state = state | flag(PATH_NAME, !news.name.is_empty());
        self.byte(state | flag(PATH_FACTS, news.facts.is_some()));
        self.byte(news.priority);
        for n in news.facts.iter().flat_map(PathFacts::numbers) {
            self.varint(n);
        }
        if !news.name.is_empty() {
            let name = news.name.as_str().as_bytes();
            self.byte(name.len() as u8);
            self.bytes(name);
        }
    }

    /// Writes the head of a STREAM frame; answers its length. Without `len` the
    /// data runs to the end of the packet.
    pub fn stream_head(
        &mut self,
        id: StreamId,
        offset: u64,
        len: Option<usize>,
        fin: bool,
    ) -> usize {
        let start = self.at;
        let has_offset = if offset > 0 { STREAM_OFFSET } else { 0 };
        let has_len = if len.is_some() { STREAM_LEN } else { 0 };
        self.byte(STREAM | has_offset | has_len | if fin { STREAM_FIN } else { 0 });
        self.varint(id.0);
        if offset > 0 {
            self.varint(offset);
        }
        if let Some(len) = len {
            self.varint(len as u64);
        }
        self.at - start
    }

    /// Writes the head of a datagram with compressed headers, `len` bytes long. Where nothing
    /// has room behind it no length is needed.
    pub(crate) fn headers_head(&mut self, len: usize) {
        if headers_len(len) >= self.room() {
            self.byte(HEADERS_TO_END);
        } else if len <= HEADERS_SHORT {
            self.byte(HEADERS + len as u8);
        } else {
            self.byte(HEADERS_LEN);
            self.varint(len as u64);
        }
    }

    /// Writes the head of a datagram that runs to the end of the packet.
    pub fn datagram_head(&mut self) {
        self.byte(DATAGRAM);
    }

    /// Writes a STATE frame from ranges that come highest first, as many as fit
    /// in `max` bytes; `about`: of another path than the packet takes. Answers the lowest packet
    /// number it speaks of.
    pub fn state<'r>(
        &mut self,
        about: Option<PathId>,
        ranges: impl Iterator<Item = &'r std::ops::Range<u64>>,
        lo: u64,
        delay: Duration,
        arrival: Instant,
        max: usize,
    ) -> Option<u64> {
        let room = self.room().min(max);
        let mut runs = [0u8; 1024];
        let mut w = Writer::new(&mut runs);
        let (mut count, mut hi, mut low_end) = (0u64, 0, 0);
        let mut complete = true;
        for r in ranges {
            if r.end <= lo {
                break;
            }
            let start = r.start.max(lo);
            let run = r.end - 1 - start;
            let gap = if count == 0 { 0 } else { low_end - r.end - 1 };
            let need = varint_len(run) + if count == 0 { 0 } else { varint_len(gap) };
            // 35 bytes cover the frame's head with every field at its longest useful size.
            if w.len() + need + 35 + usize::from(about.is_some()) > room || w.room() < need {
                complete = false;
                break;
            }
            if count == 0 {
                hi = r.end - 1;
            } else {
                w.varint(gap);
            }
            w.varint(run);
            low_end = start;
            count += 1;
        }
        if count == 0 {
            return None;
        }
        // A report cut short speaks only of what it lists.
        let lo = if complete { lo } else { low_end };
        let n = w.len();
        let (arrival, runs) = (arrival_units(arrival), &runs[..n]);
        self.state_frame(about, &StateFrame { hi, lo, delay, arrival, runs, count });
        Some(lo)
    }

    fn state_frame(&mut self, about: Option<PathId>, state: &StateFrame<'_>) {
        match about {
            None => self.byte(STATE),
            Some(path) => self.bytes(&[STATE_OF, path.number()]),
        }
        self.varint(state.hi);
        self.varint(state.hi - state.lo);
        self.varint(state.delay.as_nanos() / STATE_DELAY_UNIT);
        self.varint(state.arrival);
        self.varint(state.count);
        self.bytes(state.runs);
    }

    fn origin(&mut self, o: &Origin) {
        let client = match o.client {
            None => 0,
            Some(SocketAddr::V4(_)) => 1,
            Some(SocketAddr::V6(_)) => 2,
        };
        let target = match &o.target {
            Target::Name(..) => 0,
            Target::Address(SocketAddr::V4(_)) => 1,
            Target::Address(SocketAddr::V6(_)) => 2,
            Target::Service(..) => 3,
        };
        let has_dscp = if o.dscp > 0 { ORIGIN_DSCP } else { 0 };
        self.byte(has_dscp | client << 2 | target);
        if o.dscp > 0 {
            self.byte(o.dscp);
        }
        if let Some(a) = o.client {
            self.address(a);
        }
        match &o.target {
            Target::Address(a) => self.address(*a),
            Target::Name(name, port) => {
                let name = &name.as_bytes()[..name.len().min(MAX_NAME)];
                self.byte(name.len() as u8);
                self.bytes(name);
                self.bytes(&port.to_be_bytes());
            }
            Target::Service(name, preface) => {
                for (part, most) in [(name.as_bytes(), MAX_SERVICE), (preface, MAX_PREFACE)] {
                    let part = &part[..part.len().min(most)];
                    self.byte(part.len() as u8);
                    self.bytes(part);
                }
            }
        }
    }

    fn address(&mut self, a: SocketAddr) {
        match a.ip() {
            IpAddr::V4(ip) => self.bytes(&ip.octets()),
            IpAddr::V6(ip) => self.bytes(&ip.octets()),
        }
        self.bytes(&a.port().to_be_bytes());
    }
}

impl PathFacts {
    fn numbers(&self) -> [u64; 5] {
        [self.send, self.receive, self.rtt, self.mtu, self.overhead]
    }
}

fn arrival_units(at: Instant) -> u64 {
    (at.as_nanos() / ARRIVAL_UNIT) & ((1 << ARRIVAL_BITS) - 1)
}

/// The longest head of a STREAM frame for this id and offset.
pub fn stream_head_len(id: StreamId, offset: u64, len: usize) -> usize {
    1 + varint_len(id.0) + if offset > 0 { varint_len(offset) } else { 0 } + varint_len(len as u64)
}

/// The bytes of a frame with a datagram of `len` bytes whose headers are compressed, where
/// others may follow.
fn headers_len(len: usize) -> usize {
    len + 1 + if len <= HEADERS_SHORT { 0 } else { varint_len(len as u64) }
}

/// The bytes of a receive state.
fn state_len(f: &StateFrame<'_>) -> usize {
    varint_len(f.hi)
        + varint_len(f.hi - f.lo)
        + varint_len(f.delay.as_nanos() / STATE_DELAY_UNIT)
        + varint_len(f.arrival)
        + varint_len(f.count)
        + f.runs.len()
}

/// The bytes that [`Writer::put`] needs for `frame`.
pub fn frame_len(frame: &Frame<'_>) -> usize {
    match frame {
        Frame::Ping => 1,
        Frame::Floor(n) => 1 + varint_len(*n),
        Frame::Recovered(seen) => {
            1 + [seen.recovered, seen.gaps, seen.missing].map(varint_len).iter().sum::<usize>()
        }
        Frame::Open(id, o) => {
            let address = |a: SocketAddr| if a.is_ipv4() { 6 } else { 18 };
            2 + varint_len(id.0)
                + usize::from(o.dscp > 0)
                + o.client.map_or(0, address)
                + match &o.target {
                    Target::Address(a) => address(*a),
                    Target::Name(n, _) => 3 + n.len().min(MAX_NAME),
                    Target::Service(name, preface) => {
                        2 + name.len().min(MAX_SERVICE) + preface.len().min(MAX_PREFACE)
                    }
                }
        }
        Frame::Accepted(id) | Frame::Packets(id) | Frame::Messages(id) => 1 + varint_len(id.0),
        Frame::Reset { id, end, .. } => 2 + varint_len(id.0) + varint_len(*end),
        Frame::Credit(id, consumed) => 1 + varint_len(id.0) + varint_len(*consumed),
        Frame::Challenge(_) | Frame::Response(_) => 9,
        Frame::Close(_) => 2,
        Frame::Headers(body) => headers_len(body.len()),
        Frame::Datagram(d) => 1 + varint_len(d.len() as u64) + d.len(),
        Frame::Fragment(f) => {
            1 + varint_len(f.id)
                + varint_len(f.total)
                + varint_len(f.offset)
                + varint_len(f.data.len() as u64)
                + f.data.len()
        }
        Frame::Stream(f) => stream_head_len(f.id, f.offset, f.data.len()) + f.data.len(),
        Frame::State(f) => 1 + state_len(f),
        Frame::StateOf(_, f) => 2 + state_len(f),
        Frame::Path(news) => {
            let facts = news.facts.iter().flat_map(PathFacts::numbers);
            let name = news.name.as_str().len();
            let name = if name > 0 { 1 + name } else { 0 };
            4 + varint_len(news.version) + facts.map(varint_len).sum::<usize>() + name
        }
        Frame::Use { sequence, .. } => 2 + varint_len(*sequence),
    }
}
