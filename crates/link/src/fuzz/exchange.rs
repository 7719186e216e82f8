//! Handshakes at a fuzzer's speed: cryptography would take most of its time, and is not what it
//! looks for.
//!
//! X25519 remembers: every input of a fuzzer begins with the same seeds, so most exchanges come
//! again. The hash is none that a cryptographer would take.

use std::cell::RefCell;
use std::collections::BTreeMap;

use crate::keys::{KEY_LEN, PublicKey, Secret, X25519};

/// Exchanges remembered; then all are forgotten. 10 MB.
const MOST: usize = 100_000;

type Key = [u8; KEY_LEN];

thread_local! {
    static PUBLIC: RefCell<BTreeMap<Key, PublicKey>> = const { RefCell::new(BTreeMap::new()) };
    static SHARED: RefCell<BTreeMap<(Key, Key), Option<Key>>> =
        const { RefCell::new(BTreeMap::new()) };
}

/// Does what [`X25519`] does, with the same results.
pub(crate) struct Remembered(Key);

impl Remembered {
    pub fn new(secret: &Key) -> Remembered {
        Remembered(*secret)
    }

    pub fn public(&self) -> PublicKey {
        PUBLIC.with_borrow_mut(|known| {
            if known.len() == MOST {
                known.clear();
            }
            *known.entry(self.0).or_insert_with(|| X25519::new(&self.0).public())
        })
    }

    pub fn agree(&self, public: &Key) -> Option<Secret> {
        let shared = SHARED.with_borrow_mut(|known| {
            if known.len() == MOST {
                known.clear();
            }
            let agree = || X25519::new(&self.0).agree(public).map(|s| *s.as_bytes());
            *known.entry((self.0, *public)).or_insert_with(agree)
        });
        shared.map(Secret::new)
    }
}

/// Takes the place of BLAKE2s within a Noise handshake: the same inputs in the same order give the
/// same 32 bytes, and others most likely others. Whoever wants to can make two that are alike.
#[derive(Clone, Debug, Default)]
pub(crate) struct Folded {
    lanes: [u64; 4],
    words: usize,
}

impl Folded {
    /// An odd number whose bits look random: the golden ratio's.
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;

    fn word(&mut self, word: u64) {
        let lane = &mut self.lanes[self.words % 4];
        *lane = (lane.rotate_left(29) ^ word).wrapping_add(1).wrapping_mul(Folded::ODD);
        self.words += 1;
    }

    pub fn update(&mut self, data: &[u8]) {
        let words = data.chunks(8).map(|chunk| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            u64::from_le_bytes(word)
        });
        words.for_each(|word| self.word(word));
        self.word(data.len() as u64);
    }

    pub fn finalize(mut self) -> [u8; 32] {
        // Each lane gets to know of all others.
        for _ in 0..8 {
            let before = self.lanes[(self.words + 3) % 4];
            self.word(before ^ before >> 32);
        }
        let mut out = [0; 32];
        for (to, lane) in out.chunks_exact_mut(8).zip(self.lanes) {
            to.copy_from_slice(&(lane ^ lane >> 32).to_le_bytes());
        }
        out
    }
}
