//! Services: programs that gateways run, and what becomes of hosts' connections that rules give
//! to them (spec/service.md).

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use bentpipe::admin::{ServiceState, ServiceStatus};

use crate::accelerators::serve_text;
use crate::documents::{GUIDE, SERVICES, block, put, toml};
use crate::gateway::{Gateway, Settings};
use crate::harness::{
    PATIENCE, Plan, Scratch, World, install, root, root_alone, wait_for, wait_long_for,
};
use crate::tcp::{
    End, SERVER, SERVER_V6, accept, check_echo, connect, end_within, expect, joined, listen,
    pattern, read_to_end, reset, send_all, stop_listening,
};

/// The program `bentpipe-echo`, built as this test was.
fn echo() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    let built = BUILT.get_or_init(|| {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "--offline", "-p", "bentpipe-echo"]);
        if !cfg!(debug_assertions) {
            cargo.arg("--release");
        }
        assert!(cargo.status().expect("cargo").success(), "bentpipe-echo is built");
        Path::new(crate::gateway::PROGRAM).with_file_name("bentpipe-echo")
    });
    built.clone()
}

/// A directory from which every user may run programs.
struct Programs(Scratch);

impl Programs {
    fn new(label: &str) -> Programs {
        Programs(Scratch::new(&format!("programs-{label}")))
    }

    fn dir(&self) -> PathBuf {
        self.0.sub("bin")
    }

    /// A program that runs `bentpipe-echo`.
    fn echo(&self) -> String {
        let path = self.dir().join("bentpipe-echo");
        install(echo(), &path);
        format!("[{:?}]", path.display().to_string())
    }

    /// A command that runs this text in Python.
    fn python(&self, name: &str, text: &str) -> String {
        let path = self.dir().join(name);
        fs::write(&path, text).expect("a script");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("a mode");
        format!("[\"/usr/bin/python3\", {:?}]", path.display().to_string())
    }
}

/// The gateway runs the service "echo", to which it gives connections to the tests' ports.
fn serve(settings: &mut Settings, command: &str) {
    settings.node += &format!("\n[service.echo]\ncommand = {command}\n");
    settings.peer += "\n[[peer.rule]]\nports = [\"7000-7099\"]\nvia = \"echo\"\n";
}

fn service(gateway: &Gateway) -> ServiceStatus {
    gateway.status().services.first().cloned().expect("it has a service")
}

fn count(gateway: &Gateway, what: &str) -> u64 {
    service(gateway).gateway.get(what).copied().unwrap_or(0)
}

fn wait_until_running(gateway: &Gateway) {
    wait_for("a service that runs", || match service(gateway) {
        it if it.state == ServiceState::Running => Ok(()),
        it => Err(format!("{it:?}\n{}", gateway.log())),
    });
}

/// Both gateways run these commands.
fn with_services(commands: [&str; 2], change: impl FnOnce(&mut Plan)) -> World {
    let world = World::with(|plan| {
        serve(&mut plan.a, commands[0]);
        serve(&mut plan.b, commands[1]);
        change(plan);
    });
    wait_until_running(&world.a);
    wait_until_running(&world.b);
    world
}

fn with_echo(programs: &Programs) -> World {
    with_echo_and(programs, |_| {})
}

fn with_echo_and(programs: &Programs, change: impl FnOnce(&mut Plan)) -> World {
    let command = programs.echo();
    with_services([&command, &command], change)
}

