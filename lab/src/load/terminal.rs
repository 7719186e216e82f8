//! One terminal: the link's own endpoint with a socket and a source address of its own, and
//! what it has asked of the server behind the hub.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use link::endpoint::{Endpoint, EndpointConfig, EndpointEvent, LinkEvent, MAX_KEY_LIFETIME};
use link::keys::{PresharedKey, PrivateKey};
use link::seal::Cipher;
use link::session::{Event, LinkConfig, NEARLY_EMPTY, RateMode, RecvState};
use link::wire::{Origin, StreamId, Target};
use link::{PeerConfig, PeerId};
use os::poll::Clock;
use os::udp::{Transmit, UdpConfig, UdpSocket};
use units::{BitRate, ByteCount, Duration, Instant, Ratio};

use super::hub::{self, HUB, PORT, SERVER};
use super::server;

/// Addresses of 127.0.0.0/8 that are in one /24, so that no terminal has that of another, nor
/// the hub's.
const IN_A_PREFIX: usize = 250;
/// A terminal's socket: what two seconds of its link hold.
const SOCKET: usize = 1 << 20;

/// What happened at terminals, all together.
#[derive(Debug, Default)]
pub struct Tally {
    /// Sessions that began.
    pub sessions: usize,
    /// Streams of requests that were answered in full: of terminals that did nothing else, and
    /// of those with a transfer.
    pub answered: [Vec<Duration>; 2],
    /// Requests, and transfers, that came to nothing.
    pub failed: usize,
    /// Batches that the kernel did not take.
    pub unsent: usize,
}

/// One of them.
pub struct Terminal {
    pub endpoint: Endpoint,
    hub: PeerId,
    /// The host behind it.
    host: IpAddr,
    pub socket: UdpSocket,
    /// When the endpoint wants to be called, as the fleet has it.
    pub timer: Option<Instant>,
    transfer: Option<StreamId>,
    request: Option<(StreamId, Instant)>,
    /// Bytes of its transfer that came.
    pub taken: u64,
}

/// Where the terminal of this number is.
fn address(n: usize) -> Ipv4Addr {
    let (prefix, host) = (n / IN_A_PREFIX, n % IN_A_PREFIX);
    Ipv4Addr::new(127, 1 + (prefix / 250) as u8, (prefix % 250) as u8, 1 + host as u8)
}

/// The rates of a terminal's link: to it, and from it.
pub fn rates(to: BitRate) -> [BitRate; 2] {
    [to, BitRate::from_mbps(1)]
}

fn link_config(to: BitRate) -> LinkConfig {
    let [receive_rate, send_rate] = rates(to);
    LinkConfig {
        send_rate,
        rate_mode: RateMode::Fixed,
        receive_rate,
        rtt: hub::DELAY.times(2),
        mtu: 1500,
        packet: 1500,
        queue: NEARLY_EMPTY,
        bit_errors: Ratio::ZERO,
        overhead: 0,
        memory: ByteCount(4 << 20),
        stream_buffer: None,
        max_streams: 64,
        headers: true,
        history: ByteCount(0),
        dedup: false,
        facts: Default::default(),
        classes: Vec::new(),
    }
}

impl Terminal {
    /// A terminal that calls the hub at once.
    ///
    /// # Errors
    /// One sentence.
    pub fn open(n: usize, now: Instant, to: BitRate) -> Result<Terminal, String> {
        let mut config = UdpConfig::new(SocketAddr::new(address(n).into(), PORT));
        (config.receive_buffer, config.send_buffer) = (SOCKET, SOCKET);
        let socket = UdpSocket::bind(&config).map_err(|e| e.to_string())?;
        let mut endpoint = Endpoint::new(EndpointConfig {
            private_key: hub::key(n),
            seed: os::proc::entropy().map_err(|e: os::OsError| e.to_string())?,
            fresh: None,
            hardware_aes: Cipher::hardware_aes(),
            initiations_per_second: 100,
            key_lifetime: MAX_KEY_LIFETIME,
        });
        let hub_key: PrivateKey = hub::key(hub::OWN_KEY);
        let peer = PeerConfig {
            public_key: *hub_key.public(),
            preshared_key: PresharedKey::NONE,
            endpoint: Some(SocketAddr::from((HUB, PORT)).into()),
            link: link_config(to),
            keepalive: Some(hub::KEEPALIVE),
        };
        let hub = endpoint.add_peer(now, peer).map_err(|e| e.to_string())?;
        let (host, timer) = (hub::host_behind(n).into(), None);
        let (transfer, request) = (None, None);
        Ok(Terminal { endpoint, hub, host, socket, timer, transfer, request, taken: 0 })
    }

    /// Is there a session, and nothing that was asked of the server?
    pub fn is_free(&self) -> bool {
        self.endpoint.is_established(self.hub) && self.request.is_none()
    }

    /// Its round trip, if one was measured.
    pub fn rtt(&self) -> Option<Duration> {
        let session = self.endpoint.session(self.hub)?;
        (session.newest_rtt().0 > 0).then(|| session.rtt())
    }

