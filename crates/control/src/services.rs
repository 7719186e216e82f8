//! What a gateway says of its services.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// One service.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ServiceStatus {
    /// Its name.
    pub name: String,
    /// What it does.
    pub state: ServiceState,
    /// For how long it has done so.
    pub running_ms: Option<u64>,
    /// Its process.
    pub pid: Option<u64>,
    /// How often it was started; more than once: it failed.
    pub starts: u64,
    /// Starts in a row after which it ended before it had run for a minute.
    pub failures: u64,
    /// How it ended last, of one that has failed: its exit status, or why the gateway ended it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended: Option<String>,
    /// The last line that it wrote before it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_line: Option<String>,
    /// It is started again in so long.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_start_ms: Option<u64>,
    /// What has gone between it and the gateway, by kind, since the gateway's start.
    pub gateway: BTreeMap<String, u64>,
    /// What it counts itself.
    pub counters: BTreeMap<String, u64>,
    /// What waits at it for links.
    pub waiting: Vec<ServiceWaiting>,
}

impl ServiceStatus {
    /// Does it end over and over soon after its start?
    pub fn keeps_failing(&self) -> bool {
        self.failures >= 2
    }

    /// How it ended last, with its last line.
    pub fn end_in_words(&self) -> String {
        let ended = self.ended.as_deref().unwrap_or("it ended");
        match &self.last_line {
            Some(line) => format!("{ended}, \"{line}\""),
            None => ended.to_owned(),
        }
    }
}

/// What a service does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ServiceState {
    /// It failed and is started again in a moment. Its traffic is split as plain streams.
    #[default]
    Resting,
    /// It was started and has not said hello.
    Starting,
    /// It works.
    Running,
    /// It was told to end.
    Ending,
}

impl ServiceState {
    /// The state in a word.
    pub fn words(self) -> &'static str {
        match self {
            ServiceState::Resting => "not running",
            ServiceState::Starting => "starting",
            ServiceState::Running => "running",
            ServiceState::Ending => "ending",
        }
    }
}

/// Something that waits at a service.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ServiceWaiting {
    /// For the link to this peer.
    pub peer: String,
    /// In this class.
    pub class: String,
    /// How much.
    pub bytes: u64,
    /// 0 … 255: it cannot wait.
    pub urgency: u8,
    /// How long the oldest of it has waited.
    pub oldest_ms: u64,
}
