//! A stream's bytes, made fewer (R-COMPRESS).
//!
//! Each direction of a compressed stream is a sequence of blocks (spec/link.md, "Compressed
//! streams"), made of whatever bytes are there when the link can take some: nothing waits
//! for more. A block is compressed alone, by zstd, with the end of what came before as its
//! prefix. So one compressor and one decompressor serve all streams of a node, a stream
//! that rests holds no more than that end, and a stream's blocks depend on nothing but the
//! stream itself and the dictionary that every node has: what one user sends never shows
//! in the size of what another does.
//!
//! Data that does not shrink is found out within its first 4 kB and goes as a *run*, bytes
//! as they are, of a length that doubles each time ([`BlockEncoder`]). How hard the compressor
//! tries follows from the link's rate and the time it was seen to take (`effort.rs`).

mod block;
mod decoder;
mod effort;
mod encoder;
mod history;
mod secrets;
mod zstd;

pub use block::{BadBlock, MAX_RAW};
pub use decoder::{BlockDecoder, Shown};
pub use encoder::{BlockEncoder, Terms};
pub use secrets::{Requests, mixes_secrets};
pub use zstd::{Spent, Stopwatch, Zstd};

#[cfg(test)]
mod corpora;
#[cfg(test)]
mod tests;
