//! One peer's tunnel: handshakes, keys, replay protection and the peer's addresses, one on each
//! path.
//!
//! A **session** is what outlives everything else: a pair of packet-number spaces,
//! named by two random epochs, one drawn by each side. Each handshake gives fresh keys
//! for a session. If both sides still know the session's two epochs the keys are for
//! that session, and streams and numbers go on; if either has forgotten (it restarted)
//! the handshake begins a new one.
//!
//! The **initiator** uses new keys from the moment the response arrives. The
//! **responder** keeps its session and keys until the first packet under the new ones
//! comes: an initiation may be a replay, and nobody who replays can go on to seal a
//! packet. So no clock is needed to tell old initiations from new.
//!
//! The owner drives it: it hands in packets and the time, then drains
//! [`poll_event`](Tunnel::poll_event), [`poll_transmit`](Tunnel::poll_transmit),
//! [`poll_challenge`](Tunnel::poll_challenge), [`poll_failing`](Tunnel::poll_failing) and
//! [`poll_freed_index`](Tunnel::poll_freed_index), looks whether the tunnel
//! [`owes_packet`](Tunnel::owes_packet), and comes back at
//! [`poll_timeout`](Tunnel::poll_timeout).

mod address;
mod attempt;
mod handshake_failures;
mod handshaking;
mod header;
mod keyring;
#[cfg(test)]
mod tests;
mod ways;

use std::collections::VecDeque;
use std::ops::Range;

use units::{Duration, Instant};

use crate::cookie::{Cookie, MacKeys};
use crate::handshake::{Message, Offer, Params, SessionId};
use crate::keys::{Entropy, PresharedKey, PrivateKey, PublicKey};
use crate::path::{CarrierId, PathId, Remote};
use crate::replay::{ReplayWindow, Stale};
use crate::seal::Cipher;
use attempt::{Attempt, patience};
use handshake_failures::Tally;
pub use handshake_failures::{Failing, Failure};
use header::DataHeader;
pub use header::{MAX_HINT, MAX_OVERHEAD, NUMBER_LENS, PacketKind};
use keyring::{Keyring, MAX_NUMBER, Session, Slot, Wear};
pub use ways::Route;
use ways::Ways;

/// Replaced keys open packets for max(3 round trips, 10 s) after the last came under them.
const GRACE: Duration = Duration::from_secs(10);
/// Pending handshakes younger than this are not pushed out without proof of freshness.
const CROWDED: Duration = Duration::from_secs(10);
/// Initiations remembered, to know straight replays again. 1 kB.
const MAX_RECENT: usize = 64;
/// How often the peer is asked whether it has the new keys.
const CONFIRMATIONS: u32 = 16;
/// Responses that may wait for the owner to send them: one for each pending handshake.
const MAX_OUTBOX: usize = 8;
/// What counts as a round trip before one was measured or configured.
const DEFAULT_RTT: Duration = Duration::from_millis(600);
/// The longest that a key may be in use, and what is usual (L-PP-6).
pub const MAX_KEY_LIFETIME: Duration = Duration::from_secs(3600);

/// What a tunnel is made of.
#[derive(Clone, Debug)]
pub struct TunnelConfig {
    /// This node's key.
    pub local: PrivateKey,
    /// The peer's key.
    pub peer: PublicKey,
    /// The secret shared beforehand, or [`PresharedKey::NONE`].
    pub preshared: PresharedKey,
    /// The ciphers that this node is willing to use.
    pub offer: Offer,
    /// What the handshake tells the peer of this side of the link.
    pub params: Params,
    /// Where the peer is on the first path, if known.
    pub endpoint: Option<Remote>,
    /// How long a key may be in use.
    pub key_lifetime: Duration,
}

/// Whether the keys are replaced in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rekey {
    /// They are, or none are needed.
    #[default]
    InTime,
    /// No handshake has succeeded for long after it was due. The keys work still.
    Overdue,
    /// They were erased before a handshake succeeded: nothing can be sent or received.
    Erased,
}

/// Why there can be no tunnel to this peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TunnelError {
    /// The peer has our own key.
    #[error("the peer's public key is this node's own: every node needs a key of its own")]
    OwnKey,
    /// The peer's key is of low order.
    #[error("the peer's public key is not usable: ask for the output of `bentpipe keygen` there")]
    UnusableKey,
}

