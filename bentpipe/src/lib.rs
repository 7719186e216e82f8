//! The program `bentpipe` as a library, so that its parts can be tested and reused.
//!
//! A command is a module with a `pub struct Args` (derived from [`clap::Args`]) and a
//! `pub fn run(args: Args, global: &console::Global) -> miette::Result<ExitCode>`; it is
//! listed once in [`cli::Command`]. An error it returns is printed as one sentence
//! (or as a place in a file) and the program exits with 1.

pub mod admin;
pub mod blocked;
pub mod calendar;
pub mod check;
pub mod chunk_files;
pub mod cli;
pub mod cost;
pub mod doctor;
pub mod down;
pub mod file_keeper;
pub mod keeper;
pub mod keygen;
pub mod ledger;
pub mod line;
pub mod log;
pub mod path;
pub mod plan;
pub mod proxy_proto;
pub mod rate;
pub mod reload;
pub mod state_directory;
pub mod status;
pub mod test;
pub mod tune;
pub mod up;
pub mod usage;
pub mod watch;
pub mod web;
pub mod which_link;

// Names by which the commands and the gateway know what is below them.
pub use config::{self, host};
pub use console::{human, log, logging};
