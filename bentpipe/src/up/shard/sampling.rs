//! Counters of peers, looked at every two seconds: of those that something happened to, and for as
//! long afterwards as it shows. Of thousands of peers most are at rest.

use units::Instant;

use super::Shard;
use crate::up::losses::{Fates, is_up};

impl Shard {
    /// Looks at the counters of peers, if it is time.
    pub(super) fn sample(&mut self, now: Instant) {
        if !self.sampling.is_due(now) {
            return;
        }
        self.follow_changes();
        let mut left = self.sampling.begin(now);
        let endpoint = &self.relay.endpoint;
        left.retain(|id, left| {
            let Some(peer) = self.peers.with_id_mut(*id) else { return false };
            peer.meter.sample(&endpoint.peer_stats(*id));
            peer.losses.sample(Fates::of(endpoint, *id), is_up(endpoint, *id));
            *left -= 1;
            true
        });
        self.tell_rates(left.keys().copied());
        self.look_at_links(now, left.keys().copied());
        self.sampling.end(left);
    }

    /// Notes which peers something happened to.
    pub(super) fn follow_changes(&mut self) {
        let changed = self.relay.endpoint.take_changed();
        if self.draining {
            self.sampling.may_speak.extend(&changed);
        }
        self.sampling.look_at(changed.iter().copied());
        self.sampling.used.extend(changed);
    }

    /// Looks at all peers' counters next.
    pub(super) fn sample_all(&mut self) {
        self.sampling.look_at(self.peers.iter().map(|peer| peer.id));
    }
}

#[cfg(test)]
mod tests;
