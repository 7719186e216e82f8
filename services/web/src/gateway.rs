//! The gateway, for tasks that wait for its answers.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use bentpipe_web::headers::Way;
use service::message::{Accepted, Denied, Incoming, LinkState};
use service::{Client, Error, Event, Reason, Request, Takes};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::time::timeout;
use units::one_host;

use crate::busy::{Busy, UnderWay};
use crate::local::unless;
use crate::shares::{Place, Places};

/// Requests that may wait for the gateway at once, of one host, of all hosts of a peer, and in all.
/// A server that does not answer keeps one for as long as the system tries to connect, whether
/// somebody still waits for it or not.
const OPEN_OF_HOST: usize = 32;
const OPEN_OF_PEER: usize = 256;
const MAX_OPEN: usize = 1024;
/// Connections for objects that no host has asked for yet take this part of a host's and a peer's
/// at most: a page may name servers that never answer.
const AHEAD: usize = 2;

/// Names that are looked up at once for a host: as many as the gateway does for a peer, so that a
/// host waits for its own slow names.
const LOOK_UPS_OF_HOST: usize = 2;
/// The same for a peer and in all, of which each peer has a part and leaves some to the next.
const LOOK_UPS_OF_PEER: usize = 8;
const MAX_LOOK_UPS: usize = 32;

/// An answer over the link is late after this time and so many round trips.
const LATE: Duration = Duration::from_secs(5);
const ROUND_TRIPS: u32 = 4;

/// Who loads a page asks for the next of its objects within this time.
const NEXT: Duration = Duration::from_secs(2);

/// Messages of the gateway that wait here; more wait in the socket.
const HEARD: usize = 64;

/// A socket, of a connection or of a stream.
type Answer = Result<Connected, Reason>;

/// A connection to a server. It is to end with the channel: then its peer may not reach the server
/// any more. Of a stream the channel says nothing.
#[derive(Debug)]
pub struct Connected {
    pub socket: OwnedFd,
    pub may_stand: oneshot::Receiver<Infallible>,
}

/// One that stands, unless the other end of its channel is gone.
struct Standing {
    peer: String,
    server: IpAddr,
    may_stand: oneshot::Sender<Infallible>,
}

/// Those of a name.
type Addresses = Result<Vec<IpAddr>, Reason>;

/// The gateway that started this program.
pub struct Gateway {
    client: Arc<Client>,
    said: std::sync::mpsc::Sender<Said>,
    last: Cell<u64>,
    open: Arc<Semaphore>,
    /// Of hosts and of peers, as long as they have requests.
    places: Limits<Asker>,
    /// The same of what is asked ahead of hosts.
    ahead: Limits<Asker>,
    waiting: RefCell<BTreeMap<u64, Waiting<Answer>>>,
    looking: RefCell<BTreeMap<u64, LookUp>>,
    look_ups: Rc<Places>,
    /// One of them is over.
    look_up_over: Notify,
    look_ups_of: Limits<Asker>,
    standing: RefCell<Vec<Standing>>,
    peers: RefCell<BTreeMap<String, Peer>>,
    /// Something was told of links.
    links_changed: Notify,
    /// Requests under way, and exchanges that are served.
    requests: Busy,
    served: Busy,
    /// Exchanges are to end.
    ends: Cell<bool>,
    to_end: Notify,
}

/// Who asks: a host behind a peer, or for the peer itself.
type Asker = (String, Option<IpAddr>);

/// Places of each, as long as it has requests.
type Limits<Of> = RefCell<BTreeMap<Of, Arc<Semaphore>>>;

/// A request that the gateway has not answered yet. Who asked may have gone: the gateway works at
/// it still, and its places are taken until it answers.
struct Waiting<T> {
    answer: oneshot::Sender<T>,
    taken: Taken,
}

/// The same of a name.
struct LookUp {
    answer: oneshot::Sender<Addresses>,
    _places: Vec<OwnedSemaphorePermit>,
    _place: Place,
}

/// Places, and the peer and its server for which they are.
struct Taken {
    _places: Vec<OwnedSemaphorePermit>,
    server: Option<(String, SocketAddr)>,
}

