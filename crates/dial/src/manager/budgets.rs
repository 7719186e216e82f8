//! Budgets of a month, the peer's and those of hosts, and who has used up theirs.
//!
//! A host's part of a call that is billed by time gets smaller while others use the call, too. A
//! host that was stopped in a call stays stopped until that has ended, so that it is not let go
//! and stopped again by turns.

use std::collections::{BTreeMap, BTreeSet};

use units::Instant;

use super::{Budget, CarrierId, Event, Manager, ManagerConfig, Work};
use crate::books::{Books, Host};
use crate::calendar::Wall;
use crate::money::Money;

/// A host that has used up the month's budget, or nearly.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HostSpending {
    /// Which.
    pub host: Host,
    /// What it has cost this month.
    pub spent: Money,
    /// What it may cost.
    pub of: Money,
    /// It raises and holds nothing, and is to use the link no more.
    pub stopped: bool,
    /// It waits, and what is left does not pay the beginning of a call: it raises nothing, and has
    /// its part in calls of others.
    pub short: bool,
}

/// What was told of a budget, once a month.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Told {
    Warning,
    Short,
    Stop,
}

/// How a month's budget stands that is used up, or nearly.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Spending {
    /// What was spent this month.
    pub spent: Money,
    /// What may be.
    pub of: Money,
    /// Nothing that costs more is begun.
    pub stopped: bool,
}

/// What is known of hosts' budgets.
#[derive(Clone, Debug)]
pub(super) struct HostBudgets {
    /// From the warning on.
    spending: BTreeMap<Host, HostSpending>,
    /// What budgets leave to hosts that wait or are in a session that goes on.
    left: BTreeMap<Host, Money>,
    /// Hosts may have spent something that are not in the sessions that go on.
    all: bool,
    /// How often others were stopped.
    changes: u64,
}

impl Default for HostBudgets {
    fn default() -> HostBudgets {
        HostBudgets { spending: BTreeMap::new(), left: BTreeMap::new(), all: true, changes: 0 }
    }
}

impl HostBudgets {
    pub fn look_at_all(&mut self) {
        self.all = true;
    }
}

impl Manager {
    /// Hosts that have used up the month's budget, or nearly.
    pub fn host_spending(&self) -> impl Iterator<Item = &HostSpending> {
        self.hosts.spending.values()
    }

    /// Hosts that are to use the link no more this month.
    pub fn stopped_hosts(&self) -> &BTreeSet<Host> {
        self.demand.stopped()
    }

    /// Another number: [`Manager::stopped_hosts`] are others.
    pub fn stopped_changes(&self) -> u64 {
        self.hosts.changes
    }

    pub(super) fn look_at_budgets(&mut self, now: Instant, books: &Books) {
        let wall = self.wall(now);
        (self.left, self.overspent, self.spending) = (None, false, None);
        if let Some(budget) = self.config.budget {
            let spent = books.spent_on(wall, self.config.currency, &self.config.peer);
            self.left = Some(budget.stop.minus(spent));
            self.overspent = spent > budget.stop;
            let stopped = self.begins_nothing_more(now, budget.stop.minus(spent));
            let warned = self.tell_budget(wall, None, spent, budget, stopped);
            let spending = Spending { spent, of: budget.stop, stopped };
            self.spending = (warned || stopped).then_some(spending);
        }
        if !self.config.host_budgets.is_empty() || !self.hosts.spending.is_empty() {
            self.look_at_hosts(now, books);
        }
    }

