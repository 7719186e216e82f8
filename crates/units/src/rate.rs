//! Rates, numbers of bytes and ratios, as files and people write them.

use std::fmt;
use std::ops::{Add, AddAssign, Sub, SubAssign};
use std::str::FromStr;

use crate::Duration;

/// Why a quantity in a configuration could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseUnitError {
    given: String,
    wanted: &'static str,
}

impl ParseUnitError {
    pub(crate) fn new(given: &str, wanted: &'static str) -> ParseUnitError {
        ParseUnitError { given: given.to_owned(), wanted }
    }
}

impl fmt::Display for ParseUnitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\" is not {}", self.given, self.wanted)
    }
}
impl std::error::Error for ParseUnitError {}

/// Splits `"23.58Mbit"` into its number (finite, not negative) and its unit.
pub(crate) fn split_number(s: &str) -> Result<(f64, &str), ParseUnitError> {
    let s = s.trim();
    let end = s.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(s.len());
    let value: f64 =
        s[..end].parse().map_err(|_| ParseUnitError::new(s, "a number with a unit"))?;
    Ok((value, s[end..].trim()))
}

/// A rate in bits per second, counted on IP packets (R-RATE). 0 means "none".
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct BitRate(u64);

/// A number of bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ByteCount(pub u64);

/// A share between 0 and 1, kept in parts per 2^64 so that decisions stay integral.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Ratio(u64);

impl BitRate {
    /// `n` bit/s.
    pub const fn from_bps(n: u64) -> BitRate {
        BitRate(n)
    }
    /// `n` kbit/s (1,000 bit/s).
    pub const fn from_kbps(n: u64) -> BitRate {
        BitRate(n * 1_000)
    }
    /// `n` Mbit/s.
    pub const fn from_mbps(n: u64) -> BitRate {
        BitRate(n * 1_000_000)
    }
    /// Bits per second.
    pub const fn as_bps(self) -> u64 {
        self.0
    }
    /// The `n`th part of the rate, at least 1 bit/s.
    pub const fn divided_by(self, n: u64) -> BitRate {
        let part = self.0 / n;
        BitRate(if part == 0 { 1 } else { part })
    }
    /// Bytes that pass in `d`, rounded down.
    pub const fn bytes_in(self, d: Duration) -> ByteCount {
        // Wide arithmetic is slow, and rarely needed.
        if let Some(n) = self.0.checked_mul(d.as_nanos()) {
            return ByteCount(n / 8_000_000_000);
        }
        let n = self.0 as u128 * d.as_nanos() as u128 / 8_000_000_000;
        ByteCount(if n > u64::MAX as u128 { u64::MAX } else { n as u64 })
    }
    /// The time that `n` bytes take, rounded up to the nanosecond so that pacing
    /// never exceeds the rate. At rate 0 it is `Duration::MAX`.
    pub const fn time_for(self, n: ByteCount) -> Duration {
        if self.0 == 0 {
            return Duration::MAX;
        }
        if let Some(n) = n.0.checked_mul(8_000_000_000) {
            return Duration::from_nanos(n.div_ceil(self.0));
        }
        let ns = (n.0 as u128 * 8_000_000_000).div_ceil(self.0 as u128);
        Duration::from_nanos(if ns > u64::MAX as u128 { u64::MAX } else { ns as u64 })
    }
}

impl ByteCount {
    /// As a number of bytes in memory.
    pub const fn as_usize(self) -> usize {
        self.0 as usize
    }
}

impl Ratio {
    /// Never.
    pub const ZERO: Ratio = Ratio(0);
    /// Always.
    pub const ONE: Ratio = Ratio(u64::MAX);

    /// `p` clamped to 0…1 (NaN counts as 0). For configuration and fixed formulas only.
    pub fn from_f64(p: f64) -> Ratio {
        // The cast saturates: 1.0 × 2^64 becomes u64::MAX, NaN and below 0 become 0.
        Ratio((p * 18_446_744_073_709_551_616.0) as u64)
    }
    /// For people and plots.
    pub fn as_f64(self) -> f64 {
        self.0 as f64 / 18_446_744_073_709_551_616.0
    }
    /// From parts per 2^64; `u64::MAX` is 1.
    pub const fn from_bits(parts: u64) -> Ratio {
        Ratio(parts)
    }
    /// Parts per 2^64, for exact products of probabilities.
    pub const fn as_bits(self) -> u64 {
        self.0
    }
    /// True for a `draw` (uniform over u64) that falls below this share.
    pub const fn hits(self, draw: u64) -> bool {
        draw < self.0 || self.0 == u64::MAX
    }
}

