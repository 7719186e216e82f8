//! Both sides initiate at once.

use super::*;

/// One move of the network: deliver or lose one of the packets under way.
#[derive(Clone, Copy, Debug)]
enum Move {
    Deliver(usize),
    Lose(usize),
}

/// Plays the moves; `None` if one of them has no packet.
fn play(mut w: World, moves: &[Move]) -> Option<World> {
    w.drain();
    for step in moves {
        match *step {
            Move::Deliver(i) => {
                let packet = w.net.remove(i)?;
                w.deliver(&packet);
                // Whatever is due is sent; time passes.
                w.pass(Duration::from_millis(50));
            }
            Move::Lose(i) => {
                w.net.remove(i)?;
                w.pass(Duration::from_millis(400));
            }
        }
        w.drain();
    }
    Some(w)
}

/// Every sequence of up to `depth` moves among the first `width` packets under way, at
/// most `losses` of them losses.
fn explore(
    start: &dyn Fn() -> World,
    check: &dyn Fn(World, &[Move]),
    depth: usize,
    width: usize,
    losses: usize,
) -> usize {
    let mut count = 0;
    let mut open = vec![Vec::new()];
    while let Some(moves) = open.pop() {
        let Some(w) = play(start(), &moves) else { continue };
        let under_way = w.net.len();
        let lost = moves.iter().filter(|m| matches!(m, Move::Lose(_))).count();
        check(w, &moves);
        count += 1;
        if moves.len() == depth {
            continue;
        }
        for i in 0..under_way.min(width) {
            open.push([&moves[..], &[Move::Deliver(i)]].concat());
            if lost < losses {
                open.push([&moves[..], &[Move::Lose(i)]].concat());
            }
        }
    }
    count
}

/// However it went, the two end in one session and go on talking in it.
fn ends_well(mut w: World, moves: &[Move]) -> World {
    w.settle();
    let (a, b) = (w.a.tunnel.session(), w.b.tunnel.session());
    let (Some(a), Some(b)) = (a, b) else { panic!("no session after {moves:?}") };
    assert_eq!((a.local, a.remote), (b.remote, b.local), "after {moves:?}");
    w.assert_talking();
    w.pass(Duration::from_secs(60));
    w.run();
    w.assert_talking();
    w
}

/// L-HS-10, L-SE-2.
#[test]
fn first_handshakes_that_cross_end_in_one_session_in_every_order() {
    let start = || {
        let mut w = World::new();
        w.a.tunnel.connect(w.now);
        w.b.tunnel.connect(w.now);
        w
    };
    let check = |w: World, moves: &[Move]| {
        ends_well(w, moves);
    };
    let count = explore(&start, &check, 6, 3, 2);
    assert!(count > 50, "{count} orders");
}

#[test]
fn crossing_first_handshakes_without_loss_make_one_session_only() {
    let start = || {
        let mut w = World::new();
        w.a.tunnel.connect(w.now);
        w.b.tunnel.connect(w.now);
        w
    };
    let check = |w: World, moves: &[Move]| {
        let w = ends_well(w, moves);
        assert_eq!((w.a.sessions, w.b.sessions), (1, 1), "{moves:?}");
    };
    explore(&start, &check, 7, 4, 0);
}

#[test]
fn renewals_that_cross_keep_the_session_in_every_order() {
    let start = || {
        let mut w = World::established();
        w.assert_talking();
        w.a.tunnel.renew = Some(w.now);
        w.b.tunnel.renew = Some(w.now);
        w
    };
    let check = |w: World, moves: &[Move]| {
        let w = ends_well(w, moves);
        assert_eq!((w.a.sessions, w.b.sessions), (1, 1), "{moves:?}");
        assert!(w.a.packet_drops.is_empty() && w.b.packet_drops.is_empty(), "{moves:?}");
    };
    let count = explore(&start, &check, 6, 3, 2);
    assert!(count > 50, "{count} orders");
}

