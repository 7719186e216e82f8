//! What the first shard is to hear from this one: notes of its peers, events for watchers and for
//! the log of outages, and what hosts had.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use control::{Event, Notice, UsageBytes};
use link::endpoint::LinkEvent;
use link::keys::PublicKey;
use units::Instant;

use crate::calendar;
use crate::up::peer_table::KnownPeer;

/// Events that may wait for the first shard; the newest beyond are counted only.
const MOST: usize = 4096;

/// What a shard tells the first of its peers.
pub struct News {
    pub notes: BTreeMap<PublicKey, Note>,
    pub tidings: Tidings,
}

/// What the first shard is to know of a peer: it keeps the routes and the file of addresses.
#[derive(Clone, Copy, Debug, Default)]
pub struct Note {
    /// The last that happened to the link, and when.
    pub event: Option<(Instant, LinkEvent)>,
    /// Where the peer is now.
    pub address: Option<SocketAddr>,
}

/// What happened here that the first shard has not heard of.
#[derive(Default)]
pub struct Tidings {
    pub events: Vec<(PublicKey, Notice)>,
    /// Events for which there was no place.
    pub missed: u64,
    pub usage: Vec<PeerUsage>,
}

/// What a peer and its hosts had since this was told last.
pub struct PeerUsage {
    pub key: PublicKey,
    pub name: String,
    pub hosts: Vec<(Option<IpAddr>, UsageBytes)>,
    /// Bytes of link packets, sent and received.
    pub link: [u64; 2],
}

impl Tidings {
    /// Is there nothing to tell?
    pub fn is_empty(&self) -> bool {
        self.events.is_empty() && self.missed == 0 && self.usage.is_empty()
    }

    pub(super) fn push(&mut self, peer: &KnownPeer, event: Event) {
        if self.events.len() >= MOST {
            self.missed += 1;
            return;
        }
        let name = Some(peer.config.name.clone());
        let notice = Notice { at_ms: calendar::milliseconds(), peer: name, event };
        self.events.push((peer.config.public_key, notice));
    }
}
