//! Cases of a row: a link, what it carries, what the link allows, what other tools
//! reach and what the gateways must reach; how they are run, and judged.

use std::sync::Arc;
use std::time::Duration;

use units::BitRate;

use super::checked::Checked;
use crate::testbed::figure::Figure;
use crate::testbed::gateway::Pair;
use crate::testbed::measure::{jain, median};
use crate::testbed::progress::{Board, Row as ProgressRow};
use crate::testbed::results::Run;
use crate::testbed::run::{Experiment, Gate, run_all};
use crate::testbed::scenario::Scenario;
use crate::testbed::topology::Plan;
use crate::testbed::way::{HostTcp, LinkSetup, Work};

/// Links that run at once in a row whose time is asked for: less than half of what this
/// machine carries, so that nobody waits for a processor.
const AT_ONCE: BitRate = BitRate::from_kbps(200_000);
/// Each link after the other: a hundred transfers that begin at once, with two threads at
/// the server and one at the client for each, take the whole machine for a moment.
const ONE_BY_ONE: BitRate = BitRate::from_bps(0);

/// One link and one transfer.
#[derive(Clone, Debug)]
pub struct Case {
    /// What it is, for people.
    pub what: String,
    /// The link; a default one is a cable.
    pub link: LinkSetup,
    /// What is carried.
    pub work: Work,
    /// Runs that the figure is the median of.
    pub runs: u64,
    /// What the gateways' configuration says beyond the link.
    pub pair: Pair,
    /// No gateways: the hosts' own TCP, set like this, from end to end.
    pub alone: Option<HostTcp>,
    /// A ping runs beside it.
    pub ping: bool,
    /// Clients and servers speak with headers as long as those of the web.
    pub headers: bool,
    /// What must be reached.
    pub must: Must,
    /// What the link allows and what the best existing tool reaches,
    /// in the unit of `must`; empty where nobody knows.
    pub limit: &'static str,
    /// See `limit`.
    pub best: &'static str,
}

/// What must be reached.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Must {
    /// From connecting to the last byte, s, at most.
    Time(f64),
    /// Content over the whole time as a share of the link's rate, %, at least.
    Share(f64),
    /// Content over the whole time, Mbit/s, at least.
    Goodput(f64),
}

impl Case {
    /// A case without known limits, run once.
    pub fn new(what: impl Into<String>, link: LinkSetup, work: Work, must: Must) -> Case {
        let pair = Pair::default();
        let (limit, best) = ("", "");
        let (what, runs) = (what.into(), 1);
        let (alone, ping, headers) = (None, false, false);
        Case { what, link, work, runs, pair, alone, ping, headers, must, limit, best }
    }

    /// With what the link allows and what the best existing tool reaches.
    pub fn known(self, limit: &'static str, best: &'static str) -> Case {
        Case { limit, best, ..self }
    }

    /// The median of so many runs.
    pub fn of(self, runs: u64) -> Case {
        Case { runs, ..self }
    }

    fn experiment(&self, seed: u64) -> Experiment {
        // Whatever the gateways say to each other at first is said by then.
        let rtt = self.link.down.delay.to_std() + self.link.up.delay.to_std();
        Experiment {
            plan: Plan {
                link: self.link.clone(),
                seed,
                hosts: self.alone.clone().unwrap_or_default(),
                gateways: self.alone.is_none().then(|| self.pair.clone()),
                ..Plan::default()
            },
            before: None,
            work: self.work,
            pairs: Vec::new(),
            ping: self.ping,
            settle: Duration::from_secs(1) + 3 * rtt,
            text: false,
            web: false,
            headers: self.headers,
        }
    }

    /// What its runs are worth.
    pub fn judge(&self, runs: &[Run]) -> Result<Checked, String> {
        let values = self.must.values(runs);
        let middle = median(values.iter().copied())
            .ok_or_else(|| format!("{} was not measured", self.what))?;
        Ok(Checked {
            what: self.what.clone(),
            limit: self.limit.into(),
            best: self.best.into(),
            asked: self.must.text(),
            measured: self.must.spread(middle, &values),
            value: Some(middle),
            met: Some(self.must.is_met(middle)),
            before: None,
        })
    }

