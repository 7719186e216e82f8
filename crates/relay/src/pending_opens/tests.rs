//! SYNs and their answers between two gateways: what a client is written, and when.

use link::PeerConfig;
use link::endpoint::{Endpoint, EndpointConfig};
use link::keys::{PresharedKey, PrivateKey};
use link::session::RecvState;
use link::wire::Origin;
use units::Duration;

use super::intercepted::HANDSHAKE;
use super::syns::MOST;
use super::*;
use crate::gateways::{Gateways, PEER, address, link};
use crate::packet::{Packet, syn};
use crate::{Action, Open, Policy, Relay, Verdict};

fn is_clean(p: &mut Gateways) -> bool {
    p.pass(Duration::from_secs(1));
    let empty = |r: &Relay| {
        let session = r.endpoint.session(PEER).unwrap();
        r.flow_count() == 0 && r.pending_opens() == 0 && session.streams() == 0
    };
    let o = &p.near().pending_opens;
    let books = o.asked.len() + o.pairs.len() + o.due.len();
    p.sides.iter().all(empty) && books == 0
}

fn pair(port: u16) -> Pair {
    (SocketAddr::from(([10, 1, 0, 2], 40_000)), SocketAddr::from(([10, 2, 0, 2], port)))
}

fn syn_to(port: u16) -> Vec<u8> {
    let (client, server) = pair(port);
    syn(client, server, 5)
}

fn protocol(packet: &[u8]) -> u8 {
    assert!(Packet::parse(packet).is_some());
    packet[9]
}

#[test]
fn a_syn_is_pending_until_the_server_stands_and_its_connection_joins_the_stream() {
    let mut p = Gateways::new(Open::Sure);
    let first = syn_to(22);
    assert_eq!(p.knock(&first), Verdict::Pending);
    assert_eq!(p.asked.len(), 1, "the OPEN left at once");
    assert!(p.written.is_empty());
    // Sent again it is not opened twice, and the newest is what goes back.
    let (client, server) = pair(22);
    let again = syn(client, server, 6);
    assert_eq!(p.knock(&again), Verdict::Pending);
    assert_eq!((p.asked.len(), p.near().pending_opens()), (1, 1));
    let (now, far) = (p.now, p.asked[0]);
    p.sides[1].connected(far);
    p.sides[1].local_data(now, far, b"220 ready");
    p.pass(Duration::from_millis(50));
    assert_eq!(p.written, std::slice::from_ref(&again));
    assert!(p.others.is_empty(), "there is no socket here that could be written");
    // A SYN whose answer was lost goes the same way.
    assert_eq!(p.knock(&again), Verdict::Intercept);
    let flow = p.sides[0].accept(now, client, server).unwrap();
    let mut slices: [&[u8]; 4] = [&[]; 4];
    assert_eq!(p.sides[0].outgoing(now, flow, &mut slices), 1);
    assert_eq!(slices[0], b"220 ready");
    p.sides[0].local_reset(now, flow, ResetReason::HostReset);
    p.pass(Duration::from_millis(50));
    p.sides[1].closed(now, far);
    assert_eq!(p.asked.len(), 1);
    assert!(is_clean(&mut p));
}

/// What the kernel found no socket for is not the far host's to judge.
#[test]
fn segments_of_a_connection_that_is_just_being_made_do_not_cross_the_link() {
    for open in [Open::Fast, Open::Sure] {
        let mut p = Gateways::new(open);
        let (client, server) = pair(22);
        let mut segment = syn(client, server, 6);
        segment[33] = 0x18; // PSH and ACK
        let mut come = |p: &mut Gateways| p.sides[0].handle_tun(p.now, &mut segment, false);
        // One that stood before this node did: the far host decides.
        assert_eq!(come(&mut p), Verdict::Sent);
        if p.knock(&syn_to(22)) == Verdict::Pending {
            assert_eq!(come(&mut p), Verdict::Sent, "the kernel has no SYN of it yet");
            let far = p.asked[0];
            p.sides[1].connected(far);
            p.pass(Duration::from_millis(50));
        }
        assert_eq!(come(&mut p), Verdict::Refused);
        p.sides[0].accept(p.now, client, server).unwrap();
        assert_eq!(come(&mut p), Verdict::Refused);
        assert_eq!(p.near().stats().between_sockets, 2);
        p.pass(HANDSHAKE);
        assert_eq!(come(&mut p), Verdict::Sent);
    }
}

