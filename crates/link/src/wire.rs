//! The formats inside a packet (spec/link.md, "Frames"): varints and frames.
//!
//! Decoding gives typed views into the packet and never panics; encoding writes
//! in place into the packet that the system call takes.
//!
//! ```text
//! varint   0xxxxxxx | 10xxxxxx +1 | 110xxxxx +2 | … | 11111111 +8 bytes
//! STREAM   0001 0lof  id  [offset]  [length]  data
//! ```

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;

use units::{Duration, Instant};

/// Which stream: a number that never returns in a session. Even numbers are
/// opened by the node with the lower public key, odd ones by the other.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct StreamId(pub u64);

/// A frame that cannot be read. The packet was authentic, so the peer is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The packet ends inside a frame.
    #[error("a frame is cut short")]
    Short,
    /// No such frame type, or a field outside its range.
    #[error("a frame has a value that the protocol does not know")]
    Invalid,
}

/// Why a stream ended without an orderly close (spec/link.md, "Reset reasons").
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ResetReason {
    /// The host at the other end reset its connection.
    HostReset,
    /// The server refused the connection.
    Refused,
    /// No way leads to the server, and no router said why.
    Unreachable,
    /// The server did not answer in time.
    TimedOut,
    /// The far node's `allow`/`deny` forbids this destination.
    Denied,
    /// A name did not resolve at the far node.
    NoSuchName,
    /// The far node has no memory, descriptor or port left for it.
    Exhausted,
    /// The peer restarted and knows nothing of this stream.
    PeerRestarted,
    /// The peer is shutting down.
    ShuttingDown,
    /// The peer broke the protocol on this stream.
    Protocol,
    /// An ICMP "destination unreachable" (type 3) with this code, 0…15 (RFC 792, RFC 1812).
    Icmp(u8),
    /// An ICMPv6 "destination unreachable" (type 1) with this code, 0…15 (RFC 4443).
    Icmpv6(u8),
}

/// Reasons without a code; their numbers start at 1.
const REASONS: [ResetReason; 10] = {
    use ResetReason::*;
    [
        HostReset,
        Refused,
        Unreachable,
        TimedOut,
        Denied,
        NoSuchName,
        Exhausted,
        PeerRestarted,
        ShuttingDown,
        Protocol,
    ]
};
/// The numbers of the reasons with an ICMP, and an ICMPv6, code start here.
const ICMP_REASON: u8 = 32;
const ICMPV6_REASON: u8 = 48;

impl ResetReason {
    fn from_u8(n: u8) -> Option<ResetReason> {
        match n {
            ICMP_REASON..ICMPV6_REASON => Some(ResetReason::Icmp(n - ICMP_REASON)),
            ICMPV6_REASON..64 => Some(ResetReason::Icmpv6(n - ICMPV6_REASON)),
            _ => REASONS.get(usize::from(n.checked_sub(1)?)).copied(),
        }
    }

    /// Codes beyond 15 do not exist; they travel as what they have in common.
    fn to_u8(self) -> u8 {
        match self {
            ResetReason::Icmp(code @ 0..16) => ICMP_REASON + code,
            ResetReason::Icmpv6(code @ 0..16) => ICMPV6_REASON + code,
            ResetReason::Icmp(_) | ResetReason::Icmpv6(_) => ResetReason::Unreachable.to_u8(),
            plain => 1 + REASONS.iter().position(|r| *r == plain).unwrap_or(0) as u8,
        }
    }
}

/// Where a stream's opener wants to go.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Target {
    /// An address, as the client's packet named it.
    Address(SocketAddr),
    /// A name for the far node to resolve (explicit proxy), with the port.
    Name(String, u16),
}

/// The addresses of the connection behind a stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Origin {
    /// The client's own address; `None` where there is none to keep (explicit proxy on the node).
    pub client: Option<SocketAddr>,
    /// Where it connects to.
    pub target: Target,
    /// The differentiated services code point of its SYN, 0…63.
    pub dscp: u8,
}

/// The longest name that an [`Origin`] carries (RFC 1035: 253 characters).
pub const MAX_NAME: usize = 253;

/// A stream's data inside a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StreamFrame<'a> {
    /// Which stream.
    pub id: StreamId,
    /// Where in the stream the data starts.
    pub offset: u64,
    /// True where the stream ends with this data.
    pub fin: bool,
    /// The bytes.
    pub data: &'a [u8],
}

