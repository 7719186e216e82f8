//! One stream over a link whose rate changes: two endpoints with real keys, two channels,
//! and what the line's queue, the sender's rate and the reader see over time.

use std::collections::VecDeque;
use std::net::SocketAddr;

use channel::{Channel, ChannelConfig, Fate, QueueLimit};
use link::endpoint::{Endpoint, EndpointConfig, EndpointEvent};
use link::keys::{PresharedKey, PrivateKey};
use link::session::{Event, LinkConfig, RateMode, RateStatus, Session};
use link::wire::{Origin, StreamId, Target};
use link::{PeerConfig, PeerId};
use units::{BitRate, ByteCount, Duration, Instant, Ratio};

use crate::rate::cubic::Cubic;

/// What both nodes believe of the link.
pub fn belief(send: BitRate, receive: BitRate, mode: RateMode) -> LinkConfig {
    LinkConfig {
        send_rate: send,
        rate_mode: mode,
        receive_rate: receive,
        rtt: ms(600),
        mtu: 1500,
        packet: 1500,
        queue: link::session::NEARLY_EMPTY,
        bit_errors: units::Ratio::ZERO,
        overhead: 0,
        memory: ByteCount(256 << 20),
        stream_buffer: None,
        max_streams: 100,
        headers: true,
        history: ByteCount(0),
        dedup: false,
        facts: Default::default(),
        classes: Vec::new(),
    }
}

/// A channel of this rate, delay and queue.
pub fn way(rate: BitRate, delay: Duration, queue: Duration) -> ChannelConfig {
    ChannelConfig {
        rate: Some(rate),
        delay,
        queue: QueueLimit::Bytes(rate.bytes_in(queue)),
        ..ChannelConfig::default()
    }
}

/// The way back of a link whose forward direction is looked at.
pub fn back() -> ChannelConfig {
    way(mbit(2.0), ms(300), ms(500))
}

pub fn mbit(n: f64) -> BitRate {
    BitRate::from_bps((n * 1e6) as u64)
}

pub fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

pub fn secs(n: f64) -> Instant {
    Instant::ZERO + Duration::from_micros((n * 1e6) as u64)
}

pub fn percent(n: f64) -> Ratio {
    Ratio::from_f64(n / 100.0)
}

/// What is seen every [`EVERY`].
#[derive(Clone, Copy, Debug)]
pub struct Look {
    pub at: f64,
    /// Milliseconds that a packet would wait before the line.
    pub queue: f64,
    /// Milliseconds that a packet and its answer are under way on empty lines.
    pub idle: f64,
    /// The sender's rate in Mbit/s.
    pub rate: f64,
    /// Bytes that the line has sent for the link, and those lost to a full queue.
    pub sent: u64,
    pub offered: u64,
    pub dropped: u64,
    /// Bytes that the way back has sent.
    pub returned: u64,
    /// Stream bytes that the reader has taken.
    pub read: u64,
    /// Bytes of the competitor that arrived.
    pub other: u64,
    pub status: RateStatus,
}

pub const EVERY: Duration = Duration::from_millis(20);

#[derive(Clone, Debug)]
enum Item {
    Link(Vec<u8>),
    /// A segment of the competitor.
    Other(u64),
}

/// A token bucket before the line: it passes a packet while it holds tokens for it, and
/// delays none.
pub struct Policer {
    rate: BitRate,
    size: ByteCount,
    /// Tokens, as the time that they took to come.
    tokens: Duration,
    at: Instant,
}

impl Policer {
    /// One of this rate that passes `size` bytes at once, full.
    pub fn new(rate: BitRate, size: ByteCount) -> Policer {
        Policer { rate, size, tokens: rate.time_for(size), at: Instant::ZERO }
    }

    fn passes(&mut self, now: Instant, len: ByteCount) -> bool {
        let most = self.rate.time_for(self.size);
        self.tokens = (self.tokens + now.since(self.at)).min(most);
        self.at = now;
        let needed = self.rate.time_for(len);
        let passes = needed <= self.tokens;
        if passes {
            self.tokens = self.tokens - needed;
        }
        passes
    }
}