    /// The same where nothing is asked.
    pub fn tell(&self, runs: &[Run]) -> Result<Checked, String> {
        Ok(Checked { asked: String::new(), met: None, ..self.judge(runs)? })
    }
}

impl Must {
    fn values(self, runs: &[Run]) -> Vec<f64> {
        let of = |figure| runs.iter().filter_map(|r| r.work.figure(figure)).collect::<Vec<_>>();
        match self {
            Must::Time(_) => of(Figure::Time),
            Must::Share(_) => of(Figure::Share),
            Must::Goodput(_) => of(Figure::Goodput).iter().map(|kbps| kbps / 1e3).collect(),
        }
    }

    fn is_met(self, value: f64) -> bool {
        match self {
            Must::Time(most) => value <= most,
            Must::Share(least) | Must::Goodput(least) => value >= least,
        }
    }

    fn text(self) -> String {
        match self {
            Must::Time(most) => format!("≤ {most} s"),
            Must::Share(least) => format!("≥ {least} %"),
            Must::Goodput(least) => format!("≥ {least} Mbit/s"),
        }
    }

    /// The median and, of several runs, the lowest and the highest.
    fn spread(self, middle: f64, values: &[f64]) -> String {
        let low = values.iter().copied().fold(f64::INFINITY, f64::min);
        let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let (digits, unit) = match self {
            Must::Time(most) if most < 2.0 => (3, "s"),
            Must::Time(_) => (2, "s"),
            Must::Share(_) => (2, "%"),
            Must::Goodput(_) => (0, "Mbit/s"),
        };
        match values.len() {
            1 => format!("{middle:.digits$} {unit}"),
            n => {
                format!("{middle:.digits$} {unit} (median of {n}, {low:.digits$}–{high:.digits$})")
            }
        }
    }
}

/// Runs all cases of a row, as many at once as the machine carries, and judges them.
pub fn measure(board: &Board, cases: &[Case]) -> Result<Vec<Checked>, String> {
    let runs = run_cases(board, cases)?;
    cases.iter().zip(&runs).map(|(case, runs)| case.judge(runs)).collect()
}

/// As [`measure`], one run at a time, and how fairly many streams shared the link: Jain's
/// index of each case, the median over its runs, at least `least`.
pub fn measure_fairness(board: &Board, cases: &[Case], least: f64) -> Result<Vec<Checked>, String> {
    let runs = run_at_once(board, cases, ONE_BY_ONE)?;
    let mut all = Vec::new();
    for (case, runs) in cases.iter().zip(&runs) {
        all.push(case.judge(runs)?);
        let index = median(runs.iter().filter_map(|r| jain(&r.work.each)))
            .ok_or_else(|| format!("{}: no stream carried anything", case.what))?;
        all.push(Checked {
            what: format!("{}: Jain's index", case.what),
            value: Some(index),
            ..Checked::asked("", &format!("≥ {least}"), format!("{index:.4}"), index >= least)
        });
    }
    Ok(all)
}

/// The runs of each case, one at a time.
pub fn run_one_by_one(board: &Board, cases: &[Case]) -> Result<Vec<Vec<Run>>, String> {
    run_at_once(board, cases, ONE_BY_ONE)
}

/// The runs of each case.
pub fn run_cases(board: &Board, cases: &[Case]) -> Result<Vec<Vec<Run>>, String> {
    run_at_once(board, cases, AT_ONCE)
}