#[test]
fn a_refusal_is_written_to_the_client_and_a_timeout_is_not() {
    let mut p = Gateways::new(Open::Sure);
    for (n, (reason, answer)) in [
        (ResetReason::Refused, Some(6)),
        (ResetReason::Icmp(13), Some(1)),
        (ResetReason::TimedOut, None),
    ]
    .into_iter()
    .enumerate()
    {
        let packet = syn_to(22 + n as u16);
        assert_eq!(p.knock(&packet), Verdict::Pending);
        let (now, far) = (p.now, p.asked.pop().unwrap());
        p.sides[1].connect_failed(now, far, reason);
        p.pass(Duration::from_millis(50));
        assert_eq!(p.written.pop().map(|a| protocol(&a)), answer, "{reason:?}");
        assert!(is_clean(&mut p));
    }
    assert!(p.others.is_empty(), "{:?}", p.others);
}

#[test]
fn a_client_that_goes_is_forgotten_and_one_that_waits_is_not() {
    let mut p = Gateways::new(Open::Sure);
    p.knock(&syn_to(22));
    p.pass(Duration::from_secs(14));
    assert_eq!(p.near().pending_opens(), 1);
    p.pass(Duration::from_secs(2));
    assert!(is_clean(&mut p), "no SYN for 15 s");
    // SYNs after 1, 3, 7, 15, 31 and 63 s: it waits for 127 s.
    let began = p.now;
    for at in [0, 1, 3, 7, 15, 31, 63] {
        p.pass((began + Duration::from_secs(at)).since(p.now));
        assert_eq!(p.knock(&syn_to(22)), Verdict::Pending);
    }
    p.pass((began + Duration::from_secs(127)).since(p.now));
    assert_eq!((p.asked.len(), p.near().pending_opens()), (2, 1), "asked once for each client");
    p.pass(Duration::from_secs(70));
    assert!(is_clean(&mut p));
}

#[test]
fn a_handshake_that_never_ends_resets_the_stream_and_a_late_one_opens_anew() {
    let mut p = Gateways::new(Open::Sure);
    p.knock(&syn_to(22));
    let far = p.asked[0];
    p.sides[1].connected(far);
    p.pass(Duration::from_secs(9));
    assert_eq!(p.near().pending_opens(), 1);
    p.pass(Duration::from_secs(2));
    assert_eq!((p.near().pending_opens(), p.near().flow_count()), (0, 0));
    let now = p.now;
    p.sides[1].closed(now, far);
    assert!(is_clean(&mut p));
    let (client, server) = pair(22);
    assert!(p.sides[0].accept(now, client, server).is_some());
    p.pass(Duration::from_millis(50));
    assert_eq!(p.asked.len(), 2);
}

#[test]
fn a_server_that_gives_up_before_the_handshake_is_heard_after_it() {
    let mut p = Gateways::new(Open::Sure);
    p.knock(&syn_to(22));
    let (now, far) = (p.now, p.asked[0]);
    p.sides[1].connected(far);
    p.pass(Duration::from_millis(50));
    p.sides[1].local_data(now, far, b"last words");
    p.sides[1].local_reset(now, far, ResetReason::HostReset);
    p.pass(Duration::from_millis(50));
    let (client, server) = pair(22);
    let flow = p.sides[0].accept(now, client, server).unwrap();
    p.act(0);
    assert_eq!(p.others, [Action::PeerReset(flow, ResetReason::HostReset)]);
    p.sides[0].closed(now, flow);
    assert!(is_clean(&mut p));
}

