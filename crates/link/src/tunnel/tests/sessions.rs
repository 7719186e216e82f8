//! Handshakes between honest nodes: begin, renew, resume, restart, retry.

use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn established(events: &[Event]) -> Vec<bool> {
    events
        .iter()
        .filter_map(|e| match e {
            Event::Established { resumed, .. } => Some(*resumed),
            Event::Moved(..) => None,
        })
        .collect()
}

fn initiations(w: &World) -> usize {
    w.log.iter().filter(|p| p.bytes[0] == 0x01).count()
}

/// `node` asks for new keys, as it would after 2^22 packets.
fn renew(now: Instant, node: &mut Node) {
    node.tunnel.renew = Some(now);
}

/// L-HS-8.
#[test]
fn two_packets_establish_and_the_third_confirms() {
    let mut w = World::new();
    w.a.tunnel.connect(w.now);
    w.run();
    let kinds: Vec<_> = w.log.iter().map(|p| p.bytes[0]).collect();
    assert_eq!(kinds[..2], [0x01, 0x02]);
    assert!(kinds[2] & 0x80 != 0, "the third is the packet that the initiator owes");
    assert_eq!(kinds.len(), 4, "and the fourth says that it arrived");
    assert_eq!(w.due(), None);
    for (node, peer) in [(&w.a, &w.b), (&w.b, &w.a)] {
        let Event::Established { resumed, cipher, params, .. } = node.events[0] else {
            panic!("the first event is {:?}", node.events[0]);
        };
        assert!(!resumed);
        assert_eq!(cipher, Cipher::Aes256Gcm);
        assert_eq!(params, peer.tunnel.config.params);
        let session = node.tunnel.session().expect("a session");
        assert_ne!(session.local, node.tunnel.fresh_epoch, "the next session has another name");
    }
    w.assert_talking();
    assert_eq!(w.b.received[0].0, 0, "numbers of a new session start at 0");
}

#[test]
fn the_weaker_offer_decides_the_cipher() {
    for (offer_a, offer_b) in [(true, false), (false, true), (false, false)] {
        let mut w = World::new();
        w.a.tunnel.config.offer = Offer::new(offer_a);
        w.b.tunnel.config.offer = Offer::new(offer_b);
        w.a.tunnel.connect(w.now);
        w.run();
        assert_eq!(w.a.tunnel.cipher(), Some(Cipher::ChaCha20Poly1305));
        w.assert_talking();
    }
}

#[test]
fn keys_that_differ_give_no_session_and_no_answer() {
    let shared = |n| PresharedKey::from_bytes([n; 32]);
    let mut w = World::of(shared(1), shared(1));
    w.settle();
    w.assert_talking();

    let mut w = World::of(shared(1), shared(2));
    w.settle();
    assert!(!w.a.tunnel.is_established() && !w.b.tunnel.is_established());
    assert!(w.a.handshake_drops.contains(&HandshakeError::Forged));

    // `a` expects someone else at `b`'s address: the wrong key in its mac1.
    let mut w = World::new();
    let (a, b) = World::ordered();
    w.a = Node::new(a, 7, Some(addr(b)), 10);
    w.a.tunnel.connect(w.now);
    w.run();
    assert_eq!(w.b.handshake_drops, [HandshakeError::Mac1]);
    assert_eq!(w.log.len(), 1, "no answer");
}

/// L-KY-1.
#[test]
fn a_tunnel_to_oneself_or_to_a_key_of_low_order_is_refused() {
    let make = |peer| Tunnel::check(&key(1), &peer).err();
    assert_eq!(make(*key(1).public()), Some(TunnelError::OwnKey));
    assert_eq!(make(PublicKey::from_bytes([0; 32])), Some(TunnelError::UnusableKey));
    assert_eq!(make(*key(2).public()), None);
}

/// L-PP-6, L-SE-5, L-CL-2.
#[test]
fn a_session_survives_any_time_without_packets() {
    let mut w = World::established();
    w.assert_talking();
    let spoken = w.log.len();
    w.pass(Duration::from_secs(400 * 24 * 3600));
    w.run();
    assert_eq!(w.log.len(), spoken, "nothing was sent meanwhile");
    // Its keys are too old to be used (L-PP-8).
    w.settle();
    w.assert_talking();
    assert_eq!(w.a.sessions, 1);
}

