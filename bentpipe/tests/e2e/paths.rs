//! Two ways between the gateways, and what moves from one to the other
//! (spec/link.md, "Paths").

use std::net::TcpStream;
use std::process::Output;
use std::thread;
use std::time::Duration;

use bentpipe::admin::{Event, PathCause, PathReport, PathState};
use bentpipe_lab::emulate::{Direction, Emulator, EmulatorHandle, EmulatorOptions};
use channel::ChannelConfig;
use os::netns::NetNs;
use os::port::Port;
use units::BitRate;

use crate::documents::{self, GUIDE, put};
use crate::gateway::{Gateway, Keys, PROGRAM};
use crate::harness::{Plan, SATELLITE, World, root, run, said, wait_for};
use crate::readme::{Sea, readme};
use crate::tcp::{End, SERVER, check_echo, joined, listen, pattern, read_to_end, send_all};
use crate::watching::Watch;

const SECOND: &str = "sat1";

/// The network, and its second way: 6 Mbit/s, 20 ms there and back, beside 10 Mbit/s, 100 ms.
struct Two {
    world: World,
    second: EmulatorHandle,
}

impl Two {
    fn new() -> Two {
        Two::with("")
    }

    /// The same with more words for both peers' tables.
    fn with(words: &str) -> Two {
        let mut plan = Plan { rate: BitRate::from_mbps(10), ..Plan::default() };
        plan.b.listen = "0.0.0.0:4500".into();
        plan.a.peer = format!(
            "{words}[[peer.carrier]]\nname = \"geo\"\n\
             [[peer.carrier]]\nname = \"lte\"\nendpoint = \"198.51.100.2:4500\"\n\
             interface = \"{SECOND}\"\n\
             link = {{ send = \"6Mbit\", receive = \"6Mbit\", delay = \"10ms\" }}\n"
        );
        plan.b.peer += words;
        let (world, second) = start_with_second(&plan);
        let two = Two { world, second };
        // Where both carry, the faster one is the one in use for everything else.
        let spread = words.starts_with("carriers");
        let (used, other) = if spread { ("lte", "geo") } else { ("geo", "lte") };
        two.wait_for(used, PathState::InUse);
        two.wait_for(other, PathState::StandsBy);
        two
    }

    /// What the ship says of a path.
    fn path(&self, name: &str) -> PathReport {
        path(&self.world.a, name)
    }

    fn wait_for(&self, name: &str, state: PathState) {
        wait_for_path([&self.world.a, &self.world.b], name, state);
    }

    /// Waits until the shore sends by its first path, or by another, too.
    fn wait_for_shore(&self, is_first: bool) {
        wait_until_it_follows(&self.world.b, is_first);
    }

    /// Bytes that have gone over both ways, in either direction.
    fn carried(&self) -> [u64; 2] {
        [carried(&self.world.link), carried(&self.second)]
    }
}

/// Gateways that run, with a second link of 6 Mbit/s and 10 ms between them.
pub fn start_with_second(plan: &Plan) -> (World, EmulatorHandle) {
    let mut world = World::without_gateways(plan);
    let nodes = [(&world.gwa, "198.51.100.1/24"), (&world.gwb, "198.51.100.2/24")];
    let second = second_link(nodes, [BitRate::from_mbps(6); 2], 10);
    world.b.start();
    world.a.start();
    world.a.wait_until_up();
    world.b.wait_until_up();
    (world, second)
}

/// A second way between gateways with these addresses on it: its rates and delay.
pub fn second_link(
    nodes: [(&NetNs, &str); 2],
    rates: [BitRate; 2],
    delay_ms: u64,
) -> EmulatorHandle {
    let [up, down] = rates.map(|rate| ChannelConfig {
        rate: Some(rate),
        delay: units::Duration::from_millis(delay_ms),
        ..ChannelConfig::default()
    });
    let [left, right] =
        nodes.map(|(ns, _)| ns.run(|| Port::tap(None, SECOND, 1500)).expect("a port"));
    let link = Emulator::start(left, right, up, down, EmulatorOptions::default());
    for (ns, address) in nodes {
        ns.address(SECOND, address).expect("an address");
    }
    link.expect("an emulated link")
}

