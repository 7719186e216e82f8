//! Which traffic raises the line: [`Rules`], and the shipped list of background noise.
//!
//! The first rule that matches decides: the operator's, then the list of noise, then the last
//! one, which matches everything. A rule raises at once, or gathers until an amount, an age or
//! an hour, or never raises; whatever waits crosses when the line is up for another reason.

use std::fmt;
use std::net::IpAddr;
use std::ops::RangeInclusive;

use units::{ByteCount, Duration, IpPrefix};

use crate::books::{Account, Host, Name};
use crate::calendar::Hours;

/// The list of known background noise as it is shipped; operators edit a copy.
pub const KNOWN_NOISE: &str = include_str!("noise.txt");

/// What waits or crosses, as far as rules and books want to know it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Flow {
    /// Who in the LAN.
    pub host: Host,
    /// IP's number: 6 is TCP, 17 UDP.
    pub protocol: u8,
    /// The server's port; 0 where there is none.
    pub port: u16,
    /// Where to; the address, if it is known.
    pub remote: Option<IpAddr>,
    /// The name that was asked for (DNS, TLS, a proxy's client), if it is known.
    pub name: Option<Name>,
    /// The class that the link carries it in.
    pub class: Name,
    /// The service that it belongs to, and what that calls it; empty: none.
    pub service: Name,
}

impl Flow {
    /// Whom it is booked on.
    pub fn account(&self) -> Account {
        Account { host: self.host, class: self.class.clone(), service: self.service.clone() }
    }
}

impl fmt::Display for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.protocol {
            6 => write!(f, "tcp")?,
            17 => write!(f, "udp")?,
            n => write!(f, "protocol {n}")?,
        }
        if self.port != 0 {
            write!(f, " port {}", self.port)?;
        }
        match (&self.name, self.remote) {
            (Some(name), _) => write!(f, " to {name}")?,
            (None, Some(addr)) => write!(f, " to {addr}")?,
            (None, None) => {}
        }
        write!(f, " of {}", self.host)?;
        match self.service.is_empty() {
            true => Ok(()),
            false => write!(f, " (service {})", self.service),
        }
    }
}

/// What a rule is for: all that is said must hold, and nothing said is everything.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Match {
    /// Classes, one of which it is in.
    pub classes: Vec<Name>,
    /// Services, one of which it belongs to.
    pub services: Vec<Name>,
    /// IP's protocol number.
    pub protocol: Option<u8>,
    /// The server's port lies in one of these.
    pub ports: Vec<RangeInclusive<u16>>,
    /// Hosts in the LAN.
    pub hosts: Vec<IpPrefix>,
    /// Destinations.
    pub remotes: Vec<IpPrefix>,
    /// Names: `example.org` itself, or `*.example.org` for all below it.
    pub names: Vec<Name>,
}

impl Match {
    fn takes(&self, flow: &Flow) -> bool {
        fn one<T>(list: &[T], is: impl Fn(&T) -> bool) -> bool {
            list.is_empty() || list.iter().any(is)
        }
        let host = match flow.host {
            Host::Addr(addr) => Some(addr),
            Host::Node | Host::Others => None,
        };
        let holds = |p: &IpPrefix, addr: Option<IpAddr>| addr.is_some_and(|a| p.contains(a));
        one(&self.classes, |c| *c == flow.class)
            && one(&self.services, |s| *s == flow.service)
            && self.protocol.is_none_or(|p| p == flow.protocol)
            && one(&self.ports, |r| r.contains(&flow.port))
            && one(&self.hosts, |p| holds(p, host))
            && one(&self.remotes, |p| holds(p, flow.remote))
            && one(&self.names, |n| flow.name.as_deref().is_some_and(|name| is_named(name, n)))
    }
}

