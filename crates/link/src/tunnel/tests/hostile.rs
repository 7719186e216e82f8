//! Packets that no honest peer sent, or that were sent before.

use proptest::prelude::*;

use super::*;
use crate::handshake::COOKIE_REPLY;

/// What must not change by whatever a stranger sends.
fn state(node: &Node) -> (Option<SessionId>, Option<u64>, Option<u32>, Option<Remote>, usize) {
    (
        node.tunnel.session(),
        node.tunnel.next_number(PathId::FIRST),
        node.tunnel.keys.current().map(|k| k.local_index),
        node.tunnel.endpoint(PathId::FIRST),
        node.received.len(),
    )
}

/// Delivers `packet` to whom it is for; answers what came back.
fn provoke(w: &mut World, packet: &Flying) -> Vec<Flying> {
    w.net.clear();
    w.deliver(packet);
    w.net.drain(..).collect()
}

/// An established world that has talked, and every packet that flew in it.
fn history() -> (World, Vec<Flying>) {
    let mut w = World::established();
    w.assert_talking();
    w.b.tunnel.renew = Some(w.now);
    w.run();
    w.assert_talking();
    let log = w.log.clone();
    (w, log)
}

/// L-PP-5, L-HS-7.
#[test]
fn no_packet_is_good_for_anything_twice() {
    let (mut w, log) = history();
    assert!(log.len() > 10);
    w.pass(Duration::from_secs(3600));
    w.run();
    let before = (state(&w.a), state(&w.b));
    for packet in &log {
        let answer = provoke(&mut w, packet);
        assert!(answer.is_empty(), "{packet:?} was answered with {answer:?}");
    }
    // From elsewhere as well.
    for packet in &log {
        let moved = Flying { from: addr(99), ..packet.clone() };
        assert!(provoke(&mut w, &moved).is_empty());
    }
    assert_eq!((state(&w.a), state(&w.b)), before);
    w.assert_talking();
}

/// The same a million times: while the keys are new and an hour later, so fast that a node asks for
/// proof by cookies, which is all that it says, and so slowly that it judges each.
#[test]
fn none_of_a_million_replays_is_taken() {
    let (mut w, log) = history();
    for (wait, pause) in [(0, 0), (10, 20), (3600, 0), (10, 20)] {
        w.pass(Duration::from_secs(wait));
        w.run();
        let before = (state(&w.a), state(&w.b));
        let mut answered = 0;
        for (n, packet) in log.iter().cycle().take(250_000).enumerate() {
            if packet.bytes[0] == 0x01 {
                w.now += Duration::from_millis(pause);
            }
            let from = if n % 2 == 0 { packet.from } else { addr(99) };
            for answer in provoke(&mut w, &Flying { from, ..packet.clone() }) {
                assert_eq!(answer.bytes[0], COOKIE_REPLY, "{packet:?}");
                answered += 1;
            }
            w.log.clear();
        }
        assert_eq!(answered > 0, pause == 0, "{answered} cookies");
        assert_eq!((state(&w.a), state(&w.b)), before);
    }
    w.assert_talking();
}

/// L-HS-8, L-HS-9.
#[test]
fn initiations_of_old_sessions_disturb_nothing_even_long_after() {
    // An eavesdropper has the initiations of two hundred starts of `b`.
    let mut w = World::established();
    let (_, b) = World::ordered();
    for seed in 30..230 {
        w.b.restart(b, seed);
        w.b.tunnel.connect(w.now);
        w.run();
        w.pass(Duration::from_secs(1));
    }
    w.assert_talking();
    let recorded: Vec<_> =
        w.log.iter().filter(|p| p.bytes[0] == 0x01 && p.to == w.a.addr).cloned().collect();
    assert_eq!(recorded.len(), 200);
    let before = state(&w.a);
    let mut pace = w.now;
    for packet in recorded.iter().cycle().take(600) {
        pace += Duration::from_millis(20);
        w.now = pace;
        for answer in provoke(&mut w, packet) {
            assert!(answer.bytes.len() <= packet.bytes.len());
        }
    }
    assert_eq!(state(&w.a), before);
    w.assert_talking();

    // And the true peer, restarted in the middle of it, gets through.
    w.b.restart(b, 250);
    w.b.tunnel.connect(w.now);
    let mut attack = recorded.iter().cycle();
    for _ in 0..500 {
        // A round trip of 400 ms, a replay every 20 ms.
        w.b.drain(w.now, &mut w.net);
        let flying: Vec<_> = w.net.drain(..).collect();
        for _ in 0..10 {
            w.pass(Duration::from_millis(20));
            let packet = attack.next().expect("a cycle").clone();
            w.deliver(&packet);
            w.net.clear(); // its answer goes to the attacker's victim, if anywhere
        }
        for packet in flying {
            w.deliver(&packet);
        }
        if w.b.tunnel.is_established() {
            break;
        }
    }
    w.run();
    w.assert_talking();
}

