//! Flows as a watcher hears of them: each when it begins and when it is over, and nothing while
//! nobody watches.

use std::collections::VecDeque;
use std::net::IpAddr;

use link::PeerId;
use link::session::ClassId;
use link::wire::Target;
use units::Instant;

use crate::flows::Flows;
use crate::{Bytes, FlowId};

/// News that wait; beyond that the newest are counted only. A peer's session may end with
/// thousands of flows.
const MOST: usize = 4096;

/// What happened to a flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowNews {
    /// It is over; else it begins.
    pub closed: bool,
    /// Which flow.
    pub flow: FlowId,
    /// Its peer.
    pub peer: PeerId,
    /// Its client, where it is known.
    pub client: Option<IpAddr>,
    /// Its client is here.
    pub from_here: bool,
    /// Where it leads.
    pub target: Target,
    /// Its class.
    pub class: ClassId,
    /// Content of the host here, to the peer and from it.
    pub bytes: Bytes,
    /// When it began.
    pub began: Instant,
}

#[derive(Debug, Default)]
pub(crate) struct FlowNewsQueue {
    pub wanted: bool,
    pub waiting: VecDeque<FlowNews>,
    pub missed: u64,
}

impl FlowNewsQueue {
    pub fn opened(&mut self, flows: &Flows, flow: FlowId) {
        self.add(flows, flow, false);
    }

    /// The flow is still there.
    pub fn closed(&mut self, flows: &Flows, flow: FlowId) {
        self.add(flows, flow, true);
    }

    fn add(&mut self, flows: &Flows, flow: FlowId, closed: bool) {
        if !self.wanted {
            return;
        }
        if self.waiting.len() >= MOST {
            self.missed += 1;
            return;
        }
        let (Some(f), Some(life)) = (flows.get(flow), flows.life(flow)) else { return };
        self.waiting.push_back(FlowNews {
            closed,
            flow,
            peer: f.peer,
            client: f.kind.host,
            from_here: f.kind.from_here,
            target: life.target.clone(),
            class: f.kind.class,
            bytes: life.bytes,
            began: life.began,
        });
    }
}
