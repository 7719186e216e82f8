//! A gateway's other shards, each on a thread of its own: what the first tells them, what it
//! hands over, and what they tell it (docs/decisions/shards-by-receiver-index.md).
//!
//! Nobody waits for anybody, but for the end. What the operator asks goes by channels that
//! hold little because he asks little, and connections by one that holds as many as there are
//! descriptors; what else hosts and peers cause goes by channels with an end, each kind by its
//! own. Where they are full, initiations and link packets are lost, as in any queue of packets;
//! the hosts' packets wait for their turn, up to a bound.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, TrySendError, channel, sync_channel};
use std::thread::{self, JoinHandle};

use os::OsError;
use os::poll::{Interest, Poller, Waker};
use units::{Duration, Instant};

use super::error::UpError;
use super::shard::Shard;
use super::shard::inbox::{Door, Guest, Inbox, Order, Packets};
use super::shard::report::Part;
use super::shard::tidings::News;

/// When it is looked again whether there is room for packets that found none.
const PLACE: Duration = Duration::from_millis(1);
/// Shards' news that may wait for the first.
const NEWS: usize = 256;
/// As the first thread has, usually; only what is used takes memory.
const STACK: usize = 8 << 20;

/// What the first shard has of another.
struct Other {
    door: Door,
    /// To be sent at the end of this turn: packets to tunnel, and SYNs from a LAN whose TCP is
    /// split.
    batches: [Packets; 2],
    /// Something was sent since the shard was woken.
    news: bool,
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<Shard, UpError>>>,
}

