//! Handshake messages on the wire, and one side's steps through them.
//!
//! ```text
//! initiation   0x01  version  sender index (4)  ephemeral (32)
//!              static key, sealed (48)  payload, sealed (34…98 + 16)  mac1 (16)  mac2 (16)
//!   payload    epoch (8)  known peer epoch (8)  ciphers offered (1)  lengths (1)
//!              cookie (0 or 16)  parameters (0…64)  zeros up to 34 bytes
//!
//! response     0x02  version  sender index (4)  receiver index (4)  ephemeral (32)
//!              payload, sealed (14…78 + 16)  mac1 (16)  mac2 (16)
//!   payload    epoch (8)  sender index (4)  cipher chosen (1)  length (1)  parameters (0…64)
//!
//! cookie reply 0x03  version  receiver index (4)  nonce (24)  cookie, sealed (16 + 16)
//! ```
//!
//! Numbers are in network order. An initiation is at least as long as any response
//! and any cookie reply, so that whoever spoofs an address gains nothing by it (L-HS-5).

#[cfg(any(test, fuzzing))]
pub(crate) mod forged;
mod noise;
#[cfg(test)]
mod tests;

use std::fmt;

use crate::cookie::{COOKIE_LEN, Cookie};
use crate::keys::{Entropy, PresharedKey, PrivateKey, PublicKey};
use crate::seal::{Cipher, TAG_LEN};
pub(crate) use noise::TrafficKeys;
use noise::{BadMessage, Noise};

/// The protocol version of every message here.
pub const VERSION: u8 = 1;
/// Types of messages; data packets have the top bit set instead.
pub(crate) const INITIATION: u8 = 0x01;
pub(crate) const RESPONSE: u8 = 0x02;
pub(crate) const COOKIE_REPLY: u8 = 0x03;

/// The most bytes of session parameters that a handshake carries.
pub const MAX_PARAMS: usize = 64;
/// mac1 and mac2 end every initiation and response.
pub(crate) const MACS_LEN: usize = 32;

const INITIATION_HEADER: usize = 6;
const RESPONSE_HEADER: usize = 10;
/// Ephemeral key, sealed static key, tag of the payload.
const INITIATION_NOISE: usize = 32 + 48 + TAG_LEN;
/// Ephemeral key, tag of the payload.
const RESPONSE_NOISE: usize = 32 + TAG_LEN;
const INITIATION_FIXED: usize = 18;
const RESPONSE_FIXED: usize = 14;

/// The longest response.
pub const MAX_RESPONSE: usize =
    RESPONSE_HEADER + RESPONSE_NOISE + RESPONSE_FIXED + MAX_PARAMS + MACS_LEN;
/// The shortest initiation (L-HS-5).
pub const MIN_INITIATION: usize = MAX_RESPONSE;
const MIN_INITIATION_PAYLOAD: usize =
    MIN_INITIATION - INITIATION_HEADER - INITIATION_NOISE - MACS_LEN;
const MAX_INITIATION_PAYLOAD: usize = INITIATION_FIXED + COOKIE_LEN + MAX_PARAMS;
/// The longest initiation, and the longest handshake message of all.
pub const MAX_MESSAGE: usize =
    INITIATION_HEADER + INITIATION_NOISE + MAX_INITIATION_PAYLOAD + MACS_LEN;
pub(crate) const MIN_RESPONSE: usize = MAX_RESPONSE - MAX_PARAMS;
/// Header, nonce, sealed cookie.
pub(crate) const COOKIE_REPLY_LEN: usize = 6 + 24 + COOKIE_LEN + TAG_LEN;

/// In the byte of lengths: a cookie stands before the parameters.
const HAS_COOKIE: u8 = 0x80;
/// Binds the keys to this protocol and version (L-HS-2).
const PROLOGUE: &[u8] = b"bentpipe link protocol 1";

