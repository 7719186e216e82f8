//! What the fuzzers call; see `fuzz/`.

use crate::stream::{BlockDecoder, Shown, Zstd};

/// A direction of a compressed stream, as a peer may send it: no panic, and no more content than
/// a hundred times what came.
pub fn stream(bytes: &[u8]) {
    let (mut zstd, mut decoder) = (Zstd::default(), BlockDecoder::default());
    let (mut at, mut content) = (0, 0);
    loop {
        let rest = &bytes[at..];
        at += match decoder.show(&mut zstd, &[rest]) {
            Ok(Shown::Content(shown)) => {
                let n = shown.len();
                assert!(n > 0, "content is never empty");
                content += n;
                decoder.took(n)
            }
            Ok(Shown::AsItIs(n)) if !rest.is_empty() => {
                let n = (n as usize).min(rest.len());
                content += n;
                decoder.took(n)
            }
            Ok(Shown::Head(n)) => n,
            Ok(Shown::AsItIs(_) | Shown::More) | Err(_) => break,
        };
        assert!(content <= at * 100, "{content} of {at}");
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_corpus_of_coded_streams_replays() {
        corpus::replay("coded", super::stream);
    }
}
