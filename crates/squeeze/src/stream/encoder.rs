//! From content to blocks.

use units::{BitRate, Duration};

use super::block::{
    Head, MAX_HEAD, MAX_RAW, MAX_RUN, PREFIX_LEAST, PREFIX_TIMES, code_above, code_below, size_of,
};
use super::history::History;
use super::zstd::Zstd;

/// What the link allows for the next bytes.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// The link's rate.
    pub rate: BitRate,
    /// The longest block that reaches the far node whatever other streams hold there: the
    /// reserve of a stream, at least 1,024.
    pub longest: usize,
    /// How much history the stream may make both sides keep.
    pub history: usize,
}

/// Content shorter than this has nothing to be found in it.
const TINY: usize = 24;
/// By this much content at the latest it is known whether it shrinks.
const TRIAL: usize = 4 * 1024;
/// Content that is stored because it is short and did not shrink, before it goes as a run.
const STORED: usize = 512;
/// Runs are as long as a trial at first and double up to 64 trials: 256 kB.
const MOST_FAILURES: u32 = 6;
/// A run cannot be cut, so none takes the link longer than a second, or less than this: what
/// follows it may shrink. A head of four bytes is a fortieth of a percent of it.
const LEAST_LONGEST_RUN: u64 = 16 * 1024;
/// The least and the most content of a block: a quarter of a second of the link, and a
/// second once eight times as much has gone before, by what compressed bytes become.
const LEAST_BLOCK: usize = 1024;
const USUAL_RATIO: u64 = 3;
/// 128 kB: more history than this is used where the highest level has time for it too. A
/// megabyte of source code becomes 24.4 % with 128 kB at level 15 or 512 kB at level 9, so
/// that below the highest level another level is worth more than history; at level 19 128,
/// 256 and 512 kB give 23.0, 22.3 and 21.8 %.
const USUAL_REACH: u8 = 8;

/// One direction of a stream on its way to the link.
#[derive(Debug, Default)]
pub struct BlockEncoder {
    history: History,
    /// Bytes left of the run that was announced.
    run: usize,
    /// Nothing more is compressed, or nothing behind the run that was announced.
    rest: bool,
    stops: bool,
    /// The last block shrank.
    shrinks: bool,
    /// Runs in a row.
    failures: u32,
    /// Content stored since the last block that shrank.
    stored: usize,
    /// Content so far.
    content: u64,
    /// What 256 bytes became lately; 0: not known.
    ratio: u64,
}

impl BlockEncoder {
    /// A direction that goes as it is: one byte says so, once.
    pub fn plain() -> BlockEncoder {
        BlockEncoder { rest: true, ..BlockEncoder::default() }
    }

    /// From here on the direction goes as it is: a byte says so.
    pub fn stop(&mut self) {
        self.stops = true;
    }

    /// Bytes of history that both sides keep for this direction.
    pub fn kept(&self) -> usize {
        self.history.kept()
    }

    /// Content that one call makes at most one block of, beside what passes as it is: more
    /// would keep the node busy for longer than a block may.
    pub fn appetite(&self, rate: BitRate) -> usize {
        if self.rest { usize::MAX } else { self.run + self.usual_block(rate).min(self.trial()) }
    }

    #[cfg(test)]
    pub(super) fn memory(&self) -> usize {
        size_of_val(self) + self.history.memory()
    }

    /// The most bytes that `content` bytes may take on the stream.
    pub fn worst(content: usize) -> usize {
        // Stored pieces are 512 bytes at least, or end a call; a run has four bytes.
        content + content / 128 + 2 * MAX_HEAD
    }

    /// Is the next byte of content the stream's, as it is?
    pub fn passes(&self) -> bool {
        self.run > 0 || self.rest && self.content > 0
    }

    /// Are the next `n` bytes of content the stream's, as they are? Then their encoding is done.
    pub fn pass(&mut self, n: usize) -> bool {
        let begun = self.rest && self.content > 0;
        let passes = begun || self.run >= n;
        if passes {
            self.content += n as u64;
            self.run = self.run.saturating_sub(n);
        }
        passes
    }

    /// Compresses all of `content` and gives it to `put`, piece by piece.
    pub fn encode(
        &mut self,
        zstd: &mut Zstd,
        terms: &Terms,
        mut content: &[u8],
        mut put: impl FnMut(&[u8]),
    ) {
        if self.rest {
            if self.content == 0 && !content.is_empty() {
                put_head(Head::Rest, &mut put);
            }
            self.content += content.len() as u64;
            return put(content);
        }
        while !content.is_empty() {
            if self.run == 0 && self.stops {
                self.rest = true;
                put_head(Head::Rest, &mut put);
                self.content += content.len() as u64;
                return put(content);
            }
            let n = if self.run > 0 {
                let n = self.run.min(content.len());
                self.run -= n;
                put(&content[..n]);
                n
            } else {
                self.block(zstd, terms, content, &mut put)
            };
            self.content += n as u64;
            content = &content[n..];
        }
    }

