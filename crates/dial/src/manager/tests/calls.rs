//! What raises a line, what holds it, and when it is hung up.

use super::*;

#[test]
fn a_users_connection_raises_the_line_at_once_and_noise_never_does() {
    let mut bench = Bench::new(one_modem());
    bench.waits(1, &clock(), 5_000_000);
    bench.pass(seconds(86_400));
    assert_eq!(bench.dialled(), []);
    bench.waits(2, &ssh(), 60);
    assert_eq!(bench.dialled(), [0]);
    assert_eq!(bench.state(A), "dialling");
    assert_eq!(bench.cause(A), "tcp port 22 to 192.0.2.1 of 10.2.0.7, rule \"everything else\"");
}

#[test]
fn each_state_is_told_with_its_cause() {
    let mut bench = Bench::new(one_modem());
    bench.waits(1, &ssh(), 60);
    bench.pass(seconds(28));
    bench.connected(A);
    assert_eq!(bench.state(A), "rising");
    assert!(bench.manager.carriers_for(bench.now, &ssh()) == [A], "the first packet has data");
    bench.manager.handle_ready(bench.now, A);
    bench.drain();
    bench.waits(1, &ssh(), 0);
    bench.pass(seconds(70));
    bench.ended(A, "hung up from here");
    let told: Vec<&str> = bench
        .told
        .iter()
        .filter_map(|e| match e {
            Event::State { state, .. } => Some(state.name()),
            _ => None,
        })
        .collect();
    assert_eq!(told, ["dialling", "rising", "up", "lingering", "down"]);
    assert_eq!(bench.cause(A), "idle before the next step of time");
}

#[test]
fn mail_is_gathered_until_its_amount_or_its_age() {
    let mut bench = Bench::new(one_modem());
    bench.waits(1, &mail(), 6_000);
    bench.pass(seconds(600));
    bench.waits(2, &mail(), 3_999);
    assert_eq!(bench.dialled(), []);
    bench.waits(2, &mail(), 4_000);
    assert_eq!(bench.dialled(), [0]);

    let mut bench = Bench::new(one_modem());
    bench.waits(1, &mail(), 6_000);
    bench.waits(1, &mail(), 6_500);
    bench.pass(seconds(1_799));
    assert_eq!(bench.dialled(), []);
    bench.pass(seconds(1));
    assert_eq!(bench.dialled(), [0]);
}

#[test]
fn a_schedule_raises_the_line_in_its_hours_only_for_what_waits() {
    let when = Match { ports: vec![25..=25], ..Match::default() };
    let hours = Some(crate::calendar::Hours(vec!["02:00-04:00".parse().unwrap()]));
    let then = Action::Batch { amount: None, age: None, hours };
    let rules = Rules::new(vec![Rule::new("mail", when, then)], Vec::new(), Action::Raise).unwrap();
    let mut bench = Bench::new(ManagerConfig { rules, ..one_modem() });
    bench.pass(seconds(86_400));
    assert_eq!(bench.dialled(), []);
    bench.waits(1, &mail(), 1);
    bench.pass(seconds(14 * 3_600 - 1));
    assert_eq!(bench.dialled(), []);
    bench.pass(seconds(1));
    assert_eq!(bench.dialled(), [0]);
}

#[test]
fn what_is_gathered_crosses_while_the_line_is_up_for_another() {
    let mut bench = Bench::calling(one_modem());
    bench.waits(2, &mail(), 500);
    assert_eq!(bench.manager.carriers_for(bench.now, &mail()), [A]);
    assert_eq!(bench.manager.carriers_for(bench.now, &clock()), [A], "noise crosses too");
    // It holds the line while it moves.
    for _ in 0..30 {
        bench.pass(seconds(10));
        bench.crosses(A, &mail(), 10);
    }
    assert_eq!(bench.state(A), "up");
    bench.waits(2, &mail(), 0);
    bench.pass(seconds(100));
    assert_eq!(bench.state(A), "down");
}

