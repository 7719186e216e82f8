//! The peers as the loop knows them. A hub has thousands, so what they want by time is
//! looked up only after one of them changed: not at every turn of the loop.

use std::cell::Cell;
use std::ops::{Deref, DerefMut};

use link::PeerId;
use units::Instant;

use super::interception::Clear;
use super::report::Meter;
use crate::config::Peer;

/// A peer as configured, and what it is in the relay.
pub(super) struct KnownPeer {
    pub id: PeerId,
    pub config: Peer,
    pub meter: Meter,
    pub clear: Clear,
    /// When its name is to be asked for.
    pub resolve_at: Option<Instant>,
}

/// All peers. To change one is to make the times be looked up anew.
#[derive(Default)]
pub(super) struct Roster {
    peers: Vec<KnownPeer>,
    due: Cell<Option<Due>>,
}

/// What is due first, of all peers.
#[derive(Clone, Copy)]
struct Due {
    name: Option<Instant>,
    clear: Option<Instant>,
}

impl Roster {
    pub fn push(&mut self, peer: KnownPeer) {
        self.due.set(None);
        self.peers.push(peer);
    }

    pub fn remove(&mut self, at: usize) -> KnownPeer {
        self.due.set(None);
        self.peers.remove(at)
    }

    /// When the first name is to be asked for.
    pub fn name_due(&self) -> Option<Instant> {
        self.due().name
    }

    /// When the first peer's traffic is to go another way than it does.
    pub fn clear_due(&self) -> Option<Instant> {
        self.due().clear
    }

    fn due(&self) -> Due {
        let due = self.due.get().unwrap_or_else(|| Due {
            name: self.peers.iter().filter_map(|p| p.resolve_at).min(),
            clear: self.peers.iter().filter_map(KnownPeer::clear_due).min(),
        });
        self.due.set(Some(due));
        due
    }
}

impl Deref for Roster {
    type Target = [KnownPeer];
    fn deref(&self) -> &[KnownPeer] {
        &self.peers
    }
}

impl DerefMut for Roster {
    fn deref_mut(&mut self) -> &mut [KnownPeer] {
        self.due.set(None);
        &mut self.peers
    }
}
