//! `bentpipe-lab day`: an hour of a ship's day on a line that is paid by the minute, in virtual
//! time. The link manager is the gateway's ([`dial::manager`]); beside it one that dials for any
//! packet. With `--real` the same hour passes once more, for real.

mod real;

use std::path::PathBuf;
use std::process::ExitCode;

use console::{Global, print, print_json};
use dial::books::{Books, By, Query};
use dial::calendar::Wall;
use dial::manager::{CarrierConfig, CarrierId, FlowId, Manager, ManagerConfig, State, Work};
use dial::money::Money;
use dial::rules::{Action, Flow, KNOWN_NOISE, Match, Rule, Rules, read_noise};
use dial::tariff::{Rates, Tariff};
use miette::miette;
use serde::Serialize;
use units::{ByteCount, Duration, Instant, Rng};

use crate::plot::{LineChart, Series};
use crate::testbed::progress::Board;
use crate::testbed::rights;

/// Counts the minutes and the price of a line over a ship's day, in virtual time.
///
/// The script has background chatter of every host, two mails, a page and an ssh session in each
/// hour; the line is an Inmarsat Mini-M's (2,400 bit/s, 28 s of set-up, 2.40 a minute). The rules
/// of a gateway are beside a router that dials for any packet.
///
/// Examples: bentpipe-lab day; bentpipe-lab day --hours 24 --svg day.svg; bentpipe-lab day --real
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// How many hours
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=744))]
    hours: u64,
    /// Equal seeds have equal days
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Have it for real as well: gateways, modems and hosts, for as long as it takes
    #[arg(long)]
    real: bool,
    /// The real day and its line are so many times as fast: for a look at them
    #[arg(long, value_name = "N", default_value_t = 1, requires = "real",
        value_parser = clap::value_parser!(u32).range(1..=60))]
    speed_up: u32,
    /// Draw both lines, and what they have cost, into this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// From the last digit until there is carrier, and then until the peer is reached.
const SETUP: Duration = Duration::from_millis(28_280);
const RISE: Duration = Duration::from_millis(2_000);
const HANGING_UP: Duration = Duration::from_millis(500);
/// What 2,400 bit/s in ten bits a byte carry in a tenth of a second.
const TICK: Duration = Duration::from_millis(100);
const BYTES_A_TICK: u64 = 24;
/// A drawing has a point of the price so often.
const POINT: Duration = Duration::from_secs(10);
/// Of the days in a drawing: two in virtual time, and two real ones.
const COLOURS: [usize; 4] = [1, 0, 3, 4];
/// Ports of chatter: time, mDNS, SSDP, NetBIOS.
const CHATTER: [u16; 4] = [123, 5353, 1900, 137];
/// Nobody says chatter again that was not heard.
const FORGOTTEN: Duration = Duration::from_secs(60);
const CARRIER: CarrierId = CarrierId(0);

/// What a host says: when, of what kind, and how much.
#[derive(Clone)]
struct Talk {
    at: Instant,
    flow: Flow,
    bytes: u64,
    urgent: bool,
}

/// What came of a day.
#[derive(Clone, Debug, Serialize)]
pub struct Day {
    /// Whose rules.
    pub rules: &'static str,
    /// Calls that were connected.
    pub calls: u64,
    /// How long they were, in seconds.
    pub connected_s: u64,
    /// What they cost, in dollars.
    pub price: String,
    /// The longest that somebody waited for the first byte, in milliseconds.
    pub longest_wait_ms: u64,
    /// What only a real day has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub real: Option<Real>,
    #[serde(skip)]
    micros: u128,
    /// Minutes, and what the day has cost until then.
    #[serde(skip)]
    priced: Vec<(f64, f64)>,
    /// Minutes, and whether the line is up.
    #[serde(skip)]
    up: Vec<(f64, f64)>,
}

/// What was seen from outside.
#[derive(Clone, Debug, Serialize)]
pub struct Real {
    /// What the network's own meter makes of the calls, in dollars.
    pub metered: String,
    /// Mails, pages and lines of ssh that were answered, byte for byte.
    pub answered: usize,
    /// Of those that somebody waited for: without an answer.
    pub unanswered_urgent: usize,
    /// Packets of chatter that arrived.
    pub chatter: usize,
}

/// The line as the network sees it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phone {
    OnHook,
    Calling(Instant),
    Connected { ready: Instant },
    HangingUp(Instant),
}

struct Ship {
    manager: Manager,
    books: Books,
    now: Instant,
    phone: Phone,
    /// What is said later, the last first; and what waits.
    talk: Vec<Talk>,
    waiting: Vec<(FlowId, Talk)>,
    point_at: Instant,
    day: Day,
}

