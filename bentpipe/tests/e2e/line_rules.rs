//! What raises a line and what does not, by name; who is told at once that it is down; and what
//! goes first once it is up (R-DDR).

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{TcpStream, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use bentpipe_lab::modem::Modems;
use exchange::{ExchangeConfig, LineConfig};
use os::netns::NetNs;
use units::{BitRate, Duration as Time};

use crate::gateway::Gateway;
use crate::harness::{Plan, World, root, wait_for};
use crate::line::{called_world_with, line, link, wait_for_state, world};
use crate::tcp::{SERVER, accept, connect, listen, pattern, try_connect};

const RESOLVER: &str = "10.2.0.2:53";
/// Where the noise of these tests leads.
const NOISE: [u8; 4] = [10, 2, 0, 9];
const USERS: [u8; 4] = [10, 2, 0, 3];
/// Where the connections of users lead in the end: [`SERVER`].
const CALLED: [u8; 4] = [10, 2, 0, 2];

const RULES: &str = "raise = \"echo raised >> CALLS\"\ndrop = \"echo dropped >> CALLS\"\n\
    idle = \"2s\"\n\
    [[peer.line.demand]]\nname = \"no patience\"\nports = [8081]\nthen = \"batch\"\nage = \"10h\"\n\
    fail_fast = true\n\
    [[peer.line.demand]]\nname = \"told and raised\"\nports = [8082]\nthen = \"raise\"\n\
    fail_fast = true\n";

/// A question for the address of a name.
fn question(name: &str) -> Vec<u8> {
    let mut message = vec![7, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        message.push(label.len() as u8);
        message.extend(label.as_bytes());
    }
    message.extend([0, 0, 1, 0, 1]);
    message
}

/// Answers every question: those for Apple's names with the noise's address, others with the
/// users'. Behind each answer it says what nobody asked: that [`CALLED`] has one of Apple's names,
/// too. It ends with the process.
fn serve_names(server: &NetNs) {
    let socket = server.run(|| UdpSocket::bind(RESOLVER)).expect("a socket");
    thread::spawn(move || {
        let mut message = [0; 512];
        while let Ok((len, from)) = socket.recv_from(&mut message) {
            let is_noise = message[..len].windows(5).any(|w| w == b"apple");
            let address = if is_noise { NOISE } else { USERS };
            let _ = socket.send_to(&answer(&message[..len], address), from);
            let _ = socket.send_to(&answer(&question("captive.apple.com"), CALLED), from);
            let mut another = question("captive.apple.com");
            another[1] = 8;
            let _ = socket.send_to(&answer(&another, CALLED), from);
        }
    });
}

fn answer(question: &[u8], address: [u8; 4]) -> Vec<u8> {
    let mut answer = question.to_vec();
    (answer[2], answer[3], answer[7]) = (0x81, 0x80, 1);
    answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4]);
    answer.extend(address);
    answer
}

fn ask(client: &NetNs, name: &str) -> UdpSocket {
    let socket = client.run(|| UdpSocket::bind("10.1.0.2:0")).expect("a socket");
    socket.send_to(&question(name), RESOLVER).expect("sent");
    socket
}

fn answered(socket: &UdpSocket) -> Vec<u8> {
    socket.set_read_timeout(Some(Duration::from_secs(20))).expect("a limit");
    let mut message = [0; 512];
    let len = socket.recv(&mut message).expect("an answer");
    message[..len].to_vec()
}

fn wait_for_waiting(gateway: &Gateway, rule: &str) {
    wait_for(&format!("what waits under \"{rule}\""), || {
        let line = line(gateway);
        match line.waiting.iter().any(|w| w.rule.contains(rule)) {
            true => Ok(()),
            false => Err(format!("{line:?}")),
        }
    });
}

fn stays_down(gateway: &Gateway) {
    thread::sleep(Duration::from_secs(2));
    let line = line(gateway);
    assert_eq!(line.state, "down", "{line:?}");
}

