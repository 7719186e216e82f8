//! `[service.NAME]`: programs that the gateway starts, to which rules give connections.

use std::path::{Path, PathBuf};

use link::wire::{MAX_SERVICE, is_service_name};
use units::ByteCount;

use super::problem::Problem;
use super::reader::Section;

/// A service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// Its name, which its counterpart at the peers has, too.
    pub name: String,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// Whom it runs as, where the gateway is started by root. Default: a number of its own.
    pub user: Option<String>,
    /// Its address space. Default 512 MiB.
    pub memory: ByteCount,
    /// Descriptors that it may have open. Default 8,192.
    pub descriptors: u64,
    /// Where it starts, and may write. Default: nowhere.
    pub directory: Option<PathBuf>,
    /// What it may read beside the system's programs and libraries, and its own program.
    pub reads: Vec<PathBuf>,
}

/// More than there are accelerators.
const MAX_SERVICES: usize = 16;
const DEFAULT_MEMORY: ByteCount = ByteCount(512 << 20);
/// A program that is linked against the C library does not start in less.
const MIN_MEMORY: ByteCount = ByteCount(16 << 20);
const DEFAULT_DESCRIPTORS: u64 = 8192;

pub(super) fn read(tables: Vec<(String, Section<'_>)>, dir: &Path) -> Vec<Service> {
    let mut services = Vec::new();
    for (name, mut section) in tables {
        if !is_service_name(&name) {
            let message = format!(
                "\"{name}\" is no name of a service: 1 to {MAX_SERVICE} of a to z, 0 to 9 and \"-\""
            );
            section.problems().add(Problem::at(section.span(), message));
        }
        if services.len() == MAX_SERVICES {
            let message = format!("there are over {MAX_SERVICES} services");
            section.problems().add(Problem::at(section.span(), message));
        }
        section.set_title(format!("[service.{name}]"));
        let service = read_one(&mut section, name, dir);
        section.finish();
        services.push(service);
    }
    services
}

fn read_one(section: &mut Section<'_>, name: String, dir: &Path) -> Service {
    let command = section.list::<String>("command");
    if command.as_ref().is_none_or(Vec::is_empty) {
        section.lacks("command", "name the program: command = [\"/usr/bin/bentpipe-web\"]");
    }
    let mut command: Vec<String> =
        command.unwrap_or_default().into_iter().map(|word| word.value).collect();
    // Programs are where the file says, and not where some variable does.
    if let Some(program) = command.first_mut() {
        *program = dir.join(&*program).display().to_string();
    }
    let user = section.get::<String>("user");
    if let Some(user) = user.as_ref().filter(|user| ["root", "0"].contains(&user.value.as_str())) {
        let message = format!("user in {} is root, from whom services are kept", section.title());
        let help = "leave it out: the service then has a number of its own";
        section.problems().add(Problem::at(user.span.clone(), message).help(help));
    }
    let memory = section.get::<ByteCount>("memory");
    if let Some(memory) = memory.as_ref().filter(|memory| memory.value < MIN_MEMORY) {
        let message = format!("memory in {} is below 16MiB", section.title());
        section.problems().add(Problem::at(memory.span.clone(), message));
    }
    let descriptors = section.number("descriptors", 16..=1 << 20, "descriptors");
    let directory = section.get::<String>("directory");
    let reads = section.list::<String>("reads").unwrap_or_default();
    Service {
        name,
        command,
        user: user.map(|user| user.value),
        memory: memory.map_or(DEFAULT_MEMORY, |memory| memory.value),
        descriptors: descriptors.map_or(DEFAULT_DESCRIPTORS, |n| n.value),
        directory: directory.map(|path| dir.join(path.value)),
        reads: reads.into_iter().map(|path| dir.join(path.value)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;

    fn parse(more: &str) -> Result<Config, String> {
        let key = |n| link::keys::PrivateKey::from_bytes([n; 32]);
        let text = format!(
            "[node]\nprivate_key = \"{}\"\n{more}\n[[peer]]\npublic_key = \"{}\"\n\
             profile = \"leo\"\nend = \"hub\"\nname = \"far\"\n[[peer.rule]]\nports = [80]\nvia = \"web\"\n",
            key(1).to_base64(),
            key(2).public()
        );
        Config::parse(&text, Path::new("/etc/bentpipe/t.toml"))
            .map_err(|e| format!("{:?}", e.to_report().problems))
    }

    #[test]
    fn a_service_is_read_and_rules_name_it() {
        let config = parse(
            "[service.web]\ncommand = [\"web\", \"-v\"]\nmemory = \"64MiB\"\nreads = [\"/srv\"]\n\
             [service.mail]\ncommand = [\"/opt/mail\"]\ndirectory = \"state\"\nuser = \"mail\"\n",
        )
        .unwrap();
        let [mail, web] = &config.node.services[..] else { panic!("{:?}", config.node.services) };
        assert_eq!(web.command, ["/etc/bentpipe/web", "-v"]);
        assert_eq!((web.memory, web.descriptors), (ByteCount(64 << 20), 8192));
        assert_eq!((mail.name.as_str(), mail.user.as_deref()), ("mail", Some("mail")));
        assert_eq!(mail.directory.as_deref(), Some(Path::new("/etc/bentpipe/state")));
        assert_eq!(config.peers[0].traffic.rules[0].via.as_deref(), Some("web"));
    }

    #[test]
    fn what_is_wrong_with_a_service_is_said() {
        for (text, said) in [
            ("", "which the file does not have"),
            ("[service.web]\n", "has no command"),
            ("[service.web]\ncommand = []\n", "has no command"),
            ("[service.web]\ncommand = [\"a\"]\nuser = \"root\"\n", "is root"),
            ("[service.web]\ncommand = [\"a\"]\nmemory = \"1MiB\"\n", "below 16MiB"),
            ("[service.web]\ncommand = [\"a\"]\ncomand = 1\n", "no key"),
            ("[service.Web]\ncommand = [\"a\"]\n", "no name of a service"),
            ("[[service]]\ncommand = [\"a\"]\n", "it is written as one table for each"),
        ] {
            let why = parse(text).expect_err(text);
            assert!(why.contains(said), "{text}: {why}");
        }
    }

    #[test]
    fn an_unknown_service_is_marked_where_the_rule_names_it() {
        let why = parse("").expect_err("there is no service");
        assert!(why.contains("line: Some(11)"), "{why}");
    }
}
