//! When the line is wanted, and which carrier it is.

use units::{ByteCount, Duration, Instant};

use super::config::CarrierConfig;
use super::demand::Pending;
use super::line::{slow, stopped};
use super::state::{Reason, State, Undropped};
use super::{CarrierId, Command, Manager, Order, Work};
use crate::money::Money;
use crate::rules::Action;
use crate::tariff::{Call, Rates};

impl Manager {
    /// Raises what is due.
    pub(super) fn raise(&mut self, now: Instant) {
        if (0..self.lines.len()).all(|at| self.command_of(at) == Command::Down) {
            return;
        }
        self.raise_ordered(now);
        for (rule, reason) in self.due_rules(now) {
            self.serve(now, rule, &reason);
        }
        self.keep_order_up(now);
    }

    /// `link up` is done when a line is up; from then on it is as if somebody had used it. What is
    /// there by itself is no line.
    fn keep_order_up(&mut self, now: Instant) {
        if self.command != Command::Up {
            return;
        }
        if let Some(line) = self.lines.iter_mut().find(|l| l.config.dialled && l.is_up()) {
            line.used = Some((now, Reason::Ordered));
            self.command = Command::Auto;
            self.dirty = true;
        }
    }

    /// The rules under which a line is wanted now, and for what. Sets timers for the others.
    pub(super) fn due_rules(&mut self, now: Instant) -> Vec<(usize, Reason)> {
        let mut due = Vec::new();
        let mut later = Vec::new();
        if matches!(self.command, Command::Up | Command::Hold) {
            due.push((self.config.rules.len() - 1, Reason::Ordered));
        }
        due.extend(self.rules_in_use(now));
        for pending in self.pending() {
            match self.due(now, &pending) {
                Some(at) if at <= now => {
                    let rule = self.config.rules.get(pending.rule).name.clone();
                    due.push((pending.rule, Reason::Flow { flow: pending.oldest.clone(), rule }));
                }
                Some(at) => later.push(at),
                None => {}
            }
        }
        for at in later {
            self.want(now, at, "what is gathered");
        }
        due
    }

