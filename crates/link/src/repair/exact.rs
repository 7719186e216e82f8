//! Powers and logarithms that are the same on every machine.
//!
//! The four operations and the square root are exact by IEEE 754, so what is built of them
//! alone is the same everywhere. The libraries' `powf`, `powi` and `log2` are not: with them a
//! simulator's seed would decide otherwise on another machine or in another build.

use std::f64::consts::LOG2_E;

/// xⁿ, by squares.
pub fn power(mut x: f64, mut n: u64) -> f64 {
    let mut product = 1.0;
    while n > 0 {
        if n & 1 == 1 {
            product *= x;
        }
        x *= x;
        n >>= 1;
    }
    product
}

/// log₂ x of a positive, normal x: the exponent's bits, and of the mantissa m
/// ln m = 2 artanh((m − 1) / (m + 1)).
pub fn log2(x: f64) -> f64 {
    const MANTISSA: u64 = (1 << 52) - 1;
    let bits = x.to_bits();
    let exponent = (bits >> 52 & 0x7ff) as i32 - 1023;
    let m = f64::from_bits(bits & MANTISSA | 1023 << 52);
    let y = (m - 1.0) / (m + 1.0);
    // y ≤ 1/3: the terms left out are below 3⁻³⁵.
    let (mut sum, mut odd) = (0.0, y);
    for k in (1..35).step_by(2) {
        sum += odd / f64::from(k);
        odd *= y * y;
    }
    f64::from(exponent) + 2.0 * sum * LOG2_E
}

#[cfg(test)]
#[allow(clippy::disallowed_methods)] // The library's are what they are compared with.
mod tests {
    use super::*;

    #[test]
    fn they_agree_with_the_library_to_twelve_digits() {
        for i in 1..2000u64 {
            let x = i as f64 / 1000.0;
            assert!((log2(x) - x.log2()).abs() < 1e-12, "log2 {x}");
            assert!((log2(x * 1e9) - (x * 1e9).log2()).abs() < 1e-12, "log2 {x}e9");
            for n in [0, 1, 2, 7, 100] {
                let exact = x.powi(n as i32);
                assert!((power(x, n) - exact).abs() <= 1e-12 * exact, "{x}^{n}");
            }
        }
        let survives = power(1.0 - 1e-5, 12_000);
        assert!((survives - (12_000.0 * (-1e-5f64).ln_1p()).exp()).abs() < 1e-11, "{survives}");
    }

    #[test]
    fn they_are_the_same_in_every_build() {
        assert_eq!(power(0.999, 4242).to_bits(), 0x3f8d_62a6_ea13_f37d);
        assert_eq!(log2(4242.0).to_bits(), 0x4028_19de_ecb9_8348);
    }
}
