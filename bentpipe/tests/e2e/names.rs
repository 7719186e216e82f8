//! Names through the service `names` (spec/names.md): a DNS server behind one gateway, a client
//! behind the other.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use bentpipe::admin::ServiceState;
use os::netns::NetNs;

use crate::accelerators::{program, serve, service, wait_until_running};
use crate::documents::{NAMES, put, toml};
use crate::gateway::Settings;
use crate::harness::{Scratch, World, root, wait_for};

pub const SERVER: &str = "10.2.0.2:53";
const SERVER_V6: &str = "[fd02::2]:53";
/// The gateway itself, as hosts see it.
const GATEWAY: &str = "10.1.0.1:53";
const GATEWAY_V6: &str = "[fd01::1]:53";

pub fn with_names(both: bool) -> (World, Scratch) {
    with_names_and(both, "")
}

/// With more lines of the peer at the client's side.
fn with_names_and(both: bool, peer: &str) -> (World, Scratch) {
    with_names_and_node(both, peer, |_| {})
}

/// And with changes of the node.
fn with_names_and_node(both: bool, peer: &str, change: impl Fn(&mut String)) -> (World, Scratch) {
    let programs = Scratch::new("names");
    let at = program("bentpipe-names", &programs);
    let serve = |settings: &mut Settings| serve(settings, NAMES, "bentpipe-names", &at);
    let world = World::with(|plan| {
        plan.a.peer = peer.to_owned();
        serve(&mut plan.a);
        change(&mut plan.a.node);
        if both {
            serve(&mut plan.b);
        }
    });
    wait_until_running(&world.a);
    if both {
        wait_until_running(&world.b);
    }
    (world, programs)
}

/// A DNS server that knows one address for every name, by UDP and, if it is to, by TCP.
pub struct Dns {
    udp: Arc<AtomicU64>,
    tcp: Arc<AtomicU64>,
}

impl Dns {
    /// How often it was asked.
    pub fn asked(&self) -> u64 {
        self.udp.load(Relaxed) + self.tcp.load(Relaxed)
    }
}

fn answer(query: &[u8]) -> Vec<u8> {
    let name = query[12..].iter().position(|b| *b == 0).expect("a name");
    let mut out = query[..12 + name + 5].to_vec();
    (out[2], out[3]) = (0x81, 0x80);
    out[6..12].copy_from_slice(&[0, 1, 0, 0, 0, 0]);
    out.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 1, 44, 0, 4, 10, 2, 0, 2]);
    out
}

pub fn serve_dns(ns: &NetNs, by_tcp: bool) -> Dns {
    serve_dns_at(ns, SERVER, by_tcp)
}

fn serve_dns_at(ns: &NetNs, at: &'static str, by_tcp: bool) -> Dns {
    let dns = Dns { udp: Arc::default(), tcp: Arc::default() };
    let socket = ns.run(|| UdpSocket::bind(at)).expect("a socket");
    let count = dns.udp.clone();
    thread::spawn(move || {
        let mut room = [0; 1500];
        while let Ok((n, from)) = socket.recv_from(&mut room) {
            count.fetch_add(1, Relaxed);
            let _ = socket.send_to(&answer(&room[..n]), from);
        }
    });
    if by_tcp {
        let listener = ns.run(|| TcpListener::bind(at)).expect("a listener");
        let count = dns.tcp.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(stream) = stream else { return };
                if serve_one(stream, answer).is_ok() {
                    count.fetch_add(1, Relaxed);
                }
            }
        });
    }
    dns
}

/// Answers one question.
pub fn serve_one(mut stream: TcpStream, answer: impl Fn(&[u8]) -> Vec<u8>) -> std::io::Result<()> {
    let mut len = [0; 2];
    stream.read_exact(&mut len)?;
    let mut query = vec![0; u16::from_be_bytes(len).into()];
    stream.read_exact(&mut query)?;
    let answer = answer(&query);
    stream.write_all(&[&(answer.len() as u16).to_be_bytes()[..], &answer].concat())
}

fn question(name: &str) -> Vec<u8> {
    let mut query = vec![7, 9, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        query.push(label.len() as u8);
        query.extend_from_slice(label.as_bytes());
    }
    query.extend([0, 0, 1, 0, 1]);
    query
}

/// Asks for a name's address; how long that took.
pub fn look_up(client: &NetNs, name: &str) -> Option<Duration> {
    look_up_at(client, SERVER, name)
}

