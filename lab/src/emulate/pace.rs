//! How often to look: processor time against precision.
//!
//! Waking a thread costs far more than moving a frame (on a virtual machine some 20 µs
//! against one or two), so while traffic flows the loop sleeps blindly between its
//! turns, and only in a pause of the traffic does it watch the ports. How long it is
//! blind follows from what a quantum (200 µs) of imprecision allows:
//!
//! * at least to the end of the quantum, so that dense frames are moved together;
//! * then to the next departure, which is kept to the point;
//! * at most for three quanta, so that a frame that comes meanwhile is noticed soon.
//!
//! What came during a blind sleep came in the middle of it, for all that is known (and
//! on average that is right); ports with timestamps know better.

use units::{Duration, Instant};

/// Longest blind sleep, in quanta.
const BLIND: u64 = 3;
/// A turn that moved no more frames than this, long after the one before, is followed
/// by watching at once: the traffic leaves pauses of its own.
const SPARSE_FRAMES: usize = 2;
/// Long after, in quanta.
const SPARSE_GAP: u64 = 6;
/// A watch that ended sooner than this found frames that were there before it.
const AT_ONCE: Duration = Duration::from_micros(50);

#[derive(Clone, Debug)]
pub(super) struct Pace {
    quantum: Duration,
    /// When the turn before began.
    last_began: Instant,
    /// When the ports were last seen empty.
    looked: Instant,
    /// When the frames that wait at the ports came, if not just now.
    guess: Option<Instant>,
}

impl Pace {
    pub(super) fn new(quantum: Duration) -> Pace {
        Pace { quantum, last_began: Instant::ZERO, looked: Instant::ZERO, guess: None }
    }

    /// When a frame without a timestamp that is read at `now` came.
    pub(super) fn came(&self, now: Instant) -> Instant {
        self.guess.map_or(now, |guess| guess.min(now))
    }

    /// The ports have been read.
    pub(super) fn looked(&mut self, now: Instant) {
        self.looked = now;
    }

    /// A turn that began at `began` moved `moved` frames and is over at `now`; the next
    /// departure is at `next`. Until when to sleep before watching, if at all.
    pub(super) fn sleep_until(
        &mut self,
        began: Instant,
        now: Instant,
        moved: usize,
        next: Option<Instant>,
    ) -> Option<Instant> {
        let gap = began.since(self.last_began);
        self.last_began = began;
        let sparse = moved <= SPARSE_FRAMES && gap >= self.quantum.times(SPARSE_GAP);
        if moved == 0 || sparse {
            return None;
        }
        let soonest = began + self.quantum;
        let latest = began + self.quantum.times(BLIND);
        let until = next.unwrap_or(latest).clamp(soonest, latest);
        (until > now).then_some(until)
    }

    /// The loop watched the ports from `from` to `now` and looks at them next.
    pub(super) fn watched(&mut self, from: Instant, now: Instant) {
        let blind = from.since(self.looked);
        let at_once = now.since(from) < AT_ONCE;
        self.guess = at_once.then(|| self.looked + blind.divided_by(2));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUANTUM: Duration = Duration::from_micros(200);

    fn us(n: u64) -> Instant {
        Instant::from_nanos(n * 1_000)
    }

    /// A pace in the middle of dense traffic: the last turn began at 1,000 µs.
    fn busy() -> Pace {
        let mut pace = Pace::new(QUANTUM);
        pace.sleep_until(us(1_000), us(1_010), 9, None);
        pace
    }

    #[test]
    fn dense_frames_are_looked_at_once_a_quantum() {
        let until = busy().sleep_until(us(1_200), us(1_250), 9, Some(us(1_260)));
        assert_eq!(until, Some(us(1_400)));
    }

    #[test]
    fn a_departure_ends_the_sleep_to_the_point() {
        let until = busy().sleep_until(us(1_200), us(1_210), 1, Some(us(1_555)));
        assert_eq!(until, Some(us(1_555)));
    }

    #[test]
    fn nobody_is_blind_for_longer_than_three_quanta() {
        for next in [None, Some(us(9_000))] {
            assert_eq!(busy().sleep_until(us(1_200), us(1_210), 1, next), Some(us(1_800)));
        }
    }

    #[test]
    fn a_lone_frame_a_quiet_turn_and_a_long_turn_are_followed_by_watching() {
        assert_eq!(busy().sleep_until(us(3_000), us(3_010), 1, None), None);
        assert_eq!(busy().sleep_until(us(1_200), us(1_210), 0, None), None);
        assert_eq!(busy().sleep_until(us(1_200), us(5_000), 9, None), None);
    }

    #[test]
    fn frames_of_a_blind_time_came_in_its_middle() {
        let mut pace = busy();
        pace.looked(us(1_000));
        pace.watched(us(1_600), us(1_601));
        assert_eq!(pace.came(us(1_605)), us(1_300));
    }

    #[test]
    fn frames_that_ended_a_watch_came_just_now() {
        let mut pace = busy();
        pace.looked(us(1_000));
        pace.watched(us(1_600), us(1_900));
        assert_eq!(pace.came(us(1_905)), us(1_905));
    }
}
