//! Unsplit IP packets (R-LLLL, plain class): a bounded queue out, fragments where
//! a packet is larger than a link packet, and bounded reassembly in.

use std::collections::VecDeque;

use squeeze::headers::{Compressor, Token};
use units::{Duration, Instant};

use crate::ranges::RangeSet;
use crate::traffic::Compress;
use crate::wire::{self, FragmentFrame, Frame, Writer};

/// The largest unsplit IP packet.
pub const MAX_DATAGRAM: usize = 9000;
/// Packets in reassembly at once; the oldest gives way.
const REASSEMBLIES: usize = 64;
/// Pieces that arrive further apart belong to a packet that is not coming.
const REASSEMBLY_TIME: Duration = Duration::from_secs(15);
/// Pieces apart from each other of one packet in reassembly: twice as many as the shortest link
/// packets can make of the longest.
const MOST_PIECES: usize = 256;
/// A datagram leaves within this time or not at all: a line is raised in less, and hosts that had
/// no answer have asked again or given up. It matters where the link is slow or was down.
pub const MAX_DATAGRAM_WAIT: Duration = Duration::from_secs(60);
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

/// A datagram on its way out.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Waiting {
    pub bytes: Vec<u8>,
    /// What of it is worth a try to compress it.
    pub compress: Compress,
    /// When it was put into the queue.
    since: Instant,
}

/// Datagrams of one host and class on their way out.
#[derive(Default)]
pub(crate) struct PacketQueue {
    queue: VecDeque<Waiting>,
    bytes: usize,
    /// The head has left as fragments up to here, under this id.
    sent: usize,
    id: u64,
}

impl PacketQueue {
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// The first has waited for so long that nobody waits for it any more, and nothing of it left.
    pub fn is_stale(&self, now: Instant) -> bool {
        let head = self.queue.front().filter(|_| self.sent == 0);
        head.is_some_and(|waiting| now.since(waiting.since) > MAX_DATAGRAM_WAIT)
    }
}

/// What became of a turn of a [`PacketQueue`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Wrote {
    /// It waits for a packet with more room.
    Nothing,
    /// The first datagram was too old.
    Stale(Waiting),
    /// A piece of the first datagram.
    Piece,
    /// The first datagram, or the last piece of it; and the reference that it carries for
    /// others' headers.
    Whole(Waiting, Option<Token>),
}

/// The memory of all queues of datagrams on their way out: a queue that is full drops what
/// comes (drop-tail).
pub(crate) struct Outbox {
    bytes: usize,
    limit: usize,
    next_id: u64,
    buffers: Buffers,
    pub dropped: u64,
    /// Bytes that compression kept off the link: a reference is longer than its packet.
    pub saved: i64,
}

impl Outbox {
    pub fn new(limit: usize) -> Outbox {
        Outbox { bytes: 0, limit, next_id: 0, buffers: Buffers::default(), dropped: 0, saved: 0 }
    }

    /// Takes a datagram; false if it is too large or the queue has more than is free: one
    /// queue alone fills half of the memory, and never leaves others none (dynamic
    /// thresholds, Choudhury and Hahne, 1998).
    pub fn push(
        &mut self,
        now: Instant,
        queue: &mut PacketQueue,
        data: &[u8],
        compress: Compress,
    ) -> bool {
        if data.len() > MAX_DATAGRAM || data.is_empty() || !self.has_room(queue, data.len()) {
            self.dropped += 1;
            return false;
        }
        let mut bytes = self.buffers.take();
        bytes.extend_from_slice(data);
        self.bytes += data.len();
        queue.bytes += data.len();
        queue.queue.push_back(Waiting { bytes, compress, since: now });
        true
    }

    /// Has the queue room for another of this length?
    pub fn has_room(&self, queue: &PacketQueue, len: usize) -> bool {
        let free = self.limit.saturating_sub(self.bytes);
        queue.bytes + len <= free || self.bytes == 0
    }

    /// The memory of a datagram that left.
    pub fn recycle(&mut self, bytes: Vec<u8>) {
        self.buffers.give(bytes);
    }

    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Gives back the memory of datagrams that left.
    pub fn shrink(&mut self) {
        self.buffers = Buffers::default();
    }

