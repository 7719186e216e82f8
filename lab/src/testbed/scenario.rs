//! A published experiment as a file: set-up, ways to run it, work to do, and what
//! the source printed. The files lie in `lab/scenarios/` and are part of the program.

use channel::{ChannelConfig, GilbertElliott, Outage, QueueLimit};
use serde::{Deserialize, Serialize};
use units::{BitRate, ByteCount, Duration, Ratio};

use super::gateway::Side;
use super::mesh::MOST;
use super::sweep::{self, Point, Sweep};
use super::traffic::browser::Browser;
use super::unit;

/// The scenario files that the program carries, by name.
pub const BUILT_IN: [(&str, &str); 15] = [
    ("umd-ftp", include_str!("../../scenarios/umd-ftp.toml")),
    ("wise-web", include_str!("../../scenarios/wise-web.toml")),
    ("itu-single-window", include_str!("../../scenarios/itu-single-window.toml")),
    ("itu-test-a", include_str!("../../scenarios/itu-test-a.toml")),
    ("itu-test-b", include_str!("../../scenarios/itu-test-b.toml")),
    ("itu-test-1", include_str!("../../scenarios/itu-test-1.toml")),
    ("itu-test-2", include_str!("../../scenarios/itu-test-2.toml")),
    ("itu-test-3", include_str!("../../scenarios/itu-test-3.toml")),
    ("itu-cache-spoof", include_str!("../../scenarios/itu-cache-spoof.toml")),
    ("itu-oc3", include_str!("../../scenarios/itu-oc3.toml")),
    ("itu-ftp", include_str!("../../scenarios/itu-ftp.toml")),
    ("itu-http", include_str!("../../scenarios/itu-http.toml")),
    ("cg-inmarsat-b", include_str!("../../scenarios/cg-inmarsat-b.toml")),
    ("leo", include_str!("../../scenarios/leo.toml")),
    ("ka-fade", include_str!("../../scenarios/ka-fade.toml")),
];

/// The scenarios of `bentpipe-lab demo`.
pub const DEMO: [(&str, &str); 2] = [
    ("demo-t1", include_str!("../../scenarios/demo-t1.toml")),
    ("demo-geo", include_str!("../../scenarios/demo-geo.toml")),
];

/// One experiment.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// The name on the command line.
    pub name: String,
    /// One line for people.
    pub title: String,
    /// Who published it, where and when.
    pub source: String,
    /// What the experiment was and how it is repeated here.
    pub about: String,
    /// What differs from the source and why; printed with the results.
    #[serde(default)]
    pub notes: Vec<String>,
    /// The satellite link.
    pub link: LinkSetup,
    /// What the gateways are told otherwise than the link is.
    #[serde(default)]
    pub told: Told,
    /// A ping from client to server runs beside the work.
    #[serde(default)]
    pub ping: bool,
    /// The terrestrial legs on either side of it.
    #[serde(default)]
    pub legs: Legs,
    /// TCP on the end hosts, unless a way says otherwise.
    #[serde(default)]
    pub hosts: HostTcp,
    /// Further nodes with gateways, each joined to every other; at most two.
    #[serde(default)]
    pub mesh: usize,
    /// Files are text, which can be compressed; else they are noise, which cannot.
    #[serde(default)]
    pub text: bool,
    /// What is carried.
    pub work: Work,
    /// What is carried before it, while the link is idle.
    pub before: Option<Work>,
    /// How often each way is run, with seeds 1, 2, …; figures are medians.
    #[serde(default = "once")]
    pub seeds: u64,
    /// The ways to run it.
    #[serde(rename = "way")]
    pub ways: Vec<Way>,
    /// What the source printed.
    #[serde(rename = "published", default)]
    pub published: Vec<Published>,
    /// What `--check` demands.
    #[serde(rename = "bound", default)]
    pub bounds: Vec<Bound>,
}

fn once() -> u64 {
    1
}

/// Both directions of the link. `down` leads from the server to the client.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkSetup {
    /// Server to client.
    pub down: ChannelConfig,
    /// Client to server.
    pub up: ChannelConfig,
}

