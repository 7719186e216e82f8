//! The world of one run: two nodes, two channels, and what happens next.
//!
//! Time jumps from one happening to the next: an arrival, a timer of a node (as late
//! as its driver wakes), a host that does something, a fault that begins or ends.
//! After each the nodes are drained: packets, actions and datagrams are polled until
//! there is nothing left, which is the law that the real driver keeps as well.

use std::collections::BTreeMap;

use channel::{Channel, ChannelConfig, Fate, OutageMode, QueueLimit, flip_bit};
use link::Remote;
use link::tunnel::PacketKind;
use relay::{Action, Verdict};
use units::{BitRate, ByteCount, Duration, Instant, Ratio, Rng};

use crate::check::{Digest, Failure};
use crate::datagrams::Datagrams;
use crate::node::Node;
use crate::plan::{Fault, FaultKind, Plan};
use crate::run::LinkNews;
use crate::traffic::Talk;
use crate::{Report, Trace};

/// A packet between the nodes.
#[derive(Clone, Debug)]
pub(crate) struct Wire {
    from: Remote,
    to: Remote,
    bytes: Vec<u8>,
}

/// What the plan or a host has set for a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Happening {
    FaultBegins(usize),
    FaultEnds(usize),
    /// A client connects.
    Opens(usize),
    /// A client's SYN is due again, after so many.
    Syn(usize, u32),
    /// A client's handshake with its gateway is done.
    Shakes(usize),
    /// A server has decided about a connection.
    Answers(usize),
    /// A host of a connection (0 client, 1 server) does something.
    Acts(usize, usize),
    Datagram(usize),
}

/// How often something may happen without any time passing. Sixty connections and a
/// burst of datagrams at once stay far below.
const MOST_AT_ONCE: u32 = 5_000;
/// Steps that a run of a seed may take; the longest seen take a tenth.
const MOST_STEPS: u64 = 20_000_000;

pub(crate) struct World<'a> {
    pub plan: &'a Plan,
    pub trace: Option<Trace<'a>>,
    pub now: Instant,
    pub nodes: [Node; 2],
    /// How far their clocks are ahead of `now`.
    pub clocks: [Duration; 2],
    pub talks: Vec<Talk>,
    pub datagrams: [Datagrams; 2],
    pub digest: Digest,
    pub report: Report,
    /// How often a node died.
    pub deaths: u32,
    /// Hosts whose connection is not over.
    pub open_hosts: usize,
    pub scratch: Vec<u8>,
    /// What both sessions do wrong.
    #[cfg(test)]
    pub mistake: Option<link::session::Mistake>,
    /// By sender and carrier.
    channels: [[Channel<Wire>; 2]; 2],
    queue: BTreeMap<(Instant, u64), Happening>,
    serial: u64,
    at_once: u32,
    steps: u64,
    /// Steps that the run may take.
    pub most_steps: u64,
    active: Vec<Fault>,
    /// The link came back then, and no byte has reached a host since.
    pub dark_until: Option<Instant>,
    buffer: Vec<u8>,
}