#[test]
fn connections_go_through_services_with_their_addresses_ends_and_bytes() {
    if !root() {
        return;
    }
    let programs = Programs::new("through");
    let world = with_echo_and(&programs, |plan| {
        plan.keep();
        plan.open_to_shore();
    });
    for (n, at) in [SERVER, SERVER_V6].into_iter().enumerate() {
        let listener = listen(&world.server, at);
        check_echo(&world.client, &listener);
        let (mut near, mut far) = joined(&world.client, &listener);
        assert_eq!(near.peer_addr().unwrap(), at.parse().unwrap());
        assert_eq!(far.peer_addr().unwrap(), near.local_addr().unwrap(), "address and port");
        let data = pattern(5, 2_000_000);
        let sending = [send_all(&near, data.clone()), send_all(&far, data.clone())];
        assert!(read_to_end(&mut far) == (data.clone(), End::Clean));
        assert!(read_to_end(&mut near) == (data, End::Clean));
        sending.into_iter().for_each(|s| s.join().unwrap().unwrap());
        for (gateway, what) in [
            (&world.a, "accepted"),
            (&world.a, "opened"),
            (&world.b, "incoming"),
            (&world.b, "connected"),
        ] {
            assert_eq!(count(gateway, what), 2 * (n as u64 + 1), "{what} at {}", gateway.name());
        }
    }
    world.wait_until_no_streams();
    // And from the other side, whose rule says the same.
    check_echo(&world.server, &listen(&world.client, "10.1.0.2:7000"));
    assert_eq!((count(&world.b, "accepted"), count(&world.a, "connected")), (1, 1));
    // What no rule gives away is split as ever.
    check_echo(&world.client, &listen(&world.server, "10.2.0.2:8000"));
    assert_eq!(count(&world.a, "accepted"), 4);
    world.a.wait_for_log("link far: Up");
}

/// The sockets of a service's streams are as large as the link's rate asks for.
#[test]
fn connections_go_through_services_over_a_link_of_any_rate() {
    if !root() {
        return;
    }
    let programs = Programs::new("rates");
    for mbit in [1, 80, 500, 10_000] {
        let world = with_echo_and(&programs, |plan| {
            plan.delay_ms = 5;
            plan.rate = units::BitRate::from_mbps(mbit);
        });
        check_echo(&world.client, &listen(&world.server, SERVER));
        let through = [(&world.a, "opened"), (&world.b, "connected")];
        assert_eq!(through.map(|(gateway, what)| count(gateway, what)), [1, 1], "{mbit} Mbit/s");
    }
}

#[test]
fn half_closes_and_resets_pass_through_services() {
    if !root() {
        return;
    }
    let programs = Programs::new("ends");
    let world = with_echo(&programs);
    let listener = listen(&world.server, SERVER);
    // A question that has ended gets its answer.
    let (mut near, mut far) = joined(&world.client, &listener);
    near.write_all(b"question").unwrap();
    near.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read_to_end(&mut far), (b"question".to_vec(), End::Clean));
    let answer = pattern(1, 500_000);
    let sending = send_all(&far, answer.clone());
    assert!(read_to_end(&mut near) == (answer, End::Clean));
    sending.join().unwrap().unwrap();
    // The server speaks and ends first.
    let (mut near, mut far) = joined(&world.client, &listener);
    far.write_all(b"220 welcome").unwrap();
    far.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read_to_end(&mut near), (b"220 welcome".to_vec(), End::Clean));
    let upload = pattern(2, 300_000);
    send_all(&near, upload.clone()).join().unwrap().unwrap();
    assert!(read_to_end(&mut far) == (upload, End::Clean));
    // A reset is none of these.
    let (mut near, mut far) = joined(&world.client, &listener);
    near.write_all(b"half of a request").unwrap();
    expect(&mut far, b"half of a request");
    reset(near);
    assert_eq!(read_to_end(&mut far), (vec![], End::Reset));
    let (mut near, mut far) = joined(&world.client, &listener);
    far.write_all(&pattern(3, 100_000)).unwrap();
    near.read_exact(&mut [0; 50_000]).unwrap();
    reset(far);
    assert_eq!(read_to_end(&mut near).1, End::Reset);
    // Nor is a server that refuses.
    stop_listening(listener);
    let mut near = connect(&world.client, SERVER);
    assert_eq!(end_within(&mut near, PATIENCE), Some(End::Reset));
    world.b.wait_for_log("no connection to 10.2.0.2:7000 for far: refused");
    world.wait_until_no_streams();
}

