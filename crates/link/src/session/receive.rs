//! What arrives: frames of an authentic packet, and what reports say became of ours.

use std::collections::BTreeMap;

use squeeze::headers::Refused;
use units::Instant;

use super::event::Event;
#[cfg(feature = "mistakes")]
use super::event::Mistake;
use super::path::{MOST_UNSETTLED, Path};
use super::state::{Session, Touched};
use super::status::SessionStats;
use crate::buffer::Pool;
use crate::path::PathId;
use crate::repair;
use crate::sent::{Fate, SentFrame};
use crate::stream::{Delivery, Stream};
use crate::wire::{
    Frame, Origin, Reader, ResetReason, StateFrame, StreamFrame, StreamId, is_question, short,
};

/// What the session leaves to the endpoint, which knows addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PathFrame {
    Challenge(u64),
    Response(u64),
}

/// How a packet's content came.
pub(super) enum Source<'a> {
    /// In a packet, whose sender's address is of interest.
    Carrier(&'a mut dyn FnMut(PathFrame)),
    /// By repair, after other packets.
    Repair,
}

impl Source<'_> {
    fn tell(&mut self, frame: PathFrame) {
        if let Source::Carrier(path) = self {
            path(frame);
        }
    }
}

/// Does the frame speak of when and whence its packet came?
fn is_of_the_moment(frame: &Frame<'_>) -> bool {
    matches!(
        frame,
        Frame::Ping
            | Frame::State(_)
            | Frame::StateOf(..)
            | Frame::Challenge(_)
            | Frame::Response(_)
            | Frame::Close(_)
    )
}

/// L-CR-5: a stream may lie in so many pieces, and one more for each [`LEAST_PIECE`] bytes of its
/// window, or for each [`LEAST_SPAN`] bytes of the span that it lies in if that allows fewer: no
/// window counts its reserve.
const MOST_PIECES: usize = 64;
/// See [`MOST_PIECES`].
const LEAST_PIECE: u64 = 1024;
/// Pieces of a packet of the least size, and what is missing between them, are longer.
const LEAST_SPAN: u64 = 128;

impl Session {
    /// Takes an authentic packet that the replay window has let pass and that this host
    /// received at `arrived`, on a path that there is. `hint` is the header's first-frame hint.
    /// `path` hears of frames about addresses.
    pub(crate) fn handle_packet(
        &mut self,
        now: Instant,
        arrived: Instant,
        (path, number): (PathId, u64),
        hint: u8,
        payload: &[u8],
        tell: &mut impl FnMut(PathFrame),
    ) {
        let Some(at) = self.accept_path(now, path) else { return };
        self.looked_for_losses = false;
        let path = &mut self.paths[at];
        path.on_heard(now);
        path.note_came(now, number);
        if hint == repair::HINT {
            path.received.on_packet(arrived, number, false);
            path.on_repair(now, number, payload);
        } else if !path.received.has(number)
            && self
                .handle_content(now, arrived, (at, number), hint, payload, Source::Carrier(tell))
                .is_some()
        {
            let path = &mut self.paths[at];
            path.repair.arm_if(path.received.gaps().0 > 0);
            if !self.rest.rests() {
                path.repair.on_packet(now, number, hint, payload);
            }
        }
        self.take_recovered(now, arrived, at);
        self.bound_age(now, at);
        if !self.paths.is_single() {
            self.follow_paths(now);
        }
    }

    /// Takes what a packet said, and answers whether it calls for a report; `None` where it
    /// could not be used and counts as lost.
    pub(super) fn handle_content(
        &mut self,
        now: Instant,
        arrived: Instant,
        (at, number): (usize, u64),
        hint: u8,
        payload: &[u8],
        source: Source<'_>,
    ) -> Option<bool> {
        let eliciting = match hint {
            0 => Some(self.handle_frames(now, (at, number), payload, source)),
            _ => self.handle_short(now, (at, number), usize::from(hint), payload).then_some(true),
        };
        let in_vain = std::mem::take(&mut self.overfull);
        let eliciting = eliciting.filter(|_| !in_vain)?;
        self.paths[at].received.on_packet(arrived, number, eliciting);
        Some(eliciting)
    }

