//! Peers: who they are, what they may do, and which of them is meant.

use std::net::{IpAddr, SocketAddr};

use link::tunnel::TunnelError;
use link::wire::{ResetReason, Target};
use link::{PeerConfig, PeerId};
use units::{Instant, IpPrefix};

use crate::places::connections_of;
use crate::policy::is_in;
use crate::{Action, Caller, FlowId, Policy, RefusedConnection, Relay};

impl Relay {
    /// Adds a peer.
    ///
    /// # Errors
    /// If its key is this node's own or unusable.
    pub fn add_peer(
        &mut self,
        now: Instant,
        config: PeerConfig,
        policy: Policy,
    ) -> Result<PeerId, TunnelError> {
        let most = connections_of(config.link.max_streams);
        let peer = self.endpoint.add_peer(now, config)?;
        self.policies.set_most_flows(peer, most);
        self.set_policy(peer, policy);
        Ok(peer)
    }

    /// Changes what a peer may do. Connections that this node made for it and would not make any
    /// more end; answers how many. Exchanges of packets end, too: what the peer began is not
    /// taken for an answer to what hosts say in them.
    pub fn change_policy(&mut self, now: Instant, peer: PeerId, policy: Policy) -> usize {
        let before = self.policies.of(peer).cloned().unwrap_or_default();
        let narrower = !policy.denied_since(&before).is_empty();
        self.set_policy(peer, policy);
        if !narrower {
            return 0;
        }
        self.tracking.on_narrowed(now, peer, before);
        let flows = self.flows.before(peer, u64::MAX);
        let goes = |flow: &FlowId| {
            let to = self.flows.get(*flow).and_then(|f| f.to);
            to.is_some_and(|to| !self.permits(Caller::Flow(*flow), to))
        };
        let over: Vec<FlowId> = flows.into_iter().filter(goes).collect();
        for flow in &over {
            self.end_flow(now, *flow, ResetReason::Denied);
        }
        over.len()
    }

    /// Changes what a peer may do; flows that stand stay.
    pub fn set_policy(&mut self, peer: PeerId, policy: Policy) {
        self.remove_routes(peer);
        for prefix in &policy.routes {
            self.owners.here.insert(*prefix, peer);
        }
        self.policies.set(peer, policy);
    }

    /// Prefixes of peers that other relays of this node have: nobody here speaks for what is
    /// more exactly theirs.
    pub fn set_elsewhere(&mut self, prefixes: impl IntoIterator<Item = IpPrefix>) {
        self.owners.set_elsewhere(prefixes);
    }

    /// A peer may do nothing any more and is told that its session is over; its flows are
    /// aborted. [`Relay::remove_peer`] takes it out once it has been told.
    pub fn dismiss_peer(&mut self, peer: PeerId) {
        self.remove_routes(peer);
        self.policies.clear(peer);
        self.abort_before(peer, u64::MAX, ResetReason::ShuttingDown);
        self.endpoint.close(peer, ResetReason::ShuttingDown);
    }

    /// What is behind a peer is not any more.
    fn remove_routes(&mut self, peer: PeerId) {
        for prefix in self.policies.of(peer).iter().flat_map(|policy| &policy.routes) {
            self.owners.here.remove(prefix, peer);
        }
    }

    /// Takes a peer out; its flows are aborted.
    pub fn remove_peer(&mut self, peer: PeerId) {
        self.remove_routes(peer);
        self.policies.clear(peer);
        self.abort_before(peer, u64::MAX, ResetReason::ShuttingDown);
        self.pending_opens.forget_peer(peer);
        self.codecs.forget_peer(peer);
        self.tracking.forget_peer(peer);
        self.refused.forget(peer);
        self.stopped.forget_peer(peer);
        self.accounts.forget_peer(peer);
        self.connects.forget_peer(peer);
        self.services.forget_peer(peer);
        self.endpoint.remove_peer(peer);
    }

    /// Are peers told of clients that have this node's own addresses? Not unless they are this
    /// node's own programs: what this node connects for a peer, and under its own name, to
    /// what is behind another is nobody's that the other knows.
    pub fn tell_own_clients(&mut self, told: bool) {
        self.tells_own = told;
    }

    /// The client as the far node is told of it.
    pub(crate) fn told(&self, client: SocketAddr) -> Option<SocketAddr> {
        let own = || is_in(&self.own, client.ip());
        Some(client).filter(|_| self.tells_own || !own())
    }