/// A piece of an unsplit IP packet that is larger than a link packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FragmentFrame<'a> {
    /// Names the IP packet among those of the session.
    pub id: u64,
    /// The whole IP packet's length in bytes.
    pub total: u64,
    /// Where in it the data belongs.
    pub offset: u64,
    /// The bytes.
    pub data: &'a [u8],
}

/// The receive state (R-STATE-ACK): which packet numbers in `lo..=hi` arrived.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StateFrame<'a> {
    /// The highest packet number received.
    pub hi: u64,
    /// The lowest that this report speaks of.
    pub lo: u64,
    /// How long ago `hi` arrived.
    pub delay: Duration,
    /// When it did, by the receiver's clock: units of [`ARRIVAL_UNIT`] nanoseconds,
    /// modulo 2^[`ARRIVAL_BITS`].
    pub arrival: u64,
    /// Received runs and gaps below `hi`, still encoded.
    runs: &'a [u8],
    count: u64,
}

impl StateFrame<'_> {
    /// The received runs, highest first.
    pub fn received(&self) -> impl Iterator<Item = RangeInclusive<u64>> + '_ {
        let mut r = Reader::new(self.runs);
        // Validated when decoded, so that every step stays at or above `lo`.
        let mut top = self.hi;
        let mut left = self.count;
        std::iter::from_fn(move || {
            left = left.checked_sub(1)?;
            let run = r.varint().ok()?;
            let low = top.checked_sub(run)?;
            let item = low..=top;
            if left > 0 {
                let gap = r.varint().ok()?;
                top = low.checked_sub(gap + 2)?;
            }
            Some(item)
        })
    }
}

