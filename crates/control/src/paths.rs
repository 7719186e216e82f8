//! The paths of a link, as the admin API tells of them, and what can be done with one.

use std::fmt;

use serde::{Deserialize, Serialize};
use units::{BitRate, ByteCount, Duration};

/// What becomes of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PathCommand {
    /// Both nodes send everything on it, while it lives.
    Use,
    /// It may be used again.
    Up,
    /// Nothing at all is sent on it.
    Down,
}

/// Where a path stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PathState {
    /// It carries everything.
    InUse,
    /// It is alive, and waits.
    StandsBy,
    /// Nothing was heard on it yet, or not for long.
    #[default]
    Dead,
    /// This node sends nothing on it.
    Down,
    /// The peer sends nothing on it.
    PeerDown,
}

/// One path of a link.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PathReport {
    /// The carrier's name in the file; of a path that the peer opened its number.
    pub name: String,
    /// Its number in the session.
    pub number: u64,
    /// Where it stands.
    pub state: PathState,
    /// Where the peer is on it.
    pub endpoint: Option<String>,
    /// The rate that is sent at, in bits per second.
    pub rate_bps: u64,
    /// The round trip, smoothed.
    pub rtt_us: u64,
    /// Packets that were lost, in parts per million.
    pub loss_ppm: u64,
    /// The longest IP packet that is sent.
    pub mtu: u64,
    /// Bytes of link packets sent and received in all.
    pub sent_bytes: u64,
    /// See `sent_bytes`.
    pub received_bytes: u64,
}

impl fmt::Display for PathReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.state {
            PathState::InUse => "in use",
            PathState::StandsBy => "stands by",
            PathState::Dead => "dead",
            PathState::Down => "down",
            PathState::PeerDown => "down at the peer",
        };
        let endpoint = self.endpoint.as_deref().unwrap_or("no address yet");
        write!(
            f,
            "{}: {state}, {endpoint}, {} sending, {} round trip, {}.{:02} % lost, \
             {} sent, {} received",
            self.name,
            BitRate::from_bps(self.rate_bps),
            Duration::from_millis(self.rtt_us / 1_000),
            self.loss_ppm / 10_000,
            self.loss_ppm / 100 % 100,
            ByteCount(self.sent_bytes),
            ByteCount(self.received_bytes)
        )
    }
}
