//! Packets in: whose they are, and what they change.

use units::{Duration, Instant};

use super::event::{EndpointEvent, LinkEvent};
use super::peer::{Peer, PeerId};
use super::shares::Verdict;
use super::state::Endpoint;
use super::strangers::Strange;
use crate::cookie;
use crate::handshake::{HandshakeError, Initiation};
use crate::path::Remote;
use crate::session::{Params, PathFrame, Session};
use crate::tunnel::{self, Opened, PacketError, PacketKind};
use crate::wire::ResetReason;

/// Cookie replies that may wait.
pub(super) const MAX_REPLIES: usize = 64;

/// A round trip beside which a wait of two milliseconds is nothing.
const FAR: Duration = Duration::from_millis(200);

/// So long after its peer has ended the session a node calls that is to keep it (L-HS-16).
const CALL_AGAIN: Duration = Duration::from_secs(5);

impl Endpoint {
    /// Takes a packet that this host received at `arrived`, which may be a while before
    /// `now`; it is opened in place. What is not in order is dropped silently and counted; what
    /// is another shard's comes out of [`Endpoint::poll_handed_over`].
    pub fn handle_packet(
        &mut self,
        now: Instant,
        arrived: Instant,
        from: Remote,
        packet: &mut [u8],
    ) {
        let kind = PacketKind::of(packet);
        let index = kind.and_then(PacketKind::receiver);
        if let Some(shard) = index.and_then(|index| self.indices.elsewhere(index)) {
            let done = self.elsewhere.hand_packet_over(shard, from, arrived, packet);
            return self.count(done);
        }
        if self.shares.is_strained() && !self.measure(now, arrived, kind) {
            return;
        }
        let done = match kind {
            None => Err("malformed"),
            Some(PacketKind::Data { receiver }) => {
                self.handle_data(now, arrived, from, receiver, packet)
            }
            Some(PacketKind::Initiation) => self.handle_initiation(now, from, packet),
            Some(PacketKind::Response { receiver }) => {
                self.handle_response(now, from, receiver, packet)
            }
            Some(PacketKind::CookieReply { receiver }) => {
                self.handle_cookie_reply(now, from, receiver, packet)
            }
        };
        self.shares.is_strained().then(|| self.end_measure(done.is_ok()));
        if let Err(reason) = done {
            self.floods.note(kind, reason);
        }
        self.count(done);
    }

    /// While packets wait: is a peer's data packet taken? Its work is measured from here on.
    #[cold]
    fn measure(&mut self, now: Instant, arrived: Instant, kind: Option<PacketKind>) -> bool {
        self.measured = None;
        let Some(PacketKind::Data { receiver }) = kind else { return true };
        let Some(id) = self.indices.owner(receiver) else { return true };
        let Verdict::Drop { tell } = self.shares.admit(now, arrived, id) else {
            self.measured = Some((id, self.work_begins()));
            return true;
        };
        self.floods.note_over(id);
        if let Some(peer) = self.peers[id.index()].as_deref_mut() {
            peer.stats.over_its_part += 1;
        }
        if tell {
            self.events.push_back(EndpointEvent::Link(id, LinkEvent::OverItsPart));
        }
        false
    }

    /// Only what authenticated is the peer's to bear.
    #[cold]
    fn end_measure(&mut self, authentic: bool) {
        if let Some((id, begin)) = self.measured.take().filter(|_| authentic) {
            self.charge(id, begin);
        }
    }

    pub(super) fn count(&mut self, done: Result<(), &'static str>) {
        if let Err(reason) = done {
            *self.drops.entry(reason).or_default() += 1;
        }
    }

    fn handle_data(
        &mut self,
        now: Instant,
        arrived: Instant,
        from: Remote,
        receiver: u32,
        packet: &mut [u8],
    ) -> Result<(), &'static str> {
        let id = self.indices.owner(receiver).ok_or("unknown index")?;
        let peer = self.peers[id.index()].as_deref_mut().ok_or("unknown index")?;
        let opened = peer.tunnel.open_packet(now, from, packet).map_err(packet_reason)?;
        self.shares.on_authentic(now, arrived, id);
        peer.stats.packets_in += 1;
        peer.stats.heard = Some(now);
        if opened.confirmed_now {
            self.see_tunnel_events(now, id);
        }
        self.count_memory(id);
        let peer = self.peers[id.index()].as_deref_mut().ok_or("unknown index")?;
        peer.note_received(now, &opened, packet.len());
        let (mut challenge, mut response) = (None, None);
        peer.session.handle_packet(
            now,
            arrived.min(now),
            (opened.path, opened.number),
            opened.hint,
            &packet[opened.payload],
            &mut |frame| match frame {
                PathFrame::Challenge(token) => challenge = Some(token),
                PathFrame::Response(token) => response = Some(token),
            },
        );
        self.awaited_until = self.awaited_until.max(peer.session.awaited_until());
        if peer.session.rtt() < FAR {
            self.near_until = now + FAR;
        }
        if let Some(token) = challenge {
            peer.tunnel.on_challenge(opened.path, from, token);
        }
        if let Some(token) = response {
            peer.tunnel.on_challenge_response(opened.path, from, token);
        }
        self.events.extend(peer.see_health().map(|e| EndpointEvent::Link(id, e)));
        if let Some(event) = peer.see_path(now, id) {
            self.events.push_back(event);
        }
        if peer.session.has_datagrams() && !peer.has_datagrams {
            peer.has_datagrams = true;
            self.with_datagrams.push_back(id);
        }
        if peer.session.peer_closed() {
            self.replace_session(now, id, ResetReason::ShuttingDown);
            if let Some(peer) = self.peers[id.index()].as_deref_mut() {
                peer.tunnel.forget();
                // Where this node is behind a NAT the peer may not find the way when it is back.
                if peer.session.keeps_alive() {
                    peer.tunnel.call_back(now + CALL_AGAIN);
                }
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
        from: Remote,
        packet: &[u8],
    ) -> Result<(), &'static str> {
        self.admit(now, from, packet)?;
        let initiation = Initiation::open(&self.config.private_key, &mut self.entropy, packet)
            .map_err(handshake_reason)?;
        let key = *initiation.peer();
        match self.by_key.get(&key) {
            Some(id) => self.answer(now, from, *id, initiation),
            None if self.elsewhere.has(&key) => self.elsewhere.hand_over(from, initiation),
            None => {
                self.strangers.note(now, from.source(), Strange::UnknownNode(key));
                Err("unknown peer")
            }
        }
    }

