//! `[[peer.carrier]]`: the ways to a peer, where there are several.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::Range;

use dial::tariff::Tariff;
use link::CarrierName;
use units::Duration;

use super::host::HostPort;
use super::line;
use super::link::{self as link_table, LinkDraft, LinkSettings};
use super::problem::Problem;
use super::reader::{At, Section};

/// One way to a peer: where its packets leave this node, and what carries them.
#[derive(Clone, Debug, PartialEq)]
pub struct Carrier {
    /// What people call it.
    pub name: String,
    /// Where the peer is reached by it; `None` at a node that is called.
    pub endpoint: Option<HostPort>,
    /// Which of this node's sockets its packets use.
    pub binding: Binding,
    /// What it can do.
    pub link: LinkSettings,
    /// Of those that are alive the one with the lowest number carries everything.
    pub priority: u8,
    /// How often the peer is asked by it whether it works, while another carries everything;
    /// `None`: as rarely as may be, because it costs.
    pub probe: Option<Duration>,
}

/// What ties a socket to one way out of a host; nothing: the node's own socket.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Binding {
    /// Its packets leave and come by this network interface only.
    pub interface: Option<String>,
    /// They leave from this address of the node.
    pub source: Option<IpAddr>,
}

impl Binding {
    /// Is it the node's own socket?
    pub fn is_own(&self) -> bool {
        *self == Binding::default()
    }
}

/// What may be called so is told to the peer, which may name it in its classes.
pub(super) fn read_name(text: &At<String>, title: &str) -> Result<CarrierName, Problem> {
    let name = CarrierName::new(text.value.as_bytes()).filter(|name| !name.is_empty());
    name.ok_or_else(|| {
        let message = format!("{title}: \"{}\" cannot be a carrier's name", text.value);
        let help = format!("it has 1 to {} bytes, and one line", CarrierName::LONGEST);
        Problem::at(text.span.clone(), message).help(help)
    })
}

/// As many as a session has paths.
const MOST: usize = link::path::MAX_PATHS;
/// Linux: IFNAMSIZ less the zero.
const MAX_INTERFACE: usize = 15;

/// A peer's carriers, and the link of the first if it has one of its own.
#[derive(Default)]
pub(super) struct CarrierDrafts {
    pub carriers: Vec<CarrierDraft>,
    /// The names of those that are modems'.
    pub modems: Vec<String>,
    pub span: Range<usize>,
}

pub(super) struct CarrierDraft {
    name: At<String>,
    endpoint: Option<HostPort>,
    binding: Binding,
    pub link: Option<LinkDraft>,
    priority: Option<u8>,
    probe: Option<Duration>,
    tariff: Option<Tariff>,
    span: Range<usize>,
}

impl CarrierDrafts {
    /// What each costs, where the file says it.
    pub fn tariffs(&self) -> Vec<Option<Tariff>> {
        self.carriers.iter().map(|c| c.tariff.clone()).collect()
    }

    /// Their names.
    pub fn names(&self) -> Vec<&str> {
        self.carriers.iter().map(|c| c.name.value.as_str()).collect()
    }

    /// The link of the first carrier, if it has its own.
    pub fn first_link(&mut self) -> Option<LinkDraft> {
        self.carriers.first_mut()?.link.take()
    }

    /// The peer and its first carrier both say what the link is.
    pub fn refuse_two_links(&self, section: &Section<'_>) {
        let message = format!(
            "the first carrier of {} and the peer itself both have a link",
            section.title()
        );
        let help = "leave the peer's link and profile out: those of its carriers stand for them";
        section.problems().add(Problem::at(self.span.clone(), message).help(help));
    }

    /// With carriers the peer's endpoint stands for theirs, which are addresses.
    pub fn refuse_names(&self, section: &Section<'_>, endpoint: Option<&At<HostPort>>) {
        if let Some(endpoint) = endpoint.filter(|e| e.value.ip().is_none())
            && !self.carriers.is_empty()
        {
            refuse_name(section, &endpoint.span);
        }
    }

