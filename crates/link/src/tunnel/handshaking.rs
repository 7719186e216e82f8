//! A tunnel's part in handshakes: asking, answering, taking answers.

use units::{Duration, Instant};

use super::attempt::{Attempt, Try, patience, quick};
use super::header::PacketKind;
use super::keyring::{Keypair, Pending, Session};
use super::{CONFIRMATIONS, CROWDED, Event, Failure, Indices, MAX_RECENT, Tunnel, draw_epoch};
use crate::cookie::{COOKIE_ROTATION, Cookie, Guard};
use crate::handshake::{
    Agreed, Asked, HandshakeError, Hello, Initiation, Message, Params, SessionId, check_form,
};
use crate::path::{PathId, Remote};

impl Tunnel {
    /// Takes the response that [`Guard::admit`] let pass to an initiation of ours.
    ///
    /// # Errors
    /// [`HandshakeError`]: drop it, silently.
    pub fn handle_response(
        &mut self,
        now: Instant,
        from: Remote,
        packet: &[u8],
    ) -> Result<(), HandshakeError> {
        check_form(packet)?;
        let Some(PacketKind::Response { receiver }) = PacketKind::of(packet) else {
            return Err(HandshakeError::Malformed);
        };
        if !self.ways.may_be_at(from) {
            return Err(HandshakeError::PathDown);
        }
        let attempt = self.attempt.as_mut().ok_or(HandshakeError::Unsolicited)?;
        let index = attempt.find(receiver).ok_or(HandshakeError::Unsolicited)?;
        let response = attempt.tries[index].asked.read_response(packet).inspect_err(|e| {
            let failure = match e {
                HandshakeError::NotOffered => Failure::NoCommonCipher,
                _ => Failure::AnswersForged,
            };
            self.tally.on_bad(now, failure);
        })?;
        let Try { asked, own, path, to, sent, .. } = attempt.tries.remove(index);
        let local_index = asked.index();
        let agreed = asked.finish(response);
        let keys = Keypair::new(&agreed, local_index, true, now);
        if self.goes_first {
            self.keys.drop_pending_of_others(agreed.session);
        }
        self.establish(now, keys, [own, agreed.params], now.since(sent), path);
        if from == to {
            self.go_to(path, to, sent);
        }
        (self.owes_packet, self.owed_on) = (true, path);
        self.owed_again = now + patience(self.rtt);
        self.unconfirmed = CONFIRMATIONS;
        self.ways.on_authenticated(now, path, from, true, packet.len(), &mut self.entropy);
        Ok(())
    }

    /// Takes a cookie reply to a message of ours; what we send next has the cookie in it.
    ///
    /// # Errors
    /// [`HandshakeError`]: drop it, silently.
    pub fn handle_cookie_reply(
        &mut self,
        now: Instant,
        packet: &[u8],
    ) -> Result<(), HandshakeError> {
        check_form(packet)?;
        let Some(PacketKind::CookieReply { receiver }) = PacketKind::of(packet) else {
            return Err(HandshakeError::Malformed);
        };
        let tried = self.attempt.as_mut().and_then(|a| {
            let index = a.find(receiver)?;
            Some((&mut a.tries[index], &mut a.not_before, &mut a.hurried))
        });
        match (tried, &mut self.response_mac1) {
            (Some((tried, not_before, hurried)), _) => {
                let mac1 = tried.mac1.as_ref().ok_or(HandshakeError::Unsolicited)?;
                let cookie =
                    self.peer_macs.open_reply(mac1, packet).ok_or(HandshakeError::Forged)?;
                tried.mac1 = None;
                self.cookie = Some((cookie, now));
                if !tried.had_cookie && !*hurried {
                    *hurried = true;
                    *not_before = now;
                }
            }
            (None, Some((index, mac1))) if *index == receiver => {
                let cookie =
                    self.peer_macs.open_reply(mac1, packet).ok_or(HandshakeError::Forged)?;
                self.response_mac1 = None;
                self.cookie = Some((cookie, now));
            }
            _ => return Err(HandshakeError::Unsolicited),
        }
        Ok(())
    }

