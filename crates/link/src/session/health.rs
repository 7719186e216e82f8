//! The health of a path: which of its two directions work, and the evidence for it. What is heard,
//! and when, is in `liveness.rs`.

use units::{Duration, Instant};

/// The health of a path's two directions, as far as this node knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PathHealth {
    /// Nothing speaks against either direction.
    #[default]
    Alive,
    /// Nothing was received since then, though something should have been (L-LO-6).
    NothingReceived {
        /// When the last packet came, or the session began.
        since: Instant,
    },
    /// The peer is heard, but acknowledges nothing that was sent since then (L-LO-7).
    TransmitDead {
        /// When the oldest packet that is not acknowledged left.
        since: Instant,
    },
    /// The peer is heard, but sent no ACK at all since then (L-LO-8).
    NoAcks {
        /// When the oldest packet that is not acknowledged left.
        since: Instant,
    },
}

/// The evidence that the peer does not hear this node.
#[derive(Clone, Copy, Default)]
pub(super) struct Liveness {
    /// When the first ACK came that acknowledges nothing new, since the last that did.
    first_stale_ack: Option<Instant>,
    /// That was long ago: PINGs leave more often, until enough packets are in flight to judge by.
    probing: bool,
    /// Nothing that was sent since then is acknowledged: transmitting seems dead.
    tx_dead: Option<Instant>,
    /// It is because the peer sends no ACKs.
    no_acks: bool,
    /// When the first packet came from a peer that owed an ACK by then.
    acks_due_since: Option<Instant>,
}

/// Transmitting is dead if this many packets in a row were lost. At 50 % loss and 16 packets a
/// second that happens by chance about once in 10^6 hours. Unlike PINGs without an answer it does
/// not depend on losses on the way back.
const LOST_IN_A_ROW: u64 = 36;
/// A peer that is heard has so long for an ACK at least.
pub(super) const LEAST_ACK_TIMEOUT: Duration = Duration::from_secs(10);

impl Liveness {
    /// Which directions work; nothing is heard since `silent_since`, if it is so.
    pub fn health(&self, silent_since: Option<Instant>) -> PathHealth {
        match (self.tx_dead, silent_since) {
            (Some(since), _) if self.no_acks => PathHealth::NoAcks { since },
            (Some(since), _) => PathHealth::TransmitDead { since },
            (None, Some(since)) => PathHealth::NothingReceived { since },
            (None, None) => PathHealth::Alive,
        }
    }

    /// Does transmitting seem dead?
    pub fn is_tx_dead(&self) -> bool {
        self.tx_dead.is_some()
    }

    /// Is it in doubt whether the peer hears this node?
    pub fn is_probing(&self) -> bool {
        self.probing
    }

    /// The peer is heard after a pause: what is known holds, and evidence is gathered anew.
    pub fn forget_evidence(&mut self) {
        let Liveness { tx_dead, no_acks, .. } = *self;
        *self = Liveness { tx_dead, no_acks, ..Liveness::default() };
    }

    /// The peer, whose last ACK came then, is heard. Does it owe one?
    pub fn owes_ack(&mut self, now: Instant, last_ack: Instant) -> bool {
        let owes = now.since(last_ack) >= LEAST_ACK_TIMEOUT && self.tx_dead.is_none();
        if !owes {
            self.acks_due_since = None;
        }
        owes
    }

    /// It owes one for what left at `oldest`. If it has for `timeout`, it sends none: answers
    /// whether that is so.
    pub fn miss_acks(&mut self, now: Instant, oldest: Instant, timeout: Duration) -> bool {
        let due_since = *self.acks_due_since.get_or_insert(now);
        let misses = now.since(due_since.max(oldest)) >= timeout;
        if misses {
            (self.tx_dead, self.no_acks) = (Some(oldest), true);
        }
        misses
    }

    /// An ACK came that acknowledges nothing new.
    pub fn on_stale_ack(&mut self) {
        (self.acks_due_since, self.no_acks) = (None, false);
    }

    /// Such ACKs, that no later one overtook, come since then.
    pub fn stale_since(&mut self, now: Instant) -> Instant {
        *self.first_stale_ack.get_or_insert(now)
    }

    /// So many packets in a row were lost, and by now they would be acknowledged; `oldest`: when
    /// the oldest that is not left. Answers whether transmitting is found dead by it.
    pub fn on_lost_in_a_row(&mut self, lost: u64, oldest: Instant) -> bool {
        self.probing = lost < LOST_IN_A_ROW;
        let is_news = !self.probing && self.tx_dead.is_none();
        if is_news {
            self.tx_dead = Some(oldest);
        }
        is_news
    }

    /// The peer hears this node: answers since when it was taken not to.
    pub fn on_heard_by_peer(&mut self) -> Option<Instant> {
        std::mem::take(self).tx_dead
    }
}
