//! The code rate of repair for a bulk flow, from the losses that were measured: one repair packet
//! for how many packets, over which window, or none.

use units::{BitRate, Duration, Ratio};

use super::exact;
use super::header::{self, MAX_WINDOW};
use super::tail_fec::LossModel;

/// The loss ratio is averaged over so many packets, or over [`LOSSES`] losses if those are
/// fewer packets: it must follow rain, but not a single burst.
const MEMORY: f64 = 40_000.0;
/// See [`MEMORY`].
const LOSSES: f64 = 2000.0;
/// Standard deviations added to few losses, see [`LossEstimate::ratio`].
const DOUBT: f64 = 2.0;
/// From so many losses on their ratio counts as known.
const FEW: f64 = 50.0;
/// The profile's error ratio weighs as much as so many packets that were measured.
const PRIOR: f64 = 300.0;
/// Bulk is not coded below this loss ratio (repair then costs more than it saves), or, where
/// it is, below a fifth of it: the estimate of rare losses is rough.
const LEAST_FOR_BULK: f64 = 0.0005;
/// Where many streams share the link (and the delay of a loss), the margin is at most this part
/// of the loss ratio.
const SHARED_MARGIN: f64 = 0.1;
/// The most redundancy beyond the loss ratio: a constant, and a part of the loss ratio. Above
/// that the code costs more than the delay that it saves, because a transfer pays for delay only
/// once, at its end; the delay of retransmissions grows with the loss ratio.
const MOST_MARGIN: (f64, f64) = (0.01, 0.4);
/// The head-of-line delay that the code aims at, in round trips: how long bytes wait for a
/// missing packet before them. Half a round trip on average is asked for; in the simulator it
/// comes out at a third to a half of these.
const HEAD_OF_LINE_DELAY: f64 = 0.1;
/// The head-of-line delay that is accepted where that one costs too much redundancy.
const MOST_HEAD_OF_LINE_DELAY: f64 = 0.7;
/// A margin up to this is cheap: a constant, and a part of the loss ratio.
const CHEAP: (f64, f64) = (0.005, 0.2);
/// With fewer losses in a round trip than this, retransmission delays bytes by less than half a
/// round trip on average (measured in the simulator, 1 to 5 % lost); a fifth less where there
/// is a code already.
const FEW_IN_FLIGHT: f64 = 1.2;
/// Repair packets that cover each packet, where that is cheap: over fewer of them losses hardly
/// average out.
const REPAIRS_IN_WINDOW: f64 = 8.0;
/// A window of W packets loses p W on average. It loses more than r W, which is more than its
/// repair packets bring back, with a probability of about exp(−W (r − p)² / 2p). Where a round
/// trip holds many windows, all of them succeed only if the exponent grows: by this for each
/// doubling of their number.
const SAFETY: f64 = 2.5;
/// The most redundancy that [`SAFETY`] adds.
const MOST_FOR_SAFETY: f64 = 0.01;
/// Packets missing from a window on average, at most: solving for more takes too much of the
/// processor.
const MOST_MISSING: f64 = 64.0;
/// Symbol bytes that may be combined a second: some percent of a processor.
const COMBINED_PER_SECOND: f64 = 1.5e9;

/// The share of packets that do not arrive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LossEstimate {
    packets: f64,
    lost: f64,
    /// Of `packets`, those that stand for the profile's error ratio and were never sent.
    believed: f64,
    /// The profile promises bit errors.
    promised: bool,
}

impl LossEstimate {
    /// Starts from a bit-error ratio b: a packet of n bytes is lost with 1 − (1−b)^(8n).
    pub fn new(bit_errors: Ratio, packet: u16) -> LossEstimate {
        let loss = 1.0 - exact::power(1.0 - bit_errors.as_f64(), u64::from(packet) * 8);
        LossEstimate { packets: PRIOR, lost: PRIOR * loss, believed: PRIOR, promised: loss > 0.0 }
    }

    /// Of `packets` more, `lost` were lost, whether repair brought them back or not.
    pub fn observe(&mut self, packets: u64, lost: u64) {
        self.packets += packets as f64;
        self.lost = (self.lost + lost as f64).min(self.packets);
        if self.packets > MEMORY || self.lost > LOSSES && self.packets > 2.0 * PRIOR {
            self.packets /= 2.0;
            self.lost /= 2.0;
            self.believed /= 2.0;
        }
    }

    /// The loss ratio, 0 … 0.9. From few losses it is rough, and too little repair costs a flow
    /// more than too much for a while: up to [`DOUBT`] standard deviations of the number of
    /// losses are added then, unless the profile promises bit errors.
    pub fn ratio(&self) -> f64 {
        ((self.lost + self.doubt()) / self.packets).min(0.9)
    }

    /// The loss ratio for the repair of a tail, which gets only one chance: the first few losses
    /// must suffice, so the weight of [`PRIOR`] falls with each, unless the profile promises bit
    /// errors.
    pub fn ratio_soon(&self) -> f64 {
        let void = match self.promised {
            true => 0.0,
            false => self.believed * (1.0 - 1.0 / exact::power(1.0 + self.lost, 2)),
        };
        ((self.lost + self.doubt()) / (self.packets - void)).min(0.9)
    }

    /// Losses added to those counted, see [`LossEstimate::ratio`].
    fn doubt(&self) -> f64 {
        let known = (self.lost / FEW).min(1.0);
        if self.promised { 0.0 } else { DOUBT * (1.0 - known) * self.lost.sqrt() }
    }
}