/// What the gateways are told of a link where it is not what the link does.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Told {
    /// Rate from server to client.
    #[serde(deserialize_with = "unit::maybe")]
    pub down: Option<BitRate>,
    /// Rate from client to server.
    #[serde(deserialize_with = "unit::maybe")]
    pub up: Option<BitRate>,
    /// Nothing of the bit-error ratio.
    pub no_ber: bool,
    /// How the rate is known: `fixed` or `learned`; `fixed` unless given.
    pub rate: Option<String>,
}

impl Told {
    /// The link as the gateways are told it is.
    pub fn over(&self, link: &LinkSetup) -> LinkSetup {
        let mut told = link.clone();
        told.down.rate = self.down.or(told.down.rate);
        told.up.rate = self.up.or(told.up.rate);
        if self.no_ber {
            (told.down.ber, told.up.ber) = (Ratio::ZERO, Ratio::ZERO);
        }
        told
    }
}

/// One-way delays of the terrestrial networks behind each end of the link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Legs {
    /// Client to its earth station.
    #[serde(deserialize_with = "unit::one")]
    pub client: Duration,
    /// Earth station to server.
    #[serde(deserialize_with = "unit::one")]
    pub server: Duration,
    /// Share of packets lost between earth station and server, each way.
    #[serde(deserialize_with = "unit::share")]
    pub server_loss: Ratio,
}

/// How the end hosts' TCP is set. What is left out is this kernel's default.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HostTcp {
    /// Congestion control: `reno`, `cubic` or `bbr`.
    pub congestion: Option<String>,
    /// The receive window that the client offers at most.
    #[serde(deserialize_with = "unit::maybe")]
    pub window: Option<ByteCount>,
    /// Largest send and receive buffer of a connection; 6 and 4 MB, as Linux has it,
    /// unless given.
    #[serde(deserialize_with = "unit::maybe")]
    pub buffers: Option<ByteCount>,
    /// Initial congestion window in segments.
    pub initial_window: Option<u32>,
    /// Largest segment.
    #[serde(deserialize_with = "unit::maybe")]
    pub mss: Option<ByteCount>,
    /// Selective acknowledgement (RFC 2018).
    pub sack: Option<bool>,
    /// Time stamps (RFC 7323).
    pub timestamps: Option<bool>,
    /// Window scaling (RFC 7323).
    pub scaling: Option<bool>,
    /// Loss detection by time (RFC 8985) and tail probes, both younger than the
    /// experiments repeated here.
    pub rack: Option<bool>,
    /// Client and server meet by IPv6.
    pub ipv6: Option<bool>,
    /// What the server's interface sends passes a token bucket.
    pub shape: Option<Shape>,
}

/// A token bucket filter (tc-tbf(8)) before the server's interface. What does not conform
/// waits; a megabyte may.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shape {
    /// The rate at which tokens come.
    #[serde(deserialize_with = "unit::one")]
    pub rate: BitRate,
    /// Tokens that the bucket holds; at least a packet.
    #[serde(deserialize_with = "unit::one")]
    pub bucket: ByteCount,
}

impl HostTcp {
    /// These settings where they say something, `base` elsewhere.
    pub fn over(&self, base: &HostTcp) -> HostTcp {
        HostTcp {
            congestion: self.congestion.clone().or_else(|| base.congestion.clone()),
            window: self.window.or(base.window),
            buffers: self.buffers.or(base.buffers),
            initial_window: self.initial_window.or(base.initial_window),
            mss: self.mss.or(base.mss),
            sack: self.sack.or(base.sack),
            timestamps: self.timestamps.or(base.timestamps),
            scaling: self.scaling.or(base.scaling),
            rack: self.rack.or(base.rack),
            ipv6: self.ipv6.or(base.ipv6),
            shape: self.shape.or(base.shape),
        }
    }
}

