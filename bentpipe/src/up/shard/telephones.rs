//! Telephone lines that answer for all peers (R-MODEM). Who calls is found by his keys. Packets for
//! that peer go by the line until the call ends, and wait then for his next call, on whichever
//! line. A call that no peer proves to be his is hung up after the time of a handshake, and
//! counted; one in which nothing comes any more, after `idle`.

use control::{Event, TelephoneReport};
use dial::hayes::{Cause, Told};
use link::{PeerId, Remote};
use units::{BitRate, Duration, Instant};

use super::Shard;
use super::telephone_line::{Call, TelephoneLine};
use crate::config::Peer;
use crate::up::peers::may_telephone;

/// What is taken to call where no peer of the file does: a Mini-M.
const SLOWEST: (BitRate, Duration) = (BitRate::from_bps(1_920), Duration::from_secs(2));

impl Shard {
    /// The rate and the round trip of the slowest peer that may call: how long a handshake takes.
    fn slowest_caller(&self) -> (BitRate, Duration) {
        let node = &self.config.node;
        let callers = self.config.peers.iter().filter(|peer| may_telephone(node, peer));
        let facts = |peer: &std::sync::Arc<Peer>| (peer.link.send, peer.link.delay.times(2));
        let (rates, trips): (Vec<_>, Vec<_>) = callers.map(facts).unzip();
        let rate = rates.into_iter().min().unwrap_or(SLOWEST.0);
        let trip = trips.into_iter().max().unwrap_or(SLOWEST.1);
        (rate, trip)
    }

    /// Other peers may call from now on.
    pub(super) fn update_telephones(&mut self) {
        let (rate, trip) = self.slowest_caller();
        for line in &self.telephones {
            if let Some(modem) = self.carrier.serial_mut(line.carrier) {
                modem.set_slowest(rate, trip);
            }
        }
    }

    /// Opens the node's telephone lines.
    pub(in crate::up) fn open_telephones(&mut self) {
        let facts = self.slowest_caller();
        for settings in self.config.node.telephones.clone() {
            match self.carrier.add_serial(&settings.modem, facts, super::MORE_UDP) {
                Some(carrier) => self.telephones.push(TelephoneLine::new(settings, carrier)),
                None => {
                    crate::log!(Error, "too many carriers: no telephone", name = settings.name);
                }
            }
        }
    }

    /// Does what modems tell, and hangs up calls in which nothing comes.
    pub(super) fn work_telephones(&mut self, now: Instant) {
        for at in 0..self.telephones.len() {
            let id = self.telephones[at].carrier;
            while let Some(told) = self.carrier.serial_mut(id).and_then(|line| line.poll_told()) {
                self.on_telephone(now, at, told);
            }
            if self.telephone_idle_at(at).is_some_and(|idle| idle <= now) {
                let line = &mut self.telephones[at];
                line.call.iter_mut().for_each(|call| call.ending = true);
                let name = &line.settings.name;
                crate::log!(Info, "nothing comes by telephone: it is hung up", line = name);
                self.carrier.serial_mut(id).map(|line| line.hang_up(now));
            }
        }
    }

    /// When a call is hung up unless something comes.
    fn telephone_idle_at(&self, at: usize) -> Option<Instant> {
        let line = &self.telephones[at];
        let call = line.call.as_ref().filter(|call| !call.ending)?;
        let heard = self.carrier.serial(line.carrier)?.heard.max(call.since);
        Some(heard + line.settings.idle)
    }

    /// When telephone lines have something to do.
    pub(super) fn telephones_timeout(&self) -> Option<Instant> {
        (0..self.telephones.len()).filter_map(|at| self.telephone_idle_at(at)).min()
    }

    fn on_telephone(&mut self, now: Instant, at: usize, told: Told) {
        let line = &mut self.telephones[at];
        let name = &line.settings.name;
        match told {
            Told::Ready => {
                crate::log!(Debug, "the modem is ready", line = name);
                line.is_ready = true;
            }
            Told::Dialling(_) => {}
            Told::Trouble(why) => {
                crate::log!(Warn, "trouble with a modem", line = name, why = why);
                (line.is_ready, line.cause) = (false, why.to_string());
            }
            Told::Connected { .. } => {
                crate::log!(Debug, "a call is answered", line = name);
                line.calls += 1;
                line.call = Some(Call { since: now, peer: None, ending: false });
            }
            Told::Failed(why) => line.cause = why.to_string(),
            Told::Ended(why) => self.on_telephone_ended(now, at, why),
        }
    }

    fn on_telephone_ended(&mut self, now: Instant, at: usize, why: Cause) {
        let line = &mut self.telephones[at];
        let (name, place) = (&line.settings.name, line.place());
        line.cause = why.to_string();
        line.is_ready &= why != Cause::Unplugged;
        let peer = line.call.take().and_then(|call| call.peer);
        if why == Cause::Stranger && peer.is_none() {
            line.strangers += 1;
            crate::log!(Warn, "a stranger called, and is hung up", line = name);
        }
        if let Some(id) = peer {
            let who = self.peers.with_id(id).map_or("", |peer| &peer.config.name);
            crate::log!(Info, "a peer's call is over", line = name, peer = who, why = why);
            if let Some(peer) = self.peers.with_id(id) {
                let (line, cause) = (name.clone(), why.to_string());
                self.tidings.push(peer, Event::Line { line, state: "down".to_owned(), cause });
            }
            self.relay.endpoint.forget_place(now, id, place);
        }
    }

    /// The peer is at this place now: if it is a telephone's, its call is the peer's.
    pub(super) fn follow_caller(&mut self, now: Instant, id: PeerId, to: Remote) {
        let here = |line: &&mut TelephoneLine| line.place() == to;
        let Some(line) = self.telephones.iter_mut().find(here) else { return };
        let Some(call) = &mut line.call else { return };
        let before_call = call.peer.replace(id);
        if let Some(other) = before_call.filter(|other| *other != id) {
            self.relay.endpoint.forget_place(now, other, to);
        }
        let Some(modem) = self.carrier.serial_mut(line.carrier) else { return };
        modem.prove();
        if let Some(peer) = self.peers.with_id(id) {
            modem.set_rate(peer.config.link.send);
            let name = &line.settings.name;
            crate::log!(Info, "a peer called", line = name, peer = peer.config.name);
            if before_call != Some(id) {
                let (line, cause) = (name.clone(), "the peer called".to_owned());
                self.tidings.push(peer, Event::Line { line, state: "up".to_owned(), cause });
            }
        }
    }

    /// The peer was taken out of the file, and has been told.
    pub(super) fn dismiss_caller(&mut self, now: Instant, id: PeerId) {
        for line in &mut self.telephones {
            let Some(call) = line.call.as_mut().filter(|call| call.peer == Some(id)) else {
                continue;
            };
            (call.peer, call.ending) = (None, true);
            self.carrier.serial_mut(line.carrier).map(|line| line.hang_up(now));
        }
    }

    /// Calls are hung up, and the lines closed.
    pub(super) fn end_telephones(&mut self) {
        let (clock, lines) = (self.clock, std::mem::take(&mut self.telephones));
        std::thread::scope(|scope| {
            for line in lines {
                if let Some(call) = self.carrier.take_serial(line.carrier, &self.poller) {
                    scope.spawn(move || call.finish(&clock));
                }
            }
        });
    }

    /// What the operator is told of them.
    pub(in crate::up) fn telephone_reports(&self, now: Instant) -> Vec<TelephoneReport> {
        self.telephones.iter().map(|line| line.report(now, &self.peers)).collect()
    }
}
