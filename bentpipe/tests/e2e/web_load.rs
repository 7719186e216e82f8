//! `bentpipe-web` under load. What it took is printed; times are nobody's to assert here.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use crate::gateway::Gateway;
use crate::harness::{World, root_alone, wait_long_for};
use crate::tcp::{connect, pattern};
use crate::web::{AT, Server, service, sized, wait_for_count, world_with};
use crate::web_cache::with_directory;

const SMALL: usize = 10_000;
const LARGE: usize = 2_000_000;
/// Clients that never come to the end of a request.
const SLOW: usize = 10_000;
/// What they do, in a process of their own: one alone may not have both ends of so many
/// connections.
const SLOW_CLIENTS: &str = "\
import socket, sys
all = []
for n in range(int(sys.argv[1])):
    it = socket.create_connection(('10.2.0.2', 80), 60)
    it.sendall(b'GET /small HTTP/1.1\\r\\nHost: ')
    all.append(it)
print(flush=True)
for line in sys.stdin:
    for it in all:
        it.sendall(b'a')
    print(flush=True)
";
/// Exchanges at once, and bytes of their answers.
const AT_ONCE: usize = 2_000;
const EACH: usize = 100_000;

static HELD: AtomicUsize = AtomicUsize::new(0);
static FREE: AtomicBool = AtomicBool::new(false);
static SPEAKS: AtomicBool = AtomicBool::new(false);

fn site(head: &str, _: &[u8]) -> (String, Vec<u8>) {
    let target = head.split(' ').nth(1).unwrap_or("");
    let (mut fields, body) = match target {
        "/small" => sized(pattern(1, SMALL)),
        "/large" => sized(pattern(2, LARGE)),
        _ => {
            HELD.fetch_add(1, Relaxed);
            while !FREE.load(Relaxed) {
                thread::sleep(Duration::from_millis(50));
            }
            sized(vec![b'x'; EACH])
        }
    };
    fields.insert_str(fields.len() - 2, "Cache-Control: max-age=600\r\n");
    (fields, body)
}

/// Answers what is small, and nothing else for now.
fn silent(head: &str, body: &[u8]) -> (String, Vec<u8>) {
    while !head.starts_with("GET /small ") && !SPEAKS.load(Relaxed) {
        thread::sleep(Duration::from_millis(50));
    }
    site("GET /small ", body)
}

/// Asks on an open connection, and reads an answer of this length.
fn ask(stream: &mut TcpStream, path: &str, length: usize, room: &mut [u8]) {
    let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("a request");
    let mut head = Vec::new();
    let mut had = 0;
    loop {
        let n = stream.read(room).expect("an answer");
        assert!(n > 0, "it ends after {had} bytes");
        if head.is_empty() || !head.windows(4).any(|w| w == b"\r\n\r\n") {
            head.extend_from_slice(&room[..n]);
            let Some(at) = head.windows(4).position(|w| w == b"\r\n\r\n") else { continue };
            assert!(head.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&head));
            had = head.len() - at - 4;
        } else {
            had += n;
        }
        if had >= length {
            assert_eq!(had, length);
            return;
        }
    }
}

/// Mbit/s of bodies over eight connections for a while.
fn rate(world: &World, path: &'static str, length: usize) -> u64 {
    let begin = Instant::now();
    let streams: Vec<_> = (0..8).map(|_| connect(&world.client, AT)).collect();
    let work = |mut stream: TcpStream| {
        thread::spawn(move || {
            let mut room = vec![0; 256 << 10];
            let mut times = 0;
            while begin.elapsed() < Duration::from_secs(4) {
                ask(&mut stream, path, length, &mut room);
                times += 1;
            }
            times
        })
    };
    let threads: Vec<_> = streams.into_iter().map(work).collect();
    let times: usize = threads.into_iter().map(|t| t.join().expect("a client")).sum();
    (times * length * 8) as u64 / begin.elapsed().as_micros() as u64
}

fn median(world: &World, path: &str, length: usize) -> Duration {
    let mut room = vec![0; 256 << 10];
    let mut stream = connect(&world.client, AT);
    let mut times: Vec<_> = (0..500)
        .map(|_| {
            let begin = Instant::now();
            ask(&mut stream, path, length, &mut room);
            begin.elapsed()
        })
        .collect();
    times.sort();
    times[times.len() / 2]
}

