//! Flow control (R-BACKPRESSURE): how many bytes of each stream may be outstanding, that is, sent
//! and not yet taken by the peer's reader.
//!
//! The receiver has fixed limits: a window for each stream, a total window, and a reserve for
//! each stream that does not count against the total. It enforces them, and tells by CREDIT how
//! far each reader has come. Within the limits the sender divides, because only the sender knows
//! which streams make progress:
//!
//! - A stream whose reader takes bytes may have four times what the reader took in the last round
//!   trip outstanding: enough for the round trip itself, one or two rounds of retransmission, and
//!   growth. A reader that has only begun counts as fresh: its host's buffers may just be filling
//!   up.
//! - A fresh stream gets half of what is free in the first half of the total window (a dynamic
//!   threshold: Choudhury and Hahne, 1998). So a single stream fills the link from its first
//!   packet, and a thousand stalled ones cannot take the half that the others live on.
//! - A stalled stream gets its reserve and no more.

use units::{Duration, Instant};

use super::event::Event;
use super::state::Session;
use crate::stream::{Delivery, Queue, Stream};
use crate::wire::{Frame, StreamId, Writer};

/// Blocked streams that are looked at for each packet, so that their number does not slow packets
/// down.
const UNBLOCK_AT_ONCE: usize = 32;

impl Session {
    /// The stream offset up to which new bytes may be sent now.
    pub(super) fn send_limit(&self, now: Instant, s: &Stream) -> u64 {
        let peer = &self.peer;
        let total_free = peer.total_window.saturating_sub(self.over_reserve - s.over_reserve);
        let fresh_share =
            (peer.total_window / 2).saturating_sub(self.over_reserve - s.over_reserve) / 2;
        let patience = self.paths.slowest().rtt.with_margin()
            + self.paths.slowest().report_interval().times(4);
        // A reader that waits for a lost byte is not stalled: it has taken all bytes before it.
        let could_read = s.send.unacked_from() > s.peer_consumed;
        let stalled = s.outstanding() > 0 && could_read && now.since(s.progress.last()) > patience;
        // A single burst may only fill the buffers of the reader's host.
        let most = if s.progress.is_steady() { total_free / 2 } else { fresh_share };
        let earned = s.progress.per_rtt().saturating_mul(4).min(most);
        let window = if stalled || self.short { 0 } else { earned.max(fresh_share) };
        let window = window.min(total_free).max(peer.reserve).min(peer.stream_window);
        s.peer_consumed + window
    }

    /// The most unsent bytes of a stream: what the link sends in 20 ms, so that it never idles
    /// while a local socket is read; less when memory is short.
    pub(super) fn unsent_cap(&self) -> u64 {
        let local = self.paths.most_in(Duration::from_millis(20));
        let local = local.max(self.paths.most_waiting());
        let free = match self.short {
            true => 0,
            false => (self.config.memory.0 / 2).saturating_sub(self.pool.used()),
        };
        local.clamp(64 * 1024, 1024 * 1024).min((free / 8).max(4 * 1024))
    }

    /// The same of a stream whose user `interleaves` several things on it, which are not to wait
    /// here, or does not.
    pub(super) fn unsent_cap_if(&self, interleaves: bool) -> u64 {
        match interleaves {
            true => (2 * self.low_water()).max(self.paths.most_waiting()).min(self.unsent_cap()),
            false => self.unsent_cap(),
        }
    }

    /// The same of a stream as it is.
    pub(super) fn unsent_cap_of(&self, id: StreamId) -> u64 {
        match self.streams.get(&id) {
            // What waits for its carrier, maybe for hours, leaves the memory to others.
            Some(s) if !self.has_way(s.class) => self.unsent_cap().min(self.params.reserve),
            Some(s) => self.unsent_cap_if(s.interleaves),
            None => 0,
        }
    }

    /// Sets whether the node's memory is used up and this session has its share of it. Then each of
    /// its streams has its reserve and no more.
    pub(crate) fn set_short(&mut self, short: bool) {
        self.freed |= self.short && !short;
        self.short = short;
    }

    /// Would bytes up to `end` take memory that the node does not have? Bytes before others that
    /// arrived are always accepted: without them those behind could never be read.
    ///
    /// So do bytes of a stream that the peer has reset, where such streams and all others hold as
    /// much as all may: they come again when readers have gone on (L-CR-7).
    pub(super) fn is_too_much(&self, s: &Stream, end: u64) -> bool {
        let over = end.saturating_sub(s.recv.consumed()).saturating_sub(self.params.reserve);
        if over == 0 || end <= s.recv.highest() {
            return false;
        }
        let others = self.recv_over_reserve + self.reset_over_reserve - s.reset_over_reserve;
        let is_reset = s.reset_in.is_some();
        self.short || is_reset && others.saturating_add(over) > self.params.total_window
    }

    /// The stream's outstanding bytes changed: counts anew how many exceed its reserve.
    pub(super) fn update_over_reserve(&mut self, id: StreamId) {
        if let Some(s) = self.streams.get_mut(&id) {
            let new = s.outstanding().saturating_sub(self.peer.reserve);
            self.freed |= new < s.over_reserve;
            self.over_reserve = self.over_reserve - s.over_reserve + new;
            s.over_reserve = new;
        }
    }

