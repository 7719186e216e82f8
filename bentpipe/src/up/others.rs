//! A gateway's other shards, each on a thread of its own: what the first tells them, what it
//! hands over, and what they tell it (docs/decisions/shards-by-receiver-index.md).
//!
//! Nobody waits for anybody, but for the end. What the operator asks goes by channels that
//! hold little because he asks little, and connections by one that holds as many as there are
//! descriptors; what else hosts and peers cause goes by channels with an end, each kind by its
//! own, and is lost where they are full, as in any queue of packets.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, TrySendError, channel, sync_channel};
use std::thread::{self, JoinHandle};

use link::endpoint::HandedOver;
use link::keys::PublicKey;
use os::OsError;
use os::poll::{Events, Interest, Poller, Waker};
use os::tcp::Accepted;
use units::{BitRate, Duration, Instant};

use super::driver::UpError;
use super::peers::Sharers;
use super::proxy::Asked;
use super::report::Part;
use super::shard::{Note, OWNERS, Shard};
use crate::config::Config;

/// The poller's number for what the first shard says to another.
const INBOX: u64 = OWNERS;
/// Initiations that may wait at a shard's door, and link packets that came to the first.
const INITIATIONS: usize = 256;
const STRAYS: usize = 64;
/// Batches of packets that may wait there, of [`PACKETS`] at the most: 6 MB.
const BATCHES: usize = 8;
/// Packets that wait for one of these places, and what a shard takes of them before other work
/// has its turn: as many as a TUN device's own queue holds.
const PACKETS: usize = 500;
/// Packets that a turn reads from a TUN device, and the room that a batch begins with: enough
/// for them.
pub const TUN_PACKETS: usize = 64;
const BATCH: usize = TUN_PACKETS * 1500;
/// When it is looked again whether there is one.
const PLACE: Duration = Duration::from_millis(1);
/// Of each other kind, what is taken before other work has its turn.
const AT_ONCE: usize = 64;
/// Shards' news that may wait for the first.
const NEWS: usize = 256;
/// What could not be said is said again after so long.
const AGAIN: Duration = Duration::from_millis(100);
/// As the first thread has, usually; only what is used takes memory.
const STACK: usize = 8 << 20;

/// What a shard is told to do. None is lost.
pub enum Order {
    /// The file was read again: the shard's peers now, how many there are in all, and where
    /// new ones were last.
    Reload(Box<Config>, Sharers, BTreeMap<PublicKey, SocketAddr>),
    /// A link's rate is another.
    Rate(PublicKey, BitRate),
    /// Tell your part of the status.
    Tell(Sender<Part>),
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
}

/// Packets that were read from a TUN device, end to end.
#[derive(Default)]
pub struct Packets {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

/// What a shard tells the first of its peers.
type News = BTreeMap<PublicKey, Note>;

/// The first shard's end of the channels to another.
struct Other {
    orders: Sender<Order>,
    hosts: Sender<Guest>,
    initiations: SyncSender<Guest>,
    strays: SyncSender<Guest>,
    packets: SyncSender<(Packets, bool)>,
    /// To be sent at the end of this turn: packets to tunnel, and SYNs from a LAN whose TCP is
    /// split.
    batches: [Packets; 2],
    /// Something was sent since the shard was woken.
    news: bool,
    waker: Waker,
    /// Has it nothing open any more, while ending?
    quiet: Arc<AtomicBool>,
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<Shard, UpError>>>,
}

/// A shard's end.
struct Inbox {
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

/// All shards but the first; usually none.
#[derive(Default)]
pub struct Others {
    each: Vec<Other>,
    ready: Vec<(Shard, Inbox)>,
    news: Option<(Receiver<News>, Waker)>,
    /// What was lost because a shard's door was crowded.
    lost: u64,
    /// Parts of a status that was asked for, and what there is of them.
    parts: Option<(Receiver<Part>, Vec<Part>)>,
}

impl Others {
    /// These shards, numbered from 1, not yet running. `token` is for their news.
    ///
    /// # Errors
    /// If the system has no more descriptors.
    pub fn new(shards: Vec<Shard>, poller: &Poller, token: u64) -> Result<Others, OsError> {
        if shards.is_empty() {
            return Ok(Others::default());
        }
        let to_first = Waker::new()?;
        poller.add(&to_first, token, Interest::READ)?;
        let (news_to, news) = sync_channel(NEWS);
        let mut others = Others { news: Some((news, to_first.clone())), ..Others::default() };
        for shard in shards {
            let (orders_to, orders) = channel();
            let (hosts_to, hosts) = channel();
            let (initiations_to, initiations) = sync_channel(INITIATIONS);
            let (strays_to, strays) = sync_channel(STRAYS);
            let (packets_to, packets) = sync_channel(BATCHES);
            let (waker, quiet) = (Waker::new()?, Arc::<AtomicBool>::default());
            shard.poller.add(&waker, INBOX, Interest::READ)?;
            others.each.push(Other {
                orders: orders_to,
                hosts: hosts_to,
                initiations: initiations_to,
                strays: strays_to,
                packets: packets_to,
                batches: Default::default(),
                news: false,
                waker: waker.clone(),
                quiet: quiet.clone(),
                ended: Arc::default(),
                thread: None,
            });
            let (news, to_first) = (news_to.clone(), to_first.clone());
            let inbox =
                Inbox { orders, hosts, initiations, strays, packets, waker, news, quiet, to_first };
            others.ready.push((shard, inbox));
        }
        Ok(others)
    }

