//! The end of a shard, in good order.

use relay::ResetReason;
use units::{Duration, Instant};

use super::Shard;
use crate::up::chunks::Finishing;
use crate::up::roster::KnownPeer;

/// How long the peers are told that this node goes, at the most.
const FAREWELL: Duration = Duration::from_millis(300);
/// How often it is looked whether they have been told.
const FAREWELL_STEP: std::time::Duration = std::time::Duration::from_millis(10);

impl Shard {
    /// Takes nothing new; what is open may go on.
    pub fn stop(&mut self, now: Instant) {
        self.draining = true;
        self.relay.give_up_openings(now);
        self.tests.end_all(now, &mut self.relay);
        for flow in self.waiting.drop_all() {
            self.relay.local_reset(now, flow, ResetReason::ShuttingDown);
        }
    }

    /// Is nothing open any more, and all said? To a peer without a session nothing can be said.
    pub fn is_quiet(&self) -> bool {
        let endpoint = &self.relay.endpoint;
        let quiet = |p: &KnownPeer| {
            !endpoint.is_established(p.id) || endpoint.session(p.id).is_none_or(|s| s.is_quiet())
        };
        self.connections.len() == 0 && self.peers.iter().all(quiet)
    }

    /// Resets what is left and tells the peers.
    pub fn end(&mut self) {
        let now = self.clock.now();
        self.connections.abort_all();
        self.relay.endpoint.close_all(ResetReason::ShuttingDown);
        self.say_farewell(now);
        self.end_lines(self.clock.now());
    }

    /// Begins to write what is left of chunks, which may take seconds.
    pub fn save(&mut self) -> Finishing {
        self.chunks.finish(self.clock.now(), &mut self.relay)
    }

    /// Sends the copies of CLOSE, which are spread over a little time.
    fn say_farewell(&mut self, begin: Instant) {
        let mut now = begin;
        loop {
            self.carrier.send(&self.clock, &mut self.relay);
            self.carrier.flush_serials(now, &self.poller);
            let told = |p: &KnownPeer| {
                let endpoint = &self.relay.endpoint;
                let closing = endpoint.session(p.id).is_some_and(|s| s.is_closing());
                !closing || !endpoint.is_established(p.id)
            };
            if self.peers.iter().all(told) || now.since(begin) >= FAREWELL {
                return;
            }
            std::thread::sleep(FAREWELL_STEP);
            now = self.clock.now();
            self.relay.handle_timeout(now);
        }
    }
}