fn flow(host: u64, protocol: u8, port: u16, service: &str) -> Flow {
    Flow {
        host: format!("10.2.0.{host}").parse().unwrap_or_default(),
        protocol,
        port,
        remote: Some(std::net::Ipv4Addr::new(192, 0, 2, 1).into()),
        name: None,
        class: "".into(),
        service: service.into(),
    }
}

/// An hour: chatter, two mails, one page, an ssh session.
fn talk_of_hour(rng: &mut Rng, hour: u64, talk: &mut Vec<Talk>) {
    let begin = Instant::ZERO + Duration::from_secs(hour * 3_600);
    let within = |rng: &mut Rng| begin + Duration::from_millis(rng.below(3_600_000));
    let mut say = |at, flow, bytes, urgent| talk.push(Talk { at, flow, bytes, urgent });
    for _ in 0..60 {
        let port = CHATTER[rng.below(4) as usize];
        let host = 1 + rng.below(9);
        say(within(rng), flow(host, 17, port, ""), 90, false);
    }
    for _ in 0..2 {
        let size = 500 + rng.below(2_000);
        say(within(rng), flow(8, 6, 25, "mail"), size, false);
    }
    let size = 2_000 + rng.below(6_000);
    say(within(rng), flow(7, 6, 443, ""), size, true);
    let ssh = within(rng);
    for line in 0..10 {
        let at = ssh + Duration::from_secs(line * 4 + rng.below(4));
        say(at, flow(6, 6, 22, ""), 60 + rng.below(200), true);
    }
}

/// Those of a gateway: the shipped list of noise, mail gathers, the rest is a user's.
fn careful() -> Result<Rules, String> {
    let when = Match { services: vec!["mail".into()], ..Match::default() };
    let (amount, age) = (Some(ByteCount(8_000)), Some(Duration::from_secs(3_600)));
    let mail = Rule::new("mail", when, Action::Batch { amount, age, hours: None });
    let noise = read_noise(KNOWN_NOISE).map_err(|e| e.to_string())?;
    Rules::new(vec![mail], noise, Action::Raise)
}

fn any_packet() -> Result<Rules, String> {
    Rules::new(Vec::new(), Vec::new(), Action::Raise)
}

impl Ship {
    fn new(name: &'static str, rules: Rules, mut talk: Vec<Talk>) -> Result<Ship, String> {
        let step = Duration::from_secs(6);
        let rates = Rates::per_minute(Money::from_cents(240), step, step.times(5));
        let usd = "USD".parse().map_err(|_| "USD is no currency".to_owned())?;
        let tariff = Tariff::new(usd, vec![(String::new(), rates)]).map_err(|e| e.to_string())?;
        let carriers = vec![CarrierConfig::new("mini-m", true, tariff)];
        let config = ManagerConfig::new("shore", carriers, rules);
        talk.sort_by_key(|talk| std::cmp::Reverse(talk.at));
        Ok(Ship {
            manager: Manager::new(config, Instant::ZERO, Wall::default())?,
            books: Books::new(),
            now: Instant::ZERO,
            phone: Phone::OnHook,
            talk,
            waiting: Vec::new(),
            point_at: Instant::ZERO,
            day: Day {
                rules: name,
                calls: 0,
                connected_s: 0,
                price: String::new(),
                longest_wait_ms: 0,
                real: None,
                micros: 0,
                priced: Vec::new(),
                up: Vec::new(),
            },
        })
    }

    fn run(mut self, end: Instant) -> Day {
        while self.now < end {
            self.now = self.next_time().min(end);
            self.hear();
            self.ring();
            self.carry();
            self.obey();
            self.draw();
        }
        // What is still up at the end is paid for until then.
        self.manager.handle_ended(self.now, CARRIER, "the end", &mut self.books);
        while self.manager.poll(self.now, &mut self.books).is_some() {}
        for line in self.books.query(&Query::all(By::Peer)) {
            self.day.calls += line.sums.calls;
            self.day.connected_s += line.sums.connect_ms / 1_000;
        }
        let spent = self.spent();
        (self.day.price, self.day.micros) = (spent.to_string(), spent.as_micros().into());
        self.draw();
        self.day
    }

