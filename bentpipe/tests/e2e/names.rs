//! Names through the service `names` (spec/names.md): a DNS server behind one gateway, a client
//! behind the other.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, UdpSocket};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use bentpipe::admin::ServiceState;
use os::netns::NetNs;

use crate::accelerators::{program, serve, service, wait_until_running};
use crate::gateway::Settings;
use crate::harness::{Scratch, World, root, wait_for};

const SERVER: &str = "10.2.0.2:53";

fn with_names(both: bool) -> (World, Scratch) {
    let programs = Scratch::new("names");
    let at = program("bentpipe-names", &programs);
    let page = include_str!("../../../docs/names.md");
    let serve = |settings: &mut Settings| serve(settings, page, "bentpipe-names", &at);
    let world = World::with(|plan| {
        serve(&mut plan.a);
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
struct Dns {
    udp: Arc<AtomicU64>,
    tcp: Arc<AtomicU64>,
}

fn answer(query: &[u8]) -> Vec<u8> {
    let name = query[12..].iter().position(|b| *b == 0).expect("a name");
    let mut out = query[..12 + name + 5].to_vec();
    (out[2], out[3]) = (0x81, 0x80);
    out[6..12].copy_from_slice(&[0, 1, 0, 0, 0, 0]);
    out.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 1, 44, 0, 4, 10, 2, 0, 2]);
    out
}

fn serve_dns(ns: &NetNs, by_tcp: bool) -> Dns {
    let dns = Dns { udp: Arc::default(), tcp: Arc::default() };
    let socket = ns.run(|| UdpSocket::bind(SERVER)).expect("a socket");
    let count = dns.udp.clone();
    thread::spawn(move || {
        let mut room = [0; 1500];
        while let Ok((n, from)) = socket.recv_from(&mut room) {
            count.fetch_add(1, Relaxed);
            let _ = socket.send_to(&answer(&room[..n]), from);
        }
    });
    if by_tcp {
        let listener = ns.run(|| TcpListener::bind(SERVER)).expect("a listener");
        let count = dns.tcp.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { return };
                let mut len = [0; 2];
                if stream.read_exact(&mut len).is_err() {
                    continue;
                }
                let mut query = vec![0; u16::from_be_bytes(len).into()];
                stream.read_exact(&mut query).expect("a question");
                count.fetch_add(1, Relaxed);
                let answer = answer(&query);
                let whole = [&(answer.len() as u16).to_be_bytes()[..], &answer].concat();
                stream.write_all(&whole).expect("an answer");
            }
        });
    }
    dns
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
fn look_up(client: &NetNs, name: &str) -> Option<Duration> {
    let socket = client.run(|| UdpSocket::bind("10.1.0.2:0")).expect("a socket");
    socket.connect(SERVER).expect("an address");
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
    let heard = |stream: &mut std::net::TcpStream| {
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
