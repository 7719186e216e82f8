//! What can be read off the running system, by anybody.

use std::fs;
use std::net::SocketAddr;
use std::process::Command;

use os::proc::{Right, has_right};
use os::udp::{GRO_SLOT, Transmit, UdpConfig, UdpSocket};

use super::check::{Check, State};
use crate::blocked;

/// A hub with a thousand hosts has that many connections on an evening.
const FEW_DESCRIPTORS: u64 = 10_000;

/// `forwards`: hosts behind this machine may be to be served.
pub(super) fn checks(forwards: bool) -> Vec<Check> {
    let mut checks = vec![tool("ip", "-V", "iproute2"), tool("nft", "--version", "nftables")];
    checks.push(rights());
    if forwards {
        checks.extend([
            forwarding("IPv4 forwarding", "net.ipv4.ip_forward"),
            forwarding("IPv6 forwarding", "net.ipv6.conf.all.forwarding"),
        ]);
    }
    checks.push(firewall());
    checks.extend(blocked());
    checks.push(batches());
    checks.push(descriptors());
    checks.push(congestion_control());
    checks.push(user_namespaces());
    checks
}

fn tool(name: &'static str, version: &str, package: &str) -> Check {
    match Command::new(name).arg(version).output() {
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stdout);
            Check::ok(name, text.lines().next().unwrap_or("is there").trim().to_owned())
        }
        Err(_) => Check::fail(name, "is not installed", format!("apt install {package}")),
    }
}

fn rights() -> Check {
    let needed = [
        (Right::NetAdmin, "CAP_NET_ADMIN"),
        (Right::NetRaw, "CAP_NET_RAW"),
        (Right::BindService, "CAP_NET_BIND_SERVICE"),
    ];
    let missing: Vec<_> = needed.iter().filter(|(r, _)| !has_right(*r)).map(|(_, n)| *n).collect();
    if missing.is_empty() {
        return Check::ok("rights", "interception is allowed");
    }
    Check::warn(
        "rights",
        format!("{} missing: only the explicit proxy would work", missing.join(", ")),
        "run as root, or by systemd: `systemctl start bentpipe@NAME`",
    )
}

/// A kernel parameter, if this kernel has it.
pub(super) fn sysctl(key: &str) -> Option<String> {
    let path = format!("/proc/sys/{}", key.replace('.', "/"));
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

fn forwarding(check: &'static str, key: &str) -> Check {
    match sysctl(key).as_deref() {
        None => Check::warn(check, "this kernel has none", "boot without `ipv6.disable=1`"),
        Some("0") => Check::warn(
            check,
            "is off: hosts behind this machine cannot be served",
            format!("sysctl -w {key}=1, and write it to /etc/sysctl.d/ to keep it"),
        ),
        Some(_) => Check::ok(check, "is on"),
    }
}

/// What `on_failure = "block"` keeps from the hosts while no gateway runs.
fn blocked() -> Option<Check> {
    let mend = "start the gateway; or `bentpipe down FILE`, and their traffic flows in clear";
    blocked::blocked_now().map(|blocked| Check::warn("block", blocked, mend))
}

/// Other programs' filters decide over forwarded packets, too; Docker's drop them.
fn firewall() -> Check {
    let list = Command::new("nft").args(["list", "ruleset"]).output();
    let Ok(list) = list else {
        return Check::ok("firewall", "nothing to ask it with");
    };
    let text = String::from_utf8_lossy(&list.stdout);
    let dropping = dropping_chains(&text);
    if dropping.is_empty() {
        return Check::ok("firewall", "no chain drops what is forwarded or received");
    }
    Check::warn(
        "firewall",
        format!("drops by default in: {}", dropping.join(", ")),
        "let the lan and tun interfaces pass there, both ways, and the listen port in",
    )
}

/// Chains at the hooks that interception passes which drop whatever nothing else let in: by their
/// policy, or by a rule without a condition.
fn dropping_chains(list: &str) -> Vec<String> {
    let (mut table, mut chain, mut passed) = (String::new(), String::new(), false);
    let mut found: Vec<String> = Vec::new();
    for line in list.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix("table ") {
            name.trim_end_matches(" {").clone_into(&mut table);
        } else if let Some(name) = line.strip_prefix("chain ") {
            name.trim_end_matches(" {").clone_into(&mut chain);
            passed = false;
        } else if line.starts_with("type ") {
            passed =
                ["hook forward", "hook input", "hook prerouting"].iter().any(|h| line.contains(h));
        }
        // Our own chains speak of what is blocked elsewhere.
        let ours = table.contains("bentpipe");
        let named = format!("{table} {chain}");
        if passed && !ours && drops_the_rest(line) && !found.contains(&named) {
            found.push(named);
        }
    }
    found
}