/// Why a data packet is dropped, silently.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum PacketError {
    /// Too short or of no known form.
    #[error("malformed")]
    Malformed,
    /// No key of this tunnel has its index.
    #[error("unknown index")]
    UnknownIndex,
    /// Of a path that is not there and that the peer may not open (L-PT-3).
    #[error("unknown path")]
    UnknownPath,
    /// Not what the peer sealed.
    #[error("does not authenticate")]
    Forged,
    /// Received before.
    #[error("replayed")]
    Duplicate,
    /// Older than the replay window reaches.
    #[error("too old to tell whether it is a replay")]
    TooOld,
    /// Its key saw too many forgeries to be trusted with another.
    #[error("its key met too many forgeries")]
    KeyWornOut,
}

impl From<Stale> for PacketError {
    fn from(stale: Stale) -> PacketError {
        match stale {
            Stale::Duplicate => PacketError::Duplicate,
            Stale::TooOld => PacketError::TooOld,
        }
    }
}

/// Why nothing can be sealed now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// There is no session yet.
    #[error("no session with the peer")]
    NoSession,
    /// The session's packet numbers are used up.
    #[error("the session's packet numbers are used up")]
    Exhausted,
}

/// A data packet that authenticated, opened in place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opened {
    /// The path that it came on.
    pub path: PathId,
    /// Its number on that path.
    pub number: u64,
    /// The hint of its header.
    pub hint: u8,
    /// Where in the packet the frames are.
    pub payload: Range<usize>,
    /// Its number is the largest so far.
    pub newest: bool,
    /// It was the first under new keys: an [`Event::Established`] waits and must be
    /// seen to before the frames, which may belong to a new session.
    pub confirmed_now: bool,
}

/// News for the owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A handshake succeeded; packets can be sealed.
    Established {
        /// The session went on under new keys. If false it is a new one: packet numbers
        /// start at 0 both ways and the streams of the one before are orphans.
        resumed: bool,
        /// Which cipher protects it.
        cipher: Cipher,
        /// What the peer said of its side of the link.
        params: Params,
        /// How long the peer took to answer in this handshake.
        rtt: Duration,
        /// The path that the handshake went by.
        path: PathId,
    },
    /// On this path the peer is here now, validated: worth storing for the next start.
    Moved(PathId, Remote),
}

/// Gives out receiver indices: unique among the endpoint's, random, and unused for a
/// while before they are used again. Below 2^16 they cost 2 bytes a packet, else 4;
/// 0, for a carrier with one peer only, costs none.
pub trait Indices {
    /// An index that no key of this endpoint has.
    fn allocate(&mut self) -> u32;
}

impl<F: FnMut() -> u32> Indices for F {
    fn allocate(&mut self) -> u32 {
        self()
    }
}

/// One peer's tunnel. See the [module](self).
pub struct Tunnel {
    config: TunnelConfig,
    entropy: Entropy,
    /// For the macs of what we send to the peer.
    peer_macs: MacKeys,
    /// Our key is the lower: of two crossing initiations ours goes first.
    goes_first: bool,
    rtt: Duration,

    ways: Ways,
    keys: Keyring,
    session: Option<Session>,
    /// Our name for the next session that is not this one; nothing was sent or heard
    /// under it yet.
    fresh_epoch: u64,

    attempt: Option<Attempt>,
    tally: Tally,
    /// Asked to initiate at this time, whether or not there is something to send.
    start: Option<Instant>,
    /// The next initiation is not to leave before, unless somebody waits for it.
    turn: Option<Instant>,
    /// There is something to send or to be confirmed, since then.
    wanted: Option<Instant>,
    /// The keys are due for replacement, since then.
    renew: Option<Instant>,
    /// What only replaces keys does not leave before: a path has just come up.
    renew_not_before: Instant,
    /// The last packet or handshake that authenticated.
    heard: Instant,
    /// Having answered an initiation, leave it this long to be confirmed. Set once per
    /// session, so that replays cannot keep us silent.
    answered_until: Option<Instant>,
    /// An initiation of the peer's was set aside for ours; the next will be answered.
    set_aside: bool,
    owes_packet: bool,
    /// The path that it is owed on.
    owed_on: PathId,
    owed_again: Instant,
    /// How often the peer may still be asked whether it has our new keys.
    unconfirmed: u32,

