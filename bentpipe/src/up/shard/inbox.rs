//! What comes to a shard from the first one, and the loop of its thread.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, TrySendError, channel, sync_channel};

use link::endpoint::HandedOver;
use link::keys::PublicKey;
use os::OsError;
use os::poll::{Events, Interest, Waker};
use os::tcp::Accepted;
use units::{BitRate, Duration, Instant};

use super::paths::Which;
use super::report::Part;
use super::tidings::News;
use super::{OWNERS, Shard};
use crate::admin::{LineCommand, PathCommand};
use crate::config::Config;
use crate::up::error::UpError;
use crate::up::peers::Sharers;
use crate::up::proxy::Asked;
use crate::up::self_test::{Listener, Wanted};
use crate::up::services::Work;
use crate::up::services::line::Line;

/// The poller's number for what the first shard says to another.
const INBOX: u64 = OWNERS;
/// Initiations that may wait at a shard's door, and link packets that came to the first.
const INITIATIONS: usize = 256;
pub const STRAYS: usize = 64;
/// Batches of packets that may wait there, of [`PACKETS`] at the most: 6 MB.
pub const BATCHES: usize = 8;
/// Packets that wait for one of these places, and what a shard takes of them before other work
/// has its turn: as many as a TUN device's own queue holds.
pub const PACKETS: usize = 500;
/// Packets that a turn reads from a TUN device: a batch begins with room for them.
pub const TUN_PACKETS: usize = 64;
/// Of each other kind, what is taken before other work has its turn.
const AT_ONCE: usize = 64;
/// What could not be said is said again after so long.
const AGAIN: Duration = Duration::from_millis(100);

/// What a shard is told to do. None is lost.
pub enum Order {
    /// The file was read again: the shard's peers now, how many there are in all, and where
    /// new ones were last.
    Reload(Box<Config>, Sharers, BTreeMap<PublicKey, SocketAddr>),
    /// A link's rate is another.
    Rate(PublicKey, BitRate),
    /// Something for a path.
    Path(PublicKey, Which, PathCommand),
    /// Something for a peer's lines, or for one of them.
    Line(PublicKey, Option<String>, LineCommand),
    /// Test a link.
    Test(PublicKey, Wanted, Listener),
    /// Tell your part of the status.
    Tell(Sender<Part>),
    /// Somebody watches, or nobody any more; split connections, too.
    Watched(bool, bool),
    /// A service runs, or does not any more.
    Service(String, Option<Arc<Line>>),
    /// Take nothing new, and tell when nothing is open any more.
    Stop,
    /// Tell the peers, and end.
    End,
}

/// What arrived at the first shard for a peer of another.
pub enum Guest {
    /// A peer's initiation, opened, or a link packet.
    HandedOver(HandedOver),
    /// A client's connection, intercepted.
    Connection(Accepted),
    /// A client of the explicit proxy.
    ProxyClient(Asked),
    /// What a service wants of one of the shard's peers.
    Service(Box<Work>),
}

/// Packets that were read from a TUN device, end to end.
#[derive(Default)]
pub struct Packets {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Packets {
    /// Adds one; false if there are [`PACKETS`] already.
    pub fn push(&mut self, packet: &[u8]) -> bool {
        if self.ends.len() >= PACKETS {
            return false;
        }
        if self.ends.is_empty() {
            self.bytes.reserve(TUN_PACKETS * 1500);
            self.ends.reserve(TUN_PACKETS);
        }
        self.bytes.extend_from_slice(packet);
        self.ends.push(self.bytes.len());
        true
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Are there none?
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    fn for_each(&mut self, mut take: impl FnMut(&mut [u8])) {
        let mut start = 0;
        for end in &self.ends {
            take(&mut self.bytes[start..*end]);
            start = *end;
        }
    }
}

impl Shard {
    /// What the first shard is to hear now, if anything.
    pub fn take_news(&mut self) -> Option<News> {
        if self.notes.is_empty() && self.tidings.is_empty() {
            return None;
        }
        let (notes, tidings) = (std::mem::take(&mut self.notes), std::mem::take(&mut self.tidings));
        Some(News { notes, tidings })
    }
}

/// The first shard's end of the channels to another.
pub struct Door {
    pub orders: Sender<Order>,
    pub hosts: Sender<Guest>,
    pub initiations: SyncSender<Guest>,
    pub strays: SyncSender<Guest>,
    /// With whether they are SYNs from a LAN whose TCP is split.
    pub packets: SyncSender<(Packets, bool)>,
    /// Wakes the shard when something was sent.
    pub waker: Waker,
    /// Has it nothing open any more, while ending?
    pub quiet: Arc<AtomicBool>,
}

/// A shard's end.
pub struct Inbox {
    orders: Receiver<Order>,
    hosts: Receiver<Guest>,
    initiations: Receiver<Guest>,
    strays: Receiver<Guest>,
    packets: Receiver<(Packets, bool)>,
    waker: Waker,
    news: SyncSender<News>,
    quiet: Arc<AtomicBool>,
    to_first: Waker,
}

impl Inbox {
    /// The way in to a shard that does not run yet, and its end of it, which says what is new
    /// by `news`.
    ///
    /// # Errors
    /// If there is no descriptor for the waker.
    pub fn open(
        shard: &Shard,
        news: SyncSender<News>,
        to_first: Waker,
    ) -> Result<(Door, Inbox), OsError> {
        let (orders_to, orders) = channel();
        let (hosts_to, hosts) = channel();
        let (initiations_to, initiations) = sync_channel(INITIATIONS);
        let (strays_to, strays) = sync_channel(STRAYS);
        let (packets_to, packets) = sync_channel(BATCHES);
        let (waker, quiet) = (Waker::new()?, Arc::<AtomicBool>::default());
        shard.poller.add(&waker, INBOX, Interest::READ)?;
        let door = Door {
            orders: orders_to,
            hosts: hosts_to,
            initiations: initiations_to,
            strays: strays_to,
            packets: packets_to,
            waker: waker.clone(),
            quiet: quiet.clone(),
        };
        let inbox =
            Inbox { orders, hosts, initiations, strays, packets, waker, news, quiet, to_first };
        Ok((door, inbox))
    }