#[test]
fn a_reader_that_stops_stops_its_writer_through_services() {
    if !root() {
        return;
    }
    let programs = Programs::new("pressure");
    let world = with_echo(&programs);
    let listener = listen(&world.server, SERVER);
    for upload in [true, false] {
        let (near, far) = joined(&world.client, &listener);
        let (writer, mut reader) = if upload { (near, far) } else { (far, near) };
        let data = pattern(6, 64 << 20);
        let sending = send_all(&writer, data.clone());
        // Nobody reads: what is on its way comes to rest, and far from all of it is.
        let moved = || {
            let counters = service(&world.a).gateway.len();
            let links = world.a.status().links;
            (counters, links[0].send.lan_bytes + links[0].receive.lan_bytes)
        };
        let mut before = moved();
        wait_for("standstill", || {
            thread::sleep(Duration::from_secs(1));
            let now = moved();
            let rests = std::mem::replace(&mut before, now) == now;
            rests.then_some(()).ok_or("bytes move".into())
        });
        assert!(!sending.is_finished(), "not all can be on its way");
        let (got, end) = read_to_end(&mut reader);
        assert!(got == data && end == End::Clean, "{} bytes, {end:?}", got.len());
        sending.join().unwrap().unwrap();
    }
}

#[test]
fn what_a_service_connects_to_is_decided_by_the_gateway_and_its_reason_told() {
    if !root() {
        return;
    }
    let programs = Programs::new("policy");
    let command = programs.echo();
    let world = with_services([&command, &command], |plan| {
        plan.a.routes = vec!["0.0.0.0/0", "::/0"];
        plan.b.deny = vec!["10.2.0.9/32"];
    });
    let _tempting = listen(&world.gwb, "0.0.0.0:7001");
    for (to, reason) in [
        ("10.2.0.9:7000", "denied"),
        ("192.168.9.9:7000", "denied"),
        ("192.0.2.2:7001", "denied"), // the gateway's own, where a listener is
        ("10.2.0.2:7000", "refused"),
    ] {
        let mut near = connect(&world.client, to);
        assert_eq!(end_within(&mut near, PATIENCE), Some(End::Reset), "{to}");
        world.b.wait_for_log(&format!("no connection to {to} for far: {reason}"));
    }
}

#[test]
fn what_a_service_connected_to_ends_when_its_peer_may_not_go_there_any_more() {
    if !root() {
        return;
    }
    let programs = Programs::new("narrowed");
    let mut world = with_echo(&programs);
    let listeners = [SERVER, "[fd02::2]:7000"].map(|at| listen(&world.server, at));
    let [(mut near, _far), (mut other, mut other_far)] =
        listeners.each_ref().map(|listener| joined(&world.client, listener));
    world.b.configure(|s| s.deny = vec!["10.2.0.2/32"]);
    world.b.signal("HUP");
    assert_eq!(end_within(&mut near, PATIENCE), Some(End::Reset));
    other.write_all(b"untouched").unwrap();
    expect(&mut other_far, b"untouched");
}

#[test]
fn a_service_that_is_killed_resets_its_connections_and_no_others_and_comes_again() {
    if !root() {
        return;
    }
    let programs = Programs::new("killed");
    let world = with_echo(&programs);
    let listener = listen(&world.server, SERVER);
    let plain = listen(&world.server, "10.2.0.2:8000");
    let (mut near, far) = joined(&world.client, &listener);
    let (mut other, mut other_far) = joined(&world.client, &plain);
    let sending = send_all(&far, pattern(7, 50_000_000));
    near.read_exact(&mut [0; 100_000]).unwrap();
    let before = service(&world.a);
    let pid = before.pid.expect("a process").to_string();
    assert!(Command::new("kill").args(["-9", &pid]).status().unwrap().success());
    assert_eq!(read_to_end(&mut near).1, End::Reset, "and not an end");
    assert!(sending.join().unwrap().is_err(), "the server hears of it");
    other.write_all(b"untouched").unwrap();
    expect(&mut other_far, b"untouched");
    // Meanwhile, or by the next one: it works.
    check_echo(&world.client, &listener);
    wait_for("the next one", || match service(&world.a) {
        it if it.state == ServiceState::Running && it.starts > before.starts => Ok(()),
        it => Err(format!("{it:?}")),
    });
    check_echo(&world.client, &listener);
}

