//! Unsplit packets over a link that loses some (R-LLLL): what each way of carrying hides.

use std::io::{Read as _, Write as _};
use std::net::UdpSocket;
use std::time::{Duration, Instant};

use units::Ratio;

use crate::documents::{GUIDE, toml};
use crate::harness::{Plan, World, root, root_alone};
use crate::tcp::{SERVER, joined, listen};

fn world(loss: f64, rules: &str, change: impl FnOnce(&mut Plan)) -> World {
    World::with(|plan| {
        for settings in [&mut plan.a, &mut plan.b] {
            settings.lan = Some(vec![]);
            settings.peer = rules.to_owned();
        }
        plan.loss = Ratio::from_f64(loss);
        change(plan);
    })
}

/// Sends 600 numbered packets to `port`, a few at a time; answers those that arrive.
fn numbered(world: &World, port: u16) -> Vec<u32> {
    let client = world.client.run(|| UdpSocket::bind("10.1.0.2:0")).unwrap();
    let server = world.server.run(|| UdpSocket::bind(("10.2.0.2", port))).unwrap();
    server.set_read_timeout(Some(Duration::from_secs(15))).unwrap();
    // A socket that is not read for a moment would itself drop some.
    socket2::SockRef::from(&server).set_recv_buffer_size(1 << 20).unwrap();
    let sending = std::thread::spawn(move || {
        for n in 0..600u32 {
            let data = [&n.to_be_bytes()[..], &[n as u8; 400]].concat();
            client.send_to(&data, ("10.2.0.2", port)).unwrap();
            if n % 4 == 3 {
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    });
    let mut got = Vec::new();
    let mut missing: std::collections::BTreeSet<u32> = (0..600).collect();
    let mut buffer = [0; 1000];
    while let Ok((len, _)) = server.recv_from(&mut buffer) {
        let n = u32::from_be_bytes(*buffer.first_chunk().unwrap());
        assert!(len == 404 && buffer[4..len].iter().all(|b| *b == n as u8), "packet {n} changed");
        got.push(n);
        if missing.remove(&n) && missing.is_empty() {
            server.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
        }
    }
    sending.join().unwrap();
    got
}

#[test]
fn packets_are_carried_in_order_or_once_as_rules_say() {
    if !root() {
        return;
    }
    // The operator's guide's rules.
    let world = world(0.05, toml(GUIDE, "### What cannot be split"), |_| {});
    let all = Vec::from_iter(0..600);
    let ordered = numbered(&world, 51_820);
    assert!(ordered == all, "ordered: {} of 600 {ordered:?}", ordered.len());
    let plain = numbered(&world, 6003);
    println!("{} of 600 came plain", plain.len());
    assert!((500..600).contains(&plain.len()), "{}", plain.len());
    let datagrams = &world.a.status().links[0].datagrams;
    assert!(datagrams.sent >= 1200, "{datagrams:?}");
    assert_eq!(world.a.status().links[0].streams_open, 0, "nobody sees a stream");
    let hosts = world.a.status().links.remove(0).hosts;
    let server = hosts.iter().find(|h| h.host == "10.2.0.2").expect("an account");
    assert!(server.packets_sent >= 1200 && server.packet_bytes_sent > 1200 * 404, "{hosts:?}");
}

/// Bytes per second of one CUBIC connection over 1 % loss and 600 ms, from its start.
fn cubic(rules: &str) -> u64 {
    let world = world(0.01, rules, |plan| plan.delay_ms = 300);
    // By the route: a namespace may not choose it by the parameter.
    world.server.ip("route replace default via 10.2.0.1 congctl cubic").unwrap();
    let (mut near, mut far) = joined(&world.client, &listen(&world.server, SERVER));
    let time = Duration::from_secs(40);
    far.set_write_timeout(Some(Duration::from_secs(10))).unwrap();
    let end = Instant::now() + time;
    let sending =
        std::thread::spawn(
            move || {
                while Instant::now() < end && far.write_all(&[7; 16_384]).is_ok() {}
            },
        );
    let (mut total, mut buffer) = (0, vec![0; 65_536]);
    while Instant::now() < end {
        total += near.read(&mut buffer).unwrap() as u64;
    }
    drop(near);
    sending.join().unwrap();
    total / time.as_secs()
}

#[test]
#[ignore = "it measures for two minutes"]
fn unsplit_tcp_gains_by_being_carried_in_order() {
    if !root_alone() {
        return;
    }
    let plain = cubic("");
    let ordered = cubic("[[peer.rule]]\nprotocol = \"tcp\"\ncarry = \"ordered\"\n");
    println!(
        "one CUBIC connection, 40 Mbit/s, 600 ms, 1 % loss, 40 s: plain {} kB/s, ordered {} kB/s",
        plain / 1000,
        ordered / 1000
    );
    assert!(ordered > plain, "{ordered} {plain}");
}
