//! `bentpipe up`: the gateway. One thread owns everything on the way of a peer's bytes: a
//! carrier socket, the hosts' connections and a relay; only names are resolved elsewhere,
//! because resolving blocks. A hub may have several such threads, its shards.

mod carrier;
mod chunks;
mod commands;
mod connections;
mod disagreements;
mod driver;
mod error;
mod gathering;
mod in_clear;
mod interception;
mod kept;
mod listeners;
mod losses;
mod mending;
mod meter;
mod modem_rate;
mod names;
mod one_sided;
mod others;
mod partings;
mod peer_source;
mod peer_table;
mod peers;
mod proxy;
mod reload;
mod rules;
mod self_test;
mod serial_line;
mod services;
mod shard;
mod shell;
mod steering;
mod store;
mod thinning;
mod turns;
mod twins;
mod unreached;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use console::Global;
use miette::{IntoDiagnostic as _, miette};
use units::Duration;

use crate::admin;
use peer_source::{PeerFile, PeerSource as _};

/// For the one that runs already to say so.
const PATIENCE: Duration = Duration::from_secs(2);

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
    let source = PeerFile::new(&args.file);
    let config = source.read()?;
    for warning in &config.warnings {
        console::show("bentpipe", warning);
    }
    crate::logging::init(global.level(config.node.log), global.json);
    let socket = config.node.admin_socket();
    let opened = driver::Driver::open(config, &args.file, Box::new(source), global);
    let mut driver = opened.map_err(|e| beside_another(e, &socket))?;
    driver.run().into_diagnostic()?;
    Ok(ExitCode::SUCCESS)
}

/// A port, a device or a socket that is in use is mostly another gateway's with the same file.
fn beside_another(e: error::UpError, socket: &Path) -> miette::Report {
    let asked = control::client::ask(socket, &admin::Request::Status, PATIENCE);
    let Ok(admin::Answer::Status(other)) = asked else { return miette!("{e}") };
    let (node, socket) = (other.node, socket.display());
    match node.ending {
        true => miette!(
            help = "start it again when that one has ended, in ten seconds at most",
            "a bentpipe that is stopping, process {}, still answers on {socket}: {e}",
            node.pid
        ),
        false => miette!(
            help = "`bentpipe reload FILE` has it read its file again; stop it first to start anew",
            "a bentpipe runs already, process {}, with {}, and answers on {socket}: {e}",
            node.pid,
            node.file
        ),
    }
}