#[test]
fn traffic_of_services_that_crash_or_hang_or_are_not_there_is_split_as_ever() {
    if !root() {
        return;
    }
    let programs = Programs::new("broken");
    let echo = programs.echo();
    // It says hello, and then neither reads nor says anything.
    let hang = "import os, socket, time\n\
                s = socket.socket(fileno=int(os.environ['BENTPIPE_SOCKET']))\n\
                s.recv(65536)\n\
                s.send(b'{\"type\":\"hello\",\"version\":1}')\n\
                time.sleep(1000)\n";
    let hang = programs.python("hang.py", hang);
    let world = with_services([&hang, &echo], |_| {});
    let listener = listen(&world.server, SERVER);
    // The first go into its queue; they wait for a service that does not come to them, and what
    // is beyond the queue is nobody's but the gateway's.
    let _others = listen(&world.server, "10.2.0.2:7050");
    let mut waiting: Vec<_> = (0..400).map(|_| connect(&world.client, "10.2.0.2:7050")).collect();
    wait_for("a full queue", || match count(&world.a, "overflowed") {
        0 => Err("it has room".into()),
        _ => Ok(()),
    });
    check_echo(&world.client, &listener);
    // It is found out, and those in its queue are reset.
    world.a.wait_for_log("it does not read its socket");
    let given = count(&world.a, "accepted");
    assert!((10..400).contains(&given), "{given} were given");
    wait_for("a reset for each that was given", || {
        waiting.retain_mut(|near| end_within(near, Duration::from_millis(1)) != Some(End::Reset));
        match 400 - waiting.len() as u64 {
            resets if resets >= given => Ok(()),
            resets => Err(format!("{resets} of {given}")),
        }
    });
    assert_eq!(400 - waiting.len() as u64, given);
    drop(world);
    // One that ends at once, whatever is done.
    let world = World::with(|plan| {
        serve(&mut plan.a, "[\"/bin/false\"]");
        serve(&mut plan.b, &echo);
    });
    wait_for("some starts", || match service(&world.a).starts {
        n if n >= 4 => Ok(()),
        n => Err(format!("{n} starts")),
    });
    let listener = listen(&world.server, SERVER);
    check_echo(&world.client, &listener);
    check_echo(&world.client, &listener);
    assert_eq!(count(&world.b, "incoming"), 0);
    assert!(service(&world.a).starts < 20, "it is not started without end");
    world.a.wait_for_log("exit status: 1");
}

/// Reads whatever comes, and says nothing to it. One that has not said that it knows pings ends
/// where it is sent one.
const READS: &str = "\
import os, socket, sys
s = socket.socket(fileno=int(os.environ['BENTPIPE_SOCKET']))
s.recv(65536)
s.send(b'{\"type\":\"hello\",\"version\":1' + (b',\"pings\":true}' if PINGS else b'}'))
while packet := s.recv(65536):
    if b'ping' in packet and not PINGS:
        sys.exit(3)
";

#[test]
fn a_service_that_hangs_while_it_is_idle_is_noticed_and_started_again() {
    if !root() {
        return;
    }
    let programs = Programs::new("idle");
    let [hangs, old] = [("hangs.py", "True"), ("old.py", "False")]
        .map(|(name, pings)| programs.python(name, &format!("PINGS = {pings}\n{READS}")));
    let echo = programs.echo();
    let world = with_services([&hangs, &old], |plan| {
        plan.a.node += &format!("\n[service.stopped]\ncommand = {echo}\n");
    });
    let stopped = |gateway: &Gateway| gateway.status().services[1].clone();
    wait_for("the other that runs", || match stopped(&world.a) {
        it if it.state == ServiceState::Running => Ok(()),
        it => Err(format!("{it:?}")),
    });
    let (first, before) = (service(&world.b), stopped(&world.a));
    let pid = before.pid.expect("a process").to_string();
    assert!(Command::new("kill").args(["-STOP", &pid]).status().unwrap().success());
    world.a.wait_for_log("it does not answer a ping");
    wait_long_for("the next ones", 4 * PATIENCE, || match (service(&world.a), stopped(&world.a)) {
        (a, b) if a.starts > 1 && b.starts > before.starts => Ok(()),
        them => Err(format!("{them:?}")),
    });
    // The stopped one may have been found by other packets that it has not read. One that answers
    // goes on, and one that knows no pings.
    let answers = stopped(&world.a).starts;
    wait_long_for("another turn of the one that hangs", 4 * PATIENCE, || {
        match service(&world.a).starts {
            3.. => Ok(()),
            n => Err(format!("{n} starts")),
        }
    });
    assert_eq!(stopped(&world.a).starts, answers, "it answers");
    assert_eq!(service(&world.b).pid, first.pid, "it knows no pings");
}