/// L-PP-3, L-PP-6: numbers run on through new keys.
#[test]
fn keys_in_use_for_two_hours_are_replaced_in_the_background() {
    let mut w = World::established();
    w.assert_talking();
    let before = w.a.tunnel.next_number(PathId::FIRST);
    let old_index = w.b.tunnel.keys.current().map(|k| k.local_index);
    w.pass(Duration::from_secs(2 * 3600));
    w.assert_talking();
    w.run();
    assert_ne!(w.b.tunnel.keys.current().map(|k| k.local_index), old_index);
    assert_eq!(established(&w.a.events), [false, true]);
    assert_eq!(established(&w.b.events), [false, true]);
    assert!(w.a.tunnel.next_number(PathId::FIRST) > before, "packet numbers go on");
    w.assert_talking();
}

#[test]
fn aes_keys_are_replaced_after_4_million_packets() {
    let mut w = World::established();
    let mut packet = [0; 40];
    for _ in 0..(1 << 22) {
        w.a.tunnel.seal_packet(w.now, PathId::FIRST, 0, 2, &mut packet).expect("a session");
    }
    w.run();
    assert_eq!(established(&w.a.events), [false, true]);
}

/// L-HS-12, L-PP-5.
#[test]
fn packets_of_the_old_keys_arrive_while_they_are_replaced() {
    let mut w = World::established();
    let late_a = w.a.seal(w.now, b"sealed before").expect("a session");
    let late_b = w.b.seal(w.now, b"sealed before").expect("a session");
    renew(w.now, &mut w.a);
    w.run();
    w.assert_talking();
    w.pass(SECOND.times(9));
    w.run();
    for packet in [late_a.clone(), late_b] {
        w.deliver(&packet);
    }
    assert!(w.a.packet_drops.is_empty() && w.b.packet_drops.is_empty());
    w.deliver(&late_a);
    assert_eq!(w.b.packet_drops, [PacketError::Duplicate], "one window for all keys");

    w.pass(SECOND.times(60));
    w.run();
    w.deliver(&late_a);
    assert_eq!(w.b.packet_drops.last(), Some(&PacketError::UnknownIndex), "they are gone");
}

#[test]
fn traffic_goes_on_while_every_handshake_packet_is_lost() {
    let mut w = World::established();
    renew(w.now, &mut w.a);
    for _ in 0..100 {
        w.drain();
        w.net.retain(|p| p.bytes[0] & 0x80 != 0);
        w.assert_talking_without_handshakes();
        w.pass(SECOND);
    }
    assert_eq!(established(&w.a.events), [false]);
    w.run();
    w.pass(SECOND.times(10));
    w.settle();
    assert_eq!(established(&w.a.events), [false, true], "and is mended once they pass");
}

/// L-HS-8.
#[test]
fn a_lost_confirmation_is_repeated_when_the_peer_uses_the_old_keys() {
    let mut w = World::established();
    w.assert_talking();
    renew(w.now, &mut w.a);
    w.drain();
    for _ in 0..2 {
        let packet = w.net.pop_front().expect("initiation, then response");
        w.deliver(&packet);
    }
    w.lose_all();
    assert_eq!(established(&w.b.events), [false], "no packet under the new keys came");
    // Long afterwards, with nothing said: `b` still has only the old keys.
    w.pass(Duration::from_secs(3600));
    w.run();
    let packet = w.b.seal(w.now, b"still the old keys").expect("a session");
    w.deliver(&packet);
    assert_eq!(w.a.received.last().map(|(_, p)| &p[..]), Some(&b"still the old keys"[..]));
    w.run();
    assert_eq!(established(&w.b.events), [false, true]);
    w.assert_talking();
}

#[test]
fn old_keys_are_kept_through_failed_renewals_until_the_peer_has_new_ones() {
    let mut w = World::established();
    for _ in 0..2 {
        renew(w.now, &mut w.a);
        w.drain();
        for _ in 0..2 {
            let packet = w.net.pop_front().expect("initiation, then response");
            w.deliver(&packet);
        }
        w.lose_all();
        w.pass(SECOND.times(30));
    }
    let packet = w.b.seal(w.now, b"the first keys").expect("a session");
    w.deliver(&packet);
    assert_eq!(w.a.received.last().map(|(_, p)| &p[..]), Some(&b"the first keys"[..]));
    w.run();
    w.assert_talking();
    w.pass(SECOND.times(60));
    w.run();
    w.assert_talking();
    assert_eq!(w.a.sessions, 1);
}

/// L-KY-2, L-SE-3: what a node knew of the session is gone with it; it makes a handshake.
#[test]
fn either_side_may_restart() {
    let (a, b) = World::ordered();
    for restarted in [a, b] {
        let mut w = World::established();
        w.assert_talking();
        let (node, other) =
            if restarted == a { (&mut w.a, &mut w.b) } else { (&mut w.b, &mut w.a) };
        node.restart(restarted, 77);
        node.tunnel.connect(w.now);
        let held = other.tunnel.session();
        let mut net = VecDeque::new();
        node.drain(w.now, &mut net);
        other.handle(w.now, &net[0], &mut w.net);
        assert_eq!(other.tunnel.session(), held, "an initiation alone changes nothing");
        w.run();
        assert_eq!((w.a.sessions, w.b.sessions), if restarted == a { (1, 2) } else { (2, 1) });
        w.assert_talking();
        w.pass(SECOND.times(60));
        w.run();
        w.assert_talking();
    }
}