#[test]
fn a_lost_session_forgets_who_waits_and_resets_who_was_answered() {
    let mut p = Gateways::new(Open::Sure);
    p.knock(&syn_to(22));
    p.knock(&syn_to(23));
    let far = p.asked[1];
    p.sides[1].connected(far);
    p.pass(Duration::from_millis(50));
    p.sides[1].endpoint.close_all(ResetReason::ShuttingDown);
    p.pass(Duration::from_millis(50));
    let (client, server) = pair(23);
    let now = p.now;
    assert_eq!(p.near().flow_count(), 0);
    assert_eq!(p.sides[0].accept(now, client, server), None, "its stream is gone");
    assert_eq!(p.near().pending_opens(), 0);
    assert!(p.others.is_empty(), "{:?}", p.others);
}

/// A page that hangs says less than one that cannot be connected to.
#[test]
fn auto_answers_for_nobody_while_there_is_no_session() {
    let mut p = Gateways::apart([link(), link()], |policy| policy.open = Open::Auto);
    assert!(p.near().asks_first(p.now, PEER, &Target::Address(pair(80).1)));
    p.meet();
    assert_eq!(p.knock(&syn_to(80)), Verdict::Pending, "no server has answered yet");
    let far = p.asked.pop().unwrap();
    p.sides[1].connected(far);
    p.pass(Duration::from_millis(50));
    assert!(!p.near().asks_first(p.now, PEER, &Target::Address(pair(80).1)));
    p.sides[1].endpoint.session_mut(PEER).unwrap().close(ResetReason::ShuttingDown);
    p.pass(Duration::from_millis(200));
    assert!(!p.near().endpoint.is_established(PEER));
    assert!(p.near().asks_first(p.now, PEER, &Target::Address(pair(80).1)));
}

#[test]
fn auto_answers_at_once_where_servers_answered_and_at_listed_ports() {
    let mut p = Gateways::new(Open::Auto);
    for (port, verdict) in [
        (80, Verdict::Pending),
        (22, Verdict::Pending),
        (22, Verdict::Intercept),
        (80, Verdict::Intercept),
        (23, Verdict::Pending),
    ] {
        assert_eq!(p.knock(&syn_to(port)), verdict, "port {port}");
        let (now, (client, server)) = (p.now, pair(port));
        if verdict == Verdict::Pending {
            let far = p.asked.pop().unwrap();
            match port {
                22 => p.sides[1].connected(far),
                _ => p.sides[1].connect_failed(now, far, ResetReason::Refused),
            }
            p.pass(Duration::from_millis(50));
            if port != 22 {
                continue;
            }
        }
        let flow = p.sides[0].accept(now, client, server).unwrap();
        p.sides[0].local_reset(now, flow, ResetReason::HostReset);
        p.pass(Duration::from_millis(50));
        while let Some(far) = p.asked.pop() {
            p.sides[1].closed(now, far);
        }
    }
    // A listed port that refuses is asked first from then on.
    let (now, (client, server)) = (p.now, pair(80));
    let flow = p.sides[0].accept(now, client, server).unwrap();
    p.pass(Duration::from_millis(50));
    let far = p.asked.pop().unwrap();
    p.sides[1].connect_failed(now, far, ResetReason::Refused);
    p.pass(Duration::from_millis(50));
    assert!(p.others.contains(&Action::PeerReset(flow, ResetReason::Refused)));
    assert_eq!(p.knock(&syn_to(80)), Verdict::Pending);
    assert!(p.near().asks_first(now, PEER, &Target::Name("a.example".into(), 80)));
}

