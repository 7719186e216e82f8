//! A hub with thousands of peers in its file, most of which never call. It runs without any
//! right, on loopback.

use std::fs;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bentpipe::admin::{self, Answer, LinkState, Request, Status};
use bentpipe::config::Config;
use link::keys::PrivateKey;

const PEERS: usize = 8_000;
/// Far longer than anything here takes, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Free for UDP a moment ago, and below those that the kernel hands out.
fn free_port(skip: u16) -> u16 {
    let first = 9_000 + (std::process::id() % 2_000) as u16 + skip * 500;
    let is_free = |port: &u16| UdpSocket::bind((Ipv4Addr::LOCALHOST, *port)).is_ok();
    (first..first + 500).find(is_free).expect("one of 500 ports is free")
}

fn key(n: usize) -> PrivateKey {
    // Some bits of the first byte say nothing.
    let mut seed = [7; 32];
    seed[8..16].copy_from_slice(&(n as u64).to_le_bytes());
    PrivateKey::generate(seed)
}

/// The file of a hub; peer 0 calls, and the peer `faster` has another rate than the others.
fn hub_file(port: u16, peers: usize, faster: Option<usize>) -> String {
    let node = format!(
        "[node]\nprivate_key = \"{}\"\nlisten = \"127.0.0.1:{port}\"\nadmin = \"hub.sock\"\n\
         memory = \"256MiB\"\n",
        key(usize::MAX).to_base64()
    );
    let peer = |n: usize| {
        let rate = if Some(n) == faster { 9 } else { 8 };
        format!(
            "[[peer]]\nname = \"t{n}\"\npublic_key = \"{}\"\nroutes = [\"10.{}.{}.0/24\"]\n\
             link = {{ send = \"{rate}Mbit\", receive = \"1Mbit\", delay = \"1ms\" }}\n",
            key(n).public(),
            n >> 8,
            n & 255
        )
    };
    std::iter::once(node).chain((0..peers).map(peer)).collect()
}

fn terminal_file(port: u16, hub: u16) -> String {
    format!(
        "[node]\nprivate_key = \"{}\"\nlisten = \"127.0.0.1:{port}\"\nadmin = \"t0.sock\"\n\
         [[peer]]\nname = \"hub\"\npublic_key = \"{}\"\nendpoint = \"127.0.0.1:{hub}\"\n\
         routes = [\"0.0.0.0/0\"]\n\
         link = {{ send = \"1Mbit\", receive = \"8Mbit\", delay = \"1ms\" }}\n",
        key(0).to_base64(),
        key(usize::MAX).public()
    )
}

/// A gateway; its files go with it.
struct Gateway {
    child: Child,
    dir: PathBuf,
    file: PathBuf,
    admin: PathBuf,
}

fn write(file: &Path, text: &str) {
    fs::write(file, text).expect("a file");
    fs::set_permissions(file, fs::Permissions::from_mode(0o600)).expect("its mode");
}

impl Gateway {
    fn start(name: &str, text: &str) -> Gateway {
        let dir = std::env::temp_dir().join(format!("bp-peers-{}-{name}", std::process::id()));
        fs::create_dir_all(&dir).expect("a directory");
        let file = dir.join(format!("{name}.toml"));
        write(&file, text);
        // setpriv ends the gateway when the test's thread is gone, however it went.
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "--", env!("CARGO_BIN_EXE_bentpipe"), "up"])
            .arg(&file)
            .env("STATE_DIRECTORY", &dir)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create(dir.join("log")).expect("a log"))
            .spawn()
            .expect("setpriv starts (util-linux)");
        let admin = dir.join(format!("{}.sock", if name == "terminal" { "t0" } else { "hub" }));
        Gateway { child, dir, file, admin }
    }

    fn status(&self, what: &str, holds: impl Fn(&Status) -> bool) -> Status {
        let begin = Instant::now();
        loop {
            let asked = admin::ask(&self.admin, &Request::Status, units::Duration::from_secs(30));
            if let Ok(Answer::Status(status)) = asked
                && holds(&status)
            {
                return *status;
            }
            let log = || fs::read_to_string(self.dir.join("log")).unwrap_or_default();
            assert!(begin.elapsed() < PATIENCE, "{what}: {}", log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.dir);
    }
}

#[test]
fn a_file_of_eight_thousand_peers_is_read_and_only_the_one_that_changed_differs() {
    let read = |faster| {
        let begin = Instant::now();
        let config = Config::parse(&hub_file(4500, PEERS, faster), Path::new("/hub.toml"));
        (config.unwrap_or_else(|e| panic!("{e}")), begin.elapsed())
    };
    let ((before, took), (after, _)) = (read(None), read(Some(77)));
    let begin = Instant::now();
    let changes = before.changes(&after);
    eprintln!("written and read in {took:?}, compared in {:?}", begin.elapsed());
    assert_eq!(before.peers.len(), PEERS);
    let changed: Vec<&str> = changes.changed.iter().map(|peer| peer.name.as_str()).collect();
    assert_eq!(changed, ["t77"]);
    assert!(changes.added.is_empty() && changes.removed.is_empty());
    assert!(changes.needs_restart.is_empty(), "{:?}", changes.needs_restart);
    // One by one it would be 64 million comparisons.
    assert!(begin.elapsed() < Duration::from_secs(5));
}

#[test]
fn a_hub_of_eight_thousand_starts_reloads_and_spends_little_on_those_that_never_called() {
    let [port, own] = [0, 1].map(free_port);
    let alone = Gateway::start("alone", &hub_file(port, 1, None));
    let little = alone.status("a hub with one peer", |_| true).node.memory_bytes;
    drop(alone);

    let begin = Instant::now();
    let hub = Gateway::start("hub", &hub_file(port, PEERS, None));
    let started = hub.status("a hub with thousands", |_| true);
    let took = begin.elapsed();
    assert_eq!(started.links.len(), PEERS);
    assert!(started.links.iter().all(|link| link.state == LinkState::Down));
    assert_eq!(started.links[77].send.configured_bps, 8_000_000);

    // One of them calls.
    let terminal = Gateway::start("terminal", &terminal_file(own, port));
    let is_up = |s: &Status| s.links[0].state == LinkState::Up;
    terminal.status("the terminal's link", is_up);
    let before = hub.status("the hub's link to it", is_up);
    assert!(before.links[1..].iter().all(|link| link.state == LinkState::Down));

    write(&hub.file, &hub_file(port, PEERS, Some(77)));
    let begin = Instant::now();
    let answer = admin::ask(&hub.admin, &Request::Reload, units::Duration::from_secs(60));
    let reloaded = begin.elapsed();
    assert!(
        matches!(&answer, Ok(Answer::Reloaded { needs_restart }) if needs_restart.is_empty()),
        "{answer:?}"
    );
    let after = hub.status("the hub after its reload", |_| true);
    assert_eq!(after.links[77].send.configured_bps, 9_000_000);
    assert_eq!(after.links[77].state, LinkState::Down);
    assert_eq!(after.links[0].state, LinkState::Up);
    assert_eq!(after.links[0].handshakes.completed, before.links[0].handshakes.completed);

    let each = |status: &Status| status.node.memory_bytes.saturating_sub(little) / PEERS as u64;
    eprintln!(
        "{PEERS} peers: start {took:?}, reload {reloaded:?}, each {} bytes, {} after the reload",
        each(&started),
        each(&after)
    );
    assert!(took < Duration::from_secs(20) && reloaded < Duration::from_secs(10));
    // With a session each it would be 17 kB.
    assert!(each(&started) < 10_000 && each(&after) < 14_000, "{}", each(&after));
}
