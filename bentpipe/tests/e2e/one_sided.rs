//! One gateway, and nothing of ours at the far end of the satellite (`mode = "split"`, R-SPLIT-2),
//! by the file that the operator's guide prints.
//!
//! The satellite's other router forwards packets and knows of nothing.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use os::netns::NetNs;
use units::{BitRate, Ratio};

use crate::documents::{GUIDE, put, toml};
use crate::harness::{
    Daemon, LAN, PATIENCE, Plan, SATELLITE, World, must, pings_over_losses, root, root_alone, run,
    said, wait_for,
};
use crate::tcp::{
    CLIENT, End, SERVER, SERVER_V6, accept, connect, end_within, expect, joined, listen, pattern,
    read_to_end, reset, stop_listening, try_connect,
};

const KEY: &str = "YD1HnZVjGzWeJiM3DMcUGA3nWrJsJTEUlRMjOSmpYAU=";

/// The network with routes past all gateways, and none of them started.
fn network(plan: Plan) -> World {
    let world = World::without_gateways(&Plan { clear_routes: true, ..plan });
    // Routers resolve their neighbours from link-local addresses, which the emulator's ports lack.
    for (ns, address) in [(&world.gwa, "fe80::a/64"), (&world.gwb, "fe80::b/64")] {
        ns.address(SATELLITE, address).expect("an address");
    }
    // The kernel's default here may be anything.
    for ns in [&world.client, &world.server] {
        ns.sysctl("net.ipv4.tcp_congestion_control", "reno").expect("a parameter");
    }
    world
}

/// The guide's file, with this network's interfaces.
fn guide() -> String {
    let text = toml(GUIDE, "### A link with a gateway at one end only");
    let text = put(text, "«private key»", KEY);
    let text = put(&text, "\"eth1\"", &format!("{LAN:?}"));
    put(&text, "\"wwan0\"", &format!("{SATELLITE:?}"))
}

/// The same about another link.
fn with_link(link: &str) -> String {
    let old = "profile     = \"geo-20-2\"\nend         = \"terminal\"\n";
    put(&guide(), old, &format!("link = {{ {link} }}\n"))
}

/// A gateway in `ns` alone.
struct Alone {
    program: Daemon,
    log: PathBuf,
}

impl Alone {
    fn start(world: &World, ns: &NetNs, text: &str) -> Alone {
        Alone::start_by("", world, ns, text)
    }

    /// By a command that changes what it may have.
    fn start_by(command: &str, world: &World, ns: &NetNs, text: &str) -> Alone {
        let dir = world.dir("alone");
        let (file, log) = (dir.join("alone.toml"), dir.join("log"));
        let admin = format!("[node]\nadmin = {:?}\n", dir.join("admin").display().to_string());
        let text = put(text, "[node]\n", &admin);
        fs::write(&file, text).expect("a file");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("permissions");
        let bentpipe = env!("CARGO_BIN_EXE_bentpipe");
        let own = format!("{command} env STATE_DIRECTORY={}", dir.display());
        let program =
            Daemon::start(ns, &format!("{own} {bentpipe} -v up {}", file.display()), &log);
        let alone = Alone { program, log };
        wait_for("the gateway", || {
            let said = alone.said();
            said.contains("TCP is split at this end").then_some(()).ok_or(said)
        });
        alone
    }

    /// What `bentpipe status` shows.
    fn status(&self, world: &World) -> String {
        let mut status = world.gwa.command(env!("CARGO_BIN_EXE_bentpipe"));
        let socket = world.dir("alone").join("admin");
        said(&run(status.arg("status").arg("--socket").arg(socket)))
    }

    /// Ends it as `systemctl stop` does.
    fn stop(self) {
        self.program.stop();
    }

    fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }
}

