//! Unsplit packets between two nodes: answered, refused, told.

use std::net::{IpAddr, SocketAddr};

use link::PeerConfig;
use link::keys::{PresharedKey, PrivateKey};
use link::session::{ClassId, Facts, Families, LinkConfig};
use link::wire::{Origin, Target};
use units::{Duration, Instant, IpPrefix, internet_sum};

use crate::gateways::{Gateways, PEER, link};
use crate::packet::{Packet, UDP, plain, syn};
use crate::{Action, NotPassed, Policy, Relay, Verdict};

/// The README's pair: the near gateway routes everything to the far one and has no `allow`;
/// behind it are 10.2.0.0/24 and fd02::/64, all private.
fn pair(change: impl Fn(&mut Policy)) -> Gateways {
    pair_over([link(), link()], change)
}

fn pair_over(links: [LinkConfig; 2], change: impl Fn(&mut Policy)) -> Gateways {
    let mut gateways = Gateways::apart(links, |policy| {
        let is_near = policy.routes == ["10.2.0.0/16".parse().unwrap()];
        let routes = match is_near {
            true => ["0.0.0.0/0", "::/0"],
            false => ["10.2.0.0/24", "fd02::/64"],
        };
        policy.routes = routes.map(|p| p.parse().unwrap()).to_vec();
        policy.allow = vec![];
        policy.keep_source = false;
        if is_near {
            change(policy);
        }
    });
    gateways.meet();
    gateways
}

fn udp(from: &str, to: &str, ports: [u16; 2], len: usize) -> Vec<u8> {
    let ports = ports.map(u16::to_be_bytes).concat();
    let len = ((8 + len) as u16).to_be_bytes();
    let head = [&ports[..], &len, &[0, 0]].concat();
    let body = [head, vec![7; usize::from(u16::from_be_bytes(len)) - 8]].concat();
    plain(from.parse().unwrap(), to.parse().unwrap(), UDP, &body)
}

impl Gateways {
    /// A host behind a gateway sends a packet; what the other gateway writes to its hosts.
    fn sends(&mut self, side: usize, packet: &[u8]) -> Vec<Vec<u8>> {
        let verdict = self.sides[side].handle_tun(self.now, &mut packet.to_vec(), false);
        assert_eq!(verdict, Verdict::Sent);
        self.pass(Duration::from_millis(20));
        self.arrived(1 - side)
    }

    /// The far gateway opens a stream; does the near one connect?
    fn opens(&mut self, client: Option<SocketAddr>, target: &str) -> bool {
        let asked = self.asked.len();
        let origin = Origin { client, target: Target::Address(target.parse().unwrap()), dscp: 0 };
        self.sides[1].open(self.now, PEER, origin).unwrap();
        self.pass(Duration::from_millis(100));
        self.asked.len() > asked
    }

    fn arrived(&mut self, side: usize) -> Vec<Vec<u8>> {
        let (now, mut all) = (self.now, vec![]);
        while self.sides[side].poll_tun(now, |packet| all.push(packet.to_vec())) {}
        self.pass(Duration::from_millis(20));
        all
    }
}

const HOSTS: [[&str; 2]; 2] = [["10.2.0.5", "198.51.100.7"], ["fd02::5", "2001:db8::7"]];

