//! Links that cost money: raised for users, dropped when idle, kept down for noise, and paid for
//! to the cent (R-DDR, R-VIRTUAL, R-COST).

use std::fs;
use std::io::Write as _;
use std::process::Command;
use std::thread;
use std::time::Duration;

use bentpipe::admin::{LineReport, LinkState, PathState};
use bentpipe_lab::modem::Modems;
use exchange::{CallEnd, ExchangeConfig, Faults, LineConfig};
use serde_json::Value;
use units::{BitRate, Duration as Time, Ratio};

use crate::gateway::{Gateway, PROGRAM};
use crate::harness::{Plan, Scratch, World, must, root, run, said, shell, wait_for, wait_long_for};
use crate::tcp::{SERVER, check_echo, connect, expect, joined, listen, pattern};

/// A ship with a line whose commands write down that they ran.
fn world(line: &str) -> World {
    let mut world = World::new();
    world.a.signal("TERM");
    world.a.wait_until_ended();
    let calls = world.a.dir().join("calls");
    let line = line.replace("CALLS", &calls.display().to_string());
    world.a.configure(|s| s.peer = format!("[peer.line]\n{line}"));
    world.a.start();
    world.a.wait_for_log("bentpipe is up");
    world
}

const LINE: &str = "raise = \"echo raised >> CALLS\"\ndrop = \"echo dropped >> CALLS\"\n\
    idle = \"2s\"\n\
    tariff = { currency = \"USD\", per_minute = \"60\", increment = \"1s\" }\n\
    [[peer.line.demand]]\nname = \"backups wait\"\nports = [873]\nthen = \"batch\"\nage = \"10h\"\n";

