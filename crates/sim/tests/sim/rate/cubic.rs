//! A TCP flow with CUBIC (RFC 9438) that always has something to send: window, loss and
//! growth, no bytes. Its acknowledgements come back on a way of their own.

use std::collections::{BTreeSet, VecDeque};

use units::{Duration, Instant};

/// RFC 9438, section 4: β and C.
const BETA: f64 = 0.7;
const C: f64 = 0.4;
const SEGMENT: u64 = 1448;

/// The flow.
pub struct Cubic {
    /// One way back.
    delay: Duration,
    /// In segments.
    window: f64,
    threshold: f64,
    /// RFC 9438: W_max and the time of the last reduction.
    most: f64,
    since: Option<Instant>,
    rtt: Duration,
    next: u64,
    /// Sent and not known to have arrived, with their times.
    flight: VecDeque<(u64, Instant)>,
    /// Numbers whose acknowledgement is on its way back.
    acks: VecDeque<(Instant, u64)>,
    acked: BTreeSet<u64>,
    /// Losses below this number belong to the last reduction.
    recovery: u64,
    delivered: u64,
    starts: Instant,
}

impl Cubic {
    pub fn new(starts: Instant, delay: Duration) -> Cubic {
        Cubic {
            delay,
            window: 10.0,
            threshold: f64::MAX,
            most: 0.0,
            since: None,
            rtt: delay.times(2),
            next: 0,
            flight: VecDeque::new(),
            acks: VecDeque::new(),
            acked: BTreeSet::new(),
            recovery: 0,
            delivered: 0,
            starts,
        }
    }

    pub fn delivered(&self) -> u64 {
        self.delivered
    }

    /// When there is something to do: the next acknowledgement, or a timeout.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let start = (self.next == 0).then_some(self.starts);
        let ack = self.acks.front().map(|a| a.0);
        let lost = self.flight.front().map(|f| f.1 + self.patience());
        [start, ack, lost].into_iter().flatten().min()
    }

    fn patience(&self) -> Duration {
        self.rtt.times(2) + Duration::from_secs(1)
    }

    /// A segment has arrived at the far host.
    pub fn on_arrival(&mut self, now: Instant, number: u64) {
        self.delivered += SEGMENT;
        self.acks.push_back((now + self.delay, number));
    }

    /// The next segment to send.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<u64> {
        if now < self.starts {
            return None;
        }
        while let Some((_, number)) = self.acks.front().copied().filter(|a| a.0 <= now) {
            self.acks.pop_front();
            self.on_ack(now, number);
        }
        if let Some((number, sent)) = self.flight.front().copied()
            && now >= sent + self.patience()
        {
            self.flight.clear();
            self.acked.clear();
            self.reduce(now);
            self.window = 1.0;
            self.recovery = number + 1;
        }
        if self.flight.len() as f64 >= self.window {
            return None;
        }
        self.flight.push_back((self.next, now));
        self.next += 1;
        Some(self.next - 1)
    }

    fn on_ack(&mut self, now: Instant, number: u64) {
        self.acked.insert(number);
        while let Some((first, sent)) = self.flight.front().copied() {
            if self.acked.remove(&first) {
                self.rtt = now.since(sent);
                self.flight.pop_front();
                self.grow(now);
            } else if first + 3 <= number {
                // Three later ones have arrived (RFC 6675).
                self.flight.pop_front();
                if first >= self.recovery {
                    self.reduce(now);
                    self.recovery = self.next;
                }
            } else {
                break;
            }
        }
    }

    fn grow(&mut self, now: Instant) {
        if self.window < self.threshold {
            self.window += 1.0;
            return;
        }
        let since = *self.since.get_or_insert(now);
        let k = ((self.most * (1.0 - BETA)).max(0.0) / C).cbrt();
        let t = (now.since(since) + self.rtt).as_secs_f64();
        let past = t - k;
        let target = (C * past * past * past + self.most).clamp(self.window, self.window * 1.5);
        let cubic = (target - self.window) / self.window;
        // The TCP-friendly region: α per window (section 4.3).
        let reno = 3.0 * (1.0 - BETA) / (1.0 + BETA) / self.window;
        self.window += cubic.max(if self.window < self.most { reno } else { 0.0 });
    }

    fn reduce(&mut self, now: Instant) {
        // Fast convergence (section 4.7).
        let converging = self.window < self.most;
        self.most = if converging { self.window * (1.0 + BETA) / 2.0 } else { self.window };
        self.window = (self.window * BETA).max(2.0);
        self.threshold = self.window;
        self.since = Some(now);
    }
}
