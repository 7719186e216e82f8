//! Content that waits for its chunk to be whole: how much there is, and who may hold more.

use std::collections::BTreeMap;
use std::net::IpAddr;

use link::PeerId;
use units::one_host;

use crate::flows::Flow;

/// The most content that may be held, in all. A peer holds no more of it than is free, and a host
/// no more than is left of that to its peer. So readers that stopped keep others of their peer from
/// nothing, and their peer keeps no other peer from anything.
const HELD: usize = 16 << 20;
/// Each direction may hold one part in [`PART`] of what its host may still add, and at least
/// [`PIECE`] bytes.
const PART: usize = 4;
const PIECE: usize = 2 * 1024;

/// A peer, and one of the hosts whose flows cross the link to it.
type Holder = (PeerId, Option<IpAddr>);

/// What is held of all flows.
#[derive(Debug, Default)]
pub(super) struct Held {
    all: usize,
    peers: BTreeMap<PeerId, usize>,
    hosts: BTreeMap<Holder, usize>,
}

impl Held {
    /// So many bytes more are held of a flow.
    pub fn add(&mut self, f: &Flow, bytes: usize) {
        if bytes > 0 {
            self.all += bytes;
            *self.peers.entry(f.peer).or_default() += bytes;
            *self.hosts.entry(holder(f)).or_default() += bytes;
        }
    }

    /// So many bytes less.
    pub fn remove(&mut self, f: &Flow, bytes: usize) {
        if bytes > 0 {
            self.all -= bytes;
            take(&mut self.peers, f.peer, bytes);
            take(&mut self.hosts, holder(f), bytes);
        }
    }

    /// How much of each flow of this one's host may be held.
    pub fn may_hold(&self, f: &Flow) -> usize {
        (self.left(f).saturating_sub(self.of_host(f)) / PART).max(PIECE)
    }

    /// Does the host of the flow hold so much that what it begins is not deduplicated? So does one
    /// whose peer has nothing left.
    pub fn is_crowded(&self, f: &Flow) -> bool {
        self.of_host(f) >= self.left(f) / 2
    }

    /// What is left to the flow's peer.
    fn left(&self, f: &Flow) -> usize {
        let of_peer = self.peers.get(&f.peer).copied().unwrap_or(0);
        HELD.saturating_sub(self.all).saturating_sub(of_peer)
    }

    fn of_host(&self, f: &Flow) -> usize {
        self.hosts.get(&holder(f)).copied().unwrap_or(0)
    }
}

fn holder(f: &Flow) -> Holder {
    (f.peer, f.kind.host.map(one_host))
}

fn take<K: Ord>(counts: &mut BTreeMap<K, usize>, key: K, bytes: usize) {
    if let Some(count) = counts.get_mut(&key) {
        *count -= bytes;
        if *count == 0 {
            counts.remove(&key);
        }
    }
}

#[cfg(test)]
impl Held {
    pub fn sum(&self) -> usize {
        assert_eq!(self.all, self.peers.values().sum::<usize>());
        assert_eq!(self.all, self.hosts.values().sum::<usize>());
        self.all
    }
}

#[cfg(test)]
mod tests {
    use link::session::{ChosenBy, ClassId};
    use link::wire::StreamId;
    use units::Instant;

    use super::*;
    use crate::flows::Kind;

    /// What a direction holds at most, as the encoder takes it.
    const MOST: usize = 64 << 10;

    fn flow(peer: usize, host: &str) -> Flow {
        let kind = Kind {
            class: ClassId::NORMAL,
            chosen_by: ChosenBy::Operator,
            host: Some(host.parse().expect("an address")),
            port: 443,
            from_here: false,
            compress: true,
            scope: None,
        };
        Flow {
            peer: PeerId::from_index(peer),
            session: 0,
            stream: StreamId(0),
            kind,
            moved: Instant::ZERO,
            to: None,
        }
    }

    /// Downloads whose readers stop: each is held as far as it may be.
    fn stop(held: &mut Held, downloads: usize, peer: usize, host: impl Fn(usize) -> String) {
        for n in 0..downloads {
            let f = flow(peer, &host(n));
            if held.is_crowded(&f) {
                continue; // It is not deduplicated.
            }
            held.add(&f, held.may_hold(&f).min(MOST));
        }
    }

    #[test]
    fn a_peer_whose_readers_stop_leaves_the_others_theirs() {
        let mut held = Held::default();
        stop(&mut held, 2_000, 1, |n| format!("10.1.{}.{}", n / 200, n % 200 + 1));
        let honest = flow(2, "10.2.0.1");
        assert!(held.sum() > HELD / 3, "{}", held.sum());
        assert!(held.may_hold(&honest) >= MOST && !held.is_crowded(&honest));
        // Some more than one, too.
        stop(&mut held, 2_000, 3, |n| format!("10.1.{}.{}", n / 200, n % 200 + 1));
        assert!(held.may_hold(&honest) >= MOST && !held.is_crowded(&honest));
    }

    #[test]
    fn a_host_whose_readers_stop_leaves_its_neighbours_theirs() {
        for host in [|_| "10.1.0.1".into(), |n| format!("fd01::{n:x}")] {
            let mut held = Held::default();
            stop(&mut held, 400, 1, host);
            let neighbour = flow(1, "10.1.0.2");
            assert!(held.may_hold(&neighbour) >= MOST && !held.is_crowded(&neighbour));
            let its = flow(1, &host(0));
            assert!(held.is_crowded(&its), "it has had its part");
        }
    }

    #[test]
    fn nothing_is_left_of_what_has_gone() {
        let mut held = Held::default();
        let (a, b) = (flow(1, "10.1.0.1"), flow(1, "10.1.0.2"));
        held.add(&a, 500);
        held.add(&b, 300);
        held.remove(&a, 200);
        assert_eq!(held.sum(), 600);
        held.remove(&a, 300);
        held.remove(&b, 300);
        held.remove(&b, 0);
        held.add(&b, 0);
        assert_eq!(held.sum(), 0);
        assert!(held.peers.is_empty() && held.hosts.is_empty());
    }
}
