//! Which unsplit packets are answers, and for how long.

use std::net::SocketAddr;

use proptest::prelude::*;

use super::*;
use crate::packet::{self, plain};

const PEER: PeerId = PeerId::from_index(1);
const OTHER: PeerId = PeerId::from_index(2);

fn at(seconds: u64) -> Instant {
    Instant::from_nanos(1) + Duration::from_secs(seconds)
}

fn ip(s: &str) -> IpAddr {
    s.parse().unwrap()
}

/// A host here and one there, of each family.
const PAIRS: [[&str; 2]; 2] = [["10.2.0.5", "203.0.113.9"], ["fd02::5", "2001:db8::9"]];

fn udp(from: (IpAddr, u16), to: (IpAddr, u16)) -> Vec<u8> {
    let ports = [from.1.to_be_bytes(), to.1.to_be_bytes()].concat();
    plain(from.0, to.0, UDP, &[&ports[..], &[0, 12, 0, 0, 1, 2, 3, 4]].concat())
}

fn tcp(from: (IpAddr, u16), to: (IpAddr, u16), flags: u8) -> Vec<u8> {
    let from_to = (SocketAddr::from(from), SocketAddr::from(to));
    let mut packet = packet::syn(from_to.0, from_to.1, 1);
    let at = if from.0.is_ipv4() { 33 } else { 53 };
    packet[at] = flags;
    packet
}

/// An echo request, or the answer to one.
fn echo(from: IpAddr, to: IpAddr, id: u16, answer: bool) -> Vec<u8> {
    let (protocol, kind) = match (from.is_ipv4(), answer) {
        (true, false) => (ICMP, 8),
        (true, true) => (ICMP, 0),
        (false, false) => (ICMPV6, 128),
        (false, true) => (ICMPV6, 129),
    };
    let id = id.to_be_bytes();
    plain(from, to, protocol, &[kind, 0, 0, 0, id[0], id[1], 0, 1, 9, 9])
}

/// "Time exceeded" about `packet`, from a router.
fn exceeded(router: &str, to: IpAddr, packet: &[u8]) -> Vec<u8> {
    let (protocol, kind) = if to.is_ipv4() { (ICMP, 11) } else { (ICMPV6, 3) };
    let quoted = &packet[..packet.len().min(if to.is_ipv4() { 28 } else { 48 })];
    plain(ip(router), to, protocol, &[&[kind, 0, 0, 0, 0, 0, 0, 0], quoted].concat())
}

#[test]
fn the_answer_to_a_datagram_passes_and_nothing_else_does() {
    for [here, there] in PAIRS.map(|pair| pair.map(ip)) {
        let mut t = Tracking::default();
        t.on_sent(at(0), PEER, &udp((here, 5000), (there, 53)));
        assert!(t.is_answer(at(1), PEER, &udp((there, 53), (here, 5000))));
        let other = ip(if here.is_ipv4() { "10.2.0.6" } else { "fd02::6" });
        for (from, to) in [
            ((there, 53), (here, 5001)),
            ((there, 54), (here, 5000)),
            ((there, 53), (other, 5000)),
            ((other, 53), (here, 5000)),
            ((here, 5000), (there, 53)),
        ] {
            assert!(!t.is_answer(at(1), PEER, &udp(from, to)), "{from:?} {to:?}");
        }
        assert!(
            !t.is_answer(at(1), PEER, &tcp((there, 53), (here, 5000), 0x10)),
            "another protocol"
        );
        assert!(!t.is_answer(at(1), OTHER, &udp((there, 53), (here, 5000))), "another peer's");
    }
}

#[test]
fn a_ping_is_answered_and_a_ping_is_no_answer() {
    for [here, there] in PAIRS.map(|pair| pair.map(ip)) {
        // Identifiers that are also numbers of types.
        for id in [0, 8, 128, 4711] {
            let mut t = Tracking::default();
            t.on_sent(at(0), PEER, &echo(here, there, id, false));
            assert!(t.is_answer(at(1), PEER, &echo(there, here, id, true)));
            assert!(!t.is_answer(at(1), PEER, &echo(there, here, id ^ 1, true)));
            assert!(!t.is_answer(at(1), PEER, &echo(there, here, id, false)), "a question");
            // The answer to a ping begins nothing.
            let mut t = Tracking::default();
            t.on_sent(at(0), PEER, &echo(here, there, id, true));
            assert_eq!(t.by_key.len(), 0);
        }
    }
}