/// L-HS-4, L-CK-1.
#[test]
fn no_flipped_bit_goes_unnoticed() {
    // Each packet of a handshake and a data packet, caught before it arrives.
    for catch in 0..4 {
        let mut w = World::new();
        w.a.tunnel.connect(w.now);
        w.drain();
        for _ in 0..catch {
            let packet = w.net.pop_front().expect("the handshake goes on");
            w.deliver(&packet);
        }
        if catch == 3 {
            let packet = w.a.seal(w.now, b"some payload").expect("a session");
            w.net.push_back(packet);
        }
        let good = w.net.pop_front().expect("a packet to catch");
        let before = (state(&w.a), state(&w.b));
        // A flip in mac2 is a flip in what is not looked at while there is no load.
        let end = if catch < 2 { good.bytes.len() - 16 } else { good.bytes.len() };
        for bit in 0..end * 8 {
            let mut bad = good.clone();
            bad.bytes[bit / 8] ^= 1 << (bit % 8);
            let answer = provoke(&mut w, &bad);
            assert!(answer.is_empty(), "packet {catch}, bit {bit}: answered");
            assert_eq!((state(&w.a), state(&w.b)), before, "packet {catch}, bit {bit}");
        }
        w.deliver(&good);
        w.run();
        w.assert_talking();
    }
}

/// L-HS-4.
#[test]
fn no_truncated_or_lengthened_packet_counts() {
    for catch in 0..3 {
        let mut w = World::new();
        w.a.tunnel.connect(w.now);
        w.drain();
        for _ in 0..catch {
            let packet = w.net.pop_front().expect("the handshake goes on");
            w.deliver(&packet);
        }
        let good = w.net.pop_front().expect("a packet to catch");
        let before = (state(&w.a), state(&w.b));
        for len in (0..good.bytes.len()).chain(good.bytes.len() + 1..300) {
            let mut bad = good.clone();
            bad.bytes.resize(len, 0);
            assert!(provoke(&mut w, &bad).is_empty(), "packet {catch} at {len} bytes: answered");
            assert_eq!((state(&w.a), state(&w.b)), before, "packet {catch} at {len} bytes");
        }
        w.deliver(&good);
        w.run();
        w.assert_talking();
    }
}

/// L-HS-4.
#[test]
fn forged_responses_do_not_end_a_handshake() {
    let mut w = World::new();
    w.a.tunnel.connect(w.now);
    w.drain();
    let initiation = w.net.pop_front().expect("an initiation");
    w.deliver(&initiation);
    let good = w.net.pop_front().expect("a response");
    for at in 10..good.bytes.len() - 32 {
        // With a right mac1, which takes only the public key.
        let mut forged = Message::zeroed(good.bytes.len());
        forged.as_mut().copy_from_slice(&good.bytes);
        forged.as_mut()[at] ^= 1;
        MacKeys::of(w.a.key.public()).sign(&mut forged, None);
        let forged = Flying { bytes: forged.as_bytes().to_vec(), ..good.clone() };
        w.deliver(&forged);
        assert_eq!(w.a.handshake_drops.last(), Some(&HandshakeError::Forged));
    }
    w.deliver(&good);
    w.run();
    w.assert_talking();
}

/// L-HS-3.
#[test]
fn a_response_whose_clear_index_was_changed_is_not_believed() {
    let mut w = World::new();
    w.a.tunnel.connect(w.now);
    w.drain();
    let initiation = w.net.pop_front().expect("an initiation");
    w.deliver(&initiation);
    let good = w.net.pop_front().expect("a response");
    let mut forged = Message::zeroed(good.bytes.len());
    forged.as_mut().copy_from_slice(&good.bytes);
    forged.as_mut()[5] ^= 1;
    MacKeys::of(w.a.key.public()).sign(&mut forged, None);
    let forged = Flying { bytes: forged.as_bytes().to_vec(), ..good };
    w.deliver(&forged);
    assert_eq!(w.a.handshake_drops, [HandshakeError::Malformed]);
    assert!(!w.a.tunnel.is_established());
    w.pass(Duration::from_secs(2));
    w.run();
    w.assert_talking();
}