#[test]
fn a_name_that_is_noise_raises_nothing_neither_asked_for_nor_called() {
    if !root() {
        return;
    }
    let world = world(RULES);
    serve_names(&world.server);
    // The question has the name.
    ask(&world.client, "captive.apple.com");
    wait_for_waiting(&world.a, "iOS and macOS ask whether they are online");
    stays_down(&world.a);
    // A user's question raises the line, and the other crosses with it.
    assert!(answered(&ask(&world.client, "www.example.org")).ends_with(&USERS));
    assert!(answered(&ask(&world.client, "captive.apple.com")).ends_with(&NOISE));
    wait_for_state(&world.a, "down");
    // The host was told that this address is the name's.
    let client = world.client.clone();
    let caller = thread::spawn(move || try_connect(&client, "10.2.0.9:443"));
    wait_for_waiting(&world.a, "iOS and macOS ask whether they are online");
    stays_down(&world.a);
    // This one is nobody's, whatever a server says that was not asked.
    let listener = listen(&world.server, SERVER);
    let _near = connect(&world.client, SERVER);
    accept(&listener);
    drop(world);
    let _ = caller.join();
}

#[test]
fn a_rule_that_fails_fast_has_its_hosts_told_while_the_line_is_down() {
    if !root() {
        return;
    }
    let world = world(RULES);
    let listener = listen(&world.server, "10.2.0.2:8082");
    let refused = |to: &str| {
        let begin = Instant::now();
        let told = try_connect(&world.client, to).expect_err("the line is down");
        assert_eq!(told.kind(), ErrorKind::NetworkUnreachable, "{told}");
        assert!(begin.elapsed() < Duration::from_secs(2), "{:?}", begin.elapsed());
    };
    refused("10.2.0.2:8081");
    stays_down(&world.a);
    // This one raises it for its next try.
    refused("10.2.0.2:8082");
    wait_for_state(&world.a, "up");
    let mut near = connect(&world.client, "10.2.0.2:8082");
    let mut far = accept(&listener);
    // What stands lives through the next pause.
    wait_for_state(&world.a, "down");
    near.write_all(b"later").expect("it stands");
    crate::tcp::expect(&mut far, b"later");
}

/// Small mails are gathered in connections of their own, and then somebody wants a page: it raises
/// the line, and goes before them.
#[test]
fn what_raised_the_line_goes_before_what_was_gathered() {
    if !root() {
        return;
    }
    const MAIL: usize = 400;
    const MAILS: usize = 8;
    let line_of =
        |name: &str, number: &str| LineConfig { name: name.into(), number: number.into() };
    let config = ExchangeConfig {
        lines: vec![line_of("ship", "100"), line_of("shore", "200")],
        rate: BitRate::from_bps(4_800),
        delay: Time::from_millis(100),
        setup: Time::from_secs(1),
        training: Time::from_millis(100),
        ..Default::default()
    };
    let modems = Modems::start(config, 3, None).expect("ptys");
    let rate = BitRate::from_bps(3_840);
    let mut plan = Plan { rate, delay_ms: 100, ..Plan::default() };
    plan.a.open = Some("fast");
    let rules = "idle = \"60s\"\n[[peer.line.demand]]\nname = \"mail\"\nports = [25]\n\
        then = \"batch\"\nage = \"1h\"\n";
    let world: World = called_world_with(&modems, plan, rules, |text| text);
    let (mails, pages) = (listen(&world.server, "10.2.0.2:25"), listen(&world.server, SERVER));
    // Before the first contact the gateway takes no bytes of hosts, and counts none.
    let first = connect(&world.client, SERVER);
    accept(&pages);
    drop(first);
    link(&world.a, "down");
    wait_for_state(&world.a, "down");
    link(&world.a, "auto");
    let near: Vec<TcpStream> = (0..MAILS as u64)
        .map(|n| {
            let mut stream = connect(&world.client, "10.2.0.2:25");
            stream.write_all(&pattern(n, MAIL)).expect("the gateway takes it");
            stream
        })
        .collect();
    wait_for("mails that wait", || {
        let line = line(&world.a);
        let all =
            |w: &bentpipe::admin::LineWaiting| w.rule == "mail" && w.bytes >= (MAILS * MAIL) as u64;
        if line.waiting.iter().any(all) { Ok(()) } else { Err(format!("{line:?}")) }
    });
    stays_down(&world.a);
    let mut page = connect(&world.client, SERVER);
    page.write_all(&pattern(9, 100)).expect("the gateway takes it");
    let mut asked = accept(&pages);
    crate::tcp::expect(&mut asked, &pattern(9, 100));
    // What has come of the mails by now: what shared a packet with it, or followed it already.
    let mut far: Vec<TcpStream> = near.iter().map(|_| accept(&mails)).collect();
    let mut early = 0;
    for stream in &mut far {
        stream.set_nonblocking(true).expect("a mode");
        let mut bytes = [0; 2 * MAIL];
        early += stream.read(&mut bytes).unwrap_or(0);
        stream.set_nonblocking(false).expect("a mode");
    }
    assert!(early < 3 * MAIL, "{early} bytes of mail came before the page that raised the line");
    // And all of it comes.
    drop(near);
    let mut rest = early;
    for stream in &mut far {
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a limit");
        rest += stream.read_to_end(&mut Vec::new()).expect("the rest");
    }
    assert_eq!(rest, MAILS * MAIL);
}

