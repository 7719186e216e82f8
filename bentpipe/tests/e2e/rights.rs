//! What a running gateway may do: no more than it needs, as root and as another user.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, chown};
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use units::{BitRate, Duration as Time};

use crate::failure::RELEASE;
use crate::gateway::Gateway;
use crate::harness::{Plan, World, must, root, run, wait_for};
use crate::line::{called_world, telephones};
use crate::tcp::{SERVER, check_echo, echo_once, listen};

/// CAP_NET_BIND_SERVICE, CAP_NET_ADMIN and CAP_NET_RAW (capabilities(7)).
const KEPT: &str = "0000000000003400";

/// Of what proc(5) says of a process or a thread.
fn field(status: &str, name: &str) -> String {
    let line = status.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(":\t"));
    line.unwrap_or_else(|| panic!("no {name} in {status}")).to_owned()
}

/// "nobody" on Debian.
const USER: u32 = 65_534;

/// Its first gateway goes on as [`USER`]; none was started.
fn world_of_user() -> World {
    let mut plan = Plan::default();
    plan.a.node = format!("user = \"{USER}\"\n{RELEASE}");
    World::without_gateways(&plan)
}

/// A file that goes with the test, also if that fails.
struct Gone(PathBuf);

impl Drop for Gone {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// CAP_NET_ADMIN.
const NETWORK: &str = "0000000000001000";

/// The sets of rights of a gateway, whose user is `uid`. Rights are a thread's own, so that all
/// have to have given them up. What puts the host's routes back, and what changes its rules, may
/// change the network and is nobody's otherwise.
fn check_rights(gateway: &Gateway, uid: u32) {
    let limits = fs::read_to_string(format!("/proc/{}/limits", gateway.pid())).unwrap();
    let core = limits.lines().find_map(|l| l.strip_prefix("Max core file size")).unwrap();
    assert_eq!(core.split_whitespace().next(), Some("1"), "a crash writes no keys");
    for thread in fs::read_dir(format!("/proc/{}/task", gateway.pid())).unwrap() {
        // One that has just ended has no rights.
        let Ok(status) = fs::read_to_string(thread.unwrap().path().join("status")) else {
            continue;
        };
        let of = |name: &str| field(&status, name);
        for set in ["CapEff", "CapPrm", "CapBnd"] {
            assert_eq!(of(set), KEPT, "{set} of {}", of("Name"));
        }
        assert_eq!(of("NoNewPrivs"), "1", "{}", of("Name"));
        assert!(of("Uid").starts_with(&format!("{uid}\t{uid}\t{uid}")), "the user: {status}");
        assert!(of("Gid").starts_with(&format!("{uid}\t{uid}\t{uid}")), "the group: {status}");
    }
    for name in ["nft", "sh"] {
        let child = child(gateway, name).unwrap_or_else(|| panic!("a child that is {name}"));
        let status = fs::read_to_string(format!("/proc/{child}/status")).unwrap();
        assert_eq!(field(&status, "CapPrm"), NETWORK, "{status}");
        assert!(field(&status, "Uid").starts_with(&format!("{USER}\t{USER}")), "{status}");
    }
}

/// The child with this name.
fn child(gateway: &Gateway, name: &str) -> Option<u32> {
    let pid = gateway.pid();
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    let is = |pid: &u32| {
        fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim() == name)
    };
    children.split_whitespace().map(|pid| pid.parse().unwrap()).find(is)
}

/// Its `nft` is killed, it changes its routes, and it leaves nothing: whatever takes
/// rights while it runs.
fn check_that_it_still_can(world: &mut World) {
    let listener = listen(&world.server, SERVER);
    check_echo(&world.client, &listener);
    world.server.ip("address add 10.3.0.2/32 dev lan0").unwrap();
    world.gwb.ip("route add 10.3.0.0/24 via 10.2.0.2").unwrap();
    world.b.configure(|s| s.allow.push("10.3.0.0/24"));
    world.b.signal("HUP");
    world.a.configure(|s| s.routes.push("10.3.0.0/24"));
    world.a.signal("HUP");
    let moved = listen(&world.server, "10.3.0.2:7000");
    wait_for("the new route", || echo_once(&world.client, &moved).map_err(|e| e.to_string()));
    let tables = || must(&world.gwa, "nft list tables");
    let before = tables();
    assert!(before.contains("bentpipe_"), "{before}");
    let nft = child(&world.a, "nft").expect("a child that is nft");
    must(&world.gwa, &format!("kill -9 {nft}"));
    wait_for("a new table", || {
        let now = tables();
        (now.contains("bentpipe_") && now != before).then_some(()).ok_or(now)
    });
    wait_for("interception", || echo_once(&world.client, &listener).map_err(|e| e.to_string()));
    world.a.signal("TERM");
    assert!(world.a.wait_until_ended().success(), "{}", world.a.log());
    assert!(!world.a.log().contains("not fully removed"), "{}", world.a.log());
    let left = must(&world.gwa, "ip rule; ip -6 rule; nft list tables; ip -o link");
    for ours in ["proto 143", "bentpipe", "bp0"] {
        assert!(!left.contains(ours), "{ours} is left:\n{left}");
    }
}

