//! Packets out: whose turn it is, and when somebody is to be asked again.

use units::Instant;

use super::event::{EndpointEvent, LinkEvent};
use super::peer::{Peer, PeerId};
use super::state::{Endpoint, Transmit};
use crate::handshake::Message;
use crate::path::{PathId, Remote};
use crate::replay::number_len;
use crate::seal::TAG_LEN;
use crate::session::PathHealth;
use crate::tunnel::Rekey;
use crate::wire::{Frame, Writer};

impl Endpoint {
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
        // Between two packets that leave at the same time nothing else has happened.
        if self.peers[id.index()].as_deref()?.tended != Some(now)
            && let Some(transmit) = self.tend(now, id, buf)
        {
            return Some(transmit);
        }
        let peer = self.peers[id.index()].as_deref_mut()?;
        let established = peer.tunnel.is_established();
        let transmit = established.then(|| peer.poll_session(now, id, buf)).flatten();
        self.awaited_until = self.awaited_until.max(peer.session.awaited_until());
        if transmit.is_none() {
            self.events.extend(peer.see_health().map(|e| EndpointEvent::Link(id, e)));
            self.events.extend(peer.see_path(now, id));
            // What has just left may be the first that waits for an answer.
            peer.follow_wants(now);
        }
        if peer.session.has_events() {
            self.mark_noisy(id);
        }
        transmit
    }

    /// Sees to handshakes, keys and addresses, and answers what is to be sent for them.
    fn tend(&mut self, now: Instant, id: PeerId, buf: &mut [u8]) -> Option<Transmit> {
        self.see_tunnel_events(now, id);
        let peer = self.peers[id.index()].as_deref_mut()?;
        peer.follow_wants(now);
        peer.tunnel.set_rtt(peer.session.full_rtt());
        peer.follow_route(now);
        if peer.tunnel.wants_turn(now) {
            peer.tunnel.give_turn(self.calls.next_turn(now));
        }
        if let Some((to, message)) = peer.tunnel.poll_transmit(now, &mut self.indices.giver(id)) {
            let path = peer.path_to(to);
            let transmit = put_message(&message, to, Some((id, path)), buf);
            if let Some(path) = peer.session.path_mut(path) {
                path.on_other_sent(now, transmit.len);
            }
            peer.note_sent(now, path, transmit.len);
            return Some(transmit);
        }
        while let Some(index) = peer.tunnel.poll_freed_index() {
            self.indices.free(index);
        }
        if let Some(failing) = peer.tunnel.poll_failing(now) {
            self.events.push_back(EndpointEvent::Link(id, LinkEvent::Failing(failing)));
        }
        self.events.extend(peer.see_rekey(now).map(|e| EndpointEvent::Link(id, e)));
        if peer.tunnel.is_established() {
            if peer.tunnel.asks_for_confirmation(now) {
                peer.session.ping();
            }
            let asked = peer.poll_challenge(now, id, buf);
            if let Some(transmit) = asked.or_else(|| peer.poll_answer(now, id, buf)) {
                return Some(transmit);
            }
        }
        peer.tended = Some(now);
        None
    }

    fn set_timer(&mut self, now: Instant, id: PeerId) {
        self.count_memory(id);
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
        let timer = self.timers.first().map(|(at, _)| *at);
        timer.into_iter().chain(self.floods.poll_timeout()).min()
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
                let rested = peer.session.rests();
                peer.session.handle_timeout(now);
                if peer.session.rests() && !rested {
                    peer.tunnel.give_back();
                }
                if peer.keepalive_at().is_some_and(|t| t <= now) {
                    peer.session.keep_alive(now);
                }
            }
            self.mark(id);
        }
    }
}

impl Peer {
    /// The tunnel is to know whether something waits for the peer's answer.
    fn follow_wants(&mut self, now: Instant) {
        let wanted = self.session.waiting_since().is_some();
        self.tunnel.set_wanted(now, wanted);
    }

    /// What is new about the two directions.
    pub(super) fn see_health(&mut self) -> Option<LinkEvent> {
        let health = self.session.health();
        if health == PathHealth::Alive && !self.session.is_health_known() {
            return None;
        }
        if std::mem::replace(&mut self.health, health) == health {
            return None;
        }
        Some(match health {
            PathHealth::Alive => LinkEvent::Back,
            PathHealth::NothingReceived { since } => LinkEvent::NothingReceived(since),
            PathHealth::TransmitDead { since } => LinkEvent::TransmitDead(since),
            PathHealth::NoAcks { since } => LinkEvent::NoAcks(since),
        })
    }