fn look_up_at(client: &NetNs, server: &str, name: &str) -> Option<Duration> {
    let from = if server.starts_with('[') { "[fd01::2]:0" } else { "10.1.0.2:0" };
    let socket = client.run(|| UdpSocket::bind(from)).expect("a socket");
    socket.connect(server).expect("an address");
    socket.set_read_timeout(Some(Duration::from_secs(4))).expect("a socket");
    let query = question(name);
    let begin = Instant::now();
    socket.send(&query).expect("a question");
    let mut room = [0; 1500];
    // The socket is connected: what comes has the server's address.
    let n = socket.recv(&mut room).ok()?;
    assert_eq!(room[..2], [7, 9]);
    assert_eq!(room[12..query.len()], query[12..], "spelt as it was asked");
    assert_eq!(room[n - 4..n], [10, 2, 0, 2]);
    Some(begin.elapsed())
}

#[test]
fn names_are_answered_from_memory_and_those_that_go_together_come_together() {
    if !root() {
        return;
    }
    let (world, _programs) = with_names(true);
    let dns = serve_dns(&world.server, true);
    let first = look_up(&world.client, "Www.Example.com").expect("an answer");
    assert!(first >= Duration::from_millis(100), "over the link: {first:?}");
    let mut times: Vec<_> =
        (0..21).map(|_| look_up(&world.client, "wWw.example.COM").expect("an answer")).collect();
    times.sort_unstable();
    eprintln!("first {first:?}, again {:?} (median of 21)", times[10]);
    assert!(times[10] < Duration::from_millis(50), "{times:?}");
    assert_eq!((dns.udp.load(Relaxed), dns.tcp.load(Relaxed)), (0, 1));
    // A page of six hosts: seen once, and again when the terminal has forgotten.
    let page: Vec<_> = (0..6).map(|n| format!("host{n}.example")).collect();
    for name in &page {
        look_up(&world.client, name).expect("an answer");
    }
    assert_eq!(dns.tcp.load(Relaxed), 7);
    let pid = service(&world.a).pid.expect("a process");
    let killed = Instant::now();
    let kill = Command::new("kill").args(["-9", &pid.to_string()]).status();
    assert!(kill.expect("kill").success());
    wait_for("another one", || match service(&world.a) {
        it if it.state == ServiceState::Running && it.pid != Some(pid) => Ok(()),
        it => Err(format!("{it:?}")),
    });
    let times: Vec<_> =
        page.iter().map(|name| look_up(&world.client, name).expect("an answer")).collect();
    eprintln!("a page after kill -9 and {:?}: {times:?}", killed.elapsed());
    assert!(times[0] >= Duration::from_millis(100));
    let counters = service(&world.a).counters;
    wait_for("what it counts", || match service(&world.a).counters {
        it if it.get("hits") == Some(&5) && it.get("misses") == Some(&1) => Ok(()),
        it => Err(format!("{it:?}, before {counters:?}")),
    });
    // The gateway decided anew whether the terminal may; the other five the hub knew.
    assert_eq!(dns.tcp.load(Relaxed), 8);
}

/// Asks for a name's address by TCP.
fn look_up_by_tcp(client: &NetNs, server: &str, name: &str) {
    let mut stream = crate::tcp::connect(client, server);
    let question = question(name);
    let asked = [&(question.len() as u16).to_be_bytes()[..], &question].concat();
    stream.write_all(&asked).expect("a question");
    let mut len = [0; 2];
    stream.read_exact(&mut len).expect("an answer");
    let mut answer = vec![0; u16::from_be_bytes(len).into()];
    stream.read_exact(&mut answer).expect("an answer");
    assert_eq!((&answer[..2], &answer[answer.len() - 4..]), (&[7, 9][..], &[10, 2, 0, 2][..]));
}

/// The line of the page, with the servers of this network.
fn asked_itself(node: &mut String) {
    let line = toml(NAMES, "a line in `[node]` at the terminal:");
    let line = put(&put(line, "9.9.9.9", "10.2.0.2"), "2620:fe::fe", "fd02::2");
    *node = format!("\n{line}\n{node}");
}

