//! A shard: everything on the way of a byte of some of the peers, on one thread and
//! without locks. It has a carrier socket, a relay, and the connections of its peers' hosts.
//! After everything that happens: time, actions, connections, packets out, packets for the
//! TUN device; then wait for the next thing.
//!
//! Most gateways have one. What there is only one of stays with the first
//! ([`Driver`](super::driver::Driver)).

mod end;
mod flows;
pub(super) mod handshake_failures;
pub(super) mod inbox;
mod line_tests;
pub(super) mod lines;
mod links;
mod packets;
pub(super) mod paths;
mod peers;
mod recarry;
pub(super) mod report;
mod sampling;
mod service_lines;
mod services;
mod standing;
mod telephone_line;
mod telephones;
mod telling;
#[cfg(test)]
mod tests;
pub(super) mod tidings;

use std::collections::BTreeMap;

use link::PeerId;
use link::endpoint::Endpoint;
use link::keys::PublicKey;
use os::OsError;
use os::copies::CopyWatch;
use os::intercept::{self, InterceptConfig, Marks};
use os::links::LinkWatch;
use os::poll::{Clock, Events, Interest, Poller};
use os::tcp::TcpOptions;
use os::tun::Tun;
use relay::{Action, Relay};
use units::{Duration, Instant};

use super::carrier::Carrier;
use super::chunks::{ChunkPlace, ChunkStores};
use super::connections::Connections;
use super::meter::Sampling;
use super::modem_rate::Modems;
use super::names::Names;
use super::peer_table::{KnownPeer, PeerTable};
use super::peers::Sharers;
use super::proxy::{self, Waiting};
use super::rules::{intercept_config, past_the_tunnel};
use super::self_test::Tests;
use crate::config::{Config, Node};
use lines::{HostNames, LeavingLines, ManagedLine, Questions};
use service_lines::ServiceLines;
use telephone_line::TelephoneLine;
use tidings::{Note, Tidings};

/// What the poller's numbers mean; a flow's own number has this bit clear.
pub(super) const OURS: u64 = 1 << 63;
const UDP: u64 = OURS;
const NAMES: u64 = OURS + 1;
const MODEMS: u64 = OURS + 2;
const CHUNKS: u64 = OURS + 3;
const COPIES: u64 = OURS + 4;
const LINES: u64 = OURS + 5;
const LINKS: u64 = OURS + 6;
/// Further carriers' sockets follow this.
const MORE_UDP: u64 = OURS + 100;
/// With the number of a connection that a service wants; no flow's number has this bit.
const CONNECTS: u64 = 1 << 62;
/// From here on they are the owner's.
pub(super) const OWNERS: u64 = OURS + 1_000;

/// How often prefixes that routes make this host's own are read again, while there is traffic. Of
/// addresses the kernel tells; of routes a router would hear too much.
const OWN_ADDRESSES_AGE: Duration = Duration::from_secs(10);

/// A loop's share of a gateway.
pub(super) struct Shard {
    pub number: usize,
    /// The node, and the peers of this shard.
    pub config: Config,
    /// Those of all shards, who share the node's memory.
    pub sharers: Sharers,
    pub clock: Clock,
    copies: CopyWatch,
    /// Hears of interfaces and addresses.
    links: LinkWatch,
    pub poller: Poller,
    pub relay: Relay,
    pub carrier: Carrier,
    pub connections: Connections,
    /// Clients of the explicit proxy.
    pub waiting: Waiting,
    /// The tunnel device, to write to.
    pub tun: Option<Tun>,
    /// The device of SYNs, to write to, once interception is in force.
    pub syns: Option<Tun>,
    names: Names,
    pub modems: Modems,
    pub chunks: ChunkStores,
    /// Self-tests of links.
    pub tests: Tests,
    line_tests: Vec<line_tests::WaitingTest>,
    services: ServiceLines,
    /// Links that are raised and dropped.
    pub lines: Vec<ManagedLine>,
    /// Those of peers that were taken out of the file.
    pub leaving_lines: LeavingLines,
    /// Names by which hosts know addresses, while there are lines.
    line_names: HostNames,
    line_questions: Questions,
    /// Lines that answer for all peers.
    telephones: Vec<TelephoneLine>,
    pub peers: PeerTable<KnownPeer>,
    /// Peers that were taken out of the file and are told so, until then.
    pub leaving: Vec<(Instant, PeerId)>,
    /// What the first shard is to know of the peers.
    pub notes: BTreeMap<PublicKey, Note>,
    pub tidings: Tidings,
    /// Somebody watches.
    watched: bool,
    pub sampling: Sampling,
    own_addresses_at: Instant,
    /// Ending: nothing new is taken.
    pub draining: bool,
}

