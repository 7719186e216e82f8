//! Packet protection: the AEAD under which every data packet travels.
//!
//! A key belongs to one direction of one handshake and is used with each packet
//! number once; the caller owes that. Sealing and opening work in place and allocate
//! nothing.

use aws_lc_rs::aead::{AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};

use crate::keys::KEY_LEN;
use crate::path::PathId;

/// Bytes of the authentication tag behind every sealed payload.
pub const TAG_LEN: usize = 16;

/// The AEADs a session can use. Both take 32-byte keys and 12-byte nonces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Cipher {
    /// RFC 8439: fast everywhere.
    ChaCha20Poly1305,
    /// NIST SP 800-38D: faster where the processor helps, slow and leaky elsewhere.
    Aes256Gcm,
}

impl Cipher {
    /// True if this processor has instructions for AES and carry-less multiplication.
    /// A property of the machine: pass the answer to the core as configuration.
    pub fn hardware_aes() -> bool {
        #[cfg(any(target_arch = "x86_64", target_arch = "x86"))]
        return std::arch::is_x86_feature_detected!("aes")
            && std::arch::is_x86_feature_detected!("pclmulqdq");
        #[cfg(target_arch = "aarch64")]
        return std::arch::is_aarch64_feature_detected!("aes")
            && std::arch::is_aarch64_feature_detected!("pmull");
        #[allow(unreachable_code)]
        false
    }

    /// Packets that one key may seal: 2^23 with AES-GCM (RFC 9001 section 6.6).
    /// ChaCha20-Poly1305 has no limit below that of the packet numbers; 2^33 is ours.
    pub const fn confidentiality_limit(self) -> u64 {
        match self {
            Cipher::Aes256Gcm => 1 << 23,
            Cipher::ChaCha20Poly1305 => 1 << 33,
        }
    }

    /// Forgeries after which a key opens nothing any more (RFC 9001 section 6.6).
    pub const fn forgery_limit(self) -> u64 {
        match self {
            Cipher::Aes256Gcm => 1 << 52,
            Cipher::ChaCha20Poly1305 => 1 << 36,
        }
    }

    /// For people and logs.
    pub const fn name(self) -> &'static str {
        match self {
            Cipher::Aes256Gcm => "AES-256-GCM",
            Cipher::ChaCha20Poly1305 => "ChaCha20-Poly1305",
        }
    }

    fn key(self, bytes: &[u8; KEY_LEN]) -> LessSafeKey {
        let algorithm = match self {
            Cipher::Aes256Gcm => &AES_256_GCM,
            Cipher::ChaCha20Poly1305 => &CHACHA20_POLY1305,
        };
        LessSafeKey::new(UnboundKey::new(algorithm, bytes).expect("both ciphers take 32-byte keys"))
    }
}

/// The packet is not one that this key sealed under this number and header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forged;

/// Seals the packets that we send. Wiped when dropped.
pub struct SealingKey {
    key: LessSafeKey,
    cipher: Cipher,
}

/// Opens the packets that the peer sends. Wiped when dropped.
pub struct OpeningKey {
    key: LessSafeKey,
}

impl SealingKey {
    /// The key of these bytes.
    pub fn new(cipher: Cipher, bytes: &[u8; KEY_LEN]) -> SealingKey {
        SealingKey { key: cipher.key(bytes), cipher }
    }

    /// The AEAD that this key is for.
    pub const fn cipher(&self) -> Cipher {
        self.cipher
    }

    /// Encrypts all of `buf` but its last [`TAG_LEN`] bytes, which become the tag over
    /// it and `header`. Each `number` of a path seals at most one packet under a
    /// key (L-PP-3).
    ///
    /// # Panics
    /// If `buf` has no room for the tag.
    pub fn seal_in_place(&self, path: PathId, number: u64, header: &[u8], buf: &mut [u8]) {
        let at = buf.len().checked_sub(TAG_LEN).expect("the caller leaves room for the tag");
        let (payload, room) = buf.split_at_mut(at);
        let tag = self
            .key
            .seal_in_place_separate_tag(nonce(path, number), Aad::from(header), payload)
            .expect("a packet is far below the length that an AEAD refuses");
        room.copy_from_slice(tag.as_ref());
    }
}

impl OpeningKey {
    /// The key of these bytes.
    pub fn new(cipher: Cipher, bytes: &[u8; KEY_LEN]) -> OpeningKey {
        OpeningKey { key: cipher.key(bytes) }
    }

    /// Decrypts `buf`, a ciphertext with its tag, in place and answers the length of
    /// the payload at its start.
    ///
    /// # Errors
    /// [`Forged`] if any bit of `buf`, `header`, `path` or `number` is not the sender's; then
    /// the content of `buf` means nothing.
    pub fn open_in_place(
        &self,
        path: PathId,
        number: u64,
        header: &[u8],
        buf: &mut [u8],
    ) -> Result<usize, Forged> {
        let payload = self
            .key
            .open_in_place(nonce(path, number), Aad::from(header), buf)
            .map_err(|_| Forged)?;
        Ok(payload.len())
    }
}

