//! Pending opens: connections that clients here are opening, and the SYNs among them that wait
//! for the far side's answer before their client gets one (R-SEMANTICS).
//!
//! ```text
//!             SYN                       ACCEPTED                     accepted here
//!   (nothing) ───▶ Asked, SYN pending  ─────────▶ Standing, SYN back ─────────────▶ a flow
//!                    │ RESET, or no SYN for long     │ no handshake for 10 s
//!                    ▼                               ▼
//!                  refused, or forgotten           the stream is reset
//! ```
//!
//! SYNs with forged sources cost an attacker nothing. How many each source may have pending is
//! decided in `callers`.
//!
//! A retransmitted SYN belongs to the open that the first one began. A client that gives up says
//! nothing, but while it waits it retransmits its SYN, at intervals that at most double.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use link::PeerId;
use link::wire::{ResetReason, Target};
use units::Instant;

use crate::destinations::DestinationCache;
use crate::flows::FlowId;
use callers::Callers;
use intercepted::{Intercepted, Pair};

mod callers;
mod intercepted;
mod syns;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SynState {
    /// The far side has been asked.
    Asked,
    /// The far connection is established; the far side may have reset it since.
    Standing(Option<ResetReason>),
    /// The stream is gone; the client may be just about to finish its handshake.
    Gone,
}

#[derive(Debug)]
struct PendingSyn {
    flow: FlowId,
    state: SynState,
    /// The newest SYN of the client.
    syn: Vec<u8>,
    first: Instant,
    until: Instant,
}

/// All pending opens of a node.
#[derive(Debug, Default)]
pub(crate) struct PendingOpens {
    /// Flows for clients here that the far side has not answered yet.
    asked: BTreeMap<FlowId, (PeerId, Target)>,
    pending: BTreeMap<Pair, PendingSyn>,
    pairs: BTreeMap<FlowId, Pair>,
    due: BTreeSet<(Instant, Pair)>,
    destinations: DestinationCache,
    callers: Callers,
    intercepted: Intercepted,
}

impl PendingOpens {
    fn set_until(&mut self, pair: Pair, until: Instant) {
        if let Some(w) = self.pending.get_mut(&pair) {
            self.due.remove(&(w.until, pair));
            w.until = until;
            self.due.insert((until, pair));
        }
    }

    fn remove(&mut self, pair: Pair) -> Option<PendingSyn> {
        let w = self.pending.remove(&pair)?;
        self.due.remove(&(w.until, pair));
        self.pairs.remove(&w.flow);
        self.callers.remove(w.first, pair);
        Some(w)
    }

    fn of_flow(&mut self, flow: FlowId) -> Option<(Pair, &mut PendingSyn)> {
        let pair = *self.pairs.get(&flow)?;
        Some((pair, self.pending.get_mut(&pair)?))
    }

    /// Has the flow no client socket here yet?
    pub fn holds(&self, flow: FlowId) -> bool {
        self.pairs.contains_key(&flow)
    }

    /// The flow ends. True if it had no client socket here yet.
    pub fn end(&mut self, flow: FlowId) -> bool {
        let pair = self.pairs.get(&flow).copied();
        pair.is_some_and(|pair| self.remove(pair).is_some())
    }

    /// A flow for a client here was opened.
    pub fn on_open(&mut self, flow: FlowId, peer: PeerId, target: Target) {
        self.asked.insert(flow, (peer, target));
    }

    /// The flow is no more.
    pub fn on_closed(&mut self, flow: FlowId) {
        self.asked.remove(&flow);
    }

    /// The peer was removed, or its session ended: it no longer knows the request.
    /// True if the driver has no socket for the flow.
    pub fn on_lost(&mut self, flow: FlowId) -> bool {
        self.asked.remove(&flow);
        let Some((pair, w)) = self.of_flow(flow) else { return false };
        match w.state {
            // The client's next SYN asks anew.
            SynState::Asked => drop(self.remove(pair)),
            _ => w.state = SynState::Gone,
        }
        true
    }

    pub fn forget_peer(&mut self, peer: PeerId) {
        self.destinations.forget_peer(peer);
        self.callers.forget_peer(peer);
    }

    pub fn poll_timeout(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Is a connection of these two just being made here, or was a moment ago?
    pub fn is_new(&self, now: Instant, pair: Pair) -> bool {
        self.intercepted.holds(now, pair)
    }

    /// Does the SYN of these two wait for the far side, or its client for the connection?
    pub fn is_pending(&self, pair: Pair) -> bool {
        self.pending.contains_key(&pair)
    }

    /// The code point of a connection that is being made.
    pub fn dscp(&self, pair: Pair) -> u8 {
        self.intercepted.dscp(pair)
    }

    /// A connection was intercepted and is given to a service instead of a flow.
    pub fn on_given(&mut self, now: Instant, client: SocketAddr, server: SocketAddr) {
        self.callers.on_handshake(now, client.ip());
        self.intercepted.take_dscp((client, server));
    }

    /// Pending SYNs.
    pub fn len(&self) -> usize {
        self.pending.len()
    }
}

#[cfg(test)]
mod tests;
