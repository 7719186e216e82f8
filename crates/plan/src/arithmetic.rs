//! The formulas, each with its source. Integers throughout.

use units::{BitRate, ByteCount, Duration, Ratio};

/// The longest time that a packet should take on the line: nothing else can leave meanwhile
/// (Coast Guard, "Large Cutter").
pub const ON_THE_LINE: Duration = Duration::from_millis(200);
/// The shortest packet that is made for the sake of that: headers are 8 % of it, and on a line
/// where 200 ms are 48 bytes it was measured as the best (Coast Guard, "Current Research").
pub const SHORTEST: u16 = 500;

/// The chance of a packet.
#[derive(Clone, Copy, Debug)]
pub struct Survival {
    /// Bit-error ratio.
    pub ber: Ratio,
    /// Packets lost whatever their size.
    pub loss: Ratio,
}

impl Survival {
    /// The share of packets of `bytes` that arrive, in 2^-64: (1 − ber)^8n · (1 − loss).
    pub fn arrives(self, bytes: u16) -> u64 {
        let mut result = u64::MAX - self.loss.as_bits();
        let mut factor = u64::MAX - self.ber.as_bits();
        let mut exponent = u32::from(bytes) * 8;
        while exponent > 0 {
            if exponent & 1 == 1 {
                result = times(result, factor);
            }
            factor = times(factor, factor);
            exponent >>= 1;
        }
        result
    }

    /// The share of packets of `bytes` that do not.
    pub fn lost(self, bytes: u16) -> Ratio {
        match (self.ber, self.loss) {
            (Ratio::ZERO, loss) => loss,
            _ => Ratio::from_bits(u64::MAX - self.arrives(bytes)),
        }
    }
}

/// The product of two shares.
fn times(a: u64, b: u64) -> u64 {
    // u64::MAX stands for 1, so that 1 × 1 stays 1.
    ((u128::from(a) * u128::from(b) + u128::from(a.max(b))) >> 64) as u64
}

/// `n` × a share, rounded down.
fn part(n: u64, share: u64) -> u64 {
    if share == u64::MAX { n } else { ((u128::from(n) * u128::from(share)) >> 64) as u64 }
}

/// The best packet of hosts' own TCP where `best` is the best for errors and MTU.
pub fn tcp_packet(best: u16, rate: BitRate) -> u16 {
    let in_time = rate.bytes_in(ON_THE_LINE).0.min(u64::from(u16::MAX)) as u16;
    best.min(in_time.max(SHORTEST))
}

/// What a window allows at most: window / round trip (ITU-R S.1711-1, section 2.1.3).
pub fn window_limit(window: ByteCount, round_trip: Duration) -> BitRate {
    let bits = u128::from(window.0) * 8_000_000_000;
    let bps = bits / u128::from(round_trip.as_nanos().max(1));
    BitRate::from_bps(bps.min(u128::from(u64::MAX)) as u64)
}

/// What a router before the link must hold while a window opens by slow start, where packets
/// come at twice the rate at which they leave: half of it (ITU-R S.1711-1, section 4.3.1).
pub fn router_buffer(window: ByteCount) -> ByteCount {
    ByteCount(window.0.div_ceil(2))
}

/// RFC 6928 allows ten segments where nothing is known of the path, which is more than a slow
/// link holds. More than ten are right where they leave at the link's rate: BBR paces a first
/// window at 2/ln 2 = 2.885 times window / round trip.
pub fn initial_window(window: ByteCount, packet: u16) -> u32 {
    let segments = window.0 / u64::from(packet).max(1);
    let at_its_rate = segments * 1000 / 2885;
    at_its_rate.max(segments.min(10)).clamp(2, 65_535) as u32
}

/// The whole second above a full packet's round trip (Coast Guard, "Current Research": 5 s where
/// that is 4.2 s), at least the second of RFC 6298.
pub fn initial_rto(round_trip: Duration) -> Duration {
    Duration::from_secs(round_trip.as_millis() / 1000 + 1)
}

/// An ACK may wait for a second packet, but not longer than half a second (RFC 1122, 4.2.3.2),
/// and a packet for those in the queue.
pub fn least_rto(on_the_line: Duration, rate: BitRate, queue: Option<ByteCount>) -> Duration {
    let delayed = on_the_line.times(2).min(Duration::from_millis(500));
    let queued = queue.map_or(Duration::ZERO, |queue| rate.time_for(queue));
    (delayed + queued).clamp(Duration::from_millis(200), Duration::from_secs(60))
}

/// Content per second: rate × content / line bytes × the share that arrives.
pub fn goodput(rate: BitRate, content: u16, line: ByteCount, arrives: u64) -> BitRate {
    let full = u128::from(rate.as_bps()) * u128::from(content) / u128::from(line.0.max(1));
    BitRate::from_bps(part(full as u64, arrives))
}

/// In-order delivery of all of a window's packets waits for as many rounds of repair as the most
/// unfortunate of them needs, ⌈ln N / ln(1/p)⌉; memory is needed for that long, a report, and a
/// round trip.
pub fn stream_buffer(rate: BitRate, rtt: Duration, loss: Ratio, packet: u16) -> ByteCount {
    let in_flight = (rate.bytes_in(rtt).0 / u64::from(packet).max(1)).max(1);
    let mut rounds = 0;
    let mut left = in_flight;
    while left > 0 && rounds < 8 {
        // Of those that were lost so often one may be lost once more.
        left = part(left, loss.as_bits());
        rounds += 1;
    }
    let report = rtt.divided_by(8).max(Duration::from_millis(20));
    rate.bytes_in(rtt.times(1 + rounds) + report)
}

/// What one CUBIC connection carries where packets are lost by chance: an average window of
/// 1.054 (RTT / p)^¾ segments (RFC 8312, section 5.2), or of √(3 / 2p), Reno's, where that is
/// more. Without losses there is no limit of its own.
pub fn cubic(mss: u64, round_trip: Duration, loss: Ratio) -> BitRate {
    if loss.as_bits() == 0 {
        return BitRate::from_bps(u64::MAX);
    }
    let per_loss = (1u128 << 64) / u128::from(loss.as_bits());
    // Of a segment one in 1,000: round trip in ms / p is the root's 1,000 times RTT / p.
    let x = (u128::from(round_trip.as_millis()) << 64) / u128::from(loss.as_bits());
    let x = x.min(1_000_000_000_000);
    // 1,000^¾ = 177.83.
    let cubic = (x * x * x).isqrt().isqrt() * 105_400 / 17_783;
    let reno = (per_loss.min(1_000_000_000_000) * 1_500_000).isqrt();
    let window = cubic.max(reno).max(1_000) as u64;
    window_limit(ByteCount(window.saturating_mul(mss) / 1_000), round_trip)
}

/// How long `bytes` take with a gateway at both ends: their time at the link's rate and one round
/// trip, that of the request.
pub fn time_with_pair(bytes: ByteCount, goodput: BitRate, round_trip: Duration) -> Duration {
    goodput.time_for(bytes) + round_trip
}

/// How long they take without: a round trip to connect, one for the request, and one for each
/// doubling of ten segments to the window that the goodput has.
pub fn time_without(
    bytes: ByteCount,
    mss: u16,
    goodput: BitRate,
    round_trip: Duration,
) -> Duration {
    let full = goodput.bytes_in(round_trip).0;
    let (mut window, mut left) = (10 * u64::from(mss), bytes.0);
    let mut time = round_trip;
    while window < full && left > window {
        time += round_trip;
        left -= window;
        window *= 2;
    }
    time + round_trip + goodput.time_for(ByteCount(left))
}
