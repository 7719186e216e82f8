//! All peers of one node on one carrier: who a packet concerns, who may speak, and
//! whose turn it is to send.
//!
//! Only peers that something happened to are looked at: a packet, a call of the user,
//! or a timer puts a peer on the list of those that [`Endpoint::poll_transmit`] asks.
//! The law for the owner: after every change, poll transmit, events and datagrams
//! until nothing is left, then wait for [`Endpoint::poll_timeout`].

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;

use units::{Duration, Instant};

use crate::cookie::{Guard, Verdict};
use crate::handshake::{HandshakeError, Initiation, Message, Offer, Params as Blob, SessionId};
use crate::keys::{Entropy, PresharedKey, PrivateKey, PublicKey};
use crate::replay::number_len;
use crate::seal::{Cipher, TAG_LEN};
use crate::session::{Event, LinkConfig, Params, PathFrame, Session};
use crate::tunnel::{self, PacketError, PacketKind, Tunnel, TunnelConfig, TunnelError};
use crate::wire::{Frame, ResetReason, Writer};

/// Names a peer of an [`Endpoint`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PeerId(u32);

impl PeerId {
    /// The peer in this slot.
    pub const fn from_index(index: usize) -> PeerId {
        PeerId(index as u32)
    }
    /// Small, dense numbers for tables.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// What an endpoint is made of.
pub struct EndpointConfig {
    /// This node's key.
    pub private_key: PrivateKey,
    /// All randomness comes from it: 32 bytes of the system's entropy, or a seed.
    pub seed: [u8; 32],
    /// The processor has instructions for AES-GCM.
    pub hardware_aes: bool,
    /// Initiations per second above which cookies are demanded.
    pub initiations_per_second: u32,
}

/// One peer.
pub struct PeerConfig {
    /// Its public key.
    pub public_key: PublicKey,
    /// The secret shared beforehand, or none.
    pub preshared_key: PresharedKey,
    /// Where it is, if known.
    pub endpoint: Option<SocketAddr>,
    /// The link to it.
    pub link: LinkConfig,
    /// Send something at least this often; `None`: only what must be sent.
    pub keepalive: Option<Duration>,
}

/// Where a packet that was written goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// Its length.
    pub len: usize,
    /// Its destination.
    pub to: SocketAddr,
    /// Whose it is; `None` for answers to strangers.
    pub peer: Option<PeerId>,
}

/// What happened to a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkEvent {
    /// A handshake succeeded.
    Up {
        /// The session went on under new keys.
        resumed: bool,
        /// The cipher.
        cipher: Cipher,
        /// How long the peer took to answer.
        rtt: Duration,
    },
    /// The peer is at a new address.
    Moved(SocketAddr),
    /// The peer does not answer.
    Silent,
    /// It answers again.
    Back,
    /// The peer ended the session.
    Closed,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndpointEvent {
    /// To a stream.
    Stream(PeerId, Event),
    /// The session is gone: all its streams are orphans, to be reset.
    SessionLost(PeerId, ResetReason),
    /// To a link.
    Link(PeerId, LinkEvent),
}

/// Counts of one peer's packets.
#[derive(Clone, Copy, Debug, Default)]
pub struct PeerStats {
    /// Packets and bytes (IP length) sent to it.
    pub packets_out: u64,
    /// See `packets_out`.
    pub bytes_out: u64,
    /// Authentic packets and bytes from it.
    pub packets_in: u64,
    /// See `packets_in`.
    pub bytes_in: u64,
    /// Handshakes that succeeded.
    pub handshakes: u64,
    /// When the last authentic packet came.
    pub heard: Option<Instant>,
}

struct Peer {
    config: PeerConfig,
    tunnel: Tunnel,
    session: Session,
    side: u64,
    /// A handshake has filled this session with the peer's parameters.
    begun: bool,
    silent: bool,
    dirty: bool,
    noisy: bool,
    has_datagrams: bool,
    timer: Option<Instant>,
    last_sent: Instant,
    stats: PeerStats,
}

/// All peers of a node on one carrier.
pub struct Endpoint {
    config: EndpointConfig,
    entropy: Entropy,
    guard: Guard,
    peers: Vec<Option<Box<Peer>>>,
    by_key: BTreeMap<PublicKey, PeerId>,
    indices: IndexTable,
    replies: VecDeque<(SocketAddr, Message)>,
    dirty: VecDeque<PeerId>,
    noisy: VecDeque<PeerId>,
    with_datagrams: VecDeque<PeerId>,
    timers: BTreeSet<(Instant, PeerId)>,
    events: VecDeque<EndpointEvent>,
    drops: BTreeMap<&'static str, u64>,
}

