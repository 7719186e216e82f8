//! What compression did to the bytes of streams, told by stream, class, host and link.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::AddAssign;

use link::session::ClassId;
use squeeze::stream::BadBlock;
use units::Duration;

use crate::flows::Kind;

/// Hosts with an account of their own; the least of more are told together.
const MOST_HOSTS: usize = 1024;

/// Bytes before and after compression, and its price.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Squeezed {
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
    /// Time that compression and decompression took; zero without a stopwatch.
    pub cpu: Duration,
}

impl Squeezed {
    /// Bytes of hosts, both ways.
    pub fn content(&self) -> u64 {
        self.sent + self.received
    }
}

impl AddAssign for Squeezed {
    fn add_assign(&mut self, more: Squeezed) {
        self.sent += more.sent;
        self.sent_items += more.sent_items;
        self.sent_as += more.sent_as;
        self.received += more.received;
        self.received_items += more.received_items;
        self.received_as += more.received_as;
        self.cpu += more.cpu;
    }
}

/// What compression did in one session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkSqueezed {
    /// All streams, open and over.
    pub all: Squeezed,
    /// By class.
    pub classes: BTreeMap<ClassId, Squeezed>,
    /// By client; `None`: clients that the stream's opening does not tell, and those with
    /// the least bytes beyond 1,024.
    pub hosts: BTreeMap<Option<IpAddr>, Squeezed>,
    /// Streams that are open, in the order of their flows.
    pub streams: Vec<StreamSqueezed>,
    /// Streams that were reset because what came could not be undone.
    pub bad: BTreeMap<BadBlock, u64>,
    /// The same of items.
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
    /// Messages of the peer's that mean nothing.
    pub violations: u64,
}

/// One open stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamSqueezed {
    /// The client, where it is known.
    pub host: Option<IpAddr>,
    /// The server's port.
    pub port: u16,
    /// The stream's class.
    pub class: ClassId,
    /// Its bytes.
    pub squeezed: Squeezed,
}

impl LinkSqueezed {
    /// Adds what was done for a stream.
    pub(super) fn book(&mut self, kind: &Kind, squeezed: Squeezed) {
        if squeezed == Squeezed::default() {
            return;
        }
        self.all += squeezed;
        *self.classes.entry(kind.class).or_default() += squeezed;
        *self.hosts.entry(kind.host).or_default() += squeezed;
        if self.hosts.len() > MOST_HOSTS {
            let named = self.hosts.iter().filter(|(host, _)| host.is_some());
            let least = named.min_by_key(|(_, s)| s.content()).map(|(host, _)| *host);
            if let Some(squeezed) = least.and_then(|host| self.hosts.remove(&host)) {
                *self.hosts.entry(None).or_default() += squeezed;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_accounts_of_hosts_are_bounded_and_nothing_is_lost_from_their_sum() {
        let mut link = LinkSqueezed::default();
        for n in 0..5_000u32 {
            let host = Some(IpAddr::from((0x0a00_0000 + n).to_be_bytes()));
            let class = ClassId::NORMAL;
            let kind = Kind { class, host, port: 80, from_here: true, compress: true, scope: None };
            let sent = u64::from(n);
            link.book(&kind, Squeezed { sent, sent_as: 1, ..Squeezed::default() });
        }
        assert!(link.hosts.len() <= MOST_HOSTS + 1, "{}", link.hosts.len());
        let sum = |of: fn(&Squeezed) -> u64| link.hosts.values().map(of).sum::<u64>();
        assert_eq!(sum(|s| s.sent), link.all.sent);
        assert_eq!(sum(|s| s.sent_as), 5_000);
        let last = Some(IpAddr::from((0x0a00_0000u32 + 4_999).to_be_bytes()));
        assert_eq!(link.hosts[&last].sent, 4_999, "who sent most has an account of its own");
    }
}
