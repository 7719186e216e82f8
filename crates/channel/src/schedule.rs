//! Rates and delays that change with time: steps, ramps, repeats and random values.

use std::fmt;
use std::str::FromStr;

use units::{BitRate, Duration, Instant, Rng};

use crate::config::ConfigError;

/// A value that changes with the channel's time: a rate or a delay. Written in one of two ways,
/// in a file and on the command line alike:
///
/// * `"0s 40Mbit, 15s 90Mbit, 20s to 8Mbit, repeat 60s"`: times with the values that hold from
///   then on. `to` means a ramp, a straight line from the value before, which ends at that time.
///   With `repeat` it begins anew after so long; without it the last value stays.
/// * `"25ms-60ms every 50ms"`: a new value at every step, drawn evenly between the two, both
///   included, from the channel's seed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule<T>(Kind<T>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind<T> {
    Points { points: Vec<Point<T>>, repeat: Option<Duration> },
    Drawn { low: T, high: T, every: Duration },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Point<T> {
    at: Duration,
    value: T,
    ramp: bool,
}

/// What a schedule can be of: [`BitRate`] or [`Duration`].
pub trait Scheduled: Copy + fmt::Display + FromStr<Err: fmt::Display> {
    /// The value as a number, for straight lines and draws.
    fn as_number(self) -> u64;
    /// The same back.
    fn from_number(n: u64) -> Self;
    /// Why this value cannot be part of a schedule under the key `key`.
    fn check(self, key: &'static str) -> Result<(), ConfigError>;
}

/// Ramps are stairs of so small steps, each with the mean of its part of the line, so that a
/// ramp of the rate carries what the line would to the bit.
const STAIR: Duration = Duration::from_millis(1);
/// The shortest time between two changes: a packet may span many, and each takes a turn.
const SHORTEST: Duration = Duration::from_millis(1);
const MOST_POINTS: usize = 1_000;
/// No link with a schedule is slower; see `SHORTEST`.
const SLOWEST: BitRate = BitRate::from_kbps(1);

impl Scheduled for BitRate {
    fn as_number(self) -> u64 {
        self.as_bps()
    }
    fn from_number(n: u64) -> BitRate {
        BitRate::from_bps(n)
    }
    fn check(self, _: &'static str) -> Result<(), ConfigError> {
        if self < SLOWEST { Err(ConfigError::SlowSchedule { given: self }) } else { Ok(()) }
    }
}

impl Scheduled for Duration {
    fn as_number(self) -> u64 {
        self.as_nanos()
    }
    fn from_number(n: u64) -> Duration {
        Duration::from_nanos(n)
    }
    fn check(self, key: &'static str) -> Result<(), ConfigError> {
        crate::config::check_delay(key, self)
    }
}

/// Why a schedule could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0}; a schedule is such as \"0s {low}, 15s {high}, 20s to {low}, repeat 60s\" or \
     \"{low}-{high} every 15s\"",
    low = .1[0], high = .1[1]
)]
pub struct ScheduleError(String, [String; 2]);

