//! A node of several shards: endpoints that have peers each and share no state, so that
//! each can run on a thread of its own.
//!
//! What carries a receiver index finds its shard by it ([`shard_of`](super::shard_of)).
//! An initiation carries none: the shard where initiations arrive opens it, which tells
//! whose it is, and hands it over to the peer's.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

use units::Instant;

use super::indices::{IndexTable, Place};
use super::{Endpoint, EndpointConfig};
use crate::cookie::Guard;
use crate::handshake::Initiation;
use crate::keys::{Entropy, PublicKey};

/// Initiations that may wait for being handed over.
const MAX_WAITING: usize = 64;

/// An initiation that authenticated, for the shard that has its peer.
pub struct HandedOver {
    /// The number of that shard.
    pub shard: u32,
    from: SocketAddr,
    initiation: Initiation,
}

/// Peers that other shards have.
#[derive(Default)]
pub(super) struct Elsewhere {
    peers: BTreeMap<PublicKey, u32>,
    waiting: VecDeque<HandedOver>,
}

impl Elsewhere {
    /// Keeps an initiation until the owner takes it to its shard.
    pub(super) fn hand_over(
        &mut self,
        from: SocketAddr,
        initiation: Initiation,
    ) -> Result<(), &'static str> {
        let shard = *self.peers.get(initiation.peer()).ok_or("unknown peer")?;
        if self.waiting.len() >= MAX_WAITING {
            return Err("shard busy");
        }
        self.waiting.push_back(HandedOver { shard, from, initiation });
        Ok(())
    }
}

impl Endpoint {
    /// The endpoints of a node of `shards` shards (at least 1), by number. They have the
    /// node's key and its cookies in common, and give out receiver indices that tell their
    /// number. One alone is as [`Endpoint::new`] makes it.
    pub fn divided(config: EndpointConfig, shards: u32) -> Vec<Endpoint> {
        let mut entropy = Entropy::new(config.seed);
        let of = shards.max(1);
        let guard = |entropy: Entropy, initiations_per_second| {
            Guard::new(config.private_key.public(), initiations_per_second, entropy)
        };
        let first = guard(entropy.fork(), config.initiations_per_second);
        // Few initiations come to the others: those that the kernel joined with data of theirs;
        // but so do the answers to their own.
        let few = (config.initiations_per_second / of).max(config.initiations_per_second / 4);
        let indices = IndexTable::new(entropy.fork(), Place { number: 0, of });
        let others: Vec<Endpoint> = (1..of)
            .map(|number| {
                let mut entropy = entropy.fork();
                let mut guard = guard(entropy.fork(), few);
                guard.share_cookies(&first);
                let indices = IndexTable::new(entropy.fork(), Place { number, of });
                Endpoint::with(config.clone(), entropy, guard, indices)
            })
            .collect();
        let first = Endpoint::with(config, entropy, first, indices);
        std::iter::once(first).chain(others).collect()
    }

    /// The peer with this key is another shard's, or (`None`) no longer. Its initiations
    /// come out of [`Endpoint::poll_handed_over`].
    pub fn set_elsewhere(&mut self, peer: PublicKey, shard: Option<u32>) {
        match shard {
            Some(shard) => drop(self.elsewhere.peers.insert(peer, shard)),
            None => drop(self.elsewhere.peers.remove(&peer)),
        }
    }

    /// The next initiation that is another shard's, for its
    /// [`Endpoint::take_handed_over`].
    pub fn poll_handed_over(&mut self) -> Option<HandedOver> {
        self.elsewhere.waiting.pop_front()
    }

    /// Takes an initiation that another shard has opened.
    pub fn take_handed_over(&mut self, now: Instant, it: HandedOver) {
        let done = match self.by_key.get(it.initiation.peer()) {
            Some(id) => self.answer(now, it.from, *id, it.initiation),
            // It was taken out meanwhile.
            None => Err("unknown peer"),
        };
        self.count(done);
    }
}
