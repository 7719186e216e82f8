//! How many connections a peer may cause: floods and scans end, fleets load pages.

use std::net::Ipv4Addr;

use link::wire::Origin;
use units::Duration;

use super::*;
use crate::FlowId;
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
        let flow = Flow { peer: PEER, session: 0, stream, kind, moved: self.now, to: None };
        let Kind { host, .. } = kind;
        let target = origin(client, to, port).target;
        let flow = self.flows.insert(flow, target.clone());
        let begun =
            self.connects.begin(self.now, (PEER, DEFAULT), Caller::Flow(flow), &target, host);
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
    let (opened, connects) = opens_and_resets(&mut g, 100, 200);
    assert_eq!(opened, 20_000);
    assert!((1_000..=2_400).contains(&connects), "{connects} connects");
    assert_eq!(g.sides[0].flow_count(), 0);
    // What waited is no more, and nothing looks for room for it.
    g.pass(Duration::from_secs(2));
    assert_eq!((g.asked.len(), g.sides[0].held.len(PEER)), (0, 0));
}

#[test]
#[ignore = "4 hours of virtual time"]
fn open_and_reset_floods_no_server_for_hours() {
    let mut g = Gateways::new(Open::Fast);
    let seconds = 4 * 3_600;
    let (opened, connects) = opens_and_resets(&mut g, seconds * 50, 4);
    assert!(opened > seconds * 190, "{opened} opened");
    // What one destination may have at once without an answer, and a second.
    assert!((1_000..=2_400 + 101 * seconds).contains(&connects), "{connects} connects");
    assert_eq!(g.sides[0].flow_count(), 0);
}

/// A peer opens so many connections every 20 ms and resets them at once. Answers how many it
/// opened, and how many of them this node was to connect.
fn opens_and_resets(g: &mut Gateways, rounds: usize, each: u16) -> (usize, usize) {
    let (mut opened, mut connects) = (0, 0);
    let (mut flows, mut held, mut places) = (0, 0, 0);
    for _ in 0..rounds {
        for n in 0..each {
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
                connects += 1;
            }
        }
        connects += std::mem::take(&mut g.asked).len();
        g.asked_as.clear();
        let near = &g.sides[0];
        (flows, held) = (flows.max(near.flow_count()), held.max(near.held.len(PEER)));
        let of = near.connects.peers.get(&PEER);
        let of = of.map_or(0, |of| of.clients.by.len() + of.destinations.by.len());
        places = places.max(of + near.connects.waiting.len());
    }
    g.pass(Duration::from_millis(500));
    connects += std::mem::take(&mut g.asked).len();
    println!(
        "{connects} connects of {opened} in {:?}; {flows} flows, {held} held, {places} places",
        g.now
    );
    assert!(flows <= 512 && held <= 512 && places <= 512);
    (opened, connects)
}

/// A page of very many parts, a load test: a server that is slow to answer is asked for a part
/// of it at a time, and for all in the end.
#[test]
fn a_burst_beyond_the_limits_waits_for_room() {
    let mut g = Gateways::new(Open::Fast);
    let mut opened = 0;
    let mut waiting = std::collections::VecDeque::new();
    let mut most = 0;
    let begin = g.now;
    while g.asked.len() < 4_500 {
        for _ in 0..600.min(4_500 - opened) {
            let target = Target::Address(([10, 1, 0, 7], 80).into());
            let client = Some(([10, 2, 0, 5], 40_000).into());
            let (now, origin) = (g.now, Origin { client, target, dscp: 0 });
            opened += usize::from(g.sides[1].open(now, PEER, origin).is_some());
        }
        let before = g.asked.len();
        g.pass(Duration::from_millis(20));
        let answer = g.now + Duration::from_millis(400);
        waiting.extend(g.asked[before..].iter().map(|flow| (answer, *flow)));
        most = most.max(waiting.len());
        while waiting.front().is_some_and(|(at, _)| *at <= g.now) {
            let (_, flow) = waiting.pop_front().unwrap();
            g.sides[0].connected(flow);
        }
        assert!(
            g.now.since(begin) < Duration::from_secs(20),
            "{} of {opened} connected, {} held, {} flows",
            g.asked.len(),
            g.sides[0].held.len(PEER),
            g.sides[0].flow_count()
        );
    }
    println!("4500 in {}, {most} at a time", g.now.since(begin));
    assert!(most <= 2_000, "{most} waited for one server");
    assert_eq!(g.near().refused_connects(PEER), 0);
}

