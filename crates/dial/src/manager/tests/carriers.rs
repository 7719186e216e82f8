//! Carriers that fail, flap, lose and come back; several at once.

use super::*;

fn two_modems() -> ManagerConfig {
    let cheap = usd(Rates::per_minute(price("1"), seconds(60), Duration::ZERO));
    let modems = vec![
        CarrierConfig { priority: 1, ..CarrierConfig::new("inmarsat", true, per_minute()) },
        CarrierConfig { priority: 2, ..CarrierConfig::new("iridium", true, cheap) },
    ];
    ManagerConfig::new("shore", modems, rules())
}
fn terminal_and_modem() -> ManagerConfig {
    let modems = vec![
        CarrierConfig { priority: 1, ..CarrierConfig::new("vsat", false, Tariff::free()) },
        CarrierConfig { priority: 2, ..CarrierConfig::new("inmarsat", true, per_minute()) },
    ];
    ManagerConfig::new("shore", modems, rules())
}

#[test]
fn failures_back_off_and_end_in_a_rest() {
    let redial = Redial {
        first: seconds(5),
        most: seconds(60),
        attempts: 6,
        rest: seconds(1_000),
        per_hour: 60,
    };
    let modem = CarrierConfig { redial, ..CarrierConfig::new("inmarsat", true, per_minute()) };
    let mut bench = Bench::new(ManagerConfig::new("shore", vec![modem], rules()));
    bench.waits(1, &ssh(), 60);
    let mut pauses = Vec::new();
    for attempt in 1..=7 {
        let Some(Work::Dial { attempt: told, .. }) = bench.work().pop() else { panic!("no call") };
        assert_eq!(told, if attempt == 7 { 1 } else { attempt });
        bench.failed(A, "busy");
        let failed = bench.now;
        while bench.work.is_empty() {
            bench.pass(seconds(1));
        }
        pauses.push(bench.now.since(failed).as_millis() / 1_000);
    }
    assert_eq!(pauses, [5, 10, 20, 40, 60, 1_000, 5]);
    assert!(bench.told.iter().any(|e| matches!(e, Event::State { state, .. }
        if state.cause() == "dialling failed: busy")));
}

#[test]
fn no_more_calls_are_made_in_an_hour_than_may_be() {
    let redial = Redial {
        first: seconds(1),
        most: seconds(1),
        attempts: 1_000,
        per_hour: 10,
        ..Redial::default()
    };
    let modem = CarrierConfig { redial, ..CarrierConfig::new("inmarsat", true, per_minute()) };
    let mut bench = Bench::new(ManagerConfig::new("shore", vec![modem], rules()));
    bench.waits(1, &ssh(), 60);
    let mut calls = Vec::new();
    while bench.now < Instant::ZERO + seconds(3 * 3_600) {
        if !bench.work().is_empty() {
            calls.push(bench.now);
            bench.failed(A, "busy");
        }
        bench.pass(seconds(1));
    }
    assert!(calls.windows(11).all(|w| w[10].since(w[0]) >= seconds(3_600)));
    assert_eq!(calls.len(), 30);
}

#[test]
fn a_dialling_that_tells_nothing_and_a_carrier_without_the_peer_are_given_up() {
    let mut bench = Bench::new(one_modem());
    bench.waits(1, &ssh(), 60);
    bench.work();
    bench.pass(seconds(120));
    assert_eq!(bench.cause(A), "dialling failed: no result in time");
    bench.work();
    bench.pass(seconds(5));
    bench.work();
    bench.connected(A);
    bench.pass(seconds(60));
    assert_eq!(bench.hung_up(), [(0, DownCause::NoPeer)]);
    bench.ended(A, "hung up from here");
    assert_eq!(bench.spent(), price("3"), "it was paid for all the same");
    bench.pass(seconds(10));
    assert_eq!(bench.dialled(), [0], "and is tried again, with back-off");
}

#[test]
fn the_next_carrier_is_dialled_when_the_first_fails_and_left_when_the_first_is_back() {
    let mut bench = Bench::new(two_modems());
    bench.waits(1, &ssh(), 60);
    assert_eq!(bench.dialled(), [0]);
    bench.failed(A, "no dial tone");
    assert_eq!(bench.dialled(), [1]);
    bench.up(B);
    assert_eq!(bench.manager.carriers_for(bench.now, &ssh()), [B]);
    bench.pass(seconds(5));
    assert_eq!(bench.dialled(), [0], "the better one is tried beside it");
    bench.up(A);
    assert_eq!(bench.manager.carriers_for(bench.now, &ssh()), [A]);
    for _ in 0..10 {
        bench.pass(seconds(10));
        bench.crosses(A, &ssh(), 10);
    }
    assert_eq!((bench.state(A), bench.state(B)), ("up", "down"), "nobody uses the other");
}