    /// What the peer itself says stands for what a carrier leaves out.
    pub fn finish(self, endpoint: Option<&HostPort>, link: &LinkSettings) -> Vec<Carrier> {
        let modems = self.modems;
        let finish = |(at, draft): (usize, CarrierDraft)| Carrier {
            // A modem leads to whoever is called.
            endpoint: match modems.contains(&draft.name.value) {
                true => None,
                false => draft.endpoint.or(endpoint.cloned()),
            },
            name: draft.name.value,
            binding: draft.binding,
            link: draft.link.map_or_else(|| link.clone(), |draft| draft.settings),
            priority: draft.priority.unwrap_or(10 * at as u8),
            probe: draft.probe,
        };
        self.carriers.into_iter().enumerate().map(finish).collect()
    }
}

/// `modems`: the names of the carriers that are modems'.
pub(super) fn read(section: &mut Section<'_>, modems: &[&str]) -> CarrierDrafts {
    let tables = section.tables("carrier");
    let title = section.title().to_owned();
    if tables.len() > MOST {
        let message = format!("{title} has over {MOST} carriers");
        section.problems().add(Problem::at(section.span(), message));
        return CarrierDrafts::default();
    }
    let carriers: Vec<CarrierDraft> =
        tables.into_iter().filter_map(|table| read_one(table, &title)).collect();
    refuse_alike(section, &carriers, modems);
    refuse_places_of_modems(section, &carriers, modems);
    let modems = modems.iter().map(|name| (*name).to_owned()).collect();
    CarrierDrafts { carriers, modems, span: section.span() }
}

fn read_one(mut section: Section<'_>, peer: &str) -> Option<CarrierDraft> {
    let name = section.get::<String>("name");
    if !section.has("name") {
        section.lacks("name", "name it, as in name = \"vsat\": `bentpipe path` asks for it");
    }
    if let Some(name) = &name {
        if let Err(problem) = read_name(name, peer) {
            section.problems().add(problem);
        }
        section.set_title(format!("carrier \"{}\" of {peer}", name.value));
    }
    let endpoint = read_endpoint(&mut section);
    let interface = read_interface(&mut section);
    let source = section.get::<String>("source").and_then(|text| read_source(&section, &text));
    let has_link = section.has("link") || section.has("profile");
    let link = if has_link { Some(link_table::read(&mut section)?) } else { None };
    let priority = section.number("priority", 0..=255, "preference").map(|n| n.value as u8);
    let probe = read_probe(&mut section);
    let tariff = if section.has("tariff") { line::read_tariff(&mut section) } else { None };
    let span = section.span();
    section.finish();
    let binding = Binding { interface, source };
    Some(CarrierDraft { name: name?, endpoint, binding, link, priority, probe, tariff, span })
}

/// Unless the file says otherwise. Where nothing is heard ten times as often is asked.
const PROBE: Duration = Duration::from_secs(5);
const PROBES: std::ops::RangeInclusive<Duration> =
    Duration::from_secs(1)..=Duration::from_secs(3_600);

fn read_probe(section: &mut Section<'_>) -> Option<Duration> {
    if section.is_word("probe", "off") {
        section.get::<String>("probe");
        return None;
    }
    if !section.has("probe") {
        return Some(PROBE);
    }
    let probe = section.get::<Duration>("probe")?;
    if !PROBES.contains(&probe.value) {
        let message = format!("probe in {} is not between 1s and 1h", section.title());
        let help = "leave it out, or write \"off\" where each packet costs money";
        section.problems().add(Problem::at(probe.span, message).help(help));
        return None;
    }
    Some(probe.value)
}

fn read_endpoint(section: &mut Section<'_>) -> Option<HostPort> {
    let endpoint = section.get::<HostPort>("endpoint")?;
    if endpoint.value.ip().is_none() {
        refuse_name(section, &endpoint.span);
        return None;
    }
    Some(endpoint.value)
}

fn refuse_name(section: &Section<'_>, span: &Range<usize>) {
    let message = format!("endpoint in {} is a name, and there are carriers", section.title());
    let help = "write the address: who answers for a name may be behind another carrier";
    section.problems().add(Problem::at(span.clone(), message).help(help));
}