/// What this node connects for one peer behind another, and in its own name, is nobody's that
/// the other knows. What its own programs connect has an address that is behind it.
#[test]
fn a_client_with_an_address_of_this_nodes_own_is_told_only_where_that_is_its_programs() {
    let (_, server) = pair(22);
    let own = SocketAddr::from(([203, 0, 113, 9], 40_000));
    for (keep, told, connects) in
        [(false, false, true), (false, true, true), (true, false, false), (true, true, false)]
    {
        let mut p = Gateways::apart([link(), link()], |policy| {
            (policy.open, policy.keep_source) = (Open::Sure, keep);
        });
        p.meet();
        p.sides[0].set_own_addresses(vec![own.ip().into()]);
        p.sides[0].tell_own_clients(told);
        assert_eq!(p.near().told(own), Some(own).filter(|_| told));
        assert_eq!(p.knock(&syn(own, server, 5)), Verdict::Pending);
        // Where sources are kept it is not behind this node, or nobody: denied.
        let expected = if connects { (1, 0) } else { (0, 1) };
        assert_eq!((p.asked.len(), p.written.len()), expected, "{keep} {told}");
        assert!(p.asked_as.iter().all(Option::is_none));
    }
}

/// R-QOS: a connection's code point is known however it is opened, and at both ends.
#[test]
fn the_code_point_of_a_syn_is_that_of_its_connection_in_both_directions() {
    for open in [Open::Fast, Open::Sure] {
        let mut p = Gateways::new(open);
        for (port, dscp, class) in [(22, 8, crate::ClassId::BULK), (23, 0, crate::ClassId::NORMAL)]
        {
            let mut syn = syn_to(port);
            syn[1] = dscp << 2;
            p.knock(&syn);
            let (now, (client, server)) = (p.now, pair(port));
            let flow = p.sides[0].accept(now, client, server).unwrap();
            p.pass(Duration::from_millis(50));
            let far = p.asked.pop().unwrap();
            for (relay, flow) in p.sides.iter().zip([flow, far]) {
                let stream = relay.flows.get(flow).unwrap().stream;
                assert_eq!(relay.endpoint.session(PEER).unwrap().class(stream), Some(class));
            }
        }
    }
}

#[test]
fn syns_that_wait_are_bounded_and_the_oldest_goes() {
    let mut p = Gateways::new(Open::Sure);
    for n in 0..MOST as u16 + 10 {
        let client = SocketAddr::from(([10, 1, 0, 2], 10_000 + n));
        p.now += Duration::from_millis(1);
        let packet = syn(client, pair(22).1, 1);
        let verdict = p.sides[0].handle_tun(p.now, &mut packet.clone(), true);
        assert_eq!(verdict, Verdict::Pending, "{n}");
    }
    assert_eq!((p.near().pending_opens(), p.near().stats().syns_dropped), (MOST, 10));
    p.pass(Duration::from_secs(1));
    let now = p.now;
    p.sides[0].give_up_pending_opens(now);
    for far in std::mem::take(&mut p.asked) {
        p.sides[1].closed(now, far);
    }
    p.pass(Duration::from_secs(2));
    assert!(is_clean(&mut p));
}

/// What a flood of SYNs does to hosts that open a connection each second.
#[derive(Default)]
struct Harm {
    tried: u32,
    refused: u32,
    /// Sent again after a second.
    again: u32,
}

/// The source of each SYN of a flood.
type Sources = fn(u32) -> [u8; 4];

