use units::{BitRate, ByteCount, Duration, Instant};

/// The clock of the line: when is it free, to an exact fraction of a nanosecond.
///
/// A packet of n bytes takes 8·10⁹·n ÷ rate nanoseconds. The remainder of that
/// division is kept (`part`, in units of 1/rate ns) and carried into the next
/// packet, so rounding never adds up.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    rate: Option<BitRate>,
    free: Instant,
    part: u64,
}

impl Line {
    pub(crate) fn new(rate: Option<BitRate>) -> Line {
        Line { rate, free: Instant::ZERO, part: 0 }
    }

    /// When the packets sent so far are over, rounded up.
    pub(crate) fn free(&self) -> Instant {
        if self.part == 0 { self.free } else { self.free + Duration::from_nanos(1) }
    }

    /// A new rate for the packets that are not on the line yet.
    pub(crate) fn set_rate(&mut self, rate: Option<BitRate>) {
        if rate != self.rate {
            self.free = self.free();
            self.part = 0;
            self.rate = rate;
        }
    }

    /// What sending `len` bytes would take, starting at or after `earliest`: the
    /// start and the end.
    pub(crate) fn plan(&self, earliest: Instant, len: ByteCount) -> (Instant, Instant) {
        let mut copy = self.clone();
        copy.send(earliest, len)
    }

    /// Sends `len` bytes at or after `earliest`, as soon as the line is free.
    pub(crate) fn send(&mut self, earliest: Instant, len: ByteCount) -> (Instant, Instant) {
        if earliest > self.free() {
            self.free = earliest;
            self.part = 0;
        }
        let start = self.free;
        if let Some(rate) = self.rate {
            let scaled = len.0 as u128 * 8_000_000_000 + self.part as u128;
            let ns = u64::try_from(scaled / rate.as_bps() as u128).unwrap_or(u64::MAX);
            self.free += Duration::from_nanos(ns);
            self.part = (scaled % rate.as_bps() as u128) as u64;
        }
        (start, self.free())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_million_packets_take_exactly_their_bits_over_the_rate() {
        // 7 Mbit/s divides nothing evenly: one packet takes 1,714,285.714… ns.
        let mut line = Line::new(Some(BitRate::from_mbps(7)));
        for _ in 0..1_000_000 {
            line.send(Instant::ZERO, ByteCount(1_500));
        }
        let exact = 1_000_000u128 * 1_500 * 8_000_000_000 / 7_000_000;
        assert_eq!(line.free.as_nanos() as u128, exact);
    }

    #[test]
    fn an_idle_line_starts_when_the_packet_comes() {
        let mut line = Line::new(Some(BitRate::from_mbps(8)));
        line.send(Instant::ZERO, ByteCount(100));
        let later = Instant::from_nanos(1_000_000);
        let (start, end) = line.send(later, ByteCount(100));
        assert_eq!((start, end), (later, later + Duration::from_micros(100)));
    }

    #[test]
    fn a_new_rate_holds_from_the_next_packet_on() {
        let mut line = Line::new(Some(BitRate::from_mbps(8)));
        line.send(Instant::ZERO, ByteCount(1_000));
        line.set_rate(Some(BitRate::from_mbps(4)));
        let (start, end) = line.send(Instant::ZERO, ByteCount(1_000));
        assert_eq!((start.as_nanos(), end.as_nanos()), (1_000_000, 3_000_000));
    }
}
