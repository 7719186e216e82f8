//! Hosts' connections that are given to services, the streams between two of them, and the
//! connections that they want.

use std::net::SocketAddr;

use link::PeerId;
use link::session::{ChosenBy, ClassId};
use link::wire::{Origin, ResetReason, Target};
use units::Instant;

use super::Via;
use crate::classify;
use crate::connects::{Asked, Caller, ConnectId};
use crate::packet::{Facts, TCP, UDP};
use crate::policy::is_in;
use crate::{Action, FlowId, Policy, Relay};

impl Relay {
    /// A service runs; `offline`: it has answers without the link.
    pub fn start_service(&mut self, name: &str, offline: bool) {
        self.services.running.insert(name.to_owned(), offline);
    }

    /// A service does not run any more.
    pub fn stop_service(&mut self, name: &str) {
        self.services.running.remove(name);
    }

    /// Has the peer the service, as far as is known? What it told last holds while there is no
    /// session, for services that have something to do then.
    pub fn peer_has_service(&self, now: Instant, peer: PeerId, name: &str) -> bool {
        let told = self.peer_told_of(peer, name).unwrap_or(false);
        let reachable = self.endpoint.is_established(peer) || self.services.works_offline(name);
        told && reachable && !self.may_have_service_later(now, peer, name)
    }

    /// Has the peer told that it may have the service? `None`: it was never heard of.
    fn peer_told_of(&self, peer: PeerId, name: &str) -> Option<bool> {
        self.endpoint.session(peer)?.peer_may_have(name)
    }

    /// May hosts' connections to servers behind the peer be given to the service? Before the peer
    /// has told anything the file is believed, which names the service for it.
    fn is_given(&self, now: Instant, peer: PeerId, name: &str) -> bool {
        let is_unknown = self.peer_told_of(peer, name).is_none();
        self.peer_has_service(now, peer, name) || is_unknown && self.services.works_offline(name)
    }

    /// Had the peer no such service when it was asked for one, and may it have one again soon?
    pub fn may_have_service_later(&self, now: Instant, peer: PeerId, name: &str) -> bool {
        let absent = self.services.absent.get(&(peer, name.to_owned()));
        absent.is_some_and(|until| *until > now)
    }

    /// The service that takes a client's connection. `None`: it is split as a plain stream, and so
    /// is one whose SYN has opened a stream already.
    pub fn via(&self, now: Instant, client: SocketAddr, server: SocketAddr) -> Option<Via> {
        if self.services.running.is_empty() || self.pending_opens.is_pending((client, server)) {
            return None;
        }
        let dscp = self.pending_opens.dscp((client, server));
        self.via_at(now, self.peer_for(server.ip())?, client, server, dscp)
    }

    /// The same for a client that said where it wants to go, of whom nothing waits.
    pub fn via_proxy(
        &self,
        now: Instant,
        peer: PeerId,
        client: SocketAddr,
        server: SocketAddr,
    ) -> Option<Via> {
        self.via_at(now, peer, client, server, 0)
    }

    pub(crate) fn via_at(
        &self,
        now: Instant,
        peer: PeerId,
        client: SocketAddr,
        server: SocketAddr,
        dscp: u8,
    ) -> Option<Via> {
        self.via_protocol(now, peer, TCP, client, server, dscp)
    }

    /// The service that takes a client's datagram to `server`.
    pub fn via_datagram(
        &self,
        now: Instant,
        client: SocketAddr,
        server: SocketAddr,
    ) -> Option<Via> {
        let peer = self.peer_for(server.ip()).filter(|_| !self.services.running.is_empty())?;
        self.via_protocol(now, peer, UDP, client, server, 0)
    }

    fn via_protocol(
        &self,
        now: Instant,
        peer: PeerId,
        protocol: u8,
        client: SocketAddr,
        server: SocketAddr,
        dscp: u8,
    ) -> Option<Via> {
        let rules = &self.policies.of(peer)?.rules;
        let ports = Some((client.port(), server.port()));
        let facts = Facts { protocol, ports, dscp };
        let service = classify::via(rules, &facts)?;
        // A service would work for the host at nobody's cost.
        let class = classify::class(rules, &facts);
        if self.is_stopped(peer, Some(client.ip()), class) {
            return None;
        }
        let is_there = self.services.is_running(service) && self.is_given(now, peer, service);
        is_there.then(|| Via { service: service.to_owned(), peer, class, dscp })
    }

    /// The connection that [`Relay::via`] told of was given to the service.
    pub fn given(&mut self, now: Instant, client: SocketAddr, server: SocketAddr) {
        self.pending_opens.on_given(now, client, server);
    }