    /// A shard's loop, until it is told to end. The shard that is given back has said
    /// farewell and holds what is to be closed with the others.
    pub fn run(mut self, mut shard: Shard) -> Result<Shard, UpError> {
        // As the first does, and not the threads that it starts.
        os::proc::go_first();
        shard.watch_modems();
        let mut events = Events::with_capacity(256);
        let mut again = None;
        loop {
            let now = shard.clock.now();
            let next = [shard.poll_timeout(now), again].into_iter().flatten().min();
            shard.wait(&mut events, next.map(|at| at.since(now)))?;
            let now = shard.clock.now();
            let mut ends = false;
            for event in events.iter() {
                match event.token {
                    INBOX => ends |= self.take(now, &mut shard),
                    _ => shard.on_event(now, event),
                }
            }
            shard.on_time(now);
            shard.settle();
            again = (!self.report(&mut shard)).then(|| now + AGAIN);
            if ends {
                shard.end();
                return Ok(shard);
            }
        }
    }

    /// Takes what has come; true if the shard is to end.
    pub fn take(&mut self, now: Instant, shard: &mut Shard) -> bool {
        self.waker.clear();
        let mut ends = false;
        for order in self.orders.try_iter() {
            match order {
                Order::Reload(config, all, stored) => {
                    for why in shard.reload(now, *config, all, &stored) {
                        crate::log!(Error, why);
                    }
                }
                Order::Rate(peer, rate) => shard.set_rate(now, &peer, rate),
                Order::Path(peer, which, command) => {
                    if let Err(why) = shard.set_path(now, &peer, which, command) {
                        crate::log!(Warn, why);
                    }
                }
                Order::Line(peer, which, command) => {
                    shard.command_line(now, &peer, which.as_deref(), command);
                }
                Order::Test(peer, wanted, listener) => shard.test(now, &peer, wanted, listener),
                Order::Tell(part_to) => {
                    // Nobody hears it only where the first has ended.
                    let _ = part_to.send(shard.part(now));
                    self.to_first.wake();
                }
                Order::Watched(any, flows) => shard.set_watched(any, flows),
                Order::Service(name, line) => shard.set_service(now, &name, line),
                Order::Stop => shard.stop(now),
                Order::End => ends = true,
            }
        }
        let mut guests = 0;
        let hosts = self.hosts.try_iter().take(AT_ONCE);
        let initiations = self.initiations.try_iter().take(AT_ONCE);
        for guest in hosts.chain(initiations).chain(self.strays.try_iter().take(AT_ONCE)) {
            guests += 1;
            match guest {
                Guest::HandedOver(it) => shard.relay.endpoint.take_handed_over(now, it),
                Guest::Connection(accepted) => shard.take_connection(now, accepted),
                Guest::ProxyClient(asked) => shard.take_proxy_client(now, asked),
                Guest::Service(work) => shard.work_for_service(now, *work),
            }
        }
        let mut left = PACKETS;
        while left > 0
            && let Ok((mut packets, split)) = self.packets.try_recv()
        {
            left = left.saturating_sub(packets.len());
            packets.for_each(|packet| shard.take_packet(now, packet, split));
        }
        if guests >= AT_ONCE || left == 0 {
            // There may be more, for the next turn.
            self.waker.wake();
        }
        ends
    }

    /// Tells the first shard what it is to know; false if there was no room for it.
    fn report(&mut self, shard: &mut Shard) -> bool {
        let quiet = shard.draining && shard.is_quiet();
        let mut told = self.quiet.swap(quiet, Ordering::Release) != quiet;
        let mut full = false;
        if let Some(news) = shard.take_news() {
            match self.news.try_send(news) {
                Ok(()) => told = true,
                Err(TrySendError::Full(News { notes, tidings })) => {
                    (shard.notes, shard.tidings) = (notes, tidings);
                    full = true;
                }
                Err(TrySendError::Disconnected(_)) => {}
            }
        }
        if told {
            self.to_first.wake();
        }
        !full
    }
}
