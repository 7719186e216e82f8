//! `bentpipe-web` ends or hangs in mid-page: browsers see resets, all others nothing, and the
//! service is back soon. And gateways end: at once where nobody waits for anything.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::Command;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use bentpipe::admin::ServiceState;
use units::BitRate;

use crate::gateway::Gateway;
use crate::harness::{Scratch, World, root, wait_long_for};
use crate::tcp::{End, accept, connect, expect, listen, pattern, read_to_end, send_all};
use crate::web::{AT, Server, read_head, service, sized, world_with};

/// A port whose connections no service gets.
const PLAIN: &str = "10.2.0.2:7000";
/// Far more than crosses while a service is ended.
const HUGE: usize = 100_000_000;
/// What crosses beside it.
const BESIDE: usize = 20_000_000;
/// The service is back within this time of its end.
const BACK: Duration = Duration::from_secs(2);
/// A service that hangs is ended after 10 s (S-FA-2).
const NOTICED: Duration = Duration::from_secs(15);

fn site(head: &str, _: &[u8]) -> (String, Vec<u8>) {
    match head.split(' ').nth(1).unwrap_or("") {
        "/huge" => sized(pattern(9, HUGE)),
        "/slow" => {
            thread::sleep(Duration::from_secs(3));
            sized(pattern(8, 50_000))
        }
        path => sized(path.as_bytes().to_vec()),
    }
}

fn network(label: &str) -> (World, Scratch) {
    world_with(label, |plan, _| plan.rate = BitRate::from_mbps(20))
}