/// 49 hosts, of which `known` completed a handshake before, beside 270 SYNs a second with the
/// sources that `source` makes.
fn flood(known: bool, rate: u64, source: Option<Sources>) -> (Harm, u64) {
    let rate = units::BitRate::from_kbps(rate);
    let thin = link::session::LinkConfig { send_rate: rate, ..link() };
    let mut p = Gateways::apart([thin, link()], |policy| policy.open = Open::Sure);
    p.meet();
    let (_, server) = pair(443);
    let host = |n: u32| [10, 1, 1, n as u8 + 10];
    for n in (0..49).filter(|_| known) {
        let client = SocketAddr::from((host(n), 39_999));
        if let Some(flow) = p.sides[0].accept(p.now, client, server) {
            p.sides[0].local_reset(p.now, flow, ResetReason::HostReset);
        }
        p.pass(Duration::from_millis(20));
    }
    p.asked.clear();
    let (mut harm, mut waiting) = (Harm::default(), BTreeMap::<u64, Vec<SocketAddr>>::new());
    let before = p.near().endpoint.peer_stats(PEER).bytes_out;
    let seconds = 20;
    for tick in 0..seconds * 100 {
        for n in 0..if tick % 10 < 7 { 3 } else { 2 } {
            let Some(source) = source else { break };
            let serial = tick as u32 * 3 + n;
            let from = SocketAddr::from((source(serial), 1_024 + (serial % 60_000) as u16));
            let dead = SocketAddr::from(([10, 2, 9, 9], 1 + (serial % 60_000) as u16));
            p.sides[0].handle_tun(p.now, &mut syn(from, dead, serial), true);
        }
        let mut knocks = waiting.remove(&tick).unwrap_or_default();
        harm.again += knocks.len() as u32;
        if tick % 2 == 0 {
            let client =
                SocketAddr::from((host(tick as u32 / 2 % 49), 40_000 + (tick / 98) as u16));
            knocks.push(client);
            harm.tried += 1;
        }
        for client in knocks {
            match p.sides[0].handle_tun(p.now, &mut syn(client, server, 7), true) {
                Verdict::Pending => {}
                _ => waiting.entry(tick + 100).or_default().push(client),
            }
        }
        p.pass(Duration::from_millis(10));
        // The honest server accepts, half a second later for the link's sake; the other is dead.
        for far in std::mem::take(&mut p.asked) {
            let to_server = p.sides[1].flows.get(far).is_some_and(|f| f.kind.port == 443);
            if to_server {
                p.sides[1].connected(far);
            }
        }
        for packet in std::mem::take(&mut p.written) {
            let Some((client, server)) = Packet::parse(&packet).unwrap().opens(&packet) else {
                harm.refused += u32::from(packet[20..22] == 443u16.to_be_bytes());
                continue;
            };
            let flow = p.sides[0].accept(p.now, client, server).expect("it stands");
            p.sides[0].local_reset(p.now, flow, ResetReason::HostReset);
        }
    }
    let bytes = p.near().endpoint.peer_stats(PEER).bytes_out - before;
    (harm, bytes * 8 / seconds)
}

#[test]
fn a_host_that_floods_with_syns_costs_the_others_no_connection_and_little_of_the_link() {
    let (_, idle) = flood(true, 512, None);
    for (kbps, known) in [(512, true), (512, false), (10_000, true), (10_000, false)] {
        // Its own address; its neighbours'; a new one each time.
        let sources: [(&str, Sources); 3] = [
            ("its own", |_| [10, 1, 1, 200]),
            ("its neighbours'", |n| [10, 1, 1, 60 + (n % 190) as u8]),
            ("new", |n| [10, 1, 2 + (n / 250) as u8, (n % 250) as u8]),
        ];
        for (name, source) in sources {
            let (harm, bps) = flood(known, kbps, Some(source));
            println!(
                "{kbps} kbit/s, known {known}, sources {name}: {} of {} sent again, {} refused, \
                 {idle} → {bps} bit/s",
                harm.again, harm.tried, harm.refused
            );
            assert!(bps - idle < kbps * 100, "a tenth of the link");
            assert_eq!(harm.refused, 0);
            assert!(!known || harm.again == 0, "hosts that are known wait for nothing");
            assert!(harm.again <= 60, "{} SYNs were dropped", harm.again);
        }
    }
}

/// Between two connections of the others, in milliseconds: each has one in ten seconds.
const OTHERS_OPEN: u64 = 200;

