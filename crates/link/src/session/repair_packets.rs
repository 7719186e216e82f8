//! When repair packets of a path leave, what they cover, and what both nodes tell each other of
//! losses (spec/link.md, "Repair").

use units::{Duration, Instant};

use super::path::{Built, Load, Path};
use super::repair::Line;
use crate::repair::{HINT, Purpose};
use crate::wire::{Frame, LossesSeen, Writer};

/// Bytes by which packets stay below a full one while there is repair, which has a head of
/// two bytes and one of the symbol beside the plaintexts that it combines.
const HEAD: usize = 3;
/// What a pause must last to be one: the sender's host may be in the middle of writing.
const PAUSE: Duration = Duration::from_millis(2);

impl Path {
    /// Is a repair packet to be sent now?
    pub(super) fn repair_waits(&self, now: Instant, load: Load<'_>) -> bool {
        let begins = self.repair.tail_due.is_some_and(|t| t <= now);
        (begins || self.tail_goes_on(now, load)) && !load.is_urgent()
    }

    /// Is it time for the tail's next repair packet?
    fn tail_goes_on(&self, now: Instant, load: Load<'_>) -> bool {
        let tail = &self.repair.tail;
        tail.left > 0
            && if load.is_due(now) {
                tail.number <= self.sent.next_number()
            } else {
                tail.at <= now
            }
    }

    /// Has a stream or a datagram something that may be sent here? While the peer is silent
    /// none has.
    fn data_waits(&self, load: Load<'_>) -> bool {
        !self.silent && load.has_data()
    }

