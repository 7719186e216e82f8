//! What leaves in clear: of hosts nothing, whatever becomes of their gateway; of the gateway's
//! own traffic all that the tunnel's default route is not for.

use std::collections::VecDeque;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::PermissionsExt as _;
use std::process::Output;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use os::netns::NetNs;
use socket2::{Domain, Socket, Type};

use crate::gateway::{Gateway, PROGRAM};
use crate::harness::{
    Daemon, PATIENCE, Plan, SATELLITE, World, must, pings, root, run, said, shell, wait_for,
};
use crate::tcp::{SERVER, check_echo, echo_once, joined, listen, try_connect};

/// A host that never stops: datagrams, SYNs and pings of both families to the far server.
pub struct Restless {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
    _pings: [Daemon; 2],
}

impl Restless {
    pub fn new(world: &World) -> Restless {
        let (stop, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let ping = |to: &str| {
            let log = world.dir("pings").join(to.replace(':', "_"));
            Daemon::start(&world.client, &format!("ping -q -i 0.01 {to}"), &log)
        };
        let (client, over, count) = (world.client.clone(), stop.clone(), sent.clone());
        let thread = thread::spawn(move || client.run(|| send_until(&over, &count)));
        let _pings = ["10.2.0.2", "fd02::2"].map(ping);
        Restless { stop, sent, thread: Some(thread), _pings }
    }

    /// Waits until another so many rounds have been sent.
    pub fn wait(&self, rounds: u64) {
        let wanted = self.sent.load(Ordering::Relaxed) + rounds;
        wait_for("a host that sends", || {
            let sent = self.sent.load(Ordering::Relaxed);
            (sent >= wanted).then_some(()).ok_or(format!("{sent} of {wanted} rounds"))
        });
    }
}

impl Drop for Restless {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn send_until(over: &AtomicBool, count: &AtomicU64) {
    let udp = ["10.1.0.2:0", "[fd01::2]:0"].map(|at| UdpSocket::bind(at).unwrap());
    let servers: [SocketAddr; 2] = ["10.2.0.2:7501", "[fd02::2]:7501"].map(|s| s.parse().unwrap());
    // Each SYN has some time to be sent again.
    let mut calls = VecDeque::new();
    while !over.load(Ordering::Relaxed) {
        for (udp, server) in udp.iter().zip(servers) {
            // An ICMP error for the one before may come back with a call.
            let _ = udp.send_to(b"in clear?", server);
            let call = Socket::new(Domain::for_address(server), Type::STREAM, None).unwrap();
            call.set_nonblocking(true).unwrap();
            let _ = call.connect(&server.into());
            calls.push_back(call);
        }
        if calls.len() > 400 {
            calls.drain(..2);
        }
        count.fetch_add(1, Ordering::Relaxed);
        thread::sleep(Duration::from_millis(5));
    }
}

/// Counts what of the ship's LAN is on the satellite in clear: as it leaves the ship, and as
/// it arrives on shore. The carrier's packets have other addresses.
pub fn watch(world: &World) {
    for (ns, hook) in [
        (
            &world.gwa,
            format!("postrouting priority 300; }}; add rule inet watch lan oifname {SATELLITE}"),
        ),
        (
            &world.gwb,
            format!("prerouting priority -300; }}; add rule inet watch lan iifname {SATELLITE}"),
        ),
    ] {
        let (chain, rule) = hook.split_once("; add rule").unwrap();
        let mut commands =
            format!("add table inet watch; add chain inet watch lan {{ type filter hook {chain}; ");
        for of_the_lan in ["ip saddr 10.1.0.0/24", "ip6 saddr fd01::/64"] {
            commands += &format!("add rule{rule} {of_the_lan} counter; ");
        }
        must(ns, &format!("nft '{commands}'"));
    }
}

/// Packets of the LAN that were seen in clear.
pub fn in_clear(world: &World) -> u64 {
    let count = |ns: &NetNs| -> u64 {
        let list = must(ns, "nft list table inet watch");
        let counts = list.split("counter packets ").skip(1);
        let counts: Vec<u64> =
            counts.map(|c| c.split(' ').next().unwrap().parse().unwrap()).collect();
        assert_eq!(counts.len(), 2, "{list}");
        counts.iter().sum()
    };
    count(&world.gwa) + count(&world.gwb)
}

/// Runs the program beside a gateway.
pub fn bentpipe(gateway: &Gateway, ns: &NetNs, args: &str) -> Output {
    let words: Vec<String> = args
        .split(' ')
        .map(|word| match word {
            "FILE" => gateway.file().display().to_string(),
            "SOCKET" => gateway.dir().join("admin.sock").display().to_string(),
            word => word.to_owned(),
        })
        .collect();
    run(ns.command(PROGRAM).args(words))
}

#[test]
fn with_block_nothing_of_a_host_leaves_in_clear_until_it_is_released() {
    if !root() {
        return;
    }
    let mut world = World::without_gateways(&Plan { clear_routes: true, ..Plan::default() });
    world.a.install();
    world.b.start();
    world.a.start();
    world.a.wait_until_up();
    watch(&world);
    let host = Restless::new(&world);
    let listener = listen(&world.server, SERVER);
    let works = |world: &World| check_echo(&world.client, &listener);
    let own = |world: &World| {
        // The satellite's devices have no link-local addresses to find each other with when
        // they forward.
        must(&world.gwa, "ping -c 5 -i 0.2 -W 20 fd00:5a7::2");
        must(&world.gwb, "ping -c 5 -i 0.2 -W 20 fd00:5a7::1");
        for to in ["10.2.0.2", "fd02::2"] {
            must(&world.gwa, &format!("ping -c 1 -W 20 {to}"));
        }
    };
    let safe = |world: &World, when: &str| {
        host.wait(60);
        assert_eq!(in_clear(world), 0, "{when}");
    };
    works(&world);
    safe(&world, "while it runs");

    // Routes come and go while it runs.
    world.a.configure(|s| s.routes = vec!["10.2.0.0/25", "fd02::/64", "10.9.0.0/16"]);
    world.a.signal("HUP");
    world.a.wait_for_log("read again");
    safe(&world, "after a reload");
    works(&world);
    let refused = bentpipe(&world.a, &world.gwa, "down FILE");
    assert!(!refused.status.success(), "a gateway runs here");

    // Whoever answers DHCP at the modem, or sends router advertisements, has longer routes; they
    // stay there through all that follows.
    for route in ["10.2.0.0/26 via 192.0.2.2", "10.2.0.2/32 via 192.0.2.2"] {
        world.gwa.route(route).unwrap();
    }
    world.gwa.route("fd02::2/128 via fd00:5a7::2").unwrap();
    safe(&world, "with longer routes in the system");
    works(&world);

    // Another program flushes the rules, and they come back.
    for family in ["-4", "-6"] {
        let main = format!("ip {family} rule add priority 32766 lookup main");
        must(&world.gwa, &format!("ip {family} rule flush; {main}"));
    }
    world.a.wait_for_log("put back");
    wait_for("rules", || {
        let rules = must(&world.gwa, "ip rule; ip -6 rule");
        (rules.matches("proto 143").count() > 10).then_some(()).ok_or(rules)
    });
    // Nor while there were none.
    safe(&world, "after the rules came back");
    works(&world);

    // It is told to end, as by `systemctl stop`.
    world.a.signal("TERM");
    assert!(world.a.wait_until_ended().success(), "{}", world.a.log());
    safe(&world, "after an end in order");
    own(&world);
    let status = said(&bentpipe(&world.a, &world.gwa, "status --socket SOCKET"));
    for words in ["10.9.0.0/16", "since the gateway was stopped", "bentpipe down FILE"] {
        assert!(status.contains(words), "{words}: {status}");
    }

    let doctor = said(&bentpipe(&world.a, &world.gwa, "doctor FILE"));
    assert!(doctor.contains("is blocked since the gateway was stopped"), "{doctor}");

    // It starts, and another start beside it is refused.
    world.a.start();
    world.a.wait_until_up();
    safe(&world, "after a start");
    works(&world);
    let again = world.a.dir().join("again.toml");
    let text = world.a.text().replace("4500\"\nadmin", "4501\"\nadmin").replace("bp0", "bp1");
    fs::write(&again, text.replace("admin.sock", "again.sock")).unwrap();
    fs::set_permissions(&again, fs::Permissions::from_mode(0o600)).unwrap();
    let second = run(world.gwa.command(PROGRAM).arg("up").arg(&again));
    assert!(said(&second).contains("another bentpipe"), "{}", said(&second));
    safe(&world, "after a second start");
    works(&world);

    // Restarts: with all that is open reset at once, and killed.
    for round in 0..3 {
        if round == 1 {
            world.a.signal("TERM");
            world.a.signal("TERM");
            assert!(world.a.wait_until_ended().success(), "{}", world.a.log());
        } else {
            world.a.kill();
        }
        world.a.start();
        world.a.wait_until_up();
        safe(&world, "after a restart");
        works(&world);
    }

    // An upgrade: another file has the program's name, and the service is told to end, checks its
    // file and starts again (scripts/debian/postinst, systemd/bentpipe@.service).
    let mut open = joined(&world.client, &listener);
    talk(&mut open);
    world.a.install();
    let running = fs::read_link(format!("/proc/{}/exe", world.a.pid())).unwrap();
    assert!(running.to_string_lossy().ends_with(" (deleted)"), "{running:?}");
    safe(&world, "while the old program runs");
    world.a.signal("TERM");
    world.a.wait_for_log("ending open_connections=1");
    safe(&world, "while it finishes its connections");
    talk(&mut open);
    drop(open);
    assert!(world.a.wait_until_ended().success(), "{}", world.a.log());
    safe(&world, "between the two programs");
    let checked = bentpipe(&world.a, &world.gwa, "check FILE");
    assert!(checked.status.success(), "{}", said(&checked));
    world.a.start();
    world.a.wait_until_up();
    safe(&world, "after an upgrade");
    works(&world);

    world.a.kill();
    safe(&world, "after a kill");
    own(&world);
    let status = said(&bentpipe(&world.a, &world.gwa, "status --socket SOCKET"));
    assert!(status.contains("since the gateway was killed"), "{status}");
    let doctor = said(&bentpipe(&world.a, &world.gwa, "doctor FILE"));
    assert!(doctor.contains("is blocked since the gateway was killed"), "{doctor}");

    // Released: everything is seen, which also shows that the counters count.
    let down = bentpipe(&world.a, &world.gwa, "down FILE");
    assert!(down.status.success() && said(&down).contains("10.9.0.0/16"), "{}", said(&down));
    wait_for("traffic in clear", || (in_clear(&world) > 0).then_some(()).ok_or("none".into()));
    let rules = must(&world.gwa, "ip rule; ip -6 rule; ip route show table all");
    assert!(!rules.contains("proto 143"), "{rules}");
    let again = bentpipe(&world.a, &world.gwa, "down FILE");
    assert!(said(&again).contains("nothing was blocked"), "{}", said(&again));
}

/// What a ship and the Internet are to each other in one address family.
struct Family {
    /// An address of the Internet, which the shore and the ship's own default route lead to.
    internet: &'static str,
    /// The ship's own address there.
    wan: &'static str,
    /// Its address for its hosts.
    ship: &'static str,
}

const FAMILIES: [Family; 2] = [
    Family { internet: "198.51.100.7", wan: "192.0.2.1", ship: "10.1.0.1" },
    Family { internet: "2001:db8:7::7", wan: "2001:db8:5::1", ship: "fd01::1" },
];

fn at(address: &str, port: u16) -> SocketAddr {
    SocketAddr::new(address.parse().unwrap(), port)
}

/// A word there and a word back.
fn talk((near, far): &mut (TcpStream, TcpStream)) {
    for (from, to) in [(0, 1), (1, 0)] {
        let ends = [&mut *near, &mut *far];
        let [a, b] = ends;
        let (writer, reader) = if from < to { (a, b) } else { (b, a) };
        writer.write_all(b"word").unwrap();
        reader.read_exact(&mut [0; 4]).unwrap();
    }
}

/// What serves in one address family: the ship's door, and a server somewhere in the Internet.
struct Services {
    family: Family,
    door: TcpListener,
    tcp: TcpListener,
    udp: UdpSocket,
}

impl Services {
    fn start(world: &World, family: Family) -> Services {
        let udp = world.server.run(|| UdpSocket::bind(at(family.internet, 123))).unwrap();
        udp.set_read_timeout(Some(PATIENCE)).unwrap();
        Services {
            door: listen(&world.gwa, &at(family.wan, 22).to_string()),
            tcp: listen(&world.server, &at(family.internet, 80).to_string()),
            udp,
            family,
        }
    }

