//! A ship's month in virtual time: the real manager, books and rules; a telephone network with a
//! meter of its own; hosts that talk by a script.
//!
//! The meter knows nothing of `dial::tariff`: it looks at the clock at each step of a call, as an
//! exchange does.

use dial::books::{Books, By, Query};
use dial::calendar::Wall;
use dial::manager::{CarrierConfig, CarrierId, FlowId, Manager, ManagerConfig, State, Work};
use dial::money::Money;
use dial::rules::{Action, Flow, KNOWN_NOISE, Match, Rule, Rules, read_noise};
use dial::tariff::{Band, Rates, Tariff};
use units::{ByteCount, Duration, Instant, Rng};

/// Sunday, 1 November 2026, 00:00.
const START: u64 = 1_793_491_200;
const SECOND: u64 = 1_000_000_000;

fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}
fn cents(n: u64) -> Money {
    Money::from_cents(n)
}

/// What the hosts do: from when on how many bytes wait, and of what.
#[derive(Clone)]
struct Talk {
    at: Instant,
    flow: Flow,
    bytes: u64,
    urgent: bool,
}

fn flow(host: u8, protocol: u8, port: u16, class: &str) -> Flow {
    Flow {
        host: format!("10.2.0.{host}").parse().expect("a host"),
        protocol,
        port,
        remote: Some("192.0.2.1".parse().expect("an address")),
        name: None,
        class: class.into(),
        service: if port == 25 { "mail".into() } else { "".into() },
    }
}

/// Somebody at random within the hour.
fn within(rng: &mut Rng, hour: u64) -> Instant {
    Instant::from_nanos((hour * 3_600 + rng.below(3_600)) * SECOND + rng.below(SECOND))
}

/// An hour of a ship's day: chatter of every host, two mails, one page, an ssh session.
fn hour_of_talk(rng: &mut Rng, hour: u64, talk: &mut Vec<Talk>) {
    let mut say = |at, flow, bytes, urgent| talk.push(Talk { at, flow, bytes, urgent });
    for _ in 0..60 {
        let noise = [123, 5353, 1900, 137][rng.below(4) as usize];
        say(within(rng, hour), flow(1 + rng.below(9) as u8, 17, noise, "bulk"), 90, false);
    }
    for _ in 0..2 {
        let size = 500 + rng.below(2_000);
        say(within(rng, hour), flow(8, 6, 25, "bulk"), size, false);
    }
    say(within(rng, hour), flow(7, 6, 443, "interactive"), 2_000 + rng.below(6_000), true);
    let ssh = within(rng, hour);
    for line in 0..10 {
        let at = ssh + seconds(line * 4 + rng.below(4));
        say(at, flow(6, 6, 22, "interactive"), 60 + rng.below(200), true);
    }
}

/// What the exchange knows of a call.
#[derive(Clone, Debug)]
struct Metered {
    carrier: usize,
    from: Instant,
    to: Instant,
    bytes: u64,
}

/// The exchange's own price of a call.
fn bill(call: &Metered) -> u64 {
    let ns = call.to.since(call.from).as_nanos();
    match call.carrier {
        // Steps of 30 s, two at least; 3.00 a minute from 8 to 20, else 1.20. In cents.
        0 => {
            let (mut cost, mut step) = (0, 0);
            while step < 2 || step * 30 * SECOND < ns {
                let at = START + call.from.as_nanos() / SECOND + step * 30;
                let hour = at / 3_600 % 24;
                cost += if (8..20).contains(&hour) { 150 } else { 60 };
                step += 1;
            }
            cost
        }
        // 0.25 a call, and 0.07 for each 1,000 bytes that have begun.
        _ => 25 + 7 * call.bytes.div_ceil(1_000),
    }
}

