//! Who has the places for connections with a peer, when all are taken.
//!
//! A session has a number of streams ([`LinkConfig::max_streams`]), of which a part is kept for
//! streams that are being reset and are not gone yet. As long as there are places a host may have
//! all of them. When there are none the host that has the most loses one to a host that has at
//! least two fewer, so that one host that opens all that it can, and never closes or never reads,
//! ends with what is left over by the others. It loses first what nothing moved in for longest,
//! and what is interactive last.
//!
//! One host may come by many addresses. So networks (an IPv4 /24, an IPv6 /64) are counted, too:
//! a host of a larger one displaces one of a smaller one only if it has far fewer, and a host that
//! has few in a smaller network gets its place from the largest network.
//!
//! [`LinkConfig::max_streams`]: link::session::LinkConfig::max_streams

use std::net::IpAddr;

use link::PeerId;
use link::wire::ResetReason;
use units::Instant;

use crate::{Action, FlowId, Relay};

/// One stream in so many is kept for those that are on their way out.
const KEPT: u32 = 17;

/// [`LinkConfig::max_streams`](link::session::LinkConfig::max_streams) of a link for so many
/// connections at once.
pub const fn streams_for(connections: u32) -> u32 {
    connections + connections / (KEPT - 1) + 1
}

/// Connections at once on a link with so many streams.
pub(crate) const fn connections_of(streams: u32) -> usize {
    (streams - streams.div_ceil(KEPT)) as usize
}

impl Relay {
    /// Is there a place for a connection of `host`? One is made if others have too many.
    pub(crate) fn has_place(&mut self, now: Instant, peer: PeerId, host: Option<IpAddr>) -> bool {
        let session = (peer, self.endpoint.session_number(peer));
        let most = self.policies.most_flows(peer);
        if self.flows.of_session(session) < most {
            return true;
        }
        let Some(flow) = self.flows.displaced_by(session, host) else {
            self.stats.full += 1;
            return false;
        };
        self.stats.displaced += 1;
        self.end_flow(now, flow, ResetReason::Exhausted);
        true
    }

    /// Ends the flows whose history was needed for others (L-CO-3).
    pub(crate) fn end_giving_way(&mut self, now: Instant) {
        while let Some(flow) = self.codecs.poll_gives_way() {
            self.stats.displaced += 1;
            self.end_flow(now, flow, ResetReason::Exhausted);
        }
    }

    /// Ends a flow that goes on at both of its ends.
    pub(crate) fn end_flow(&mut self, now: Instant, flow: FlowId, reason: ResetReason) {
        self.with(flow, |session, stream| session.reset(now, stream, reason, false));
        match self.pending_opens.end(flow) {
            // There is no socket. Its client is not told: its next SYN asks anew.
            true => self.closed(now, flow),
            false => {
                self.closed(now, flow);
                self.actions.push_back(Action::Abort(flow, reason));
            }
        }
    }
}

#[cfg(test)]
mod tests;
