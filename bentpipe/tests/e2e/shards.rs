//! A hub whose peers are divided among threads (`shards`).
//!
//! ```text
//!  host n ──── terminal n ──── air ──── hub ──── server
//!  10.10n.0.2  .1 │ 10.9.n.2     │ 10.9.9.2 │ .1    10.2.0.2
//! ```
//!
//! The air is a router, so that a terminal may move.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use bentpipe::admin::{self, Answer, Event, LinkState, LinkStatus, Request};
use os::netns::{NetNs, veth};

use crate::documents::{GUIDE, put, toml};
use crate::failure::{kernel_state, wait_for_kernel_state};
use crate::gateway::{Gateway, Keys, Settings};
use crate::harness::{LAN, Plan, SATELLITE, Scratch, must, root, root_alone, wait_for};
use crate::tcp::{
    End, SERVER, accept, check_echo, connect, echo_once, expect, joined, listen, pattern,
    read_to_end, send_all,
};
use crate::watching::Watch;

const TERMINALS: usize = 4;
/// Not a power of two, and fewer than the terminals.
const SHARDS: usize = 3;

struct Terminal {
    gateway: Gateway,
    ns: NetNs,
    host: NetNs,
    keys: Keys,
}

/// Programs are dropped before the networks they run in.
struct Star {
    hub: Gateway,
    hub_keys: Keys,
    hub_ns: NetNs,
    server: NetNs,
    terminals: Vec<Terminal>,
    before: String,
    shards: usize,
    rate: &'static str,
    _air: NetNs,
    _dir: Scratch,
}

impl Star {
    /// The hub and all terminals, up. `node`: more lines of the hub's `[node]`.
    fn new(label: &str, node: &str) -> Star {
        Star::with(label, node, SHARDS, "40Mbit")
    }

