//! Two nodes, a line between them, and what happens next.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use channel::{Channel, ChannelConfig, Fate, QueueLimit};
use dial::calendar::Hours;
use dial::manager::{Command, DownCause, State, Work};
use link::endpoint::{Endpoint, EndpointConfig};
use link::keys::{PresharedKey, PrivateKey};
use link::session::{ClassConfig, ClassId, LinkConfig, NEARLY_EMPTY, PathConfig, RecvState};
use link::tunnel::PacketKind;
use link::{CarrierId, CarrierName, CarrierNames, PathId, PeerConfig, PeerId, Remote};
use relay::{
    Action, FlowId, Origin, Policy, Relay, ResetReason, Rule, Share, StoppedHosts, Target,
};
use serde::Serialize;
use units::{BitRate, ByteCount, Duration, Instant, Ratio, Rng};

use super::line::{LINE, Line, Modem, carrier_of};
use super::meter::{Meter, Metered};
use super::plan::{CallPlan, Kind};
use crate::Trace;
use crate::check::{Digest, Failure};
use crate::host::{Host, check_end};
use crate::pattern::Pattern;

mod stops;

/// IPv4 and UDP.
const HEADERS: u64 = 28;
/// Steps that a run may take, and those without any time passing.
const MOST_STEPS: u64 = 5_000_000;
const MOST_AT_ONCE: u32 = 5_000;
/// How soon all must be over when the modem works and the line is held.
const PATIENCE: Duration = Duration::from_secs(3 * 3_600);
/// The longest that a manager leaves somebody urgent without a dial: an hour's diallings are used
/// up, or a call stalled again and again; and a minute.
const MOST_WAIT: Duration = Duration::from_secs(3_660);
const MINUTE: Duration = Duration::from_secs(60);
const SAT_RATE: BitRate = BitRate::from_kbps(256);

/// What a run did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CallReport {
    /// The seed.
    pub seed: u64,
    /// The hash of everything that happened, in hexadecimal.
    pub hash: String,
    /// Virtual milliseconds in all.
    pub virtual_ms: u64,
    /// Connections, all of which ended in good order.
    pub connections: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Packets on all carriers.
    pub packets: u64,
    /// Diallings, and calls that were answered.
    pub dials: u64,
    /// See `dials`.
    pub calls: u64,
    /// Calls that dropped.
    pub drops: u64,
    /// What they cost, in millionths.
    pub cost: u64,
}

#[derive(Clone, Debug)]
struct Wire {
    from: Remote,
    bytes: Vec<u8>,
    /// The call that it is in, on the line.
    call: u64,
}

struct Node {
    relay: Relay,
    peer: PeerId,
    flows: BTreeMap<FlowId, usize>,
}

struct Talk {
    kind: Kind,
    /// Its host's budget was used up: it was refused, or is reset.
    cut: bool,
    hosts: [Option<Host>; 2],
    patterns: [Pattern; 2],
}

pub(super) struct World<'a> {
    plan: &'a CallPlan,
    trace: Option<Trace<'a>>,
    pub now: Instant,
    nodes: [Node; 2],
    pub line: Line,
    /// The ship sends on the line.
    path_up: bool,
    meter: Meter,
    talks: Vec<Talk>,
    channels: [[Channel<Wire>; 2]; 2],
    ticks: BTreeMap<(Instant, usize, usize), ()>,
    opened: usize,
    rng: Rng,
    digest: Digest,
    pub report: CallReport,
    scratch: Vec<u8>,
    buffer: Vec<u8>,
    healed: bool,
    /// Somebody urgent has waited since then without a dial.
    pub starved_since: Instant,
    next_check: Instant,
    /// The carrier that bulk may come by.
    pub bound: Option<u16>,
    /// What the ship's relay was told.
    stopped: StoppedHosts,
    /// What hosts had moved when their budget was seen used up.
    moved_at_stop: BTreeMap<IpAddr, u64>,
    /// A planted mistake: hosts without money go on.
    #[cfg(test)]
    pub forgets_hosts: bool,
    /// A planted mistake: the ship's path stays up when the line is down.
    #[cfg(test)]
    pub forgets_the_path: bool,
}

