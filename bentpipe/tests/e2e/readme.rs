//! The files that README and operator's guide print, as they stand there: only keys are put in,
//! and addresses where the text asks for one's own. What the ship's hosts begin works both ways,
//! what others begin towards them needs `allow`.
//!
//! ```text
//!  host ──── ship ════ satellite ════ shore ──── server, somewhere in the Internet
//!  10.2.0.2   eth1: 10.2.0.1    203.0.113.7      198.51.100.7
//!  fd10:2::2        fd10:2::1                    2001:db8:7::7
//! ```

use std::fs;
use std::io::{ErrorKind, Write as _};
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use bentpipe::admin::LinkState;
use bentpipe_lab::emulate::EmulatorHandle;
use os::netns::{NetNs, veth};
use units::BitRate;

use crate::clients::ftp_server;
use crate::documents::{GUIDE, README, file, put};
use crate::files::{make_file, sha256};
use crate::gateway::{Gateway, Keys, Settings};
use crate::harness::{
    LAN, Plan, SATELLITE, Scratch, must, pings, root, said, satellite, shell, spaces, wait_for,
};
use crate::tcp::{accept, check_echo, connect, expect, listen, pattern, try_connect};

const HOST: [&str; 2] = ["10.2.0.2", "fd10:2::2"];
/// What the ship's file lists where others may begin something with its hosts.
const OPEN: &str = "allow = [\"10.2.0.0/24\", \"fd10:2::/64\"]\n";
pub const SERVER: [&str; 2] = ["198.51.100.7", "2001:db8:7::7"];

/// The README's file of a node.
pub fn readme(name: &str, own: &Keys, peer: &Keys) -> String {
    file(README, &format!("`/etc/bentpipe/{name}.toml`"), own, peer)
}

pub struct Sea {
    pub ship: Gateway,
    pub shore: Gateway,
    pub host: NetNs,
    pub server: NetNs,
    nodes: [NetNs; 2],
    pub link: EmulatorHandle,
    pub dir: Scratch,
}

impl Sea {
    /// The README's nodes, with their links up.
    pub fn new() -> Sea {
        Sea::with(|_, text| text)
    }

    /// The same with changes to their files.
    fn with(change: impl Fn(&str, String) -> String) -> Sea {
        Sea::running(|_| {}, |name, own, peer| change(name, readme(name, own, peer)))
    }

    /// Nodes with these files, on machines as `prepare` leaves them: the ship's and the shore's.
    pub fn running(
        prepare: impl FnOnce([&NetNs; 2]),
        file: impl Fn(&str, &Keys, &Keys) -> String,
    ) -> Sea {
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
        prepare([&gwa, &gwb]);
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
            node.write(&file(name, own, peer));
            node.start();
            node
        };
        let shore = node("shore", &gwb, &keys[1], &keys[0]);
        let mut ship = node("ship", &gwa, &keys[0], &keys[1]);
        ship.wait_until_up();
        // A hub's other peers stay away.
        wait_for("the shore's link", || {
            let links = shore.status().links;
            links.iter().any(|l| l.state == LinkState::Up).then_some(()).ok_or(format!("{links:?}"))
        });
        Sea { ship, shore, host, server, nodes: [gwa, gwb], link, dir }
    }
}