/// Sends `len` bytes to the server and waits until it has all and says so.
fn upload(world: &World, len: usize) -> Duration {
    let listener = listen(&world.server, SERVER);
    let bytes = pattern(7, len);
    let begin = Instant::now();
    let mut near = connect(&world.client, SERVER);
    let long = Some(Duration::from_secs(300));
    near.set_write_timeout(long).expect("a socket");
    near.set_read_timeout(long).expect("a socket");
    let mut far = accept(&listener);
    far.set_read_timeout(long).expect("a socket");
    assert_eq!(far.peer_addr().expect("an address").ip().to_string(), "10.1.0.2");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            near.write_all(&bytes).expect("it is taken");
            near.shutdown(Shutdown::Write).expect("an end");
            expect(&mut near, b"thanks");
            assert_eq!(read_to_end(&mut near), (Vec::new(), End::Clean));
        });
        let (got, end) = read_to_end(&mut far);
        assert!(got == bytes && end == End::Clean, "every byte arrives");
        far.write_all(b"thanks").expect("it is taken");
        drop(far);
    });
    begin.elapsed()
}

/// The routes of the table for sockets towards the link.
fn leg_routes(ns: &NetNs) -> String {
    must(ns, "ip -4 route show table 25193")
}

#[test]
fn routes_that_change_are_followed_and_what_fails_is_tried_again() {
    if !root_alone() {
        return;
    }
    let world = network(Plan::default());
    let alone = Alone::start(&world, &world.gwa, &guide());
    let route = |words: &str| must(&world.gwa, &format!("ip -4 route {words}"));
    let followed = |what: &str, there: bool| {
        wait_for(what, || {
            let routes = leg_routes(&world.gwa);
            (routes.contains(what) == there).then_some(()).ok_or(routes)
        });
    };
    route(&format!("add 10.60.0.0/16 dev {SATELLITE}"));
    followed("10.60.0.0/16", true);
    route("delete 10.60.0.0/16");
    followed("10.60.0.0/16", false);
    // The system keeps a route whose gateway it no longer reaches, but takes no new one.
    route(&format!("add 10.61.0.0/24 dev {SATELLITE}"));
    route("add 10.62.0.0/16 via 10.61.0.1");
    followed("10.62.0.0/16", true);
    route("delete 10.61.0.0/24");
    followed("10.61.0.0/24", false);
    route("delete 10.62.0.0/16 table 25193");
    // Nothing more is told meanwhile.
    wait_for("the status to say so", || {
        let said = alone.status(&world);
        said.contains("routes       as they were, and tried again").then_some(()).ok_or(said)
    });
    wait_for("attempts", || {
        let said = alone.said();
        let attempts = said.matches("interception cannot be mended").count();
        (attempts >= 3).then_some(()).ok_or(said)
    });
    route(&format!("add 10.61.0.0/24 dev {SATELLITE}"));
    followed("10.62.0.0/16", true);
    wait_for("the end of it", || {
        let said = alone.said();
        said.contains("rules and routes are as they should be").then_some(()).ok_or(said)
    });
    let status = alone.status(&world);
    assert!(!status.contains("as they were"), "{status}");
}

#[test]
fn without_its_devices_the_gateway_ends_with_an_error() {
    if !root() {
        return;
    }
    let world = network(Plan::default());
    let mut alone = Alone::start(&world, &world.gwa, &guide());
    must(&world.gwa, "ip link delete bp-split-out");
    let outcome = alone.program.wait_until_ended(PATIENCE);
    let said = alone.said();
    assert!(!outcome.success() && said.contains("the TUN device is gone"), "{outcome}\n{said}");
}