#[test]
fn an_icmp_error_passes_if_it_quotes_what_its_receiver_sent() {
    for ([here, there], router) in
        PAIRS.map(|pair| pair.map(ip)).into_iter().zip(["192.0.2.1", "2001:db8::1"])
    {
        let mut t = Tracking::default();
        let probes = [
            udp((here, 5000), (there, 33434)),
            echo(here, there, 7, false),
            tcp((here, 5), (there, 80), 2),
        ];
        for probe in &probes {
            assert!(!t.is_answer(at(0), PEER, &exceeded(router, here, probe)), "nobody asked");
            t.on_sent(at(0), PEER, probe);
            assert!(t.is_answer(at(0), PEER, &exceeded(router, here, probe)));
            let other = ip(if here.is_ipv4() { "10.2.0.6" } else { "fd02::6" });
            assert!(!t.is_answer(at(0), PEER, &exceeded(router, other, probe)), "not its packet");
            assert!(!t.is_answer(at(0), OTHER, &exceeded(router, here, probe)));
        }
        assert!(!t.is_answer(
            at(0),
            PEER,
            &exceeded(router, here, &udp((here, 5001), (there, 33434)))
        ));
        // An error keeps nothing and begins nothing.
        let n = t.by_key.len();
        t.on_sent(at(0), PEER, &exceeded(router, here, &udp((there, 1), (here, 2))));
        assert_eq!(t.by_key.len(), n);
        assert!(!t.is_answer(at(30), PEER, &exceeded(router, here, &probes[0])));
    }
}

#[test]
fn later_fragments_pass_between_addresses_that_talk() {
    for [here, there] in PAIRS.map(|pair| pair.map(ip)) {
        let fragment = |from: IpAddr, to: IpAddr, offset: u16| match from {
            IpAddr::V4(_) => {
                let mut packet = udp((from, 53), (to, 5000));
                packet[6..8].copy_from_slice(&(offset | 0x2000).to_be_bytes());
                packet
            }
            IpAddr::V6(_) => {
                let offset = (offset << 3 | 1).to_be_bytes();
                let head = [UDP, 0, offset[0], offset[1], 0, 0, 0, 9];
                let ports = [0, 53, 0x13, 0x88, 0, 12, 0, 0];
                plain(from, to, 44, &[head, ports].concat())
            }
        };
        let mut t = Tracking::default();
        assert!(!t.is_answer(at(0), PEER, &fragment(there, here, 100)));
        t.on_sent(at(0), PEER, &udp((here, 5000), (there, 53)));
        assert!(t.is_answer(at(1), PEER, &fragment(there, here, 100)));
        assert!(t.is_answer(at(1), PEER, &fragment(there, here, 0)), "the first one, by its ports");
        assert!(!t.is_answer(at(1), PEER, &fragment(here, there, 100)), "not that way");
        assert!(!t.is_answer(at(1), OTHER, &fragment(there, here, 100)));
        assert!(!t.is_answer(at(40), PEER, &fragment(there, here, 100)), "it is over");
    }
}

#[test]
fn later_fragments_do_not_walk_flows_that_are_over_again_and_again() {
    let [here, there] = PAIRS[0].map(ip);
    let mut fragment = udp((there, 53), (here, 5000));
    fragment[6..8].copy_from_slice(&(100u16 | 0x2000).to_be_bytes());
    let mut t = Tracking::default();
    for port in 1..=1000 {
        t.on_sent(at(0), PEER, &udp((here, 5000), (there, port)));
    }
    t.on_sent(at(40), PEER, &udp((here, 5001), (there, 53)));
    let before = t.by_key.len();
    assert!(before > 900, "{before} are there");
    let mut tried = 0;
    while !t.is_answer(at(41), PEER, &fragment) {
        tried += 1;
        assert!(t.by_key.len() <= before - 64 * tried, "each takes some of them out");
    }
    assert!(tried > 1 && t.by_key.len() < 64, "{tried} walks, {} left", t.by_key.len());
}

