//! The loop. After everything that happens: time, actions, connections, packets out,
//! packets for the TUN device; then wait for the next thing.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use link::PeerId;
use link::endpoint::{Endpoint, EndpointConfig, LinkEvent};
use link::seal::Cipher;
use os::OsError;
use os::intercept::{Intercept, InterceptConfig, Marks};
use os::poll::{Clock, Events, Interest, Poller, Signal, Signals};
use os::tcp::TcpOptions;
use os::tun::{Tun, TunError};
use relay::{Action, Origin, Relay, ResetReason, Target, Verdict};
use units::{Duration, Instant};

use super::carrier::Carrier;
use super::connections::Connections;
use super::interception::{Clear, intercept_config};
use super::listeners::Listeners;
use super::modem::Modems;
use super::names::{Names, Purpose};
use super::peers;
use super::proxy::{self, Asked, Proxy};
use super::report::{self, Meter};
use super::store::Store;
use crate::admin::{self, AdminError};
use crate::cli::Global;
use crate::config::{Config, Peer};
use crate::proxy_proto::Refusal;

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
const ADMIN: u64 = OURS + 100;
/// Clients of the explicit proxy that have not said where to.
const PROXY_CLIENTS: u64 = OURS + (1 << 32);

/// MTU of the TUN device: hosts see an ordinary link (fragments cross below it).
const TUN_MTU: u16 = 1500;
/// TUN packets per turn.
const TUN_PACKETS: usize = 64;
/// How long the peers are told that this node goes, at the most.
const FAREWELL: Duration = Duration::from_millis(300);
/// How often it is looked whether they have been told.
const FAREWELL_STEP: std::time::Duration = std::time::Duration::from_millis(10);
/// How long open connections may go on after SIGTERM.
const DRAIN: Duration = Duration::from_secs(10);
/// Handshakes per second above which strangers must prove their address.
const INITIATIONS_PER_SECOND: u32 = 100;
/// How often the list of this host's own addresses is read again, while there is traffic.
const OWN_ADDRESSES_AGE: Duration = Duration::from_secs(10);
/// A name that did not resolve is asked again after this.
const NAME_RETRY: Duration = Duration::from_secs(10);
/// So is one whose address does not answer.
const NAME_AGE: Duration = Duration::from_secs(60);

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

/// A peer as configured, and what it is in the relay.
pub(super) struct KnownPeer {
    pub id: PeerId,
    pub config: Peer,
    pub meter: Meter,
    pub clear: Clear,
    /// When its name is to be asked for.
    pub resolve_at: Option<Instant>,
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
    pub(super) peers: Vec<KnownPeer>,
    /// Peers that were taken out of the file and are told so, until then.
    pub(super) leaving: Vec<(Instant, PeerId)>,
    own_addresses_at: Instant,
    metered_at: Instant,
    /// Ending: connections may go on until then.
    draining: Option<Instant>,
    packet: Vec<u8>,
}