#[test]
fn what_a_host_of_a_private_lan_asks_is_answered_without_allow() {
    let mut gateways = pair(|_| {});
    for [ship, server] in HOSTS {
        let question = udp(ship, server, [40_000, 53], 30);
        assert_eq!(gateways.sends(0, &question), [question]);
        let answer = udp(server, ship, [53, 40_000], 200);
        assert_eq!(gateways.sends(1, &answer), [answer]);
        // TCP that came as packets: a SYN, and its answer.
        let [a, b] = [ship, server].map(|s| s.parse::<IpAddr>().unwrap());
        let opening = syn((a, 4000).into(), (b, 80).into(), 5);
        assert_eq!(gateways.sends(0, &opening), [opening]);
        let mut answer = syn((b, 80).into(), (a, 4000).into(), 5);
        answer[if a.is_ipv4() { 33 } else { 53 }] = 0x12;
        assert_eq!(gateways.sends(1, &answer).len(), 1);
    }
    assert_eq!(gateways.sides[0].stats(), Default::default());
    // All of it is on the accounts of the ship's hosts, at both ends alike.
    let len = |at: usize, size: u64| if at == 0 { 28 + size } else { 48 + size };
    for (side, other) in [(0, 1), (1, 0)] {
        let told = gateways.sides[side].host_traffic(PEER).expect("accounts");
        assert_eq!(told.len(), 2, "{told:?}");
        for (at, [ship, _]) in HOSTS.into_iter().enumerate() {
            let traffic = told[&Some(ship.parse().unwrap())];
            let count = [traffic.packet_count.sent, traffic.packet_count.received];
            assert_eq!((count, traffic.streams), ([2, 2], Default::default()));
            let bytes = [traffic.packets.sent, traffic.packets.received];
            let syns = [bytes[side] - len(at, 30), bytes[other] - len(at, 200)];
            assert!(syns[0] == syns[1] && (40..90).contains(&syns[0]), "{bytes:?}");
        }
    }
}

/// The pair, and what comes from the near gateway may open ten connections a second.
fn pair_of_ten() -> Gateways {
    let mut gateways = pair(|_| {});
    let now = gateways.now;
    let policy = gateways.sides[1].policies.of(PEER).cloned().expect("it has one");
    gateways.sides[1].change_policy(now, PEER, Policy { connects: Some(10), ..policy });
    gateways
}

/// L-ST-8 holds for packets, too: a scan from this node's own address is one whichever way it came.
#[test]
fn a_peer_that_opens_connections_by_packets_is_held_to_what_streams_may() {
    let mut gateways = pair_of_ten();
    let opening = |n: u16| {
        let server = SocketAddr::from(([198, 51, (n >> 8) as u8, n as u8], 80));
        syn(([10, 2, 0, 5], 4000).into(), server, 5)
    };
    let passed: usize = (0..200).map(|n| gateways.sends(0, &opening(n)).len()).sum();
    // 4 R at once, of which one client has a half, and R/10 a second: 200 take some seconds here.
    assert!((20..40).contains(&passed), "{passed} of 200");
    assert_eq!(gateways.sides[1].refused_connects(PEER), 200 - passed as u64);
    // Nor does one pass whose flags are behind another header, or in another fragment.
    let hidden = plain("fd02::5".parse().unwrap(), "2001:db8::7".parse().unwrap(), 60, &{
        let tcp = &syn("[fd02::5]:4000".parse().unwrap(), "[2001:db8::7]:80".parse().unwrap(), 5);
        [&[6, 0, 1, 4, 0, 0, 0, 0][..], &tcp[40..]].concat()
    });
    let mut cut = opening(3);
    (cut[2], cut[3], cut[6]) = (0, 28, 0x20);
    cut.truncate(28);
    for (packet, least) in [(hidden, 1), (cut, 0)] {
        let passed = (0..60).filter(|_| !gateways.sends(0, &packet).is_empty()).count();
        assert!((least..20).contains(&passed), "{passed} of 60");
    }
    // What belongs to connections that stand passes as before.
    let question = udp("10.2.0.5", "198.51.100.7", [40_000, 53], 30);
    assert_eq!(gateways.sends(0, &question), [question]);
    let mut segment = opening(1);
    segment[33] = 0x10;
    assert_eq!(gateways.sends(0, &segment), [segment]);
}

#[test]
fn connections_by_packets_that_servers_answer_are_not_held_up() {
    let mut gateways = pair_of_ten();
    let (client, server) = ("10.2.0.5:4000", "198.51.100.7:80");
    let [client, server]: [SocketAddr; 2] = [client, server].map(|a| a.parse().unwrap());
    for _ in 0..60 {
        let opening = syn(client, server, 5);
        assert_eq!(gateways.sends(0, &opening), [opening]);
        let mut answer = syn(server, client, 5);
        answer[33] = 0x12;
        assert_eq!(gateways.sends(1, &answer).len(), 1);
        gateways.pass(Duration::from_millis(200));
    }
}

