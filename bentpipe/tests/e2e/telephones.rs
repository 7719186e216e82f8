//! Telephone lines that answer for all peers: a hunt group (R-MODEM).

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use bentpipe::admin::TelephoneReport;
use bentpipe_lab::modem::Modems;
use exchange::{ExchangeConfig, LineConfig};
use units::{BitRate, Duration as Time};

use crate::documents::{GUIDE, put, toml};
use crate::gateway::{Gateway, Keys};
use crate::harness::{Plan, World, must, root, wait_for};
use crate::line::{guides_modem, link, wait_for_state};
use crate::tcp::{SERVER, expect, joined, listen};

/// A ship, a stranger, and a shore with two lines of one number.
fn telephones() -> Modems {
    let line = |name: &str, number: &str| LineConfig { name: name.into(), number: number.into() };
    let lines =
        vec![line("ship", "100"), line("one", "200"), line("two", "200"), line("stranger", "300")];
    let quick = Time::from_millis(100);
    let config = ExchangeConfig {
        lines,
        rate: BitRate::from_bps(57_600),
        delay: Time::from_millis(50),
        setup: quick,
        training: quick,
        ..ExchangeConfig::default()
    };
    Modems::start(config, 3, None).expect("ptys")
}

fn lines(gateway: &Gateway) -> Vec<TelephoneReport> {
    gateway.status().telephones
}

fn wait_for_lines(gateway: &Gateway, what: &str, is: impl Fn(&[TelephoneReport]) -> bool) {
    wait_for(what, || match lines(gateway) {
        lines if is(&lines) => Ok(()),
        lines => Err(format!("{lines:?}")),
    });
}

/// A ship with the guide's modem on the first line, which calls the second and hangs up when
/// nothing moves for so long. The shore's part is left to the test.
fn a_ship_that_calls(paths: &[PathBuf], idle: &str) -> Plan {
    let mut plan = Plan { rate: BitRate::from_bps(46_080), delay_ms: 50, ..Plan::default() };
    (plan.a.mtu, plan.b.mtu) = (500, 500);
    plan.a.endpoint = None;
    let [_, calls, _] = guides_modem(&paths[0], &paths[1]);
    plan.a.peer = format!("{calls}idle = {idle:?}\n");
    plan
}

/// A stranger has the first line, so the ship comes to the second; he is hung up and counted, and
/// the ship's next call comes to the first, with the session and the connections of the one before.
#[test]
fn a_peer_comes_in_by_any_line_of_the_group_and_a_stranger_is_hung_up_and_counted() {
    if !root() {
        return;
    }
    let modems = telephones();
    let paths = modems.paths();
    let mut plan = a_ship_that_calls(paths, "3s");
    // The guide's table, "one table for each modem". Who may call is slow: a stranger stays for
    // longer than this machine is busy.
    let telephone = |path: &Path| {
        let text = toml(GUIDE, "A shore with several modems answers for all its peers");
        put(text, "/dev/ttyUSB0", &path.display().to_string())
    };
    plan.b.peer = format!(
        "[[peer]]\nname = \"slow\"\npublic_key = \"{}\"\nprofile = \"mini-m\"\nend = \"hub\"\n{}{}",
        Keys::new().public,
        telephone(&paths[1]),
        put(&telephone(&paths[2]), "\"first\"", "\"second\""),
    );
    let mut world = World::without_gateways(&plan);
    world.set_link_down(true);
    for gateway in [&mut world.b, &mut world.a] {
        gateway.start();
        gateway.wait_for_log("bentpipe is up");
    }
    let device = os::serial::Settings { speed: 57_600, hardware_flow: false };
    let stranger = os::serial::Serial::open(&paths[3], device).expect("a modem");
    stranger.write(b"ATDT200\r");
    wait_for_lines(&world.b, "the stranger's call", |lines| lines[0].call_ms.is_some());

    let listener = listen(&world.server, SERVER);
    let (mut near, mut far) = joined(&world.client, &listener);
    near.write_all(b"hello").unwrap();
    expect(&mut far, b"hello");
    wait_for_lines(&world.b, "the ship's call", |lines| lines[1].peer.is_some());
    assert_eq!(lines(&world.b)[0].peer, None);
    wait_for_lines(&world.b, "a stranger that is hung up", |lines| {
        lines[0].call_ms.is_none() && (lines[0].calls, lines[0].strangers) == (1, 1)
    });
    assert!(lines(&world.b)[0].cause.contains("did not prove"), "{:?}", lines(&world.b));

    // In the next call the same session and connection, by the other line.
    wait_for_state(&world.a, "down");
    wait_for_lines(&world.b, "the end of the call", |lines| lines[1].call_ms.is_none());
    far.write_all(b"news from shore").unwrap();
    link(&world.a, "hold");
    near.write_all(b"the next morning").unwrap();
    expect(&mut far, b"the next morning");
    expect(&mut near, b"news from shore");
    wait_for_lines(&world.b, "the ship on the first line", |lines| lines[0].peer.is_some());
    assert_eq!(modems.calls().len(), 3, "the shore does not call");
    let lines = lines(&world.b);
    assert_eq!((lines[0].calls, lines[0].strangers), (2, 1), "{lines:?}");
    assert_eq!((lines[1].calls, lines[1].strangers), (1, 0), "{lines:?}");
    link(&world.a, "down");
    wait_for_state(&world.a, "down");
    drop((near, far));
}

/// The key of a gateway's first peer.
fn key_of_peer(gateway: &Gateway) -> String {
    let text = gateway.text();
    let (_, behind) = text.split_once("public_key = \"").expect("a peer");
    behind.split('"').next().expect("a key").to_owned()
}

/// The shore remembers where the ship was before it had a telephone, and there still is a way. A
/// session there would leave the ship's call, which it pays for, empty.
#[test]
fn who_calls_by_telephone_gets_no_session_where_he_was_before() {
    if !root() {
        return;
    }
    let modems = telephones();
    let paths = modems.paths();
    let mut plan = a_ship_that_calls(paths, "60s");
    let text = toml(GUIDE, "A shore with several modems answers for all its peers");
    plan.b.peer = put(text, "/dev/ttyUSB0", &paths[1].display().to_string());
    let mut world = World::without_gateways(&plan);
    let [ship, shore] = [key_of_peer(&world.b), key_of_peer(&world.a)];
    let remembered = format!("{}.endpoints.json", shore.replace('/', "_"));
    let before = format!("{{\"{ship}\":\"192.0.2.1:4500\"}}");
    fs::write(world.b.dir().join(remembered), before).unwrap();
    // The packets that the shore sends there.
    must(
        &world.gwb,
        "nft 'add table inet seen; add chain inet seen out { type filter hook output priority 0; }; \
         add rule inet seen out udp dport 4500 counter'",
    );
    for gateway in [&mut world.a, &mut world.b] {
        gateway.start();
        gateway.wait_for_log("bentpipe is up");
    }
    let listener = listen(&world.server, SERVER);
    let (mut near, mut far) = joined(&world.client, &listener);
    near.write_all(b"by telephone").unwrap();
    expect(&mut far, b"by telephone");
    far.write_all(b"and back").unwrap();
    expect(&mut near, b"and back");
    wait_for_lines(&world.b, "the ship's call", |lines| lines[0].peer.is_some());
    assert_eq!(modems.calls().len(), 1);
    let seen = must(&world.gwb, "nft list table inet seen");
    assert!(seen.contains("counter packets 0 bytes 0"), "{seen}");
    link(&world.a, "down");
    wait_for_state(&world.a, "down");
}
