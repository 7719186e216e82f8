//! Hosts whose month's budget is used up (R-COST).
//!
//! The driver says which ([`Relay::stop_hosts`]), when that changes. What such a host begins is
//! refused as on a dead net, packets of its from and to the link are dropped and counted, and its
//! connections are reset. Only classes whose carriers charge for it count: in others the host goes
//! on.

use std::net::IpAddr;

use link::PeerId;
use link::session::ClassId;
use link::wire::ResetReason;
use units::Instant;

use crate::stopped::StoppedHosts;
use crate::{FlowId, Relay};

impl Relay {
    /// These hosts may not use the peer's link from now on, and no others: their connections are
    /// reset.
    pub fn stop_hosts(&mut self, now: Instant, peer: PeerId, stopped: StoppedHosts) {
        if stopped.is_empty() {
            return self.stopped.forget_peer(peer);
        }
        let session = (peer, self.endpoint.session_number(peer));
        let flows = stopped.hosts.iter().flat_map(|host| self.flows.of_host(session, *host));
        let is_stopped = |id: &FlowId| {
            self.flows.get(*id).is_some_and(|flow| stopped.has_class(flow.kind.class))
        };
        let ended: Vec<FlowId> = flows.filter(is_stopped).collect();
        self.stopped.set(peer, stopped);
        for flow in ended {
            self.stats.stopped += 1;
            // Nothing is left for it: no fault of its server's that others would hear of.
            self.end_flow(now, flow, ResetReason::Exhausted);
        }
    }

    /// Is a connection of the host stopped?
    pub(crate) fn is_stopped(&self, peer: PeerId, host: Option<IpAddr>, class: ClassId) -> bool {
        host.is_some_and(|host| self.stopped.stops(peer, host, || class))
    }
}

#[cfg(test)]
mod tests;
