//! Fewer bytes (R-COMPRESS, R-HC): on a link that is paid by the byte or the minute the
//! best byte is the one that is not sent.
//!
//! Three modules: `stream` turns a stream's bytes into fewer and back; `dedup` leaves out what
//! crossed the link before; `headers` makes fewer bytes of packets that are not split. None
//! does I/O or reads a clock.

pub mod dedup;
mod frame;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
pub mod headers;
pub mod stream;
