//! The paths of a session: which there are, what both nodes say of them, and which of them
//! carries everything, but for classes of traffic whose carriers are named (L-PT-18).

use std::ops::{Index, IndexMut};

use units::{BitRate, Duration, Instant};

use super::facts::{rate_bits, rate_bits_below, rate_of_bits};
use super::liveness::PathHealth;
use super::path::{Path, PathConfig};
use super::schedule::NO_WAY;
use super::{ClassId, Params, RateMode, Session};
use crate::path::{CarrierName, CarrierNames, MAX_PATHS, PathId};
use crate::sent::SentFrame;
use crate::stream::Delivery;
use crate::wire::{Frame, PathFacts, PathNews, Writer};

/// What one node says of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Says {
    pub up: bool,
    pub hears: bool,
    pub free: bool,
    pub priority: u8,
    pub name: CarrierName,
}

impl Default for Says {
    /// What holds until something else is said.
    fn default() -> Says {
        let name = CarrierName::default();
        Says { up: true, hears: true, free: false, priority: 0, name }
    }
}

/// What was said last, and whether the peer knows.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Said {
    pub says: Says,
    pub version: u64,
    pub delivery: Delivery,
}

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
    chosen: Option<PathId>,
    sequence: u64,
    wish: Delivery,
    /// Bytes of streams came on another path than the first (L-PT-8).
    pub moved: bool,
    /// Why the active path is the one.
    why: Why,
}

/// Why a path carries everything, or does not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Why {
    /// It is the first that was alive, or preferred and has held.
    #[default]
    Preferred,
    /// A command of either node chose it, or chose no other.
    Chosen,
    /// Of the other one: nothing is received on it.
    NothingReceived,
    /// The peer hears nothing on it, or reports nothing.
    TransmitDead,
    /// The peer has told that it hears nothing on it.
    Missed,
    /// This node put it down.
    Down,
    /// The peer put it down.
    PeerDown,
    /// What it goes by has no link.
    NoLink,
    /// It failed lately and has not held for long enough.
    Held,
    /// It loses so much, or carries so little, that another carries more.
    Poor,
}

