//! The wall clock's part: what day it is, and whether it is night or a cheap hour.
//!
//! Only prices, quiet hours and schedules look here. What is measured (the length of a call,
//! how long something waited) is measured with [`units::Instant`], so that a clock that is set
//! changes no call's length.

use std::fmt;
use std::str::FromStr;

use units::Duration;

/// Seconds since 1970 of the clock that prices and schedules go by: the owner's local time,
/// which is what bills and people mean. The caller adds the offset from UTC.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Wall(pub u64);

const MINUTES_A_DAY: u16 = 24 * 60;
const MINUTES_A_WEEK: u32 = 7 * MINUTES_A_DAY as u32;
const DAY_NAMES: [&str; 7] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];

impl Wall {
    /// The time `d` later, rounded down to the second.
    pub fn after(self, d: Duration) -> Wall {
        Wall(self.0.saturating_add(d.as_nanos() / 1_000_000_000))
    }
    /// The day it lies in.
    pub fn day(self) -> Day {
        Day(u32::try_from(self.0 / 86_400).unwrap_or(u32::MAX))
    }
    /// Seconds since Monday, midnight.
    pub(crate) fn second_of_week(self) -> u64 {
        // 1 January 1970 was a Thursday.
        (self.0 % (7 * 86_400) + 3 * 86_400) % (7 * 86_400)
    }
    /// Minutes since Monday, midnight.
    fn minute_of_week(self) -> u32 {
        (self.second_of_week() / 60) as u32
    }
}

/// A day, counted from 1 January 1970.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Day(pub u32);

impl Day {
    /// Its month.
    pub fn month(self) -> Month {
        let (year, month, _) = self.civil();
        Month(year * 12 + month - 1)
    }
    /// The first day of its month.
    pub fn first_of_month(self) -> Day {
        Day(self.0 - (self.civil().2 - 1))
    }
    /// Year, month (1 …) and day (1 …) in the Gregorian calendar.
    ///
    /// Years are taken to begin with March, so that the leap day is a year's last; a cycle of
    /// 400 such years has 146,097 days, and a month's first day is (153 × month + 2) / 5.
    fn civil(self) -> (u32, u32, u32) {
        let day = u64::from(self.0) + 719_468; // since 1 March of the year 0
        let (cycle, in_cycle) = (day / 146_097, day % 146_097);
        let leap_days = in_cycle / 1_460 - in_cycle / 36_524 + in_cycle / 146_096;
        let year = (in_cycle - leap_days) / 365;
        let in_year = in_cycle - (365 * year + year / 4 - year / 100);
        let march_month = (5 * in_year + 2) / 153;
        let day = in_year - (153 * march_month + 2) / 5 + 1;
        let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
        let year = cycle * 400 + year + u64::from(month <= 2);
        (year as u32, month as u32, day as u32)
    }
}
impl fmt::Display for Day {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (year, month, day) = self.civil();
        f.pad(&format!("{year:04}-{month:02}-{day:02}"))
    }
}
impl fmt::Debug for Day {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A month: twelve times the year, and 0 for January … 11 for December.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Month(pub u32);

impl fmt::Display for Month {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{:04}-{:02}", self.0 / 12, self.0 % 12 + 1))
    }
}
impl fmt::Debug for Month {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Days of the week and a time of the day: `mon-fri 22:00-06:00`, `sat,sun`, `00:00-24:00`.
/// A window that ends at or before its beginning ends on the next day.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Window {
    /// A bit for each day on which it begins; Monday is the lowest.
    days: u8,
    /// Minutes after midnight.
    from: u16,
    /// How many minutes it lasts: 1 … 1,440.
    lasts: u16,
}

impl Window {
    /// Every day, all day.
    pub const ALWAYS: Window = Window { days: 0x7f, from: 0, lasts: MINUTES_A_DAY };

    fn contains(&self, minute: u32) -> bool {
        self.starts()
            .any(|start| (minute + MINUTES_A_WEEK - start) % MINUTES_A_WEEK < u32::from(self.lasts))
    }
    /// Minutes of the week at which it begins.
    fn starts(&self) -> impl Iterator<Item = u32> + '_ {
        let day = u32::from(MINUTES_A_DAY);
        (0..7).filter(|d| self.days & (1 << d) != 0).map(move |d| d * day + u32::from(self.from))
    }
    /// Minutes of the week at which it begins or ends.
    fn edges(&self) -> impl Iterator<Item = u32> + '_ {
        self.starts().flat_map(|s| [s, (s + u32::from(self.lasts)) % MINUTES_A_WEEK])
    }
}