#[test]
fn as_root_a_gateway_keeps_only_the_rights_that_it_needs_and_goes_on_working() {
    if !root() {
        return;
    }
    let mut world = World::with(|plan| plan.a.node = RELEASE.into());
    check_rights(&world.a, 0);
    check_rights(&world.b, 0);
    check_that_it_still_can(&mut world);
}

/// The books of a line are written by a thread.
#[test]
fn the_threads_of_a_gateway_that_calls_have_no_right_more() {
    if !root() {
        return;
    }
    let quick = Time::from_millis(100);
    let modems = telephones(BitRate::from_bps(57_600), Time::from_millis(50), [quick, quick]);
    let world = called_world(&modems, BitRate::from_bps(46_080), 50, "idle = \"60s\"\n");
    let names = || {
        let tasks = fs::read_dir(format!("/proc/{}/task", world.a.pid())).unwrap();
        let name = |task: fs::DirEntry| fs::read_to_string(task.path().join("comm")).ok();
        tasks.filter_map(|task| name(task.unwrap())).collect::<Vec<_>>()
    };
    // A thread takes its name when it runs for the first time.
    wait_for("the thread that writes the books", || match names() {
        names if names.iter().any(|name| name == "ledger\n") => Ok(()),
        names => Err(format!("there are {names:?}")),
    });
    check_rights(&world.a, 0);
    let listener = listen(&world.server, SERVER);
    check_echo(&world.client, &listener);
    check_rights(&world.a, 0);
}

#[test]
fn as_the_configured_user_a_gateway_goes_on_working() {
    if !root() {
        return;
    }
    let mut world = world_of_user();
    chown(world.a.dir(), Some(USER), Some(USER)).unwrap();
    chown(world.a.file(), Some(USER), Some(USER)).unwrap();
    world.b.start();
    world.a.start();
    world.a.wait_until_up();
    check_rights(&world.a, USER);
    let own = run(std::process::Command::new("id").args(["-G", &USER.to_string()]));
    let own = String::from_utf8_lossy(&own.stdout).trim().to_owned();
    let status = fs::read_to_string(format!("/proc/{}/status", world.a.pid())).unwrap();
    assert_eq!(field(&status, "Groups").trim(), own, "as at a login");
    assert_eq!(fs::metadata(world.a.file()).unwrap().uid(), USER);
    check_that_it_still_can(&mut world);
}

/// As the package has it: the file, its directory and that of the state are root's alone.
#[test]
fn as_a_user_who_reads_nothing_of_roots_a_gateway_reloads_keeps_its_state_and_leaves_no_socket() {
    if !root() {
        return;
    }
    let mut world = world_of_user();
    fs::set_permissions(world.a.dir(), fs::Permissions::from_mode(0o700)).unwrap();
    world.b.start();
    world.a.start();
    world.a.wait_until_up();
    check_rights(&world.a, USER);
    assert!(!world.a.log().contains("cannot be read again"), "{}", world.a.log());
    let socket = world.a.socket();
    assert_eq!(fs::metadata(&socket).unwrap().uid(), 0, "root's, for root to ask");
    let file = world.a.file().display().to_string();
    let said = world.a.must(&["reload", &file]);
    assert!(!said.contains("restart"), "{said}");
    check_that_it_still_can(&mut world);
    assert!(!socket.exists(), "the socket is left");
    let state = world.a.dir().join(format!("user-{USER}"));
    let kept = fs::read_dir(&state).unwrap().map(|entry| entry.unwrap().file_name());
    let kept: Vec<_> = kept.map(|name| name.into_string().unwrap()).collect();
    for ending in [".endpoints.json", ".usage"] {
        assert!(kept.iter().any(|name| name.ends_with(ending)), "no {ending}: {kept:?}");
    }
    assert_eq!(fs::metadata(&state).unwrap().uid(), USER);
}

#[test]
fn a_gateway_says_at_once_when_it_will_not_be_able_to_read_its_file_again() {
    if !root() {
        return;
    }
    let mut plan = Plan::default();
    // A key in a file of its own, which is root's.
    let key = std::env::temp_dir().join(format!("bentpipe-rights-psk-{}", std::process::id()));
    let mut open = fs::OpenOptions::new();
    let mut file = open.write(true).create_new(true).mode(0o600).open(&key).unwrap();
    file.write_all(b"AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=").unwrap();
    let _gone = Gone(key.clone());
    plan.a.node = "user = \"65534\"".into();
    for side in [&mut plan.a, &mut plan.b] {
        side.peer = format!("preshared_key_file = {key:?}\n{}", side.peer);
    }
    let mut world = World::without_gateways(&plan);
    world.b.start();
    world.a.start();
    world.a.wait_until_up();
    world.a.wait_for_log("the file cannot be read again");
    world.a.signal("HUP");
    world.a.wait_for_log("stays in force");
    thread::sleep(Duration::from_millis(200));
    check_echo(&world.client, &listen(&world.server, SERVER));
}
