//! Keys of a node, written as WireGuard writes them (base64 of 32 bytes), and the
//! source of every random byte that this crate uses.
//!
//! Secrets are wiped when dropped and never shown by `Debug`. Nothing here asks the
//! system for randomness: the owner seeds one [`Entropy`], so that a simulation of a
//! thousand handshakes replays exactly from its seed.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use aws_lc_rs::agreement;
use base64ct::{Base64, Encoding};
use blake2::digest::consts::{U16, U32};
use blake2::digest::{Digest, KeyInit, Mac};
use zeroize::Zeroize;

/// Bytes of every key: X25519 keys (RFC 7748), pre-shared and AEAD keys alike.
pub const KEY_LEN: usize = 32;
/// Characters of a key in base64, with padding.
const TEXT_LEN: usize = 44;

/// Why a text is not a key. It never repeats the text, which may be a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// Not 44 characters of base64 that mean 32 bytes.
    #[error("not a key: a key is 32 bytes in base64, 44 characters that end with \"=\"")]
    NotAKey,
    /// The point is of low order, so that any private key agrees with it on zero.
    #[error("not a usable public key: it gives the same shared secret with every private key")]
    LowOrder,
}

/// What the two nodes know each other by: an X25519 public key.
///
/// Keys are ordered as their bytes are; the order settles simultaneous handshakes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PublicKey([u8; KEY_LEN]);

/// The secret half of a node's identity.
#[derive(Clone)]
pub struct PrivateKey {
    secret: Secret,
    public: PublicKey,
}

/// A secret that two nodes share beforehand, mixed into their handshakes; all zeros
/// when none is configured.
#[derive(Clone)]
pub struct PresharedKey(Secret);

/// 32 bytes that are wiped when dropped and not shown by `Debug`.
#[derive(Clone)]
pub(crate) struct Secret([u8; KEY_LEN]);

impl PublicKey {
    /// The key of these bytes, as they travel.
    pub const fn from_bytes(bytes: [u8; KEY_LEN]) -> PublicKey {
        PublicKey(bytes)
    }

    /// The bytes as they travel.
    pub const fn as_bytes(&self) -> &[u8; KEY_LEN] {
        &self.0
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = [0; TEXT_LEN];
        f.write_str(encode(&self.0, &mut text))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for PublicKey {
    type Err = KeyError;
    /// The base64 form. Points of low order are refused: no node has such a key.
    fn from_str(s: &str) -> Result<PublicKey, KeyError> {
        let key = PublicKey(decode(s)?.0);
        // Every scalar is a multiple of the cofactor once clamped, so any private key tells.
        match PrivateKey::from_bytes([1; KEY_LEN]).agree(&key) {
            Some(_) => Ok(key),
            None => Err(KeyError::LowOrder),
        }
    }
}

impl PrivateKey {
    /// A new key from 32 random bytes, which must come from the system's generator.
    pub fn generate(mut entropy: [u8; KEY_LEN]) -> PrivateKey {
        // The form of RFC 7748 section 5, as `wg genkey` prints it.
        entropy[0] &= 248;
        entropy[31] = (entropy[31] & 127) | 64;
        let key = PrivateKey::from_bytes(entropy);
        entropy.zeroize();
        key
    }

    /// The key of these bytes; any 32 bytes are one.
    pub fn from_bytes(mut bytes: [u8; KEY_LEN]) -> PrivateKey {
        let secret = Secret(bytes);
        bytes.zeroize();
        let public = Agreement::new(&secret.0).public();
        PrivateKey { secret, public }
    }

    /// The other half.
    pub const fn public(&self) -> &PublicKey {
        &self.public
    }

    /// The text for a configuration file. The caller keeps it safe.
    pub fn to_base64(&self) -> String {
        encode(&self.secret.0, &mut [0; TEXT_LEN]).to_owned()
    }

    /// The X25519 shared secret, or `None` for a point of low order.
    pub(crate) fn agree(&self, peer: &PublicKey) -> Option<Secret> {
        Agreement::new(&self.secret.0).agree(&peer.0)
    }

    pub(crate) const fn secret(&self) -> &[u8; KEY_LEN] {
        &self.secret.0
    }
}

impl PartialEq for PrivateKey {
    /// Compares what the keys mean, by their public halves.
    fn eq(&self, other: &PrivateKey) -> bool {
        self.public.cmp(&other.public) == Ordering::Equal
    }
}
impl Eq for PrivateKey {}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PrivateKey(of {})", self.public)
    }
}