/// What is carried over the link.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, tag = "kind", rename_all = "lowercase")]
pub enum Work {
    /// One file, from the server to the client.
    File {
        /// Its size.
        #[serde(deserialize_with = "unit::one")]
        bytes: ByteCount,
        /// The client hangs up so long after the first byte; the time for the whole
        /// file is then reckoned from the rate.
        #[serde(default, deserialize_with = "unit::maybe")]
        at_most: Option<Duration>,
        /// By passive FTP; else by HTTP.
        #[serde(default)]
        ftp: bool,
    },
    /// Endless files side by side, from the server to the client; what has come in
    /// order by then counts.
    Streams {
        /// How many, a connection each.
        count: u32,
        /// Since the client began to connect.
        #[serde(deserialize_with = "unit::one")]
        time: Duration,
        /// The server sends no faster on each.
        #[serde(default, deserialize_with = "unit::maybe")]
        pace: Option<BitRate>,
        /// A UDP stream beside them, at this rate of content.
        #[serde(default, deserialize_with = "unit::maybe")]
        udp: Option<BitRate>,
    },
    /// A page as HTTP/1.0 fetches it: the text, then its objects, a connection each.
    Page {
        /// Size of the text.
        #[serde(deserialize_with = "unit::one")]
        html: ByteCount,
        /// How many objects the text names.
        objects: u32,
        /// Size of each object.
        #[serde(deserialize_with = "unit::one")]
        object: ByteCount,
        /// Connections at a time.
        connections: u32,
    },
    /// A page of a text, a style sheet and images, as a browser loads it.
    Web {
        /// Objects, with the text.
        objects: u32,
        /// Bytes of all of them.
        #[serde(deserialize_with = "unit::one")]
        bytes: ByteCount,
        /// How it uses connections.
        browser: Browser,
    },
}

impl Work {
    /// Bytes of content carried; of endless files what `rate` can carry.
    pub fn bytes(&self, rate: Option<BitRate>) -> ByteCount {
        match *self {
            Work::File { bytes, .. } | Work::Web { bytes, .. } => bytes,
            Work::Streams { time, .. } => rate.map_or(ByteCount(0), |r| r.bytes_in(time)),
            Work::Page { html, objects, object, .. } => {
                ByteCount(html.0 + u64::from(objects) * object.0)
            }
        }
    }
}

/// One way of running the experiment.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Way {
    /// What published figures refer to.
    pub id: String,
    /// What people read.
    pub title: String,
    /// Colour slot in figures; the same way has the same colour everywhere.
    #[serde(default)]
    pub colour: usize,
    /// Sender and receiver of each of several pairs of nodes at once, such as `"b-a"`; every
    /// pair does the work. The client's node is A, the server's B, further ones C and D; B sends
    /// to A unless given. A node sends in one pair at most, and receives in one.
    #[serde(default)]
    pub pairs: Vec<Pairing>,
    /// Does the gateway pair stand around the link?
    #[serde(default)]
    pub gateways: bool,
    /// The gateways split nothing: TCP crosses as packets, in order and surely.
    #[serde(default)]
    pub unsplit: bool,
    /// Only the gateway on this side is there, and the kernel's TCP crosses the satellite.
    #[serde(default)]
    pub alone: Option<Side>,
    /// The gateways compress.
    #[serde(default)]
    pub compress: bool,
    /// The service `bentpipe-web` runs at both of them.
    #[serde(default)]
    pub web: bool,
    /// Replaces the link's delay in both directions.
    #[serde(default, deserialize_with = "unit::maybe")]
    pub delay: Option<Duration>,
    /// Replaces the link's rate in both directions.
    #[serde(default, deserialize_with = "unit::maybe")]
    pub rate: Option<BitRate>,
    /// Replaces the link's rate from client to server.
    #[serde(default, deserialize_with = "unit::maybe")]
    pub up_rate: Option<BitRate>,
    /// Replaces the link's bit-error ratio in both directions.
    #[serde(default, deserialize_with = "unit::maybe_share")]
    pub ber: Option<Ratio>,
    /// Replaces the share of packets that the link loses at random, in both directions.
    #[serde(default, deserialize_with = "unit::maybe_share")]
    pub loss: Option<Ratio>,
    /// Times without a link from server to client, beside the link's own; from the start of the
    /// experiment, some tenths of a second before the client connects.
    #[serde(default, deserialize_with = "unit::list")]
    pub outages: Vec<Outage>,
    /// Replaces the link's losses in bursts in both directions.
    pub burst: Option<GilbertElliott>,
    /// Without the link's errors and losses.
    #[serde(default)]
    pub clean: bool,
    /// Replaces what may wait before the link, from server to client.
    #[serde(default, deserialize_with = "unit::maybe")]
    pub queue: Option<QueueLimit>,
    /// Replaces the terrestrial legs.
    pub legs: Option<Legs>,
    /// Laid over the hosts' settings.
    #[serde(default)]
    pub hosts: HostTcp,
    /// Replaces the work, where a slow way reaches its steady state with less.
    pub work: Option<Work>,
    /// Stands for a way for each of several values.
    pub sweep: Option<Sweep>,
    /// Where it stands in a figure, if it comes from a sweep.
    #[serde(skip)]
    pub point: Option<Point>,
    /// The sequence numbers of its server and the queue before the link are drawn.
    #[serde(default)]
    pub trace: bool,
    /// Why this way cannot be run yet; its published figures are shown all the same.
    pub missing: Option<String>,
}

