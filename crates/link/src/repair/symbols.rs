//! Plaintexts of the last packets by number, as symbols of one length.

use super::field::LANE;
use super::header::MAX_WINDOW;
use crate::wire;

/// Bytes after the plaintext: how its packet is read. All behind is zero, so that this byte,
/// which is not, tells the length, too.
const END: usize = 1;
/// Of that byte: this and the kind.
const MARK: u8 = 0x80;

/// A ring of symbols: number n lies in slot n mod its size.
#[derive(Default)]
pub(super) struct Symbols {
    /// Bytes of a slot, a multiple of [`LANE`].
    stride: usize,
    /// Slots, a power of two.
    size: u64,
    bytes: Vec<u8>,
    /// The number in each slot and the length of its symbol; `u64::MAX`: none.
    slots: Vec<(u64, u16)>,
    newest: u64,
}

const NONE: u64 = u64::MAX;

impl Symbols {
    /// Room for `window` plaintexts of up to `plaintext` bytes; what is there stays if
    /// it was room enough already.
    pub fn make_room(&mut self, window: usize, plaintext: usize) {
        let size = window.clamp(16, MAX_WINDOW).next_power_of_two() as u64;
        let stride = (plaintext + END).next_multiple_of(LANE);
        if size <= self.size && stride <= self.stride {
            return;
        }
        let mut grown = Symbols {
            stride: stride.max(self.stride),
            size: size.max(self.size),
            newest: self.newest,
            ..Symbols::default()
        };
        grown.bytes = vec![0; grown.stride * grown.size as usize];
        grown.slots = vec![(NONE, 0); grown.size as usize];
        for &(number, len) in self.slots.iter().filter(|(n, _)| *n != NONE) {
            let (from, to) = (self.slot(number), grown.slot(number));
            let (from, to) = (from * self.stride, to * grown.stride);
            let stride = self.stride;
            grown.bytes[to..to + stride].copy_from_slice(&self.bytes[from..from + stride]);
            let slot = grown.slot(number);
            grown.slots[slot] = (number, len);
        }
        *self = grown;
    }

    pub fn is_empty(&self) -> bool {
        self.size == 0
    }

    /// Bytes of a slot.
    pub fn stride(&self) -> usize {
        self.stride
    }

    fn slot(&self, number: u64) -> usize {
        (number & (self.size - 1)) as usize
    }

    /// Numbers from here on may still be there.
    pub fn oldest(&self) -> u64 {
        (self.newest + 1).saturating_sub(self.size)
    }

    /// Keeps a packet's plaintext. One that is too long, or older than all slots, is not.
    /// That of a question is empty, however far it is filled up (L-RP-1).
    pub fn insert(&mut self, number: u64, hint: u8, plaintext: &[u8]) {
        let empty = plaintext.is_empty() || hint == 0 && wire::is_question(plaintext);
        let len = if empty { 0 } else { plaintext.len() + END };
        if len > self.stride || number < self.oldest() {
            return;
        }
        let symbol = self.place(number, len);
        symbol[len..].fill(0);
        if let Some((end, content)) = symbol[..len].split_last_mut() {
            content.copy_from_slice(plaintext);
            *end = MARK | kind_of(hint);
        }
    }

    /// Keeps a symbol that came back.
    pub fn insert_symbol(&mut self, number: u64, symbol: &[u8], len: usize) {
        if self.is_empty() || number < self.oldest() || symbol.len() != self.stride {
            return;
        }
        self.place(number, len).copy_from_slice(symbol);
    }

    fn place(&mut self, number: u64, len: usize) -> &mut [u8] {
        self.newest = self.newest.max(number);
        let slot = self.slot(number);
        self.slots[slot] = (number, len as u16);
        &mut self.bytes[slot * self.stride..(slot + 1) * self.stride]
    }

    /// Where the symbol of a packet lies in [`Symbols::bytes`] and its length, if it is there.
    pub fn find(&self, number: u64) -> Option<(usize, usize)> {
        if self.is_empty() {
            return None;
        }
        let slot = self.slot(number);
        let (n, len) = self.slots[slot];
        (n == number).then_some((slot * self.stride, usize::from(len)))
    }

    /// All symbols.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// The length of a symbol without the zeros behind it; `None` if its last byte is not the
/// end of one.
pub(super) fn length(symbol: &[u8]) -> Option<usize> {
    let len = symbol.iter().rposition(|b| *b != 0).map_or(0, |last| last + 1);
    (len == 0 || read(&symbol[..len]).is_some()).then_some(len)
}

/// The hint and the plaintext in a symbol; `None` if it holds neither.
pub(super) fn read(symbol: &[u8]) -> Option<(u8, &[u8])> {
    let (end, plaintext) = symbol.split_last()?;
    match end ^ MARK {
        0 => Some((0, plaintext)),
        kind @ 1..=3 => Some((kind + 1, plaintext)),
        _ => None,
    }
}

/// Packets with frames are 0; short ones with 2, 3, 4 bytes of offset are 1, 2, 3.
fn kind_of(hint: u8) -> u8 {
    hint.saturating_sub(1)
}