/// The packet is refused at the near gateway: the sender gets "prohibited", which quotes it.
fn check_refused(gateways: &mut Gateways, packet: &[u8]) {
    assert_eq!(gateways.sends(1, packet), Vec::<Vec<u8>>::new());
    gateways.pass(Duration::from_secs(1));
    let answers = gateways.arrived(1);
    let [answer] = &answers[..] else { panic!("{answers:?}") };
    let (told, sent) = (Packet::parse(answer).unwrap(), Packet::parse(packet).unwrap());
    assert_eq!((told.source, told.destination), (sent.destination, sent.source));
    let (head, kind) = if sent.source.is_ipv4() { (20, [3, 13]) } else { (40, [1, 1]) };
    assert_eq!(answer[head..head + 2], kind, "administratively prohibited");
    assert!(packet.starts_with(&answer[head + 8..]) && answer.len() > head + 8 + head);
}

#[test]
fn what_the_far_side_begins_is_refused_told_counted_and_noted() {
    let mut gateways = pair(|_| {});
    for [ship, server] in HOSTS {
        check_refused(&mut gateways, &udp(server, ship, [53, 40_000], 100));
        let [a, b] = [ship, server].map(|s| s.parse::<IpAddr>().unwrap());
        check_refused(&mut gateways, &syn((b, 9).into(), (a, 22).into(), 5));
    }
    let stats = gateways.sides[0].stats();
    assert_eq!((stats.datagrams_denied, stats.foreign), (4, 0));
    let now = gateways.now;
    let first = gateways.sides[0].poll_refused_packet(now).expect("the first at once");
    assert_eq!((first.peer, first.why, first.others), (PEER, NotPassed::Denied, 3));
    assert_eq!(first.from, "198.51.100.7".parse::<IpAddr>().unwrap());
    assert_eq!((first.to, first.protocol), ("10.2.0.5".parse().unwrap(), UDP));
    gateways.sends(1, &udp(HOSTS[0][1], HOSTS[0][0], [1, 2], 0));
    let now = gateways.now;
    assert_eq!(gateways.sides[0].poll_refused_packet(now), None);
    assert!(gateways.sides[0].poll_refused_packet(now + Duration::from_secs(10)).is_some());
}

#[test]
fn allow_opens_the_lan_and_foreign_sources_stay_out() {
    let mut gateways = pair(|policy| {
        policy.allow = ["10.2.0.0/24", "fd02::/64"].map(|p| p.parse().unwrap()).to_vec();
        policy.routes = ["198.51.100.0/24", "2001:db8::/32"].map(|p| p.parse().unwrap()).to_vec();
    });
    for [ship, server] in HOSTS {
        let packet = udp(server, ship, [53, 40_000], 100);
        assert_eq!(gateways.sends(1, &packet), [packet]);
        let answer = udp(ship, server, [40_000, 53], 100);
        assert_eq!(gateways.sends(0, &answer), [answer]);
    }
    let forged = udp("203.0.113.1", HOSTS[0][0], [53, 40_000], 100);
    assert_eq!(gateways.sends(1, &forged), Vec::<Vec<u8>>::new());
    gateways.pass(Duration::from_secs(1));
    assert_eq!(gateways.arrived(1), Vec::<Vec<u8>>::new(), "a forged source hears nothing");
    let (stats, now) = (gateways.sides[0].stats(), gateways.now);
    assert_eq!((stats.datagrams_denied, stats.foreign), (0, 1));
    let told = gateways.sides[0].poll_refused_packet(now).unwrap();
    assert_eq!(told.why, NotPassed::Foreign);
}

/// The ICMP error "time exceeded" of `from` about `packet`.
fn time_exceeded(from: &str, packet: &[u8]) -> Vec<u8> {
    let (from, to) = (from.parse().unwrap(), Packet::parse(packet).unwrap().source);
    let (protocol, kind) = if to.is_ipv4() { (1, 11) } else { (58, 3) };
    let mut error = plain(from, to, protocol, &[&[kind, 0, 0, 0, 0, 0, 0, 0], packet].concat());
    let sum = icmp_sum(&error).to_be_bytes();
    let at = error.len() - packet.len() - 6;
    error[at..at + 2].copy_from_slice(&sum);
    error
}