    cookie: Option<(Cookie, Instant)>,
    /// Index and mac1 of our last response.
    response_mac1: Option<(u32, [u8; 16])>,
    recent: VecDeque<[u8; 16]>,
    outbox: VecDeque<(Remote, Message)>,
    /// A cookie reply that waits for the same. It pushes no response out: who sends old initiations
    /// would keep a fresh one from being answered.
    cookie_reply: Option<(Remote, Message)>,
    /// The peer ended the session in order, and is called only to learn that it is back.
    calls_back: bool,
    established: Option<Event>,
    moved: VecDeque<(PathId, Remote)>,
}

impl Tunnel {
    /// Can there be a tunnel from a node with this key to a peer with that one?
    ///
    /// # Errors
    /// If not.
    pub fn check(local: &PrivateKey, peer: &PublicKey) -> Result<(), TunnelError> {
        if local.public() == peer {
            return Err(TunnelError::OwnKey);
        }
        local.agree(peer).map(|_| ()).ok_or(TunnelError::UnusableKey)
    }

    /// A tunnel, to a key that was [checked](Tunnel::check), that waits: see
    /// [`connect`](Tunnel::connect) and [`set_wanted`](Tunnel::set_wanted).
    pub fn new(config: TunnelConfig, mut entropy: Entropy) -> Tunnel {
        Tunnel {
            peer_macs: MacKeys::of(&config.peer),
            goes_first: config.local.public() < &config.peer,
            rtt: DEFAULT_RTT,
            ways: Ways::new(u64::from(config.local.public() > &config.peer), config.endpoint),
            keys: Keyring::default(),
            session: None,
            fresh_epoch: draw_epoch(&mut entropy),
            attempt: None,
            turn: None,
            tally: Tally::default(),
            start: None,
            wanted: None,
            renew: None,
            renew_not_before: Instant::ZERO,
            heard: Instant::ZERO,
            answered_until: None,
            set_aside: false,
            owes_packet: false,
            owed_on: PathId::FIRST,
            owed_again: Instant::ZERO,
            unconfirmed: 0,
            cookie: None,
            response_mac1: None,
            recent: VecDeque::new(),
            outbox: VecDeque::new(),
            cookie_reply: None,
            calls_back: false,
            established: None,
            moved: VecDeque::new(),
            config,
            entropy,
        }
    }

    /// The peer's key.
    pub fn peer(&self) -> &PublicKey {
        &self.config.peer
    }

    // ---- what the owner tells ----

    /// Is a handshake tried, or will one be at the next moment that allows it? Not where the peer
    /// has left in order and nothing waits for it.
    pub fn is_calling(&self) -> bool {
        let calls = self.start.is_some() || self.attempt.is_some();
        self.wanted.is_some() || calls && !self.calls_back
    }

    /// The peer, which has ended the session, is called from then on as by [`Tunnel::connect`].
    pub fn call_back(&mut self, at: Instant) {
        self.calls_back = true;
        self.connect(at);
    }

    /// Initiates once the endpoint is known, and again with growing pauses (up to five
    /// minutes) until there is a session: a node does so when it starts.
    pub fn connect(&mut self, now: Instant) {
        self.start.get_or_insert(now);
    }

    /// Is an initiation due that nobody waits for, and for which no turn was given?
    pub fn wants_turn(&self, now: Instant) -> bool {
        let nobody_waits = self.wanted.is_none() && self.turn.is_none();
        nobody_waits && self.initiation_due().is_some_and(|due| due <= now)
    }

    /// The initiation may leave then, and not before.
    pub fn give_turn(&mut self, at: Instant) {
        self.turn = Some(at);
    }

