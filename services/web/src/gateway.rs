//! The gateway, for tasks that wait for its answers.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread;

use bentpipe_web::headers::Way;
use service::message::{Accepted, Incoming, LinkState};
use service::{Client, Error, Event, Reason, Request};
use tokio::sync::{Semaphore, mpsc, oneshot};

/// Requests that may wait for the gateway at once: their answers must fit into the socket, because
/// the gateway takes nothing while answers wait.
const MAX_OPEN: usize = 32;

/// The same of names that are looked up.
const MAX_LOOK_UPS: usize = 16;

/// Messages of the gateway that wait here; more wait in the socket.
const HEARD: usize = 64;

/// A socket, and of a connection its server's address.
type Answer = Result<(OwnedFd, Option<SocketAddr>), Reason>;

/// Those of a name.
type Addresses = Result<Vec<IpAddr>, Reason>;

/// The gateway that started this program.
pub struct Gateway {
    client: Arc<Client>,
    last: Cell<u64>,
    open: Semaphore,
    waiting: RefCell<BTreeMap<u64, oneshot::Sender<Answer>>>,
    looking: RefCell<BTreeMap<u64, oneshot::Sender<Addresses>>>,
    look_ups: Semaphore,
    peers: RefCell<BTreeMap<String, Peer>>,
}

#[derive(Clone, Copy, Default)]
struct Peer {
    /// It has this service now.
    usable: bool,
    /// Its link has a price for bytes.
    bills: bool,
}

/// What the gateway gives without being asked.
pub enum Given {
    /// A host's connection.
    Accepted(Accepted, OwnedFd),
    /// A stream of the peer's service.
    /// Its preface comes with it.
    Incoming(Incoming, Vec<u8>, OwnedFd),
    /// The operator's command.
    Command(u64, Vec<String>),
}

impl Gateway {
    /// Says hello.
    ///
    /// # Errors
    /// If there is no gateway, or it speaks another version.
    pub fn from_environment() -> Result<Gateway, Error> {
        let (last, waiting, looking, peers) = Default::default();
        let (open, look_ups) = (Semaphore::new(MAX_OPEN), Semaphore::new(MAX_LOOK_UPS));
        let client = Arc::new(Client::from_environment()?);
        Ok(Gateway { client, last, open, waiting, looking, look_ups, peers })
    }

    /// Hears the gateway until it ends. A thread waits for it: what tokio could watch is not a
    /// socket of this kind.
    ///
    /// # Errors
    /// If the socket fails.
    pub async fn hear(&self, mut give: impl FnMut(Given)) -> Result<(), Error> {
        let (hand, mut heard) = mpsc::channel(HEARD);
        let client = Arc::clone(&self.client);
        thread::spawn(move || listen(&client, &hand));
        while let Some(delivery) = heard.recv().await {
            let (event, bytes, socket) = delivery?;
            match (event, socket) {
                (Event::Accepted(it), Some(socket)) => give(Given::Accepted(it, socket)),
                (Event::Incoming(it), Some(socket)) => give(Given::Incoming(it, bytes, socket)),
                (Event::Command { request, words }, _) => give(Given::Command(request, words)),
                (event, socket) => self.note(event, socket),
            }
        }
        Ok(())
    }

    fn note(&self, event: Event, socket: Option<OwnedFd>) {
        let (request, answer) = match (event, socket) {
            (Event::Opened { request, .. }, Some(socket)) => (request, Ok((socket, None))),
            (Event::Connected { request, server, .. }, Some(socket)) => {
                (request, Ok((socket, Some(server))))
            }
            (Event::Resolved { request, addresses }, _) => {
                return self.tell_addresses(request, Ok(addresses));
            }
            (Event::Failed { request, reason }, _) => {
                if self.looking.borrow().contains_key(&request) {
                    return self.tell_addresses(request, Err(reason));
                }
                (request, Err(reason))
            }
            (Event::Link(link), _) => {
                let usable = link.service && link.state != LinkState::Down;
                let peer = Peer { usable, bills: link.price.is_some() };
                self.peers.borrow_mut().insert(link.peer, peer);
                return;
            }
            _ => return,
        };
        if let Some(waits) = self.waiting.borrow_mut().remove(&request) {
            // Who does not wait any more drops the socket, which resets it.
            let _ = waits.send(answer);
        }
    }

    fn tell_addresses(&self, request: u64, told: Addresses) {
        if let Some(waits) = self.looking.borrow_mut().remove(&request) {
            // Who does not wait any more needs none.
            let _ = waits.send(told);
        }
    }

    /// Has this peer the service, and can it be reached?
    pub fn serves(&self, peer: &str) -> bool {
        self.peers.borrow().get(peer).copied().unwrap_or_default().usable
    }

