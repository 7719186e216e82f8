//! `bentpipe doctor`: what this machine lacks, and the command that mends it.
//!
//! Features of the kernel are tried, not looked up: in a network namespace of the
//! doctor's own, which is gone afterwards. Nothing of the host is changed, except that a
//! probe of return routes sends a few echo requests.

mod check;
mod competitors;
mod configured;
mod host;
mod kernel;
mod links;
mod programs;
mod return_route;

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use console::{Global, print, print_json};
use serde_json::json;

use crate::config::Config;

pub use check::{Check, State};

/// Says what this machine lacks, and the command that mends it.
///
/// Kernel, rights, routes and interfaces are looked at.
///
/// Example: bentpipe doctor
#[derive(clap::Args, Debug)]
pub struct Args {
    /// A configuration to check this machine for.
    pub file: Option<PathBuf>,
}

/// Looks at everything and says it; exits with 1 if something will not work.
///
/// # Errors
/// Only if the answer cannot be printed.
pub fn run(args: Args, global: &Global) -> miette::Result<ExitCode> {
    // A host alone that sends its own traffic through the link forwards nothing.
    let config = args.file.as_ref().and_then(|file| Config::load(file).ok());
    let is_alone = config.is_some_and(|c| c.node.own && c.node.lan.is_empty());
    let mut checks = host::checks(!is_alone);
    checks.extend(competitors::checks());
    checks.extend(kernel::checks());
    if let Some(file) = &args.file {
        checks.extend(configured::checks(file));
    }
    let worst = checks.iter().map(|c| c.state).max().unwrap_or(State::Ok);
    if global.json {
        print_json(&json!({ "ok": worst < State::Fail, "checks": checks }))?;
    } else {
        print(&render(&checks))?;
    }
    Ok(if worst == State::Fail { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// A line for each check, the remedy below it, and the sum of it all.
fn render(checks: &[Check]) -> String {
    let width = checks.iter().map(|c| c.check.len()).max().unwrap_or(0);
    let mut out = String::new();
    for Check { check, state, finding, mend } in checks {
        let state = match state {
            State::Ok => "ok",
            State::Warn => "warn",
            State::Fail => "FAIL",
        };
        // Writing to a String does not fail.
        let _ = writeln!(out, "{state:<4}  {check:<width$}  {finding}");
        if let Some(mend) = mend {
            let _ = writeln!(out, "{:6}{:width$}  → {mend}", "", "");
        }
    }
    let count = |state| checks.iter().filter(|c| c.state == state).count();
    out += &match (count(State::Fail), count(State::Warn)) {
        (0, 0) => "\nthis machine has all that it takes\n".to_owned(),
        (0, warnings) => format!("\nit will work; {warnings} to look at\n"),
        (1, _) => "\nit will not work until the one that failed is mended\n".to_owned(),
        (n, _) => format!("\nit will not work until the {n} that failed are mended\n"),
    };
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_has_its_remedy_below_and_the_end_says_what_it_means() {
        let checks = [
            Check::ok("tools", "ip and nft are there"),
            Check::warn("BBR", "not available", "modprobe tcp_bbr"),
        ];
        assert_eq!(
            render(&checks),
            "ok    tools  ip and nft are there\n\
             warn  BBR    not available\n             → modprobe tcp_bbr\n\n\
             it will work; 1 to look at\n"
        );
        let bad = || Check::fail("rights", "none", "run as root");
        assert!(render(&[bad()]).ends_with("until the one that failed is mended\n"));
        assert!(render(&[bad(), bad()]).ends_with("until the 2 that failed are mended\n"));
    }

    #[test]
    fn the_remedy_of_an_error_stands_apart() {
        let e = os::tun::Tun::open("no/name", 1500).unwrap_err();
        let check = Check::failed("tun", &e);
        assert_eq!(check.finding, "\"no/name\" cannot be the name of a network interface");
        assert_eq!(check.mend.as_deref(), Some("use 1 to 15 letters, digits, - or _"));
    }
}
