//! `[[peer.class]]` and `[[peer.rule]]`: what kinds of traffic may have of the link, and
//! which traffic is of which kind.

use std::ops::RangeInclusive;

use link::CarrierNames;
use link::path::MAX_PATHS;
use link::session::{ClassConfig, ClassId};
use relay::{Carry, Rule, Share};
use units::{BitRate, Duration};

use super::carrier;
use super::problem::Problem;
use super::reader::{At, FromValue, Section, Wrong, quoted};
use super::suggest;

/// The classes and rules of a peer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// What each class may have, by [`ClassId`].
    pub classes: Vec<ClassConfig>,
    /// Their names, in the same order.
    pub names: Vec<String>,
    /// Which traffic is in which; the first that matches.
    pub rules: Vec<Rule>,
    /// Classes whose streams are not compressed unless a rule says it.
    pub plain: Vec<ClassId>,
    /// Classes of which headers of unsplit packets are not, unless a rule says it.
    pub plain_headers: Vec<ClassId>,
    /// What streams of a class share chunks with, unless a rule says it.
    pub dedup: Vec<(ClassId, Share)>,
}

impl Traffic {
    /// The class of this name.
    pub fn class_named(&self, name: &str) -> Option<ClassId> {
        let own = self.names.iter().position(|n| n == name);
        let built_in = || BUILT_IN.iter().position(|n| *n == name);
        own.or_else(built_in).map(ClassId::from_index)
    }

    /// The name of a class.
    pub fn class_name(&self, class: ClassId) -> &str {
        let own = self.names.get(class.index()).map(String::as_str);
        own.or(BUILT_IN.get(class.index()).copied()).unwrap_or("unknown")
    }
}

/// What `compress` may say.
pub(super) const COMPRESS: [(&str, bool); 2] = [("auto", true), ("off", false)];
/// What `headers` may say.
pub(super) const HEADERS: [(&str, bool); 2] = [("on", true), ("off", false)];
/// What `dedup` may say.
pub(super) const DEDUP: [(&str, Share); 3] =
    [("host", Share::Host), ("lan", Share::Lan), ("off", Share::Off)];
const BUILT_IN: [&str; ClassId::BUILT_IN] = ["control", "interactive", "normal", "bulk"];
/// More rules than a person writes, and few enough to be asked one by one.
const MAX_RULES: usize = 256;

/// Classes and rules, and the services that rules name. `carriers`: the names of the peer's, where
/// the file has them.
pub(super) fn read(section: &mut Section<'_>, carriers: &[&str]) -> (Traffic, Vec<At<String>>) {
    let mut traffic = Traffic::default();
    for table in section.tables("class") {
        read_class(table, &mut traffic, carriers);
    }
    let shares: u64 = traffic.classes.iter().filter_map(|c| c.share).map(u64::from).sum();
    if shares > 99 {
        let message = format!("the shares of {} are {shares} % together", section.title());
        let help = "leave at least 1 % to classes without a share";
        section.problems().add(Problem::at(section.span(), message).help(help));
    }
    let rules = section.tables("rule");
    if rules.len() > MAX_RULES {
        let message = format!("{} has over {MAX_RULES} rules", section.title());
        section.problems().add(Problem::at(section.span(), message));
        return (traffic, Vec::new());
    }
    let mut services = Vec::new();
    for table in rules {
        traffic.rules.extend(read_rule(table, &traffic.names, &mut services));
    }
    (traffic, services)
}

/// `cap`: at a rate of 0 a class would get its first packet and never another.
fn read_cap(section: &mut Section<'_>) -> Option<At<BitRate>> {
    let cap = section.get::<BitRate>("cap")?;
    if cap.value == BitRate::from_bps(0) {
        let message = format!("cap in {} is a rate of 0", section.title());
        let help = "write a rate of at least 1bit a second, or leave the key out for no cap";
        section.problems().add(Problem::at(cap.span, message).help(help));
        return None;
    }
    Some(cap)
}