/// What the checksum of ICMP should be, or 0 where it is right.
fn icmp_sum(error: &[u8]) -> u16 {
    match error[0] >> 4 {
        4 => internet_sum(&[&error[20..]]),
        _ => internet_sum(&[&error[8..40], &error[4..6], &[0, 58], &error[40..]]),
    }
}

/// The kernel names its address on the way to the Internet, from which nobody takes anything.
#[test]
fn a_host_is_told_of_a_packet_that_goes_no_further_by_an_address_that_its_node_takes() {
    let mut gateways = pair(|policy| {
        policy.allow = ["10.2.0.0/24", "fd02::/64"].map(|p| p.parse().unwrap()).to_vec();
    });
    let names = [["203.0.113.2", "10.2.0.1", "10.2.0.9"], ["2001:db8:5::2", "fd02::1", "fd02::9"]];
    let own = |n: usize| names.map(|of| of[n].parse::<IpAddr>().unwrap());
    let lans = ["10.2.0.0/24", "fd02::/64"].map(|p| p.parse().unwrap());
    let ship = &mut gateways.sides[0];
    ship.set_own_addresses(
        [own(0), own(1), own(2)].concat().into_iter().map(IpPrefix::host).collect(),
    );
    let [both, second] = [1, 2].map(|n| own(n).into_iter().zip(lans));
    ship.set_interfaces(both.chain(second).collect());
    for ([host, server], [wan, lan, other]) in HOSTS.into_iter().zip(names) {
        let traced = udp(server, host, [40_000, 33_434], 20);
        for (by, seen) in [(wan, other), (lan, lan), (other, other)] {
            let told = gateways.sends(0, &time_exceeded(by, &traced));
            assert_eq!(told, [time_exceeded(seen, &traced)], "{by}");
            assert_eq!(icmp_sum(&told[0]), 0);
        }
        // What was for the ship itself it answers as itself, and other routers have their names.
        for (by, packet) in [(wan, udp(server, wan, [1, 2], 20)), ("192.0.2.9", traced)] {
            if by.contains(':') == server.contains(':') {
                assert_eq!(gateways.sends(0, &time_exceeded(by, &packet)), Vec::<Vec<u8>>::new());
            }
        }
    }
}

/// Who has 10.2.0.0/16 speaks for no host of 10.2.3.0/24 if that is another's.
#[test]
fn nobody_speaks_for_what_is_more_exactly_anothers() {
    let longer = || "10.2.3.0/24".parse().unwrap();
    let other_peer = |relay: &mut Relay| {
        let config = PeerConfig {
            public_key: *PrivateKey::from_bytes([9; 32]).public(),
            preshared_key: PresharedKey::NONE,
            endpoint: None,
            link: link(),
            keepalive: None,
        };
        let policy = Policy { routes: vec![longer()], ..Policy::default() };
        relay.add_peer(Instant::from_nanos(1), config, policy).unwrap();
    };
    let other_thread = |relay: &mut Relay| relay.set_elsewhere([longer()]);
    for belongs_to in [&other_peer as &dyn Fn(&mut Relay), &other_thread] {
        let mut gateways = Gateways::apart([link(), link()], |_| {});
        belongs_to(&mut gateways.sides[0]);
        gateways.meet();
        for (source, owned) in [("10.2.4.4", true), ("10.2.3.4", false)] {
            let packet = udp(source, "10.1.0.7", [53, 40_000], 100);
            let passed = if owned { vec![packet.clone()] } else { vec![] };
            assert_eq!(gateways.sends(1, &packet), passed, "{source}");
            let client = Some(SocketAddr::new(source.parse().unwrap(), 40_000));
            assert_eq!(gateways.opens(client, "10.1.0.7:80"), owned, "{source}");
        }
    }
}

