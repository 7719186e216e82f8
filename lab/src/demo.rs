//! `bentpipe-lab demo`: what the gateways gain, on this machine, in a minute and a half.
//!
//! Two links, four ways each: terrestrial, satellite, satellite with large windows,
//! satellite with gateways. Every way first fetches a small page over the idle link and
//! then a file, with the kernel's own TCP between real hosts; all run at once. The
//! set-ups are scenario files like the lab's.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use console::{Global, print};
use miette::{Context as _, IntoDiagnostic as _, miette};

use crate::plot::{Bar, BarChart, Page, Table, number};
use crate::testbed::figure::Figure;
use crate::testbed::progress::Board;
use crate::testbed::report::{self, columns};
use crate::testbed::results::{Results, WayResults};
use crate::testbed::run::{Gate, run_scenario};
use crate::testbed::scenario::{DEMO, Scenario};
use crate::testbed::{measure::median, rights, write_json};

/// Shows the gain: real hosts around an emulated satellite, with and without gateways.
///
/// Two links, four ways each, in about a minute and a half. Needs root, or unprivileged user
/// namespaces. Ends with a table and writes a page with plots.
///
/// Example: bentpipe-lab demo
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Where the page with the plots is written.
    #[arg(long, value_name = "FILE", default_value = "report/demo.html")]
    html: PathBuf,
    /// Also write all measurements to FILE as JSON.
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
}

/// Runs the command.
///
/// # Errors
/// One sentence: no rights to build the networks, or nowhere to write the page.
pub fn run(args: Args, global: &Global) -> miette::Result<ExitCode> {
    let scenarios: Vec<Scenario> = DEMO
        .iter()
        .map(|(name, text)| Scenario::parse(name, text).into_diagnostic())
        .collect::<miette::Result<_>>()?;
    rights::prepare()?;
    let begin = Instant::now();
    let results = run_at_once(&scenarios, global.quiet > 0);
    let seconds = begin.elapsed().as_secs_f64();

    let all: Vec<(Scenario, Results)> = scenarios.into_iter().zip(results).collect();
    for (scenario, results) in &all {
        print(&text(scenario, results))?;
    }
    write_page(&args.html, &all)?;
    let page = args.html.display();
    print(&format!("\nMeasured in {seconds:.0} s. Plots: {page}\n"))?;
    if let Some(file) = &args.save {
        write_json(file, &all.iter().map(|(_, r)| r).collect::<Vec<_>>())?;
    }
    match all.iter().flat_map(|(_, r)| r.failures()).next() {
        None => Ok(ExitCode::SUCCESS),
        Some(failure) => Err(miette!("not everything could be measured: {failure}")),
    }
}

fn run_at_once(scenarios: &[Scenario], quiet: bool) -> Vec<Results> {
    let board = Board::start(quiet);
    let gate = Gate::default();
    std::thread::scope(|scope| {
        let (board, gate) = (&board, &gate);
        let threads: Vec<_> = scenarios
            .iter()
            .map(|s| (s, scope.spawn(move || run_scenario(s, board, gate))))
            .collect();
        let failed = |s: &Scenario| Results::new(s, Vec::new());
        threads.into_iter().map(|(s, t)| t.join().unwrap_or_else(|_| failed(s))).collect()
    })
}

const HEAD: [&str; 7] = ["way", "page", "first byte", "goodput", "of the link", "file", "gain"];

fn text(scenario: &Scenario, results: &Results) -> String {
    let head = HEAD.map(str::to_owned);
    let rows: Vec<Vec<String>> = results.ways.iter().map(|w| row(w, results)).collect();
    format!("\n{}\n\n{}", scenario.title, columns(&head, &rows))
}

fn row(way: &WayResults, results: &Results) -> Vec<String> {
    let value = |figure: Figure| way.median(figure);
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "–".into());
    let whole = way.runs.iter().all(|r| r.work.is_whole());
    let about = if whole { "" } else { "≈ " };
    vec![
        way.title.clone(),
        or_dash(page_time(way).map(|s| format!("{} s", number(s)))),
        or_dash(value(Figure::FirstByte).map(|ms| format!("{ms:.0} ms"))),
        or_dash(value(Figure::Goodput).map(|k| format!("{} kbit/s", number(k)))),
        or_dash(value(Figure::Share).map(|s| format!("{s:.1} %"))),
        or_dash(value(Figure::Time).map(|s| format!("{about}{} s", number(s)))),
        or_dash(gain(way, results).map(|g| format!("{} ×", number(g)))),
    ]
}

