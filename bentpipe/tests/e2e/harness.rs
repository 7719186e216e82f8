//! Client – gateway – satellite – gateway – server, as namespaces on this machine.
//!
//! ```text
//!  client ──── a (ship) ════ satellite ════ b (shore) ──── server
//!  10.1.0.2    .1 │ 192.0.2.1        .2 │ .1        10.2.0.2
//!  fd01::2     ::1                      ::1         fd02::2
//! ```
//!
//! Each test has a network of its own, whose names carry this process's number. The
//! satellite also routes in clear, so that a test can tell whether something did
//! ([`Plan::clear_routes`]).

use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Output, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use std::{fs, thread};

use bentpipe_lab::emulate::{Direction, Emulator, EmulatorHandle, EmulatorOptions};
use channel::ChannelConfig;
use os::netns::{NetNs, veth};
use os::port::Port;
use units::{BitRate, Ratio};

use crate::gateway::{Gateway, Keys, Settings};

/// The hosts' and gateways' interface on their LAN.
pub const LAN: &str = "lan0";
/// The gateways' interface on the satellite.
pub const SATELLITE: &str = "sat0";
/// How long anything may take that should be quick, on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(30);

const PREFIX: &str = "bpe2e";
static MADE: AtomicU32 = AtomicU32::new(0);

/// [`os::netns::root`], with descriptors for thousands of sockets.
pub fn root() -> bool {
    raise_descriptor_limit();
    os::netns::root()
}

/// [`os::netns::root_alone`], the same way.
pub fn root_alone() -> bool {
    raise_descriptor_limit();
    os::netns::root_alone()
}

fn raise_descriptor_limit() {
    static LIMIT: OnceLock<u64> = OnceLock::new();
    LIMIT.get_or_init(|| os::proc::raise_descriptor_limit().expect("more descriptors"));
}

/// The network to build. Rates are those of both directions.
#[derive(Clone, Debug)]
pub struct Plan {
    pub rate: BitRate,
    pub delay_ms: u64,
    pub loss: Ratio,
    pub a: Settings,
    pub b: Settings,
    /// Do the gateways' systems know a way past the tunnel?
    pub clear_routes: bool,
}

impl Default for Plan {
    /// A fast link of 100 ms there and back, and files as users have them: the server's side is
    /// open to the client's, and not the other way round.
    fn default() -> Plan {
        Plan {
            rate: BitRate::from_mbps(40),
            delay_ms: 50,
            loss: Ratio::ZERO,
            a: Settings::ship(),
            b: Settings::shore(),
            clear_routes: false,
        }
    }
}

/// Files that are kinder than what users write, for tests that say why.
impl Plan {
    /// Servers see clients' own addresses.
    pub fn keep(&mut self) {
        (self.a.source, self.b.source) = (Some("keep"), Some("keep"));
    }

    /// Clients are answered before their server was asked, whatever it is going to say.
    pub fn fast(&mut self) {
        self.open("fast");
    }

    /// When clients are answered.
    pub fn open(&mut self, when: &'static str) {
        (self.a.open, self.b.open) = (Some(when), Some(when));
    }

    /// Hosts on shore may begin something with those of the ship.
    pub fn open_to_shore(&mut self) {
        self.a.allow = self.b.routes.clone();
    }
}

/// A network that stands. Programs are dropped before the network they run in.
pub struct World {
    pub a: Gateway,
    pub b: Gateway,
    pub link: EmulatorHandle,
    pub client: NetNs,
    pub gwa: NetNs,
    pub gwb: NetNs,
    pub server: NetNs,
    dir: Scratch,
}

impl World {
    /// The default network with both gateways up.
    pub fn new() -> World {
        World::with(|_| {})
    }

    /// The default network with changes, both gateways up.
    pub fn with(change: impl FnOnce(&mut Plan)) -> World {
        let mut plan = Plan::default();
        change(&mut plan);
        let mut world = World::without_gateways(&plan);
        world.b.start();
        world.a.start();
        world.a.wait_until_up();
        world.b.wait_until_up();
        world
    }

