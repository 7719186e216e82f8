//! `bentpipe-lab sim`: whole nodes over a bad link in virtual time (see the `sim` crate).

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use console::{Global, print, print_json};
use miette::miette;
use serde::Serialize;
use sim::buffers::Router;
use sim::calls::{CallPlan, CallReport, run_calls};
use sim::net::{NetPlan, run_net};
use sim::{Failure, Plan, Report};
use units::{BitRate, Duration};

use crate::plot::{LineChart, Series};

/// Runs two gateways over a bad link in virtual time and checks what they promise.
///
/// A seed means a run of at least a minute with at least three kinds of fault, after
/// which everything must converge. It replays exactly: the same seed prints the same
/// hash.
///
/// With --star, --mesh or --row many nodes run: a hub whose terminals share its channel, nodes of
/// which each reaches every other, several hops in a row. With --calls the nodes have a line that
/// is dialled, with prices, budgets and rules.
///
/// Examples: bentpipe-lab sim --seeds 100; bentpipe-lab sim --seed 7; bentpipe-lab sim --star 200
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// The (first) seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many seeds to run, one after the other from the first.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    seeds: u64,
    /// How many run at once [default: one per processor].
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=256))]
    jobs: Option<u64>,
    /// Run each seed twice and compare the hashes.
    #[arg(long)]
    twice: bool,
    /// Print everything that happens (one seed only).
    #[arg(long)]
    trace: bool,
    /// Print the hash of each seed, a line each, as crates/sim/hashes.txt has them.
    #[arg(long, conflicts_with_all = ["twice", "trace"])]
    hash: bool,
    /// Terminals around one hub.
    #[arg(long, value_name = "TERMINALS", group = "net", value_parser = clap::value_parser!(u64).range(1..=2_000))]
    star: Option<u64>,
    /// Nodes of which each reaches every other.
    #[arg(long, value_name = "NODES", group = "net", value_parser = clap::value_parser!(u64).range(2..=60))]
    mesh: Option<u64>,
    /// Hops in a row.
    #[arg(long, value_name = "HOPS", group = "net", value_parser = clap::value_parser!(u64).range(1..=60))]
    row: Option<u64>,
    /// A line between two nodes that is dialled, drops and costs.
    #[arg(long, group = "net")]
    calls: bool,
    /// Instead of seeds: what a router before a satellite must hold, by TCP's window and the rate,
    /// and between gateways; a figure goes into this file.
    #[arg(long, value_name = "FILE.svg", conflicts_with_all = ["seed", "seeds", "twice", "trace", "hash", "net"])]
    buffers: Option<PathBuf>,
    /// Instead of seeds: what one stream carries over a grid of rate, round trip, loss and
    /// asymmetry.
    #[arg(long, conflicts_with_all = ["seed", "seeds", "twice", "trace", "hash", "net", "buffers"])]
    grid: bool,
}

/// Runs the command.
///
/// # Errors
/// If a seed failed; the text holds the command that repeats it.
pub fn run(args: Args, global: &Global) -> miette::Result<ExitCode> {
    if args.grid {
        return run_grid(&args);
    }
    if let Some(file) = &args.buffers {
        return study_buffers(file);
    }
    if args.hash {
        return print_hashes(&args);
    }
    if args.seeds == 1 && args.calls {
        return run_one_line(&args, global);
    }
    if args.seeds == 1 {
        return match args.net(args.seed) {
            Some(plan) => run_one_net(&plan, &args, global),
            None => run_one(&args, global),
        };
    }
    run_many(&args, global)
}

impl Args {
    /// Many nodes, if that is asked for.
    fn net(&self, seed: u64) -> Option<NetPlan> {
        let star = self.star.map(|n| NetPlan::drawn_star(seed, n as usize));
        let mesh = || self.mesh.map(|n| NetPlan::drawn_mesh(seed, n as usize));
        let row = || self.row.map(|n| NetPlan::drawn_row(seed, n as usize));
        star.or_else(mesh).or_else(row)
    }
}

