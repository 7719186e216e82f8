//! A node of several shards, and its peers.

use std::collections::BTreeSet;

use super::super::elsewhere::What;
use super::super::indices::{IndexTable, Place};
use super::*;
use crate::cookie::MacKeys;
use crate::tunnel::PacketKind;

const SHARDS: u32 = 3;

fn config(own: u8) -> EndpointConfig {
    EndpointConfig {
        private_key: PrivateKey::from_bytes([own; 32]),
        seed: [own; 32],
        hardware_aes: false,
        initiations_per_second: 100,
        key_lifetime: crate::endpoint::MAX_KEY_LIFETIME,
        fresh: None,
    }
}

fn peer_config(peer: u8, peer_at: Option<Remote>) -> PeerConfig {
    PeerConfig {
        public_key: *PrivateKey::from_bytes([peer; 32]).public(),
        preshared_key: PresharedKey::NONE,
        endpoint: peer_at,
        link: link(),
        keepalive: None,
    }
}

#[test]
fn an_index_tells_its_shard_and_no_shard_runs_out_of_them() {
    for of in [1, 2, 3, 7, 63, 64] {
        let mut all = BTreeSet::new();
        for number in [0, of - 1, of / 2] {
            let mut table = IndexTable::new(Entropy::new([number as u8; 32]), Place { number, of });
            let mut give = table.giver(PeerId::from_index(0));
            // As many in all as take two bytes, and some that take four.
            let short = 16_384 / of;
            for n in 0..short + 100 {
                let index = give();
                assert_eq!(shard_of(index, of), number, "{index} of {of}");
                assert!(index > 0xff && (index <= 0xffff || n >= short), "{index}");
                all.insert((number, index));
            }
        }
        let numbers: BTreeSet<u32> = [0, of - 1, of / 2].into();
        assert_eq!(all.len(), numbers.len() * (16_384 / of as usize + 100), "none twice");
    }
}

/// A hub of three shards with a peer on each, and those peers.
struct Star {
    now: Instant,
    hub: Vec<Endpoint>,
    peers: Vec<Endpoint>,
    /// What arrived at a shard whose peer's it was not.
    strays: usize,
}

const HUB: u8 = 1;

impl Star {
    fn new() -> Star {
        let now = Instant::from_nanos(1);
        let mut hub = Endpoint::divided(config(HUB), SHARDS);
        let mut peers = Vec::new();
        for n in 0..SHARDS as u8 {
            let id = hub[usize::from(n)].add_peer(now, peer_config(10 + n, None)).expect("a peer");
            assert_eq!(id, PeerId::from_index(0));
            if n > 0 {
                let key = *PrivateKey::from_bytes([10 + n; 32]).public();
                hub[0].set_elsewhere(key, Some(u32::from(n)));
            }
            let mut peer = Endpoint::new(config(10 + n));
            peer.add_peer(now, peer_config(HUB, Some(addr(HUB)))).expect("a hub");
            peers.push(peer);
        }
        Star { now, hub, peers, strays: 0 }
    }

    /// As the kernel does: by the index, what has none to the first.
    fn deliver(&mut self, from: Remote, mut packet: Vec<u8>) {
        let shard = match PacketKind::of(&packet).expect("a packet") {
            PacketKind::Initiation => 0,
            PacketKind::Response { receiver }
            | PacketKind::CookieReply { receiver }
            | PacketKind::Data { receiver } => shard_of(receiver, SHARDS),
        };
        let now = self.now;
        self.hub[shard as usize].handle_packet(now, now, from, &mut packet);
        while let Some(it) = self.hub[0].poll_handed_over() {
            let owner = it.shard as usize;
            assert_ne!(owner, 0);
            self.hub[owner].take_handed_over(now, it);
        }
        let n = usize::from(from.source().port() - 1000);
        self.strays += usize::from(shard as usize != n && shard != 0);
    }

