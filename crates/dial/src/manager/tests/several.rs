//! Several lines of a peer, each with limits of its own and an operator's word.

use super::*;
use crate::calendar::Hours;

/// The first is preferred; each with its own `change`.
fn two_lines(change: impl Fn(&mut CarrierConfig, &mut CarrierConfig)) -> ManagerConfig {
    let mut first = CarrierConfig { priority: 1, ..CarrierConfig::new("vsat", true, per_minute()) };
    let mut second =
        CarrierConfig { priority: 2, ..CarrierConfig::new("iridium", true, per_minute()) };
    change(&mut first, &mut second);
    ManagerConfig::new("shore", vec![first, second], rules())
}

/// Both wait for ssh; the first cannot be raised, so that the second is up and carries.
fn by_the_second(config: ManagerConfig) -> Bench {
    let mut bench = Bench::new(config);
    bench.waits(1, &ssh(), 60);
    assert_eq!(bench.dialled(), [0]);
    bench.failed(A, "no network");
    assert_eq!(bench.dialled(), [1]);
    bench.up(B);
    bench.waits(1, &ssh(), 0);
    bench.crosses(B, &ssh(), 100);
    bench
}

fn noon_to(end: &str) -> Hours {
    Hours(vec![format!("11:00-{end}").parse().expect("hours")])
}

#[test]
fn what_crosses_by_the_second_line_wants_the_first_and_the_second_goes_idle() {
    let mut bench = by_the_second(two_lines(|_, second| {
        (second.idle, second.idle_at_step) = (seconds(40), seconds(40));
    }));
    // Nothing waits: it crosses.
    for _ in 0..4 {
        bench.pass(seconds(1));
        bench.crosses(B, &ssh(), 100);
        assert_eq!(bench.work(), []);
    }
    bench.pass(seconds(1));
    assert_eq!(bench.dialled(), [0], "it may be tried again");
    bench.failed(A, "no network");
    bench.pass(seconds(9));
    bench.crosses(B, &ssh(), 100);
    bench.pass(seconds(1));
    assert_eq!(bench.dialled(), [0], "with back-off");
    bench.up(A);
    bench.crosses(A, &ssh(), 100);
    bench.pass(seconds(27));
    bench.crosses(A, &ssh(), 100);
    bench.pass(seconds(9));
    assert_eq!((bench.state(A), bench.state(B)), ("up", "up"), "used 37 s ago");
    bench.crosses(A, &ssh(), 100);
    bench.pass(seconds(4));
    assert_eq!((bench.state(A), bench.state(B)), ("up", "lingering"), "by its own idle time");
    for _ in 0..8 {
        bench.crosses(A, &ssh(), 100);
        bench.pass(seconds(9));
    }
    assert_eq!((bench.state(A), bench.state(B)), ("up", "down"));
}

#[test]
fn a_better_line_is_not_tried_for_what_nobody_uses() {
    let mut bench = by_the_second(two_lines(|first, second| {
        first.redial.first = seconds(35);
        second.quiet = Hours::default();
    }));
    bench.pass(seconds(3_600));
    assert_eq!(bench.hung_up().len(), 1, "the second was, and the first not tried");
}

#[test]
fn quiet_hours_are_those_of_each_line() {
    let mut bench = Bench::new(two_lines(|first, _| first.quiet = noon_to("13:00")));
    bench.waits(1, &ssh(), 60);
    assert_eq!(bench.dialled(), [1], "the first is quiet");
    bench.up(B);
    bench.waits(1, &ssh(), 0);
    for _ in 0..720 {
        bench.crosses(B, &ssh(), 100);
        assert_eq!(bench.work(), []);
        bench.pass(seconds(5));
    }
    assert_eq!(bench.dialled(), [0], "at one o'clock");
    let mut bench = Bench::new(two_lines(|first, second| {
        (first.quiet, second.quiet) = (noon_to("14:00"), noon_to("13:00"));
    }));
    bench.waits(1, &ssh(), 60);
    let why = bench.manager.why(bench.now);
    assert_eq!(why.waiting[0].raises_in, Some(seconds(3_600)), "by the first that may be");
    bench.pass(seconds(3_599));
    assert_eq!(bench.work(), []);
    bench.pass(seconds(1));
    assert_eq!(bench.dialled(), [1]);
    // An order is no rule.
    bench.says(Command::Down);
    bench.work();
    bench.says(Command::Up);
    assert_eq!(bench.dialled(), [0]);
}

