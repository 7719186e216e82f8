//! Connections given to services, and the streams between two of them.

use std::net::SocketAddr;

use link::session::{Facts, Services as Told};
use units::Duration;

use super::*;
use crate::classify::Rule;
use crate::connects::Caller;
use crate::gateways::{Gateways, PEER, link};
use crate::packet::TCP;
use crate::{Action, Open, Policy, Verdict, packet};

const CLIENT: &str = "10.1.0.2:40000";
const SERVER: &str = "10.2.0.2:80";

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn rule(via: &str) -> Rule {
    Rule {
        protocol: Some(TCP),
        ports: vec![80..=80],
        dscp: None,
        class: None,
        carry: None,
        compress: None,
        headers: None,
        dedup: None,
        via: Some(via.to_owned()),
    }
}

/// Two gateways whose files name these services, and whose rules give port 80 to "web".
fn with_services(names: [&[&str]; 2]) -> Gateways {
    let mut g = unmet(names);
    g.meet();
    g
}

/// The same before they have met.
fn unmet(names: [&[&str]; 2]) -> Gateways {
    let links = names.map(|names| {
        let services = names.iter().fold(Told::default(), |told, name| told.with(name));
        let mut link = link();
        link.facts = Facts { services, ..Facts::default() };
        link
    });
    Gateways::apart(links, |policy| {
        policy.open = Open::Sure;
        policy.rules = vec![rule("web")];
    })
}

fn syn(port: u16) -> Vec<u8> {
    packet::syn(at(CLIENT), (at(SERVER).ip(), port).into(), 1)
}

#[test]
fn a_rule_gives_connections_to_a_service_that_runs_at_both_ends() {
    let mut g = with_services([&["web"], &["web"]]);
    let via = |g: &Gateways| g.sides[0].via(g.now, at(CLIENT), at(SERVER)).map(|via| via.service);
    assert_eq!(via(&g), None, "it does not run yet");
    g.sides[0].start_service("web", false);
    assert_eq!(via(&g).as_deref(), Some("web"));
    assert_eq!(g.sides[0].via(g.now, at(CLIENT), at("10.2.0.2:22")), None, "no rule says so");
    // It answers its client itself, though the file says that servers are asked first.
    assert_eq!(g.knock(&syn(80)), Verdict::Intercept);
    assert_eq!(g.knock(&syn(22)), Verdict::Pending);
    g.sides[0].given(g.now, at(CLIENT), at(SERVER));
    g.sides[0].stop_service("web");
    assert_eq!(via(&g), None);
    assert_eq!(g.knock(&syn(80)), Verdict::Pending);
}

/// Before the first contact the file is believed, and afterwards what the peer has told.
#[test]
fn without_a_session_connections_are_given_to_services_with_answers_of_their_own_alone() {
    let via = |g: &Gateways| g.sides[0].via(g.now, at(CLIENT), at(SERVER)).map(|via| via.service);
    let cases: [(&[&str], bool); 2] = [(&["web"], true), (&["mail"], false)];
    for (theirs, has) in cases {
        let mut g = unmet([&["web"], theirs]);
        g.sides[0].start_service("web", false);
        assert_eq!(via(&g), None, "all that it could do is wait");
        g.sides[0].start_service("web", true);
        assert_eq!(via(&g).as_deref(), Some("web"));
        let opened = g.sides[0].open_to_service(g.now, (PEER, "web"), None, b"", None);
        assert_eq!(opened, Err(ResetReason::NoSuchService), "L-SV-3");
        g.meet();
        assert_eq!(via(&g).is_some(), has);
        g.sides[1].endpoint.close_all(ResetReason::ShuttingDown);
        g.pass(Duration::from_millis(5));
        assert!(!g.sides[0].endpoint.is_established(PEER));
        assert_eq!(via(&g).is_some(), has);
        assert_eq!(g.sides[0].peer_has_service(g.now, PEER, "web"), has);
        g.sides[0].start_service("web", false);
        assert_eq!(via(&g), None);
    }
}