/// How many times faster the file moves than over the bare satellite.
fn gain(way: &WayResults, results: &Results) -> Option<f64> {
    let goodput = |w: &WayResults| w.median(Figure::Goodput);
    Some(goodput(way)? / goodput(results.way("satellite")?)?)
}

fn page_time(way: &WayResults) -> Option<f64> {
    median(way.runs.iter().filter_map(|r| Some(r.before.as_ref()?.complete)))
}

fn write_page(file: &Path, all: &[(Scenario, Results)]) -> miette::Result<()> {
    let cannot = || format!("cannot write {}", file.display());
    if let Some(dir) = file.parent() {
        fs::create_dir_all(dir).into_diagnostic().wrap_err_with(cannot)?;
    }
    fs::write(file, page(all)).into_diagnostic().wrap_err_with(cannot)
}

fn page(all: &[(Scenario, Results)]) -> String {
    let mut page = Page::new(
        "TCP over a satellite, with gateways and without",
        "Measured between real Linux hosts around an emulated satellite link. Every byte \
         that arrived was compared with what was sent.",
    );
    for (scenario, results) in all {
        page.section(&scenario.title);
        page.text(scenario.about.trim());
        page.table(&table(results));
        page.figure(&report::throughput(scenario, results).html());
        page.figure(&report::utilisation(results).html());
        page.figure(&small_page(results).html());
        for note in &scenario.notes {
            page.note(note);
        }
    }
    page.note(
        "First byte: from connecting to the first byte of the file. Goodput: bytes of the \
         file over the time from connecting to the last byte. Gain: against the bare \
         satellite. \"≈\": the transfer was cut off and the time for the whole file is \
         reckoned from its rate.",
    );
    page.html()
}

fn table(results: &Results) -> Table {
    Table {
        caption: "A small page, then a file".into(),
        head: HEAD.map(str::to_owned).to_vec(),
        rows: results.ways.iter().map(|w| row(w, results)).collect(),
        text_columns: Vec::new(),
        best: results.ways.iter().position(|w| w.id == "gateways"),
    }
}

fn small_page(results: &Results) -> BarChart {
    let bar = |w: &WayResults| Bar {
        name: w.title.clone(),
        colour: w.colour,
        value: page_time(w),
        published: None,
    };
    BarChart {
        title: "A small page.".into(),
        caption: "8 kB of text, then 8 objects of 8 kB over 6 connections at a time.".into(),
        x_label: "s until complete".into(),
        bars: results.ways.iter().map(bar).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testbed::measure::Outcome;
    use crate::testbed::results::Run;

    fn measured() -> (Scenario, Results) {
        let (name, text) = DEMO[0];
        let scenario = Scenario::parse(name, text).unwrap();
        let ways = scenario.ways.iter().cloned().map(|way| {
            let seconds = if way.gateways { 20.0 } else { 50.0 };
            let asked = 4_000_000;
            let bytes = if way.gateways { asked } else { asked / 2 };
            let work = Outcome { bytes, asked, complete: seconds, ..Outcome::default() };
            let before = Some(Outcome { complete: 2.5, ..work.clone() });
            (way, vec![Ok(Run { work, before, gateways: None, problems: Vec::new() })])
        });
        let results = Results::new(&scenario, ways.collect());
        (scenario, results)
    }

    #[test]
    fn the_table_says_what_was_gained_and_what_was_cut_off() {
        let (scenario, results) = measured();
        let text = text(&scenario, &results);
        let line = |way: &str| text.lines().find(|l| l.starts_with(way)).unwrap().to_owned();
        let gateways = line("Satellite, gateways");
        assert!(gateways.contains(" 20 s ") && gateways.ends_with(" 5 ×"), "{text}");
        assert!(line("Satellite ").contains("≈ 100 s"), "{text}");
    }

    #[test]
    fn the_page_stands_alone_and_has_the_plots() {
        let html = page(&[measured()]);
        for part in ["Link throughput.", "Instantaneous utilisation.", "A small page.", "≈ 100 s"]
        {
            assert!(html.contains(part), "{part} is missing");
        }
        assert!(!html.contains("http") && !html.contains("NaN"));
    }
}