#[test]
fn quiet_hours_hold_back_all_but_what_may_pass_them() {
    let quiet = crate::calendar::Hours(vec!["12:00-13:00".parse().unwrap()]);
    let alarm = Match { ports: vec![911..=911], ..Match::default() };
    let mut own = vec![Rule::new("alarm", alarm, Action::Raise)];
    own[0].through_quiet = true;
    let rules = Rules::new(own, Vec::new(), Action::Raise).unwrap();
    let mut config = ManagerConfig { rules, ..one_modem() };
    config.carriers[0].quiet = quiet;
    let mut bench = Bench::new(config.clone());
    bench.waits(1, &ssh(), 60);
    bench.pass(seconds(3_599));
    assert_eq!(bench.dialled(), []);
    let waiting = &bench.manager.why(bench.now).waiting[0];
    assert!(waiting.quiet && waiting.raises_in == Some(seconds(1)), "{waiting:?}");
    assert!(waiting.to_string().ends_with("they raise the line after the quiet hours, in 1s"));
    bench.pass(seconds(1));
    assert_eq!(bench.dialled(), [0]);
    assert!(!bench.manager.why(bench.now).waiting[0].quiet);
    let mut bench = Bench::new(config);
    bench.waits(1, &flow("10.2.0.7", 6, 911), 60);
    assert!(!bench.manager.why(bench.now).waiting[0].quiet, "it may pass them");
    assert_eq!(bench.dialled(), [0]);
}

#[test]
fn an_idle_line_stays_as_long_as_it_is_paid_for_and_not_longer() {
    let mut bench = Bench::calling(one_modem());
    bench.pass(seconds(30));
    assert_eq!(bench.state(A), "lingering");
    bench.pass(Duration::from_millis(26_999));
    assert_eq!(bench.state(A), "lingering");
    bench.pass(Duration::from_millis(1));
    assert_eq!(bench.hung_up(), [(0, DownCause::BeforeStep)]);
    bench.pass(Duration::from_millis(500));
    bench.ended(A, "hung up from here");
    assert_eq!(bench.spent(), price("3"));
}

/// A modem without DTR takes two pauses for its escape.
#[test]
fn where_hanging_up_takes_long_it_begins_sooner_and_not_when_it_is_too_late() {
    let mut bench = Bench::calling(one_modem());
    bench.manager.handle_hang_up_time(A, Duration::from_millis(2_400));
    bench.pass(Duration::from_millis(56_099));
    assert_eq!(bench.hung_up(), []);
    bench.pass(Duration::from_millis(1));
    assert_eq!(bench.hung_up(), [(0, DownCause::BeforeStep)], "2.4 s and half the guard");

    // 2 s before the step it would be over after it: the next step is paid anyway.
    let mut bench = Bench::calling(one_modem());
    bench.manager.handle_hang_up_time(A, Duration::from_millis(2_400));
    bench.pass(seconds(48));
    bench.crosses(A, &ssh(), 90);
    bench.pass(seconds(10));
    bench.crosses(A, &clock(), 90);
    assert_eq!(bench.hung_up(), []);
    bench.pass(Duration::from_millis(58_099));
    assert_eq!(bench.hung_up(), []);
    bench.pass(Duration::from_millis(1));
    assert_eq!(bench.hung_up(), [(0, DownCause::BeforeStep)]);
}

/// The exchange bills from the moment it connects, whenever this machine looks at its line.
#[test]
fn a_call_that_was_noticed_late_is_booked_from_when_it_may_have_begun() {
    let mut bench = Bench::new(one_modem());
    bench.waits(1, &ssh(), 60);
    bench.pass(seconds(28));
    bench.connected(A);
    bench.manager.handle_noticed_late(A, Duration::from_millis(800));
    bench.pass(Duration::from_millis(59_500));
    bench.ended(A, "the carrier was lost");
    assert_eq!(bench.spent(), price("6"), "60.3 s by the exchange's clock");
}

