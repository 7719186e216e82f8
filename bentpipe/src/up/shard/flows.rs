//! Flows get their sockets: hosts' connections, connections to servers, and clients of
//! the explicit proxy.

use std::collections::VecDeque;
use std::net::SocketAddr;

use link::PeerId;
use os::intercept::Marks;
use os::tcp::{Accepted, Stream};
use relay::{Caller, Origin, ResetReason, Target, self_test};
use units::Instant;

use super::Shard;
use crate::proxy_proto::Refusal;
use crate::up::connections::Others;
use crate::up::proxy::Asked;
use crate::up::services::line::Proxied;

impl Shard {
    /// A client's connection was intercepted.
    pub fn take_connection(&mut self, now: Instant, accepted: Accepted) {
        let Err(accepted) = self.give(now, accepted) else { return };
        // Without a peer or memory for it the socket is dropped, which resets it.
        let Some(flow) = self.relay.accept(now, accepted.client, accepted.server) else { return };
        if !self.connections.add(&self.poller, flow, accepted.stream, false) {
            self.relay.local_reset(now, flow, ResetReason::Exhausted);
        }
    }

    pub(super) fn connect(
        &mut self,
        now: Instant,
        flow: relay::FlowId,
        target: Target,
        source: Option<SocketAddr>,
    ) {
        let outcome = match target {
            target if self_test::is_for_service(&target) => {
                return self.tests.serve(now, &mut self.relay, flow);
            }
            Target::Address(to) => self.connect_to(flow, to, source),
            Target::Name(name, port) => {
                self.ask_for_server(Caller::Flow(flow), &name, port, source)
            }
            Target::Service(name, preface) => self.serve_stream(now, flow, &name, &preface, source),
        };
        if let Err(reason) = outcome {
            self.relay.connect_failed(now, flow, reason);
        }
    }

    /// Connects to a server for a flow that a peer opened. One that is behind another peer is
    /// reached through this host's interception, which splits the connection anew (`onward`).
    pub(super) fn connect_to(
        &mut self,
        flow: relay::FlowId,
        to: SocketAddr,
        source: Option<SocketAddr>,
    ) -> Result<(), ResetReason> {
        let mark = self.mark_for(Caller::Flow(flow), to);
        self.connections.connect(&self.poller, flow, to, source, mark)
    }

    /// The same to the first of these addresses of a server that answers.
    pub(super) fn connect_to_one_of(
        &mut self,
        now: Instant,
        flow: relay::FlowId,
        addresses: &[SocketAddr],
        from: Option<SocketAddr>,
    ) -> Result<(), ResetReason> {
        let mark = |to: &SocketAddr| (*to, self.mark_for(Caller::Flow(flow), *to));
        let mut marked: VecDeque<_> = addresses.iter().map(mark).collect();
        let Some((first, mark)) = marked.pop_front() else { return Err(ResetReason::NoSuchName) };
        let mut outcome = self.connections.connect(&self.poller, flow, first, from, mark);
        while outcome.is_err()
            && let Some((to, mark)) = marked.pop_front()
        {
            let goes = self.relay.leads_on(now, Caller::Flow(flow), to.ip());
            if goes == Err(ResetReason::Exhausted) {
                return goes; // Nor may the peer have any other.
            }
            outcome =
                goes.and_then(|()| self.connections.connect(&self.poller, flow, to, from, mark));
        }
        self.connections.try_others(now, flow, Others { addresses: marked, from });
        outcome
    }

    /// Back behind the peer that asks nothing is split again: two nodes whose routes name each
    /// other would open streams without end, where packets end by their TTL.
    pub(super) fn mark_for(&self, caller: Caller, to: SocketAddr) -> Option<u32> {
        self.syns.as_ref()?; // Without interception nobody follows marks.
        let marks = Marks::default();
        match self.relay.peer_for(to.ip()) {
            Some(peer) if Some(peer) == self.relay.caller_peer(caller) => Some(marks.unsplit),
            Some(_) => Some(marks.onward),
            // Another shard may have a peer for it.
            None => (self.config.node.shards > 1).then_some(marks.onward),
        }
    }

