//! Two lines of a peer, each raised by its own commands: the first in the file is preferred, the
//! second is raised when the first cannot be or is lost (R-DDR, R-VIRTUAL, R-COST).

use std::fs;
use std::io::Write as _;
use std::net::{Shutdown, TcpStream};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use bentpipe::admin::{LineReport, PathState};
use bentpipe_lab::emulate::EmulatorHandle;
use bentpipe_lab::modem::Modems;
use exchange::CallEnd;
use serde_json::Value;
use units::{BitRate, Duration as Time};

use crate::documents::{self, GUIDE, put};
use crate::gateway::PROGRAM;
use crate::harness::{
    Plan, SATELLITE, World, install_script, must, root, run, said, wait_for, wait_long_for,
};
use crate::line::{books, calls, line, telephones};
use crate::paths::{path, second_link};
use crate::tcp::{SERVER, accept, connect, expect, joined, listen, pattern, read_to_end, send_all};

/// While a path is left alone because it failed, and commands are tried again.
const LONG: Duration = Duration::from_secs(90);

/// A ship with a terminal of 10 Mbit/s that rises while its file says so, at a dollar a second, and
/// one of 6 Mbit/s that always does, at two.
struct Ship {
    world: World,
    _second: Option<EmulatorHandle>,
}

impl Ship {
    fn new() -> Ship {
        let mut plan = Plan { rate: BitRate::from_mbps(10), ..Plan::default() };
        plan.b.listen = "0.0.0.0:4500".into();
        let mut world = World::without_gateways(&plan);
        let nodes = [(&world.gwa, "198.51.100.1/24"), (&world.gwb, "198.51.100.2/24")];
        let second = second_link(nodes, [BitRate::from_mbps(6); 2], 10);
        let dir = world.a.dir();
        let (calls, works) = (dir.join("calls"), dir.join("works"));
        let (calls, works) = (calls.display(), works.display());
        let line = |name: &str, condition: &str, minute: u32, more: &str| {
            format!(
                "[[peer.line]]\ncarrier = {name:?}\nraise = \"{condition}echo {name} >> {calls}\"\n\
                 drop = \"echo {name} dropped >> {calls}\"\n{more}\
                 tariff = {{ currency = \"USD\", per_minute = \"{minute}\", increment = \"1s\" }}\n"
            )
        };
        let redial = "idle = \"10s\"\nredial = { first = \"1s\", most = \"1s\", attempts = 1000, \
                      per_hour = 1000 }\n";
        let lines = [
            line("vsat", &format!("test -e {works} && "), 60, redial),
            line("iridium", "", 120, "idle = \"4s\"\n"),
        ];
        let table = format!(
            "{}[[peer.carrier]]\nname = \"vsat\"\ninterface = {SATELLITE:?}\nprobe = \"1s\"\n\
             [[peer.carrier]]\nname = \"iridium\"\ninterface = \"sat1\"\n\
             endpoint = \"198.51.100.2:4500\"\nprobe = \"1s\"\n\
             link = {{ send = \"6Mbit\", receive = \"6Mbit\", delay = \"10ms\" }}\n",
            lines.concat()
        );
        world.a.configure(|s| s.peer = table);
        for gateway in [&mut world.b, &mut world.a] {
            gateway.start();
            gateway.wait_for_log("bentpipe is up");
        }
        Ship { world, _second: Some(second) }
    }

    /// The ship of the guide, with a terminal and a modem, and a shore that answers that.
    fn of_the_guide(modems: &Modems) -> Ship {
        let mut world = World::without_gateways(&Plan::default());
        let dir = world.a.dir();
        let (program, works, calls) = (dir.join("terminal"), dir.join("works"), dir.join("calls"));
        let (works, calls) = (works.display(), calls.display());
        let script = format!(
            "#!/bin/sh\ncase \"$1\" in\nconnect) test -e {works} && echo vsat >> {calls};;\n\
             *) echo vsat dropped >> {calls};;\nesac\n"
        );
        install_script(&script, &program);
        let [ship, shore] = [&world.a, &world.b].map(|gateway| gateway.keys());
        let words = "A peer may have up to four lines";
        let text = documents::file(GUIDE, words, ship, shore);
        let device = |at: usize| modems.paths()[at].display().to_string();
        let (program, own) = (program.display().to_string(), device(0));
        let satellite = format!("{SATELLITE:?}");
        let calls = [
            ("/usr/local/sbin/terminal", program.as_str()),
            ("203.0.113.7", "192.0.2.2"),
            ("\"eth0\"", satellite.as_str()),
            ("/dev/ttyUSB0", own.as_str()),
            ("+881612345678", "200"),
            // The test may run at night.
            ("quiet   = [\"22:00-06:00\"]\n", ""),
        ];
        let calls = calls.iter().fold(text.clone(), |text, (old, new)| put(&text, old, new));
        let (peer, _) = text.split_once("[[peer.line]]").expect("lines");
        let answers = [
            ("\"shore\"", "\"ship\""),
            (shore.public.as_str(), ship.public.as_str()),
            ("endpoint   = \"203.0.113.7:4500\"\n", ""),
            ("interface = \"eth0\"\n", ""),
            ("\"0.0.0.0/0\", \"::/0\"]", "\"10.1.0.0/24\"]\nallow = [\"10.2.0.0/24\"]"),
            ("\"terminal\"", "\"hub\""),
        ];
        let answers = answers.iter().fold(peer.to_owned(), |text, (old, new)| put(&text, old, new));
        let answers = format!(
            "{answers}[peer.line]\ncarrier = \"iridium\"\nserial = {:?}\nanswer = true\nidle = \"5min\"\n",
            device(1)
        );
        for (gateway, peer) in [(&mut world.b, answers), (&mut world.a, calls)] {
            let text = gateway.text();
            let (node, _) = text.split_once("[[peer]]").expect("a peer");
            gateway.write(&format!("{node}{peer}"));
            gateway.start();
            gateway.wait_for_log("bentpipe is up");
        }
        Ship { world, _second: None }
    }