/// Why a handshake message is dropped, silently (L-HS-4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum HandshakeError {
    /// Too short, too long or of no known form.
    #[error("malformed")]
    Malformed,
    /// Of a version that we do not speak.
    #[error("unknown protocol version")]
    Version,
    /// mac1 is wrong: the sender does not know our public key.
    #[error("wrong mac1")]
    Mac1,
    /// We are under load and mac2 is wrong or absent; a cookie reply was made.
    #[error("no valid cookie under load")]
    NoCookie,
    /// We are under load and this source used its share.
    #[error("too many handshakes of one source")]
    SourceLimit,
    /// The Noise message does not open: wrong key, wrong pre-shared key, or forged.
    #[error("does not authenticate")]
    Forged,
    /// The authenticated initiator is not the tunnel's peer.
    #[error("not this peer's")]
    WrongPeer,
    /// Received before.
    #[error("replayed")]
    Replayed,
    /// It crossed an initiation of ours, which goes first (L-HS-10).
    #[error("crossed by our own initiation, which goes first")]
    Crossed,
    /// It answers nothing that we asked.
    #[error("unsolicited")]
    Unsolicited,
    /// It came by a carrier on which nothing is sent now (L-PT-7).
    #[error("the path is down")]
    PathDown,
    /// An authenticated peer broke the protocol: no common cipher, or a cipher not offered.
    #[error("a choice that was not offered")]
    NotOffered,
}

/// Ciphers that a node is willing to use, best first decided by the responder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer(u8);

impl Offer {
    const CHACHA: u8 = 1;
    const AES: u8 = 2;

    /// ChaCha20-Poly1305, which every node can do, and AES-256-GCM if `hardware_aes`:
    /// it is chosen only where both processors have instructions for it.
    pub const fn new(hardware_aes: bool) -> Offer {
        Offer(if hardware_aes { Offer::CHACHA | Offer::AES } else { Offer::CHACHA })
    }

    /// The cipher for two nodes with these offers (L-HS-6).
    const fn common(self, other: Offer) -> Option<Cipher> {
        match self.0 & other.0 {
            both if both & Offer::AES != 0 => Some(Cipher::Aes256Gcm),
            both if both & Offer::CHACHA != 0 => Some(Cipher::ChaCha20Poly1305),
            _ => None,
        }
    }

    const fn allows(self, cipher: Cipher) -> bool {
        self.0 & code(cipher) != 0
    }
}

const fn code(cipher: Cipher) -> u8 {
    match cipher {
        Cipher::ChaCha20Poly1305 => Offer::CHACHA,
        Cipher::Aes256Gcm => Offer::AES,
    }
}

/// Session parameters that the link agrees on; the handshake only carries them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Params {
    len: u8,
    bytes: [u8; MAX_PARAMS],
}

impl Params {
    /// No parameters.
    pub const EMPTY: Params = Params { len: 0, bytes: [0; MAX_PARAMS] };

    /// These bytes, or `None` if they are more than [`MAX_PARAMS`].
    pub fn new(bytes: &[u8]) -> Option<Params> {
        let mut params = Params::EMPTY;
        params.bytes.get_mut(..bytes.len())?.copy_from_slice(bytes);
        params.len = bytes.len() as u8;
        Some(params)
    }

    /// The bytes as given.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl fmt::Debug for Params {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02x?}", self.as_bytes())
    }
}

/// A handshake message ready to travel.
#[derive(Clone, Copy)]
pub struct Message {
    len: u8,
    bytes: [u8; MAX_MESSAGE],
}

impl Message {
    pub(crate) fn zeroed(len: usize) -> Message {
        assert!(len <= MAX_MESSAGE, "no message is longer than the longest");
        Message { len: len as u8, bytes: [0; MAX_MESSAGE] }
    }

    /// The bytes for the carrier.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    pub(crate) fn as_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..usize::from(self.len)]
    }
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Message({} bytes of type {})", self.len, self.bytes[0])
    }
}

/// The two sides' random names for what they hold of one session (L-SE-1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionId {
    /// Drawn by this node.
    pub local: u64,
    /// Drawn by the peer.
    pub remote: u64,
}

/// What one handshake agreed on.
pub(crate) struct Agreed {
    pub keys: TrafficKeys,
    pub cipher: Cipher,
    pub session: SessionId,
    /// Where the peer wants its packets.
    pub remote_index: u32,
    pub params: Params,
}

