//! The programs that a file names: services, and commands that raise and drop lines.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use super::check::Check;
use crate::config::{Config, Peer, Service};

pub(super) fn checks(config: &Config) -> Vec<Check> {
    let services = config.node.services.iter().filter_map(service);
    let node = config.node.user.iter().filter_map(|name| user("[node]", name));
    let services = services.chain(node).chain(config.node.services.iter().filter_map(|service| {
        user(&format!("[service.{}]", service.name), service.user.as_deref()?)
    }));
    services.chain(config.peers.iter().flat_map(|peer| commands(peer))).collect()
}

/// The file has its program as a path, whatever the directory.
fn service(service: &Service) -> Option<Check> {
    let program = service.command.first()?;
    Some(match fault_of(Path::new(program)) {
        None => Check::ok("service", format!("{}: {program} is there", service.name)),
        Some(fault) => Check::fail(
            "service",
            format!("{}: {program} {fault}", service.name),
            format!("correct `command` in [service.{}], or install the program", service.name),
        ),
    })
}

/// A gateway whose file names a user who is not there does not start.
fn user(table: &str, name: &str) -> Option<Check> {
    let why = os::proc::find_user(name).err()?;
    let mend = format!("useradd --system {name}, or correct `user` in {table}");
    Some(Check::fail("user", format!("{table}: {why}"), mend))
}

/// What raises and drops the lines to a peer.
fn commands(peer: &Peer) -> Vec<Check> {
    let lines = peer.line.iter().flat_map(|line| &line.lines);
    let both = lines.flat_map(|line| [("raise", &line.raise), ("drop", &line.drop)]);
    let named = both.filter_map(|(key, command)| Some((key, program_of(command.as_ref()?)?)));
    named.map(|(key, program)| command(&peer.name, key, program)).collect()
}

fn command(peer: &str, key: &str, program: &str) -> Check {
    let fault = match Path::new(program) {
        path if path.is_absolute() => fault_of(path),
        // The gateway's directory need not be this one.
        _ if program.contains('/') => None,
        _ => (!is_known_to_shell(program)).then_some("is no program that the shell finds"),
    };
    match fault {
        None => Check::ok("line", format!("{peer}: `{key}` begins with {program}")),
        Some(fault) => Check::fail(
            "line",
            format!("{peer}: {program} in `{key}` {fault}"),
            format!("correct `{key}` in [peer.line], or install the program"),
        ),
    }
}

/// The program that a shell's command begins with, where that is plain to see: behind variables
/// that it sets, and made of nothing that the shell replaces.
fn program_of(command: &str) -> Option<&str> {
    let is_name = |name: &str| name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    let sets = |word: &&str| word.split_once('=').is_some_and(|(name, _)| is_name(name));
    let word = command.split_whitespace().find(|word| !sets(word))?;
    let is_plain = |c: char| c.is_alphanumeric() || "/._-+@:".contains(c);
    (word.chars().all(is_plain) && !word.starts_with('-')).then_some(word)
}

/// Programs along PATH, and the shell's own words.
fn is_known_to_shell(word: &str) -> bool {
    let asked = Command::new("sh").args(["-c", "command -v \"$1\"", "sh", word]).output();
    asked.is_ok_and(|answer| answer.status.success())
}

/// Why this file cannot be run, as far as that shows.
fn fault_of(program: &Path) -> Option<&'static str> {
    match fs::metadata(program) {
        Ok(about) if !about.is_file() => Some("is no file"),
        Ok(about) if about.permissions().mode() & 0o111 == 0 => Some("may be run by nobody"),
        Ok(_) => None,
        Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => None,
        Err(_) => Some("is not there"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::check::State;

    #[test]
    fn the_program_of_a_command_is_its_first_word_where_the_shell_leaves_it() {
        let of = |command| program_of(command).unwrap_or("?");
        assert_eq!(of("/usr/bin/raise wwan0"), "/usr/bin/raise");
        assert_eq!(of("APN=sea PIN= mmcli -m 0"), "mmcli");
        assert_eq!(of("if ping -c1 192.0.2.1; then true; fi"), "if");
        for unclear in ["", "$HOME/raise", "\"/opt/my raise\"", "(cd /opt; ./up)", "up;down"] {
            assert_eq!(of(unclear), "?", "{unclear}");
        }
    }

    #[test]
    fn a_user_who_is_not_there_is_a_failure() {
        assert!(user("[node]", "root").is_none(), "who is there is told by nothing");
        let check = user("[node]", "bp-nobody-x").expect("he is not there");
        assert_eq!(check.state, State::Fail);
        assert!(check.finding.contains("bp-nobody-x"), "{}", check.finding);
    }

    #[test]
    fn a_program_that_is_not_there_or_not_to_be_run_is_a_failure() {
        for good in ["/bin/sh", "sh", "true", "if", "bin/up"] {
            assert_eq!(command("shore", "raise", good).state, State::Ok, "{good}");
        }
        for (bad, why) in [
            ("/nonexistent/raze", "is not there"),
            ("/etc/passwd", "may be run by nobody"),
            ("/etc", "is no file"),
            ("no-such-tool", "no program that the shell finds"),
        ] {
            let check = command("shore", "raise", bad);
            assert_eq!(check.state, State::Fail, "{bad}");
            assert!(check.finding.contains(why), "{}", check.finding);
        }
    }
}