/// Names know no case (RFC 4343).
fn is_named(name: &str, pattern: &str) -> bool {
    match pattern.strip_prefix("*.") {
        None => name.eq_ignore_ascii_case(pattern),
        Some(parent) => {
            let below = name.len().checked_sub(parent.len()).filter(|cut| *cut > 1);
            let ends = |cut: usize| {
                name.is_char_boundary(cut)
                    && name[..cut].ends_with('.')
                    && name[cut..].eq_ignore_ascii_case(parent)
            };
            below.is_some_and(ends)
        }
    }
}

/// What a rule does about the line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Raise it at once: somebody waits.
    Raise,
    /// Gather, and raise it when one of these is reached.
    Batch {
        /// So much waits under this rule.
        amount: Option<ByteCount>,
        /// The oldest has waited for so long.
        age: Option<Duration>,
        /// It is one of these hours.
        hours: Option<Hours>,
    },
    /// Never raise it and never hold it.
    Never,
}

impl Action {
    /// Who waits for the line with more of it is remembered first.
    pub fn urgency(&self) -> u8 {
        match self {
            Action::Never => 0,
            Action::Batch { .. } => 1,
            Action::Raise => 2,
        }
    }

    /// How many bytes wait decides when the line is raised.
    pub fn counts_bytes(&self) -> bool {
        matches!(self, Action::Batch { amount: Some(_), .. })
    }
}

/// A rule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rule {
    /// What `why` calls it.
    pub name: Name,
    /// What it is for.
    pub when: Match,
    /// What it does.
    pub then: Action,
    /// Quiet hours do not hold it back.
    pub through_quiet: bool,
    /// While the line is down hosts are told at once that the net is unreachable, and do not wait.
    pub fail_fast: bool,
    /// The carriers that it may use, the best first; none: any, in their own order.
    pub carriers: Vec<Name>,
    /// Use all of its carriers that are up, not only the best.
    pub all: bool,
}

impl Rule {
    /// A rule for `when` that does `then`, on any carrier.
    pub fn new(name: &str, when: Match, then: Action) -> Rule {
        Rule {
            name: name.into(),
            when,
            then,
            through_quiet: false,
            fail_fast: false,
            carriers: Vec::new(),
            all: false,
        }
    }

    /// What is wrong with it, and the mend.
    fn fault(&self) -> Option<String> {
        let Action::Batch { amount, age, hours } = &self.then else { return None };
        let name = &self.name;
        if amount.is_none() && age.is_none() && hours.is_none() {
            return Some(format!(
                "rule \"{name}\" gathers and never ends; give it an amount, an age or hours"
            ));
        }
        // Without an age, what stays below the amount would wait for ever.
        if age.is_none() && hours.is_none() {
            return Some(format!(
                "rule \"{name}\" waits for ever for what stays below its amount; give it an age or hours too"
            ));
        }
        if hours.as_ref().is_some_and(|h| h.0.is_empty()) {
            return Some(format!("rule \"{name}\" has hours that never come; name some, or none"));
        }
        None
    }
}

/// All rules, in their order; the last matches everything.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rules(Vec<Rule>);

impl Rules {
    /// The operator's rules, the list of noise after them, and `otherwise` for all the rest.
    pub fn new(own: Vec<Rule>, noise: Vec<Rule>, otherwise: Action) -> Result<Rules, String> {
        let mut rules = own;
        rules.extend(noise);
        rules.push(Rule::new("everything else", Match::default(), otherwise));
        match rules.iter().find_map(Rule::fault) {
            Some(fault) => Err(fault),
            None => Ok(Rules(rules)),
        }
    }

    /// Which rule is for `flow`.
    pub(crate) fn find(&self, flow: &Flow) -> usize {
        self.0.iter().position(|r| r.when.takes(flow)).unwrap_or(self.0.len() - 1)
    }

    /// The rule that is for `flow`.
    pub fn rule_for(&self, flow: &Flow) -> &Rule {
        &self.0[self.find(flow)]
    }

    pub(crate) fn get(&self, at: usize) -> &Rule {
        &self.0[at]
    }
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Rule> {
        self.0.iter()
    }
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

/// Why a list of noise cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct NoiseError {
    /// The line, from 1.
    pub line: usize,
    /// What is wrong there, and the mend.
    pub what: String,
}

