//! Links with nothing of ours at the far end (`mode = "split"`, R-SPLIT-2): TCP is split here
//! alone, and crosses the link as the kernel's own TCP, fitted to the link by [`plan`](::plan).
//!
//! A thread of its own serves all of them, apart from the shards, with which it shares nothing:
//!
//! 1. A SYN comes out of one of the devices of `os::intercept::OneSided` and is kept, while this
//!    host connects to the server, as the client where `source = "keep"`.
//! 2. The server has answered: the very SYN goes back, and TPROXY hands the client's connection
//!    to our listener. It has refused, or an error came: the client hears the same.
//! 3. The two sockets are joined ([`pump`]).
//!
//! The socket towards the link (the *leg*: the server's of connections that begin here, the
//! client's of those that begin beyond) has the congestion control and the buffers of the plan,
//! by its mark the initial windows, and a pace: the link's rate divided by the legs that have
//! something under way, so that they neither fill a queue nor lose to each other.

mod openings;
mod pump;
mod sharing;

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use ::plan::Plan;
use os::OsError;
use os::intercept::{LEG, OneSided, OneSidedConfig, OneSidedLink};
use os::poll::{Clock, Event, Events, Interest, Poller, Waker};
use os::tcp::{self, Accepted, Connect, ConnectError, Stream, TcpOptions};
use os::tun::TunError;
use relay::packet::Packet;
use units::{Duration, HostShares, Instant};

use super::connections::{Patience, reason_of_failure, reason_of_own};
use super::error::UpError;
use super::listeners::Listeners;
use super::mending::Mending;
use super::others::Ended;
use crate::admin::OneSidedStatus;
use crate::config::{Config, Source, SplitLink};
use crate::which_link::link_of;
use openings::{Ends, Openings};
use pump::{PIECE, Pair, Turn};
use relay::ResetReason;
use sharing::Sharing;

/// What the poller's numbers mean.
const OUT: u64 = 0;
const IN: u64 = 1;
const LISTENER_V4: u64 = 2;
const LISTENER_V6: u64 = 3;
const INTERCEPT: u64 = 4;
const STOP: u64 = 5;
/// Twice a connection's number, and one more for its server's socket.
const CONNECTIONS: u64 = 16;

/// How long a server is asked, and a host for the acknowledgement of its last bytes.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often the link's rate is divided anew.
const SHARING: Duration = Duration::from_millis(100);
/// Packets read from a device before connections have their turn.
const PACKETS: usize = 256;
/// Joined connections have a quarter of this process's descriptors, two each. Beyond that whoever
/// has the most loses its oldest.
const DESCRIPTORS_FOR_ONE: u64 = 8;
/// A host with so many joined connections or fewer is one of many.
const FEW_JOINED: usize = 8;
/// The most that the kernel may keep for one leg each way.
const MOST_BUFFER: u64 = 64 << 20;

/// The thread, before and after its start.
pub struct OneSidedLinks {
    engine: Option<Engine>,
    /// What is told of each link, and its counters.
    told: Vec<(OneSidedStatus, Arc<Counters>)>,
    stop: Waker,
    /// What the thread tells the driver.
    news: Waker,
    drains: Arc<AtomicBool>,
    trouble: Trouble,
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<(), UpError>>>,
}

impl OneSidedLinks {
    /// Puts the interception for all links with `mode = "split"` in force; none if there are none.
    ///
    /// # Errors
    /// One sentence; then everything is as it was before.
    pub fn open(config: &Config) -> Result<Option<OneSidedLinks>, OsError> {
        if config.split.is_empty() {
            return Ok(None);
        }
        let (stop, news, drains) = (Waker::new()?, Waker::new()?, Arc::<AtomicBool>::default());
        let engine = Engine::open(config, &stop, (news.clone(), drains.clone()))?;
        let trouble = engine.trouble.clone();
        let told = engine.links.iter().map(|link| (link.told(), link.counters.clone())).collect();
        let (engine, ended, thread) = (Some(engine), Arc::default(), None);
        Ok(Some(OneSidedLinks { engine, told, stop, news, drains, trouble, ended, thread }))
    }

