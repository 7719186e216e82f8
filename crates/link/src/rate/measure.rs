//! What reports tell about the way to the peer: how long packets queue on it and how
//! much comes through.

use units::{BitRate, ByteCount, Duration, Instant};

use crate::wire::ARRIVAL_UNIT;

/// What a report tells of the newest packet that it names.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Told {
    /// The packet's number.
    pub number: u64,
    /// When it left.
    pub sent: Instant,
    /// Link bytes sent up to it and with it.
    pub through: u64,
    /// Link bytes that the peer is known to have received.
    pub delivered: u64,
    /// When it arrived, by the peer's clock: units of 16 µs, modulo 2^21.
    pub arrival: u64,
    /// The round trip that it shows, free of the peer's delay; [`Duration::MAX`]: it shows none.
    pub rtt: Duration,
}

/// The state of the link when a packet arrived, as far as reports tell.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Mark {
    pub number: u64,
    pub sent: Instant,
    /// By the peer's clock, in nanoseconds.
    pub arrival: u64,
    pub through: u64,
    pub delivered: u64,
    /// The least queueing delay since the mark before.
    pub queueing: Duration,
}

/// Where queueing delay starts from: the least delay of the last one to two of these. A
/// minute of clock drift at 100 ppm is 6 ms, below what counts as a queue.
const GENERATION: Duration = Duration::from_secs(60);

/// The least of what was seen lately.
#[derive(Clone, Copy, Debug)]
struct Least {
    older: i64,
    newer: i64,
    since: Instant,
}

impl Least {
    const NONE: Least = Least { older: i64::MAX, newer: i64::MAX, since: Instant::ZERO };

    /// Takes a value; answers by how much it exceeds the least.
    fn excess(&mut self, now: Instant, value: i64) -> Duration {
        if now.since(self.since) >= GENERATION {
            (self.older, self.newer, self.since) = (self.newer, value, now);
        }
        self.newer = self.newer.min(value);
        Duration::from_nanos((value - self.older.min(self.newer)).max(0).unsigned_abs())
    }

    fn raise(&mut self, by: Duration) {
        let least = self.older.min(self.newer).saturating_add(nanos(by));
        (self.older, self.newer) = (least, least);
    }
}

/// Turns reports into marks.
#[derive(Clone, Debug)]
pub(super) struct Measure {
    /// The peer's clock, unwrapped, at the last report, and our own then.
    clock: Option<(u64, Instant)>,
    one_way: Least,
    round_trip: Least,
    /// The newest three marks, oldest first; fewer are repeated.
    marks: [Mark; 3],
    known: usize,
    /// The least queueing delay since the newest mark.
    least: Duration,
    /// The latest queueing delay.
    queueing: Duration,
}

impl Measure {
    pub fn new() -> Measure {
        Measure {
            clock: None,
            one_way: Least::NONE,
            round_trip: Least::NONE,
            marks: [Mark::default(); 3],
            known: 0,
            least: Duration::MAX,
            queueing: Duration::ZERO,
        }
    }

    /// Takes a report; answers the state of the link that it shows.
    ///
    /// Queueing delay is what both the one-way delay (free of the return path, but not of
    /// the drift of two clocks) and the round trip (the other way round) show above their
    /// least.
    pub fn take(&mut self, now: Instant, told: &Told) -> Mark {
        let arrival = self.unwrap_clock(now, told.arrival);
        let one_way = (arrival as i64).wrapping_sub(told.sent.as_nanos() as i64);
        let by_arrival = self.one_way.excess(now, one_way);
        self.queueing = match told.rtt {
            Duration::MAX => by_arrival,
            rtt => by_arrival.min(self.round_trip.excess(now, nanos(rtt))),
        };
        self.least = self.least.min(self.queueing);
        Mark {
            number: told.number,
            sent: told.sent,
            arrival,
            through: told.through,
            delivered: told.delivered,
            queueing: self.queueing,
        }
    }

    fn unwrap_clock(&mut self, now: Instant, arrival: u64) -> u64 {
        const WRAP: u64 = 1 << crate::wire::ARRIVAL_BITS;
        let units = match self.clock {
            // So far up that no peer leads it below nothing.
            None => (1 << 40) + arrival,
            Some((last, then)) => {
                let expected = last + now.since(then).as_nanos() / ARRIVAL_UNIT;
                let up = (expected & !(WRAP - 1)) + arrival;
                // Of the values that look alike the one nearest to what is expected.
                if up > expected + WRAP / 2 {
                    up.saturating_sub(WRAP)
                } else if up + WRAP / 2 < expected {
                    up + WRAP
                } else {
                    up
                }
            }
        };
        self.clock = Some((units, now));
        units.saturating_mul(ARRIVAL_UNIT)
    }