/// What 49 others get of a link of `kbps` while one host opens and resets `a_second` connections
/// that are answered before the far side is asked: bytes of the bulk transfer that one of them
/// has, and the connections that were refused of those that the rest open.
fn opens_and_resets(kbps: u64, open: Open, a_second: u64, source: Sources) -> (u64, u32) {
    let kbps = units::BitRate::from_kbps(kbps);
    let thin = link::session::LinkConfig { send_rate: kbps, ..link() };
    let mut p = Gateways::apart([thin, link()], |policy| policy.open = open);
    p.meet();
    // Port 80 is listed: it counts as answering once anything did.
    if p.knock(&syn_to(22)) == Verdict::Pending {
        let far = p.asked.pop().expect("the far side is asked");
        p.sides[1].connected(far);
        p.pass(Duration::from_millis(200));
    }
    let server = pair(80).1;
    let connect = |p: &mut Gateways, client: SocketAddr, server: SocketAddr| {
        let now = p.now;
        match p.sides[0].handle_tun(now, &mut syn(client, server, 7), true) {
            Verdict::Intercept => Some(p.sides[0].accept(now, client, server)),
            verdict => {
                assert_eq!(verdict, Verdict::Dropped);
                None
            }
        }
    };
    let bulk = connect(&mut p, SocketAddr::from(([10, 1, 1, 10], 40_000)), server);
    let bulk = bulk.flatten().expect("a flow");
    p.pass(Duration::from_millis(200));
    let far_bulk = p.asked.pop();
    let (mut got, mut refused, mut serial) = (0, 0, 0u32);
    for ms in 0..10_000u64 {
        for _ in 0..(ms + 1) * a_second / 1_000 - ms * a_second / 1_000 {
            serial += 1;
            let from = SocketAddr::from((source(serial), 1_024 + (serial % 60_000) as u16));
            let to = SocketAddr::from(([10, 2, 9, (serial % 250) as u8], 80));
            if let Some(Some(flow)) = connect(&mut p, from, to) {
                p.sides[0].local_reset(p.now, flow, ResetReason::HostReset);
            }
        }
        if ms % OTHERS_OPEN == 0 {
            let n = ms / OTHERS_OPEN;
            let client = SocketAddr::from(([10, 1, 1, 11 + (n % 48) as u8], 40_000 + n as u16));
            match connect(&mut p, client, server) {
                Some(Some(flow)) => p.sides[0].local_reset(p.now, flow, ResetReason::HostReset),
                _ => refused += 1,
            }
        }
        let now = p.now;
        let room = p.sides[0].writable_bytes(now, bulk).min(4_096);
        p.sides[0].local_data(now, bulk, &vec![7; room]);
        p.pass(Duration::from_millis(1));
        let now = p.now;
        for far in std::mem::take(&mut p.asked) {
            p.sides[1].connected(far);
        }
        let mut slices = [&[][..]; 16];
        let far = far_bulk.expect("it was asked for");
        let n = p.sides[1].outgoing(now, far, &mut slices);
        let len = slices[..n].iter().map(|s| s.len()).sum();
        p.sides[1].wrote(now, far, len);
        got += len as u64;
    }
    (got, refused)
}

/// A connection that is answered at once costs the link as much as one that is asked for.
#[test]
fn a_host_that_opens_and_resets_leaves_the_link_and_its_places_to_the_others() {
    let sources: [(&str, Sources); 2] = [
        ("one host", |_| [10, 1, 1, 200]),
        ("all its neighbours", |n| [10, 1, 1, 60 + (n % 190) as u8]),
    ];
    for kbps in [16, 128, 512] {
        let (idle, refused) = opens_and_resets(kbps, Open::Auto, 0, sources[0].1);
        assert_eq!(refused, 0, "there is room for all");
        for (open, (name, source)) in
            [(Open::Auto, sources[0]), (Open::Fast, sources[0]), (Open::Auto, sources[1])]
        {
            let (got, refused) = opens_and_resets(kbps, open, 1_000, source);
            let what = format!("{kbps} kbit/s, {open:?}, {name}");
            println!("{what}: {got} of {idle} bytes, {refused} refused");
            // Many hosts have the part of many; of each packet half is for what waits.
            let (least, most) = if name == "one host" { (90, 0) } else { (40, 25) };
            assert!(got * 100 >= idle * least, "{what}: {got} of {idle} bytes");
            assert!(refused <= most, "{what}: {refused} refused");
        }
    }
}

