//! The manager beside a clock, books and modems that do as the test says.

use proptest::prelude::*;
use units::{BitRate, Duration, IpPrefix};

use super::*;
use crate::books::{By, Query};
use crate::rules::{KNOWN_NOISE, Match, Rules, read_noise};
use crate::tariff::{Band, Beyond, Flat, Rates, Tariff};

mod calls;
mod carriers;
mod chaos;
mod money;
mod several;

/// Monday, 23 November 2026, 12:00.
const NOON: Wall = Wall(1_795_392_000 + 43_200);
const A: CarrierId = CarrierId(0);
const B: CarrierId = CarrierId(1);

struct Bench {
    manager: Manager,
    books: Books,
    now: Instant,
    work: Vec<Work>,
    told: Vec<Event>,
}

fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}
fn price(text: &str) -> Money {
    text.parse().expect("an amount")
}
fn usd(rates: Rates) -> Tariff {
    Tariff::new("USD".parse().expect("a currency"), vec![("".into(), rates)]).expect("prices")
}
/// 3.00 a minute in steps of 60 s.
fn per_minute() -> Tariff {
    usd(Rates::per_minute(price("3"), seconds(60), Duration::ZERO))
}
fn flow(host: &str, protocol: u8, port: u16) -> Flow {
    Flow {
        host: host.parse().expect("a host"),
        protocol,
        port,
        remote: Some("192.0.2.1".parse().expect("an address")),
        name: None,
        class: "interactive".into(),
        service: "".into(),
    }
}
fn ssh() -> Flow {
    flow("10.2.0.7", 6, 22)
}
fn mail() -> Flow {
    flow("10.2.0.8", 6, 25)
}
fn clock() -> Flow {
    flow("10.2.0.9", 17, 123)
}
/// Mail is gathered: 10 kB, or half an hour.
fn rules() -> Rules {
    let when = Match { ports: vec![25..=25], ..Match::default() };
    let then =
        Action::Batch { amount: Some(ByteCount(10_000)), age: Some(seconds(1_800)), hours: None };
    let noise = read_noise(KNOWN_NOISE).expect("the list");
    Rules::new(vec![Rule::new("mail", when, then)], noise, Action::Raise).expect("rules")
}
fn one_modem() -> ManagerConfig {
    ManagerConfig::new("shore", vec![CarrierConfig::new("inmarsat", true, per_minute())], rules())
}

impl Bench {
    fn new(config: ManagerConfig) -> Bench {
        let manager = Manager::new(config, Instant::ZERO, NOON).expect("a configuration");
        let (work, told) = (Vec::new(), Vec::new());
        let mut bench = Bench { manager, books: Books::new(), now: Instant::ZERO, work, told };
        bench.drain();
        bench
    }
    fn drain(&mut self) {
        while let Some(work) = self.manager.poll(self.now, &mut self.books) {
            match work {
                Work::Tell(event) => self.told.push(event),
                work => self.work.push(work),
            }
        }
        // The drain law: nothing is left, and the next time lies ahead.
        let next = self.manager.poll_timeout();
        assert!(next.is_none_or(|(at, _)| at > self.now), "{next:?} at {:?}", self.now);
    }
    /// Lets time pass, with all timers.
    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some((at, _)) = self.manager.poll_timeout().filter(|(at, _)| *at <= end) {
            self.now = at;
            self.drain();
        }
        self.now = end;
        self.drain();
    }
    fn waits(&mut self, id: u64, flow: &Flow, bytes: u64) {
        self.manager.handle_waiting(self.now, FlowId(id), flow, bytes);
        self.drain();
    }
    fn crosses(&mut self, carrier: CarrierId, flow: &Flow, bytes: u64) {
        let (manager, books) = (&mut self.manager, &mut self.books);
        manager.handle_traffic(self.now, carrier, flow, [bytes, 0], books);
        self.drain();
    }
    fn connected(&mut self, carrier: CarrierId) {
        self.manager.handle_connected(self.now, carrier, false, &mut self.books);
        self.drain();
    }
    fn up(&mut self, carrier: CarrierId) {
        self.connected(carrier);
        self.manager.handle_ready(self.now, carrier);
        self.drain();
    }
    fn failed(&mut self, carrier: CarrierId, cause: &str) {
        self.manager.handle_failed(self.now, carrier, cause);
        self.drain();
    }
    fn ended(&mut self, carrier: CarrierId, cause: &str) {
        self.manager.handle_ended(self.now, carrier, cause, &mut self.books);
        self.drain();
    }
    fn says(&mut self, command: Command) {
        self.manager.handle_command(command);
        self.drain();
    }
    fn state(&self, carrier: CarrierId) -> &'static str {
        self.manager.state(carrier).expect("a carrier").name()
    }
    fn cause(&self, carrier: CarrierId) -> String {
        self.manager.state(carrier).expect("a carrier").cause()
    }
    fn work(&mut self) -> Vec<Work> {
        std::mem::take(&mut self.work)
    }
    /// The carriers that were to be dialled since the last time, and nothing else was.
    fn dialled(&mut self) -> Vec<usize> {
        let number = |work| match work {
            Work::Dial { carrier, .. } => carrier.0,
            other => panic!("{other:?}"),
        };
        self.work().into_iter().map(number).collect()
    }
    fn hung_up(&mut self) -> Vec<(usize, DownCause)> {
        let number = |work| match work {
            Work::HangUp { carrier, cause } => (carrier.0, cause),
            other => panic!("{other:?}"),
        };
        self.work().into_iter().map(number).collect()
    }
    /// A call for ssh that has just come up.
    fn calling(config: ManagerConfig) -> Bench {
        let mut bench = Bench::new(config);
        bench.waits(1, &ssh(), 100);
        bench.up(A);
        bench.waits(1, &ssh(), 0);
        bench.crosses(A, &ssh(), 100);
        bench.work();
        bench
    }
    fn spent(&self) -> Money {
        self.books.query(&Query::all(By::Peer)).iter().map(|l| l.sums.price).sum()
    }
}
