//! Handshakes that cannot succeed: the log, `bentpipe status` and `bentpipe doctor` say what
//! is known of why, after ten seconds.

use std::net::UdpSocket;
use std::time::Duration;

use bentpipe::admin::{Failing, LinkState, Reason};
use os::netns::NetNs;

use crate::gateway::{Gateway, Keys, PROGRAM};
use crate::harness::{Plan, World, must, root, run, said, wait_for};

/// What `gateway` says of its one link, once it is `reason`.
fn wait_for_reason(gateway: &Gateway, reason: Reason) -> Failing {
    wait_for(&format!("{reason:?} at {}", gateway.name()), || {
        let failing = gateway.try_status()?.links[0].failing.clone();
        failing.clone().filter(|f| f.reason == reason).ok_or(format!("{failing:?}"))
    })
}

/// `bentpipe doctor FILE` names the link and says `words`, and fails.
fn check_doctor(ns: &NetNs, gateway: &Gateway, words: &str) {
    let output = run(ns.command(PROGRAM).arg("doctor").arg(gateway.file()));
    let text = said(&output);
    assert!(!output.status.success(), "{text}");
    assert!(text.contains("FAIL  link") && text.contains(words), "{text}");
}

fn check_status(ns: &NetNs, gateway: &Gateway, words: &str) {
    let socket = gateway.dir().join("admin.sock");
    let text = must(ns, &format!("{PROGRAM} status --socket {}", socket.display()));
    assert!(text.contains("no session") && text.contains(words), "{text}");
}

fn public_key(gateway: &Gateway) -> String {
    gateway.status().node.public_key
}

#[test]
fn nobody_there_a_closed_port_and_a_filter_are_told_apart() {
    if !root() {
        return;
    }
    let mut plan = Plan::default();
    plan.a.endpoint = Some("192.0.2.2:4501".into());
    let mut world = World::without_gateways(&plan);
    world.b.start();
    world.a.start();
    // The wrong port: the kernel there says so.
    let failing = wait_for_reason(&world.a, Reason::NotArrived);
    assert_eq!(failing.address.as_deref(), Some("192.0.2.2:4501"));
    assert_eq!(failing.said.as_deref(), Some("port unreachable"));
    assert_eq!(failing.said_by.as_deref(), Some("192.0.2.2"));
    world.a.wait_for_log("192.0.2.2 says: port unreachable");
    let words = "nothing came back from 192.0.2.2:4501";
    check_status(&world.gwa, &world.a, words);
    check_doctor(&world.gwa, &world.a, words);
    let link = world.a.status().links[0].clone();
    assert!(link.state == LinkState::Rising && link.handshakes.failed >= 4, "{link:?}");
    assert_eq!(world.a.log().matches("nothing came back").count(), 1, "{}", world.a.log());

    // A filter that says nothing.
    world.a.kill();
    must(
        &world.gwb,
        "nft add table inet f && nft add chain inet f i '{ type filter hook input \
         priority 0; }' && nft add rule inet f i udp dport 4501 drop",
    );
    world.a.start();
    let failing = wait_for_reason(&world.a, Reason::Silence);
    assert!(failing.initiations >= 4 && failing.for_ms >= 10_000, "{failing:?}");
    world.a.wait_for_log(words);
    check_doctor(&world.gwa, &world.a, "that its address and UDP port are these");
    // And one that does.
    world.a.kill();
    must(
        &world.gwb,
        "nft flush chain inet f i && nft add rule inet f i udp dport 4501 reject \
         with icmpx admin-prohibited",
    );
    world.a.start();
    let failing = wait_for_reason(&world.a, Reason::NotArrived);
    assert_eq!(failing.said.as_deref(), Some("prohibited by a filter"));

    // Once the way is right all of it is forgotten.
    world.a.kill();
    world.a.configure(|a| a.endpoint = Some("192.0.2.2:4500".into()));
    world.a.start();
    world.a.wait_until_up();
    assert_eq!(world.a.status().links[0].failing, None);
}

#[test]
fn a_wrong_key_of_the_peer_is_told_at_both_ends_with_the_right_one() {
    if !root() {
        return;
    }
    let mut plan = Plan::default();
    plan.b.endpoint = Some("192.0.2.1:4500".into());
    let mut world = World::without_gateways(&plan);
    // The ship has another key for the shore than the shore's.
    let wrong = Keys::new().public;
    world.b.start();
    let shore = wait_for("the shore", || world.b.try_status().map(|s| s.node.public_key));
    world.a.write(&world.a.text().replace(&shore, &wrong));
    world.a.start();
    // The shore calls, too: so the ship learns who is there.
    let failing = wait_for_reason(&world.a, Reason::OtherNode);
    assert_eq!(failing.public_key.as_deref(), Some(shore.as_str()));
    check_doctor(&world.gwa, &world.a, &format!("it calls with public key {shore}"));
    world.a.wait_for_log(&format!("a node that the file does not name calls: public key {shore}"));
    // And the shore, that somebody there calls another.
    let ship = public_key(&world.a);
    let failing = wait_for_reason(&world.b, Reason::OtherKey);
    assert_eq!(failing.address.as_deref(), Some("192.0.2.1:4500"));
    check_doctor(&world.gwb, &world.b, &format!("this node's `public_key` is {shore}"));
    world.b.wait_for_log("somebody calls for another public key than this node's");
    assert!(!world.b.log().contains(&ship), "the shore cannot know more");
}