fn calls(gateway: &Gateway) -> Vec<String> {
    let text = fs::read_to_string(gateway.dir().join("calls")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

pub fn line(gateway: &Gateway) -> LineReport {
    gateway.status().links.remove(0).line.expect("a line")
}

pub fn wait_for_state(gateway: &Gateway, state: &str) -> LineReport {
    wait_for(&format!("a line that is {state}"), || {
        let line = line(gateway);
        if line.state == state { Ok(line) } else { Err(format!("{line:?}")) }
    })
}

/// Packets that the ship has sent towards the satellite.
fn sent(world: &World) -> u64 {
    let text = must(&world.gwa, "ip -s -j link show sat0");
    let json: Value = serde_json::from_str(&text).expect("JSON");
    json[0]["stats64"]["tx"]["packets"].as_u64().expect("a number")
}

pub fn link(gateway: &Gateway, what: &str) -> String {
    let socket = gateway.dir().join("admin.sock");
    let output =
        run(Command::new(PROGRAM).args(["link", "--socket"]).arg(socket).args([what, "far"]));
    assert!(output.status.success(), "{}", said(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Cents, calls and seconds of the ship's ledger.
fn cost(gateway: &Gateway) -> (u64, u64, u64) {
    let mut command = Command::new(PROGRAM);
    command.args(["cost", "--json", "--by", "peer"]).arg(gateway.file());
    let output = run(command.env("STATE_DIRECTORY", gateway.dir()));
    assert!(output.status.success(), "{}", said(&output));
    let rows: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let Some(row) = rows.get(0) else { return (0, 0, 0) };
    assert_eq!(row["currency"], "USD");
    let price: f64 = row["price"].as_str().expect("a price").parse().expect("a number");
    let number = |key: &str| row[key].as_u64().expect("a number");
    ((price * 100.0).round() as u64, number("calls"), number("seconds"))
}

#[test]
fn a_line_is_raised_for_users_dropped_when_idle_and_carries_on_what_it_carried() {
    if !root() {
        return;
    }
    let mut world = world(LINE);
    let listener = listen(&world.server, SERVER);
    // Nobody waits: nothing is sent at all, not even a handshake. The kernel's own neighbour
    // discovery is over by then.
    thread::sleep(Duration::from_secs(3));
    let before = sent(&world);
    thread::sleep(Duration::from_secs(3));
    assert!(sent(&world) <= before + 2, "a line that is down sends nothing");
    assert_eq!((line(&world.a).state.as_str(), calls(&world.a).len()), ("down", 0));
    // Noise and what can wait do not raise it.
    let noise = "for port in 123 5353 1900; do echo x > /dev/udp/10.2.0.2/$port; done";
    must(&world.client, &format!("bash -c '{noise}'"));
    thread::spawn({
        let client = world.client.clone();
        move || shell(&client, "timeout 2 bash -c 'echo x > /dev/tcp/10.2.0.2/873'")
    });
    let waits = wait_for("a backup that waits", || {
        let line = line(&world.a);
        let one = line.waiting.iter().any(|w| w.rule == "backups wait");
        if one { Ok(line) } else { Err(format!("{line:?}")) }
    });
    assert_eq!(waits.state, "down");
    // A user does.
    let (mut near, mut far) = joined(&world.client, &listener);
    near.write_all(b"hello").unwrap();
    expect(&mut far, b"hello");
    let (up, made) = (line(&world.a), calls(&world.a));
    assert_eq!(made, ["raised"]);
    assert!(up.cause.contains("port 7000") || up.cause.contains("10.1.0.2"), "{up:?}");
    let why = link(&world.a, "why");
    assert!(why.contains("10.1.0.2"), "{why}");
    // Idle: it is dropped, and the connection stays.
    let down = wait_for_state(&world.a, "down");
    assert!(down.cause.contains("idle"), "{down:?}");
    wait_for("the command", || match calls(&world.a) {
        c if c == ["raised", "dropped"] => Ok(()),
        other => Err(format!("{other:?}")),
    });
    let before = sent(&world);
    thread::sleep(Duration::from_secs(3));
    assert!(sent(&world) <= before + 2, "a line that is down sends nothing");
    near.write_all(b"the next morning").unwrap();
    expect(&mut far, b"the next morning");
    assert_eq!(calls(&world.a), ["raised", "dropped", "raised"]);
    wait_for_state(&world.a, "down");
    // Two calls, each of a few seconds at a dollar a second.
    let (cents, _, seconds) = wait_for("the books", || match cost(&world.a) {
        it if it.1 == 2 => Ok(it),
        it => Err(format!("{it:?}")),
    });
    assert!((400..=6_000).contains(&cents) && cents % 100 == 0, "{cents}");
    assert!(cents / 100 >= seconds && cents / 100 <= seconds + 2, "{cents} for {seconds} s");
    // The operator: down is down, for users too.
    link(&world.a, "down");
    far.write_all(b"news from shore").unwrap();
    near.write_all(b"never").unwrap();
    thread::sleep(Duration::from_secs(2));
    let kept = line(&world.a);
    assert_eq!((kept.state.as_str(), kept.command.as_str()), ("down", "down"), "{kept:?}");
    link(&world.a, "hold");
    expect(&mut far, b"never");
    expect(&mut near, b"news from shore");
    thread::sleep(Duration::from_secs(5));
    assert_ne!(line(&world.a).state, "down", "held though nobody uses it");
    // The gateway ends in order: the carrier is dropped and all is in the books.
    world.a.signal("INT");
    world.a.signal("INT");
    world.a.wait_until_ended();
    assert_eq!(calls(&world.a).last().map(String::as_str), Some("dropped"));
    let (_, number, _) = cost(&world.a);
    assert_eq!(number, 3);
}

#[test]
fn a_ship_says_in_which_zone_it_is_and_pays_that_zones_price() {
    if !root() {
        return;
    }
    let zones = "raise = \"echo raised >> CALLS\"\ndrop = \"echo dropped >> CALLS\"\nidle = \"3s\"\n\
        [peer.line.tariff]\ncurrency = \"USD\"\n\
        [[peer.line.tariff.zone]]\nname = \"at sea\"\nper_call = \"7\"\n\
        [[peer.line.tariff.zone]]\nname = \"in port\"\nper_call = \"2\"\n";
    let world = world(zones);
    let call = || {
        link(&world.a, "up");
        wait_for_state(&world.a, "up");
        wait_for_state(&world.a, "down");
    };
    call();
    let wait_for_cents = |cents: i64| {
        wait_for("the books", || match cost(&world.a).0 as i64 {
            it if it == cents => Ok(()),
            it => Err(it.to_string()),
        });
    };
    // The first zone holds until another is named.
    wait_for_cents(700);
    let zone = |name: &str| {
        let socket = world.a.dir().join("admin.sock");
        let mut command = Command::new(PROGRAM);
        run(command.args(["link", "--socket"]).arg(socket).args(["zone", "far", name]))
    };
    let refused = said(&zone("on the moon"));
    assert!(refused.contains("it has at sea, in port"), "{refused}");
    assert!(zone("in port").status.success());
    assert_eq!(line(&world.a).zone, "in port");
    call();
    wait_for_cents(900);
}

#[test]
fn a_call_that_a_kill_cuts_short_is_in_the_books_and_a_line_that_cannot_be_raised_says_why() {
    if !root() {
        return;
    }
    let mut world = world(LINE);
    let listener = listen(&world.server, SERVER);
    link(&world.a, "hold");
    wait_for_state(&world.a, "up");
    thread::sleep(Duration::from_secs(4));
    world.a.kill();
    let (cents, number, _) = cost(&world.a);
    assert_eq!(number, 1);
    assert!((300..=4_000).contains(&cents), "{cents}");
    // With a command that fails.
    assert_eq!(calls(&world.a), ["raised"]);
    world.a.configure(|s| s.peer = s.peer.replace("echo raised >>", "exit 3; echo >>"));
    world.a.start();
    world.a.wait_for_log("bentpipe is up");
    wait_for("the end of the call that the kill left", || match calls(&world.a) {
        c if c == ["raised", "dropped"] => Ok(()),
        other => Err(format!("{other:?}")),
    });
    let client = world.client.clone();
    let waits =
        thread::spawn(move || shell(&client, "timeout 60 bash -c 'cat < /dev/tcp/10.2.0.2/7000'"));
    let failed = wait_for("a failure", || {
        let line = line(&world.a);
        if line.cause.contains("failed") { Ok(line) } else { Err(format!("{line:?}")) }
    });
    assert!(failed.not_before_ms.is_some(), "it is tried again: {failed:?}");
    // The mend: what waited crosses.
    world.a.signal("TERM");
    world.a.signal("TERM");
    world.a.wait_until_ended();
    let _ = waits.join();
    world.a.configure(|s| s.peer = s.peer.replace("exit 3; echo >>", "echo raised >>"));
    world.a.start();
    world.a.wait_for_log("bentpipe is up");
    check_echo(&world.client, &listener);
    wait_long_for("an idle line", Duration::from_secs(60), || {
        let state = world.a.status().links.remove(0);
        let down = state.line.as_ref().is_some_and(|l| l.state == "down");
        if down { Ok(()) } else { Err(format!("{:?}", state.line)) }
    });
    assert_ne!(world.b.status().links[0].state, LinkState::Rising);
}

/// A telephone network of a ship and a shore, with modems behind ptys.
fn telephones(rate: BitRate, delay: Time, phases: [Time; 2]) -> Modems {
    Modems::start(network(rate, delay, phases), 3, None).expect("ptys")
}

/// The same before it is built, with a line of somebody else's.
fn network(rate: BitRate, delay: Time, [setup, training]: [Time; 2]) -> ExchangeConfig {
    let line = |name: &str, number: &str| LineConfig { name: name.into(), number: number.into() };
    let lines = vec![line("ship", "100"), line("shore", "200"), line("stranger", "300")];
    ExchangeConfig { lines, rate, delay, setup, training, ..Default::default() }
}

/// Two gateways that have nothing but modems between them.
fn called_world(modems: &Modems, rate: BitRate, delay_ms: u64, more: &str) -> World {
    let paths = modems.paths();
    let device = |at: usize| format!("[peer.line]\nserial = {:?}\n", paths[at]);
    let mut plan = Plan { rate, delay_ms, ..Plan::default() };
    (plan.a.mtu, plan.b.mtu) = (500, 500);
    plan.a.endpoint = None;
    plan.a.peer = format!("{}numbers = [\"200\"]\ninit = [\"AT&F\"]\n{more}", device(0));
    plan.b.peer = format!("{}answer = true\nidle = \"60s\"\n", device(1));
    let mut world = World::without_gateways(&plan);
    world.set_link_down(true);
    for gateway in [&mut world.b, &mut world.a] {
        gateway.start();
        gateway.wait_for_log("bentpipe is up");
    }
    world
}

/// A response that authenticates is enough for a line to be up, and in a later call the first
/// packet carries data: one round trip for a first contact, none for others. The line's delay, 3 s
/// each way, is much longer than anything that a busy machine does.
#[test]
fn a_first_call_is_up_after_one_round_trip_and_a_later_one_begins_with_data() {
    if !root() {
        return;
    }
    let (delay, quick) = (Time::from_secs(3), Time::from_millis(100));
    let modems = telephones(BitRate::from_bps(57_600), delay, [quick, quick]);
    let world = called_world(&modems, BitRate::from_bps(46_080), 3_000, "idle = \"4s\"\n");
    let listener = listen(&world.server, SERVER);
    let connected = |calls: usize| {
        wait_for("a call", || match modems.calls().len() {
            n if n == calls => Ok(std::time::Instant::now()),
            n => Err(format!("{n} calls")),
        })
    };
    let client = world.client.clone();
    let caller = thread::spawn(move || connect(&client, SERVER));
    let carrier = connected(1);
    wait_for_state(&world.a, "up");
    let up = carrier.elapsed();
    assert!(up < Duration::from_millis(11_500), "{up:?}: more than one round trip of 6 s");
    let mut far = crate::tcp::accept(&listener);
    let mut near = caller.join().expect("a connection");
    wait_for_state(&world.a, "down");
    wait_for_state(&world.b, "down");
    near.write_all(b"the next morning").unwrap();
    let carrier = connected(2);
    expect(&mut far, b"the next morning");
    let came = carrier.elapsed();
    assert!(came < Duration::from_millis(8_500), "{came:?}: more than one way of 3 s");
}

/// R-MODEM: what a host does dials, the far gateway answers, an idle call is hung up, and a
/// connection that waited goes on in the next call.
#[test]
fn a_modem_is_dialled_for_users_answered_and_hung_up_when_idle() {
    if !root() {
        return;
    }
    let quick = Time::from_millis(100);
    let modems = telephones(BitRate::from_bps(57_600), Time::from_millis(50), [quick, quick]);
    let rate = BitRate::from_bps(46_080);
    let world = called_world(&modems, rate, 50, "idle = \"3s\"\n");
    let listener = listen(&world.server, SERVER);
    let (mut near, mut far) = joined(&world.client, &listener);
    near.write_all(b"hello").unwrap();
    expect(&mut far, b"hello");
    far.write_all(b"who calls?").unwrap();
    expect(&mut near, b"who calls?");
    assert_eq!(modems.calls().len(), 1);
    let answered = line(&world.b);
    assert!(answered.state == "up", "{answered:?}");
    wait_for_state(&world.a, "down");
    wait_for_state(&world.b, "down");
    near.write_all(b"the next morning").unwrap();
    expect(&mut far, b"the next morning");
    wait_for_state(&world.a, "down");
    let ended = |n: usize| {
        move |calls: &[exchange::CallRecord]| {
            calls.len() == n && calls.iter().all(|call| call.why != CallEnd::None)
        }
    };
    wait_for("the meter's last word", || match modems.calls() {
        calls if ended(2)(&calls) => Ok(()),
        calls => Err(format!("{calls:?}")),
    });
    assert!(modems.calls().iter().all(|call| call.why == CallEnd::Caller));
}

/// What goes wrong with a line, one after the other: each has its cause in the status and in `link
/// why`, is tried again with a pause, and costs no byte.
#[test]
fn each_fault_of_a_line_is_told_with_its_cause_tried_again_and_costs_no_byte() {
    if !root() {
        return;
    }
    let dir = Scratch::new("modems");
    let quick = Time::from_millis(100);
    let mut config = network(BitRate::from_bps(57_600), Time::from_millis(50), [quick, quick]);
    config.faults = Faults { dumb: true, ..Faults::default() };
    let mut modems = Modems::start(config, 3, Some(dir.sub("dev").as_path())).expect("ptys");
    let more = "idle = \"60s\"\nredial = { first = \"1s\", most = \"1s\", attempts = 100 }\n";
    let world = called_world(&modems, BitRate::from_bps(46_080), 50, more);
    let listener = listen(&world.server, SERVER);
    let told = |what: &str| {
        wait_for(&format!("\"{what}\""), || {
            let line = line(&world.a);
            // While it is dialled again the cause is what for.
            let is = line.cause.contains(what) && line.not_before_ms.is_some_and(|ms| ms <= 1_000);
            if is && line.state == "down" { Ok(()) } else { Err(format!("{line:?}")) }
        });
    };
    // A host waits from here on.
    let always = Ratio::from_f64(1.0);
    let client = world.client.clone();
    let caller = thread::spawn(move || {
        let mut near = connect(&client, SERVER);
        near.write_all(b"hello").unwrap();
        near
    });
    told("the modem says nothing");
    modems.set_faults(Faults { busy: always, ..Faults::default() });
    told("busy");
    modems.set_faults(Faults { no_dialtone: always, ..Faults::default() });
    told("no dial tone");
    modems.set_faults(Faults { no_carrier: always, ..Faults::default() });
    told("no carrier");
    assert!(modems.calls().is_empty(), "{:?}", modems.calls());

    // Noise: what is lost of it comes again.
    modems.set_faults(Faults { noise: Ratio::from_f64(5e-4), burst: 3, ..Faults::default() });
    let mut far = crate::tcp::accept(&listener);
    let mut near = caller.join().expect("a connection");
    expect(&mut far, b"hello");
    // With a "+++" among it.
    let data = [&pattern(92, 4_000)[..], b"+++", &pattern(93, 4_000)].concat();
    far.write_all(&data).unwrap();
    expect(&mut near, &data);
    modems.set_faults(Faults::default());

    // The plug is pulled in mid-call.
    far.write_all(&data).unwrap();
    modems.unplug(0);
    wait_for("the device that is gone", || match line(&world.a) {
        line if line.state == "down" && line.cause.contains("the device is gone") => Ok(()),
        line => Err(format!("{line:?}")),
    });
    let why = link(&world.a, "why");
    assert!(why.contains("the device is gone") && why.contains("10.1.0.2"), "{why}");
    modems.plug_in(0).expect("a device");
    expect(&mut near, &data);

    // Somebody else calls: he gets nowhere and is hung up, and the next call is the ship's.
    link(&world.a, "down");
    wait_for_state(&world.b, "down");
    let device = os::serial::Settings { speed: 57_600, hardware_flow: false };
    let stranger = os::serial::Serial::open(&modems.paths()[2], device).expect("a modem");
    let said = |what: &str, heard: &mut String| {
        wait_for(&format!("the stranger's {what}"), || {
            let mut buf = [0; 256];
            if let os::serial::Got::Bytes(n) = stranger.read(&mut buf) {
                heard.push_str(&String::from_utf8_lossy(&buf[..n]));
            }
            if heard.contains(what) { Ok(()) } else { Err(heard.clone()) }
        });
    };
    let mut heard = String::new();
    stranger.write(b"ATDT200\r");
    said("CONNECT", &mut heard);
    let answered = wait_for_state(&world.b, "rising");
    assert!(answered.cause.contains("the peer called"), "{answered:?}");
    stranger.write(&pattern(94, 200));
    said("NO CARRIER", &mut heard);
    let refused = wait_for_state(&world.b, "down");
    assert!(refused.cause.contains("did not prove"), "{refused:?}");
    link(&world.a, "auto");
    near.write_all(b"it is me").unwrap();
    expect(&mut far, b"it is me");
}

/// A ship with a terminal and a modem: the modem is dialled when the terminal dies, though the
/// host only waits for what comes, and hung up when the terminal works again.
#[test]
fn a_modem_beside_a_terminal_is_dialled_when_that_dies_and_hung_up_when_it_is_back() {
    if !root() {
        return;
    }
    let quick = Time::from_millis(100);
    let modems = telephones(BitRate::from_bps(57_600), Time::from_millis(50), [quick, quick]);
    let carriers = "[[peer.carrier]]\nname = \"vsat\"\n[[peer.carrier]]\nname = \"modem\"\n\
        link = { send = \"46080bit\", receive = \"46080bit\", delay = \"50ms\", mtu = 500 }\n";
    let paths = modems.paths();
    let line_of =
        |at: usize| format!("[peer.line]\ncarrier = \"modem\"\nserial = {:?}\n", paths[at]);
    let mut plan = Plan::default();
    plan.a.peer = format!("{carriers}{}numbers = [\"200\"]\nidle = \"3s\"\n", line_of(0));
    plan.b.peer = format!("{carriers}{}answer = true\nidle = \"60s\"\n", line_of(1));
    let mut world = World::without_gateways(&plan);
    for gateway in [&mut world.b, &mut world.a] {
        gateway.start();
        gateway.wait_for_log("bentpipe is up");
    }
    world.a.wait_until_up();
    let in_use = |gateway: &Gateway, name: &str| {
        wait_long_for(&format!("{name} in use"), Duration::from_secs(60), || {
            let paths = gateway.status().links.remove(0).paths;
            let is = paths.iter().any(|p| p.name == name && p.state == PathState::InUse);
            if is { Ok(()) } else { Err(format!("{paths:?}")) }
        });
    };
    let listener = listen(&world.server, SERVER);
    let (mut near, mut far) = joined(&world.client, &listener);
    near.write_all(b"by satellite").unwrap();
    expect(&mut far, b"by satellite");
    in_use(&world.a, "vsat");
    assert_eq!((line(&world.a).state.as_str(), modems.calls().len()), ("down", 0));

    world.set_link_down(true);
    far.write_all(b"who is there?").unwrap();
    expect(&mut near, b"who is there?");
    let up = line(&world.a);
    assert!(up.state == "up" && up.cause.contains("10.1.0.2"), "{up:?}");
    in_use(&world.a, "modem");
    assert_eq!(modems.calls().len(), 1);
    near.write_all(b"by telephone").unwrap();
    expect(&mut far, b"by telephone");

    world.set_link_down(false);
    in_use(&world.a, "vsat");
    wait_for_state(&world.a, "down");
    wait_for_state(&world.b, "down");
    let call = &modems.calls()[0];
    assert_eq!(call.why, CallEnd::Caller, "{call:?}");
    near.write_all(b"by satellite again").unwrap();
    expect(&mut far, b"by satellite again");
    assert_eq!(modems.calls().len(), 1, "nobody called again");
}

/// The rows of `cg-mini-m`, in the time that they take.
#[test]
#[ignore = "takes minutes: it is a measurement"]
fn a_mini_m_call_is_up_and_carries_a_file_in_the_time_that_its_rate_allows() {
    if !root() {
        return;
    }
    let delay = Time::from_micros(997_500);
    let phases = [Time::from_millis(17_810), Time::from_millis(10_470)];
    let modems = telephones(BitRate::from_bps(2_400), delay, phases);
    let world = called_world(&modems, BitRate::from_bps(1_920), 998, "idle = \"60s\"\n");
    let listener = listen(&world.server, SERVER);
    let up = |world: &World| {
        let carrier = || match line(&world.a) {
            line if line.state == "rising" || line.state == "up" => Ok(()),
            line => Err(format!("{line:?}")),
        };
        wait_long_for("carrier", Duration::from_secs(90), carrier);
        std::time::Instant::now()
    };
    let client = world.client.clone();
    link(&world.a, "hold");
    let carrier = up(&world);
    wait_for_state(&world.a, "up");
    println!("first contact: network up {:?} after carrier", carrier.elapsed());
    assert!(carrier.elapsed() < Duration::from_secs(10));
    link(&world.a, "down");
    wait_for_state(&world.a, "down");
    thread::sleep(Duration::from_secs(10));
    let sender = thread::spawn(move || {
        let mut stream = connect(&client, SERVER);
        stream.write_all(&pattern(5, 10_000)).unwrap();
        stream
    });
    link(&world.a, "hold");
    let carrier = up(&world);
    wait_for_state(&world.a, "up");
    println!("second call: network up {:?} after carrier", carrier.elapsed());
    let mut far = crate::tcp::accept(&listener);
    expect(&mut far, &pattern(5, 10_000));
    println!("10 kB {:?} after carrier", carrier.elapsed());
    assert!(carrier.elapsed() < Duration::from_secs(90));
    drop(sender.join());
}
