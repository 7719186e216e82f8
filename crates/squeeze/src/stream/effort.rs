//! How hard the compressor tries: as hard as the link leaves it time.
//!
//! A block may take a quarter of the time that its compressed bytes will take on the link,
//! and no more than half a packet takes there, within [`PATIENCE`], because everything else
//! of the node waits meanwhile: a block is made when a packet has just left, so that on slow
//! links it is there before the next is due, and the link does not wait for it. Of the
//! levels that keep to this the highest is taken. If even the lowest takes half of the time
//! that the link needs for the bytes as they are, the link is faster than the compressor, and
//! nothing is compressed.

use units::{BitRate, ByteCount, Duration};

/// The longest that a block is worked on: a keystroke that comes just then waits half of it,
/// and on slow links half a packet anyhow. Where a packet takes less than that, packets leave
/// late, and what is made good of it waits in the modem, before every keystroke. At 64 kbit/s
/// a block leaves every 750 ms, so that one key of sixteen meets one, and the mean key waits
/// 2 ms, or one of ten and 4 ms on a slow processor.
const PATIENCE: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(5)..=Duration::from_millis(72);
const PACKET: ByteCount = ByteCount(1500);

/// zstd's levels with their cost in 1/8 ns per byte of content and of prefix: estimates for a
/// common server core, scaled from runs on a busy machine. What blocks really take corrects
/// them (`slowness`), for all levels alike: what one of them seemed to cost too much must not
/// make the others look slow, or blocks would fall from level 19 to 9 and come back in turns.
const LEVELS: [(i32, u64, u64); 6] =
    [(19, 3000, 1200), (15, 1300, 770), (9, 240, 100), (6, 120, 36), (3, 40, 10), (1, 24, 8)];

/// How fast this node's processor is against that core: 256 is as fast.
const SAME: u64 = 256;

#[derive(Debug)]
pub(super) struct Effort {
    slowness: u64,
}

impl Effort {
    pub fn new() -> Effort {
        Effort { slowness: SAME }
    }

    /// The level for a block, if it is worth its time; `ratio`: what 256 bytes became lately.
    pub fn level(&self, rate: BitRate, raw: usize, prefix: usize, ratio: u64) -> Option<i32> {
        let most = most(rate, raw, ratio);
        let fitting = LEVELS.iter().find(|l| self.time(l, raw, prefix) <= most);
        let lowest = &LEVELS[LEVELS.len() - 1];
        match fitting {
            Some((level, ..)) => Some(*level),
            None => {
                let whole = rate.time_for(ByteCount(raw as u64));
                (self.time(lowest, raw, prefix) <= whole.divided_by(2)).then_some(lowest.0)
            }
        }
    }

    /// Is there time for the highest level?
    pub fn has_time(&self, rate: BitRate, raw: usize, prefix: usize, ratio: u64) -> bool {
        self.time(&LEVELS[0], raw, prefix) <= most(rate, raw, ratio)
    }

    /// A block took `time`.
    pub fn observe(&mut self, level: i32, raw: usize, prefix: usize, time: Duration) {
        let Some(l) = LEVELS.iter().find(|l| l.0 == level).filter(|_| raw >= 1024) else { return };
        let expected = model(l, raw, prefix).max(1);
        // One block that was interrupted says little.
        let seen = (time.as_nanos().saturating_mul(SAME) / expected).clamp(SAME / 8, SAME * 32);
        self.slowness = (self.slowness * 15 + seen) / 16;
    }

    /// Nothing was compressed because it seemed too slow, which may be long ago.
    pub fn forget(&mut self) {
        let slower = self.slowness.saturating_sub(SAME);
        self.slowness -= slower.div_ceil(64);
    }

    fn time(&self, level: &(i32, u64, u64), raw: usize, prefix: usize) -> Duration {
        Duration::from_nanos(model(level, raw, prefix) * self.slowness / SAME)
    }
}

/// The time that a block may take.
fn most(rate: BitRate, raw: usize, ratio: u64) -> Duration {
    let coded = ByteCount(raw as u64 * ratio / 256);
    let patience = rate.time_for(PACKET).divided_by(2).clamp(*PATIENCE.start(), *PATIENCE.end());
    rate.time_for(coded).divided_by(4).min(patience)
}

fn model((_, content, prefix): &(i32, u64, u64), raw: usize, history: usize) -> u64 {
    (raw as u64 * content + history as u64 * prefix) / 8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_level_follows_the_link_and_is_off_where_the_link_is_faster() {
        let effort = Effort::new();
        let at = |rate, raw| effort.level(BitRate::from_bps(rate), raw, 2 * raw, 80);
        assert_eq!(at(2_400, 2_048), Some(19));
        assert_eq!(at(64_000, 24 * 1024), Some(19));
        assert_eq!(at(100_000_000, 64 * 1024), Some(1));
        assert_eq!(at(2_500_000_000, 64 * 1024), None);
    }

    #[test]
    fn a_slow_processor_tries_less_and_in_the_end_not_at_all() {
        let mut effort = Effort::new();
        let at = |e: &Effort| e.level(BitRate::from_bps(100_000_000), 65_536, 131_072, 80);
        assert_eq!(at(&effort), Some(1));
        for _ in 0..200 {
            effort.observe(1, 65_536, 131_072, Duration::from_millis(20));
        }
        assert_eq!(at(&effort), None);
        // What is not tried is not seen: it is believed to be faster, little by little.
        let mut tries = 0;
        while at(&effort).is_none() {
            effort.forget();
            tries += 1;
        }
        assert!((10..300).contains(&tries), "{tries}");
        for _ in 0..200 {
            effort.observe(1, 65_536, 131_072, Duration::from_micros(330));
        }
        assert_eq!(at(&effort), Some(1));
    }
}