fn read_class(mut section: Section<'_>, traffic: &mut Traffic, carriers: &[&str]) {
    let name = section.get::<String>("name");
    if !section.has("name") {
        section.lacks("name", "name it, as in name = \"video\"");
    }
    if let Some(name) = &name {
        section.set_title(format!("class \"{}\"", name.value));
    }
    let share = section.number("share", 1..=99, "percent");
    let cap = read_cap(&mut section);
    let hold = read_hold(&mut section);
    let carriers = read_carriers(&mut section, carriers);
    let compress = section.word("compress", &COMPRESS);
    let headers = section.word("headers", &HEADERS);
    let dedup = section.word("dedup", &DEDUP);
    if traffic.names.is_empty() {
        traffic.names = BUILT_IN.map(str::to_owned).to_vec();
        traffic.classes = vec![ClassConfig::default(); BUILT_IN.len()];
    }
    if let Some(name) = name {
        let written = name.value.clone();
        let config = ClassConfig {
            share: share.as_ref().map(|s| s.value as u8),
            cap: cap.map(|c| c.value),
            hold,
            carriers,
        };
        add_class(&section, name, share, config, traffic);
        let at = traffic.names.iter().position(|n| *n == written);
        if let Some(at) = at.filter(|_| compress.is_some_and(|c| !c.value)) {
            traffic.plain.push(ClassId::from_index(at));
        }
        if let Some(at) = at.filter(|_| headers.is_some_and(|h| !h.value)) {
            traffic.plain_headers.push(ClassId::from_index(at));
        }
        if let (Some(at), Some(dedup)) = (at, dedup) {
            traffic.dedup.push((ClassId::from_index(at), dedup.value));
        }
    }
    section.finish();
}

/// How long packets of a class may wait for others at most: what a voice packet holds.
const MAX_HOLD: Duration = Duration::from_millis(20);

fn read_hold(section: &mut Section<'_>) -> Option<Duration> {
    let hold = section.get::<Duration>("hold")?;
    if hold.value > MAX_HOLD {
        let message = format!("hold in {} is longer than {MAX_HOLD}", section.title());
        let help = "packets that wait longer than a voice packet lasts are heard to wait";
        section.problems().add(Problem::at(hold.span, message).help(help));
        return None;
    }
    Some(hold.value).filter(|hold| *hold > Duration::ZERO)
}

/// The carriers that a class goes by. A node that is called learns their names from its peer.
fn read_carriers(section: &mut Section<'_>, known: &[&str]) -> CarrierNames {
    let wanted = section.list::<String>("carriers").unwrap_or_default();
    let mut names = Vec::new();
    for text in &wanted {
        let problem = match carrier::read_name(text, section.title()) {
            Ok(name) if names.contains(&name) => {
                let message = format!("{}: \"{}\" is there twice", section.title(), text.value);
                Problem::at(text.span.clone(), message)
            }
            Ok(name) if known.is_empty() || known.contains(&text.value.as_str()) => {
                names.push(name);
                continue;
            }
            Ok(_) => {
                let message =
                    format!("{}: there is no carrier \"{}\"", section.title(), text.value);
                let help = match suggest::nearest(&text.value, known) {
                    Some(near) => format!("did you mean \"{near}\"?"),
                    None => format!("the peer has {}", quoted(known)),
                };
                Problem::at(text.span.clone(), message).help(help)
            }
            Err(problem) => problem,
        };
        section.problems().add(problem);
    }
    CarrierNames::new(&names).unwrap_or_else(|| {
        let message = format!("{} has over {MAX_PATHS} carriers", section.title());
        section.problems().add(Problem::at(section.span(), message));
        CarrierNames::default()
    })
}

