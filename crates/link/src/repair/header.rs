//! The head of a REPAIR packet: which packets its symbol combines (L-RP-2).
//!
//! The window ends with the packet before. One byte tells its length: up to 15 as it
//! is, then eight steps to each power of two. The next byte tells what the window
//! leaves out, which is empty (REPAIR, mostly) or left after a tail: 0: nothing; 1 … 159: the
//! packets at one distance before this one, and before that one, and so on (those of a steady
//! flow), where 128 and above stand for distances in steps of eight; 160 … 255: the 1 … 96 packets
//! just before this one (the others of a tail, and what left between them).

use crate::wire::{Reader, WireError, Writer};

/// The longest window in packet numbers, and so the most plaintexts that are kept.
pub(crate) const MAX_WINDOW: usize = 2048;

/// The header hint of packets that are REPAIR.
pub(crate) const HINT: u8 = 1;

/// What the byte `code` says.
fn window_of(code: u8) -> usize {
    match code {
        0..16 => usize::from(code),
        _ => (8 + usize::from(code & 7)) << ((code >> 3) - 1).min(16),
    }
}

/// The largest window that can be told and is at most `window`.
pub(super) fn code_of(window: usize) -> u8 {
    match window {
        0..16 => window as u8,
        _ => {
            let shift = window.ilog2() - 3;
            ((shift + 1) << 3) as u8 | ((window >> shift) & 7) as u8
        }
    }
}

/// The largest window that a packet can tell, of at most `window` numbers.
pub(crate) fn told_window(window: usize) -> usize {
    window_of(code_of(window.min(MAX_WINDOW)))
}

/// The smallest window that a packet can tell, of at least `window` numbers.
pub(super) fn told_window_from(window: usize) -> usize {
    match told_window(window) {
        told if told < window.min(MAX_WINDOW) => told + (1 << (told.ilog2() - 3)),
        told => told,
    }
}

/// The distance that `code` stands for.
fn period_of(code: u8) -> u64 {
    match code {
        0..128 => u64::from(code),
        _ => 128 + (u64::from(code) - 128) * 8,
    }
}

/// Nothing is left out.
pub(super) const NOTHING: u8 = 0;

/// The first code of a run just before, and how many of them there are.
const RUN: u8 = 160;
const RUNS: u64 = 96;

/// Can it be told that the `count` packets just before are left out?
pub(super) fn can_tell_run(count: u64) -> bool {
    count <= RUNS
}

/// How it is told that the `count` packets just before are left out, or the nearest of them.
pub(super) fn code_of_run(count: u64) -> u8 {
    match count {
        0 => NOTHING,
        _ => RUN + (count.min(RUNS) - 1) as u8,
    }
}

/// How the distance `period` is told, if it can be.
pub(super) fn code_of_period(period: u64) -> Option<u8> {
    let code = if period < 128 { period } else { 128 + (period - 128) / 8 };
    let code = u8::try_from(code).ok().filter(|c| (1..RUN).contains(c))?;
    (period_of(code) == period).then_some(code)
}

/// The largest distance that can be told and is at most `period`.
pub(super) fn told_period(period: u64) -> u64 {
    match period {
        0..128 => period.max(1),
        _ => (period & !7).min(period_of(RUN - 1)),
    }
}

/// Bytes of a head.
pub(super) const LEN: usize = 2;

/// Writes the head; the caller saw that it fits.
pub(super) fn write(w: &mut Writer<'_>, window: usize, left_out: u8) {
    w.reserve(LEN).copy_from_slice(&[code_of(window), left_out]);
}

/// Reads the head of repair packet `number`: the first number of its window, and what
/// is left out, from the newest down, in `these`. The symbol follows.
pub(super) fn read<'a>(
    number: u64,
    payload: &'a [u8],
    these: &mut Vec<u64>,
) -> Result<(u64, &'a [u8]), WireError> {
    these.clear();
    let mut r = Reader::new(payload);
    let window = window_of(r.byte()?);
    let first = number.checked_sub(window as u64).ok_or(WireError::Invalid)?;
    if window == 0 || window > MAX_WINDOW {
        return Err(WireError::Invalid);
    }
    match r.byte()? {
        NOTHING => {}
        code @ RUN.. => these.extend((first..number).rev().take(usize::from(code - RUN) + 1)),
        code => {
            let mut at = number;
            while at - first >= period_of(code) {
                at -= period_of(code);
                these.push(at);
            }
        }
    }
    Ok((first, r.rest()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_told_within_an_eighth() {
        for window in 1..=MAX_WINDOW {
            let told = told_window(window);
            assert!(told <= window && told * 8 > window * 7, "{window}: {told}");
            assert_eq!(told_window(told), told);
            let from = told_window_from(window);
            assert!(from >= window && from * 8 < window * 9 + 8, "{window}: {from}");
            assert_eq!(told_window(from), from);
        }
    }

    #[test]
    fn distances_are_told_in_steps() {
        for period in 1..=period_of(RUN - 1) {
            let told = told_period(period);
            assert!(told <= period && period - told < 8, "{period}: {told}");
            assert_eq!(code_of_period(told).map(period_of), Some(told));
        }
    }

    #[test]
    fn what_is_left_out_is_read_as_it_was_written() {
        let number = 1_000_000;
        let every: Vec<u64> = (1..=10).map(|k| number - k * 32).collect();
        let run = |n: u64| (1..=n).map(|k| number - k).collect::<Vec<_>>();
        for (code, these) in [
            (NOTHING, vec![]),
            (code_of_period(32).unwrap(), every),
            (code_of_run(0), vec![]),
            (code_of_run(3), run(3)),
            (code_of_run(200), run(RUNS)),
        ] {
            let mut buf = [0u8; 64];
            let mut w = Writer::new(&mut buf);
            write(&mut w, 320, code);
            assert_eq!(w.len(), LEN);
            let mut read_back = vec![7];
            let (first, rest) = read(number, &buf[..LEN], &mut read_back).expect("well formed");
            assert_eq!((first, rest.len(), read_back), (number - 320, 0, these));
        }
    }
}