#[test]
fn extension_headers_are_looked_through() {
    let [here, there] = PAIRS[1].map(ip);
    let ports = [0x13, 0x88, 0, 53, 0, 12, 0, 0];
    let extended = |from, to, ports: &[u8]| {
        // Hop-by-hop options, destination options of 16 bytes, then UDP.
        let head = [60, 0, 1, 4, 0, 0, 0, 0, UDP, 1, 1, 4, 0, 0, 0, 0, 1, 4, 0, 0, 0, 0, 0, 0];
        plain(from, to, 0, &[&head[..], ports].concat())
    };
    let mut t = Tracking::default();
    t.on_sent(at(0), PEER, &extended(here, there, &ports));
    assert!(t.is_answer(at(1), PEER, &udp((there, 53), (here, 5000))));
}

#[test]
fn each_kind_is_kept_as_long_as_the_kernel_keeps_it() {
    let [here, there] = PAIRS[0].map(ip);
    let (near, far) = ((here, 5000), (there, 80));
    let passes = |t: &mut Tracking, s, packet: &[u8]| t.is_answer(at(s), PEER, packet);

    // A question by UDP: 30 s; a stream, after 2 s: 120 s.
    let mut t = Tracking::default();
    t.on_sent(at(0), PEER, &udp(near, far));
    assert!(passes(&mut t, 1, &udp(far, near)));
    assert!(!passes(&mut t, 31, &udp(far, near)));
    t.on_sent(at(100), PEER, &udp(near, far));
    assert!(passes(&mut t, 103, &udp(far, near)));
    assert!(passes(&mut t, 222, &udp(far, near)));
    assert!(!passes(&mut t, 342, &udp(far, near)));

    // ESP and whatever else has no ports: 10 min.
    let esp = |from, to| plain(from, to, 50, &[0; 40]);
    t.on_sent(at(0), PEER, &esp(here, there));
    assert!(passes(&mut t, 599, &esp(there, here)));
    assert!(!passes(&mut t, 599 + 600, &esp(there, here)));

    // TCP: two minutes for an answer, then five days, then two minutes, or 10 s after a reset.
    let mut t = Tracking::default();
    t.on_sent(at(0), PEER, &tcp(near, far, 0x02));
    assert!(!passes(&mut t, 120, &tcp(far, near, 0x12)));
    t.on_sent(at(200), PEER, &tcp(near, far, 0x02));
    assert!(passes(&mut t, 319, &tcp(far, near, 0x12)));
    let later = 319 + 431_999;
    assert!(passes(&mut t, later, &tcp(far, near, 0x10)));
    assert!(!passes(&mut t, later, &tcp(far, near, 0x02)), "the peer begins anew by itself");
    assert!(passes(&mut t, later + 1, &tcp(far, near, 0x11)));
    assert!(passes(&mut t, later + 120, &tcp(far, near, 0x10)));
    t.on_sent(at(later + 200), PEER, &tcp(near, far, 0x04));
    assert!(passes(&mut t, later + 209, &tcp(far, near, 0x10)));
    assert!(!passes(&mut t, later + 220, &tcp(far, near, 0x10)));
}

#[test]
fn tcp_in_the_middle_is_taken_up_when_a_host_here_speaks() {
    let [here, there] = PAIRS[0].map(ip);
    let (near, far) = ((here, 5000), (there, 80));
    let mut t = Tracking::default();
    assert!(!t.is_answer(at(0), PEER, &tcp(far, near, 0x10)));
    // What answers, or ends for good, begins nothing.
    for flags in [0x12, 0x04, 0x14] {
        t.on_sent(at(0), PEER, &tcp(near, far, flags));
        assert!(!t.is_answer(at(0), PEER, &tcp(far, near, 0x10)), "{flags:#x}");
    }
    t.on_sent(at(0), PEER, &tcp(near, far, 0x10));
    assert!(t.is_answer(at(1), PEER, &tcp(far, near, 0x10)));
    assert!(t.is_answer(at(3600), PEER, &tcp(far, near, 0x10)));
    // A reset that was none does not end what goes on.
    assert!(t.is_answer(at(3600), PEER, &tcp(far, near, 0x04)));
    t.on_sent(at(3601), PEER, &tcp(near, far, 0x10));
    assert!(t.is_answer(at(3701), PEER, &tcp(far, near, 0x10)));
}

