//! Which packet numbers have been received: the guard against replays (RFC 6479's
//! idea, a bitmap in a ring of words) and the decoder of truncated packet numbers.
//!
//! Packet numbers belong to the session and go on under new keys, so one window
//! serves all of a session's keys.

/// Words of the ring; a power of two, so that a packet number finds its word by a mask.
const WORDS: u64 = 256;
/// Bits of a word.
const BITS: u64 = u64::BITS as u64;

/// Packet numbers up to this far below the largest received are told apart; older
/// packets are refused. 16,320: at 500 Mbit/s and 1,400-byte packets 0.36 s of
/// reordering.
pub const WINDOW: u64 = (WORDS - 1) * BITS;

/// The packet numbers of one session that have been received. 2 kB.
#[derive(Clone)]
pub struct ReplayWindow {
    largest: Option<u64>,
    /// Bit `n % BITS` of word `n / BITS % WORDS`: packet `n` was received.
    ring: Box<[u64; WORDS as usize]>,
}

/// Why a packet number is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stale {
    /// It was received before.
    Duplicate,
    /// It is more than [`WINDOW`] below the largest received.
    TooOld,
}

impl Default for ReplayWindow {
    fn default() -> ReplayWindow {
        ReplayWindow { largest: None, ring: Box::new([0; WORDS as usize]) }
    }
}

impl ReplayWindow {
    /// The largest packet number received.
    pub const fn largest(&self) -> Option<u64> {
        self.largest
    }

    /// Whether `number` is new (L-PP-5). Asked before a packet is opened, to save the
    /// work; a forged packet must change nothing, so only [`mark`](Self::mark) does.
    ///
    /// # Errors
    /// [`Stale`] if it was received before or is too old to know.
    pub fn check(&self, number: u64) -> Result<(), Stale> {
        match self.largest {
            Some(largest) if number <= largest => {
                if largest - number > WINDOW {
                    Err(Stale::TooOld)
                } else if self.ring[word(number)] & bit(number) != 0 {
                    Err(Stale::Duplicate)
                } else {
                    Ok(())
                }
            }
            _ => Ok(()),
        }
    }

    /// Notes an authenticated packet that passed [`check`](Self::check). True if its
    /// number is the largest so far.
    pub fn mark(&mut self, number: u64) -> bool {
        let newest = self.largest.is_none_or(|largest| number > largest);
        if newest {
            self.clear_up_to(number);
            self.largest = Some(number);
        }
        self.ring[word(number)] |= bit(number);
        newest
    }

    /// Clears the words that come into the window when `number` becomes the largest.
    fn clear_up_to(&mut self, number: u64) {
        let Some(largest) = self.largest else { return };
        let (from, to) = (largest / BITS, number / BITS);
        if to - from >= WORDS {
            self.ring.fill(0);
        } else {
            (from + 1..=to).for_each(|w| self.ring[(w % WORDS) as usize] = 0);
        }
    }

    /// The full number of a packet whose low `8 × len` bits are `truncated`, `len` in
    /// 1…4: of all numbers with these bits the one closest to the next expected
    /// (L-PP-4, RFC 9000 appendix A.3).
    pub fn decode(&self, truncated: u32, len: usize) -> u64 {
        ReplayWindow::decode_after(self.largest, truncated, len)
    }

    /// The same for a session whose largest number received is `largest`.
    pub fn decode_after(largest: Option<u64>, truncated: u32, len: usize) -> u64 {
        let expected = largest.map_or(0, |largest| largest.saturating_add(1));
        let window = 1u64 << (8 * len);
        let candidate = (expected & !(window - 1)) | (u64::from(truncated) & (window - 1));
        if candidate.saturating_add(window / 2) <= expected
            && let Some(above) = candidate.checked_add(window)
        {
            above
        } else if candidate > expected.saturating_add(window / 2) && candidate >= window {
            candidate - window
        } else {
            candidate
        }
    }
}

