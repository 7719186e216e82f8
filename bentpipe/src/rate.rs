//! `bentpipe rate`: what a modem carries now.

use std::path::PathBuf;
use std::process::ExitCode;

use units::{BitRate, Duration};

use crate::admin::{self, Request};
use crate::cli::Global;

/// Tells the running gateway what a modem carries now (links with rate = "reported").
///
/// More than the configured rate counts as the configured rate.
///
/// Example: bentpipe rate ship 8Mbit
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The gateway's admin socket.
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// The peer's name.
    peer: String,
    /// A rate such as 8Mbit or 512kbit.
    rate: BitRate,
}

/// A gateway answers between two rounds of its loop.
const PATIENCE: Duration = Duration::from_secs(10);

/// Tells the gateway.
///
/// # Errors
/// One sentence: nothing runs there, there is no such peer, or its rate is not reported.
pub fn run(args: Args, _: &Global) -> miette::Result<ExitCode> {
    let socket = args.socket.unwrap_or_else(admin::default_socket);
    let request = Request::Rate { peer: args.peer, bps: args.rate.as_bps() };
    admin::request(&socket, &request, PATIENCE).map(|_| ExitCode::SUCCESS)
}