impl<'a> World<'a> {
    pub fn new(plan: &'a Plan, trace: Option<Trace<'a>>) -> World<'a> {
        let mut rng = Rng::new(plan.seed ^ 0x0dd0_5eed);
        let nodes = [0, 1].map(|node| Node::new(node, plan, &mut rng));
        let channels = [0, 1].map(|sender| {
            let seed = rng.next_u64();
            [0, 1].map(|carrier| {
                let config = clean(plan, sender, carrier);
                let channel = Channel::new(config, seed ^ carrier as u64);
                let channel = channel.expect("the plan's rates are above zero");
                channel.with_series(Duration::from_secs(3_600), 1)
            })
        });
        let mut world = World {
            plan,
            trace,
            now: Instant::from_nanos(1),
            nodes,
            clocks: plan.clocks,
            talks: Vec::new(),
            datagrams: [0, 1].map(|_| Datagrams::new(plan.max_streams.iter().all(|n| *n >= 100))),
            digest: Digest::new(plan.seed),
            report: Report::of(plan),
            deaths: 0,
            open_hosts: 0,
            scratch: Vec::new(),
            #[cfg(test)]
            mistake: None,
            channels,
            queue: BTreeMap::new(),
            serial: 0,
            at_once: 0,
            steps: 0,
            most_steps: MOST_STEPS,
            active: Vec::new(),
            dark_until: None,
            buffer: vec![0; 2048],
        };
        world.set_plan();
        world
    }

    fn set_plan(&mut self) {
        for (i, fault) in self.plan.faults.iter().enumerate() {
            self.set(fault.from, Happening::FaultBegins(i));
            self.set(fault.until, Happening::FaultEnds(i));
        }
        for (i, connection) in self.plan.connections.iter().enumerate() {
            self.talks.push(Talk::new(self.plan, i, connection));
            self.set(connection.at, Happening::Opens(i));
        }
        for (i, datagram) in self.plan.datagrams.iter().enumerate() {
            self.set(datagram.at, Happening::Datagram(i));
        }
        for node in 0..2 {
            self.start(node);
        }
    }

    /// Sets something for a time.
    pub fn set(&mut self, at: Instant, what: Happening) {
        self.serial += 1;
        self.queue.insert((at, self.serial), what);
    }

    pub fn fail<T>(&self, what: impl Into<String>) -> Result<T, Failure> {
        Err(Failure {
            repeat: format!("--seed {}", self.plan.seed),
            at: self.now,
            what: what.into(),
        })
    }

    pub fn trace(&mut self, what: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace(self.now, what());
        }
    }

    /// Runs until `done` says so or `until` has come; answers whether it was the first.
    pub fn run(
        &mut self,
        until: Instant,
        done: impl Fn(&World<'_>) -> bool,
    ) -> Result<bool, Failure> {
        loop {
            for node in 0..2 {
                self.drain(node)?;
            }
            if done(self) {
                return Ok(true);
            }
            let next = self.next_time().unwrap_or(Instant::FAR_FUTURE);
            if next > until {
                self.now = self.now.max(until);
                return Ok(false);
            }
            self.at_once = if next > self.now { 0 } else { self.at_once + 1 };
            self.steps += 1;
            if self.at_once > MOST_AT_ONCE || self.steps > self.most_steps {
                self.trace_sessions();
                return self.fail(self.standstill());
            }
            self.now = next;
            self.happen()?;
        }
    }

    /// When something happens next.
    fn next_time(&mut self) -> Option<Instant> {
        let now = self.now;
        let queue = self.queue.keys().next().map(|(at, _)| *at);
        let [a, b] = [0, 1].map(|node| self.wake_at(node));
        let channels = self.channels.iter().flatten().filter_map(Channel::next_time).min();
        [queue, a, b, channels].into_iter().flatten().min().map(|t| t.max(now))
    }

    /// When a node's driver wakes up next.
    fn wake_at(&mut self, node: usize) -> Option<Instant> {
        self.nodes[node].wake_at(self.now, self.clocks[node], self.plan.lateness)
    }

    /// Everything that is due now.
    fn happen(&mut self) -> Result<(), Failure> {
        for sender in 0..2 {
            self.arrivals(sender, 0)?;
            self.arrivals(sender, 1)?;
        }
        for node in 0..2 {
            if self.wake_at(node).is_some_and(|t| t <= self.now)
                && let Some(relay) = &mut self.nodes[node].relay
            {
                relay.handle_timeout(self.now + self.clocks[node]);
                self.nodes[node].wake = None;
                self.digest.take(self.now.as_nanos());
            }
        }
        while let Some(entry) = self.queue.first_entry() {
            if entry.key().0 > self.now {
                break;
            }
            let what = entry.remove();
            self.see_to(what)?;
        }
        Ok(())
    }

    fn see_to(&mut self, what: Happening) -> Result<(), Failure> {
        match what {
            Happening::FaultBegins(i) => self.begin_fault(i),
            Happening::FaultEnds(i) => self.end_fault(i),
            Happening::Opens(i) => self.open(i),
            Happening::Syn(i, before) => self.send_syn(i, before),
            Happening::Shakes(i) => self.join(i),
            Happening::Answers(i) => self.answer(i),
            Happening::Acts(i, side) => self.act(i, side),
            Happening::Datagram(i) => self.send_datagram(i),
        }
    }

    // ---- packets ---------------------------------------------------------------

    fn arrivals(&mut self, sender: usize, carrier: usize) -> Result<(), Failure> {
        while let Some(arrival) = self.channels[sender][carrier].pop(self.now) {
            let mut wire = arrival.item;
            match arrival.fate {
                Fate::Lost(_) => continue,
                Fate::Corrupted(draw) => flip_bit(&mut wire.bytes, draw),
                Fate::Delivered => {}
            }
            self.digest.take(self.now.as_nanos() ^ sender as u64);
            let kind = PacketKind::of(&wire.bytes);
            if !matches!(kind, Some(PacketKind::Data { .. })) {
                self.trace(|| format!("node {} receives {kind:?}", 1 - sender));
            }
            let node = &mut self.nodes[1 - sender];
            if wire.to == node.at(wire.to.carrier)
                && let Some(relay) = &mut node.relay
            {
                let now = self.now + self.clocks[1 - sender];
                relay.handle_carrier(now, now, wire.from, &mut wire.bytes);
                let names = self.nodes[1 - sender].session_names();
                self.trace(|| format!("node {}: session {names:x?}", 1 - sender));
                self.look_at(1 - sender)?;
            }
        }
        Ok(())
    }

    /// Polls a node until there is nothing left.
    fn drain(&mut self, node: usize) -> Result<(), Failure> {
        #[cfg(test)]
        if let (Some(mistake), Some(session)) = (self.mistake, self.nodes[node].session_mut()) {
            session.plant(mistake);
        }
        loop {
            // Drivers differ in what they look at first; neither order may matter.
            let mut any = self.plan.actions_first && self.act_all(node)?;
            any |= self.transmit_all(node)?;
            any |= !self.plan.actions_first && self.act_all(node)?;
            any |= self.nodes[node].serve_files(self.plan.disks_rot);
            if !any {
                return Ok(());
            }
        }
    }

    fn transmit_all(&mut self, node: usize) -> Result<bool, Failure> {
        let mut any = false;
        let mut buffer = std::mem::take(&mut self.buffer);
        while let Some(relay) = &mut self.nodes[node].relay {
            let local = self.now + self.clocks[node];
            let Some(transmit) = relay.poll_transmit(local, &mut buffer) else { break };
            any = true;
            self.push(node, transmit.to, &buffer[..transmit.len])?;
        }
        self.buffer = buffer;
        Ok(any)
    }

    fn push(&mut self, node: usize, to: Remote, bytes: &[u8]) -> Result<(), Failure> {
        let headers = if self.plan.ipv6 { 48 } else { 28 };
        let ip = bytes.len() as u64 + headers;
        let len = ByteCount(ip + u64::from(self.plan.overhead));
        let data = matches!(PacketKind::of(bytes), Some(PacketKind::Data { .. }));
        let paced = data && bytes.len() > 60;
        self.trace(|| match data {
            true => format!("node {node} sends {} bytes", len.0),
            false => format!("node {node} sends {:?}", PacketKind::of(bytes)),
        });
        self.digest.take_tail(bytes);
        self.digest.take(self.now.as_nanos());
        self.report.packets[node] += 1;
        self.report.packet_bytes[node] += len.0;
        let mtu = self.plan.mtus[0].min(self.plan.mtus[1]);
        if data && self.session_is_begun(node) && ip > u64::from(mtu) {
            return self.fail(format!("node {node} sent {ip} bytes over a link of {mtu}"));
        }
        let carrier = usize::from(to.carrier.0);
        if self.nodes[node].down[carrier] {
            return self.fail(format!("node {node} sent on a path that is down"));
        }
        let early = self.nodes[node].meters[carrier].on_packet(self.now, len, paced);
        if early > Duration::ZERO {
            return self.fail(format!("node {node} exceeds the link's rate: {early} too early"));
        }
        let dropped = |f: &Fault| f.kind == FaultKind::NoHandshakes;
        if !data && self.active.iter().any(dropped) {
            return Ok(());
        }
        let wire = Wire { from: self.nodes[node].at(to.carrier), to, bytes: bytes.to_vec() };
        // The queue holds 50 ms of the rate that the node was told. A line that is held, or has a
        // tenth of that rate, overflows until the node knows; and it stands full when that ends, so
        // that whoever sends at the line's rate again overflows it until rate control has seen
        // that.
        let fills = |f: &Fault| {
            f.from <= self.now && matches!(f.kind, FaultKind::Hold(_) | FaultKind::Weak(_))
        };
        let held = carrier == 0 && self.plan.faults.iter().any(fills);
        if self.channels[node][carrier].push(self.now, len, wire).is_err() && !held {
            return self.fail(format!("node {node} overran a queue of 50 ms of its own rate"));
        }
        Ok(())
    }

    fn session_is_begun(&self, node: usize) -> bool {
        let node = &self.nodes[node];
        node.relay.as_ref().is_some_and(|r| r.endpoint.is_established(node.peer))
    }

    // ---- what a node asks for --------------------------------------------------

    fn act_all(&mut self, node: usize) -> Result<bool, Failure> {
        let mut any = false;
        while let Some(relay) = &mut self.nodes[node].relay {
            let Some(action) = relay.poll_action(self.now + self.clocks[node]) else { break };
            any = true;
            self.carry_out(node, action)?;
        }
        while let Some(relay) = &mut self.nodes[node].relay
            && let Some((_, event)) = relay.poll_link_event()
        {
            self.report.news.extend(LinkNews::of(self.now, node, event));
            self.trace(|| format!("node {node}: {event:?}"));
        }
        while let Some(relay) = &mut self.nodes[node].relay {
            let mut outcome = Ok(());
            let datagrams = &mut self.datagrams[1 - node];
            let local = self.now + self.clocks[node];
            if !relay.poll_tun(local, |packet| outcome = datagrams.check(1 - node, packet)) {
                break;
            }
            any = true;
            self.digest.take(self.now.as_nanos());
            outcome.or_else(|what| self.fail(what))?;
        }
        if any {
            self.look_at(node)?;
        }
        Ok(any)
    }

    fn carry_out(&mut self, node: usize, action: Action) -> Result<(), Failure> {
        self.trace(|| format!("node {node}: {action:?}"));
        self.digest.take(self.now.as_nanos());
        match action {
            Action::Connect { flow, target, source } => self.connect(node, flow, &target, source),
            Action::ServiceConnect { .. } | Action::ServiceRefused(..) => {
                self.fail("no service runs here, and something was done for one")
            }
            Action::Write(flow) | Action::Read(flow) => self.serve_flow(node, flow),
            Action::Accepted(flow) => self.accepted(node, flow),
            Action::ToClient(packet) => self.write_to_client(node, &packet),
            Action::ToHost(_) => self.fail("a packet was refused that both nodes take"),
            Action::PeerReset(flow, _) => self.peer_reset(node, flow),
            Action::Abort(flow, reason) => self.abort(node, flow, reason),
        }
    }

    fn send_datagram(&mut self, i: usize) -> Result<(), Failure> {
        let plan = self.plan.datagrams[i];
        if self.nodes[plan.node].relay.is_none() {
            return Ok(());
        }
        let mut packet = self.datagrams[plan.node].make(plan.node, plan.len);
        let Some(relay) = &mut self.nodes[plan.node].relay else { return Ok(()) };
        match relay.handle_tun(self.now + self.clocks[plan.node], &mut packet, true) {
            Verdict::Sent => self.report.datagrams += 1,
            Verdict::Dropped | Verdict::Refused => {}
            Verdict::Intercept | Verdict::Pending => {
                return self.fail("a UDP packet was taken for a SYN");
            }
        }
        Ok(())
    }

    // ---- faults ----------------------------------------------------------------

    fn begin_fault(&mut self, i: usize) -> Result<(), Failure> {
        let fault = self.plan.faults[i];
        self.trace(|| format!("begins: {:?}", fault.kind));
        match fault.kind {
            FaultKind::Restart(node) => self.die(node)?,
            FaultKind::Move(node) => self.nodes[node].relocate(),
            FaultKind::UseSecond(node) => {
                let local = self.now + self.clocks[node];
                self.nodes[node].use_path(local, 1);
            }
            FaultKind::PathDown(carrier) => self.set_path_up(carrier, false),
            FaultKind::Leap(node, time) => {
                self.clocks[node] += time;
                self.forget_clients(node);
                // What it may send it may have sent while it slept.
                let local = self.now + self.clocks[node];
                self.nodes[node].on_leap(local, node, self.plan);
            }
            _ => {
                self.active.push(fault);
                self.tune_channels();
            }
        }
        Ok(())
    }

    fn end_fault(&mut self, i: usize) -> Result<(), Failure> {
        let fault = self.plan.faults[i];
        self.trace(|| format!("ends: {:?}", fault.kind));
        match fault.kind {
            FaultKind::Restart(node) => {
                // Node 0 opens the second path anew: at the other one it is a new path (L-PT-4).
                self.nodes[1].down[1] &= node != 0;
                if self.plan.loses_files {
                    self.nodes[node].disk = Default::default();
                }
                self.start(node);
            }
            // The hub's name is resolved again.
            FaultKind::Move(1) => {
                let (hub, now) = (self.nodes[1].address, self.now + self.clocks[0]);
                let terminal = &mut self.nodes[0];
                if let Some(relay) = &mut terminal.relay {
                    relay.endpoint.set_endpoint(now, terminal.peer, hub);
                }
            }
            FaultKind::Move(_) | FaultKind::Leap(..) => {}
            FaultKind::UseSecond(node) => {
                let local = self.now + self.clocks[node];
                self.nodes[node].use_path(local, 0);
            }
            FaultKind::PathDown(carrier) => self.set_path_up(carrier, true),
            _ => {
                let dark = matches!(fault.kind, FaultKind::Outage(_) | FaultKind::Hold(_));
                self.dark_until = if dark { Some(self.now) } else { self.dark_until };
                self.active.retain(|f| *f != fault);
                self.tune_channels();
            }
        }
        Ok(())
    }

    fn set_path_up(&mut self, carrier: usize, up: bool) {
        for node in 0..2 {
            let local = self.now + self.clocks[node];
            self.nodes[node].set_path_up(local, carrier, up);
        }
    }

    fn tune_channels(&mut self) {
        for sender in 0..2 {
            let is_dead =
                |f: &Fault| matches!(f.kind, FaultKind::SecondDead(way) if way.meets(sender));
            let dead = self.active.iter().any(is_dead);
            self.channels[sender][1].set_outage(self.now, dead);
            let mut config = clean(self.plan, sender, 0);
            let mut outage = false;
            for fault in &self.active {
                worsen(&mut config, &mut outage, sender, fault.kind, self.plan.overhead);
            }
            let channel = &mut self.channels[sender][0];
            channel.reconfigure(self.now, config).expect("drawn within the limits");
            channel.set_outage(self.now, outage);
        }
    }

    /// A node starts, for the first time or again.
    fn start(&mut self, node: usize) {
        let other = &self.nodes[1 - node];
        let (key, address) = (other.public_key(), other.address);
        // The hub has a name, which is resolved at the start.
        let moving = |f: &&Fault| f.kind == FaultKind::Move(1) && f.from <= self.now;
        let resolved =
            node == 0 && !self.plan.faults.iter().any(|f| moving(&f) && self.now < f.until);
        let known = (node == 0 || self.plan.hub_knows).then_some(address);
        let local = self.now + self.clocks[node];
        self.nodes[node].start(local, node, self.plan, key, known, resolved);
    }

    // ---- the end ---------------------------------------------------------------

    /// Is everything over, and nothing left anywhere?
    pub fn is_converged(&self) -> bool {
        self.open_hosts == 0 && self.leftover().is_none()
    }

    /// Do both nodes speak of the same session?
    pub fn is_one_session(&self) -> bool {
        let [a, b] = self.nodes.each_ref().map(Node::session_names);
        a.is_some() && a == b.map(|(local, remote)| (remote, local))
    }

    /// What there is that should be gone, if anything.
    pub fn leftover(&self) -> Option<String> {
        for (i, node) in self.nodes.iter().enumerate() {
            let Some(relay) = &node.relay else { return Some(format!("node {i} is down")) };
            let Some(session) = node.session() else {
                return Some(format!("node {i} has no session"));
            };
            let counts = [
                ("flows", relay.flow_count() as u64),
                ("SYNs that wait", relay.pending_opens() as u64),
                ("streams", session.streams() as u64),
                ("bytes of stream memory", session.memory_used()),
                ("things on their way", u64::from(!session.is_quiet())),
                ("sockets", node.flows.len() as u64),
            ];
            if let Some((what, n)) = counts.into_iter().find(|(_, n)| *n > 0) {
                return Some(format!("node {i} still has {n} {what}"));
            }
        }
        (!self.is_one_session()).then(|| "the nodes share no session".into())
    }

    /// How many packets are in the channels.
    pub fn in_channels(&self) -> usize {
        self.channels.iter().flatten().map(Channel::held).sum()
    }

    /// Shows what the sessions wait for.
    pub fn trace_sessions(&mut self) {
        for node in 0..2 {
            let shown = self.nodes[node].session().map(|s| format!("{s:#?}"));
            self.trace(|| format!("node {node}: {}", shown.unwrap_or_default()));
        }
    }

    fn standstill(&self) -> String {
        let due = [0, 1].map(|node| {
            self.nodes[node].relay.as_ref()?.poll_timeout(self.now + self.clocks[node])
        });
        format!("time stands still after {} steps: timers {due:?}", self.steps)
    }
}

