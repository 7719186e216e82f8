//! What crossed, by day, peer and host: what a bill is made of.

use std::ops::AddAssign;

use serde::{Deserialize, Serialize};

/// What rows of a report are summed by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum By {
    /// A row for each host.
    #[default]
    Host,
    /// A row for each peer.
    Peer,
    /// A row for each day.
    Day,
}

/// Bytes and packets. They count on over restarts of the gateway.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct UsageBytes {
    /// Content of split connections, to the peer.
    pub stream_bytes_sent: u64,
    /// The same from the peer.
    pub stream_bytes_received: u64,
    /// IP packets that are not split, with their headers, to the peer.
    pub packet_bytes_sent: u64,
    /// The same from the peer.
    pub packet_bytes_received: u64,
    /// How many these are.
    pub packets_sent: u64,
    /// See `packets_sent`.
    pub packets_received: u64,
    /// Link packets with their headers, to the peer. Only for peers and days: what a host has of
    /// them cannot be told apart.
    pub link_bytes_sent: u64,
    /// The same from the peer.
    pub link_bytes_received: u64,
}

impl UsageBytes {
    /// Bytes of hosts, to the peer.
    pub fn sent(&self) -> u64 {
        self.stream_bytes_sent.saturating_add(self.packet_bytes_sent)
    }

    /// Bytes of hosts, from the peer.
    pub fn received(&self) -> u64 {
        self.stream_bytes_received.saturating_add(self.packet_bytes_received)
    }

    /// Bytes of hosts, both ways.
    pub fn bytes(&self) -> u64 {
        self.sent().saturating_add(self.received())
    }
}

impl AddAssign for UsageBytes {
    fn add_assign(&mut self, more: UsageBytes) {
        for (sum, more) in [
            (&mut self.stream_bytes_sent, more.stream_bytes_sent),
            (&mut self.stream_bytes_received, more.stream_bytes_received),
            (&mut self.packet_bytes_sent, more.packet_bytes_sent),
            (&mut self.packet_bytes_received, more.packet_bytes_received),
            (&mut self.packets_sent, more.packets_sent),
            (&mut self.packets_received, more.packets_received),
            (&mut self.link_bytes_sent, more.link_bytes_sent),
            (&mut self.link_bytes_received, more.link_bytes_received),
        ] {
            *sum = sum.saturating_add(more);
        }
    }
}

/// One row of a report.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct UsageRow {
    /// What the row is of: a host's address or `other`, a peer's name, a day.
    pub of: String,
    /// What it had.
    #[serde(flatten)]
    pub bytes: UsageBytes,
}

/// Usage of some days.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct UsageReport {
    /// What rows are summed by.
    pub by: By,
    /// The first day that is kept of those asked for, and the last (UTC); empty: none is.
    pub from: String,
    /// See `from`.
    pub to: String,
    /// Days in their order, others with the most bytes first; 10,000 at most, the others of
    /// hosts together as `other`.
    pub rows: Vec<UsageRow>,
    /// Their sum.
    pub total: UsageBytes,
    /// Days whose file cannot be read for now: what it has is missing.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unread: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_saturate_and_count_hosts_bytes_only() {
        let mut sum = UsageBytes { stream_bytes_sent: u64::MAX, ..UsageBytes::default() };
        let more = UsageBytes { stream_bytes_sent: 7, packet_bytes_received: 5, ..sum };
        sum += more;
        assert_eq!((sum.stream_bytes_sent, sum.received()), (u64::MAX, 5));
        let link = UsageBytes { link_bytes_sent: 9, ..UsageBytes::default() };
        assert_eq!(link.bytes(), 0);
    }
}
