//! The carriers: link packets in and out of UDP sockets, in batches. One socket is the node's own;
//! a peer with several ways to it has more, each tied to an interface or a source address. Modems
//! on serial lines are carriers beside them, numbered from the last.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use link::endpoint::Thinning;
use link::{CarrierId, PathId, PeerId, Remote};
use os::OsError;
use os::poll::{Clock, Interest, Poller};
use os::udp::{Transmit, UdpConfig, UdpError, UdpSocket};
use relay::Relay;
use units::{BitRate, Duration, Instant};

use super::gathering::Gathering;
use super::serial_line::SerialLine;
use super::steering;
use super::thinning;
use super::unreached::Unreached;
use crate::config::{Binding, Peer, SerialModem};

/// Bytes of one batch to the kernel: about 40 full packets, one system call.
const BATCH: usize = 60_000;
/// The largest link packet.
const MAX_PACKET: usize = 9_000;
/// Receive calls per turn, so that a flood cannot keep the loop from its other work.
const RECEIVES: usize = 4;
/// ICMP errors that are read per turn; what comes beyond them waits, or is lost.
const ERRORS: usize = 16;
/// Floods that are thinned are told of once in so long.
const TELLING: Duration = Duration::from_secs(60);
/// Pieces that one receive call takes. Their room is only touched as far as it is filled.
const PIECES: usize = 16;

/// The UDP sockets and their buffers.
pub struct Carrier {
    /// By [`CarrierId`]; the first is the node's own.
    sockets: Vec<Socket>,
    /// Modems: their numbers are counted from the last one down.
    serials: Vec<(CarrierId, SerialLine)>,
    /// Their packets bypass interception by it.
    mark: Option<u32>,
    receive: Vec<u8>,
    batch: Vec<u8>,
    /// A batch that the kernel did not take yet.
    waiting: Option<Batch>,
    /// A packet that did not fit the batch before it, and where it goes.
    spill: Vec<u8>,
    spilled: Option<Destination>,
    pub send_errors: u64,
    /// What ICMP errors said.
    pub unreached: Unreached,
    /// When it was told last that a flood is thinned.
    thinned: Option<Instant>,
}

/// One socket.
struct Socket {
    socket: UdpSocket,
    binding: Binding,
    /// The number of its interface when it was bound; `None`: it names none, or that is not there
    /// yet, or not with the address, and the socket is the loopback's meanwhile.
    interface: Option<u32>,
    /// It may hold more than the last turn took.
    more: bool,
    /// It may hold ICMP errors.
    failed: bool,
    /// When it is read without news of it.
    gathering: Gathering,
    /// What the poller tells of it.
    watched: Interest,
}

/// A place, and the peer that is there, on which path.
type Destination = (Remote, Option<(PeerId, PathId)>);

#[derive(Clone, Copy, Debug)]
struct Batch {
    to: Destination,
    segment: usize,
    start: usize,
    end: usize,
}

/// Has this host the address that the packets are to leave from, if they are to? Where the system
/// does not tell the socket does, when it is bound.
fn has_source(binding: &Binding) -> bool {
    binding.source.is_none_or(|source| {
        let own = os::addresses::own_addresses();
        own.map_or(true, |all| all.iter().any(|prefix| prefix.contains(source)))
    })
}

impl Socket {
    fn new(socket: UdpSocket, binding: Binding, interface: Option<u32>) -> Socket {
        Socket {
            socket,
            binding,
            interface,
            more: true,
            failed: false,
            gathering: Gathering::default(),
            watched: Interest::READ.edge(),
        }
    }

    /// For a binding. Where its interface is not there yet, as before a call, or has not got its
    /// address yet, the loopback's socket has its number and port meanwhile: its path has no link,
    /// and sends nothing.
    fn open(binding: &Binding, mut config: UdpConfig) -> Result<Socket, OsError> {
        config.max_datagram = MAX_PACKET;
        config.interface.clone_from(&binding.interface);
        let index = binding.interface.as_deref().and_then(os::links::index);
        let index = index.filter(|_| has_source(binding));
        if let (None, Some(name)) = (index, &binding.interface) {
            let of_family: IpAddr = match config.local.is_ipv6() {
                true => Ipv6Addr::UNSPECIFIED.into(),
                false => Ipv4Addr::UNSPECIFIED.into(),
            };
            config.local.set_ip(of_family);
            config.interface = Some("lo".to_owned());
            let what = match os::links::index(name) {
                None => "a carrier's interface is not there yet",
                Some(_) => "a carrier's source is not there yet",
            };
            crate::log!(Warn, what, interface = name);
        }
        let socket = UdpSocket::bind(&config)?;
        Ok(Socket::new(socket, binding.clone(), index))
    }