#[test]
fn a_transfer_goes_on_while_the_gateway_ends() {
    if !root() {
        return;
    }
    let world = network(Plan { rate: BitRate::from_mbps(10), ..Plan::default() });
    let link = "send = \"10Mbit\", receive = \"10Mbit\", delay = \"50ms\"";
    let alone = Alone::start(&world, &world.gwa, &with_link(link));
    let listener = listen(&world.server, SERVER);
    let (mut near, mut far) = joined(&world.client, &listener);
    // Some two seconds of the link. The client is through when the gateway's system has the last
    // bytes, and the server not before it has them.
    let bytes = pattern(7, 2_000_000);
    far.shutdown(Shutdown::Write).expect("an end");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            near.write_all(&bytes).expect("it is taken");
            near.shutdown(Shutdown::Write).expect("an end");
            assert_eq!(read_to_end(&mut near), (Vec::new(), End::Clean));
        });
        let mut got = vec![0; 100_000];
        far.read_exact(&mut got).expect("the first bytes");
        scope.spawn(|| alone.stop());
        let (rest, end) = read_to_end(&mut far);
        got.extend(rest);
        assert!(got == bytes && end == End::Clean, "{} bytes, {end:?}", got.len());
    });
}

#[test]
fn a_host_with_all_the_connections_there_are_leaves_room_for_another() {
    if !root() {
        return;
    }
    let world = network(Plan::default());
    let link = "send = \"20Mbit\", receive = \"20Mbit\", delay = \"10ms\"";
    let text = with_link(link);
    // Of 320 descriptors 40 connections may have a quarter.
    let few = "prlimit --nofile=320:320";
    let alone = Alone::start_by(few, &world, &world.gwa, &text);
    let (v4, v6) = (listen(&world.server, SERVER), listen(&world.server, SERVER_V6));
    let mut of_one: Vec<_> = (0..40).map(|_| joined(&world.client, &v4)).collect();
    let talk = |(near, far): &mut (TcpStream, TcpStream)| {
        near.write_all(b"there?").expect("it is taken");
        expect(far, b"there?");
    };
    talk(&mut of_one[0]);
    // A host of another network.
    let mut of_other = joined(&world.client, &v6);
    talk(&mut of_other);
    let (near, far) = &mut of_one[0];
    assert_eq!((read_to_end(near).1, read_to_end(far).1), (End::Reset, End::Reset));
    // One more of the host's own costs it another.
    talk(&mut joined(&world.client, &v4));
    assert_eq!(read_to_end(&mut of_one[1].0).1, End::Reset);
    of_one[2..].iter_mut().for_each(talk);
    talk(&mut of_other);
    drop(alone);
}

#[test]
fn a_transfer_over_a_lossy_satellite_is_much_faster_with_one_gateway() {
    if !root_alone() {
        return;
    }
    let world = network(Plan {
        rate: BitRate::from_mbps(10),
        delay_ms: 250,
        loss: Ratio::from_f64(0.01),
        ..Plan::default()
    });
    const LEN: usize = 1_500_000;
    let without = upload(&world, LEN);
    let link = "send = \"10Mbit\", receive = \"10Mbit\", delay = \"250ms\", loss = 0.01";
    let alone = Alone::start(&world, &world.gwa, &with_link(link));
    // The kernel's TCP may lose one segment several times, and wait for it: seldom three times
    // running.
    let (mut with, mut more) = (upload(&world, LEN), 0);
    while with * 2 >= without && more < 2 {
        eprintln!("{with:?} with, {without:?} without: once more");
        (with, more) = (upload(&world, LEN), more + 1);
    }
    eprintln!("1.5 MB over 10 Mbit/s, 500 ms, 1 % lost: {without:?} without, {with:?} with");
    assert!(with * 2 < without, "{with:?} with, {without:?} without\n{}", alone.said());
    // What is not TCP goes as it always did.
    pings_over_losses(&world.client, "10.2.0.2");
    let counted = must(&world.gwa, "nft list ruleset");
    assert!(counted.contains("bp-split-out"), "{counted}");
    // `status` shows the link, which has no session.
    let shown = alone.status(&world);
    assert!(shown.contains("peer internet, split at this end alone"), "{shown}");
    assert!(shown.contains(&format!(" {} in all", 1 + more)), "{shown}");
    drop(alone);
    // Nothing of it is left, and hosts are served by the kernel as before.
    wait_for("the rules to go", || {
        let left = must(&world.gwa, "nft list ruleset; ip rule; ip -6 rule");
        match left.contains("bp-split") || left.contains("proto 144") {
            true => Err(left),
            false => Ok(()),
        }
    });
    let listener = listen(&world.server, SERVER);
    drop(connect(&world.client, SERVER));
    accept(&listener);
}

