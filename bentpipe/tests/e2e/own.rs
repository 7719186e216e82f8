//! A gateway on a single host: with `own = true` its own connections are split.
//!
//! The host's default route leads to the other gateway by the satellite, in clear; that of
//! the peer leads into the link, and the carrier's endpoint lies within it.

use std::fs;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::thread;
use std::time::Duration;

use os::netns::{NetNs, veth};
use socket2::{Domain, Socket, Type};

use crate::failure::{kernel_state, wait_for_kernel_state};
use crate::files::{HttpServer, make_file, sha256};
use crate::gateway::Settings;
use crate::harness::{LAN, PATIENCE, Plan, SATELLITE, World, must, pings, root, spaces, wait_for};
use crate::tcp::{
    End, accept, accept_within, connect, end_within, expect, listen, pattern, try_connect,
};

/// The host's own addresses: all that is behind it.
const HOST: [&str; 2] = ["192.0.2.1/32", "fd00:5a7::1/128"];

/// The network, where gateway a has no LAN, not started.
pub fn single_host(on_failure: &'static str) -> World {
    let plan = Plan {
        a: Settings {
            lan: None,
            routes: vec!["0.0.0.0/0", "::/0"],
            on_failure,
            node: "tun = \"bp0\"\nown = true\n".into(),
            ..Settings::ship()
        },
        b: Settings { routes: HOST.to_vec(), ..Settings::shore() },
        ..Plan::default()
    };
    let world = World::without_gateways(&plan);
    let set_up = format!(
        "ip addr flush dev {LAN}; ip addr flush dev {SATELLITE}; \
         ip addr add 192.0.2.1/32 dev {SATELLITE}; \
         ip addr add fd00:5a7::1/128 dev {SATELLITE} nodad; \
         ip route add default via 192.0.2.2 dev {SATELLITE} onlink; \
         ip route add default via fd00:5a7::2 dev {SATELLITE} onlink"
    );
    must(&world.gwa, &set_up);
    world
}

fn start(world: &mut World) {
    world.b.start();
    world.a.start();
    world.a.wait_until_up();
    world.b.wait_until_up();
}

/// Answers every datagram at `at` with the same bytes backwards, for as long as it is asked.
fn answer_backwards(ns: &NetNs, at: &str) {
    let socket = ns.run(|| UdpSocket::bind(at)).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    thread::spawn(move || {
        let mut buf = [0; 2_000];
        while let Ok((n, from)) = socket.recv_from(&mut buf) {
            buf[..n].reverse();
            let _ = socket.send_to(&buf[..n], from);
        }
    });
}

fn ask(ns: &NetNs, from: &str, to: &str) {
    let socket = ns.run(|| UdpSocket::bind(from)).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    socket.send_to(b"question", to).unwrap();
    let mut buf = [0; 100];
    let n = socket.recv(&mut buf).unwrap_or_else(|e| panic!("{to} does not answer: {e}"));
    assert_eq!(&buf[..n], b"noitseuq");
}

