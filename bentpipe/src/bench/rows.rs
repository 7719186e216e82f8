//! The rows of the bench.

use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use channel::ChannelConfig;
use os::proc::{die_with_parent, raise_descriptor_limit, reset_signals};
use units::{BitRate, ByteCount, Ratio};

use super::Checked;
use super::crowd::{self, CrowdServer};
use crate::lab::gateway::Pair;
use crate::lab::measure::{Outcome, median};
use crate::lab::progress::{Board, Row as ProgressRow};
use crate::lab::results::{Load, Run};
use crate::lab::run::{Experiment, Gate, run_all};
use crate::lab::scenario::{Figure, LinkSetup, Scenario, Work};
use crate::lab::topology::{Plan, SERVER, Topology};
use crate::lab::traffic::{self, Server, Wanted};

/// A row: its name and how it is measured.
pub struct Row {
    /// For `--only`.
    pub name: &'static str,
    /// Measures with so many seeds.
    pub measure: fn(&Board, u64) -> Result<Vec<Checked>, String>,
}

/// All rows, in the order in which they run.
pub const ALL: &[Row] = &[
    Row { name: "umd-ftp", measure: umd_ftp },
    Row { name: "geo", measure: geo },
    Row { name: "wise-web", measure: wise_web },
    Row { name: "first-byte", measure: first_byte },
    Row { name: "fast", measure: fast },
    Row { name: "crowd", measure: crowd },
    Row { name: "simulator", measure: simulator },
];

/// Gigabyte, for seconds of processor time per gigabyte.
const GB: f64 = 1e9;
/// Links that run at once in a row whose time is asked for.
const AT_ONCE: BitRate = BitRate::from_kbps(50_000);

fn umd_ftp(board: &Board, _seeds: u64) -> Result<Vec<Checked>, String> {
    let scenario = Scenario::built_in("umd-ftp").map_err(|e| e.to_string())?;
    let runs = run_way(&scenario, "gateways", 1, board)?;
    let share = middle(&runs, Figure::Share)?;
    let leg = scenario.legs.server.as_secs_f64() * 2e3;
    let above = middle(&runs, Figure::ServerRtt)? - leg;
    Ok(vec![
        Checked::asked(
            "goodput of 10 MB over a T1, 250 ms one way",
            "≥ 94 % of the link",
            format!("{share:.1} %"),
            share >= 94.0,
        ),
        Checked::asked(
            "RTT at the server above its terrestrial leg",
            "< 5 ms",
            format!("{above:.1} ms"),
            above < 5.0,
        ),
    ])
}

fn wise_web(board: &Board, seeds: u64) -> Result<Vec<Checked>, String> {
    let scenario = Scenario::built_in("wise-web").map_err(|e| e.to_string())?;
    let runs = run_way(&scenario, "gateways", seeds, board)?;
    let time = middle(&runs, Figure::Time)?;
    let busy = runs.iter().filter_map(|r| plateau(&r.work));
    let busy = median(busy).ok_or("the link was not measured")?;
    Ok(vec![
        Checked::asked(
            "200 kB over 100 kbit/s, BER 1e-5, RTT 1 s",
            "≤ 20.5 s",
            spread(&runs, Figure::Time, "s")?,
            time <= 20.5,
        ),
        Checked::asked(
            "utilisation between the first and the last byte",
            "≥ 95 %",
            format!("{busy:.1} %"),
            busy >= 95.0,
        ),
    ])
}

/// Utilisation in percent from one round trip after the start until the server's last
/// data left, which is one more round trip before the end.
fn plateau(outcome: &Outcome) -> Option<f64> {
    let from = outcome.started + outcome.first_byte;
    let to = outcome.started + outcome.complete - outcome.first_byte;
    outcome.down.utilisation(from, to).map(|u| u * 100.0)
}

fn geo(board: &Board, seeds: u64) -> Result<Vec<Checked>, String> {
    let link = link(20_000, 2_000, 300, 0.001);
    let work = Work::File { bytes: ByteCount(20_000_000), at_most: None };
    let runs = run_seeds("20/2 Mbit/s, 600 ms, 0.1 %", &link, work, seeds, board)?;
    let time = middle(&runs, Figure::Time)?;
    Ok(vec![Checked::asked(
        "20 MB over 20/2 Mbit/s, RTT 600 ms, 0.1 % loss",
        "≤ 9.3 s",
        spread(&runs, Figure::Time, "s")?,
        time <= 9.3,
    )])
}