    /// What waits under rules that may raise the line.
    pub(super) fn pending(&self) -> impl Iterator<Item = Pending<'_>> {
        self.demand.all().filter(|p| self.config.rules.get(p.rule).then != Action::Never)
    }

    /// When what waits under a rule raises a line, which may have quiet hours. `None`: not by the
    /// clock.
    pub(super) fn raises_at(&self, now: Instant, pending: &Pending<'_>) -> Option<Instant> {
        let at = self.due(now, pending)?;
        if self.config.rules.get(pending.rule).through_quiet {
            return Some(at);
        }
        let all = self.ranked(now, pending.rule).into_iter().map(|at| &self.lines[at].config);
        let open = |line: &CarrierConfig| line.quiet.until(self.wall(at), false);
        all.filter(|line| line.dialled).filter_map(open).min().map(|quiet| at + quiet)
    }

    /// Do quiet hours put off, or keep from it, what would raise a line?
    pub(super) fn is_held_by_quiet(&self, now: Instant, pending: &Pending<'_>) -> bool {
        let Some(due) = self.due(now, pending) else { return false };
        let ranked = self.ranked(now, pending.rule);
        let has_line = ranked.into_iter().any(|at| self.lines[at].config.dialled);
        has_line && self.raises_at(now, pending) != Some(due)
    }

    /// When what waits under a rule wants a line. `None`: not by the clock.
    pub(super) fn due(&self, now: Instant, pending: &Pending<'_>) -> Option<Instant> {
        let rule = self.config.rules.get(pending.rule);
        let wall = self.wall(now);
        match &rule.then {
            Action::Never => None,
            Action::Raise => Some(now),
            Action::Batch { amount, age, hours } => {
                let full = amount.filter(|a| pending.bytes >= *a).map(|_| now);
                let old = age.map(|age| (pending.since + age).max(now));
                let hour = hours.as_ref().and_then(|h| h.until(wall, true)).map(|d| now + d);
                [full, old, hour].into_iter().flatten().min()
            }
        }
    }

    /// Sees to it that a carrier is there for a rule. An order is for a line, whatever is there by
    /// itself: a line that stands beside a carrier can be tried by hand.
    fn serve(&mut self, now: Instant, rule: usize, reason: &Reason) {
        let all = self.config.rules.get(rule).all;
        let is_ordered = matches!(reason, Reason::Ordered);
        for at in self.ranked(now, rule) {
            let line = &self.lines[at];
            if is_ordered && !line.config.dialled {
                continue;
            }
            let trusted = line.distrusted(now);
            let quiet = self.quiet_until(now, at, rule, reason);
            match &line.state {
                state if state.carries() && trusted.is_none() && !all => return,
                State::Dialling { .. } if !all => return,
                State::Down { .. } if self.command_of(at) == Command::Down => {}
                State::Down { .. } if line.config.dialled && quiet.is_some() => {
                    if let Some(end) = quiet.flatten() {
                        self.want(now, end, "the end of quiet hours");
                    }
                }
                State::Down { .. } if line.may_dial(now) && self.affordable(now, at) => {
                    // Where no host can pay for this line another one may cost less.
                    let Some(reason) = self.paid_reason(now, at, rule, reason) else { continue };
                    self.dial(now, at, reason);
                    if !all {
                        return;
                    }
                }
                State::Down { .. } if line.config.dialled => {
                    let again = line.may_dial_at();
                    if again > now {
                        self.want(now, again, "a redial");
                    }
                }
                _ => {}
            }
            if let Some(until) = trusted {
                self.want(now, until, "a carrier's trial");
            }
        }
    }

    /// The reason, or that of another flow under the same rule, whose host's budget pays the
    /// beginning of a call on this line.
    fn paid_reason(&self, now: Instant, at: usize, rule: usize, reason: &Reason) -> Option<Reason> {
        let Reason::Flow { flow, rule: name } = reason else { return Some(reason.clone()) };
        let mut flows = std::iter::once(flow).chain(self.demand.under(rule));
        let flow = flows.find(|flow| self.host_pays(now, at, &flow.host))?.clone();
        Some(Reason::Flow { flow, rule: name.clone() })
    }

    pub(super) fn affordable(&self, now: Instant, at: usize) -> bool {
        let under_way = self.lines[at].config.under_way.0;
        if stopped(self.rates(at), self.month_bytes(at).saturating_add(under_way)) {
            return false;
        }
        self.left_for(at).is_none_or(|left| self.begins_within(now, at, left))
    }

    /// Is so much money enough for the beginning of a call, and for more bytes than are under way?
    pub(super) fn begins_within(&self, now: Instant, at: usize, money: Money) -> bool {
        let call = Call::beginning(self.wall(now), ByteCount(self.month_bytes(at)));
        let more = self.rates(at).bytes_within(&call, money);
        let is_more = more.is_none_or(|more| more > self.lines[at].config.under_way);
        self.pays_beginning(now, at, money) && is_more
    }

    /// Is so much money enough for the beginning of a call?
    pub(super) fn pays_beginning(&self, now: Instant, at: usize, money: Money) -> bool {
        let call = Call::beginning(self.wall(now), ByteCount(self.month_bytes(at)));
        self.rates(at).price(&call) <= money
    }

    /// Does money keep from being raised each line that is meant, which may be one alone?
    pub fn lacks_money(&self, now: Instant, which: Option<CarrierId>) -> bool {
        let all = which.map_or(0..self.lines.len(), |one| one.0..one.0 + 1);
        self.cannot_pay(now, all)
    }

    /// Can none of these lines be paid? What is there by itself is no line.
    pub(super) fn cannot_pay(&self, now: Instant, all: impl IntoIterator<Item = usize>) -> bool {
        let is_line = |at: &usize| self.lines.get(*at).is_some_and(|line| line.config.dialled);
        let mut lines = all.into_iter().filter(is_line).peekable();
        let has_call = |at: usize| self.lines[at].call.is_some();
        lines.peek().is_some() && lines.all(|at| !has_call(at) && !self.affordable(now, at))
    }

    /// Does the budget allow more bytes than are under way, on a carrier that begins anew?
    pub(super) fn allows_bytes(&self, now: Instant, at: usize) -> bool {
        let Some(left) = self.left_for(at) else { return true };
        let call = Call::beginning(self.wall(now), ByteCount(self.month_bytes(at)));
        let more = self.rates(at).bytes_within(&call, left);
        more.is_none_or(|more| more > self.lines[at].config.under_way)
    }

    pub(super) fn rates(&self, at: usize) -> &Rates {
        self.lines[at].config.tariff.rates(&self.zone)
    }

    fn month_bytes(&self, at: usize) -> u64 {
        let call = self.lines[at].call.as_ref();
        call.map_or(self.lines[at].month_bytes, |c| c.bytes_before.0.saturating_add(c.bytes.0))
    }

    pub(super) fn dial(&mut self, now: Instant, at: usize, cause: Reason) {
        let attempt = self.lines[at].note_dialling(now);
        self.lines[at].undropped = Undropped::default();
        self.out.push_back(Work::Dial { carrier: CarrierId(at), attempt });
        self.set_state(at, State::Dialling { since: now, cause });
    }

    /// The carriers that a rule may use, the best first.
    pub(super) fn ranked(&self, now: Instant, rule: usize) -> Vec<usize> {
        let rule = self.config.rules.get(rule);
        let place = |at: usize| rule.carriers.iter().position(|n| *n == self.lines[at].config.name);
        let allowed = |at: &usize| rule.carriers.is_empty() || place(*at).is_some();
        let mut all: Vec<usize> = (0..self.lines.len()).filter(allowed).collect();
        all.sort_by_key(|at| {
            let line = &self.lines[*at];
            let slow = slow(self.rates(*at), self.month_bytes(*at));
            let cost = match self.config.order {
                Order::Priority => Money::ZERO,
                Order::Cost => self.expected_cost(now, *at),
            };
            let last = line.distrusted(now).is_some();
            (last, slow, place(*at).unwrap_or(0), cost, line.config.priority, *at)
        });
        all
    }

    /// All carriers as they would be chosen for what no rule is for, the best first.
    pub fn ranking(&self, now: Instant) -> Vec<CarrierId> {
        let all = self.ranked(now, self.config.rules.len() - 1);
        all.into_iter().map(CarrierId).collect()
    }

    /// What it would cost to carry what waits, or a minute, whichever is longer.
    fn expected_cost(&self, now: Instant, at: usize) -> Money {
        let bytes = self.pending().map(|p| p.bytes.0).fold(10_000, u64::saturating_add);
        let bytes = ByteCount(bytes);
        let elapsed = self.lines[at].config.rate.time_for(bytes);
        let elapsed = elapsed.max(Duration::from_secs(60));
        let bytes_before = ByteCount(self.month_bytes(at));
        self.rates(at).price(&Call { start: self.wall(now), elapsed, bytes, bytes_before })
    }

    /// The lines that carry a rule's traffic now, the best first.
    pub(super) fn serving(&self, now: Instant, rule: usize) -> Vec<usize> {
        let all = self.config.rules.get(rule).all;
        let up = |at: &usize| self.lines[*at].state.carries();
        let up = self.ranked(now, rule).into_iter().filter(up);
        up.take(if all { usize::MAX } else { 1 }).collect()
    }
}