    fn with(label: &str, node: &str, shards: usize, rate: &'static str) -> Star {
        let space =
            |role: &str| NetNs::unique("bpe2e", &format!("{label}-{role}")).expect("a namespace");
        let (air, hub_ns, server) = (space("air"), space("hub"), space("server"));
        let dir = Scratch::new(label);
        air.make_router().expect("a router");
        let cable = |ns: &NetNs, at: &str, n: usize| {
            veth(ns, SATELLITE, &air, at).expect("a cable");
            air.address(at, &format!("10.9.{n}.1/24")).expect("an address");
            ns.address(SATELLITE, &format!("10.9.{n}.2/24")).expect("an address");
            ns.route(&format!("default via 10.9.{n}.1")).expect("a route");
            ns.make_router().expect("a router");
        };
        let lan = |ns: &NetNs, host: &NetNs, net: &str| {
            veth(ns, LAN, host, LAN).expect("a cable");
            ns.address(LAN, &format!("{net}.1/24")).expect("an address");
            host.address(LAN, &format!("{net}.2/24")).expect("an address");
            host.route(&format!("default via {net}.1")).expect("a route");
        };
        cable(&hub_ns, "hub", 9);
        lan(&hub_ns, &server, "10.2.0");
        let plan = Plan { rate: rate.parse().expect("a rate"), ..Plan::default() };
        let hub_keys = Keys::new();
        let names = ["t0", "t1", "t2", "t3"];
        let nets: [&'static str; TERMINALS] =
            ["10.100.0.0/24", "10.101.0.0/24", "10.102.0.0/24", "10.103.0.0/24"];
        let terminals: Vec<Terminal> = (0..TERMINALS)
            .map(|n| {
                let (ns, host, keys) = (space(names[n]), space(&format!("h{n}")), Keys::new());
                cable(&ns, names[n], n);
                lan(&ns, &host, &format!("10.10{n}.0"));
                let settings = Settings {
                    listen: "0.0.0.0:4500".into(),
                    endpoint: Some("10.9.9.2:4500".into()),
                    routes: vec!["10.2.0.0/24"],
                    allow: vec![nets[n]], // The server opens to its host as well.
                    ..Settings::ship()
                };
                let gateway = Gateway::new(
                    names[n],
                    &ns,
                    dir.sub(names[n]),
                    settings,
                    &keys,
                    &hub_keys,
                    &plan,
                );
                Terminal { gateway, ns, host, keys }
            })
            .collect();
        let settings = Settings { listen: "0.0.0.0:4500".into(), ..Settings::shore() };
        let hub =
            Gateway::new("hub", &hub_ns, dir.sub("hub"), settings, &hub_keys, &hub_keys, &plan);
        let before = kernel_state(&hub_ns);
        let (_air, _dir) = (air, dir);
        let mut star =
            Star { hub, hub_keys, hub_ns, server, terminals, before, shards, rate, _air, _dir };
        star.hub.write(&star.file(node, &[0, 1, 2, 3]));
        star.hub.start();
        for terminal in &mut star.terminals {
            terminal.gateway.start();
        }
        for terminal in &mut star.terminals {
            terminal.gateway.wait_until_up();
        }
        star.hub.wait_until_up();
        star
    }

    /// The hub's file with these terminals, in this order. They are opened to in every way.
    fn file(&self, node: &str, terminals: &[usize]) -> String {
        let mut text = format!(
            "[node]\nprivate_key = \"{}\"\nlisten = \"0.0.0.0:4500\"\nadmin = \"admin.sock\"\n\
             tun = \"bp0\"\nlan = [\"{LAN}\"]\n\
             on_stop = \"release\"\n{node}\n",
            self.hub_keys.private
        );
        if self.shards > 1 {
            text += &format!("shards = {}\n", self.shards);
        }
        for n in terminals {
            let open = ["fast", "sure", "auto", "sure"][*n];
            text += &format!(
                "[[peer]]\nname = \"t{n}\"\npublic_key = \"{}\"\nroutes = [\"10.10{n}.0.0/24\"]\n\
                 allow = [\"10.2.0.0/24\"]\nopen = \"{open}\"\n\
                 link = {{ send = \"{rate}\", receive = \"{rate}\", delay = \"10ms\", \
                 rate = \"reported\" }}\n",
                self.terminals[*n].keys.public,
                rate = self.rate
            );
        }
        text
    }

    fn link(&self, terminal: usize) -> Option<LinkStatus> {
        let name = format!("t{terminal}");
        self.hub.status().links.into_iter().find(|l| l.peer == name)
    }

    /// The hub's links with their shards, as it lists them.
    fn places(&self) -> Vec<(String, u64)> {
        self.hub.status().links.into_iter().map(|l| (l.peer, l.shard)).collect()
    }

    fn reload(&self, text: &str, times: usize) {
        self.hub.write(text);
        self.hub.signal("HUP");
        wait_for("a reload", || {
            let done = self.hub.log().matches("the configuration was read again").count();
            (done == times).then_some(()).ok_or(self.hub.log())
        });
    }
}

fn places(of: &[(&str, u64)]) -> Vec<(String, u64)> {
    of.iter().map(|(name, shard)| ((*name).to_owned(), *shard)).collect()
}

/// Both directions of a connection at once; the ends find what was sent, and clean ends.
fn exchange(seed: u64, (mut near, mut far): (TcpStream, TcpStream)) -> JoinHandle<()> {
    thread::spawn(move || {
        let [up, down] = [seed, seed + 1].map(|s| pattern(s, 2_000_000));
        let sending = [send_all(&near, up.clone()), send_all(&far, down.clone())];
        let reader = thread::spawn(move || read_to_end(&mut far));
        assert!(read_to_end(&mut near) == (down, End::Clean), "down {seed}");
        assert!(reader.join().unwrap() == (up, End::Clean), "up {seed}");
        for s in sending {
            s.join().unwrap().unwrap();
        }
    })
}

fn udp(ns: &NetNs, at: &str) -> UdpSocket {
    let socket = ns.run(|| UdpSocket::bind(at)).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    socket
}

/// Datagrams one way and back, until all of `n` have come.
fn check_datagrams(from: &NetNs, from_ip: &str, to: &NetNs, to_ip: &str, n: usize) {
    let far = udp(to, &format!("{to_ip}:0"));
    let near = udp(from, &format!("{from_ip}:0"));
    let mut buf = [0; 2_000];
    for i in 0..n {
        let sent = pattern(i as u64, 40 + i * 97 % 1_200);
        near.send_to(&sent, far.local_addr().unwrap()).unwrap();
        let (len, back) = far.recv_from(&mut buf).expect("a datagram");
        assert!(buf[..len] == sent, "datagram {i} as it was sent");
        far.send_to(&sent, back).unwrap();
        let (len, _) = near.recv_from(&mut buf).expect("its echo");
        assert!(buf[..len] == sent, "echo {i} as it was sent");
    }
}

/// A connection through the hub's explicit proxy (SOCKS5, RFC 1928).
fn through_the_proxy(star: &Star, listener: &TcpListener, to: [u8; 4]) {
    let mut near = connect(&star.server, "10.2.0.1:1080");
    near.write_all(&[5, 1, 0]).unwrap();
    expect(&mut near, &[5, 0]);
    let port = listener.local_addr().unwrap().port().to_be_bytes();
    near.write_all(&[&[5, 1, 0, 1][..], &to, &port].concat()).unwrap();
    let mut answer = [0; 10];
    near.read_exact(&mut answer).unwrap();
    assert_eq!(answer[..2], [5, 0], "the far side stands");
    exchange(77, (near, accept(listener))).join().unwrap();
}

#[test]
fn a_hub_of_three_shards_carries_everything_to_and_from_each_terminal() {
    if !root() {
        return;
    }
    let mut star = Star::new("sh-carry", "proxy = \"10.2.0.1:1080\"");
    let status = star.hub.status();
    assert_eq!(status.node.shards, SHARDS as u64);
    assert_eq!(star.places(), places(&[("t0", 0), ("t1", 1), ("t2", 2), ("t3", 0)]));
    let threads = threads(star.hub.pid());
    let shards: Vec<_> = threads.iter().filter(|(name, _)| name.starts_with("shard ")).collect();
    assert_eq!(shards.len(), SHARDS - 1);
    let first = threads.iter().find(|(name, _)| name == "bentpipe").expect("the main thread");
    assert!(shards.iter().all(|(_, nice)| *nice == first.1), "before others alike: {threads:?}");

    // All at once: each terminal's host opens to the server, and the server to each host.
    let server = listen(&star.server, SERVER);
    let mut running = Vec::new();
    let mut hosts = Vec::new();
    for (n, terminal) in star.terminals.iter().enumerate() {
        for k in 0..3 {
            let seed = 1_000 * n as u64 + 10 * k;
            running.push(exchange(seed, joined(&terminal.host, &server)));
        }
        let host = listen(&terminal.host, &format!("10.10{n}.0.2:7000"));
        for k in 0..3 {
            let seed = 1_000 * n as u64 + 500 + 10 * k;
            running.push(exchange(seed, joined(&star.server, &host)));
        }
        hosts.push(host);
    }
    running.into_iter().for_each(|r| r.join().unwrap());
    for (n, terminal) in star.terminals.iter().enumerate() {
        let ip = format!("10.10{n}.0.2");
        check_datagrams(&terminal.host, &ip, &star.server, "10.2.0.2", 20);
        check_datagrams(&star.server, "10.2.0.2", &terminal.host, &ip, 20);
        must(&star.server, &format!("ping -c 2 -i 0.2 -W 5 {ip}"));
        through_the_proxy(&star, &hosts[n], [10, 100 + n as u8, 0, 2]);
        // A connection that the far host refuses is refused, by the shard that asked.
        let refused = crate::tcp::try_connect(&star.server, &format!("{ip}:9"));
        if n != 0 {
            assert!(refused.is_err(), "terminal {n}");
        }
    }
    star.hub.wait_until_up();
    let status = star.hub.status();
    for (n, link) in status.links.iter().enumerate() {
        assert!(link.streams_total >= 7, "{n}: {}", link.streams_total);
        assert!(link.datagrams.sent >= 40 && link.datagrams.received >= 40, "{n}");
        assert!(link.send.lan_bytes > 13_000_000 && link.receive.lan_bytes > 13_000_000);
    }
    assert!(!status.node.dropped.contains_key("shard busy"), "{:?}", status.node.dropped);

    // A modem tells the rate of a link that another shard has.
    let rate = |peer: &str, bps| {
        let request = Request::Rate { peer: peer.into(), bps };
        admin::ask(&star.hub.dir().join("admin.sock"), &request, units::Duration::from_secs(20))
    };
    assert_eq!(rate("t2", 5_000_000).unwrap(), Answer::Done);
    assert!(matches!(rate("t9", 1).unwrap(), Answer::Error(why) if why.contains("no peer")));
    wait_for("the reported rate", || {
        let limit = star.link(2).unwrap().rate.limit_bps;
        (limit == 5_000_000).then_some(()).ok_or(limit.to_string())
    });
    assert_eq!(star.link(1).unwrap().rate.limit_bps, 40_000_000);
    // It says so once: a reload that changes something else of the peer leaves the rate.
    let file = std::fs::read_to_string(star.hub.file()).expect("a file");
    let of_t2 = "routes = [\"10.102.0.0/24\"]\nallow = [\"10.2.0.0/24\"";
    star.reload(&put(&file, of_t2, &format!("{of_t2}, \"10.3.0.0/24\"")), 1);
    assert_eq!(star.link(2).unwrap().rate.limit_bps, 5_000_000);
    // Where it carries more than the file allows, a file that allows more is enough.
    assert_eq!(rate("t2", 60_000_000).unwrap(), Answer::Done);
    let limit = || star.link(2).unwrap().rate.limit_bps;
    wait_for("the configured rate", || {
        (limit() == 40_000_000).then_some(()).ok_or(limit().to_string())
    });
    let (before, of_t2) = file.split_at(file.find(of_t2).expect("its table"));
    let faster = of_t2.replacen("send = \"40Mbit\"", "send = \"80Mbit\"", 1);
    star.reload(&format!("{before}{faster}"), 2);
    wait_for("what the modem said", || {
        (limit() == 60_000_000).then_some(()).ok_or(limit().to_string())
    });
    star.reload(&file, 3);
    assert_eq!(rate("t2", 5_000_000).unwrap(), Answer::Done);

    // The link of another shard is tested by that.
    let (peer, seconds) = ("t1".to_owned(), 1);
    let test = Request::Test { peer, seconds, send: true, receive: false, raise: false };
    match admin::ask(&star.hub.dir().join("admin.sock"), &test, units::Duration::from_secs(20)) {
        Ok(Answer::Tested(found)) => {
            let sent = found.send.expect("it was asked for");
            assert!(sent.goodput_bps > 1_000_000 && found.receive.is_none(), "{sent:?}");
        }
        other => panic!("{other:?}"),
    }

    // The end: sockets reset, peers told, nothing left in the kernel.
    let mut open: Vec<_> = star.terminals.iter().map(|t| joined(&t.host, &server)).collect();
    star.hub.signal("TERM");
    star.hub.wait_for_log("ending open_connections");
    star.hub.signal("TERM");
    star.hub.wait_for_log("ending at once");
    assert!(star.hub.wait_until_ended().success(), "{}", star.hub.log());
    for (near, far) in &mut open {
        assert_eq!(crate::tcp::end_within(far, Duration::from_secs(20)), Some(End::Reset));
        assert_eq!(crate::tcp::end_within(near, Duration::from_secs(20)), Some(End::Reset));
    }
    for terminal in &star.terminals {
        terminal.gateway.wait_for_log("the peer ended the session");
    }
    wait_for_kernel_state(&star.hub_ns, &star.before);

    // One that cannot start blocks nobody: what is wrong is found before it intercepts.
    star.hub.write(&star.file("user = \"nobody-of-this-name\"", &[0, 1, 2, 3]));
    star.hub.start();
    assert!(!star.hub.wait_until_ended().success());
    assert!(star.hub.log().contains("nobody-of-this-name"), "{}", star.hub.log());
    wait_for_kernel_state(&star.hub_ns, &star.before);
}

#[test]
fn the_guides_hub_has_a_terminal_on_each_of_its_shards() {
    if !root() {
        return;
    }
    let example = toml(GUIDE, "terminals can have several, its *shards*:");
    let node = put(example, "[node]\nprivate_key = \"«private key»\"\n", "");
    let star = Star::with("sh-guide", &node, 1, "40Mbit");
    let server = listen(&star.server, SERVER);
    star.terminals.iter().for_each(|terminal| check_echo(&terminal.host, &server));
    let shards: BTreeSet<_> = star.places().into_iter().map(|(_, shard)| shard).collect();
    assert_eq!(shards.len(), TERMINALS);
}

/// CT-5, CT-9, CT-12, of peers that other threads have.
#[test]
fn a_watcher_hears_of_the_links_of_all_shards() {
    if !root() {
        return;
    }
    let star = Star::new("sh-watch", "");
    let watch = Watch::all(&star.hub);
    watch.wait("a snapshot", |notice| match &notice.event {
        Event::Snapshot { status, .. } => {
            assert_eq!(status.links.iter().filter(|l| l.state == LinkState::Up).count(), 4);
            Some(())
        }
        other => panic!("the snapshot is first: {other:?}"),
    });
    let server = listen(&star.server, SERVER);
    star.terminals.iter().for_each(|terminal| check_echo(&terminal.host, &server));
    let (mut flows, mut used) = (BTreeMap::new(), BTreeSet::new());
    watch.wait("flows and usage of all terminals", |notice| {
        match &notice.event {
            Event::FlowClosed { flow } => {
                assert!(flow.sent_bytes > 0 && !flow.from_here, "{flow:?}");
                flows.insert(notice.peer.clone(), flow.client.clone());
            }
            Event::Usage { hosts, total, .. } if !hosts.is_empty() => {
                assert!(total.bytes.link_bytes_received > 0, "{total:?}");
                used.insert(notice.peer.clone());
            }
            _ => {}
        }
        (flows.len() == TERMINALS && used.len() == TERMINALS).then_some(())
    });
    for n in 0..TERMINALS {
        assert_eq!(flows[&Some(format!("t{n}"))], format!("10.10{n}.0.2"));
    }
}

#[test]
fn peers_of_any_shard_come_go_move_and_restart() {
    if !root() {
        return;
    }
    let mut star = Star::new("sh-life", "");
    let server = listen(&star.server, SERVER);
    // Two transfers that last through all of it, on two shards.
    let lasting: Vec<_> = [2, 3]
        .into_iter()
        .map(|n| {
            let (mut near, far) = joined(&star.terminals[n].host, &server);
            let data = pattern(n as u64, 20_000_000);
            let sending = send_all(&far, data.clone());
            let reader = thread::spawn(move || read_to_end(&mut near) == (data, End::Clean));
            (sending, reader, far)
        })
        .collect();

    // Out of the file: told, and its hosts' connections are over.
    let (mut near, _far) = joined(&star.terminals[1].host, &server);
    star.reload(&star.file("", &[0, 2, 3]), 1);
    star.terminals[1].gateway.wait_for_log("the peer ended the session");
    assert_eq!(crate::tcp::end_within(&mut near, Duration::from_secs(20)), Some(End::Reset));
    assert_eq!(star.places(), places(&[("t0", 0), ("t2", 2), ("t3", 0)]));
    assert!(!arrives(&star, 1), "its hosts reach nothing");
    // In again, elsewhere in the file: the others stay where they are.
    star.reload(&star.file("", &[3, 2, 1, 0]), 2);
    assert_eq!(star.places(), places(&[("t3", 0), ("t2", 2), ("t1", 1), ("t0", 0)]));
    wait_for("the peer that is back", || {
        echo_once(&star.terminals[1].host, &server).map_err(|e| e.to_string())
    });

    // To another address, in the middle of a transfer.
    must(
        &star.terminals[2].ns,
        &format!(
            "ip addr add 10.9.2.77/24 dev {SATELLITE}; ip addr del 10.9.2.2/24 dev {SATELLITE}; \
             ip addr replace 10.9.2.77/24 dev {SATELLITE}; \
             ip route replace default via 10.9.2.1"
        ),
    );
    check_echo(&star.terminals[2].host, &server);
    wait_for("the new address", || {
        let at = star.link(2).and_then(|l| l.endpoint);
        (at.as_deref() == Some("10.9.2.77:4500")).then_some(()).ok_or(format!("{at:?}"))
    });

    // A terminal that dies and comes back initiates anew, to the first shard.
    let before = star.link(1).unwrap().handshakes.completed;
    star.terminals[1].gateway.kill();
    star.terminals[1].gateway.start();
    star.terminals[1].gateway.wait_until_up();
    wait_for("a connection after the restart", || {
        echo_once(&star.terminals[1].host, &server).map_err(|e| e.to_string())
    });
    assert!(star.link(1).unwrap().handshakes.completed > before);
    let host = listen(&star.terminals[1].host, "10.101.0.2:7000");
    check_echo(&star.server, &host);

    for (sending, reader, far) in lasting {
        sending.join().unwrap().unwrap();
        drop(far);
        assert!(reader.join().unwrap(), "a transfer was harmed");
    }
    let log = star.hub.log();
    for n in [0, 2, 3] {
        let ups = log.matches(&format!("link up peer=t{n}")).count();
        assert_eq!(ups, 1, "the session with terminal {n} stayed");
    }
    // A hub that is killed finds its terminals where it knew them: every shard calls its own.
    star.hub.kill();
    for terminal in &star.terminals {
        terminal.gateway.signal("STOP");
    }
    star.hub.start();
    wait_for("initiations to all", || {
        let status = star.hub.try_status()?;
        let calls = status.links.iter().filter(|l| l.send.packets > 0).count();
        (calls == TERMINALS).then_some(()).ok_or(format!("{calls} of {TERMINALS}"))
    });
    for terminal in &star.terminals {
        terminal.gateway.signal("CONT");
    }
    star.hub.wait_until_up();
    for terminal in &star.terminals {
        wait_for("a connection through the hub that is back", || {
            echo_once(&terminal.host, &server).map_err(|e| e.to_string())
        });
    }

    // Nothing is open: it ends at once, and in good order.
    wait_for("no streams", || {
        let open: u64 = star.hub.status().links.iter().map(|l| l.streams_open).sum();
        (open == 0).then_some(()).ok_or(format!("{open} are open"))
    });
    star.hub.signal("TERM");
    assert!(star.hub.wait_until_ended().success());
    wait_for_kernel_state(&star.hub_ns, &star.before);
}

/// Does a connection of the terminal's host arrive?
fn arrives(star: &Star, terminal: usize) -> bool {
    // A port of its own: what was begun may arrive later.
    let server = listen(&star.server, "10.2.0.2:7100");
    let _near = crate::tcp::try_connect(&star.terminals[terminal].host, "10.2.0.2:7100");
    crate::tcp::accept_within(&server, Duration::from_secs(1)).is_some()
}

/// The threads of a process: names, and how nice they are.
fn threads(pid: u32) -> Vec<(String, i32)> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let of = |task: std::fs::DirEntry| {
        let stat = std::fs::read_to_string(task.path().join("stat")).unwrap();
        let (name, rest) = stat.split_once('(').unwrap().1.rsplit_once(')').unwrap();
        // Field 19 of proc(5); the third comes after the name.
        (name.to_owned(), rest.split_whitespace().nth(16).unwrap().parse().unwrap())
    };
    tasks.map(|task| of(task.unwrap())).collect()
}

