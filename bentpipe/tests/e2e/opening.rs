//! When a client is answered: with `open = "sure"` and `"auto"` refused, unreachable and
//! timed-out servers look to it as they do without gateways (R-SEMANTICS).

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use os::netns::NetNs;
use socket2::{Domain, Socket, Type};

use crate::harness::{World, must, root, root_alone, wait_for, wait_long_for};
use crate::tcp::{End, SERVER, SERVER_V6, accept, check_echo, end_within, expect, listen, reset};

/// ECONNREFUSED.
const REFUSED: i32 = 111;
/// EINPROGRESS and ETIMEDOUT: it was neither there nor refused.
const WAITS: [i32; 2] = [115, 110];

/// Both ends open this way.
fn world(open: &'static str) -> World {
    World::with(|plan| plan.open(open))
}

/// The error of a connection that must fail, by its number.
fn error_of(ns: &NetNs, to: &str, patience: Duration) -> Option<i32> {
    let to: SocketAddr = to.parse().unwrap();
    // As hosts do, and not by polling for the end of a connection, which has been seen before its
    // error was.
    let connected = ns.run(|| {
        let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
        socket.set_write_timeout(Some(patience))?;
        socket.connect(&to.into())
    });
    match connected.map_err(|e| e.raw_os_error()) {
        Ok(()) => panic!("{to} accepts"),
        Err(Some(error)) if WAITS.contains(&error) => None,
        Err(error) => Some(error.unwrap_or_else(|| panic!("{to} fails without an error"))),
    }
}

#[test]
fn a_refused_port_is_refused_and_a_port_scan_sees_the_truth() {
    if !root() {
        return;
    }
    for open in ["sure", "auto"] {
        let world = world(open);
        let listening = [listen(&world.server, SERVER), listen(&world.server, SERVER_V6)];
        for to in [SERVER, SERVER_V6] {
            drop(crate::tcp::connect(&world.client, to));
        }
        let begin = Instant::now();
        for host in ["10.2.0.2", "[fd02::2]"] {
            let refused = (20_000..20_100)
                .filter(|port| {
                    let to = format!("{host}:{port}");
                    error_of(&world.client, &to, crate::harness::PATIENCE) == Some(REFUSED)
                })
                .count();
            assert_eq!(refused, 100, "open = {open}, {host}");
        }
        eprintln!("open = {open}: 200 closed ports in {:?}, one after the other", begin.elapsed());
        drop(listening);
        world.wait_until_no_streams();
    }
}

#[test]
fn every_kind_of_unreachable_is_told_as_without_gateways() {
    if !root() {
        return;
    }
    let world = world("sure");
    // The server's firewall says it; so does the gateway's own, and its routes.
    let v4 = [
        ("net-unreachable", 101),
        ("host-unreachable", 113),
        ("port-unreachable", 111),
        ("prot-unreachable", 92),
        ("net-prohibited", 101),
        ("host-prohibited", 113),
        ("admin-prohibited", 113),
    ];
    let v6 = [
        ("no-route", 101),
        ("admin-prohibited", 13),
        ("addr-unreachable", 113),
        ("port-unreachable", 111),
    ];
    let mut rules = String::from(
        "add table inet t; add chain inet t input { type filter hook \
                                  input priority 0; policy accept; }; ",
    );
    let mut cases = Vec::new();
    for (n, (kind, errno)) in v4.iter().enumerate() {
        let port = 7100 + n;
        rules += &format!(
            "add rule inet t input ip daddr 10.2.0.2 tcp dport {port} reject with icmp {kind}; "
        );
        cases.push((format!("10.2.0.2:{port}"), *kind, *errno));
    }
    for (n, (kind, errno)) in v6.iter().enumerate() {
        let port = 7200 + n;
        rules += &format!(
            "add rule inet t input ip6 daddr fd02::2 tcp dport {port} reject with icmpv6 {kind}; "
        );
        cases.push((format!("[fd02::2]:{port}"), *kind, *errno));
    }
    must(&world.server, &format!("nft '{rules}'"));
    must(&world.server, "sysctl -q net.ipv4.icmp_ratelimit=0 net.ipv6.icmp.ratelimit=0");
    for (to, kind, errno) in &cases {
        // What it means without gateways: beside the server stands its gateway's host.
        let plain = error_of(&world.gwb, to, crate::harness::PATIENCE);
        assert_eq!(plain, Some(*errno), "{kind} without gateways");
        let seen = error_of(&world.client, to, crate::harness::PATIENCE);
        assert_eq!(seen, plain, "{kind} at {to}");
    }
    // Nobody has the address: the gateway there is the router that says so.
    let begin = Instant::now();
    for to in ["10.2.0.77:7000", "[fd02::77]:7000"] {
        assert_eq!(error_of(&world.client, to, crate::harness::PATIENCE), Some(113), "{to}");
    }
    eprintln!("two addresses without a host after {:?}", begin.elapsed());
    // Its routes forbid it.
    must(&world.gwb, "ip route add prohibit 10.2.0.88; ip -6 route add prohibit fd02::88");
    for (to, errno) in [("10.2.0.88:7000", 113), ("[fd02::88]:7000", 13)] {
        assert_eq!(error_of(&world.client, to, crate::harness::PATIENCE), Some(errno), "{to}");
    }
    world.wait_until_no_streams();
}