    /// Takes the packets that came back on a path.
    fn take_recovered(&mut self, now: Instant, arrived: Instant, at: usize) {
        let mut content = std::mem::take(&mut self.paths[at].repair.content);
        while let Some((number, hint)) = self.paths[at].repair.decoder.next_recovered(&mut content)
        {
            let source = Source::Repair;
            if !self.paths[at].received.has(number)
                && let Some(eliciting) =
                    self.handle_content(now, arrived, (at, number), hint, &content, source)
            {
                self.paths[at].on_recovered(number, eliciting);
            }
        }
        let path = &mut self.paths[at];
        path.repair.content = content;
        path.after_recovery();
    }

    /// A packet in the short form (spec/link.md, L-SF). False where it came too
    /// late to be understood: then it counts as lost.
    fn handle_short(
        &mut self,
        now: Instant,
        (at, number): (usize, u64),
        n: usize,
        payload: &[u8],
    ) -> bool {
        let newest = self.paths[at].received.highest().unwrap_or(0);
        if !(2..=4).contains(&n)
            // How late it is its number does not tell any more (L-PT-8).
            || self.paths.moved
            || at > 0
            || newest.saturating_sub(number) > short::late_limit(n, self.params.mtu)
        {
            return false;
        }
        let Ok((id, truncated, data)) = short::read_head(payload, n) else {
            self.stats.violations += 1;
            return true;
        };
        let reference = self.streams.get(&id).map_or(0, |s| s.recv.highest());
        let offset = short::expand(truncated, n, reference);
        self.on_stream(now, StreamFrame { id, offset, fin: false, data });
        true
    }

    /// Answers whether the packet calls for a report.
    fn handle_frames(
        &mut self,
        now: Instant,
        (at, number): (usize, u64),
        payload: &[u8],
        mut source: Source<'_>,
    ) -> bool {
        let mut reader = Reader::new(payload);
        let mut eliciting = false;
        let mut pinged = false;
        loop {
            let frame = match reader.frame() {
                Ok(Some(frame)) => frame,
                Ok(None) => break,
                Err(_) => {
                    self.stats.violations += 1;
                    break;
                }
            };
            eliciting |= !matches!(
                frame,
                Frame::State(_)
                    | Frame::StateOf(..)
                    | Frame::Floor(_)
                    | Frame::Recovered(_)
                    | Frame::Challenge(_)
                    | Frame::Response(_)
                    | Frame::Close(_)
            );
            if let Frame::Datagram(_) | Frame::Headers(_) | Frame::Fragment(_) = frame {
                self.on_datagram_arrived(now);
            }
            if let Source::Repair = source
                && is_of_the_moment(&frame)
            {
                continue;
            }
            match frame {
                Frame::Ping => pinged = true,
                Frame::State(state) => self.on_state(now, at, &state, false),
                Frame::StateOf(path, state) => {
                    if let Some(about) = self.paths.find(path) {
                        self.on_state(now, about, &state, about != at);
                    }
                }
                Frame::Floor(floor) => self.paths[at].received.on_floor(floor),
                Frame::Open(id, origin) => self.on_open(now, id, origin),
                Frame::Packets(id) => self.on_packets(now, id),
                Frame::Messages(id) => self.on_messages(now, id),
                Frame::Accepted(id) => self.on_accepted(id),
                Frame::Reset { id, reason, end } => self.on_reset(now, id, reason, end),
                Frame::Credit(id, consumed) => self.on_credit(now, id, consumed),
                Frame::Recovered(seen) => self.paths[at].on_losses_seen(seen),
                Frame::Challenge(token) => source.tell(PathFrame::Challenge(token)),
                Frame::Response(token) => source.tell(PathFrame::Response(token)),
                Frame::Close(_) => self.peer_closed = true,
                Frame::Datagram(data) => {
                    self.stir(now);
                    self.inbox.on_datagram(data);
                }
                Frame::Headers(body) => {
                    self.stir(now);
                    self.on_headers((at, number), body);
                }
                Frame::Fragment(f) => {
                    self.stir(now);
                    self.inbox.on_fragment(now, &f);
                }
                Frame::Stream(f) => {
                    self.paths.moved |= at > 0;
                    self.on_stream(now, f);
                }
                Frame::Path(news) => self.on_path_news(now, &news),
                Frame::Use { sequence, path } => self.on_path_use(sequence, path),
            }
        }
        // Once, however many a hostile peer writes.
        if pinged {
            let path = &mut self.paths[at];
            path.received.on_ping();
            // Otherwise a report comes with it (L-LO-5), but for path probes.
            let probes = payload.len() > 1 && is_question(payload);
            if path.sent.confirmed().is_none() && !probes {
                path.check_transmit(now, None, false);
            }
        }
        if std::mem::take(&mut self.freed) {
            self.unblock(now);
        }
        eliciting
    }

