//! A line that stands beside a carrier is tried by hand: raised, held and used while the other
//! works, and what the operator is told of it and of its money (R-DDR, R-VIRTUAL, R-COST).

use std::fs;
use std::process::Command;
use std::thread;
use std::time::Duration;

use bentpipe::admin::{LinkState, PathCause, PathState};
use bentpipe_lab::emulate::EmulatorHandle;
use units::BitRate;

use crate::gateway::{Gateway, PROGRAM};
use crate::harness::{Plan, SATELLITE, World, root, run, said, wait_for};
use crate::line::{LINE, calls, cost, line, link, wait_for_state, world};
use crate::paths::{command, path, second_link, wait_for_path};

/// A ship with a carrier that is always there, and beside it a line of commands with such a budget,
/// at a dollar a second.
fn ship(budget: &str) -> (World, EmulatorHandle) {
    let mut plan = Plan { rate: BitRate::from_mbps(10), delay_ms: 20, ..Plan::default() };
    plan.b.listen = "0.0.0.0:4500".into();
    let mut world = World::without_gateways(&plan);
    let nodes = [(&world.gwa, "198.51.100.1/24"), (&world.gwb, "198.51.100.2/24")];
    let second = second_link(nodes, [BitRate::from_mbps(6); 2], 10);
    let calls = world.a.dir().join("calls").display().to_string();
    let table = format!(
        "budget = {budget:?}\n\
         [peer.line]\ncarrier = \"lte\"\nraise = \"echo raised >> {calls}\"\n\
         drop = \"echo dropped >> {calls}\"\nidle = \"6s\"\n\
         tariff = {{ currency = \"USD\", per_minute = \"60\", increment = \"1s\" }}\n\
         [[peer.carrier]]\nname = \"vsat\"\ninterface = {SATELLITE:?}\nprobe = \"1s\"\n\
         [[peer.carrier]]\nname = \"lte\"\ninterface = \"sat1\"\n\
         endpoint = \"198.51.100.2:4500\"\nprobe = \"1s\"\n\
         link = {{ send = \"6Mbit\", receive = \"6Mbit\", delay = \"10ms\" }}\n"
    );
    world.a.configure(|s| s.peer = table);
    for gateway in [&mut world.b, &mut world.a] {
        gateway.start();
        gateway.wait_for_log("bentpipe is up");
    }
    wait_for("the carrier that is always there", || match path(&world.a, "vsat") {
        path if path.state == PathState::InUse => Ok(()),
        path => Err(format!("{path:?}")),
    });
    (world, second)
}

fn path_must(gateway: &Gateway, args: &[&str]) {
    let output = command(gateway, args);
    assert!(output.status.success(), "{}", said(&output));
}

#[test]
fn a_line_beside_a_carrier_that_works_is_raised_held_and_used_by_hand() {
    if !root() {
        return;
    }
    let (world, _second) = ship("1000");
    let ship = &world.a;
    assert_eq!((path(ship, "lte").state, calls(ship).len()), (PathState::Down, 0));
    assert_eq!(path(ship, "lte").cause, Some(PathCause::Unraised));
    link(ship, "up");
    assert_eq!(wait_for_state(ship, "up").cause, "ordered from here");
    assert_eq!(path(ship, "vsat").state, PathState::InUse, "the other is still preferred");
    wait_for_state(ship, "down");
    assert_eq!(path(ship, "lte").cause, Some(PathCause::Unraised), "nobody put it down");
    link(ship, "hold");
    wait_for_state(ship, "up");
    thread::sleep(Duration::from_secs(9));
    assert_eq!((line(ship).state.as_str(), line(ship).command.as_str()), ("up", "hold"));
    link(ship, "auto");
    wait_for_state(ship, "down");
    wait_for("the second drop", || match calls(ship) {
        calls if calls == ["raised", "dropped", "raised", "dropped"] => Ok(()),
        calls => Err(format!("{calls:?}")),
    });
    // A path is not set up behind the back of its line.
    let refused = command(ship, &["up", "lte"]);
    assert!(!refused.status.success());
    assert!(
        said(&refused).contains("the line of this carrier is not raised"),
        "{}",
        said(&refused)
    );
    // What is to be used is raised.
    path_must(ship, &["use", "lte"]);
    wait_for_path([&world.a, &world.b], "lte", PathState::InUse);
    assert_eq!(path(ship, "lte").cause, Some(PathCause::Chosen));
    path_must(ship, &["auto"]);
    path_must(ship, &["down", "vsat"]);
    let vsat = path(ship, "vsat");
    assert_eq!((vsat.state, vsat.cause), (PathState::Down, Some(PathCause::Down)));
    wait_for_state(ship, "down");
    let vsat = path(ship, "vsat");
    assert_eq!((vsat.state, vsat.cause), (PathState::Down, Some(PathCause::Down)), "none is left");
}

