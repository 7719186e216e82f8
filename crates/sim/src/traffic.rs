//! Connections: what the hosts do, what the gateways' sockets do for them, and what
//! is checked of every byte, every end and every reset.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use link::session::RecvState;
use relay::{Caller, FlowId, Origin, ResetReason, Target};
use units::{Duration, Instant};

use crate::check::Failure;
use crate::host::{self, Host};
use crate::pattern::Pattern;
use crate::plan::{Answer, Connection, Plan};
use crate::world::{Happening, World};

/// A gateway waits at least this long for the next SYN of a client.
pub(crate) const SYN_WAIT: Duration = Duration::from_secs(15);

/// A connection and its two hosts, the client first.
#[derive(Debug)]
pub(crate) struct Talk {
    pub plan: Connection,
    /// `None` until the client connects and the server is asked.
    pub hosts: [Option<Host>; 2],
    pub patterns: [Pattern; 2],
    /// A node died since the client connected.
    pub survived_a_death: bool,
    /// Since when the client's newest SYN has been pending, by its gateway's clock.
    pub pending_since: Option<Instant>,
    /// Its gateway forgot a SYN and took the next as another client's first.
    pub forgotten: bool,
    /// The server was asked.
    asked: bool,
    /// The client could not be served at all.
    refused: bool,
}

impl Talk {
    pub fn new(run: &Plan, index: usize, plan: &Connection) -> Talk {
        let seed = run.seed;
        let key = seed.wrapping_mul(0x1_0000_0001).wrapping_add(index as u64 * 2);
        // What hosts have in common crosses once where the link deduplicates.
        let key = run.contents.map_or(key, |n| key / 2 % n * 2);
        let (up, mut down) = (Pattern::new(key), Pattern::new(key + 1));
        if run.shrinks {
            down = down.that_shrinks();
        }
        Talk {
            plan: plan.clone(),
            hosts: [None, None],
            patterns: [up, down],
            survived_a_death: false,
            pending_since: None,
            forgotten: false,
            asked: false,
            refused: false,
        }
    }

    /// At which node the host of `side` is.
    pub fn node(&self, side: usize) -> usize {
        if side == 0 { self.plan.node } else { 1 - self.plan.node }
    }

    /// Both hosts have seen an orderly end of both directions.
    pub fn ended_well(&self) -> bool {
        self.hosts.iter().all(|h| h.as_ref().is_some_and(|h| h.is_over() && h.reset.is_none()))
    }
}

