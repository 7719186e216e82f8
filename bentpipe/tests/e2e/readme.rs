//! The README's two files, as they stand there: only the keys are put in. What the ship's
//! hosts begin works both ways, what others begin towards them needs `allow`.
//!
//! ```text
//!  host ──── ship ════ satellite ════ shore ──── server, somewhere in the Internet
//!  10.2.0.2   eth1: 10.2.0.1    203.0.113.7      198.51.100.7
//!  fd10:2::2        fd10:2::1                    2001:db8:7::7
//! ```

use std::fs;
use std::io::ErrorKind;
use std::net::UdpSocket;
use std::time::Duration;

use bentpipe::emulate::EmulatorHandle;
use os::netns::{NetNs, veth};
use units::BitRate;

use crate::gateway::{Gateway, Keys, Settings};
use crate::harness::{LAN, Plan, SATELLITE, Scratch, pings, root, said, satellite, shell, spaces};
use crate::tcp::{check_echo, listen, pattern, try_connect};

const README: &str = include_str!("../../../README.md");
const HOST: [&str; 2] = ["10.2.0.2", "fd10:2::2"];
const SERVER: [&str; 2] = ["198.51.100.7", "2001:db8:7::7"];

/// The README's file of a node: the block behind the words that name it.
fn file(name: &str, own: &Keys, peer: &Keys) -> String {
    let (_, rest) = README.split_once(&format!("`/etc/bentpipe/{name}.toml`")).expect("named");
    let (_, rest) = rest.split_once("```toml\n").expect("a block");
    let (block, _) = rest.split_once("```").expect("its end");
    let other = if name == "ship" { "shore" } else { "ship" };
    let text = block
        .replace("«private key»", &own.private)
        .replace(&format!("«public key of {other}»"), &peer.public);
    assert!(!text.contains('«'), "{text}");
    text
}

struct Sea {
    ship: Gateway,
    shore: Gateway,
    host: NetNs,
    server: NetNs,
    _link: EmulatorHandle,
    _spaces: [NetNs; 2],
    _dir: Scratch,
}

impl Sea {
    /// The README's nodes, with their links up.
    fn new() -> Sea {
        Sea::with(|_, text| text)
    }

    /// The same with changes to their files.
    fn with(change: impl Fn(&str, String) -> String) -> Sea {
        let (number, [host, gwa, gwb, server]) = spaces();
        let plan = Plan { rate: BitRate::from_mbps(20), delay_ms: 300, ..Plan::default() };
        veth(&host, LAN, &gwa, "eth1").expect("a cable");
        veth(&server, LAN, &gwb, LAN).expect("a cable");
        let link = satellite(&plan, &gwa, &gwb);
        for (ns, device, addresses) in [
            (&host, LAN, ["10.2.0.2/24", "fd10:2::2/64"]),
            (&gwa, "eth1", ["10.2.0.1/24", "fd10:2::1/64"]),
            (&gwa, SATELLITE, ["203.0.113.2/24", "2001:db8:5::2/64"]),
            (&gwb, SATELLITE, ["203.0.113.7/24", "2001:db8:5::7/64"]),
            (&gwb, LAN, ["198.51.100.1/24", "2001:db8:7::1/64"]),
            (&server, LAN, ["198.51.100.7/24", "2001:db8:7::7/64"]),
        ] {
            for address in addresses {
                ns.address(device, address).expect("an address");
            }
        }
        for (ns, via) in
            [(&host, ["10.2.0.1", "fd10:2::1"]), (&server, ["198.51.100.1", "2001:db8:7::1"])]
        {
            for via in via {
                ns.route(&format!("default via {via}")).expect("a route");
            }
        }
        for ns in [&gwa, &gwb] {
            ns.make_router().expect("a router");
        }
        let dir = Scratch::new(&format!("{number}"));
        // Each has a directory /run of its own, because the files name no admin socket.
        let script = dir.sub("scripts").join("own-run");
        fs::write(&script, "mount -t tmpfs none /run && shift && exec \"$@\"").expect("a script");
        let settings = Settings {
            prefix: format!("-- unshare --mount sh {}", script.display()),
            ..Settings::ship()
        };
        let keys = Keys::pair();
        let node = |name: &'static str, ns: &NetNs, own: &Keys, peer: &Keys| {
            let mut node =
                Gateway::new(name, ns, dir.sub(name), settings.clone(), own, peer, &plan);
            node.write(&change(name, file(name, own, peer)));
            node.start();
            node
        };
        let mut shore = node("shore", &gwb, &keys[1], &keys[0]);
        let mut ship = node("ship", &gwa, &keys[0], &keys[1]);
        ship.wait_until_up();
        shore.wait_until_up();
        Sea { ship, shore, host, server, _link: link, _spaces: [gwa, gwb], _dir: dir }
    }
}

fn check_that_all_passed(sea: &Sea) {
    for node in [&sea.ship, &sea.shore] {
        for reason in ["datagram denied", "foreign datagram", "destination denied"] {
            assert_eq!(node.dropped_for(reason), 0, "{reason} at {}", node.name());
        }
    }
}

fn udp(ns: &NetNs, at: &str, port: u16) -> UdpSocket {
    let at = (at.parse::<std::net::IpAddr>().unwrap(), port);
    let socket = ns.run(|| UdpSocket::bind(at)).expect("a socket");
    socket.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout");
    socket
}

