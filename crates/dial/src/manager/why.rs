//! `link why`: what raised the line, what holds it, and what comes next.

use std::fmt;

use units::{ByteCount, Duration, Instant};

use super::state::{Reason, State};
use super::{Command, HostSpending, Manager, Spending};
use crate::books::Name;
use crate::money::{Currency, Money};
use crate::rules::Action;

/// The answer for one peer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Why {
    /// The peer.
    pub peer: Name,
    /// What the operator said.
    pub command: Command,
    /// Its carriers.
    pub lines: Vec<LineWhy>,
    /// What waits, rule by rule.
    pub waiting: Vec<WaitWhy>,
    /// The month's budget, where it is used up, or nearly, and what it is in.
    pub budget: Option<(Spending, Currency)>,
    /// Hosts that have used up the month's budget, or nearly, with what budgets are in.
    pub hosts: Vec<(HostSpending, Currency)>,
}

/// One carrier.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LineWhy {
    /// Its name.
    pub carrier: Name,
    /// What the operator said of it alone.
    pub command: Option<Command>,
    /// Its state.
    pub state: State,
    /// For how long.
    pub since: Duration,
    /// What crossed last that holds it, and how long ago.
    pub used: Option<(Reason, Duration)>,
    /// A line that lingers is hung up in so long.
    pub hangs_up_in: Option<Duration>,
    /// A line that failed is not dialled for so long.
    pub not_before: Option<Duration>,
    /// It is left alone while there is another one.
    pub distrusted: bool,
    /// Its own budget of the month, where that is used up, or nearly.
    pub budget: Option<(Spending, Currency)>,
    /// The call's price so far.
    pub price: Option<(Money, Currency)>,
}

/// What waits under one rule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WaitWhy {
    /// The rule.
    pub rule: Name,
    /// One of the flows: the one that has waited longest.
    pub oldest: String,
    /// How many flows.
    pub flows: usize,
    /// How many bytes.
    pub bytes: ByteCount,
    /// Since the oldest began to wait.
    pub waited: Duration,
    /// When it raises the line; zero: now. `None`: not by the clock.
    pub raises_in: Option<Duration>,
    /// The rule raises the line for nothing.
    pub never: bool,
    /// It would raise the line sooner, or at all, but for the line's quiet hours.
    pub quiet: bool,
    /// Money keeps from being raised each line that may serve it.
    pub lacks_money: bool,
}

impl Manager {
    /// Why the link is as it is.
    pub fn why(&self, now: Instant) -> Why {
        let waiting = self.demand.all().map(|p| WaitWhy {
            rule: self.config.rules.get(p.rule).name.clone(),
            oldest: p.oldest.to_string(),
            flows: p.flows,
            bytes: p.bytes,
            waited: now.since(p.since),
            raises_in: self.raises_at(now, &p).map(|at| at.since(now)),
            quiet: self.is_held_by_quiet(now, &p),
            never: self.config.rules.get(p.rule).then == Action::Never,
            lacks_money: self.cannot_pay(now, self.ranked(now, p.rule)),
        });
        Why {
            peer: self.config.peer.clone(),
            command: self.command,
            waiting: waiting.collect(),
            budget: self.spending.map(|spending| (spending, self.config.currency)),
            hosts: self.host_spending().map(|host| (*host, self.config.currency)).collect(),
            lines: self.lines.iter().map(|line| line_why(line, now)).collect(),
        }
    }
}

fn line_why(line: &super::Line, now: Instant) -> LineWhy {
    let until = match line.state {
        State::Lingering { until, .. } => Some(until.since(now)),
        _ => None,
    };
    let down = matches!(line.state, State::Down { .. }) && line.config.dialled;
    let again = line.may_dial_at();
    LineWhy {
        carrier: line.config.name.clone(),
        command: line.command,
        state: line.state.clone(),
        since: now.since(line.state.since()),
        used: line.used.as_ref().map(|(when, reason)| (reason.clone(), now.since(*when))),
        hangs_up_in: until,
        not_before: (down && again > now).then(|| again.since(now)),
        distrusted: line.distrusted(now).is_some(),
        budget: line.own_budget.spending.map(|of| (of, line.config.tariff.currency())),
        price: line.call.as_ref().map(|c| (c.price, c.currency)),
    }
}