    /// A client of this node's proxy as the far node is told of it: not where it is a program of
    /// this node, which has no address that anything could be sent to.
    pub fn proxy_client(&self, client: SocketAddr) -> Option<SocketAddr> {
        let client = SocketAddr::new(client.ip().to_canonical(), client.port());
        let ip = client.ip();
        let local = match ip {
            IpAddr::V4(a) => a.is_link_local(),
            IpAddr::V6(a) => a.is_unicast_link_local(),
        };
        Some(client).filter(|_| !ip.is_loopback() && !local).and_then(|c| self.told(c))
    }

    /// Tells this node's own addresses, which peers reach only where `allow` lists them.
    pub fn set_own_addresses(&mut self, own: Vec<IpPrefix>) {
        self.own = own;
    }

    /// Tells the addresses of this node's interfaces, each with the network that it has there: by
    /// them hosts behind peers are told of packets that go no further here.
    pub fn set_interfaces(&mut self, interfaces: Vec<(IpAddr, IpPrefix)>) {
        self.interfaces = interfaces;
    }

    /// Tells the networks of this side's hosts, for which a peer with a default route does not
    /// speak, and all that packets reach past the tunnel where a peer's prefix is shorter.
    pub fn set_networks(&mut self, lans: Vec<IpPrefix>, direct: Vec<IpPrefix>) {
        (self.lans, self.direct) = (lans, direct);
    }

    /// The peer behind `addr`.
    pub fn peer_for(&self, addr: IpAddr) -> Option<PeerId> {
        self.owners.here.lookup(addr)
    }

    /// Is `addr` behind a peer, and not only where all of the Internet is?
    pub fn is_behind_a_peer(&self, addr: IpAddr) -> bool {
        self.owners.is_behind_a_peer(addr)
    }

    /// The peer for what has no address yet: the one with a default route, or the only one.
    pub fn default_peer(&self) -> Option<PeerId> {
        let only = || {
            let mut peers = self.endpoint.peers();
            peers.next().filter(|_| peers.next().is_none())
        };
        self.owners.here.default_route().or_else(only)
    }

    /// May this node connect to `addr` for the caller's peer?
    pub fn permits(&self, caller: Caller, addr: IpAddr) -> bool {
        let policy = self.caller_peer(caller).and_then(|p| self.policies.of(p));
        policy.is_some_and(|p| p.permits(addr, &self.own))
    }

    /// A name's address was permitted. May it be connected to? Not if the peer has too many
    /// connections there.
    pub fn leads_to(&mut self, now: Instant, caller: Caller, to: IpAddr) -> bool {
        if let Caller::Flow(flow) = caller {
            self.flows.leads_to(flow, to);
        }
        let policy = self.caller_peer(caller).and_then(|peer| self.policies.of(peer));
        let rate = policy.map_or(0, Policy::connects);
        self.connects.leads_to(now, rate, caller, to)
    }

    /// The address before did not answer. May this one be connected to, which counts as one more?
    ///
    /// # Errors
    /// Why not.
    pub fn leads_on(
        &mut self,
        now: Instant,
        caller: Caller,
        to: IpAddr,
    ) -> Result<(), ResetReason> {
        if !self.permits(caller, to) {
            return Err(ResetReason::Denied);
        }
        let policy = self.caller_peer(caller).and_then(|peer| self.policies.of(peer));
        let rate = policy.map_or(0, Policy::connects);
        if !self.connects.leads_on(now, rate, caller, to) {
            return Err(ResetReason::Exhausted);
        }
        if let Caller::Flow(flow) = caller {
            self.flows.leads_to(flow, to);
        }
        Ok(())
    }

    /// The connection that `caller` wants is closed to its peer.
    pub fn on_denied(&mut self, caller: Caller, client: Option<SocketAddr>, to: Target) {
        let peer = self.caller_peer(caller);
        self.note_denied(peer, client, to);
    }

    pub(crate) fn note_denied(
        &mut self,
        peer: Option<PeerId>,
        client: Option<SocketAddr>,
        to: Target,
    ) {
        self.stats.denied += 1;
        if let Some(peer) = peer {
            self.refused.note_connection(RefusedConnection { peer, client, to, others: 0 });
        }
    }

    /// Aborts the flows of the peer's sessions before `session`.
    pub(crate) fn abort_before(&mut self, peer: PeerId, session: u64, reason: ResetReason) {
        for flow in self.flows.before(peer, session) {
            self.forget(flow);
            if !self.pending_opens.on_lost(flow) {
                self.actions.push_back(Action::Abort(flow, reason));
            }
        }
    }
}
