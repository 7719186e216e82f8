//! All peers of one node: who a packet concerns, who may speak, and
//! whose turn it is to send.
//!
//! Only peers that something happened to are looked at: a packet, a call of the user,
//! or a timer puts a peer on the list of those that [`Endpoint::poll_transmit`] asks.
//! The law for the owner: after every change, poll transmit, events and datagrams
//! until nothing is left, then wait for [`Endpoint::poll_timeout`].
//!
//! `state` is the endpoint, of its parts: `peer`, `indices`, `sleepers`, `elsewhere`, `strangers`,
//! `calls`, `memory`, `shares` and `floods`, which know nothing of it. `event` is what its owner is
//! told. What it does is in `receive`, `transmit`, `waking`, `paths` and `shards`.

mod calls;
mod elsewhere;
mod event;
mod floods;
mod indices;
mod memory;
mod paths;
mod peer;
mod receive;
mod shards;
mod shares;
mod sleepers;
mod state;
mod strangers;
#[cfg(test)]
mod tests;
mod transmit;
mod waking;

pub use self::elsewhere::HandedOver;
pub use self::event::{EndpointEvent, LinkEvent};
pub use self::floods::Thinning;
pub use self::indices::shard_of;
pub use self::peer::{PeerConfig, PeerId, PeerStats};
pub use self::state::{Endpoint, EndpointConfig, Transmit};
pub use self::strangers::{Strange, Stranger, StrangerNews};
pub use crate::session::PathStatus;
pub use crate::tunnel::{Failing, Failure, MAX_KEY_LIFETIME, Rekey};
