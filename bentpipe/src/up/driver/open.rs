//! The start: everything that the configuration names, opened, and rights given up.

use std::path::Path;
use std::rc::Rc;

use console::Global;
use link::endpoint::{Endpoint, EndpointConfig};
use link::keys::PublicKey;
use link::seal::Cipher;
use os::OsError;
use os::intercept::{Intercept, InterceptConfig, Marks};
use os::poll::{Clock, Interest, Poller, Signals};
use os::proc::User;
use os::tcp::TcpOptions;
use os::tun::Tun;
use relay::{Routes, Share};

use super::{
    ADMIN, Driver, INTERCEPT, KEPT, LISTENER_V4, LISTENER_V6, NEWS, ONE_SIDED, PROXY,
    PROXY_CLIENTS, SERVICES, SIGNALS, SYNS, TUN, UpError,
};
use crate::admin;
use crate::config::{Config, Peer};
use crate::file_keeper::FileKeeper;
use crate::state_directory::{give_state_to, state_directory};
use crate::up::carrier::Carrier;
use crate::up::chunks::{ChunkPlace, today};
use crate::up::kept::Kept;
use crate::up::listeners::Listeners;
use crate::up::mending::Mending;
use crate::up::one_sided::OneSidedLinks;
use crate::up::others::Others;
use crate::up::peer_source::PeerSource;
use crate::up::peer_table::PeerTable;
use crate::up::proxy::Proxy;
use crate::up::rules::{intercept_config, past_the_tunnel};
use crate::up::services::Services;
use crate::up::shard::lines::LeavingLines;
use crate::up::shard::{Common, Shard};
use crate::up::store::Store;

/// MTU of the TUN device: hosts see an ordinary link (fragments cross below it).
const TUN_MTU: u16 = 1500;
/// Handshakes per second above which strangers must prove their address.
const INITIATIONS_PER_SECOND: u32 = 100;

impl Driver {
    /// Opens everything that `config` names, which was read from the file `path` and, as far as
    /// peers go, from `source`.
    ///
    /// # Errors
    /// One sentence. Then nothing is left behind, and what an earlier run that crashed left
    /// to block is still there: what the operator may have got wrong is found before
    /// interception is in force. Should the system refuse something after that, it is as after
    /// a crash, and so it is where a shard's thread does not start: what is to be blocked is
    /// blocked.
    pub fn open(
        config: Config,
        path: &Path,
        source: Box<dyn PeerSource>,
        global: &Global,
    ) -> Result<Driver, UpError> {
        let signals = Signals::take()?;
        os::proc::precise_timers()?;
        // Whoever waits for the link must not be what keeps it from being filled. Without
        // the right to it the gateway works, and competes with everybody else.
        os::proc::go_first();
        os::proc::raise_descriptor_limit()?;
        os::proc::leave_no_core()?;
        let poller = Poller::new()?;
        let node = &config.node;
        let services = Services::open(node, &poller, SERVICES)?;
        let user = node.user.as_deref().map(os::proc::find_user).transpose()?;
        let named = node.user.as_deref().zip(user.as_ref());
        if let Some(named) = named.filter(|(_, user)| os::proc::is_root() && !user.is_root()) {
            give_state_to(named, node.private_key.public());
        }
        let marks = Marks::default();
        let mark = node.tun.as_ref().map(|_| marks.carrier);
        let mut carriers = Carrier::open(node.listen, mark, node.shards)?;
        carriers.iter_mut().try_for_each(|carrier| carrier.bind(&config.peers))?;
        let tun = node.tun.as_ref().map(|name| Tun::open(name, TUN_MTU)).transpose()?;
        let listeners = match &tun {
            Some(_) => Some(Listeners::open(&TcpOptions::default(), [LISTENER_V4, LISTENER_V6])?),
            None => None,
        };
        let proxy = match node.proxy {
            Some(address) => Some(Proxy::open(address, &poller, PROXY, PROXY_CLIENTS)?),
            None => None,
        };
        let admin = admin::Server::open(&node.admin_socket(), &poller, ADMIN)?;
        let endpoints = EndpointConfig {
            private_key: node.private_key.clone(),
            seed: os::proc::entropy()?,
            hardware_aes: Cipher::hardware_aes(),
            initiations_per_second: INITIATIONS_PER_SECOND,
            key_lifetime: node.key_lifetime,
            fresh: Some(fresh_entropy),
        };
        let endpoints = Endpoint::divided(endpoints, node.shards);
        let dir = node.chunks.dir.clone();
        let dir = dir.or_else(|| state_directory().map(|dir| dir.join("chunks")));
        let public_key = node.private_key.public();
        let chunks = ChunkPlace::find(dir.as_deref(), node.chunks.disk_given, public_key);
        let (clock, tun) = (Clock::start(), tun.as_ref());
        let leaving_lines = LeavingLines::default();
        let common = Common { config: &config, clock, tun, chunks: &chunks, leaving_lines };
        let mut each = carriers.into_iter().zip(endpoints).enumerate();
        let (_, (carrier, endpoint)) = each.next().expect("there is always one");
        let shard = Shard::new(0, poller, carrier, endpoint, &common)?;
        let others: Result<_, OsError> = each
            .map(|(n, (carrier, endpoint))| {
                Shard::new(n, Poller::new()?, carrier, endpoint, &common)
            })
            .collect();
        let others = Others::new(others?, &shard.poller, NEWS)?;
        let peers: Vec<PublicKey> = config.peers.iter().map(|p| p.public_key).collect();
        let store = Store::open(public_key, &peers);
        let kept = Kept::open(public_key, &peers, &shard.poller, KEPT)?;
        let mut driver = Driver {
            path: path.to_owned(),
            source,
            global: global.clone(),
            shard,
            others,
            everyone: PeerTable::default(),
            shard_routes: Routes::default(),
            intercept: None,
            mending: Mending::default(),
            listeners,
            proxy,
            admin: Some(admin),
            file_keeper: None,
            tests: Vec::new(),
            signals,
            services,
            store,
            kept,
            news: Vec::new(),
            watched: (false, false),
            one_sided: None,
            reload_at: None,
            draining: None,
            packet: vec![0; 65_536],
            config,
        };
        driver.begin_to_intercept()?;
        driver.one_sided = OneSidedLinks::open(&driver.config)?;
        driver.watch()?;
        if !driver.others.is_empty() {
            // Their threads have no right to it themselves.
            os::proc::hand_going_first_down();
        }
        driver.keep_file_for(user.as_ref())?;
        // Last, and before the first thread: rights are a thread's own.
        match &user {
            Some(user) => os::proc::become_user(user)?,
            None => os::proc::drop_rights()?,
        }
        // With the rights of one that a reload adds: their lines start threads.
        driver.add_peers()?;
        // Files belong to whoever runs the program from here on.
        let config = &driver.config;
        let is_on = |p: &&Peer| p.dedup != Share::Off;
        let (on, off): (Vec<&Peer>, Vec<&Peer>) =
            config.peers.iter().map(AsRef::as_ref).partition(is_on);
        let keys = |peers: Vec<&Peer>| peers.iter().map(|p| p.public_key).collect::<Vec<_>>();
        let part = driver.shard.chunk_limits().disk;
        chunks.forget_others(&keys(on), &keys(off), part, today());
        for number in 0..=driver.others.len() {
            driver.unstarted(number).open_new_chunks();
        }
        os::proc::give_back_memory();
        driver.announce();
        Ok(driver)
    }

