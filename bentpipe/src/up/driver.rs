//! The gateway's first shard with all that there is only one of: the devices to read from,
//! interception, listeners, the explicit proxy, the admin API, signals, the file. What comes
//! here for a peer of another shard is handed over.

mod end;
mod open;
mod packets;
mod status;
mod testing;
mod watching;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::mpsc::Receiver;

use console::Global;
use control::Notice;
use os::intercept::Intercept;
use os::poll::{Events, Signals};
use relay::{Routes, Target};
use sd_notify::NotifyState;
use units::{Duration, Instant};

use super::error::UpError;
use super::kept::Kept;
use super::listeners::Listeners;
use super::mending::Mending;
use super::one_sided::OneSidedLinks;
use super::others::Others;
use super::peer_source::PeerSource;
use super::peer_table::{ListedPeer, PeerTable};
use super::peers;
use super::proxy::Proxy;
use super::self_test::TestNews;
use super::services::line::Answer;
use super::services::{Do, Services, Work};
use super::shard::inbox::{Guest, Order};
use super::shard::tidings::News;
use super::shard::{OWNERS, Shard};
use super::store::Store;
use crate::admin;
use crate::config::{Config, Peer};
use crate::file_keeper::FileKeeper;
use crate::proxy_proto::Refusal;

/// What the poller's numbers mean.
const TUN: u64 = OWNERS + 1;
const SYNS: u64 = OWNERS + 2;
const LISTENER_V4: u64 = OWNERS + 3;
const LISTENER_V6: u64 = OWNERS + 4;
const SIGNALS: u64 = OWNERS + 5;
pub(super) const INTERCEPT: u64 = OWNERS + 6;
const PROXY: u64 = OWNERS + 7;
/// The other shards have news.
const NEWS: u64 = OWNERS + 8;
/// The thread that keeps things has news.
const KEPT: u64 = OWNERS + 9;
/// Links without a gateway at the far end have news.
const ONE_SIDED: u64 = OWNERS + 10;
/// Services have news: their keeper, and each of them by two numbers.
const SERVICES: u64 = OWNERS + 20;
const ADMIN: u64 = OWNERS + 100;
/// Clients of the explicit proxy that have not said where to.
const PROXY_CLIENTS: u64 = OWNERS + (1 << 32);

/// A running gateway.
pub struct Driver {
    pub(super) config: Config,
    /// What messages and `bentpipe down` call the file.
    pub(super) path: PathBuf,
    pub(super) source: Box<dyn PeerSource>,
    /// How talkative the command line wants the log.
    pub(super) global: Global,
    /// The first shard, which runs on this thread.
    pub(super) shard: Shard,
    pub(super) others: Others,
    /// The peers of all shards, in the order of their source.
    pub(super) everyone: PeerTable<ListedPeer>,
    /// Which shard has the peer behind an address.
    pub(super) shard_routes: Routes<usize>,
    pub(super) intercept: Option<Intercept>,
    /// When rules and routes are changed next.
    pub(super) mending: Mending,
    listeners: Option<Listeners>,
    proxy: Option<Proxy>,
    admin: Option<admin::Server>,
    /// Of a gateway that has gone on as another user.
    file_keeper: Option<Rc<FileKeeper>>,
    /// That clients of the admin API have asked for.
    tests: Vec<RunningTest>,
    signals: Signals,
    pub(super) services: Services,
    pub(super) store: Store,
    pub(super) kept: Kept,
    /// What watchers have not heard of yet.
    news: Vec<Notice>,
    /// Do the shards know that somebody watches, and split connections, too?
    watched: (bool, bool),
    /// Links without a gateway at the far end.
    pub(super) one_sided: Option<OneSidedLinks>,
    /// A file waits for lines that are being dropped, and is looked at again then.
    pub(super) reload_at: Option<Instant>,
    /// Ending: connections may go on until then.
    pub(super) draining: Option<Instant>,
    packet: Vec<u8>,
}

/// A test, wherever its peer is.
pub struct RunningTest {
    /// The client's, at the admin API.
    token: u64,
    /// Dropped, it ends the test.
    news: Receiver<TestNews>,
}

