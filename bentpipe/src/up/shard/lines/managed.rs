//! A peer's lines, as one manager has them: what waits for them, what crosses, and what that costs.

use std::collections::BTreeMap;
use std::net::IpAddr;

use dial::books::{Books, Host, Name};
use dial::manager::{CarrierId, Command, FlowId as WaitId, Manager, State};
use dial::rules::Flow;
use link::PeerId;
use link::endpoint::PathStatus;
use link::keys::PublicKey;
use relay::{FlowId, StoppedHosts};
use units::{Duration, Instant};

use super::beside::Beside;
use super::one::OneLine;
use super::orders::Orders;
use crate::config::{LINK_CLASS, Line, Peer};
use crate::ledger::Ledger;
use crate::up::shard::standing;

/// Flows of a line that are told apart; those beyond are told as others'.
pub(super) const MOST_FLOWS: usize = 1024;
/// Of connections that moved in so long before their carrier was lost, somebody waits.
pub(super) const LATELY: Duration = Duration::from_secs(10);

/// A line: the place of its peer among those that have lines, and its own among the peer's.
pub(super) type Place = (usize, usize);

/// A peer's lines. They are the first of its manager's carriers, in their order; what is there
/// beside them follows.
pub(in crate::up) struct ManagedLine {
    pub(super) key: PublicKey,
    pub(in crate::up::shard) peer: PeerId,
    pub(super) name: String,
    pub(super) settings: Line,
    pub(super) manager: Manager,
    pub(super) books: Books,
    pub(super) ledger: Ledger,
    pub(super) orders: Orders,
    /// One at least.
    pub(super) each: Vec<OneLine>,
    pub(super) beside: Beside,
    pub(super) waiting: BTreeMap<WaitKey, Waiting>,
    /// When to look at what hosts have sent and this gateway has not taken.
    pub(super) unread_at: Instant,
    pub(super) next_wait: u64,
    /// Bytes of flows that the books do not have yet.
    pub(super) crossed: BTreeMap<FlowKey, Crossing>,
    /// When connections last moved, for the case that their carrier is lost.
    pub(super) moved: BTreeMap<FlowId, (Flow, Instant)>,
    pub(super) told_at: Instant,
    pub(super) clock_at: Instant,
    /// Bytes of link packets, sent and received, that the books have, by carrier.
    pub(super) booked: Vec<[u64; 2]>,
    pub(super) stops: Stops,
}

/// Bytes of a flow that are under way, or have crossed, and that nobody has paid for.
pub(super) struct Crossing {
    pub(super) flow: Flow,
    /// From its host, and to it.
    pub(super) bytes: [u64; 2],
    /// There are more since the manager was told.
    pub(super) is_new: bool,
}

/// Bytes of link packets by carrier, and whose content these carry.
pub(super) struct Carried {
    pub(super) link: Vec<[u64; 2]>,
    /// The carrier of all flows but those of classes that name theirs.
    pub(super) active: CarrierId,
    pub(super) of_class: BTreeMap<String, CarrierId>,
    /// Nothing is under way or waits.
    pub(super) is_drained: bool,
}

impl Carried {
    pub(super) fn carrier_of(&self, flow: &Flow) -> CarrierId {
        self.of_class.get(&*flow.class).copied().unwrap_or(self.active)
    }
}

/// What a flow with so many of all bytes has of those that were carried. What is compressed crosses
/// in fewer bytes than its host sent, and what is buffered crosses later.
pub(super) fn part(bytes: u64, all: u64, carried: u64) -> u64 {
    if all <= carried {
        return bytes;
    }
    (u128::from(bytes) * u128::from(carried) / u128::from(all)) as u64
}

/// What is one flow to the books and to `why`: host, protocol, port, destination and its name. One
/// resolver is asked for many names.
pub(super) type FlowKey = (Option<IpAddr>, u8, u16, Option<IpAddr>, Option<Name>);

pub(super) fn key_of(flow: &Flow) -> FlowKey {
    let host = match flow.host {
        Host::Addr(addr) => Some(addr),
        Host::Node | Host::Others => None,
    };
    (host, flow.protocol, flow.port, flow.remote, flow.name.clone())
}

/// What waits by itself: a connection, or packets that are not split.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum WaitKey {
    Connection(FlowId),
    Packets(FlowKey),
}

