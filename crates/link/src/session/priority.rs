//! Priority: which class a stream or datagram is in at the moment, and how long packets may be
//! while somebody waits for single ones (R-QOS).
//!
//! A flow of the class "normal" counts as interactive while it stays small: it may send what the
//! link carries in 100 ms, and as much again every two round trips. Keystrokes, requests and
//! short answers stay below that; transfers do not.

use units::{Duration, Instant};

use super::path::Path;
use super::schedule::Turn;
use super::state::Session;
use crate::stream::{Carries, Queue, Stream};
use crate::traffic::{ChosenBy, ClassId, HostId, Label};
use crate::wire::StreamId;

/// A stream that has sent less than this since it was idle goes before the large ones.
pub(super) const SMALL: u64 = 64 * 1024;
/// The burst of an interactive flow: link time, and its bounds in bytes.
const QUICK: Duration = Duration::from_millis(100);
const QUICK_BYTES: std::ops::RangeInclusive<u64> = 512..=16 * 1024;
/// The longest serialization of other packets while interactive flows live: a keystroke waits at
/// most this long, for the packet that is being sent.
const SHRUNK: Duration = Duration::from_millis(100);
/// Packets are not made smaller than this, IP header included: headers are a tenth of it.
const SHRUNK_LEAST: u64 = 520;
/// An interactive flow lives as long as this after its last bytes, or four round trips.
const LIVES: Duration = Duration::from_secs(5);
/// An answer is expected within a round trip and this time; the next keystroke or voice packet
/// is expected within this time.
const ANSWERED: Duration = Duration::from_millis(250);
/// Where serialization of a packet takes less than this, other data may share one with
/// interactive data.
const SHARED: Duration = Duration::from_millis(4);
impl Session {
    /// Sets the class of a stream, as the user of the link, one of its rules or its host says.
    pub fn set_class(&mut self, id: StreamId, class: ClassId, chosen_by: ChosenBy) {
        let class = self.schedule.known(class);
        if let Some(s) = self.streams.get_mut(&id) {
            (s.class, s.chosen_by) = (class, chosen_by);
            if s.in_control && self.schedule.is_parted() {
                self.control.move_to(control_class(s), id);
            }
        }
    }

    /// Waits the stream in a class that it was in before? One of the class "normal" may have become
    /// small or large meanwhile, and a strict one that its host chose may wait in "normal". They
    /// have their turn all the same.
    pub(super) fn is_moved(&self, id: StreamId, class: ClassId) -> bool {
        let Some(s) = self.streams.get(&id) else { return false };
        let may_be_normal = s.class == ClassId::NORMAL || is_claimed(s.class, s.chosen_by);
        s.class != class && !may_be_normal
    }

    /// The class that was set.
    pub fn class(&self, id: StreamId) -> Option<ClassId> {
        self.streams.get(&id).map(|s| s.class)
    }

    /// Bytes that an interactive flow may send at once.
    fn quick(&self) -> u64 {
        self.paths
            .active()
            .pacer
            .rate()
            .bytes_in(QUICK)
            .0
            .clamp(*QUICK_BYTES.start(), *QUICK_BYTES.end())
    }

    /// The path that a class goes by; the active one while there is none for it.
    fn path_of(&self, class: ClassId) -> &Path {
        let way = self.schedule.way(class);
        if way < self.paths.len() { &self.paths[way] } else { self.paths.active() }
    }

    /// The class in which the stream waits at the moment.
    fn class_now(&mut self, now: Instant, id: StreamId) -> ClassId {
        let (quick, time) = (self.quick(), self.paths.active().rtt.smoothed().times(2));
        let Some(s) = self.streams.get_mut(&id) else { return ClassId::NORMAL };
        let level = s.recent.level(now, quick, time);
        let again = if s.send.has_lost() { s.send.available(0) } else { 0 };
        // A compressed stream is asked for bytes only when the link needs them, so what is not
        // asked for yet counts, too.
        let level = level + s.send.unsent() + again;
        // Messages about chunks are never interactive: they go on as long as content does.
        let is_small = !s.has_more && s.carries != Carries::Messages && level <= quick;
        let (class, chosen_by, host) = (s.class, s.chosen_by, s.host);
        let rate = self.paths.active().pacer.rate();
        match is_claimed(class, chosen_by) {
            true if self.schedule.is_quick(now, rate, host) => class,
            true => ClassId::NORMAL,
            false if class != ClassId::NORMAL || !is_small => class,
            false if self.schedule.is_quick(now, rate, host) => ClassId::INTERACTIVE,
            false => class,
        }
    }