    /// The earliest of all that is to happen.
    fn next_time(&self) -> Instant {
        let manager = self.manager.poll_timeout().map(|(at, _)| at);
        let talk = self.talk.last().map(|talk| talk.at);
        let phone = match self.phone {
            Phone::OnHook => None,
            Phone::Calling(until) | Phone::HangingUp(until) => Some(until),
            Phone::Connected { ready } if self.now < ready => Some(ready),
            Phone::Connected { .. } => (!self.waiting.is_empty()).then_some(self.now + TICK),
        };
        let next = [manager, talk, phone, Some(self.point_at)].into_iter().flatten().min();
        next.unwrap_or(self.now).max(self.now + Duration::from_nanos(1))
    }

    /// Hosts speak; chatter that nobody heard is forgotten.
    fn hear(&mut self) {
        let now = self.now;
        while self.talk.last().is_some_and(|talk| talk.at <= now)
            && let Some(talk) = self.talk.pop()
        {
            let id = FlowId(self.talk.len() as u64);
            self.manager.handle_waiting(now, id, &talk.flow, talk.bytes);
            self.waiting.push((id, talk));
        }
        let is_over = |talk: &Talk| talk.flow.protocol == 17 && now.since(talk.at) > FORGOTTEN;
        for (id, talk) in self.waiting.iter().filter(|(_, talk)| is_over(talk)) {
            self.manager.handle_waiting(now, *id, &talk.flow, 0);
        }
        self.waiting.retain(|(_, talk)| !is_over(talk));
    }

    fn ring(&mut self) {
        match self.phone {
            Phone::Calling(until) if until <= self.now => {
                self.phone = Phone::Connected { ready: self.now + RISE };
                self.manager.handle_connected(self.now, CARRIER, false, &mut self.books);
            }
            Phone::Connected { ready } if ready <= self.now => {
                self.manager.handle_ready(self.now, CARRIER);
            }
            Phone::HangingUp(until) if until <= self.now => {
                self.phone = Phone::OnHook;
                let why = "hung up from here";
                self.manager.handle_ended(self.now, CARRIER, why, &mut self.books);
            }
            _ => {}
        }
    }

    /// A tick of the line for what waits, what somebody waits for first.
    fn carry(&mut self) {
        if !matches!(self.phone, Phone::Connected { ready } if ready <= self.now) {
            return;
        }
        let (now, mut room) = (self.now, BYTES_A_TICK);
        self.waiting.sort_by_key(|(id, talk)| (!talk.urgent, talk.at, *id));
        for (id, talk) in &mut self.waiting {
            let sent = talk.bytes.min(room);
            if sent == 0 {
                break;
            }
            if talk.urgent {
                let wait = now.since(talk.at).as_millis();
                self.day.longest_wait_ms = self.day.longest_wait_ms.max(wait);
                // Only the first byte counts.
                talk.urgent = false;
            }
            (room, talk.bytes) = (room - sent, talk.bytes - sent);
            let halves = [sent / 3, sent - sent / 3];
            self.manager.handle_traffic(now, CARRIER, &talk.flow, halves, &mut self.books);
            self.manager.handle_waiting(now, *id, &talk.flow, talk.bytes);
        }
        self.waiting.retain(|(_, talk)| talk.bytes > 0);
    }

    fn obey(&mut self) {
        while let Some(work) = self.manager.poll(self.now, &mut self.books) {
            match (work, self.phone) {
                (Work::Dial { .. }, _) => self.phone = Phone::Calling(self.now + SETUP),
                (Work::HangUp { .. }, Phone::Connected { .. }) => {
                    self.phone = Phone::HangingUp(self.now + HANGING_UP);
                }
                (Work::HangUp { .. }, _) => self.phone = Phone::OnHook,
                (Work::Admit { .. } | Work::Tell(_), _) => {}
            }
        }
        while self.books.poll_record().is_some() {}
    }

    fn spent(&self) -> Money {
        self.books.query(&Query::all(By::Peer)).iter().map(|line| line.sums.price).sum()
    }

    fn draw(&mut self) {
        let minutes = self.now.since(Instant::ZERO).as_millis() as f64 / 60_000.0;
        let carries = self.manager.state(CARRIER).is_some_and(State::carries);
        let (is, was) = (f64::from(u8::from(carries)), self.day.up.last().map(|up| up.1));
        if was != Some(is) {
            self.day.up.extend(was.map(|was| (minutes, was)));
            self.day.up.push((minutes, is));
        }
        if self.now >= self.point_at {
            self.point_at = self.now + POINT;
            let spent = self.spent().as_micros() as f64 / 1e6;
            self.day.priced.push((minutes, spent));
        }
    }
}

