//! From what client, server and link noticed to the figures of a source.

use serde::{Deserialize, Serialize};

use super::figure::Figure;
use super::traffic::{Fetched, Samples, Served};

/// One direction of the link over time.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct LinkUse {
    /// Width of a bin, s.
    pub width: f64,
    /// Share of each bin during which the line was sending, 0…1.
    pub busy: Vec<f64>,
    /// Bytes delivered in each bin.
    pub delivered: Vec<f64>,
    /// Bytes refused by the queue or the policer in each bin.
    #[serde(default)]
    pub refused: Vec<f64>,
    /// Most bytes that waited before the line in each bin.
    #[serde(default)]
    pub queue: Vec<f64>,
}

/// Queues are told in packets of this size, as the sources do.
const PACKET: f64 = 1_500.0;

impl LinkUse {
    /// From the emulator's own account.
    pub fn of(series: &channel::Series) -> LinkUse {
        let width = series.width().as_secs_f64();
        let share = |bin: &channel::Bin| bin.busy_ns as f64 / 1e9 / width;
        let delivered = |bin: &channel::Bin| bin.sent_bytes.saturating_sub(bin.lost_bytes) as f64;
        LinkUse {
            width,
            busy: series.bins().iter().map(share).collect(),
            delivered: series.bins().iter().map(delivered).collect(),
            refused: series.bins().iter().map(|bin| bin.refused_bytes as f64).collect(),
            queue: series.bins().iter().map(|bin| bin.queue_peak_bytes as f64).collect(),
        }
    }

    /// Packets that waited at most before the line over time since `from`, a point a bin.
    pub fn queue_series(&self, from: f64, to: f64) -> Samples {
        let bins = self.queue.iter().enumerate();
        let points = bins.map(|(i, bytes)| ((i as f64 + 0.5) * self.width, bytes / PACKET));
        points.filter(|p| p.0 >= from && p.0 <= to).map(|(t, n)| (t - from, n)).collect()
    }

    /// Mean of `values` (per bin) between two times, bins at the ends in proportion.
    fn mean(&self, values: &[f64], from: f64, to: f64) -> Option<f64> {
        if self.width <= 0.0 || to <= from {
            return None;
        }
        let sum: f64 = values
            .iter()
            .enumerate()
            .map(|(i, v)| {
                let (start, end) = (i as f64 * self.width, (i + 1) as f64 * self.width);
                v * (end.min(to) - start.max(from)).max(0.0)
            })
            .sum();
        Some(sum / (to - from))
    }

    /// Share of the time between `from` and `to` during which the line was sending.
    pub fn utilisation(&self, from: f64, to: f64) -> Option<f64> {
        // A bin's parts are shared out evenly, which may count a hair too much at the ends.
        self.mean(&self.busy, from, to).map(|share| share.min(1.0))
    }

    /// Bits delivered per second between `from` and `to`.
    pub fn bits_per_second(&self, from: f64, to: f64) -> Option<f64> {
        self.mean(&self.delivered, from, to).map(|bytes| bytes / self.width * 8.0)
    }

    /// Share of the bytes offered between `from` and `to` that the queue or the policer
    /// refused, of those refused or delivered, 0…1.
    pub fn refused(&self, from: f64, to: f64) -> Option<f64> {
        let refused = self.mean(&self.refused, from, to)?;
        let all = refused + self.mean(&self.delivered, from, to)?;
        (all > 0.0).then(|| refused / all)
    }

    /// Utilisation in percent over time since `from`, `bin` seconds a point.
    pub fn utilisation_series(&self, from: f64, to: f64, bin: f64) -> Samples {
        self.series(from, to, bin, |a, b| self.utilisation(a, b).map(|u| u * 100.0))
    }

    /// Throughput in kbit/s over time since `from`, `bin` seconds a point.
    pub fn throughput_series(&self, from: f64, to: f64, bin: f64) -> Samples {
        self.series(from, to, bin, |a, b| self.bits_per_second(a, b).map(|r| r / 1e3))
    }

