//! How packets that are not split are carried: once, or in order (R-LLLL).
//!
//! **Plain** packets leave once. **Ordered** packets are the content of a stream, each with its
//! length before it: none is lost, none overtakes another, and a loss delays those behind it. The
//! far node has read all packets before one in the stream, so the headers of each refer to earlier
//! ones at once, without waiting for reports.

use squeeze::headers::MAX_HEADER;
use units::{BitRate, Duration, Instant};

use super::state::Session;
use crate::datagram::{MAX_DATAGRAM, Waiting};
use crate::stream::{Carries, Delivery, Stream};
use crate::traffic::{Carry, ChosenBy, ClassId, Compress, HostId, Label};
use crate::wire::{ResetReason, StreamId};

/// Streams of packets that a session opens, one for each class and LAN host; what comes
/// beyond shares those of its class.
const LANES: usize = 64;
/// A stream of packets of which all have arrived for so long may be another host's (L-DG-8).
const LANE_IDLE: Duration = Duration::from_secs(10);
/// So much waits in such a stream however short the memory is: others' bytes do not stop a host's
/// packets.
const LANE_LEAST: u64 = 4 * 1500;
/// Bytes of the length before each packet of a stream.
const LENGTH: usize = 2;
/// What is added to the length of a packet with compressed headers (L-DG-7).
const COMPRESSED: u16 = 1 << 15;
/// Contexts for headers in each such stream: a host talks to few servers at once.
const LANE_CONTEXTS: usize = 8;
/// Payloads of unsplit packets are compressed on links up to this rate: where all shrink to a
/// tenth, the 30 µs that each takes are a processor's tenth.
const PAYLOADS_BELOW: BitRate = BitRate::from_mbps(4);

/// For whom a stream of packets is.
pub(super) type LaneKey = (ClassId, ChosenBy, HostId);

/// A stream of packets. It holds its host's number, also when the stream is gone.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lane {
    pub id: StreamId,
    used: Instant,
}

impl Session {
    /// Sends an unsplit IP packet of at most 9,000 bytes; false if the queue is full.
    pub fn send_datagram(&mut self, now: Instant, data: &[u8], label: &Label) -> bool {
        let taken = match label.carry {
            Carry::Plain => self.send_once(now, data, label),
            Carry::Ordered => self.send_in_order(now, data, label),
        };
        if taken {
            self.stir(now);
            self.stats.datagrams_in += 1;
            self.stats.datagram_bytes_in += data.len() as u64;
        }
        taken
    }

    fn send_once(&mut self, now: Instant, data: &[u8], label: &Label) -> bool {
        let host = self.schedule.hold_host(label.host);
        let class = self.datagram_class(now, data.len(), label, host);
        if !self.has_way(class) {
            // It would be hours old when its carrier is back.
            self.outbox.dropped += 1;
            self.schedule.hosts.release(host);
            return false;
        }
        let compress = self.may_compress(label.compress);
        self.drop_stale(now, class, host, data.len());
        let queue = self.schedule.packets(class, host);
        let taken = self.outbox.push(now, queue, data, compress);
        if taken {
            self.schedule.on_packet_queued(now, class, host, data.len());
        } else {
            self.schedule.hosts.release(host);
        }
        taken
    }

    /// Those that waited for too long leave their room to what is new; while nothing can be sent,
    /// the oldest do.
    fn drop_stale(&mut self, now: Instant, class: ClassId, host: HostId, len: usize) {
        let is_down = !self.paths.active().up;
        loop {
            let queue = self.schedule.packets(class, host);
            let gives_way = is_down && !queue.is_empty() && !self.outbox.has_room(queue, len);
            if !gives_way && !queue.is_stale(now) {
                return;
            }
            let Some(waiting) = self.outbox.drop_first(queue) else { return };
            self.forget_packet(class, host, waiting);
        }
    }

    /// Drops what waits in classes that have lost their last carrier: it would be hours old when
    /// one is back.
    pub(super) fn drop_stranded(&mut self) {
        let mut any = false;
        while let Some((class, host)) = self.schedule.first_packets(|class| !self.has_way(class)) {
            let queue = self.schedule.packets(class, host);
            let Some(waiting) = self.outbox.drop_first(queue) else { break };
            self.forget_packet(class, host, waiting);
            any = true;
        }
        if any {
            self.schedule.forget_gone(|id| self.streams.contains_key(&id));
        }
    }