fn name(name: &str) -> CarrierName {
    CarrierName::new(name.as_bytes()).expect("a short name")
}

fn remote(node: usize, carrier: u8) -> Remote {
    let port = 4500 + u16::from(carrier);
    let addr = SocketAddr::new(IpAddr::from([192, 0, 2, node as u8 + 1]), port);
    Remote { carrier: CarrierId(carrier), addr: Some(addr) }
}

fn client(index: usize) -> SocketAddr {
    SocketAddr::new(IpAddr::from([10, 1, 0, 1 + index as u8 % 3]), 40_000 + index as u16)
}

fn link_config(plan: &CallPlan, rate: BitRate) -> LinkConfig {
    let mut classes = Vec::new();
    if let Some(bound) = plan.bound {
        classes = vec![ClassConfig::default(); ClassId::BUILT_IN];
        let names = [name(["line", "sat"][usize::from(bound)])];
        classes[ClassId::BULK.index()].carriers = CarrierNames::new(&names).expect("one name");
    }
    LinkConfig {
        send_rate: rate,
        rate_mode: Default::default(),
        receive_rate: rate,
        rtt: plan.delay.times(2),
        mtu: 576,
        packet: 576,
        queue: NEARLY_EMPTY,
        bit_errors: Ratio::ZERO,
        overhead: 0,
        memory: ByteCount(4 << 20),
        stream_buffer: None,
        max_streams: relay::streams_for(100),
        headers: true,
        history: ByteCount(0),
        dedup: false,
        facts: Default::default(),
        classes,
    }
}

fn start_node(plan: &CallPlan, node: usize, keys: &[PrivateKey; 2], rng: &mut Rng) -> Node {
    let now = Instant::ZERO;
    let mut seed = [0; 32];
    rng.fill(&mut seed);
    let mut relay = Relay::new(Endpoint::new(EndpointConfig {
        private_key: keys[node].clone(),
        seed,
        hardware_aes: true,
        initiations_per_second: 1000,
        key_lifetime: link::endpoint::MAX_KEY_LIFETIME,
        fresh: None,
    }));
    // The carrier that is there by itself comes first, where there is one.
    let first = u8::from(plan.beside.is_some());
    let rate = if first == 1 { SAT_RATE } else { plan.rate };
    let config = PeerConfig {
        public_key: *keys[1 - node].public(),
        preshared_key: PresharedKey::NONE,
        endpoint: (node == 0).then(|| remote(1, first)),
        link: link_config(plan, rate),
        keepalive: None,
    };
    let ports = vec![Kind::Bulk.port()..=Kind::Bulk.port() + 999];
    let bulk = Rule {
        protocol: Some(6),
        ports,
        dscp: None,
        class: Some(ClassId::BULK),
        carry: None,
        compress: None,
        headers: None,
        dedup: None,
        via: None,
    };
    let prefix = |n: usize| format!("10.{}.0.0/16", n + 1).parse().expect("a prefix");
    let policy = Policy {
        routes: vec![prefix(1 - node)],
        allow: vec![prefix(node)],
        keep_source: true,
        rules: vec![bulk],
        open: relay::Open::Fast,
        dedup: Share::Off,
        ..Policy::default()
    };
    let peer = relay.add_peer(now, config, policy).expect("two different keys");
    if node == 0 {
        relay.watch_moved(peer, true);
        if first == 1 {
            let probe = Some(Duration::from_secs(5));
            relay.endpoint.name_path(now, peer, PathId::FIRST, name("sat"));
            relay.endpoint.set_path_habits(now, peer, PathId::FIRST, (0, probe));
            let line = PathConfig {
                name: name("line"),
                priority: 10,
                probe: None,
                ..link_config(plan, plan.rate).path()
            };
            relay.endpoint.add_path(now, peer, line, CarrierId(0), Some(remote(1, 0)));
        }
    }
    Node { relay, peer, flows: BTreeMap::new() }
}