    /// The stream's received bytes changed: counts anew how many exceed its reserve.
    pub(super) fn update_recv_over_reserve(&mut self, id: StreamId) {
        if let Some(s) = self.streams.get_mut(&id) {
            let held = s.recv.highest() - s.recv.consumed();
            let over = held.saturating_sub(self.params.reserve);
            // The peer no longer counts a stream that it reset, whose reader may take long yet.
            let (live, reset) = if s.reset_in.is_some() { (0, over) } else { (over, 0) };
            self.recv_over_reserve = self.recv_over_reserve - s.recv_over_reserve + live;
            s.recv_over_reserve = live;
            self.reset_over_reserve = self.reset_over_reserve - s.reset_over_reserve + reset;
            s.reset_over_reserve = reset;
        }
    }

    /// Would bytes up to `end` exceed the limits that this node told?
    pub(super) fn overruns(&self, s: &Stream, end: u64) -> bool {
        let held = end.max(s.recv.highest()).saturating_sub(s.recv.consumed());
        let over_reserve = match s.reset_in {
            Some(_) => 0,
            None => held.saturating_sub(self.params.reserve),
        };
        held > self.params.stream_window
            || self.recv_over_reserve - s.recv_over_reserve + over_reserve
                > self.params.total_window
    }

    /// The peer's reader has taken all below `consumed`.
    pub(super) fn on_credit(&mut self, now: Instant, id: StreamId, consumed: u64) {
        let rtt = self.paths.slowest().rtt.smoothed();
        let Some(s) = self.streams.get_mut(&id) else { return };
        if consumed <= s.peer_consumed || consumed > s.send.next() {
            return;
        }
        s.progress.on_consumed(now, consumed - s.peer_consumed, rtt);
        s.peer_consumed = consumed;
        // One event is enough: a packet may have hundreds of CREDITs for the stream.
        if s.refers && !s.released && !std::mem::replace(&mut s.credit_event_queued, true) {
            self.events.push_back(Event::Writable(id));
        }
        if s.outstanding() == 0 && s.send.unsent() == 0 {
            s.burst = 0;
        }
        if s.queue == Queue::Blocked {
            s.queue = Queue::None;
        }
        self.update_over_reserve(id);
        self.make_ready(now, id);
        self.remove_if_done(id);
    }

    /// Some of the window came free: looks again at the streams that have been blocked longest. A
    /// stream that gets CREDIT of its own goes on at once.
    pub(super) fn unblock(&mut self, now: Instant) {
        for _ in 0..self.blocked.len().min(UNBLOCK_AT_ONCE) {
            let Some(id) = self.blocked.pop_front() else { return };
            let Some(s) = self.streams.get_mut(&id) else { continue };
            s.in_blocked = false;
            if s.queue == Queue::Blocked {
                s.queue = Queue::None;
                self.make_ready(now, id);
            }
        }
    }

    /// Our reader took bytes. CREDIT is sent at once when it is a sixteenth of the window, else
    /// with the next ACK, within a round trip.
    pub(super) fn queue_credit(&mut self, now: Instant, id: StreamId) {
        let patience = self.paths.active().rtt.smoothed().max(Duration::from_millis(100));
        let step = (self.params.stream_window / 16).max(8 * 1024);
        let Some(s) = self.streams.get_mut(&id) else { return };
        // Bytes that a reset left to be delivered need credit like all others. Once everything
        // has arrived, credit only tells the peer that bytes beyond the reserve are free again:
        // the peer may keep the stream for its other direction.
        let end = s.reset_in.map(|(_, end)| end).or(s.fin_in);
        let complete = end.is_some_and(|end| s.recv.consumed() >= end);
        let owed = s.recv.consumed() - s.credit_sent;
        if s.reset != Delivery::None || complete && owed <= s.credit_slack(self.params.reserve) {
            return;
        }
        if !s.credit_queued {
            s.credit_queued = true;
            self.credits.push_back(id);
        }
        // References to chunks are few bytes for much content, which the sender counts (L-DD-8).
        let taken = (s.recv.consumed() - s.credit_sent).saturating_add(s.referred_taken);
        let due = if taken >= step { now } else { now + patience };
        self.credit_due = Some(self.credit_due.map_or(due, |d| d.min(due)));
    }

    /// Writes the pending CREDITs, as many as fit.
    pub(super) fn write_credits(&mut self, w: &mut Writer<'_>) -> bool {
        let mut any = false;
        while let Some(&id) = self.credits.front() {
            if let Some(s) = self.streams.get_mut(&id)
                && s.credit_queued
            {
                if !w.put(&Frame::Credit(id, s.recv.consumed())) {
                    return any;
                }
                s.credit_queued = false;
                s.referred_taken = 0;
                if s.recv.consumed() > s.credit_sent {
                    s.referred_open = s.referred_ahead;
                }
                s.credit_sent = s.recv.consumed();
                self.paths
                    .in_hand_mut()
                    .sent
                    .push_frame(crate::sent::SentFrame::Credit(id, s.credit_sent));
                any = true;
            }
            self.credits.pop_front();
        }
        self.credit_due = None;
        any
    }
}