    /// What is new about the keys; that they were replaced a handshake tells.
    fn see_rekey(&mut self, now: Instant) -> Option<LinkEvent> {
        let rekey = self.tunnel.rekey(now);
        let news = std::mem::replace(&mut self.rekey, rekey) != rekey && rekey != Rekey::InTime;
        news.then_some(LinkEvent::Rekey(rekey))
    }

    fn note_sent(&mut self, now: Instant, path: PathId, len: usize) {
        let Some(path) = self.session.path_mut(path) else { return };
        path.on_left(now, len);
        self.stats.packets_out += 1;
        self.stats.bytes_out += len as u64 + path.wire_overhead();
    }

    fn keepalive_at(&self) -> Option<Instant> {
        self.session.keepalive_at().filter(|_| self.tunnel.is_established())
    }

    fn next_timer(&self, now: Instant) -> Option<Instant> {
        let session = self.session.poll_timeout(now).filter(|_| self.tunnel.is_established());
        [self.tunnel.poll_timeout(), session, self.keepalive_at()].into_iter().flatten().min()
    }

    /// Asks an address that the peer seems to have moved to.
    fn poll_challenge(&mut self, now: Instant, id: PeerId, buf: &mut [u8]) -> Option<Transmit> {
        let (path, to, token) = self.tunnel.poll_challenge(now)?;
        let mut payload = [0; 9];
        Writer::new(&mut payload).put(&Frame::Challenge(token));
        let len = self.seal_small(now, path, &payload, buf)?;
        Some(Transmit { len, to, peer: Some((id, path)) })
    }

    /// Answers a challenge, to where it came from (L-AC-2).
    fn poll_answer(&mut self, now: Instant, id: PeerId, buf: &mut [u8]) -> Option<Transmit> {
        let (path, to, token) = self.tunnel.poll_answer()?;
        let mut payload = [0; 9];
        Writer::new(&mut payload).put(&Frame::Response(token));
        let len = self.seal_small(now, path, &payload, buf)?;
        Some(Transmit { len, to, peer: Some((id, path)) })
    }

    /// The session's next packet, on the best path that has one.
    fn poll_session(&mut self, now: Instant, id: PeerId, buf: &mut [u8]) -> Option<Transmit> {
        let route = self.tunnel.route();
        let packet = route.ids().iter().find_map(|path| self.poll_path(now, id, *path, buf));
        packet.or_else(|| {
            let path = self.tunnel.owes_packet()?;
            let to = self.tunnel.endpoint(path).filter(|_| route.ids().contains(&path))?;
            let len = self.seal_small(now, path, &[], buf)?;
            Some(Transmit { len, to, peer: Some((id, path)) })
        })
    }

    fn poll_path(
        &mut self,
        now: Instant,
        id: PeerId,
        path: PathId,
        buf: &mut [u8],
    ) -> Option<Transmit> {
        let to = self.tunnel.endpoint(path)?;
        let number_len = self.number_len(path)?;
        let header = self.tunnel.header_len(path, number_len)?;
        let max = self.session.path(path)?.max_packet();
        let room = buf.get_mut(header..max - TAG_LEN)?;
        let built = self.session.poll_packet(now, path, room, (header + TAG_LEN) as u64)?;
        let len = header + built.len + TAG_LEN;
        let packet = &mut buf[..len];
        let sealed = self.tunnel.seal_packet(now, path, built.hint, number_len, packet).ok()?;
        assert_eq!(sealed, built.number, "session and tunnel count alike");
        self.note_sent(now, path, len);
        Some(Transmit { len, to, peer: Some((id, path)) })
    }

    /// Seals a packet that the session does not know the content of.
    fn seal_small(
        &mut self,
        now: Instant,
        path: PathId,
        payload: &[u8],
        buf: &mut [u8],
    ) -> Option<usize> {
        let number_len = self.number_len(path)?;
        let header = self.tunnel.header_len(path, number_len)?;
        let len = header + payload.len() + TAG_LEN;
        buf.get_mut(header..header + payload.len())?.copy_from_slice(payload);
        self.tunnel.seal_packet(now, path, 0, number_len, buf.get_mut(..len)?).ok()?;
        self.session.path_mut(path)?.book_other(now, payload, len);
        self.note_sent(now, path, len);
        Some(len)
    }

    fn number_len(&self, path: PathId) -> Option<usize> {
        let path = self.session.path(path)?;
        Some(number_len(path.next_number(), path.confirmed()))
    }
}

fn put_message(
    message: &Message,
    to: Remote,
    peer: Option<(PeerId, PathId)>,
    buf: &mut [u8],
) -> Transmit {
    let bytes = message.as_bytes();
    buf[..bytes.len()].copy_from_slice(bytes);
    Transmit { len: bytes.len(), to, peer }
}
