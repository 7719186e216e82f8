//! Stream bytes in memory: fixed blocks from a pool, so that an idle stream
//! holds nothing and no packet costs an allocation.
//!
//! [`SendBuffer`] keeps what the peer has not confirmed, [`RecvBuffer`] what
//! arrived (in any order, each byte written once to its final place) and was
//! not yet taken.

use std::collections::VecDeque;
use std::ops::Range;

use crate::numbers::Numbers;
use crate::ranges::RangeSet;

/// Bytes of one block: large enough that a 64 kB read spans few, small enough
/// that ten thousand short exchanges fit in memory.
const BLOCK: usize = 8 * 1024;
/// What lies apart from the rest has parts of a block, of so many bytes each.
const PART: usize = BLOCK / PARTS;
const PARTS: usize = 4;
/// Blocks kept for reuse: 4 MB, what a 100 Mbit/s link turns over in 0.3 s; and parts.
const KEPT: usize = 512;
const KEPT_PARTS: usize = 256;
/// Bytes of memory that a stream's holes may leave nearly empty, and how many times what arrived
/// all of it may take beyond those.
const SPARSE: u64 = 64 * 1024;
const SPARSE_TIMES: u64 = 4;
/// Longer pieces keep to that by themselves: bytes that lie together and are at least so many touch
/// so few parts.
const LONG_PIECE: u64 = (2 * PART) as u64 / SPARSE_TIMES;

type Block = Box<[u8; BLOCK]>;
type Part = Box<[u8; PART]>;

/// Free blocks and parts, and the bytes of those in use and of what else streams take.
#[derive(Default)]
pub(crate) struct Pool {
    free: Vec<Block>,
    free_parts: Vec<Part>,
    in_use: usize,
}

fn zeros<const N: usize>() -> Box<[u8; N]> {
    vec![0u8; N].into_boxed_slice().try_into().expect("N bytes were asked for")
}

impl Pool {
    fn take(&mut self) -> Block {
        self.in_use += BLOCK;
        self.free.pop().unwrap_or_else(zeros)
    }

    fn take_part(&mut self) -> Part {
        self.in_use += PART;
        self.free_parts.pop().unwrap_or_else(zeros)
    }

    /// Answers how many bytes come back.
    fn give(&mut self, place: Place) -> usize {
        let bytes = place.bytes();
        self.in_use -= bytes;
        match place {
            Place::Empty => {}
            Place::Whole(block) if self.free.len() < KEPT => self.free.push(block),
            Place::Whole(_) => {}
            Place::Parts(parts) => {
                let room = KEPT_PARTS.saturating_sub(self.free_parts.len());
                self.free_parts.extend(parts.into_iter().flatten().take(room));
            }
        }
        bytes
    }

    /// Memory apart from blocks took `before` bytes, and takes `now`.
    fn count(&mut self, before: usize, now: usize) {
        self.in_use = self.in_use + now - before;
    }

    /// Gives the free ones back.
    pub fn give_back(&mut self) {
        self.free = Vec::new();
    }

    /// Bytes of memory that streams hold now.
    pub fn used(&self) -> u64 {
        self.in_use as u64
    }
}

/// Where a block's bytes lie.
#[derive(Default)]
enum Place {
    /// Nothing has been written.
    #[default]
    Empty,
    Whole(Block),
    Parts(Box<[Option<Part>; PARTS]>),
}

impl Place {
    fn bytes(&self) -> usize {
        match self {
            Place::Empty => 0,
            Place::Whole(_) => BLOCK,
            Place::Parts(parts) => parts.iter().flatten().count() * PART,
        }
    }