/// One frame, as a view into its packet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Frame<'a> {
    /// Asks for a report at once.
    Ping,
    /// The receive state.
    State(StateFrame<'a>),
    /// All packet numbers below are settled: forget them.
    Floor(u64),
    /// So many packets of the session came back by repair.
    Recovered(u64),
    /// A stream begins.
    Open(StreamId, Origin),
    /// A stream begins whose content is unsplit packets.
    Packets(StreamId),
    /// The far connection of a stream stands.
    Accepted(StreamId),
    /// A stream's sender gives up: nothing beyond `end` will come.
    Reset {
        /// Which stream.
        id: StreamId,
        /// Why.
        reason: ResetReason,
        /// The bytes below this offset are still delivered first.
        end: u64,
    },
    /// The reader has taken all of a stream's bytes below the offset.
    Credit(StreamId, u64),
    /// Is this address yours? (validation, spec/link.md "Address change")
    Challenge(u64),
    /// Yes.
    Response(u64),
    /// The session ends; all its streams are reset.
    Close(ResetReason),
    /// A whole unsplit IP packet.
    Datagram(&'a [u8]),
    /// A piece of one.
    Fragment(FragmentFrame<'a>),
    /// Data of a stream.
    Stream(StreamFrame<'a>),
}

const PADDING: u8 = 0x00;
const PING: u8 = 0x01;
const STATE: u8 = 0x02;
const FLOOR: u8 = 0x03;
const OPEN: u8 = 0x04;
const ACCEPTED: u8 = 0x05;
const RESET: u8 = 0x06;
const CREDIT: u8 = 0x07;
const CHALLENGE: u8 = 0x08;
const RESPONSE: u8 = 0x09;
const CLOSE: u8 = 0x0a;
const DATAGRAM: u8 = 0x0b;
const DATAGRAM_LEN: u8 = 0x0c;
const FRAGMENT: u8 = 0x0d;
const RECOVERED: u8 = 0x0e;
const PACKETS: u8 = 0x0f;
const STREAM: u8 = 0x10;
const STREAM_FIN: u8 = 0x01;
const STREAM_OFFSET: u8 = 0x02;
const STREAM_LEN: u8 = 0x04;
const ORIGIN_DSCP: u8 = 0x10;

/// Bytes that `n` takes as a varint.
pub const fn varint_len(n: u64) -> usize {
    let bits = 64 - n.leading_zeros() as usize;
    match bits {
        0..=7 => 1,
        57.. => 9,
        b => b.div_ceil(7),
    }
}

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
    fn bytes(&mut self, b: &[u8]) {
        self.buf[self.at..self.at + b.len()].copy_from_slice(b);
        self.at += b.len();
    }
    pub(crate) fn varint(&mut self, n: u64) {
        let len = varint_len(n);
        let be = n.to_be_bytes();
        if len == 9 {
            self.byte(0xff);
            self.bytes(&be);
        } else {
            let start = self.at;
            self.bytes(&be[8 - len..]);
            self.buf[start] |= !(0xffu16 >> (len - 1)) as u8;
        }
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
            Frame::Recovered(total) => {
                self.byte(RECOVERED);
                self.varint(*total);
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
            Frame::State(f) => {
                self.state_head(f.hi, f.lo, f.delay, f.arrival, f.count);
                self.bytes(f.runs);
            }
        }
        true
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

    /// Writes the head of a datagram that runs to the end of the packet.
    pub fn datagram_head(&mut self) {
        self.byte(DATAGRAM);
    }

    /// Writes a STATE frame from ranges that come highest first, as many as fit
    /// in `max` bytes. Answers the lowest packet number it speaks of.
    pub fn state<'r>(
        &mut self,
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
            if w.len() + need + 35 > room || w.room() < need {
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
        self.state_head(hi, lo, delay, arrival_units(arrival), count);
        self.bytes(&runs[..n]);
        Some(lo)
    }

    fn state_head(&mut self, hi: u64, lo: u64, delay: Duration, arrival: u64, count: u64) {
        self.byte(STATE);
        self.varint(hi);
        self.varint(hi - lo);
        self.varint(delay.as_nanos() / STATE_DELAY_UNIT);
        self.varint(arrival);
        self.varint(count);
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

/// The report's delay counts in units of 16 µs: finer than any satellite needs,
/// and one byte up to 2 ms, two up to 262 ms.
const STATE_DELAY_UNIT: u64 = 16_000;
/// The unit of a report's arrival time, in nanoseconds (L-RE-6).
pub const ARRIVAL_UNIT: u64 = 16_000;
/// Bits of an arrival time: three bytes as a varint, and 33 s until it comes round.
pub const ARRIVAL_BITS: u32 = 21;

fn arrival_units(at: Instant) -> u64 {
    (at.as_nanos() / ARRIVAL_UNIT) & ((1 << ARRIVAL_BITS) - 1)
}

/// The longest head of a STREAM frame for this id and offset.
pub fn stream_head_len(id: StreamId, offset: u64, len: usize) -> usize {
    1 + varint_len(id.0) + if offset > 0 { varint_len(offset) } else { 0 } + varint_len(len as u64)
}

/// The bytes that [`Writer::put`] needs for `frame`.
pub fn frame_len(frame: &Frame<'_>) -> usize {
    match frame {
        Frame::Ping => 1,
        Frame::Floor(n) | Frame::Recovered(n) => 1 + varint_len(*n),
        Frame::Open(id, o) => {
            let address = |a: SocketAddr| if a.is_ipv4() { 6 } else { 18 };
            2 + varint_len(id.0)
                + usize::from(o.dscp > 0)
                + o.client.map_or(0, address)
                + match &o.target {
                    Target::Address(a) => address(*a),
                    Target::Name(n, _) => 3 + n.len().min(MAX_NAME),
                }
        }
        Frame::Accepted(id) | Frame::Packets(id) => 1 + varint_len(id.0),
        Frame::Reset { id, end, .. } => 2 + varint_len(id.0) + varint_len(*end),
        Frame::Credit(id, consumed) => 1 + varint_len(id.0) + varint_len(*consumed),
        Frame::Challenge(_) | Frame::Response(_) => 9,
        Frame::Close(_) => 2,
        Frame::Datagram(d) => 1 + varint_len(d.len() as u64) + d.len(),
        Frame::Fragment(f) => {
            1 + varint_len(f.id)
                + varint_len(f.total)
                + varint_len(f.offset)
                + varint_len(f.data.len() as u64)
                + f.data.len()
        }
        Frame::Stream(f) => stream_head_len(f.id, f.offset, f.data.len()) + f.data.len(),
        Frame::State(f) => {
            1 + varint_len(f.hi)
                + varint_len(f.hi - f.lo)
                + varint_len(f.delay.as_nanos() / STATE_DELAY_UNIT)
                + varint_len(f.arrival)
                + varint_len(f.count)
                + f.runs.len()
        }
    }
}

/// Reads frames out of an opened packet.
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// A reader of `payload`.
    pub fn new(payload: &'a [u8]) -> Reader<'a> {
        Reader { rest: payload }
    }

    /// What was not read.
    pub fn rest(self) -> &'a [u8] {
        self.rest
    }

    pub(crate) fn byte(&mut self) -> Result<u8, WireError> {
        let (first, rest) = self.rest.split_first().ok_or(WireError::Short)?;
        self.rest = rest;
        Ok(*first)
    }

    fn bytes(&mut self, n: u64) -> Result<&'a [u8], WireError> {
        let n = usize::try_from(n).map_err(|_| WireError::Short)?;
        let (head, rest) = self.rest.split_at_checked(n).ok_or(WireError::Short)?;
        self.rest = rest;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        let (head, rest) = self.rest.split_first_chunk().ok_or(WireError::Short)?;
        self.rest = rest;
        Ok(*head)
    }

    pub(crate) fn varint(&mut self) -> Result<u64, WireError> {
        let first = self.byte()?;
        let extra = first.leading_ones() as usize;
        let mut n = if extra >= 7 { 0 } else { u64::from(first & (0x7f >> extra)) };
        for &b in self.bytes(extra as u64)? {
            n = n << 8 | u64::from(b);
        }
        Ok(n)
    }

    fn id(&mut self) -> Result<StreamId, WireError> {
        self.varint().map(StreamId)
    }

    fn address(&mut self, v6: bool) -> Result<SocketAddr, WireError> {
        let ip = if v6 {
            IpAddr::V6(Ipv6Addr::from(self.array::<16>()?))
        } else {
            IpAddr::V4(Ipv4Addr::from(self.array::<4>()?))
        };
        Ok(SocketAddr::new(ip, u16::from_be_bytes(self.array()?)))
    }

    fn origin(&mut self) -> Result<Origin, WireError> {
        let kind = self.byte()?;
        let dscp = match kind & ORIGIN_DSCP {
            0 => 0,
            _ => self.byte()?,
        };
        // A point that is 0 is left out: each origin has one form.
        if dscp > 63 || dscp == 0 && kind & ORIGIN_DSCP > 0 {
            return Err(WireError::Invalid);
        }
        let client = match (kind & !ORIGIN_DSCP) >> 2 {
            0 => None,
            n @ 1..=2 => Some(self.address(n == 2)?),
            _ => return Err(WireError::Invalid),
        };
        let target = match kind & 3 {
            0 => {
                let len = self.byte()?;
                let name = std::str::from_utf8(self.bytes(u64::from(len))?)
                    .map_err(|_| WireError::Invalid)?;
                let plain = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
                if name.is_empty() || name.len() > MAX_NAME || !name.chars().all(plain) {
                    return Err(WireError::Invalid);
                }
                Target::Name(name.to_owned(), u16::from_be_bytes(self.array()?))
            }
            n @ 1..=2 => Target::Address(self.address(n == 2)?),
            _ => return Err(WireError::Invalid),
        };
        Ok(Origin { client, target, dscp })
    }

    fn state(&mut self) -> Result<StateFrame<'a>, WireError> {
        let hi = self.varint()?;
        let lo = hi.checked_sub(self.varint()?).ok_or(WireError::Invalid)?;
        let delay = Duration::from_nanos(self.varint()?.saturating_mul(STATE_DELAY_UNIT));
        let arrival = self.varint()?;
        if arrival >> ARRIVAL_BITS != 0 {
            return Err(WireError::Invalid);
        }
        let count = self.varint()?;
        let runs = self.rest;
        // Walk once, so that `received` cannot run below `lo` or past the end.
        let mut top = hi;
        for i in 0..count {
            let run = self.varint()?;
            let low = top.checked_sub(run).filter(|l| *l >= lo).ok_or(WireError::Invalid)?;
            if i + 1 < count {
                let gap = self.varint()?.checked_add(2).ok_or(WireError::Invalid)?;
                top = low.checked_sub(gap).filter(|t| *t >= lo).ok_or(WireError::Invalid)?;
            }
        }
        if count == 0 {
            return Err(WireError::Invalid);
        }
        let runs = &runs[..runs.len() - self.rest.len()];
        Ok(StateFrame { hi, lo, delay, arrival, runs, count })
    }

    fn stream(&mut self, kind: u8) -> Result<StreamFrame<'a>, WireError> {
        let id = self.id()?;
        let offset = if kind & STREAM_OFFSET != 0 { self.varint()? } else { 0 };
        let len = if kind & STREAM_LEN != 0 { self.varint()? } else { self.rest.len() as u64 };
        let data = self.bytes(len)?;
        offset.checked_add(len).filter(|e| *e < 1 << 62).ok_or(WireError::Invalid)?;
        Ok(StreamFrame { id, offset, fin: kind & STREAM_FIN != 0, data })
    }

    /// The next frame; `None` at the end of the packet.
    pub fn frame(&mut self) -> Result<Option<Frame<'a>>, WireError> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let frame = match self.byte()? {
            // Padding runs to the end of the packet.
            PADDING => {
                self.rest = &[];
                return Ok(None);
            }
            PING => Frame::Ping,
            STATE => Frame::State(self.state()?),
            FLOOR => Frame::Floor(self.varint()?),
            RECOVERED => Frame::Recovered(self.varint()?),
            OPEN => Frame::Open(self.id()?, self.origin()?),
            ACCEPTED => Frame::Accepted(self.id()?),
            PACKETS => Frame::Packets(self.id()?),
            RESET => Frame::Reset {
                id: self.id()?,
                reason: ResetReason::from_u8(self.byte()?).ok_or(WireError::Invalid)?,
                end: self.varint()?,
            },
            CREDIT => Frame::Credit(self.id()?, self.varint()?),
            CHALLENGE => Frame::Challenge(u64::from_be_bytes(self.array()?)),
            RESPONSE => Frame::Response(u64::from_be_bytes(self.array()?)),
            CLOSE => Frame::Close(ResetReason::from_u8(self.byte()?).ok_or(WireError::Invalid)?),
            DATAGRAM => Frame::Datagram(self.bytes(self.rest.len() as u64)?),
            DATAGRAM_LEN => {
                let len = self.varint()?;
                Frame::Datagram(self.bytes(len)?)
            }
            FRAGMENT => {
                let (id, total, offset) = (self.varint()?, self.varint()?, self.varint()?);
                let len = self.varint()?;
                let data = self.bytes(len)?;
                if offset.checked_add(len).is_none_or(|e| e > total) || len == 0 {
                    return Err(WireError::Invalid);
                }
                Frame::Fragment(FragmentFrame { id, total, offset, data })
            }
            kind @ STREAM..=0x17 => Frame::Stream(self.stream(kind)?),
            _ => return Err(WireError::Invalid),
        };
        Ok(Some(frame))
    }
}