/// A chain's policy, or a rule that asks for nothing before it drops.
fn drops_the_rest(line: &str) -> bool {
    let mut words = line.split_whitespace().peekable();
    if line.starts_with("type ") {
        return line.contains("policy drop");
    }
    if words.next_if_eq(&"counter").is_some() {
        while words
            .next_if(|w| matches!(*w, "packets" | "bytes") || w.parse::<u64>().is_ok())
            .is_some()
        {}
    }
    matches!(words.next(), Some("drop" | "reject"))
}

/// Sends two datagrams as one piece over loopback and sees how they arrive.
fn batches() -> Check {
    let send = || -> Result<bool, String> {
        let any = |e: os::OsError| e.to_string();
        let local = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut socket = UdpSocket::bind(&UdpConfig::new(local)).map_err(any)?;
        let to = socket.local_addr();
        let transmit = Transmit { to, from: None, payload: &[0; 2400], segment: 1200 };
        socket.send(&transmit).map_err(|e| e.reason.to_string())?;
        Ok(socket.gso() && socket.slot() == GRO_SLOT)
    };
    match send() {
        Ok(true) => Check::ok("UDP batches", "GSO and GRO work"),
        Ok(false) => Check::warn(
            "UDP batches",
            "the kernel refuses GSO or GRO: more CPU time per byte",
            "use Linux 5.0 or later",
        ),
        Err(e) => Check::fail("UDP batches", e, "look at the loopback interface: `ip address`"),
    }
}

fn descriptors() -> Check {
    match os::proc::raise_descriptor_limit() {
        Ok(limit) if limit >= FEW_DESCRIPTORS => {
            Check::ok("descriptors", format!("{limit} connections at a time"))
        }
        Ok(limit) => Check::warn(
            "descriptors",
            format!("at most {limit} connections at a time"),
            "raise the hard limit: `LimitNOFILE=262144` in the unit, or /etc/security/limits.conf",
        ),
        Err(e) => Check::failed("descriptors", &e),
    }
}

fn congestion_control() -> Check {
    let available = sysctl("net.ipv4.tcp_available_congestion_control").unwrap_or_default();
    if available.split(' ').any(|name| name == "bbr") {
        return Check::ok("BBR", "available towards servers with losses on the way");
    }
    Check::warn("BBR", format!("not loaded (there are: {available})"), "modprobe tcp_bbr")
}

fn user_namespaces() -> Check {
    let check = "lab as a user";
    let off = [
        ("user.max_user_namespaces", "0", "1000"),
        ("kernel.unprivileged_userns_clone", "0", "1"),
        ("kernel.apparmor_restrict_unprivileged_userns", "1", "0"),
    ];
    for (key, bad, good) in off {
        if sysctl(key).as_deref() == Some(bad) {
            return Check::warn(
                check,
                format!("`bentpipe-lab` needs root here: {key} is {bad}"),
                format!("sysctl -w {key}={good}"),
            );
        }
    }
    Check { check, state: State::Ok, finding: "user namespaces are allowed".into(), mend: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chains_that_drop_forwarded_packets_are_named() {
        let list = "table ip filter {\n\tchain FORWARD {\n\t\t\
                    type filter hook forward priority filter; policy drop;\n\t}\n\
                    \tchain OUTPUT {\n\t\ttype filter hook output priority 0; policy drop;\n\t}\n}\n\
                    table inet mine {\n\tchain in {\n\t\ttype filter hook input priority 0; policy accept;\n\t}\n}";
        assert_eq!(dropping_chains(list), ["ip filter FORWARD"]);
        assert!(dropping_chains("").is_empty());
        let rules = "table ip filter {\n\tchain INPUT {\n\t\t\
                     type filter hook input priority filter; policy accept;\n\t\t\
                     tcp dport 22 accept\n\t\tip saddr 192.0.2.1 drop\n\t\t\
                     counter packets 5 bytes 340 drop\n\t}\n\tchain mine {\n\t\tdrop\n\t}\n\
                     \tchain FORWARD {\n\t\ttype filter hook forward priority filter; policy accept;\n\
                     \t\tudp dport 53 drop\n\t}\n}";
        assert_eq!(dropping_chains(rules), ["ip filter INPUT"]);
    }

    #[test]
    fn this_machine_sends_in_batches_and_has_its_tools() {
        assert_eq!(batches().state, State::Ok);
        assert_eq!(tool("ip", "-V", "iproute2").state, State::Ok);
        let missing = tool("no-such-tool", "-V", "nothing");
        assert_eq!(
            (missing.state, missing.mend.as_deref()),
            (State::Fail, Some("apt install nothing"))
        );
    }
}