/// What waited for half a minute in vain is refused, and counted.
#[test]
fn what_finds_no_room_is_refused_in_the_end() {
    let mut g = Gateways::new(Open::Fast);
    for n in 0..3_000u16 {
        let target = Target::Address(([10, 1, 0, 7], n + 1).into());
        let client = Some(([10, 2, 0, 5], 40_000).into());
        let (now, origin) = (g.now, Origin { client, target, dscp: 0 });
        g.sides[1].open(now, PEER, origin).expect("a stream");
    }
    for _ in 0..320 {
        g.pass(Duration::from_millis(100));
    }
    // Nobody answers: 2,000 wait for their server, the others have waited here.
    assert_eq!(g.asked.len(), 2_000);
    assert_eq!(g.near().refused_connects(PEER), 1_000);
    assert_eq!(g.sides[0].flow_count(), 2_000);
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
                p.connects.end(Caller::Flow(flow), true);
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
    let (mut scanned, mut refused, mut waiting) = (0, 0, Vec::new());
    for _ in 0..6_000 {
        p.now += Duration::from_millis(10);
        for n in 0..50 {
            // Most answer with a reset at once.
            match p.opens(666, scanned % 60_000, (scanned % 1_000) as u16) {
                Some(flow) => p.connects.end(Caller::Flow(flow), false),
                None => refused += 1,
            }
            scanned += 1;
            let client = n % 49;
            let flow = if n == 0 { p.opens(client, n, 443) } else { None };
            waiting.extend(flow);
            assert!(n > 0 || flow.is_some(), "an honest host is refused");
        }
        waiting.drain(..).for_each(|flow| p.connects.end(Caller::Flow(flow), true));
    }
    println!("{refused} of {scanned} scanned were refused; {} places", p.places());
    assert!(scanned as u64 - refused <= 4_000 + 61 * 200, "{}", scanned as u64 - refused);
    assert!(p.places() < 20_000, "{} places", p.places());
}

#[test]
fn what_waits_is_not_walked_for_each_that_comes() {
    let mut held = Held::default();
    let walked = std::cell::Cell::new(0);
    for n in 0..4_000 {
        let caller = Caller::Service(ConnectId::from_u64(n));
        let target = origin(1, 1, 443).target;
        if held.len(PEER) > 64 && held.has_doubled() {
            held.retain(|_| {
                walked.set(walked.get() + 1);
                true
            });
        }
        let (source, client, since) = (None, None, Instant::ZERO);
        held.push(since, PEER, Asked { caller, target, source, client, since });
    }
    assert!(walked.get() <= 8_000, "{} walked", walked.get());
    let due = held.take_due(Instant::ZERO + Duration::from_secs(1));
    assert_eq!(held.count, 4_000 - due.len());
}

impl Peer {
    /// A connection to a name of its own, which leads there. May it?
    fn opens_name(&mut self, name: u32, to: u32) -> (Caller, bool) {
        let kind = Policy::default().kind(&origin(5, 1, 80), false);
        let stream = link::wire::StreamId(0);
        let flow = Flow { peer: PEER, session: 0, stream, kind, moved: self.now, to: None };
        let target = Target::Name(format!("n{name}.example"), 80);
        let caller = Caller::Flow(self.flows.insert(flow, target.clone()));
        let begins = self.connects.begin(self.now, (PEER, DEFAULT), caller, &target, kind.host);
        let leads = begins && self.connects.leads_to(self.now, DEFAULT, caller, address(to));
        (caller, leads)
    }
}

/// A zone may have as many names as it likes for one victim.
#[test]
fn names_count_by_the_address_that_they_lead_to() {
    let mut p = Peer::new();
    let mut connects = 0u32;
    for n in 0..20_000u32 {
        p.now += Duration::from_micros(100);
        let (caller, leads) = p.opens_name(n, 1);
        connects += u32::from(leads);
        p.connects.end(caller, false);
    }
    println!("{connects} connects to one address by 20000 names");
    assert!(connects <= 2_400, "{connects}");
    assert!(p.places() < 24_000, "{}", p.places());
}

/// A zone may name victims first and a server of its own last.
#[test]
fn addresses_of_a_name_that_do_not_answer_count_each_as_one() {
    let mut p = Peer::new();
    let mut tried = 0;
    for n in 0..20_000u32 {
        p.now += Duration::from_micros(100);
        let (caller, leads) = p.opens_name(n, 2 * n);
        if leads {
            tried += 1;
            p.connects.leads_on(p.now, DEFAULT, caller, address(2 * n + 1));
        }
        p.connects.end(caller, true);
    }
    println!("{tried} addresses did not answer");
    assert!((1_000..5_000).contains(&tried), "{tried}");
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
            p.connects.end(Caller::Flow(flow), n % 2 == 0);
        }
        assert!(p.places() < 24_000, "{} after {n}", p.places());
    }
    p.connects.forget_peer(PEER);
    assert!(p.connects.peers.is_empty() && p.connects.waiting.is_empty());
}