#[test]
fn a_forbidden_destination_is_prohibited() {
    if !root() {
        return;
    }
    let world = World::with(|plan| {
        plan.a.open = Some("sure");
        plan.b.deny = vec!["10.2.0.2/32", "fd02::2/128"];
    });
    for (to, errno) in [(SERVER, 113), (SERVER_V6, 13)] {
        assert_eq!(error_of(&world.client, to, crate::harness::PATIENCE), Some(errno), "{to}");
    }
}

/// Lets everything to these ports vanish at the server.
fn black_hole(world: &World) {
    must(
        &world.server,
        "nft 'add table inet hole; add chain inet hole input { type filter hook input \
         priority 0; policy accept; }; add rule inet hole input tcp dport 9000-9999 drop'",
    );
}

#[test]
fn a_server_that_does_not_answer_times_out_and_a_client_that_goes_leaves_nothing() {
    if !root() {
        return;
    }
    let world = world("auto");
    black_hole(&world);
    for to in ["10.2.0.2:9000", "[fd02::2]:9000"] {
        assert_eq!(error_of(&world.client, to, Duration::from_secs(4)), None, "{to}");
    }
    // The far side gives up long before the client does: that is no answer either.
    world.gwb.sysctl("net.ipv4.tcp_syn_retries", "1").unwrap();
    assert_eq!(error_of(&world.client, "10.2.0.2:9001", Duration::from_secs(10)), None);
    // One that is killed while it waits.
    let mut client = world
        .client
        .command("bash")
        .args(["-c", "exec 3<>/dev/tcp/10.2.0.2/9002"])
        .spawn()
        .unwrap();
    wait_for("a stream", || {
        let open = world.a.status().links[0].streams_open;
        (open > 0).then_some(()).ok_or("none".into())
    });
    client.kill().unwrap();
    client.wait().unwrap();
    world.wait_until_no_streams();
}

#[test]
fn a_thousand_syns_to_a_black_hole_leave_nothing_over() {
    if !root() {
        return;
    }
    let world = world("auto");
    black_hole(&world);
    let listener = listen(&world.server, SERVER);
    check_echo(&world.client, &listener);
    world.wait_until_no_streams();
    let before = [world.a.descriptors(), world.b.descriptors()];
    let begin = Instant::now();
    let sockets: Vec<_> = world.client.run(|| {
        (0..1000u16)
            .map(|n| {
                let socket = socket2::Socket::new(
                    socket2::Domain::IPV4,
                    socket2::Type::STREAM.nonblocking(),
                    None,
                )
                .unwrap();
                let to: SocketAddr = format!("10.2.0.2:{}", 9000 + n % 1000).parse().unwrap();
                let _ = socket.connect(&to.into());
                socket
            })
            .collect()
    });
    let most = wait_for("a thousand streams", || {
        let open = world.a.status().links[0].streams_open;
        (open >= 1000).then_some(open).ok_or(format!("{open} are open"))
    });
    assert_eq!(most, 1000, "a SYN sent again does not open twice");
    // Others are not held up, and SYNs sent again change nothing.
    check_echo(&world.client, &listener);
    thread::sleep(Duration::from_secs(2));
    wait_for("the echo's end", || {
        let open = world.a.status().links[0].streams_open;
        (open == 1000).then_some(()).ok_or(format!("{open} are open"))
    });
    drop(sockets);
    // A SYN that was sent again after 15 s is remembered for a minute.
    for gateway in [&world.a, &world.b] {
        wait_long_for("no streams", Duration::from_secs(150), || {
            let open = gateway.status().links[0].streams_open;
            (open == 0).then_some(()).ok_or(format!("{open} are open"))
        });
    }
    for (gateway, before) in [&world.a, &world.b].into_iter().zip(before) {
        wait_for("descriptors to be closed", || {
            let now = gateway.descriptors();
            (now <= before).then_some(()).ok_or(format!("{now} are open, {before} were"))
        });
    }
    eprintln!("1,000 SYNs to a black hole were forgotten after {:?}", begin.elapsed());
}

