//! `bentpipe plan`: the best numbers for a link, and why.

use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;

use ::plan::{Amount, Figure, Link, Plan, Tariff, Value};
use link::session::End;
use miette::miette;
use serde_json::{Map, json};
use units::{ByteCount, Duration, Ratio};

use crate::config::{Config, LinkSettings, Profile, Queue};
use crate::human;
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
    /// What a minute costs, as a number such as 2.80.
    #[arg(long, value_name = "PRICE")]
    per_minute: Option<Amount>,
    /// What a megabyte costs.
    #[arg(long, value_name = "PRICE")]
    per_megabyte: Option<Amount>,
    /// Time is billed in steps of this, rounded up.
    #[arg(long, value_name = "TIME", requires = "per_minute", value_parser = read_time)]
    increment: Option<Duration>,
    /// A call is billed as at least this long.
    #[arg(long, value_name = "TIME", requires = "per_minute", value_parser = read_time)]
    minimum: Option<Duration>,
}

/// A link that a command is told of.
#[derive(clap::Args, Clone, Debug)]
pub struct Which {
    /// A ready-made profile, a file like one, or a gateway's configuration.
    #[arg(value_name = "PROFILE|FILE")]
    what: Option<String>,
    /// The peer whose link is meant, if the configuration has several.
    #[arg(long)]
    peer: Option<String>,
    /// The end of a profile that this machine is at.
    #[arg(long, value_name = "hub|terminal", value_parser = read_end)]
    end: Option<End>,
    /// What the modem or the router before it holds, such as 64kB or 50ms.
    #[arg(long, value_name = "SIZE|TIME", value_parser = read_queue)]
    queue: Option<Queue>,
}

/// The directions of a profile of which nobody says at which end this is.
const FROM_ABOVE: [&str; 2] = ["forward", "return"];

/// A link and what people call it.
#[derive(Clone, Debug)]
pub struct Described {
    /// The profile, or the peer and its file.
    pub name: String,
    /// One line more.
    pub description: String,
    /// What data from this end and to it is called.
    pub directions: [&'static str; 2],
    /// The facts.
    pub link: Link,
}

impl Which {
    /// The link that is meant.
    ///
    /// # Errors
    /// There is no such profile, file or peer, or the file is wrong.
    pub fn find(&self) -> miette::Result<Described> {
        let names = Profile::names().join(", ");
        let what = self.what.as_ref().ok_or_else(|| {
            miette!(help = format!("profiles: {names}"), "no link is named: PROFILE|FILE")
        })?;
        if let Some(profile) = Profile::find(what) {
            return Ok(self.of_profile(&profile, what));
        }
        let path = Path::new(what);
        if !path.exists() {
            return Err(miette!(
                help = format!("profiles: {names}; a file's name may have a path"),
                "there is no profile \"{what}\", and no such file"
            ));
        }
        let text = std::fs::read_to_string(path)
            .map_err(|e| miette!("cannot read {}: {}", path.display(), human::reason(&e)))?;
        if Profile::is_one(&text) {
            return Ok(self.of_profile(&Profile::parse(&text, path)?, what));
        }
        self.of_config(&Config::load(path)?, what)
    }

    /// Is a link named?
    pub fn is_given(&self) -> bool {
        self.what.is_some()
    }

    /// The link as a host sees it that uses it: a terminal's, unless something else is said.
    pub fn of_host(&self, described: &Described) -> Link {
        let link = described.link;
        match described.directions {
            FROM_ABOVE => Link { send: link.receive, receive: link.send, ..link },
            _ => link,
        }
    }