/// The world.
pub struct Line {
    pub now: Instant,
    nodes: [Endpoint; 2],
    channels: [Channel<Item>; 2],
    streams: Vec<StreamId>,
    pub looks: Vec<Look>,
    read: u64,
    sent: u64,
    returned: u64,
    offered: u64,
    dropped: u64,
    /// Shares the forward line.
    pub other: Option<Cubic>,
    /// Before the forward line.
    pub policer: Option<Policer>,
    /// Until when a node's host lets its program stand still.
    frozen: [Instant; 2],
    /// How long packets wait until a node's program reads them.
    behind: [Duration; 2],
    /// What has come and was not read, with the times at which it came.
    sockets: [VecDeque<(Instant, Vec<u8>)>; 2],
}

/// Packets that a socket holds for a program that stands still: 4 MiB, of which the kernel
/// counts 2.3 kB for each.
const SOCKET: usize = 1_800;

const PEER: PeerId = PeerId::from_index(0);

fn address(node: usize) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, node as u8 + 1], 4500))
}

impl Line {
    /// Two nodes that believe this of the link (each of its own direction), over these
    /// channels.
    pub fn new(seed: u64, beliefs: [LinkConfig; 2], ways: [ChannelConfig; 2]) -> Line {
        let now = Instant::from_nanos(1);
        let keys = [1, 2].map(|n| PrivateKey::from_bytes([n; 32]));
        let mut beliefs = beliefs.into_iter();
        let nodes = [0usize, 1].map(|node| {
            let mut endpoint = Endpoint::new(EndpointConfig {
                private_key: keys[node].clone(),
                seed: [seed as u8 + node as u8; 32],
                hardware_aes: true,
                initiations_per_second: 1000,
                key_lifetime: link::endpoint::MAX_KEY_LIFETIME,
                fresh: None,
            });
            let config = PeerConfig {
                public_key: *keys[1 - node].public(),
                preshared_key: PresharedKey::NONE,
                endpoint: (node == 0).then(|| address(1).into()),
                link: beliefs.next().expect("two beliefs"),
                keepalive: None,
            };
            endpoint.add_peer(now, config).expect("two keys");
            endpoint
        });
        let mut number = seed;
        let channels = ways.map(|way| {
            number += 1;
            Channel::new(way, number).expect("a channel")
        });
        Line {
            now,
            nodes,
            channels,
            streams: Vec::new(),
            looks: Vec::new(),
            read: 0,
            sent: 0,
            returned: 0,
            offered: 0,
            dropped: 0,
            other: None,
            policer: None,
            frozen: [Instant::ZERO; 2],
            behind: [Duration::ZERO; 2],
            sockets: [VecDeque::new(), VecDeque::new()],
        }
    }

    /// The node's program stands still from now until then; its host goes on.
    pub fn freeze(&mut self, node: usize, until: Instant) {
        self.frozen[node] = until;
    }

    /// The node's program reads packets only so long after they came.
    pub fn fall_behind(&mut self, node: usize, by: Duration) {
        self.behind[node] = by;
    }

    fn is_frozen(&self, node: usize) -> bool {
        self.now < self.frozen[node]
    }

    /// When the node's program does something.
    fn wakes(&self, node: usize) -> Option<Instant> {
        if self.is_frozen(node) {
            return Some(self.frozen[node]);
        }
        let reads = self.sockets[node].front().map(|(came, _)| *came + self.behind[node]);
        [reads, self.nodes[node].poll_timeout(self.now)].into_iter().flatten().min()
    }

    fn read_socket(&mut self, node: usize) {
        while let Some((came, _)) = self.sockets[node].front()
            && *came + self.behind[node] <= self.now
            && let Some((came, mut bytes)) = self.sockets[node].pop_front()
        {
            self.nodes[node].handle_packet(self.now, came, address(1 - node).into(), &mut bytes);
        }
    }

    pub fn session(&mut self, node: usize) -> &mut Session {
        self.nodes[node].session_mut(PEER).expect("the peer is never removed")
    }

    /// The channel in force.
    pub fn channel(&self, sender: usize) -> &ChannelConfig {
        self.channels[sender].config()
    }

    /// Another channel from now on.
    pub fn change(&mut self, sender: usize, way: ChannelConfig) {
        self.channels[sender].reconfigure(self.now, way).expect("a channel");
    }

    pub fn outage(&mut self, on: bool) {
        for channel in &mut self.channels {
            channel.set_outage(self.now, on);
        }
    }

