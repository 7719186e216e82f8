//! Who may speak for which addresses and reach which: cryptokey routing, `allow`, `deny`,
//! and what servers see as the source.

use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

use crate::harness::{Plan, World, pings, root, wait_for};
use crate::tcp::{
    End, SERVER, SERVER_V6, accept, accept_within, check_echo, connect, end_within, joined, listen,
    try_connect,
};

#[test]
fn with_nat_servers_see_the_gateway_and_answers_come_back() {
    if !root() {
        return;
    }
    let world = World::new();
    // The server needs no way to the client.
    for route in ["-4 route delete default", "-6 route delete default"] {
        world.server.ip(route).unwrap();
    }
    for (at, seen) in [(SERVER, "10.2.0.1"), (SERVER_V6, "fd02::1")] {
        let listener = listen(&world.server, at);
        let (_near, far) = joined(&world.client, &listener);
        assert_eq!(far.peer_addr().unwrap().ip(), seen.parse::<std::net::IpAddr>().unwrap());
        check_echo(&world.client, &listener);
    }
    for (near, far, seen) in [
        ("10.1.0.2:5003", "10.2.0.2:5004", "10.2.0.1"),
        ("[fd01::2]:5003", "[fd02::2]:5004", "fd02::1"),
    ] {
        let client = world.client.run(|| UdpSocket::bind(near)).unwrap();
        let server = world.server.run(|| UdpSocket::bind(far)).unwrap();
        for socket in [&client, &server] {
            socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        }
        client.send_to(b"who am I?", far).unwrap();
        let mut buf = [0; 100];
        let (_, from) = server.recv_from(&mut buf).unwrap();
        assert_eq!(from.ip(), seen.parse::<std::net::IpAddr>().unwrap());
        server.send_to(b"my gateway", from).unwrap();
        let (n, from) = client.recv_from(&mut buf).unwrap();
        assert_eq!((&buf[..n], from), (&b"my gateway"[..], far.parse().unwrap()));
    }
    pings(&world.client, 2, "10.2.0.2");
}

/// Connections by the explicit proxy to `targets`, none of which may succeed.
fn check_denied(world: &World, targets: &[&str]) {
    for target in targets {
        let before = world.b.dropped_for("destination denied");
        let mut near = connect(&world.client, "10.1.0.1:1080");
        use std::io::{Read as _, Write as _};
        write!(near, "CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\nhello").unwrap();
        let mut answer = Vec::new();
        // Granted at once, and reset when the far side has refused; or refused here.
        let end = near.read_to_end(&mut answer);
        let text = String::from_utf8_lossy(&answer);
        let refused_here = !text.starts_with("HTTP/1.1 200") && !text.is_empty();
        assert!(end.is_err() || refused_here, "{target}: {text}");
        if !refused_here {
            wait_for(target, || {
                let now = world.b.dropped_for("destination denied");
                (now > before).then_some(()).ok_or("it was not counted as denied".into())
            });
        }
    }
}

#[test]
fn a_peer_reaches_neither_the_hub_itself_nor_what_is_private_unless_listed() {
    if !root() {
        return;
    }
    let mut world = World::with(|plan| {
        plan.a.node = "proxy = \"10.1.0.1:1080\"".into();
        plan.a.routes = vec!["0.0.0.0/0", "::/0"];
        plan.b.allow = vec!["10.2.0.2/32", "fd02::2/128"];
    });
    // Everything that must stay closed has somebody who would answer.
    world.gwb.ip("address add 10.9.0.1/32 dev lo").unwrap();
    world.gwb.ip("address add 169.254.169.254/32 dev lo").unwrap();
    world.gwb.ip("address add 198.51.100.1/32 dev lo").unwrap();
    let tempting = [listen(&world.gwb, "0.0.0.0:8080"), listen(&world.gwb, "[::1]:8080")];
    check_denied(
        &world,
        &[
            "127.0.0.1:8080",
            "127.9.9.9:8080",
            "[::1]:8080",
            "[::ffff:127.0.0.1]:8080",
            "[::ffff:10.9.0.1]:8080",
            "0.0.0.0:8080",
            "[::]:8080",
            "10.9.0.1:8080",
            "10.2.0.1:8080",
            "169.254.169.254:8080",
            "192.168.7.7:8080",
            "192.0.2.2:8080",
            "192.0.2.2:4500",
            "[fd00:5a7::2]:8080",
            "[fd02::1]:8080",
            "255.255.255.255:8080",
            "224.0.0.1:8080",
        ],
    );
    for listener in &tempting {
        assert!(accept_within(listener, Duration::from_millis(50)).is_none(), "nobody came");
    }
    // What is listed is open, also by interception.
    check_echo(&world.client, &listen(&world.server, SERVER));
    check_echo(&world.client, &listen(&world.server, SERVER_V6));
    // Listed by name, the hub's loopback is open too; and deny closes it again.
    world.b.configure(|s| s.allow.push("127.0.0.0/8"));
    world.b.configure(|s| s.deny.push("127.0.0.9/32"));
    world.b.signal("HUP");
    wait_for("the new rule", || {
        let mut near = connect(&world.client, "10.1.0.1:1080");
        use std::io::Write as _;
        write!(near, "CONNECT 127.0.0.1:8080 HTTP/1.1\r\n\r\n").unwrap();
        match accept_within(&tempting[0], Duration::from_secs(2)) {
            Some(_) => Ok(()),
            None => Err("still closed".into()),
        }
    });
    check_denied(&world, &["127.0.0.9:8080"]);
}