#[test]
fn hosts_that_ask_the_gateway_itself_are_taken_to_the_server_behind_the_peer() {
    if !root() {
        return;
    }
    let world = World::with(|plan| asked_itself(&mut plan.a.node));
    let dns = [SERVER, SERVER_V6].map(|at| serve_dns_at(&world.server, at, true));
    for (round, [at, v6]) in [[GATEWAY, GATEWAY_V6]; 3].into_iter().enumerate() {
        for (server, dns) in [at, v6].into_iter().zip(&dns) {
            look_up_at(&world.client, server, "a.example").expect("an answer");
            look_up_by_tcp(&world.client, server, "b.example");
            let count = round as u64 + 1;
            assert_eq!((dns.udp.load(Relaxed), dns.tcp.load(Relaxed)), (count, count), "{server}");
        }
    }
    // The server's own address is asked as ever.
    look_up(&world.client, "a.example").expect("an answer");
    look_up_by_tcp(&world.client, SERVER, "b.example");
    assert_eq!((dns[0].udp.load(Relaxed), dns[0].tcp.load(Relaxed)), (4, 4));
}

#[test]
fn the_service_answers_hosts_that_ask_the_gateway_itself() {
    if !root() {
        return;
    }
    let (mut world, _programs) = with_names_and_node(true, "", asked_itself);
    let dns = serve_dns(&world.server, true);
    look_up_at(&world.client, GATEWAY, "a.example").expect("an answer");
    look_up_by_tcp(&world.client, GATEWAY, "a.example");
    look_up_at(&world.client, GATEWAY, "a.example").expect("an answer");
    look_up(&world.client, "a.example").expect("an answer");
    assert_eq!((dns.udp.load(Relaxed), dns.tcp.load(Relaxed)), (0, 1));
    // A reload takes the line away: nobody at the gateway answers.
    world.a.configure(|s| s.node = s.node.replace("\ndns = ", "\n# dns = "));
    world.a.signal("HUP");
    world.a.wait_for_log("the configuration was read again");
    wait_for("a refusal", || match crate::tcp::try_connect(&world.client, GATEWAY) {
        Err(e) if e.kind() == ErrorKind::ConnectionRefused => Ok(()),
        other => Err(format!("{other:?}")),
    });
    look_up(&world.client, "a.example").expect("an answer");
}

#[test]
fn names_of_a_server_without_tcp_and_of_a_peer_without_the_service_pass_as_ever() {
    if !root() {
        return;
    }
    for both in [true, false] {
        let (world, _programs) = with_names(both);
        let dns = serve_dns(&world.server, false);
        for name in ["a.example", "b.example", "a.example"] {
            look_up(&world.client, name).expect("an answer");
        }
        assert_eq!(dns.udp.load(Relaxed), 3);
    }
}

#[test]
fn questions_by_tcp_are_answered_from_memory_and_what_is_none_reaches_the_server() {
    if !root() {
        return;
    }
    let (world, _programs) = with_names(true);
    let dns = serve_dns(&world.server, true);
    let by_tcp =
        |message: &[u8]| (message.len() as u16).to_be_bytes().into_iter().chain(message.to_vec());
    let heard = |stream: &mut TcpStream| {
        let mut len = [0; 2];
        stream.read_exact(&mut len).expect("an answer");
        let mut answer = vec![0; u16::from_be_bytes(len).into()];
        stream.read_exact(&mut answer).expect("an answer");
        assert_eq!((&answer[..2], &answer[answer.len() - 4..]), (&[7, 9][..], &[10, 2, 0, 2][..]));
    };
    look_up(&world.client, "a.example").expect("an answer");
    assert_eq!(dns.tcp.load(Relaxed), 1);
    // Two at once: one is known, the other is asked for.
    let mut stream = crate::tcp::connect(&world.client, SERVER);
    let both = ["a.example", "b.example"].map(|name| by_tcp(&question(name)));
    let both: Vec<u8> = both.into_iter().flatten().collect();
    stream.write_all(&both).expect("a question");
    heard(&mut stream);
    heard(&mut stream);
    assert_eq!(dns.tcp.load(Relaxed), 2);
    stream.shutdown(std::net::Shutdown::Write).expect("an end");
    assert_eq!(stream.read(&mut [0]).expect("an end"), 0);
    // Two questions in one message: the server's to answer, on a connection of its own.
    let mut odd = question("c.example");
    odd[5] = 2;
    odd.extend(odd[12..].to_vec());
    let mut stream = crate::tcp::connect(&world.client, SERVER);
    stream.write_all(&by_tcp(&odd).collect::<Vec<u8>>()).expect("a question");
    heard(&mut stream);
    assert_eq!(dns.tcp.load(Relaxed), 3);
    let counters = service(&world.a).counters;
    assert_eq!(service(&world.a).gateway["passed"], 1, "{counters:?}");
}

