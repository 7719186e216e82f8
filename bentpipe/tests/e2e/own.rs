//! A gateway on a single host: with `own = true` its own connections are split.
//!
//! The host's default route leads to the other gateway by the satellite, in clear; that of
//! the peer leads into the link, and the carrier's endpoint lies within it. Who visits the host
//! by an interface that is not the link's is answered there.

use std::fs;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::Duration;

use os::netns::{NetNs, veth};
use socket2::{Domain, Socket, Type};

use crate::block::{Restless, in_clear, watch};
use crate::failure::{kernel_state, wait_for_kernel_state};
use crate::files::{HttpServer, make_file, sha256};
use crate::gateway::Settings;
use crate::harness::{LAN, PATIENCE, Plan, SATELLITE, World, must, pings, root, spaces, wait_for};
use crate::tcp::{
    End, accept, accept_within, check_echo, connect, end_within, expect, listen, pattern,
    try_connect,
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
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
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

/// The host's second interface, in each address family: its address there, the next router's,
/// and that of somebody beyond, who is not behind the link.
const OUTSIDE: [[&str; 3]; 2] = [
    ["198.51.100.1", "198.51.100.2", "203.0.113.53"],
    ["2001:db8:9::1", "2001:db8:9::2", "2001:db8:53::53"],
];

/// Gives the host that interface, and returns the network beyond it.
fn second_interface(world: &World) -> NetNs {
    let (_, [provider, ..]) = spaces();
    veth(&provider, LAN, &world.gwa, "isp0").unwrap();
    for ([host, router, beyond], len) in OUTSIDE.into_iter().zip([24, 64]) {
        world.gwa.address("isp0", &format!("{host}/{len}")).unwrap();
        provider.address(LAN, &format!("{router}/{len}")).unwrap();
        provider.address("lo", beyond).unwrap();
        world.gwa.route(&format!("{beyond} via {router}")).unwrap();
    }
    provider
}

fn at(address: &str, port: u16) -> SocketAddr {
    SocketAddr::new(address.parse().unwrap(), port)
}

fn udp(ns: &NetNs, at: SocketAddr) -> UdpSocket {
    let socket = ns.run(|| UdpSocket::bind(at)).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

/// Somebody outside and the host, in one address family.
struct Visits {
    outside: NetNs,
    host: &'static str,
    visitor: &'static str,
    door: TcpListener,
}

impl Visits {
    /// The host serves; by UDP, too.
    fn start(world: &World, outside: &NetNs, [host, _, visitor]: [&'static str; 3]) -> Visits {
        answer_backwards(&world.gwa, &at(host, 123).to_string());
        let door = listen(&world.gwa, &at(host, 22).to_string());
        Visits { outside: outside.clone(), host, visitor, door }
    }

    /// Opens a connection to the host: the visitor's end and the host's.
    fn visit(&self) -> (TcpStream, TcpStream) {
        let near = self.call(22).unwrap_or_else(|e| panic!("{} does not answer: {e}", self.host));
        (near, accept(&self.door))
    }

    fn call(&self, port: u16) -> std::io::Result<TcpStream> {
        self.outside.run(|| {
            let to = at(self.host, port);
            let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
            socket.bind(&at(self.visitor, 0).into())?;
            socket.connect_timeout(&to.into(), VISIT)?;
            socket.set_read_timeout(Some(PATIENCE))?;
            Ok(TcpStream::from(socket))
        })
    }

    /// TCP, UDP and ping are answered, and a port where nobody listens refuses.
    fn are_answered(&self) {
        let (mut near, mut far) = self.visit();
        // The host speaks first.
        far.write_all(b"SSH-2.0").unwrap();
        expect(&mut near, b"SSH-2.0");
        talk(&mut near, &mut far);
        let error = self.call(9).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{}", self.host);
        let from = at(self.visitor, 0).to_string();
        ask(&self.outside, &from, &at(self.host, 123).to_string());
        must(&self.outside, &format!("ping -c 1 -W 20 -I {} {}", self.visitor, self.host));
    }
}

/// How long a visitor calls: some repetitions of his SYN.
const VISIT: Duration = Duration::from_secs(8);

/// A word each way; the host's first.
fn talk(visitor: &mut TcpStream, host: &mut TcpStream) {
    host.write_all(b"more").unwrap();
    expect(visitor, b"more");
    visitor.write_all(b"thanks").unwrap();
    expect(host, b"thanks");
}

/// What the host begins goes into the link, also to one who has visited it, and split.
fn own_goes_into_the_link(world: &World, visits: &Visits) {
    let v4 = visits.host.contains('.');
    let (server, any) = if v4 { ("10.2.0.2", "0.0.0.0") } else { ("fd02::2", "::") };
    let before = world.a.status().links[0].streams_total;
    check_echo(&world.gwa, &listen(&world.server, &at(server, 7_000).to_string()));
    assert_eq!(world.a.status().links[0].streams_total, before + 1, "{server}");
    pings(&world.gwa, 1, server);
    ask(&world.gwa, &at(any, 0).to_string(), &at(server, 123).to_string());
    // Nobody behind the link may reach the visitor. (At port 80 the gateway would answer first.)
    let listener = listen(&visits.outside, &at(visits.visitor, 7_000).to_string());
    assert!(try_connect(&world.gwa, &at(visits.visitor, 7_000).to_string()).is_err());
    assert!(accept_within(&listener, Duration::from_millis(300)).is_none());
    // Not even where the visitor has asked before, at a port where nobody listened.
    let visitor = udp(&visits.outside, at(visits.visitor, 5_353));
    visitor.send_to(b"anybody?", at(visits.host, 5_354)).unwrap();
    let sent = || world.a.status().links[0].datagrams.sent;
    thread::sleep(Duration::from_millis(100));
    let (crossed, own) = (sent(), udp(&world.gwa, at(visits.host, 5_354)));
    own.send_to(b"in the link", at(visits.visitor, 5_353)).unwrap();
    wait_for("a datagram in the link", || (sent() > crossed).then_some(()).ok_or("none".into()));
    visitor.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    assert!(visitor.recv(&mut [0; 16]).is_err(), "it left in clear");
}

/// What begins behind the link is answered there.
fn peers_are_answered(world: &World) {
    for address in ["192.0.2.1", "fd00:5a7::1"] {
        pings(&world.server, 1, address);
        let at_host = listen(&world.gwa, &at(address, 7_001).to_string());
        check_echo(&world.server, &at_host);
        answer_backwards(&world.gwa, &at(address, 7_002).to_string());
        let any = if address.contains('.') { "0.0.0.0:0" } else { "[::]:0" };
        ask(&world.server, any, &at(address, 7_002).to_string());
    }
}

fn visitors_of_a_single_host(on_failure: &'static str, filter: &str) {
    let mut world = single_host(on_failure);
    world.a.configure(|settings| settings.allow = HOST.to_vec());
    let outside = second_interface(&world);
    for interface in ["all", SATELLITE, "isp0"] {
        world.gwa.sysctl(&format!("net.ipv4.conf.{interface}.rp_filter"), filter).unwrap();
    }
    let visits = OUTSIDE.map(|family| Visits::start(&world, &outside, family));
    for server in ["10.2.0.2", "fd02::2"] {
        answer_backwards(&world.server, &at(server, 123).to_string());
    }
    // They stay for as long as the test lasts.
    let mut open: Vec<_> = visits.iter().map(Visits::visit).collect();
    let welcome = |open: &mut Vec<(TcpStream, TcpStream)>| {
        open.iter_mut().for_each(|(near, far)| talk(near, far));
        visits.iter().for_each(Visits::are_answered);
        open.extend(visits.iter().map(Visits::visit));
    };
    welcome(&mut open);
    start(&mut world);
    welcome(&mut open);
    visits.iter().for_each(|family| own_goes_into_the_link(&world, family));
    peers_are_answered(&world);
    welcome(&mut open);

    world.a.kill();
    welcome(&mut open);
    world.a.start();
    world.a.wait_until_up();
    welcome(&mut open);
    visits.iter().for_each(|family| own_goes_into_the_link(&world, family));
}

#[test]
fn who_visits_a_single_host_is_answered_where_he_is() {
    if root() {
        visitors_of_a_single_host("block", "0");
    }
}

#[test]
fn who_visits_a_single_host_with_strict_filters_is_answered_where_he_is() {
    if root() {
        visitors_of_a_single_host("wire", "1");
    }
}

/// Connects from a socket that is bound to an interface.
fn connect_bound(ns: &NetNs, interface: &str, to: SocketAddr) -> TcpStream {
    ns.run(|| {
        let socket = Socket::new(Domain::for_address(to), Type::STREAM, None).unwrap();
        socket.bind_device(Some(interface.as_bytes())).unwrap();
        socket
            .connect_timeout(&to.into(), PATIENCE)
            .unwrap_or_else(|e| panic!("{to} by {interface}: {e}"));
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        TcpStream::from(socket)
    })
}

/// The host has a second interface, towards a server that is not behind the link.
#[test]
fn a_program_that_binds_itself_to_an_interface_stays_outside() {
    if !root() {
        return;
    }
    let mut world = single_host("block");
    let provider = second_interface(&world);
    // A router that answers for no address but its own: the host has to go by it.
    provider.sysctl("net.ipv4.conf.all.arp_ignore", "1").unwrap();
    start(&mut world);
    for [.., server] in OUTSIDE {
        let at = at(server, 80);
        let listener = listen(&provider, &at.to_string());
        let before = world.a.status().links[0].clone();
        let mut near = connect_bound(&world.gwa, "isp0", at);
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

/// A router whose own traffic goes into the link, too, and whose programs may bind themselves to
/// the satellite's interface to stay outside. Hosts behind it cannot.
#[test]
fn where_programs_may_bind_themselves_nothing_of_a_lan_leaves_in_clear() {
    if !root() {
        return;
    }
    let mut plan = Plan { clear_routes: true, ..Plan::default() };
    plan.a.routes = vec!["0.0.0.0/0", "::/0"];
    plan.a.node = "own = true\n".into();
    // Not the address towards the satellite: what is bound to it is answered in clear.
    plan.b.routes.extend(["10.1.0.1/32", "fd01::1/128"]);
    let mut world = World::without_gateways(&plan);
    for via in ["192.0.2.2", "fd00:5a7::2"] {
        world.gwa.route(&format!("default via {via}")).unwrap();
    }
    start(&mut world);
    watch(&world);
    let host = Restless::new(&world);
    let safe = |world: &World, when: &str| {
        host.wait(60);
        assert_eq!(in_clear(world), 0, "{when}");
    };
    let bound_in_clear = |world: &World| {
        for (server, router) in [("10.2.0.2", "192.0.2.1"), ("fd02::2", "fd00:5a7::1")] {
            let at = at(server, 7_000);
            let listener = listen(&world.server, &at.to_string());
            let mut near = connect_bound(&world.gwa, SATELLITE, at);
            let mut far = accept(&listener);
            // By the link the server would see the far gateway's address.
            assert_eq!(far.peer_addr().unwrap().ip().to_string(), router);
            talk(&mut near, &mut far);
        }
    };
    let listener = listen(&world.server, "10.2.0.2:7001");
    bound_in_clear(&world);
    check_echo(&world.gwa, &listener);
    check_echo(&world.client, &listener);
    safe(&world, "while both run");
    // The rules for bound sockets come anew with each route.
    world.gwa.ip("route replace default via 192.0.2.2 metric 7").unwrap();
    safe(&world, "after a route came");
    world.b.kill();
    safe(&world, "while the far gateway is dead");
    bound_in_clear(&world);
    world.a.kill();
    safe(&world, "after a kill");
}
