//! What is said of one line alone, beside what holds for all of a peer's: an operator's word, a
//! month's budget, quiet hours, and that it is worth less than the next one for now.

use units::Instant;

use super::budgets::Spending;
use super::state::{Reason, State};
use super::{CarrierId, Command, Event, Manager, Work};
use crate::books::Books;
use crate::calendar::Month;
use crate::money::Money;

/// How a line stands with its own budget.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct OwnBudget {
    /// What it still allows; `None`: there is none.
    pub left: Option<Money>,
    /// More than that was spent.
    pub overspent: bool,
    /// From the warning on.
    pub spending: Option<Spending>,
    /// The month in which a warning was told, and that in which a stop was.
    pub told: [Option<Month>; 2],
}

impl Manager {
    /// The operator says something of one line. It holds before what was said of all.
    pub fn handle_line_command(&mut self, carrier: CarrierId, command: Command) {
        if let Some(line) = self.lines.get_mut(carrier.0).filter(|line| line.config.dialled) {
            line.command = Some(command);
            self.dirty = true;
        }
    }

    /// What the operator said of this line alone; `None`: what was said of all holds.
    pub fn line_command(&self, carrier: CarrierId) -> Option<Command> {
        self.lines.get(carrier.0)?.command
    }

    /// The line carried nothing any more, or what it goes by had no link, before it ended. Where
    /// there is another one that is the next to be raised, as after a dialling that failed.
    pub fn handle_useless(&mut self, now: Instant, carrier: CarrierId) {
        let lines = self.lines.iter().filter(|line| line.config.dialled).count();
        if let Some(line) = self.lines.get_mut(carrier.0).filter(|_| lines > 1) {
            line.note_failure(now);
        }
    }

    /// What the operator said of a line, or else of all.
    pub(super) fn command_of(&self, at: usize) -> Command {
        self.lines[at].command.unwrap_or(self.command)
    }

    /// Raises the lines that were ordered up by themselves.
    pub(super) fn raise_ordered(&mut self, now: Instant) {
        for at in 0..self.lines.len() {
            let line = &self.lines[at];
            let Some(command @ (Command::Up | Command::Hold)) = line.command else { continue };
            match &line.state {
                State::Down { .. } if line.may_dial(now) && self.affordable(now, at) => {
                    self.dial(now, at, Reason::Ordered);
                }
                State::Down { .. } => {
                    let again = line.may_dial_at();
                    if again > now {
                        self.want(now, again, "a redial");
                    }
                }
                // From now on it is as if somebody had used it.
                _ if line.is_up() && command == Command::Up => {
                    let line = &mut self.lines[at];
                    line.used = Some((now, Reason::Ordered));
                    line.command = Some(Command::Auto);
                    self.dirty = true;
                }
                _ => {}
            }
        }
    }

    /// Until when a line is in its quiet hours, if these ever end; `None`: it is not. They hold for
    /// all but orders and rules that say otherwise.
    pub(super) fn quiet_until(
        &self,
        now: Instant,
        at: usize,
        rule: usize,
        reason: &Reason,
    ) -> Option<Option<Instant>> {
        if matches!(reason, Reason::Ordered) || self.config.rules.get(rule).through_quiet {
            return None;
        }
        let quiet = &self.lines[at].config.quiet;
        let wall = self.wall(now);
        quiet.contains(wall).then(|| quiet.until(wall, false).map(|left| now + left))
    }

    /// Rules whose traffic crosses by a line now. It may deserve a better one.
    pub(super) fn rules_in_use(&self, now: Instant) -> Vec<(usize, Reason)> {
        let used = self.lines.iter().filter_map(|line| {
            let own = line.config.dialled && line.call.as_ref().is_some_and(|c| !c.incoming);
            let (when, reason) = line.used.as_ref().filter(|_| own && line.is_up())?;
            let Reason::Flow { flow, .. } = reason else { return None };
            let rule = self.config.rules.find(flow);
            (now < *when + line.config.idle).then(|| (rule, reason.clone()))
        });
        used.collect()
    }

    /// What a line may still cost: by its own budget and by that of all.
    pub(super) fn left_for(&self, at: usize) -> Option<Money> {
        self.left.into_iter().chain(self.lines[at].own_budget.left).min()
    }

    /// More than that was spent: bytes crossed before anybody could stop them.
    pub(super) fn is_overspent(&self, at: usize) -> bool {
        self.overspent || self.lines[at].own_budget.overspent
    }

    pub(super) fn look_at_own_budgets(&mut self, now: Instant, books: &Books) {
        let wall = self.wall(now);
        let month = wall.day().month();
        for at in 0..self.lines.len() {
            let line = &mut self.lines[at];
            let own = &mut line.own_budget;
            (own.left, own.overspent, own.spending) = (None, false, None);
            let Some(budget) = line.config.budget else { continue };
            let (peer, currency) = (&self.config.peer, line.config.tariff.currency());
            let spent = books.spent_over(wall, currency, peer, &line.config.name);
            let left = budget.stop.minus(spent);
            let begins = self.begins_within(now, at, left);
            let line = &mut self.lines[at];
            let own = &mut line.own_budget;
            (own.left, own.overspent) = (Some(left), spent > budget.stop);
            let warned = spent >= budget.stop.percent(budget.warn_percent);
            let stopped = line.barred || !begins && line.call.is_none();
            let spending = Spending { spent, of: budget.stop, stopped };
            own.spending = (warned || stopped).then_some(spending);
            let [of_warning, of_stop] = &mut own.told;
            for (is_true, stopped, told) in [(warned, false, of_warning), (stopped, true, of_stop)]
            {
                if is_true && *told != Some(month) {
                    *told = Some(month);
                    let (carrier, of) = (CarrierId(at), budget.stop);
                    let event = Event::LineBudget { carrier, spent, of, stopped };
                    self.out.push_back(Work::Tell(event));
                }
            }
        }
    }
}
