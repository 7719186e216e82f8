//! Cookies: what a node under load spends on strangers.

use std::net::SocketAddr;

use super::*;
use crate::cookie::COOKIE_ROTATION;
use crate::handshake::{MIN_RESPONSE, RESPONSE, VERSION};

/// Puts the node under load: more good-looking initiations than it means to serve.
fn burden(now: Instant, node: &mut Node) {
    let (_, mut template) = initiation_of(9, node);
    for n in 0..300u32 {
        template.as_mut()[6..10].copy_from_slice(&n.to_be_bytes());
        MacKeys::of(node.key.public()).sign(&mut template, None);
        let from = SocketAddr::from(([198, 51, 100, n as u8], 1000 + n as u16));
        node.guard.admit(now, from, template.as_bytes());
    }
    assert!(node.guard.under_load(now));
}

/// The same with responses.
fn burden_with_responses(now: Instant, node: &mut Node) {
    let mut template = Message::zeroed(MIN_RESPONSE);
    template.as_mut()[..2].copy_from_slice(&[RESPONSE, VERSION]);
    for n in 0..3000u32 {
        template.as_mut()[6..10].copy_from_slice(&n.to_be_bytes());
        MacKeys::of(node.key.public()).sign(&mut template, None);
        let from = SocketAddr::from(([198, 51, 100, n as u8], 1000 + n as u16));
        node.guard.admit(now, from, template.as_bytes());
    }
}

/// An initiation of a stranger's.
fn initiation_of(stranger: u8, to: &Node) -> (Asked, Message) {
    let hello = Hello { index: 5, offer: Offer::new(true), params: Params::EMPTY };
    let epochs = SessionId { local: 1, remote: 0 };
    let stranger_key = key(stranger);
    let psk = PresharedKey::NONE;
    let mut entropy = Entropy::new([stranger; 32]);
    Asked::new(&stranger_key, to.key.public(), &psk, hello, epochs, None, &mut entropy)
        .expect("good keys")
}

/// L-CK-2.
#[test]
fn under_load_a_handshake_takes_a_cookie_and_one_more_round_trip() {
    let mut w = World::new();
    burden(w.now, &mut w.b);
    w.a.tunnel.connect(w.now);
    w.run();
    let kinds: Vec<_> = w.log.iter().map(|p| p.bytes[0]).collect();
    assert_eq!(kinds[..4], [1, 3, 1, 2], "initiation, cookie reply, initiation, response");
    assert_eq!(w.b.handshake_drops, [HandshakeError::NoCookie]);
    w.assert_talking();
}

#[test]
fn a_loaded_initiator_demands_a_cookie_of_the_responder() {
    let mut w = World::new();
    w.a.tunnel.connect(w.now);
    w.drain();
    burden_with_responses(w.now, &mut w.a);
    w.run();
    assert_eq!(w.a.handshake_drops, [HandshakeError::NoCookie]);
    assert!(w.a.handshake_drops.len() == 1 && !w.a.tunnel.is_established());
    w.pass(Duration::from_millis(1300));
    burden_with_responses(w.now, &mut w.a);
    w.run();
    assert!(w.a.tunnel.is_established(), "the second response has the cookie");
    w.assert_talking();
}

/// L-CK-2.
#[test]
fn a_flood_of_initiations_does_not_keep_a_node_from_calling() {
    let mut w = World::new();
    w.a.tunnel.connect(w.now);
    w.drain();
    burden(w.now, &mut w.a);
    w.run();
    assert!(w.a.handshake_drops.is_empty(), "its responses are counted apart");
    w.assert_talking();
    let mut w = World::new();
    burden_with_responses(w.now, &mut w.b);
    w.a.tunnel.connect(w.now);
    w.run();
    assert!(w.b.handshake_drops.is_empty(), "nor the other way round");
    w.assert_talking();
}

/// L-CK-2.
#[test]
fn a_cookie_is_good_for_its_own_address_only() {
    let mut w = World::new();
    burden(w.now, &mut w.b);
    w.a.tunnel.connect(w.now);
    w.drain();
    for _ in 0..2 {
        let packet = w.net.pop_front().expect("initiation, cookie reply");
        w.deliver(&packet);
    }
    let mut proven = w.net.pop_front().expect("an initiation with a cookie");
    let good_from = proven.from;
    for elsewhere in [addr(99), SocketAddr::new(good_from.source().ip(), 4501).into()] {
        w.b.handshake_drops.clear();
        proven.from = elsewhere;
        w.deliver(&proven);
        assert_eq!(w.b.handshake_drops, [HandshakeError::NoCookie]);
    }
    proven.from = good_from;
    w.net.clear();
    w.deliver(&proven);
    w.run();
    w.assert_talking();
}