/// L-ST-7, `source = "keep"`.
#[test]
fn a_client_whose_address_cannot_be_kept_gets_no_connection() {
    let mut gateways = Gateways::apart([link(), link()], |policy| {
        policy.routes.push("fd02::/64".parse().unwrap());
        policy.allow.push("fd01::/64".parse().unwrap());
    });
    gateways.meet();
    let client = |a: &str| Some(a.parse().unwrap());
    assert!(gateways.opens(client("10.2.0.5:40000"), "10.1.0.7:80"));
    assert!(gateways.opens(client("[fd02::5]:40000"), "[fd01::7]:80"));
    assert!(!gateways.opens(client("[::ffff:10.2.0.5]:40000"), "10.1.0.7:80"));
    assert!(!gateways.opens(client("[fd02::5]:40000"), "10.1.0.7:80"));
    assert!(!gateways.opens(client("10.2.0.5:40000"), "[fd01::7]:80"));
    assert!(!gateways.opens(client("203.0.113.5:40000"), "10.1.0.7:80"), "no peer's");
    assert!(!gateways.opens(None, "10.1.0.7:80"), "nobody's");
    let now = gateways.now;
    gateways.asked_as.clear();
    for (client, source) in [(None, None), (client("10.2.0.5:1"), client("10.2.0.5:1"))] {
        let origin = Origin { client, target: Target::Name("a.example".into(), 80), dscp: 0 };
        gateways.sides[1].open(now, PEER, origin).unwrap();
        gateways.pass(Duration::from_millis(100));
        let asked = gateways.asked_as.pop();
        assert_eq!(asked, source.map(Some), "a name's address is connected to as the client");
    }
}

/// Without it, servers see this node, whoever the client of the peer's proxy is.
#[test]
fn a_client_that_no_peer_speaks_for_gets_a_connection_under_this_nodes_name() {
    let mut gateways = Gateways::apart([link(), link()], |policy| policy.keep_source = false);
    gateways.meet();
    for client in [None, Some("203.0.113.5:40000".parse().unwrap())] {
        assert!(gateways.opens(client, "10.1.0.7:80"));
        assert_eq!(gateways.asked_as.pop(), Some(None));
    }
}

#[test]
fn what_a_peer_may_not_reach_any_more_ends_streams_and_exchanges_of_packets() {
    let mut g = Gateways::apart([link(), link()], |policy| policy.keep_source = false);
    g.meet();
    let client = Some("10.2.0.5:40000".parse().unwrap());
    for to in ["10.1.0.7:80", "10.1.9.7:80", "198.51.100.7:80"] {
        assert!(g.opens(client, to));
        let far = g.asked.pop().unwrap();
        g.sides[0].connected(far);
    }
    let (to, back) = (["10.2.0.5", "10.1.9.7"], ["10.1.9.7", "10.2.0.5"]);
    let question = udp(to[0], to[1], [40_000, 5_000], 100);
    let answer = udp(back[0], back[1], [5_000, 40_000], 100);
    assert_eq!(g.sends(1, &question), std::slice::from_ref(&question));
    assert_eq!(g.sends(0, &answer), std::slice::from_ref(&answer));
    let narrower = Policy {
        routes: vec!["10.2.0.0/16".parse().unwrap()],
        allow: vec!["10.1.0.0/24".parse().unwrap()],
        ..Policy::default()
    };
    let now = g.now;
    assert_eq!(g.sides[0].change_policy(now, PEER, narrower.clone()), 1, "one of three ends");
    g.act(0);
    let aborted = |a: &&Action| matches!(a, Action::Abort(_, crate::ResetReason::Denied));
    assert_eq!(g.others.iter().filter(aborted).count(), 1, "{:?}", g.others);
    // The host goes on for a while, and so does the peer, in whatever order.
    for _ in 0..20 {
        assert!(g.sends(0, &answer).contains(&answer));
        assert_eq!(g.sends(1, &question), Vec::<Vec<u8>>::new());
        g.pass(Duration::from_millis(500));
    }
    // What the host begins is answered.
    let new = udp(back[0], back[1], [6_000, 53], 100);
    assert!(g.sends(0, &new).contains(&new));
    let reply = udp(to[0], to[1], [53, 6_000], 100);
    assert_eq!(g.sends(1, &reply), std::slice::from_ref(&reply));
    let now = g.now;
    assert_eq!(g.sides[0].change_policy(now, PEER, narrower), 0, "nothing is narrower");
}

