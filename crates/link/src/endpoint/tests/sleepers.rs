//! Peers that nothing was to do with yet.

use super::*;

#[test]
fn a_peer_without_an_address_sleeps_until_it_calls() {
    let mut now = Instant::from_nanos(1);
    let (mut ship, shore_id) = node(1, 2, Some(addr(2)));
    let (mut shore, ship_id) = node(2, 1, None);
    assert_eq!(ship.poll_woken(), Some(shore_id), "it is called at once");
    assert!(shore.session(ship_id).is_none() && shore.poll_woken().is_none());
    assert_eq!(shore.poll_timeout(now), None);
    assert_eq!(shore.peers().collect::<Vec<_>>(), [ship_id]);
    // What the file says meanwhile is what the peer hears.
    let rate = BitRate::from_mbps(3);
    shore.set_facts(now, ship_id, Facts::default(), [rate, rate]);
    assert_eq!(shore.rate(ship_id), rate);
    assert!(shore.session(ship_id).is_none(), "another setting wakes nobody");

    for _ in 0..4 {
        for (_, mut packet) in sent(now, &mut ship) {
            shore.handle_packet(now, now, addr(1), &mut packet);
        }
        for (_, mut packet) in sent(now, &mut shore) {
            ship.handle_packet(now, now, addr(2), &mut packet);
        }
        now += Duration::from_millis(50);
    }
    assert!(ship.is_established(shore_id) && shore.is_established(ship_id));
    assert_eq!((shore.poll_woken(), shore.poll_woken()), (Some(ship_id), None));
    assert_eq!(shore.session(ship_id).expect("a session").rate_status().cap, rate);
}

#[test]
fn a_peer_wakes_when_there_is_something_for_it_or_its_address_is_known() {
    let (mut shore, ship_id) = node(2, 1, None);
    shore.close_all(ResetReason::ShuttingDown);
    shore.distrust_keys(Instant::ZERO);
    assert!(shore.session(ship_id).is_none(), "nothing is to be said to it");
    assert!(shore.session_mut(ship_id).is_some());
    assert!(shore.session(ship_id).is_some());

    let (mut shore, ship_id) = node(2, 1, None);
    shore.set_endpoint(Instant::ZERO, ship_id, addr(1));
    assert_eq!(sent(Instant::ZERO, &mut shore).len(), 1, "it is called");
}

#[test]
fn a_number_is_somebody_elses_only_after_its_peer_is_gone() {
    let (mut shore, first) = node(2, 1, None);
    let add = |shore: &mut Endpoint, n: u8| {
        let config = PeerConfig {
            public_key: *PrivateKey::from_bytes([n; 32]).public(),
            preshared_key: PresharedKey::NONE,
            endpoint: None,
            link: link(),
            keepalive: None,
        };
        shore.add_peer(Instant::ZERO, config).expect("another key")
    };
    let second = add(&mut shore, 3);
    shore.session_mut(first);
    assert_ne!(first, second);
    assert_ne!(add(&mut shore, 4), first, "it is awake");
    shore.remove_peer(first);
    shore.remove_peer(first);
    assert!(shore.poll_woken().is_none() && shore.session_mut(first).is_none());
    assert_eq!(add(&mut shore, 5), first);
    assert!(shore.session(first).is_none());
    shore.remove_peer(second);
    assert_eq!(add(&mut shore, 6), second);
    assert_eq!(shore.peers().count(), 3);
}
