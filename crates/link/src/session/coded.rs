//! What a session does for streams whose bytes are coded by its user (L-CO-1): it says
//! whether they are, and asks for bytes as late as the link allows. What is not asked for
//! stays with the host, so that a block is made of all that there is. And what streams that refer
//! to chunks need of credit (L-DD-13).

use units::{Duration, Instant};

use super::{Event, Session};
use crate::wire::StreamId;

/// How the streams of a session are coded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Coding {
    /// History that all streams together may make the peer keep; 0: they are not coded.
    pub history: u64,
    /// History that the peer's streams may make this node keep.
    pub own_history: u64,
    /// What of a stream reaches the peer whatever others hold there.
    pub longest: u64,
    /// Content becomes items (L-DD-11).
    pub dedup: bool,
    /// How much content a direction may have under way as references (L-DD-8).
    pub window: u64,
}

impl Coding {
    /// Is there anything that becomes of streams' bytes?
    pub fn is_coded(&self) -> bool {
        self.history > 0 || self.dedup
    }
}

impl Session {
    /// How streams are coded; `None` until the peer has told what it takes.
    pub fn coding(&self) -> Option<Coding> {
        // What the peer tells is taken up as far as this node does the same (Params::limited).
        let plain = self.params.history == 0 && self.params.dedup == 0;
        (self.told || plain).then_some(Coding {
            history: self.peer.history,
            own_history: self.params.history,
            longest: self.peer.reserve,
            dedup: self.peer.dedup == 1,
            window: self.peer.stream_window,
        })
    }

    /// Like [`Session::writable_bytes`], for a coded stream: 0 while what it has written keeps
    /// the link busy.
    pub fn writable_for_codec(&mut self, id: StreamId) -> u64 {
        let (cap, low) = (self.unsent_cap(), self.low_water());
        let told = self.told;
        match self.streams.get_mut(&id) {
            Some(s) if !s.local_end && s.reset_in.is_none() => {
                s.coded = true;
                let full = !told || s.send.unsent() > low;
                s.wants_writable |= full;
                s.has_more |= full;
                if full { 0 } else { cap.saturating_sub(s.send.unsent()) }
            }
            _ => 0,
        }
    }

    /// Takes all of `data`, which [`Session::writable_for_codec`] had room for.
    pub fn write_coded(&mut self, now: Instant, id: StreamId, data: &[u8]) {
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

    /// All that will ever come of the stream is there to be taken.
    pub fn is_complete(&self, id: StreamId) -> bool {
        self.streams.get(&id).is_some_and(|s| {
            let end = s.reset_in.map(|(_, end)| end).or(s.fin_in);
            end.is_some_and(|end| s.recv.consumed() + s.recv.readable() >= end)
        })
    }

    /// Bytes that are written to the stream go somewhere: neither side has ended the direction
    /// or given it up.
    pub fn takes_bytes(&self, id: StreamId) -> bool {
        self.streams.get(&id).is_some_and(|s| !s.local_end && s.reset_in.is_none())
    }

    /// The peer gave the stream up.
    pub fn is_reset_by_peer(&self, id: StreamId) -> bool {
        self.streams.get(&id).is_some_and(|s| s.reset_in.is_some())
    }

    /// Unsent bytes of a coded stream at which more are asked for: 20 ms of the link, and
    /// what leaves before the user of the link has its turn, two packets, so that neither
    /// is short.
    pub(super) fn low_water(&self) -> u64 {
        let local = self.paths.active().pacer.rate().bytes_in(Duration::from_millis(20)).0;
        local.max(2 * u64::from(self.config.packet)).min(self.unsent_cap() / 2)
    }

    /// Streams that waited for the peer's parameters can be written.
    pub(super) fn wake_coded(&mut self) {
        let is_coded = self.coding().is_some_and(|coding| coding.is_coded());
        for (id, s) in &mut self.streams {
            if s.coded && std::mem::take(&mut s.wants_writable) {
                self.events.push_back(Event::Writable(*id));
            }
            s.coded &= is_coded;
        }
    }

    // ---- streams that refer to chunks ------------------------------------------------

    /// Our direction of the stream refers to chunks: from now on [`Event::Writable`] tells
    /// also that credit came, and the stream stays until all of it was taken (L-DD-13).
    pub fn mark_referring(&mut self, id: StreamId) {
        if let Some(s) = self.streams.get_mut(&id) {
            s.refers = true;
        }
    }

    /// The peer's direction of the stream refers to chunks of which none was taken yet: the
    /// peer is told of all that is taken, to the end.
    pub fn mark_referred(&mut self, id: StreamId) {
        if let Some(s) = self.streams.get_mut(&id) {
            s.is_referred = true;
        }
    }

    /// Our reader took content of chunks that the stream refers to, which counts for when credit
    /// is told (L-CR-1). [`Session::consume`] follows where it was the last of its reference.
    pub fn took_referred(&mut self, id: StreamId, content: u64) {
        if let Some(s) = self.streams.get_mut(&id) {
            s.referred_taken = s.referred_taken.saturating_add(content);
        }
    }

    /// Tells by [`Event::Writable`], once, when all that was written to the stream has left.
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
