//! A hub of 8,000 peers, of whom a few have something: what is done for them is counted.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use link::PeerId;
use link::endpoint::{Endpoint, EndpointConfig};
use link::keys::{PrivateKey, PublicKey};
use os::closing::Closer;
use os::poll::Poller;
use os::seqpacket::SeqPacket;
use units::Duration;

use super::*;
use crate::config::Config;
use crate::up::carrier::Carrier;
use crate::up::chunks::ChunkPlace;
use crate::up::meter::SPACING;
use crate::up::services::line::Line;
use crate::up::shard::Common;
use crate::up::shard::lines::LeavingLines;
use crate::up::shard::telling::USAGE;

const PEERS: u64 = 8_000;

fn key(n: u64) -> PublicKey {
    let mut bytes = [7; 32];
    bytes[8..16].copy_from_slice(&n.to_le_bytes());
    *PrivateKey::from_bytes(bytes).public()
}

/// The shard of such a hub, none of whose peers has called.
fn hub() -> Shard {
    let own = PrivateKey::from_bytes([9; 32]);
    let text = format!(
        "[node]\nprivate_key = \"{}\"\n[[peer]]\npublic_key = \"{}\"\n\
         link = {{ send = \"5Mbit\", receive = \"1Mbit\", delay = \"300ms\" }}\n",
        own.to_base64(),
        key(0)
    );
    let mut config = Config::parse(&text, Path::new("/")).unwrap_or_else(|_| panic!("{text}"));
    let one = config.peers[0].clone();
    let peer = |n| {
        let (name, public_key) = (format!("terminal-{n}"), key(n));
        Arc::new(crate::config::Peer { name, public_key, ..(*one).clone() })
    };
    config.peers = (0..PEERS).map(peer).collect();
    let endpoint = EndpointConfig {
        private_key: own.clone(),
        seed: [1; 32],
        hardware_aes: false,
        initiations_per_second: 100,
        key_lifetime: link::endpoint::MAX_KEY_LIFETIME,
        fresh: None,
    };
    let chunks = ChunkPlace::find(None, true, own.public());
    let clock = os::poll::Clock::start();
    let leaving_lines = LeavingLines::default();
    let common = Common { config: &config, clock, tun: None, chunks: &chunks, leaving_lines };
    let carrier = Carrier::open("127.0.0.1:0".parse().unwrap(), None, 1).unwrap().remove(0);
    let endpoint = Endpoint::new(endpoint);
    let mut shard = Shard::new(0, Poller::new().unwrap(), carrier, endpoint, &common).unwrap();
    for peer in config.peers {
        shard.add_peer(peer, None).unwrap();
    }
    shard
}

/// What was looked at while `work` was done.
fn looks(shard: &mut Shard, work: impl FnOnce(&mut Shard)) -> usize {
    let before = shard.peers.looked_at.get();
    work(shard);
    shard.peers.looked_at.get() - before
}

/// A peer is called: a packet leaves to it.
fn call(shard: &mut Shard, now: Instant, n: u16) -> PeerId {
    let id = shard.relay.endpoint.peer_with(&key(n.into())).expect("a peer");
    shard.relay.endpoint.set_endpoint(now, id, SocketAddr::from(([192, 0, 2, 1], 1 + n)));
    // Calls have turns.
    let mut packet = [0; 2000];
    for turn in 0..10 {
        let now = now + Duration::from_millis(2 * turn);
        shard.relay.endpoint.handle_timeout(now);
        while shard.relay.endpoint.poll_transmit(now, &mut packet).is_some() {}
    }
    id
}

#[test]
fn of_8000_peers_a_hub_looks_at_those_that_something_happened_to() {
    let mut shard = hub();
    let mut now = Instant::ZERO + Duration::from_secs(100);
    let step = |shard: &mut Shard, now: &mut Instant| {
        *now += SPACING;
        looks(shard, |shard| shard.sample(*now))
    };
    // Whatever was new about them from the start.
    for _ in 0..8 {
        step(&mut shard, &mut now);
        shard.poll_timeout(now);
    }
    assert_eq!(step(&mut shard, &mut now), 0, "all are at rest");

    let called: Vec<PeerId> = (0..3).map(|n| call(&mut shard, now, n)).collect();
    let busy = looks(&mut shard, |shard| shard.sample(now + SPACING));
    now += SPACING;
    assert!((3..=12).contains(&busy), "{busy} looks for three");
    let rate = |shard: &Shard, now, id| {
        let part = shard.part(now);
        let status =
            part.links.iter().find(|l| l.peer == shard.peers.with_id(id).unwrap().config.name);
        status.expect("its link").send.measured_bps
    };
    assert!(rate(&shard, now, called[0]) > 0, "what was sent is a rate");
    let silent: usize = (0..8).map(|_| step(&mut shard, &mut now)).sum();
    assert!(silent <= 40, "{silent} looks until it shows no more");
    // Handshakes go on by themselves only when timers are asked.
    assert_eq!(step(&mut shard, &mut now), 0);
    assert_eq!(rate(&shard, now, called[0]), 0);

    // Usage tells of these three, and looks at nobody else.
    let told = looks(&mut shard, |shard| shard.tell_usage(now + USAGE));
    let of: Vec<_> = shard.tidings.usage.iter().map(|had| (had.key, had.link[0] > 0)).collect();
    assert_eq!(of, (0..3).map(|n| (key(n), true)).collect::<Vec<_>>());
    assert!(told <= 6, "{told} looks for usage");

    // What is due is known after each turn, of those that may have changed.
    let due = looks(&mut shard, |shard| {
        for turn in 0..1_000 {
            let id = called[turn % 3];
            shard.peers.with_id_mut(id).expect("a peer").silent_since = Some(now);
            shard.poll_timeout(now);
        }
    });
    assert!(due <= 3_000, "{due} looks in a thousand turns");

    // The end looks at each once.
    shard.stop(now);
    assert!(shard.is_quiet());
    let quiet = looks(&mut shard, |shard| assert!((0..1_000).all(|_| shard.is_quiet())));
    assert_eq!(quiet, 0);
}

#[test]
fn a_service_hears_of_8000_links_once_and_then_of_those_that_change() {
    let mut shard = hub();
    let now = Instant::ZERO + Duration::from_secs(100);
    let (ours, theirs) = SeqPacket::pair().unwrap();
    let closer = Closer::start().unwrap();
    let line = Arc::new(Line::new("web", ours, &closer));
    shard.set_service(now, "web", Some(line));
    let reader = std::thread::spawn(move || {
        let mut room = vec![0; 64 << 10];
        (0..PEERS).filter(|_| theirs.receive(&mut room, true).is_ok_and(|got| got.len > 0)).count()
    });
    let mut turn = now;
    let first = looks(&mut shard, |shard| {
        while !shard.services_have_told() {
            turn += Duration::from_millis(100);
            shard.settle_services(turn);
            std::thread::yield_now();
        }
    });
    assert_eq!(reader.join().unwrap() as u64, PEERS);
    assert!(first as u64 <= 4 * PEERS, "{first} looks");
    let id = call(&mut shard, turn, 5);
    let again = looks(&mut shard, |shard| {
        for _ in 0..100 {
            shard.look_at_links(turn, [id]);
            shard.settle_services(turn);
        }
    });
    assert!(again <= 200, "{again} looks for a hundred events");
}
