//! `bentpipe path`: the ways to a peer.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::ValueEnum;
use console::Global;
use miette::miette;
use units::Duration;

use crate::admin::{self, Answer, PathCommand, Request};

/// Lists the ways to a peer, or says which to use.
///
/// A peer with several [[peer.carrier]] tables has a path over each, and the best that works
/// carries everything. `use` moves everything to one, at both nodes, while it works, until `auto`,
/// and raises the line that it goes by; `down` sends nothing at all on it until `up`.
///
/// Examples: bentpipe path shore; bentpipe path shore use vsat; bentpipe path shore auto
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The gateway's admin socket.
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// The peer's name.
    peer: String,
    /// What becomes of a path; without it they are listed.
    what: Option<What>,
    /// The carrier's name, or the path's number.
    path: Option<String>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum What {
    /// Send everything on it.
    Use,
    /// Send everything on the best.
    Auto,
    /// It may be used.
    Up,
    /// Send nothing on it.
    Down,
}

/// A gateway answers between two rounds of its loop.
const PATIENCE: Duration = Duration::from_secs(10);

/// Asks the gateway.
///
/// # Errors
/// One sentence: nothing runs there, or there is no such peer or path.
pub fn run(args: Args, global: &Global) -> miette::Result<ExitCode> {
    let socket = args.socket.unwrap_or_else(admin::default_socket);
    let Some(what) = args.what else {
        return list(&socket, &args.peer, global);
    };
    let path = match (what, args.path) {
        (What::Auto, None) => String::new(),
        (What::Auto, Some(_)) => return Err(miette!("auto is for all paths: leave the name out")),
        (_, Some(path)) => path,
        (_, None) => {
            let help = format!("`bentpipe path {}` lists them", args.peer);
            return Err(miette!(help = help, "which path? Name it behind the command"));
        }
    };
    let command = match what {
        What::Use => PathCommand::Use,
        What::Auto => PathCommand::Auto,
        What::Up => PathCommand::Up,
        What::Down => PathCommand::Down,
    };
    let request = Request::Path { peer: args.peer, path, command };
    admin::request(&socket, &request, PATIENCE).map(|_| ExitCode::SUCCESS)
}

fn list(socket: &std::path::Path, peer: &str, global: &Global) -> miette::Result<ExitCode> {
    let Answer::Status(status) = admin::request(socket, &Request::Status, PATIENCE)? else {
        return Err(miette!("the gateway answered something else than its status"));
    };
    let link = status.links.iter().find(|link| link.peer == peer);
    let link = link.ok_or_else(|| miette!("there is no peer \"{peer}\""))?;
    if global.json {
        console::print_json(&link.paths)?;
    } else {
        let lines: Vec<String> = link.paths.iter().map(|path| format!("{path}\n")).collect();
        let one = "there is one path, over the node's own socket\n".to_owned();
        console::print(&if lines.is_empty() { one } else { lines.concat() })?;
    }
    Ok(ExitCode::SUCCESS)
}
