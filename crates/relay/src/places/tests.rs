use std::net::SocketAddr;

use link::wire::{Origin, Target};
use units::Duration;

use super::*;
use crate::gateways::{Gateways, PEER, link};
use crate::{ClassId, Open};

fn origin(host: u8, port: u16) -> Origin {
    let client = SocketAddr::from(([10, 1, 0, host], 40_000));
    let target = Target::Address(([10, 2, 0, 2], port).into());
    Origin { client: Some(client), target, dscp: 0 }
}

/// Gateways with room for so many connections, of which the far one has less.
fn gateways(near: u32, far: u32) -> Gateways {
    let links =
        [near, far].map(|n| link::session::LinkConfig { max_streams: streams_for(n), ..link() });
    let mut g = Gateways::apart(links, |policy| policy.open = Open::Fast);
    g.meet();
    g
}

/// Time passes, and servers accept.
fn pass(g: &mut Gateways, ms: u64) {
    g.pass(Duration::from_millis(ms));
    for far in std::mem::take(&mut g.asked) {
        g.sides[1].connected(far);
    }
}

/// What the near gateway's flows came to.
fn aborted(g: &mut Gateways) -> Vec<FlowId> {
    let mut all = vec![];
    for action in std::mem::take(&mut g.others) {
        if let Action::Abort(flow, _) | Action::PeerReset(flow, _) = action {
            g.sides[0].closed(g.now, flow);
            all.push(flow);
        }
    }
    all
}

#[test]
fn streams_for_connections_leave_room_for_just_these() {
    for n in (1..20_000).chain([100_000]) {
        assert_eq!(connections_of(streams_for(n)), n as usize, "{n}");
    }
}

#[test]
fn a_host_that_holds_all_streams_for_ever_costs_the_others_no_refusal() {
    for (near, far) in [(1_000, 1_000), (1_000, 200)] {
        let mut g = gateways(near, far);
        let (mut hogs, mut refused) = (vec![], 0);
        // Its servers stand, and nobody ever reads or writes.
        for n in 0..1_500 {
            match g.sides[0].open(g.now, PEER, origin(66, 1_000 + n)) {
                Some(flow) => hogs.push(flow),
                None => refused += 1,
            }
            if n % 10 == 0 {
                pass(&mut g, 5);
            }
        }
        pass(&mut g, 500);
        aborted(&mut g);
        let held = g.near().flow_count();
        assert_eq!(held, near.min(far) as usize, "a host alone may have all of them");
        let mut others = vec![];
        for round in 0..3 {
            for host in 100..149 {
                let flow = g.sides[0].open(g.now, PEER, origin(host, 80 + round));
                others.push(flow.expect("an honest host is refused"));
                pass(&mut g, 2);
            }
        }
        pass(&mut g, 500);
        let gone = aborted(&mut g);
        assert!(gone.iter().all(|flow| hogs.contains(flow)), "an honest host's gave way");
        assert!(others.iter().all(|flow| g.near().flow_peer(*flow).is_some()));
        println!("{refused} of the hog's refused, {} gave way; {:?}", gone.len(), g.near().stats());
        assert_eq!(g.near().flow_count(), near.min(far) as usize);
    }
}

#[test]
fn what_moves_and_what_is_interactive_gives_way_last() {
    let mut g = gateways(64, 64);
    let kept = g.sides[0].open(g.now, PEER, Origin { dscp: 46, ..origin(66, 22) }).unwrap();
    assert_eq!(g.near().flows.get(kept).unwrap().kind.class, ClassId::INTERACTIVE);
    let hogs: Vec<_> =
        (1..64).map(|n| g.sides[0].open(g.now, PEER, origin(66, n)).unwrap()).collect();
    pass(&mut g, 100);
    let now = g.now;
    for flow in &hogs[1..] {
        g.sides[0].local_data(now, *flow, b"x");
    }
    assert!(g.near().flow_peer(kept).is_some());
    assert!(g.sides[0].open(now, PEER, origin(7, 80)).is_some());
    pass(&mut g, 5);
    assert_eq!(aborted(&mut g), [hogs[0]], "what moved stays");
}

#[test]
fn those_who_have_as_many_as_everybody_displace_nobody() {
    let mut g = gateways(64, 64);
    for n in 0..64 {
        assert!(g.sides[0].open(g.now, PEER, origin(n, 80)).is_some());
    }
    assert!(g.sides[0].open(g.now, PEER, origin(5, 80)).is_none());
    assert!(g.sides[0].open(g.now, PEER, origin(200, 80)).is_none());
    assert_eq!(g.near().stats().full, 2);
    pass(&mut g, 5);
    assert_eq!(aborted(&mut g), []);
}
