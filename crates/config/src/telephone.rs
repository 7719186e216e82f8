//! `[[telephone]]`: modems at which this node answers whichever of its peers calls (R-MODEM).

use std::ops::Range;
use std::path::PathBuf;

use units::Duration;

use super::line::{SerialModem, read_answering};
use super::peer::PeerDraft;
use super::problem::{Problem, Problems};
use super::reader::{At, Section};

/// A telephone line that answers for all peers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Telephone {
    /// What people call it; its device unless given.
    pub name: String,
    /// Its modem, which only answers.
    pub modem: SerialModem,
    /// A call in which nothing comes for so long is hung up.
    pub idle: Duration,
}

/// As many carriers as a node tells apart leave room for sockets beside so many.
const MOST: usize = 128;
/// Longer than callers let their lines idle: the caller pays, and decides.
const IDLE: Duration = Duration::from_secs(120);
/// A handshake at 2,400 bit/s with a second of delay takes 3 s (docs/lines.md), and may have to be
/// repeated.
const LEAST_IDLE: Duration = Duration::from_secs(10);

/// A line and where it stands in the file.
pub(super) struct TelephoneDraft {
    pub telephone: Telephone,
    span: Range<usize>,
}

pub(super) fn read(tables: Vec<Section<'_>>) -> Vec<TelephoneDraft> {
    if let Some(table) = tables.get(MOST) {
        let message = format!("there are over {MOST} telephone lines");
        table.problems().add(Problem::at(table.span(), message));
    }
    tables.into_iter().filter_map(read_one).collect()
}

fn read_one(mut section: Section<'_>) -> Option<TelephoneDraft> {
    let name = section.get::<String>("name");
    if let Some(name) = &name {
        section.set_title(format!("telephone \"{}\"", name.value));
    }
    let modem = read_answering(&mut section);
    let idle = section.get::<Duration>("idle");
    if let Some(At { value, span }) = idle.as_ref().filter(|idle| idle.value < LEAST_IDLE) {
        let message = format!("idle = {value} in {} ends calls that begin", section.title());
        let help = format!("a handshake takes up to {LEAST_IDLE} on a slow line: write no less");
        section.problems().add(Problem::at(span.clone(), message).help(help));
    }
    let idle = idle.map_or(IDLE, |idle| idle.value);
    let span = section.span();
    section.finish();
    let modem = modem.ok()?;
    let name = name.map_or_else(|| modem.device.display().to_string(), |name| name.value);
    Some(TelephoneDraft { telephone: Telephone { name, modem, idle }, span })
}

/// Two lines of peers or of the node with one device, two of the node's with one name, and what
/// only the first of several shards could do.
pub(super) fn check(
    drafts: &[TelephoneDraft],
    peers: &[PeerDraft],
    shards: u32,
    problems: &Problems,
) {
    let mut devices: Vec<(&PathBuf, Range<usize>)> = Vec::new();
    let refuse_device = |device: &PathBuf, span: &Range<usize>, first: &Range<usize>| {
        let message = format!("two lines of the file have the device {}", device.display());
        let help = "a call is one peer's: give each line a device of its own, or let a \
                    [[telephone]] answer for all peers";
        let problem = Problem::at(span.clone(), message).help(help);
        problems.add(problem.also(first.clone(), "first here"));
    };
    for draft in peers {
        let lines = draft.peer.line.iter().flat_map(|line| &line.lines);
        let modems = lines.filter_map(|line| line.modem.as_ref());
        for (modem, span) in modems.zip(&draft.devices) {
            if let Some((_, first)) = devices.iter().find(|(device, _)| **device == modem.device) {
                refuse_device(&modem.device, span, first);
            }
            devices.push((&modem.device, span.clone()));
        }
    }
    for (at, TelephoneDraft { telephone, span }) in drafts.iter().enumerate() {
        let refuse = |message: String, help: &str| {
            problems.add(Problem::at(span.clone(), message).help(help));
        };
        let device = &telephone.modem.device;
        if let Some((_, first)) = devices.iter().find(|(other, _)| *other == device) {
            refuse_device(device, span, first);
        } else if drafts[..at].iter().any(|other| other.telephone.name == telephone.name) {
            let message = format!("two telephone lines are called \"{}\"", telephone.name);
            refuse(message, "rename one");
        }
        devices.push((device, span.clone()));
    }
    if let Some(first) = drafts.first().filter(|_| shards > 1) {
        let message = "telephone lines answer for peers of one shard alone".to_owned();
        let help = "leave `shards` out, or write shards = 1";
        problems.add(Problem::at(first.span.clone(), message).help(help));
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::Config;

    fn parse(node: &str, more: &str) -> Result<Config, String> {
        let key = |n| link::keys::PrivateKey::from_bytes([n; 32]);
        let text = format!(
            "[node]\nprivate_key = \"{}\"\n{node}\n[[peer]]\npublic_key = \"{}\"\n\
             profile = \"mini-m\"\nname = \"ship\"\n{more}",
            key(1).to_base64(),
            key(2).public()
        );
        Config::parse(&text, Path::new("/etc/bentpipe/t.toml"))
            .map_err(|e| format!("{:?}", e.to_report().problems))
    }

    #[test]
    fn telephone_lines_are_read_and_two_with_one_device_are_refused() {
        let two = "[[telephone]]\nname = \"first\"\nserial = \"/dev/ttyS0\"\nspeed = 9600\n\
            hardware_flow = false\ninit = [\"AT&F\"]\nidle = \"30s\"\n\
            [[telephone]]\nserial = \"/dev/ttyS1\"\n";
        let config = parse("", two).unwrap();
        let [first, second] = &config.node.telephones[..] else { panic!("two lines") };
        assert_eq!((first.modem.speed, first.idle), (9_600, Duration::from_secs(30)));
        assert!(!first.modem.hardware_flow && second.modem.hardware_flow);
        assert!(first.modem.answer && first.modem.numbers.is_empty());
        assert_eq!((second.name.as_str(), second.idle), ("/dev/ttyS1", IDLE));
        for (node, more, why) in [
            ("", two.replace("S1", "S0"), "two lines of the file have the device"),
            ("", two.replace("serial = \"/dev/ttyS1\"", ""), "serial"),
            ("", two.replace("serial = \"/dev/ttyS1\"", "speed = 9600"), "serial"),
            ("", format!("{two}name = \"first\"\n"), "two telephone lines are called"),
            ("", format!("{two}numbers = [\"1\"]\n"), "numbers"),
            ("", format!("{two}idle = \"1s\"\n"), "idle = 1s"),
            ("shards = 2", two.to_owned(), "one shard alone"),
            (
                "",
                format!(
                    "[peer.line]\nserial = \"/dev/ttyS1\"\nanswer = true\n[[peer]]\n\
                     public_key = \"{}\"\nprofile = \"mini-m\"\nname = \"boat\"\n\
                     [peer.line]\nserial = \"/dev/ttyS1\"\nnumbers = [\"1\"]\n",
                    link::keys::PrivateKey::from_bytes([3; 32]).public()
                ),
                "two lines of the file have the device",
            ),
            (
                "",
                format!("[peer.line]\nserial = \"/dev/ttyS1\"\nanswer = true\n{two}"),
                "two lines of the file have the device",
            ),
        ] {
            let told = parse(node, &more).err().unwrap_or_default();
            assert!(told.contains(why), "{why}: {told}");
            assert!(!told.contains("there is no key \\\"speed"), "{told}");
        }
    }
}
