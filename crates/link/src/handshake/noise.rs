//! The Noise handshake `IKpsk2` (The Noise Protocol Framework, revision 34), with its
//! state machine from `snow` and its arithmetic from the library that seals packets.
//!
//! Three things differ from snow's own resolvers: every random byte comes from our
//! [`Entropy`], a Diffie–Hellman result of zero fails the handshake (no node has a key
//! of low order), and secrets are wiped.

use aws_lc_rs::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
#[cfg(not(fuzzing))]
use blake2::{Blake2s256, Digest};
use snow::params::{CipherChoice, DHChoice, HashChoice};
use snow::resolvers::CryptoResolver;
use snow::types::{Cipher, Dh, Hash, Random};
use snow::{Builder, Error, HandshakeState};

#[cfg(fuzzing)]
use crate::fuzz::Folded as Blake2s256;
use crate::keys::{Agreement, Entropy, KEY_LEN, PresharedKey, PrivateKey, PublicKey, Secret};
use crate::seal::TAG_LEN;

const PATTERN: &str = "Noise_IKpsk2_25519_ChaChaPoly_BLAKE2s";
/// Where `psk2` mixes the pre-shared key in.
const PSK_LOCATION: usize = 2;

/// The message is not one that the holder of the expected key made for us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BadMessage;

/// One side of a handshake under way.
pub(crate) struct Noise(Box<HandshakeState>);

/// The keys of the two directions.
pub(crate) struct TrafficKeys {
    pub from_initiator: Secret,
    pub from_responder: Secret,
}

impl Noise {
    /// The side that speaks first and knows the other's key.
    pub fn initiator(
        local: &PrivateKey,
        peer: &PublicKey,
        preshared: &PresharedKey,
        prologue: &[&[u8]],
        entropy: &mut Entropy,
    ) -> Noise {
        let prologue = prologue.concat();
        let state = builder(entropy)
            .local_private_key(local.secret())
            .and_then(|b| b.remote_public_key(peer.as_bytes()))
            .and_then(|b| b.psk(PSK_LOCATION as u8, preshared.secret()))
            .and_then(|b| b.prologue(&prologue))
            .and_then(Builder::build_initiator)
            .expect("each part is given once and in its length");
        Noise(Box::new(state))
    }

    /// The side that answers; whom, the first message tells.
    pub fn responder(local: &PrivateKey, prologue: &[&[u8]], entropy: &mut Entropy) -> Noise {
        let prologue = prologue.concat();
        let state = builder(entropy)
            .local_private_key(local.secret())
            .and_then(|b| b.prologue(&prologue))
            .and_then(Builder::build_responder)
            .expect("each part is given once and in its length");
        Noise(Box::new(state))
    }

    /// The responder learns, once it knows the peer, the key it shares with it.
    pub fn set_preshared(&mut self, preshared: &PresharedKey) {
        self.0.set_psk(PSK_LOCATION, preshared.secret()).expect("a key of 32 bytes at location 2");
    }

    /// Writes the next message into `out` and answers its length, or [`BadMessage`]
    /// if the peer's key gives a shared secret of zero.
    pub fn write(&mut self, payload: &[u8], out: &mut [u8]) -> Result<usize, BadMessage> {
        self.0.write_message(payload, out).map_err(|_| BadMessage)
    }

    /// Reads the next message, its payload into `payload`. A bad message leaves the
    /// handshake able to read a good one.
    pub fn read(&mut self, message: &[u8], payload: &mut [u8]) -> Result<usize, BadMessage> {
        self.0.read_message(message, payload).map_err(|_| BadMessage)
    }

    /// The initiator's key, once the responder has read the first message.
    pub fn peer(&self) -> Option<PublicKey> {
        let bytes = self.0.get_remote_static()?;
        Some(PublicKey::from_bytes(bytes.try_into().ok()?))
    }

    /// The traffic keys, once both messages are done.
    pub fn finish(mut self) -> TrafficKeys {
        assert!(self.0.is_handshake_finished(), "keys are asked for after the second message");
        let (from_initiator, from_responder) = self.0.dangerously_get_raw_split();
        TrafficKeys {
            from_initiator: Secret::new(from_initiator),
            from_responder: Secret::new(from_responder),
        }
    }
}

