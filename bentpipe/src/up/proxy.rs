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
use super::partings::Partings;
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
    /// Those that were refused.
    refused: Partings,
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
        let (refused, resting) = (Partings::default(), None);
        Ok(Proxy { listener, token, first_token: first_client, clients, shares, refused, resting })
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
    pub fn on_event(&mut self, now: Instant, poller: &Poller, token: u64) -> Option<Asked> {
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
                    let client = self.take(slot)?;
                    poller.remove(&client.stream).ok()?;
                    self.refused.add(now, client.stream);
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

    /// Tells a client that there is no connection.
    pub fn refuse(&mut self, now: Instant, asked: Asked, why: Refusal) {
        self.refused.add(now, asked.refuse(why));
    }

    /// When [`Proxy::handle_timeout`] is to be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let others = self.resting.into_iter().chain(self.refused.poll_timeout());
        self.clients.iter().flatten().map(|c| c.deadline).chain(others).min()
    }

    /// Drops clients whose time is up, and listens again after a rest.
    pub fn handle_timeout(&mut self, now: Instant, poller: &Poller) {
        self.refused.handle_timeout(now);
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

/// A shard's clients of the proxy.
#[derive(Default)]
pub struct Waiting {
    /// Those whose flow the far side has not answered yet; as many as there are streams.
    all: BTreeMap<FlowId, Asked>,
    refused: Partings,
}

impl Waiting {
    /// Keeps a client until the far side has answered. False, and its socket closed, if it
    /// cannot be watched.
    pub fn add(&mut self, poller: &Poller, flow: FlowId, asked: Asked) -> bool {
        let watched = poller.add(&asked.stream, flow.to_u64(), Interest::READ.edge()).is_ok();
        if watched {
            self.all.insert(flow, asked);
        }
        watched
    }

    /// The client that waits for `flow`, no longer watched.
    pub fn take(&mut self, poller: &Poller, flow: FlowId) -> Option<Asked> {
        let asked = self.all.remove(&flow)?;
        let _ = poller.remove(&asked.stream);
        Some(asked)
    }

    /// Does the client of `flow` wait on, or has it gone? `None` if it does not wait here.
    /// One that has ended its direction may have said all that it wants to say. One that has said
    /// nothing has given up: the link may be dark for hours, and it comes again each time.
    pub fn still_waits(&self, flow: FlowId) -> Option<bool> {
        let asked = self.all.get(&flow)?;
        let said = |n| n > 0 || !asked.early.is_empty();
        let news = asked.stream.peek(&mut [0]);
        Some(news.map_or_else(|e| e.kind() == ErrorKind::WouldBlock, said))
    }

    /// Drops all clients that wait; their flows.
    pub fn drop_all(&mut self) -> impl Iterator<Item = FlowId> + use<> {
        std::mem::take(&mut self.all).into_keys()
    }

    /// Tells a client that there is no connection.
    pub fn refuse(&mut self, now: Instant, asked: Asked, why: Refusal) {
        self.refused.add(now, asked.refuse(why));
    }

    /// When [`Waiting::handle_timeout`] is to be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.refused.poll_timeout()
    }

    /// Closes clients that were refused a moment ago.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.refused.handle_timeout(now);
    }
}

