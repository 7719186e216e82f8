//! Connections among many nodes. One that leads over several hops is a stream on each, and a socket
//! pair at each node between, as the program's interception makes of it.

use std::collections::VecDeque;
use std::net::SocketAddr;

use link::session::RecvState;
use relay::{FlowId, Origin, ResetReason, Target};
use units::Instant;

use super::node::{Socket, host_address, host_at};
use super::plan::{Demand, NetFaultKind};
use super::world::{Event, Net};
use crate::check::Failure;
use crate::host::{self, Host};
use crate::pattern::Pattern;

/// A connection and its two hosts, the client first.
#[derive(Debug)]
pub(crate) struct Talk {
    pub plan: Demand,
    /// `None` until the client connects and the server is asked.
    pub hosts: [Option<Host>; 2],
    pub ended_at: Option<Instant>,
    /// A node on its way died: it may be reset.
    pub met_a_death: bool,
    patterns: [Pattern; 2],
}

impl Talk {
    /// Both hosts have seen an orderly end of both directions.
    pub fn ended_well(&self) -> bool {
        self.hosts.iter().all(|h| h.as_ref().is_some_and(|h| h.is_over() && h.reset.is_none()))
    }
}

/// What the two sockets of a node between have of a connection: by direction, the first client's.
#[derive(Debug)]
pub(crate) struct Pipe {
    node: usize,
    connection: usize,
    flows: [Option<FlowId>; 2],
    waiting: [VecDeque<u8>; 2],
    /// The flow has given all that it will, and the other has taken it.
    ended: [bool; 2],
    passed: [bool; 2],
}

/// What each direction of such a pair of sockets buffers.
const PIPE: usize = 256 << 10;

