//! What is left of a gateway that is killed, and what a user without rights can do.
//!
//! Both need a process of their own, so this program plays all the parts: without a
//! role it is the test.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use os::intercept::{Intercept, InterceptConfig, OnFailure};
use os::netns::{NetNs, enter_user_namespace, root, veth};
use os::poll::{Events, Interest, Poller};
use os::proc::{become_user, find_user};
use os::tcp::{Connect, TcpOptions, TransparentListener, connect};
use os::tun::{Tun, TunError};

/// Behind the peer while the gateway runs; reachable in clear, at the server, otherwise.
const FAR: &str = "10.99.1.1:80";

fn main() {
    match env::args().nth(1).as_deref() {
        Some("hold-block") => hold(OnFailure::Block),
        Some("hold-wire") => hold(OnFailure::Wire),
        Some("user") => build_without_rights(),
        Some("servant") => intercept_as_another_user(),
        _ => run_tests(),
    }
}

fn run_tests() {
    if !root() {
        return;
    }
    for (name, test) in [
        ("a killed gateway resets its hosts and blocks their traffic", killed_with_block as fn()),
        (
            "a killed gateway resets its hosts and lets their traffic pass in clear",
            killed_with_wire,
        ),
        ("a gateway started at once after a kill takes over", restarted_at_once),
        ("a gateway that gave root up still changes routes and cleans up", servant),
        ("a user without rights builds networks in a namespace of his own", user_without_rights),
    ] {
        print!("test {name} ... ");
        test();
        println!("ok");
    }
}

/// A gateway: puts every SYN back and keeps what it accepts, until it is killed.
fn hold(on_failure: OnFailure) {
    let tun = Tun::open("bp0", 1500).unwrap();
    let listener = TransparentListener::bind(0, &TcpOptions::default()).unwrap();
    let mut config = InterceptConfig::new("bp0", listener.port());
    config.lan = vec!["lan0".into()];
    config.routes = vec!["10.99.0.0/16".parse().unwrap()];
    config.on_failure = on_failure;
    let intercept = Intercept::install(&config).unwrap_or_else(|e| panic!("{e}"));
    let mut poller = Poller::new().unwrap();
    poller.add(intercept.syns(), 0, Interest::READ).unwrap();
    poller.add(&listener.v4, 1, Interest::READ).unwrap();
    println!("ready");
    let (mut events, mut buf, mut held) = (Events::with_capacity(8), [0; 1500], Vec::new());
    loop {
        poller.wait(&mut events, None).unwrap();
        match intercept.syns().read(&mut buf) {
            Ok(n) => intercept.syns().write(&buf[..n]).unwrap(),
            Err(TunError::Blocked) => {}
            Err(e) => panic!("{e}"),
        }
        while let Ok(accepted) = listener.v4.accept() {
            accepted.stream.write(b"welcome").unwrap();
            held.push(accepted);
        }
        assert!(tun.read(&mut buf).is_err(), "a packet crossed the tunnel");
    }
}

struct Lab {
    client: NetNs,
    gateway: NetNs,
    /// Answers for the far server, in clear.
    server: NetNs,
}

impl Lab {
    fn new(label: &str) -> Lab {
        let ns = |role: &str| NetNs::unique("oskill", &format!("{label}{role}")).unwrap();
        let lab = Lab { client: ns("c"), gateway: ns("g"), server: ns("s") };
        veth(&lab.client, "eth0", &lab.gateway, "lan0").unwrap();
        veth(&lab.server, "eth0", &lab.gateway, "wan0").unwrap();
        lab.client.address("eth0", "10.1.0.2/24").unwrap();
        lab.gateway.address("lan0", "10.1.0.1/24").unwrap();
        lab.gateway.address("wan0", "10.2.0.1/24").unwrap();
        lab.server.address("eth0", "10.2.0.2/24").unwrap();
        lab.server.address("lo", "10.99.1.1/32").unwrap();
        lab.client.route("default via 10.1.0.1").unwrap();
        lab.gateway.route("default via 10.2.0.2").unwrap();
        lab.server.route("default via 10.2.0.1").unwrap();
        lab.gateway.make_router().unwrap();
        lab
    }

