//! One line: its commands or its modem, the path over it, and what is known of its carrier.

use dial::manager::CarrierId;
use link::PathId;
use units::Instant;

use crate::up::commands::Commands;

/// A line.
pub struct OneLine {
    /// What the manager calls it: its place among the peer's lines.
    pub id: CarrierId,
    pub commands: Commands,
    /// Its modem's carrier.
    pub modem: Option<link::CarrierId>,
    /// The path over it; `None`: the peer opens it.
    pub path: Option<PathId>,
    /// When the carrier was there.
    pub(super) connected_at: Instant,
    /// Since when nothing is heard by it, where there are other ways to the peer.
    pub unheard_since: Option<Instant>,
    /// Since when nothing has come by a carrier that is given up for it.
    pub(super) silent_since: Option<Instant>,
    /// The interface that commands raise it on had a link when it was looked at last.
    pub(super) has_link: bool,
    /// The state that watchers have heard of.
    pub(super) told_state: &'static str,
    /// What had come from the peer when the carrier was there.
    pub(super) heard_before: Heard,
}

/// What came from the peer by a line: packets, and handshakes that succeeded.
#[derive(Clone, Copy, Default)]
pub struct Heard {
    pub(super) packets: u64,
    pub(super) handshakes: u64,
}

impl Heard {
    /// A response that authenticates shows that the peer is there, a round trip before its first
    /// packet does.
    pub fn is_more_than(self, before: Heard) -> bool {
        self.packets > before.packets || self.handshakes > before.handshakes
    }
}

impl OneLine {
    /// A line that is down.
    pub fn new(
        now: Instant,
        id: CarrierId,
        commands: Commands,
        modem: Option<link::CarrierId>,
        path: Option<PathId>,
    ) -> OneLine {
        OneLine {
            id,
            commands,
            modem,
            path,
            connected_at: now,
            unheard_since: None,
            silent_since: None,
            has_link: true,
            told_state: "down",
            heard_before: Heard::default(),
        }
    }
}