    /// Has the poller tell only what the next turn waits for. Room to write is news with
    /// every packet that leaves the kernel, and matters only while a batch waits for it; what
    /// arrives is none while packets gather. A change tells also what is the case already.
    fn watch_anew(&mut self, poller: &Poller, token: u64, blocked: bool) -> Result<(), OsError> {
        let wanted = match (self.gathering.until().is_some(), blocked) {
            (false, false) => Interest::READ,
            (false, true) => Interest::READ_WRITE,
            (true, false) => Interest::NONE,
            (true, true) => Interest::WRITE,
        };
        let wanted = wanted.edge();
        if std::mem::replace(&mut self.watched, wanted) == wanted {
            return Ok(());
        }
        poller.modify(&self.socket, token, wanted)
    }

    /// Reads what is there; true if more may be.
    fn read(&mut self, id: CarrierId, buf: &mut [u8], clock: &Clock, relay: &mut Relay) -> bool {
        for _ in 0..RECEIVES {
            match self.socket.receive(buf) {
                Ok(datagrams) => {
                    let now = clock.now();
                    let more = datagrams.is_full();
                    for d in datagrams {
                        let arrived = now - d.age;
                        // How long each packet waited matters then, also for those before it.
                        let now = if relay.endpoint.is_strained() { clock.now() } else { now };
                        self.gathering.on_packet(arrived);
                        let from = Remote { carrier: id, addr: Some(d.from) };
                        relay.handle_carrier(now, arrived, from, d.payload);
                    }
                    if !more {
                        return false;
                    }
                }
                Err(UdpError::Blocked) => return false,
                // The kernel tells of an earlier packet that nobody took, once.
                Err(_) => {}
            }
        }
        true
    }
}

impl Carrier {
    /// Opens a socket on `listen` for each of so many shards, at least one. With a `mark`
    /// their packets bypass interception.
    pub fn open(
        listen: SocketAddr,
        mark: Option<u32>,
        shards: u32,
    ) -> Result<Vec<Carrier>, OsError> {
        let mut config = UdpConfig::new(listen);
        config.mark = mark;
        config.max_datagram = MAX_PACKET;
        let program = steering::program(shards);
        let group = UdpSocket::bind_group(&config, shards as usize, &program)?;
        Ok(group.into_iter().map(|socket| Carrier::on(socket, mark)).collect())
    }

    fn on(socket: UdpSocket, mark: Option<u32>) -> Carrier {
        let receive = vec![0; socket.slot() * PIECES];
        Carrier {
            sockets: vec![Socket::new(socket, Binding::default(), None)],
            serials: Vec::new(),
            mark,
            receive,
            batch: vec![0; BATCH + MAX_PACKET],
            waiting: None,
            spill: Vec::with_capacity(MAX_PACKET),
            spilled: None,
            send_errors: 0,
            unreached: Unreached::default(),
            thinned: None,
        }
    }

    /// Opens a socket for each way out that the peers' carriers name and that there is none for
    /// yet, on a port of its own. It stays open when no carrier names it any more.
    ///
    /// # Errors
    /// If the system refuses, or there are more than a number tells apart.
    pub fn bind(&mut self, peers: &[std::sync::Arc<Peer>]) -> Result<(), OsError> {
        let carriers = peers.iter().flat_map(|peer| &peer.carriers);
        for (binding, to) in carriers.map(|c| (&c.binding, c.endpoint.as_ref())) {
            let next = self.sockets.len();
            let is_taken = |(id, _): &(CarrierId, SerialLine)| usize::from(id.0) == next;
            let is_full = next > usize::from(u8::MAX) || self.serials.iter().any(is_taken);
            if self.id_of(binding).is_some() || is_full {
                continue;
            }
            let v6 = to.and_then(|to| to.ip()).is_some_and(|to| to.is_ipv6());
            let any = if v6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
            let source: IpAddr = binding.source.unwrap_or(any);
            let mut config = UdpConfig::new(SocketAddr::new(source, 0));
            config.mark = self.mark;
            let socket = Socket::open(binding, config)?;
            let longest = self.receive.len().max(socket.socket.slot() * PIECES);
            self.receive.resize(longest, 0);
            self.sockets.push(socket);
        }
        Ok(())
    }