fn read_interface(section: &mut Section<'_>) -> Option<String> {
    let interface = section.get::<String>("interface")?;
    let name = &interface.value;
    let is_odd = name.is_empty() || name.contains(|c: char| c == '/' || c.is_whitespace());
    if name.len() > MAX_INTERFACE || is_odd {
        let message = format!("interface in {}: no interface has such a name", section.title());
        let help = "`ip link` lists them";
        section.problems().add(Problem::at(interface.span, message).help(help));
        return None;
    }
    Some(interface.value)
}

fn read_source(section: &Section<'_>, text: &At<String>) -> Option<IpAddr> {
    let source = text.value.parse().ok();
    if source.is_none() {
        let message = format!("source in {} is no address", section.title());
        let help = "write an address of this node, such as source = \"192.0.2.7\"";
        section.problems().add(Problem::at(text.span.clone(), message).help(help));
    }
    source
}

/// Two with one name cannot be told apart; two with one socket to one place are one way.
fn refuse_alike(section: &Section<'_>, carriers: &[CarrierDraft], modems: &[&str]) {
    let mut names: BTreeMap<&str, &CarrierDraft> = BTreeMap::new();
    let mut ways: Vec<&CarrierDraft> = Vec::new();
    for carrier in carriers {
        if let Some(first) = names.insert(&carrier.name.value, carrier) {
            let message =
                format!("two carriers of {} are named \"{}\"", section.title(), carrier.name.value);
            section.problems().add(
                Problem::at(carrier.name.span.clone(), message)
                    .also(first.name.span.clone(), "first here"),
            );
        }
        if modems.contains(&carrier.name.value.as_str()) {
            continue;
        }
        let same =
            |c: &&&CarrierDraft| c.binding == carrier.binding && c.endpoint == carrier.endpoint;
        if let Some(first) = ways.iter().find(same) {
            let message = format!(
                "carriers \"{}\" and \"{}\" of {} are one way",
                first.name.value,
                carrier.name.value,
                section.title()
            );
            let help = "give each an interface or a source of its own, or another endpoint";
            section.problems().add(
                Problem::at(carrier.span.clone(), message)
                    .also(first.span.clone(), "the first")
                    .help(help),
            );
        }
        ways.push(carrier);
    }
}

/// Packets of a modem's carrier use no socket.
fn refuse_places_of_modems(section: &Section<'_>, carriers: &[CarrierDraft], modems: &[&str]) {
    let placed = |c: &&CarrierDraft| c.endpoint.is_some() || !c.binding.is_own();
    let is_modem = |c: &&CarrierDraft| modems.contains(&c.name.value.as_str());
    for carrier in carriers.iter().filter(is_modem).filter(placed) {
        let name = &carrier.name.value;
        let message =
            format!("carrier \"{name}\" of {} is a modem and has a place", section.title());
        let help =
            "leave out endpoint, interface and source: the modem's numbers say where it leads";
        section.problems().add(Problem::at(carrier.span.clone(), message).help(help));
    }
}

#[cfg(test)]
mod tests {
    use link::session::ClassId;
    use units::BitRate;

    use crate::tests::parse_peer as parse;

    const LINK: &str = "link = { send = \"2Mbit\", receive = \"20Mbit\", delay = \"300ms\" }";

    #[test]
    fn a_carrier_takes_from_its_peer_what_it_leaves_out() {
        let config = parse(&format!(
            "{LINK}\nendpoint = \"203.0.113.7:4500\"\n\
             [[peer.carrier]]\nname = \"vsat\"\ninterface = \"eth1\"\n\
             [[peer.carrier]]\nname = \"lte\"\nsource = \"192.0.2.7\"\nendpoint = \"198.51.100.2:9\"\n\
             link = {{ send = \"5Mbit\", receive = \"6Mbit\", delay = \"40ms\" }}\npriority = 3\n\
             probe = \"off\"\n"
        ))
        .expect("a good file");
        let [vsat, lte] = &config.peers[0].carriers[..] else { panic!("two carriers") };
        assert_eq!((vsat.name.as_str(), vsat.priority), ("vsat", 0));
        assert_eq!(vsat.endpoint, config.peers[0].endpoint);
        assert_eq!(vsat.link, config.peers[0].link);
        assert_eq!(vsat.binding.interface.as_deref(), Some("eth1"));
        assert_eq!((lte.link.send, lte.priority), (BitRate::from_mbps(5), 3));
        assert_eq!(
            lte.endpoint.as_ref().map(ToString::to_string).as_deref(),
            Some("198.51.100.2:9")
        );
        assert!(!lte.binding.is_own());
        assert_eq!([vsat.probe, lte.probe], [Some(super::PROBE), None]);
    }