/// Connects, asks, and reads the first byte of the answer: the time of both.
fn first_byte(world: &World, to: &str) -> (Duration, Duration) {
    let to = to.parse().unwrap();
    let begin = Instant::now();
    let mut stream = world
        .client
        .run(|| TcpStream::connect_timeout(&to, crate::harness::PATIENCE))
        .unwrap_or_else(|e| panic!("{to}: {e}"));
    let connected = begin.elapsed();
    stream.set_read_timeout(Some(crate::harness::PATIENCE)).unwrap();
    stream.write_all(b"x").unwrap();
    expect(&mut stream, b"x");
    (connected, begin.elapsed())
}

#[test]
fn the_first_contact_costs_two_round_trips_and_the_second_one() {
    if !root_alone() {
        return;
    }
    let world = World::with(|plan| plan.delay_ms = 200);
    let rtt = Duration::from_millis(400);
    for at in [SERVER, SERVER_V6] {
        let listener = listen(&world.server, at);
        let echo = thread::spawn(move || {
            for _ in 0..2 {
                let mut far = accept(&listener);
                let mut byte = [0];
                far.read_exact(&mut byte).unwrap();
                far.write_all(&byte).unwrap();
                let _ = far.read(&mut byte);
            }
        });
        let (connected, first) = first_byte(&world, at);
        eprintln!("{at}: first contact: connected {connected:?}, first byte {first:?}");
        // No less is possible. How much more it is, is measured by `bentpipe-lab bench`.
        assert!(connected >= rtt, "the server was asked: {connected:?}");
        assert!(first >= rtt * 2, "{first:?}");
        let (connected, second) = first_byte(&world, at);
        eprintln!("{at}: second: connected {connected:?}, first byte {second:?}");
        assert!(second >= rtt, "{second:?}");
        echo.join().unwrap();
        // Answered at once: there is no way to ask.
        world.set_link_down(true);
        drop(crate::tcp::connect(&world.client, at));
        world.set_link_down(false);
    }
    world.wait_until_no_streams();
    // One stream each, whoever was asked first.
    assert_eq!(world.a.status().links[0].streams_total, 6);
    assert_eq!(world.b.status().links[0].streams_total, 6);
}

#[test]
fn a_known_site_whose_other_host_refuses_is_asked_first_the_next_time() {
    if !root() {
        return;
    }
    let world = world("auto");
    world.server.ip("address add 10.2.0.3/24 dev lan0").unwrap();
    check_echo(&world.client, &listen(&world.server, SERVER));
    // Expected to answer as its neighbour does; it is reset, and remembered.
    match crate::tcp::try_connect(&world.client, "10.2.0.3:7000") {
        Ok(mut first) => {
            assert_eq!(end_within(&mut first, Duration::from_secs(20)), Some(End::Reset));
        }
        // The reset came before the client's thread woke to hear that the connection stood.
        Err(e) => assert_eq!(e.kind(), ErrorKind::ConnectionReset, "{e}"),
    }
    let errno = error_of(&world.client, "10.2.0.3:7000", crate::harness::PATIENCE);
    assert_eq!(errno, Some(REFUSED));
}

#[test]
fn a_server_that_speaks_first_and_one_that_resets_at_once_are_heard() {
    if !root() {
        return;
    }
    let world = world("sure");
    let listener = listen(&world.server, SERVER);
    let server = thread::spawn(move || {
        let mut far = accept(&listener);
        far.write_all(b"220 ready").unwrap();
        // Not before the client has it: a reset takes what waits with it.
        far.read_exact(&mut [0]).unwrap();
        reset(far);
        reset(accept(&listener));
    });
    let mut near = crate::tcp::connect(&world.client, SERVER);
    expect(&mut near, b"220 ready");
    near.write_all(b"x").unwrap();
    assert_eq!(end_within(&mut near, Duration::from_secs(20)), Some(End::Reset));
    match crate::tcp::try_connect(&world.client, SERVER) {
        Ok(mut near) => {
            assert_eq!(end_within(&mut near, Duration::from_secs(20)), Some(End::Reset));
        }
        // The reset came before the client's thread woke to hear that the connection stood
        // (reset), or the near gateway heard both at once (refused).
        Err(e) => assert!(
            matches!(e.kind(), ErrorKind::ConnectionRefused | ErrorKind::ConnectionReset),
            "{e}"
        ),
    }
    server.join().unwrap();
    world.wait_until_no_streams();
}