impl Driver {
    /// Runs until told to end.
    ///
    /// # Errors
    /// If the system takes away what the loop lives on.
    pub fn run(&mut self) -> Result<(), UpError> {
        self.others.start()?;
        if !self.others.is_empty() {
            os::proc::go_first(); // and nobody else from here on
        }
        if let Some(links) = &mut self.one_sided {
            links.start().map_err(UpError::Thread)?;
        }
        self.shard.watch_modems();
        // Whoever started this may go on (systemd's Type=notify); without one it does nothing.
        let _ = sd_notify::notify(&[NotifyState::Ready]);
        let mut events = Events::with_capacity(256);
        loop {
            let timeout = self.timeout();
            self.shard.wait(&mut events, timeout)?;
            let now = self.shard.clock.now();
            for event in events.iter() {
                self.on_event(now, event)?;
            }
            self.on_time(now);
            self.shard.settle();
            self.hand_over();
            if let Some(news) = self.shard.take_news() {
                self.follow(now, news);
            }
            self.follow_tests();
            self.tell_watchers(now);
            self.store.save(now);
            self.kept.save(now);
            if self.is_over(now) {
                return self.end();
            }
        }
    }

    /// Until the next thing that is due by time; none means for ever.
    fn timeout(&mut self) -> Option<Duration> {
        let now = self.shard.clock.now();
        let shard = self.shard.poll_timeout(now);
        if shard == Some(now) {
            return Some(Duration::ZERO);
        }
        let admin = self.admin.as_ref().and_then(admin::Server::poll_timeout);
        let proxy = self.proxy.as_ref().and_then(Proxy::poll_timeout);
        let listeners = self.listeners.as_ref().and_then(Listeners::poll_timeout);
        let silence = self.silence_timeout();
        let others = self.others.poll_timeout(now);
        let (store, kept) = (self.store.poll_timeout(), self.kept.poll_timeout());
        let services = self.services.poll_timeout();
        let own = [self.draining, self.reload_at];
        let next = [shard, others, admin, proxy, listeners, silence, store, kept, services];
        next.into_iter().chain(own).flatten().min().map(|at| at.since(now))
    }

    fn on_event(&mut self, now: Instant, event: os::poll::Event) -> Result<(), UpError> {
        match event.token {
            TUN => self.read_tun(now)?,
            SYNS => self.read_syns(now)?,
            LISTENER_V4 | LISTENER_V6 => self.accept(now, event.token),
            SIGNALS => self.on_signals(now),
            INTERCEPT => self.mend_interception(now),
            NEWS => self.on_news(now)?,
            KEPT => self.on_kept(),
            // Whether all connections are over is looked at in each turn.
            ONE_SIDED => self.one_sided.as_mut().map_or(Ok(()), OneSidedLinks::on_news)?,
            PROXY => {
                if let Some(proxy) = &mut self.proxy {
                    proxy.accept(now, &self.shard.poller);
                }
            }
            token if self.services.has_token(token) => {
                let todo = self.services.on_event(now, &self.shard.poller, token);
                self.follow_services(now, todo);
            }
            token if token >= PROXY_CLIENTS => self.on_proxy_client(now, token),
            token if token >= ADMIN => self.on_admin(now, token),
            _ => self.shard.on_event(now, event),
        }
        Ok(())
    }

    fn on_time(&mut self, now: Instant) {
        self.shard.on_time(now);
        let poller = &self.shard.poller;
        if let Some(admin) = &mut self.admin {
            admin.handle_timeout(poller, now);
        }
        if let Some(proxy) = &mut self.proxy {
            proxy.handle_timeout(now, poller);
        }
        if let Some(listeners) = &mut self.listeners {
            listeners.handle_timeout(now, poller);
        }
        self.follow_silence(now);
        self.reload_again(now);
        if !self.services.is_empty() {
            let todo = self.services.handle_timeout(now, &self.shard.poller);
            self.follow_services(now, todo);
        }
    }

