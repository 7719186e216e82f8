//! Links that cost money: raised for users, dropped when idle, kept down for noise, and paid for
//! to the cent (R-DDR, R-VIRTUAL, R-COST).

use std::fs;
use std::io::Write as _;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use bentpipe::admin::{LineReport, LinkState, PathState};
use bentpipe_lab::modem::Modems;
use exchange::{CallEnd, ExchangeConfig, Faults, LineConfig};
use serde_json::Value;
use units::{BitRate, Duration as Time, Ratio};

use crate::documents::{self, GUIDE, put, toml};
use crate::gateway::{Gateway, PROGRAM};
use crate::harness::{
    LAN, Plan, SATELLITE, Scratch, World, install_script, must, root, run, said, shell, wait_for,
    wait_long_for,
};
use crate::tcp::{SERVER, check_echo, connect, expect, joined, listen, pattern};

/// A ship with a line whose commands write down that they ran.
pub fn world(line: &str) -> World {
    world_with(|dir| {
        let calls = dir.join("calls").display().to_string();
        format!("[peer.line]\n{}", put(line, "CALLS", &calls))
    })
}

/// A ship with the table that `line` makes; it may put files into the ship's directory.
pub fn world_with(line: impl FnOnce(&Path) -> String) -> World {
    with_line(World::new(), line)
}

pub fn with_line(mut world: World, line: impl FnOnce(&Path) -> String) -> World {
    world.a.signal("TERM");
    world.a.wait_until_ended();
    let line = line(world.a.dir());
    world.a.configure(|s| s.peer = line);
    world.a.start();
    world.a.wait_for_log("bentpipe is up");
    world
}

/// The table that the operator's guide prints behind these words. Its program, here in the ship's
/// directory, writes down what it is told.
fn guides_line(dir: &Path, words: &str) -> String {
    let (program, calls) = (dir.join("terminal"), dir.join("calls"));
    install_script(&format!("#!/bin/sh\necho \"$1\" >> {}\n", calls.display()), &program);
    let program = program.display().to_string();
    put(toml(GUIDE, words), "/usr/local/sbin/terminal", &program)
}

pub const LINE: &str = "raise = \"echo raised >> CALLS\"\ndrop = \"echo dropped >> CALLS\"\n\
    idle = \"2s\"\n\
    tariff = { currency = \"USD\", per_minute = \"60\", increment = \"1s\" }\n\
    [[peer.line.demand]]\nname = \"backups wait\"\nports = [873]\nthen = \"batch\"\nage = \"10h\"\n";

pub fn calls(gateway: &Gateway) -> Vec<String> {
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
    gateway.must(&["link", what, &gateway.status().links[0].peer])
}

