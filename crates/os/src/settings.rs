//! This host's own routes and kernel parameters, for whoever changes them and puts them back.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::OsError;
use crate::command;
use crate::error::OrCannot;

/// A family of addresses, as `ip` calls it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    pub(crate) const fn flag(self) -> &'static str {
        match self {
            Family::V4 => "-4",
            Family::V6 => "-6",
        }
    }
}

/// The routes of table `main`, each as `ip route` would take it back. Routes with several next
/// hops are left out, as are those that end here or expire by themselves.
///
/// # Errors
/// `ip` is missing or refuses.
pub fn routes(family: Family) -> Result<Vec<String>, OsError> {
    let mut ip = Command::new("ip");
    let show = [family.flag(), "-d", "-N", "route", "show", "table", "main"];
    let text = command::run(ip.args(show), "")?;
    let whole = |line: &&str| {
        // Continuation lines of several next hops begin with blanks.
        line.starts_with(UNICAST) && line.contains(" dev ") && !line.contains(" expires ")
    };
    Ok(text.lines().filter(whole).map(|line| cleaned(&line[UNICAST.len()..])).collect())
}

/// The type of an ordinary route, as `ip -N` prints it.
const UNICAST: &str = "1 ";
/// Words that `ip route show` prints and `ip route replace` does not take.
const PRINTED_ONLY: [&str; 6] = ["linkdown", "dead", "offload", "trap", "rt_offload", "rt_trap"];

fn cleaned(line: &str) -> String {
    let words = line.split_whitespace().filter(|word| !PRINTED_ONLY.contains(word));
    words.collect::<Vec<_>>().join(" ")
}

/// Replaces the route with the same destination, table and metric.
///
/// # Errors
/// The kernel refuses it, or the right is missing.
pub fn replace_route(family: Family, route: &str) -> Result<(), OsError> {
    let mut ip = Command::new("ip");
    ip.args([family.flag(), "route", "replace"]).args(route.split_whitespace());
    command::run(&mut ip, "")
        .map(drop)
        .map_err(|e| e.mend("run as root or grant CAP_NET_ADMIN; `ip route` shows what is there"))
}

/// A kernel parameter such as `net.ipv4.tcp_rmem`; `None` if this kernel has none of that name.
pub fn sysctl(key: &str) -> Option<String> {
    let text = fs::read_to_string(path_of(key)).ok()?;
    Some(text.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// Sets a kernel parameter.
///
/// # Errors
/// There is none of that name, the kernel refuses the value, or the right is missing.
pub fn set_sysctl(key: &str, value: &str) -> Result<(), OsError> {
    fs::write(path_of(key), value)
        .or_cannot(|| format!("set {key} to \"{value}\""))
        .map_err(|e| e.mend("run as root, and not in a container without rights"))
}

fn path_of(key: &str) -> PathBuf {
    PathBuf::from("/proc/sys").join(key.replace('.', "/"))
}

/// What tells this boot and network namespace from others: settings do not outlive it.
pub fn lifetime() -> String {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let namespace = fs::read_link("/proc/self/ns/net").unwrap_or_default();
    format!("{} {}", boot.trim(), namespace.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_keeps_what_the_kernel_is_told_and_loses_what_it_says() {
        let line = "default via 10.0.0.1 dev eth0 proto 3 scope 0 dead linkdown \n";
        assert_eq!(cleaned(line), "default via 10.0.0.1 dev eth0 proto 3 scope 0");
    }
}
