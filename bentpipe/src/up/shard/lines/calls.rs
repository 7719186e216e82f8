//! How a line is raised and dropped, by commands or by a modem, and what tells that it works.

use dial::hayes::Told;
use dial::manager::{CarrierId, DownCause, State};
use relay::FlowId;
use units::{Duration, Instant};

use super::managed::{ManagedLine, Place};
use super::one::Heard;
use crate::human::lasting;
use crate::up::commands::Outcome;
use crate::up::shard::paths::linked;
use crate::up::shard::{MORE_UDP, Shard, UDP};

/// A carrier on which nothing is heard for so long is taken for lost.
const SILENCE: Duration = Duration::from_secs(60);
/// The same where the peer has another line, once the link knows that the path is dead.
const SILENCE_BESIDE: Duration = Duration::from_secs(10);

impl ManagedLine {
    /// The call carried nothing since then; if nobody here ended it, it is lost. It `is_over`, or
    /// is when it has been dropped.
    fn on_ended(
        &mut self,
        now: Instant,
        n: usize,
        (why, is_over): (&str, bool),
        is_undelivered: impl Fn(FlowId) -> bool,
    ) {
        let since = self.each[n].silent_since.take().unwrap_or(now);
        let is_lost = self.is_up(CarrierId(n));
        match is_over {
            true => self.manager.handle_ended(now, CarrierId(n), why, &mut self.books),
            false => self.manager.handle_lost(now, CarrierId(n), why),
        }
        if is_lost {
            self.wait_again(now, since, is_undelivered);
        }
    }
}

impl ManagedLine {
    /// What drops the line has ended. Who watches is told of a failure once, until it is over.
    fn on_dropped(&mut self, now: Instant, n: usize, told: Result<(), String>) {
        let (id, name) = (CarrierId(n), self.title(n));
        let failed_before = self.manager.may_be_up(id);
        match told {
            Ok(()) => {
                self.manager.handle_dropped(now, id, &mut self.books);
                if failed_before {
                    crate::log!(Info, "the line is dropped after all", peer = name);
                }
            }
            Err(why) => {
                self.manager.handle_drop_failed(now, id, &mut self.books);
                match failed_before {
                    true => crate::log!(Debug, "the line may still be up", peer = name, why = why),
                    false => crate::log!(
                        Warn,
                        "the line may still be up; what drops it is tried again",
                        peer = name,
                        why = why
                    ),
                }
            }
        }
    }
}

impl Shard {
    /// What happened to one line.
    pub(super) fn work_one(&mut self, now: Instant, (at, n): Place) {
        let line = &self.lines[at];
        let one = &line.each[n];
        let (id, modem, before) = (one.id, one.modem, one.heard_before);
        let is_rising = matches!(line.manager.state(id), Some(State::Rising { .. }));
        if is_rising && self.heard(now, (at, n)).is_more_than(before) {
            let line = &mut self.lines[at];
            line.manager.handle_ready(now, id);
            line.forget_waiting(now);
            if let Some(modem) = modem.and_then(|id| self.carrier.serial_mut(id)) {
                modem.prove();
            }
        }
        if let Some(outcome) = self.lines[at].each[n].commands.poll() {
            self.on_outcome(now, (at, n), outcome);
        }
        while let Some(told) =
            modem.and_then(|id| self.carrier.serial_mut(id)).and_then(|line| line.poll_told())
        {
            self.on_modem(now, (at, n), told);
        }
        self.look_at_silence(now, (at, n));
    }

    fn on_outcome(&mut self, now: Instant, (at, n): Place, outcome: Outcome) {
        match outcome {
            Outcome::Raised(Ok(())) => self.on_carrier(now, (at, n), false),
            Outcome::Raised(Err(why)) => {
                let line = &mut self.lines[at];
                line.manager.handle_failed(now, CarrierId(n), &why);
                // What is half raised may cost all the same.
                if let Some(command) = line.settings.lines[n].drop.clone() {
                    line.each[n].commands.drop(command);
                }
            }
            Outcome::Dropped(told) => {
                self.tell_line(now, at);
                self.lines[at].on_dropped(now, n, told);
            }
        }
    }

