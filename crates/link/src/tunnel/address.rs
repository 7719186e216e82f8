//! Where the peer is on a path: its validated address, and addresses that it may have moved to.
//!
//! A packet that authenticates shows who sealed it, not whence it came: anyone on the
//! way can send a copy from an address of their own. So a new address first answers a
//! challenge, and until then traffic stays where it was (RFC 9000 section 9 is the model).

use units::{Duration, Instant};

use super::header::MAX_OVERHEAD;
use crate::keys::Entropy;
use crate::path::Remote;

/// Addresses that may be under validation at once; when full the one not heard for
/// longest gives way, so that copies sent from elsewhere cannot push out a peer that moved.
const MAX_CANDIDATES: usize = 4;
/// Challenges to one address before it must be heard again.
const MAX_CHALLENGES: u32 = 5;
/// No packet with a challenge, or with the answer to one, is longer: a byte and the token, sealed.
/// What is sent to an address that has not been validated stays below three times what came from
/// there (L-AC-3).
const CHALLENGE_BYTES: u64 = MAX_OVERHEAD as u64 + 9;
const AMPLIFICATION: u64 = 3;

/// The state of a peer's address.
pub(super) struct Address {
    endpoint: Option<Remote>,
    /// When this node was told where the peer is, last.
    told: Option<Instant>,
    candidates: Vec<Candidate>,
}

struct Candidate {
    addr: Remote,
    token: u64,
    heard: Instant,
    received: u64,
    sent: u64,
    challenges: u32,
    next_challenge: Instant,
}

impl Address {
    pub fn new(endpoint: Option<Remote>) -> Address {
        Address { endpoint, told: None, candidates: Vec::new() }
    }

    pub fn endpoint(&self) -> Option<Remote> {
        self.endpoint
    }

    /// This node is told that the peer is at `addr`: it is configured, or was looked up. True if
    /// that is news.
    pub fn tell(&mut self, now: Instant, addr: Remote) -> bool {
        self.told = Some(now);
        self.set_endpoint(addr)
    }

    /// A handshake whose message left at `since` shows that the peer is at `addr`. True if that is
    /// news. What this node was told later stays, and `addr` is validated as any other (L-AC-4).
    pub fn shown(&mut self, since: Instant, addr: Remote) -> bool {
        self.told.is_none_or(|told| told < since) && self.set_endpoint(addr)
    }

    /// Whoever is there from now on is somebody else.
    pub fn forget(&mut self, place: Remote) {
        self.candidates.retain(|c| c.addr != place);
        if self.endpoint == Some(place) {
            (self.endpoint, self.told) = (None, None);
        }
    }

    fn set_endpoint(&mut self, addr: Remote) -> bool {
        self.candidates.clear();
        self.endpoint.replace(addr) != Some(addr)
    }

    /// A packet of `len` bytes authenticated. Only the newest can tell of a move
    /// (L-AC-1): an old one may have been held back and sent from anywhere.
    pub fn on_authenticated(
        &mut self,
        now: Instant,
        from: Remote,
        newest: bool,
        len: usize,
        entropy: &mut Entropy,
    ) {
        if self.endpoint == Some(from) {
            if newest {
                self.candidates.clear();
            }
            return;
        }
        match self.candidates.iter_mut().find(|c| c.addr == from) {
            Some(known) => {
                known.received += len as u64;
                if newest {
                    known.heard = now;
                    known.challenges = known.challenges.min(MAX_CHALLENGES - 1);
                }
            }
            None if newest => self.add(now, from, len, entropy),
            None => {}
        }
    }

    fn add(&mut self, now: Instant, addr: Remote, len: usize, entropy: &mut Entropy) {
        if self.candidates.len() == MAX_CANDIDATES
            && let Some((oldest, _)) =
                self.candidates.iter().enumerate().min_by_key(|(_, c)| c.heard)
        {
            self.candidates.swap_remove(oldest);
        }
        self.candidates.push(Candidate {
            addr,
            token: entropy.next_u64(),
            heard: now,
            received: len as u64,
            sent: 0,
            challenges: 0,
            next_challenge: now,
        });
    }

    /// A challenge that is due, with the address to send it to. `patience` is how long
    /// to wait for its answer before the next.
    pub fn poll_challenge(&mut self, now: Instant, patience: Duration) -> Option<(Remote, u64)> {
        let due = self.candidates.iter_mut().find(|c| c.may_ask() && c.next_challenge <= now)?;
        due.sent += CHALLENGE_BYTES;
        due.challenges += 1;
        due.next_challenge = now + patience;
        Some((due.addr, due.token))
    }

    /// May a challenge that came from `from` be answered there? The answer counts as sent. The
    /// packet that asked has room for it and for a challenge of this node's (L-AC-3); an address
    /// that is not under validation gets nothing but answers, each for a packet of its own.
    pub fn admit_answer(&mut self, from: Remote) -> bool {
        match self.candidates.iter_mut().find(|c| c.addr == from) {
            Some(candidate) if !candidate.has_room() => false,
            Some(candidate) => {
                candidate.sent += CHALLENGE_BYTES;
                true
            }
            None => true,
        }
    }

    /// When the next challenge is due.
    pub fn timeout(&self) -> Option<Instant> {
        self.candidates.iter().filter(|c| c.may_ask()).map(|c| c.next_challenge).min()
    }

