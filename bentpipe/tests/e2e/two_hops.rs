//! Three nodes in a row: what is connected for one peer and leads behind another is split
//! again, so that a path over two satellites is two links that are full.
//!
//! ```text
//!  client ──── a ════ satellite 1 ════ b ════ satellite 2 ════ c ──── server
//!  10.1.0.2    192.0.2.1       192.0.2.2 │ 198.51.100.1     .2      10.3.0.2
//!  fd01::2                                                          fd03::2
//! ```

use std::io::{ErrorKind, Read as _, Write as _};
use std::thread;
use std::time::Instant;

use bentpipe::admin::LinkStatus;
use bentpipe_lab::emulate::{Emulator, EmulatorHandle, EmulatorOptions};
use channel::ChannelConfig;
use os::netns::{NetNs, veth};
use os::port::Port;
use units::{BitRate, Ratio};

use crate::gateway::{Gateway, Keys, Settings};
use crate::harness::{LAN, PATIENCE, Plan, Scratch, must, pings_over_losses, root, wait_for};
use crate::tcp::{
    End, check_echo, echo_once, end_within, joined, listen, pattern, read_to_end, reset, send_all,
    try_connect,
};

const SERVER: &str = "10.3.0.2:7000";
const SERVER_V6: &str = "[fd03::2]:7000";
/// The rates of the two satellites, both ways.
const RATES: [&str; 2] = ["12Mbit", "8Mbit"];
const DELAY_MS: u64 = 50;

/// Programs are dropped before the networks they run in.
struct Row {
    a: Gateway,
    b: Gateway,
    c: Gateway,
    client: NetNs,
    gwb: NetNs,
    server: NetNs,
    _more: [NetNs; 2],
    _links: [EmulatorHandle; 2],
    _dir: Scratch,
}

impl Row {
    /// All nodes, up. `open`: when a client is answered; `source`: what b and c show of it;
    /// `shards`: those of b.
    fn new(label: &str, open: &'static str, source: &'static str, shards: usize) -> Row {
        let space =
            |role: &str| NetNs::unique("bpe2e", &format!("{label}-{role}")).expect("a namespace");
        let (client, server) = (space("client"), space("server"));
        let (gwa, gwb, gwc) = (space("a"), space("b"), space("c"));
        veth(&client, LAN, &gwa, LAN).expect("a cable");
        veth(&server, LAN, &gwc, LAN).expect("a cable");
        let links = [
            satellite(RATES[0], (&gwa, "sat1"), (&gwb, "sat1")),
            satellite(RATES[1], (&gwb, "sat2"), (&gwc, "sat2")),
        ];
        for (ns, device, address) in [
            (&client, LAN, "10.1.0.2/24"),
            (&client, LAN, "fd01::2/64"),
            (&gwa, LAN, "10.1.0.1/24"),
            (&gwa, LAN, "fd01::1/64"),
            (&gwa, "sat1", "192.0.2.1/24"),
            (&gwb, "sat1", "192.0.2.2/24"),
            (&gwb, "sat1", "fd00:5a7::2/64"),
            (&gwb, "sat2", "198.51.100.1/24"),
            (&gwc, "sat2", "198.51.100.2/24"),
            (&gwc, LAN, "10.3.0.1/24"),
            (&gwc, LAN, "fd03::1/64"),
            (&server, LAN, "10.3.0.2/24"),
            (&server, LAN, "fd03::2/64"),
        ] {
            ns.address(device, address).expect("an address");
        }
        for (ns, v4, v6) in [(&client, "10.1.0.1", "fd01::1"), (&server, "10.3.0.1", "fd03::1")] {
            ns.route(&format!("default via {v4}")).expect("a route");
            ns.route(&format!("default via {v6}")).expect("a route");
        }
        for ns in [&gwa, &gwb, &gwc] {
            ns.make_router().expect("a router");
        }
        let dir = Scratch::new(label);
        let (keys, [keys_a, keys_c]) = (Keys::new(), Keys::pair());
        let ships = vec!["10.1.0.0/24", "fd01::/64"];
        let servers = vec!["10.3.0.0/24", "fd03::/64"];
        let plan = |rate: &str| Plan {
            rate: rate.parse().expect("a rate"),
            delay_ms: DELAY_MS,
            ..Plan::default()
        };
        let ship = Settings { open: Some(open), routes: servers.clone(), ..Settings::ship() };
        // It knows what is behind b only as far as sources are kept.
        let kept = if source == "keep" { ships.clone() } else { vec![] };
        let far = Settings {
            listen: "198.51.100.2:4500".into(),
            routes: kept,
            allow: servers.clone(),
            source: Some(source),
            ..Settings::shore()
        };
        let a = Gateway::new("a", &gwa, dir.sub("a"), ship, &keys_a, &keys, &plan(RATES[0]));
        let c = Gateway::new("c", &gwc, dir.sub("c"), far, &keys_c, &keys, &plan(RATES[1]));
        let middle = Settings::shore();
        let b = Gateway::new("b", &gwb, dir.sub("b"), middle, &keys, &keys_a, &plan(RATES[0]));
        let peer = |name: &str, of: &Keys, routes: &[&str], rest: String, rate: &str| {
            format!(
                "[[peer]]\nname = \"{name}\"\npublic_key = \"{}\"\nroutes = {routes:?}\n\
                 open = \"{open}\"\nsource = \"{source}\"\n{rest}\n\
                 link = {{ send = \"{rate}\", receive = \"{rate}\", delay = \"{DELAY_MS}ms\" }}\n",
                of.public
            )
        };
        b.write(&format!(
            "[node]\nprivate_key = \"{}\"\nlisten = \"0.0.0.0:4500\"\nadmin = \"admin.sock\"\n\
             tun = \"bp0\"\nshards = {shards}\n{}{}",
            keys.private,
            peer("a", &keys_a, &ships, format!("allow = {servers:?}"), RATES[0]),
            peer(
                "c",
                &keys_c,
                &servers,
                format!("allow = {ships:?}\nendpoint = \"198.51.100.2:4500\""),
                RATES[1]
            ),
        ));
        let (_more, _links, _dir) = ([gwa, gwc], links, dir);
        let mut row = Row { a, b, c, client, gwb, server, _more, _links, _dir };
        for gateway in [&mut row.b, &mut row.c, &mut row.a] {
            gateway.start();
        }
        for gateway in [&mut row.a, &mut row.b, &mut row.c] {
            gateway.wait_until_up();
        }
        row
    }