    /// What the operator is told of each link.
    pub fn status(&self) -> Vec<OneSidedStatus> {
        let status = |(told, counters): &(OneSidedStatus, Arc<Counters>)| OneSidedStatus {
            connections_open: counters.open.load(Ordering::Relaxed),
            connections_total: counters.total.load(Ordering::Relaxed),
            ..told.clone()
        };
        self.told.iter().map(status).collect()
    }

    /// Has the driver's poller tell of news.
    ///
    /// # Errors
    /// If the system has no room for it.
    pub fn watch(&self, poller: &Poller, token: u64) -> Result<(), OsError> {
        poller.add(&self.news, token, Interest::READ)
    }

    /// The driver looks at the news now.
    ///
    /// # Errors
    /// Why the thread has ended, if it was not told to.
    pub fn on_news(&mut self) -> Result<(), UpError> {
        self.news.clear();
        if !self.ended.load(Ordering::Acquire) {
            return Ok(());
        }
        self.thread.take().map_or(Ok(()), |thread| thread.join().unwrap_or(Err(UpError::ShardGone)))
    }

    /// Why the interception is not what it should be.
    pub fn trouble(&self) -> Option<String> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Takes nothing new from here on: SYNs come again, and pass when this is gone. There is news
    /// when a connection ends.
    pub fn drain(&self) {
        self.drains.store(true, Ordering::SeqCst);
    }

    /// Connections that are joined.
    pub fn open_connections(&self) -> u64 {
        self.told.iter().map(|(_, counters)| counters.open.load(Ordering::SeqCst)).sum()
    }

    /// Begins to serve.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn start(&mut self) -> std::io::Result<()> {
        let Some(mut engine) = self.engine.take() else { return Ok(()) };
        let thread = thread::Builder::new().name("one-sided".to_owned());
        let ended = Ended(self.ended.clone(), self.news.clone());
        let run = move || {
            let _ended = ended;
            engine.run()
        };
        self.thread = Some(thread.spawn(run)?);
        Ok(())
    }
}

