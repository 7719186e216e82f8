//! One stream: both directions' bytes, what is still to be told about it, and
//! how much the peer's reader has taken.

use units::{Duration, Instant};

use crate::buffer::{RecvBuffer, SendBuffer};
use crate::traffic::{ChosenBy, ClassId, HostId};
use crate::wire::{Origin, ResetReason};

/// The way of a control frame that must arrive.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Delivery {
    #[default]
    None,
    Wanted,
    InFlight,
    /// What left seems lost and is wanted again. It may have arrived all the same.
    Lost,
    Done,
}

impl Delivery {
    pub fn want(&mut self) {
        if *self == Delivery::None {
            *self = Delivery::Wanted;
        }
    }
    pub fn lost(&mut self) {
        if *self == Delivery::InFlight {
            *self = Delivery::Lost;
        }
    }
    pub fn arrived(&mut self) {
        *self = Delivery::Done;
    }
    pub fn is_wanted(self) -> bool {
        matches!(self, Delivery::Wanted | Delivery::Lost)
    }
}

/// What a stream carries.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Carries {
    /// A connection's bytes.
    #[default]
    Connection,
    /// Unsplit packets, each after its length.
    Packets,
    /// Messages about chunks.
    Messages,
}

/// What a stream waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Queue {
    /// Bytes.
    #[default]
    None,
    /// Its turn.
    Turn,
    /// Credit.
    Blocked,
}

/// Bytes sent lately: they count less and less.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Recent {
    bytes: u64,
    at: Instant,
}

impl Recent {
    /// What is left at `now` of what was sent, of which `bytes` are forgotten in `time`.
    pub fn level(&mut self, now: Instant, bytes: u64, time: Duration) -> u64 {
        let passed = now.since(self.at).as_nanos();
        let forgotten = u128::from(passed) * u128::from(bytes) / u128::from(time.as_nanos().max(1));
        if forgotten > 0 {
            self.bytes = self.bytes.saturating_sub(u64::try_from(forgotten).unwrap_or(u64::MAX));
            self.at = now;
        }
        self.bytes
    }

    pub fn add(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
    }
}

#[derive(Default)]
pub(crate) struct Stream {
    pub send: SendBuffer,
    pub recv: RecvBuffer,
    /// The opener's addresses, until the peer has them.
    pub origin: Option<Box<Origin>>,
    pub open: Delivery,
    pub accepted: Delivery,
    pub fin: Delivery,
    pub reset: Delivery,
    pub reset_reason: Option<ResetReason>,
    /// An abrupt reset: nothing more of our bytes counts.
    pub abrupt: bool,
    /// The local side writes no more.
    pub local_end: bool,
    /// The opener's frame is known (always true for our own streams).
    pub opened: bool,
    /// The peer has said that the far connection stands.
    pub accepted_in: bool,
    /// Where the peer's bytes end, once told.
    pub fin_in: Option<u64>,
    pub reset_in: Option<(ResetReason, u64)>,
    /// The user of the link is done with it.
    pub released: bool,
    /// It is no connection, and the user of the link never hears of it.
    pub carries: Carries,
    /// Our direction refers to chunks: it lives until all of it was taken, and the user hears
    /// of credit (L-DD-13).
    pub refers: bool,
    /// The peer's does: it is told of all that was taken.
    pub is_referred: bool,
    /// Content that our reader took of what the peer referred to, since credit was told.
    pub referred_taken: u64,
    /// The same of references beyond the last CREDIT: the sender has as much under way at least.
    pub referred_open: u64,
    /// The part of it that is beyond what was consumed.
    pub referred_ahead: u64,

    pub queue: Queue,
    /// An entry of this stream is among those without credit, perhaps left behind.
    pub in_blocked: bool,
    /// It waits to send lost bytes again, whatever else it waits for.
    pub in_lost: bool,
    /// What its user or a rule made it, and whose it is.
    pub class: ClassId,
    pub chosen_by: ChosenBy,
    pub host: HostId,
    /// Bytes sent lately, to see whether it stays small.
    pub recent: Recent,
    pub in_control: bool,
    /// Bytes sent since the stream was last idle.
    pub burst: u64,
    pub wants_writable: bool,
    /// Its user is to hear when all that was written has left.
    pub wants_idle: bool,
    /// Its user sends several things on it and decides late which is next: little waits here.
    pub interleaves: bool,
    /// Its user compresses the bytes, and is asked for more as late as the link allows.
    pub has_codec: bool,
    /// It was refused when it last asked for room: its user has more than waits here.
    pub has_more: bool,
    pub readable_event_queued: bool,
    /// An event that tells its user of credit is queued.
    pub credit_event_queued: bool,

    /// The peer's reader has taken all bytes below this offset.
    pub peer_consumed: u64,
    /// Outstanding bytes beyond the reserve: this stream's part of the session's.
    pub over_reserve: u64,
    pub progress: Progress,
    /// The offset in the last CREDIT that was sent.
    pub credit_sent: u64,
    pub credit_queued: bool,
    /// The highest offset in a CREDIT that was acknowledged.
    pub credit_acked: u64,
    /// The packet with the last CREDIT was lost: the newest value is to be sent.
    pub credit_lost: bool,
    /// Received bytes beyond the reserve that our reader has not taken.
    pub recv_over_reserve: u64,
    /// The same of a stream that the peer has reset.
    pub reset_over_reserve: u64,
}

