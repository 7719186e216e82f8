//! The state of an endpoint: what it keeps of all peers, and what it tells of them. What it does
//! with them is in the files beside this one.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use squeeze::stream::Stopwatch;
use units::{BitRate, ByteCount, Duration, Instant};

use super::calls::Calls;
use super::elsewhere::Elsewhere;
use super::event::EndpointEvent;
use super::floods::{Floods, Thinning};
use super::indices::IndexTable;
use super::memory::SharedMemory;
use super::peer::{Peer, PeerId, PeerStats};
use super::shares::Shares;
use super::sleepers::Sleepers;
use super::strangers::{Stranger, StrangerNews, Strangers};
use crate::cookie::Guard;
use crate::handshake::{Message, SessionId};
use crate::keys::{Entropy, Fresh, PrivateKey, PublicKey, hash};
use crate::path::{PathId, Remote};
use crate::session::{PathHealth, Session, SessionStats};
use crate::tunnel::{Failing, Rekey};
use crate::wire::ResetReason;

/// What an endpoint is made of.
#[derive(Clone)]
pub struct EndpointConfig {
    /// This node's key.
    pub private_key: PrivateKey,
    /// All randomness comes from it: 32 bytes of the system's entropy, or a seed.
    pub seed: [u8; 32],
    /// The system's entropy, for every draw; none in a simulation.
    pub fresh: Option<Fresh>,
    /// The processor has instructions for AES-GCM.
    pub hardware_aes: bool,
    /// Initiations per second above which cookies are demanded.
    pub initiations_per_second: u32,
    /// How long a key may be in use, [`MAX_KEY_LIFETIME`](crate::tunnel::MAX_KEY_LIFETIME) at most.
    pub key_lifetime: Duration,
}

/// Where a packet that was written goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// Its length.
    pub len: usize,
    /// Its destination.
    pub to: Remote,
    /// Whose it is, and on which path; `None` for answers to strangers.
    pub peer: Option<(PeerId, PathId)>,
}

/// All peers of a node.
pub struct Endpoint {
    pub(super) config: EndpointConfig,
    pub(super) stopwatch: Option<Stopwatch>,
    pub(super) entropy: Entropy,
    pub(super) guard: Guard,
    /// Those that something was to do with so far, and the others: each in one of them.
    pub(super) peers: Vec<Option<Box<Peer>>>,
    pub(super) sleepers: Sleepers,
    pub(super) by_key: BTreeMap<PublicKey, PeerId>,
    pub(super) indices: IndexTable,
    pub(super) elsewhere: Elsewhere,
    pub(super) strangers: Strangers,
    pub(super) calls: Calls,
    pub(super) memory: SharedMemory,
    pub(super) replies: VecDeque<(Remote, Message)>,
    pub(super) dirty: VecDeque<PeerId>,
    pub(super) noisy: VecDeque<PeerId>,
    pub(super) with_datagrams: VecDeque<PeerId>,
    pub(super) changed: Vec<PeerId>,
    pub(super) timers: BTreeSet<(Instant, PeerId)>,
    pub(super) events: VecDeque<EndpointEvent>,
    pub(super) drops: BTreeMap<&'static str, u64>,
    pub(super) shares: Shares,
    pub(super) floods: Floods,
    /// Whose packet is in hand, and since when by the stopwatch, while work is measured.
    pub(super) measured: Option<(PeerId, Option<Instant>)>,
    /// Until when what arrives may be what somebody waits for, at any peer's.
    pub(super) awaited_until: Instant,
    /// Until when a peer is taken to be near: one with a round trip below 200 ms.
    pub(super) near_until: Instant,
}

impl Endpoint {
    /// An endpoint without peers.
    pub fn new(config: EndpointConfig) -> Endpoint {
        let first = Endpoint::divided(config, 1).pop();
        first.expect("a node has at least one shard")
    }