#[test]
fn a_line_that_lingers_is_up_again_when_it_is_used() {
    let mut bench = Bench::calling(one_modem());
    bench.pass(seconds(40));
    assert_eq!(bench.state(A), "lingering");
    bench.crosses(A, &clock(), 90);
    assert_eq!(bench.state(A), "lingering", "noise holds nothing");
    bench.crosses(A, &ssh(), 90);
    assert_eq!(bench.state(A), "up");
    bench.pass(seconds(10));
    bench.crosses(A, &ssh(), 90);
    bench.pass(seconds(59));
    assert_eq!(bench.work(), []);
    // Idle at 80 s, paid up to 120 s.
    bench.pass(seconds(8));
    assert_eq!((bench.state(A), bench.work().len()), ("down", 1));
}

#[test]
fn shortly_before_a_step_a_short_pause_is_enough() {
    let mut bench = Bench::calling(one_modem());
    bench.pass(seconds(45));
    bench.crosses(A, &ssh(), 90);
    bench.pass(seconds(12));
    assert_eq!(bench.hung_up(), [(0, DownCause::BeforeStep)], "12 s idle, 3 s before the step");
    let mut bench = Bench::calling(one_modem());
    bench.pass(seconds(50));
    bench.crosses(A, &ssh(), 90);
    bench.pass(seconds(60));
    assert_eq!(bench.work(), [], "7 s are no pause");
    bench.pass(seconds(7));
    assert_eq!(bench.state(A), "down");
}

#[test]
fn a_line_whose_time_is_free_is_hung_up_when_idle_or_after_the_longest_linger() {
    let bytes_cost = usd(Rates::per_megabyte(price("5"), ByteCount(1_000)));
    let modem = CarrierConfig::new("iridium", true, bytes_cost);
    let mut bench = Bench::calling(ManagerConfig::new("shore", vec![modem], rules()));
    bench.pass(seconds(30));
    assert_eq!(bench.hung_up(), [(0, DownCause::Idle)]);
    // Paid for an hour at once: nobody keeps a line for an hour.
    let hourly = usd(Rates::per_minute(price("1"), seconds(3_600), Duration::ZERO));
    let modem = CarrierConfig::new("iridium", true, hourly);
    let mut bench = Bench::calling(ManagerConfig::new("shore", vec![modem], rules()));
    bench.pass(seconds(30 + 599));
    assert_eq!(bench.state(A), "lingering");
    bench.pass(seconds(1));
    assert_eq!(bench.hung_up(), [(0, DownCause::Idle)]);
}

#[test]
fn calls_have_a_shortest_and_a_longest_length() {
    let modem = CarrierConfig {
        min_call: seconds(200),
        max_call: Some(seconds(600)),
        ..CarrierConfig::new("inmarsat", true, per_minute())
    };
    let config = ManagerConfig::new("shore", vec![modem], rules());
    let mut bench = Bench::calling(config.clone());
    bench.pass(seconds(236));
    assert_eq!(bench.state(A), "lingering", "at 200 s the fourth minute is paid");
    bench.pass(seconds(1));
    assert_eq!(bench.hung_up(), [(0, DownCause::BeforeStep)]);
    let mut bench = Bench::calling(config);
    bench.waits(1, &ssh(), 100);
    for _ in 0..60 {
        bench.pass(seconds(10));
        bench.crosses(A, &ssh(), 90);
    }
    assert_eq!(bench.hung_up(), [(0, DownCause::MaxCall)]);
    bench.ended(A, "hung up from here");
    bench.pass(seconds(5));
    assert_eq!(bench.dialled(), [0], "what waits calls again");
}