    /// A datagram has left its queue.
    pub(super) fn forget_packet(&mut self, class: ClassId, host: HostId, waiting: Waiting) {
        self.schedule.on_packet_left(class, waiting.bytes.len());
        self.outbox.recycle(waiting.bytes);
        self.schedule.hosts.release(host);
    }

    /// What of a packet is worth a try? No payload where the peer does not compress streams
    /// either, nor on a link that is faster.
    fn may_compress(&self, wanted: Compress) -> Compress {
        let all = self.told
            && self.peer.history > 0
            && self.paths.active().pacer.rate() <= PAYLOADS_BELOW;
        if wanted == Compress::All && !all { Compress::Headers } else { wanted }
    }

    // ---- in order ------------------------------------------------------------------

    fn send_in_order(&mut self, now: Instant, data: &[u8], label: &Label) -> bool {
        // In order it would cross however old it is when the line is raised, or its class' carrier
        // is back.
        if !self.paths.active().up || !self.has_way(self.schedule.known(label.class)) {
            self.outbox.dropped += 1;
            return false;
        }
        let id = self.lane(now, label).filter(|id| self.is_usable(*id));
        // A peer that has no room for the stream gets what fits as it is.
        let Some(id) = id else { return self.send_once(now, data, label) };
        let compress = self.may_compress(label.compress);
        let Some(s) = self.streams.get_mut(&id) else { return false };
        let need = data.len() + LENGTH;
        let queue = self.paths.most_in(Duration::from_millis(500));
        let limit = queue.max(2 * MAX_DATAGRAM as u64);
        let memory = (self.config.memory.0 / 2).saturating_sub(self.pool.used());
        let unsent = s.send.unsent() + need as u64;
        let is_full = unsent > limit || need as u64 > memory && unsent > LANE_LEAST;
        if data.is_empty() || data.len() > MAX_DATAGRAM || is_full {
            self.outbox.dropped += 1;
            return false;
        }
        let contexts = LANE_CONTEXTS.min(self.peer.contexts as usize);
        let headers = self.lane_headers.sent(id, contexts);
        let may = compress != Compress::Nothing;
        let head = may.then(|| headers.compress(now, data, compress == Compress::All)).flatten();
        if let Some(head) = head {
            let len = head.len_of(data.len());
            s.send.write(&mut self.pool, &(len as u16 | COMPRESSED).to_be_bytes());
            for piece in [head.bytes(), headers.packed(), &data[head.skips..]] {
                s.send.write(&mut self.pool, piece);
            }
            if let Some(token) = headers.on_left(data, true) {
                headers.on_fate(token, true);
            }
            self.outbox.saved += data.len() as i64 - len as i64;
        } else {
            s.send.write(&mut self.pool, &(data.len() as u16).to_be_bytes());
            s.send.write(&mut self.pool, data);
            headers.on_left(data, false);
        }
        s.open.want();
        self.want_control(id);
        self.make_ready(now, id);
        true
    }

    pub(super) fn is_usable(&self, id: StreamId) -> bool {
        let open = |s: &Stream| s.reset == Delivery::None && s.reset_in.is_none();
        self.streams.get(&id).is_some_and(|s| open(s))
    }

    /// The stream for a packet's class and host.
    pub(super) fn lane(&mut self, now: Instant, label: &Label) -> Option<StreamId> {
        let class = self.schedule.known(label.class);
        let chosen_by = if class.is_strict() { label.chosen_by } else { ChosenBy::Operator };
        let host = self.schedule.hold_host(label.host);
        if let Some(lane) = self.lanes.get_mut(&(class, chosen_by, host)) {
            self.schedule.hosts.release(host);
            lane.used = now;
            return Some(lane.id);
        }
        let mut taken_over = None;
        if self.lanes.len() >= LANES && host != HostId::default() {
            let Some(idle) = self.take_idle_lane(now, (class, chosen_by)) else {
                self.schedule.hosts.release(host);
                return self.lane(now, &Label { host: None, ..*label });
            };
            taken_over = idle;
        }
        let id = match taken_over {
            Some(id) => {
                self.schedule.hosts.hold_again(host);
                if let Some(s) = self.streams.get_mut(&id) {
                    self.schedule.hosts.release(std::mem::replace(&mut s.host, host));
                }
                id
            }
            None => {
                let stream = Stream { host, class, chosen_by, opened: true, ..Stream::default() };
                let id = self.open_stream(stream)?;
                self.schedule.hosts.hold_again(host);
                self.make_lane(id, Carries::Packets);
                id
            }
        };
        self.lanes.insert((class, chosen_by, host), Lane { id, used: now });
        Some(id)
    }