    fn series(
        &self,
        from: f64,
        to: f64,
        bin: f64,
        value: impl Fn(f64, f64) -> Option<f64>,
    ) -> Samples {
        let bins = ((to - from) / bin).ceil().clamp(0.0, 100_000.0) as usize;
        (0..bins)
            .filter_map(|i| {
                let (a, b) = (from + i as f64 * bin, from + (i + 1) as f64 * bin);
                Some(((a + b) / 2.0 - from, value(a, b.min(to))?))
            })
            .collect()
    }
}

/// One run of one way. Times are seconds since the client began to connect, those of
/// the link since the experiment's start.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Outcome {
    /// Seed of the link's errors and of the content.
    pub seed: u64,
    /// When the client began, since the experiment's start.
    pub started: f64,
    /// Content carried and found right, bytes.
    pub bytes: u64,
    /// Content asked for; more than `bytes` if time was up first.
    pub asked: u64,
    /// Rate of the link downwards, bit/s, on average over the work; 0 if it has none.
    pub link_rate: u64,
    /// End of TCP's opening.
    pub connected: f64,
    /// First byte of content.
    pub first_byte: f64,
    /// Last byte of content.
    pub complete: f64,
    /// While the server had unacknowledged data, s.
    pub server_busy: f64,
    /// Round trip as the server's TCP saw it, ms over time.
    pub server_rtt: Samples,
    /// Segments that the server sent again.
    pub retransmitted: u32,
    /// Bytes received over time.
    pub received: Samples,
    /// Bytes that the server's TCP has sent over time, of a single connection.
    #[serde(default)]
    pub sent: Samples,
    /// Bytes of these that were acknowledged to it.
    #[serde(default)]
    pub acknowledged: Samples,
    /// The congestion window of the server's TCP over time, bytes, of a single connection.
    #[serde(default)]
    pub congestion_window: Samples,
    /// Content of the UDP stream beside them as it arrived, bit/s.
    #[serde(default)]
    pub udp: Option<f64>,
    /// Pings beside them: when each was sent, and its round trip in ms.
    #[serde(default)]
    pub ping: Samples,
    /// Pings that never came back.
    #[serde(default)]
    pub ping_lost: u64,
    /// TCP connections of a page's client.
    #[serde(default)]
    pub connections: Option<u64>,
    /// Packets at its interface, both ways.
    #[serde(default)]
    pub packets: Option<u64>,
    /// Since the client began: when each object of a page was asked for, and when it had come.
    #[serde(default)]
    pub elements: Samples,
    /// Bytes of each of several streams.
    #[serde(default)]
    pub each: Vec<u64>,
    /// The link from server to client.
    pub down: LinkUse,
    /// The link from client to server.
    pub up: LinkUse,
}

impl Outcome {
    /// Puts together what both hosts and the link noticed.
    pub fn new(
        seed: u64,
        link_rate: u64,
        (client, each): (Fetched, Vec<u64>),
        served: &[Served],
        down: LinkUse,
        up: LinkUse,
    ) -> Outcome {
        let since = |samples: &Samples| -> Samples {
            samples.iter().map(|&(t, v)| (t - client.started, v)).collect()
        };
        let begin = served.iter().map(|s| s.started).fold(f64::INFINITY, f64::min);
        let end = served.iter().map(|s| s.started + s.busy).fold(0.0, f64::max);
        let mut server_rtt: Samples = served.iter().flat_map(|s| since(&s.rtt)).collect();
        server_rtt.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (sent, acknowledged, congestion_window) = match served {
            [one] => (since(&one.sent), since(&one.acknowledged), since(&one.congestion_window)),
            _ => Default::default(),
        };
        Outcome {
            seed,
            started: client.started,
            bytes: client.bytes,
            asked: client.asked,
            link_rate,
            connected: client.connected,
            first_byte: client.first_byte,
            complete: client.complete,
            server_busy: (end - begin).max(0.0),
            server_rtt,
            retransmitted: served.iter().map(|s| s.retransmitted).sum(),
            received: since(&client.received),
            sent,
            acknowledged,
            congestion_window,
            each,
            udp: None,
            ping: Samples::new(),
            ping_lost: 0,
            connections: None,
            packets: None,
            elements: Samples::new(),
            down,
            up,
        }
    }

