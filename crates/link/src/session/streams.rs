//! The life of a stream, as the relay sees it: opened, written, finished or reset; read,
//! consumed, released.

use units::{Duration, Instant};

#[cfg(feature = "mistakes")]
use super::event::Mistake;
use super::event::{Event, RecvState};
use super::priority::control_class;
use super::schedule::FEW;
use super::state::Session;
use crate::stream::{Carries, Delivery, Queue, Stream};
use crate::traffic::ClassId;
use crate::wire::{Origin, ResetReason, StreamId};

/// A client's SYN is answered at once, and its first bytes usually follow within a
/// millisecond; OPEN waits this long for them.
const OPEN_WAIT: Duration = Duration::from_millis(20);

impl Session {
    /// Opens a stream. `None` where the memory for it is not there.
    pub fn open(&mut self, now: Instant, origin: Origin) -> Option<StreamId> {
        if self.streams() >= self.config.max_streams as usize {
            return None;
        }
        let host = self.schedule.hold_host(origin.client.map(|c| c.ip()));
        let interleaves = origin.interleaves();
        let origin = Some(Box::new(origin));
        let stream = Stream { origin, opened: true, host, interleaves, ..Stream::default() };
        let id = self.open_stream(stream)?;
        self.opening.push_back((now + OPEN_WAIT, id));
        self.stir(now);
        self.stats.streams_total += 1;
        Some(id)
    }

    /// A stream of ours, which has its host.
    pub(super) fn open_stream(&mut self, stream: Stream) -> Option<StreamId> {
        if self.closing.is_some() {
            self.schedule.hosts.release(stream.host);
            return None;
        }
        let id = StreamId(self.next_stream << 1 | self.side);
        self.next_stream += 1;
        self.streams.insert(id, Box::new(stream));
        Some(id)
    }

    /// Lets a stream's OPEN leave at once: its first bytes wait for the answer (L-ST-2).
    pub fn announce(&mut self, id: StreamId) {
        self.start_open(id);
    }

    /// Is the stream known?
    pub fn contains(&self, id: StreamId) -> bool {
        self.streams.contains_key(&id)
    }

    /// Has the peer not confirmed all that was written to the stream?
    pub fn is_undelivered(&self, id: StreamId) -> bool {
        self.streams.get(&id).is_some_and(|s| !s.send.all_acked())
    }

    /// How many bytes [`Session::write`] would take now. If it is 0, [`Event::Writable`] follows.
    pub fn writable_bytes(&mut self, id: StreamId) -> u64 {
        let cap = self.unsent_cap_of(id);
        match self.streams.get_mut(&id) {
            Some(s) if !s.local_end && s.reset_in.is_none() => {
                let room = cap.saturating_sub(s.send.unsent());
                s.wants_writable |= room == 0;
                room
            }
            _ => 0,
        }
    }

    /// Takes bytes from the user of the link; answers how many.
    pub fn write(&mut self, now: Instant, id: StreamId, data: &[u8]) -> usize {
        let n = (self.writable_bytes(id) as usize).min(data.len());
        let Some(s) = self.streams.get_mut(&id).filter(|_| n > 0) else { return 0 };
        if n < data.len() {
            s.wants_writable = true;
        }
        s.send.write(&mut self.pool, &data[..n]);
        self.stats.stream_bytes_in += n as u64;
        self.start_open(id);
        self.make_ready(now, id);
        n
    }

    /// No more bytes will be written: the peer sees an orderly end.
    pub fn finish(&mut self, now: Instant, id: StreamId) {
        let Some(s) = self.streams.get_mut(&id) else { return };
        if s.local_end || s.reset_in.is_some() {
            return;
        }
        s.local_end = true;
        s.fin.want();
        self.start_open(id);
        self.make_ready(now, id);
    }

