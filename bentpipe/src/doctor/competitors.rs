//! Programs that decide, or undo, which packets the interception gets.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::check::Check;

/// The interception's own rules begin here, and have this number in their `proto` field.
const OWN_PRIORITY: u32 = 25_200;
const OWN_PROTOCOL: &str = "proto 143";
/// systemd-networkd writes this when it begins. The directory is there without it, too.
const NETWORKD: &str = "/run/systemd/netif/state";
const NETWORKD_CONFIGS: [&str; 3] = ["/usr/lib/systemd", "/run/systemd", "/etc/systemd"];

pub(super) fn checks() -> Vec<Check> {
    let rules: Vec<String> =
        ["-4", "-6"].into_iter().flat_map(|family| rules_before_ours(&rules(family))).collect();
    let decided = match rules.is_empty() {
        true => Check::ok("rules", "no other program's come first"),
        false => Check::warn(
            "rules",
            format!("other programs' come before the gateway's: {}", rules.join("; ")),
            "hosts' traffic that they match does not enter the link: stop that program (a VPN?), \
             or have it leave out the `lan`",
        ),
    };
    let networkd = Path::new(NETWORKD).exists() && removes_others_rules(&networkd_config());
    let undone = networkd.then(|| {
        Check::warn(
            "networkd",
            "removes the gateway's rules whenever it starts anew; they are put back at once",
            "ManageForeignRoutingPolicyRules=no in [Network] of /etc/systemd/networkd.conf",
        )
    });
    [decided].into_iter().chain(undone).collect()
}

fn rules(family: &str) -> String {
    let list = Command::new("ip").args([family, "rule", "show"]).output();
    list.map(|list| String::from_utf8_lossy(&list.stdout).into_owned()).unwrap_or_default()
}

/// Rules of others that the kernel asks before the interception's, but its own for local addresses
/// and VRFs.
fn rules_before_ours(list: &str) -> Vec<String> {
    let is_before = |line: &&str| {
        let priority = line.split(':').next().and_then(|n| n.parse::<u32>().ok());
        priority.is_some_and(|n| n < OWN_PRIORITY)
            && !line.trim_end().ends_with("from all lookup local")
            && !line.contains(OWN_PROTOCOL)
            && !line.contains("l3mdev")
    };
    list.lines()
        .map(str::trim)
        .filter(is_before)
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect()
}

/// The files in the order in which networkd reads them: what is said last counts.
fn networkd_config() -> String {
    let mut text = String::new();
    let mut drop_ins = Vec::new();
    for directory in NETWORKD_CONFIGS {
        text += &fs::read_to_string(format!("{directory}/networkd.conf")).unwrap_or_default();
        let entries = fs::read_dir(format!("{directory}/networkd.conf.d")).into_iter().flatten();
        drop_ins.extend(entries.flatten().map(|entry| entry.path()));
    }
    drop_ins.sort_by_key(|path| path.file_name().map(ToOwned::to_owned));
    for path in drop_ins {
        text.push('\n');
        text += &fs::read_to_string(path).unwrap_or_default();
    }
    text
}

fn removes_others_rules(config: &str) -> bool {
    let said = config
        .lines()
        .filter_map(|line| line.split_once('='))
        .rfind(|(key, _)| key.trim() == "ManageForeignRoutingPolicyRules");
    said.is_none_or(|(_, value)| !matches!(value.trim(), "no" | "false" | "off" | "0"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_of_others_that_come_first_are_named() {
        let list = "0:\tfrom all lookup local\n\
                    0:\tfrom 10.1.0.0/24 lookup 53\n\
                    1000:\tfrom all lookup [l3mdev-table]\n\
                    5270:\tfrom all lookup 52\n\
                    25200:\tfrom all fwmark 0x1 lookup 25400 proto 143\n\
                    32764:\tfrom all lookup main suppress_prefixlength 0\n\
                    32766:\tfrom all lookup main\n";
        let others = ["0: from 10.1.0.0/24 lookup 53", "5270: from all lookup 52"];
        assert_eq!(rules_before_ours(list), others);
        assert!(rules_before_ours("").is_empty());
    }

    #[test]
    fn networkd_leaves_rules_of_others_where_its_files_say_so_last() {
        assert!(removes_others_rules(""));
        assert!(removes_others_rules("[Network]\n#ManageForeignRoutingPolicyRules=no\n"));
        let kept = "[Network]\nManageForeignRoutingPolicyRules = no\n";
        assert!(!removes_others_rules(kept));
        assert!(removes_others_rules(&format!("{kept}ManageForeignRoutingPolicyRules=yes\n")));
    }
}
