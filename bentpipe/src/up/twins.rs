//! Two nodes with one private key: each takes the session from the other, again and again.

use std::net::SocketAddr;

use units::{Duration, Instant};

/// The peer came back to the address before so many times in a row, each time with a new session. A
/// node that roams, or whose NAT changes, goes on to other addresses and keeps its session.
const SEVERAL: u32 = 4;
/// Each return follows the one before within this time.
const SOON: Duration = Duration::from_secs(120);
/// It is shown for so long after the last,
const SHOWN: Duration = Duration::from_secs(600);
/// and logged again after so long, if it goes on.
const AGAIN: Duration = Duration::from_secs(3600);

/// From where a peer's sessions were begun, as far as it tells one node from two.
#[derive(Debug, Default)]
pub struct Twins {
    /// Where the last session came from, and where the last one from elsewhere did.
    from: [Option<SocketAddr>; 2],
    /// When the place changed last, and how often it changed back to the one before.
    changed: Instant,
    returns: u32,
    logged: Option<Instant>,
}

impl Twins {
    /// A session was begun anew from this address. True if it is to be logged that two nodes seem
    /// to have the peer's key.
    pub fn on_session(&mut self, now: Instant, from: SocketAddr) -> bool {
        let [last, before] = self.from;
        if last == Some(from) {
            return false;
        }
        let is_return = before == Some(from) && now.since(self.changed) < SOON;
        self.returns = if is_return { self.returns.saturating_add(1) } else { 0 };
        (self.from, self.changed) = ([Some(from), last], now);
        let is_news = self.logged.is_none_or(|at| now.since(at) >= AGAIN);
        if self.returns < SEVERAL || !is_news {
            return false;
        }
        self.logged = Some(now);
        true
    }

    /// The addresses of two nodes that seem to have the peer's key, the latest first.
    pub fn seen(&self, now: Instant) -> Option<[SocketAddr; 2]> {
        let is_so = self.returns >= SEVERAL && now.since(self.changed) < SHOWN;
        let [Some(last), Some(before)] = self.from else { return None };
        is_so.then_some([last, before])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    fn host(n: u8) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, n], 4500))
    }

    #[test]
    fn sessions_from_two_addresses_in_turn_are_of_two_nodes_until_they_end() {
        let mut twins = Twins::default();
        let told: Vec<u64> =
            (0..20).filter(|s| twins.on_session(at(*s), host((s % 2) as u8))).collect();
        assert_eq!(told, [5], "once");
        assert_eq!(twins.seen(at(20)), Some([host(1), host(0)]));
        assert_eq!(twins.seen(at(700)), None, "one of them was stopped");
        let told = (4000..4020).filter(|s| twins.on_session(at(*s), host((s % 2) as u8)));
        assert_eq!(told.count(), 1, "again after an hour");
    }

    #[test]
    fn a_node_that_roams_restarts_or_comes_back_at_times_is_one() {
        let mut twins = Twins::default();
        for s in 0..200 {
            assert!(!twins.on_session(at(s), host(s as u8)), "another NAT's address each time");
        }
        for s in 200..250 {
            assert!(!twins.on_session(at(s), host(7)), "it crashes again and again");
        }
        for hour in 1..50 {
            let from = host((hour % 2) as u8);
            assert!(!twins.on_session(at(hour * 3600), from), "a port by day, the sea by night");
        }
        assert_eq!(twins.seen(at(50 * 3600)), None);
    }
}