    /// Answers an initiation of this peer's that [`Guard::admit`] let pass. The answer
    /// waits in [`poll_transmit`](Tunnel::poll_transmit); nothing else changes until a
    /// packet comes under the new keys.
    ///
    /// # Errors
    /// [`HandshakeError`]: there is no answer, except that for
    /// [`HandshakeError::NoCookie`] a cookie reply waits to be sent.
    pub fn accept(
        &mut self,
        now: Instant,
        from: Remote,
        initiation: Initiation,
        guard: &mut Guard,
        indices: &mut dyn Indices,
    ) -> Result<(), HandshakeError> {
        if initiation.peer() != &self.config.peer {
            return Err(HandshakeError::WrongPeer);
        }
        if self.ways.is_down(from) || !self.ways.may_be_at(from) {
            return Err(HandshakeError::PathDown);
        }
        if !initiation.suits(self.config.offer) {
            self.tally.on_bad(now, Failure::NoCommonCipher);
            return Err(HandshakeError::NotOffered);
        }
        self.remember(initiation.ephemeral())?;
        self.give_way_or_refuse(now, from)?;
        let proven = initiation.cookie().is_some_and(|c| guard.gave(now, from.source(), c));
        if !proven && self.keys.is_crowded(now, CROWDED) {
            let reply =
                guard.reply(now, from.source(), initiation.sender_index(), initiation.mac1());
            self.cookie_reply = Some((from, reply));
            return Err(HandshakeError::NoCookie);
        }
        self.answer(now, from, initiation, proven, indices)
    }

    fn answer(
        &mut self,
        now: Instant,
        from: Remote,
        initiation: Initiation,
        proven: bool,
        indices: &mut dyn Indices,
    ) -> Result<(), HandshakeError> {
        let epoch = self.epoch_for(initiation.epochs());
        let hello = self.hello(indices);
        let answered = initiation.respond(&self.config.preshared, hello, epoch);
        let (agreed, mut message): (Agreed, Message) = answered.inspect_err(|_| {
            self.keys.free(hello.index);
        })?;
        let cookie = self.fresh_cookie(now);
        let mac1 = self.peer_macs.sign(&mut message, cookie.as_ref());
        self.response_mac1 = Some((hello.index, mac1));
        self.keys.add_pending(Pending {
            keys: Keypair::new(&agreed, hello.index, false, now),
            params: agreed.params,
            own: hello.params,
            from,
            answered: now,
            proven,
        });
        self.answered_until.get_or_insert(now + patience(self.rtt));
        self.tally.on_answered(now, from.source());
        self.post(from, message);
        Ok(())
    }

    /// Of two initiations that cross, the one of the lower key goes first (L-HS-10): while
    /// ours may be under way, or the packet that confirms it, the peer's is set aside. Once
    /// only, and only if ours went where this came from: otherwise ours may be lost for good.
    ///
    /// Where nothing crosses, a peer that initiates although it answered us does not know
    /// that we have its answer, whichever key is the lower: our packet was lost and goes
    /// again. To answer instead would give up a session in which much may have begun; to
    /// do both would let each side go over to the session that the other leaves.
    fn give_way_or_refuse(&mut self, now: Instant, from: Remote) -> Result<(), HandshakeError> {
        let patience = patience(self.rtt);
        if self.set_aside {
            return Ok(());
        }
        let asking = self.goes_first
            && self.attempt.as_ref().is_some_and(|a| a.is_under_way(now, from, patience));
        let alone = self.attempt.is_none();
        let telling = self.ways.is_endpoint(from)
            && self.keys.current().is_some_and(|k| {
                k.ours && !k.heard && (alone || self.goes_first && k.age(now) < patience)
            });
        if telling {
            self.owes_packet = true;
            self.owed_again = now + patience;
        }
        self.set_aside = asking || telling;
        if self.set_aside { Err(HandshakeError::Crossed) } else { Ok(()) }
    }

    /// Our name for the session that an initiation is about (L-SE-2). `asked.remote` is
    /// the initiator's epoch, `asked.local` ours as far as it knows.
    ///
    /// It is the current session's if the initiator knows that one, or knows none but
    /// has the epoch that we know it by: then its initiation crossed ours. All others
    /// get the epoch under which nothing happened yet, so that however many handshakes
    /// two fresh nodes make at once, they are for one session.
    fn epoch_for(&self, asked: SessionId) -> u64 {
        match &self.session {
            Some(Session { id, .. })
                if *id == asked || (asked.local == 0 && asked.remote == id.remote) =>
            {
                id.local
            }
            _ => self.fresh_epoch,
        }
    }

    /// Straight replays of a recent initiation are dropped (L-HS-7).
    fn remember(&mut self, ephemeral: &[u8; 16]) -> Result<(), HandshakeError> {
        if self.recent.contains(ephemeral) {
            return Err(HandshakeError::Replayed);
        }
        if self.recent.len() == MAX_RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(*ephemeral);
        Ok(())
    }