/// What `bentpipe cost` prints of the ship's ledger.
pub fn books(gateway: &Gateway, words: &[&str]) -> String {
    let mut command = Command::new(PROGRAM);
    command.arg("cost").arg(gateway.file()).args(words);
    let output = run(command.env("STATE_DIRECTORY", gateway.dir()));
    assert!(output.status.success(), "{}", said(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Cents, calls and seconds of the ship's ledger.
pub fn cost(gateway: &Gateway) -> (u64, u64, u64) {
    cost_in(gateway, "USD")
}

fn cost_in(gateway: &Gateway, currency: &str) -> (u64, u64, u64) {
    let rows: Value =
        serde_json::from_str(&books(gateway, &["--json", "--by", "peer"])).expect("JSON");
    let Some(row) = rows.get(0) else { return (0, 0, 0) };
    assert_eq!(row["currency"], currency);
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
    // More of it than flows are told apart: a user finds his place all the same.
    let noise = "for port in 123 5353 1900 137 138; do for host in {2..254}; do \
                 echo x > /dev/udp/10.2.0.$host/$port; done; done";
    must(&world.client, &format!("bash -c '{noise}'"));
    thread::spawn({
        let client = world.client.clone();
        move || shell(&client, "timeout 2 bash -c 'echo x > /dev/tcp/10.2.0.2/873'")
    });
    let waits = wait_for("a backup that waits, as one flow", || {
        let line = line(&world.a);
        let one = line.waiting.iter().any(|w| w.rule == "backups wait" && w.flows == 1);
        if one { Ok(line) } else { Err(format!("{line:?}")) }
    });
    assert_eq!(waits.state, "down");
    let why = link(&world.a, "why");
    assert!(why.contains("never raises the line"), "{why}");
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
    // The guide's example, and an idle line is dropped sooner.
    let world = world_with(|dir| {
        let line = guides_line(dir, "and zones, each with prices of its own");
        put(&line, "clock = \"local\"\n", "clock = \"local\"\nidle = \"3s\"\n")
    });
    let call = || {
        link(&world.a, "up");
        wait_for_state(&world.a, "up");
        wait_for_state(&world.a, "down");
    };
    let cents_of_calls = |n: u64| {
        wait_for("the books", || match cost_in(&world.a, "EUR") {
            (cents, calls, _) if calls == n => Ok(cents),
            it => Err(format!("{it:?}")),
        })
    };
    call();
    // The zone of the file holds until another is named: the 28 s before the call count, so it is
    // five steps of 6 s and more, at 18 or 30 cents.
    let at_sea = cents_of_calls(1);
    assert!(at_sea >= 90 && (at_sea % 18 == 0 || at_sea % 30 == 0), "{at_sea}");
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
    // A price by the month, and nothing by the minute.
    assert_eq!(cents_of_calls(2), at_sea + 4_000);
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

/// What was half raised, or half dropped, when the gateway was killed may go on to cost.
#[test]
fn a_line_that_was_being_raised_or_dropped_at_a_kill_is_dropped_at_the_start() {
    if !root() {
        return;
    }
    let mut world = world(LINE);
    let waits_for = |gateway: &Gateway, expected: &[&str]| {
        wait_for("the line's commands", || match calls(gateway) {
            c if c == expected => Ok(()),
            other => Err(format!("{other:?}")),
        });
    };
    let restart = |gateway: &mut Gateway, from: &str, to: &str| {
        gateway.configure(|s| s.peer = s.peer.replace(from, to));
        gateway.start();
        gateway.wait_for_log("bentpipe is up");
    };
    let stop = |gateway: &mut Gateway| {
        gateway.signal("TERM");
        gateway.signal("TERM");
        gateway.wait_until_ended();
    };
    let file = world.a.dir().join("calls");
    let stays = format!("drop = \"echo dropping >> {}; exec sleep 15; ", file.display());
    world.a.kill();
    restart(&mut world.a, "drop = \"", &stays);
    link(&world.a, "hold");
    wait_for_state(&world.a, "up");
    link(&world.a, "down");
    waits_for(&world.a, &["raised", "dropping"]);
    world.a.kill();
    restart(&mut world.a, &stays, "drop = \"");
    waits_for(&world.a, &["raised", "dropping", "dropped"]);
    stop(&mut world.a);
    restart(&mut world.a, "/calls\"\ndrop", "/calls; exec sleep 15\"\ndrop");
    link(&world.a, "hold");
    waits_for(&world.a, &["raised", "dropping", "dropped", "raised"]);
    world.a.kill();
    restart(&mut world.a, "/calls; exec sleep 15\"", "/calls\"");
    waits_for(&world.a, &["raised", "dropping", "dropped", "raised", "dropped"]);
    // Nothing is left to drop.
    stop(&mut world.a);
    restart(&mut world.a, "", "");
    wait_for_state(&world.a, "down");
    thread::sleep(Duration::from_secs(1));
    waits_for(&world.a, &["raised", "dropping", "dropped", "raised", "dropped"]);
}

/// The guide's first example and its commands. A `clock` is added, by which it is day: in its quiet
/// hours nothing raises it.
#[test]
fn the_guides_line_and_its_commands_work_as_they_stand_there() {
    if !root() {
        return;
    }
    const WORDS: &str = "### A link that costs money or has to be raised";
    let clock = if is_day() { "utc" } else { "+12:00" };
    let clock = format!("[peer.line]\nclock = {clock:?}\n");
    // The server tells the user's connection from the laptop's by its address.
    let world = with_line(World::with(Plan::keep), |dir| {
        let line = put(&guides_line(dir, WORDS), "[peer.line]\n", &clock);
        put(&line, "10.2.0.44/32", "10.1.0.44/32")
    });
    let listener = listen(&world.server, SERVER);
    // A backup waits, and does not raise it; nor does the captain's laptop.
    let curl = |more: &str| format!("curl -sS --connect-timeout 60 --max-time {more}");
    let backup = thread::spawn({
        let (client, curl) = (world.client.clone(), curl("60 http://10.2.0.2:873"));
        move || shell(&client, &curl)
    });
    wait_for("a backup that waits", || match line(&world.a) {
        line if line.waiting.iter().any(|w| w.rule == "backups") => Ok(()),
        line => Err(format!("{line:?}")),
    });
    world.client.address(LAN, "10.1.0.44/24").expect("an address");
    let in_vain = shell(&world.client, &curl("3 --interface 10.1.0.44 http://10.2.0.2:7000"));
    assert_eq!(in_vain.status.code(), Some(28), "time is over: {}", said(&in_vain));
    assert_eq!((line(&world.a).state.as_str(), calls(&world.a).len()), ("down", 0));
    // A user raises it, and what waited crosses as well: nobody listens there.
    let (mut near, mut far) = joined_by_user(&world, &listener);
    near.write_all(b"hello").unwrap();
    expect(&mut far, b"hello");
    assert_eq!(calls(&world.a), ["connect"]);
    let refused = said(&backup.join().expect("a thread"));
    assert!(refused.contains("(7) Failed to connect"), "before its time was over: {refused}");
    let commands = documents::commands(GUIDE, WORDS);
    for words in &commands {
        let text = match words[..] {
            ["cost", "/etc/bentpipe/ship.toml", ref by @ ..] => books(&world.a, by),
            ["link", what, "shore"] => link(&world.a, what),
            _ => panic!("{words:?}"),
        };
        match words[1] {
            "why" => assert!(text.contains("up for ") && text.contains("10.1.0.2"), "{text}"),
            "up" => assert_eq!(line(&world.a).state, "up", "{text}"),
            "hold" => assert_eq!(line(&world.a).command, "hold", "{text}"),
            _ => assert!(text.contains("10.1.0.2") && text.contains("USD"), "{text}"),
        }
    }
    assert_eq!(commands.len(), 4);
    // Between calls connections wait. A call costs 30 s at least, and then 24 cents each 6 s.
    link(&world.a, "down");
    wait_for_state(&world.a, "down");
    wait_for("the command", || match calls(&world.a) {
        c if c == ["connect", "disconnect"] => Ok(()),
        other => Err(format!("{other:?}")),
    });
    near.write_all(b"the next morning").unwrap();
    link(&world.a, "auto");
    expect(&mut far, b"the next morning");
    assert_eq!(calls(&world.a), ["connect", "disconnect", "connect"]);
    let (cents, ..) = wait_for("the books", || match cost(&world.a) {
        it if it.1 == 2 => Ok(it),
        it => Err(format!("{it:?}")),
    });
    assert!(cents >= 240 && cents % 24 == 0, "{cents}");
}

/// A connection of the client's own address: the captain's may reach the server as well by now.
fn joined_by_user(world: &World, listener: &TcpListener) -> (TcpStream, TcpStream) {
    let near = connect(&world.client, SERVER);
    loop {
        let far = crate::tcp::accept(listener);
        if far.peer_addr().ok() == near.local_addr().ok() {
            return (near, far);
        }
    }
}

/// Is it between 7 and 19 o'clock, UTC?
fn is_day() -> bool {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    (7..19).contains(&(now.expect("a clock").as_secs() / 3_600 % 24))
}

/// A telephone network of a ship and a shore, with modems behind ptys.
pub fn telephones(rate: BitRate, delay: Time, phases: [Time; 2]) -> Modems {
    Modems::start(network(rate, delay, phases), 3, None).expect("ptys")
}

/// The same before it is built, with a line of somebody else's.
pub fn network(rate: BitRate, delay: Time, [setup, training]: [Time; 2]) -> ExchangeConfig {
    let line = |name: &str, number: &str| LineConfig { name: name.into(), number: number.into() };
    let lines = vec![line("ship", "100"), line("shore", "200"), line("stranger", "300")];
    ExchangeConfig { lines, rate, delay, setup, training, ..Default::default() }
}

/// The profile and the table that the operator's guide has for a modem, and the table of the other
/// side, with these devices.
pub fn guides_modem(caller: &Path, answers: &Path) -> [String; 3] {
    let text = toml(GUIDE, "A modem on a serial line needs no commands and no address");
    let (profile, line) = text.split_once("[peer.line]").expect("a line");
    let with = |path: &Path| put(line, "/dev/ttyUSB0", &path.display().to_string());
    let calls = put(&with(caller), "+881612345678", "200");
    // "The other side has `serial` and `answer = true` in place of `numbers`".
    let answers = put(&with(answers), "numbers = [\"+881612345678\"]", "answer = true");
    [profile.to_owned(), format!("[peer.line]{calls}"), format!("[peer.line]{answers}")]
}

/// Two gateways that have nothing but modems between them.
pub fn called_world(modems: &Modems, rate: BitRate, delay_ms: u64, more: &str) -> World {
    called_world_with(modems, Plan { rate, delay_ms, ..Plan::default() }, more, |text| text)
}

/// The same with changes to both files.
pub fn called_world_with(
    modems: &Modems,
    mut plan: Plan,
    more: &str,
    change: impl Fn(String) -> String,
) -> World {
    let paths = modems.paths();
    let [_, calls, answers] = guides_modem(&paths[0], &paths[1]);
    (plan.a.mtu, plan.b.mtu) = (500, 500);
    plan.a.endpoint = None;
    plan.a.peer = format!("{calls}{more}");
    plan.b.peer = format!("{answers}idle = \"60s\"\n");
    let mut world = World::without_gateways(&plan);
    world.set_link_down(true);
    for gateway in [&mut world.b, &mut world.a] {
        gateway.write(&change(gateway.text()));
        gateway.start();
        gateway.wait_for_log("bentpipe is up");
    }
    world
}

/// A file with the profile of the guide's example in place of the link's facts.
fn with_profile(text: &str, profile: &str) -> String {
    let link = text.lines().find(|line| line.starts_with("link = ")).expect("a link");
    put(text, link, profile)
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
    let world = called_world(&modems, BitRate::from_bps(46_080), 3_000, "idle = \"7s\"\n");
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
/// connection that waited goes on in the next call. The guide's example as a whole, but for `idle`.
#[test]
fn a_modem_is_dialled_for_users_answered_and_hung_up_when_idle() {
    if !root() {
        return;
    }
    let quick = Time::from_millis(100);
    let modems = telephones(BitRate::from_bps(57_600), Time::from_millis(50), [quick, quick]);
    let [profile, ..] = guides_modem(&modems.paths()[0], &modems.paths()[1]);
    let whole = |text: String| with_profile(&text, &profile);
    let world = called_world_with(&modems, Plan::default(), "idle = \"3s\"\n", whole);
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

/// A carrier that stays though nothing comes by it is paid for: the call is hung up after a minute
/// of silence, tried again, and what waited crosses.
#[test]
#[ignore = "a minute of silence passes"]
fn a_call_by_which_nothing_comes_any_more_is_hung_up_and_made_again() {
    if !root() {
        return;
    }
    let quick = Time::from_millis(100);
    let modems = telephones(BitRate::from_bps(57_600), Time::from_millis(50), [quick, quick]);
    let more = "idle = \"10min\"\nredial = { first = \"1s\", most = \"1s\", attempts = 100 }\n";
    let world = called_world(&modems, BitRate::from_bps(46_080), 50, more);
    let listener = listen(&world.server, SERVER);
    let (mut near, mut far) = joined(&world.client, &listener);
    near.write_all(b"hello").unwrap();
    expect(&mut far, b"hello");
    assert_eq!(modems.calls().len(), 1);
    // Not a byte gets through as it was.
    let noise = Ratio::from_f64(1.0);
    modems.set_faults(Faults { noise, burst: 8, ..Faults::default() });
    near.write_all(b"is somebody there?").unwrap();
    let silent = std::time::Instant::now();
    wait_long_for("the end of a silent call", Duration::from_secs(180), || {
        let ended = modems.calls().first().is_some_and(|call| call.why != CallEnd::None);
        if ended { Ok(()) } else { Err(format!("{:?}", line(&world.a))) }
    });
    assert!(silent.elapsed() >= Duration::from_secs(55), "{:?}", silent.elapsed());
    modems.set_faults(Faults::default());
    expect(&mut far, b"is somebody there?");
    far.write_all(b"I am").unwrap();
    expect(&mut near, b"I am");
    let told = format!("{}{}", world.a.log(), world.b.log());
    assert!(told.contains("nothing was heard for 1m00s"), "{told}");
}

/// The guide's peer with a line beside another carrier, and the same for the shore that answers:
/// the shore's first. An idle line is hung up sooner than without a word, and only by the ship.
fn guides_terminal_and_modem([ship, shore]: [&Gateway; 2], modems: &Modems) -> [String; 2] {
    let words = "A line may stand beside other ways to the peer";
    let text = documents::file(GUIDE, words, ship.keys(), shore.keys());
    let text = put(&text, "+4721000000", "200");
    let of = |text: &str, at: usize, idle: &str| {
        let path = modems.paths()[at].display().to_string();
        format!("{}idle = \"{idle}\"\n", put(text, "/dev/ttyUSB0", &path))
    };
    // "The same two carriers, without `endpoint` and `interface`, and `carrier`, `serial` and
    // `answer = true` in `[peer.line]`"
    let answers = [
        ("\"shore\"", "\"ship\""),
        (shore.keys().public.as_str(), ship.keys().public.as_str()),
        ("endpoint   = \"203.0.113.7:4500\"\n", ""),
        ("interface = \"eth0\"\n", ""),
        // What it connects to is its own LAN.
        ("\"0.0.0.0/0\", \"::/0\"]", "\"10.1.0.0/24\"]\nallow = [\"10.2.0.0/24\"]"),
        ("\"terminal\"", "\"hub\""),
        ("numbers = [\"200\"]", "answer = true"),
    ];
    let answers = answers.iter().fold(text.clone(), |text, (old, new)| put(&text, old, new));
    let calls = put(&put(&text, "203.0.113.7", "192.0.2.2"), "\"eth0\"", &format!("{SATELLITE:?}"));
    [of(&answers, 1, "60s"), of(&calls, 0, "3s")]
}

/// A ship with a terminal and a modem, as in the guide: the modem is dialled when the terminal
/// dies, though the host only waits for what comes, and hung up when the terminal works again.
#[test]
fn a_modem_beside_a_terminal_is_dialled_when_that_dies_and_hung_up_when_it_is_back() {
    if !root() {
        return;
    }
    let quick = Time::from_millis(100);
    let modems = telephones(BitRate::from_bps(57_600), Time::from_millis(50), [quick, quick]);
    let mut world = World::without_gateways(&Plan::default());
    let peers = guides_terminal_and_modem([&world.a, &world.b], &modems);
    for (gateway, peer) in [&mut world.b, &mut world.a].into_iter().zip(peers) {
        let text = gateway.text();
        let (node, _) = text.split_once("[[peer]]").expect("a peer");
        gateway.write(&format!("{node}{peer}"));
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
        // The call alone takes 28 s.
        let long = Duration::from_secs(90);
        let mut stream = crate::tcp::connect_within(&client, SERVER, long).expect("the server");
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
