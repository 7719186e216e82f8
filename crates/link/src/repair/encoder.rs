//! The sender's end: keeps what left and combines it.

use super::MAX_WINDOW;
use super::field::{LANE, add_combination, coefficient};
use super::header;
use super::symbols::{PREFIX, Symbols};
use crate::wire::Writer;

/// What left lately, and what of it is combined.
#[derive(Default)]
pub(crate) struct Encoder {
    /// A REPAIR packet's is empty, and so is a question's.
    symbols: Symbols,
    /// Kept for their memory.
    terms: Vec<(u8, usize)>,
    empty: Vec<u64>,
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

    /// Writes repair packet `number`, which combines what left since number `first`, up to an
    /// eighth more, or as much of it as is kept and fits. Answers the first number that it covers.
    /// `period`: the distance of those of a steady flow, or 0.
    pub fn write(
        &mut self,
        number: u64,
        first: u64,
        period: u64,
        w: &mut Writer<'_>,
    ) -> Option<u64> {
        let (first, oldest) = (first.max(self.symbols.oldest()), self.symbols.oldest());
        let wanted = usize::try_from(number.checked_sub(first)?).ok()?.min(MAX_WINDOW);
        // Rather some more than less: what no window reaches waits for a round trip.
        let more = header::told_window_from(wanted);
        let reaches = number.checked_sub(more as u64).is_some_and(|first| first >= oldest);
        let mut window = if reaches { more } else { wanted };
        let (first, longest) = loop {
            window = header::told_window(window);
            let first = number - window as u64;
            let kept = self.gather(number, first);
            if self.terms.is_empty() {
                return None;
            }
            match kept {
                Ok(longest) if header::LEN + longest <= w.room() => break (first, longest),
                Ok(_) => window = window * 3 / 4,
                Err(missing) => window = (number - missing - 1) as usize,
            }
        };
        header::write(w, window, self.describe(number, first, period));
        self.sum.clear();
        self.sum.resize(longest.next_multiple_of(LANE), 0);
        add_combination(&mut self.sum, self.symbols.bytes(), &self.terms);
        w.reserve(longest).copy_from_slice(&self.sum[..longest]);
        self.symbols.insert(number, 0, &[]);
        Some(first)
    }

    /// The terms of a window and the empty symbols in it; answers the longest.
    ///
    /// # Errors
    /// The newest number of which nothing is kept.
    fn gather(&mut self, number: u64, first: u64) -> Result<usize, u64> {
        self.terms.clear();
        self.empty.clear();
        let mut longest = PREFIX;
        for n in (first..number).rev() {
            match self.symbols.find(n).ok_or(n)? {
                (_, PREFIX) => self.empty.push(n),
                (place, len) => {
                    self.terms.push((coefficient(number, n), place));
                    longest = longest.max(len);
                }
            }
        }
        Ok(longest)
    }

    /// What is told to be left out, so that it makes no difference if it is lost: a part of
    /// what is empty.
    fn describe(&self, number: u64, first: u64, period: u64) -> u8 {
        let is_empty = |n: u64| self.empty.binary_search_by(|e| n.cmp(e)).is_ok();
        let mut steady =
            (1..).map_while(|k| number.checked_sub(k * period)).take_while(|n| *n >= first);
        match header::code_of_period(period).filter(|_| steady.all(is_empty)) {
            Some(code) => code,
            None => header::code_of_run((1..).take_while(|k| is_empty(number - k)).count() as u64),
        }
    }
}