fn print_hashes(args: &Args) -> miette::Result<ExitCode> {
    for i in 0..args.seeds {
        let seed = args.seed.wrapping_add(i);
        let ran = run_seed(args, seed).map_err(|why| miette!("{why}"))?;
        let name = match (args.star, args.mesh, args.row) {
            _ if args.calls => "calls 1 ".to_owned(),
            (Some(n), ..) => format!("star {n} "),
            (_, Some(n), _) => format!("mesh {n} "),
            (.., Some(n)) => format!("row {n} "),
            _ => String::new(),
        };
        print(&format!("{name}{seed} {}\n", ran.hash))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Everything that happens goes to standard error.
fn trace(args: &Args) -> Option<sim::Trace<'static>> {
    args.trace.then(|| {
        let mut out = std::io::stderr();
        let print: sim::Trace<'_> = Box::new(move |at, what| {
            // A listener that has gone does not stop the run.
            let _ = writeln!(out, "{at:?} {what}");
        });
        print
    })
}

fn run_one_net(plan: &NetPlan, args: &Args, global: &Global) -> miette::Result<ExitCode> {
    let begun = Instant::now();
    let _named = named(plan.arguments.clone());
    let r = run_net(plan, trace(args)).map_err(describe)?;
    if args.twice && r != run_net(plan, None).map_err(describe)? {
        return Err(miette!(
            "it does not replay; repeat it with: bentpipe-lab sim {} --twice",
            plan.arguments
        ));
    }
    if global.json {
        print_json(&r)?;
        return Ok(ExitCode::SUCCESS);
    }
    print(&format!(
        "{} nodes, seed {}: ok, hash {}, {}.{:03} s of virtual time in {:.1} s\n  \
         {} connections ({} ended in good order, {} resets), {} stream bytes, {} packets\n",
        plan.nodes,
        r.seed,
        r.hash,
        r.virtual_ms / 1000,
        r.virtual_ms % 1000,
        begun.elapsed().as_secs_f64(),
        r.connections,
        r.finished,
        r.resets,
        r.bytes,
        r.packets
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// A run of a line, twice if wanted.
fn run_line(args: &Args, seed: u64, trace: Option<sim::Trace<'_>>) -> Result<CallReport, String> {
    let plan = CallPlan::of_seed(seed);
    let _named = named(format!("--calls --seed {seed}"));
    let report = run_calls(&plan, trace).map_err(|f| f.to_string())?;
    if args.twice && report != run_calls(&plan, None).map_err(|f| f.to_string())? {
        return Err(format!("bentpipe-lab sim --calls --seed {seed} --twice does not replay"));
    }
    Ok(report)
}

fn run_one_line(args: &Args, global: &Global) -> miette::Result<ExitCode> {
    let r = run_line(args, args.seed, trace(args)).map_err(|why| miette!("{why}"))?;
    if global.json {
        print_json(&r)?;
        return Ok(ExitCode::SUCCESS);
    }
    print(&format!(
        "a line, seed {}: ok, hash {}, {} s of virtual time\n  \
         {} connections, {} stream bytes, {} packets; dialled {} times, {} calls, {} dropped\n",
        r.seed,
        r.hash,
        r.virtual_ms / 1000,
        r.connections,
        r.bytes,
        r.packets,
        r.dials,
        r.calls,
        r.drops
    ))?;
    Ok(ExitCode::SUCCESS)
}

fn jobs(args: &Args) -> u64 {
    let one_each = || std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
    args.jobs.unwrap_or_else(one_each)
}

fn run_grid(args: &Args) -> miette::Result<ExitCode> {
    let cells = sim::grid::cells();
    let shares = Mutex::new(vec![0.0; cells.len()]);
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let work = || -> Result<(), Failure> {
            while let Some(i) = cells.len().checked_sub(1 + next.fetch_add(1, Ordering::Relaxed)) {
                let share = sim::grid::measure(&cells[i])?.share;
                shares.lock().unwrap_or_else(PoisonError::into_inner)[i] = share;
            }
            Ok(())
        };
        let threads: Vec<_> = (0..jobs(args)).map(|_| scope.spawn(work)).collect();
        threads
            .into_iter()
            .try_for_each(|t| t.join().map_err(|_| miette!("a thread failed"))?.map_err(describe))
    })?;
    let shares = shares.into_inner().unwrap_or_else(PoisonError::into_inner);
    print(&sim::grid::text(&shares))?;
    Ok(ExitCode::SUCCESS)
}

fn run_one(args: &Args, global: &Global) -> miette::Result<ExitCode> {
    let plan = Plan::of_seed(args.seed);
    let _named = named(format!("--seed {}", args.seed));
    let report = sim::run_with(&plan, trace(args)).map_err(describe)?;
    if args.twice {
        compare(&report, &sim::run(args.seed).map_err(describe)?)?;
    }
    if global.json {
        print_json(&report)?;
    } else {
        print(&one_line(&report))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn one_line(r: &Report) -> String {
    format!(
        "seed {}: ok, hash {}, {}.{:03} s of virtual time, converged {} ms after the last fault\n  \
         faults: {}\n  \
         {} connections ({} ended in good order, {} resets), {} stream bytes, {} of {} datagrams, \
         {} packets\n",
        r.seed,
        r.hash,
        r.virtual_ms / 1000,
        r.virtual_ms % 1000,
        r.converged_after_ms,
        r.faults.join(", "),
        r.connections,
        r.finished,
        r.resets,
        r.bytes,
        r.datagrams_delivered,
        r.datagrams,
        r.packets.iter().sum::<u64>()
    )
}

fn describe(failure: Failure) -> miette::Report {
    miette!("{failure}")
}

fn compare(first: &Report, second: &Report) -> miette::Result<()> {
    if first == second {
        return Ok(());
    }
    Err(miette!(
        "seed {} does not replay: its hash was {} and then {}; repeat it with: bentpipe-lab sim --seed {} --twice",
        first.seed,
        first.hash,
        second.hash,
        first.seed
    ))
}

/// What many seeds did together.
#[derive(Debug, Default, Serialize)]
struct Summary {
    first_seed: u64,
    seeds: u64,
    failures: Vec<String>,
    /// Of all hashes, in the order of the seeds.
    hash: String,
    seconds: f64,
    virtual_hours: f64,
    connections: u64,
    bytes: u64,
    packets: u64,
    slowest_convergence_ms: u64,
}

/// Failures that are printed; more of them say nothing new.
const MOST_FAILURES: usize = 20;

fn run_many(args: &Args, global: &Global) -> miette::Result<ExitCode> {
    let jobs = jobs(args);
    let begun = Instant::now();
    let next = AtomicU64::new(0);
    let outcomes = Mutex::new(Vec::with_capacity(args.seeds as usize));
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                loop {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    if i >= args.seeds {
                        return;
                    }
                    let seed = args.seed.wrapping_add(i);
                    let outcome = run_seed(args, seed);
                    outcomes.lock().expect("no run panics while it holds this").push((i, outcome));
                }
            });
        }
    });
    let mut outcomes = outcomes.into_inner().expect("no run panics while it holds this");
    outcomes.sort_by_key(|(i, _)| *i);
    let summary = sum_up(args, outcomes, begun.elapsed().as_secs_f64());
    if global.json {
        print_json(&summary)?;
    } else {
        print(&summary.text())?;
    }
    Ok(if summary.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What the recommendation's host is on, and the round trip of its satellite.
const FAST: BitRate = BitRate::from_mbps(500);
const SATELLITE: Duration = Duration::from_millis(540);
const LINKS: [u64; 3] = [45, 135, 270];

fn study_buffers(file: &Path) -> miette::Result<ExitCode> {
    let windows: Vec<u64> = (1..=20).map(|n| n * 500).collect();
    let mut chart = LineChart {
        title: "What waits in a router before the satellite".to_owned(),
        caption: "while TCP starts from a network of 500 Mbit/s, by its window; 540 ms".to_owned(),
        x_label: "TCP's window (packets)".to_owned(),
        y_label: "longest queue (packets)".to_owned(),
        ..LineChart::default()
    };
    let mut text = format!("{:>8} {:>8} {:>8} {:>10}\n", "Mbit/s", "window", "queue", "in 10 s");
    for (n, slow) in LINKS.into_iter().enumerate() {
        let router = Router { fast: FAST, slow: BitRate::from_mbps(slow), rtt: SATELLITE };
        let mut points = Vec::new();
        for window in &windows {
            let found = router.slow_start(*window);
            points.push((*window as f64, found.queue as f64));
            let mbps = found.rate.as_bps() as f64 / 1e6;
            text += &format!("{slow:>8} {window:>8} {:>8} {mbps:>10.1}\n", found.queue);
        }
        chart.series.push(Series { name: format!("{slow} Mbit/s"), colour: n + 1, points });
        let queue = router.gateways().map_err(describe)?;
        text += &format!("{slow:>8} {:>8} {queue:>8}\n", "gateways");
        if slow == 135 {
            let points = [windows[0], windows[windows.len() - 1]];
            let points = points.map(|window| (window as f64, queue as f64)).to_vec();
            chart.series.push(Series {
                name: "135 Mbit/s, gateways".to_owned(),
                colour: 5,
                points,
            });
        }
    }
    let half = [windows[0], windows[windows.len() - 1]];
    let points = half.map(|window| (window as f64, window as f64 / 2.0)).to_vec();
    chart.series.push(Series { name: "half the window".to_owned(), colour: 0, points });
    std::fs::write(file, chart.picture())
        .map_err(|e| miette!("cannot write {}: {e}", file.display()))?;
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// What is summed up of a run.
struct Ran {
    hash: String,
    virtual_ms: u64,
    connections: u64,
    bytes: u64,
    packets: u64,
    converged_after_ms: u64,
}

fn run_seed(args: &Args, seed: u64) -> Result<Ran, String> {
    if args.calls {
        let r = run_line(args, seed, None)?;
        return Ok(Ran {
            hash: r.hash,
            virtual_ms: r.virtual_ms,
            connections: r.connections,
            bytes: r.bytes,
            packets: r.packets,
            converged_after_ms: 0,
        });
    }
    if let Some(plan) = args.net(seed) {
        let _named = named(plan.arguments.clone());
        let r = run_net(&plan, None).map_err(|f| f.to_string())?;
        if args.twice && r != run_net(&plan, None).map_err(|f| f.to_string())? {
            return Err(format!("bentpipe-lab sim {} does not replay", plan.arguments));
        }
        return Ok(Ran {
            hash: r.hash,
            virtual_ms: r.virtual_ms,
            connections: r.connections,
            bytes: r.bytes,
            packets: r.packets,
            converged_after_ms: 0,
        });
    }
    let _named = named(format!("--seed {seed}"));
    let report = sim::run(seed).map_err(|f| f.to_string())?;
    if args.twice {
        let again = sim::run(seed).map_err(|f| f.to_string())?;
        compare(&report, &again).map_err(|e| e.to_string())?;
    }
    Ok(Ran {
        packets: report.packets.iter().sum(),
        hash: report.hash,
        virtual_ms: report.virtual_ms,
        connections: report.connections,
        bytes: report.bytes,
        converged_after_ms: report.converged_after_ms,
    })
}

fn sum_up(args: &Args, outcomes: Vec<(u64, Result<Ran, String>)>, seconds: f64) -> Summary {
    let mut sum =
        Summary { first_seed: args.seed, seeds: args.seeds, seconds, ..Summary::default() };
    let mut hash = 0u64;
    for (_, outcome) in outcomes {
        match outcome {
            Err(why) => sum.failures.push(why),
            Ok(report) => {
                let one = u64::from_str_radix(&report.hash, 16).unwrap_or_default();
                hash = (hash.rotate_left(7) ^ one).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                sum.virtual_hours += report.virtual_ms as f64 / 3.6e6;
                sum.connections += report.connections;
                sum.bytes += report.bytes;
                sum.packets += report.packets;
                sum.slowest_convergence_ms =
                    sum.slowest_convergence_ms.max(report.converged_after_ms);
            }
        }
    }
    sum.hash = format!("{hash:016x}");
    sum
}

impl Summary {
    fn text(&self) -> String {
        let mut text = String::new();
        for failure in self.failures.iter().take(MOST_FAILURES) {
            text += &format!("FAILED {failure}\n");
        }
        text += &format!(
            "{} of {} seeds from {} on are good: hash {}, {:.1} s for {:.1} virtual hours, \
             {} connections, {:.1} MB, {} packets; slowest convergence {} ms\n",
            self.seeds - self.failures.len() as u64,
            self.seeds,
            self.first_seed,
            self.hash,
            self.seconds,
            self.virtual_hours,
            self.connections,
            self.bytes as f64 / 1e6,
            self.packets,
            self.slowest_convergence_ms
        );
        text
    }
}

thread_local! {
    /// What repeats the run of this thread, for a panic's message.
    static REPEAT: std::cell::RefCell<Option<String>> = const { std::cell::RefCell::new(None) };
}

/// Until this is dropped, a panic of this thread says how to repeat it.
struct Named;

impl Drop for Named {
    fn drop(&mut self) {
        REPEAT.set(None);
    }
}

/// The run is repeated by these arguments.
fn named(arguments: String) -> Named {
    static HOOK: std::sync::Once = std::sync::Once::new();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            before(info);
            REPEAT.with_borrow(|repeat| {
                if let Some(arguments) = repeat {
                    eprintln!("repeat it with: bentpipe-lab sim {arguments}");
                }
            });
        }));
    });
    REPEAT.set(Some(arguments));
    Named
}