#[test]
fn flows_without_an_answer_make_room_for_others_and_the_table_does_not_grow() {
    let [here, there] = PAIRS[0].map(ip);
    let mut t = Tracking::with_room(100);
    t.on_sent(at(0), PEER, &tcp((here, 1), (there, 80), 0x02));
    assert!(t.is_answer(at(0), PEER, &tcp((there, 80), (here, 1), 0x12)));
    t.on_sent(at(0), PEER, &udp((here, 2), (there, 53)));
    assert!(t.is_answer(at(3), PEER, &udp((there, 53), (here, 2))));
    for port in 1000..2000 {
        t.on_sent(at(4), PEER, &udp((here, port), (there, 9)));
    }
    assert_eq!((t.by_key.len(), t.flows.len(), t.forgotten), (100, 100, 902));
    assert!(t.is_answer(at(4), PEER, &tcp((there, 80), (here, 1), 0x10)), "the connection");
    assert!(t.is_answer(at(4), PEER, &udp((there, 53), (here, 2))), "the stream");
    assert!(t.is_answer(at(4), PEER, &udp((there, 9), (here, 1999))), "the newest");
    assert!(!t.is_answer(at(4), PEER, &udp((there, 9), (here, 1000))), "the oldest");
    // What is over makes room without anything being forgotten.
    for port in 1000..1070 {
        t.on_sent(at(50), PEER, &udp((here, port), (there, 9)));
    }
    assert_eq!(t.forgotten, 902);
    t.forget_peer(PEER);
    assert_eq!((t.by_key.len(), t.free.len()), (0, 100));
}

proptest! {
    /// Whatever comes, the queues hold each flow once, in the order of time.
    #[test]
    fn the_queues_and_the_map_agree(
        steps in prop::collection::vec((0u64..40, 0u16..12, 0u8..5, any::<bool>()), 0..300),
    ) {
        let [here, there] = PAIRS[0].map(ip);
        let (mut t, mut now) = (Tracking::with_room(8), at(0));
        for (wait, port, kind, out) in steps {
            now += Duration::from_secs(wait);
            let (near, far) = ((here, port), (there, 80));
            let (from, to) = if out { (near, far) } else { (far, near) };
            let packet = match kind {
                0 => udp(from, to),
                1 => tcp(from, to, 0x02),
                2 => tcp(from, to, 0x10),
                3 => tcp(from, to, 0x11),
                _ => tcp(from, to, 0x04),
            };
            match out {
                true => t.on_sent(now, PEER, &packet),
                false => drop(t.is_answer(now, PEER, &packet)),
            }
            let mut seen = 0;
            for (queue, life) in t.queues.iter().zip(Life::ALL) {
                let (mut at, mut before, mut last) = (queue.first, NONE, Instant::ZERO);
                while at != NONE {
                    let flow = &t.flows[at as usize];
                    prop_assert_eq!((flow.life, flow.earlier), (life, before));
                    prop_assert!(flow.kept >= last);
                    prop_assert_eq!(t.by_key.get(&flow.key), Some(&at));
                    (last, before, at, seen) = (flow.kept, at, flow.later, seen + 1);
                }
                prop_assert_eq!(queue.last, before);
            }
            prop_assert_eq!(seen, t.by_key.len());
            prop_assert_eq!(t.shares.len(), seen);
            prop_assert!(seen <= 8);
        }
    }

    #[test]
    fn random_bytes_never_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..160), v6: bool, icmp: bool) {
        if let Some(b) = bytes.first_mut() {
            *b = if v6 { 0x60 } else { 0x45 };
        }
        if let Some(b) = bytes.get_mut(if v6 { 6 } else { 9 }).filter(|_| icmp) {
            *b = if v6 { ICMPV6 } else { ICMP };
        }
        let mut t = Tracking::default();
        t.on_sent(at(0), PEER, &bytes);
        t.is_answer(at(0), PEER, &bytes);
    }
}

