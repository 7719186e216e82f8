//! `[peer.line]`: a link that costs money or has to be raised. When it is up, what raises it, how
//! it is raised and dropped, and its prices (R-DDR, R-COST). A peer may have several, each in a
//! table of the array `[[peer.line]]`.

use std::io::Read as _;
use std::ops::{Range, RangeInclusive};
use std::path::Path;

use console::human::reason;
use dial::calendar::{Hours, Window};
use dial::manager::{Budget, CarrierConfig, ManagerConfig, Order, Redial};
use dial::money::{Currency, Money};
use dial::rules::{Action, KNOWN_NOISE, Match, Rule, Rules, read_noise};
use dial::tariff::{Rates, Tariff};
use units::{ByteCount, Duration, IpPrefix};

use super::carrier::Carrier;
use super::link::LinkSettings;
use super::problem::{Problem, Problems};
use super::reader::{At, FromValue, Section, Wrong};
use super::traffic::{Ports, Protocol};

mod serial;
mod several;
mod tariff;

pub use serial::SerialModem;
pub(super) use serial::read_answering;
pub(super) use several::{LineDrafts, read};
pub(super) use tariff::read as read_tariff;

/// What the link manager of a peer is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// The lines, the preferred one first: the first of the manager's carriers, in this order. The
    /// peer's other carriers follow in theirs.
    pub lines: Vec<Raised>,
    /// The tariffs' zone at the start; empty: the first.
    pub zone: String,
    /// What the hours of prices, rules and months go by.
    pub clock: Clock,
    /// False: nothing is raised and dropped. The peer's carriers are there by themselves and have
    /// prices, and the first in the manager's list stands for the line that is not there.
    pub raises: bool,
    /// The manager's own settings.
    pub manager: ManagerConfig,
}

/// How one line is raised and dropped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Raised {
    /// The command that raises the carrier, and ends well when it is there. `None`: it is there.
    pub raise: Option<String>,
    /// The command that drops it.
    pub drop: Option<String>,
    /// The modem that raises and drops it, in place of commands.
    pub modem: Option<SerialModem>,
    /// Which of the peer's carriers it is, by its place; `None`: the peer has no such tables.
    pub carrier: Option<usize>,
}

impl Raised {
    /// Is it a modem that calls?
    pub fn calls(&self) -> bool {
        self.modem.as_ref().is_some_and(|modem| !modem.numbers.is_empty())
    }

    /// By the same device, or by commands as well. What a command raised is to be dropped.
    fn is_raised_as(&self, new: &Raised) -> bool {
        let device = |line: &Raised| {
            let modem = line.modem.as_ref()?;
            Some((modem.device.clone(), modem.speed, modem.hardware_flow, modem.numbers.is_empty()))
        };
        let settled = |l: &Raised| (device(l), l.raise.is_some(), l.drop.is_some());
        settled(self) == settled(new)
    }
}

impl Line {
    /// The line that is this carrier of the peer's.
    pub fn with_carrier(&self, carrier: usize) -> Option<&Raised> {
        self.lines.iter().find(|line| line.carrier == Some(carrier))
    }

    /// May a running gateway not go over to `new`? Devices, the carriers, and whether modems call
    /// at all are settled at the start.
    pub fn needs_restart_for(&self, new: &Line) -> bool {
        let mut pairs = self.lines.iter().zip(&new.lines);
        self.has_other_carriers(new) || pairs.any(|(old, new)| !old.is_raised_as(new))
    }

    /// `new`, as far as a running gateway goes over to it: what is settled at the start stays, and
    /// needs a restart for `new` still.
    pub fn while_running(&self, new: &Line) -> Line {
        if self.has_other_carriers(new) {
            return self.clone();
        }
        let each = self.lines.iter().zip(&new.lines);
        let each = each.map(|(old, new)| if old.is_raised_as(new) { new } else { old });
        Line { lines: each.cloned().collect(), ..new.clone() }
    }

    fn has_other_carriers(&self, new: &Line) -> bool {
        let lines = |line: &Line| line.lines.iter().map(|l| l.carrier).collect::<Vec<_>>();
        let names = |line: &Line| {
            let all = line.manager.carriers.iter();
            all.map(|carrier| carrier.name.clone()).collect::<Vec<_>>()
        };
        self.raises != new.raises || lines(self) != lines(new) || names(self) != names(new)
    }
}

