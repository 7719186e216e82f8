//! `bentpipe-lab bench`: what the gateways must reach, measured on this machine.
//!
//! Every row has experiments, and for each what the link allows, what the best existing
//! tool reaches, what is asked for and what was measured; the command fails if one misses.
//! Where the link's errors are random a figure is the median over several seeds.

mod browser;
mod carriers;
mod cases;
mod changing;
mod checked;
mod code;
mod crowd;
mod dedup;
mod exchanges;
mod fleet;
mod flood;
mod hub;
mod pages;
mod quic;
mod rows;
mod setup;
mod squeeze;
mod table;
mod two_hops;
mod voice;
mod without;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use console::{Global, print, print_json};
use miette::{IntoDiagnostic as _, miette};
use serde::{Deserialize, Serialize};

use crate::testbed::progress::Board;
use crate::testbed::report::columns;
use crate::testbed::{rights, write_json};
use checked::Checked;

/// Measures on this machine what the gateways must reach, and fails if they do not.
///
/// Examples: bentpipe-lab bench --list; bentpipe-lab bench --only quic --save before.json;
/// bentpipe-lab bench --only quic --against before.json
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Only this row; may be repeated.
    #[arg(long, value_name = "ROW")]
    only: Vec<String>,
    /// Name the rows and end.
    #[arg(long)]
    list: bool,
    /// Seeds where the link's errors are random.
    #[arg(long, value_name = "N", default_value_t = 11)]
    seeds: u64,
    /// Also write the results to FILE as JSON.
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// Also show the figures of FILE, which an earlier `--save` wrote, and how far these are from
    /// them.
    #[arg(long, value_name = "FILE")]
    against: Option<PathBuf>,
    /// Be the server of many connections, until standard input ends.
    #[arg(long, value_name = "ADDRESS", hide = true)]
    serve: Option<IpAddr>,
}

/// The figures of an earlier run, by row, place in it and what they are.
type Earlier = BTreeMap<(String, usize, String), f64>;

/// # Errors
/// One sentence if the file cannot be read or is none that `--save` wrote.
fn earlier(file: &Path) -> miette::Result<Earlier> {
    #[derive(Deserialize)]
    struct Figure {
        what: String,
        value: Option<f64>,
    }
    #[derive(Deserialize)]
    struct Row {
        row: String,
        checks: Vec<Figure>,
    }
    let text = std::fs::read_to_string(file).map_err(|e| miette!("{}: {e}", file.display()))?;
    let rows: Vec<Row> = serde_json::from_str(&text).map_err(|e| {
        miette!("{}: {e}; `bentpipe-lab bench --save FILE` writes such files", file.display())
    })?;
    let figures = rows.into_iter().flat_map(|row| {
        let figure =
            move |(at, f): (usize, Figure)| Some(((row.row.clone(), at, f.what), f.value?));
        row.checks.into_iter().enumerate().filter_map(figure)
    });
    Ok(figures.collect())
}

/// One row: several figures of one experiment, or why there are none.
#[derive(Clone, Debug, Serialize)]
struct Outcome {
    row: &'static str,
    seconds: f64,
    checks: Vec<Checked>,
    failure: Option<String>,
}

impl Outcome {
    fn compare(&mut self, earlier: &Earlier) {
        for (at, check) in self.checks.iter_mut().enumerate() {
            check.before = earlier.get(&(self.row.to_owned(), at, check.what.clone())).copied();
        }
    }
}

/// Runs the command.
///
/// # Errors
/// If a row misses what is asked, cannot be run, or does not exist.
pub fn run(args: Args, global: &Global) -> miette::Result<ExitCode> {
    if let Some(address) = args.serve {
        return crowd::serve(address).into_diagnostic().map(|()| ExitCode::SUCCESS);
    }
    let all = rows::ALL;
    if args.list {
        let names: String = all.iter().map(|r| format!("{}\n", r.name)).collect();
        return print(&names).map(|()| ExitCode::SUCCESS);
    }
    if let Some(unknown) = args.only.iter().find(|o| all.iter().all(|r| r.name != **o)) {
        let names: Vec<&str> = all.iter().map(|r| r.name).collect();
        return Err(miette!("there is no row \"{unknown}\"; there are {}", names.join(", ")));
    }
    let before = args.against.as_deref().map(earlier).transpose()?.unwrap_or_default();
    rights::prepare()?;
    let mut outcomes = Vec::new();
    for row in all.iter().filter(|r| args.only.is_empty() || args.only.iter().any(|o| r.name == o))
    {
        let mut outcome = run_row(row, args.seeds, global.quiet > 0);
        outcome.compare(&before);
        if !global.json {
            print(&text(&outcome))?;
        }
        outcomes.push(outcome);
    }
    if global.json {
        print_json(&outcomes)?;
    }
    if let Some(file) = &args.save {
        write_json(file, &outcomes)?;
    }
    finish(&outcomes)
}

