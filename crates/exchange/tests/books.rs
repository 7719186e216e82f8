//! A thousand calls in virtual time: the real manager, books and dialler at a ship, and the
//! emulator's telephone network, whose meter knows nothing of tariffs. The books agree with the
//! meter to the cent, also where the gateway is killed in mid-call (R-COST).

use dial::books::{Books, By, Query};
use dial::calendar::Wall;
use dial::hayes::{HangUp, Modem, ModemConfig, Output, Told};
use dial::manager::{CarrierConfig, CarrierId, FlowId, Manager, ManagerConfig, Work};
use dial::money::Money;
use dial::rules::{Action, Flow, Rules};
use dial::tariff::{Rates, Tariff};
use exchange::{CallRecord, Exchange, ExchangeConfig, Faults, LineConfig};
use units::{Duration, Instant, Ratio, Rng};

/// Monday, 23 November 2026.
const START: u64 = 1_795_392_000;
const LINE: CarrierId = CarrierId(0);
/// Lines of the exchange.
const SHIP: usize = 0;
const SHORE: usize = 1;

fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// 0.20 a call, 2.40 a minute in steps of 6 s, five steps at least.
fn tariff() -> Tariff {
    let rates = Rates {
        per_call: Money::from_cents(20),
        ..Rates::per_minute(Money::from_cents(240), seconds(6), seconds(30))
    };
    Tariff::new("USD".parse().expect("a currency"), vec![("".into(), rates)]).expect("prices")
}

/// The same as an exchange counts it, in cents.
fn bill(call: &CallRecord) -> u64 {
    let ns = call.end.since(call.start).as_nanos();
    20 + 24 * ns.div_ceil(seconds(6).as_nanos()).max(5)
}

fn network() -> Exchange {
    let line = |name: &str, number: &str| LineConfig { name: name.into(), number: number.into() };
    let share = Ratio::from_f64;
    let faults = Faults {
        busy: share(0.05),
        no_dialtone: share(0.02),
        no_carrier: share(0.05),
        drop: Some((seconds(1), seconds(900))),
        ..Faults::default()
    };
    let lines = vec![line("ship", "100"), line("shore", "200")];
    Exchange::new(ExchangeConfig { lines, faults, ..Default::default() }, 5).expect("a network")
}

fn modem(numbers: &[&str], answer: Option<u32>) -> Modem {
    Modem::new(ModemConfig {
        numbers: numbers.iter().map(|n| (*n).to_owned()).collect(),
        answer,
        carrier_detect: false,
        hang_up: HangUp::Escape,
        ..ModemConfig::default()
    })
}

fn user() -> Flow {
    Flow {
        host: "10.2.0.7".parse().expect("a host"),
        protocol: 6,
        port: 22,
        remote: None,
        name: None,
        class: "interactive".into(),
        service: "".into(),
    }
}

struct Ship {
    manager: Manager,
    books: Books,
    modem: Modem,
    ledger: Vec<u8>,
}

fn new_manager(now: Instant) -> Manager {
    let rules = Rules::new(Vec::new(), Vec::new(), Action::Raise).expect("rules");
    let carriers = vec![CarrierConfig::new("inmarsat", true, tariff())];
    let wall = Wall(START + now.as_nanos() / seconds(1).as_nanos());
    Manager::new(ManagerConfig::new("shore", carriers, rules), now, wall).expect("a manager")
}

impl Ship {
    fn boot(now: Instant, ledger: Vec<u8>) -> Ship {
        let books = Books::replay(&ledger).books;
        let mut modem = modem(&["200"], None);
        modem.handle_open(now);
        Ship { manager: new_manager(now), books, modem, ledger }
    }

    /// Does all that there is to do now. True: something was.
    fn turn(&mut self, now: Instant, network: &mut Exchange) -> bool {
        let bytes = network.read(now, SHIP, 4_096);
        let mut any = !bytes.is_empty();
        self.modem.handle_bytes(now, &bytes, |_| {});
        self.modem.handle_timeout(now);
        while let Some(output) = self.modem.poll() {
            any = true;
            match output {
                Output::Send(bytes) => assert_eq!(network.write(now, SHIP, &bytes), bytes.len()),
                Output::Dtr(_) | Output::Told(Told::Ready | Told::Dialling(_)) => {}
                Output::Told(Told::Connected { .. }) => {
                    self.manager.handle_connected(now, LINE, false, &mut self.books);
                    self.manager.handle_ready(now, LINE);
                }
                Output::Told(Told::Failed(why) | Told::Trouble(why)) => {
                    self.manager.handle_failed(now, LINE, &why.to_string());
                }
                Output::Told(Told::Ended(why)) => {
                    self.manager.handle_ended(now, LINE, &why.to_string(), &mut self.books);
                }
            }
        }
        while let Some(work) = self.manager.poll(now, &mut self.books) {
            any = true;
            match work {
                Work::Dial { .. } => self.modem.dial(now),
                Work::HangUp { .. } => self.modem.hang_up(now),
                Work::Admit { .. } | Work::Tell(_) => {}
            }
        }
        while let Some(line) = self.books.poll_record() {
            self.ledger.extend_from_slice(line.as_bytes());
        }
        any
    }
}

