//! Clients of the proxy that were told that there is no connection, and are heard for a moment
//! more.
//!
//! Where a socket is closed while bytes of the client's are unread, or are still to come, the
//! kernel resets the connection, and the client may lose the answer with it (RFC 9112, section
//! 9.6).

use std::collections::VecDeque;
use std::io::ErrorKind;

use os::tcp::Stream;
use units::{Duration, Instant};

/// How long a client is heard after the answer.
const MOMENT: Duration = Duration::from_secs(1);
/// How often it is looked whether clients have ended.
const AGAIN: Duration = Duration::from_millis(50);
/// Bytes of a client that are read and dropped; the kernel holds what is more.
const MOST_DROPPED: usize = 64 << 10;
/// Clients at once. For one more the oldest is closed, which may reset it, as the kernel sees fit.
const MOST: usize = 256;

struct Parting {
    stream: Stream,
    until: Instant,
    /// Bytes that may still be dropped.
    left: usize,
}

/// See the module.
#[derive(Default)]
pub struct Partings {
    all: VecDeque<Parting>,
    again: Option<Instant>,
}

impl Partings {
    /// A client, which has its answer and is not watched any more.
    pub fn add(&mut self, now: Instant, stream: Stream) {
        if stream.close_in_order().is_err() || stream.shutdown_write().is_err() {
            return; // It has gone.
        }
        if self.all.len() >= MOST {
            self.all.pop_front();
        }
        self.all.push_back(Parting { stream, until: now + MOMENT, left: MOST_DROPPED });
        self.again.get_or_insert(now + AGAIN);
    }

    /// When [`Partings::handle_timeout`] is to be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.again
    }

    /// Drops what clients have sent, and closes those that have ended or whose moment is over.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.again.is_none_or(|at| at > now) {
            return;
        }
        self.all.retain_mut(|it| now < it.until && it.is_open());
        self.again = (!self.all.is_empty()).then_some(now + AGAIN);
    }
}

impl Parting {
    /// Reads and drops; has the client not ended?
    fn is_open(&mut self) -> bool {
        let mut room = [0; 4096];
        while self.left > 0 {
            let len = room.len().min(self.left);
            match self.stream.read(&mut room[..len]) {
                Ok(0) => return false,
                Ok(n) => self.left -= n,
                Err(e) => return e.kind() == ErrorKind::WouldBlock,
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use os::poll::{Events, Interest, Poller};
    use os::tcp::{TcpOptions, pair};

    use super::*;

    fn sockets() -> (Stream, Stream) {
        pair(&TcpOptions::default(), &TcpOptions::default()).unwrap()
    }

    fn at(millis: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(millis)
    }

    #[test]
    fn a_client_is_heard_until_it_ends_and_for_a_second_at_most() {
        let (mut partings, mut clients) = (Partings::default(), Vec::new());
        for _ in 0..2 {
            let (client, stream) = sockets();
            partings.add(at(0), stream);
            clients.push(client);
        }
        assert_eq!(partings.poll_timeout(), Some(at(50)));
        partings.handle_timeout(at(50));
        assert_eq!(partings.all.len(), 2);
        clients[0].shutdown_write().unwrap();
        let mut poller = Poller::new().unwrap();
        poller.add(&partings.all[0].stream, 0, Interest::READ).unwrap();
        let patience = Some(Duration::from_secs(20));
        assert_eq!(poller.wait(&mut Events::with_capacity(1), patience).unwrap(), 1);
        partings.handle_timeout(at(100));
        assert_eq!((partings.all.len(), partings.poll_timeout()), (1, Some(at(150))));
        partings.handle_timeout(at(1_000));
        assert_eq!((partings.all.len(), partings.poll_timeout()), (0, None));
    }

    #[test]
    fn clients_without_end_take_bounded_places_the_newest() {
        let (mut partings, mut clients) = (Partings::default(), Vec::new());
        for n in 0..MOST as u64 + 10 {
            let (client, stream) = sockets();
            partings.add(at(n), stream);
            clients.push(client);
        }
        assert_eq!(partings.all.len(), MOST);
        assert!(partings.all.iter().all(|it| it.until >= at(1_010)));
    }
}