fn run_row(row: &rows::Row, seeds: u64, quiet: bool) -> Outcome {
    let begin = Instant::now();
    let board = Board::start(quiet);
    let measured = (row.measure)(&board, seeds.max(1));
    drop(board);
    let (checks, failure) = match measured {
        Ok(checks) => (checks, None),
        Err(why) => (Vec::new(), Some(why)),
    };
    Outcome { row: row.name, seconds: begin.elapsed().as_secs_f64(), checks, failure }
}

/// The row as it is printed when it is done.
fn text(outcome: &Outcome) -> String {
    let compares = outcome.checks.iter().any(|c| c.before.is_some());
    let earlier = if compares { "before" } else { "" };
    let head = ["row", "link and transfer", "limit", "best tool", "must", "measured", "", earlier]
        .map(str::to_owned);
    let verdict = |met: Option<bool>| match met {
        Some(true) => "ok",
        Some(false) => "MISSED",
        None => "",
    };
    let rows: Vec<Vec<String>> = outcome
        .checks
        .iter()
        .map(|c| {
            let (met, before) = (verdict(c.met), c.earlier());
            let cells =
                [outcome.row, &c.what, &c.limit, &c.best, &c.asked, &c.measured, met, &before];
            cells.map(str::to_owned).to_vec()
        })
        .collect();
    let mut text = match &outcome.failure {
        Some(why) => format!("{}: FAILED: {why}\n", outcome.row),
        None => columns(&head, &rows),
    };
    text += &format!("({:.0} s)\n\n", outcome.seconds);
    text
}

fn finish(outcomes: &[Outcome]) -> miette::Result<ExitCode> {
    let failed = |o: &&Outcome| o.failure.is_some();
    let missed = |o: &&Outcome| o.checks.iter().any(|c| c.met == Some(false));
    let names = |of: Vec<&Outcome>| of.iter().map(|o| o.row).collect::<Vec<_>>().join(", ");
    let (failed, missed) = (
        names(outcomes.iter().filter(failed).collect()),
        names(outcomes.iter().filter(missed).collect()),
    );
    if failed.is_empty() && missed.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    let part = |what: &str, names: &str| match names.is_empty() {
        true => String::new(),
        false => format!("{what}: {names}. "),
    };
    let all = part("missed", &missed) + &part("could not be run", &failed);
    Err(miette!("not everything that is asked was reached; {}", all.trim_end()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(met: Option<bool>, failure: Option<&str>) -> Outcome {
        let check = Checked { met, ..Checked::asked("x", "≥ 1", "2".into(), true) };
        Outcome { row: "umd", seconds: 1.0, checks: vec![check], failure: failure.map(Into::into) }
    }

    #[test]
    fn a_missed_row_and_a_failed_row_fail_the_command_and_a_told_figure_does_not() {
        assert!(finish(&[outcome(Some(true), None), outcome(None, None)]).is_ok());
        let missed = finish(&[outcome(Some(false), None)]).unwrap_err().to_string();
        assert!(missed.contains("missed: umd"), "{missed}");
        let failed = finish(&[outcome(Some(true), Some("no link"))]).unwrap_err().to_string();
        assert!(failed.contains("could not be run: umd"), "{failed}");
        assert!(text(&outcome(Some(false), None)).contains("MISSED"));
    }

    /// A file of `--save` is read again; a figure that it has not is not compared.
    #[test]
    fn figures_are_compared_with_those_of_an_earlier_run() {
        let mut was = outcome(Some(true), None);
        was.checks[0].value = Some(4.0);
        let file = std::env::temp_dir().join(format!("bench-{}.json", std::process::id()));
        write_json(&file, &[&was]).unwrap();
        let before = earlier(&file);
        std::fs::remove_file(&file).unwrap();
        let mut now = outcome(Some(true), None);
        now.checks[0].value = Some(4.1);
        now.checks.push(Checked { value: Some(1.0), ..Checked::told("new", "1".into()) });
        now.compare(&before.unwrap());
        assert_eq!(now.checks[0].earlier(), "4.00 (+2.5 %)");
        assert_eq!(now.checks[1].earlier(), "");
        assert!(text(&now).contains("4.00 (+2.5 %)"));
        assert!(earlier(Path::new("Cargo.toml")).is_err());
    }

    #[test]
    fn rows_have_names_of_their_own() {
        let mut names: Vec<&str> = rows::ALL.iter().map(|r| r.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), rows::ALL.len());
    }
}