    /// A datagram with compressed headers.
    fn on_headers(&mut self, (at, number): (usize, u64), body: &[u8]) {
        let (headers, inbox) = (&mut self.paths[at].peer_headers, &mut self.inbox);
        match inbox.on_compressed(body.len(), |out| headers.decompress(number, body, out)) {
            Ok(()) => {}
            Err(Refused::Late) => inbox.dropped += 1,
            Err(Refused::Malformed) => self.stats.violations += 1,
        }
    }

    /// The stream of a frame from the peer; made if the peer may open it now.
    pub(super) fn peer_stream(&mut self, now: Instant, id: StreamId) -> bool {
        if self.streams.contains_key(&id) {
            return true;
        }
        if id.0 & 1 == self.side || self.closed.contains(id.0 >> 1) {
            return false;
        }
        let is_full = self.streams() >= self.config.max_streams as usize;
        self.add_peer_stream(now, id, is_full)
    }

    fn add_peer_stream(&mut self, now: Instant, id: StreamId, refused: bool) -> bool {
        // Refusals take memory too. Beyond as many of them as of streams the packet
        // counts as lost, so that the peer says it again when some have been told.
        if self.streams() >= 2 * self.config.max_streams as usize {
            self.overfull = true;
            return false;
        }
        self.streams.insert(id, Box::default());
        self.stir(now);
        self.stats.streams_total += 1;
        if refused {
            self.reset(now, id, ResetReason::Exhausted, false);
            self.release(now, id);
        }
        true
    }

    fn on_open(&mut self, now: Instant, id: StreamId, origin: Origin) {
        if id.0 & 1 == self.side {
            return;
        }
        let n = id.0 >> 1;
        let counts_as_over = n < self.skipped_below && self.closed.contains(n);
        if counts_as_over && !self.streams.contains_key(&id) {
            // Ignored, its host would wait for ever (L-ST-6).
            self.add_peer_stream(now, id, true);
            return;
        }
        if !self.peer_stream(now, id) {
            return;
        }
        let Some(s) = self.streams.get_mut(&id) else { return };
        if s.opened || s.reset != Delivery::None {
            return;
        }
        s.opened = true;
        s.host = self.schedule.hold_host(origin.client.map(|c| c.ip()));
        s.interleaves = origin.interleaves();
        let waiting = s.recv.readable() > 0 || s.fin_in.is_some();
        self.events.push_back(Event::Opened(id, origin));
        if waiting {
            self.tell_readable(id);
        }
    }

    fn on_accepted(&mut self, id: StreamId) {
        if id.0 & 1 == self.side
            && let Some(s) = self.streams.get_mut(&id)
            && !std::mem::replace(&mut s.accepted_in, true)
        {
            self.events.push_back(Event::Accepted(id));
        }
    }

    fn on_reset(&mut self, now: Instant, id: StreamId, reason: ResetReason, end: u64) {
        if end == 0 && id.0 & 1 != self.side && !self.streams.contains_key(&id) {
            // Of a stream that never came to be here: its other frames are void.
            return self.remember_closed(id);
        }
        if !self.peer_stream(now, id) {
            return;
        }
        let Some(s) = self.streams.get_mut(&id).filter(|s| s.reset_in.is_none()) else { return };
        s.reset_in = Some((reason, end));
        s.abrupt = true;
        s.local_end = true;
        s.fin = Delivery::None;
        if s.reset != Delivery::None && end == 0 {
            s.reset = Delivery::Done; // Both gave up all of it: there is nobody to tell.
        }
        s.send.discard(&mut self.pool);
        if end == 0 {
            s.recv.discard(&mut self.pool);
        }
        let opened = s.opened;
        let released = s.released;
        self.update_over_reserve(id);
        self.update_recv_over_reserve(id);
        if !opened {
            self.release(now, id);
        } else if !released {
            self.events.push_back(Event::Reset(id, reason));
            self.tell_readable(id);
        }
        self.remove_if_done(id);
    }

