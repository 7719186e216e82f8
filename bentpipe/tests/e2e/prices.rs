//! Carriers that are there by themselves and have prices: what crossed by each is paid for, and the
//! cheapest carries everything where the file says so (R-COST, R-OLSP).

use std::io::Write as _;
use std::net::{SocketAddr, TcpListener, TcpStream};

use os::netns::NetNs;
use serde_json::Value;
use socket2::{Domain, Socket, Type};
use units::BitRate;

use bentpipe::admin::{PathCause, PathState};

use crate::harness::{PATIENCE, Plan, World, must, root, shell, wait_for};
use crate::line::{books, link, with_line};
use crate::paths::{command, path, start_with_second, wait_for_path};
use crate::tcp::{
    End, SERVER, accept, check_echo, expect, joined, listen, pattern, read_to_end, send_all,
    try_connect,
};

/// Millions of bytes, and the price in cents, by carrier.
fn paid(world: &World, carrier: &str) -> (f64, f64) {
    let rows: Value =
        serde_json::from_str(&books(&world.a, &["--json", "--by", "carrier"])).expect("JSON");
    let rows = rows.as_array().expect("rows");
    let Some(row) = rows.iter().find(|row| row["name"] == carrier) else { return (0.0, 0.0) };
    let bytes = |key: &str| row[key].as_u64().expect("bytes") as f64;
    let price: f64 = row["price"].as_str().expect("a price").parse().expect("a number");
    ((bytes("sent_bytes") + bytes("received_bytes")) / 1e6, price * 100.0)
}

/// A megabyte, other bytes for each seed.
fn upload(world: &World, seed: u64) {
    let listener = listen(&world.server, SERVER);
    let (near, mut far) = joined(&world.client, &listener);
    let data = pattern(seed, 1_000_000);
    let sending = send_all(&near, data.clone());
    let read = std::thread::spawn(move || read_to_end(&mut far).0);
    sending.join().expect("a thread").expect("sent");
    near.shutdown(std::net::Shutdown::Write).expect("an end");
    assert!(read.join().expect("a thread") == data);
}

#[test]
fn the_cheapest_carrier_carries_all_and_each_is_paid_by_its_tariff() {
    if !root() {
        return;
    }
    let mut plan = Plan { rate: BitRate::from_mbps(10), ..Plan::default() };
    plan.b.listen = "0.0.0.0:4500".into();
    plan.a.peer = "order = \"cost\"\n\
        [[peer.carrier]]\nname = \"geo\"\ntariff = { currency = \"USD\", per_megabyte = \"2\" }\n\
        [[peer.carrier]]\nname = \"lte\"\nendpoint = \"198.51.100.2:4500\"\n\
        interface = \"sat1\"\ntariff = { currency = \"USD\", per_megabyte = \"0.50\" }\n\
        link = { send = \"6Mbit\", receive = \"6Mbit\", delay = \"10ms\" }\n"
        .into();
    let (world, _second) = start_with_second(&plan);
    let both = |world: &World, used: &str, other: PathState| {
        let gateways = [&world.a, &world.b];
        wait_for_path(gateways, used, PathState::InUse);
        wait_for_path(gateways, if used == "lte" { "geo" } else { "lte" }, other);
    };
    // The first in the file is dear.
    both(&world, "lte", PathState::StandsBy);
    upload(&world, 1);
    let paid_once = |carrier: &'static str, price: f64| {
        wait_for("the books", || {
            let (megabytes, cents) = paid(&world, carrier);
            let is_right = (cents - megabytes * price).abs() <= 1.0;
            match megabytes >= 1.0 && is_right {
                true => Ok(()),
                false => Err(format!("{carrier}: {megabytes} MB, {cents} cents")),
            }
        });
    };
    paid_once("lte", 50.0);
    let (idle, _) = paid(&world, "geo");
    assert!(idle < 0.05, "{idle} MB by the carrier that only stands by");
    // Without it the other one carries, at its price.
    must_set(&world, "down");
    both(&world, "geo", PathState::Dead);
    upload(&world, 2);
    paid_once("geo", 200.0);
    must_set(&world, "up");
    both(&world, "lte", PathState::StandsBy);
}

fn must_set(world: &World, what: &str) {
    crate::harness::must(&world.gwa, &format!("ip link set sat1 {what}"));
    if what == "up" {
        // The kernel forgets no address of an interface that goes down.
        crate::harness::must(&world.gwa, "ip address replace 198.51.100.1/24 dev sat1");
    }
}