#[test]
fn an_unknown_node_is_told_with_its_key_where_it_calls() {
    if !root() {
        return;
    }
    let mut world = World::without_gateways(&Plan::default());
    world.a.start();
    let ship = wait_for("the ship", || world.a.try_status().map(|s| s.node.public_key));
    world.b.write(&world.b.text().replace(&ship, &Keys::new().public));
    world.b.start();
    let line = format!("a node that the file does not name calls: public key {ship}");
    wait_for("the log", || match world.b.log() {
        log if log.contains(&line) => Ok(()),
        log => Err(log),
    });
    let stranger = world.b.status().node.strangers[0].clone();
    assert_eq!(stranger.public_key.as_deref(), Some(ship.as_str()));
    assert_eq!(stranger.address, "192.0.2.1:4500");
    // The ship gets no answer, and cannot tell why: but it says what to look at.
    let failing = wait_for_reason(&world.a, Reason::Silence);
    assert!(failing.public_key.is_none());
    check_doctor(&world.gwa, &world.a, &format!("its file has this node's public key, {ship}"));
    let output = run(world.gwb.command(PROGRAM).arg("doctor").arg(world.b.file()));
    assert!(said(&output).contains(&format!("public_key is {ship}")), "{}", said(&output));
    assert_eq!(world.b.log().matches("does not name").count(), 1, "limited in rate");
}

#[test]
fn a_pre_shared_key_that_differs_or_is_at_one_end_only_is_told_at_both() {
    if !root() {
        return;
    }
    let secret = || format!("preshared_key = \"{}\"\n", Keys::new().private);
    for (a, b) in [(secret(), String::new()), (String::new(), secret()), (secret(), secret())] {
        let mut plan = Plan::default();
        (plan.a.peer, plan.b.peer) = (a, b);
        let mut world = World::without_gateways(&plan);
        world.b.start();
        world.a.start();
        let at_a = wait_for_reason(&world.a, Reason::AnswersForged);
        let at_b = wait_for_reason(&world.b, Reason::AnswersNotTaken);
        assert_eq!(at_a.address.as_deref(), Some("192.0.2.2:4500"));
        assert_eq!(at_b.address.as_deref(), Some("192.0.2.1:4500"));
        assert!(at_b.answered >= 4, "{at_b:?}");
        let words = "`preshared_key` must be the same at both ends";
        check_doctor(&world.gwa, &world.a, words);
        check_doctor(&world.gwb, &world.b, words);
        world.a.wait_for_log("do not authenticate");
        world.b.wait_for_log("has taken none of");
    }
}

#[test]
fn a_flood_of_strangers_fills_neither_the_log_nor_the_status() {
    if !root() {
        return;
    }
    let mut world = World::without_gateways(&Plan::default());
    world.b.start();
    world.a.start();
    world.a.wait_until_up();
    // Initiations in form, for nobody, from many ports.
    let mut packet = [7u8; 218];
    packet[..2].copy_from_slice(&[1, 1]);
    world.gwa.run(|| {
        for port in 0..300 {
            let socket = UdpSocket::bind(("192.0.2.1", 20_000 + port)).expect("a port");
            socket.send_to(&packet, "192.0.2.2:4500").expect("sent");
        }
    });
    wait_for("all to be counted", || match world.b.dropped_for("wrong mac1") {
        n if n >= 200 => Ok(()),
        n => Err(n.to_string()),
    });
    let status = world.b.status();
    assert!(status.node.strangers.len() <= 16, "{}", status.node.strangers.len());
    let lines = world.b.log().matches("somebody calls").count();
    assert_eq!(lines, 1, "{}", world.b.log());
    assert_eq!(status.links[0].failing, None);
    // And none of them is answered.
    let socket = world.gwa.run(|| UdpSocket::bind("192.0.2.1:20000")).expect("a port");
    socket.set_read_timeout(Some(Duration::from_millis(500))).expect("a limit");
    socket.send_to(&packet, "192.0.2.2:4500").expect("sent");
    assert!(socket.recv_from(&mut [0; 100]).is_err(), "silence");
}

#[test]
fn the_doctor_says_that_no_gateway_runs() {
    if !root() {
        return;
    }
    let world = World::without_gateways(&Plan::default());
    let output = run(world.gwa.command(PROGRAM).arg("doctor").arg(world.a.file()));
    let text = said(&output);
    assert!(text.contains("it does not run; `bentpipe up "), "{text}");
    assert!(!text.contains("FAIL  gateway"), "{text}");
}
