//! The clock of the line: when a packet's last bit has been sent, without rounding errors.

use units::{BitRate, ByteCount, Duration, Instant};

use crate::schedule::Schedule;

/// Serialization: when the line is busy and when it is free, to an exact fraction of a
/// nanosecond.
///
/// A packet of n bytes is 8·10⁹·n bit-nanoseconds of work, and a line of `rate` bit/s does
/// `rate` of them in a nanosecond. The rest that a division leaves (`part`) is carried into the
/// next packet, so rounding never adds up. Where the rate has a schedule, a packet that meets a
/// change is sent at the old rate until then and at the new one afterwards.
#[derive(Clone, Debug)]
pub(crate) struct Serializer {
    pace: Pace,
    free: Instant,
    part: u64,
}

/// How fast the line sends.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Pace {
    /// As fast as packets come.
    Unlimited,
    /// Always the same.
    Fixed(BitRate),
    /// By a schedule, with the seed of its draws.
    Scheduled(Schedule<BitRate>, u64),
}

/// Within one packet the rate changes no more often than this; then it stays. With changes a
/// millisecond apart and rates of 1 kbit/s and more no IP packet comes near.
const MOST_CHANGES: u32 = 1_000_000;

impl Pace {
    /// The rate at `now` and until when it holds. `None`: unlimited.
    pub(crate) fn at(&self, now: Instant) -> (Option<BitRate>, Instant) {
        match self {
            Pace::Unlimited => (None, Instant::FAR_FUTURE),
            Pace::Fixed(rate) => (Some(*rate), Instant::FAR_FUTURE),
            Pace::Scheduled(schedule, seed) => {
                let (rate, until) = schedule.piece(now, *seed);
                (Some(rate), until)
            }
        }
    }
}

impl Serializer {
    pub(crate) fn new(pace: Pace) -> Serializer {
        Serializer { pace, free: Instant::ZERO, part: 0 }
    }

    /// How fast it sends.
    pub(crate) fn pace(&self) -> &Pace {
        &self.pace
    }

    /// When the packets sent so far are over, rounded up.
    pub(crate) fn free(&self) -> Instant {
        rounded_up(self.free, self.part)
    }

    /// A new pace for the packets that are not on the line yet.
    pub(crate) fn set_pace(&mut self, pace: Pace) {
        if pace != self.pace {
            self.free = self.free();
            self.part = 0;
            self.pace = pace;
        }
    }

    /// What sending `len` bytes would take, starting at or after `earliest`: the
    /// start and the end.
    pub(crate) fn plan(&self, earliest: Instant, len: ByteCount) -> (Instant, Instant) {
        let (start, free, part) = self.planned(earliest, len);
        (start, rounded_up(free, part))
    }

    /// Sends `len` bytes at or after `earliest`, as soon as the line is free.
    pub(crate) fn send(&mut self, earliest: Instant, len: ByteCount) -> (Instant, Instant) {
        let (start, free, part) = self.planned(earliest, len);
        (self.free, self.part) = (free, part);
        (start, self.free())
    }

    /// The start, and the end in whole nanoseconds and the rest.
    fn planned(&self, earliest: Instant, len: ByteCount) -> (Instant, Instant, u64) {
        let (start, part) = match earliest > self.free() {
            true => (earliest, 0),
            false => (self.free, self.part),
        };
        let mut work = u128::from(len.0) * BIT_NANOSECONDS + u128::from(part);
        let mut now = start;
        for _ in 0..MOST_CHANGES {
            let (Some(rate), until) = self.pace.at(now) else { return (start, now, 0) };
            let rate = rate.as_bps();
            let (ns, rest) = divide(work, rate);
            let end = now + Duration::from_nanos(ns);
            // At the very moment of a change the rest, if any, is for the new rate.
            if end < until || (end == until && rest == 0) || until == Instant::FAR_FUTURE {
                return (start, end, rest);
            }
            work -= u128::from(rate) * u128::from(until.since(now).as_nanos());
            now = until;
        }
        let rate = self.pace.at(now).0.map_or(1, BitRate::as_bps);
        let (ns, rest) = divide(work, rate);
        (start, now + Duration::from_nanos(ns), rest)
    }
}

const BIT_NANOSECONDS: u128 = 8_000_000_000;

fn rounded_up(time: Instant, part: u64) -> Instant {
    if part == 0 { time } else { time + Duration::from_nanos(1) }
}

