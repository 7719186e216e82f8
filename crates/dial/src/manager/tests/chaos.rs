//! Anything at any time: what must hold whatever happens.

use super::*;

#[derive(Clone, Debug)]
enum Step {
    Wait { id: u64, port: u16, bytes: u64 },
    Cross { carrier: usize, port: u16, bytes: u64 },
    Connected(usize),
    Ready(usize),
    Failed(usize),
    Ended(usize),
    Command(u8),
    LineCommand(usize, u8),
    Clock(i32),
    Pass(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let port = || prop_oneof![Just(22_u16), Just(25), Just(123)];
    prop_oneof![
        (0_u64..6, port(), 0_u64..20_000).prop_map(|(id, port, bytes)| Step::Wait {
            id,
            port,
            bytes
        }),
        (0_usize..3, port(), 0_u64..50_000).prop_map(|(carrier, port, bytes)| Step::Cross {
            carrier,
            port,
            bytes
        }),
        (0_usize..3).prop_map(Step::Connected),
        (0_usize..3).prop_map(Step::Ready),
        (0_usize..3).prop_map(Step::Failed),
        (0_usize..3).prop_map(Step::Ended),
        (0_u8..4).prop_map(Step::Command),
        (0_usize..2, 0_u8..4).prop_map(|(carrier, n)| Step::LineCommand(carrier, n)),
        (-90_000_i32..90_000).prop_map(Step::Clock),
        (0_u64..4_000_000).prop_map(Step::Pass),
    ]
}

const COMMANDS: [Command; 4] = [Command::Auto, Command::Up, Command::Hold, Command::Down];
/// What crosses between two looks at the budget.
const UNDER_WAY: ByteCount = ByteCount(50_000);

fn config() -> ManagerConfig {
    let bytes = usd(Rates::per_megabyte(price("20"), ByteCount(5_000)));
    let quiet = crate::calendar::Hours(vec!["22:00-06:00".parse().unwrap()]);
    let own = Some(Budget { stop: price("10"), warn_percent: 50 });
    let carriers = vec![
        CarrierConfig {
            quiet: quiet.clone(),
            max_call: Some(seconds(900)),
            ..CarrierConfig::new("inmarsat", true, per_minute())
        },
        CarrierConfig {
            under_way: UNDER_WAY,
            quiet,
            budget: own,
            ..CarrierConfig::new("iridium", true, bytes)
        },
        CarrierConfig::new("vsat", false, Tariff::free()),
    ];
    ManagerConfig {
        budget: Some(Budget { stop: price("25"), warn_percent: 50 }),
        ..ManagerConfig::new("shore", carriers, rules())
    }
}

/// What the modems do with the work.
#[derive(Default)]
struct Modems {
    dialling: [bool; 3],
    online: [bool; 3],
    /// Hung up, and not over yet.
    ending: [bool; 3],
}

impl Modems {
    fn attend(&mut self, bench: &mut Bench) {
        for work in bench.work() {
            match work {
                Work::Dial { carrier, .. } => {
                    let at = carrier.0;
                    assert!(at < 2, "a terminal is not dialled");
                    assert!(!self.dialling[at] && !self.online[at], "one call at a time");
                    self.dialling[at] = true;
                }
                Work::HangUp { carrier, .. } => {
                    let at = carrier.0;
                    assert!(self.dialling[at] || self.online[at], "nothing to hang up");
                    self.dialling[at] = false;
                    self.ending[at] = self.online[at];
                }
                Work::Admit { .. } | Work::Tell(_) => {}
            }
        }
    }
}

proptest! {
    #[test]
    fn whatever_happens_calls_are_orderly_and_the_budget_holds(
        steps in proptest::collection::vec(step(), 1..120),
    ) {
        let (mut bench, mut modems) = (Bench::new(config()), Modems::default());
        let month_of = |bench: &Bench| bench.manager.wall(bench.now).day().month();
        for step in steps {
            match step {
                Step::Wait { id, port, bytes } => {
                    let protocol = if port == 123 { 17 } else { 6 };
                    bench.waits(id, &flow("10.2.0.7", protocol, port), bytes);
                }
                Step::Cross { carrier, port, bytes } => {
                    let bytes = bytes.min(UNDER_WAY.0);
                    if modems.online[carrier] && !modems.ending[carrier] {
                        bench.crosses(CarrierId(carrier), &flow("10.2.0.7", 6, port), bytes);
                    }
                }
                Step::Connected(at) if modems.dialling[at] || (at == 2 && !modems.online[at]) => {
                    (modems.dialling[at], modems.online[at]) = (false, true);
                    bench.connected(CarrierId(at));
                }
                Step::Ready(at) if modems.online[at] => {
                    bench.manager.handle_ready(bench.now, CarrierId(at));
                    bench.drain();
                }
                Step::Failed(at) if modems.dialling[at] => {
                    modems.dialling[at] = false;
                    bench.failed(CarrierId(at), "busy");
                }
                Step::Ended(at) if modems.online[at] => {
                    (modems.online[at], modems.ending[at]) = (false, false);
                    bench.ended(CarrierId(at), "the carrier was lost");
                }
                Step::Command(n) => bench.says(COMMANDS[usize::from(n)]),
                Step::LineCommand(at, n) => {
                    let command = COMMANDS[usize::from(n)];
                    bench.manager.handle_line_command(CarrierId(at), command);
                    bench.drain();
                }
                Step::Clock(by) => {
                    let wall = bench.manager.wall(bench.now).0.saturating_add_signed(i64::from(by));
                    bench.manager.handle_clock(bench.now, Wall(wall));
                    bench.drain();
                }
                Step::Pass(ms) => {
                    // Modems do what they are told within a second.
                    let end = bench.now + Duration::from_millis(ms);
                    while bench.now < end {
                        let next = bench.manager.poll_timeout().map_or(end, |(at, _)| at.min(end));
                        let time = next.since(bench.now);
                        let time = if modems.ending.contains(&true) { time.min(seconds(1)) } else { time };
                        bench.pass(time);
                        modems.attend(&mut bench);
                        for at in 0..2 {
                            if modems.ending[at] {
                                (modems.online[at], modems.ending[at]) = (false, false);
                                bench.ended(CarrierId(at), "hung up from here");
                            }
                        }
                    }
                }
                _ => {}
            }
            modems.attend(&mut bench);
            let month = month_of(&bench);
            let wall = bench.manager.wall(bench.now);
            let spent = bench.books.spent_on(wall, "USD".parse().unwrap(), &"shore".into());
            // A call that was answered while it was broken off has its first step: no modem can
            // say sooner that it was answered.
            prop_assert!(spent <= price("25").plus(price("3")), "{spent} in {month}");
            let (usd, peer) = ("USD".parse().unwrap(), "shore".into());
            let own = bench.books.spent_over(wall, usd, &peer, &"iridium".into());
            prop_assert!(own <= price("10"), "{own} by iridium in {month}");
        }
        // Nothing waits and nobody orders: in the end all calls are over.
        for id in 0..6 {
            bench.waits(id, &ssh(), 0);
        }
        bench.says(Command::Auto);
        for _ in 0..100 {
            modems.attend(&mut bench);
            for at in 0..2 {
                if modems.ending[at] {
                    (modems.online[at], modems.ending[at]) = (false, false);
                    bench.ended(CarrierId(at), "hung up from here");
                }
            }
            bench.pass(seconds(30));
        }
        prop_assert_eq!((bench.state(A), bench.state(B)), ("down", "down"));
        let ledger: String = std::iter::from_fn(|| bench.books.poll_record()).collect();
        let again = Books::replay(ledger.as_bytes());
        let query = Query::all(By::Host);
        let price = |books: &Books| books.query(&query).into_iter().map(|l| (l.name, l.sums.price)).collect::<Vec<_>>();
        prop_assert_eq!(price(&again.books), price(&bench.books));
    }
}