    /// Somebody on the Internet opens a connection to the ship's own address.
    fn visit(&self, world: &World) -> (TcpStream, TcpStream) {
        let (near, far) = joined(&world.server, &self.door);
        assert_eq!(far.peer_addr().unwrap().ip(), at(self.family.internet, 0).ip());
        (near, far)
    }

    /// The ship's own TCP, UDP and ping reach the Internet, past the tunnel.
    fn own_traffic_flows(&self, world: &World) {
        let Family { internet, wan, .. } = self.family;
        let (_near, far) = joined(&world.gwa, &self.tcp);
        assert_eq!(far.peer_addr().unwrap().ip(), at(wan, 0).ip());
        let any = if at(wan, 0).is_ipv4() { "0.0.0.0" } else { "::" };
        let own = world.gwa.run(|| UdpSocket::bind((any, 0))).unwrap();
        own.set_read_timeout(Some(PATIENCE)).unwrap();
        own.send_to(b"time?", at(internet, 123)).unwrap();
        let (_, from) = self.udp.recv_from(&mut [0; 16]).unwrap();
        assert_eq!(from.ip(), at(wan, 0).ip());
        self.udp.send_to(b"late", from).unwrap();
        own.recv(&mut [0; 16]).unwrap();
        must(&world.gwa, &format!("ping -c 1 -W 20 {internet}"));
        must(&world.server, &format!("ping -c 1 -W 20 -I {internet} {wan}"));
    }
}

/// A ship on the Internet that sends all that its hosts want into the link; no gateway runs yet.
fn ship_on_the_internet(on_failure: &'static str) -> World {
    let mut plan = Plan { clear_routes: true, ..Plan::default() };
    (plan.a.on_failure, plan.b.on_failure) = (on_failure, on_failure);
    plan.a.routes = vec!["0.0.0.0/0", "::/0"];
    plan.b.allow.extend(["198.51.100.0/24", "2001:db8:7::/64"]);
    // Somebody on shore pings the ship itself.
    plan.open_to_shore();
    let world = World::without_gateways(&plan);
    // As real ones, these devices have link-local addresses, to find each other with.
    for (ns, n) in [(&world.gwa, 1), (&world.gwb, 2)] {
        ns.address(SATELLITE, &format!("2001:db8:5::{n}/64")).unwrap();
        ns.address(SATELLITE, &format!("fe80::{n}/64")).unwrap();
    }
    for (family, to_ship, shore) in [
        (&FAMILIES[0], "192.0.2.0/24 via 10.2.0.1", "192.0.2.2"),
        (&FAMILIES[1], "2001:db8:5::/64 via fd02::1", "2001:db8:5::2"),
    ] {
        let internet = family.internet;
        world.gwa.route(&format!("default via {shore}")).unwrap();
        world.server.address("lo", internet).unwrap();
        world.server.route(&format!("{to_ship} src {internet}")).unwrap();
    }
    world.gwb.route("198.51.100.0/24 via 10.2.0.2").unwrap();
    world.gwb.route("2001:db8:7::/64 via fd02::2").unwrap();
    world
}

fn reached_and_reaching_out(on_failure: &'static str) {
    let mut world = ship_on_the_internet(on_failure);
    let services = FAMILIES.map(|family| Services::start(&world, family));
    let mut operators = services.each_ref().map(|service| service.visit(&world));
    operators.iter_mut().for_each(talk);
    let outside = |world: &World, operators: &mut [(TcpStream, TcpStream)]| {
        for (service, operator) in services.iter().zip(operators) {
            talk(operator);
            talk(&mut service.visit(world));
            service.own_traffic_flows(world);
        }
    };
    world.b.start();
    world.a.start();
    world.a.wait_until_up();
    outside(&world, &mut operators);
    // A host's goes through the link, split; and the shore reaches the ship by it.
    for Services { tcp, family, .. } in &services {
        let before = world.a.status().links[0].streams_total;
        check_echo(&world.client, tcp);
        assert_eq!(world.a.status().links[0].streams_total, before + 1);
        pings(&world.client, 2, family.internet);
        pings(&world.server, 2, family.ship);
    }
    assert!(!shell(&world.gwa, "nft list ruleset").stdout.is_empty());

    world.a.kill();
    outside(&world, &mut operators);
    for Services { tcp, .. } in &services {
        match on_failure {
            "wire" => {
                let works = || echo_once(&world.client, tcp).map_err(|e| e.to_string());
                wait_for("a connection in clear", works);
            }
            _ => {
                let to = tcp.local_addr().unwrap().to_string();
                assert!(try_connect(&world.client, &to).is_err());
            }
        }
    }
    world.a.start();
    world.a.wait_until_up();
    outside(&world, &mut operators);
    services.iter().for_each(|service| check_echo(&world.client, &service.tcp));
}

#[test]
fn a_ship_with_a_default_route_into_the_link_is_reached_and_reaches_out_itself() {
    if root() {
        reached_and_reaching_out("block");
    }
}

#[test]
fn a_ship_whose_hosts_go_in_clear_on_failure_is_reached_and_reaches_out_itself() {
    if root() {
        reached_and_reaching_out("wire");
    }
}
