//! What a link is, as this node knows it and as it tells the peer.

use units::{BitRate, ByteCount, Duration, Ratio};

use super::facts::{Facts, Told, rate_bits};
use crate::handshake::MAX_PARAMS;
use crate::path::CarrierName;
use crate::rate::RateMode;
use crate::traffic::ClassConfig;
use crate::wire::{Reader, Writer};

/// A modem's queue that is kept nearly empty, and a busy host still fills the link.
pub const NEARLY_EMPTY: Duration = Duration::from_millis(10);

/// What a link is and may use, from its profile.
#[derive(Clone, Debug)]
pub struct LinkConfig {
    /// The rate we send at, counted on IP packets (R-RATE).
    pub send_rate: BitRate,
    /// How that rate is known.
    pub rate_mode: RateMode,
    /// The rate the peer sends at: sizes our receive buffers.
    pub receive_rate: BitRate,
    /// The round trip that the profile promises: two one-way delays.
    pub rtt: Duration,
    /// The largest IP packet of the link in bytes, 128…9000.
    pub mtu: u16,
    /// The largest IP packet that we send, at most `mtu`: see [`best_packet`].
    pub packet: u16,
    /// What the modem may hold, in time at `send_rate`; see [`NEARLY_EMPTY`].
    pub queue: Duration,
    /// The bit-error ratio that the profile promises: repair starts from it.
    pub bit_errors: Ratio,
    /// Bytes of framing that the link adds to each IP packet and that its rate counts.
    pub overhead: u16,
    /// Memory for buffered stream bytes: half of it each way.
    pub memory: ByteCount,
    /// The most that one stream may have buffered at the far node; `None`: four
    /// bandwidth–delay products, at least 256 kB, at most a quarter of the memory.
    pub stream_buffer: Option<ByteCount>,
    /// The most streams that the peer may have open.
    pub max_streams: u32,
    /// Are the headers of datagrams compressed, where the peer wants it too (R-HC)?
    pub headers: bool,
    /// Memory for the history of compressed streams, each way; 0: streams are not compressed.
    pub history: ByteCount,
    /// Are streams deduplicated, where the peer wants it too (L-DD-11)?
    pub dedup: bool,
    /// What the file says of the link and is compared with what the peer's says.
    pub facts: Facts,
    /// What classes may have of the link, by [`ClassId`](crate::traffic::ClassId): the built-in
    /// ones first, then own ones, 20 at most. Missing ones are as by default.
    pub classes: Vec<ClassConfig>,
}

impl LinkConfig {
    /// What the link's first path is.
    pub fn path(&self) -> PathConfig {
        PathConfig {
            send_rate: self.send_rate,
            rate_mode: self.rate_mode,
            receive_rate: self.receive_rate,
            rtt: self.rtt,
            mtu: self.mtu,
            packet: self.packet,
            queue: self.queue,
            bit_errors: self.bit_errors,
            overhead: self.overhead,
            name: CarrierName::default(),
            priority: 0,
            keepalive: None,
            probe: None,
        }
    }

    /// The bandwidth–delay product of a rate.
    fn bdp(&self, rate: BitRate) -> u64 {
        rate.bytes_in(self.rtt).0
    }

    /// What our receive buffers allow one stream: rate × RTT × (1 + rounds
    /// of repair); four covers three rounds.
    fn stream_window(&self) -> u64 {
        let share = (self.memory.0 / 2).max(64 * 1024);
        match self.stream_buffer {
            Some(chosen) => chosen.0.clamp(RESERVE, share),
            None => (self.bdp(self.receive_rate) * 4).max(256 * 1024).min(share / 2),
        }
    }
}

/// What one path of a link is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathConfig {
    /// The rate we send at, counted on IP packets (R-RATE).
    pub send_rate: BitRate,
    /// How that rate is known.
    pub rate_mode: RateMode,
    /// The rate the peer sends at.
    pub receive_rate: BitRate,
    /// The round trip that the profile promises: two one-way delays.
    pub rtt: Duration,
    /// The largest IP packet of the path in bytes, 128…9000.
    pub mtu: u16,
    /// The largest IP packet that we send, at most `mtu`.
    pub packet: u16,
    /// What the modem may hold, in time at `send_rate`.
    pub queue: Duration,
    /// The bit-error ratio that the profile promises: repair starts from it.
    pub bit_errors: Ratio,
    /// Bytes of framing that the link adds to each IP packet and that its rate counts.
    pub overhead: u16,
    /// What its opener calls the carrier that it goes by; empty: it has no name.
    pub name: CarrierName,
    /// Of paths that are alive the one with the lowest carries everything.
    pub priority: u8,
    /// Send something at least this often; `None`: only what must be sent.
    pub keepalive: Option<Duration>,
    /// While the path stands by the peer is asked this often whether it works, and ten times as
    /// often while it does not; `None`: it costs, and is asked about as rarely as may be.
    pub probe: Option<Duration>,
}