/// Who sends to whom in a mesh, by the numbers of their nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Pairing {
    /// The node behind which the server stands.
    pub sender: usize,
    /// The node behind which the client stands.
    pub receiver: usize,
}

impl Pairing {
    /// Server to client, as without a mesh.
    pub const USUAL: Pairing = Pairing { sender: 1, receiver: 0 };
}

impl TryFrom<String> for Pairing {
    type Error = String;

    fn try_from(s: String) -> Result<Pairing, String> {
        let node = |s: &str| ["a", "b", "c", "d"].iter().position(|n| *n == s);
        let nodes = s.split_once('-').and_then(|(from, to)| node(from).zip(node(to)));
        match nodes {
            Some((sender, receiver)) if sender != receiver => Ok(Pairing { sender, receiver }),
            _ => Err(format!("\"{s}\" is not a pair of nodes such as \"b-a\"")),
        }
    }
}

/// What can be measured and may have been published.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Figure {
    /// Content over the time from connecting to the last byte, kbit/s.
    Goodput,
    /// Content over the time from its first byte to its last, as clients of FTP tell it, kbit/s.
    Transfer,
    /// Bytes of packets delivered by the link, downwards, over the same time, kbit/s.
    LinkThroughput,
    /// Content that the server's TCP sent of a single connection, each byte once, over
    /// the same time, kbit/s.
    Sent,
    /// Goodput as a share of the link's rate, %.
    Share,
    /// Content of the UDP stream beside the others, as it arrived, kbit/s.
    Udp,
    /// Round trip of the pings beside the work, their median, ms.
    Ping,
    /// What 95 of 100 of them stay below, ms.
    Ping95,
    /// What 99 of 100 of them stay below, ms.
    Ping99,
    /// Pings that were lost, %.
    PingLost,
    /// Share of the time during which the link's down direction was sending, %.
    Utilisation,
    /// From connecting to the first byte of content, ms.
    FirstByte,
    /// From connecting to the last byte, s.
    Time,
    /// While the server has something to send that is not yet acknowledged, s.
    ServerBusy,
    /// Round trip as the server's TCP sees it, median over the transfer, ms.
    ServerRtt,
    /// The most that waited before the link towards the client, packets of 1,500 bytes.
    Queue,
    /// TCP connections of the client.
    Connections,
    /// Packets at the client's interface, both ways.
    Packets,
    /// Time of another way over the time of this one.
    Speedup,
}

impl Figure {
    /// All of them, in the order in which they are shown.
    pub const ALL: [Figure; 19] = [
        Figure::Goodput,
        Figure::Transfer,
        Figure::LinkThroughput,
        Figure::Sent,
        Figure::Share,
        Figure::Udp,
        Figure::Ping,
        Figure::Ping95,
        Figure::Ping99,
        Figure::PingLost,
        Figure::Utilisation,
        Figure::FirstByte,
        Figure::Time,
        Figure::ServerBusy,
        Figure::ServerRtt,
        Figure::Queue,
        Figure::Connections,
        Figure::Packets,
        Figure::Speedup,
    ];

