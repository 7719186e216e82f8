//! Budgets, monthly prices and zones.

use super::*;

fn with_budget(stop: &str) -> ManagerConfig {
    ManagerConfig { budget: Some(Budget { stop: price(stop), warn_percent: 80 }), ..one_modem() }
}
fn budgets(bench: &Bench) -> Vec<(String, bool)> {
    let told = bench.told.iter().filter_map(|e| match e {
        Event::Budget { host, spent, stopped, .. } => {
            let who = host.map_or("peer".to_owned(), |h| h.to_string());
            Some((format!("{who} {spent}"), *stopped))
        }
        _ => None,
    });
    told.collect()
}

#[test]
fn a_budget_warns_ends_the_call_before_a_step_too_many_and_dials_no_more() {
    let mut bench = Bench::calling(with_budget("10"));
    bench.waits(1, &ssh(), 1_000_000);
    for _ in 0..176 {
        bench.pass(seconds(1));
        bench.crosses(A, &ssh(), 10);
        assert_eq!(bench.work(), []);
    }
    assert_eq!(budgets(&bench), [("peer 9.00".into(), false)]);
    bench.pass(seconds(1));
    assert_eq!(bench.hung_up(), [(0, DownCause::Budget)], "3 s before the fourth minute");
    bench.pass(seconds(1));
    bench.ended(A, "hung up from here");
    assert_eq!(bench.spent(), price("9"));
    bench.pass(seconds(86_400));
    assert_eq!(bench.work(), []);
    assert_eq!(budgets(&bench), [("peer 9.00".into(), false), ("peer 9.00".into(), true)]);
    // From noon on the 23rd to midnight before 1 December it is seven days and a half.
    let midnight = Instant::ZERO + seconds(15 * 43_200);
    bench.pass(midnight.since(bench.now) - seconds(1));
    assert_eq!(bench.work(), []);
    bench.pass(seconds(1));
    assert_eq!(bench.dialled(), [0], "a new month");
}

#[test]
fn a_budget_of_bytes_ends_before_those_under_way_are_too_much() {
    let tariff = usd(Rates::per_megabyte(price("10"), ByteCount(1_000)));
    let mut modem = CarrierConfig::new("iridium", true, tariff);
    modem.under_way = ByteCount(1_500);
    let budget = Some(Budget { stop: price("0.05"), warn_percent: 100 });
    let config = ManagerConfig { budget, ..ManagerConfig::new("shore", vec![modem], rules()) };
    let mut bench = Bench::new(config);
    bench.waits(1, &ssh(), 60);
    bench.up(A);
    bench.work();
    bench.crosses(A, &ssh(), 3_499);
    assert_eq!(bench.work(), []);
    bench.crosses(A, &ssh(), 1);
    assert_eq!(bench.hung_up(), [(0, DownCause::Budget)]);
    bench.crosses(A, &ssh(), 1_500);
    bench.ended(A, "hung up from here");
    assert_eq!(bench.spent(), price("0.05"));
    bench.pass(seconds(3_600));
    assert_eq!(bench.work(), []);
}

#[test]
fn a_budget_that_is_used_up_is_told_beside_a_carrier_without_a_price() {
    let tariff = Rates {
        per_megabyte: price("0.10"),
        ..Rates::per_minute(price("2.40"), seconds(1), Duration::ZERO)
    };
    let carriers = vec![
        CarrierConfig::new("vsat", false, Tariff::free()),
        CarrierConfig::new("lte", true, usd(tariff)),
    ];
    let mut config = ManagerConfig::new("shore", carriers, rules());
    config.currency = "USD".parse().unwrap();
    let of = |stop| Some(Budget { stop: price(stop), warn_percent: 80 });
    let mut bench = Bench::new(ManagerConfig { budget: of("20"), ..config.clone() });
    bench.waits(1, &ssh(), 60);
    bench.up(B);
    bench.pass(seconds(400));
    bench.ended(B, "lost");
    assert_eq!(bench.spent(), price("16"));
    bench.manager.handle_config(ManagerConfig { budget: of("10"), ..config }).expect("the same");
    bench.up(A);
    bench.work();
    let (spent, of) = (price("16"), price("10"));
    let stop = Event::Budget { host: None, spent, of, stopped: true };
    assert!(bench.told.contains(&stop), "{:?}", bench.told);
    assert!(bench.manager.lacks_money(bench.now, None));
    bench.ended(A, "no network");
    bench.waits(1, &ssh(), 60);
    assert_eq!(bench.dialled(), [0; 0]);
    let why = bench.manager.why(bench.now).to_string();
    assert!(why.contains("the month's budget is used up: 16.00 of 10.00 USD"), "{why}");
    assert!(why.contains("money is left for no line"), "{why}");
}

