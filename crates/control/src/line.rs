//! Links that are raised and dropped.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What becomes of a peer's line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LineCommand {
    /// The rules decide.
    Auto,
    /// Raise it now; then the rules decide.
    Up,
    /// Raise it and keep it, until another command.
    Hold,
    /// Drop it and keep it down, until another command.
    Down,
    /// The prices of this zone hold from now on, for calls that begin.
    Zone(String),
}

/// A line, why it is as it is, and what comes next. Where the peer has several it is the one that
/// is up, or is being raised, or the preferred one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LineReport {
    /// Its carrier's name; empty: the peer has one line and no carriers.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub carrier: String,
    /// Only the other end calls.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub only_answers: bool,
    /// down, dialling, rising, up or lingering.
    pub state: String,
    /// What raised it, or why it is down.
    pub cause: String,
    /// For how long.
    pub for_ms: u64,
    /// What the operator said last: auto, up, hold or down.
    pub command: String,
    /// What crossed last that holds it.
    pub held_by: Option<String>,
    /// How long ago that was.
    pub used_ms_ago: Option<u64>,
    /// A line that lingers is dropped in so long.
    pub hangs_up_in_ms: Option<u64>,
    /// A line that failed is not raised before.
    pub not_before_ms: Option<u64>,
    /// The zone whose prices hold; empty: the tariff's first.
    pub zone: String,
    /// What it has cost since it was raised: `"2.40 USD"`.
    pub price: Option<String>,
    /// The month's budget: of all carriers, or of one of several lines its own. Only where it is
    /// used up, or nearly.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget: Option<LineBudget>,
    /// What waits, rule by rule.
    pub waiting: Vec<LineWaiting>,
    /// Hosts that have used up the month's budget, or nearly, or have too little for a call.
    pub hosts: Vec<LineHost>,
    /// Where the peer has several lines each of them, the preferred one first, without what waits
    /// and without lines.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lines: Vec<LineReport>,
}

/// A host that has used up its month's budget, or nearly, or has too little for a call.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LineHost {
    /// Its address.
    pub host: String,
    /// What it has cost this month: `"3.02"`.
    pub spent: String,
    /// What it may cost.
    pub budget: String,
    /// What both are in.
    pub currency: String,
    /// Nothing of its crosses any more where that costs something.
    pub stopped: bool,
    /// It waits, and what is left does not pay the beginning of a call: it raises nothing, and has
    /// its part in calls of others.
    pub short: bool,
}

/// A month's budget that is used up, or nearly.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LineBudget {
    /// What was spent this month: `"16.15"`.
    pub spent: String,
    /// What may be.
    pub budget: String,
    /// What both are in.
    pub currency: String,
    /// Nothing that costs more is begun.
    pub stopped: bool,
}

/// A telephone line that answers for all peers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TelephoneReport {
    /// What people call it.
    pub name: String,
    /// Its modem's device.
    pub device: String,
    /// Its modem answers, or is in a call.
    pub ready: bool,
    /// Whose call is there, if it is known.
    pub peer: Option<String>,
    /// For how long there has been a call.
    pub call_ms: Option<u64>,
    /// Calls that were answered since the start.
    pub calls: u64,
    /// Those of them that no peer made.
    pub strangers: u64,
    /// How the last call ended, or what ails the modem; empty: nothing did.
    pub cause: String,
}

/// What waits under one rule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LineWaiting {
    /// The rule.
    pub rule: String,
    /// The flow that has waited longest.
    pub oldest: String,
    /// How many flows.
    pub flows: u64,
    /// How many bytes.
    pub bytes: u64,
    /// Since the oldest began to wait.
    pub for_ms: u64,
    /// It raises the line in so long; 0: now. None: not by the clock.
    pub raises_in_ms: Option<u64>,
    /// The rule raises the line for nothing.
    pub never: bool,
    /// It raises the line later than it would, because these are quiet hours.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub quiet: bool,
    /// It does not wait: its hosts were told that the net is unreachable (`fail_fast`), and raise
    /// the line for their next try.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub refused: bool,
    /// No line that may serve it can be paid: it raises none, whenever it would.
    pub lacks_money: bool,
}

fn seconds(ms: u64) -> String {
    match ms / 1000 {
        s @ 0..120 => format!("{s} s"),
        s @ 120..7200 => format!("{} min", s / 60),
        s => format!("{} h", s / 3600),
    }
}

impl fmt::Display for LineHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LineHost { host, spent, budget, currency, stopped, short } = self;
        let what = match (stopped, short) {
            (true, _) => "is stopped: its month's budget is used up",
            (false, true) => "raises no line: its month's budget does not pay a call's beginning",
            (false, false) => "has nearly used up its month's budget",
        };
        write!(f, "{host} {what}, {spent} of {budget} {currency}")
    }
}

