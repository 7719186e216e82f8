//! Hosts that hold many streams, and what others lose by it.

use std::net::SocketAddr;

use link::wire::{Origin, Target};
use units::Duration;

use super::*;
use crate::gateways::{Gateways, PEER, address, link};
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

/// As one host of IPv6 may, or one that answers for many addresses of its LAN.
#[test]
fn a_host_with_many_addresses_of_its_network_costs_those_of_others_no_refusal() {
    let forged: [fn(u16) -> String; 2] =
        [|n| format!("[fd01::{n:x}]:40000"), |n| format!("10.1.1.{}:{n}", n % 250)];
    for forged in forged {
        let room = || link::session::LinkConfig { max_streams: streams_for(200), ..link() };
        let mut g = Gateways::apart([room(), room()], |policy| {
            (policy.open, policy.keep_source) = (Open::Fast, false);
        });
        g.meet();
        let client = |client: &str, port| {
            let client = Some(client.parse().expect("an address"));
            Origin { client, ..origin(0, port) }
        };
        let hogs: Vec<_> = (1..=200)
            .map(|n| g.sides[0].open(g.now, PEER, client(&forged(n), n)).expect("a place"))
            .collect();
        pass(&mut g, 100);
        let mut others = vec![];
        for round in 0..2 {
            for host in 100..149 {
                let flow = g.sides[0].open(g.now, PEER, origin(host, 80 + round));
                others.push(flow.unwrap_or_else(|| panic!("{}: {host} is refused", forged(1))));
                pass(&mut g, 2);
            }
        }
        pass(&mut g, 500);
        let gone = aborted(&mut g);
        assert!(gone.iter().all(|flow| hogs.contains(flow)), "an honest host's gave way");
        assert!(others.iter().all(|flow| g.near().flow_peer(*flow).is_some()));
        let held = hogs.iter().filter(|flow| g.near().flow_peer(**flow).is_some()).count();
        println!("{} gave way, {held} are held", gone.len());
        // They have as many as the others together, and hold them.
        assert!(g.sides[0].open(g.now, PEER, client(&forged(1), 999)).is_none());
    }
}

/// A pipe with the delay of a satellite.
struct Delayed {
    g: Gateways,
    wire: std::collections::VecDeque<(Instant, usize, Vec<u8>)>,
}

impl Delayed {
    fn pass(&mut self, ms: u64) {
        let mut buf = [0; 2048];
        for _ in 0..ms {
            self.g.now += Duration::from_millis(1);
            let now = self.g.now;
            while self.wire.front().is_some_and(|(at, ..)| *at <= now) {
                let (_, from, mut packet) = self.wire.pop_front().expect("there is one");
                self.g.sides[1 - from].handle_carrier(now, now, address(from), &mut packet);
            }
            for side in 0..2 {
                self.g.sides[side].handle_timeout(now);
                self.g.act(side);
                while let Some(t) = self.g.sides[side].poll_transmit(now, &mut buf) {
                    let at = now + Duration::from_millis(250);
                    self.wire.push_back((at, side, buf[..t.len].to_vec()));
                }
            }
        }
    }
}

/// Bytes that 49 hosts with a download each got in ten seconds, after half a minute in which each
/// stream had its beginning, beside another host's downloads.
fn downloads(streams: u16, reads: bool) -> Vec<usize> {
    let links = [0, 1].map(|_| link::session::LinkConfig {
        rtt: Duration::from_millis(500),
        max_streams: streams_for(1_000),
        ..link()
    });
    let mut g = Gateways::apart(links, |policy| policy.open = Open::Fast);
    g.meet();
    let mut d = Delayed { g, wire: Default::default() };
    let mut ends: Vec<(u8, FlowId, FlowId)> = vec![];
    for (host, count) in (100..149).map(|host| (host, 1)).chain([(66, streams)]) {
        let now = d.g.now;
        let open = |n| d.g.sides[0].open(now, PEER, origin(host, 1_000 + n)).expect("a place");
        let near: Vec<_> = (0..count).map(open).collect();
        d.pass(600);
        let far = std::mem::take(&mut d.g.asked);
        assert_eq!(far.len(), near.len());
        far.iter().for_each(|far| d.g.sides[1].connected(*far));
        ends.extend(near.into_iter().zip(far).map(|(near, far)| (host, near, far)));
    }
    let (mut got, bytes) = (vec![0; 256], vec![7; 65_536]);
    for tick in 0..40_000 {
        if tick == 30_000 {
            got.fill(0);
        }
        for (host, near, far) in &ends {
            // Not all are looked at each time: those that were told would be.
            if (tick + near.slot()) % 10 > 0 {
                continue;
            }
            let now = d.g.now;
            let room = d.g.sides[1].writable_bytes(now, *far).min(bytes.len());
            d.g.sides[1].local_data(now, *far, &bytes[..room]);
            if *host == 66 && !reads {
                continue;
            }
            loop {
                let mut slices: [&[u8]; 16] = [&[]; 16];
                let n = d.g.sides[0].outgoing(now, *near, &mut slices);
                let len = slices[..n].iter().map(|s| s.len()).sum();
                if len == 0 {
                    break;
                }
                d.g.sides[0].wrote(now, *near, len);
                got[usize::from(*host)] += len;
            }
        }
        d.pass(1);
        d.g.others.clear();
    }
    got[100..149].to_vec()
}

/// Readers that stopped for ever, zero windows, among them.
#[test]
fn a_host_with_many_downloads_costs_the_others_a_tenth_of_their_rate_at_most() {
    let alone = downloads(1, true);
    for (streams, reads) in [(20, true), (400, true), (400, false)] {
        let beside = downloads(streams, reads);
        let [all, before] = [&beside, &alone].map(|all| all.iter().sum::<usize>());
        let [least, usual] = [&beside, &alone].map(|all| *all.iter().min().expect("49"));
        println!("{streams}, read {reads}: {all} of {before} bytes, the least {least} of {usual}");
        assert!(all * 10 >= before * 9, "{all} of {before}");
        assert!(least * 10 >= usual * 9, "{least} of {usual}");
    }
}
