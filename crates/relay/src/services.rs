//! Services: programs at both nodes that take hosts' connections over, exchange bytes by streams
//! of their own, and have this node connect to servers for them (spec, L-SV-1 to L-SV-5).
//!
//! A rule with `via` gives connections to a service while it runs here and the peer has it, as
//! far as is known; else they are split as plain streams. The driver tells which run, and holds
//! their sockets.

use std::collections::BTreeMap;

use link::PeerId;
use link::session::ClassId;
use link::wire::{ResetReason, Target};
use units::{Duration, Instant};

use crate::connects::ConnectId;

mod serving;

/// How long a service is not asked for at a peer that has said that it does not run: it may only
/// be starting again.
const AGAIN: Duration = Duration::from_secs(10);

/// A host's connection that is a service's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Via {
    /// The service.
    pub service: String,
    /// The peer behind which the server is.
    pub peer: PeerId,
    /// The class that the rules give it.
    pub class: ClassId,
    /// The code point of its SYN.
    pub dscp: u8,
}

/// Those that run here, and what they want.
#[derive(Debug, Default)]
pub(crate) struct Services {
    /// By name, whether it has answers without the link.
    running: BTreeMap<String, bool>,
    /// Peers that said that they have not got it, and until when they are believed.
    absent: BTreeMap<(PeerId, String), Instant>,
    connects: BTreeMap<ConnectId, PeerId>,
    last: u64,
}

impl Services {
    pub fn is_running(&self, name: &str) -> bool {
        self.running.contains_key(name)
    }

    fn works_offline(&self, name: &str) -> bool {
        self.running.get(name).copied().unwrap_or(false)
    }

    /// For whom a service's connection is.
    pub fn peer_of(&self, connect: ConnectId) -> Option<PeerId> {
        self.connects.get(&connect).copied()
    }

    /// A connection came to its end, one way or the other.
    pub fn forget(&mut self, connect: ConnectId) {
        self.connects.remove(&connect);
    }

    /// A stream to the peer's service was reset.
    pub fn on_reset(&mut self, now: Instant, peer: PeerId, target: &Target, reason: ResetReason) {
        if let (Target::Service(name, _), ResetReason::NoSuchService) = (target, reason) {
            self.absent.retain(|_, until| *until > now);
            self.absent.insert((peer, name.clone()), now + AGAIN);
        }
    }

    pub fn forget_peer(&mut self, peer: PeerId) {
        self.absent.retain(|(of, _), _| *of != peer);
        self.connects.retain(|_, of| *of != peer);
    }
}

#[cfg(test)]
mod tests;
