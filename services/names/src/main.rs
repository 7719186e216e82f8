//! The program: sockets, and one loop. What is said is decided in the library.
//!
//! ```text
//! client ── datagrams ── near ── one stream a peer ══ link ══ stream ── far ── TCP ── server
//! ```

#[cfg(test)]
mod tests;
mod wire;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::process::ExitCode;
use std::time::Instant;

use names::exchange::{self, Frame};
use names::far::{self, Far};
use names::near::{self, By, Datagram, Near};
use os::poll::{Events, Interest, Poller};
use service::message::{Accepted, LinkState};
use service::{Client, Error, Event, Queued, Request, Takes};
use units::{Duration, Shares, host_in_network};

use wire::Wire;

/// The poller's number for the gateway.
const GATEWAY: u64 = 0;
/// How often clocks are looked at while anything waits.
const TICK: Duration = Duration::from_millis(200);
/// How long a server has, in milliseconds.
const SERVER_TIME: u64 = 2_500;
/// What is taken of one socket, the gateway's too, before others have their turn: messages.
const AT_ONCE: usize = 64;
/// How often the gateway is told what is counted, in milliseconds.
const TOLD: u64 = 1_000;
/// Hosts' connections at once. For one more the host that has the most loses its oldest, in the
/// network that does; where nobody has more than who comes, the newcomer's is passed.
const MOST_HOSTS: usize = 1000;
/// While a host has so much unread no further question of its connection is taken, in bytes.
const MOST_UNREAD: usize = 16 << 10;
/// What all hosts may have unread, in bytes: answers that come at once from servers. Where it is
/// more the connection with the most is reset.
const MOST_OF_HOSTS: usize = 64 << 20;
/// A host's connection rests so long at most without a question, in milliseconds (RFC 7766,
/// section 6.2.3).
const RESTS: u64 = 10_000;
/// An answer has left so long after it was written, in milliseconds.
const MOMENT: u64 = 1_000;
/// What may have come on a host's connection and not been answered, in bytes: it goes back to the
/// gateway with the connection, in one packet.
const MOST_OF_HOST: usize = 56 << 10;
const _: () = assert!(MOST_OF_HOST + service::packet::MAX_JSON < service::packet::MAX_PACKET);
/// What is taken of another connection before others have their turn, in bytes: a message, which
/// has 64 KiB at most, and more.
const MOST_READ: usize = 96 << 10;
/// What may wait for a link, in bytes; what is more is given up.
const MOST_WAITING: usize = 1 << 20;

/// For persons. A gateway starts this program.
const ABOUT: &str = "\
Answers hosts' questions for names at both ends of a bentpipe link (docs/names.md).

