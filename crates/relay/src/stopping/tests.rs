//! Hosts whose budget is used up, and others beside them.

use std::net::SocketAddr;

use link::wire::{Origin, Target};
use units::Duration;

use super::*;
use crate::gateways::{Gateways, PEER};
use crate::packet::{UDP, plain, syn};
use crate::{Action, Open, Verdict};

const SERVER: &str = "10.2.0.2";

fn addr(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn origin(host: &str) -> Origin {
    let client = SocketAddr::new(addr(host), 40_000);
    let target = Target::Address((addr(SERVER), 80).into());
    Origin { client: Some(client), target, dscp: 0 }
}

fn stop(gateways: &mut Gateways, hosts: &[&str], classes: u32) {
    let hosts = hosts.iter().map(|host| addr(host)).collect();
    let now = gateways.now;
    gateways.sides[0].stop_hosts(now, PEER, StoppedHosts { hosts, classes });
}

fn datagram(from: &str, to: &str) -> Vec<u8> {
    plain(addr(from), addr(to), UDP, &[0x10, 0, 0x20, 0, 0, 12, 0, 0, 1, 2, 3, 4])
}

/// What becomes of a host's datagram.
fn sends(gateways: &mut Gateways, from: &str, to: &str) -> Verdict {
    let mut packet = datagram(from, to);
    gateways.sides[0].handle_tun(gateways.now, &mut packet, false)
}

#[test]
fn what_a_stopped_host_has_is_reset_and_what_it_begins_is_refused_as_on_a_dead_net() {
    let mut g = Gateways::new(Open::Fast);
    let [its, others] = ["10.1.0.2", "10.1.0.3"].map(|host| {
        let now = g.now;
        g.sides[0].open(now, PEER, origin(host)).expect("a place")
    });
    g.pass(Duration::from_millis(100));
    for far in std::mem::take(&mut g.asked) {
        g.sides[1].connected(far);
    }
    g.pass(Duration::from_millis(100));
    g.others.clear();
    stop(&mut g, &["10.1.0.2"], u32::MAX);
    g.pass(Duration::from_millis(100));
    let aborted = |g: &Gateways, id| {
        g.others.iter().any(|a| matches!(a, Action::Abort(flow, _) if *flow == id))
    };
    assert!(aborted(&g, its) && !aborted(&g, others), "{:?}", g.others);
    assert_eq!(g.sides[0].flow_count(), 1);
    assert_eq!(g.sides[0].stats().stopped, 1);
    // Connections that are not asked for by SYNs, and such as are.
    let now = g.now;
    assert_eq!(g.sides[0].open(now, PEER, origin("10.1.0.2")), None);
    assert_eq!(g.sides[0].open(now, PEER, origin("::ffff:10.1.0.2")), None);
    g.written.clear();
    let knock = |from: &str| syn((addr(from), 4_000).into(), (addr(SERVER), 80).into(), 5);
    assert_eq!(g.knock(&knock("10.1.0.2")), Verdict::Refused);
    g.pass(Duration::from_millis(10));
    let [error] = &g.written[..] else { panic!("{:?}", g.written) };
    assert_eq!((error[9], error[20], error[21]), (1, 3, 0), "ICMP: the net is unreachable");
    assert_eq!(g.knock(&knock("10.1.0.3")), Verdict::Intercept);
    assert_eq!(g.sides[0].stats().over_budget, 3);
    // It has money again.
    stop(&mut g, &[], u32::MAX);
    assert_eq!(g.knock(&knock("10.1.0.2")), Verdict::Intercept);
}

#[test]
fn datagrams_of_a_stopped_host_are_dropped_and_counted_both_ways() {
    let mut g = Gateways::new(Open::Fast);
    stop(&mut g, &["10.1.0.2"], u32::MAX);
    assert_eq!(sends(&mut g, "10.1.0.2", SERVER), Verdict::Refused);
    assert_eq!(sends(&mut g, "10.1.0.3", SERVER), Verdict::Sent);
    g.pass(Duration::from_millis(100));
    assert!(matches!(&g.others[..], [Action::ToHost(_)]), "{:?}", g.others);
    let now = g.now;
    for host in ["10.1.0.2", "10.1.0.3"] {
        let mut packet = datagram(SERVER, host);
        assert_eq!(g.sides[1].handle_tun(now, &mut packet, false), Verdict::Sent);
    }
    g.pass(Duration::from_millis(100));
    let (now, mut came) = (g.now, vec![]);
    while g.sides[0].poll_tun(now, |packet| came.push(packet.to_vec())) {}
    assert_eq!(came, [datagram(SERVER, "10.1.0.3")]);
    assert_eq!(g.sides[0].stats().over_budget, 2);
}

#[test]
fn classes_that_cost_nothing_go_on_until_they_do() {
    let mut g = Gateways::new(Open::Fast);
    let now = g.now;
    let flow = g.sides[0].open(now, PEER, origin("10.1.0.2")).expect("a place");
    g.sides[0].announce(flow);
    let others = !(1 << ClassId::NORMAL.index());
    stop(&mut g, &["10.1.0.2"], others);
    assert_eq!(g.sides[0].flow_count(), 1);
    assert_eq!(sends(&mut g, "10.1.0.2", SERVER), Verdict::Sent);
    stop(&mut g, &["10.1.0.2"], u32::MAX);
    assert_eq!(g.sides[0].flow_count(), 0);
    assert_eq!(sends(&mut g, "10.1.0.2", SERVER), Verdict::Refused);
}
