//! What the owner of an endpoint is told.

use units::{Duration, Instant};

use super::peer::PeerId;
use crate::path::{PathId, Remote};
use crate::seal::Cipher;
use crate::session::{Event, Why};
use crate::tunnel::{Failing, Rekey};
use crate::wire::ResetReason;

/// What happened to a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkEvent {
    /// A handshake succeeded.
    Up {
        /// The session went on under new keys.
        resumed: bool,
        /// The cipher.
        cipher: Cipher,
        /// How long the peer took to answer.
        rtt: Duration,
    },
    /// On a path the peer is at a new address.
    Moved(PathId, Remote),
    /// Everything goes by this path now, for this reason.
    Using(PathId, Why),
    /// The peer does not answer: nothing was received since then.
    NothingReceived(Instant),
    /// The peer is heard and hears nothing of what was sent since then.
    TransmitDead(Instant),
    /// The peer is heard and reports nothing of what was sent since then.
    NoAcks(Instant),
    /// It answers, and hears, again.
    Back,
    /// The peer ended the session.
    Closed,
    /// The keys are not replaced in time: [`Rekey::Overdue`] or [`Rekey::Erased`].
    Rekey(Rekey),
    /// Handshakes have failed for a while, or more is known of why.
    Failing(Failing),
    /// Packets of the peer are dropped because they take more than its part of the processor
    /// while others wait. Told once a minute at most.
    OverItsPart,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndpointEvent {
    /// To a stream.
    Stream(PeerId, Event),
    /// The session is gone: all its streams are orphans, to be reset.
    SessionLost(PeerId, ResetReason),
    /// To a link.
    Link(PeerId, LinkEvent),
}