    /// The handshake first, then one stream that always has something to say. The clock
    /// then begins at zero.
    pub fn start(&mut self) {
        self.start_streams(1);
    }

    /// The same with so many streams.
    pub fn start_streams(&mut self, count: usize) {
        for _ in 0..1000 {
            if self.nodes.iter().all(|n| n.is_established(PEER)) {
                break;
            }
            self.step(Instant::FAR_FUTURE);
        }
        let client = Some("10.1.0.2:4000".parse().expect("an address"));
        let target = Target::Address("10.2.0.2:80".parse().expect("an address"));
        let (now, origin) = (self.now, Origin { client, target, dscp: 0 });
        let session = self.session(0);
        self.streams = (0..count).filter_map(|_| session.open(now, origin.clone())).collect();
    }

    /// They have nothing more to say.
    pub fn stop(&mut self) {
        let now = self.now;
        for id in std::mem::take(&mut self.streams) {
            self.session(0).finish(now, id);
        }
    }

    /// Runs until this time.
    pub fn run(&mut self, until: Instant) {
        let mut look = self.looks.last().map_or(Instant::ZERO, |l| secs(l.at)) + EVERY;
        while self.now < until {
            while self.step(until.min(look)) {}
            if self.now >= look {
                self.look();
                look = self.now + EVERY;
            }
        }
    }

    fn look(&mut self) {
        let now = self.now;
        self.channels[0].advance(now);
        let rate = self.channels[0].config().rate.expect("a rate");
        let queue = rate.time_for(self.channels[0].waiting()).as_secs_f64() * 1e3;
        let [there, back] = [0, 1].map(|n| self.channels[n].config().delay.as_secs_f64() * 1e3);
        let status = self.session(0).rate_status();
        self.looks.push(Look {
            at: now.as_nanos() as f64 / 1e9,
            queue,
            idle: there + back,
            rate: status.rate.as_bps() as f64 / 1e6,
            sent: self.sent,
            returned: self.returned,
            offered: self.offered,
            dropped: self.dropped,
            read: self.read,
            other: self.other.as_ref().map_or(0, |o| o.delivered()),
            status,
        });
    }

    /// One step of time; false once `until` has come.
    fn step(&mut self, until: Instant) -> bool {
        let now = self.now;
        for node in 0..2 {
            if !self.is_frozen(node) {
                self.users(node);
                self.transmit(node);
            }
        }
        let timers = (0..2).filter_map(|node| self.wakes(node));
        let arrivals = self.channels.iter().filter_map(Channel::next_time);
        let other = self.other.as_ref().and_then(Cubic::poll_timeout);
        let next = timers.chain(arrivals).chain(other).min().unwrap_or(Instant::FAR_FUTURE);
        if next > until {
            self.now = until;
            return false;
        }
        self.now = next.max(now);
        for sender in 0..2 {
            self.arrivals(sender);
        }
        for node in 0..2 {
            if !self.is_frozen(node) {
                self.read_socket(node);
                self.nodes[node].handle_timeout(self.now);
            }
        }
        true
    }

    fn users(&mut self, node: usize) {
        let now = self.now;
        if node == 0 {
            static ZEROS: [u8; 65_536] = [0; 65_536];
            let session = self.nodes[0].session_mut(PEER).expect("the peer");
            for &id in &self.streams {
                while session.writable_bytes(id) > 0 {
                    session.write(now, id, &ZEROS);
                }
            }
        }
        while let Some(event) = self.nodes[node].poll_event() {
            if let EndpointEvent::Stream(_, Event::Readable(id)) = event {
                let session = self.nodes[node].session_mut(PEER).expect("the peer");
                loop {
                    let n = session.peek(id).len();
                    if n == 0 {
                        break;
                    }
                    session.consume(now, id, n);
                    self.read += n as u64;
                }
                session.recv_state(id);
            }
        }
    }

    fn transmit(&mut self, node: usize) {
        let now = self.now;
        let mut buf = [0; 2048];
        while let Some(out) = self.nodes[node].poll_transmit(now, &mut buf) {
            let len = ByteCount(out.len as u64 + 28);
            let item = Item::Link(buf[..out.len].to_vec());
            let policer = self.policer.as_mut().filter(|_| node == 0);
            let refused = policer.is_some_and(|p| !p.passes(now, len))
                || self.channels[node].push(now, len, item).is_err();
            if node == 0 {
                self.offered += 1;
                self.dropped += u64::from(refused);
            }
        }
        if node == 0
            && let Some(other) = &mut self.other
        {
            while let Some(number) = other.poll_transmit(now) {
                // What the queue refuses the competitor finds out by itself.
                let _ = self.channels[0].push(now, ByteCount(1500), Item::Other(number));
            }
        }
    }