/// Connects as another host of the LAN, which `with_another_host` made.
fn connect_as_another(world: &World) -> TcpStream {
    let socket = world.client.run(|| {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None);
        let socket = socket.expect("a socket");
        let from: std::net::SocketAddr = "10.1.0.3:0".parse().expect("an address");
        socket.bind(&from.into()).expect("the other host");
        let to: std::net::SocketAddr = AT.parse().expect("an address");
        socket.connect_timeout(&to.into(), Duration::from_secs(30)).expect("a connection");
        socket
    });
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a time");
    stream
}

fn with_another_host(world: &World) {
    world.client.ip("address add 10.1.0.3/24 dev lan0").expect("an address");
}

fn resident(gateway: &Gateway) -> u64 {
    let pid = service(gateway).pid.expect("a process");
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("a process");
    let line = text.lines().find_map(|l| l.strip_prefix("VmRSS:")).expect("its memory");
    line.trim().trim_end_matches(" kB").trim().parse::<u64>().expect("a number") >> 10
}

#[test]
fn kept_answers_come_at_the_rate_of_a_lan() {
    if !root_alone() {
        return;
    }
    let (world, _programs) = world_with("web-rate", with_directory);
    let server = Server::start(&world.server, site);
    let mut room = vec![0; 256 << 10];
    for (path, length) in [("/small", SMALL), ("/large", LARGE)] {
        ask(&mut connect(&world.client, AT), path, length, &mut room);
    }
    wait_for_count(&world.a, "stored", 2);
    let small = (rate(&world, "/small", SMALL), median(&world, "/small", SMALL));
    let large = (rate(&world, "/large", LARGE), median(&world, "/large", LARGE));
    println!("10 kB from memory: {} Mbit/s, median {:?}", small.0, small.1);
    println!("2 MB from disk: {} Mbit/s, median {:?}; {} MB", large.0, large.1, resident(&world.a));
    assert_eq!(server.heads().len(), 2, "all from what is kept");
}

/// Clients that never come to the end of a request.
struct Slow {
    child: Child,
    ask: ChildStdin,
    done: BufReader<ChildStdout>,
}

