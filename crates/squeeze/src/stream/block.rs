//! The heads of blocks.
//!
//! ```text
//! n, kind    a number: 0xxxxxkk, 10xxxxxx xxxxxxkk, 110xxxxx xxxxxxxx xxxxxxkk
//! kk 0       stored: n bytes (1 … 1,023), which enter the history
//!            n = 0: sizes 1, of which only what is kept from now on counts; no content
//! kk 1       run: n bytes (1 … 2^19 − 1) as they are; they do not enter the history
//! kk 2       zstd: sizes 1 ‖ n bytes: a frame (RFC 8878) less its magic number, zeros
//! kk 3       n = 0: all that follows is as it is
//! sizes      low half: how much history is used, high half: how much is kept from now on
//!            0 nothing, c: 512 × 2^c bytes, c at most 10
//! ```

use std::fmt;

/// The most content of one block.
pub const MAX_RAW: usize = 64 * 1024;
/// The most bytes of a stored block, and of the frame of a compressed one.
pub(super) const MAX_STORED: usize = 1023;
pub(super) const MAX_CODED: usize = 64 * 1024;
/// The longest run.
pub(super) const MAX_RUN: usize = (1 << 19) - 1;
/// The longest head, sizes included.
pub(super) const MAX_HEAD: usize = 4;
/// Of the history a block uses up to so many times its content, and always so much, or the
/// next code above that (L-CO-2): it has to be looked through for each block.
pub(super) const PREFIX_TIMES: usize = 32;
pub(super) const PREFIX_LEAST: usize = 8 * 1024;
/// The highest code of a size: 512 kB.
pub(super) const MAX_SIZE_CODE: u8 = 10;
/// Why a direction of a stream cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BadBlock {
    /// A head that means nothing, or sizes out of range.
    Head,
    /// More content than a block may have, or more than 100 times its size.
    Bomb,
    /// The frame does not decompress to what it promised.
    Frame,
    /// The direction ends within a block.
    Cut,
    /// More history than this node offered to keep.
    History,
}

impl fmt::Display for BadBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            BadBlock::Head => "block with a bad head",
            BadBlock::Bomb => "decompression bomb",
            BadBlock::Frame => "block that does not decompress",
            BadBlock::Cut => "block cut off",
            BadBlock::History => "history beyond the offer",
        })
    }
}

/// What a head says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Head {
    /// How much history is kept from now on.
    Keep(u8),
    Stored(usize),
    Run(usize),
    Zstd {
        len: usize,
        used: u8,
        kept: u8,
    },
    Rest,
}

/// The size that a code stands for.
pub(super) fn size_of(code: u8) -> usize {
    if code == 0 { 0 } else { 512 << code }
}

/// The smallest code that covers `len`, and the largest that is covered by it.
pub(super) fn code_above(len: usize) -> u8 {
    (0..MAX_SIZE_CODE).find(|code| size_of(*code) >= len).unwrap_or(MAX_SIZE_CODE)
}
pub(super) fn code_below(len: usize) -> u8 {
    (0..=MAX_SIZE_CODE).rev().find(|code| size_of(*code) <= len).unwrap_or(0)
}

impl Head {
    /// Writes the head; answers its length.
    pub fn write(self, out: &mut [u8; MAX_HEAD]) -> usize {
        let (n, kind, sizes) = match self {
            Head::Keep(kept) => (0, 0, Some(kept << 4)),
            Head::Stored(n) => (n, 0, None),
            Head::Run(n) => (n, 1, None),
            Head::Zstd { len, used, kept } => (len, 2, Some(kept << 4 | used)),
            Head::Rest => (0, 3, None),
        };
        let v = (n << 2 | kind) as u32;
        let len = match v {
            0..0x80 => {
                out[0] = v as u8;
                1
            }
            0x80..0x4000 => {
                out[..2].copy_from_slice(&(0x8000 | v as u16).to_be_bytes());
                2
            }
            _ => {
                out[..3].copy_from_slice(&(0xc0_0000 | v).to_be_bytes()[1..]);
                3
            }
        };
        match sizes {
            Some(sizes) => {
                out[len] = sizes;
                len + 1
            }
            None => len,
        }
    }

    /// Reads a head with its length; `None` if it is not all there.
    pub fn read(bytes: &[u8]) -> Result<Option<(Head, usize)>, BadBlock> {
        let Some(&first) = bytes.first() else { return Ok(None) };
        let (len, mask) = match first {
            0..0x80 => (1, 0x7f),
            0x80..0xc0 => (2, 0x3f),
            0xc0..0xe0 => (3, 0x1f),
            _ => return Err(BadBlock::Head),
        };
        let Some(rest) = bytes.get(1..len) else { return Ok(None) };
        let v = rest.iter().fold(usize::from(first & mask), |v, b| v << 8 | usize::from(*b));
        let n = v >> 2;
        match v & 3 {
            0 if n == 0 => {
                let Some(&sizes) = bytes.get(len) else { return Ok(None) };
                match sizes >> 4 {
                    kept @ 0..=MAX_SIZE_CODE if sizes & 15 == 0 => {
                        Ok(Some((Head::Keep(kept), len + 1)))
                    }
                    _ => Err(BadBlock::Head),
                }
            }
            0 if (1..=MAX_STORED).contains(&n) => Ok(Some((Head::Stored(n), len))),
            1 if n > 0 => Ok(Some((Head::Run(n), len))),
            2 if (1..=MAX_CODED).contains(&n) => {
                let Some(&sizes) = bytes.get(len) else { return Ok(None) };
                let (used, kept) = (sizes & 15, sizes >> 4);
                if used > MAX_SIZE_CODE || kept > MAX_SIZE_CODE {
                    return Err(BadBlock::Head);
                }
                Ok(Some((Head::Zstd { len: n, used, kept }, len + 1)))
            }
            3 if n == 0 => Ok(Some((Head::Rest, len))),
            _ => Err(BadBlock::Head),
        }
    }
}