/// Reads a list of noise: `PROTOCOL PORTS DESTINATION REASON…` in each line that is not empty and
/// does not begin with `#`. Each becomes a rule that never raises the line.
pub fn read_noise(text: &str) -> Result<Vec<Rule>, NoiseError> {
    let numbered = text.lines().enumerate().map(|(n, line)| (n + 1, line.trim()));
    let lines = numbered.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    lines.map(|(line, text)| noise_rule(text).map_err(|what| NoiseError { line, what })).collect()
}

fn noise_rule(text: &str) -> Result<Rule, String> {
    let mut words = text.split_whitespace();
    let mut word = |what: &str| {
        words.next().ok_or_else(|| {
            format!("the field {what} is missing: a line is PROTOCOL PORTS DESTINATION REASON")
        })
    };
    let protocol = match word("PROTOCOL")? {
        "any" => None,
        "icmp" => Some(1),
        "igmp" => Some(2),
        "tcp" => Some(6),
        "udp" => Some(17),
        other => Some(other.parse().map_err(|_| {
            format!("\"{other}\" is no protocol; write tcp, udp, icmp, igmp, a number, or any")
        })?),
    };
    let ports = word("PORTS")?;
    let ports = match ports {
        "any" => Vec::new(),
        list => list.split(',').map(port_range).collect::<Result<_, _>>()?,
    };
    let to = word("DESTINATION")?;
    let (mut remotes, mut names) = (Vec::new(), Vec::new());
    for one in to.split(',').filter(|_| to != "any") {
        match one.parse::<IpPrefix>() {
            Ok(prefix) => remotes.push(prefix),
            Err(_) if one.contains('.') && !one.contains('/') => names.push(one.into()),
            Err(_) => {
                return Err(format!(
                    "\"{one}\" is no destination; write any, a prefix such as \"224.0.0.0/4\", or a name such as \"*.example.org\""
                ));
            }
        }
    }
    let reason: Vec<&str> = words.collect();
    if reason.is_empty() {
        return Err("the reason is missing; say after the destination what makes this traffic and why it can wait".into());
    }
    let when = Match { protocol, ports, remotes, names, ..Match::default() };
    Ok(Rule::new(&format!("noise: {}", reason.join(" ")), when, Action::Never))
}