#[test]
fn a_single_hosts_own_connections_are_split_and_the_rest_crosses_as_packets() {
    if !root() {
        return;
    }
    let mut world = single_host("wire");
    start(&mut world);
    let (host, dir) = (world.gwa.clone(), world.dir("files"));
    let body = pattern(91, 1_000_000);
    let files = [("/file", body.clone())];
    let _v4 = HttpServer::start(&world.server, "10.2.0.2:80", &files, world.dir("put"));
    let _v6 = HttpServer::start(&world.server, "[fd02::2]:80", &files, world.dir("put"));
    let original = dir.join("original");
    fs::write(&original, &body).unwrap();
    let (out, upload) = (dir.join("out"), make_file(&dir.join("upload"), 500_000));
    for server in ["10.2.0.2", "[fd02::2]"] {
        let (a, b) = (world.a.status(), world.b.status());
        must(&host, &format!("curl -sSfg -o {} http://{server}/file", out.display()));
        assert_eq!(sha256(&out), sha256(&original));
        must(&host, &format!("curl -sSfg -T {} http://{server}/copy", upload.display()));
        assert_eq!(sha256(&world.dir("put").join("copy")), sha256(&upload));
        for (before, after) in [(a, world.a.status()), (b, world.b.status())] {
            let (before, after) = (&before.links[0], &after.links[0]);
            assert_eq!(after.streams_total, before.streams_total + 2, "{server}");
            let packets = |l: &bentpipe::admin::LinkStatus| l.datagrams.sent + l.datagrams.received;
            assert!(packets(after) - packets(before) < 20, "{server}: it crossed as packets");
        }
        // Refused is refused, not a connection that ends.
        let error = try_connect(&host, &format!("{server}:9")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{server}");
    }
    pings(&host, 2, "10.2.0.2");
    pings(&host, 2, "fd02::2");
    // Names are asked for by UDP, and where an answer is long by TCP.
    for (any, at) in [("0.0.0.0:0", "10.2.0.2:53"), ("[::]:0", "[fd02::2]:53")] {
        answer_backwards(&world.server, at);
        ask(&host, any, at);
        let listener = listen(&world.server, at);
        let mut near = connect(&host, at);
        near.write_all(b"question").unwrap();
        let mut far = accept(&listener);
        let mut word = [0; 8];
        far.read_exact(&mut word).unwrap();
        far.write_all(b"answer").unwrap();
        drop(far);
        let mut answer = String::new();
        near.read_to_string(&mut answer).unwrap();
        assert_eq!(answer, "answer");
    }
    world.wait_until_no_streams();
}

#[test]
fn a_single_host_that_is_killed_sees_resets_and_keeps_nothing() {
    if !root() {
        return;
    }
    let mut world = single_host("wire");
    let before = kernel_state(&world.gwa);
    start(&mut world);
    let listener = listen(&world.server, "10.2.0.2:7000");
    let mut near = connect(&world.gwa, "10.2.0.2:7000");
    near.write_all(b"word").unwrap();
    let _far = accept(&listener);
    assert!(kernel_state(&world.gwa).contains("0x62700004"), "the rule is there");
    world.a.kill();
    assert_eq!(end_within(&mut near, Duration::from_secs(20)), Some(End::Reset));
    wait_for_kernel_state(&world.gwa, &before);
    // And a new start works, as the first did.
    world.a.start();
    world.a.wait_until_up();
    wait_for("a new connection", || {
        crate::tcp::echo_once(&world.gwa, &listener).map_err(|e| e.to_string())
    });
}

/// The host has a second interface, towards a server that is not behind the link.
#[test]
fn a_program_that_binds_itself_to_an_interface_stays_outside() {
    if !root() {
        return;
    }
    let mut world = single_host("block");
    let (_, [provider, ..]) = spaces();
    veth(&provider, LAN, &world.gwa, "isp0").unwrap();
    for (host, there, server) in [
        ("198.51.100.1/24", "198.51.100.2/24", "203.0.113.53"),
        ("2001:db8:9::1/64", "2001:db8:9::2/64", "2001:db8:53::53"),
    ] {
        world.gwa.address("isp0", host).unwrap();
        provider.address(LAN, there).unwrap();
        provider.address("lo", server).unwrap();
        let (via, _) = there.split_once('/').unwrap();
        world.gwa.route(&format!("{server} via {via}")).unwrap();
    }
    start(&mut world);
    for server in ["203.0.113.53", "2001:db8:53::53"] {
        let at = SocketAddr::new(server.parse().unwrap(), 80);
        let listener = listen(&provider, &at.to_string());
        let before = world.a.status().links[0].clone();
        let mut near = world.gwa.run(|| {
            let socket = Socket::new(Domain::for_address(at), Type::STREAM, None).unwrap();
            socket.bind_device(Some(b"isp0")).unwrap();
            socket.connect_timeout(&at.into(), PATIENCE).unwrap();
            TcpStream::from(socket)
        });
        let mut far = accept(&listener);
        near.write_all(b"in clear").unwrap();
        expect(&mut far, b"in clear");
        must(&world.gwa, &format!("ping -c 1 -W 20 -I isp0 {server}"));
        let after = world.a.status().links[0].clone();
        assert_eq!(after.streams_total, before.streams_total, "{server}");
        assert_eq!(after.datagrams.sent, before.datagrams.sent, "{server}");
        // Everything else goes into the link, behind which nobody may reach that server.
        assert!(try_connect(&world.gwa, &at.to_string()).is_err(), "{server}");
        assert!(accept_within(&listener, Duration::from_millis(300)).is_none(), "{server}");
    }
}
