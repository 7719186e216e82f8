//! Both halves of one link's deduplication.

use std::sync::Arc;

use super::keys::Keys;
use super::receiver::Receiver;
use super::sender::Sender;
use super::store::Store;
use super::wire::{MAX_MESSAGE, Message, Reader, put_varint};

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
    taken: u64,
    violations: u64,
    /// The beginning of a message that has not come whole.
    incoming: Vec<u8>,
}

impl Dedup {
    /// Deduplication over `store`, which [`Recovery`](super::Recovery) found or
    /// [`Store::new`] made.
    pub fn new(keys: Arc<Keys>, store: Store, limits: &Limits) -> Dedup {
        Dedup {
            sender: Sender::new(keys.clone(), limits.chunks, limits.sources),
            receiver: Receiver::new(keys, store, limits.assembling),
            taken: 0,
            violations: 0,
            incoming: Vec::new(),
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
        self.incoming = Vec::new();
    }

    /// Appends the next message for the peer to `out`; false if there is none. Messages may
    /// overtake each other and come twice. `news`: also what can wait and is cheaper in
    /// larger pieces; to be true a few times a round trip, or where a packet has room.
    pub fn poll_message(&mut self, news: bool, out: &mut Vec<u8>) -> bool {
        self.receiver.poll(news, out) || self.sender.poll(out)
    }

    /// The same with its length before it, as it goes over the link (L-DD-12).
    pub fn poll_framed(&mut self, news: bool, out: &mut Vec<u8>) -> bool {
        let begin = out.len();
        if !self.poll_message(news, out) {
            return false;
        }
        let len = out.len() - begin;
        put_varint(len as u64, out);
        let message = &mut out[begin..];
        message.rotate_left(len);
        true
    }

    /// Messages from the peer as they come over the link: in pieces, each message after its
    /// length. False if that is out of range: then nothing that follows can be understood
    /// (L-DD-12).
    pub fn receive(&mut self, bytes: &[u8]) -> bool {
        let mut incoming = std::mem::take(&mut self.incoming);
        incoming.extend_from_slice(bytes);
        let mut rest = Reader(&incoming);
        let mut at = 0;
        while let Some(len) = rest.varint() {
            let len = usize::try_from(len).unwrap_or(usize::MAX);
            if !(1..=MAX_MESSAGE).contains(&len) {
                return false;
            }
            let Some(message) = rest.bytes(len) else { break };
            self.handle_message(message);
            at = incoming.len() - rest.0.len();
        }
        if at < incoming.len() {
            incoming.drain(..at);
            self.incoming = incoming;
        }
        true
    }

    /// A message from the peer.
    pub fn handle_message(&mut self, bytes: &[u8]) {
        match Message::read(bytes) {
            Some(message) => {
                self.taken += 1;
                self.sender.handle(&message);
                self.receiver.handle(&message);
            }
            None => self.violations += 1,
        }
    }

    /// Messages were lost, either way: says again what has no answer. Links lose none.
    #[cfg(test)]
    pub(super) fn repeat(&mut self) {
        self.receiver.repeat();
    }

    /// Messages of the peer that were understood.
    pub fn messages(&self) -> u64 {
        self.taken
    }

    /// Messages of the peer that were malformed.
    pub fn violations(&self) -> u64 {
        self.violations
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dedup() -> Dedup {
        let (keys, limits) = (Arc::new(Keys::new(&[1; 32])), Limits::default());
        Dedup::new(keys.clone(), Store::new(keys, limits.memory, 0, 1), &limits)
    }

    #[test]
    fn messages_come_in_any_pieces_and_lengths_out_of_range_are_seen() {
        // L-DD-12
        for len in [1, 127, 128, 16_383, 16_384, MAX_MESSAGE] {
            let mut bytes = Vec::new();
            put_varint(len as u64, &mut bytes);
            let head = bytes.len();
            bytes.resize(head + len, 0); // Means nothing: it is counted.
            for cut in [1, 2, 3, head, head + 1, head + len - 1] {
                let mut far = dedup();
                let (first, second) = bytes.split_at(cut.min(head + len - 1));
                assert!(far.receive(first) && far.violations() == 0, "{cut} of {len}");
                assert!(far.receive(second) && far.violations() == 1, "{cut} of {len}");
                assert!(far.receive(&[bytes.clone(), bytes.clone()].concat()));
                assert_eq!((far.violations(), far.incoming.capacity()), (3, 0));
            }
        }
        for len in [0, MAX_MESSAGE as u64 + 1, 1 << 40, u64::MAX] {
            let mut bytes = vec![1, 0];
            put_varint(len, &mut bytes);
            let mut far = dedup();
            assert!(!far.receive(&bytes), "{len}");
            assert_eq!(far.violations(), 1, "what came before it is a message");
            assert!(far.incoming.is_empty());
        }
    }

    #[test]
    fn what_is_framed_is_what_is_received() {
        let (mut near, mut far) = (dedup(), dedup());
        for number in 1..2000 {
            near.receiver.keep(3 * number, &[number as u8; 300]);
        }
        let (mut plain, mut framed) = (Vec::new(), vec![7]);
        assert!(near.poll_message(true, &mut plain));
        near.begin_session();
        assert!(near.poll_framed(true, &mut framed));
        assert_eq!(framed[0], 7, "it is appended");
        assert!(plain.len() > 127 && framed.ends_with(&plain));
        assert!(far.receive(&framed[1..]) && far.violations() == 0);
        framed.clear();
        assert!(!near.poll_framed(true, &mut framed) && framed.is_empty());
    }
}
