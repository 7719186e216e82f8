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
mod codec;
mod connects;
pub mod datagram;
mod debt;
mod destinations;
pub mod dns;
mod events;
mod flow_news;
mod flows;
#[cfg(any(test, fuzzing))]
#[cfg_attr(not(test), allow(dead_code))]
mod gateways;
mod host_accounts;
mod moving;
pub mod packet;
mod peers;
mod pending_opens;
mod places;
mod policy;
mod refusal;
pub use refusal::answer as refusal;
mod refused;
mod routes;
pub mod self_test;
mod services;
mod sockets;
mod stopped;
mod stopping;
mod tracking;
mod unsplit;

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};

use link::PeerId;
use link::Remote;
use link::endpoint::{Endpoint, LinkEvent, Transmit};
pub use link::session::{Carry, ClassId};
pub use link::tunnel::TunnelError;
pub use link::wire::{Origin, ResetReason, Target};
use units::{Instant, IpPrefix};

pub use classify::{Rule, Share};
use codec::Codecs;
pub use codec::{
    BadStream, ChunkCounts, CompressionCounts, LinkCompression, Malformed, StreamCounts,
};
pub use connects::{Caller, ConnectId, DEFAULT as DEFAULT_CONNECTS};
use connects::{Connects, Held};
pub use flow_news::FlowNews;
use flow_news::FlowNewsQueue;
pub use flows::FlowId;
use flows::Flows;
use host_accounts::HostAccounts;
pub use host_accounts::{ByHost, Bytes, HostTraffic};
pub use moving::Moved;
use pending_opens::PendingOpens;
pub use places::streams_for;
use policy::Policies;
pub use policy::{Open, Policy};
use refused::Refused;
pub use refused::{NotPassed, RefusedConnection, RefusedPacket};
pub use routes::Routes;
use services::Services;
pub use services::Via;
pub use sockets::Work;
use stopped::Stopped;
pub use stopped::StoppedHosts;
use tracking::Tracking;

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
        /// Connect as this address, if the peer's policy keeps sources, and as no other: a
        /// name's address must be of its family.
        source: Option<SocketAddr>,
    },
    /// Connect to a server for a service; then say [`Relay::service_connected`] or
    /// [`Relay::service_connect_failed`].
    ServiceConnect {
        /// What the service asked for.
        connect: ConnectId,
        /// Where to, as with [`Action::Connect`].
        target: Target,
        /// Connect as this address, likewise.
        source: Option<SocketAddr>,
    },
    /// What a service asked for is not permitted, or too much.
    ServiceRefused(ConnectId, ResetReason),
    /// There is something for the flow's socket: bytes, or their end.
    Write(FlowId),
    /// The flow takes bytes from its socket again.
    Read(FlowId),
    /// The server stands (explicit proxies answer their client now).
    Accepted(FlowId),
    /// Write this packet to the syn device: a pending SYN, which interception then takes,
    /// or the answer to one.
    ToClient(Vec<u8>),
    /// Write this packet to the tunnel device: an ICMP error about a packet from there.
    ToHost(Vec<u8>),
    /// The peer gave up; what it sent before is still to be written.
    PeerReset(FlowId, ResetReason),
    /// Reset the flow's socket now and forget the flow: its stream is gone.
    Abort(FlowId, ResetReason),
}

impl Action {
    /// The flow that it is about.
    pub fn flow(&self) -> Option<FlowId> {
        match self {
            Action::Connect { flow, .. }
            | Action::Write(flow)
            | Action::Read(flow)
            | Action::Accepted(flow)
            | Action::PeerReset(flow, _)
            | Action::Abort(flow, _) => Some(*flow),
            Action::ServiceConnect { .. }
            | Action::ServiceRefused(..)
            | Action::ToClient(_)
            | Action::ToHost(_) => None,
        }
    }
}

/// What becomes of a packet that was read from the TUN device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// A client opens a connection that is to be split: write the very packet back
    /// into the TUN device, where interception takes it.
    Intercept,
    /// The SYN is pending: the far side is asked first, and [`Action::ToClient`] follows.
    Pending,
    /// It crosses the link as a datagram.
    Sent,
    /// There is no room for it, or no session yet; counted where there is one.
    Dropped,
    /// It may not go there, or is on no connection; counted.
    Refused,
}

/// Counts for `status`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RelayStats {
    /// Streams that a peer opened to where it may not go.
    pub denied: u64,
    /// Datagrams from addresses that are not the peer's.
    pub foreign: u64,
    /// Datagrams to where the peer may not go, that answer nothing that began here.
    pub datagrams_denied: u64,
    /// Packets and SYNs of hosts here, of an address family that the peer does not take.
    pub not_taken_there: u64,
    /// QUIC's first packets that were refused.
    pub quic_refused: u64,
    /// Flows of unsplit packets that were forgotten before their time, for want of room.
    pub flows_forgotten: u64,
    /// Packets from the TUN device that no peer has a route for, or that are none.
    pub unroutable: u64,
    /// Datagrams, and SYNs, that found their queue full.
    pub overflow: u64,
    /// Connections that were refused because all places were taken, and their host had no fewer
    /// than others.
    pub full: u64,
    /// Connections that gave way to others': of the host with the most, or of hosts that do
    /// not read what has arrived for them.
    pub displaced: u64,
    /// SYNs that waited and gave way to others, and such as were beyond their host's part.
    pub syns_dropped: u64,
    /// Packets and connections of hosts whose month's budget is used up.
    pub over_budget: u64,
    /// Connections that stood when their host's budget was used up.
    pub stopped: u64,
    /// Segments of connections just being made that the kernel found no socket for.
    pub between_sockets: u64,
}