#[test]
fn two_calls_at_once_do_not_spend_the_same_money() {
    let rule = Rule { all: true, ..Rule::new("all", Match::default(), Action::Raise) };
    let rules = Rules::new(vec![rule], Vec::new(), Action::Raise).unwrap();
    let modem = |name| CarrierConfig::new(name, true, per_minute());
    let budget = Some(Budget { stop: price("10"), warn_percent: 100 });
    let config = ManagerConfig::new("shore", vec![modem("one"), modem("two")], rules);
    let mut bench = Bench::new(ManagerConfig { budget, ..config });
    bench.waits(1, &ssh(), 1_000_000);
    bench.up(A);
    bench.up(B);
    for _ in 0..300 {
        bench.pass(seconds(1));
        bench.crosses(A, &ssh(), 10);
        bench.crosses(B, &ssh(), 10);
        for work in bench.work() {
            if let Work::HangUp { carrier, .. } = work {
                bench.ended(carrier, "hung up from here");
            }
        }
    }
    assert_eq!(bench.spent(), price("9"), "two minutes on one, one on the other");
}

#[test]
fn a_host_beyond_its_budget_raises_nothing_and_holds_nothing() {
    let prefix: IpPrefix = "10.2.0.7".parse().unwrap();
    let host_budgets = vec![(prefix, Budget { stop: price("3"), warn_percent: 100 })];
    let mut bench = Bench::calling(ManagerConfig { host_budgets, ..one_modem() });
    bench.waits(1, &ssh(), 60);
    bench.pass(seconds(30));
    assert_eq!(budgets(&bench), [("10.2.0.7 3.00".into(), false), ("10.2.0.7 3.00".into(), true)]);
    assert_eq!(bench.manager.why(bench.now).waiting, []);
    bench.crosses(A, &ssh(), 10);
    bench.pass(seconds(27));
    assert_eq!(bench.work().len(), 1);
    bench.ended(A, "hung up from here");
    bench.waits(1, &ssh(), 90);
    bench.pass(seconds(3_600));
    assert_eq!(bench.work(), []);
    bench.waits(2, &Flow { host: "10.2.0.8".parse().unwrap(), ..ssh() }, 60);
    assert_eq!(bench.dialled(), [0], "others are not touched");
}

/// A terminal that is always there, a dollar a megabyte, and what each host may cost.
fn metered(stop: &str) -> ManagerConfig {
    let tariff = usd(Rates::per_megabyte(price("1"), ByteCount(1)));
    let terminal = CarrierConfig::new("vsat", false, tariff);
    let all: IpPrefix = "10.2.0.7".parse().unwrap();
    let host_budgets = vec![(all, Budget { stop: price(stop), warn_percent: 80 })];
    ManagerConfig { host_budgets, ..ManagerConfig::new("shore", vec![terminal], rules()) }
}
fn stopped(manager: &Manager) -> Vec<String> {
    manager.stopped_hosts().iter().map(Host::to_string).collect()
}