    /// Makes a mark of `state` if `spacing` has passed since the newest; answers whether.
    pub fn mark(&mut self, state: Mark, spacing: Duration) -> bool {
        let newest = self.marks[2];
        if self.known > 0 && state.arrival < newest.arrival + spacing.as_nanos() {
            return false;
        }
        let mark = Mark { queueing: self.least, ..state };
        self.least = Duration::MAX;
        self.marks = if self.known == 0 { [mark; 3] } else { [self.marks[1], newest, mark] };
        self.known = (self.known + 1).min(3);
        self.known > 1
    }

    /// The newest three marks, oldest first, once there are as many.
    pub fn window(&self) -> Option<[Mark; 3]> {
        (self.known == 3).then_some(self.marks)
    }

    /// What was before says nothing about what follows.
    pub fn forget_marks(&mut self) {
        self.known = 0;
        self.least = Duration::MAX;
    }

    /// The latest queueing delay.
    pub fn queueing(&self) -> Duration {
        self.queueing
    }

    /// The queue that is there is not ours, or it is a longer way: delay counts from it.
    pub fn accept(&mut self, queueing: Duration) {
        self.one_way.raise(queueing);
        self.round_trip.raise(queueing);
        self.queueing = Duration::ZERO;
    }
}

impl Mark {
    /// The rate at which packets came through from `earlier` to here.
    pub fn delivery_rate(&self, earlier: &Mark) -> BitRate {
        self.delivery_rate_after(earlier, Duration::ZERO)
    }

    /// The same where up to `jitter` of the time, or half of it, was not the line's.
    pub fn delivery_rate_after(&self, earlier: &Mark, jitter: Duration) -> BitRate {
        let time = Duration::from_nanos(self.arrival.saturating_sub(earlier.arrival));
        let time = time - jitter.min(time.divided_by(2));
        rate(self.delivered.saturating_sub(earlier.delivered), time)
    }

    /// The rate at which the packets from `earlier` to here were sent.
    pub fn sending_rate(&self, earlier: &Mark) -> BitRate {
        rate(self.through.saturating_sub(earlier.through), self.sent.since(earlier.sent))
    }

    /// How many of the bytes from `earlier` to here did not arrive, in parts per million.
    pub fn loss_ppm(&self, earlier: &Mark) -> u64 {
        let sent = self.through.saturating_sub(earlier.through);
        let arrived = self.delivered.saturating_sub(earlier.delivered).min(sent);
        ((sent - arrived) * 1_000_000).checked_div(sent).unwrap_or(0)
    }

    /// How many of the packets from here to `later` did not arrive; less than none where more
    /// is known of those before.
    pub fn lost_packets(&self, later: &Mark) -> i64 {
        let packets = later.number.saturating_sub(self.number) as i64;
        let sent = later.through.saturating_sub(self.through) as i64;
        let lost = sent - later.delivered.saturating_sub(self.delivered) as i64;
        lost.saturating_mul(packets).checked_div(sent).unwrap_or(0)
    }

    /// What waits before the line at `now`, when `total` bytes have been sent and the line
    /// sends at `line`: all that was sent since, less what the line has sent since.
    pub fn backlog(&self, now: Instant, total: u64, line: BitRate) -> ByteCount {
        let since = total.saturating_sub(self.through);
        let left_queue = self.sent + self.queueing;
        let passed = line.bytes_in(now.since(left_queue)).0;
        let still = line.bytes_in(left_queue.since(now)).0;
        ByteCount((since + still).saturating_sub(passed))
    }
}

fn rate(bytes: u64, time: Duration) -> BitRate {
    let bits = u128::from(bytes) * 8_000_000_000;
    let bps = bits / u128::from(time.as_nanos().max(1));
    BitRate::from_bps(u64::try_from(bps).unwrap_or(u64::MAX))
}

fn nanos(d: Duration) -> i64 {
    i64::try_from(d.as_nanos()).unwrap_or(i64::MAX)
}
