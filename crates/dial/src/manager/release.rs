//! When a line is given up: what ends it at once, and what only when it is not paid for any more.

use units::{Duration, Instant};

use super::state::{DownCause, Reason, State};
use super::{CarrierId, Command, Manager, Work};
use crate::money::Money;

impl Manager {
    pub(super) fn end_what_must(&mut self, now: Instant) {
        let mut left = self.left;
        for at in 0..self.lines.len() {
            let cause = match &self.lines[at].state {
                State::Down { .. } => None,
                State::Dialling { since, .. } => self.end_of_dialling(now, at, *since),
                State::Rising { .. } | State::Up { .. } | State::Lingering { .. } => {
                    self.end_of_call(now, at, &mut left)
                }
            };
            if let Some(cause) = cause {
                self.hang_up(now, at, cause);
            }
        }
    }

    fn end_of_dialling(&mut self, now: Instant, at: usize, since: Instant) -> Option<DownCause> {
        if self.command_of(at) == Command::Down {
            return Some(DownCause::Ordered);
        }
        let until = since + self.lines[at].config.dial_timeout;
        if now >= until {
            self.lines[at].note_failure(now);
            return Some(DownCause::Failed("no result in time".into()));
        }
        self.want(now, until, "a dialling's end");
        let ordered = matches!(self.lines[at].command, Some(Command::Up | Command::Hold));
        let due = self.due_rules(now);
        let wanted = due.iter().any(|(rule, reason)| {
            let is_quiet = self.quiet_until(now, at, *rule, reason).is_some();
            !is_quiet && self.ranked(now, *rule).contains(&at)
        });
        (!wanted && !ordered).then_some(DownCause::Needless)
    }

    fn end_of_call(
        &mut self,
        now: Instant,
        at: usize,
        left: &mut Option<Money>,
    ) -> Option<DownCause> {
        let line = &self.lines[at];
        let call = line.call.as_ref()?;
        if !line.config.dialled {
            return self.end_by_bytes(now, at);
        }
        if self.command_of(at) == Command::Down {
            return Some(DownCause::Ordered);
        }
        let incoming = call.incoming;
        if let State::Rising { since, .. } = line.state {
            let until = since + line.config.rise_timeout;
            if now >= until {
                self.lines[at].note_failure(now);
                return Some(DownCause::NoPeer);
            }
            self.want(now, until, "the peer's answer");
        }
        // Who called pays, and ends it.
        if incoming {
            return None;
        }
        self.end_by_length(now, at).or_else(|| self.end_by_money(now, at, left))
    }

    /// A carrier that is there by itself costs less only by bytes: its time passes without them.
    fn end_by_bytes(&mut self, now: Instant, at: usize) -> Option<DownCause> {
        let line = &self.lines[at];
        let call = line.call.as_ref()?;
        let more = call.rates.bytes_within(&call.as_call(now), self.left_for(at)?)?;
        let beyond = self.is_overspent(at) && !self.allows_bytes(now, at);
        let over = more <= line.config.under_way || beyond;
        self.lines[at].barred |= over;
        over.then_some(DownCause::Budget)
    }

    /// Carriers that the budget had set down carry again when it allows their bytes.
    pub(super) fn admit(&mut self, now: Instant) {
        for at in 0..self.lines.len() {
            let line = &self.lines[at];
            if line.barred && line.call.is_none() && self.allows_bytes(now, at) {
                self.lines[at].barred = false;
                self.out.push_back(Work::Admit { carrier: CarrierId(at) });
            }
        }
    }

    fn end_by_length(&mut self, now: Instant, at: usize) -> Option<DownCause> {
        let line = &self.lines[at];
        let until = line.call.as_ref()?.connected + line.config.max_call?;
        if now < until {
            self.want(now, until, "the longest call");
            return None;
        }
        let line = &mut self.lines[at];
        if matches!(line.state, State::Rising { .. }) {
            // It carried nothing: another that is as short would not, either.
            line.note_failure(now);
        } else {
            line.not_before = now + line.config.redial.first;
        }
        Some(DownCause::MaxCall)
    }

    /// A step of time or a block of bytes that the budget does not allow is not begun.
    fn end_by_money(
        &mut self,
        now: Instant,
        at: usize,
        left: &mut Option<Money>,
    ) -> Option<DownCause> {
        let call = self.lines[at].call.as_ref()?;
        let under_way = self.lines[at].config.under_way;
        if call.stopped_by_fair_use(under_way) {
            return Some(DownCause::Budget);
        }
        let own = self.lines[at].own_budget.left;
        let money = left.iter().copied().chain(own).min()?;
        let step = call.step_price(now);
        let next = call.next_step(now);
        // Bytes are told in sums, which end in the middle of a block: the rest of one that was too
        // much is no reason to go on.
        let more = call.rates.bytes_within(&call.as_call(now), money);
        if more.is_some_and(|more| more <= under_way || self.is_overspent(at)) {
            return Some(DownCause::Budget);
        }
        if step <= money {
            // Another line's step cannot have the same money.
            *left = left.map(|left| left.minus(step));
            return None;
        }
        let until = next? - self.guard(at);
        if now >= until {
            return Some(DownCause::Budget);
        }
        self.want(now, until, "the budget's end");
        None
    }

