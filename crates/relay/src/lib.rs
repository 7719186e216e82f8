//! The gateway's mind: which connections become streams, which stream belongs to
//! which local socket, what a peer may ask for, and what passes as packets.
//!
//! It knows no sockets. The driver tells facts (a connection was accepted, bytes were
//! read, a connect failed) and carries out [`Action`]s; the simulator does the same
//! in virtual time. A **flow** joins one local socket and one stream:
//!
//! ```text
//! client ── socket ── flow ── stream ══ link ══ stream ── flow ── socket ── server
//! ```
//!
//! An orderly close is relayed direction by direction: the end of a socket's input
//! ends the stream's output, the end of a stream shuts the socket's output. Only
//! after both may a socket be closed in good order; anything else resets it, so that
//! no host ever takes a cut for an end (R-SEMANTICS).

pub mod classify;
mod coding;
mod flows;
#[cfg(any(test, fuzzing))]
#[cfg_attr(not(test), allow(dead_code))]
mod gateways;
mod known;
mod opening;
pub mod packet;
mod policy;
mod refusal;
mod routes;

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};

use link::endpoint::{Endpoint, EndpointEvent, LinkEvent, Transmit};
pub use link::session::{Carry, ClassId};
use link::session::{Event, RecvState};
pub use link::tunnel::TunnelError;
use link::wire::StreamId;
pub use link::wire::{Origin, ResetReason, Target};
use link::{PeerConfig, PeerId};
use squeeze::dedup::{Dedup, Scope};
use squeeze::stream::Stopwatch;
use units::{Duration, Instant};

use classify::Facts;
pub use classify::{Rule, Share};
use coding::Coders;
pub use coding::{BadStream, ChunkCounts, LinkSqueezed, Malformed, Squeezed, StreamSqueezed};
pub use flows::FlowId;
use flows::{Flow, Flows, Kind};
use opening::Openings;
pub use policy::{Open, Policy};
pub use routes::Routes;

/// What the driver is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Connect to a server for a flow that the peer opened; then say
    /// [`Relay::connected`] or [`Relay::connect_failed`].
    Connect {
        /// The flow.
        flow: FlowId,
        /// Where to. A name's addresses must each pass [`Relay::permits`].
        target: Target,
        /// Connect as this address, if the peer's policy keeps sources.
        source: Option<SocketAddr>,
    },
    /// There is something for the flow's socket: bytes, or their end.
    Write(FlowId),
    /// The flow takes bytes from its socket again.
    Read(FlowId),
    /// The server stands (explicit proxies answer their client now).
    Accepted(FlowId),
    /// Write this packet to the syn device: a withheld SYN, which interception then takes,
    /// or the answer to one.
    ToClient(Vec<u8>),
    /// The peer gave up; what it sent before is still to be written.
    PeerReset(FlowId, ResetReason),
    /// Reset the flow's socket now and forget the flow: its stream is gone.
    Abort(FlowId, ResetReason),
}

/// What becomes of a packet that was read from the TUN device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// A client opens a connection that is to be split: write the very packet back
    /// into the TUN device, where interception takes it.
    Intercept,
    /// The far side is asked first: [`Action::ToClient`] follows.
    Withheld,
    /// It crosses the link as a datagram.
    Sent,
    /// It goes nowhere; counted.
    Dropped,
}

/// Counts for `status`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RelayStats {
    /// Streams that a peer opened to where it may not go.
    pub denied: u64,
    /// Datagrams from or to addresses that are not the peer's.
    pub foreign: u64,
    /// Packets from the TUN device that no peer has a route for, or that are none.
    pub unroutable: u64,
    /// Datagrams, and SYNs, that found their queue full.
    pub overflow: u64,
}

