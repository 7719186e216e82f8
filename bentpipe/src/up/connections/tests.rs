//! Real sockets of one gateway, over a link in memory whose time is the test's: what their hosts
//! were acknowledged, or are still to get, when an end or a reset comes.

use link::endpoint::{Endpoint, EndpointConfig, MAX_KEY_LIFETIME};
use link::keys::{PresharedKey, PrivateKey};
use link::session::LinkConfig;
use link::{PeerConfig, PeerId};
use os::poll::Events;
use relay::{Action, Origin, Policy, Target};
use units::{BitRate, ByteCount, Ratio};

use super::*;

/// What each gateway calls the other.
const PEER: PeerId = PeerId::from_index(0);
const STEP: Duration = Duration::from_millis(1);

/// A host, its gateway, and the other gateway, whose host is the test.
struct Bench {
    now: Instant,
    near: Relay,
    far: Relay,
    connections: Connections,
    poller: Poller,
    events: Events,
    /// The host's socket; reset when it is dropped.
    host: Option<Stream>,
    /// A flow for which the gateway is to connect.
    asked: Option<FlowId>,
    /// The far gateway's name for the connection.
    far_flow: FlowId,
    /// The far host takes what comes. What came to it, and how it ended.
    far_reads: bool,
    got: Vec<u8>,
    end: RecvState,
}

fn address(side: usize) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, side as u8 + 1], 4500))
}

fn link(rate: BitRate) -> LinkConfig {
    LinkConfig {
        bit_errors: Ratio::ZERO,
        rate_mode: Default::default(),
        headers: true,
        classes: Default::default(),
        queue: Default::default(),
        send_rate: rate,
        receive_rate: rate,
        rtt: Duration::from_millis(100),
        mtu: 1500,
        packet: 1500,
        overhead: 0,
        memory: ByteCount(8 << 20),
        stream_buffer: None,
        max_streams: 100,
        history: ByteCount(0),
        dedup: false,
        facts: Default::default(),
    }
}

fn gateway(now: Instant, side: usize, link: LinkConfig) -> Relay {
    let keys = [1u8, 2].map(|n| PrivateKey::from_bytes([n; 32]));
    let mut relay = Relay::new(Endpoint::new(EndpointConfig {
        private_key: keys[side].clone(),
        seed: [side as u8 + 7; 32],
        hardware_aes: false,
        initiations_per_second: 1000,
        key_lifetime: MAX_KEY_LIFETIME,
        fresh: None,
    }));
    let config = PeerConfig {
        public_key: *keys[1 - side].public(),
        preshared_key: PresharedKey::NONE,
        endpoint: Some(address(1 - side).into()),
        link,
        keepalive: None,
    };
    let policy = Policy {
        routes: vec!["10.2.0.0/16".parse().unwrap()],
        allow: ["10.2.0.0/16", "127.0.0.0/8"].map(|p| p.parse().unwrap()).to_vec(),
        ..Policy::default()
    };
    relay.add_peer(now, config, policy).unwrap();
    relay
}

impl Bench {
    /// A connection that stands, over a link of this rate. The host's receive buffer is as small as
    /// is wanted.
    fn new(rate: BitRate, receive_buffer: Option<usize>) -> Bench {
        Bench::over(link(rate), receive_buffer)
    }

    fn over(link: LinkConfig, receive_buffer: Option<usize>) -> Bench {
        let now = Instant::ZERO + Duration::from_secs(1);
        let [mut near, far] = [0, 1].map(|side| gateway(now, side, link.clone()));
        let host = TcpOptions { receive_buffer, ..TcpOptions::default() };
        // More than the relay takes at once.
        let near_end = TcpOptions { receive_buffer: Some(1 << 20), ..TcpOptions::default() };
        let (ours, host) = tcp::pair(&near_end, &host).unwrap();
        let poller = Poller::new().unwrap();
        let mut connections = Connections::new(TcpOptions::default());
        let target = Target::Address("10.2.0.2:80".parse().unwrap());
        let flow = near.open(now, PEER, Origin { client: None, target, dscp: 0 }).unwrap();
        assert!(connections.add(&poller, flow, ours, false));
        let mut bench = Bench {
            now,
            near,
            far,
            connections,
            poller,
            events: Events::with_capacity(16),
            host: Some(host),
            asked: None,
            far_flow: FlowId::from_u64(u64::MAX),
            far_reads: true,
            got: Vec::new(),
            end: RecvState::Open,
        };
        bench.until(30, |bench| bench.far_flow != FlowId::from_u64(u64::MAX));
        bench
    }