#[test]
fn a_survivor_with_data_finds_out_that_its_peer_restarted() {
    let mut w = World::established();
    let (_, b) = World::ordered();
    w.b.restart(b, 77);
    w.b.tunnel.ways = Ways::new(1, None); // it does not know where `a` is
    w.a.tunnel.set_wanted(w.now, true);
    let packet = w.a.seal(w.now, b"to whom it knew").expect("a session");
    w.deliver(&packet);
    assert_eq!(w.b.packet_drops, [PacketError::UnknownIndex]);
    w.run();
    assert_eq!(w.a.sessions, 1);
    w.pass(SECOND);
    w.run();
    assert_eq!((w.a.sessions, w.b.sessions), (2, 1));
    w.assert_talking();
}

#[test]
fn a_peer_that_is_merely_silent_keeps_its_session() {
    let mut w = World::established();
    w.a.tunnel.set_wanted(w.now, true);
    for _ in 0..300 {
        w.pass(SECOND);
        w.lose_all();
    }
    w.run();
    w.pass(SECOND.times(13));
    w.run();
    assert_eq!(established(&w.a.events), [false, true]);
    assert_eq!(established(&w.b.events), [false, true]);
    w.assert_talking();
}

#[test]
fn initiations_into_silence_come_after_one_second_and_become_rare() {
    let mut w = World::established();
    w.a.tunnel.set_wanted(w.now, true);
    w.run();
    assert_eq!(initiations(&w), 1, "that of the first handshake: nothing yet");
    w.pass(Duration::from_millis(999));
    w.lose_all();
    assert_eq!(initiations(&w), 1);
    w.pass(Duration::from_millis(1));
    w.lose_all();
    assert_eq!(initiations(&w), 2);
    for _ in 0..600 {
        w.pass(Duration::from_millis(100));
        w.lose_all();
    }
    assert!((20..=26).contains(&(initiations(&w) - 1)), "a minute costs {}", initiations(&w) - 1);
    // With nothing to send there are none.
    w.a.tunnel.set_wanted(w.now, false);
    let before = initiations(&w);
    w.pass(Duration::from_secs(100));
    w.lose_all();
    assert_eq!(initiations(&w), before);
    assert_eq!(w.due(), None);
}

#[test]
fn silence_is_measured_against_the_round_trip() {
    let mut w = World::established();
    w.a.tunnel.set_rtt(SECOND.times(4));
    w.a.tunnel.set_wanted(w.now, true);
    let due = w.a.tunnel.poll_timeout().expect("an initiation");
    assert_eq!(due, w.now + SECOND.times(6));
}

#[test]
fn a_node_that_starts_without_an_answer_asks_ever_more_rarely() {
    let mut w = World::new();
    w.a.tunnel.connect(w.now);
    for _ in 0..3600 {
        w.lose_all();
        w.pass(SECOND);
    }
    assert!((26..=38).contains(&initiations(&w)), "an hour costs {}", initiations(&w));
    // Something to send does not wait for minutes.
    w.a.tunnel.set_wanted(w.now, true);
    let before = initiations(&w);
    for _ in 0..11 {
        w.pass(SECOND);
        w.lose_all();
    }
    assert!(initiations(&w) > before);
}

#[test]
fn a_response_that_comes_after_the_first_retry_still_counts() {
    let mut w = World::new();
    w.a.tunnel.connect(w.now);
    w.drain();
    let first = w.net.pop_front().expect("an initiation");
    w.pass(SECOND.times(2));
    w.drain();
    let second = w.net.pop_front().expect("a retry");
    assert_eq!((first.bytes[0], second.bytes[0]), (1, 1));
    w.deliver(&first);
    w.deliver(&second);
    let response = w.net.pop_front().expect("a response");
    w.deliver(&response);
    assert!(w.a.tunnel.is_established());
    w.run();
    assert_eq!((w.a.sessions, w.b.sessions), (1, 1));
    w.assert_talking();
}

#[test]
fn nothing_is_sent_without_an_endpoint() {
    let mut w = World::new();
    let (a, b) = World::ordered();
    w.a = Node::new(a, b, None, 10);
    w.a.tunnel.connect(w.now);
    w.a.tunnel.set_wanted(w.now, true);
    w.run();
    assert!(w.log.is_empty());
    assert_eq!(w.a.tunnel.poll_timeout(), None);
    w.a.tunnel.set_endpoint(w.now, PathId::FIRST, addr(b));
    w.run();
    w.assert_talking();
}

