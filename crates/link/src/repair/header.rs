//! The head of a REPAIR packet: which packets its symbol combines (L-RP-2).
//!
//! The window ends with the packet before. One byte tells its length: up to 15 as it
//! is, then eight steps to each power of two. The next byte tells what the window
//! leaves out, because it carried nothing to repair: 0: nothing; 1 … 159: the packets
//! at one distance before this one, and before that one, and so on (the repair packets
//! of a steady flow), where 128 and above stand for distances in steps of eight; 160 … 254:
//! the 1 … 95 packets just before this one (the other repair packets of a tail); 255: a
//! list: its length, then for each number, from the newest down, the distance to the one
//! above it, less one.

use super::MAX_WINDOW;
use crate::wire::{Reader, WireError, Writer, varint_len};

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
fn code_of(window: usize) -> u8 {
    match window {
        0..16 => window as u8,
        _ => {
            let shift = window.ilog2() - 3;
            ((shift + 1) << 3) as u8 | ((window >> shift) & 7) as u8
        }
    }
}

/// The largest window that a packet can tell, of at most `window` numbers.
pub(super) fn told_window(window: usize) -> usize {
    window_of(code_of(window.min(MAX_WINDOW)))
}

/// The distance that `code` stands for.
fn period_of(code: u8) -> u64 {
    match code {
        0..128 => u64::from(code),
        _ => 128 + (u64::from(code) - 128) * 8,
    }
}

/// The first code of a run just before, and how many of them there are.
const RUN: u8 = 160;
const RUNS: u64 = 95;

/// How it is told that the `count` packets just before are left out.
pub(super) fn code_of_run(count: u64) -> Option<u8> {
    (1..=RUNS).contains(&count).then(|| RUN + (count - 1) as u8)
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

/// What a window leaves out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LeftOut {
    Nothing,
    /// What this code stands for.
    Told(u8),
    These,
}

/// Bytes of a head without a list.
pub(super) const PLAIN: usize = 2;

/// Bytes of the head that leaves out `these`, numbers below `number` from the newest down.
pub(super) fn list_len(number: u64, these: &[u64]) -> usize {
    let gaps = distances(number, these).map(varint_len).sum::<usize>();
    PLAIN + varint_len(these.len() as u64) + gaps
}

fn distances(number: u64, these: &[u64]) -> impl Iterator<Item = u64> + '_ {
    let above = std::iter::once(number).chain(these.iter().copied());
    these.iter().zip(above).map(|(n, above)| above - n - 1)
}

/// Writes the head; the caller saw that it fits.
pub(super) fn write(w: &mut Writer<'_>, number: u64, window: usize, out: &LeftOut, these: &[u64]) {
    let second = match out {
        LeftOut::Nothing => 0,
        LeftOut::Told(code) => *code,
        LeftOut::These => 255,
    };
    w.reserve(PLAIN).copy_from_slice(&[code_of(window), second]);
    if *out == LeftOut::These {
        w.varint(these.len() as u64);
        for d in distances(number, these) {
            w.varint(d);
        }
    }
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
        0 => {}
        255 => {
            let mut above = number;
            for _ in 0..r.varint()?.min(window as u64) {
                above =
                    above.checked_sub(r.varint()?.saturating_add(1)).ok_or(WireError::Invalid)?;
                these.push(above);
            }
        }
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
        let list = [999_990, 999_989, 999_700];
        let every: Vec<u64> = (1..=10).map(|k| number - k * 32).collect();
        for (out, these) in [
            (LeftOut::Nothing, vec![]),
            (LeftOut::Told(32), every),
            (LeftOut::Told(code_of_run(3).unwrap()), vec![number - 1, number - 2, number - 3]),
            (LeftOut::These, list.to_vec()),
        ] {
            let mut buf = [0u8; 64];
            let mut w = Writer::new(&mut buf);
            write(&mut w, number, 320, &out, &these);
            let len = w.len();
            assert_eq!(len, if out == LeftOut::These { list_len(number, &these) } else { PLAIN });
            let mut read_back = vec![7];
            let (first, rest) = read(number, &buf[..len], &mut read_back).expect("well formed");
            assert_eq!((first, rest.len(), read_back), (number - 320, 0, these));
        }
    }
}
