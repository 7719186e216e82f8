//! Whose turn it is on the link (R-QOS).
//!
//! Everything that waits belongs to a **class** and, in it, to a **host** of the LAN:
//!
//! - Control and interactive go first, in this order: whatever they have, at once.
//! - The other classes share what is left by weight: start-time fair queueing (Goyal, Vin
//!   and Cheng, 1996), so that a class that was idle neither gains nor loses by it.
//! - In a class, bytes that were lost go first. Then small streams, each to completion,
//!   those that came first before the others: six equal objects in strict turns would all
//!   be late. One turn in eight is the others' nonetheless. A host that takes more than
//!   its part of the link has no small streams.
//! - The rest is divided evenly among hosts by deficit round robin (Shreedhar and Varghese,
//!   1995), in a host packet by packet among its streams, and between these and its
//!   datagrams in turns.
//!
//! Each class goes by one path, its **way**: the active one unless its carriers are named, and
//! none where none of these is open (L-PT-18). Turns are those of one way.
//!
//! A class may have a cap, and its datagrams may be held for a moment, until others share
//! their packet. The next turn costs a look at each class (20 at most) and,
//! on average, at two hosts, however many streams wait; nothing is allocated for it.

use std::collections::VecDeque;
use std::net::IpAddr;

use units::{BitRate, ByteCount, Duration, Instant};

use super::hosts::Hosts;
use crate::datagram::PacketQueue;
use crate::path::MAX_PATHS;
use crate::traffic::{ClassConfig, ClassId, HostId};
use crate::wire::StreamId;

/// Whose turn it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// A stream with bytes to be sent again.
    Lost(ClassId, StreamId),
    /// A stream: `small` is to be served to completion.
    Stream { class: ClassId, host: HostId, id: StreamId, small: bool },
    /// The datagrams of a host.
    Packets { class: ClassId, host: HostId },
}

impl Turn {
    pub fn class(&self) -> ClassId {
        match *self {
            Turn::Lost(class, _) | Turn::Stream { class, .. } | Turn::Packets { class, .. } => {
                class
            }
        }
    }
}

/// What waits in one class for one host.
#[derive(Default)]
struct HostQueue {
    streams: VecDeque<StreamId>,
    packets: PacketQueue,
    /// The datagrams are next.
    packet_turn: bool,
    /// Bytes it may send before the others' turn.
    deficit: i64,
    in_ring: bool,
}

#[derive(Default)]
struct Class {
    /// Percent.
    weight: u64,
    /// Bytes sent, each counted as [`SCALE`] / weight.
    virtual_time: u64,
    cap: Option<BitRate>,
    /// When the cap lets the next packet pass.
    free_at: Instant,
    lost: VecDeque<StreamId>,
    small: VecDeque<(StreamId, HostId)>,
    ring: VecDeque<HostId>,
    /// By host.
    queues: Vec<HostQueue>,
    /// Datagrams of all hosts, their bytes, and since when the oldest has waited.
    packets: usize,
    packet_bytes: usize,
    since: Instant,
    hold: Duration,
    turns: u32,
    /// The place of the path that it goes by.
    way: usize,
    /// Its carriers are named, and known.
    is_bound: bool,
}

/// Virtual time per byte of a class that has one percent.
const SCALE: u64 = 100;
/// Among small streams every so manieth turn is one of the others.
const OTHERS_TURN: u32 = 8;
/// Turns of a host that what it sends out of turn can cost it.
const MAX_DEBT: i64 = 4;
/// What an idle class with a cap saves up, as link time.
const CAP_BURST: Duration = Duration::from_millis(20);
/// Normal's part, in fifths, where bulk waits too and neither has a share of its own.
const NORMAL_FIFTHS: u64 = 4;

/// The way of a class none of whose carriers is open.
pub(super) const NO_WAY: usize = MAX_PATHS;

/// Streams that are looked at for one that goes by another path.
const MOST_LOOKS: usize = 16;
/// So many entries of streams that are gone are not looked for.
pub(super) const FEW: usize = 64;

