//! The paths to a peer that has lines: by which of these something is heard, which of the carriers
//! beside them work, and which is preferred.

use dial::manager::{CarrierId, Order, State};
use link::endpoint::PathStatus;
use link::session::Why;
use link::{PathId, PeerId};
use units::Instant;

use super::beside::LOOK;
use super::managed::ManagedLine;
use crate::admin::{LineCommand, PathCause, PathCommand};
use crate::up::shard::Shard;
use crate::up::shard::paths::cause;

impl Shard {
    /// Looks by which lines something is heard, and tells their manager which of the carriers
    /// beside them work.
    pub(super) fn look_at_paths(&mut self, now: Instant, at: usize) {
        let line = &self.lines[at];
        if !line.beside.looks || now < line.beside.look_at {
            return;
        }
        let paths = self.relay.endpoint.paths(now, line.peer);
        let alive = paths.iter().filter(|path| path.is_alive);
        let heard: Vec<CarrierId> = alive.map(|path| line.carrier_of(path)).collect();
        let line = &mut self.lines[at];
        line.beside.look_at = now + LOOK;
        for one in &mut line.each {
            let since = one.unheard_since.unwrap_or(now);
            one.unheard_since = (!heard.contains(&one.id)).then_some(since);
        }
        for (carrier, _) in line.beside.carriers.clone() {
            let of = || paths.iter().filter(|path| line.carrier_of(path) == carrier);
            let faults: Vec<Option<Why>> = of().map(|path| line.beside.fault(now, path)).collect();
            let heard = of().filter_map(|path| path.traffic.heard).max();
            let works = faults.contains(&None);
            let worked = line.manager.state(carrier).is_some_and(State::carries);
            if works && !worked {
                line.manager.handle_connected(now, carrier, false, &mut line.books);
                line.manager.handle_ready(now, carrier);
                line.forget_waiting(now);
            } else if worked && !works {
                let why =
                    faults.into_iter().flatten().next().map_or("not there", |w| cause(w).words());
                line.manager.handle_ended(now, carrier, why, &mut line.books);
                let relay = &self.relay;
                line.wait_again(now, heard.unwrap_or(now), |id| relay.is_undelivered(id));
            }
        }
        self.prefer_by_cost(now, at);
    }

    /// The month's budget allows no more bytes of a carrier that is there by itself, or does again.
    pub(super) fn set_beside_up(&mut self, now: Instant, at: usize, carrier: CarrierId, up: bool) {
        let line = &self.lines[at];
        let paths = self.relay.endpoint.paths(now, line.peer).into_iter();
        let paths: Vec<_> = paths.filter(|path| line.carrier_of(path) == carrier).collect();
        for path in paths.iter().filter(|path| !up || !line.beside.set_down.contains(&path.id)) {
            self.relay.endpoint.set_path_up(now, line.peer, path.id, up);
        }
        if !up {
            let (line, relay) = (&mut self.lines[at], &self.relay);
            line.manager.handle_ended(now, carrier, "the month's budget", &mut line.books);
            line.wait_again(now, now, |id| relay.is_undelivered(id));
        }
    }

    /// The operator sets a path up or down by name. True: the month's budget lets nothing cross by
    /// it, and it comes up with that.
    pub(in crate::up::shard) fn note_set_by_hand(
        &mut self,
        now: Instant,
        peer: PeerId,
        path: PathId,
        up: bool,
    ) -> bool {
        let status = self.relay.endpoint.paths(now, peer).into_iter().find(|of| of.id == path);
        for line in self.lines.iter_mut().filter(|line| line.peer == peer) {
            match up {
                true => line.beside.set_down.remove(&path),
                false => line.beside.set_down.insert(path),
            };
        }
        status.is_some_and(|status| self.is_barred(peer, &status))
    }

