//! What files are made of: the same bytes at both ends, from a number.

use std::io;

use units::Rng;

use super::PIECE;

/// Text in English, longer than any file that is to be one: what this project says of
/// itself. Saying it again is what a compressor would see through.
const TEXT: [&str; 9] = [
    include_str!("../../../../spec/link.md"),
    include_str!("../../../../docs/operators-guide.md"),
    include_str!("../../../../ARCHITECTURE.md"),
    include_str!("../../../../docs/emulator.md"),
    include_str!("../../../../docs/lab.md"),
    include_str!("../../../../README.md"),
    include_str!("../../../../docs/compression.md"),
    include_str!("../../../../CHANGELOG.md"),
    include_str!("../../../../LICENSE-APACHE"),
];

/// The content of one file.
pub enum Content {
    /// Pseudo-random: it cannot be compressed.
    Noise(Rng),
    /// Text, from this place of it on.
    Text(usize),
}

impl Content {
    /// The content that `seed` means.
    pub fn new(seed: u64, text: bool) -> Content {
        match text {
            // A prime, so that files of one page do not overlap where they are short.
            true => Content::Text((seed as usize).wrapping_mul(9_973) % text_len()),
            false => Content::Noise(Rng::new(seed)),
        }
    }

    /// The next bytes.
    pub fn fill(&mut self, piece: &mut [u8]) {
        match self {
            Content::Noise(rng) => rng.fill(piece),
            Content::Text(at) => {
                let len = text_len();
                let all = || TEXT.iter().flat_map(|t| t.bytes());
                let from = all().cycle().skip(*at);
                piece.iter_mut().zip(from).for_each(|(to, byte)| *to = byte);
                *at = (*at + piece.len()) % len;
            }
        }
    }
}

fn text_len() -> usize {
    TEXT.iter().map(|t| t.len()).sum()
}

/// Compares what comes with what must come.
pub struct Checker {
    content: Content,
    expected: Vec<u8>,
    /// Bytes so far.
    pub position: u64,
}

impl Checker {
    /// Nothing has come yet.
    pub fn new(content: Content) -> Checker {
        Checker { content, expected: vec![0; PIECE], position: 0 }
    }

    /// The next bytes came.
    ///
    /// # Errors
    /// If they are others than must come.
    pub fn next(&mut self, mut piece: &[u8]) -> io::Result<()> {
        while !piece.is_empty() {
            let at = (self.position % PIECE as u64) as usize;
            if at == 0 {
                self.content.fill(&mut self.expected);
            }
            let n = piece.len().min(PIECE - at);
            if piece[..n] != self.expected[at..at + n] {
                let near = self.position;
                return Err(io::Error::other(format!(
                    "wrong content within 64 kB after byte {near}"
                )));
            }
            self.position += n as u64;
            piece = &piece[n..];
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_goes_on_where_it_was_and_begins_anew_at_its_end() {
        let whole: String = TEXT.concat();
        let mut content = Content::new(0, true);
        let mut got = vec![0; whole.len() + 100];
        for piece in got.chunks_mut(7_000) {
            content.fill(piece);
        }
        assert!(got[..whole.len()] == *whole.as_bytes());
        assert!(got[whole.len()..] == whole.as_bytes()[..100]);
        let start = |seed| {
            let mut piece = [0; 64];
            Content::new(seed, true).fill(&mut piece);
            piece
        };
        assert_ne!(start(1), start(2));
        assert_eq!(start(1), start(1));
    }
}
