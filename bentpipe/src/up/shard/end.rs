//! The end of a shard, in good order.

use link::PeerId;
use relay::ResetReason;
use units::{Duration, Instant};

use super::Shard;
use crate::up::chunks::Finishing;

/// How long the peers are told that this node goes, at the most.
const FAREWELL: Duration = Duration::from_millis(300);
/// How often it is looked whether they have been told.
const FAREWELL_STEP: std::time::Duration = std::time::Duration::from_millis(10);

impl Shard {
    /// Takes nothing new; what is open may go on.
    pub fn stop(&mut self, now: Instant) {
        self.draining = true;
        self.sampling.may_speak = self.peers.iter().map(|peer| peer.id).collect();
        self.relay.give_up_pending_opens(now);
        self.tests.end_all(now, &mut self.relay);
        for flow in self.waiting.drop_all() {
            self.relay.local_reset(now, flow, ResetReason::ShuttingDown);
        }
    }

    /// Is nothing open any more, and all said? To a peer without a session nothing can be said.
    pub fn is_quiet(&mut self) -> bool {
        if self.connections.len() > 0 {
            return false;
        }
        self.follow_changes();
        let endpoint = &self.relay.endpoint;
        let is_quiet = |id: PeerId| {
            !endpoint.is_established(id) || endpoint.session(id).is_none_or(|s| s.is_quiet())
        };
        // Who was found quiet is so until something happens.
        while let Some(id) = self.sampling.may_speak.first().copied() {
            if !is_quiet(id) {
                return false;
            }
            self.sampling.may_speak.remove(&id);
        }
        true
    }

    /// Resets what is left and tells the peers.
    pub fn end(&mut self) {
        let now = self.clock.now();
        self.connections.abort_all();
        self.relay.endpoint.close_all(ResetReason::ShuttingDown);
        self.say_farewell(now);
        self.end_lines(self.clock.now());
        self.end_telephones();
    }

    /// Begins to write what is left of chunks, which may take seconds.
    pub fn save(&mut self) -> Finishing {
        self.chunks.finish(self.clock.now(), &mut self.relay)
    }

    /// Sends the copies of CLOSE, which are spread over a little time.
    fn say_farewell(&mut self, begin: Instant) {
        let mut now = begin;
        let mut left: Vec<PeerId> = self.peers.iter().map(|peer| peer.id).collect();
        loop {
            self.carrier.send(&self.clock, &mut self.relay);
            self.carrier.flush_serials(now, &self.poller);
            let endpoint = &self.relay.endpoint;
            left.retain(|id| {
                let closing = endpoint.session(*id).is_some_and(|s| s.is_closing());
                closing && endpoint.is_established(*id)
            });
            if left.is_empty() || now.since(begin) >= FAREWELL {
                return;
            }
            std::thread::sleep(FAREWELL_STEP);
            now = self.clock.now();
            self.relay.handle_timeout(now);
        }
    }
}
