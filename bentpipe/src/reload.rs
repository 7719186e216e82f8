//! `bentpipe reload`: the configuration file again, while sessions go on.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use console::{Global, print, print_json};
use miette::miette;
use serde_json::json;
use units::Duration;

use crate::admin::{self, Answer, Request};
use crate::config::Config;

/// Makes the running gateway read its configuration file again.
///
/// It does what SIGHUP does, and waits until the new file is in force. Sessions and transfers
/// go on. Exits with 1 if the file is wrong, or another than the gateway was started with; then
/// all stays as it was.
///
/// Examples: bentpipe reload /etc/bentpipe/ship.toml; bentpipe reload --socket PATH
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The gateway's configuration file, which names its admin socket. Without it the default
    /// socket is asked.
    file: Option<PathBuf>,
    /// The gateway's admin socket, in place of the file's.
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

/// Reading the file of a hub with thousands of peers takes seconds.
const PATIENCE: Duration = Duration::from_secs(60);
/// A gateway answers between two rounds of its loop.
const STATUS: Duration = Duration::from_secs(5);

/// The gateway that runs with the broken `file` reads it in vain, and so has it in its log.
fn have_it_logged(file: &Path, socket: Option<&Path>) {
    let named = || crate::config::socket::named_in(file);
    let socket = socket.map(Path::to_owned).or_else(named).unwrap_or_else(admin::default_socket);
    let Ok(Answer::Status(status)) = admin::ask(&socket, &Request::Status, STATUS) else { return };
    if is_same(file, Path::new(&status.node.file)) {
        // What is wrong is told here as it is read here; the answer says the same.
        let _ = admin::ask(&socket, &Request::Reload, PATIENCE);
    }
}

/// Is it the file that the gateway runs with, by whatever path?
fn is_same(file: &Path, running: &Path) -> bool {
    let real = |path: &Path| path.canonicalize().ok();
    std::path::absolute(file).is_ok_and(|file| file == running)
        || real(file).is_some_and(|file| real(running) == Some(file))
}

/// Tells the gateway, and says what needs a restart.
///
/// # Errors
/// What is wrong with the file, or that no gateway answers.
pub fn run(args: Args, global: &Global) -> miette::Result<ExitCode> {
    let configured = args.file.as_deref().map(Config::load).transpose();
    let configured = configured.inspect_err(|_| {
        if let Some(file) = &args.file {
            have_it_logged(file, args.socket.as_deref());
        }
    })?;
    let of_the_file = || configured.map(|config| config.node.admin_socket());
    let socket = args.socket.or_else(of_the_file).unwrap_or_else(admin::default_socket);
    let running = admin::status(&socket)?.node.file;
    if let Some(file) = args.file.as_deref().filter(|file| !is_same(file, Path::new(&running))) {
        return Err(miette!(
            help = "change that file; or stop the gateway and start it with this one",
            "the gateway behind {} was started with {running}, which is the file that it reads \
             again; {} is another",
            socket.display(),
            file.display()
        ));
    }
    let needs_restart = match admin::request(&socket, &Request::Reload, PATIENCE)? {
        Answer::Reloaded { needs_restart } => needs_restart,
        _ => Vec::new(),
    };
    if global.json {
        print_json(&json!({ "ok": true, "file": running, "needs_restart": needs_restart }))?;
    } else {
        for key in &needs_restart {
            print(&format!("{key}: changed, takes effect after a restart\n"))?;
        }
        print(&format!("{running} was read and is in force\n"))?;
    }
    Ok(ExitCode::SUCCESS)
}
