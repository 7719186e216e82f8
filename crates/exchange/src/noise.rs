//! Noise on a line: bursts of bytes that are changed, swallowed or invented.

use units::{Ratio, Rng};

#[derive(Clone, Debug)]
pub(crate) struct Noise {
    rng: Rng,
    chance: Ratio,
    burst: u32,
    /// Bytes that the burst still has.
    left: u32,
}

impl Noise {
    pub fn new(rng: Rng, chance: Ratio, burst: u32) -> Noise {
        Noise { rng, chance, burst: burst.max(1), left: 0 }
    }

    /// There is more of it from now on, or less.
    pub fn set(&mut self, chance: Ratio, burst: u32) {
        (self.chance, self.burst, self.left) = (chance, burst.max(1), 0);
    }

    /// What arrives where `byte` was sent.
    pub fn pass(&mut self, byte: u8, mut arrives: impl FnMut(u8)) {
        if self.left == 0 {
            if !self.rng.chance(self.chance) {
                return arrives(byte);
            }
            self.left = self.rng.between(1, u64::from(self.burst)) as u32;
        }
        self.left -= 1;
        let other = self.rng.next_u64() as u8;
        // Mostly a byte is changed; start bits that are missed or seen lose and invent some.
        match self.rng.below(10) {
            0 => {}
            1 => [byte, other].into_iter().for_each(arrives),
            _ => arrives(if other == byte { !byte } else { other }),
        }
    }
}
