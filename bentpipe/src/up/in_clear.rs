//! Whether a peer's traffic goes in clear (`on_failure = "wire"`): by the system's ordinary routes,
//! while the peer does not answer.

use link::endpoint::{LinkEvent, Rekey};
use units::{Duration, Instant};

use crate::config::OnFailure;

/// How long a peer has been silent before its traffic goes in clear: longer than most
/// fades of a link.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a peer has for its first answer after the start.
const FIRST_PATIENCE: Duration = Duration::from_secs(10);

/// Whether a peer's traffic goes in clear.
#[derive(Clone, Copy, Debug, Default)]
pub struct Clear {
    /// From when on it may: the peer does not answer.
    from: Option<Instant>,
    /// It does, as far as the routes go.
    is: bool,
}

impl Clear {
    /// Of a peer that has not answered yet.
    pub fn new(now: Instant) -> Clear {
        Clear { from: Some(now + FIRST_PATIENCE), is: false }
    }

    /// Notes what happened to the link.
    pub fn on_link(&mut self, now: Instant, event: LinkEvent) {
        match event {
            LinkEvent::Up { .. } | LinkEvent::Back => self.from = None,
            LinkEvent::NothingReceived(_) | LinkEvent::TransmitDead(_) | LinkEvent::NoAcks(_) => {
                self.from = Some(now + PATIENCE)
            }
            LinkEvent::Closed => self.from = Some(now),
            LinkEvent::Rekey(Rekey::Erased) => self.from = Some(now + PATIENCE),
            LinkEvent::Moved(..)
            | LinkEvent::Using(..)
            | LinkEvent::Failing(_)
            | LinkEvent::OverItsPart
            | LinkEvent::Rekey(_) => {}
        }
    }

    /// Does it go in clear, as far as the routes go?
    pub fn is(&self) -> bool {
        self.is
    }

    /// When it is to go another way than it does.
    pub fn due(&self, on_failure: OnFailure) -> Option<Instant> {
        match self.is {
            true if on_failure == OnFailure::Wire && self.from.is_some() => None,
            true => Some(Instant::ZERO),
            false => self.from.filter(|_| on_failure == OnFailure::Wire),
        }
    }

    /// It goes the way that it is to go now.
    pub fn follow(&mut self, now: Instant, on_failure: OnFailure) {
        self.is = on_failure == OnFailure::Wire && self.from.is_some_and(|at| at <= now);
    }
}