    /// The bytes from `at` on that lie together; `apart`: where there are none yet, a part will do.
    fn get_mut(&mut self, pool: &mut Pool, held: &mut usize, at: usize, apart: bool) -> &mut [u8] {
        if let Place::Empty = self {
            *self = match apart {
                true => Place::Parts(Box::default()),
                false => Place::Whole(pool.take()),
            };
            *held += self.bytes();
        }
        match self {
            Place::Empty => &mut [],
            Place::Whole(block) => &mut block[at..],
            Place::Parts(parts) => {
                let part = parts[at / PART].get_or_insert_with(|| {
                    *held += PART;
                    pool.take_part()
                });
                &mut part[at % PART..]
            }
        }
    }
}

/// Blocks that cover the stream bytes from `base` (a block's start) upward.
#[derive(Default)]
struct Blocks {
    base: u64,
    blocks: VecDeque<Place>,
    /// Bytes of memory that they take.
    held: usize,
}

impl Blocks {
    fn write(&mut self, pool: &mut Pool, mut offset: u64, mut data: &[u8], apart: bool) {
        while !data.is_empty() {
            let (index, at) = self.locate(offset);
            while self.blocks.len() <= index {
                self.blocks.push_back(Place::Empty);
            }
            let room = self.blocks[index].get_mut(pool, &mut self.held, at, apart);
            let n = data.len().min(room.len());
            room[..n].copy_from_slice(&data[..n]);
            offset += n as u64;
            data = &data[n..];
        }
    }

    /// The bytes at `offset` as far as they lie together, at most `max`.
    fn slice(&self, offset: u64, max: u64) -> &[u8] {
        let (index, at) = self.locate(offset);
        match self.blocks.get(index) {
            Some(Place::Whole(block)) => &block[at..at + max.min((BLOCK - at) as u64) as usize],
            Some(Place::Parts(parts)) => {
                let (part, at) = (&parts[at / PART], at % PART);
                let n = max.min((PART - at) as u64) as usize;
                part.as_ref().map_or(&[], |part| &part[at..at + n])
            }
            Some(Place::Empty) | None => &[],
        }
    }

    /// Gives back the blocks that lie wholly below `offset`.
    fn release_below(&mut self, pool: &mut Pool, offset: u64) {
        while self.base + BLOCK as u64 <= offset {
            let Some(place) = self.blocks.pop_front() else {
                self.base = offset - offset % BLOCK as u64;
                return;
            };
            self.held -= pool.give(place);
            self.base += BLOCK as u64;
        }
    }

    /// Gives everything back, for a stream that holds nothing at `offset`.
    fn release_all(&mut self, pool: &mut Pool, offset: u64) {
        for place in std::mem::take(&mut self.blocks) {
            pool.give(place);
        }
        self.held = 0;
        self.base = offset - offset % BLOCK as u64;
    }

    /// Is there memory for the byte at `offset`?
    fn has(&self, offset: u64) -> bool {
        !self.slice(offset, 1).is_empty()
    }

    fn locate(&self, offset: u64) -> (usize, usize) {
        let from_base = (offset - self.base) as usize;
        (from_base / BLOCK, from_base % BLOCK)
    }
}

/// What was written to a stream and is not confirmed by the peer.
#[derive(Default)]
pub(crate) struct SendBuffer {
    blocks: Blocks,
    /// All below is confirmed and gone.
    acked_to: u64,
    /// Confirmed pieces above `acked_to`.
    acked: Numbers,
    /// The next byte that was never sent.
    next: u64,
    /// The end of what was written.
    end: u64,
    /// Sent, deemed lost, to be sent again.
    lost: Numbers,
}

impl SendBuffer {
    pub fn write(&mut self, pool: &mut Pool, data: &[u8]) {
        self.blocks.write(pool, self.end, data, false);
        self.end += data.len() as u64;
    }

    /// Chooses up to `max` bytes to send: what was lost first, then, up to the
    /// stream offset `limit`, what was never sent.
    pub fn take(&mut self, max: u64, limit: u64) -> Option<Range<u64>> {
        if max == 0 {
            return None;
        }
        if let Some(range) = self.lost.pop_first(max) {
            return Some(range);
        }
        let end = self.end.min(limit).min(self.next.saturating_add(max));
        if end <= self.next {
            return None;
        }
        let range = self.next..end;
        self.next = end;
        Some(range)
    }

