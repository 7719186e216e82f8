//! What happens next among many nodes: a heap of events, each of which concerns a node or a
//! channel.
//!
//! What an event touched is polled until there is nothing left, and then asked when it wants to be
//! woken next. An event that was set for a time that is no longer true is skipped when it comes.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use channel::{Channel, ChannelConfig, Fate, QueueLimit, flip_bit};
use link::keys::PublicKey;
use link::session::RateMode;
use link::tunnel::PacketKind;
use relay::Action;
use units::{ByteCount, Duration, Instant, Rng};

use super::node::{NetNode, address, node_at};
use super::plan::{NetFaultKind, NetPlan};
use super::run::NetReport;
use super::traffic::{Pipe, Talk};
use crate::Trace;
use crate::check::{Digest, Failure};

/// A packet between nodes.
#[derive(Clone, Debug)]
pub(crate) struct Wire {
    from: usize,
    to: usize,
    bytes: Vec<u8>,
}

/// What an event is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Event {
    /// A node's driver wakes.
    Wakes(usize),
    /// Something may have arrived by a channel.
    Arrives(usize),
    FaultBegins(usize),
    FaultEnds(usize),
    /// A client connects.
    Opens(usize),
    /// A host of a connection (0 client, 1 server) does something.
    Acts(usize, usize),
}

/// How often something may happen without any time passing, for each node.
const MOST_AT_ONCE: u64 = 2_000;
const HEADERS: u64 = 28;

pub(crate) struct Net<'a> {
    pub plan: &'a NetPlan,
    pub trace: Option<Trace<'a>>,
    pub now: Instant,
    pub nodes: Vec<NetNode>,
    pub talks: Vec<Talk>,
    pub pipes: Vec<Pipe>,
    pub digest: Digest,
    pub report: NetReport,
    /// Hosts whose connection is not over.
    pub open_hosts: usize,
    pub scratch: Vec<u8>,
    /// What all sessions do wrong.
    #[cfg(test)]
    pub mistake: Option<link::session::Mistake>,
    /// Beside each, for when it is set.
    channels: Vec<(Channel<Wire>, Option<Instant>)>,
    keys: Vec<PublicKey>,
    /// By node and destination, the neighbour on the way there.
    pub ways: Vec<Vec<usize>>,
    events: BinaryHeap<Reverse<(Instant, u64, Event)>>,
    serial: u64,
    at_once: u64,
    dirty: Vec<usize>,
    buffer: Vec<u8>,
}