#[test]
fn a_host_is_stopped_in_the_session_in_which_its_budget_ends_and_others_go_on() {
    let mut bench = Bench::new(metered("3"));
    bench.up(A);
    bench.crosses(A, &ssh(), 2_399_000);
    bench.crosses(A, &mail(), 9_000_000);
    assert_eq!((budgets(&bench), bench.manager.host_spending().count()), (vec![], 0));
    bench.crosses(A, &ssh(), 600_000);
    assert_eq!(budgets(&bench), [("10.2.0.7 2.999".into(), false)]);
    assert_eq!(stopped(&bench.manager), [""; 0]);
    let before = bench.manager.stopped_changes();
    bench.crosses(A, &ssh(), 1_000);
    assert_eq!(budgets(&bench)[1..], [("10.2.0.7 3.00".into(), true)]);
    assert_eq!(stopped(&bench.manager), ["10.2.0.7"]);
    assert_ne!(bench.manager.stopped_changes(), before);
    let why = bench.manager.why(bench.now).to_string();
    assert!(why.contains("10.2.0.7 is stopped by its budget: 3.00 of 3.00 USD"), "{why}");
    // More is paid, more again, and less.
    for (stop, after) in [("5", vec![]), ("2", vec!["10.2.0.7"])] {
        bench.manager.handle_config(metered(stop)).expect("the same carriers");
        bench.drain();
        assert_eq!(stopped(&bench.manager), after, "{stop}");
    }
    // From noon on the 23rd to midnight before 1 December it is seven days and a half.
    bench.pass(seconds(15 * 43_200 - 1));
    assert_eq!(stopped(&bench.manager), ["10.2.0.7"], "its session ended days ago");
    bench.pass(seconds(1));
    assert_eq!(stopped(&bench.manager), [""; 0], "a new month");
}

/// Its sum is in the books alone when the gateway starts.
#[test]
fn a_host_that_was_stopped_is_stopped_after_a_restart() {
    let mut bench = Bench::new(metered("3"));
    bench.up(A);
    bench.crosses(A, &ssh(), 3_000_000);
    bench.ended(A, "the gateway ended");
    let mut ledger = String::new();
    while let Some(line) = bench.books.poll_record() {
        ledger += &line;
    }
    let mut anew = Bench::new(metered("3"));
    anew.books = Books::replay(ledger.as_bytes()).books;
    anew.manager = Manager::new(metered("3"), Instant::ZERO, NOON).expect("a configuration");
    anew.drain();
    assert_eq!(stopped(&anew.manager), ["10.2.0.7"]);
}

/// While somebody else uses a minute, too, it is only half as dear.
#[test]
fn a_host_that_was_stopped_in_a_call_is_not_let_go_by_others_bytes() {
    let prefix: IpPrefix = "10.2.0.7".parse().unwrap();
    let host_budgets = vec![(prefix, Budget { stop: price("3"), warn_percent: 100 })];
    let mut bench = Bench::calling(ManagerConfig { host_budgets, ..one_modem() });
    assert_eq!(stopped(&bench.manager), ["10.2.0.7"]);
    bench.crosses(A, &mail(), 900);
    bench.pass(seconds(1));
    assert_eq!(stopped(&bench.manager), ["10.2.0.7"]);
    bench.ended(A, "the carrier was lost");
    assert_eq!(stopped(&bench.manager), [""; 0], "it cost 0.30");
}

/// Nothing of it waits while the line is up.
#[test]
fn a_host_that_only_uses_the_line_does_not_hold_it_beyond_its_budget() {
    let prefix: IpPrefix = "10.2.0.7".parse().unwrap();
    for budget in [None, Some(Budget { stop: price("3"), warn_percent: 100 })] {
        let host_budgets = budget.map(|budget| (prefix, budget)).into_iter().collect();
        let mut bench = Bench::calling(ManagerConfig { host_budgets, ..one_modem() });
        let mut hung_up = None;
        for second in 0..180 {
            bench.crosses(A, &ssh(), 10);
            bench.pass(seconds(1));
            let work = bench.work();
            let hangs_up = work.iter().find(|w| matches!(w, Work::HangUp { .. })).cloned();
            hung_up = hung_up.or(hangs_up.map(|work| (second, work)));
        }
        assert_eq!(hung_up.is_some(), budget.is_some(), "{hung_up:?}");
    }
}