fn channel(plan: &CallPlan, carrier: usize, seed: u64) -> Channel<Wire> {
    let config = ChannelConfig {
        rate: Some(if carrier == 0 { plan.rate } else { SAT_RATE }),
        delay: plan.delay,
        loss: plan.loss,
        queue: QueueLimit::Time(Duration::from_secs(5)),
        ..ChannelConfig::default()
    };
    Channel::new(config, seed).expect("the rates are above zero")
}

impl<'a> World<'a> {
    pub fn new(plan: &'a CallPlan, trace: Option<Trace<'a>>) -> World<'a> {
        let mut rng = Rng::new(plan.seed ^ 0xca11_0dd0);
        let keys = [0, 1].map(|_| {
            let mut key = [0; 32];
            rng.fill(&mut key);
            PrivateKey::from_bytes(key)
        });
        let nodes = [0, 1].map(|node| start_node(plan, node, &keys, &mut rng));
        let channels = [0, 1].map(|_| [0, 1].map(|c| channel(plan, c, rng.next_u64())));
        let talk = |(i, (kind, _)): (usize, &(Kind, _))| {
            let key = plan.seed.wrapping_mul(0x1_0000_0001).wrapping_add(2 * i as u64);
            let patterns = [Pattern::new(key), Pattern::new(key + 1)];
            Talk { kind: *kind, cut: false, hosts: [None, None], patterns }
        };
        let now = Instant::from_nanos(1);
        let mut world = World {
            plan,
            trace,
            now,
            nodes,
            line: Line::new(plan, now),
            path_up: true,
            meter: Meter { prices: plan.prices, calls: Vec::new() },
            talks: plan.demands.iter().enumerate().map(talk).collect(),
            channels,
            ticks: BTreeMap::new(),
            opened: 0,
            rng,
            digest: Digest::new(plan.seed),
            report: CallReport { seed: plan.seed, ..CallReport::default() },
            scratch: Vec::new(),
            buffer: vec![0; 2048],
            healed: false,
            starved_since: now,
            next_check: now,
            bound: plan.bound,
            stopped: StoppedHosts::default(),
            moved_at_stop: BTreeMap::new(),
            #[cfg(test)]
            forgets_hosts: false,
            #[cfg(test)]
            forgets_the_path: false,
        };
        world.set_line_up(false);
        world
    }

    pub fn fail<T>(&self, what: impl Into<String>) -> Result<T, Failure> {
        let repeat = format!("--calls --seed {}", self.plan.seed);
        Err(Failure { repeat, at: self.now, what: what.into() })
    }

    fn trace(&mut self, what: impl FnOnce() -> String) {
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
        let (mut steps, mut at_once) = (0, 0);
        loop {
            self.settle()?;
            if done(self) {
                return Ok(true);
            }
            let next = self.next_time();
            if next > until {
                self.now = self.now.max(until);
                return Ok(false);
            }
            (steps, at_once) = (steps + 1, if next > self.now { 0 } else { at_once + 1 });
            if steps > MOST_STEPS || at_once > MOST_AT_ONCE {
                return self.fail("time stands still");
            }
            self.now = next;
            self.happen()?;
        }
    }

    fn next_time(&mut self) -> Instant {
        let now = self.now;
        let relays = [0, 1].map(|n: usize| self.nodes[n].relay.poll_timeout(now));
        let channels = self.channels.iter().flatten().filter_map(Channel::next_time).min();
        let tick = self.ticks.keys().next().map(|(at, ..)| *at);
        let opens = self.plan.demands.get(self.opened).map(|(_, demand)| demand.at);
        let rest = [channels, tick, opens, self.line.timeout(now), Some(self.next_check)];
        let next = relays.into_iter().chain(rest).flatten().min();
        next.unwrap_or(Instant::FAR_FUTURE).max(now)
    }

    fn happen(&mut self) -> Result<(), Failure> {
        self.digest.take(self.now.as_nanos());
        for sender in 0..2 {
            for carrier in 0..2 {
                self.arrivals(sender, carrier)?;
            }
        }
        for node in &mut self.nodes {
            if node.relay.poll_timeout(self.now).is_some_and(|at| at <= self.now) {
                node.relay.handle_timeout(self.now);
            }
        }
        while self.plan.demands.get(self.opened).is_some_and(|(_, d)| d.at <= self.now) {
            self.opened += 1;
            self.open(self.opened - 1)?;
        }
        while let Some(entry) = self.ticks.first_entry() {
            let (at, index, side) = *entry.key();
            if at > self.now {
                break;
            }
            entry.remove();
            if let Some(host) = &mut self.talks[index].hosts[side] {
                host.tick = None;
            }
            self.serve(index, side)?;
        }
        if self.now >= self.next_check {
            self.next_check = self.now + MINUTE;
            self.check_money()?;
            self.check_hosts()?;
            self.check_starved()?;
        }
        Ok(())
    }

    /// Polls everything until there is nothing left.
    fn settle(&mut self) -> Result<(), Failure> {
        loop {
            let mut any = false;
            for node in 0..2 {
                while let Some(action) = self.nodes[node].relay.poll_action(self.now) {
                    any = true;
                    self.carry_out(node, action)?;
                }
                while self.nodes[node].relay.poll_link_event().is_some() {}
                any |= self.transmit(node)?;
            }
            any |= self.work_line()?;
            if !any {
                return Ok(());
            }
        }
    }

    // ---- packets ---------------------------------------------------------------

    fn transmit(&mut self, node: usize) -> Result<bool, Failure> {
        let mut any = false;
        let mut buffer = std::mem::take(&mut self.buffer);
        while let Some(sent) = self.nodes[node].relay.poll_transmit(self.now, &mut buffer) {
            any = true;
            self.push(node, usize::from(sent.to.carrier.0), &buffer[..sent.len])?;
        }
        self.buffer = buffer;
        Ok(any)
    }

    fn push(&mut self, node: usize, carrier: usize, bytes: &[u8]) -> Result<(), Failure> {
        let len = bytes.len() as u64 + HEADERS;
        self.report.packets += 1;
        self.digest.take_tail(bytes);
        if carrier == 0 && node == 0 {
            if !self.path_up {
                return self.fail("the ship sent on its line, which is down");
            }
            self.meter.count(len);
        }
        let wire =
            Wire { from: remote(node, carrier as u8), bytes: bytes.to_vec(), call: self.line.call };
        // What finds no room is lost, as on any line.
        let _ = self.channels[node][carrier].push(self.now, ByteCount(len), wire);
        Ok(())
    }

    fn arrivals(&mut self, sender: usize, carrier: usize) -> Result<(), Failure> {
        while let Some(arrival) = self.channels[sender][carrier].pop(self.now) {
            let mut wire = arrival.item;
            let dark = match carrier {
                0 => wire.call != self.line.call || !self.line.modem.passes(self.now),
                _ => self.is_dark(),
            };
            if dark || !matches!(arrival.fate, Fate::Delivered) {
                continue;
            }
            let is_data = matches!(PacketKind::of(&wire.bytes), Some(PacketKind::Data { .. }));
            let before = self.bulk_bytes();
            let relay = &mut self.nodes[1 - sender].relay;
            let refused = relay.endpoint.drops().values().sum::<u64>();
            relay.handle_carrier(self.now, self.now, wire.from, &mut wire.bytes);
            // A handshake's message that is refused, as one that comes late, is nobody's that is
            // known.
            let is_refused = relay.endpoint.drops().values().sum::<u64>() > refused;
            if carrier == 0 && sender == 1 && (is_data || !is_refused) {
                self.meter.count(wire.bytes.len() as u64 + HEADERS);
            }
            self.settle()?;
            let allowed = self.bound.is_none_or(|bound| usize::from(bound) == carrier);
            if !allowed && self.bulk_bytes() > before {
                return self.fail(format!("bytes of a bound class came by carrier {carrier}"));
            }
        }
        Ok(())
    }

    /// What hosts of bulk connections have been given.
    fn bulk_bytes(&self) -> u64 {
        let bulk = self.talks.iter().filter(|talk| talk.kind == Kind::Bulk);
        bulk.flat_map(|talk| talk.hosts.iter().flatten()).map(|host| host.written).sum()
    }

    fn is_dark(&self) -> bool {
        let Some(dark) = &self.plan.beside else { return true };
        let now = self.now;
        !self.healed && dark.iter().any(|[from, until]| (*from..*until).contains(&now))
    }

    // ---- the line --------------------------------------------------------------

    /// Both ends of the path over the line: the shore's modem knows of a call as the ship's does.
    fn set_line_up(&mut self, up: bool) {
        self.path_up = up;
        #[cfg(test)]
        if self.forgets_the_path && !up {
            return;
        }
        for node in &mut self.nodes {
            let paths = node.relay.endpoint.paths(self.now, node.peer);
            if let Some(path) = paths.iter().find(|path| carrier_of(path) == LINE) {
                node.relay.endpoint.set_path_up(self.now, node.peer, path.id, up);
            }
        }
    }

    fn tell(&mut self) {
        let node = &self.nodes[0];
        self.line.tell_crossed(self.now, &node.relay, node.peer);
    }

    /// Tells the manager what happened, and does what it wants.
    fn work_line(&mut self) -> Result<bool, Failure> {
        while let Some((id, moved)) = self.nodes[0].relay.poll_moved() {
            self.line.on_moved(self.now, id, &moved);
        }
        self.look_at_modem();
        let node = &self.nodes[0];
        if self.line.look(self.now, &node.relay, node.peer)
            && matches!(self.line.modem, Modem::Online { .. })
        {
            self.trace(|| "nothing was heard for a minute".into());
            self.hang_up();
        }
        let mut any = false;
        while let Some(work) = self.line.manager.poll(self.now, &mut self.line.books) {
            any = true;
            self.trace(|| format!("{work:?}"));
            self.do_work(work)?;
        }
        while self.line.books.poll_record().is_some() {}
        Ok(any | self.stop_hosts())
    }

    fn look_at_modem(&mut self) {
        if self.line.modem.due().is_none_or(|at| at > self.now) {
            return;
        }
        match self.line.modem {
            Modem::Dialling(_, true) => self.on_carrier(),
            Modem::Dialling(_, false) => {
                self.line.modem = Modem::Idle;
                let why = ["busy", "no carrier", "no answer"][self.rng.below(3) as usize];
                self.line.manager.handle_failed(self.now, LINE, why);
            }
            Modem::Online { .. } => {
                self.report.drops += 1;
                self.on_ended("the carrier was lost");
            }
            Modem::Ending(_) => self.on_ended("hung up from here"),
            Modem::Idle => {}
        }
    }

    fn on_carrier(&mut self) {
        self.report.calls += 1;
        self.line.call += 1;
        self.line.modem = Modem::answered(self.now, self.plan, &mut self.rng);
        let start = self.plan.wall.after(self.now.since(Instant::from_nanos(1)));
        let node = &self.nodes[0];
        self.line.on_carrier(self.now, &node.relay, node.peer);
        self.meter.calls.push(Metered { start, answered: self.now, ended: None, bytes: 0 });
        self.set_line_up(true);
    }

    fn on_ended(&mut self, why: &str) {
        self.tell();
        self.set_line_up(false);
        if let Some(call) = self.meter.calls.last_mut() {
            call.ended = Some(self.now);
        }
        self.line.modem = Modem::Idle;
        self.line.call += 1;
        self.line.on_ended(self.now, why, &self.nodes[0].relay);
    }

    /// The modem needs up to a second and a half for it: less than the manager's guard before a
    /// step.
    fn hang_up(&mut self) {
        self.tell();
        self.set_line_up(false);
        let takes = Duration::from_millis(self.rng.between(50, 1_500));
        self.line.modem = Modem::Ending(self.now + takes);
    }

    fn do_work(&mut self, work: Work) -> Result<(), Failure> {
        match work {
            Work::Dial { carrier, .. } => {
                self.report.dials += 1;
                if carrier != LINE || self.line.modem != Modem::Idle {
                    return self.fail(format!(
                        "{carrier:?} is dialled, the modem is {:?}",
                        self.line.modem
                    ));
                }
                self.check_dial()?;
                self.starved_since = self.now;
                let answered = self.healed || self.rng.below(100) >= self.plan.fails;
                let at = self.now + Duration::from_millis(self.rng.between(2_000, 45_000));
                self.line.modem = Modem::Dialling(at, answered);
            }
            Work::HangUp { carrier, .. } if carrier != LINE => {
                return self.fail(format!("{carrier:?} is free, and set down for its price"));
            }
            Work::HangUp { cause, .. } => match self.line.modem {
                Modem::Online { .. } => self.hang_up(),
                // Now and then it was answered in this very moment.
                Modem::Dialling(_, true)
                    if cause == DownCause::Needless && self.rng.below(4) == 0 =>
                {
                    self.on_carrier();
                }
                Modem::Dialling(..) => self.line.modem = Modem::Idle,
                Modem::Idle | Modem::Ending(_) => {}
            },
            Work::Admit { .. } | Work::Tell(_) => {}
        }
        Ok(())
    }

    // ---- what is checked -------------------------------------------------------

    fn wall(&self) -> dial::calendar::Wall {
        self.plan.wall.after(self.now.since(Instant::from_nanos(1)))
    }

    fn is_quiet(&self) -> bool {
        !self.healed && self.plan.manager.carriers[0].quiet.contains(self.wall())
    }

    /// May a connection of this kind raise the line at this hour?
    fn may_raise(&self, kind: Kind) -> bool {
        match kind {
            Kind::Noise => false,
            Kind::Bulk if self.plan.bound == Some(1) => false,
            Kind::Urgent if self.plan.quiet_raises => true,
            Kind::Urgent | Kind::Bulk | Kind::Mail => !self.is_quiet(),
        }
    }

    fn spent(&self) -> u64 {
        self.meter.spent(self.now, self.wall().day().month())
    }

    fn check_dial(&self) -> Result<(), Failure> {
        let open =
            |talk: &&Talk| !talk.cut && talk.hosts[0].as_ref().is_some_and(|host| !host.is_over());
        let mut open = self.talks.iter().filter(open);
        if !self.healed && !open.any(|talk| self.may_raise(talk.kind)) {
            return self.fail("the line is dialled, and nobody who waits may raise it now");
        }
        match self.plan.stop.filter(|_| !self.healed) {
            Some(stop) if self.spent() + self.meter.prices.first() > stop => {
                let spent = self.spent();
                self.fail(format!("the line is dialled with {spent} of {stop} spent"))
            }
            _ => Ok(()),
        }
    }

    /// A call that is answered while it is broken off costs its first step. Bytes that cross until
    /// the modem has hung up are allowed for: a budget ends so many early.
    fn check_money(&self) -> Result<(), Failure> {
        let Some(stop) = self.plan.stop.filter(|_| !self.healed) else { return Ok(()) };
        let prices = &self.meter.prices;
        let most = stop + prices.first();
        match self.spent() {
            spent if spent > most => self.fail(format!("{spent} are spent, the stop is {stop}")),
            _ => Ok(()),
        }
    }

    /// Somebody urgent whose bytes have not arrived raises the line in the end.
    fn check_starved(&mut self) -> Result<(), Failure> {
        let (node, prices) = (&self.nodes[0], &self.meter.prices);
        let waits = |(id, index): (&FlowId, &usize)| {
            self.talks[*index].kind == Kind::Urgent && node.relay.is_undelivered(*id)
        };
        let under_way = self.plan.manager.carriers[0].under_way.0.div_ceil(prices.block) + 1;
        let need = self.spent() + prices.first() + under_way * prices.block_price();
        let may = self.healed || self.plan.stop.is_none_or(|stop| need <= stop);
        let hosts = self.healed || self.plan.manager.host_budgets.is_empty();
        let is_down = matches!(self.line.manager.state(LINE), Some(State::Down { .. }));
        let alone = is_down && !self.line.beside_carries();
        let starves = alone && may && hosts && self.may_raise(Kind::Urgent);
        if !(starves && node.flows.iter().any(waits)) {
            self.starved_since = self.now;
        }
        match self.now.since(self.starved_since) {
            waited if waited > MOST_WAIT => {
                self.fail(format!("an urgent connection waited {waited}, and nobody dialled"))
            }
            _ => Ok(()),
        }
    }

    /// Each session in the books is a call that the meter had, and costs what it says.
    pub fn check_books(&mut self) -> Result<(), Failure> {
        let of_line = |s: &&dial::books::Session| &*s.carrier == "line";
        let sessions: Vec<_> = self.line.books.sessions().filter(of_line).cloned().collect();
        if sessions.len() != self.meter.calls.len() {
            let (n, m) = (sessions.len(), self.meter.calls.len());
            return self.fail(format!("{n} sessions are in the books, {m} calls were answered"));
        }
        for (session, call) in sessions.iter().zip(&self.meter.calls) {
            let price = self.meter.price(self.now, call);
            self.report.cost += price;
            let bytes = session.sent + session.received;
            // Each part is rounded once.
            if session.price.as_micros().abs_diff(price) > 2 || bytes != call.bytes {
                return self
                    .fail(format!("the books have {session:?}; the meter {price}, {call:?}"));
            }
        }
        Ok(())
    }

    // ---- hosts -----------------------------------------------------------------

    fn target(&self, index: usize) -> SocketAddr {
        let port = self.talks[index].kind.port() + index as u16;
        SocketAddr::new(IpAddr::from([10, 2, 0, 1]), port)
    }

    fn open(&mut self, index: usize) -> Result<(), Failure> {
        let target = Target::Address(self.target(index));
        let origin = Origin { client: Some(client(index)), target, dscp: 0 };
        let node = &mut self.nodes[0];
        let Some(flow) = node.relay.open(self.now, node.peer, origin) else {
            if self.is_stopped(index) {
                self.talks[index].cut = true;
                return Ok(());
            }
            return self.fail(format!("connection {index} found no room"));
        };
        node.flows.insert(flow, index);
        self.trace(|| format!("connection {index} opens"));
        self.begin(index, 0, flow)
    }

    fn begin(&mut self, index: usize, side: usize, flow: FlowId) -> Result<(), Failure> {
        let plan = self.plan.demands[index].1.hosts[side];
        let mut host = Host::new(plan, self.talks[index].patterns[side]);
        (host.flow, host.connected) = (Some(flow), true);
        self.talks[index].hosts[side] = Some(host);
        self.serve(index, side)
    }

    fn carry_out(&mut self, node: usize, action: Action) -> Result<(), Failure> {
        match action {
            Action::Connect { flow, target: Target::Address(to), .. } if node == 1 => {
                let index = usize::from(to.port() % 1_000);
                let kind = Kind::of_port(to.port());
                if self.talks.get(index).is_none_or(|t| t.kind != kind || t.hosts[1].is_some()) {
                    return self.fail(format!("the shore is to connect to {to}"));
                }
                self.nodes[1].flows.insert(flow, index);
                self.nodes[1].relay.connected(flow);
                self.begin(index, 1, flow)
            }
            Action::Write(flow) | Action::Read(flow) => match self.nodes[node].flows.get(&flow) {
                Some(index) => self.serve(*index, node),
                None => Ok(()),
            },
            Action::Abort(flow, ResetReason::Exhausted) if node == 0 => self.cut(0, flow),
            Action::PeerReset(flow, ResetReason::Exhausted) if node == 1 => self.cut(1, flow),
            Action::Accepted(_) => Ok(()),
            other => self.fail(format!("node {node} wants {other:?}")),
        }
    }

    /// Lets a host and its gateway's socket do what they can.
    fn serve(&mut self, index: usize, side: usize) -> Result<(), Failure> {
        loop {
            let sent = self.talks[index].patterns[1 - side];
            let Some(host) = &mut self.talks[index].hosts[side] else { return Ok(()) };
            host.act(self.now);
            let Some(flow) = host.flow else { break };
            let relay = &mut self.nodes[side].relay;
            let moved = host.give(self.now, relay, flow, &mut self.scratch);
            let got = host.receive(self.now, relay, flow, sent);
            let (moved, got) = match (moved, got) {
                (Ok(moved), Ok(got)) => (moved, got),
                (Err(why), _) | (_, Err(why)) => {
                    return self.fail(format!("connection {index}: {why}"));
                }
            };
            self.report.bytes += got;
            let state = relay.outgoing_state(flow);
            let mut any = moved || got > 0;
            match state {
                RecvState::Open => {}
                RecvState::Finished => {
                    any |= !std::mem::replace(&mut host.shut, true);
                    check_end(&self.talks[index].hosts, side)
                        .or_else(|why| self.fail(format!("connection {index}: {why}")))?;
                }
                RecvState::Reset(_) if self.talks[index].cut => return self.cut(side, flow),
                RecvState::Reset(why) => {
                    return self.fail(format!("connection {index} is reset: {why:?}"));
                }
            }
            self.close_if_done(index, side);
            if !any {
                break;
            }
        }
        let now = self.now;
        if let Some(host) = &mut self.talks[index].hosts[side]
            && let Some(at) = host.next_act(now)
            && host.tick.is_none_or(|tick| at < tick)
        {
            host.tick = Some(at);
            self.ticks.insert((at, index, side), ());
        }
        Ok(())
    }

    fn close_if_done(&mut self, index: usize, side: usize) {
        let Some(host) = &mut self.talks[index].hosts[side] else { return };
        if let Some(flow) = host.flow.filter(|_| host.end_taken && host.shut) {
            host.flow = None;
            self.nodes[side].relay.closed(self.now, flow);
            self.nodes[side].flows.remove(&flow);
        }
    }

    pub fn all_over(&self) -> bool {
        let over = |talk: &Talk| match talk.cut {
            true => talk.hosts.iter().flatten().all(|host| host.flow.is_none()),
            false => talk.hosts.iter().all(|h| h.as_ref().is_some_and(Host::is_over)),
        };
        self.opened == self.talks.len() && self.talks.iter().all(over)
    }

    /// The file says that money and hours do not matter any more, and the operator holds the line.
    fn heal(&mut self) -> Result<(), Failure> {
        self.healed = true;
        let mut config = self.plan.manager.clone();
        (config.budget, config.carriers[0].quiet) = (None, Hours::default());
        config.host_budgets.clear();
        config.carriers[0].max_call = None;
        self.line.manager.handle_config(config).or_else(|why| self.fail(why))?;
        self.line.tell_waiting(self.now);
        self.line.manager.handle_command(Command::Hold);
        Ok(())
    }
}

