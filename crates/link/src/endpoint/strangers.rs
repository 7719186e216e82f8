//! Nodes that call and that the configuration does not know: shown to the operator, who may
//! have mistyped a key. They get no answer, as before.
//!
//! Anybody can call, as often as they like: few are remembered, and few told.

use std::net::SocketAddr;

use units::{Duration, Instant};

use crate::handshake::{INITIATION, MIN_INITIATION};
use crate::keys::PublicKey;

/// Strangers of one kind that are remembered; the one not heard for longest gives way. Those
/// that know this node's key, and so cost two agreements each, have a place of their own.
const MAX_EACH: usize = 8;
/// At most so often one is told of.
const SPACING: Duration = Duration::from_secs(60);
/// The same one is told of again after so long, if it still calls.
const AGAIN: Duration = Duration::from_secs(3600);

/// What is wrong with a stranger's initiation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strange {
    /// It authenticates as that of a node whose key no peer has.
    UnknownNode(PublicKey),
    /// It is made for another public key than this node's.
    OtherKey,
    /// It is of another version of the protocol.
    OtherVersion(u8),
}

/// A node that calls in vain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stranger {
    /// What is wrong with its initiations.
    pub why: Strange,
    /// Where the last came from, which only [`Strange::UnknownNode`] makes likely.
    pub from: SocketAddr,
    /// When that was.
    pub last: Instant,
    /// How many there were.
    pub count: u64,
}

/// News of a stranger, for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StrangerNews {
    /// The stranger.
    pub stranger: Stranger,
    /// Others that were forgotten since the last news and never told of.
    pub others: u64,
}

struct Entry {
    stranger: Stranger,
    told: Option<Instant>,
}

/// The strangers of an endpoint.
#[derive(Default)]
pub(super) struct Strangers {
    nodes: Vec<Entry>,
    others: Vec<Entry>,
    not_before: Instant,
    untold: u64,
}

impl Strangers {
    pub fn note(&mut self, now: Instant, from: SocketAddr, why: Strange) {
        let list = match why {
            Strange::UnknownNode(_) => &mut self.nodes,
            _ => &mut self.others,
        };
        let same = |known: &Stranger| {
            known.why == why && (matches!(why, Strange::UnknownNode(_)) || known.from == from)
        };
        if let Some(Entry { stranger, .. }) = list.iter_mut().find(|e| same(&e.stranger)) {
            (stranger.from, stranger.last) = (from, now);
            stranger.count += 1;
            return;
        }
        if list.len() == MAX_EACH
            && let Some((oldest, _)) = list.iter().enumerate().min_by_key(|(_, e)| e.stranger.last)
        {
            self.untold += u64::from(list.swap_remove(oldest).told.is_none());
        }
        let stranger = Stranger { why, from, last: now, count: 1 };
        list.push(Entry { stranger, told: None });
    }

    /// The node with this key has become a peer.
    pub fn forget(&mut self, peer: &PublicKey) {
        self.nodes.retain(|entry| entry.stranger.why != Strange::UnknownNode(*peer));
    }

    /// Notes an initiation that is refused for its form or its mac1.
    pub fn note_refused(&mut self, now: Instant, from: SocketAddr, packet: &[u8], mac1: bool) {
        if packet.len() < MIN_INITIATION || packet[0] != INITIATION {
            return; // Whatever it is, it is nobody's call.
        }
        let why = if mac1 { Strange::OtherKey } else { Strange::OtherVersion(packet[1]) };
        self.note(now, from, why);
    }

    pub fn iter(&self) -> impl Iterator<Item = &Stranger> {
        self.nodes.iter().chain(&self.others).map(|e| &e.stranger)
    }

    pub fn poll(&mut self, now: Instant) -> Option<StrangerNews> {
        if now < self.not_before {
            return None;
        }
        let is_news =
            |e: &&mut Entry| e.told.is_none_or(|at| now.since(at) >= AGAIN && e.stranger.last > at);
        let entry = self.nodes.iter_mut().chain(&mut self.others).find(is_news)?;
        entry.told = Some(now);
        self.not_before = now + SPACING;
        let others = std::mem::take(&mut self.untold);
        Some(StrangerNews { stranger: entry.stranger, others })
    }
}