/// L-CK-5: a cookie of the first second of two minutes, and one of the last.
#[test]
fn a_cookie_outlives_one_rotation_of_the_secret_and_not_two() {
    let early = [(0, true), (119, true), (238, true), (240, false), (10_000, false)];
    let late = [(0, true), (2, true), (119, true), (122, false), (10_000, false)];
    for (given_at, ages) in [(1, early), (119, late)] {
        for (age, good) in ages {
            let mut w = World::new();
            let period = COOKIE_ROTATION.as_nanos();
            let into = Duration::from_nanos(w.now.as_nanos() % period);
            w.pass(COOKIE_ROTATION - into + Duration::from_secs(given_at));
            burden(w.now, &mut w.b);
            w.a.tunnel.connect(w.now);
            w.drain();
            for _ in 0..2 {
                let packet = w.net.pop_front().expect("initiation, cookie reply");
                w.deliver(&packet);
            }
            let proven = w.net.pop_front().expect("an initiation with a cookie");
            w.pass(Duration::from_secs(age));
            burden(w.now, &mut w.b);
            w.net.clear();
            w.b.handshake_drops.clear();
            w.deliver(&proven);
            let accepted = w.b.handshake_drops.is_empty();
            assert_eq!(accepted, good, "given after {given_at} s, {age} s old");
        }
    }
}

/// L-CK-4.
#[test]
fn a_forged_or_foreign_cookie_reply_is_ignored() {
    let mut w = World::new();
    burden(w.now, &mut w.b);
    w.a.tunnel.connect(w.now);
    w.drain();
    let initiation = w.net.pop_front().expect("an initiation");
    w.deliver(&initiation);
    let reply = w.net.pop_front().expect("a cookie reply");
    for bit in 16..reply.bytes.len() * 8 {
        let mut bad = reply.clone();
        bad.bytes[bit / 8] ^= 1 << (bit % 8);
        w.deliver(&bad);
        assert!(w.net.is_empty() && w.a.tunnel.cookie.is_none(), "bit {bit}");
    }
    w.deliver(&reply);
    assert!(w.a.tunnel.cookie.is_some());
    let answers = w.net.len();
    w.deliver(&reply);
    assert_eq!(w.a.handshake_drops.last(), Some(&HandshakeError::Unsolicited), "once");
    assert_eq!(w.net.len(), answers);
}

/// L-CK-3.
#[test]
fn one_source_with_a_cookie_gets_five_handshakes_a_second() {
    let mut w = World::new();
    burden(w.now, &mut w.b);
    let (_, mut message) = initiation_of(9, &w.b);
    let from = addr(99);
    let macs = MacKeys::of(w.b.key.public());
    let mac1 = macs.sign(&mut message, None);
    let Verdict::Refused(HandshakeError::NoCookie, Some(reply)) =
        w.b.guard.admit(w.now, from.source(), message.as_bytes())
    else {
        panic!("a cookie is demanded")
    };
    let cookie = macs.open_reply(&mac1, reply.as_bytes()).expect("our cookie");
    macs.sign(&mut message, Some(&cookie));
    let mut admitted = 0;
    for _ in 0..100 {
        burden(w.now, &mut w.b);
        for _ in 0..10 {
            match w.b.guard.admit(w.now, from.source(), message.as_bytes()) {
                Verdict::Admitted => admitted += 1,
                Verdict::Refused(why, None) => assert_eq!(why, HandshakeError::SourceLimit),
                Verdict::Refused(why, Some(_)) => panic!("{why}"),
            }
        }
        w.pass(Duration::from_millis(100));
    }
    assert!((45..=56).contains(&admitted), "{admitted} in ten seconds");
}

/// Under load, `from` asks for a cookie and then for `times` handshakes. How many are admitted.
fn admitted_with_a_cookie(now: Instant, node: &mut Node, from: SocketAddr, times: u32) -> u32 {
    let (_, mut message) = initiation_of(9, node);
    let macs = MacKeys::of(node.key.public());
    let mac1 = macs.sign(&mut message, None);
    let Verdict::Refused(HandshakeError::NoCookie, Some(reply)) =
        node.guard.admit(now, from, message.as_bytes())
    else {
        panic!("a cookie is demanded")
    };
    let cookie = macs.open_reply(&mac1, reply.as_bytes()).expect("our cookie");
    macs.sign(&mut message, Some(&cookie));
    let mut admits =
        || matches!(node.guard.admit(now, from, message.as_bytes()), Verdict::Admitted);
    (0..times).map(|_| u32::from(admits())).sum()
}