/// L-SE-4: whoever completes as the lower key drops what is pending for other sessions.
#[test]
fn restarts_of_both_sides_at_once_end_in_one_session_in_every_order() {
    let start = || {
        let mut w = World::established();
        let (a, b) = World::ordered();
        w.a.restart(a, 40);
        w.b.restart(b, 50);
        w.a.tunnel.connect(w.now);
        w.b.tunnel.connect(w.now);
        w
    };
    let check = |w: World, moves: &[Move]| {
        ends_well(w, moves);
    };
    explore(&start, &check, 5, 3, 1);
}

#[test]
fn a_restart_that_crosses_a_renewal_ends_in_one_session_in_every_order() {
    let (a, b) = World::ordered();
    for restarted in [a, b] {
        let start = || {
            let mut w = World::established();
            let (node, other) =
                if restarted == a { (&mut w.a, &mut w.b) } else { (&mut w.b, &mut w.a) };
            node.restart(restarted, 40);
            node.tunnel.connect(w.now);
            other.tunnel.renew = Some(w.now);
            w
        };
        let check = |w: World, moves: &[Move]| {
            ends_well(w, moves);
        };
        explore(&start, &check, 5, 3, 1);
    }
}

#[test]
fn whatever_crosses_without_loss_agrees_at_once() {
    // Each side is as it was, renews its keys, or restarted.
    for (state_a, state_b) in [(1, 2), (2, 1), (1, 1), (2, 2), (0, 2), (2, 0)] {
        let start = || {
            let mut w = World::established();
            w.assert_talking();
            let (a, b) = World::ordered();
            for (node, own, state) in [(&mut w.a, a, state_a), (&mut w.b, b, state_b)] {
                match state {
                    1 => node.tunnel.renew = Some(w.now),
                    2 => {
                        node.restart(own, 40 + own);
                        node.tunnel.connect(w.now);
                    }
                    _ => {}
                }
            }
            w
        };
        let check = |mut w: World, moves: &[Move]| {
            w.run();
            let [Some(a), Some(b)] = [&w.a, &w.b].map(|n| n.tunnel.session()) else {
                panic!("no session: {state_a} {state_b} {moves:?}");
            };
            assert_eq!((a.local, a.remote), (b.remote, b.local), "{state_a} {state_b} {moves:?}");
            w.assert_talking();
        };
        explore(&start, &check, 7, 4, 0);
    }
}

#[test]
fn when_both_answered_for_different_sessions_the_lower_key_s_own_stands() {
    let start = || {
        let mut w = World::established();
        w.assert_talking();
        let (_, b) = World::ordered();
        w.a.tunnel.renew = Some(w.now);
        w.b.restart(b, 40);
        w.b.tunnel.connect(w.now);
        w.drain();
        w.a.tunnel.set_aside = true; // as after one that was set aside
        for _ in 0..2 {
            let initiation = w.net.pop_front().expect("one of each");
            w.deliver(&initiation);
        }
        assert!(w.net.iter().all(|p| p.bytes[0] == 0x02) && w.net.len() == 2);
        w
    };
    let check = |mut w: World, moves: &[Move]| {
        w.run();
        let [Some(a), Some(b)] = [&w.a, &w.b].map(|n| n.tunnel.session()) else {
            panic!("no session: {moves:?}");
        };
        assert_eq!((a.local, a.remote), (b.remote, b.local), "{moves:?}");
        w.assert_talking();
    };
    explore(&start, &check, 6, 4, 0);
}