fn add_class(
    section: &Section<'_>,
    name: At<String>,
    share: Option<At<u64>>,
    config: ClassConfig,
    traffic: &mut Traffic,
) {
    let known = traffic.names.iter().position(|n| *n == name.value);
    let strict = known.is_some_and(|i| ClassId::from_index(i).is_strict());
    if strict && let Some(share) = share {
        let message = format!("{} goes first and has no share", section.title());
        let help = "give it a cap, such as cap = \"200kbit\", where it must leave others something";
        return section.problems().add(Problem::at(share.span, message).help(help));
    }
    match known {
        Some(i) if traffic.classes[i] == ClassConfig::default() => traffic.classes[i] = config,
        Some(_) => {
            let message = format!("{} is there twice", section.title());
            section.problems().add(Problem::at(name.span, message));
        }
        None if traffic.names.len() >= ClassId::MAX => {
            let message = format!("{} is one too many: {} at most", section.title(), ClassId::MAX);
            section.problems().add(Problem::at(name.span, message));
        }
        None => {
            traffic.names.push(name.value);
            traffic.classes.push(config);
        }
    }
}

fn read_rule(
    mut section: Section<'_>,
    names: &[String],
    services: &mut Vec<At<String>>,
) -> Option<Rule> {
    let protocol = section.get::<Protocol>("protocol");
    let ports = section.list::<Ports>("ports").unwrap_or_default();
    let dscp = section.get::<Dscp>("dscp");
    let carry = read_carry(&mut section);
    let compress = section.word("compress", &COMPRESS);
    let headers = section.word("headers", &HEADERS);
    let dedup = section.word("dedup", &DEDUP);
    let via = section.get::<String>("via");
    let class = read_class_name(&mut section, names);
    section.finish();
    let coded = compress.is_some() || headers.is_some() || dedup.is_some();
    if class.is_none() && carry.is_none() && via.is_none() && !coded {
        return None;
    }
    Some(Rule {
        protocol: protocol.map(|p| p.value.0),
        ports: ports.into_iter().map(|p| p.value.0).collect(),
        dscp: dscp.map(|d| d.value.0),
        class,
        carry,
        compress: compress.map(|c| c.value),
        headers: headers.map(|h| h.value),
        dedup: dedup.map(|d| d.value),
        via: via.map(|via| {
            let service = via.value.clone();
            services.push(via);
            service
        }),
    })
}

fn read_carry(section: &mut Section<'_>) -> Option<Carry> {
    if let Some(span) = section.span_of("deadline") {
        let message =
            format!("deadline in {} is gone, with carry = \"unordered\"", section.title());
        section.know(["deadline"].into_iter());
        section.problems().add(Problem::at(span, message).help("leave it out"));
    }
    if section.is_text("carry", "unordered") {
        // Files of earlier versions have it, so it gets a message of its own.
        let message = format!(
            "carry = \"unordered\" in {} is gone: \"ordered\" was faster wherever it was measured",
            section.title()
        );
        let help =
            "write carry = \"ordered\"; or carry = \"plain\" for calls, alone or in a tunnel";
        let span = section.span_of("carry").unwrap_or_else(|| section.span());
        section.know(["carry"].into_iter());
        section.problems().add(Problem::at(span, message).help(help));
        return None;
    }
    let words = [("plain", Carry::Plain), ("ordered", Carry::Ordered)];
    section.word("carry", &words).map(|c| c.value)
}

fn read_class_name(section: &mut Section<'_>, names: &[String]) -> Option<ClassId> {
    let known: Vec<&str> = match names {
        [] => BUILT_IN.to_vec(),
        names => names.iter().map(String::as_str).collect(),
    };
    if !["class", "carry", "compress", "headers", "dedup", "via"].iter().any(|key| section.has(key))
    {
        section.lacks("class", format!("write one of {}", quoted(&known)));
    }
    let At { value: name, span } = section.get::<String>("class")?;
    let found = known.iter().position(|n| *n == name);
    if found.is_none() {
        let problem = Problem::at(span, format!("there is no class \"{name}\""));
        let help = match suggest::nearest(&name, &known) {
            Some(near) => format!("did you mean \"{near}\"?"),
            None => format!("define it with [[peer.class]], or take {}", quoted(&known)),
        };
        section.problems().add(problem.help(help));
    }
    found.map(ClassId::from_index)
}