    /// What came by the line. Beside other carriers a handshake may have gone by one of those.
    fn heard(&self, now: Instant, (at, n): Place) -> Heard {
        let line = &self.lines[at];
        if line.is_alone() {
            let stats = self.relay.endpoint.peer_stats(line.peer);
            return Heard { packets: stats.packets_in, handshakes: stats.handshakes };
        }
        let paths = self.relay.endpoint.paths(now, line.peer).into_iter();
        let own = paths.filter(|path| line.carrier_of(path) == CarrierId(n));
        Heard { packets: own.map(|path| path.traffic.packets_in).sum(), handshakes: 0 }
    }

    /// The path over the line is up, or down.
    fn set_line_up(&mut self, now: Instant, (at, n): Place, up: bool) {
        let line = &self.lines[at];
        if let Some(path) = line.each[n].path {
            self.relay.endpoint.set_path_up(now, line.peer, path, up);
        }
    }

    /// The manager wants the line.
    pub(super) fn raise_one(&mut self, now: Instant, (at, n): Place, attempt: u32) {
        let line = &mut self.lines[at];
        crate::log!(Debug, "the line is raised", peer = line.title(n), attempt = attempt);
        if let Some(modem) = line.each[n].modem {
            return self.dial_modem(now, (at, n), modem);
        }
        match line.settings.lines[n].raise.clone() {
            Some(command) => {
                let patience = line.settings.manager.carriers[n].dial_timeout;
                line.each[n].commands.raise(command, patience.to_std());
            }
            None => self.on_carrier(now, (at, n), false),
        }
    }

    /// The manager wants it no more.
    pub(super) fn hang_up_one(&mut self, now: Instant, (at, n): Place, cause: &DownCause) {
        let line = &mut self.lines[at];
        let drop = line.settings.lines[n].drop.clone();
        if let Some(command) = drop.filter(|_| line.manager.may_be_up(CarrierId(n))) {
            return line.each[n].commands.drop(command);
        }
        self.tell_line(now, at);
        self.set_line_up(now, (at, n), false);
        let (line, relay) = (&mut self.lines[at], &self.relay);
        let is_cut = matches!(
            cause,
            DownCause::MaxCall | DownCause::Budget | DownCause::Ordered | DownCause::NoPeer
        );
        if is_cut {
            line.wait_for_the_next(now, |id| relay.is_undelivered(id));
        }
        if let Some(modem) = line.each[n].modem.and_then(|id| self.carrier.serial_mut(id)) {
            modem.hang_up(now);
            return;
        }
        match line.settings.lines[n].drop.clone() {
            Some(command) => line.each[n].commands.drop(command),
            None => {
                line.each[n].commands.give_up();
                line.manager.handle_ended(now, CarrierId(n), "dropped", &mut line.books);
            }
        }
    }

    fn dial_modem(&mut self, now: Instant, (at, n): Place, modem: link::CarrierId) {
        let line = &mut self.lines[at];
        let calls = line.settings.lines[n].calls();
        match self.carrier.serial_mut(modem).filter(|_| calls) {
            Some(modem) => modem.dial(now),
            None => line.manager.handle_failed(now, CarrierId(n), "only the other end calls"),
        }
    }

    /// A modem has something to tell.
    fn on_modem(&mut self, now: Instant, (at, n): Place, told: Told) {
        let line = &mut self.lines[at];
        let name = line.title(n);
        match told {
            Told::Ready => crate::log!(Debug, "the modem is ready", peer = name),
            Told::Dialling(n) => crate::log!(Debug, "the modem dials", peer = name, number = n + 1),
            Told::Trouble(why) => crate::log!(Warn, "trouble with a modem", peer = name, why = why),
            Told::Connected { incoming, .. } => {
                self.on_carrier(now, (at, n), incoming);
                self.note_call_times(now, (at, n));
            }
            Told::Failed(why) => line.manager.handle_failed(now, CarrierId(n), &why.to_string()),
            Told::Ended(why) => {
                self.tell_line(now, at);
                self.set_line_up(now, (at, n), false);
                let relay = &self.relay;
                let why = (&*why.to_string(), true);
                self.lines[at].on_ended(now, n, why, |id| relay.is_undelivered(id));
            }
        }
    }