    /// Whether something waits to be sent or confirmed. While it does, and no packet of the
    /// peer authenticates for max(1.5 RTT, 1 s), the tunnel initiates, with pauses that
    /// double up to 10 s (L-HS-11).
    pub fn set_wanted(&mut self, now: Instant, wanted: bool) {
        if wanted && self.wanted.is_none() {
            self.wanted = Some(now);
            if let Some(attempt) = &mut self.attempt {
                attempt.hasten(patience(self.rtt));
            }
        } else if !wanted {
            self.wanted = None;
        }
    }

    /// The round trip as measured, or as the profile tells before anything was.
    pub fn set_rtt(&mut self, rtt: Duration) {
        self.rtt = rtt;
    }

    /// What the next handshake tells the peer of this side of the link.
    pub fn set_params(&mut self, params: Params) {
        self.config.params = params;
    }

    /// Gives back what handshakes took, but for the keys that there are.
    pub fn give_back(&mut self) {
        self.keys.give_back();
        self.outbox.shrink_to_fit();
        self.moved.shrink_to_fit();
        self.recent.shrink_to_fit();
    }

    /// New keys now, where there are any: the peer is to hear what a handshake tells.
    pub fn renew(&mut self, now: Instant) {
        if self.session.is_some() {
            self.renew.get_or_insert(now);
        }
    }

    /// The peer is there on a path: configured, stored, or resolved anew. Not for addresses
    /// that packets came from; those are validated first.
    pub fn set_endpoint(&mut self, now: Instant, path: PathId, to: Remote) {
        if self.ways.may_be_at(to)
            && self.ways.make(path, to.carrier).address.tell(now, to)
            && let Some(attempt) = &mut self.attempt
        {
            attempt.restart_for_address(now);
        }
    }

    /// The peer is at lines alone, which have one other end each: nothing goes to addresses of
    /// networks, and what comes from there is not the peer's.
    pub fn keep_to_lines(&mut self) {
        self.ways.keep_to_lines();
    }

    /// The peer is no longer there, on any path: a call that led to it is over.
    pub fn forget_place(&mut self, place: Remote) {
        self.ways.forget_place(place);
    }

    /// There is such a path, which begins at this carrier.
    pub fn make_path(&mut self, path: PathId, carrier: CarrierId) {
        self.ways.make(path, carrier);
    }

    /// There is such a path no more.
    pub fn remove_path(&mut self, path: PathId) {
        self.ways.remove(path);
    }

    /// Whether this node sends on a path. When one comes up the first packets on it are for
    /// those who wait: an initiation of an earlier series is not waited for, and one that only
    /// renews keys leaves a round trip later.
    pub fn set_path_up(&mut self, now: Instant, path: PathId, up: bool) {
        let Some(way) = self.ways.get_mut(path) else { return };
        if std::mem::replace(&mut way.up, up) || !up {
            return;
        }
        self.renew_not_before = now + self.rtt;
        if let Some(attempt) = &mut self.attempt {
            attempt.restart(now);
        }
    }

    /// The paths that packets may leave by.
    pub fn route(&self) -> Route {
        self.ways.route
    }

    /// The paths that packets may leave by, best first. Nothing leaves by others.
    pub fn set_route(&mut self, route: Route) {
        self.ways.route = route;
    }

    /// The peer asks, in a packet of this path, whether this node is where it came from.
    pub fn on_challenge(&mut self, path: PathId, from: Remote, token: u64) {
        if let Some(way) = self.ways.get_mut(path)
            && way.address.admit_answer(from)
        {
            way.answer = Some((from, token));
        }
    }

    /// Forgets the session and all keys, at once; the next handshake begins a new session.
    pub fn forget(&mut self) {
        self.cancel_attempt();
        self.tally.on_success();
        self.keys.clear();
        self.session = None;
        self.fresh_epoch = draw_epoch(&mut self.entropy);
        self.established = None;
        self.renew = None;
        self.owes_packet = false;
        self.calls_back = false;
    }

    /// Erases what is sealed under, at once: another machine may have the same keys and
    /// numbers, because this one was copied while it ran. The session goes on with the next
    /// handshake.
    pub fn distrust_keys(&mut self, now: Instant) {
        self.cancel_attempt();
        self.keys.distrust();
        self.fresh_epoch = draw_epoch(&mut self.entropy);
        self.owes_packet = false;
        self.start.get_or_insert(now);
    }

