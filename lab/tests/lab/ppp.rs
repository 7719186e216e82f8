//! Hosts that dial each other through the emulated telephone network, and what they are compared
//! with over an hour.

use std::net::UdpSocket;
use std::process::Command;
use std::time::Duration;

use bentpipe_lab::called::modems;
use bentpipe_lab::ppp::line::{DEVICE, Line, Step};
use exchange::ExchangeConfig;
use os::netns::{NetNs, root};
use units::BitRate;

const PATIENCE: Duration = Duration::from_secs(60);

fn ip(host: &NetNs, words: &str) {
    let done = host.command("ip").args(words.split(' ')).output().expect("ip");
    assert!(done.status.success(), "{words}: {}", String::from_utf8_lossy(&done.stderr));
}

#[test]
fn two_hosts_dial_agree_and_reach_each_other() {
    if !root() {
        return;
    }
    let quick = units::Duration::from_millis(100);
    let network = ExchangeConfig {
        rate: BitRate::from_bps(57_600),
        delay: units::Duration::from_millis(50),
        setup: quick,
        training: quick,
        ..ExchangeConfig::default()
    };
    let space = |role: &str| NetNs::unique("bplab", role).expect("a namespace");
    let (ship, shore) = (space("ppp-ship"), space("ppp-shore"));
    let dir = std::env::temp_dir().join(format!("{}-modems", ship.name()));
    let modems = modems(network, &dir).expect("modems");
    let answers = Line::start(&shore, &modems.paths()[1], None, 500).expect("a line");
    let calls = Line::start(&ship, &modems.paths()[0], Some("200"), 500).expect("a line");
    for (host, own, peer) in [(&ship, 1, 2), (&shore, 2, 1)] {
        ip(host, &format!("link set {DEVICE} up"));
        ip(host, &format!("addr add 10.77.4.{own} peer 10.77.4.{peer} dev {DEVICE}"));
    }
    for line in [&calls, &answers] {
        line.wait_for(Step::Network, PATIENCE).expect("a network");
    }
    let socket = |host: &NetNs, own: &str| {
        let socket = host.run(|| UdpSocket::bind(own)).expect("a socket");
        socket.set_read_timeout(Some(PATIENCE)).expect("a socket");
        socket
    };
    let (near, far) = (socket(&ship, "10.77.4.1:7"), socket(&shore, "10.77.4.2:7"));
    let content: Vec<u8> = (0..400).map(|n| n as u8).collect();
    let mut got = [0; 500];
    for (from, to, at) in [(&near, &far, "10.77.4.2:7"), (&far, &near, "10.77.4.1:7")] {
        from.send_to(&content, at).expect("sent");
        let n = to.recv(&mut got).expect("it comes");
        assert_eq!(got[..n], content);
    }
    assert_eq!(modems.calls().len(), 1);
    drop((calls, answers));
    drop(modems);
    let _ = std::fs::remove_dir_all(&dir);
}

/// The day at 60 times its speed, line and all: what is said is answered, and the careful ship
/// calls less.
#[test]
#[ignore = "takes a minute"]
fn a_ships_day_passes_for_real() {
    if !root() {
        return;
    }
    let mut day = Command::new(env!("CARGO_BIN_EXE_bentpipe-lab"));
    let output = day.args(["-q", "day", "--real", "--speed-up", "60", "--json"]).output();
    let output = output.expect("the program starts");
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    let days: serde_json::Value = serde_json::from_slice(&output.stdout).expect(&errors);
    let number = |day: usize, key: &str| days[day][key].as_u64().expect("a number");
    assert!(number(2, "calls") >= 1 && number(2, "calls") < number(3, "calls"), "{days}");
    for day in [2, 3] {
        assert_eq!(days[day]["real"]["unanswered_urgent"], 0, "{days}");
        assert!(days[day]["real"]["answered"].as_u64() >= Some(11), "{days}");
    }
}