#[test]
fn refusals_take_a_small_share_of_the_link() {
    let mut gateways = pair(|_| {});
    let packet = udp(HOSTS[0][1], HOSTS[0][0], [53, 40_000], 1000);
    let mut told = 0;
    for _ in 0..1000 {
        let mut bytes = packet.clone();
        gateways.sides[1].handle_tun(gateways.now, &mut bytes, false);
        gateways.pass(Duration::from_millis(2));
        gateways.arrived(0);
        told += gateways.arrived(1).iter().map(Vec::len).sum::<usize>();
    }
    let denied = gateways.sides[0].stats().datagrams_denied;
    assert!(denied > 900, "{denied}");
    // A burst of 2 s, and the seconds that it took: of 64 kbit/s.
    let seconds = 2 + (gateways.now.as_nanos() / 1_000_000_000) as usize;
    assert!(told > 8_000 && told < 8_000 * (seconds + 1), "{told} bytes in {seconds} s");
}

#[test]
fn errors_and_what_goes_to_many_are_dropped_in_silence() {
    let mut gateways = pair(|_| {});
    let [ship, server] = HOSTS[0];
    let [a, b] = HOSTS[0].map(|s| s.parse::<IpAddr>().unwrap());
    let about = udp(ship, server, [1, 2], 4);
    let mut later_fragment = udp(server, ship, [1, 2], 400);
    later_fragment[7] = 50;
    let packets = [
        plain(b, a, 1, &[&[3, 3, 0, 0, 0, 0, 0, 0], &about[..]].concat()),
        plain(b, a, 1, &[0, 0, 0, 0, 0, 1, 0, 1]), // an echo reply
        plain(b, a, 1, &[99, 0, 0, 0, 0, 1, 0, 1]),
        plain(b, "224.0.0.9".parse().unwrap(), UDP, &[0; 12]),
        plain(b, "255.255.255.255".parse().unwrap(), UDP, &[0; 12]),
        plain("0.0.0.0".parse().unwrap(), a, UDP, &[0; 12]),
        plain("127.0.0.1".parse().unwrap(), a, UDP, &[0; 12]),
        plain("240.0.0.1".parse().unwrap(), a, UDP, &[0; 12]),
        later_fragment,
    ];
    // The far gateway's routes do not lead these here: they are put into its session.
    for packet in &packets {
        let session = gateways.sides[1].endpoint.session_mut(PEER).unwrap();
        let p = Packet::parse(packet).unwrap();
        let label = Policy::default().label(&p, packet, p.source);
        assert!(session.send_datagram(gateways.now, packet, &label));
        gateways.pass(Duration::from_millis(20));
        assert_eq!(gateways.arrived(0), Vec::<Vec<u8>>::new());
    }
    gateways.pass(Duration::from_secs(1));
    assert_eq!(gateways.arrived(1), Vec::<Vec<u8>>::new());
    assert_eq!(gateways.sides[0].stats().datagrams_denied, packets.len() as u64);
}

