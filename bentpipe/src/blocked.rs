//! What stays blocked when a gateway has ended (`on_failure = "block"`), in words.

use os::intercept::{self, Blocked, Ended};
use units::IpPrefix;

use crate::calendar;
use crate::human::span;

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

/// Prefixes, one behind the other.
pub fn list(prefixes: &[IpPrefix]) -> String {
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
