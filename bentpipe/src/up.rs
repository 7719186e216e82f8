//! `bentpipe up`: the gateway. One thread owns everything on the way of a peer's bytes: a
//! carrier socket, the hosts' connections and a relay; only names are resolved elsewhere,
//! because resolving blocks. A hub may have several such threads, its shards.

mod carrier;
mod chunks;
mod connections;
mod disagreements;
mod driver;
mod failing;
mod gathering;
mod interception;
mod kept;
mod listeners;
mod modem;
mod names;
mod one_sided;
mod others;
mod peers;
mod proxy;
mod reload;
mod report;
mod roster;
mod self_test;
mod services;
mod shard;
mod steering;
mod store;
mod unreached;

pub use store::state_directory;

use std::path::PathBuf;
use std::process::ExitCode;

use console::Global;
use miette::IntoDiagnostic as _;

use crate::config::Config;

/// Runs the gateway.
///
/// It runs until SIGTERM or Ctrl-C, which let open connections finish for a while; a second
/// one ends it at once. SIGHUP reads the file again.
///
/// Example: bentpipe up /etc/bentpipe/ship.toml
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The configuration file; `bentpipe check FILE` tells what it means.
    pub file: PathBuf,
}

/// Runs the gateway.
///
/// # Errors
/// One sentence each: a wrong configuration, a missing right, a port in use.
pub fn run(args: Args, global: &Global) -> miette::Result<ExitCode> {
    let config = Config::load(&args.file)?;
    for warning in &config.warnings {
        console::show("bentpipe", warning);
    }
    crate::logging::init(global.level(config.node.log), global.json);
    let mut driver = driver::Driver::open(config, &args.file, global).into_diagnostic()?;
    driver.run().into_diagnostic()?;
    Ok(ExitCode::SUCCESS)
}
