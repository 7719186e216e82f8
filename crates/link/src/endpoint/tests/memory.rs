//! Memory that all peers of a node share.

use super::*;
use crate::session::Event;
use crate::wire::StreamId;

const SHIPS: u8 = 8;
const CONTENT: usize = 300_000;
const LIMIT: u64 = 256 << 10;
const FLOOR: u64 = 32 << 10;

struct World {
    now: Instant,
    shore: Endpoint,
    ships: Vec<Endpoint>,
    /// What shore's hosts took, by peer.
    taken: Vec<usize>,
    streams: Vec<Option<StreamId>>,
    most: u64,
}

/// Shore, and ships that each send to a host there.
fn world(limit: Option<u64>) -> World {
    let (mut shore, _) = node(1, 2, None);
    for n in 3..2 + SHIPS {
        let config = PeerConfig {
            public_key: *PrivateKey::from_bytes([n; 32]).public(),
            preshared_key: PresharedKey::NONE,
            endpoint: None,
            link: link(),
            keepalive: None,
        };
        shore.add_peer(Instant::ZERO, config).expect("another key");
    }
    shore.share_memory(limit.map(ByteCount), ByteCount(FLOOR));
    let ship = |n| {
        let (mut ship, shore_id) = node(n, 1, Some(addr(1)));
        let target = Target::Address(([192, 0, 2, 80], 80).into());
        let origin = Origin { client: None, target, dscp: 0 };
        let session = ship.session_mut(shore_id).expect("a session");
        session.open(Instant::ZERO, origin).expect("a stream");
        ship
    };
    World {
        now: Instant::ZERO,
        shore,
        ships: (2..2 + SHIPS).map(ship).collect(),
        taken: vec![0; SHIPS.into()],
        streams: vec![None; SHIPS.into()],
        most: 0,
    }
}

impl World {
    /// Goes on for a while, in which the hosts of these peers take what there is.
    fn pass(&mut self, time: Duration, written: &mut [usize], reads: impl Fn(usize) -> bool) {
        let end = self.now + time;
        while self.now < end {
            self.now += Duration::from_millis(5);
            let now = self.now;
            for (n, ship) in self.ships.iter_mut().enumerate() {
                ship.handle_timeout(now);
                let session = ship.session_mut(PeerId::from_index(0)).expect("a session");
                let id = StreamId(session_side(n));
                let piece = (CONTENT - written[n]).min(10_000);
                written[n] += session.write(now, id, &vec![n as u8; piece]);
                while ship.poll_event().is_some() {}
                for (_, mut packet) in sent(now, ship) {
                    self.shore.handle_packet(now, now, addr(n as u8 + 2), &mut packet);
                }
            }
            self.shore.handle_timeout(now);
            while let Some(event) = self.shore.poll_event() {
                if let EndpointEvent::Stream(peer, Event::Opened(id, _)) = event {
                    self.streams[peer.index()] = Some(id);
                }
            }
            for (n, stream) in self.streams.iter().enumerate() {
                let Some(id) = stream.filter(|_| reads(n)) else { continue };
                let session = self.shore.session_mut(PeerId::from_index(n)).expect("a session");
                while let len @ 1.. = session.peek(id).len() {
                    assert!(session.peek(id).iter().all(|byte| *byte == n as u8));
                    session.consume(now, id, len);
                    self.taken[n] += len;
                }
            }
            for (to, mut packet) in sent(now, &mut self.shore) {
                let n = to.addr.map(|a| a.ip()).map_or(0, |ip| match ip {
                    std::net::IpAddr::V4(v4) => v4.octets()[3],
                    std::net::IpAddr::V6(_) => 0,
                });
                let ship = &mut self.ships[usize::from(n) - 2];
                ship.handle_packet(now, now, addr(1), &mut packet);
            }
            self.most = self.most.max(self.shore.memory_used().0);
        }
    }
}

/// The number of a ship's first stream.
fn session_side(n: usize) -> u64 {
    let [ship, shore] = [n as u8 + 2, 1].map(|n| *PrivateKey::from_bytes([n; 32]).public());
    u64::from(ship > shore)
}

/// L-CR-6.
#[test]
fn peers_whose_hosts_stopped_take_no_more_than_there_is_and_their_floors() {
    let run = |limit| {
        let (mut w, mut written) = (world(limit), vec![0; SHIPS.into()]);
        w.pass(Duration::from_secs(10), &mut written, |_| false);
        let stopped = w.most;
        // One of them reads at last, and later all.
        w.pass(Duration::from_secs(20), &mut written, |n| n == 3);
        assert_eq!(w.taken[3], CONTENT);
        w.pass(Duration::from_secs(40), &mut written, |_| true);
        assert_eq!(w.taken, [CONTENT; SHIPS as usize]);
        assert_eq!(w.shore.memory_used(), ByteCount(0));
        stopped
    };
    let (free, shared) = (run(None), run(Some(LIMIT)));
    assert!(free > 3 * LIMIT, "{free}: each takes what it was promised");
    // What was there when it ran short may be in pieces of blocks.
    let most = LIMIT + u64::from(SHIPS) * (FLOOR + (32 << 10));
    assert!(shared <= most && shared >= LIMIT, "{shared} of {most}");
}