/// Why a text is no window of time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("\"{0}\" is not a time such as \"mon-fri 22:00-06:00\", \"sat,sun\" or \"00:00-24:00\"")]
pub struct ParseWindowError(String);

impl FromStr for Window {
    type Err = ParseWindowError;
    fn from_str(s: &str) -> Result<Window, ParseWindowError> {
        let bad = || ParseWindowError(s.to_owned());
        let mut window = Window::ALWAYS;
        let mut words = s.split_whitespace();
        let mut word = words.next().ok_or_else(bad)?;
        if !word.starts_with(|c: char| c.is_ascii_digit()) {
            window.days = days(word).ok_or_else(bad)?;
            match words.next() {
                Some(next) => word = next,
                None => return Ok(window),
            }
        }
        let (from, to) = word.split_once('-').ok_or_else(bad)?;
        let (from, to) = (minutes(from).ok_or_else(bad)?, minutes(to).ok_or_else(bad)?);
        if from == MINUTES_A_DAY || words.next().is_some() {
            return Err(bad());
        }
        window.from = from;
        window.lasts = if to > from { to - from } else { to + MINUTES_A_DAY - from };
        Ok(window)
    }
}

/// `mon-fri`, `sat,sun`, `fri-mon`.
fn days(text: &str) -> Option<u8> {
    let index = |name: &str| DAY_NAMES.iter().position(|d| *d == name);
    let mut days = 0;
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (mut at, last) = (index(first)?, index(last)?);
        days |= 1 << at;
        while at != last {
            at = (at + 1) % 7;
            days |= 1 << at;
        }
    }
    Some(days)
}

/// `22:00` as minutes after midnight; `24:00` is the day's end.
fn minutes(text: &str) -> Option<u16> {
    let (hour, minute) = text.split_once(':')?;
    let two = |t: &str| {
        let plain = t.len() == 2 && t.bytes().all(|b| b.is_ascii_digit());
        plain.then(|| t.parse::<u16>().ok()).flatten()
    };
    let (hour, minute) = (two(hour)?, two(minute)?);
    let all = hour * 60 + minute;
    (minute < 60 && all <= MINUTES_A_DAY).then_some(all)
}

impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.days != 0x7f {
            let names = (0..7).filter(|d| self.days & (1 << d) != 0).map(|d| DAY_NAMES[d]);
            write!(f, "{} ", names.collect::<Vec<_>>().join(","))?;
        }
        let to = self.from + self.lasts;
        let to = if to > MINUTES_A_DAY { to - MINUTES_A_DAY } else { to };
        write!(f, "{:02}:{:02}-{:02}:{:02}", self.from / 60, self.from % 60, to / 60, to % 60)
    }
}

/// Several windows: quiet hours, cheap hours, a schedule. None at all is never.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Hours(pub Vec<Window>);

