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
            let (ns, part) = time_for(len, rate, self.part);
            self.free += Duration::from_nanos(ns);
            self.part = part;
        }
        (start, self.free())
    }
}

/// The whole nanoseconds that `len` bytes and a rest of `part` take, and the new rest.
fn time_for(len: ByteCount, rate: BitRate, part: u64) -> (u64, u64) {
    const BIT_NANOSECONDS: u64 = 8_000_000_000;
    let rate = rate.as_bps();
    // Every real packet fits into 64 bits, and dividing those is several times faster.
    if let Some(scaled) = len.0.checked_mul(BIT_NANOSECONDS).and_then(|n| n.checked_add(part)) {
        return (scaled / rate, scaled % rate);
    }
    let scaled = u128::from(len.0) * u128::from(BIT_NANOSECONDS) + u128::from(part);
    let ns = u64::try_from(scaled / u128::from(rate)).unwrap_or(u64::MAX);
    (ns, (scaled % u128::from(rate)) as u64)
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
    fn an_absurd_length_takes_absurdly_long() {
        let rate = BitRate::from_bps(3);
        assert_eq!(time_for(ByteCount(u64::MAX), rate, 0).0, u64::MAX);
        assert_eq!(
            time_for(ByteCount(10_000_000_000), BitRate::from_mbps(8_000), 7),
            (10_000_000_000, 7)
        );
        assert_eq!(time_for(ByteCount(1), rate, 2), (2_666_666_667, 1));
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
