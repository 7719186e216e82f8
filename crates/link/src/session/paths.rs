//! The paths of a session: which there are, what both nodes say of them, and which of them
//! carries everything, but for classes of traffic whose carriers are named (L-PT-18).

use std::ops::{Index, IndexMut};

use units::{Duration, Instant};

use super::path::Path;
use super::status::Why;
use crate::path::{CarrierNames, MAX_PATHS, PathId};
use crate::sent::SentFrame;
use crate::stream::Delivery;
use crate::wire::{Frame, Writer};

/// All paths: the first, those of this node, those that the peer opened.
pub(super) struct Paths {
    list: Vec<Path>,
    active: usize,
    /// The path whose packet is being filled.
    hand: usize,
    /// All that are alive carry streams' bytes.
    pub spread: bool,
    side: u64,
    /// The path that a command of either node chose, and how often that was done.
    pub chosen: Option<PathId>,
    sequence: u64,
    wish: Delivery,
    /// Bytes of streams came on another path than the first (L-PT-8).
    pub moved: bool,
    /// Why the active path is the one.
    why: Why,
}

/// Nobody gives more commands than so many before the other node hears of one: what is beyond is
/// said to leave no number for this node's own.
const MOST_WISHES: u64 = 1 << 32;

impl Index<usize> for Paths {
    type Output = Path;
    fn index(&self, at: usize) -> &Path {
        &self.list[at]
    }
}

impl IndexMut<usize> for Paths {
    fn index_mut(&mut self, at: usize) -> &mut Path {
        &mut self.list[at]
    }
}

impl Paths {
    /// The first path alone, for the node of this side.
    pub fn new(first: Path, side: u64) -> Paths {
        Paths {
            list: vec![first],
            active: 0,
            hand: 0,
            spread: false,
            side,
            chosen: None,
            sequence: 0,
            wish: Delivery::None,
            moved: false,
            why: Why::default(),
        }
    }

    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Is there only the path that every session begins with?
    pub fn is_single(&self) -> bool {
        self.list.len() == 1
    }

