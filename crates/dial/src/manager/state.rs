//! The states of a line, and what led to each.

use std::fmt;

use units::{Duration, Instant};

use crate::books::{Account, Name};
use crate::rules::Flow;

/// The pause before dropping is tried a second time; it doubles, up to `MOST_PAUSE`.
const FIRST_PAUSE: Duration = Duration::from_secs(5);
const MOST_PAUSE: Duration = Duration::from_secs(300);

/// How dropping a line failed since it was raised.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Undropped {
    /// Tries in a row.
    pub failures: u32,
    /// When it is tried again; `None`: it is being tried.
    pub again: Option<Instant>,
}

impl Undropped {
    /// One more try has failed.
    pub fn fail(&mut self, now: Instant) {
        self.failures = self.failures.saturating_add(1);
        let pause = FIRST_PAUSE.times(1 << (self.failures - 1).min(16)).min(MOST_PAUSE);
        self.again = Some(now + pause);
    }
}

/// What raised a line, or holds it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reason {
    /// Traffic, by a rule.
    Flow {
        /// What waits, or crossed last.
        flow: Flow,
        /// The rule that is for it.
        rule: Name,
    },
    /// `link up` or `link hold`.
    Ordered,
    /// The peer called.
    Incoming,
    /// It is there by itself.
    Always,
}

impl Reason {
    /// Whom a session without bytes is booked on.
    pub(super) fn account(&self) -> Account {
        match self {
            Reason::Flow { flow, .. } => flow.account(),
            _ => Account { host: Default::default(), class: "".into(), service: "".into() },
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Flow { flow, rule } => write!(f, "{flow}, rule \"{rule}\""),
            Reason::Ordered => write!(f, "ordered from here"),
            Reason::Incoming => write!(f, "the peer called"),
            Reason::Always => write!(f, "always there"),
        }
    }
}

/// Why a line is down.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DownCause {
    /// It has not been wanted yet.
    NotWanted,
    /// Nobody used it.
    Idle,
    /// Nobody used it, and another step of time was about to be paid.
    BeforeStep,
    /// It had lasted as long as a call may.
    MaxCall,
    /// The month's budget does not allow the next step.
    Budget,
    /// `link down`.
    Ordered,
    /// Dialling came to nothing: what the modem told.
    Failed(Name),
    /// The carrier was there, and the peer was not reached over it.
    NoPeer,
    /// The call ended: what the modem told.
    Lost(Name),
    /// What it was dialled for is no longer there.
    Needless,
}

impl fmt::Display for DownCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DownCause::NotWanted => f.write_str("not wanted yet"),
            DownCause::Idle => f.write_str("idle"),
            DownCause::BeforeStep => f.write_str("idle before the next step of time"),
            DownCause::MaxCall => f.write_str("the longest call"),
            DownCause::Budget => f.write_str("the month's budget"),
            DownCause::Ordered => f.write_str("ordered from here"),
            DownCause::Failed(what) => write!(f, "dialling failed: {what}"),
            DownCause::NoPeer => f.write_str("the peer was not reached over the carrier"),
            DownCause::Lost(what) => write!(f, "lost: {what}"),
            DownCause::Needless => f.write_str("not needed any more"),
        }
    }
}

/// The state of a line, with its cause and since when.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum State {
    /// There is no carrier.
    Down {
        /// Since when.
        since: Instant,
        /// Why.
        cause: DownCause,
    },
    /// The modem dials.
    Dialling {
        /// Since when.
        since: Instant,
        /// What for.
        cause: Reason,
    },
    /// There is carrier, and the peer is being reached over it. Packets may cross.
    Rising {
        /// Since when.
        since: Instant,
        /// What for.
        cause: Reason,
    },
    /// The peer is reached.
    Up {
        /// Since when.
        since: Instant,
        /// What raised it.
        cause: Reason,
    },
    /// Nobody uses it, and it is paid for until then.
    Lingering {
        /// Since when.
        since: Instant,
        /// What used it last.
        cause: Reason,
        /// When it is hung up.
        until: Instant,
    },
}

impl State {
    /// Its name.
    pub fn name(&self) -> &'static str {
        match self {
            State::Down { .. } => "down",
            State::Dialling { .. } => "dialling",
            State::Rising { .. } => "rising",
            State::Up { .. } => "up",
            State::Lingering { .. } => "lingering",
        }
    }
    /// Since when.
    pub fn since(&self) -> Instant {
        match self {
            State::Down { since, .. }
            | State::Dialling { since, .. }
            | State::Rising { since, .. }
            | State::Up { since, .. }
            | State::Lingering { since, .. } => *since,
        }
    }
    /// Why, in words.
    pub fn cause(&self) -> String {
        match self {
            State::Down { cause, .. } => cause.to_string(),
            State::Dialling { cause, .. }
            | State::Rising { cause, .. }
            | State::Up { cause, .. }
            | State::Lingering { cause, .. } => cause.to_string(),
        }
    }
    /// True while packets may cross.
    pub fn carries(&self) -> bool {
        matches!(self, State::Rising { .. } | State::Up { .. } | State::Lingering { .. })
    }
}