/// Cookie replies that may wait.
const MAX_REPLIES: usize = 64;

impl Endpoint {
    /// An endpoint without peers.
    pub fn new(config: EndpointConfig) -> Endpoint {
        let mut entropy = Entropy::new(config.seed);
        let guard =
            Guard::new(config.private_key.public(), config.initiations_per_second, entropy.fork());
        Endpoint {
            indices: IndexTable::new(entropy.fork()),
            entropy,
            guard,
            config,
            peers: Vec::new(),
            by_key: BTreeMap::new(),
            replies: VecDeque::new(),
            dirty: VecDeque::new(),
            noisy: VecDeque::new(),
            with_datagrams: VecDeque::new(),
            timers: BTreeSet::new(),
            events: VecDeque::new(),
            drops: BTreeMap::new(),
        }
    }

    /// This node's public key.
    pub fn public_key(&self) -> &PublicKey {
        self.config.private_key.public()
    }

    // ---- peers -----------------------------------------------------------------

    /// Adds a peer and, where its endpoint is known, initiates.
    ///
    /// # Errors
    /// If its key is this node's own or unusable.
    pub fn add_peer(&mut self, now: Instant, config: PeerConfig) -> Result<PeerId, TunnelError> {
        let side = u64::from(self.public_key() > &config.public_key);
        let session = Session::new(now, config.link.clone(), side);
        let mut tunnel = Tunnel::new(
            TunnelConfig {
                local: self.config.private_key.clone(),
                peer: config.public_key,
                preshared: config.preshared_key.clone(),
                offer: Offer::new(self.config.hardware_aes),
                params: blob(&session),
                endpoint: config.endpoint,
            },
            self.entropy.fork(),
        )?;
        tunnel.set_rtt(config.link.rtt);
        tunnel.connect(now);
        let key = config.public_key;
        let peer = Box::new(Peer {
            config,
            tunnel,
            session,
            side,
            begun: false,
            silent: false,
            dirty: false,
            noisy: false,
            has_datagrams: false,
            timer: None,
            last_sent: now,
            stats: PeerStats::default(),
        });
        let id = match self.peers.iter().position(Option::is_none) {
            Some(slot) => PeerId::from_index(slot),
            None => {
                self.peers.push(None);
                PeerId::from_index(self.peers.len() - 1)
            }
        };
        self.peers[id.index()] = Some(peer);
        self.by_key.insert(key, id);
        self.mark(id);
        Ok(id)
    }

    /// Forgets a peer, its keys and its streams at once.
    pub fn remove_peer(&mut self, id: PeerId) {
        if let Some(peer) = self.peers.get_mut(id.index()).and_then(Option::take) {
            self.by_key.remove(&peer.config.public_key);
            self.timers.retain(|(_, p)| *p != id);
            self.indices.forget(id);
        }
    }