    #[test]
    fn the_first_carrier_s_link_stands_for_the_peer_s() {
        let carrier = format!("[[peer.carrier]]\nname = \"vsat\"\n{LINK}\n");
        let config = parse(&carrier).expect("a good file");
        assert_eq!(config.peers[0].link.send, BitRate::from_mbps(2));
        let both = parse(&format!("{LINK}\n{carrier}")).expect_err("two links");
        assert!(both.contains("both have a link"), "{both}");
    }

    /// A node that is called has no carriers in its file, and takes their names as they come.
    #[test]
    fn classes_name_their_carriers() {
        let class =
            |carriers: &str| format!("[[peer.class]]\nname = \"bulk\"\ncarriers = {carriers}\n");
        let carrier = |name: &str| {
            format!("[[peer.carrier]]\nname = \"{name}\"\nsource = \"192.0.2.{}\"\n", name.len())
        };
        let two = carrier("lte") + &carrier("vsat");
        for carriers in ["", &two] {
            let text = format!("{LINK}\n{carriers}{}", class("[\"lte\", \"vsat\"]"));
            let config = parse(&text).expect("a good file");
            let bulk = config.peers[0].traffic.classes[ClassId::BULK.index()];
            let names: Vec<_> = bulk.carriers.iter().map(|name| name.as_str().to_owned()).collect();
            assert_eq!(names, ["lte", "vsat"]);
        }
        for (carriers, why) in [
            ("[\"vast\"]", "there is no carrier \"vast\""),
            ("[\"lte\", \"lte\"]", "is there twice"),
            ("\"lte\"", "carriers"),
        ] {
            let fault = parse(&format!("{LINK}\n{two}{}", class(carriers))).expect_err(carriers);
            assert!(fault.contains(why), "{carriers}: {fault}");
        }
        let nine: Vec<String> = (0..9).map(|n| format!("\"{n}\"")).collect();
        let nine = class(&format!("[{}]", nine.join(", ")));
        let fault = parse(&format!("{LINK}\n{nine}")).expect_err("too many");
        assert!(fault.contains("over 8 carriers"), "{fault}");
    }

    #[test]
    fn carriers_that_cannot_be_are_refused() {
        let one = |lines: &str| format!("[[peer.carrier]]\n{lines}\n");
        for (lines, why) in [
            (one("interface = \"eth1\""), "name"),
            (one("name = \"a\"") + &one("name = \"a\"\nsource = \"192.0.2.1\""), "are named \"a\""),
            (one("name = \"a\"") + &one("name = \"b\""), "are one way"),
            (one("name = \"a\"\nendpoint = \"ship.example:4500\""), "is a name"),
            (one("name = \"a\"\nsource = \"eth0\""), "is no address"),
            (one("name = \"a\"\ninterface = \"a b\""), "no interface"),
            (one("name = \"a\"\npriority = 256"), "priority"),
            (one("name = \"a\"\nprobe = \"100ms\""), "between 1s and 1h"),
            (one("name = \"the starboard one\""), "cannot be a carrier's name"),
            ((0..9).map(|n| one(&format!("name = \"{n}\""))).collect(), "over 8 carriers"),
        ] {
            let fault = parse(&format!("{LINK}\n{lines}")).expect_err(&lines);
            assert!(fault.contains(why), "{lines}: {fault}");
        }
        let named = format!("{LINK}\nendpoint = \"ship.example:4500\"\n{}", one("name = \"a\""));
        assert!(parse(&named).expect_err("a name").contains("is a name"));
    }
}