impl FromStr for PrivateKey {
    type Err = KeyError;
    fn from_str(s: &str) -> Result<PrivateKey, KeyError> {
        let secret = decode(s)?;
        let public = Agreement::new(&secret.0).public();
        Ok(PrivateKey { secret, public })
    }
}

impl PresharedKey {
    /// What stands in a handshake where no key is shared.
    pub const NONE: PresharedKey = PresharedKey(Secret([0; KEY_LEN]));

    /// The key of these bytes.
    pub fn from_bytes(mut bytes: [u8; KEY_LEN]) -> PresharedKey {
        let secret = Secret(bytes);
        bytes.zeroize();
        PresharedKey(secret)
    }

    /// The text for a configuration file. The caller keeps it safe.
    pub fn to_base64(&self) -> String {
        encode(&self.0.0, &mut [0; TEXT_LEN]).to_owned()
    }

    pub(crate) const fn secret(&self) -> &[u8; KEY_LEN] {
        &self.0.0
    }
}

impl fmt::Debug for PresharedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PresharedKey(secret)")
    }
}

impl FromStr for PresharedKey {
    type Err = KeyError;
    fn from_str(s: &str) -> Result<PresharedKey, KeyError> {
        Ok(PresharedKey(decode(s)?))
    }
}

impl Secret {
    pub(crate) fn new(mut bytes: [u8; KEY_LEN]) -> Secret {
        let secret = Secret(bytes);
        bytes.zeroize();
        secret
    }

    pub(crate) const fn as_bytes(&self) -> &[u8; KEY_LEN] {
        &self.0
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// Bytes of the system's generator, new at each call.
pub type Fresh = fn() -> [u8; KEY_LEN];

/// A generator for keys, epochs and cookies: keyed BLAKE2s in counter mode, whose key
/// is replaced after every use so that what was drawn cannot be computed afterwards.
///
/// With [`Fresh`] bytes in every draw no two machines draw the same, although one is a copy
/// of the other, and who read its memory once does not know what it draws later.
pub struct Entropy {
    key: Secret,
    fresh: Option<Fresh>,
}

impl Entropy {
    /// The generator of `seed`: 32 bytes from the system's generator, or in a
    /// simulation from its own. Equal seeds give equal sequences.
    pub fn new(seed: [u8; KEY_LEN]) -> Entropy {
        Entropy { key: Secret::new(seed), fresh: None }
    }

    /// Mixes the system's bytes into every draw from now on, also of its forks.
    pub fn fed_by(self, fresh: Option<Fresh>) -> Entropy {
        Entropy { fresh, ..self }
    }

    /// Fills `out` with random bytes.
    pub fn fill(&mut self, out: &mut [u8]) {
        if let Some(fresh) = self.fresh {
            let fresh = Secret::new(fresh());
            self.key = Secret::new(mac32(self.key.as_bytes(), &[fresh.as_bytes()]));
        }
        // Block 0 is the next key; 1 and up are output.
        for (block, piece) in (1u64..).zip(out.chunks_mut(KEY_LEN)) {
            let bytes = Secret::new(mac32(self.key.as_bytes(), &[&block.to_be_bytes()]));
            piece.copy_from_slice(&bytes.as_bytes()[..piece.len()]);
        }
        self.key = Secret::new(mac32(self.key.as_bytes(), &[&0u64.to_be_bytes()]));
    }

    /// 32 random bytes.
    pub fn bytes32(&mut self) -> [u8; KEY_LEN] {
        let mut out = [0; KEY_LEN];
        self.fill(&mut out);
        out
    }

    /// A generator of its own for a part.
    pub fn fork(&mut self) -> Entropy {
        Entropy::new(self.bytes32()).fed_by(self.fresh)
    }

    /// Uniform over u64.
    pub fn next_u64(&mut self) -> u64 {
        let mut out = [0; 8];
        self.fill(&mut out);
        u64::from_be_bytes(out)
    }

    /// Uniform over u32.
    pub fn next_u32(&mut self) -> u32 {
        (self.next_u64() >> 32) as u32
    }
}

impl fmt::Debug for Entropy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Entropy")
    }
}