/// All shards but the first; usually none.
#[derive(Default)]
pub struct Others {
    each: Vec<Other>,
    unstarted: Vec<(Shard, Inbox)>,
    news: Option<(Receiver<News>, Waker)>,
    /// See [`Others::busy`].
    busy: u64,
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
            let (door, inbox) = Inbox::open(&shard, news_to.clone(), to_first.clone())?;
            others.each.push(Other {
                door,
                batches: Default::default(),
                news: false,
                ended: Arc::default(),
                thread: None,
            });
            others.unstarted.push((shard, inbox));
        }
        Ok(others)
    }

    /// Starts their threads.
    ///
    /// # Errors
    /// If the system has no more threads.
    pub fn start(&mut self) -> Result<(), UpError> {
        let Some((_, to_first)) = &self.news else { return Ok(()) };
        for ((shard, inbox), other) in self.unstarted.drain(..).zip(&mut self.each) {
            let ended = Ended(other.ended.clone(), to_first.clone());
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
    pub fn unstarted(&mut self, shard: usize) -> &mut Shard {
        &mut self.unstarted[shard - 1].0
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
            let _ = other.door.orders.send(order);
            other.door.waker.wake();
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
            Guest::Connection(_) | Guest::ProxyClient(_) | Guest::Service(_) => {
                other.door.hosts.send(guest).is_ok()
            }
            Guest::HandedOver(ref it) if it.is_initiation() => {
                other.door.initiations.try_send(guest).is_ok()
            }
            Guest::HandedOver(_) => other.door.strays.try_send(guest).is_ok(),
        };
        other.news |= sent;
        self.busy += u64::from(!sent);
    }

    /// Keeps a packet for the shard with this number until [`Others::flush`]. `split`: it is a
    /// SYN.
    pub fn push(&mut self, shard: usize, packet: &[u8], split: bool) {
        let Some(other) = shard.checked_sub(1).and_then(|n| self.each.get_mut(n)) else { return };
        let kept = other.batches[usize::from(split)].push(packet);
        self.busy += u64::from(!kept);
    }

    /// Hands over the packets of this turn, and those that found no place before, and wakes
    /// whom something was handed over to: once a turn.
    pub fn flush(&mut self) {
        for other in &mut self.each {
            for (batch, split) in other.batches.iter_mut().zip([false, true]) {
                if batch.is_empty() {
                    continue;
                }
                match other.door.packets.try_send((std::mem::take(batch), split)) {
                    Ok(()) => other.news = true,
                    Err(TrySendError::Full((packets, _))) => *batch = packets,
                    Err(TrySendError::Disconnected((packets, _))) => {
                        self.busy += packets.len() as u64;
                    }
                }
            }
            if std::mem::take(&mut other.news) {
                other.door.waker.wake();
            }
        }
    }

    /// When packets that found no place are to be tried again.
    pub fn poll_timeout(&self, now: Instant) -> Option<Instant> {
        let waits = |other: &Other| other.batches.iter().any(|batch| !batch.is_empty());
        self.each.iter().any(waits).then(|| now + PLACE)
    }

    /// Packets and initiations that were lost because a shard was busy, and what came for one
    /// that has ended.
    pub fn busy(&self) -> u64 {
        self.busy
    }

    /// Asks all for their parts of the status, if nobody asked already.
    pub fn ask(&mut self) {
        if self.parts.is_none() {
            let (part_to, parts) = channel();
            self.parts = Some((parts, Vec::new()));
            self.order_all(|| Order::Tell(part_to.clone()));
        }
    }

    /// Were they asked, and have not all told theirs?
    pub fn is_asked(&self) -> bool {
        self.parts.is_some()
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

    /// Wakes the first, where there are others.
    pub fn waker_of_first(&self) -> Option<Waker> {
        self.news.as_ref().map(|(_, waker)| waker.clone())
    }

    /// What a shard has told.
    pub fn next_news(&mut self) -> Option<News> {
        self.news.as_ref()?.0.try_recv().ok()
    }

    /// Has nobody anything open any more, as far as they said?
    pub fn are_quiet(&self) -> bool {
        self.each.iter().all(|other| other.door.quiet.load(Ordering::Acquire))
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
        self.unstarted.clear();
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
pub(super) struct Ended(pub Arc<AtomicBool>, pub Waker);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
        self.1.wake();
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use link::endpoint::{Endpoint, EndpointConfig};
    use link::keys::PrivateKey;
    use os::poll::Clock;

    use super::*;
    use crate::config::Config;
    use crate::up::carrier::Carrier;
    use crate::up::chunks::ChunkPlace;
    use crate::up::shard::Common;
    use crate::up::shard::inbox::{BATCHES, PACKETS, STRAYS, TUN_PACKETS};
    use crate::up::shard::lines::LeavingLines;

    /// The first endpoint of two, and the other shard, which does not run.
    fn two() -> (Endpoint, Others, Poller) {
        let key = PrivateKey::generate([7; 32]);
        let text = format!("[node]\nprivate_key = \"{}\"\nshards = 2\n", key.to_base64());
        let config = Config::parse(&text, Path::new("/")).unwrap_or_else(|_| panic!("{text}"));
        let mut carriers = Carrier::open("127.0.0.1:0".parse().unwrap(), None, 2).unwrap();
        let endpoint = EndpointConfig {
            private_key: key.clone(),
            seed: [1; 32],
            hardware_aes: false,
            initiations_per_second: 100,
            key_lifetime: link::endpoint::MAX_KEY_LIFETIME,
            fresh: None,
        };
        let mut endpoints = Endpoint::divided(endpoint, 2);
        let chunks = ChunkPlace::find(None, true, key.public());
        let leaving_lines = LeavingLines::default();
        let clock = Clock::start();
        let common = Common { config: &config, clock, tun: None, chunks: &chunks, leaving_lines };
        let (poller, second) = (Poller::new().unwrap(), Poller::new().unwrap());
        let (carrier, endpoint) = (carriers.remove(1), endpoints.remove(1));
        let shard = Shard::new(1, second, carrier, endpoint, &common).unwrap();
        let others = Others::new(vec![shard], &poller, 0).unwrap();
        (endpoints.remove(0), others, poller)
    }

    impl Others {
        /// So many packets come in turns, as from a TUN device.
        fn read(&mut self, packets: usize) {
            for n in 1..=packets {
                self.push(1, &[0; 1500], false);
                if n % TUN_PACKETS == 0 || n == packets {
                    self.flush();
                }
            }
        }

        /// The shard has a turn.
        fn take(&mut self) {
            let (shard, inbox) = &mut self.unstarted[0];
            assert!(!inbox.take(Instant::ZERO, shard), "nobody said that it ends");
        }
    }

    #[test]
    fn packets_wait_for_a_busy_shard_up_to_a_bound_and_those_beyond_are_counted() {
        let (_first, mut others, _poller) = two();
        let room = BATCHES * TUN_PACKETS + PACKETS;
        others.read(room);
        assert_eq!(others.busy(), 0);
        assert!(others.poll_timeout(Instant::ZERO).is_some(), "some wait for a place");
        others.read(1_000);
        assert_eq!(others.busy(), 1_000);
        // What is kept is a batch, and has a place after the shard's turn.
        others.take();
        others.flush();
        assert_eq!(others.poll_timeout(Instant::ZERO), None);
        others.read(PACKETS);
        assert_eq!(others.busy(), 1_000);
    }

    #[test]
    fn a_turn_takes_a_bounded_number_of_packets() {
        let (_first, mut others, _poller) = two();
        let full = || {
            let mut batch = Packets::default();
            while batch.push(&[0; 1500]) {}
            (batch, false)
        };
        let put = |others: &Others| {
            (0..).take_while(|_| others.each[0].door.packets.try_send(full()).is_ok()).count()
        };
        assert_eq!(full().0.len(), PACKETS);
        assert_eq!(put(&others), BATCHES);
        for _ in 0..3 {
            others.take();
            assert_eq!(put(&others), 1, "one full batch is a turn's work");
        }
    }

    #[test]
    fn link_packets_for_a_busy_shard_are_lost_beyond_a_bound_and_counted() {
        let (mut first, mut others, _poller) = two();
        for _ in 0..STRAYS + 10 {
            let mut stray = [&[0b1100_0101, 0x10, 0x01][..], &[7; 40]].concat();
            let from = std::net::SocketAddr::from(([192, 0, 2, 1], 4500)).into();
            first.handle_packet(Instant::ZERO, Instant::ZERO, from, &mut stray);
            let it = first.poll_handed_over().expect("it is the other's");
            others.hand_over(it.shard as usize, Guest::HandedOver(it));
        }
        assert_eq!(others.busy(), 10);
        others.take();
        let (shard, _) = &others.unstarted[0];
        assert_eq!(shard.relay.endpoint.drops()["unknown index"], STRAYS as u64);
    }
}
