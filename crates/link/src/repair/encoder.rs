//! The sender's end: keeps what left and combines it.

use super::MAX_WINDOW;
use super::field::{LANE, add_combination, coefficient};
use super::header::{self, LeftOut};
use super::symbols::Symbols;
use crate::wire::Writer;

/// What left lately, and what of it is combined.
#[derive(Default)]
pub(crate) struct Encoder {
    symbols: Symbols,
    /// Kept for their memory.
    terms: Vec<(u8, usize)>,
    left_out: Vec<u64>,
    sum: Vec<u8>,
}

impl Encoder {
    /// Keeps the plaintext of a packet that may have to be repaired, of at most
    /// `plaintext` bytes, for windows of up to `window` numbers.
    pub fn keep(&mut self, number: u64, hint: u8, packet: &[u8], window: usize, plaintext: usize) {
        self.symbols.make_room(window, plaintext);
        self.symbols.insert(number, hint, packet);
    }

    /// Gives the memory back.
    pub fn release(&mut self) {
        *self = Encoder::default();
    }

    pub fn is_empty(&self) -> bool {
        self.symbols.is_empty()
    }

    /// Writes repair packet `number`, which combines what left since number `first`, or
    /// as much of it as is kept and fits. Answers the first number that it covers.
    pub fn write(&mut self, number: u64, first: u64, w: &mut Writer<'_>) -> Option<u64> {
        let first = first.max(self.symbols.oldest());
        let mut window = usize::try_from(number.checked_sub(first)?).ok()?.min(MAX_WINDOW);
        loop {
            window = header::told_window(window);
            let first = number - window as u64;
            let longest = self.gather(number, first);
            if self.terms.is_empty() {
                return None;
            }
            let out = self.describe(number, window);
            let head = match out {
                LeftOut::These => header::list_len(number, &self.left_out),
                _ => header::PLAIN,
            };
            if head + longest <= w.room() {
                header::write(w, number, window, &out, &self.left_out);
                self.sum.clear();
                self.sum.resize(longest.next_multiple_of(LANE), 0);
                add_combination(&mut self.sum, self.symbols.bytes(), &self.terms);
                w.reserve(longest).copy_from_slice(&self.sum[..longest]);
                return Some(first);
            }
            window = window * 3 / 4;
        }
    }

    /// The terms of a window and what it leaves out; answers the longest symbol.
    fn gather(&mut self, number: u64, first: u64) -> usize {
        self.terms.clear();
        self.left_out.clear();
        let mut longest = 0;
        for n in (first..number).rev() {
            match self.symbols.find(n) {
                Some((place, len)) => {
                    self.terms.push((coefficient(number, n), place));
                    longest = longest.max(len);
                }
                None => self.left_out.push(n),
            }
        }
        longest
    }

    fn describe(&self, number: u64, window: usize) -> LeftOut {
        let Some(newest) = self.left_out.first() else { return LeftOut::Nothing };
        let period = number - newest;
        let count = self.left_out.len() as u64;
        if period == 1 && number - self.left_out[count as usize - 1] == count {
            return header::code_of_run(count).map_or(LeftOut::These, LeftOut::Told);
        }
        let steady = count == window as u64 / period
            && (1..).zip(&self.left_out).all(|(k, n)| number - n == k * period);
        match header::code_of_period(period).filter(|_| steady) {
            Some(code) => LeftOut::Told(code),
            None => LeftOut::These,
        }
    }
}