/// Whole seconds: nobody reads more.
fn seconds(d: Duration) -> Duration {
    Duration::from_secs(d.as_millis().div_ceil(1_000))
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let command = match self.command {
            Command::Auto => "",
            Command::Up => ", ordered up",
            Command::Hold => ", ordered to hold",
            Command::Down => ", ordered down",
        };
        writeln!(f, "{}{command}", self.peer)?;
        for line in &self.lines {
            writeln!(f, "  {line}")?;
        }
        for wait in &self.waiting {
            writeln!(f, "  {wait}")?;
        }
        if let Some((spending, currency)) = &self.budget {
            writeln!(f, "  the month's budget is {spending} {currency}")?;
        }
        for (host, currency) in &self.hosts {
            writeln!(f, "  {host} {currency}")?;
        }
        Ok(())
    }
}

impl fmt::Display for HostSpending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match (self.stopped, self.short) {
            (true, _) => "is stopped by its budget",
            (false, true) => "raises no line: less than a call's beginning is left of its budget",
            (false, false) => "nearly used up its budget",
        };
        write!(f, "{} {what}: {} of {}", self.host, self.spent, self.of)
    }
}

impl fmt::Display for Spending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.stopped { "used up" } else { "nearly used up" };
        write!(f, "{what}: {} of {}", self.spent, self.of)
    }
}

impl fmt::Display for LineWhy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = &self.state;
        write!(f, "{} {} for {}", self.carrier, state.name(), seconds(self.since))?;
        match state {
            State::Down { cause, .. } => write!(f, ": {cause}")?,
            State::Dialling { cause, .. } | State::Rising { cause, .. } => {
                write!(f, " for {cause}")?
            }
            State::Up { cause, .. } | State::Lingering { cause, .. } => {
                write!(f, ", raised by {cause}")?;
            }
        }
        if let (true, Some((reason, ago))) = (state.carries(), &self.used) {
            write!(f, "; last used {} ago by {reason}", seconds(*ago))?;
        }
        match self.command {
            None => {}
            Some(Command::Auto) => write!(f, "; left to the rules")?,
            Some(Command::Up) => write!(f, "; ordered up")?,
            Some(Command::Hold) => write!(f, "; ordered to hold")?,
            Some(Command::Down) => write!(f, "; ordered down")?,
        }
        if let Some(left) = self.hangs_up_in {
            write!(f, "; nobody needs it, hangs up in {}", seconds(left))?;
        }
        if let Some(left) = self.not_before {
            write!(f, "; not dialled for another {}", seconds(left))?;
        }
        if self.distrusted {
            write!(f, "; left alone until it holds")?;
        }
        if let Some((spending, currency)) = &self.budget {
            write!(f, "; its month's budget is {spending} {currency}")?;
        }
        if let Some((price, currency)) = self.price {
            write!(f, "; {price} {currency} so far")?;
        }
        Ok(())
    }
}

impl fmt::Display for WaitWhy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flows = if self.flows == 1 { "1 flow".into() } else { format!("{} flows", self.flows) };
        let (bytes, rule, waited) = (self.bytes, &self.rule, seconds(self.waited));
        write!(f, "{flows} with {bytes} wait under rule \"{rule}\", the oldest ")?;
        write!(f, "({}) for {waited}", self.oldest)?;
        match self.raises_in {
            None if self.never => write!(f, "; they never raise the line"),
            None if self.quiet => write!(f, "; quiet hours that never end keep the line down"),
            None => write!(f, "; they raise nothing by themselves"),
            Some(_) if self.lacks_money => write!(f, "; money is left for no line"),
            Some(Duration::ZERO) => write!(f, "; they want the line now"),
            Some(left) if self.quiet => {
                write!(f, "; they raise the line after the quiet hours, in {}", seconds(left))
            }
            Some(left) => write!(f, "; they raise the line in {}", seconds(left)),
        }
    }
}
