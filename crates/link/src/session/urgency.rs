//! What is urgent: which class a stream or datagram is in now, and how long packets may
//! be while somebody waits for single ones (R-QOS).
//!
//! Nobody knows better than the traffic what is interactive: a flow of the class "normal"
//! that stays small is. It may send what the link carries in 100 ms, and as much again in
//! two round trips; keystrokes, requests and answers to them do, transfers do not.

use std::net::IpAddr;

use units::{Duration, Instant};

use super::schedule::{ClassId, Turn};
use super::{Carry, Session};
use crate::stream::{Carries, Queue, Recent, Stream};
use crate::wire::StreamId;

/// A stream that has sent less than this since it was idle goes before the large ones.
pub(super) const SMALL: u64 = 64 * 1024;
/// What a flow that counts as interactive may send at once, as link time and in bytes.
const QUICK: Duration = Duration::from_millis(100);
const QUICK_BYTES: std::ops::RangeInclusive<u64> = 512..=16 * 1024;
/// How long others' packets may take on the link while interactive flows live: with the
/// packet under way this is what a keystroke waits at most.
const SHRUNK: Duration = Duration::from_millis(100);
/// Packets are not made smaller than this, IP header included: headers are a tenth of it.
const SHRUNK_LEAST: u64 = 520;
/// An interactive flow lives as long as this after its last bytes, or four round trips.
const LIVES: Duration = Duration::from_secs(5);
/// An answer comes within a round trip and this, or whoever it is for has waited long; and
/// who presses keys or speaks does so again within it.
const ANSWERED: Duration = Duration::from_millis(250);
/// Where a packet takes less than this, others' data may share one with urgent data.
const SHARED: Duration = Duration::from_millis(4);
/// A flow of datagrams that was too large for interactive is so again after this, or two
/// round trips, without any: until then its packets would overtake each other.
const CALM: Duration = Duration::from_secs(1);

/// What an unsplit packet is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Label {
    /// Its class, of which "normal" is refined by what its flow sends.
    pub class: ClassId,
    /// The host of the LAN that it is from or to; `None`: this node.
    pub host: Option<IpAddr>,
    /// Equal for packets of one flow and hardly ever for those of others.
    pub flow: u32,
    /// What becomes of it when it is lost.
    pub carry: Carry,
    /// What of it is compressed, where that pays.
    pub compress: Compress,
}

/// What of an unsplit packet is compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compress {
    /// It goes as it is.
    Nothing,
    /// Its headers.
    #[default]
    Headers,
    /// Headers and payload.
    All,
}

/// Places for flows of datagrams. Two flows that meet in one count together.
const FLOWS: usize = 1024;

#[derive(Clone, Copy, Default)]
struct FlowState {
    recent: Recent,
    last: Instant,
    large: bool,
}

/// What flows of datagrams sent lately. Most sessions see none: the table comes with the
/// first.
#[derive(Default)]
pub(super) struct Flows(Box<[FlowState]>);

impl Flows {
    fn get(&mut self, flow: u32) -> &mut FlowState {
        if self.0.is_empty() {
            self.0 = vec![FlowState::default(); FLOWS].into_boxed_slice();
        }
        &mut self.0[flow as usize % FLOWS]
    }
}

impl Session {
    /// What the user of the link, or a rule of its, knows about a stream.
    pub fn set_class(&mut self, id: StreamId, class: ClassId) {
        let class = self.schedule.known(class);
        if let Some(s) = self.streams.get_mut(&id) {
            s.class = class;
        }
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

    /// In which class the stream waits now.
    fn class_now(&mut self, now: Instant, id: StreamId) -> ClassId {
        let (quick, time) = (self.quick(), self.paths.active().rtt.smoothed().times(2));
        let Some(s) = self.streams.get_mut(&id) else { return ClassId::NORMAL };
        let level = s.recent.level(now, quick, time);
        let again = if s.send.has_lost() { s.send.available(0) } else { 0 };
        // Of a coded stream only what the link needs next waits here.
        let level = level + s.send.unsent() + again;
        // Nobody waits for messages about chunks alone: they go on as long as content does.
        let is_small = !s.has_more && s.carries != Carries::Messages && level <= quick;
        let (class, host) = (s.class, s.host);
        let rate = self.paths.active().pacer.rate();
        match class == ClassId::NORMAL && is_small && self.schedule.is_quick(now, rate, host) {
            true => ClassId::INTERACTIVE,
            false => class,
        }
    }

    /// In which class a datagram waits.
    pub(super) fn datagram_class(&mut self, now: Instant, len: usize, label: &Label) -> ClassId {
        let class = self.schedule.known(label.class);
        if class != ClassId::NORMAL {
            return class;
        }
        let (quick, time) = (self.quick(), self.paths.active().rtt.smoothed().times(2));
        let flow = self.flows.get(label.flow);
        let calm = now.since(flow.last) >= CALM.max(time);
        flow.last = now;
        let level = flow.recent.level(now, quick, time);
        flow.recent.add(len as u64);
        flow.large = flow.large && !calm || level + len as u64 > quick;
        if flow.large { ClassId::NORMAL } else { ClassId::INTERACTIVE }
    }

    /// The stream has bytes and credit: it waits for its turn. `first`: it had the last and
    /// goes on if it is small.
    pub(super) fn wait_for_turn(&mut self, now: Instant, id: StreamId, first: bool) {
        let class = self.class_now(now, id);
        let Some(s) = self.streams.get_mut(&id) else { return };
        s.queue = Queue::Turn;
        let (host, small) = (s.host, s.burst < SMALL);
        self.schedule.wait(now, self.paths.active().pacer.rate(), class, host, id, small, first);
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

    /// The longest plaintext of the next packet, of which `room` bytes are possible and
    /// `outside` more count on the link: less while interactive flows live and others'
    /// data is next.
    pub(super) fn packet_room(&self, now: Instant, room: usize, outside: u64) -> usize {
        if now >= self.interactive_until || self.schedule.has_strict(now) {
            return room;
        }
        let least = SHRUNK_LEAST + u64::from(self.paths.active().config.overhead);
        let longest = self.paths.active().pacer.rate().bytes_in(SHRUNK).0.max(least);
        room.min(longest.saturating_sub(outside) as usize)
    }

    /// Must others' data wait for the next packet once urgent data is in one of this length?
    pub(super) fn keeps_short(&self, packet: usize) -> bool {
        self.paths.active().pacer.rate().time_for(units::ByteCount(packet as u64)) > SHARED
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

impl Stream {
    /// Bytes left, or left again.
    pub(super) fn on_bytes_sent(&mut self, bytes: u64) {
        self.burst += bytes;
        self.recent.add(bytes);
    }

    /// Something waits to be sent again.
    pub(super) fn must_repeat(&self) -> bool {
        self.send.has_lost() || self.fin_ready()
    }
}
