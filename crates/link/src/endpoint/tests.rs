//! Two endpoints, and what goes where between them.

mod attack;
mod calls;
mod handshake_failures;
mod memory;
mod paths;
mod shards;
mod sleepers;

use std::collections::BTreeMap;

use units::{BitRate, ByteCount, Duration, Instant};

use super::*;
use crate::keys::{Entropy, PresharedKey, PrivateKey};
use crate::path::{CarrierId, PathId, Remote};
use crate::session::{Event, Facts, LinkConfig, Session};
use crate::wire::{Origin, ResetReason, Target};

fn addr(n: u8) -> Remote {
    std::net::SocketAddr::from(([192, 0, 2, n], 4500)).into()
}

fn link() -> LinkConfig {
    LinkConfig {
        send_rate: BitRate::from_mbps(10),
        rate_mode: Default::default(),
        receive_rate: BitRate::from_mbps(10),
        rtt: Duration::from_millis(100),
        mtu: 1500,
        packet: 1500,
        queue: crate::session::NEARLY_EMPTY,
        bit_errors: units::Ratio::ZERO,
        overhead: 0,
        memory: ByteCount(1 << 20),
        stream_buffer: None,
        max_streams: 100,
        classes: Vec::new(),
        headers: false,
        history: ByteCount(0),
        dedup: false,
        facts: Default::default(),
    }
}

/// A node with one peer, which it knows at `peer_at`.
fn node(own: u8, peer: u8, peer_at: Option<Remote>) -> (Endpoint, PeerId) {
    node_with(own, peer, peer_at, PresharedKey::NONE)
}

fn node_with(
    own: u8,
    peer: u8,
    peer_at: Option<Remote>,
    preshared_key: PresharedKey,
) -> (Endpoint, PeerId) {
    node_seeded(own, peer, peer_at, preshared_key, own)
}

fn node_seeded(
    own: u8,
    peer: u8,
    peer_at: Option<Remote>,
    preshared_key: PresharedKey,
    seed: u8,
) -> (Endpoint, PeerId) {
    let key = |n: u8| PrivateKey::from_bytes([n; 32]);
    let mut endpoint = Endpoint::new(EndpointConfig {
        private_key: key(own),
        seed: [seed; 32],
        hardware_aes: false,
        initiations_per_second: 100,
        key_lifetime: crate::endpoint::MAX_KEY_LIFETIME,
        fresh: None,
    });
    let config = PeerConfig {
        public_key: *key(peer).public(),
        preshared_key,
        endpoint: peer_at,
        link: link(),
        keepalive: None,
    };
    let id = endpoint.add_peer(Instant::ZERO, config).expect("two different keys");
    (endpoint, id)
}

/// All that a node sends now, with whereto.
fn sent(now: Instant, node: &mut Endpoint) -> Vec<(Remote, Vec<u8>)> {
    let mut buf = [0; 2000];
    std::iter::from_fn(|| node.poll_transmit(now, &mut buf).map(|t| (t.to, buf[..t.len].to_vec())))
        .collect()
}

/// L-AC-2: where the way back from the challenger differs from the one to the validated
/// address, it is the former that was asked about.
#[test]
fn a_challenge_is_answered_to_where_it_came_from() {
    let mut now = Instant::from_nanos(1);
    let (mut ship, shore_id) = node(1, 2, Some(addr(2)));
    let (mut shore, ship_id) = node(2, 1, None);
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
    assert_eq!(shore.peer_endpoint(ship_id), Some(addr(1).source()));

    // The ship is heard from elsewhere, and asked there, from another of shore's addresses.
    ship.session_mut(shore_id).expect("a session").ping();
    for (_, mut packet) in sent(now, &mut ship) {
        shore.handle_packet(now, now, addr(11), &mut packet);
    }
    let asked = sent(now, &mut shore);
    assert!(asked.iter().any(|(to, _)| *to == addr(11)), "a challenge: {asked:?}");
    for (to, mut packet) in asked {
        let from = if to == addr(11) { addr(22) } else { addr(2) };
        ship.handle_packet(now, now, from, &mut packet);
    }
    let answers: Vec<_> =
        sent(now, &mut ship).into_iter().filter(|(to, _)| *to == addr(22)).collect();
    assert_eq!(answers.len(), 1, "one answer, there");
    assert!(answers[0].1.len() <= 60, "no longer than what asked");
    for (_, mut packet) in answers {
        shore.handle_packet(now, now, addr(11), &mut packet);
    }
    sent(now, &mut shore);
    assert_eq!(shore.peer_endpoint(ship_id), Some(addr(11).source()));
    assert_eq!(ship.peer_endpoint(shore_id), Some(addr(2).source()), "where it was known to be");
}

