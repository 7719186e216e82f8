//! The receiver's end: keeps what arrived and solves for what is missing.

use std::collections::VecDeque;

use super::field::{LANE, add_combination, add_scaled, coefficient, inverse, multiply, scale};
use super::header;
use super::symbols::{self, Symbols};
use crate::wire::WireError;

/// Equations kept, and unknowns in one of them. Beyond that the packets that are missing
/// are sent again sooner than they can be solved for.
const MAX_EQUATIONS: usize = 128;

/// Additions of equations that REPAIR earns: one for so many of its bytes. A full packet of an
/// honest peer earns more than it can cost (twice [`MAX_EQUATIONS`]).
const BYTES_AN_ADDITION: usize = 1;
/// A packet's bytes beside its payload.
const HEADERS: usize = 25;
/// Additions that may be saved up, for the short packets that repair calls and keystrokes: with
/// a quarter of it one of 2,000 simulated links over harsh skies ran out.
const MOST_ADDITIONS: usize = 32_768;

/// Unknowns in an equation that others were added to.
const MAX_UNKNOWNS: usize = 2 * MAX_EQUATIONS;

/// What is known about missing packets: the sum of factor × symbol over `unknowns` is `sum`.
#[derive(Default)]
struct Equation {
    /// By number; the first, the equation's pivot, has factor 1 and is in no other equation.
    unknowns: Vec<(u64, u8)>,
    sum: Vec<u8>,
}

/// What arrived lately, and equations for what did not.
#[derive(Default)]
pub(crate) struct FecDecoder {
    symbols: Symbols,
    equations: Vec<Equation>,
    /// Equations that are done, kept for their memory.
    spare: Vec<Equation>,
    solved: VecDeque<u64>,
    terms: Vec<(u8, usize)>,
    left_out: Vec<u64>,
    /// Of two equations that are added.
    merged: Vec<(u64, u8)>,
    /// Something came back that no further equation has confirmed.
    unconfirmed: bool,
    contradicted: bool,
    /// Additions that what came has not earned yet, of [`MOST_ADDITIONS`].
    spent: usize,
    /// Equations that were dropped for want of them.
    too_dear: u64,
}

impl FecDecoder {
    /// Makes room for windows of up to `window` numbers and plaintexts of `plaintext` bytes.
    pub fn make_room(&mut self, window: usize, plaintext: usize) {
        let stride = self.symbols.stride();
        self.symbols.make_room(window, plaintext);
        if self.symbols.stride() != stride {
            self.equations.clear();
            self.spare.clear();
        }
    }

    /// Gives the memory back. What is spent stays spent (L-RP-10): a peer that contradicts itself
    /// would earn by it.
    pub fn release(&mut self) {
        *self = FecDecoder { spent: self.spent, ..FecDecoder::default() };
    }

    pub fn is_empty(&self) -> bool {
        self.symbols.is_empty()
    }

    /// A packet arrived. REPAIR counts as one with nothing in it.
    pub fn on_packet(&mut self, number: u64, hint: u8, plaintext: &[u8]) {
        self.symbols.insert(number, hint, plaintext);
        if !self.equations.is_empty() {
            self.substitute(number);
        }
    }

    /// A packet turned up that equations were waiting for.
    fn substitute(&mut self, number: u64) {
        let Some((place, _)) = self.symbols.find(number) else { return };
        let symbol = &self.symbols.bytes()[place..place + self.symbols.stride()];
        let mut pivot = None;
        for (i, equation) in self.equations.iter_mut().enumerate() {
            if let Ok(at) = equation.unknowns.binary_search_by_key(&number, |u| u.0) {
                let (_, factor) = equation.unknowns.remove(at);
                add_scaled(&mut equation.sum, factor, symbol);
                if at == 0 {
                    pivot = Some(i);
                }
            }
        }
        if let Some(i) = pivot {
            let equation = self.equations.swap_remove(i);
            self.insert(equation);
        }
        self.solve();
    }

    /// REPAIR packet `number` arrived. What it brought back [`FecDecoder::next_recovered`] has.
    ///
    /// # Errors
    /// If it is malformed.
    pub fn on_repair(&mut self, number: u64, payload: &[u8]) -> Result<(), WireError> {
        self.spent -= self.spent.min((payload.len() + HEADERS) / BYTES_AN_ADDITION);
        let result = self.learn(number, payload);
        // Later windows may count it as a packet with nothing in it.
        self.on_packet(number, 0, &[]);
        result
    }

    fn learn(&mut self, number: u64, payload: &[u8]) -> Result<(), WireError> {
        let (first, symbol) = header::read(number, payload, &mut self.left_out)?;
        if first < self.symbols.oldest() || symbol.len() > self.symbols.stride() {
            return Ok(()); // It tells of packets that were never kept.
        }
        if self.spent >= MOST_ADDITIONS {
            self.too_dear += 1;
            return Ok(());
        }
        let mut equation = self.spare.pop().unwrap_or_default();
        equation.unknowns.clear();
        self.terms.clear();
        let mut left_out = self.left_out.iter().rev().peekable();
        for n in first..number {
            if left_out.next_if_eq(&&n).is_some() {
                continue;
            }
            let factor = coefficient(number, n);
            match self.symbols.find(n) {
                // Its combination was as long as the longest of them.
                Some((_, len)) if len > symbol.len() => {
                    self.spare.push(equation);
                    return Err(WireError::Invalid);
                }
                Some((place, _)) => self.terms.push((factor, place)),
                None if equation.unknowns.len() < MAX_EQUATIONS => {
                    equation.unknowns.push((n, factor))
                }
                None => {
                    self.spare.push(equation);
                    return Ok(());
                }
            }
        }
        // What says nothing new confirms what came back, once: nothing else would tell of a peer
        // whose equations are wrong.
        if equation.unknowns.is_empty() && !std::mem::take(&mut self.unconfirmed) {
            self.spare.push(equation);
            return Ok(());
        }
        equation.sum.clear();
        equation.sum.extend_from_slice(symbol);
        equation.sum.resize(self.symbols.stride(), 0);
        // All that is combined is zero beyond the symbol.
        let used = symbol.len().next_multiple_of(LANE);
        add_combination(&mut equation.sum[..used], self.symbols.bytes(), &self.terms);
        self.forget_old();
        self.insert(equation);
        self.solve();
        Ok(())
    }