/// What waits to be sent, in order.
pub(super) struct Schedule {
    classes: Vec<Class>,
    pub hosts: Hosts,
    /// The virtual time of the class that had the last turn, by way.
    virtual_times: [u64; MAX_PATHS + 1],
    /// Not all classes go the same way.
    is_parted: bool,
    /// Neither normal nor bulk has a share of its own: bulk's is lent to normal.
    lends: bool,
    quantum: i64,
    /// The class of the last turn.
    last: Option<ClassId>,
    /// Entries of streams in all queues.
    entries: usize,
}

/// The weights of the classes in percent: what was chosen, an even part of ten for own
/// classes without, and the rest for normal; a fifth of that for bulk while it waits.
fn weights(config: &[ClassConfig]) -> Vec<u64> {
    let count = config.len().clamp(ClassId::BUILT_IN, ClassId::MAX);
    let share = |i: usize| config.get(i).and_then(|c| c.share).map(u64::from);
    let own = (ClassId::BUILT_IN..count).map(|i| share(i).unwrap_or(10));
    let (normal, bulk) = (share(ClassId::NORMAL.index()), share(ClassId::BULK.index()));
    let others = own.clone().sum::<u64>() + normal.unwrap_or(0) + bulk.unwrap_or(0);
    let rest = 100u64.saturating_sub(others).max(1);
    let built_in = match (normal, bulk) {
        (Some(n), b) => [n, b.unwrap_or(rest)],
        (None, Some(b)) => [rest, b],
        (None, None) => [rest, (rest / 5).max(1)],
    };
    [0, 0].into_iter().chain(built_in).chain(own).map(|w| w.max(1)).collect()
}

impl Schedule {
    /// `packet`: the longest packet of the link in bytes.
    pub fn new(config: &[ClassConfig], packet: u16) -> Schedule {
        let mut schedule = Schedule {
            classes: Vec::new(),
            hosts: Hosts::default(),
            virtual_times: [0; MAX_PATHS + 1],
            is_parted: false,
            lends: true,
            quantum: i64::from(packet),
            last: None,
            entries: 0,
        };
        schedule.set_classes(Instant::ZERO, config);
        schedule
    }

    /// Changes what classes may have; what waits in one that is gone still leaves.
    pub fn set_classes(&mut self, now: Instant, config: &[ClassConfig]) {
        let weights = weights(config);
        while self.classes.len() < weights.len() {
            self.classes.push(Class::default());
        }
        for (i, class) in self.classes.iter_mut().enumerate() {
            class.weight = weights.get(i).copied().unwrap_or(1);
            let cap = config.get(i).and_then(|c| c.cap);
            if let (Some(before), Some(cap)) = (class.cap, cap) {
                // What it sent beyond its cap is paid at the new one.
                let owed = before.bytes_in(class.free_at.since(now));
                class.free_at = class.free_at.min(now + cap.time_for(owed));
            }
            class.cap = cap;
            class.hold = config.get(i).and_then(|c| c.hold).unwrap_or(Duration::ZERO);
        }
        let chosen = |id: ClassId| config.get(id.index()).is_some_and(|c| c.share.is_some());
        self.lends = !chosen(ClassId::NORMAL) && !chosen(ClassId::BULK);
    }

    /// Each class goes the way that `named` says from now on, or the active path's. What it is
    /// behind or ahead of the others of its way stays as it is.
    pub fn set_ways(&mut self, active: usize, named: impl Fn(ClassId) -> Option<usize>) {
        for (i, class) in self.classes.iter_mut().enumerate() {
            let named = named(ClassId::from_index(i));
            class.is_bound = named.is_some();
            let way = named.unwrap_or(active).min(NO_WAY);
            let before = std::mem::replace(&mut class.way, way);
            if before != way {
                let ahead = class.virtual_time as i128 - i128::from(self.virtual_times[before]);
                let time = i128::from(self.virtual_times[way]) + ahead;
                class.virtual_time = u64::try_from(time).unwrap_or(0);
            }
        }
        self.is_parted = self.classes.iter().any(|c| c.way != self.classes[0].way);
    }