/// What a node says of itself in a handshake.
#[derive(Clone, Copy)]
pub(crate) struct Hello {
    pub index: u32,
    pub offer: Offer,
    pub params: Params,
}

/// An initiation of ours, waiting for its response.
pub(crate) struct Asked {
    noise: Noise,
    hello: Hello,
    epoch: u64,
}

impl Asked {
    /// Writes an initiation, its macs left zero. `known` is the peer's epoch, or 0.
    pub fn new(
        local: &PrivateKey,
        peer: &PublicKey,
        preshared: &PresharedKey,
        hello: Hello,
        epochs: SessionId,
        cookie: Option<&Cookie>,
        entropy: &mut Entropy,
    ) -> Result<(Asked, Message), BadMessage> {
        let mut payload = [0; MAX_INITIATION_PAYLOAD];
        let len = write_initiation_payload(&mut payload, &hello, epochs, cookie);
        let mut message = Message::zeroed(INITIATION_HEADER + INITIATION_NOISE + len + MACS_LEN);
        let bytes = message.as_mut();
        bytes[..2].copy_from_slice(&[INITIATION, VERSION]);
        bytes[2..6].copy_from_slice(&hello.index.to_be_bytes());
        let (header, rest) = bytes.split_at_mut(INITIATION_HEADER);
        let mut noise = Noise::initiator(local, peer, preshared, &[PROLOGUE, header], entropy);
        noise.write(&payload[..len], rest)?;
        Ok((Asked { noise, hello, epoch: epochs.local }, message))
    }

    /// Reads the response, whose macs and receiver index the caller has checked. A bad
    /// one leaves this able to read a good one (L-HS-4).
    pub fn read_response(&mut self, packet: &[u8]) -> Result<Response, HandshakeError> {
        let header = packet.get(..RESPONSE_HEADER).ok_or(HandshakeError::Malformed)?;
        let noise = noise_part(packet, RESPONSE_HEADER)?;
        let mut payload = [0; RESPONSE_FIXED + MAX_PARAMS];
        let len = self.noise.read(noise, &mut payload).map_err(|_| HandshakeError::Forged)?;
        let mut payload = Reader(&payload[..len]);
        let epoch = payload.u64()?;
        let index = payload.u32()?;
        let cipher = payload.u8()?;
        let len = payload.u8()?;
        let params = Params::new(payload.take(usize::from(len))?);
        // The header travels in the clear; what it says counts only if repeated inside (L-HS-3).
        if index != be32(&header[2..6]) || epoch == 0 || !payload.0.is_empty() {
            return Err(HandshakeError::Malformed);
        }
        let cipher = [Cipher::Aes256Gcm, Cipher::ChaCha20Poly1305]
            .into_iter()
            .find(|c| code(*c) == cipher && self.hello.offer.allows(*c))
            .ok_or(HandshakeError::NotOffered)?;
        Ok(Response { epoch, index, cipher, params: params.ok_or(HandshakeError::Malformed)? })
    }

    /// The keys and the rest, once [`read_response`](Self::read_response) succeeded.
    pub fn finish(self, response: Response) -> Agreed {
        Agreed {
            keys: self.noise.finish(),
            cipher: response.cipher,
            session: SessionId { local: self.epoch, remote: response.epoch },
            remote_index: response.index,
            params: response.params,
        }
    }

    pub const fn index(&self) -> u32 {
        self.hello.index
    }
}

/// A response that authenticated.
pub(crate) struct Response {
    epoch: u64,
    index: u32,
    cipher: Cipher,
    params: Params,
}

/// A peer's initiation that authenticated: whose it is decides which tunnel accepts it.
///
/// It may be a replay; the keys that come of it count only once a packet under them
/// arrives (L-HS-8).
pub struct Initiation {
    noise: Noise,
    peer: PublicKey,
    sender_index: u32,
    ephemeral: [u8; 16],
    /// The initiator's epoch, and ours as far as it knows.
    epochs: SessionId,
    offer: Offer,
    params: Params,
    cookie: Option<Cookie>,
    mac1: [u8; 16],
    /// Bytes of its packet.
    len: usize,
}

