//! `bentpipe-lab emulate`: a satellite link between two interfaces or namespaces.
//!
//! The link's arithmetic is the crate `channel`, one [`channel::Channel`] per direction; this
//! module moves real frames through it in real time. [`Emulator::start`] runs it in a
//! thread, for the lab and the demo as well as for the command.
//!
//! ```no_run
//! # use bentpipe_lab::emulate::{Emulator, EmulatorOptions, PortSpec};
//! # fn main() -> miette::Result<()> {
//! let left = "ns:ship".parse::<PortSpec>().unwrap().open(1_500)?;
//! let right = "ns:shore".parse::<PortSpec>().unwrap().open(1_500)?;
//! let mut config = channel::ChannelConfig::default();
//! config.delay = units::Duration::from_millis(270);
//! let options = EmulatorOptions::default();
//! let link = Emulator::start(left, right, config.clone(), config, options).unwrap();
//! // …
//! let report = link.stop().unwrap();
//! assert!(report.problems.is_empty());
//! # Ok(()) }
//! ```

mod arena;
mod args;
mod capture;
mod engine;
mod ethernet;
mod handle;
mod pace;
mod report;
mod state;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use channel::ChannelConfig;

use console::{Global, log, print};
use miette::{IntoDiagnostic as _, miette};
use os::poll::{Events, Interest, Poller, Signal, Signals};
use units::{Duration, Instant};

pub use args::{PortSpec, read_link};
pub use capture::CaptureOptions;
pub use handle::{Direction, Emulator, EmulatorError, EmulatorHandle, EmulatorOptions};
pub use report::{DirectionReport, Lateness, PortReport, Report};

/// Joins two interfaces or namespaces by an emulated satellite link.
///
/// A port is an interface (eth1), which the emulator takes over, or ns:NAME[:IFACE],
/// which makes the interface IFACE (sat0) in the namespace NAME. "Up" is from left to
/// right. Without any other option the link is an ideal wire.
///
/// Example: bentpipe-lab emulate --left ns:ship --right ns:shore --rate 20Mbit --delay 300ms
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = "Each option for both directions also exists as --up-… and --down-… \
                        (see --help).\nSIGUSR1 writes the report anew; SIGINT and SIGTERM end \
                        the link in good order.")]
pub struct EmulateArgs {
    /// The left port: an interface, or ns:NAME[:IFACE]
    #[arg(long, value_name = "PORT")]
    left: PortSpec,
    /// The right port
    #[arg(long, value_name = "PORT")]
    right: PortSpec,
    /// Read the link from a TOML or JSON file with the tables both, up and down
    #[arg(long, value_name = "FILE")]
    link: Option<PathBuf>,
    /// MTU of interfaces that are made
    #[arg(long, default_value_t = 1_500, value_name = "BYTES")]
    mtu: usize,
    /// Equal seeds lose the same packets of equal sequences
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// End after this time [default: on a signal]
    #[arg(long, value_name = "TIME")]
    duration: Option<Duration>,
    /// Write counters and utilisation as JSON, on SIGUSR1 and at the end; - is standard output
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Bins of the utilisation series
    #[arg(long, default_value = "100ms", value_name = "TIME")]
    bin: Duration,
    /// Write what crossed to a pcapng file
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
    /// Write lost packets too, with the cause as a comment
    #[arg(long, requires = "pcap")]
    pcap_drops: bool,
    /// Keep only the first bytes of each frame; 0 keeps all
    #[arg(long, requires = "pcap", default_value_t = 0, value_name = "BYTES")]
    pcap_snap: u32,
    #[command(flatten)]
    both: args::BothFlags,
    #[command(flatten)]
    up: args::UpFlags,
    #[command(flatten)]
    down: args::DownFlags,
}

pub use EmulateArgs as Args;

