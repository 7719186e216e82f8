//! `bentpipe-lab load`: one hub with thousands of terminals, all of which this process plays.
//!
//! The hub is a process of the program `bentpipe`, as users have it, and has a namespace of its
//! own. Its terminals are real endpoints of the crate `link`, each with an address of its own,
//! so what the hub sees are real handshakes, packets and streams; behind it is a server.

mod fleet;
mod hub;
mod server;
mod terminal;

use std::process::ExitCode;

use console::{Global, print, print_json};
use miette::miette;
use os::proc::raise_descriptor_limit;
use serde::Serialize;
use units::{BitRate, Duration};

use crate::testbed::rights;
use fleet::{Fleet, Requests};
use hub::{Hub, HubPlan, SERVER};
use server::Server;

/// How long all terminals together may take to have a session.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long transfers run before anything is measured.
const SETTLING: Duration = Duration::from_secs(4);
/// Between two small requests.
const SPACING: Duration = Duration::from_millis(10);
/// Every so many of them is one of a terminal that has a transfer.
const OF_BUSY: usize = 4;

/// Lets one hub have thousands of terminals, and measures what they get and what it costs.
///
/// The terminals are real ones, all played by this process over loopback. Some have a transfer
/// that fills their links; all in turn ask for something small meanwhile.
///
/// Example: bentpipe-lab load --terminals 1000 --busy 100 --rate 5Mbit
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Terminals, all of which have a session
    #[arg(long, value_name = "N", default_value_t = 1_000)]
    terminals: usize,
    /// Those of them that have a transfer
    #[arg(long, value_name = "N", default_value_t = 100)]
    busy: usize,
    /// The rate to each
    #[arg(long, value_name = "RATE", default_value = "5Mbit")]
    rate: BitRate,
    /// How long is measured
    #[arg(long, value_name = "TIME", default_value = "20s")]
    time: Duration,
    /// Threads of the hub
    #[arg(long, value_name = "N", default_value_t = 1)]
    shards: u32,
    /// Kill the hub, too, and measure until all terminals have a session with the next
    #[arg(long)]
    restart: bool,
}

/// What is asked of a hub.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Terminals, all of which have a session.
    pub terminals: usize,
    /// Those of them that have a transfer.
    pub busy: usize,
    /// The rate to each.
    pub rate: BitRate,
    /// How long is measured.
    pub time: Duration,
    /// Threads of the hub.
    pub shards: u32,
    /// It is killed and started again.
    pub restart: bool,
}

/// Sessions of all terminals.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Calls {
    /// From the first call, or from the hub's death, to the last session.
    pub seconds: f64,
    /// Processor time of the hub meanwhile, s.
    pub hub_cpu: f64,
    /// Memory of the hub then, bytes.
    pub hub_memory: u64,
}

/// What transfers got, and what small requests took beside them.
#[derive(Clone, Debug, Serialize)]
pub struct Traffic {
    /// What the transfers had together, bit/s of content.
    pub goodput: f64,
    /// How far the one that differs most is from their mean, in percent.
    pub unfair: f64,
    /// Jain's index of them.
    pub jain: f64,
    /// Processor time of the hub for a gigabyte, s.
    pub cpu_per_gb: f64,
    /// Processor time of each shard, s.
    pub shards: Vec<f64>,
    /// Memory of the hub, bytes.
    pub memory: u64,
    /// Requests that were answered, of free terminals and of those with a transfer.
    pub answered: [usize; 2],
    /// What 99 of 100 of them took at most, s.
    pub p99: [f64; 2],
    /// The round trip between them and the hub, s: the median.
    pub rtt: f64,
    /// Requests and transfers that came to nothing.
    pub failed: usize,
}

/// All that was measured.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    /// All terminals call.
    pub calls: Calls,
    /// Transfers and requests, if there were such.
    pub traffic: Option<Traffic>,
    /// Sessions with a hub that was started again.
    pub restart: Option<Calls>,
}