#[test]
fn a_peer_that_has_not_the_service_is_not_asked_for_it() {
    // L-SV-2, L-SV-3.
    let mut g = with_services([&["web"], &["mail"]]);
    g.sides[0].start_service("web", false);
    assert_eq!(g.sides[0].via(g.now, at(CLIENT), at(SERVER)), None);
    let opened = g.sides[0].open_to_service(g.now, (PEER, "web"), None, b"", None);
    assert_eq!(opened, Err(ResetReason::NoSuchService));
}

#[test]
fn a_service_that_was_answering_syns_when_it_came_up_leaves_them_alone() {
    let mut g = with_services([&["web"], &["web"]]);
    assert_eq!(g.knock(&syn(80)), Verdict::Pending);
    g.sides[0].start_service("web", false);
    assert_eq!(g.sides[0].via(g.now, at(CLIENT), at(SERVER)), None, "its stream is open");
}

#[test]
fn a_stream_finds_the_service_and_carries_its_preface() {
    let mut g = with_services([&["web"], &["web"]]);
    g.sides.iter_mut().for_each(|side| side.start_service("web", false));
    let client = Some(at(CLIENT));
    let to = (PEER, "web");
    let flow = g.sides[0].open_to_service(g.now, to, client, b"where to", None).unwrap();
    assert_eq!(g.sides[0].local_data(g.now, flow, b"first"), 5);
    let mut buf = [0; 2048];
    let mut packets = 0;
    while let Some(sent) = g.sides[0].poll_transmit(g.now, &mut buf) {
        packets += 1;
        let from = crate::gateways::address(0);
        g.sides[1].handle_carrier(g.now, g.now, from, &mut buf[..sent.len]);
    }
    assert_eq!(packets, 1, "all of it in one packet");
    let action = g.sides[1].poll_action(g.now);
    let Some(Action::Connect { flow: far, target, source }) = action else { panic!("{action:?}") };
    assert_eq!(target, Target::Service("web".into(), b"where to".to_vec()));
    assert_eq!(source, client);
    g.sides[1].connected(far);
    let mut slices: [&[u8]; 1] = [&[]];
    assert_eq!(g.sides[1].outgoing(g.now, far, &mut slices), 1);
    assert_eq!(slices[0], b"first");
}

#[test]
fn a_service_that_does_not_run_there_is_left_alone_for_a_while() {
    // L-SV-4.
    let mut g = with_services([&["web"], &["web"]]);
    g.sides[0].start_service("web", false);
    let flow = g.sides[0].open_to_service(g.now, (PEER, "web"), None, b"", None).unwrap();
    g.sides[0].local_data(g.now, flow, b"first");
    g.pass(Duration::from_millis(50));
    assert!(g.others.contains(&Action::PeerReset(flow, ResetReason::NoSuchService)));
    assert_eq!(g.sides[0].via(g.now, at(CLIENT), at(SERVER)), None);
    assert!(!g.sides[0].peer_has_service(g.now, PEER, "web"));
    g.pass(AGAIN);
    assert!(g.sides[0].peer_has_service(g.now, PEER, "web"));
}

/// What became of a wish of the far side's service.
fn wish(g: &mut Gateways, target: Target, client: Option<&str>) -> Action {
    let client = client.map(at);
    g.sides[1].connect_for_service(g.now, PEER, target, client);
    g.sides[1].poll_action(g.now).expect("an answer")
}

#[test]
fn what_a_service_connects_to_is_what_the_peer_may_reach() {
    let mut g = with_services([&["web"], &["web"]]);
    let to = |text: &str| Target::Address(at(text));
    match wish(&mut g, to("10.2.0.2:80"), Some(CLIENT)) {
        Action::ServiceConnect { connect, target, source } => {
            assert_eq!((target, source), (to("10.2.0.2:80"), Some(at(CLIENT))));
            let caller = Caller::Service(connect);
            assert!(g.sides[1].permits(caller, [10, 2, 0, 2].into()));
            assert!(!g.sides[1].permits(caller, [127, 0, 0, 1].into()), "for names");
            g.sides[1].service_connected(connect);
            assert!(!g.sides[1].permits(caller, [10, 2, 0, 2].into()), "it is over");
        }
        other => panic!("{other:?}"),
    }
    for (target, client) in [
        (to("127.0.0.1:80"), Some(CLIENT)),
        (to("192.168.0.1:80"), Some(CLIENT)),
        (to("10.2.0.2:80"), None), // which source to keep?
        (to("10.2.0.2:80"), Some("10.2.0.9:40000")), // which is not the peer's
        (Target::Service("web".into(), vec![]), Some(CLIENT)),
    ] {
        let action = wish(&mut g, target.clone(), client);
        let denied = matches!(action, Action::ServiceRefused(_, ResetReason::Denied));
        assert!(denied, "{target:?} {client:?}: {action:?}");
    }
}