    /// Starts their threads.
    ///
    /// # Errors
    /// If the system has no more threads.
    pub fn start(&mut self) -> Result<(), UpError> {
        for ((shard, inbox), other) in self.ready.drain(..).zip(&mut self.each) {
            let ended = Ended(other.ended.clone(), inbox.to_first.clone());
            let thread = thread::Builder::new().name(format!("shard {}", shard.number));
            let run = move || {
                let _ended = ended;
                inbox.run(shard)
            };
            let thread = thread.stack_size(STACK).spawn(run).map_err(UpError::Thread)?;
            other.thread = Some(thread);
        }
        Ok(())
    }

    /// The shard with this number, which does not run yet.
    pub fn ready(&mut self, shard: usize) -> &mut Shard {
        &mut self.ready[shard - 1].0
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.each.len()
    }

    /// Are there none?
    pub fn is_empty(&self) -> bool {
        self.each.is_empty()
    }

    /// Gives an order to the shard with this number.
    pub fn order(&mut self, shard: usize, order: Order) {
        if let Some(other) = shard.checked_sub(1).and_then(|n| self.each.get(n)) {
            // Nobody hears it only where the thread has ended, and then this one does.
            let _ = other.orders.send(order);
            other.waker.wake();
        }
    }

    /// Gives all of them an order.
    pub fn order_all(&mut self, order: impl Fn() -> Order) {
        for shard in 1..=self.each.len() {
            self.order(shard, order());
        }
    }

    /// Hands something over to the shard with this number, which learns of it by
    /// [`Others::flush`].
    pub fn hand_over(&mut self, shard: usize, guest: Guest) {
        let Some(other) = shard.checked_sub(1).and_then(|n| self.each.get_mut(n)) else { return };
        let sent = match guest {
            Guest::Connection(_) | Guest::ProxyClient(_) => other.hosts.send(guest).is_ok(),
            Guest::HandedOver(ref it) if it.is_initiation() => {
                other.initiations.try_send(guest).is_ok()
            }
            Guest::HandedOver(_) => other.strays.try_send(guest).is_ok(),
        };
        other.news |= sent;
        self.lost += u64::from(!sent);
    }

    /// Keeps a packet for the shard with this number until [`Others::flush`]. `split`: it is a
    /// SYN.
    pub fn push(&mut self, shard: usize, packet: &[u8], split: bool) {
        let Some(other) = shard.checked_sub(1).and_then(|n| self.each.get_mut(n)) else { return };
        let batch = &mut other.batches[usize::from(split)];
        if batch.ends.len() >= PACKETS {
            self.lost += 1;
            return;
        }
        if batch.ends.is_empty() {
            batch.bytes.reserve(BATCH);
            batch.ends.reserve(TUN_PACKETS);
        }
        batch.bytes.extend_from_slice(packet);
        batch.ends.push(batch.bytes.len());
    }

    /// Hands over the packets of this turn, and those that found no place before, and wakes
    /// whom something was handed over to: once a turn.
    pub fn flush(&mut self) {
        for other in &mut self.each {
            for (batch, split) in other.batches.iter_mut().zip([false, true]) {
                if batch.ends.is_empty() {
                    continue;
                }
                match other.packets.try_send((std::mem::take(batch), split)) {
                    Ok(()) => other.news = true,
                    Err(TrySendError::Full((packets, _))) => *batch = packets,
                    Err(TrySendError::Disconnected((packets, _))) => {
                        self.lost += packets.ends.len() as u64;
                    }
                }
            }
            if std::mem::take(&mut other.news) {
                other.waker.wake();
            }
        }
    }

