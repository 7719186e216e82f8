//! `bentpipe down FILE`: the way back to a machine without a gateway.
//!
//! With `on_failure = "block"` hosts' traffic for a peer's routes stays blocked when the
//! gateway has ended, however it did. This is what releases it.

use std::path::PathBuf;
use std::process::ExitCode;

use console::{Global, print, print_json, show};
use miette::IntoDiagnostic as _;
use os::intercept::{self, Blocked, Ended};
use serde_json::json;
use units::IpPrefix;

use crate::calendar;
use crate::config::Config;
use crate::human::span;

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

/// What is blocked although no gateway runs, in a sentence.
pub fn blocked_now() -> Option<String> {
    // Who cannot ask has other worries than this; the tools that are missing are told elsewhere.
    let blocked = intercept::blocked().ok().flatten().filter(|_| !intercept::is_running())?;
    Some(describe(&blocked, calendar::seconds()))
}

fn describe(blocked: &Blocked, now: u64) -> String {
    let since = match blocked.since {
        Some((Ended::InOrder, at)) => ("stopped", at),
        Some((Ended::Killed, at)) => ("killed, or crashed,", at),
        None => return format!("hosts' traffic for {} is blocked", list(&blocked.prefixes)),
    };
    format!(
        "hosts' traffic for {} is blocked since the gateway was {} {} ago",
        list(&blocked.prefixes),
        since.0,
        span(now.saturating_sub(since.1) * 1000)
    )
}

fn list(prefixes: &[IpPrefix]) -> String {
    prefixes.iter().map(IpPrefix::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_blocks_is_said_with_the_end_that_left_it() {
        let prefixes = vec!["10.2.0.0/24".parse().unwrap(), IpPrefix::ALL_V6];
        let mut blocked = Blocked { prefixes, since: None };
        assert_eq!(describe(&blocked, 7), "hosts' traffic for 10.2.0.0/24, ::/0 is blocked");
        blocked.since = Some((Ended::Killed, 1_000));
        assert!(describe(&blocked, 1_061).ends_with("was killed, or crashed, 1m01s ago"));
        blocked.since = Some((Ended::InOrder, 1_000));
        assert!(describe(&blocked, 1_005).ends_with("since the gateway was stopped 5s ago"));
    }
}
