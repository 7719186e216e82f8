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
use super::listeners::Listeners;
use super::modem::Modems;
use super::names::{Names, Purpose};
use super::peers;
use super::proxy::Proxy;
use super::report::{self, Meter};
use super::store::Store;
use crate::admin::{self, AdminError};
use crate::config::{Config, OnFailure, Peer, Source};

/// What the poller's numbers mean; a flow's own number has this bit clear.
const OURS: u64 = 1 << 63;
const UDP: u64 = OURS;
const TUN: u64 = OURS + 1;
const SYNS: u64 = OURS + 2;
const LISTENER_V4: u64 = OURS + 3;
const LISTENER_V6: u64 = OURS + 4;
const SIGNALS: u64 = OURS + 5;
const NAMES: u64 = OURS + 6;
const INTERCEPT: u64 = OURS + 7;
const PROXY: u64 = OURS + 8;
const MODEMS: u64 = OURS + 9;
const ADMIN: u64 = OURS + 100;
/// Clients of the explicit proxy that have not said where to.
const PROXY_CLIENTS: u64 = OURS + (1 << 32);

/// MTU of the TUN device: hosts see an ordinary link (fragments cross below it).
const TUN_MTU: u16 = 1500;
/// TUN packets per turn.
const TUN_PACKETS: usize = 64;
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
    /// When its name is to be asked for.
    resolve_at: Option<Instant>,
}

/// A running gateway.
pub struct Driver {
    pub(super) config: Config,
    path: PathBuf,
    pub(super) clock: Clock,
    poller: Poller,
    pub(super) relay: Relay,
    carrier: Carrier,
    pub(super) connections: Connections,
    tun: Option<Tun>,
    intercept: Option<Intercept>,
    listeners: Option<Listeners>,
    proxy: Option<Proxy>,
    admin: Option<admin::Server>,
    signals: Signals,
    names: Names,
    pub(super) modems: Modems,
    store: Store,
    pub(super) peers: Vec<KnownPeer>,
    own_addresses_at: Instant,
    metered_at: Instant,
    /// Ending: connections may go on until then.
    draining: Option<Instant>,
    packet: Vec<u8>,
}

