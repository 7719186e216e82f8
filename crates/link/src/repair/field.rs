//! Arithmetic on symbols over GF(2^8) with the polynomial of RFC 8681 (0x11d).

/// x^8 + x^4 + x^3 + x^2 + 1, without its highest term.
const POLYNOMIAL: u8 = 0x1d;
/// Bytes that are worked on at once: a cache line, and a whole number of vector
/// registers, so that the compiler makes vectors of the loops.
pub(super) const LANE: usize = 64;

/// Symbols that are combined at once: with more the lists leave the fastest cache.
const TERMS: usize = 32;

type Lane = [u8; LANE];

/// The factor of source packet `source` in repair packet `repair`: never 0. Both ends
/// compute it, so it does not travel (SplitMix64's finaliser over both numbers).
pub(super) fn coefficient(repair: u64, source: u64) -> u8 {
    let mut x =
        repair.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ source.wrapping_mul(0xd1b5_4a32_d192_ed03);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((x ^ (x >> 31)) % 255) as u8 + 1
}

fn double(lane: &mut Lane) {
    for b in lane {
        *b = (*b << 1) ^ (POLYNOMIAL & ((*b as i8) >> 7) as u8);
    }
}

fn add(to: &mut Lane, from: &[u8]) {
    for (t, f) in to.iter_mut().zip(from) {
        *t ^= f;
    }
}

/// Adds to `to` the sum of factor × symbol for all `(factor, place of the symbol in
/// `symbols`)`. Horner's rule over the bits of the factors: a symbol costs four additions
/// on average instead of a multiplication. Symbols have the length of `to`, a multiple of
/// [`LANE`].
pub(super) fn add_combination(to: &mut [u8], symbols: &[u8], terms: &[(u8, usize)]) {
    for terms in terms.chunks(TERMS) {
        // Listed by bit, once: a branch for each bit of each lane could not be foreseen and
        // took half of the time.
        let mut places = [[0; TERMS]; 8];
        let mut counts = [0; 8];
        for &(factor, place) in terms {
            for (bit, (places, count)) in places.iter_mut().zip(&mut counts).enumerate() {
                places[*count] = place;
                *count += usize::from(factor >> bit & 1);
            }
        }
        for (at, out) in to.chunks_exact_mut(LANE).enumerate() {
            let mut sum: Lane = [0; LANE];
            for (places, count) in places.iter().zip(counts).rev() {
                double(&mut sum);
                for place in &places[..count] {
                    let from = place + at * LANE;
                    add(&mut sum, &symbols[from..from + LANE]);
                }
            }
            add_to(out, &sum);
        }
    }
}

fn add_to(out: &mut [u8], sum: &Lane) {
    for (o, s) in out.iter_mut().zip(sum) {
        *o ^= s;
    }
}

/// `to += factor × from`.
pub(super) fn add_scaled(to: &mut [u8], factor: u8, from: &[u8]) {
    if factor != 0 {
        add_combination(to, from, &[(factor, 0)]);
    }
}

/// `to *= factor`.
pub(super) fn scale(to: &mut [u8], factor: u8) {
    for lane in to.chunks_exact_mut(LANE) {
        let from: Lane = lane.try_into().expect("chunks are lanes");
        lane.fill(0);
        add_scaled(lane, factor, &from);
    }
}

/// Powers of 2, twice over, and which power each number is: every number but 0 is one.
const POWERS: [u8; 510] = powers();
const LOGARITHMS: [u8; 256] = logarithms();

const fn powers() -> [u8; 510] {
    let (mut powers, mut power, mut i) = ([0; 510], 1u8, 0);
    while i < 510 {
        powers[i] = power;
        power = (power << 1) ^ (POLYNOMIAL & ((power as i8) >> 7) as u8);
        i += 1;
    }
    powers
}

const fn logarithms() -> [u8; 256] {
    let (mut logarithms, mut i) = ([0; 256], 0);
    while i < 255 {
        logarithms[POWERS[i] as usize] = i as u8;
        i += 1;
    }
    logarithms
}

/// `a × b`.
pub(super) fn multiply(a: u8, b: u8) -> u8 {
    match a == 0 || b == 0 {
        true => 0,
        false => {
            let [a, b] = [a, b].map(|n| usize::from(LOGARITHMS[usize::from(n)]));
            POWERS[a + b]
        }
    }
}

/// 1 / a for a ≠ 0: a^254.
pub(super) fn inverse(a: u8) -> u8 {
    let mut power = a;
    let mut result = 1;
    for _ in 0..7 {
        power = multiply(power, power);
        result = multiply(result, power);
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_element_but_zero_has_an_inverse() {
        for a in 1..=255 {
            assert_eq!(multiply(a, inverse(a)), 1, "{a}");
        }
    }

    #[test]
    fn a_combination_is_the_sum_of_its_products() {
        const SYMBOLS: usize = 2 * TERMS + 7;
        let symbols: Vec<u8> =
            (0..SYMBOLS * 128).map(|i| (i * i * 37 + i / 5 + 11) as u8).collect();
        let terms: Vec<(u8, usize)> = (0..SYMBOLS).map(|i| ((i * 41 + 3) as u8, i * 128)).collect();
        let mut sum = vec![0x5a; 128];
        add_combination(&mut sum, &symbols, &terms);
        for at in 0..128 {
            let expected = terms.iter().fold(0x5a, |a, (f, p)| a ^ multiply(*f, symbols[p + at]));
            assert_eq!(sum[at], expected);
        }
        scale(&mut sum, 77);
        scale(&mut sum, inverse(77));
        assert_eq!(sum[5], terms.iter().fold(0x5a, |a, (f, p)| a ^ multiply(*f, symbols[p + 5])));
    }
}
