//! `bentpipe-lab sim`: whole nodes over a bad link in virtual time (see the `sim` crate).

use std::io::Write as _;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use console::{Global, print, print_json};
use miette::miette;
use serde::Serialize;
use sim::{Failure, Plan, Report};

/// Runs two gateways over a bad link in virtual time and checks what they promise.
///
/// A seed means a run of at least a minute with at least three kinds of fault, after
/// which everything must converge. It replays exactly: the same seed prints the same
/// hash.
///
/// Examples: bentpipe-lab sim --seeds 100; bentpipe-lab sim --seed 7
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
    /// Instead of seeds: what one stream carries over a grid of rate, round trip, loss and
    /// asymmetry.
    #[arg(long, conflicts_with_all = ["seed", "seeds", "twice", "trace"])]
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
    if args.seeds == 1 {
        return run_one(&args, global);
    }
    run_many(&args, global)
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
    let _named = name_seed(args.seed);
    let trace: Option<sim::Trace<'_>> = args.trace.then(|| {
        let mut out = std::io::stderr();
        let print: sim::Trace<'_> = Box::new(move |at, what| {
            // A listener that has gone does not stop the run.
            let _ = writeln!(out, "{at:?} {what}");
        });
        print
    });
    let report = sim::run_with(&plan, trace).map_err(describe)?;
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
                    let outcome = run_seed(seed, args.twice);
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

fn run_seed(seed: u64, twice: bool) -> Result<Report, String> {
    let _named = name_seed(seed);
    let report = sim::run(seed).map_err(|f| f.to_string())?;
    if twice {
        let again = sim::run(seed).map_err(|f| f.to_string())?;
        compare(&report, &again).map_err(|e| e.to_string())?;
    }
    Ok(report)
}

fn sum_up(args: &Args, outcomes: Vec<(u64, Result<Report, String>)>, seconds: f64) -> Summary {
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
                sum.packets += report.packets.iter().sum::<u64>();
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
    /// The seed that this thread runs, for a panic's message.
    static SEED: std::cell::Cell<Option<u64>> = const { std::cell::Cell::new(None) };
}

/// Until this is dropped, a panic of this thread says how to repeat it.
struct Named;

impl Drop for Named {
    fn drop(&mut self) {
        SEED.set(None);
    }
}

fn name_seed(seed: u64) -> Named {
    static HOOK: std::sync::Once = std::sync::Once::new();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            before(info);
            if let Some(seed) = SEED.get() {
                eprintln!("repeat it with: bentpipe-lab sim --seed {seed}");
            }
        }));
    });
    SEED.set(Some(seed));
    Named
}
