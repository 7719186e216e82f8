//! A way to run an experiment: the link and the hosts around it, what is carried, and what differs
//! from way to way.

use channel::{ChannelConfig, GilbertElliott, Outage, QueueLimit};
use serde::{Deserialize, Serialize};
use units::{BitRate, ByteCount, Duration, Ratio};

use super::traffic::browser::Browser;
use super::unit;

/// Nodes of a mesh at most, beside the client's and the server's.
pub const MOST_BESIDE: usize = 2;

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

/// A side of the satellite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Side {
    /// The client's, which most works have receive.
    Client,
    /// The server's.
    Server,
}

/// What a way is repeated for.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sweep {
    /// The figure that it is a line of.
    pub chart: String,
    /// What the values are.
    pub over: Over,
    /// The values, rates with their unit.
    pub values: Vec<String>,
}

/// What differs from point to point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Over {
    /// The link's rate, both ways.
    Rate,
    /// Connections at a time, of work of the kind `streams`.
    Connections,
    /// The receive window that the client offers at most.
    Window,
    /// What may wait before the link, from server to client.
    Queue,
    /// The bucket of the server's shaping.
    Bucket,
}

impl Over {
    /// The axis.
    pub fn label(self) -> &'static str {
        match self {
            Over::Rate => "link rate (kbit/s)",
            Over::Connections => "connections",
            Over::Window => "receive window (kB)",
            Over::Queue => "room before the link (packets of 1,500 bytes)",
            Over::Bucket => "token bucket (kB)",
        }
    }
}

/// Where a way stands in its figure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// The figure.
    pub chart: String,
    /// The line.
    pub line: String,
    /// What differs along the line.
    pub over: Over,
    /// Place on the axis.
    pub x: f64,
}
