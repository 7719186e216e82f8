//! The ship's line: its manager, driven as the gateway drives it, and its modem.

use std::collections::BTreeMap;
use std::net::IpAddr;

use dial::books::{Books, Host};
use dial::manager::{CarrierId, FlowId as WaitId, Manager, State};
use dial::rules::Flow;
use link::PeerId;
use link::endpoint::PathStatus;
use link::session::ClassId;
use relay::{FlowId, Moved, Relay, Target};
use units::{Duration, Instant, Rng};

use super::plan::CallPlan;

/// The line, among the manager's carriers.
pub(super) const LINE: CarrierId = CarrierId(0);
/// The carrier beside it.
pub(super) const SAT: CarrierId = CarrierId(1);
/// How often the manager is told what crossed.
pub(super) const SPACING: Duration = Duration::from_millis(100);
/// How often the carrier beside is looked at, and how long it has at the start.
const LOOK: Duration = Duration::from_secs(1);
const GRACE: Duration = Duration::from_secs(10);
/// A carrier on which nothing is heard for so long is taken for lost.
const SILENCE: Duration = Duration::from_secs(60);
/// Of connections that moved in so long before their carrier was lost, somebody waits.
const LATELY: Duration = Duration::from_secs(10);

/// What the modem does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Modem {
    Idle,
    /// It will be so far then; true: answered.
    Dialling(Instant, bool),
    /// In a call: when that drops, and from when on nothing passes.
    Online {
        drops_at: Instant,
        silent_from: Instant,
    },
    /// It hangs up, which is done then.
    Ending(Instant),
}

impl Modem {
    /// When it has something to tell.
    pub fn due(self) -> Option<Instant> {
        match self {
            Modem::Idle => None,
            Modem::Dialling(at, _) | Modem::Ending(at) => Some(at),
            Modem::Online { drops_at, .. } => Some(drops_at).filter(|at| *at < Instant::FAR_FUTURE),
        }
    }

    /// Do packets pass?
    pub fn passes(self, now: Instant) -> bool {
        matches!(self, Modem::Online { silent_from, .. } if now < silent_from)
    }

    /// A call that was answered now.
    pub fn answered(now: Instant, plan: &CallPlan, rng: &mut Rng) -> Modem {
        let healed = now >= plan.heal_at;
        let mut at = |odds: u64| match !healed && rng.below(100) < odds {
            true => now + Duration::from_millis(rng.between(100, 240_000)),
            false => Instant::FAR_FUTURE,
        };
        Modem::Online { drops_at: at(plan.drops), silent_from: at(plan.silences) }
    }
}

pub(super) struct Line {
    pub manager: Manager,
    pub books: Books,
    pub modem: Modem,
    /// The number of the call, so that nothing of one arrives in the next.
    pub call: u64,
    waiting: BTreeMap<FlowId, (WaitId, Flow, u64)>,
    next_wait: u64,
    moved: BTreeMap<FlowId, (Flow, Instant)>,
    crossed: BTreeMap<FlowId, Flow>,
    booked: [[u64; 2]; 2],
    pub told_at: Instant,
    pub look_at: Instant,
    connected_at: Instant,
    heard_before: u64,
    silent_since: Option<Instant>,
    has_beside: bool,
}

fn flow_of(moved: &Moved) -> Flow {
    let (remote, port) = match &moved.target {
        Target::Address(to) => (Some(to.ip()), to.port()),
        _ => (None, 0),
    };
    let class = if moved.class == ClassId::BULK { "bulk" } else { "normal" };
    let host = moved.host.map_or(Host::Node, Host::Addr);
    Flow { class: class.into(), protocol: 6, host, port, remote, name: None, service: "".into() }
}

/// The link's own packets: headers, reports, repair.
fn own_flow() -> Flow {
    let none: Option<IpAddr> = None;
    let class = "link".into();
    Flow {
        host: Host::Node,
        protocol: 0,
        port: 0,
        remote: none,
        name: None,
        class,
        service: "".into(),
    }
}

/// By which of the manager's carriers a path goes.
pub(super) fn carrier_of(path: &PathStatus) -> CarrierId {
    path.remote.map_or(LINE, |to| CarrierId(usize::from(to.carrier.0)))
}