/// Bytes that have gone over a way, in either direction.
fn carried(link: &EmulatorHandle) -> u64 {
    let of = |d| link.counters(d).offered.bytes;
    of(Direction::Up) + of(Direction::Down)
}

/// What a gateway says of a path.
pub fn path(gateway: &Gateway, name: &str) -> PathReport {
    let paths = gateway.status().links.remove(0).paths;
    let found = paths.iter().find(|p| p.name == name).cloned();
    found.unwrap_or_else(|| panic!("no path {name}: {paths:?}"))
}

pub fn wait_for_path([ship, shore]: [&Gateway; 2], name: &str, state: PathState) {
    wait_for(&format!("{name} to be {state:?}"), || {
        let path = path(ship, name);
        let shore = shore.status();
        let told = (&shore.links[0].paths, &shore.node.dropped);
        (path.state == state).then_some(()).ok_or(format!("{path:?}; shore: {told:?}"))
    });
}

/// Waits until the shore sends by its first path, or by another.
fn wait_until_it_follows(shore: &Gateway, is_first: bool) {
    wait_for("the shore to follow", || {
        let paths = shore.status().links.remove(0).paths;
        let used = paths.iter().find(|p| p.state == PathState::InUse);
        let follows = used.is_some_and(|p| (p.number == 0) == is_first);
        follows.then_some(()).ok_or(format!("{paths:?}"))
    });
}

fn check(mut stream: TcpStream, data: &[u8]) {
    let (read, end) = read_to_end(&mut stream);
    assert!(read == data && end == End::Clean, "{} bytes of {}", read.len(), data.len());
}

/// `bentpipe path` with these words.
pub fn command(gateway: &Gateway, args: &[&str]) -> Output {
    let socket = gateway.dir().join("admin.sock");
    let mut command = std::process::Command::new(PROGRAM);
    run(command.arg("path").arg("--socket").arg(socket).arg("far").args(args))
}

