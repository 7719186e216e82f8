//! What the kernel can, tried in a network namespace that is gone afterwards.

use os::OsError;
use os::intercept::{Intercept, InterceptConfig};
use os::netns::NetNs;
use os::proc::{Right, has_right};
use os::tcp::{TcpOptions, TransparentListener};
use os::tun::Tun;

use super::check::Check;

const PREFIX: &str = "bpdoctor";
/// The probe namespace's devices, one a check: a closed device may live on for a moment where
/// another thread forks.
const TUN: &str = "bpdoctor0";
const INTERCEPTED: &str = "bpdoctor1";

/// A feature of nftables: what it is, the rule that needs it, the module that has it.
const FEATURES: [(&str, &str, &str); 5] = [
    ("TPROXY, IPv4", "meta nfproto ipv4 tcp dport 1 tproxy ip to 127.0.0.1:1", "nft_tproxy"),
    ("TPROXY, IPv6", "meta nfproto ipv6 tcp dport 1 tproxy ip6 to [::1]:1", "nft_tproxy"),
    ("socket match", "tcp dport 1 socket transparent 1 accept", "nft_socket"),
    ("route match", "fib daddr oifname \"lo\" accept", "nft_fib_inet"),
    ("masquerading", "masquerade", "nft_masq"),
];

pub(super) fn checks() -> Vec<Check> {
    if !has_right(Right::SysAdmin) || !has_right(Right::NetAdmin) {
        return vec![Check::warn(
            "kernel",
            "its features cannot be tried without root",
            "sudo bentpipe doctor",
        )];
    }
    let probe = match NetNs::unique(PREFIX, "kernel") {
        Ok(probe) => probe,
        Err(e) => return vec![Check::failed("namespaces", &e)],
    };
    let mut checks: Vec<Check> = FEATURES.iter().map(|f| feature(&probe, f)).collect();
    checks.push(probe.run(|| {
        as_check("TUN", "packets can be read and written", || Tun::open(TUN, 1500).map(drop))
    }));
    checks.push(probe.run(|| {
        as_check("transparent sockets", "foreign addresses can be used", || {
            TransparentListener::bind(0, &TcpOptions::default()).map(drop)
        })
    }));
    checks.push(
        probe.run(|| as_check("interception", "a whole set of rules was put in force", intercept)),
    );
    checks
}

fn as_check(check: &'static str, good: &str, tried: impl FnOnce() -> Result<(), OsError>) -> Check {
    match tried() {
        Ok(()) => Check::ok(check, good),
        Err(e) => Check::failed(check, &e),
    }
}

fn feature(probe: &NetNs, (name, rule, module): &(&'static str, &str, &str)) -> Check {
    let hook = match *rule {
        "masquerade" => "type nat hook postrouting priority srcnat",
        _ => "type filter hook prerouting priority mangle",
    };
    let commands = format!(
        "add table inet t; add chain inet t c {{ {hook}; }}; add rule inet t c {rule}; delete table inet t"
    );
    match probe.command("nft").arg(commands).output() {
        Ok(output) if output.status.success() => Check::ok(name, "works"),
        Ok(_) => Check::fail(
            name,
            "the kernel does not have it",
            format!("modprobe {module}, or a kernel with CONFIG_{}", module.to_uppercase()),
        ),
        Err(_) => Check::fail(name, "`nft` is not installed", "apt install nftables"),
    }
}

/// All of it at once, the table that dies with its owner included.
fn intercept() -> Result<(), OsError> {
    let tun = Tun::open(INTERCEPTED, 1500)?;
    let listener = TransparentListener::bind(0, &TcpOptions::default())?;
    let mut config = InterceptConfig::new(tun.name(), listener.port());
    config.lan = vec![tun.name().to_owned()];
    config.carrier_ports = vec![4500];
    config.routes = vec![units::IpPrefix::ALL_V4, units::IpPrefix::ALL_V6];
    config.masquerade.clone_from(&config.routes);
    Intercept::install(&config)?.remove()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::check::State;
    use os::netns::root;

    #[test]
    fn what_the_tests_here_rely_on_works_and_a_missing_feature_is_named_with_its_module() {
        if !root() {
            return;
        }
        for check in checks() {
            assert_eq!(check.state, State::Ok, "{check:?}");
        }
        let probe = NetNs::unique(PREFIX, "test").unwrap();
        let missing = feature(&probe, &("warp", "warp drive", "nft_warp"));
        assert_eq!(missing.state, State::Fail);
        assert!(missing.mend.unwrap().starts_with("modprobe nft_warp, or"));
    }
}