    /// Gives up the place that nobody has used for longest: hosts come and go, and a session may
    /// last for months. `None`: all are in use; else its stream, if that goes on.
    fn take_idle_lane(
        &mut self,
        now: Instant,
        wanted: (ClassId, ChosenBy),
    ) -> Option<Option<StreamId>> {
        let is_idle = |(key, lane): &(&LaneKey, &Lane)| {
            let is_free = match self.streams.get(&lane.id) {
                None => true,
                Some(s) => {
                    let is_wanted = (key.0, key.1) == wanted && self.is_usable(lane.id);
                    is_wanted && s.send.all_acked() && s.send.unsent() == 0
                }
            };
            is_free && now.since(lane.used) >= LANE_IDLE
        };
        let idle = self.lanes.iter().filter(is_idle).min_by_key(|(_, lane)| lane.used);
        let (key, id) = idle.map(|(key, lane)| (*key, lane.id))?;
        self.lanes.remove(&key);
        self.schedule.hosts.release(key.2);
        Some(Some(id).filter(|id| self.streams.contains_key(id)))
    }

    /// The stream is no connection: the user of the link never hears of it.
    pub(super) fn make_lane(&mut self, id: StreamId, carries: Carries) {
        if let Some(s) = self.streams.get_mut(&id)
            && s.carries == Carries::Connection
        {
            (s.carries, s.opened, s.released) = (carries, true, true);
            self.packet_streams += 1;
        }
    }

    /// The peer sends packets in this stream.
    pub(super) fn on_packets(&mut self, now: Instant, id: StreamId) {
        if id.0 & 1 == self.side || !self.peer_stream(now, id) {
            return;
        }
        let Some(s) = self.streams.get(&id) else { return };
        if s.opened || s.reset != Delivery::None {
            return;
        }
        // The lanes of both sides, and the messages of both (L-DD-12).
        if self.packet_streams >= 2 * LANES + 2 {
            self.reset(now, id, ResetReason::Exhausted, false);
            return self.release(now, id);
        }
        self.stats.streams_total -= 1;
        self.make_lane(id, Carries::Packets);
        self.take_packets(now, id);
    }

    /// Takes the packets out of a stream that are there as a whole.
    pub(super) fn take_packets(&mut self, now: Instant, id: StreamId) {
        let mut any = false;
        while let Some(s) = self.streams.get_mut(&id) {
            let readable = s.recv.readable() as usize;
            let mut length = [0; LENGTH];
            if readable < LENGTH || !s.recv.copy_out(&mut length) {
                break;
            }
            let length = u16::from_be_bytes(length);
            let (is_compressed, len) =
                (length & COMPRESSED != 0, usize::from(length & !COMPRESSED));
            let longest = if is_compressed { MAX_DATAGRAM + MAX_HEADER } else { MAX_DATAGRAM };
            if len == 0 || len > longest {
                self.stats.violations += 1;
                return self.reset(now, id, ResetReason::Protocol, false);
            }
            if readable < LENGTH + len {
                break;
            }
            s.recv.consume(&mut self.pool, LENGTH as u64);
            if is_compressed {
                let contexts = LANE_CONTEXTS.min(self.params.contexts as usize);
                let (headers, body) = self.lane_headers.received(id, contexts);
                body.resize(len, 0);
                s.recv.copy_out(body);
                headers.count += 1;
                let (number, from) = (headers.count, &mut headers.decompressor);
                let made = self.inbox.on_compressed(len, |out| from.decompress(number, body, out));
                if made.is_err() {
                    self.stats.violations += 1;
                    return self.reset(now, id, ResetReason::Protocol, false);
                }
            } else {
                self.inbox.on_bytes(len, |out| s.recv.copy_out(out));
            }
            s.recv.consume(&mut self.pool, len as u64);
            any = true;
        }
        if any {
            self.update_recv_over_reserve(id);
            self.queue_credit(now, id);
        }
    }

    /// There is something to take from the stream.
    pub(super) fn on_readable(&mut self, now: Instant, id: StreamId) {
        match self.streams.get(&id) {
            Some(s) if s.carries == Carries::Packets => self.take_packets(now, id),
            Some(s) if s.carries == Carries::Messages => self.tell_messages(id),
            _ => self.tell_readable(id),
        }
    }
}
