//! What the program says while it runs: one line to standard error per event.
//!
//! ```text
//! 2026-11-21 08:32:06.123Z info  link is up peer=shore rtt=540ms
//! {"time":"2026-11-21T08:32:06.123Z","level":"info","message":"link is up","peer":"shore","rtt":"540ms"}
//! ```
//!
//! A message below the level costs one atomic load: its fields are not evaluated and
//! nothing is allocated. Key types do not print their secrets, so they cannot be
//! logged by mistake.
//!
//! ```
//! console::log!(Info, "link is up", peer = "shore", rtt = "540ms");
//! ```

use std::collections::BTreeMap;
use std::fmt::{self, Display, Write as _};
use std::io::Write as _;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How much a message matters; a level shows itself and all above it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Level {
    /// Something does not work.
    Error,
    /// Something may stop working, or was not done as asked.
    Warn,
    /// What an operator wants to know: links, peers, reloads.
    Info,
    /// Every connection and decision.
    Debug,
    /// Every packet.
    Trace,
}

impl Level {
    /// The names that the configuration and `--json` lines use, most urgent first.
    pub const NAMES: [&str; 5] = ["error", "warn", "info", "debug", "trace"];
    const ALL: [Level; 5] = [Level::Error, Level::Warn, Level::Info, Level::Debug, Level::Trace];

    /// As the configuration writes it.
    pub fn name(self) -> &'static str {
        Level::NAMES[self as usize]
    }

    /// The level `steps` more talkative (or quieter, if negative), within the range.
    pub fn shifted(self, steps: i32) -> Level {
        let at = (self as i32).saturating_add(steps).clamp(0, 4);
        Level::ALL[at as usize]
    }
}

impl FromStr for Level {
    type Err = ();
    fn from_str(s: &str) -> Result<Level, ()> {
        Level::NAMES.iter().position(|n| *n == s).map(|i| Level::ALL[i]).ok_or(())
    }
}

static LEVEL: AtomicU8 = AtomicU8::new(Level::Info as u8);
static JSON: AtomicBool = AtomicBool::new(false);

/// Sets what is shown from now on, and whether lines are JSON.
pub fn init(level: Level, json: bool) {
    set_level(level);
    JSON.store(json, Ordering::Relaxed);
}

/// Are lines JSON?
pub fn is_json() -> bool {
    JSON.load(Ordering::Relaxed)
}

/// Sets what is shown from now on.
pub fn set_level(level: Level) {
    LEVEL.store(level as u8, Ordering::Relaxed);
}

/// True if messages of `level` are shown.
#[inline]
pub fn enabled(level: Level) -> bool {
    level as u8 <= LEVEL.load(Ordering::Relaxed)
}

/// Logs a message with named fields: `log!(Warn, "no reply", peer = name, after = rtt)`.
/// Nothing after the level is evaluated unless the level is shown.
#[macro_export]
macro_rules! log {
    ($level:ident, $message:expr $(, $name:ident = $value:expr)* $(,)?) => {
        if $crate::logging::enabled($crate::logging::Level::$level) {
            $crate::logging::emit(
                $crate::logging::Level::$level,
                &$message,
                &[$((stringify!($name), &$value as &dyn ::std::fmt::Display)),*],
            );
        }
    };
}

/// Writes one line; use [`log!`](crate::log) instead. A standard error that is gone is
/// ignored: the gateway goes on without its log.
///
/// Of the same message about the same peer or service no more than [`OFTEN`] lines are written in
/// [`PERIOD`], and of those that were left out their number: whoever can cause a line can cause
/// many. Debug and trace lines, which somebody asked for, are all written.
pub fn emit(level: Level, message: &dyn Display, fields: &[(&str, &dyn Display)]) {
    if level <= Level::Info {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let whose = fields.iter().find(|(name, _)| ["peer", "service"].contains(name));
        let key = (message.to_string(), whose.map_or(String::new(), |(_, of)| of.to_string()));
        let mut quotas = QUOTAS.lock().unwrap_or_else(PoisonError::into_inner);
        match quotas.admit(now, key) {
            Admitted::Yes => {}
            Admitted::After(left_out) => {
                let fields: Vec<(&str, &dyn Display)> =
                    whose.into_iter().copied().chain([("lines", &left_out as _)]).collect();
                let told: &dyn Display = &format!("left out, because too often: {message}");
                write(level, told, &fields);
            }
            Admitted::No => return,
        }
    }
    write(level, message, fields);
}

