//! Flows get their sockets: hosts' connections, connections to servers, and clients of
//! the explicit proxy.

use std::net::SocketAddr;

use relay::{Origin, ResetReason, Target};
use units::Instant;

use super::Driver;
use crate::proxy_proto::Refusal;
use crate::up::names::Purpose;
use crate::up::proxy::Asked;

impl Driver {
    pub(super) fn accept(&mut self, now: Instant, token: u64) {
        let Some(listeners) = &mut self.listeners else { return };
        for _ in 0..256 {
            let Some(accepted) = listeners.accept(now, &self.poller, token) else { return };
            // Without a peer or memory for it the socket is dropped, which resets it.
            let flow = self.relay.accept(now, accepted.client, accepted.server);
            let Some(flow) = flow else { continue };
            if !self.connections.add(&self.poller, flow, accepted.stream, false) {
                self.relay.local_reset(now, flow, ResetReason::Exhausted);
            }
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
            Target::Address(to) => self.connections.connect(&self.poller, flow, to, source),
            Target::Name(name, port) => self.ask_for_server(flow, &name, port),
        };
        if let Err(reason) = outcome {
            self.relay.connect_failed(now, flow, reason);
        }
    }

    fn ask_for_server(
        &mut self,
        flow: relay::FlowId,
        name: &str,
        port: u16,
    ) -> Result<(), ResetReason> {
        let peer = self.relay.flow_peer(flow).ok_or(ResetReason::PeerRestarted)?;
        match self.names.ask(peer, Purpose::Server(flow), name, port) {
            true => Ok(()),
            false => Err(ResetReason::Exhausted),
        }
    }

    pub(super) fn on_proxy_client(&mut self, now: Instant, token: u64) {
        let Some(proxy) = &mut self.proxy else { return };
        let Some(asked) = proxy.on_event(&self.poller, token) else { return };
        // A name goes to the peer that has the Internet: whoever routes most.
        let peer = match &asked.target {
            Target::Address(a) => self.relay.peer_for(a.ip()),
            Target::Name(..) => self.relay.default_peer(),
        };
        let Some(peer) = peer else { return asked.refuse(Refusal::NetworkUnreachable) };
        let origin = Origin { client: None, target: asked.target.clone(), dscp: 0 };
        let Some(flow) = self.relay.open(now, peer, origin) else {
            return asked.refuse(Refusal::Overloaded);
        };
        if !self.relay.asks_first(now, peer, &asked.target) {
            return self.serve_proxy_client(now, flow, asked);
        }
        self.relay.announce(flow);
        let Some(proxy) = &mut self.proxy else { return };
        if !proxy.wait(&self.poller, flow, asked) {
            self.relay.local_reset(now, flow, ResetReason::Exhausted);
        }
    }

    /// The far side stands: a proxy's client that waits for that goes on.
    pub(super) fn grant(&mut self, now: Instant, flow: relay::FlowId) {
        if let Some(asked) = self.take_waiting(flow) {
            self.serve_proxy_client(now, flow, asked);
        }
    }

    fn serve_proxy_client(&mut self, now: Instant, flow: relay::FlowId, asked: Asked) {
        let Some((stream, first)) = asked.grant() else {
            return self.relay.local_reset(now, flow, ResetReason::HostReset);
        };
        let whole = self.relay.local_data(now, flow, &first) == first.len();
        if !(whole && self.connections.add(&self.poller, flow, stream, false)) {
            self.relay.local_reset(now, flow, ResetReason::Exhausted);
        }
    }

    /// The proxy's client of a flow, if it waits for the far side.
    pub(super) fn take_waiting(&mut self, flow: relay::FlowId) -> Option<Asked> {
        self.proxy.as_mut()?.take_waiting(&self.poller, flow)
    }

    /// A flow's socket has news, which may be a proxy's client that waits and goes away.
    pub(super) fn on_flow(&mut self, now: Instant, event: os::poll::Event) {
        let flow = relay::FlowId::from_u64(event.token);
        match self.proxy.as_mut().and_then(|p| p.still_waits(flow)) {
            None => self.connections.on_event(event),
            Some(true) => {}
            Some(false) => {
                self.take_waiting(flow);
                self.relay.local_reset(now, flow, ResetReason::HostReset);
            }
        }
    }
}
