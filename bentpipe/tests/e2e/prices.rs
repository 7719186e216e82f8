//! Carriers that are there by themselves and have prices: what crossed by each is paid for, and the
//! cheapest carries everything where the file says so (R-COST, R-OLSP).

use serde_json::Value;
use units::BitRate;

use bentpipe::admin::{PathCause, PathState};

use crate::harness::{Plan, World, root, wait_for};
use crate::line::books;
use crate::paths::{path, start_with_second, wait_for_path};
use crate::tcp::{SERVER, joined, listen, pattern, read_to_end, send_all};

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

/// R-COST: a metered terminal that is always there has a month's budget. Above it everything goes by
/// the other carrier, and by this one again when the budget is raised.
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
    world.a.configure(|s| s.peer = carriers("100"));
    world.a.must(&["reload"]);
    wait_for_path([&world.a, &world.b], "geo", PathState::InUse);
}