impl Drop for OneSidedLinks {
    fn drop(&mut self) {
        self.stop.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// What an operator is told, by another thread.
type Trouble = Arc<Mutex<Option<String>>>;

/// Connections of a link that are joined, and that were.
#[derive(Default)]
struct Counters {
    open: AtomicU64,
    total: AtomicU64,
}

/// A link and what its legs have.
struct Link {
    counters: Arc<Counters>,
    config: SplitLink,
    plan: Plan,
    leg: TcpOptions,
    sharing: Sharing,
}

/// The server is being asked.
struct Opening {
    ends: Ends,
    server: Stream,
    link: usize,
    /// Does it come from beyond the link?
    inward: bool,
    /// The client's own SYN; empty for one that is connected already.
    syn: Vec<u8>,
    client: Option<Stream>,
    connected: bool,
    until: Instant,
}

enum Connection {
    Opening(Box<Opening>),
    Joined { pair: Box<Pair>, link: usize, leg: usize, client: IpAddr },
}

struct Engine {
    poller: Poller,
    clock: Clock,
    intercept: OneSided,
    mending: Mending,
    trouble: Trouble,
    /// The interception was just repaired: what it tells has to wait, so that routes that change
    /// all the time do not keep this thread busy.
    rests: bool,
    listeners: Listeners,
    links: Vec<Link>,
    connections: BTreeMap<u64, Connection>,
    openings: Openings,
    /// The connections that are joined, by their clients.
    joined: HostShares<u64>,
    /// Of them, the most.
    most_joined: usize,
    /// Both ends were relayed, or a reset is to be, and the kernel still has bytes of before: it
    /// would lose them to the reset, or with the interception. They are kept while hosts take them.
    closing: BTreeMap<u64, Patience>,
    queue: VecDeque<u64>,
    next: u64,
    shared_at: Instant,
    buffer: Vec<u8>,
    stopping: bool,
    /// Wakes the driver.
    news: Waker,
    drains: Arc<AtomicBool>,
}

impl Engine {
    fn open(
        config: &Config,
        stop: &Waker,
        (news, drains): (Waker, Arc<AtomicBool>),
    ) -> Result<Engine, OsError> {
        let poller = Poller::new()?;
        let most_joined = (os::proc::raise_descriptor_limit()? / DESCRIPTORS_FOR_ONE) as usize;
        let marked = TcpOptions { mark: Some(LEG), ..TcpOptions::default() };
        let listeners = Listeners::open(&marked, [LISTENER_V4, LISTENER_V6])?;
        let links: Vec<Link> = config.split.iter().cloned().map(Link::new).collect();
        let intercept = OneSided::install(&OneSidedConfig {
            lan: config.node.lan.clone(),
            own: config.node.own,
            listener_port: listeners.port(),
            links: links.iter().map(Link::interception).collect(),
        })?;
        listeners.watch(&poller)?;
        for (syns, token) in intercept.syns().iter().zip([OUT, IN]) {
            poller.add(syns, token, Interest::READ)?;
        }
        poller.add(&intercept, INTERCEPT, Interest::READ)?;
        poller.add(stop, STOP, Interest::READ)?;
        Ok(Engine {
            poller,
            clock: Clock::start(),
            intercept,
            mending: Mending::default(),
            trouble: Trouble::default(),
            rests: false,
            listeners,
            links,
            connections: BTreeMap::new(),
            openings: Openings::new(),
            joined: HostShares::new(FEW_JOINED),
            most_joined,
            closing: BTreeMap::new(),
            queue: VecDeque::new(),
            next: 0,
            shared_at: Instant::ZERO,
            buffer: vec![0; PIECE],
            stopping: false,
            news,
            drains,
        })
    }

    fn run(&mut self) -> Result<(), UpError> {
        for Link { config, plan, .. } in &self.links {
            crate::log!(
                Info,
                "TCP is split at this end of the link",
                peer = config.name,
                device = config.device,
                congestion = plan.send.congestion.name(),
                window = plan.send.window
            );
        }
        let mut events = Events::with_capacity(256);
        while !self.stopping {
            let timeout = self.timeout();
            self.poller.wait(&mut events, timeout)?;
            let now = self.clock.now();
            for event in events.iter() {
                self.on_event(now, event)?;
            }
            self.work(now);
            self.on_time(now);
        }
        Ok(())
    }

    fn timeout(&self) -> Option<Duration> {
        if !self.queue.is_empty() {
            return Some(Duration::ZERO);
        }
        let now = self.clock.now();
        let is_busy = self.links.iter().any(|link| !link.sharing.is_idle());
        let sharing =
            (is_busy || !self.closing.is_empty()).then(|| (self.shared_at + SHARING).since(now));
        let openings = (!self.openings.is_empty()).then(|| Duration::from_secs(1));
        let listeners = self.listeners.poll_timeout().map(|at| at.since(now));
        let mending = self.mending_at().map(|at| at.since(now));
        [sharing, openings, listeners, mending].into_iter().flatten().min()
    }

    /// When the interception is repaired again after a failure, or else listened to again.
    fn mending_at(&self) -> Option<Instant> {
        self.mending.next(self.rests.then_some(Instant::ZERO))
    }

    fn on_event(&mut self, now: Instant, event: Event) -> Result<(), UpError> {
        match event.token {
            OUT | IN => self.read_syns(now, event.token as usize)?,
            LISTENER_V4 | LISTENER_V6 => self.accept(now, event.token),
            INTERCEPT => self.mend(now),
            STOP => self.stopping = true,
            token => {
                let (id, side) = ((token - CONNECTIONS) / 2, (token % 2) as usize);
                match self.connections.get_mut(&id) {
                    Some(Connection::Joined { pair, .. }) => {
                        pair.on_event(side, event);
                        self.enqueue(id);
                    }
                    Some(Connection::Opening(_)) if side == 1 => self.answered(id, event),
                    _ => {}
                }
            }
        }
        Ok(())
    }

    fn mend(&mut self, now: Instant) {
        let done = self.intercept.repair().map(|a_child_had_died| {
            if a_child_had_died {
                crate::log!(Warn, "a helper of the interception died and was started again");
            }
        });
        if let Err(e) = &done {
            crate::log!(Error, "interception cannot be mended", error = e);
        }
        self.mending.begin(now);
        self.mending.note(now, &done);
        let trouble = self.mending.trouble().map(str::to_owned);
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = trouble;
        let _ = self.poller.remove(&self.intercept);
        self.rests = true;
    }

    fn mend_again(&mut self, now: Instant) {
        if self.mending_at().is_none_or(|at| at > now) {
            return;
        }
        if self.mending.again_at().is_some() {
            self.mend(now);
        } else {
            let _ = self.poller.add(&self.intercept, INTERCEPT, Interest::READ);
            self.rests = false;
        }
    }

    fn read_syns(&mut self, now: Instant, device: usize) -> Result<(), UpError> {
        let mut packet = vec![0; 2048];
        for _ in 0..PACKETS {
            match self.intercept.syns()[device].read(&mut packet) {
                Ok(n) => self.on_syn(now, &packet[..n], device == IN as usize),
                Err(TunError::Blocked) => break,
                // That is for good, and the poller would tell of it for ever.
                Err(e) => return Err(UpError::TunGone(e)),
            }
        }
        Ok(())
    }

    /// A host wants a connection.
    fn on_syn(&mut self, now: Instant, syn: &[u8], inward: bool) {
        let Some(ends) = Packet::parse(syn).and_then(|packet| packet.opens(syn)) else { return };
        if let Some(id) = self.openings.get(&ends) {
            // It asks again, and is answered if the server has answered meanwhile.
            if let Some(Connection::Opening(opening)) = self.connections.get(&id)
                && opening.connected
            {
                let _ = self.intercept.syns()[usize::from(inward)].write(syn);
            }
            return;
        }
        if self.drains.load(Ordering::SeqCst) {
            return;
        }
        if let Err(reason) = self.begin(now, ends, inward, syn.to_vec(), None) {
            self.refuse(syn, inward, reason);
        }
    }

    /// Asks the server; the client waits with its SYN, or is connected already.
    fn begin(
        &mut self,
        now: Instant,
        ends: Ends,
        inward: bool,
        syn: Vec<u8>,
        client: Option<Stream>,
    ) -> Result<(), ResetReason> {
        let beyond = if inward { ends.0 } else { ends.1 };
        let link = self.link_to(beyond.ip()).ok_or(ResetReason::Unreachable)?;
        let options = if inward { TcpOptions::default() } else { self.links[link].leg.clone() };
        let keeps = self.links[link].config.source == Source::Keep;
        let server = connect(ends.1, keeps.then_some(ends.0), &options)?;
        let id = self.next;
        self.next += 1;
        let token = CONNECTIONS + 2 * id + 1;
        self.poller
            .add(&server, token, Interest::READ_WRITE.edge())
            .map_err(|_| ResetReason::Exhausted)?;
        let until = now + PATIENCE;
        let connected = false;
        let opening = Opening { ends, server, link, inward, syn, client, connected, until };
        if let Some(displaced) = self.openings.gives_way_to(ends.0.ip()) {
            // Its host asks again.
            self.forget(displaced);
        }
        self.openings.add(ends, id);
        self.connections.insert(id, Connection::Opening(Box::new(opening)));
        Ok(())
    }

    /// The link whose prefix for the address is the longest.
    fn link_to(&self, address: IpAddr) -> Option<usize> {
        let longest = |link: &Link| {
            let prefixes = link.config.routes.iter().filter(|p| p.contains(address));
            prefixes.map(|p| p.len()).max()
        };
        let found = self.links.iter().enumerate().filter_map(|(n, l)| Some((longest(l)?, n)));
        found.max().map(|(_, n)| n)
    }

    /// The client hears what the server, or a router on the way, has said.
    fn refuse(&self, syn: &[u8], inward: bool, reason: ResetReason) {
        if let Some(answer) = relay::refusal(syn, reason) {
            let _ = self.intercept.syns()[usize::from(inward)].write(&answer);
        }
    }

    /// The kernel knows whether the server stands.
    fn answered(&mut self, id: u64, event: Event) {
        let Some(Connection::Opening(opening)) = self.connections.get_mut(&id) else { return };
        if opening.connected {
            // It ended before the client was there: that is told when it is.
            return;
        }
        if !(event.writable || event.failed) {
            return;
        }
        if let Err(failure) = opening.server.outcome() {
            let reason = reason_of_failure(&failure);
            if let Some(Connection::Opening(o)) = self.forget(id)
                && o.client.is_none()
            {
                self.refuse(&o.syn, o.inward, reason);
            }
            return;
        }
        opening.connected = true;
        match opening.client.take() {
            Some(client) => self.join(id, client),
            None => {
                let device = usize::from(opening.inward);
                let _ = self.intercept.syns()[device].write(&opening.syn);
            }
        }
    }

    fn forget(&mut self, id: u64) -> Option<Connection> {
        let gone = self.connections.remove(&id)?;
        match &gone {
            Connection::Opening(opening) => {
                self.openings.remove(&opening.ends);
            }
            Connection::Joined { link, client, .. } => {
                self.joined.remove(*client, &id);
                self.closing.remove(&id);
                self.links[*link].sharing.remove(id);
                self.links[*link].counters.open.fetch_sub(1, Ordering::SeqCst);
                if self.drains.load(Ordering::SeqCst) {
                    self.news.wake();
                }
            }
        }
        Some(gone)
    }

    fn accept(&mut self, now: Instant, token: u64) {
        for _ in 0..PACKETS {
            let Some(accepted) = self.listeners.accept(now, &self.poller, token) else { return };
            let Accepted { stream, client, server } = accepted;
            let ends = (client, server);
            match self.openings.get(&ends) {
                Some(id) => self.join(id, stream),
                None => {
                    // The kernel had its addresses in TIME_WAIT and asked nobody. Without a
                    // server it is dropped, which resets it.
                    let inward = self.link_to(server.ip()).is_none();
                    let _ = self.begin(now, ends, inward, Vec::new(), Some(stream));
                }
            }
        }
    }

    /// Joins the client to the server of the opening.
    fn join(&mut self, id: u64, client: Stream) {
        let Some(Connection::Opening(opening)) = self.forget(id) else { return };
        let Opening { ends, server, link, inward, .. } = *opening;
        let leg = usize::from(!inward);
        if inward {
            // Its SYN had the metrics by the listener's mark.
            let _ = client.set_options(&self.links[link].leg);
        }
        let token = CONNECTIONS + 2 * id;
        if self.poller.add(&client, token, Interest::READ_WRITE.edge()).is_err() {
            return;
        }
        let pair = Box::new(Pair::new(client, server));
        let _ = pair.sides[leg].stream.set_pace(self.links[link].sharing.pace());
        let client = ends.0.ip();
        if self.joined.len() >= self.most_joined
            && let Some(displaced) = self.joined.gives_way_to(client).copied()
        {
            self.forget(displaced);
        }
        self.joined.add(client, id);
        self.connections.insert(id, Connection::Joined { pair, link, leg, client });
        let counters = &self.links[link].counters;
        counters.open.fetch_add(1, Ordering::SeqCst);
        counters.total.fetch_add(1, Ordering::Relaxed);
        self.enqueue(id);
    }

    fn enqueue(&mut self, id: u64) {
        if let Some(Connection::Joined { pair, .. }) = self.connections.get_mut(&id)
            && !std::mem::replace(&mut pair.queued, true)
        {
            self.queue.push_back(id);
        }
    }

    /// Gives every connection that has news one turn.
    fn work(&mut self, now: Instant) {
        for _ in 0..self.queue.len() {
            let Some(id) = self.queue.pop_front() else { break };
            let Some(Connection::Joined { pair, link, leg, .. }) = self.connections.get_mut(&id)
            else {
                continue;
            };
            pair.queued = false;
            // Towards the leg flows what comes from the other side.
            let before = pair.bytes()[1 - *leg];
            let turn = pair.turn(&mut self.buffer);
            if pair.bytes()[1 - *leg] > before
                && let Some(pace) = self.links[*link].sharing.begin(id)
            {
                let _ = pair.sides[*leg].stream.set_pace(pace);
            }
            let left = pair.left();
            if left > 0 && (turn == Turn::Ended || pair.is_resetting()) {
                let patience = || Patience::begin(now, PATIENCE, left);
                self.closing.entry(id).or_insert_with(patience);
            }
            match turn {
                Turn::Rests => {}
                Turn::HasMore => self.enqueue(id),
                Turn::Ended if left == 0 => drop(self.forget(id)),
                Turn::Ended => {}
            }
        }
        for link in &mut self.links {
            link.sharing.settle(|id, pace| set_pace(&self.connections, id, pace));
        }
    }

    fn on_time(&mut self, now: Instant) {
        self.listeners.handle_timeout(now, &self.poller);
        self.mend_again(now);
        if now.since(self.shared_at) < SHARING {
            return;
        }
        self.shared_at = now;
        for link in &mut self.links {
            let connections = &self.connections;
            link.sharing.look(
                |id| is_under_way(connections.get(&id)),
                |id, pace| set_pace(connections, id, pace),
            );
        }
        let connections = &self.connections;
        let over = |(id, patience): (&u64, &mut Patience)| match &connections[id] {
            Connection::Joined { pair, .. } => {
                let left = pair.left();
                (left == 0 || patience.is_over(now, left)).then_some(*id)
            }
            Connection::Opening(_) => Some(*id),
        };
        let over: Vec<u64> = self.closing.iter_mut().filter_map(over).collect();
        let late = |opening: &u64| match &self.connections[opening] {
            Connection::Opening(o) => o.until <= now,
            Connection::Joined { .. } => false,
        };
        let late: Vec<u64> = self.openings.numbers().filter(late).collect();
        for id in over.into_iter().chain(late) {
            self.forget(id);
        }
    }
}

/// Has the leg bytes that the far host has not acknowledged?
fn is_under_way(connection: Option<&Connection>) -> bool {
    match connection {
        Some(Connection::Joined { pair, leg, .. }) => pair.sides[*leg].is_under_way(),
        _ => false,
    }
}

/// Sets the pace of a connection's leg.
fn set_pace(connections: &BTreeMap<u64, Connection>, id: u64, pace: u64) {
    if let Some(Connection::Joined { pair, leg, .. }) = connections.get(&id) {
        let _ = pair.sides[*leg].stream.set_pace(pace);
    }
}

impl Link {
    fn new(config: SplitLink) -> Link {
        let plan = Plan::of(link_of(&config.link, None));
        // The kernel doubles what it is told, and half of that is for its own bookkeeping: two
        // windows, so that what waits for a repeat does not stop the rest.
        let buffer = |window: units::ByteCount| (window.0 * 2).clamp(1 << 16, MOST_BUFFER) as usize;
        // Who may change the network may use any that is there, allowed to others or not.
        let known = os::settings::sysctl("net.ipv4.tcp_available_congestion_control");
        let wanted = plan.send.congestion.name();
        let is_there = known.is_some_and(|known| known.split(' ').any(|name| name == wanted));
        if !is_there {
            crate::log!(
                Warn,
                "this kernel lacks the congestion control that the link calls for",
                wanted = wanted,
                help = format!("load it: modprobe tcp_{wanted}")
            );
        }
        let leg = TcpOptions {
            mark: Some(LEG),
            congestion: is_there.then(|| wanted.to_owned()),
            send_buffer: Some(buffer(plan.send.window)),
            receive_buffer: Some(buffer(plan.receive.window)),
            ..TcpOptions::default()
        };
        let sharing = Sharing::of(&plan);
        Link { counters: Arc::default(), config, plan, leg, sharing }
    }

    fn told(&self) -> OneSidedStatus {
        OneSidedStatus {
            peer: self.config.name.clone(),
            device: self.config.device.clone(),
            routes: self.config.routes.iter().map(ToString::to_string).collect(),
            congestion: self.leg.congestion.clone().unwrap_or_default(),
            ..OneSidedStatus::default()
        }
    }

    fn interception(&self) -> OneSidedLink {
        let (send, receive) = (&self.plan.send, &self.plan.receive);
        OneSidedLink {
            device: self.config.device.clone(),
            routes: self.config.routes.clone(),
            // All that the link holds: it is paced.
            initial_windows: [send, receive].map(|direction| direction.window_segments()),
            least_rto: send.least_rto,
            packets: [send.tcp_packet, receive.tcp_packet],
        }
    }
}

/// Connects, as `from` where that is possible.
fn connect(
    to: SocketAddr,
    from: Option<SocketAddr>,
    options: &TcpOptions,
) -> Result<Stream, ResetReason> {
    let begin = |from| tcp::connect(&Connect { to, from, mark: options.mark, options });
    let outcome = match begin(from) {
        // The client's port is still held by an earlier connection, or by its own socket here.
        Err(ConnectError::SourceInUse) => begin(from.map(|f| SocketAddr::new(f.ip(), 0))),
        other => other,
    };
    outcome.map_err(|e| match e {
        ConnectError::Unreachable(e) => reason_of_own(&e, to.is_ipv4()),
        ConnectError::SourceInUse => ResetReason::Exhausted,
        ConnectError::Failed(e) => {
            crate::log!(Warn, e);
            ResetReason::Exhausted
        }
    })
}