    // ---- what the owner asks ----

    /// Where the peer is on a path.
    pub fn endpoint(&self, path: PathId) -> Option<Remote> {
        self.ways.endpoint(path)
    }

    /// Whether packets can be sealed.
    pub fn is_established(&self) -> bool {
        self.session.is_some() && self.keys.current().is_some()
    }

    /// Whether the keys are replaced in time.
    pub fn rekey(&self, now: Instant) -> Rekey {
        match self.keys.current() {
            _ if self.session.is_none() => Rekey::InTime,
            Some(keys) if keys.wear(now, self.config.key_lifetime) >= Wear::Overdue => {
                Rekey::Overdue
            }
            None if self.renew.is_some() => Rekey::Erased,
            _ => Rekey::InTime,
        }
    }

    /// The cipher in use.
    pub fn cipher(&self) -> Option<Cipher> {
        self.keys.current().map(|k| k.cipher)
    }

    /// The session's two names.
    pub fn session(&self) -> Option<SessionId> {
        self.session.as_ref().map(|s| s.id)
    }

    /// The number that the next sealed packet of a path will have.
    pub fn next_number(&self, path: PathId) -> Option<u64> {
        Some(self.session.as_ref()?.space(path).map_or(0, |s| s.next_number))
    }

    /// Bytes before the frames of a packet of a path whose number takes `number_len` bytes, as
    /// long as the keys last: ask again for every packet.
    pub fn header_len(&self, path: PathId, number_len: usize) -> Option<usize> {
        Some(header::header_len(self.keys.current()?.remote_index, path, number_len))
    }

    /// The peer waits for a packet under our new keys: seal one on this path, if only an empty
    /// one (L-HS-8).
    pub fn owes_packet(&self) -> Option<PathId> {
        self.owes_packet.then_some(self.owed_on)
    }

    /// Why handshakes with the peer come to nothing, if they have for ten seconds, or four
    /// round trips.
    pub fn failing(&self, now: Instant) -> Option<Failing> {
        self.tally.failing(now, self.rtt, self.is_established())
    }

    /// Handshakes that failed: initiations that got no good answer in time, and answers that
    /// the peer did not take.
    pub fn failed_handshakes(&self) -> u64 {
        self.tally.failed()
    }

    /// Whether a response to `index` is awaited: others need not be looked at.
    pub fn awaits_response(&self, index: u32) -> bool {
        self.attempt.as_ref().is_some_and(|a| a.tries.iter().any(|t| t.asked.index() == index))
    }

    // ---- data packets ----

    /// Seals `packet` of a path in place: [`header_len`](Tunnel::header_len) bytes of room for the
    /// header, the frames, [`TAG_LEN`](crate::seal::TAG_LEN) bytes of room for the tag.
    /// Answers its number.
    ///
    /// # Errors
    /// [`SealError`] if there is no session.
    ///
    /// # Panics
    /// If `number_len` is not 1…4, `hint` is above [`MAX_HINT`], or `packet` has no room.
    pub fn seal_packet(
        &mut self,
        now: Instant,
        path: PathId,
        hint: u8,
        number_len: usize,
        packet: &mut [u8],
    ) -> Result<u64, SealError> {
        assert!(
            NUMBER_LENS.contains(&number_len) && hint <= MAX_HINT,
            "the owner keeps the limits"
        );
        let session = self.session.as_mut().ok_or(SealError::NoSession)?;
        let keys = self.keys.current_mut().ok_or(SealError::NoSession)?;
        let next = &mut session.space_mut(path).next_number;
        let number = *next;
        if number > MAX_NUMBER {
            return Err(SealError::Exhausted);
        }
        *next += 1;
        let truncated = number as u32 & (u32::MAX >> (32 - 8 * number_len));
        let header = DataHeader { receiver: keys.remote_index, path, hint, truncated, number_len };
        header.write(packet);
        keys.seal(path, number, header.len(), packet);
        if keys.wear(now, self.config.key_lifetime) >= Wear::Due {
            self.renew.get_or_insert(now);
        }
        self.owes_packet = false;
        Ok(number)
    }