#[test]
fn a_family_that_the_peer_does_not_take_is_refused_here_until_it_does() {
    let both = Families { v4: true, v6: true };
    let facts = |takes| Facts { takes, sends: both, ..Facts::default() };
    let mut links = [link(), link()];
    links[0].facts = facts(both);
    links[1].facts = facts(Families { v4: true, v6: false });
    let rates = [links[1].send_rate, links[1].receive_rate];
    let mut gateways = pair_over(links, |_| {});
    let [v4, v6] = HOSTS.map(|[ship, server]| udp(ship, server, [40_000, 53], 30));
    assert_eq!(gateways.sends(0, &v4)[0], v4);

    // A packet, and a SYN that would be split.
    let now = gateways.now;
    assert_eq!(gateways.sides[0].handle_tun(now, &mut v6.clone(), false), Verdict::Refused);
    let [a, b] = HOSTS[1].map(|s| s.parse::<IpAddr>().unwrap());
    let opening = syn((a, 4000).into(), (b, 80).into(), 5);
    assert_eq!(gateways.knock(&opening), Verdict::Refused);
    let [Action::ToHost(told)] = &gateways.others[..] else { panic!("{:?}", gateways.others) };
    for (told, about) in [(told, &v6), (&gateways.written[0], &opening)] {
        assert_eq!(Packet::parse(told).unwrap().destination, a);
        assert_eq!((&told[40..42], &told[48..]), (&[1, 0][..], &about[..]), "no route");
    }
    assert_eq!(gateways.sides[0].stats().not_taken_there, 2);
    let found = |gateways: &Gateways| {
        let at = |side: usize| gateways.sides[side].endpoint.session(PEER).unwrap().disagreements();
        (at(0).not_taken_there.v6, at(1).not_taken_here.v6)
    };
    assert_eq!(found(&gateways), (true, true));

    // The far file gets the prefix: both know it within a moment, and it passes.
    let now = gateways.now;
    gateways.sides[1].endpoint.set_facts(now, PEER, facts(both), rates);
    gateways.pass(Duration::from_secs(3));
    assert_eq!(found(&gateways), (false, false));
    assert_eq!(gateways.sends(0, &v6)[0], v6);
}

/// Fifty hosts with a packet every 20 ms each, of which one sends ten times what the link takes.
#[test]
fn a_host_that_floods_the_link_with_packets_costs_the_others_none() {
    let thin = LinkConfig { send_rate: units::BitRate::from_mbps(2), ..link() };
    let mut g = pair_over([thin, link()], |_| {});
    let mut arrived = [0u32; 50];
    for tick in 0..500u32 {
        for _ in 0..17 {
            let _ = {
                let mut flood = udp("10.2.0.50", "203.0.113.9", [1, 1], 1_400);
                g.sides[0].handle_tun(g.now, &mut flood, false)
            };
        }
        for host in (0..49).filter(|host| host % 2 == tick % 2) {
            let mut packet = udp(&format!("10.2.0.{}", host + 51), "203.0.113.9", [2, 2], 72);
            assert_eq!(g.sides[0].handle_tun(g.now, &mut packet, false), Verdict::Sent);
        }
        g.pass(Duration::from_millis(10));
        while g.sides[1].poll_tun(g.now, |packet| {
            arrived[usize::from(packet[15]) - 50] += 1;
        }) {}
    }
    g.pass(Duration::from_millis(500));
    while g.sides[1].poll_tun(g.now, |packet| arrived[usize::from(packet[15]) - 50] += 1) {}
    let least = arrived[1..].iter().min().unwrap();
    println!("of 250 packets each {least} arrived at least, and {} of the hog's 8500", arrived[0]);
    assert!(*least >= 245, "{arrived:?}");
}

#[test]
fn quic_is_refused_where_the_file_says_so_and_nothing_else_on_its_port_is() {
    let quic = |ship, server, port| {
        let mut packet = udp(ship, server, [40_000, port], 1200);
        let at = packet.len() - 1200;
        // A long header of version 1.
        packet[at..at + 5].copy_from_slice(&[0xc3, 0, 0, 0, 1]);
        packet
    };
    let mut gateways = pair(|policy| policy.refuse_quic = true);
    for [ship, server] in HOSTS {
        gateways.others.clear();
        let begins = quic(ship, server, 443);
        let now = gateways.now;
        let verdict = gateways.sides[0].handle_tun(now, &mut begins.clone(), false);
        assert_eq!(verdict, Verdict::Refused);
        gateways.pass(Duration::from_millis(1));
        let [Action::ToHost(told)] = &gateways.others[..] else { panic!("{:?}", gateways.others) };
        let v4 = ship.contains('.');
        let (at, error) = if v4 { (20, [3, 3]) } else { (40, [1, 4]) };
        assert_eq!(told[at..at + 2], error, "port unreachable");
        // Another port, DTLS, and what follows a connection that began before.
        let mut dtls = quic(ship, server, 443);
        let first = dtls.len() - 1200;
        dtls[first] = 22;
        let mut later = quic(ship, server, 443);
        later[first] = 0x43;
        for passes in [quic(ship, server, 4433), dtls, later] {
            assert_eq!(gateways.sends(0, &passes)[0], passes);
        }
    }
    assert_eq!(gateways.sides[0].stats().quic_refused, 2);
}