impl Add for ByteCount {
    type Output = ByteCount;
    fn add(self, o: ByteCount) -> ByteCount {
        ByteCount(self.0.saturating_add(o.0))
    }
}
impl AddAssign for ByteCount {
    fn add_assign(&mut self, o: ByteCount) {
        *self = *self + o;
    }
}
impl Sub for ByteCount {
    type Output = ByteCount;
    fn sub(self, o: ByteCount) -> ByteCount {
        ByteCount(self.0.saturating_sub(o.0))
    }
}
impl SubAssign for ByteCount {
    fn sub_assign(&mut self, o: ByteCount) {
        *self = *self - o;
    }
}

impl fmt::Display for BitRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            n if n >= 1_000_000_000 => write!(f, "{}Gbit", n as f64 / 1e9),
            n if n >= 1_000_000 => write!(f, "{}Mbit", n as f64 / 1e6),
            n if n >= 1_000 => write!(f, "{}kbit", n as f64 / 1e3),
            n => write!(f, "{n}bit"),
        }
    }
}
impl fmt::Debug for BitRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
impl fmt::Display for ByteCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            n if n >= 10_000_000_000 => write!(f, "{:.1}GB", n as f64 / 1e9),
            n if n >= 10_000_000 => write!(f, "{:.1}MB", n as f64 / 1e6),
            n if n >= 10_000 => write!(f, "{:.1}kB", n as f64 / 1e3),
            n => write!(f, "{n}B"),
        }
    }
}
impl fmt::Debug for ByteCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}B", self.0)
    }
}
impl fmt::Debug for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.as_f64())
    }
}

impl FromStr for BitRate {
    type Err = ParseUnitError;
    /// `"2400bit"`, `"128kbit"`, `"23.58Mbit"`, `"1Gbit"`, each with or without `/s`.
    fn from_str(s: &str) -> Result<BitRate, ParseUnitError> {
        let wanted = "a rate such as \"128kbit\" or \"23.58Mbit\"";
        let (value, unit) = split_number(s).map_err(|_| ParseUnitError::new(s, wanted))?;
        let scale = match unit.strip_suffix("/s").unwrap_or(unit) {
            "bit" => 1.0,
            "kbit" => 1e3,
            "Mbit" => 1e6,
            "Gbit" => 1e9,
            _ => return Err(ParseUnitError::new(s, wanted)),
        };
        Ok(BitRate((value * scale).round() as u64))
    }
}

impl FromStr for ByteCount {
    type Err = ParseUnitError;
    /// `"1500B"`, `"64kB"`, `"10MB"` (powers of 1,000), `"256MiB"`, `"16KiB"` (of 1,024).
    fn from_str(s: &str) -> Result<ByteCount, ParseUnitError> {
        let wanted = "a size such as \"64kB\" or \"256MiB\"";
        let (value, unit) = split_number(s).map_err(|_| ParseUnitError::new(s, wanted))?;
        let scale = match unit {
            "B" => 1.0,
            "kB" => 1e3,
            "MB" => 1e6,
            "GB" => 1e9,
            "KiB" => 1024.0,
            "MiB" => 1_048_576.0,
            "GiB" => 1_073_741_824.0,
            _ => return Err(ParseUnitError::new(s, wanted)),
        };
        Ok(ByteCount((value * scale).round() as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_t1_sends_a_full_packet_in_7_8_ms() {
        let t1: BitRate = "1.544Mbit".parse().unwrap();
        assert_eq!(t1.time_for(ByteCount(1500)).as_micros(), 7772);
        assert_eq!(t1.bytes_in(Duration::from_secs(1)), ByteCount(193_000));
    }

    #[test]
    fn sizes_and_rates_need_units() {
        assert_eq!("256MiB".parse(), Ok(ByteCount(268_435_456)));
        assert_eq!("128kbit/s".parse(), Ok(BitRate::from_kbps(128)));
        assert!("128".parse::<BitRate>().is_err());
        assert!("128kb".parse::<BitRate>().is_err());
    }

    #[test]
    fn ratio_ends_are_exact() {
        assert!(!Ratio::ZERO.hits(0));
        assert!(Ratio::ONE.hits(u64::MAX));
        assert_eq!(Ratio::from_f64(1.0), Ratio::ONE);
        assert_eq!(Ratio::from_f64(f64::NAN), Ratio::ZERO);
    }
}
