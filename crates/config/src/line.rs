//! `[peer.line]`: a link that costs money or has to be raised. When it is up, what raises it, how
//! it is raised and dropped, and its prices (R-DDR, R-COST).

use std::ops::Range;

use dial::calendar::{Hours, Window};
use dial::manager::{Budget, CarrierConfig, ManagerConfig};
use dial::money::{Currency, Money};
use dial::rules::{Action, KNOWN_NOISE, Match, Rule, Rules, read_noise};
use dial::tariff::{Rates, Tariff};
use units::{ByteCount, Duration, IpPrefix};

use super::link::LinkSettings;
use super::problem::Problem;
use super::reader::{FromValue, Section, Wrong};
use super::traffic::{Ports, Protocol};

mod serial;

pub use serial::SerialModem;

/// What the link manager of a peer is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// The command that raises the carrier, and ends well when it is there. `None`: it is there.
    pub raise: Option<String>,
    /// The command that drops it.
    pub drop: Option<String>,
    /// The modem that raises and drops it, in place of commands.
    pub modem: Option<SerialModem>,
    /// The manager's own settings.
    pub manager: ManagerConfig,
}

/// What the link's own packets are booked as: they raise and hold nothing.
pub const LINK_CLASS: &str = "the link itself";

/// Read before the peer's name and rate are known.
pub(super) struct LineDraft {
    raise: Option<String>,
    drop: Option<String>,
    modem: Option<SerialModem>,
    idle: Option<Duration>,
    setup: Option<Duration>,
    calls: [Option<Duration>; 2],
    quiet: Vec<Window>,
    tariff: Tariff,
    budget: Option<Money>,
    rules: Rules,
    span: Range<usize>,
}

/// More rules than a person writes.
const MAX_RULES: usize = 256;

pub(super) fn read(section: &mut Section<'_>) -> Option<LineDraft> {
    let title = format!("the line of {}", section.title());
    let mut section = section.table("line", title)?;
    let [raise, drop] = ["raise", "drop"].map(|key| section.get::<String>(key).map(|c| c.value));
    let modem = serial::read(&mut section);
    let [idle, setup, min_call, max_call] = ["idle", "setup", "min_call", "max_call"]
        .map(|key| section.get::<Duration>(key).map(|d| d.value));
    let quiet = section.list::<Window>("quiet").unwrap_or_default();
    let tariff = read_tariff(&mut section);
    let budget = section.get::<Money>("budget").map(|b| b.value);
    let rules = read_rules(&mut section);
    let span = section.span();
    section.finish();
    Some(LineDraft {
        raise,
        drop,
        modem: modem.ok()?,
        idle,
        setup,
        calls: [min_call, max_call],
        quiet: quiet.into_iter().map(|w| w.value).collect(),
        tariff: tariff?,
        budget,
        rules: rules?,
        span,
    })
}

impl LineDraft {
    /// With what the rest of the peer's table says.
    pub fn finish(
        self,
        section: &Section<'_>,
        peer: &str,
        link: &LinkSettings,
        carriers: usize,
    ) -> Option<Line> {
        let wrong = |message: String, help: &str| {
            section.problems().add(Problem::at(self.span.clone(), message).help(help));
            None
        };
        if carriers > 0 {
            let message = format!("peer \"{peer}\" has carriers and a line");
            return wrong(message, "leave one out: a line is managed where there is one carrier");
        }
        if self.modem.is_some() && usize::from(link.mtu) > dial::frame::MAX_PACKET {
            let most = dial::frame::MAX_PACKET;
            let message = format!("peer \"{peer}\" has a modem and an MTU above {most} bytes");
            return wrong(message, "lower `mtu`: packets take their time on such a line");
        }
        let mut carrier = CarrierConfig::new("line", true, self.tariff);
        carrier.rate = link.send;
        carrier.dial_timeout = self.setup.unwrap_or(carrier.dial_timeout);
        carrier.min_call = self.calls[0].unwrap_or(carrier.min_call);
        carrier.max_call = self.calls[1];
        let mut manager = ManagerConfig::new(peer, vec![carrier], self.rules);
        if let Some(idle) = self.idle {
            manager.idle = idle;
            manager.idle_at_step = manager.idle_at_step.min(idle);
        }
        manager.quiet = Hours(self.quiet);
        manager.budget = self.budget.map(|stop| Budget { stop, warn_percent: 80 });
        // The manager's own checks, once, where the file can be blamed.
        match dial::manager::Manager::new(manager.clone(), units::Instant::ZERO, Default::default())
        {
            Ok(_) => {
                let (raise, drop, modem) = (self.raise, self.drop, self.modem);
                Some(Line { raise, drop, modem, manager })
            }
            Err(why) => {
                let (message, help) = why.split_once("; ").unwrap_or((&why, "change it"));
                section
                    .problems()
                    .add(Problem::at(self.span, message.to_owned()).help(help.to_owned()));
                None
            }
        }
    }
}