    /// Gives the stream up. With `after_data` the peer still gets what was written
    /// before (its host reset after sending); without, nothing more.
    pub fn reset(&mut self, now: Instant, id: StreamId, reason: ResetReason, after_data: bool) {
        // What waits for its carrier, of a host that has given up, keeps its place from others.
        let is_unknown = self.is_unknown_to_peer(id);
        let after_data = after_data && !is_unknown;
        let Some(s) = self.streams.get_mut(&id) else { return };
        if s.reset != Delivery::None {
            return;
        }
        s.local_end = true;
        s.reset_reason = Some(reason);
        s.fin = Delivery::None;
        let to_be_told = s.reset_in.is_none() || s.peer_holds_more();
        s.recv.discard(&mut self.pool);
        if to_be_told {
            s.reset.want();
        }
        if !after_data || s.reset_in.is_some() {
            s.abrupt = true;
            s.send.discard(&mut self.pool);
        }
        self.update_over_reserve(id);
        self.update_recv_over_reserve(id);
        if is_unknown {
            self.forget_unopened(id);
        } else {
            self.start_open(id);
            self.want_control(id);
            self.make_ready(now, id);
        }
        self.remove_if_done(id);
    }

    /// Did nothing of this own stream leave, because its class waits for a carrier?
    fn is_unknown_to_peer(&self, id: StreamId) -> bool {
        let Some(s) = self.streams.get(&id).filter(|_| id.0 & 1 == self.side) else { return false };
        let is_new = matches!(s.open, Delivery::None | Delivery::Wanted) && s.send.next() == 0;
        is_new && !self.has_way(control_class(s))
    }

    /// The stream ends where it began: its place is for others, and the peer is told nothing.
    fn forget_unopened(&mut self, id: StreamId) {
        if let Some(s) = self.streams.get_mut(&id) {
            (s.open, s.reset, s.origin) = (Delivery::Done, Delivery::Done, None);
        }
    }

    /// Is there a path for what this class has, or does it go, or wait, as everything does?
    pub(super) fn has_way(&self, class: ClassId) -> bool {
        let way = self.schedule.way(self.schedule.known(class));
        way == self.paths.active_at() || way < self.paths.len() && !self.paths[way].given_up
    }

    /// The far connection stands (the answer to [`Event::Opened`]).
    pub fn accept(&mut self, id: StreamId) {
        if let Some(s) = self.streams.get_mut(&id) {
            s.accepted.want();
            self.want_control(id);
        }
    }

    /// The next bytes of the stream in order; empty if none are there.
    pub fn peek(&self, id: StreamId) -> &[u8] {
        self.streams.get(&id).map_or(&[], |s| s.recv.peek())
    }

    /// Like [`Session::peek`], as slices for one vectored write.
    pub fn peek_slices<'a>(&'a self, id: StreamId, out: &mut [&'a [u8]]) -> usize {
        self.streams.get(&id).map_or(0, |s| s.recv.peek_slices(out))
    }

    /// Bytes of the stream that have arrived, in whatever order, each counted once.
    pub fn arrived(&self, id: StreamId) -> u64 {
        self.streams.get(&id).map_or(0, |s| s.recv.arrived())
    }

    /// The user of the link took `n` bytes; credit for them travels back.
    pub fn consume(&mut self, now: Instant, id: StreamId, n: usize) {
        #[cfg(feature = "mistakes")]
        if self.errs(Mistake::DoubleDelivery) {
            self.stats.stream_bytes_out += 1;
            return;
        }
        let Some(s) = self.streams.get_mut(&id) else { return };
        if s.reset != Delivery::None {
            return; // Nothing is left of what its reader had.
        }
        s.recv.consume(&mut self.pool, n as u64);
        s.referred_ahead = if n > 0 { 0 } else { s.referred_ahead };
        self.stats.stream_bytes_out += n as u64;
        self.update_recv_over_reserve(id);
        #[cfg(feature = "mistakes")]
        if self.mistake == Some(Mistake::CreditLeak) {
            return;
        }
        self.queue_credit(now, id);
    }

    /// What stands behind the bytes that [`Session::peek`] shows. Asking re-arms
    /// [`Event::Readable`].
    pub fn recv_state(&mut self, id: StreamId) -> RecvState {
        let Some(s) = self.streams.get_mut(&id) else {
            return RecvState::Reset(ResetReason::PeerRestarted);
        };
        s.readable_event_queued = false;
        match (s.reset_in, s.fin_in) {
            (Some((reason, end)), _) if s.recv.consumed() >= end => RecvState::Reset(reason),
            // Given up on this side, of its own accord where the user was not asked. What
            // came is forgotten, so this is no end in good order even if one was told.
            _ if s.reset != Delivery::None => {
                RecvState::Reset(s.reset_reason.unwrap_or(ResetReason::HostReset))
            }
            (None, Some(end)) if s.recv.consumed() >= end => RecvState::Finished,
            _ => RecvState::Open,
        }
    }