/// A channel without faults: the rate that the sender was told, and room for what its
/// pacer may send ahead.
fn clean(plan: &Plan, sender: usize, carrier: usize) -> ChannelConfig {
    let second = plan.second.filter(|_| carrier == 1);
    let (rate, delay) = match second {
        Some(second) => (second.rates[sender], second.delays[sender]),
        None => (plan.rates[sender], plan.delays[sender]),
    };
    let room = rate.bytes_in(Duration::from_millis(50)) + ByteCount(16_000);
    ChannelConfig {
        rate: Some(rate),
        delay,
        queue: QueueLimit::Bytes(room),
        ..ChannelConfig::default()
    }
}

fn worsen(
    config: &mut ChannelConfig,
    outage: &mut bool,
    sender: usize,
    kind: FaultKind,
    overhead: u16,
) {
    match kind {
        FaultKind::Loss(way, share) if way.meets(sender) => config.loss = config.loss.max(share),
        FaultKind::Bursts(way, bursts) if way.meets(sender) => config.burst = Some(bursts),
        FaultKind::BitErrors(way, ber) if way.meets(sender) => config.ber = config.ber.max(ber),
        FaultKind::Reordering(way, share, delay) if way.meets(sender) => {
            (config.reorder, config.reorder_delay) = (share, delay);
        }
        FaultKind::Duplication(way, share, delay) if way.meets(sender) => {
            (config.duplicate, config.duplicate_delay) = (share, delay);
        }
        FaultKind::Corruption(way, share) if way.meets(sender) => config.corrupt = share,
        // The channel counts framing, the path does not.
        FaultKind::Narrow(way, mtu) if way.meets(sender) => config.mtu = Some(mtu + overhead),
        FaultKind::Weak(way) if way.meets(sender) => {
            config.rate = config.rate.map(|rate| BitRate::from_bps(rate.as_bps() / 10));
            config.loss = config.loss.max(Ratio::from_f64(0.2));
        }
        FaultKind::Outage(way) if way.meets(sender) => *outage = true,
        FaultKind::Hold(way) if way.meets(sender) => {
            *outage = true;
            config.outage_mode = OutageMode::Hold;
        }
        _ => {}
    }
}
