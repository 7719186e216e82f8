//! Nothing of hosts' leaves in clear between the moment when another program removes our rules
//! (`ip rule flush`, networkd's restart) and the moment when they are back.
//!
//! ```text
//!  a host's packet for a prefix that blocks, forwarded, and not to the tunnel
//!    └─► does the guard's rule stand?  yes: another's rule, which comes first, sends it elsewhere
//!                                      no:  nobody leads it into the tunnel; it is dropped
//! ```
//!
//! The guard's rule leads one mark ([`Marks::guard`](super::Marks::guard)) to the syn device. It
//! has a priority before those that others usually have, and is put in force as the last of ours:
//! who removes rules of other programs removes it, too. The kernel is asked for the way back to
//! the sender, so that no rule for a destination answers in its place. The table is owned, and
//! nobody else can flush it.
//!
//! Linux before 6.10 refuses the question where packets are forwarded (nft_fib_validate): there is
//! no guard then, as the kernel would refuse the whole table.
//!
//! When the program has ended, [`refusal`](super::refusal) does the same before packets are routed,
//! where every kernel takes the question.

use std::fs;
use std::sync::OnceLock;

use super::config::InterceptConfig;
use super::nft::{list, without_covered};
use super::routes::bypassing_now;
use units::IpPrefix;

/// Does the kernel take the question?
pub(super) fn is_possible() -> bool {
    static POSSIBLE: OnceLock<bool> = OnceLock::new();
    *POSSIBLE.get_or_init(|| {
        fs::read_to_string("/proc/sys/kernel/osrelease").is_ok_and(|release| answers(&release))
    })
}

fn answers(release: &str) -> bool {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
    let (Some(Ok(major)), Some(Ok(minor))) = (numbers.next(), numbers.next()) else {
        return false;
    };
    (major, minor) >= (6, 10)
}

/// The chains that do it, made what the configuration says; none where nothing blocks.
pub(super) fn chains(table: &str, config: &InterceptConfig) -> String {
    if !is_possible() {
        return String::new();
    }
    let (guard, asks) = (format!("inet {table} guard"), format!("inet {table} guard_asks"));
    let mut text = format!(
        "add chain {asks}; \
         add chain {guard} {{ type filter hook forward priority filter; policy accept; }}; \
         flush chain {guard}; flush chain {asks}; "
    );
    if !config.routes.iter().any(|p| config.blocks(p)) {
        return text + &format!("delete chain {guard}; delete chain {asks}; ");
    }
    let (tun, syn, marks) = (&config.tun, config.syn_device(), &config.marks);
    let mut rule = |chain: &str, rule: String| text += &format!("add rule {chain} {rule}; ");
    rule(&guard, format!("oifname {{ \"{tun}\", \"{syn}\" }} accept"));
    for by_destination in by_destination(config, &bypassing_now(config), "guard_asks") {
        rule(&guard, by_destination);
    }
    // Packets of connections that end here are never forwarded while the rules stand.
    rule(&asks, format!("meta mark {} drop", list(&[marks.local, marks.own, marks.syn])));
    // What somebody else has marked is left to his rules.
    rule(&asks, "meta mark != 0 accept".into());
    rule(&asks, format!("meta mark set {:#x}", marks.guard));
    rule(&asks, format!("fib saddr . mark oifname \"{syn}\" meta mark set 0 accept"));
    rule(&asks, "drop".into());
    text
}

/// What hosts' packets meet, the longest prefix first: the chain `asks` where they are blocked, and
/// nothing where they are not.
pub(super) fn by_destination(
    config: &InterceptConfig,
    direct: &[IpPrefix],
    asks: &str,
) -> Vec<String> {
    let rule = |(prefixes, blocks): (Vec<IpPrefix>, bool)| {
        let to = destinations(&prefixes);
        if blocks { format!("{to} goto {asks}") } else { format!("{to} accept") }
    };
    by_length(config, direct).into_iter().map(rule).collect()
}

/// Prefixes of one length and family, the longest first, as rules choose among them, and whether
/// they block. Of one length those of peers come before those that bypass the tunnel.
fn by_length(config: &InterceptConfig, direct: &[IpPrefix]) -> Vec<(Vec<IpPrefix>, bool)> {
    let mut all = Vec::new();
    for len in (0..=128).rev() {
        for v4 in [true, false] {
            let of = |p: &&IpPrefix| p.len() == len && p.is_v4() == v4;
            let (blocked, open): (Vec<IpPrefix>, Vec<IpPrefix>) =
                config.routes.iter().filter(of).partition(|p| config.blocks(p));
            let direct = direct.iter().filter(of).copied().collect();
            all.extend([(blocked, true), (open, false), (direct, false)]);
        }
    }
    // A prefix may be there twice.
    let once =
        |(prefixes, blocks): (Vec<IpPrefix>, bool)| (without_covered(prefixes.iter()), blocks);
    all.into_iter().map(once).filter(|(prefixes, _)| !prefixes.is_empty()).collect()
}

/// Those of one length and family.
fn destinations(prefixes: &[IpPrefix]) -> String {
    let v4 = prefixes.iter().any(IpPrefix::is_v4);
    match prefixes.iter().any(|p| p.len() == 0) {
        // Every address: nft has no set element for that in all of its versions.
        true => format!("meta nfproto {}", if v4 { "ipv4" } else { "ipv6" }),
        false => format!("{} daddr {}", if v4 { "ip" } else { "ip6" }, list(prefixes)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_kernels_that_take_the_question_are_asked() {
        for release in ["6.10.0", "6.10-rc1", "6.18.5-arch1-1", "7.0.1\n"] {
            assert!(answers(release), "{release}");
        }
        for release in ["6.9.4", "6.1.0-13-amd64", "5.15.0-91-generic", "", "6", "x.y"] {
            assert!(!answers(release), "{release}");
        }
    }
}