    /// Equations about packets that no window reaches any more.
    fn forget_old(&mut self) {
        let oldest = self.symbols.oldest();
        let old = |r: &mut Equation| r.unknowns.first().is_none_or(|u| u.0 < oldest);
        self.spare.extend(self.equations.extract_if(.., old));
        if self.equations.len() >= MAX_EQUATIONS {
            let oldest = (0..self.equations.len()).min_by_key(|i| self.equations[*i].unknowns[0].0);
            self.spare.push(self.equations.swap_remove(oldest.expect("there are equations")));
        }
    }

    /// Adds an equation, so that the pivot of each equation stays in no other.
    fn insert(&mut self, mut equation: Equation) {
        for other in &self.equations {
            let pivot = other.unknowns[0].0;
            if let Ok(at) = equation.unknowns.binary_search_by_key(&pivot, |u| u.0) {
                let factor = equation.unknowns[at].1;
                self.spent += 1;
                add_equation(&mut equation, factor, other, &mut self.merged);
                if equation.unknowns.len() > MAX_UNKNOWNS {
                    return self.spare.push(equation);
                }
            }
        }
        let Some(&(pivot, factor)) = equation.unknowns.first() else {
            self.contradicted |= equation.sum.iter().any(|byte| *byte != 0);
            return self.spare.push(equation); // It says nothing new.
        };
        let by = inverse(factor);
        scale(&mut equation.sum, by);
        for u in &mut equation.unknowns {
            u.1 = multiply(u.1, by);
        }
        for other in &mut self.equations {
            if let Ok(at) = other.unknowns.binary_search_by_key(&pivot, |u| u.0) {
                let factor = other.unknowns[at].1;
                self.spent += 1;
                add_equation(other, factor, &equation, &mut self.merged);
            }
        }
        let long = |r: &mut Equation| r.unknowns.len() > MAX_UNKNOWNS;
        self.spare.extend(self.equations.extract_if(.., long));
        self.equations.push(equation);
    }

    /// Takes out what is known now.
    fn solve(&mut self) {
        let mut i = 0;
        while i < self.equations.len() {
            if self.equations[i].unknowns.len() > 1 {
                i += 1;
                continue;
            }
            let equation = self.equations.swap_remove(i);
            if let Some(&(number, _)) = equation.unknowns.first() {
                match symbols::length(&equation.sum) {
                    Some(len) => {
                        self.symbols.insert_symbol(number, &equation.sum, len);
                        self.solved.push_back(number);
                        self.unconfirmed = true;
                    }
                    // Of no packet that anybody sent.
                    None => self.contradicted = true,
                }
            }
            self.spare.push(equation);
        }
        self.spare.truncate(MAX_EQUATIONS);
    }

    /// True once if equations contradicted each other, or what arrived: then what came back is
    /// not to be trusted.
    pub fn take_contradiction(&mut self) -> bool {
        std::mem::take(&mut self.contradicted)
    }

    /// Equations that were dropped since the last call: the peer's cost more than its bytes earn.
    pub fn take_too_dear(&mut self) -> u64 {
        std::mem::take(&mut self.too_dear)
    }

    /// The next packet that came back: its number and hint; `plaintext` gets its content.
    pub fn next_recovered(&mut self, plaintext: &mut Vec<u8>) -> Option<(u64, u8)> {
        while let Some(number) = self.solved.pop_front() {
            let Some((place, len)) = self.symbols.find(number) else { continue };
            // What is empty was REPAIR, or a question: a probe too long for the path counts
            // as lost.
            if let Some((hint, content)) = symbols::read(&self.symbols.bytes()[place..place + len])
            {
                plaintext.clear();
                plaintext.extend_from_slice(content);
                return Some((number, hint));
            }
        }
        None
    }
}

/// `equation += factor × other`, where terms that cancel disappear. Both have theirs by number: one
/// pass over both, whatever a peer has them contain.
fn add_equation(
    equation: &mut Equation,
    factor: u8,
    other: &Equation,
    merged: &mut Vec<(u64, u8)>,
) {
    add_scaled(&mut equation.sum, factor, &other.sum);
    merged.clear();
    let mut own = equation.unknowns.iter().copied().peekable();
    for &(number, f) in &other.unknowns {
        while let Some(before) = own.next_if(|u| u.0 < number) {
            merged.push(before);
        }
        let f = multiply(factor, f) ^ own.next_if(|u| u.0 == number).map_or(0, |u| u.1);
        if f != 0 {
            merged.push((number, f));
        }
    }
    merged.extend(own);
    std::mem::swap(&mut equation.unknowns, merged);
}

#[cfg(any(test, fuzzing))]
impl FecDecoder {
    /// Equations kept.
    pub fn equations(&self) -> usize {
        self.equations.len()
    }
}
