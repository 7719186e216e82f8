//! The lines of a peer: one in `[peer.line]`, or up to four in `[[peer.line]]`, the preferred one
//! first.

use std::ops::Range;
use std::path::Path;

use dial::books::Name;
use dial::manager::{Budget, CarrierConfig, ManagerConfig};
use dial::rules::Rules;
use dial::tariff::Tariff;
use units::IpPrefix;

use super::{Clock, Line, LineDraft, Prices, Raised};
use crate::carrier::Carrier;
use crate::link::LinkSettings;
use crate::problem::Problem;
use crate::reader::{At, Section};

/// More than a ship has.
const MOST: usize = 4;
/// What holds for all lines of a peer, and stands with the first.
const OF_ALL: [&str; 6] = ["zone", "clock", "host_budget", "otherwise", "noise", "demand"];

/// The lines of a peer, read before its name and rate are known.
pub(crate) struct LineDrafts {
    /// One at least.
    lines: Vec<LineDraft>,
    all: OfAll,
}

/// What holds for all lines.
struct OfAll {
    zone: Option<String>,
    clock: Clock,
    host_budgets: Vec<(IpPrefix, Budget)>,
    rules: Rules,
}

/// `dir` is where relative names of files start. `None`: there is no line, or what is wrong was
/// told.
pub(crate) fn read(section: &mut Section<'_>, dir: &Path) -> Option<LineDrafts> {
    let peer = section.title().to_owned();
    let tables = section.table_or_tables("line", format!("the line of {peer}"));
    let count = tables.len();
    if count > MOST {
        let message = format!("{peer} has over {MOST} lines");
        let help = "keep those that are used";
        section.problems().add(Problem::at(section.span(), message).help(help));
        return None;
    }
    let (mut lines, mut all) = (Vec::new(), None);
    for (at, mut table) in tables.into_iter().enumerate() {
        table.set_title(match count {
            1 => format!("the line of {peer}"),
            _ => format!("line {} of {peer}", at + 1),
        });
        let carrier = table.get::<String>("carrier");
        let lacks_carrier = count > 1 && !table.has("carrier");
        if lacks_carrier {
            let help = "say which of the peer's [[peer.carrier]] tables it is: each line has one";
            table.lacks("carrier", help);
        }
        if let Some(carrier) = carrier.as_ref().filter(|_| count > 1) {
            table.set_title(format!("line \"{}\" of {peer}", carrier.value));
        }
        lines.push(super::read_line(&mut table, carrier).filter(|_| !lacks_carrier));
        match at {
            0 => all = read_of_all(&mut table, dir),
            _ => refuse_of_all(&mut table),
        }
        table.finish();
    }
    let lines: Vec<LineDraft> = lines.into_iter().collect::<Option<_>>()?;
    Some(LineDrafts { lines, all: all? })
}

fn read_of_all(table: &mut Section<'_>, dir: &Path) -> Option<OfAll> {
    let zone = table.get::<String>("zone").map(|z| z.value);
    let clock = table.get::<Clock>("clock").map_or_else(Clock::default, |c| c.value);
    let host_budgets = table.tables("host_budget").into_iter().filter_map(super::read_host_budget);
    let host_budgets = host_budgets.flatten().collect();
    let rules = super::read_rules(table, dir)?;
    Some(OfAll { zone, clock, host_budgets, rules })
}

fn refuse_of_all(table: &mut Section<'_>) {
    table.know(OF_ALL.into_iter());
    for key in OF_ALL.into_iter().filter(|key| table.has(key)) {
        let message = format!("{key} in {} holds for all lines of the peer", table.title());
        let help = "move it to the first [[peer.line]]";
        let span = table.span_of(key).unwrap_or_else(|| table.span());
        table.problems().add(Problem::at(span, message).help(help));
    }
}

impl LineDrafts {
    /// The carriers that are modems'.
    pub fn modem_carriers(&self) -> Vec<&str> {
        let modems = self.lines.iter().filter(|line| line.modem.is_some());
        modems.filter_map(|line| Some(line.carrier.as_ref()?.value.as_str())).collect()
    }