#[cfg(not(fuzzing))]
pub(crate) use X25519 as Agreement;
// A fuzzer makes the same exchanges again and again.
#[cfg(fuzzing)]
pub(crate) use crate::fuzz::Remembered as Agreement;

/// An X25519 private key made ready for use, which costs as much as using it.
pub(crate) struct X25519(agreement::PrivateKey);

impl X25519 {
    pub fn new(secret: &[u8; KEY_LEN]) -> X25519 {
        let key = agreement::PrivateKey::from_private_key(&agreement::X25519, secret);
        X25519(key.expect("any 32 bytes are an X25519 private key"))
    }

    pub fn public(&self) -> PublicKey {
        let public = self.0.compute_public_key().expect("every X25519 key has a public half");
        PublicKey(public.as_ref().try_into().expect("an X25519 public key is 32 bytes"))
    }

    /// The shared secret, or `None` for a `public` of low order (RFC 7748 section 6.1).
    pub fn agree(&self, public: &[u8; KEY_LEN]) -> Option<Secret> {
        let peer = agreement::UnparsedPublicKey::new(&agreement::X25519, public);
        agreement::agree(&self.0, peer, (), |shared| {
            Ok(Secret::new(shared.try_into().map_err(|_| ())?))
        })
        .ok()
    }
}

/// BLAKE2s-256 over the concatenation of `parts`.
pub(crate) fn hash(parts: &[&[u8]]) -> [u8; 32] {
    let mut h = blake2::Blake2s256::new();
    parts.iter().for_each(|part| Digest::update(&mut h, part));
    h.finalize().into()
}

/// Keyed BLAKE2s with 32 bytes of output.
pub(crate) fn mac32(key: &[u8; 32], parts: &[&[u8]]) -> [u8; 32] {
    let mut h = blake2::Blake2sMac::<U32>::new_from_slice(key).expect("BLAKE2s takes 32-byte keys");
    parts.iter().for_each(|part| Mac::update(&mut h, part));
    h.finalize().into_bytes().into()
}

/// Keyed BLAKE2s with 16 bytes of output.
pub(crate) fn mac16(key: &[u8; 32], parts: &[&[u8]]) -> [u8; 16] {
    let mut h = blake2::Blake2sMac::<U16>::new_from_slice(key).expect("BLAKE2s takes 32-byte keys");
    parts.iter().for_each(|part| Mac::update(&mut h, part));
    h.finalize().into_bytes().into()
}

/// Compares without telling by its duration where two values differ.
pub(crate) fn equal(a: &[u8], b: &[u8]) -> bool {
    aws_lc_rs::constant_time::verify_slices_are_equal(a, b).is_ok()
}

fn encode<'a>(bytes: &[u8; KEY_LEN], text: &'a mut [u8; TEXT_LEN]) -> &'a str {
    Base64::encode(bytes, text).expect("32 bytes are 44 characters of base64")
}

