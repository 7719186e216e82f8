//! A `[[peer]]` with `mode = "split"`: a link with nothing of ours at its far end.

use std::ops::Range;

use units::IpPrefix;

use super::link::{self as link_table, LinkSettings};
use super::node::{NodeDraft, interface_ok};
use super::peer::{PeerDraft, Source, read_name, read_prefixes};
use super::problem::{Problem, Problems};
use super::reader::{At, Section};

/// A link whose far end has no gateway: TCP is split here alone.
#[derive(Clone, Debug, PartialEq)]
pub struct SplitLink {
    /// What people call it.
    pub name: String,
    /// The interface towards it.
    pub device: String,
    /// What lives beyond it.
    pub routes: Vec<IpPrefix>,
    /// The profile that `link` was built on.
    pub profile: Option<&'static str>,
    /// What the link can do.
    pub link: LinkSettings,
    /// What servers see as the source of hosts' connections.
    pub source: Source,
}

/// Such a link and the places that later checks point to.
pub(super) struct SplitDraft {
    pub link: SplitLink,
    name: Range<usize>,
    device: Range<usize>,
    routes: Vec<At<IpPrefix>>,
}

/// Keys of a peer with a gateway that mean nothing here, and why.
const NOT_HERE: [(&str, &str); 14] = [
    ("public_key", "nobody at the far end has a key"),
    ("preshared_key", "nobody at the far end has a key"),
    ("preshared_key_file", "nobody at the far end has a key"),
    ("endpoint", "there is no gateway to reach; name the interface with device"),
    ("keepalive", "there is no session to keep alive"),
    ("on_failure", "without the gateway hosts' traffic goes as it always did"),
    ("open", "clients are answered when the server has answered"),
    ("fast_ports", "clients are answered when the server has answered"),
    ("quic", "what is not TCP goes as it always did"),
    ("compress", "nobody at the far end would decompress"),
    ("dedup", "nobody at the far end keeps chunks"),
    ("class", "the link's packets are the kernel's own"),
    ("rule", "the link's packets are the kernel's own"),
    ("allow", "what begins at the far end passes as this host's firewall lets it"),
];

pub(super) fn read(mut section: Section<'_>) -> Option<SplitDraft> {
    let _ = section.word("mode", &[("split", ())]);
    let whole = section.span();
    let name = read_name(&mut section);
    if let Some(name) = &name {
        section.set_title(format!("peer \"{}\"", name.value));
    } else if !section.has("name") {
        section.lacks("name", "write name = \"internet\", say");
    }
    for (key, why) in NOT_HERE.iter().filter(|(key, _)| section.has(key)) {
        let span = section.span_of(key).unwrap_or(whole.clone());
        let message = format!("{key} means nothing in {} with mode = \"split\"", section.title());
        section.problems().add(Problem::at(span, message).help(format!("leave it out: {why}")));
    }
    section.know(NOT_HERE.iter().map(|(key, _)| *key));
    let device = section.get::<String>("device");
    let device = device.filter(|device| interface_ok(&section, "device", device));
    if !section.has("device") {
        section.lacks("device", "name the interface towards the link: device = \"wwan0\"");
    }
    let routes = read_prefixes(&mut section, "routes");
    if !section.has("routes") {
        section.lacks("routes", "say what lives beyond it: routes = [\"0.0.0.0/0\", \"::/0\"]");
    }
    let link = link_table::read(&mut section);
    let source = section.word("source", &[("nat", Source::Nat), ("keep", Source::Keep)]);
    section.finish();
    let (name, device, link) = (name?, device?, link?);
    Some(SplitDraft {
        link: SplitLink {
            name: name.value,
            device: device.value,
            routes: routes.iter().map(|prefix| prefix.value).collect(),
            profile: link.profile,
            link: link.settings,
            // Whoever translates addresses for this host goes on doing so.
            source: source.map_or(Source::Keep, |s| s.value),
        },
        name: name.span,
        device: device.span,
        routes,
    })
}

/// Checks such links against each other, the node and the other peers.
pub(super) fn check(
    node: Option<&NodeDraft>,
    links: &[SplitDraft],
    peers: &[PeerDraft],
    problems: &Problems,
) {
    for (at, draft) in links.iter().enumerate() {
        let before = &links[..at];
        let name = &draft.link.name;
        let taken = |other: &str| other == name;
        if before.iter().any(|b| taken(&b.link.name)) || peers.iter().any(|p| taken(&p.peer.name)) {
            let message = format!("two peers are called \"{name}\"");
            let problem = Problem::at(draft.name.clone(), message);
            problems.add(problem.help("give each a name of its own"));
        }
        if let Some(other) = before.iter().find(|b| b.link.device == draft.link.device) {
            let message =
                format!("{} is the device of two peers with mode = \"split\"", draft.link.device);
            let problem = Problem::at(draft.device.clone(), message);
            problems.add(
                problem
                    .also(other.device.clone(), "first here")
                    .help("an interface leads to one link: put all routes into one of them"),
            );
        }
        for route in &draft.routes {
            let twice = |other: &IpPrefix| *other == route.value;
            if peers.iter().any(|p| p.peer.routes.iter().any(twice))
                || before.iter().any(|b| b.link.routes.iter().any(twice))
            {
                let message = format!("{} is a route of two peers", route.value);
                let problem = Problem::at(route.span.clone(), message);
                problems.add(problem.help("a prefix lives behind one link: take it from one"));
            }
        }
        check_node(node, draft, problems);
    }
}