fn port_range(text: &str) -> Result<RangeInclusive<u16>, String> {
    let bad = || format!("\"{text}\" is no port; write 123, 137-139, a list of such, or any");
    let (low, high) = text.split_once('-').unwrap_or((text, text));
    let (low, high): (u16, u16) =
        (low.parse().map_err(|_| bad())?, high.parse().map_err(|_| bad())?);
    if low > high { Err(bad()) } else { Ok(low..=high) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(protocol: u8, port: u16, to: &str) -> Flow {
        let remote = to.parse().ok();
        let name = if remote.is_none() && !to.is_empty() { Some(to.into()) } else { None };
        Flow {
            host: "10.2.0.7".parse().unwrap(),
            protocol,
            port,
            remote,
            name,
            class: "bulk".into(),
            service: "".into(),
        }
    }
    fn shipped() -> Rules {
        Rules::new(Vec::new(), read_noise(KNOWN_NOISE).expect("the list"), Action::Raise).unwrap()
    }

    #[test]
    fn the_shipped_list_knows_noise_from_users() {
        let rules = shipped();
        for noise in [
            flow(17, 123, "192.0.2.1"),
            flow(17, 5353, "224.0.0.251"),
            flow(17, 1900, "239.255.255.250"),
            flow(17, 137, "10.2.0.255"),
            flow(17, 5355, "ff02::1:3"),
            flow(2, 0, "224.0.0.22"),
            flow(6, 443, "v10.events.data.microsoft.com"),
            flow(6, 80, "connectivity-check.ubuntu.com"),
        ] {
            let rule = rules.rule_for(&noise);
            assert_eq!(rule.then, Action::Never, "{noise}: {}", rule.name);
            assert!(rule.name.starts_with("noise: ") && rule.name.len() > 30, "{}", rule.name);
        }
        for wanted in [
            flow(6, 22, "192.0.2.1"),
            flow(6, 443, "www.example.org"),
            flow(6, 443, "microsoft.com.example.org"),
            flow(17, 53, "192.0.2.1"),
            flow(17, 443, "192.0.2.1"),
            flow(6, 25, "192.0.2.1"),
            flow(50, 0, "192.0.2.1"),
        ] {
            assert_eq!(rules.rule_for(&wanted).then, Action::Raise, "{wanted}");
        }
    }

    #[test]
    fn the_operators_rules_come_before_the_list() {
        let when = Match { ports: vec![123..=123], ..Match::default() };
        let own = vec![Rule::new("clocks", when, Action::Raise)];
        let rules = Rules::new(own, read_noise(KNOWN_NOISE).unwrap(), Action::Never).unwrap();
        assert_eq!(&*rules.rule_for(&flow(17, 123, "192.0.2.1")).name, "clocks");
        assert_eq!(rules.rule_for(&flow(6, 22, "192.0.2.1")).then, Action::Never);
    }

    #[test]
    fn everything_that_a_rule_says_must_hold() {
        let when = Match {
            classes: vec!["bulk".into()],
            protocol: Some(6),
            hosts: vec!["10.2.0.0/24".parse().unwrap()],
            remotes: vec!["192.0.2.0/24".parse().unwrap()],
            ports: vec![20..=21, 22..=22],
            ..Match::default()
        };
        let good = flow(6, 22, "192.0.2.1");
        assert!(when.takes(&good));
        for bad in [
            Flow { class: "interactive".into(), ..good.clone() },
            Flow { protocol: 17, ..good.clone() },
            Flow { port: 23, ..good.clone() },
            Flow { host: Host::Node, ..good.clone() },
            Flow { host: "10.3.0.7".parse().unwrap(), ..good.clone() },
            Flow { remote: None, ..good.clone() },
        ] {
            assert!(!when.takes(&bad), "{bad}");
        }
        assert!(is_named("A.Example.ORG", "*.example.org"));
        assert!(
            !is_named("example.org", "*.example.org") && is_named("example.org", "Example.org")
        );
        assert!(!is_named("badexample.org", "*.example.org") && !is_named("é.org", "*.xample.org"));
    }

    #[test]
    fn rules_that_never_end_are_refused_with_the_mend() {
        let says = |amount, age, hours| {
            let batch = Action::Batch { amount, age, hours };
            let own = vec![Rule::new("mail", Match::default(), batch)];
            Rules::new(own, Vec::new(), Action::Raise).expect_err("wrong")
        };
        assert!(says(None, None, None).contains("\"mail\" gathers and never ends; give it"));
        assert!(says(Some(ByteCount(1)), None, None).contains("give it an age or hours too"));
        assert!(says(None, None, Some(Hours::default())).contains("hours that never come"));
    }

    #[test]
    fn a_wrong_line_of_the_list_is_told_with_its_number_and_the_mend() {
        let says =
            |line: &str| read_noise(&format!("# a list\n\n{line}\n")).expect_err(line).to_string();
        assert_eq!(
            says("tcq 1 any x"),
            "line 3: \"tcq\" is no protocol; write tcp, udp, icmp, igmp, a number, or any"
        );
        assert!(says("udp 99999 any x").contains("\"99999\" is no port"));
        assert!(says("udp 9-3 any x").contains("\"9-3\" is no port"));
        assert!(says("udp 9 10.0.0.1/8 x").contains("\"10.0.0.1/8\" is no destination"));
        assert!(says("udp 9 host x").contains("\"host\" is no destination"));
        assert!(says("udp 9 any").contains("the reason is missing"));
        assert!(says("udp").contains("the field PORTS is missing"));
    }
}