/// L-HS-16: who is behind a NAT is not found by a peer that comes back later.
#[test]
fn a_peer_that_ended_in_order_is_called_again_by_who_keeps_the_session() {
    for keepalive in [None, Some(Duration::from_secs(25))] {
        let mut now = Instant::from_nanos(1);
        let (mut ship, shore_id) = node(1, 2, Some(addr(2)));
        let (mut shore, ship_id) = node(2, 1, None);
        ship.session_mut(shore_id).expect("a session").set_keepalive(PathId::FIRST, keepalive);
        for turn in 0..8 {
            if turn == 6 {
                assert!(ship.is_established(shore_id) && shore.is_established(ship_id));
                shore.close_all(ResetReason::ShuttingDown);
            }
            for (_, mut packet) in sent(now, &mut ship) {
                shore.handle_packet(now, now, addr(1), &mut packet);
            }
            for (_, mut packet) in sent(now, &mut shore) {
                ship.handle_packet(now, now, addr(2), &mut packet);
            }
            now += Duration::from_millis(50);
        }
        assert!(!ship.is_established(shore_id), "it has heard");
        assert!(!ship.is_calling(shore_id), "the peer has left in order");
        let mut calls = 0;
        for _ in 0..600 {
            now += Duration::from_secs(1);
            ship.handle_timeout(now);
            calls += sent(now, &mut ship).len();
        }
        assert_eq!(calls > 0, keepalive.is_some(), "{calls} in ten minutes");
        assert!(calls < 40, "{calls} in ten minutes");
    }
}

/// A shore that remembers an address of the ship calls it there while its line is down.
#[test]
fn a_peer_that_is_reached_by_lines_alone_gets_no_session_by_another_way() {
    let mut now = Instant::from_nanos(1);
    let line = Remote { carrier: CarrierId(255), addr: None };
    let (mut ship, shore_id) = node(1, 2, Some(addr(2)));
    ship.keep_to_lines(shore_id);
    assert_eq!(sent(now, &mut ship), [], "it forgets an address of the shore");
    ship.set_endpoint(now, shore_id, addr(2));
    assert_eq!(sent(now, &mut ship), [], "and is told of none");
    ship.set_endpoint(now, shore_id, line);
    ship.set_path_up(now, shore_id, PathId::FIRST, false);
    let (mut shore, ship_id) = node(2, 1, Some(addr(1)));
    for _ in 0..40 {
        for (to, mut packet) in sent(now, &mut shore) {
            assert_eq!(to, addr(1));
            ship.handle_packet(now, now, addr(2), &mut packet);
        }
        assert_eq!(sent(now, &mut ship), [], "no answer");
        now += Duration::from_millis(500);
        shore.handle_timeout(now);
    }
    assert!(!ship.is_established(shore_id) && !shore.is_established(ship_id));
    assert!(ship.drops().contains_key("path down"));

    // It calls.
    ship.set_path_up(now, shore_id, PathId::FIRST, true);
    for _ in 0..8 {
        for (to, mut packet) in sent(now, &mut ship) {
            assert_eq!(to, line);
            shore.handle_packet(now, now, line, &mut packet);
        }
        for (to, mut packet) in sent(now, &mut shore) {
            if to == line {
                ship.handle_packet(now, now, line, &mut packet);
            }
        }
        now += Duration::from_millis(50);
    }
    assert!(ship.is_established(shore_id) && shore.is_established(ship_id));
    // Under the keys of the call nothing counts either that comes from elsewhere.
    shore.session_mut(ship_id).expect("a session").ping();
    let before = ship.peer_stats(shore_id).packets_in;
    for (_, mut packet) in sent(now, &mut shore) {
        ship.handle_packet(now, now, addr(2), &mut packet);
    }
    assert_eq!(ship.peer_stats(shore_id).packets_in, before);
}

