//! Accounts of compression: bytes before and after, by stream, class, host and link.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::ops::AddAssign;

use link::PeerId;
use link::session::ClassId;
use squeeze::stream::BadBlock;
use units::{Duration, Instant};

use crate::flows::{Flow, Kind};

/// Hosts with an account of their own; beyond that those with the least bytes share one.
const MOST_HOSTS: usize = 1024;
/// Streams that were reset are reported no more often than this: a peer may have thousands.
const TOLD_AGAIN: Duration = Duration::from_secs(10);

/// Bytes before and after compression, and its price.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompressionCounts {
    /// Bytes that hosts here sent.
    pub sent: u64,
    /// What deduplication left of them; the same where there is none.
    pub sent_items: u64,
    /// What they became on the link's streams.
    pub sent_as: u64,
    /// Bytes that hosts here took.
    pub received: u64,
    /// What deduplication had left of them.
    pub received_items: u64,
    /// What they were on the link's streams.
    pub received_as: u64,
    /// Time that compression and decompression took, which is zero without a stopwatch, and
    /// what chunks took, by their bytes.
    pub cpu: Duration,
}

impl CompressionCounts {
    /// Bytes of hosts, both ways.
    pub fn content(&self) -> u64 {
        self.sent + self.received
    }
}

impl AddAssign for CompressionCounts {
    fn add_assign(&mut self, more: CompressionCounts) {
        self.sent += more.sent;
        self.sent_items += more.sent_items;
        self.sent_as += more.sent_as;
        self.received += more.received;
        self.received_items += more.received_items;
        self.received_as += more.received_as;
        self.cpu += more.cpu;
    }
}

/// What compression did for a peer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkCompression {
    /// All streams, open and over.
    pub all: CompressionCounts,
    /// By class.
    pub classes: BTreeMap<ClassId, CompressionCounts>,
    /// By client; `None`: clients that the stream's opening does not tell, and those with
    /// the least bytes beyond 1,024.
    pub hosts: BTreeMap<Option<IpAddr>, CompressionCounts>,
    /// Streams that are open, in the order of their flows.
    pub streams: Vec<StreamCounts>,
    /// Streams that were reset because a block could not be decompressed.
    pub bad: BTreeMap<BadBlock, u64>,
    /// Streams that were reset because of a malformed item.
    pub bad_items: u64,
    /// What deduplication did since the program started; `None`: there is none.
    pub chunks: Option<ChunkCounts>,
}

/// What a link's deduplication holds and did since the program started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChunkCounts {
    /// Streams of this session are deduplicated: the peer takes it, too.
    pub in_use: bool,
    /// Chunks of the peer's that are held here.
    pub held: u64,
    /// What they take of memory and disk, bytes.
    pub memory: u64,
    /// See `memory`.
    pub disk: u64,
    /// Chunks that we referred to in place of sending them.
    pub referred: u64,
    /// Chunks that the peer referred to and that were not here: it was asked for them.
    pub wanted: u64,
    /// Chunks that the peer was told are not kept, or no more.
    pub gone: u64,
    /// Files that were put aside because they are damaged.
    pub quarantined: u64,
    /// Messages of the peer's that were understood.
    pub messages: u64,
    /// Messages of the peer's that mean nothing.
    pub violations: u64,
}

/// Why a stream cannot be decompressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// A block.
    Block(BadBlock),
    /// An item, or a chunk that is not what was referred to.
    Item,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Malformed::Block(bad) => bad.fmt(f),
            Malformed::Item => f.write_str("item that means nothing"),
        }
    }
}

impl From<BadBlock> for Malformed {
    fn from(bad: BadBlock) -> Malformed {
        Malformed::Block(bad)
    }
}

/// A stream that was reset because it could not be decompressed (R-COMPRESS).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadStream {
    /// Whose it was.
    pub peer: PeerId,
    /// Its client, where it is known.
    pub host: Option<IpAddr>,
    /// Its server's port.
    pub port: u16,
    /// What came.
    pub why: Malformed,
    /// Streams of any peer that were reset for such reasons since the last that was told.
    pub others: u64,
}

/// What is told of such streams: the first of them at once, one of more now and then.
#[derive(Debug, Default)]
pub(super) struct BadStreams {
    next: Option<BadStream>,
    told: Option<Instant>,
}

