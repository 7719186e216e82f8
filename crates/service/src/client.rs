//! A service's end of the socket.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, IoSlice};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};

use os::seqpacket::SeqPacket;

use crate::message::{Event, Reason, Request};
use crate::packet::{self, MAX_PACKET, Malformed};
use crate::{SOCKET_VARIABLE, VERSION};

/// Why a service cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It was not started by a gateway.
    #[error("{SOCKET_VARIABLE} names no socket: a gateway starts this program, not a person")]
    NotStartedByAGateway,
    /// The gateway speaks another version.
    #[error("the gateway speaks version {0} of the service protocol, and this program {VERSION}")]
    OtherVersion(u32),
    /// The socket.
    #[error("the socket to the gateway: {0}")]
    Socket(#[from] io::Error),
    /// The gateway sent something else than a message, or a message cannot be sent.
    #[error("a packet between gateway and service: {0}")]
    Malformed(#[from] Malformed),
    /// Too much waits to be said.
    #[error("the gateway takes nothing of what is said")]
    NotHeard,
}

/// What came from the gateway.
#[derive(Debug)]
pub struct Delivery<'a> {
    /// The message.
    pub event: Event,
    /// The bytes behind it.
    pub bytes: &'a [u8],
    /// Its socket, where it has one: connected, non-blocking, and reset when it is closed unless
    /// [`close_in_order`] was called.
    pub socket: Option<OwnedFd>,
}

/// Room for a packet.
pub fn room() -> Vec<u8> {
    vec![0; MAX_PACKET]
}

/// From now on closing the socket ends it instead of resetting it: for connections of which both
/// directions have ended in good order (S-SK-2).
///
/// # Errors
/// If it is no such socket.
pub fn close_in_order(socket: &impl AsFd) -> io::Result<()> {
    os::tcp::close_in_order(socket.as_fd())
}

type Answer = Result<(Event, OwnedFd), Reason>;

/// Requests that wait for their answers.
#[derive(Default)]
struct Open {
    last: u64,
    waiting: BTreeMap<u64, Sender<Answer>>,
    ended: bool,
}

/// What a service takes beside connections over a link that is up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Takes {
    /// Hosts' datagrams.
    pub datagrams: bool,
    /// What hosts want while the link is down: it has answers of its own.
    pub offline: bool,
    /// Clients of the node's proxy, of whom something was read already.
    pub proxied: bool,
}

/// A service's end of the socket. Any thread may send; one takes what comes, by [`Client::next`],
/// and thereby also the answers that others wait for.
pub struct Client {
    socket: SeqPacket,
    name: String,
    open: Mutex<Open>,
}

impl Client {
    /// The gateway that started this program. Says hello.
    ///
    /// # Errors
    /// If there is none, or it speaks another version.
    pub fn from_environment() -> Result<Client, Error> {
        Client::new(Client::inherited()?)
    }

    /// The same, for a service that takes more than connections over a link that is up.
    ///
    /// # Errors
    /// As [`Client::from_environment`].
    pub fn from_environment_taking(takes: Takes) -> Result<Client, Error> {
        Client::with(Client::inherited()?, takes)
    }

    fn inherited() -> Result<SeqPacket, Error> {
        let number = std::env::var(SOCKET_VARIABLE).ok().and_then(|n| n.parse().ok());
        let socket = number.and_then(|n| SeqPacket::inherited(n).ok());
        socket.ok_or(Error::NotStartedByAGateway)
    }

    /// The gateway at the other end of `socket`. Says hello.
    ///
    /// # Errors
    /// If it speaks another version, or ends.
    pub fn new(socket: SeqPacket) -> Result<Client, Error> {
        Client::with(socket, Takes::default())
    }

