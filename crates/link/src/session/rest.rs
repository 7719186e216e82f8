//! What a session gives back that nobody has used for a while, as a hub keeps thousands of them:
//! buffers, tables and what lies ready for the next packet. What both ends count, and what is
//! known of the link, stays: its next packet is a packet as any other, and grows what it needs.
//! Packets that keep a NAT's door open are no use of it.

use std::collections::{BTreeMap, VecDeque};

use units::Instant;

use super::path::Path;
use super::state::{Rest, Session};

impl Session {
    /// Somebody uses the session.
    pub(super) fn stir(&mut self, now: Instant) {
        self.rest = Rest::new(now);
    }

    /// When it is to be looked whether the session rests.
    pub(super) fn rest_at(&self) -> Option<Instant> {
        self.rest.due()
    }

    /// Does nobody use the session, as far as is known by now?
    pub fn rests(&self) -> bool {
        self.rest.rests()
    }

    /// Gives back what it can, if it is time.
    pub(super) fn rest(&mut self, now: Instant) {
        if self.rest_at().is_none_or(|at| at > now) {
            return;
        }
        if !self.is_quiet() {
            self.stir(now);
            return;
        }
        self.rest.begin();
        self.pool.give_back();
        if self.streams.is_empty() {
            self.streams = BTreeMap::new();
        }
        self.closed.shrink();
        self.schedule.shrink();
        for queue in [&mut self.blocked, &mut self.credits] {
            shrink(queue);
        }
        self.control.shrink();
        shrink(&mut self.opening);
        shrink(&mut self.events);
        self.outbox.shrink();
        self.inbox.shrink();
        self.flows = Default::default();
        self.touched = Default::default();
        self.paths.iter_mut().for_each(Path::give_back);
    }
}

/// Empty queues keep what they took when they were long.
fn shrink<T>(queue: &mut VecDeque<T>) {
    if queue.is_empty() {
        *queue = VecDeque::new();
    }
}