    /// What there is to do now.
    fn step(&mut self) {
        let now = self.now;
        self.poller.wait(&mut self.events, Some(Duration::ZERO)).unwrap();
        self.events.iter().for_each(|event| self.connections.on_event(event));
        self.near.handle_timeout(now);
        self.connections.handle_timeout(now, &self.poller, &mut self.near);
        while let Some(action) = self.near.poll_action(now) {
            match action {
                Action::Write(flow) | Action::Read(flow) => self.connections.enqueue(flow),
                Action::PeerReset(flow, _) => {
                    self.connections.peer_reset(now, flow, &mut self.near);
                }
                Action::Abort(flow, _) => self.connections.abort(flow),
                Action::Connect { flow, .. } => self.asked = Some(flow),
                _ => {}
            }
        }
        self.connections.work(now, &self.poller, &mut self.near);
        self.far.handle_timeout(now);
        while let Some(action) = self.far.poll_action(now) {
            if let Action::Connect { flow, .. } = action {
                self.far.connected(flow);
                self.far_flow = flow;
            }
        }
        self.read_far();
        for side in 0..2 {
            let mut buf = [0; 2048];
            let (from, to) = match side {
                0 => (&mut self.near, &mut self.far),
                _ => (&mut self.far, &mut self.near),
            };
            while let Some(sent) = from.poll_transmit(now, &mut buf) {
                to.handle_carrier(now, now, address(side), &mut buf[..sent.len]);
            }
        }
    }

    /// The far host takes all that there is.
    fn read_far(&mut self) {
        if !self.far_reads
            || self.end != RecvState::Open
            || self.far.flow_peer(self.far_flow).is_none()
        {
            return;
        }
        loop {
            let mut slices: [&[u8]; 16] = [&[]; 16];
            let n = self.far.outgoing(self.now, self.far_flow, &mut slices);
            if n == 0 {
                self.end = self.far.outgoing_state(self.far_flow);
                return;
            }
            let before = self.got.len();
            slices[..n].iter().for_each(|slice| self.got.extend_from_slice(slice));
            self.far.wrote(self.now, self.far_flow, self.got.len() - before);
        }
    }

    /// Steps of a millisecond until `done`, for so many seconds of the link at most. The kernel,
    /// whose time is not the link's, then has some more to move what it has.
    fn until(&mut self, secs: u64, mut done: impl FnMut(&mut Bench) -> bool) {
        let end = self.now + Duration::from_secs(secs);
        let mut waited = 0;
        while !done(self) {
            if self.now < end {
                self.now += STEP;
            } else {
                assert!(waited < 5_000, "{secs} s have passed: {} bytes came", self.got.len());
                std::thread::sleep(std::time::Duration::from_millis(1));
                waited += 1;
            }
            self.step();
        }
    }

    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        self.until(time.as_millis() / 1000 + 1, |bench| bench.now >= end);
    }

    /// The far host writes as much as its gateway takes at once, then resets.
    fn far_writes_and_resets(&mut self, bytes: &[u8]) -> usize {
        let room = self.far.writable_bytes(self.now, self.far_flow).min(bytes.len());
        let taken = self.far.local_data(self.now, self.far_flow, &bytes[..room]);
        self.far.local_reset(self.now, self.far_flow, ResetReason::HostReset);
        taken
    }

    fn host(&self) -> &Stream {
        self.host.as_ref().expect("it has not reset")
    }

    /// What the host can read now; an error where it was reset.
    fn read_host(&self, into: &mut Vec<u8>) -> Result<(), ErrorKind> {
        let mut buf = [0; 4096];
        loop {
            match self.host().read(&mut buf) {
                Ok(0) => panic!("an end in order after {} bytes", into.len()),
                Ok(n) => into.extend_from_slice(&buf[..n]),
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(e) => return Err(e.kind()),
            }
        }
    }

    /// The host gives bytes until its gateway's system has acknowledged them all.
    fn host_writes(&mut self, bytes: &[u8]) {
        let mut at = 0;
        self.until(60, |bench| {
            at += bench.host().write(&bytes[at..]).unwrap_or(0);
            at == bytes.len() && bench.host().unacknowledged().unwrap() == 0
        });
    }
}

fn pattern(len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    units::Rng::new(1).fill(&mut bytes);
    bytes
}

#[test]
fn what_a_host_was_acknowledged_before_its_reset_is_delivered_and_then_the_reset() {
    for far_writes in [false, true] {
        // In the kernel's queue lie many seconds of the link.
        let mut bench = Bench::new(BitRate::from_kbps(128), None);
        let bytes = pattern(200_000);
        bench.host_writes(&bytes);
        bench.host = None;
        if far_writes {
            // The gateway hears of the reset as it writes.
            bench.far.local_data(bench.now, bench.far_flow, b"an answer that nobody reads");
        }
        bench.until(60, |bench| bench.end != RecvState::Open);
        assert_eq!(bench.end, RecvState::Reset(ResetReason::HostReset));
        assert!(bench.got == bytes, "{} of {} bytes", bench.got.len(), bytes.len());
        assert_eq!(bench.connections.len(), 0, "far writes: {far_writes}");
    }
}