    fn on_stream(&mut self, now: Instant, f: StreamFrame<'_>) {
        if !self.peer_stream(now, f.id) {
            return;
        }
        let Some(s) = self.streams.get(&f.id) else { return };
        if s.reset != Delivery::None || s.reset_in.is_some_and(|(_, end)| f.offset >= end) {
            return;
        }
        let end = f.offset + f.data.len() as u64;
        let beyond_fin = s.fin_in.is_some_and(|fin| end > fin)
            || f.fin && (s.fin_in.is_some_and(|fin| fin != end) || s.recv.highest() > end);
        if beyond_fin || self.overruns(s, end) {
            self.stats.violations += 1;
            return self.give_up_on(now, f.id);
        }
        if self.is_too_much(s, end) {
            self.overfull = true;
            return;
        }
        // Losses leave pieces of a packet and more. What lies in smaller ones counts as lost where
        // their places would cost more than their bytes: it comes again in fewer.
        let span = s.recv.highest().max(end) - s.recv.consumed();
        let more = (self.params.stream_window / LEAST_PIECE).min(span / LEAST_SPAN);
        let most = MOST_PIECES + more as usize;
        let Some(s) = self.streams.get_mut(&f.id) else { return };
        if s.recv.is_too_scattered(f.offset, end, most) {
            self.overfull = true;
            return;
        }
        s.recv.write(&mut self.pool, f.offset, f.data);
        if f.fin {
            s.fin_in = Some(end);
        }
        let news = s.recv.readable() > 0 || s.fin_in.is_some_and(|fin| s.recv.consumed() >= fin);
        self.update_recv_over_reserve(f.id);
        if news {
            self.on_readable(now, f.id);
        }
    }

    /// The peer breaks the protocol on this stream.
    pub(super) fn give_up_on(&mut self, now: Instant, id: StreamId) {
        self.reset(now, id, ResetReason::Protocol, false);
        match self.streams.get(&id) {
            // The user of the link does not know of it.
            Some(s) if !s.opened => self.release(now, id),
            Some(s) if !s.released => {
                self.events.push_back(Event::Reset(id, ResetReason::Protocol));
                self.tell_readable(id);
            }
            _ => {}
        }
    }

    /// A report on a path; `aside`: it came by another one.
    fn on_state(&mut self, now: Instant, at: usize, state: &StateFrame<'_>, aside: bool) {
        let mut touched = std::mem::take(&mut self.touched);
        let path = &mut self.paths[at];
        let (streams, pool, stats) = (&mut self.streams, &mut self.pool, &mut self.stats);
        #[cfg(feature = "mistakes")]
        let forgetful = self.mistake == Some(Mistake::DroppedAcknowledgement);
        let mut fate = |fate: Fate, frame: &SentFrame| {
            #[cfg(feature = "mistakes")]
            if forgetful && matches!(frame, SentFrame::Stream { range, .. } if range.end % 5 == 1) {
                return;
            }
            settle(streams, pool, stats, &mut touched, fate, frame);
        };
        let (confirmed, dark) = (path.sent.confirmed(), path.sent.counts.in_the_dark);
        let report = path.sent.handle_state(now, state, aside, &mut path.rtt, &mut fate);
        // Once for each packet: each look may go through all that no report has spoken of, and a
        // packet holds 150 reports, on any path.
        path.loss_check = match std::mem::replace(&mut self.looked_for_losses, true) {
            true => Some(now),
            false => path.sent.detect_lost(now, &path.rtt, &mut fate),
        };
        path.on_report(now, &report, dark);
        self.after_fates(now, at, touched);
        let path = &mut self.paths[at];
        let news = report.progress || path.sent.confirmed() != confirmed;
        path.check_transmit(now, Some(state.hi), news);
    }

    /// The reordering window of a packet has passed.
    pub(super) fn check_lost(&mut self, now: Instant, at: usize) {
        self.with_fates(now, at, |path, fate| {
            path.loss_check = path.sent.detect_lost(now, &path.rtt, fate);
        });
        self.paths[at].follow_path(now);
    }

    /// Silence: the newest packet goes again.
    pub(super) fn give_up_newest(&mut self, now: Instant, at: usize) {
        self.with_fates(now, at, |path, fate| path.sent.give_up_newest(now, fate));
    }

    /// Gives up the oldest of more unsettled packets than any round trip has (L-LO-8).
    pub(super) fn bound_unsettled(&mut self, now: Instant, at: usize) {
        if self.paths[at].sent.has_more_than(MOST_UNSETTLED) {
            let most = self.paths[at].most_unsettled();
            self.with_fates(now, at, |path, fate| path.sent.give_up_oldest(most, fate));
        }
    }

    /// Gives up what a peer that is heard has not acknowledged for long (L-LO-11).
    fn bound_age(&mut self, now: Instant, at: usize) {
        let before = self.paths[at].gives_up_before(now);
        if let Some(before) = before.filter(|then| self.paths[at].sent.has_older_than(*then)) {
            self.with_fates(now, at, |path, fate| path.sent.give_up_before(before, fate));
        }
    }

