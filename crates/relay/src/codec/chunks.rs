//! One link's deduplication: its messages, and when they are sent (spec/link.md,
//! "Deduplication").

use link::session::Session;
use squeeze::dedup::Dedup;
use units::{Duration, Instant};

use super::ChunkCounts;

/// News waits for a quarter of a round trip, and at least so long, so that it goes in large
/// pieces.
const NEWS: Duration = Duration::from_millis(100);

/// A link's chunks, both ways, and what the two nodes tell each other of them.
pub(super) struct Chunks {
    pub dedup: Dedup,
    /// The session that it is about, by its number.
    session: Option<u64>,
    /// When news is to be sent.
    pub due: Option<Instant>,
    /// News was due and found no room.
    overdue: bool,
}

impl Chunks {
    pub fn new(dedup: Dedup) -> Chunks {
        Chunks { dedup, session: None, due: None, overdue: false }
    }

    /// What follows is of the session of this number.
    pub fn enter(&mut self, session: u64) {
        if self.session != Some(session) {
            self.session = Some(session);
            self.dedup.begin_session();
        }
    }

    /// Messages of the peer have come, or pieces of them.
    pub fn receive(&mut self, now: Instant, session: &mut Session) {
        let (dedup, mut sound) = (&mut self.dedup, true);
        session.take_messages(now, |bytes| sound = sound && dedup.receive(bytes));
        if !sound {
            session.refuse_messages(now);
        }
    }

    /// Sends what there is to be said, by way of `scratch`. What can wait goes when its time has
    /// come.
    pub fn send(&mut self, now: Instant, session: &mut Session, scratch: &mut Vec<u8>) {
        // Nothing can be said where nobody listens, now or ever.
        let dedup = session.codec().is_some_and(|codec| codec.dedup);
        if !dedup || session.messages_are_refused() {
            (self.due, self.overdue) = (None, false);
            return;
        }
        let mut news = std::mem::take(&mut self.overdue);
        if self.due.is_some_and(|due| due <= now) {
            (self.due, news) = (None, true);
        }
        while session.has_message_room() {
            scratch.clear();
            if !self.dedup.poll_framed(news, scratch) {
                if self.due.is_none() && self.dedup.receiver.has_news() {
                    self.due = Some(now + session.rtt().divided_by(4).max(NEWS));
                }
                return;
            }
            session.send_messages(now, scratch);
        }
        // The session says when there is room again, however long its link is dark.
        self.overdue = news;
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
            messages: self.dedup.messages(),
            violations: self.dedup.violations(),
        }
    }
}