impl Initiation {
    /// Opens an initiation that passed the [`Guard`](crate::cookie::Guard). Costs two
    /// X25519 agreements.
    ///
    /// # Errors
    /// [`HandshakeError::Malformed`] or [`HandshakeError::Forged`]; there is no answer to either.
    pub fn open(
        local: &PrivateKey,
        entropy: &mut Entropy,
        packet: &[u8],
    ) -> Result<Initiation, HandshakeError> {
        let header = packet.get(..INITIATION_HEADER).ok_or(HandshakeError::Malformed)?;
        let message = noise_part(packet, INITIATION_HEADER)?;
        let mut noise = Noise::responder(local, &[PROLOGUE, header], entropy);
        let mut payload = [0; MAX_INITIATION_PAYLOAD];
        let len = noise.read(message, &mut payload).map_err(|_| HandshakeError::Forged)?;
        let peer = noise.peer().ok_or(HandshakeError::Forged)?;
        let mut payload = Reader(&payload[..len]);
        let epochs = SessionId { remote: payload.u64()?, local: payload.u64()? };
        let offer = Offer(payload.u8()?);
        let lengths = payload.u8()?;
        let cookie = match lengths & HAS_COOKIE {
            0 => None,
            _ => Some(Cookie::from_bytes(payload.array()?)),
        };
        let params = Params::new(payload.take(usize::from(lengths & !HAS_COOKIE))?)
            .ok_or(HandshakeError::Malformed)?;
        if epochs.remote == 0 {
            return Err(HandshakeError::Malformed);
        }
        let (_, mac1) = macs_of(packet).ok_or(HandshakeError::Malformed)?;
        let ephemeral = message[..16].try_into().map_err(|_| HandshakeError::Malformed)?;
        let sender_index = be32(&header[2..6]);
        let len = packet.len();
        Ok(Initiation {
            noise,
            peer,
            sender_index,
            ephemeral,
            epochs,
            offer,
            params,
            cookie,
            mac1,
            len,
        })
    }

    /// Whose initiation it is.
    pub const fn peer(&self) -> &PublicKey {
        &self.peer
    }

    /// The session parameters that the peer sent.
    pub const fn params(&self) -> &Params {
        &self.params
    }

    /// Half of the ephemeral key: enough to know the message again.
    pub(crate) const fn ephemeral(&self) -> &[u8; 16] {
        &self.ephemeral
    }

    pub(crate) const fn epochs(&self) -> SessionId {
        self.epochs
    }

    pub(crate) const fn cookie(&self) -> Option<&Cookie> {
        self.cookie.as_ref()
    }

    pub(crate) const fn sender_index(&self) -> u32 {
        self.sender_index
    }

    pub(crate) const fn mac1(&self) -> &[u8; 16] {
        &self.mac1
    }

    /// Bytes of the packet that it came in.
    pub(crate) const fn packet_len(&self) -> usize {
        self.len
    }

    /// Whether there is a cipher that both sides have.
    pub(crate) const fn suits(&self, offer: Offer) -> bool {
        offer.common(self.offer).is_some()
    }

    /// Answers it: the response with its macs left zero, and the new keys. `epoch` is
    /// our name for the session.
    pub(crate) fn respond(
        mut self,
        preshared: &PresharedKey,
        hello: Hello,
        epoch: u64,
    ) -> Result<(Agreed, Message), HandshakeError> {
        let cipher = hello.offer.common(self.offer).ok_or(HandshakeError::NotOffered)?;
        let params = hello.params.as_bytes();
        let mut payload = [0; RESPONSE_FIXED + MAX_PARAMS];
        payload[..8].copy_from_slice(&epoch.to_be_bytes());
        payload[8..12].copy_from_slice(&hello.index.to_be_bytes());
        payload[12..14].copy_from_slice(&[code(cipher), hello.params.len]);
        payload[14..14 + params.len()].copy_from_slice(params);
        let len = RESPONSE_FIXED + params.len();

        let mut message = Message::zeroed(RESPONSE_HEADER + RESPONSE_NOISE + len + MACS_LEN);
        let bytes = message.as_mut();
        bytes[..2].copy_from_slice(&[RESPONSE, VERSION]);
        bytes[2..6].copy_from_slice(&hello.index.to_be_bytes());
        bytes[6..10].copy_from_slice(&self.sender_index.to_be_bytes());
        self.noise.set_preshared(preshared);
        self.noise
            .write(&payload[..len], &mut bytes[RESPONSE_HEADER..])
            .map_err(|_| HandshakeError::Forged)?;
        let agreed = Agreed {
            keys: self.noise.finish(),
            cipher,
            session: SessionId { local: epoch, remote: self.epochs.remote },
            remote_index: self.sender_index,
            params: self.params,
        };
        Ok((agreed, message))
    }
}