    /// Without an end a profile is seen from the hub, whose rate is the forward one.
    fn of_profile(&self, profile: &Profile, name: &str) -> Described {
        let (send, receive, directions) = match self.end {
            Some(End::Terminal) => (profile.back, profile.forward, ["sent", "received"]),
            Some(End::Hub) => (profile.forward, profile.back, ["sent", "received"]),
            None => (profile.forward, profile.back, FROM_ABOVE),
        };
        let link = Link {
            send,
            receive,
            delay: profile.delay,
            ber: profile.ber,
            loss: profile.loss,
            mtu: profile.mtu,
            framing: 0,
            queue: self.queue.map(|queue| bytes_of(queue, send)),
        };
        let description = profile.description.clone();
        Described { name: name.to_owned(), description, directions, link }
    }

    fn of_config(&self, config: &Config, file: &str) -> miette::Result<Described> {
        let names = || config.peers.iter().map(|p| p.name.as_str()).collect::<Vec<_>>().join(", ");
        let peer = match (&self.peer, config.peers.as_slice()) {
            (Some(name), _) => config.peer(name).ok_or_else(|| {
                let help = format!("it has {}", names());
                miette!(help = help, "{file} has no peer \"{name}\"")
            })?,
            (None, [one]) => one,
            (None, []) => return Err(miette!("{file} has no [[peer]], so no link")),
            (None, _) => {
                let help = format!("name one of {} with --peer", names());
                return Err(miette!(help = help, "{file} has several peers"));
            }
        };
        Ok(Described {
            name: format!("{} in {file}", peer.name),
            description: peer.profile.map_or_else(String::new, |p| format!("profile {p}")),
            directions: ["sent", "received"],
            link: link_of(&peer.link, self.queue),
        })
    }
}

/// The facts of a configured link; `queue` goes before the file's.
pub fn link_of(link: &LinkSettings, queue: Option<Queue>) -> Link {
    let mtu = u64::from(link.mtu);
    Link {
        send: link.send,
        receive: link.receive,
        delay: link.delay,
        ber: link.ber,
        loss: link.loss,
        mtu: link.mtu,
        framing: (link.overhead.on_the_line(mtu) - mtu) as u16,
        queue: queue.or(link.queue).map(|queue| bytes_of(queue, link.send)),
    }
}

fn bytes_of(queue: Queue, rate: units::BitRate) -> ByteCount {
    match queue {
        Queue::Bytes(bytes) => bytes,
        Queue::Time(time) => rate.bytes_in(time),
    }
}

fn read_end(text: &str) -> Result<End, String> {
    match text {
        "hub" => Ok(End::Hub),
        "terminal" => Ok(End::Terminal),
        _ => Err("it is hub or terminal".to_owned()),
    }
}

fn read_time(text: &str) -> Result<Duration, String> {
    text.parse().map_err(|_| "it is a time such as 30s".to_owned())
}

fn read_queue(text: &str) -> Result<Queue, String> {
    let time = text.parse().map(Queue::Time).ok();
    time.or_else(|| text.parse().map(Queue::Bytes).ok())
        .ok_or_else(|| "it is a size such as 64kB or a time such as 50ms".to_owned())
}

/// Prints the plan.
///
/// # Errors
/// See [`Which::find`].
pub fn run(args: Args, global: &Global) -> miette::Result<ExitCode> {
    let described = args.which.find()?;
    let plan = Plan::of(described.link);
    let tariff = args.tariff();
    let figures = plan.figures(tariff.as_ref());
    if global.json {
        print_json(&to_json(&described, &figures))?;
    } else {
        print(&render(&described, &figures))?;
    }
    Ok(ExitCode::SUCCESS)
}

impl Args {
    fn tariff(&self) -> Option<Tariff> {
        let priced = self.per_minute.is_some() || self.per_megabyte.is_some();
        priced.then(|| Tariff {
            per_minute: self.per_minute.unwrap_or_default(),
            per_megabyte: self.per_megabyte.unwrap_or_default(),
            increment: self.increment.unwrap_or_default(),
            least: self.minimum.unwrap_or_default(),
        })
    }
}

fn render(described: &Described, figures: &[Figure]) -> String {
    let Described { name, description, directions, link } = described;
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
        Value::Money(amount) => json!(amount.0 as f64 / 1e6),
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