#[test]
fn calls_that_end_before_the_peer_is_there_have_failed() {
    let modem = CarrierConfig {
        max_call: Some(seconds(2)),
        ..CarrierConfig::new("inmarsat", true, per_minute())
    };
    let mut bench = Bench::new(ManagerConfig::new("shore", vec![modem], rules()));
    bench.waits(1, &ssh(), 100);
    let mut calls = 0;
    for _ in 0..3_600 {
        bench.pass(seconds(1));
        if !bench.dialled().is_empty() {
            calls += 1;
            bench.connected(A);
            bench.pass(seconds(2));
            assert_eq!(bench.hung_up(), [(0, DownCause::MaxCall)]);
            bench.ended(A, "hung up from here");
        }
    }
    // Eight, and a rest of half an hour.
    assert!((8..=16).contains(&calls), "{calls} calls in an hour, and none carried anything");
}

#[test]
fn orders_come_before_rules() {
    let mut bench = Bench::new(one_modem());
    bench.says(Command::Hold);
    assert_eq!(bench.dialled(), [0]);
    bench.up(A);
    bench.pass(seconds(7_200));
    assert_eq!(bench.state(A), "up");
    bench.says(Command::Auto);
    bench.pass(seconds(60));
    assert_eq!(bench.work().len(), 1);
    bench.ended(A, "hung up from here");
    // Up: as if somebody had used it once.
    bench.says(Command::Up);
    bench.up(A);
    assert_eq!(bench.manager.command(), Command::Auto);
    bench.pass(seconds(57));
    assert_eq!(bench.state(A), "down");
    bench.ended(A, "hung up from here");
    bench.work();
    // Down: whatever waits.
    bench.says(Command::Down);
    bench.waits(1, &ssh(), 60);
    bench.pass(seconds(7_200));
    assert_eq!(bench.work(), []);
    bench.says(Command::Auto);
    bench.up(A);
    bench.work();
    bench.says(Command::Down);
    assert_eq!(bench.hung_up(), [(0, DownCause::Ordered)]);
}

#[test]
fn a_dialling_whose_reason_has_gone_is_broken_off() {
    let mut bench = Bench::new(one_modem());
    bench.waits(1, &ssh(), 60);
    bench.work();
    bench.pass(seconds(10));
    bench.waits(1, &ssh(), 0);
    assert_eq!(bench.hung_up(), [(0, DownCause::Needless)]);
    // It was answered in the same moment: it is hung up, and booked.
    bench.connected(A);
    assert_eq!(bench.hung_up(), [(0, DownCause::Needless)]);
    bench.pass(seconds(1));
    bench.ended(A, "hung up from here");
    assert_eq!(bench.spent(), price("3"));
}

#[test]
fn what_waits_and_does_not_move_neither_holds_a_line_nor_calls_again_and_again() {
    let mut bench = Bench::new(one_modem());
    bench.waits(1, &ssh(), 60);
    let mut calls = 0;
    for _ in 0..86_400 / 10 {
        bench.pass(seconds(10));
        for work in bench.work() {
            match work {
                Work::Dial { .. } => {
                    calls += 1;
                    bench.up(A);
                }
                _ => bench.ended(A, "hung up from here"),
            }
        }
    }
    assert!((2..100).contains(&calls), "{calls} calls in a day");
}

#[test]
fn a_call_that_comes_in_is_the_callers_to_pay_and_to_end() {
    let mut bench = Bench::new(one_modem());
    bench.manager.handle_connected(bench.now, A, true, &mut bench.books);
    bench.manager.handle_ready(bench.now, A);
    bench.drain();
    bench.crosses(A, &ssh(), 100);
    bench.pass(seconds(7_200));
    assert_eq!((bench.state(A), bench.cause(A)), ("up", "the peer called".into()));
    assert_eq!(bench.work(), []);
    bench.ended(A, "the carrier was lost");
    assert_eq!(bench.spent(), Money::ZERO);
    assert_eq!(bench.books.query(&Query::all(By::Peer))[0].sums.sent, 100);
}

