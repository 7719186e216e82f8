//! Several paths at once: streams' bytes go by all that are alive (L-PT-12).
//!
//! The active path, here the fastest, carries what it carries alone, and takes streams as their
//! turns come. Another takes a packet of a stream only where that arrives no later than if it
//! had waited for the active one: so much of the stream must wait that the active path
//! is busy with it until then. What somebody waits for, what is small and what was lost never
//! leaves the fastest.

use units::{BitRate, ByteCount, Duration, Instant};

use super::path::Path;
use super::paths::Paths;
use super::schedule::Turn;
use super::state::Session;
use crate::traffic::{ClassId, HostId};
use crate::wire::{StreamId, Writer};

/// The most that waits in a stream for the sake of other paths.
const MOST_WAITING: u64 = 4 << 20;

impl Paths {
    /// Does this path carry streams' bytes beside the active one?
    pub fn shares(&self, at: usize) -> bool {
        let path = &self[at];
        self.spread && at != self.active_at() && path.is_carrying() && !path.holds_back()
    }

    /// Of those that carry streams' bytes the one whose packets are told of last.
    pub fn slowest(&self) -> &Path {
        let active = self.active();
        if self.is_single() {
            return active;
        }
        let carries = |at: &usize| self.shares(*at) || self[*at].carries_classes;
        let all = (0..self.len()).filter(carries).map(|at| &self[at]);
        all.chain([active]).max_by_key(|p| p.rtt.smoothed()).unwrap_or(active)
    }

    /// The most bytes that one of those which carry streams' bytes sends in a time.
    pub fn most_in(&self, time: Duration) -> u64 {
        let active = self.active().pacer.rate();
        let others = self.iter().filter(|p| p.carries_classes).map(|p| p.pacer.rate());
        others.fold(active, BitRate::max).bytes_in(time).0
    }

    /// Bytes that the active path sends before what leaves now on this one arrives.
    fn behind(&self, at: usize) -> u64 {
        let trip = |p: &Path| p.rtt.smoothed().divided_by(2);
        let (active, other) = (self.active(), &self[at]);
        let later: Duration = trip(other) - trip(active);
        active.pacer.rate().bytes_in(later).0
    }

    /// Bytes of a stream that are to wait, so that all paths are used.
    pub fn most_waiting(&self) -> u64 {
        if !self.spread {
            return 0;
        }
        let shared = (0..self.len()).filter(|at| self.shares(*at));
        let rate = |p: &Path| p.pacer.rate().bytes_in(Duration::from_millis(20)).0;
        // A stream is filled again when half of it has left.
        let most = shared.map(|at| 3 * self.behind(at) + 2 * rate(&self[at])).max();
        most.unwrap_or(0).min(MOST_WAITING)
    }
}

impl Session {
    /// All paths that are alive carry streams' bytes from now on, or the best alone.
    pub fn set_spread(&mut self, now: Instant, spread: bool) {
        self.paths.spread = spread;
        self.follow_paths(now);
    }

    /// Would a packet of the stream arrive on this path before the active one comes to it?
    fn fits_path(&self, now: Instant, id: StreamId, least: u64) -> bool {
        let Some(s) = self.streams.get(&id) else { return false };
        s.send.available(self.send_limit(now, s)) > least && !s.send.has_lost()
    }

    fn find_spread(&self, now: Instant, at: usize) -> Option<(ClassId, HostId, usize)> {
        if !self.paths.shares(at) {
            return None;
        }
        let path = &self.paths[at];
        let packet = ByteCount(u64::from(path.config.packet)).0;
        let least = self.paths.behind(at).max(packet);
        self.schedule.find_shared(now, self.paths.active_at(), |id| self.fits_path(now, id, least))
    }

    /// Is there a stream whose bytes go by this path?
    pub(super) fn has_spread(&self, now: Instant, at: usize) -> bool {
        self.paths.spread && self.find_spread(now, at).is_some()
    }

    /// Fills a packet of the path with it.
    pub(super) fn write_spread(&mut self, now: Instant, at: usize, w: &mut Writer<'_>) {
        let Some(turn) = self.find_spread(now, at).and_then(|at| self.schedule.take_shared(at))
        else {
            return;
        };
        let Turn::Stream { id, .. } = turn else { return };
        let before = w.len();
        self.paths.in_hand_mut().repair.on_stream(id, false);
        self.write_stream(now, id, w);
        self.requeue(now, id, false);
        self.paths.in_hand_mut().repair.after_stream(false, false);
        self.on_turn(now, turn, (w.len() - before) as u64);
    }
}
