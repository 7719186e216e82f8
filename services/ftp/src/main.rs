//! The program: sockets, and one loop. What is read of a session is the library's.
//!
//! ```text
//! client ─ control ─ terminal's half ── stream ══ link ══ stream ── hub's half ─ control ─ server
//!        ◄─ data ──  as the server   ── stream ══ link ══ stream ──            ─ data ──►
//! ```

#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd as _, OwnedFd};
use std::process::ExitCode;
use std::time::Instant;

use ftp::control::{Control, Data, Named};
use ftp::places::{Holder, Places};
use ftp::preface::Preface;
use os::poll::{Events, Interest, Poller};
use os::tcp::Stream;
use service::carry::{Carried, Turn, Verdict, Way};
use service::message::{Accepted, Denied, Incoming};
use service::quota::Quota;
use service::{Client, Error, Event, Queued, Reason, Request};
use units::{Duration, one_host};

/// The poller's number for the gateway; connections have two each from 1 on.
const GATEWAY: u64 = 0;
const BUFFER: usize = 64 << 10;
/// Sessions and data connections at once. For one more the host loses its oldest that has the most,
/// behind the peer or in the network with the most. Where nobody has more than who asks, a session
/// is carried by the gateway as ever, or at the hub reset unless its host has none ([`Places`]),
/// and a data connection is not made.
const MOST: usize = 4000;
/// Connections to servers that the gateway may be making at once ([`Quota`]). A session that has
/// lost its place counts until the gateway has answered: it tries for two minutes where no server
/// does.
const MOST_CONNECTS: usize = 2048;
/// Messages that are taken of the gateway before others have their turn.
const AT_ONCE: usize = 64;
/// How often the gateway is told what is counted.
const TOLD: Duration = Duration::from_secs(1);

/// For persons. A gateway starts this program.
const ABOUT: &str = "\
Carries FTP over a bentpipe link, active mode included (docs/ftp.md).

A gateway starts this program; its file names it:

  [service.ftp]
  command = [\"/usr/bin/bentpipe-ftp\"]

It has no options but -h, --help and -V, --version.";

fn main() -> ExitCode {
    if service::answers_person(ABOUT, concat!("bentpipe-ftp ", env!("CARGO_PKG_VERSION"))) {
        return ExitCode::SUCCESS;
    }
    match serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            service::say_error(&why);
            ExitCode::FAILURE
        }
    }
}

/// What waits for the gateway's answer.
enum Asked {
    /// A host's session, for a stream.
    Session(Accepted, OwnedFd),
    /// A stream, for the server of its session.
    Server(Hub, OwnedFd),
    /// A port of the server's that is to become the data connection of a session.
    Port(Hub, u16),
    /// A data connection at the server of a session, for a stream.
    Stream(Hub, OwnedFd),
    /// A data connection's stream, for the host.
    Host(OwnedFd),
}

/// A session, as the hub's half knows it.
#[derive(Clone)]
struct Hub {
    peer: String,
    server: SocketAddr,
    client: SocketAddr,
}

impl Hub {
    fn holder(&self) -> Holder {
        Holder::behind(&self.peer, self.client.ip())
    }

    /// May its peer not reach its server any more?
    fn is_denied(&self, narrowed: &str, denied: &Denied) -> bool {
        self.peer == narrowed && denied.holds(self.server.ip())
    }
}

/// What two sockets are.
enum Kind {
    /// A session at the terminal: the host is the first of the two.
    Near { peer: String, client: SocketAddr, named: Named },
    /// A session at the hub: the server is the second.
    Far(Hub, Box<Control>),
    /// A data connection, at the hub of this session.
    Data(Option<Hub>),
}

struct Joined {
    kind: Kind,
    sockets: Carried,
}

#[derive(Default)]
struct Counted {
    sessions: u64,
    data: u64,
    failed: u64,
    bytes: u64,
}

struct Ftp {
    client: Queued,
    poller: Poller,
    places: Places,
    asked: BTreeMap<u64, Asked>,
    /// For which peer and host the gateway connects, by the request.
    connects: BTreeMap<u64, (String, IpAddr)>,
    quota: Quota<IpAddr>,
    /// The last number of a request. What it asks for has the same one when it is joined.
    last: u64,
    joined: BTreeMap<u64, Joined>,
    /// Sessions at the terminal, by host: from one port it may have some with several servers.
    near: BTreeSet<(SocketAddr, u64)>,
    /// Those that have more to move.
    more: Vec<u64>,
    counted: Counted,
    /// What is counted is not what the gateway was told last, and when that was.
    has_news: bool,
    told_at: Option<Instant>,
}