/// A connection of a host behind the ship whose address the shore's `routes` lack.
fn strange_connection(world: &World) -> std::io::Result<TcpStream> {
    world.client.ip("address add 10.77.0.2/32 dev lan0").unwrap();
    world.gwa.ip("route add 10.77.0.0/24 via 10.1.0.2").unwrap();
    world.client.run(|| {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None)?;
        socket.bind(&"10.77.0.2:0".parse::<SocketAddr>().unwrap().into())?;
        let to: SocketAddr = SERVER.parse().unwrap();
        socket.connect_timeout(&to.into(), Duration::from_secs(10))?;
        Ok(TcpStream::from(socket))
    })
}

/// L-ST-7: nobody's address becomes no source, and the server sees the gateway as ever.
#[test]
fn a_client_whose_address_is_not_its_peers_is_connected_as_the_gateway() {
    if !root() {
        return;
    }
    let world = World::new();
    let listener = listen(&world.server, SERVER);
    let _near = strange_connection(&world).unwrap();
    let far = accept(&listener);
    assert_eq!(far.peer_addr().unwrap().ip().to_string(), "10.2.0.1");
}

#[test]
fn where_sources_are_kept_a_client_whose_address_is_not_its_peers_is_refused() {
    if !root() {
        return;
    }
    let world = World::with(Plan::keep);
    let listener = listen(&world.server, SERVER);
    if let Ok(mut stranger) = strange_connection(&world) {
        assert_eq!(end_within(&mut stranger, Duration::from_secs(10)), Some(End::Reset));
    }
    assert!(accept_within(&listener, Duration::from_millis(300)).is_none());
    assert_eq!(world.b.dropped_for("destination denied"), 1);
    check_echo(&world.client, &listener);
}

#[test]
fn a_datagram_with_a_forged_source_is_dropped_and_counted() {
    if !root() {
        return;
    }
    let world = World::new();
    for forged in ["10.77.0.2/32", "10.2.0.50/32", "fd77::2/128"] {
        world.client.address("lan0", forged).unwrap();
    }
    let server = world.server.run(|| UdpSocket::bind("10.2.0.2:5005")).unwrap();
    let server_v6 = world.server.run(|| UdpSocket::bind("[fd02::2]:5005")).unwrap();
    for (from, to) in [
        ("10.77.0.2:5005", "10.2.0.2:5005"),
        ("10.2.0.50:5005", "10.2.0.2:5005"),
        ("[fd77::2]:5005", "[fd02::2]:5005"),
    ] {
        let socket = world.client.run(|| UdpSocket::bind(from)).unwrap();
        for _ in 0..5 {
            socket.send_to(b"I am somebody else", to).unwrap();
        }
    }
    wait_for("forged datagrams to be counted", || {
        let n = world.b.dropped_for("foreign datagram");
        (n >= 15).then_some(()).ok_or(format!("{n} of 15"))
    });
    for socket in [&server, &server_v6] {
        socket.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        assert!(socket.recv(&mut [0; 100]).is_err(), "none arrived");
    }
}