/// A message to the gateway.
type Said = (Request, Vec<u8>, Option<OwnedFd>);

#[derive(Clone, Copy, Default)]
struct Peer {
    /// It has this service, as far as is known.
    has_service: bool,
    /// Nothing goes over its link, until something is to and a line is raised for it.
    is_down: bool,
    /// Nothing is heard over its link now, whether it has a session or not.
    is_dark: bool,
    /// From here to there and back.
    round_trip: Duration,
    /// Its link has a price for bytes, or for the time that they take.
    bills: bool,
    /// Its link does not compress what crosses.
    is_uncompressed: bool,
    /// Bits a second of its link; 0 if nothing is known.
    rate: u64,
}

/// What the gateway gives without being asked.
pub enum Given {
    /// A host's connection, and what was read of it.
    Accepted(Accepted, Vec<u8>, OwnedFd),
    /// A stream of the peer's service.
    /// Its preface comes with it.
    Incoming(Incoming, Vec<u8>, OwnedFd),
    /// The operator's command.
    Command(u64, Vec<String>),
    /// The peer may not reach these servers any more. Connections to them end already.
    Narrowed(String, Denied),
}

impl Gateway {
    /// Says hello.
    ///
    /// # Errors
    /// If there is no gateway, or it speaks another version.
    pub fn from_environment() -> Result<Gateway, Error> {
        let takes = Takes { offline: true, proxied: true, ..Takes::default() };
        Ok(Gateway::new(Client::from_environment_taking(takes)?))
    }

    fn new(client: Client) -> Gateway {
        let (last, places, ahead, waiting, looking) = Default::default();
        let (look_ups_of, standing, peers) = Default::default();
        let (links_changed, to_end, look_up_over) = Default::default();
        let (requests, served, ends) = Default::default();
        let open = Arc::new(Semaphore::new(MAX_OPEN));
        let look_ups = Places::new(MAX_LOOK_UPS);
        let client = Arc::new(client);
        let (said, heard) = std::sync::mpsc::channel();
        let speaker = Arc::clone(&client);
        thread::spawn(move || speak(&speaker, &heard));
        Gateway {
            client,
            said,
            last,
            open,
            places,
            ahead,
            waiting,
            looking,
            look_ups,
            look_up_over,
            look_ups_of,
            standing,
            peers,
            links_changed,
            requests,
            served,
            ends,
            to_end,
        }
    }

    /// Hears the gateway until it ends, or all is done that was to be done before that. A thread
    /// waits for it: what tokio could watch is not a socket of this kind.
    ///
    /// # Errors
    /// If the socket fails.
    pub async fn hear(&self, mut give: impl FnMut(Given)) -> Result<(), Error> {
        let (hand, mut heard) = mpsc::channel(HEARD);
        let client = Arc::clone(&self.client);
        thread::spawn(move || listen(&client, &hand));
        let mut stops = false;
        loop {
            let delivery = match stops {
                true => unless(heard.recv(), self.finish()).await.flatten(),
                false => heard.recv().await,
            };
            let Some(delivery) = delivery else { return Ok(()) };
            let (event, bytes, socket) = delivery?;
            match (event, socket) {
                (Event::Stop, _) => stops = true,
                (Event::Accepted(it), Some(socket)) => give(Given::Accepted(it, bytes, socket)),
                (Event::Incoming(it), Some(socket)) => give(Given::Incoming(it, bytes, socket)),
                (Event::Command { request, words }, _) => give(Given::Command(request, words)),
                (Event::Narrowed { peer, denied }, _) => {
                    self.narrow(&peer, &denied);
                    give(Given::Narrowed(peer, denied));
                }
                // Here and not in the thread, which hears on where nothing is done any more.
                (Event::Ping, _) => self.say(Request::Pong, b"", None),
                (event, socket) => self.note(event, socket),
            }
        }
    }

    /// A request of a host or a peer is under way.
    pub fn begin_request(&self) -> UnderWay {
        self.requests.begin()
    }