#[test]
fn a_lost_call_is_made_again_at_once_and_one_that_flaps_is_left_alone_until_it_holds() {
    let mut bench = Bench::new(two_modems());
    bench.waits(1, &ssh(), 60);
    let lost = |bench: &mut Bench| {
        bench.up(A);
        bench.pass(seconds(20));
        bench.work();
        bench.crosses(A, &ssh(), 10);
        bench.ended(A, "the carrier was lost");
        bench.dialled()
    };
    assert_eq!(lost(&mut bench), [0]);
    assert_eq!(lost(&mut bench), [0]);
    assert_eq!(lost(&mut bench), [1], "the third loss in ten minutes counts");
    bench.up(B);
    bench.pass(seconds(9));
    bench.crosses(B, &ssh(), 10);
    assert_eq!(bench.work(), []);
    bench.pass(seconds(1));
    assert_eq!(bench.dialled(), [0]);
    assert_eq!(lost(&mut bench), [], "the other serves");
    for _ in 0..19 {
        bench.pass(seconds(1));
        bench.crosses(B, &ssh(), 10);
        assert_eq!(bench.work(), [], "twice as long now");
    }
    bench.pass(seconds(1));
    assert_eq!(bench.dialled(), [0]);
    assert!(bench.cause(A).contains("ssh") || bench.state(A) == "dialling");
}

#[test]
fn a_terminal_that_is_there_serves_and_is_never_dialled() {
    let mut bench = Bench::new(terminal_and_modem());
    bench.up(A);
    bench.waits(1, &ssh(), 60);
    bench.pass(seconds(86_400));
    assert_eq!(bench.work(), []);
    assert_eq!(bench.cause(A), "always there");
    bench.ended(A, "no network");
    assert_eq!(bench.dialled(), [1]);
    bench.up(B);
    assert_eq!(bench.manager.carriers_for(bench.now, &ssh()), [B]);
    bench.up(A);
    bench.pass(seconds(10));
    bench.drain();
    assert_eq!(bench.manager.carriers_for(bench.now, &ssh()), [A], "back after it has held");
}

#[test]
fn a_line_beside_a_terminal_that_works_is_raised_and_held_by_order() {
    let mut bench = Bench::new(terminal_and_modem());
    bench.up(A);
    bench.says(Command::Up);
    assert_eq!(bench.dialled(), [1], "though the terminal works");
    bench.up(B);
    assert_eq!((bench.manager.command(), bench.state(B)), (Command::Auto, "up"));
    bench.pass(seconds(180));
    assert_eq!(bench.hung_up().len(), 1, "then the rules decide");
    bench.ended(B, "hung up from here");
    bench.says(Command::Hold);
    assert_eq!(bench.dialled(), [1]);
    bench.up(B);
    bench.pass(seconds(3_600));
    assert_eq!((bench.work().len(), bench.state(A), bench.state(B)), (0, "up", "up"));
    bench.says(Command::Auto);
    bench.pass(seconds(180));
    assert_eq!(
        (bench.hung_up().len(), bench.cause(B).as_str()),
        (1, "idle before the next step of time")
    );
}

#[test]
fn a_terminal_that_flaps_must_hold_longer_each_time() {
    let mut bench = Bench::new(terminal_and_modem());
    bench.waits(1, &ssh(), 60);
    let mut trials = Vec::new();
    for _ in 0..6 {
        bench.up(A);
        bench.up(B);
        let up = bench.now;
        while bench.manager.carriers_for(bench.now, &ssh()) != [A] {
            bench.pass(seconds(1));
            bench.crosses(B, &ssh(), 10);
            assert!(bench.now.since(up) < seconds(1_000));
        }
        trials.push(bench.now.since(up).as_millis() / 1_000);
        bench.pass(seconds(5));
        bench.crosses(A, &ssh(), 10);
        bench.ended(A, "no network");
        bench.pass(seconds(5));
    }
    assert_eq!(trials, [0, 10, 10, 10, 20, 40]);
}

/// Nobody is kept waiting for a quarter of an hour by a line that has to hold where there is no
/// other.
#[test]
fn a_line_that_stands_alone_and_is_lost_again_and_again_is_redialled_as_after_failures() {
    let mut config = one_modem();
    (config.carriers[0].redial.first, config.carriers[0].redial.most) = (seconds(1), seconds(4));
    let mut bench = Bench::new(config);
    bench.waits(1, &ssh(), 60);
    let mut pauses = Vec::new();
    for _ in 0..8 {
        bench.up(A);
        bench.pass(seconds(2));
        bench.work();
        bench.crosses(A, &ssh(), 10);
        bench.ended(A, "the carrier was lost");
        let lost = bench.now;
        while bench.dialled() != [0] {
            bench.pass(seconds(1));
            assert!(bench.now.since(lost) < seconds(10));
        }
        pauses.push(bench.now.since(lost).as_millis() / 1_000);
    }
    assert_eq!(pauses, [0, 0, 1, 2, 4, 4, 4, 4]);
}

