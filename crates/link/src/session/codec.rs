//! The session's part in the codec of streams, which is its user's (L-CO-1). The session says how
//! streams are compressed, and asks for bytes as late as the link allows: until then they stay
//! with the host, so that a block is made of all that there are. It also keeps the credit of
//! streams that refer to chunks (L-DD-13).

use units::{Duration, Instant};

use super::event::Event;
use super::state::Session;
use crate::stream::Delivery;
use crate::wire::StreamId;

/// How the streams of a session are compressed and deduplicated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamCodec {
    /// History that all streams together may make the peer keep; 0: they are not compressed.
    pub history: u64,
    /// History that the peer's streams may make this node keep.
    pub own_history: u64,
    /// The longest block: the peer's reserve, which arrives whatever other streams hold there.
    pub longest: u64,
    /// Content becomes items (L-DD-11).
    pub dedup: bool,
    /// How much content a direction may have outstanding as references (L-DD-8).
    pub window: u64,
}

impl StreamCodec {
    /// Are streams compressed or deduplicated?
    pub fn is_active(&self) -> bool {
        self.history > 0 || self.dedup
    }
}

/// Content of the longest chunk.
const MOST_OF_ONE: u64 = 32 * 1024;
/// Less room than this is none: a short block and its head might not fit.
const LEAST_ROOM: u64 = 1024;

impl Session {
    /// How streams are compressed; `None` until the peer's parameters are known.
    pub fn codec(&self) -> Option<StreamCodec> {
        // The peer's parameters count as far as this node does the same (Params::limited).
        let plain = self.params.history == 0 && self.params.dedup == 0;
        (self.told || plain).then_some(StreamCodec {
            history: self.peer.history,
            own_history: self.params.history,
            longest: self.peer.reserve,
            dedup: self.peer.dedup == 1,
            window: self.peer.stream_window,
        })
    }

    /// Like [`Session::writable_bytes`], for a stream with a codec: 0 while the bytes that are
    /// written already keep the link busy, so that what is compressed next is all that came until
    /// then. Nothing is gained by that where the next bytes go `as_they_are`: these fill nearly all
    /// of what may be unsent, because a turn for each few of them costs more processor time.
    pub fn writable_for_codec(&mut self, id: StreamId, as_they_are: bool) -> u64 {
        let cap = self.unsent_cap_of(id);
        let low = if as_they_are { cap - cap / 16 } else { self.low_water() };
        // What is said to have room has enough for a block.
        let low = low.min(cap.saturating_sub(LEAST_ROOM));
        let told = self.told;
        match self.streams.get_mut(&id) {
            Some(s) if !s.local_end && s.reset_in.is_none() => {
                s.has_codec = true;
                let full = !told || s.send.unsent() > low || s.send.unsent() >= cap;
                s.wants_writable |= full;
                s.has_more |= full;
                if full { 0 } else { cap - s.send.unsent() }
            }
            _ => 0,
        }
    }

    /// Takes all of `data`, which [`Session::writable_for_codec`] had room for.
    pub fn write_compressed(&mut self, now: Instant, id: StreamId, data: &[u8]) {
        let Some(s) = self.streams.get_mut(&id) else { return };
        if s.local_end || s.reset_in.is_some() || data.is_empty() {
            return;
        }
        s.send.write(&mut self.pool, data);
        s.has_more = false;
        self.stats.stream_bytes_in += data.len() as u64;
        self.start_open(id);
        self.make_ready(now, id);
    }

    /// Have all bytes that will ever come of the stream arrived?
    pub fn is_complete(&self, id: StreamId) -> bool {
        self.streams.get(&id).is_some_and(|s| {
            let end = s.reset_in.map(|(_, end)| end).or(s.fin_in);
            end.is_some_and(|end| s.recv.consumed() + s.recv.readable() >= end)
        })
    }

    /// Would bytes that are written to the stream be sent: has neither side ended or reset it?
    pub fn takes_bytes(&self, id: StreamId) -> bool {
        self.streams.get(&id).is_some_and(|s| !s.local_end && s.reset_in.is_none())
    }

    /// The peer gave the stream up.
    pub fn is_reset_by_peer(&self, id: StreamId) -> bool {
        self.streams.get(&id).is_some_and(|s| s.reset_in.is_some())
    }

    /// More bytes of a stream with a codec are asked for when so few are unsent: 20 ms of the link,
    /// and at least two packets, which leave before the user of the link has its turn.
    pub(super) fn low_water(&self) -> u64 {
        let local = self.paths.most_in(Duration::from_millis(20));
        local.max(2 * u64::from(self.config.packet)).min(self.unsent_cap() / 2)
    }

    /// Streams that waited for the peer's parameters can be written.
    pub(super) fn wake_codec_streams(&mut self) {
        let is_active = self.codec().is_some_and(|codec| codec.is_active());
        for (id, s) in &mut self.streams {
            if s.has_codec && std::mem::take(&mut s.wants_writable) {
                self.events.push_back(Event::Writable(*id));
            }
            s.has_codec &= is_active;
        }
    }

    // ---- streams that refer to chunks ------------------------------------------------

    /// Our direction of the stream refers to chunks. From now on [`Event::Writable`] also tells
    /// that credit came, and the stream stays until the peer has taken all of it (L-DD-13).
    pub fn mark_referring(&mut self, id: StreamId) {
        if let Some(s) = self.streams.get_mut(&id) {
            s.refers = true;
        }
    }

    /// The peer's direction of the stream refers to chunks: credit is sent to its end (L-DD-13).
    pub fn mark_referred(&mut self, id: StreamId) {
        if let Some(s) = self.streams.get_mut(&id) {
            s.is_referred = true;
        }
    }

    /// Our reader took `content` bytes of chunks that the stream refers to. They count for when
    /// credit is sent (L-CR-1). [`Session::consume`] follows with the last byte of a reference.
    /// A stream of which more is under way than may be (L-DD-8) is reset: else a packet of
    /// references to one chunk would be hundreds of megabytes for a server.
    pub fn took_referred(&mut self, now: Instant, id: StreamId, content: u64) {
        let most = self.params.stream_window + MOST_OF_ONE;
        let Some(s) = self.streams.get_mut(&id) else { return };
        for count in [&mut s.referred_taken, &mut s.referred_open, &mut s.referred_ahead] {
            *count = count.saturating_add(content);
        }
        if s.referred_open > most && s.reset == Delivery::None {
            self.stats.violations += 1;
            self.give_up_on(now, id);
        }
    }

    /// Asks for one [`Event::Writable`] when all bytes that were written to the stream have left.
    pub fn tell_idle(&mut self, id: StreamId) {
        if let Some(s) = self.streams.get_mut(&id) {
            s.wants_idle = true;
        }
    }

    /// The peer's reader has taken all of our bytes below this; `None`: the stream is over.
    pub fn taken(&self, id: StreamId) -> Option<u64> {
        self.streams.get(&id).map(|s| s.peer_consumed)
    }

    /// How many bytes were written to the stream so far, and how many of them have not left.
    pub fn written(&self, id: StreamId) -> (u64, u64) {
        self.streams.get(&id).map_or((0, 0), |s| (s.send.end(), s.send.unsent()))
    }
}
