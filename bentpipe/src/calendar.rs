//! The wall clock, for what is kept for days: files of peers that are gone, since when hosts are
//! blocked, usage, outages, and when events happened. Nothing else may
//! depend on it (L-CL-1), as it may be set at any time.

use std::time::SystemTime;

use dial::calendar::Wall;

use crate::config::Clock;
use crate::logging::civil_from_days;

/// Seconds since 1970; 0 where the clock stands before that.
pub fn seconds() -> u64 {
    seconds_of(SystemTime::now())
}

/// Milliseconds since 1970.
pub fn milliseconds() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    since.as_millis() as u64
}

/// What a line's hours, days and months go by.
pub fn wall(clock: Clock) -> Wall {
    let utc = seconds();
    let ahead = match clock {
        Clock::Utc => 0,
        Clock::Local => os::local_time::ahead_of_utc(utc),
        Clock::Offset(minutes) => i64::from(minutes) * 60,
    };
    Wall(utc.saturating_add_signed(ahead))
}

/// A day, so many after 1970-01-01: `2026-11-24`.
pub fn day(days: u64) -> String {
    let (year, month, day) = civil_from_days(days);
    format!("{year:04}-{month:02}-{day:02}")
}

/// The time of milliseconds since 1970, in UTC: `2026-11-24 05:48:55`.
pub fn time(ms: u64) -> String {
    let s = ms / 1000 % 86_400;
    format!("{} {:02}:{:02}:{:02}", day(ms / 86_400_000), s / 3600, s / 60 % 60, s % 60)
}

/// Is the text a day as [`day`] writes it? Days compare as their texts do.
pub fn is_day(text: &str) -> bool {
    let digits = |part: &str, len| part.len() == len && part.bytes().all(|b| b.is_ascii_digit());
    let parts: Vec<&str> = text.split('-').collect();
    matches!(parts[..], [y, m, d] if digits(y, 4) && digits(m, 2) && digits(d, 2))
}

/// The same of a file's time.
pub fn seconds_of(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_and_times_are_of_the_calendar_and_compare_as_texts() {
        assert_eq!(time(1_790_000_000_000), "2026-09-21 14:13:20");
        assert_eq!((day(0), day(20_512)), ("1970-01-01".to_owned(), "2026-02-28".to_owned()));
        assert!(is_day(&day(20_781)) && day(20_781) < day(20_782));
        for wrong in ["", "2026-1-1", "yesterday", "2026-11-24T00", "../../x-11-24"] {
            assert!(!is_day(wrong), "{wrong}");
        }
    }
}
