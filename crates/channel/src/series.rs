//! A time series of what crossed, in bins, of bounded size.

use serde::Serialize;
use units::{ByteCount, Duration, Instant};

/// What happened on the line during one bin of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Bin {
    /// Nanoseconds during which the line was sending. Divided by the bin's width it
    /// is the utilisation.
    pub busy_ns: u64,
    /// Bytes sent, lost ones included; a packet that spans bins is shared out.
    pub sent_bytes: u64,
    /// Bytes of these that were lost to impairments.
    pub lost_bytes: u64,
    /// Bytes refused by the full queue.
    pub refused_bytes: u64,
    /// The most bytes that waited in the queue when a packet came.
    pub queue_peak_bytes: u64,
}

impl Bin {
    fn merge(self, o: Bin) -> Bin {
        Bin {
            busy_ns: self.busy_ns + o.busy_ns,
            sent_bytes: self.sent_bytes + o.sent_bytes,
            lost_bytes: self.lost_bytes + o.lost_bytes,
            refused_bytes: self.refused_bytes + o.refused_bytes,
            queue_peak_bytes: self.queue_peak_bytes.max(o.queue_peak_bytes),
        }
    }
}

/// A time series of bounded size: when it would need more than `limit` bins,
/// neighbours are merged and the width doubles. Bin i covers the time from
/// i × width to (i + 1) × width after the channel's time zero.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Series {
    width: u64,
    limit: usize,
    bins: Vec<Bin>,
}

impl Series {
    /// An empty series; `width` at least 1 µs and `limit` at least 2 (less is raised
    /// to that). It takes at most 40 bytes × `limit`.
    pub fn new(width: Duration, limit: usize) -> Series {
        Series { width: width.as_nanos().max(1_000), limit: limit.max(2), bins: Vec::new() }
    }

    /// The width of a bin now.
    pub fn width(&self) -> Duration {
        Duration::from_nanos(self.width)
    }

    /// The bins from time zero on; what is missing at the end is zero.
    pub fn bins(&self) -> &[Bin] {
        &self.bins
    }

    /// Accounts for a packet that was on the line from `start` to `end`.
    pub(crate) fn sent(&mut self, start: Instant, end: Instant, len: ByteCount, lost: bool) {
        let (start, end) = (start.as_nanos(), end.as_nanos());
        self.bin(end);
        let whole = (end - start).max(1) as u128;
        let share = |t: u64| (len.0 as u128 * (t - start) as u128 / whole) as u64;
        let (mut from, mut counted) = (start, 0);
        loop {
            let width = self.width;
            let bin = self.bin(from);
            let to = (from - from % width).saturating_add(width).min(end);
            // The last piece takes the rest, so the sum is the length to the byte.
            let upto = if to == end { len.0 } else { share(to) };
            bin.busy_ns += to - from;
            bin.sent_bytes += upto - counted;
            bin.lost_bytes += if lost { upto - counted } else { 0 };
            (from, counted) = (to, upto);
            if to == end {
                return;
            }
        }
    }

    pub(crate) fn refused(&mut self, now: Instant, len: ByteCount) {
        self.bin(now.as_nanos()).refused_bytes += len.0;
    }

    pub(crate) fn queue(&mut self, now: Instant, waiting: ByteCount) {
        let bin = self.bin(now.as_nanos());
        bin.queue_peak_bytes = bin.queue_peak_bytes.max(waiting.0);
    }

    fn bin(&mut self, at: u64) -> &mut Bin {
        while at / self.width >= self.limit as u64 {
            let merged =
                self.bins.chunks(2).map(|c| c[0].merge(*c.get(1).unwrap_or(&Bin::default())));
            self.bins = merged.collect();
            self.width = self.width.saturating_mul(2);
        }
        let index = (at / self.width) as usize;
        if index >= self.bins.len() {
            self.bins.resize(index + 1, Bin::default());
        }
        &mut self.bins[index]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(n: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(n)
    }

    #[test]
    fn a_packet_that_spans_bins_is_shared_out_to_the_byte() {
        let mut series = Series::new(Duration::from_millis(10), 100);
        series.sent(ms(5), ms(35), ByteCount(1_000), true);
        let sent: Vec<u64> = series.bins().iter().map(|b| b.sent_bytes).collect();
        assert_eq!(sent, [166, 334, 333, 167]);
        assert_eq!(series.bins()[1].busy_ns, 10_000_000);
        assert_eq!(series.bins().iter().map(|b| b.lost_bytes).sum::<u64>(), 1_000);
    }

    #[test]
    fn too_many_bins_are_merged_and_nothing_is_lost() {
        let mut series = Series::new(Duration::from_millis(1), 8);
        for i in 0..1_000 {
            series.sent(ms(i), ms(i + 1), ByteCount(10), false);
            assert!(series.bins().len() <= 8);
        }
        assert_eq!(series.width(), Duration::from_millis(128));
        assert_eq!(series.bins().iter().map(|b| b.sent_bytes).sum::<u64>(), 10_000);
        assert_eq!(series.bins()[0].busy_ns, 128_000_000);
    }

    #[test]
    fn an_absurd_time_neither_panics_nor_fills_memory() {
        let mut series = Series::new(Duration::ZERO, 0);
        series.queue(Instant::FAR_FUTURE, ByteCount(1));
        series.sent(Instant::FAR_FUTURE, Instant::FAR_FUTURE, ByteCount(7), false);
        assert!(series.bins().len() <= 2);
    }
}