    /// Whether the first line can be raised.
    fn first_works(&self, works: bool) {
        let file = self.world.a.dir().join("works");
        match works {
            true => fs::write(file, "").expect("a file"),
            false => fs::remove_file(file).expect("a file"),
        }
    }

    /// What the ship says of each line.
    fn lines(&self) -> [LineReport; 2] {
        line(&self.world.a).lines.try_into().expect("two lines")
    }

    fn wait_for(&self, what: &str, are: impl Fn(&LineReport, &LineReport) -> bool) {
        wait_long_for(what, LONG, || {
            let [first, second] = self.lines();
            match are(&first, &second) {
                true => Ok(()),
                false => Err(format!("{first:?} {second:?} {:?}", calls(&self.world.a))),
            }
        });
    }

    fn wait_until_used(&self, carrier: &str) {
        wait_long_for(&format!("{carrier} in use"), LONG, || {
            let paths = ["vsat", "iridium"].map(|name| path(&self.world.a, name));
            let used = paths.iter().find(|p| p.state == PathState::InUse);
            let is_used = used.is_some_and(|p| p.name == carrier);
            if is_used { Ok(()) } else { Err(format!("{paths:?} {:?}", self.lines())) }
        });
    }

    /// How often a line was raised.
    fn raised(&self, name: &str) -> usize {
        calls(&self.world.a).iter().filter(|call| *call == name).count()
    }

    /// Cents, calls and seconds of a line.
    fn paid(&self, name: &str) -> (u64, u64, u64) {
        let text = books(&self.world.a, &["--json", "--by", "carrier"]);
        let rows: Value = serde_json::from_str(&text).expect("JSON");
        let row = rows.as_array().and_then(|rows| rows.iter().find(|row| row["name"] == name));
        let Some(row) = row else { return (0, 0, 0) };
        let price: f64 = row["price"].as_str().expect("a price").parse().expect("a number");
        let number = |key: &str| row[key].as_u64().expect("a number");
        ((price * 100.0).round() as u64, number("calls"), number("seconds"))
    }

    /// The line has cost so many cents for each second of its calls that has begun.
    fn check_price(&self, name: &str, second: u64) {
        let (cents, calls, seconds) = self.paid(name);
        let right = seconds * second..=(seconds + calls) * second;
        assert!(calls > 0 && right.contains(&cents), "{name}: {cents} cents, {calls}, {seconds} s");
    }

    fn says(&self, words: &[&str]) -> std::process::Output {
        let mut command = std::process::Command::new(PROGRAM);
        let socket = self.world.a.dir().join("admin.sock");
        run(command.arg("link").arg("--socket").arg(socket).args(words))
    }