    /// An exchange of a peer's is served, until this is dropped.
    pub fn begin_serving(&self) -> UnderWay {
        self.served.begin()
    }

    /// Waits until exchanges are to end in good order.
    pub async fn ends(&self) {
        loop {
            let told = self.to_end.notified();
            if self.ends.get() {
                return;
            }
            told.await;
        }
    }

    /// Waits until all is done. Of what a peer asked for it is known when it has ended the
    /// exchange.
    async fn finish(&self) {
        self.requests.rests(NEXT).await;
        self.ends.set(true);
        self.to_end.notify_waiters();
        self.served.rests(Duration::ZERO).await;
    }

    fn note(&self, event: Event, socket: Option<OwnedFd>) {
        let (request, answer) = match (event, socket) {
            (Event::Opened { request, .. } | Event::Connected { request, .. }, Some(socket)) => {
                (request, Ok(socket))
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
                let peer = Peer {
                    has_service: link.service,
                    is_down: link.state == LinkState::Down,
                    is_dark: link.state != LinkState::Up,
                    round_trip: Duration::from_micros(link.rtt_us),
                    bills: link.price.is_some() || link.billed_by_time,
                    is_uncompressed: link.uncompressed,
                    rate: link.rate,
                };
                self.peers.borrow_mut().insert(link.peer, peer);
                return self.links_changed.notify_waiters();
            }
            _ => return,
        };
        if let Some(Waiting { answer: who, taken }) = self.waiting.borrow_mut().remove(&request) {
            let connected = |socket| Connected { socket, may_stand: self.stand(taken.server) };
            // Who does not wait any more drops the socket, which resets it.
            let _ = who.send(answer.map(connected));
        }
    }

    /// Connections to these servers for the peer end.
    fn narrow(&self, peer: &str, denied: &Denied) {
        let stays = |it: &Standing| it.peer != peer || !denied.holds(it.server);
        self.standing.borrow_mut().retain(stays);
    }

    /// A connection to the server stands, until what is given is dropped.
    fn stand(&self, server: Option<(String, SocketAddr)>) -> oneshot::Receiver<Infallible> {
        let (end, may_stand) = oneshot::channel();
        if let Some((peer, server)) = server {
            let mut standing = self.standing.borrow_mut();
            if standing.len() >= 64 && standing.len().is_power_of_two() {
                standing.retain(|it| !it.may_stand.is_closed());
            }
            standing.push(Standing { peer, server: server.ip(), may_stand: end });
        }
        may_stand
    }

    fn tell_addresses(&self, request: u64, told: Addresses) {
        let over = self.looking.borrow_mut().remove(&request);
        // Its place is free before others hear of that.
        if let Some(it) = over {
            // Who does not wait any more needs none.
            let _ = it.answer.send(told);
        }
        self.look_up_over.notify_waiters();
    }

    fn peer(&self, name: &str) -> Peer {
        self.peers.borrow().get(name).copied().unwrap_or_default()
    }

    /// Has this peer the service, or is it known only when the link is up?
    pub fn serves(&self, peer: &str) -> bool {
        let peer = self.peer(peer);
        peer.has_service || peer.is_down
    }

    /// Is the link down?
    pub fn is_down(&self, peer: &str) -> bool {
        self.peer(peer).is_down
    }

    /// Does the link carry nothing now, although it may have a session?
    pub fn is_dark(&self, peer: &str) -> bool {
        self.peer(peer).is_dark
    }

    /// Waits until the link carries nothing, or an answer over it is late.
    pub async fn is_late(&self, peer: &str) {
        let dark = async {
            loop {
                let changed = self.links_changed.notified();
                if self.is_dark(peer) {
                    return;
                }
                changed.await;
            }
        };
        // Either is what is waited for.
        let _ = timeout(LATE + ROUND_TRIPS * self.peer(peer).round_trip, dark).await;
    }

    /// Is the link down, and not known whether the peer has the service? Then a host's request can
    /// only be answered from what is kept.
    pub fn is_alone(&self, peer: &str) -> bool {
        let peer = self.peer(peer);
        peer.is_down && !peer.has_service
    }

