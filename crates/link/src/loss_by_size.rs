//! How long packets should be where some are lost (R-HEADER; spec/link.md, L-PS).
//!
//! Bit errors lose a packet of n bytes with a probability that grows with n, so shorter ones
//! carry more although each has headers. Where losses do
//! not depend on the length, shorter packets only cost headers. Both are taken for possible:
//!
//! - *by bits*: the probability is β n, so a lost packet has the length s with a probability
//!   that is s / mean times as high as the share of such packets among all;
//! - *by packets*: it is as high as that share.
//!
//! So each lost packet counts log2(s / mean) for the first, which is negative for a short one. As
//! long as packets are of one length nothing is learned: every eighth is made short, and every
//! 32nd once it is known which it is. The length is the best for as much of the losses as the odds
//! are that they go by bits, which is never far from the best of either.
//!
//! Lengths are in bytes as the link counts them. Logarithms are to the base 2, in 1/256.

use std::cmp::Ordering;

/// Packets, and losses, over which is counted: it must follow the weather.
const MEMORY: u64 = 16_384;
/// See [`MEMORY`].
const LOSSES: u64 = 1_024;
/// Full packets that are taken to have arrived before any did: the first losses may be chance.
const PRIOR: u64 = 8;
/// The odds that losses go by bits before anything is known: to take the ones for the others
/// costs 1.7 % of a link that loses a tenth of the packets, and the other way round 2.4 %.
const FIRST_ODDS: i64 = 2 * ONE;
/// Losses before packets are made short to learn more.
const FIRST: u64 = 8;
/// A short packet is this part of a full one, but has this many times the headers.
const SHORT: u64 = 4;
/// See [`SHORT`].
const LEAST: u64 = 4;
/// Every so many packets one is short while it is not known whether losses go by bits, and when
/// it is.
const IN_DOUBT: u32 = 8;
/// See [`IN_DOUBT`].
const KNOWN: u32 = 32;
/// It is known at odds of 2^6, as a logarithm.
const CERTAIN: i64 = 6 * ONE;
/// The length that others are compared with, as a logarithm: near all of them, so that little is
/// lost with the fractions where what is counted is halved.
const REFERENCE: i64 = 10 * ONE;
/// Packets count that have this many times the headers.
const LEAST_TOLD: u64 = 3;
/// One, as a logarithm.
const ONE: i64 = 256;
/// Certainty, as a chance.
const ALWAYS: u64 = 256;

/// What was lost of which length, and the length that follows.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LossBySize {
    /// Bytes of a packet that are not payload, and the longest packet.
    headers: u64,
    longest: u64,
    /// Packets of which it is known what became of them, and their bytes.
    packets: u64,
    bytes: u64,
    /// Losses, of which those in a row are one, and by how much they were shorter than
    /// [`REFERENCE`]: the sum of the logarithms.
    lost: u64,
    shorter: i64,
    newest_lost: Option<u64>,
    /// The odds that losses go by bits, as a logarithm.
    odds: i64,
    /// The length that follows; is another one worth knowing about?
    best: u64,
    matters: bool,
    /// Full packets since the last short one.
    since_short: u32,
}

impl LossBySize {
    /// The link's packets have so many bytes of headers, and so many at most in all.
    pub fn fit(&mut self, headers: u64, longest: u64) {
        (self.headers, self.longest, self.best) = (headers, longest, longest);
        if self.lost > 0 {
            self.judge();
        }
    }

    /// The losses so far say nothing about lengths: the rate caused them (a policer).
    pub fn forget(&mut self) {
        let (headers, longest) = (self.headers, self.longest);
        *self = LossBySize { newest_lost: self.newest_lost, ..LossBySize::default() };
        self.fit(headers, longest);
    }

    /// The same for a new session with the peer, whose packets are numbered anew.
    pub fn renewed(&self) -> LossBySize {
        LossBySize { newest_lost: None, ..*self }
    }

    /// The longest packet that is worth its risk.
    pub fn best(&self) -> u64 {
        self.best
    }

    /// The length of the next packet that one stream could fill.
    pub fn next(&mut self) -> u64 {
        let every = if self.odds.abs() < CERTAIN { IN_DOUBT } else { KNOWN };
        self.since_short += 1;
        if !self.matters || self.lost < FIRST || self.since_short < every {
            return self.best;
        }
        self.since_short = 0;
        (self.best / SHORT).max(self.headers * LEAST).min(self.best)
    }

