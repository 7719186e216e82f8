//! A service's socket as all shards have it: each sends by itself, and the first one alone takes
//! what the service says.

use std::collections::{BTreeMap, VecDeque};
use std::io::{ErrorKind, IoSlice};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use os::closing::{Closer, Shared};
use os::seqpacket::SeqPacket;
use os::tcp::Stream;
use relay::Target;
use service::message::Incoming;
use service::quota::Quota;
use service::{Event, Reason, Takes, packet};

use crate::proxy_proto::Rest;

/// Memory that unread packets may take while connections are still given: about a hundred. The
/// rest of the kernel's queue is for answers. Streams of a peer have no more of it than is free:
/// its 48 exchanges may begin at once.
const QUEUE: usize = 128 * 1024;
/// What the kernel takes for a packet beside its bytes, about.
const OVERHEAD: usize = 640;
/// More than that the kernel's queue does not hold.
const MOST_UNREAD: usize = 256 * 1024;
/// Sockets of which the service has made that their end waits (`os::closing`).
const UNCLOSED: usize = 1024;
/// Requests of a service that may be open at once. A peer has no more of them than are free: a
/// server that does not answer its hosts may keep one open for two minutes.
const MOST_REQUESTS: usize = 4096;

/// Clients of the proxy whose servers are remembered, should they come back: the newest.
const MOST_PROXIED: usize = 4096;

/// A client of the proxy that a service has. Its socket does not say where it wants to go.
#[derive(Clone, Debug)]
pub struct Proxied {
    pub target: Target,
    pub client: SocketAddr,
    /// What of its bytes behind the first ones is for the server.
    pub rest: Rest,
    /// How many those were.
    pub early: usize,
}

/// Their sockets' two addresses, the client's first.
type Ends = (SocketAddr, SocketAddr);

/// Requests that are open.
#[derive(Debug)]
struct Requests {
    open: Quota<()>,
    /// For whom each is, by its number, and how often a service that breaks S-MS-1 has used that.
    of: BTreeMap<u64, (String, usize)>,
}

/// The last packets, of which the service reads the oldest first: for which peer each is, and the
/// memory that it takes, about.
#[derive(Debug, Default)]
struct Packets {
    last: VecDeque<(Option<String>, usize)>,
    sum: usize,
    of: BTreeMap<String, usize>,
}

impl Packets {
    /// One more was sent.
    fn push(&mut self, peer: Option<String>, size: usize) {
        self.sum += size;
        if let Some(peer) = &peer {
            *self.of.entry(peer.clone()).or_default() += size;
        }
        self.last.push_back((peer, size));
        self.keep(MOST_UNREAD);
    }

    /// No more than these bytes are unread.
    fn keep(&mut self, unread: usize) {
        while self.sum > unread
            && let Some((peer, size)) = self.last.pop_front()
        {
            self.sum -= size;
            if let Some(peer) = peer
                && let Some(its) = self.of.get_mut(&peer)
            {
                *its -= size;
                if *its == 0 {
                    self.of.remove(&peer);
                }
            }
        }
    }
}

/// What has gone over a line since it stands.
#[derive(Debug, Default)]
pub struct Counts {
    /// Hosts' connections that were given.
    pub accepted: AtomicU64,
    /// Such as were split as plain streams because the queue was full.
    pub overflowed: AtomicU64,
    /// Hosts' datagrams that were given.
    pub datagrams: AtomicU64,
    /// Such as came back.
    pub passed: AtomicU64,
    /// Streams of its own.
    pub opened: AtomicU64,
    /// Streams of the peers' services.
    pub incoming: AtomicU64,
    /// Connections to servers.
    pub connected: AtomicU64,
    /// Requests that came to nothing.
    pub failed: AtomicU64,
}

/// A socket to a service that runs.
#[derive(Debug)]
pub struct Line {
    /// The service.
    pub name: String,
    pub counts: Counts,
    socket: SeqPacket,
    closer: Arc<Closer>,
    last: AtomicU64,
    packets: Mutex<Packets>,
    requests: Mutex<Requests>,
    /// Answers that wait for room at the shards.
    waiting: AtomicUsize,
    /// It takes nothing new.
    closed: AtomicBool,
    /// What it said that it takes.
    datagrams: AtomicBool,
    offline: AtomicBool,
    takes_proxied: AtomicBool,
    /// With the number of each.
    proxied: Mutex<BTreeMap<Ends, (u64, Proxied)>>,
    /// Nobody is at its other end.
    gone: AtomicBool,
}

