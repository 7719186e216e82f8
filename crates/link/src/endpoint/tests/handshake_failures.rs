//! Handshakes that cannot succeed: what each side knows of why.

use super::*;

/// A node of key `own` whose file names one peer.
fn mistaken(own: u8, peer: u8, peer_at: Option<Remote>, secret: u8) -> (Endpoint, PeerId) {
    let preshared = match secret {
        0 => PresharedKey::NONE,
        n => PresharedKey::from_bytes([n; 32]),
    };
    node_with(own, peer, peer_at, preshared)
}

/// Lets both send and receive for `seconds`; what they said of their links meanwhile.
fn run(a: &mut Endpoint, b: &mut Endpoint, from: u64, seconds: u64) -> [Vec<(u64, Failure)>; 2] {
    let mut told = [Vec::new(), Vec::new()];
    for tenth in from * 10..(from + seconds) * 10 {
        let now = Instant::ZERO + Duration::from_millis(tenth * 100 + 1);
        for node in [&mut *a, &mut *b] {
            node.handle_timeout(now);
        }
        for _ in 0..4 {
            for (_, mut packet) in sent(now, a) {
                b.handle_packet(now, now, addr(1), &mut packet);
            }
            for (_, mut packet) in sent(now, b) {
                a.handle_packet(now, now, addr(2), &mut packet);
            }
        }
        for (node, told) in [&mut *a, &mut *b].into_iter().zip(&mut told) {
            while let Some(event) = node.poll_event() {
                if let EndpointEvent::Link(_, LinkEvent::Failing(f)) = event {
                    told.push((tenth / 10, f.failure));
                }
            }
            let due = node.poll_timeout(now);
            assert!(due.is_none_or(|at| at > now), "nothing that is due is left: {due:?}");
        }
    }
    told
}

fn later(seconds: u64) -> Instant {
    Instant::ZERO + Duration::from_secs(seconds)
}

#[test]
fn silence_is_told_once_after_ten_seconds_with_how_often_was_asked() {
    let (mut a, id) = node(1, 2, Some(addr(2)));
    let (mut nobody, _) = node(3, 4, None);
    // All that is sent is lost: the other's key is another.
    let told = run(&mut a, &mut nobody, 0, 9);
    assert_eq!(told, [vec![], vec![]]);
    assert_eq!(a.failing(later(9), id), None);
    let told = run(&mut a, &mut nobody, 9, 600);
    assert_eq!(told, [vec![(10, Failure::Silence)], vec![]]);
    let failing = a.failing(later(609), id).expect("it goes on");
    assert_eq!((failing.failure, failing.answered), (Failure::Silence, 0));
    assert!(failing.initiations > 15, "{failing:?}");
    assert_eq!(a.peer_stats(id).handshakes_failed, failing.initiations - 1);
}

#[test]
fn a_wrong_key_is_told_at_the_side_that_is_called() {
    let (mut a, _) = node(1, 3, Some(addr(2)));
    let (mut b, _) = node(2, 1, None);
    run(&mut a, &mut b, 0, 12);
    let stranger = *b.strangers().next().expect("one");
    assert_eq!((stranger.why, stranger.from), (Strange::OtherKey, addr(1).source()));
    assert!(stranger.count > 3);
    assert_eq!(b.strangers().count(), 1);
    let news = b.poll_stranger(later(13)).expect("told");
    assert_eq!((news.stranger.why, news.others), (Strange::OtherKey, 0));
    assert_eq!(b.poll_stranger(later(14)), None, "once");
}

#[test]
fn an_unknown_node_is_told_with_its_key() {
    let (mut a, _) = node(1, 2, Some(addr(2)));
    let (mut b, of_b) = node(2, 9, None);
    run(&mut a, &mut b, 0, 12);
    let news = b.poll_stranger(later(12)).expect("told");
    let key = *PrivateKey::from_bytes([1; 32]).public();
    assert_eq!(news.stranger.why, Strange::UnknownNode(key));
    assert_eq!(news.stranger.from, addr(1).source());
    assert_eq!(b.failing(later(12), of_b), None, "its own peer has not been heard of");
    assert_eq!(b.drops()["unknown peer"], news.stranger.count);
}

#[test]
fn a_node_that_has_become_a_peer_is_a_stranger_no_more() {
    let add = |b: &mut Endpoint, elsewhere: bool| {
        let public_key = *PrivateKey::from_bytes([1; 32]).public();
        if elsewhere {
            return b.set_elsewhere(public_key, Some(1));
        }
        let config = PeerConfig {
            public_key,
            preshared_key: PresharedKey::NONE,
            endpoint: None,
            link: link(),
            keepalive: None,
        };
        b.add_peer(later(12), config).expect("another key");
    };
    for elsewhere in [false, true] {
        let (mut a, _) = node(1, 2, Some(addr(2)));
        let (mut b, _) = node(2, 9, None);
        run(&mut a, &mut b, 0, 12);
        assert_eq!(b.strangers().count(), 1);
        add(&mut b, elsewhere);
        assert_eq!(b.strangers().count(), 0);
        assert_eq!(b.poll_stranger(later(12)), None);
    }
}