/// Runs a plan, with a listener if wanted.
///
/// # Errors
/// The first promise that did not hold.
pub fn run_calls(plan: &CallPlan, trace: Option<Trace<'_>>) -> Result<CallReport, Failure> {
    run_world(World::new(plan, trace))
}

pub(super) fn run_world(mut world: World<'_>) -> Result<CallReport, Failure> {
    world.run(world.plan.heal_at, |_| false)?;
    world.heal()?;
    if !world.run(world.now + PATIENCE, |w| w.all_over())? {
        let is_open = |host: &Host| host.flow.is_some() && !host.is_over();
        let open = world.talks.iter().position(|t| t.hosts.iter().flatten().any(is_open));
        return world
            .fail(format!("{PATIENCE} after the last fault connection {open:?} is not over"));
    }
    world.line.manager.handle_command(Command::Down);
    let down = |w: &World<'_>| w.line.modem == Modem::Idle && !w.line.is_up();
    if !world.run(world.now + MINUTE, down)? {
        return world.fail("the line is not down a minute after the order");
    }
    world.check_books()?;
    let dials = world.report.dials;
    world.run(world.now + MINUTE.times(60), |_| false)?;
    if world.report.dials != dials {
        return world.fail("the line was dialled against an order");
    }
    let mut report = world.report.clone();
    report.connections = world.talks.len() as u64;
    report.virtual_ms = world.now.since(Instant::ZERO).as_millis();
    report.hash = format!("{:016x}", world.digest.value());
    Ok(report)
}