impl World<'_> {
    // ---- beginnings ------------------------------------------------------------

    /// A client connects.
    pub(crate) fn open(&mut self, index: usize) -> Result<(), Failure> {
        if self.talks[index].plan.knocks() {
            return self.knock(index);
        }
        // Until the news of a death is through, streams begin as orphans.
        let orphan = self.deaths > 0 && !self.is_one_session();
        let talk = &mut self.talks[index];
        let node = talk.plan.node;
        let mut host = Host::new(talk.plan.hosts[0], talk.patterns[0]);
        host.connected = true;
        if talk.plan.sure {
            host.hold();
        }
        let origin = Origin {
            client: Some(address(node, index, 40_000)),
            target: target(&talk.plan, index),
            dscp: 0,
        };
        let (local, at) = (self.now + self.clocks[node], &mut self.nodes[node]);
        let flow = at.relay.as_mut().and_then(|r| r.open(local, at.peer, origin));
        let Some(flow) = flow else {
            talk.refused = true;
            let full =
                at.session().is_none_or(|s| s.streams() >= self.plan.max_streams[node] as usize);
            return match full {
                true => Ok(()),
                false => self.fail(format!("connection {index} found no room where there is some")),
            };
        };
        host.flow = Some(flow);
        at.flows.insert(flow, index);
        talk.hosts[0] = Some(host);
        talk.survived_a_death = orphan;
        self.open_hosts += 1;
        self.report.connections += 1;
        self.trace(|| format!("connection {index} opens at node {node} as {flow:?}"));
        self.serve(index, 0)
    }

    /// A node is to connect to a server.
    pub(crate) fn connect(
        &mut self,
        node: usize,
        flow: FlowId,
        to: &Target,
        source: Option<SocketAddr>,
    ) -> Result<(), Failure> {
        let Some(index) = index_of(to).filter(|i| *i < self.talks.len()) else {
            return self.fail(format!("node {node} is to connect to {to:?}, where nobody went"));
        };
        let talk = &mut self.talks[index];
        if talk.plan.node == node || *to != target(&talk.plan, index) {
            return self.fail(format!("connection {index} arrived with the target {to:?}"));
        }
        if source != Some(address(1 - node, index, 40_000)) {
            return self.fail(format!("connection {index} arrived as from {source:?}"));
        }
        let stood = talk.hosts[1].as_ref().is_some_and(|h| h.connected);
        if talk.forgotten && (talk.asked || stood) {
            // Two attempts for one client, of which its gateway gave one up: there is one
            // server here, and it serves the first that came, even if that is over by now.
            if let Some(relay) = &mut self.nodes[node].relay {
                let local = self.now + self.clocks[node];
                relay.connect_failed(local, flow, ResetReason::Refused);
            }
            return Ok(());
        }
        if std::mem::replace(&mut talk.asked, true) {
            return self.fail(format!("connection {index} was opened twice"));
        }
        if talk.plan.answer.0 == Answer::Forbidden && talk.plan.name.is_none() {
            return self.fail(format!("connection {index} was let through to a forbidden place"));
        }
        let mut host = Host::new(talk.plan.hosts[1], talk.patterns[1]);
        host.flow = Some(flow);
        talk.hosts[1] = Some(host);
        self.nodes[node].flows.insert(flow, index);
        self.open_hosts += 1;
        let at = self.now + talk.plan.answer.1;
        self.set(at, Happening::Answers(index));
        Ok(())
    }

    /// A server has decided.
    pub(crate) fn answer(&mut self, index: usize) -> Result<(), Failure> {
        let talk = &mut self.talks[index];
        let node = talk.node(1);
        let now = self.now + self.clocks[node];
        let Some(host) = &mut talk.hosts[1] else { return Ok(()) };
        let (Some(flow), false) = (host.flow, host.connected) else { return Ok(()) };
        let Some(relay) = &mut self.nodes[node].relay else { return Ok(()) };
        let reason = match talk.plan.answer.0 {
            Answer::Accept => {
                host.connected = true;
                relay.connected(flow);
                return self.serve(index, 1);
            }
            Answer::Refuse(reason) => reason,
            Answer::Forbidden => {
                if relay.permits(Caller::Flow(flow), forbidden()) {
                    return self.fail(format!("connection {index} may go to {}", forbidden()));
                }
                ResetReason::Denied
            }
        };
        relay.connect_failed(now, flow, reason);
        self.detach(index, 1);
        self.lose(index, 1, "its gateway could not connect");
        Ok(())
    }

    /// The server stands; clients that waited for it go on.
    pub(crate) fn accepted(&mut self, node: usize, flow: FlowId) -> Result<(), Failure> {
        let Some(&index) = self.nodes[node].flows.get(&flow) else {
            return self.fail(format!("node {node} was told of the unknown {flow:?}"));
        };
        let server = self.talks[index].hosts[1].as_ref();
        if server.is_none_or(|h| !h.connected) {
            return self.fail(format!("connection {index} was accepted, but not by the server"));
        }
        if let Some(host) = &mut self.talks[index].hosts[0] {
            host.release();
        }
        self.serve(index, 0)
    }

    // ---- sockets ---------------------------------------------------------------

    pub(crate) fn serve_flow(&mut self, node: usize, flow: FlowId) -> Result<(), Failure> {
        let Some(&index) = self.nodes[node].flows.get(&flow) else {
            return self.fail(format!("node {node} was told of the unknown {flow:?}"));
        };
        let side = usize::from(self.talks[index].plan.node != node);
        self.serve(index, side)
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
                return self.give_up(index, side);
            }
            let moved = self.pump_in(index, side)? | self.pump_out(index, side)?;
            if !moved {
                break;
            }
        }
        self.count_out(index, side);
        let now = self.now;
        let Some(host) = &mut self.talks[index].hosts[side] else { return Ok(()) };
        if let Some(at) = host.next_act(now)
            && host.tick.is_none_or(|t| at < t)
        {
            host.tick = Some(at);
            self.set(at, Happening::Acts(index, side));
        }
        Ok(())
    }

    /// The gateway reads from the host's socket.
    fn pump_in(&mut self, index: usize, side: usize) -> Result<bool, Failure> {
        let talk = &mut self.talks[index];
        let node = talk.node(side);
        let now = self.now + self.clocks[node];
        let Some(host) = &mut talk.hosts[side] else { return Ok(false) };
        let (Some(flow), true) = (host.flow, host.connected) else { return Ok(false) };
        let Some(relay) = &mut self.nodes[node].relay else { return Ok(false) };
        let moved = host.give(now, relay, flow, &mut self.scratch);
        self.close_if_done(index, side);
        moved.or_else(|why| self.fail(format!("connection {index}: {why}")))
    }

    /// The gateway writes to the host's socket.
    fn pump_out(&mut self, index: usize, side: usize) -> Result<bool, Failure> {
        let talk = &mut self.talks[index];
        let node = talk.node(side);
        let now = self.now + self.clocks[node];
        let pattern = talk.patterns[1 - side];
        let Some(host) = &mut talk.hosts[side] else { return Ok(false) };
        let (Some(flow), true) = (host.flow, host.connected) else { return Ok(false) };
        let Some(relay) = &mut self.nodes[node].relay else { return Ok(false) };
        let total = match host.receive(now, relay, flow, pattern) {
            Ok(total) => total,
            Err(why) => return self.fail(format!("connection {index}: host {side}: {why}")),
        };
        if total > 0 {
            self.report.on_delivered(self.now, total);
            if let Some(back) = self.dark_until.take() {
                self.report.resumed_ms.push(self.now.since(back).as_millis());
            }
            self.digest.take(total);
        }
        let state = relay.outgoing_state(flow);
        let mut moved = total > 0;
        match state {
            RecvState::Open => {}
            RecvState::Finished => {
                moved |= !host.shut;
                host.shut = true;
                self.check_end(index, side)?;
            }
            RecvState::Reset(reason) => {
                relay.closed(now, flow);
                self.detach(index, side);
                self.check_reset(index, side, reason)?;
                self.check_given(index, side, reason)?;
                self.lose(index, side, "its peer gave up");
            }
        }
        self.close_if_done(index, side);
        Ok(moved)
    }

    /// Both directions have ended: the gateway closes the socket and forgets it. What
    /// it wrote stays for the host to read.
    fn close_if_done(&mut self, index: usize, side: usize) {
        let node = self.talks[index].node(side);
        let Some(host) = &mut self.talks[index].hosts[side] else { return };
        if let Some(flow) = host.flow
            && host.end_taken
            && host.shut
        {
            if let Some(relay) = &mut self.nodes[node].relay {
                relay.closed(self.now + self.clocks[node], flow);
            }
            self.detach(index, side);
        }
    }

    pub(crate) fn detach(&mut self, index: usize, side: usize) {
        let node = self.talks[index].node(side);
        if let Some(host) = &mut self.talks[index].hosts[side]
            && let Some(flow) = host.flow.take()
        {
            self.nodes[node].flows.remove(&flow);
        }
    }

    // ---- ends ------------------------------------------------------------------

    /// A host resets its connection.
    fn give_up(&mut self, index: usize, side: usize) -> Result<(), Failure> {
        let talk = &mut self.talks[index];
        let node = talk.node(side);
        let now = self.now + self.clocks[node];
        let Some(host) = &mut talk.hosts[side] else { return Ok(()) };
        host.gave_up = true;
        if let Some(flow) = host.flow
            && let Some(relay) = &mut self.nodes[node].relay
        {
            relay.local_reset(now, flow, ResetReason::HostReset);
        }
        self.detach(index, side);
        self.lose(index, side, "it gave up");
        Ok(())
    }

    /// The host's connection is over by a reset.
    pub(crate) fn lose(&mut self, index: usize, side: usize, why: &str) {
        if let Some(host) = &mut self.talks[index].hosts[side]
            && !host.is_over()
        {
            host.reset = Some(why.to_owned());
            // A client that still knocks is asked for again: nothing of its was lost.
            let talk = &mut self.talks[index];
            let knocks = talk.hosts[0].as_ref().is_some_and(|h| !h.connected);
            talk.asked &= !(side == 1 && knocks);
            self.report.resets += 1;
            self.trace(|| format!("connection {index}: host {side} is reset: {why}"));
        }
        self.count_out(index, side);
    }

    /// A host whose connection is over is no longer waited for.
    fn count_out(&mut self, index: usize, side: usize) {
        if let Some(host) = &mut self.talks[index].hosts[side]
            && host.is_over()
            && std::mem::replace(&mut host.counted, false)
        {
            self.open_hosts -= 1;
            self.trace(|| format!("connection {index}: host {side} is over"));
        }
    }

    /// The relay gives a flow up.
    pub(crate) fn abort(
        &mut self,
        node: usize,
        flow: FlowId,
        reason: ResetReason,
    ) -> Result<(), Failure> {
        let Some(&index) = self.nodes[node].flows.get(&flow) else {
            return self.fail(format!("node {node} was told to abort the unknown {flow:?}"));
        };
        let side = usize::from(self.talks[index].plan.node != node);
        self.detach(index, side);
        self.check_reset(index, side, reason)?;
        self.lose(index, side, "its gateway lost the stream");
        Ok(())
    }

    /// A node dies: its hosts see resets; the other node's are orphans.
    pub(crate) fn die(&mut self, node: usize) -> Result<(), Failure> {
        self.nodes[node].stop();
        self.deaths += 1;
        for index in 0..self.talks.len() {
            self.talks[index].survived_a_death |= self.talks[index].hosts[0].is_some();
            for side in 0..2 {
                let talk = &mut self.talks[index];
                let here = talk.node(side) == node;
                let has_socket = |h: &&mut Host| here && (h.flow.is_some() || h.shaking);
                if let Some(host) = talk.hosts[side].as_mut().filter(has_socket) {
                    host.flow = None;
                    self.lose(index, side, "its gateway died");
                }
            }
        }
        Ok(())
    }

    fn check_end(&self, index: usize, side: usize) -> Result<(), Failure> {
        let ended = host::check_end(&self.talks[index].hosts, side);
        ended.or_else(|why| self.fail(format!("connection {index}: host {side}: {why}")))
    }

    /// Has the gateway of a client that knocks waited for its next SYN as long as it does?
    fn may_be_forgotten(&self, index: usize) -> bool {
        let talk = &self.talks[index];
        let local = self.now + self.clocks[talk.plan.node];
        talk.forgotten || talk.pending_since.is_some_and(|t| local.since(t) >= SYN_WAIT)
    }

    /// Resets need a reason that exists.
    fn check_reset(&self, index: usize, side: usize, reason: ResetReason) -> Result<(), Failure> {
        let talk = &self.talks[index];
        let other_gave_up = talk.hosts[1 - side].as_ref().is_some_and(|h| h.gave_up);
        let fine = match reason {
            ResetReason::Refused if side == 0 && talk.forgotten => true,
            ResetReason::HostReset => other_gave_up || (side == 1 && self.may_be_forgotten(index)),
            ResetReason::Refused | ResetReason::TimedOut | ResetReason::Icmp(_) => {
                side == 0 && talk.plan.answer.0 == Answer::Refuse(reason)
            }
            ResetReason::Denied => side == 0 && talk.plan.answer.0 == Answer::Forbidden,
            ResetReason::Exhausted => self.plan.max_streams.iter().any(|n| *n < 100),
            ResetReason::PeerRestarted => talk.survived_a_death,
            // A long name, and packets too small for it.
            ResetReason::Unreachable => {
                let mtu = self.plan.mtus[0].min(self.plan.mtus[1]);
                side == 0 && talk.plan.name.is_some_and(|len| len + OPEN_COST > usize::from(mtu))
            }
            _ => false,
        };
        match fine {
            true => Ok(()),
            false => self.fail(format!(
                "connection {index}: host {side} was reset ({reason:?}) and nothing called for it"
            )),
        }
    }

    /// What a gateway took of a host that then reset reaches the other host before the reset
    /// (L-ST-5).
    fn check_given(&self, index: usize, side: usize, reason: ResetReason) -> Result<(), Failure> {
        let hosts = &self.talks[index].hosts;
        let (Some(host), Some(sender)) = (&hosts[side], &hosts[1 - side]) else { return Ok(()) };
        let gave = sender.gave_up && reason == ResetReason::HostReset;
        if !gave || host.written == sender.taken {
            return Ok(());
        }
        let (got, taken) = (host.written, sender.taken);
        self.fail(format!("connection {index}: host {side}: a reset after {got} of {taken} bytes"))
    }

    // ---- what a node may use ---------------------------------------------------

    /// Checks a node's books after something happened to it.
    pub(crate) fn look_at(&self, node: usize) -> Result<(), Failure> {
        let Some(session) = self.nodes[node].session() else { return Ok(()) };
        let stats = session.stats();
        if stats.violations + stats.too_dear > 0 {
            return self.fail(format!(
                "node {node} counted {} violations, and found {} REPAIR too dear",
                stats.violations, stats.too_dear
            ));
        }
        // Blocks are 8 kB: each direction of a stream may hold a part of two.
        let most = self.plan.memories[node].0 + session.streams() as u64 * PER_STREAM;
        if session.memory_used() > most {
            return self.fail(format!(
                "node {node} holds {} bytes for {} streams, {most} were promised",
                session.memory_used(),
                session.streams()
            ));
        }
        Ok(())
    }
}