impl PathConfig {
    /// The round trip of a message, where packets take `rtt`: each way a full packet may be on
    /// the line before it, for which the slowest links take seconds.
    pub(crate) fn full_rtt(&self, rtt: Duration) -> Duration {
        let full = ByteCount(self.packet.into());
        rtt + self.send_rate.time_for(full) + self.receive_rate.time_for(full)
    }
}

/// The best IP packet length for a link: `mtu`, or what bit errors make better. With
/// bit-error ratio b a packet of n bytes of which h are not payload carries
/// (n−h)/n · (1−b)^(8n), which is most at n = h/2 + √(h²/4 + h/(8b)).
///
/// A slow link's packets are as long, though one may then take seconds: they become
/// short while somebody waits for single ones (`priority.rs`).
pub fn best_packet(mtu: u16, bit_errors: Ratio) -> u16 {
    // IP 20, UDP 8, ours 24.
    const HEADERS: u64 = 52;
    let b = bit_errors.as_f64();
    if b <= 0.0 {
        return mtu;
    }
    let h = HEADERS as f64;
    let best = (h / 2.0 + (h * h / 4.0 + h / (8.0 * b)).sqrt()) as u64;
    u64::from(mtu).min(best.max(HEADERS * 2)).max(128) as u16
}

/// What a node tells its peer in the handshake (spec/link.md, "Parameters").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Params {
    /// The largest IP packet this node accepts.
    pub mtu: u64,
    /// Credit of one stream.
    pub stream_window: u64,
    /// Credit of all streams together beyond their reserves.
    pub total_window: u64,
    /// What each stream may always have outstanding.
    pub reserve: u64,
    /// Flows whose headers this node keeps to take compressed ones apart; 0: none.
    pub contexts: u64,
    /// History of compressed streams that this node keeps; 0: it does not take compressed streams.
    pub history: u64,
    /// 1: it takes, and sends, deduplicated streams.
    pub dedup: u64,
    /// What its file says; `None`: it does not tell.
    pub told: Option<Told>,
}

/// Kept for every stream whatever the others do (architecture: "each stream keeps
/// a reserved minimum").
const RESERVE: u64 = 16 * 1024;
/// Flows whose headers are kept each way: a kilobyte each at both nodes.
const CONTEXTS: u64 = 256;
/// The most that we take up of a peer's offers.
const MAX_STREAM_WINDOW: u64 = 1 << 40;
/// Ten varints, of which three are small.
const MAX_ENCODED: usize = 7 * 9 + 8;
/// Of our own: of the first seven, mtu, reserve and contexts have two bytes or three, dedup one.
const _: () = assert!(3 + 9 + 9 + 3 + 2 + 9 + 1 + 8 <= MAX_PARAMS);

impl Params {
    pub(super) fn of(config: &LinkConfig) -> Params {
        Params {
            mtu: u64::from(config.mtu),
            stream_window: config.stream_window(),
            total_window: (config.memory.0 / 2).max(64 * 1024),
            reserve: RESERVE,
            contexts: if config.headers { CONTEXTS } else { 0 },
            history: config.history.0,
            dedup: u64::from(config.dedup),
            told: Some(Told {
                facts: config.facts,
                send: rate_bits(config.send_rate),
                receive: rate_bits(config.receive_rate),
            }),
        }
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut buf = [0u8; MAX_ENCODED];
        let mut w = Writer::new(&mut buf);
        let limits = [self.mtu, self.stream_window, self.total_window, self.reserve];
        for n in limits.into_iter().chain([self.contexts, self.history, self.dedup]) {
            w.varint(n);
        }
        for n in self.told.iter().flat_map(|t| [t.facts.bits(), t.send, t.receive]) {
            w.varint(n);
        }
        let n = w.len();
        buf[..n].to_vec()
    }

    /// Reads the peer's parameters; unknown ones behind these are ignored.
    pub fn decode(bytes: &[u8]) -> Option<Params> {
        let mut r = Reader::new(bytes);
        let mut next = || r.varint().ok();
        let p = Params {
            mtu: next()?,
            stream_window: next()?,
            total_window: next()?,
            reserve: next()?,
            // Who does not tell takes none.
            contexts: next().unwrap_or(0),
            history: next().unwrap_or(0),
            dedup: next().unwrap_or(0),
            told: next().map(|bits| Told {
                facts: Facts::of_bits(bits),
                send: next().unwrap_or(0),
                receive: next().unwrap_or(0),
            }),
        };
        (p.mtu >= 128 && p.reserve >= 1024 && p.stream_window >= p.reserve).then_some(p)
    }

    /// What `self` takes up of the `peer`'s offers: what is sent and not confirmed lies in
    /// our memory, whatever the peer's can hold, and sums of offers must not overflow.
    pub(super) fn limited(&self, peer: Params) -> Params {
        Params {
            mtu: peer.mtu,
            total_window: peer.total_window.min(self.total_window),
            stream_window: peer.stream_window.min(MAX_STREAM_WINDOW),
            reserve: peer.reserve.min(self.reserve),
            contexts: peer.contexts.min(self.contexts),
            history: peer.history.min(self.history),
            dedup: peer.dedup.min(self.dedup),
            told: peer.told,
        }
    }
}