/// The hour of UTC, and those around it, as a line's `quiet` has them.
fn hours_around_now() -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let hour = now.expect("a clock").as_secs() / 3_600 % 24;
    format!("{:02}:00-{:02}:00", (hour + 23) % 24, (hour + 2) % 24)
}

/// R-DDR: hours in which nothing raises a line but what may, the longest call, and a month's
/// budget.
#[test]
fn quiet_hours_the_longest_call_and_the_budget_hold() {
    if !root() {
        return;
    }
    let rules = format!(
        "raise = \"echo raised >> CALLS\"\ndrop = \"echo dropped >> CALLS\"\nidle = \"60s\"\n\
         quiet = [\"{}\"]\nmax_call = \"3s\"\nbudget = \"5\"\n\
         tariff = {{ currency = \"USD\", per_minute = \"60\", increment = \"1s\" }}\n\
         [[peer.line.demand]]\nname = \"distress\"\nports = [7000]\nthen = \"raise\"\n\
         through_quiet = true\n",
        hours_around_now()
    );
    let world = world(&rules);
    let client = world.client.clone();
    // Somebody's page waits for the morning.
    let sleeper = thread::spawn(move || try_connect(&client, "10.2.0.2:8080"));
    wait_for_waiting(&world.a, "everything else");
    stays_down(&world.a);
    // What is urgent does not, and no call is longer than 3 s, though somebody talks all the time.
    let listener = listen(&world.server, SERVER);
    let mut near = connect(&world.client, SERVER);
    let mut far = accept(&listener);
    let talker = thread::spawn(move || {
        for n in 0..60 {
            let _ = near.write_all(&[n]);
            thread::sleep(Duration::from_millis(250));
        }
        near
    });
    let told = wait_for("a call that was long enough", || {
        let line = line(&world.a);
        match line.cause.contains("long") && line.state != "up" {
            true => Ok(line.cause),
            false => Err(format!("{line:?}")),
        }
    });
    assert!(told.contains("longest"), "{told}");
    // Calls of 3 s at a dollar a second: the second ends with the fifth dollar, and there is no
    // third.
    let spent = wait_for("a budget that is used up", || {
        let (cents, calls) = spent(&world);
        match calls == 2 && cents >= 400 {
            true => Ok(cents),
            false => Err(format!("{cents} cents, {calls} calls: {:?}", line(&world.a))),
        }
    });
    assert!(spent <= 500, "{spent} cents of 500");
    stays_down(&world.a);
    assert_eq!(self::spent(&world), (spent, 2), "nothing more is begun");
    let near = talker.join().expect("a thread");
    far.set_nonblocking(true).expect("a mode");
    assert_ne!(far.read(&mut [0; 64]).expect("bytes"), 0, "it stands");
    drop((near, world));
    let _ = sleeper.join();
}

/// Cents and calls of this month, those that are over.
fn spent(world: &World) -> (u64, u64) {
    let text = crate::line::books(&world.a, &["--json", "--by", "peer"]);
    let rows: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let Some(row) = rows.get(0) else { return (0, 0) };
    let price: f64 = row["price"].as_str().expect("a price").parse().expect("a number");
    ((price * 100.0).round() as u64, row["calls"].as_u64().expect("a number"))
}