    /// Opens sockets anew whose interface is there now, with the address that they want, or is
    /// another of the same name: the kernel ties them to its number. They keep their ports, which
    /// the firewall's rules know.
    pub fn rebind(&mut self, poller: &Poller, token: u64, more: u64) {
        for at in 1..self.sockets.len() {
            let old = &self.sockets[at];
            let index = old.binding.interface.as_deref().and_then(os::links::index);
            if index.is_none() || index == old.interface || !has_source(&old.binding) {
                continue;
            }
            let local = old.socket.local_addr();
            let source = old.binding.source.unwrap_or(local.ip());
            let mut config = UdpConfig::new(SocketAddr::new(source, local.port()));
            config.mark = self.mark;
            let opened = Socket::open(&old.binding, config).and_then(|new| {
                poller.add(&new.socket, token_of(at, token, more), new.watched)?;
                Ok(new)
            });
            match opened {
                Ok(new) => self.sockets[at] = new,
                Err(why) => crate::log!(Warn, why),
            }
        }
    }

    /// Is the socket of a carrier with an interface tied to the one that there is?
    pub fn is_bound(&self, binding: &Binding) -> bool {
        let socket = self.sockets.iter().find(|s| s.binding == *binding);
        let index = binding.interface.as_deref().and_then(os::links::index);
        index.is_some() && socket.is_some_and(|s| s.interface == index)
    }

    /// Is any socket tied to an interface?
    pub fn has_interfaces(&self) -> bool {
        self.sockets.iter().any(|s| s.binding.interface.is_some())
    }

    /// The socket that is bound so.
    pub fn id_of(&self, binding: &Binding) -> Option<CarrierId> {
        let at = self.sockets.iter().position(|s| s.binding == *binding)?;
        u8::try_from(at).ok().map(CarrierId)
    }

    /// Adds the modem of a link at `rate` with such a round trip; `more` as for
    /// [`Carrier::watch`]. `None`: numbers are used up.
    pub fn add_serial(
        &mut self,
        line: &SerialModem,
        (rate, rtt): (BitRate, Duration),
        more: u64,
    ) -> Option<CarrierId> {
        let free = |n: &u8| self.serials.iter().all(|(id, _)| id.0 != *n);
        let n = (0..=u8::MAX).rev().find(free).filter(|n| usize::from(*n) >= self.sockets.len())?;
        self.serials.push((CarrierId(n), SerialLine::new(line, rate, rtt, more + u64::from(n))));
        Some(CarrierId(n))
    }

    /// Takes a modem out with its line, and its call, which whoever takes it ends.
    pub fn take_serial(&mut self, id: CarrierId, poller: &Poller) -> Option<SerialLine> {
        let at = self.serials.iter().position(|(other, _)| *other == id)?;
        let (_, line) = self.serials.remove(at);
        line.unwatch(poller);
        Some(line)
    }

    /// A modem, to look at.
    pub fn serial(&self, id: CarrierId) -> Option<&SerialLine> {
        self.serials.iter().find(|(other, _)| *other == id).map(|(_, line)| line)
    }

    /// A modem.
    pub fn serial_mut(&mut self, id: CarrierId) -> Option<&mut SerialLine> {
        self.serials.iter_mut().find(|(other, _)| *other == id).map(|(_, line)| line)
    }

    /// Reads and writes serial lines, and does what is due with their modems.
    pub fn turn_serials(&mut self, clock: &Clock, poller: &Poller, relay: &mut Relay) {
        for (id, line) in &mut self.serials {
            let now = clock.now();
            let from = Remote { carrier: *id, addr: None };
            line.turn(now, poller, |packet| relay.handle_carrier(now, now, from, packet));
        }
    }

    /// Writes what was sent on serial lines.
    pub fn flush_serials(&mut self, now: Instant, poller: &Poller) {
        self.serials.iter_mut().for_each(|(_, line)| line.flush(now, poller));
    }