    /// b's links to a and c.
    fn hops(&self) -> [LinkStatus; 2] {
        self.b.status().links.try_into().unwrap_or_else(|_| panic!("two links"))
    }
}

fn satellite(rate: &str, left: (&NetNs, &str), right: (&NetNs, &str)) -> EmulatorHandle {
    let one = ChannelConfig {
        rate: Some(rate.parse::<BitRate>().expect("a rate")),
        delay: units::Duration::from_millis(DELAY_MS),
        loss: Ratio::from_f64(0.005),
        ..ChannelConfig::default()
    };
    let port = |(ns, name): (&NetNs, &str)| ns.run(|| Port::tap(None, name, 1500)).expect("a port");
    let options = EmulatorOptions { seed: 7, ..EmulatorOptions::default() };
    Emulator::start(port(left), port(right), one.clone(), one, options).expect("a link")
}

/// Bytes both ways, in full; both hops are streams; and what was not split is little.
fn check_both_hops(row: &Row, at: &str, len: usize) {
    let before = row.hops();
    let listener = listen(&row.server, at);
    let (mut near, mut far) = joined(&row.client, &listener);
    let begin = Instant::now();
    let [up, down] = [1, 2].map(|seed| pattern(seed, len));
    let sending = [send_all(&near, up.clone()), send_all(&far, down.clone())];
    let reader = thread::spawn(move || read_to_end(&mut far));
    assert!(read_to_end(&mut near) == (down, End::Clean), "down by {at}");
    assert!(reader.join().unwrap() == (up, End::Clean), "up by {at}");
    for s in sending {
        s.join().unwrap().unwrap();
    }
    let rate = len as f64 * 8.0 / begin.elapsed().as_secs_f64() / 1e6;
    eprintln!("{at}: {rate:.2} Mbit/s each way over {RATES:?}, loss 0.5 % on both");
    for (before, after) in before.iter().zip(row.hops()) {
        assert_eq!(
            after.streams_total,
            before.streams_total + 1,
            "{at}: one stream to {}",
            after.peer
        );
        let crossed = after.datagrams.sent + after.datagrams.received;
        let earlier = before.datagrams.sent + before.datagrams.received;
        assert!(crossed - earlier < 50, "{at}: {crossed} packets crossed to {}", after.peer);
    }
}