/// Behind a prefix hosts are told apart by where packets go, and where may be made up. What does
/// not go first leaves before the last of a sender's packets to the unknown, and behind those to
/// hosts that are known.
#[test]
fn packets_to_hosts_that_never_said_anything_go_first_as_far_as_their_sender_may() {
    const MANY: u32 = 70;
    for known in [false, true] {
        let thin = LinkConfig { send_rate: units::BitRate::from_mbps(4), ..link() };
        let mut g = pair_over([link(), thin], |policy| {
            policy.allow = ["10.2.0.0/24", "fd02::/64"].map(|p| p.parse().unwrap()).to_vec();
        });
        let host = |n: u32| format!("fd02::1:{n:x}");
        for n in (0..MANY).filter(|_| known) {
            let asked = udp(&host(n), "2001:db8::9", [1, 1], 10);
            assert_eq!(g.sends(0, &asked), [asked]);
        }
        for n in 0..MANY {
            let mut packet = udp("2001:db8::9", &host(n), [1, 1], 1_400);
            assert_eq!(g.sides[1].handle_tun(g.now, &mut packet, false), Verdict::Sent);
        }
        let mut bulk = udp("203.0.113.9", "10.2.0.51", [2, 2], 72);
        let verdict = g.sides[1].handle_tun_in(g.now, &mut bulk, false, ClassId::BULK);
        assert_eq!(verdict, Verdict::Sent);
        g.pass(Duration::from_secs(2));
        let arrived = g.arrived(0);
        let at = arrived.iter().position(|packet| packet[0] >> 4 == 4).expect("it arrives");
        println!("known: {known}; place {at} of {}", arrived.len());
        assert_eq!(at as u32 == MANY, known, "place {at} of {}", arrived.len());
    }
}

/// A default route makes a peer the owner of all addresses, and not of this side's LANs'.
#[test]
fn a_peer_speaks_for_no_host_of_this_sides_lans_and_gets_nothing_back_that_leads_to_itself() {
    let within = || ["10.2.0.0/24", "fd02::/64"].map(|p| p.parse().unwrap()).to_vec();
    let mut g = pair(|policy| policy.allow = within());
    let lans = ["10.2.0.0/25", "fd02::/96"].map(|p| p.parse().unwrap()).to_vec();
    g.sides[0].set_networks(lans.clone(), lans);
    let policy = g.sides[1].policies.of(PEER).cloned().expect("it has one");
    let now = g.now;
    g.sides[1].change_policy(now, PEER, Policy { allow: within(), ..policy });
    // One that the far node reaches by another router.
    g.sides[1].set_networks(vec![], vec!["10.2.0.224/27".parse().unwrap()]);
    let past = udp("10.2.0.5", "10.2.0.230", [40_000, 53], 20);
    assert_eq!(g.sends(0, &past), [past]);
    let none = Vec::<Vec<u8>>::new();
    for ([host, server], [other, nowhere]) in
        HOSTS.into_iter().zip([["10.2.0.6", "10.2.0.200"], ["fd02::6", "fd02::1:0:0"]])
    {
        let [forged, honest] = [other, server].map(|from| udp(from, host, [53, 40_000], 20));
        assert_eq!(g.sends(1, &forged), none);
        assert_eq!(g.sends(1, &honest), [honest]);
        // A part of the ship's prefix that it has no network for: the host is told.
        assert_eq!(g.sends(0, &udp(host, nowhere, [40_000, 53], 20)), none);
        assert_eq!(g.arrived(0).len(), 1);
    }
    assert_eq!((g.sides[0].stats().foreign, g.sides[1].stats().datagrams_denied), (2, 2));
    // A part of it that is another peer's, whom another shard has.
    g.sides[1].set_elsewhere(["10.2.0.192/28".parse().unwrap()]);
    let to_another = udp("10.2.0.6", "10.2.0.200", [40_000, 53], 20);
    assert_eq!(g.sends(0, &to_another), [to_another]);
}
