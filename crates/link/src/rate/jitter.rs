//! Delay that comes and goes by itself.
//!
//! Low orbits and mobile networks delay packets for tens of milliseconds and let go of them
//! again, with no queue that a sender could drain. Two things tell it from a queue (after
//! CoDel, RFC 8289, whose queue is the *least* delay of an interval):
//!
//! - Its height: what falls while the sender goes on at its rate, and faster than a line sends
//!   off a queue, is jitter. A queue that is higher than the highest fall lately is one.
//! - Its length: jitter touches the ground from time to time. A queue that stands for twice
//!   the longest time between two such touches lately is one.
//!
//! Without such falls both are nothing, and what exceeds the threshold is a queue at once.

use units::{BitRate, Duration, Instant};

use super::measure::Mark;

/// Falls of less than this are noise, for which the threshold of a queue allows.
const LEAST_FALL: Duration = Duration::from_millis(10);
/// What falls by this part of the time in which it was sent, or more, falls by itself: of a
/// queue that much goes only if others, who took a quarter of the line, stop.
const FAST: u64 = 4;
/// What counts are the highest and the longest of the last one to two of these.
const GENERATION: Duration = Duration::from_secs(20);
/// The least and the most time in which a queue must stand where there is jitter.
const INTERVAL: [Duration; 2] = [Duration::from_millis(250), Duration::from_secs(3)];

/// What jitter is like lately.
#[derive(Clone, Debug, Default)]
pub(super) struct Jitter {
    /// The highest falls and the longest times above the threshold; the newer ones second.
    falls: [Duration; 2],
    times: [Duration; 2],
    since: Instant,
    /// The delay from which it falls now, and the report before.
    peak: Duration,
    before: Option<Mark>,
    /// The first mark above the threshold since the delay touched the ground, and the least
    /// queueing delay since.
    above: Option<(Mark, Duration)>,
}

impl Jitter {
    /// Takes a report that came while packets left at `rate`.
    pub fn on_report(&mut self, now: Instant, state: &Mark, rate: BitRate) {
        if now.since(self.since) >= GENERATION {
            (self.falls, self.times) =
                ([self.falls[1], Duration::ZERO], [self.times[1], Duration::ZERO]);
            self.since = now;
        }
        let Some(before) = self.before.replace(*state) else {
            self.peak = state.queueing;
            return;
        };
        let fall = before.queueing - state.queueing.min(before.queueing);
        let busy = state.sending_rate(&before).as_bps() / 3 >= rate.as_bps() / 4;
        if fall.times(FAST) < state.sent.since(before.sent) || !busy {
            self.peak = state.queueing;
        }
        let fall = self.peak - state.queueing.min(self.peak);
        self.falls[1] = self.falls[1].max(fall);
    }

    /// Takes a mark, of which `threshold` is more than noise.
    pub fn on_mark(&mut self, mark: &Mark, threshold: Duration) {
        match &mut self.above {
            Some((_, least)) if mark.queueing > threshold => *least = mark.queueing.min(*least),
            above if mark.queueing > threshold => *above = Some((*mark, mark.queueing)),
            above => {
                if let Some((since, _)) = above.take() {
                    let time = Duration::from_nanos(mark.arrival.saturating_sub(since.arrival));
                    self.times[1] = self.times[1].max(time);
                }
            }
        }
    }

    /// The sender slows or pauses, or the way is another: how the delay goes on says nothing.
    pub fn interrupt(&mut self) {
        (self.before, self.above) = (None, None);
    }

    /// The highest fall lately, zero where that is noise.
    pub fn height(&self) -> Duration {
        let height = self.falls[0].max(self.falls[1]);
        if height < LEAST_FALL { Duration::ZERO } else { height }
    }

    /// For how long a queue must stand to be one. Zero where there is no jitter.
    pub fn interval(&self) -> Duration {
        if self.height() == Duration::ZERO {
            return Duration::ZERO;
        }
        let [least, most] = INTERVAL;
        self.times[0].max(self.times[1]).times(2).clamp(least, most)
    }

    /// The queue that jitter does not explain, and the mark since which it stands.
    pub fn standing(&self, last: &Mark, newest: &Mark) -> (Duration, Mark) {
        let both = last.queueing.min(newest.queueing);
        let height = self.height();
        if height == Duration::ZERO {
            return (both, *last);
        }
        let beyond = both - both.min(height + height.divided_by(4));
        match self.above {
            Some((since, least)) => {
                let time = Duration::from_nanos(newest.arrival.saturating_sub(since.arrival));
                let least = if time >= self.interval() { least } else { Duration::ZERO };
                (beyond.max(least), since)
            }
            None => (beyond, *last),
        }
    }
}
