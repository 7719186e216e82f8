//! The Internet checksum (RFC 1071).

/// Adds the words of `bytes` to `sum`; an odd last byte counts as followed by a zero.
fn add(sum: u64, bytes: &[u8]) -> u64 {
    let (words, odd) = bytes.as_chunks::<2>();
    let sum = words.iter().fold(sum, |s, w| s + u64::from(u16::from_be_bytes(*w)));
    sum + odd.first().map_or(0, |b| u64::from(*b) << 8)
}

/// The Internet checksum (RFC 1071) of what the pieces make together; each but the last has an
/// even length. Over something with a right checksum it is 0.
pub fn internet_sum(pieces: &[&[u8]]) -> u16 {
    let mut sum = pieces.iter().fold(0, |sum, piece| add(sum, piece));
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 1071, section 3: the sum of these is 0xddf2.
    #[test]
    fn the_example_of_the_rfc_has_its_sum() {
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(internet_sum(&[&bytes]), !0xddf2);
        assert_eq!(internet_sum(&[&bytes[..2], &bytes[2..6], &[], &bytes[6..]]), !0xddf2);
        assert_eq!(internet_sum(&[&bytes, &(!0xddf2_u16).to_be_bytes()]), 0);
        // An odd last byte is the upper half of a word.
        assert_eq!(internet_sum(&[&bytes[..6], &[0xf6]]), internet_sum(&[&bytes[..6], &[0xf6, 0]]));
        assert_eq!(internet_sum(&[]), 0xffff);
        assert_eq!(internet_sum(&[&[0xff; 2_000]]), 0, "carries are added until none is left");
    }
}
