//! Where intercepted connections arrive. Out of descriptors the listeners rest a while:
//! a poller that tells of what cannot be accepted would keep the loop spinning.

use std::io::ErrorKind;

use os::OsError;
use os::poll::{Interest, Poller};
use os::tcp::{Accepted, Listener, TcpOptions, TransparentListener};
use units::{Duration, Instant};

/// How long a listener rests. What has connected waits in the kernel's queue.
pub const REST: Duration = Duration::from_millis(100);

/// The listeners for IPv4 and IPv6.
pub struct Listeners {
    both: TransparentListener,
    tokens: [u64; 2],
    resting: Option<Instant>,
}

impl Listeners {
    /// Listens on a free port; `tokens` are for IPv4 and IPv6.
    pub fn open(options: &TcpOptions, tokens: [u64; 2]) -> Result<Listeners, OsError> {
        Ok(Listeners { both: TransparentListener::bind(0, options)?, tokens, resting: None })
    }

    /// The port of both.
    pub fn port(&self) -> u16 {
        self.both.port()
    }

    /// Lets the poller tell of connections.
    pub fn watch(&self, poller: &Poller) -> Result<(), OsError> {
        self.each().try_for_each(|(listener, token)| poller.add(listener, token, Interest::READ))
    }

    /// The next connection of the listener with this token.
    pub fn accept(&mut self, now: Instant, poller: &Poller, token: u64) -> Option<Accepted> {
        let (listener, _) = self.each().find(|(_, t)| *t == token)?;
        match listener.accept() {
            Ok(accepted) => return Some(accepted),
            Err(e) if e.kind() == ErrorKind::WouldBlock => {}
            Err(e) => {
                crate::log!(Warn, "connections cannot be accepted for now", error = e);
                self.resting = Some(now + REST);
                self.set_interest(poller, Interest::NONE);
            }
        }
        None
    }

    /// When [`Listeners::handle_timeout`] is to be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.resting
    }

    /// Listens again after a rest.
    pub fn handle_timeout(&mut self, now: Instant, poller: &Poller) {
        if self.resting.is_some_and(|until| until <= now) {
            self.resting = None;
            self.set_interest(poller, Interest::READ);
        }
    }

    fn set_interest(&self, poller: &Poller, interest: Interest) {
        for (listener, token) in self.each() {
            let _ = poller.modify(listener, token, interest);
        }
    }

    fn each(&self) -> impl Iterator<Item = (&Listener, u64)> {
        [Some(&self.both.v4), self.both.v6.as_ref()].into_iter().flatten().zip(self.tokens)
    }
}

#[cfg(test)]
mod tests {
    use os::poll::Events;

    use super::*;

    #[test]
    fn without_descriptors_the_listeners_rest_and_then_go_on() {
        let mut poller = Poller::new().unwrap();
        let listeners = Listeners::open(&TcpOptions::default(), [1, 2]);
        // Only root may listen for other hosts' connections.
        let Ok(mut listeners) = listeners else { return };
        listeners.watch(&poller).unwrap();
        let mut events = Events::with_capacity(4);
        let now = Instant::from_nanos(1);
        listeners.resting = Some(now + REST);
        listeners.set_interest(&poller, Interest::NONE);
        let _client = std::net::TcpStream::connect(("127.0.0.1", listeners.port())).unwrap();
        assert_eq!(poller.wait(&mut events, Some(Duration::from_millis(20))).unwrap(), 0);
        listeners.handle_timeout(now, &poller);
        assert_eq!(listeners.poll_timeout(), Some(now + REST));
        listeners.handle_timeout(now + REST, &poller);
        assert_eq!(poller.wait(&mut events, Some(Duration::from_secs(10))).unwrap(), 1);
        assert_eq!(listeners.poll_timeout(), None);
    }
}