#[test]
fn a_host_that_sends_a_long_message_by_tcp_leaves_the_others_what_is_known() {
    if !root() {
        return;
    }
    let (world, _programs) = with_names(true);
    let dns = serve_dns(&world.server, true);
    look_up(&world.client, "a.example").expect("an answer");
    let pid = service(&world.a).pid;
    // No question, and as long as a message may be.
    let mut stream = crate::tcp::connect(&world.client, SERVER);
    stream.write_all(&[0xff; 2 + 65_535]).expect("a message");
    wait_for("it to be passed", || match service(&world.a).gateway["passed"] {
        1 => Ok(()),
        passed => Err(format!("{passed} passed")),
    });
    look_up(&world.client, "a.example").expect("an answer");
    assert_eq!(service(&world.a).pid, pid, "it goes on");
    assert_eq!((dns.udp.load(Relaxed), dns.tcp.load(Relaxed)), (0, 1), "it knows what it knew");
}

/// A question for records of this type, with DNSSEC's flag if signatures are wanted.
fn question_for(name: &str, kind: u8, signed: bool) -> Vec<u8> {
    let mut query = question(name);
    let at = query.len() - 3;
    query[at] = kind;
    if signed {
        query[11] = 1;
        query.extend([0, 0, 41, 4, 208, 0, 0, 0x80, 0, 0, 0]);
    }
    query
}

/// An answer by name: an address with a signature, an HTTPS record with HTTP/3, or an address that
/// holds for a second.
fn odd_answer(query: &[u8]) -> Vec<u8> {
    let end = 12 + query[12..].iter().position(|b| *b == 0).expect("a name") + 5;
    let mut out = query[..end].to_vec();
    (out[2], out[3]) = (0x81, 0xa0);
    out[6..12].copy_from_slice(&[0, 1, 0, 0, 0, 0]);
    let mut record = |kind: u8, ttl: u8, data: &[u8]| {
        out.extend([0xc0, 12, 0, kind, 0, 1, 0, 0, 0, ttl, 0, data.len() as u8]);
        out.extend(data);
    };
    match query[13] {
        b's' => record(1, 1, &[10, 2, 0, 2]),
        b'h' => record(65, 60, b"\x00\x01\x00\x00\x01\x00\x06\x02h3\x02h2"),
        _ => {
            record(1, 60, &[10, 2, 0, 2]);
            let signature: Vec<u8> = (0..90).collect();
            record(46, 60, &signature);
            out[7] = 2;
        }
    }
    if query[11] == 1 {
        out[11] = 1;
        out.extend([0, 0, 41, 4, 208, 0, 0, 0x80, 0, 0, 0]);
    }
    out
}

#[test]
fn records_pass_as_they_are_by_ipv6_too_but_for_http3_where_quic_is_refused() {
    if !root() {
        return;
    }
    const SERVER6: &str = "[fd02::2]:53";
    let (world, _programs) = with_names_and(true, "quic = \"refuse\"\n");
    let listener = world.server.run(|| TcpListener::bind(SERVER6)).expect("a listener");
    let mute = Arc::new(AtomicBool::new(false));
    let is_mute = Arc::clone(&mute);
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            if !is_mute.load(Relaxed) {
                // A gateway that goes away ends the question.
                let _ = serve_one(stream, odd_answer);
            }
        }
    });
    let ask = |name: &str, kind: u8, signed: bool| {
        let socket = world.client.run(|| UdpSocket::bind("[fd01::2]:0")).expect("a socket");
        socket.connect(SERVER6).expect("an address");
        socket.set_read_timeout(Some(Duration::from_secs(8))).expect("a socket");
        let query = question_for(name, kind, signed);
        socket.send(&query).expect("a question");
        let mut room = [0; 1500];
        let n = socket.recv(&mut room).expect("an answer");
        (room[..n].to_vec(), odd_answer(&query))
    };
    let (heard, said) = ask("Dnssec.example", 1, true);
    assert_eq!(heard, said, "signatures and flags, over the link");
    let (mut heard, said) = ask("Dnssec.example", 1, true);
    // Its TTLs may be less by now.
    let ttls = said.iter().zip(&heard).filter(|(a, b)| a != b).count();
    assert!(ttls <= 2 && heard.len() == said.len(), "{heard:?}");
    heard = ask("https.example", 65, true).0;
    assert!(heard.windows(3).any(|w| w == b"\x02h3"), "it is signed: {heard:?}");
    heard = ask("https.example", 65, false).0;
    assert!(heard.windows(6).any(|w| w == b"\x02\x0a\x0a\x02h2"), "{heard:?}");
    assert_eq!(heard[3] & 0x20, 0, "nobody has verified that");
    // The server says nothing more: what is past its time is served with a short one.
    let (heard, said) = ask("stale.example", 1, false);
    assert_eq!(heard, said);
    mute.store(true, Relaxed);
    thread::sleep(Duration::from_millis(1200));
    let (heard, mut stale) = ask("stale.example", 1, false);
    let at = stale.len() - 7;
    stale[at] = 30;
    assert_eq!(heard, stale);
    assert_eq!(service(&world.a).gateway["passed"], 0);
}