    /// The peers, in no particular order.
    pub fn peers(&self) -> impl Iterator<Item = PeerId> + '_ {
        (0..self.peers.len()).filter(|i| self.peers[*i].is_some()).map(PeerId::from_index)
    }

    fn peer(&self, id: PeerId) -> Option<&Peer> {
        self.peers.get(id.index())?.as_deref()
    }

    /// The streams and datagrams shared with a peer.
    pub fn session(&self, id: PeerId) -> Option<&Session> {
        self.peer(id).map(|p| &p.session)
    }

    /// The same, to change something; whatever that is will be sent.
    pub fn session_mut(&mut self, id: PeerId) -> Option<&mut Session> {
        self.peer(id)?;
        self.mark(id);
        self.mark_noisy(id);
        self.peers[id.index()].as_deref_mut().map(|p| &mut p.session)
    }

    /// The peer is at `addr` (configured or resolved anew).
    pub fn set_endpoint(&mut self, now: Instant, id: PeerId, addr: SocketAddr) {
        if let Some(peer) = self.peers.get_mut(id.index()).and_then(Option::as_deref_mut) {
            peer.tunnel.set_endpoint(now, addr);
            self.mark(id);
        }
    }

    /// Where the peer is.
    pub fn peer_endpoint(&self, id: PeerId) -> Option<SocketAddr> {
        self.peer(id)?.tunnel.endpoint()
    }

    /// Are there keys with the peer?
    pub fn is_established(&self, id: PeerId) -> bool {
        self.peer(id).is_some_and(|p| p.tunnel.is_established())
    }

    /// The names of the session with the peer: equal, mirrored, at both ends.
    pub fn session_id(&self, id: PeerId) -> Option<SessionId> {
        self.peer(id)?.tunnel.session()
    }

    /// Since when the peer has not answered, if it should have.
    pub fn is_silent(&self, id: PeerId) -> bool {
        self.peer(id).is_some_and(|p| p.silent)
    }

    /// Counts of a peer.
    pub fn peer_stats(&self, id: PeerId) -> PeerStats {
        self.peer(id).map(|p| p.stats).unwrap_or_default()
    }

    /// Packets dropped, by reason. Nothing dropped is ever answered.
    pub fn drops(&self) -> &BTreeMap<&'static str, u64> {
        &self.drops
    }

    /// Ends all sessions in good order.
    pub fn close_all(&mut self, reason: ResetReason) {
        let ids: Vec<PeerId> = self.peers().collect();
        for id in ids {
            if let Some(session) = self.session_mut(id) {
                session.close(reason);
            }
        }
    }

    // ---- packets in ------------------------------------------------------------

    /// Takes a packet; it is opened in place. What is not in order is dropped silently
    /// and counted.
    pub fn handle_packet(&mut self, now: Instant, from: SocketAddr, packet: &mut [u8]) {
        let outcome = match PacketKind::of(packet) {
            None => Err("malformed"),
            Some(PacketKind::Data { receiver }) => self.handle_data(now, from, receiver, packet),
            Some(PacketKind::Initiation) => self.handle_initiation(now, from, packet),
            Some(PacketKind::Response { receiver }) => {
                self.handle_response(now, from, receiver, packet)
            }
            Some(PacketKind::CookieReply { receiver }) => {
                self.handle_cookie_reply(now, receiver, packet)
            }
        };
        if let Err(reason) = outcome {
            *self.drops.entry(reason).or_default() += 1;
        }
    }

    fn handle_data(
        &mut self,
        now: Instant,
        from: SocketAddr,
        receiver: u32,
        packet: &mut [u8],
    ) -> Result<(), &'static str> {
        let id = self.indices.owner(receiver).ok_or("unknown index")?;
        let peer = self.peers[id.index()].as_deref_mut().ok_or("unknown index")?;
        let opened = peer.tunnel.open_packet(now, from, packet).map_err(packet_reason)?;
        peer.stats.packets_in += 1;
        peer.stats.bytes_in += packet.len() as u64 + peer.session.wire_overhead();
        peer.stats.heard = Some(now);
        if opened.confirmed_now {
            self.see_tunnel_events(now, id);
        }
        let peer = self.peers[id.index()].as_deref_mut().ok_or("unknown index")?;
        let (mut challenge, mut response) = (None, None);
        peer.session.handle_packet(
            now,
            opened.number,
            opened.hint,
            &packet[opened.payload],
            &mut |frame| match frame {
                PathFrame::Challenge(token) => challenge = Some(token),
                PathFrame::Response(token) => response = Some(token),
            },
        );
        if let Some(token) = challenge {
            peer.session.answer_challenge(token);
        }
        if let Some(token) = response {
            peer.tunnel.on_challenge_response(from, token);
        }
        if peer.silent {
            peer.silent = false;
            self.events.push_back(EndpointEvent::Link(id, LinkEvent::Back));
        }
        if peer.session.has_datagrams() && !peer.has_datagrams {
            peer.has_datagrams = true;
            self.with_datagrams.push_back(id);
        }
        if peer.session.peer_closed() {
            self.replace_session(now, id, ResetReason::ShuttingDown);
            if let Some(peer) = self.peers[id.index()].as_deref_mut() {
                peer.tunnel.forget();
            }
            self.events.push_back(EndpointEvent::Link(id, LinkEvent::Closed));
        }
        self.mark(id);
        self.mark_noisy(id);
        Ok(())
    }

    fn handle_initiation(
        &mut self,
        now: Instant,
        from: SocketAddr,
        packet: &[u8],
    ) -> Result<(), &'static str> {
        self.admit(now, from, packet)?;
        let initiation = Initiation::open(&self.config.private_key, &mut self.entropy, packet)
            .map_err(handshake_reason)?;
        let id = *self.by_key.get(initiation.peer()).ok_or("unknown peer")?;
        let peer = self.peers[id.index()].as_deref_mut().ok_or("unknown peer")?;
        let outcome =
            peer.tunnel.accept(now, from, initiation, &mut self.guard, &mut self.indices.giver(id));
        self.mark(id);
        outcome.map_err(handshake_reason)
    }

    fn handle_response(
        &mut self,
        now: Instant,
        from: SocketAddr,
        receiver: u32,
        packet: &[u8],
    ) -> Result<(), &'static str> {
        let id = self.indices.owner(receiver).ok_or("unknown index")?;
        let peer = self.peers[id.index()].as_deref_mut().ok_or("unknown index")?;
        if !peer.tunnel.awaits_response(receiver) {
            return Err("unsolicited");
        }
        self.admit(now, from, packet)?;
        let peer = self.peers[id.index()].as_deref_mut().ok_or("unknown index")?;
        peer.tunnel.handle_response(now, from, packet).map_err(handshake_reason)?;
        self.see_tunnel_events(now, id);
        self.mark(id);
        Ok(())
    }

    fn handle_cookie_reply(
        &mut self,
        now: Instant,
        receiver: u32,
        packet: &[u8],
    ) -> Result<(), &'static str> {
        let id = self.indices.owner(receiver).ok_or("unknown index")?;
        let peer = self.peers[id.index()].as_deref_mut().ok_or("unknown index")?;
        peer.tunnel.handle_cookie_reply(now, packet).map_err(handshake_reason)?;
        self.mark(id);
        Ok(())
    }

    fn admit(&mut self, now: Instant, from: SocketAddr, packet: &[u8]) -> Result<(), &'static str> {
        match self.guard.admit(now, from, packet) {
            Verdict::Admitted => Ok(()),
            Verdict::Refused(why, reply) => {
                if let Some(reply) = reply
                    && self.replies.len() < MAX_REPLIES
                {
                    self.replies.push_back((from, reply));
                }
                Err(handshake_reason(why))
            }
        }
    }

    /// Handshakes that succeeded and addresses that changed.
    fn see_tunnel_events(&mut self, now: Instant, id: PeerId) {
        while let Some(peer) = self.peers[id.index()].as_deref_mut() {
            let Some(event) = peer.tunnel.poll_event() else { return };
            match event {
                tunnel::Event::Moved(addr) => {
                    peer.session.set_ipv6(addr.ip().to_canonical().is_ipv6());
                    self.events.push_back(EndpointEvent::Link(id, LinkEvent::Moved(addr)));
                }
                tunnel::Event::Established { resumed, cipher, params, rtt } => {
                    peer.stats.handshakes += 1;
                    if !resumed && peer.begun {
                        self.replace_session(now, id, ResetReason::PeerRestarted);
                    }
                    let Some(peer) = self.peers[id.index()].as_deref_mut() else { return };
                    peer.begun = true;
                    peer.silent = false;
                    let v6 =
                        peer.tunnel.endpoint().is_some_and(|a| a.ip().to_canonical().is_ipv6());
                    if let Some(params) = Params::decode(params.as_bytes()) {
                        peer.session.set_peer(params, v6);
                    }
                    let up = LinkEvent::Up { resumed, cipher, rtt };
                    self.events.push_back(EndpointEvent::Link(id, up));
                }
            }
        }
    }

    /// A new session in place of one whose streams are orphans now.
    fn replace_session(&mut self, now: Instant, id: PeerId, reason: ResetReason) {
        if let Some(peer) = self.peers[id.index()].as_deref_mut() {
            let mut session = Session::new(now, peer.config.link.clone(), peer.side);
            session.inherit_rate(now, &peer.session);
            peer.session = session;
            peer.begun = false;
            self.events.push_back(EndpointEvent::SessionLost(id, reason));
        }
    }

    // ---- packets out -----------------------------------------------------------

    /// Writes the next packet into `buf`, which must hold the largest of any link.
    pub fn poll_transmit(&mut self, now: Instant, buf: &mut [u8]) -> Option<Transmit> {
        if let Some((to, message)) = self.replies.pop_front() {
            return Some(put_message(&message, to, None, buf));
        }
        while let Some(id) = self.dirty.front().copied() {
            if let Some(transmit) = self.poll_peer(now, id, buf) {
                return Some(transmit);
            }
            self.dirty.pop_front();
            if let Some(peer) = self.peers[id.index()].as_deref_mut() {
                peer.dirty = false;
            }
            self.set_timer(now, id);
        }
        None
    }

    fn poll_peer(&mut self, now: Instant, id: PeerId, buf: &mut [u8]) -> Option<Transmit> {
        self.see_tunnel_events(now, id);
        let peer = self.peers[id.index()].as_deref_mut()?;
        let wanted = peer.session.waiting_since().is_some();
        peer.tunnel.set_wanted(now, wanted);
        peer.tunnel.set_rtt(peer.session.rtt());
        if let Some((to, message)) = peer.tunnel.poll_transmit(now, &mut self.indices.giver(id)) {
            peer.session.on_other_sent(now, message.as_bytes().len());
            let transmit = put_message(&message, to, Some(id), buf);
            peer.note_sent(now, transmit.len);
            return Some(transmit);
        }
        while let Some(index) = peer.tunnel.poll_freed_index() {
            self.indices.free(index);
        }
        if !peer.tunnel.is_established() {
            return None;
        }
        let transmit =
            peer.poll_challenge(now, id, buf).or_else(|| peer.poll_session(now, id, buf));
        if peer.session.is_silent() && !peer.silent {
            peer.silent = true;
            self.events.push_back(EndpointEvent::Link(id, LinkEvent::Silent));
        }
        if peer.session.has_events() {
            self.mark_noisy(id);
        }
        transmit
    }

    fn mark(&mut self, id: PeerId) {
        if let Some(peer) = self.peers[id.index()].as_deref_mut()
            && !peer.dirty
        {
            peer.dirty = true;
            self.dirty.push_back(id);
        }
    }

    fn mark_noisy(&mut self, id: PeerId) {
        if let Some(peer) = self.peers[id.index()].as_deref_mut()
            && !peer.noisy
        {
            peer.noisy = true;
            self.noisy.push_back(id);
        }
    }

    fn set_timer(&mut self, now: Instant, id: PeerId) {
        let Some(peer) = self.peers[id.index()].as_deref_mut() else { return };
        let next = peer.next_timer(now);
        if next == peer.timer {
            return;
        }
        if let Some(old) = peer.timer {
            self.timers.remove(&(old, id));
        }
        peer.timer = next;
        if let Some(at) = next {
            self.timers.insert((at, id));
        }
    }

    /// When [`Endpoint::handle_timeout`] is to be called next.
    pub fn poll_timeout(&self, now: Instant) -> Option<Instant> {
        if !self.dirty.is_empty() || !self.replies.is_empty() {
            return Some(now);
        }
        self.timers.first().map(|(at, _)| *at)
    }

    /// Does what is due.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some((at, id)) = self.timers.first().copied() {
            if at > now {
                break;
            }
            self.timers.pop_first();
            if let Some(peer) = self.peers[id.index()].as_deref_mut() {
                peer.timer = None;
                peer.session.handle_timeout(now);
                if peer.keepalive_at().is_some_and(|t| t <= now) {
                    peer.session.ping();
                }
            }
            self.mark(id);
        }
    }

    // ---- events and datagrams --------------------------------------------------

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

