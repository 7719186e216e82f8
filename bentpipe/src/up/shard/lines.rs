//! Links that are raised and dropped: what waits and what crosses is told to each peer's link
//! manager ([`dial::manager`]), and what that wants is done. A peer without a line costs nothing
//! here.

use std::collections::BTreeMap;
use std::net::IpAddr;

use control::{LineCommand, LineReport, LineWaiting};
use dial::books::{Books, Host, Name};
use dial::manager::{CarrierId, Command, Event, FlowId as WaitId, Manager, State, Work};
use dial::rules::Flow;
use link::keys::PublicKey;
use link::session::ClassId;
use link::{PathId, PeerId, Remote};
use relay::{FlowId, Moved, Target};
use units::{Duration, Instant};

mod names;
mod one;
mod packets;
mod questions;
mod stops;
mod waiting;

pub(super) use self::names::HostNames;
pub(super) use self::one::OneLine;
pub(super) use self::packets::Arrived;
pub(super) use self::questions::Questions;
use self::stops::Stops;
use self::waiting::{LATELY, Waiting};
use super::Shard;
use super::beside::Beside;
use crate::calendar::wall;
use crate::config::{LINK_CLASS, Line, Peer};
use crate::ledger::Ledger;
use crate::up::commands::Commands;

/// A line: the place of its peer among those that have lines, and its own among the peer's.
type Place = (usize, usize);
/// How often the manager is told what crossed.
const SPACING: Duration = Duration::from_millis(100);
/// The same of the wall clock, which somebody may set.
const CLOCK_SPACING: Duration = Duration::from_secs(60);
/// Flows of a line that are told apart; those beyond are told as others'.
const MOST_FLOWS: usize = 1024;
const TCP: u8 = 6;

/// A peer's lines. They are the first of its manager's carriers, in their order; what is there
/// beside them follows.
pub(in crate::up) struct ManagedLine {
    key: PublicKey,
    pub(super) peer: PeerId,
    name: String,
    pub(super) settings: Line,
    pub(super) manager: Manager,
    pub(super) books: Books,
    ledger: Ledger,
    /// One at least.
    pub(super) each: Vec<OneLine>,
    pub(super) beside: Beside,
    waiting: BTreeMap<WaitKey, Waiting>,
    /// When to look at what hosts have sent and this gateway has not taken.
    unread_at: Instant,
    next_wait: u64,
    /// Bytes of flows that the books do not have yet.
    crossed: BTreeMap<FlowKey, Crossing>,
    /// When connections last moved, for the case that their carrier is lost.
    moved: BTreeMap<FlowId, (Flow, Instant)>,
    told_at: Instant,
    clock_at: Instant,
    /// Bytes of link packets, sent and received, that the books have, by carrier.
    booked: Vec<[u64; 2]>,
    stops: Stops,
}

/// Bytes of a flow that are under way, or have crossed, and that nobody has paid for.
struct Crossing {
    flow: Flow,
    /// From its host, and to it.
    bytes: [u64; 2],
    /// There are more since the manager was told.
    is_new: bool,
}

/// Bytes of link packets by carrier, and whose content these carry.
struct Carried {
    link: Vec<[u64; 2]>,
    /// The carrier of all flows but those of classes that name theirs.
    active: CarrierId,
    of_class: BTreeMap<String, CarrierId>,
    /// Nothing is under way or waits.
    is_drained: bool,
}

impl Carried {
    fn carrier_of(&self, flow: &Flow) -> CarrierId {
        self.of_class.get(&*flow.class).copied().unwrap_or(self.active)
    }
}

/// What a flow with so many of all bytes has of those that were carried. What is compressed crosses in
/// fewer bytes than its host sent, and what is buffered crosses later.
fn part(bytes: u64, all: u64, carried: u64) -> u64 {
    if all <= carried {
        return bytes;
    }
    (u128::from(bytes) * u128::from(carried) / u128::from(all)) as u64
}