#[test]
fn a_budget_that_is_used_up_is_told_wherever_the_line_is_asked_for() {
    if !root() {
        return;
    }
    let (world, _second) = ship("3");
    let ship = &world.a;
    link(ship, "hold");
    wait_for_state(ship, "up");
    ship.wait_for_log("a month's budget is used up: nothing that costs more is begun");
    wait_for_state(ship, "down");
    let why = link(ship, "why");
    let status = ship.must(&["status"]);
    for said in [why, status] {
        let (used, end) = ("the month's budget is used up, ", "nothing that costs more is begun");
        assert!(said.contains(used) && said.contains(end), "{said}");
    }
    let socket = ship.socket();
    let mut up = Command::new(PROGRAM);
    let up = run(up.arg("link").arg("--socket").arg(socket).args(["up", "far"]));
    for refused in [up, command(ship, &["use", "lte"])] {
        assert!(!refused.status.success());
        assert!(said(&refused).contains("the month's budget is used up"), "{}", said(&refused));
    }
}

/// Stops the gateway, or kills it, and starts it again.
fn start_again(gateway: &mut Gateway, kill: bool) {
    if kill {
        gateway.kill();
    } else {
        gateway.signal("TERM");
        gateway.signal("TERM");
        gateway.wait_until_ended();
    }
    gateway.start();
    gateway.wait_for_log("bentpipe is up");
}

#[test]
fn a_line_that_was_ordered_down_stays_down_over_restarts_until_another_order() {
    if !root() {
        return;
    }
    let mut world = world(LINE);
    link(&world.a, "down");
    for kill in [false, true] {
        start_again(&mut world.a, kill);
        let kept = line(&world.a);
        assert_eq!((kept.state.as_str(), kept.command.as_str()), ("down", "down"), "{kept:?}");
        let said = [link(&world.a, "why"), world.a.must(&["status"])];
        assert!(said.iter().all(|text| text.contains("`bentpipe link down` is in force")));
    }
    link(&world.a, "hold");
    wait_for_state(&world.a, "up");
    link(&world.a, "auto");
    start_again(&mut world.a, false);
    assert_eq!(line(&world.a).command, "auto");
    assert_eq!(calls(&world.a), ["raised", "dropped"]);
}

#[test]
fn a_line_at_rest_is_told_as_such_and_no_test_raises_it_unasked() {
    if !root() {
        return;
    }
    let world = world(LINE);
    let ship = &world.a;
    let peer = ship.status().links[0].peer.clone();
    let test = |more: &[&str]| {
        let mut command = Command::new(PROGRAM);
        command.args(["test", &*peer, "--for", "1", "--send", "--socket"]).arg(ship.socket());
        run(command.args(more))
    };
    let state = || ship.status().links[0].state;
    assert_eq!(state(), LinkState::Resting, "nobody has wanted it");
    let refused = test(&[]);
    assert!(!refused.status.success(), "{}", said(&refused));
    assert!(said(&refused).contains("costs 60.00 USD a minute"), "{}", said(&refused));
    assert!(calls(ship).is_empty(), "{:?}", calls(ship));
    let tested = said(&test(&["--raise"]));
    for told in ["the line is raised for the test; it costs 60.00 USD a minute", "  send  "] {
        assert!(tested.contains(told), "{tested}");
    }
    // Its session is alive, and its line is not.
    wait_for_state(ship, "down");
    assert_eq!(state(), LinkState::Resting);
    link(ship, "down");
    // That is said at once: it waits for no line.
    let refused = said(&test(&["--raise"]));
    assert!(refused.contains("is ordered down") && !refused.contains("is raised"), "{refused}");
    assert_eq!(state(), LinkState::OrderedDown);
    let text = ship.must(&["status"]);
    assert!(
        text.contains("  ordered down  ") && text.contains("\n  line         down for "),
        "{text}"
    );
}