fn serve() -> Result<(), Error> {
    let mut ftp = Ftp::new(Client::from_environment()?)?;
    let (mut room, mut buffer) = (service::room(), vec![0; BUFFER]);
    let mut events = Events::with_capacity(256);
    loop {
        let at_once = (!ftp.more.is_empty()).then_some(Duration::ZERO);
        let wait = at_once.or_else(|| ftp.until_told());
        ftp.client.watch(&ftp.poller, GATEWAY)?;
        ftp.poller.wait(&mut events, wait).map_err(io::Error::other)?;
        ftp.tell();
        for number in std::mem::take(&mut ftp.more) {
            ftp.turn(number, &mut buffer)?;
        }
        for event in events.iter() {
            match event.token {
                GATEWAY => {
                    if !ftp.hear(&mut room, &mut buffer)? {
                        return Ok(());
                    }
                }
                token => {
                    let number = (token - 1) / 2;
                    if event.failed {
                        ftp.end_if_reset(number);
                    }
                    ftp.turn(number, &mut buffer)?;
                }
            }
        }
    }
}

impl Ftp {
    fn new(client: Client) -> Result<Ftp, Error> {
        let poller = Poller::new().map_err(io::Error::other)?;
        let (asked, connects, joined, near, more, counted) = Default::default();
        let (places, quota, last) = (Places::new(MOST), Quota::new(MOST_CONNECTS), 0);
        Ok(Ftp {
            client: Queued::new(client),
            poller,
            places,
            asked,
            connects,
            quota,
            last,
            joined,
            near,
            more,
            counted,
            has_news: false,
            told_at: None,
        })
    }

    /// Takes some of what the gateway says; false when it has ended.
    fn hear(&mut self, room: &mut [u8], buffer: &mut [u8]) -> Result<bool, Error> {
        for _ in 0..AT_ONCE {
            let delivery = match self.client.try_next(room) {
                Ok(Some(delivery)) => delivery,
                Ok(None) => return Ok(false),
                Err(Error::Socket(e)) if e.kind() == ErrorKind::WouldBlock => return Ok(true),
                Err(why) => return Err(why),
            };
            match (delivery.event, delivery.socket) {
                (Event::Accepted(it), Some(socket)) => self.open_session(it, socket)?,
                (Event::Incoming(it), Some(stream)) => {
                    let preface = std::str::from_utf8(delivery.bytes).unwrap_or_default();
                    match preface.parse() {
                        Ok(Preface::Control { server, client }) => {
                            self.reach_server(Hub { peer: it.peer, server, client }, stream)?;
                        }
                        Ok(Preface::Data { client, port }) => {
                            self.reach_host(&it, client, port, stream)?;
                        }
                        // Dropped, which resets it.
                        Err(()) => eprintln!("a stream of {} is for nothing known", it.peer),
                    }
                }
                (Event::Opened { request, .. } | Event::Connected { request, .. }, Some(other)) => {
                    self.answered(request, other, buffer)?;
                }
                (Event::Failed { request, reason }, _) => self.failed(request, &reason)?,
                (Event::Narrowed { peer, denied }, _) => self.on_narrowed(&peer, &denied),
                // What is open goes on until the gateway ends.
                _ => {}
            }
        }
        Ok(true)
    }

    /// Ends what was connected to these servers for the peer, which resets both its sockets.
    fn on_narrowed(&mut self, peer: &str, denied: &Denied) {
        let of = |joined: &Joined| match &joined.kind {
            Kind::Far(session, _) | Kind::Data(Some(session)) => session.is_denied(peer, denied),
            Kind::Near { .. } | Kind::Data(None) => false,
        };
        let over = self.joined.iter().filter(|(_, joined)| of(joined)).map(|(number, _)| *number);
        for number in over.collect::<Vec<_>>() {
            self.end(number);
        }
        let of = |asked: &Asked| match asked {
            Asked::Stream(session, _) => session.is_denied(peer, denied),
            _ => false,
        };
        for (number, _) in self.asked.extract_if(.., |_, asked| of(asked)) {
            self.places.leave(number);
        }
    }

    /// The number of one more request, if there is a place for it.
    fn place(&mut self, holder: Holder) -> Result<Option<u64>, Error> {
        self.last += 1;
        let Ok(ends) = self.places.take(self.last, holder) else { return Ok(None) };
        if let Some(number) = ends {
            match self.asked.remove(&number) {
                // Nothing was said in it yet.
                Some(Asked::Session(it, socket)) => self.client.pass(socket, it.dscp, b"")?,
                Some(_) => {}
                None => self.end(number),
            }
        }
        Ok(Some(self.last))
    }

    /// A host's session: a stream to the hub's half.
    fn open_session(&mut self, it: Accepted, socket: OwnedFd) -> Result<(), Error> {
        let Some(request) = self.place(Holder::host(it.client.ip()))? else {
            return self.client.pass(socket, it.dscp, b"");
        };
        let preface = Preface::Control { server: it.server, client: it.client };
        let (peer, client) = (it.peer.clone(), Some(it.client));
        self.asked.insert(request, Asked::Session(it, socket));
        let open = Request::Open { request, peer, class: None, client };
        self.client.send(&open, preface.to_string().as_bytes(), None)
    }