    /// The place of the path that the class goes by; [`NO_WAY`] if there is none now.
    pub fn way(&self, class: ClassId) -> usize {
        self.classes[class.index()].way
    }

    /// Do all classes go the same way?
    pub fn is_parted(&self) -> bool {
        self.is_parted
    }

    /// Does any class go this way?
    pub fn serves(&self, way: usize) -> bool {
        self.classes.iter().any(|c| c.way == way)
    }

    /// Gives back what queues took, if nothing waits.
    pub fn shrink(&mut self) {
        if self.is_empty() {
            for class in &mut self.classes {
                (class.lost, class.small, class.ring) = Default::default();
                class.queues = Vec::new();
            }
            self.hosts.shrink();
        }
    }

    /// The class that `id` stands for here: a number from elsewhere may have none.
    pub fn known(&self, id: ClassId) -> ClassId {
        if id.index() < self.classes.len() { id } else { ClassId::NORMAL }
    }

    /// Does nothing wait?
    pub fn is_empty(&self) -> bool {
        self.classes.iter().all(|c| !c.has_work(true))
    }

    /// Does something wait that goes this way?
    pub fn has_any(&self, way: usize) -> bool {
        self.of(way).any(|(_, c)| c.has_work(true))
    }

    /// May something be sent this way now, as far as caps allow? `streams`: they may be. What
    /// waits for others is no reason for a packet, but goes with any.
    pub fn has_work(&self, now: Instant, way: usize, streams: bool) -> bool {
        let full = self.quantum as usize;
        let is_due = |c: &Class| c.is_free(now) && c.held_until(now, full).is_none();
        self.of(way).any(|(_, c)| c.has_work(streams) && is_due(c))
    }

    /// Does something wait in the strict classes of this way?
    pub fn has_strict(&self, now: Instant, way: usize) -> bool {
        let strict = |i: usize| ClassId::from_index(i).is_strict();
        self.of(way).any(|(i, c)| strict(i) && c.has_work(true) && c.is_free(now))
    }

    /// Does a small stream wait that goes this way, or anything in its strict classes?
    pub fn has_small(&self, way: usize) -> bool {
        let strict = |i: usize| ClassId::from_index(i).is_strict();
        self.of(way).any(|(i, c)| !c.small.is_empty() || strict(i) && c.has_work(true))
    }

    fn of(&self, way: usize) -> impl Iterator<Item = (usize, &Class)> {
        self.classes.iter().enumerate().filter(move |(_, c)| c.way == way)
    }

    /// When something may be sent that a cap holds back now, or that waits for others.
    pub fn poll_timeout(&self, now: Instant) -> Option<Instant> {
        let full = self.quantum as usize;
        let due = |c: &Class| match c.is_free(now) {
            false => Some(c.free_at),
            true => c.held_until(now, full),
        };
        self.classes.iter().filter(|c| c.has_work(true)).filter_map(due).min()
    }

    // ---- what waits ------------------------------------------------------------

    /// Does the host keep to its part with what it sends in strict classes?
    pub fn is_quick(&mut self, now: Instant, rate: BitRate, host: HostId) -> bool {
        let others = self.others();
        self.hosts.is_quick(host, now, rate, others)
    }

    /// The same for packets.
    pub fn stays_quick(&mut self, now: Instant, rate: BitRate, host: HostId) -> bool {
        let others = self.others();
        self.hosts.stays_quick(host, now, rate, others)
    }

    /// Hosts that want a part of the link.
    fn others(&self) -> usize {
        // Nobody goes before control.
        let others = &self.classes[ClassId::CONTROL.index() + 1..];
        let waits = |class: &Class| class.ring.len() + usize::from(!class.small.is_empty());
        others.iter().map(waits).sum()
    }

    /// A stream has bytes to be sent again.
    pub fn wait_lost(&mut self, class: ClassId, id: StreamId, first: bool) {
        self.entries += 1;
        let lost = &mut self.wake(class).lost;
        if first { lost.push_front(id) } else { lost.push_back(id) }
    }

