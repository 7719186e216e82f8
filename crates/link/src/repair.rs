//! Repair without a round trip (R-COPIES): a sliding-window random linear code over
//! packets, in the spirit of RFC 8681.
//!
//! A source symbol is a packet's plaintext, named by its packet number. A REPAIR
//! packet carries a combination of those that left just before it; whoever has all of
//! them but one finds the missing one. With a window of one packet the combination is
//! a copy. What the code does not bring back is sent again (`sent.rs`).
//!
//! ```text
//! symbol   kind and length (2 bytes) ‖ plaintext ‖ zeros
//! REPAIR   window (1 byte) ‖ left out ‖ combination of the symbols
//! ```
//!
//! `field` is the arithmetic, `symbols` keeps plaintexts by number, `encoder` and
//! `decoder` are the two ends, `code_rate` says how much repair a bulk flow gets and `tail_fec`
//! how much the end of one; `exact` is their arithmetic.

mod code_rate;
mod decoder;
mod encoder;
mod exact;
mod field;
mod header;
mod symbols;
mod tail_fec;

pub use code_rate::bulk_repair_interval;
pub(crate) use code_rate::{BulkCode, LossEstimate};
pub(crate) use decoder::FecDecoder;
pub(crate) use encoder::{FecEncoder, Purpose};
pub(crate) use header::{HINT, MAX_WINDOW, told_window};
pub(crate) use tail_fec::{BurstEstimate, LossModel, tail_repairs};

#[cfg(test)]
mod tests;