#[test]
fn nothing_is_sent_to_a_peer_for_addresses_that_are_not_its_own() {
    if !root() {
        return;
    }
    let world = World::new();
    let before = world.b.status().links[0].datagrams.sent;
    let socket = world.server.run(|| UdpSocket::bind("10.2.0.2:5006")).unwrap();
    for to in ["10.1.9.9:5", "10.77.0.1:5", "8.8.8.8:53"] {
        // The gateway may answer with an error, which a later call tells.
        let _ = socket.send_to(b"lost?", to);
    }
    assert!(try_connect(&world.server, "10.1.9.9:80").is_err());
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(world.b.status().links[0].datagrams.sent, before);
    assert_eq!(world.b.status().links[0].streams_total, 0);
}

#[test]
fn a_peer_cannot_send_datagrams_to_what_is_closed_to_it() {
    if !root() {
        return;
    }
    let world = World::with(|plan| {
        plan.a.routes = vec!["10.2.0.0/24", "10.9.0.0/24"];
        plan.b.allow = vec!["10.2.0.2/32"];
    });
    world.gwb.ip("address add 10.9.0.1/32 dev lo").unwrap();
    let hub = world.gwb.run(|| UdpSocket::bind("10.9.0.1:5007")).unwrap();
    hub.set_read_timeout(Some(Duration::from_millis(800))).unwrap();
    let client = world.client.run(|| UdpSocket::bind("10.1.0.2:0")).unwrap();
    let before = world.b.dropped_for("datagram denied");
    client.send_to(b"knock", "10.9.0.1:5007").unwrap();
    wait_for("the datagram to be counted", || {
        let now = world.b.dropped_for("datagram denied");
        (now > before).then_some(()).ok_or("it was not".into())
    });
    assert!(hub.recv(&mut [0; 10]).is_err());
}

/// A route of the kind "local" makes all addresses of a prefix the hub's own, though no interface
/// has one of them.
#[test]
fn a_peer_reaches_no_service_on_an_address_of_a_prefix_that_is_the_hubs_own() {
    if !root() {
        return;
    }
    let mut plan = Plan::default();
    plan.a.node = "proxy = \"10.1.0.1:1080\"".into();
    plan.a.routes = vec!["0.0.0.0/0", "::/0"];
    let mut world = World::without_gateways(&plan);
    world.gwb.ip("-4 route add local 198.51.100.0/24 dev lo").unwrap();
    world.gwb.ip("-6 route add local 2001:db8:7::/48 dev lo").unwrap();
    world.b.start();
    world.a.start();
    world.a.wait_until_up();
    let targets = ["198.51.100.77:8080", "[2001:db8:7:1::77]:8080"];
    let service = listen(&world.gwb, "[::]:8080");
    check_denied(&world, &targets);
    assert!(accept_within(&service, Duration::from_millis(50)).is_none(), "nobody came");
    // Whoever wants it open lists it.
    world.b.configure(|s| s.allow.push("198.51.100.77/32"));
    world.b.signal("HUP");
    wait_for("the new rule", || {
        use std::io::Write as _;
        let mut near = connect(&world.client, "10.1.0.1:1080");
        write!(near, "CONNECT {} HTTP/1.1\r\n\r\n", targets[0]).unwrap();
        let came = accept_within(&service, Duration::from_secs(2));
        came.map(drop).ok_or("still closed".into())
    });
}

/// What the hub was asked a moment ago does not matter.
#[test]
fn a_peer_reaches_no_service_on_an_address_that_the_hub_has_just_got() {
    if !root() {
        return;
    }
    let world = World::with(|plan| {
        plan.a.node = "proxy = \"10.1.0.1:1080\"".into();
        plan.a.routes = vec!["0.0.0.0/0", "::/0"];
    });
    let service = listen(&world.gwb, "[::]:8080");
    check_denied(&world, &["127.0.0.1:8080"]);
    for (address, target) in
        [("198.51.100.5/32", "198.51.100.5:8080"), ("2001:db8:7::5/128", "[2001:db8:7::5]:8080")]
    {
        world.gwb.ip(&format!("address add {address} dev lo")).unwrap();
        check_denied(&world, &[target]);
    }
    assert!(accept_within(&service, Duration::from_millis(50)).is_none(), "nobody came");
}
