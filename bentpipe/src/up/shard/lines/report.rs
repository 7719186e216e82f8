//! What the operator is told of a peer's lines.

use control::{LineBudget, LineHost, LineReport, LineWaiting};
use dial::books::{Host, Name};
use dial::manager::{CarrierId, Command, HostSpending, Spending, State, WaitWhy, Why};
use dial::money::{Currency, Money};
use dial::tariff::Tariff;
use units::Instant;

use super::managed::{ManagedLine, WaitKey, Waiting};

/// Hosts that the status names; those that have spent most.
const MOST_TOLD: usize = 256;

impl ManagedLine {
    pub(super) fn report(&self, now: Instant) -> LineReport {
        let why = self.manager.why(now);
        let own = why.lines.first().filter(|_| self.each.len() == 1).and_then(|line| line.budget);
        let own = own.map(report_budget);
        let several = 0..if self.each.len() > 1 { self.each.len() } else { 0 };
        LineReport {
            command: command_name(why.command).to_owned(),
            zone: self.manager.zone().to_owned(),
            lines: several.map(|n| self.report_of(&why, n)).collect(),
            waiting: why
                .waiting
                .iter()
                .filter_map(|w| report_waiting(w, self.refuses(&w.rule)))
                .collect(),
            hosts: report_hosts(&why.hosts),
            budget: why.budget.map(report_budget).or(own),
            ..self.report_of(&why, self.shown())
        }
    }

    /// Were the hosts whose flows are noted under this rule told that the net is unreachable?
    /// Connections that stand wait all the same.
    fn refuses(&self, name: &Name) -> bool {
        let rules = &self.settings.manager;
        let of_rule = |(_, w): &(&WaitKey, &Waiting)| rules.rule_of(&w.flow).name == *name;
        let mut noted = self.waiting.iter().filter(of_rule).peekable();
        noted.peek().is_some()
            && noted.all(|(key, w)| {
                matches!(key, WaitKey::Packets(_)) && rules.rule_of(&w.flow).fail_fast
            })
    }

    /// What the log calls a line: its peer, and where that has several the line's carrier.
    pub(super) fn title(&self, n: usize) -> String {
        match (self.each.len(), self.settings.manager.carriers.get(n)) {
            (2.., Some(carrier)) => format!("{}, line {}", self.name, carrier.name),
            _ => self.name.clone(),
        }
    }

    /// The name of a line's carrier; empty: the peer has one line and no carriers.
    pub(super) fn carrier_title(&self, n: usize) -> String {
        let is_carrier = self.settings.lines[n].carrier.is_some();
        let carrier = self.settings.manager.carriers.get(n).filter(|_| is_carrier);
        carrier.map_or_else(String::new, |carrier| carrier.name.to_string())
    }

    /// Which of the lines stands for all: the first that is up, or is being raised, or the
    /// preferred one.
    pub(super) fn shown(&self) -> usize {
        let state = |n: &usize| self.manager.state(CarrierId(*n));
        let all = 0..self.each.len();
        let up = all.clone().find(|n| state(n).is_some_and(State::carries));
        let rising = || all.clone().find(|n| matches!(state(n), Some(State::Dialling { .. })));
        up.or_else(rising).unwrap_or(0)
    }

    /// What the operator is told of one line.
    fn report_of(&self, why: &Why, n: usize) -> LineReport {
        let state = self.manager.state(CarrierId(n));
        let cause = state.map(State::cause).unwrap_or_default();
        let line = why.lines.get(n);
        let own = line.and_then(|l| l.command).unwrap_or(why.command);
        LineReport {
            carrier: self.carrier_title(n),
            only_answers: self.only_answers(),
            state: state.map_or("down", State::name).to_owned(),
            cause: match self.manager.may_be_up(CarrierId(n)) {
                true => format!("{cause}; it may still be up: `drop` failed, and is tried again"),
                false => cause,
            },
            for_ms: line.map_or(0, |l| l.since.as_millis()),
            command: command_name(own).to_owned(),
            held_by: line.and_then(|l| l.used.as_ref()).map(|(by, _)| by.to_string()),
            used_ms_ago: line.and_then(|l| l.used.as_ref()).map(|(_, ago)| ago.as_millis()),
            hangs_up_in_ms: line.and_then(|l| l.hangs_up_in).map(|d| d.as_millis()),
            not_before_ms: line.and_then(|l| l.not_before).map(|d| d.as_millis()),
            price: line.and_then(|l| l.price).and_then(told_price),
            budget: line.and_then(|l| l.budget).map(report_budget),
            ..LineReport::default()
        }
    }
}