    /// Reads what has come.
    pub fn receive(&mut self, clock: &Clock, buf: &mut [u8], failed: bool) {
        while failed && self.socket.next_error().is_some() {}
        // What is left is told again.
        let Ok(datagrams) = self.socket.receive(buf) else { return };
        for d in datagrams {
            let now = clock.now();
            self.endpoint.handle_packet(now, now - d.age, d.from.into(), d.payload);
        }
    }

    /// Asks the server for so many bytes.
    fn ask(&mut self, now: Instant, bytes: u64) -> Option<StreamId> {
        let client = Some(SocketAddr::new(self.host, 1));
        let target = Target::Address(SocketAddr::new(SERVER.into(), server::PORT));
        let session = self.endpoint.session_mut(self.hub)?;
        let stream = session.open(now, Origin { client, target, dscp: 0 })?;
        session.write(now, stream, &bytes.to_be_bytes());
        session.finish(now, stream);
        Some(stream)
    }

    /// Begins a transfer that does not end.
    pub fn begin_transfer(&mut self, now: Instant) {
        self.transfer = self.ask(now, u64::MAX);
    }

    /// Gives its transfer up.
    pub fn end_transfer(&mut self, now: Instant) {
        let session = self.endpoint.session_mut(self.hub);
        if let (Some(stream), Some(session)) = (self.transfer.take(), session) {
            session.release(now, stream);
        }
    }

    /// Asks for a small answer.
    pub fn begin_request(&mut self, now: Instant) {
        self.request = self.ask(now, server::SMALL).map(|stream| (stream, now));
    }

    /// Follows what happened, and sends what is to be sent.
    pub fn settle(&mut self, now: Instant, buf: &mut [u8], tally: &mut Tally) {
        while let Some(event) = self.endpoint.poll_event() {
            match event {
                EndpointEvent::Stream(_, Event::Readable(id) | Event::Reset(id, _)) => {
                    self.read(now, id, tally);
                }
                EndpointEvent::SessionLost(..) => {
                    tally.failed += usize::from(self.request.take().is_some());
                    tally.failed += usize::from(self.transfer.take().is_some());
                }
                EndpointEvent::Link(_, LinkEvent::Up { resumed: false, .. }) => {
                    tally.sessions += 1;
                }
                _ => {}
            }
        }
        self.send(now, buf, tally);
    }

    fn read(&mut self, now: Instant, id: StreamId, tally: &mut Tally) {
        let Some(session) = self.endpoint.session_mut(self.hub) else { return };
        let mut taken = 0;
        while let n @ 1.. = session.peek(id).len() {
            session.consume(now, id, n);
            taken += n as u64;
        }
        let is_transfer = self.transfer == Some(id);
        if is_transfer {
            self.taken += taken;
        }
        let state = session.recv_state(id);
        if state == RecvState::Open {
            return;
        }
        session.release(now, id);
        if is_transfer {
            self.transfer = None;
            tally.failed += 1;
        } else if let Some((_, asked)) = self.request.take_if(|(stream, _)| *stream == id) {
            match state {
                RecvState::Finished => {
                    let which = usize::from(self.transfer.is_some());
                    tally.answered[which].push(now.since(asked));
                }
                _ => tally.failed += 1,
            }
        }
    }

    /// All packets go to the hub; those of one length in one batch, whose last may be shorter.
    fn send(&mut self, now: Instant, buf: &mut [u8], tally: &mut Tally) {
        let (mut end, mut segment) = (0, 0);
        while let Some(t) = self.endpoint.poll_transmit(now, &mut buf[end..]) {
            if end > 0 && t.len > segment {
                self.push(&buf[..end], segment, tally);
                buf.copy_within(end..end + t.len, 0);
                end = 0;
            }
            if end == 0 {
                segment = t.len;
            }
            end += t.len;
            if t.len < segment || end + 2 * segment > buf.len() {
                self.push(&buf[..end], segment, tally);
                end = 0;
            }
        }
        if end > 0 {
            self.push(&buf[..end], segment, tally);
        }
    }

    fn push(&mut self, payload: &[u8], segment: usize, tally: &mut Tally) {
        let to = SocketAddr::from((HUB, PORT));
        // An error may be an earlier packet's: what the hub's socket did not take while the hub
        // was not there.
        let mut from = 0;
        for _ in 0..3 {
            let rest = &payload[from..];
            let batch = Transmit { to, from: None, payload: rest, segment };
            match self.socket.send(&batch) {
                Ok(()) => return,
                Err(e) => from += e.sent,
            }
        }
        tally.unsent += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_terminals_have_one_address() {
        let all: std::collections::BTreeSet<_> = (0..70_000).map(address).collect();
        assert_eq!(all.len(), 70_000);
        assert!(!all.contains(&HUB) && all.iter().all(|a| a.is_loopback() && a.octets()[3] != 255));
    }
}