    pub fn iter(&self) -> impl Iterator<Item = &Path> {
        self.list.iter()
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Path> {
        self.list.iter_mut()
    }

    pub fn find(&self, id: PathId) -> Option<usize> {
        match id.is_first() {
            true => Some(0),
            false => self.list.iter().position(|p| p.id == id),
        }
    }

    /// Where the path is that carries everything.
    pub fn active_at(&self) -> usize {
        self.active
    }

    /// The path that carries everything.
    pub fn active(&self) -> &Path {
        &self.list[self.active]
    }

    pub fn active_mut(&mut self) -> &mut Path {
        &mut self.list[self.active]
    }

    /// A packet of this path is going to be filled.
    pub fn take_in_hand(&mut self, at: usize) {
        self.hand = at;
    }

    /// The path whose packet is being filled.
    pub fn in_hand(&self) -> &Path {
        &self.list[self.hand]
    }

    /// The same, to change something.
    pub fn in_hand_mut(&mut self) -> &mut Path {
        &mut self.list[self.hand]
    }

    /// A number for one more path of this node.
    pub fn free_id(&self) -> Option<PathId> {
        let is_free = |id: &PathId| self.list.iter().all(|p| p.id != *id);
        PathId::of_side(self.side).find(is_free).filter(|_| self.list.len() < MAX_PATHS)
    }

    /// May the peer open this path?
    pub fn admits(&self, id: PathId) -> bool {
        id.is_opened_by(1 - self.side) && self.list.len() < MAX_PATHS
    }

    pub fn push(&mut self, path: Path) -> usize {
        self.list.push(path);
        self.list.len() - 1
    }

    /// Is the path one that the next session begins with, too?
    pub fn outlasts(&self, path: &Path) -> bool {
        path.id.is_first() || !path.id.is_opened_by(1 - self.side) && !path.is_retired
    }

    /// Goes on with what both nodes wanted in the session before. Whoever knows of a choice
    /// tells it again: the other node may have restarted.
    pub fn inherit_choice(&mut self, before: &Paths) {
        (self.chosen, self.spread) = (before.chosen, before.spread);
        if before.sequence > 0 {
            (self.sequence, self.wish) = (1, Delivery::Wanted);
        }
    }

    // ---- which one ---------------------------------------------------------------

    /// Why the active path carries everything.
    pub fn why(&self) -> Why {
        self.why
    }

    /// The paths that may be used, best first: those that are alive, of these those that are not
    /// left alone, then the one that a command chose, then by priority.
    pub fn order(&self, now: Instant) -> impl Iterator<Item = usize> {
        let mut order = [0; MAX_PATHS];
        let mut len = 0;
        for at in (0..self.list.len()).filter(|at| self.list[*at].is_open()) {
            order[len] = at;
            len += 1;
        }
        let rank = |at: &usize| {
            let path = &self.list[*at];
            let is_chosen = Some(path.id) == self.chosen;
            let is_held = path.trust.is_held(now);
            // Where all carry, what somebody waits for goes by the fastest.
            let trip = if self.spread { path.config.rtt } else { Duration::ZERO };
            (!path.is_alive(), is_held, !is_chosen, trip, path.priority(), path.id)
        };
        order[..len].sort_unstable_by_key(rank);
        order.into_iter().take(len)
    }

    /// Another path carries everything from now on, if it should: the best, or the same where
    /// none is up.
    pub fn follow_best(&mut self, now: Instant) -> bool {
        let best = self.order(now).next().unwrap_or(self.active);
        let before = std::mem::replace(&mut self.active, best);
        if before == best {
            return false;
        }
        let chosen = self.chosen == Some(self.list[best].id);
        self.why = match self.list[before].fault(now) {
            Some(fault) => fault,
            None if chosen => Why::Chosen,
            None => Why::Preferred,
        };
        true
    }

    /// Where the path is that a class with these carriers goes by: the first of them that works
    /// and is not left alone, or the one of them that a command chose; of those that do not work
    /// the first that is open. `None`: none is. To a node that has no names for its own paths a
    /// list of which it knows no name says nothing, and the class goes by the active path.
    pub fn way_of(&self, now: Instant, names: &CarrierNames) -> Option<usize> {
        let place = |path: &Path| {
            let name = path.name();
            names.iter().position(|n| n == name)
        };
        let has_names = self.list.iter().any(|path| !path.config.name.is_empty());
        if !has_names && self.list.iter().all(|path| place(path).is_none()) {
            return Some(self.active);
        }
        let rank = |at: usize| {
            let path = &self.list[at];
            let place = place(path).filter(|_| path.is_open())?;
            let is_chosen = Some(path.id) == self.chosen;
            Some(((!path.is_alive(), path.trust.is_held(now), !is_chosen, place), at))
        };
        (0..self.list.len()).filter_map(rank).min().map(|(_, at)| at)
    }

    /// The active path is left for another that works and carries more, if it carries little,
    /// and no command chose it.
    fn leave_poor(&mut self, now: Instant) {
        let active = &mut self.list[self.active];
        if self.chosen == Some(active.id) || !active.weigh(now) || !active.is_alive() {
            return;
        }
        let (id, worth) = (active.id, active.worth());
        let is_better = |p: &Path| {
            let works = p.id != id && p.is_alive() && !p.trust.is_held(now);
            works && p.worth() > worth + worth / 4
        };
        if self.list.iter().any(is_better) {
            self.list[self.active].leave_as_poor(now);
        }
    }

    // ---- what the nodes say --------------------------------------------------------

    /// What the paths have shown since the last look.
    pub fn follow_records(&mut self, now: Instant) {
        let (active, flows) = (self.active, self.active().sent.in_flight() > 0);
        for (at, path) in self.list.iter_mut().enumerate() {
            (path.is_beside_others, path.stands_by) = (true, at != active);
            path.see_life(now);
            path.follow_trial(now, flows);
        }
        self.leave_poor(now);
    }

    /// A command at this node: both nodes are to use this path, or the best.
    pub fn choose(&mut self, id: Option<PathId>) {
        self.chosen = id;
        self.sequence = self.sequence.saturating_add(1);
        self.wish = Delivery::Wanted;
    }

    /// The peer wishes so. Of two wishes at once that of the lower side holds.
    pub fn on_use(&mut self, sequence: u64, id: Option<PathId>) {
        if sequence.saturating_sub(self.sequence) > MOST_WISHES {
            return;
        }
        if sequence > self.sequence || sequence == self.sequence && self.side == 1 {
            (self.sequence, self.chosen, self.wish) = (sequence, id, Delivery::None);
        }
    }

    /// What is to be said of a path changed: it is said anew.
    pub fn note_news(&mut self) {
        for path in &mut self.list {
            let says = path.says();
            let is_new = path.is_own && path.said.version == 0;
            if path.said.says != says || is_new {
                path.said.say(says);
            }
        }
    }

    /// Is there something to be said?
    pub fn has_news(&self) -> bool {
        !self.is_single()
            && (self.wish.is_wanted() || self.list.iter().any(|p| p.said.delivery.is_wanted()))
    }

    /// Writes what is to be said, as far as it fits, on the active path.
    pub fn write_news(&mut self, w: &mut Writer<'_>) -> bool {
        let active = self.active;
        let mut any = false;
        for at in 0..self.list.len() {
            let path = &mut self.list[at];
            let news = path.news();
            if !path.said.delivery.is_wanted() || !w.put(&Frame::Path(news)) {
                continue;
            }
            path.said.delivery = Delivery::InFlight;
            self.list[active].sent.push_frame(SentFrame::Path(news.path, news.version));
            any = true;
        }
        if self.wish.is_wanted()
            && w.put(&Frame::Use { sequence: self.sequence, path: self.chosen })
        {
            self.wish = Delivery::InFlight;
            self.list[active].sent.push_frame(SentFrame::Use(self.sequence));
            any = true;
        }
        any
    }

    /// What became of something that was said.
    pub fn on_fate(&mut self, frame: &SentFrame, arrived: bool) {
        let delivery = match frame {
            SentFrame::Path(id, version) => {
                let path = self.list.iter_mut().find(|p| p.id == *id);
                path.map(|p| &mut p.said).filter(|s| s.version == *version).map(|s| &mut s.delivery)
            }
            SentFrame::Use(sequence) if *sequence == self.sequence => Some(&mut self.wish),
            _ => None,
        };
        match delivery {
            Some(delivery) if arrived => delivery.arrived(),
            Some(delivery) => delivery.lost(),
            None => {}
        }
    }
}
