//! Flows by number and by stream. A number is not used again at once: it carries a
//! generation, so that a late fact about an old flow meets nobody.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use link::PeerId;
use link::session::{ChosenBy, ClassId};
use link::wire::{StreamId, Target};
use squeeze::dedup::Scope;
use units::{Instant, host_in_network};

use crate::Bytes;

/// Names a flow for the driver.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FlowId {
    slot: u32,
    generation: u32,
}

impl FlowId {
    /// The slot: small, dense numbers for tables of the driver's own.
    pub fn slot(self) -> usize {
        self.slot as usize
    }

    /// Both parts as one number, for poll tokens.
    pub fn to_u64(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.slot)
    }

    /// The inverse of [`FlowId::to_u64`].
    pub fn from_u64(n: u64) -> FlowId {
        FlowId { slot: n as u32, generation: (n >> 32) as u32 }
    }
}

/// One socket's stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Flow {
    pub peer: PeerId,
    /// Which of the sessions with the peer ([`link::endpoint::Endpoint::session_number`]):
    /// in another the stream's number is another stream's.
    pub session: u64,
    pub stream: StreamId,
    pub kind: Kind,
    /// When its host last sent or took something.
    pub moved: Instant,
    /// Where this node connected to for the peer.
    pub to: Option<IpAddr>,
}

/// What a flow's opening and the peer's rules make of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kind {
    pub class: ClassId,
    pub chosen_by: ChosenBy,
    /// The client, where it is known.
    pub host: Option<IpAddr>,
    /// The server's port.
    pub port: u16,
    /// Its client is here.
    pub from_here: bool,
    /// What its socket gives is to be compressed where that pays.
    pub compress: bool,
    /// What of what crossed before it may be found in it; `None`: nothing is looked for.
    pub scope: Option<Scope>,
}

impl Flow {
    fn key(&self) -> (PeerId, u64, StreamId) {
        (self.peer, self.session, self.stream)
    }

    fn holder(&self) -> Holder {
        ((self.peer, self.session), self.kind.host.map(|host| host.to_canonical()))
    }
}

/// What is told of a flow and decides nothing.
#[derive(Clone, Debug)]
pub(crate) struct Life {
    pub began: Instant,
    /// Where it leads.
    pub target: Target,
    /// Content so far.
    pub bytes: Bytes,
}

#[derive(Debug, Default)]
struct Slot {
    generation: u32,
    flow: Option<Flow>,
    life: Option<Box<Life>>,
}

/// A session with a peer, and one of the hosts that have flows in it.
type Holder = ((PeerId, u64), Option<IpAddr>);

fn network_of(host: Option<IpAddr>) -> Option<IpAddr> {
    host.map(|host| host_in_network(host).0)
}

/// All flows of a node.
#[derive(Debug, Default)]
pub(crate) struct Flows {
    slots: Vec<Slot>,
    free: Vec<u32>,
    by_stream: BTreeMap<(PeerId, u64, StreamId), FlowId>,
    by_host: BTreeMap<Holder, BTreeSet<FlowId>>,
    /// How many flows hosts have, networks of hosts, and sessions.
    counts: BTreeSet<((PeerId, u64), usize, Option<IpAddr>)>,
    network_counts: BTreeSet<((PeerId, u64), usize, Option<IpAddr>)>,
    of_network: BTreeMap<Holder, usize>,
    of_session: BTreeMap<(PeerId, u64), usize>,
}

/// Flows of a host that are looked at to find one that it may lose: a table that is full must
/// not make connections dear.
const LOOKED_AT: usize = 128;
/// So many flows a host gets whoever forges addresses of another network, or has many: one host of
/// IPv6 has as many as it likes.
const FEW: usize = 8;

/// Generations stay below this, so that a token has its highest bits free.
const GENERATIONS: u32 = 1 << 24;

