//! `bentpipe rate`: what a modem carries now.

use std::path::PathBuf;
use std::process::ExitCode;

use config::rate_of;
use console::Global;
use units::{BitRate, Duration};

use crate::admin::{self, Request};

/// Tells the running gateway what a modem carries now (links with rate = "reported").
///
/// More than the configured rate counts as the configured rate.
///
/// Examples: bentpipe rate ship 8Mbit; bentpipe rate ship 8000000
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The gateway's admin socket.
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// The peer's name.
    peer: String,
    /// A rate such as 8Mbit or 512kbit; a number without a unit is bits per second.
    #[arg(value_parser = read_rate)]
    rate: BitRate,
}

/// A gateway answers between two rounds of its loop.
const PATIENCE: Duration = Duration::from_secs(10);

fn read_rate(text: &str) -> Result<BitRate, String> {
    rate_of(text).ok_or_else(|| "it is a rate such as 8Mbit, or a number of bit/s".to_owned())
}

/// Tells the gateway.
///
/// # Errors
/// One sentence: nothing runs there, there is no such peer, or its rate is not reported.
pub fn run(args: Args, _: &Global) -> miette::Result<ExitCode> {
    let socket = args.socket.unwrap_or_else(admin::default_socket);
    let request = Request::Rate { peer: args.peer, bps: args.rate.as_bps() };
    admin::request(&socket, &request, PATIENCE).map(|_| ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_with_and_without_their_unit() {
        assert_eq!(rate_of("8000000"), Some(BitRate::from_mbps(8)));
        assert_eq!(rate_of("8Mbit"), Some(BitRate::from_mbps(8)));
        for wrong in ["", "0", "0bit", "-1", "fast", "8 Mbyte"] {
            assert_eq!(rate_of(wrong), None, "{wrong}");
            assert!(read_rate(wrong).is_err_and(|e| e.contains("8Mbit")));
        }
    }
}
