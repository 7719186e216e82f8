//! `bentpipe-lab modem`: modems on an emulated telephone network, each behind a pty.
//!
//! The network's arithmetic is the crate `exchange`; this module gives each of its lines a pty and
//! moves bytes in real time. [`Modems::start`] runs it in a thread, for tests and experiments as
//! well as for the command.

mod driver;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use channel::parse_ratio;
use console::{Global, log, print, print_json};
use exchange::{CallEnd, CallRecord, ExchangeConfig, Faults, LineConfig};
use miette::miette;
use os::poll::{Events, Interest, Poller, Signal, Signals};
use serde::Serialize;
use units::{BitRate, Duration, Instant, Ratio};

pub use driver::Modems;

/// Emulates modems on a telephone network, each behind a pty.
///
/// Programs open the ptys as they would open /dev/ttyS0 and speak AT commands. Lines with one
/// number are a hunt group. What crosses is paced to the rate, ten bits a byte, and delayed. A pty
/// has no control lines: a program hangs up by +++ and ATH, or by closing the pty. The end prints
/// what the exchange has metered of each call.
///
/// Example: bentpipe-lab modem --line ship:100 --line shore:200 --dir /tmp/modems --noise 1e-4
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = "Without other options the network is an Inmarsat Mini-M: 2,400 bit/s, \
                        997.5 ms one way, carrier 28.28 s after dialling.\nSIGUSR1 drops all \
                        calls; SIGINT and SIGTERM end.\n\nTwo modems that find each other at \
                        once:\n  bentpipe-lab modem --line a:1 --line b:2 --setup 1s --training \
                        1s --dir /tmp/modems\n  socat -,raw,echo=0 /tmp/modems/a\n\nA hunt group, \
                        and a network on a bad day:\n  bentpipe-lab modem --line ship:100 --line \
                        hub1:200 --line hub2:200 --busy 10% --no-carrier 5% --drop 30s-10min")]
pub struct ModemArgs {
    /// A line and the number that rings it; two or more
    #[arg(long = "line", value_name = "NAME:NUMBER", value_parser = parse_line, required = true)]
    lines: Vec<LineConfig>,
    /// Make links to the ptys in this directory, by the names of the lines
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// What a call carries; eight of ten bits are data
    #[arg(long, value_name = "RATE", default_value = "2400bit")]
    rate: BitRate,
    /// From one modem to the other
    #[arg(long, value_name = "TIME", default_value = "997.5ms")]
    delay: Duration,
    /// From the last digit to the first ring
    #[arg(long, value_name = "TIME", default_value = "17.81s")]
    setup: Duration,
    /// From the answer to carrier
    #[arg(long, value_name = "TIME", default_value = "10.47s")]
    training: Duration,
    /// Between two rings
    #[arg(long, value_name = "TIME", default_value = "5s")]
    ring: Duration,
    /// A call that nobody answers ends after this time
    #[arg(long, value_name = "TIME", default_value = "60s")]
    no_answer: Duration,
    /// Bytes that a modem takes before they are on the line
    #[arg(long, value_name = "BYTES", default_value_t = 256)]
    buffer: usize,
    /// Calls that find the number engaged
    #[arg(long, value_name = "SHARE", value_parser = parse_ratio, default_value = "0")]
    busy: Ratio,
    /// Calls that hear no dial tone
    #[arg(long, value_name = "SHARE", value_parser = parse_ratio, default_value = "0")]
    no_dialtone: Ratio,
    /// Answered calls whose modems do not find each other
    #[arg(long, value_name = "SHARE", value_parser = parse_ratio, default_value = "0")]
    no_carrier: Ratio,
    /// Drop each call after a time that is drawn from these
    #[arg(long, value_name = "LEAST-MOST", value_parser = parse_span)]
    drop: Option<(Duration, Duration)>,
    /// Bytes that begin a burst of noise
    #[arg(long, value_name = "SHARE", value_parser = parse_ratio, default_value = "0")]
    noise: Ratio,
    /// The longest burst of noise
    #[arg(long, value_name = "BYTES", default_value_t = 1)]
    burst: u32,
    /// Equal seeds have equal faults
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// End after this time [default: on a signal]
    #[arg(long, value_name = "TIME")]
    duration: Option<Duration>,
}

pub use ModemArgs as Args;

fn parse_line(text: &str) -> Result<LineConfig, String> {
    let parts = text.split_once(':').filter(|(name, _)| !name.is_empty() && !name.contains('/'));
    let (name, number) =
        parts.ok_or_else(|| format!("\"{text}\" is not NAME:NUMBER such as \"ship:100\""))?;
    Ok(LineConfig { name: name.into(), number: number.into() })
}