/// R-COST: a metered terminal that is always there has a month's budget. Above it everything goes
/// by the other carrier, and by this one again when the budget is raised.
#[test]
fn a_metered_carrier_is_set_down_at_the_budget_and_used_again_when_that_is_raised() {
    if !root() {
        return;
    }
    let carriers = |budget: &str| {
        format!(
            "budget = \"{budget}\"\n\
             [[peer.carrier]]\nname = \"geo\"\ntariff = {{ currency = \"USD\", per_megabyte = \"1\" }}\n\
             [[peer.carrier]]\nname = \"lte\"\nendpoint = \"198.51.100.2:4500\"\ninterface = \"sat1\"\n\
             link = {{ send = \"6Mbit\", receive = \"6Mbit\", delay = \"10ms\" }}\n"
        )
    };
    let mut plan = Plan { rate: BitRate::from_mbps(10), delay_ms: 20, ..Plan::default() };
    plan.b.listen = "0.0.0.0:4500".into();
    // 1.3 MB may be under way when the end is seen.
    plan.a.peer = carriers("3");
    let (mut world, _second) = start_with_second(&plan);
    wait_for_path([&world.a, &world.b], "geo", PathState::InUse);
    let listener = listen(&world.server, SERVER);
    let (near, mut far) = joined(&world.client, &listener);
    let data = pattern(3, 6_000_000);
    let sending = send_all(&near, data.clone());
    let read = std::thread::spawn(move || read_to_end(&mut far).0);
    sending.join().expect("a thread").expect("sent");
    near.shutdown(std::net::Shutdown::Write).expect("an end");
    assert!(read.join().expect("a thread") == data, "no byte is lost");
    assert_eq!(path(&world.a, "lte").state, PathState::InUse);
    let geo = path(&world.a, "geo");
    assert_eq!((geo.state, geo.cause), (PathState::Down, Some(PathCause::Budget)));
    assert_eq!(path(&world.b, "geo").state, PathState::PeerDown);
    world.a.wait_for_log("a month's budget is used up");
    let (_, cents) = paid(&world, "geo");
    assert!((100.0..=300.0).contains(&cents), "{cents} cents of 300");
    // The operator wants it down as well, which outlives the budget.
    assert!(command(&world.a, &["up", "geo"]).status.success());
    world.a.wait_for_log("the carrier comes up with the next month");
    assert_eq!(path(&world.a, "geo").cause, Some(PathCause::Budget), "nor by an order");
    assert!(command(&world.a, &["down", "geo"]).status.success());
    world.a.configure(|s| s.peer = carriers("100"));
    world.a.must(&["reload"]);
    wait_for("the budget to allow it", || match path(&world.a, "geo").cause {
        Some(PathCause::Down) => Ok(()),
        other => Err(format!("{other:?}")),
    });
    std::thread::sleep(std::time::Duration::from_secs(1));
    assert_eq!(path(&world.a, "geo").state, PathState::Down, "the operator said so");
    assert!(command(&world.a, &["up", "geo"]).status.success());
    wait_for_path([&world.a, &world.b], "geo", PathState::InUse);
}

/// Bytes of hosts and their price in cents, by address.
fn paid_by(world: &World, host: &str) -> (u64, f64, Value) {
    let rows: Value =
        serde_json::from_str(&books(&world.a, &["--json", "--by", "host"])).expect("JSON");
    let row = rows.as_array().expect("rows").iter().find(|row| row["name"] == host).cloned();
    let Some(row) = row else { return (0, 0.0, Value::Null) };
    let bytes = |key: &str| row[key].as_u64().expect("bytes");
    let price: f64 = row["price"].as_str().expect("a price").parse().expect("a number");
    (bytes("sent_bytes") + bytes("received_bytes"), price * 100.0, row["budget"].clone())
}