/// The code over a bulk flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BulkCode {
    /// One of so many packets is REPAIR.
    pub interval: u64,
    /// Packet numbers that a REPAIR packet reaches back.
    pub window: u64,
}

impl BulkCode {
    /// The code against `losses`, where `round_trip` packets fill a round trip, windows reach
    /// over `in_flight` of them at most, and `rate` bytes leave a second. `None`: retransmission
    /// alone serves better.
    ///
    /// Losses wait for repair packets like customers for a server: with redundancy r, loss ratio
    /// p and ρ = p/r the mean head-of-line delay is about 1/(2r(1−ρ)²) packets (the residual
    /// busy period of a queue with Poisson arrivals and constant service). That is
    /// L × in_flight for r = p + √(p / (2 L × in_flight)).
    ///
    /// A burst of B packets takes B / (r − p) further packets to repair; where retransmission is
    /// sooner, the code is useless.
    ///
    /// `dominant`: one stream has most of the link. `on`: there is a code already.
    pub fn new(
        losses: LossModel,
        (round_trip, in_flight): (f64, f64),
        rate: f64,
        dominant: bool,
        on: bool,
    ) -> Option<BulkCode> {
        let loss = losses.loss;
        let (least, few) = match on {
            true => (LEAST_FOR_BULK / 5.0, FEW_IN_FLIGHT * 0.8),
            false => (LEAST_FOR_BULK, FEW_IN_FLIGHT),
        };
        let window = in_flight.min(MOST_MISSING / loss.max(1e-9)).clamp(32.0, MAX_WINDOW as f64);
        let for_delay = |delay: f64| (loss / (2.0 * delay * in_flight.max(1.0))).sqrt();
        let best = for_delay(HEAD_OF_LINE_DELAY).max(REPAIRS_IN_WINDOW / window - loss);
        let margin = best.min(CHEAP.0 + CHEAP.1 * loss).max(for_delay(MOST_HEAD_OF_LINE_DELAY));
        // Losses beyond a window's repairs wait for a retransmission.
        let exponent = SAFETY * exact::log2(round_trip / window).max(0.0);
        let safe = (2.0 * loss * exponent / window).sqrt();
        let margin = margin.max(safe.min(MOST_FOR_SAFETY));
        let of_bursts = if losses.is_bursty() {
            losses.burst / (MOST_HEAD_OF_LINE_DELAY * in_flight)
        } else {
            0.0
        };
        let margin = margin.max(of_bursts);
        let redundancy = loss + margin;
        let most =
            if dominant { MOST_MARGIN.0 + MOST_MARGIN.1 * loss } else { SHARED_MARGIN * loss };
        if loss < least || loss * in_flight < few || margin > most {
            return None;
        }
        let affordable = COMBINED_PER_SECOND / (rate * redundancy);
        Some(BulkCode {
            interval: header::told_period((1.0 / redundancy) as u64),
            window: window.min(affordable).max(32.0) as u64,
        })
    }
}

/// For a plan of a link: one of so many packets of a bulk flow is repair, where packets are lost
/// independently with the ratio `loss`. `None`: retransmission alone serves better.
pub fn bulk_repair_interval(loss: Ratio, rate: BitRate, rtt: Duration, packet: u16) -> Option<u64> {
    let in_flight = rate.bytes_in(rtt).0 as f64 / f64::from(packet.max(1));
    let rate = rate.bytes_in(Duration::from_secs(1)).0 as f64;
    let losses = LossModel::independent(loss.as_f64());
    let reach = in_flight.min(MAX_WINDOW as f64);
    BulkCode::new(losses, (in_flight, reach), rate, true, false).map(|code| code.interval)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bulk_is_coded_where_that_is_cheap() {
        // 45 Mbit/s, 700 ms: the notes ask for 0.3, 1.2 and 12 %.
        let redundancy = |loss| {
            BulkCode::new(LossModel::independent(loss), (2625.0, 2048.0), 5.6e6, true, false)
                .map(|c| 1.0 / c.interval as f64)
        };
        assert_eq!(redundancy(0.0001), None);
        for (loss, asked) in [(0.001, 0.004), (0.01, 0.0144), (0.1, 0.12)] {
            let r = redundancy(loss).expect("coded");
            assert!((asked * 0.85..asked * 1.15).contains(&r), "{loss}: {r}");
        }
        // 100 kbit/s, 1 s, bit errors of 1e-5: fifteen packets in a round trip.
        assert_eq!(
            BulkCode::new(LossModel::independent(0.064), (15.0, 15.0), 12_500.0, true, false),
            None
        );
    }

    #[test]
    fn bulk_is_not_coded_against_bursts_that_are_sent_again_as_soon() {
        // 20 Mbit/s, 600 ms.
        let code = |burst| {
            let losses = LossModel { loss: 0.01, burst };
            BulkCode::new(losses, (1000.0, 1000.0), 2.5e6, true, true).map(|c| c.interval)
        };
        let alone =
            BulkCode::new(LossModel::independent(0.01), (1000.0, 1000.0), 2.5e6, true, true);
        assert_eq!(code(4.0), alone.map(|c| c.interval));
        assert_eq!(code(20.0), None);
    }

    #[test]
    fn the_estimate_forgets() {
        let mut loss = LossEstimate::new(Ratio::from_f64(1e-5), 830);
        assert!((0.06..0.07).contains(&loss.ratio()));
        for _ in 0..200 {
            loss.observe(500, 0);
        }
        assert!(loss.ratio() < 0.001);
        for _ in 0..400 {
            loss.observe(500, 50);
        }
        assert!((0.095..0.105).contains(&loss.ratio()));
    }
}