/// Rates below are not taken from a peer: a packet would take minutes.
const LEAST_RATE: u64 = 100;
/// Nor longer round trips.
const LONGEST_RTT: Duration = Duration::from_secs(60);
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
    fn follow_best(&mut self, now: Instant) -> bool {
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
    /// the first that is open. `None`: none is. To a node that has no names for its own paths a list
    /// of which it knows no name says nothing, and the class goes by the active path.
    fn way_of(&self, now: Instant, names: &CarrierNames) -> Option<usize> {
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
    fn follow_records(&mut self, now: Instant) {
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
    fn on_use(&mut self, sequence: u64, id: Option<PathId>) {
        if sequence.saturating_sub(self.sequence) > MOST_WISHES {
            return;
        }
        if sequence > self.sequence || sequence == self.sequence && self.side == 1 {
            (self.sequence, self.chosen, self.wish) = (sequence, id, Delivery::None);
        }
    }

    /// What is to be said of a path changed: it is said anew.
    fn note_news(&mut self) {
        for path in &mut self.list {
            let says = path.says();
            let is_new = path.is_own && path.said.version == 0;
            if path.said.says != says || is_new {
                let version = path.said.version + 1;
                path.said = Said { says, version, delivery: Delivery::Wanted };
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

impl Path {
    /// Of both nodes' priorities the larger: the opener's, as the other one has none.
    fn priority(&self) -> u8 {
        self.priority.max(self.peer.says.priority)
    }

    /// What speaks against it.
    pub(super) fn fault(&self, now: Instant) -> Option<Why> {
        Some(match self.health() {
            _ if !self.up => Why::Down,
            _ if !self.linked => Why::NoLink,
            _ if !self.peer.says.up => Why::PeerDown,
            PathHealth::TransmitDead { .. } | PathHealth::NoAcks { .. } => Why::TransmitDead,
            PathHealth::NothingReceived { .. } => Why::NothingReceived,
            PathHealth::Alive if !self.heard_here => Why::NothingReceived,
            PathHealth::Alive if !self.peer.says.hears => Why::Missed,
            PathHealth::Alive if self.trust.is_poor() => Why::Poor,
            PathHealth::Alive if self.trust.is_held(now) => Why::Held,
            PathHealth::Alive => return None,
        })
    }

    /// What this node has to say of it.
    fn says(&self) -> Says {
        let hears = self.linked && !self.misses_packets();
        let (free, priority) = (self.config.probe.is_some(), self.priority);
        Says { up: self.up, hears, free, priority, name: self.config.name }
    }

    pub(super) fn news(&self) -> PathNews {
        let Said { says: Says { up, hears, free, priority, name }, version, .. } = self.said;
        let c = &self.config;
        let facts = self.is_own.then(|| PathFacts {
            send: rate_bits(c.send_rate),
            receive: rate_bits_below(c.receive_rate),
            rtt: c.rtt.as_millis().max(1),
            mtu: c.mtu.into(),
            overhead: c.overhead.into(),
        });
        PathNews { path: self.id, version, up, hears, free, priority, name, facts }
    }

    /// A question on a path that is not known to work says of the path what was said last: the peer
    /// may take it for down, and what told it otherwise went by one that died (L-PT-5).
    pub(super) fn say_again(&self, w: &mut Writer<'_>) {
        if self.is_beside_others && !self.is_alive() && self.said.version > 0 {
            w.put(&Frame::Path(self.news()));
        }
    }

    /// The peer says something of the path.
    fn on_news(&mut self, now: Instant, news: &PathNews) {
        if news.version <= self.peer.version {
            return;
        }
        let PathNews { version, up, hears, free, priority, name, .. } = *news;
        let says = Says { up, hears, free, priority, name };
        self.peer = Said { says, version, ..Said::default() };
        if let Some(facts) = news.facts.filter(|_| !self.is_own && !self.id.is_first()) {
            self.take_facts(now, &facts);
        }
    }

    /// The opener tells what the path is: its rates are this node's the other way round.
    fn take_facts(&mut self, now: Instant, facts: &PathFacts) {
        let rate = |bits| rate_of_bits(bits).filter(|rate| rate.as_bps() >= LEAST_RATE);
        if let Some((send, receive)) = rate(facts.receive).zip(rate(facts.send)) {
            (self.config.send_rate, self.config.receive_rate) = (send, receive);
            self.set_rate(now, None, send);
            self.is_described = true;
        }
        self.config.rtt = Duration::from_millis(facts.rtt.max(1)).min(LONGEST_RTT);
        self.rtt.expect(self.config.rtt);
        // No longer than the endpoint has room for.
        let largest = u64::from(self.config.mtu);
        self.config.mtu = facts.mtu.clamp(128, largest.max(128)) as u16;
        self.config.packet = self.config.packet.min(self.config.mtu);
        self.set_framing(facts.overhead.min(200) as u16);
        self.set_largest_packet(self.peer_mtu);
    }
}

impl Session {
    /// The paths that there are, but those whose carriers are there no more.
    pub fn paths(&self) -> impl Iterator<Item = PathId> {
        self.paths.iter().filter(|p| !p.is_retired).map(|p| p.id)
    }

    /// The path that carries everything.
    pub fn active_path(&self) -> PathId {
        self.paths.active().id
    }

    /// Is there one path, and is it up?
    pub(crate) fn has_one_path(&self) -> bool {
        self.paths.is_single() && self.paths[0].is_open()
    }

    /// The paths that packets may leave by, best first; then those whose address is not known
    /// for sure yet.
    pub(crate) fn path_order(&self, now: Instant) -> impl Iterator<Item = PathId> {
        let unknown = self.paths.iter().filter(|p| p.is_up() && !p.reachable);
        self.paths.order(now).map(|at| self.paths[at].id).chain(unknown.map(|p| p.id))
    }

    /// A handshake went by this path: it carries packets both ways.
    pub(crate) fn on_handshake(&mut self, now: Instant, id: PathId) {
        if let Some(at) = self.accept_path(now, id) {
            self.paths[at].heard_here = true;
            self.paths[at].on_heard_by_peer(now);
            self.follow_paths(now);
        }
    }

    /// How often something is to be sent on a path at least.
    pub(crate) fn set_keepalive(&mut self, id: PathId, keepalive: Option<Duration>) {
        if let Some(path) = self.path_mut(id) {
            path.config.keepalive = keepalive;
        }
    }

    /// Which path is preferred, and how often it is asked about while it stands by.
    pub(crate) fn set_path_habits(
        &mut self,
        now: Instant,
        id: PathId,
        rank: u8,
        probe: Option<Duration>,
    ) {
        if let Some(path) = self.path_mut(id) {
            (path.config.priority, path.priority, path.config.probe) = (rank, rank, probe);
            self.follow_paths(now);
        }
    }

    /// What this node calls the carrier of a path.
    pub(crate) fn name_path(&mut self, now: Instant, id: PathId, name: CarrierName) {
        if let Some(path) = self.path_mut(id) {
            path.config.name = name;
            self.follow_paths(now);
        }
    }

    /// Which classes go by a path, a bit for each.
    pub(crate) fn classes_of(&self, id: PathId) -> u32 {
        let Some(at) = self.paths.find(id) else { return 0 };
        let classes = (0..self.config.classes.len())
            .filter(|class| self.schedule.way(ClassId::from_index(*class)) == at);
        classes.fold(0, |set, class| set | 1 << class)
    }

    /// A path that this node opened sends and receives at other rates: the peer is told.
    pub(crate) fn set_path_rates(
        &mut self,
        now: Instant,
        id: PathId,
        mode: RateMode,
        [send, receive]: [BitRate; 2],
    ) {
        let Some(path) = self.path_mut(id).filter(|path| path.is_own) else { return };
        (path.config.send_rate, path.config.receive_rate) = (send, receive);
        path.set_rate(now, Some(mode), send);
        let (says, version) = (path.says(), path.said.version + 1);
        path.said = Said { says, version, delivery: Delivery::Wanted };
    }

    /// The path's carrier is there no more. It is down until the session ends, and what was under
    /// way on it goes by another.
    pub(crate) fn retire_path(&mut self, now: Instant, id: PathId) {
        let Some(at) = self.paths.find(id) else { return };
        self.paths[at].is_retired = true;
        // Another may be called so from now on.
        self.paths[at].config.name = CarrierName::default();
        if self.paths.chosen == Some(id) {
            self.paths.choose(None);
        }
        self.set_path_up(now, id, false);
    }

    /// Why the path in use carries everything.
    pub(crate) fn why(&self) -> Why {
        self.paths.why()
    }

    /// When the next keepalive is due.
    pub(crate) fn keepalive_at(&self) -> Option<Instant> {
        self.paths.iter().filter_map(Path::keepalive_at).min()
    }

    /// Asks on the paths where it is.
    pub(crate) fn keep_alive(&mut self, now: Instant) {
        for path in self.paths.iter_mut() {
            path.ping |= path.keepalive_at().is_some_and(|t| t <= now);
        }
    }

    pub(crate) fn path(&self, id: PathId) -> Option<&Path> {
        self.paths.find(id).map(|at| &self.paths[at])
    }

    /// The same, to change something.
    pub(crate) fn path_mut(&mut self, id: PathId) -> Option<&mut Path> {
        self.paths.find(id).map(|at| &mut self.paths[at])
    }

    /// Opens one more path; `None` where there are as many as there may be.
    pub(crate) fn add_path(
        &mut self,
        now: Instant,
        config: PathConfig,
        reachable: bool,
    ) -> Option<PathId> {
        let id = self.paths.free_id()?;
        let at = self.push_path(now, id, config);
        let path = &mut self.paths[at];
        (path.is_own, path.is_described, path.reachable) = (true, true, reachable);
        path.ping = self.told;
        self.follow_paths(now);
        Some(id)
    }

    /// The path of a packet, or of what the peer says: made if the peer may open it.
    pub(crate) fn accept_path(&mut self, now: Instant, id: PathId) -> Option<usize> {
        if let Some(at) = self.paths.find(id) {
            return Some(at);
        }
        if !self.paths.admits(id) {
            return None;
        }
        // Until its opener has told what it is, it is as the first, and carries no content.
        let first = &self.paths[0];
        let config =
            PathConfig { name: CarrierName::default(), priority: 0, probe: None, ..first.config };
        Some(self.push_path(now, id, config))
    }

    fn push_path(&mut self, now: Instant, id: PathId, config: PathConfig) -> usize {
        let Params { contexts, .. } = self.params;
        let mut path = Path::new(now, id, config, self.peer.mtu, (self.config.memory, contexts));
        path.headers.set_contexts(self.peer.contexts as usize);
        path.set_stopwatch(self.stopwatch);
        path.set_largest_packet(self.peer.mtu);
        self.paths.push(path)
    }

    /// A command: both nodes are to send on this path while it lives, or on the best.
    pub fn use_path(&mut self, now: Instant, id: Option<PathId>) {
        if id.is_none_or(|id| self.paths.find(id).is_some()) {
            self.paths.choose(id);
            self.follow_paths(now);
        }
    }

    /// The path is up, or down: then nothing at all is sent on it (L-PT-7).
    pub fn set_path_up(&mut self, now: Instant, id: PathId, up: bool) {
        let Some(at) = self.paths.find(id) else { return };
        let path = &mut self.paths[at];
        if std::mem::replace(&mut path.up, up) != up {
            if up {
                path.rise(now);
            }
            self.follow_paths(now);
        }
    }

    /// What the path goes by has a link, or has none: then nothing is sent.
    pub fn set_path_linked(&mut self, now: Instant, id: PathId, linked: bool) {
        let Some(at) = self.paths.find(id) else { return };
        let path = &mut self.paths[at];
        if std::mem::replace(&mut path.linked, linked) != linked {
            if linked {
                path.rise(now);
            }
            self.follow_paths(now);
        }
    }

    /// Is the path up, as far as this node decides?
    pub fn is_path_up(&self, id: PathId) -> bool {
        self.path(id).is_some_and(|p| p.up)
    }

    /// The peer can be reached on a path, or not yet.
    pub(crate) fn set_reachable(&mut self, now: Instant, id: PathId, reachable: bool) {
        let Some(at) = self.paths.find(id) else { return };
        if std::mem::replace(&mut self.paths[at].reachable, reachable) != reachable {
            if reachable {
                self.paths[at].rise(now);
            }
            self.follow_paths(now);
        }
    }

    pub(super) fn on_path_news(&mut self, now: Instant, news: &PathNews) {
        let Some(at) = self.accept_path(now, news.path) else { return };
        let was_open = self.paths[at].is_open();
        self.paths[at].on_news(now, news);
        if !was_open && self.paths[at].is_open() {
            self.paths[at].rise(now);
        }
    }

    pub(super) fn on_path_use(&mut self, sequence: u64, id: Option<PathId>) {
        self.paths.on_use(sequence, id);
    }

    /// Something happened to a path, or was said of one: what follows. What was under way on a
    /// path that is down or dead goes again on the one that carries everything now.
    pub(super) fn follow_paths(&mut self, now: Instant) {
        if !self.paths.is_single() {
            self.paths.note_news();
            self.paths.follow_records(now);
        }
        let moved = self.paths.follow_best(now);
        if moved {
            self.paths.active_mut().pacer.on_idle(now);
            self.paths.active_mut().begin_to_weigh(now);
        }
        self.follow_classes(now);
        for at in 0..self.paths.len() {
            let path = &self.paths[at];
            // What has no other path goes by a poor one.
            let is_poor = path.trust.is_poor() && !path.carries_classes;
            let is_dead = path.silent || !path.peer.says.hears || is_poor;
            let is_over = !path.is_open() || is_dead && at != self.paths.active_at();
            if is_over != self.paths[at].given_up {
                self.paths[at].given_up = is_over;
                if is_over {
                    self.give_up_path(now, at);
                }
            }
        }
    }
    /// Each class goes by the path that its carriers or the choice of the best call for.
    fn follow_classes(&mut self, now: Instant) {
        let active = self.paths.active_at();
        let classes = &self.config.classes;
        let names = |class: ClassId| {
            let names = classes.get(class.index()).map(|class| &class.carriers);
            names.filter(|names| !names.is_empty())
        };
        let way = |class| names(class).map(|names| self.paths.way_of(now, names).unwrap_or(NO_WAY));
        self.schedule.set_ways(active, way);
        for at in 0..self.paths.len() {
            let carries = at != active && self.schedule.serves(at);
            if std::mem::replace(&mut self.paths[at].carries_classes, carries) != carries && carries
            {
                self.paths[at].pacer.on_idle(now);
            }
        }
    }
}
