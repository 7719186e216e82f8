//! The smallest accelerator, to try the service socket with and to begin another one from
//! (docs/services.md). It carries hosts' connections as the gateway itself would:
//!
//! ```text
//! client ── bentpipe-echo ── stream ══ link ══ stream ── bentpipe-echo ── server
//!           preface: "SERVER CLIENT"                     Connect{SERVER, as CLIENT}
//! ```
//!
//! One thread and one loop. What cannot be carried is passed back to the gateway.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::process::ExitCode;

use os::poll::{Events, Interest, Poller};
use os::tcp::Stream;
use service::carry::{Carried, Turn};
use service::message::{Accepted, Incoming};
use service::{Client, Error, Event, Queued, Reason, Request};
use units::Duration;

/// The poller's number for the gateway; connections have two each from 1 on.
const GATEWAY: u64 = 0;
const BUFFER: usize = 64 << 10;

fn main() -> ExitCode {
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
    /// A host's connection, for a stream.
    Near(Accepted, OwnedFd),
    /// A stream, for a connection to this server for a peer.
    Far { server: String, peer: String, stream: OwnedFd },
}

/// What two sockets are.
struct Joined {
    sockets: Carried,
    /// The peer and its server, where one of them is a connection to that.
    server: Option<(String, IpAddr)>,
}

struct Echo {
    client: Queued,
    poller: Poller,
    asked: BTreeMap<u64, Asked>,
    /// The last request, and the last connection.
    last: (u64, u64),
    carried: BTreeMap<u64, Joined>,
    /// Connections that have more to move.
    more: Vec<u64>,
    done: u64,
    bytes: u64,
}

fn serve() -> Result<(), Error> {
    let poller = Poller::new().map_err(io::Error::other)?;
    let client = Queued::new(Client::from_environment()?);
    let (asked, carried, more) = Default::default();
    let mut echo = Echo { client, poller, asked, last: (0, 0), carried, more, done: 0, bytes: 0 };
    let (mut room, mut buffer) = (service::room(), vec![0; BUFFER]);
    let mut events = Events::with_capacity(256);
    loop {
        let at_once = (!echo.more.is_empty()).then_some(Duration::ZERO);
        echo.client.watch(&echo.poller, GATEWAY)?;
        echo.poller.wait(&mut events, at_once).map_err(io::Error::other)?;
        for number in std::mem::take(&mut echo.more) {
            echo.turn(number, &mut buffer);
        }
        for event in events.iter() {
            match event.token {
                GATEWAY => {
                    if !echo.hear(&mut room, &mut buffer)? {
                        return Ok(());
                    }
                }
                token => {
                    let number = (token - 1) / 2;
                    if event.failed {
                        echo.end_if_reset(number);
                    }
                    echo.turn(number, &mut buffer);
                }
            }
        }
    }
}

impl Echo {
    /// Takes what the gateway says; false when it has ended.
    fn hear(&mut self, room: &mut [u8], buffer: &mut [u8]) -> Result<bool, Error> {
        loop {
            let delivery = match self.client.try_next(room) {
                Ok(Some(delivery)) => delivery,
                Ok(None) => return Ok(false),
                Err(Error::Socket(e)) if e.kind() == ErrorKind::WouldBlock => return Ok(true),
                Err(why) => return Err(why),
            };
            match (delivery.event, delivery.socket) {
                (Event::Accepted(it), Some(socket)) => self.near(it, socket)?,
                (Event::Incoming(it), Some(socket)) => {
                    let preface = String::from_utf8_lossy(delivery.bytes).into_owned();
                    self.far(&it, &preface, socket)?;
                }
                (Event::Opened { request, .. }, Some(stream)) => {
                    if let Some(Asked::Near(_, socket)) = self.asked.remove(&request) {
                        self.carry(socket.into(), stream.into(), None, buffer);
                    }
                }
                (Event::Connected { request, server, .. }, Some(socket)) => {
                    if let Some(Asked::Far { peer, stream, .. }) = self.asked.remove(&request) {
                        let server = Some((peer, server.ip()));
                        self.carry(stream.into(), socket.into(), server, buffer);
                    }
                }
                (Event::Narrowed { peer, denied }, _) => {
                    let is_over = |of: &String, server| *of == peer && denied.holds(server);
                    let before = self.carried.len();
                    self.carried.retain(|_, joined| match &joined.server {
                        Some((of, server)) => !is_over(of, *server),
                        None => true,
                    });
                    self.done += (before - self.carried.len()) as u64;
                }
                (Event::Failed { request, reason }, _) => self.failed(request, &reason)?,
                (Event::Link(link), _) => {
                    eprintln!("link {}: {:?}, {} bit/s", link.peer, link.state, link.rate);
                }
                (Event::Reset { id, reason }, _) => eprintln!("stream {id} was reset: {reason}"),
                // What is open goes on until the gateway ends.
                _ => {}
            }
        }
    }