    /// Where the file names the modems' devices, in the order of the lines.
    pub fn device_spans(&self) -> Vec<Range<usize>> {
        let modems = self.lines.iter().filter_map(|line| line.modem.as_ref());
        modems.map(|modem| modem.span.clone()).collect()
    }

    /// With what the rest of the peer's table says.
    pub fn finish(
        self,
        section: &Section<'_>,
        peer: &str,
        link: &LinkSettings,
        carriers: &[Carrier],
        prices: Prices,
    ) -> Option<Line> {
        let wrong = |span: &Range<usize>, message: String, help: &str| {
            section.problems().add(Problem::at(span.clone(), message).help(help));
            None
        };
        let own = self.places(section, peer, carriers)?;
        let first = self.lines[0].span.clone();
        let zones = || self.lines.iter().flat_map(|line| line.tariff.zones());
        if let Some(zone) = self.all.zone.as_ref().filter(|zone| !zones().any(|of| of == **zone)) {
            let message = format!(
                "the line of \"{peer}\" is in the zone \"{zone}\", which its tariff has not"
            );
            let help = "name one of its zones, or give the tariff that zone";
            return wrong(&first, message, help);
        }
        let tariff_of = |at: Option<usize>| at.filter(|at| prices.tariffs[*at].is_some());
        for (line, at) in self.lines.iter().zip(&own) {
            let Some(at) = tariff_of(*at) else { continue };
            let name = &carriers[at].name;
            let message = format!("carrier \"{name}\" of \"{peer}\" has two tariffs");
            return wrong(&line.span, message, "it is the line: keep the one in [peer.line]");
        }
        let many = self.lines.len() > 1;
        if !many && self.lines[0].budget.is_some() && prices.budget.is_some() {
            let message = format!("peer \"{peer}\" has two budgets");
            let help = "keep one of them: it is for the line and all carriers";
            return wrong(&first, message, help);
        }
        let mut all: Vec<CarrierConfig> = Vec::new();
        for (line, at) in self.lines.iter().zip(&own) {
            let carrier = at.map(|at| &carriers[at]);
            let link = carrier.map_or(link, |carrier| &carrier.link);
            all.push(line.carrier(section.problems(), peer, (carrier, link), many)?);
        }
        let paid = all.iter().map(|carrier| &carrier.tariff).find(|of| **of != Tariff::free());
        let currency = paid.map_or_else(|| all[0].tariff.currency(), Tariff::currency);
        let others = (0..carriers.len()).filter(|at| !own.contains(&Some(*at)));
        let others =
            others.map(|at| super::always_there(&carriers[at], &prices.tariffs[at], currency));
        all.extend(others);
        let mut manager = ManagerConfig::new(peer, all, self.all.rules);
        manager.currency = currency;
        manager.order = prices.order;
        let budget = self.lines[0].budget.filter(|_| !many).or(prices.budget);
        manager.budget = budget.map(super::budget_of);
        manager.host_budgets = self.all.host_budgets;
        super::check(section, first, &manager)?;
        let lines = self.lines.into_iter().zip(own).map(|(line, carrier)| Raised {
            raise: line.raise,
            drop: line.drop,
            modem: line.modem.map(|modem| modem.value),
            carrier,
        });
        Some(Line {
            lines: lines.collect(),
            zone: self.all.zone.unwrap_or_default(),
            clock: self.all.clock,
            raises: true,
            manager,
        })
    }