    /// The work of several pairs at once as one: bytes and rates are sums, `each` has the
    /// bytes of each pair, and what is noted over time is the first pair's. `None` of nothing.
    pub fn together(all: Vec<Outcome>) -> Option<Outcome> {
        let each: Vec<u64> = all.iter().map(|o| o.bytes).collect();
        let mut all = all.into_iter();
        let mut sum = all.next()?;
        for one in all {
            sum.bytes += one.bytes;
            sum.asked += one.asked;
            sum.link_rate += one.link_rate;
            sum.complete = sum.complete.max(one.complete);
            sum.retransmitted += one.retransmitted;
            sum.udp = sum.udp.zip(one.udp).map(|(a, b)| a + b);
        }
        if each.len() > 1 {
            sum.each = each;
        }
        Some(sum)
    }

    /// Content over the whole time, bit/s.
    pub fn goodput(&self) -> f64 {
        if self.complete > 0.0 { self.bytes as f64 * 8.0 / self.complete } else { 0.0 }
    }

    /// Content received between two times since the client began to connect, bit/s.
    pub fn received_between(&self, from: f64, to: f64) -> Option<f64> {
        let until = |t: f64| self.received.iter().rev().find(|s| s.0 <= t).map_or(0.0, |s| s.1);
        (to > from).then(|| (until(to) - until(from)) * 8.0 / (to - from))
    }

    /// True if all that was asked for was carried.
    pub fn is_whole(&self) -> bool {
        self.bytes == self.asked
    }

    /// The time for all that was asked for; at the rate reached so far if time was up.
    pub fn time_for_all(&self) -> f64 {
        self.complete * self.left_out()
    }

    /// How much more was asked for than carried.
    fn left_out(&self) -> f64 {
        if self.is_whole() || self.bytes == 0 { 1.0 } else { self.asked as f64 / self.bytes as f64 }
    }

    /// The figure of this run alone; `None` where it takes two ways or was not noted.
    pub fn figure(&self, figure: Figure) -> Option<f64> {
        let (from, to) = (self.started, self.started + self.complete);
        let of_link = matches!(figure, Figure::Udp | Figure::LinkThroughput | Figure::Utilisation);
        if self.udp.is_some() && self.bytes == 0 && !of_link {
            // UDP alone: there was no transfer to speak of.
            return None;
        }
        match figure {
            Figure::Goodput => Some(self.goodput() / 1e3),
            Figure::Transfer if self.complete > self.first_byte && self.connections.is_none() => {
                Some(self.bytes as f64 * 8.0 / 1e3 / (self.complete - self.first_byte))
            }
            Figure::LinkThroughput => self.down.bits_per_second(from, to).map(|r| r / 1e3),
            Figure::Sent if self.complete > 0.0 => {
                let last = self.sent.iter().rev().find(|s| s.0 <= self.complete)?;
                Some(last.1 * 8.0 / 1e3 / self.complete)
            }
            Figure::Share if self.link_rate > 0 => {
                Some(self.goodput() / self.link_rate as f64 * 100.0)
            }
            Figure::Udp => self.udp.map(|rate| rate / 1e3),
            Figure::Ping => self.ping_at(50),
            Figure::Ping95 => self.ping_at(95),
            Figure::Ping99 => self.ping_at(99),
            Figure::PingLost => {
                let sent = self.ping.len() as u64 + self.ping_lost;
                (sent > 0).then(|| self.ping_lost as f64 / sent as f64 * 100.0)
            }
            Figure::Utilisation => self.down.utilisation(from, to).map(|u| u * 100.0),
            Figure::FirstByte => Some(self.first_byte * 1e3),
            Figure::Time => Some(self.time_for_all()),
            // Of a page's server nothing is noted.
            Figure::ServerBusy if self.connections.is_none() => {
                Some(self.server_busy * self.left_out())
            }
            Figure::Connections => self.connections.map(|n| n as f64),
            Figure::Packets => self.packets.map(|n| n as f64),
            Figure::ServerRtt => median(self.server_rtt.iter().map(|s| s.1)),
            Figure::Queue => {
                self.down.queue_series(from, to).into_iter().map(|p| p.1).reduce(f64::max)
            }
            Figure::Transfer
            | Figure::Sent
            | Figure::Share
            | Figure::ServerBusy
            | Figure::Speedup => None,
        }
    }