/// Half-close, resets both ways, refusals: as between any two hosts.
fn check_semantics(from: &NetNs, to: &NetNs, address: &str) {
    let listener = listen(to, address);
    let pair = || {
        let near = connect(from, address);
        (near, accept(&listener))
    };
    // A question that ends before the answer begins.
    let (mut near, mut far) = pair();
    near.write_all(b"question").expect("it is taken");
    near.shutdown(Shutdown::Write).expect("an end");
    assert_eq!(read_to_end(&mut far), (b"question".to_vec(), End::Clean));
    far.write_all(&pattern(3, 100_000)).expect("it is taken");
    drop(far);
    let (answer, end) = read_to_end(&mut near);
    assert!(answer == pattern(3, 100_000) && end == End::Clean, "{} {end:?}", answer.len());
    // A reset is a reset at the other end.
    let (near, mut far) = pair();
    reset(near);
    assert_eq!(end_within(&mut far, PATIENCE), Some(End::Reset));
    let (mut near, far) = pair();
    reset(far);
    assert_eq!(end_within(&mut near, PATIENCE), Some(End::Reset));
    stop_listening(listener);
    let refused = try_connect(from, address).expect_err("nobody listens");
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused, "{refused}");
}

#[test]
fn ends_and_refusals_mean_what_they_mean_in_both_directions_and_families() {
    if !root() {
        return;
    }
    let world = network(Plan::default());
    let alone = Alone::start(&world, &world.gwa, &guide());
    check_semantics(&world.client, &world.server, SERVER);
    check_semantics(&world.client, &world.server, SERVER_V6);
    // What begins beyond the satellite.
    check_semantics(&world.server, &world.client, CLIENT);
    check_semantics(&world.server, &world.client, "[fd01::2]:7000");
    // A server that no router knows: its router says so, and so does the gateway.
    let unknown = try_connect(&world.client, "10.2.0.77:7000").expect_err("nobody is there");
    assert_eq!(unknown.kind(), std::io::ErrorKind::HostUnreachable, "{unknown}\n{}", alone.said());
}

#[test]
fn a_single_host_splits_its_own_connections() {
    if !root() {
        return;
    }
    let world = network(Plan::default());
    let link = "send = \"40Mbit\", receive = \"40Mbit\", delay = \"50ms\"";
    let text = put(&with_link(link), &format!("lan         = [{LAN:?}]"), "own = true");
    let alone = Alone::start(&world, &world.gwa, &text);
    let listener = listen(&world.server, SERVER);
    let mut near = connect(&world.gwa, SERVER);
    let mut far = accept(&listener);
    let bytes = pattern(5, 1_000_000);
    std::thread::scope(|scope| {
        scope.spawn(|| near.write_all(&bytes).expect("it is taken"));
        let mut got = vec![0; bytes.len()];
        far.read_exact(&mut got).expect("all bytes arrive");
        assert!(got == bytes);
    });
    // The socket that crosses the satellite is the gateway's: it is marked and paced.
    let sockets = must(&world.gwa, "ss -tnmi dst 10.2.0.2");
    assert!(sockets.contains("fwmark:0x62700010") || sockets.contains("pacing_rate"), "{sockets}");
    let count = sockets.lines().filter(|line| line.contains("10.2.0.2:7000")).count();
    assert!(count >= 2, "the program's and the gateway's: {sockets}\n{}", alone.said());
    stop_listening(listener);
    let refused = try_connect(&world.gwa, SERVER).expect_err("nobody listens");
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused, "{refused}");
}
