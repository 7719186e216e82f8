//! Seeds keep what is promised; and each checker catches a mistake that is planted for it.

use dial::rules::{Action, Match, Rule, Rules};

use super::world::{World, run_world};
use super::*;

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
fn somebody_urgent_who_waits_in_vain_is_caught() {
    is_caught("nobody dialled", |plan| plan.manager.rules = all(Action::Never), |_| {});
}