    /// Begins to watch the sockets, the first as `token`, the others as those that follow
    /// `more`.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn watch(&self, poller: &Poller, token: u64, more: u64) -> Result<(), OsError> {
        self.watch_from(0, poller, token, more)
    }

    /// How many sockets there are.
    pub fn sockets(&self) -> usize {
        self.sockets.len()
    }

    /// As [`Carrier::watch`], but for the first ones, which are watched already.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn watch_from(
        &self,
        first: usize,
        poller: &Poller,
        token: u64,
        more: u64,
    ) -> Result<(), OsError> {
        for (at, socket) in self.sockets.iter().enumerate().skip(first) {
            poller.add(&socket.socket, token_of(at, token, more), socket.watched)?;
        }
        Ok(())
    }

    /// Has the poller tell only what the next turn waits for.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn watch_anew(&mut self, poller: &Poller, token: u64, more: u64) -> Result<(), OsError> {
        let blocked = self.waiting.map(|b| usize::from(b.to.0.carrier.0));
        for (at, socket) in self.sockets.iter_mut().enumerate() {
            socket.watch_anew(poller, token_of(at, token, more), blocked == Some(at))?;
        }
        Ok(())
    }

    /// The poller has news of a socket.
    pub fn on_event(&mut self, at: usize, readable: bool, failed: bool) {
        if let Some(socket) = self.sockets.get_mut(at) {
            socket.more |= readable;
            socket.failed |= failed;
        }
    }

    /// Is something known to be there?
    pub fn has_work(&self) -> bool {
        self.sockets.iter().any(|s| s.more || s.failed)
    }

    /// Where the node's own socket listens, with the port that all shards' have.
    pub fn local_addr(&self) -> SocketAddr {
        self.sockets[0].socket.local_addr()
    }

    /// Ports of all sockets.
    pub fn ports(&self) -> Vec<u16> {
        self.sockets.iter().map(|s| s.socket.local_addr().port()).collect()
    }

    /// When a socket is to be read although nothing is told of it.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let sockets = self.sockets.iter().filter_map(|s| s.gathering.until());
        sockets.chain(self.serials.iter().filter_map(|(_, line)| line.poll_timeout())).min()
    }

    /// Hands what has arrived to the relay, if anything may have. The clock is read anew for
    /// each batch: how late this host is must not look like a queue on the way. True if a
    /// socket was looked at.
    pub fn receive(&mut self, clock: &Clock, relay: &mut Relay) -> bool {
        let mut any = false;
        let now = clock.now();
        relay.endpoint.begin_turn(now);
        if let Some(thinning) = relay.endpoint.poll_thinning(now) {
            self.thin(now, &thinning);
        }
        for at in 0..self.sockets.len() {
            if self.sockets[at].failed {
                any = true;
                self.read_errors(at, now);
            }
            let socket = &mut self.sockets[at];
            if !socket.more && !socket.gathering.is_due(now) {
                continue;
            }
            any = true;
            socket.more = socket.read(CarrierId(at as u8), &mut self.receive, clock, relay);
            if !socket.more {
                let now = clock.now();
                socket.gathering.on_empty(now, relay.endpoint.may_gather_for(now));
            }
        }
        any
    }

    /// Has the kernel thin floods, or no more.
    fn thin(&mut self, now: Instant, thinning: &Thinning) {
        let program = thinning::program(thinning);
        for socket in &self.sockets {
            let done = match thinning.is_none() {
                true => socket.socket.clear_filter(),
                false => socket.socket.set_filter(&program),
            };
            // Without it a flood costs more, and that is all.
            if let Err(why) = done
                && self.thinned.is_none_or(|at| now.since(at) >= TELLING)
            {
                crate::log!(Warn, why);
            }
        }
        if !thinning.is_none() && self.thinned.is_none_or(|at| now.since(at) >= TELLING) {
            crate::log!(
                Warn,
                "a flood of packets is thinned before it is read",
                of_peers = !thinning.over.is_empty(),
                of_strangers = thinning.strangers > 0,
                of_handshakes = thinning.calls > 0
            );
            self.thinned = Some(now);
        }
    }

    fn read_errors(&mut self, at: usize, now: Instant) {
        for _ in 0..ERRORS {
            match self.sockets[at].socket.next_error() {
                Some(error) => self.unreached.on_icmp(now, error),
                None => {
                    self.sockets[at].failed = false;
                    return;
                }
            }
        }
    }

    /// Sends what the relay has, as far as its pacer and the kernel allow. The
    /// clock is read anew for each batch, as in [`Carrier::receive`].
    pub fn send(&mut self, clock: &Clock, relay: &mut Relay) {
        loop {
            if let Some(batch) = self.waiting {
                if !self.push(clock.now(), relay, batch) {
                    return;
                }
                self.waiting = None;
            }
            let Some(batch) = self.fill(clock.now(), relay) else { return };
            self.waiting = Some(batch);
        }
    }

    /// True while the kernel's buffer is full: ask again when the socket is writable.
    pub fn is_blocked(&self) -> bool {
        self.waiting.is_some()
    }

    /// Packets of one length to one destination (the last may be shorter) lie end to end.
    fn fill(&mut self, now: Instant, relay: &mut Relay) -> Option<Batch> {
        let mut batch: Option<Batch> = None;
        loop {
            let at = batch.map_or(0, |b| b.end);
            let next = match self.take_spill(at) {
                Some(next) => next,
                None => match relay.poll_transmit(now, &mut self.batch[at..]) {
                    Some(t) => ((t.to, t.peer), t.len),
                    None => break,
                },
            };
            let (to, len) = next;
            match &mut batch {
                None => batch = Some(Batch { to, segment: len, start: 0, end: len }),
                Some(b) if b.to == to && len <= b.segment => {
                    b.end += len;
                    if len < b.segment {
                        break;
                    }
                }
                Some(_) => {
                    self.spill.clear();
                    self.spill.extend_from_slice(&self.batch[at..at + len]);
                    self.spilled = Some(to);
                    break;
                }
            }
            if batch.is_some_and(|b| b.end + b.segment > BATCH) {
                break;
            }
        }
        batch
    }

    fn take_spill(&mut self, at: usize) -> Option<(Destination, usize)> {
        let to = self.spilled.take()?;
        let len = self.spill.len();
        self.batch[at..at + len].copy_from_slice(&self.spill);
        Some((to, len))
    }

    /// True if the batch is done with, sent or given up.
    fn push(&mut self, now: Instant, relay: &mut Relay, mut b: Batch) -> bool {
        let mut doubted = false;
        let Some(to) = b.to.0.addr else {
            let packets = self.batch[b.start..b.end].chunks(b.segment.max(1));
            let line = self.serials.iter_mut().find(|(id, _)| *id == b.to.0.carrier);
            let Some((_, line)) = line else { return true };
            packets.for_each(|packet| line.send(packet));
            self.send_errors += std::mem::take(&mut line.lost);
            return true;
        };
        let others = self.sockets.len() > 1;
        while b.start < b.end {
            let payload = &self.batch[b.start..b.end];
            let transmit = Transmit { to, from: None, payload, segment: b.segment };
            let Some(socket) = self.sockets.get_mut(usize::from(b.to.0.carrier.0)) else {
                return true;
            };
            match socket.socket.send(&transmit) {
                Ok(()) => return true,
                Err(e) => {
                    b.start += e.sent;
                    match e.reason {
                        // No carrier holds up another: what one does not take is lost, and
                        // goes again.
                        UdpError::Blocked if others => {
                            self.send_errors += (b.end - b.start).div_ceil(b.segment) as u64;
                            return true;
                        }
                        UdpError::Blocked => {
                            self.waiting = Some(b);
                            return false;
                        }
                        // The first error may be ICMP's, about an earlier packet, even
                        // another peer's, and forged: it is told once, and this one can be
                        // tried again.
                        UdpError::Refused => {}
                        _ if !doubted => doubted = true,
                        // No way there now: link repair sends it again.
                        reason => {
                            doubted = false;
                            if let UdpError::Unreachable(e) = &reason {
                                self.unreached.on_refused(now, to, e);
                            }
                            let len = b.segment.min(b.end - b.start);
                            if let (UdpError::TooBig, Some((peer, path))) = (reason, b.to.1)
                                && let Some(session) = relay.endpoint.session_mut(peer)
                            {
                                session.on_too_big(now, path, len);
                            }
                            self.send_errors += 1;
                            b.start += len;
                        }
                    }
                }
            }
        }
        true
    }
}