impl fmt::Debug for Initiation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Initiation(of {})", self.peer)
    }
}

/// The form of a handshake message by its type, version and length, before anything is
/// computed.
pub(crate) fn check_form(packet: &[u8]) -> Result<(), HandshakeError> {
    let lengths = match packet.first() {
        Some(&INITIATION) => MIN_INITIATION..=MAX_MESSAGE,
        Some(&RESPONSE) => MIN_RESPONSE..=MAX_RESPONSE,
        Some(&COOKIE_REPLY) => COOKIE_REPLY_LEN..=COOKIE_REPLY_LEN,
        _ => return Err(HandshakeError::Malformed),
    };
    match packet.get(1) {
        Some(&VERSION) if lengths.contains(&packet.len()) => Ok(()),
        Some(&VERSION) | None => Err(HandshakeError::Malformed),
        Some(_) => Err(HandshakeError::Version),
    }
}

/// What mac1 covers, and mac1.
pub(crate) fn macs_of(packet: &[u8]) -> Option<(&[u8], [u8; 16])> {
    let (covered, macs) = packet.split_at_checked(packet.len().checked_sub(MACS_LEN)?)?;
    Some((covered, macs[..16].try_into().ok()?))
}

fn noise_part(packet: &[u8], header: usize) -> Result<&[u8], HandshakeError> {
    let end = packet.len().checked_sub(MACS_LEN).ok_or(HandshakeError::Malformed)?;
    packet.get(header..end).ok_or(HandshakeError::Malformed)
}

fn write_initiation_payload(
    out: &mut [u8; MAX_INITIATION_PAYLOAD],
    hello: &Hello,
    epochs: SessionId,
    cookie: Option<&Cookie>,
) -> usize {
    let flag = if cookie.is_some() { HAS_COOKIE } else { 0 };
    out[..8].copy_from_slice(&epochs.local.to_be_bytes());
    out[8..16].copy_from_slice(&epochs.remote.to_be_bytes());
    out[16..18].copy_from_slice(&[hello.offer.0, flag | hello.params.len]);
    let mut at = INITIATION_FIXED;
    for part in [cookie.map_or(&[][..], |c| c.as_bytes()), hello.params.as_bytes()] {
        out[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    }
    at.max(MIN_INITIATION_PAYLOAD)
}

pub(crate) fn be32(bytes: &[u8]) -> u32 {
    u32::from_be_bytes(bytes.try_into().expect("the caller gives four bytes"))
}

/// Reads fields from the front; what is missing is [`HandshakeError::Malformed`].
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, n: usize) -> Result<&'a [u8], HandshakeError> {
        let (head, rest) = self.0.split_at_checked(n).ok_or(HandshakeError::Malformed)?;
        self.0 = rest;
        Ok(head)
    }
    fn array<const N: usize>(&mut self) -> Result<[u8; N], HandshakeError> {
        self.take(N)?.try_into().map_err(|_| HandshakeError::Malformed)
    }
    fn u8(&mut self) -> Result<u8, HandshakeError> {
        Ok(self.array::<1>()?[0])
    }
    fn u32(&mut self) -> Result<u32, HandshakeError> {
        self.array().map(u32::from_be_bytes)
    }
    fn u64(&mut self) -> Result<u64, HandshakeError> {
        self.array().map(u64::from_be_bytes)
    }
}