    /// The class in which a datagram of the host waits.
    pub(super) fn datagram_class(
        &mut self,
        now: Instant,
        len: usize,
        label: &Label,
        host: HostId,
    ) -> ClassId {
        let class = self.schedule.known(label.class);
        let is_claimed = is_claimed(class, label.chosen_by);
        if class != ClassId::NORMAL && !is_claimed {
            return class;
        }
        let rate = self.paths.active().pacer.rate();
        let sender = label.sender.map(|sender| self.schedule.hold_host(Some(sender)));
        let keeps = |host| self.schedule.stays_quick(now, rate, host);
        let keeps_to_its_part = [Some(host), sender].into_iter().flatten().all(keeps);
        if let Some(sender) = sender {
            if keeps_to_its_part {
                self.schedule.hosts.on_sent(sender, len as u64, true);
            }
            self.schedule.hosts.release(sender);
        }
        if is_claimed {
            return if keeps_to_its_part { class } else { ClassId::NORMAL };
        }
        let (quick, time) = (self.quick(), self.paths.active().rtt.smoothed().times(2));
        let is_large = self.flows.is_large(now, label.flow, len as u64, quick, time);
        if is_large || !keeps_to_its_part { ClassId::NORMAL } else { ClassId::INTERACTIVE }
    }

    /// The stream has bytes and credit: it waits for its turn. `first`: it had the last turn and
    /// goes on if it is small.
    pub(super) fn wait_for_turn(&mut self, now: Instant, id: StreamId, first: bool) {
        let class = self.class_now(now, id);
        let Some(s) = self.streams.get_mut(&id) else { return };
        s.queue = Queue::Turn;
        let (host, small) = (s.host, s.burst < SMALL);
        let rate = self.path_of(class).pacer.rate();
        self.schedule.wait(now, rate, class, host, id, small, first);
    }

    /// The stream has bytes and no credit.
    pub(super) fn wait_for_credit(&mut self, id: StreamId) {
        let Some(s) = self.streams.get_mut(&id) else { return };
        s.queue = Queue::Blocked;
        if !std::mem::replace(&mut s.in_blocked, true) {
            self.blocked.push_back(id);
        }
    }

    /// Bytes of the stream, or its end, were lost: they go before what is new.
    pub(super) fn wait_to_repeat(&mut self, now: Instant, id: StreamId, first: bool) {
        let class = self.class_now(now, id);
        let Some(s) = self.streams.get_mut(&id) else { return };
        if first || !std::mem::replace(&mut s.in_lost, true) {
            self.schedule.wait_lost(class, id, first);
        }
    }

    /// The stream had a turn as small or large: what it waits for now.
    pub(super) fn requeue(&mut self, now: Instant, id: StreamId, small: bool) {
        let Some(s) = self.streams.get(&id) else { return };
        let limit = self.send_limit(now, s);
        if s.has_data(limit) {
            self.wait_for_turn(now, id, small);
        } else if s.has_data(u64::MAX) {
            self.wait_for_credit(id);
        } else if let Some(s) = self.streams.get_mut(&id) {
            s.queue = Queue::None;
        }
    }

    /// The longest plaintext of the next packet of a path, of which `room` bytes are possible and
    /// `outside` more count on the link: less while interactive flows live there and others'
    /// data is next.
    pub(super) fn packet_room(&self, now: Instant, at: usize, room: usize, outside: u64) -> usize {
        let elsewhere = self.schedule.way(ClassId::INTERACTIVE) != at;
        if now >= self.interactive_until || elsewhere || self.schedule.has_strict(now, at) {
            return room;
        }
        let path = &self.paths[at];
        let least = SHRUNK_LEAST + u64::from(path.config.overhead);
        let longest = path.pacer.rate().bytes_in(SHRUNK).0.max(least);
        room.min(longest.saturating_sub(outside) as usize)
    }

    /// Must other data wait for the next packet once interactive data is in one of this length?
    pub(super) fn keeps_short(&self, packet: usize) -> bool {
        self.paths.in_hand().pacer.rate().time_for(units::ByteCount(packet as u64)) > SHARED
    }

    /// A turn was used.
    pub(super) fn on_turn(&mut self, now: Instant, turn: Turn, bytes: u64) {
        let host = match turn {
            Turn::Lost(_, id) => self.streams.get(&id).map_or(Default::default(), |s| s.host),
            Turn::Stream { host, .. } | Turn::Packets { host, .. } => host,
        };
        self.schedule.charge(now, turn, host, bytes);
        if turn.class() == ClassId::INTERACTIVE && bytes > 0 {
            self.interactive_until = now + LIVES.max(self.paths.active().rtt.smoothed().times(4));
            self.awaited_until = now + self.paths.active().rtt.smoothed() + ANSWERED;
        }
    }

    /// A datagram arrived, which may be of a call that only one side speaks in.
    pub(super) fn on_datagram_arrived(&mut self, now: Instant) {
        self.awaited_until = self.awaited_until.max(now + ANSWERED);
    }

    /// Until when what arrives may be what somebody waits for.
    pub(crate) fn awaited_until(&self) -> Instant {
        self.awaited_until
    }
}

/// Is the class a strict one only because the host says so?
fn is_claimed(class: ClassId, chosen_by: ChosenBy) -> bool {
    class.is_strict() && chosen_by == ChosenBy::Host
}

/// The class in which a stream's control frames wait. What it says is waited for, as its first
/// bytes are.
pub(super) fn control_class(s: &Stream) -> ClassId {
    let is_small = s.class == ClassId::NORMAL && s.burst < SMALL;
    if is_small { ClassId::INTERACTIVE } else { s.class }
}