#[test]
fn a_drop_that_fails_is_told_and_tried_again_and_its_call_is_not_over_before() {
    if !root() {
        return;
    }
    let drop = "drop = \"echo dropping >> CALLS; test -e CALLS.works\"";
    let world = world(&LINE.replace("drop = \"echo dropped >> CALLS\"", drop));
    link(&world.a, "hold");
    wait_for_state(&world.a, "up");
    link(&world.a, "down");
    world.a.wait_for_log("the line may still be up");
    assert!(line(&world.a).cause.contains("it may still be up"), "{:?}", line(&world.a));
    fs::write(world.a.dir().join("calls.works"), "").expect("a file");
    world.a.wait_for_log("the line is dropped after all");
    assert_eq!(calls(&world.a), ["raised", "dropping", "dropping"]);
    assert!(!line(&world.a).cause.contains("it may still be up"), "{:?}", line(&world.a));
    let seconds = wait_for("the books", || match cost(&world.a) {
        (_, 1, seconds) => Ok(seconds),
        other => Err(format!("{other:?}")),
    });
    // The second try came after five.
    assert!(seconds >= 5, "{seconds} s");
}

#[test]
fn what_a_line_takes_over_is_taken_over_though_something_else_waits_for_a_restart() {
    if !root() {
        return;
    }
    let mut world = world(LINE);
    let mut reload = |from: &str, to: &str| {
        world.a.configure(|s| s.peer = s.peer.replacen(from, to, 1));
        let said = world.a.must(&["reload"]);
        (said.contains("line of a peer: changed, takes effect after a restart"), line(&world.a))
    };
    assert!(reload("drop = ", "#drop = ").0);
    let (named, line) = reload("idle = \"2s\"", "idle = \"2s\"\nbudget = \"0.01\"");
    assert!(named, "it still waits");
    assert!(line.budget.is_some_and(|budget| budget.stopped), "no call is as cheap as that");
    let (named, line) = reload("#drop = ", "drop = ");
    assert!(!named && line.budget.is_some(), "the file is in force");
    let (named, line) = reload("budget = \"0.01\"", "budget = \"1000\"");
    assert!(!named && line.budget.is_none());
    link(&world.a, "hold");
    wait_for_state(&world.a, "up");
    link(&world.a, "down");
    wait_for("the command", || match calls(&world.a) {
        c if c == ["raised", "dropped"] => Ok(()),
        other => Err(format!("{other:?}")),
    });
}

#[test]
fn a_peer_that_is_put_back_while_its_line_is_dropped_comes_back_by_itself() {
    if !root() {
        return;
    }
    let drop = "drop = \"echo dropping >> CALLS; until test -e CALLS.works; do sleep 0.1; done\"";
    let world = world(&LINE.replace("drop = \"echo dropped >> CALLS\"", drop));
    link(&world.a, "hold");
    wait_for_state(&world.a, "up");
    let whole = world.a.text();
    let (alone, _) = whole.split_once("[[peer]]").expect("a peer");
    world.a.write(alone);
    world.a.must(&["reload"]);
    wait_for("the command", || match calls(&world.a) {
        calls if calls == ["raised", "dropping"] => Ok(()),
        other => Err(format!("{other:?}")),
    });
    world.a.write(&whole);
    let mut reload = Command::new(PROGRAM);
    let output = run(reload.arg("reload").arg("--socket").arg(world.a.dir().join("admin.sock")));
    assert!(!output.status.success() && said(&output).contains("is still being dropped"));
    assert!(world.a.status().links.is_empty());
    fs::write(world.a.dir().join("calls.works"), "").expect("a file");
    wait_for("the peer", || match world.a.status().links.len() {
        1 => Ok(()),
        other => Err(format!("{other} links")),
    });
}