#[test]
fn with_the_readmes_files_ping_dns_quic_and_traceroute_work_from_the_ships_lan() {
    if !root() {
        return;
    }
    let sea = Sea::new();
    for (host, server) in HOST.into_iter().zip(SERVER) {
        pings(&sea.host, 2, server);
        pings(&sea.host, 1, &format!("-s 4000 {server}")); // in fragments
        let web = std::net::SocketAddr::new(server.parse().unwrap(), 80).to_string();
        check_echo(&sea.host, &listen(&sea.server, &web));
        // A question by UDP, answered in one packet and in fragments; a flow on QUIC's port.
        for (port, sizes) in [(53, &[40, 400, 4000][..]), (443, &[1200; 20])] {
            let (client, socket) = (udp(&sea.host, host, 0), udp(&sea.server, server, port));
            client.connect((server, port)).unwrap();
            let mut buf = vec![0; 65_536];
            for size in sizes {
                client.send(b"question").unwrap();
                let (n, from) = socket.recv_from(&mut buf).unwrap();
                assert_eq!(&buf[..n], b"question");
                let answer = pattern(9, *size);
                socket.send_to(&answer, from).unwrap();
                let n = client.recv(&mut buf).unwrap();
                assert!(buf[..n] == answer, "{size} bytes from port {port}");
            }
        }
        // Routers on the way, and the server, tell of packets that go no further.
        let text = said(&shell(&sea.host, &format!("ping -c 1 -W 5 -t 1 {server}")));
        let gateway = if server.contains(':') { "fd10:2::1" } else { "10.2.0.1" };
        assert!(text.contains(&format!("From {gateway}")), "{text}");
        let text = said(&shell(&sea.host, &format!("ping -c 1 -W 10 -t 2 {server}")));
        assert!(text.to_lowercase().contains("exceeded"), "{text}");
        let closed = udp(&sea.host, host, 0);
        closed.connect((server, 33_434)).unwrap();
        closed.send(b"probe").unwrap();
        let refused = closed.recv(&mut [0; 10]).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused, "{refused}");
    }
    check_that_all_passed(&sea);
}

#[test]
fn what_others_begin_towards_the_ships_lan_is_prohibited_without_allow() {
    if !root() {
        return;
    }
    let sea = Sea::new();
    for (host, server) in HOST.into_iter().zip(SERVER) {
        let before = sea.ship.dropped_for("datagram denied");
        let text = said(&shell(&sea.server, &format!("ping -c 1 -W 10 {host}")));
        assert!(
            text.contains("Packet filtered") || text.contains("Administratively prohibited"),
            "{text}"
        );
        let client = udp(&sea.server, server, 0);
        client.connect((host, 9)).unwrap();
        client.send(b"knock").unwrap();
        let refused = client.recv(&mut [0; 10]).unwrap_err();
        assert!(
            matches!(refused.kind(), ErrorKind::HostUnreachable | ErrorKind::PermissionDenied),
            "{refused}"
        );
        assert_eq!(sea.ship.dropped_for("datagram denied"), before + 2);
    }
    sea.ship.wait_for_log("from=198.51.100.7 to=10.2.0.2");
}

#[test]
fn with_allow_others_reach_the_ships_lan() {
    if !root() {
        return;
    }
    let sea = Sea::with(|name, text| match name {
        "ship" => text + "allow = [\"10.2.0.0/24\", \"fd10:2::/64\"]\n",
        _ => text,
    });
    for (host, server) in HOST.into_iter().zip(SERVER) {
        pings(&sea.server, 2, host);
        let (client, socket) = (udp(&sea.server, server, 0), udp(&sea.host, host, 5000));
        client.connect((host, 5000)).unwrap();
        client.send(b"knock").unwrap();
        let mut buf = [0; 100];
        let (n, from) = socket.recv_from(&mut buf).unwrap();
        assert_eq!(&buf[..n], b"knock");
        socket.send_to(b"come in", from).unwrap();
        let n = client.recv(&mut buf).unwrap();
        assert_eq!(&buf[..n], b"come in");
        pings(&sea.host, 1, server);
    }
    check_that_all_passed(&sea);
}

/// Both nodes log these words and show them in their status.
fn check_told(sea: &Sea, words: &str) {
    for node in [&sea.ship, &sea.shore] {
        let told = &node.status().links[0].disagreements;
        assert!(told.iter().any(|sentence| sentence.contains(words)), "{told:?}");
        node.wait_for_log(words);
    }
}

#[test]
fn a_family_that_the_shore_does_not_know_is_refused_on_the_ship_at_once() {
    if !root() {
        return;
    }
    let sea = Sea::with(|_, text| text.replace(", \"fd10:2::/64\"", ""));
    check_told(&sea, "IPv6 cannot work");
    let sent = sea.ship.status().links[0].datagrams.sent;
    let text = said(&shell(&sea.host, &format!("ping -c 1 -W 10 {}", SERVER[1])));
    assert!(text.contains("No route"), "{text}");
    let refused = try_connect(&sea.host, &format!("[{}]:80", SERVER[1])).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NetworkUnreachable, "{refused}");
    let status = sea.ship.status();
    assert_eq!((status.links[0].datagrams.sent, status.links[0].streams_total), (sent, 0));
    pings(&sea.host, 1, SERVER[0]);
}

#[test]
fn two_hubs_are_told_so_at_both_ends() {
    if !root() {
        return;
    }
    let sea = Sea::with(|_, text| text.replace("\"terminal\"", "\"hub\""));
    check_told(&sea, "both files say end = \"hub\"");
    assert_eq!(sea.ship.log().matches("both files say").count(), 1, "once");
}

#[test]
fn rates_that_do_not_fit_are_told_at_both_ends() {
    if !root() {
        return;
    }
    let sea = Sea::with(|name, text| match name {
        "ship" => text + "link = { send = \"1Mbit\" }\n",
        _ => text,
    });
    check_told(&sea, "sends 1Mbit");
    check_told(&sea, "receives 2Mbit");
}
