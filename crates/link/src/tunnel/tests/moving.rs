//! The peer's address changes.

use super::*;

/// L-AC-1, L-AC-2.
#[test]
fn a_terminal_that_moves_is_challenged_and_then_followed() {
    let mut w = World::established();
    w.assert_talking();
    let old = w.b.addr;
    w.b.addr = addr(77);
    let packet = w.b.seal(w.now, b"hello from elsewhere").expect("a session");
    w.deliver(&packet);
    assert_eq!(w.a.received.last().map(|(_, p)| &p[..]), Some(&b"hello from elsewhere"[..]));
    assert_eq!(w.a.tunnel.endpoint(PathId::FIRST), Some(old), "not yet");
    let still = w.a.seal(w.now, b"to where it was").expect("a session");
    assert_eq!(still.to, old);
    w.run();
    assert_eq!(w.a.tunnel.endpoint(PathId::FIRST), Some(addr(77)));
    assert_eq!(w.a.events.last(), Some(&Event::Moved(PathId::FIRST, addr(77))));
    w.assert_talking();
    assert_eq!(w.a.sessions, 1, "in the same session");
}

#[test]
fn a_copy_sent_from_elsewhere_does_not_draw_the_traffic_away() {
    let mut w = World::established();
    for _ in 0..50 {
        // The attacker's copy of each packet arrives before the original.
        let original = w.b.seal(w.now, b"data").expect("a session");
        let copy = Flying { from: addr(99), ..original.clone() };
        w.deliver(&copy);
        w.deliver(&original);
        w.net.retain(|p| p.to != addr(99)); // the attacker cannot answer a challenge
        w.run();
        assert_eq!(w.a.tunnel.endpoint(PathId::FIRST), Some(w.b.addr));
        w.pass(Duration::from_millis(100));
    }
    assert_eq!(w.a.packet_drops.len(), 50, "each original was a duplicate");
}

#[test]
fn a_mover_is_followed_although_copies_come_from_many_places() {
    let mut w = World::established();
    w.b.addr = addr(77);
    let mut followed = false;
    for n in 0..50u8 {
        let original = w.b.seal(w.now, b"data").expect("a session");
        if n % 3 != 0 {
            let copy = Flying { from: addr(100 + n), ..original.clone() };
            w.deliver(&copy);
        }
        w.deliver(&original);
        w.net.retain(|p| p.to.source().port() == 4500 && (p.to == w.a.addr || p.to == w.b.addr));
        w.run();
        followed |= w.a.tunnel.endpoint(PathId::FIRST) == Some(addr(77));
        w.pass(Duration::from_millis(300));
    }
    assert!(followed);
}

#[test]
fn a_handshake_from_a_new_address_moves_the_endpoint_once_confirmed_from_there() {
    let mut w = World::established();
    let (_, b) = World::ordered();
    w.b.restart(b, 77);
    w.b.addr = addr(77);
    w.b.tunnel.connect(w.now);
    w.drain();
    let initiation = w.net.pop_front().expect("an initiation");
    w.deliver(&initiation);
    assert_eq!(
        w.a.tunnel.endpoint(PathId::FIRST),
        Some(addr(b)),
        "an initiation alone moves nothing"
    );
    w.run();
    assert_eq!(w.a.tunnel.endpoint(PathId::FIRST), Some(addr(77)));
    w.assert_talking();
}

/// L-AC-4.
#[test]
fn a_handshake_carried_over_by_someone_else_does_not_lead_the_traffic_to_them() {
    // The attacker passes `b`'s initiation on from its own address, and the response back.
    let mut w = World::established();
    let (_, b) = World::ordered();
    w.b.restart(b, 77);
    w.b.tunnel.connect(w.now);
    w.drain();
    let initiation = w.net.pop_front().expect("an initiation");
    let carried = Flying { from: addr(99), ..initiation };
    w.deliver(&carried);
    let response = w.net.pop_front().expect("a response");
    assert_eq!(response.to, addr(99));
    let carried = Flying { from: w.a.addr, to: w.b.addr, ..response };
    w.deliver(&carried);
    let confirmation = w.net.pop_front().expect("the packet that the initiator owes");
    w.deliver(&confirmation);
    assert_eq!(w.a.sessions, 2, "the handshake itself is good");
    assert_eq!(w.a.tunnel.endpoint(PathId::FIRST), Some(w.b.addr));
    w.run();
    assert_eq!(w.a.tunnel.endpoint(PathId::FIRST), Some(w.b.addr));
    w.assert_talking();
}

#[test]
fn a_response_passed_on_from_elsewhere_does_not_lead_the_traffic_there() {
    let mut w = World::new();
    w.a.tunnel.connect(w.now);
    w.drain();
    let initiation = w.net.pop_front().expect("an initiation");
    w.deliver(&initiation);
    let response = w.net.pop_front().expect("a response");
    let passed_on = Flying { from: addr(99), ..response };
    w.deliver(&passed_on);
    assert!(w.a.tunnel.is_established());
    assert_eq!(w.a.tunnel.endpoint(PathId::FIRST), Some(w.b.addr));
    w.run();
    assert_eq!(w.a.tunnel.endpoint(PathId::FIRST), Some(w.b.addr));
    w.assert_talking();
}