    /// The stream of a session: a connection to its server.
    fn reach_server(&mut self, session: Hub, stream: OwnedFd) -> Result<(), Error> {
        let (server, source) = (session.server, session.client);
        self.connect(session, server, source, |session| Asked::Server(session, stream))
    }

    /// Has the gateway connect to a server for a session, if there is room for that.
    fn connect(
        &mut self,
        session: Hub,
        target: SocketAddr,
        source: SocketAddr,
        asked: impl FnOnce(Hub) -> Asked,
    ) -> Result<(), Error> {
        let (peer, host) = (session.peer.clone(), one_host(session.client.ip()));
        if !self.quota.has_room(&peer, &host) {
            eprintln!("too many servers do not answer {} of {peer}", session.client);
            return Ok(());
        }
        let Some(request) = self.place(session.holder())? else { return Ok(()) };
        self.asked.insert(request, asked(session));
        self.quota.begin(&peer, host);
        self.connects.insert(request, (peer.clone(), host));
        let (target, source) = (target.to_string(), Some(source));
        self.client.send(&Request::Connect { request, peer, target, source }, b"", None)
    }

    /// The gateway has answered.
    fn end_connect(&mut self, request: u64) {
        if let Some((peer, host)) = self.connects.remove(&request) {
            self.quota.end(&peer, host);
        }
    }

    /// A data connection of a session of ours: to the host, as its server, at a port that the host
    /// itself has named.
    fn reach_host(
        &mut self,
        it: &Incoming,
        client: SocketAddr,
        port: u16,
        stream: OwnedFd,
    ) -> Result<(), Error> {
        let mut is_asked = |number: &u64| match self.joined.get_mut(number).map(|it| &mut it.kind) {
            Some(Kind::Near { peer, named, .. }) => *peer == it.peer && named.take(port),
            _ => false,
        };
        let mut its = self.near.range((client, 0)..=(client, u64::MAX)).map(|(_, number)| *number);
        let Some(number) = its.find(|number| is_asked(number)) else {
            eprintln!("{} wants port {port} of {client}, which has not named it", it.peer);
            return Ok(());
        };
        let session = self.joined.get(&number).map(|it| it.sockets.ends[0].as_fd());
        let session = match session.map(|it| it.try_clone_to_owned()).transpose() {
            Ok(session) => session,
            Err(why) => {
                eprintln!("no data connection to {client}: {why}");
                return Ok(());
            }
        };
        let Some(request) = self.place(Holder::host(client.ip()))? else { return Ok(()) };
        self.asked.insert(request, Asked::Host(stream));
        self.client.send(&Request::Back { request, port }, b"", session)
    }

    /// A session at the hub wants a data connection.
    fn reach_port(&mut self, session: Hub, data: Data) -> Result<(), Error> {
        let target = SocketAddr::new(session.server.ip(), data.server);
        let source = SocketAddr::new(session.client.ip(), 0);
        self.connect(session, target, source, |session| Asked::Port(session, data.client))
    }

    fn answered(&mut self, request: u64, other: OwnedFd, buffer: &mut [u8]) -> Result<(), Error> {
        self.end_connect(request);
        match self.asked.remove(&request) {
            Some(Asked::Session(it, socket)) => {
                self.counted.sessions += 1;
                let named = Named::new(it.client.ip());
                let kind = Kind::Near { peer: it.peer, client: it.client, named };
                self.join(request, kind, socket, other, buffer)
            }
            Some(Asked::Server(session, stream)) => {
                self.counted.sessions += 1;
                let control = Control::new(session.client.ip(), session.server.ip());
                let kind = Kind::Far(session, Box::new(control));
                self.join(request, kind, stream, other, buffer)
            }
            Some(Asked::Port(session, port)) => {
                // In the same place.
                self.places.leave(request);
                let Some(request) = self.place(session.holder())? else { return Ok(()) };
                let preface = Preface::Data { client: session.client, port }.to_string();
                let (peer, client) = (session.peer.clone(), None);
                self.asked.insert(request, Asked::Stream(session, other));
                let open = Request::Open { request, peer, class: None, client };
                self.client.send(&open, preface.as_bytes(), None)
            }
            Some(Asked::Stream(session, socket)) => {
                self.counted.data += 1;
                self.join(request, Kind::Data(Some(session)), socket, other, buffer)
            }
            Some(Asked::Host(socket)) => {
                self.counted.data += 1;
                self.join(request, Kind::Data(None), socket, other, buffer)
            }
            None => Ok(()),
        }
    }

