//! A telephone exchange with modems on its lines, for the laboratory: as arithmetic, in virtual or
//! in real time.
//!
//! An [`Exchange`] has lines, each with a Hayes modem and a number. What a program writes to a
//! modem goes in by [`Exchange::write`], what the modem says comes out by [`Exchange::read`];
//! in between lies a call:
//!
//! ```text
//! ATDT 200 ── set-up: LES, network ──> ring ── ATA ──> training ──> CONNECT ══ data ══> NO CARRIER
//! ```
//!
//! * **Numbers** lead to lines; several lines with one number are a hunt group, of which the first
//!   free one rings.
//! * **Data** crosses at the line's rate, ten bits a byte (8N1), and arrives a delay later. Before
//!   it lies the modem's buffer, and before that the program: [`Exchange::room`] says how much
//!   the modem takes.
//! * **Faults** are drawn from a seed: busy, no dial tone, no carrier, calls that drop, bytes that
//!   noise changes, swallows and invents.
//! * **The meter** has each call from CONNECT to its end, as a bill would ([`Exchange::calls`]).
//!
//! The exchange reads no clock: every call takes `now`, and [`Exchange::next_time`] says when the
//! next thing happens by itself. The driver in real time is `bentpipe emulate-modem`.

mod config;
mod exchange;
mod modem;
mod noise;
#[cfg(test)]
mod tests;

pub use config::{ExchangeConfig, Faults, LineConfig};
pub use exchange::{CallEnd, CallRecord, Exchange};