#[test]
fn a_host_that_asks_everybody_everything_leaves_the_others_their_answers() {
    let mut t = Tracking::default();
    let (hog, hosts) = (ip("10.2.0.66"), |n: u8| IpAddr::from([10, 2, 0, 100 + n]));
    // Ten thousand questions a second, and fifty of the others with answers after 5 s.
    let mut now = at(0);
    let mut waiting = std::collections::VecDeque::new();
    for n in 0..200_000u32 {
        now += Duration::from_micros(100);
        let [_, b, c, d] = n.to_be_bytes();
        t.on_sent(now, PEER, &udp((hog, 1000), (IpAddr::from([11, b, c, d]), 53)));
        if n % 200 == 0 {
            let asks = (hosts((n / 200 % 49) as u8), 2000 + (n / 200) as u16);
            t.on_sent(now, PEER, &udp(asks, (ip("203.0.113.9"), 53)));
            waiting.push_back((now + Duration::from_secs(5), asks));
        }
        while waiting.front().is_some_and(|(at, _)| *at <= now) {
            let (_, asked) = waiting.pop_front().unwrap();
            let answer = udp((ip("203.0.113.9"), 53), asked);
            assert!(t.is_answer(now, PEER, &answer), "the answer for {asked:?} is refused");
        }
    }
    assert!(t.forgotten > 100_000, "the table was full");
}

/// A host of IPv6 has as many addresses as it likes: they are one network's.
#[test]
fn a_host_of_many_addresses_leaves_other_networks_their_answers_and_its_own_what_was_answered() {
    let mut t = Tracking::default();
    let address = |n: u128| IpAddr::from(std::net::Ipv6Addr::from(0xfd01 << 112 | n));
    let hosts = [address(1 << 64 | 7), ip("10.2.0.7"), ip("10.2.0.8"), ip("10.2.0.9")];
    let server = |of: IpAddr| ip(if of.is_ipv6() { "2001:db8::9" } else { "203.0.113.9" });
    let neighbour = (address(5), 5);
    let far = (server(neighbour.0), 80);
    t.on_sent(at(0), PEER, &tcp(neighbour, far, 0x02));
    assert!(t.is_answer(at(0), PEER, &tcp(far, neighbour, 0x12)));
    let mut now = at(0);
    let mut waiting = std::collections::VecDeque::new();
    for n in 0..200_000u32 {
        now += Duration::from_micros(100);
        t.on_sent(now, PEER, &udp((address(0x100 + u128::from(n)), 1000), (far.0, 53)));
        if n % 200 == 0 {
            let asks = (hosts[(n / 200 % 4) as usize], 2000 + (n / 200) as u16);
            t.on_sent(now, PEER, &udp(asks, (server(asks.0), 53)));
            waiting.push_back((now + Duration::from_secs(5), asks));
        }
        while waiting.front().is_some_and(|(at, _)| *at <= now) {
            let (_, asked) = waiting.pop_front().unwrap();
            let answer = udp((server(asked.0), 53), asked);
            assert!(t.is_answer(now, PEER, &answer), "the answer for {asked:?} is refused");
        }
    }
    assert!(t.forgotten > 100_000, "the table was full");
    assert!(t.is_answer(now, PEER, &tcp(far, neighbour, 0x10)), "the neighbour's connection");
}

/// What a peer is refused ends what was its own, and keeps nothing of another's from being over.
#[test]
fn a_peer_that_is_refused_much_leaves_what_ended_of_others_ended() {
    let mut t = Tracking::default();
    let [here, there] = PAIRS[0].map(ip);
    let before = Policy { allow: vec![units::IpPrefix::ALL_V4], ..Policy::default() };
    for peer in [PEER, OTHER] {
        t.on_narrowed(at(0), peer, before.clone());
    }
    let (asks, answers) = (udp((there, 53), (here, 5000)), udp((here, 5000), (there, 53)));
    t.on_denied(at(1), PEER, &asks);
    for port in 1..10_000 {
        t.on_denied(at(2), OTHER, &udp((there, 53), (here, port)));
    }
    t.on_sent(at(6), PEER, &answers);
    assert!(!t.is_answer(at(6), PEER, &asks));
    t.on_sent(at(6), OTHER, &answers);
    assert!(t.is_answer(at(6), OTHER, &asks), "the oldest are forgotten");
}
