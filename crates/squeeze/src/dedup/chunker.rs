//! Where chunks end: by their content, so that what is inserted or changed moves no boundary
//! but its own.
//!
//! A gear hash (Xia et al., *FastCDC*, USENIX ATC 2016): `h = 2h + gear[byte]`, 64 bits, so
//! that it depends on the last 64 bytes alone. A chunk ends where the top bits of `h` are
//! zero; more of them are asked for before the average than after it, which draws lengths
//! together. The table is keyed: who does not have the key cannot make content that is cut
//! everywhere or nowhere.

use super::keys::Keys;

/// No chunk is shorter, but the last of a stream. Measured, see docs/decisions.
pub const MIN_CHUNK: usize = 2 * 1024;
/// The length that chunks have on average, about.
pub const AVERAGE: usize = 6 * 1024;
/// No chunk is longer.
pub const MAX_CHUNK: usize = 32 * 1024;

/// So many bytes make up the hash.
const WINDOW: usize = 64;
/// After so many bytes the hash is noted: it tells whether a chunk looks like a known one.
pub(super) const HINT_AT: usize = 256;
const HINT_FROM: usize = HINT_AT - WINDOW;
const JUDGED_FROM: usize = MIN_CHUNK - WINDOW;
/// Zeros asked for before the average, and after it: four times as many boundaries there. The
/// more the two differ the more alike are lengths, and the longer it takes after a change until
/// boundaries are the old ones again.
const HARD: u64 = top(AVERAGE.ilog2() + 1);
const EASY: u64 = top(AVERAGE.ilog2() - 1);

const fn top(bits: u32) -> u64 {
    !(u64::MAX >> bits)
}

/// One direction's place between two boundaries.
#[derive(Clone, Copy, Debug, Default)]
pub struct Chunker {
    hash: u64,
    len: usize,
    hint: u32,
}

impl Chunker {
    /// Goes on through `bytes`. Answers how many of them end the chunk; `None` if it goes on
    /// beyond all of them.
    pub fn scan(&mut self, keys: &Keys, bytes: &[u8]) -> Option<usize> {
        let mut at = 0;
        while at < bytes.len() {
            // What no boundary and no hint can depend on is passed over.
            let (until, rolls, mask) = match self.len {
                n if n < HINT_FROM => (HINT_FROM, false, 0),
                n if n < HINT_AT => (HINT_AT, true, 0),
                n if n < JUDGED_FROM => (JUDGED_FROM, false, 0),
                n if n < MIN_CHUNK => (MIN_CHUNK, true, 0),
                n if n < AVERAGE => (AVERAGE, true, HARD),
                _ => (MAX_CHUNK, true, EASY),
            };
            let piece = &bytes[at..][..(until - self.len).min(bytes.len() - at)];
            let mut n = piece.len();
            if mask != 0 {
                let mut hash = self.hash;
                for (i, byte) in piece.iter().enumerate() {
                    hash = (hash << 1).wrapping_add(keys.gear[usize::from(*byte)]);
                    if hash & mask == 0 {
                        n = i + 1;
                        break;
                    }
                }
                self.hash = hash;
            } else if rolls {
                for byte in piece {
                    self.hash = (self.hash << 1).wrapping_add(keys.gear[usize::from(*byte)]);
                }
            }
            at += n;
            self.len += n;
            if self.len == HINT_AT {
                self.hint = (self.hash >> 32) as u32;
            }
            if self.len == MAX_CHUNK || mask != 0 && self.hash & mask == 0 {
                self.len = 0;
                return Some(at);
            }
        }
        None
    }

    /// Bytes since the last boundary.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// What the last chunk began with, or this one, if it has come so far.
    pub(super) fn hint(&self) -> u32 {
        self.hint
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use units::Rng;

    fn lengths(keys: &Keys, content: &[u8], piece: usize) -> Vec<usize> {
        let (mut chunker, mut lengths, mut len) = (Chunker::default(), Vec::new(), 0);
        for mut piece in content.chunks(piece) {
            while let Some(n) = chunker.scan(keys, piece) {
                lengths.push(len + n);
                piece = &piece[n..];
                len = 0;
            }
            len += piece.len();
        }
        lengths
    }

    fn random(len: usize, seed: u64) -> Vec<u8> {
        let mut bytes = vec![0; len];
        Rng::new(seed).fill(&mut bytes);
        bytes
    }

    #[test]
    fn boundaries_depend_on_content_and_key_and_not_on_how_it_comes() {
        let (keys, content) = (Keys::new(&[1; 32]), random(1 << 20, 5));
        let whole = lengths(&keys, &content, content.len());
        for piece in [1, 63, 256, 1448, 65_536] {
            assert_eq!(lengths(&keys, &content, piece), whole);
        }
        assert!(whole.iter().all(|n| (MIN_CHUNK..=MAX_CHUNK).contains(n)));
        let average = whole.iter().sum::<usize>() / whole.len();
        assert!((AVERAGE * 3 / 4..AVERAGE * 3 / 2).contains(&average), "{average}");
        // L-DD-2: with another key there are others.
        assert_ne!(lengths(&Keys::new(&[2; 32]), &content, content.len()), whole);
    }

    #[test]
    fn an_insertion_moves_few_boundaries() {
        let (keys, mut content) = (Keys::new(&[1; 32]), random(1 << 20, 6));
        let ends = |content: &[u8]| -> Vec<usize> {
            let lengths = lengths(&keys, content, 4096).into_iter();
            let sum = |end: &mut usize, n: usize| {
                *end += n;
                Some(*end)
            };
            lengths.scan(0, sum).collect()
        };
        let before = ends(&content);
        content.splice(500_000..500_000, random(100, 7));
        let after = ends(&content);
        let kept = before.iter().filter(|end| {
            let now = if **end > 500_000 { **end + 100 } else { **end };
            after.contains(&now)
        });
        assert!(kept.count() + 4 >= before.len());
    }

    #[test]
    fn content_without_any_boundary_is_cut_at_the_longest() {
        let keys = Keys::new(&[1; 32]);
        let lengths = lengths(&keys, &vec![0; 200_000], 10_000);
        assert!(lengths.iter().all(|n| *n == lengths[0]), "{lengths:?}");
    }
}
