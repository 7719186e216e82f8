//! Self-tests of a live link: what the two nodes say to each other on the stream of one
//! (spec/link.md, "Self-test").
//!
//! ```text
//! request   what (1)   milliseconds (4)
//! report    nine numbers of 8 bytes, in the order of Report
//! ```
//!
//! The stream is an ordinary one of the class bulk, opened to a name that no resolver knows.

use link::wire::{Origin, Target};
use units::Duration;

/// The name that stands for the peer's own test service (RFC 6761: nobody else has it).
const SERVICE: &str = "test.bentpipe.invalid";
/// The longest that a node sends or counts for its peer.
pub const LONGEST: Duration = Duration::from_secs(60);

/// The stream's target.
pub fn target() -> Target {
    Target::Name(SERVICE.to_owned(), 0)
}

/// Is a stream for the test service? Names mean the same in any case (RFC 4343).
pub fn is_for_service(target: &Target) -> bool {
    matches!(target, Target::Name(name, _) if name.eq_ignore_ascii_case(SERVICE))
}

/// How a test's stream is opened.
pub fn origin() -> Origin {
    Origin { client: None, target: target(), dscp: 0 }
}

/// What the peer is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Count what comes, then report.
    Count,
    /// Send random bytes, then report.
    Send,
}

/// The first bytes of a test's stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The peer's part.
    pub part: Part,
    /// For how long, 1 ms … [`LONGEST`].
    pub time: Duration,
}

impl Request {
    /// Bytes of one.
    pub const LEN: usize = 5;

    /// Its bytes.
    pub fn encode(&self) -> [u8; Request::LEN] {
        let part = match self.part {
            Part::Count => 1,
            Part::Send => 2,
        };
        let [a, b, c, d] = (self.time.as_millis() as u32).to_be_bytes();
        [part, a, b, c, d]
    }

    /// `None`: another version's, or a time outside its range.
    pub fn decode(bytes: &[u8; Request::LEN]) -> Option<Request> {
        let [part, time @ ..] = *bytes;
        let part = match part {
            1 => Part::Count,
            2 => Part::Send,
            _ => return None,
        };
        let time = Duration::from_millis(u32::from_be_bytes(time).into());
        (time > Duration::ZERO && time <= LONGEST).then_some(Request { part, time })
    }
}

/// What the peer saw, at the end of its direction. What it does not know is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Who counts: from the first byte to the end of the time; the stream's bytes that came
    /// then, and all link bytes.
    pub counted: Counted,
    /// Who sends: what became of its link packets.
    pub sent: Sent,
}

/// What came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// From the first byte on, microseconds.
    pub time_us: u64,
    /// Bytes of the test's stream.
    pub stream_bytes: u64,
    /// Bytes of all link packets, headers of UDP and IP included.
    pub link_bytes: u64,
}

/// What became of link packets, the test's and all others of the time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Packets whose fate is known.
    pub settled: u64,
    /// Those of them that were lost on the way, whatever brought their bytes back.
    pub lost: u64,
    /// Packets that left.
    pub packets: u64,
    /// Those of them that were for repair alone.
    pub repairs: u64,
    /// How long packets queued on the way, microseconds: the median, and what 95 % stayed below.
    pub queue_median_us: u64,
    /// See `queue_median_us`.
    pub queue_p95_us: u64,
}

impl Report {
    /// Bytes of one.
    pub const LEN: usize = 72;

    /// Its bytes.
    pub fn encode(&self) -> [u8; Report::LEN] {
        let (c, s) = (&self.counted, &self.sent);
        let numbers = [
            c.time_us,
            c.stream_bytes,
            c.link_bytes,
            s.settled,
            s.lost,
            s.packets,
            s.repairs,
            s.queue_median_us,
            s.queue_p95_us,
        ];
        let mut bytes = [0; Report::LEN];
        for (place, n) in bytes.chunks_exact_mut(8).zip(numbers) {
            place.copy_from_slice(&n.to_be_bytes());
        }
        bytes
    }

    /// Any bytes are one: nothing that it says decides anything.
    pub fn decode(bytes: &[u8; Report::LEN]) -> Report {
        let mut numbers = bytes.as_chunks::<8>().0.iter().map(|n| u64::from_be_bytes(*n));
        let mut next = || numbers.next().unwrap_or(0);
        Report {
            counted: Counted { time_us: next(), stream_bytes: next(), link_bytes: next() },
            sent: Sent {
                settled: next(),
                lost: next(),
                packets: next(),
                repairs: next(),
                queue_median_us: next(),
                queue_p95_us: next(),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// L-TE-2.
    #[test]
    fn a_request_reads_as_documented_and_asks_for_a_minute_at_most() {
        let request = Request { part: Part::Send, time: Duration::from_secs(10) };
        assert_eq!(request.encode(), [2, 0, 0, 0x27, 0x10]);
        assert_eq!(Request::decode(&[2, 0, 0, 0x27, 0x10]), Some(request));
        assert_eq!(Request::decode(&[1, 0, 0, 0xea, 0x60]).map(|r| r.time), Some(LONGEST));
        for wrong in [[1, 0, 0, 0xea, 0x61], [2, 0xff, 0xff, 0xff, 0xff], [1, 0, 0, 0, 0]] {
            assert_eq!(Request::decode(&wrong), None, "{wrong:?}");
        }
        assert_eq!([0, 3, 255].map(|part| Request::decode(&[part, 0, 0, 0, 1])), [None; 3]);
    }

    /// L-TE-1.
    #[test]
    fn the_service_has_a_name_that_nobody_else_has() {
        assert!(is_for_service(&target()));
        assert!(is_for_service(&Target::Name("TEST.bentpipe.INVALID".to_owned(), 80)));
        assert!(!is_for_service(&Target::Name("bentpipe.invalid".to_owned(), 0)));
        assert!(!is_for_service(&Target::Address(([192, 0, 2, 1], 0).into())));
    }

    proptest! {
        /// What a peer may send.
        #[test]
        fn what_can_be_read_is_written_alike(request: [u8; 5], halves: ([u8; 36], [u8; 36])) {
            if let Some(read) = Request::decode(&request) {
                prop_assert_eq!(read.encode(), request);
            }
            let report: [u8; 72] = [halves.0, halves.1].concat().try_into().expect("72 bytes");
            prop_assert_eq!(Report::decode(&report).encode(), report);
        }
    }
}