/// `tariff = { currency = "USD", per_minute = "2.40", increment = "6s" }`; without one all is free.
fn read_tariff(section: &mut Section<'_>) -> Option<Tariff> {
    let title = format!("the tariff of {}", section.title());
    let Some(mut table) = section.table("tariff", title) else { return Some(Tariff::free()) };
    let currency = table.get::<Currency>("currency");
    if !table.has("currency") {
        table.lacks("currency", "say what prices are in, as in currency = \"USD\"");
    }
    let money = |table: &mut Section<'_>, key| table.get::<Money>(key).map(|m| m.value);
    let per_call = money(&mut table, "per_call").unwrap_or_default();
    let per_minute = money(&mut table, "per_minute");
    let per_megabyte = money(&mut table, "per_megabyte");
    let time = |table: &mut Section<'_>, key| table.get::<Duration>(key).map(|d| d.value);
    let increment = time(&mut table, "increment").unwrap_or(Duration::from_secs(60));
    let minimum = time(&mut table, "minimum").unwrap_or(Duration::ZERO);
    let block = table.get::<ByteCount>("block").map_or(ByteCount(1), |b| b.value);
    let (span, problems) = (table.span(), table.problems());
    table.finish();
    let mut rates = match per_minute {
        Some(price) => Rates::per_minute(price, increment, minimum),
        None => Rates::default(),
    };
    (rates.per_call, rates.per_megabyte, rates.block) =
        (per_call, per_megabyte.unwrap_or_default(), block);
    match Tariff::new(currency?.value, vec![(String::new(), rates)]) {
        Ok(tariff) => Some(tariff),
        Err(wrong) => {
            problems.add(Problem::at(span, wrong.what).help(wrong.mend));
            None
        }
    }
}

fn read_rules(section: &mut Section<'_>) -> Option<Rules> {
    let words = [("raise", Action::Raise), ("never", Action::Never)].map(|(w, _)| w);
    let otherwise = section.word("otherwise", &words.map(|w| (w, w)));
    let noise = section.word("noise", &[("never", true), ("raise", false)]);
    let tables = section.tables("demand");
    if tables.len() > MAX_RULES {
        let message = format!("{} has over {MAX_RULES} rules", section.title());
        section.problems().add(Problem::at(section.span(), message));
        return None;
    }
    let when = Match { classes: vec![LINK_CLASS.into()], ..Match::default() };
    let mut rules = vec![Rule::new(LINK_CLASS, when, Action::Never)];
    for (at, table) in tables.into_iter().enumerate() {
        rules.push(read_rule(table, at + 1)?);
    }
    let known = match noise.is_none_or(|n| n.value) {
        true => read_noise(KNOWN_NOISE).expect("the shipped list, which a test reads"),
        false => Vec::new(),
    };
    let otherwise = match otherwise.is_some_and(|w| w.value == "never") {
        true => Action::Never,
        false => Action::Raise,
    };
    match Rules::new(rules, known, otherwise) {
        Ok(rules) => Some(rules),
        Err(why) => {
            let (message, help) = why.split_once("; ").unwrap_or((&why, "change it"));
            let problem = Problem::at(section.span(), message.to_owned());
            section.problems().add(problem.help(help.to_owned()));
            None
        }
    }
}

fn read_rule(mut section: Section<'_>, number: usize) -> Option<Rule> {
    let name = section.get::<String>("name").map_or_else(|| number.to_string(), |n| n.value);
    section.set_title(format!("rule \"{name}\" of a line"));
    let texts = |section: &mut Section<'_>, key| {
        let list = section.list::<String>(key).unwrap_or_default();
        list.into_iter().map(|t| t.value.into()).collect::<Vec<dial::books::Name>>()
    };
    let prefixes = |section: &mut Section<'_>, key| {
        let list = section.list::<IpPrefix>(key).unwrap_or_default();
        list.into_iter().map(|p| p.value).collect::<Vec<_>>()
    };
    let when = Match {
        classes: texts(&mut section, "classes"),
        services: texts(&mut section, "services"),
        protocol: section.get::<Protocol>("protocol").map(|p| p.value.0),
        ports: section
            .list::<Ports>("ports")
            .unwrap_or_default()
            .into_iter()
            .map(|p| p.value.0)
            .collect(),
        hosts: prefixes(&mut section, "hosts"),
        remotes: prefixes(&mut section, "to"),
        names: texts(&mut section, "names"),
    };
    let words = ["raise", "batch", "never"];
    let then = section.word("then", &words.map(|w| (w, w)));
    if !section.has("then") {
        section.lacks("then", "say what it does: then = \"raise\", \"batch\" or \"never\"");
    }
    let amount = section.get::<ByteCount>("amount").map(|a| a.value);
    let age = section.get::<Duration>("age").map(|a| a.value);
    let hours = section.list::<Window>("hours");
    let hours = hours.map(|list| Hours(list.into_iter().map(|w| w.value).collect()));
    let through_quiet = section.get::<bool>("through_quiet").is_some_and(|b| b.value);
    section.finish();
    let then = match then?.value {
        "raise" => Action::Raise,
        "never" => Action::Never,
        _ => Action::Batch { amount, age, hours },
    };
    Some(Rule { through_quiet, ..Rule::new(&name, when, then) })
}