    /// Hangs up what nothing holds.
    pub(super) fn linger(&mut self, now: Instant) {
        for at in 0..self.lines.len() {
            let line = &self.lines[at];
            let own = line.config.dialled && line.call.as_ref().is_some_and(|c| !c.incoming);
            if !own || !line.is_up() {
                continue;
            }
            match self.held(now, at) {
                Some(reason) => {
                    if let State::Lingering { .. } = self.lines[at].state {
                        self.set_state(at, State::Up { since: now, cause: reason });
                    }
                }
                None => self.hang_up_in_time(now, at),
            }
        }
    }

    /// What holds a line at this moment, but for what crossed before.
    fn held(&mut self, now: Instant, at: usize) -> Option<Reason> {
        let is_held = match self.lines[at].command {
            Some(command) => command == Command::Hold,
            None => self.command == Command::Hold && self.best_line(now) == Some(at),
        };
        if is_held {
            return Some(Reason::Ordered);
        }
        let line = &self.lines[at];
        let moved = line.used.as_ref().map_or(line.state.since(), |(when, _)| *when);
        let pending = self.pending().find_map(|p| {
            let mine = self.serving(now, p.rule).contains(&at);
            let until = moved.max(p.since) + self.config.stalled;
            let rule = self.config.rules.get(p.rule).name.clone();
            let reason = || Reason::Flow { flow: p.oldest.clone(), rule };
            (mine && now < until).then(|| (until, reason()))
        });
        let (until, reason) = match pending {
            Some(found) => found,
            None => {
                let (when, reason) = line.used.clone()?;
                (when + line.config.idle, reason)
            }
        };
        if now >= until {
            return None;
        }
        // Before a step of time a shorter pause is enough; what waits still holds.
        let early = moved + self.lines[at].config.idle_at_step;
        if !self.waits_for(now, at) && self.step_begins_within_guard(now, at) && now >= early {
            return None;
        }
        self.want(now, until, "an idle line");
        if let Some(before) = self.release_before_step(now, at).filter(|b| *b > now) {
            self.want(now, before, "a step of time");
        }
        Some(reason)
    }

    /// The first line that carries, in the order of what no rule is for.
    fn best_line(&self, now: Instant) -> Option<usize> {
        let carries = |at: &usize| {
            let line = &self.lines[*at];
            line.config.dialled && line.state.carries()
        };
        self.ranked(now, self.config.rules.len() - 1).into_iter().find(carries)
    }

    /// Something waits for this line.
    fn waits_for(&self, now: Instant, at: usize) -> bool {
        self.pending().any(|p| self.serving(now, p.rule).contains(&at))
    }

    /// It is the moment to hang up before a step of time.
    fn step_begins_within_guard(&self, now: Instant, at: usize) -> bool {
        self.release_before_step(now, at).is_some_and(|before| now >= before)
    }

    /// So long before a step of time the line is hung up.
    fn guard(&self, at: usize) -> Duration {
        let guard = self.lines[at].config.guard;
        guard.max(self.lines[at].hang_up_time + guard.divided_by(2))
    }

    /// The last moment to hang up, from `now` on, before more time has to be paid. Hanging up takes
    /// time: where most of the guard before a step is over it is too late for that step.
    fn release_before_step(&self, now: Instant, at: usize) -> Option<Instant> {
        let call = self.lines[at].call.as_ref()?;
        let (guard, given) = (self.guard(at), self.lines[at].config.guard);
        let least = self.lines[at].hang_up_time + given.divided_by(4);
        let mut step = call.next_step(now)?;
        if now + least.max(given.divided_by(2)) > step {
            step = call.next_step(step + Duration::from_nanos(1))?;
        }
        Some(step - guard)
    }

    /// An idle line lingers while it is paid for.
    fn hang_up_in_time(&mut self, now: Instant, at: usize) {
        let line = &self.lines[at];
        let Some(call) = &line.call else { return };
        let shortest = now.max(call.connected + line.config.min_call);
        let step = self.release_before_step(shortest, at);
        let since = match line.state {
            State::Lingering { since, .. } => since,
            _ => now,
        };
        let until = step.map_or(shortest, |s| s.min(since + line.config.most_linger)).max(shortest);
        if now >= until {
            // What waits and does not move is no reason to call again at once.
            if self.waits_for(now, at) {
                self.lines[at].note_stall(now);
            }
            let stepwise = self.step_begins_within_guard(now, at);
            let cause = if stepwise { DownCause::BeforeStep } else { DownCause::Idle };
            return self.hang_up(now, at, cause);
        }
        let cause = line.used.as_ref().map_or(Reason::Ordered, |(_, reason)| reason.clone());
        if !matches!(line.state, State::Lingering { until: u, .. } if u == until) {
            self.set_state(at, State::Lingering { since, cause, until });
        }
        self.want(now, until, "the end of paid time");
    }

    fn hang_up(&mut self, now: Instant, at: usize, cause: DownCause) {
        if let Some(call) = &mut self.lines[at].call {
            call.ending = Some(now);
        }
        self.out.push_back(Work::HangUp { carrier: CarrierId(at), cause: cause.clone() });
        self.set_state(at, State::Down { since: now, cause });
    }
}