/// Writes one line, however many of the same there are.
pub fn write(level: Level, message: &dyn Display, fields: &[(&str, &dyn Display)]) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let json = JSON.load(Ordering::Relaxed);
    let line = format_line(json, now.as_millis() as u64, level, message, fields);
    // One write per line, so that lines of several processes do not mix.
    let _ = std::io::stderr().lock().write_all(line.as_bytes());
}

/// Lines of one kind that are written in a period.
const OFTEN: u32 = 50;
const PERIOD: Duration = Duration::from_secs(10);
/// Kinds that are counted.
const KINDS: usize = 4096;

static QUOTAS: Mutex<Quotas> = Mutex::new(Quotas(BTreeMap::new()));

/// What was written of each message and whom it is about: since when, how many, and how many not.
struct Quotas(BTreeMap<(String, String), (Duration, u32, u64)>);

/// Is a line written?
#[derive(Debug, PartialEq, Eq)]
enum Admitted {
    Yes,
    /// And before it how many were not.
    After(u64),
    No,
}

impl Quotas {
    fn admit(&mut self, now: Duration, key: (String, String)) -> Admitted {
        let is_over = |since: Duration| now.saturating_sub(since) >= PERIOD || now < since;
        if self.0.len() >= KINDS && !self.0.contains_key(&key) {
            self.0.retain(|_, (since, ..)| !is_over(*since));
            if self.0.len() >= KINDS {
                // So many kinds at once are no repetition.
                self.0.clear();
            }
        }
        let (since, written, left_out) = self.0.entry(key).or_insert((now, 0, 0));
        if is_over(*since) {
            let before = *left_out;
            (*since, *written, *left_out) = (now, 1, 0);
            return if before > 0 { Admitted::After(before) } else { Admitted::Yes };
        }
        if *written >= OFTEN {
            *left_out += 1;
            return Admitted::No;
        }
        *written += 1;
        Admitted::Yes
    }
}

fn format_line(
    json: bool,
    unix_ms: u64,
    level: Level,
    message: &dyn Display,
    fields: &[(&str, &dyn Display)],
) -> String {
    let mut line = String::with_capacity(160);
    // Writing to a String does not fail; a Display that reports failure is cut short.
    let _ = if json {
        write_json(&mut line, unix_ms, level, message, fields)
    } else {
        write_plain(&mut line, unix_ms, level, message, fields)
    };
    line.push('\n');
    line
}

fn write_plain(
    line: &mut String,
    unix_ms: u64,
    level: Level,
    message: &dyn Display,
    fields: &[(&str, &dyn Display)],
) -> fmt::Result {
    write!(line, "{} {:<5} ", Timestamp { unix_ms, between: ' ' }, level.name())?;
    write!(OneLine(line), "{message}")?;
    for (name, value) in fields {
        write!(line, " {name}=")?;
        let text = value.to_string();
        let bare = !text.is_empty() && !text.contains(|c: char| c.is_whitespace() || c == '"');
        if bare {
            write!(OneLine(line), "{text}")?;
        } else {
            write_json_string(line, &text)?;
        }
    }
    Ok(())
}

fn write_json(
    line: &mut String,
    unix_ms: u64,
    level: Level,
    message: &dyn Display,
    fields: &[(&str, &dyn Display)],
) -> fmt::Result {
    let time = Timestamp { unix_ms, between: 'T' };
    write!(line, "{{\"time\":\"{time}\",\"level\":\"{}\",\"message\":", level.name())?;
    write_json_string(line, &message.to_string())?;
    for (name, value) in fields {
        write!(line, ",\"{name}\":")?;
        write_json_string(line, &value.to_string())?;
    }
    line.push('}');
    Ok(())
}

fn write_json_string(line: &mut String, text: &str) -> fmt::Result {
    line.push('"');
    for c in text.chars() {
        match c {
            '"' => line.push_str("\\\""),
            '\\' => line.push_str("\\\\"),
            '\n' => line.push_str("\\n"),
            c if c.is_control() => write!(line, "\\u{:04x}", c as u32)?,
            c => line.push(c),
        }
    }
    line.push('"');
    Ok(())
}

/// Keeps control characters, which may come from outside, off the terminal.
struct OneLine<'a>(&'a mut String);

impl fmt::Write for OneLine<'_> {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        self.0.extend(s.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }));
        Ok(())
    }
}

