//! X25519 that remembers. Every input of a fuzzer begins with the same seeds, so most
//! exchanges come again; computed anew they would take most of the fuzzer's time.

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