#[test]
fn while_a_server_refuses_what_was_known_is_served_each_time() {
    if !root() {
        return;
    }
    let (world, _programs) = with_names(true);
    let listener = world.server.run(|| TcpListener::bind(SERVER)).expect("a listener");
    let (refuses, asked) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let (is_refusing, count) = (refuses.clone(), asked.clone());
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // REFUSED, as many say it: the head alone.
            let refused = |query: &[u8]| [&query[..2], &[0x81, 0x85], &[0; 8]].concat();
            let said = match is_refusing.load(Relaxed) {
                true => serve_one(stream, refused),
                false => serve_one(stream, odd_answer),
            };
            count.fetch_add(u64::from(said.is_ok()), Relaxed);
        }
    });
    let names = ["s1.example", "s2.example"];
    let look_up_all = || {
        for name in names {
            look_up(&world.client, name).expect("an answer");
        }
    };
    look_up_all();
    refuses.store(true, Relaxed);
    thread::sleep(Duration::from_millis(1200));
    look_up_all();
    let before = crossed(&world);
    let questions = asked.load(Relaxed);
    assert!(questions > 2, "it is asked, and refuses");
    look_up_all();
    look_up_all();
    assert_eq!((crossed(&world), asked.load(Relaxed)), (before, questions), "for half a minute");
    let counters = service(&world.a).counters;
    assert_eq!(service(&world.a).gateway["passed"], 0, "{counters:?}");
}

/// Bytes of hosts and services that have crossed to the peer and from it, once nothing is under
/// way.
fn crossed(world: &World) -> [u64; 2] {
    let now = || {
        let link = world.a.status().links.remove(0);
        [link.send.lan_bytes, link.receive.lan_bytes]
    };
    wait_for("a link on which nothing crosses", || {
        let before = now();
        thread::sleep(Duration::from_millis(500));
        if now() == before { Ok(before) } else { Err(format!("{before:?}")) }
    })
}

/// A terminal that has forgotten all stands for another: the hub knows it by no question of its
/// own.
#[test]
fn a_second_look_up_sends_nothing_and_a_page_that_was_seen_sends_one_question() {
    if !root() {
        return;
    }
    let (world, _programs) = with_names(true);
    let dns = serve_dns(&world.server, true);
    let page: Vec<_> = (0..6).map(|n| format!("host{n}.example")).collect();
    for name in &page {
        look_up(&world.client, name).expect("an answer");
    }
    let before = crossed(&world);
    for name in page.iter().chain(&page) {
        let took = look_up(&world.client, name).expect("an answer");
        assert!(took < Duration::from_millis(100), "less than a round trip: {took:?}");
    }
    assert_eq!(crossed(&world), before, "nothing crosses for what is known");
    let pid = service(&world.a).pid.expect("a process");
    let kill = Command::new("kill").args(["-9", &pid.to_string()]).status();
    assert!(kill.expect("kill").success());
    wait_for("another one", || match service(&world.a) {
        it if it.state == ServiceState::Running && it.pid != Some(pid) => Ok(()),
        it => Err(format!("{it:?}")),
    });
    let asked = dns.tcp.load(Relaxed);
    look_up(&world.client, &page[0]).expect("an answer");
    let after_the_first = crossed(&world);
    for name in &page[1..] {
        look_up(&world.client, name).expect("an answer");
    }
    assert_eq!(crossed(&world), after_the_first, "one look-up brings the names of a page");
    assert_eq!(dns.tcp.load(Relaxed), asked + 1, "the hub knew five of them");
}
