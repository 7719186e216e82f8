//! The carrier: link packets in and out of one UDP socket, in batches.

use std::net::SocketAddr;

use link::PeerId;
use os::OsError;
use os::poll::Clock;
use os::udp::{Transmit, UdpConfig, UdpError, UdpSocket};
use relay::Relay;
use units::Instant;

use super::steering;
use super::unreached::Unreached;

/// Bytes of one batch to the kernel: about 40 full packets, one system call.
const BATCH: usize = 60_000;
/// The largest link packet.
const MAX_PACKET: usize = 9_000;
/// Receive calls per turn, so that a flood cannot keep the loop from its other work.
const RECEIVES: usize = 8;
/// ICMP errors that are read per turn; what comes beyond them waits, or is lost.
const ERRORS: usize = 16;

/// The UDP socket and its buffers.
pub struct Carrier {
    pub socket: UdpSocket,
    receive: Vec<u8>,
    batch: Vec<u8>,
    /// A batch that the kernel did not take yet.
    waiting: Option<Batch>,
    /// A packet that did not fit the batch before it, and where it goes.
    spill: Vec<u8>,
    spilled: Option<Destination>,
    pub send_errors: u64,
    /// The socket may hold more than the last turn took.
    pub more: bool,
    /// The socket may hold ICMP errors.
    pub failed: bool,
    /// What they said.
    pub unreached: Unreached,
}

/// An address, and the peer that is there.
type Destination = (SocketAddr, Option<PeerId>);

#[derive(Clone, Copy, Debug)]
struct Batch {
    to: Destination,
    segment: usize,
    start: usize,
    end: usize,
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
        Ok(group.into_iter().map(Carrier::on).collect())
    }

    fn on(socket: UdpSocket) -> Carrier {
        let receive = vec![0; socket.slot() * 8];
        Carrier {
            socket,
            receive,
            batch: vec![0; BATCH + MAX_PACKET],
            waiting: None,
            spill: Vec::with_capacity(MAX_PACKET),
            spilled: None,
            send_errors: 0,
            more: true,
            failed: false,
            unreached: Unreached::default(),
        }
    }

    /// The port that all shards' sockets have.
    pub fn port(&self) -> u16 {
        self.socket.local_addr().port()
    }

    /// Hands what has arrived to the relay; true if more may be there. The clock is read
    /// anew for each batch: how late this host is must not look like a queue on the way.
    pub fn receive(&mut self, clock: &Clock, relay: &mut Relay) -> bool {
        if self.failed {
            self.read_errors(clock.now());
        }
        let mut more = self.failed;
        for _ in 0..RECEIVES {
            match self.socket.receive(&mut self.receive) {
                Ok(datagrams) => {
                    let now = clock.now();
                    more = true;
                    for d in datagrams {
                        relay.handle_carrier(now, now - d.age, d.from, d.payload);
                    }
                }
                Err(UdpError::Blocked) => return self.failed,
                // The kernel tells of an earlier packet that nobody took, once.
                Err(_) => {}
            }
        }
        more
    }

    fn read_errors(&mut self, now: Instant) {
        for _ in 0..ERRORS {
            match self.socket.next_error() {
                Some(error) => self.unreached.on_icmp(now, error),
                None => {
                    self.failed = false;
                    return;
                }
            }
        }
    }

    /// Sends what the relay has, as far as its departure clock and the kernel allow. The
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
        while b.start < b.end {
            let payload = &self.batch[b.start..b.end];
            let transmit = Transmit { to: b.to.0, from: None, payload, segment: b.segment };
            match self.socket.send(&transmit) {
                Ok(()) => return true,
                Err(e) => {
                    b.start += e.sent;
                    match e.reason {
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
                                self.unreached.on_refused(now, b.to.0, e);
                            }
                            let len = b.segment.min(b.end - b.start);
                            if let (UdpError::TooBig, Some(peer)) = (reason, b.to.1)
                                && let Some(session) = relay.endpoint.session_mut(peer)
                            {
                                session.on_too_big(now, len);
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

#[cfg(test)]
mod tests {
    use link::endpoint::{Endpoint, EndpointConfig};
    use link::keys::PrivateKey;

    use super::*;

    #[test]
    fn a_packet_behind_an_initiation_is_kept_for_its_shard() {
        let mut carriers = Carrier::open("127.0.0.1:0".parse().unwrap(), None, 2).unwrap();
        let config = EndpointConfig {
            private_key: PrivateKey::from_bytes([1; 32]),
            seed: [2; 32],
            hardware_aes: false,
            initiations_per_second: 100,
        };
        let mut relays: Vec<Relay> =
            Endpoint::divided(config, 2).into_iter().map(Relay::new).collect();
        let mut sender = UdpSocket::bind(&UdpConfig::new("127.0.0.1:0".parse().unwrap())).unwrap();
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
        let to = carriers[0].socket.local_addr();
        sender.send(&Transmit { to, from: None, payload: &run, segment: 200 }).unwrap();
        let until = std::time::Instant::now() + std::time::Duration::from_secs(10);
        let stray = loop {
            for (carrier, relay) in carriers.iter_mut().zip(&mut relays) {
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
