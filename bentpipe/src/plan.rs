//! `bentpipe plan`: the best numbers for a link, and why.

use std::fmt::Write as _;
use std::process::ExitCode;

use ::plan::{Figure, Plan, Value};
use dial::calendar::Wall;
use dial::money::Money;
use dial::tariff::Rates;
use serde_json::{Map, json};
use units::{ByteCount, Duration, Ratio};

use crate::human;
use crate::which_link::{Described, Which};
use console::{Global, print, print_json};

/// Says what is best for a link (packets, windows, timeouts, code) and what it costs.
///
/// Each number comes with its formula and where that is from. Nothing is changed.
///
/// Examples: bentpipe plan t1-geo; bentpipe plan mini-m --per-minute 2.80 --increment 6s;
/// bentpipe plan /etc/bentpipe/ship.toml
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    which: Which,
    /// What a minute costs, as a number such as 2.80; in place of a configuration's tariff.
    #[arg(long, value_name = "PRICE")]
    per_minute: Option<Money>,
    /// What a megabyte costs.
    #[arg(long, value_name = "PRICE")]
    per_megabyte: Option<Money>,
    /// Time is billed in steps of this, rounded up; 1s unless given.
    #[arg(long, value_name = "TIME", requires = "per_minute", value_parser = read_time)]
    increment: Option<Duration>,
    /// A call is billed as at least this long.
    #[arg(long, value_name = "TIME", requires = "per_minute", value_parser = read_time)]
    minimum: Option<Duration>,
}

fn read_time(text: &str) -> Result<Duration, String> {
    text.parse().map_err(|_| "it is a time such as 30s".to_owned())
}

/// Prints the plan.
///
/// # Errors
/// See [`Which::find`].
pub fn run(args: Args, global: &Global) -> miette::Result<ExitCode> {
    let described = args.which.find()?;
    let plan = Plan::of(described.link);
    let rates = args.rates().or_else(|| described.prices.clone());
    let now = Wall(crate::calendar::seconds());
    let figures = plan.figures(rates.as_ref().map(|rates| (rates, now)));
    if global.json {
        print_json(&to_json(&described, &figures))?;
    } else {
        print(&render(&described, &figures))?;
    }
    Ok(ExitCode::SUCCESS)
}

impl Args {
    /// The prices that the command line says.
    fn rates(&self) -> Option<Rates> {
        let second = Duration::from_secs(1);
        let [increment, minimum] =
            [self.increment.unwrap_or(second), self.minimum.unwrap_or_default()];
        let timed = self.per_minute.map(|price| Rates::per_minute(price, increment, minimum));
        let per_megabyte = self.per_megabyte.unwrap_or_default();
        match timed {
            Some(rates) => Some(Rates { per_megabyte, ..rates }),
            None => self.per_megabyte.map(|price| Rates::per_megabyte(price, ByteCount(1))),
        }
    }
}

fn render(described: &Described, figures: &[Figure]) -> String {
    let Described { name, description, directions, link, .. } = described;
    let mut out =
        format!("{name}{}{description}\n", if description.is_empty() { "" } else { ": " });
    // Writing to a String does not fail.
    let _ = writeln!(
        out,
        "{} {}, {} {}, {} one way, bit errors {}, packets lost {}, MTU {}\n",
        directions[0],
        link.send,
        directions[1],
        link.receive,
        link.delay,
        small(link.ber),
        share(link.loss),
        link.mtu,
    );
    let width = figures.iter().map(|f| f.name.chars().count()).max().unwrap_or(0);
    let _ = writeln!(out, "{:<width$}  {:>12}  {:>12}", "", directions[0], directions[1]);
    for figure in figures {
        let [a, b] = figure.values.map(text_of);
        let _ = writeln!(out, "{:<width$}  {a:>12}  {b:>12}", figure.name);
        let _ = writeln!(out, "    {}\n    [{}]", figure.reason, figure.source);
    }
    out
}

fn text_of(value: Value) -> String {
    match value {
        Value::Bytes(bytes) => human::bytes(bytes.0),
        Value::Time(time) => match time.as_millis() {
            0..60_000 => human::lasting(time),
            ms => human::span(ms),
        },
        Value::Rate(rate) => rate_text(rate.as_bps()),
        Value::Segments(n) => n.to_string(),
        Value::Share(ratio) => share(ratio),
        Value::Repair(None) => "none".to_owned(),
        Value::Repair(Some(n)) => format!("{}/{n}", n.saturating_sub(1)),
        Value::Money(amount) => amount.to_string(),
        Value::Word(word) => word.to_owned(),
    }
}

/// Three digits are what such numbers are good for.
fn rate_text(bps: u64) -> String {
    let (unit, name) = match bps {
        0..10_000 => return format!("{bps}bit"),
        10_000..1_000_000 => (1_000, "kbit"),
        _ => (1_000_000, "Mbit"),
    };
    match bps / unit {
        0..100 => format!("{}.{:02}{name}", bps / unit, bps % unit * 100 / unit),
        whole => format!("{whole}{name}"),
    }
}

fn share(ratio: Ratio) -> String {
    match ratio.as_f64() * 100.0 {
        0.0 => "0 %".to_owned(),
        percent if percent < 0.01 => format!("{percent:.4} %"),
        percent => format!("{percent:.2} %"),
    }
}

fn small(ratio: Ratio) -> String {
    if ratio == Ratio::ZERO { "0".to_owned() } else { format!("{:.1e}", ratio.as_f64()) }
}

/// Numbers in bytes, nanoseconds, bits per second, parts of 1 and units of the currency.
fn to_json(described: &Described, figures: &[Figure]) -> serde_json::Value {
    let number = |value| match value {
        Value::Bytes(bytes) => json!(bytes.0),
        Value::Time(time) => json!(time.as_nanos()),
        Value::Rate(rate) => json!(rate.as_bps()),
        Value::Segments(n) => json!(n),
        Value::Share(ratio) => json!(ratio.as_f64()),
        Value::Repair(every) => json!(every),
        Value::Money(amount) => json!(amount.as_micros() as f64 / 1e6),
        Value::Word(word) => json!(word),
    };
    let unit = |value| match value {
        Value::Bytes(_) => "bytes",
        Value::Time(_) => "ns",
        Value::Rate(_) => "bit/s",
        Value::Segments(_) => "segments",
        Value::Share(_) => "share",
        Value::Repair(_) => "one repair packet of",
        Value::Money(_) => "money",
        Value::Word(_) => "name",
    };
    let mut all = Map::new();
    for figure in figures {
        let [a, b] = figure.values;
        all.insert(
            figure.key.to_owned(),
            json!({
                described.directions[0]: number(a),
                described.directions[1]: number(b),
                "unit": unit(a),
                "reason": figure.reason,
                "source": figure.source,
            }),
        );
    }
    let link = &described.link;
    json!({
        "name": described.name,
        "description": described.description,
        "link": {
            described.directions[0]: link.send.as_bps(),
            described.directions[1]: link.receive.as_bps(),
            "delay_ns": link.delay.as_nanos(),
            "ber": link.ber.as_f64(),
            "loss": link.loss.as_f64(),
            "mtu": link.mtu,
            "framing": link.framing,
            "queue": link.queue.map(|queue| queue.0),
        },
        "plan": all,
    })
}