#[test]
fn connections_of_a_service_count_among_the_peers() {
    let mut g = with_services([&["web"], &["web"]]);
    let mut policy = Policy { connects: Some(1), ..Policy::default() };
    policy.allow = vec!["10.0.0.0/8".parse().unwrap()];
    g.sides[1].set_policy(PEER, policy);
    let mut ask = |n: u16| {
        let target = Target::Address(SocketAddr::from(([10, 2, 0, 2], n)));
        g.sides[1].connect_for_service(g.now, PEER, target, None);
        g.sides[1].poll_action(g.now)
    };
    let asked = (1..100).take_while(|n| ask(*n).is_some()).count();
    assert!((1..10).contains(&asked), "{asked} wait for their servers");
    // What is beyond waits for half a minute, and is then refused.
    g.now += Duration::from_secs(31);
    g.sides[1].handle_timeout(g.now);
    let action = g.sides[1].poll_action(g.now);
    let exhausted = matches!(action, Some(Action::ServiceRefused(_, ResetReason::Exhausted)));
    assert!(exhausted, "{action:?}");
}

/// S-MS-1: each request has an answer, also where its peer leaves the file meanwhile.
#[test]
fn what_waits_for_room_is_refused_when_its_peer_is_gone() {
    let mut g = with_services([&["web"], &["web"]]);
    let mut policy = Policy { connects: Some(1), ..Policy::default() };
    policy.allow = vec!["10.0.0.0/8".parse().unwrap()];
    g.sides[1].set_policy(PEER, policy);
    let (mut asked, mut answered) = (0, 0);
    for n in 1..20u16 {
        let target = Target::Address(SocketAddr::from(([10, 2, 0, 2], n)));
        g.sides[1].connect_for_service(g.now, PEER, target, None);
        asked += 1;
        answered += usize::from(g.sides[1].poll_action(g.now).is_some());
    }
    assert!(answered < asked, "some wait");
    g.sides[1].remove_peer(PEER);
    while g.sides[1].poll_action(g.now).is_some() {}
    g.now += Duration::from_secs(1);
    g.sides[1].handle_timeout(g.now);
    while let Some(action) = g.sides[1].poll_action(g.now) {
        answered += usize::from(matches!(action, Action::ServiceRefused(..)));
    }
    assert_eq!(answered, asked);
}

#[test]
fn a_service_connects_back_only_to_whom_it_could_be_given() {
    let mut g = with_services([&["web"], &["web"]]);
    g.sides[0].start_service("web", false);
    let mut back = |name: &str, client: &str, server: &str| {
        g.sides[0].connect_back(g.now, name, at(client), at(server)).is_some()
    };
    assert!(back("web", "10.1.0.2:1025", SERVER));
    assert!(!back("mail", "10.1.0.2:1025", SERVER), "a rule names another");
    assert!(!back("web", "10.1.0.2:1025", "10.2.0.2:22"), "no rule names one");
    assert!(!back("web", "10.1.0.2:1025", "192.0.2.9:80"), "nobody is there");
    assert!(!back("web", "127.0.0.1:1025", "127.0.0.1:80"), "a pair of the gateway's own");
    assert!(!back("web", "10.2.0.9:1025", SERVER), "the client is the peer's");
    g.sides[0].set_elsewhere(["10.1.0.0/24".parse().unwrap()]);
    assert!(
        g.sides[0].connect_back(g.now, "web", at("10.1.0.2:1025"), at(SERVER)).is_none(),
        "the client is another shard's peer's"
    );
    g.sides[0].set_elsewhere([]);
    g.sides[0].set_own_addresses(vec!["10.1.0.1/32".parse().unwrap()]);
    let own = g.sides[0].connect_back(g.now, "web", at("10.1.0.1:1025"), at(SERVER));
    assert_eq!(own, None);
}