    /// Name for people.
    pub fn title(self) -> &'static str {
        match self {
            Figure::Goodput => "goodput",
            Figure::Transfer => "from first byte to last",
            Figure::LinkThroughput => "link throughput",
            Figure::Sent => "sent by the server",
            Figure::Share => "share of the link",
            Figure::Udp => "UDP",
            Figure::Ping => "ping",
            Figure::Ping95 => "ping, 95 of 100",
            Figure::Ping99 => "ping, 99 of 100",
            Figure::PingLost => "pings lost",
            Figure::Utilisation => "utilisation",
            Figure::FirstByte => "first byte",
            Figure::Time => "completion",
            Figure::ServerBusy => "server busy",
            Figure::ServerRtt => "RTT at server",
            Figure::Queue => "longest queue",
            Figure::Connections => "connections",
            Figure::Packets => "packets",
            Figure::Speedup => "speed-up",
        }
    }

    /// Its unit.
    pub fn unit(self) -> &'static str {
        match self {
            Figure::Goodput
            | Figure::Transfer
            | Figure::LinkThroughput
            | Figure::Sent
            | Figure::Udp => "kbit/s",
            Figure::Share | Figure::Utilisation | Figure::PingLost => "%",
            Figure::FirstByte | Figure::ServerRtt => "ms",
            Figure::Ping | Figure::Ping95 | Figure::Ping99 => "ms",
            Figure::Time | Figure::ServerBusy => "s",
            Figure::Queue | Figure::Packets => "packets",
            Figure::Connections => "",
            Figure::Speedup => "×",
        }
    }
}

/// A figure that the source printed, or that follows from what it printed.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Published {
    /// Of which way.
    pub way: String,
    /// Of which quantity.
    pub figure: Figure,
    /// For [`Figure::Speedup`]: faster than which way.
    pub over: Option<String>,
    /// Low end, in the figure's unit.
    pub low: f64,
    /// High end; the same as `low` if left out.
    pub high: Option<f64>,
    /// Where it is printed: section, figure, page.
    #[serde(rename = "where")]
    pub place: String,
    /// The source prints words or other numbers, from which this one was reckoned for the
    /// scenario; it is shown in parentheses.
    #[serde(default)]
    pub derived: bool,
    /// How the source words it, if not as a number.
    pub says: Option<String>,
}

impl Published {
    /// Low and high end.
    pub fn range(&self) -> (f64, f64) {
        (self.low, self.high.unwrap_or(self.low))
    }
}

/// Where a figure of a way must be for `--check`: the median over its runs.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bound {
    /// Of which way; of a sweep, of which of its points.
    pub way: String,
    /// Of which quantity.
    pub figure: Figure,
    /// The bounds are for its share of this way's figure.
    pub over: Option<String>,
    /// At least this, in the figure's unit.
    pub least: Option<f64>,
    /// At most this.
    pub most: Option<f64>,
}

impl Bound {
    /// Is the figure where it must be?
    pub fn holds(&self, value: f64) -> bool {
        self.least.is_none_or(|least| value >= least) && self.most.is_none_or(|most| value <= most)
    }
}

/// Why a scenario cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    /// Not TOML, unknown keys, wrong units.
    #[error("the scenario {name} cannot be read: {why}")]
    Syntax {
        /// Which scenario.
        name: String,
        /// Line, column and reason.
        why: String,
    },
    /// It names a way that it does not have, or has none.
    #[error("the scenario {name} is not consistent: {why}")]
    Inconsistent {
        /// Which scenario.
        name: String,
        /// What does not fit.
        why: String,
    },
    /// No such scenario.
    #[error(
        "there is no scenario \"{0}\"; `bentpipe-lab list` names them, and a file ends in .toml"
    )]
    Unknown(String),
    /// The file is not there, or is no text.
    #[error("the scenario {name} cannot be read: {why}")]
    File {
        /// Which file.
        name: String,
        /// What the kernel says.
        why: std::io::Error,
    },
}

