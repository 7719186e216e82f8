//! Hosts that may not use a peer's link for now, by peer: [`StoppedHosts`]. What becomes of their
//! traffic is in `stopping.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use link::PeerId;
use link::session::ClassId;

/// Hosts that may not use a peer's link for now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoppedHosts {
    /// Which, canonical.
    pub hosts: BTreeSet<IpAddr>,
    /// The classes that it is about, a bit for each.
    pub classes: u32,
}

impl StoppedHosts {
    pub(crate) fn is_empty(&self) -> bool {
        self.hosts.is_empty() || self.classes == 0
    }

    pub(crate) fn has_class(&self, class: ClassId) -> bool {
        self.classes >> class.index() & 1 == 1
    }
}

/// Those of all peers.
#[derive(Debug, Default)]
pub(crate) struct Stopped {
    of: BTreeMap<PeerId, StoppedHosts>,
}

impl Stopped {
    /// Is traffic of the host stopped, in a class that is asked for only where that matters?
    pub fn stops(&self, peer: PeerId, host: IpAddr, class: impl FnOnce() -> ClassId) -> bool {
        self.of
            .get(&peer)
            .is_some_and(|s| s.hosts.contains(&host.to_canonical()) && s.has_class(class()))
    }

    /// Others of the peer.
    pub fn set(&mut self, peer: PeerId, stopped: StoppedHosts) {
        self.of.insert(peer, stopped);
    }

    pub fn forget_peer(&mut self, peer: PeerId) {
        self.of.remove(&peer);
    }
}