#[test]
fn why_names_the_flow_the_host_and_the_rule() {
    let mut bench = Bench::new(one_modem());
    bench.waits(2, &mail(), 500);
    bench.waits(3, &mail(), 500);
    bench.waits(1, &ssh(), 60);
    bench.pass(seconds(28));
    bench.up(A);
    bench.waits(1, &ssh(), 0);
    bench.pass(seconds(2));
    bench.crosses(A, &mail(), 1_000);
    bench.pass(seconds(3));
    assert_eq!(
        bench.manager.why(bench.now).to_string(),
        "shore\n  inmarsat up for 5s, raised by tcp port 22 to 192.0.2.1 of 10.2.0.7, rule \
         \"everything else\"; last used 3s ago by tcp port 25 to 192.0.2.1 of 10.2.0.8, rule \
         \"mail\"; 3.00 USD so far\n  2 flows with 1000B wait under rule \"mail\", the oldest \
         (tcp port 25 to 192.0.2.1 of 10.2.0.8) for 33s; they raise the line in 1767s\n"
    );
}

#[test]
fn some_rules_fail_fast_while_the_line_is_down() {
    let when = Match { ports: vec![80..=80], ..Match::default() };
    let mut own = vec![Rule::new("web", when, Action::Raise)];
    own[0].fail_fast = true;
    let rules = Rules::new(own, Vec::new(), Action::Raise).unwrap();
    let mut bench = Bench::new(ManagerConfig { rules, ..one_modem() });
    let web = flow("10.2.0.7", 6, 80);
    assert!(bench.manager.fails_fast(bench.now, &web));
    assert!(!bench.manager.fails_fast(bench.now, &ssh()));
    bench.says(Command::Up);
    bench.up(A);
    assert!(!bench.manager.fails_fast(bench.now, &web));
}

#[test]
fn what_is_remembered_of_flows_is_bounded_and_the_urgent_find_a_place() {
    let mut bench = Bench::new(one_modem());
    bench.says(Command::Down);
    let flows = |bench: &Bench| -> Vec<usize> {
        bench.manager.why(bench.now).waiting.iter().map(|w| w.flows).collect()
    };
    for id in 0..5_000 {
        bench.waits(id, &clock(), 1);
    }
    assert_eq!(flows(&bench), [4_096], "noise is told of as well");
    for id in 5_000..10_000 {
        bench.waits(id, &mail(), 1);
    }
    assert_eq!(flows(&bench), [4_096], "mail in place of noise");
    bench.waits(10_000, &clock(), 1);
    bench.waits(10_001, &ssh(), 60);
    assert_eq!(flows(&bench), [4_095, 1]);
}

#[test]
fn why_tells_what_never_raises_the_line_and_noise_wants_nothing() {
    let mut bench = Bench::new(one_modem());
    bench.waits(1, &clock(), 90);
    bench.pass(seconds(7_200));
    assert_eq!((bench.state(A), bench.work()), ("down", Vec::new()));
    let why = bench.manager.why(bench.now).to_string();
    assert!(
        why.contains("1 flow with 90B wait under rule") && why.contains("never raise"),
        "{why}"
    );
}

/// A reload: who waits is under the new rules since the same time, a call keeps its prices.
#[test]
fn other_settings_hold_at_once_and_a_call_under_way_keeps_its_prices() {
    let mut b = Bench::new(one_modem());
    b.waits(1, &mail(), 100);
    b.pass(seconds(600));
    assert_eq!(b.state(A), "down", "mail is gathered for half an hour");
    let mut config = one_modem();
    config.rules = Rules::new(Vec::new(), Vec::new(), Action::Raise).expect("rules");
    config.carriers[0].idle = seconds(10);
    b.manager.handle_config(config.clone()).expect("the same carriers");
    b.drain();
    assert_eq!(b.state(A), "dialling", "all raises it now");
    b.up(A);
    b.waits(1, &mail(), 0);
    b.crosses(A, &mail(), 100);
    config.carriers[0].tariff = usd(Rates::per_minute(price("30"), seconds(60), Duration::ZERO));
    b.manager.handle_config(config.clone()).expect("the same carriers");
    b.drain();
    b.pass(seconds(70));
    b.ended(A, "hung up");
    let spent = |b: &Bench| {
        let lines = b.books.query(&Query::all(By::Peer));
        lines.iter().map(|line| line.sums.price).sum::<Money>()
    };
    assert_eq!(spent(&b), price("6"), "two steps at the price of when it began");
    b.waits(2, &ssh(), 100);
    b.pass(seconds(60));
    b.up(A);
    b.waits(2, &ssh(), 0);
    b.pass(seconds(70));
    b.ended(A, "hung up");
    assert_eq!(spent(&b), price("66"));
    config.carriers[0].name = "iridium".into();
    assert!(b.manager.handle_config(config).is_err(), "another carrier is no reload");
}

