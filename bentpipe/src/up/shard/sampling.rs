//! Counters of peers, looked at every two seconds: of those that something happened to, and for as
//! long afterwards as it shows. Of thousands of peers most are at rest.

use std::collections::{BTreeMap, BTreeSet};

use link::PeerId;
use units::Instant;

use super::Shard;
use crate::up::report::{self, SPACING};

/// Samples in which it still shows that something happened: two of a rate, and two that do not
/// count after an outage.
const SHOWS: u8 = 4;

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
}

impl Shard {
    /// Looks at the counters of peers, if it is time.
    pub(super) fn sample(&mut self, now: Instant) {
        if now.since(self.sampling.times[1]) < SPACING {
            return;
        }
        self.follow_changes();
        self.sampling.times = [self.sampling.times[1], now];
        let mut left = std::mem::take(&mut self.sampling.left);
        let endpoint = &self.relay.endpoint;
        left.retain(|id, left| {
            let Some(peer) = self.peers.with_id_mut(*id) else { return false };
            peer.meter.sample(&endpoint.peer_stats(*id));
            peer.losses.sample(report::fates(endpoint, *id), report::is_up(endpoint, *id));
            *left -= 1;
            true
        });
        self.tell_rates(left.keys().copied());
        self.look_at_links(now, left.keys().copied());
        left.retain(|_, left| *left > 0);
        self.sampling.left = left;
    }

    /// Notes which peers something happened to.
    pub(super) fn follow_changes(&mut self) {
        let changed = self.relay.endpoint.take_changed();
        if self.draining {
            self.sampling.may_speak.extend(&changed);
        }
        self.sampling.left.extend(changed.iter().map(|id| (*id, SHOWS)));
        self.sampling.used.extend(changed);
    }

    /// Looks at all peers' counters next.
    pub(super) fn sample_all(&mut self) {
        self.sampling.left.extend(self.peers.iter().map(|peer| (peer.id, SHOWS)));
    }
}

#[cfg(test)]
mod tests;
