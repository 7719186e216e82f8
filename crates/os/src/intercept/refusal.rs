//! What hosts are told while their traffic is blocked and no program runs.
//!
//! An unreachable route alone tells them little: for IPv4 the kernel takes from one bucket of a
//! host's twice for each error, once for the route and once for ICMP, so that a host that asks once
//! a second is never told anything. So a table answers before packets are routed: TCP with a reset,
//! for which the kernel has no limit, everything else with ICMP (once a second for each host, six
//! at once). The table belongs to nobody and may be flushed by others: what blocks is the routes.
//!
//! It blocks, too, where another program removes the rules that lead to those routes: then a mark
//! of its own has no rule any more that leads it to the note of the end (`routes::after_death`).
//! As in [`guard`](super::guard) the kernel is asked for the way back to the sender.

use std::process::Command;

use super::config::Marks;
use crate::OsError;
use crate::command;

const TABLE: &str = "bentpipe_blocked";

/// The chain that [`guard::by_destination`](super::guard::by_destination) is to lead to.
pub(super) const ASKS: &str = "asks";

/// The watchdog's command that puts the table in force.
pub(super) fn script(ruleset: &str) -> String {
    format!("nft -f - <<'END'\n{ruleset}END\n")
}

/// What has no way is refused. `fib` sees the rules for hosts only by a mark
/// (`routes::refusal_rules`); a packet with somebody else's mark is left to the routes. What is to
/// be blocked and has a way all the same has it by somebody's rule before ours, or ours are gone.
pub(super) fn ruleset(by_destination: &[String]) -> String {
    let Marks { inward: mark, guard, .. } = Marks::default();
    let mut out = format!(
        "add table inet {TABLE}\ndelete table inet {TABLE}\nadd table inet {TABLE}\n\
         add chain inet {TABLE} refuse\n\
         add chain inet {TABLE} {ASKS}\n\
         add chain inet {TABLE} prerouting \
         {{ type filter hook prerouting priority mangle; policy accept; }}\n"
    );
    for (chain, rule) in [
        ("refuse", "meta l4proto tcp reject with tcp reset".to_owned()),
        ("refuse", "reject with icmpx host-unreachable".to_owned()),
        ("prerouting", "iifname \"lo\" accept".to_owned()),
        ("prerouting", "fib daddr type { local, broadcast, anycast, multicast } accept".to_owned()),
        ("prerouting", "ip6 daddr fe80::/10 accept".to_owned()),
        (
            "prerouting",
            format!("meta mark 0 meta mark set {mark:#x} fib daddr . mark oif missing goto refuse"),
        ),
        ("prerouting", format!("meta mark {mark:#x} meta mark set 0")),
        ("prerouting", "meta mark != 0 accept".to_owned()),
        (
            ASKS,
            format!("meta mark set {guard:#x} fib saddr . mark oif missing meta mark set 0 accept"),
        ),
        (ASKS, "drop".to_owned()),
    ] {
        out += &format!("add rule inet {TABLE} {chain} {rule}\n");
    }
    for rule in by_destination {
        out += &format!("add rule inet {TABLE} prerouting {rule}\n");
    }
    out
}

/// Puts the table in force again, after a start that failed.
pub(super) fn put_back(ruleset: &str) {
    // The rules that were put back block without it; the start's own failure is told.
    let _ = command::run(Command::new("nft").args(["-f", "-"]), ruleset);
}

/// Takes the table away, if it is there: a program runs and answers, or nothing is blocked.
pub(super) fn remove() -> Result<(), OsError> {
    let text = format!("add table inet {TABLE}\ndelete table inet {TABLE}\n");
    command::run(Command::new("nft").args(["-f", "-"]), &text)
        .map(drop)
        .map_err(|e| e.mend("run as root or grant CAP_NET_ADMIN"))
}
