//! How many requests peers and their hosts may have open: servers that do not answer one of them
//! keep no other from being served.

use std::collections::BTreeMap;

/// Requests that are open, by the peer for which they are, and the host behind it.
///
/// There are `most` at once. A peer has no more of them than are free, and a host no more than the
/// rest that its peer may have.
#[derive(Debug)]
pub struct Quota<H> {
    most: usize,
    open: usize,
    peers: BTreeMap<String, usize>,
    hosts: BTreeMap<(String, H), usize>,
}

impl<H: Ord + Clone> Quota<H> {
    /// So many, none of which is open.
    pub const fn new(most: usize) -> Quota<H> {
        Quota { most, open: 0, peers: BTreeMap::new(), hosts: BTreeMap::new() }
    }

    /// May the peer have one more request open?
    pub fn has_room_for_peer(&self, peer: &str) -> bool {
        self.of_peer(peer) < self.free()
    }

    /// May this host behind the peer have one more request open?
    pub fn has_room(&self, peer: &str, host: &H) -> bool {
        let (of_peer, free) = (self.of_peer(peer), self.free());
        let of_host = self.hosts.get(&(peer.to_owned(), host.clone())).copied().unwrap_or(0);
        of_peer < free && of_host < (of_peer + free).div_ceil(2) - of_peer
    }

    /// One more is open.
    pub fn begin(&mut self, peer: &str, host: H) {
        self.open += 1;
        *self.peers.entry(peer.to_owned()).or_default() += 1;
        *self.hosts.entry((peer.to_owned(), host)).or_default() += 1;
    }

    /// One of this host's is not open any more.
    pub fn end(&mut self, peer: &str, host: H) {
        let holder = (peer.to_owned(), host);
        if take_one(&mut self.hosts, &holder) {
            take_one(&mut self.peers, &holder.0);
            self.open -= 1;
        }
    }

    /// How many are open.
    pub fn open(&self) -> usize {
        self.open
    }

    fn free(&self) -> usize {
        self.most.saturating_sub(self.open)
    }

    fn of_peer(&self, peer: &str) -> usize {
        self.peers.get(peer).copied().unwrap_or(0)
    }
}

/// One less; false if there is none.
fn take_one<K: Ord>(counts: &mut BTreeMap<K, usize>, key: &K) -> bool {
    let Some(count) = counts.get_mut(key) else { return false };
    *count -= 1;
    if *count == 0 {
        counts.remove(key);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As many as there is room for; how many that were.
    fn fill(quota: &mut Quota<u32>, peer: &str, host: impl Fn(u32) -> u32) -> u32 {
        (0..10_000)
            .take_while(|n| {
                let has_room = quota.has_room(peer, &host(*n));
                if has_room {
                    quota.begin(peer, host(*n));
                }
                has_room
            })
            .count() as u32
    }

    #[test]
    fn a_host_has_a_part_of_its_peers_part_and_a_peer_no_more_than_are_free() {
        let mut quota = Quota::new(2_048);
        assert_eq!(fill(&mut quota, "evil", |_| 1), 512);
        assert_eq!(fill(&mut quota, "evil", |n| 2 + n), 512);
        assert!(!quota.has_room_for_peer("evil") && quota.has_room_for_peer("ship"));
        assert_eq!(fill(&mut quota, "ship", |_| 1), 256);
    }

    #[test]
    fn what_has_ended_leaves_nothing_behind_and_ends_once() {
        let mut quota = Quota::new(8);
        quota.begin("ship", 1);
        quota.begin("ship", 2);
        for (host, open) in [(1, 1), (1, 1), (2, 0), (3, 0)] {
            quota.end("ship", host);
            assert_eq!(quota.open(), open);
        }
        assert!(quota.peers.is_empty() && quota.hosts.is_empty());
    }
}
