//! Sockets whose flow is over, while the kernel has bytes of theirs that the host has not
//! acknowledged: a reset now would throw them away, and so would the end of the interception.
//!
//! A host that takes a little now and then is waited for as long as it takes, so that who likes
//! can fill all places. Then the peer with the most sockets loses its oldest, of the client that
//! has the most there ([`Shares`]).

use std::collections::BTreeMap;
use std::net::IpAddr;

use link::PeerId;
use os::tcp::Stream;
use units::{Duration, Instant, Shares};

use super::patience::{Patience, RESET};

/// How often it is looked what hosts have acknowledged.
const LOOK: Duration = Duration::from_millis(100);
/// The most sockets that are kept. Beyond it one goes, as if its host took nothing.
const MOST: usize = 4096;

/// The peer whose flow it was, and the client, as far as they are known.
pub type Holder = (Option<PeerId>, Option<IpAddr>);

/// The sockets.
pub struct Lingering {
    /// By number, the oldest first.
    sockets: BTreeMap<u64, Socket>,
    shares: Shares<Option<PeerId>, Option<IpAddr>, u64>,
    last: u64,
    most: usize,
    look_at: Option<Instant>,
}

struct Socket {
    /// When it is dropped it resets, or ends, as it was told to.
    stream: Stream,
    patience: Patience,
    of: Holder,
}

impl Default for Lingering {
    fn default() -> Lingering {
        Lingering::with_room(MOST)
    }
}

impl Lingering {
    fn with_room(most: usize) -> Lingering {
        let (sockets, shares) = Default::default();
        Lingering { sockets, shares, last: 0, most, look_at: None }
    }

    pub fn len(&self) -> usize {
        self.sockets.len()
    }

    /// Keeps the socket until its host has everything, or takes nothing for five seconds.
    pub fn add(&mut self, now: Instant, of: Holder, stream: Stream) {
        let left = stream.under_way();
        if left == 0 {
            return;
        }
        self.last += 1;
        self.shares.add(&of, self.last, 1);
        let patience = Patience::begin(now, RESET, left as u64);
        self.sockets.insert(self.last, Socket { stream, patience, of });
        if self.sockets.len() > self.most
            && let Some(number) = self.shares.gives_way().copied()
            && let Some(socket) = self.sockets.remove(&number)
        {
            self.shares.remove(&socket.of, &number);
        }
        self.look_at.get_or_insert(now + LOOK);
    }

    /// When [`Lingering::handle_timeout`] is to be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.look_at
    }

    /// Lets go of sockets whose host has everything, or takes nothing.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.look_at.is_none_or(|at| at > now) {
            return;
        }
        let shares = &mut self.shares;
        self.sockets.retain(|number, Socket { stream, patience, of }| {
            let left = stream.under_way();
            let stays = left > 0 && !patience.is_over(now, left as u64);
            if !stays {
                shares.remove(of, number);
            }
            stays
        });
        self.look_at = (!self.sockets.is_empty()).then_some(now + LOOK);
    }
}

#[cfg(test)]
mod tests {
    use os::tcp::{TcpOptions, pair};

    use super::*;

    const SHIP: Option<PeerId> = Some(PeerId::from_index(0));
    const EVIL: Option<PeerId> = Some(PeerId::from_index(1));

    fn host(n: u8) -> Option<IpAddr> {
        Some([10, 1, 0, n].into())
    }

    /// A socket whose host takes nothing, and the host.
    fn stopped() -> (Stream, Stream) {
        let (near, far) = pair(&TcpOptions::default(), &TcpOptions::default()).unwrap();
        while near.write(&[0; 1 << 16]).is_ok() {}
        (near, far)
    }

    #[test]
    fn who_keeps_all_places_loses_its_own_and_the_others_lose_none() {
        let (mut lingering, mut hosts) = (Lingering::with_room(8), Vec::new());
        let honest = [(SHIP, host(2)), (EVIL, host(2)), (SHIP, host(3))];
        let evil = (0..20).map(|_| (EVIL, host(9)));
        for of in honest.into_iter().chain(evil) {
            let (near, far) = stopped();
            lingering.add(Instant::ZERO, of, near);
            hosts.push(far);
        }
        let kept: Vec<Holder> = lingering.sockets.values().map(|socket| socket.of).collect();
        assert_eq!(kept[..3], honest, "also of a client behind the same peer");
        assert_eq!((kept.len(), lingering.shares.sum()), (8, 8));
        // The newest of those that filled the places are left.
        assert_eq!(
            lingering.sockets.keys().copied().collect::<Vec<_>>()[3..],
            [19, 20, 21, 22, 23]
        );
        lingering.handle_timeout(Instant::ZERO + RESET);
        assert_eq!((lingering.len(), lingering.shares.sum()), (0, 0), "nobody took anything");
        assert_eq!(lingering.poll_timeout(), None);
    }
}
