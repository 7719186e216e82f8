//! The explicit proxy (R-LASTHOP): clients that say where they want to go, so that
//! nothing must be intercepted and no right is needed. A client is told "connected" when
//! the far side is, or at once where that is to be expected (`open`); if it then fails,
//! the client is reset.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};

use os::OsError;
use os::poll::{Interest, Poller};
use os::tcp::{Listener, Stream, TcpOptions};
use relay::{FlowId, ResetReason, Target};
use units::{Duration, HostShares, Instant};

use super::listeners::REST;
use crate::host::Host;
use crate::proxy_proto::{Negotiation, Refusal, Rest, Step};

/// Clients that have not said where to, at once. For more, one of the network that has the most
/// gives way: a host that says nothing holds up no other, under however many addresses.
const MAX_CLIENTS: usize = 1024;
/// A host that has no more of them is taken for one of many addresses of its network.
const FEW: usize = 8;
/// A client that has not said where to by then is dropped.
const PATIENCE: Duration = Duration::from_secs(30);

struct Client {
    stream: Stream,
    address: SocketAddr,
    negotiation: Negotiation,
    deadline: Instant,
}

/// A client that has said where it wants to go.
pub struct Asked {
    pub client: SocketAddr,
    pub target: Target,
    early: Vec<u8>,
    rest: Rest,
    stream: Stream,
    negotiation: Negotiation,
}

/// The listener and the clients that are still talking.
pub struct Proxy {
    listener: Listener,
    token: u64,
    first_token: u64,
    clients: Vec<Option<Client>>,
    /// The places of hosts, by the times when they have to have said where to.
    shares: HostShares<(Instant, usize)>,
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
        let (clients, shares) = (Vec::new(), HostShares::new(FEW));
        Ok(Proxy { listener, token, first_token: first_client, clients, shares, resting: None })
    }

    /// Takes the clients that have connected.
    pub fn accept(&mut self, now: Instant, poller: &Poller) {
        for _ in 0..64 {
            let accepted = match self.listener.accept() {
                Ok(accepted) => accepted,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return,
                Err(e) => {
                    crate::log!(Warn, "proxy clients cannot be accepted for now", error = e);
                    return self.rest(now, poller);
                }
            };
            let slot = self.slot_for(accepted.client.ip());
            let token = self.first_token + slot as u64;
            if poller.add(&accepted.stream, token, Interest::READ).is_ok() {
                let deadline = now + PATIENCE;
                self.shares.add(accepted.client.ip(), (deadline, slot));
                self.clients[slot] = Some(Client {
                    stream: accepted.stream,
                    address: accepted.client,
                    negotiation: Negotiation::new(),
                    deadline,
                });
            }
        }
    }

    /// A place for one more client of the host's.
    fn slot_for(&mut self, host: IpAddr) -> usize {
        if let Some(slot) = self.clients.iter().position(Option::is_none) {
            return slot;
        }
        if self.clients.len() < MAX_CLIENTS {
            self.clients.push(None);
            return self.clients.len() - 1;
        }
        let slot = self.shares.gives_way_to(host).map_or(0, |(_, slot)| *slot);
        self.take(slot);
        slot
    }

    /// The client leaves its place.
    fn take(&mut self, slot: usize) -> Option<Client> {
        let client = self.clients.get_mut(slot)?.take()?;
        self.shares.remove(client.address.ip(), &(client.deadline, slot));
        Some(client)
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
                self.take(slot);
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
                    self.take(slot);
                    return None;
                }
                Step::Connect { target, early, rest } => {
                    let client = self.take(slot)?;
                    poller.remove(&client.stream).ok()?;
                    let target = match target.host {
                        Host::Ip(ip) => Target::Address(SocketAddr::new(ip, target.port)),
                        Host::Name(name) => Target::Name(name, target.port),
                    };
                    let Client { stream, address: client, negotiation, .. } = client;
                    return Some(Asked { client, target, early, rest, stream, negotiation });
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
        for slot in 0..self.clients.len() {
            if self.clients[slot].as_ref().is_some_and(|c| c.deadline <= now) {
                self.take(slot);
            }
        }
    }
}

/// Clients whose flow the far side has not answered yet; as many as there are streams.
#[derive(Default)]
pub struct Waiting(BTreeMap<FlowId, Asked>);

impl Waiting {
    /// Keeps a client until the far side has answered. False, and its socket closed, if it
    /// cannot be watched.
    pub fn add(&mut self, poller: &Poller, flow: FlowId, asked: Asked) -> bool {
        let watched = poller.add(&asked.stream, flow.to_u64(), Interest::READ.edge()).is_ok();
        if watched {
            self.0.insert(flow, asked);
        }
        watched
    }

    /// The client that waits for `flow`, no longer watched.
    pub fn take(&mut self, poller: &Poller, flow: FlowId) -> Option<Asked> {
        let asked = self.0.remove(&flow)?;
        let _ = poller.remove(&asked.stream);
        Some(asked)
    }

    /// Does the client of `flow` wait on, or has it gone? `None` if it does not wait here.
    /// One that has ended its direction may have said all that it wants to say; if it is
    /// gone, the answer to it will show that.
    pub fn still_waits(&self, flow: FlowId) -> Option<bool> {
        let asked = self.0.get(&flow)?;
        let news = asked.stream.peek(&mut [0]);
        Some(news.map_or_else(|e| e.kind() == ErrorKind::WouldBlock, |_| true))
    }

    /// Drops all clients that wait; their flows.
    pub fn drop_all(&mut self) -> impl Iterator<Item = FlowId> + use<> {
        std::mem::take(&mut self.0).into_keys()
    }
}

impl Asked {
    /// Tells the client that there is no connection.
    pub fn refuse(mut self, why: Refusal) {
        let answer = self.negotiation.refused(why);
        let _ = self.stream.write(&answer);
        let _ = self.stream.close_in_order();
    }

    /// Tells the client to go on; its socket, what of its bytes is for the server, and the
    /// first of them.
    pub fn grant(mut self) -> Option<(Stream, Rest, Vec<u8>)> {
        let answer = self.negotiation.succeeded();
        let written = self.stream.write(&answer).ok()?;
        (written == answer.len()).then_some((self.stream, self.rest, self.early))
    }
}

/// What a client is told where the far side gave up for this reason.
pub fn refusal_of(reason: ResetReason) -> Refusal {
    match reason {
        ResetReason::Refused | ResetReason::HostReset => Refusal::Refused,
        ResetReason::Icmp(0 | 6 | 11) | ResetReason::Icmpv6(0) => Refusal::NetworkUnreachable,
        // The server itself says so, in place of a reset.
        ResetReason::Icmp(3) | ResetReason::Icmpv6(4) => Refusal::Refused,
        ResetReason::Icmp(9 | 10 | 13) | ResetReason::Icmpv6(1 | 5 | 6) | ResetReason::Denied => {
            Refusal::Forbidden
        }
        ResetReason::Unreachable | ResetReason::Icmp(_) | ResetReason::Icmpv6(_) => {
            Refusal::HostUnreachable
        }
        ResetReason::TimedOut => Refusal::TimedOut,
        ResetReason::NoSuchName => Refusal::UnknownName,
        ResetReason::Exhausted => Refusal::Overloaded,
        ResetReason::PeerRestarted
        | ResetReason::ShuttingDown
        | ResetReason::Protocol
        | ResetReason::NoSuchService => Refusal::Failed,
    }
}
