//! Unsplit IP packets (R-LLLL, plain class): a bounded queue out, fragments where
//! a packet is larger than a link packet, and bounded reassembly in.

use std::collections::VecDeque;

use units::{Duration, Instant};

use crate::ranges::RangeSet;
use crate::wire::{self, FragmentFrame, Frame, Writer};

/// The largest unsplit IP packet.
pub const MAX_DATAGRAM: usize = 9000;
/// Packets in reassembly at once; the oldest gives way.
const REASSEMBLIES: usize = 64;
/// Pieces that arrive further apart belong to a packet that is not coming.
const REASSEMBLY_TIME: Duration = Duration::from_secs(15);
/// Buffers kept for reuse in each direction.
const KEPT: usize = 32;

/// Buffers for IP packets.
#[derive(Default)]
struct Buffers(Vec<Vec<u8>>);

impl Buffers {
    fn take(&mut self) -> Vec<u8> {
        self.0.pop().unwrap_or_default()
    }
    fn give(&mut self, mut buf: Vec<u8>) {
        if self.0.len() < KEPT {
            buf.clear();
            self.0.push(buf);
        }
    }
}

/// Datagrams on their way out, drop-tail.
pub(crate) struct Outbox {
    queue: VecDeque<Vec<u8>>,
    bytes: usize,
    limit: usize,
    /// The head has left as fragments up to here.
    sent: usize,
    next_id: u64,
    buffers: Buffers,
    pub dropped: u64,
}

impl Outbox {
    pub fn new(limit: usize) -> Outbox {
        Outbox {
            queue: VecDeque::new(),
            bytes: 0,
            limit,
            sent: 0,
            next_id: 0,
            buffers: Buffers::default(),
            dropped: 0,
        }
    }

    /// Takes a datagram; false if the queue is full or it is too large.
    pub fn push(&mut self, data: &[u8]) -> bool {
        if data.len() > MAX_DATAGRAM || data.is_empty() || self.bytes + data.len() > self.limit {
            self.dropped += 1;
            return false;
        }
        let mut buf = self.buffers.take();
        buf.extend_from_slice(data);
        self.bytes += data.len();
        self.queue.push_back(buf);
        true
    }

    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Writes the next datagram, or the next piece of it; answers whether anything
    /// was written. A datagram is cut only where it does not fit an empty packet.
    pub fn write(&mut self, w: &mut Writer<'_>, empty_room: usize) -> bool {
        let Some(head) = self.queue.front() else { return false };
        let whole = wire::frame_len(&Frame::Datagram(head));
        if self.sent == 0 && whole <= w.room() {
            w.put(&Frame::Datagram(head));
            self.pop();
            return true;
        }
        if self.sent == 0 && head.len() < empty_room {
            if head.len() < w.room() {
                // Fits without a length field.
                w.datagram_head();
                w.reserve(head.len()).copy_from_slice(head);
                self.pop();
                return true;
            }
            return false;
        }
        let frame = FragmentFrame {
            id: self.next_id,
            total: head.len() as u64,
            offset: self.sent as u64,
            data: &[],
        };
        let overhead = wire::frame_len(&Frame::Fragment(frame)) + 1;
        // A short piece would only cost headers: wait for the next packet.
        let room = w.room().saturating_sub(overhead);
        let is_short = room < 64 && room < head.len() - self.sent && w.room() < empty_room;
        if is_short || room == 0 {
            return false;
        }
        let n = room.min(head.len() - self.sent);
        let data = &head[self.sent..self.sent + n];
        if !w.put(&Frame::Fragment(FragmentFrame { data, ..frame })) {
            return false;
        }
        self.sent += n;
        if self.sent == head.len() {
            self.next_id += 1;
            self.pop();
        }
        true
    }

    fn pop(&mut self) {
        if let Some(buf) = self.queue.pop_front() {
            self.bytes -= buf.len();
            self.buffers.give(buf);
        }
        self.sent = 0;
    }
}

struct Assembly {
    id: u64,
    buf: Vec<u8>,
    got: RangeSet,
    last: Instant,
}

/// Datagrams that arrived.
pub(crate) struct Inbox {
    ready: VecDeque<Vec<u8>>,
    bytes: usize,
    limit: usize,
    assemblies: VecDeque<Assembly>,
    buffers: Buffers,
    pub dropped: u64,
}

impl Inbox {
    pub fn new(limit: usize) -> Inbox {
        Inbox {
            ready: VecDeque::new(),
            bytes: 0,
            limit,
            assemblies: VecDeque::new(),
            buffers: Buffers::default(),
            dropped: 0,
        }
    }

    pub fn on_datagram(&mut self, data: &[u8]) {
        let mut buf = self.buffers.take();
        buf.extend_from_slice(data);
        self.deliver(buf);
    }

    fn deliver(&mut self, buf: Vec<u8>) {
        if buf.is_empty() || buf.len() > MAX_DATAGRAM || self.bytes + buf.len() > self.limit {
            self.dropped += 1;
            return self.buffers.give(buf);
        }
        self.bytes += buf.len();
        self.ready.push_back(buf);
    }