    /// Opens a data packet in place. What fails to open changes nothing but a count.
    ///
    /// # Errors
    /// [`PacketError`]: drop it, silently.
    pub fn open_packet(
        &mut self,
        now: Instant,
        from: Remote,
        packet: &mut [u8],
    ) -> Result<Opened, PacketError> {
        let header = DataHeader::read(packet).ok_or(PacketError::Malformed)?;
        let path = header.path;
        if !self.ways.admits(path) || !self.ways.may_be_at(from) {
            return Err(PacketError::UnknownPath);
        }
        let (slot, number, len) = match header.receiver {
            0 => self.open_nameless(now, &header, packet)?,
            receiver => {
                let slot = self.keys.slots(receiver).next().ok_or(PacketError::UnknownIndex)?;
                let (number, len) = self.open_with(now, slot, &header, packet)?;
                (slot, number, len)
            }
        };
        let confirmed_now = matches!(slot, Slot::Pending(_));
        if let Slot::Pending(index) = slot {
            self.confirm(now, path, from, index);
        }
        let session = self.session.as_mut().expect("keys that opened a packet have a session");
        let newest = session.space_mut(path).window.mark(number);
        if newest {
            self.on_newest_under(now, slot);
        }
        self.ways.on_authenticated(now, path, from, newest, packet.len(), &mut self.entropy);
        self.on_alive(now);
        let payload = header.len()..header.len() + len;
        Ok(Opened { path, number, hint: header.hint, payload, newest, confirmed_now })
    }

    fn open_with(
        &mut self,
        now: Instant,
        slot: Slot,
        header: &DataHeader,
        packet: &mut [u8],
    ) -> Result<(u64, usize), PacketError> {
        let keys = self.keys.get_mut(slot).ok_or(PacketError::UnknownIndex)?;
        let window = match &self.session {
            Some(session) if session.id == keys.session => {
                session.space(header.path).map(|space| &space.window)
            }
            // The first packet of a new session: nothing was received in it yet.
            _ => None,
        };
        let largest = window.and_then(|w| w.largest());
        let number = ReplayWindow::decode_after(largest, header.truncated, header.number_len);
        if let Some(window) = window {
            window.check(number)?;
        }
        if number > MAX_NUMBER {
            return Err(PacketError::Malformed);
        }
        Ok((number, keys.open(now, number, header, packet)?))
    }

    /// Without an index every key may be the one. Opening spoils what it fails on, so
    /// each has a copy; few keys exist at a time, and such carriers are slow.
    fn open_nameless(
        &mut self,
        now: Instant,
        header: &DataHeader,
        packet: &mut [u8],
    ) -> Result<(Slot, u64, usize), PacketError> {
        let slots: Vec<Slot> = self.keys.slots(0).collect();
        let mut why = PacketError::UnknownIndex;
        for slot in slots {
            let mut copy = packet.to_vec();
            match self.open_with(now, slot, header, &mut copy) {
                Ok((number, len)) => {
                    packet.copy_from_slice(&copy);
                    return Ok((slot, number, len));
                }
                Err(e) => why = e,
            }
        }
        Err(why)
    }

    /// The peer sends under the keys in `slot` now. It may go on to do so for as long
    /// as it likes, so other keys expire only while it does not (L-HS-12).
    fn on_newest_under(&mut self, now: Instant, slot: Slot) {
        let grace = now + GRACE.max(self.rtt.times(3));
        match slot {
            Slot::Current | Slot::Pending(_) => self.keys.on_heard_current(grace),
            Slot::Old(index) => {
                self.keys.on_heard_old(index);
                // It still has only what we replaced.
                self.owe_again(now);
            }
        }
    }

    /// The peer does not seem to know our new keys: the packet that should have told it
    /// got lost.
    fn owe_again(&mut self, now: Instant) {
        let unheard = self.keys.current().is_some_and(|k| k.ours && !k.heard);
        if unheard && now >= self.owed_again {
            self.owes_packet = true;
            self.owed_again = now + patience(self.rtt);
        }
    }