fn builder<'a>(entropy: &mut Entropy) -> Builder<'a> {
    let params = PATTERN.parse().expect("the pattern is one that snow knows");
    Builder::with_resolver(params, Box::new(Resolver { seed: Secret::new(entropy.bytes32()) }))
}

struct Resolver {
    /// Of this one handshake's generator; snow asks for it once.
    seed: Secret,
}

impl CryptoResolver for Resolver {
    fn resolve_rng(&self) -> Option<Box<dyn Random>> {
        Some(Box::new(Seeded(Entropy::new(*self.seed.as_bytes()))))
    }
    fn resolve_dh(&self, choice: &DHChoice) -> Option<Box<dyn Dh>> {
        matches!(choice, DHChoice::Curve25519).then(|| Box::<X25519>::default() as _)
    }
    fn resolve_hash(&self, choice: &HashChoice) -> Option<Box<dyn Hash>> {
        matches!(choice, HashChoice::Blake2s).then(|| Box::<Blake2s>::default() as _)
    }
    fn resolve_cipher(&self, choice: &CipherChoice) -> Option<Box<dyn Cipher>> {
        matches!(choice, CipherChoice::ChaChaPoly).then(|| Box::<ChaChaPoly>::default() as _)
    }
}

struct Seeded(Entropy);

impl Random for Seeded {
    fn try_fill_bytes(&mut self, dest: &mut [u8]) -> Result<(), Error> {
        self.0.fill(dest);
        Ok(())
    }
}

#[derive(Default)]
struct X25519(Option<KeyPair>);

struct KeyPair {
    agreement: Agreement,
    secret: Secret,
    public: PublicKey,
}

impl X25519 {
    fn pair(&self) -> &KeyPair {
        self.0.as_ref().expect("Noise sets or generates a key before it uses it")
    }
}

impl Dh for X25519 {
    fn name(&self) -> &'static str {
        "25519"
    }
    fn pub_len(&self) -> usize {
        KEY_LEN
    }
    fn priv_len(&self) -> usize {
        KEY_LEN
    }
    fn set(&mut self, privkey: &[u8]) {
        let secret = Secret::new(privkey.try_into().expect("X25519 keys are 32 bytes"));
        let agreement = Agreement::new(secret.as_bytes());
        let public = agreement.public();
        self.0 = Some(KeyPair { agreement, secret, public });
    }
    fn generate(&mut self, rng: &mut dyn Random) -> Result<(), Error> {
        let mut bytes = [0; KEY_LEN];
        rng.try_fill_bytes(&mut bytes)?;
        self.set(&bytes);
        zeroize::Zeroize::zeroize(&mut bytes);
        Ok(())
    }
    fn pubkey(&self) -> &[u8] {
        self.pair().public.as_bytes()
    }
    fn privkey(&self) -> &[u8] {
        self.pair().secret.as_bytes()
    }
    fn dh(&self, pubkey: &[u8], out: &mut [u8]) -> Result<(), Error> {
        // snow passes its buffer for the longest public key of any curve.
        let public = pubkey.first_chunk().ok_or(Error::Dh)?;
        let shared = self.pair().agreement.agree(public).ok_or(Error::Dh)?;
        out[..KEY_LEN].copy_from_slice(shared.as_bytes());
        Ok(())
    }
}

#[derive(Default)]
struct Blake2s(Blake2s256);

impl Hash for Blake2s {
    fn name(&self) -> &'static str {
        "BLAKE2s"
    }
    fn block_len(&self) -> usize {
        64
    }
    fn hash_len(&self) -> usize {
        32
    }
    fn reset(&mut self) {
        self.0 = Blake2s256::default();
    }
    fn input(&mut self, data: &[u8]) {
        self.0.update(data);
    }
    fn result(&mut self, out: &mut [u8]) {
        out[..32].copy_from_slice(&std::mem::take(&mut self.0).finalize());
    }
}

#[derive(Default)]
struct ChaChaPoly(Option<LessSafeKey>);

impl ChaChaPoly {
    fn key(&self) -> &LessSafeKey {
        self.0.as_ref().expect("Noise sets a key before it encrypts")
    }
}

