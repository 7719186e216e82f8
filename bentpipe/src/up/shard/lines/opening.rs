//! A peer's lines come with it, change with the file and go with the peer or the gateway.

use std::collections::BTreeMap;
use std::thread::ScopedJoinHandle;

use dial::manager::{CarrierId, Manager, State};
use link::{PathId, PeerId, Remote};
use os::poll::Clock;
use units::Instant;

use super::beside::Beside;
use super::managed::{ManagedLine, Stops};
use super::one::OneLine;
use super::orders::Orders;
use crate::calendar::wall;
use crate::config::Peer;
use crate::ledger::{Ledger, mark};
use crate::up::commands::Commands;
use crate::up::serial_line::SerialLine;
use crate::up::shard::{LINES, MORE_UDP, Shard};

impl Shard {
    /// The modems of a peer's lines, in their order, where these have one.
    pub(in crate::up::shard) fn open_modems(
        &mut self,
        peer: &Peer,
    ) -> Vec<Option<link::CarrierId>> {
        let mut modems = Vec::new();
        for line in peer.line.iter().flat_map(|line| &line.lines) {
            let link = line.carrier.map_or(&peer.link, |at| &peer.carriers[at].link);
            let facts = (link.send, link.delay.times(2));
            let modem = line.modem.as_ref();
            modems.push(modem.and_then(|m| self.carrier.add_serial(m, facts, MORE_UDP)));
        }
        modems
    }

    /// The peer's lines are down until their manager raises them. `paths`: those of its carriers.
    pub(in crate::up::shard) fn open_line(
        &mut self,
        now: Instant,
        id: PeerId,
        peer: &Peer,
        modems: &[Option<link::CarrierId>],
        paths: &[Option<PathId>],
    ) {
        let Some(settings) = &peer.line else { return };
        let node = self.config.node.private_key.public();
        let ledger = Ledger::open(now, node, &peer.public_key);
        let mut manager = match Manager::new(settings.manager.clone(), now, wall(settings.clock)) {
            Ok(mut manager) => {
                manager.handle_zone(&settings.zone);
                manager
            }
            // The file was checked by the same.
            Err(why) => return crate::log!(Error, why, peer = peer.name),
        };
        let orders = Orders::open(node, &peer.public_key, settings, &mut manager);
        let (mut books, ledger, broken) = ledger;
        let mut each = Vec::new();
        for (n, line) in settings.lines.iter().enumerate() {
            let name = &settings.manager.carriers[n].name;
            let mark = line.drop.as_ref().and_then(|_| mark(node, &peer.public_key, name));
            let mut commands = match Commands::new(&self.poller, LINES, mark) {
                Ok(commands) => commands,
                Err(why) => return crate::log!(Error, "no line", peer = peer.name, why = why),
            };
            let path = match line.carrier {
                Some(at) => paths[at],
                None => settings.raises.then_some(PathId::FIRST),
            };
            // The program was killed in a call, or while it raised or dropped the line, which may
            // go on to cost.
            let was_up = broken.contains(name) || commands.may_be_raised();
            if let Some(command) = line.drop.clone().filter(|_| was_up) {
                commands.drop(command);
            }
            let modem = modems.get(n).copied().flatten();
            // Who is only called learns from the call who is there.
            if let Some(carrier) = modem.filter(|_| line.calls() && path == Some(PathId::FIRST)) {
                self.relay.endpoint.set_endpoint(now, id, Remote { carrier, addr: None });
            }
            each.push(OneLine::new(now, CarrierId(n), commands, modem, path));
        }
        // The preferred one last: nothing goes by another one meanwhile.
        for path in each.iter().rev().filter_map(|one: &OneLine| one.path) {
            self.relay.endpoint.set_path_up(now, id, path, false);
        }
        self.relay.watch_moved(id, true);
        let is_line = |at: usize| settings.with_carrier(at).is_some();
        let has_others = settings.lines[0].carrier.is_some() || !settings.raises;
        let others = paths.iter().enumerate();
        let others = others.filter(|(at, _)| has_others && !is_line(*at));
        let beside = Beside::new(now, each.len(), others.map(|(_, path)| *path));
        beside.begin(now, &mut manager, &mut books);
        self.lines.push(ManagedLine {
            key: peer.public_key,
            peer: id,
            name: peer.name.clone(),
            settings: settings.clone(),
            manager,
            books,
            ledger,
            orders,
            each,
            beside,
            waiting: BTreeMap::new(),
            unread_at: now,
            next_wait: 0,
            crossed: BTreeMap::new(),
            moved: BTreeMap::new(),
            told_at: now,
            clock_at: now,
            booked: vec![[0, 0]; settings.manager.carriers.len()],
            stops: Stops::default(),
        });
    }