fn tariffs() -> [Tariff; 2] {
    let band = |when: &str, price| Band {
        when: when.parse().expect("a window"),
        per_minute: cents(price),
    };
    let time = Rates {
        bands: vec![band("08:00-20:00", 300), band("20:00-08:00", 120)],
        increment: seconds(30),
        minimum: seconds(60),
        ..Rates::default()
    };
    let bytes =
        Rates { per_call: cents(25), ..Rates::per_megabyte(cents(7_000), ByteCount(1_000)) };
    [time, bytes].map(|rates| {
        let usd = "USD".parse().expect("a currency");
        Tariff::new(usd, vec![("".into(), rates)]).expect("prices")
    })
}

fn careful_rules() -> Rules {
    let when = Match { services: vec!["mail".into()], ..Match::default() };
    let then =
        Action::Batch { amount: Some(ByteCount(8_000)), age: Some(seconds(3_600)), hours: None };
    let noise = read_noise(KNOWN_NOISE).expect("the list");
    Rules::new(vec![Rule::new("mail", when, then)], noise, Action::Raise).expect("rules")
}
/// A dialler of the old kind: any packet raises the line.
fn any_packet() -> Rules {
    Rules::new(Vec::new(), Vec::new(), Action::Raise).expect("rules")
}

fn config(rules: Rules) -> ManagerConfig {
    let [time, bytes] = tariffs();
    let carriers = vec![
        CarrierConfig { priority: 1, ..CarrierConfig::new("mini-m", true, time) },
        CarrierConfig { priority: 2, ..CarrierConfig::new("iridium", true, bytes) },
    ];
    ManagerConfig::new("shore", carriers, rules)
}

/// Mini-M takes 28.28 s to connect, and the first exchange a round trip.
const SETUP: Duration = Duration::from_millis(28_280);
const RISE: Duration = Duration::from_millis(2_000);
/// What 2,400 bit/s in 8N1 carry in a tenth of a second.
const TICK: Duration = Duration::from_millis(100);
const BYTES_A_TICK: u64 = 24;

/// A line as the network sees it.
#[derive(Clone, Copy)]
enum Phone {
    OnHook,
    Calling { until: Instant, fails: bool },
    Connected { from: Instant, ready: Instant, lost: Instant, bytes: u64 },
    HangingUp { from: Instant, until: Instant, bytes: u64 },
}

struct Ship {
    manager: Manager,
    books: Books,
    ledger: Vec<u8>,
    config: ManagerConfig,
    rng: Rng,
    now: Instant,
    phones: [Phone; 2],
    bills: Vec<Metered>,
    talk: Vec<Talk>,
    /// What waits: (number, what, since).
    waiting: Vec<(u64, Talk)>,
    next_flow: u64,
    /// The node is off until then.
    off: Option<Instant>,
    kills: Vec<Instant>,
    /// In mid-call.
    killed_in_call: usize,
    longest_wait: Duration,
    failures: u64,
}

impl Ship {
    fn new(seed: u64, rules: Rules, talk: Vec<Talk>, kills: Vec<Instant>) -> Ship {
        let config = config(rules);
        let manager = Manager::new(config.clone(), Instant::ZERO, Wall(START)).expect("good");
        let mut talk = talk;
        talk.sort_by_key(|t| std::cmp::Reverse(t.at));
        Ship {
            manager,
            books: Books::new(),
            ledger: Vec::new(),
            config,
            rng: Rng::new(seed),
            now: Instant::ZERO,
            phones: [Phone::OnHook; 2],
            bills: Vec::new(),
            talk,
            waiting: Vec::new(),
            next_flow: 0,
            off: None,
            kills: kills.into_iter().rev().collect(),
            killed_in_call: 0,
            longest_wait: Duration::ZERO,
            failures: 0,
        }
    }

    fn run(&mut self, end: Instant) {
        while self.now < end {
            let next = self.next_time().min(end);
            self.now = next;
            self.kill_or_start();
            if self.off.is_none() {
                self.hear_talk();
                self.phones_ring();
                self.carry();
                self.obey();
            }
        }
    }