/// The shore answers whoever calls.
fn turn_shore(now: Instant, modem: &mut Modem, network: &mut Exchange) -> bool {
    let bytes = network.read(now, SHORE, 4_096);
    let mut any = !bytes.is_empty();
    modem.handle_bytes(now, &bytes, |_| {});
    modem.handle_timeout(now);
    while let Some(output) = modem.poll() {
        any = true;
        match output {
            Output::Send(bytes) => assert_eq!(network.write(now, SHORE, &bytes), bytes.len()),
            Output::Told(Told::Connected { .. }) => modem.prove(),
            _ => {}
        }
    }
    any
}

#[test]
fn a_thousand_calls_are_booked_to_the_cent_of_the_networks_meter_also_when_killed_in_mid_call() {
    let mut rng = Rng::new(11);
    let mut network = network();
    let mut now = Instant::ZERO;
    let mut shore = modem(&[], Some(1));
    network.set_open(now, SHIP, true);
    network.set_open(now, SHORE, true);
    shore.handle_open(now);
    let mut ship = Ship::boot(now, Vec::new());
    // When the user wants something, for how long he does, and when the plug is pulled.
    let (mut wants, mut done) = (now + seconds(10), Instant::FAR_FUTURE);
    let mut kill = Instant::FAR_FUTURE;
    let (mut killed, mut seen) = (0, 0);
    while network.calls().len() < 1_000 || network.carrier(SHIP) {
        if wants <= now {
            ship.manager.handle_waiting(now, FlowId(1), &user(), 100);
            wants = Instant::FAR_FUTURE;
        }
        if done <= now {
            ship.manager.handle_waiting(now, FlowId(1), &user(), 0);
            (wants, done) = (now + seconds(300 + rng.below(600)), Instant::FAR_FUTURE);
        }
        if kill <= now {
            killed += usize::from(network.carrier(SHIP));
            network.set_open(now, SHIP, false);
            // What a power cut leaves of a line that was being written.
            ship.ledger.extend_from_slice(b"deadbeef usage 12");
            ship.ledger.truncate(Books::replay(&ship.ledger).valid);
            now += seconds(1 + rng.below(100));
            network.advance(now);
            network.set_open(now, SHIP, true);
            ship = Ship::boot(now, std::mem::take(&mut ship.ledger));
            (kill, done, wants) = (Instant::FAR_FUTURE, Instant::FAR_FUTURE, now + seconds(5));
        }
        while ship.turn(now, &mut network) | turn_shore(now, &mut shore, &mut network) {}
        if network.calls().len() > seen {
            seen = network.calls().len();
            done = now + Duration::from_millis(rng.below(90_000));
            if rng.below(10) == 0 {
                kill = now + Duration::from_millis(rng.below(60_000));
            }
        }
        let manager = ship.manager.poll_timeout().map(|(at, _)| at);
        let modems = [ship.modem.poll_timeout(), shore.poll_timeout()];
        let next = [manager, modems[0], modems[1], network.next_time(), Some(wants.min(done))];
        let next = next.into_iter().flatten().min().expect("the user comes back").min(kill);
        now = next.max(now + Duration::from_nanos(1));
        network.advance(now);
    }
    let calls = network.calls();
    assert!(killed >= 50, "{killed} killed in mid-call");
    let metered = Money::from_cents(calls.iter().map(bill).sum());
    let books = Books::replay(&ship.ledger).books;
    let lines = books.query(&Query::all(By::Peer));
    let [all] = &lines[..] else { panic!("{lines:?}") };
    println!("{} calls, {killed} killed in mid-call, {metered} USD", calls.len());
    assert_eq!((all.sums.calls, all.sums.price), (calls.len() as u64, metered));
}