/// What all shards have in common.
pub(super) struct Common<'a> {
    pub config: &'a Config,
    pub clock: Clock,
    pub tun: Option<&'a Tun>,
    pub chunks: &'a ChunkPlace,
    pub leaving_lines: LeavingLines,
}

/// The mark that questions for endpoints need: where all that this node sends goes into the link.
fn own_mark(node: &Node) -> Option<u32> {
    node.own.then_some(Marks::default().carrier)
}

impl Shard {
    /// A shard without peers, opened while there are rights to.
    pub fn new(
        number: usize,
        poller: Poller,
        carrier: Carrier,
        endpoint: Endpoint,
        common: &Common<'_>,
    ) -> Result<Shard, OsError> {
        let Common { config, clock, tun, chunks, leaving_lines } = common;
        let node = &config.node;
        let mut shard = Shard {
            number,
            config: Config {
                node: node.clone(),
                peers: Vec::new(),
                split: Vec::new(),
                elsewhere: Vec::new(),
                warnings: Vec::new(),
            },
            sharers: Sharers::of(&config.peers),
            clock: *clock,
            copies: CopyWatch::open()?,
            links: LinkWatch::open()?,
            poller,
            relay: Relay::new(endpoint),
            carrier,
            connections: Connections::new(TcpOptions::default()),
            waiting: Waiting::default(),
            tun: tun.map(Tun::try_clone).transpose()?,
            syns: None,
            names: Names::new(node.shards as usize, own_mark(node))?,
            modems: Modems::new()?,
            chunks: ChunkStores::new((*chunks).clone())?,
            line_tests: Vec::new(),
            tests: Tests::new(u64::from_ne_bytes(os::proc::entropy()?)),
            services: ServiceLines::default(),
            lines: Vec::new(),
            leaving_lines: leaving_lines.clone(),
            line_names: HostNames::default(),
            line_questions: Questions::default(),
            telephones: Vec::new(),
            peers: PeerTable::default(),
            leaving: Vec::new(),
            notes: BTreeMap::new(),
            tidings: Tidings::default(),
            watched: false,
            sampling: Sampling::default(),
            own_addresses_at: Instant::ZERO,
            draining: false,
        };
        // Time taken by compression: the processor's for this thread, because that of
        // others says nothing of how fast it is.
        shard.relay.set_stopwatch(|| Instant::ZERO + os::proc::thread_cpu());
        shard.relay.tell_own_clients(node.own);
        shard.share_memory();
        shard.read_own_addresses()?;
        let p = &shard.poller;
        shard.carrier.watch(p, UDP, MORE_UDP)?;
        p.add(&shard.names.waker, NAMES, Interest::READ)?;
        p.add(&shard.modems.waker, MODEMS, Interest::READ)?;
        p.add(&shard.chunks.waker, CHUNKS, Interest::READ)?;
        p.add(&shard.copies, COPIES, Interest::READ)?;
        p.add(&shard.links, LINKS, Interest::READ)?;
        Ok(shard)
    }