/// Processor time of a process, user and system, in seconds.
fn cpu(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    // Fields 14 and 15 of proc(5), in ticks of 10 ms.
    (fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap()) / 100.0
}

/// Not a test but a measurement: what a hub carries to two busy terminals, and its price.
#[test]
#[ignore = "a measurement, for a quiet machine"]
fn what_a_hub_carries_to_two_busy_terminals() {
    const TIME: Duration = Duration::from_secs(10);
    if !root_alone() {
        return;
    }
    for shards in [1, 2, 1, 2] {
        let star = Star::with("sh-busy", "memory = \"512MiB\"", shards, "2Gbit");
        let mut readers = Vec::new();
        for n in 0..2 {
            let host = listen(&star.terminals[n].host, &format!("10.10{n}.0.2:7000"));
            for _ in 0..2 {
                let (far, near) = joined(&star.server, &host);
                thread::spawn(move || {
                    let block = pattern(7, 1 << 20);
                    while (&far).write_all(&block).is_ok() {}
                });
                readers.push(near);
            }
        }
        thread::sleep(Duration::from_secs(2));
        let before = cpu(star.hub.pid());
        let begin = std::time::Instant::now();
        let counting = readers.into_iter().map(|mut near| {
            thread::spawn(move || {
                let (mut buf, mut got) = (vec![0; 1 << 18], 0);
                while begin.elapsed() < TIME {
                    got += near.read(&mut buf).expect("bytes");
                }
                got
            })
        });
        let counting: Vec<_> = counting.collect();
        let got: usize = counting.into_iter().map(|c| c.join().unwrap()).sum();
        let (seconds, spent) = (begin.elapsed().as_secs_f64(), cpu(star.hub.pid()) - before);
        eprintln!(
            "shards = {shards}: {:.0} Mbit/s to two terminals, {:.2} s of processor time per GB at \
             the hub, {:.0} % of one processor",
            got as f64 * 8e-6 / seconds,
            spent / (got as f64 * 1e-9),
            spent / seconds * 100.0
        );
        assert!(got > 0);
    }
}