    /// The earliest of everything that is to happen.
    fn next_time(&self) -> Instant {
        if let Some(at) = self.off {
            return at;
        }
        let mut next = self.manager.poll_timeout().map_or(Instant::FAR_FUTURE, |(at, _)| at);
        next = next.min(self.talk.last().map_or(Instant::FAR_FUTURE, |t| t.at));
        next = next.min(self.kills.last().copied().unwrap_or(Instant::FAR_FUTURE));
        for phone in &self.phones {
            next = next.min(match *phone {
                Phone::OnHook => Instant::FAR_FUTURE,
                Phone::Calling { until, .. } | Phone::HangingUp { until, .. } => until,
                Phone::Connected { ready, lost, .. } => {
                    let event = if self.now < ready { ready.min(lost) } else { lost };
                    if self.waiting.is_empty() { event } else { event.min(self.now + TICK) }
                }
            });
        }
        // Never stands still.
        next.max(self.now + Duration::from_nanos(1))
    }

    /// Pulls the plug: what was not flushed is lost, DTR falls, and the exchange sees the call end.
    fn kill_or_start(&mut self) {
        if self.kills.last().is_some_and(|at| *at <= self.now) && self.off.is_none() {
            self.kills.pop();
            for at in 0..2 {
                let in_call = matches!(self.phones[at], Phone::Connected { .. });
                self.killed_in_call += usize::from(in_call);
                self.on_hook(at);
            }
            self.off = Some(self.now + seconds(1 + self.rng.below(300)));
        }
        if self.off.is_some_and(|at| at <= self.now) {
            self.off = None;
            // A torn line, as a power cut leaves it.
            self.ledger.extend_from_slice(b"deadbeef usage 12");
            let replay = Books::replay(&self.ledger);
            assert_eq!(replay.damaged, 0);
            self.ledger.truncate(replay.valid);
            self.books = replay.books;
            let wall = Wall(START + self.now.as_nanos() / SECOND);
            self.manager = Manager::new(self.config.clone(), self.now, wall).expect("good");
            for (id, talk) in &self.waiting {
                self.manager.handle_waiting(self.now, FlowId(*id), &talk.flow, talk.bytes);
            }
        }
    }

    fn hear_talk(&mut self) {
        while self.talk.last().is_some_and(|t| t.at <= self.now) {
            let talk = self.talk.pop().expect("just seen");
            let id = self.next_flow;
            self.next_flow += 1;
            self.manager.handle_waiting(self.now, FlowId(id), &talk.flow, talk.bytes);
            self.waiting.push((id, talk));
        }
        // Chatter that was not heard is not said again: it is forgotten.
        let now = self.now;
        let noise = |t: &Talk| t.flow.protocol == 17 && now.since(t.at) > seconds(60);
        for (id, talk) in self.waiting.iter().filter(|(_, t)| noise(t)) {
            self.manager.handle_waiting(now, FlowId(*id), &talk.flow, 0);
        }
        self.waiting.retain(|(_, t)| !noise(t));
    }

    /// The exchange's side of a call that ends.
    fn on_hook(&mut self, at: usize) {
        let call = match self.phones[at] {
            Phone::Connected { from, bytes, .. } | Phone::HangingUp { from, bytes, .. } => {
                Some(Metered { carrier: at, from, to: self.now, bytes })
            }
            Phone::OnHook | Phone::Calling { .. } => None,
        };
        self.bills.extend(call);
        self.phones[at] = Phone::OnHook;
    }

    fn phones_ring(&mut self) {
        for at in 0..2 {
            let carrier = CarrierId(at);
            match self.phones[at] {
                Phone::Calling { until, fails } if until <= self.now => {
                    if fails {
                        self.failures += 1;
                        self.phones[at] = Phone::OnHook;
                        self.manager.handle_failed(self.now, carrier, "busy");
                        continue;
                    }
                    let lost = self.now + Duration::from_millis(1 + self.rng.below(1_500_000));
                    let ready = self.now + RISE;
                    self.phones[at] = Phone::Connected { from: self.now, ready, lost, bytes: 0 };
                    self.manager.handle_connected(self.now, carrier, false, &mut self.books);
                }
                Phone::Connected { lost, .. } if lost <= self.now => {
                    self.on_hook(at);
                    let cause = "the carrier was lost";
                    self.manager.handle_ended(self.now, carrier, cause, &mut self.books);
                }
                Phone::Connected { ready, .. } if ready <= self.now => {
                    self.manager.handle_ready(self.now, carrier);
                }
                Phone::HangingUp { until, .. } if until <= self.now => {
                    self.on_hook(at);
                    let cause = "hung up from here";
                    self.manager.handle_ended(self.now, carrier, cause, &mut self.books);
                }
                _ => {}
            }
        }
    }