pub fn check_that_all_passed(sea: &Sea) {
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
        let web = SocketAddr::new(server.parse().unwrap(), 80).to_string();
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

/// Sends `bytes` from one socket to the other, which is told who sent them.
fn crosses(from: &UdpSocket, to: SocketAddr, at: &UdpSocket, bytes: &[u8]) -> SocketAddr {
    from.send_to(bytes, to).unwrap();
    let mut buf = vec![0; 65_536];
    let (n, sender) = at.recv_from(&mut buf).unwrap();
    assert!(&buf[..n] == bytes, "{} bytes from {sender}", bytes.len());
    sender
}

/// Programs with one port at both ends: NTP asks, a VPN's ends both begin.
fn fixed_ports_work([client, server_ns]: [&NetNs; 2], host: &str, server: &str) {
    for (port, size) in [(123, 48), (51_820, 1_400)] {
        let (near, far) = (udp(client, host, port), udp(server_ns, server, port));
        let to = SocketAddr::new(server.parse().unwrap(), port);
        let from = crosses(&near, to, &far, &pattern(1, size));
        assert_eq!(from.port(), port, "the port is kept");
        assert_eq!(crosses(&far, from, &near, &pattern(2, size)), to);
        if port == 123 {
            continue;
        }
        // Both directions at once, and after a rest the far end is the first to speak.
        let mut buf = vec![0; 2_000];
        for n in 0..40 {
            near.send_to(&pattern(n, size), to).unwrap();
            far.send_to(&pattern(100 + n, size), from).unwrap();
        }
        for n in 0..40 {
            for (socket, seed) in [(&far, n), (&near, 100 + n)] {
                let len = socket.recv(&mut buf).unwrap();
                assert!(buf[..len] == pattern(seed, size), "packet {n} at {socket:?}");
            }
        }
        std::thread::sleep(Duration::from_secs(1));
        crosses(&far, from, &near, &pattern(3, size));
        assert_eq!(crosses(&near, to, &far, &pattern(4, size)), from);
    }
}

/// Two questions by one connection, each with its length before it (RFC 1035, 4.2.2).
fn dns_by_tcp_works([client, server_ns]: [&NetNs; 2], server: &str) {
    let at = SocketAddr::new(server.parse().unwrap(), 53).to_string();
    let listener = listen(server_ns, &at);
    let mut near = connect(client, &at);
    let message =
        |seed: u64, len: u16| [&len.to_be_bytes()[..], &pattern(seed, len.into())].concat();
    near.write_all(&message(1, 40)).unwrap();
    let mut far = accept(&listener);
    for n in 1..3 {
        expect(&mut far, &message(n, 40));
        far.write_all(&message(10 + n, 4_000)).unwrap();
        expect(&mut near, &message(10 + n, 4_000));
        near.write_all(&message(n + 1, 40)).unwrap();
    }
}

#[test]
fn with_the_readmes_files_dns_by_tcp_ntp_a_vpn_and_passive_ftp_work_from_the_ships_lan() {
    if !root() {
        return;
    }
    let sea = Sea::new();
    for (host, server) in HOST.into_iter().zip(SERVER) {
        dns_by_tcp_works([&sea.host, &sea.server], server);
        fixed_ports_work([&sea.host, &sea.server], host, server);
    }
    let (_ftp, files) = ftp_server(&sea.server, SERVER[0], &sea.dir.sub("ftp"));
    let sent = make_file(&files.join("file"), 50_000);
    let got = sea.dir.sub("got").join("file");
    for (mode, server) in
        [("--disable-epsv", SERVER[0].to_owned()), ("--ftp-pasv", format!("[{}]", SERVER[1]))]
    {
        let _ = fs::remove_file(&got);
        let curl = format!("curl -sSfg {mode} -o {} ftp://{server}/file", got.display());
        must(&sea.host, &curl);
        assert_eq!(sha256(&got), sha256(&sent), "{curl}");
    }
    check_that_all_passed(&sea);
}

/// Ping, TCP, and UDP with its answer.
fn basics_work(host: &NetNs, server: &NetNs, at: &str) {
    pings(host, 1, at);
    let at = at.parse().unwrap();
    check_echo(host, &listen(server, &SocketAddr::new(at, 8080).to_string()));
    let any = if at.is_ipv4() { "0.0.0.0" } else { "::" };
    let (near, far) = (udp(host, any, 0), udp(server, &at.to_string(), 5000));
    let from = crosses(&near, SocketAddr::new(at, 5000), &far, b"question");
    crosses(&far, from, &near, b"answer");
}

#[test]
fn the_guides_single_host_reaches_servers_through_the_readmes_shore() {
    if !root() {
        return;
    }
    // Of the ship nothing is left but the host itself, on the Internet in clear.
    let prepare = |[ship, _]: [&NetNs; 2]| {
        must(ship, "ip link del eth1");
        for via in ["203.0.113.7", "2001:db8:5::7"] {
            ship.route(&format!("default via {via}")).expect("a route");
        }
    };
    let sea = Sea::running(prepare, |name, own, peer| match name {
        "ship" => file(GUIDE, "### A gateway on a single host", own, peer),
        // "list it in the `routes` of the peer there"
        _ => {
            let text = put(&readme(name, own, peer), "10.2.0.0/24", "203.0.113.2/32");
            put(&text, "fd10:2::/64", "2001:db8:5::2/128")
        }
    });
    for server in SERVER {
        basics_work(&sea.nodes[0], &sea.server, server);
    }
    assert_eq!(sea.ship.status().links[0].streams_total, 2, "its own TCP is split");
    check_that_all_passed(&sea);
}

#[test]
fn the_guides_hub_lets_the_readmes_ship_into_the_office_but_for_what_it_denies() {
    if !root() {
        return;
    }
    let sea = Sea::running(
        |[_, hub]| {
            for address in ["10.1.0.1/24", "10.1.99.1/24"] {
                hub.address(LAN, address).expect("an address");
            }
        },
        |name, own, peer| match name {
            "ship" => readme(name, own, peer),
            _ => file(GUIDE, "reach the office network behind the hub:", own, peer),
        },
    );
    for address in ["10.1.0.9/24", "10.1.99.9/24"] {
        sea.server.address(LAN, address).expect("an address");
    }
    for server in ["10.1.0.9", SERVER[0]] {
        basics_work(&sea.host, &sea.server, server);
    }
    let refused = try_connect(&sea.host, "10.1.99.9:8080").unwrap_err();
    assert_ne!(refused.kind(), ErrorKind::TimedOut, "{refused}");
    assert!(sea.shore.dropped_for("destination denied") > 0);
    let text = said(&shell(&sea.host, "ping -c 1 -W 10 10.1.99.9"));
    assert!(text.contains("filtered"), "{text}");
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
        "ship" => text + OPEN,
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
        dns_by_tcp_works([&sea.server, &sea.host], host);
        fixed_ports_work([&sea.server, &sea.host], server, host);
    }
    let (_ftp, files) = ftp_server(&sea.host, HOST[0], &sea.dir.sub("ftp"));
    let sent = make_file(&files.join("file"), 50_000);
    let got = sea.dir.sub("got").join("file");
    must(&sea.server, &format!("curl -sSf -o {} ftp://{}/file", got.display(), HOST[0]));
    assert_eq!(sha256(&got), sha256(&sent));
    check_that_all_passed(&sea);
}