#[test]
fn an_end_in_order_is_not_made_of_a_reset_that_waits_for_its_bytes() {
    let mut bench = Bench::new(BitRate::from_kbps(128), None);
    let bytes = pattern(200_000);
    bench.host_writes(&bytes);
    bench.host().shutdown_write().unwrap();
    bench.pass(Duration::from_millis(10));
    bench.host = None;
    bench.until(60, |bench| bench.end != RecvState::Open);
    assert_eq!(bench.end, RecvState::Reset(ResetReason::HostReset));
    assert!(bench.got == bytes, "{} of {} bytes", bench.got.len(), bytes.len());
}

#[test]
fn a_reset_is_told_after_a_minute_where_the_far_host_takes_nothing_of_what_came_before() {
    let link =
        LinkConfig { stream_buffer: Some(ByteCount(64 << 10)), ..link(BitRate::from_mbps(10)) };
    let mut bench = Bench::over(link, None);
    bench.far_reads = false;
    let bytes = pattern(200_000);
    bench.host_writes(&bytes);
    bench.host = None;
    bench.pass(Duration::from_secs(50));
    assert_eq!(bench.connections.len(), 1, "the far host may still read");
    bench.until(90, |bench| bench.connections.len() == 0);
    bench.far_reads = true;
    bench.until(5, |bench| bench.end != RecvState::Open);
    assert_eq!(bench.end, RecvState::Reset(ResetReason::HostReset));
    assert!(bench.got.len() > 64 << 10 && bytes.starts_with(&bench.got), "{}", bench.got.len());
}

#[test]
fn nothing_is_kept_of_a_host_that_reset_where_the_peer_has_reset_too() {
    let mut bench = Bench::new(BitRate::from_kbps(128), None);
    bench.host_writes(&pattern(200_000));
    bench.host = None;
    bench.pass(Duration::from_millis(100));
    bench.far_writes_and_resets(&pattern(60_000));
    bench.until(5, |bench| bench.connections.len() == 0);
    assert_eq!(bench.near.flow_count(), 0);
}

#[test]
fn a_reset_that_overtakes_bytes_on_a_slow_link_waits_for_them() {
    let mut bench = Bench::new(BitRate::from_bps(1_920), None);
    let bytes = pattern(20_000);
    let taken = bench.far_writes_and_resets(&bytes);
    assert!(taken > 2_500, "{taken} bytes are more than ten seconds of the link");
    let mut got = Vec::new();
    let mut end = Ok(());
    bench.until(600, |bench| {
        end = bench.read_host(&mut got);
        end.is_err()
    });
    assert_eq!(end, Err(ErrorKind::ConnectionReset));
    assert!(got == bytes[..taken], "{} of {taken} bytes", got.len());
    assert_eq!((bench.connections.len(), bench.near.flow_count()), (0, 0));
}

#[test]
fn a_host_that_reads_only_after_its_peers_reset_has_every_byte_and_then_the_reset() {
    let mut bench = Bench::new(BitRate::from_mbps(40), Some(4096));
    let bytes = pattern(60_000);
    let taken = bench.far_writes_and_resets(&bytes);
    assert!(taken > 20_000, "{taken} bytes are more than the host's buffer takes");
    bench.pass(Duration::from_secs(1));
    assert_eq!(bench.near.flow_count(), 0, "all is in the kernel");
    let (mut got, mut end) = (Vec::new(), Ok(()));
    bench.until(60, |bench| {
        std::thread::sleep(std::time::Duration::from_millis(1));
        end = bench.read_host(&mut got);
        end.is_err()
    });
    assert_eq!(end, Err(ErrorKind::ConnectionReset));
    assert!(got == bytes[..taken], "{} of {taken} bytes", got.len());
    bench.until(1, |bench| bench.connections.len() == 0);
}

#[test]
fn a_host_that_reads_nothing_after_its_peers_reset_is_given_up() {
    let mut bench = Bench::new(BitRate::from_mbps(40), Some(4096));
    bench.far_writes_and_resets(&pattern(60_000));
    bench.pass(Duration::from_secs(4));
    assert_eq!(bench.connections.len(), 1);
    // The kernels may move a little when they are ready to.
    bench.until(60, |bench| bench.connections.len() == 0);
    assert_eq!(bench.connections.poll_timeout(), None);
}

