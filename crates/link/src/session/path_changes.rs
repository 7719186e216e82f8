//! What happens to the paths of a session: they are opened and retired, go up and down, are chosen;
//! and what follows from it for what they carry.

use units::{BitRate, Duration, Instant};

use super::config::{Params, PathConfig};
use super::path::Path;
use super::schedule::NO_WAY;
use super::state::Session;
use super::status::Why;
use crate::path::{CarrierName, PathId};
use crate::rate::RateMode;
use crate::traffic::ClassId;
use crate::wire::PathNews;

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
            (self.paths[at].heard_here, self.paths[at].heard_since_rise) = (true, true);
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
        path.said.say(path.says());
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
    /// Is the peer to hear of this node also where nobody has anything to say?
    pub(crate) fn keeps_alive(&self) -> bool {
        self.paths.iter().any(|path| path.config.keepalive.is_some())
    }

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
                path.unproven_from = Some(path.sent.next_number());
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
        self.drop_stranded();
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