/// The same day by both kinds of rules: a gateway's first.
///
/// # Errors
/// If the shipped list of noise cannot be read, or the rules cannot be.
pub fn both(hours: u64, seed: u64) -> Result<[Day; 2], String> {
    let talk = talk_of(hours, seed);
    let end = Instant::ZERO + Duration::from_secs(hours * 3_600);
    let day = |name, rules: Rules| Ok::<_, String>(Ship::new(name, rules, talk.clone())?.run(end));
    Ok([day("rules", careful()?)?, day("any packet", any_packet()?)?])
}

fn talk_of(hours: u64, seed: u64) -> Vec<Talk> {
    let (mut rng, mut talk) = (Rng::new(seed), Vec::new());
    (0..hours).for_each(|hour| talk_of_hour(&mut rng, hour, &mut talk));
    talk
}

/// Prices of all days; at the foot, when the lines of the last two were up.
fn drawing(days: &[Day], hours: u64) -> LineChart {
    let spent = |day: &Day| day.priced.last().map_or(0.0, |p| p.1);
    let (mut series, most) = (Vec::new(), days.iter().map(spent).fold(1.0, f64::max));
    for (day, colour) in days.iter().zip(COLOURS) {
        let name = format!("{}: {} USD", day.rules, day.price);
        series.push(Series { name, colour, points: day.priced.clone() });
    }
    let last = days.len().saturating_sub(2);
    for (at, height) in (last..days.len()).zip([0.12, 0.06]) {
        let (day, colour) = (&days[at], COLOURS[at % COLOURS.len()]);
        let name = format!("{}: up", day.rules);
        let points = day.up.iter().map(|(x, up)| (*x, up * height * most)).collect();
        series.push(Series { name, colour, points });
    }
    LineChart {
        title: "A line that is paid by the minute".into(),
        caption: format!("over {hours} h of a ship's day; at the foot: when it is up"),
        x_label: "time (min)".into(),
        y_label: "price (USD)".into(),
        series,
        ..LineChart::default()
    }
}

/// Runs the command.
///
/// # Errors
/// If the drawing cannot be written.
pub fn run(args: Args, global: &Global) -> miette::Result<ExitCode> {
    if args.real {
        rights::prepare()?;
    }
    let mut days = both(args.hours, args.seed).map_err(|why| miette!("{why}"))?.to_vec();
    if args.real {
        let board = Board::start(global.quiet > 0);
        let (talk, pace) = (talk_of(args.hours, args.seed), real::Pace(args.speed_up));
        let length = Duration::from_secs(args.hours * 3_600);
        let real = real::both(&talk, length, &pace, &board).map_err(|why| miette!("{why}"))?;
        days.extend(real);
    }
    if let Some(file) = &args.svg {
        let picture = drawing(&days, args.hours).picture();
        let written = std::fs::write(file, picture);
        written.map_err(|e| miette!("cannot write {}: {e}", file.display()))?;
    }
    if global.json {
        print_json(&days)?;
        return Ok(ExitCode::SUCCESS);
    }
    let head = ["", "calls", "connected", "price", "longest wait"];
    let [rules, calls, connected, price, wait] = head;
    print(&format!("{rules:<18}{calls:>7}{connected:>12}{price:>12}{wait:>16}\n"))?;
    for day in &days {
        let (minutes, seconds) = (day.connected_s / 60, day.connected_s % 60);
        let wait = day.longest_wait_ms as f64 / 1_000.0;
        print(&format!(
            "{:<18}{:>7}{minutes:>8}:{seconds:02} min{:>8} USD{wait:>14.1} s\n",
            day.rules, day.calls, day.price
        ))?;
    }
    for (day, real) in days.iter().filter_map(|day| Some((day, day.real.as_ref()?))) {
        print(&format!(
            "{}: {} answered byte for byte, {} urgent ones not; {} packets of chatter; the \
             meter has {} USD\n",
            day.rules, real.answered, real.unanswered_urgent, real.chatter, real.metered
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// R-DDR, R-COST.
    #[test]
    fn an_hour_costs_a_third_of_dialling_for_any_packet_and_nobody_waits_longer_than_set_up() {
        for seed in 1..=20 {
            let [careful, any] = both(1, seed).expect("good rules");
            assert!(any.calls > 0 && careful.calls > 0, "{seed}: {careful:?}");
            assert!(careful.connected_s * 3 <= any.connected_s, "{seed}");
            assert!(careful.micros * 3 <= any.micros, "{seed}: {} {}", careful.price, any.price);
            // A call that is being hung up is over first.
            let most = SETUP + RISE + HANGING_UP + TICK;
            assert!(careful.longest_wait_ms <= most.as_millis() + 1, "{seed}: {careful:?}");
            let picture = drawing(&[careful, any], 1).picture();
            assert!(picture.contains("any packet") && picture.contains("<path"), "{seed}");
        }
    }
}