    /// A stream has bytes. `small`: it has not sent much; `first`: it stays the next.
    #[allow(clippy::too_many_arguments)]
    pub fn wait(
        &mut self,
        now: Instant,
        rate: BitRate,
        class: ClassId,
        host: HostId,
        id: StreamId,
        small: bool,
        first: bool,
    ) {
        // What went first is paid back at the same rate as what goes behind.
        let shared = if class.is_strict() { ClassId::NORMAL } else { class };
        let hosts = self.classes[shared.index()].ring.len();
        let light = small && self.hosts.is_light(host, now, rate, hosts);
        self.entries += 1;
        let class = self.wake(class);
        match (light, first) {
            (true, true) => class.small.push_front((id, host)),
            (true, false) => class.small.push_back((id, host)),
            (false, _) => class.queue(host).streams.push_back(id),
        }
        if !light {
            class.enter(host);
        }
    }

    /// The queue of a host's datagrams; [`Schedule::on_packet_queued`] follows.
    pub fn packets(&mut self, class: ClassId, host: HostId) -> &mut PacketQueue {
        &mut self.classes[class.index()].queue(host).packets
    }

    /// A datagram was put into a host's queue.
    pub fn on_packet_queued(&mut self, now: Instant, class: ClassId, host: HostId, len: usize) {
        let class = self.wake(class);
        if class.packets == 0 {
            class.since = now;
        }
        class.packets += 1;
        class.packet_bytes += len;
        class.enter(host);
    }

    /// Where the first datagrams wait of the classes that `is_it` names.
    pub fn first_packets(&self, is_it: impl Fn(ClassId) -> bool) -> Option<(ClassId, HostId)> {
        let all = self.classes.iter().enumerate().filter(|(_, class)| class.packets > 0);
        let mut those = all.filter(|(i, _)| is_it(ClassId::from_index(*i)));
        let (i, class) = those.next()?;
        let waits = |host: &&HostId| !class.queues[host.index()].packets.is_empty();
        Some((ClassId::from_index(i), *class.ring.iter().find(waits)?))
    }

    /// A datagram left a host's queue.
    pub fn on_packet_left(&mut self, class: ClassId, len: usize) {
        let class = &mut self.classes[class.index()];
        class.packets -= 1;
        class.packet_bytes -= len;
    }

    /// A stream is gone, and `streams` are left; `is_there` says which. Entries of those that are
    /// gone do not pile up while nothing may be sent: a stream has two at most, so that beyond
    /// twice as many, and some, at least half are theirs. With the last stream all go.
    pub fn on_gone(&mut self, streams: usize, is_there: impl Fn(StreamId) -> bool) {
        if self.entries > FEW + 4 * streams || streams == 0 && self.entries > 0 {
            self.forget_gone(is_there);
        }
    }

    /// Takes out the entries of streams that are not there, and hosts with nothing else.
    pub fn forget_gone(&mut self, is_there: impl Fn(StreamId) -> bool) {
        self.entries = self.classes.iter_mut().map(|class| class.retain(&is_there)).sum();
    }

    /// The class will have something: idle time is neither saved nor owed.
    fn wake(&mut self, id: ClassId) -> &mut Class {
        let class = &mut self.classes[id.index()];
        if !class.has_work(true) {
            class.virtual_time = class.virtual_time.max(self.virtual_times[class.way]);
        }
        class
    }

    // ---- turns -----------------------------------------------------------------

    /// Whose turn it is on this way. A stream is taken out; datagrams stay until they have left.
    pub fn next(&mut self, now: Instant, way: usize, streams: bool, strict: bool) -> Option<Turn> {
        loop {
            let id = self.choose(now, way, streams, strict)?;
            let class = &mut self.classes[id.index()];
            if !id.is_strict() {
                self.virtual_times[way] = class.virtual_time;
            }
            // A host whose streams are all gone may leave a class with nothing.
            if let Some(turn) = class.next(id, streams, self.quantum) {
                self.last = Some(id);
                self.entries -= usize::from(!matches!(turn, Turn::Packets { .. }));
                return Some(turn);
            }
        }
    }

