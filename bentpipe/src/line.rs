//! `bentpipe link`: links that are raised and dropped.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::ValueEnum;
use console::Global;
use dial::rules::KNOWN_NOISE;
use miette::miette;
use serde_json::json;
use units::Duration;

use crate::admin::{self, Answer, LineCommand, Request};

/// Says why a link is up or down, and raises or drops it.
///
/// A peer whose table in the file has [peer.line] has a link that is raised when somebody waits
/// for it, and dropped when nobody uses it. `why` tells which flow, host and rule raised it or
/// holds it; `up` raises it once; `hold` keeps it up and `down` keeps it down until `auto`. `down`
/// holds over restarts of the gateway, `hold` does not.
///
/// Of a peer with several lines one alone is meant where its carrier is named: the others are left
/// to the rules, or to what was said of all of them. What is said of all holds for each.
///
/// `zone` says which of the tariff's zones the ship is in, until the gateway ends.
///
/// `noise` prints the list of background traffic that never raises a link, for `noise = "FILE"`.
///
/// Examples: bentpipe link why shore; bentpipe link hold shore; bentpipe link down shore iridium;
/// bentpipe link zone shore "at sea"; bentpipe link noise > noise.txt
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The gateway's admin socket.
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// What becomes of the link.
    what: What,
    /// The peer's name; not for `noise`.
    #[arg(default_value = "", hide_default_value = true)]
    peer: String,
    /// One of several lines, by its carrier's name; for `zone`, the zone.
    #[arg(required_if_eq("what", "zone"))]
    line: Option<String>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum What {
    /// Raise it now; when nobody uses it, it is dropped as ever.
    Up,
    /// Drop it, and raise it for nothing.
    Down,
    /// Raise it, and keep it.
    Hold,
    /// Leave it to the rules again.
    Auto,
    /// The prices of a zone of the tariff hold from now on.
    Zone,
    /// Tell why it is as it is, and what comes next.
    Why,
    /// Print the shipped list of background traffic.
    Noise,
}

/// A gateway answers between two rounds of its loop.
const PATIENCE: Duration = Duration::from_secs(10);

/// Asks the gateway.
///
/// # Errors
/// One sentence: nothing runs there, there is no such peer, or its link is always up.
pub fn run(args: Args, global: &Global) -> miette::Result<ExitCode> {
    if args.peer.is_empty() && !matches!(args.what, What::Noise) {
        return Err(miette!("whose link? `bentpipe status` names the peers"));
    }
    let socket = args.socket.unwrap_or_else(admin::default_socket);
    let command = match args.what {
        What::Noise if global.json => {
            return console::print_json(&json!({ "noise": KNOWN_NOISE }))
                .map(|()| ExitCode::SUCCESS);
        }
        What::Noise => return console::print(KNOWN_NOISE).map(|()| ExitCode::SUCCESS),
        What::Why => return why(&socket, &args.peer, args.line.as_deref(), global),
        What::Up => LineCommand::Up,
        What::Down => LineCommand::Down,
        What::Hold => LineCommand::Hold,
        What::Auto => LineCommand::Auto,
        What::Zone => LineCommand::Zone(args.line.clone().unwrap_or_default()),
    };
    let line = args.line.filter(|_| !matches!(command, LineCommand::Zone(_)));
    let request = Request::Line { peer: args.peer, line, command };
    admin::request(&socket, &request, PATIENCE).map(|_| ExitCode::SUCCESS)
}

fn why(
    socket: &Path,
    peer: &str,
    which: Option<&str>,
    global: &Global,
) -> miette::Result<ExitCode> {
    let Answer::Status(status) = admin::request(socket, &Request::Status, PATIENCE)? else {
        return Err(miette!("the gateway answered something else than its status"));
    };
    let link = status.links.iter().find(|link| link.peer == peer);
    let link = link.ok_or_else(|| miette!("there is no peer \"{peer}\""))?;
    let line = match (&link.line, which) {
        (Some(line), Some(which)) => {
            let mut lines = line.lines.iter().chain(Some(line));
            let named = lines.find(|line| line.carrier == which);
            Some(named.ok_or_else(|| miette!("peer \"{peer}\" has no line \"{which}\""))?)
        }
        (line, _) => line.as_ref(),
    };
    match line {
        None if global.json => console::print_json(&link.line)?,
        None => console::print(
            "it is always up: its table in the file has no [peer.line], or had none when the \
             gateway started\n",
        )?,
        Some(line) if global.json => console::print_json(line)?,
        Some(line) => console::print(&format!("{line}\n"))?,
    }
    Ok(ExitCode::SUCCESS)
}