#[test]
fn a_peer_without_the_service_is_known_and_its_traffic_split_as_ever() {
    if !root() {
        return;
    }
    let programs = Programs::new("alone");
    let echo = programs.echo();
    let mut world = World::with(|plan| serve(&mut plan.a, &echo));
    wait_until_running(&world.a);
    let listener = listen(&world.server, SERVER);
    check_echo(&world.client, &listener);
    assert_eq!(count(&world.a, "accepted"), 0, "it was known before");
    // The file names it there, and it does not run: the first connection finds that out.
    world.b.configure(|settings| serve(settings, "[\"/no/such/program\"]"));
    world.b.signal("TERM");
    world.b.wait_until_ended();
    world.b.start();
    world.b.wait_until_up();
    wait_for("the new session", || {
        let _ = crate::tcp::echo_once(&world.client, &listener);
        match count(&world.a, "accepted") {
            0 => Err("none is given".into()),
            _ => Ok(()),
        }
    });
    world.b.wait_for_log("cannot start the service echo");
    // From there on they go past it, or come back from it.
    check_echo(&world.client, &listener);
    check_echo(&world.client, &listener);
}

/// Passes everything, having read what is there.
const PASSES: &str = "\
import array, json, os, socket, time
s = socket.socket(fileno=int(os.environ['BENTPIPE_SOCKET']))
s.recv(65536)
s.send(b'{\"type\":\"hello\",\"version\":1}')
s.send(json.dumps({'type': 'waiting', 'peer': 'far', 'class': 'bulk', 'bytes': 5000,
                   'urgency': 3, 'oldest_ms': 7}).encode())
s.send(json.dumps({'type': 'stats', 'counters': {'passed': 1}}).encode())
while True:
    packet, fds, _, _ = socket.recv_fds(s, 65536, 1)
    if not packet:
        break
    if json.loads(packet.split(b'\\n')[0])['type'] != 'accepted':
        continue
    connection = socket.socket(fileno=fds[0])
    connection.setblocking(False)
    time.sleep(0.2)
    try:
        read = connection.recv(40000)
    except BlockingIOError:
        read = b''
    socket.send_fds(s, [b'{\"type\":\"pass\"}\\n' + read if read else b'{\"type\":\"pass\"}'],
                    [connection.fileno()])
    connection.close()
";

#[test]
fn a_connection_that_is_passed_loses_nothing_and_status_tells_what_waits() {
    if !root() {
        return;
    }
    let programs = Programs::new("passed");
    let (passes, echo) = (programs.python("passes.py", PASSES), programs.echo());
    let world = with_services([&passes, &echo], |_| {});
    let listener = listen(&world.server, SERVER);
    let near = connect(&world.client, SERVER);
    let data = pattern(8, 3_000_000);
    let sending = send_all(&near, data.clone());
    let mut far = accept(&listener);
    assert_eq!(far.peer_addr().unwrap().ip().to_string(), "10.2.0.1", "as of any connection");
    assert!(read_to_end(&mut far) == (data, End::Clean));
    sending.join().unwrap().unwrap();
    far.write_all(b"thanks").unwrap();
    drop(far);
    let mut near = near;
    assert_eq!(read_to_end(&mut near), (b"thanks".to_vec(), End::Clean));
    // The server speaks first.
    let (mut near, mut far) = joined(&world.client, &listener);
    far.write_all(b"220 welcome").unwrap();
    expect(&mut near, b"220 welcome");
    near.write_all(b"HELO").unwrap();
    expect(&mut far, b"HELO");
    assert_eq!(count(&world.a, "passed"), 2);
    assert_eq!(count(&world.b, "incoming"), 0, "they are plain streams");
    let status = service(&world.a);
    let [waiting] = &status.waiting[..] else { panic!("{status:?}") };
    assert_eq!((waiting.peer.as_str(), waiting.class.as_str()), ("far", "bulk"));
    assert_eq!((waiting.bytes, waiting.urgency, waiting.oldest_ms), (5000, 3, 7));
    assert_eq!(status.counters.get("passed"), Some(&1));
}

