//! SIGHUP: new rules take effect, sessions and transfers go on, a bad file changes nothing.

use std::thread;
use std::time::{Duration, Instant};

use crate::harness::{World, must, root, wait_for};
use crate::tcp::{
    End, SERVER, check_echo, echo_once, end_within, is_late, joined, listen, pattern, read_to_end,
    send_all,
};

#[test]
fn a_reload_changes_the_rules_and_disturbs_no_transfer() {
    if !root() {
        return;
    }
    let mut world = World::with(|plan| plan.rate = units::BitRate::from_mbps(8));
    let listener = listen(&world.server, SERVER);
    let (mut near, far) = joined(&world.client, &listener);
    let data = pattern(41, 3_000_000);
    let sending = send_all(&far, data.clone());
    thread::sleep(Duration::from_millis(500));
    world.b.configure(|s| s.deny = vec!["10.2.9.0/24"]);
    world.b.signal("HUP");
    world.b.wait_for_log("the configuration was read again");
    drop(far);
    assert!(read_to_end(&mut near) == (data, End::Clean), "the transfer went on");
    sending.join().unwrap().unwrap();
    assert_eq!(world.b.log().matches("link up peer=").count(), 1, "the session stayed");
    // What is no longer permitted ends, and is told.
    let (mut near, far) = joined(&world.client, &listener);
    world.b.configure(|s| s.deny = vec!["10.2.0.2/32"]);
    world.b.signal("HUP");
    world.b.wait_for_log("no longer let it go there");
    assert_eq!(end_within(&mut near, Duration::from_secs(10)), Some(End::Reset));
    drop(far);
    wait_for("the new rule", || match echo_once(&world.client, &listener) {
        Err(e) if is_late(&e) => Err(e.to_string()),
        Err(_) => Ok(()),
        Ok(()) => Err("connections still pass".into()),
    });
    // And open again.
    world.b.configure(|s| s.deny.clear());
    world.b.signal("HUP");
    wait_for("the old rule", || echo_once(&world.client, &listener).map_err(|e| e.to_string()));
}

#[test]
fn a_bad_file_leaves_the_old_one_in_force_and_says_why() {
    if !root() {
        return;
    }
    let world = World::new();
    let listener = listen(&world.server, SERVER);
    check_echo(&world.client, &listener);
    let good = world.b.text();
    for (round, (bad, why)) in [
        (good.replace("allow", "alow"), "alow"),
        (good.replace("50ms", "50"), "delay"),
        (String::from("[node"), "not TOML"),
        (String::new(), "no [node] table"),
    ]
    .into_iter()
    .enumerate()
    {
        world.b.write(&bad);
        world.b.signal("HUP");
        let said = wait_for("a refusal", || {
            let log = world.b.log();
            let lines: Vec<&str> = log.lines().filter(|l| l.contains("stays in force")).collect();
            match lines.len() == round + 1 {
                true => Ok(lines[round].to_owned()),
                false => Err(log),
            }
        });
        assert!(said.contains(why), "{said}");
        check_echo(&world.client, &listener);
    }
    assert_eq!(world.b.log().matches("link up peer=").count(), 1, "the session stayed");
}

#[test]
fn a_reload_moves_the_routes_of_a_peer() {
    if !root() {
        return;
    }
    let mut world = World::new();
    world.server.ip("address add 10.3.0.2/32 dev lan0").unwrap();
    world.gwb.ip("route add 10.3.0.0/24 via 10.2.0.2").unwrap();
    let listener = listen(&world.server, "10.3.0.2:7000");
    assert!(echo_once(&world.client, &listener).is_err(), "nobody knows the way yet");
    world.b.configure(|s| s.allow.push("10.3.0.0/24"));
    world.b.signal("HUP");
    world.b.wait_for_log("the configuration was read again");
    world.a.configure(|s| s.routes.push("10.3.0.0/24"));
    world.a.signal("HUP");
    wait_for("the new route", || echo_once(&world.client, &listener).map_err(|e| e.to_string()));
}

#[test]
fn a_change_of_routes_that_failed_is_told_and_tried_again_until_it_succeeds() {
    if !root() {
        return;
    }
    let mut world = World::new();
    let listener = listen(&world.server, SERVER);
    // Somebody else's route is in the way, where the gateway has those of this length.
    let in_the_way = "10.3.0.0/24 dev lan0 table 25224 metric 1";
    world.gwa.ip(&format!("route add {in_the_way}")).unwrap();
    world.a.configure(|s| s.routes.push("10.3.0.0/24"));
    world.a.signal("HUP");
    let trouble = |world: &World| world.a.status().node.trouble;
    wait_for("the trouble", || trouble(&world).ok_or_else(|| world.a.log()));
    check_echo(&world.client, &listener);
    let route = || must(&world.gwa, "ip route show table all proto 143");
    assert!(!route().contains("10.3.0.0/24"), "{}", route());

    world.gwa.ip(&format!("route delete {in_the_way}")).unwrap();
    wait_for("another try", || match trouble(&world) {
        None => Ok(()),
        Some(why) => Err(why),
    });
    assert!(route().contains("10.3.0.0/24 dev bp0"), "{}", route());
    world.a.wait_for_log("rules and routes are as they should be");
    check_echo(&world.client, &listener);
}