    /// Which of the peer's carriers each line is.
    fn places(
        &self,
        section: &Section<'_>,
        peer: &str,
        carriers: &[Carrier],
    ) -> Option<Vec<Option<usize>>> {
        let mut places: Vec<Option<usize>> = Vec::new();
        for line in &self.lines {
            let wrong = |message: String, help: &str| {
                let problem = Problem::at(line.span.clone(), message).help(help);
                section.problems().add(problem);
                None
            };
            let named = line.carrier.as_ref();
            let own = named.and_then(|n| carriers.iter().position(|c| c.name == n.value));
            match named {
                Some(At { value: name, .. }) if own.is_none() => {
                    let message = format!("peer \"{peer}\" has no carrier \"{name}\" for its line");
                    return wrong(message, "name one of its [[peer.carrier]] tables");
                }
                None if !carriers.is_empty() => {
                    let message = format!("peer \"{peer}\" has carriers and a line");
                    let help = "say which of them is the line, as in carrier = \"modem\"";
                    return wrong(message, help);
                }
                _ => {}
            }
            let before = places.iter().position(|place| own.is_some() && *place == own);
            let first = before.and_then(|at| self.lines[at].carrier.as_ref());
            if let Some((first, name)) = first.zip(named) {
                let message =
                    format!("two lines of peer \"{peer}\" are carrier \"{}\"", name.value);
                let help = "give each a [[peer.carrier]] table of its own";
                let problem = Problem::at(name.span.clone(), message).help(help);
                section.problems().add(problem.also(first.span.clone(), "first here"));
                return None;
            }
            let rank = |at: usize| (carriers[at].priority, at);
            if let (Some(Some(before)), Some(own)) = (places.last().copied(), own)
                && rank(before) > rank(own)
            {
                let [before, own] = [before, own].map(|at| &carriers[at]);
                let message = format!(
                    "line \"{}\" of peer \"{peer}\" stands before line \"{}\", whose carrier is \
                     preferred (priority {} before {})",
                    before.name, own.name, own.priority, before.priority
                );
                return wrong(message, "put lines and carriers in one order, the preferred first");
            }
            places.push(own);
        }
        Some(places)
    }
}

/// What people call the lines of a peer, in their order.
impl Line {
    /// The names of the lines, the preferred one first.
    pub fn names(&self) -> impl Iterator<Item = &Name> {
        self.manager.carriers.iter().take(self.lines.len()).map(|carrier| &carrier.name)
    }
}

#[cfg(test)]
mod tests {
    use units::Duration;

    use crate::Config;
    use crate::tests::{parse_peer as parse, peer_fault};

    const CARRIERS: &str = "[[peer.carrier]]\nname = \"vsat\"\ninterface = \"eth1\"\n\
        link = { send = \"2Mbit\", receive = \"20Mbit\", delay = \"300ms\" }\n\
        [[peer.carrier]]\nname = \"iridium\"\n\
        link = { send = \"1920bit\", receive = \"1920bit\", delay = \"1s\", mtu = 500 }\n";
    const FIRST: &str = "[[peer.line]]\ncarrier = \"vsat\"\nraise = \"up\"\ndrop = \"down\"\n\
        zone = \"at sea\"\nclock = \"local\"\nquiet = [\"22:00-06:00\"]\nbudget = \"400\"\n\
        tariff = { currency = \"USD\", per_minute = \"2\" }\n";
    const DEMAND: &str = "[[peer.line.demand]]\nports = [25]\nthen = \"never\"\n";
    const SECOND: &str = "[[peer.line]]\ncarrier = \"iridium\"\nserial = \"/dev/ttyS0\"\n\
        numbers = [\"1\"]\nidle = \"20s\"\nredial = { attempts = 3 }\n\
        tariff = { currency = \"EUR\", zone = [{ name = \"at sea\", per_minute = \"1\" }] }\n";

    fn whole() -> String {
        format!("{CARRIERS}{FIRST}{DEMAND}{SECOND}")
    }

