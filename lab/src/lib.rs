//! The laboratory: what measures bentpipe and is no part of it.
//!
//! * [`emulate`]: a satellite link between two interfaces, in real time.
//! * [`modem`]: modems on an emulated telephone network, each behind a pty.
//! * [`testbed`]: real hosts and gateways around it, in namespaces, and what they measure. The
//!   gateways are processes of the program `bentpipe`, as users have it.
//! * [`experiments`], [`demo`], [`bench`]: what is measured and compared with what.
//! * [`load`]: one hub with thousands of terminals, played by this process.
//! * [`sim`]: whole nodes in virtual time, without a network; [`day`]: a ship's line and its price.
//! * [`plot`], [`pcapng`]: how results are drawn and captures written.
//!
//! A command is a module with `Args` and `run`, listed in [`cli::Command`].

pub mod bench;
pub mod called;
pub mod cli;
pub mod day;
pub mod demo;
pub mod emulate;
pub mod experiments;
pub mod load;
pub mod mini_m;
pub mod modem;
pub mod pcapng;
pub mod plot;
pub mod ppp;
pub mod sim;
pub mod testbed;