    /// Only those whose sum may be another than it was: in sessions that go on, who waits since a
    /// moment ago, and, when a session has ended or the month or the file is another, all.
    fn look_at_hosts(&mut self, at: Instant, books: &Books) {
        let (wall, currency) = (self.wall(at), self.config.currency);
        let now = books.spending(currency);
        let before = std::mem::take(&mut self.hosts.spending);
        let known = std::mem::take(&mut self.hosts.left);
        let mut hosts: BTreeSet<Host> = now.keys().chain(before.keys()).copied().collect();
        let all = std::mem::take(&mut self.hosts.all);
        if all {
            hosts.extend(books.hosts_before(wall, currency));
        }
        let waiting = self.demand.hosts().map(|host| (host, known.get(&host).copied()));
        let (fresh, same): (Vec<_>, Vec<_>) = waiting.partition(|(_, left)| all || left.is_none());
        hosts.extend(fresh.into_iter().map(|(host, _)| host));
        let same = same.into_iter().filter_map(|(host, left)| Some((host, left?)));
        self.hosts.left.extend(same.filter(|(host, _)| !hosts.contains(host)));
        let mut over = BTreeSet::new();
        for host in hosts {
            let Some(budget) = self.config.host_budget(&host) else { continue };
            let part = now.get(&host).copied();
            let spent = books.spent_before(wall, currency, host).plus(part.unwrap_or_default());
            let was = before.get(&host).is_some_and(|b| b.stopped && b.of == budget.stop);
            let stopped = spent >= budget.stop || was && part.is_some();
            self.hosts.left.insert(host, budget.stop.minus(spent));
            let warned = self.tell_budget(wall, Some(host), spent, budget, stopped);
            if warned || stopped {
                let spending = HostSpending { host, spent, of: budget.stop, stopped, short: false };
                self.hosts.spending.insert(host, spending);
            }
            if stopped {
                over.insert(host);
            }
        }
        let short = self.too_short(at, &over);
        for (host, left) in &short {
            let Some(Budget { stop: of, .. }) = self.config.host_budget(host) else { continue };
            let (host, spent) = (*host, of.minus(*left));
            let told = HostSpending { host, spent, of, stopped: false, short: true };
            self.hosts.spending.entry(host).or_insert(told).short = true;
            if self.told.insert((wall.day().month(), Some(host), Told::Short)) {
                self.out.push_back(Work::Tell(Event::HostShort { host, spent, of }));
            }
        }
        self.hosts.changes += u64::from(over != *self.demand.stopped());
        self.demand.leave_out(over, short.into_keys().collect());
    }

    /// Hosts that wait and whose budgets do not pay the beginning of a call on any line, with what
    /// is left of them. Of a call that goes on they pay a part, whatever its beginning costs.
    fn too_short(&self, now: Instant, over: &BTreeSet<Host>) -> BTreeMap<Host, Money> {
        let lines: Vec<usize> =
            (0..self.lines.len()).filter(|at| self.lines[*at].config.dialled).collect();
        if lines.is_empty() || lines.iter().any(|at| self.lines[*at].call.is_some()) {
            return BTreeMap::new();
        }
        let left = self.hosts.left.iter().map(|(host, left)| (*host, *left));
        let waiting = left.filter(|(host, _)| self.demand.waits(host) && !over.contains(host));
        waiting
            .filter(|(_, left)| !lines.iter().any(|at| self.pays_beginning(now, *at, *left)))
            .collect()
    }

    /// Does the budget of this host pay the beginning of a call on this line?
    pub(super) fn host_pays(&self, now: Instant, at: usize, host: &Host) -> bool {
        let left = self.hosts.left.get(host);
        left.is_none_or(|left| self.pays_beginning(now, at, *left))
    }

    /// A budget that is not used up may still be too small for anything that costs something.
    /// Carriers without a price go on, and say nothing of it.
    fn begins_nothing_more(&self, now: Instant, left: Money) -> bool {
        let is_over = |at: &usize| {
            let line = &self.lines[*at];
            line.barred || line.call.is_none() && !self.begins_within(now, *at, left)
        };
        let mut costly = (0..self.lines.len()).filter(|at| self.charges(CarrierId(*at))).peekable();
        let any_barred = self.lines.iter().any(|line| line.barred);
        any_barred || costly.peek().is_some() && costly.all(|at| is_over(&at))
    }

    /// Tells of a warning and of a stop once a month. Is the warning due?
    fn tell_budget(
        &mut self,
        wall: Wall,
        host: Option<Host>,
        spent: Money,
        budget: Budget,
        stopped: bool,
    ) -> bool {
        let warned = spent >= budget.stop.percent(budget.warn_percent);
        let month = wall.day().month();
        self.told.retain(|(of, ..)| *of == month);
        for (true_now, what) in [(warned, Told::Warning), (stopped, Told::Stop)] {
            if true_now && self.told.insert((month, host, what)) {
                let stopped = what == Told::Stop;
                let event = Event::Budget { host, spent, of: budget.stop, stopped };
                self.out.push_back(Work::Tell(event));
            }
        }
        warned
    }
}

impl ManagerConfig {
    /// A host's budget.
    pub fn host_budget(&self, host: &Host) -> Option<Budget> {
        let Host::Addr(addr) = host else { return None };
        let of = self.host_budgets.iter().find(|(prefix, _)| prefix.contains(*addr));
        of.map(|(_, budget)| *budget)
    }
}

impl Budget {
    /// Whose `spent` this is, from the warning on.
    pub fn spending(&self, host: Host, spent: Money) -> Option<HostSpending> {
        let stopped = spent >= self.stop;
        let warned = stopped || spent >= self.stop.percent(self.warn_percent);
        warned.then_some(HostSpending { host, spent, of: self.stop, stopped, short: false })
    }
}