impl Asked {
    /// Tells the client that there is no connection; its socket.
    fn refuse(mut self, why: Refusal) -> Stream {
        let answer = self.negotiation.refused(why);
        let _ = self.stream.write(&answer);
        self.stream
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

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpStream;

    use os::poll::Events;

    use super::*;

    /// The client's answer, and whether it ended in good order.
    fn answer_to(said: &[u8]) -> (String, bool) {
        let mut poller = Poller::new().unwrap();
        let local = "127.0.0.1:0".parse().unwrap();
        let mut proxy = Proxy::open(local, &poller, 1, 2).unwrap();
        let mut client = TcpStream::connect(proxy.listener.local_addr()).unwrap();
        client.set_read_timeout(Some(std::time::Duration::from_millis(20))).unwrap();
        client.write_all(said).unwrap();
        let (mut events, mut got) = (Events::with_capacity(8), Vec::new());
        for turn in 0..100 {
            let now = Instant::ZERO + Duration::from_millis(10 * turn);
            poller.wait(&mut events, Some(Duration::ZERO)).unwrap();
            for event in events.iter() {
                match event.token {
                    1 => proxy.accept(now, &poller),
                    token => {
                        if let Some(asked) = proxy.on_event(now, &poller, token) {
                            proxy.refuse(now, asked, Refusal::Refused);
                        }
                    }
                }
            }
            proxy.handle_timeout(now, &poller);
            let mut room = [0; 1000];
            match client.read(&mut room) {
                Ok(0) => return (String::from_utf8(got).unwrap(), true),
                Ok(n) => got.extend_from_slice(&room[..n]),
                Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                Err(_) => break,
            }
        }
        (String::from_utf8(got).unwrap(), false)
    }

    #[test]
    fn a_client_that_is_refused_reads_the_answer_whatever_it_sends_behind_its_request() {
        let body = vec![b'x'; 100_000];
        let post =
            b"POST http://10.2.0.2/ HTTP/1.1\r\nHost: 10.2.0.2\r\nContent-Length: 100000\r\n\r\n";
        let connect = b"CONNECT 10.2.0.2:443 HTTP/1.1\r\nHost: 10.2.0.2:443\r\n\r\n";
        for head in [&post[..], connect, b"GET http://10.2.0.2/ HTTP/1.1\r\nX: "] {
            let (answer, ends) = answer_to(&[head, &body].concat());
            let head = String::from_utf8_lossy(head);
            assert!(
                answer.starts_with("HTTP/1.1 ") && answer.contains("\r\n\r\n"),
                "{head}: {answer}"
            );
            assert!(ends, "{head}: a reset");
        }
    }

    #[test]
    fn a_client_that_ends_before_it_is_answered_has_given_up_unless_it_has_said_something() {
        let connect = "CONNECT 10.2.0.2:443 HTTP/1.1\r\n\r\n";
        let get = "GET http://10.2.0.2/ HTTP/1.1\r\nHost: 10.2.0.2\r\n\r\n";
        for (said, more, waits) in [(connect, "", false), (connect, "hello", true), (get, "", true)]
        {
            let mut poller = Poller::new().unwrap();
            let mut proxy = Proxy::open("127.0.0.1:0".parse().unwrap(), &poller, 1, 2).unwrap();
            let mut client = TcpStream::connect(proxy.listener.local_addr()).unwrap();
            client.write_all(said.as_bytes()).unwrap();
            let (mut events, mut waiting) = (Events::with_capacity(8), Waiting::default());
            let flow = FlowId::from_u64(7);
            while waiting.all.is_empty() {
                poller.wait(&mut events, Some(Duration::from_secs(20))).unwrap();
                for event in events.iter() {
                    match event.token {
                        1 => proxy.accept(Instant::ZERO, &poller),
                        token => {
                            if let Some(asked) = proxy.on_event(Instant::ZERO, &poller, token) {
                                assert!(waiting.add(&poller, flow, asked));
                            }
                        }
                    }
                }
            }
            assert_eq!(waiting.still_waits(flow), Some(true), "{said}");
            client.write_all(more.as_bytes()).unwrap();
            client.shutdown(std::net::Shutdown::Write).unwrap();
            for _ in 0..if waits { 20 } else { 2_000 } {
                std::thread::sleep(std::time::Duration::from_millis(10));
                if waiting.still_waits(flow) == Some(false) {
                    break;
                }
            }
            assert_eq!(waiting.still_waits(flow), Some(waits), "{said}{more}");
        }
    }

    fn connect_as(host: [u8; 4], to: SocketAddr) -> TcpStream {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None);
        let socket = socket.expect("a socket");
        socket.bind(&SocketAddr::from((host, 0)).into()).expect("its address");
        socket.connect(&to.into()).expect("a place");
        TcpStream::from(socket)
    }

    /// One turn of the gateway's loop: how many clients had a turn, and how many of them have said
    /// where to, and were told to go on.
    fn turn(poller: &mut Poller, proxy: &mut Proxy) -> (usize, usize) {
        let (mut events, mut clients, mut granted) = (Events::with_capacity(64), 0, 0);
        poller.wait(&mut events, Some(Duration::from_secs(20))).unwrap();
        assert!(events.iter().next().is_some(), "nothing happens any more");
        for event in events.iter() {
            if event.token == 1 {
                proxy.accept(Instant::ZERO, poller);
            } else {
                clients += 1;
                let asked = proxy.on_event(Instant::ZERO, poller, event.token);
                granted += usize::from(asked.is_some_and(|asked| asked.grant().is_some()));
            }
        }
        (clients, granted)
    }

    /// 49 hosts whose clients are slow to say where to, beside one that says nothing.
    #[test]
    fn a_host_that_fills_all_places_costs_no_other_a_refusal_or_a_turn() {
        const OTHERS: usize = 49;
        os::proc::raise_descriptor_limit().unwrap();
        let mut poller = Poller::new().unwrap();
        let mut proxy = Proxy::open("127.0.0.1:0".parse().unwrap(), &poller, 1, 2).unwrap();
        let to = proxy.listener.local_addr();
        let mut silent = Vec::new();
        let mut fill = |poller: &mut Poller, proxy: &mut Proxy| {
            for _ in 0..MAX_CLIENTS / 32 + 1 {
                silent.extend((0..32).map(|_| connect_as([127, 0, 0, 2], to)));
                assert_eq!(turn(poller, proxy).1, 0);
            }
        };
        fill(&mut poller, &mut proxy);
        let others = (0..OTHERS as u8).map(|n| connect_as([127, 0, 0, 3 + n], to));
        let mut others: Vec<_> = others.collect();
        // More than there are places, before the others say a word.
        fill(&mut poller, &mut proxy);
        assert_eq!(proxy.shares.len(), MAX_CLIENTS);
        for client in &mut others {
            client.write_all(b"CONNECT 10.2.0.2:443 HTTP/1.1\r\n\r\n").expect("it has its place");
        }
        let mut granted = 0;
        while granted < OTHERS {
            let (clients, more) = turn(&mut poller, &mut proxy);
            assert_eq!(clients, more, "a turn that serves nobody, after {granted} of {OTHERS}");
            granted += more;
        }
        for mut client in others {
            let mut answer = [0; 12];
            client.read_exact(&mut answer).expect("an answer");
            assert_eq!(&answer, b"HTTP/1.1 200");
        }
    }
}
