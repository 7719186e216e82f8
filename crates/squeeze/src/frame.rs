//! Frames of zstd (RFC 8878) as they travel: less the magic number, with zeros behind those
//! that are so short that they would be taken for a bomb.

use zstd_safe::{CCtx, DCtx};

/// What every frame begins with (RFC 8878, 3.1.1); it does not travel.
const MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// The most that one byte that travels may become (spec/link.md, L-CO-4, L-HC-6).
pub(crate) const MAX_EXPANSION: usize = 100;
/// What stands before a dictionary that is what hosts sent: it must not be taken for one of
/// zstd's own format, which begins with a magic number (RFC 8878, 5).
pub(crate) const RAW: u8 = b'\n';

/// Compresses `content` with `dictionary`; answers what travels, which lies in `frame`. `None`
/// where zstd fails.
pub(crate) fn pack<'a>(
    zstd: &mut CCtx<'_>,
    frame: &'a mut Vec<u8>,
    content: &[u8],
    dictionary: &[u8],
    level: i32,
) -> Option<&'a [u8]> {
    let room = zstd_safe::compress_bound(content.len());
    // Grows once: what it has is written over.
    frame.resize(room.max(frame.len()), 0);
    let len = zstd.compress_using_dict(&mut frame[..], content, dictionary, level).ok()?;
    let least = MAGIC.len() + content.len() / MAX_EXPANSION + 1;
    if len < least {
        frame[len..least].fill(0);
    }
    frame[..len.max(least)].strip_prefix(&MAGIC)
}

/// Puts a frame together of the `pieces` that travelled.
pub(crate) fn join(frame: &mut Vec<u8>, pieces: &[&[u8]]) {
    frame.clear();
    frame.extend_from_slice(&MAGIC);
    for piece in pieces {
        frame.extend_from_slice(piece);
    }
}

/// The bytes that the frame says it becomes, at least one; `None` where it says nothing.
pub(crate) fn content_size(frame: &[u8]) -> Option<u64> {
    zstd_safe::get_frame_content_size(frame).ok()?.filter(|n| *n > 0)
}

/// Decompresses `frame`, behind which there may be zeros; false if it does not become exactly
/// `out`.
pub(crate) fn unpack(zstd: &mut DCtx<'_>, frame: &[u8], dictionary: &[u8], out: &mut [u8]) -> bool {
    let Ok(end) = zstd_safe::find_frame_compressed_size(frame) else { return false };
    zstd.decompress_using_dict(out, &frame[..end], dictionary) == Ok(out.len())
}