    fn start_gateway(&self, role: &str) -> Running {
        let this = env::current_exe().unwrap();
        let mut command = self.gateway.command(this.to_str().unwrap());
        // Killed whatever becomes of what follows.
        let mut gateway = Running(command.arg(role).stdout(Stdio::piped()).spawn().unwrap());
        let mut line = String::new();
        BufReader::new(gateway.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        gateway
    }

    fn connect(&self) -> io::Result<TcpStream> {
        let far: SocketAddr = FAR.parse().unwrap();
        self.client.run(|| TcpStream::connect_timeout(&far, Duration::from_secs(10)))
    }

    /// A connection through the gateway that has carried data.
    fn connected(&self) -> TcpStream {
        let mut stream = self.connect().unwrap();
        let mut hello = [0; 7];
        stream.read_exact(&mut hello).unwrap();
        assert_eq!(&hello, b"welcome");
        stream
    }

    /// Our rules and routes, once they have stopped changing.
    fn left_over(&self) -> String {
        let list = || {
            // Routes first: they go last, and without them no rule is left that will.
            let routes = self.gateway.ip("route show table all protocol 143").unwrap();
            let rules = self.gateway.ip("rule show").unwrap();
            let ours = rules.lines().filter(|l| l.contains("proto 143")).collect::<Vec<_>>();
            ours.join("\n") + &routes
        };
        let end = Instant::now() + Duration::from_secs(10);
        let mut last = list();
        let unfinished = |left: &str| left.contains("0x62700001") || left.contains("table 25400");
        while unfinished(&last) && Instant::now() < end {
            thread::sleep(Duration::from_millis(20));
            last = list();
        }
        last
    }
}

struct Running(Child);

impl Running {
    fn kill(self) {
        drop(self);
    }

