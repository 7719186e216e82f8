//! The loop. After everything that happens: time, actions, connections, packets out,
//! packets for the TUN device; then wait for the next thing.

mod end;
mod flows;
mod links;
mod open;
mod packets;

use std::path::PathBuf;

use link::PeerId;
use os::OsError;
use os::intercept::Intercept;
use os::poll::{Clock, Events, Poller, Signals};
use os::tun::{Tun, TunError};
use relay::{Action, Relay};
use units::{Duration, Instant};

use super::carrier::Carrier;
use super::chunks::ChunkStores;
use super::connections::Connections;
use super::listeners::Listeners;
use super::modem::Modems;
use super::names::Names;
use super::proxy::{self, Proxy};
use super::report;
use super::roster::Roster;
use super::store::Store;
use crate::admin::{self, AdminError};
use crate::cli::Global;
use crate::config::Config;

/// What the poller's numbers mean; a flow's own number has this bit clear.
const OURS: u64 = 1 << 63;
const UDP: u64 = OURS;
const TUN: u64 = OURS + 1;
const SYNS: u64 = OURS + 2;
const LISTENER_V4: u64 = OURS + 3;
const LISTENER_V6: u64 = OURS + 4;
const SIGNALS: u64 = OURS + 5;
const NAMES: u64 = OURS + 6;
pub(super) const INTERCEPT: u64 = OURS + 7;
const PROXY: u64 = OURS + 8;
const MODEMS: u64 = OURS + 9;
const CHUNKS: u64 = OURS + 10;
const ADMIN: u64 = OURS + 100;
/// Clients of the explicit proxy that have not said where to.
const PROXY_CLIENTS: u64 = OURS + (1 << 32);

/// How often the list of this host's own addresses is read again, while there is traffic.
const OWN_ADDRESSES_AGE: Duration = Duration::from_secs(10);

