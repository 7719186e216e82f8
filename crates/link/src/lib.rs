//! The satellite link protocol, without I/O.

mod buffer;
pub mod keys;
mod ranges;
pub mod replay;
pub mod seal;
pub mod wire;