impl Peer {
    fn note_sent(&mut self, now: Instant, len: usize) {
        self.last_sent = now;
        self.stats.packets_out += 1;
        self.stats.bytes_out += len as u64 + self.session.wire_overhead();
    }

    fn keepalive_at(&self) -> Option<Instant> {
        let interval = self.config.keepalive.filter(|_| self.tunnel.is_established())?;
        (!self.session.ping_waits()).then(|| self.last_sent + interval)
    }

    fn next_timer(&self, now: Instant) -> Option<Instant> {
        let session = self.session.poll_timeout(now).filter(|_| self.tunnel.is_established());
        [self.tunnel.poll_timeout(), session, self.keepalive_at()].into_iter().flatten().min()
    }

    /// Asks an address that the peer seems to have moved to.
    fn poll_challenge(&mut self, now: Instant, id: PeerId, buf: &mut [u8]) -> Option<Transmit> {
        let (to, token) = self.tunnel.poll_challenge(now)?;
        let mut payload = [0; 9];
        Writer::new(&mut payload).put(&Frame::Challenge(token));
        let len = self.seal_small(now, &payload, buf)?;
        Some(Transmit { len, to, peer: Some(id) })
    }

    fn poll_session(&mut self, now: Instant, id: PeerId, buf: &mut [u8]) -> Option<Transmit> {
        let to = self.tunnel.endpoint()?;
        let number_len = self.number_len();
        let header = self.tunnel.header_len(number_len)?;
        let max = self.session.max_packet();
        let room = buf.get_mut(header..max - TAG_LEN)?;
        let sealing = (header + TAG_LEN) as u64;
        let len = match self.session.poll_packet(now, room, sealing) {
            Some(built) => {
                let len = header + built.len + TAG_LEN;
                let sealed =
                    self.tunnel.seal_packet(now, built.hint, number_len, &mut buf[..len]).ok()?;
                assert_eq!(sealed, built.number, "session and tunnel count alike");
                self.note_sent(now, len);
                len
            }
            None if self.tunnel.owes_packet() => self.seal_small(now, &[], buf)?,
            None => return None,
        };
        Some(Transmit { len, to, peer: Some(id) })
    }

