//! Round ticks for an axis, and figures for people.

/// Round positions for the ticks of one axis and the range they span.
#[derive(Clone, Debug, PartialEq)]
pub struct Ticks {
    /// Distance between two ticks: 1, 2 or 5 times a power of ten.
    pub step: f64,
    /// Positions, ascending; the first is at or below the smallest value, the last at
    /// or above the largest.
    pub at: Vec<f64>,
}

impl Ticks {
    /// About `wanted` ticks that cover `low`…`high`. A range that is empty or not
    /// finite becomes 0…1.
    pub fn covering(low: f64, high: f64, wanted: usize) -> Ticks {
        let (low, high) = match (low.is_finite() && high.is_finite(), high > low) {
            (true, true) => (low, high),
            (true, false) if low > 0.0 => (0.0, low),
            _ => (0.0, 1.0),
        };
        let step = round_step((high - low) / wanted.max(1) as f64);
        let first = (low / step + 1e-9).floor() as i64;
        let last = (high / step - 1e-9).ceil() as i64;
        Ticks { step, at: (first..=last).map(|i| i as f64 * step).collect() }
    }

    /// The lowest tick.
    pub fn low(&self) -> f64 {
        self.at[0]
    }

    /// The highest tick.
    pub fn high(&self) -> f64 {
        self.at[self.at.len() - 1]
    }
}

/// The smallest of 1, 2, 5 × 10^k that is not below `raw`.
fn round_step(raw: f64) -> f64 {
    let power = 10f64.powf(raw.log10().floor());
    let m = raw / power;
    let nice = [1.0, 2.0, 5.0, 10.0].into_iter().find(|n| m <= n + 1e-9).unwrap_or(10.0);
    nice * power
}

/// `value` for people: three significant digits, thousands separated by thin spaces.
pub fn number(value: f64) -> String {
    if !value.is_finite() {
        return "–".into();
    }
    let magnitude = value.abs();
    let decimals = match magnitude {
        m if m >= 99.95 || m == 0.0 => 0,
        m if m >= 9.995 => 1,
        m if m >= 0.9995 => 2,
        m => (2 - m.log10().floor() as i32).clamp(0, 6) as usize,
    };
    let text = format!("{magnitude:.decimals$}");
    let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
    let mut out = String::new();
    for (i, digit) in whole.chars().enumerate() {
        if i > 0 && (whole.len() - i).is_multiple_of(3) && whole.len() > 4 {
            out.push('\u{202f}');
        }
        out.push(digit);
    }
    let fraction = fraction.trim_end_matches('0');
    if !fraction.is_empty() {
        out.push('.');
        out.push_str(fraction);
    }
    if value < 0.0 { format!("−{out}") } else { out }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_cover_the_range() {
        assert_eq!(Ticks::covering(0.0, 1544.0, 5).at, [0.0, 500.0, 1000.0, 1500.0, 2000.0]);
        let t = Ticks::covering(0.0, 0.93, 4);
        assert_eq!(t.at.len(), 3);
        assert!((t.high() - 1.0).abs() < 1e-12);
        assert_eq!(Ticks::covering(3.0, 3.0, 4).low(), 0.0);
        assert_eq!(Ticks::covering(f64::NAN, 2.0, 4).high(), 1.0);
        assert_eq!(Ticks::covering(0.0, 0.0, 4).high(), 1.0);
    }

    #[test]
    fn numbers_have_three_digits_and_no_idle_zeros() {
        let texts = [0.0, 0.01234, 1.5, 8.0, 93.46, 1544.0, 12345.0, -2.0].map(number);
        let expected = ["0", "0.0123", "1.5", "8", "93.5", "1544", "12\u{202f}345", "−2"];
        assert_eq!(texts, expected);
    }
}
