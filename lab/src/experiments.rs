//! `bentpipe-lab list`, `run` and `report`: published experiments, repeated with real hosts.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use console::{Global, print};
use miette::{Context as _, IntoDiagnostic as _, miette};

use crate::mini_m;
use crate::testbed::progress::Board;
use crate::testbed::results::Results;
use crate::testbed::run::{Gate, run_scenario};
use crate::testbed::scenario::{BUILT_IN, Scenario};
use crate::testbed::{report, rights, write_json};

/// Runs published experiments, or one of your own; "all" runs all published ones.
///
/// Real hosts around an emulated link; published figures are printed beside the measured ones.
///
/// Examples: bentpipe-lab run umd-ftp; bentpipe-lab run mine.toml --seeds 3
#[derive(clap::Args, Clone, Debug)]
pub struct RunArgs {
    /// Which experiments: names, or files that end in .toml.
    #[arg(required = true, value_name = "NAME|FILE")]
    names: Vec<String>,
    /// Run each way with so many seeds instead of the scenario's number.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1000))]
    seeds: Option<u64>,
    /// Fail if a figure leaves the bounds that its scenario names.
    #[arg(long)]
    check: bool,
    /// Run only this way of the experiment; may be repeated.
    #[arg(long, value_name = "ID")]
    way: Vec<String>,
    #[command(flatten)]
    out: OutArgs,
}

/// Shows the results of earlier runs again, and makes one page of them.
///
/// Example: bentpipe-lab report
#[derive(clap::Args, Clone, Debug)]
pub struct ReportArgs {
    #[command(flatten)]
    out: OutArgs,
}

#[derive(clap::Args, Clone, Debug)]
struct OutArgs {
    /// Also write the results to FILE as JSON.
    #[arg(long = "save", id = "save", value_name = "FILE")]
    json: Option<PathBuf>,
    /// Where results are kept and the page is written.
    #[arg(long, value_name = "DIR", default_value = "report")]
    dir: PathBuf,
}

/// Names the experiments, or the ways of some.
///
/// A way is one arrangement of hosts, link and gateways; an experiment compares several.
///
/// Examples: bentpipe-lab list; bentpipe-lab list umd-ftp
#[derive(clap::Args, Clone, Debug)]
pub struct ListArgs {
    /// Name the ways of these experiments: names, or files that end in .toml.
    #[arg(value_name = "NAME|FILE")]
    names: Vec<String>,
    /// Name the ways of all experiments.
    #[arg(long, conflicts_with = "names")]
    all: bool,
}