/// Also where the ship has an own way to the Internet, as most have.
#[test]
fn a_traceroute_from_shore_shows_the_ship_by_its_address_for_hosts() {
    if !root() {
        return;
    }
    for with_default in [false, true] {
        let prepare = |[ship, _]: [&NetNs; 2]| {
            for via in ["203.0.113.7", "2001:db8:5::7"] {
                if with_default {
                    ship.route(&format!("default via {via}")).expect("a route");
                }
            }
        };
        let sea = Sea::running(prepare, |name, own, peer| match name {
            "ship" => readme(name, own, peer) + OPEN,
            _ => readme(name, own, peer),
        });
        for (host, ship) in HOST.into_iter().zip(["10.2.0.1", "fd10:2::1"]) {
            let text = said(&shell(&sea.server, &format!("ping -c 1 -W 10 -t 2 {host}")));
            let told = text.to_lowercase().contains("exceeded");
            assert!(told && text.contains(&format!("From {ship}")), "{text}");
        }
        check_that_all_passed(&sea);
    }
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
    let sea = Sea::with(|name, text| match name {
        "shore" => put(&text, ", \"fd10:2::/64\"", ""),
        _ => text,
    });
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
    let sea = Sea::with(|name, text| match name {
        "ship" => put(&text, "\"terminal\"", "\"hub\""),
        _ => text,
    });
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