#[test]
fn rules_choose_carriers_and_may_use_all_of_them() {
    let when = |port| Match { ports: vec![port..=port], ..Match::default() };
    let mut bulk = Rule::new("bulk", when(25), Action::Raise);
    bulk.carriers = vec!["iridium".into()];
    let mut wide = Rule::new("wide", when(80), Action::Raise);
    wide.all = true;
    let rules = Rules::new(vec![bulk, wide], Vec::new(), Action::Raise).unwrap();
    let mut bench = Bench::new(ManagerConfig { rules, ..two_modems() });
    bench.waits(1, &mail(), 60);
    assert_eq!(bench.dialled(), [1]);
    bench.up(B);
    bench.waits(2, &ssh(), 60);
    assert_eq!(bench.dialled(), [0], "the better one, though the other is up");
    bench.up(A);
    let serves = |bench: &Bench, flow: &Flow| bench.manager.carriers_for(bench.now, flow);
    assert_eq!(serves(&bench, &mail()), [B]);
    assert_eq!(serves(&bench, &ssh()), [A]);
    assert_eq!(serves(&bench, &flow("10.2.0.7", 6, 80)), [A, B]);
    bench.ended(B, "the carrier was lost");
    assert_eq!(serves(&bench, &mail()), [], "never on a carrier that a rule forbids");
    assert_eq!(bench.dialled(), [1]);
}

#[test]
fn the_cheapest_carrier_for_what_waits_may_come_first() {
    let bytes = usd(Rates::per_megabyte(price("20"), ByteCount(1)));
    let mut config = two_modems();
    config.carriers[1] = CarrierConfig::new("iridium", true, bytes);
    config.carriers[0].rate = BitRate::from_kbps(64);
    config.order = Order::Cost;
    let mut bench = Bench::new(config.clone());
    bench.waits(1, &ssh(), 60);
    assert_eq!(bench.dialled(), [1], "10 kB: 0.20 against a minute");
    let mut bench = Bench::new(config);
    bench.waits(1, &flow("10.2.0.7", 6, 21), 1_000_000);
    assert_eq!(bench.dialled(), [0], "1 MB: 20.00 against three minutes");
}

#[test]
fn a_configuration_that_cannot_work_is_refused_with_the_mend() {
    let says = |config: ManagerConfig| match Manager::new(config, Instant::ZERO, NOON) {
        Ok(_) => panic!("it was taken"),
        Err(what) => what,
    };
    assert!(says(ManagerConfig { carriers: vec![], ..one_modem() }).contains("has no carrier"));
    let mut twice = two_modems();
    twice.carriers[1].name = "inmarsat".into();
    assert!(says(twice).contains("two carriers of peer \"shore\" are called \"inmarsat\""));
    let mut silent = one_modem();
    silent.carriers[0].rate = BitRate::from_bps(0);
    assert!(says(silent).contains("has no rate"));
    let mut lengths = one_modem();
    lengths.carriers[0].min_call = seconds(9);
    lengths.carriers[0].max_call = Some(seconds(8));
    assert!(says(lengths).contains("swap them"));
    for most in [seconds(0), Duration::from_millis(999)] {
        let mut paid_for_nothing = one_modem();
        paid_for_nothing.carriers[0].max_call = Some(most);
        assert!(says(paid_for_nothing).contains("leave it out for no limit"));
    }
    let mut hasty = one_modem();
    hasty.carriers[0].dial_timeout = seconds(0);
    assert!(says(hasty).contains("leave `setup` out for two minutes"));
    let mut rule = Rule::new("bulk", Match::default(), Action::Raise);
    rule.carriers = vec!["lte".into()];
    let rules = Rules::new(vec![rule], Vec::new(), Action::Raise).unwrap();
    assert!(
        says(ManagerConfig { rules, ..one_modem() })
            .contains("wants the carrier \"lte\", which peer \"shore\" has not; it has inmarsat")
    );
    let budget = Some(Budget { stop: price("1"), warn_percent: 80 });
    let mut euros = ManagerConfig { budget, ..one_modem() };
    euros.currency = "EUR".parse().unwrap();
    assert!(says(euros).contains("is paid in USD and the budget is in EUR"));
}