    /// A service gives a host's connection back: its flow. `None`: reset the client.
    pub fn open_passed(
        &mut self,
        now: Instant,
        client: SocketAddr,
        server: SocketAddr,
        dscp: u8,
    ) -> Option<FlowId> {
        let peer = self.peer_for(server.ip())?;
        let (client, target) = (self.told(client), Target::Address(server));
        self.open(now, peer, Origin { client, target, dscp })
    }

    /// A service wants a stream to the peer's service of the same name, for `client` if that is
    /// a host.
    ///
    /// # Errors
    /// Why there is none.
    pub fn open_to_service(
        &mut self,
        now: Instant,
        (peer, name): (PeerId, &str),
        client: Option<SocketAddr>,
        preface: &[u8],
        class: Option<ClassId>,
    ) -> Result<FlowId, ResetReason> {
        if !self.peer_has_service(now, peer, name) {
            return Err(ResetReason::NoSuchService);
        }
        let target = Target::Service(name.to_owned(), preface.to_vec());
        let origin = Origin { client: client.and_then(|c| self.told(c)), target, dscp: 0 };
        let flow = self.open(now, peer, origin).ok_or(ResetReason::Exhausted)?;
        if let Some(class) = class {
            self.reclassify(flow, class);
        }
        Ok(flow)
    }

    /// A service that works for `peer` wants a connection to a server, as `client` where sources
    /// are kept. [`Action::ServiceConnect`] or [`Action::ServiceRefused`] follows.
    pub fn connect_for_service(
        &mut self,
        now: Instant,
        peer: PeerId,
        target: Target,
        client: Option<SocketAddr>,
    ) -> ConnectId {
        self.services.last += 1;
        let id = ConnectId::from_u64(self.services.last);
        self.services.connects.insert(id, peer);
        let policy = self.policies.of(peer);
        let keep = policy.is_some_and(|rules| rules.keep_source);
        let origin = Origin { client, target, dscp: 0 };
        let client = self.client_of(peer, &origin, keep);
        let permitted = policy.is_some_and(|rules: &Policy| match &origin.target {
            Target::Address(a) => rules.permits(a.ip(), &self.own),
            Target::Name(..) => true, // its addresses are asked for one by one
            Target::Service(..) => false,
        });
        let Ok(known) = client.map_err(drop).and_then(|c| permitted.then_some(c).ok_or(())) else {
            self.note_denied(Some(peer), origin.client, origin.target);
            self.refuse_service(id, ResetReason::Denied);
            return id;
        };
        let source = known.filter(|_| keep);
        let client = known.map(|c| c.ip());
        let caller = Caller::Service(id);
        let target = origin.target;
        self.connect_or_hold(now, peer, Asked { caller, target, source, client, since: now });
        id
    }

    /// A service wants a connection to `client` as `server`, as that of a connection that it was
    /// given may want to connect back. `None`: it may not.
    pub fn connect_back(
        &mut self,
        now: Instant,
        service: &str,
        client: SocketAddr,
        server: SocketAddr,
    ) -> Option<ConnectId> {
        let via = self.via(now, client, server).filter(|via| via.service == service)?;
        if self.is_behind_a_peer(client.ip()) || is_in(&self.own, client.ip()) {
            return None;
        }
        self.services.last += 1;
        let id = ConnectId::from_u64(self.services.last);
        self.services.connects.insert(id, via.peer);
        Some(id)
    }

    /// The server stands, and its socket is the service's.
    pub fn service_connected(&mut self, id: ConnectId) {
        self.connects.end(Caller::Service(id), true);
        self.services.forget(id);
    }

    /// The server does not stand, or the service does not want it any more.
    pub fn service_connect_failed(&mut self, id: ConnectId) {
        self.connects.end(Caller::Service(id), false);
        self.services.forget(id);
    }

    pub(crate) fn refuse_service(&mut self, id: ConnectId, reason: ResetReason) {
        self.service_connect_failed(id);
        self.actions.push_back(Action::ServiceRefused(id, reason));
    }

    /// The peer for whom a connection is.
    pub fn caller_peer(&self, caller: Caller) -> Option<PeerId> {
        match caller {
            Caller::Flow(flow) => self.flow_peer(flow),
            Caller::Service(id) => self.services.peer_of(id),
        }
    }

    /// May a host of the peer's, as `client`, stand behind what a service of the peer's says?
    pub(crate) fn client_of_service(&self, peer: PeerId, origin: &Origin) -> Option<SocketAddr> {
        self.client_of(peer, origin, false).ok().flatten()
    }

    /// What a flow sends leaves in another class from now on; it is told as of its own.
    pub fn send_in(&mut self, flow: FlowId, class: ClassId) {
        self.with(flow, |session, stream| session.set_class(stream, class, ChosenBy::Operator));
    }

    fn reclassify(&mut self, flow: FlowId, class: ClassId) {
        self.flows.set_class(flow, class);
        self.with(flow, |session, stream| session.set_class(stream, class, ChosenBy::Operator));
    }
}
