//! Classes and rules as the operator's guide prints them, at both ends.

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use bentpipe::admin::CompressedBytes;
use serde_json::Value;

use crate::documents::{GUIDE, toml};
use crate::gateway::Gateway;
use crate::harness::{Plan, World, root, wait_for};
use crate::line::books;
use crate::tcp::{End, SERVER, check_echo, joined, listen, pattern, read_to_end, send_all};

/// What a gateway says of the streams of a class.
fn streams(gateway: &Gateway, class: &str) -> CompressedBytes {
    let told = gateway.status().links.remove(0).compression.classes;
    told.get(class).cloned().unwrap_or_default()
}

/// Bytes that the ship's books have in a class, sent.
fn booked(gateway: &Gateway, class: &str) -> u64 {
    let rows: Value =
        serde_json::from_str(&books(gateway, &["--json", "--by", "class"])).expect("JSON");
    let rows = rows.as_array().expect("rows");
    let row = rows.iter().find(|row| row["name"] == class);
    row.map_or(0, |row| row["sent_bytes"].as_u64().expect("a number"))
}

#[test]
fn the_guides_rules_put_a_backup_into_bulk_and_calls_into_a_class_of_their_own() {
    if !root() {
        return;
    }
    let rules = toml(GUIDE, "Rules say it where behaviour does not.");
    let mut plan = Plan::default();
    plan.b.peer = rules.to_owned();
    // A terminal that bills by the megabyte counts packets by class, too.
    let tariff = "tariff = { currency = \"USD\", per_megabyte = \"1\" }\n";
    plan.a.peer = format!("{rules}[peer.line]\n{tariff}");
    let mut world = World::without_gateways(&plan);
    for gateway in [&mut world.b, &mut world.a] {
        gateway.start();
        gateway.wait_for_log("bentpipe is up");
    }

    // A backup is bulk, both ways and at both nodes, and bulk has a cap of 500 kbit/s.
    let (near, far) = joined(&world.client, &listen(&world.server, "10.2.0.2:873"));
    let (backup, answer) = (pattern(1, 100_000), pattern(2, 10_000));
    let begin = Instant::now();
    let senders = [send_all(&near, backup.clone()), send_all(&far, answer.clone())];
    for (mut stream, bytes) in [(far, &backup), (near, &answer)] {
        assert!(read_to_end(&mut stream) == (bytes.clone(), End::Clean), "every byte arrives");
    }
    let took = begin.elapsed();
    assert!(took > Duration::from_secs(1), "{took:?} for 1.6 s of bytes");
    for sender in senders {
        sender.join().expect("a thread").expect("all was taken");
    }
    // It lay in buffers for a second: what the link carried of it is its own all the same.
    wait_for("the books to have the backup", || {
        let sent = booked(&world.a, "bulk");
        if sent > 95_000 { Ok(()) } else { Err(format!("{sent} bytes")) }
    });
    // What is of no rule is none of it.
    check_echo(&world.client, &listen(&world.server, SERVER));
    for (gateway, sent, received) in [(&world.a, 100_000, 10_000), (&world.b, 10_000, 100_000)] {
        let bulk = streams(gateway, "bulk");
        assert_eq!((bulk.sent, bulk.received), (sent, received), "{}", gateway.name());
        assert!(streams(gateway, "normal").sent > 0, "{}", gateway.name());
    }

    // UDP to the ports of the rule is video, to the next one it is not, nor is TCP.
    for port in [5000, 5005, 5010, 5011] {
        let at = ("10.2.0.2", port);
        let server = world.server.run(|| UdpSocket::bind(at)).expect("a socket");
        server.set_read_timeout(Some(Duration::from_secs(30))).expect("a socket");
        let client = world.client.run(|| UdpSocket::bind("10.1.0.2:0")).expect("a socket");
        client.send_to(&pattern(port.into(), 1_000), at).expect("a packet");
        let mut bytes = [0; 2_000];
        let n = server.recv(&mut bytes).expect("a packet");
        assert!(bytes[..n] == pattern(port.into(), 1_000), "{port}");
    }
    check_echo(&world.client, &listen(&world.server, "10.2.0.2:5005"));
    // Three packets of 1,000 bytes, with headers of IP and UDP; what the link adds is booked apart.
    wait_for("the books", || match booked(&world.a, "video") {
        3_000..4_000 => Ok(()),
        other => Err(format!("{other} bytes")),
    });
}
