//! Whatever keeps a gateway from starting is told in one clear sentence, and the program
//! ends with a number that is not zero.

use std::fs;
use std::net::UdpSocket;
use std::os::unix::fs::{PermissionsExt as _, chown};

use os::netns::NetNs;

use crate::gateway::{Keys, PROGRAM};
use crate::harness::{Plan, Scratch, World, install_script, root, shell};

/// Runs `bentpipe up` on the file of gateway a, which must fail; what it complained of.
fn complaint(world: &World, before: &str) -> String {
    let file = world.a.file();
    complaint_of(&world.gwa, before, &format!("up {}", file.display()))
}

fn complaint_of(ns: &NetNs, before: &str, args: &str) -> String {
    let output = shell(ns, &format!("{before} timeout 20 {PROGRAM} {args}"));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let code = output.status.code();
    assert!(code.is_some_and(|c| c != 0 && c != 124), "it ends with an error: {code:?} {text}");
    assert!(!text.contains("panicked"), "{text}");
    assert!(!text.trim().is_empty(), "it says why");
    text
}

/// One sentence, and perhaps a line of help.
fn check_short(text: &str) {
    let lines: Vec<&str> = text.lines().filter(|l| !l.trim().is_empty()).collect();
    assert!(lines.len() <= 3, "one sentence and what to do:\n{text}");
    assert!(lines[0].len() < 300, "{text}");
}

fn stopped() -> World {
    World::without_gateways(&Plan::default())
}

#[test]
fn wrong_keys_are_named_with_their_place() {
    if !root() {
        return;
    }
    let world = stopped();
    let good = world.a.text();
    let public = good.lines().find(|l| l.starts_with("public_key")).unwrap().to_owned();
    let private = good.lines().find(|l| l.starts_with("private_key")).unwrap().to_owned();
    for (wrong, word) in [
        (good.replace(&public, "public_key = \"abc\""), "public_key"),
        (
            good.replace(&public, &format!("public_key = \"{}\"", "A".repeat(43) + "=")),
            "public_key",
        ),
        (good.replace(&private, "private_key = \"not a key\""), "private_key"),
        (good.replace(&private, ""), "private_key"),
        (good.replace(&public, ""), "public_key"),
    ] {
        world.a.write(&wrong);
        let text = complaint(&world, "");
        assert!(text.contains(word), "{text}");
        assert!(!text.contains(private.split('"').nth(1).unwrap()), "a key is not shown: {text}");
    }
    // A node that is its own peer.
    let keys = Keys::new();
    let own = good
        .replace(&private, &format!("private_key = \"{}\"", keys.private))
        .replace(&public, &format!("public_key = \"{}\"", keys.public));
    world.a.write(&own);
    let text = complaint(&world, "");
    assert!(text.contains("own"), "{text}");
}

#[test]
fn wrong_settings_are_shown_with_file_line_and_the_nearest_spelling() {
    if !root() {
        return;
    }
    let world = stopped();
    let good = world.a.text();
    for (wrong, words) in [
        (good.replace("routes", "rutes"), &["rutes", "routes"][..]),
        (good.replace("\"50ms\"", "\"50mss\""), &["50mss"]),
        (good.replace("on_failure = \"block\"", "on_failure = \"blok\""), &["blok", "block"]),
        (good.replace("[[peer]]", "[[pear]]"), &["pear", "peer"]),
        (good.replace("[node]", "[node"), &["gateway.toml"]),
        (good.replace("10.2.0.0/24", "10.2.0.0/33"), &["10.2.0.0/33"]),
    ] {
        world.a.write(&wrong);
        let text = complaint(&world, "");
        for word in words {
            assert!(text.contains(word), "{word} is missing: {text}");
        }
        assert!(text.contains("gateway.toml:"), "the place is named: {text}");
    }
}

#[test]
fn files_that_cannot_be_used_are_refused() {
    if !root() {
        return;
    }
    let world = stopped();
    let dir = world.a.dir().display().to_string();
    check_short(&complaint_of(&world.gwa, "", "up /nowhere/at/all.toml"));
    check_short(&complaint_of(&world.gwa, "", &format!("up {dir}")));
    // A key file that others can read; a configuration with a key in it only warns.
    let good = world.a.text();
    let private = good.lines().find(|l| l.starts_with("private_key")).unwrap();
    let key = world.a.dir().join("secret.key");
    fs::write(&key, private.split('"').nth(1).unwrap()).unwrap();
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
    world.a.write(&good.replace(private, "private_key_file = \"secret.key\""));
    let text = complaint(&world, "");
    assert!(text.contains("chmod") && text.contains("secret.key"), "{text}");
    fs::write(world.a.file(), [0xff, 0xfe, 0, 1]).unwrap();
    check_short(&complaint(&world, ""));
}

#[test]
fn missing_rights_are_one_sentence() {
    if !root() {
        return;
    }
    let world = stopped();
    chown(world.a.dir(), Some(65_534), Some(65_534)).unwrap();
    chown(world.a.file(), Some(65_534), Some(65_534)).unwrap();
    let nobody = "setpriv --reuid 65534 --regid 65534 --clear-groups";
    let text = complaint(&world, nobody);
    check_short(&text);
    assert!(text.contains("root") || text.contains("CAP_NET_ADMIN"), "{text}");
}