    fn pass(&mut self, rounds: usize) {
        for _ in 0..rounds {
            for n in 0..self.peers.len() {
                self.peers[n].handle_timeout(self.now);
                for (_, packet) in sent(self.now, &mut self.peers[n]) {
                    self.deliver(
                        Remote::from(std::net::SocketAddr::from((
                            [192, 0, 2, 10],
                            1000 + n as u16,
                        ))),
                        packet,
                    );
                }
            }
            for shard in 0..self.hub.len() {
                self.hub[shard].handle_timeout(self.now);
                for (to, mut packet) in sent(self.now, &mut self.hub[shard]) {
                    let n = usize::from(to.source().port() - 1000);
                    self.peers[n].handle_packet(self.now, self.now, addr(HUB), &mut packet);
                }
            }
            self.now += Duration::from_millis(50);
        }
    }
}

#[test]
fn peers_that_initiate_have_their_sessions_with_the_shards_that_have_them() {
    let mut star = Star::new();
    star.pass(10);
    let id = PeerId::from_index(0);
    for n in 0..SHARDS as usize {
        assert!(star.hub[n].is_established(id) && star.peers[n].is_established(id), "{n}");
        assert!(star.hub[n].peer_stats(id).packets_in > 0);
    }
    assert_eq!(star.strays, 0);
    // What they say to each other later needs no help of the first shard.
    let before = star.hub[0].peer_stats(id).packets_in;
    for n in 1..SHARDS as usize {
        star.peers[n].session_mut(id).expect("a session").ping();
    }
    star.pass(4);
    assert_eq!(star.hub[0].peer_stats(id).packets_in, before);
    assert!((0..3).all(|n| star.hub[n].drops().is_empty()), "nothing was dropped anywhere");
}

/// The kernel sends packets that come right behind an initiation where that one belongs.
#[test]
fn a_packet_that_arrives_at_the_first_shard_is_handed_over_to_its_own() {
    let mut star = Star::new();
    star.pass(10);
    let (id, from) =
        (PeerId::from_index(0), Remote::from(std::net::SocketAddr::from(([192, 0, 2, 10], 1002))));
    star.peers[2].session_mut(id).expect("a session").ping();
    let before = [0, 2].map(|n: usize| star.hub[n].peer_stats(id).packets_in);
    let mut handed_over = 0;
    for (_, mut packet) in sent(star.now, &mut star.peers[2]) {
        let arrived = Instant::from_nanos(star.now.as_nanos() - 5);
        let whole = packet.clone();
        star.hub[0].handle_packet(star.now, arrived, from, &mut packet);
        let it = star.hub[0].poll_handed_over().expect("it is another's");
        assert_eq!((it.shard, it.from, it.is_initiation()), (2, from, false));
        let What::Packet { arrived: at, bytes } = &it.what else { panic!("it has an index") };
        assert_eq!((*at, bytes), (arrived, &whole));
        star.hub[2].take_handed_over(star.now, it);
        assert!(star.hub[0].poll_handed_over().is_none());
        handed_over += 1;
    }
    assert!(handed_over > 0);
    let after = [0, 2].map(|n: usize| star.hub[n].peer_stats(id).packets_in);
    assert_eq!(after, [before[0], before[1] + handed_over], "it was opened where it belongs");
    assert!((0..3).all(|n| star.hub[n].drops().is_empty()), "nothing was dropped anywhere");
}

/// A data packet of nobody's with this index.
fn stray(index: u16) -> Vec<u8> {
    [&[0b1100_0101][..], &index.to_be_bytes(), &[7; 40]].concat()
}

#[test]
fn only_the_first_of_several_shards_hands_packets_over() {
    let mut star = Star::new();
    for shard in [1, 2] {
        star.hub[shard].handle_packet(star.now, star.now, addr(77), &mut stray(0x3000));
        assert!(star.hub[shard].poll_handed_over().is_none());
        assert_eq!(star.hub[shard].drops()["unknown index"], 1);
    }
    let mut alone = Endpoint::new(config(HUB));
    alone.handle_packet(star.now, star.now, addr(77), &mut stray(0x3001));
    assert!(alone.poll_handed_over().is_none());
    assert_eq!(alone.drops()["unknown index"], 1);
}