    /// The file says something else of the peer's lines. What only a restart can change is not in
    /// the configuration ([`crate::config::Config::keep_fixed`]).
    pub(in crate::up::shard) fn change_line(&mut self, now: Instant, id: PeerId, peer: &Peer) {
        let Some(line) = self.lines.iter_mut().find(|line| line.peer == id) else { return };
        let Some(new) = &peer.line else { return };
        line.name.clone_from(&peer.name);
        if line.settings == *new {
            return;
        }
        if let Err(why) = line.manager.handle_config(new.manager.clone()) {
            return crate::log!(Error, why, peer = peer.name);
        }
        for w in line.waiting.values_mut() {
            w.counts = new.manager.rule_of(&w.flow).then.counts_bytes();
            line.manager.handle_waiting(now, w.id, &w.flow, w.all());
        }
        let zone = line.manager.zone();
        let mut zones = new.manager.carriers.iter().flat_map(|c| c.tariff.zones());
        if line.settings.zone != new.zone || !zones.any(|of| of == zone) {
            line.manager.handle_zone(&new.zone);
        }
        line.manager.handle_clock(now, wall(new.clock));
        for (one, new) in line.each.iter().zip(&new.lines) {
            let modem = one.modem.and_then(|id| self.carrier.serial_mut(id));
            if let (Some(modem), Some(new)) = (modem, &new.modem) {
                modem.change(now, new);
            }
        }
        line.settings = new.clone();
        self.work_lines(now);
    }

    /// What has crossed is in the books of the peer's line, while the peer is known.
    pub(in crate::up::shard) fn tell_line_of(&mut self, now: Instant, id: PeerId) {
        if let Some(at) = self.lines.iter().position(|line| line.peer == id) {
            self.tell_line(now, at);
        }
    }

    /// The peer was taken out of the file.
    pub(in crate::up::shard) fn close_line(&mut self, now: Instant, id: PeerId) {
        if let Some(at) = self.lines.iter().position(|line| line.peer == id) {
            let mut line = self.lines.remove(at);
            let why = "the peer was taken out of the file";
            begin_to_end(&mut line, now, why);
            let calls = self.calls_of(&line);
            self.relay.watch_moved(id, false);
            let clock = self.clock;
            self.leaving_lines.begin(line.key, move || finish(line, calls, &clock, why));
        }
    }

    /// The gateway ends: what is up is dropped, and its price is in the books.
    pub(in crate::up::shard) fn end_lines(&mut self, now: Instant) {
        let mut lines = std::mem::take(&mut self.lines);
        let (why, clock) = ("the gateway ended", self.clock);
        // All are dropped at once: who ends the gateway waits for the slowest only.
        for line in &mut lines {
            let carried = self.carried(now, line);
            line.tell_crossed(now, &carried);
            begin_to_end(line, now, why);
        }
        std::thread::scope(|scope| {
            for line in lines {
                let calls = self.calls_of(&line);
                scope.spawn(move || finish(line, calls, &clock, why));
            }
        });
    }

    /// The modems of a peer's lines, which are nobody's any more.
    fn calls_of(&mut self, line: &ManagedLine) -> Vec<(CarrierId, SerialLine)> {
        let modems = line.each.iter().filter_map(|one| Some((one.id, one.modem?)));
        let calls = modems.filter_map(|(line, modem)| {
            Some((line, self.carrier.take_serial(modem, &self.poller)?))
        });
        calls.collect()
    }
}

/// Drops the carriers that are there. A call ends when its command has, or its modem.
fn begin_to_end(line: &mut ManagedLine, now: Instant, why: &str) {
    let is_down = |state: &State| matches!(state, State::Down { .. });
    for (one, raised) in line.each.iter_mut().zip(&line.settings.lines) {
        let was_up = line.manager.state(one.id).is_some_and(|state| !is_down(state));
        let may_be_raised = was_up || one.commands.may_be_raised();
        match raised.drop.clone().filter(|_| may_be_raised) {
            Some(command) => one.commands.drop(command),
            None if one.modem.is_some() => {}
            None => line.manager.handle_ended(now, one.id, why, &mut line.books),
        }
    }
    line.beside.end(now, &mut line.manager, &mut line.books, why);
    line.ledger.keep(now, &mut line.books);
}

/// Waits until the carriers are dropped and the books are on the disk.
fn finish(mut line: ManagedLine, calls: Vec<(CarrierId, SerialLine)>, clock: &Clock, why: &str) {
    // Beside one another: each call is in the books until it is over.
    let ended: Vec<(CarrierId, Instant)> = std::thread::scope(|scope| {
        let begin = |(id, call): (CarrierId, SerialLine)| (id, scope.spawn(|| call.finish(clock)));
        let calls: Vec<_> = calls.into_iter().map(begin).collect();
        let end = |(id, call): (CarrierId, ScopedJoinHandle<'_, Instant>)| {
            (id, call.join().unwrap_or_else(|_| clock.now()))
        };
        calls.into_iter().map(end).collect()
    });
    for (id, at) in ended {
        line.manager.handle_ended(at, id, why, &mut line.books);
    }
    for one in &mut line.each {
        one.commands.finish();
        line.manager.handle_ended(clock.now(), one.id, why, &mut line.books);
    }
    line.ledger.keep(clock.now(), &mut line.books);
    line.ledger.finish();
}
