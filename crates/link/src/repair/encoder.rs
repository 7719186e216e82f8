//! The sender's end: keeps what left and combines it.

use std::ops::Range;

use super::field::{LANE, add_combination, coefficient};
use super::header::{self, MAX_WINDOW};
use super::symbols::Symbols;
use crate::wire::Writer;

/// What a repair packet is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// All that left before it; those of a steady flow have this distance.
    Flow(u64),
    /// A tail that ends before this number: what left since is combined only where it cannot
    /// be told to be left out, for of a burst more would be missing then.
    Tail(u64),
}

/// What left lately, and what of it is combined.
#[derive(Default)]
pub(crate) struct FecEncoder {
    /// A REPAIR packet's is empty, and so is a question's.
    symbols: Symbols,
    /// Kept for their memory.
    terms: Vec<(u8, usize)>,
    empty: Vec<u64>,
    sum: Vec<u8>,
}

impl FecEncoder {
    /// Keeps the plaintext of a packet that may have to be repaired, of at most
    /// `plaintext` bytes, for windows of up to `window` numbers.
    pub fn keep(&mut self, number: u64, hint: u8, packet: &[u8], window: usize, plaintext: usize) {
        self.symbols.make_room(window, plaintext);
        self.symbols.insert(number, hint, packet);
    }

    /// Gives the memory back.
    pub fn release(&mut self) {
        *self = FecEncoder::default();
    }

    pub fn is_empty(&self) -> bool {
        self.symbols.is_empty()
    }

    /// Writes repair packet `number`, which combines what left since number `first`, up to an
    /// eighth more, or as much of it as is kept and fits. Answers the numbers that it covers.
    pub fn write(
        &mut self,
        number: u64,
        first: u64,
        purpose: Purpose,
        w: &mut Writer<'_>,
    ) -> Option<Range<u64>> {
        let end = match purpose {
            Purpose::Tail(end) if header::can_tell_run(number.checked_sub(end)?) => end,
            _ => number,
        };
        let (first, oldest) = (first.max(self.symbols.oldest()), self.symbols.oldest());
        let wanted = usize::try_from(number.checked_sub(first)?).ok()?.min(MAX_WINDOW);
        // Rather some more than less: what no window reaches waits for a round trip.
        let more = header::told_window_from(wanted);
        let reaches = number.checked_sub(more as u64).is_some_and(|first| first >= oldest);
        let mut window = if reaches { more } else { wanted };
        let (first, longest) = loop {
            window = header::told_window(window);
            let first = number - window as u64;
            let kept = self.gather(number, first..end);
            if self.terms.is_empty() {
                return None;
            }
            match kept {
                Ok(longest) if header::LEN + longest <= w.room() => break (first, longest),
                Ok(_) => window = window * 3 / 4,
                Err(missing) => window = (number - missing - 1) as usize,
            }
        };
        header::write(w, window, self.describe(number, first..end, purpose));
        self.sum.clear();
        self.sum.resize(longest.next_multiple_of(LANE), 0);
        add_combination(&mut self.sum, self.symbols.bytes(), &self.terms);
        w.reserve(longest).copy_from_slice(&self.sum[..longest]);
        self.symbols.insert(number, 0, &[]);
        Some(first..end)
    }

    /// The terms of a window and the empty symbols in it; answers the longest.
    ///
    /// # Errors
    /// The newest number of which nothing is kept.
    fn gather(&mut self, number: u64, covered: Range<u64>) -> Result<usize, u64> {
        self.terms.clear();
        self.empty.clear();
        let mut longest = 0;
        for n in covered.rev() {
            match self.symbols.find(n).ok_or(n)? {
                (_, 0) => self.empty.push(n),
                (place, len) => {
                    self.terms.push((coefficient(number, n), place));
                    longest = longest.max(len);
                }
            }
        }
        Ok(longest)
    }

    /// What is told to be left out: what is not covered, or a part of what is empty, so that it
    /// makes no difference if it is lost.
    fn describe(&self, number: u64, covered: Range<u64>, purpose: Purpose) -> u8 {
        let is_empty = |n: u64| self.empty.binary_search_by(|e| n.cmp(e)).is_ok();
        let is_steady = |period: &u64| {
            let steady = (1..).map_while(|k| number.checked_sub(k * period));
            steady.take_while(|n| *n >= covered.start).all(is_empty)
        };
        let period = match purpose {
            Purpose::Flow(period) => header::code_of_period(period).filter(|_| is_steady(&period)),
            Purpose::Tail(_) => None,
        };
        period.unwrap_or_else(|| {
            let empty = (1..).take_while(|k| is_empty(covered.end - k)).count() as u64;
            header::code_of_run(number - covered.end + empty)
        })
    }
}