impl Hours {
    /// True while one of the windows is open.
    pub fn contains(&self, at: Wall) -> bool {
        let minute = at.minute_of_week();
        self.0.iter().any(|w| w.contains(minute))
    }
    /// How long until a window begins or ends after `at`; `None`: never.
    pub fn next_edge(&self, at: Wall) -> Option<Duration> {
        let week = u64::from(MINUTES_A_WEEK) * 60;
        let second = at.second_of_week();
        let wait = |edge: u32| match (u64::from(edge) * 60 + week - second) % week {
            0 => week,
            n => n,
        };
        let edges = self.0.iter().flat_map(Window::edges);
        edges.map(wait).min().map(Duration::from_secs)
    }
    /// How long until [`Hours::contains`] says `open`: zero if it does, `None` if it never will.
    pub fn until(&self, at: Wall, open: bool) -> Option<Duration> {
        let mut waited = Duration::ZERO;
        // Each edge of the week is passed once at most.
        for _ in 0..=14 * self.0.len() {
            if self.contains(at.after(waited)) == open {
                return Some(waited);
            }
            waited += self.next_edge(at.after(waited))?;
        }
        (self.contains(at.after(waited)) == open).then_some(waited)
    }
    /// The first minute of the week at which not exactly one window is open: what is the matter
    /// there, and when.
    pub(crate) fn fault(windows: &[Window]) -> Option<(usize, String)> {
        (0..MINUTES_A_WEEK).find_map(|m| {
            let open = windows.iter().filter(|w| w.contains(m)).count();
            let (day, minute) = (m / u32::from(MINUTES_A_DAY), m % u32::from(MINUTES_A_DAY));
            let name = DAY_NAMES[day as usize];
            (open != 1).then(|| (open, format!("{name} {:02}:{:02}", minute / 60, minute % 60)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Monday, 23 November 2026, 00:00.
    const MONDAY: u64 = 1_795_392_000;

    fn hours(texts: &[&str]) -> Hours {
        Hours(texts.iter().map(|t| t.parse().unwrap_or_else(|e| panic!("{e}"))).collect())
    }

    #[test]
    fn days_have_the_calendars_names() {
        for (seconds, name) in [
            (0, "1970-01-01"),
            (951_782_399, "2000-02-28"),
            (951_782_400, "2000-02-29"),
            (951_868_800, "2000-03-01"),
            (MONDAY, "2026-11-23"),
            (4_107_542_400, "2100-03-01"),
        ] {
            assert_eq!(Wall(seconds).day().to_string(), name);
        }
        assert_eq!(Wall(MONDAY).day().month().to_string(), "2026-11");
        assert_eq!(Wall(MONDAY).day().first_of_month().to_string(), "2026-11-01");
        assert_eq!(Wall(MONDAY).second_of_week(), 0);
    }

    #[test]
    fn a_window_over_midnight_belongs_to_the_day_it_begins_on() {
        let night = hours(&["fri 22:00-06:00"]);
        let at = |day: u64, hour: u64| Wall(MONDAY + day * 86_400 + hour * 3_600);
        assert!(night.contains(at(4, 22)) && night.contains(at(5, 5)));
        assert!(
            !night.contains(at(4, 5)) && !night.contains(at(5, 6)) && !night.contains(at(5, 22))
        );
        assert_eq!(night.until(at(4, 21), true), Some(Duration::from_secs(3_600)));
        assert_eq!(night.until(at(5, 0), false), Some(Duration::from_secs(6 * 3_600)));
        assert_eq!(night.until(at(6, 0), true), Some(Duration::from_secs((5 * 24 + 22) * 3_600)));
    }

    #[test]
    fn what_never_opens_or_never_closes_says_so() {
        assert_eq!(Hours::default().until(Wall(MONDAY), true), None);
        assert_eq!(hours(&["00:00-24:00"]).until(Wall(MONDAY), false), None);
        assert_eq!(hours(&["00:00-24:00"]).until(Wall(MONDAY), true), Some(Duration::ZERO));
    }

    #[test]
    fn gaps_and_overlaps_are_found_with_their_time() {
        let fault = |texts: &[&str]| Hours::fault(&hours(texts).0);
        assert_eq!(fault(&["08:00-20:00", "20:00-08:00"]), None);
        assert_eq!(
            fault(&["mon-fri 08:00-20:00", "mon-fri 20:00-08:00", "sat,sun"]).map(|f| f.1),
            Some("mon 00:00".into())
        );
        assert_eq!(fault(&["00:00-24:00", "sun 12:00-13:00"]), Some((2, "sun 12:00".into())));
    }

    #[test]
    fn windows_are_written_as_they_are_read() {
        for text in ["22:00-06:00", "mon,tue 08:30-12:00", "00:00-24:00", "sun 00:00-24:00"] {
            assert_eq!(text.parse::<Window>().unwrap().to_string(), text);
        }
        assert_eq!("sat-mon".parse::<Window>().unwrap().to_string(), "mon,sat,sun 00:00-24:00");
        for bad in [
            "",
            "xyz",
            "25:00-26:00",
            "22:00",
            "24:00-06:00",
            "08:60-09:00",
            "mon 8:00-9:00",
            "mon 08:00-09:00 x",
        ] {
            assert!(bad.parse::<Window>().is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn hours_change_at_their_edges_and_nowhere_else(
            from in 0_u16..1440, lasts in 1_u16..=1440, days in 1_u8..128, at in 0_u64..7 * 86_400,
        ) {
            let hours = Hours(vec![Window { days, from, lasts }]);
            let at = Wall(MONDAY + at);
            let edge = hours.next_edge(at).expect("a window has edges");
            let before = Wall(at.0 + edge.as_nanos() / 1_000_000_000 - 1);
            prop_assert_eq!(hours.contains(at), hours.contains(before));
        }
    }
}