/// Forged SYNs, whose handshakes are never completed, use up nobody's part.
#[test]
fn forged_syns_cost_nothing_where_hosts_are_answered_at_once() {
    let mut p = Gateways::new(Open::Fast);
    for n in 0..30_000u32 {
        let from = SocketAddr::from(([10, 1, 2 + (n / 250) as u8, (n % 250) as u8], 1_024));
        let verdict = p.sides[0].handle_tun(p.now, &mut syn(from, pair(80).1, n), true);
        assert_eq!(verdict, Verdict::Intercept);
    }
    let (client, server) = pair(80);
    assert_eq!(p.knock(&syn_to(80)), Verdict::Intercept, "a new host waits for nothing");
    let now = p.now;
    assert!(p.sides[0].accept(now, client, server).is_some());
}

/// L-SE-3: what a host says on a connection of the session before goes nowhere, although the
/// stream's number is another stream's by now and nobody was told yet.
#[test]
fn a_flow_of_the_session_before_is_not_spliced_into_a_new_stream() {
    let mut pair = Gateways::new(Open::Fast);
    let origin = |host: u8| Origin {
        client: Some(([10, 1, 0, host], 40_000).into()),
        target: Target::Address(([10, 2, 0, host], 80).into()),
        dscp: 0,
    };
    let old = pair.sides[0].open(pair.now, PEER, origin(2)).expect("a stream");
    let old_stream = pair.sides[0].flows.get(old).expect("a flow").stream;
    pair.pass(Duration::from_millis(100));
    // The far gateway starts anew and calls; the near one's driver has not looked yet.
    let mut buf = [0; 2048];
    let mut fresh = Relay::new(Endpoint::new(EndpointConfig {
        private_key: PrivateKey::from_bytes([2; 32]),
        seed: [99; 32],
        hardware_aes: false,
        initiations_per_second: 1000,
        key_lifetime: link::endpoint::MAX_KEY_LIFETIME,
        fresh: None,
    }));
    let config = PeerConfig {
        public_key: *PrivateKey::from_bytes([1; 32]).public(),
        preshared_key: PresharedKey::NONE,
        endpoint: Some(address(0).into()),
        link: link(),
        keepalive: None,
    };
    let policy = Policy {
        routes: vec!["10.1.0.0/16".parse().unwrap()],
        allow: vec!["10.0.0.0/8".parse().unwrap()],
        keep_source: true,
        ..Policy::default()
    };
    fresh.add_peer(pair.now, config, policy).unwrap();
    pair.sides[1] = fresh;
    for _ in 0..6 {
        pair.now += Duration::from_millis(500);
        for side in [1, 0] {
            pair.sides[side].handle_timeout(pair.now);
            while let Some(t) = pair.sides[side].poll_transmit(pair.now, &mut buf) {
                let packet = &mut buf[..t.len];
                pair.sides[1 - side].handle_carrier(pair.now, pair.now, address(side), packet);
            }
        }
    }
    assert_eq!(pair.sides[0].endpoint.session_number(PEER), 1, "another session has begun");

    let new = pair.sides[0].open(pair.now, PEER, origin(3)).expect("a stream");
    assert_eq!(pair.sides[0].flows.get(new).expect("a flow").stream, old_stream);
    assert_eq!(pair.sides[0].local_data(pair.now, old, b"for the old server"), 0);
    let reset = RecvState::Reset(ResetReason::PeerRestarted);
    assert_eq!(pair.sides[0].outgoing_state(old), reset);
    assert_eq!(pair.sides[0].local_data(pair.now, new, b"for the new one"), 15);
    pair.pass(Duration::from_millis(100));
    let aborted = Action::Abort(old, ResetReason::PeerRestarted);
    assert_eq!(pair.others.iter().filter(|a| **a == aborted).count(), 1, "{:?}", pair.others);
    assert!(pair.sides[0].flow_peer(new).is_some(), "the new one lives");
    let asked = *pair.asked.last().expect("the far side was asked");
    let mut slices = [&[][..]; 4];
    let n = pair.sides[1].outgoing(pair.now, asked, &mut slices);
    assert_eq!(slices[..n].concat(), b"for the new one");
}
