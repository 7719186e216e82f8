//! How much repair a link deserves, from the losses that were measured.

use units::{BitRate, Duration, Ratio};

use super::{LossModel, MAX_WINDOW, exact, header};

/// Packets over which the loss ratio is taken, and losses if those are sooner: it must
/// follow rain, and not one burst.
const MEMORY: f64 = 40_000.0;
/// See [`MEMORY`].
const LOSSES: f64 = 2000.0;
/// See [`LossEstimate::ratio`].
const DOUBT: f64 = 2.0;
/// Losses from which on their ratio is known.
const FEW: f64 = 50.0;
/// How many packets' worth of trust the profile's error ratio has before there are any.
const PRIOR: f64 = 300.0;
/// Bulk is not coded below this loss ratio (repair then costs more than it saves), or, where
/// it is, below a fifth of it: the estimate of rare losses is rough.
const LEAST_FOR_BULK: f64 = 0.0005;
/// Many streams share lag, and code that costs little beside the losses themselves: the
/// margin's part of them, at most.
const SHARED_MARGIN: f64 = 0.1;
/// The most redundancy beyond the loss itself, and its part of the loss that comes on
/// top: above, the code costs more than the lag that it saves, because only the end of a
/// transfer pays for lag, once; the lag of sending again grows with the loss.
const MOST_MARGIN: (f64, f64) = (0.01, 0.4);
/// The lag behind the newest packet that the code aims at, in round trips, and the one that
/// it puts up with where the first is dear. What is asked for is half a round trip on
/// average; in the simulator it comes out at a third to a half of these.
const LAG: f64 = 0.1;
/// See [`LAG`].
const MOST_LAG: f64 = 0.7;
/// A margin that is not dear: this and its part of the loss.
const CHEAP: (f64, f64) = (0.005, 0.2);
/// Losses in a round trip below which sending again lags by less than half of one on average
/// (measured in the simulator, 1 to 5 % lost); a fifth less where there is a code.
const FEW_IN_FLIGHT: f64 = 1.2;
/// Repair packets that tell of each packet where that is not dear: fewer hardly average over
/// losses.
const REPAIRS_IN_WINDOW: f64 = 8.0;
/// A window of W packets loses p W on average; that it loses more than r W, and so more than
/// its repairs bring back, happens with about exp(−W (r − p)² / 2p). Where a round trip is
/// many windows that is rare enough in all of them only if the exponent grows: by this for
/// each doubling.
const SAFETY: f64 = 2.5;
/// The most redundancy for the sake of that.
const MOST_FOR_SAFETY: f64 = 0.01;
/// Packets missing from a window, at most, on average: solving for more is dear.
const MOST_MISSING: f64 = 64.0;
/// Symbol bytes that may be combined a second: some percent of a processor.
const COMBINED_PER_SECOND: f64 = 1.5e9;

/// The share of packets that do not arrive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LossEstimate {
    packets: f64,
    lost: f64,
    /// Of the packets, those that are believed and were never sent.
    believed: f64,
    /// Does the profile tell of errors?
    promised: bool,
}

impl LossEstimate {
    /// Starts from a bit-error ratio b: a packet of n bytes is lost with 1 − (1−b)^(8n).
    pub fn new(bit_errors: Ratio, packet: u16) -> LossEstimate {
        let loss = 1.0 - exact::power(1.0 - bit_errors.as_f64(), u64::from(packet) * 8);
        LossEstimate { packets: PRIOR, lost: PRIOR * loss, believed: PRIOR, promised: loss > 0.0 }
    }

    /// Of `packets` more, `lost` did not arrive by themselves.
    pub fn observe(&mut self, packets: u64, lost: u64) {
        self.packets += packets as f64;
        self.lost = (self.lost + lost as f64).min(self.packets);
        if self.packets > MEMORY || self.lost > LOSSES && self.packets > 2.0 * PRIOR {
            self.packets /= 2.0;
            self.lost /= 2.0;
            self.believed /= 2.0;
        }
    }

    /// The ratio, 0 … 0.9. Of few losses it is rough, and repair that is too weak costs a
    /// flow more than repair that is too strong for a while: then up to [`DOUBT`] standard
    /// deviations of their number are added, where the profile promised nothing.
    pub fn ratio(&self) -> f64 {
        ((self.lost + self.doubt()) / self.packets).min(0.9)
    }

    /// The ratio for what is done once, as the repair of a tail, for which the first few losses
    /// must do: what was believed without the profile's promise counts less with each.
    pub fn ratio_soon(&self) -> f64 {
        let void = match self.promised {
            true => 0.0,
            false => self.believed * (1.0 - 1.0 / exact::power(1.0 + self.lost, 2)),
        };
        ((self.lost + self.doubt()) / (self.packets - void)).min(0.9)
    }

    /// See [`LossEstimate::ratio`].
    fn doubt(&self) -> f64 {
        let known = (self.lost / FEW).min(1.0);
        if self.promised { 0.0 } else { DOUBT * (1.0 - known) * self.lost.sqrt() }
    }
}

/// The code over a bulk flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BulkCode {
    /// Every so many packets one is REPAIR.
    pub interval: u64,
    /// So many numbers does it reach back.
    pub window: u64,
}

impl BulkCode {
    /// The code for losses like these where `round_trip` packets fill a round trip, of
    /// which windows reach over `in_flight` at most, and `rate` bytes leave a second; `None`
    /// where sending again serves better.
    ///
    /// Losses wait for repair packets as customers for a server: with redundancy r, loss p
    /// and ρ = p/r the time average of the lag is about 1/(2r(1−ρ)²) packets (the residual
    /// busy period of a queue with Poisson arrivals and constant service). That is
    /// L × in_flight for r = p + √(p / (2 L × in_flight)).
    ///
    /// A burst of B packets beyond that takes B / (r − p) packets to repair; where that is longer
    /// than sending again takes the code is in vain.
    ///
    /// `dominant`: one stream has most of the link. `on`: there is such a code already.
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
        let for_lag = |lag: f64| (loss / (2.0 * lag * in_flight.max(1.0))).sqrt();
        let best = for_lag(LAG).max(REPAIRS_IN_WINDOW / window - loss);
        let margin = best.min(CHEAP.0 + CHEAP.1 * loss).max(for_lag(MOST_LAG));
        // What a window loses beyond its repairs waits for a round trip.
        let exponent = SAFETY * exact::log2(round_trip / window).max(0.0);
        let safe = (2.0 * loss * exponent / window).sqrt();
        let margin = margin.max(safe.min(MOST_FOR_SAFETY));
        let of_bursts =
            if losses.is_bursty() { losses.burst / (MOST_LAG * in_flight) } else { 0.0 };
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

/// For a plan of a link: of so many packets of one bulk flow one is repair, where single packets
/// are lost with `loss`; `None` where sending again serves better.
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