fn must(gateway: &Gateway, args: &[&str]) -> String {
    let output = command(gateway, args);
    assert!(output.status.success(), "{args:?}: {}", said(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// L-PT-6, L-PT-7: transfers both ways move by command, one way is silent while it is down, and
/// every byte comes once.
#[test]
fn transfers_both_ways_move_between_two_carriers_by_command() {
    if !root() {
        return;
    }
    let two = Two::new();
    let (a, b) = (&two.world.a, &two.world.b);
    let (near, far) = joined(&two.world.client, &listen(&two.world.server, SERVER));
    let (up, down) = (pattern(81, 12_000_000), pattern(82, 12_000_000));
    let senders = [send_all(&near, up.clone()), send_all(&far, down.clone())];
    let readers =
        [(far, up), (near, down)].map(|(stream, data)| thread::spawn(move || check(stream, &data)));
    let move_on = || thread::sleep(Duration::from_secs(1));

    // The ship's command; both ends follow, and the first way falls silent.
    move_on();
    must(a, &["use", "lte"]);
    two.wait_for("lte", PathState::InUse);
    two.wait_for_shore(false);
    move_on();
    let before = two.carried();
    move_on();
    let after = two.carried();
    assert!(after[1] - before[1] > 500_000, "{before:?} {after:?}");
    assert!(after[0] - before[0] < 10_000, "{before:?} {after:?}");

    // The shore's command moves it back.
    must(b, &["use", "0"]);
    two.wait_for_shore(true);
    two.wait_for("geo", PathState::InUse);
    // Down is down: everything goes by the other, and nothing at all by this one.
    move_on();
    must(a, &["down", "geo"]);
    two.wait_for("geo", PathState::Down);
    two.wait_for_shore(false);
    move_on();
    let before = two.carried();
    move_on();
    let after = two.carried();
    // Neighbours may ask for each other's addresses.
    assert!(after[0] - before[0] < 500, "{before:?} {after:?}");
    assert!(after[1] > before[1]);
    must(a, &["up", "geo"]);

    for reader in readers {
        reader.join().expect("what was sent");
    }
    for sender in senders {
        sender.join().expect("a thread").expect("all was taken");
    }
    let text = must(a, &[]);
    assert!(text.contains("geo: ") && text.contains("lte: "), "{text}");
    let refused = command(a, &["use", "vsat"]);
    assert!(!refused.status.success() && said(&refused).contains("geo, lte"), "{refused:?}");
}

/// A carrier that dies in mid-transfer is left by itself, and taken up again.
#[test]
fn a_transfer_goes_on_by_the_other_carrier_when_one_dies() {
    if !root() {
        return;
    }
    let two = Two::new();
    let (near, far) = joined(&two.world.client, &listen(&two.world.server, SERVER));
    let data = pattern(83, 12_000_000);
    let sender = send_all(&far, data.clone());
    let reader = thread::spawn(move || check(near, &data));
    thread::sleep(Duration::from_secs(1));
    two.world.set_link_down(true);
    two.wait_for("lte", PathState::InUse);
    two.wait_for_shore(false);
    reader.join().expect("what was sent");
    sender.join().expect("a thread").expect("all was taken");
    two.world.set_link_down(false);
    two.wait_for("geo", PathState::InUse);
    two.wait_for_shore(true);
}

/// The interface of the carrier in use loses its link in mid-transfer: that is known at once, told
/// with its cause, and everything comes back when the link has held.
#[test]
fn a_carrier_whose_interface_loses_its_link_is_left_at_once_and_watchers_hear_why() {
    if !root() {
        return;
    }
    let two = Two::new();
    let a = &two.world.a;
    let watch = Watch::all(a);
    let goes_by = |path: &str, cause: PathCause| {
        watch.wait(&format!("{path} for {cause:?}"), |notice| match &notice.event {
            Event::Path { path: to, cause: why } => (to == path && *why == cause).then_some(()),
            _ => None,
        });
    };
    must(a, &["use", "lte"]);
    goes_by("lte", PathCause::Chosen);
    let (near, far) = joined(&two.world.client, &listen(&two.world.server, SERVER));
    let data = pattern(84, 12_000_000);
    let sender = send_all(&far, data.clone());
    let reader = thread::spawn(move || check(near, &data));
    thread::sleep(Duration::from_secs(1));
    two.world.gwa.ip(&format!("link set {SECOND} down")).expect("an interface");
    goes_by("geo", PathCause::NoLink);
    assert_eq!(two.path("lte").cause, Some(PathCause::NoLink));
    two.wait_for_shore(true);
    two.world.gwa.ip(&format!("link set {SECOND} up")).expect("an interface");
    goes_by("lte", PathCause::Chosen);
    reader.join().expect("what was sent");
    sender.join().expect("a thread").expect("all was taken");
    must(a, &["auto"]);
    goes_by("geo", PathCause::Preferred);
    two.wait_for_shore(true);
    assert!(!command(a, &["auto", "lte"]).status.success(), "auto is for all of them");
    assert!(!command(a, &["use"]).status.success(), "use is for one");
}

/// An interface gets its address apart from its link, as by DHCP: a carrier with that `source`
/// carries from the address on. So it does where the interface was there before the gateway.
#[test]
fn a_carrier_whose_source_comes_after_its_interface_is_used_at_once() {
    if !root() {
        return;
    }
    let mut plan = Plan::default();
    plan.b.listen = "0.0.0.0:4500".into();
    plan.a.peer = "[[peer.carrier]]\nname = \"geo\"\n\
        [[peer.carrier]]\nname = \"wwan\"\nendpoint = \"198.51.100.2:4500\"\n\
        interface = \"wwan0\"\nsource = \"198.51.100.1\"\n"
        .into();
    let mut world = World::without_gateways(&plan);
    world.b.start();
    world.a.start();
    world.a.wait_for_log("a carrier's interface is not there yet");
    world.a.wait_until_up();
    let script = |ns: &NetNs, script: &str| crate::harness::must(ns, script);
    let shore = world.gwb.name().to_owned();
    script(
        &world.gwa,
        &format!(
            "ip link add wwan0 type veth peer name wwan0 netns {shore} && ip link set wwan0 up"
        ),
    );
    script(&world.gwb, "ip address add 198.51.100.2/24 dev wwan0 && ip link set wwan0 up");
    let has_address = |world: &World| {
        // All that the system had to say of the interface is said by then.
        thread::sleep(Duration::from_secs(3));
        assert_eq!(path(&world.a, "wwan").cause, Some(PathCause::NoLink));
        script(&world.gwa, "ip address add 198.51.100.1/24 dev wwan0");
        wait_for_path([&world.a, &world.b], "wwan", PathState::StandsBy);
        must(&world.a, &["use", "wwan"]);
        wait_for_path([&world.a, &world.b], "wwan", PathState::InUse);
        check_echo(&world.client, &listen(&world.server, SERVER));
        must(&world.a, &["auto"]);
        wait_for_path([&world.a, &world.b], "wwan", PathState::StandsBy);
    };
    has_address(&world);
    world.a.signal("TERM");
    world.a.wait_until_ended();
    script(&world.gwa, "ip address delete 198.51.100.1/24 dev wwan0");
    world.a.start();
    world.a.wait_for_log("a carrier's source is not there yet");
    world.a.wait_until_up();
    has_address(&world);
}

/// A reload takes carriers out, brings them back and prefers another, the one that sessions begin
/// with too, while transfers go on both ways.
#[test]
fn carriers_that_a_reload_takes_out_and_brings_back_cost_no_byte() {
    if !root() {
        return;
    }
    let two = Two::new();
    let a = &two.world.a;
    let (near, far) = joined(&two.world.client, &listen(&two.world.server, SERVER));
    let (up, down) = (pattern(86, 6_000_000), pattern(87, 12_000_000));
    let senders = [send_all(&near, up.clone()), send_all(&far, down.clone())];
    let readers =
        [(far, up), (near, down)].map(|(stream, data)| thread::spawn(move || check(stream, &data)));

    // The file as it is, and its parts.
    let text = a.text();
    let (head, tables) = text.split_once("[[peer.carrier]]").expect("carriers");
    let (geo, lte) = tables.split_once("[[peer.carrier]]").expect("two carriers");
    let link = head.lines().find(|line| line.starts_with("link = ")).expect("a link");
    let head = head.replace(&format!("{link}\n"), "");
    let geo = |rank: u8| format!("[[peer.carrier]]{geo}{link}\npriority = {rank}\n");
    let lte = |rank: u8| format!("[[peer.carrier]]{lte}priority = {rank}\n");
    let reload = |carriers: &[String], names: &[&str]| {
        a.write(&format!("{head}{}", carriers.concat()));
        let socket = a.dir().join("admin.sock");
        let output =
            run(std::process::Command::new(PROGRAM).arg("reload").arg("--socket").arg(socket));
        let told = said(&output);
        assert!(output.status.success() && !told.contains("restart"), "{told}");
        let paths = a.status().links.remove(0).paths;
        let mut named: Vec<&str> = paths.iter().map(|path| path.name.as_str()).collect();
        named.sort_unstable();
        assert_eq!(named, names, "{paths:?}");
    };
    let is_silent = |way: usize| {
        wait_for("one way that carries all", || {
            let before = two.carried();
            thread::sleep(Duration::from_secs(1));
            let after = two.carried();
            // Neighbours may ask for each other's addresses.
            let is_silent = after[way] - before[way] < 500;
            let carries = after[1 - way] > before[1 - way] + 100_000;
            if is_silent && carries { Ok(()) } else { Err(format!("{before:?} {after:?}")) }
        });
    };

    reload(&[geo(50)], &["geo"]);
    is_silent(1);
    // It comes back, under another number and preferred.
    reload(&[geo(50), lte(40)], &["geo", "lte"]);
    two.wait_for("lte", PathState::InUse);
    two.wait_for_shore(false);
    assert!(two.path("lte").number > 3, "{:?}", two.path("lte"));
    // The one that the session began with goes.
    reload(&[lte(40)], &["lte"]);
    is_silent(0);
    reload(&[lte(40), geo(10)], &["geo", "lte"]);
    two.wait_for("geo", PathState::InUse);
    reload(&[lte(5), geo(10)], &["geo", "lte"]);
    two.wait_for("lte", PathState::InUse);

    for reader in readers {
        reader.join().expect("what was sent");
    }
    for sender in senders {
        sender.join().expect("a thread").expect("all was taken");
    }
}

/// L-PT-12: one transfer has more than either carrier could carry, and its bytes come once.
#[test]
fn one_transfer_goes_by_both_carriers_where_the_file_says_all() {
    if !root() {
        return;
    }
    let two = Two::with("carriers = \"all\"\n");
    let (near, far) = joined(&two.world.client, &listen(&two.world.server, SERVER));
    let data = pattern(85, 12_000_000);
    let before = two.carried();
    let sender = send_all(&far, data.clone());
    check(near, &data);
    sender.join().expect("a thread").expect("all was taken");
    let carried = two.carried();
    // By their rates 7.5 MB and 4.5 MB.
    for (after, before) in carried.iter().zip(before) {
        assert!(after - before > 2_500_000, "{before} {carried:?}");
    }
    // On one of them nothing comes any more: it is left, and a new transfer takes its time.
    two.world.set_link_down(true);
    let (near, far) = joined(&two.world.client, &listen(&two.world.server, SERVER));
    let sender = send_all(&far, data.clone());
    check(near, &data);
    sender.join().expect("a thread").expect("all was taken");
}

/// L-PT-18: both files name the ship's carrier. Bulk goes by it, both ways, beside the rest, and
/// waits while it is down; the shore knows it by its name.
#[test]
fn a_class_goes_by_its_carrier_and_waits_for_it() {
    if !root() {
        return;
    }
    const BULK: &str = "10.2.0.2:873";
    let two = Two::with(
        "[[peer.class]]\nname = \"bulk\"\ncarriers = [\"lte\"]\n\
         [[peer.rule]]\nports = [873]\nclass = \"bulk\"\n",
    );
    let b = &two.world.b;
    assert_eq!(two.path("lte").classes, ["bulk"]);
    assert_eq!(two.path("geo").classes, ["control", "interactive", "normal"]);
    let connected = |to: &str| joined(&two.world.client, &listen(&two.world.server, to));
    let crosses = |(near, far): (TcpStream, TcpStream), seed: u64| {
        let (up, down) = (pattern(seed, 2_000_000), pattern(seed + 1, 2_000_000));
        let senders = [send_all(&near, up.clone()), send_all(&far, down.clone())];
        let readers = [(far, up), (near, down)];
        (senders, readers.map(|(stream, data)| thread::spawn(move || check(stream, &data))))
    };
    let ends = |(senders, readers): ([thread::JoinHandle<std::io::Result<()>>; 2], [_; 2])| {
        readers.into_iter().for_each(|reader: thread::JoinHandle<()>| {
            reader.join().expect("what was sent");
        });
        for sender in senders {
            sender.join().expect("a thread").expect("all was taken");
        }
    };
    let before = two.carried();
    ends(crosses(connected(BULK), 88));
    let after = two.carried();
    assert!(after[1] - before[1] > 4_000_000, "{before:?} {after:?}");
    assert!(after[0] - before[0] < 300_000, "credit: {before:?} {after:?}");

    let pair = connected(BULK);
    // The shore's command, by the name that it has from the ship.
    must(b, &["down", "lte"]);
    two.wait_for("lte", PathState::PeerDown);
    let before = two.carried();
    let waiting = crosses(pair, 90);
    ends(crosses(connected(SERVER), 92));
    let after = two.carried();
    assert!(after[0] - before[0] < 5_500_000, "bulk goes by no other: {before:?} {after:?}");
    assert!(waiting.1.iter().all(|reader| !reader.is_finished()), "it waits");
    must(b, &["up", "lte"]);
    ends(waiting);
    assert!(must(b, &[]).contains("lte: in use for bulk"), "{}", must(b, &[]));
}

/// The carriers of the operator's guide on the README's ship.
fn guides_ship(own: &Keys, peer: &Keys) -> String {
    let ship = readme("ship", own, peer);
    let (node, _) = ship.split_once("[[peer]]").expect("a peer");
    let carriers = documents::file(GUIDE, "### Several ways to a peer", own, peer);
    let carriers = put(&carriers, "\"eth0\"", &format!("{SATELLITE:?}"));
    format!("{node}{}", put(&carriers, "\"wwan0\"", &format!("{SECOND:?}")))
}

/// "Several ways to a peer": its file on the ship, the README's on shore ("the hub needs nothing"),
/// and its commands.
#[test]
fn the_guides_carriers_and_its_commands_for_them_work_as_they_stand_there() {
    if !root() {
        return;
    }
    let mut second = None;
    let sea = Sea::running(
        |[ship, shore]| {
            let nodes = [(ship, "192.0.2.2/24"), (shore, "192.0.2.7/24")];
            second = Some(second_link(nodes, [5, 20].map(BitRate::from_mbps), 40));
            // One address of the peer's, by either interface.
            ship.route(&format!("203.0.113.0/24 via 192.0.2.7 dev {SECOND} metric 100"))
                .expect("a route");
        },
        |name, own, peer| match name {
            "ship" => guides_ship(own, peer),
            _ => readme(name, own, peer),
        },
    );
    let second = second.expect("a link");
    let (ship, shore) = (&sea.ship, &sea.shore);
    let listener = listen(&sea.server, "198.51.100.7:7000");
    let mut seed = 88;
    let mut goes_by = |used: &str, (other, state): (&str, PathState)| {
        wait_for_path([ship, shore], used, PathState::InUse);
        wait_for_path([ship, shore], other, state);
        wait_until_it_follows(shore, used == "vsat");
        let before = [carried(&sea.link), carried(&second)];
        let (near, far) = joined(&sea.host, &listener);
        // Never the same: that would not cross again.
        seed += 2;
        let (up, down) = (pattern(seed, 50_000), pattern(seed + 1, 200_000));
        let senders = [send_all(&near, up.clone()), send_all(&far, down.clone())];
        check(far, &up);
        check(near, &down);
        for sender in senders {
            sender.join().expect("a thread").expect("all was taken");
        }
        let carried = [carried(&sea.link) - before[0], carried(&second) - before[1]];
        let [by_it, beside] = if used == "vsat" { carried } else { [carried[1], carried[0]] };
        assert!(by_it > 250_000 && beside < 25_000, "{used}: {carried:?}");
    };
    goes_by("vsat", ("lte", PathState::StandsBy));
    let commands = documents::commands(GUIDE, "### Several ways to a peer");
    for words in &commands {
        let text = ship.must(words);
        match words[..] {
            ["path", "shore"] => {
                assert!(text.contains("vsat: ") && text.contains("lte: "), "{text}")
            }
            ["path", "shore", "use", "lte"] => goes_by("lte", ("vsat", PathState::StandsBy)),
            ["path", "shore", "down", "vsat"] => goes_by("lte", ("vsat", PathState::Down)),
            ["path", "shore", "auto"] | ["path", "shore", "up", "vsat"] => {
                goes_by("vsat", ("lte", PathState::StandsBy));
            }
            _ => panic!("{words:?}"),
        }
    }
    assert_eq!(commands.len(), 5);
}