    fn with(socket: SeqPacket, takes: Takes) -> Result<Client, Error> {
        let mut client = Client { socket, name: String::new(), open: Mutex::default() };
        let mut room = room();
        match client.next(&mut room)?.map(|delivery| delivery.event) {
            Some(Event::Hello { version: VERSION, service }) => client.name = service,
            Some(Event::Hello { version, .. }) => return Err(Error::OtherVersion(version)),
            Some(_) => return Err(Malformed::NoMessage.into()),
            None => return Err(io::Error::from(ErrorKind::UnexpectedEof).into()),
        }
        let Takes { datagrams, offline, proxied } = takes;
        let hello = Request::Hello { version: VERSION, datagrams, offline, pings: true, proxied };
        client.send(&hello, b"", None)?;
        Ok(client)
    }

    /// The service's name in the gateway's file.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Waits for what the gateway says next; `None` when it has ended, and so should the service.
    ///
    /// # Errors
    /// If the socket fails, or what came is no message.
    pub fn next<'a>(&self, room: &'a mut [u8]) -> Result<Option<Delivery<'a>>, Error> {
        self.next_if(room, true, true)
    }

    /// The same, for a thread that only hands what comes to the one that does the work: pings are
    /// handed over, too, for that one to answer with [`Request::Pong`].
    ///
    /// # Errors
    /// As [`Client::next`].
    pub fn next_or_ping<'a>(&self, room: &'a mut [u8]) -> Result<Option<Delivery<'a>>, Error> {
        self.next_if(room, true, false)
    }

    /// What the gateway has said, without waiting: `Err` with `WouldBlock` in it where there is
    /// nothing. For programs that watch the descriptor themselves.
    ///
    /// # Errors
    /// As [`Client::next`].
    pub fn try_next<'a>(&self, room: &'a mut [u8]) -> Result<Option<Delivery<'a>>, Error> {
        self.next_if(room, false, true)
    }

    fn next_if<'a>(
        &self,
        room: &'a mut [u8],
        waits: bool,
        answers_pings: bool,
    ) -> Result<Option<Delivery<'a>>, Error> {
        loop {
            let got = self.socket.receive(room, waits)?;
            if got.len == 0 {
                self.end();
                return Ok(None);
            }
            let Some((event, at, socket)) = self.take(&room[..got.len], got.descriptors)? else {
                continue;
            };
            if event == Event::Ping && answers_pings {
                self.pong()?;
                continue;
            }
            return Ok(Some(Delivery { event, bytes: &room[at..got.len], socket }));
        }
    }

    /// A message, where its bytes begin, and its socket; `None` if somebody waited for it.
    fn take(
        &self,
        packet: &[u8],
        mut descriptors: Vec<OwnedFd>,
    ) -> Result<Option<(Event, usize, Option<OwnedFd>)>, Error> {
        let (event, bytes) = packet::decode::<Event>(packet)?;
        let at = packet.len() - bytes.len();
        let socket = descriptors.pop();
        if event.has_socket() != socket.is_some() && event != Event::Unknown {
            return Err(Malformed::NoMessage.into());
        }
        let request = match &event {
            Event::Opened { request, .. }
            | Event::Connected { request, .. }
            | Event::Failed { request, .. } => *request,
            _ => return Ok(Some((event, at, socket))),
        };
        let Some(waits) = self.lock().waiting.remove(&request) else {
            return Ok(Some((event, at, socket)));
        };
        // Who does not wait any more drops the socket, which resets it.
        let _ = waits.send(match (event, socket) {
            (Event::Failed { reason, .. }, _) => Err(reason),
            (event, Some(socket)) => Ok((event, socket)),
            (_, None) => Err(Reason::Invalid),
        });
        Ok(None)
    }

    /// Says that this program is still there.
    fn pong(&self) -> Result<(), Error> {
        let packet = packet::encode(&Request::Pong, b"")?;
        match self.socket.send(&[IoSlice::new(&packet)], &[], false) {
            // The gateway has enough to hear of it. Who takes its answers must not wait for it.
            Err(e) if e.kind() == ErrorKind::WouldBlock => Ok(()),
            sent => Ok(sent?),
        }
    }

    /// Sends a request, with bytes and a socket where it has them. Waits while the gateway takes
    /// no more, which it does not as long as answers are unread: not for the thread that takes
    /// what comes ([`Queued`](crate::Queued) is for that).
    ///
    /// # Errors
    /// If the socket fails, or the packet would be too long.
    pub fn send(
        &self,
        request: &Request,
        bytes: &[u8],
        socket: Option<BorrowedFd<'_>>,
    ) -> Result<(), Error> {
        self.send_packet(&packet::encode(request, bytes)?, socket, true)
    }

    /// Sends a packet; where the gateway takes no more it waits if `wait`, and else it is
    /// `WouldBlock`.
    pub(crate) fn send_packet(
        &self,
        packet: &[u8],
        socket: Option<BorrowedFd<'_>>,
        wait: bool,
    ) -> Result<(), Error> {
        Ok(self.socket.send(&[IoSlice::new(packet)], socket.as_slice(), wait)?)
    }

    /// Opens a stream to the service of this name at `peer` and waits for it; its number and its
    /// socket. Not for the thread that takes what comes.
    ///
    /// # Errors
    /// Why there is none.
    pub fn open(
        &self,
        peer: &str,
        client: Option<SocketAddr>,
        preface: &[u8],
    ) -> Result<(u64, OwnedFd), Reason> {
        let peer = peer.to_owned();
        let answer =
            self.ask(preface, |request| Request::Open { request, peer, class: None, client });
        match answer? {
            (Event::Opened { id, .. }, socket) => Ok((id, socket)),
            _ => Err(Reason::Invalid),
        }
    }

    /// Has the gateway connect to a server for `peer` and waits for it; the server's address and
    /// the socket. Not for the thread that takes what comes.
    ///
    /// # Errors
    /// Why there is none: as the system, a router or the gateway's file says it.
    pub fn connect(
        &self,
        peer: &str,
        target: &str,
        source: Option<SocketAddr>,
    ) -> Result<(SocketAddr, OwnedFd), Reason> {
        let (peer, target) = (peer.to_owned(), target.to_owned());
        let answer = self.ask(b"", |request| Request::Connect { request, peer, target, source });
        match answer? {
            (Event::Connected { server, .. }, socket) => Ok((server, socket)),
            _ => Err(Reason::Invalid),
        }
    }

    /// Gives a connection back, with what was read of it: the gateway splits it as a plain one. It
    /// is reset where that is more than a packet holds, or the gateway has too many descriptors to
    /// receive: that concerns one connection, and the service goes on.
    ///
    /// # Errors
    /// If the socket to the gateway fails.
    pub fn pass(&self, socket: OwnedFd, dscp: u8, read: &[u8]) -> Result<(), Error> {
        match self.send(&Request::Pass { dscp }, read, Some(socket.as_fd())) {
            Err(Error::Malformed(_)) => Ok(()),
            Err(Error::Socket(e)) if e.kind() == ErrorKind::WouldBlock => Ok(()),
            sent => sent,
        }
    }

    fn ask(&self, bytes: &[u8], request: impl FnOnce(u64) -> Request) -> Answer {
        let (answer_to, answer) = channel();
        let number = {
            let mut open = self.lock();
            if open.ended {
                return Err(Reason::ShuttingDown);
            }
            open.last += 1;
            let last = open.last;
            open.waiting.insert(last, answer_to);
            last
        };
        match self.send(&request(number), bytes, None) {
            Ok(()) => answer.recv().unwrap_or(Err(Reason::ShuttingDown)),
            Err(why) => {
                self.lock().waiting.remove(&number);
                Err(match why {
                    Error::Malformed(_) => Reason::Invalid,
                    _ => Reason::ShuttingDown,
                })
            }
        }
    }

    /// Nobody waits in vain.
    fn end(&self) {
        let mut open = self.lock();
        open.ended = true;
        open.waiting.clear();
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests;
