//! Peers that other shards have, and what came to the first shard for these.

use std::collections::{BTreeMap, VecDeque};

use units::Instant;

use crate::handshake::Initiation;
use crate::keys::PublicKey;
use crate::path::Remote;

/// Initiations that may wait for being handed over, and other packets.
const MAX_WAITING: usize = 64;

/// What came to the first shard, for the shard that it concerns.
pub struct HandedOver {
    /// The number of that shard.
    pub shard: u32,
    pub(super) from: Remote,
    pub(super) what: What,
}

pub(super) enum What {
    /// One that authenticated.
    Initiation(Box<Initiation>),
    /// A packet that carries an index, not opened.
    Packet { arrived: Instant, bytes: Vec<u8> },
}

impl HandedOver {
    /// An initiation that authenticated, as not everybody can make one; else a packet with
    /// nothing but a receiver index.
    pub fn is_initiation(&self) -> bool {
        matches!(self.what, What::Initiation(_))
    }
}

/// Peers that other shards have, and what waits for these. Packets have a place of their own,
/// as anybody can make them.
#[derive(Default)]
pub(super) struct Elsewhere {
    pub peers: BTreeMap<PublicKey, u32>,
    pub initiations: VecDeque<HandedOver>,
    pub packets: VecDeque<HandedOver>,
}

impl Elsewhere {
    /// Does another shard have this peer?
    pub(super) fn has(&self, peer: &PublicKey) -> bool {
        self.peers.contains_key(peer)
    }

    /// Keeps an initiation until the owner takes it to its shard.
    pub(super) fn hand_over(
        &mut self,
        from: Remote,
        initiation: Initiation,
    ) -> Result<(), &'static str> {
        let shard = *self.peers.get(initiation.peer()).ok_or("unknown peer")?;
        let what = || What::Initiation(Box::new(initiation));
        keep(&mut self.initiations, shard, from, what)
    }

    /// Keeps a packet with another shard's index.
    pub(super) fn hand_packet_over(
        &mut self,
        shard: u32,
        from: Remote,
        arrived: Instant,
        packet: &[u8],
    ) -> Result<(), &'static str> {
        let what = || What::Packet { arrived, bytes: packet.to_vec() };
        keep(&mut self.packets, shard, from, what)
    }
}

fn keep(
    waiting: &mut VecDeque<HandedOver>,
    shard: u32,
    from: Remote,
    what: impl FnOnce() -> What,
) -> Result<(), &'static str> {
    if waiting.len() >= MAX_WAITING {
        return Err("shard busy");
    }
    waiting.push_back(HandedOver { shard, from, what: what() });
    Ok(())
}