fn parse_span(text: &str) -> Result<(Duration, Duration), String> {
    let parts = text.split_once('-').and_then(|(least, most)| {
        Some((least.parse::<Duration>().ok()?, most.parse::<Duration>().ok()?))
    });
    parts.ok_or_else(|| format!("\"{text}\" is not LEAST-MOST such as \"30s-10min\""))
}

impl ModemArgs {
    fn config(&self) -> ExchangeConfig {
        ExchangeConfig {
            lines: self.lines.clone(),
            rate: self.rate,
            delay: self.delay,
            setup: self.setup,
            training: self.training,
            ring: self.ring,
            no_answer: self.no_answer,
            buffer: self.buffer,
            faults: Faults {
                busy: self.busy,
                no_dialtone: self.no_dialtone,
                no_carrier: self.no_carrier,
                drop: self.drop,
                noise: self.noise,
                burst: self.burst,
                ..Faults::default()
            },
        }
    }
}

/// Runs the network until its time is over or a signal ends it.
pub fn run(args: ModemArgs, global: &Global) -> miette::Result<ExitCode> {
    // Before the first thread, so that none of them takes a signal the default way.
    let signals = Signals::take().map_err(|e| miette!("{e}"))?;
    let config = args.config();
    let modems = Modems::start(config.clone(), args.seed, args.dir.as_deref())?;
    for (line, path) in config.lines.iter().zip(modems.paths()) {
        print(&format!("{} ({}): {}\n", line.name, line.number, path.display()))?;
    }
    attend(&modems, &signals, args.duration)?;
    let calls: Vec<Call> = modems.stop().iter().map(|call| Call::new(call, &config)).collect();
    if global.json {
        print_json(&calls)?;
    } else {
        for call in &calls {
            print(&call.to_string())?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn attend(modems: &Modems, signals: &Signals, time: Option<Duration>) -> miette::Result<()> {
    let system = |e: os::OsError| miette!("{e}");
    let clock = os::poll::Clock::start();
    let mut poller = Poller::new().map_err(system)?;
    poller.add(signals, 0, Interest::READ).map_err(system)?;
    let mut events = Events::with_capacity(1);
    let end = time.map_or(Instant::FAR_FUTURE, |d| clock.now() + d);
    while clock.now() < end {
        let left = end.since(clock.now()).min(Duration::from_secs(3_600));
        poller.wait(&mut events, Some(left)).map_err(system)?;
        while let Some(signal) = signals.next_signal() {
            match signal {
                Signal::Terminate | Signal::Interrupt => return Ok(()),
                Signal::User1 => {
                    log!(Info, "all calls drop");
                    modems.drop_all();
                }
                Signal::HangUp => {}
            }
        }
    }
    Ok(())
}

/// A call as the exchange bills it.
#[derive(Serialize)]
struct Call {
    from: String,
    to: String,
    /// Since the network was there.
    start_s: f64,
    connected_s: f64,
    bytes_out: u64,
    bytes_back: u64,
    end: &'static str,
}

impl Call {
    fn new(call: &CallRecord, config: &ExchangeConfig) -> Call {
        Call {
            from: config.lines[call.from].name.clone(),
            to: config.lines[call.to].name.clone(),
            start_s: call.start.since(Instant::ZERO).as_secs_f64(),
            connected_s: call.end.since(call.start).as_secs_f64(),
            bytes_out: call.bytes[0],
            bytes_back: call.bytes[1],
            end: match call.why {
                CallEnd::Caller => "the caller hung up",
                CallEnd::Called => "the called line hung up",
                CallEnd::Dropped => "dropped",
                CallEnd::None => "goes on",
            },
        }
    }
}

impl std::fmt::Display for Call {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Call { from, to, start_s, connected_s, bytes_out, bytes_back, end } = self;
        writeln!(
            f,
            "{from} to {to} at {start_s:.2} s: {connected_s:.2} s, {bytes_out} bytes out, {bytes_back} back, {end}"
        )
    }
}

/// A directory entry that goes when its owner does.
struct LinkTo(PathBuf);

impl LinkTo {
    fn new(dir: &Path, name: &str, to: &Path) -> miette::Result<LinkTo> {
        let path = dir.join(name);
        let made =
            std::fs::create_dir_all(dir).and_then(|()| std::os::unix::fs::symlink(to, &path));
        made.map_err(|e| {
            miette!("cannot make the link {}: {e}; remove what is there", path.display())
        })?;
        Ok(LinkTo(path))
    }
}

impl Drop for LinkTo {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}
