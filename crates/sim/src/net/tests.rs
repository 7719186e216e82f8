//! Stars, meshes and rows of nodes: fairness, memory, convergence, exact replay.

use link::session::{Mistake, RateMode};
use units::{BitRate, ByteCount, Duration};

use super::plan::at;
use super::run::run_world;
use super::world::Net;
use super::*;
use crate::Failure;

fn kbps(n: u64) -> BitRate {
    BitRate::from_kbps(n)
}

fn run(plan: &NetPlan) -> NetReport {
    run_net(plan, None).unwrap_or_else(|e| panic!("{e}"))
}

/// The mean of what demands got in the plan's window, as parts of 1,000 of `rate`.
fn permille_of(rate: BitRate, plan: &NetPlan, report: &NetReport) -> u64 {
    let all: u64 = report.window.iter().sum();
    let [from, until] = plan.window;
    all * 1_000 / rate.bytes_in(until.since(from)).0
}

/// Everybody fetches, more than comes by the end of the window.
fn all_fetch(plan: &mut NetPlan, terminals: usize, bytes: u64, window: [u64; 2]) {
    let fetch = |n: usize| Demand::fetch(at(3_000 + n as u64), [n, 0], 200, bytes);
    plan.demands = (1..=terminals).map(fetch).collect();
    plan.window = window.map(at);
}

#[test]
fn two_hundred_terminals_share_a_hubs_channel_evenly() {
    const TERMINALS: usize = 200;
    let forward = kbps(100 * TERMINALS as u64);
    let mut plan = NetPlan::star(1, TERMINALS, forward, kbps(32));
    all_fetch(&mut plan, TERMINALS, 130_000, [6_000, 11_000]);
    let report = run(&plan);
    assert_eq!(report.finished, report.connections, "{report:?}");
    assert!(is_fair(&report.window), "{:?}", report.window);
    let used = permille_of(forward, &plan, &report);
    println!("{used} ‰ of the channel, {} packets, {} wakes", report.packets, report.wakes);
    assert!(used > 930, "{used} ‰");
}

/// Each terminal is told five times what it can have if all want something. What they find out by
/// themselves fills the channel; equal it is not (docs/decisions/many-nodes-apart.md).
#[test]
fn terminals_that_are_promised_more_than_there_is_fill_the_channel_and_none_starves() {
    const TERMINALS: usize = 20;
    let forward = kbps(10_000);
    let mut plan = NetPlan::star(1, TERMINALS, forward, kbps(128));
    (plan.mode, plan.queue) = (RateMode::Learned, Some(Duration::from_millis(400)));
    plan.links.iter_mut().for_each(|link| link.rates[1] = kbps(2_500));
    all_fetch(&mut plan, TERMINALS, 3_000_000, [20_000, 40_000]);
    plan.patience = Duration::from_secs(300);
    let report = run(&plan);
    let used = permille_of(forward, &plan, &report);
    println!("{used} ‰, {} overflows of {}", report.overflows, report.packets);
    assert!(used > 850, "{used} ‰");
    let part = report.window.iter().sum::<u64>() / TERMINALS as u64;
    assert!(report.window.iter().all(|got| *got > part / 6), "{:?}", report.window);
}

/// Where more is wanted than a hub's memory holds, all get on.
#[test]
fn a_pool_that_is_used_up_holds_its_bound_and_everybody_gets_on() {
    const TERMINALS: usize = 80;
    let mut plan = NetPlan::star(3, TERMINALS, kbps(500 * TERMINALS as u64), kbps(500));
    plan.memory = ByteCount(2 << 20);
    // They send, and the hub's hosts are slow.
    plan.demands = (1..=TERMINALS)
        .map(|n| {
            let mut demand = Demand::fetch(at(3_000), [n, 0], 300_000, 100);
            demand.hosts[1].reads = Some(kbps(100));
            demand.hosts[1].socket = 4_000;
            demand
        })
        .collect();
    plan.patience = Duration::from_secs(600);
    let report = run(&plan);
    println!("{} bytes of {}", report.most_memory, plan.memory.0);
    assert_eq!(report.finished, report.connections);
    assert!(report.most_memory > plan.memory.0, "the pool is used up: {}", report.most_memory);
}