    /// Why everything goes by this path of the peer, and no more by another.
    pub(in crate::up::shard) fn cause_of(&self, peer: PeerId, to: PathId, why: Why) -> PathCause {
        if why != Why::Down {
            return cause(why);
        }
        let paths = self.relay.endpoint.paths(Instant::ZERO, peer);
        let down = paths.iter().filter(|path| path.id != to && !path.is_up);
        let causes: Vec<PathCause> = down.map(|path| self.cause_of_down(peer, path)).collect();
        // What is down by command has been so for longer, where another one went by itself.
        let other = causes.into_iter().find(|cause| *cause != PathCause::Down);
        other.unwrap_or(PathCause::Down)
    }

    /// Why this node sends nothing on a path.
    pub(in crate::up::shard) fn cause_of_down(&self, peer: PeerId, path: &PathStatus) -> PathCause {
        match self.unraised(peer, path.id) {
            _ if self.is_barred(peer, path) => PathCause::Budget,
            Some(_) => PathCause::Unraised,
            None => PathCause::Down,
        }
    }

    /// The line that a path goes by, if it is not raised.
    fn unraised(&self, peer: PeerId, path: PathId) -> Option<(&ManagedLine, CarrierId)> {
        let line = self.lines.iter().find(|line| line.peer == peer && line.settings.raises)?;
        let one = line.each.iter().find(|one| one.path == Some(path))?;
        (!line.is_up(one.id)).then_some((line, one.id))
    }

    /// May a command for a path be given? It may not set up a path whose line is not raised: nobody
    /// would pay for what crosses. `use` raises the line, as `link up` does.
    pub(in crate::up) fn may_set(
        &self,
        now: Instant,
        (peer, path): (PeerId, PathId),
        command: PathCommand,
    ) -> Result<(), String> {
        match (command, self.unraised(peer, path)) {
            (PathCommand::Up, Some((line, id))) => Err(format!(
                "the line of this carrier is not raised: `bentpipe link up {}` raises it",
                line.own_name(id)
            )),
            (PathCommand::Use, Some((line, id))) => line.may_raise(now, Some(id)),
            _ => Ok(()),
        }
    }

    /// The line of a path that is to be used is raised, if it is not yet.
    pub(in crate::up::shard) fn raise_to_use(&mut self, now: Instant, peer: PeerId, path: PathId) {
        let Some((line, id)) = self.unraised(peer, path) else { return };
        let (key, name) = (line.key, line.settings.names().nth(id.0).cloned());
        self.command_line(now, &key, name.as_deref(), LineCommand::Up);
    }

    /// Does the month's budget keep the peer's packets off a path?
    pub(in crate::up::shard) fn is_barred(&self, peer: PeerId, path: &PathStatus) -> bool {
        let mut lines = self.lines.iter().filter(|line| line.peer == peer);
        lines.any(|line| line.manager.is_barred(line.carrier_of(path)))
    }

    /// Where the cheapest carrier is preferred, paths have their place in that order as priority.
    fn prefer_by_cost(&mut self, now: Instant, at: usize) {
        let line = &mut self.lines[at];
        if line.settings.manager.order != Order::Cost {
            return;
        }
        let ranking = line.manager.ranking(now);
        if line.beside.ranking == ranking {
            return;
        }
        line.beside.ranking.clone_from(&ranking);
        let own: Vec<_> = line.each.iter().map(|one| (one.id, one.path)).collect();
        let (peer, others) = (line.peer, line.beside.carriers.clone());
        let Some(known) = self.peers.with_id(peer) else { return };
        let (carriers, paths) = (known.config.carriers.clone(), known.paths.clone());
        for (carrier, path) in others.into_iter().chain(own) {
            let place = ranking.iter().position(|of| *of == carrier);
            let config = paths.iter().position(|of| *of == path).and_then(|at| carriers.get(at));
            if let (Some(path), Some(place), Some(config)) = (path, place, config) {
                let habits = (place as u8, config.probe);
                self.relay.endpoint.set_path_habits(now, peer, path, habits);
            }
        }
    }
}