    /// Writes the first datagram, or the next piece of it. It is cut only where it does not
    /// fit an empty packet. `headers`: what is known of flows' headers on the path.
    pub fn write(
        &mut self,
        now: Instant,
        queue: &mut PacketQueue,
        headers: &mut Compressor,
        w: &mut Writer<'_>,
        empty_room: usize,
    ) -> Wrote {
        if queue.is_stale(now) {
            return self.drop_first(queue).map_or(Wrote::Nothing, Wrote::Stale);
        }
        let Some(waiting) = queue.queue.front() else { return Wrote::Nothing };
        let head = &waiting.bytes;
        let all = waiting.compress == Compress::All;
        if waiting.compress == Compress::Nothing {
            // Another queue's packet was prepared, and found no room: this one is not it.
            headers.forget_prepared();
        }
        if queue.sent == 0
            && waiting.compress != Compress::Nothing
            && let Some(compressed) = headers.compress(now, head, all)
        {
            let len = compressed.len_of(head.len());
            if len < w.room() {
                w.headers_head(len);
                let pieces = [compressed.bytes(), headers.packed(), &head[compressed.skips..]];
                let mut room = w.reserve(len);
                for piece in pieces {
                    let (first, rest) = room.split_at_mut(piece.len());
                    first.copy_from_slice(piece);
                    room = rest;
                }
                let token = headers.on_left(head, true);
                self.saved += head.len() as i64 - len as i64;
                return self.pop(queue, token);
            }
            // As it is it is longer, unless it was to become a reference.
            if len < empty_room && compressed.skips > 0 {
                return Wrote::Nothing;
            }
        }
        let whole = wire::frame_len(&Frame::Datagram(head));
        if queue.sent == 0 && whole <= w.room() {
            w.put(&Frame::Datagram(head));
            return self.pop_as_it_is(queue, headers);
        }
        if queue.sent == 0 && head.len() < empty_room {
            if head.len() < w.room() {
                // Fits without a length field.
                w.datagram_head();
                w.reserve(head.len()).copy_from_slice(head);
                return self.pop_as_it_is(queue, headers);
            }
            return Wrote::Nothing;
        }
        if queue.sent == 0 {
            queue.id = self.next_id;
        }
        let frame = FragmentFrame {
            id: queue.id,
            total: head.len() as u64,
            offset: queue.sent as u64,
            data: &[],
        };
        let overhead = wire::frame_len(&Frame::Fragment(frame)) + 1;
        // A short piece would only cost headers: wait for the next packet.
        let room = w.room().saturating_sub(overhead);
        let is_short = room < 64 && room < head.len() - queue.sent && w.room() < empty_room;
        if is_short || room == 0 {
            return Wrote::Nothing;
        }
        let n = room.min(head.len() - queue.sent);
        let data = &head[queue.sent..queue.sent + n];
        if !w.put(&Frame::Fragment(FragmentFrame { data, ..frame })) {
            return Wrote::Nothing;
        }
        if queue.sent == 0 {
            // Pieces of several datagrams may leave in turns.
            self.next_id += 1;
            headers.on_left(head, false);
        }
        queue.sent += n;
        if queue.sent < head.len() {
            return Wrote::Piece;
        }
        self.pop(queue, None)
    }

    /// The first datagram has left with its headers as they are.
    fn pop_as_it_is(&mut self, queue: &mut PacketQueue, headers: &mut Compressor) -> Wrote {
        if let Some(head) = queue.queue.front() {
            headers.on_left(&head.bytes, false);
        }
        self.pop(queue, None)
    }

    fn pop(&mut self, queue: &mut PacketQueue, token: Option<Token>) -> Wrote {
        self.take_first(queue).map_or(Wrote::Nothing, |waiting| Wrote::Whole(waiting, token))
    }

    /// Drops the first datagram of a queue.
    pub fn drop_first(&mut self, queue: &mut PacketQueue) -> Option<Waiting> {
        let waiting = self.take_first(queue)?;
        self.dropped += 1;
        Some(waiting)
    }