    /// Waits until the link is up, for so long at most; is it?
    pub async fn comes_up(&self, peer: &str, within: Duration) -> bool {
        let up = async {
            loop {
                let changed = self.links_changed.notified();
                if !self.is_down(peer) {
                    return;
                }
                changed.await;
            }
        };
        timeout(within, up).await.is_ok()
    }

    /// Do bytes over the link to this peer cost money?
    pub fn bills(&self, peer: &str) -> bool {
        self.peer(peer).bills
    }

    /// Does all that crosses the link to the peer cross as it is?
    pub fn is_uncompressed(&self, peer: &str) -> bool {
        self.peer(peer).is_uncompressed
    }

    /// What the link to this peer sends in 20 ms, in bytes. `None`: nothing is known of it.
    pub fn in_20_ms(&self, peer: &str) -> Option<u64> {
        Some(self.peer(peer).rate / 8 / 50).filter(|bytes| *bytes > 0)
    }

    /// What the link to this peer sends, in bits per second. 0: nothing is known of it.
    pub fn rate(&self, peer: &str) -> u64 {
        self.peer(peer).rate
    }

    /// The round trip to this peer, as far as it is known.
    pub fn round_trip(&self, peer: &str) -> Duration {
        self.peer(peer).round_trip
    }

    /// A stream to the peer's service.
    ///
    /// # Errors
    /// Why there is none.
    pub async fn open(&self, peer: &str, preface: &[u8]) -> Result<OwnedFd, Reason> {
        let (asker, peer) = ((peer.to_owned(), None), peer.to_owned());
        let taken = Taken { _places: self.take_places(&asker).await, server: None };
        let open = |request| Request::Open { request, peer, class: None, client: None };
        Ok(self.ask(taken, preface, open).await?.socket)
    }

    /// A connection to a server, for a host behind `peer`.
    ///
    /// # Errors
    /// Why there is none.
    pub async fn connect(&self, peer: &str, way: Way) -> Result<Connected, Reason> {
        let places = self.take_places(&(peer.to_owned(), Some(way.from))).await;
        self.connect_now(places, peer, way).await
    }

    /// The same for an object that the host has not asked for yet. A server is not tried that
    /// somebody has given up waiting for, while the system still tries to connect.
    ///
    /// # Errors
    /// Why there is none.
    pub async fn connect_ahead(&self, peer: &str, way: Way) -> Result<Connected, Reason> {
        let asker = (peer.to_owned(), Some(way.from));
        let server = (peer.to_owned(), way.to);
        let is_given_up = |it: &Waiting<Answer>| {
            it.answer.is_closed() && it.taken.server.as_ref() == Some(&server)
        };
        if self.waiting.borrow().values().any(is_given_up) {
            return Err(Reason::TimedOut);
        }
        let of_host = place(&self.ahead, &asker, OPEN_OF_HOST / AHEAD);
        let of_peer = place(&self.ahead, &(peer.to_owned(), None), OPEN_OF_PEER / AHEAD);
        let mut places = take(of_host).await;
        places.extend(take(of_peer).await);
        places.extend(self.take_places(&asker).await);
        self.connect_now(places, peer, way).await
    }

    async fn connect_now(&self, places: Vec<OwnedSemaphorePermit>, peer: &str, way: Way) -> Answer {
        let (peer, target) = (peer.to_owned(), way.to.to_string());
        let taken = Taken { _places: places, server: Some((peer.clone(), way.to)) };
        // The server sees the host; its port is any, because connections outlive the host's.
        let source = Some((way.from, 0).into());
        self.ask(taken, b"", |request| Request::Connect { request, peer, target, source }).await
    }