    /// The first packet under keys that we answered an initiation with (L-HS-8).
    fn confirm(&mut self, now: Instant, path: PathId, from: Remote, index: usize) {
        let pending = self.keys.take_pending(index);
        let rtt = now.since(pending.answered);
        self.establish(now, pending.keys, [pending.own, pending.params], rtt, path);
        // The response went to `pending.from` and the peer has it. If its packet comes from
        // there as well, it is there; if not, someone may have carried the response over, or
        // the packet took another path than the handshake.
        if from == pending.from {
            self.go_to(path, from, pending.answered);
        } else if self.ways.endpoint(PathId::FIRST).is_none() {
            self.go_to(PathId::FIRST, pending.from, pending.answered);
        }
    }

    fn post(&mut self, to: Remote, message: Message) {
        if self.outbox.len() == MAX_OUTBOX {
            self.outbox.pop_front();
        }
        self.outbox.push_back((to, message));
    }

    /// The peer had at `to` what left for there at `since`.
    fn go_to(&mut self, path: PathId, to: Remote, since: Instant) {
        if self.ways.make(path, to.carrier).address.shown(since, to) {
            self.on_moved(path, to);
        }
    }

    fn on_moved(&mut self, path: PathId, to: Remote) {
        self.moved.retain(|(other, _)| *other != path);
        self.moved.push_back((path, to));
    }

    // ---- what the owner drains ----

    /// A handshake message to send now, and where to.
    pub fn poll_transmit(
        &mut self,
        now: Instant,
        indices: &mut dyn Indices,
    ) -> Option<(Remote, Message)> {
        if self.keys.expire(now, self.config.key_lifetime) {
            self.renew.get_or_insert(now);
        }
        if let Some(answer) = self.outbox.pop_front().or_else(|| self.cookie_reply.take()) {
            return Some(answer);
        }
        match self.initiation_due() {
            Some(due) if due <= now => self.initiate(now, indices),
            _ => None,
        }
    }

    /// News, to be seen to before the next packet.
    pub fn poll_event(&mut self) -> Option<Event> {
        let moved = |(path, to)| Event::Moved(path, to);
        self.established.take().or_else(|| self.moved.pop_front().map(moved))
    }

    /// Handshakes have failed for a while, or more is known of why: told once each.
    pub fn poll_failing(&mut self, now: Instant) -> Option<Failing> {
        let established = self.is_established();
        self.tally.news(now, self.rtt, established)
    }

    /// An index that no key of this tunnel has any more.
    pub fn poll_freed_index(&mut self) -> Option<u32> {
        self.keys.poll_freed()
    }

    /// A challenge to send now in a packet of this path to this place, not to the endpoint: the
    /// peer seems to have moved there. The packet must not be longer than
    /// `CHALLENGE_BYTES` of [`address`].
    pub fn poll_challenge(&mut self, now: Instant) -> Option<(PathId, Remote, u64)> {
        self.ways.poll_challenge(now, patience(self.rtt))
    }

    /// An answer to a challenge, to where that came from: the path that it asks about is the one
    /// back from there (L-AC-2). No longer than the challenge was, and one for each.
    pub fn poll_answer(&mut self) -> Option<(PathId, Remote, u64)> {
        self.ways.poll_answer()
    }

    /// The answer to a challenge arrived in a packet of this path that authenticated. True if
    /// the endpoint moved.
    pub fn on_challenge_response(&mut self, path: PathId, from: Remote, token: u64) -> bool {
        let moved = self.ways.get_mut(path).is_some_and(|w| w.address.on_response(from, token));
        if moved {
            self.on_moved(path, from);
        }
        moved
    }

    /// When something is due next; [`Instant::ZERO`] if something waits already.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let answers = !self.outbox.is_empty() || self.cookie_reply.is_some();
        if answers || self.established.is_some() || !self.moved.is_empty() {
            return Some(Instant::ZERO);
        }
        // Without keys nothing can be asked of an address.
        let validation = self.ways.timeout().filter(|_| self.is_established());
        let confirmation = self.confirmation_due();
        let failing = self.tally.due(self.rtt, self.is_established());
        [self.initiation_due(), confirmation, validation, failing, self.keys.timeout()]
            .into_iter()
            .flatten()
            .min()
    }
}

/// An epoch is any number but 0, which means "none".
fn draw_epoch(entropy: &mut Entropy) -> u64 {
    entropy.next_u64().max(1)
}