#[test]
fn another_nodes_initiation_is_not_this_tunnels() {
    let mut w = World::established();
    let (_, b) = World::ordered();
    let mut stranger = Node::new(7, World::ordered().0, Some(w.a.addr), 70);
    stranger.tunnel.connect(w.now);
    stranger.drain(w.now, &mut w.net);
    let before = state(&w.a);
    w.run();
    assert_eq!(w.a.handshake_drops, [HandshakeError::WrongPeer]);
    assert_eq!(state(&w.a), before);
    assert_ne!(b, 7);
}

#[test]
fn a_version_that_we_do_not_speak_is_told_apart() {
    let mut w = World::new();
    w.a.tunnel.connect(w.now);
    w.drain();
    let mut packet = w.net.pop_front().expect("an initiation");
    packet.bytes[1] = 2;
    w.deliver(&packet);
    assert_eq!(w.b.handshake_drops, [HandshakeError::Version]);
}

/// L-HS-5, L-CK-4.
#[test]
fn answers_are_never_longer_than_questions_whatever_the_parameters() {
    for (params_a, params_b) in [(0, 64), (64, 0), (0, 0), (64, 64), (20, 64)] {
        let mut w = World::new();
        w.a.tunnel.set_params(Params::new(&vec![1; params_a]).expect("it fits"));
        w.b.tunnel.set_params(Params::new(&vec![2; params_b]).expect("it fits"));
        w.a.tunnel.connect(w.now);
        w.run();
        let [question, answer, ..] = &w.log[..] else { panic!("a handshake has two messages") };
        assert!(answer.bytes.len() <= question.bytes.len());
        assert!(question.bytes.len() <= crate::handshake::MAX_MESSAGE);
        w.assert_talking();
        let Event::Established { params, .. } = w.a.events[0] else { panic!("established") };
        assert_eq!(params.as_bytes(), vec![2; params_b]);
    }
    assert_eq!(Params::new(&[0; 65]), None);
}

proptest! {
    #[test]
    fn random_bytes_are_dropped_in_silence(
        first in prop_oneof![Just(1u8), Just(2), Just(3), any::<u8>()],
        second in prop_oneof![Just(1u8), any::<u8>()],
        rest in prop::collection::vec(any::<u8>(), 0..260),
        own_index in any::<bool>(),
    ) {
        let mut w = World::established();
        let mut bytes = [&[first, second][..], &rest].concat();
        let index = w.b.tunnel.keys.current().map_or(0, |k| k.local_index);
        if own_index && bytes.len() > 10 {
            let at = if first & 0x80 != 0 { 1 } else { 6 };
            bytes[at..at + 4].copy_from_slice(&index.to_be_bytes());
        }
        let before = state(&w.b);
        let packet = Flying { from: addr(99), to: w.b.addr, bytes };
        prop_assert!(provoke(&mut w, &packet).is_empty());
        prop_assert_eq!(state(&w.b), before);
    }
}

/// L-PP-7: the limit of forgeries is per key, and ends nothing but that key.
#[test]
fn a_key_that_met_too_many_forgeries_opens_nothing_more_and_is_replaced() {
    let mut w = World::established();
    w.assert_talking();
    let limit = w.b.tunnel.cipher().expect("a session").forgery_limit();
    let mut forged = w.a.seal(w.now, b"one of very many").expect("a session");
    *forged.bytes.last_mut().expect("a tag") ^= 1;
    w.b.tunnel.keys.current_mut().expect("keys").forgeries = limit - 1;
    w.deliver(&forged);
    assert_eq!(w.b.packet_drops, [PacketError::Forged]);
    let good = w.a.seal(w.now, b"true, and too late").expect("a session");
    w.deliver(&good);
    assert_eq!(w.b.packet_drops.last(), Some(&PacketError::UnknownIndex), "it was erased");
    assert!(w.b.seal(w.now, b"anything").is_none());
    // New keys are asked for at once, and under them the session goes on.
    w.run();
    w.assert_talking();
    assert_eq!((w.a.sessions, w.b.sessions), (1, 1));
}

/// L-SE-4: keys of a session that is over open nothing, though they were in use.
#[test]
fn keys_of_a_session_that_is_over_are_erased_at_both_ends() {
    let mut w = World::established();
    let (a, _) = World::ordered();
    let late_a = w.a.seal(w.now, b"of the old session").expect("a session");
    let late_b = w.b.seal(w.now, b"of the old session").expect("a session");
    w.a.restart(a, 99);
    w.a.tunnel.connect(w.now);
    w.run();
    w.assert_talking();
    w.deliver(&late_a);
    w.deliver(&late_b);
    assert_eq!(w.b.packet_drops, [PacketError::UnknownIndex]);
    assert_eq!(w.a.packet_drops, [PacketError::UnknownIndex]);
    w.assert_talking();
}
