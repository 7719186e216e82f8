//! Header compression for unsplit packets (R-HC), and compression of their payloads
//! (R-COMPRESS).
//!
//! A **context** belongs to one flow, as in ROHC (RFC 5795). It has a **reference**: the header
//! of one packet of the flow, and by how much each field grows from packet to packet (its
//! **deltas**). A packet is sent as the number of steps from the reference and those fields that
//! the deltas do not predict: two bytes for a steady flow.
//!
//! ROHC and RFC 2507 guess which context the receiver has, and repair wrong guesses. Here
//! nothing is guessed: a reference is used only when the link's ACKs say that the packet with it
//! arrived. So a loss costs the packet that was lost and no other.
//!
//! - A context has two **slots**, each for one reference. A packet that becomes a reference
//!   fills one of them. Until it is acknowledged, packets refer to the other slot, or are sent
//!   whole.
//! - A slot keeps the number of the link packet that filled it. If two packets fill one slot,
//!   the higher number stays. A packet with a lower number than its slot's is dropped: its
//!   reference was replaced. So reordering never decodes a packet with the wrong reference.
//! - What both nodes can compute is not sent: lengths, and checksums that are right. The sender
//!   decodes each header as the receiver will, and sends the packet whole if the result differs
//!   by a bit.
//! - Payloads are compressed with the flow's last payloads as a dictionary (`payload`). These
//!   belong to the reference, so the same rules hold for them.
//!
//! ```text
//! packet   context × 2 + slot (varint)   form   …
//! form     0nnnnnnn                     n steps, all fields as predicted
//!          10innnnn nnnnnnnn            the same; i: becomes the other slot's reference
//!          11iscmzk n (varint)          i as above, s: deltas follow, c: the checksum
//!                                       follows, m: fields follow, z: the payload is
//!                                       compressed, k: it is kept with the new reference
//!          11111111 kind                the packet is whole and becomes the slot's reference
//! then     IPv4 identification (2)      where the reference says that it is random
//!          mask (varint), fields        m; a field of one byte as it is, others as the
//!                                       difference from what was predicted (zigzag varint)
//!          checksum (2)                 c
//!          mask (varint), deltas       s, or whole (zigzag varints)
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