    /// Codes the next block, or announces a run; answers how much of `content` is done.
    fn block(
        &mut self,
        zstd: &mut Zstd,
        terms: &Terms,
        content: &[u8],
        put: &mut impl FnMut(&[u8]),
    ) -> usize {
        // What would become too long is not tried first.
        let ratio = if self.ratio == 0 { 256 / USUAL_RATIO } else { self.ratio };
        let fits = (terms.longest as u64 * 256 / ratio.max(1) * 7 / 8) as usize;
        let most = self.usual_block(terms.rate).min(self.trial()).min(fits.max(LEAST_BLOCK));
        let mut n = most.min(content.len());
        loop {
            let reach = zstd.reach(terms.rate, n, ratio).max(USUAL_REACH);
            let used = code_above(self.history.len().min(PREFIX_LEAST.max(n * PREFIX_TIMES)));
            let used = used.min(reach);
            let history = self.history.tail(size_of(used));
            let level = zstd.level(terms.rate, n, history.len(), ratio);
            // Nothing is found where nothing was found before and all bytes are as frequent.
            let hopeless = self.failures > 0 && looks_random(&content[..n]);
            let coded = level
                .filter(|_| n >= TINY && !hopeless)
                .and_then(|level| zstd.compress(level, &content[..n], history))
                .filter(|coded| coded.len() + MAX_HEAD + n / 16 < n);
            let Some(coded) = coded else {
                let short = level.is_some() && self.stored + n < STORED;
                return self.as_it_is(terms, content, if short { n } else { 0 }, put);
            };
            if coded.len() + MAX_HEAD > terms.longest {
                n /= 2;
                continue;
            }
            // What is kept already stays: the next block may have the time.
            let reach = reach.max(code_below(self.history.kept()));
            let wanted = code_above(self.history.len() + n).min(reach);
            let kept = code_below(terms.history).min(wanted);
            put_head(Head::Zstd { len: coded.len(), used, kept }, put);
            put(coded);
            let now = coded.len() as u64 * 256 / n as u64;
            self.ratio = if self.ratio == 0 { now.max(1) } else { (self.ratio * 3 + now) / 4 + 1 };
            self.history.push(&content[..n], size_of(kept));
            (self.shrinks, self.failures, self.stored) = (true, 0, 0);
            return n;
        }
    }

    /// Stores `short` bytes; none: goes over to a run.
    fn as_it_is(
        &mut self,
        terms: &Terms,
        content: &[u8],
        short: usize,
        put: &mut impl FnMut(&[u8]),
    ) -> usize {
        if short > 0 {
            // What begins small may say the same again.
            let kept = code_above(STORED).min(code_below(terms.history));
            if self.history.kept() == 0 && kept > 0 {
                put_head(Head::Keep(kept), put);
                self.history.commit(0, size_of(kept));
            }
            put_head(Head::Stored(short), put);
            put(&content[..short]);
            let kept = self.history.kept();
            self.history.push(&content[..short], kept);
            self.stored += short;
            return short;
        }
        let second = terms.rate.bytes_in(Duration::from_secs(1)).0.max(LEAST_LONGEST_RUN);
        self.run = (TRIAL << self.failures).min(MAX_RUN.min(second as usize));
        self.failures = (self.failures + 1).min(MOST_FAILURES);
        (self.shrinks, self.stored) = (false, 0);
        put_head(Head::Run(self.run), put);
        0
    }

    /// The most content of a block, as far as it is known to shrink.
    fn trial(&self) -> usize {
        if self.shrinks { MAX_RAW } else { TRIAL }
    }

    fn usual_block(&self, rate: BitRate) -> usize {
        let second = rate.bytes_in(Duration::from_secs(1)).0.saturating_mul(USUAL_RATIO);
        let n = (second / 4).max((self.content / 8).min(second));
        (n as usize).clamp(LEAST_BLOCK, MAX_RAW)
    }
}

/// Are all byte values as frequent as in random data? By Pearson's chi-squared test with 255
/// degrees of freedom: random data has 255 ± 23, and one piece of thirty more than two
/// deviations above that, which only costs a trial. Content of which a share f is said twice
/// has 255 (1 + 2 f). It takes a tenth of the time that the lowest level takes.
fn looks_random(content: &[u8]) -> bool {
    const TELLING: usize = 1024;
    const MOST: u64 = 255 + 2 * 23;
    if content.len() < TELLING {
        return false;
    }
    // Two counters in turn: bytes that are the same do not wait for one another.
    let mut counts = [[0u32; 256]; 2];
    for pair in content.chunks(2) {
        for (counts, byte) in counts.iter_mut().zip(pair) {
            counts[usize::from(*byte)] += 1;
        }
    }
    let [even, odd] = &counts;
    let squares: u64 = even.iter().zip(odd).map(|(a, b)| u64::from(a + b).pow(2)).sum();
    let n = content.len() as u64;
    squares * 256 <= n * (n + MOST)
}