/// UTC, to the millisecond.
struct Timestamp {
    unix_ms: u64,
    between: char,
}

impl Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (year, month, day) = civil_from_days(self.unix_ms / 86_400_000);
        let s = self.unix_ms / 1000 % 86_400;
        let (hour, minute, second, ms) = (s / 3600, s / 60 % 60, s % 60, self.unix_ms % 1000);
        let between = self.between;
        write!(
            f,
            "{year:04}-{month:02}-{day:02}{between}{hour:02}:{minute:02}:{second:02}.{ms:03}Z"
        )
    }
}

/// Year, month and day of the Gregorian calendar, `days` after 1970-01-01. Years are
/// counted from 1 March, so that the leap day is the last one; 146,097 days are 400
/// years.
pub fn civil_from_days(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468; // from 0000-03-01
    let era = shifted / 146_097;
    let day_of_era = shifted % 146_097;
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: u64 = 1_795_250_526_123; // 2026-11-21 08:42:06.123 UTC

    #[test]
    fn a_plain_line_reads_like_a_sentence_with_facts() {
        let line = format_line(
            false,
            AT,
            Level::Info,
            &"link is up",
            &[("peer", &"shore"), ("why", &"a b")],
        );
        assert_eq!(line, "2026-11-21 08:42:06.123Z info  link is up peer=shore why=\"a b\"\n");
    }

    #[test]
    fn a_json_line_is_json_whatever_its_fields_hold() {
        let line =
            format_line(true, AT, Level::Warn, &"say \"hi\"\n", &[("name", &"a\\b\u{1b}[31m")]);
        let read: serde_json::Value = serde_json::from_str(&line).expect("JSON");
        assert_eq!(read["time"], "2026-11-21T08:42:06.123Z");
        assert_eq!(read["level"], "warn");
        assert_eq!(read["message"], "say \"hi\"\n");
        assert_eq!(read["name"], "a\\b\u{1b}[31m");
    }

    #[test]
    fn outside_text_cannot_break_the_line_or_the_terminal() {
        let line =
            format_line(false, AT, Level::Info, &"x\ny", &[("n", &"\u{1b}[2J"), ("m", &"a\nb")]);
        assert_eq!(line.matches('\n').count(), 1);
        assert!(!line.contains('\u{1b}'));
    }

    #[test]
    fn dates_are_right_around_leap_days() {
        assert_eq!(civil_from_days(0), (1970, 1, 1));
        assert_eq!(civil_from_days(59), (1970, 3, 1));
        assert_eq!(civil_from_days(11_016), (2000, 2, 29));
        assert_eq!(civil_from_days(20_512), (2026, 2, 28));
        assert_eq!(civil_from_days(47_541), (2100, 3, 1));
    }

    #[test]
    fn fields_below_the_level_are_not_evaluated() {
        let mut looked = false;
        crate::log!(Trace, {
            looked = true;
            "never"
        });
        assert!(!looked);
    }

    #[test]
    fn a_line_that_somebody_causes_without_end_is_written_a_few_times_and_counted() {
        let mut quotas = Quotas(BTreeMap::new());
        let key = |peer: &str| ("everything goes by another path".to_owned(), peer.to_owned());
        let mut written = 0;
        for n in 0..100_000 {
            let now = PERIOD + Duration::from_micros(n);
            written += u32::from(quotas.admit(now, key("evil")) == Admitted::Yes);
        }
        assert_eq!(written, OFTEN);
        assert_eq!(quotas.admit(PERIOD, key("ship")), Admitted::Yes, "another peer's");
        assert_eq!(quotas.admit(3 * PERIOD, key("evil")), Admitted::After(100_000 - 50));
        assert_eq!(quotas.admit(3 * PERIOD, key("evil")), Admitted::Yes);
        for n in 0..10 * KINDS {
            quotas.admit(4 * PERIOD, key(&n.to_string()));
            assert!(quotas.0.len() <= KINDS);
        }
    }

    #[test]
    fn verbosity_stays_within_the_range() {
        assert_eq!(Level::Info.shifted(1), Level::Debug);
        assert_eq!(Level::Info.shifted(99), Level::Trace);
        assert_eq!(Level::Info.shifted(-99), Level::Error);
        assert_eq!("debug".parse(), Ok(Level::Debug));
        assert!("loud".parse::<Level>().is_err());
    }
}