impl<T: Scheduled> Schedule<T> {
    /// The value in force at `now`, and until when it stays as it is. `seed` is that of the
    /// draws.
    pub(crate) fn piece(&self, now: Instant, seed: u64) -> (T, Instant) {
        let now = now.since(Instant::ZERO).as_nanos();
        let (value, until) = match &self.0 {
            Kind::Points { points, repeat } => {
                let begun = repeat.map_or(0, |r| now - now % r.as_nanos());
                let (value, until) = between_points(points, now - begun);
                let end = repeat.map_or(u64::MAX, Duration::as_nanos);
                (value, begun.saturating_add(until.min(end)))
            }
            Kind::Drawn { low, high, every } => {
                let step = now / every.as_nanos();
                let mut rng = Rng::new(seed.wrapping_add(step.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
                let value = rng.between(low.as_number(), high.as_number());
                (T::from_number(value), every.as_nanos().saturating_mul(step + 1))
            }
        };
        (value, Instant::from_nanos(until))
    }

    /// The highest value that it can take.
    pub fn highest(&self) -> T {
        match &self.0 {
            Kind::Points { points, .. } => {
                let highest = points.iter().map(|p| p.value.as_number()).max();
                T::from_number(highest.unwrap_or_default())
            }
            Kind::Drawn { high, .. } => *high,
        }
    }

    /// Checks what reading does not: each value, by what it is of.
    pub(crate) fn validate(&self, key: &'static str) -> Result<(), ConfigError> {
        match &self.0 {
            Kind::Points { points, .. } => points.iter().try_for_each(|p| p.value.check(key)),
            Kind::Drawn { low, high, .. } => low.check(key).and(high.check(key)),
        }
    }
}

/// The value at `now`, in nanoseconds since the beginning of `points`, and until when it stays.
fn between_points<T: Scheduled>(points: &[Point<T>], now: u64) -> (T, u64) {
    let next = points.partition_point(|p| p.at.as_nanos() <= now);
    let here = points[next - 1];
    match points.get(next) {
        Some(p) if p.ramp => on_ramp(here, *p, now),
        Some(p) => (here.value, p.at.as_nanos()),
        None => (here.value, u64::MAX),
    }
}

/// The step of the stairs from `from` to `to` on which `now` is, and where it ends.
fn on_ramp<T: Scheduled>(from: Point<T>, to: Point<T>, now: u64) -> (T, u64) {
    let [start, end] = [from, to].map(|p| p.at.as_nanos());
    let step_start = now - (now - start) % STAIR.as_nanos();
    let step_end = (step_start + STAIR.as_nanos()).min(end);
    // Twice the distance of the step's middle from the start, so that it is whole.
    let twice = i128::from(step_start - start) + i128::from(step_end - start);
    let [a, b] = [from, to].map(|p| i128::from(p.value.as_number()));
    let value = a + (b - a) * twice / (2 * i128::from(end - start));
    (T::from_number(value as u64), step_end)
}

impl<T: Scheduled> FromStr for Schedule<T> {
    type Err = ScheduleError;

    fn from_str(s: &str) -> Result<Schedule<T>, ScheduleError> {
        let examples = || {
            let example = |rate: &str, delay: &str| match rate.parse::<T>() {
                Ok(_) => rate.to_owned(),
                Err(_) => delay.to_owned(),
            };
            [example("40Mbit", "25ms"), example("90Mbit", "60ms")]
        };
        let read = match s.split_once(" every ") {
            Some((range, every)) => drawn(range, every),
            None => points(s),
        };
        read.map(Schedule).map_err(|why| ScheduleError(why, examples()))
    }
}

fn quantity<Q: FromStr<Err: fmt::Display>>(s: &str) -> Result<Q, String> {
    s.trim().parse().map_err(|e: Q::Err| e.to_string())
}

fn drawn<T: Scheduled>(range: &str, every: &str) -> Result<Kind<T>, String> {
    let (low, high) =
        range.split_once('-').ok_or_else(|| format!("\"{range}\" is no range from-to"))?;
    let (low, high) = (quantity::<T>(low)?, quantity::<T>(high)?);
    let every = spaced(quantity(every)?)?;
    if low.as_number() > high.as_number() {
        return Err(format!("\"{range}\" ends below its beginning"));
    }
    Ok(Kind::Drawn { low, high, every })
}

fn points<T: Scheduled>(s: &str) -> Result<Kind<T>, String> {
    let (mut points, mut repeat) = (Vec::<Point<T>>::new(), None);
    for part in s.split(',').map(str::trim) {
        let words: Vec<&str> = part.split_whitespace().collect();
        let point = match words[..] {
            _ if repeat.is_some() => return Err(format!("\"{part}\" comes after \"repeat\"")),
            ["repeat", every] => {
                repeat = Some(spaced(quantity(every)?)?);
                continue;
            }
            [at, value] => Point { at: quantity(at)?, value: quantity(value)?, ramp: false },
            [at, "to", value] => Point { at: quantity(at)?, value: quantity(value)?, ramp: true },
            _ => return Err(format!("\"{part}\" is not a time with a value")),
        };
        match points.last() {
            None if point.at != Duration::ZERO => {
                return Err(format!("\"{part}\" is first: begin at 0s"));
            }
            None if point.ramp => return Err(format!("\"{part}\" has nothing to begin at")),
            Some(last) if point.at < last.at + SHORTEST => {
                return Err(format!("\"{part}\" is not 1ms or more after what is before it"));
            }
            _ => points.push(point),
        }
    }
    let Some(last) = points.last() else { return Err("there is no value".into()) };
    match repeat {
        Some(r) if r < last.at => {
            Err(format!("\"repeat {r}\" comes before the last time, {}", last.at))
        }
        _ if points.len() > MOST_POINTS => Err(format!("there are more than {MOST_POINTS} times")),
        _ => Ok(Kind::Points { points, repeat }),
    }
}

fn spaced(every: Duration) -> Result<Duration, String> {
    if every < SHORTEST { Err(format!("{every} is shorter than 1ms")) } else { Ok(every) }
}

impl<T: Scheduled> fmt::Display for Schedule<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Drawn { low, high, every } => write!(f, "{low}-{high} every {every}"),
            Kind::Points { points, repeat } => {
                for (i, Point { at, value, ramp }) in points.iter().enumerate() {
                    let comma = if i > 0 { ", " } else { "" };
                    let to = if *ramp { "to " } else { "" };
                    write!(f, "{comma}{at} {to}{value}")?;
                }
                repeat.map_or(Ok(()), |r| write!(f, ", repeat {r}"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(s: &str) -> Schedule<BitRate> {
        s.parse().unwrap_or_else(|e| panic!("{e}"))
    }

    fn ms(n: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(n)
    }

    fn mbps(s: &Schedule<BitRate>, at: Instant) -> f64 {
        s.piece(at, 1).0.as_bps() as f64 / 1e6
    }

    #[test]
    fn steps_hold_until_the_next_and_the_last_for_ever() {
        let s = rate("0s 40Mbit, 15s 90Mbit");
        assert_eq!(s.piece(ms(0), 1), (BitRate::from_mbps(40), ms(15_000)));
        assert_eq!(s.piece(ms(14_999), 1).0, BitRate::from_mbps(40));
        assert_eq!(s.piece(ms(15_000), 1), (BitRate::from_mbps(90), Instant::FAR_FUTURE));
    }

    #[test]
    fn a_ramp_ends_where_it_says_and_its_mean_is_that_of_the_line() {
        let s = rate("0s 40Mbit, 10s to 8Mbit");
        assert!((mbps(&s, ms(5_000)) - 24.0).abs() < 0.01);
        assert_eq!(mbps(&s, ms(10_000)), 8.0);
        let (mut at, mut sum) = (Instant::ZERO, 0u128);
        while at < ms(10_000) {
            let (value, until) = s.piece(at, 1);
            sum += u128::from(value.as_bps()) * u128::from(until.since(at).as_nanos());
            at = until;
        }
        let mean = sum as f64 / 1e10;
        assert!((mean - 24e6).abs() < 1.0, "{mean}");
    }

    #[test]
    fn what_repeats_begins_anew() {
        let s = rate("0s 40Mbit, 10s 8Mbit, 20s to 40Mbit, repeat 20s");
        assert_eq!(mbps(&s, ms(45_000)), 40.0);
        assert_eq!(s.piece(ms(45_000), 1).1, ms(50_000));
        assert!((mbps(&s, ms(55_000)) - 24.0).abs() < 0.01);
        assert_eq!(s.piece(ms(20_000), 1).0, BitRate::from_mbps(40));
        let odd = rate("0s 1Mbit, repeat 7ms");
        assert_eq!(odd.piece(ms(8), 1).1, ms(14));
    }

    #[test]
    fn draws_stay_between_their_ends_and_follow_the_seed() {
        let s: Schedule<Duration> = "25ms-60ms every 50ms".parse().unwrap();
        let all =
            |seed| (0..2_000).map(|i| s.piece(ms(i * 50), seed).0.as_micros()).collect::<Vec<_>>();
        let values = all(1);
        assert_eq!(values, all(1));
        assert_ne!(values, all(2));
        assert!(values.iter().all(|v| (25_000..=60_000).contains(v)));
        let mean = values.iter().sum::<u64>() / 2_000;
        assert!((42_000..43_000).contains(&mean), "{mean}");
        // One value for the whole of a step.
        assert_eq!(s.piece(ms(0), 1), s.piece(ms(49), 1));
    }

    #[test]
    fn what_is_written_is_read_back() {
        for text in [
            "0s 40Mbit, 15s 90Mbit",
            "0s 40Mbit, 10s to 8Mbit, 20.5s 8Mbit, repeat 60s",
            "40Mbit-140Mbit every 15s",
        ] {
            assert_eq!(rate(text).to_string(), text);
        }
    }

    #[test]
    fn slips_are_refused_with_a_reason_and_an_example() {
        for (text, why) in [
            ("", "not a time with a value"),
            ("0s", "not a time with a value"),
            ("0s 40", "\"40\" is not a rate"),
            ("5s 40Mbit", "begin at 0s"),
            ("0s to 40Mbit", "nothing to begin at"),
            ("0s 40Mbit, 0s 8Mbit", "1ms or more after"),
            ("0s 40Mbit, 9s 8Mbit, repeat 5s", "before the last time, 9s"),
            ("0s 40Mbit, repeat 5s, 6s 8Mbit", "after \"repeat\""),
            ("0s 40Mbit, repeat 5us", "shorter than 1ms"),
            ("repeat 5s", "no value"),
            ("40Mbit every 5s", "no range"),
            ("90Mbit-40Mbit every 5s", "ends below its beginning"),
            ("40Mbit-90Mbit every 0s", "shorter than 1ms"),
        ] {
            let error = text.parse::<Schedule<BitRate>>().unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
            assert!(error.contains("\"40Mbit-90Mbit every 15s\""), "{error}");
        }
        let error = "x".parse::<Schedule<Duration>>().unwrap_err().to_string();
        assert!(error.contains("0s 25ms"), "{error}");
    }
}
