//! The Internet checksum (RFC 1071).

/// Adds the words of `bytes` to `sum`; an odd last byte counts as followed by a zero.
fn add(sum: u64, bytes: &[u8]) -> u64 {
    let (words, odd) = bytes.as_chunks::<2>();
    let sum = words.iter().fold(sum, |s, w| s + u64::from(u16::from_be_bytes(*w)));
    sum + odd.first().map_or(0, |b| u64::from(*b) << 8)
}

/// The checksum of what the pieces make together; each but the last has an even length.
/// Over something with a right checksum it is 0.
pub(super) fn internet_sum(pieces: &[&[u8]]) -> u16 {
    let mut sum = pieces.iter().fold(0, |sum, piece| add(sum, piece));
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}