/// How fast the peer's reader takes bytes: over the last round trip or two.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Progress {
    since: Instant,
    current: u64,
    previous: u64,
    last: Instant,
    /// Round trips in a row in which the reader took something.
    streak: u32,
}

impl Progress {
    /// The first bytes after idle time leave: the reader is given the benefit of the doubt.
    pub fn on_first_sent(&mut self, now: Instant) {
        self.last = now;
    }

    pub fn on_consumed(&mut self, now: Instant, bytes: u64, rtt: Duration) {
        let age = now.since(self.since);
        if age >= rtt {
            let goes_on = age < rtt.times(2);
            self.previous = if goes_on { self.current } else { 0 };
            self.streak = if goes_on { self.streak.saturating_add(1) } else { 0 };
            self.current = 0;
            self.since = now;
        }
        self.current += bytes;
        self.last = now;
    }

    /// Bytes taken in about one round trip.
    pub fn per_rtt(&self) -> u64 {
        self.current.max(self.previous)
    }

    /// The reader has gone on for some round trips: it does not just fill a buffer.
    pub fn is_steady(&self) -> bool {
        self.streak >= 2
    }

    pub fn last(&self) -> Instant {
        self.last
    }
}

impl Stream {
    /// Bytes sent that the peer's reader has not taken, as far as we know. Those of a
    /// stream given up count until the peer has heard of it: it holds them until then.
    pub fn outstanding(&self) -> u64 {
        let told = self.reset == Delivery::Done && (self.abrupt || self.send.all_acked());
        let forgotten = self.reset_in.is_some() || told;
        if forgotten { 0 } else { self.send.next().saturating_sub(self.peer_consumed) }
    }

    /// Has the stream something to send up to the offset `limit`?
    pub fn has_data(&self, limit: u64) -> bool {
        self.send.next_offset(limit).is_some() || self.fin_ready()
    }

    /// The end can be told: all bytes have left at least once.
    pub fn fin_ready(&self) -> bool {
        self.fin.is_wanted() && self.send.unsent() == 0
    }

    /// Control frames wait.
    pub fn has_control(&self) -> bool {
        self.open.is_wanted() || self.accepted.is_wanted() || self.reset.is_wanted()
    }

    /// Our direction is over: the peer has it all, or one side has given up.
    pub fn send_done(&self) -> bool {
        match self.reset {
            Delivery::None => {
                self.reset_in.is_some() || self.fin == Delivery::Done && self.send.all_acked()
            }
            state => state == Delivery::Done && self.send.all_acked(),
        }
    }

    /// The peer has not taken our bytes off its account yet: though all have arrived, its
    /// reader has not taken them, or its word of that is under way, which does not come for
    /// less than its `reserve`. Bytes that refer to chunks are waited for also after a reset that
    /// lets them be delivered (L-DD-13).
    pub fn is_on_account(&self, reserve: u64) -> bool {
        let wanted = self.reset_in.is_none() && !self.abrupt;
        let not_taken = self.refers && self.peer_consumed < self.send.next();
        let is_over = self.over_reserve > 0 && self.outstanding() > reserve;
        wanted && (not_taken || is_over && self.reset == Delivery::None)
    }

    /// The peer waits for word that our reader took what exceeds `reserve`.
    pub fn owes_credit(&self, reserve: u64) -> bool {
        let given_up = self.reset_in.is_some_and(|(_, end)| end == 0 || !self.is_referred);
        let over = self.reset != Delivery::None || given_up;
        !over && self.recv.consumed() - self.credit_acked > self.credit_slack(reserve)
    }

    /// How much that was taken need not be told once everything has come.
    pub fn credit_slack(&self, reserve: u64) -> u64 {
        if self.is_referred { 0 } else { reserve }
    }

    /// The peer gave up and keeps bytes until it hears that nobody wants them: those that
    /// were never sent, and what those refer to that were not taken (L-DD-13).
    pub fn peer_holds_more(&self) -> bool {
        self.reset_in.is_some_and(|(_, end)| self.recv.consumed() < end)
    }

    /// The peer's direction is over.
    pub fn recv_done(&self) -> bool {
        self.reset != Delivery::None
            || self.reset_in.is_some()
            || self.fin_in.is_some_and(|end| self.recv.consumed() >= end)
    }

    /// Bytes left, or left again.
    pub fn on_bytes_sent(&mut self, bytes: u64) {
        self.burst += bytes;
        self.recent.add(bytes);
    }

    /// Something waits to be sent again.
    pub fn must_repeat(&self) -> bool {
        self.send.has_lost() || self.fin_ready()
    }
}

#[cfg(test)]
mod tests {
    /// Ten thousand idle connections are the normal case of a hub.
    #[test]
    fn an_idle_stream_is_small() {
        let size = std::mem::size_of::<super::Stream>();
        assert!(size <= 640, "{size} bytes");
    }
}