/// Several small answers, one after the other over an idle link.
fn first_byte(board: &Board, seeds: u64) -> Result<Vec<Checked>, String> {
    const SMALL: u64 = 1_000;
    let link = link(20_000, 2_000, 300, 0.0);
    let row = board.row("small answers", SMALL * seeds);
    let topology = build(&link, 1)?;
    row.begin();
    let origin = topology.origin;
    let _server = topology
        .server
        .run(|| Server::start(SERVER[0], origin))
        .map_err(|e| format!("the server does not start: {e}"))?;
    let address = SocketAddr::new(SERVER[0], traffic::PORT);
    let mut times = Vec::new();
    for seed in 0..seeds {
        thread::sleep(Duration::from_secs(1));
        let wanted = Wanted::whole(seed, SMALL);
        let got = topology.client.run(|| traffic::fetch(address, wanted, origin, &row.done));
        times.push(got.map_err(|e| format!("the client failed: {e}"))?.first_byte * 1e3);
    }
    let time = median(times).ok_or("nothing was measured")?;
    row.end(format!("{time:.1} ms"));
    Ok(vec![Checked::asked(
        "first byte of 1 kB, RTT 600 ms, idle link, open = \"fast\"",
        "≤ 615 ms",
        format!("{time:.1} ms"),
        time <= 615.0,
    )])
}

/// One stream over a link that needs the whole machine.
fn fast(board: &Board, _seeds: u64) -> Result<Vec<Checked>, String> {
    const RATE: f64 = 500e6;
    /// The start: the first round trips, in which nothing can have come yet.
    const START: f64 = 2.0;
    let link = link(500_000, 500_000, 300, 0.0);
    let work = Work::File { bytes: ByteCount(1_000_000_000), at_most: None };
    let runs = run_seeds("500 Mbit/s, 600 ms", &link, work, 1, board)?;
    let run = &runs[0];
    let after = run.work.first_byte + START;
    let share = rate_after(&run.work, after).ok_or("it was over too soon")? / RATE * 100.0;
    let mut checks = vec![Checked::asked(
        "500 Mbit/s, RTT 600 ms, one stream, everything on this machine",
        "≥ 60 % of the link after the start",
        format!("{share:.1} %"),
        share >= 60.0,
    )];
    checks.extend(processor_time(run));
    Ok(checks)
}

fn processor_time(run: &Run) -> Vec<Checked> {
    let Some([a, b]) = run.gateways else { return Vec::new() };
    let per_gb = |load: Load| format!("{:.2} s/GB", load.cpu / (run.work.bytes as f64 / GB));
    let memory = |load: Load| format!("{:.1} MB", load.memory as f64 / 1e6);
    vec![
        Checked::told("processor time of the receiving gateway", per_gb(a)),
        Checked::told("processor time of the sending gateway", per_gb(b)),
        Checked::told("memory of the receiving gateway under load", memory(a)),
        Checked::told("memory of the sending gateway under load", memory(b)),
    ]
}

/// Content received after `start`, bit/s.
fn rate_after(outcome: &Outcome, start: f64) -> Option<f64> {
    let before = outcome.received.iter().rev().find(|s| s.0 <= start)?;
    let last = outcome.received.last()?;
    (last.0 > before.0).then(|| (last.1 - before.1) * 8.0 / (last.0 - before.0))
}

/// Memory of idle gateways, and ten thousand connections through them.
fn crowd(board: &Board, _seeds: u64) -> Result<Vec<Checked>, String> {
    const COUNT: usize = 10_000;
    /// Long enough for what is over to be given back.
    const SETTLE: Duration = Duration::from_secs(3);
    let row = board.row("10,000 connections", 0);
    raise_descriptor_limit().map_err(|e| e.to_string())?;
    let topology = build(&link(20_000, 2_000, 300, 0.0), 1)?;
    row.begin();
    thread::sleep(SETTLE);
    let idle = memories(&topology)?;
    let server = CrowdServer::start(&topology.server, SERVER[0])
        .map_err(|e| format!("the server does not start: {e}"))?;
    let crowd = topology.client.run(|| crowd::gather(SERVER[0], COUNT));
    thread::sleep(SETTLE);
    let full = memories(&topology)?;
    row.end(format!("{} open", crowd.open.len()));
    drop((crowd.open, server));

    let most_idle = idle[0].max(idle[1]) as f64 / 1e6;
    let each = |i: usize| full[i].saturating_sub(idle[i]) as f64 / COUNT as f64 / 1e3;
    let most_each = each(0).max(each(1));
    let all = |failed: &[String]| match failed.first() {
        None => "none".to_owned(),
        Some(first) => format!("{}: {first}", failed.len()),
    };
    Ok(vec![
        Checked::asked(
            "memory of an idle gateway",
            "≤ 20 MB",
            format!("{most_idle:.1} MB"),
            most_idle <= 20.0,
        ),
        Checked::asked(
            "memory of a gateway for each idle connection",
            "≤ 20 kB",
            format!("client's side {:.1}, server's side {:.1} kB", each(0), each(1)),
            most_each <= 20.0,
        ),
        Checked::asked("refused of 10,000", "none", all(&crowd.refused), crowd.refused.is_empty()),
        Checked::asked("lost of 10,000", "none", all(&crowd.lost), crowd.lost.is_empty()),
        Checked::told("to open them all", format!("{:.1} s", crowd.opening)),
        Checked::told("until all had their answers", format!("{:.1} s", crowd.answering)),
    ])
}

