//! The peers as the loop knows them. A hub has thousands, so what they want by time is
//! looked up only after one of them changed: not at every turn of the loop.

use std::cell::Cell;
use std::ops::{Deref, DerefMut};

use link::session::Disagreements;
use link::{PathId, PeerId};
use units::Instant;

use super::interception::Clear;
use super::losses::Losses;
use super::report::Meter;
use crate::config::Peer;

/// A peer as its shard knows it: as configured, and what it is in the relay.
pub(super) struct KnownPeer {
    pub id: PeerId,
    pub config: Peer,
    /// The path over each of its carriers.
    pub paths: Vec<PathId>,
    pub meter: Meter,
    pub losses: Losses,
    /// Since when one direction of its link is dead, if one is.
    pub silent_since: Option<Instant>,
    /// A session has begun and was not ended.
    pub up: bool,
    /// The rate and its limit, as far as watchers have them.
    pub told_rate: (u64, u64),
    /// Bytes of link packets, sent and received, that are on the day's account.
    pub told_bytes: [u64; 2],
    /// When its name is to be asked for.
    pub resolve_at: Option<Instant>,
    /// What its file and ours do not agree on, as far as the log has it.
    pub told: Disagreements,
}

/// A peer as the first shard knows it, whoever has it.
pub(super) struct ListedPeer {
    pub config: Peer,
    /// The number of the shard that has it, from its first place in the file until it is
    /// taken out.
    pub shard: usize,
    pub clear: Clear,
}

/// What may be due at some time.
pub(super) trait Due {
    fn due(&self) -> Option<Instant>;
}

impl Due for KnownPeer {
    fn due(&self) -> Option<Instant> {
        self.resolve_at
    }
}

impl Due for ListedPeer {
    fn due(&self) -> Option<Instant> {
        self.clear_due()
    }
}

/// Peers. To change one is to make what is due be looked up anew.
pub(super) struct Roster<P> {
    peers: Vec<P>,
    due: Cell<Option<Option<Instant>>>,
}

impl<P> Default for Roster<P> {
    fn default() -> Roster<P> {
        Roster { peers: Vec::new(), due: Cell::new(None) }
    }
}

impl<P: Due> Roster<P> {
    pub fn push(&mut self, peer: P) {
        self.due.set(None);
        self.peers.push(peer);
    }

    pub fn remove(&mut self, at: usize) -> P {
        self.due.set(None);
        self.peers.remove(at)
    }

    /// Takes all of them out.
    pub fn drain(&mut self) -> impl Iterator<Item = P> {
        self.due.set(None);
        self.peers.drain(..)
    }

    /// When the first of them is due.
    pub fn due(&self) -> Option<Instant> {
        let due = self.due.get().unwrap_or_else(|| self.peers.iter().filter_map(Due::due).min());
        self.due.set(Some(due));
        due
    }
}

impl<P> Deref for Roster<P> {
    type Target = [P];
    fn deref(&self) -> &[P] {
        &self.peers
    }
}

impl<P> DerefMut for Roster<P> {
    fn deref_mut(&mut self) -> &mut [P] {
        self.due.set(None);
        &mut self.peers
    }
}