fn put_head(head: Head, put: &mut impl FnMut(&[u8])) {
    let mut bytes = [0; MAX_HEAD];
    let n = head.write(&mut bytes);
    put(&bytes[..n]);
}

#[cfg(test)]
mod tests {
    use units::Rng;

    use super::*;

    #[test]
    fn what_passes_is_what_would_have_been_coded() {
        let terms = Terms { rate: BitRate::from_mbps(2), longest: 30_000, history: 1 << 16 };
        let (mut zstd, mut rng) = (Zstd::new(None), Rng::new(1));
        let (mut plain, mut passing) = (BlockEncoder::default(), BlockEncoder::default());
        let mut passed = 0;
        for _ in 0..500 {
            let mut piece = vec![0; 1 + rng.below(5_000) as usize];
            rng.fill(&mut piece);
            let (mut a, mut b) = (Vec::new(), Vec::new());
            plain.encode(&mut zstd, &terms, &piece, |bytes| a.extend_from_slice(bytes));
            if passing.pass(piece.len()) {
                passed += 1;
                b.extend_from_slice(&piece);
            } else {
                passing.encode(&mut zstd, &terms, &piece, |bytes| b.extend_from_slice(bytes));
            }
            assert_eq!(a, b);
        }
        assert!(passed > 400, "{passed} of 500");
        let mut rest = BlockEncoder::plain();
        assert!(!rest.pass(9), "a byte says so first");
        rest.encode(&mut zstd, &terms, &[7; 9], |_| {});
        assert!(rest.pass(9));
    }

    #[test]
    fn what_is_stopped_goes_as_it_is_from_there_on() {
        use super::super::{BlockDecoder, Shown};
        let terms = Terms { rate: BitRate::from_mbps(2), longest: 30_000, history: 1 << 16 };
        let (mut rng, text) = (Rng::new(1), b"the same again and again, ".repeat(400));
        for round in 0..40 {
            let (mut zstd, mut encoder) = (Zstd::new(None), BlockEncoder::default());
            let (mut content, mut coded) = (Vec::new(), Vec::new());
            let mut stopped = None;
            for n in 0..6 {
                let mut piece = text[..1 + rng.below(text.len() as u64 - 1) as usize].to_vec();
                if rng.below(2) == 0 {
                    rng.fill(&mut piece);
                }
                if n == round % 6 {
                    encoder.stop();
                    stopped = Some(coded.len());
                }
                let before = coded.len();
                if encoder.pass(piece.len()) {
                    coded.extend_from_slice(&piece);
                } else {
                    encoder.encode(&mut zstd, &terms, &piece, |b| coded.extend_from_slice(b));
                }
                if stopped.is_some() {
                    assert!(coded.len() - before >= piece.len(), "it shrank");
                }
                content.extend_from_slice(&piece);
            }
            let (mut decoder, mut rest, mut out) =
                (BlockDecoder::default(), &coded[..], Vec::new());
            loop {
                let n = match decoder.show(&mut zstd, &[rest]).unwrap() {
                    Shown::Head(n) => {
                        rest = &rest[n..];
                        continue;
                    }
                    Shown::Content(bytes) => {
                        out.extend_from_slice(bytes);
                        bytes.len()
                    }
                    Shown::AsItIs(n) => {
                        let n = rest.len().min(usize::try_from(n).unwrap_or(usize::MAX));
                        out.extend_from_slice(&rest[..n]);
                        n
                    }
                    Shown::More => break,
                };
                if n == 0 {
                    break;
                }
                rest = &rest[decoder.took(n)..];
            }
            assert!(out == content, "round {round}");
        }
    }

    #[test]
    fn what_shrinks_by_a_third_does_not_look_random() {
        let mut rng = Rng::new(1);
        let mut passed = 0;
        for _ in 0..200 {
            let mut piece = [0; TRIAL];
            rng.fill(&mut piece);
            passed += usize::from(looks_random(&piece));
            piece.copy_within(..TRIAL / 3, TRIAL / 2);
            assert!(!looks_random(&piece));
            rng.fill(&mut piece);
            piece.iter_mut().for_each(|byte| *byte &= 0xbf);
            assert!(!looks_random(&piece));
        }
        assert!(passed >= 180, "{passed} of 200");
        assert!(!looks_random(&[0; TRIAL]) && !looks_random(&[]));
    }
}
