//! A carrier that could not be dropped may go on to cost: dropping it is tried again, with growing
//! pauses, until it succeeds or the line is raised.

use units::Instant;

use super::state::{State, Undropped};
use super::{CarrierId, Manager, Work};
use crate::books::Books;

/// Tries in a row after which a call counts as over. What drops a line may fail always where
/// nothing is up, and a line with a call is not raised.
const TRIES: u32 = 3;

impl Manager {
    /// What drops the carrier has succeeded: a call is over.
    pub fn handle_dropped(&mut self, now: Instant, carrier: CarrierId, books: &mut Books) {
        if let Some(line) = self.lines.get_mut(carrier.0) {
            line.undropped = Undropped::default();
        }
        self.handle_ended(now, carrier, "dropped", books);
    }

    /// What drops the carrier has failed, and the carrier may still be up. It is tried again while
    /// the line is down; a call counts as over after three tries.
    pub fn handle_drop_failed(&mut self, now: Instant, carrier: CarrierId, books: &mut Books) {
        let Some(line) = self.lines.get_mut(carrier.0) else { return };
        if !matches!(line.state, State::Down { .. }) {
            return;
        }
        line.undropped.fail(now);
        let is_over = line.undropped.failures >= TRIES;
        self.dirty = true;
        if is_over {
            self.handle_ended(now, carrier, "what drops it failed", books);
        }
    }

    /// Dropping the carrier failed, and has not succeeded since.
    pub fn may_be_up(&self, carrier: CarrierId) -> bool {
        self.lines.get(carrier.0).is_some_and(|line| line.undropped.failures > 0)
    }

    /// Lines that are still down are dropped anew.
    pub(super) fn drop_again(&mut self, now: Instant) {
        for at in 0..self.lines.len() {
            let line = &mut self.lines[at];
            let State::Down { cause, .. } = &line.state else { continue };
            let Some(again) = line.undropped.again else { continue };
            if now < again {
                self.want(now, again, "another try to drop");
                continue;
            }
            line.undropped.again = None;
            let cause = cause.clone();
            self.out.push_back(Work::HangUp { carrier: CarrierId(at), cause });
        }
    }
}
