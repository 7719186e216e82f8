//! Seeds keep what is promised; and each checker catches a mistake that is planted for it.

use dial::calendar::Hours;
use dial::manager::Command;
use dial::rules::{Action, Match, Rule, Rules};
use units::{BitRate, Duration};

use super::plan::Kind;
use super::world::{World, run_world};
use super::*;
use crate::net::Demand;

#[test]
fn lines_that_fail_drop_and_cost_keep_every_promise_and_replay_exactly() {
    let (mut drops, mut failed, mut cost) = (0, 0, 0);
    let mut failures = Vec::new();
    for seed in 0..150 {
        let plan = CallPlan::of_seed(seed);
        match run_calls(&plan, None) {
            Ok(report) => {
                if seed < 3 {
                    assert_eq!(run_calls(&plan, None).as_ref(), Ok(&report), "seed {seed}");
                }
                drops += report.drops;
                failed += report.dials - report.calls;
                cost += report.cost;
            }
            Err(why) => failures.push(why.to_string()),
        }
    }
    println!("{drops} drops, {failed} diallings in vain, {cost} millionths");
    assert!(failures.is_empty(), "{failures:#?}");
    assert!(drops > 3 && failed > 3 && cost > 0, "{drops} drops, {failed} in vain, {cost}");
}

/// R-VIRTUAL: half of a file, and somebody who types, when the line goes down for a night. Nothing
/// crosses, nothing is reset, and in the morning every byte arrives.
#[test]
fn streams_over_a_link_that_is_down_for_six_hours_go_on() {
    let night = Duration::from_secs(6 * 3_600);
    let mut seeds = (0..).map(CallPlan::of_seed);
    let mut plan = seeds.find(|plan| plan.beside.is_none()).expect("one in three");
    (plan.stop, plan.fails, plan.drops, plan.silences) = (None, 0, 0, 0);
    (plan.manager.budget, plan.manager.carriers[0].quiet) = (None, Hours::default());
    plan.manager.host_budgets.clear();
    plan.manager.carriers[0].max_call = None;
    let at = |s| units::Instant::ZERO + Duration::from_secs(s);
    let file = Demand::fetch(at(10), [0, 1], plan.rate.bytes_in(Duration::from_secs(60)).0, 100);
    let mut typed = Demand::fetch(at(11), [0, 1], 300, 300);
    typed.hosts[0].pace = Some(BitRate::from_bps(8));
    plan.demands = vec![(Kind::Urgent, file), (Kind::Urgent, typed)];
    plan.heal_at = at(10 * 3_600);
    let mut world = World::new(&plan, None);
    let under_way = |w: &World<'_>| w.report.bytes > 1_000;
    assert!(world.run(at(3_600), under_way).expect("no promise broken"), "somebody called");
    world.line.manager.handle_command(Command::Down);
    let is_down = |w: &World<'_>| !w.line.is_up();
    let until = world.now + Duration::from_secs(60);
    assert!(world.run(until, is_down).expect("no promise broken"));
    assert!(!world.all_over(), "something is under way");
    // An order is what the checker of those who wait in vain does not know of.
    world.starved_since = units::Instant::FAR_FUTURE;
    world.run(world.now + Duration::from_secs(60), |_| false).expect("no promise broken");
    let before = world.report.bytes;
    world.run(world.now + night, |_| false).expect("no promise broken");
    assert!(!world.all_over() && world.report.bytes == before, "nothing crossed");
    world.line.manager.handle_command(Command::Auto);
    let until = world.now + Duration::from_secs(1_200);
    assert!(world.run(until, |w| w.all_over()).expect("no promise broken"), "all arrived");
}

/// One of these seeds fails with these words when its plan, or its world, is spoilt.
fn is_caught(words: &str, spoil: impl Fn(&mut CallPlan), meddle: impl Fn(&mut World<'_>)) {
    let mut others = Vec::new();
    for seed in 0..60 {
        let mut plan = CallPlan::of_seed(seed);
        spoil(&mut plan);
        let mut world = World::new(&plan, None);
        meddle(&mut world);
        match run_world(world) {
            Err(why) if why.what.contains(words) => return,
            Err(why) => others.push(why.what),
            Ok(_) => {}
        }
    }
    panic!("nothing was caught by \"{words}\", but {others:?}");
}

fn all(action: Action) -> Rules {
    let rule = Rule::new("all", Match::default(), action);
    Rules::new(vec![rule], Vec::new(), Action::Never).expect("rules")
}

#[test]
fn a_packet_on_a_line_that_is_down_is_caught() {
    is_caught("on its line, which is down", |_| {}, |world| world.forgets_the_path = true);
}

#[test]
fn a_bound_class_on_another_carrier_is_caught() {
    let other = |world: &mut World<'_>| world.bound = world.bound.map(|bound| 1 - bound);
    is_caught("bytes of a bound class came", |_| {}, other);
}

#[test]
fn a_price_that_the_meter_has_not_is_caught() {
    is_caught("the books have", |plan| plan.prices.per_call += 10_000, |_| {});
}

#[test]
fn a_line_that_noise_raises_is_caught() {
    is_caught("nobody who waits", |plan| plan.manager.rules = all(Action::Raise), |_| {});
}

#[test]
fn a_budget_that_is_not_kept_is_caught() {
    is_caught("is dialled with", |plan| plan.manager.budget = None, |_| {});
    let spends = |plan: &mut CallPlan| {
        plan.manager.budget = None;
        plan.stop = plan.stop.map(|_| plan.prices.first() + 1);
        plan.manager.carriers[0].min_call = units::Duration::from_secs(1_200);
        plan.manager.carriers[0].max_call = None;
    };
    is_caught("are spent", spends, |_| {});
}

#[test]
fn a_host_that_goes_on_beyond_its_budget_is_caught() {
    is_caught("which has spent", |_| {}, |world| world.forgets_hosts = true);
}

#[test]
fn somebody_urgent_who_waits_in_vain_is_caught() {
    is_caught("nobody dialled", |plan| plan.manager.rules = all(Action::Never), |_| {});
}