/// The link's own packets: headers, reports, repair.
pub(super) fn own_flow() -> Flow {
    Flow {
        host: Host::Node,
        protocol: 0,
        port: 0,
        remote: None,
        name: None,
        class: LINK_CLASS.into(),
        service: "".into(),
    }
}

/// What the relay was told.
#[derive(Default)]
pub(super) struct Stops {
    pub told: StoppedHosts,
    /// The manager's number for these hosts ([`dial::manager::Manager::stopped_changes`]).
    pub changes: u64,
    /// When to look at which carriers everything goes by, while a host is stopped.
    pub look_at: Instant,
}

/// A flow that waits for the line.
pub(super) struct Waiting {
    /// The manager has it under this number.
    pub id: WaitId,
    pub flow: Flow,
    pub bytes: u64,
    /// Bytes that its host has sent beside these and the gateway has not taken: before the first
    /// contact it takes none, and later only so many.
    pub unread: u64,
    /// Its rule asks how many bytes wait.
    pub counts: bool,
    /// When its host said something last.
    pub said_at: Instant,
}

impl Waiting {
    /// All that waits.
    pub fn all(&self) -> u64 {
        self.bytes + self.unread
    }
}

impl ManagedLine {
    /// Are they this peer's?
    pub fn is_of(&self, peer: &Peer) -> bool {
        self.key == peer.public_key
    }

    /// The peer's key.
    pub(in crate::up::shard) fn key(&self) -> PublicKey {
        self.key
    }

    /// What the operator said of all of them.
    pub(in crate::up::shard) fn command(&self) -> Command {
        self.manager.command()
    }

    /// What commands call a line.
    pub(super) fn own_name(&self, line: CarrierId) -> String {
        let of_several = self.settings.names().nth(line.0).filter(|_| self.each.len() > 1);
        of_several.map_or_else(|| self.name.clone(), |name| format!("{} {name}", self.name))
    }

    /// May the operator raise this line, or any? Not where no money is left for it.
    pub(in crate::up) fn may_raise(
        &self,
        now: Instant,
        which: Option<CarrierId>,
    ) -> Result<(), String> {
        if !self.manager.lacks_money(now, which) {
            return Ok(());
        }
        Err(format!(
            "the month's budget is used up, and no line to \"{}\" is raised: write a higher \
             `budget` and reload, or wait for the next month",
            self.name
        ))
    }

    /// How the lines stand; `None` where they are not raised, or carriers are there beside them.
    pub(in crate::up::shard) fn stand(&self) -> Option<standing::Lines> {
        if !self.settings.raises || !self.beside.is_empty() {
            return None;
        }
        let command = |id| self.manager.line_command(id).unwrap_or(self.manager.command());
        let each = self.each.iter().map(|one| one.id);
        let all = each.filter_map(|id| Some((self.manager.state(id)?, command(id))));
        match standing::lines(all) {
            // The other end calls: there is nothing here that could fail.
            standing::Lines::Failed if self.only_answers() => Some(standing::Lines::Resting),
            stands => Some(stands),
        }
    }

    /// Does none of the lines call?
    pub(super) fn only_answers(&self) -> bool {
        self.settings.lines.iter().all(|line| line.modem.is_some() && !line.calls())
    }

    /// Is a line up?
    pub(super) fn is_any_up(&self) -> bool {
        self.each.iter().any(|one| self.is_up(one.id))
    }

    /// Is this line up?
    pub(super) fn is_up(&self, line: CarrierId) -> bool {
        self.manager.state(line).is_some_and(State::carries)
    }

    /// Does one of them carry, or what is there beside them?
    pub(super) fn carries(&self) -> bool {
        self.is_any_up() || self.beside.carries(&self.manager)
    }

    /// Is there one line, and no other way to the peer?
    pub(super) fn is_alone(&self) -> bool {
        self.each.len() == 1 && self.beside.is_empty()
    }