/// What the poller calls a socket.
fn token_of(at: usize, first: u64, more: u64) -> u64 {
    if at == 0 { first } else { more + at as u64 }
}

#[cfg(test)]
mod tests {
    use link::endpoint::{Endpoint, EndpointConfig};
    use link::keys::PrivateKey;
    use os::poll::Events;
    use units::Duration;

    use super::*;

    const ANYWHERE: &str = "127.0.0.1:0";

    fn relays(shards: u32) -> Vec<Relay> {
        let config = EndpointConfig {
            private_key: PrivateKey::from_bytes([1; 32]),
            seed: [2; 32],
            hardware_aes: false,
            initiations_per_second: 100,
            key_lifetime: link::endpoint::MAX_KEY_LIFETIME,
            fresh: None,
        };
        Endpoint::divided(config, shards).into_iter().map(Relay::new).collect()
    }

    fn sender() -> UdpSocket {
        UdpSocket::bind(&UdpConfig::new(ANYWHERE.parse().unwrap())).unwrap()
    }

    #[test]
    fn what_arrives_while_packets_gather_is_no_news_and_afterwards_it_is() {
        let clock = Clock::start();
        let mut carrier = Carrier::open(ANYWHERE.parse().unwrap(), None, 1).unwrap().remove(0);
        let (mut relay, mut sender) = (relays(1).remove(0), sender());
        let (mut poller, mut events) = (Poller::new().unwrap(), Events::with_capacity(4));
        carrier.watch(&poller, 1, 10).unwrap();
        let to = carrier.local_addr();
        let mut send = |packets: usize| {
            let payload = vec![7; 100 * packets];
            sender.send(&Transmit { to, from: None, payload: &payload, segment: 100 }).unwrap();
        };
        // A busy machine may not look in time.
        for _ in 0..1_000 {
            send(64);
            carrier.on_event(0, true, false);
            carrier.receive(&clock, &mut relay);
            if carrier.poll_timeout().is_some() {
                break;
            }
        }
        assert!(carrier.poll_timeout().is_some(), "a run of packets gathers");
        carrier.watch_anew(&poller, 1, 10).unwrap();
        send(1);
        assert_eq!(poller.wait(&mut events, Some(Duration::ZERO)).unwrap(), 0);
        while carrier.poll_timeout().is_some() {
            carrier.receive(&clock, &mut relay);
        }
        carrier.watch_anew(&poller, 1, 10).unwrap();
        poller.wait(&mut events, Some(Duration::ZERO)).unwrap();
        send(1);
        assert_eq!(poller.wait(&mut events, Some(Duration::from_secs(10))).unwrap(), 1);
        assert!(events.iter().all(|event| event.token == 1 && event.readable));
    }

