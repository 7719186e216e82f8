//! The satellite link protocol, without I/O.

mod buffer;
pub mod cookie;
mod datagram;
pub mod endpoint;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
pub mod handshake;
pub mod keys;
mod loss_by_size;
mod numbers;
mod pacer;
pub mod path;
mod path_mtu;
mod ranges;
mod rate;
mod received;
mod repair;
pub mod replay;
mod rtt;
pub mod seal;
mod sent;
pub mod session;
mod stream;
pub mod tunnel;
pub mod wire;

pub use endpoint::{PeerConfig, PeerId};
pub use path::{CarrierId, PathId, Remote};