fn memories(topology: &Topology) -> Result<[u64; 2], String> {
    let [a, b] = topology.gateways.as_ref().ok_or("there are no gateways")?;
    let memory = |load: std::io::Result<Load>| load.map(|l| l.memory).map_err(|e| e.to_string());
    Ok([memory(a.load())?, memory(b.load())?])
}

fn simulator(board: &Board, _seeds: u64) -> Result<Vec<Checked>, String> {
    let row = board.row("simulator, 1,000 seeds", 0);
    row.begin();
    let program = std::env::current_exe().map_err(|e| e.to_string())?;
    let mut command = Command::new(program);
    command.args(["sim", "--seed", "1", "--seeds", "1000"]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let begin = Instant::now();
    let output = die_with_parent(reset_signals(&mut command)).output();
    let output = output.map_err(|e| format!("the simulator does not start: {e}"))?;
    let seconds = begin.elapsed().as_secs_f64();
    row.end(format!("{seconds:.0} s"));
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    let summary = said.lines().rfind(|l| !l.trim().is_empty()).unwrap_or("it said nothing");
    let summary = summary.split(':').next().unwrap_or(summary).trim().to_owned();
    Ok(vec![
        Checked::asked("1,000 seeds", "all good", summary, output.status.success()),
        Checked::asked("time for them", "< 180 s", format!("{seconds:.0} s"), seconds < 180.0),
    ])
}

/// A link of so many kbit/s down and up, milliseconds one way, and loss.
fn link(down: u64, up: u64, delay_ms: u64, loss: f64) -> LinkSetup {
    let one = |kbps| ChannelConfig {
        rate: Some(BitRate::from_kbps(kbps)),
        delay: units::Duration::from_millis(delay_ms),
        loss: Ratio::from_f64(loss),
        ..ChannelConfig::default()
    };
    LinkSetup { down: one(down), up: one(up) }
}

fn plan(link: &LinkSetup, seed: u64) -> Plan {
    Plan { link: link.clone(), seed, gateways: Some(Pair::default()), ..Plan::default() }
}

fn build(link: &LinkSetup, seed: u64) -> Result<Topology, String> {
    Topology::build(&plan(link, seed)).map_err(|e| e.to_string())
}

fn run_seeds(
    title: &str,
    link: &LinkSetup,
    work: Work,
    seeds: u64,
    board: &Board,
) -> Result<Vec<Run>, String> {
    let row = board.row(title, work.bytes().0 * seeds);
    let all = (1..=seeds).map(|seed| Experiment { plan: plan(link, seed), before: None, work });
    run_on(all, &row)
}

/// The runs of one way of a scenario.
fn run_way(scenario: &Scenario, id: &str, seeds: u64, board: &Board) -> Result<Vec<Run>, String> {
    let way = scenario.way(id).ok_or_else(|| format!("{} has no way {id}", scenario.name))?;
    let bytes = Experiment::new(scenario, way, 1).bytes();
    let row = board.row(&format!("{}: {}", scenario.name, way.title), bytes * seeds);
    run_on((1..=seeds).map(|seed| Experiment::new(scenario, way, seed)), &row)
}

fn run_on(
    experiments: impl Iterator<Item = Experiment>,
    row: &Arc<ProgressRow>,
) -> Result<Vec<Run>, String> {
    let all: Vec<_> = experiments.map(|e| (e, row.clone())).collect();
    let runs: Result<Vec<Run>, String> = run_all(&all, &Gate::new(AT_ONCE)).into_iter().collect();
    let runs = runs?;
    if let Some(problem) = runs.iter().flat_map(|r| &r.problems).next() {
        return Err(format!("the emulated link is not to be trusted: {problem}"));
    }
    row.end(format!("{} runs", runs.len()));
    Ok(runs)
}

fn values(runs: &[Run], figure: Figure) -> impl Iterator<Item = f64> + '_ {
    runs.iter().filter_map(move |r| r.work.figure(figure))
}

fn middle(runs: &[Run], figure: Figure) -> Result<f64, String> {
    median(values(runs, figure)).ok_or_else(|| format!("{} was not measured", figure.title()))
}

/// The median and, of several runs, the lowest and the highest.
fn spread(runs: &[Run], figure: Figure, unit: &str) -> Result<String, String> {
    let middle = middle(runs, figure)?;
    let low = values(runs, figure).fold(f64::INFINITY, f64::min);
    let high = values(runs, figure).fold(0.0, f64::max);
    Ok(match runs.len() {
        1 => format!("{middle:.2} {unit}"),
        n => format!("{middle:.2} {unit} (median of {n}, {low:.2} to {high:.2})"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_after_the_start_leaves_the_start_out() {
        let received = vec![(0.5, 0.0), (2.0, 1e6), (2.5, 2e6), (4.5, 12e6)];
        let outcome = Outcome { received, ..Outcome::default() };
        assert_eq!(rate_after(&outcome, 2.5), Some(40e6));
        assert_eq!(rate_after(&outcome, 9.0), None);
    }
}