/// R-COST: two hosts on a line with a price by the megabyte, of which one has a budget for the
/// month. Its connections end where that does, what it begins fails as on a dead net, and the other
/// goes on.
#[test]
fn a_host_is_stopped_at_its_budget_the_other_goes_on_and_more_money_brings_it_back() {
    if !root() {
        return;
    }
    const OTHER: &str = "10.1.0.3";
    let line = |budget: &str| {
        format!(
            "[peer.line]\n\
             tariff = {{ currency = \"USD\", per_megabyte = \"1\" }}\n\
             [[peer.line.host_budget]]\nhosts = [\"10.1.0.2\"]\nbudget = \"{budget}\"\n"
        )
    };
    let world = World::with(|plan| (plan.rate, plan.delay_ms) = (BitRate::from_mbps(8), 20));
    let mut world = with_line(world, |_| line("2"));
    must(&world.client, &format!("ip address add {OTHER}/24 dev lan0"));
    let listener = listen(&world.server, SERVER);
    let (near, mut far) = joined(&world.client, &listener);
    let (theirs, mut their_far) = joined_as(&world.client, OTHER, &listener);
    // Each sends more than the first may pay for.
    let (its, data) = (pattern(4, 20_000_000), pattern(5, 4_000_000));
    let sending = [send_all(&near, its), send_all(&theirs, data.clone())];
    let read = std::thread::spawn(move || read_to_end(&mut their_far).0);
    let its_end = std::thread::spawn(move || read_to_end(&mut far).1);
    let [cut, whole] = sending.map(|thread| thread.join().expect("a thread"));
    assert!(cut.is_err(), "its connection is reset");
    assert_eq!(its_end.join().expect("a thread"), End::Reset, "at its server, too");
    whole.expect("sent");
    assert!(read.join().expect("a thread") == data, "nothing of the other's is lost");
    world.a.wait_for_log("a month's budget is nearly used up");
    world.a.wait_for_log("its host is stopped where it costs more");
    // A tenth of a second of the line is 0.1 MB, and as much again until the relay has stopped it.
    wait_for("the books", || {
        let (bytes, cents, budget) = paid_by(&world, "10.1.0.2");
        let is_right = (200.0..250.0).contains(&cents) && budget["stopped"] == true;
        if is_right { Ok(()) } else { Err(format!("{bytes} bytes, {cents} cents, {budget}")) }
    });
    let (before, ..) = paid_by(&world, "10.1.0.2");
    let [host] = &line_of(&world)[..] else { panic!("one host has a budget") };
    assert_eq!((&*host.host, &*host.budget, host.stopped), ("10.1.0.2", "2.00", true));
    let why = link(&world.a, "why");
    assert!(why.contains("10.1.0.2 is stopped: its month's budget is used up, 2."), "{why}");
    assert!(books(&world.a, &["--by", "host"]).contains("stopped, this month 2."));
    // What it begins is refused at once, in the words of a net that is dead; so are its packets.
    let refused = try_connect(&world.client, SERVER).expect_err("it has no money");
    let kind = refused.kind();
    assert_eq!(kind, std::io::ErrorKind::NetworkUnreachable, "{refused}");
    let ping = |from: &str| shell(&world.client, &format!("ping -c 2 -W 2 -I {from} 10.2.0.2"));
    assert!(!ping("10.1.0.2").status.success());
    assert!(ping(OTHER).status.success(), "the other host's packets pass");
    let dropped = world.a.status().node.dropped;
    assert!(
        dropped["budget used up"] >= 2 && dropped["connection over budget"] == 1,
        "{dropped:?}"
    );
    let (mut near, mut far) = joined_as(&world.client, OTHER, &listener);
    near.write_all(b"hello").expect("sent");
    expect(&mut far, b"hello");
    assert!(paid_by(&world, "10.1.0.2").0 <= before + 100_000, "nothing crosses any more");
    // With more money it is back.
    world.a.configure(|s| s.peer = line("100"));
    world.a.must(&["reload"]);
    check_echo(&world.client, &listener);
    assert_eq!(line_of(&world), []);
}

/// R-COST: a host without money goes on where that costs nothing.
#[test]
fn a_host_whose_budget_is_used_up_still_uses_a_carrier_without_a_price() {
    if !root() {
        return;
    }
    let mut plan = Plan { rate: BitRate::from_mbps(8), delay_ms: 20, ..Plan::default() };
    plan.b.listen = "0.0.0.0:4500".into();
    plan.a.peer = "[peer.line]\ncarrier = \"geo\"\n\
        tariff = { currency = \"USD\", per_megabyte = \"1\" }\n\
        [[peer.line.host_budget]]\nhosts = [\"10.1.0.2\"]\nbudget = \"1\"\n\
        [[peer.carrier]]\nname = \"geo\"\n\
        [[peer.carrier]]\nname = \"lte\"\nendpoint = \"198.51.100.2:4500\"\ninterface = \"sat1\"\n\
        link = { send = \"6Mbit\", receive = \"6Mbit\", delay = \"10ms\" }\n"
        .into();
    let (world, _second) = start_with_second(&plan);
    wait_for_path([&world.a, &world.b], "lte", PathState::InUse);
    upload(&world, 6);
    assert_eq!(line_of(&world), [], "it cost nothing");
    must_set(&world, "down");
    let listener = listen(&world.server, SERVER);
    let (near, mut far) = joined(&world.client, &listener);
    let its_end = std::thread::spawn(move || read_to_end(&mut far).1);
    assert!(send_all(&near, pattern(7, 20_000_000)).join().expect("a thread").is_err());
    assert_eq!(its_end.join().expect("a thread"), End::Reset);
    let refused = try_connect(&world.client, SERVER).expect_err("it has no money");
    assert_eq!(refused.kind(), std::io::ErrorKind::NetworkUnreachable, "{refused}");
    must_set(&world, "up");
    wait_for_path([&world.a, &world.b], "lte", PathState::InUse);
    wait_for("the free carrier", || match try_connect(&world.client, SERVER) {
        Ok(_) => Ok(()),
        Err(why) => Err(why.to_string()),
    });
    assert!(line_of(&world)[0].stopped, "where it costs");
}

/// A connection of a host with this address.
fn joined_as(ns: &NetNs, from: &str, listener: &TcpListener) -> (TcpStream, TcpStream) {
    let to = listener.local_addr().expect("an address");
    let from = SocketAddr::new(from.parse().expect("an address"), 0);
    let near = ns.run(|| {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        socket.bind(&from.into())?;
        socket.connect_timeout(&to.into(), PATIENCE)?;
        Ok::<TcpStream, std::io::Error>(socket.into())
    });
    (near.expect("it connects"), accept(listener))
}

fn line_of(world: &World) -> Vec<bentpipe::admin::LineHost> {
    world.a.status().links.remove(0).line.expect("a line").hosts
}