    /// Where the next `take` would start, for the size of its header.
    pub fn next_offset(&self, limit: u64) -> Option<u64> {
        match self.lost.first() {
            Some(range) => Some(range.start),
            None => (self.next < self.end.min(limit)).then_some(self.next),
        }
    }

    /// How many bytes that next `take` could give at the most.
    pub fn available(&self, limit: u64) -> u64 {
        match self.lost.first() {
            Some(range) => range.end - range.start,
            None => self.end.min(limit).saturating_sub(self.next),
        }
    }

    /// Copies the bytes of `range` into `out`.
    pub fn copy_out(&self, range: Range<u64>, out: &mut [u8]) {
        let mut at = 0;
        let mut offset = range.start;
        while offset < range.end {
            let piece = self.blocks.slice(offset, range.end - offset);
            assert!(!piece.is_empty(), "a byte that is not confirmed is in memory");
            out[at..at + piece.len()].copy_from_slice(piece);
            at += piece.len();
            offset += piece.len() as u64;
        }
    }

    /// The peer has `range`. Answers how many bytes that newly confirms.
    pub fn acked(&mut self, pool: &mut Pool, range: Range<u64>) -> u64 {
        let range = range.start.max(self.acked_to)..range.end.min(self.next);
        if range.start >= range.end {
            return 0;
        }
        let new = self.acked.insert(range.clone());
        self.lost.remove(range);
        if let Some(first) = self.acked.first()
            && first.start <= self.acked_to
        {
            self.acked_to = first.end;
            self.acked.remove_below(first.end);
            self.blocks.release_below(pool, self.acked_to);
            if self.acked_to == self.end {
                self.blocks.release_all(pool, self.end);
            }
        }
        new
    }

    /// What was sent as `range` is deemed lost: all of it that is not confirmed goes again.
    pub fn lost(&mut self, range: Range<u64>) {
        let range = range.start.max(self.acked_to)..range.end.min(self.next);
        if range.start >= range.end {
            return;
        }
        self.lost.insert(range.clone());
        for r in self.acked.overlapping(&range) {
            self.lost.remove(r);
        }
    }

    /// Forgets all bytes, those that were never sent as if they had not been written.
    pub fn discard(&mut self, pool: &mut Pool) {
        self.end = self.next;
        self.acked_to = self.next;
        self.blocks.release_all(pool, self.end);
        self.acked.clear();
        self.lost.clear();
    }

    /// The lowest byte the peer may not have.
    pub fn unacked_from(&self) -> u64 {
        self.acked_to
    }
    /// The next byte that was never sent.
    pub fn next(&self) -> u64 {
        self.next
    }
    /// The end of what was written.
    pub fn end(&self) -> u64 {
        self.end
    }
    /// Bytes written and never sent.
    pub fn unsent(&self) -> u64 {
        self.end - self.next
    }
    /// Is something waiting to be sent again?
    pub fn has_lost(&self) -> bool {
        !self.lost.is_empty()
    }
    /// Has the peer confirmed everything that was written?
    pub fn all_acked(&self) -> bool {
        self.acked_to == self.end
    }
}

/// What arrived on a stream and was not taken.
#[derive(Default)]
pub(crate) struct RecvBuffer {
    blocks: Blocks,
    /// All below was taken by the reader.
    consumed: u64,
    /// What has arrived at or above `consumed`.
    received: RangeSet,
    /// Bytes of it.
    held: u64,
    /// The end of the highest byte that arrived.
    highest: u64,
}

