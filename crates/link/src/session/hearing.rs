//! Which of the two directions are alive (L-LO-6, L-LO-7).
//!
//! A link may fail one way only: a terminal whose transmitter broke, a return channel
//! without power. Each side then knows a half. One receives nothing, though it asks; the
//! other hears those questions, and that nothing of its own is ever confirmed.

use units::{ByteCount, Duration, Instant};

use super::path::Path;

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
    /// The peer is heard and reports nothing at all of what was sent since then (L-LO-8).
    NothingReported {
        /// When what is not reported began to leave.
        since: Instant,
    },
}

/// What tells that the peer does not hear this node.
#[derive(Clone, Copy, Default)]
pub(super) struct Hearing {
    /// The first report since the peer confirmed something that confirms nothing.
    first: Option<Instant>,
    /// It has been so for long: more is asked, until it is enough to judge by.
    in_doubt: bool,
    /// The peer does not hear what was sent since then, or does not tell.
    unheard: Option<Instant>,
    /// It sends no reports.
    withheld: bool,
    /// The first packet of a peer that owes a report since the last.
    owing: Option<Instant>,
}

/// Of so many packets in a row none has arrived: where half of all are lost, about once in
/// 10^6 hours, if 16 leave each second. Unlike questions without an answer that does not
/// depend on the losses on the way back.
const ENOUGH: u64 = 36;
/// In doubt the peer is asked so often, where the link takes eight times what a question does.
const OFTEN: Duration = Duration::from_millis(250);
/// So many times what a report may take at most is no report at all ...
const REPORTS_OWED: u64 = 4;
/// ... and never less.
const LEAST_OWED: Duration = Duration::from_secs(10);
/// Bytes of eight questions.
const QUESTIONS: ByteCount = ByteCount(640);

impl Path {
    /// Which directions are alive, as far as this side knows.
    pub(crate) fn reach(&self) -> Reach {
        match self.hearing.unheard {
            Some(since) if self.hearing.withheld => Reach::NothingReported { since },
            Some(since) => Reach::TransmitDead { since },
            None if self.silent => Reach::NothingReceived { since: self.last_heard },
            None => Reach::Both,
        }
    }

    /// How long nothing may be confirmed, or heard, before that means something.
    /// Where another path may carry everything instead, less is lost by a mistake.
    pub(super) fn patience(&self) -> Duration {
        let (rtt, second) = (self.rtt.smoothed(), Duration::from_secs(1));
        if self.is_beside_others { rtt.times(3).max(second) } else { rtt.times(2) + second }
    }

    /// A packet of the peer's came. Who waits for an answer asks every max(2 s, 2 RTT), or as
    /// its line lets it (L-LO-5): after a longer pause the other direction was dark as well,
    /// and what the peer says now may have left before it heard anything.
    pub(super) fn hear(&mut self, now: Instant) {
        let dark = now.since(self.last_heard);
        let full = self.config.receive_rate.time_for(ByteCount(u64::from(self.config.packet)));
        let asks = Duration::from_secs(2).max(self.rtt.smoothed().times(2));
        if dark > asks.max(self.report_overdue() + full).times(2) {
            let Hearing { unheard, withheld, .. } = self.hearing;
            self.hearing = Hearing { unheard, withheld, ..Hearing::default() };
        }
        if dark >= self.rtt.longest_pause() {
            self.rtt.doubt(now);
        }
        if self.hearing.unheard.is_none() {
            self.go_on(now, dark);
        }
        self.last_heard = now;
        self.heard_here = true;
        self.judge_reports(now);
    }

    /// A peer that is heard reports once in a round trip at least (L-RE-2). One that speaks and
    /// does not would have everything kept for it that was ever sent.
    fn judge_reports(&mut self, now: Instant) {
        if now.since(self.sent.reported()) < LEAST_OWED || self.hearing.unheard.is_some() {
            self.hearing.owing = None;
            return;
        }
        let Some(oldest) = self.sent.oldest_in_flight() else { return };
        let owing = *self.hearing.owing.get_or_insert(now);
        let owed = (self.patience() + self.overdue()).times(REPORTS_OWED);
        if now.since(owing.max(oldest)) >= owed.max(LEAST_OWED) {
            (self.hearing.unheard, self.hearing.withheld) = (Some(oldest), true);
            self.silent = true;
        }
    }

    /// A report came, whose newest packet is `hi`, or a question of a peer that has nothing
    /// to report. `news`: it told of something for the first time.
    pub(super) fn judge_hearing(&mut self, now: Instant, hi: Option<u64>, news: bool) {
        if news {
            return self.on_heard_by_peer(now);
        }
        (self.hearing.owing, self.hearing.withheld) = (None, false);
        if self.sent.confirmed() != hi {
            return; // It was overtaken.
        }
        let Some(oldest) = self.sent.oldest_in_flight() else { return };
        let first = *self.hearing.first.get_or_insert(now);
        // What left before then it would speak of.
        let told = now - self.overdue();
        let since = now.since(first.max(oldest));
        if oldest > told || since < self.patience() + self.on_line() {
            return;
        }
        let next = hi.map_or(0, |n| n + 1);
        let lost = self.sent.first_since(told).saturating_sub(next);
        self.hearing.in_doubt = lost < ENOUGH;
        if lost >= ENOUGH && self.hearing.unheard.is_none() {
            self.hearing.unheard = Some(oldest);
            self.silent = true;
        }
    }

    /// How often the peer is asked while it is in doubt whether it hears this node.
    pub(super) fn doubt_interval(&self) -> Option<Duration> {
        let often = OFTEN.max(self.pacer.rate().time_for(QUESTIONS));
        (self.hearing.in_doubt && !self.silent).then_some(often)
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
