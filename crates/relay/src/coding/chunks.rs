//! One link's deduplication: its messages, and when they are sent (spec/link.md,
//! "Deduplication").

use link::session::Session;
use squeeze::dedup::{Dedup, MAX_MESSAGE};
use units::{Duration, Instant};

use super::ChunkCounts;

/// News waits for a quarter of a round trip, and at least so long, so that it goes in large
/// pieces.
const NEWS: Duration = Duration::from_millis(100);
/// What cannot be sent because there is no room is tried again after this.
const RETRY: Duration = Duration::from_millis(50);

/// A link's chunks, both ways, and what the two nodes tell each other of them.
pub(super) struct Chunks {
    pub dedup: Dedup,
    /// The session that it is about, by its number.
    session: Option<u64>,
    /// The beginning of a message that has not come whole.
    incoming: Vec<u8>,
    outgoing: Vec<u8>,
    /// When news, or what found no room, is to be sent.
    pub due: Option<Instant>,
}

impl Chunks {
    pub fn new(dedup: Dedup) -> Chunks {
        Chunks { dedup, session: None, incoming: Vec::new(), outgoing: Vec::new(), due: None }
    }

    /// What follows is of the session of this number.
    pub fn enter(&mut self, session: u64) {
        if self.session != Some(session) {
            self.session = Some(session);
            self.incoming = Vec::new();
            self.dedup.begin_session();
        }
    }

    /// Messages of the peer have come, or pieces of them.
    pub fn receive(&mut self, now: Instant, session: &mut Session) {
        let (incoming, dedup, mut sound) = (&mut self.incoming, &mut self.dedup, true);
        session.take_messages(now, |bytes| {
            if !sound {
                return;
            }
            incoming.extend_from_slice(bytes);
            let mut at = 0;
            loop {
                match length(&incoming[at..]) {
                    Some((len, head)) if (1..=MAX_MESSAGE).contains(&len) => {
                        let Some(message) = incoming.get(at + head..at + head + len) else { break };
                        dedup.handle_message(message);
                        at += head + len;
                    }
                    Some(_) => {
                        sound = false;
                        break;
                    }
                    None => break,
                }
            }
            incoming.drain(..at);
        });
        if !sound {
            session.refuse_messages(now);
        }
        if !sound || self.incoming.is_empty() {
            self.incoming = Vec::new();
        }
    }

    /// Sends what there is to be said. What can wait goes when its time has come.
    pub fn send(&mut self, now: Instant, session: &mut Session) {
        // Nothing can be said where nobody listens, now or ever.
        let dedup = session.coding().is_some_and(|coding| coding.dedup);
        if !dedup || session.messages_are_refused() {
            self.due = None;
            return;
        }
        let news = self.due.is_some_and(|due| due <= now);
        if news {
            self.due = None;
        }
        while session.has_message_room() {
            self.outgoing.clear();
            // The length before it has one, two or three bytes.
            self.outgoing.extend_from_slice(&[0; 3]);
            if !self.dedup.poll_message(news, &mut self.outgoing) {
                self.outgoing = Vec::new();
                if self.due.is_none() && self.dedup.receiver.has_news() {
                    self.due = Some(now + session.rtt().divided_by(4).max(NEWS));
                }
                return;
            }
            let begin = put_length(&mut self.outgoing);
            session.send_messages(now, &self.outgoing[begin..]);
        }
        // Whoever asks again meanwhile does not put it off.
        self.due.get_or_insert(now + RETRY);
    }

    pub fn counts(&self, in_use: bool) -> ChunkCounts {
        let (sender, receiver) = (&self.dedup.sender, &self.dedup.receiver);
        let (memory, disk) = receiver.store.size();
        ChunkCounts {
            in_use,
            held: receiver.store.len() as u64,
            memory: memory as u64,
            disk,
            referred: sender.referred(),
            wanted: receiver.asked(),
            gone: receiver.gone(),
            quarantined: receiver.store.quarantined(),
            violations: self.dedup.violations(),
        }
    }
}

/// Reads a message's length: a varint of at most three bytes, and how many they are. `None`:
/// there is less. (A longer one is out of range whatever it says.)
fn length(bytes: &[u8]) -> Option<(usize, usize)> {
    let first = *bytes.first()?;
    match first.leading_ones() {
        0 => Some((usize::from(first), 1)),
        1 => Some((usize::from(first & 0x3f) << 8 | usize::from(*bytes.get(1)?), 2)),
        2 => {
            let rest = usize::from(*bytes.get(1)?) << 8 | usize::from(*bytes.get(2)?);
            Some((usize::from(first & 0x1f) << 16 | rest, 3))
        }
        _ => Some((usize::MAX, 1)),
    }
}

/// Writes the length of the message that begins at the fourth byte into the bytes before it;
/// answers where it begins.
fn put_length(message: &mut [u8]) -> usize {
    let len = message.len() - 3;
    let be = (len as u32).to_be_bytes();
    message[..3].copy_from_slice(&be[1..]);
    match len {
        ..=0x7f => 2,
        0x80..=0x3fff => {
            message[1] |= 0x80;
            1
        }
        _ => {
            message[0] |= 0xc0;
            0
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_varints_and_those_out_of_range_are_seen() {
        for len in [1, 127, 128, 16_383, 16_384, MAX_MESSAGE] {
            let mut message = vec![0; 3 + len];
            let begin = put_length(&mut message);
            let (read, head) = length(&message[begin..]).expect("all of it is there");
            assert_eq!((read, begin + head), (len, 3));
            assert!((0..head).all(|n| length(&message[begin..begin + n]).is_none()));
        }
        assert!(length(&[0xff]).is_some_and(|(len, _)| len > MAX_MESSAGE));
    }
}
