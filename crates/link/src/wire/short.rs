//! The short form of a STREAM frame: a packet whose header hint is 1…4 holds
//! one frame, `id, offset in that many bytes, data to the end`. The offset is
//! the byte's in the stream, truncated (spec/link.md, L-SF-1…4).

use super::{Reader, StreamId, WireError, Writer};

/// How many offset bytes serve a frame whose stream has `span` bytes between
/// the lowest that is not confirmed and the highest that was sent. `None` where
/// the short form cannot be used. Three eighths of the truncated range are for
/// the span, one eighth is for packets that arrive late (L-SF-2).
pub fn offset_len(span: u64) -> Option<usize> {
    (2..=4).find(|n| span <= (1u64 << (8 * n)) / 8 * 3)
}

/// How many packets behind the newest one a short frame of `n` offset bytes may
/// be and still be understood, for packets of at most `max_packet` bytes (L-SF-3).
pub fn late_limit(n: usize, max_packet: u64) -> u64 {
    (1u64 << (8 * n)) / 8 / max_packet.max(1)
}

/// Writes the head; answers its length.
pub fn write_head(w: &mut Writer<'_>, id: StreamId, offset: u64, n: usize) -> usize {
    let start = w.len();
    w.varint(id.0);
    w.bytes(&offset.to_be_bytes()[8 - n..]);
    w.len() - start
}

/// Reads the head: id and truncated offset; the rest is data.
pub fn read_head(payload: &[u8], n: usize) -> Result<(StreamId, u64, &[u8]), WireError> {
    let mut r = Reader::new(payload);
    let id = r.id()?;
    let truncated = r.bytes(n as u64)?.iter().fold(0u64, |a, b| a << 8 | u64::from(*b));
    Ok((id, truncated, r.rest()))
}

/// The full offset nearest to `reference` (the highest byte that arrived).
pub fn expand(truncated: u64, n: usize, reference: u64) -> u64 {
    let range = 1u64 << (8 * n);
    let candidate = reference & !(range - 1) | truncated;
    if candidate + range / 2 <= reference {
        candidate + range
    } else if candidate > reference + range / 2 && candidate >= range {
        candidate - range
    } else {
        candidate
    }
}
