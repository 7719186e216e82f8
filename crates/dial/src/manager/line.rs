//! One carrier: its state, its call, and whether it is to be trusted.

use std::collections::VecDeque;

use units::{ByteCount, Duration, Instant};

use super::Command;
use super::config::CarrierConfig;
use super::each::OwnBudget;
use super::state::{DownCause, Reason, State, Undropped};
use crate::books::SessionId;
use crate::calendar::Wall;
use crate::money::{Currency, Money};
use crate::tariff::{Beyond, Call, Rates};

/// An hour, for the limit of diallings.
const HOUR: Duration = Duration::from_secs(3_600);
/// Losses within this time count together.
const FLAP_WINDOW: Duration = Duration::from_secs(600);
/// The longest time that a carrier must hold before it is trusted again.
const MOST_HOLD: Duration = Duration::from_secs(900);
/// Losses that are not held against a carrier.
const FREE_LOSSES: u32 = 2;

/// A call, or the time that a carrier is up by itself.
#[derive(Clone, Debug)]
pub(super) struct LineCall {
    pub session: SessionId,
    pub connected: Instant,
    pub start: Wall,
    pub bytes: ByteCount,
    /// What had crossed in the month when it began.
    pub bytes_before: ByteCount,
    pub incoming: bool,
    /// The prices that held when it began: a bill's do not change in mid-call.
    pub rates: Rates,
    /// What those are in.
    pub currency: Currency,
    /// It was asked to end then.
    pub ending: Option<Instant>,
    /// The price so far.
    pub price: Money,
}

impl LineCall {
    pub fn as_call(&self, now: Instant) -> Call {
        Call {
            start: self.start,
            elapsed: now.since(self.connected),
            bytes: self.bytes,
            bytes_before: self.bytes_before,
        }
    }
    /// Calls that came in are paid by who called.
    pub fn price_at(&self, now: Instant) -> Money {
        if self.incoming { Money::ZERO } else { self.rates.price(&self.as_call(now)) }
    }
    /// When the next step of time will have to be paid.
    pub fn next_step(&self, now: Instant) -> Option<Instant> {
        if self.incoming {
            return None;
        }
        let until = self.rates.paid_until(self.start, now.since(self.connected))?;
        Some(self.connected + until)
    }
    pub fn step_price(&self, now: Instant) -> Money {
        self.rates.next_step(self.start, now.since(self.connected))
    }
    /// The flat price's bytes are used up, or will be by those that are under way.
    pub fn stopped_by_fair_use(&self, under_way: ByteCount) -> bool {
        let crossed = self.bytes_before.0.saturating_add(self.bytes.0);
        stopped(&self.rates, crossed.saturating_add(under_way.0))
    }
}

/// True where the flat price's bytes are used up and it ends there.
pub(super) fn stopped(rates: &Rates, bytes: u64) -> bool {
    let flat = rates.flat.filter(|f| f.beyond == Beyond::Stopped);
    flat.is_some_and(|f| bytes >= f.fair_use.0)
}

/// True where they are used up and the carrier is slow from then on.
pub(super) fn slow(rates: &Rates, bytes: u64) -> bool {
    let flat = rates.flat.filter(|f| f.beyond == Beyond::Slow);
    flat.is_some_and(|f| bytes >= f.fair_use.0)
}

#[derive(Clone, Debug)]
pub(super) struct Line {
    pub config: CarrierConfig,
    pub state: State,
    pub call: Option<LineCall>,
    /// Bytes of this month in calls that are over.
    pub month_bytes: u64,
    /// What crossed last that holds the line, and when.
    pub used: Option<(Instant, Reason)>,
    /// Not dialled, or not trusted, before.
    pub not_before: Instant,
    /// Failures in a row.
    failures: u32,
    /// Diallings of the last hour.
    dialled_at: VecDeque<Instant>,
    /// Losses that count, and the last of them.
    losses: u32,
    last_loss: Instant,
    /// Calls in a row that ended while something waited and did not move.
    pub stalls: u32,
    /// It is there by itself, and the month's budget allows no more of its bytes.
    pub barred: bool,
    /// From the decision to hang up to the end of what is billed.
    pub hang_up_time: Duration,
    /// What the operator said of it alone; `None`: what was said of all holds.
    pub command: Option<Command>,
    pub own_budget: OwnBudget,
    /// It may still be up.
    pub undropped: Undropped,
}

