//! Unsplit packets: their headers (R-HC), and payloads that shrink (R-COMPRESS).
//!
//! A **context** stands for a flow. It has a **reference**: the header of one packet of the
//! flow, and by how much each of its fields grows from packet to packet (its **strides**).
//! A packet then travels as the number of steps from the reference and the fields that are
//! not what the steps predict: two bytes for a steady flow.
//!
//! ROHC (RFC 5795) and RFC 2507 guess what the far node has, and repair wrong guesses. Here
//! nothing is guessed: a reference is used only when the link's own reports say that the
//! packet with it has arrived. So a loss costs the packet that was lost and no other.
//!
//! - A packet makes itself the reference of one of its context's two **slots**. While it is
//!   not known to have arrived packets refer to the other slot, or go whole.
//! - A slot remembers the number of the link packet that filled it. Of two that fill it the
//!   one with the higher number stays, and a packet that refers to what is gone (it has a
//!   lower number than what stands in the slot) is dropped. No order of arrival makes one
//!   packet be understood by another's reference.
//! - What both nodes can compute does not travel: lengths, and checksums that are right. The
//!   sender takes each header apart as the receiver will and sends the packet whole where
//!   the outcome differs by a bit: what arrives is what was sent.
//! - Payloads are compressed with the flow's last ones to refer to (`payload`), which belong
//!   to the reference, so that the same rule holds for them.
//!
//! ```text
//! packet   context × 2 + slot (varint)   form   …
//! form     0nnnnnnn                     n steps, all fields as predicted
//!          10innnnn nnnnnnnn            the same; i: becomes the other slot's reference
//!          11iscmzk n (varint)          i as above, s: strides follow, c: the checksum
//!                                       follows, m: fields follow, z: the payload is
//!                                       compressed, k: it is kept with the new reference
//!          11111111 kind                the packet is whole and becomes the slot's reference
//! then     IPv4 identification (2)      where the reference says that it is random
//!          mask (varint), fields        m; a field of one byte as it is, others as the
//!                                       difference from what was predicted (zigzag varint)
//!          checksum (2)                 c
//!          mask (varint), strides       s, or whole (zigzag varints)
//!          payload, or the whole packet to the end
//! ```

mod bytes;
mod code;
mod compressor;
mod decompressor;
mod history;
mod meter;
mod payload;
mod shape;

#[cfg(any(test, fuzzing))]
pub mod fuzz;
#[cfg(test)]
mod tests;

pub use compressor::{Compressor, FORGET, Head, Token};
pub use decompressor::{Decompressor, Refused};

/// The longest header that is compressed, in bytes: IPv6, UDP and RTP with 15 sources take
/// 120, IPv4 and TCP with all their options as many.
pub const MAX_HEADER: usize = 128;
/// The longest packet, in bytes.
pub const MAX_PACKET: usize = 9000;
/// The most bytes of a flow's payloads that are kept with a reference.
pub const MAX_PAYLOAD_MEMORY: usize = 2048;
/// The most contexts of one direction.
pub const MAX_CONTEXTS: usize = 1024;