/// What is one flow to the books and to `why`: host, protocol, port, destination and its name. One
/// resolver is asked for many names.
type FlowKey = (Option<IpAddr>, u8, u16, Option<IpAddr>, Option<Name>);

fn key_of(flow: &Flow) -> FlowKey {
    let host = match flow.host {
        Host::Addr(addr) => Some(addr),
        Host::Node | Host::Others => None,
    };
    (host, flow.protocol, flow.port, flow.remote, flow.name.clone())
}

/// What waits by itself: a connection, or packets that are not split.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
enum WaitKey {
    Connection(FlowId),
    Packets(FlowKey),
}

impl ManagedLine {
    /// Are they this peer's?
    pub fn is_of(&self, peer: &Peer) -> bool {
        self.key == peer.public_key
    }

    /// Is a line up?
    fn is_any_up(&self) -> bool {
        self.each.iter().any(|one| self.is_up(one.id))
    }

    /// Is this line up?
    fn is_up(&self, line: CarrierId) -> bool {
        self.manager.state(line).is_some_and(State::carries)
    }

    /// Does one of them carry, or what is there beside them?
    fn carries(&self) -> bool {
        self.is_any_up() || self.beside.carries(&self.manager)
    }

    /// Is there one line, and no other way to the peer?
    pub(super) fn is_alone(&self) -> bool {
        self.each.len() == 1 && self.beside.is_empty()
    }