fn ask(world: &World, path: &str) -> TcpStream {
    let mut stream = connect(&world.client, AT);
    stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a time");
    let request = format!("GET {path} HTTP/1.1\r\nHost: {AT}\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("a request");
    stream
}

/// A browser in mid-page.
fn browser(world: &World) -> TcpStream {
    let mut stream = ask(world, "/huge");
    let head = read_head(&mut stream).expect("an answer");
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    stream.read_exact(&mut [0; 10_000]).expect("its first bytes");
    stream
}

/// Two connections past the service: one that rests, and one that carries bytes all the while.
struct Others {
    near: TcpStream,
    far: TcpStream,
    sent: JoinHandle<std::io::Result<()>>,
    got: JoinHandle<(Vec<u8>, End)>,
    bytes: Vec<u8>,
}

impl Others {
    fn of(world: &World) -> Others {
        let listener = listen(&world.server, PLAIN);
        let pair = || {
            let near = connect(&world.client, PLAIN);
            (near, accept(&listener))
        };
        let (mut near, mut far) = pair();
        near.write_all(b"here").expect("a word");
        expect(&mut far, b"here");
        let (to, mut from) = pair();
        let bytes = pattern(4, BESIDE);
        let sent = send_all(&to, bytes.clone());
        let got = thread::spawn(move || {
            let got = read_to_end(&mut from);
            drop(to);
            got
        });
        Others { near, far, sent, got, bytes }
    }

    /// Nothing has happened to them.
    fn check(mut self) {
        self.far.write_all(b"still").expect("a connection that stands");
        expect(&mut self.near, b"still");
        self.sent.join().expect("a sender").expect("all is sent");
        assert!(self.got.join().expect("a reader") == (self.bytes, End::Clean), "all arrives");
    }
}

fn signal(gateway: &Gateway, name: &str) {
    let pid = service(gateway).pid.expect("a process").to_string();
    assert!(Command::new("kill").args([&format!("-{name}"), &pid]).status().unwrap().success());
}

/// Waits for the service's next start; when that was.
fn next_start(gateway: &Gateway, starts: u64, within: Duration) -> Instant {
    wait_long_for("another start", within, || match service(gateway) {
        now if now.starts > starts && now.state == ServiceState::Running => Ok(()),
        now => Err(format!("{now:?}\n{}", gateway.log())),
    });
    Instant::now()
}

/// A request that the service answers.
fn check_service(world: &World) {
    wait_long_for("a request that the service has", Duration::from_secs(10), || {
        let mut stream = ask(world, "/again");
        read_head(&mut stream).ok_or("no answer")?;
        let requests = service(&world.a).counters.get("requests").copied();
        requests.filter(|n| *n > 0).map(drop).ok_or(format!("{requests:?}"))
    });
}

/// Ends the service at one end by a signal while browsers read; all of them are reset.
fn end_by(world: &World, gateway: &Gateway, name: &str) {
    let browsers: Vec<TcpStream> = (0..3).map(|_| browser(world)).collect();
    let others = Others::of(world);
    let starts = service(gateway).starts;
    let begin = Instant::now();
    signal(gateway, name);
    let back = next_start(gateway, starts, Duration::from_secs(30)) - begin;
    println!("SIG{name} at {}: back after {back:?}", gateway.name());
    for mut browser in browsers {
        let (had, end) = read_to_end(&mut browser);
        assert!(end == End::Reset && had.len() < HUGE, "{end:?} after {} bytes", had.len());
    }
    assert!(back <= BACK, "it is back after {back:?}");
    check_service(world);
    others.check();
}

#[test]
fn a_service_that_is_killed_or_crashes_in_mid_page_resets_its_browsers_and_nobody_else() {
    if !root() {
        return;
    }
    // Each in a network of its own: a service that ends again is started later.
    for (name, at_hub) in [("KILL", false), ("ABRT", false), ("KILL", true)] {
        let (world, _programs) = network("web-ended");
        let _server = Server::start(&world.server, site);
        let gateway = if at_hub { &world.b } else { &world.a };
        end_by(&world, gateway, name);
    }
}

#[test]
#[ignore = "a service that hangs is noticed after 10 s"]
fn a_service_that_hangs_in_mid_page_is_ended_and_resets_its_browsers_and_nobody_else() {
    if !root() {
        return;
    }
    let (world, _programs) = network("web-hangs");
    let _server = Server::start(&world.server, site);
    let mut browsers: Vec<TcpStream> = (0..3).map(|_| browser(&world)).collect();
    let others = Others::of(&world);
    let starts = service(&world.a).starts;
    let begin = Instant::now();
    signal(&world.a, "STOP");
    // One more, whom the service does not take.
    let mut late = ask(&world, "/late");
    for browser in &mut browsers {
        assert_eq!(read_to_end(browser).1, End::Reset);
    }
    let noticed = Instant::now();
    println!("noticed after {:?}", noticed - begin);
    assert!(noticed - begin <= NOTICED, "noticed after {:?}", noticed - begin);
    let back = next_start(&world.a, starts, Duration::from_secs(30)) - noticed;
    println!("back {back:?} later");
    assert!(back <= BACK, "it is back after {back:?}");
    assert_eq!(read_to_end(&mut late).1, End::Reset);
    check_service(&world);
    others.check();
}

/// A gateway ends, for which connections have 10 s.
fn end(gateway: &mut Gateway) -> Duration {
    let begin = Instant::now();
    gateway.signal("TERM");
    gateway.wait_until_ended();
    println!("{} ended after {:?}", gateway.name(), begin.elapsed());
    begin.elapsed()
}

#[test]
fn a_gateway_waits_for_what_its_service_has_under_way_and_for_no_exchange_that_rests() {
    if !root() {
        return;
    }
    let (mut world, _programs) = network("web-ends");
    let _server = Server::start(&world.server, site);
    // At either end: the hub has requests of the other's hosts.
    for at_hub in [true, false] {
        check_service(&world);
        let mut slow = ask(&world, "/slow");
        thread::sleep(Duration::from_secs(1));
        let took = end(if at_hub { &mut world.b } else { &mut world.a });
        let head = read_head(&mut slow).expect("an answer");
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        expect(&mut slow, &pattern(8, 50_000));
        assert!(took < Duration::from_secs(9), "it took {took:?}");
        let ended = if at_hub { &mut world.b } else { &mut world.a };
        assert!(ended.log().contains("a service has ended"), "{}", ended.log());
        ended.start();
        world.a.wait_until_up();
        world.b.wait_until_up();
    }
}