/// A stream's reserve at the peer (16 kB), the least that may wait unsent (4 kB), and
/// the rounding to blocks in both directions.
pub(crate) const PER_STREAM: u64 = 2 * 16 * 1024 + 4 * 1024 + 4 * 8 * 1024;

/// What an OPEN costs beside the name: IPv6 and UDP headers, sealing, addresses.
const OPEN_COST: usize = 48 + 26 + 30;

/// The address of a host behind a node: connection numbers are in it.
pub(crate) fn address(node: usize, index: usize, port: u16) -> SocketAddr {
    let ip = Ipv4Addr::new(10, node as u8 + 1, (index >> 8) as u8, index as u8);
    SocketAddr::new(ip.into(), port)
}

/// A place that nobody may go to.
fn forbidden() -> IpAddr {
    Ipv4Addr::new(127, 0, 0, 1).into()
}

/// Where the client of connection `index` goes.
pub(crate) fn target(plan: &Connection, index: usize) -> Target {
    match plan.name {
        Some(len) => {
            let mut name = format!("c{index}.");
            while name.len() < len {
                name.push('x');
            }
            Target::Name(name, 80)
        }
        None if plan.answer.0 == Answer::Forbidden => {
            // The port names the connection.
            Target::Address(SocketAddr::new(forbidden(), 1 + index as u16))
        }
        None => Target::Address(address(1 - plan.node, index, 80)),
    }
}

/// The connection that a target names.
fn index_of(target: &Target) -> Option<usize> {
    match target {
        Target::Name(name, _) => name.strip_prefix('c')?.split('.').next()?.parse().ok(),
        Target::Address(a) if a.ip() == forbidden() => Some(usize::from(a.port()) - 1),
        Target::Address(SocketAddr::V4(a)) => {
            let [_, _, high, low] = a.ip().octets();
            Some(usize::from(high) << 8 | usize::from(low))
        }
        Target::Address(SocketAddr::V6(_)) | Target::Service(..) => None,
    }
}
