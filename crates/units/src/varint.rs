//! The link's varints (spec/link.md, "Frames"): as many leading ones as bytes follow the first,
//! then the number, its highest byte first.

/// The most bytes that a number takes.
pub const MAX_LEN: usize = 9;

/// The fewest bytes that `n` takes: 1 … 9.
#[inline]
pub const fn len(n: u64) -> usize {
    let bits = 64 - n.leading_zeros() as usize;
    match bits {
        0..=7 => 1,
        57.. => MAX_LEN,
        b => b.div_ceil(7),
    }
}

/// Writes `n` in its shortest form to the front of `out`; answers its length.
///
/// # Panics
/// If `out` is shorter than [`len`] of `n`.
#[inline]
pub fn put(n: u64, out: &mut [u8]) -> usize {
    let (len, be) = (len(n), n.to_be_bytes());
    if len == MAX_LEN {
        out[0] = 0xff;
        out[1..MAX_LEN].copy_from_slice(&be);
    } else {
        out[..len].copy_from_slice(&be[8 - len..]);
        out[0] |= !(0xff_u16 >> (len - 1)) as u8;
    }
    len
}

/// Reads a number in any of its forms from the front of `bytes`; answers it and its length.
/// `None`: it is not all there.
#[inline]
pub fn take(bytes: &[u8]) -> Option<(u64, usize)> {
    let (first, rest) = bytes.split_first()?;
    let more = first.leading_ones() as usize;
    let own = if more >= 7 { 0 } else { u64::from(first & (0x7f >> more)) };
    let n = rest.get(..more)?.iter().fold(own, |n, byte| n << 8 | u64::from(*byte));
    Some((n, 1 + more))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back_in_their_shortest_form() {
        let mut before = 1;
        for bits in 0..64 {
            for n in [(1_u64 << bits) - 1, 1 << bits, u64::MAX >> bits] {
                let mut out = [0; MAX_LEN];
                let len = put(n, &mut out);
                assert_eq!(take(&out[..len]), Some((n, len)), "{n}");
                assert_eq!(len, super::len(n));
                assert_eq!(take(&out[..len - 1]), None, "{n} cut short");
                assert!(len == 9 || n >> (7 * len) == 0 && (len == 1 || n >> (7 * (len - 1)) > 0));
            }
            assert!(len(1 << bits) >= before);
            before = len(1 << bits);
        }
        assert_eq!(before, MAX_LEN);
    }

    #[test]
    fn longer_forms_are_read_too() {
        assert_eq!(take(&[0x80, 5]), Some((5, 2)));
        assert_eq!(take(&[0xff, 0, 0, 0, 0, 0, 0, 0, 5, 6]), Some((5, 9)));
        assert_eq!(take(&[0xfe, 0, 0, 0, 0, 0, 0, 5]), Some((5, 8)));
        assert_eq!(take(&[]), None);
    }
}
