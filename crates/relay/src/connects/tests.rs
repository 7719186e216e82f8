use std::net::Ipv4Addr;

use link::wire::Origin;
use units::Duration;

use super::*;
use crate::flows::{Flow, Flows, Kind};
use crate::gateways::{Gateways, PEER};
use crate::{Action, Open, Policy, ResetReason};

/// Flows by number.
struct Peer {
    now: Instant,
    flows: Flows,
    connects: Connects,
}

impl Peer {
    fn new() -> Peer {
        let now = Instant::from_nanos(1);
        Peer { now, flows: Flows::default(), connects: Connects::default() }
    }

    fn opens(&mut self, client: u32, to: u32, port: u16) -> Option<FlowId> {
        let kind = Policy::default().kind(&origin(client, to, port), false);
        let stream = link::wire::StreamId(0);
        let flow = self.flows.insert(Flow {
            peer: PEER,
            session: 0,
            stream,
            kind,
            moved: self.now,
            to: None,
        });
        let Kind { host, .. } = kind;
        let target = origin(client, to, port).target;
        let begun = self.connects.begin(self.now, (PEER, DEFAULT), flow, &target, host);
        begun.then_some(flow)
    }

    fn places(&self) -> usize {
        let of = &self.connects.peers[&PEER];
        of.clients.by.len() + of.destinations.by.len() + self.connects.waiting.len()
    }
}

fn address(n: u32) -> IpAddr {
    Ipv4Addr::from_bits(0x0a00_0000 + n).into()
}

fn origin(client: u32, to: u32, port: u16) -> Origin {
    let target = Target::Address((address(0x1_0000 + to), port).into());
    Origin { client: Some((address(client), 40_000).into()), target, dscp: 0 }
}

/// L-ST-8.
#[test]
fn open_and_reset_floods_no_server_and_scans_no_port() {
    let mut g = Gateways::new(Open::Fast);
    let mut opened = 0;
    for _ in 0..100 {
        for n in 0..200u16 {
            let target = Target::Address(([10, 1, 0, 7], n + 1).into());
            let client = Some(([10, 2, 0, 5], 40_000).into());
            let (now, origin) = (g.now, Origin { client, target, dscp: 0 });
            let Some(flow) = g.sides[1].open(now, PEER, origin) else { continue };
            g.sides[1].connect_failed(now, flow, ResetReason::HostReset);
            opened += 1;
        }
        g.pass(Duration::from_millis(20));
        for action in std::mem::take(&mut g.others) {
            if let Action::PeerReset(flow, _) | Action::Abort(flow, _) = action {
                g.sides[0].closed(g.now, flow);
            } else if let Action::Connect { .. } = action {
                g.asked.push(FlowId::from_u64(0));
            }
        }
    }
    g.pass(Duration::from_millis(500));
    let (connects, refused) = (g.asked.len(), g.near().refused_connects(PEER));
    println!("{connects} connects of {opened}, {refused} refused, in {:?}", g.now);
    assert_eq!(opened, 20_000);
    assert!(connects <= 2_400, "{connects} connects");
    assert_eq!(connects as u64 + refused, opened);
    assert_eq!(g.sides[0].flow_count(), 0);
}

#[test]
fn a_fleet_of_a_thousand_hosts_that_loads_its_pages_is_not_refused() {
    let mut p = Peer::new();
    // Each loads a page of thirty connections to ten servers every 20 s, and a server
    // takes 200 ms to answer: 1,500 connections a second.
    let mut waiting = std::collections::VecDeque::new();
    for second in 0..60u32 {
        for hundredth in 0..100 {
            p.now += Duration::from_millis(10);
            for n in 0..15 {
                let at = (second * 100 + hundredth) * 15 + n;
                let flow = p.opens(at / 30 % 1_000, at % 10, 443);
                let flow = flow.unwrap_or_else(|| panic!("refused at {second} s"));
                waiting.push_back((p.now + Duration::from_millis(200), flow));
            }
            while waiting.front().is_some_and(|(at, _)| *at <= p.now) {
                let (_, flow) = waiting.pop_front().unwrap();
                p.connects.end(flow, true);
                p.flows.remove(flow);
            }
        }
    }
    // And all at once, when the link comes back.
    for n in 0..3_000 {
        assert!(p.opens(n % 1_000, n % 30, 443).is_some(), "{n}");
    }
}

#[test]
fn a_host_that_scans_leaves_the_others_their_half() {
    let mut p = Peer::new();
    let (mut scanned, mut waiting) = (0, Vec::new());
    for _ in 0..6_000 {
        p.now += Duration::from_millis(10);
        for n in 0..50 {
            // Most answer with a reset at once.
            if let Some(flow) = p.opens(666, scanned % 60_000, (scanned % 1_000) as u16) {
                p.connects.end(flow, false);
            }
            scanned += 1;
            let client = n % 49;
            let flow = if n == 0 { p.opens(client, n, 443) } else { None };
            waiting.extend(flow);
            assert!(n > 0 || flow.is_some(), "an honest host is refused");
        }
        waiting.drain(..).for_each(|flow| p.connects.end(flow, true));
    }
    let refused = p.connects.refused(PEER);
    println!("{refused} of {scanned} scanned were refused; {} places", p.places());
    assert!(scanned as u64 - refused <= 4_000 + 61 * 200, "{}", scanned as u64 - refused);
    assert!(p.places() < 20_000, "{} places", p.places());
}

/// A zone may have as many names as it likes for one victim.
#[test]
fn names_count_by_the_address_that_they_lead_to() {
    let mut p = Peer::new();
    let mut connects = 0;
    for n in 0..20_000u32 {
        p.now += Duration::from_micros(100);
        let kind = Policy::default().kind(&origin(5, 1, 80), false);
        let stream = link::wire::StreamId(0);
        let flow = Flow { peer: PEER, session: 0, stream, kind, moved: p.now, to: None };
        let flow = p.flows.insert(flow);
        let target = Target::Name(format!("n{n}.example"), 80);
        if p.connects.begin(p.now, (PEER, DEFAULT), flow, &target, kind.host)
            && p.connects.leads_to(p.now, DEFAULT, flow, address(1))
        {
            connects += 1;
        }
        p.connects.end(flow, false);
    }
    println!("{connects} connects to one address by 20000 names");
    assert!(connects <= 2_400, "{connects}");
    assert!(p.places() < 24_000, "{}", p.places());
}

#[test]
fn a_server_that_does_not_answer_holds_no_other_up() {
    let mut p = Peer::new();
    let to_dead = (0..9_000).filter(|n| p.opens(n % 1_000, 1, 443).is_some()).count();
    assert!((3_900..=4_000).contains(&to_dead), "{to_dead}");
    p.now += Duration::from_secs(60);
    assert!(p.opens(5, 1, 443).is_none(), "they wait");
    assert!(p.opens(5, 2, 443).is_some());
    for (flow, _) in p.connects.waiting.clone() {
        p.connects.end(flow, false);
    }
    assert!(p.opens(5, 1, 443).is_some());
}

#[test]
fn what_counts_nothing_takes_no_place() {
    let mut p = Peer::new();
    for n in 0..200_000u32 {
        p.now += Duration::from_millis(2);
        if let Some(flow) = p.opens(n % 50_000, n, 443) {
            p.connects.end(flow, n % 2 == 0);
        }
        assert!(p.places() < 24_000, "{} after {n}", p.places());
    }
    p.connects.forget_peer(PEER);
    assert!(p.connects.peers.is_empty() && p.connects.waiting.is_empty());
}
