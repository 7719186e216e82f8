//! Figures: what can be measured, what sources printed of it, and where it must be.

use serde::{Deserialize, Serialize};

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