#[test]
fn a_port_in_use_is_one_sentence() {
    if !root() {
        return;
    }
    let mut world = stopped();
    let _taken = world.gwa.run(|| UdpSocket::bind("192.0.2.1:4500")).unwrap();
    let text = complaint(&world, "");
    check_short(&text);
    assert!(text.contains("192.0.2.1:4500"), "{text}");
    world.a.configure(|s| s.listen = "198.51.100.9:4500".into());
    let text = complaint(&world, "");
    check_short(&text);
    assert!(text.contains("198.51.100.9:4500"), "{text}");
    world.a.configure(|s| {
        s.listen = "192.0.2.1:4501".into();
        s.node = "proxy = \"10.1.0.1:1080\"".into();
    });
    let _taken = crate::tcp::listen(&world.gwa, "10.1.0.1:1080");
    let text = complaint(&world, "");
    check_short(&text);
    assert!(text.contains("10.1.0.1:1080"), "{text}");
    assert!(!crate::harness::must(&world.gwa, "ip rule").contains("proto 143"));
}

#[test]
fn a_machine_without_tun_is_one_sentence() {
    if !root() {
        return;
    }
    let world = stopped();
    let text =
        complaint(&world, "unshare --mount sh -c 'mount -t tmpfs none /dev/net && exec \"$@\"' sh");
    check_short(&text);
    assert!(text.to_lowercase().contains("tun"), "{text}");
}

#[test]
fn a_missing_interface_is_one_sentence() {
    if !root() {
        return;
    }
    let mut world = stopped();
    world.a.configure(|s| s.lan = Some(vec!["eth77"]));
    let text = complaint(&world, "");
    check_short(&text);
    assert!(text.contains("eth77"), "{text}");
}

/// Rules, routes, devices and tables of ours in gateway a's kernel.
fn left_behind(world: &World) -> String {
    let all = crate::harness::must(
        &world.gwa,
        "ip rule; ip -6 rule; ip route show table all; ip -6 route show table all; ip -o link; \
         nft list tables",
    );
    let ours = ["proto 143", "bp0", "bentpipe"];
    let lines = all.lines().filter(|l| ours.iter().any(|o| l.contains(o)));
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn a_missing_or_failing_nft_is_one_sentence_and_nothing_is_left() {
    if !root() {
        return;
    }
    let mut world = stopped();
    // A path on which there is `ip` and no `nft`.
    let scratch = Scratch::new("path");
    let bin = scratch.sub("bin");
    for tool in ["ip", "sh", "timeout"] {
        let found = crate::harness::must(&world.gwa, &format!("command -v {tool}"));
        std::os::unix::fs::symlink(found.trim(), bin.join(tool)).unwrap();
    }
    let path = format!("PATH={}", bin.display());
    let refused = || {
        let text = complaint(&world, &path);
        check_short(&text);
        assert!(text.contains("nft"), "{text}");
    };
    let missing = || {
        let _ = fs::remove_file(bin.join("nft"));
    };
    let script = |text: &str| {
        missing();
        install_script(&format!("#!/bin/sh\n{text}\n"), &bin.join("nft"));
    };
    let failing = [
        "exit 1",
        "read -r line; echo 'Error: Could not process rule: Operation not supported'; read -r line",
    ];
    missing();
    refused();
    assert_eq!(left_behind(&world), "");
    for nft in failing {
        script(nft);
        refused();
        assert_eq!(left_behind(&world), "", "{nft}");
    }
    // What a killed gateway left to block goes on to block.
    world.b.start();
    world.a.start();
    world.a.wait_until_up();
    world.a.kill();
    let blocking = crate::harness::wait_for("the watchdog", || {
        let left = left_behind(&world);
        // The table goes with the child that owns it, at a moment of its own; the watchdog
        // takes the marks' rules first, and last of all the routes that they lead to.
        let going = ["0x62700001", "0x62700002", "table 25400", "bp0"];
        let is_owned = |l: &str| l.starts_with("table inet") && !l.ends_with("_blocked");
        let goes = going.iter().any(|l| left.contains(l)) || left.lines().any(is_owned);
        // Its last word is the table that tells hosts.
        let done = left.contains("bentpipe_blocked") && !goes;
        done.then_some(left.clone()).ok_or(left)
    });
    assert!(blocking.contains("unreachable"), "{blocking}");
    for nft in [None, Some(failing[0])] {
        nft.map_or_else(missing, script);
        let text = complaint(&world, &path);
        check_short(&text);
        assert_eq!(left_behind(&world), blocking, "{nft:?}");
    }
}

#[test]
fn a_second_gateway_on_a_host_is_one_sentence() {
    if !root() {
        return;
    }
    let world = World::new();
    let again = world.a.dir().join("again.toml");
    let text = world.a.text().replace("4500\"\nadmin", "4501\"\nadmin").replace("bp0", "bp1");
    fs::write(&again, text).unwrap();
    fs::set_permissions(&again, fs::Permissions::from_mode(0o600)).unwrap();
    let text = complaint_of(&world.gwa, "", &format!("up {}", again.display()));
    check_short(&text);
    assert!(text.contains("another"), "{text}");
    crate::tcp::check_echo(&world.client, &crate::tcp::listen(&world.server, crate::tcp::SERVER));
}
