//! What may go to a peer before it asks: not what it has, and no more than its link has room for.

use std::collections::{BTreeMap, VecDeque};

use crate::Key;

/// What goes ahead may keep a link busy for so long, in milliseconds: hosts' own bytes wait behind
/// it.
const BUSY: u64 = 300;
/// The rate of a link of which nothing is known, in bits per second.
const UNKNOWN: u64 = 1_000_000;
/// Answers of which is remembered that a peer has them, the newest. A page brings two dozen.
const MOST_TOLD: usize = 256;

/// What a peer was told, and how busy its link is with what went ahead.
#[derive(Default)]
struct Peer {
    /// Bits per second; 0: not known.
    rate: u64,
    /// Until when the link is busy with what went ahead, in microseconds.
    busy: u64,
    /// What the peer has, and until when it holds, in milliseconds.
    told: VecDeque<(u64, Key)>,
}

/// See the module.
#[derive(Default)]
pub struct Ahead {
    peers: BTreeMap<String, Peer>,
}

impl Ahead {
    /// The link to the peer sends so many bits per second.
    pub fn set_rate(&mut self, peer: &str, rate: u64) {
        self.peers.entry(peer.to_owned()).or_default().rate = rate;
    }

    /// Is this worth sending now? A link that is free takes one answer, however slow it is.
    pub fn may(&self, now: u64, peer: &str, key: &Key) -> bool {
        let Some(peer) = self.peers.get(peer) else { return true };
        let has = || peer.told.iter().any(|(until, told)| *until > now && told == key);
        peer.busy < (now + BUSY) * 1_000 && !has()
    }

    /// An answer went to the peer, which holds for `ttl` seconds.
    pub fn tell(&mut self, now: u64, peer: &str, key: &Key, ttl: u32) {
        let told = &mut self.peers.entry(peer.to_owned()).or_default().told;
        told.retain(|(until, before)| *until > now && before != key);
        told.push_back((now + 1_000 * u64::from(ttl), key.clone()));
        if told.len() > MOST_TOLD {
            told.pop_front();
        }
    }

    /// So many bytes went to the peer before it asked.
    pub fn sent(&mut self, now: u64, peer: &str, bytes: usize) {
        let peer = self.peers.entry(peer.to_owned()).or_default();
        let rate = if peer.rate > 0 { peer.rate } else { UNKNOWN };
        peer.busy = peer.busy.max(now * 1_000) + bytes as u64 * 8_000_000 / rate;
    }

    /// The peer's half has gone, and with it what it had.
    pub fn on_lost(&mut self, peer: &str) {
        if let Some(peer) = self.peers.get_mut(peer) {
            peer.told.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: usize) -> Key {
        ("10.2.0.2:53".parse().unwrap(), n.to_be_bytes().into())
    }

    #[test]
    fn what_goes_ahead_keeps_a_link_busy_for_less_than_half_a_second() {
        for (rate, most) in [(0, 60), (2_400, 1), (64_000, 4), (10_000_000, 600)] {
            let mut ahead = Ahead::default();
            ahead.set_rate("ship", rate);
            let count = (0..1_000).take_while(|n| {
                let may = ahead.may(7, "ship", &key(*n));
                ahead.sent(7, "ship", 640);
                may
            });
            let count = count.count();
            assert!((1..=most).contains(&count), "{count} at {rate} bit/s");
            assert!(ahead.may(10_000, "ship", &key(0)), "later there is room again");
        }
    }

    #[test]
    fn what_a_peer_has_goes_to_it_again_when_that_has_ended() {
        let mut ahead = Ahead::default();
        for n in 0..2 * MOST_TOLD {
            ahead.tell(0, "ship", &key(n), 10);
        }
        assert!(ahead.may(0, "ship", &key(0)), "long ago");
        let last = key(2 * MOST_TOLD - 1);
        assert!(!ahead.may(9_999, "ship", &last) && ahead.may(10_000, "ship", &last));
        assert!(ahead.may(0, "other", &last));
        ahead.on_lost("ship");
        assert!(ahead.may(0, "ship", &last));
    }
}
