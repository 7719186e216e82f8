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
    /// Both nodes send everything on the best; of no path.
    Auto,
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

/// Why a path carries everything, or does not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PathCause {
    /// It is the one preferred of those that work.
    Preferred,
    /// A command chose it.
    Chosen,
    /// Nothing is received on the one before, or on it.
    Silent,
    /// The peer hears nothing on it, or reports nothing.
    Unheard,
    /// The peer has told that it hears nothing on it.
    Missed,
    /// This node put it down.
    Down,
    /// Its line is not raised.
    Unraised,
    /// The peer put it down.
    PeerDown,
    /// Its interface has no link.
    NoLink,
    /// It failed and has not held for long enough yet.
    Held,
    /// The month's budget allows no more of its bytes.
    Budget,
    /// It loses so much, or carries so little, that another carries more.
    Poor,
    /// One that this program does not know.
    #[default]
    #[serde(other)]
    Unknown,
}

impl PathCause {
    /// What is the matter with a path, in plain words.
    pub fn words(self) -> &'static str {
        match self {
            PathCause::Preferred => "preferred",
            PathCause::Chosen => "chosen by command",
            PathCause::Silent => "nothing received",
            PathCause::Unheard => "the peer is heard but does not hear",
            PathCause::Missed => "the peer hears nothing",
            PathCause::Down => "put down by command",
            PathCause::Unraised => "its line is not raised",
            PathCause::PeerDown => "put down at the peer",
            PathCause::NoLink => "its interface has no link",
            PathCause::Held => "it failed and is left alone until it has held",
            PathCause::Budget => "the month's budget is used up",
            PathCause::Poor => "it carries less than another",
            PathCause::Unknown => "an unknown cause",
        }
    }

    /// Why everything goes by another path now.
    pub fn why(self) -> String {
        match self {
            PathCause::Preferred | PathCause::Chosen => self.words().to_owned(),
            _ => format!("the one before: {}", self.words()),
        }
    }
}

/// One path of a link.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PathReport {
    /// The carrier's name, in this node's file or the peer's; its number if it has none.
    pub name: String,
    /// Its number in the session.
    pub number: u64,
    /// Where it stands.
    pub state: PathState,
    /// Why it carries everything, or what speaks against it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<PathCause>,
    /// It works, and is left alone for so much longer because it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held_ms: Option<u64>,
    /// The classes of traffic that go by it, where some class names its carriers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub classes: Vec<String>,
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
            PathState::StandsBy if !self.classes.is_empty() => "in use",
            PathState::StandsBy => "stands by",
            PathState::Dead => "dead",
            PathState::Down => "down",
            PathState::PeerDown => "down at the peer",
        };
        let endpoint = self.endpoint.as_deref().unwrap_or("no address yet");
        let held = self.held_ms.map(|ms| Duration::from_millis(ms.div_ceil(1_000) * 1_000));
        let why = match (self.cause, held) {
            (Some(cause), _) if self.state == PathState::InUse => format!(" ({})", cause.why()),
            (_, Some(time)) => format!(" (it failed, and is left alone for {time})"),
            (Some(cause), _) => format!(" ({})", cause.words()),
            (None, None) => String::new(),
        };
        let classes = match self.classes.is_empty() {
            true => String::new(),
            false => format!(" for {}", self.classes.join(", ")),
        };
        write!(
            f,
            "{}: {state}{classes}{why}, {endpoint}, {} sending, {} round trip, {}.{:02} % lost, \
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