#[test]
fn a_service_has_no_rights_and_does_not_outlive_its_gateway() {
    if !root() {
        return;
    }
    let programs = Programs::new("rights");
    // It tries what it must not be able to do, and says what came of it.
    let tries = "\
import os, socket, sys
s = socket.socket(fileno=int(os.environ['BENTPIPE_SOCKET']))
s.recv(65536)
s.send(b'{\"type\":\"hello\",\"version\":1}')
def attempt(name, what):
    try:
        what()
        print(name, 'worked', file=sys.stderr)
    except OSError as e:
        print(name, 'failed:', e.strerror, file=sys.stderr)
attempt('key', lambda: open(sys.argv[1][5:]).read())
attempt('write', lambda: open('/tmp/bentpipe-service-test', 'w'))
attempt('connect', lambda: socket.create_connection(('127.0.0.1', 4500), 1))
attempt('signal', lambda: os.kill(os.getppid(), 0))
attempt('raw', lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW))
while s.recv(65536):
    pass
";
    let tries = programs.python("tries.py", tries);
    let mut world = World::with(|plan| serve(&mut plan.a, "[\"/bin/true\"]"));
    let file = world.a.file();
    // Everybody may read it as far as modes say: landlock is to be what keeps it.
    world.a.signal("TERM");
    world.a.wait_until_ended();
    let command = tries.replace(']', &format!(", \"file={}\"]", file.display()));
    let text = world.a.text().replace("[\"/bin/true\"]", &command);
    world.a.write(&text);
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    world.a.start();
    world.a.wait_until_up();
    for words in ["key", "write", "connect", "signal", "raw"] {
        world.a.wait_for_log(&format!("{words} failed"));
    }
    wait_until_running(&world.a);
    let pid = service(&world.a).pid.unwrap();
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    for line in ["CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1"] {
        assert!(status.contains(line), "{line}: {status}");
    }
    let uids = status.lines().find_map(|line| line.strip_prefix("Uid:\t")).unwrap();
    let uids: Vec<u32> = uids.split('\t').map(|uid| uid.parse().unwrap()).collect();
    assert_eq!(uids, [uids[0]; 4], "{status}");
    assert!((60_706..61_184).contains(&uids[0]), "{status}");
    // kill -9 of the gateway.
    world.a.kill();
    let begin = Instant::now();
    while Path::new(&format!("/proc/{pid}")).exists() {
        assert!(begin.elapsed() < PATIENCE, "the service outlives its gateway");
        thread::sleep(Duration::from_millis(20));
    }
}

/// The same service in Python, from the page that says how to write one, by that page's file.
#[test]
fn the_service_of_the_documentation_works() {
    if !root() {
        return;
    }
    let programs = Programs::new("python");
    let python = programs.python("echo.py", block(SERVICES, "## The smallest one", "python"));
    let command = "[\"/usr/local/bin/bentpipe-echo\"]";
    let directory = programs.dir().join("echo").display().to_string();
    // The page's file, and with the program in Rust at the other end, for they speak the same, that
    // of the operator's guide.
    let file = put(toml(SERVICES, "## In the file"), command, &python);
    let file = put(&file, "\"bentpipe-echo\"", "\"64323\"");
    let file = put(&file, "/var/lib/bentpipe/echo", &directory);
    let file = put(&file, "/usr/share/echo", &programs.dir().display().to_string());
    let guides = put(toml(GUIDE, "### Services"), command, &programs.echo());
    let world = World::with(|plan| {
        serve_text(&mut plan.a, &file);
        serve_text(&mut plan.b, &guides);
        plan.open_to_shore();
    });
    wait_until_running(&world.a);
    wait_until_running(&world.b);
    for (from, to, at, gateway) in [
        (&world.client, &world.server, "10.2.0.2:80", "10.2.0.1"),
        (&world.server, &world.client, "10.1.0.2:7", "10.1.0.1"),
    ] {
        let listener = listen(to, at);
        check_echo(from, &listener);
        let (mut near, mut far) = joined(from, &listener);
        assert_eq!(far.peer_addr().unwrap().ip().to_string(), gateway);
        let data = pattern(9, 2_000_000);
        let sending = [send_all(&near, data.clone()), send_all(&far, data.clone())];
        assert!(read_to_end(&mut far) == (data.clone(), End::Clean));
        assert!(read_to_end(&mut near) == (data, End::Clean));
        sending.into_iter().for_each(|s| s.join().unwrap().unwrap());
        let (near, mut far) = joined(from, &listener);
        reset(near);
        assert_eq!(read_to_end(&mut far), (vec![], End::Reset));
        stop_listening(listener);
        let mut near = connect(from, at);
        assert_eq!(end_within(&mut near, PATIENCE), Some(End::Reset));
    }
    world.a.wait_for_log("no connection to 10.1.0.2:7 for far: refused");
    assert_eq!([count(&world.a, "accepted"), count(&world.b, "accepted")], [4, 4]);
}