    #[test]
    fn a_packet_behind_an_initiation_is_kept_for_its_shard() {
        let mut carriers = Carrier::open(ANYWHERE.parse().unwrap(), None, 2).unwrap();
        let (mut relays, mut sender) = (relays(2), sender());
        let mut initiation = vec![0; 200];
        initiation[..2].copy_from_slice(&[1, 1]);
        let data = |index: u16| {
            let mut packet = vec![7; 200];
            packet[0] = 0xc0;
            packet[1..3].copy_from_slice(&index.to_be_bytes());
            packet
        };
        // One run for the kernel, which asks about its first packet only.
        let run = [initiation, data(0x1001), data(0x1000)].concat();
        let to = carriers[0].local_addr();
        sender.send(&Transmit { to, from: None, payload: &run, segment: 200 }).unwrap();
        let until = std::time::Instant::now() + std::time::Duration::from_secs(10);
        let stray = loop {
            for (carrier, relay) in carriers.iter_mut().zip(&mut relays) {
                carrier.on_event(0, true, false);
                carrier.receive(&Clock::start(), relay);
            }
            if let Some(stray) = relays[0].endpoint.poll_handed_over() {
                break stray;
            }
            assert!(std::time::Instant::now() < until, "the other's packet comes");
            std::thread::sleep(std::time::Duration::from_millis(1));
        };
        assert_eq!((stray.shard, stray.is_initiation()), (1, false));
        assert!(relays.iter_mut().all(|relay| relay.endpoint.poll_handed_over().is_none()));
        let drops = relays[0].endpoint.drops();
        assert_eq!((drops["wrong mac1"], drops["unknown index"]), (1, 1), "{drops:?}");
        assert!(relays[1].endpoint.drops().is_empty());
        relays[1].endpoint.take_handed_over(Instant::ZERO, stray);
        assert_eq!(relays[1].endpoint.drops()["unknown index"], 1);
    }
}
