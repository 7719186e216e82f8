//! The intelligent router's mind: when a link that costs money is up, on which carrier, and what it
//! cost. It does no I/O, like all core crates: it takes facts and `now`, and gives work.
//!
//! A ship's line costs dollars a minute and takes half a minute to set up. Left to packets it would
//! be up all day for chatter that nobody waits for. So every flow has a rule ([`rules`]): it raises
//! the line at once, or gathers until an amount, an age or an hour, or never raises it. The
//! [`manager`] of a peer's link turns rules, orders, budgets and what the modems say into calls:
//!
//! ```text
//!        what waits, what crosses                         what it costs
//! gateway ───────────────────────> manager::Manager ───────────────────> books::Books ──> ledger
//!        <───────────────────────     │       ^                             ^
//!          dial, hang up, which       │       │ connected, failed, ended    │ prices
//!          carrier, why               v       │                             │
//!                               hayes::Modem ─┘                      tariff::Tariff
//!                                     │
//!                         bytes of a serial line <── frame: link packets without a "+"
//! ```
//!
//! * [`manager`]: the states of each carrier (down, dialling, rising, up, lingering) with cause and
//!   time; back-off, failover, carriers that flap; hanging up just before the next step of time
//!   is billed; `why`.
//! * [`rules`]: what raises the line; the list of known background noise.
//! * [`tariff`]: prices by minute with steps and minimum, by megabyte with blocks, flat with fair
//!   use, by time of the day and by zone.
//! * [`books`]: who paid what for which session; a ledger of lines that survives power cuts.
//! * [`hayes`]: one modem on one serial line, from silence to a call and back.
//! * [`frame`]: link packets on a line of bytes.
//! * [`money`], [`calendar`]: integers for both.
//!
//! **The caller's part** (contract): call [`manager::Manager::poll`] until there is no work after
//! each fact and at each time that `poll_timeout` names; append what
//! [`books::Books::poll_record`] gives to the ledger's file and flush it before waiting; tell the
//! manager of every call that is over, late ones too, because until then it costs. What
//! crosses is told in sums, a few times a second. One manager a peer; one set of books a node.
//!
//! Everything that decides is an integer, and everything that is remembered has a limit. A month of
//! a ship's calls is run in `tests/month.rs` against an exchange with a meter of its own: the books
//! agree with it to the cent, also where the node was killed in mid-call.

pub mod books;
pub mod calendar;
pub mod framing;
pub mod hayes;
pub mod manager;
pub mod money;
pub mod rules;
pub mod tariff;