#[test]
fn a_peer_that_comes_back_has_time_to_take_the_answers() {
    let (mut a, of_a) = node(1, 2, Some(addr(2)));
    let (mut nobody, _) = node(3, 4, None);
    let (mut b, _) = node(2, 1, Some(addr(1)));
    let told = run(&mut a, &mut nobody, 0, 20);
    assert_eq!(told[0], [(10, Failure::Silence)]);
    // It calls, and what it is answered is on the way: more than that is not known yet.
    let mut told = Vec::new();
    for second in 20..35 {
        let now = later(second);
        for node in [&mut a, &mut b] {
            node.handle_timeout(now);
        }
        for (_, mut packet) in sent(now, &mut b) {
            a.handle_packet(now, now, addr(2), &mut packet);
        }
        sent(now, &mut a);
        while let Some(event) = a.poll_event() {
            if let EndpointEvent::Link(_, LinkEvent::Failing(f)) = event {
                told.push((second, f.failure));
            }
        }
        let failing = a.failing(now, of_a).expect("it goes on");
        assert!(second >= 30 || failing.failure == Failure::Silence, "{failing:?}");
    }
    assert!(matches!(told[..], [(30.., Failure::AnswersNotTaken)]), "{told:?}");
}

#[test]
fn a_pre_shared_key_that_differs_is_told_at_both_ends() {
    for secrets in [(0, 7), (7, 0), (7, 8)] {
        let (mut a, of_a) = mistaken(1, 2, Some(addr(2)), secrets.0);
        let (mut b, of_b) = mistaken(2, 1, None, secrets.1);
        let told = run(&mut a, &mut b, 0, 60);
        assert_eq!(told[0], [(10, Failure::AnswersForged)], "{secrets:?}");
        assert_eq!(told[1], [(10, Failure::AnswersNotTaken)], "{secrets:?}");
        let failing = b.failing(later(60), of_b).expect("it goes on");
        assert!(failing.answered > 3 && failing.initiations == 0, "{failing:?}");
        assert!(b.peer_stats(of_b).handshakes_failed > 3);
        assert!(!a.is_established(of_a) && !b.is_established(of_b));
        assert_eq!(a.strangers().chain(b.strangers()).count(), 0);
    }
}

#[test]
fn a_peer_that_gave_up_is_not_told_of_for_ever() {
    let (mut a, _) = mistaken(1, 2, Some(addr(2)), 7);
    let (mut b, of_b) = mistaken(2, 1, None, 0);
    run(&mut a, &mut b, 0, 30);
    let (mut nobody, _) = node(3, 4, None);
    run(&mut nobody, &mut b, 30, 410);
    assert_eq!(b.failing(later(440), of_b), None);
}

#[test]
fn a_late_success_ends_what_is_known_and_the_count_stays() {
    let (mut a, of_a) = node(1, 2, Some(addr(2)));
    let (mut nobody, _) = node(3, 4, None);
    run(&mut a, &mut nobody, 0, 30);
    let failed = a.peer_stats(of_a).handshakes_failed;
    let (mut b, of_b) = node(2, 1, None);
    let told = run(&mut a, &mut b, 30, 30);
    assert!(a.is_established(of_a) && b.is_established(of_b));
    assert_eq!(told, [vec![], vec![]]);
    assert_eq!((a.failing(later(60), of_a), b.failing(later(60), of_b)), (None, None));
    assert_eq!(a.peer_stats(of_a).handshakes_failed, failed + 1, "the last that was lost");
}

/// L-HS-4: what is told is told to the operator only.
#[test]
fn a_node_that_tells_of_strangers_answers_them_as_little_as_before() {
    let (mut a, _) = node(1, 2, Some(addr(2)));
    let (mut b, _) = node(2, 9, None);
    let now = later(1);
    for (_, mut packet) in sent(now, &mut a) {
        b.handle_packet(now, now, addr(1), &mut packet);
    }
    assert!(b.strangers().count() == 1 && sent(now, &mut b).is_empty());
}

#[test]
fn a_flood_of_strangers_is_bounded_in_memory_and_in_the_log() {
    let (mut b, _) = node(2, 1, None);
    let mut lines = 0;
    for second in 0..600u64 {
        for n in 0..20u8 {
            // Many nodes, each with a key of its own, and initiations for others.
            let own = 10 + (second % 200) as u8;
            let peer = if n % 2 == 0 { 2 } else { 3 };
            let (mut a, _) = node(own, peer, Some(addr(2)));
            let now = later(second);
            for (_, mut packet) in sent(now, &mut a) {
                b.handle_packet(now, now, addr(n), &mut packet);
            }
            lines += u64::from(b.poll_stranger(now).is_some());
        }
    }
    assert!(b.strangers().count() <= 16);
    assert_eq!(lines, 10, "one a minute");
}

#[test]
fn a_stranger_that_goes_on_calling_is_told_of_again_after_an_hour() {
    let (mut a, _) = node(1, 2, Some(addr(2)));
    let (mut b, _) = node(2, 9, None);
    let mut told = Vec::new();
    for minute in 0..130 {
        let now = later(minute * 60);
        a.handle_timeout(now);
        for (_, mut packet) in sent(now, &mut a) {
            b.handle_packet(now, now, addr(1), &mut packet);
        }
        told.extend(b.poll_stranger(now).map(|_| minute));
    }
    assert_eq!(told.len(), 3, "{told:?}");
}