    /// Do bytes over the link to this peer cost money?
    pub fn bills(&self, peer: &str) -> bool {
        self.peers.borrow().get(peer).copied().unwrap_or_default().bills
    }

    /// A stream to the peer's service, in this class of its link.
    ///
    /// # Errors
    /// Why there is none.
    pub async fn open(
        &self,
        peer: &str,
        preface: &[u8],
        class: Option<&str>,
    ) -> Result<OwnedFd, Reason> {
        let (peer, class) = (peer.to_owned(), class.map(str::to_owned));
        let opened =
            self.ask(preface, |request| Request::Open { request, peer, class, client: None }).await;
        opened.map(|(socket, _)| socket)
    }

    /// A connection to a server, for a host behind `peer`.
    ///
    /// # Errors
    /// Why there is none.
    pub async fn connect(&self, peer: &str, way: Way) -> Result<OwnedFd, Reason> {
        let connected = self.connect_to(peer, way.from, way.to.to_string()).await;
        connected.map(|(socket, _)| socket)
    }

    /// A connection to a server by its name, for a host behind `peer`, and the server's address.
    ///
    /// # Errors
    /// Why there is none.
    pub async fn connect_by_name(
        &self,
        peer: &str,
        from: IpAddr,
        (name, port): (&str, u16),
    ) -> Result<(OwnedFd, SocketAddr), Reason> {
        let (socket, server) = self.connect_to(peer, from, format!("{name}:{port}")).await?;
        Ok((socket, server.ok_or(Reason::Protocol)?))
    }

    /// The addresses that a name has at this node.
    ///
    /// # Errors
    /// Why there are none.
    pub async fn resolve(&self, peer: &str, name: &str) -> Addresses {
        let _one = self.look_ups.acquire().await;
        let (told, when_told) = oneshot::channel();
        let request = self.number();
        self.looking.borrow_mut().insert(request, told);
        let (peer, name) = (peer.to_owned(), name.to_owned());
        let sent = self.client.send(&Request::Resolve { request, peer, name }, b"", None);
        if sent.is_err() {
            self.looking.borrow_mut().remove(&request);
            return Err(Reason::ShuttingDown);
        }
        when_told.await.unwrap_or(Err(Reason::ShuttingDown))
    }

    fn number(&self) -> u64 {
        self.last.set(self.last.get() + 1);
        self.last.get()
    }

    async fn connect_to(&self, peer: &str, from: IpAddr, target: String) -> Answer {
        let peer = peer.to_owned();
        // The server sees the host; its port is any, because connections outlive the host's.
        let source = Some((from, 0).into());
        self.ask(b"", |request| Request::Connect { request, peer, target, source }).await
    }

    async fn ask(&self, bytes: &[u8], request: impl FnOnce(u64) -> Request) -> Answer {
        let _one = self.open.acquire().await;
        let number = self.number();
        let (answers, answer) = oneshot::channel();
        self.waiting.borrow_mut().insert(number, answers);
        if self.client.send(&request(number), bytes, None).is_err() {
            self.waiting.borrow_mut().remove(&number);
            return Err(Reason::ShuttingDown);
        }
        answer.await.unwrap_or(Err(Reason::ShuttingDown))
    }

    /// Gives a host's connection back, with what was read of it.
    pub fn pass(&self, socket: OwnedFd, dscp: u8, read: &[u8]) {
        if let Err(why) = self.client.pass(socket, dscp, read) {
            eprintln!("a connection cannot be passed back and is reset: {why}");
        }
    }

    /// Answers the operator's command: with JSON, or why there is none.
    pub fn answer(&self, request: u64, answer: Result<String, String>) {
        let failed = answer.is_err();
        let text = answer.unwrap_or_else(|why| why);
        // Whoever asked hears in a moment that no answer comes.
        if let Err(why) =
            self.client.send(&Request::Told { request, failed }, text.as_bytes(), None)
        {
            eprintln!("a command cannot be answered: {why}");
        }
    }

    /// Tells the gateway what was counted.
    pub fn tell(&self, counters: BTreeMap<String, u64>) {
        // Without a gateway nobody wants to know.
        let _ = self.client.send(&Request::Stats { counters }, b"", None);
    }
}

type Heard = Result<(Event, Vec<u8>, Option<OwnedFd>), Error>;

/// Takes what the gateway says until it ends, or nobody hears it any more.
fn listen(client: &Client, hand: &mpsc::Sender<Heard>) {
    let mut room = service::room();
    loop {
        let heard = match client.next(&mut room) {
            Ok(None) => return,
            Ok(Some(it)) => Ok((it.event, it.bytes.to_vec(), it.socket)),
            Err(why) => Err(why),
        };
        let failed = heard.is_err();
        if hand.blocking_send(heard).is_err() || failed {
            return;
        }
    }
}