/// What the hours of a line go by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Clock {
    /// The prime meridian's time.
    #[default]
    Utc,
    /// This host's time zone, with its summer time.
    Local,
    /// So many minutes before UTC, or (negative) after it.
    Offset(i32),
}

/// What the link's own packets are booked as: they raise and hold nothing.
pub const LINK_CLASS: &str = "the link itself";

/// One line, read before the peer's name and rate are known.
struct LineDraft {
    raise: Option<String>,
    drop: Option<String>,
    /// The place is its device's.
    modem: Option<At<SerialModem>>,
    carrier: Option<At<String>>,
    idle: Option<Duration>,
    guard: Option<Duration>,
    most_linger: Option<Duration>,
    setup: Option<Duration>,
    calls: [Option<Duration>; 2],
    quiet: Vec<Window>,
    tariff: Tariff,
    budget: Option<Money>,
    redial: Redial,
    span: Range<usize>,
}

/// Bytes are told in sums, and a line takes its time to end.
const KNOWS_LATER: Duration = Duration::from_millis(500);
/// What hanging up before a step of time may begin early by.
const GUARD: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(60);
const MOST_LINGER: RangeInclusive<Duration> = Duration::ZERO..=Duration::from_secs(86_400);
/// More rules than a person writes.
const MAX_RULES: usize = 256;
/// The longest list of noise, in bytes.
const MAX_NOISE: u64 = 64 * 1024;

/// What a line says of itself; the rest of its table is left to the caller.
fn read_line(section: &mut Section<'_>, carrier: Option<At<String>>) -> Option<LineDraft> {
    let [raise, drop] = ["raise", "drop"].map(|key| section.get::<String>(key).map(|c| c.value));
    let modem = serial::read(section);
    let [idle, setup, min_call, max_call] = ["idle", "setup", "min_call", "max_call"]
        .map(|key| section.get::<Duration>(key).map(|d| d.value));
    let quiet = section.list::<Window>("quiet").unwrap_or_default();
    let tariff = read_tariff(section);
    let guard = read_guard(section, tariff.as_ref());
    let most_linger = read_most_linger(section);
    let budget = section.get::<Money>("budget").map(|b| b.value);
    let redial = read_redial(section);
    let span = section.span();
    Some(LineDraft {
        raise,
        drop,
        modem: modem.ok()?,
        carrier,
        idle,
        guard,
        most_linger,
        setup,
        calls: [min_call, max_call],
        quiet: quiet.into_iter().map(|w| w.value).collect(),
        tariff: tariff?,
        budget,
        redial,
        span,
    })
}

impl LineDraft {
    /// The manager's carrier, with what the rest of the peer's table says. `own`: which of the
    /// peer's carriers it is; `many`: the peer has other lines, so that its budget is its own.
    fn carrier(
        &self,
        problems: &Problems,
        peer: &str,
        (own, link): (Option<&Carrier>, &LinkSettings),
        many: bool,
    ) -> Option<CarrierConfig> {
        let wrong = |message: String, help: &str| {
            problems.add(Problem::at(self.span.clone(), message).help(help));
            None
        };
        if self.modem.is_some() && usize::from(link.mtu) > dial::framing::MAX_PACKET {
            let most = dial::framing::MAX_PACKET;
            let message = format!("peer \"{peer}\" has a modem and an MTU above {most} bytes");
            return wrong(message, "lower `mtu`: packets take their time on such a line");
        }
        let round_trip = link.delay.times(2);
        if let Some(idle) = self.idle.filter(|idle| *idle < round_trip) {
            let message = format!(
                "idle = {idle} of \"{peer}\" is shorter than a round trip of {round_trip}: who asks \
                 is hung up before the answer"
            );
            return wrong(message, "give it a few round trips, as in idle = \"60s\"");
        }
        let name = own.map_or("line", |carrier| &carrier.name);
        let mut carrier = CarrierConfig::new(name, true, self.tariff.clone());
        carrier.rate = link.send;
        carrier.priority = own.map_or(carrier.priority, |own| own.priority);
        carrier.dial_timeout = self.setup.unwrap_or(carrier.dial_timeout);
        carrier.min_call = self.calls[0].unwrap_or(carrier.min_call);
        carrier.max_call = self.calls[1];
        carrier.redial = self.redial;
        carrier.under_way = under_way(link);
        carrier.guard = self.guard.unwrap_or(carrier.guard);
        carrier.most_linger = self.most_linger.unwrap_or(carrier.most_linger);
        carrier.quiet = Hours(self.quiet.clone());
        carrier.budget = self.budget.filter(|_| many).map(budget_of);
        if let Some(idle) = self.idle {
            carrier.idle = idle;
            carrier.idle_at_step = carrier.idle_at_step.min(idle);
        }
        Some(carrier)
    }
}