    /// The exchange bills a call from its first moment to its last, which come before and after
    /// what is known here.
    fn note_call_times(&mut self, now: Instant, (at, n): Place) {
        let line = &mut self.lines[at];
        if let Some(modem) = line.each[n].modem.and_then(|id| self.carrier.serial(id)) {
            line.manager.handle_noticed_late(CarrierId(n), modem.noticed_late(now));
            line.manager.handle_hang_up_time(CarrierId(n), modem.hang_up_time());
        }
    }

    /// The carrier is there.
    fn on_carrier(&mut self, now: Instant, (at, n): Place, incoming: bool) {
        self.tell_line(now, at);
        let heard = self.heard(now, (at, n));
        let interface = self.interface_of(&self.lines[at], n);
        self.carrier.rebind(&self.poller, UDP, MORE_UDP);
        let has_link = interface.is_none_or(|i| linked().is_none_or(|linked| linked.contains(&i)));
        let line = &mut self.lines[at];
        let one = &mut line.each[n];
        one.has_link = has_link;
        (one.heard_before, one.connected_at, one.silent_since) = (heard, now, None);
        line.manager.handle_connected(now, CarrierId(n), incoming, &mut line.books);
        self.set_line_up(now, (at, n), true);
    }

    /// A carrier on which the link has been silent for long is gone, whoever still bills it.
    fn look_at_silence(&mut self, now: Instant, (at, n): Place) {
        let line = &mut self.lines[at];
        let peer = self.peers.with_id(line.peer);
        let (is_alone, lines) = (line.is_alone(), line.each.len());
        let one = &mut line.each[n];
        let since = match is_alone {
            true => peer.and_then(|peer| peer.silent_since),
            false => one.unheard_since,
        };
        let patience = match line.manager.state(one.id) {
            Some(State::Up { .. } | State::Lingering { .. }) if lines > 1 => SILENCE_BESIDE,
            Some(state) if state.carries() => SILENCE,
            _ => return,
        };
        let Some(since) = since else { return };
        if now.since(since.max(one.connected_at)) < patience {
            return;
        }
        let is_first = one.silent_since.replace(since).is_none();
        let (id, modem) = (one.id, one.modem);
        self.set_line_up(now, (at, n), false);
        let line = &mut self.lines[at];
        if is_first {
            line.manager.handle_useless(now, id);
        }
        let told = format!("nothing was heard for {}", lasting(patience));
        if let Some(modem) = modem.and_then(|id| self.carrier.serial_mut(id)) {
            // Once: it takes its time, and tells its end.
            if is_first && modem.hang_up(now) {
                crate::log!(Warn, "a call is hung up", peer = line.title(n), why = told);
            }
            return;
        }
        self.lose_line(now, (at, n), &told);
    }

    /// The carrier that a command raised is gone; what remains of it is dropped.
    fn lose_line(&mut self, now: Instant, (at, n): Place, why: &str) {
        self.tell_line(now, at);
        self.set_line_up(now, (at, n), false);
        let (line, relay) = (&mut self.lines[at], &self.relay);
        let drop = line.settings.lines[n].drop.clone();
        line.on_ended(now, n, (why, drop.is_none()), |id| relay.is_undelivered(id));
        if let Some(command) = drop {
            line.each[n].commands.drop(command);
        }
    }

    /// The interface that commands raise a line on, where the file names it.
    fn interface_of(&self, line: &ManagedLine, n: usize) -> Option<String> {
        let carrier = line.settings.lines[n].carrier.filter(|_| line.each[n].modem.is_none())?;
        let peer = self.peers.with_id(line.peer)?;
        peer.config.carriers.get(carrier)?.binding.interface.clone()
    }

    /// These interfaces have a link. A line whose interface has lost its is lost; one whose
    /// interface has none yet, as while a terminal registers, has the time of any that rises.
    pub(in crate::up::shard) fn follow_line_links(&mut self, now: Instant, linked: &[String]) {
        for at in 0..self.lines.len() {
            for n in 0..self.lines[at].each.len() {
                let Some(interface) = self.interface_of(&self.lines[at], n) else { continue };
                let line = &mut self.lines[at];
                let has_link = linked.contains(&interface);
                let had_link = std::mem::replace(&mut line.each[n].has_link, has_link);
                if had_link && !has_link && line.is_up(CarrierId(n)) {
                    line.manager.handle_useless(now, CarrierId(n));
                    self.lose_line(now, (at, n), &format!("{interface} has no link"));
                }
            }
        }
    }
}