impl Line {
    pub fn new(config: CarrierConfig) -> Line {
        Line {
            config,
            state: State::Down { since: Instant::ZERO, cause: DownCause::NotWanted },
            call: None,
            month_bytes: 0,
            used: None,
            not_before: Instant::ZERO,
            failures: 0,
            dialled_at: VecDeque::new(),
            losses: 0,
            last_loss: Instant::ZERO,
            stalls: 0,
            barred: false,
            hang_up_time: Duration::ZERO,
            command: None,
            own_budget: OwnBudget::default(),
            undropped: Undropped::default(),
        }
    }

    /// Dialling is allowed now.
    pub fn may_dial(&self, now: Instant) -> bool {
        let down = matches!(self.state, State::Down { .. });
        self.config.dialled && down && self.call.is_none() && now >= self.may_dial_at()
    }

    /// When it is allowed.
    pub fn may_dial_at(&self) -> Instant {
        let per_hour = self.config.redial.per_hour as usize;
        let full = self.dialled_at.len() >= per_hour;
        let hour = if full {
            self.dialled_at[self.dialled_at.len() - per_hour] + HOUR
        } else {
            Instant::ZERO
        };
        self.not_before.max(hour)
    }

    pub fn note_dialling(&mut self, now: Instant) -> u32 {
        while self.dialled_at.len() >= self.config.redial.per_hour as usize {
            self.dialled_at.pop_front();
        }
        self.dialled_at.push_back(now);
        self.failures + 1
    }

    /// Dialling came to nothing, or the peer was not reached.
    pub fn note_failure(&mut self, now: Instant) {
        let redial = self.config.redial;
        self.failures += 1;
        let pause = redial.first.times(1 << (self.failures - 1).min(20)).min(redial.most);
        if self.failures >= redial.attempts {
            self.failures = 0;
            self.not_before = now + redial.rest.max(pause);
        } else {
            self.not_before = now + pause;
        }
    }

    /// What waits did not move: another call would not help it soon.
    pub fn note_stall(&mut self, now: Instant) {
        let redial = self.config.redial;
        self.not_before = now + redial.first.times(1 << self.stalls.min(20)).min(redial.rest);
        self.stalls = self.stalls.saturating_add(1);
    }

    /// The peer was reached.
    pub fn note_success(&mut self) {
        self.failures = 0;
    }

    /// The carrier went without being asked to. `alone`: there is no other one.
    pub fn note_loss(&mut self, now: Instant, lasted: Duration, alone: bool) {
        if now.since(self.last_loss) > FLAP_WINDOW || lasted > FLAP_WINDOW {
            self.losses = 0;
        }
        self.losses += 1;
        self.last_loss = now;
        if self.losses > FREE_LOSSES {
            // Where who waits has no other line this one is tried again as after failures.
            let (first, most) = match alone {
                true => (self.config.redial.first, self.config.redial.most),
                false => (self.config.hold, MOST_HOLD),
            };
            let doubled = first.times(1 << (self.losses - FREE_LOSSES - 1).min(16));
            self.not_before = now + doubled.min(most);
        }
    }

    /// A carrier that is there by itself is trusted when it has held: the loss moved
    /// `not_before`, and so does each return.
    pub fn note_return(&mut self, now: Instant) {
        if self.losses > 0 && !self.config.dialled {
            let penalty = self.not_before.since(self.last_loss).max(self.config.hold);
            self.not_before = now + penalty;
        }
    }

    /// Not to be used while there is another one; and until when.
    pub fn distrusted(&self, now: Instant) -> Option<Instant> {
        let until = if self.config.dialled { Instant::ZERO } else { self.not_before };
        (until > now).then_some(until)
    }

    pub fn is_up(&self) -> bool {
        matches!(self.state, State::Up { .. } | State::Lingering { .. })
    }
}