    /// The user of the link is done with the stream. What was written and ended is
    /// still delivered; a stream with an open end is reset.
    pub fn release(&mut self, now: Instant, id: StreamId) {
        let Some(s) = self.streams.get_mut(&id) else { return };
        s.released = true;
        if !s.local_end || !s.recv_done() || s.peer_holds_more() {
            self.reset(now, id, ResetReason::HostReset, false);
        }
        self.remove_if_done(id);
    }

    pub(super) fn remove_if_done(&mut self, id: StreamId) {
        let Some(s) = self.streams.get_mut(&id) else { return };
        if !s.released || !s.send_done() || !s.recv_done() {
            return;
        }
        // Both accounts must stay alike: the receiver enforces its own (L-CR-2).
        if s.is_on_account(self.peer_reserve) || s.owes_credit(self.params.reserve) {
            return;
        }
        s.send.discard(&mut self.pool);
        s.recv.discard(&mut self.pool);
        s.peer_consumed = s.send.next();
        self.update_over_reserve(id);
        self.update_recv_over_reserve(id);
        if let Some(s) = self.streams.remove(&id) {
            if s.in_control {
                self.control.on_gone(|id| self.streams.contains_key(&id));
            }
            self.forget_waiting();
            self.packet_streams -= usize::from(s.carries != Carries::Connection);
            self.lane_headers.forget(id);
            self.schedule.hosts.release(s.host);
        }
        if id.0 & 1 != self.side {
            self.remember_closed(id);
        }
    }

    /// A stream is gone. Those that wait for their turn or credit are bounded by those that are
    /// there, also where nothing is sent and no credit comes.
    fn forget_waiting(&mut self) {
        let (streams, is_there) =
            (self.streams.len(), |id: StreamId| self.streams.contains_key(&id));
        self.schedule.on_gone(streams, is_there);
        // Each stream has one entry at most.
        for queue in [&mut self.blocked, &mut self.credits] {
            if queue.len() > FEW + 2 * streams {
                queue.retain(|id| is_there(*id));
            }
        }
    }

    /// The peer's stream is over and its number does not come again. A peer that leaves
    /// gaps between its numbers loses those of the lowest.
    pub(super) fn remember_closed(&mut self, id: StreamId) {
        let n = id.0 >> 1;
        self.closed.insert(n..n + 1);
        // Between those that are closed lie those that are open, and some that come late. Each
        // packet of RESETs moves as many ranges as there are (L-ST-6).
        if self.closed.len() > 1024 + self.streams.len() {
            self.skipped_below = self.closed.close_lowest_gap();
        }
    }

    pub(super) fn start_open(&mut self, id: StreamId) {
        if let Some(s) = self.streams.get_mut(&id)
            && s.origin.is_some()
            && s.open == Delivery::None
        {
            s.open.want();
            self.want_control(id);
        }
    }

    pub(super) fn want_control(&mut self, id: StreamId) {
        if let Some(s) = self.streams.get_mut(&id)
            && !s.in_control
            && s.has_control()
        {
            s.in_control = true;
            self.control.push(control_class(s), id);
        }
    }

    /// Queues the stream if it has something that may be sent.
    pub(super) fn make_ready(&mut self, now: Instant, id: StreamId) {
        let Some(s) = self.streams.get(&id) else { return };
        if !matches!(s.queue, Queue::None) || !s.has_data(u64::MAX) {
            return;
        }
        let limit = self.send_limit(now, s);
        if s.has_data(limit) {
            self.wait_for_turn(now, id, false);
        } else {
            self.wait_for_credit(id);
        }
    }

    pub(super) fn tell_readable(&mut self, id: StreamId) {
        if let Some(s) = self.streams.get_mut(&id)
            && s.opened
            && !s.released
            && !s.readable_event_queued
        {
            s.readable_event_queued = true;
            self.events.push_back(Event::Readable(id));
        }
    }
}