impl Line {
    pub fn new(plan: &CallPlan, now: Instant) -> Line {
        let manager = Manager::new(plan.manager.clone(), now, plan.wall);
        let mut line = Line {
            manager: manager.expect("a drawn configuration is right"),
            books: Books::new(),
            modem: Modem::Idle,
            call: 0,
            waiting: BTreeMap::new(),
            next_wait: 0,
            moved: BTreeMap::new(),
            crossed: BTreeMap::new(),
            booked: [[0; 2]; 2],
            told_at: now,
            look_at: now,
            connected_at: now,
            heard_before: 0,
            silent_since: None,
            has_beside: plan.beside.is_some(),
        };
        if line.has_beside {
            line.manager.handle_connected(now, SAT, false, &mut line.books);
            line.manager.handle_ready(now, SAT);
        }
        line
    }

    pub fn is_up(&self) -> bool {
        self.manager.state(LINE).is_some_and(State::carries)
    }
    pub fn beside_carries(&self) -> bool {
        self.manager.state(SAT).is_some_and(State::carries)
    }
    fn carries(&self) -> bool {
        self.is_up() || self.beside_carries()
    }

    /// A connection began, moved or is over.
    pub fn on_moved(&mut self, now: Instant, id: FlowId, moved: &Moved) {
        let bytes = moved.bytes.sent;
        if !moved.closed || moved.bytes.sent + moved.bytes.received > 0 {
            self.on_bytes(now, id, flow_of(moved), bytes);
        }
        if moved.closed {
            self.moved.remove(&id);
            if let Some((wait, ..)) = self.waiting.remove(&id) {
                self.manager.handle_waiting(now, wait, &own_flow(), 0);
            }
        }
    }

    fn on_bytes(&mut self, now: Instant, id: FlowId, flow: Flow, bytes: u64) {
        if self.carries() {
            self.moved.insert(id, (flow.clone(), now));
            self.crossed.insert(id, flow);
            return;
        }
        let next = WaitId(self.next_wait);
        self.next_wait += 1;
        let waiting = self.waiting.entry(id).or_insert((next, flow, 1));
        waiting.2 += bytes;
        self.manager.handle_waiting(now, waiting.0, &waiting.1, waiting.2);
    }

    /// What waited crosses now.
    fn forget_waiting(&mut self, now: Instant) {
        for (id, (wait, flow, _)) in std::mem::take(&mut self.waiting) {
            self.manager.handle_waiting(now, wait, &own_flow(), 0);
            // Its host may have said everything by now: if the call is lost it waits again.
            self.moved.insert(id, (flow.clone(), now));
            self.crossed.insert(id, flow);
        }
    }

    /// The manager has other rules and hears again of all that waits.
    pub fn tell_waiting(&mut self, now: Instant) {
        for (wait, flow, bytes) in self.waiting.values() {
            self.manager.handle_waiting(now, *wait, flow, *bytes);
        }
    }

    /// What the carrier was lost for wants it again.
    fn wait_again(&mut self, now: Instant, lost: Instant, relay: &Relay) {
        let moved = std::mem::take(&mut self.moved);
        if self.carries() {
            return;
        }
        for (id, (flow, when)) in moved {
            if lost.since(when) < LATELY || relay.is_undelivered(id) {
                self.on_bytes(now, id, flow, 0);
            }
        }
    }

    /// Tells the manager what crossed. One connection of a carrier pays for all of it: whom of
    /// several the books name is none of the checks here.
    pub fn tell_crossed(&mut self, now: Instant, relay: &Relay, peer: PeerId) {
        self.told_at = now;
        let crossed: Vec<Flow> = self.crossed.values().cloned().collect();
        // What a connection still has under way pays for what crosses next.
        self.crossed.retain(|id, _| relay.is_undelivered(*id));
        let paths = relay.endpoint.paths(now, peer);
        let active = paths.iter().find(|p| p.is_active).map_or(LINE, carrier_of);
        let bulk = 1 << ClassId::BULK.index();
        let of_bulk = paths.iter().find(|p| p.classes & bulk > 0).map(carrier_of);
        for path in &paths {
            let carrier = carrier_of(path);
            let total = [path.traffic.bytes_out, path.traffic.bytes_in];
            let booked = std::mem::replace(&mut self.booked[carrier.0], total);
            let mut rest = [0, 1].map(|way: usize| total[way].saturating_sub(booked[way]));
            for flow in &crossed {
                let its = if &*flow.class == "bulk" { of_bulk.unwrap_or(active) } else { active };
                if its == carrier && total != booked {
                    let paid = std::mem::take(&mut rest);
                    self.manager.handle_traffic(now, carrier, flow, paid, &mut self.books);
                }
            }
            if rest != [0, 0] {
                self.manager.handle_traffic(now, carrier, &own_flow(), rest, &mut self.books);
            }
        }
    }