    /// New keys are in force; the handshake told `own` parameters and the peer's.
    pub(super) fn establish(
        &mut self,
        now: Instant,
        keys: Keypair,
        [own, params]: [Params; 2],
        rtt: Duration,
        path: PathId,
    ) {
        let (id, cipher) = (keys.session, keys.cipher);
        let resumed = self.session.as_ref().is_some_and(|s| s.id == id);
        if !resumed {
            self.session = Some(Session::new(id));
            self.ways.begin_anew(path);
            self.fresh_epoch = draw_epoch(&mut self.entropy);
        }
        self.keys.install(keys);
        self.cancel_attempt();
        (self.start, self.calls_back) = (None, false);
        self.turn = None;
        // What changed since this handshake began the next tells.
        self.renew = (own != self.config.params).then_some(now);
        self.answered_until = None;
        self.set_aside = false;
        self.owes_packet = false;
        self.on_alive(now);
        // The owner may have not yet seen that the session is a new one.
        let unseen = matches!(self.established, Some(Event::Established { resumed: false, .. }));
        let resumed = resumed && !unseen;
        self.established = Some(Event::Established { resumed, cipher, params, rtt, path });
    }

    pub(super) fn initiate(
        &mut self,
        now: Instant,
        indices: &mut dyn Indices,
    ) -> Option<(Remote, Message)> {
        let before = self.attempt.as_ref().map_or(0, Attempt::count);
        let (path, to) = self.ways.for_initiation(before)?;
        self.turn = None;
        let epochs = match &self.session {
            Some(session) => session.id,
            None => SessionId { local: self.fresh_epoch, remote: 0 },
        };
        let cookie = self.fresh_cookie(now);
        let hello = self.hello(indices);
        let own = hello.params;
        let (asked, mut message) = Asked::new(
            &self.config.local,
            &self.config.peer,
            &self.config.preshared,
            hello,
            epochs,
            cookie.as_ref(),
            &mut self.entropy,
        )
        .expect("the peer's key was tried when the tunnel was made");
        let mac1 = self.peer_macs.sign(&mut message, cookie.as_ref());
        let sent =
            Try { asked, own, path, to, sent: now, mac1: Some(mac1), had_cookie: cookie.is_some() };
        let (rtt, waiting) = (self.rtt, self.wanted.is_some());
        if self.attempt.is_none() {
            self.set_aside = false;
        }
        self.tally.on_initiated(now);
        let attempt = self.attempt.get_or_insert_with(|| Attempt::new(now));
        if let Some(index) = attempt.sent(sent, rtt, waiting, &mut self.entropy) {
            self.keys.free(index);
        }
        Some((to, message))
    }

    /// When the peer is to be asked whether it has the new keys, if nothing under them came.
    pub(super) fn confirmation_due(&self) -> Option<Instant> {
        let unheard = self.keys.current().is_some_and(|k| k.ours && !k.heard);
        (unheard && self.unconfirmed > 0).then_some(self.owed_again)
    }

    /// Whether to ask now (L-HS-8): whatever it is that the packet says, it tells the peer
    /// that we have the keys, and an answer tells us that it knows.
    pub fn asks_for_confirmation(&mut self, now: Instant) -> bool {
        let due = self.confirmation_due().is_some_and(|at| at <= now);
        if due {
            self.unconfirmed -= 1;
            self.owed_again = now + quick(self.rtt);
        }
        due
    }

    /// When the next initiation is due, if one is wanted.
    pub(super) fn initiation_due(&self) -> Option<Instant> {
        let patience = patience(self.rtt);
        let reason = match self.is_established() {
            false => [self.start, self.wanted, self.renew].into_iter().flatten().min()?,
            true => {
                let silent = self.wanted.map(|since| since.max(self.heard) + patience);
                let renew = self.renew.map(|since| since.max(self.renew_not_before));
                [silent, renew].into_iter().flatten().min()?
            }
        };
        if !self.ways.is_any_known() {
            return None;
        }
        let not_before = self.attempt.as_ref().map_or(Instant::ZERO, |a| a.not_before);
        let turn = self.turn.filter(|_| self.wanted.is_none()).unwrap_or(Instant::ZERO);
        Some(reason.max(not_before).max(turn).max(self.answered_until.unwrap_or(Instant::ZERO)))
    }

    pub(super) fn cancel_attempt(&mut self) {
        for tried in self.attempt.take().into_iter().flat_map(|a| a.tries) {
            self.keys.free(tried.asked.index());
        }
    }

    /// The peer is alive: initiations that only its silence called for can stop.
    pub(super) fn on_alive(&mut self, now: Instant) {
        self.heard = now;
        if self.renew.is_none() {
            self.cancel_attempt();
            self.tally.on_success();
        }
    }

    fn hello(&self, indices: &mut dyn Indices) -> Hello {
        Hello { index: indices.allocate(), offer: self.config.offer, params: self.config.params }
    }

    fn fresh_cookie(&self, now: Instant) -> Option<Cookie> {
        let (cookie, since) = self.cookie?;
        (now.since(since) < COOKIE_ROTATION).then_some(cookie)
    }
}
