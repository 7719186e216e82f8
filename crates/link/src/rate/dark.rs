//! What an outage does to the rate, where it is learned (L-RA-8, L-RA-13).
//!
//! Whatever leaves while nothing crosses is lost, and if the line goes on sending it, or the
//! link has another rate afterwards, as after a handover, it is also a queue. So where reports
//! stay away little leaves until one comes; if it tells of an outage, half of what was good
//! leaves for a round trip, which shows whether the line still takes that much.

use units::{BitRate, Duration, Instant};

use super::{Phase, Rate, RateMode};

/// The parts of the good rate that leave while reports stay away, and for a round trip after.
const WITHOUT_REPORTS: u64 = 4;
const AFTER_OUTAGE: u64 = 2;
/// After an outage the way may be another, and what was the least delay no measure of its queue:
/// the next queue that is let go is taken to be longer by this.
const UNSEEN: Duration = Duration::from_millis(20);

/// Round trips of orbits that are handed over.
const NEAR: Duration = Duration::from_millis(200);

/// What is left of an outage.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct After {
    /// Half of the rate leaves, until a report tells of this packet.
    pub half_until: Option<u64>,
    /// The line's queue was not empty for sure since.
    pub way_is_new: bool,
    /// What is known of the queue has been let go, and more of it is.
    pub goes_deeper: bool,
    /// The next probe may take a large step.
    pub is_eager: bool,
}

impl Rate {
    /// Is it worth to know at once when reports stay away?
    pub fn watches_reports(&self, rtt: Duration) -> bool {
        self.may_be_handed_over(rtt)
            && matches!(self.phase, Phase::Hold { .. } | Phase::Probe { .. })
    }

    /// May an outage be a handover, after which the link is another one?
    pub(super) fn may_be_handed_over(&self, rtt: Duration) -> bool {
        self.mode == RateMode::Learned && rtt < NEAR && !self.policed
    }

    /// Reports stay away.
    pub fn on_silence(&mut self) {
        self.phase = Phase::Dark;
        self.rate = self.good.divided_by(WITHOUT_REPORTS);
        self.jitter.interrupt();
    }

    /// An outage took packets that left before the newest that arrived. What came through
    /// meanwhile says nothing about the link.
    pub fn on_outage(&mut self, rtt: Duration, next_number: u64) {
        self.measure.forget_marks();
        self.jitter.interrupt();
        self.losses.forget();
        self.judged = None;
        self.dark = matches!(self.phase, Phase::Drain { .. });
        if self.may_be_handed_over(rtt) {
            self.after.way_is_new = true;
            self.after.is_eager = true;
            self.hold = Duration::ZERO;
            if matches!(self.phase, Phase::Hold { .. } | Phase::Probe { .. } | Phase::Dark) {
                self.after.half_until = Some(next_number);
                self.rate = self.good.divided_by(AFTER_OUTAGE);
                self.phase = Phase::Hold { until: Instant::ZERO };
            }
        }
    }

    /// A report came that tells of packet `number`, and of so long a queue.
    pub(super) fn end_dark(
        &mut self,
        now: Instant,
        number: u64,
        queueing: Duration,
        rtt: Duration,
        next_number: u64,
    ) {
        if let Phase::Dark = self.phase {
            self.rate = self.good;
            self.phase = Phase::Hold { until: Instant::ZERO };
        }
        let is_clear = queueing <= self.threshold();
        if is_clear && self.after.half_until.is_some_and(|n| number >= n) {
            self.after.half_until = None;
            if let Phase::Hold { .. } = self.phase {
                self.rate = self.good;
                self.phase = Phase::Hold { until: now + rtt };
                self.judge_anew(next_number);
            }
        }
    }

    /// The least rate at which what is told of now may have been sent.
    pub(super) fn least_sent(&self) -> BitRate {
        match self.after.half_until {
            Some(_) => self.good.divided_by(WITHOUT_REPORTS),
            None => self.rate,
        }
    }

    /// For how long more the queue is let go, when all of it that is known has gone.
    pub(super) fn deeper(&mut self) -> Option<Duration> {
        let more = std::mem::take(&mut self.after.way_is_new);
        self.after.goes_deeper = more;
        more.then_some(UNSEEN)
    }
}