    /// Tells shards of services, and gives them what services want.
    fn follow_services(&mut self, now: Instant, todo: Vec<Do>) {
        for it in todo {
            match it {
                Do::Is(name, line) => {
                    let order = || Order::Service(name.clone(), line.clone());
                    self.others.order_all(order);
                    self.shard.set_service(now, &name, line);
                }
                Do::Of(peer, work) => {
                    let shard = self.everyone.called(&peer).map_or(0, |p| p.shard);
                    self.give_work(now, shard, work);
                }
                Do::Refuse(line, request) => {
                    let answer = Answer::failed(request, service::Reason::Exhausted);
                    self.shard.answer_service(now, &line, answer);
                }
                Do::Answer(asker, answer) => self.answer_command(asker, &answer),
                Do::PassedProxied(target, work) => {
                    let shard = self.shard_for(&target).unwrap_or(0);
                    self.give_work(now, shard, work);
                }
                Do::Passed(server, work) => {
                    let shard = self.shard_routes.lookup(server.ip()).unwrap_or(0);
                    self.give_work(now, shard, work);
                }
            }
        }
    }

    fn give_work(&mut self, now: Instant, shard: usize, work: Work) {
        match shard {
            0 => self.shard.work_for_service(now, work),
            other => self.others.hand_over(other, Guest::Service(Box::new(work))),
        }
    }

    fn accept(&mut self, now: Instant, token: u64) {
        let Some(listeners) = &mut self.listeners else { return };
        for _ in 0..256 {
            let Some(accepted) = listeners.accept(now, &self.shard.poller, token) else { return };
            match self.shard_routes.lookup(accepted.server.ip()).unwrap_or(0) {
                0 => self.shard.take_connection(now, accepted),
                other => self.others.hand_over(other, Guest::Connection(accepted)),
            }
        }
    }

    fn on_proxy_client(&mut self, now: Instant, token: u64) {
        let Some(proxy) = &mut self.proxy else { return };
        let Some(asked) = proxy.on_event(now, &self.shard.poller, token) else { return };
        match self.shard_for(&asked.target) {
            Some(0) => self.shard.take_proxy_client(now, asked),
            Some(other) => self.others.hand_over(other, Guest::ProxyClient(asked)),
            None => {
                if let Some(proxy) = &mut self.proxy {
                    proxy.refuse(now, asked, Refusal::NetworkUnreachable);
                }
            }
        }
    }

    /// The shard that has the peer for a client of the proxy: for a name the one with a
    /// default route, or the only one.
    fn shard_for(&self, target: &Target) -> Option<usize> {
        match target {
            Target::Address(a) => self.shard_routes.lookup(a.ip()),
            Target::Service(..) => None, // No client of a proxy can say that.
            Target::Name(..) => self.shard_routes.default_route().or_else(|| {
                let mut everyone = self.everyone.iter();
                everyone.next().filter(|_| everyone.next().is_none()).map(|p| p.shard)
            }),
        }
    }

    /// Hands over the link packets that came to the first shard and are another's, the hosts'
    /// packets of this turn, and what found no place before.
    fn hand_over(&mut self) {
        while let Some(it) = self.shard.relay.endpoint.poll_handed_over() {
            self.others.hand_over(it.shard as usize, Guest::HandedOver(it));
        }
        self.others.flush();
    }

    /// The other shards have told something, or one of them has ended.
    fn on_news(&mut self, now: Instant) -> Result<(), UpError> {
        self.others.clear();
        while let Some(news) = self.others.next_news() {
            self.follow(now, news);
        }
        if let Some(parts) = self.others.take_parts() {
            self.answer_status(now, parts);
        }
        self.others.failure().map_or(Ok(()), Err)
    }

    /// Follows what a shard has told of its peers.
    pub(super) fn follow(&mut self, now: Instant, news: News) {
        for (key, note) in news.notes {
            if let Some((at, event)) = note.event
                && let Some(peer) = self.everyone.with_key_mut(&key)
            {
                peer.clear.on_link(at, event);
            }
            let node = &self.config.node;
            let peer = self.everyone.with_key(&key);
            if let Some(address) = note.address
                && peer.is_some_and(|peer| peers::is_remembered(node, &peer.config))
            {
                self.store.set(now, &key, address);
            }
        }
        self.follow_tidings(news.tidings);
    }

    /// Where the peer was last, if it is to be found there again.
    pub(super) fn last_place(&self, peer: &Peer) -> Option<SocketAddr> {
        let stored = self.store.get(&peer.public_key);
        stored.filter(|_| peers::is_remembered(&self.config.node, peer))
    }
}
