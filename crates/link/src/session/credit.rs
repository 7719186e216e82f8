//! How much each stream may have outstanding (R-BACKPRESSURE).
//!
//! The receiver tells, per stream, how far its reader has come; it holds fixed
//! windows (per stream, total, a reserve per stream) and enforces them. Within them
//! the sender divides fairly, because only it knows which streams progress:
//!
//! - A stream whose reader progresses may have four times what the reader took in
//!   the last round trip: enough for the round trip itself, one or two rounds of
//!   repair and growth. A reader that stops soon stops earning, and one that has only
//!   begun earns as a fresh stream does: its host's buffers may just be filling up.
//! - A fresh stream gets a share of the first half of the memory, so that a single
//!   one fills the link from its first packet, and a thousand stopped ones cannot
//!   take the half that progressing streams live on. The shares are dynamic
//!   thresholds (Choudhury and Hahne, 1998): half of what is free.
//! - A stalled stream gets its reserve and no more.

use units::{Duration, Instant};

use super::{Event, Session};
use crate::stream::{Delivery, Queue, Stream};
use crate::wire::{Frame, StreamId, Writer};

/// Streams without credit that are looked at for one packet: their number must not make
/// packets dear.
const UNBLOCK_AT_ONCE: usize = 32;

impl Session {
    /// The stream offset up to which new bytes may be sent now.
    pub(super) fn send_limit(&self, now: Instant, s: &Stream) -> u64 {
        let peer = &self.peer;
        let total_free = peer.total_window.saturating_sub(self.excess - s.excess);
        let fresh_share = (peer.total_window / 2).saturating_sub(self.excess - s.excess) / 2;
        let patience = self.paths.slowest().rtt.with_margin()
            + self.paths.slowest().report_interval().times(4);
        // A reader that waits for a byte which was lost does not stall: it has taken all
        // before it.
        let could_read = s.send.unacked_from() > s.peer_consumed;
        let stalled = s.outstanding() > 0 && could_read && now.since(s.progress.last()) > patience;
        // What a reader takes in one burst may only be its host's buffers filling up.
        let most = if s.progress.is_steady() { total_free / 2 } else { fresh_share };
        let earned = s.progress.per_rtt().saturating_mul(4).min(most);
        let window = if stalled || self.short { 0 } else { earned.max(fresh_share) };
        let window = window.min(total_free).max(peer.reserve).min(peer.stream_window);
        s.peer_consumed + window
    }

    /// Bytes a stream may have written and not sent: what the link takes in 20 ms,
    /// so that reading a local socket never idles the link, less when memory is short.
    pub(super) fn unsent_cap(&self) -> u64 {
        let local = self.paths.active().pacer.rate().bytes_in(Duration::from_millis(20)).0;
        let local = local.max(self.paths.most_waiting());
        let free = match self.short {
            true => 0,
            false => (self.config.memory.0 / 2).saturating_sub(self.pool.used()),
        };
        local.clamp(64 * 1024, 1024 * 1024).min((free / 8).max(4 * 1024))
    }

    /// The node's memory is used up, and the session has what it may have whatever others do: until
    /// there is some, each of its streams has its reserve.
    pub(crate) fn set_short(&mut self, short: bool) {
        self.freed |= self.short && !short;
        self.short = short;
    }

    /// Would bytes up to `end` take memory that is not there? What lies before others that came
    /// takes none that was not taken into account: those behind it could never be read.
    pub(super) fn is_too_much(&self, s: &Stream, end: u64) -> bool {
        let held = end.saturating_sub(s.recv.consumed());
        self.short && end > s.recv.highest() && held > self.params.reserve
    }

    /// The stream's outstanding bytes changed.
    pub(super) fn update_excess(&mut self, id: StreamId) {
        if let Some(s) = self.streams.get_mut(&id) {
            let new = s.outstanding().saturating_sub(self.peer.reserve);
            self.freed |= new < s.excess;
            self.excess = self.excess - s.excess + new;
            s.excess = new;
        }
    }

    /// The stream's buffered bytes changed.
    pub(super) fn update_recv_excess(&mut self, id: StreamId) {
        if let Some(s) = self.streams.get_mut(&id) {
            // A stream that the peer gave up is off its account; it is not here for long.
            let held = match s.reset_in {
                Some(_) => 0,
                None => s.recv.highest() - s.recv.consumed(),
            };
            let new = held.saturating_sub(self.params.reserve);
            self.recv_excess = self.recv_excess - s.recv_excess + new;
            s.recv_excess = new;
        }
    }

    /// Would bytes up to `end` overrun what this node promised?
    pub(super) fn overruns(&self, s: &Stream, end: u64) -> bool {
        let held = end.max(s.recv.highest()).saturating_sub(s.recv.consumed());
        let excess = held.saturating_sub(self.params.reserve);
        held > self.params.stream_window
            || self.recv_excess - s.recv_excess + excess > self.params.total_window
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
        // A packet may have hundreds of credits for the stream.
        if s.refers && !s.released && !std::mem::replace(&mut s.told_credit, true) {
            self.events.push_back(Event::Writable(id));
        }
        if s.outstanding() == 0 && s.send.unsent() == 0 {
            s.burst = 0;
        }
        if s.queue == Queue::Blocked {
            s.queue = Queue::None;
        }
        self.update_excess(id);
        self.make_ready(now, id);
        self.remove_if_done(id);
    }

    /// Memory came free: of the streams that wait for it some are looked at again, those
    /// that waited longest. Credit of its own moves a stream at once.
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

    /// Our reader took bytes. Credit is told at once when it is a sixteenth of the
    /// window, else with the next report, within a round trip.
    pub(super) fn queue_credit(&mut self, now: Instant, id: StreamId) {
        let patience = self.paths.active().rtt.smoothed().max(Duration::from_millis(100));
        let step = (self.params.stream_window / 16).max(8 * 1024);
        let Some(s) = self.streams.get_mut(&id) else { return };
        // What a reset left to be delivered needs credit like everything else. Once all
        // has come, credit serves only to take what exceeds the reserve off the peer's
        // account: it may keep the stream for its other direction.
        let end = s.reset_in.map(|(_, end)| end).or(s.fin_in);
        let complete = end.is_some_and(|end| s.recv.consumed() >= end);
        let owed = s.recv.consumed() - s.credit_told;
        if s.reset != Delivery::None || complete && owed <= s.credit_slack(self.params.reserve) {
            return;
        }
        if !s.credit_queued {
            s.credit_queued = true;
            self.credits.push_back(id);
        }
        // A few bytes may stand for much content: the sender counts that (L-DD-8).
        let taken = (s.recv.consumed() - s.credit_told).saturating_add(s.referred_taken);
        let due = if taken >= step { now } else { now + patience };
        self.credit_due = Some(self.credit_due.map_or(due, |d| d.min(due)));
    }

    /// Writes the credits that wait, as many as fit.
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
                s.credit_told = s.recv.consumed();
                self.paths
                    .in_hand_mut()
                    .sent
                    .push_frame(crate::sent::SentFrame::Credit(id, s.credit_told));
                any = true;
            }
            self.credits.pop_front();
        }
        self.credit_due = None;
        any
    }
}