impl<'a> Net<'a> {
    pub fn new(plan: &'a NetPlan, trace: Option<Trace<'a>>) -> Net<'a> {
        let mut rng = Rng::new(plan.seed ^ 0x2_0dd0_5eed);
        let nodes: Vec<NetNode> =
            (0..plan.nodes).map(|node| NetNode::new(node, plan, &mut rng)).collect();
        let keys = nodes.iter().map(NetNode::public_key).collect();
        let channels = (0..plan.channels.len()).map(|n| {
            let channel = Channel::new(channel_config(n, plan), rng.next_u64());
            let channel = channel.expect("the plan's rates are above zero");
            (channel.with_series(Duration::from_secs(3_600), 1), None)
        });
        let channels = channels.collect();
        let mut net = Net {
            plan,
            trace,
            now: Instant::from_nanos(1),
            nodes,
            talks: Vec::new(),
            pipes: Vec::new(),
            digest: Digest::new(plan.seed),
            report: NetReport { seed: plan.seed, ..NetReport::default() },
            open_hosts: 0,
            scratch: Vec::new(),
            #[cfg(test)]
            mistake: None,
            channels,
            keys,
            ways: plan.next_hops(),
            events: BinaryHeap::new(),
            serial: 0,
            at_once: 0,
            dirty: Vec::new(),
            buffer: vec![0; 2048],
        };
        for (i, fault) in plan.faults.iter().enumerate() {
            net.set(fault.from, Event::FaultBegins(i));
            net.set(fault.until, Event::FaultEnds(i));
        }
        for demand in &plan.demands {
            net.add(*demand);
        }
        (0..plan.nodes).for_each(|node| net.start(node));
        net
    }

    /// Sets something for a time.
    pub fn set(&mut self, at: Instant, event: Event) {
        self.serial += 1;
        self.events.push(Reverse((at, self.serial, event)));
    }

    pub fn fail<T>(&self, what: impl Into<String>) -> Result<T, Failure> {
        let repeat = self.plan.arguments.clone();
        Err(Failure { repeat, at: self.now, what: what.into() })
    }

    pub fn trace(&mut self, what: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace(self.now, what());
        }
    }

    /// A node is to be polled.
    pub fn touch(&mut self, node: usize) {
        if !std::mem::replace(&mut self.nodes[node].dirty, true) {
            self.dirty.push(node);
        }
    }

    /// Runs until `done` says so or `until` has come; answers whether it was the first.
    pub fn run(
        &mut self,
        until: Instant,
        done: impl Fn(&Net<'_>) -> bool,
    ) -> Result<bool, Failure> {
        loop {
            self.settle()?;
            if done(self) {
                return Ok(true);
            }
            match self.events.peek() {
                Some(Reverse((at, ..))) if *at <= until => {}
                _ => {
                    self.now = self.now.max(until);
                    return Ok(false);
                }
            }
            let Some(Reverse((at, _, event))) = self.events.pop() else { continue };
            self.at_once = if at > self.now { 0 } else { self.at_once + 1 };
            if self.at_once > MOST_AT_ONCE * self.nodes.len() as u64 {
                return self.fail(format!("time stands still, at {event:?}"));
            }
            self.now = self.now.max(at);
            self.happen(at, event)?;
        }
    }

    fn happen(&mut self, at: Instant, event: Event) -> Result<(), Failure> {
        match event {
            Event::Wakes(node) => {
                if self.nodes[node].wake.is_some_and(|(_, wake)| wake == at) {
                    self.nodes[node].wake = None;
                    if let Some(relay) = &mut self.nodes[node].relay {
                        relay.handle_timeout(self.now);
                        self.digest.take(self.now.as_nanos());
                        self.report.wakes += 1;
                    }
                    self.touch(node);
                }
                Ok(())
            }
            Event::Arrives(channel) => match self.channels[channel].1 == Some(at) {
                true => self.arrivals(channel),
                false => Ok(()),
            },
            Event::FaultBegins(i) => self.begin_fault(i),
            Event::FaultEnds(i) => {
                self.end_fault(i);
                Ok(())
            }
            Event::Opens(i) => self.open(i),
            Event::Acts(i, side) => self.act(i, side),
        }
    }

    // ---- packets ---------------------------------------------------------------

    fn arrivals(&mut self, channel: usize) -> Result<(), Failure> {
        while let Some(arrival) = self.channels[channel].0.pop(self.now) {
            let Wire { from, to, mut bytes } = arrival.item;
            match arrival.fate {
                Fate::Lost(_) => continue,
                Fate::Corrupted(draw) => flip_bit(&mut bytes, draw),
                Fate::Delivered => {}
            }
            self.digest.take(self.now.as_nanos() ^ to as u64);
            let Some(relay) = &mut self.nodes[to].relay else { continue };
            relay.handle_carrier(self.now, self.now, address(from), &mut bytes);
            self.look_at(to, from)?;
            self.touch(to);
        }
        self.set_channel(channel);
        Ok(())
    }

    /// A channel has something at another time than was thought.
    fn set_channel(&mut self, channel: usize) {
        let (it, set) = &mut self.channels[channel];
        let next = it.next_time().map(|at| at.max(self.now));
        if *set != next {
            *set = next;
            if let Some(at) = next {
                self.set(at, Event::Arrives(channel));
            }
        }
    }

    /// Polls those nodes that something happened to until there is nothing left.
    fn settle(&mut self) -> Result<(), Failure> {
        while let Some(node) = self.dirty.pop() {
            self.nodes[node].dirty = false;
            #[cfg(test)]
            if let Some(mistake) = self.mistake {
                self.nodes[node].plant(mistake);
            }
            while self.act_all(node)? | self.transmit_all(node)? {}
            let before = self.nodes[node].wake.map(|(_, at)| at);
            let at = self.nodes[node].wake_at(self.now, self.plan.lateness);
            if let Some(at) = at.filter(|at| Some(*at) != before) {
                self.set(at, Event::Wakes(node));
            }
        }
        Ok(())
    }

    fn transmit_all(&mut self, node: usize) -> Result<bool, Failure> {
        let mut any = false;
        let mut buffer = std::mem::take(&mut self.buffer);
        while let Some(relay) = &mut self.nodes[node].relay {
            let Some(transmit) = relay.poll_transmit(self.now, &mut buffer) else { break };
            any = true;
            let to = transmit.to.addr.and_then(node_at);
            self.push(node, to, &buffer[..transmit.len])?;
        }
        self.buffer = buffer;
        Ok(any)
    }

    fn push(&mut self, node: usize, to: Option<usize>, bytes: &[u8]) -> Result<(), Failure> {
        let len = ByteCount(bytes.len() as u64 + HEADERS);
        let kind = PacketKind::of(bytes);
        // What a rate that is learned may be at a moment only its controller knows.
        let fixed = self.plan.mode == RateMode::Fixed;
        let paced = fixed && matches!(kind, Some(PacketKind::Data { .. })) && bytes.len() > 60;
        self.digest.take_tail(bytes);
        self.digest.take(self.now.as_nanos());
        self.report.packets += 1;
        self.report.packet_bytes += len.0;
        let now = self.now;
        let Some(to) = to.filter(|to| self.nodes[node].neighbour(*to).is_some()) else {
            return self.fail(format!("node {node} sends to {to:?}, which is no peer of its"));
        };
        let Some(neighbour) = self.nodes[node].neighbour_mut(to) else { return Ok(()) };
        let channel = neighbour.channel;
        let early = neighbour.meter.on_packet(now, len, paced);
        self.trace(|| format!("node {node} sends {} bytes to node {to}: {kind:?}", len.0));
        if early > Duration::ZERO {
            return self
                .fail(format!("node {node} exceeds the rate to node {to}: {early} too early"));
        }
        let wire = Wire { from: node, to, bytes: bytes.to_vec() };
        if self.channels[channel].0.push(now, len, wire).is_err() {
            self.report.overflows += 1;
            if self.plan.queue.is_none() {
                return self.fail(format!(
                    "node {node} overran channel {channel}, which has room for what clocks promise"
                ));
            }
        }
        let queued = self.channels[channel].0.waiting().0;
        self.report.longest_queue = self.report.longest_queue.max(queued);
        self.set_channel(channel);
        Ok(())
    }

    // ---- what a node asks for --------------------------------------------------

    fn act_all(&mut self, node: usize) -> Result<bool, Failure> {
        let mut any = false;
        while let Some(relay) = &mut self.nodes[node].relay {
            let Some(action) = relay.poll_action(self.now) else { break };
            any = true;
            self.carry_out(node, action)?;
        }
        while let Some(relay) = &mut self.nodes[node].relay
            && let Some((peer, event)) = relay.poll_link_event()
        {
            self.trace(|| format!("node {node}, {peer:?}: {event:?}"));
        }
        Ok(any)
    }

    fn carry_out(&mut self, node: usize, action: Action) -> Result<(), Failure> {
        self.trace(|| format!("node {node}: {action:?}"));
        self.digest.take(self.now.as_nanos());
        match action {
            Action::Connect { flow, target, source } => self.connect(node, flow, &target, source),
            Action::Write(flow) | Action::Read(flow) | Action::PeerReset(flow, _) => {
                self.serve_flow(node, flow)
            }
            Action::Accepted(_) => Ok(()),
            Action::Abort(flow, reason) => self.abort(node, flow, reason),
            Action::ServiceConnect { .. }
            | Action::ServiceRefused(..)
            | Action::ToClient(_)
            | Action::ToHost(_) => self.fail(format!("nobody asked node {node} for {action:?}")),
        }
    }

    // ---- faults ----------------------------------------------------------------

    fn begin_fault(&mut self, i: usize) -> Result<(), Failure> {
        let fault = self.plan.faults[i];
        self.trace(|| format!("begins: {:?}", fault.kind));
        match fault.kind {
            NetFaultKind::Restart(node) => self.die(node),
            NetFaultKind::Dark(channel) => {
                self.channels[channel].0.set_outage(self.now, true);
                self.set_channel(channel);
                Ok(())
            }
        }
    }

    fn end_fault(&mut self, i: usize) {
        let fault = self.plan.faults[i];
        self.trace(|| format!("ends: {:?}", fault.kind));
        match fault.kind {
            NetFaultKind::Restart(node) => self.start(node),
            NetFaultKind::Dark(channel) => {
                self.channels[channel].0.set_outage(self.now, false);
                self.set_channel(channel);
            }
        }
    }

    fn start(&mut self, node: usize) {
        self.nodes[node].start(self.now, self.plan, &self.keys, &self.ways[node]);
        self.touch(node);
    }

    /// How many packets are in the channels.
    pub fn in_channels(&self) -> usize {
        self.channels.iter().map(|(channel, _)| channel.held()).sum()
    }
}

/// The channel, with room for what pacers may send ahead on it, of all its links at once,
/// if the plan says nothing else.
fn channel_config(n: usize, plan: &NetPlan) -> ChannelConfig {
    let mut room = 0;
    for link in &plan.links {
        for (end, _) in link.channels.iter().enumerate().filter(|(_, of)| **of == n) {
            room += link.rates[end].bytes_in(Duration::from_millis(50)).0 + 16_000;
        }
    }
    ChannelConfig {
        rate: Some(plan.channels[n]),
        delay: plan.delay,
        loss: plan.loss,
        queue: match plan.queue {
            Some(time) => QueueLimit::Time(time),
            None => QueueLimit::Bytes(ByteCount(room)),
        },
        ..ChannelConfig::default()
    }
}
