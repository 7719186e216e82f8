//! SYNs that interception got lately, whose connections the kernel has, or is about to.
//!
//! The kernel replaces the socket of a handshake by that of the connection in two steps, the
//! first of which takes the old one out (`inet_ehash_insert`, Linux up to 6.18). A segment that
//! another processor looks a socket up for between the two finds none, and comes here as one of
//! TCP that is not split. The far host, which knows of no such connection, would reset it.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

use units::{Duration, Instant};

/// How long a client may take for its handshake once the far connection is established. Linux
/// retransmits its SYN-ACK after 1, 3 and 7 s.
pub(super) const HANDSHAKE: Duration = Duration::from_secs(10);
/// SYNs that are remembered: of a burst of 10,000 a second those of the last 0.4 s.
const MOST: usize = 4096;

/// The client's address and the server's.
pub(super) type Pair = (SocketAddr, SocketAddr);

#[derive(Clone, Copy, Debug)]
struct Syn {
    at: Instant,
    /// The code point that the connection is to have.
    dscp: u8,
    /// Its host was charged for the connection.
    is_paid: bool,
}

/// The SYNs.
#[derive(Debug, Default)]
pub(super) struct Intercepted {
    by: BTreeMap<Pair, Syn>,
    order: VecDeque<(Instant, Pair)>,
}

impl Intercepted {
    /// Interception gets a SYN now, which does not tell us its code point.
    pub fn note(&mut self, now: Instant, pair: Pair, dscp: u8) {
        // Sent again it is not paid again.
        let is_paid = self.is_paid(pair);
        self.by.insert(pair, Syn { at: now, dscp, is_paid });
        self.order.push_back((now, pair));
        let is_over = |at: Instant| now.since(at) >= HANDSHAKE;
        while let Some(&(at, oldest)) = self.order.front()
            && (self.order.len() > MOST || is_over(at))
        {
            self.order.pop_front();
            if self.by.get(&oldest).is_some_and(|syn| syn.at == at) {
                self.by.remove(&oldest);
            }
        }
    }

    /// The host of a SYN that was noted was charged for its connection, or need not be.
    pub fn pay(&mut self, pair: Pair) {
        if let Some(syn) = self.by.get_mut(&pair) {
            syn.is_paid = true;
        }
    }

    /// Was it?
    pub fn is_paid(&self, pair: Pair) -> bool {
        self.by.get(&pair).is_some_and(|syn| syn.is_paid)
    }

    /// Was it, for this connection? The next of the same two is another.
    pub fn take_paid(&mut self, pair: Pair) -> bool {
        self.by.get_mut(&pair).is_some_and(|syn| std::mem::take(&mut syn.is_paid))
    }

    /// The code point of a connection that is being made.
    pub fn dscp(&self, pair: Pair) -> u8 {
        self.by.get(&pair).map_or(0, |syn| syn.dscp)
    }

    /// The code point of a connection that was accepted.
    pub fn take_dscp(&mut self, pair: Pair) -> u8 {
        self.by.get_mut(&pair).map_or(0, |syn| std::mem::take(&mut syn.dscp))
    }

    /// Is a connection of these two just being made, or was a moment ago?
    pub fn holds(&self, now: Instant, pair: Pair) -> bool {
        self.by.get(&pair).is_some_and(|syn| now.since(syn.at) < HANDSHAKE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(port: u16) -> Pair {
        (SocketAddr::from(([10, 1, 0, 2], port)), SocketAddr::from(([10, 2, 0, 2], 80)))
    }

    #[test]
    fn the_newest_are_remembered_for_as_long_as_a_handshake_may_take() {
        let begin = Instant::from_nanos(1_000_000_000);
        let mut all = Intercepted::default();
        for n in 0..2 * MOST as u16 {
            all.note(begin, pair(n), 0);
        }
        assert_eq!((all.by.len(), all.order.len()), (MOST, MOST));
        assert!(!all.holds(begin, pair(MOST as u16 - 1)) && all.holds(begin, pair(MOST as u16)));
        // Sent again it is as new as its last copy.
        let (one, later) = (pair(9_000), begin + Duration::from_secs(7));
        all.note(begin, one, 46);
        all.note(later, one, 46);
        all.note(begin + HANDSHAKE, pair(9_001), 0);
        assert_eq!((all.by.len(), all.order.len()), (2, 2));
        assert!(all.holds(later + (HANDSHAKE - Duration::from_millis(1)), one));
        assert!(!all.holds(later + HANDSHAKE, one));
        assert_eq!([all.take_dscp(one), all.take_dscp(one), all.take_dscp(pair(1))], [46, 0, 0]);
    }
}