/// One node's gateway.
pub struct Relay {
    /// The peers' links.
    pub endpoint: Endpoint,
    policies: Vec<Option<Policy>>,
    routes: Routes,
    /// This node's own addresses.
    own: Vec<IpAddr>,
    flows: Flows,
    openings: Openings,
    coders: Coders,
    actions: VecDeque<Action>,
    /// Flows whose content is due, while they are looked at.
    due: Vec<FlowId>,
    link_events: VecDeque<(PeerId, LinkEvent)>,
    stats: RelayStats,
}

impl Relay {
    /// A gateway over `endpoint`.
    pub fn new(endpoint: Endpoint) -> Relay {
        Relay {
            endpoint,
            policies: Vec::new(),
            routes: Routes::default(),
            own: Vec::new(),
            flows: Flows::default(),
            openings: Openings::default(),
            coders: Coders::default(),
            actions: VecDeque::new(),
            due: Vec::new(),
            link_events: VecDeque::new(),
            stats: RelayStats::default(),
        }
    }

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
        let peer = self.endpoint.add_peer(now, config)?;
        self.set_policy(peer, policy);
        Ok(peer)
    }

    /// Changes what a peer may do; flows that stand stay.
    pub fn set_policy(&mut self, peer: PeerId, policy: Policy) {
        self.routes.remove_peer(peer);
        for prefix in &policy.routes {
            self.routes.insert(*prefix, peer);
        }
        if self.policies.len() <= peer.index() {
            self.policies.resize(peer.index() + 1, None);
        }
        self.policies[peer.index()] = Some(policy);
    }

    /// A peer may do nothing any more and is told that its session is over; its flows are
    /// aborted. [`Relay::remove_peer`] takes it out once it has been told.
    pub fn dismiss_peer(&mut self, peer: PeerId) {
        self.routes.remove_peer(peer);
        if let Some(slot) = self.policies.get_mut(peer.index()) {
            *slot = None;
        }
        self.abort_before(peer, u64::MAX, ResetReason::ShuttingDown);
        if let Some(session) = self.endpoint.session_mut(peer) {
            session.close(ResetReason::ShuttingDown);
        }
    }

    /// Takes a peer out; its flows are aborted.
    pub fn remove_peer(&mut self, peer: PeerId) {
        self.routes.remove_peer(peer);
        if let Some(slot) = self.policies.get_mut(peer.index()) {
            *slot = None;
        }
        self.abort_before(peer, u64::MAX, ResetReason::ShuttingDown);
        self.openings.forget_peer(peer);
        self.coders.forget_peer(peer);
        self.endpoint.remove_peer(peer);
    }

    /// Tells this node's own addresses, which peers reach only where `allow` lists them.
    pub fn set_own_addresses(&mut self, own: Vec<IpAddr>) {
        self.own = own;
    }

    /// The peer behind `addr`.
    pub fn peer_for(&self, addr: IpAddr) -> Option<PeerId> {
        self.routes.lookup(addr)
    }

    /// The peer for what has no address yet: the one with a default route, or the only one.
    pub fn default_peer(&self) -> Option<PeerId> {
        let only = || {
            let mut peers = self.endpoint.peers();
            peers.next().filter(|_| peers.next().is_none())
        };
        self.routes.default_route().or_else(only)
    }

    /// May this node connect to `addr` for the peer of `flow`?
    pub fn permits(&self, flow: FlowId, addr: IpAddr) -> bool {
        let peer = self.flows.get(flow).map(|f| f.peer);
        let policy = peer.and_then(|p| self.policies.get(p.index())?.as_ref());
        policy.is_some_and(|p| p.permits(addr, &self.own))
    }

    /// None of the addresses of a name that a peer asked for is permitted.
    pub fn count_denied(&mut self) {
        self.stats.denied += 1;
    }

    // ---- flows -----------------------------------------------------------------

    /// A client here wants a connection: opens a stream for it. `None` where there is no
    /// memory left for it (reset the client). Intercepted clients come by [`Relay::accept`].
    pub fn open(&mut self, now: Instant, peer: PeerId, origin: Origin) -> Option<FlowId> {
        let (kind, target) = (self.kind_of(peer, &origin, true), origin.target.clone());
        let session = self.endpoint.session_mut(peer)?;
        let stream = session.open(now, origin)?;
        let flow = self.insert(peer, stream, kind);
        self.openings.on_open(flow, peer, target);
        Some(flow)
    }

    fn kind_of(&self, peer: PeerId, origin: &Origin, from_here: bool) -> Kind {
        let policy = self.policies.get(peer.index()).and_then(|p| p.as_ref());
        let (rules, plain) = policy.map_or((&[][..], &[][..]), |p| (&p.rules, &p.plain_classes));
        let port = match &origin.target {
            Target::Address(a) => a.port(),
            Target::Name(_, port) => *port,
        };
        let ports = Some((origin.client.map_or(0, |c| c.port()), port));
        let facts = Facts { protocol: classify::TCP, ports, dscp: origin.dscp };
        let class = classify::class(rules, &facts);
        let compress = classify::compress(rules, &facts).unwrap_or(!plain.contains(&class));
        let host = origin.client.map(|c| c.ip());
        let by_class = || policy?.dedup_classes.iter().find(|(c, _)| *c == class).map(|(_, s)| *s);
        let share = classify::share(rules, &facts).or_else(by_class);
        let scope = match share.unwrap_or(policy.map_or(Share::Off, |p| p.dedup)) {
            Share::Off => None,
            Share::Lan => Some(Scope::Lan),
            Share::Host => host.map(Scope::Host),
        };
        Kind { class, host, port, from_here, compress, scope }
    }

    /// A new stream of the peer's session becomes a flow.
    fn insert(&mut self, peer: PeerId, stream: StreamId, kind: Kind) -> FlowId {
        if let Some(session) = self.endpoint.session_mut(peer) {
            session.set_class(stream, kind.class);
        }
        let session = self.endpoint.session_number(peer);
        self.flows.insert(Flow { peer, session, stream, kind })
    }

    /// How many bytes may be read from the flow's socket now. Where it is 0,
    /// [`Action::Read`] follows.
    pub fn read_room(&mut self, now: Instant, flow: FlowId) -> usize {
        self.flush_early(now, flow);
        let Some(f) = self.living(flow) else { return 0 };
        let Some(session) = self.endpoint.session_mut(f.peer) else { return 0 };
        match session.coding() {
            Some(coding) if !coding.is_coded() => session.write_room(f.stream) as usize,
            _ => self.coders.room(flow, f, session),
        }
    }

    /// Bytes were read from the flow's socket; answers how many were taken.
    pub fn local_data(&mut self, now: Instant, flow: FlowId, data: &[u8]) -> usize {
        let Some(f) = self.living(flow) else { return 0 };
        let Some(session) = self.endpoint.session_mut(f.peer) else { return 0 };
        match session.coding() {
            Some(coding) if !coding.is_coded() => session.write(now, f.stream, data),
            Some(coding) => self.coders.encode(now, flow, f, session, coding, data),
            None => self.coders.wait(flow, f, session, data),
        }
    }

    /// The flow's socket has no more input: its host closed its direction.
    pub fn local_end(&mut self, now: Instant, flow: FlowId) {
        let Some(f) = self.living(flow) else { return };
        let Some(session) = self.endpoint.session_mut(f.peer) else { return };
        if !self.coders.end(now, flow, f, session) {
            session.finish(now, f.stream);
        }
    }

    /// What came before the peer told what it takes is coded now.
    fn flush_early(&mut self, now: Instant, flow: FlowId) {
        let Some(f) = self.living(flow).filter(|_| self.coders.has_early(flow)) else { return };
        let Some(session) = self.endpoint.session_mut(f.peer) else { return };
        let Some(coding) = session.coding() else { return };
        self.coders.flush(now, flow, f, session, coding);
    }

    /// The link has room, or credit, for the flow: what is held of its host's content goes.
    fn pump(&mut self, now: Instant, flow: FlowId) {
        let Some(f) = self.living(flow) else { return };
        let Some(session) = self.endpoint.session_mut(f.peer) else { return };
        if let Some(coding) = session.coding().filter(|coding| coding.dedup) {
            self.coders.pump(now, flow, f, session, coding);
        }
    }

    /// The flow is about to be over: all that is held of its host's content goes.
    fn hurry(&mut self, now: Instant, flow: FlowId) {
        let Some(f) = self.living(flow) else { return };
        let Some(session) = self.endpoint.session_mut(f.peer) else { return };
        self.coders.hurry(now, flow, f, session);
    }

    /// The flow's socket was reset, or failed; the driver closes it and forgets it. What
    /// was read before is still delivered, and then the reset.
    pub fn local_reset(&mut self, now: Instant, flow: FlowId, reason: ResetReason) {
        self.hurry(now, flow);
        self.with(flow, |session, stream| session.reset(now, stream, reason, true));
        self.closed(now, flow);
    }

    /// The server stands ([`Action::Connect`]).
    pub fn connected(&mut self, flow: FlowId) {
        self.with(flow, |session, stream| session.accept(stream));
    }

    /// The server does not stand. The flow is gone.
    pub fn connect_failed(&mut self, now: Instant, flow: FlowId, reason: ResetReason) {
        self.with(flow, |session, stream| session.reset(now, stream, reason, false));
        self.closed(now, flow);
    }

    /// Bytes for the flow's socket, as slices for one vectored write; answers how many
    /// slices. Follow with [`Relay::wrote`].
    pub fn outgoing<'a>(
        &'a mut self,
        now: Instant,
        flow: FlowId,
        slices: &mut [&'a [u8]],
    ) -> usize {
        let Some(f) = self.living(flow) else { return 0 };
        let Some(session) = self.endpoint.session_mut(f.peer) else { return 0 };
        match session.coding() {
            Some(coding) if coding.is_coded() => {
                self.coders.decode(now, flow, f, session, coding, slices)
            }
            _ => session.peek_slices(f.stream, slices),
        }
    }

    /// The flow's socket took `n` bytes.
    pub fn wrote(&mut self, now: Instant, flow: FlowId, n: usize) {
        let Some(f) = self.living(flow) else { return };
        let (n, referred) = self.coders.took(flow, f.peer, n);
        self.with(flow, |session, stream| {
            session.took_referred(stream, referred as u64);
            if n > 0 {
                session.consume(now, stream, n);
            }
        });
    }

    /// The flow's socket takes nothing of [`Relay::outgoing`] now.
    pub fn not_taken(&mut self, flow: FlowId) {
        self.coders.not_taken(flow);
    }

    /// The processor time that coding streams has taken so far; zero without
    /// [`Relay::set_stopwatch`].
    pub fn coding_time(&self) -> Duration {
        self.coders.spent()
    }

    /// What stands behind the bytes of [`Relay::outgoing`]. Asking re-arms
    /// [`Action::Write`].
    pub fn outgoing_state(&mut self, flow: FlowId) -> RecvState {
        self.with(flow, |session, stream| session.recv_state(stream))
            .unwrap_or(RecvState::Reset(ResetReason::PeerRestarted))
    }

    /// The driver has closed the flow's socket and forgets it. What was read and ended
    /// in good order is still delivered.
    pub fn closed(&mut self, now: Instant, flow: FlowId) {
        self.hurry(now, flow);
        self.with(flow, |session, stream| session.release(now, stream));
        self.openings.on_closed(flow);
        self.forget(flow);
    }

    /// Clients' SYNs that wait for the far side's answer, or their clients' handshake.
    pub fn openings(&self) -> usize {
        self.openings.len()
    }

    /// The number of flows.
    pub fn flow_count(&self) -> usize {
        self.flows.len()
    }

    /// The peer of a flow.
    pub fn flow_peer(&self, flow: FlowId) -> Option<PeerId> {
        self.flows.get(flow).map(|f| f.peer)
    }

    fn with<T>(
        &mut self,
        flow: FlowId,
        act: impl FnOnce(&mut link::session::Session, StreamId) -> T,
    ) -> Option<T> {
        let f = self.living(flow)?;
        let session = self.endpoint.session_mut(f.peer)?;
        Some(act(session, f.stream))
    }

    /// A flow whose session goes on. Its peer may have begun another without the driver
    /// having heard of it yet.
    fn living(&self, flow: FlowId) -> Option<Flow> {
        self.flows.get(flow).filter(|f| f.session == self.endpoint.session_number(f.peer))
    }

    // ---- packets of the link ---------------------------------------------------

    /// A packet came from a carrier, where this host received it at `arrived`. It is
    /// opened in place.
    pub fn handle_carrier(
        &mut self,
        now: Instant,
        arrived: Instant,
        from: SocketAddr,
        packet: &mut [u8],
    ) {
        self.endpoint.handle_packet(now, arrived, from, packet);
    }

    /// The next packet for a carrier, written into `buf`.
    pub fn poll_transmit(&mut self, now: Instant, buf: &mut [u8]) -> Option<Transmit> {
        self.endpoint.poll_transmit(now, buf)
    }

    /// When [`Relay::handle_timeout`] is to be called next.
    pub fn poll_timeout(&self, now: Instant) -> Option<Instant> {
        let endpoint = self.endpoint.poll_timeout(now);
        let others = [self.openings.poll_timeout(), self.coders.poll_timeout()];
        others.into_iter().chain([endpoint]).flatten().min()
    }

    /// Does what is due.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.endpoint.handle_timeout(now);
        self.expire_openings(now);
        let mut due = std::mem::take(&mut self.due);
        self.coders.handle_timeout(now, &mut due);
        for flow in due.drain(..) {
            self.pump(now, flow);
            self.actions.push_back(Action::Read(flow)); // Perhaps it waited for room to be held.
        }
        self.due = due;
    }

    // ---- unsplit packets -------------------------------------------------------

    /// An IP packet was read from the TUN device. `split`: whether a SYN in it came
    /// from a LAN whose TCP is split.
    pub fn handle_tun(&mut self, now: Instant, packet: &mut [u8], split: bool) -> Verdict {
        let Some(p) = packet::Packet::parse(packet) else {
            self.stats.unroutable += 1;
            return Verdict::Dropped;
        };
        let Some((peer, route)) = self.routes.find(p.destination) else {
            self.stats.unroutable += 1;
            return Verdict::Dropped;
        };
        if let Some(pair) = p.opens(packet).filter(|_| split) {
            return self.on_syn(now, peer, pair, packet);
        }
        let Some(session) = self.endpoint.session_mut(peer) else { return Verdict::Dropped };
        p.clamp_mss(packet, session.max_whole_datagram());
        // Behind a default route is the Internet: then the LAN is on our side.
        let host = if route == 0 { p.source } else { p.destination };
        let policy = self.policies.get(peer.index()).and_then(|p| p.as_ref());
        let (rules, plain) = policy.map_or((&[][..], &[][..]), |p| (&p.rules, &p.plain_classes));
        let label = classify::label(rules, plain, &p, packet, host);
        if session.send_datagram(now, packet, &label) {
            Verdict::Sent
        } else {
            self.stats.overflow += 1;
            Verdict::Dropped
        }
    }

    /// Lends the next IP packet for the TUN device to `write`; false if there is none.
    /// Only packets from the peer's own prefixes to where it may go pass.
    pub fn poll_tun(&mut self, mut write: impl FnMut(&mut [u8])) -> bool {
        while let Some(peer) = self.endpoint.peer_with_datagrams() {
            let Some(session) = self.endpoint.session_mut(peer) else { continue };
            let max = session.max_whole_datagram();
            let policy = self.policies.get(peer.index()).and_then(|p| p.as_ref());
            let (own, mut passed, mut foreign) = (&self.own, false, false);
            session.take_datagram(|bytes| {
                let parsed = packet::Packet::parse(bytes);
                let allowed = parsed.filter(|p| {
                    policy.is_some_and(|rules| {
                        rules.owns(p.source) && rules.permits(p.destination, own)
                    })
                });
                match allowed {
                    Some(p) => {
                        p.clamp_mss(bytes, max);
                        write(bytes);
                        passed = true;
                    }
                    None => foreign = true,
                }
            });
            self.stats.foreign += u64::from(foreign);
            if passed {
                return true;
            }
        }
        false
    }

    // ---- what follows ----------------------------------------------------------

    /// The next thing to do.
    pub fn poll_action(&mut self, now: Instant) -> Option<Action> {
        loop {
            match self.actions.pop_front() {
                // Its socket has noticed by itself, or does not wait any more.
                Some(Action::PeerReset(flow, _) | Action::Write(flow))
                    if self.flows.get(flow).is_none() =>
                {
                    continue;
                }
                Some(action) => return Some(action),
                None => {}
            }
            let Some(event) = self.endpoint.poll_event() else {
                let peer = self.coders.next_touched()?;
                self.settle_chunks(now, peer);
                continue;
            };
            match event {
                EndpointEvent::Stream(peer, event) => self.on_event(now, peer, event),
                EndpointEvent::SessionLost(peer, reason) => {
                    let session = self.endpoint.session_number(peer);
                    self.abort_before(peer, session, reason);
                }
                EndpointEvent::Link(peer, event) => {
                    if let LinkEvent::Up { resumed: false, .. } = event {
                        self.coders.touch(peer); // It is to hear what is held here.
                    }
                    self.link_events.push_back((peer, event));
                }
            }
        }
    }

    /// What happened to a link, found while actions were polled.
    pub fn poll_link_event(&mut self) -> Option<(PeerId, LinkEvent)> {
        self.link_events.pop_front()
    }

    fn on_event(&mut self, now: Instant, peer: PeerId, event: Event) {
        let session = self.endpoint.session_number(peer);
        let flow = |id| self.flows.find(peer, session, id);
        match event {
            Event::Opened(stream, origin) => self.on_opened(now, peer, stream, origin),
            Event::Accepted(id) => {
                if let Some(flow) = flow(id) {
                    self.on_accepted(now, flow);
                }
            }
            Event::Readable(id) => {
                // Without a socket here it keeps until there is one.
                let flow = flow(id).filter(|f| !self.openings.holds(*f));
                self.actions.extend(flow.map(Action::Write));
            }
            Event::Writable(id) => {
                let flow = flow(id);
                if let Some(flow) = flow {
                    self.flush_early(now, flow);
                    self.pump(now, flow);
                }
                self.actions.extend(flow.map(Action::Read));
            }
            Event::Messages => {
                if let Some(s) = self.endpoint.session_mut(peer) {
                    self.coders.on_messages(now, peer, session, s);
                }
            }
            Event::Reset(id, reason) => {
                if let Some(flow) = flow(id) {
                    self.on_peer_reset(now, flow, reason);
                }
            }
        }
    }

    fn on_opened(&mut self, now: Instant, peer: PeerId, stream: StreamId, origin: Origin) {
        let flow = self.insert(peer, stream, self.kind_of(peer, &origin, false));
        let policy = self.policies.get(peer.index()).and_then(|p| p.as_ref());
        let permitted = policy.is_some_and(|rules| {
            let target = match &origin.target {
                Target::Address(a) => rules.permits(a.ip(), &self.own),
                Target::Name(..) => true, // its addresses are asked for one by one
            };
            target && origin.client.is_none_or(|c| rules.owns(c.ip()))
        });
        if !permitted {
            self.count_denied();
            return self.connect_failed(now, flow, ResetReason::Denied);
        }
        let keep = policy.is_some_and(|rules| rules.keep_source);
        let source = origin.client.filter(|_| keep);
        self.actions.push_back(Action::Connect { flow, target: origin.target, source });
    }

    fn forget(&mut self, flow: FlowId) {
        if let Some(f) = self.flows.get(flow) {
            let lives = f.session == self.endpoint.session_number(f.peer);
            let session = self.endpoint.session(f.peer).filter(|_| lives);
            self.coders.forget(flow, f, session);
            self.flows.remove(flow);
        }
    }

    /// Aborts the flows of the peer's sessions before `session`.
    fn abort_before(&mut self, peer: PeerId, session: u64, reason: ResetReason) {
        for flow in self.flows.before(peer, session) {
            self.forget(flow);
            if !self.openings.on_lost(flow) {
                self.actions.push_back(Action::Abort(flow, reason));
            }
        }
        self.coders.begin_session(peer);
    }

    /// Measures compression by this clock, so that its level follows the processor.
    pub fn set_stopwatch(&mut self, stopwatch: Stopwatch) {
        self.coders.set_stopwatch(stopwatch);
        self.endpoint.set_stopwatch(stopwatch);
    }

    /// What compression did in the session with a peer so far.
    pub fn squeezed(&self, peer: PeerId) -> LinkSqueezed {
        let chunks = self.coders.chunk_counts(peer, self.endpoint.session(peer));
        LinkSqueezed { chunks, ..self.coders.squeezed(peer, &self.flows) }
    }

    /// A stream that was reset because what came of it could not be undone, for the log: at
    /// most one in ten seconds, which says how many others there were.
    pub fn poll_bad_stream(&mut self, now: Instant) -> Option<BadStream> {
        self.coders.poll_bad_stream(now)
    }

    // ---- chunks ----------------------------------------------------------------

    /// Deduplicates the streams of a peer that takes it ([`link::session::LinkConfig`] must
    /// say that this node does), over `dedup`, whose keys are made of
    /// [`Endpoint::chunk_secret`]. To be called before the peer's first session begins.
    pub fn set_dedup(&mut self, peer: PeerId, dedup: Dedup) {
        self.coders.set_dedup(peer, dedup);
    }

    /// A peer whose chunks' files may have to be served ([`Relay::serve_files`]).
    pub fn poll_files(&mut self) -> Option<PeerId> {
        self.coders.next_files()
    }

    /// Does [`Relay::poll_files`] name one?
    pub fn has_files(&self) -> bool {
        self.coders.has_files()
    }

    /// Lends the chunks of a peer to `serve`, which does what they want of files and answers
    /// whether that was anything. [`Relay::poll_action`] follows: streams may have waited.
    pub fn serve_files(&mut self, peer: PeerId, serve: impl FnOnce(&mut Dedup) -> bool) {
        if self.coders.dedup_mut(peer).is_some_and(serve) {
            self.coders.touch(peer);
        }
    }

    fn settle_chunks(&mut self, now: Instant, peer: PeerId) {
        let number = self.endpoint.session_number(peer);
        let Some(session) = self.endpoint.session_mut(peer) else { return };
        let actions = &mut self.actions;
        let ready = |flow| actions.push_back(Action::Write(flow));
        self.coders.settle_chunks(now, peer, (number, session), ready);
    }

    /// Counts so far.
    pub fn stats(&self) -> RelayStats {
        self.stats
    }
}

/// What the fuzzer of deduplicating peers calls; see `fuzz/`.
#[cfg(fuzzing)]
#[doc(hidden)]
pub fn fuzz_dedup(data: &[u8]) {
    coding::fuzz::peer(data);
}