    fn take_first(&mut self, queue: &mut PacketQueue) -> Option<Waiting> {
        queue.sent = 0;
        let waiting = queue.queue.pop_front()?;
        self.bytes -= waiting.bytes.len();
        queue.bytes -= waiting.bytes.len();
        Some(waiting)
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
    /// Bytes that compression kept off the link.
    pub saved: i64,
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
            saved: 0,
        }
    }

    /// Gives back the memory of datagrams that were taken, and of pieces whose others did not come.
    pub fn shrink(&mut self) {
        self.buffers = Buffers::default();
        self.assemblies = VecDeque::new();
        if self.ready.is_empty() {
            self.ready = VecDeque::new();
        }
    }

    pub fn on_datagram(&mut self, data: &[u8]) {
        let mut buf = self.buffers.take();
        buf.extend_from_slice(data);
        self.deliver(buf);
    }

    /// A datagram came as `compressed` bytes, of which `make` makes it again.
    pub fn on_compressed<E>(
        &mut self,
        compressed: usize,
        make: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut buf = self.buffers.take();
        let made = make(&mut buf);
        if made.is_err() {
            self.buffers.give(buf);
            return made;
        }
        self.saved += buf.len() as i64 - compressed as i64;
        self.deliver(buf);
        made
    }

    /// A datagram of `len` bytes is there to be copied.
    pub fn on_bytes(&mut self, len: usize, copy: impl FnOnce(&mut [u8]) -> bool) {
        let mut buf = self.buffers.take();
        buf.resize(len, 0);
        copy(&mut buf);
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
        if f.total > MAX_DATAGRAM as u64 {
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
        if assembly.got.len() >= MOST_PIECES {
            // No losses make so many holes in it; the places of more would cost more than it.
            return;
        }
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

    fn cross(
        out: &mut (Outbox, PacketQueue),
        inbox: &mut Inbox,
        room: usize,
        lose: impl Fn(usize) -> bool,
    ) {
        let mut n = 0;
        loop {
            let mut buf = vec![0; room];
            let mut w = Writer::new(&mut buf);
            while out.0.write(Instant::ZERO, &mut out.1, &mut Compressor::new(0), &mut w, room)
                != Wrote::Nothing
            {}
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

    fn queue(limit: usize) -> (Outbox, PacketQueue) {
        (Outbox::new(limit), PacketQueue::default())
    }

    fn packet(len: usize, fill: u8) -> Vec<u8> {
        (0..len).map(|i| (i as u8).wrapping_add(fill)).collect()
    }

    #[test]
    fn datagrams_of_every_size_cross_packets_of_every_size() {
        for room in [40, 100, 128, 700, 1451] {
            let (mut out, mut inbox) = (queue(1 << 20), Inbox::new(1 << 20));
            let sizes = [1, 20, room - 2, room - 1, room, room + 1, 1500, 9000];
            for (i, size) in sizes.into_iter().enumerate() {
                assert!(out.0.push(
                    Instant::ZERO,
                    &mut out.1,
                    &packet(size, i as u8),
                    Compress::Headers
                ));
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
        let (mut out, mut inbox) = (queue(100 << 20), Inbox::new(1 << 20));
        for i in 0..500 {
            assert!(out.0.push(
                Instant::ZERO,
                &mut out.1,
                &packet(1500, i as u8),
                Compress::Headers
            ));
        }
        cross(&mut out, &mut inbox, 800, |n| n % 7 == 0);
        let mut whole = 0;
        while inbox.pop(|d| whole += usize::from(d.len() == 1500)) {}
        assert!(whole > 200, "{whole}");
        assert!(inbox.assemblies.len() <= REASSEMBLIES);
    }

    #[test]
    fn a_full_queue_drops_and_counts_and_leaves_others_room() {
        let (mut out, mut flood) = queue(6000);
        assert!(
            out.push(Instant::ZERO, &mut flood, &packet(1500, 0), Compress::Headers)
                && out.push(Instant::ZERO, &mut flood, &packet(1500, 0), Compress::Headers)
        );
        assert!(!out.push(Instant::ZERO, &mut flood, &packet(1500, 0), Compress::Headers));
        let mut other = PacketQueue::default();
        assert!(out.push(Instant::ZERO, &mut other, &packet(1500, 0), Compress::Headers));
        assert!(!out.push(
            Instant::ZERO,
            &mut other,
            &packet(MAX_DATAGRAM + 1, 0),
            Compress::Headers
        ));
        assert_eq!(out.dropped, 2);
        let (mut small, mut first) = queue(1000);
        assert!(
            small.push(Instant::ZERO, &mut first, &packet(MAX_DATAGRAM, 0), Compress::Headers),
            "an empty one takes any"
        );
    }

    #[test]
    fn pieces_of_two_queues_in_turns_make_two_datagrams() {
        let (mut out, mut a) = queue(1 << 20);
        let mut b = PacketQueue::default();
        assert!(
            out.push(Instant::ZERO, &mut a, &packet(4000, 1), Compress::Headers)
                && out.push(Instant::ZERO, &mut b, &packet(4000, 2), Compress::Headers)
        );
        let mut inbox = Inbox::new(1 << 20);
        while !out.is_empty() {
            for queue in [&mut a, &mut b] {
                let mut buf = vec![0; 700];
                let mut w = Writer::new(&mut buf);
                out.write(Instant::ZERO, queue, &mut Compressor::new(0), &mut w, 700);
                let len = w.len();
                let mut r = Reader::new(&buf[..len]);
                while let Some(Frame::Fragment(f)) = r.frame().unwrap() {
                    inbox.on_fragment(Instant::ZERO, &f);
                }
            }
        }
        let mut got = vec![];
        while inbox.pop(|d| got.push(d.to_vec())) {}
        assert_eq!(got, [packet(4000, 1), packet(4000, 2)]);
    }

    /// Nor does one whose headers stay as they are say anything of one that found no room before
    /// it.
    #[test]
    fn a_packet_that_is_left_as_it_is_says_nothing_of_another_queues() {
        let (mut out, mut a) = queue(1 << 20);
        let mut b = PacketQueue::default();
        let mut headers = Compressor::new(16);
        let mut long = of_tcp(90);
        for n in 0..20 {
            long[47] = n;
            assert!(out.push(Instant::ZERO, &mut a, &long, Compress::All));
            for short in [29, 200] {
                let as_it_is = packet(short, n);
                assert!(out.push(Instant::ZERO, &mut b, &as_it_is, Compress::Nothing));
                let (mut little, mut much) = (vec![0; 8], vec![0; 300]);
                let mut w = Writer::new(&mut little);
                let wrote = out.write(Instant::ZERO, &mut a, &mut headers, &mut w, 300);
                assert!(matches!(wrote, Wrote::Nothing));
                let mut w = Writer::new(&mut much);
                let wrote = out.write(Instant::ZERO, &mut b, &mut headers, &mut w, 300);
                assert!(matches!(wrote, Wrote::Whole(..)));
            }
            let mut buf = vec![0; 300];
            let mut w = Writer::new(&mut buf);
            let wrote = out.write(Instant::ZERO, &mut a, &mut headers, &mut w, 300);
            let Wrote::Whole(_, token) = wrote else { panic!("it has room now") };
            let len = w.len();
            token.into_iter().for_each(|token| headers.on_fate(token, true));
            assert!(n < 4 || len < 60, "{n}: {len} bytes of {}", long.len());
        }
    }

    /// IPv6 with TCP and timestamps, whose fields end at 72.
    fn of_tcp(len: usize) -> Vec<u8> {
        let mut packet = packet(len, 0);
        packet[0] = 0x60;
        packet[4..8].copy_from_slice(&[0, len as u8 - 40, 6, 60]);
        (packet[52], packet[60], packet[61], packet[62], packet[63]) = (0x80, 1, 1, 8, 10);
        packet
    }

    /// A packet that leaves in pieces says nothing of another's flow, however short it is.
    #[test]
    fn headers_of_one_queue_and_pieces_of_another_do_not_meet() {
        let (mut out, mut a) = queue(1 << 20);
        let (mut b, room) = (PacketQueue::default(), 55);
        let mut headers = Compressor::new(16);
        let mut inbox = Inbox::new(1 << 20);
        // It is cut as well.
        let mut long = of_tcp(90);
        for n in 0..20 {
            long[47] = n;
            assert!(
                out.push(Instant::ZERO, &mut b, &long, Compress::All)
                    && out.push(Instant::ZERO, &mut a, &packet(58, n), Compress::All)
            );
            while !out.is_empty() {
                for queue in [&mut a, &mut b] {
                    let mut buf = vec![0; room];
                    let mut w = Writer::new(&mut buf);
                    out.write(Instant::ZERO, queue, &mut headers, &mut w, room);
                    let len = w.len();
                    let mut r = Reader::new(&buf[..len]);
                    while let Some(frame) = r.frame().unwrap() {
                        if let Frame::Fragment(f) = frame {
                            inbox.on_fragment(Instant::ZERO, &f);
                        }
                    }
                }
            }
        }
        let mut got = 0;
        while inbox.pop(|_| got += 1) {}
        assert!(got >= 20, "{got}");
    }
}