    /// A client of the explicit proxy has said where it wants to go.
    pub fn take_proxy_client(&mut self, now: Instant, asked: Asked) {
        if self_test::is_for_service(&asked.target) {
            return self.waiting.refuse(now, asked, Refusal::HostUnreachable); // It is no host's.
        }
        let peer = self.peer_for_client(&asked.target);
        let Some(peer) = peer else {
            return self.waiting.refuse(now, asked, Refusal::NetworkUnreachable);
        };
        let Some(asked) = self.give_proxied(now, peer, asked) else { return };
        let client = self.relay.proxy_client(asked.client);
        let origin = Origin { client, target: asked.target.clone(), dscp: 0 };
        let Some(flow) = self.relay.open(now, peer, origin) else {
            return self.waiting.refuse(now, asked, Refusal::Overloaded);
        };
        if !self.relay.asks_first(now, peer, &asked.target) {
            return self.serve_proxy_client(now, flow, asked);
        }
        self.relay.announce(flow);
        if !self.waiting.add(&self.poller, flow, asked) {
            self.relay.local_reset(now, flow, ResetReason::Exhausted);
        }
    }

    /// The peer for a client of the proxy. A name goes to the one that has the Internet: who routes
    /// most.
    fn peer_for_client(&self, target: &Target) -> Option<PeerId> {
        match target {
            Target::Address(a) => self.relay.peer_for(a.ip()),
            Target::Name(..) => self.relay.default_peer(),
            Target::Service(..) => None, // No client of a proxy can say that.
        }
    }

    /// A service gives a client of the proxy back, of whom it has `read` so much.
    pub(super) fn take_proxied(
        &mut self,
        now: Instant,
        stream: Stream,
        it: Proxied,
        mut read: Vec<u8>,
    ) {
        let Proxied { target, client, mut rest, early } = it;
        // What is behind the first bytes nobody has looked at, and it may be for another server.
        let goes = early.min(read.len());
        let goes = goes + rest.take(&read[goes..]);
        read.truncate(goes);
        // Without a peer or memory for it the socket is dropped, which resets it.
        let Some(peer) = self.peer_for_client(&target) else { return };
        let origin = Origin { client: self.relay.proxy_client(client), target, dscp: 0 };
        let Some(flow) = self.relay.open(now, peer, origin) else { return };
        if !self.connections.add_client(&self.poller, flow, stream, rest, read) {
            self.relay.local_reset(now, flow, ResetReason::Exhausted);
        }
    }

    /// The far side stands: a proxy's client that waits for that goes on.
    pub(super) fn grant(&mut self, now: Instant, flow: relay::FlowId) {
        if let Some(asked) = self.waiting.take(&self.poller, flow) {
            self.serve_proxy_client(now, flow, asked);
        }
    }

    fn serve_proxy_client(&mut self, now: Instant, flow: relay::FlowId, asked: Asked) {
        let Some((stream, rest, first)) = asked.grant() else {
            return self.relay.local_reset(now, flow, ResetReason::HostReset);
        };
        // Where memory is short not all of it is taken now.
        let ahead = first[self.relay.local_data(now, flow, &first)..].to_vec();
        if !self.connections.add_client(&self.poller, flow, stream, rest, ahead) {
            self.relay.local_reset(now, flow, ResetReason::Exhausted);
        }
    }

    /// A flow's socket has news, which may be a proxy's client that waits and goes away.
    pub(super) fn on_flow(&mut self, now: Instant, event: os::poll::Event) {
        let flow = relay::FlowId::from_u64(event.token);
        match self.waiting.still_waits(flow) {
            None => self.connections.on_event(event),
            Some(true) => {}
            Some(false) => {
                self.waiting.take(&self.poller, flow);
                self.relay.local_reset(now, flow, ResetReason::HostReset);
            }
        }
    }
}