/// A peer before the other in both files, so that the other one is the second shard's.
fn in_the_second_shard(settings: &mut Settings, n: u8) {
    let key = link::keys::PrivateKey::from_bytes([n; 32]);
    settings.node = format!(
        "shards = 2\n{}\n[[peer]]\nname = \"nobody\"\npublic_key = \"{}\"\nprofile = \"leo\"\n\
         end = \"hub\"\n",
        settings.node,
        key.public()
    );
}

#[test]
fn peers_of_other_shards_have_the_service_as_well() {
    if !root() {
        return;
    }
    let programs = Programs::new("shards");
    let echo = programs.echo();
    let mut plan = Plan::default();
    for (settings, n) in [(&mut plan.a, 7), (&mut plan.b, 8)] {
        serve(settings, &echo);
        in_the_second_shard(settings, n);
    }
    let mut world = World::without_gateways(&plan);
    world.b.start();
    world.a.start();
    for gateway in [&world.a, &world.b] {
        wait_for("the link", || {
            let status = gateway.try_status()?;
            let far = status.links.iter().find(|l| l.peer == "far").ok_or("no such peer")?;
            let up = far.state == bentpipe::admin::LinkState::Up && far.shard == 1;
            up.then_some(()).ok_or(format!("{far:?}"))
        });
        wait_until_running(gateway);
    }
    let listener = listen(&world.server, SERVER);
    // The other shard hears of it a moment later.
    wait_for("the service", || {
        check_echo(&world.client, &listener);
        (count(&world.a, "accepted") > 0).then_some(()).ok_or("none was given".into())
    });
    let (mut near, mut far) = joined(&world.client, &listener);
    let data = pattern(5, 2_000_000);
    let sending = [send_all(&near, data.clone()), send_all(&far, data.clone())];
    assert!(read_to_end(&mut far) == (data.clone(), End::Clean));
    assert!(read_to_end(&mut near) == (data, End::Clean));
    sending.into_iter().for_each(|s| s.join().unwrap().unwrap());
    assert_eq!(count(&world.a, "opened"), count(&world.b, "connected"));
}

/// Two gateways with a cable for a satellite, so that the services are what is measured.
struct Cable {
    a: Gateway,
    b: Gateway,
    spaces: [os::netns::NetNs; 4],
    _dir: Scratch,
}

impl Cable {
    fn new(command: Option<&str>) -> Cable {
        use crate::harness::{LAN, SATELLITE, spaces};
        let mut plan =
            Plan { rate: units::BitRate::from_mbps(5000), delay_ms: 1, ..Plan::default() };
        for settings in [&mut plan.a, &mut plan.b] {
            settings.peer = "compress = \"off\"\ndedup = \"off\"\n".into();
            if let Some(command) = command {
                serve(settings, command);
            }
        }
        let (number, spaces) = spaces();
        let [client, gwa, gwb, server] = &spaces;
        for (near, far, device, addresses) in [
            (client, gwa, LAN, ["10.1.0.2/24", "10.1.0.1/24"]),
            (server, gwb, LAN, ["10.2.0.2/24", "10.2.0.1/24"]),
            (gwa, gwb, SATELLITE, ["192.0.2.1/24", "192.0.2.2/24"]),
        ] {
            os::netns::veth(near, device, far, device).expect("a cable");
            near.address(device, addresses[0]).expect("an address");
            far.address(device, addresses[1]).expect("an address");
        }
        client.route("default via 10.1.0.1").expect("a route");
        server.route("default via 10.2.0.1").expect("a route");
        gwa.make_router().expect("a router");
        gwb.make_router().expect("a router");
        let dir = Scratch::new(&format!("{number}"));
        let [one, other] = crate::gateway::Keys::pair();
        let mut a = Gateway::new("a", gwa, dir.sub("a"), plan.a.clone(), &one, &other, &plan);
        let mut b = Gateway::new("b", gwb, dir.sub("b"), plan.b.clone(), &other, &one, &plan);
        b.start();
        a.start();
        a.wait_until_up();
        b.wait_until_up();
        if command.is_some() {
            wait_until_running(&a);
            wait_until_running(&b);
        }
        Cable { a, b, spaces, _dir: dir }
    }

