//! zstd, one context each way for all streams of a node.

use units::{BitRate, Duration, Instant};
use zstd_safe::{CCtx, DCtx};

use super::block::{BadBlock, MAX_CODED, MAX_HEAD, MAX_RAW, MAX_SIZE_CODE, size_of};
use super::effort::Effort;
use crate::frame;

/// A clock of processor time, for what compression takes. Core crates have none of their own;
/// without it the levels follow from the table alone, and a simulation replays.
pub type Stopwatch = fn() -> Instant;

/// What every node has to refer to before there is history: first messages of HTTP, SMTP,
/// POP3, IMAP, DNS, XML and JSON. Never changed: a new one is a new parameter.
pub(super) const DICTIONARY: &[u8] = include_bytes!("dictionary.txt");
/// The dictionary precedes histories shorter than this.
const WITH_DICTIONARY: usize = 32 * 1024;

/// The time that compression and decompression have taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    /// Compression.
    pub compressing: Duration,
    /// Decompression.
    pub decompressing: Duration,
}

/// A compressor and a decompressor. They keep nothing from one block to the next.
pub struct Zstd {
    compressor: CCtx<'static>,
    decompressor: DCtx<'static>,
    /// Dictionary and history in one piece.
    prefix: Vec<u8>,
    /// A frame with its magic number.
    frame: Vec<u8>,
    effort: Effort,
    stopwatch: Option<Stopwatch>,
    spent: Spent,
}

impl Default for Zstd {
    fn default() -> Zstd {
        Zstd::new(None)
    }
}

impl Zstd {
    /// A pair that measures itself by `stopwatch`. It takes memory with its first use: up
    /// to 5 MB at the highest level.
    pub fn new(stopwatch: Option<Stopwatch>) -> Zstd {
        Zstd {
            compressor: CCtx::create(),
            decompressor: DCtx::create(),
            prefix: Vec::new(),
            frame: Vec::new(),
            effort: Effort::new(),
            stopwatch,
            spent: Spent::default(),
        }
    }

    /// The time taken so far, if there is a stopwatch.
    pub fn spent(&self) -> Spent {
        self.spent
    }

    /// The level for a block, if it is worth its time.
    pub(super) fn level(
        &mut self,
        rate: BitRate,
        raw: usize,
        prefix: usize,
        ratio: u64,
    ) -> Option<i32> {
        let level = self.effort.level(rate, raw, prefix, ratio);
        if level.is_none() {
            // Nothing is seen of a processor that is not asked.
            self.effort.forget();
        }
        level
    }

    /// The code of the longest history for which the highest level has time; 0: for none.
    pub(super) fn reach(&self, rate: BitRate, raw: usize, ratio: u64) -> u8 {
        let has_time = |code: &u8| self.effort.has_time(rate, raw, size_of(*code), ratio);
        (1..=MAX_SIZE_CODE).rev().find(has_time).unwrap_or(0)
    }

    /// Compresses `content`; answers the frame less its magic number, with zeros behind it
    /// where it is so small that it would be taken for a bomb.
    pub(super) fn compress(&mut self, level: i32, content: &[u8], history: &[u8]) -> Option<&[u8]> {
        self.set_prefix(history);
        let begin = self.stopwatch.map(|now| now());
        let zstd = &mut self.compressor;
        let coded = frame::pack(zstd, &mut self.frame, content, &self.prefix, level);
        if let (Some(begin), Some(now)) = (begin, self.stopwatch) {
            let time = now().since(begin);
            self.effort.observe(level, content.len(), history.len(), time);
            self.spent.compressing += time;
        }
        coded
    }

    /// How much content a frame says that it has: never more than a block may have.
    pub(super) fn content_size(&mut self, coded: &[&[u8]]) -> Result<usize, BadBlock> {
        let len: usize = coded.iter().map(|piece| piece.len()).sum();
        if len > MAX_CODED {
            return Err(BadBlock::Head);
        }
        frame::join(&mut self.frame, coded);
        let said = frame::content_size(&self.frame).ok_or(BadBlock::Frame)?;
        let most = MAX_RAW.min((len + MAX_HEAD) * frame::MAX_EXPANSION) as u64;
        if said > most { Err(BadBlock::Bomb) } else { Ok(said as usize) }
    }

    pub(super) fn set_prefix(&mut self, history: &[u8]) {
        self.prefix.clear();
        if history.len() < WITH_DICTIONARY {
            self.prefix.extend_from_slice(DICTIONARY);
        } else {
            self.prefix.push(frame::RAW);
        }
        self.prefix.extend_from_slice(history);
    }

    /// Decompresses what [`Zstd::content_size`] was shown, after [`Zstd::set_prefix`].
    pub(super) fn decompress(&mut self, out: &mut [u8]) -> Result<(), BadBlock> {
        let begin = self.stopwatch.map(|now| now());
        let made = frame::unpack(&mut self.decompressor, &self.frame, &self.prefix, out);
        if let (Some(begin), Some(now)) = (begin, self.stopwatch) {
            self.spent.decompressing += now().since(begin);
        }
        if made { Ok(()) } else { Err(BadBlock::Frame) }
    }
}