/// Why the gateway cannot run.
#[derive(Debug, thiserror::Error)]
pub enum UpError {
    /// The system refuses something.
    #[error(transparent)]
    Os(#[from] OsError),
    /// The admin socket.
    #[error(transparent)]
    Admin(#[from] AdminError),
    /// A peer's key.
    #[error("peer {0}: {1}")]
    Peer(String, relay::TunnelError),
    /// Somebody took the TUN device away.
    #[error("the TUN device is gone ({0}): start the gateway again")]
    TunGone(TunError),
}

/// A running gateway.
pub struct Driver {
    pub(super) config: Config,
    pub(super) path: PathBuf,
    /// How talkative the command line wants the log.
    pub(super) global: Global,
    pub(super) clock: Clock,
    pub(super) poller: Poller,
    pub(super) relay: Relay,
    carrier: Carrier,
    pub(super) connections: Connections,
    tun: Option<Tun>,
    pub(super) intercept: Option<Intercept>,
    pub(super) routes_changed: Instant,
    listeners: Option<Listeners>,
    proxy: Option<Proxy>,
    admin: Option<admin::Server>,
    signals: Signals,
    names: Names,
    pub(super) modems: Modems,
    store: Store,
    pub(super) chunks: ChunkStores,
    pub(super) peers: Roster,
    /// Peers that were taken out of the file and are told so, until then.
    pub(super) leaving: Vec<(Instant, PeerId)>,
    own_addresses_at: Instant,
    metered_at: Instant,
    /// Ending: connections may go on until then.
    draining: Option<Instant>,
    packet: Vec<u8>,
}

impl Driver {
    /// Runs until told to end.
    ///
    /// # Errors
    /// If the system takes away what the loop lives on.
    pub fn run(&mut self) -> Result<(), UpError> {
        let mut events = Events::with_capacity(256);
        loop {
            let timeout = self.timeout();
            self.poller.wait(&mut events, timeout)?;
            let now = self.clock.now();
            for event in events.iter() {
                self.on_event(now, event)?;
            }
            self.on_time(now);
            self.settle();
            if self.is_over(now) {
                self.end();
                return Ok(());
            }
        }
    }

    /// Until the next thing that is due by time; none means for ever.
    fn timeout(&mut self) -> Option<Duration> {
        let now = self.clock.now();
        if self.connections.has_work() || self.carrier.more || self.relay.has_files() {
            return Some(Duration::ZERO);
        }
        let link = self.relay.poll_timeout(now).filter(|_| !self.carrier.is_blocked());
        let names = self.peers.name_due();
        let admin = self.admin.as_ref().and_then(admin::Server::poll_timeout);
        let proxy = self.proxy.as_ref().and_then(Proxy::poll_timeout);
        let listeners = self.listeners.as_ref().and_then(Listeners::poll_timeout);
        let silence = self.silence_timeout();
        let leaving = self.leaving.first().map(|(at, _)| *at);
        let drain = self.draining.map(|end| end.min(now + Duration::from_millis(100)));
        let connections = self.connections.poll_timeout();
        let chunks = self.chunks.poll_timeout();
        let next = [link, connections, names, admin, proxy, listeners, silence, leaving, drain];
        next.into_iter().chain([chunks]).flatten().min().map(|at| at.since(now))
    }

    fn on_event(&mut self, now: Instant, event: os::poll::Event) -> Result<(), UpError> {
        match event.token {
            UDP => self.carrier.more |= event.readable,
            TUN => self.read_tun(now)?,
            SYNS => self.read_syns(now)?,
            LISTENER_V4 | LISTENER_V6 => self.accept(now, event.token),
            SIGNALS => self.on_signals(now),
            NAMES => self.on_names(now),
            MODEMS => self.on_modems(now),
            CHUNKS => {
                self.chunks.waker.clear(); // They have their turn in a moment.
            }
            INTERCEPT => self.mend_interception(),
            PROXY => {
                if let Some(proxy) = &mut self.proxy {
                    proxy.accept(now, &self.poller);
                }
            }
            token if token >= PROXY_CLIENTS => self.on_proxy_client(now, token),
            token if token >= ADMIN => self.on_admin(now, token),
            _ => self.on_flow(now, event),
        }
        Ok(())
    }

    fn on_time(&mut self, now: Instant) {
        self.relay.handle_timeout(now);
        self.connections.handle_timeout(now, &mut self.relay);
        if let Some(admin) = &mut self.admin {
            admin.handle_timeout(&self.poller, now);
        }
        if let Some(proxy) = &mut self.proxy {
            proxy.handle_timeout(now, &self.poller);
        }
        if let Some(listeners) = &mut self.listeners {
            listeners.handle_timeout(now, &self.poller);
        }
        self.resolve_endpoints(now);
        self.follow_silence(now);
        self.forget_those_who_left(now);
    }

    /// The drain law: until nothing moves any more.
    fn settle(&mut self) {
        let clock = self.clock;
        if self.carrier.more {
            self.carrier.more = self.carrier.receive(&clock, &mut self.relay);
            let now = clock.now();
            if now.since(self.own_addresses_at) > OWN_ADDRESSES_AGE {
                self.own_addresses_at = now;
                if let Ok(own) = os::addresses::own_addresses() {
                    self.relay.set_own_addresses(own);
                }
            }
        }
        let now = clock.now();
        self.act(now);
        self.connections.work(now, &mut self.relay);
        self.act(now);
        self.carrier.send(&clock, &mut self.relay);
        let now = clock.now();
        self.act(now);
        self.write_tun();
        self.chunks.work(now, &mut self.relay);
        self.act(now);
        if now.since(self.metered_at) >= report::SPACING {
            self.metered_at = now;
            for peer in self.peers.iter_mut() {
                peer.meter.sample(now, &self.relay.endpoint.peer_stats(peer.id));
            }
        }
    }

    fn act(&mut self, now: Instant) {
        while let Some(action) = self.relay.poll_action(now) {
            match action {
                Action::Connect { flow, target, source } => {
                    self.connect(now, flow, target, source);
                }
                Action::Write(flow) | Action::Read(flow) => self.connections.enqueue(flow),
                Action::Accepted(flow) => self.grant(now, flow),
                Action::ToClient(packet) => {
                    if let Some(intercept) = &self.intercept {
                        // A full queue loses it; the client sends its SYN again.
                        let _ = intercept.syns().write(&packet);
                    }
                }
                Action::PeerReset(flow, reason) => match self.take_waiting(flow) {
                    Some(asked) => {
                        asked.refuse(proxy::refusal_of(reason));
                        self.relay.closed(now, flow);
                    }
                    None => self.connections.peer_reset(now, flow, &mut self.relay),
                },
                Action::Abort(flow, reason) => match self.take_waiting(flow) {
                    Some(asked) => asked.refuse(proxy::refusal_of(reason)),
                    None => self.connections.abort(flow),
                },
            }
        }
        while let Some((peer, event)) = self.relay.poll_link_event() {
            self.on_link(now, peer, event);
        }
    }
}
