//! A peer as the endpoint keeps it: its tunnel, its session, and what was told of both.

use units::{Duration, Instant};

use crate::handshake::Params as Blob;
use crate::keys::{PresharedKey, PublicKey};
use crate::path::{PathId, Remote};
use crate::session::{LinkConfig, PathHealth, Session, SessionStats};
use crate::tunnel::{Rekey, Tunnel};

/// Names a peer of an [`Endpoint`](super::Endpoint).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PeerId(u32);

impl PeerId {
    /// The peer in this slot.
    pub const fn from_index(index: usize) -> PeerId {
        PeerId(index as u32)
    }
    /// Small, dense numbers for tables.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// One peer.
pub struct PeerConfig {
    /// Its public key.
    pub public_key: PublicKey,
    /// The secret shared beforehand, or none.
    pub preshared_key: PresharedKey,
    /// Where it is, if known.
    pub endpoint: Option<Remote>,
    /// The link to it.
    pub link: LinkConfig,
    /// Send something at least this often; `None`: only what must be sent.
    pub keepalive: Option<Duration>,
}

/// Counts of one peer's packets.
#[derive(Clone, Copy, Debug, Default)]
pub struct PeerStats {
    /// Packets and bytes (IP length) sent to it.
    pub packets_out: u64,
    /// See `packets_out`.
    pub bytes_out: u64,
    /// Authentic packets from it.
    pub packets_in: u64,
    /// Bytes of these, and of the messages of handshakes.
    pub bytes_in: u64,
    /// Handshakes that succeeded.
    pub handshakes: u64,
    /// Handshakes that failed: initiations that got no good answer in time, and answers
    /// that the peer did not take.
    pub handshakes_failed: u64,
    /// When the last authentic packet came.
    pub heard: Option<Instant>,
    /// Packets dropped because the peer took more than its part of the processor.
    pub over_its_part: u64,
}

/// A peer that something was to do with.
pub(super) struct Peer {
    pub(super) config: PeerConfig,
    pub(super) tunnel: Tunnel,
    pub(super) session: Session,
    pub(super) side: u64,
    /// Sessions before this one.
    pub(super) sessions: u64,
    /// What they counted.
    pub(super) before: SessionStats,
    /// A handshake has filled this session with the peer's parameters.
    pub(super) begun: bool,
    /// What was told of it, and of its keys.
    pub(super) health: PathHealth,
    pub(super) rekey: Rekey,
    pub(super) path: PathId,
    /// Changes of it that were told lately, and until when they are counted.
    pub(super) path_news: (u8, Instant),
    pub(super) dirty: bool,
    /// When all was seen to that is no packet of the session's, if nothing happened since.
    pub(super) tended: Option<Instant>,
    pub(super) noisy: bool,
    pub(super) has_datagrams: bool,
    /// It is among those that [`Endpoint::take_changed`](super::Endpoint::take_changed) tells.
    pub(super) changed: bool,
    pub(super) timer: Option<Instant>,
    /// What it takes of the memory that is shared, as far as it was counted.
    pub(super) memory: u64,
    pub(super) stats: PeerStats,
}

/// The parameters of our side, as handshakes carry them.
pub(super) fn blob(session: &Session) -> Blob {
    Blob::new(&session.params().encode()).expect("encoded parameters are at most MAX_PARAMS")
}