#[test]
fn a_host_whose_budget_is_taken_out_of_the_file_raises_the_line_again() {
    let prefix: IpPrefix = "10.2.0.7".parse().unwrap();
    let host_budgets = vec![(prefix, Budget { stop: price("3"), warn_percent: 100 })];
    let mut bench = Bench::calling(ManagerConfig { host_budgets, ..one_modem() });
    bench.waits(1, &ssh(), 60);
    bench.pass(seconds(57));
    assert_eq!(bench.work().len(), 1);
    bench.ended(A, "hung up from here");
    bench.waits(1, &ssh(), 90);
    bench.pass(seconds(60));
    assert_eq!(bench.work(), []);
    bench.manager.handle_config(one_modem()).expect("the same carriers");
    bench.pass(seconds(1));
    assert_eq!(bench.dialled(), [0]);
}

#[test]
fn a_flat_price_is_booked_each_month_and_its_fair_use_ends_or_slows_the_carrier() {
    for beyond in [Beyond::Stopped, Beyond::Slow] {
        let flat = Some(Flat { per_month: price("99"), fair_use: ByteCount(10_000), beyond });
        let flat = usd(Rates { flat, ..Rates::default() });
        let modems = vec![
            CarrierConfig::new("flat", true, flat),
            CarrierConfig::new("inmarsat", true, per_minute()),
        ];
        let mut bench = Bench::new(ManagerConfig::new("shore", modems, rules()));
        assert_eq!(bench.spent(), price("99"));
        bench.waits(1, &ssh(), 60);
        assert_eq!(bench.dialled(), [0]);
        bench.up(A);
        bench.crosses(A, &ssh(), 10_000);
        let stops = beyond == Beyond::Stopped;
        let first: Vec<Work> = bench.work();
        assert_eq!(first.iter().any(|w| matches!(w, Work::HangUp { .. })), stops);
        assert!(first.iter().any(|w| matches!(w, Work::Dial { carrier: B, .. })), "{first:?}");
        bench.up(B);
        assert_eq!(bench.manager.carriers_for(bench.now, &ssh()), [B]);
    }
}

#[test]
fn a_terminal_that_is_always_up_has_a_session_for_each_day() {
    let tariff = usd(Rates::per_megabyte(price("1"), ByteCount(1)));
    let terminal = CarrierConfig::new("vsat", false, tariff);
    let mut bench = Bench::new(ManagerConfig::new("shore", vec![terminal], rules()));
    bench.up(A);
    for _ in 0..3 {
        bench.crosses(A, &ssh(), 1_000_000);
        bench.pass(seconds(86_400));
    }
    let lines = bench.books.query(&Query::all(By::Day));
    let days: Vec<(String, String)> =
        lines.into_iter().map(|l| (l.name, l.sums.price.to_string())).collect();
    let day = |d: &str, p: &str| (d.to_owned(), p.to_owned());
    assert_eq!(
        days,
        [
            day("2026-11-23", "1.00"),
            day("2026-11-24", "1.00"),
            day("2026-11-25", "1.00"),
            day("2026-11-26", "0.00")
        ]
    );
}

#[test]
fn the_zone_sets_the_price_of_the_next_call() {
    let minute = |p: &str| Rates::per_minute(price(p), seconds(60), Duration::ZERO);
    let zones = vec![("home".into(), minute("1")), ("roaming".into(), minute("4"))];
    let tariff = Tariff::new("USD".parse().unwrap(), zones).unwrap();
    let modem = CarrierConfig::new("inmarsat", true, tariff);
    let mut bench = Bench::new(ManagerConfig::new("shore", vec![modem], rules()));
    bench.waits(1, &ssh(), 60);
    bench.up(A);
    bench.manager.handle_zone("roaming");
    bench.ended(A, "the carrier was lost");
    assert_eq!(bench.spent(), price("1"), "a call keeps its prices");
    bench.up(A);
    bench.ended(A, "the carrier was lost");
    assert_eq!(bench.spent(), price("5"));
}

