//! Times without a link: those that the configuration names, and one switched by hand.

use std::fmt;
use std::str::FromStr;

use units::{Duration, Instant, ParseUnitError};

use crate::config::ConfigError;

/// A time without a link: from `start` (included) to `end` (excluded), both counted
/// from the channel's time zero. Written `"10s-12s"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Outage {
    /// The first moment without a link.
    pub start: Instant,
    /// The first moment with one again.
    pub end: Instant,
}

impl fmt::Display for Outage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [start, end] = [self.start, self.end].map(|t| t.since(Instant::ZERO));
        write!(f, "{start}-{end}")
    }
}

impl FromStr for Outage {
    type Err = OutageError;
    /// `"10s-12s"`: two times with units, the second later.
    fn from_str(s: &str) -> Result<Outage, OutageError> {
        let (start, end) = s.split_once('-').ok_or_else(|| OutageError::Form(s.to_owned()))?;
        let start = Instant::ZERO + start.parse::<Duration>()?;
        let end = Instant::ZERO + end.parse::<Duration>()?;
        Ok(Outage { start, end })
    }
}

/// Why an outage could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OutageError {
    /// No two times joined by a hyphen.
    #[error("\"{0}\" is not an outage such as \"10s-12s\"")]
    Form(String),
    /// One of the two times cannot be read.
    #[error(transparent)]
    Time(#[from] ParseUnitError),
}

/// The outages of a channel, in order and apart, and the one that is switched by hand.
#[derive(Clone, Debug)]
pub(crate) struct Outages {
    planned: Vec<Outage>,
    /// The last one switched by hand; its end is `FAR_FUTURE` while it lasts.
    by_hand: Option<Outage>,
}

impl Outages {
    pub(crate) fn new(outages: &[Outage]) -> Result<Outages, ConfigError> {
        if let Some(bad) = outages.iter().find(|o| o.start >= o.end) {
            return Err(ConfigError::Outage(*bad));
        }
        let mut sorted = outages.to_vec();
        sorted.sort();
        let mut planned: Vec<Outage> = Vec::with_capacity(sorted.len());
        for next in sorted {
            match planned.last_mut() {
                Some(last) if next.start <= last.end => last.end = last.end.max(next.end),
                _ => planned.push(next),
            }
        }
        Ok(Outages { planned, by_hand: None })
    }

    /// Replaces the planned outages; the one switched by hand stays.
    pub(crate) fn replan(&mut self, new: Outages) {
        self.planned = new.planned;
    }

    pub(crate) fn switch(&mut self, now: Instant, on: bool) {
        if on == self.is_on() {
            return;
        }
        match &mut self.by_hand {
            Some(outage) if !on => outage.end = now,
            slot => *slot = Some(Outage { start: now, end: Instant::FAR_FUTURE }),
        }
    }

    /// Is one switched on by hand right now?
    pub(crate) fn is_on(&self) -> bool {
        self.by_hand.is_some_and(|o| o.end == Instant::FAR_FUTURE)
    }

    /// Does any outage touch the time from `start` to `end`, both included? (A packet
    /// of an unlimited line has no length: it is there for one instant.)
    pub(crate) fn touches(&self, start: Instant, end: Instant) -> bool {
        self.first_touching(start, end).is_some()
    }

    /// The first outage that touches `start`…`end`.
    pub(crate) fn first_touching(&self, start: Instant, end: Instant) -> Option<Outage> {
        let at = self.planned.partition_point(|o| o.end <= start);
        let planned = self.planned.get(at).into_iter();
        let touching = planned.chain(&self.by_hand).filter(|o| o.start <= end && start < o.end);
        touching.min_by_key(|o| o.start).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(s: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(s)
    }

    #[test]
    fn overlapping_outages_become_one() {
        let given = ["5s-7s", "1s-2s", "6s-9s"].map(|s| s.parse().unwrap());
        let schedule = Outages::new(&given).unwrap();
        assert_eq!(schedule.planned.len(), 2);
        assert_eq!(schedule.first_touching(at(8), at(8)).unwrap().end, at(9));
        assert!(!schedule.touches(at(9), at(10)));
        assert!(schedule.touches(at(0), at(1)));
    }

    #[test]
    fn an_outage_must_end_after_it_begins() {
        let backwards = "12s-10s".parse().unwrap();
        assert_eq!(Outages::new(&[backwards]).unwrap_err(), ConfigError::Outage(backwards));
        assert!("10s".parse::<Outage>().is_err());
        assert!("10-12".parse::<Outage>().is_err());
    }

    #[test]
    fn an_outage_by_hand_lasts_until_it_is_switched_off() {
        let mut schedule = Outages::new(&[]).unwrap();
        schedule.switch(at(3), true);
        schedule.switch(at(4), true);
        assert!(schedule.touches(at(100), at(101)));
        schedule.switch(at(5), false);
        assert!(schedule.touches(at(4), at(6)));
        assert!(!schedule.touches(at(5), at(6)));
    }
}
