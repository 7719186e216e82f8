//! What the way through space does to a packet: bit errors, bursts, losses, duplicates.

use serde::Serialize;
use units::{ByteCount, Ratio, Rng};

use crate::config::{ChannelConfig, GilbertElliott};

/// What became of a packet that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It arrived whole.
    Delivered,
    /// It arrived with one bit flipped: see [`flip_bit`], which takes this number.
    Corrupted(u64),
    /// It did not arrive.
    Lost(LossCause),
}

/// Why a packet did not arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LossCause {
    /// There was no link.
    Outage,
    /// At least one of its bits was hit.
    BitError,
    /// The Gilbert–Elliott process took it.
    Burst,
    /// Independent loss.
    Random,
    /// It was longer than the path takes.
    TooLong,
}

/// Flips the bit of `bytes` that `draw` (uniform over u64) names; empty stays empty.
pub fn flip_bit(bytes: &mut [u8], draw: u64) {
    let bits = bytes.len() as u128 * 8;
    let bit = (draw as u128 * bits) >> 64;
    if let Some(byte) = bytes.get_mut((bit / 8) as usize) {
        *byte ^= 1 << (bit % 8);
    }
}

/// Bit errors of a fixed ratio, exact to about one part in 10¹³.
///
/// The chance that n bytes survive is q^(8n) with q = 1 − ber. The powers
/// q^8, q^16, q^32 … are kept in 1/2^64; a length multiplies those that its binary
/// digits name.
#[derive(Clone, Debug)]
pub(crate) struct BitErrors {
    powers: Option<[u64; 32]>,
}

impl BitErrors {
    pub(crate) fn new(ber: Ratio) -> BitErrors {
        if ber == Ratio::ZERO {
            return BitErrors { powers: None };
        }
        let mut q = u64::MAX - ber.as_bits();
        // Rounding (not truncation) keeps the error of a product without a bias.
        for _ in 0..3 {
            q = product(q, q);
        }
        let mut powers = [0; 32];
        for slot in &mut powers {
            *slot = q;
            q = product(q, q);
        }
        BitErrors { powers: Some(powers) }
    }

    /// The chance that `len` bytes survive, in parts per 2^64 (2^64 itself as its
    /// predecessor).
    pub(crate) fn survival(&self, len: ByteCount) -> u64 {
        let Some(powers) = &self.powers else { return u64::MAX };
        let len = len.0.min(u64::from(u32::MAX));
        let chosen = powers.iter().enumerate().filter(|(i, _)| len >> i & 1 == 1);
        chosen.fold(u64::MAX, |all, (_, q)| product(all, *q))
    }

    fn hit(&self, len: ByteCount, rng: &mut Rng) -> bool {
        self.powers.is_some() && rng.next_u64() >= self.survival(len)
    }
}

/// a × b for fractions in parts per 2^64, rounded.
fn product(a: u64, b: u64) -> u64 {
    let exact = a as u128 * (b as u128 + 1);
    (exact.saturating_add(1 << 63) >> 64) as u64
}

/// The Gilbert–Elliott chain and where it is.
#[derive(Clone, Debug)]
struct Bursts {
    process: Option<GilbertElliott>,
    bad: bool,
}

impl Bursts {
    fn hit(&mut self, rng: &mut Rng) -> bool {
        let Some(g) = self.process else { return false };
        let (survives, changes) = if self.bad { (g.h, g.r) } else { (g.k, g.p) };
        let lost = !rng.chance(survives);
        self.bad ^= rng.chance(changes);
        lost
    }
}

/// Everything random that happens to a packet, each with its own generator.
#[derive(Clone, Debug)]
pub(crate) struct Impairments {
    errors: BitErrors,
    bursts: Bursts,
    loss: Ratio,
    mtu: Option<u16>,
    reorder: Ratio,
    duplicate: Ratio,
    corrupt: Ratio,
    rngs: [Rng; 6],
}

/// What the impairments do to one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) fate: Fate,
    /// It takes the configured time longer, and later packets may overtake it.
    pub(crate) detour: bool,
    /// A second copy arrives, too.
    pub(crate) twice: bool,
}