impl Net<'_> {
    /// Adds a connection, which begins when its time has come.
    pub fn add(&mut self, plan: Demand) -> usize {
        let index = self.talks.len();
        let key = self.plan.seed.wrapping_mul(0x1_0000_0001).wrapping_add(index as u64 * 2);
        self.talks.push(Talk {
            plan,
            hosts: [None, None],
            ended_at: None,
            met_a_death: false,
            patterns: [Pattern::new(key), Pattern::new(key + 1)],
        });
        self.report.delivered.push(0);
        self.report.window.push(0);
        self.set(plan.at, Event::Opens(index));
        index
    }

    // ---- beginnings ------------------------------------------------------------

    /// A client connects.
    pub(crate) fn open(&mut self, index: usize) -> Result<(), Failure> {
        let [node, to] = self.talks[index].plan.nodes;
        self.report.connections += 1;
        // Whoever died may not be known to have.
        let died =
            |k: NetFaultKind| matches!(k, NetFaultKind::Restart(n) if self.is_on_way(index, n));
        let mut faults = self.plan.faults.iter();
        self.talks[index].met_a_death =
            self.now < self.plan.heal_at && faults.any(|f| f.from <= self.now && died(f.kind));
        let origin = Origin {
            client: Some(host_address(node, index)),
            target: Target::Address(host_address(to, index)),
            dscp: 0,
        };
        let Some(flow) = self.open_onward(node, to, origin) else {
            return match self.nodes[node].relay.is_none() {
                true => Ok(()), // Its gateway is dead: nobody answers.
                false => self.fail(format!("connection {index} found no room where there is some")),
            };
        };
        let mut host = Host::new(self.talks[index].plan.hosts[0], self.talks[index].patterns[0]);
        (host.flow, host.connected) = (Some(flow), true);
        self.talks[index].hosts[0] = Some(host);
        self.nodes[node].flows.insert(flow, Socket::Host(index, 0));
        self.open_hosts += 1;
        self.serve(index, 0)
    }

    /// A stream from a node towards another.
    fn open_onward(&mut self, node: usize, to: usize, origin: Origin) -> Option<FlowId> {
        let id = self.nodes[node].neighbour(self.ways[node][to])?.id;
        let flow = self.nodes[node].relay.as_mut()?.open(self.now, id, origin);
        self.touch(node);
        flow
    }

    fn is_on_way(&self, index: usize, node: usize) -> bool {
        let [mut at, to] = self.talks[index].plan.nodes;
        loop {
            if at == node {
                return true;
            }
            if at == to {
                return false;
            }
            at = self.ways[at][to];
        }
    }

    /// A node is to connect to a server, which is behind it or behind a peer of its.
    pub(crate) fn connect(
        &mut self,
        node: usize,
        flow: FlowId,
        target: &Target,
        source: Option<SocketAddr>,
    ) -> Result<(), Failure> {
        let Target::Address(to) = target else {
            return self.fail(format!("node {node} is to connect to {target:?}"));
        };
        let Some((server, index)) = host_at(*to).filter(|(_, i)| *i < self.talks.len()) else {
            return self.fail(format!("node {node} is to connect to {to}, where nobody went"));
        };
        let [client, right] = self.talks[index].plan.nodes;
        if server != right || source != Some(host_address(client, index)) {
            return self.fail(format!("connection {index} arrived as from {source:?} for {to}"));
        }
        self.touch(node);
        if node != server {
            let target = target.clone();
            let onward = self.open_onward(node, server, Origin { client: source, target, dscp: 0 });
            let Some(relay) = &mut self.nodes[node].relay else { return Ok(()) };
            let Some(onward) = onward else {
                return self.fail(format!("connection {index} found no room at node {node}"));
            };
            relay.connected(flow);
            let at = self.pipes.len();
            self.nodes[node].flows.insert(flow, Socket::Pipe(at, 0));
            self.nodes[node].flows.insert(onward, Socket::Pipe(at, 1));
            self.pipes.push(Pipe {
                node,
                connection: index,
                flows: [Some(flow), Some(onward)],
                waiting: Default::default(),
                ended: [false; 2],
                passed: [false; 2],
            });
            return self.pump_pipe(at);
        }
        if self.talks[index].hosts[1].is_some() {
            return self.fail(format!("connection {index} was opened twice"));
        }
        let mut host = Host::new(self.talks[index].plan.hosts[1], self.talks[index].patterns[1]);
        (host.flow, host.connected) = (Some(flow), true);
        self.talks[index].hosts[1] = Some(host);
        self.nodes[node].flows.insert(flow, Socket::Host(index, 1));
        self.open_hosts += 1;
        if let Some(relay) = &mut self.nodes[node].relay {
            relay.connected(flow);
        }
        self.serve(index, 1)
    }

    // ---- sockets ---------------------------------------------------------------

    pub(crate) fn serve_flow(&mut self, node: usize, flow: FlowId) -> Result<(), Failure> {
        match self.nodes[node].flows.get(&flow) {
            Some(Socket::Host(index, side)) => self.serve(*index, *side),
            Some(Socket::Pipe(at, _)) => self.pump_pipe(*at),
            None => self.fail(format!("node {node} was told of the unknown {flow:?}")),
        }
    }

    /// The time that a host had set has come.
    pub(crate) fn act(&mut self, index: usize, side: usize) -> Result<(), Failure> {
        match &mut self.talks[index].hosts[side] {
            Some(host) if host.tick.is_some_and(|t| t <= self.now) => host.tick = None,
            _ => return Ok(()),
        }
        self.serve(index, side)
    }

    /// Lets a host and its gateway's socket do what they can.
    fn serve(&mut self, index: usize, side: usize) -> Result<(), Failure> {
        loop {
            let Some(host) = &mut self.talks[index].hosts[side] else { return Ok(()) };
            if host.act(self.now) {
                host.gave_up = true;
                self.reset_flow(index, side);
                self.lose(index, side, "it gave up");
                return Ok(());
            }
            let moved = self.pump_in(index, side)? | self.pump_out(index, side)?;
            if !moved {
                break;
            }
            let node = self.talks[index].plan.nodes[side];
            self.touch(node);
        }
        self.count_out(index, side);
        let now = self.now;
        let Some(host) = &mut self.talks[index].hosts[side] else { return Ok(()) };
        if let Some(at) = host.next_act(now)
            && host.tick.is_none_or(|t| at < t)
        {
            host.tick = Some(at);
            self.set(at, Event::Acts(index, side));
        }
        Ok(())
    }

    /// The gateway reads from the host's socket.
    fn pump_in(&mut self, index: usize, side: usize) -> Result<bool, Failure> {
        let talk = &mut self.talks[index];
        let node = &mut self.nodes[talk.plan.nodes[side]];
        let Some(host) = &mut talk.hosts[side] else { return Ok(false) };
        let (Some(flow), Some(relay)) = (host.flow, &mut node.relay) else { return Ok(false) };
        let moved = host.give(self.now, relay, flow, &mut self.scratch);
        self.close_if_done(index, side);
        moved.or_else(|why| self.fail(format!("connection {index}: {why}")))
    }

    /// The gateway writes to the host's socket.
    fn pump_out(&mut self, index: usize, side: usize) -> Result<bool, Failure> {
        let talk = &mut self.talks[index];
        let node = &mut self.nodes[talk.plan.nodes[side]];
        let pattern = talk.patterns[1 - side];
        let Some(host) = &mut talk.hosts[side] else { return Ok(false) };
        let (Some(flow), Some(relay)) = (host.flow, &mut node.relay) else { return Ok(false) };
        let total = match host.receive(self.now, relay, flow, pattern) {
            Ok(total) => total,
            Err(why) => return self.fail(format!("connection {index}: host {side}: {why}")),
        };
        if total > 0 {
            self.digest.take(total);
            self.report.bytes += total;
            self.report.delivered[index] += total;
            let [from, until] = self.plan.window;
            if (from..until).contains(&self.now) {
                self.report.window[index] += total;
            }
        }
        let mut moved = total > 0;
        match relay.outgoing_state(flow) {
            RecvState::Open => {}
            RecvState::Finished => {
                moved |= !host.shut;
                host.shut = true;
                self.check_end(index, side)?;
            }
            RecvState::Reset(reason) => {
                relay.closed(self.now, flow);
                self.detach(index, side);
                self.check_reset(index, side, reason)?;
                self.lose(index, side, "its peer gave up");
            }
        }
        self.close_if_done(index, side);
        Ok(moved)
    }

    /// Moves what it can from each of the two sockets of a node between to the other.
    fn pump_pipe(&mut self, at: usize) -> Result<(), Failure> {
        let pipe = &mut self.pipes[at];
        let node = pipe.node;
        let it = &mut self.nodes[node];
        let Some(relay) = &mut it.relay else { return Ok(()) };
        let mut any = true;
        let mut reset = None;
        while std::mem::take(&mut any) && reset.is_none() {
            for way in 0..2 {
                let [Some(from), Some(to)] = [pipe.flows[way], pipe.flows[1 - way]] else {
                    return Ok(());
                };
                let waiting = &mut pipe.waiting[way];
                let mut slices: [&[u8]; 16] = [&[]; 16];
                let n = relay.outgoing(self.now, from, &mut slices);
                let mut taken = 0;
                for slice in &slices[..n] {
                    let room = slice.len().min(PIPE - waiting.len());
                    waiting.extend(&slice[..room]);
                    taken += room;
                }
                if taken > 0 {
                    relay.wrote(self.now, from, taken);
                }
                match relay.outgoing_state(from) {
                    RecvState::Open => {}
                    RecvState::Finished => pipe.ended[way] = true,
                    RecvState::Reset(_) => reset = Some(way),
                }
                let room = relay.writable_bytes(self.now, to).min(waiting.len());
                if room > 0 {
                    let (bytes, _) = waiting.as_slices();
                    let room = room.min(bytes.len());
                    let took = relay.local_data(self.now, to, &bytes[..room]);
                    waiting.drain(..took);
                }
                let end = pipe.ended[way] && waiting.is_empty() && !pipe.passed[way];
                if end {
                    pipe.passed[way] = true;
                    relay.local_end(self.now, to);
                }
                any |= taken > 0 || room > 0 || end;
            }
        }
        let over = pipe.passed == [true; 2];
        if over || reset.is_some() {
            for (end, flow) in std::mem::take(&mut pipe.flows).into_iter().enumerate() {
                let Some(flow) = flow else { continue };
                match reset.is_some_and(|way| way != end) {
                    true => relay.local_reset(self.now, flow, ResetReason::HostReset),
                    false => relay.closed(self.now, flow),
                }
                it.flows.remove(&flow);
            }
        }
        self.touch(node);
        Ok(())
    }

    /// Both directions have ended: the gateway closes the socket and forgets it.
    fn close_if_done(&mut self, index: usize, side: usize) {
        let node = self.talks[index].plan.nodes[side];
        let Some(host) = &mut self.talks[index].hosts[side] else { return };
        if let Some(flow) = host.flow
            && host.end_taken
            && host.shut
        {
            if let Some(relay) = &mut self.nodes[node].relay {
                relay.closed(self.now, flow);
            }
            self.detach(index, side);
        }
    }

    fn detach(&mut self, index: usize, side: usize) {
        let node = self.talks[index].plan.nodes[side];
        if let Some(host) = &mut self.talks[index].hosts[side]
            && let Some(flow) = host.flow.take()
        {
            self.nodes[node].flows.remove(&flow);
        }
        self.touch(node);
    }

    // ---- ends ------------------------------------------------------------------

    /// A host resets its connection.
    fn reset_flow(&mut self, index: usize, side: usize) {
        let node = self.talks[index].plan.nodes[side];
        let flow = self.talks[index].hosts[side].as_ref().and_then(|host| host.flow);
        if let (Some(flow), Some(relay)) = (flow, &mut self.nodes[node].relay) {
            relay.local_reset(self.now, flow, ResetReason::HostReset);
        }
        self.detach(index, side);
    }

    /// The host's connection is over by a reset.
    fn lose(&mut self, index: usize, side: usize, why: &str) {
        if let Some(host) = &mut self.talks[index].hosts[side]
            && !host.is_over()
        {
            host.reset = Some(why.to_owned());
            self.report.resets += 1;
            self.trace(|| format!("connection {index}: host {side} is reset: {why}"));
        }
        self.count_out(index, side);
    }

    /// A host whose connection is over is no longer waited for.
    fn count_out(&mut self, index: usize, side: usize) {
        let talk = &mut self.talks[index];
        if let Some(host) = &mut talk.hosts[side]
            && host.is_over()
            && std::mem::replace(&mut host.counted, false)
        {
            self.open_hosts -= 1;
            talk.ended_at = Some(self.now);
        }
    }

    /// The relay gives a flow up.
    pub(crate) fn abort(
        &mut self,
        node: usize,
        flow: FlowId,
        reason: ResetReason,
    ) -> Result<(), Failure> {
        match self.nodes[node].flows.get(&flow).copied() {
            Some(Socket::Host(index, side)) => {
                self.detach(index, side);
                self.check_reset(index, side, reason)?;
                self.lose(index, side, "its gateway lost the stream");
                Ok(())
            }
            Some(Socket::Pipe(at, end)) => {
                let index = self.pipes[at].connection;
                let it = &mut self.nodes[node];
                it.flows.remove(&flow);
                let other = std::mem::take(&mut self.pipes[at].flows)[1 - end];
                if let (Some(other), Some(relay)) = (other, &mut it.relay) {
                    it.flows.remove(&other);
                    relay.local_reset(self.now, other, ResetReason::HostReset);
                }
                self.touch(node);
                self.check_reset(index, end, reason)
            }
            None => self.fail(format!("node {node} was told to abort the unknown {flow:?}")),
        }
    }

    /// A node dies: its hosts see resets.
    pub(crate) fn die(&mut self, node: usize) -> Result<(), Failure> {
        self.nodes[node].stop();
        for index in 0..self.talks.len() {
            let began = self.talks[index].plan.at <= self.now;
            self.talks[index].met_a_death |= began && self.is_on_way(index, node);
            for side in 0..2 {
                if self.talks[index].plan.nodes[side] == node
                    && let Some(host) = &mut self.talks[index].hosts[side]
                    && host.flow.take().is_some()
                {
                    self.lose(index, side, "its gateway died");
                }
            }
        }
        for pipe in self.pipes.iter_mut().filter(|pipe| pipe.node == node) {
            pipe.flows = [None; 2];
        }
        Ok(())
    }

    // ---- what is promised ------------------------------------------------------

    fn check_end(&self, index: usize, side: usize) -> Result<(), Failure> {
        let ended = host::check_end(&self.talks[index].hosts, side);
        ended.or_else(|why| self.fail(format!("connection {index}: host {side}: {why}")))
    }

    /// Resets need a reason that exists.
    fn check_reset(&self, index: usize, side: usize, reason: ResetReason) -> Result<(), Failure> {
        let talk = &self.talks[index];
        let gave_up = talk.hosts.iter().flatten().any(|host| host.gave_up);
        if gave_up || talk.met_a_death {
            return Ok(());
        }
        self.fail(format!(
            "connection {index}: host {side} was reset ({reason:?}) and nothing called for it"
        ))
    }

    /// Checks a node's books after a packet of a neighbour.
    pub(crate) fn look_at(&mut self, node: usize, from: usize) -> Result<(), Failure> {
        let it = &self.nodes[node];
        let (Some(relay), Some(neighbour)) = (&it.relay, it.neighbour(from)) else { return Ok(()) };
        let Some(session) = relay.endpoint.session(neighbour.id) else { return Ok(()) };
        let stats = session.stats();
        if stats.violations + stats.too_dear > 0 {
            return self.fail(format!(
                "node {node} counted {} violations of node {from}, and found {} REPAIR too dear",
                stats.violations, stats.too_dear
            ));
        }
        let used = relay.endpoint.memory_used().0;
        let most = it.most_memory(self.plan, relay.flow_count() as u64);
        self.report.most_memory = self.report.most_memory.max(used);
        match used <= most {
            true => Ok(()),
            false => {
                self.fail(format!("node {node} holds {used} bytes of streams, {most} are promised"))
            }
        }
    }
}