/// The path's number in four bytes and the packet number in eight, in network order (L-PP-3), as
/// draft-ietf-quic-multipath builds it, without the static mask: each key has a direction of its
/// own.
fn nonce(path: PathId, number: u64) -> Nonce {
    let mut bytes = [0; 12];
    bytes[3] = path.number();
    bytes[4..].copy_from_slice(&number.to_be_bytes());
    Nonce::assume_unique_for_key(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: PathId = PathId::FIRST;
    const BOTH: [Cipher; 2] = [Cipher::ChaCha20Poly1305, Cipher::Aes256Gcm];

    fn sealed(cipher: Cipher, number: u64, header: &[u8], payload: &[u8]) -> Vec<u8> {
        let mut buf = payload.to_vec();
        buf.resize(payload.len() + TAG_LEN, 0);
        SealingKey::new(cipher, &[7; 32]).seal_in_place(FIRST, number, header, &mut buf);
        buf
    }

    #[test]
    fn what_was_sealed_opens_at_every_length() {
        for cipher in BOTH {
            let opening = OpeningKey::new(cipher, &[7; 32]);
            for len in [0, 1, 15, 16, 17, 1400, 9000] {
                let payload = vec![0xa5; len];
                let mut buf = sealed(cipher, 1 << 40, b"header", &payload);
                assert!(len < 16 || buf[..len] != payload[..], "it is encrypted");
                assert_eq!(opening.open_in_place(FIRST, 1 << 40, b"header", &mut buf), Ok(len));
                assert_eq!(buf[..len], payload[..]);
            }
        }
    }

    #[test]
    fn any_flipped_bit_is_a_forgery() {
        for cipher in BOTH {
            let opening = OpeningKey::new(cipher, &[7; 32]);
            let good = sealed(cipher, 5, b"header", b"some payload");
            for bit in 0..good.len() * 8 {
                let mut bad = good.clone();
                bad[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(opening.open_in_place(FIRST, 5, b"header", &mut bad), Err(Forged));
            }
            assert_eq!(opening.open_in_place(FIRST, 6, b"header", &mut good.clone()), Err(Forged));
            assert_eq!(opening.open_in_place(FIRST, 5, b"heather", &mut good.clone()), Err(Forged));
            let path = PathId::new(2).expect("a path");
            assert_eq!(opening.open_in_place(path, 5, b"header", &mut good.clone()), Err(Forged));
            let other = OpeningKey::new(cipher, &[8; 32]);
            assert_eq!(other.open_in_place(FIRST, 5, b"header", &mut good.clone()), Err(Forged));
        }
    }

    #[test]
    fn what_is_shorter_than_a_tag_is_a_forgery() {
        for cipher in BOTH {
            let opening = OpeningKey::new(cipher, &[7; 32]);
            for len in 0..=TAG_LEN {
                assert_eq!(opening.open_in_place(FIRST, 0, b"", &mut vec![0; len]), Err(Forged));
            }
        }
    }

    /// L-PP-3.
    #[test]
    fn the_nonce_of_number_0_is_zero_as_in_the_test_cases_of_gcm() {
        // Test cases 13 and 14 of McGrew and Viega's specification of GCM.
        let key = SealingKey::new(Cipher::Aes256Gcm, &[0; 32]);
        let mut empty = [0; TAG_LEN];
        key.seal_in_place(FIRST, 0, b"", &mut empty);
        assert_eq!(u128::from_be_bytes(empty), 0x530f8afbc74536b9a963b4f1c4cb738b);
        let mut block = [0; 16 + TAG_LEN];
        key.seal_in_place(FIRST, 0, b"", &mut block);
        let (text, tag) = block.split_at(16);
        assert_eq!(text, 0xcea7403d4d606b6e074ec5d3baf39d18u128.to_be_bytes());
        assert_eq!(tag, 0xd0d1c8a799996bf0265b98b5d48ab919u128.to_be_bytes());
    }

    /// Not a test of anything: `cargo test -p link --release -- --ignored --nocapture
    /// sealing_speed` prints this machine's speed.
    #[test]
    #[ignore = "a measurement"]
    #[allow(clippy::disallowed_methods, clippy::disallowed_types)]
    fn sealing_speed() {
        for cipher in BOTH {
            let (seal, open) =
                (SealingKey::new(cipher, &[7; 32]), OpeningKey::new(cipher, &[7; 32]));
            let mut buf = vec![0; 1400 + TAG_LEN];
            let n = 1_000_000u64;
            let start = std::time::Instant::now();
            (0..n).for_each(|number| seal.seal_in_place(FIRST, number, &[0; 5], &mut buf));
            let sealing = start.elapsed();
            seal.seal_in_place(FIRST, n, &[0; 5], &mut buf);
            let start = std::time::Instant::now();
            for _ in 0..n {
                let mut copy = [0; 1400 + TAG_LEN];
                copy.copy_from_slice(&buf);
                open.open_in_place(FIRST, n, &[0; 5], &mut copy).expect("it was sealed so");
            }
            let gbps = |t: std::time::Duration| n as f64 * 1400.0 * 8.0 / t.as_secs_f64() / 1e9;
            println!(
                "{}: seals {:.1} Gbit/s, opens (with a copy) {:.1} Gbit/s",
                cipher.name(),
                gbps(sealing),
                gbps(start.elapsed())
            );
        }
    }
}