/// What became of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    Done,
    /// There is no room now.
    Full,
    /// Nobody reads any more.
    Gone,
}

impl Line {
    /// `closer` closes what the service has, too: the same for all lines to it.
    pub fn new(name: &str, socket: SeqPacket, closer: &Arc<Closer>) -> Line {
        Line {
            name: name.to_owned(),
            counts: Counts::default(),
            socket: socket.closed_by(closer),
            closer: closer.clone(),
            last: AtomicU64::new(0),
            packets: Mutex::default(),
            requests: Mutex::new(Requests { open: Quota::new(MOST_REQUESTS), of: BTreeMap::new() }),
            waiting: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
            datagrams: AtomicBool::new(false),
            offline: AtomicBool::new(false),
            takes_proxied: AtomicBool::new(false),
            proxied: Mutex::default(),
            gone: AtomicBool::new(false),
        }
    }

    /// Sends a message.
    pub fn send(&self, event: &Event, bytes: &[u8], socket: Option<BorrowedFd<'_>>) -> Sent {
        let Ok(packet) = packet::encode(event, bytes) else {
            return Sent::Gone; // Names of peers and classes are shorter than that.
        };
        match self.socket.send(&[IoSlice::new(&packet)], socket.as_slice(), false) {
            Ok(()) => {
                let peer = match event {
                    Event::Incoming(Incoming { peer, .. }) | Event::Hinted { peer, .. } => {
                        Some(peer.clone())
                    }
                    _ => None,
                };
                let mut packets = self.packets.lock().unwrap_or_else(PoisonError::into_inner);
                packets.push(peer, packet.len() + OVERHEAD);
                Sent::Done
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock => Sent::Full,
            Err(_) => Sent::Gone,
        }
    }

    /// Takes the next packet: its length, and its descriptors.
    pub fn receive(&self, room: &mut [u8]) -> std::io::Result<(usize, Vec<Shared>)> {
        self.socket.receive_shared(room, &self.closer)
    }

    /// A socket of which the service is about to have a copy.
    pub fn share(&self, stream: Stream) -> Shared {
        stream.share(&self.closer)
    }

    /// May it have one more connection, or stream?
    pub fn has_room(&self) -> bool {
        !self.closed.load(Relaxed)
            && self.waiting.load(Relaxed) == 0
            && self.closer.waiting() < UNCLOSED
            && self.unread() < QUEUE
    }

    /// May it have one more stream of the peer's, or one more word about what goes to it?
    pub fn has_room_for(&self, peer: &str) -> bool {
        if !self.has_room() {
            return false;
        }
        let unread = self.unread();
        let mut packets = self.packets.lock().unwrap_or_else(PoisonError::into_inner);
        packets.keep(unread);
        packets.of.get(peer).is_none_or(|its| *its < QUEUE.saturating_sub(unread))
    }

    /// Memory of the packets that it has not read.
    pub fn unread(&self) -> usize {
        self.socket.unread().unwrap_or(0)
    }

    /// It takes this from now on.
    pub fn set_takes(&self, Takes { datagrams, offline, proxied }: Takes) {
        self.takes_proxied.store(proxied, Relaxed);
        self.datagrams.store(datagrams, Relaxed);
        self.offline.store(offline, Relaxed);
    }

    /// Does it take what hosts want while the link is down?
    pub fn works_offline(&self) -> bool {
        self.offline.load(Relaxed)
    }

    /// Does it take clients of the proxy?
    pub fn takes_proxied(&self) -> bool {
        self.takes_proxied.load(Relaxed)
    }

    /// It is given a client of the proxy, as connection `id`.
    pub fn note_proxied(&self, ends: Ends, id: u64, it: Proxied) {
        let mut all = self.proxied.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= MOST_PROXIED
            && let Some(oldest) = all.iter().min_by_key(|(_, (id, _))| *id).map(|(ends, _)| *ends)
        {
            all.remove(&oldest);
        }
        all.insert(ends, (id, it));
    }

    /// It gives one back; `None` if the connection with these ends is none, or too long ago.
    pub fn take_proxied(&self, ends: Ends) -> Option<Proxied> {
        let mut all = self.proxied.lock().unwrap_or_else(PoisonError::into_inner);
        all.remove(&ends).map(|(_, it)| it)
    }

    /// May it have one more datagram?
    pub fn has_room_for_datagrams(&self) -> bool {
        self.datagrams.load(Relaxed) && self.has_room()
    }

    /// It takes nothing new from now on.
    pub fn close(&self) {
        self.closed.store(true, Relaxed);
    }

    /// Does it take nothing new?
    pub fn is_closed(&self) -> bool {
        self.closed.load(Relaxed)
    }

    /// Its program has ended, or is about to.
    pub fn leave(&self) {
        self.close();
        self.gone.store(true, Relaxed);
    }

    /// Is nobody at its other end?
    pub fn is_gone(&self) -> bool {
        self.gone.load(Relaxed)
    }

    /// A number for a connection or a stream.
    pub fn next_id(&self) -> u64 {
        self.last.fetch_add(1, Relaxed) + 1
    }

    /// A request for the peer has come, without one for hosts of this side, and is open until
    /// [`Line::end_request`]; false if there are too many.
    pub fn begin_request(&self, request: u64, peer: Option<&str>) -> bool {
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        let Requests { open, of } = &mut *requests;
        // No peer has an empty name.
        let (peer, times) = of.entry(request).or_insert((peer.unwrap_or_default().to_owned(), 0));
        let has_room = open.has_room_for_peer(peer);
        open.begin(peer, ());
        *times += 1;
        has_room
    }

    /// Gives it a connection; false where it does not take it. Counted before it has the
    /// connection: it may pass that back at once, to another thread.
    pub fn give(&self, event: &Event, bytes: &[u8], socket: BorrowedFd<'_>) -> bool {
        self.counts.accepted.fetch_add(1, Relaxed);
        let is_given = self.send(event, bytes, Some(socket)) == Sent::Done;
        if !is_given {
            self.counts.accepted.fetch_sub(1, Relaxed);
        }
        is_given
    }

    /// A connection comes back; false if it has none that could.
    pub fn take_back(&self) -> bool {
        self.counts.passed.fetch_add(1, Relaxed) < self.counts.accepted.load(Relaxed)
    }

    /// The answer to this request was sent.
    pub fn end_request(&self, request: u64) {
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        let Requests { open, of } = &mut *requests;
        let Some((peer, times)) = of.get_mut(&request) else { return };
        open.end(peer, ());
        *times -= 1;
        if *times == 0 {
            of.remove(&request);
        }
    }

    /// Answers that wait for room; requests are not taken while there are some.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Relaxed)
    }