fn decode(text: &str) -> Result<Secret, KeyError> {
    let mut bytes = Secret([0; KEY_LEN]);
    match Base64::decode(text.trim(), &mut bytes.0) {
        Ok(decoded) if decoded.len() == KEY_LEN => Ok(bytes),
        _ => Err(KeyError::NotAKey),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex32(s: &str) -> [u8; 32] {
        std::array::from_fn(|i| u8::from_str_radix(&s[2 * i..2 * i + 2], 16).expect("hex"))
    }

    #[test]
    fn the_exchange_of_rfc_7748_section_6_1_comes_out_as_printed_there() {
        let alice =
            PublicKey(hex32("8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a"));
        let bob = PrivateKey::from_bytes(hex32(
            "5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb",
        ));
        let shared = hex32("4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742");
        assert_eq!(bob.agree(&alice).map(|s| *s.as_bytes()), Some(shared));
    }

    #[test]
    fn keys_come_back_from_their_text() {
        let key = PrivateKey::generate([7; 32]);
        assert_eq!(key.to_base64().parse::<PrivateKey>(), Ok(key.clone()));
        assert_eq!(key.public().to_string().parse::<PublicKey>(), Ok(*key.public()));
        let shared = PresharedKey::from_bytes([9; 32]);
        let back: PresharedKey = shared.to_base64().parse().expect("a key");
        assert_eq!(back.secret(), shared.secret());
    }

    #[test]
    fn texts_that_are_no_keys_are_refused_without_repeating_them() {
        let good = PrivateKey::generate([7; 32]).to_base64();
        for bad in ["", "=", "AAAA", &good[..43], &format!("{good}="), &good.replace('=', "!")] {
            let e = bad.parse::<PrivateKey>().expect_err(bad);
            assert_eq!(e, KeyError::NotAKey);
            assert!(bad.len() < 5 || !e.to_string().contains(bad));
        }
    }

    #[test]
    fn public_keys_of_low_order_are_refused() {
        let zero = PublicKey::from_bytes([0; 32]).to_string();
        assert_eq!(zero.parse::<PublicKey>(), Err(KeyError::LowOrder));
        let mut one = [0; 32];
        one[0] = 1;
        let one = PublicKey::from_bytes(one).to_string();
        assert_eq!(one.parse::<PublicKey>(), Err(KeyError::LowOrder));
    }

    #[test]
    fn secrets_do_not_show_in_debug_output() {
        let key = PrivateKey::generate([7; 32]);
        assert!(!format!("{key:?}").contains(&key.to_base64()));
        assert_eq!(format!("{:?}", PresharedKey::from_bytes([9; 32])), "PresharedKey(secret)");
        assert_eq!(format!("{:?}", Entropy::new([7; 32])), "Entropy");
    }

    /// L-KY-3: everything is drawn from one seed; that it is fresh at each start is tested
    /// in `os::proc`.
    #[test]
    fn a_seed_means_the_same_sequence_and_forks_differ() {
        let draw = |seed| {
            let mut e = Entropy::new([seed; 32]);
            let mut long = [0; 100];
            e.fill(&mut long);
            (long, e.next_u64(), e.fork().next_u64(), e.fork().next_u64())
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1).0, draw(2).0);
        assert_ne!(draw(1).2, draw(1).3);
    }

    /// L-KY-3: two machines of one snapshot go on with the same state.
    #[test]
    fn fresh_bytes_part_two_generators_of_one_state() {
        static DRAWN: std::sync::atomic::AtomicU8 = std::sync::atomic::AtomicU8::new(0);
        let fresh = || [DRAWN.fetch_add(1, std::sync::atomic::Ordering::Relaxed); 32];
        let copies = || [1, 1].map(|seed| Entropy::new([seed; 32]));
        let [mut a, mut b] = copies();
        assert_eq!(a.next_u64(), b.next_u64());
        let [mut a, mut b] = copies().map(|e| e.fed_by(Some(fresh)));
        assert_ne!(a.next_u64(), b.next_u64());
        assert_ne!(a.fork().next_u64(), b.fork().next_u64());
    }

    #[test]
    fn the_hash_is_that_of_rfc_7693() {
        // The hash of "abc", RFC 7693 appendix B.
        let want = hex32("508c5e8c327c14e2e1a72ba34eeb452f37458b209ed63a294d999b4c86675982");
        assert_eq!(hash(&[b"a", b"", b"bc"]), want);
    }
}