    /// What is this host's own from now on.
    fn read_own_addresses(&mut self) -> Result<(), OsError> {
        self.relay.set_own_addresses(os::addresses::own_addresses()?);
        self.relay.set_interfaces(os::addresses::interfaces()?);
        let node = &self.config.node;
        let networks = os::addresses::networks()?;
        let lans = networks.iter().filter(|(device, _)| node.lan.contains(device));
        let lans = lans.map(|(_, network)| *network).collect();
        // As the rules have it; who looks has no tunnel's name where nothing is split.
        let base = InterceptConfig {
            lan: node.lan.clone(),
            direct: past_the_tunnel(&self.config),
            own: node.own,
            ..InterceptConfig::new(node.tun.as_deref().unwrap_or_default(), 0)
        };
        let peers = self.config.peers.iter().map(AsRef::as_ref);
        let direct = intercept::bypassing(&intercept_config(peers, base), &networks);
        self.relay.set_networks(lans, direct);
        Ok(())
    }

    /// Watches the modems of its peers, on threads of their own.
    pub fn watch_modems(&mut self) {
        self.modems.watch(&self.config.peers);
    }

    /// Waits for news, for at most `timeout` (`None`: for ever).
    ///
    /// # Errors
    /// If the system refuses.
    pub fn wait(
        &mut self,
        events: &mut Events,
        timeout: Option<Duration>,
    ) -> Result<usize, OsError> {
        self.carrier.watch_anew(&self.poller, UDP, MORE_UDP)?;
        self.poller.wait(events, timeout)
    }

    /// When there is something to do next, if nothing happens; the present if at once.
    pub fn poll_timeout(&self, now: Instant) -> Option<Instant> {
        let carrier = self.carrier.has_work();
        let has_work = self.connections.has_work() || self.tests.has_work();
        if has_work || carrier || self.relay.has_files() {
            return Some(now);
        }
        let link = self.relay.poll_timeout(now).filter(|_| !self.carrier.is_blocked());
        let names = self.peers.due();
        let leaving = self.leaving.first().map(|(at, _)| *at);
        let drain = self.draining.then(|| now + Duration::from_millis(100));
        let connections = self.connections.poll_timeout();
        let refused = self.waiting.poll_timeout();
        let chunks = self.chunks.poll_timeout();
        let arrivals = self.carrier.poll_timeout();
        let tests = self.tests.poll_timeout();
        let usage = self.usage_timeout();
        let services = self.services.poll_timeout();
        let lines = self.lines_timeout(now);
        let telephones = self.telephones_timeout();
        let line_tests = self.line_tests_timeout();
        let timers = [
            link,
            connections,
            refused,
            names,
            leaving,
            drain,
            chunks,
            arrivals,
            tests,
            usage,
            services,
            lines,
            telephones,
            line_tests,
        ];
        timers.into_iter().flatten().min()
    }

    /// Something happened to a descriptor of the shard.
    pub fn on_event(&mut self, now: Instant, event: os::poll::Event) {
        match event.token {
            UDP => self.carrier.on_event(0, event.readable, event.failed),
            token if (MORE_UDP..MORE_UDP + 256).contains(&token) => {
                let at = (token - MORE_UDP) as usize;
                self.carrier.on_event(at, event.readable, event.failed);
            }
            NAMES => self.on_names(now),
            MODEMS => self.on_modems(now),
            LINES => self.clear_lines(),
            LINKS => {
                self.links.clear();
                let _ = self.read_own_addresses(); // Else what was read before stands.
                if self.carrier.has_interfaces() {
                    self.follow_links(now);
                }
            }
            CHUNKS => {
                self.chunks.waker.clear(); // They have their turn in a moment.
            }
            COPIES => {
                if self.copies.restored() {
                    self.distrust_keys(now, "this machine was restored from a snapshot");
                }
            }
            token if token & (OURS | CONNECTS) == CONNECTS => self.on_dial(now, event),
            _ => self.on_flow(now, event),
        }
    }

