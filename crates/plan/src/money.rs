//! What a link costs: prices of bytes and minutes, summed.

use std::fmt;
use std::str::FromStr;

use units::{ByteCount, Duration};

/// A sum of money, in millionths of the currency's unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Amount(pub u64);

/// The price of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tariff {
    /// For each minute that the link is up.
    pub per_minute: Amount,
    /// For each megabyte (1,000,000 bytes of IP packets) in either direction.
    pub per_megabyte: Amount,
    /// Time is counted in steps of this, rounded up; 0: exactly.
    pub increment: Duration,
    /// A call costs at least this.
    pub least: Duration,
}

impl Tariff {
    /// The price of `bytes` on the link and of a call of `time`.
    pub fn price(&self, bytes: ByteCount, time: Duration) -> Amount {
        let time = time.max(self.least).as_nanos();
        let step = self.increment.as_nanos().max(1);
        let billed = u128::from(time.div_ceil(step)) * u128::from(step);
        let minutes = u128::from(self.per_minute.0) * billed / 60_000_000_000;
        let volume = u128::from(self.per_megabyte.0) * u128::from(bytes.0) / 1_000_000;
        Amount((minutes + volume).min(u128::from(u64::MAX)) as u64)
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Rounded to hundredths; prices per megabyte may be below one.
        match self.0 {
            n @ 1..100_000 => write!(f, "0.{:04}", n / 100),
            n => {
                let hundredths = (n + 5_000) / 10_000;
                write!(f, "{}.{:02}", hundredths / 100, hundredths % 100)
            }
        }
    }
}

impl FromStr for Amount {
    type Err = String;
    /// `"2"`, `"2.80"`, `"0.000125"`.
    fn from_str(text: &str) -> Result<Amount, String> {
        let wrong = || format!("\"{text}\" is not a sum such as 2.80");
        let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
        let digits = |t: &str| !t.is_empty() && t.bytes().all(|b| b.is_ascii_digit());
        if !digits(whole) || !digits(fraction) || fraction.len() > 6 {
            return Err(wrong());
        }
        let whole: u64 = whole.parse().map_err(|_| wrong())?;
        let fraction: u64 = format!("{fraction:0<6}").parse().map_err(|_| wrong())?;
        let sum = whole.checked_mul(1_000_000).and_then(|w| w.checked_add(fraction));
        // A thousand million a minute is no price, and products stay within their type.
        sum.filter(|n| *n <= 1_000_000_000_000_000).map(Amount).ok_or_else(wrong)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_read_and_written_as_people_write_them() {
        assert_eq!("2.80".parse(), Ok(Amount(2_800_000)));
        assert_eq!("7".parse(), Ok(Amount(7_000_000)));
        assert_eq!("0.000125".parse(), Ok(Amount(125)));
        for wrong in ["", "-1", "1,5", "1.", ".5", "1.0000001", "1e9", "99999999999999"] {
            assert!(wrong.parse::<Amount>().is_err(), "{wrong}");
        }
        let written = [0, 12_500, 2_800_000, 2_804_999, 2_805_000].map(|n| Amount(n).to_string());
        assert_eq!(written, ["0.00", "0.0125", "2.80", "2.80", "2.81"]);
    }

    #[test]
    fn a_call_is_billed_by_whole_increments_and_its_minimum() {
        let tariff = Tariff {
            per_minute: Amount(2_000_000),
            increment: Duration::from_secs(30),
            least: Duration::from_secs(60),
            ..Tariff::default()
        };
        let price = |secs| tariff.price(ByteCount(0), Duration::from_secs(secs)).0;
        assert_eq!([1, 60, 61, 90, 91].map(price), [2, 2, 3, 3, 4].map(|n| n * 1_000_000));
    }

    #[test]
    fn volume_is_billed_by_the_byte() {
        let tariff = Tariff { per_megabyte: Amount(7_000_000), ..Tariff::default() };
        assert_eq!(tariff.price(ByteCount(1_500_000), Duration::from_secs(9)).0, 10_500_000);
    }
}