    fn choose(&self, now: Instant, way: usize, streams: bool, strict: bool) -> Option<ClassId> {
        let ready = |(_, c): &(usize, &Class)| c.has_work(streams) && c.is_free(now);
        let weighted = ClassId::INTERACTIVE.index() + 1;
        let all = || self.of(way).filter(ready);
        let first = all().find(|(i, _)| *i < weighted);
        let fair = || all().filter(|_| !strict).min_by_key(|(_, c)| c.virtual_time);
        first.or_else(fair).map(|(i, _)| ClassId::from_index(i))
    }

    /// A turn was used for `bytes`.
    pub fn charge(&mut self, now: Instant, turn: Turn, host: HostId, bytes: u64) {
        self.charge_class(now, turn.class(), bytes);
        self.hosts.on_sent(host, bytes, turn.class().is_strict());
        let most = MAX_DEBT * self.quantum;
        let queue = self.classes[turn.class().index()].queue(host);
        queue.deficit = (queue.deficit - bytes as i64).max(-most);
        queue.packet_turn = !matches!(turn, Turn::Packets { .. });
    }

    /// The datagram that had the last turn has left in part: its rest has the next, or the
    /// end of a full-sized one, a few bytes, would use up a turn of its own.
    pub fn keep_turn(&mut self, class: ClassId, host: HostId) {
        self.classes[class.index()].queue(host).packet_turn = true;
    }

    /// The packet that the last turn filled costs `bytes` beside what it carries.
    pub fn charge_headers(&mut self, now: Instant, bytes: u64) {
        if let Some(class) = self.last.take() {
            self.charge_class(now, class, bytes);
        }
    }

    fn charge_class(&mut self, now: Instant, id: ClassId, bytes: u64) {
        let way = self.way(id);
        let bulk = &self.classes[ClassId::BULK.index()];
        let bulk_waits = bulk.has_work(true) && bulk.way == way;
        let class = &mut self.classes[id.index()];
        let mut weight = class.weight;
        if id == ClassId::NORMAL && self.lends && bulk_waits {
            weight = (weight * NORMAL_FIFTHS / 5).max(1);
        }
        class.virtual_time += bytes * SCALE / weight;
        if let Some(cap) = class.cap {
            let from = class.free_at.max(now - CAP_BURST);
            class.free_at = from + cap.time_for(ByteCount(bytes));
        }
    }

    /// Entries of streams in all queues.
    #[cfg(test)]
    pub fn entries(&self) -> usize {
        let entries = self.classes.iter().map(Class::entries).sum();
        assert_eq!(self.entries, entries, "each is counted");
        entries
    }

    /// The first stream of those that share evenly this way that `fits`, where it waits: its class,
    /// its host and its place. Classes whose carriers are named go by these only.
    pub fn find_shared(
        &self,
        now: Instant,
        way: usize,
        fits: impl Fn(StreamId) -> bool,
    ) -> Option<(ClassId, HostId, usize)> {
        let weighted = ClassId::INTERACTIVE.index() + 1;
        let mut looks = MOST_LOOKS;
        for (i, class) in self.of(way).filter(|(i, c)| *i >= weighted && !c.is_bound) {
            for host in class.ring.iter().filter(|_| class.is_free(now)) {
                for (at, id) in class.queues[host.index()].streams.iter().enumerate() {
                    if looks == 0 {
                        return None;
                    }
                    looks -= 1;
                    if fits(*id) {
                        return Some((ClassId::from_index(i), *host, at));
                    }
                }
            }
        }
        None
    }

    /// Takes a stream out that was found so: it has a turn.
    pub fn take_shared(&mut self, (class, host, at): (ClassId, HostId, usize)) -> Option<Turn> {
        let id = self.classes[class.index()].queue(host).streams.remove(at)?;
        self.last = Some(class);
        self.entries -= 1;
        Some(Turn::Stream { class, host, id, small: false })
    }