#[test]
fn a_block_of_bytes_beyond_the_budget_ends_the_call_wherever_it_ends() {
    let tariff = usd(Rates::per_megabyte(price("20"), ByteCount(5_000)));
    let carriers = vec![CarrierConfig::new("iridium", true, tariff)];
    let budget = Some(Budget { stop: price("0.25"), warn_percent: 80 });
    let config = ManagerConfig { budget, ..ManagerConfig::new("shore", carriers, rules()) };
    let mut bench = Bench::calling(config);
    bench.crosses(A, &ssh(), 9_000);
    assert_eq!(bench.work(), [], "two blocks, of which 0.20 are spent");
    bench.crosses(A, &ssh(), 1_500);
    assert_eq!(bench.hung_up(), [(0, DownCause::Budget)], "0.30 are spent");
}

/// R-COST: a metered carrier that is there by itself carries up to the budget, and again in the
/// next month or with more.
#[test]
fn a_metered_carrier_that_is_always_there_carries_nothing_beyond_the_budget() {
    let metered = |stop: &str| {
        let tariff = usd(Rates::per_megabyte(price("10"), ByteCount(1_000)));
        let mut vsat = CarrierConfig::new("vsat", false, tariff);
        vsat.under_way = ByteCount(1_500);
        let flat = Flat { per_month: price("0.01"), fair_use: ByteCount(1), beyond: Beyond::Slow };
        let lte = usd(Rates { flat: Some(flat), ..Rates::default() });
        let lte = CarrierConfig::new("lte", false, lte);
        let budget = Some(Budget { stop: price(stop), warn_percent: 80 });
        ManagerConfig { budget, ..ManagerConfig::new("shore", vec![vsat, lte], rules()) }
    };
    let mut bench = Bench::new(metered("0.06"));
    bench.up(A);
    bench.up(B);
    bench.crosses(A, &ssh(), 3_499);
    assert_eq!(bench.work(), []);
    assert_eq!(budgets(&bench), [("peer 0.05".into(), false)]);
    bench.crosses(A, &ssh(), 1);
    assert_eq!(bench.hung_up(), [(0, DownCause::Budget)], "the other one costs the same");
    bench.crosses(A, &ssh(), 1_500);
    bench.ended(A, "set down");
    assert_eq!(bench.spent(), price("0.06"));
    assert!(bench.manager.is_barred(A) && !bench.manager.is_barred(B));
    assert_eq!(budgets(&bench).last(), Some(&("peer 0.05".into(), true)));
    bench.pass(seconds(86_400));
    assert_eq!(bench.work(), []);
    // More money, of which all goes again.
    bench.manager.handle_config(metered("0.08")).expect("the same carriers");
    bench.drain();
    assert_eq!(bench.work(), [Work::Admit { carrier: A }]);
    assert!(!bench.manager.is_barred(A));
    bench.up(A);
    bench.crosses(A, &ssh(), 1_000);
    assert_eq!(bench.hung_up(), [(0, DownCause::Budget)]);
    bench.ended(A, "set down");
    let midnight = Instant::ZERO + seconds(15 * 43_200);
    bench.pass(midnight.since(bench.now) - seconds(1));
    assert_eq!(bench.work(), []);
    bench.pass(seconds(1));
    assert_eq!(bench.work(), [Work::Admit { carrier: A }], "a new month");
}

/// A call is of the month in which it began; what it costs counts in the next one while it goes on.
#[test]
fn a_budget_ends_a_call_over_the_end_of_a_month_and_over_a_clock_that_was_set() {
    // Two minutes before the first of December.
    for set_to in [None, Some(Wall(NOON.0 + 40 * 86_400)), Some(Wall(0))] {
        let mut bench = Bench::new(with_budget("10"));
        bench.pass(seconds(15 * 43_200 - 120));
        bench.waits(1, &ssh(), 1_000_000);
        bench.up(A);
        bench.work();
        let begun = bench.now;
        while bench.now.since(begun) < seconds(600) {
            if bench.now.since(begun) == seconds(100)
                && let Some(wall) = set_to
            {
                bench.manager.handle_clock(bench.now, wall);
                bench.drain();
            }
            bench.pass(seconds(1));
            bench.crosses(A, &ssh(), 10);
            if !bench.hung_up().is_empty() {
                break;
            }
        }
        assert_eq!(
            bench.now.since(begun),
            seconds(177),
            "{set_to:?}: 3 s before the fourth minute"
        );
    }
}

