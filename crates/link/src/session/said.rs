//! What the two nodes say of a path, each in its own words, the newest of which count.

use crate::path::CarrierName;
use crate::stream::Delivery;
use crate::wire::PathNews;

/// What one node says of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Says {
    pub up: bool,
    pub hears: bool,
    pub free: bool,
    pub priority: u8,
    pub name: CarrierName,
}

impl Default for Says {
    /// What holds until something else is said.
    fn default() -> Says {
        let name = CarrierName::default();
        Says { up: true, hears: true, free: false, priority: 0, name }
    }
}

/// What was said last, and whether the peer knows.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Said {
    pub says: Says,
    pub version: u64,
    pub delivery: Delivery,
}

impl Said {
    /// This node says so from now on, and the peer is to be told.
    pub fn say(&mut self, says: Says) {
        let version = self.version + 1;
        *self = Said { says, version, delivery: Delivery::Wanted };
    }

    /// The peer said so. An older word that comes late changes nothing.
    pub fn hear(&mut self, news: &PathNews) -> bool {
        let PathNews { version, up, hears, free, priority, name, .. } = *news;
        if version <= self.version {
            return false;
        }
        let says = Says { up, hears, free, priority, name };
        *self = Said { says, version, ..Said::default() };
        true
    }
}