    /// Another machine may have this one's keys: both would number their packets alike.
    fn distrust_keys(&mut self, now: Instant, why: &str) {
        crate::log!(Info, "new keys for all peers before the next packet", because = why);
        self.relay.endpoint.distrust_keys(now);
    }

    /// Does what is due.
    pub fn on_time(&mut self, now: Instant) {
        if self.copies.slept() {
            self.distrust_keys(now, "this machine slept");
        }
        self.relay.handle_timeout(now);
        self.connections.handle_timeout(now, &self.poller, &mut self.relay);
        self.waiting.handle_timeout(now);
        self.resolve_endpoints(now);
        self.forget_those_who_left(now, now);
    }

    /// The drain law: until nothing moves any more.
    pub fn settle(&mut self) {
        let clock = self.clock;
        self.carrier.turn_serials(&clock, &self.poller, &mut self.relay);
        if self.carrier.receive(&clock, &mut self.relay) {
            let now = clock.now();
            if now.since(self.own_addresses_at) > OWN_ADDRESSES_AGE {
                self.own_addresses_at = now;
                let _ = self.read_own_addresses(); // Else what was read before stands.
            }
        }
        let now = clock.now();
        self.open_new_chunks();
        self.act(now);
        self.connections.work(now, &self.poller, &mut self.relay);
        self.tests.work(now, &mut self.relay);
        self.act(now);
        self.open_new_chunks();
        self.carrier.send(&clock, &mut self.relay);
        let now = clock.now();
        self.carrier.flush_serials(now, &self.poller);
        self.act(now);
        self.write_tun(now);
        self.chunks.work(now, &mut self.relay);
        self.act(now);
        self.settle_services(now);
        self.work_lines(now);
        self.work_line_tests(now);
        self.work_telephones(now);
        self.sample(now);
        self.tell_usage(now);
    }

    fn act(&mut self, now: Instant) {
        while let Some(action) = self.relay.poll_action(now) {
            let work = action.flow().and_then(|flow| self.relay.work_begins(flow));
            self.do_action(now, action);
            self.relay.charge(work);
        }
        while let Some((peer, event)) = self.relay.poll_link_event() {
            self.on_link(now, peer, event);
        }
        self.tell_flows(now);
        self.tell_bad_streams(now);
        self.tell_strangers(now);
    }

    fn do_action(&mut self, now: Instant, action: Action) {
        if let Action::PeerReset(flow, reason) | Action::Abort(flow, reason) = action {
            self.services.on_reset(flow, reason);
        }
        match action {
            Action::Connect { flow, target, source } => {
                self.connect(now, flow, target, source);
            }
            Action::ServiceConnect { connect, target, source } => {
                self.connect_for(now, connect, target, source);
            }
            Action::ServiceRefused(connect, reason) => self.refuse_dial(now, connect, reason),
            Action::Write(flow) | Action::Read(flow) => {
                if !self.tests.enqueue(flow) {
                    self.connections.enqueue(flow);
                }
            }
            Action::Accepted(flow) => self.grant(now, flow),
            Action::ToClient(packet) => self.write_syn(&packet),
            Action::ToHost(packet) => self.write_to_host(&packet),
            Action::PeerReset(flow, reason)
                if self.tests.gone(now, &mut self.relay, flow, Some(reason)) => {}
            Action::Abort(flow, _) if self.tests.gone(now, &mut self.relay, flow, None) => {}
            Action::PeerReset(flow, reason) => match self.waiting.take(&self.poller, flow) {
                Some(asked) => {
                    self.waiting.refuse(now, asked, proxy::refusal_of(reason));
                    self.relay.closed(now, flow);
                }
                None => self.connections.peer_reset(now, flow, &mut self.relay),
            },
            Action::Abort(flow, reason) => match self.waiting.take(&self.poller, flow) {
                Some(asked) => self.waiting.refuse(now, asked, proxy::refusal_of(reason)),
                None => self.connections.abort(flow),
            },
        }
    }
}