/// The same prices and budgets, in euros.
fn in_euros(tariff: &Tariff) -> Tariff {
    let zones = tariff.zones().map(|zone| (zone.to_owned(), tariff.rates(zone).clone()));
    Tariff::new("EUR".parse().expect("a currency"), zones.collect()).expect("prices")
}

#[test]
fn a_call_keeps_its_currency_and_the_budgets_in_it() {
    let before = with_budget("8");
    let mut after = ManagerConfig { currency: "EUR".parse().unwrap(), ..with_budget("100") };
    after.carriers[0].tariff = in_euros(&per_minute());
    after.carriers[0].idle = seconds(40);
    let mut bench = Bench::calling(before);
    bench.waits(1, &ssh(), 1_000_000);
    for _ in 0..70 {
        bench.pass(seconds(1));
        bench.crosses(A, &ssh(), 10);
    }
    bench.manager.handle_config(after.clone()).expect("the same carriers");
    bench.drain();
    let why = bench.manager.why(bench.now).to_string();
    assert!(why.contains("6.00 USD so far"), "{why}");
    // 2.00 USD are left, and the third minute would cost 3.00.
    bench.work();
    for _ in 70..180 {
        bench.pass(seconds(1));
        if !bench.work.is_empty() {
            break;
        }
        bench.crosses(A, &ssh(), 10);
    }
    assert_eq!(bench.work().first(), Some(&Work::HangUp { carrier: A, cause: DownCause::Budget }));
    bench.ended(A, "hung up from here");
    bench.pass(seconds(60));
    // From the next call on the file holds as it is.
    bench.up(A);
    let why = bench.manager.why(bench.now).to_string();
    assert!(why.contains("3.00 EUR so far"), "{why}");
    let lines = bench.books.query(&Query::all(By::Host));
    let paid = lines.iter().map(|l| format!("{} {}", l.sums.price, l.currency));
    assert_eq!(paid.collect::<Vec<_>>(), ["3.00 EUR", "6.00 USD"]);
}

#[test]
fn what_is_there_by_itself_has_a_new_session_in_another_currency() {
    let tariff = usd(Rates::per_megabyte(price("10"), ByteCount(1_000)));
    let carriers = vec![CarrierConfig::new("vsat", false, tariff.clone())];
    let config = ManagerConfig::new("shore", carriers, rules());
    let mut bench = Bench::new(config.clone());
    bench.up(A);
    bench.crosses(A, &ssh(), 100_000);
    let mut after = config;
    after.carriers[0].tariff = in_euros(&tariff);
    bench.manager.handle_config(after).expect("the same carriers");
    bench.drain();
    bench.crosses(A, &ssh(), 200_000);
    let why = bench.manager.why(bench.now).to_string();
    assert!(why.contains("2.00 EUR so far"), "{why}");
    let lines = bench.books.query(&Query::all(By::Host));
    let ssh = lines.iter().filter(|l| l.name == "10.2.0.7");
    let paid = ssh.map(|l| format!("{} {}", l.sums.price, l.currency));
    assert_eq!(paid.collect::<Vec<_>>(), ["2.00 EUR", "1.00 USD"]);
}

fn with_host_budget(host: &str, stop: &str) -> ManagerConfig {
    let budget = Budget { stop: price(stop), warn_percent: 80 };
    let hosts: IpPrefix = format!("{host}/32").parse().expect("a prefix");
    ManagerConfig { host_budgets: vec![(hosts, budget)], ..one_modem() }
}