    fn heard(&self, now: Instant, relay: &Relay, peer: PeerId) -> u64 {
        let paths = relay.endpoint.paths(now, peer);
        paths.iter().filter(|p| carrier_of(p) == LINE).map(|p| p.traffic.packets_in).sum()
    }

    /// The carrier is there.
    pub fn on_carrier(&mut self, now: Instant, relay: &Relay, peer: PeerId) {
        self.tell_crossed(now, relay, peer);
        self.heard_before = self.heard(now, relay, peer);
        (self.connected_at, self.silent_since) = (now, None);
        self.manager.handle_connected(now, LINE, false, &mut self.books);
    }

    /// The call is over; if nobody here ended it, it is lost.
    pub fn on_ended(&mut self, now: Instant, why: &str, relay: &Relay) {
        let since = self.silent_since.take().unwrap_or(now);
        let is_lost = self.is_up();
        self.manager.handle_ended(now, LINE, why, &mut self.books);
        // What has not arrived waits again also where the manager ended the call in the middle of
        // it.
        let since = if is_lost { since } else { Instant::FAR_FUTURE };
        self.wait_again(now, since, relay);
    }

    /// What is looked at again and again: whether the peer is heard, and the carrier beside. True:
    /// the line is silent and is to be hung up.
    pub fn look(&mut self, now: Instant, relay: &Relay, peer: PeerId) -> bool {
        if now.since(self.told_at) >= SPACING && self.carries() {
            self.tell_crossed(now, relay, peer);
            let rises = matches!(self.manager.state(LINE), Some(State::Rising { .. }));
            if rises && self.heard(now, relay, peer) > self.heard_before {
                self.manager.handle_ready(now, LINE);
                self.forget_waiting(now);
            }
        }
        if now < self.look_at {
            return false;
        }
        self.look_at = now + LOOK;
        let paths = relay.endpoint.paths(now, peer);
        self.look_beside(now, relay, &paths);
        let alive = paths.iter().any(|p| carrier_of(p) == LINE && p.is_alive);
        let silent = self.silent_since.unwrap_or(now);
        self.silent_since = (!alive).then_some(silent);
        let since = self.silent_since.map(|since| since.max(self.connected_at));
        self.is_up() && since.is_some_and(|since| now.since(since) >= SILENCE)
    }

    fn look_beside(&mut self, now: Instant, relay: &Relay, paths: &[PathStatus]) {
        let Some(path) = paths.iter().find(|p| self.has_beside && carrier_of(p) == SAT) else {
            return;
        };
        let fresh = now < Instant::ZERO + GRACE;
        let works =
            path.fault.is_none_or(|why| fresh && why == link::session::Why::NothingReceived);
        let worked = self.beside_carries();
        if works && !worked {
            self.manager.handle_connected(now, SAT, false, &mut self.books);
            self.manager.handle_ready(now, SAT);
            self.forget_waiting(now);
        } else if worked && !works {
            self.manager.handle_ended(now, SAT, "not there", &mut self.books);
            self.wait_again(now, path.traffic.heard.unwrap_or(now), relay);
        }
    }

    /// When it has something to do.
    pub fn timeout(&self, now: Instant) -> Option<Instant> {
        let tells = (self.is_up() || !self.crossed.is_empty() && self.carries())
            .then(|| self.told_at + SPACING);
        let manager = self.manager.poll_timeout().map(|(at, _)| at.max(now));
        let looks = self.has_beside || self.is_up();
        let look = looks.then_some(self.look_at);
        [tells, manager, look, self.modem.due()].into_iter().flatten().min()
    }
}