/// Bytes that still cross when a budget's end is seen: the peer sends until it knows.
fn under_way(link: &LinkSettings) -> ByteCount {
    let time = link.delay.times(2) + KNOWS_LATER;
    link.receive.bytes_in(time) + link.send.bytes_in(KNOWS_LATER)
}

/// What carriers cost, in their order, and which is used for it.
pub(super) struct Prices {
    pub tariffs: Vec<Option<Tariff>>,
    pub order: Order,
    /// For a month of all carriers.
    pub budget: Option<Money>,
}

impl Prices {
    /// Is there anything to be counted?
    pub fn any(&self) -> bool {
        self.tariffs.iter().any(Option::is_some)
    }

    /// Of a peer without a line: the books of its carriers.
    pub fn finish(self, section: &Section<'_>, peer: &str, carriers: &[Carrier]) -> Option<Line> {
        let currency = self.tariffs.iter().flatten().next()?.currency();
        // Carriers' names have no spaces.
        let absent = CarrierConfig::new("no line", true, free(currency));
        let others = carriers.iter().zip(&self.tariffs);
        let others = others.map(|(carrier, tariff)| always_there(carrier, tariff, currency));
        let all = std::iter::once(absent).chain(others).collect();
        let rules = Rules::new(vec![link_rule()], Vec::new(), Action::Never).ok()?;
        let mut manager = ManagerConfig::new(peer, all, rules);
        manager.order = self.order;
        manager.budget = self.budget.map(budget_of);
        check(section, section.span(), &manager)?;
        Some(Line {
            lines: vec![Raised::default()],
            zone: String::new(),
            clock: Clock::default(),
            raises: false,
            manager,
        })
    }
}

/// The manager's own checks, once, where the file can be blamed.
fn check(section: &Section<'_>, span: Range<usize>, manager: &ManagerConfig) -> Option<()> {
    match dial::manager::Manager::new(manager.clone(), units::Instant::ZERO, Default::default()) {
        Ok(_) => Some(()),
        Err(why) => {
            let (message, help) = why.split_once("; ").unwrap_or((&why, "change it"));
            section.problems().add(Problem::at(span, message.to_owned()).help(help.to_owned()));
            None
        }
    }
}

/// A carrier beside the line. Without a tariff it costs nothing that is counted here.
fn always_there(carrier: &Carrier, tariff: &Option<Tariff>, currency: Currency) -> CarrierConfig {
    let tariff = tariff.clone().unwrap_or_else(|| free(currency));
    let mut config = CarrierConfig::new(&carrier.name, false, tariff);
    (config.rate, config.priority) = (carrier.link.send, carrier.priority);
    config.under_way = under_way(&carrier.link);
    config
}

fn free(currency: Currency) -> Tariff {
    let free = Tariff::new(currency, vec![(String::new(), Rates::default())]);
    free.unwrap_or_else(|_| Tariff::free())
}

/// The link's own packets raise and hold nothing.
fn link_rule() -> Rule {
    let when = Match { classes: vec![LINK_CLASS.into()], ..Match::default() };
    Rule::new(LINK_CLASS, when, Action::Never)
}

fn budget_of(stop: Money) -> Budget {
    Budget { stop, warn_percent: 80 }
}

