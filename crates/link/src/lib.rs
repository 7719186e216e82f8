//! The satellite link protocol, without I/O.

mod buffer;
mod ranges;
pub mod wire;