#[test]
fn a_host_raises_no_call_whose_beginning_is_more_than_its_budget_has() {
    // 3.00 for the first minute.
    let mut bench = Bench::new(with_host_budget("10.2.0.7", "2.99"));
    bench.waits(1, &ssh(), 1_000);
    bench.pass(seconds(60));
    assert_eq!(bench.dialled(), [0; 0]);
    let why = bench.manager.why(bench.now).to_string();
    let said = "10.2.0.7 raises no line: less than a call's beginning is left of its budget";
    assert!(why.contains(&format!("{said}: 0.00 of 2.99 USD")), "{why}");
    let short = |e: &&Event| matches!(e, Event::HostShort { .. });
    assert_eq!(bench.told.iter().filter(short).count(), 1, "{:?}", bench.told);
    assert!(bench.manager.stopped_hosts().is_empty(), "it may use a call of others");
    // Others do, and the host pays its part; when the call is over it waits again.
    bench.waits(2, &flow("10.2.0.1", 6, 22), 1_000);
    assert_eq!(bench.dialled(), [0]);
    bench.up(A);
    bench.waits(2, &flow("10.2.0.1", 6, 22), 0);
    bench.crosses(A, &flow("10.2.0.1", 6, 22), 3_000);
    bench.crosses(A, &ssh(), 1_000);
    bench.ended(A, "lost");
    bench.work();
    bench.pass(seconds(60));
    assert_eq!(bench.dialled(), [0; 0]);
    let why = bench.manager.why(bench.now).to_string();
    assert!(why.contains(&format!("{said}: 0.75 of 2.99 USD")), "{why}");
    // More money, and it raises.
    bench.manager.handle_config(with_host_budget("10.2.0.7", "3.75")).expect("the same carriers");
    bench.drain();
    assert_eq!(bench.dialled(), [0]);
}

/// Noon is in the dear hours.
#[test]
fn who_has_too_little_for_a_dear_hour_raises_a_call_when_a_cheap_one_begins() {
    let band = |when: &str, per_minute: &str| Band {
        when: when.parse().unwrap(),
        per_minute: price(per_minute),
    };
    let bands = vec![band("08:00-20:00", "3"), band("20:00-08:00", "1")];
    let rates = Rates { bands, ..Rates::per_minute(price("3"), seconds(60), Duration::ZERO) };
    let with = |mut config: ManagerConfig| {
        config.carriers[0].tariff = usd(rates.clone());
        config
    };
    for config in [with(with_host_budget("10.2.0.7", "2")), with(with_budget("2"))] {
        let mut bench = Bench::new(config);
        bench.waits(1, &ssh(), 1_000);
        bench.pass(seconds(8 * 3_600 - 1));
        assert_eq!(bench.dialled(), [0; 0]);
        bench.pass(seconds(1));
        assert_eq!(bench.dialled(), [0], "at 20:00");
    }
}

#[test]
fn who_has_too_little_makes_nothing_due_that_others_gather() {
    let mut bench = Bench::new(with_host_budget("10.2.0.8", "1"));
    bench.waits(1, &mail(), 9_999);
    bench.pass(seconds(1_790));
    bench.waits(2, &flow("10.2.0.1", 6, 25), 100);
    bench.pass(seconds(1_790));
    assert_eq!(bench.dialled(), [0; 0]);
    bench.pass(seconds(20));
    assert_eq!(bench.dialled(), [0], "half an hour after the second");
    let cause = bench.cause(A);
    assert!(cause.contains("10.2.0.1"), "{cause}");
}

#[test]
fn a_host_raises_the_line_that_its_budget_pays() {
    let dear = CarrierConfig::new("inmarsat", true, per_minute());
    let cheap = usd(Rates::per_minute(price("1"), seconds(60), Duration::ZERO));
    let carriers = vec![dear, CarrierConfig::new("gsm", true, cheap)];
    let host_budgets = with_host_budget("10.2.0.7", "2").host_budgets;
    let config = ManagerConfig::new("shore", carriers, rules());
    let mut bench = Bench::new(ManagerConfig { host_budgets, ..config });
    bench.waits(1, &ssh(), 1_000);
    assert_eq!(bench.dialled(), [1]);
    // Somebody else may have the dear one.
    bench.waits(2, &flow("10.2.0.1", 6, 22), 1_000);
    assert_eq!(bench.dialled(), [0]);
}