    /// A host's connection: a stream to the counterpart.
    fn near(&mut self, it: Accepted, socket: OwnedFd) -> Result<(), Error> {
        let preface = format!("{} {}", it.server, it.client);
        let (peer, client) = (it.peer.clone(), Some(it.client));
        let request = self.ask(Asked::Near(it, socket));
        let open = Request::Open { request, peer, class: None, client };
        self.client.send(&open, preface.as_bytes(), None)
    }

    /// The counterpart's stream: a connection to the server that it names.
    fn far(&mut self, it: &Incoming, preface: &str, stream: OwnedFd) -> Result<(), Error> {
        let (server, client) = preface.split_once(' ').unwrap_or((preface, ""));
        let (target, source) = (server.to_owned(), client.parse::<SocketAddr>().ok());
        let (server, peer) = (target.clone(), it.peer.clone());
        let request = self.ask(Asked::Far { server, peer: peer.clone(), stream });
        self.client.send(&Request::Connect { request, peer, target, source }, b"", None)
    }

    fn ask(&mut self, asked: Asked) -> u64 {
        self.last.0 += 1;
        self.asked.insert(self.last.0, asked);
        self.last.0
    }

    /// A connection goes back to the gateway, a stream is dropped, which resets it.
    fn failed(&mut self, request: u64, reason: &Reason) -> Result<(), Error> {
        match self.asked.remove(&request) {
            Some(Asked::Near(it, socket)) => {
                eprintln!("{} to {} is passed: {reason}", it.client, it.server);
                self.client.pass(socket, it.dscp, b"")
            }
            Some(Asked::Far { server, peer, .. }) => {
                eprintln!("no connection to {server} for {peer}: {reason}");
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn carry(&mut self, a: Stream, b: Stream, server: Option<(String, IpAddr)>, buffer: &mut [u8]) {
        self.last.1 += 1;
        let number = self.last.1;
        let watched = [(&a, 1), (&b, 2)].into_iter().try_for_each(|(socket, end)| {
            self.poller.add(socket, 2 * number + end, Interest::READ_WRITE.edge())
        });
        match watched {
            Ok(()) => {
                self.carried.insert(number, Joined { sockets: Carried::new(a, b), server });
                self.turn(number, buffer);
            }
            Err(why) => eprintln!("a connection is reset: {why}"),
        }
    }

    /// One that has ended may still be reset, and nothing is read of it any more.
    fn end_if_reset(&mut self, number: u64) {
        let failed = |end: &Stream| !matches!(end.take_error(), Ok(None));
        if self.carried.get(&number).is_some_and(|it| it.sockets.ends.iter().any(failed)) {
            self.carried.remove(&number);
            self.done += 1;
        }
    }

    fn turn(&mut self, number: u64, buffer: &mut [u8]) {
        let Some(Joined { sockets, .. }) = self.carried.get_mut(&number) else { return };
        match sockets.turn(buffer, |n| self.bytes += n as u64) {
            Ok(Turn::Rests) => return,
            Ok(Turn::HasMore) => {
                if !self.more.contains(&number) {
                    self.more.push(number);
                }
                return;
            }
            Ok(Turn::Over) => {}
            Err(e) if e.kind() == ErrorKind::ConnectionReset => {}
            Err(why) => eprintln!("a connection is reset: {why}"),
        }
        self.carried.remove(&number);
        self.done += 1;
        let counters =
            [("open", self.carried.len() as u64), ("done", self.done), ("bytes", self.bytes)];
        let counters = counters.map(|(name, n)| (name.to_owned(), n)).into();
        // Without a gateway nobody wants to know.
        let _ = self.client.send(&Request::Stats { counters }, b"", None);
    }
}