    // ---- hosts -----------------------------------------------------------------

    /// The host at `address` (`None`: this node) has one stream more.
    pub fn hold_host(&mut self, address: Option<IpAddr>) -> HostId {
        self.hosts.hold(address)
    }
}

impl Class {
    fn has_work(&self, streams: bool) -> bool {
        let waits = !self.lost.is_empty() || !self.small.is_empty() || !self.ring.is_empty();
        self.packets > 0 || streams && waits
    }

    /// Until when its datagrams wait for others, where it has nothing else and they do not
    /// fill a packet of `full` bytes.
    fn held_until(&self, now: Instant, full: usize) -> Option<Instant> {
        let until = self.since + self.hold;
        if self.packets == 0 || now >= until || self.packet_bytes >= full {
            return None;
        }
        let has_stream = |host: &HostId| !self.queues[host.index()].streams.is_empty();
        let others = !self.lost.is_empty() || !self.small.is_empty();
        (!others && !self.ring.iter().any(has_stream)).then_some(until)
    }

    #[cfg(test)]
    fn entries(&self) -> usize {
        let streams: usize = self.queues.iter().map(|queue| queue.streams.len()).sum();
        self.lost.len() + self.small.len() + streams
    }

    /// Takes out the entries of streams that are not there, and hosts with nothing else; answers
    /// how many entries are left.
    fn retain(&mut self, is_there: impl Fn(StreamId) -> bool) -> usize {
        self.lost.retain(|id| is_there(*id));
        self.small.retain(|(id, _)| is_there(*id));
        let mut left = self.lost.len() + self.small.len();
        let queues = &mut self.queues;
        self.ring.retain(|host| {
            let queue = &mut queues[host.index()];
            queue.streams.retain(|id| is_there(*id));
            left += queue.streams.len();
            queue.in_ring = !queue.streams.is_empty() || !queue.packets.is_empty();
            queue.in_ring
        });
        left
    }

    fn is_free(&self, now: Instant) -> bool {
        self.cap.is_none() || self.free_at <= now
    }

    fn queue(&mut self, host: HostId) -> &mut HostQueue {
        if self.queues.len() <= host.index() {
            self.queues.resize_with(host.index() + 1, HostQueue::default);
        }
        &mut self.queues[host.index()]
    }

    fn enter(&mut self, host: HostId) {
        let queue = self.queue(host);
        if !std::mem::replace(&mut queue.in_ring, true) {
            // Nothing is saved up while nothing waits.
            queue.deficit = queue.deficit.min(0);
            self.ring.push_back(host);
        }
    }

    fn next(&mut self, class: ClassId, streams: bool, quantum: i64) -> Option<Turn> {
        if streams {
            if let Some(id) = self.lost.pop_front() {
                return Some(Turn::Lost(class, id));
            }
            let contended = !self.small.is_empty() && !self.ring.is_empty();
            self.turns += u32::from(contended);
            if !(contended && self.turns.is_multiple_of(OTHERS_TURN))
                && let Some((id, host)) = self.small.pop_front()
            {
                return Some(Turn::Stream { class, host, id, small: true });
            }
        }
        // What a host owes is a few turns at most.
        for _ in 0..=2 * self.ring.len() {
            let host = *self.ring.front()?;
            let queue = &mut self.queues[host.index()];
            let has_packets = !queue.packets.is_empty();
            if queue.streams.is_empty() && !has_packets {
                queue.in_ring = false;
                self.ring.pop_front();
                continue;
            }
            let may_send = has_packets || streams;
            if !may_send || queue.deficit <= 0 {
                if may_send {
                    queue.deficit += quantum;
                }
                self.ring.rotate_left(1);
                continue;
            }
            if has_packets && (queue.packet_turn || !streams || queue.streams.is_empty()) {
                return Some(Turn::Packets { class, host });
            }
            let id = queue.streams.pop_front()?;
            return Some(Turn::Stream { class, host, id, small: false });
        }
        None
    }
}