impl FromValue for Money {
    const WANTED: &'static str = "an amount in quotes such as \"2.40\"";
    fn from_text(text: &str) -> Result<Money, Wrong> {
        text.parse::<Money>().map_err(|e| Wrong::new(e.to_string()))
    }
}

impl FromValue for Currency {
    const WANTED: &'static str = "a currency's three letters such as \"USD\" (ISO 4217)";
    fn from_text(text: &str) -> Result<Currency, Wrong> {
        text.parse::<Currency>().map_err(|e| Wrong::new(e.to_string()))
    }
}

impl FromValue for Window {
    const WANTED: &'static str = "days and hours such as \"mon-fri 22:00-06:00\"";
    fn from_text(text: &str) -> Result<Window, Wrong> {
        text.parse::<Window>().map_err(|e| Wrong::new(e.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use units::BitRate;

    use super::*;
    use crate::tests::parse_peer as parse;

    const LINE: &str = "link = { send = \"9600bit\", receive = \"9600bit\", delay = \"300ms\" }\n\
        [peer.line]\nraise = \"up\"\ndrop = \"down\"\nidle = \"20s\"\nquiet = [\"22:00-06:00\"]\n\
        tariff = { currency = \"USD\", per_minute = \"2.40\", increment = \"6s\" }\n\
        budget = \"100\"\n\
        [[peer.line.demand]]\nname = \"mail\"\nports = [25]\nthen = \"batch\"\namount = \"100kB\"\nage = \"4h\"\n";

    #[test]
    fn a_line_has_prices_rules_and_times() {
        let config = parse(LINE).expect("a good file");
        let line = config.peers[0].line.as_ref().expect("a line");
        assert_eq!(line.raise.as_deref(), Some("up"));
        assert_eq!(line.manager.idle, Duration::from_secs(20));
        let carrier = &line.manager.carriers[0];
        assert_eq!(carrier.rate, BitRate::from_bps(9_600));
        assert_eq!(carrier.tariff.currency().to_string(), "USD");
        assert_eq!(line.manager.budget.expect("one").stop, "100".parse().expect("money"));
    }

    #[test]
    fn a_line_that_cannot_be_is_refused_with_the_mend() {
        let with = |change: &dyn Fn(&str) -> String| parse(&change(LINE)).expect_err("refused");
        let told = with(&|l| l.replace("amount = \"100kB\"\nage = \"4h\"\n", ""));
        assert!(told.contains("gathers and never ends"), "{told}");
        let told = with(&|l| l.replace("\"2.40\"", "\"cheap\""));
        assert!(told.contains("is not an amount"), "{told}");
        let told = with(&|l| l.replace("currency = \"USD\", ", ""));
        assert!(told.contains("currency"), "{told}");
        let modem = LINE.replace("raise = \"up\"\ndrop = \"down\"", "serial = \"/dev/ttyS0\"");
        let told = parse(&modem).expect_err("refused");
        assert!(told.contains("neither calls nor answers"), "{told}");
        let numbered = |more: &str| {
            parse(&modem.replace("S0\"", &format!("S0\"\nnumbers = [\"100\"]\n{more}")))
        };
        let told = numbered("speed = 2401").expect_err("refused");
        assert!(told.contains("no speed"), "{told}");
        let told = numbered("init = [\"AT\\rATD900\"]").expect_err("refused");
        assert!(told.contains("no command"), "{told}");
        let told = numbered("raise = \"up\"").expect_err("refused");
        assert!(told.contains("the command raise"), "{told}");
        let config = numbered("init = [\"AT&F\"]").expect("a good file");
        let modem = config.peers[0].line.as_ref().and_then(|l| l.modem.as_ref()).expect("one");
        assert_eq!((modem.speed, modem.numbers.len(), modem.answer), (115_200, 1, false));
        let told = with(&|l| l.replace("idle", "answer = true\nidle"));
        assert!(told.contains("no modem"), "{told}");
        let carrier = "[[peer.carrier]]\nname = \"vsat\"\ninterface = \"eth1\"\n";
        let told = with(&|l| format!("{l}{carrier}"));
        assert!(told.contains("carriers and a line"), "{told}");
    }
}