impl fmt::Display for LineBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LineBudget { spent, budget, currency, stopped } = self;
        let (what, then) = match stopped {
            true => ("used up", ": nothing that costs more is begun"),
            false => ("nearly used up", ""),
        };
        write!(f, "the month's budget is {what}, {spent} of {budget} {currency}{then}")
    }
}

impl LineReport {
    fn write_state(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} for {}: {}", self.state, seconds(self.for_ms), self.cause)?;
        if !matches!(&*self.command, "" | "auto") {
            write!(f, "; `bentpipe link {}` is in force", self.command)?;
        }
        if let (Some(by), Some(ago)) = (&self.held_by, self.used_ms_ago) {
            write!(f, "; last used {} ago by {by}", seconds(ago))?;
        }
        if !self.zone.is_empty() {
            write!(f, "; prices of \"{}\"", self.zone)?;
        }
        if let Some(price) = &self.price {
            write!(f, "; {price} so far")?;
        }
        if let Some(budget) = &self.budget {
            write!(f, "; {budget}")?;
        }
        if let Some(left) = self.hangs_up_in_ms {
            write!(f, "; dropped in {}", seconds(left))?;
        }
        if let Some(left) = self.not_before_ms {
            write!(f, "; not raised before {}", seconds(left))?;
        }
        Ok(())
    }
}

impl fmt::Display for LineReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.lines[..] {
            [] => self.write_state(f)?,
            [lines @ .., last] => {
                for line in lines {
                    write!(f, "{}: ", line.carrier)?;
                    line.write_state(f)?;
                    writeln!(f)?;
                }
                write!(f, "{}: ", last.carrier)?;
                last.write_state(f)?;
                if let Some(budget) = &self.budget {
                    write!(f, "\n{budget}")?;
                }
                if !self.zone.is_empty() {
                    write!(f, "\nprices of \"{}\"", self.zone)?;
                }
            }
        }
        for w in &self.waiting {
            let flows = if w.flows == 1 { "1 flow" } else { &format!("{} flows", w.flows) };
            match w.refused {
                true => write!(f, "\nrefused since {}: {flows}, ", seconds(w.for_ms))?,
                false => {
                    write!(f, "\nwaits for {}: {flows}, {} bytes, ", seconds(w.for_ms), w.bytes)?;
                }
            }
            write!(f, "the oldest {}, rule \"{}\"", w.oldest, w.rule)?;
            match w.raises_in_ms {
                Some(_) if w.lacks_money => write!(f, ", and money is left for no line")?,
                Some(0) => write!(f, ", raises the line now")?,
                Some(left) if w.quiet => {
                    write!(f, ", raises the line after the quiet hours, in {}", seconds(left))?;
                }
                Some(left) => write!(f, ", raises the line in {}", seconds(left))?,
                None if w.never => write!(f, ", never raises the line")?,
                None if w.quiet => write!(f, ", does not raise the line: quiet hours never end")?,
                None => write!(f, ", does not raise the line by the clock")?,
            }
        }
        for host in &self.hosts {
            write!(f, "\n{host}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(waiting: LineWaiting) -> String {
        let waiting = LineWaiting { rule: "mail".into(), oldest: "tcp 25".into(), ..waiting };
        LineReport { waiting: vec![waiting], ..LineReport::default() }.to_string()
    }

    #[test]
    fn what_waits_says_that_quiet_hours_hold_it_back() {
        let waits = LineWaiting { flows: 1, bytes: 60, ..LineWaiting::default() };
        let later = LineWaiting { raises_in_ms: Some(1_800_000), ..waits.clone() };
        assert!(told(later.clone()).ends_with("rule \"mail\", raises the line in 30 min"));
        let text = told(LineWaiting { quiet: true, ..later });
        assert!(text.ends_with("raises the line after the quiet hours, in 30 min"), "{text}");
        let text = told(LineWaiting { quiet: true, ..waits });
        assert!(text.ends_with("does not raise the line: quiet hours never end"), "{text}");
    }

    #[test]
    fn what_was_refused_is_not_said_to_wait() {
        let refused = LineWaiting {
            flows: 1,
            for_ms: 3_000,
            raises_in_ms: Some(0),
            refused: true,
            ..LineWaiting::default()
        };
        let text = told(refused);
        assert!(text.contains("refused since 3 s: 1 flow, the oldest tcp 25"), "{text}");
        assert!(!text.contains("waits"), "{text}");
    }
}
