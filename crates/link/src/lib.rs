//! The satellite link protocol (`spec/link.md`), without I/O: what two nodes send each other,
//! and when.
//!
//! # The algorithm
//!
//! Two nodes know each other's public keys. A handshake of one message each way (Noise IK)
//! gives keys; a *session* of streams and datagrams outlives them, and addresses and outages as
//! well.
//!
//! Everything crosses in sealed packets with numbers that are never used twice. A packet holds
//! frames: pieces of streams, datagrams, credit, reports. Its receiver reports the ranges of
//! numbers that arrived. What a report leaves out for long enough is lost: the bytes of its
//! frames go again, in new packets, so that a retransmission is never taken for its original.
//!
//! There is no window that grows. Packets leave at the times of a clock (the pacer) that runs
//! at the link's rate from the first one on. That rate is configured, reported by a modem, or
//! measured from queueing delay and delivery rate; a loss alone does not lower it. What may be
//! outstanding is bounded by the receiver's memory, which it tells as credit; the sender
//! divides it among its streams. Where losses make it pay, packets that are sums of others (a
//! sliding code) bring lost ones back without a round trip.
//!
//! A session has one or more *paths* to the peer, each with numbers, reports, rate and repair
//! of its own. Streams belong to no path: what was under way on one that fails goes again on
//! another.
//!
//! # Main types
//!
//! * [`endpoint::Endpoint`]: all peers of a node, found by the receiver index of a packet, or
//!   by key in a handshake. It joins the two parts that know nothing of each other:
//! * [`tunnel::Tunnel`]: one peer's handshakes, keys, replay windows and addresses. It knows no
//!   frames.
//! * [`session::Session`]: one peer's streams, datagrams and paths. It knows no keys and no
//!   addresses.
//!
//! # The contract with the caller
//!
//! * The caller brings facts with the time: packets ([`endpoint::Endpoint::handle_packet`]),
//!   timers ([`endpoint::Endpoint::handle_timeout`]), and what users want of a session
//!   ([`endpoint::Endpoint::session_mut`]). Time never runs backwards.
//! * After every change it drains [`endpoint::Endpoint::poll_transmit`] and
//!   [`endpoint::Endpoint::poll_event`] until both give nothing, takes the datagrams of the
//!   peers that [`endpoint::Endpoint::peer_with_datagrams`] names, and comes back at
//!   [`endpoint::Endpoint::poll_timeout`].
//! * Packets are written into the caller's buffer and are to leave at once: their time has
//!   come.
//! * Randomness comes from the seed in [`endpoint::EndpointConfig`] and from its `fresh`
//!   entropy, where there is one; with the same seed and the same calls everything happens
//!   again.
//! * Nothing that a peer sends panics. Whatever is queued has a bound, named where it is kept.
//!
//! # Where to read on
//!
//! `wire` for frames; `session/send.rs` and `session/receive.rs` for a packet's making and
//! taking apart; `sent` and `received` for reports and losses; `rate` and `pacer` for the
//! clock; `repair` for the code; `session/paths.rs` for several ways to a peer; `tunnel` for
//! keys. `ARCHITECTURE.md` has a table of all modules ("Inside `link`").

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
mod traffic;
pub mod tunnel;
pub mod wire;

pub use datagram::MAX_DATAGRAM_WAIT;
pub use endpoint::{PeerConfig, PeerId};
pub use path::{CarrierId, CarrierName, CarrierNames, PathId, Remote};
