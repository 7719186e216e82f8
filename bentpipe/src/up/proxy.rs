//! The explicit proxy (R-LASTHOP): clients that say where they want to go, so that
//! nothing must be intercepted and no right is needed. A client is told "connected" at
//! once (`open = "fast"`); if the far side then fails, it is reset.

use std::io::ErrorKind;
use std::net::SocketAddr;

use os::OsError;
use os::poll::{Interest, Poller};
use os::tcp::{Listener, Stream, TcpOptions};
use relay::Target;
use units::{Duration, Instant};

use super::listeners::REST;
use crate::host::Host;
use crate::proxy_proto::{Negotiation, Refusal, Step};

/// Clients that have not said where to, at once; more wait in the kernel's queue.
const MAX_CLIENTS: usize = 1024;
/// A client that has not said where to by then is dropped.
const PATIENCE: Duration = Duration::from_secs(30);

struct Client {
    stream: Stream,
    negotiation: Negotiation,
    deadline: Instant,
}

/// A client that has said where it wants to go.
pub struct Asked {
    pub target: Target,
    early: Vec<u8>,
    stream: Stream,
    negotiation: Negotiation,
}

/// The listener and the clients that are still talking.
pub struct Proxy {
    listener: Listener,
    token: u64,
    first_token: u64,
    clients: Vec<Option<Client>>,
    /// Not listening until then: out of places, or of descriptors.
    resting: Option<Instant>,
}

impl Proxy {
    /// Listens on `address`.
    pub fn open(
        address: SocketAddr,
        poller: &Poller,
        token: u64,
        first_client: u64,
    ) -> Result<Proxy, OsError> {
        let listener = Listener::bind(address, &TcpOptions::default())?;
        poller.add(&listener, token, Interest::READ)?;
        let (first_token, clients) = (first_client, Vec::new());
        Ok(Proxy { listener, token, first_token, clients, resting: None })
    }

    /// Takes the clients that have connected.
    pub fn accept(&mut self, now: Instant, poller: &Poller) {
        for _ in 0..64 {
            let slot = match self.clients.iter().position(Option::is_none) {
                Some(slot) => slot,
                None if self.clients.len() < MAX_CLIENTS => {
                    self.clients.push(None);
                    self.clients.len() - 1
                }
                None => return self.rest(now, poller),
            };
            let accepted = match self.listener.accept() {
                Ok(accepted) => accepted,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return,
                Err(e) => {
                    crate::log!(Warn, "proxy clients cannot be accepted for now", error = e);
                    return self.rest(now, poller);
                }
            };
            let token = self.first_token + slot as u64;
            if poller.add(&accepted.stream, token, Interest::READ).is_ok() {
                self.clients[slot] = Some(Client {
                    stream: accepted.stream,
                    negotiation: Negotiation::new(),
                    deadline: now + PATIENCE,
                });
            }
        }
    }

    fn rest(&mut self, now: Instant, poller: &Poller) {
        self.resting = Some(now + REST);
        let _ = poller.modify(&self.listener, self.token, Interest::NONE);
    }

    /// A client has sent something; answers once it has said where to.
    pub fn on_event(&mut self, poller: &Poller, token: u64) -> Option<Asked> {
        let slot = usize::try_from(token.checked_sub(self.first_token)?).ok()?;
        let client = self.clients.get_mut(slot)?.as_mut()?;
        let mut bytes = [0; 4096];
        let n = match client.stream.read(&mut bytes) {
            Ok(n) if n > 0 => n,
            Err(e) if e.kind() == ErrorKind::WouldBlock => return None,
            _ => {
                self.clients[slot] = None;
                return None;
            }
        };
        let mut step = client.negotiation.feed(&bytes[..n]);
        loop {
            match step {
                Step::NeedMore => return None,
                // Answers are a few bytes, which a fresh socket always takes.
                Step::Reply(bytes) => {
                    let _ = client.stream.write(&bytes);
                    step = client.negotiation.feed(&[]);
                }
                Step::Close(bytes) => {
                    let _ = client.stream.write(&bytes);
                    let _ = client.stream.close_in_order();
                    self.clients[slot] = None;
                    return None;
                }
                Step::Connect { target, early } => {
                    let client = self.clients[slot].take()?;
                    poller.remove(&client.stream).ok()?;
                    let target = match target.host {
                        Host::Ip(ip) => Target::Address(SocketAddr::new(ip, target.port)),
                        Host::Name(name) => Target::Name(name, target.port),
                    };
                    let Client { stream, negotiation, .. } = client;
                    return Some(Asked { target, early, stream, negotiation });
                }
            }
        }
    }

    /// When [`Proxy::handle_timeout`] is to be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.clients.iter().flatten().map(|c| c.deadline).chain(self.resting).min()
    }

    /// Drops clients whose time is up, and listens again after a rest.
    pub fn handle_timeout(&mut self, now: Instant, poller: &Poller) {
        if self.resting.is_some_and(|until| until <= now) {
            self.resting = None;
            let _ = poller.modify(&self.listener, self.token, Interest::READ);
        }
        for client in &mut self.clients {
            if client.as_ref().is_some_and(|c| c.deadline <= now) {
                *client = None;
            }
        }
    }
}

impl Asked {
    /// Tells the client that no peer leads there.
    pub fn refuse(mut self) {
        let answer = self.negotiation.refused(Refusal::NetworkUnreachable);
        let _ = self.stream.write(&answer);
        let _ = self.stream.close_in_order();
    }

    /// Tells the client to go on; its socket, and what it has sent already.
    pub fn grant(mut self) -> Option<(Stream, Vec<u8>)> {
        let answer = self.negotiation.succeeded();
        let written = self.stream.write(&answer).ok()?;
        (written == answer.len()).then_some((self.stream, self.early))
    }
}
