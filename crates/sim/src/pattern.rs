//! Bytes that tell where they belong: each is a function of its stream's key and its
//! offset, so that a byte of another stream or another place is seen at once.

/// The bytes of one direction of one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pattern(u64, u64);

impl Pattern {
    /// The pattern of `key`; different keys give unrelated bytes.
    pub fn new(key: u64) -> Pattern {
        Pattern(mix(key ^ 0x5157_a1f0_9d2c_63b7), u64::MAX)
    }

    /// The same with few different bytes, so that it shrinks to less than a half.
    pub fn that_shrinks(self) -> Pattern {
        Pattern(self.0, 0x0303_0107_0003_0103)
    }

    fn word(self, index: u64) -> [u8; 8] {
        (mix(self.0.wrapping_add(index)) & self.1).to_le_bytes()
    }

    /// Fills `out` with the bytes from `offset` on.
    pub fn fill(self, offset: u64, out: &mut [u8]) {
        self.walk(offset, out.len(), |at, word| out[at..at + word.len()].copy_from_slice(word));
    }

    /// The index of the first byte of `bytes` that is not the pattern's from `offset` on.
    pub fn mismatch(self, offset: u64, bytes: &[u8]) -> Option<usize> {
        let mut wrong = None;
        self.walk(offset, bytes.len(), |at, word| {
            if wrong.is_none() && bytes[at..at + word.len()] != *word {
                let inside = word.iter().zip(&bytes[at..]).position(|(a, b)| a != b);
                wrong = Some(at + inside.unwrap_or(0));
            }
        });
        wrong
    }

    /// Calls `each` with the index and the bytes of every piece of a word.
    fn walk(self, offset: u64, len: usize, mut each: impl FnMut(usize, &[u8])) {
        let mut at = 0;
        while at < len {
            let position = offset + at as u64;
            let skip = (position % 8) as usize;
            let n = (8 - skip).min(len - at);
            each(at, &self.word(position / 8)[skip..skip + n]);
            at += n;
        }
    }
}

/// The finalizer of SplitMix64 (Steele, Lea and Flood, 2014).
fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_in_the_wrong_place_is_seen() {
        let pattern = Pattern::new(7);
        let mut bytes = [0; 100];
        pattern.fill(13, &mut bytes);
        assert_eq!(pattern.mismatch(13, &bytes), None);
        assert_eq!(pattern.mismatch(13 + 40, &bytes[40..]), None);
        assert!(pattern.mismatch(14, &bytes).is_some());
        assert!(Pattern::new(8).mismatch(13, &bytes).is_some());
        bytes[61] ^= 1;
        assert_eq!(pattern.mismatch(13, &bytes), Some(61));
    }
}