#[test]
fn packets_of_strangers_are_handed_over_up_to_a_bound_and_keep_no_initiation_out() {
    let mut star = Star::new();
    for _ in 0..1_000 {
        star.hub[0].handle_packet(star.now, star.now, addr(77), &mut stray(0x3001));
    }
    assert_eq!(star.hub[0].drops()["shard busy"], 1_000 - 64);
    let (_, mut initiation) = sent(star.now, &mut star.peers[1]).remove(0);
    star.hub[0].handle_packet(star.now, star.now, addr(77), &mut initiation);
    assert!(star.hub[0].poll_handed_over().expect("it waits").is_initiation());
    assert_eq!(std::iter::from_fn(|| star.hub[0].poll_handed_over()).count(), 64);
}

/// The kernel sends an initiation that comes right behind data packets where those belong.
#[test]
fn an_initiation_that_arrives_where_its_peer_is_needs_no_other_shard() {
    let mut star = Star::new();
    let from = Remote::from(std::net::SocketAddr::from(([192, 0, 2, 10], 1001)));
    for (_, mut packet) in sent(star.now, &mut star.peers[1]) {
        star.hub[1].handle_packet(star.now, star.now, from, &mut packet);
    }
    assert!(star.hub[1].drops().is_empty(), "{:?}", star.hub[1].drops());
    for (_, mut packet) in sent(star.now, &mut star.hub[1]) {
        star.peers[1].handle_packet(star.now, star.now, addr(HUB), &mut packet);
    }
    assert!(star.peers[1].is_established(PeerId::from_index(0)), "it was answered");
    star.pass(4);
    assert!(star.hub[1].is_established(PeerId::from_index(0)));
}

#[test]
fn an_initiation_of_a_peer_that_is_nowhere_is_not_handed_over() {
    let mut star = Star::new();
    star.hub[0].set_elsewhere(*PrivateKey::from_bytes([11; 32]).public(), None);
    star.hub[2].remove_peer(PeerId::from_index(0));
    star.pass(3);
    assert!(!star.peers[1].is_established(PeerId::from_index(0)));
    assert!(star.hub[0].drops().contains_key("unknown peer"), "it was never another's");
    assert!(star.hub[2].drops().contains_key("unknown peer"), "it is no longer another's");
}

#[test]
fn what_waits_for_another_shard_is_bounded() {
    let mut star = Star::new();
    let from = addr(77);
    for n in 0..100 {
        let mut caller = Endpoint::new(EndpointConfig { seed: [n; 32], ..config(11) });
        caller.add_peer(star.now, peer_config(HUB, Some(addr(HUB)))).expect("a hub");
        let (_, mut packet) = sent(star.now, &mut caller).remove(0);
        star.hub[0].handle_packet(star.now, star.now, from, &mut packet);
    }
    assert!(star.hub[0].drops()["shard busy"] >= 36, "{:?}", star.hub[0].drops());
    assert!(std::iter::from_fn(|| star.hub[0].poll_handed_over()).count() <= 64);
}

/// L-CK-5.
#[test]
fn a_cookie_of_one_shard_is_good_at_the_others() {
    let mut hub = Endpoint::divided(config(HUB), SHARDS);
    let (from, mac1) = (addr(9), [3; 16]);
    for at in [1, 119, 121, 1_000] {
        let now = Instant::ZERO + Duration::from_secs(at);
        let reply = hub[2].guard.reply(now, from.source(), 5, &mac1);
        let sealed_for = MacKeys::of(hub[2].public_key());
        let cookie = sealed_for.open_reply(&mac1, reply.as_bytes()).expect("our own reply");
        for shard in &mut hub {
            assert!(shard.guard.gave(now, from.source(), &cookie));
            assert!(!shard.guard.gave(now, addr(8).source(), &cookie));
            assert!(!shard.guard.gave(now + Duration::from_secs(241), from.source(), &cookie));
        }
    }
}
