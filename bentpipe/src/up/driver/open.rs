//! The start: everything that the configuration names, opened, and rights given up.

use std::path::Path;

use link::PeerId;
use link::endpoint::{Endpoint, EndpointConfig};
use link::seal::Cipher;
use os::OsError;
use os::intercept::{Intercept, InterceptConfig, Marks};
use os::poll::{Clock, Interest, Poller, Signals};
use os::tcp::TcpOptions;
use os::tun::Tun;
use relay::{Relay, Share};
use squeeze::dedup::Limits;
use units::Instant;

use super::{
    ADMIN, CHUNKS, Driver, INTERCEPT, LISTENER_V4, LISTENER_V6, MODEMS, NAMES, PROXY,
    PROXY_CLIENTS, SIGNALS, SYNS, TUN, UDP, UpError,
};
use crate::admin;
use crate::cli::Global;
use crate::config::{Config, Peer};
use crate::up::carrier::Carrier;
use crate::up::chunks::ChunkStores;
use crate::up::connections::Connections;
use crate::up::interception::{Clear, intercept_config};
use crate::up::listeners::Listeners;
use crate::up::modem::Modems;
use crate::up::names::Names;
use crate::up::peers;
use crate::up::proxy::Proxy;
use crate::up::report::Meter;
use crate::up::roster::{KnownPeer, Roster};
use crate::up::store::{Store, state_directory};

/// MTU of the TUN device: hosts see an ordinary link (fragments cross below it).
const TUN_MTU: u16 = 1500;
/// Handshakes per second above which strangers must prove their address.
const INITIATIONS_PER_SECOND: u32 = 100;

impl Driver {
    /// Opens everything that `config` names.
    ///
    /// # Errors
    /// One sentence; then nothing is left behind, and what an earlier run that crashed
    /// left to block is still there.
    pub fn open(config: Config, path: &Path, global: &Global) -> Result<Driver, UpError> {
        let signals = Signals::take()?;
        os::proc::precise_timers()?;
        // Whoever waits for the link must not be what keeps it from being filled. Without
        // the right to it the gateway works, and competes with everybody else.
        os::proc::go_first();
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
        let dir = config.node.chunks.dir.clone();
        let dir = dir.or_else(|| state_directory().map(|dir| dir.join("chunks")));
        let chunks = ChunkStores::new(dir.as_deref(), endpoint.public_key())?;
        let mut driver = Driver {
            path: path.to_owned(),
            global: global.clone(),
            clock: Clock::start(),
            relay: measured(Relay::new(endpoint)),
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
            chunks,
            peers: Roster::default(),
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
        // Files belong to whoever runs the program from here on.
        let peers: Vec<PeerId> = driver.peers.iter().map(|peer| peer.id).collect();
        peers.into_iter().for_each(|id| driver.open_chunks(id));
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
        p.add(&self.chunks.waker, CHUNKS, Interest::READ)?;
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

    pub(in crate::up) fn add_peer(&mut self, peer: Peer) -> Result<PeerId, UpError> {
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
        Ok(id)
    }

    /// Deduplicates the streams of a peer that is to be, before its first session begins.
    pub(in crate::up) fn open_chunks(&mut self, id: PeerId) {
        let limits = self.chunk_limits();
        let known = self.peers.iter().find(|peer| peer.id == id);
        if let Some(peer) = known.filter(|peer| peer.config.dedup != Share::Off) {
            self.chunks.add(&mut self.relay, id, &peer.config.public_key, &limits);
        }
    }

    /// Each peer's part of what chunks may cost.
    fn chunk_limits(&self) -> Limits {
        let with = self.config.peers.iter().filter(|peer| peer.dedup != Share::Off).count();
        peers::chunk_limits(&self.config.node, with)
    }

    /// There are more peers than before, or fewer: all that have chunks share anew.
    pub(in crate::up) fn share_chunks(&mut self) {
        let limits = self.chunk_limits();
        for peer in self.peers.iter() {
            self.relay.serve_files(peer.id, |dedup| {
                dedup.set_limits(&limits);
                true
            });
        }
    }
}

/// The relay with a clock for the time that compression takes: the processor's for this
/// thread, because that of others says nothing of how fast it is.
fn measured(mut relay: Relay) -> Relay {
    relay.set_stopwatch(|| Instant::ZERO + os::proc::thread_cpu());
    relay
}