    /// Bytes of a flow: they wait while there is no carrier, and have crossed while there is.
    pub(super) fn on_bytes(
        &mut self,
        now: Instant,
        id: Option<FlowId>,
        flow: Flow,
        bytes: [u64; 2],
    ) {
        let key = key_of(&flow);
        if self.carries() {
            if let Some(id) = id.filter(|id| self.may_remember(now, id)) {
                self.moved.insert(id, (flow.clone(), now));
            }
            return self.note_crossing(key, flow, bytes);
        }
        let key = id.map_or(WaitKey::Packets(key), WaitKey::Connection);
        if !self.waiting.contains_key(&key) && !self.make_room(now, &flow) {
            return;
        }
        let next = WaitId(self.next_wait);
        self.next_wait += 1;
        // A connection that says nothing waits for its answer all the same.
        let counts = self.settings.manager.rule_of(&flow).then.counts_bytes();
        let new = Waiting { id: next, flow, bytes: 1, unread: 0, counts, said_at: now };
        let waiting = self.waiting.entry(key).or_insert(new);
        (waiting.bytes, waiting.said_at) = (waiting.bytes + bytes[0], now);
        // Some of those that were not taken are those that are told now.
        waiting.unread = waiting.unread.saturating_sub(bytes[0]);
        self.manager.handle_waiting(now, waiting.id, &waiting.flow, waiting.all());
    }

    pub(super) fn note_crossing(&mut self, key: FlowKey, flow: Flow, bytes: [u64; 2]) {
        let is_known = self.crossed.contains_key(&key);
        if !is_known && self.crossed.len() >= MOST_FLOWS {
            return; // The link's own account has them.
        }
        let new = Crossing { flow, bytes: [0, 0], is_new: true };
        let crossing = self.crossed.entry(key).or_insert(new);
        crossing.is_new = true;
        crossing.bytes = [0, 1].map(|way: usize| crossing.bytes[way] + bytes[way]);
    }

    /// Has it a place among those that moved lately?
    pub(super) fn may_remember(&mut self, now: Instant, id: &FlowId) -> bool {
        if self.moved.len() >= MOST_FLOWS && !self.moved.contains_key(id) {
            self.moved.retain(|_, (_, when)| now.since(*when) < LATELY);
        }
        self.moved.len() < MOST_FLOWS || self.moved.contains_key(id)
    }

    /// Tells the manager what crossed, and books what the link itself cost. What a link packet
    /// costs is paid by the flows that have bytes under way, each by its part of these.
    pub(super) fn tell_crossed(&mut self, now: Instant, carried: &Carried) {
        self.told_at = now;
        let mut crossed = std::mem::take(&mut self.crossed);
        for (at, total) in carried.link.iter().enumerate() {
            let (carrier, booked) = (CarrierId(at), self.booked[at]);
            let mut rest = [0, 1].map(|way: usize| total[way].saturating_sub(booked[way]));
            self.booked[at] = *total;
            let here = |c: &&mut Crossing| carried.carrier_of(&c.flow) == carrier;
            let all = crossed
                .values_mut()
                .filter(here)
                .fold([0, 0], |all, c| [0, 1].map(|way: usize| all[way] + c.bytes[way]));
            let link = rest;
            for c in crossed.values_mut().filter(here) {
                let paid = [0, 1].map(|way: usize| part(c.bytes[way], all[way], link[way]));
                c.bytes = [0, 1].map(|way: usize| c.bytes[way] - paid[way]);
                rest = [0, 1].map(|way: usize| rest[way] - paid[way]);
                // What only waits is no use of the link: it may be stuck.
                if std::mem::take(&mut c.is_new) || paid != [0, 0] {
                    self.manager.handle_traffic(now, carrier, &c.flow, paid, &mut self.books);
                }
            }
            if rest != [0, 0] {
                let flow = own_flow();
                self.manager.handle_traffic(now, carrier, &flow, rest, &mut self.books);
            }
        }
        if !carried.is_drained {
            crossed.retain(|_, c| c.bytes != [0, 0]);
            self.crossed = crossed;
        }
    }

    /// Which of the manager's carriers a path goes by.
    pub(super) fn carrier_of(&self, path: &PathStatus) -> CarrierId {
        let at = path.remote.map(|to| to.carrier);
        let is_of = |one: &&OneLine| {
            one.path == Some(path.id) || one.modem.is_some_and(|modem| Some(modem) == at)
        };
        if let Some(one) = self.each.iter().find(is_of) {
            return one.id;
        }
        let others = &self.beside.carriers;
        let own = others.iter().find(|(_, id)| *id == Some(path.id));
        // The peer opened it: it is one that this node does not open.
        let theirs = || others.iter().find(|(_, id)| id.is_none());
        own.or_else(theirs).or(others.first()).map_or(self.each[0].id, |(carrier, _)| *carrier)
    }
}