    #[test]
    fn each_line_has_its_own_limits_and_rules_are_for_all() {
        let config = parse(&whole()).expect("a good file");
        let peer = &config.peers[0];
        let line = peer.line.as_ref().expect("lines");
        assert_eq!(line.names().map(|name| &**name).collect::<Vec<_>>(), ["vsat", "iridium"]);
        let [vsat, iridium] = &line.lines[..] else { panic!("two lines") };
        assert_eq!((vsat.raise.as_deref(), vsat.carrier), (Some("up"), Some(0)));
        assert_eq!((iridium.calls(), iridium.carrier), (true, Some(1)));
        assert_eq!(peer.carriers[1].endpoint, None, "it leads to whoever is called");
        let [a, b] = &line.manager.carriers[..] else { panic!("two carriers") };
        assert!(a.dialled && b.dialled && a.priority < b.priority);
        assert_eq!([a.idle, b.idle].map(Duration::as_millis), [30_000, 20_000]);
        assert_eq!([a.quiet.0.len(), b.quiet.0.len()], [1, 0]);
        assert_eq!((a.redial.attempts, b.redial.attempts), (8, 3));
        let stop = |of: Option<dial::manager::Budget>| of.map(|b| b.stop.to_string());
        assert_eq!([stop(a.budget), stop(b.budget)], [Some("400.00".into()), None]);
        assert_eq!(line.manager.budget, None, "that is of [[peer]]");
        assert_eq!((line.zone.as_str(), line.clock), ("at sea", crate::Clock::Local));
        // The peer's budget is beside those of its lines.
        let with = whole().replace("EUR", "USD");
        let config = parse(&format!("budget = \"500\"\n{with}")).expect("a good file");
        let line = config.peers[0].line.as_ref().expect("lines");
        assert_eq!(stop(line.manager.budget), Some("500.00".into()));
        // One table of an array is a line as any other.
        let one = format!("{CARRIERS}{FIRST}{DEMAND}").replace("zone = \"at sea\"\n", "");
        let config = parse(&one).expect("a good file");
        let line = config.peers[0].line.as_ref().expect("a line");
        assert_eq!(stop(line.manager.budget), Some("400.00".into()));
        assert_eq!((line.lines.len(), line.manager.carriers[0].budget), (1, None));
        assert!(!line.manager.carriers[1].dialled);
    }

    #[test]
    fn the_guides_example_is_a_good_file() {
        let guide = include_str!("../../../../docs/operators-guide.md");
        let (_, rest) = guide.split_once("A peer may have up to four lines").expect("a place");
        let (_, rest) = rest.split_once("[[peer]]\n").expect("an example");
        let (text, _) = rest.split_once("```").expect("its end");
        let own =
            |line: &&str| !line.starts_with("name       =") && !line.starts_with("public_key");
        let text: String = text.lines().filter(own).map(|line| format!("{line}\n")).collect();
        let config = parse(&text).expect("a good file");
        let line = config.peers[0].line.as_ref().expect("lines");
        assert_eq!(line.names().map(|name| &**name).collect::<Vec<_>>(), ["vsat", "iridium"]);
        assert!(line.manager.carriers.iter().all(|carrier| carrier.budget.is_some()));
    }

    #[test]
    fn limits_of_a_line_change_at_a_reload_and_how_many_there_are_does_not() {
        let line = |text: String| {
            let config = parse(&text).expect("a good file");
            config.peers[0].line.clone().expect("lines")
        };
        let before = line(whole());
        let after = line(whole().replace("idle = \"20s\"", "idle = \"21s\"\nbudget = \"5\""));
        assert!(before != after && !before.needs_restart_for(&after));
        let device = line(whole().replace("ttyS0", "ttyS1"));
        assert!(before.needs_restart_for(&device), "of the second line");
        let one = line(format!("{CARRIERS}{FIRST}{DEMAND}").replace("zone = \"at sea\"\n", ""));
        assert!(before.needs_restart_for(&one) && one.needs_restart_for(&before));
    }