fn run_at_once(board: &Board, cases: &[Case], at_once: BitRate) -> Result<Vec<Vec<Run>>, String> {
    let mut all = Vec::new();
    for case in cases {
        let bytes = case.experiment(1).bytes();
        let row = board.row(&case.what, bytes * case.runs);
        all.extend((1..=case.runs).map(|seed| (case.experiment(seed), row.clone())));
    }
    let mut runs = trusted(&all, at_once)?.into_iter();
    Ok(cases.iter().map(|case| runs.by_ref().take(case.runs as usize).collect()).collect())
}

/// The runs of one way of a scenario.
pub fn run_way(
    scenario: &Scenario,
    id: &str,
    seeds: u64,
    board: &Board,
) -> Result<Vec<Run>, String> {
    let way = scenario.way(id).ok_or_else(|| format!("{} has no way {id}", scenario.name))?;
    let bytes = Experiment::new(scenario, way, 1).bytes();
    let row = board.row(&format!("{}: {}", scenario.name, way.title), bytes * seeds);
    let all: Vec<_> =
        (1..=seeds).map(|seed| (Experiment::new(scenario, way, seed), row.clone())).collect();
    trusted(&all, AT_ONCE)
}

fn trusted(all: &[(Experiment, Arc<ProgressRow>)], at_once: BitRate) -> Result<Vec<Run>, String> {
    let runs: Result<Vec<Run>, String> = run_all(all, &Gate::new(at_once)).into_iter().collect();
    let runs = runs?;
    if let Some(problem) = runs.iter().flat_map(|r| &r.problems).next() {
        return Err(format!("the emulated link is not to be trusted: {problem}"));
    }
    for (_, row) in all {
        row.end("done".into());
    }
    Ok(runs)
}

#[cfg(test)]
mod tests {
    use units::ByteCount;

    use super::*;
    use crate::testbed::measure::Outcome;

    fn run(seconds: f64) -> Run {
        let work = Outcome {
            bytes: 1_000_000,
            asked: 1_000_000,
            complete: seconds,
            link_rate: 10_000_000,
            ..Outcome::default()
        };
        Run { work, before: None, gateways: None, problems: Vec::new() }
    }

    #[test]
    fn the_median_decides_and_slower_than_asked_is_missed() {
        let work = Work::File { bytes: ByteCount(1_000_000), at_most: None, ftp: false };
        let case = |must| Case::new("x", LinkSetup::default(), work, must).known("0.9 s", "3 s");
        let runs = [run(1.0), run(9.0), run(1.2)];
        for (must, met) in [
            (Must::Time(1.2), true),
            (Must::Time(1.1), false),
            (Must::Share(66.0), true),
            (Must::Share(67.0), false),
            (Must::Goodput(6.6), true),
            (Must::Goodput(6.7), false),
        ] {
            let checked = case(must).judge(&runs).unwrap();
            assert_eq!(checked.met, Some(met), "{must:?}: {checked:?}");
        }
        let checked = case(Must::Time(1.2)).judge(&runs).unwrap();
        assert_eq!(checked.measured, "1.200 s (median of 3, 1.000–9.000)");
        assert_eq!((checked.limit.as_str(), checked.asked.as_str()), ("0.9 s", "≤ 1.2 s"));
        assert!(case(Must::Time(1.0)).judge(&[]).is_err());
        let told = case(Must::Time(1.0)).tell(&runs).unwrap();
        assert_eq!((told.met, told.asked.as_str(), told.value), (None, "", Some(1.2)));
    }

    #[test]
    fn a_case_without_gateways_has_none_and_the_hosts_that_it_names() {
        let case = Case::new(
            "x",
            LinkSetup::default(),
            Work::File { bytes: ByteCount(1), at_most: None, ftp: false },
            Must::Time(1.0),
        );
        let tcp = HostTcp { congestion: Some("bbr".into()), ..HostTcp::default() };
        assert!(case.experiment(1).plan.gateways.is_some());
        let plan = Case { alone: Some(tcp.clone()), ..case }.experiment(1).plan;
        assert_eq!((plan.gateways.is_none(), plan.hosts), (true, tcp));
    }
}
