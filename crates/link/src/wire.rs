//! The formats inside a packet (spec/link.md, "Frames"): varints and frames.
//!
//! Decoding gives typed views into the packet and never panics; encoding writes
//! in place into the packet that the system call takes.
//!
//! ```text
//! varint   0xxxxxxx | 10xxxxxx +1 | 110xxxxx +2 | … | 11111111 +8 bytes
//! STREAM   0001 0lof  id  [offset]  [length]  data
//! ```

mod read;
mod reset;
pub mod short;
mod write;

use std::net::SocketAddr;
use std::ops::RangeInclusive;

use units::Duration;

use crate::path::{CarrierName, PathId};

pub use read::Reader;
pub use reset::ResetReason;
pub use units::varint::len as varint_len;
pub use write::{Writer, frame_len, stream_head_len};

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

/// Where a stream's opener wants to go.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Target {
    /// An address, as the client's packet named it.
    Address(SocketAddr),
    /// A name for the far node to resolve (explicit proxy), with the port.
    Name(String, u16),
    /// A program of the far node's: its name, [`is_service_name`], and what it is told before the
    /// first byte of the stream, [`MAX_PREFACE`] bytes at most.
    Service(String, Vec<u8>),
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

impl Origin {
    /// Does the stream carry several things, between programs that decide which is next?
    pub(crate) fn interleaves(&self) -> bool {
        matches!(self.target, Target::Service(..))
    }
}

/// The longest name that an [`Origin`] carries (RFC 1035: 253 characters).
pub const MAX_NAME: usize = 253;
/// The longest name of a service.
pub const MAX_SERVICE: usize = 32;
/// The longest preface: OPEN with it is no longer than one with the longest name.
pub const MAX_PREFACE: usize = 200;

/// Is this a name that a service may have: small letters, digits and hyphens?
pub fn is_service_name(name: &str) -> bool {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    (1..=MAX_SERVICE).contains(&name.len()) && name.bytes().all(plain)
}

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

/// What a receiver saw of losses, each number all in all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LossesSeen {
    /// Packets that came back by repair.
    pub recovered: u64,
    /// Times that packet numbers were skipped.
    pub gaps: u64,
    /// Packets that were missing then, whatever came back or late.
    pub missing: u64,
}

/// What a node says of one path (L-PT-5). Of what one node said the highest version holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathNews {
    /// Which path.
    pub path: PathId,
    /// Counts what the node said of this path.
    pub version: u64,
    /// The node sends on it; else it is down, and nothing is to be sent to it either.
    pub up: bool,
    /// The node does not miss packets of it that should have come.
    pub hears: bool,
    /// Packets that carry nothing may be sent to see what the path carries.
    pub free: bool,
    /// Lower ones are preferred.
    pub priority: u8,
    /// What the node calls the path's carrier; empty: it has no name for it.
    pub name: CarrierName,
    /// What the path is, from the node that opened it.
    pub facts: Option<PathFacts>,
}

/// What a path is, as the node tells that opened it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathFacts {
    /// The node sends at this rate, encoded as in the handshake's parameters.
    pub send: u64,
    /// And receives at this.
    pub receive: u64,
    /// The round trip in milliseconds.
    pub rtt: u64,
    /// The largest IP packet.
    pub mtu: u64,
    /// Bytes of framing that the rates count for each packet.
    pub overhead: u64,
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
    /// One that speaks of a single packet.
    #[cfg(test)]
    pub fn of_one(number: u64) -> StateFrame<'static> {
        let delay = Duration::ZERO;
        StateFrame { hi: number, lo: number, delay, arrival: 0, runs: &[0], count: 1 }
    }

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
    /// That of another path than the one that this packet takes (L-PT-13).
    StateOf(PathId, StateFrame<'a>),
    /// All packet numbers below are settled: forget them.
    Floor(u64),
    /// What the receiver saw of losses in the session.
    Recovered(LossesSeen),
    /// A stream begins.
    Open(StreamId, Origin),
    /// A stream begins whose content is unsplit packets.
    Packets(StreamId),
    /// A stream begins whose content is messages about chunks (spec/link.md, L-DD-12).
    Messages(StreamId),
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
    /// One with its headers compressed (spec/link.md, "Header compression").
    Headers(&'a [u8]),
    /// A piece of one.
    Fragment(FragmentFrame<'a>),
    /// Data of a stream.
    Stream(StreamFrame<'a>),
    /// What the sender says of a path.
    Path(PathNews),
    /// Both nodes are to send on this path while it lives. Of all that were sent the one with
    /// the highest sequence number holds (L-PT-14).
    Use {
        /// Counts such wishes of both nodes.
        sequence: u64,
        /// Which path; `None`: the best of them.
        path: Option<PathId>,
    },
}

/// Is this the plaintext of a packet of PING and PADDING only?
pub(crate) fn is_question(plaintext: &[u8]) -> bool {
    let rest = plaintext.strip_prefix(&[PING]).unwrap_or(plaintext);
    rest.iter().all(|b| *b == PADDING)
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
/// The type says the length too, up to [`HEADERS_SHORT`].
const HEADERS: u8 = 0x40;
const HEADERS_LEN: u8 = 0x7e;
const HEADERS_TO_END: u8 = 0x7f;
const HEADERS_SHORT: usize = (HEADERS_LEN - HEADERS - 1) as usize;
const FRAGMENT: u8 = 0x0d;
const RECOVERED: u8 = 0x0e;
const PACKETS: u8 = 0x0f;
const MESSAGES: u8 = 0x18;
const PATH: u8 = 0x19;
const USE: u8 = 0x1a;
const STATE_OF: u8 = 0x1b;
/// The number of no path: none is chosen.
const NO_PATH: u8 = 1;
const STREAM: u8 = 0x10;
const STREAM_FIN: u8 = 0x01;
const STREAM_OFFSET: u8 = 0x02;
const STREAM_LEN: u8 = 0x04;
const ORIGIN_DSCP: u8 = 0x10;
const PATH_UP: u8 = 0x01;
const PATH_HEARS: u8 = 0x02;
const PATH_FACTS: u8 = 0x04;
const PATH_FREE: u8 = 0x08;
const PATH_NAME: u8 = 0x10;

/// The report's delay counts in units of 16 µs: finer than any satellite needs,
/// and one byte up to 2 ms, two up to 262 ms.
const STATE_DELAY_UNIT: u64 = 16_000;
/// The unit of a report's arrival time, in nanoseconds (L-RE-6).
pub const ARRIVAL_UNIT: u64 = 16_000;
/// Bits of an arrival time: three bytes as a varint, and 33 s until it comes round.
pub const ARRIVAL_BITS: u32 = 21;

#[cfg(test)]
mod tests;