/// `[[peer.line.host_budget]]`: what each of these hosts may cost in a month.
fn read_host_budget(mut section: Section<'_>) -> Option<Vec<(IpPrefix, Budget)>> {
    section.set_title("a budget of hosts".into());
    let hosts = section.list::<IpPrefix>("hosts");
    let budget = section.get::<Money>("budget");
    for (key, help) in [
        (
            "hosts",
            "say whose it is, as in hosts = [\"10.1.0.0/24\"]; each of them has it by itself",
        ),
        ("budget", "say how much, as in budget = \"20\""),
    ] {
        if !section.has(key) {
            section.lacks(key, help);
        }
    }
    section.finish();
    let budget = budget_of(budget?.value);
    Some(hosts?.into_iter().map(|host| (host.value, budget)).collect())
}

/// How long before a step of time is billed the line is hung up: within that step, and not a moment
/// before it alone.
fn read_guard(section: &mut Section<'_>, tariff: Option<&Tariff>) -> Option<Duration> {
    let guard = section.get::<Duration>("guard")?;
    let wrong = |message: String, help: String| {
        section.problems().add(Problem::at(guard.span.clone(), message).help(help));
        None
    };
    if !GUARD.contains(&guard.value) {
        let message = format!("guard in {} is not between 100ms and 60s", section.title());
        let help = "leave it out for 3s; a modem that takes longer to hang up is waited for anyway";
        return wrong(message, help.to_owned());
    }
    let zones = tariff.into_iter().flat_map(|of| of.zones().map(|zone| of.rates(zone)));
    let steps = zones.filter(|rates| !rates.bands.is_empty()).map(|rates| rates.increment);
    match steps.min().filter(|step| guard.value >= *step) {
        None => Some(guard.value),
        Some(step) => {
            let (guard, title) = (guard.value, section.title());
            let message = format!(
                "guard = {guard} in {title} is as long as a step of {step} that is paid: no time \
                 that is paid would be used"
            );
            wrong(message, format!("give it less than {step}, or leave it out"))
        }
    }
}

/// How long an idle line is kept because its time is paid, or free.
fn read_most_linger(section: &mut Section<'_>) -> Option<Duration> {
    let most = section.get::<Duration>("most_linger")?;
    if !MOST_LINGER.contains(&most.value) {
        let message = format!("most_linger in {} is longer than 24h", section.title());
        let help = "leave it out for 10min; \"0s\" hangs up whatever is paid already";
        section.problems().add(Problem::at(most.span, message).help(help));
        return None;
    }
    Some(most.value)
}

/// `redial = { first = "5s", most = "5min", attempts = 8, rest = "30min", per_hour = 60 }`
fn read_redial(section: &mut Section<'_>) -> Redial {
    let mut redial = Redial::default();
    let title = format!("when {} is raised again", section.title());
    let Some(mut table) = section.table("redial", title) else { return redial };
    for (key, of) in
        [("first", &mut redial.first), ("most", &mut redial.most), ("rest", &mut redial.rest)]
    {
        *of = table.get::<Duration>(key).map_or(*of, |d| d.value);
    }
    for (key, of) in [("attempts", &mut redial.attempts), ("per_hour", &mut redial.per_hour)] {
        *of = table.number(key, 1..=10_000, "tries").map_or(*of, |n| n.value as u32);
    }
    table.finish();
    redial
}

fn read_rules(section: &mut Section<'_>, dir: &Path) -> Option<Rules> {
    let words = [("raise", Action::Raise), ("never", Action::Never)].map(|(w, _)| w);
    let otherwise = section.word("otherwise", &words.map(|w| (w, w)));
    let known = read_known_noise(section, dir);
    let tables = section.tables("demand");
    if tables.len() > MAX_RULES {
        let message = format!("{} has over {MAX_RULES} rules", section.title());
        section.problems().add(Problem::at(section.span(), message));
        return None;
    }
    let mut rules = vec![link_rule()];
    for (at, table) in tables.into_iter().enumerate() {
        rules.push(read_rule(table, at + 1)?);
    }
    let otherwise = match otherwise.is_some_and(|w| w.value == "never") {
        true => Action::Never,
        false => Action::Raise,
    };
    match Rules::new(rules, known?, otherwise) {
        Ok(rules) => Some(rules),
        Err(why) => {
            let (message, help) = why.split_once("; ").unwrap_or((&why, "change it"));
            let problem = Problem::at(section.span(), message.to_owned());
            section.problems().add(problem.help(help.to_owned()));
            None
        }
    }
}