/// Who pays by the byte pays for handshakes: each side has the same bytes, from the first one on.
#[test]
fn what_one_side_has_sent_the_other_has_received_handshakes_too() {
    const IP_AND_UDP: u64 = 28;
    let mut now = Instant::from_nanos(1);
    let (mut ship, shore_id) = node(1, 2, Some(addr(2)));
    let (mut shore, ship_id) = node(2, 1, None);
    let mut crossed = [0, 0];
    for _ in 0..20 {
        for (_, mut packet) in sent(now, &mut ship) {
            crossed[0] += packet.len() as u64 + IP_AND_UDP;
            shore.handle_packet(now, now, addr(1), &mut packet);
        }
        for (_, mut packet) in sent(now, &mut shore) {
            crossed[1] += packet.len() as u64 + IP_AND_UDP;
            ship.handle_packet(now, now, addr(2), &mut packet);
        }
        now += Duration::from_millis(50);
    }
    assert!(ship.is_established(shore_id) && crossed[1] > 100);
    let [ours, theirs] = [ship.peer_stats(shore_id), shore.peer_stats(ship_id)];
    assert_eq!([ours.bytes_out, ours.bytes_in], crossed);
    assert_eq!([theirs.bytes_in, theirs.bytes_out], crossed);
    let path = |node: &Endpoint, id| node.paths(now, id)[0].traffic;
    let [ours, theirs] = [path(&ship, shore_id), path(&shore, ship_id)];
    assert_eq!([ours.bytes_out, ours.bytes_in], crossed);
    assert_eq!([theirs.bytes_in, theirs.bytes_out], crossed);
}

/// CT-4 (spec/control.md).
#[test]
fn counts_of_sessions_go_on_where_the_peer_begins_anew() {
    let mut now = Instant::from_nanos(1);
    let (mut ship, shore_id) = node(1, 2, Some(addr(2)));
    let (mut shore, _) = node(2, 1, None);
    let talk = |now: &mut Instant, ship: &mut Endpoint, shore: &mut Endpoint| {
        for _ in 0..20 {
            for (_, mut packet) in sent(*now, ship) {
                shore.handle_packet(*now, *now, addr(1), &mut packet);
            }
            for (_, mut packet) in sent(*now, shore) {
                ship.handle_packet(*now, *now, addr(2), &mut packet);
            }
            *now += Duration::from_millis(50);
            ship.handle_timeout(*now);
            shore.handle_timeout(*now);
        }
    };
    let write = |now: Instant, ship: &mut Endpoint| {
        let to = ([192, 0, 2, 80], 80).into();
        let origin = Origin { client: None, target: Target::Address(to), dscp: 0 };
        let session = ship.session_mut(shore_id).expect("a session");
        let stream = session.open(now, origin).expect("a stream");
        assert_eq!(session.write(now, stream, &[7; 1_000]), 1_000);
    };
    talk(&mut now, &mut ship, &mut shore);
    write(now, &mut ship);
    talk(&mut now, &mut ship, &mut shore);
    let before = ship.session_stats(shore_id);
    assert_eq!((before.stream_bytes_in, before.streams_total), (1_000, 1));
    // The shore forgets all and calls.
    let (mut shore, _) = node_seeded(2, 1, Some(addr(1)), PresharedKey::NONE, 99);
    talk(&mut now, &mut ship, &mut shore);
    assert_eq!(ship.session_number(shore_id), 1, "another session");
    write(now, &mut ship);
    let after = ship.session_stats(shore_id);
    assert_eq!((after.stream_bytes_in, after.streams_total), (2_000, 2));
    assert!(after.packets_arrived >= before.packets_arrived && before.packets_arrived > 0);
}