    pub(super) fn with(
        config: EndpointConfig,
        entropy: Entropy,
        guard: Guard,
        indices: IndexTable,
    ) -> Endpoint {
        Endpoint {
            config,
            stopwatch: None,
            entropy,
            guard,
            indices,
            peers: Vec::new(),
            sleepers: Sleepers::default(),
            by_key: BTreeMap::new(),
            elsewhere: Elsewhere::default(),
            strangers: Strangers::default(),
            calls: Calls::default(),
            memory: SharedMemory::default(),
            replies: VecDeque::new(),
            dirty: VecDeque::new(),
            noisy: VecDeque::new(),
            with_datagrams: VecDeque::new(),
            changed: Vec::new(),
            timers: BTreeSet::new(),
            events: VecDeque::new(),
            drops: BTreeMap::new(),
            shares: Shares::default(),
            floods: Floods::default(),
            measured: None,
            awaited_until: Instant::ZERO,
            near_until: Instant::ZERO,
        }
    }

    /// This node's public key.
    pub fn public_key(&self) -> &PublicKey {
        self.config.private_key.public()
    }

    /// Measures the compression of datagrams, and what peers take of the processor where that
    /// matters, by this clock of processor time, from now on.
    pub fn set_stopwatch(&mut self, stopwatch: Stopwatch) {
        self.stopwatch = Some(stopwatch);
        for peer in self.peers.iter_mut().flatten() {
            peer.session.set_stopwatch(self.stopwatch);
        }
    }

    /// Forgets a peer, its keys and its streams at once.
    pub fn remove_peer(&mut self, id: PeerId) {
        if let Some(asleep) = self.sleepers.remove(id) {
            self.by_key.remove(&asleep.config.public_key);
            self.sleepers.free(id);
        }
        if let Some(peer) = self.peers.get_mut(id.index()).and_then(Option::take) {
            self.by_key.remove(&peer.config.public_key);
            self.forget_memory(peer.memory);
            if let Some(at) = peer.timer {
                self.timers.remove(&(at, id));
            }
            self.indices.forget(id);
            self.shares.forget(id);
            self.sleepers.free(id);
        }
    }

    /// This machine went on after a pause in which it may have been copied: no key that a copy
    /// may have is used again.
    pub fn distrust_keys(&mut self, now: Instant) {
        for id in self.awake().collect::<Vec<_>>() {
            if let Some(peer) = self.peers[id.index()].as_deref_mut() {
                peer.tunnel.distrust_keys(now);
            }
            self.mark(id);
        }
    }