    /// A tick of the line for what waits, the urgent first.
    fn carry(&mut self) {
        let mut room = [BYTES_A_TICK; 2];
        self.waiting.sort_by_key(|(id, t)| (!t.urgent, *id));
        for (id, talk) in &mut self.waiting {
            let Some(carrier) = self.manager.carriers_for(self.now, &talk.flow).first().copied()
            else {
                continue;
            };
            let Phone::Connected { bytes, ready, .. } = &mut self.phones[carrier.0] else {
                continue;
            };
            let sent = talk.bytes.min(room[carrier.0]);
            if *ready > self.now || sent == 0 {
                continue;
            }
            if talk.urgent {
                self.longest_wait = self.longest_wait.max(self.now.since(talk.at));
            }
            room[carrier.0] -= sent;
            talk.bytes -= sent;
            *bytes += sent;
            let halves = [sent / 3, sent - sent / 3];
            self.manager.handle_traffic(self.now, carrier, &talk.flow, halves, &mut self.books);
            self.manager.handle_waiting(self.now, FlowId(*id), &talk.flow, talk.bytes);
        }
        self.waiting.retain(|(_, t)| t.bytes > 0);
    }

    fn obey(&mut self) {
        while let Some(work) = self.manager.poll(self.now, &mut self.books) {
            match work {
                Work::Dial { carrier, .. } => {
                    let fails = self.rng.below(10) == 0;
                    let until = if fails { seconds(7) } else { SETUP };
                    assert!(matches!(self.phones[carrier.0], Phone::OnHook), "one call a line");
                    self.phones[carrier.0] = Phone::Calling { until: self.now + until, fails };
                }
                Work::HangUp { carrier, .. } => match self.phones[carrier.0] {
                    Phone::Connected { from, bytes, .. } => {
                        let until = self.now + Duration::from_millis(500);
                        self.phones[carrier.0] = Phone::HangingUp { from, until, bytes };
                    }
                    _ => self.phones[carrier.0] = Phone::OnHook,
                },
                Work::Admit { .. } | Work::Tell(_) => {}
            }
        }
        // The caller writes and flushes before it waits.
        while let Some(line) = self.books.poll_record() {
            self.ledger.extend_from_slice(line.as_bytes());
        }
    }

    /// The calls that are still there end; the books are what the ledger says.
    fn settle(mut self) -> (Books, Vec<Metered>, Ship) {
        for at in 0..2 {
            if matches!(self.phones[at], Phone::Connected { .. } | Phone::HangingUp { .. }) {
                self.on_hook(at);
                self.manager.handle_ended(self.now, CarrierId(at), "the end", &mut self.books);
            }
        }
        self.obey();
        let replay = Books::replay(&self.ledger);
        assert!(replay.broken.is_empty() && replay.damaged == 0);
        (replay.books, self.bills.clone(), self)
    }
}

fn month_of_talk(seed: u64, days: u64) -> Vec<Talk> {
    let (mut rng, mut talk) = (Rng::new(seed), Vec::new());
    for hour in 0..days * 24 {
        hour_of_talk(&mut rng, hour, &mut talk);
    }
    talk
}

/// Sums by carrier: calls, bytes, price.
fn by_carrier(books: &Books) -> Vec<(String, u64, u64, Money)> {
    let lines = books.query(&Query::all(By::Carrier));
    lines.into_iter().map(|l| (l.name, l.sums.calls, l.sums.bytes(), l.sums.price)).collect()
}