    fn must(&self, words: &[&str]) -> String {
        let output = self.says(words);
        assert!(output.status.success(), "{words:?}: {}", said(&output));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

/// The shore sends this, and the ship reads it to the end.
fn download(far: TcpStream, mut near: TcpStream, data: Vec<u8>) -> JoinHandle<()> {
    near.set_read_timeout(Some(LONG)).expect("a limit");
    far.set_write_timeout(Some(LONG)).expect("a limit");
    let sender = send_all(&far, data.clone());
    let sender = thread::spawn(move || {
        sender.join().expect("a thread").expect("all was taken");
        far.shutdown(Shutdown::Write).expect("an end");
        far
    });
    thread::spawn(move || {
        let (read, _) = read_to_end(&mut near);
        assert!(read == data, "{} bytes of {}", read.len(), data.len());
        drop(sender.join().expect("a thread"));
    })
}

/// Somebody types until told to stop.
fn talk_until(near: &mut TcpStream, far: &mut TcpStream, over: impl Fn() -> bool) {
    let begin = std::time::Instant::now();
    while !over() {
        assert!(begin.elapsed() < LONG, "talked in vain");
        near.write_all(b"are you there?").expect("it stands");
        expect(far, b"are you there?");
        thread::sleep(Duration::from_millis(200));
    }
}

#[test]
fn a_transfer_goes_on_by_the_second_line_when_the_first_is_lost_and_by_the_first_when_it_is_back() {
    if !root() {
        return;
    }
    let ship = Ship::new();
    ship.first_works(true);
    let world = &ship.world;
    let listener = listen(&world.server, SERVER);
    let (near, far) = joined(&world.client, &listener);
    assert_eq!(calls(&world.a), ["vsat"], "the first in the file");
    ship.wait_for("the first", |first, second| {
        (first.carrier.as_str(), first.state.as_str()) == ("vsat", "up") && second.state == "down"
    });
    // It is lost in mid-transfer, and cannot be raised again.
    let transfer = download(far, near, pattern(1, 15_000_000));
    thread::sleep(Duration::from_secs(2));
    ship.first_works(false);
    must(&world.gwa, &format!("ip link set {SATELLITE} down"));
    ship.wait_for("the second", |first, second| first.state != "up" && second.state == "up");
    assert!(!transfer.is_finished(), "it was in mid-transfer");
    transfer.join().expect("whole");
    assert_eq!(ship.raised("iridium"), 1);
    ship.check_price("vsat", 100);
    let (_, vsats, _) = ship.paid("vsat");
    assert_eq!(vsats, 1, "a line that does not rise costs nothing");

    // While it is down somebody works by the second. Then it can be raised, and all goes by it.
    let (mut near, mut far) = joined(&world.client, &listener);
    must(&world.gwa, &format!("ip link set {SATELLITE} up"));
    ship.first_works(true);
    talk_until(&mut near, &mut far, || {
        let [first, second] = ship.lines();
        first.state == "up" && second.state == "down"
    });
    ship.wait_until_used("vsat");
    let before = path(&world.a, "iridium").sent_bytes;
    drop((near, far));
    let (near, far) = joined(&world.client, &listener);
    download(far, near, pattern(2, 1_000_000)).join().expect("whole");
    assert_eq!(path(&world.a, "iridium").sent_bytes, before, "nothing goes by the second");
    assert_eq!(ship.raised("iridium"), 1);
    ship.check_price("vsat", 100);
    ship.check_price("iridium", 200);
    world.a.wait_for_log("far, line iridium");
}

#[test]
fn the_second_line_is_raised_where_the_first_never_rises_and_where_it_falls_silent() {
    if !root() {
        return;
    }
    let ship = Ship::new();
    let world = &ship.world;
    let listener = listen(&world.server, SERVER);
    // The first contact ever is by the second line.
    let (mut near, mut far) = joined(&world.client, &listener);
    ship.wait_for("the second", |first, second| first.state != "up" && second.state == "up");
    assert_eq!((ship.raised("vsat"), ship.raised("iridium")), (0, 1));
    let why = ship.must(&["why", "far"]);
    let (first, second) = why.split_once('\n').expect("two lines");
    assert!(first.starts_with("vsat: ") && second.starts_with("iridium: up for"), "{why}");
    ship.first_works(true);
    talk_until(&mut near, &mut far, || ship.lines()[0].state == "up");
    ship.wait_until_used("vsat");
    // Its interface has a link all the time, and nothing comes any more.
    let transfer = download(far, near, pattern(3, 15_000_000));
    thread::sleep(Duration::from_secs(2));
    ship.first_works(false);
    world.set_link_down(true);
    ship.wait_for("the second", |first, second| first.state != "up" && second.state == "up");
    transfer.join().expect("whole");
    assert!(calls(&world.a).contains(&"vsat dropped".to_owned()), "{:?}", calls(&world.a));
}

/// As in the guide: a terminal that commands raise, and a modem.
#[test]
fn a_modem_is_dialled_where_the_terminal_does_not_rise_and_hung_up_when_it_has_risen() {
    if !root() {
        return;
    }
    let quick = Time::from_millis(100);
    let modems = telephones(BitRate::from_bps(57_600), Time::from_millis(50), [quick, quick]);
    let ship = Ship::of_the_guide(&modems);
    let world = &ship.world;
    let listener = listen(&world.server, SERVER);
    let (mut near, mut far) = joined(&world.client, &listener);
    near.write_all(b"by telephone").expect("it stands");
    expect(&mut far, b"by telephone");
    ship.wait_until_used("iridium");
    ship.wait_for("the modem", |first, second| first.state != "up" && second.state == "up");
    assert_eq!((ship.raised("vsat"), modems.calls().len()), (0, 1));
    ship.first_works(true);
    talk_until(&mut near, &mut far, || {
        let [first, second] = ship.lines();
        first.state == "up" && second.state == "down"
    });
    ship.wait_until_used("vsat");
    wait_for("the end of the call", || match &modems.calls()[..] {
        [call] if call.why == CallEnd::Caller => Ok(()),
        calls => Err(format!("{calls:?}")),
    });
    near.write_all(b"by satellite").expect("it stands");
    expect(&mut far, b"by satellite");
    // Forty cents for each twenty seconds that began.
    let (cents, calls, seconds) = ship.paid("iridium");
    let steps = seconds / 20 * 40..=(seconds / 20 + 1) * 40;
    assert!(
        calls == 1 && cents >= 40 && cents % 40 == 0 && steps.contains(&cents),
        "{cents} {seconds}"
    );
}

#[test]
fn an_operator_says_something_of_one_line() {
    if !root() {
        return;
    }
    let ship = Ship::new();
    ship.first_works(true);
    let world = &ship.world;
    ship.must(&["hold", "far", "iridium"]);
    ship.wait_for("one that is held", |first, second| {
        (first.state.as_str(), second.state.as_str()) == ("down", "up") && second.command == "hold"
    });
    let one = ship.must(&["why", "far", "iridium"]);
    assert!(one.starts_with("up for") && one.contains("`bentpipe link hold`"), "{one}");
    // Left to the rules it is dropped when nobody uses it.
    ship.must(&["auto", "far", "iridium"]);
    ship.wait_for("one that is idle", |_, second| second.state == "down");
    // What is down is left out, and the next one serves.
    ship.must(&["down", "far", "vsat"]);
    let listener = listen(&world.server, SERVER);
    let mut near = connect(&world.client, SERVER);
    let mut far = accept(&listener);
    near.write_all(b"by the second").expect("it stands");
    expect(&mut far, b"by the second");
    assert_eq!((ship.raised("vsat"), ship.raised("iridium")), (0, 2));
    // What is said of all holds for each.
    ship.must(&["down", "far"]);
    ship.wait_for("all down", |first, second| [first, second].iter().all(|l| l.state == "down"));
    ship.must(&["auto", "far"]);
    near.write_all(b"by the first").expect("it stands");
    expect(&mut far, b"by the first");
    assert_eq!(ship.raised("vsat"), 1);
    let refused = ship.says(&["up", "far", "starlink"]);
    let told = said(&refused);
    assert!(!refused.status.success() && told.contains("vsat, iridium"), "{told}");
    // As the guide has them.
    for words in documents::commands(GUIDE, "A peer may have up to four lines") {
        if let ["link", words @ ..] = &words[..] {
            let words: Vec<_> =
                words.iter().map(|w| if *w == "shore" { "far" } else { w }).collect();
            ship.must(&words);
        }
    }
    // Both are dropped, and paid, when the gateway ends.
    ship.must(&["hold", "far", "vsat"]);
    ship.must(&["hold", "far", "iridium"]);
    ship.wait_for("both up", |first, second| [first, second].iter().all(|l| l.state == "up"));
    world.a.signal("TERM");
    wait_for("both dropped", || {
        let calls = calls(&world.a);
        let dropped = |name: &str| calls.iter().filter(|call| call.starts_with(name)).count() % 2;
        match (dropped("vsat"), dropped("iridium")) {
            (0, 0) => Ok(()),
            _ => Err(format!("{calls:?}")),
        }
    });
    ship.check_price("vsat", 100);
    ship.check_price("iridium", 200);
}

#[test]
fn each_reload_names_what_waits_for_a_restart() {
    if !root() {
        return;
    }
    let ship = Ship::new();
    let gateway = &ship.world.a;
    let reload = |text: &str| -> Value {
        gateway.write(text);
        let mut command = std::process::Command::new(PROGRAM);
        let socket = gateway.dir().join("admin.sock");
        let output = run(command.args(["reload", "--json", "--socket"]).arg(socket));
        let answer: Result<Value, _> = serde_json::from_slice(&output.stdout);
        answer.unwrap_or_else(|_| panic!("{}", said(&output)))["needs_restart"].clone()
    };
    let before = gateway.text();
    let is_drop = |line: &&str| line.starts_with("drop = \"echo iridium");
    let drop = before.lines().find(is_drop).expect("a command").to_owned();
    let never_dropped = put(&before, &format!("{drop}\n"), "");
    let longer = |text: &str| put(text, "idle = \"4s\"", "idle = \"5s\"");
    for text in [&never_dropped, &longer(&never_dropped)] {
        assert_eq!(reload(text), serde_json::json!(["line of a peer"]));
    }
    assert_eq!(reload(&longer(&before)), serde_json::json!([]));
}
