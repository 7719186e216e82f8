//! Fewer bytes (R-COMPRESS, R-HC): on a link that is paid by the byte or the minute the
//! best byte is the one that is not sent.
//!
//! Two rooms: `stream` turns a stream's bytes into fewer and back; `headers` does the same
//! for the headers of packets that are not split. Both do no I/O and read no clock.

#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
pub mod headers;
pub mod stream;