    /// Seals a packet that the session does not know the content of.
    fn seal_small(&mut self, now: Instant, payload: &[u8], buf: &mut [u8]) -> Option<usize> {
        let number_len = self.number_len();
        let header = self.tunnel.header_len(number_len)?;
        let len = header + payload.len() + TAG_LEN;
        buf.get_mut(header..header + payload.len())?.copy_from_slice(payload);
        self.tunnel.seal_packet(now, 0, number_len, buf.get_mut(..len)?).ok()?;
        self.session.book_other(now, len);
        self.note_sent(now, len);
        Some(len)
    }

    fn number_len(&self) -> usize {
        number_len(self.session.next_number(), self.session.confirmed())
    }
}

fn blob(session: &Session) -> Blob {
    Blob::new(&session.params().encode()).expect("four varints are at most 36 bytes")
}

fn put_message(
    message: &Message,
    to: SocketAddr,
    peer: Option<PeerId>,
    buf: &mut [u8],
) -> Transmit {
    let bytes = message.as_bytes();
    buf[..bytes.len()].copy_from_slice(bytes);
    Transmit { len: bytes.len(), to, peer }
}

fn packet_reason(e: PacketError) -> &'static str {
    match e {
        PacketError::Malformed => "malformed",
        PacketError::UnknownIndex => "unknown index",
        PacketError::Forged => "forged",
        PacketError::Duplicate => "replayed",
        PacketError::TooOld => "too old",
        PacketError::KeyWornOut => "key worn out",
    }
}