    /// The addresses that a name has at this node, which a host behind the peer wants to know.
    ///
    /// # Errors
    /// Why there are none.
    pub async fn resolve(&self, peer: &str, host: IpAddr, name: &str) -> Addresses {
        let asker = (peer.to_owned(), Some(one_host(host)));
        let of_host = place(&self.look_ups_of, &asker, LOOK_UPS_OF_HOST);
        // The host's place first: others do not wait behind its names.
        let mut places = take(of_host).await;
        let of_peer = place(&self.look_ups_of, &(asker.0, None), LOOK_UPS_OF_PEER);
        places.extend(take(of_peer).await);
        let place = self.look_up_place(&peer.into()).await;
        let (answer, when_told) = oneshot::channel();
        let request = self.number();
        self.looking
            .borrow_mut()
            .insert(request, LookUp { answer, _places: places, _place: place });
        let (peer, name) = (peer.to_owned(), name.to_owned());
        let ask = Request::Resolve { request, peer, name };
        if service::packet::encode(&ask, b"").is_err() {
            self.tell_addresses(request, Err(Reason::Invalid));
            return Err(Reason::Invalid);
        }
        self.say(ask, b"", None);
        when_told.await.unwrap_or(Err(Reason::ShuttingDown))
    }

    /// One for a look-up, when the peer may have one more.
    async fn look_up_place(&self, peer: &Rc<str>) -> Place {
        loop {
            let over = self.look_up_over.notified();
            if let Some(place) = self.look_ups.take(peer, 1) {
                return place;
            }
            over.await;
        }
    }

    /// Tells another service of this node something of a peer, if there is such a service.
    pub fn hint(&self, service: &str, peer: &str, bytes: &[u8]) {
        let hint = Request::Hint { service: service.to_owned(), peer: peer.to_owned() };
        if service::packet::encode(&hint, bytes).is_ok() {
            self.say(hint, bytes, None);
        }
    }

    fn number(&self) -> u64 {
        self.last.set(self.last.get() + 1);
        self.last.get()
    }

    /// Places of a host's, where one asks, of its peer's, and of all.
    async fn take_places(&self, asker: &Asker) -> Vec<OwnedSemaphorePermit> {
        // The host's place first: who has many requests waits before he takes others' places.
        let host = asker.1.map(|_| place(&self.places, asker, OPEN_OF_HOST));
        let peer = place(&self.places, &(asker.0.clone(), None), OPEN_OF_PEER);
        let mut places = Vec::new();
        for limit in host.into_iter().chain([peer, self.open.clone()]) {
            places.extend(take(limit).await);
        }
        places
    }

    async fn ask(
        &self,
        taken: Taken,
        bytes: &[u8],
        request: impl FnOnce(u64) -> Request,
    ) -> Answer {
        let number = self.number();
        let (answer, when_answered) = oneshot::channel();
        self.waiting.borrow_mut().insert(number, Waiting { answer, taken });
        let request = request(number);
        if service::packet::encode(&request, bytes).is_err() {
            self.waiting.borrow_mut().remove(&number);
            return Err(Reason::Invalid);
        }
        self.say(request, bytes, None);
        when_answered.await.unwrap_or(Err(Reason::ShuttingDown))
    }

    /// Gives a host's connection back, with what was read of it.
    pub fn pass(&self, socket: OwnedFd, dscp: u8, read: &[u8]) {
        self.say(Request::Pass { dscp }, read, Some(socket));
    }

    /// Answers the operator's command: with JSON, or why there is none.
    pub fn answer(&self, request: u64, answer: Result<String, String>) {
        let failed = answer.is_err();
        let text = answer.unwrap_or_else(|why| why);
        self.say(Request::Told { request, failed }, text.as_bytes(), None);
    }

    /// Tells the gateway what was counted.
    pub fn tell(&self, counters: BTreeMap<String, u64>) {
        self.say(Request::Stats { counters }, b"", None);
    }

    /// Says something, when the gateway takes it. Whoever hears the gateway must not wait for it
    /// to hear: it takes nothing while answers wait.
    fn say(&self, request: Request, bytes: &[u8], socket: Option<OwnedFd>) {
        // The thread ends with the gateway, and so does this program.
        let _ = self.said.send((request, bytes.to_vec(), socket));
    }
}