/// Bytes (1…4) that `number` needs on the wire so that a receiver whose largest
/// received number is anything from `acked`, the largest that it confirmed, up to
/// `number` − 1 decodes it (RFC 9000 appendix A.2: twice the distance must fit).
pub fn number_len(number: u64, acked: Option<u64>) -> usize {
    let distance = number - acked.map_or(0, |a| a.min(number)) + u64::from(acked.is_none());
    match distance {
        0..0x80 => 1,
        0x80..0x8000 => 2,
        0x8000..0x80_0000 => 3,
        _ => 4,
    }
}

const fn word(number: u64) -> usize {
    (number / BITS % WORDS) as usize
}

const fn bit(number: u64) -> u64 {
    1 << (number % BITS)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    /// L-PP-5.
    #[test]
    fn a_packet_passes_once() {
        let mut w = ReplayWindow::default();
        assert_eq!(w.check(0), Ok(()));
        assert!(w.mark(0));
        assert_eq!(w.check(0), Err(Stale::Duplicate));
        assert!(w.mark(WINDOW));
        assert_eq!(w.check(0), Err(Stale::Duplicate));
        assert_eq!(w.check(1), Ok(()));
        assert!(!w.mark(1));
        assert!(w.mark(WINDOW + 1));
        assert_eq!(w.check(0), Err(Stale::TooOld));
        assert_eq!(w.check(1), Err(Stale::Duplicate));
    }

    #[test]
    fn a_leap_forgets_only_what_it_passes() {
        let mut w = ReplayWindow::default();
        w.mark(5);
        w.mark(5 + 64 * WORDS);
        assert_eq!(w.check(6), Err(Stale::TooOld));
        assert_eq!(w.check(5 + 64), Ok(()), "never received, inside the window");
        w.mark(u64::MAX);
        assert_eq!(w.check(u64::MAX), Err(Stale::Duplicate));
        assert_eq!(w.check(u64::MAX - 1), Ok(()));
    }

    #[test]
    fn the_example_of_rfc_9000_a_3_decodes() {
        let mut w = ReplayWindow::default();
        w.mark(0xa82f_30ea);
        assert_eq!(w.decode(0x9b32, 2), 0xa82f_9b32);
    }

    #[test]
    fn decoding_near_the_ends_does_not_wrap() {
        let mut w = ReplayWindow::default();
        assert_eq!(w.decode(0xff, 1), 0xff, "nothing lies below zero");
        w.mark(u64::MAX - 3);
        assert_eq!(w.decode(0xff, 1), u64::MAX);
        assert_eq!(w.decode(0x01, 1) & 0xff, 0x01);
    }

    proptest! {
        /// Compared with a set of everything received.
        #[test]
        fn the_window_agrees_with_a_plain_set(
            steps in prop::collection::vec(
                prop_oneof![4 => -40i64..40, 1 => -20_000i64..20_000, 1 => 0i64..200_000], 1..400)
        ) {
            let mut window = ReplayWindow::default();
            let mut seen = BTreeSet::new();
            let mut at = 1_000i64;
            for step in steps {
                at = (at + step).max(0);
                let number = at as u64;
                let largest = seen.last().copied();
                let expected = match largest {
                    Some(l) if number <= l && l - number > WINDOW => Err(Stale::TooOld),
                    _ if seen.contains(&number) => Err(Stale::Duplicate),
                    _ => Ok(()),
                };
                prop_assert_eq!(window.check(number), expected);
                if expected.is_ok() {
                    prop_assert_eq!(window.mark(number), largest.is_none_or(|l| number > l));
                    seen.insert(number);
                }
            }
        }

        /// Whatever arrived of what was sent, the chosen length decodes.
        #[test]
        fn a_number_sent_at_its_length_decodes_whatever_was_lost(
            number in prop_oneof![0u64..70_000, 0u64..1 << 62],
            back in 0u64..0x7fff_ffff,
            arrived in any::<u64>(),
            nothing in any::<bool>(),
        ) {
            let acked = number.checked_sub(back + 1).filter(|_| !nothing || number > 1 << 30);
            let len = number_len(number, acked);
            let mut window = ReplayWindow::default();
            // Anything between what the sender knows and the packet itself may be largest.
            let floor = acked.unwrap_or(0);
            if number > floor {
                window.mark(floor + arrived % (number - floor));
            } else if let Some(a) = acked {
                window.mark(a);
            }
            prop_assert_eq!(window.decode(number as u32, len), number);
        }
    }
}