/// One node's gateway.
pub struct Relay {
    /// The peers' links.
    pub endpoint: Endpoint,
    policies: Policies,
    owners: routes::Owners,
    /// This node's own addresses.
    own: Vec<IpPrefix>,
    /// Those of its interfaces, with their networks.
    interfaces: Vec<(IpAddr, IpPrefix)>,
    /// Networks of the hosts whose TCP is split.
    lans: Vec<IpPrefix>,
    /// Networks that packets reach past the tunnel: those of all interfaces, and what the file
    /// names.
    direct: Vec<IpPrefix>,
    /// See [`Relay::tell_own_clients`].
    tells_own: bool,
    flows: Flows,
    pending_opens: PendingOpens,
    /// Connections to servers here that peers caused.
    connects: Connects,
    held: Held,
    services: Services,
    codecs: Codecs,
    /// What unsplit packets from here have answers to expect.
    tracking: Tracking,
    refused: Refused,
    stopped: Stopped,
    accounts: HostAccounts,
    flow_news: FlowNewsQueue,
    moving: moving::Moving,
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
            policies: Policies::default(),
            owners: routes::Owners::default(),
            own: Vec::new(),
            interfaces: Vec::new(),
            lans: Vec::new(),
            direct: Vec::new(),
            tells_own: false,
            flows: Flows::default(),
            pending_opens: PendingOpens::default(),
            connects: Connects::default(),
            held: Held::default(),
            services: Services::default(),
            codecs: Codecs::default(),
            tracking: Tracking::default(),
            refused: Refused::default(),
            stopped: Stopped::default(),
            accounts: HostAccounts::default(),
            flow_news: FlowNewsQueue::default(),
            moving: moving::Moving::default(),
            actions: VecDeque::new(),
            due: Vec::new(),
            link_events: VecDeque::new(),
            stats: RelayStats::default(),
        }
    }

    /// A packet came from a carrier, where this host received it at `arrived`. It is
    /// opened in place.
    pub fn handle_carrier(
        &mut self,
        now: Instant,
        arrived: Instant,
        from: impl Into<Remote>,
        packet: &mut [u8],
    ) {
        self.endpoint.handle_packet(now, arrived, from.into(), packet);
    }

    /// The next packet for a carrier, written into `buf`.
    pub fn poll_transmit(&mut self, now: Instant, buf: &mut [u8]) -> Option<Transmit> {
        self.endpoint.poll_transmit(now, buf)
    }

    /// When [`Relay::handle_timeout`] is to be called next.
    pub fn poll_timeout(&self, now: Instant) -> Option<Instant> {
        let endpoint = self.endpoint.poll_timeout(now);
        let others = [
            self.pending_opens.poll_timeout(),
            self.codecs.poll_timeout(),
            self.held.poll_timeout(),
        ];
        others.into_iter().chain([endpoint]).flatten().min()
    }

    /// Does what is due.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.endpoint.handle_timeout(now);
        self.expire_pending_opens(now);
        self.connect_held(now);
        let mut due = std::mem::take(&mut self.due);
        self.codecs.handle_timeout(now, &mut due);
        for flow in due.drain(..) {
            self.pump(now, flow);
            self.actions.push_back(Action::Read(flow)); // Perhaps it waited for room to be held.
        }
        self.due = due;
    }

    /// What hosts have sent to the peer and received from it since the start, all traffic.
    pub fn host_traffic(&self, peer: PeerId) -> Option<ByHost> {
        self.accounts.of(peer)
    }

    /// What hosts have sent and received since this was asked last, of those that did.
    pub fn take_usage(&mut self) -> BTreeMap<PeerId, ByHost> {
        self.accounts.take_news()
    }

    /// Has [`Relay::poll_flow_news`] anything to tell? It costs nothing while it has not.
    pub fn tell_flows(&mut self, wanted: bool) {
        self.flow_news.wanted = wanted;
        if !wanted {
            self.flow_news.waiting.clear();
        }
    }

    /// The next flow that began or is over.
    pub fn poll_flow_news(&mut self) -> Option<FlowNews> {
        self.flow_news.waiting.pop_front()
    }

    /// Is [`Relay::poll_moved`] to tell of the peer's flows?
    pub fn watch_moved(&mut self, peer: PeerId, watched: bool) {
        self.moving.watch(peer, watched);
    }

    /// The next flow of a watched peer that began, moved bytes or is over.
    pub fn poll_moved(&mut self) -> Option<(FlowId, Moved)> {
        self.moving.pop()
    }

    /// How many of them were not told since this was asked last.
    pub fn take_missed_flow_news(&mut self) -> u64 {
        std::mem::take(&mut self.flow_news.missed)
    }

    /// Connections that a peer asked for beyond [`Policy::connects`], and that waited in vain.
    pub fn refused_connects(&self, peer: PeerId) -> u64 {
        self.connects.refused(peer)
    }

    /// Counts so far.
    pub fn stats(&self) -> RelayStats {
        RelayStats { flows_forgotten: self.tracking.forgotten, ..self.stats }
    }
}

/// What the fuzzer of deduplicating peers calls; see `fuzz/`.
#[cfg(fuzzing)]
#[doc(hidden)]
pub fn fuzz_dedup(data: &[u8]) {
    codec::fuzz::peer(data);
}
