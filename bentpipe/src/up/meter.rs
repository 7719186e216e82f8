//! Counters of peers, looked at every two seconds: what they come to, [`Meter`], and whose they
//! are,
//! [`Sampling`].

use std::collections::{BTreeMap, BTreeSet};

use link::PeerId;
use link::endpoint::PeerStats;
use units::{Duration, Instant};

/// Samples in which it still shows that something happened: two of a rate, and two that do not
/// count after an outage.
const SHOWS: u8 = 4;

/// Rates over the last seconds, from two samples of the counters, sent and received. Of a peer that
/// nothing happens to none are taken: then both are what the counters still are.
#[derive(Clone, Copy, Debug, Default)]
pub struct Meter {
    older: [u64; 2],
    newer: [u64; 2],
}

/// The time between samples: rates are over one to two of it.
pub const SPACING: Duration = Duration::from_secs(2);

impl Meter {
    /// Takes a sample.
    pub fn sample(&mut self, stats: &PeerStats) {
        self.older = self.newer;
        self.newer = [stats.bytes_out, stats.bytes_in];
    }

    /// Bits per second out and in since the older sample, which was taken `since`.
    pub fn rates(&self, now: Instant, since: Instant, stats: &PeerStats) -> (u64, u64) {
        let ms = now.since(since).as_millis().max(1);
        let rate = |now: u64, then: u64| now.saturating_sub(then).saturating_mul(8_000) / ms;
        (rate(stats.bytes_out, self.older[0]), rate(stats.bytes_in, self.older[1]))
    }
}

/// Whose counters are looked at, and when.
#[derive(Default)]
pub struct Sampling {
    /// The last two times.
    times: [Instant; 2],
    /// Peers whose counters are looked at next, and how often yet.
    left: BTreeMap<PeerId, u8>,
    /// Peers that something happened to since usage was told.
    pub used: BTreeSet<PeerId>,
    /// When that was.
    pub usage_at: Instant,
    /// While ending: peers that may have something to say.
    pub may_speak: BTreeSet<PeerId>,
}

impl Sampling {
    /// When the older of a peer's two samples was taken.
    pub fn since(&self) -> Instant {
        self.times[0]
    }

    /// Is it time for the next sample?
    pub fn is_due(&self, now: Instant) -> bool {
        now.since(self.times[1]) >= SPACING
    }

    /// A sample is taken now: of these peers, of each so often yet.
    pub fn begin(&mut self, now: Instant) -> BTreeMap<PeerId, u8> {
        self.times = [self.times[1], now];
        std::mem::take(&mut self.left)
    }

    /// It was taken; of these peers others follow.
    pub fn end(&mut self, mut left: BTreeMap<PeerId, u8>) {
        left.retain(|_, left| *left > 0);
        self.left = left;
    }

    /// Something happened to these peers: their counters are looked at.
    pub fn look_at(&mut self, peers: impl Iterator<Item = PeerId>) {
        self.left.extend(peers.map(|id| (id, SHOWS)));
    }
}