impl Slow {
    fn start(world: &World, count: usize) -> Slow {
        let mut command = world.client.command("setpriv");
        command.args(["--pdeathsig", "KILL", "--", "python3", "-c", SLOW_CLIENTS]);
        command.arg(count.to_string()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("setpriv and python3 start");
        let ask = child.stdin.take().expect("a pipe");
        let done = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut slow = Slow { child, ask, done };
        slow.wait();
        slow
    }

    fn wait(&mut self) {
        let mut line = String::new();
        let read = self.done.read_line(&mut line).expect("a pipe");
        assert_eq!((read, line.as_str()), (1, "\n"), "a client has failed");
    }

    /// A byte more on each connection, which all stand.
    fn say_more(&mut self) {
        self.ask.write_all(b"\n").expect("a pipe");
        self.wait();
    }
}

impl Drop for Slow {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A request that does not come to its end holds no place of the service for long: its connection
/// is carried without it, and others are served all the while.
#[test]
#[ignore = "takes half a minute"]
fn thousands_of_slow_clients_keep_nobody_from_being_served() {
    if !root_alone() {
        return;
    }
    let (world, _programs) = world_with("web-slow", with_directory);
    with_another_host(&world);
    let server = Server::start(&world.server, site);
    let room = vec![0; 256 << 10];
    let begin = Instant::now();
    let mut slow = Slow::start(&world, SLOW);
    println!("{SLOW} slow clients are there after {:?}", begin.elapsed());
    let asked = |what: &str| {
        let begin = Instant::now();
        let mut stream = connect_as_another(&world);
        ask(&mut stream, "/small", SMALL, &mut room.clone());
        println!("{what}: an answer after {:?}", begin.elapsed());
    };
    asked("beside the slow clients");
    let beside = [resident(&world.a), resident(&world.b)];
    println!("MB at the terminal, the hub: {beside:?}");
    assert!(beside.iter().all(|mb| *mb <= 200), "{beside:?}");
    // A byte now and then holds no place either: they are carried without the service.
    for _ in 0..3 {
        thread::sleep(Duration::from_secs(5));
        slow.say_more();
        asked("meanwhile");
    }
    wait_long_for("the service's own answers", Duration::from_secs(30), || {
        match service(&world.a).counters.get("hits") {
            Some(1..) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
    slow.say_more();
    // The slow clients are one host, which took no place from the other one.
    wait_for_count(&world.a, "connections", 4);
    drop(server);
}

#[test]
fn two_thousand_exchanges_at_once_fit_into_200_mb_at_each_end() {
    if !root_alone() {
        return;
    }
    let (world, _programs) = world_with("web-many", with_directory);
    with_another_host(&world);
    let server = Server::start(&world.server, site);
    let mut streams: Vec<_> = (0..AT_ONCE)
        .map(|n| {
            // Of two hosts: one alone has places for 1,500.
            let mut stream = match n % 2 {
                0 => connect(&world.client, AT),
                _ => connect_as_another(&world),
            };
            let request = format!("GET /held/{n} HTTP/1.1\r\nHost: a\r\n\r\n");
            stream.write_all(request.as_bytes()).expect("a request");
            stream
        })
        .collect();
    let patience = Duration::from_secs(120);
    wait_long_for("all at the server", patience, || match HELD.load(Relaxed) {
        AT_ONCE => Ok(()),
        n => Err(format!("{n}\n{}", world.a.log())),
    });
    let waiting = [resident(&world.a), resident(&world.b)];
    // Now they come, and nobody reads.
    FREE.store(true, Relaxed);
    thread::sleep(Duration::from_secs(5));
    let unread = [resident(&world.a), resident(&world.b)];
    let mut room = vec![0; 256 << 10];
    for stream in &mut streams {
        let mut had = 0;
        while had < EACH {
            let n = stream.read(&mut room).expect("an answer");
            assert!(n > 0, "it ends after {had} bytes");
            had += n;
        }
    }
    let after = [resident(&world.a), resident(&world.b)];
    println!("MB at the terminal, the hub: {waiting:?} asked, {unread:?} unread, {after:?} after");
    assert_eq!(server.heads().len(), AT_ONCE);
    wait_for_count(&world.a, "connections", AT_ONCE as u64);
    let most = *[waiting, unread, after].as_flattened().iter().max().expect("some");
    assert!(most <= 200, "{waiting:?} {unread:?} {after:?}");
}

#[test]
fn one_host_with_long_targets_fits_into_250_mb_and_keeps_nobody_from_being_served() {
    if !root_alone() {
        return;
    }
    let (world, _programs) = world_with("web-long", with_directory);
    with_another_host(&world);
    let _server = Server::start(&world.server, silent);
    let mut room = vec![0; 256 << 10];
    ask(&mut connect_as_another(&world), "/small", SMALL, &mut room);
    wait_for_count(&world.a, "stored", 1);
    let long = "x".repeat(60_000);
    let streams: Vec<_> = (0..1_500)
        .map(|n| {
            let mut stream = connect(&world.client, AT);
            ask(&mut stream, "/small", SMALL, &mut room);
            let request = format!("GET /held/{n}/{long} HTTP/1.1\r\nHost: a\r\n\r\n");
            // Of one that is refused the rest is not taken.
            let _ = stream.write_all(request.as_bytes());
            stream
        })
        .collect();
    wait_long_for("all requests", Duration::from_secs(60), || {
        match service(&world.a).counters.get("requests") {
            Some(3_001..) => Ok(()),
            other => Err(format!("{other:?}\n{}", world.a.log())),
        }
    });
    let beside = [resident(&world.a), resident(&world.b)];
    println!("MB at the terminal, the hub: {beside:?}");
    ask(&mut connect_as_another(&world), "/small", SMALL, &mut room);
    assert!(beside.iter().all(|mb| *mb <= 250), "{beside:?}");
    SPEAKS.store(true, Relaxed);
    drop(streams);
}