/// The short form of a STREAM frame: a packet whose header hint is 1…4 holds
/// one frame, `id, offset in that many bytes, data to the end`. The offset
/// counts units of 8 bytes, truncated (spec/link.md, L-SF-1…4).
pub mod short {
    use super::*;

    /// How many offset bytes serve a frame whose stream has `span` bytes between
    /// the lowest that is not confirmed and the highest that was sent. `None` where
    /// the short form cannot be used. Three eighths of the truncated range are for
    /// the span, one eighth is for packets that arrive late (L-SF-2).
    pub fn offset_len(span: u64) -> Option<usize> {
        (2..=4).find(|n| span <= (1u64 << (8 * n)) / 8 * 3)
    }

    /// How many packets behind the newest one a short frame of `n` offset bytes may
    /// be and still be understood, for packets of at most `max_packet` bytes (L-SF-3).
    pub fn late_limit(n: usize, max_packet: u64) -> u64 {
        (1u64 << (8 * n)) / 8 / max_packet.max(1)
    }

    /// Writes the head; answers its length.
    pub fn write_head(w: &mut Writer<'_>, id: StreamId, offset: u64, n: usize) -> usize {
        let start = w.at;
        w.varint(id.0);
        w.bytes(&offset.to_be_bytes()[8 - n..]);
        w.at - start
    }

    /// Reads the head: id and truncated offset; the rest is data.
    pub fn read_head(payload: &[u8], n: usize) -> Result<(StreamId, u64, &[u8]), WireError> {
        let mut r = Reader::new(payload);
        let id = r.id()?;
        let truncated = r.bytes(n as u64)?.iter().fold(0u64, |a, b| a << 8 | u64::from(*b));
        Ok((id, truncated, r.rest))
    }

    /// The full offset nearest to `reference` (the highest byte that arrived).
    pub fn expand(truncated: u64, n: usize, reference: u64) -> u64 {
        let range = 1u64 << (8 * n);
        let candidate = reference & !(range - 1) | truncated;
        if candidate + range / 2 <= reference {
            candidate + range
        } else if candidate > reference + range / 2 && candidate >= range {
            candidate - range
        } else {
            candidate
        }
    }
}

#[cfg(test)]
mod tests;