    /// The peer answered a challenge from `from`. True if it now is there (L-AC-2).
    pub fn on_response(&mut self, from: Remote, token: u64) -> bool {
        let answered = self.candidates.iter().any(|c| c.addr == from && c.token == token);
        answered && self.set_endpoint(from)
    }
}

impl Candidate {
    fn may_ask(&self) -> bool {
        self.challenges < MAX_CHALLENGES && self.has_room()
    }

    fn has_room(&self) -> bool {
        self.sent + CHALLENGE_BYTES <= self.received.saturating_mul(AMPLIFICATION)
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn addr(n: u16) -> Remote {
        SocketAddr::from(([192, 0, 2, 1], n)).into()
    }
    fn at(s: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(s)
    }

    struct World {
        path: Address,
        entropy: Entropy,
    }
    impl World {
        fn new() -> World {
            World { path: Address::new(Some(addr(1))), entropy: Entropy::new([1; 32]) }
        }
        fn hear(&mut self, s: u64, from: Remote, newest: bool, len: usize) {
            self.path.on_authenticated(at(s), from, newest, len, &mut self.entropy);
        }
        fn challenge(&mut self, s: u64) -> Option<(Remote, u64)> {
            self.path.poll_challenge(at(s), SECOND)
        }
    }

    #[test]
    fn the_endpoint_moves_only_after_its_challenge_is_answered_from_there() {
        let mut w = World::new();
        w.hear(0, addr(2), true, 100);
        let (to, token) = w.challenge(0).expect("a challenge");
        assert_eq!((to, w.path.endpoint()), (addr(2), Some(addr(1))));
        assert!(!w.path.on_response(addr(2), token ^ 1), "a wrong token");
        assert!(!w.path.on_response(addr(3), token), "from elsewhere");
        assert!(w.path.on_response(addr(2), token));
        assert_eq!(w.path.endpoint(), Some(addr(2)));
        assert!(!w.path.on_response(addr(2), token), "once");
        assert_eq!(w.path.timeout(), None);
    }

    #[test]
    fn an_old_packet_from_elsewhere_starts_nothing() {
        let mut w = World::new();
        w.hear(0, addr(2), false, 1400);
        assert_eq!(w.challenge(0), None);
    }

    #[test]
    fn a_peer_heard_at_its_place_again_ends_the_validation() {
        let mut w = World::new();
        w.hear(0, addr(2), true, 1400);
        let (_, token) = w.challenge(0).expect("a challenge");
        w.hear(0, addr(1), true, 100);
        assert!(!w.path.on_response(addr(2), token));
        assert_eq!(w.path.endpoint(), Some(addr(1)));
    }

    /// L-AC-3.
    #[test]
    fn challenges_are_few_spaced_and_small_beside_what_was_received() {
        let mut w = World::new();
        w.hear(0, addr(2), true, 21);
        assert!(w.challenge(0).is_some());
        assert_eq!(w.challenge(100), None, "63 bytes are all that 21 allow");
        w.hear(100, addr(2), true, 1400);
        assert!(w.challenge(100).is_some());
        assert_eq!(w.challenge(100), None, "one a second");
        assert_eq!(w.path.timeout(), Some(at(101)));
        let sent = (101..200).filter(|s| w.challenge(*s).is_some()).count();
        assert_eq!(sent, 3, "five in all, then silence until the address is heard again");
        w.hear(200, addr(2), true, 100);
        assert!(w.challenge(200).is_some());
        assert_eq!(w.challenge(300), None);
    }

    /// L-AC-3: a copy of a packet with a challenge, sent from elsewhere, makes this node answer
    /// there as well as ask.
    #[test]
    fn answers_count_as_sent_and_leave_room_for_a_challenge() {
        // The shortest packet that holds a challenge.
        const SHORTEST: usize = 1 + 1 + 9 + 16;
        let mut w = World::new();
        let mut sent = 0;
        for s in 0..100 {
            w.hear(s, addr(2), true, SHORTEST);
            assert!(w.path.admit_answer(addr(2)), "each question is answered (L-AC-2)");
            let asked = w.challenge(s).is_some();
            assert!(asked || s > 0, "the first asks the address, too");
            sent += CHALLENGE_BYTES * (1 + u64::from(asked));
            let received = (s + 1) * SHORTEST as u64;
            assert!(sent <= AMPLIFICATION * received, "{sent} bytes for {received}");
        }
        let more = (0..100).filter(|_| w.path.admit_answer(addr(2))).count() as u64;
        let most = AMPLIFICATION * 100 * SHORTEST as u64;
        assert_eq!(more, (most - sent) / CHALLENGE_BYTES, "no more than what came allows");
        assert!(w.path.admit_answer(addr(1)), "where the peer is everything goes");
    }

    #[test]
    fn copies_from_many_addresses_do_not_push_out_the_one_that_is_heard() {
        let mut w = World::new();
        w.hear(0, addr(2), true, 100);
        let (_, token) = w.challenge(0).expect("a challenge");
        for n in 3..100 {
            w.hear(u64::from(n), addr(n), true, 100);
            w.hear(u64::from(n), addr(2), true, 100);
            assert!(w.path.candidates.len() <= MAX_CANDIDATES);
        }
        assert!(w.path.on_response(addr(2), token));
    }
}