    /// One more waits, or one less.
    pub fn count_waiting(&self, more: bool) {
        match more {
            true => self.waiting.fetch_add(1, Relaxed),
            false => self.waiting.fetch_sub(1, Relaxed),
        };
    }
}

impl AsFd for Line {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// An answer to a request, which is not lost while the service lives.
#[derive(Debug)]
pub struct Answer {
    pub event: Event,
    pub socket: Option<Shared>,
}

impl Answer {
    /// A request came to nothing.
    pub fn failed(request: u64, reason: Reason) -> Answer {
        Answer { event: Event::Failed { request, reason }, socket: None }
    }

    /// The request that it answers.
    pub fn request(&self) -> Option<u64> {
        match self.event {
            Event::Opened { request, .. }
            | Event::Connected { request, .. }
            | Event::Resolved { request, .. }
            | Event::Failed { request, .. } => Some(request),
            _ => None,
        }
    }
}

/// What the link protocol's reasons are called here.
pub fn reason_of(reason: relay::ResetReason) -> Reason {
    use relay::ResetReason as R;
    match reason {
        R::HostReset => Reason::HostReset,
        R::Refused => Reason::Refused,
        R::Unreachable => Reason::Unreachable,
        R::TimedOut => Reason::TimedOut,
        R::Denied => Reason::Denied,
        R::NoSuchName => Reason::NoSuchName,
        R::Exhausted => Reason::Exhausted,
        R::PeerRestarted => Reason::PeerRestarted,
        R::ShuttingDown => Reason::ShuttingDown,
        R::Protocol => Reason::Protocol,
        R::NoSuchService => Reason::NoSuchService,
        R::Icmp(code) => Reason::Icmp(code),
        R::Icmpv6(code) => Reason::Icmpv6(code),
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use os::tcp::{TcpOptions, pair};
    use service::Request;

    use super::*;

    /// A service sends a socket whose end it has made to wait for half a minute, with a message
    /// that has none, with one that is too long, and with one that nobody takes.
    #[test]
    fn no_socket_that_a_service_sends_holds_up_the_gateway() {
        let closer = Closer::start().unwrap();
        let (ours, theirs) = SeqPacket::pair().unwrap();
        let line = Line::new("rogue", ours, &closer);
        let stop = packet::encode(&Request::Stop, b"").unwrap();
        let mut far = Vec::new();
        for packet in [&stop[..], &[b'x'; 200], &stop] {
            let (near, other) = pair(&TcpOptions::default(), &TcpOptions::default()).unwrap();
            while near.write(&[0; 1 << 16]).is_ok() {}
            os::tcp::linger(near.as_fd(), units::Duration::from_secs(30)).unwrap();
            theirs.send(&[IoSlice::new(packet)], &[near.as_fd()], false).unwrap();
            far.push(other);
        }
        let begin = Instant::now();
        let mut room = [0; 100];
        assert_eq!(line.receive(&mut room).unwrap().1.len(), 1);
        assert_eq!(line.receive(&mut room).unwrap_err().kind(), ErrorKind::InvalidData);
        drop(line);
        assert!(begin.elapsed() < Duration::from_secs(15), "{:?}", begin.elapsed());
        drop(far);
    }

    /// Else it could be taken to pass on more than it was given.
    #[test]
    fn only_what_a_service_takes_counts_as_given() {
        let (ours, theirs) = SeqPacket::pair().unwrap();
        let line = Line::new("web", ours, &Closer::start().unwrap());
        let (socket, _far) = pair(&TcpOptions::default(), &TcpOptions::default()).unwrap();
        let give = || line.give(&Event::Stop, b"", socket.as_fd());
        assert!(give() && line.take_back());
        drop(theirs);
        // Another test's child has its end, too, until it runs its program.
        let begin = Instant::now();
        while give() {
            assert!(line.take_back() && begin.elapsed() < Duration::from_secs(15));
        }
        assert!(!line.take_back());
    }

    #[test]
    fn a_peer_whose_streams_come_faster_than_they_are_taken_leaves_the_others_theirs() {
        let (ours, theirs) = SeqPacket::pair().unwrap();
        let line = Line::new("web", ours, &Closer::start().unwrap());
        let open = |peer: &str, most: usize| {
            let incoming = |id| Incoming { id, peer: peer.to_owned(), client: None };
            let send = |id| line.send(&Event::Incoming(incoming(id)), &[0; 300], None);
            (0..most as u64)
                .take_while(|id| line.has_room_for(peer) && send(*id) == Sent::Done)
                .count()
        };
        let read = |most: usize| {
            let mut room = [0; 2048];
            (0..most).take_while(|_| theirs.receive(&mut room, false).is_ok()).count()
        };
        // What it had of old, and was read, does not count.
        for _ in 0..20 {
            assert_eq!((open("evil", 30), read(30)), (30, 30));
        }
        assert_eq!(line.send(&Event::Stop, b"", None), Sent::Done);
        let its = open("evil", 1_000);
        assert!((48..100).contains(&its), "{its} streams");
        assert_eq!(open("ship", 10), 10);
        assert_eq!(open("evil", 1), 0);
        let others: usize = (0..100).map(|n| open(&format!("ship{n}"), 1)).sum();
        assert!(others > 10, "{others} other peers");
        // The service reads the first ones.
        read(its + 1);
        assert!(line.packets.lock().unwrap().of.len() > 10 && open("evil", 5) == 5);
        read(1_000);
        assert!(line.has_room_for("ship") && line.packets.lock().unwrap().of.is_empty());
    }

    #[test]
    fn a_service_whose_sockets_do_not_end_is_given_no_more() {
        let closer = Closer::start().unwrap();
        let line = Line::new("rogue", SeqPacket::pair().unwrap().0, &closer);
        assert!(line.has_room());
        let begin = Instant::now();
        // Where another test's child has the socket too, until it runs its program, this end of it
        // is not the last one, and does not wait: the next is tried.
        let far = loop {
            let (near, far) = pair(&TcpOptions::default(), &TcpOptions::default()).unwrap();
            while near.write(&[0; 1 << 16]).is_ok() {}
            let lingering = line.share(near);
            os::tcp::linger(lingering.as_fd(), units::Duration::from_secs(30)).unwrap();
            drop(lingering);
            for _ in 0..UNCLOSED {
                drop(Shared::new(std::fs::File::open("/dev/null").unwrap().into(), &closer));
            }
            if !line.has_room() {
                break far;
            }
            assert!(begin.elapsed() < Duration::from_secs(15), "none was held up");
        };
        drop(far);
        let begin = Instant::now();
        while !line.has_room() {
            assert!(begin.elapsed() < Duration::from_secs(15), "they have ended");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}
