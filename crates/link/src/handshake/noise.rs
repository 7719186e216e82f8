//! The Noise handshake `IKpsk2` (The Noise Protocol Framework, revision 34), with its
//! state machine from `snow` and its arithmetic from the library that seals packets.
//!
//! Three things differ from snow's own resolvers: every random byte comes from our
//! [`Entropy`], a Diffie–Hellman result of zero fails the handshake (no node has a key
//! of low order), and secrets are wiped.

use aws_lc_rs::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use blake2::Digest;
use snow::params::{CipherChoice, DHChoice, HashChoice};
use snow::resolvers::CryptoResolver;
use snow::types::{Cipher, Dh, Hash, Random};
use snow::{Builder, Error, HandshakeState};

use crate::keys::{
    Entropy, KEY_LEN, PresharedKey, PrivateKey, PublicKey, Secret, agree, public_of,
};
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

struct X25519 {
    secret: Secret,
    public: [u8; KEY_LEN],
}

impl Default for X25519 {
    fn default() -> X25519 {
        X25519 { secret: Secret::new([0; KEY_LEN]), public: [0; KEY_LEN] }
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
        self.secret = Secret::new(privkey.try_into().expect("X25519 keys are 32 bytes"));
        self.public = *public_of(self.secret.as_bytes()).as_bytes();
    }
    fn generate(&mut self, rng: &mut dyn Random) -> Result<(), Error> {
        let mut bytes = [0; KEY_LEN];
        rng.try_fill_bytes(&mut bytes)?;
        self.set(&bytes);
        zeroize::Zeroize::zeroize(&mut bytes);
        Ok(())
    }
    fn pubkey(&self) -> &[u8] {
        &self.public
    }
    fn privkey(&self) -> &[u8] {
        self.secret.as_bytes()
    }
    fn dh(&self, pubkey: &[u8], out: &mut [u8]) -> Result<(), Error> {
        // snow passes its buffer for the longest public key of any curve.
        let public = pubkey.first_chunk().ok_or(Error::Dh)?;
        let shared = agree(self.secret.as_bytes(), public).ok_or(Error::Dh)?;
        out[..KEY_LEN].copy_from_slice(shared.as_bytes());
        Ok(())
    }
}

#[derive(Default)]
struct Blake2s(blake2::Blake2s256);

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
        self.0 = blake2::Blake2s256::new();
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

    #[test]
    fn an_ephemeral_key_of_low_order_fails() {
        let bob = PrivateKey::generate([2; 32]);
        let mut r = Noise::responder(&bob, &[b"prologue"], &mut Entropy::new([3; 32]));
        assert_eq!(r.read(&[0; 104], &mut [0; 200]).err(), Some(BadMessage));
    }
}