#[test]
fn a_month_of_calls_is_booked_to_the_cent_also_when_the_node_is_killed_in_mid_call() {
    let end = Instant::ZERO + seconds(30 * 86_400);
    let mut rng = Rng::new(17);
    let mut kills: Vec<Instant> =
        (0..2_000).map(|_| Instant::from_nanos(rng.below(end.as_nanos()))).collect();
    kills.sort();
    let mut ship = Ship::new(4, careful_rules(), month_of_talk(3, 30), kills);
    ship.run(end);
    let (books, bills, ship) = ship.settle();
    assert!(bills.len() > 1_000, "{} calls", bills.len());
    assert!(ship.killed_in_call > 50, "{} killed in mid-call", ship.killed_in_call);
    assert!(ship.failures > 50, "{} failed", ship.failures);
    for (at, name) in [(1, "iridium"), (0, "mini-m")] {
        let own = || bills.iter().filter(|b| b.carrier == at);
        let cost = Money::from_cents(own().map(bill).sum());
        let booked = by_carrier(&books).into_iter().find(|l| l.0 == name).expect("it was used");
        assert_eq!((booked.1, booked.3), (own().count() as u64, cost), "{name}");
        // What the last minute before a kill brought is not in the books, and nothing else lacks.
        let crossed: u64 = own().map(|b| b.bytes).sum();
        let minute = 600 * BYTES_A_TICK * ship.killed_in_call as u64;
        assert!(booked.2 <= crossed && booked.2 + minute >= crossed, "{} of {crossed}", booked.2);
    }
    // However they are divided, the parts make the whole.
    let total: Money = by_carrier(&books).into_iter().map(|l| l.3).sum();
    for by in [By::Host, By::Class, By::Service, By::Day, By::Month] {
        let sum: Money = books.query(&Query::all(by)).iter().map(|l| l.sums.price).sum();
        assert_eq!(sum, total, "{by:?}");
    }
    println!(
        "{} calls, {} killed in mid-call, {} failed, {total} USD",
        bills.len(),
        ship.killed_in_call,
        ship.failures
    );
}

/// R-DDR, R-COST: connect minutes and cost are at most a third of dialling for any packet, and
/// nothing urgent waits longer than set-up.
#[test]
fn a_day_costs_a_third_of_dialling_for_any_packet_and_nobody_waits_longer_than_set_up() {
    let end = Instant::ZERO + seconds(86_400);
    let day = |rules| {
        let mut ship = Ship::new(1, rules, month_of_talk(5, 1), Vec::new());
        // This network works: what is compared is what the rules do.
        ship.config.carriers.truncate(1);
        ship.manager = Manager::new(ship.config.clone(), Instant::ZERO, Wall(START)).expect("good");
        ship.run(end);
        let (books, bills, ship) = ship.settle();
        let connected: u64 = bills.iter().map(|b| b.to.since(b.from).as_millis() / 1_000).sum();
        let cost: Money = by_carrier(&books).into_iter().map(|l| l.3).sum();
        println!(
            "{} calls, {} min, {cost} USD, longest wait {}",
            bills.len(),
            connected / 60,
            ship.longest_wait
        );
        let down = matches!(ship.manager.state(CarrierId(0)), Some(State::Down { .. }));
        (connected, cost, ship.longest_wait, ship.failures, down)
    };
    let careful = day(careful_rules());
    let any = day(any_packet());
    assert!(careful.0 * 3 <= any.0, "{careful:?} {any:?}");
    assert!(careful.1.as_micros() * 3 <= any.1.as_micros(), "{careful:?} {any:?}");
    // Set-up, the first exchange, and the redials of calls that failed; a page of 8 kB takes 33 s.
    let redials = seconds(7 + 5) + seconds(7 + 10) + seconds(7 + 20);
    assert!(careful.2 <= SETUP + RISE + redials + seconds(40), "{careful:?}");
}
