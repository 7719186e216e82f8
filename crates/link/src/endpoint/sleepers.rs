//! Peers that sleep: nothing was to do with them yet (`waking.rs`). One costs what its file says
//! and a seed.

use std::collections::VecDeque;

use units::Instant;

use super::peer::{PeerConfig, PeerId};
use crate::keys::Entropy;

/// Peers that sleep, by their numbers.
#[derive(Default)]
pub(super) struct Sleepers {
    each: Vec<Option<Box<Sleeper>>>,
    /// Numbers that were given out and are nobody's.
    free: Vec<PeerId>,
    /// Those that woke, for whoever has more to prepare for them.
    woken: VecDeque<PeerId>,
}

/// A peer that sleeps.
pub(super) struct Sleeper {
    pub config: PeerConfig,
    pub entropy: Entropy,
    pub added: Instant,
}

impl Sleepers {
    /// The peer is gone, or awake.
    pub fn remove(&mut self, id: PeerId) -> Option<Box<Sleeper>> {
        self.each.get_mut(id.index())?.take()
    }

    /// Somebody may have the peer's number.
    pub fn free(&mut self, id: PeerId) {
        self.free.push(id);
        self.woken.retain(|other| *other != id);
    }

    pub fn get(&self, id: PeerId) -> Option<&Sleeper> {
        self.each.get(id.index())?.as_deref()
    }

    pub fn get_mut(&mut self, id: PeerId) -> Option<&mut Sleeper> {
        self.each.get_mut(id.index())?.as_deref_mut()
    }

    /// One more sleeps from now on: under a number that was given back, or the next one.
    pub fn add(&mut self, sleeper: Sleeper) -> PeerId {
        let id = self.free.pop().unwrap_or_else(|| {
            self.each.push(None);
            PeerId::from_index(self.each.len() - 1)
        });
        self.each[id.index()] = Some(Box::new(sleeper));
        id
    }

    /// One woke, or never slept.
    pub fn on_woken(&mut self, id: PeerId) {
        self.woken.push_back(id);
    }

    /// The next of those.
    pub fn poll_woken(&mut self) -> Option<PeerId> {
        self.woken.pop_front()
    }
}