    /// A packet arrived, of this length.
    pub fn on_arrived(&mut self, size: u16) {
        if !self.tells(size) {
            return;
        }
        self.packets += 1;
        self.bytes += u64::from(size);
        if self.lost > 0 && self.packets.is_multiple_of(64) {
            self.judge();
        }
    }

    /// Packet `number` did not arrive, of this length.
    pub fn on_lost(&mut self, number: u64, size: u16) {
        let before = self.newest_lost.replace(number);
        if !self.tells(size) || before.is_some_and(|n| n.abs_diff(number) <= 1) {
            return; // What takes several in a row does not go by bits.
        }
        self.packets += 1;
        self.bytes += u64::from(size);
        self.lost += 1;
        self.shorter += REFERENCE - log2(u64::from(size));
        if self.packets > MEMORY || self.lost > LOSSES {
            self.packets /= 2;
            self.bytes /= 2;
            self.lost /= 2;
            self.shorter /= 2;
        }
        self.judge();
    }

    /// Reports, questions and the like are so short that nothing follows for full packets.
    fn tells(&self, size: u16) -> bool {
        u64::from(size) >= self.headers * LEAST_TOLD
    }

    fn judge(&mut self) {
        let mean = REFERENCE + log2(self.packets) - log2(self.bytes);
        self.odds = FIRST_ODDS + self.lost as i64 * mean - self.shorter;
        self.matters = self.best_if(ALWAYS) < self.longest - self.longest / 8;
        self.best = if self.matters { self.best_if(chance(self.odds)) } else { self.longest };
    }

    /// The best length where so much of the losses is by bits: n = h/2 + √(h²/4 + h/β), β losses
    /// a byte.
    fn best_if(&self, by_bits: u64) -> u64 {
        let (h, bytes) = (self.headers, self.bytes + PRIOR * self.longest);
        let Some(lost) = (self.lost * by_bits).checked_sub(1) else { return self.longest };
        let best = h / 2 + (h * h / 4 + h * bytes * ALWAYS / (lost + 1)).isqrt();
        best.max(h * LEAST).min(self.longest)
    }
}

/// The chance at these odds.
fn chance(odds: i64) -> u64 {
    // At odds of 1 : 2^n.
    let n = odds.unsigned_abs().min(8 * ONE as u64);
    let (whole, part) = (n / ONE as u64, n % ONE as u64);
    // Between powers of two as the crow flies.
    let against = (ALWAYS + part) << whole;
    let least = ALWAYS * ALWAYS / (ALWAYS + against);
    match odds.cmp(&0) {
        Ordering::Greater => ALWAYS - least,
        _ => least,
    }
}

/// The logarithm of a number above 0.
fn log2(n: u64) -> i64 {
    let Some(whole) = n.checked_ilog2() else { return 0 };
    // 1 … 2, in 2^-31.
    let mut mantissa = (u128::from(n) << 31) >> whole;
    let mut log = i64::from(whole);
    for _ in 0..ONE.ilog2() {
        mantissa = (mantissa * mantissa) >> 31;
        let bit = mantissa >> 32;
        mantissa >>= bit;
        log = (log << 1) | bit as i64;
    }
    log
}

#[cfg(test)]
#[allow(clippy::disallowed_methods)] // The library's are what they are compared with.
mod tests {
    use super::*;
    use units::Rng;

    const HEADERS: u64 = 52;

    fn fresh(longest: u64) -> LossBySize {
        let mut sizes = LossBySize::default();
        sizes.fit(HEADERS, longest);
        sizes
    }

    /// Sends packets as long as it says, of which `lost` in a million are lost; answers the
    /// length after every 100.
    fn send(
        sizes: &mut LossBySize,
        seed: u64,
        packets: u64,
        lost: impl Fn(u64) -> u64,
    ) -> Vec<u64> {
        let mut rng = Rng::new(seed);
        let mut lengths = Vec::new();
        for number in 0..packets {
            let size = sizes.next();
            if rng.below(1_000_000) < lost(size) {
                sizes.on_lost(number * 2, size as u16);
            } else {
                sizes.on_arrived(size as u16);
            }
            if number % 100 == 99 {
                lengths.push(sizes.best());
            }
        }
        lengths
    }