impl Impairments {
    pub(crate) fn new(config: &ChannelConfig, seed: u64) -> Impairments {
        let mut root = Rng::new(seed);
        Impairments {
            errors: BitErrors::new(config.ber),
            bursts: Bursts { process: config.burst, bad: false },
            loss: config.loss,
            mtu: config.mtu,
            reorder: config.reorder,
            duplicate: config.duplicate,
            corrupt: config.corrupt,
            rngs: std::array::from_fn(|_| root.fork()),
        }
    }

    /// New probabilities; the generators and the burst's state go on.
    pub(crate) fn reconfigure(&mut self, config: &ChannelConfig) {
        self.errors = BitErrors::new(config.ber);
        self.bursts.process = config.burst;
        self.bursts.bad &= config.burst.is_some();
        self.loss = config.loss;
        self.mtu = config.mtu;
        self.reorder = config.reorder;
        self.duplicate = config.duplicate;
        self.corrupt = config.corrupt;
    }

    /// Decides about a packet of `len` bytes. Every process is asked about every
    /// packet, whatever the others say, so that they stay independent.
    pub(crate) fn judge(&mut self, len: ByteCount, outage: bool) -> Verdict {
        let [errors, bursts, loss, reorder, duplicate, corrupt] = &mut self.rngs;
        let bit_error = self.errors.hit(len, errors);
        let burst = self.bursts.hit(bursts);
        let random = loss.chance(self.loss);
        let detour = reorder.chance(self.reorder);
        let twice = duplicate.chance(self.duplicate);
        let flipped = corrupt.chance(self.corrupt).then(|| corrupt.next_u64());
        let too_long = self.mtu.is_some_and(|mtu| len.0 > u64::from(mtu));
        let fate = match (outage, bit_error, burst, random) {
            _ if too_long => Fate::Lost(LossCause::TooLong),
            (true, ..) => Fate::Lost(LossCause::Outage),
            (_, true, ..) => Fate::Lost(LossCause::BitError),
            (_, _, true, _) => Fate::Lost(LossCause::Burst),
            (.., true) => Fate::Lost(LossCause::Random),
            _ => flipped.map_or(Fate::Delivered, Fate::Corrupted),
        };
        Verdict { fate, detour, twice }
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods)] // The library's are what they are compared with.
mod tests {
    use super::*;

    fn exact(ber: f64, len: u64) -> f64 {
        ((8 * len) as f64 * (-ber).ln_1p()).exp()
    }

    #[test]
    fn survival_follows_the_formula_for_all_sizes_and_ratios() {
        for ber in [1e-9, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 0.1] {
            let errors = BitErrors::new(Ratio::from_f64(ber));
            for len in [1, 20, 40, 576, 1_500, 9_000, 65_535] {
                let got = errors.survival(ByteCount(len)) as f64 / 2f64.powi(64);
                let off = (got - exact(ber, len)).abs();
                assert!(off < 1e-12, "ber {ber} len {len}: off by {off:e}");
            }
        }
    }

    #[test]
    fn the_ends_are_exact() {
        let mut rng = Rng::new(3);
        let never = BitErrors::new(Ratio::ZERO);
        let always = BitErrors::new(Ratio::ONE);
        for _ in 0..1_000 {
            assert!(!never.hit(ByteCount(1_500), &mut rng));
            assert!(always.hit(ByteCount(1), &mut rng));
            assert!(!BitErrors::new(Ratio::from_f64(0.5)).hit(ByteCount(0), &mut rng));
        }
    }

    #[test]
    fn a_flip_changes_exactly_one_bit_and_reaches_both_ends() {
        for draw in [0, 1 << 40, u64::MAX] {
            let mut bytes = [0u8; 5];
            flip_bit(&mut bytes, draw);
            assert_eq!(bytes.iter().map(|b| b.count_ones()).sum::<u32>(), 1);
        }
        let mut bytes = [0u8; 5];
        flip_bit(&mut bytes, u64::MAX);
        assert_eq!(bytes[4], 0x80);
        flip_bit(&mut [], 7);
    }
}