    /// When packets that found no place are to be tried again.
    pub fn poll_timeout(&self, now: Instant) -> Option<Instant> {
        let waits = |other: &Other| other.batches.iter().any(|batch| !batch.ends.is_empty());
        self.each.iter().any(waits).then(|| now + PLACE)
    }

    /// Packets, connections and initiations that were lost because a shard was busy.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Asks all for their parts of the status, if nobody asked already.
    pub fn ask(&mut self) {
        if self.parts.is_none() {
            let (part_to, parts) = channel();
            self.parts = Some((parts, Vec::new()));
            self.order_all(|| Order::Tell(part_to.clone()));
        }
    }

    /// All parts of the status, once they are there.
    pub fn take_parts(&mut self) -> Option<Vec<Part>> {
        let (news, parts) = self.parts.as_mut()?;
        parts.extend(news.try_iter());
        let all = parts.len() == self.each.len();
        all.then(|| self.parts.take()).flatten().map(|(_, parts)| parts)
    }

    /// Forgets the news so far, to be called before they are taken.
    pub fn clear(&self) {
        if let Some((_, waker)) = &self.news {
            waker.clear();
        }
    }

    /// What a shard has said of its peers.
    pub fn next_notes(&mut self) -> Option<BTreeMap<PublicKey, Note>> {
        self.news.as_ref()?.0.try_recv().ok()
    }

    /// Has nobody anything open any more, as far as they said?
    pub fn are_quiet(&self) -> bool {
        self.each.iter().all(|other| other.quiet.load(Ordering::Acquire))
    }

    /// Why one has ended that was not told to, if one has.
    pub fn failure(&mut self) -> Option<UpError> {
        let failed = self.each.iter_mut().find(|o| o.ended.load(Ordering::Acquire))?;
        Some(match failed.thread.take().map(JoinHandle::join) {
            Some(Ok(Err(why))) => why,
            _ => UpError::ShardGone,
        })
    }

    /// Waits until all have told their peers and ended; they are closed together. Answers why
    /// one could not, too.
    pub fn join(&mut self) -> (Vec<Shard>, Result<(), UpError>) {
        let ended: Vec<_> =
            self.each.iter_mut().filter_map(|o| o.thread.take()).map(JoinHandle::join).collect();
        self.ready.clear();
        self.each.clear();
        // Their sockets are closed here, together: one alone would misdirect the others'.
        let (mut shards, mut outcome) = (Vec::new(), Ok(()));
        for ended in ended {
            match ended.unwrap_or(Err(UpError::ShardGone)) {
                Ok(shard) => shards.push(shard),
                Err(why) => outcome = Err(why),
            }
        }
        (shards, outcome)
    }
}

/// Tells the first shard when a thread has ended, however that went.
struct Ended(Arc<AtomicBool>, Waker);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
        self.1.wake();
    }
}

impl Inbox {
    /// A shard's loop, until it is told to end. The shard that is given back has said
    /// farewell and holds what is to be closed with the others.
    fn run(mut self, mut shard: Shard) -> Result<Shard, UpError> {
        // As the first does, and not the threads that it starts.
        os::proc::go_first();
        shard.watch_modems();
        let mut events = Events::with_capacity(256);
        let mut again = None;
        loop {
            let now = shard.clock.now();
            let next = [shard.poll_timeout(now), again].into_iter().flatten().min();
            shard.poller.wait(&mut events, next.map(|at| at.since(now)))?;
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
    fn take(&mut self, now: Instant, shard: &mut Shard) -> bool {
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
                Order::Tell(part_to) => {
                    // Nobody hears it only where the first has ended.
                    let _ = part_to.send(shard.part(now));
                    self.to_first.wake();
                }
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
            }
        }
        let mut left = PACKETS;
        while left > 0
            && let Ok((mut packets, split)) = self.packets.try_recv()
        {
            left = left.saturating_sub(packets.ends.len());
            let mut start = 0;
            for end in packets.ends {
                shard.take_packet(now, &mut packets.bytes[start..end], split);
                start = end;
            }
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
        if !shard.notes.is_empty() {
            match self.news.try_send(std::mem::take(&mut shard.notes)) {
                Ok(()) => told = true,
                Err(TrySendError::Full(notes)) => {
                    shard.notes = notes;
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