    /// Answers a peer's initiation that was opened.
    pub(super) fn answer(
        &mut self,
        now: Instant,
        from: Remote,
        id: PeerId,
        initiation: Initiation,
    ) -> Result<(), &'static str> {
        self.wake(id);
        let peer = self.peers[id.index()].as_deref_mut().ok_or("unknown peer")?;
        let len = initiation.packet_len();
        let outcome =
            peer.tunnel.accept(now, from, initiation, &mut self.guard, &mut self.indices.giver(id));
        if matches!(outcome, Ok(()) | Err(HandshakeError::NoCookie)) {
            peer.note_message(from, len);
        }
        self.mark(id);
        outcome.map_err(handshake_reason)
    }

    fn handle_response(
        &mut self,
        now: Instant,
        from: Remote,
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
        peer.note_message(from, packet.len());
        self.see_tunnel_events(now, id);
        let peer = self.peers[id.index()].as_deref_mut().ok_or("unknown index")?;
        peer.session.ping();
        self.mark(id);
        Ok(())
    }

    fn handle_cookie_reply(
        &mut self,
        now: Instant,
        from: Remote,
        receiver: u32,
        packet: &[u8],
    ) -> Result<(), &'static str> {
        let id = self.indices.owner(receiver).ok_or("unknown index")?;
        let peer = self.peers[id.index()].as_deref_mut().ok_or("unknown index")?;
        peer.tunnel.handle_cookie_reply(now, packet).map_err(handshake_reason)?;
        peer.note_message(from, packet.len());
        self.mark(id);
        Ok(())
    }

    fn admit(&mut self, now: Instant, from: Remote, packet: &[u8]) -> Result<(), &'static str> {
        match self.guard.admit(now, from.source(), packet) {
            cookie::Verdict::Admitted => Ok(()),
            cookie::Verdict::Refused(why, reply) => {
                if matches!(why, HandshakeError::Mac1 | HandshakeError::Version) {
                    let mac1 = why == HandshakeError::Mac1;
                    self.strangers.note_refused(now, from.source(), packet, mac1);
                }
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
    pub(super) fn see_tunnel_events(&mut self, now: Instant, id: PeerId) {
        while let Some(peer) = self.peers[id.index()].as_deref_mut() {
            let Some(event) = peer.tunnel.poll_event() else { return };
            match event {
                tunnel::Event::Moved(path, to) => {
                    peer.meet_path(now, path);
                    self.events.push_back(EndpointEvent::Link(id, LinkEvent::Moved(path, to)));
                }
                tunnel::Event::Established { resumed, cipher, params, rtt, path } => {
                    peer.stats.handshakes += 1;
                    if !resumed && peer.begun {
                        self.replace_session(now, id, ResetReason::PeerRestarted);
                    }
                    let Some(peer) = self.peers[id.index()].as_deref_mut() else { return };
                    peer.begun = true;
                    peer.session.on_handshake(now, path);
                    self.events.extend(peer.see_health().map(|e| EndpointEvent::Link(id, e)));
                    peer.session.paths().collect::<Vec<_>>().into_iter().for_each(|path| {
                        peer.meet_path(now, path);
                    });
                    if let Some(params) = Params::decode(params.as_bytes()) {
                        peer.session.set_peer(params);
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
            session.inherit_link(now, &peer.session);
            session.set_stopwatch(self.stopwatch);
            peer.before += peer.session.stats();
            peer.session = session;
            peer.sessions += 1;
            peer.begun = false;
            self.events.push_back(EndpointEvent::SessionLost(id, reason));
        }
    }
}

impl Peer {
    /// Counts a message of a handshake: whoever pays for bytes pays for it.
    fn note_message(&mut self, from: Remote, len: usize) {
        let path = self.path_to(from);
        let Some(path) = self.session.path_mut(path) else { return };
        self.stats.bytes_in += len as u64 + path.wire_overhead();
        path.on_message(len);
    }

    /// Counts a packet; it may be the first of its path.
    fn note_received(&mut self, now: Instant, opened: &Opened, len: usize) {
        let is_new = self.session.path(opened.path).is_none();
        if is_new && self.session.accept_path(now, opened.path).is_some() {
            self.meet_path(now, opened.path);
        }
        let Some(path) = self.session.path_mut(opened.path) else { return };
        self.stats.bytes_in += len as u64 + path.wire_overhead();
        path.on_came(now, len);
    }
}

fn packet_reason(e: PacketError) -> &'static str {
    match e {
        PacketError::Malformed => "malformed",
        PacketError::UnknownIndex => "unknown index",
        PacketError::UnknownPath => "unknown path",
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
        HandshakeError::PathDown => "path down",
        _ => "handshake refused",
    }
}
