//! Money as integers: millionths of the currency's unit.

use std::fmt;
use std::str::FromStr;

/// Millionths in one unit of the currency.
const MICRO: u64 = 1_000_000;

/// An amount in millionths of a currency's unit; never negative. Sums saturate.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Money(u64);

impl Money {
    /// Nothing.
    pub const ZERO: Money = Money(0);
    /// More than any bill.
    pub const MAX: Money = Money(u64::MAX);

    /// `n` millionths.
    pub const fn from_micros(n: u64) -> Money {
        Money(n)
    }
    /// `n` hundredths.
    pub const fn from_cents(n: u64) -> Money {
        Money(n.saturating_mul(MICRO / 100))
    }
    /// Millionths.
    pub const fn as_micros(self) -> u64 {
        self.0
    }
    /// Hundredths, rounded half up: what a bill prints.
    pub const fn to_cents(self) -> u64 {
        self.0.saturating_add(MICRO / 200) / (MICRO / 100)
    }
    /// True for no money at all.
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }
    /// The sum, at most [`Money::MAX`].
    pub const fn plus(self, other: Money) -> Money {
        Money(self.0.saturating_add(other.0))
    }
    /// What is left after `other`, at least nothing.
    pub const fn minus(self, other: Money) -> Money {
        Money(self.0.saturating_sub(other.0))
    }
    /// `percent` hundredths of it, rounded down.
    pub const fn percent(self, percent: u8) -> Money {
        let n = self.0 as u128 * percent as u128 / 100;
        Money(if n > u64::MAX as u128 { u64::MAX } else { n as u64 })
    }
    /// `self × amount ÷ per`, rounded half up: a price for `per` units, for `amount` of them.
    /// `per` = 0 counts as 1.
    pub(crate) fn scaled(self, amount: u128, per: u128) -> Money {
        let per = per.max(1);
        let n = u128::from(self.0).saturating_mul(amount).saturating_add(per / 2) / per;
        Money(u64::try_from(n).unwrap_or(u64::MAX))
    }
}

impl std::iter::Sum for Money {
    fn sum<I: Iterator<Item = Money>>(all: I) -> Money {
        all.fold(Money::ZERO, Money::plus)
    }
}

impl fmt::Display for Money {
    /// `12.34`, with up to six decimals where it is no whole number of cents.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = format!("{:06}", self.0 % MICRO);
        let shown = digits.trim_end_matches('0').len().max(2);
        f.pad(&format!("{}.{}", self.0 / MICRO, &digits[..shown]))
    }
}
impl fmt::Debug for Money {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Why a text is no amount of money or no currency.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("\"{given}\" is not {wanted}")]
pub struct ParseMoneyError {
    given: String,
    wanted: &'static str,
}

impl FromStr for Money {
    type Err = ParseMoneyError;
    /// `"2"`, `"2.50"`, `"0.000125"`: digits, at most six of them after a point.
    fn from_str(s: &str) -> Result<Money, ParseMoneyError> {
        let bad = || ParseMoneyError {
            given: s.to_owned(),
            wanted: "an amount such as \"2.50\", with at most six decimals",
        };
        let digits = |t: &str| t.bytes().all(|b| b.is_ascii_digit());
        let (whole, part) = s.trim().split_once('.').unwrap_or((s.trim(), "0"));
        if whole.is_empty() || part.is_empty() || part.len() > 6 || !digits(whole) || !digits(part)
        {
            return Err(bad());
        }
        let micros: u64 = format!("{part:0<6}").parse().map_err(|_| bad())?;
        let units: u64 = whole.parse().map_err(|_| bad())?;
        let sum = units.checked_mul(MICRO).and_then(|n| n.checked_add(micros));
        sum.map(Money).ok_or_else(bad)
    }
}

/// A currency by its three letters (ISO 4217).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Currency([u8; 3]);

impl FromStr for Currency {
    type Err = ParseMoneyError;
    /// `"USD"`, `"EUR"`.
    fn from_str(s: &str) -> Result<Currency, ParseMoneyError> {
        match *s.as_bytes() {
            [a, b, c] if [a, b, c].iter().all(u8::is_ascii_uppercase) => Ok(Currency([a, b, c])),
            _ => Err(ParseMoneyError {
                given: s.to_owned(),
                wanted: "a currency such as \"USD\" or \"EUR\"",
            }),
        }
    }
}
impl fmt::Display for Currency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(std::str::from_utf8(&self.0).unwrap_or("???"))
    }
}
impl fmt::Debug for Currency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Divides `total` in proportion to `weights`, so that the parts make exactly `total`: each
/// gets its share rounded down, and what is left goes one by one to the largest remainders
/// (the first of equal ones). Without any weight the first takes all.
pub(crate) fn divide(total: u64, weights: &[u64]) -> Vec<u64> {
    let sum: u128 = weights.iter().map(|w| u128::from(*w)).sum();
    if sum == 0 {
        let all = |i| if i == 0 { total } else { 0 };
        return (0..weights.len()).map(all).collect();
    }
    let exact = |w: u64| u128::from(total) * u128::from(w);
    let mut parts: Vec<u64> = weights.iter().map(|w| (exact(*w) / sum) as u64).collect();
    let mut order: Vec<usize> = (0..weights.len()).collect();
    order.sort_by_key(|i| std::cmp::Reverse(exact(weights[*i]) % sum));
    let left = total - parts.iter().sum::<u64>();
    for at in order.into_iter().take(left as usize) {
        parts[at] += 1;
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn amounts_are_read_and_written_exactly() {
        for (text, micros, back) in [
            ("2", 2_000_000, "2.00"),
            ("2.5", 2_500_000, "2.50"),
            ("0.000125", 125, "0.000125"),
            ("1000000.01", 1_000_000_010_000, "1000000.01"),
        ] {
            let money: Money = text.parse().unwrap();
            assert_eq!((money.as_micros(), money.to_string().as_str()), (micros, back));
        }
        for bad in ["", ".5", "1.", "-1", "1,5", "1.0000001", "1e3", "99999999999999999999"] {
            assert!(bad.parse::<Money>().is_err(), "{bad}");
        }
        assert_eq!(Money::from_micros(4_999).to_cents(), 0);
        assert_eq!(Money::from_micros(5_000).to_cents(), 1);
    }

    #[test]
    fn a_currency_is_three_capital_letters() {
        assert_eq!("USD".parse::<Currency>().unwrap().to_string(), "USD");
        for bad in ["", "usd", "US", "USDT", "€"] {
            assert!(bad.parse::<Currency>().is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn parts_make_the_whole_and_differ_from_their_share_by_less_than_one(
            total: u64,
            weights in proptest::collection::vec(any::<u32>().prop_map(u64::from), 1..40),
        ) {
            let parts = divide(total, &weights);
            prop_assert_eq!(parts.iter().map(|p| u128::from(*p)).sum::<u128>(), u128::from(total));
            let sum: u128 = weights.iter().map(|w| u128::from(*w)).sum();
            for (part, weight) in parts.iter().zip(&weights).filter(|_| sum > 0) {
                let exact = u128::from(total) * u128::from(*weight);
                prop_assert!(u128::from(*part) * sum < exact + sum);
                prop_assert!(u128::from(*part) * sum + sum > exact);
            }
        }
    }
}