    #[test]
    fn what_waits_for_a_restart_is_named_at_each_reload_and_the_rest_takes_effect() {
        let file = |text: String| parse(&text).expect("a good file");
        let at = |config: &Config| config.peers[0].line.clone().expect("lines");
        let idle = |text: String| text.replace("idle = \"20s\"", "idle = \"21s\"");
        let in_force = file(whole());
        let device = whole().replace("ttyS0", "ttyS1");
        let fewer = format!("{CARRIERS}{FIRST}{DEMAND}").replace("zone = \"at sea\"\n", "");
        let without = CARRIERS.to_owned();
        for (text, takes) in [(device, true), (fewer, false), (without, false)] {
            let mut runs = in_force.clone();
            for text in [text.clone(), idle(text)] {
                let mut new = file(text);
                assert_eq!(runs.changes(&new).needs_restart.first(), Some(&"line of a peer"));
                runs.keep_fixed(&mut new);
                runs = new;
            }
            let (line, before) = (at(&runs), at(&in_force));
            assert_eq!(line.lines[1].modem, before.lines[1].modem);
            assert_eq!(line.manager != before.manager, takes);
            // As it runs: nothing waits any more.
            assert_eq!(runs.changes(&in_force).needs_restart, Vec::<&str>::new());
        }
        let mut new = in_force.clone();
        file(CARRIERS.to_owned()).keep_fixed(&mut new);
        assert_eq!(new.peers[0].line, None, "it begins with a restart");
        // Paths over carriers are numbered as at the start.
        let mut other = file(whole().replace("interface = \"eth1\"", "interface = \"eth2\""));
        assert_eq!(in_force.changes(&other).needs_restart, ["carrier of a peer"]);
        in_force.keep_fixed(&mut other);
        assert!(other.peers[0].carriers == in_force.peers[0].carriers);
    }

    #[test]
    fn lines_that_cannot_be_are_refused_with_the_mend() {
        // The one problem, with its line of the file and the mend.
        let told = |text: String| peer_fault(&text);
        let with = |from: &str, to: &str| told(whole().replace(from, to));
        let twice = with("carrier = \"vsat\"\nraise", "carrier = \"iridium\"\nraise");
        assert!(twice.contains("are carrier \"iridium\" | give each"), "{twice}");
        let line = whole().lines().position(|line| line == "carrier = \"iridium\"").expect("it");
        assert!(twice.starts_with(&format!("{}:11 ", 8 + line)), "{twice}");
        let lacks = with("carrier = \"iridium\"\nserial", "serial");
        assert!(lacks.contains("line 2 of peer \"shore\" has no carrier"), "{lacks}");
        let unknown = with("carrier = \"iridium\"\nserial", "carrier = \"lte\"\nserial");
        assert!(unknown.contains("no carrier \"lte\""), "{unknown}");
        let of_all = told(format!("{CARRIERS}{FIRST}{SECOND}{DEMAND}"));
        assert!(of_all.contains("demand in line \"iridium\""), "{of_all}");
        assert!(of_all.contains("move it to the first"), "{of_all}");
        let first = FIRST.replace("zone = \"at sea\"\nclock = \"local\"\n", "");
        let order = told(format!("{CARRIERS}{SECOND}{first}"));
        assert!(order.contains("stands before line \"vsat\""), "{order}");
        let priority = with("interface = \"eth1\"", "interface = \"eth1\"\npriority = 50");
        assert!(priority.contains("preferred (priority 10 before 50)"), "{priority}");
        // Two modems at one device.
        let modem = "serial = \"/dev/ttyS0\"\nnumbers = [\"2\"]\n";
        let device = told(
            whole()
                .replace("raise = \"up\"\ndrop = \"down\"\n", modem)
                .replace("interface = \"eth1\"\n", "")
                .replace("delay = \"300ms\"", "delay = \"300ms\", mtu = 500"),
        );
        assert!(device.contains("have the device /dev/ttyS0"), "{device}");
        // Budgets in one currency cannot be for two; there are not so many lines.
        let currency = told(format!("budget = \"500\"\n{}", whole()));
        assert!(currency.contains("is paid in EUR"), "{currency}");
        let many = told(format!("{}{}", whole(), SECOND.repeat(3)));
        assert!(many.contains("over 4 lines"), "{many}");
        let zone = with("zone = \"at sea\"\nclock", "zone = \"in port\"\nclock");
        assert!(zone.contains("in the zone \"in port\""), "{zone}");
        let tariffs =
            with("interface = \"eth1\"", "interface = \"eth1\"\ntariff = { currency = \"USD\" }");
        assert!(tariffs.contains("has two tariffs"), "{tariffs}");
    }
}