/// A port or a range of them.
pub(super) struct Ports(pub RangeInclusive<u16>);

impl FromValue for Ports {
    const WANTED: &'static str = "a port such as 5001 or a range such as \"5000-5010\"";
    fn from_text(text: &str) -> Result<Ports, Wrong> {
        let (low, high) = text.split_once('-').unwrap_or((text, text));
        match (low.trim().parse(), high.trim().parse()) {
            (Ok(low), Ok(high)) if low <= high => Ok(Ports(low..=high)),
            _ => Err(Wrong::new(format!("\"{text}\" is not {}", Self::WANTED))),
        }
    }
    fn from_number(number: &str) -> Option<Ports> {
        number.parse().ok().map(|port| Ports(port..=port))
    }
}

/// A protocol's number.
pub(super) struct Protocol(pub u8);

/// IANA's numbers of what crosses links.
const PROTOCOLS: [(&str, u8); 10] = [
    ("icmp", 1),
    ("tcp", 6),
    ("udp", 17),
    ("dccp", 33),
    ("gre", 47),
    ("esp", 50),
    ("ah", 51),
    ("icmpv6", 58),
    ("ospf", 89),
    ("sctp", 132),
];

impl FromValue for Protocol {
    const WANTED: &'static str = "a protocol such as \"udp\", or its number";
    fn from_text(text: &str) -> Result<Protocol, Wrong> {
        let named = PROTOCOLS.iter().find(|(name, _)| *name == text);
        let number = || text.parse().ok().map(Protocol);
        named.map(|(_, n)| Protocol(*n)).or_else(number).ok_or_else(|| {
            let wrong = Wrong::new(format!("\"{text}\" is not {}", Self::WANTED));
            match suggest::nearest(text, &PROTOCOLS.map(|(name, _)| name)) {
                Some(near) => wrong.help(format!("did you mean \"{near}\"?")),
                None => wrong,
            }
        })
    }
    fn from_number(number: &str) -> Option<Protocol> {
        number.parse().ok().map(Protocol)
    }
}

/// A differentiated services code point.
struct Dscp(u8);

impl FromValue for Dscp {
    const WANTED: &'static str = "a code point such as \"ef\", \"af41\" or \"cs1\", or 0 to 63";
    fn from_text(text: &str) -> Result<Dscp, Wrong> {
        dscp(text).map(Dscp).ok_or_else(|| {
            let help = "the TOS byte is four times the code point";
            Wrong::new(format!("\"{text}\" is not {}", Self::WANTED)).help(help)
        })
    }
    fn from_number(number: &str) -> Option<Dscp> {
        dscp(number).map(Dscp)
    }
}

/// RFC 2474 (CS), RFC 2597 (AF), RFC 3246 (EF), RFC 5865 (VA), RFC 8622 (LE).
fn dscp(text: &str) -> Option<u8> {
    if let Ok(n) = text.parse::<u8>() {
        return (n < 64).then_some(n);
    }
    match text.as_bytes() {
        b"ef" => Some(46),
        b"va" => Some(44),
        b"le" => Some(1),
        [b'c', b's', n @ b'0'..=b'7'] => Some((n - b'0') * 8),
        [b'a', b'f', x @ b'1'..=b'4', y @ b'1'..=b'3'] => Some((x - b'0') * 8 + (y - b'0') * 2),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_points_by_name_and_number() {
        let of = |text| Dscp::from_text(text).ok().map(|d| d.0);
        let names = ["ef", "va", "le", "cs0", "cs7", "af11", "af41", "af43", "46"];
        let codes = [46, 44, 1, 0, 56, 10, 34, 38, 46];
        assert_eq!(names.map(of), codes.map(Some));
        assert_eq!(["64", "cs8", "af51", "af14", "EF", ""].map(of), [None; 6]);
    }
}