    /// The network; the gateways are configured and not started.
    pub fn without_gateways(plan: &Plan) -> World {
        let (number, [client, gwa, gwb, server]) = spaces();
        veth(&client, LAN, &gwa, LAN).expect("a cable");
        veth(&server, LAN, &gwb, LAN).expect("a cable");
        let link = satellite(plan, &gwa, &gwb);
        for (ns, devices) in [
            (&client, &[(LAN, "10.1.0.2/24", "fd01::2/64")][..]),
            (
                &gwa,
                &[
                    (LAN, "10.1.0.1/24", "fd01::1/64"),
                    (SATELLITE, "192.0.2.1/24", "fd00:5a7::1/64"),
                ],
            ),
            (
                &gwb,
                &[
                    (LAN, "10.2.0.1/24", "fd02::1/64"),
                    (SATELLITE, "192.0.2.2/24", "fd00:5a7::2/64"),
                ],
            ),
            (&server, &[(LAN, "10.2.0.2/24", "fd02::2/64")]),
        ] {
            for (device, v4, v6) in devices {
                ns.address(device, v4).expect("an address");
                ns.address(device, v6).expect("an address");
            }
        }
        for (ns, via) in [(&client, ["10.1.0.1", "fd01::1"]), (&server, ["10.2.0.1", "fd02::1"])] {
            for via in via {
                ns.route(&format!("default via {via}")).expect("a route");
            }
        }
        for ns in [&gwa, &gwb] {
            ns.make_router().expect("a router");
            ns.sysctl("net.ipv4.conf.all.promote_secondaries", "1").expect("a parameter");
        }
        if plan.clear_routes {
            for (ns, nets, via) in [
                (&gwa, ["10.2.0.0/24", "fd02::/64"], ["192.0.2.2", "fd00:5a7::2"]),
                (&gwb, ["10.1.0.0/24", "fd01::/64"], ["192.0.2.1", "fd00:5a7::1"]),
            ] {
                for (net, via) in nets.iter().zip(via) {
                    ns.route(&format!("{net} via {via}")).expect("a route");
                }
            }
        }
        let dir = Scratch::new(&format!("{number}"));
        let keys = Keys::pair();
        let [for_a, for_b] = &keys;
        let a = Gateway::new("a", &gwa, dir.sub("a"), plan.a.clone(), for_a, for_b, plan);
        let b = Gateway::new("b", &gwb, dir.sub("b"), plan.b.clone(), for_b, for_a, plan);
        World { a, b, link, client, gwa, gwb, server, dir }
    }

    /// A directory that goes with this network; others may enter it.
    pub fn dir(&self, name: &str) -> PathBuf {
        self.dir.sub(name)
    }

    /// Switches the satellite link off or on.
    pub fn set_link_down(&self, down: bool) {
        for direction in [Direction::Up, Direction::Down] {
            self.link.set_outage(direction, down);
        }
    }

    /// Waits until both gateways say that no stream is open.
    pub fn wait_until_no_streams(&self) {
        for gateway in [&self.a, &self.b] {
            wait_for(&format!("no streams at {}", gateway.name()), || {
                let open = gateway.status().links[0].streams_open;
                (open == 0).then_some(()).ok_or(format!("{open} are open"))
            });
        }
    }
}

/// Namespaces for a client, gateways a and b, and a server; their network's number.
pub fn spaces() -> (u32, [NetNs; 4]) {
    let number = MADE.fetch_add(1, Ordering::Relaxed);
    let space = |role: &str| {
        NetNs::unique(PREFIX, &format!("{number}-{role}")).expect("a network namespace")
    };
    (number, ["client", "a", "b", "server"].map(space))
}

/// The satellite between two gateways, by `sat0` in each.
pub fn satellite(plan: &Plan, left: &NetNs, right: &NetNs) -> EmulatorHandle {
    let one = ChannelConfig {
        rate: Some(plan.rate),
        delay: units::Duration::from_millis(plan.delay_ms),
        loss: plan.loss,
        ..ChannelConfig::default()
    };
    let port = |ns: &NetNs| ns.run(|| Port::tap(None, SATELLITE, 1500)).expect("a port");
    Emulator::start(port(left), port(right), one.clone(), one, EmulatorOptions::default())
        .expect("an emulated link")
}

/// A directory of this process that is removed with what is in it.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new(label: &str) -> Scratch {
        static MADE: AtomicU32 = AtomicU32::new(0);
        remove_stale_directories();
        // Tests that run at once may use one label.
        let (pid, number) = (std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(format!("{PREFIX}-{pid}-{label}-{number}"));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).expect("a directory");
        Scratch(path)
    }

    /// A directory inside.
    pub fn sub(&self, name: &str) -> PathBuf {
        let path = self.0.join(name);
        fs::create_dir_all(&path).expect("a directory");
        path
    }
}