impl Flows {
    pub fn insert(&mut self, flow: Flow, target: Target) -> FlowId {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            (self.slots.len() - 1) as u32
        });
        let entry = &mut self.slots[slot as usize];
        entry.flow = Some(flow);
        entry.life = Some(Box::new(Life { began: flow.moved, target, bytes: Bytes::default() }));
        let id = FlowId { slot, generation: entry.generation };
        self.by_stream.insert(flow.key(), id);
        self.by_host.entry(flow.holder()).or_default().insert(id);
        self.recount(flow.holder(), 1);
        id
    }

    /// A host of a session has one flow more, or less.
    fn recount(&mut self, holder: Holder, by: isize) {
        let (session, host) = holder;
        let count = self.by_host.get(&holder).map_or(0, BTreeSet::len);
        self.counts.remove(&(session, count.saturating_add_signed(-by), host));
        if count > 0 {
            self.counts.insert((session, count, host));
        } else {
            self.by_host.remove(&holder);
        }
        let network = network_of(host);
        let of_network = self.of_network.entry((session, network)).or_default();
        self.network_counts.remove(&(session, *of_network, network));
        *of_network = of_network.saturating_add_signed(by);
        if *of_network > 0 {
            self.network_counts.insert((session, *of_network, network));
        } else {
            self.of_network.remove(&(session, network));
        }
        let all = self.of_session.entry(session).or_default();
        *all = all.saturating_add_signed(by);
        if *all == 0 {
            self.of_session.remove(&session);
        }
    }

    /// Flows of a session.
    pub fn of_session(&self, session: (PeerId, u64)) -> usize {
        self.of_session.get(&session).copied().unwrap_or(0)
    }

    /// A flow of the session that gives way to one more of `host`: of the host that has the
    /// most, if that stays ahead, and there what is not interactive before what is, and what
    /// nothing moved in for longest. Addresses of the larger network have to be further behind, and
    /// whoever has few in a smaller one has what the largest network has too many.
    pub fn displaced_by(&self, session: (PeerId, u64), host: Option<IpAddr>) -> Option<FlowId> {
        let host = host.map(|host| host.to_canonical());
        let all = (session, 0, None)..=(session, usize::MAX, None);
        let in_network = |network| self.of_network.get(&(session, network)).copied().unwrap_or(0);
        let own = self.by_host.get(&(session, host)).map_or(0, BTreeSet::len);
        let own_network = in_network(network_of(host));
        let (_, most, largest) = *self.counts.range(all.clone()).next_back()?;
        let ahead = if own_network > in_network(network_of(largest)) { FEW } else { 1 };
        if own + ahead < most {
            return self.first_to_go(self.by_host.get(&(session, largest))?.iter());
        }
        let (_, most, largest) = *self.network_counts.range(all).next_back()?;
        if own >= FEW || own_network + 1 >= most {
            return None;
        }
        let of_network = self.by_host.range((session, largest)..);
        let of_network =
            of_network.take_while(|((s, host), _)| *s == session && network_of(*host) == largest);
        self.first_to_go(of_network.flat_map(|(_, flows)| flows))
    }

    fn first_to_go<'a>(&self, flows: impl Iterator<Item = &'a FlowId>) -> Option<FlowId> {
        let order =
            |id: &FlowId| self.get(*id).map(|flow| (flow.kind.class.is_strict(), flow.moved));
        flows.take(LOOKED_AT).copied().min_by_key(order)
    }

    /// The flow's host sent or took something.
    pub fn moved(&mut self, now: Instant, id: FlowId, bytes: Bytes) {
        if let Some(Slot { flow: Some(flow), life: Some(life), .. }) = self.slot_mut(id) {
            flow.moved = now;
            life.bytes += bytes;
        }
    }

    /// This node connects for the flow's peer.
    pub fn leads_to(&mut self, id: FlowId, to: IpAddr) {
        if let Some(flow) = self.get_mut(id) {
            flow.to = Some(to);
        }
    }

    /// The flow is in another class, which is not its host's choice.
    pub fn set_class(&mut self, id: FlowId, class: ClassId) {
        if let Some(flow) = self.get_mut(id) {
            (flow.kind.class, flow.kind.chosen_by) = (class, ChosenBy::Operator);
        }
    }

    fn get_mut(&mut self, id: FlowId) -> Option<&mut Flow> {
        self.slot_mut(id)?.flow.as_mut()
    }

    fn slot_mut(&mut self, id: FlowId) -> Option<&mut Slot> {
        self.slots.get_mut(id.slot as usize).filter(|slot| slot.generation == id.generation)
    }

    fn slot(&self, id: FlowId) -> Option<&Slot> {
        self.slots.get(id.slot as usize).filter(|slot| slot.generation == id.generation)
    }

    pub fn get(&self, id: FlowId) -> Option<Flow> {
        self.slot(id)?.flow
    }

    /// What is to be told of the flow.
    pub fn life(&self, id: FlowId) -> Option<&Life> {
        self.slot(id)?.life.as_deref()
    }

    pub fn find(&self, peer: PeerId, session: u64, stream: StreamId) -> Option<FlowId> {
        self.by_stream.get(&(peer, session, stream)).copied()
    }

    /// Flows of a host in a session.
    pub fn of_host(
        &self,
        session: (PeerId, u64),
        host: IpAddr,
    ) -> impl Iterator<Item = FlowId> + '_ {
        self.by_host.get(&(session, Some(host.to_canonical()))).into_iter().flatten().copied()
    }

    /// Flows of a session, by stream.
    pub fn in_session(
        &self,
        (peer, session): (PeerId, u64),
    ) -> impl Iterator<Item = (FlowId, Flow)> + '_ {
        let all = (peer, session, StreamId(0))..(peer, session + 1, StreamId(0));
        self.by_stream.range(all).filter_map(|(_, id)| Some((*id, self.get(*id)?)))
    }

    /// Flows of the peer's sessions before `session`.
    pub fn before(&self, peer: PeerId, session: u64) -> Vec<FlowId> {
        let all = (peer, 0, StreamId(0))..(peer, session, StreamId(0));
        self.by_stream.range(all).map(|(_, id)| *id).collect()
    }

    pub fn remove(&mut self, id: FlowId) {
        if let Some(flow) = self.get(id) {
            self.by_stream.remove(&flow.key());
            if let Some(of_host) = self.by_host.get_mut(&flow.holder()) {
                of_host.remove(&id);
            }
            self.recount(flow.holder(), -1);
            let entry = &mut self.slots[id.slot as usize];
            let generation = (entry.generation + 1) % GENERATIONS;
            *entry = Slot { generation, flow: None, life: None };
            self.free.push(id.slot);
        }
    }

    pub fn len(&self) -> usize {
        self.by_stream.len()
    }
}