#[test]
fn a_connection_that_ended_is_open_until_its_host_has_the_last_bytes() {
    let mut bench = Bench::new(BitRate::from_mbps(40), Some(4096));
    let bytes = pattern(60_000);
    let room = bench.far.writable_bytes(bench.now, bench.far_flow).min(bytes.len());
    assert_eq!(bench.far.local_data(bench.now, bench.far_flow, &bytes[..room]), room);
    bench.far.local_end(bench.now, bench.far_flow);
    bench.host().shutdown_write().unwrap();
    bench.pass(Duration::from_secs(1));
    assert_eq!(bench.near.flow_count(), 0, "both ends were relayed");
    assert_eq!(bench.connections.len(), 1, "the kernel has bytes that the host has not");
    let mut got = Vec::new();
    let mut buf = [0; 4096];
    bench.until(60, |bench| {
        std::thread::sleep(std::time::Duration::from_millis(1));
        match bench.host().read(&mut buf) {
            Ok(0) => return true,
            Ok(n) => got.extend_from_slice(&buf[..n]),
            Err(e) => assert_eq!(e.kind(), ErrorKind::WouldBlock),
        }
        false
    });
    assert!(got == bytes[..room], "{} of {room} bytes", got.len());
    bench.until(1, |bench| bench.connections.len() == 0);
}

#[test]
fn a_connection_that_ended_and_was_acknowledged_is_gone_at_once() {
    let mut bench = Bench::new(BitRate::from_mbps(40), None);
    bench.far.local_end(bench.now, bench.far_flow);
    bench.pass(Duration::from_millis(100));
    bench.host().shutdown_write().unwrap();
    bench.until(1, |bench| bench.connections.len() == 0);
    assert_eq!(bench.connections.poll_timeout(), None);
}

/// The far gateway has opened a flow for which this one is to connect.
fn asked() -> (Bench, FlowId) {
    let mut bench = Bench::new(BitRate::from_mbps(10), None);
    let target = Target::Address("10.2.0.2:80".parse().unwrap());
    let origin = Origin { client: None, target, dscp: 0 };
    bench.far_flow = bench.far.open(bench.now, PEER, origin).unwrap();
    bench.until(30, |bench| bench.asked.is_some());
    let flow = bench.asked.unwrap();
    (bench, flow)
}

/// A name has several addresses, of which the first servers refuse, or say nothing.
#[test]
fn a_server_is_tried_at_each_of_its_addresses() {
    let (mut bench, flow) = asked();
    let socket = || {
        let all = (socket2::Domain::IPV4, socket2::Type::STREAM);
        let socket = socket2::Socket::new(all.0, all.1, None).unwrap();
        socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        let address = socket.local_addr().unwrap().as_socket().unwrap();
        (socket, address)
    };
    // Nobody listens there, and nobody else may.
    let (_held, closed) = socket();
    // Its queue is full: what comes is not answered.
    let (silent, quiet) = socket();
    silent.listen(0).unwrap();
    let _filling: Vec<_> = (0..8)
        .map(|_| {
            let (client, _) = socket();
            client.set_nonblocking(true).unwrap();
            let _ = client.connect(&quiet.into());
            client
        })
        .collect();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let works = listener.local_addr().unwrap();
    bench.connections.connect(&bench.poller, flow, closed, None, None).unwrap();
    let addresses = [quiet, closed, works].map(|to| (to, None)).into();
    bench.connections.try_others(bench.now, flow, Others { addresses, from: None });
    listener.set_nonblocking(true).unwrap();
    let (begin, mut server) = (bench.now, None);
    bench.until(30, |bench| {
        server = server.take().or_else(|| listener.accept().ok());
        server.is_some() && !bench.connections.get(flow).unwrap().connecting
    });
    assert!(bench.now.since(begin) >= ADDRESS, "the silent one had its time");
    std::io::Write::write_all(&mut server.unwrap().0, b"here").unwrap();
    bench.until(30, |bench| bench.got.len() == 4);
    assert_eq!(bench.connections.len(), 2);

    let (mut bench, flow) = asked();
    bench.connections.connect(&bench.poller, flow, closed, None, None).unwrap();
    let addresses = [(closed, None)].into();
    bench.connections.try_others(bench.now, flow, Others { addresses, from: None });
    bench.until(30, |bench| bench.end != RecvState::Open);
    assert_eq!(bench.end, RecvState::Reset(ResetReason::Refused));
    assert_eq!(bench.connections.len(), 1);
}

/// A server that accepts, says why not and resets, before its gateway looks: that is no refusal.
#[test]
fn what_a_server_says_before_it_resets_at_once_is_delivered_and_then_the_reset() {
    let (mut bench, flow) = asked();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let to = listener.local_addr().unwrap();
    bench.connections.connect(&bench.poller, flow, to, None, None).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    std::io::Write::write_all(&mut server, b"busy").unwrap();
    let server = socket2::Socket::from(server);
    server.set_linger(Some(std::time::Duration::ZERO)).unwrap();
    drop(server);
    std::thread::sleep(std::time::Duration::from_millis(50));
    bench.until(30, |bench| bench.end != RecvState::Open);
    assert_eq!(bench.end, RecvState::Reset(ResetReason::HostReset));
    assert_eq!(bench.got, b"busy");
}
