//! `bentpipe test PEER`: a link measured by its own gateways.

use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use bentpipe::admin::{LinkTest, TestedDirection};
use units::{BitRate, Ratio};

use crate::gateway::{Gateway, PROGRAM};
use crate::harness::{World, root, root_alone, run, said, wait_for};

/// Nothing is split, and nobody has traffic.
fn world(change: impl FnOnce(&mut crate::harness::Plan)) -> World {
    World::with(|plan| {
        // A busy machine carries it, too.
        plan.rate = BitRate::from_mbps(4);
        for settings in [&mut plan.a, &mut plan.b] {
            settings.lan = None;
        }
        change(plan);
    })
}

/// The command at a gateway.
fn command(gateway: &Gateway, args: &str) -> std::process::Command {
    let mut command = std::process::Command::new(PROGRAM);
    command.args(["test", "far", "--socket"]).arg(gateway.dir().join("admin.sock"));
    command.args(args.split_whitespace());
    command
}

fn start(gateway: &Gateway, args: &str) -> Child {
    let mut command = command(gateway, args);
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    child.expect("it starts")
}

fn wait_for_stream(gateway: &Gateway) {
    wait_for("a test's stream", || match gateway.status().links[0].streams_open {
        0 => Err("none is open".to_owned()),
        _ => Ok(()),
    });
}

#[test]
fn both_directions_are_measured_with_bytes_that_nothing_makes_fewer() {
    if !root_alone() {
        return;
    }
    let world = world(|plan| plan.loss = Ratio::from_f64(0.02));
    let output = run(&mut command(&world.a, "--for 2 --json"));
    let found: LinkTest =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {}", said(&output)));
    println!("{found:?}");
    let idle = found.rtt_idle;
    assert!(idle.samples > 2 && (100_000..2_000_000).contains(&idle.median_us), "{found:?}");
    for way in [&found.send, &found.receive] {
        let way: &TestedDirection = way.as_ref().expect("both were asked for");
        assert_eq!(way.configured_bps, 4_000_000);
        assert!((0.5..=1.02).contains(&way.share), "{found:?}");
        assert!(way.carried_bps >= way.goodput_bps && way.carried_bps < 4_400_000, "{found:?}");
        assert!(way.rtt.samples > 2 && way.rtt.median_us >= 100_000, "{found:?}");
        assert!((1..100_000).contains(&way.loss_ppm), "{found:?}");
    }
    assert!(found.link_bytes_sent > 400_000 && found.link_bytes_received > 400_000);
    // The test's own words, where nothing is wrong, and the outcome where something is.
    assert_eq!(output.status.success(), found.problems.is_empty(), "{}", said(&output));
    world.wait_until_no_streams();
    let output = run(&mut command(&world.b, "--for 1 --receive"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("  receive  ") && !text.contains("  send  "), "{}", said(&output));
    assert!(said(&output).contains("receives up to 500.0kB"), "{}", said(&output));
}

/// L-TE-2.
#[test]
fn one_test_at_a_time_and_none_outlives_who_asked_for_it_or_its_link() {
    if !root() {
        return;
    }
    let mut world = world(|_| {});
    let mut first = start(&world.a, "--for 60 --send");
    wait_for_stream(&world.b);
    for gateway in [&world.a, &world.b] {
        let output = run(&mut command(gateway, "--for 1"));
        let is_refused = !output.status.success() && said(&output).contains("is under way");
        assert!(is_refused, "{}: {}", gateway.name(), said(&output));
    }
    // Ended by its end, not by its time.
    first.kill().expect("a signal");
    first.wait().expect("it ends");
    let begin = Instant::now();
    world.wait_until_no_streams();
    assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());

    let mut second = start(&world.b, "--for 60 --receive");
    wait_for_stream(&world.a);
    world.a.kill();
    let ended = wait_for("the command to end", || {
        second.try_wait().expect("a child").ok_or_else(|| "it goes on".to_owned())
    });
    assert!(!ended.success());
    let output = run(&mut command(&world.b, ""));
    assert!(said(&output).contains("is not up"), "{}", said(&output));
    let output = run(command(&world.b, "").arg("--for").arg("61"));
    assert!(!output.status.success() && said(&output).contains("61"), "{}", said(&output));
    let mut unknown = std::process::Command::new(PROGRAM);
    unknown.args(["test", "nobody", "--socket"]).arg(world.b.dir().join("admin.sock"));
    let output = run(&mut unknown);
    assert!(said(&output).contains("there is no peer \"nobody\""), "{}", said(&output));
}
