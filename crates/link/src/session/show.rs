//! A session for people: what is open and what it waits for.

use std::fmt;

use super::state::Session;
use crate::stream::Stream;

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("streams", &self.streams)
            .field("blocked", &self.blocked.len())
            .field("control", &self.control)
            .field("in_flight", &self.paths.active().sent.in_flight())
            .field(
                "numbers",
                &(self.paths.active().sent.floor()..self.paths.active().sent.next_number()),
            )
            .field("health", &self.health())
            .field("timers", &self.timers(self.paths.active().last_heard))
            .field("over_reserve", &(self.over_reserve, self.recv_over_reserve))
            .field("peer", &self.peer)
            .field("rate", &self.rate_status())
            .field("rtt", &self.paths.active().rtt)
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let control = [self.open, self.accepted, self.fin, self.reset];
        f.debug_struct("Stream")
            .field("acked", &self.send.unacked_from())
            .field("next", &self.send.next())
            .field("end", &self.send.end())
            .field("has_lost", &self.send.has_lost())
            .field("peer_consumed", &self.peer_consumed)
            .field("consumed", &self.recv.consumed())
            .field("highest", &self.recv.highest())
            .field("fin_in", &self.fin_in)
            .field("reset_in", &self.reset_in)
            .field("open_accepted_fin_reset", &control)
            .field("local_end", &self.local_end)
            .field("opened", &self.opened)
            .field("released", &self.released)
            .field("queue", &self.queue)
            .finish_non_exhaustive()
    }
}