impl Driver {
    /// Opens everything that `config` names.
    ///
    /// # Errors
    /// One sentence; then nothing is left behind, and what an earlier run that crashed
    /// left to block is still there.
    pub fn open(config: Config, path: &Path, global: &Global) -> Result<Driver, UpError> {
        let signals = Signals::take()?;
        os::proc::precise_timers()?;
        os::proc::raise_descriptor_limit()?;
        let poller = Poller::new()?;
        let node = &config.node;
        let marks = Marks::default();
        let carrier = Carrier::open(node.listen, node.tun.as_ref().map(|_| marks.carrier))?;
        let tun = node.tun.as_ref().map(|name| Tun::open(name, TUN_MTU)).transpose()?;
        let options = TcpOptions::default();
        let listeners = match &tun {
            Some(_) => Some(Listeners::open(&options, [LISTENER_V4, LISTENER_V6])?),
            None => None,
        };
        let proxy = match node.proxy {
            Some(address) => Some(Proxy::open(address, &poller, PROXY, PROXY_CLIENTS)?),
            None => None,
        };
        let admin = admin::Server::open(&node.admin_socket(), &poller, ADMIN)?;
        let names = Names::new()?;
        let modems = Modems::new()?;
        // Last of what may be refused: from here on hosts' traffic is affected.
        let intercept = match (&tun, &listeners) {
            (Some(tun), Some(listeners)) => {
                let base = InterceptConfig {
                    lan: node.lan.clone(),
                    carrier_ports: vec![carrier.socket.local_addr().port()],
                    ..InterceptConfig::new(tun.name(), listeners.port())
                };
                Some(Intercept::install(&intercept_config(config.peers.iter(), base))?)
            }
            _ => None,
        };
        let endpoint = Endpoint::new(EndpointConfig {
            private_key: node.private_key.clone(),
            seed: os::proc::entropy()?,
            hardware_aes: Cipher::hardware_aes(),
            initiations_per_second: INITIATIONS_PER_SECOND,
        });
        let store = Store::open(endpoint.public_key());
        let mut driver = Driver {
            path: path.to_owned(),
            global: global.clone(),
            clock: Clock::start(),
            relay: Relay::new(endpoint),
            carrier,
            connections: Connections::new(options),
            tun,
            intercept,
            routes_changed: Instant::ZERO,
            listeners,
            proxy,
            admin: Some(admin),
            signals,
            names,
            modems,
            store,
            peers: Vec::new(),
            leaving: Vec::new(),
            own_addresses_at: Instant::ZERO,
            metered_at: Instant::ZERO,
            draining: None,
            packet: vec![0; 65_536],
            poller,
            config,
        };
        driver.relay.set_own_addresses(os::addresses::own_addresses()?);
        driver.watch()?;
        for peer in driver.config.peers.clone() {
            driver.add_peer(peer)?;
        }
        // Last, and before the first thread: rights are a thread's own.
        match &driver.config.node.user {
            Some(user) => os::proc::become_user(user)?,
            None => os::proc::drop_rights()?,
        }
        driver.modems.watch(&driver.config.peers);
        driver.announce();
        Ok(driver)
    }

    fn watch(&self) -> Result<(), OsError> {
        let p = &self.poller;
        p.add(&self.carrier.socket, UDP, Interest::READ_WRITE.edge())?;
        p.add(&self.signals, SIGNALS, Interest::READ)?;
        p.add(&self.names.waker, NAMES, Interest::READ)?;
        p.add(&self.modems.waker, MODEMS, Interest::READ)?;
        if let Some(tun) = &self.tun {
            p.add(tun, TUN, Interest::READ)?;
        }
        if let Some(listeners) = &self.listeners {
            listeners.watch(p)?;
        }
        if let Some(intercept) = &self.intercept {
            p.add(intercept.syns(), SYNS, Interest::READ)?;
            p.add(intercept, INTERCEPT, Interest::READ)?;
        }
        Ok(())
    }

    fn announce(&self) {
        let node = &self.config.node;
        let listen = self.carrier.socket.local_addr();
        crate::log!(
            Info,
            "bentpipe is up",
            version = env!("CARGO_PKG_VERSION"),
            listen = listen,
            tun = node.tun.as_deref().unwrap_or("none"),
            lan = node.lan.join(","),
            peers = self.peers.len()
        );
        if let Err(e) = std::fs::File::open(&self.path) {
            // Root without rights, or another user, may be refused what root was given.
            crate::log!(Warn, "the file cannot be read again, so SIGHUP will fail", error = e);
        }
        self.interception_warnings();
    }

    // ---- peers -------------------------------------------------------------------

    pub(super) fn add_peer(&mut self, peer: Peer) -> Result<(), UpError> {
        let now = self.clock.now();
        let count = self.config.peers.len();
        let stored = self.store.get(&peer.public_key);
        let config = peers::peer_config(&self.config.node, &peer, count, stored);
        let id = self
            .relay
            .add_peer(now, config, peers::policy(&peer))
            .map_err(|e| UpError::Peer(peer.name.clone(), e))?;
        let resolve_at = peers::named_endpoint(&peer).map(|_| now);
        let (meter, clear) = (Meter::default(), Clear::new(now));
        self.peers.push(KnownPeer { id, config: peer, meter, clear, resolve_at });
        Ok(())
    }