fn handshake_reason(e: HandshakeError) -> &'static str {
    match e {
        HandshakeError::Malformed => "malformed",
        HandshakeError::Version => "unknown version",
        HandshakeError::Mac1 => "wrong mac1",
        HandshakeError::SourceLimit => "source limit",
        HandshakeError::Forged => "forged",
        HandshakeError::Replayed => "replayed",
        HandshakeError::NoCookie => "no cookie",
        HandshakeError::Unsolicited => "unsolicited",
        _ => "handshake refused",
    }
}

/// Receiver indices: whose they are, and which are free.
struct IndexTable {
    owners: BTreeMap<u32, PeerId>,
    /// Freed lately: not given out again yet, so that late packets meet nobody.
    resting: VecDeque<u32>,
    entropy: Entropy,
}

/// Indices that rest.
const RESTING: usize = 256;
/// With more than this many in use, indices take 4 bytes instead of 2.
const SHORT_INDICES: usize = 16_384;

impl IndexTable {
    fn new(entropy: Entropy) -> IndexTable {
        IndexTable { owners: BTreeMap::new(), resting: VecDeque::new(), entropy }
    }

    fn owner(&self, index: u32) -> Option<PeerId> {
        self.owners.get(&index).copied()
    }

    fn giver(&mut self, peer: PeerId) -> impl FnMut() -> u32 + '_ {
        move || loop {
            let draw = self.entropy.next_u32();
            let index = if self.owners.len() < SHORT_INDICES { draw & 0xffff } else { draw };
            let taken = self.owners.contains_key(&index) || self.resting.contains(&index);
            if index > 0xff && !taken {
                self.owners.insert(index, peer);
                return index;
            }
        }
    }

    fn free(&mut self, index: u32) {
        self.owners.remove(&index);
        self.resting.push_back(index);
        if self.resting.len() > RESTING {
            self.resting.pop_front();
        }
    }

    fn forget(&mut self, peer: PeerId) {
        self.owners.retain(|_, p| *p != peer);
    }
}