/// The whole nanoseconds that `work` takes at `rate`, and the rest of the work.
fn divide(work: u128, rate: u64) -> (u64, u64) {
    // Every real packet fits into 64 bits, and dividing those is several times faster.
    if let Ok(work) = u64::try_from(work) {
        return (work / rate, work % rate);
    }
    let ns = u64::try_from(work / u128::from(rate)).unwrap_or(u64::MAX);
    (ns, (work % u128::from(rate)) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fixed(mbps: u64) -> Serializer {
        Serializer::new(Pace::Fixed(BitRate::from_mbps(mbps)))
    }

    fn scheduled(text: &str) -> Serializer {
        Serializer::new(Pace::Scheduled(text.parse().unwrap_or_else(|e| panic!("{e}")), 1))
    }

    #[test]
    fn a_million_packets_take_exactly_their_bits_over_the_rate() {
        // 7 Mbit/s divides nothing evenly: one packet takes 1,714,285.714… ns.
        let mut serializer = fixed(7);
        for _ in 0..1_000_000 {
            serializer.send(Instant::ZERO, ByteCount(1_500));
        }
        let exact = 1_000_000u128 * 1_500 * 8_000_000_000 / 7_000_000;
        assert_eq!(serializer.free.as_nanos() as u128, exact);
    }

    #[test]
    fn an_absurd_length_takes_absurdly_long() {
        let serializer = Serializer::new(Pace::Fixed(BitRate::from_bps(3)));
        let (_, end) = serializer.plan(Instant::ZERO, ByteCount(u64::MAX));
        assert_eq!(end, Instant::FAR_FUTURE);
        assert_eq!(divide(80_000_000_000_000_000_007, 8_000_000_000), (10_000_000_000, 7));
        assert_eq!(divide(8_000_000_002, 3), (2_666_666_667, 1));
        let serializer = scheduled("1kbit-2kbit every 1ms");
        assert!(serializer.plan(Instant::ZERO, ByteCount(1 << 50)).1 > Instant::ZERO);
    }

    #[test]
    fn an_idle_line_starts_when_the_packet_comes() {
        let mut serializer = fixed(8);
        serializer.send(Instant::ZERO, ByteCount(100));
        let later = Instant::from_nanos(1_000_000);
        let (start, end) = serializer.send(later, ByteCount(100));
        assert_eq!((start, end), (later, later + Duration::from_micros(100)));
    }

    #[test]
    fn a_new_rate_holds_from_the_next_packet_on() {
        let mut serializer = fixed(8);
        serializer.send(Instant::ZERO, ByteCount(1_000));
        serializer.set_pace(Pace::Fixed(BitRate::from_mbps(4)));
        let (start, end) = serializer.send(Instant::ZERO, ByteCount(1_000));
        assert_eq!((start.as_nanos(), end.as_nanos()), (1_000_000, 3_000_000));
    }

    #[test]
    fn a_packet_that_meets_a_change_is_sent_at_both_rates() {
        // Half of it in 0.5 ms at 8 Mbit/s, the other half in 2 ms at 2.
        let mut serializer = scheduled("0s 8Mbit, 10ms 2Mbit, 20ms 8Mbit");
        let nine_and_a_half = Instant::from_nanos(9_500_000);
        let (start, end) = serializer.send(nine_and_a_half, ByteCount(1_000));
        assert_eq!((start, end.as_nanos()), (nine_and_a_half, 12_000_000));
        // 10 kB: 8 ms at 2 Mbit/s are 2 kB, the other 8 kB take 8 ms.
        assert_eq!(serializer.send(Instant::ZERO, ByteCount(10_000)).1.as_nanos(), 28_000_000);
    }

    #[test]
    fn a_saturated_line_carries_exactly_the_integral_of_its_schedule() {
        for (text, seconds, bits) in [
            ("0s 40Mbit, 15s 90Mbit", 30, 1_950_000_000u64),
            ("0s 40Mbit, 10s to 8Mbit, 20s 8Mbit, 30s to 40Mbit, repeat 30s", 60, 1_120_000_000),
            ("0s 2400bit, 1s 64kbit, repeat 2s", 60, 1_992_000),
        ] {
            let (mut serializer, mut sent) = (scheduled(text), 0);
            let end = Instant::ZERO + Duration::from_secs(seconds);
            while serializer.send(Instant::ZERO, ByteCount(1_500)).1 <= end {
                sent += 12_000;
            }
            assert!(bits >= sent && bits - sent <= 12_000, "{text}: {sent} of {bits}");
        }
    }
}
