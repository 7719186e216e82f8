//! Which of the two directions are alive (L-LO-6, L-LO-7).
//!
//! A link may fail one way only: a terminal whose transmitter broke, a return channel
//! without power. Each side then knows a half. One receives nothing, though it asks; the
//! other hears those questions, and that nothing of its own is ever confirmed.

use units::{Duration, Instant};

use super::Session;

/// What a node knows of the two directions of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Reach {
    /// Nothing speaks against either.
    #[default]
    Both,
    /// Nothing was received since then, though something should have been (L-LO-6).
    NothingReceived {
        /// When the last packet came, or the session began.
        since: Instant,
    },
    /// The peer is heard and confirms nothing of what was sent since then (L-LO-7).
    TransmitDead {
        /// When what is not confirmed began to leave.
        since: Instant,
    },
}

/// What tells that the peer does not hear this node.
#[derive(Clone, Copy, Default)]
pub(super) struct Hearing {
    /// The first packet of the peer's since it confirmed something, while something waited
    /// for that.
    first_heard: Option<Instant>,
    /// Packets that called for a report since the last that told something new, as far as
    /// they are counted, and when they were enough to judge by.
    asked: u32,
    enough_at: Option<Instant>,
    /// The peer does not hear what was sent since then.
    unheard: Option<Instant>,
}

/// Packets of which none is confirmed, to judge by: where half of all are lost that happens
/// less than once in 1,000.
const ENOUGH: u32 = 10;

impl Hearing {
    /// A packet left that calls for a report.
    pub fn on_asked(&mut self, now: Instant) {
        self.asked = self.asked.saturating_add(1);
        if self.asked == ENOUGH {
            self.enough_at = Some(now);
        }
    }
}

impl Session {
    /// Which directions are alive, as far as this side knows.
    pub fn reach(&self) -> Reach {
        match self.hearing.unheard {
            Some(since) => Reach::TransmitDead { since },
            None if self.silent => Reach::NothingReceived { since: self.last_heard },
            None => Reach::Both,
        }
    }

    /// How long nothing may be confirmed, or heard, before that means something.
    pub(super) fn patience(&self) -> Duration {
        self.rtt.smoothed().times(2) + Duration::from_secs(1)
    }

    /// A packet of the peer's came. Who waits for an answer asks every max(2 s, 2 RTT)
    /// (L-LO-5): after a longer pause the other direction was dark as well, and what the peer
    /// says now may have left before it heard anything.
    pub(super) fn hear(&mut self, now: Instant) {
        let dark = now.since(self.last_heard);
        if dark > Duration::from_secs(4).max(self.rtt.smoothed().times(4)) {
            self.hearing.first_heard = None;
        }
        if dark >= self.rtt.longest_pause() {
            self.rtt.doubt(now);
        }
        if self.hearing.unheard.is_none() {
            self.go_on(now, dark);
        }
        self.last_heard = now;
    }

    /// What the peer's packet said was taken.
    pub(super) fn judge_hearing(&mut self, now: Instant) {
        let waiting = self.sent.oldest_in_flight();
        let Some(oldest) = waiting.filter(|_| self.last_progress < now) else {
            return self.on_heard_by_peer(now);
        };
        let first = *self.hearing.first_heard.get_or_insert(now);
        let Some(enough) = self.hearing.enough_at else { return };
        let from = first.max(oldest).max(enough);
        if self.hearing.unheard.is_none() && now.since(from) >= self.patience() {
            self.hearing.unheard = Some(oldest);
            self.silent = true;
        }
    }

    /// The peer hears this node: it confirmed something, or a handshake was completed.
    pub(crate) fn on_heard_by_peer(&mut self, now: Instant) {
        if let Some(since) = std::mem::take(&mut self.hearing).unheard {
            self.go_on(now, now.since(since));
        }
    }

    /// The peer is heard again, and hears, after `dark`: streams go on.
    fn go_on(&mut self, now: Instant, dark: Duration) {
        if std::mem::take(&mut self.silent) {
            self.rate.on_return(dark, self.sent.next_number());
            self.follow_rate(now);
        }
    }
}