    /// The part of a packet's room that data may fill.
    pub(super) fn data_room<'a>(&self, buf: &'a mut [u8]) -> &'a mut [u8] {
        let spare = self.max_packet() - self.best_packet();
        let room = buf.len().saturating_sub(spare);
        &mut buf[..room]
    }

    /// Bytes of that to be left by a stream that is coded, or whose end is near, so that
    /// a repair packet can hold it with its head.
    pub(super) fn room_for_repair(&self, near_end: bool) -> usize {
        let spare = self.path_packet() - self.best_packet();
        let wanted = self.repair.is_on() && (near_end || self.repair.code.is_some());
        if wanted { HEAD.saturating_sub(spare) } else { 0 }
    }

    /// Packets in a round trip.
    fn packets_in_flight(&self) -> f64 {
        let bytes = self.pacer.rate().bytes_in(self.rtt.smoothed()).0;
        bytes as f64 / self.sent.by_size.best() as f64
    }

    /// Keeps what left, and sees whether the sender pauses.
    pub(super) fn keep_for_repair(
        &mut self,
        now: Instant,
        load: Load<'_>,
        number: u64,
        hint: u8,
        packet: &[u8],
        eliciting: bool,
    ) {
        let Some(ends) = self.repair.keep(now, number, hint, packet, eliciting) else { return };
        let drained = !load.is_urgent();
        if drained && self.repair.tail_due.is_none() && (ends || !self.data_waits(load)) {
            self.repair.tail_due = Some(now + PAUSE);
        }
    }

    /// Writes a repair packet if one is due. Reports go first.
    pub(super) fn write_repair(
        &mut self,
        now: Instant,
        load: Load<'_>,
        buf: &mut [u8],
        sealing: u64,
    ) -> Option<Built> {
        if !self.repair.is_on() || self.silent {
            self.repair.tail_due = None;
            self.repair.tail.left = 0;
            return None;
        }
        // Those of a steady flow keep their distance: it is told in one byte then.
        let since = self.sent.next_number() - self.repair.last;
        let steady = self.repair.code.is_some_and(|c| since >= c.interval);
        if !steady && self.report_due().is_some_and(|t| t <= now) {
            return None;
        }
        let busy = self.data_waits(load);
        let tail = &mut self.repair.tail;
        if tail.left > 0 && tail.in_pause && busy {
            self.repair.first = Some(tail.first);
            tail.left = 0;
        }
        self.begin_tail(now, load);
        let number = self.sent.next_number();
        let (first, purpose) = if self.tail_goes_on(now, load) && !load.is_urgent() {
            self.repair.tail.took(now, number);
            if self.repair.tail.in_pause {
                self.repair.since = number;
            }
            (self.repair.tail.first, Purpose::Tail(self.repair.tail.end))
        } else {
            let (first, period) = self.bulk_repair_due(load, number)?;
            (first, Purpose::Flow(period))
        };
        let room = buf.len().saturating_sub(self.max_packet() - self.path_packet());
        let mut w = Writer::new(&mut buf[..room]);
        let Some(covers) = self.repair.encoder.write(number, first, purpose, &mut w) else {
            self.repair.tail.left = 0;
            return None;
        };
        let len = w.len();
        let size = len as u64 + sealing + self.wire_overhead();
        self.pacer.on_sent(now, size);
        self.stats.repairs_sent += 1;
        self.repair.used = now;
        Some(Built { number: self.sent.push_repair(now, covers, size), len, hint: HINT })
    }

    /// The pause is one: how many repair packets does what left before it get?
    fn begin_tail(&mut self, now: Instant, load: Load<'_>) {
        if self.repair.tail_due.is_none_or(|t| t > now) {
            return;
        }
        self.repair.tail_due = None;
        if load.is_urgent() {
            return; // It goes on; another pause comes.
        }
        let pauses = !self.data_waits(load);
        let newest = self.sent.next_number();
        // What left a round trip ago has been reported.
        let unreported = self.sent.first_since(now - self.rtt.smoothed());
        let line = Line {
            rtt: self.rtt.smoothed(),
            rate: self.pacer.rate(),
            packet: u64::from(self.config.packet),
        };
        self.repair.begin_tail(now, pauses, newest, unreported, line);
    }

    /// No tail goes on for what the peer has: on a thin link that takes long, and where much was
    /// lost a tail may have tens of packets.
    pub(super) fn end_tail_that_arrived(&mut self) {
        let tail = &mut self.repair.tail;
        if tail.left > 0 && self.sent.all_arrived(tail.first..tail.end) {
            tail.left = 0;
        }
    }

    /// The first number that the repair packet of a steady flow covers, if it is due, and its
    /// distance from the one before.
    fn bulk_repair_due(&mut self, load: Load<'_>, number: u64) -> Option<(u64, u64)> {
        if !self.repair.is_bulk_due(number) {
            return None;
        }
        // One of these in eight or so more packets decides anew.
        let in_flight = self.packets_in_flight();
        let rate = self.pacer.rate().bytes_in(Duration::from_secs(1)).0 as f64;
        let busy = self.data_waits(load);
        self.repair.next_bulk(number, in_flight, rate, busy)
    }

    /// REPAIR packet `number` came.
    pub(super) fn on_repair(&mut self, now: Instant, number: u64, payload: &[u8]) {
        if self.repair.on_repair(now, number, payload).is_err() {
            self.stats.violations += 1;
        }
    }

    /// Packet `number` came back.
    pub(super) fn on_recovered(&mut self, number: u64, eliciting: bool) {
        self.stats.recovered += u64::from(eliciting);
        if number < self.received.always_told() {
            self.repair.untold += u64::from(eliciting);
        }
    }

    /// All that could come back did.
    pub(super) fn after_recovery(&mut self) {
        self.stats.too_dear += self.repair.decoder.take_too_dear();
        if self.repair.decoder.take_contradiction() {
            self.repair.decoder.release();
            self.stats.contradictions += 1;
            self.stats.violations += 1;
        }
    }

    /// Tells the peer what was lost here, whether it came back or not. Gaps are told when
    /// there are an eighth, or 32, more: they only show how long bursts are.
    pub(super) fn tell_losses(&mut self, now: Instant, w: &mut Writer<'_>) {
        let (gaps, missing) = self.received.gaps();
        if self.received.tells_all(now) {
            self.repair.untold = 0;
        }
        // What the report does not name yet the peer must not take off what arrived.
        let recovered = self.stats.recovered - self.repair.untold;
        let seen = LossesSeen { recovered, gaps, missing };
        let told = self.repair.told;
        let news = seen.recovered > told.recovered || gaps > told.gaps + (told.gaps / 8).min(32);
        if news && w.put(&Frame::Recovered(seen)) {
            self.repair.told = seen;
        }
    }

    /// The peer told how many of our packets were missing and came back so far.
    pub(super) fn on_losses_seen(&mut self, seen: LossesSeen) {
        let more = seen.recovered.saturating_sub(self.stats.peer_recovered);
        self.stats.peer_recovered += more;
        let mean = self.sent.sent_bytes() / self.sent.next_number().max(1);
        self.sent.discount(more.saturating_mul(mean));
        self.repair.on_losses_seen(seen, more);
    }
}
