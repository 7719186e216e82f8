//! `bentpipe check FILE`: says what a configuration means, or what is wrong with it.

use std::path::PathBuf;
use std::process::ExitCode;

use console::{Global, print, print_json, show};
use serde_json::json;

use crate::config::{Config, Entry};

/// Says what a configuration means, or what is wrong with it.
///
/// All problems are shown at once, each with its place. Nothing is started.
///
/// Example: bentpipe check /etc/bentpipe/ship.toml
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The configuration file.
    pub file: PathBuf,
}

/// Prints a summary, or every problem of the file; exits with 1 if it cannot be used.
pub fn run(args: Args, global: &Global) -> miette::Result<ExitCode> {
    let config = match Config::load(&args.file) {
        Ok(config) => config,
        Err(e) if global.json => {
            print_json(&e.to_report())?;
            return Ok(ExitCode::FAILURE);
        }
        Err(e) => return Err(e.into()),
    };
    if global.json {
        print_json(&json!({
            "ok": true,
            "file": args.file.display().to_string(),
            "problems": config.warnings.iter().map(Entry::from).collect::<Vec<_>>(),
            "config": config.to_json(),
        }))?;
        return Ok(ExitCode::SUCCESS);
    }
    for warning in &config.warnings {
        show("bentpipe", warning);
    }
    print(&format!("{} is valid\n{config}", args.file.display()))?;
    Ok(ExitCode::SUCCESS)
}