    /// The peers, in no particular order.
    pub fn peers(&self) -> impl Iterator<Item = PeerId> + '_ {
        self.by_key.values().copied()
    }

    /// The peer with this key.
    pub fn peer_with(&self, key: &PublicKey) -> Option<PeerId> {
        self.by_key.get(key).copied()
    }

    /// Those that something was to do with so far.
    pub(super) fn awake(&self) -> impl Iterator<Item = PeerId> + '_ {
        (0..self.peers.len()).filter(|i| self.peers[*i].is_some()).map(PeerId::from_index)
    }

    pub(super) fn peer(&self, id: PeerId) -> Option<&Peer> {
        self.peers.get(id.index())?.as_deref()
    }

    /// The streams and datagrams shared with a peer; none with one that sleeps.
    pub fn session(&self, id: PeerId) -> Option<&Session> {
        self.peer(id).map(|p| &p.session)
    }

    /// The same, to change something; whatever that is will be sent. A peer that sleeps wakes.
    pub fn session_mut(&mut self, id: PeerId) -> Option<&mut Session> {
        self.wake(id);
        self.peer(id)?;
        self.mark(id);
        self.mark_noisy(id);
        self.peers[id.index()].as_deref_mut().map(|p| &mut p.session)
    }

    /// The secret of chunks that this node and the peer share (L-DD-14): it lasts as long as
    /// their static keys. `None` for a peer that is not there.
    pub fn chunk_secret(&self, id: PeerId) -> Option<[u8; 32]> {
        let shared = self.config.private_key.agree(&self.config_of(id)?.public_key)?;
        Some(hash(&[b"bentpipe 1 chunks", shared.as_bytes()]))
    }

    /// Are there keys with the peer?
    pub fn is_established(&self, id: PeerId) -> bool {
        self.peer(id).is_some_and(|p| p.tunnel.is_established())
    }

    /// The rate at which packets may leave to a peer; of one that sleeps, the configured one.
    pub fn rate(&self, id: PeerId) -> BitRate {
        match self.session(id) {
            Some(session) => session.rate_status().rate,
            None => self.config_of(id).map_or(BitRate::default(), |c| c.link.send_rate),
        }
    }

    /// The names of the session with the peer: equal, mirrored, at both ends.
    pub fn session_id(&self, id: PeerId) -> Option<SessionId> {
        self.peer(id)?.tunnel.session()
    }

    /// Which directions of the link are alive (L-LO-6, L-LO-7).
    pub fn health(&self, id: PeerId) -> PathHealth {
        self.peer(id).map(|p| p.health).unwrap_or_default()
    }

    /// Counts the sessions with the peer: stream numbers come again in another (L-SE-3).
    pub fn session_number(&self, id: PeerId) -> u64 {
        self.peer(id).map_or(0, |p| p.sessions)
    }

    /// Counts of a peer.
    pub fn peer_stats(&self, id: PeerId) -> PeerStats {
        let of =
            |p: &Peer| PeerStats { handshakes_failed: p.tunnel.failed_handshakes(), ..p.stats };
        self.peer(id).map(of).unwrap_or_default()
    }

    /// Counts of all sessions with a peer: they do not go back with a new one (CT-4).
    pub fn session_stats(&self, id: PeerId) -> SessionStats {
        let Some(peer) = self.peer(id) else { return SessionStats::default() };
        let mut all = peer.before;
        all += peer.session.stats();
        all
    }

    /// Why handshakes with a peer come to nothing, if they have for a while.
    pub fn failing(&self, now: Instant, id: PeerId) -> Option<Failing> {
        self.peer(id)?.tunnel.failing(now)
    }

    /// Is there no session with a peer, and a handshake under way or about to be tried?
    pub fn is_calling(&self, id: PeerId) -> bool {
        let calls = |p: &Peer| !p.tunnel.is_established() && p.tunnel.is_calling();
        self.peer_endpoint(id).is_some() && self.peer(id).is_some_and(calls)
    }

    /// Whether the keys shared with a peer are replaced in time.
    pub fn rekey(&self, now: Instant, id: PeerId) -> Rekey {
        self.peer(id).map_or(Rekey::InTime, |p| p.tunnel.rekey(now))
    }

    /// Nodes that called lately and are nobody's peer, or call somebody else.
    pub fn strangers(&self) -> impl Iterator<Item = &Stranger> {
        self.strangers.iter()
    }

    /// A stranger that is worth a line in the log: at most one a minute, and each once an
    /// hour.
    pub fn poll_stranger(&mut self, now: Instant) -> Option<StrangerNews> {
        self.strangers.poll(now)
    }

    /// Which packets are to be thinned from now on, if that has changed. For the owner, once in
    /// each turn.
    pub fn poll_thinning(&mut self, now: Instant) -> Option<Thinning> {
        self.floods.poll(now, &self.indices)
    }

    /// Packets dropped, by reason. Nothing dropped is ever answered.
    pub fn drops(&self) -> &BTreeMap<&'static str, u64> {
        &self.drops
    }

    /// The owner begins another turn: it did what followed from the packets that it handed in
    /// before, and charged it.
    pub fn begin_turn(&mut self, now: Instant) {
        self.shares.begin_turn(now);
    }

    /// Do packets of several peers come faster than they can be taken? Then `now` is to be read
    /// anew for each packet, and work for peers to be charged.
    pub fn is_strained(&self) -> bool {
        self.shares.is_strained()
    }

    /// Work for a peer begins, for [`Endpoint::charge`]: the processor's clock, if it matters.
    pub fn work_begins(&self) -> Option<Instant> {
        self.stopwatch.filter(|_| self.shares.is_strained()).map(|clock| clock())
    }

    /// Work for a peer is done that began so.
    pub fn charge(&mut self, id: PeerId, begin: Option<Instant>) {
        if let (Some(begin), Some(clock)) = (begin, self.stopwatch) {
            self.shares.charge(id, clock().since(begin));
        }
    }

    /// How long packets that arrive may wait for others, to be taken together: not at all while
    /// they may be what somebody waits for (answers to what was typed or asked, or a call), a
    /// millisecond while a peer is near, two where a round trip is a hundred times as long.
    pub fn may_gather_for(&self, now: Instant) -> Duration {
        match now {
            _ if now < self.awaited_until => Duration::ZERO,
            _ if now < self.near_until => Duration::from_millis(1),
            _ => Duration::from_millis(2),
        }
    }

    /// All peers' streams together may take `limit`, however much each was promised, and each has
    /// at least `floor`. With `None` nothing is shared.
    pub fn share_memory(&mut self, limit: Option<ByteCount>, floor: ByteCount) {
        self.memory.share(limit, floor);
    }

    /// What all peers' streams take, as far as it was counted.
    pub fn memory_used(&self) -> ByteCount {
        self.memory.used()
    }

    /// Counts what a peer takes, and tells its session whether there is more.
    pub(super) fn count_memory(&mut self, id: PeerId) {
        let Some(peer) = self.peers[id.index()].as_deref_mut() else { return };
        let now = peer.session.memory_used();
        self.memory.count(std::mem::replace(&mut peer.memory, now), now);
        peer.session.set_short(self.memory.is_short(now));
    }

    /// A peer is no more.
    pub(super) fn forget_memory(&mut self, counted: u64) {
        self.memory.count(counted, 0);
    }

    /// Ends all sessions in good order.
    pub fn close_all(&mut self, reason: ResetReason) {
        for id in self.awake().collect::<Vec<_>>() {
            self.close(id, reason);
        }
    }

    /// Ends the session with a peer in good order.
    pub fn close(&mut self, id: PeerId, reason: ResetReason) {
        if self.peer(id).is_some()
            && let Some(session) = self.session_mut(id)
        {
            session.close(reason);
        }
    }

    pub(super) fn mark(&mut self, id: PeerId) {
        if let Some(peer) = self.peers[id.index()].as_deref_mut() {
            peer.tended = None;
            if !std::mem::replace(&mut peer.dirty, true) {
                self.dirty.push_back(id);
            }
            if !std::mem::replace(&mut peer.changed, true) {
                self.changed.push(id);
            }
        }
    }

    /// The peers that something happened to since this was asked last: a packet, a timer, a call of
    /// the owner. Whatever is counted or found out of the others is as it was.
    pub fn take_changed(&mut self) -> Vec<PeerId> {
        let changed = std::mem::take(&mut self.changed);
        for id in &changed {
            if let Some(peer) = self.peers[id.index()].as_deref_mut() {
                peer.changed = false;
            }
        }
        changed
    }

    pub(super) fn mark_noisy(&mut self, id: PeerId) {
        if let Some(peer) = self.peers[id.index()].as_deref_mut()
            && !peer.noisy
        {
            peer.noisy = true;
            self.noisy.push_back(id);
        }
    }

    /// What happened next.
    pub fn poll_event(&mut self) -> Option<EndpointEvent> {
        if let Some(event) = self.events.pop_front() {
            return Some(event);
        }
        while let Some(id) = self.noisy.front().copied() {
            if let Some(peer) = self.peers[id.index()].as_deref_mut() {
                if let Some(event) = peer.session.poll_event() {
                    return Some(EndpointEvent::Stream(id, event));
                }
                peer.noisy = false;
            }
            self.noisy.pop_front();
        }
        None
    }

    /// A peer whose datagrams wait.
    pub fn peer_with_datagrams(&mut self) -> Option<PeerId> {
        while let Some(id) = self.with_datagrams.front().copied() {
            if let Some(peer) = self.peers[id.index()].as_deref_mut() {
                if peer.session.has_datagrams() {
                    return Some(id);
                }
                peer.has_datagrams = false;
            }
            self.with_datagrams.pop_front();
        }
        None
    }
}