    /// Bytes of a flow: they wait while there is no carrier, and have crossed while there is.
    fn on_bytes(&mut self, now: Instant, id: Option<FlowId>, flow: Flow, bytes: [u64; 2]) {
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

    fn note_crossing(&mut self, key: FlowKey, flow: Flow, bytes: [u64; 2]) {
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
    fn may_remember(&mut self, now: Instant, id: &FlowId) -> bool {
        if self.moved.len() >= MOST_FLOWS && !self.moved.contains_key(id) {
            self.moved.retain(|_, (_, when)| now.since(*when) < LATELY);
        }
        self.moved.len() < MOST_FLOWS || self.moved.contains_key(id)
    }

    /// Tells the manager what crossed, and books what the link itself cost. What a link packet costs
    /// is paid by the flows that have bytes under way, each by its part of these.
    fn tell_crossed(&mut self, now: Instant, carried: &Carried) {
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

    fn report(&self, now: Instant) -> LineReport {
        let why = self.manager.why(now);
        let several = 0..if self.each.len() > 1 { self.each.len() } else { 0 };
        LineReport {
            command: command_name(why.command).to_owned(),
            zone: self.manager.zone().to_owned(),
            lines: several.map(|n| self.report_of(&why, n)).collect(),
            waiting: why
                .waiting
                .iter()
                .map(|w| LineWaiting {
                    rule: w.rule.to_string(),
                    oldest: w.oldest.clone(),
                    flows: w.flows as u64,
                    bytes: w.bytes.0,
                    for_ms: w.waited.as_millis(),
                    raises_in_ms: w.raises_in.map(|d| d.as_millis()),
                    never: w.never,
                })
                .collect(),
            hosts: stops::report(&why.hosts),
            ..self.report_of(&why, self.shown())
        }
    }
}

fn command_name(command: Command) -> &'static str {
    match command {
        Command::Auto => "auto",
        Command::Up => "up",
        Command::Hold => "hold",
        Command::Down => "down",
    }
}

/// The link's own packets: headers, reports, repair.
fn own_flow() -> Flow {
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

impl Shard {
    /// The modems of a peer's lines, in their order, where these have one.
    pub(super) fn open_modems(&mut self, peer: &Peer) -> Vec<Option<link::CarrierId>> {
        let mut modems = Vec::new();
        for line in peer.line.iter().flat_map(|line| &line.lines) {
            let link = line.carrier.map_or(&peer.link, |at| &peer.carriers[at].link);
            let facts = (link.send, link.delay.times(2));
            let modem = line.modem.as_ref();
            modems.push(modem.and_then(|m| self.carrier.add_serial(m, facts, super::MORE_UDP)));
        }
        modems
    }

    /// The peer's lines are down until their manager raises them. `paths`: those of its carriers.
    pub(super) fn open_line(
        &mut self,
        now: Instant,
        id: PeerId,
        peer: &Peer,
        modems: &[Option<link::CarrierId>],
        paths: &[Option<PathId>],
    ) {
        let Some(settings) = &peer.line else { return };
        let node = self.config.node.private_key.public();
        let ledger = Ledger::open(node, &peer.public_key);
        let manager = match Manager::new(settings.manager.clone(), now, wall(settings.clock)) {
            Ok(mut manager) => {
                manager.handle_zone(&settings.zone);
                manager
            }
            // The file was checked by the same.
            Err(why) => return crate::log!(Error, why, peer = peer.name),
        };
        let (mut books, ledger, broken) = ledger;
        let mut each = Vec::new();
        for (n, line) in settings.lines.iter().enumerate() {
            let mut commands = match Commands::new(&self.poller, super::LINES) {
                Ok(commands) => commands,
                Err(why) => return crate::log!(Error, "no line", peer = peer.name, why = why),
            };
            let path = match line.carrier {
                Some(at) => paths[at],
                None => settings.raises.then_some(PathId::FIRST),
            };
            // The program was killed in a call, which may go on to cost.
            let was_up = broken.contains(&settings.manager.carriers[n].name);
            if let Some(command) = line.drop.clone().filter(|_| was_up) {
                commands.drop(command);
            }
            let modem = modems.get(n).copied().flatten();
            // Who is only called learns from the call who is there.
            if let Some(carrier) = modem.filter(|_| line.calls() && path == Some(PathId::FIRST)) {
                self.relay.endpoint.set_endpoint(now, id, Remote { carrier, addr: None });
            }
            each.push(OneLine::new(now, CarrierId(n), commands, modem, path));
        }
        // The preferred one last: nothing goes by another one meanwhile.
        for path in each.iter().rev().filter_map(|one: &OneLine| one.path) {
            self.relay.endpoint.set_path_up(now, id, path, false);
        }
        self.relay.watch_moved(id, true);
        let mut manager = manager;
        let is_line = |at: usize| settings.with_carrier(at).is_some();
        let has_others = settings.lines[0].carrier.is_some() || !settings.raises;
        let others = paths.iter().enumerate();
        let others = others.filter(|(at, _)| has_others && !is_line(*at));
        let beside = Beside::new(now, each.len(), others.map(|(_, path)| *path));
        beside.begin(now, &mut manager, &mut books);
        self.lines.push(ManagedLine {
            key: peer.public_key,
            peer: id,
            name: peer.name.clone(),
            settings: settings.clone(),
            manager,
            books,
            ledger,
            each,
            beside,
            waiting: BTreeMap::new(),
            unread_at: now,
            next_wait: 0,
            crossed: BTreeMap::new(),
            moved: BTreeMap::new(),
            told_at: now,
            clock_at: now,
            booked: vec![[0, 0]; settings.manager.carriers.len()],
            stops: Stops::default(),
        });
    }

    /// The file says something else of the peer's lines. What only a restart can change leaves them
    /// as they are.
    pub(super) fn change_line(&mut self, now: Instant, id: PeerId, peer: &Peer) {
        let Some(line) = self.lines.iter_mut().find(|line| line.peer == id) else { return };
        let Some(new) = peer.line.as_ref().filter(|new| !line.settings.needs_restart_for(new))
        else {
            return;
        };
        line.name.clone_from(&peer.name);
        if line.settings == *new {
            return;
        }
        if let Err(why) = line.manager.handle_config(new.manager.clone()) {
            return crate::log!(Error, why, peer = peer.name);
        }
        for w in line.waiting.values_mut() {
            w.counts = new.manager.rule_of(&w.flow).then.counts_bytes();
            line.manager.handle_waiting(now, w.id, &w.flow, w.all());
        }
        let zone = line.manager.zone();
        let mut zones = new.manager.carriers.iter().flat_map(|c| c.tariff.zones());
        if line.settings.zone != new.zone || !zones.any(|of| of == zone) {
            line.manager.handle_zone(&new.zone);
        }
        line.manager.handle_clock(now, wall(new.clock));
        for (one, new) in line.each.iter().zip(&new.lines) {
            let modem = one.modem.and_then(|id| self.carrier.serial_mut(id));
            if let (Some(modem), Some(new)) = (modem, &new.modem) {
                modem.change(now, new);
            }
        }
        line.settings = new.clone();
        self.work_lines(now);
    }

    /// The peer was taken out of the file.
    pub(super) fn close_line(&mut self, now: Instant, id: PeerId) {
        if let Some(at) = self.lines.iter().position(|line| line.peer == id) {
            let mut line = self.lines.remove(at);
            end(&mut line, now, "the peer was taken out of the file");
            line.modems().for_each(|modem| self.carrier.remove_serial(modem));
            self.relay.watch_moved(id, false);
            // Commands and disks may be slow, and others' packets do not wait for them.
            let (each, ledger) = (line.each, line.ledger);
            std::thread::spawn(move || finish(each, ledger));
        }
    }

    /// The gateway ends: what is up is dropped, and its price is in the books.
    pub(super) fn end_lines(&mut self, now: Instant) {
        for mut line in std::mem::take(&mut self.lines) {
            let carried = self.carried(now, &line);
            line.tell_crossed(now, &carried);
            end(&mut line, now, "the gateway ended");
            line.modems().for_each(|modem| self.carrier.remove_serial(modem));
            finish(line.each, line.ledger);
        }
    }

    /// The operator says something of a peer's lines, or of one of several.
    pub fn command_line(
        &mut self,
        now: Instant,
        key: &PublicKey,
        which: Option<&str>,
        command: LineCommand,
    ) {
        let Some(line) = self.lines.iter_mut().find(|line| line.key == *key) else { return };
        let place = |which: &str| line.settings.names().position(|name| **name == *which);
        let which = match which.map(place) {
            Some(None) => return crate::log!(Warn, "a line waits for a restart", peer = line.name),
            other => other.flatten(),
        };
        let command = match command {
            LineCommand::Auto => Some(Command::Auto),
            LineCommand::Up => Some(Command::Up),
            LineCommand::Hold => Some(Command::Hold),
            LineCommand::Down => Some(Command::Down),
            LineCommand::Zone(zone) => {
                line.manager.handle_zone(&zone);
                None
            }
        };
        match (command, which.filter(|_| line.each.len() > 1)) {
            (Some(command), Some(n)) => line.manager.handle_line_command(CarrierId(n), command),
            (Some(command), None) => line.manager.handle_command(command),
            (None, _) => {}
        }
        let id = line.peer;
        self.look_at_links(now, [id]);
        self.work_lines(now);
    }

    /// What the operator is told of a peer's lines.
    pub(in crate::up) fn line_report(&self, now: Instant, id: PeerId) -> Option<LineReport> {
        let line = self.lines.iter().find(|line| line.peer == id && line.settings.raises);
        line.map(|line| line.report(now))
    }

    /// What 1,000,000 bytes over the link to this peer cost, in millionths of the currency, by the
    /// line that is up or the preferred one. Such as
    /// a monthly price includes count, too: they are used up.
    pub(super) fn price_of_bytes(&self, id: PeerId) -> Option<u64> {
        let line = self.lines.iter().find(|line| line.peer == id)?;
        let carrier = line.settings.manager.carriers.get(line.shown())?;
        let price = carrier.tariff.rates(line.manager.zone()).per_megabyte;
        (!price.is_zero()).then(|| price.as_micros())
    }

    /// Has the peer a line that has to be raised before anything is carried?
    pub(super) fn is_line_down(&self, id: PeerId) -> bool {
        let is_its = |line: &ManagedLine| line.peer == id && line.settings.raises;
        self.lines.iter().any(|line| is_its(line) && !line.carries())
    }

    fn note_moved(&mut self, now: Instant, id: FlowId, moved: Moved) {
        let Some(line) = self.lines.iter_mut().find(|line| line.peer == moved.peer) else {
            return;
        };
        let peer = self.peers.with_id(moved.peer);
        let class = peer.map_or("", |peer| peer.config.traffic.class_name(moved.class));
        let (remote, port, mut name, mut service) = (None, 0, None, "".into());
        let (remote, port) = match &moved.target {
            Target::Address(to) => (Some(to.ip()), to.port()),
            Target::Name(of, port) => {
                name = Some(of.to_string().into());
                (remote, *port)
            }
            Target::Service(of, _) => {
                service = of.to_string().into();
                (remote, port)
            }
        };
        if let (Some(host), Some(remote)) = (moved.host, remote) {
            name = self.line_names.get(host, remote);
        }
        let host = moved.host.map_or(Host::Node, Host::Addr);
        let flow = Flow { host, protocol: TCP, port, remote, name, class: class.into(), service };
        let bytes = [moved.bytes.sent, moved.bytes.received];
        let otherwise = line.class_of(&flow);
        if !moved.closed || bytes != [0, 0] {
            line.on_bytes(now, Some(id), flow, bytes);
        }
        if moved.closed {
            line.on_closed(now, id);
        } else if moved.class == ClassId::NORMAL && otherwise != moved.class {
            self.relay.send_in(id, otherwise);
        }
    }

    /// Tells managers what happened, and does what they want.
    pub(super) fn work_lines(&mut self, now: Instant) {
        if self.lines.is_empty() {
            return;
        }
        self.hear_moved(now);
        for at in 0..self.lines.len() {
            self.work_line(now, at);
        }
    }

    pub(super) fn hear_moved(&mut self, now: Instant) {
        while let Some((id, moved)) = self.relay.poll_moved() {
            self.note_moved(now, id, moved);
        }
    }

    /// Bytes of link packets to a line's peer and from it, by the manager's carriers, and by which
    /// of these everything goes.
    fn carried(&self, now: Instant, line: &ManagedLine) -> Carried {
        let session = self.relay.endpoint.session(line.peer);
        let is_drained = session.is_none_or(|session| session.is_drained());
        let (active, of_class) = (line.each[0].id, BTreeMap::new());
        if line.is_alone() {
            let stats = self.relay.endpoint.peer_stats(line.peer);
            let link = vec![[stats.bytes_out, stats.bytes_in]];
            return Carried { link, active, of_class, is_drained };
        }
        let link = vec![[0, 0]; line.booked.len()];
        let mut carried = Carried { link, active, of_class, is_drained };
        let traffic = self.peers.with_id(line.peer).map(|peer| &peer.config.traffic);
        for path in self.relay.endpoint.paths(now, line.peer) {
            let carrier = line.carrier_of(&path);
            carried.link[carrier.0][0] += path.traffic.bytes_out;
            carried.link[carrier.0][1] += path.traffic.bytes_in;
            carried.active = if path.is_active { carrier } else { carried.active };
            for (at, _) in traffic.iter().flat_map(|t| t.classes.iter().enumerate()) {
                let name = traffic.map_or("", |t| t.class_name(ClassId::from_index(at)));
                if path.classes >> at & 1 == 1 {
                    carried.of_class.insert(name.to_owned(), carrier);
                }
            }
        }
        carried
    }

    fn tell_line(&mut self, now: Instant, at: usize) {
        let carried = self.carried(now, &self.lines[at]);
        self.lines[at].tell_crossed(now, &carried);
    }

    fn work_line(&mut self, now: Instant, at: usize) {
        self.look_at_paths(now, at);
        let line = &mut self.lines[at];
        if now.since(line.clock_at) >= CLOCK_SPACING {
            line.clock_at = now;
            line.forget_given_up(now);
            line.manager.handle_clock(now, wall(line.settings.clock));
        }
        if now.since(line.told_at) >= SPACING && line.carries() {
            self.tell_line(now, at);
        }
        for n in 0..self.lines[at].each.len() {
            self.work_one(now, (at, n));
        }
        self.count_unread(now, at);
        loop {
            let line = &mut self.lines[at];
            let Some(work) = line.manager.poll(now, &mut line.books) else { break };
            self.do_work(now, at, work);
        }
        self.stop_hosts(now, at);
        let line = &mut self.lines[at];
        line.ledger.keep(&mut line.books);
    }

    fn do_work(&mut self, now: Instant, at: usize, work: Work) {
        let line = &mut self.lines[at];
        let lines = line.each.len();
        match work {
            Work::Dial { carrier, attempt } => self.raise_one(now, (at, carrier.0), attempt),
            Work::Admit { carrier } => self.set_beside_up(now, at, carrier, true),
            Work::HangUp { carrier, .. } if carrier.0 >= lines => {
                self.tell_line(now, at);
                self.set_beside_up(now, at, carrier, false);
            }
            Work::HangUp { carrier, cause } => self.hang_up_one(now, (at, carrier.0), &cause),
            Work::Tell(Event::State { carrier, state }) => {
                let id = line.peer;
                // Of what is beside the lines the link has told, with its own cause.
                if carrier.0 < lines {
                    let (to, why) = (state.name(), state.cause());
                    let peer = line.title(carrier.0);
                    crate::log!(Info, "the line changes", peer = peer, to = to, why = why);
                }
                self.look_at_links(now, [id]);
            }
            Work::Tell(Event::Budget { host, spent, of, stopped }) => {
                stops::tell(&line.name, host, [spent, of], stopped);
            }
            Work::Tell(Event::LineBudget { carrier, spent, of, stopped }) => {
                let what = match stopped {
                    true => "a line's budget is used up: it is raised for nothing that costs more",
                    false => "a line's budget is nearly used up",
                };
                let name = line.title(carrier.0);
                crate::log!(Warn, what, peer = name, spent = spent, of = of);
            }
        }
    }

    /// A command has ended.
    pub(super) fn clear_lines(&mut self) {
        for one in self.lines.iter().flat_map(|line| &line.each) {
            one.commands.waker.clear();
        }
    }

    /// When lines have something to do.
    pub(super) fn lines_timeout(&self, now: Instant) -> Option<Instant> {
        let due = |line: &ManagedLine| {
            let tells = line.is_any_up() || line.crossed.values().any(|c| c.is_new);
            let told = tells.then(|| line.told_at + SPACING);
            let manager = line.manager.poll_timeout().map(|(at, _)| at.max(now));
            let unread = line.counts_unread().then_some(line.unread_at);
            let is_looked_at = !line.beside.is_empty() || line.is_any_up();
            let look = line.beside.poll_timeout().filter(|_| is_looked_at);
            [told, manager, unread, look].into_iter().flatten().min()
        };
        self.lines.iter().filter_map(due).min()
    }
}

/// Drops the carriers that are there, and writes down what they cost.
fn end(line: &mut ManagedLine, now: Instant, why: &str) {
    let is_down = |state: &State| matches!(state, State::Down { .. });
    for (one, raised) in line.each.iter_mut().zip(&line.settings.lines) {
        let was_up = line.manager.state(one.id).is_some_and(|state| !is_down(state));
        line.manager.handle_ended(now, one.id, why, &mut line.books);
        if was_up && let Some(command) = raised.drop.clone() {
            one.commands.drop(command);
        }
    }
    line.beside.end(now, &mut line.manager, &mut line.books, why);
    line.ledger.keep(&mut line.books);
}

/// Waits until the carriers are dropped and the books are on the disk.
fn finish(each: Vec<OneLine>, mut ledger: Ledger) {
    for mut one in each {
        one.commands.finish();
    }
    ledger.finish();
}