/// Four zero bytes and the number in little-endian order (Noise, section 12.3).
fn nonce(number: u64) -> Nonce {
    let mut bytes = [0; 12];
    bytes[4..].copy_from_slice(&number.to_le_bytes());
    Nonce::assume_unique_for_key(bytes)
}

impl Cipher for ChaChaPoly {
    fn name(&self) -> &'static str {
        "ChaChaPoly"
    }
    fn set(&mut self, key: &[u8; KEY_LEN]) {
        let key = UnboundKey::new(&CHACHA20_POLY1305, key).expect("the key has its length");
        self.0 = Some(LessSafeKey::new(key));
    }
    fn encrypt(&self, number: u64, header: &[u8], plaintext: &[u8], out: &mut [u8]) -> usize {
        let (text, rest) = out.split_at_mut(plaintext.len());
        text.copy_from_slice(plaintext);
        let tag = self
            .key()
            .seal_in_place_separate_tag(nonce(number), Aad::from(header), text)
            .expect("a handshake message is short");
        rest[..TAG_LEN].copy_from_slice(tag.as_ref());
        plaintext.len() + TAG_LEN
    }
    fn decrypt(
        &self,
        number: u64,
        header: &[u8],
        ciphertext: &[u8],
        out: &mut [u8],
    ) -> Result<usize, Error> {
        let at = ciphertext.len().checked_sub(TAG_LEN).ok_or(Error::Decrypt)?;
        let (text, tag) = ciphertext.split_at(at);
        let out = out.get_mut(..at).ok_or(Error::Decrypt)?;
        self.key()
            .open_separate_gather(nonce(number), Aad::from(header), text, tag, out)
            .map_err(|_| Error::Decrypt)?;
        Ok(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Done {
        messages: [Vec<u8>; 2],
        payloads: [Vec<u8>; 2],
        keys: [TrafficKeys; 2],
    }

    fn run(psk_i: &PresharedKey, psk_r: &PresharedKey) -> Result<Done, BadMessage> {
        let (alice, bob) = (PrivateKey::generate([1; 32]), PrivateKey::generate([2; 32]));
        let mut entropy = Entropy::new([3; 32]);
        let mut i =
            Noise::initiator(&alice, bob.public(), psk_i, &[b"pro", b"logue"], &mut entropy);
        let mut r = Noise::responder(&bob, &[b"prologue"], &mut entropy);
        let (mut first, mut second) = (vec![0; 200], vec![0; 200]);
        let (mut heard, mut answer) = (vec![0; 200], vec![0; 200]);
        let n = i.write(b"question", &mut first)?;
        first.truncate(n);
        let n = r.read(&first, &mut heard)?;
        heard.truncate(n);
        assert_eq!(r.peer(), Some(*alice.public()));
        r.set_preshared(psk_r);
        let n = r.write(b"answer", &mut second)?;
        second.truncate(n);
        let n = i.read(&second, &mut answer)?;
        answer.truncate(n);
        Ok(Done {
            messages: [first, second],
            payloads: [heard, answer],
            keys: [i.finish(), r.finish()],
        })
    }

    #[test]
    fn both_sides_get_the_same_keys_and_each_other_s_payloads() {
        let done = run(&PresharedKey::NONE, &PresharedKey::NONE).expect("a good handshake");
        assert_eq!(done.payloads, [b"question".to_vec(), b"answer".to_vec()]);
        assert_eq!(done.messages.map(|m| m.len()), [32 + 48 + 8 + 16, 32 + 6 + 16]);
        let [i, r] = &done.keys;
        assert_eq!(i.from_initiator.as_bytes(), r.from_initiator.as_bytes());
        assert_eq!(i.from_responder.as_bytes(), r.from_responder.as_bytes());
        assert_ne!(i.from_initiator.as_bytes(), i.from_responder.as_bytes());
    }

    #[test]
    fn a_different_pre_shared_key_fails_the_second_message() {
        let other = PresharedKey::from_bytes([9; 32]);
        assert!(run(&other, &other).is_ok());
        assert_eq!(run(&PresharedKey::NONE, &other).err(), Some(BadMessage));
    }

    fn bytes(hex: &str) -> Vec<u8> {
        let byte = |i| u8::from_str_radix(&hex[i..i + 2], 16).expect("hex");
        (0..hex.len()).step_by(2).map(byte).collect()
    }

    fn key(hex: &str) -> [u8; 32] {
        bytes(hex).try_into().expect("32 bytes")
    }

    /// The published vector of this pattern (github.com/haskell-cryptography/cacophony).
    /// L-HS-1.
    #[test]
    fn the_published_test_vector_comes_out() {
        let psk = key("54686973206973206d7920417573747269616e20706572737065637469766521");
        let prologue = bytes("4a6f686e2047616c74");
        let (init_s, init_e, resp_s, resp_e) = (
            key("e61ef9919cde45dd5f82166404bd08e38bceb5dfdfded0a34c8df7ed542214d1"),
            key("893e28b9dc6ca8d611ab664754b8ceb7bac5117349a4439a6b0569da977c464a"),
            key("4a3acbfdb163dec651dfa3194dece676d437029c62a408b4c5ea9114246e4893"),
            key("bbdb4cdbd309f1a1f2e1456967fe288cadd6f712d65dc7b7793d5e63da6b375b"),
        );
        let resp_public = key("31e0303fd6418d2f8c0e78b91f22e8caed0fbe48656dcf4767e4834f701b8f62");
        let mut entropy = Entropy::new([0; 32]);
        let side = |entropy: &mut Entropy| builder(entropy).psk(2, &psk).expect("a psk");
        let initiator = side(&mut entropy)
            .local_private_key(&init_s)
            .and_then(|b| b.remote_public_key(&resp_public))
            .and_then(|b| b.prologue(&prologue))
            .and_then(|b| b.fixed_ephemeral_key_for_testing_only(&init_e).build_initiator());
        let responder = side(&mut entropy)
            .local_private_key(&resp_s)
            .and_then(|b| b.prologue(&prologue))
            .and_then(|b| b.fixed_ephemeral_key_for_testing_only(&resp_e).build_responder());
        let mut initiator = Noise(Box::new(initiator.expect("an initiator")));
        let mut responder = Noise(Box::new(responder.expect("a responder")));

        let first = bytes(concat!(
            "ca35def5ae56cec33dc2036731ab14896bc4c75dbb07a61f879f8e3afa4c7944",
            "001e21de9f98ddd8e2ad57527207feb56253c9c94a9e496782ecfcb2a75fbcaf1b52948cc48daefe66",
            "0c62119ab5000980c84831215f2441eba616548e832985464cf17e51ee93109008399a21f7e13f"
        ));
        let second = bytes(concat!(
            "95ebc60d2b1fa672c1f46a8aa265ef51bfe38e7ccb39ec5be34069f144808843",
            "cb765f2caef0751b8f007572dab0322217755c0632f365717edbf34d33e87a"
        ));
        let mut out = vec![0; 200];
        let n = initiator.write(b"Ludwig von Mises", &mut out).expect("the first message");
        assert_eq!(out[..n], first);
        responder.read(&first, &mut out).expect("the first message opens");
        let n = responder.write(b"Murray Rothbard", &mut out).expect("the second message");
        assert_eq!(out[..n], second);
        initiator.read(&second, &mut out).expect("the second message opens");

        // The vector's third and fourth message are the first under each traffic key.
        let keys = initiator.finish();
        for (key, text, sealed) in [
            (
                &keys.from_initiator,
                &b"F. A. Hayek"[..],
                "8153ca9833bc3c1b91a7e66e5f4d4f5b59bf9e64c2f20d15f0bba7",
            ),
            (
                &keys.from_responder,
                b"Carl Menger",
                "07af0c9c86e1b4e80f36b04ff7688d51141af3debd0332f0a705ef",
            ),
        ] {
            let mut buf = [text, &[0; TAG_LEN]].concat();
            crate::seal::SealingKey::new(crate::seal::Cipher::ChaCha20Poly1305, key.as_bytes())
                .seal_in_place(crate::path::PathId::FIRST, 0, b"", &mut buf);
            assert_eq!(buf, bytes(sealed));
        }
    }

    /// L-HS-1.
    #[test]
    fn an_ephemeral_key_of_low_order_fails() {
        let bob = PrivateKey::generate([2; 32]);
        let mut r = Noise::responder(&bob, &[b"prologue"], &mut Entropy::new([3; 32]));
        assert_eq!(r.read(&[0; 104], &mut [0; 200]).err(), Some(BadMessage));
    }
}
