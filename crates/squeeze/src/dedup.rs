//! What went over the link before does not go again (R-COMPRESS; spec/link.md,
//! "Deduplication").
//!
//! The content of a stream's direction is cut into *chunks* where a keyed rolling hash says
//! so ([`chunker`]), so that the same content is cut alike wherever it stands. The sender
//! numbers the chunks that it sends, the receiver keeps them in its [`Store`] and says which
//! numbers it holds, and from then on the sender sends a number and eight bytes of the
//! chunk's id in place of the chunk. Nothing is guessed: a sender refers to nothing that the
//! receiver has not confirmed, keeps what it refers to until it has been taken, and answers
//! with the bytes where the receiver lost them meanwhile.
//!
//! ```text
//! host → ItemEncoder → items → … the stream … → items → ItemDecoder → host
//!           │                                          │
//!         Sender  ← held, gone, wanted ── messages ─  Receiver
//!      what the peer                ── bytes wanted →  Store: memory, then disk
//!          holds
//! ```
//!
//! [`Dedup`] is one link's [`Sender`] and [`Receiver`]. Whoever owns it carries messages
//! ([`Dedup::poll_message`], [`Dedup::handle_message`]) and does what the store and the
//! catalogue want of files ([`Receiver::poll_op`], [`Sender::poll_journal`]). The rest is
//! what a stream does anyway:
//!
//! - bytes read from the host go through [`ItemEncoder::push`], as many as [`ItemEncoder::room`]
//!   says; where the link has room, [`ItemEncoder::pull`] gives what is to be compressed and
//!   written, [`ItemEncoder::written`] is told where on the stream that ended and
//!   [`ItemEncoder::consumed`] how far the stream's credit has come;
//! - bytes of the stream go to [`ItemDecoder::show`] as to a [`crate::stream::BlockDecoder`];
//!   where it answers [`Shown::Waiting`] the files are served, and if [`Receiver::poll_ready`]
//!   does not name the stream then it does later;
//! - [`ItemEncoder::close`] and [`ItemDecoder::close`] end both, [`Dedup::begin_session`] begins
//!   anew.

mod catalogue;
mod chunker;
mod decoder;
#[doc(hidden)]
pub mod disk;
mod encoder;
mod keys;
mod link;
mod log;
mod receiver;
mod sender;
mod store;
mod wire;

#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
#[cfg(test)]
mod tests;

pub use catalogue::Journal;
pub use chunker::{AVERAGE, Chunker, MAX_CHUNK, MIN_CHUNK};
pub use decoder::{Bad, ItemDecoder, Shown};
pub use encoder::ItemEncoder;
pub use keys::{Keys, Scope};
pub use link::{Dedup, Limits};
pub use log::{MAX_INDEX, Recovery};
pub use receiver::Receiver;
pub use sender::Sender;
pub use store::{Loaded, Op, Store, Written};
pub use wire::{MAX_MESSAGE, PLAIN};