impl Scenario {
    /// Reads and checks a scenario file.
    pub fn parse(name: &str, text: &str) -> Result<Scenario, ScenarioError> {
        let syntax = |e: toml::de::Error| ScenarioError::Syntax {
            name: name.to_owned(),
            why: e.to_string().trim_end().to_owned(),
        };
        let mut scenario: Scenario = toml::from_str(text).map_err(syntax)?;
        let inconsistent = |why| ScenarioError::Inconsistent { name: name.into(), why };
        scenario.ways =
            sweep::expand(scenario.ways, &mut scenario.published).map_err(inconsistent)?;
        scenario.check().map_err(inconsistent)?;
        Ok(scenario)
    }

    /// The built-in scenario of that name.
    pub fn built_in(name: &str) -> Result<Scenario, ScenarioError> {
        let found = BUILT_IN.iter().find(|(n, _)| *n == name);
        let (name, text) = found.ok_or_else(|| ScenarioError::Unknown(name.to_owned()))?;
        Scenario::parse(name, text)
    }

    /// The built-in scenario of that name, or that of a file, whose name ends in `.toml`.
    pub fn named(name: &str) -> Result<Scenario, ScenarioError> {
        if !name.ends_with(".toml") {
            return Scenario::built_in(name);
        }
        let text = std::fs::read_to_string(name)
            .map_err(|why| ScenarioError::File { name: name.to_owned(), why })?;
        let scenario = Scenario::parse(name, &text)?;
        let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        // Results lie in files of that name.
        if scenario.name.is_empty() || !scenario.name.chars().all(is_plain) {
            let why = format!(
                "name = {:?} is not made of letters, digits, \"-\" and \"_\" alone",
                scenario.name
            );
            return Err(ScenarioError::Inconsistent { name: name.to_owned(), why });
        }
        if BUILT_IN.iter().any(|(built_in, _)| *built_in == scenario.name) {
            let why = format!("name = {:?} is that of a published experiment", scenario.name);
            return Err(ScenarioError::Inconsistent { name: name.to_owned(), why });
        }
        Ok(scenario)
    }

    /// The way of that id.
    pub fn way(&self, id: &str) -> Option<&Way> {
        self.ways.iter().find(|w| w.id == id)
    }

    /// The link as this way uses it.
    pub fn link_of(&self, way: &Way) -> LinkSetup {
        let mut link = self.link.clone();
        link.up.rate = way.up_rate.or(way.rate).or(link.up.rate);
        link.down.rate = way.rate.or(link.down.rate);
        link.down.queue = way.queue.unwrap_or(link.down.queue);
        link.down.outages.extend(&way.outages);
        for direction in [&mut link.down, &mut link.up] {
            direction.delay = way.delay.unwrap_or(direction.delay);
            direction.ber = way.ber.unwrap_or(direction.ber);
            direction.loss = way.loss.unwrap_or(direction.loss);
            direction.burst = way.burst.or(direction.burst);
            if way.clean {
                (direction.ber, direction.loss, direction.burst) = (Ratio::ZERO, Ratio::ZERO, None);
            }
        }
        link
    }

    /// Every pair of a way has its nodes, and no node is in two pairs in the same part.
    fn check_pairs(&self, way: &Way) -> Result<(), String> {
        for (i, pair) in way.pairs.iter().enumerate() {
            if pair.sender.max(pair.receiver) >= 2 + self.mesh {
                return Err(format!("\"{}\" has a pair with a node that is not there", way.id));
            }
            let mut earlier = way.pairs[..i].iter();
            if earlier.any(|p| p.sender == pair.sender || p.receiver == pair.receiver) {
                return Err(format!(
                    "\"{}\" has two pairs with the same sender or receiver",
                    way.id
                ));
            }
        }
        if way.alone.is_some() && (!way.gateways || way.unsplit || way.pairs.len() > 1) {
            let id = &way.id;
            return Err(format!("\"{id}\" is alone: gateways = true, and no unsplit or pairs"));
        }
        if way.web && (!way.gateways || way.unsplit || way.alone.is_some()) {
            return Err(format!("\"{}\" has the web's service and no pair of gateways", way.id));
        }
        if way.pairs.len() > 1 && !way.gateways {
            return Err(format!("\"{}\" has pairs and no gateways, which know the ways", way.id));
        }
        Ok(())
    }