fn wait_until_no_streams(row: &Row) {
    for gateway in [&row.a, &row.b, &row.c] {
        wait_for(&format!("no streams at {}", gateway.name()), || {
            let open: u64 = gateway.status().links.iter().map(|l| l.streams_open).sum();
            (open == 0).then_some(()).ok_or(format!("{open} are open"))
        });
    }
}

#[test]
fn a_path_over_two_satellites_is_two_streams_whose_client_the_server_sees() {
    if !root() {
        return;
    }
    let row = Row::new("hop-keep", "auto", "keep", 1);
    for at in [SERVER, SERVER_V6] {
        check_both_hops(&row, at, 3_000_000);
    }
    let listener = listen(&row.server, "10.3.0.2:7001");
    let (near, far) = joined(&row.client, &listener);
    assert_eq!(far.peer_addr().unwrap(), near.local_addr().unwrap(), "sources are kept");
    drop((near, far));
    // What is not split takes the same way as packets.
    pings_over_losses(&row.client, "10.3.0.2");
    wait_until_no_streams(&row);
}

#[test]
fn a_hub_with_its_own_address_and_peers_on_two_threads_joins_them_too() {
    if !root() {
        return;
    }
    let row = Row::new("hop-nat", "sure", "nat", 2);
    let shards = row.hops().map(|l| l.shard);
    assert_eq!(shards, [0, 1], "the two hops are on different threads");
    for at in [SERVER, SERVER_V6] {
        check_both_hops(&row, at, 1_500_000);
        // Refused behind the second hop is refused before the first.
        let closed = at.replace("7000", "9");
        let error = try_connect(&row.client, &closed).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{closed}");
    }
    // A reset goes all the way, and so does an end.
    let listener = listen(&row.server, "10.3.0.2:7001");
    let (mut near, far) = joined(&row.client, &listener);
    reset(far);
    assert_eq!(read_to_end(&mut near).1, End::Reset);
    check_echo(&row.client, &listener);
    wait_until_no_streams(&row);
}

#[test]
fn what_a_peer_may_not_reach_behind_another_stays_denied() {
    if !root() {
        return;
    }
    // Asked first, so that a client hears of it before it stands.
    let row = Row::new("hop-deny", "sure", "nat", 1);
    let listener = listen(&row.server, SERVER);
    check_echo(&row.client, &listener);
    let text = std::fs::read_to_string(row.b.file()).unwrap();
    row.b.write(&text.replace("allow = [\"10.3.0.0/24\", \"fd03::/64\"]", "allow = []"));
    row.b.signal("HUP");
    row.b.wait_for_log("the configuration was read again");
    assert!(try_connect(&row.client, SERVER).is_err(), "b permits nothing any more");
    assert_eq!(row.hops()[1].streams_total, 1, "c is not even asked");
}

#[test]
fn killed_between_two_hops_a_hub_resets_its_connections_and_leaves_nothing() {
    if !root() {
        return;
    }
    let mut row = Row::new("hop-kill", "auto", "nat", 1);
    let listener = listen(&row.server, SERVER);
    let (mut near, mut far) = joined(&row.client, &listener);
    near.write_all(b"word").unwrap();
    let mut word = [0; 4];
    far.read_exact(&mut word).unwrap();
    row.b.kill();
    wait_for("the rules to go", || {
        let rules = must(&row.gwb, "ip rule; ip -6 rule; nft list ruleset");
        let left = ["lookup 25400", "lookup 25401", "flags owner"];
        (!left.iter().any(|l| rules.contains(l))).then_some(()).ok_or(rules)
    });
    row.b.start();
    let fresh = listen(&row.server, "10.3.0.2:7001");
    wait_for("a new connection", || echo_once(&row.client, &fresh).map_err(|e| e.to_string()));
    assert_eq!(end_within(&mut near, PATIENCE), Some(End::Reset));
}
