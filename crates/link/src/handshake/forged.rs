//! Handshake messages of somebody who has a peer's key and writes into them what he likes.

use super::noise::Noise;
use super::{
    INITIATION, INITIATION_HEADER, INITIATION_NOISE, MACS_LEN, MAX_INITIATION_PAYLOAD, Message,
    PROLOGUE, RESPONSE, RESPONSE_FIXED, RESPONSE_HEADER, RESPONSE_NOISE, VERSION, be32,
};
use crate::cookie::MacKeys;
use crate::handshake::MAX_PARAMS;
use crate::keys::{Entropy, PresharedKey, PrivateKey, PublicKey};

/// An initiation with this payload, or its beginning.
pub(crate) fn initiation(
    local: &PrivateKey,
    peer: &PublicKey,
    index: u32,
    payload: &[u8],
    entropy: &mut Entropy,
) -> Option<Message> {
    let payload = &payload[..payload.len().min(MAX_INITIATION_PAYLOAD)];
    let len = INITIATION_HEADER + INITIATION_NOISE + payload.len() + MACS_LEN;
    let mut message = Message::zeroed(len);
    let bytes = message.as_mut();
    bytes[..2].copy_from_slice(&[INITIATION, VERSION]);
    bytes[2..6].copy_from_slice(&index.to_be_bytes());
    let (header, rest) = bytes.split_at_mut(INITIATION_HEADER);
    let prologue = [PROLOGUE, &*header];
    let mut noise = Noise::initiator(local, peer, &PresharedKey::NONE, &prologue, entropy);
    noise.write(payload, rest).ok()?;
    MacKeys::of(peer).sign(&mut message, None);
    Some(message)
}

/// A response to `asked`, an initiation of the peer's, with this payload, or its beginning.
pub(crate) fn response(
    local: &PrivateKey,
    asked: &[u8],
    index: u32,
    payload: &[u8],
    entropy: &mut Entropy,
) -> Option<Message> {
    let header = asked.get(..INITIATION_HEADER)?;
    let mut noise = Noise::responder(local, &[PROLOGUE, header], entropy);
    let inner = asked.get(INITIATION_HEADER..asked.len().checked_sub(MACS_LEN)?)?;
    noise.read(inner, &mut [0; MAX_INITIATION_PAYLOAD]).ok()?;
    let peer = noise.peer()?;
    let payload = &payload[..payload.len().min(RESPONSE_FIXED + MAX_PARAMS)];
    let len = RESPONSE_HEADER + RESPONSE_NOISE + payload.len() + MACS_LEN;
    let mut message = Message::zeroed(len);
    let bytes = message.as_mut();
    bytes[..2].copy_from_slice(&[RESPONSE, VERSION]);
    bytes[2..6].copy_from_slice(&index.to_be_bytes());
    bytes[6..10].copy_from_slice(&be32(&header[2..6]).to_be_bytes());
    noise.set_preshared(&PresharedKey::NONE);
    noise.write(payload, &mut bytes[RESPONSE_HEADER..]).ok()?;
    MacKeys::of(&peer).sign(&mut message, None);
    Some(message)
}