/// The places of one; those of whom nothing is asked are forgotten.
fn place<Of: Ord + Clone>(all: &Limits<Of>, of: &Of, most: usize) -> Arc<Semaphore> {
    let mut all = all.borrow_mut();
    if let Some(place) = all.get(of) {
        return place.clone();
    }
    all.retain(|_, place| Arc::strong_count(place) > 1);
    all.entry(of.clone()).or_insert_with(|| Arc::new(Semaphore::new(most))).clone()
}

/// One of these, when there is one.
async fn take(places: Arc<Semaphore>) -> Vec<OwnedSemaphorePermit> {
    // They are never closed.
    places.acquire_owned().await.into_iter().collect()
}

/// Says what there is to say, until nobody says anything any more.
fn speak(client: &Client, said: &std::sync::mpsc::Receiver<Said>) {
    for (request, bytes, socket) in said {
        // A connection that is not passed is reset, and who asked hears that no answer comes.
        if let Err(why) = client.send(&request, &bytes, socket.as_ref().map(AsFd::as_fd)) {
            eprintln!("the gateway does not hear: {why}");
        }
    }
}

type Heard = Result<(Event, Vec<u8>, Option<OwnedFd>), Error>;

/// Takes what the gateway says until it ends, or nobody hears it any more.
fn listen(client: &Client, hand: &mpsc::Sender<Heard>) {
    let mut room = service::room();
    loop {
        let heard = match client.next_or_ping(&mut room) {
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

#[cfg(test)]
mod tests {
    use std::io::IoSlice;

    use os::seqpacket::SeqPacket;
    use service::packet;
    use tokio::task::{LocalSet, spawn_local};
    use tokio::time::timeout;

    use super::*;

    /// A gateway's service that has been greeted, and what it runs on.
    fn started() -> (SeqPacket, Rc<Gateway>, tokio::runtime::Runtime) {
        let (ours, theirs) = SeqPacket::pair().unwrap();
        say(&ours, &Event::Hello { version: service::VERSION, service: "web".into() });
        let gateway = Rc::new(Gateway::new(Client::new(theirs).unwrap()));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        (ours, gateway, runtime)
    }

    fn say(gateway: &SeqPacket, event: &Event) {
        let packet = packet::encode(event, b"").unwrap();
        gateway.send(&[IoSlice::new(&packet)], &[], true).unwrap();
    }

    /// A gateway that refuses what is asked for the peer "ship", and leaves all others waiting.
    fn answer(gateway: &SeqPacket) {
        let mut room = service::room();
        while let Ok(got) = gateway.receive(&mut room, true)
            && got.len > 0
        {
            let (request, _) = packet::decode(&room[..got.len]).unwrap();
            if let Request::Connect { request, peer, .. } = request
                && peer == "ship"
            {
                say(gateway, &Event::Failed { request, reason: Reason::Refused });
            }
        }
    }

    #[test]
    fn a_ping_is_answered_while_work_is_done_and_not_by_a_thread_beside_it() {
        let (ours, theirs) = SeqPacket::pair().unwrap();
        say(&ours, &Event::Hello { version: service::VERSION, service: "web".into() });
        let gateway = Rc::new(Gateway::new(Client::new(theirs).unwrap()));
        let mut room = service::room();
        ours.receive(&mut room, true).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        LocalSet::new().block_on(&runtime, async {
            let hearing = Rc::clone(&gateway);
            spawn_local(async move { hearing.hear(|_| ()).await });
            tokio::task::yield_now().await;
            say(&ours, &Event::Ping);
            // This one stands still.
            thread::sleep(Duration::from_millis(50));
            assert!(ours.receive(&mut room, false).is_err(), "nothing is said");
            for _ in 0..3000 {
                tokio::time::sleep(Duration::from_millis(10)).await;
                if let Ok(got) = ours.receive(&mut room, false) {
                    let said = packet::decode::<Request>(&room[..got.len]).unwrap().0;
                    return assert_eq!(said, Request::Pong);
                }
            }
            panic!("no pong");
        });
    }

    #[test]
    fn what_the_gateway_is_asked_has_its_place_until_the_gateway_answers() {
        let (ours, gateway, runtime) = started();
        LocalSet::new().block_on(&runtime, async {
            let hears = gateway.clone();
            spawn_local(async move { hears.hear(|_| {}).await.unwrap() });
            for n in 0..2000_u32 {
                let (to, from) = ("10.2.0.2:80".parse().unwrap(), [10, 1, 1, (n / 8) as u8].into());
                let asking = gateway.connect("evil", Way { to, from });
                // Who asked goes away.
                let _ = timeout(Duration::from_micros(100), asking).await;
                let looking = gateway.resolve("evil", from, "a.test");
                let _ = timeout(Duration::from_micros(100), looking).await;
            }
            assert_eq!(gateway.waiting.borrow().len(), OPEN_OF_PEER);
            assert_eq!(gateway.looking.borrow().len(), LOOK_UPS_OF_PEER);
            let (mut room, mut asked) = (service::room(), Vec::new());
            // A thread says them.
            let all_asked = async {
                while asked.len() < OPEN_OF_PEER + LOOK_UPS_OF_PEER {
                    let Ok(got) = ours.receive(&mut room, false) else {
                        tokio::time::sleep(Duration::from_millis(1)).await;
                        continue;
                    };
                    match packet::decode::<Request>(&room[..got.len]).unwrap().0 {
                        Request::Connect { request, .. } | Request::Resolve { request, .. } => {
                            asked.push(request);
                        }
                        _ => {}
                    }
                }
            };
            timeout(Duration::from_secs(20), all_asked).await.expect("the gateway is asked");
            for request in asked {
                say(&ours, &Event::Failed { request, reason: Reason::Refused });
                tokio::task::yield_now().await;
            }
            let all_heard = async {
                while gateway.open.available_permits() < MAX_OPEN {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            };
            timeout(Duration::from_secs(20), all_heard).await.expect("they have no place any more");
        });
    }

    #[test]
    fn peers_whose_names_have_no_answers_leave_a_look_up_to_the_next() {
        let (ours, gateway, runtime) = started();
        LocalSet::new().block_on(&runtime, async {
            let (peers, moment) = (["evil", "worse", "worst", "ship"], Duration::from_millis(1));
            for (n, peer) in peers.into_iter().enumerate() {
                for host in 0..LOOK_UPS_OF_PEER {
                    let looking =
                        gateway.resolve(peer, [10, n as u8, 1, host as u8].into(), "a.test");
                    assert!(timeout(moment, looking).await.is_err(), "nobody answers");
                }
            }
            let its = |peer: &str| gateway.look_ups.taken_by(&peer.into());
            assert!(its("ship") >= 2 && its("evil") == LOOK_UPS_OF_PEER, "{}", its("ship"));
            // Who waits for one gets it when another is over.
            let hears = gateway.clone();
            spawn_local(async move { hears.hear(|_| {}).await.unwrap() });
            let waits = gateway.clone();
            let waiting =
                spawn_local(
                    async move { waits.resolve("evil", [10, 0, 1, 99].into(), "a.test").await },
                );
            let all_told = async {
                while !waiting.is_finished() {
                    let open: Vec<u64> = gateway.looking.borrow().keys().copied().collect();
                    for request in open {
                        say(&ours, &Event::Failed { request, reason: Reason::NoSuchName });
                    }
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                waiting.await
            };
            let told = timeout(Duration::from_secs(20), all_told).await.expect("it is answered");
            assert_eq!(told.unwrap(), Err(Reason::NoSuchName));
            assert_eq!(its("ship") + its("evil"), 0);
        });
    }

    #[test]
    fn a_connection_stands_until_its_peer_may_not_reach_the_server_any_more() {
        let (ours, theirs) = SeqPacket::pair().unwrap();
        say(&ours, &Event::Hello { version: service::VERSION, service: "web".into() });
        let gateway = Gateway::new(Client::new(theirs).unwrap());
        let connected = |peer: &str, to: &str| {
            let (answer, mut when) = oneshot::channel();
            let server = Some((peer.to_owned(), to.parse().unwrap()));
            let taken = Taken { _places: vec![], server };
            let request = gateway.number();
            gateway.waiting.borrow_mut().insert(request, Waiting { answer, taken });
            let (server, socket) = (to.parse().unwrap(), SeqPacket::pair().unwrap().0.into());
            gateway.note(Event::Connected { request, local: server, server }, Some(socket));
            when.try_recv().unwrap().unwrap()
        };
        let ended = |it: &mut Connected| {
            matches!(it.may_stand.try_recv(), Err(oneshot::error::TryRecvError::Closed))
        };
        let mut all = [("ship", "10.2.0.2:80"), ("ship", "10.2.0.3:80"), ("boat", "10.2.0.2:443")]
            .map(|(peer, to)| connected(peer, to));
        assert_eq!(all.each_mut().map(ended), [false; 3]);
        let denied = Denied(vec!["10.2.0.2/32".parse().unwrap()]);
        gateway.narrow("ship", &denied);
        assert_eq!(all.each_mut().map(ended), [true, false, false]);
        // Those that are over are forgotten.
        for _ in 0..500 {
            drop(connected("ship", "10.2.0.3:80"));
        }
        assert!(gateway.standing.borrow().len() <= 256, "{}", gateway.standing.borrow().len());
        assert_eq!(all.each_mut().map(ended), [true, false, false]);
    }

    #[test]
    fn what_is_asked_ahead_of_a_host_leaves_places_to_the_host() {
        let (ours, gateway, runtime) = started();
        LocalSet::new().block_on(&runtime, async {
            let way = |server: u8, host: u8| Way {
                to: ([203, 0, 113, server], 80).into(),
                from: [10, 1, 0, host].into(),
            };
            let moment = Duration::from_millis(1);
            for n in 0..100 {
                let asking = gateway.connect_ahead("ship", way(n, 1));
                assert!(timeout(moment, asking).await.is_err(), "it waits");
            }
            assert_eq!(gateway.waiting.borrow().len(), OPEN_OF_HOST / AHEAD);
            // Who gave up a server is not alone in that.
            let again = timeout(moment, gateway.connect_ahead("ship", way(0, 2))).await;
            assert_eq!(again.unwrap().unwrap_err(), Reason::TimedOut);
            assert!(timeout(moment, gateway.connect_ahead("boat", way(0, 2))).await.is_err());
            let before = gateway.waiting.borrow().len();
            for n in 0..OPEN_OF_HOST / AHEAD {
                let asking = gateway.connect("ship", way(n as u8, 1));
                assert!(timeout(moment, asking).await.is_err(), "it is asked");
            }
            assert_eq!(gateway.waiting.borrow().len(), before + OPEN_OF_HOST / AHEAD);
            drop(ours);
        });
    }

    #[test]
    fn servers_that_do_not_answer_one_host_or_peer_keep_no_other_from_its_own() {
        let (ours, theirs) = SeqPacket::pair().unwrap();
        say(&ours, &Event::Hello { version: service::VERSION, service: "web".into() });
        let gateway = Rc::new(Gateway::new(Client::new(theirs).unwrap()));
        thread::spawn(move || answer(&ours));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        LocalSet::new().block_on(&runtime, async {
            let hears = gateway.clone();
            spawn_local(async move { hears.hear(|_| {}).await.unwrap() });
            let way = |host: u8| Way {
                to: "10.2.0.2:80".parse().unwrap(),
                from: [10, 1, 0, host].into(),
            };
            for host in 0..20 {
                for _ in 0..200 {
                    let gateway = gateway.clone();
                    spawn_local(async move { gateway.connect("evil", way(host)).await });
                }
            }
            let full = async {
                while gateway.waiting.borrow().len() < OPEN_OF_PEER {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            };
            timeout(Duration::from_secs(20), full).await.expect("they take what they may have");
            for _ in 0..50 {
                let answer =
                    timeout(Duration::from_secs(20), gateway.connect("ship", way(1))).await;
                assert_eq!(answer.expect("it is asked").unwrap_err(), Reason::Refused);
            }
            assert_eq!(gateway.waiting.borrow().len(), OPEN_OF_PEER);
            assert!(gateway.places.borrow().len() <= 23, "what nobody uses is forgotten");
        });
    }
}