    fn known(&mut self, id: PeerId) -> Option<&mut KnownPeer> {
        self.peers.iter_mut().find(|p| p.id == id)
    }

    // ---- the loop ----------------------------------------------------------------

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
            self.settle(now);
            if self.is_over(now) {
                self.end();
                return Ok(());
            }
        }
    }

    /// Until the next thing that is due by time; none means for ever.
    fn timeout(&mut self) -> Option<Duration> {
        let now = self.clock.now();
        if self.connections.has_work() || self.carrier.more {
            return Some(Duration::ZERO);
        }
        let link = self.relay.poll_timeout(now).filter(|_| !self.carrier.is_blocked());
        let names = self.peers.iter().filter_map(|p| p.resolve_at).min();
        let admin = self.admin.as_ref().and_then(admin::Server::poll_timeout);
        let proxy = self.proxy.as_ref().and_then(Proxy::poll_timeout);
        let listeners = self.listeners.as_ref().and_then(Listeners::poll_timeout);
        let silence = self.silence_timeout();
        let leaving = self.leaving.first().map(|(at, _)| *at);
        let drain = self.draining.map(|end| end.min(now + Duration::from_millis(100)));
        let connections = self.connections.poll_timeout();
        let next = [link, connections, names, admin, proxy, listeners, silence, leaving, drain];
        next.into_iter().flatten().min().map(|at| at.since(now))
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
    fn settle(&mut self, now: Instant) {
        if self.carrier.more {
            self.carrier.more = self.carrier.receive(now, &mut self.relay);
            if now.since(self.own_addresses_at) > OWN_ADDRESSES_AGE {
                self.own_addresses_at = now;
                if let Ok(own) = os::addresses::own_addresses() {
                    self.relay.set_own_addresses(own);
                }
            }
        }
        self.act(now);
        self.connections.work(now, &mut self.relay);
        self.act(now);
        self.carrier.send(now, &mut self.relay);
        self.act(now);
        self.write_tun();
        if now.since(self.metered_at) >= report::SPACING {
            self.metered_at = now;
            for peer in &mut self.peers {
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

    // ---- connections -------------------------------------------------------------

    fn accept(&mut self, now: Instant, token: u64) {
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

    fn connect(
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

    fn on_proxy_client(&mut self, now: Instant, token: u64) {
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
    fn grant(&mut self, now: Instant, flow: relay::FlowId) {
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
    fn take_waiting(&mut self, flow: relay::FlowId) -> Option<Asked> {
        self.proxy.as_mut()?.take_waiting(&self.poller, flow)
    }

    /// A flow's socket has news, which may be a proxy's client that waits and goes away.
    fn on_flow(&mut self, now: Instant, event: os::poll::Event) {
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

    // ---- packets -----------------------------------------------------------------

    fn read_tun(&mut self, now: Instant) -> Result<(), UpError> {
        let Some(tun) = &self.tun else { return Ok(()) };
        for _ in 0..TUN_PACKETS {
            let Some(n) = packet_read(tun.read(&mut self.packet))? else { break };
            self.relay.handle_tun(now, &mut self.packet[..n], false);
        }
        Ok(())
    }

    fn read_syns(&mut self, now: Instant) -> Result<(), UpError> {
        let Some(intercept) = &self.intercept else { return Ok(()) };
        for _ in 0..TUN_PACKETS {
            let Some(n) = packet_read(intercept.syns().read(&mut self.packet))? else { break };
            // A gateway that ends opens nothing new.
            if self.draining.is_none()
                && self.relay.handle_tun(now, &mut self.packet[..n], true) == Verdict::Intercept
            {
                // A full queue loses the SYN; the client sends it again.
                let _ = intercept.syns().write(&self.packet[..n]);
            }
        }
        Ok(())
    }

    fn write_tun(&mut self) {
        let tun = &self.tun;
        while self.relay.poll_tun(|packet| {
            if let Some(tun) = tun {
                // What the kernel does not take is lost, as on any full interface.
                let _ = tun.write(packet);
            }
        }) {}
    }

    // ---- what else happens ---------------------------------------------------------

    fn on_link(&mut self, now: Instant, id: PeerId, event: LinkEvent) {
        let key = match self.known(id) {
            Some(peer) => peer.config.public_key,
            None => return,
        };
        let name = self.known(id).map(|p| p.config.name.clone()).unwrap_or_default();
        if let Some(peer) = self.known(id) {
            peer.clear.on_link(now, event);
        }
        match event {
            LinkEvent::Up { resumed: false, cipher, rtt } => {
                crate::log!(Info, "link up", peer = name, cipher = cipher.name(), rtt = rtt);
                if let Some(address) = self.relay.endpoint.peer_endpoint(id) {
                    self.store.set(&key, address);
                }
            }
            LinkEvent::Up { .. } => crate::log!(Debug, "new keys", peer = name),
            LinkEvent::Moved(to) => {
                crate::log!(Info, "the peer is at a new address", peer = name, address = to);
                self.store.set(&key, to);
            }
            LinkEvent::Silent => {
                crate::log!(Warn, "the peer does not answer; its streams wait", peer = name);
                if let Some(peer) = self.known(id) {
                    peer.resolve_at = peers::named_endpoint(&peer.config).map(|_| now);
                }
            }
            LinkEvent::Back => crate::log!(Info, "the peer answers again", peer = name),
            LinkEvent::Closed => crate::log!(Info, "the peer ended the session", peer = name),
        }
    }

    fn resolve_endpoints(&mut self, now: Instant) {
        for peer in &mut self.peers {
            if peer.resolve_at.is_some_and(|at| at <= now)
                && let Some((name, port)) = peers::named_endpoint(&peer.config)
            {
                self.names.ask(peer.id, Purpose::Endpoint(peer.id), name, port);
                // Asked again until there is a session.
                peer.resolve_at = Some(now + NAME_RETRY);
            }
        }
    }

    fn on_names(&mut self, now: Instant) {
        self.names.waker.clear();
        while let Some(answer) = self.names.next() {
            match answer.purpose {
                Purpose::Endpoint(id) => {
                    let established = self.relay.endpoint.is_established(id)
                        && !self.relay.endpoint.is_silent(id);
                    // Where it answers from counts for more than a name.
                    if let Some(address) = answer.addresses.first().filter(|_| !established) {
                        self.relay.endpoint.set_endpoint(now, id, *address);
                    }
                    let name = self.known(id).map(|p| p.config.name.clone()).unwrap_or_default();
                    match answer.addresses.is_empty() {
                        true => {
                            crate::log!(Warn, "the endpoint's name has no address", peer = name)
                        }
                        false if established => {}
                        false => {
                            crate::log!(Debug, "the endpoint's name was resolved", peer = name)
                        }
                    }
                    if let Some(peer) = self.known(id) {
                        let wait = match answer.addresses.is_empty() {
                            true => NAME_RETRY,
                            false => NAME_AGE,
                        };
                        peer.resolve_at = (!established).then(|| now + wait);
                    }
                }
                Purpose::Server(flow) => {
                    let permitted =
                        answer.addresses.iter().find(|a| self.relay.permits(flow, a.ip()));
                    let outcome = match permitted {
                        Some(to) => self.connections.connect(&self.poller, flow, *to, None),
                        None if answer.addresses.is_empty() => Err(ResetReason::NoSuchName),
                        None => {
                            self.relay.count_denied();
                            Err(ResetReason::Denied)
                        }
                    };
                    if let Err(reason) = outcome {
                        self.relay.connect_failed(now, flow, reason);
                    }
                }
            }
        }
    }

    fn on_signals(&mut self, now: Instant) {
        while let Some(signal) = self.signals.next_signal() {
            match signal {
                Signal::HangUp => {
                    if let Err(why) = self.reload(now) {
                        crate::log!(Error, why);
                    }
                }
                Signal::Terminate | Signal::Interrupt => self.stop(now),
                Signal::User1 => {}
            }
        }
    }

    fn on_admin(&mut self, now: Instant, token: u64) {
        let Some(mut admin) = self.admin.take() else { return };
        let (mut reload, mut stop) = (false, false);
        let mut rates = Vec::new();
        let this = &*self;
        admin.handle(&this.poller, token, now, &mut |request| match request {
            admin::Request::Status => admin::Answer::Status(Box::new(this.status(now))),
            admin::Request::Reload => {
                reload = true;
                admin::Answer::Done
            }
            admin::Request::Stop => {
                stop = true;
                admin::Answer::Done
            }
            admin::Request::Rate { peer, bps } => match this.reported_rate(&peer, bps) {
                Ok(rate) => {
                    rates.push(rate);
                    admin::Answer::Done
                }
                Err(why) => admin::Answer::Error(why),
            },
        });
        self.admin = Some(admin);
        if reload && let Err(why) = self.reload(now) {
            crate::log!(Error, why);
        }
        if stop {
            self.stop(now);
        }
    }

    // ---- the end -----------------------------------------------------------------

    /// Takes nothing new; what is open may go on for a while. The second time: at once.
    fn stop(&mut self, now: Instant) {
        if self.draining.is_some() {
            self.draining = Some(now);
            return;
        }
        crate::log!(Info, "ending", open_connections = self.connections.len());
        self.draining = Some(now + DRAIN);
        self.listeners = None;
        self.relay.give_up_openings(now);
        for flow in self.proxy.take().iter().flat_map(Proxy::waiting) {
            self.relay.local_reset(now, flow, ResetReason::ShuttingDown);
        }
    }

    fn is_over(&self, now: Instant) -> bool {
        self.draining.is_some_and(|end| {
            let quiet = self.connections.len() == 0
                && self
                    .peers
                    .iter()
                    .all(|p| self.relay.endpoint.session(p.id).is_none_or(|s| s.is_quiet()));
            quiet || end <= now
        })
    }

    /// Resets what is left, tells the peers, and takes everything out of the kernel.
    fn end(&mut self) {
        let now = self.clock.now();
        self.connections.abort_all();
        self.relay.endpoint.close_all(ResetReason::ShuttingDown);
        self.say_farewell(now);
        if let Some(intercept) = self.intercept.take()
            && let Err(e) = intercept.remove()
        {
            crate::log!(Error, "interception was not fully removed", error = e);
        }
        crate::log!(Info, "bentpipe has ended");
    }

    /// Sends the copies of CLOSE, which are spread over a little time.
    fn say_farewell(&mut self, begin: Instant) {
        let mut now = begin;
        loop {
            self.carrier.send(now, &mut self.relay);
            let told = |p: &KnownPeer| {
                let endpoint = &self.relay.endpoint;
                let closing = endpoint.session(p.id).is_some_and(|s| s.is_closing());
                !closing || !endpoint.is_established(p.id)
            };
            if self.peers.iter().all(told) || now.since(begin) >= FAREWELL {
                return;
            }
            std::thread::sleep(FAREWELL_STEP);
            now = self.clock.now();
            self.relay.handle_timeout(now);
        }
    }
}

/// The length of a packet from a TUN device, if there was one. Any other failure than
/// having none is for good, and the poller would tell of it for ever.
fn packet_read(outcome: Result<usize, TunError>) -> Result<Option<usize>, UpError> {
    match outcome {
        Ok(n) => Ok(Some(n)),
        Err(TunError::Blocked) => Ok(None),
        Err(e) => Err(UpError::TunGone(e)),
    }
}