#[test]
fn in_a_mesh_everybody_reaches_everybody_at_once() {
    const NODES: usize = 6;
    let up = kbps(1_000);
    let mut plan = NetPlan::mesh(1, NODES, up);
    let pairs = (0..NODES).flat_map(|a| (0..NODES).filter(move |b| *b != a).map(move |b| [a, b]));
    plan.demands = pairs.map(|nodes| Demand::fetch(at(4_000), nodes, 200, 300_000)).collect();
    plan.window = [at(7_000), at(12_000)];
    let report = run(&plan);
    assert_eq!(report.finished, report.connections);
    assert!(is_fair(&report.window), "{:?}", report.window);
    let used = permille_of(kbps(1_000 * NODES as u64), &plan, &report);
    assert!(used > 900, "{used} ‰");
}

#[test]
fn several_hops_in_a_row_carry_what_one_does() {
    const HOPS: usize = 4;
    let rate = kbps(2_000);
    let mut plan = NetPlan::row(1, HOPS, rate);
    plan.demands = vec![
        Demand::fetch(at(4_000), [0, HOPS], 200, 3_000_000),
        Demand::fetch(at(4_000), [HOPS, 0], 200, 3_000_000),
    ];
    plan.window = [at(9_000), at(14_000)];
    let report = run(&plan);
    assert_eq!(report.finished, report.connections);
    for got in &report.window {
        let promille = got * 1_000 / rate.bytes_in(Duration::from_secs(5)).0;
        assert!(promille > 900, "{promille} ‰");
    }
}

#[test]
fn drawn_nets_converge_and_replay_exactly() {
    let plans = (0..3).flat_map(|seed| {
        let star = NetPlan::drawn_star(seed, 12);
        [star, NetPlan::drawn_mesh(seed, 5), NetPlan::drawn_row(seed, 3)]
    });
    for (n, plan) in plans.enumerate() {
        let report = run(&plan);
        assert!(report.bytes > 0 && report.connections > 5, "{report:?}");
        if n < 3 {
            assert_eq!(report, run(&plan), "{} runs alike twice", plan.arguments);
        }
    }
}

/// A hub that starts anew knows where 200 terminals were, and calls them in turns.
#[test]
fn a_hub_that_died_has_all_its_terminals_again_at_once() {
    const TERMINALS: usize = 200;
    let mut plan = NetPlan::star(1, TERMINALS, kbps(200 * TERMINALS as u64), kbps(64));
    plan.demands =
        (1..=TERMINALS).map(|n| Demand::fetch(at(1_000 + n as u64), [n, 0], 100, 100)).collect();
    let kind = NetFaultKind::Restart(0);
    plan.faults = vec![NetFault { from: at(10_000), until: at(11_000), kind }];
    let mut net = Net::new(&plan, None);
    net.run(at(11_500), |_| false).unwrap();
    let waits = |net: &Net<'_>| {
        let hub = &net.nodes[0];
        let relay = hub.relay.as_ref().expect("it runs");
        hub.neighbours.iter().filter(|n| !relay.endpoint.is_established(n.id)).count()
    };
    assert!(waits(&net) > 0, "a call takes longer");
    // Their turns take 0.4 s, and the last one's handshake a round trip.
    let all = net.run(at(14_000), |net| net.now > at(11_500) && waits(net) == 0).unwrap();
    assert!(all, "{} have no session", waits(&net));
}

fn is_caught(mistake: Mistake) -> Result<NetReport, Failure> {
    let mut plan = NetPlan::star(1, 4, kbps(2_000), kbps(500));
    plan.loss = units::Ratio::from_f64(0.02);
    all_fetch(&mut plan, 4, 400_000, [0, 0]);
    let mut net = Net::new(&plan, None);
    net.mistake = Some(mistake);
    run_world(&plan, net)
}

#[test]
fn planted_mistakes_are_caught_in_a_star_too() {
    for mistake in [Mistake::DroppedAcknowledgement, Mistake::DoubleDelivery, Mistake::CreditLeak] {
        assert!(is_caught(mistake).is_err(), "{mistake:?} goes unnoticed");
    }
}