/// Names the experiments, or their ways.
///
/// # Errors
/// There is no such experiment, or standard output is gone.
pub fn list(args: ListArgs, _: &Global) -> miette::Result<ExitCode> {
    let wanted = if args.all { vec!["all".to_owned()] } else { args.names };
    let text = match wanted.is_empty() {
        true => experiments()?,
        false => {
            let each = expand(&wanted).into_iter().map(ways);
            each.collect::<miette::Result<Vec<_>>>()?.join("\n")
        }
    };
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// The experiments, a line each: they fit a screen of 80 columns and 24 lines.
fn experiments() -> miette::Result<String> {
    let mut rows = Vec::new();
    for (name, _) in BUILT_IN {
        let scenario = Scenario::built_in(name).into_diagnostic()?;
        rows.push(vec![name.to_owned(), scenario.title]);
    }
    rows.push(vec![mini_m::NAME.to_owned(), mini_m::TITLE.to_owned()]);
    let table = report::columns(&["name", "what"].map(str::to_owned), &rows);
    Ok(table + "\nThe ways of one: `bentpipe-lab list NAME`; of all: `bentpipe-lab list --all`.\n")
}

/// The ways of an experiment.
fn ways(name: &str) -> miette::Result<String> {
    if name == mini_m::NAME {
        return Ok(format!("{name}: {}\n\nIt runs as a whole.\n", mini_m::TITLE));
    }
    let scenario = Scenario::named(name).into_diagnostic()?;
    let rows = scenario.ways.into_iter().map(|way| vec![way.id, way.title]);
    let table = report::columns(&["way", "what"].map(str::to_owned), &rows.collect::<Vec<_>>());
    Ok(format!("{name}: {}\n\n{table}", scenario.title))
}

/// Runs experiments.
///
/// # Errors
/// One sentence: no such scenario, no rights, or nothing to write to.
pub fn run(args: RunArgs, global: &Global) -> miette::Result<ExitCode> {
    let mut scenarios = Vec::new();
    let (calls, others): (Vec<&str>, _) =
        expand(&args.names).into_iter().partition(|name| *name == mini_m::NAME);
    let is_part = !args.way.is_empty() || args.check || args.seeds.is_some();
    if is_part && args.names.iter().any(|name| name == mini_m::NAME) {
        return Err(miette!("{} runs as a whole and has no bounds", mini_m::NAME));
    }
    for name in others {
        scenarios.push(chosen(Scenario::named(name).into_diagnostic()?, &args)?);
    }
    for (i, scenario) in scenarios.iter().enumerate() {
        if scenarios[..i].iter().any(|earlier| earlier.name == scenario.name) {
            return Err(miette!(
                "\"{}\" is there twice, and its results have one place",
                scenario.name
            ));
        }
    }
    if args.check && scenarios.iter().all(|s| s.bounds.is_empty()) {
        return Err(miette!("there is nothing to check: the ways that were chosen have no bounds"));
    }
    rights::prepare()?;
    fs::create_dir_all(&args.out.dir)
        .into_diagnostic()
        .wrap_err_with(|| format!("cannot make the directory {}", args.out.dir.display()))?;
    if !calls.is_empty() && !is_part {
        run_mini_m(&args.out, global)?;
    }
    if scenarios.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    let gate = Gate::default();
    let mut all = Vec::new();
    for scenario in scenarios {
        let begin = Instant::now();
        let board = Board::start(global.quiet > 0);
        let results = run_scenario(&scenario, &board, &gate);
        drop(board);
        write_json(&saved(&args.out.dir, &scenario.name), &results)?;
        print(&format!(
            "\n{}\nRun in {:.0} s.\n",
            report::text(&scenario, &results),
            begin.elapsed().as_secs_f64(),
        ))?;
        all.push((scenario, results));
    }
    let code = finish(&all, &args.out)?;
    if args.check { check(&all).map(|()| code) } else { Ok(code) }
}

/// The experiment with modems in place of an emulated link.
fn run_mini_m(out: &OutArgs, global: &Global) -> miette::Result<()> {
    let results =
        mini_m::run(global.quiet > 0).map_err(|why| miette!("{}: {why}", mini_m::NAME))?;
    write_json(&saved(&out.dir, mini_m::NAME), &results)?;
    if let Some(file) = &out.json {
        write_json(file, &results)?;
    }
    let file = out.dir.join(format!("{}-throughput.svg", mini_m::NAME));
    fs::write(&file, mini_m::drawing(&results).picture())
        .into_diagnostic()
        .wrap_err_with(|| format!("cannot write {}", file.display()))?;
    print(&format!("\n{}\nFigure 7: {}\n", mini_m::text(&results), file.display()))
}

/// Fails with every figure that is outside its bounds.
fn check(all: &[(Scenario, Results)]) -> miette::Result<()> {
    let bounds: usize = all.iter().map(|(scenario, _)| scenario.bounds.len()).sum();
    let outside: Vec<String> = all.iter().flat_map(|(s, results)| results.outside(s)).collect();
    match outside.is_empty() {
        true => print(&format!("All {bounds} bounds hold.\n")),
        false => Err(miette!("not every bound holds: {}", outside.join("; "))),
    }
}

/// The scenario with the ways and seeds that were asked for.
fn chosen(mut scenario: Scenario, args: &RunArgs) -> miette::Result<Scenario> {
    scenario.seeds = args.seeds.unwrap_or(scenario.seeds);
    if let Some(unknown) = args.way.iter().find(|id| scenario.way(id).is_none()) {
        let name = &scenario.name;
        return Err(miette!(
            "{name} has no way \"{unknown}\"; `bentpipe-lab list {name}` names them"
        ));
    }
    if !args.way.is_empty() {
        scenario.ways.retain(|w| args.way.contains(&w.id));
        let ways = scenario.ways.clone();
        scenario.published.retain(|p| ways.iter().any(|w| w.id == p.way));
        let is_there = |id: &String| ways.iter().any(|w| w.id == *id);
        scenario.bounds.retain(|b| b.over.iter().chain([&b.way]).all(is_there));
    }
    Ok(scenario)
}

fn expand(names: &[String]) -> Vec<&str> {
    if names.iter().any(|n| n == "all") {
        return BUILT_IN.iter().map(|(name, _)| *name).chain([mini_m::NAME]).collect();
    }
    names.iter().map(String::as_str).collect()
}

/// Shows what was kept of earlier runs.
///
/// # Errors
/// One sentence: there is nothing, or it cannot be read.
pub fn report(args: ReportArgs, _: &Global) -> miette::Result<ExitCode> {
    let out = &args.out;
    let mut all = Vec::new();
    for (name, _) in BUILT_IN {
        let scenario = Scenario::built_in(name).into_diagnostic()?;
        match read_saved(&saved(&out.dir, name))? {
            Some(results) => {
                print(&format!("{}\n", report::text(&scenario, &results)))?;
                all.push((scenario, results));
            }
            None => print(&format!("{name} has not been run: `bentpipe-lab run {name}`\n\n"))?,
        }
    }
    if all.is_empty() {
        return Err(miette!("there are no results in {}", out.dir.display()));
    }
    finish(&all, out)
}

/// Writes the page and the JSON; failure if a way that should have run did not.
fn finish(all: &[(Scenario, Results)], out: &OutArgs) -> miette::Result<ExitCode> {
    let page = out.dir.join("lab.html");
    fs::write(&page, report::page(all))
        .into_diagnostic()
        .wrap_err_with(|| format!("cannot write {}", page.display()))?;
    print(&format!("Figures: {}\n", page.display()))?;
    for (name, chart) in all.iter().flat_map(|(s, r)| report::traces(s, r)) {
        let file = out.dir.join(name + ".svg");
        fs::write(&file, chart.picture())
            .into_diagnostic()
            .wrap_err_with(|| format!("cannot write {}", file.display()))?;
    }
    if let Some(file) = &out.json {
        let results: Vec<&Results> = all.iter().map(|(_, r)| r).collect();
        write_json(file, &results)?;
    }
    let failed = all.iter().any(|(_, r)| !r.failures().is_empty());
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn saved(dir: &Path, name: &str) -> PathBuf {
    dir.join(format!("{name}.json"))
}

fn read_saved(file: &Path) -> miette::Result<Option<Results>> {
    let text = match fs::read_to_string(file) {
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(miette!("cannot read {}: {e}", file.display())),
    };
    let cannot = |e| miette!("{} holds no results of this version: {e}", file.display());
    serde_json::from_str(&text).map(Some).map_err(cannot)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_of_experiments_fits_a_screen() {
        let text = experiments().expect("a list");
        assert!(text.lines().count() <= 24, "{text}");
        let longest = text.lines().map(|line| line.chars().count()).max();
        assert!(longest.is_some_and(|length| length <= 80), "{longest:?} columns:\n{text}");
        for (name, _) in BUILT_IN {
            assert!(text.contains(&format!("\n{name} ")), "{name} is missing:\n{text}");
        }
    }

    #[test]
    fn every_way_is_listed_with_its_experiment() {
        for (name, _) in BUILT_IN {
            let text = ways(name).expect("its ways");
            for way in Scenario::built_in(name).expect("it is built in").ways {
                let line = text.lines().find(|line| line.split(' ').next() == Some(&way.id));
                assert!(line.is_some_and(|line| line.ends_with(&way.title)), "{}: {text}", way.id);
            }
        }
        let unknown = ways("umd").expect_err("there is none of that name");
        assert!(unknown.to_string().contains("bentpipe-lab list"), "{unknown}");
    }
}