    fn arrivals(&mut self, sender: usize) {
        while let Some(arrival) = self.channels[sender].pop(self.now) {
            if sender == 0 && matches!(arrival.item, Item::Link(_)) {
                self.sent += arrival.len.0;
            }
            if sender == 1 {
                self.returned += arrival.len.0;
            }
            if arrival.fate != Fate::Delivered {
                continue;
            }
            match arrival.item {
                Item::Link(bytes) => {
                    let socket = &mut self.sockets[1 - sender];
                    if socket.len() < SOCKET {
                        socket.push_back((self.now, bytes));
                    }
                }
                Item::Other(number) => {
                    if let Some(other) = &mut self.other {
                        other.on_arrival(self.now, number);
                    }
                }
            }
        }
    }

    // ---- what was seen ----------------------------------------------------------

    pub fn between(&self, from: f64, to: f64) -> impl Iterator<Item = &Look> {
        self.looks.iter().filter(move |l| l.at >= from && l.at < to)
    }

    fn ends(&self, from: f64, to: f64) -> (Look, Look) {
        let mut looks = self.between(from, to);
        let first = looks.next().expect("looks");
        (*first, *looks.last().expect("looks"))
    }

    /// The link's packets that the line sent, in Mbit/s.
    pub fn carried(&self, from: f64, to: f64) -> f64 {
        let (a, b) = self.ends(from, to);
        (b.sent - a.sent) as f64 * 8e-6 / (b.at - a.at)
    }

    /// The same of the way back.
    pub fn returned(&self, from: f64, to: f64) -> f64 {
        let (a, b) = self.ends(from, to);
        (b.returned - a.returned) as f64 * 8e-6 / (b.at - a.at)
    }

    /// Stream bytes read, in Mbit/s.
    pub fn goodput(&self, from: f64, to: f64) -> f64 {
        let (a, b) = self.ends(from, to);
        (b.read - a.read) as f64 * 8e-6 / (b.at - a.at)
    }

    /// Stream bytes read by this time.
    pub fn read_at(&self, at: f64) -> u64 {
        self.between(at, f64::MAX).next().map_or(0, |l| l.read)
    }

    /// The competitor's, in Mbit/s.
    pub fn others(&self, from: f64, to: f64) -> f64 {
        let (a, b) = self.ends(from, to);
        (b.other - a.other) as f64 * 8e-6 / (b.at - a.at)
    }

    /// The share of the link's packets that found the queue full, in percent.
    pub fn dropped(&self, from: f64, to: f64) -> f64 {
        let (a, b) = self.ends(from, to);
        (b.dropped - a.dropped) as f64 * 100.0 / (b.offered - a.offered).max(1) as f64
    }

    /// The longest and the mean queue, in milliseconds.
    pub fn queue(&self, from: f64, to: f64) -> (f64, f64) {
        let (mut most, mut sum, mut n) = (0f64, 0.0, 0);
        for look in self.between(from, to) {
            most = most.max(look.queue);
            sum += look.queue;
            n += 1;
        }
        (most, sum / f64::from(n.max(1)))
    }

    /// The time of an echo and of one on the idle link, in milliseconds, that so many per cent
    /// do not exceed.
    pub fn echo(&self, from: f64, to: f64, percent: usize) -> (f64, f64) {
        let [loaded, idle] = [1.0, 0.0].map(|part| {
            let mut times: Vec<f64> =
                self.between(from, to).map(|l| l.idle + part * l.queue).collect();
            times.sort_by(f64::total_cmp);
            times[times.len() * percent / 100]
        });
        (loaded, idle)
    }

    /// The first time after `from` when `is` holds, relative to `from`.
    pub fn first(&self, from: f64, is: impl Fn(&Look) -> bool) -> Option<f64> {
        self.between(from, f64::MAX).find(|l| is(l)).map(|l| l.at - from)
    }
}