    /// A bit-error ratio of so many in 10 million.
    fn by_bits(errors: f64) -> impl Fn(u64) -> u64 {
        move |size| ((1.0 - (1.0 - errors * 1e-7).powf(size as f64 * 8.0)) * 1e6) as u64
    }

    #[test]
    fn logarithms_and_chances_are_right() {
        for n in [1u64, 2, 3, 100, 1_359, 1_500, 123_456_789, u64::MAX] {
            let exact = (n as f64).log2() * 256.0;
            assert!((log2(n) as f64 - exact).abs() <= 1.1, "{n}: {} {exact}", log2(n));
        }
        assert_eq!(chance(0), ALWAYS / 2);
        for odds in [-3_000, -700, -256, -10, 10, 300, 900, 5_000] {
            let exact = 256.0 / (1.0 + (-(odds.clamp(-2048, 2048) as f64) / 256.0).exp2());
            assert!((chance(odds) as f64 - exact).abs() < 4.0, "{odds}: {} {exact}", chance(odds));
        }
    }

    #[test]
    fn packets_become_short_with_the_first_losses_by_bits_and_as_short_as_is_best() {
        for seed in 0..20 {
            let mut sizes = fresh(1500);
            let lengths = send(&mut sizes, seed, 20_000, by_bits(100.0));
            assert!((650..1300).contains(&lengths[9]), "{seed}: {lengths:?}");
            // 830 is the best; from 700 to 1,000 no more than 0.4 % are given away.
            let known = &lengths[30..];
            let good = known.iter().filter(|n| (700..=1000).contains(*n)).count();
            assert!(good * 10 > known.len() * 9, "{seed}: {lengths:?}");
        }
    }

    #[test]
    fn losses_that_do_not_go_by_bits_leave_packets_long_after_a_while() {
        for (seed, loss) in [(1, 100_000), (2, 100_000), (3, 100_000), (4, 50_000), (5, 200_000)] {
            let mut sizes = fresh(1500);
            let lengths = send(&mut sizes, seed, 40_000, |_| loss);
            let known = &lengths[40..];
            let good = known.iter().filter(|n| **n >= 1_400).count();
            assert!(good * 10 > known.len() * 9, "{seed}: {lengths:?}");
        }
    }

    #[test]
    fn where_losses_are_few_no_packet_is_short() {
        let mut sizes = fresh(1500);
        for (seed, errors) in [(1, 0.0), (2, 1.0), (3, 10.0)] {
            send(&mut sizes, seed, 5_000, |size| {
                assert_eq!(size, 1500);
                by_bits(errors)(size)
            });
        }
    }

    #[test]
    fn losses_of_reports_say_nothing_of_full_packets() {
        let mut sizes = fresh(1500);
        for number in 0..3_000 {
            match number % 10 {
                0 => sizes.on_lost(number, 70),
                _ => sizes.on_arrived(70),
            }
        }
        assert_eq!(sizes.best(), 1500);
    }

    #[test]
    fn a_burst_is_one_loss() {
        let mut sizes = fresh(1500);
        for number in 0..3_000 {
            match number % 300 {
                280.. => sizes.on_lost(number, 1500),
                _ => sizes.on_arrived(1500),
            }
        }
        assert_eq!((sizes.lost, sizes.best()), (10, 1500));
    }

    #[test]
    fn what_is_known_outlives_sessions_addresses_and_other_paths() {
        let mut before = fresh(1500);
        send(&mut before, 1, 20_000, by_bits(100.0));
        before.fit(HEADERS, 1500);
        let mut after = before.renewed();
        assert_eq!(after.best(), before.best());
        after.fit(HEADERS + 20, 1500);
        assert!(after.best() > before.best() && after.best() < 1100, "{}", after.best());
        after.fit(HEADERS, 576);
        assert_eq!(after.best(), 576);
        after.fit(HEADERS, 1500);
        assert_eq!(after.best(), before.best());
    }

    #[test]
    fn what_the_weather_was_is_forgotten() {
        let mut sizes = fresh(1500);
        send(&mut sizes, 1, 20_000, by_bits(100.0));
        let lengths = send(&mut sizes, 2, 60_000, by_bits(1.0));
        assert_eq!(lengths.last(), Some(&1500), "{lengths:?}");
    }
}