    /// The round trip that so many per cent of the pings that came back stay below, ms.
    fn ping_at(&self, percent: usize) -> Option<f64> {
        let mut sorted: Vec<f64> = self.ping.iter().map(|p| p.1).collect();
        sorted.sort_by(f64::total_cmp);
        sorted.get((sorted.len() * percent / 100).min(sorted.len().saturating_sub(1))).copied()
    }

    /// Content received over time, kbit/s, `bin` seconds a point.
    pub fn goodput_series(&self, bin: f64) -> Samples {
        rate_series(&self.received, self.complete, bin)
    }
}

/// Jain's index of fairness (Jain, Chiu and Hawe, 1984): (Σx)² ÷ (n·Σx²), 1 if all are
/// equal and 1/n if one has everything; `None` of nothing.
pub fn jain(shares: &[u64]) -> Option<f64> {
    let sum: f64 = shares.iter().map(|x| *x as f64).sum();
    let squares: f64 = shares.iter().map(|x| (*x as f64).powi(2)).sum();
    (squares > 0.0).then(|| sum * sum / (shares.len() as f64 * squares))
}

/// The median; `None` of nothing. Of an even number, the mean of the middle two.
pub fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut sorted: Vec<f64> = values.into_iter().filter(|v| v.is_finite()).collect();
    sorted.sort_by(f64::total_cmp);
    let n = sorted.len();
    match n {
        0 => None,
        _ if n % 2 == 1 => Some(sorted[n / 2]),
        _ => Some((sorted[n / 2 - 1] + sorted[n / 2]) / 2.0),
    }
}

