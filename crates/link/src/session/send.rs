//! Filling packets, and the timers that call for them.

use units::{Duration, Instant};

use super::event::Event;
use super::messages::UNSENT;
use super::path::{Built, Load};
use super::priority::SMALL;
use super::schedule::Turn;
use super::state::Session;
use crate::datagram::Wrote;
use crate::path::PathId;
use crate::sent::SentFrame;
use crate::stream::{Carries, Delivery};
use crate::traffic::ClassId;
use crate::wire::{self, Frame, ResetReason, StreamId, Writer, short};

/// Time between copies of CLOSE: losses come in bursts.
const CLOSE_SPACING: Duration = Duration::from_millis(50);
/// A STREAM frame with less room than this waits for the next packet.
const MIN_PIECE: usize = 16;
/// Turns in which nothing is written that a packet may take, of streams that are gone: other peers
/// wait meanwhile.
const MOST_IDLE_TURNS: u32 = 1024;
/// Probes that carry data again; later ones only ask.
const DATA_PROBES: u32 = 2;
/// Bytes of runs in the report beside a question in a packet of its own, which arrives
/// whatever the path takes.
const STATE_ALONE: usize = 100;

impl Session {
    /// Is something to be sent on a path now, as far as its pacer allows?
    fn has_work(&self, now: Instant, at: usize) -> bool {
        let path = &self.paths[at];
        if !path.is_open() {
            return false;
        }
        if self.closing.is_some() {
            let here = at == self.paths.active_at();
            return here && self.close_due().is_some_and(|t| t <= now);
        }
        self.has_work_beside(now, at, path.report_due())
    }

    /// The same on a path that is open, whose report is due then.
    fn has_work_beside(&self, now: Instant, at: usize, report: Option<Instant>) -> bool {
        let (path, here) = (&self.paths[at], at == self.paths.active_at());
        path.ping
            || here && self.has_news(now)
            || self.has_content(now, at)
            || !here && self.has_spread(now, at)
            || report.is_some_and(|t| t <= now)
            || path.repair_waits(now, self.load(at))
            || path.path_probe_waits(now, self.load(at))
            || path.tries(now)
            || self.paths.aside_at(at).is_some_and(|t| t <= now)
    }

    /// Is there something to be said that goes by the active path?
    fn has_news(&self, now: Instant) -> bool {
        self.credit_due.is_some_and(|t| t <= now) || self.paths.has_news()
    }

    /// Does something wait that goes by this path?
    fn has_content(&self, now: Instant, at: usize) -> bool {
        self.carries(at)
            && (self.control.has(&self.schedule, at)
                // While the peer is silent streams wait.
                || self.schedule.has_work(now, at, !self.paths[at].silent))
    }

    /// Does content go by this path? What its classes have waits while it is given up, and all
    /// while it holds back.
    fn carries(&self, at: usize) -> bool {
        let path = &self.paths[at];
        let is_its = at == self.paths.active_at() || path.carries_classes && !path.given_up;
        is_its && !path.holds_back()
    }

    /// The next stream with control frames for this path.
    fn next_control(&self, at: usize) -> Option<(ClassId, StreamId)> {
        if self.carries(at) { self.control.next(&self.schedule, at) } else { None }
    }

    fn close_due(&self) -> Option<Instant> {
        (self.closes_left > 0).then_some(self.close_at)
    }

