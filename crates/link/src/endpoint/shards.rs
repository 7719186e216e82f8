//! A node of several shards: endpoints that have peers each and share no state, so that
//! each can run on a thread of its own.
//!
//! What carries a receiver index finds its shard by it ([`shard_of`](super::shard_of)).
//! An initiation carries none: the first shard, where initiations arrive, opens it, which
//! tells whose it is, and hands it over to the peer's. So it does with what comes to it behind
//! an initiation and is another's by its index.

use units::Instant;

use super::elsewhere::{HandedOver, What};
use super::indices::{IndexTable, Place};
use super::state::{Endpoint, EndpointConfig};
use crate::cookie::Guard;
use crate::keys::{Entropy, PublicKey};

impl Endpoint {
    /// The endpoints of a node of `shards` shards (at least 1), by number. They have the
    /// node's key and its cookies in common, and give out receiver indices that tell their
    /// number. One alone is as [`Endpoint::new`] makes it.
    pub fn divided(config: EndpointConfig, shards: u32) -> Vec<Endpoint> {
        let mut entropy = Entropy::new(config.seed).fed_by(config.fresh);
        let of = shards.max(1);
        let mut of_first = entropy.fork();
        let root = of_first.bytes32();
        let guard = |entropy: Entropy, initiations_per_second| {
            Guard::new(config.private_key.public(), initiations_per_second, root, entropy)
        };
        let first = guard(of_first, config.initiations_per_second);
        // Few initiations come to the others: those that the kernel joined with data of theirs;
        // but so do the answers to their own.
        let few = (config.initiations_per_second / of).max(config.initiations_per_second / 4);
        let indices = IndexTable::new(entropy.fork(), Place { number: 0, of });
        let others: Vec<Endpoint> = (1..of)
            .map(|number| {
                let mut entropy = entropy.fork();
                let guard = guard(entropy.fork(), few);
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
            Some(shard) => {
                self.strangers.forget(&peer);
                self.elsewhere.peers.insert(peer, shard);
            }
            None => drop(self.elsewhere.peers.remove(&peer)),
        }
    }

    /// At the first shard, the next that is another's, for its
    /// [`Endpoint::take_handed_over`].
    pub fn poll_handed_over(&mut self) -> Option<HandedOver> {
        let elsewhere = &mut self.elsewhere;
        elsewhere.initiations.pop_front().or_else(|| elsewhere.packets.pop_front())
    }

    /// Takes what came to the first shard.
    pub fn take_handed_over(&mut self, now: Instant, it: HandedOver) {
        let initiation = match it.what {
            What::Initiation(initiation) => *initiation,
            What::Packet { arrived, mut bytes } => {
                return self.handle_packet(now, arrived, it.from, &mut bytes);
            }
        };
        let done = match self.by_key.get(initiation.peer()) {
            Some(id) => self.answer(now, it.from, *id, initiation),
            // It was taken out meanwhile.
            None => Err("unknown peer"),
        };
        self.count(done);
    }
}