    pub fn on_fragment(&mut self, now: Instant, f: &FragmentFrame<'_>) {
        if f.total as usize > MAX_DATAGRAM {
            self.dropped += 1;
            return;
        }
        while self.assemblies.front().is_some_and(|a| now.since(a.last) > REASSEMBLY_TIME) {
            self.abandon_oldest();
        }
        let total = f.total as usize;
        let at = match self.assemblies.iter().position(|a| a.id == f.id) {
            Some(at) if self.assemblies[at].buf.len() == total => at,
            Some(_) => return,
            None => {
                if self.assemblies.len() >= REASSEMBLIES {
                    self.abandon_oldest();
                }
                let mut buf = self.buffers.take();
                buf.resize(total, 0);
                let got = RangeSet::default();
                self.assemblies.push_back(Assembly { id: f.id, buf, got, last: now });
                self.assemblies.len() - 1
            }
        };
        let assembly = &mut self.assemblies[at];
        let (start, end) = (f.offset as usize, f.offset as usize + f.data.len());
        assembly.buf[start..end].copy_from_slice(f.data);
        assembly.got.insert(f.offset..end as u64);
        assembly.last = now;
        if assembly.got.first() == Some(0..f.total)
            && let Some(done) = self.assemblies.remove(at)
        {
            self.deliver(done.buf);
        }
    }

    fn abandon_oldest(&mut self) {
        if let Some(a) = self.assemblies.pop_front() {
            self.dropped += 1;
            self.buffers.give(a.buf);
        }
    }

    /// Lends the next datagram to `take`; false if there is none.
    pub fn pop(&mut self, take: impl FnOnce(&mut [u8])) -> bool {
        let Some(mut buf) = self.ready.pop_front() else { return false };
        self.bytes -= buf.len();
        take(&mut buf);
        self.buffers.give(buf);
        true
    }

    pub fn is_empty(&self) -> bool {
        self.ready.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Reader;

    fn cross(out: &mut Outbox, inbox: &mut Inbox, room: usize, lose: impl Fn(usize) -> bool) {
        let mut n = 0;
        loop {
            let mut buf = vec![0; room];
            let mut w = Writer::new(&mut buf);
            while out.write(&mut w, room) {}
            let len = w.len();
            if len == 0 {
                return;
            }
            n += 1;
            if lose(n) {
                continue;
            }
            let mut r = Reader::new(&buf[..len]);
            while let Some(frame) = r.frame().expect("what we wrote can be read") {
                match frame {
                    Frame::Datagram(d) => inbox.on_datagram(d),
                    Frame::Fragment(f) => inbox.on_fragment(Instant::ZERO, &f),
                    other => panic!("unexpected {other:?}"),
                }
            }
        }
    }

    fn packet(len: usize, fill: u8) -> Vec<u8> {
        (0..len).map(|i| (i as u8).wrapping_add(fill)).collect()
    }

    #[test]
    fn datagrams_of_every_size_cross_packets_of_every_size() {
        for room in [40, 100, 128, 700, 1451] {
            let (mut out, mut inbox) = (Outbox::new(1 << 20), Inbox::new(1 << 20));
            let sizes = [1, 20, room - 2, room - 1, room, room + 1, 1500, 9000];
            for (i, size) in sizes.into_iter().enumerate() {
                assert!(out.push(&packet(size, i as u8)));
            }
            cross(&mut out, &mut inbox, room, |_| false);
            let mut got = vec![];
            while inbox.pop(|d| got.push(d.to_vec())) {}
            got.sort_by_key(|d| d.len());
            let mut want: Vec<_> =
                sizes.into_iter().enumerate().map(|(i, s)| packet(s, i as u8)).collect();
            want.sort_by_key(|d| d.len());
            assert_eq!(got, want, "room {room}");
        }
    }

    #[test]
    fn a_lost_piece_loses_its_packet_only_and_memory_stays_bounded() {
        let (mut out, mut inbox) = (Outbox::new(100 << 20), Inbox::new(1 << 20));
        for i in 0..500 {
            assert!(out.push(&packet(1500, i as u8)));
        }
        cross(&mut out, &mut inbox, 800, |n| n % 7 == 0);
        let mut whole = 0;
        while inbox.pop(|d| whole += usize::from(d.len() == 1500)) {}
        assert!(whole > 200, "{whole}");
        assert!(inbox.assemblies.len() <= REASSEMBLIES);
    }

    #[test]
    fn a_full_queue_drops_and_counts() {
        let mut out = Outbox::new(3000);
        assert!(out.push(&packet(1500, 0)) && out.push(&packet(1500, 0)));
        assert!(!out.push(&packet(1500, 0)));
        assert!(!Outbox::new(1 << 20).push(&packet(MAX_DATAGRAM + 1, 0)));
        assert_eq!(out.dropped, 1);
    }
}