    /// Microseconds of a question and its answer over a new connection, the median and the
    /// highest of ten, of 400.
    fn question(&self, at: &str) -> [u128; 2] {
        let listener = listen(&self.spaces[3], at);
        listener.set_nonblocking(false).expect("a socket");
        let answers = thread::spawn(move || {
            while let Ok((mut far, _)) = listener.accept() {
                let mut word = [0; 100];
                match far.read_exact(&mut word) {
                    Ok(()) if word[0] == 1 => return,
                    Ok(()) => far.write_all(&[0; 400]).expect("an answer"),
                    Err(_) => {}
                }
            }
        });
        let ask = |first: u8| {
            let begin = Instant::now();
            let mut near = connect(&self.spaces[0], at);
            near.set_nodelay(true).expect("a socket");
            near.write_all(&[first; 100]).expect("a question");
            let answered = near.read_exact(&mut [0; 400]);
            (answered.is_ok()).then(|| begin.elapsed().as_micros())
        };
        let mut times: Vec<u128> = (0..400).filter_map(|_| ask(0)).collect();
        ask(1);
        answers.join().expect("a server");
        times.sort_unstable();
        assert_eq!(times.len(), 400);
        [times[200], times[360]]
    }

    /// Microseconds of a question and its answer over one connection, the median of 1,000.
    fn again(&self, at: &str) -> u128 {
        let listener = listen(&self.spaces[3], at);
        let (mut near, mut far) = joined(&self.spaces[0], &listener);
        let answers = thread::spawn(move || {
            let mut word = [0; 100];
            far.set_nodelay(true).expect("a socket");
            while far.read_exact(&mut word).is_ok() {
                far.write_all(&[0; 400]).expect("an answer");
            }
        });
        near.set_nodelay(true).expect("a socket");
        let mut ask = || {
            let begin = Instant::now();
            near.write_all(&[0; 100]).expect("a question");
            near.read_exact(&mut [0; 400]).expect("an answer");
            begin.elapsed().as_micros()
        };
        let mut times: Vec<u128> = (0..1000).map(|_| ask()).collect();
        drop(near);
        answers.join().expect("a server");
        times.sort_unstable();
        times[500]
    }

    /// Mbit/s of one download.
    fn download(&self, at: &str) -> u128 {
        const BYTES: usize = 500 << 20;
        let listener = listen(&self.spaces[3], at);
        let (mut near, far) = joined(&self.spaces[0], &listener);
        let sending = send_all(&far, vec![7; BYTES]);
        let begin = Instant::now();
        let mut buf = vec![0; 1 << 20];
        let mut got = 0;
        while let Ok(n @ 1..) = near.read(&mut buf) {
            got += n;
        }
        assert_eq!(got, BYTES);
        sending.join().unwrap().unwrap();
        BYTES as u128 * 8 / begin.elapsed().as_micros().max(1)
    }
}

/// `cargo test --release -p bentpipe --test e2e measured -- --ignored --nocapture`
#[test]
#[ignore = "a measurement: its figures are for people"]
fn the_cost_of_a_service_is_measured() {
    if !root_alone() {
        return;
    }
    let programs = Programs::new("measured");
    let cable = Cable::new(Some(&programs.echo()));
    let ways = [("plain", "10.2.0.2:8000"), ("service", SERVER)];
    for (round, (what, at)) in (0..4).flat_map(|round| ways.map(|way| (round, way))) {
        let [median, p90] = cable.question(at);
        let again = cable.again(at);
        eprintln!("{round} {what}: {median} us, p90 {p90} us; on a connection {again} us");
    }
    for (round, (what, at)) in (0..3).flat_map(|round| ways.map(|way| (round, way))) {
        eprintln!("{round} {what}: {} Mbit/s", cable.download(at));
    }
    assert!(count(&cable.a, "accepted") > 1200 && count(&cable.b, "connected") > 1200);
}