    fn check(&self) -> Result<(), String> {
        if self.ways.is_empty() {
            return Err("it has no [[way]]".into());
        }
        if self.mesh > MOST {
            return Err(format!("mesh = {} has more nodes than {MOST}", self.mesh));
        }
        if self.seeds == 0 {
            return Err("seeds = 0 would run nothing".into());
        }
        for (direction, config) in [("down", &self.link.down), ("up", &self.link.up)] {
            config.validate().map_err(|e| format!("link.{direction}: {e}"))?;
        }
        for (i, way) in self.ways.iter().enumerate() {
            if self.ways[..i].iter().any(|w| w.id == way.id) {
                return Err(format!("two ways are called \"{}\"", way.id));
            }
        }
        for way in &self.ways {
            let valid = self.link_of(way).down.validate();
            valid.map_err(|e| format!("the link of \"{}\": {e}", way.id))?;
            self.check_pairs(way)?;
        }
        for Bound { way, figure, over, least, most } in &self.bounds {
            if let Some(way) = over.iter().chain([way]).find(|id| self.way(id).is_none()) {
                return Err(format!("a bound names the way \"{way}\", which is not there"));
            }
            if least.or(*most).is_none() || *figure == Figure::Speedup {
                return Err(format!(
                    "a bound of \"{way}\" has neither `least` nor `most`, or is a speedup's"
                ));
            }
        }
        for p in &self.published {
            for id in p.over.iter().chain([&p.way]) {
                if self.way(id).is_none() {
                    return Err(format!(
                        "a published figure names the way \"{id}\", which is not there"
                    ));
                }
            }
            if (p.figure == Figure::Speedup) != p.over.is_some() {
                return Err("a speedup, and only a speedup, says `over` which way".into());
            }
            let (low, high) = p.range();
            if !(low.is_finite() && high.is_finite() && low <= high) {
                return Err(format!("published range {low}…{high} of \"{}\" is no range", p.way));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scenarios_of_the_demo_are_consistent() {
        for (name, text) in DEMO {
            let scenario = Scenario::parse(name, text).unwrap_or_else(|e| panic!("{e}"));
            assert_eq!((scenario.name.as_str(), scenario.ways.len()), (name, 4));
            assert!(scenario.before.is_some(), "{name} has no page");
        }
    }

    #[test]
    fn every_built_in_scenario_is_consistent_and_named_as_its_file() {
        for (name, _) in BUILT_IN {
            let scenario = Scenario::built_in(name).unwrap_or_else(|e| panic!("{e}"));
            assert_eq!(scenario.name, name);
            let own = scenario.source.starts_with("This project");
            assert!(own || !scenario.published.is_empty(), "{name} has no published figures");
            assert!(!scenario.bounds.is_empty(), "{name} has no bounds to check");
        }
    }

    const SMALL: &str = r#"
        name = "x"
        title = "t"
        source = "s"
        about = "a"
        link = { down = { rate = "1Mbit" }, up = { rate = "1Mbit" } }
        work = { kind = "file", bytes = "1MB" }
        [[way]]
        id = "plain"
        title = "Plain"
        delay = "10ms"
    "#;

    #[test]
    fn a_way_may_replace_the_delay_of_both_directions() {
        let s = Scenario::parse("x", SMALL).unwrap();
        let link = s.link_of(&s.ways[0]);
        assert_eq!(link.up.delay, Duration::from_millis(10));
        assert_eq!(link.down.rate, s.link.down.rate);
    }

    #[test]
    fn a_way_may_lose_packets_both_ways_and_be_dark_towards_the_client() {
        let text = format!("{SMALL}\nloss = \"10%\"\noutages = [\"1s-2s\", \"5s-6s\"]");
        let s = Scenario::parse("x", &text).unwrap_or_else(|e| panic!("{e}"));
        let link = s.link_of(&s.ways[0]);
        assert_eq!([link.down.loss, link.up.loss], [Ratio::from_f64(0.1); 2]);
        assert_eq!([link.down.outages.len(), link.up.outages.len()], [2, 0]);
        let text = format!("{SMALL}\noutages = [\"2s-1s\"]");
        assert!(Scenario::parse("x", &text).unwrap_err().to_string().contains("plain"));
    }

    #[test]
    fn a_sweep_is_a_way_for_each_value_and_so_is_what_was_published_of_it() {
        let sweep = |what: &str| {
            format!(
                "{SMALL}\n[[way]]\nid = \"line\"\ntitle = \"Line\"\n\
                 work = {{ kind = \"streams\", count = 1, time = \"9s\" }}\n\
                 sweep = {{ chart = \"Figure 7\", {what} }}\n\
                 [[published]]\nway = \"line\"\nfigure = \"share\"\nlow = 95\nwhere = \"p\"\n"
            )
        };
        let s = Scenario::parse("x", &sweep("over = \"rate\", values = [\"384kbit\", \"2Mbit\"]"));
        let s = s.unwrap_or_else(|e| panic!("{e}"));
        let ids: Vec<&str> = s.ways.iter().map(|w| w.id.as_str()).collect();
        assert_eq!(ids, ["plain", "line-384kbit", "line-2Mbit"]);
        assert_eq!(s.link_of(&s.ways[1]).up.rate, Some(BitRate::from_kbps(384)));
        assert_eq!(s.ways[2].point.as_ref().map(|p| p.x), Some(2000.0));
        assert_eq!(s.published.len(), 2);
        let s = Scenario::parse("x", &sweep("over = \"window\", values = [\"9MB\"]"));
        let s = s.unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(s.ways[1].hosts.window, Some(ByteCount(9_000_000)));
        let s = Scenario::parse("x", &sweep("over = \"queue\", values = [\"300kB\"]"));
        let s = s.unwrap_or_else(|e| panic!("{e}"));
        let waits = |l: ChannelConfig| l.queue.bytes(l.rate);
        assert_eq!(waits(s.link_of(&s.ways[1]).down), ByteCount(300_000));
        let unshaped = Scenario::parse("x", &sweep("over = \"bucket\", values = [\"16kB\"]"));
        assert!(unshaped.unwrap_err().to_string().contains("shape"));
        let s = Scenario::parse("x", &sweep("over = \"connections\", values = [\"350\"]"));
        let work = s.unwrap_or_else(|e| panic!("{e}")).ways[1].work;
        assert!(matches!(work, Some(Work::Streams { count: 350, .. })), "{work:?}");
        let slip = Scenario::parse("x", &sweep("over = \"connections\", values = [\"9s\"]"));
        assert!(slip.unwrap_err().to_string().contains("is no number"));
    }

    #[test]
    fn slips_in_a_scenario_are_refused_with_a_reason() {
        let with = |more: &str| format!("{SMALL}\n{more}");
        let published =
            |more: &str| with(&format!("[[published]]\nlow = 3\nwhere = \"p\"\n{more}"));
        for (text, why) in [
            (with("gateway = true"), "unknown field"),
            (with("web = true"), "no pair of gateways"),
            (with("pairs = [\"a-a\"]"), "is not a pair"),
            (with("pairs = [\"c-a\"]"), "not there"),
            (with("pairs = [\"b-a\", \"b-a\"]"), "the same sender"),
            (with("[[way]]\nid = \"plain\"\ntitle = \"again\""), "two ways"),
            (published("way = \"other\"\nfigure = \"time\""), "not there"),
            (published("way = \"plain\"\nfigure = \"speedup\""), "over"),
            (published("way = \"plain\"\nfigure = \"time\"\nhigh = 2"), "no range"),
            (with("[[bound]]\nway = \"other\"\nfigure = \"time\"\nmost = 1"), "not there"),
            (
                with("[[bound]]\nway = \"plain\"\nover = \"o\"\nfigure = \"time\"\nmost = 1"),
                "not there",
            ),
            (with("[[bound]]\nway = \"plain\"\nfigure = \"time\""), "neither"),
            (SMALL.replace("1MB", "1000"), "size such as"),
        ] {
            let error = Scenario::parse("x", &text).unwrap_err().to_string();
            assert!(error.contains(why), "{error} does not say {why}");
        }
    }
}