impl RecvBuffer {
    /// Stores `data`; answers how many of its bytes are new.
    pub fn write(&mut self, pool: &mut Pool, offset: u64, data: &[u8]) -> u64 {
        let end = offset + data.len() as u64;
        if end <= self.consumed {
            return 0;
        }
        let skip = self.consumed.saturating_sub(offset) as usize;
        let start = offset + skip as u64;
        let before = self.received.memory();
        let new = self.received.insert(start..end);
        self.received.shrink_if_sparse();
        pool.count(before, self.received.memory());
        self.held += new;
        if new > 0 {
            let apart = self.lies_apart(start);
            self.blocks.write(pool, start, &data[skip..], apart);
            self.highest = self.highest.max(end);
        }
        new
    }

    /// In so many pieces lies what is there.
    #[cfg(test)]
    pub fn pieces(&self) -> usize {
        self.received.len()
    }

    /// Bytes of memory that blocks take.
    #[cfg(test)]
    pub fn in_blocks(&self) -> usize {
        self.blocks.held
    }

    /// Would bytes at `offset..end` lie apart from all that is there, in more pieces than `most`
    /// or in memory of which most is empty? What can be taken next never does.
    pub fn is_too_scattered(&self, offset: u64, end: u64, most: usize) -> bool {
        if offset <= self.consumed + self.readable() {
            return false;
        }
        let near = offset.saturating_sub(1)..end + 1;
        self.received.len() >= most && self.received.overlapping(&near).next().is_none()
            || self.is_too_sparse(offset, end)
    }

    /// Would a piece leave most of the memory empty that it needs? It takes a part of a block, or
    /// two.
    fn is_too_sparse(&self, offset: u64, end: u64) -> bool {
        if end - offset >= LONG_PIECE || self.blocks.has(end - 1) && self.blocks.has(offset) {
            return false;
        }
        let held = (self.blocks.held + 2 * PART) as u64;
        held > SPARSE + SPARSE_TIMES * (self.held + end - offset)
    }

    /// Do bytes that were put at `start` lie apart, so that a whole block might stay nearly empty?
    /// Not what can be taken next, and what follows a block's length without a hole: after a loss,
    /// all that comes meanwhile.
    fn lies_apart(&self, start: u64) -> bool {
        let mut next = self.received.first().filter(|r| r.start <= self.consumed);
        if next.take_if(|r| start < r.end).is_some() {
            return false;
        }
        let range = self.received.overlapping(&(start..start + 1)).next();
        range.is_none_or(|r| start - r.start < BLOCK as u64)
    }

    /// The next bytes in order, as far as they lie together in memory; empty if none.
    pub fn peek(&self) -> &[u8] {
        match self.received.first() {
            Some(r) if r.start == self.consumed => {
                self.blocks.slice(self.consumed, r.end - self.consumed)
            }
            _ => &[],
        }
    }

    /// The next bytes in order, as slices for one vectored write; answers how many.
    pub fn peek_slices<'a>(&'a self, out: &mut [&'a [u8]]) -> usize {
        let Some(r) = self.received.first().filter(|r| r.start == self.consumed) else {
            return 0;
        };
        let mut offset = r.start;
        let mut n = 0;
        while offset < r.end && n < out.len() {
            out[n] = self.blocks.slice(offset, r.end - offset);
            offset += out[n].len() as u64;
            n += 1;
        }
        n
    }

    /// Copies the next bytes in order; false if there are fewer.
    pub fn copy_out(&self, out: &mut [u8]) -> bool {
        if self.readable() < out.len() as u64 {
            return false;
        }
        let mut at = 0;
        while at < out.len() {
            let piece = self.blocks.slice(self.consumed + at as u64, (out.len() - at) as u64);
            out[at..at + piece.len()].copy_from_slice(piece);
            at += piece.len();
        }
        true
    }

