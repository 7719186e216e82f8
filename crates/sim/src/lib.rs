//! The virtual world: two real relays, with real keys and the real protocol, over two
//! simulated channels, in virtual time.
//!
//! A **seed** means a run ([`Plan::of_seed`]): a link, at least three kinds of fault
//! within a minute, and hosts behind both nodes that open connections, send, stop
//! reading, half-close and reset. In the first part anything may go wrong and only
//! safety is asked for:
//!
//! - every byte arrives once, unchanged and in order, or the connection is reset; an
//!   orderly end stands only behind the last byte of a host that ended in good order;
//! - a reset has a cause: a host, a server that refuses, a node that died;
//! - a node never holds more memory than its configuration says, never sends above
//!   the link's rate or its packet size, and never finds that its peer broke the
//!   protocol;
//! - datagrams arrive unchanged, plain and ordered ones at most once, ordered ones in
//!   order; time never stands still.
//!
//! Then all faults end and everything must **converge** in bounded time: every
//! connection over, no flow, stream, buffer or packet left, and new connections both
//! ways work. Then silence must be silent: without a keepalive not one packet more.
//!
//! Everything is decided by the seed, and a run has a hash: two runs of a seed that
//! differ have found a hidden input.

pub mod buffers;
pub mod calls;
mod check;
mod datagrams;
pub mod exchange;
pub mod grid;
#[cfg(test)]
mod handshakes;
mod host;
pub mod net;
mod node;
mod pattern;
pub mod plan;
mod run;
mod syns;
mod traffic;
mod world;

pub use check::Failure;
pub use plan::Plan;
pub use run::{LinkNews, LinkState, Report, run, run_with};

use units::Instant;

/// Told everything that happens, as it happens.
pub type Trace<'a> = Box<dyn FnMut(Instant, String) + 'a>;
