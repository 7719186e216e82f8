//! `bentpipe down FILE`: the way back to a machine without a gateway.
//!
//! With `on_failure = "block"` hosts' traffic for a peer's routes stays blocked when the
//! gateway has ended, however it did. This is what releases it.

use std::path::PathBuf;
use std::process::ExitCode;

use console::{Global, print, print_json, show};
use miette::IntoDiagnostic as _;
use os::intercept;
use serde_json::json;
use units::IpPrefix;

use crate::blocked::list;
use crate::config::Config;

/// Lets hosts' traffic flow in clear that is blocked since the gateway has ended.
///
/// With on_failure = "block" it stays blocked after every end; with on_stop = "release" in
/// [node] an end in order releases it. It refuses while a gateway runs: stop that first. A
/// FILE with mistakes is told of and releases all the same.
///
/// Examples: bentpipe down /etc/bentpipe/ship.toml; systemctl stop bentpipe@ship && bentpipe
/// down /etc/bentpipe/ship.toml
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The file that the gateway ran with.
    pub file: PathBuf,
}

/// Releases what is blocked and says what it was.
///
/// # Errors
/// One sentence: a gateway runs here, or this user may not change routes.
pub fn run(args: Args, global: &Global) -> miette::Result<ExitCode> {
    if let Err(e) = Config::load(&args.file) {
        // Whoever cannot mend the file now must not be locked out by it.
        show("bentpipe", &e);
    }
    let before = intercept::blocked().into_diagnostic()?;
    intercept::release().into_diagnostic()?;
    let prefixes = before.map_or_else(Vec::new, |blocked| blocked.prefixes);
    if global.json {
        let released: Vec<String> = prefixes.iter().map(IpPrefix::to_string).collect();
        print_json(&json!({ "released": released }))?;
    } else if prefixes.is_empty() {
        print("nothing was blocked\n")?;
    } else {
        print(&format!("hosts' traffic for {} is released: it flows in clear\n", list(&prefixes)))?;
    }
    Ok(ExitCode::SUCCESS)
}