/// What is told of what waits under a rule. What was `refused` does not wait: it is told where it
/// raises the line for its hosts' next try, and not where it is for nothing.
fn report_waiting(w: &WaitWhy, refused: bool) -> Option<LineWaiting> {
    if refused && w.never {
        return None;
    }
    Some(LineWaiting {
        rule: w.rule.to_string(),
        oldest: w.oldest.clone(),
        flows: w.flows as u64,
        bytes: w.bytes.0,
        for_ms: w.waited.as_millis(),
        raises_in_ms: w.raises_in.map(|d| d.as_millis()),
        never: w.never,
        quiet: w.quiet,
        refused,
        lacks_money: w.lacks_money,
    })
}

/// What the operator is told of a price; nothing where there is no tariff, and so no currency.
fn told_price((price, currency): (Money, Currency)) -> Option<String> {
    (currency != Tariff::free().currency()).then(|| format!("{price} {currency}"))
}

fn report_budget((of, currency): (Spending, Currency)) -> LineBudget {
    LineBudget {
        spent: of.spent.to_string(),
        budget: of.of.to_string(),
        currency: currency.to_string(),
        stopped: of.stopped,
    }
}

fn command_name(command: Command) -> &'static str {
    match command {
        Command::Auto => "auto",
        Command::Up => "up",
        Command::Hold => "hold",
        Command::Down => "down",
    }
}

/// Tells the log of a budget: a host's, or that of all.
pub(super) fn tell_budget(peer: &str, host: Option<Host>, [spent, of]: [Money; 2], stopped: bool) {
    let what = match (host, stopped) {
        (_, false) if spent >= of => "a month's budget is used up",
        (_, false) => "a month's budget is nearly used up",
        (None, true) => "a month's budget is used up: nothing that costs more is begun",
        (Some(_), true) => "a month's budget is used up: its host is stopped where it costs more",
    };
    let host = host.map_or_else(|| "all hosts".to_owned(), |host| host.to_string());
    crate::log!(Warn, what, peer = peer, host = host, spent = spent, of = of);
}

/// What the operator is told of hosts' budgets, the dearest hosts first.
fn report_hosts(hosts: &[(HostSpending, Currency)]) -> Vec<LineHost> {
    let mut hosts = hosts.to_vec();
    hosts.sort_by_key(|(host, _)| std::cmp::Reverse((host.stopped, host.spent)));
    let told = |(of, currency): &(HostSpending, Currency)| LineHost {
        host: of.host.to_string(),
        spent: of.spent.to_string(),
        budget: of.of.to_string(),
        currency: currency.to_string(),
        stopped: of.stopped,
        short: of.short,
    };
    hosts.iter().take(MOST_TOLD).map(told).collect()
}

#[cfg(test)]
mod tests {
    use units::{ByteCount, Duration};

    use super::*;

    #[test]
    fn what_has_no_tariff_has_no_price() {
        let price = "0".parse().unwrap();
        assert_eq!(told_price((price, Tariff::free().currency())), None);
        let usd = "USD".parse().unwrap();
        assert_eq!(told_price((price, usd)).as_deref(), Some("0.00 USD"));
    }

    #[test]
    fn what_was_refused_is_told_only_where_it_raises_the_line() {
        let mut why = WaitWhy {
            rule: "web".into(),
            oldest: String::new(),
            flows: 1,
            bytes: ByteCount(60),
            waited: Duration::ZERO,
            raises_in: Some(Duration::ZERO),
            never: false,
            quiet: false,
            lacks_money: false,
        };
        assert!(report_waiting(&why, true).is_some_and(|told| told.refused));
        assert!(report_waiting(&why, false).is_some_and(|told| !told.refused));
        (why.never, why.raises_in) = (true, None);
        assert_eq!(report_waiting(&why, true), None);
        assert!(report_waiting(&why, false).is_some_and(|told| told.never));
    }
}