impl BadStreams {
    pub fn add(&mut self, f: &Flow, why: Malformed) {
        match &mut self.next {
            Some(next) => next.others += 1,
            None => {
                let (peer, host, port) = (f.peer, f.kind.host, f.kind.port);
                self.next = Some(BadStream { peer, host, port, why, others: 0 });
            }
        }
    }

    /// The peer is no more: nobody is to be named in its place.
    pub fn forget(&mut self, peer: PeerId) {
        self.next.take_if(|bad| bad.peer == peer);
    }

    pub fn poll(&mut self, now: Instant) -> Option<BadStream> {
        let is_due = self.told.is_none_or(|at| now.since(at) >= TOLD_AGAIN);
        let next = self.next.take_if(|_| is_due)?;
        self.told = Some(now);
        Some(next)
    }
}

/// One open stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamCounts {
    /// The client, where it is known.
    pub host: Option<IpAddr>,
    /// The server's port.
    pub port: u16,
    /// The stream's class.
    pub class: ClassId,
    /// Its bytes.
    pub counts: CompressionCounts,
}

impl LinkCompression {
    /// Adds what was done for a stream.
    pub(super) fn book(&mut self, kind: &Kind, counts: CompressionCounts) {
        if counts == CompressionCounts::default() {
            return;
        }
        self.all += counts;
        *self.classes.entry(kind.class).or_default() += counts;
        *self.hosts.entry(kind.host).or_default() += counts;
        if self.hosts.len() > MOST_HOSTS {
            let named = self.hosts.iter().filter(|(host, _)| host.is_some());
            let least = named.min_by_key(|(_, s)| s.content()).map(|(host, _)| *host);
            if let Some(counts) = least.and_then(|host| self.hosts.remove(&host)) {
                *self.hosts.entry(None).or_default() += counts;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use link::session::ChosenBy;
    use link::wire::StreamId;

    use super::*;

    #[test]
    fn streams_that_are_reset_are_told_now_and_then_and_all_of_them_counted() {
        let kind = Kind {
            class: ClassId::NORMAL,
            chosen_by: ChosenBy::Operator,
            host: Some([10, 1, 0, 2].into()),
            port: 80,
            from_here: true,
            compress: true,
            scope: None,
        };
        let (mut bad, begin) = (BadStreams::default(), Instant::from_nanos(1));
        let (peer, session, stream) = (PeerId::from_index(0), 1, StreamId(0));
        let f = Flow { peer, session, stream, kind, moved: begin, to: None };
        assert_eq!(bad.poll(begin), None);
        (0..3).for_each(|_| bad.add(&f, BadBlock::Bomb.into()));
        let told = bad.poll(begin).expect("the first at once");
        assert_eq!((told.why.to_string(), told.others), ("decompression bomb".to_owned(), 2));
        bad.add(&f, Malformed::Item);
        assert_eq!(bad.poll(begin + Duration::from_secs(9)), None);
        (0..5000).for_each(|_| bad.add(&f, Malformed::Item));
        let told = bad.poll(begin + Duration::from_secs(10)).expect("it was kept");
        assert_eq!((told.why, told.others), (Malformed::Item, 5000));
        assert_eq!(bad.poll(begin + Duration::from_secs(30)), None);
    }

    #[test]
    fn the_accounts_of_hosts_are_bounded_and_nothing_is_lost_from_their_sum() {
        let mut link = LinkCompression::default();
        for n in 0..5_000u32 {
            let host = Some(IpAddr::from((0x0a00_0000 + n).to_be_bytes()));
            let kind = Kind {
                class: ClassId::NORMAL,
                chosen_by: ChosenBy::Operator,
                host,
                port: 80,
                from_here: true,
                compress: true,
                scope: None,
            };
            let sent = u64::from(n);
            link.book(
                &kind,
                CompressionCounts { sent, sent_as: 1, ..CompressionCounts::default() },
            );
        }
        assert!(link.hosts.len() <= MOST_HOSTS + 1, "{}", link.hosts.len());
        let sum = |of: fn(&CompressionCounts) -> u64| link.hosts.values().map(of).sum::<u64>();
        assert_eq!(sum(|s| s.sent), link.all.sent);
        assert_eq!(sum(|s| s.sent_as), 5_000);
        let last = Some(IpAddr::from((0x0a00_0000u32 + 4_999).to_be_bytes()));
        assert_eq!(link.hosts[&last].sent, 4_999, "who sent most has an account of its own");
    }
}