#[test]
fn a_reload_changes_how_much_is_logged() {
    if !root() {
        return;
    }
    let mut world = World::new();
    assert!(!world.a.log().contains(" debug "));
    world.a.configure(|s| s.node = "log = \"error\"".into());
    world.a.signal("HUP");
    // What is asked twice after the signal is answered after it: two signals may be one.
    (0..2).for_each(|_| drop(world.a.status()));
    // Nobody says that it was read: that is no error.
    world.a.configure(|s| s.peer = "rutes = []".into());
    world.a.signal("HUP");
    world.a.wait_for_log("stays in force");
    assert!(!world.a.log().contains("was read again"), "{}", world.a.log());
    world.a.configure(|s| {
        s.node = "log = \"info\"".into();
        s.peer.clear();
    });
    world.a.signal("HUP");
    world.a.wait_for_log("the configuration was read again");
}

/// Keys of a running node that the tests above do not try: each is seen to rule what comes after
/// the reload, and not what came before.
#[test]
fn a_reload_changes_classes_rules_rates_sources_and_names_of_what_comes_after() {
    if !root() {
        return;
    }
    const BYTES: usize = 150_000;
    let mut world = World::new();
    let backup = listen(&world.server, "10.2.0.2:873");
    let seconds_to_cross = |world: &World, seed: u64| {
        let (near, mut far) = joined(&world.client, &backup);
        let from = far.peer_addr().expect("its address").ip().to_string();
        let (begin, data) = (Instant::now(), pattern(seed, BYTES));
        let sending = send_all(&near, data.clone());
        assert!(read_to_end(&mut far) == (data, End::Clean), "every byte arrives");
        sending.join().expect("a thread").expect("all was taken");
        (begin.elapsed().as_secs_f64(), from)
    };
    let sent_as = |world: &World, class: &str| {
        let link = world.a.status().links.remove(0);
        link.compression.classes.get(class).map_or(0, |told| told.sent)
    };
    let reload = |world: &World, times: usize| {
        for gateway in [&world.a, &world.b] {
            gateway.signal("HUP");
            wait_for("the reload", || {
                let log = gateway.log();
                let read = log.matches("the configuration was read again").count();
                (read == times).then_some(()).ok_or(log)
            });
        }
    };
    let (_, from) = seconds_to_cross(&world, 51);
    assert_eq!(from, "10.2.0.1", "the gateway's own address");
    assert_eq!(sent_as(&world, "bulk"), 0);

    // A rule, its class with a cap, and clients' own addresses: 150 kB at 500 kbit/s.
    for gateway in [&mut world.a, &mut world.b] {
        gateway.configure(|s| {
            s.source = Some("keep");
            s.peer = "[[peer.class]]\nname = \"bulk\"\ncap = \"500kbit\"\n\
                      [[peer.rule]]\nports = [873]\nclass = \"bulk\"\n"
                .into();
        });
    }
    reload(&world, 1);
    let (took, from) = seconds_to_cross(&world, 52);
    assert!(took > 1.8, "{took} s under the cap");
    assert_eq!(from, "10.1.0.2", "the client's address");
    assert_eq!(sent_as(&world, "bulk"), BYTES as u64);

    // The rates of the link, and the peer's name. The rule is no more.
    for gateway in [&mut world.a, &mut world.b] {
        gateway.configure(|s| s.peer.clear());
        let text = gateway.text().replace("\"40Mbit\"", "\"400kbit\"");
        gateway.write(&text.replace("name = \"far\"", "name = \"renamed\""));
    }
    reload(&world, 2);
    let (took, _) = seconds_to_cross(&world, 53);
    assert!(took > 2.2, "{took} s at 400 kbit/s");
    assert_eq!(sent_as(&world, "bulk"), BYTES as u64, "what comes after is not bulk");
    let link = world.a.status().links.remove(0);
    assert_eq!((link.peer.as_str(), link.send.configured_bps), ("renamed", 400_000));
    for gateway in [&world.a, &world.b] {
        assert_eq!(gateway.log().matches("link up peer=").count(), 1, "the session stayed");
    }
}

#[test]
fn a_peer_that_is_taken_out_is_told_and_may_come_back() {
    if !root() {
        return;
    }
    let world = World::new();
    let listener = listen(&world.server, SERVER);
    let (mut near, _far) = joined(&world.client, &listener);
    let good = world.b.text();
    let end = good.find("[[peer]]").unwrap();
    world.b.write(&good[..end]);
    world.b.signal("HUP");
    world.a.wait_for_log("the peer ended the session");
    assert_eq!(end_within(&mut near, crate::harness::PATIENCE), Some(End::Reset));
    wait_for("no peer", || {
        let n = world.b.status().links.len();
        (n == 0).then_some(()).ok_or(format!("{n}"))
    });
    world.b.write(&good);
    world.b.signal("HUP");
    wait_for("the peer", || echo_once(&world.client, &listener).map_err(|e| e.to_string()));
}
