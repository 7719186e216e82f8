//! The peers as the loop knows them. A hub has thousands, so what they want by time is
//! looked up only after one of them changed: not at every turn of the loop. Who is meant by a
//! number, a key or a name is looked up in tables.

use std::cell::{Cell, OnceCell};
use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use link::keys::PublicKey;
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
    pub config: Arc<Peer>,
    /// The path over each of its carriers, as far as this node opens them.
    pub paths: Vec<Option<PathId>>,
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
    pub config: Arc<Peer>,
    /// The number of the shard that has it, from its first place in the file until it is
    /// taken out.
    pub shard: usize,
    pub clear: Clear,
}

/// What has a name, and may be due at some time.
pub(super) trait Entry {
    type Name: Ord + Copy;
    fn name(&self) -> Self::Name;
    /// As the operator calls it.
    fn called(&self) -> &str;
    fn due(&self) -> Option<Instant>;
}

impl Entry for KnownPeer {
    type Name = PeerId;

    fn name(&self) -> PeerId {
        self.id
    }

    fn called(&self) -> &str {
        &self.config.name
    }

    fn due(&self) -> Option<Instant> {
        self.resolve_at
    }
}

impl Entry for ListedPeer {
    type Name = PublicKey;

    fn name(&self) -> PublicKey {
        self.config.public_key
    }

    fn called(&self) -> &str {
        &self.config.name
    }

    fn due(&self) -> Option<Instant> {
        self.clear_due()
    }
}

/// Peers. To change one is to make what is due be looked up anew.
pub(super) struct Roster<P: Entry> {
    peers: Vec<P>,
    /// Where each of them is, once one was looked for.
    places: OnceCell<BTreeMap<P::Name, usize>>,
    /// The same by what the operator calls them.
    called: OnceCell<BTreeMap<Box<str>, usize>>,
    due: Cell<Option<Option<Instant>>>,
}

impl<P: Entry> Default for Roster<P> {
    fn default() -> Roster<P> {
        let (places, called) = (OnceCell::new(), OnceCell::new());
        Roster { peers: Vec::new(), places, called, due: Cell::new(None) }
    }
}

impl<P: Entry> Roster<P> {
    fn place(&self, name: P::Name) -> Option<usize> {
        let each = || self.peers.iter().enumerate().map(|(at, peer)| (peer.name(), at)).collect();
        self.places.get_or_init(each).get(&name).copied()
    }

    /// The one of this name.
    pub fn named(&self, name: P::Name) -> Option<&P> {
        self.place(name).map(|at| &self.peers[at])
    }

    /// The same, to change something.
    pub fn named_mut(&mut self, name: P::Name) -> Option<&mut P> {
        let at = self.place(name)?;
        self.due.set(None);
        Some(&mut self.peers[at])
    }

    /// The one that the operator calls so.
    pub fn called(&self, name: &str) -> Option<&P> {
        let each = || self.peers.iter().enumerate().map(|(at, peer)| (peer.called().into(), at));
        self.called.get_or_init(|| each().collect()).get(name).map(|at| &self.peers[*at])
    }

    pub fn push(&mut self, peer: P) {
        self.due.set(None);
        if let Some(called) = self.called.get_mut() {
            called.insert(peer.called().into(), self.peers.len());
        }
        if let Some(places) = self.places.get_mut() {
            places.insert(peer.name(), self.peers.len());
        }
        self.peers.push(peer);
    }

    /// Takes those out that are meant.
    pub fn take_out(&mut self, is_meant: impl Fn(&P) -> bool) -> Vec<P> {
        self.drained();
        let (gone, stay) = std::mem::take(&mut self.peers).into_iter().partition(is_meant);
        self.peers = stay;
        gone
    }

    /// Takes all of them out.
    pub fn drain(&mut self) -> impl Iterator<Item = P> {
        self.drained();
        self.peers.drain(..)
    }

    /// They are at other places.
    fn drained(&mut self) {
        self.due.set(None);
        self.places.take();
        self.called.take();
    }

    /// When the first of them is due.
    pub fn due(&self) -> Option<Instant> {
        let due = self.due.get().unwrap_or_else(|| self.peers.iter().filter_map(Entry::due).min());
        self.due.set(Some(due));
        due
    }
}

impl<P: Entry> Deref for Roster<P> {
    type Target = [P];
    fn deref(&self) -> &[P] {
        &self.peers
    }
}

impl<P: Entry> DerefMut for Roster<P> {
    fn deref_mut(&mut self) -> &mut [P] {
        self.due.set(None);
        &mut self.peers
    }
}