/// kbit/s over time out of a running total of bytes.
pub fn rate_series(total: &Samples, end: f64, bin: f64) -> Samples {
    let bins = (end / bin).ceil().clamp(0.0, 100_000.0) as usize;
    let (mut next, mut before, mut now) = (0, 0.0, 0.0);
    (0..bins)
        .map(|i| {
            let (from, to) = (i as f64 * bin, ((i + 1) as f64 * bin).min(end));
            while next < total.len() && total[next].0 <= to {
                now = total[next].1;
                next += 1;
            }
            let bytes = now - before;
            before = now;
            ((from + to) / 2.0, bytes * 8.0 / 1e3 / (to - from).max(1e-9))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link() -> LinkUse {
        LinkUse {
            width: 0.5,
            busy: vec![0.0, 1.0, 1.0, 0.5],
            delivered: vec![0.0, 100.0, 100.0, 50.0],
            refused: vec![0.0, 0.0, 100.0, 0.0],
            queue: vec![0.0, 3_000.0, 6_000.0, 1_500.0],
        }
    }

    #[test]
    fn utilisation_counts_the_bins_at_the_ends_in_proportion() {
        assert_eq!(link().utilisation(0.5, 1.5), Some(1.0));
        assert_eq!(link().utilisation(0.25, 0.75), Some(0.5));
        assert_eq!(link().utilisation(1.0, 3.0), Some(0.375));
        assert_eq!(link().utilisation(1.0, 1.0), None);
        assert_eq!(link().bits_per_second(0.5, 1.5), Some(1600.0));
        assert_eq!(link().refused(0.5, 1.5), Some(1.0 / 3.0));
    }

    #[test]
    fn a_queue_is_told_in_packets_from_the_start_of_the_transfer() {
        assert_eq!(link().queue_series(0.5, 2.0), [(0.25, 2.0), (0.75, 4.0), (1.25, 1.0)]);
        let run = Outcome { started: 0.5, complete: 1.5, down: link(), ..Outcome::default() };
        assert_eq!(run.figure(Figure::Queue), Some(4.0));
    }

    #[test]
    fn the_median_ignores_order_and_what_is_not_a_number() {
        assert_eq!(median([3.0, 1.0, f64::NAN, 2.0]), Some(2.0));
        assert_eq!(median([4.0, 1.0]), Some(2.5));
        assert_eq!(median([]), None);
    }

    #[test]
    fn fairness_is_one_among_equals_and_little_for_one_who_has_it_all() {
        assert_eq!(jain(&[5, 5, 5]), Some(1.0));
        assert_eq!(jain(&[0, 0, 9]), Some(1.0 / 3.0));
        assert_eq!(jain(&[0, 0]), None);
    }

    #[test]
    fn a_rate_series_holds_as_many_bytes_as_the_total() {
        let total = vec![(0.1, 1000.0), (0.9, 2000.0), (2.5, 4000.0)];
        let series = rate_series(&total, 2.5, 1.0);
        let kbit: f64 = series.iter().zip([1.0, 1.0, 0.5]).map(|(s, width)| s.1 * width).sum();
        assert_eq!(series.len(), 3);
        assert!((kbit - 32.0).abs() < 1e-9);
    }

    #[test]
    fn pairs_together_carry_what_each_of_them_does() {
        let one = |bytes, complete| Outcome {
            bytes,
            complete,
            link_rate: 1_000_000,
            udp: Some(3.0),
            ..Outcome::default()
        };
        let sum = Outcome::together(vec![one(500_000, 8.0), one(250_000, 7.5)]).unwrap();
        assert_eq!((sum.bytes, sum.complete, sum.udp), (750_000, 8.0, Some(6.0)));
        assert_eq!(sum.each, [500_000, 250_000]);
        assert_eq!(sum.figure(Figure::Share), Some(37.5));
        assert_eq!(Outcome::together(vec![one(9, 1.0)]).unwrap().each, [0; 0]);
        assert!(Outcome::together(Vec::new()).is_none());
    }

    #[test]
    fn figures_of_a_run_follow_from_its_times() {
        let run = Outcome {
            bytes: 1_000_000,
            asked: 4_000_000,
            complete: 8.0,
            first_byte: 0.6,
            link_rate: 2_000_000,
            server_rtt: vec![(0.0, 70.0), (1.0, 75.0), (2.0, 600.0)],
            sent: vec![(1.0, 500_000.0), (7.9, 1_200_000.0), (8.1, 1_300_000.0)],
            ..Outcome::default()
        };
        assert_eq!(run.figure(Figure::Goodput), Some(1000.0));
        assert_eq!(run.figure(Figure::Sent), Some(1200.0));
        assert_eq!(run.figure(Figure::Share), Some(50.0));
        assert_eq!(run.figure(Figure::ServerRtt), Some(75.0));
        assert_eq!(run.figure(Figure::Time), Some(32.0));
        assert_eq!(run.figure(Figure::Speedup), None);
        assert_eq!(run.figure(Figure::Utilisation), None);
        assert_eq!(run.figure(Figure::Ping), None);
        let ping = (0..100).map(|i| (f64::from(i), f64::from(100 - i))).collect();
        let run = Outcome { ping, ping_lost: 25, ..run };
        assert_eq!(run.figure(Figure::Ping), Some(51.0));
        assert_eq!(run.figure(Figure::Ping99), Some(100.0));
        assert_eq!(run.figure(Figure::PingLost), Some(20.0));
    }
}