/// L-CK-7.
#[test]
fn one_prefix_with_cookies_for_all_its_sources_starves_no_other() {
    let v6 = |n: u16| SocketAddr::from(([0x2001, 0xdb8, 1, n, 0, 0, 0, 1], 7));
    let v4 = |n: u16| SocketAddr::from(([203, 0, 113, n as u8], n));
    let prefixes: [(&dyn Fn(u16) -> SocketAddr, u16); 2] = [(&v6, 3000), (&v4, 250)];
    for (attacker, sources) in prefixes {
        let mut w = World::new();
        burden(w.now, &mut w.b);
        let theirs: u32 =
            (0..sources).map(|n| admitted_with_a_cookie(w.now, &mut w.b, attacker(n), 6)).sum();
        assert_eq!(theirs, 50, "of one prefix in a moment");
        // Others share a counter with them by chance only: one in hundreds.
        let served: u32 = (0..200u16)
            .map(|n| SocketAddr::from(([0x2001, 0xdb8, 0x100 + n, 0, 0, 0, 0, 1], 7)))
            .map(|other| admitted_with_a_cookie(w.now, &mut w.b, other, 1))
            .sum();
        assert!(served >= 190, "{served} of 200 others");
    }
}

#[test]
fn a_flood_gets_no_more_than_a_second_s_worth_of_arithmetic() {
    let mut w = World::new();
    let (_, mut message) = initiation_of(9, &w.b);
    let mut admitted = 0;
    for n in 0..20_000u32 {
        message.as_mut()[6..10].copy_from_slice(&n.to_be_bytes());
        MacKeys::of(w.b.key.public()).sign(&mut message, None);
        let from = SocketAddr::from(([198, 51, 100, n as u8], n as u16));
        if let Verdict::Admitted = w.b.guard.admit(w.now, from, message.as_bytes()) {
            admitted += 1;
        }
        w.pass(Duration::from_millis(1));
    }
    assert!(admitted <= 250, "{admitted} of 20,000 in 20 s at 100 a second and load from then on");
    w.pass(Duration::from_secs(3));
    assert!(!w.b.guard.under_load(w.now), "and it is over when it is over");
}

#[test]
fn below_its_limit_a_node_asks_nobody_for_a_cookie() {
    let mut w = World::new();
    let (_, mut message) = initiation_of(9, &w.b);
    for n in 0..500u32 {
        message.as_mut()[6..10].copy_from_slice(&n.to_be_bytes());
        MacKeys::of(w.b.key.public()).sign(&mut message, None);
        let verdict = w.b.guard.admit(w.now, addr(99).source(), message.as_bytes());
        assert!(matches!(verdict, Verdict::Admitted), "{n}");
        w.pass(Duration::from_millis(11));
    }
}

/// Not a test of anything: `cargo test -p link --release -- --ignored --nocapture
/// handshake_speed` prints what a handshake costs on this machine.
#[test]
#[ignore = "a measurement"]
#[allow(clippy::disallowed_methods, clippy::disallowed_types)]
fn handshake_speed() {
    let mut w = World::established();
    let n = 2000;
    let start = std::time::Instant::now();
    for _ in 0..n {
        w.a.tunnel.renew = Some(w.now);
        w.run();
        w.log.clear();
        w.pass(Duration::from_secs(60));
    }
    let whole = start.elapsed() / n;
    let (_, message) = initiation_of(9, &w.b);
    let start = std::time::Instant::now();
    for _ in 0..n {
        let opened = Initiation::open(&w.b.key, &mut w.b.entropy, message.as_bytes());
        assert!(opened.is_ok());
    }
    let opening = start.elapsed() / n;
    let start = std::time::Instant::now();
    for _ in 0..n {
        w.pass(Duration::from_millis(20));
        w.b.guard.admit(w.now, addr(99).source(), message.as_bytes());
    }
    let admitting = start.elapsed() / n;
    let start = std::time::Instant::now();
    let packets = 1_000_000;
    let mut packet = [0; 1400 + 5 + TAG_LEN];
    for _ in 0..packets {
        w.a.tunnel.seal_packet(w.now, PathId::FIRST, 0, 2, &mut packet).expect("a session");
    }
    let seal = start.elapsed() / packets;
    println!(
        "both sides of a handshake {whole:?}; to refuse a stranger {admitting:?}, to open an \
         initiation {opening:?}; to seal 1,400 bytes {seal:?}; a tunnel is {} bytes",
        size_of::<Tunnel>()
    );
}
