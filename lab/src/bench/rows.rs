//! The rows of the bench.

use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use os::proc::{die_with_parent, raise_descriptor_limit, reset_signals};

use super::browser;
use super::carriers;
use super::cases::{Case, Must, measure, run_way};
use super::changing;
use super::checked::Checked;
use super::crowd::{self, CrowdServer};
use super::dedup;
use super::exchanges;
use super::fleet;
use super::flood;
use super::hub;
use super::pages;
use super::quic;
use super::setup::{build, build_with, file, link, lossy, memories};
use super::squeeze;
use super::table;
use super::two_hops;
use super::voice;
use super::without;
use crate::testbed::figure::Figure;
use crate::testbed::gateway::Pair;
use crate::testbed::measure::{Outcome, median};
use crate::testbed::progress::{Board, Row as ProgressRow};
use crate::testbed::results::Run;
use crate::testbed::scenario::Scenario;
use crate::testbed::topology::{SERVER, Topology};
use crate::testbed::traffic::{self, Server, Wanted};

/// A row: its name and how it is measured.
pub struct Row {
    /// For `--only`.
    pub name: &'static str,
    /// Measures with so many seeds.
    pub measure: fn(&Board, u64) -> Result<Vec<Checked>, String>,
}

/// All rows, in the order in which they run.
pub const ALL: &[Row] = &[
    Row { name: "noisy-100k", measure: table::noisy_100k },
    Row { name: "ber-unknown", measure: changing::ber_unknown },
    Row { name: "t1", measure: table::t1 },
    Row { name: "one-stream", measure: table::one_stream },
    Row { name: "110-streams", measure: table::many_streams },
    Row { name: "thin-return", measure: table::thin_return },
    Row { name: "155-20", measure: table::ka_band },
    Row { name: "fast", measure: table::fast },
    Row { name: "gigabit", measure: table::gigabit },
    Row { name: "leo", measure: changing::leo },
    Row { name: "ka-fade", measure: changing::ka_fade },
    Row { name: "bursts", measure: changing::bursts },
    Row { name: "jitter", measure: changing::jitter },
    Row { name: "policer", measure: changing::policer },
    Row { name: "cpu", measure: changing::cpu },
    Row { name: "telephone", measure: table::telephone },
    Row { name: "small", measure: table::small },
    Row { name: "250-3", measure: table::broadband },
    Row { name: "20-2", measure: table::vsat },
    Row { name: "cable", measure: table::cable },
    Row { name: "umd-ftp", measure: umd_ftp },
    Row { name: "wise-web", measure: wise_web },
    Row { name: "geo", measure: geo },
    Row { name: "without", measure: without::without },
    Row { name: "without-fast", measure: without::without_fast },
    Row { name: "first-byte", measure: first_byte },
    Row { name: "first-contact", measure: first_contact },
    Row { name: "crowd", measure: crowd },
    Row { name: "ten-calls", measure: voice::ten_calls },
    Row { name: "quic", measure: quic::quic },
    Row { name: "hub", measure: hub::hub },
    Row { name: "hub-thousand", measure: fleet::thousand },
    Row { name: "hub-restart", measure: fleet::restart },
    Row { name: "flood", measure: flood::flood },
    Row { name: "two-hops", measure: two_hops::two_hops },
    Row { name: "failover", measure: carriers::failover },
    Row { name: "two-carriers", measure: carriers::two_carriers },
    Row { name: "source-code", measure: squeeze::source_code },
    Row { name: "small-exchanges", measure: squeeze::small_exchanges },
    Row { name: "noise", measure: squeeze::noise },
    Row { name: "fast-text", measure: squeeze::fast_text },
    Row { name: "keystrokes", measure: squeeze::keystrokes },
    Row { name: "idle-compressed", measure: squeeze::idle_streams },
    Row { name: "second-transfer", measure: dedup::second_transfer },
    Row { name: "dedup-cost", measure: dedup::cost },
    Row { name: "idle-deduplicated", measure: dedup::idle_streams },
    Row { name: "web-pages", measure: pages::web_pages },
    Row { name: "web-again", measure: pages::web_again },
    Row { name: "web-noisy", measure: exchanges::web_noisy },
    Row { name: "web-cached", measure: exchanges::web_cached },
    Row { name: "browser", measure: browser::browser },
    Row { name: "simulator", measure: simulator },
];

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
    let busy = runs.iter().filter_map(|r| plateau(&r.work));
    let busy = median(busy).ok_or("the link was not measured")?;
    Ok(vec![Checked::asked(
        "200 kB over 100 kbit/s, BER 1e-5: utilisation from first to last byte",
        "≥ 95 %",
        format!("{busy:.1} %"),
        busy >= 95.0,
    )])
}