    /// What is to be sent on a path, for its decisions.
    fn load(&self, at: usize) -> Load<'_> {
        Load::of(self.way_of(at), &self.schedule, &self.control, self.interactive_until)
    }

    /// Which classes' content may leave on a path: those of its own way, or of the active path's
    /// where it shares these.
    fn way_of(&self, at: usize) -> Option<usize> {
        let active = self.paths.active_at();
        if self.carries(at) { Some(at) } else { self.paths.shares(at).then_some(active) }
    }

    /// Fills `buf` (the plaintext room of one packet of a path) and books it as sent. `None`
    /// where nothing is to be sent now; [`Session::poll_timeout`] says when.
    pub(crate) fn poll_packet(
        &mut self,
        now: Instant,
        path: PathId,
        buf: &mut [u8],
        sealing: u64,
    ) -> Option<Built> {
        let at = self.paths.find(path)?;
        self.paths.take_in_hand(at);
        if !self.has_work(now, at) {
            self.paths[at].pacer.on_idle(now);
            return None;
        }
        let carries = self.carries(at);
        let is_quick = self.schedule.way(ClassId::INTERACTIVE) == at;
        let shares = self.paths.shares(at);
        let way = self.way_of(at);
        let path = &mut self.paths[at];
        path.pacer.set_waited_for(is_quick && now < self.interactive_until);
        // A node that goes does not wait for its turn: it may not be there when it comes.
        if let Some(reason) = self.closing {
            return Some(self.write_close(now, reason, buf, sealing));
        }
        if !path.pacer.ready(now) {
            return None;
        }
        let load = Load::of(way, &self.schedule, &self.control, self.interactive_until);
        if let Some(built) = path.write_repair(now, load, buf, sealing) {
            return Some(built);
        }
        if let Some(built) = path.write_path_probe(now, load, buf, sealing) {
            return Some(built);
        }
        let buf = path.data_room(buf);
        path.ping |= path.knows_too_little();
        if !path.ping
            && path.report_due().is_none_or(|t| t > now)
            && !(load.control || load.is_due(now))
            && let Some(built) = path.write_trial(now, buf, sealing)
        {
            return Some(built);
        }
        let outside = sealing + path.wire_overhead();
        path.longest_piece = (path.sent.by_size.best() as usize).saturating_sub(outside as usize);
        let alone = std::mem::take(&mut path.alone) && path.ping;
        let room = match carries {
            true => self.packet_room(now, at, buf.len(), outside),
            false => buf.len(),
        };
        let mut w = Writer::new(&mut buf[..room]);
        let mut eliciting = alone;
        let (mut head, mut hint) = (0, 0);
        if alone {
            let path = &mut self.paths[at];
            path.write_report(now, STATE_ALONE, &mut w);
            path.say_again(&mut w);
            path.ping = !w.put(&Frame::Ping);
        } else {
            eliciting |= self.write_control(now, at, &mut w);
            self.paths.write_asides(now, at, &mut w);
            head = w.len();
            if carries {
                hint = self.write_data(now, at, &mut w);
                if w.len() == head {
                    // None of it fits beside control frames, of which there may be more.
                    let room = w.room();
                    eliciting |= self.write_streams_control(now, at, room, &mut w);
                    head = w.len();
                }
            }
            if shares && w.len() == head {
                self.write_spread(now, at, &mut w);
            }
            eliciting |= w.len() > head;
        }
        if w.is_empty() {
            self.paths[at].pacer.on_idle(now);
            return None;
        }
        let len = w.len();
        if way.is_some() {
            self.schedule.charge_headers(now, outside);
        }
        let number = self.paths[at].book(now, len as u64 + outside, len == head, eliciting, alone);
        self.bound_unsettled(now, at);
        let load = Load::of(way, &self.schedule, &self.control, self.interactive_until);
        // What crosses while nobody uses the session is nothing to bring back.
        if !self.rests() {
            self.paths[at].keep_for_repair(now, load, number, hint, &buf[..len], eliciting);
        }
        Some(Built { number, len, hint })
    }

    fn write_close(
        &mut self,
        now: Instant,
        reason: ResetReason,
        buf: &mut [u8],
        sealing: u64,
    ) -> Built {
        self.closes_left -= 1;
        self.close_at = now + CLOSE_SPACING;
        let mut w = Writer::new(buf);
        w.put(&Frame::Close(reason));
        let len = w.len();
        let path = self.paths.in_hand_mut();
        let size = len as u64 + sealing + path.wire_overhead();
        path.pacer.on_sent(now, size);
        Built { number: path.sent.push_packet(now, false, size), len, hint: 0 }
    }

    /// Reports and control frames, and on the active path credit and news; answers whether they
    /// call for a report.
    fn write_control(&mut self, now: Instant, at: usize, w: &mut Writer<'_>) -> bool {
        let mut eliciting = false;
        let here = at == self.paths.active_at();
        let report = self.paths[at].write_reports(now, w);
        if here && (report || self.credit_due.is_some_and(|t| t <= now)) {
            eliciting |= self.write_credits(w);
        }
        let path = &mut self.paths[at];
        if path.ping {
            path.say_again(w);
        }
        if path.ping && w.put(&Frame::Ping) {
            path.ping = false;
            eliciting = true;
        }
        if here && self.paths.has_news() {
            eliciting |= self.paths.write_news(w);
        }
        if self.next_control(at).is_none() {
            return eliciting;
        }
        // Streams that are opened and reset without end leave half of the packet to data.
        let streams = !self.paths[at].silent;
        let data_waits = self.carries(at) && self.schedule.has_work(now, at, streams);
        let most = if data_waits { w.room() / 2 } else { w.room() };
        eliciting | self.write_streams_control(now, at, most, w)
    }

    /// Control frames of streams, until they have `most` bytes or more; answers whether there are
    /// any.
    fn write_streams_control(
        &mut self,
        now: Instant,
        at: usize,
        most: usize,
        w: &mut Writer<'_>,
    ) -> bool {
        let (mut eliciting, full) = (false, w.len() + most);
        while w.len() < full
            && let Some((class, id)) = self.next_control(at)
        {
            match self.write_stream_control(id, w) {
                Some(wrote) => {
                    self.paths.in_hand_mut().repair.on_control(wrote);
                    eliciting |= wrote;
                }
                None if w.is_empty() => self.refuse_open(now, id),
                None => break,
            }
            self.control.pop(class, self.streams.contains_key(&id));
        }
        eliciting
    }

    /// Writes the control frames of one stream. `None`: one did not fit.
    fn write_stream_control(&mut self, id: StreamId, w: &mut Writer<'_>) -> Option<bool> {
        let Some(s) = self.streams.get_mut(&id) else { return Some(false) };
        let mut wrote = false;
        if s.open.is_wanted() {
            let frame = match s.carries {
                Carries::Connection => s.origin.as_ref().map(|o| Frame::Open(id, (**o).clone())),
                Carries::Packets => Some(Frame::Packets(id)),
                Carries::Messages => Some(Frame::Messages(id)),
            };
            if let Some(frame) = frame {
                if !w.put(&frame) {
                    return None;
                }
                s.open = Delivery::InFlight;
                self.paths.in_hand_mut().sent.push_frame(SentFrame::Open(id));
                wrote = true;
            }
        }
        if s.accepted.is_wanted() {
            if !w.put(&Frame::Accepted(id)) {
                return None;
            }
            s.accepted = Delivery::InFlight;
            self.paths.in_hand_mut().sent.push_frame(SentFrame::Accepted(id));
            wrote = true;
        }
        if s.reset.is_wanted() {
            let reason = s.reset_reason.unwrap_or(ResetReason::HostReset);
            let end = if s.abrupt { 0 } else { s.send.end() };
            if !w.put(&Frame::Reset { id, reason, end }) {
                return None;
            }
            s.reset = Delivery::InFlight;
            self.paths.in_hand_mut().sent.push_frame(SentFrame::Reset(id));
            wrote = true;
        }
        s.in_control = false;
        Some(wrote)
    }

    /// The link's packets are too small for the stream's OPEN (a name of up to 253
    /// characters): it cannot be. The peer is told, for data may have gone before.
    fn refuse_open(&mut self, now: Instant, id: StreamId) {
        let Some(s) = self.streams.get_mut(&id) else { return };
        s.open = Delivery::Done;
        s.origin = None;
        s.in_control = false;
        if s.reset == Delivery::None {
            self.reset(now, id, ResetReason::Unreachable, false);
            self.events.push_back(Event::Reset(id, ResetReason::Unreachable));
        } else {
            // Its user has given it up already; nothing that it wrote can follow.
            s.abrupt = true;
            s.send.discard(&mut self.pool);
            self.update_over_reserve(id);
            self.want_control(id);
        }
    }

    /// Streams and datagrams of a path as their turns come; answers the hint.
    fn write_data(&mut self, now: Instant, at: usize, w: &mut Writer<'_>) -> u8 {
        let empty_room = w.room() + w.len();
        let (mut strict, mut idle_turns) = (false, 0);
        while w.room() >= MIN_PIECE
            && idle_turns < MOST_IDLE_TURNS
            && let Some(turn) = self.schedule.next(now, at, !self.paths[at].silent, strict)
        {
            let before = w.len();
            let mut unfinished = None;
            let filled = match turn {
                Turn::Packets { class, host } => {
                    let queue = self.schedule.packets(class, host);
                    let headers = &mut self.paths.in_hand_mut().headers;
                    match self.outbox.write(now, queue, headers, w, empty_room) {
                        Wrote::Nothing => return 0,
                        Wrote::Piece => unfinished = Some((class, host)),
                        Wrote::Stale(waiting) => self.forget_packet(class, host, waiting),
                        Wrote::Whole(waiting, reference) => {
                            let reference = reference.map(SentFrame::Reference);
                            reference
                                .into_iter()
                                .for_each(|r| self.paths.in_hand_mut().sent.push_frame(r));
                            self.forget_packet(class, host, waiting);
                        }
                    }
                    Filled::Partly
                }
                Turn::Lost(_, id) => self.write_lost(now, id, w),
                Turn::Stream { id, class, .. } if self.is_moved(id, class) => {
                    self.wait_for_turn(now, id, false);
                    continue;
                }
                Turn::Stream { id, small, .. } => {
                    let waited_for = small || turn.class().is_strict();
                    self.paths.in_hand_mut().repair.on_stream(id, waited_for);
                    let filled = self.write_stream(now, id, w);
                    self.requeue(now, id, small);
                    let drained = self.streams.get(&id).is_none_or(|s| !s.has_data(u64::MAX));
                    self.paths.in_hand_mut().repair.after_stream(waited_for, drained);
                    filled
                }
            };
            self.on_turn(now, turn, (w.len() - before) as u64);
            idle_turns += u32::from(w.len() == before);
            if let Some((class, host)) = unfinished {
                self.schedule.keep_turn(class, host);
            }
            if let Filled::Whole(hint) = filled {
                return hint;
            }
            strict |= turn.class().is_strict() && w.len() > before && self.keeps_short(empty_room);
        }
        0
    }

    /// A stream that has lost bytes, or its end, sends them again.
    fn write_lost(&mut self, now: Instant, id: StreamId, w: &mut Writer<'_>) -> Filled {
        let Some(s) = self.streams.get_mut(&id) else { return Filled::Partly };
        s.in_lost = s.must_repeat();
        if !s.in_lost {
            return Filled::Partly;
        }
        let small = s.burst < SMALL;
        self.paths.in_hand_mut().repair.on_stream(id, small);
        let filled = self.write_stream(now, id, w);
        let Some(s) = self.streams.get_mut(&id) else { return filled };
        s.in_lost = s.must_repeat();
        if s.in_lost {
            self.wait_to_repeat(now, id, true);
        } else {
            self.make_ready(now, id);
        }
        filled
    }

    pub(super) fn write_stream(
        &mut self,
        now: Instant,
        id: StreamId,
        w: &mut Writer<'_>,
    ) -> Filled {
        let Some(s) = self.streams.get(&id) else { return Filled::Partly };
        let limit = self.send_limit(now, s);
        let left_free = self.paths.in_hand_mut().room_for_repair(s.local_end || s.burst < SMALL);
        let cap = self.unsent_cap_if(s.interleaves);
        let Some(s) = self.streams.get_mut(&id) else { return Filled::Partly };
        // Where credit ends nothing follows, not even the end.
        let offset = s.send.next_offset(limit).unwrap_or(s.send.next());
        let available = s.send.available(limit);
        let mut room = w
            .room()
            .saturating_sub(left_free)
            .min(self.paths.in_hand_mut().longest_piece.saturating_sub(w.len()));
        if w.is_empty() && available >= room as u64 {
            let shorter = self.paths.in_hand_mut().sent.by_size.best()
                - self.paths.in_hand_mut().sent.by_size.next();
            room =
                room.min(self.paths.in_hand_mut().longest_piece.saturating_sub(shorter as usize));
        }

        // A packet full of one stream's bytes: the short form.
        if w.is_empty() && available >= room as u64 {
            let highest = s.send.next().max(offset + room as u64);
            let span = highest - s.send.unacked_from();
            // Late packets must still be understood (L-SF-1), and where there are several paths
            // none says how late it is (L-PT-8).
            let late = self.paths.in_hand_mut().sent.reorder_window() > Duration::ZERO
                || self.paths.in_hand_mut().repair.is_on();
            let least = if late { 3 } else { 2 };
            let may = self.paths.is_single();
            if let Some(n) = short::offset_len(span).filter(|_| may).map(|n| n.max(least)) {
                let head = wire::varint_len(id.0) + n;
                if room > head {
                    short::write_head(w, id, offset, n);
                    let len = (room - head) as u64;
                    self.put_stream_frame(now, id, offset, len, limit, false, w);
                    self.tell_writable(id, cap);
                    return Filled::Whole(n as u8);
                }
            }
        }
        let head =
            1 + wire::varint_len(id.0) + if offset > 0 { wire::varint_len(offset) } else { 0 };
        let with_len = head + wire::varint_len(room as u64);
        if room <= with_len {
            return Filled::Whole(0); // The next packet has room.
        }
        let to_end = available >= (room - head) as u64;
        let len =
            if to_end { (room - head) as u64 } else { available.min((room - with_len) as u64) };
        let fin = s.fin != Delivery::None
            && s.reset == Delivery::None
            && offset + len == s.send.end()
            && s.send.next().max(offset + len) == s.send.end();
        if fin {
            s.fin = Delivery::InFlight;
        } else if len == 0 {
            return Filled::Partly;
        }
        w.stream_head(id, offset, (!to_end).then_some(len as usize), fin);
        self.put_stream_frame(now, id, offset, len, limit, fin, w);
        self.tell_writable(id, cap);
        if to_end { Filled::Whole(0) } else { Filled::Partly }
    }

    /// Copies the bytes and books them.
    #[allow(clippy::too_many_arguments)]
    fn put_stream_frame(
        &mut self,
        now: Instant,
        id: StreamId,
        offset: u64,
        len: u64,
        limit: u64,
        fin: bool,
        w: &mut Writer<'_>,
    ) {
        let Some(s) = self.streams.get_mut(&id) else { return };
        let mut range = offset..offset;
        if len > 0 {
            if s.outstanding() == 0 {
                s.progress.on_first_sent(now);
            }
            range = s.send.take(len, limit).expect("the caller saw that bytes are available");
            assert_eq!(range, offset..offset + len, "the bytes whose head was written");
            s.send.copy_out(range.clone(), w.reserve(len as usize));
            s.on_bytes_sent(len);
        }
        self.paths.in_hand_mut().sent.push_frame(SentFrame::Stream { id, range, fin });
        self.update_over_reserve(id);
    }

    fn tell_writable(&mut self, id: StreamId, cap: u64) {
        let low = self.low_water();
        let Some(s) = self.streams.get_mut(&id) else { return };
        let (event, few) = match s.carries {
            Carries::Messages => (Event::Messages, UNSENT / 2),
            _ if s.has_codec => (Event::Writable(id), low),
            _ => (Event::Writable(id), cap / 2),
        };
        if s.wants_writable && s.send.unsent() <= few || s.wants_idle && s.send.unsent() == 0 {
            (s.wants_writable, s.wants_idle) = (false, false);
            self.events.push_back(event);
        }
    }

    // ---- timers ----------------------------------------------------------------

    /// The time of the next [`Session::handle_timeout`] or [`Session::poll_packet`].
    pub(crate) fn poll_timeout(&self, now: Instant) -> Option<Instant> {
        if self.closing.is_some() {
            return self.close_due().filter(|_| self.paths.active().is_open());
        }
        let mut next = Instant::FAR_FUTURE;
        self.each_timer(now, |_, at| next = next.min(at.unwrap_or(Instant::FAR_FUTURE)));
        (next < Instant::FAR_FUTURE).then_some(next)
    }

    /// Every timer with its reason.
    pub(crate) fn timers(&self, now: Instant) -> Vec<(&'static str, Option<Instant>)> {
        let mut all = Vec::new();
        self.each_timer(now, |reason, at| all.push((reason, at)));
        all
    }

    #[inline]
    fn each_timer(&self, now: Instant, mut see: impl FnMut(&'static str, Option<Instant>)) {
        see("credit", self.credit_due.filter(|t| *t > now));
        see("close", self.close_due().filter(|t| *t > now));
        see("open", self.opening.front().map(|(t, _)| *t));
        see("cap", self.schedule.poll_timeout(now));
        see("rest", self.rest_at());
        for at in 0..self.paths.len() {
            self.each_path_timer(now, at, &mut see);
        }
        if !self.paths.is_single() {
            self.paths.iter().for_each(|path| see("trust", path.trust_timeout(now)));
        }
    }

    /// Those of a path.
    #[inline]
    fn each_path_timer(
        &self,
        now: Instant,
        at: usize,
        see: &mut impl FnMut(&'static str, Option<Instant>),
    ) {
        let (path, load) = (&self.paths[at], self.load(at));
        see("release", path.repair.release_at());
        if !path.is_open() {
            return;
        }
        let report = path.report_due();
        let work = self.has_work_beside(now, at, report);
        see("work", work.then(|| path.pacer.next()));
        // What is overdue counts as work, which the pacer may hold back.
        see("report", report.filter(|t| *t > now));
        see("aside", self.paths.aside_at(at).filter(|t| *t > now));
        see("loss", path.loss_check);
        see("rate", path.rate.poll_timeout());
        see("dark", path.dark_at());
        let overdue = path.overdue();
        see("probe", path.probe_at(overdue));
        see("ask", path.ask_at(overdue));
        see("path", path.path_timeout(now, load));
        see("repair", path.repair.poll_timeout(now));
        see("silence", path.waits().then(|| path.silent_at()));
    }

    /// Does what is due.
    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        while let Some((_, id)) = self.opening.front().copied().filter(|(t, _)| *t <= now) {
            self.opening.pop_front();
            self.start_open(id);
        }
        for at in 0..self.paths.len() {
            self.handle_path_timeout(now, at);
        }
        if !self.paths.is_single() {
            self.follow_paths(now);
        }
        self.rest(now);
    }

    fn handle_path_timeout(&mut self, now: Instant, at: usize) {
        let path = &mut self.paths[at];
        path.repair.release(now);
        if !path.is_open() {
            return;
        }
        if path.rate.poll_timeout().is_some_and(|t| t <= now) {
            path.rate.handle_timeout(now, path.rtt.smoothed(), path.sent.next_number());
            path.follow_rate(now);
        }
        if path.dark_at().is_some_and(|t| t <= now) {
            path.rate.on_silence();
            path.follow_rate(now);
        }
        if path.loss_check.is_some_and(|t| t <= now) {
            self.check_lost(now, at);
        }
        let path = &mut self.paths[at];
        if path.mtu.due().is_some_and(|t| t <= now) {
            path.follow_path(now);
        }
        let overdue = path.overdue();
        if path.ask_at(overdue).is_some_and(|t| t <= now) {
            path.ask_alone(now);
        }
        if path.waits() && path.silent_at() <= now {
            path.silent = true;
        }
        if path.probe_at(overdue).is_some_and(|t| t <= now) {
            if path.backoff < DATA_PROBES {
                self.give_up_newest(now, at);
            }
            let path = &mut self.paths[at];
            path.backoff += 1;
            path.ask_alone(now);
            path.last_eliciting = now;
            path.stats.probes += 1;
        }
    }
}

/// What is left of the packet after a stream wrote into it.
pub(super) enum Filled {
    /// There is room for more.
    Partly,
    /// The packet is full; with this hint.
    Whole(u8),
}