A gateway starts this program; its file names it:

  [service.names]
  command = [\"/usr/bin/bentpipe-names\"]

It has no options but -h, --help and -V, --version.";

fn main() -> ExitCode {
    if service::answers_person(ABOUT, concat!("bentpipe-names ", env!("CARGO_PKG_VERSION"))) {
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

/// Whose socket it is.
enum Of {
    /// The stream that this half opened to a peer.
    Near(String),
    /// One that a peer's half opened.
    Far(String),
    /// A question at a server.
    Dial(u64),
    /// A host's, with a server.
    Host(Box<Host>),
}

/// A host's connection to a server.
struct Host {
    it: Accepted,
    /// Bytes of what came that were taken as questions. While none is answered they stay, so that
    /// the connection can be passed with them.
    taken: usize,
    asked: u64,
    answered: u64,
    /// When it was asked or answered last.
    since: u64,
    /// The host has no more questions.
    ended: bool,
}

struct Socket {
    of: Of,
    wire: Wire,
}

/// What waits for the gateway.
enum Asked {
    /// A stream to the peer, with what is to be sent first.
    Open(String, Vec<u8>),
    /// A connection to a server.
    Connect(u64),
}

/// A question at a server.
struct Dial {
    since: u64,
    id: [u8; 2],
    query: Vec<u8>,
    socket: Option<u64>,
    /// The gateway tries to connect.
    connects: bool,
}

/// The two ends of streams.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Half {
    Near,
    Far,
}

struct Names {
    client: Queued,
    poller: Poller,
    began: Instant,
    near: Near,
    far: Far,
    sockets: BTreeMap<u64, Socket>,
    /// The streams, by which half of this program has them, and with which peer.
    halves: BTreeMap<(Half, String), u64>,
    /// Whose hosts' connections are.
    hosts: Shares<IpAddr, IpAddr, u64>,
    /// Sockets of which there is more to take, though the poller does not tell.
    again: BTreeSet<u64>,
    asked: BTreeMap<u64, Asked>,
    dials: BTreeMap<u64, Dial>,
    last: u64,
    told: near::Counts,
    told_at: u64,
    /// The gateway ends.
    stops: bool,
    /// When something was under way last.
    busy: u64,
}

fn serve() -> Result<(), Error> {
    let client = Client::from_environment_taking(Takes {
        datagrams: true,
        offline: true,
        ..Takes::default()
    })?;
    let mut names = Names::new(client)?;
    let (mut room, mut events) = (service::room(), Events::with_capacity(256));
    while names.step(&mut room, &mut events)? {}
    Ok(())
}

impl Names {
    fn new(client: Client) -> Result<Names, Error> {
        let poller = Poller::new().map_err(io::Error::other)?;
        let (near, far, sockets, halves, hosts, again) = Default::default();
        let (asked, dials, told) = Default::default();
        Ok(Names {
            client: Queued::new(client),
            poller,
            began: Instant::now(),
            near,
            far,
            sockets,
            halves,
            hosts,
            again,
            asked,
            dials,
            last: 0,
            told,
            told_at: 0,
            stops: false,
            busy: 0,
        })
    }

    /// Waits for something to do and does a bounded part of it; false: there will be no more.
    fn step(&mut self, room: &mut [u8], events: &mut Events) -> Result<bool, Error> {
        let hosts = self.hosts.sum() > 0;
        let waits = hosts || self.near.waits() || !self.dials.is_empty() || self.stops;
        let has_news = self.near.counts != self.told;
        let wait = match self.again.is_empty() {
            true => (waits || has_news).then_some(TICK),
            false => Some(Duration::ZERO),
        };
        self.client.watch(&self.poller, GATEWAY)?;
        self.poller.wait(events, wait).map_err(io::Error::other)?;
        for number in std::mem::take(&mut self.again) {
            self.turn(number)?;
            self.settle()?;
        }
        for event in events.iter() {
            match event.token {
                GATEWAY if !self.hear(room)? => return Ok(false),
                GATEWAY => {}
                number => {
                    self.turn(number)?;
                    self.settle()?;
                }
            }
        }
        self.on_time();
        self.settle()?;
        self.tell()?;
        Ok(!self.has_finished())
    }

    fn now(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }

    fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// The gateway ends, and nothing has been under way for a moment: the last answers have left.
    fn has_finished(&mut self) -> bool {
        let now = self.now();
        let is_unsaid = |socket: &Socket| {
            matches!(socket.of, Of::Host(_) | Of::Dial(_)) || !socket.wire.written.is_empty()
        };
        let waits = self.near.waits() || !self.dials.is_empty() || self.client.is_unsaid();
        if waits || self.sockets.values().any(is_unsaid) {
            self.busy = now;
        }
        self.stops && now.saturating_sub(self.busy) >= MOMENT
    }

    /// Takes some of what the gateway says; false when it has ended.
    fn hear(&mut self, room: &mut [u8]) -> Result<bool, Error> {
        for _ in 0..AT_ONCE {
            let delivery = match self.client.try_next(room) {
                Ok(Some(delivery)) => delivery,
                Ok(None) => return Ok(false),
                Err(Error::Socket(e)) if e.kind() == ErrorKind::WouldBlock => return Ok(true),
                Err(why) => return Err(why),
            };
            let now = self.now();
            match (delivery.event, delivery.socket) {
                (Event::Datagram { peer, client, server }, _) => {
                    let pair = (client, server);
                    self.near.on_question(now, &peer, pair, By::Datagram, delivery.bytes);
                }
                (Event::Accepted(it), Some(socket)) => {
                    if self.makes_room(it.client.ip()) {
                        let (taken, asked, answered, ended) = (0, 0, 0, false);
                        let host = Host { it, taken, asked, answered, since: now, ended };
                        self.add(Of::Host(Box::new(host)), socket, vec![])?;
                    } else {
                        self.client.pass(socket, it.dscp, b"")?;
                    }
                }
                (Event::Link(link), _) => {
                    self.near.set_quic(&link.peer, link.refuses_quic);
                    self.near.set_down(&link.peer, link.state == LinkState::Down);
                    self.near.set_silent(&link.peer, link.state == LinkState::Silent);
                    self.near.set_pace(&link.peer, link.rate, link.rtt_us);
                    self.far.set_rate(&link.peer, link.rate);
                }
                (Event::Stop, _) => self.stops = true,
                (Event::Hinted { peer, .. }, _) => self.far.on_page(now, &peer, delivery.bytes),
                (Event::Incoming(it), Some(socket)) => self.open_far(it.peer, socket)?,
                (Event::Opened { request, .. } | Event::Connected { request, .. }, Some(fd)) => {
                    self.granted(request, fd)?;
                }
                (Event::Failed { request, reason }, _) => match self.asked.remove(&request) {
                    Some(Asked::Open(peer, _)) => self.near.on_lost(now, &peer),
                    Some(Asked::Connect(dial)) => {
                        eprintln!("no connection to a server: {reason}");
                        self.connect_is_over(dial);
                        self.end_dial(dial, None);
                    }
                    None => {}
                },
                _ => {}
            }
            self.settle()?;
        }
        Ok(true)
    }

    /// May this host have one more connection here? Another's gives way where that host has more.
    fn makes_room(&mut self, host: IpAddr) -> bool {
        if self.hosts.sum() < MOST_HOSTS {
            return true;
        }
        let displaced = self.hosts.gives_way_to(&host_in_network(host), 1).copied();
        displaced.inspect(|number| self.displace(*number)).is_some()
    }

    /// A host's connection leaves its place: one that rests ends, another goes back.
    fn displace(&mut self, number: u64) {
        let Some(Socket { of: Of::Host(host), wire }) = self.sockets.get(&number) else { return };
        let rests = host.asked == host.answered && wire.read.is_empty() && wire.written.is_empty();
        if rests && host.asked > 0 {
            let _ = wire.stream.close_in_order();
            self.remove(number);
        } else {
            self.pass(number);
        }
    }

    /// A peer's half opens a stream: one before it belongs to a half that is gone.
    fn open_far(&mut self, peer: String, socket: OwnedFd) -> Result<(), Error> {
        if let Some(before) = self.half(Half::Far, &peer) {
            self.remove(before);
            self.far.on_lost(&peer);
        }
        self.add(Of::Far(peer), socket, vec![])
    }

    fn granted(&mut self, request: u64, fd: OwnedFd) -> Result<(), Error> {
        match self.asked.remove(&request) {
            Some(Asked::Open(peer, first)) => self.add(Of::Near(peer), fd, first),
            Some(Asked::Connect(dial)) => {
                self.connect_is_over(dial);
                let Some(it) = self.dials.get(&dial) else { return Ok(()) };
                let len = (it.query.len() as u16).to_be_bytes();
                let first = [&len, &it.id[..], &it.query[2..]].concat();
                self.add(Of::Dial(dial), fd, first)
            }
            None => Ok(()),
        }
    }

    /// The gateway tries no longer to connect for this question, which may have been given up.
    fn connect_is_over(&mut self, dial: u64) {
        match self.dials.get_mut(&dial) {
            Some(dial) => dial.connects = false,
            None => self.far.on_connect_over(dial),
        }
    }

    fn add(&mut self, of: Of, fd: OwnedFd, first: Vec<u8>) -> Result<(), Error> {
        let most = if matches!(of, Of::Host(_)) { MOST_OF_HOST } else { MOST_READ };
        let (number, wire) = (self.number(), Wire::new(fd.into(), first, most));
        let watched = self.poller.add(&wire.stream, number, Interest::READ_WRITE.edge());
        match &of {
            Of::Near(peer) => drop(self.halves.insert((Half::Near, peer.clone()), number)),
            Of::Far(peer) => drop(self.halves.insert((Half::Far, peer.clone()), number)),
            Of::Host(host) => {
                self.hosts.add(&host_in_network(host.it.client.ip()), number, 1);
            }
            Of::Dial(dial) => {
                if let Some(dial) = self.dials.get_mut(dial) {
                    dial.socket = Some(number);
                }
            }
        }
        self.sockets.insert(number, Socket { of, wire });
        match watched {
            Ok(()) => self.turn(number)?,
            Err(_) => self.lose(number),
        }
        Ok(())
    }

    fn remove(&mut self, number: u64) -> Option<Socket> {
        let socket = self.sockets.remove(&number)?;
        let half = match &socket.of {
            Of::Near(peer) => (Half::Near, peer.clone()),
            Of::Far(peer) => (Half::Far, peer.clone()),
            Of::Dial(_) => return Some(socket),
            Of::Host(host) => {
                self.hosts.remove(&host_in_network(host.it.client.ip()), &number);
                return Some(socket);
            }
        };
        // A newer one may have its place already.
        if self.halves.get(&half) == Some(&number) {
            self.halves.remove(&half);
        }
        Some(socket)
    }

    /// Moves what can be moved on a socket, and takes some of what came.
    fn turn(&mut self, number: u64) -> Result<(), Error> {
        let now = self.now();
        let Some(socket) = self.sockets.get_mut(&number) else { return Ok(()) };
        let turned = socket.wire.turn();
        let stands = turned.is_ok();
        let is_full = turned.as_ref().is_err_and(|e| e.kind() == ErrorKind::InvalidData);
        let whole = match &mut socket.of {
            Of::Host(host) => {
                // Questions that wait for their host to read are no reason to end.
                let is_behind = host.answered > 0 && socket.wire.message(host.taken).is_some();
                match turned {
                    Err(e) if e.kind() == ErrorKind::UnexpectedEof => host.ended = true,
                    Err(_) if is_full && is_behind => {}
                    Err(_) if is_full => {
                        self.pass(number);
                        return Ok(());
                    }
                    Err(_) => {
                        self.lose(number);
                        return Ok(());
                    }
                    Ok(()) => {}
                }
                return self.take_questions(number);
            }
            Of::Dial(dial) => {
                let (dial, message) = (*dial, socket.wire.message(0));
                if message.is_some() || !stands {
                    self.end_dial(dial, message);
                }
                return Ok(());
            }
            Of::Near(peer) => exchange::frames(&mut socket.wire.read).is_ok_and(|frames| {
                frames.into_iter().all(|frame| self.near.on_frame(now, peer, frame))
            }),
            Of::Far(peer) => exchange::frames(&mut socket.wire.read).is_ok_and(|frames| {
                frames.into_iter().all(|frame| self.far.on_frame(now, peer, frame))
            }),
        };
        if !whole || !stands && !is_full {
            self.lose(number);
        } else if is_full {
            self.again.insert(number);
        }
        Ok(())
    }

    /// Takes some of a host's questions, as long as it reads what is answered.
    fn take_questions(&mut self, number: u64) -> Result<(), Error> {
        let now = self.now();
        for _ in 0..AT_ONCE {
            let Some(Socket { of: Of::Host(host), wire }) = self.sockets.get_mut(&number) else {
                return Ok(());
            };
            // The poller tells when it has read.
            if wire.written.len() > MOST_UNREAD {
                return Ok(());
            }
            let Some(question) = wire.message(host.taken) else {
                self.rest(number);
                return Ok(());
            };
            host.taken += 2 + question.len();
            (host.asked, host.since) = (host.asked + 1, now);
            let Accepted { peer, client, server, .. } = &host.it;
            let by = By::Connection(number);
            self.near.on_question(now, peer, (*client, *server), by, &question);
            self.settle()?;
        }
        self.again.insert(number);
        Ok(())
    }

    /// A host's connection: what was answered is over, and so is the connection in its time.
    fn rest(&mut self, number: u64) {
        let Some(Socket { of: Of::Host(host), wire }) = self.sockets.get_mut(&number) else {
            return;
        };
        if host.answered > 0 {
            wire.read.drain(..std::mem::take(&mut host.taken));
        }
        let is_over = host.ended && wire.message(host.taken).is_none();
        if is_over && host.answered == host.asked && wire.written.is_empty() {
            let _ = wire.stream.close_in_order();
            self.remove(number);
        }
    }

    /// An answer for a host's connection.
    fn reply(&mut self, number: u64, answer: &[u8]) {
        let now = self.now();
        let Some(Socket { of: Of::Host(host), wire }) = self.sockets.get_mut(&number) else {
            return;
        };
        (host.answered, host.since) = (host.answered + 1, now);
        wire.written.extend((answer.len() as u16).to_be_bytes());
        self.write(number, answer);
        self.rest(number);
        if self.sockets.get(&number).is_some_and(|socket| !socket.wire.written.is_empty()) {
            self.reset_for_memory();
        }
    }

    /// Hosts that do not read what they asked for take no more than all may have unread.
    fn reset_for_memory(&mut self) {
        let unread = |(number, socket): (&u64, &Socket)| match socket.of {
            Of::Host(_) => Some((socket.wire.written.len(), *number)),
            _ => None,
        };
        let hosts = || self.sockets.iter().filter_map(unread);
        if hosts().map(|(len, _)| len).sum::<usize>() > MOST_OF_HOSTS
            && let Some((_, most)) = hosts().max()
        {
            self.remove(most);
        }
    }

    /// A host's question is not for us: its connection goes back, if nothing of it was answered.
    /// Else it is reset, and the host asks again on another one.
    fn pass(&mut self, number: u64) {
        let Some(Socket { of: Of::Host(host), wire }) = self.remove(number) else { return };
        if host.answered == 0 && self.poller.remove(&wire.stream).is_ok() {
            // One that cannot be passed is reset. That the gateway has ended is heard from itself.
            let _ = self.client.pass(wire.stream.into(), host.it.dscp, &wire.read);
        }
    }

    /// A socket is no more, or is to be no more.
    fn lose(&mut self, number: u64) {
        let now = self.now();
        match self.remove(number).map(|socket| socket.of) {
            Some(Of::Near(peer)) => self.near.on_lost(now, &peer),
            Some(Of::Far(peer)) => self.far.on_lost(&peer),
            Some(Of::Dial(dial)) => self.end_dial(dial, None),
            Some(Of::Host(_)) | None => {}
        }
    }

    /// A server has answered, or will not.
    fn end_dial(&mut self, number: u64, message: Option<Vec<u8>>) {
        let Some(dial) = self.dials.remove(&number) else { return };
        if let Some(socket) = dial.socket.and_then(|socket| self.remove(socket)) {
            // It has said all that was asked, or nothing.
            let _ = socket.wire.stream.close_in_order();
        }
        if dial.connects {
            return self.far.give_up(number);
        }
        let message = message.filter(|message| message.starts_with(&dial.id));
        self.far.on_answer(self.now(), number, message.as_deref());
    }

    fn on_time(&mut self) {
        let now = self.now();
        self.near.on_time(now);
        let rested = |socket: &Socket| match &socket.of {
            // On a slow link an answer may take longer.
            Of::Host(host) if host.asked > host.answered => {
                now.saturating_sub(host.since) >= 2 * RESTS
            }
            Of::Host(host) => now.saturating_sub(host.since) >= RESTS,
            _ => false,
        };
        let over = self.sockets.iter().filter(|(_, socket)| rested(socket));
        for number in over.map(|(number, _)| *number).collect::<Vec<_>>() {
            // With nothing unanswered this is an end, else a reset.
            if let Some(Socket { of: Of::Host(host), wire }) = self.remove(number)
                && host.asked == host.answered
            {
                let _ = wire.stream.close_in_order();
            }
        }
        let late = self.dials.iter().filter(|(_, dial)| now - dial.since >= SERVER_TIME);
        for dial in late.map(|(number, _)| *number).collect::<Vec<_>>() {
            self.end_dial(dial, None);
        }
    }

    /// Does what the two halves want, until they want nothing more.
    fn settle(&mut self) -> Result<(), Error> {
        loop {
            let (near, far) = (self.near.take(), self.far.take());
            if near.is_empty() && far.is_empty() {
                return Ok(());
            }
            for it in near {
                match it {
                    near::Do::Answer(Datagram { client, server, bytes }) => {
                        self.client.send(&Request::Answer { client, server }, &bytes, None)?;
                    }
                    near::Do::Onward(Datagram { client, server, bytes }) => {
                        self.client.send(&Request::Onward { client, server }, &bytes, None)?;
                    }
                    near::Do::Reply(number, answer) => self.reply(number, &answer),
                    near::Do::Pass(number) => self.pass(number),
                    near::Do::Send(peer, frame) => self.send_near(peer, &frame)?,
                }
            }
            // One write for all that goes to a peer: an answer and what goes along with it share
            // packets, and are there before the host asks for the next name.
            let mut said = BTreeSet::new();
            for it in far {
                match it {
                    far::Do::Send(peer, frame) => said.extend(self.say_far(&peer, &frame)),
                    far::Do::Dial { dial, peer, client, server, query } => {
                        let mut id = [0; 2];
                        getrandom::fill(&mut id).map_err(io::Error::other)?;
                        let (since, socket, connects) = (self.now(), None, true);
                        self.dials.insert(dial, Dial { since, id, query, socket, connects });
                        let request = self.number();
                        self.asked.insert(request, Asked::Connect(dial));
                        let (target, source) =
                            (server.to_string(), Some(SocketAddr::new(client.ip(), 0)));
                        let connect = Request::Connect { request, peer, target, source };
                        self.client.send(&connect, b"", None)?;
                    }
                }
            }
            said.into_iter().for_each(|number| self.write(number, b""));
        }
    }

    /// To the far half at a peer, by the stream there is, or by a new one.
    fn send_near(&mut self, peer: String, frame: &Frame) -> Result<(), Error> {
        let bytes = frame.encode();
        if let Some(number) = self.half(Half::Near, &peer) {
            self.write(number, &bytes);
            return Ok(());
        }
        for asked in self.asked.values_mut() {
            if let Asked::Open(of, first) = asked
                && *of == peer
            {
                first.extend(bytes);
                return Ok(());
            }
        }
        let request = self.number();
        self.asked.insert(request, Asked::Open(peer.clone(), bytes));
        let open = Request::Open { request, peer, class: None, client: None };
        self.client.send(&open, b"", None)
    }

    /// Adds a frame to what is to be written to a peer's half, if it is there; to which socket.
    fn say_far(&mut self, peer: &str, frame: &Frame) -> Option<u64> {
        let number = self.half(Half::Far, peer)?;
        self.sockets.get_mut(&number)?.wire.written.extend(frame.encode());
        Some(number)
    }

    /// The newest such socket: an older one belongs to a half that is gone.
    fn half(&self, half: Half, peer: &str) -> Option<u64> {
        self.halves.get(&(half, peer.to_owned())).copied()
    }

    fn write(&mut self, number: u64, bytes: &[u8]) {
        let Some(socket) = self.sockets.get_mut(&number) else { return };
        socket.wire.written.extend_from_slice(bytes);
        let stands = socket.wire.flush().is_ok();
        if !stands || socket.wire.written.len() > MOST_WAITING {
            self.lose(number);
        }
    }

    /// Tells the gateway what is counted, when that has changed and not too often.
    fn tell(&mut self) -> Result<(), Error> {
        let (c, now) = (self.near.counts, self.now());
        if c == self.told || self.told_at > 0 && now < self.told_at + TOLD {
            return Ok(());
        }
        (self.told, self.told_at) = (c, now.max(1));
        let (known, memory) = self.near.size();
        let counters = [
            ("hits", c.hits),
            ("misses", c.misses),
            ("stale", c.stale),
            ("prefetched", c.prefetched),
            ("along", c.along),
            ("onward", c.onward),
            ("known", known as u64),
            ("memory", memory as u64),
        ];
        let counters = counters.map(|(name, n)| (name.to_owned(), n)).into();
        self.client.send(&Request::Stats { counters }, b"", None)
    }
}