/// Puts a program at this place, which everybody may run. A child writes it: what this process has
/// open for writing, children that other threads fork meanwhile hold open, too, and until they
/// have closed it nobody can run it (ETXTBSY).
pub fn install(program: impl AsRef<Path>, at: &Path) {
    let made = run(Command::new("install").args(["-m", "755"]).arg(program.as_ref()).arg(at));
    assert!(made.status.success(), "{made:?}");
}

/// The same for a script.
pub fn install_script(text: &str, at: &Path) {
    let source = at.with_extension("text");
    fs::write(&source, text).expect("a script");
    install(&source, at);
}

/// Removes what test processes left that were killed.
fn remove_stale_directories() {
    for entry in fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let rest = name.strip_prefix(PREFIX).and_then(|r| r.strip_prefix('-'));
        let owner = rest.and_then(|r| r.split('-').next()).and_then(|pid| pid.parse::<u32>().ok());
        if owner.is_some_and(|pid| !fs::exists(format!("/proc/{pid}")).unwrap_or(true)) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Asks until the answer is Ok; panics with the last answer when patience is over.
pub fn wait_for<T>(what: &str, ask: impl FnMut() -> Result<T, String>) -> T {
    wait_long_for(what, PATIENCE, ask)
}

/// The same with patience of its own.
pub fn wait_long_for<T>(
    what: &str,
    patience: Duration,
    mut ask: impl FnMut() -> Result<T, String>,
) -> T {
    let begin = Instant::now();
    loop {
        match ask() {
            Ok(answer) => return answer,
            Err(why) => assert!(begin.elapsed() < patience, "waited in vain for {what}: {why}"),
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// Runs a command line in `ns`, by the shell; its output and whether it succeeded.
pub fn shell(ns: &NetNs, script: &str) -> Output {
    run(ns.command("sh").args(["-c", script]))
}

/// Runs a command with nothing on its standard input.
pub fn run(command: &mut Command) -> Output {
    let output = command.stdin(Stdio::null()).output();
    output.unwrap_or_else(|e| panic!("{:?} does not start: {e}", command.get_program()))
}

/// Runs a command line in `ns` that must succeed; what it printed.
pub fn must(ns: &NetNs, script: &str) -> String {
    let output = shell(ns, script);
    assert!(output.status.success(), "`{script}` failed: {}", said(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// `n` pings, one after the other, each of which must be answered. (With `-c 3 -w 30` ping
/// goes on sending until three answers have come: one that is late makes it four.)
pub fn pings(ns: &NetNs, n: usize, args: &str) {
    for _ in 0..n {
        let text = must(ns, &format!("ping -c 1 -W 30 {args}"));
        assert!(text.contains("1 packets transmitted, 1 received"), "{text}");
    }
}

/// Ten pings over links that lose 2 % of them and of their answers together: less than seven are
/// answered once in 30,000 times. A lone packet is not repaired.
pub fn pings_over_losses(ns: &NetNs, args: &str) {
    let text = must(ns, &format!("ping -c 10 -i 0.2 -W 10 {args}"));
    let answered = text.split(" packets transmitted, ").nth(1);
    let answered = answered.and_then(|rest| rest.split(' ').next()?.parse().ok());
    assert!(answered.is_some_and(|n: u32| n >= 7), "{text}");
}

/// Both outputs of a command, for messages.
pub fn said(output: &Output) -> String {
    format!(
        "{}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// A program of a test, ended when dropped and when the test's thread is gone.
pub struct Daemon(std::process::Child);

impl Daemon {
    /// Starts a command line in `ns`, by the shell; its output goes to `log`.
    pub fn start(ns: &NetNs, script: &str, log: &std::path::Path) -> Daemon {
        let log = fs::File::create(log).expect("a log");
        let child = ns
            .command("setpriv")
            .args(["--pdeathsig", "KILL", "--", "sh", "-c", &format!("exec {script}")])
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a descriptor"))
            .stderr(log)
            .spawn();
        Daemon(child.expect("setpriv starts (util-linux)"))
    }

    /// Ends it in order, as `systemctl stop` does, and waits for that.
    pub fn stop(mut self) {
        let done = Command::new("kill").args(["-s", "TERM", &self.0.id().to_string()]).status();
        assert!(done.is_ok_and(|s| s.success()), "a signal");
        self.wait_until_ended(PATIENCE);
    }

    /// Waits until it has ended by itself.
    pub fn wait_until_ended(&mut self, patience: Duration) -> ExitStatus {
        wait_long_for("a program to end", patience, || {
            self.0.try_wait().expect("a child").ok_or_else(|| "it goes on".into())
        })
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