/// Runs the command.
///
/// # Errors
/// If there can be no hub, or its terminals do not reach it.
pub fn run(args: Args, global: &Global) -> miette::Result<ExitCode> {
    rights::prepare()?;
    let Args { terminals, busy, rate, time, shards, restart } = args;
    let load = Load { terminals, busy: busy.min(terminals), rate, time, shards, restart };
    let measured = measure(&load).map_err(|e| miette!("{e}"))?;
    match global.json {
        true => print_json(&measured)?,
        false => print(&text(&load, &measured))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Lets the hub have its load.
///
/// # Errors
/// One sentence, where there can be no hub, or not all terminals have a session.
pub fn measure(load: &Load) -> Result<Measured, String> {
    raise_descriptor_limit().map_err(|e| e.to_string())?;
    let plan = HubPlan { terminals: load.terminals, rate: load.rate, shards: load.shards };
    let mut hub = plan.start()?;
    let host = hub.host.clone();
    host.run(move || measure_inside(load, &mut hub))
}

fn measure_inside(load: &Load, hub: &mut Hub) -> Result<Measured, String> {
    let _server = Server::start(SERVER)?;
    let before = hub.gateway.load().map_err(|e| e.to_string())?.cpu;
    let mut fleet = Fleet::open(load.terminals, load.rate)?;
    let calls = call(hub, &mut fleet, load.terminals, before)?;
    let traffic = match load.busy {
        0 => None,
        _ => Some(exchange(load, hub, &mut fleet)?),
    };
    let restart = match load.restart {
        false => None,
        true => Some(restart(load, hub, &mut fleet)?),
    };
    Ok(Measured { calls, traffic, restart })
}

/// Until so many sessions have begun since the fleet was made.
fn call(hub: &Hub, fleet: &mut Fleet, sessions: usize, before: f64) -> Result<Calls, String> {
    let begin = fleet.now();
    if !fleet.run(PATIENCE, |fleet| fleet.tally.sessions >= sessions)? {
        let had = fleet.tally.sessions;
        return Err(format!("{had} of {sessions} sessions began in {PATIENCE}"));
    }
    let load = hub.gateway.load().map_err(|e| e.to_string())?;
    Ok(Calls {
        seconds: fleet.now().since(begin).as_secs_f64(),
        hub_cpu: load.cpu - before,
        hub_memory: load.memory,
    })
}

fn exchange(load: &Load, hub: &Hub, fleet: &mut Fleet) -> Result<Traffic, String> {
    let requests = Requests { spacing: SPACING, of_busy: OF_BUSY };
    let cpu = || hub.gateway.shards_cpu().map_err(|e| e.to_string());
    fleet.transfer(load.busy, true);
    fleet.ask(SETTLING, requests, load.busy)?;
    fleet.tally.answered = Default::default();
    let taken = |fleet: &Fleet| -> Vec<u64> {
        fleet.terminals[..load.busy].iter().map(|t| t.taken).collect()
    };
    let (before, cpu_before, begin) = (taken(fleet), cpu()?, fleet.now());
    fleet.ask(load.time, requests, load.busy)?;
    let (after, cpu_after, end) = (taken(fleet), cpu()?, fleet.now());
    let had: Vec<f64> = before.iter().zip(&after).map(|(b, a)| (a - b) as f64).collect();
    let shards: Vec<f64> = cpu_before.iter().zip(&cpu_after).map(|(b, a)| a - b).collect();
    let rtts: Vec<Duration> = fleet.terminals.iter().filter_map(|t| t.rtt()).collect();
    fleet.transfer(load.busy, false);
    // What was on its way has arrived by then.
    fleet.run(Duration::from_secs(1), |_| false)?;
    let sum: f64 = had.iter().sum();
    Ok(Traffic {
        goodput: sum * 8.0 / end.since(begin).as_secs_f64(),
        unfair: unfair(&had),
        jain: jain(&had),
        cpu_per_gb: shards.iter().sum::<f64>() / (sum / 1e9),
        shards,
        memory: hub.gateway.load().map_err(|e| e.to_string())?.memory,
        answered: fleet.tally.answered.each_ref().map(Vec::len),
        p99: fleet.tally.answered.each_ref().map(|times| quantile(times, 99)),
        rtt: quantile(&rtts, 50),
        failed: fleet.tally.failed,
    })
}

/// The hub dies and is started at once. It knows where its terminals were, and calls them.
fn restart(load: &Load, hub: &mut Hub, fleet: &mut Fleet) -> Result<Calls, String> {
    // Until all addresses are on disk.
    fleet.run(Duration::from_secs(3), |_| false)?;
    let sessions = fleet.tally.sessions + load.terminals;
    hub.gateway.kill_and_start(&hub.host).map_err(|e| e.to_string())?;
    call(hub, fleet, sessions, 0.0)
}

/// How far that which differs most is from the mean, in percent.
fn unfair(had: &[f64]) -> f64 {
    let mean = had.iter().sum::<f64>() / had.len().max(1) as f64;
    had.iter().map(|x| (x - mean).abs() / mean * 100.0).fold(0.0, f64::max)
}

fn jain(had: &[f64]) -> f64 {
    let (sum, squares) = had.iter().fold((0.0, 0.0), |(s, q), x| (s + x, q + x * x));
    sum * sum / (squares * had.len() as f64)
}

/// The least of which so many in a hundred are no longer; zero of none.
fn quantile(times: &[Duration], percent: usize) -> f64 {
    let mut times = times.to_vec();
    times.sort_unstable();
    let at = (times.len() * percent).div_ceil(100).saturating_sub(1);
    times.get(at).map_or(0.0, |time| time.as_secs_f64())
}

/// As it is printed.
fn text(load: &Load, measured: &Measured) -> String {
    let calls = |what: &str, calls: &Calls| {
        format!(
            "{what}: {} sessions in {:.1} s, {:.1} s of the hub's processor, {:.0} MB\n",
            load.terminals,
            calls.seconds,
            calls.hub_cpu,
            calls.hub_memory as f64 / 1e6
        )
    };
    let mut text = calls("all call", &measured.calls);
    if let Some(t) = &measured.traffic {
        text += &format!(
            "{} transfers: {:.1} Mbit/s together, the one that differs most by {:.2} %, Jain \
             {:.5}; {:.2} s of the hub's processor for a GB, by shard {:.2?} s; {:.0} MB\n{} small \
             requests: 99 % within {:.1} ms, beside a transfer {} within {:.1} ms; round trip \
             {:.1} ms; {} failed\n",
            load.busy,
            t.goodput / 1e6,
            t.unfair,
            t.jain,
            t.cpu_per_gb,
            t.shards,
            t.memory as f64 / 1e6,
            t.answered[0],
            t.p99[0] * 1e3,
            t.answered[1],
            t.p99[1] * 1e3,
            t.rtt * 1e3,
            t.failed
        );
    }
    text + &measured.restart.iter().map(|c| calls("the hub was killed", c)).collect::<String>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_that_differ_are_told_by_both_measures() {
        assert_eq!((unfair(&[5.0; 4]), jain(&[5.0; 4])), (0.0, 1.0));
        assert!((unfair(&[9.0, 11.0]) - 10.0).abs() < 1e-9);
        assert!((jain(&[1.0, 0.0]) - 0.5).abs() < 1e-9);
    }

    #[test]
    fn of_a_hundred_times_the_last_but_one_is_the_quantile() {
        let times: Vec<Duration> = (1..=100).map(Duration::from_secs).collect();
        assert_eq!((quantile(&times, 99), quantile(&times, 50)), (99.0, 50.0));
        assert_eq!(quantile(&[Duration::from_secs(3)], 99), 3.0);
        assert_eq!(quantile(&[], 99), 0.0);
    }
}
