//! What the service counts, for `bentpipe status`.

use std::cell::Cell;
use std::collections::BTreeMap;

/// What `bentpipe status` tells of the service.
#[derive(Default)]
pub struct Counted {
    /// Hosts' connections that were served here.
    pub connections: Cell<u64>,
    /// Hosts' connections that went back to the gateway.
    pub passed: Cell<u64>,
    /// Hosts' requests.
    pub requests: Cell<u64>,
    /// Those answered from what is kept.
    pub hits: Cell<u64>,
    /// Bytes of these answers' bodies.
    pub hit_bytes: Cell<u64>,
    /// Answers that were validated and held.
    pub validated: Cell<u64>,
    /// Stale answers that were given.
    pub stale: Cell<u64>,
    /// Answers that came to the disk.
    pub stored: Cell<u64>,
    /// Answers that did not, because it failed or was too slow.
    pub not_written: Cell<u64>,
    /// Files that were not what they had been.
    pub damaged: Cell<u64>,
    /// Exchanges begun.
    pub exchanges: Cell<u64>,
    /// Requests of peers' hosts.
    pub forwarded: Cell<u64>,
    /// Connections to servers for them.
    pub connects: Cell<u64>,
    /// Hosts' connections of HTTPS that were opened.
    pub inspected: Cell<u64>,
    /// Those that were not, by the list.
    pub bypassed: Cell<u64>,
    /// Those that could not be, or were not because it had failed within the hour.
    pub refused: Cell<u64>,
    /// Servers' certificates that were not valid.
    pub bad_certificates: Cell<u64>,
    /// Objects that the hub sent ahead of requests.
    pub push_sent: Cell<u64>,
    /// Their bytes.
    pub push_sent_bytes: Cell<u64>,
    /// Objects that the hub did not send, or not whole, because their page was left.
    pub push_stopped: Cell<u64>,
    /// Objects that came so.
    pub pushed: Cell<u64>,
    /// Their bytes.
    pub pushed_bytes: Cell<u64>,
    /// Those that a host asked for.
    pub push_used: Cell<u64>,
    /// Their bytes.
    pub push_used_bytes: Cell<u64>,
    /// Those that nobody asked for.
    pub push_wasted: Cell<u64>,
    /// Their bytes.
    pub push_wasted_bytes: Cell<u64>,
}

impl Counted {
    /// One more.
    pub fn add(what: &Cell<u64>) {
        Counted::more(what, 1);
    }

    /// So many more.
    pub fn more(what: &Cell<u64>, n: usize) {
        what.set(what.get() + n as u64);
    }

    /// By name.
    pub fn all(&self) -> BTreeMap<String, u64> {
        [
            ("connections", &self.connections),
            ("passed", &self.passed),
            ("requests", &self.requests),
            ("hits", &self.hits),
            ("hit_bytes", &self.hit_bytes),
            ("validated", &self.validated),
            ("stale", &self.stale),
            ("stored", &self.stored),
            ("not_written", &self.not_written),
            ("damaged", &self.damaged),
            ("exchanges", &self.exchanges),
            ("forwarded", &self.forwarded),
            ("connects", &self.connects),
            ("inspected", &self.inspected),
            ("bypassed", &self.bypassed),
            ("refused", &self.refused),
            ("bad_certificates", &self.bad_certificates),
            ("push_sent", &self.push_sent),
            ("push_sent_bytes", &self.push_sent_bytes),
            ("push_stopped", &self.push_stopped),
            ("pushed", &self.pushed),
            ("pushed_bytes", &self.pushed_bytes),
            ("push_used", &self.push_used),
            ("push_used_bytes", &self.push_used_bytes),
            ("push_wasted", &self.push_wasted),
            ("push_wasted_bytes", &self.push_wasted_bytes),
        ]
        .map(|(name, n)| (name.to_owned(), n.get()))
        .into()
    }
}