    /// Treats the children as a service manager or a terminal may; they must live on.
    fn pester_children(&self) {
        let parent = self.0.id().to_string();
        let list = Command::new("ps").args(["-o", "pid=,comm=", "--ppid", &parent]).output();
        let children = list.unwrap().stdout;
        let children = String::from_utf8(children).unwrap();
        for child in ["sh", "nft"] {
            let line = children.lines().find(|l| l.trim().ends_with(child)).expect(child);
            pester(line.trim().split(' ').next().unwrap());
        }
    }
}

/// Sends every polite signal; only what the child was given may be open in it.
fn pester(pid: &str) {
    for signal in ["HUP", "INT", "QUIT", "TERM"] {
        assert!(Command::new("kill").args(["-s", signal, pid]).status().unwrap().success());
    }
    let open = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().map(|e| e.unwrap().path());
    for path in open {
        let leads_to = fs::read_link(&path).unwrap().display().to_string();
        // The lock and nft's way to the kernel are sockets; the network's are "tun" files.
        assert!(!leads_to.contains("tun") && !leads_to.contains("eventpoll"), "{leads_to}");
    }
}

impl Drop for Running {
    /// kill −9, and wait for the corpse.
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn killed_with_block() {
    let lab = Lab::new("b");
    let gateway = lab.start_gateway("hold-block");
    let mut connection = lab.connected();
    gateway.pester_children();
    lab.connected();
    gateway.kill();
    assert_eq!(connection.read(&mut [0; 1]).unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    let _clear = lab.server.run(|| TcpListener::bind(FAR)).unwrap();
    let refused = lab.connect().unwrap_err();
    // By the route that blocks, or, when the table that tells stands, by a reset.
    let told = [io::ErrorKind::HostUnreachable, io::ErrorKind::ConnectionRefused];
    assert!(told.contains(&refused.kind()), "{refused}");
    let left = lab.left_over();
    assert!(left.contains("unreachable 10.99.0.0/16") && !left.contains("0x62700001"), "{left}");
    // What tells hosts that they are blocked stays as long as that.
    assert_tables(&lab.gateway, "table inet bentpipe_blocked\n");
}

fn killed_with_wire() {
    let lab = Lab::new("w");
    let gateway = lab.start_gateway("hold-wire");
    let mut connection = lab.connected();
    gateway.pester_children();
    lab.connected();
    gateway.kill();
    assert_eq!(connection.read(&mut [0; 1]).unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    assert_eq!(lab.left_over(), "");
    let clear = lab.server.run(|| TcpListener::bind(FAR)).unwrap();
    lab.connect().unwrap().write_all(b"in clear").unwrap();
    let mut seen = String::new();
    clear.accept().unwrap().0.read_to_string(&mut seen).unwrap();
    assert_eq!(seen, "in clear");
    assert_tables(&lab.gateway, "");
}

fn restarted_at_once() {
    let lab = Lab::new("r");
    for _ in 0..5 {
        let gateway = lab.start_gateway("hold-block");
        let _connection = lab.connected();
        gateway.kill();
    }
    let gateway = lab.start_gateway("hold-wire");
    lab.connected();
    gateway.kill();
    assert_eq!(lab.left_over(), "");
}

/// The owner's end takes its table along, at the latest when its pipe has closed.
fn assert_tables(gateway: &NetNs, wanted: &str) {
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        let list = gateway.command("nft").args(["list", "tables"]).output().unwrap();
        let found = String::from_utf8_lossy(&list.stdout);
        if found == wanted {
            return;
        }
        assert!(Instant::now() < end, "{found}");
        thread::sleep(Duration::from_millis(20));
    }
}

fn servant() {
    let lab = Lab::new("u");
    let this = env::current_exe().unwrap();
    let output = lab.gateway.command(this.to_str().unwrap()).arg("servant").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert_eq!(lab.left_over(), "");
}

/// A gateway that starts as root and goes on as nobody.
fn intercept_as_another_user() {
    let _tun = Tun::open("bp0", 1500).unwrap();
    let mut config = InterceptConfig::new("bp0", 1);
    config.routes = vec!["10.99.0.0/16".parse().unwrap()];
    let mut intercept = Intercept::install(&config).unwrap_or_else(|e| panic!("{e}"));
    let nobody = find_user(&NOBODY.to_string());
    nobody.and_then(|user| become_user(&user)).unwrap_or_else(|e| panic!("{e}"));
    assert!(fs::read("/etc/shadow").is_err(), "still root");
    let masquerade = vec!["10.98.0.0/16".parse().unwrap()];
    intercept.update_routes(&masquerade, &masquerade).unwrap_or_else(|e| panic!("{e}"));
    let routes = Command::new("ip").args(["route", "get", "10.98.0.1"]).output().unwrap().stdout;
    assert!(String::from_utf8_lossy(&routes).contains("bp0"));
    // What the gateway does all the time: connections with foreign sources.
    let from = Some("10.98.0.1:0".parse().unwrap());
    let options = TcpOptions { mark: Some(1), ..TcpOptions::default() };
    connect(&Connect { to: "10.2.0.2:9".parse().unwrap(), from, mark: None, options: &options })
        .unwrap();
    intercept.remove().unwrap_or_else(|e| panic!("{e}"));
}

/// "nobody" by number, on every Linux.
const NOBODY: u32 = 65_534;

fn user_without_rights() {
    // A copy, because nobody may not enter the directory that this was built in.
    let copy = env::temp_dir().join(format!("bentpipe-user-{}", std::process::id()));
    fs::copy(env::current_exe().unwrap(), &copy).unwrap();
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o755)).unwrap();
    let ran = Command::new(&copy).arg("user").uid(NOBODY).gid(NOBODY).current_dir("/").output();
    fs::remove_file(&copy).unwrap();
    let output = ran.unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(NetNs::open("oskill-user").is_err(), "the name leaked out");
}

/// As a user without rights: a cable between two hosts, and a connection over it.
fn build_without_rights() {
    enter_user_namespace().unwrap_or_else(|e| panic!("{e}"));
    let (a, b) = (NetNs::create("oskill-user").unwrap(), NetNs::create("oskill-peer").unwrap());
    veth(&a, "eth0", &b, "eth0").unwrap();
    a.address("eth0", "10.0.0.1/24").unwrap();
    b.address("eth0", "10.0.0.2/24").unwrap();
    a.make_router().unwrap();
    let listener = b.run(|| TcpListener::bind("10.0.0.2:80")).unwrap();
    let client = a.run(|| TcpStream::connect("10.0.0.2:80")).unwrap();
    assert_eq!(listener.accept().unwrap().1, client.local_addr().unwrap());
}