/// `noise = "never"`, `"raise"`, or the file with a list of the operator's own.
fn read_known_noise(section: &mut Section<'_>, dir: &Path) -> Option<Vec<Rule>> {
    let shipped = || read_noise(KNOWN_NOISE).expect("the shipped list, which a test reads");
    let Some(noise) = section.get::<String>("noise") else { return Some(shipped()) };
    let is_file = noise.value.contains(['/', '.']);
    let wrong = match noise.value.as_str() {
        "never" => return Some(shipped()),
        "raise" => return Some(Vec::new()),
        name if is_file => match noise_file(&dir.join(name)) {
            Ok(rules) => return Some(rules),
            Err(wrong) => wrong,
        },
        other => Wrong::new(format!("\"{other}\" is not \"never\" or \"raise\", and no file"))
            .help("name a file with its directory, as in noise = \"./noise.txt\""),
    };
    section.wrong("noise", noise.span, wrong);
    None
}

/// The list of noise in a file.
fn noise_file(path: &Path) -> Result<Vec<Rule>, Wrong> {
    let name = path.display();
    let unreadable = |e: std::io::Error| {
        Wrong::new(format!("cannot read the list of noise {name}: {}", reason(&e)))
            .help("`bentpipe link noise > FILE` writes the shipped one")
    };
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(unreadable)?;
    file.take(MAX_NOISE + 1).read_to_string(&mut text).map_err(unreadable)?;
    if text.len() as u64 > MAX_NOISE {
        return Err(Wrong::new(format!("the list of noise {name} has over {MAX_NOISE} bytes")));
    }
    let rules = read_noise(&text).map_err(|e| Wrong::new(format!("{name}, {e}")))?;
    match rules.len() <= MAX_RULES {
        true => Ok(rules),
        false => Err(Wrong::new(format!("the list of noise {name} has over {MAX_RULES} lines"))),
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
    let [through_quiet, fail_fast] =
        ["through_quiet", "fail_fast"].map(|key| section.get::<bool>(key).is_some_and(|b| b.value));
    section.finish();
    let then = match then?.value {
        "raise" => Action::Raise,
        "never" => Action::Never,
        _ => Action::Batch { amount, age, hours },
    };
    Some(Rule { through_quiet, fail_fast, ..Rule::new(&name, when, then) })
}

impl FromValue for Clock {
    const WANTED: &'static str = "\"utc\", \"local\" or hours from UTC such as \"+05:30\"";
    fn from_text(text: &str) -> Result<Clock, Wrong> {
        let (sign, of_day) = match text {
            "utc" => return Ok(Clock::Utc),
            "local" => return Ok(Clock::Local),
            text if text.starts_with('-') => (-1, &text[1..]),
            text => (1, text.strip_prefix('+').unwrap_or_default()),
        };
        let number = |text: &str| text.parse::<u8>().ok().filter(|_| text.len() == 2);
        let parts = of_day.split_once(':').and_then(|(h, m)| number(h).zip(number(m)));
        match parts {
            Some((hours @ ..=14, minutes @ ..=59)) => {
                Ok(Clock::Offset(sign * (i32::from(hours) * 60 + i32::from(minutes))))
            }
            _ => Err(Wrong::new(format!("\"{text}\" is no clock"))
                .help(format!("write {}", Self::WANTED))),
        }
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
    use dial::books::Host;
    use dial::rules::Flow;
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
        assert_eq!(line.lines[0].raise.as_deref(), Some("up"));
        let carrier = &line.manager.carriers[0];
        assert_eq!(carrier.idle, Duration::from_secs(20));
        assert_eq!(carrier.rate, BitRate::from_bps(9_600));
        assert_eq!(carrier.tariff.currency().to_string(), "USD");
        assert_eq!(line.manager.budget.expect("one").stop, "100".parse().expect("money"));
    }

    #[test]
    fn the_summary_says_who_calls_where_there_is_no_address() {
        let modem = |keys: &str| {
            let modem = format!("serial = \"/dev/ttyS0\"\n{keys}");
            let text = LINE.replace("raise = \"up\"\ndrop = \"down\"", &modem);
            parse(&text).expect("a good file").to_string()
        };
        let calls = modem("numbers = [\"200\"]");
        assert!(calls.contains("  endpoint     none: it is called by its line\n"), "{calls}");
        let answers = modem("answer = true");
        assert!(answers.contains("  endpoint     none: it must call by its line\n"), "{answers}");
    }

    #[test]
    fn a_guard_is_shorter_than_a_step_and_an_idle_line_is_kept_for_a_day_at_most() {
        let with = |keys: &str| parse(&LINE.replace("idle = ", &format!("{keys}\nidle = ")));
        let times = |keys: &str| {
            let config = with(keys).expect(keys);
            let own = config.peers[0].line.clone().expect("a line").manager.carriers.remove(0);
            [own.guard, own.most_linger].map(Duration::as_millis)
        };
        assert_eq!(times(""), [3_000, 600_000]);
        assert_eq!(times("guard = \"500ms\"\nmost_linger = \"0s\""), [500, 0]);
        for (keys, why) in [
            ("guard = \"90ms\"", "is not between 100ms and 60s"),
            ("guard = \"61s\"", "is not between 100ms and 60s"),
            ("guard = \"6s\"", "is as long as a step of 6s"),
            ("most_linger = \"25h\"", "is longer than 24h"),
        ] {
            let told = with(keys).expect_err(keys);
            assert!(told.contains(why), "{keys}: {told}");
        }
        // Where no time is billed there is no step.
        let by_bytes =
            LINE.replace("per_minute = \"2.40\", increment = \"6s\"", "per_call = \"1\"");
        parse(&by_bytes.replace("idle = ", "guard = \"6s\"\nidle = ")).expect("a good file");
    }

    #[test]
    fn carriers_have_prices_with_a_line_and_without() {
        let carriers = "order = \"cost\"\n\
            [[peer.carrier]]\nname = \"vsat\"\nsource = \"192.0.2.7\"\n\
            link = { send = \"2Mbit\", receive = \"20Mbit\", delay = \"300ms\" }\n\
            tariff = { currency = \"USD\", per_megabyte = \"2\" }\n\
            [[peer.carrier]]\nname = \"modem\"\nsource = \"192.0.2.8\"\n\
            link = { send = \"9600bit\", receive = \"9600bit\", delay = \"300ms\" }\n";
        let line = "[peer.line]\ncarrier = \"modem\"\nraise = \"up\"\n\
            tariff = { currency = \"USD\", per_minute = \"1\" }\n";
        for (text, raises) in [(carriers.to_owned(), false), (format!("{carriers}{line}"), true)] {
            let config = parse(&text).expect("a good file");
            let of = config.peers[0].line.as_ref().expect("the books");
            assert_eq!((of.raises, of.manager.order), (raises, Order::Cost));
            let vsat = of.manager.carriers.iter().find(|c| &*c.name == "vsat").expect("it");
            let price = vsat.tariff.rates("").per_megabyte;
            assert_eq!((vsat.dialled, price), (false, "2".parse().expect("money")));
        }
        // Prices that cannot be compared, two for one carrier, and none at all.
        let told = |text: &str| parse(text).expect_err("refused");
        let other = carriers.replace(
            "source = \"192.0.2.8\"",
            "source = \"192.0.2.8\"\n\
            tariff = { currency = \"EUR\", per_megabyte = \"1\" }",
        );
        assert!(told(&other).contains("is paid in EUR"), "{}", told(&other));
        let both = format!("{}{line}", other.replace("EUR", "USD"));
        assert!(told(&both).contains("has two tariffs"), "{}", told(&both));
        let none = carriers.replace("tariff = { currency = \"USD\", per_megabyte = \"2\" }\n", "");
        assert!(told(&none).contains("needs prices"), "{}", told(&none));
    }

    #[test]
    fn the_list_of_noise_is_the_shipped_one_none_or_a_files() {
        let dir = std::env::temp_dir().join(format!("bentpipe-noise-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a directory");
        let file = dir.join("noise.txt");
        std::fs::write(&file, "# ours\nudp 7 any Echo: a test that nobody reads.\n")
            .expect("a file");
        let with =
            |noise: &str| parse(&LINE.replace("idle = ", &format!("noise = \"{noise}\"\nidle = ")));
        let names = |noise: &str| -> Vec<String> {
            let config = with(noise).expect(noise);
            let rules = &config.peers[0].line.as_ref().expect("a line").manager.rules;
            let flow = |protocol, port| Flow {
                host: Host::Node,
                protocol,
                port,
                remote: None,
                name: None,
                class: "normal".into(),
                service: "".into(),
            };
            [flow(17, 7), flow(17, 123)].map(|f| rules.rule_for(&f).name.to_string()).into()
        };
        assert!(names("never")[1].starts_with("noise: NTP"), "{:?}", names("never"));
        assert_eq!(names("raise"), ["everything else", "everything else"]);
        let own = names(&file.display().to_string());
        assert_eq!(own, ["noise: Echo: a test that nobody reads.", "everything else"]);
        std::fs::write(&file, "udp 7 any\n").expect("a file");
        let told = with(&file.display().to_string()).expect_err("no reason");
        assert!(told.contains("noise.txt, line 1: the reason is missing"), "{told}");
        let told = with("/nowhere/noise.txt").expect_err("no file");
        assert!(told.contains("cannot read the list of noise /nowhere/noise.txt"), "{told}");
        let told = with("nevr").expect_err("no word");
        assert!(told.contains("is not \"never\" or \"raise\""), "{told}");
        let _ = std::fs::remove_dir_all(dir);
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
        let line = config.peers[0].line.as_ref();
        let modem = line.and_then(|l| l.lines[0].modem.as_ref()).expect("one");
        assert_eq!((modem.speed, modem.numbers.len(), modem.answer), (115_200, 1, false));
        let told = with(&|l| l.replace("idle", "answer = true\nidle"));
        assert!(told.contains("no modem"), "{told}");
        let carrier = "[[peer.carrier]]\nname = \"vsat\"\ninterface = \"eth1\"\n";
        let told = with(&|l| format!("{l}{carrier}"));
        assert!(told.contains("carriers and a line"), "{told}");
        let told = with(&|l| l.replace("idle", "carrier = \"modem\"\nidle") + carrier);
        assert!(told.contains("no carrier \"modem\""), "{told}");
        let told = with(&|l| l.replace("\"20s\"", "\"500ms\""));
        assert!(told.contains("shorter than a round trip of 600ms"), "{told}");
    }

    #[test]
    fn a_line_may_be_one_of_several_carriers_and_the_others_are_there_by_themselves() {
        let carriers = "[[peer.carrier]]\nname = \"vsat\"\n[[peer.carrier]]\nname = \"modem\"\n\
            link = { send = \"1920bit\", receive = \"1920bit\", delay = \"1s\", mtu = 500 }\n";
        let modem = "serial = \"/dev/ttyS0\"\nnumbers = [\"100\"]\ncarrier = \"modem\"";
        let text = LINE.replace("raise = \"up\"\ndrop = \"down\"", modem);
        let config = parse(&format!("{text}{carriers}")).expect("a good file");
        let peer = &config.peers[0];
        let line = peer.line.as_ref().expect("a line");
        assert_eq!(line.lines[0].carrier, Some(1));
        let [own, vsat] = &line.manager.carriers[..] else { panic!("two") };
        assert_eq!((&*own.name, own.dialled, own.rate.as_bps()), ("modem", true, 1_920));
        assert_eq!((&*vsat.name, vsat.dialled), ("vsat", false));
        assert!(vsat.priority < own.priority);
        assert_eq!(peer.carriers[1].endpoint, None, "it leads to whoever is called");
        let addressed = format!("{text}{carriers}endpoint = \"192.0.2.1:1\"\n");
        let told = parse(&addressed).expect_err("refused");
        assert!(told.contains("is a modem"), "{told}");
    }
}