    /// The path is down or dead: what was under way goes again.
    pub(super) fn give_up_path(&mut self, now: Instant, at: usize) {
        self.with_fates(now, at, |path, fate| path.sent.give_up_all(now, fate));
        let path = &mut self.paths[at];
        match path.is_open() {
            true => path.repair.forget_sent(),
            false => path.rest(),
        }
    }

    /// Lets a path say what became of packets, and sees to what follows.
    fn with_fates(
        &mut self,
        now: Instant,
        at: usize,
        say: impl FnOnce(&mut Path, &mut dyn FnMut(Fate, &SentFrame)),
    ) {
        let mut touched = std::mem::take(&mut self.touched);
        let (streams, pool, stats) = (&mut self.streams, &mut self.pool, &mut self.stats);
        say(&mut self.paths[at], &mut |fate, frame| {
            settle(streams, pool, stats, &mut touched, fate, frame);
        });
        self.after_fates(now, at, touched);
    }

    fn after_fates(&mut self, now: Instant, at: usize, mut touched: Touched) {
        for (token, fate) in touched.references.drain(..) {
            self.paths[at].headers.on_fate(token, fate == Fate::Arrived);
        }
        for (frame, fate) in touched.paths.drain(..) {
            self.paths.on_fate(&frame, fate == Fate::Arrived);
        }
        for id in touched.streams.drain(..) {
            let Some(s) = self.streams.get_mut(&id) else { continue };
            let lost = s.must_repeat();
            let credit_lost = std::mem::take(&mut s.credit_lost);
            let given_up = s.reset == Delivery::Done;
            if lost {
                self.wait_to_repeat(now, id, false);
            }
            if given_up {
                self.update_over_reserve(id);
            }
            if credit_lost {
                self.queue_credit(now, id);
            }
            self.want_control(id);
            self.make_ready(now, id);
            self.remove_if_done(id);
        }
        self.touched = touched;
    }
}

/// Tells the stream of a frame what became of it.
fn settle(
    streams: &mut BTreeMap<StreamId, Box<Stream>>,
    pool: &mut Pool,
    stats: &mut SessionStats,
    touched: &mut Touched,
    fate: Fate,
    frame: &SentFrame,
) {
    if let SentFrame::Reference(token) = frame {
        return touched.references.push((*token, fate));
    }
    let Some(id) = frame.stream() else { return touched.paths.push((frame.clone(), fate)) };
    if let Some(s) = streams.get_mut(&id) {
        apply(s, pool, stats, fate, frame);
        if touched.streams.last() != Some(&id) {
            touched.streams.push(id);
        }
    }
}

fn apply(s: &mut Stream, pool: &mut Pool, stats: &mut SessionStats, fate: Fate, frame: &SentFrame) {
    match (frame, fate) {
        (SentFrame::Stream { range, fin, .. }, Fate::Arrived) => {
            s.send.acked(pool, range.clone());
            if *fin {
                s.fin.arrived();
            }
        }
        (SentFrame::Stream { range, fin, .. }, Fate::Lost) => {
            s.send.lost(range.clone());
            stats.retransmitted += range.end - range.start;
            if *fin {
                s.fin.lost();
            }
        }
        (SentFrame::Open(_), Fate::Arrived) => {
            s.open.arrived();
            s.origin = None;
        }
        (SentFrame::Open(_), Fate::Lost) => s.open.lost(),
        (SentFrame::Accepted(_), Fate::Arrived) => s.accepted.arrived(),
        (SentFrame::Accepted(_), Fate::Lost) => s.accepted.lost(),
        (SentFrame::Reset(_), Fate::Arrived) => s.reset.arrived(),
        (SentFrame::Reset(_), Fate::Lost) => s.reset.lost(),
        (SentFrame::Credit(_, told), Fate::Arrived) => s.credit_acked = s.credit_acked.max(*told),
        // A newer one is under way, or goes now. (A packet may be lost and arrive after all.)
        (SentFrame::Credit(_, told), Fate::Lost) => {
            if *told == s.credit_sent && *told > s.credit_acked {
                s.credit_lost = true;
                s.credit_sent = s.credit_acked;
            }
        }
        (SentFrame::Reference(_) | SentFrame::Path(..) | SentFrame::Use(_), _) => {}
    }
}