#[test]
fn a_drop_that_failed_is_tried_again_and_its_call_goes_on_in_the_books_meanwhile() {
    let failed = |bench: &mut Bench| {
        bench.manager.handle_drop_failed(bench.now, A, &mut bench.books);
        bench.drain();
        assert!(bench.manager.may_be_up(A));
    };
    let mut bench = Bench::calling(one_modem());
    bench.says(Command::Down);
    bench.pass(seconds(1));
    assert_eq!(bench.hung_up(), [(0, DownCause::Ordered)]);
    failed(&mut bench);
    bench.pass(seconds(4));
    assert_eq!(bench.hung_up(), []);
    // The command takes its time, and the call goes on to cost.
    bench.pass(seconds(1));
    assert_eq!(bench.hung_up(), [(0, DownCause::Ordered)]);
    let before = bench.spent();
    bench.pass(seconds(180));
    assert_eq!(bench.hung_up(), [], "one at a time");
    assert!(bench.spent() > before, "it costs");
    bench.manager.handle_dropped(bench.now, A, &mut bench.books);
    bench.drain();
    let before = bench.spent();
    bench.pass(seconds(3_600));
    assert_eq!(
        (bench.spent(), bench.hung_up(), bench.manager.may_be_up(A)),
        (before, vec![], false)
    );
}

#[test]
fn a_drop_that_always_fails_pauses_longer_and_longer_and_lets_the_line_be_raised() {
    let mut bench = Bench::calling(one_modem());
    bench.says(Command::Down);
    bench.says(Command::Auto);
    let mut pauses = Vec::new();
    for tries in 1..=9 {
        assert_eq!(bench.hung_up(), [(0, DownCause::Ordered)]);
        bench.manager.handle_drop_failed(bench.now, A, &mut bench.books);
        bench.drain();
        let waits = bench.manager.lines[0].call.is_some();
        assert_eq!(waits, tries < 3, "it is given up after three tries");
        let began = bench.now;
        while bench.work.is_empty() {
            bench.pass(seconds(1));
        }
        pauses.push(bench.now.since(began).as_millis() / 1_000);
    }
    assert_eq!(pauses, [5, 10, 20, 40, 80, 160, 300, 300, 300]);
    bench.work();
    // The last try is still under way: who raises the line waits for it.
    bench.waits(2, &ssh(), 100);
    assert_eq!(bench.dialled(), [0]);
    bench.manager.handle_drop_failed(bench.now, A, &mut bench.books);
    bench.up(A);
    bench.waits(2, &ssh(), 0);
    assert_eq!((bench.state(A), bench.manager.may_be_up(A), bench.work()), ("up", false, vec![]));
}

#[test]
fn a_line_that_is_lost_costs_until_it_has_been_dropped() {
    let mut bench = Bench::calling(one_modem());
    bench.manager.handle_lost(bench.now, A, "nothing was heard");
    bench.drain();
    let before = bench.spent();
    bench.pass(seconds(120));
    assert_eq!((bench.state(A), bench.cause(A)), ("down", "lost: nothing was heard".into()));
    assert!(bench.spent() > before);
    bench.waits(1, &ssh(), 100);
    assert_eq!(bench.dialled(), [], "one thing at a time");
    bench.manager.handle_dropped(bench.now, A, &mut bench.books);
    bench.drain();
    assert_eq!(bench.dialled(), [0]);
}
