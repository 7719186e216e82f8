//! Messages about chunks (L-DD-12): one stream each way that only bytes go through. What they
//! mean, and where one ends, is the business of the link's user.

use std::collections::btree_map::Entry;

use units::Instant;

use super::event::Event;
use super::state::Session;
use crate::stream::{Carries, Delivery, Stream};
use crate::wire::{ResetReason, StreamId};

/// Which of [`Session::messages`] is whose.
const OURS: usize = 0;
const PEERS: usize = 1;
/// Bytes of messages that wait to be sent, beyond which no more are made: a chunk and what
/// else there is to say meanwhile. There is room again when half of them have left.
pub(super) const UNSENT: u64 = 48 * 1024;

impl Session {
    /// Is there room for another message? There is none before the peer has told that it
    /// takes them. Where too many wait, [`Event::Messages`] follows when half have left.
    pub fn has_message_room(&mut self) -> bool {
        let takes = self.codec().is_some_and(|codec| codec.dedup);
        if !takes || self.closing.is_some() {
            return false;
        }
        let Some(id) = self.messages[OURS] else { return true };
        if !self.is_usable(id) {
            return false;
        }
        self.streams.get_mut(&id).is_some_and(|s| {
            s.wants_writable = s.send.unsent() >= UNSENT;
            !s.wants_writable
        })
    }

    /// The peer has refused our messages: it can be answered no more.
    pub fn messages_are_refused(&self) -> bool {
        self.messages[OURS].is_some_and(|id| !self.is_usable(id))
    }

    /// Sends bytes of messages. What [`Session::has_message_room`] has no room for is not to
    /// be made.
    pub fn send_messages(&mut self, now: Instant, bytes: &[u8]) {
        if self.messages[OURS].is_none() {
            let Some(id) = self.open_stream(Stream { opened: true, ..Stream::default() }) else {
                return;
            };
            self.make_lane(id, Carries::Messages);
            self.messages[OURS] = Some(id);
        }
        let Some(id) = self.messages[OURS].filter(|id| self.is_usable(*id)) else { return };
        let Some(s) = self.streams.get_mut(&id) else { return };
        s.send.write(&mut self.pool, bytes);
        s.open.want();
        self.want_control(id);
        self.make_ready(now, id);
    }

    /// Takes what has come of the peer's messages, in order; whole messages or not.
    pub fn take_messages(&mut self, now: Instant, mut take: impl FnMut(&[u8])) {
        let Some(id) = self.messages[PEERS] else { return };
        let Some(s) = self.streams.get_mut(&id) else { return };
        s.readable_event_queued = false;
        let mut any = false;
        while s.recv.readable() > 0 {
            let bytes = s.recv.peek();
            let n = bytes.len() as u64;
            take(bytes);
            s.recv.consume(&mut self.pool, n);
            any = true;
        }
        if any {
            self.update_recv_over_reserve(id);
            self.queue_credit(now, id);
        }
    }

    /// The peer's messages break the protocol: no more of them are taken.
    pub fn refuse_messages(&mut self, now: Instant) {
        if let Some(id) = self.messages[PEERS] {
            self.stats.violations += 1;
            self.reset(now, id, ResetReason::Protocol, false);
        }
    }

    /// The peer sends messages in this stream.
    pub(super) fn on_messages(&mut self, now: Instant, id: StreamId) {
        if id.0 & 1 == self.side || self.closed.contains(id.0 >> 1) {
            return;
        }
        let dedup = self.codec().is_some_and(|codec| codec.dedup);
        let first = dedup && self.messages[PEERS].is_none();
        // There is room for the first one however many streams there are.
        if let (true, Entry::Vacant(slot)) = (first, self.streams.entry(id)) {
            slot.insert(Box::default());
            self.stats.streams_total += 1;
        }
        if !self.peer_stream(now, id) {
            return;
        }
        let Some(s) = self.streams.get(&id) else { return };
        if s.opened || s.reset != Delivery::None {
            return;
        }
        if !first {
            self.stats.violations += 1;
            self.reset(now, id, ResetReason::Protocol, false);
            return self.release(now, id);
        }
        self.stats.streams_total -= 1;
        self.make_lane(id, Carries::Messages);
        self.messages[PEERS] = Some(id);
        self.tell_messages(id);
    }

    pub(super) fn tell_messages(&mut self, id: StreamId) {
        if let Some(s) = self.streams.get_mut(&id)
            && s.recv.readable() > 0
            && !std::mem::replace(&mut s.readable_event_queued, true)
        {
            self.events.push_back(Event::Messages);
        }
    }
}
