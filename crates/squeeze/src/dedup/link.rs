//! Both halves of one link's deduplication.

use std::sync::Arc;

use super::keys::Keys;
use super::receiver::Receiver;
use super::sender::Sender;
use super::store::Store;
use super::wire::Message;

/// What deduplication may cost on one link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of chunks that the store keeps in memory; those that wait for the disk may be as
    /// many again.
    pub memory: usize,
    /// Bytes that it keeps in files. Less than 256 kB is none.
    pub disk: u64,
    /// Bytes that are kept until the peer has taken what was referred to. Beyond this, what
    /// the peer holds is sent as it is.
    pub sources: usize,
    /// Bytes of chunks that have not come whole. Beyond this, chunks are not kept.
    pub assembling: usize,
    /// Chunks of the peer's store that are remembered, about 150 bytes each.
    pub chunks: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            memory: 16 << 20,
            disk: 1 << 30,
            sources: 16 << 20,
            assembling: 8 << 20,
            chunks: 1 << 18,
        }
    }
}

/// One link's deduplication, both ways.
pub struct Dedup {
    /// What we send.
    pub sender: Sender,
    /// What we receive.
    pub receiver: Receiver,
    violations: u64,
}

impl Dedup {
    /// Deduplication over `store`, which [`Recovery`](super::Recovery) found or
    /// [`Store::new`] made.
    pub fn new(keys: Arc<Keys>, store: Store, limits: &Limits) -> Dedup {
        Dedup {
            sender: Sender::new(keys.clone(), limits.chunks, limits.sources),
            receiver: Receiver::new(keys, store, limits.assembling),
            violations: 0,
        }
    }

    /// It may cost more from now on, or less.
    pub fn set_limits(&mut self, limits: &Limits) {
        self.sender.set_limits(limits.chunks, limits.sources);
        self.receiver.set_limits(limits);
    }

    /// A session begins: encoders and decoders of the one before are void.
    pub fn begin_session(&mut self) {
        self.sender.begin();
        self.receiver.begin();
    }

    /// Appends the next message for the peer to `out`; false if there is none. Messages may
    /// overtake each other and come twice. `news`: also what can wait and is cheaper in
    /// larger pieces; to be true a few times a round trip, or where a packet has room.
    pub fn poll_message(&mut self, news: bool, out: &mut Vec<u8>) -> bool {
        self.receiver.poll(news, out) || self.sender.poll(out)
    }

    /// A message from the peer.
    pub fn handle_message(&mut self, bytes: &[u8]) {
        match Message::read(bytes) {
            Some(message) => {
                self.sender.handle(&message);
                self.receiver.handle(&message);
            }
            None => self.violations += 1,
        }
    }

    /// Messages were lost, either way: says again what has no answer.
    pub fn repeat(&mut self) {
        self.receiver.repeat();
    }

    /// Messages of the peer that were malformed.
    pub fn violations(&self) -> u64 {
        self.violations
    }
}
