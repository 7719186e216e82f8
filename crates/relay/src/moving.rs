//! Flows of managed links that moved: what a link manager wants to know, who raises a line for
//! what waits and hangs it up when nothing moves. Peers without one cost a comparison.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use link::PeerId;
use link::session::ClassId;
use link::wire::Target;

use crate::flows::Flows;
use crate::{Bytes, FlowId};

/// Flows that wait to be told; what others move meanwhile is told with their next bytes. Ends are
/// always told: there is nothing after them.
const MOST: usize = 4096;

/// What a flow moved since it was told last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moved {
    /// Its peer.
    pub peer: PeerId,
    /// The host here, where it is known.
    pub host: Option<IpAddr>,
    /// Its client is here.
    pub from_here: bool,
    /// Where it leads.
    pub target: Target,
    /// Its class.
    pub class: ClassId,
    /// Content of the host here.
    pub bytes: Bytes,
    /// It is over.
    pub closed: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Moving {
    watched: BTreeSet<PeerId>,
    waiting: BTreeMap<FlowId, Moved>,
}

impl Moving {
    pub fn watch(&mut self, peer: PeerId, watched: bool) {
        match watched {
            true => self.watched.insert(peer),
            false => self.watched.remove(&peer),
        };
        self.waiting.retain(|_, moved| self.watched.contains(&moved.peer));
    }

    /// The flow is new, moved `bytes`, or is over, and is still there.
    pub fn note(&mut self, flows: &Flows, flow: FlowId, bytes: Bytes, closed: bool) {
        if self.watched.is_empty() {
            return;
        }
        if let Some(waiting) = self.waiting.get_mut(&flow) {
            waiting.bytes += bytes;
            waiting.closed |= closed;
            return;
        }
        let (Some(f), Some(life)) = (flows.get(flow), flows.life(flow)) else { return };
        if self.watched.contains(&f.peer) && (self.waiting.len() < MOST || closed) {
            let moved = Moved {
                peer: f.peer,
                host: f.kind.host,
                from_here: f.kind.from_here,
                target: life.target.clone(),
                class: f.kind.class,
                bytes,
                closed,
            };
            self.waiting.insert(flow, moved);
        }
    }

    pub fn pop(&mut self) -> Option<(FlowId, Moved)> {
        self.waiting.pop_first()
    }
}

#[cfg(test)]
mod tests {
    use link::wire::StreamId;
    use units::Instant;

    use super::*;
    use crate::Policy;
    use crate::flows::Flow;
    use crate::gateways::PEER;

    #[test]
    fn the_end_of_every_flow_is_told() {
        let (mut flows, mut moving) = (Flows::default(), Moving::default());
        moving.watch(PEER, true);
        let target = Target::Address(([10, 2, 0, 2], 443).into());
        let origin = link::wire::Origin { client: None, target: target.clone(), dscp: 0 };
        let kind = Policy::default().kind(&origin, true);
        let (stream, moved) = (StreamId(0), Instant::ZERO);
        let flow = Flow { peer: PEER, session: 0, stream, kind, moved, to: None };
        let all: Vec<FlowId> = (0..5_000).map(|_| flows.insert(flow, target.clone())).collect();
        for flow in &all {
            moving.note(&flows, *flow, Bytes::default(), false);
        }
        for flow in &all {
            moving.note(&flows, *flow, Bytes::default(), true);
        }
        let told = std::iter::from_fn(|| moving.pop()).filter(|(_, moved)| moved.closed).count();
        assert_eq!(told, all.len());
    }
}