    /// A session goes back to the gateway, everything else is dropped, which resets it.
    fn failed(&mut self, request: u64, reason: &Reason) -> Result<(), Error> {
        self.end_connect(request);
        self.counted.failed += 1;
        self.places.leave(request);
        let what = match self.asked.remove(&request) {
            Some(Asked::Session(it, socket)) => return self.client.pass(socket, it.dscp, b""),
            Some(Asked::Server(session, _)) => format!("no connection to {}", session.server),
            Some(Asked::Port(session, _)) => {
                format!("no data connection to {} for {}", session.server, session.client)
            }
            Some(Asked::Stream(..)) => "no stream for a data connection".into(),
            Some(Asked::Host(_)) => "no data connection to a host".into(),
            None => return Ok(()),
        };
        eprintln!("{what}: {reason}");
        self.has_news = true;
        Ok(())
    }

    fn join(
        &mut self,
        number: u64,
        kind: Kind,
        a: OwnedFd,
        b: OwnedFd,
        buffer: &mut [u8],
    ) -> Result<(), Error> {
        let (a, b): (Stream, Stream) = (a.into(), b.into());
        let watched = [(&a, 1), (&b, 2)].into_iter().try_for_each(|(socket, end)| {
            self.poller.add(socket, 2 * number + end, Interest::READ_WRITE.edge())
        });
        if let Err(why) = watched {
            eprintln!("a connection is reset: {why}");
            self.places.leave(number);
            return Ok(());
        }
        if let Kind::Near { client, .. } = &kind {
            self.near.insert((*client, number));
        }
        self.joined.insert(number, Joined { kind, sockets: Carried::new(a, b) });
        self.has_news = true;
        self.turn(number, buffer)
    }

    /// One that has ended may still be reset, and nothing is read of it any more.
    fn end_if_reset(&mut self, number: u64) {
        let failed = |end: &Stream| !matches!(end.take_error(), Ok(None));
        if self.joined.get(&number).is_some_and(|it| it.sockets.ends.iter().any(failed)) {
            self.end(number);
        }
    }

    fn end(&mut self, number: u64) {
        self.places.leave(number);
        if let Some(Joined { kind: Kind::Near { client, .. }, .. }) = self.joined.remove(&number) {
            self.near.remove(&(client, number));
        }
        self.has_news = true;
    }

    fn turn(&mut self, number: u64, buffer: &mut [u8]) -> Result<(), Error> {
        let Some(Joined { kind, sockets }) = self.joined.get_mut(&number) else { return Ok(()) };
        let (moved, mut wanted) = (Cell::new(0), Vec::new());
        let turn = match kind {
            Kind::Near { named, .. } => sockets.turn_with(buffer, &mut |way, bytes, _| {
                moved.set(moved.get() + bytes.len() as u64);
                if way == Way::There {
                    named.on_client(bytes);
                }
                Verdict::AsItIs
            }),
            Kind::Data(_) => sockets.turn(buffer, |n| moved.set(moved.get() + n as u64)),
            Kind::Far(session, control) => sockets.turn_with(buffer, &mut |way, bytes, out| {
                match way {
                    Way::There => control.on_client(bytes, out),
                    Way::Back => {
                        let data = control.on_server(bytes, out);
                        wanted.extend(data.map(|data| (session.clone(), data)));
                    }
                }
                Verdict::Another
            }),
        };
        self.counted.bytes += moved.get();
        for (session, data) in wanted {
            self.reach_port(session, data)?;
        }
        match turn {
            Ok(Turn::Rests) => return Ok(()),
            Ok(Turn::HasMore) => {
                if !self.more.contains(&number) {
                    self.more.push(number);
                }
                return Ok(());
            }
            Ok(Turn::Over) => {}
            Err(e) if e.kind() == ErrorKind::ConnectionReset => {}
            Err(why) => eprintln!("a connection is reset: {why}"),
        }
        self.end(number);
        Ok(())
    }

    /// When the gateway is told what is counted.
    fn until_told(&self) -> Option<Duration> {
        let since = |at: Instant| Duration::from_nanos(at.elapsed().as_nanos() as u64);
        self.has_news.then(|| self.told_at.map_or(Duration::ZERO, |at| TOLD - since(at)))
    }

    fn tell(&mut self) {
        if self.until_told() != Some(Duration::ZERO) {
            return;
        }
        (self.has_news, self.told_at) = (false, Some(Instant::now()));
        let Counted { sessions, data, failed, bytes } = self.counted;
        let counters = [
            ("open", self.joined.len() as u64),
            ("sessions", sessions),
            ("data", data),
            ("failed", failed),
            ("bytes", bytes),
        ];
        let counters = counters.map(|(name, n)| (name.to_owned(), n)).into();
        // Without a gateway nobody wants to know.
        let _ = self.client.send(&Request::Stats { counters }, b"", None);
    }
}