#[test]
fn a_lost_confirmation_is_repeated_before_another_session_is_begun() {
    for lower_restarts in [true, false] {
        let mut w = World::established();
        w.assert_talking();
        let (a, b) = World::ordered();
        let own = if lower_restarts { a } else { b };
        let restarted = if lower_restarts { &mut w.a } else { &mut w.b };
        restarted.restart(own, 40);
        restarted.tunnel.connect(w.now);
        w.drain();
        for _ in 0..2 {
            let packet = w.net.pop_front().expect("the initiation, then its response");
            w.deliver(&packet);
            w.drain();
        }
        w.lose_all(); // The packet that confirms the new session.
        let restarted = if lower_restarts { &w.a } else { &w.b };
        let begun = restarted.tunnel.session().expect("the response came");
        w.pass(Duration::from_secs(6));
        let survivor = if lower_restarts { &mut w.b } else { &mut w.a };
        survivor.tunnel.set_wanted(w.now, true);
        w.pass(Duration::from_secs(2));
        w.run();
        let [Some(in_a), Some(in_b)] = [&w.a, &w.b].map(|n| n.tunnel.session()) else {
            panic!("no session");
        };
        let kept = if lower_restarts { in_a } else { in_b };
        assert_eq!(kept, begun, "what began in it goes on");
        assert_eq!((in_a.local, in_a.remote), (in_b.remote, in_b.local));
        w.assert_talking();
    }
}

#[test]
fn a_second_initiation_is_answered_even_while_our_own_is_under_way() {
    let mut w = World::new();
    w.a.tunnel.connect(w.now);
    w.b.tunnel.connect(w.now);
    w.drain();
    let to_a = |p: &Flying, w: &World| p.to == w.a.addr;
    let first = w.net.iter().find(|p| to_a(p, &w)).expect("the peer's initiation").clone();
    w.net.clear();
    w.deliver(&first);
    assert_eq!(w.a.handshake_drops, [HandshakeError::Crossed]);
    w.b.tunnel.attempt.as_mut().expect("its attempt").restart(w.now);
    w.run();
    assert_eq!(w.a.handshake_drops.len(), 1);
    assert!(w.a.tunnel.is_established() && w.b.tunnel.is_established());
}

#[test]
fn the_lower_key_sets_one_crossing_initiation_aside_and_no_more() {
    // Of what `a` sends only responses get through.
    let mut w = World::new();
    w.a.tunnel.connect(w.now);
    w.b.tunnel.connect(w.now);
    w.b.tunnel.set_wanted(w.now, true);
    w.a.tunnel.set_wanted(w.now, true);
    for _ in 0..40 {
        w.drain();
        w.net.retain(|p| p.from == w.b.addr || p.bytes[0] != 0x01);
        while let Some(packet) = w.net.pop_front() {
            w.deliver(&packet);
            w.net.retain(|p| p.from == w.b.addr || p.bytes[0] != 0x01);
        }
        if w.a.tunnel.is_established() && w.b.tunnel.is_established() {
            break;
        }
        w.pass(Duration::from_millis(100));
    }
    assert_eq!(w.a.handshake_drops, [HandshakeError::Crossed]);
    assert!(w.a.tunnel.is_established() && w.b.tunnel.is_established());
}

#[test]
fn the_lower_key_goes_first_and_the_other_answers() {
    let mut w = World::new();
    w.a.tunnel.connect(w.now);
    w.b.tunnel.connect(w.now);
    w.run();
    assert_eq!(w.a.handshake_drops, [HandshakeError::Crossed]);
    assert!(w.a.tunnel.keys.current().is_some_and(|k| k.ours));
    assert!(w.b.tunnel.keys.current().is_some_and(|k| !k.ours));
}

#[test]
fn the_lower_key_does_not_insist_when_its_own_way_leads_nowhere() {
    // `a` thinks that `b` is where it no longer is.
    let mut w = World::established();
    let (a, b) = World::ordered();
    w.b.restart(b, 40);
    w.b.addr = addr(77);
    w.a.restart(a, 41);
    w.a.tunnel.set_endpoint(w.now, PathId::FIRST, addr(b));
    w.a.tunnel.connect(w.now);
    w.b.tunnel.connect(w.now);
    w.run();
    assert!(w.a.tunnel.is_established(), "at once: its initiation went elsewhere");
    assert_eq!(w.a.tunnel.endpoint(PathId::FIRST), Some(addr(77)));
    w.assert_talking();
}