/// Runs the link until its time is over or a signal ends it.
pub fn run(args: EmulateArgs, global: &Global) -> miette::Result<ExitCode> {
    // Before the first thread, so that none of them takes a signal the default way.
    let signals = Signals::take().map_err(|e| miette!("{e}"))?;
    let to = Destination::new(&args, global);
    let [up, down] = args.channels()?;
    let left = args.left.open(args.mtu)?;
    let right = args.right.open(args.mtu)?;
    if left.mtu() != right.mtu() {
        return Err(miette!(
            "{} has an MTU of {} and {} one of {}: give both the same",
            left.name(),
            left.mtu(),
            right.name(),
            right.mtu()
        ));
    }
    log!(Info, "the link is up", left = left.name(), right = right.name(), mtu = left.mtu());
    let handle = Emulator::start(left, right, up, down, args.options()).map_err(as_report)?;
    attend(&handle, &signals, args.duration, &to)?;
    let report = handle.stop().map_err(as_report)?;
    summarise(&report);
    to.write(&report)?;
    Ok(if report.problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl EmulateArgs {
    fn channels(&self) -> miette::Result<[ChannelConfig; 2]> {
        let [mut up, mut down] = match &self.link {
            Some(path) => read_link(path)?,
            None => Default::default(),
        };
        self.both.clone().apply(&mut up);
        self.both.clone().apply(&mut down);
        self.up.clone().apply(&mut up);
        self.down.clone().apply(&mut down);
        Ok([up, down])
    }

    fn options(&self) -> EmulatorOptions {
        let capture = self.pcap.clone().map(|file| CaptureOptions {
            file,
            drops: self.pcap_drops,
            snap: self.pcap_snap,
        });
        EmulatorOptions { seed: self.seed, bin: self.bin, capture, ..EmulatorOptions::default() }
    }
}

fn as_report(e: EmulatorError) -> miette::Report {
    miette!("{e}")
}

/// Where the JSON goes.
enum Destination {
    Nowhere,
    StandardOutput,
    File(PathBuf),
}

impl Destination {
    fn new(args: &EmulateArgs, global: &Global) -> Destination {
        match &args.report {
            Some(path) if path == Path::new("-") => Destination::StandardOutput,
            Some(path) => Destination::File(path.clone()),
            None if global.json => Destination::StandardOutput,
            None => Destination::Nowhere,
        }
    }

    fn write(&self, report: &Report) -> miette::Result<()> {
        let text = serde_json::to_string(report).into_diagnostic()? + "\n";
        match self {
            Destination::Nowhere => Ok(()),
            Destination::StandardOutput => print(&text),
            Destination::File(path) => write_whole(path, &text)
                .map_err(|e| miette!("cannot write the report {}: {e}", path.display())),
        }
    }
}

/// A reader never sees half a report: it is written beside its place and moved there.
/// What is no regular file (a pipe, /dev/stdout) is written directly.
fn write_whole(path: &Path, text: &str) -> std::io::Result<()> {
    if path.exists() && !path.is_file() {
        return std::fs::write(path, text);
    }
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    std::fs::write(&beside, text)?;
    std::fs::rename(&beside, path)
}

/// How often the link is asked whether it still runs well.
const CHECK: Duration = Duration::from_millis(500);

/// Waits until the time is over, a signal says so, or the link ends by itself.
fn attend(
    handle: &EmulatorHandle,
    signals: &Signals,
    duration: Option<Duration>,
    to: &Destination,
) -> miette::Result<()> {
    let system = |e: os::OsError| miette!("{e}");
    let mut poller = Poller::new().map_err(system)?;
    poller.add(signals, 0, Interest::READ).map_err(system)?;
    let mut events = Events::with_capacity(1);
    let end = duration.map_or(Instant::FAR_FUTURE, |d| Instant::ZERO + d);
    let mut told = 0;
    while handle.is_running() && handle.now() < end {
        let left = end.since(handle.now());
        poller.wait(&mut events, Some(left.min(CHECK))).map_err(system)?;
        while let Some(signal) = signals.next_signal() {
            match signal {
                Signal::Terminate | Signal::Interrupt => return Ok(()),
                Signal::User1 => to.write(&handle.report())?,
                Signal::HangUp => {}
            }
        }
        let problems = handle.problems();
        for problem in problems.iter().skip(told) {
            log!(Warn, problem);
        }
        told = problems.len().max(told);
    }
    Ok(())
}

fn summarise(report: &Report) {
    for (name, direction) in [("up", &report.up), ("down", &report.down)] {
        let c = &direction.counters;
        log!(
            Info,
            "the link has ended",
            direction = name,
            offered = c.offered.packets,
            delivered = c.delivered.packets,
            bytes = c.delivered.bytes,
            lost = c.lost().packets,
            refused = c.queue_drops.packets,
            policed = c.policed.packets,
            utilisation = format!("{:.1}%", direction.utilisation * 100.0),
            late = format!("{}us", direction.lateness.median_us)
        );
    }
    for problem in &report.problems {
        log!(Warn, problem);
    }
}