    /// Before the program goes on as this user: somebody stays who may open the file again, and
    /// remove the control socket.
    fn keep_file_for(&mut self, user: Option<&User>) -> Result<(), OsError> {
        let is_other = user.is_some_and(|user| os::proc::is_root() && !user.is_root());
        let Some(admin) = self.admin.as_ref().filter(|_| is_other) else { return Ok(()) };
        let keeper = Rc::new(FileKeeper::start(&self.path, admin.place())?);
        self.source.open_by(keeper.clone());
        self.file_keeper = Some(keeper);
        Ok(())
    }

    /// Gives all shards their peers.
    fn add_peers(&mut self) -> Result<(), UpError> {
        self.list_everyone(self.shard.clock.now());
        for number in 0..=self.others.len() {
            let config = self.config_of(number);
            for peer in &config.peers {
                let stored = self.last_place(peer);
                self.unstarted(number).add_peer(peer.clone(), stored)?;
            }
            self.unstarted(number).set_config(config);
        }
        self.shard.open_telephones();
        Ok(())
    }

    /// Puts interception in force, where there is something to intercept.
    fn begin_to_intercept(&mut self) -> Result<(), OsError> {
        let (Some(tun), Some(listeners)) = (&self.shard.tun, &self.listeners) else {
            return Ok(());
        };
        let base = InterceptConfig {
            lan: self.config.node.lan.clone(),
            direct: past_the_tunnel(&self.config),
            dns: self.config.node.dns.clone(),
            own: self.config.node.own,
            carrier_ports: self.shard.carrier.ports(),
            ..InterceptConfig::new(tun.name(), listeners.port())
        };
        let config = intercept_config(self.config.peers.iter().map(AsRef::as_ref), base);
        let intercept = Intercept::install(&config)?;
        for number in 0..=self.others.len() {
            self.unstarted(number).syns = Some(intercept.syns().try_clone()?);
        }
        self.intercept = Some(intercept);
        Ok(())
    }

    /// A shard whose thread has not begun.
    fn unstarted(&mut self, number: usize) -> &mut Shard {
        match number {
            0 => &mut self.shard,
            other => self.others.unstarted(other),
        }
    }

    fn watch(&self) -> Result<(), OsError> {
        let p = &self.shard.poller;
        p.add(&self.signals, SIGNALS, Interest::READ)?;
        if let Some(tun) = &self.shard.tun {
            p.add(tun, TUN, Interest::READ)?;
        }
        if let Some(listeners) = &self.listeners {
            listeners.watch(p)?;
        }
        if let Some(intercept) = &self.intercept {
            p.add(intercept.syns(), SYNS, Interest::READ)?;
            p.add(intercept, INTERCEPT, Interest::READ)?;
        }
        if let Some(links) = &self.one_sided {
            links.watch(p, ONE_SIDED)?;
        }
        Ok(())
    }

    fn announce(&self) {
        let node = &self.config.node;
        let listen = self.shard.carrier.local_addr();
        crate::log!(
            Info,
            "bentpipe is up",
            version = env!("CARGO_PKG_VERSION"),
            listen = listen,
            tun = node.tun.as_deref().unwrap_or("none"),
            lan = node.lan.join(","),
            peers = self.everyone.len(),
            shards = node.shards
        );
        if let Err(e) = self.source.is_readable() {
            // Root without rights, or another user, may be refused what root was given.
            crate::log!(Warn, "the file cannot be read again, so SIGHUP will fail", error = e);
        }
        self.interception_warnings();
    }
}

/// The system's randomness for every handshake. It does not fail where it gave the seed, and a
/// draw without it is still secret.
fn fresh_entropy() -> [u8; 32] {
    os::proc::entropy().unwrap_or_default()
}
