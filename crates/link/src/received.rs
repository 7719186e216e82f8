//! The receive state and when to report it (R-STATE-ACK): on a timer while data
//! arrives, at once on a new gap, and within a share of the return link.

use units::{BitRate, ByteCount, Duration, Instant};

use crate::path::PathId;
use crate::ranges::RangeSet;
use crate::wire::Writer;

/// Ranges remembered. At 1 Gbit/s, one second and 5 % loss about 4,000 gaps are
/// open at once; what lies below the oldest range is then no longer reported.
const MAX_RANGES: usize = 4096;
/// The shortest time between reports.
const MIN_SPACING: Duration = Duration::from_millis(4);
/// Reports take at most one part in this many of the return link (5 %).
const SHARE: u64 = 20;
/// The longest gap that counts: more is an outage and tells nothing of bursts.
const LONGEST_GAP: u64 = 32;
/// Bytes of runs in one report; the rest comes with the next.
pub(crate) const MAX_STATE: usize = 900;

/// Which packet numbers arrived, and what of it the peer has been told.
pub(crate) struct Received {
    set: RangeSet,
    floor: u64,
    /// Gaps so far, and the packets missing in them when they showed.
    gaps: (u64, u64),
    hi_at: Instant,
    /// Something that calls for a report arrived since the last one.
    unreported: bool,
    /// A new gap or a PING: report as soon as allowed.
    urgent: bool,
    first_unreported: Instant,
    last_report: Instant,
    last_size: u64,
    /// `hi` of the last reports: a gap report reaches back to the oldest of them,
    /// so that three reports must be lost for a gap to wait for the timer.
    recent: [u64; 3],
    next_full: Instant,
}

impl Received {
    pub fn new() -> Received {
        Received {
            set: RangeSet::default(),
            floor: 0,
            gaps: (0, 0),
            hi_at: Instant::ZERO,
            unreported: false,
            urgent: false,
            first_unreported: Instant::ZERO,
            last_report: Instant::ZERO,
            last_size: 0,
            recent: [0; 3],
            next_full: Instant::ZERO,
        }
    }

    /// Gives back what more gaps took.
    pub fn shrink(&mut self) {
        self.set.shrink();
    }

    /// The highest number that arrived.
    pub fn highest(&self) -> Option<u64> {
        self.set.descending().next().map(|r| r.end - 1)
    }

    /// Is the number known to have arrived, or past caring?
    pub fn has(&self, number: u64) -> bool {
        number < self.floor || self.set.contains(number)
    }

    /// A packet arrived (the replay window has let it pass): at this host, which may be
    /// a while before anybody looks at it.
    pub fn on_packet(&mut self, arrived: Instant, number: u64, eliciting: bool) {
        if number < self.floor {
            return;
        }
        match self.highest() {
            Some(hi) if number <= hi => {}
            hi => {
                let expected = hi.map_or(self.floor, |h| h + 1);
                self.urgent |= number > expected;
                let missing = number - expected.min(number);
                if (1..=LONGEST_GAP).contains(&missing) {
                    self.gaps = (self.gaps.0 + 1, self.gaps.1 + missing);
                }
                self.hi_at = self.hi_at.max(arrived);
            }
        }
        self.set.insert(number..number + 1);
        if self.set.len() > MAX_RANGES {
            self.set.forget_first();
            self.floor = self.set.first().map_or(self.floor, |r| r.start);
        }
        if eliciting && !self.unreported {
            self.unreported = true;
            self.first_unreported = arrived;
        }
    }

    /// Does the next report, written now, tell the whole state?
    pub fn tells_all(&self, now: Instant) -> bool {
        now >= self.next_full
    }

    /// The first packet that every report tells of, also between those of the whole state.
    pub fn always_told(&self) -> u64 {
        self.floor.max(self.recent[0])
    }

    /// Gaps between packets that came, and the packets missing in them, all in all.
    pub fn gaps(&self) -> (u64, u64) {
        self.gaps
    }

    /// The peer wants a report at once.
    pub fn on_ping(&mut self) {
        self.urgent = true;
    }

    /// The peer has settled all below `floor`.
    pub fn on_floor(&mut self, floor: u64) {
        let known = self.highest().map_or(self.floor, |h| h + 1);
        self.floor = self.floor.max(floor.min(known));
        self.set.remove_below(self.floor);
    }

    /// When the next report is due, for the timer `interval` and the return rate.
    pub fn due(&self, interval: Duration, rtt: Duration, rate: BitRate) -> Option<Instant> {
        if !self.unreported && !self.urgent {
            return None;
        }
        let share = rate.time_for(ByteCount(self.last_size * SHARE)).min(rtt);
        let allowed = self.last_report + MIN_SPACING.max(share);
        Some(if self.urgent {
            allowed
        } else {
            (self.last_report + interval).max(self.first_unreported + MIN_SPACING).max(allowed)
        })
    }

    /// Writes the report. `interval` is the timer: once in it the whole state is
    /// told, in between only what is new, `max` bytes at most. Answers whether it fitted.
    pub fn write(
        &mut self,
        now: Instant,
        interval: Duration,
        max: usize,
        w: &mut Writer<'_>,
    ) -> bool {
        let full = self.tells_all(now);
        let lo = if full { self.floor } else { self.always_told() };
        let Some(hi) = self.highest() else {
            (self.urgent, self.unreported) = (false, false);
            return false;
        };
        let delay = now.since(self.hi_at);
        let lo = lo.min(hi);
        let Some(told) = w.state(None, self.set.descending(), lo, delay, self.hi_at, max) else {
            return false;
        };
        if told > lo && max < MAX_STATE {
            return true; // Too short for the report that is due: that comes as if this had not.
        }
        if full {
            self.next_full = now + interval;
        }
        self.recent = [self.recent[1], self.recent[2], hi];
        self.unreported = false;
        self.urgent = false;
        self.last_report = now;
        true
    }

    /// The same for another path to carry, in `max` bytes. The next report by this path tells it
    /// again.
    pub fn write_aside(&self, now: Instant, about: PathId, max: usize, w: &mut Writer<'_>) {
        if let Some(hi) = self.highest() {
            let (lo, delay) = (self.floor.min(hi), now.since(self.hi_at));
            w.state(Some(about), self.set.descending(), lo, delay, self.hi_at, max);
        }
    }

    /// The size of the packet that carried the report alone; one that rode on data is free.
    pub fn set_cost(&mut self, size: u64) {
        self.last_size = size;
    }
}