    /// The reader took `n` bytes of what `peek` showed.
    pub fn consume(&mut self, pool: &mut Pool, n: u64) {
        let readable = self.readable();
        assert!(n <= readable, "the reader took {n} of {readable} bytes");
        self.consumed += n;
        self.held -= n;
        let before = self.received.memory();
        self.received.remove_below(self.consumed);
        self.received.shrink_if_sparse();
        self.blocks.release_below(pool, self.consumed);
        if self.consumed == self.highest {
            self.blocks.release_all(pool, self.consumed);
        }
        pool.count(before, self.received.memory());
    }

    pub fn discard(&mut self, pool: &mut Pool) {
        self.blocks.release_all(pool, self.highest);
        self.consumed = self.highest;
        self.held = 0;
        pool.count(self.received.memory(), 0);
        self.received.clear();
    }

    /// Bytes that can be taken now.
    pub fn readable(&self) -> u64 {
        match self.received.first() {
            Some(r) if r.start == self.consumed => r.end - r.start,
            _ => 0,
        }
    }
    /// All below was taken.
    pub fn consumed(&self) -> u64 {
        self.consumed
    }
    /// Bytes that have arrived, taken or not.
    pub fn arrived(&self) -> u64 {
        self.consumed + self.received.descending().map(|r| r.end - r.start).sum::<u64>()
    }
    /// The end of the highest byte that arrived.
    pub fn highest(&self) -> u64 {
        self.highest
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pattern(range: Range<u64>) -> Vec<u8> {
        range.map(|i| (i.wrapping_mul(2654435761) >> 13) as u8).collect()
    }

    /// Of packets of 1,300 bytes, in a stream of 4 MB.
    fn packet(n: u64) -> Range<u64> {
        n * 1_300..(n + 1) * 1_300
    }

    /// In whole blocks each would take seven times its length.
    #[test]
    fn of_a_policer_that_drops_nine_of_ten_every_packet_is_taken_in_four_times_its_length() {
        let (mut pool, mut buffer, mut rng) =
            (Pool::default(), RecvBuffer::default(), units::Rng::new(5));
        let mut late: Vec<u64> = (0..3_200).collect();
        let first: Vec<u64> = (1..3_200).filter(|_| rng.below(10) == 0).collect();
        for (count, n) in (1..).zip(&first) {
            assert!(!buffer.is_too_scattered(packet(*n).start, packet(*n).end, 4_000), "{n}");
            buffer.write(&mut pool, packet(*n).start, &pattern(packet(*n)));
            assert!(pool.used() <= SPARSE_TIMES * 1_300 * count, "{} of {count}", pool.used());
        }
        late.retain(|n| !first.contains(n));
        for i in (1..late.len()).rev() {
            late.swap(i, rng.below(i as u64 + 1) as usize);
        }
        late.iter()
            .for_each(|n| _ = buffer.write(&mut pool, packet(*n).start, &pattern(packet(*n))));
        let mut out = Vec::new();
        while !buffer.peek().is_empty() {
            let n = buffer.peek().len();
            out.extend_from_slice(buffer.peek());
            buffer.consume(&mut pool, n as u64);
        }
        assert!(out == pattern(0..3_200 * 1_300));
        assert_eq!((pool.used(), buffer.blocks.held), (0, 0));
    }

    /// What a reader takes has blocks of its own, so that no piece is refused for its going.
    #[test]
    fn packets_beyond_a_hole_are_taken_though_the_reader_empties_what_is_before_it() {
        let (mut pool, mut buffer) = (Pool::default(), RecvBuffer::default());
        buffer.write(&mut pool, 0, &pattern(0..1 << 20));
        for n in 1_000..1_300 {
            let piece = packet(3 * n);
            assert!(!buffer.is_too_scattered(piece.start, piece.end, 4_000), "{n}");
            buffer.write(&mut pool, piece.start, &pattern(piece));
            while !buffer.peek().is_empty() {
                let len = buffer.peek().len() as u64;
                buffer.consume(&mut pool, len);
            }
            assert!(pool.used() <= BLOCK as u64 + SPARSE_TIMES * buffer.held);
        }
    }

    /// After a loss nothing is dearer than without one.
    #[test]
    fn what_follows_a_loss_without_another_lies_in_whole_blocks() {
        let (mut pool, mut buffer) = (Pool::default(), RecvBuffer::default());
        (1..800).for_each(|n| _ = buffer.write(&mut pool, packet(n).start, &pattern(packet(n))));
        let whole = buffer.blocks.blocks.iter().filter(|p| matches!(p, Place::Whole(_))).count();
        assert!(whole + 3 > 800 * 1_300 / BLOCK, "{whole}");
    }

    /// L-CR-5.
    #[test]
    fn whatever_is_taken_apart_from_the_rest_takes_four_times_its_bytes() {
        for len in [1, 40, 300, 1_023, 1_024, 1_300, 2_047, 2_049, 3_000, 9_000] {
            for align in [1, 7, 2_047] {
                let (mut pool, mut buffer) = (Pool::default(), RecvBuffer::default());
                let mut rng = units::Rng::new(len);
                for _ in 0..5_000 {
                    let offset = 1 + (rng.below(8 << 20) / align) * align;
                    if !buffer.is_too_scattered(offset, offset + len, 8_000) {
                        buffer.write(&mut pool, offset, &pattern(offset..offset + len));
                    }
                    let most = SPARSE + SPARSE_TIMES * buffer.held;
                    let used = pool.used() - buffer.received.memory() as u64;
                    assert!(used <= most, "{used} for {} of {len}", buffer.held);
                }
                buffer.discard(&mut pool);
                assert_eq!((pool.used(), buffer.blocks.held), (0, 0));
            }
        }
    }

    proptest! {
        #[test]
        fn bytes_in_any_order_come_out_once_and_in_order(
            mut cuts in prop::collection::vec(0u64..100_000, 0..60), seed in any::<u64>()
        ) {
            cuts.extend([0, 100_000]);
            cuts.sort_unstable();
            let mut pieces: Vec<_> = cuts.windows(2).map(|w| w[0]..w[1]).collect();
            let mut rng = units::Rng::new(seed);
            for i in (1..pieces.len()).rev() {
                pieces.swap(i, rng.below(i as u64 + 1) as usize);
            }
            let again: Vec<_> = pieces.iter().filter(|_| rng.below(3) == 0).cloned().collect();
            pieces.extend(again);
            let (mut pool, mut buffer, mut out) = (Pool::default(), RecvBuffer::default(), vec![]);
            for piece in pieces {
                buffer.write(&mut pool, piece.start, &pattern(piece.clone()));
                while !buffer.peek().is_empty() {
                    let n = buffer.peek().len();
                    out.extend_from_slice(buffer.peek());
                    buffer.consume(&mut pool, n as u64);
                }
            }
            prop_assert_eq!(out, pattern(0..100_000));
            prop_assert_eq!(pool.used(), 0);
        }

        #[test]
        fn everything_lost_is_sent_again_until_confirmed(seed in any::<u64>()) {
            let mut rng = units::Rng::new(seed);
            let (mut pool, mut buffer) = (Pool::default(), SendBuffer::default());
            buffer.write(&mut pool, &pattern(0..50_000));
            let mut got = RangeSet::default();
            while !buffer.all_acked() {
                let Some(r) = buffer.take(1 + rng.below(3000), 50_000) else {
                    prop_assert!(false, "nothing to send yet not all confirmed");
                    break;
                };
                let mut copy = vec![0; (r.end - r.start) as usize];
                buffer.copy_out(r.clone(), &mut copy);
                prop_assert_eq!(copy, pattern(r.clone()));
                if rng.below(3) == 0 {
                    buffer.lost(r);
                } else {
                    got.insert(r.clone());
                    buffer.acked(&mut pool, r);
                }
            }
            prop_assert_eq!(got.first(), Some(0..50_000));
            prop_assert_eq!(pool.used(), 0);
        }
    }
}