fn check_node(node: Option<&NodeDraft>, draft: &SplitDraft, problems: &Problems) {
    let Some(node) = node.map(|draft| &draft.node) else { return };
    let name = &draft.link.name;
    if node.lan.contains(&draft.link.device) {
        let message =
            format!("{} is a lan interface and the device of peer \"{name}\"", draft.link.device);
        let problem = Problem::at(draft.device.clone(), message);
        problems.add(problem.help("hosts are on lan; device leads to the satellite"));
    }
    if node.lan.is_empty() && !node.own {
        let message =
            format!("peer \"{name}\" splits what comes from the link, and nothing of this side's");
        let problem = Problem::at(draft.device.clone(), message);
        problems.doubt(
            problem.help("add lan = [\"eth1\"] to [node] for hosts, or own = true for this host"),
        );
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::{Config, ConfigError};

    const NODE: &str = "[node]\nprivate_key = \"YD1HnZVjGzWeJiM3DMcUGA3nWrJsJTEUlRMjOSmpYAU=\"\n";
    const GOOD: &str = "[[peer]]\nname = \"sky\"\nmode = \"split\"\ndevice = \"wwan0\"\n\
                        routes = [\"0.0.0.0/0\"]\nprofile = \"t1-geo\"\n";

    fn read(text: &str) -> Result<Config, ConfigError> {
        Config::parse(text, Path::new("/x.toml"))
    }

    /// What is wrong with the peers in `text`: line, message and help.
    fn faults(text: &str) -> Vec<String> {
        let text = format!("{NODE}lan = [\"eth1\"]\n{text}");
        match read(&text) {
            Ok(_) => Vec::new(),
            Err(ConfigError::Content { problems, .. }) => problems
                .iter()
                .map(|p| {
                    format!("{}: {p}; {}", p.line_and_column().0, p.help.as_deref().unwrap_or(""))
                })
                .collect(),
            Err(other) => panic!("{other}"),
        }
    }

    #[test]
    fn a_link_without_a_far_gateway_is_read_and_told_back() {
        let config = read(&format!("{NODE}lan = [\"eth1\"]\n{GOOD}")).expect("it is right");
        assert!(config.peers.is_empty() && config.warnings.is_empty());
        let link = &config.split[0];
        assert_eq!((link.name.as_str(), link.device.as_str()), ("sky", "wwan0"));
        assert_eq!((link.source, link.profile), (Source::Keep, Some("t1-geo")));
        assert!(config.to_string().contains("split: TCP is split here alone"), "{config}");
        let idle = read(&format!("{NODE}{GOOD}")).expect("it can be used");
        assert!(idle.warnings[0].to_string().contains("nothing of this side's"));
        let changed = read(&format!("{NODE}lan = [\"eth1\"]\n{}", GOOD.replace("wwan0", "wwan1")));
        let changes = config.changes(&changed.expect("it is right"));
        assert_eq!(changes.needs_restart, ["peers with mode = \"split\""]);
    }

    #[test]
    fn what_makes_no_link_is_refused_with_its_line_and_the_mend() {
        let without =
            |line: &str| GOOD.lines().filter(|l| !l.starts_with(line)).collect::<Vec<_>>();
        for (text, told) in [
            (without("device").join("\n"), "4: peer \"sky\" has no device; name the interface"),
            (without("routes").join("\n"), "4: peer \"sky\" has no routes; say what lives"),
            (without("profile").join("\n"), "4: peer \"sky\" has no link; add profile"),
            (without("name").join("\n"), "4: [[peer]] has no name; write name"),
            (format!("{GOOD}endpoint = \"192.0.2.1:4500\"\n"), "10: endpoint means nothing"),
            (format!("{GOOD}open = \"fast\"\n"), "leave it out: clients are answered when"),
            (format!("{GOOD}dedpu = \"off\"\n"), "10: there is no key \"dedpu\""),
            (GOOD.replace("wwan0", "eth1"), "7: eth1 is a lan interface and the device"),
            (GOOD.replace("wwan0", "a/b"), "7: device in peer \"sky\""),
            (GOOD.replace("\"split\"", "\"splt\""), "did you mean \"split\"?"),
            (format!("{GOOD}{}", GOOD.replace("sky", "sea")), "is the device of two peers"),
            (format!("{GOOD}{GOOD}"), "two peers are called \"sky\""),
            (format!("{GOOD}{}", GOOD.replace("wwan0", "w1")), "0.0.0.0/0 is a route of two peers"),
        ] {
            let faults = faults(&text);
            assert!(faults.iter().any(|f| f.contains(told)), "{told}: {faults:#?}\n{text}");
        }
    }
}