#[test]
fn a_line_whose_own_budget_is_used_up_leaves_the_rest_to_the_next() {
    let own = Some(Budget { stop: price("7"), warn_percent: 80 });
    let mut bench = Bench::new(two_lines(|first, _| first.budget = own));
    bench.waits(1, &ssh(), 60);
    bench.up(A);
    bench.waits(1, &ssh(), 0);
    assert_eq!(bench.dialled(), [0]);
    let mut work = Vec::new();
    while work.is_empty() {
        bench.crosses(A, &ssh(), 10);
        bench.pass(seconds(1));
        work = bench.hung_up();
    }
    assert_eq!(work, [(0, DownCause::Budget)]);
    bench.ended(A, "hung up from here");
    assert_eq!(bench.spent(), price("6"), "a third minute is too much");
    bench.waits(1, &ssh(), 60);
    assert_eq!(bench.dialled(), [1]);
    bench.up(B);
    bench.waits(1, &ssh(), 0);
    for _ in 0..600 {
        bench.crosses(B, &ssh(), 10);
        bench.pass(seconds(1));
    }
    assert_eq!(bench.work(), [], "the second has no budget, and the first is not tried");
    let told = bench.told.iter().filter_map(|event| match event {
        Event::LineBudget { carrier, spent, of, stopped } => {
            Some((carrier.0, *spent, *of, *stopped))
        }
        _ => None,
    });
    let told: Vec<_> = told.collect();
    let [six, seven] = ["6", "7"].map(price);
    assert_eq!(told, [(0, six, seven, false), (0, six, seven, true)]);
    bench.ended(B, "the carrier was lost");
    // In the next month there is money again.
    bench.pass(seconds(8 * 86_400));
    bench.work();
    bench.waits(2, &ssh(), 60);
    assert_eq!(bench.dialled(), [0]);
}

#[test]
fn an_order_for_one_line_holds_before_that_for_all() {
    let mut bench = Bench::new(two_lines(|_, _| ()));
    let says = |bench: &mut Bench, carrier, command| {
        bench.manager.handle_line_command(carrier, command);
        bench.drain();
    };
    // Down: the other one serves.
    says(&mut bench, A, Command::Down);
    bench.waits(1, &ssh(), 60);
    assert_eq!(bench.dialled(), [1]);
    bench.up(B);
    bench.waits(1, &ssh(), 0);
    bench.pass(seconds(300));
    assert_eq!(bench.hung_up().len(), 1);
    bench.ended(B, "hung up from here");
    // Up: once, whatever waits.
    says(&mut bench, B, Command::Up);
    assert_eq!(bench.dialled(), [1]);
    bench.up(B);
    bench.pass(seconds(300));
    assert_eq!(bench.hung_up().len(), 1, "nobody used it");
    bench.ended(B, "hung up from here");
    // Held, beside all others being down.
    bench.says(Command::Down);
    says(&mut bench, B, Command::Hold);
    bench.waits(2, &ssh(), 60);
    assert_eq!(bench.dialled(), [1]);
    bench.up(B);
    bench.waits(2, &ssh(), 0);
    bench.pass(seconds(3_600));
    assert_eq!((bench.state(A), bench.state(B)), ("down", "up"));
    let why = bench.manager.why(bench.now);
    assert_eq!([why.lines[0].command, why.lines[1].command], [None, Some(Command::Hold)]);
    // What is said of all is said of each.
    bench.says(Command::Down);
    assert_eq!(bench.hung_up(), [(1, DownCause::Ordered)]);
    bench.ended(B, "hung up from here");
    bench.says(Command::Auto);
    bench.waits(3, &ssh(), 60);
    assert_eq!(bench.dialled(), [0]);
}

#[test]
fn a_line_that_carried_nothing_any_more_gives_way_to_the_next() {
    let lost = |config: ManagerConfig| {
        let mut bench = Bench::calling(config);
        bench.manager.handle_useless(bench.now, A);
        bench.ended(A, "nothing was heard for a minute");
        bench.waits(2, &ssh(), 60);
        bench.dialled()
    };
    assert_eq!(lost(two_lines(|_, _| ())), [1]);
    assert_eq!(lost(one_modem()), [0], "there is no other one");
}
