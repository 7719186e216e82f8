//! Flows by number and by stream. A number is not used again at once: it carries a
//! generation, so that a late fact about an old flow meets nobody.

use std::collections::BTreeMap;
use std::net::IpAddr;

use link::PeerId;
use link::session::ClassId;
use link::wire::StreamId;
use squeeze::dedup::Scope;

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
}

/// What a flow's opening and the peer's rules make of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kind {
    pub class: ClassId,
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
}

/// All flows of a node.
#[derive(Debug, Default)]
pub(crate) struct Flows {
    slots: Vec<(u32, Option<Flow>)>,
    free: Vec<u32>,
    by_stream: BTreeMap<(PeerId, u64, StreamId), FlowId>,
}

/// Generations stay below this, so that a token has its highest bits free.
const GENERATIONS: u32 = 1 << 24;

impl Flows {
    pub fn insert(&mut self, flow: Flow) -> FlowId {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push((0, None));
            (self.slots.len() - 1) as u32
        });
        let entry = &mut self.slots[slot as usize];
        entry.1 = Some(flow);
        let id = FlowId { slot, generation: entry.0 };
        self.by_stream.insert(flow.key(), id);
        id
    }

    pub fn get(&self, id: FlowId) -> Option<Flow> {
        let (generation, flow) = self.slots.get(id.slot as usize)?;
        flow.filter(|_| *generation == id.generation)
    }

    pub fn find(&self, peer: PeerId, session: u64, stream: StreamId) -> Option<FlowId> {
        self.by_stream.get(&(peer, session, stream)).copied()
    }

    /// Flows of the peer's sessions before `session`.
    pub fn before(&self, peer: PeerId, session: u64) -> Vec<FlowId> {
        let all = (peer, 0, StreamId(0))..(peer, session, StreamId(0));
        self.by_stream.range(all).map(|(_, id)| *id).collect()
    }

    pub fn remove(&mut self, id: FlowId) {
        if let Some(flow) = self.get(id) {
            self.by_stream.remove(&flow.key());
            let entry = &mut self.slots[id.slot as usize];
            *entry = ((entry.0 + 1) % GENERATIONS, None);
            self.free.push(id.slot);
        }
    }

    pub fn len(&self) -> usize {
        self.by_stream.len()
    }
}