#[test]
fn a_hub_learns_a_terminals_address_from_its_handshake() {
    let mut w = World::new();
    let (a, b) = World::ordered();
    w.a = Node::new(a, b, None, 10);
    w.b.tunnel.connect(w.now);
    w.run();
    assert_eq!(w.a.tunnel.endpoint(PathId::FIRST), Some(addr(b)));
    assert!(w.a.events.contains(&Event::Moved(PathId::FIRST, addr(b))));
    w.assert_talking();
}

#[test]
fn a_forgotten_session_is_a_new_one_for_both() {
    let mut w = World::established();
    w.a.tunnel.forget();
    assert!(!w.a.tunnel.is_established());
    w.a.drain_events();
    assert!(w.a.indices.is_empty(), "every index was given back");
    w.a.tunnel.connect(w.now);
    w.run();
    assert_eq!((w.a.sessions, w.b.sessions), (2, 2));
    w.assert_talking();
}

#[test]
fn a_carrier_with_one_peer_needs_no_index() {
    let mut w = World::new();
    for node in [&mut w.a, &mut w.b] {
        node.nameless = true;
    }
    w.a.tunnel.connect(w.now);
    w.run();
    assert_eq!(w.a.tunnel.header_len(PathId::FIRST, 2), Some(3));
    w.assert_talking();
    renew(w.now, &mut w.b);
    let late = w.a.seal(w.now, b"old keys").expect("a session");
    w.run();
    w.deliver(&late);
    assert_eq!(w.b.received.last().map(|(_, p)| &p[..]), Some(&b"old keys"[..]));
    w.assert_talking();
}

#[test]
fn a_node_says_when_it_wants_to_be_asked_again() {
    let mut w = World::new();
    assert_eq!(w.a.tunnel.poll_timeout(), None);
    w.a.tunnel.connect(w.now);
    assert_eq!(w.a.tunnel.poll_timeout(), Some(w.now));
    w.lose_all();
    let retry = w.a.tunnel.poll_timeout().expect("a retry");
    let wait = retry.since(w.now);
    assert!(wait >= SECOND && wait <= Duration::from_millis(1250), "{wait}");
    w.now = retry;
    w.run();
    assert!(w.a.tunnel.is_established());
    assert_eq!(w.due(), None, "nothing is left to do");
}

impl World {
    /// When `a` wants to be asked again, but for the end of its keys.
    fn due(&self) -> Option<Instant> {
        self.a.tunnel.poll_timeout().filter(|at| at.since(self.now) < Duration::from_secs(3600))
    }

    fn assert_talking_without_handshakes(&mut self) {
        let packet = self.a.seal(self.now, b"to b").expect("a session");
        self.deliver(&packet);
        assert_eq!(self.b.received.last().map(|(_, p)| &p[..]), Some(&b"to b"[..]));
        let packet = self.b.seal(self.now, b"to a").expect("a session");
        self.deliver(&packet);
        assert_eq!(self.a.received.last().map(|(_, p)| &p[..]), Some(&b"to a"[..]));
        self.net.retain(|p| p.bytes[0] & 0x80 != 0);
    }
}

/// L-HS-8: without it a hub that knows no address of its terminal could not reach it.
#[test]
fn a_lost_confirmation_is_repeated_until_the_peer_answers_under_the_new_keys() {
    for lost in 0..10 {
        let mut w = World::new();
        w.a.tunnel.connect(w.now);
        w.drain();
        for _ in 0..2 {
            let packet = w.net.pop_front().expect("initiation, response");
            w.deliver(&packet);
        }
        for _ in 0..lost {
            w.lose_all();
            assert!(!w.b.tunnel.is_established());
            w.now = w.a.tunnel.poll_timeout().expect("it asks again").max(w.now);
        }
        w.run();
        assert!(w.b.tunnel.is_established(), "after {lost}");
        assert_eq!(w.due(), None, "it is answered, and asks no more");
    }
    // Nor does it ask for ever.
    let mut w = World::new();
    w.a.tunnel.connect(w.now);
    w.drain();
    for _ in 0..2 {
        let packet = w.net.pop_front().expect("initiation, response");
        w.deliver(&packet);
    }
    let before = w.log.len();
    while let Some(at) = w.due() {
        w.now = at.max(w.now);
        w.lose_all();
    }
    assert!((10..=20).contains(&(w.log.len() - before)), "{}", w.log.len() - before);
}