impl Driver {
    /// Opens everything that `config` names. On an error nothing is left behind; only if
    /// interception itself fails is it as after a crash: what `on_failure` says.
    pub fn open(config: Config, path: &Path) -> Result<Driver, UpError> {
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
                let port = carrier.socket.local_addr().port();
                Some(Intercept::install(&intercept_config(
                    &config,
                    tun.name(),
                    listeners.port(),
                    port,
                ))?)
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
            clock: Clock::start(),
            relay: Relay::new(endpoint),
            carrier,
            connections: Connections::new(options),
            tun,
            intercept,
            listeners,
            proxy,
            admin: Some(admin),
            signals,
            names,
            modems,
            store,
            peers: Vec::new(),
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
        if let Some(user) = &driver.config.node.user {
            os::proc::become_user(user)?;
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
        for warning in self.intercept.iter().flat_map(Intercept::warnings) {
            crate::log!(Warn, warning);
        }
    }

    // ---- peers -------------------------------------------------------------------

    fn add_peer(&mut self, peer: Peer) -> Result<(), UpError> {
        let now = self.clock.now();
        let count = self.config.peers.len();
        let stored = self.store.get(&peer.public_key);
        let config = peers::peer_config(&self.config.node, &peer, count, stored);
        let id = self
            .relay
            .add_peer(now, config, peers::policy(&peer))
            .map_err(|e| UpError::Peer(peer.name.clone(), e))?;
        let resolve_at = peers::named_endpoint(&peer).map(|_| now);
        self.peers.push(KnownPeer { id, config: peer, meter: Meter::default(), resolve_at });
        Ok(())
    }

    fn known(&mut self, id: PeerId) -> Option<&mut KnownPeer> {
        self.peers.iter_mut().find(|p| p.id == id)
    }

    /// SIGHUP: reads the file again. A bad one leaves the old one in force and says why.
    fn reload(&mut self) -> Result<(), String> {
        let new = Config::load(&self.path).map_err(|e| {
            crate::cli::show(&e);
            format!("{} stays in force as it was: {e}", self.path.display())
        })?;
        let changes = self.config.changes(&new);
        for what in &changes.needs_restart {
            crate::log!(Warn, "a change takes effect only after a restart", setting = what);
        }
        for peer in &changes.removed {
            if let Some(at) = self.peers.iter().position(|p| p.config.public_key == peer.public_key)
            {
                let known = self.peers.remove(at);
                self.relay.remove_peer(known.id);
            }
        }
        for peer in changes.changed {
            self.change_peer(peer);
        }
        let node = self.config.node.clone();
        self.config = Config { node, ..new };
        let mut trouble = Vec::new();
        for peer in changes.added {
            if let Err(e) = self.add_peer(peer) {
                trouble.push(e.to_string());
            }
        }
        if let Some(intercept) = &mut self.intercept {
            // Devices and ports stay as they were installed.
            if let Err(e) = intercept.update(&intercept_config(&self.config, "", 0, 0)) {
                trouble.push(e.to_string());
            }
        }
        self.modems.watch(&self.config.peers);
        crate::log!(Info, "the configuration was read again", peers = self.peers.len());
        if trouble.is_empty() { Ok(()) } else { Err(trouble.join("; ")) }
    }

    /// New settings for a peer whose session goes on.
    fn change_peer(&mut self, peer: Peer) {
        let now = self.clock.now();
        let Some(known) = self.peers.iter_mut().find(|p| p.config.public_key == peer.public_key)
        else {
            return;
        };
        self.relay.set_policy(known.id, peers::policy(&peer));
        if let Some(session) = self.relay.endpoint.session_mut(known.id) {
            session.set_rate_mode(now, peer.link.rate, peer.link.send);
            session.set_classes(&peer.traffic.classes);
        }
        if peer.endpoint != known.config.endpoint {
            if let Some(address) = peers::fixed_endpoint(&peer) {
                self.relay.endpoint.set_endpoint(now, known.id, address);
            }
            known.resolve_at = peers::named_endpoint(&peer).map(|_| now);
        }
        known.config = peer;
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
        let drain = self.draining.map(|end| end.min(now + Duration::from_millis(100)));
        let next = [link, self.connections.poll_timeout(), names, admin, proxy, listeners, drain];
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
            _ => self.connections.on_event(event),
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
                Action::Accepted(_) => {}
                Action::PeerReset(flow, _) => {
                    self.connections.peer_reset(now, flow, &mut self.relay);
                }
                Action::Abort(flow, _) => self.connections.abort(flow),
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
            let Some(peer) = self.relay.peer_for(accepted.server.ip()) else { continue };
            let target = Target::Address(accepted.server);
            let origin = Origin { client: Some(accepted.client), target };
            let Some(flow) = self.relay.open(now, peer, origin) else { continue };
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
        let Some(peer) = peer else { return asked.refuse() };
        let origin = Origin { client: None, target: asked.target.clone() };
        let Some(flow) = self.relay.open(now, peer, origin) else { return asked.refuse() };
        let Some((stream, first)) = asked.grant() else {
            return self.relay.local_reset(now, flow, ResetReason::HostReset);
        };
        let whole = self.relay.local_data(now, flow, &first) == first.len();
        if !(whole && self.connections.add(&self.poller, flow, stream, false)) {
            self.relay.local_reset(now, flow, ResetReason::Exhausted);
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
            if self.relay.handle_tun(now, &mut self.packet[..n], true) == Verdict::Intercept {
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

    fn mend_interception(&mut self) {
        let Some(intercept) = &mut self.intercept else { return };
        match intercept.repair() {
            Ok(true) => {
                crate::log!(Warn, "a helper of the interception died and was started again");
                let _ = self.poller.add(intercept, INTERCEPT, Interest::READ);
            }
            Ok(false) => {}
            Err(e) => crate::log!(Error, "interception cannot be mended", error = e),
        }
    }

    // ---- what else happens ---------------------------------------------------------

    fn on_link(&mut self, now: Instant, id: PeerId, event: LinkEvent) {
        let key = match self.known(id) {
            Some(peer) => peer.config.public_key,
            None => return,
        };
        let name = self.known(id).map(|p| p.config.name.clone()).unwrap_or_default();
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
                    if let Err(why) = self.reload() {
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
        for (peer, rate) in rates {
            self.set_rate(now, peer, rate);
        }
        if reload && let Err(why) = self.reload() {
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
        self.proxy = None;
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
        self.carrier.send(now, &mut self.relay);
        if let Some(intercept) = self.intercept.take()
            && let Err(e) = intercept.remove()
        {
            crate::log!(Error, "interception was not fully removed", error = e);
        }
        crate::log!(Info, "bentpipe has ended");
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

fn intercept_config(
    config: &Config,
    tun: &str,
    listener_port: u16,
    carrier_port: u16,
) -> InterceptConfig {
    let prefixes = |wanted: fn(&Peer) -> bool| {
        let peers = config.peers.iter().filter(|p| wanted(p));
        peers.flat_map(|p| p.routes.iter().copied()).collect()
    };
    InterceptConfig {
        lan: config.node.lan.clone(),
        carrier_ports: vec![carrier_port],
        routes: prefixes(|_| true),
        masquerade: prefixes(|p| p.source == Source::Nat),
        in_clear: prefixes(|p| p.on_failure == OnFailure::Wire),
        ..InterceptConfig::new(tun, listener_port)
    }
}
