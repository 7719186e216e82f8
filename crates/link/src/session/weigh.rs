//! What a path carries of what it should, and trials of one that was left as poor.

use units::{BitRate, Duration, Instant};

use super::path::{Built, Path};
use super::trust::{MILLION, POOR_PPM, Trial, losses};
use crate::wire::{Frame, Writer};

/// A path is judged by the packets of a round trip, or of so long.
const WINDOW: Duration = Duration::from_millis(500);
/// How often the peer is taken to ask about a path that works no more, where this node does not.
const ASKED: Duration = Duration::from_millis(500);

impl Path {
    /// How long an answer takes on a path that is dead: since then it may have been back.
    fn hidden_for(&self) -> Duration {
        self.rtt.smoothed() + self.asks_often().unwrap_or(ASKED)
    }

    /// Follows whether the path works.
    pub(super) fn see_life(&mut self, now: Instant) {
        let (works, wanted) = (self.is_alive(), self.up && self.peer.says.up);
        let hidden = self.hidden_for();
        self.trust.see(now, works, wanted, hidden);
    }

    /// What it carries of what it should, in bits per second, as far as is known.
    pub(super) fn worth(&self) -> u64 {
        let arrives = self.trust.arriving_ppm();
        self.rate.status().capacity.as_bps().saturating_mul(arrives) / MILLION
    }

    fn window(&self) -> Duration {
        WINDOW.max(self.rtt.smoothed())
    }

    /// Does it work, and is it not left as poor?
    pub(super) fn is_carrying(&self) -> bool {
        self.is_alive() && !self.trust.is_poor()
    }

    /// It carries everything from now on: what it did before says nothing of that.
    pub(super) fn begin_to_weigh(&mut self, now: Instant) {
        self.trust.begin_to_weigh(now, &self.sent);
    }

    /// Is so little of what leaves told to arrive that another path may be better?
    pub(super) fn weigh(&mut self, now: Instant) -> bool {
        let window = self.window();
        self.trust.weigh(now, window, &self.sent, &self.rate)
    }

    /// It is left for another that carries more.
    pub(super) fn leave_as_poor(&mut self, now: Instant) {
        self.trust.leave(now);
    }

    // ---- a trial ---------------------------------------------------------------

    /// When the record changes by itself.
    pub(super) fn trust_timeout(&self, now: Instant) -> Option<Instant> {
        let at = self.trust.timeout()?;
        (self.is_alive() && at > now).then_some(at)
    }

    /// May packets that carry nothing be sent on it?
    pub(super) fn is_free(&self) -> bool {
        self.config.probe.is_some() || self.peer.says.free
    }

    /// A path that was poor and has held shows what it carries now, while something flows on
    /// another: packets that carry nothing leave at half of its rate. Without probes nobody
    /// wants to pay for them, and it is used to see.
    pub(super) fn follow_trial(&mut self, now: Instant, flows: bool) {
        if !self.trust.wants_trial(now) || !self.stands_by || !self.is_alive() {
            return;
        }
        let counts = self.sent.counts;
        match self.trust.trial {
            None if !self.is_free() => self.end_trial(now, true),
            None if flows => {
                self.trust.trial = Some(Trial::Sending(now + self.window(), counts));
                let half = BitRate::from_bps(self.rate.status().cap.as_bps() / 2);
                self.rate.try_again(half, self.sent.next_number());
                self.follow_rate(now);
            }
            Some(Trial::Sending(until, before)) if until <= now => {
                let told = now + self.overdue();
                self.trust.trial = Some(Trial::Waiting(told, before));
            }
            Some(Trial::Waiting(until, before)) if until <= now => {
                let (lost, told) = losses(&counts, &before);
                let few = told > 0 && lost * MILLION / told < POOR_PPM / 2;
                let rate = self.rate.status();
                let wide = rate.capacity.as_bps() >= rate.cap.as_bps() / 5 * 2;
                self.end_trial(now, few && wide);
            }
            _ => {}
        }
    }

    fn end_trial(&mut self, now: Instant, passed: bool) {
        self.trust.end_trial(now, passed);
        if !passed {
            return;
        }
        let cap = self.rate.status().cap;
        self.rate.try_again(cap, self.sent.next_number());
        self.follow_rate(now);
    }

    /// Does a trial send?
    pub(super) fn tries(&self, now: Instant) -> bool {
        self.stands_by && !self.holds_back() && self.trust.tries(now)
    }

    /// A packet of a trial: what was said of the path last, and padding.
    pub(super) fn write_trial(
        &mut self,
        now: Instant,
        buf: &mut [u8],
        sealing: u64,
    ) -> Option<Built> {
        if !self.tries(now) {
            return None;
        }
        buf.fill(0);
        if !Writer::new(buf).put(&Frame::Path(self.news())) {
            return None;
        }
        let size = buf.len() as u64 + sealing + self.wire_overhead();
        let number = self.book(now, size, false, true, false);
        Some(Built { number, len: buf.len(), hint: 0 })
    }
}