/// Utilisation in percent from one round trip after the start until the server's last
/// data left, which is one more round trip before the end.
fn plateau(outcome: &Outcome) -> Option<f64> {
    let from = outcome.started + outcome.first_byte;
    let to = outcome.started + outcome.complete - outcome.first_byte;
    outcome.down.utilisation(from, to).map(|u| u * 100.0)
}

fn geo(board: &Board, seeds: u64) -> Result<Vec<Checked>, String> {
    let link = lossy(link(20_000_000, 2_000_000, 300), 0.001);
    let what = "20/2 Mbit/s, 600 ms, loss 0.1 %: 20 MB";
    let case = Case::new(what, link, file(20_000_000), Must::Time(9.3));
    measure(board, &[case.known("8.9 s", "").of(seeds)])
}

/// Several small answers, one after the other over an idle link.
fn first_byte(board: &Board, seeds: u64) -> Result<Vec<Checked>, String> {
    const SMALL: u64 = 1_000;
    let link = link(20_000_000, 2_000_000, 300);
    let row = board.row("small answers", SMALL * seeds);
    let topology = build(&link, 1)?;
    row.begin();
    let _server = serve(&topology)?;
    let mut times = Vec::new();
    for seed in 0..seeds {
        thread::sleep(Duration::from_secs(1));
        times.push(ask(&topology, seed, SMALL, &row)?);
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

/// The first connection to a server that nothing is known of: each in a network of its own.
fn first_contact(board: &Board, seeds: u64) -> Result<Vec<Checked>, String> {
    const SMALL: u64 = 1_000;
    let link = link(20_000_000, 2_000_000, 300);
    let row = board.row("first contacts", SMALL * seeds);
    row.begin();
    let mut times = Vec::new();
    for seed in 0..seeds {
        let auto = Pair { peer: "open = \"auto\"\n".into(), ..Pair::default() };
        let topology = build_with(&link, seed + 1, auto)?;
        let _server = serve(&topology)?;
        thread::sleep(Duration::from_secs(3));
        times.push(ask(&topology, seed, SMALL, &row)?);
    }
    let time = median(times).ok_or("nothing was measured")?;
    row.end(format!("{time:.1} ms"));
    Ok(vec![Checked::asked(
        "first contact under open = \"auto\": first byte of 1 kB, RTT 600 ms",
        "≤ 1220 ms",
        format!("{time:.1} ms"),
        time <= 1_220.0,
    )])
}

fn serve(topology: &Topology) -> Result<Server, String> {
    let started = topology.server.run(|| Server::start(SERVER[0], topology.origin));
    started.map_err(|e| format!("the server does not start: {e}"))
}

/// From connecting to the first byte of the answer, ms.
fn ask(topology: &Topology, seed: u64, bytes: u64, row: &ProgressRow) -> Result<f64, String> {
    let (address, wanted) = (SocketAddr::new(SERVER[0], traffic::PORT), Wanted::whole(seed, bytes));
    let got = topology.client.run(|| traffic::fetch(address, wanted, topology.origin, &row.done));
    Ok(got.map_err(|e| format!("the client failed: {e}"))?.first_byte * 1e3)
}

/// Memory of idle gateways, and ten thousand connections through them.
fn crowd(board: &Board, _seeds: u64) -> Result<Vec<Checked>, String> {
    const COUNT: usize = 10_000;
    /// Long enough for what is over to be given back.
    const SETTLE: Duration = Duration::from_secs(3);
    let row = board.row("10,000 connections", 0);
    raise_descriptor_limit().map_err(|e| e.to_string())?;
    let topology = build(&link(20_000_000, 2_000_000, 300), 1)?;
    row.begin();
    thread::sleep(SETTLE);
    let idle = memories(&topology)?;
    let server = CrowdServer::start(&topology.server, SERVER[0])
        .map_err(|e| format!("the server does not start: {e}"))?;
    let crowd = crowd::gather(&topology, SERVER[0], COUNT)?;
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

fn middle(runs: &[Run], figure: Figure) -> Result<f64, String> {
    median(runs.iter().filter_map(|r| r.work.figure(figure)))
        .ok_or_else(|| format!("{} was not measured", figure.title()))
}
