//! A line that is dialled, in virtual time: calls that fail, drop, stay silent and cost, in some
//! runs beside a carrier that is there by itself.
//!
//! The ship's node has the real link manager and real books; it drives them in the order in which
//! the gateway does. The shore's node only answers. While a run lasts these are checked:
//!
//! - every byte arrives once and in order, however long the line was down, and no connection is
//!   reset but those of a host whose budget is used up;
//! - nothing of such a host moves while only the line carries;
//! - nothing is sent on the line while it is down;
//! - bytes of a class that is bound to one carrier arrive by that carrier alone;
//! - a dial has a connection that may want it, at an hour that its rule permits, and the budget can
//!   pay its first step; the month's sum stays within the stop and what a call costs that is
//!   answered late;
//! - an urgent connection whose bytes wait raises the line, unless hours or money forbid it.
//!
//! Then the modem works, budgets and quiet hours are lifted by a reload, and the line is held: all
//! connections must end in good order. At last each session in the books must cost what a meter of
//! its own says, which knows the wire and a tariff's text but not the code of the crate `dial`.

mod line;
mod meter;
mod plan;
#[cfg(test)]
mod tests;
mod world;

pub use plan::CallPlan;
pub use world::{CallReport, run_calls};
