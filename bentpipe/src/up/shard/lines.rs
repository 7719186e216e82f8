//! Links that are raised and dropped: what waits and what crosses is told to each peer's link
//! manager ([`dial::manager`]), and what that wants is done. A peer without a line costs nothing
//! here.

use std::collections::BTreeMap;
use std::net::IpAddr;

use control::{LineCommand, LineReport, LineWaiting};
use dial::books::{Books, Host, Name};
use dial::hayes::Told;
use dial::manager::{CarrierId, Command, DownCause, Event, FlowId as WaitId, Manager, State, Work};
use dial::rules::Flow;
use link::keys::PublicKey;
use link::session::ClassId;
use link::{PathId, PeerId, Remote};
use relay::{FlowId, Moved, Target};
use units::{Duration, Instant};

mod names;
mod packets;
mod questions;
mod stops;
mod waiting;

pub(super) use self::names::HostNames;
pub(super) use self::packets::Arrived;
pub(super) use self::questions::Questions;
use self::stops::Stops;
use self::waiting::{LATELY, Waiting};
use super::Shard;
use super::beside::Beside;
use super::paths::linked;
use crate::calendar::wall;
use crate::config::{LINK_CLASS, Line, Peer};
use crate::human::lasting;
use crate::ledger::Ledger;
use crate::up::commands::{Commands, Outcome};

/// The line itself is the first of its manager's carriers; what is there beside it follows.
pub(super) const CARRIER: CarrierId = CarrierId(0);
/// How often the manager is told what crossed.
const SPACING: Duration = Duration::from_millis(100);
/// The same of the wall clock, which somebody may set.
const CLOCK_SPACING: Duration = Duration::from_secs(60);
/// Flows of a line that are told apart; those beyond are told as others'.
const MOST_FLOWS: usize = 1024;
/// A carrier on which nothing is heard for so long is taken for lost.
const SILENCE: Duration = Duration::from_secs(60);
const TCP: u8 = 6;

/// A peer's line.
pub(in crate::up) struct ManagedLine {
    key: PublicKey,
    pub(super) peer: PeerId,
    name: String,
    pub(super) settings: Line,
    pub(super) manager: Manager,
    pub(super) books: Books,
    ledger: Ledger,
    commands: Commands,
    /// Its modem's carrier.
    pub(super) modem: Option<link::CarrierId>,
    /// The path over it; `None`: the peer opens it.
    pub(super) path: Option<PathId>,
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
    /// When the carrier was there.
    connected_at: Instant,
    /// Since when nothing has come by a carrier that is given up for it.
    silent_since: Option<Instant>,
    stops: Stops,
    /// The interface that commands raise it on had a link when it was looked at last.
    has_link: bool,
    /// What had come from the peer when the carrier was there.
    heard_before: Heard,
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

/// What came from the peer by its line: packets, and handshakes that succeeded.
#[derive(Clone, Copy, Default)]
struct Heard {
    packets: u64,
    handshakes: u64,
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

impl Heard {
    /// A response that authenticates shows that the peer is there, a round trip before its first
    /// packet does.
    fn is_more_than(self, before: Heard) -> bool {
        self.packets > before.packets || self.handshakes > before.handshakes
    }
}

impl ManagedLine {
    /// Is it this peer's?
    pub fn is_of(&self, peer: &Peer) -> bool {
        self.key == peer.public_key
    }

    /// Is the line up?
    fn is_up(&self) -> bool {
        self.manager.state(CARRIER).is_some_and(State::carries)
    }

    /// Does it carry, or what is there beside it?
    fn carries(&self) -> bool {
        self.is_up() || self.beside.carries(&self.manager)
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

    /// The call is over, which carried nothing since then; if nobody here ended it, it is lost.
    fn on_ended(&mut self, now: Instant, why: &str, is_undelivered: impl Fn(FlowId) -> bool) {
        let since = self.silent_since.take().unwrap_or(now);
        let is_lost = self.is_up();
        self.manager.handle_ended(now, CARRIER, why, &mut self.books);
        if is_lost {
            self.wait_again(now, since, is_undelivered);
        }
    }

    fn report(&self, now: Instant) -> LineReport {
        let why = self.manager.why(now);
        let state = self.manager.state(CARRIER);
        let line = why.lines.first();
        LineReport {
            state: state.map_or("down", State::name).to_owned(),
            cause: state.map(State::cause).unwrap_or_default(),
            for_ms: line.map_or(0, |l| l.since.as_millis()),
            command: command_name(why.command).to_owned(),
            held_by: line.and_then(|l| l.used.as_ref()).map(|(by, _)| by.to_string()),
            used_ms_ago: line.and_then(|l| l.used.as_ref()).map(|(_, ago)| ago.as_millis()),
            hangs_up_in_ms: line.and_then(|l| l.hangs_up_in).map(|d| d.as_millis()),
            not_before_ms: line.and_then(|l| l.not_before).map(|d| d.as_millis()),
            zone: self.manager.zone().to_owned(),
            price: line
                .and_then(|l| l.price)
                .map(|(price, currency)| format!("{price} {currency}")),
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
    /// The modem of a peer's line, if it has one.
    pub(super) fn open_modem(&mut self, peer: &Peer) -> Option<link::CarrierId> {
        let line = peer.line.as_ref()?;
        let link = line.carrier.map_or(&peer.link, |at| &peer.carriers[at].link);
        let facts = (link.send, link.delay.times(2));
        self.carrier.add_serial(line.modem.as_ref()?, facts, super::MORE_UDP)
    }

    /// The peer's line is down until its manager raises it. `paths`: those of its carriers.
    pub(super) fn open_line(
        &mut self,
        now: Instant,
        id: PeerId,
        peer: &Peer,
        modem: Option<link::CarrierId>,
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
        let mut commands = match Commands::new(&self.poller, super::LINES) {
            Ok(commands) => commands,
            Err(why) => return crate::log!(Error, "no line", peer = peer.name, why = why),
        };
        self.relay.watch_moved(id, true);
        let path = match settings.carrier {
            Some(at) => paths[at],
            None => settings.raises.then_some(PathId::FIRST),
        };
        if let Some(path) = path {
            self.relay.endpoint.set_path_up(now, id, path, false);
        }
        let (mut books, ledger, broken) = ledger;
        // The program was killed in a call, which may go on to cost.
        let was_up = broken.contains(&settings.manager.carriers[0].name);
        if let Some(command) = settings.drop.clone().filter(|_| was_up) {
            commands.drop(command);
        }
        // Who is only called learns from the call who is there.
        let calls = settings.modem.as_ref().is_some_and(|modem| !modem.numbers.is_empty());
        if let Some(carrier) = modem.filter(|_| calls && path == Some(PathId::FIRST)) {
            self.relay.endpoint.set_endpoint(now, id, Remote { carrier, addr: None });
        }
        let mut manager = manager;
        let has_others = settings.carrier.is_some() || !settings.raises;
        let others = paths.iter().enumerate();
        let others = others.filter(|(at, _)| has_others && Some(*at) != settings.carrier);
        let beside = Beside::new(now, others.map(|(_, path)| *path));
        beside.begin(now, &mut manager, &mut books);
        self.lines.push(ManagedLine {
            key: peer.public_key,
            peer: id,
            name: peer.name.clone(),
            settings: settings.clone(),
            manager,
            books,
            ledger,
            commands,
            modem,
            path,
            beside,
            waiting: BTreeMap::new(),
            unread_at: now,
            has_link: true,
            next_wait: 0,
            crossed: BTreeMap::new(),
            moved: BTreeMap::new(),
            told_at: now,
            clock_at: now,
            booked: vec![[0, 0]; settings.manager.carriers.len()],
            connected_at: now,
            silent_since: None,
            stops: Stops::default(),
            heard_before: Heard::default(),
        });
    }

    /// The file says something else of the peer's line. What only a restart can change leaves it as
    /// it is.
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
        let modem = line.modem.and_then(|id| self.carrier.serial_mut(id));
        if let (Some(modem), Some(new)) = (modem, &new.modem) {
            modem.change(now, new);
        }
        line.settings = new.clone();
        self.work_lines(now);
    }

    /// The peer was taken out of the file.
    pub(super) fn close_line(&mut self, now: Instant, id: PeerId) {
        if let Some(at) = self.lines.iter().position(|line| line.peer == id) {
            let mut line = self.lines.remove(at);
            end(&mut line, now, "the peer was taken out of the file");
            line.modem.into_iter().for_each(|modem| self.carrier.remove_serial(modem));
            self.relay.watch_moved(id, false);
            // Commands and disks may be slow, and others' packets do not wait for them.
            let (commands, ledger) = (line.commands, line.ledger);
            std::thread::spawn(move || finish(commands, ledger));
        }
    }

    /// The gateway ends: what is up is dropped, and its price is in the books.
    pub(super) fn end_lines(&mut self, now: Instant) {
        for mut line in std::mem::take(&mut self.lines) {
            let carried = self.carried(now, &line);
            line.tell_crossed(now, &carried);
            end(&mut line, now, "the gateway ended");
            line.modem.into_iter().for_each(|modem| self.carrier.remove_serial(modem));
            finish(line.commands, line.ledger);
        }
    }

    /// The operator says something of a peer's line.
    pub fn command_line(&mut self, now: Instant, key: &PublicKey, command: LineCommand) {
        let Some(line) = self.lines.iter_mut().find(|line| line.key == *key) else { return };
        match command {
            LineCommand::Auto => line.manager.handle_command(Command::Auto),
            LineCommand::Up => line.manager.handle_command(Command::Up),
            LineCommand::Hold => line.manager.handle_command(Command::Hold),
            LineCommand::Down => line.manager.handle_command(Command::Down),
            LineCommand::Zone(zone) => line.manager.handle_zone(&zone),
        }
        let id = line.peer;
        self.look_at_links(now, [id]);
        self.work_lines(now);
    }

    /// What the operator is told of a peer's line.
    pub(in crate::up) fn line_report(&self, now: Instant, id: PeerId) -> Option<LineReport> {
        let line = self.lines.iter().find(|line| line.peer == id && line.settings.raises);
        line.map(|line| line.report(now))
    }

    /// What 1,000,000 bytes over the link to this peer cost, in millionths of the currency. Such as
    /// a monthly price includes count, too: they are used up.
    pub(super) fn price_of_bytes(&self, id: PeerId) -> Option<u64> {
        let line = self.lines.iter().find(|line| line.peer == id)?;
        let carrier = line.settings.manager.carriers.first()?;
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
        let (active, of_class) = (CARRIER, BTreeMap::new());
        if line.beside.is_empty() {
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

    /// What came by the line. Beside other carriers a handshake may have gone by one of those.
    fn heard(&self, now: Instant, at: usize) -> Heard {
        let line = &self.lines[at];
        if line.beside.is_empty() {
            let stats = self.relay.endpoint.peer_stats(line.peer);
            return Heard { packets: stats.packets_in, handshakes: stats.handshakes };
        }
        let paths = self.relay.endpoint.paths(now, line.peer).into_iter();
        let own = paths.filter(|path| line.carrier_of(path) == CARRIER);
        Heard { packets: own.map(|path| path.traffic.packets_in).sum(), handshakes: 0 }
    }

    /// The path over the line is up, or down.
    fn set_line_up(&mut self, now: Instant, at: usize, up: bool) {
        let line = &self.lines[at];
        if let Some(path) = line.path {
            self.relay.endpoint.set_path_up(now, line.peer, path, up);
        }
    }

    fn tell_line(&mut self, now: Instant, at: usize) {
        let carried = self.carried(now, &self.lines[at]);
        self.lines[at].tell_crossed(now, &carried);
    }

    fn work_line(&mut self, now: Instant, at: usize) {
        self.look_beside(now, at);
        let line = &mut self.lines[at];
        if now.since(line.clock_at) >= CLOCK_SPACING {
            line.clock_at = now;
            line.forget_given_up(now);
            line.manager.handle_clock(now, wall(line.settings.clock));
        }
        let heard_before = line.heard_before;
        let is_rising = matches!(line.manager.state(CARRIER), Some(State::Rising { .. }));
        if now.since(line.told_at) >= SPACING && line.carries() {
            self.tell_line(now, at);
        }
        let is_heard = is_rising && self.heard(now, at).is_more_than(heard_before);
        let line = &mut self.lines[at];
        if is_heard {
            line.manager.handle_ready(now, CARRIER);
            line.forget_waiting(now);
            if let Some(modem) = line.modem.and_then(|id| self.carrier.serial_mut(id)) {
                modem.prove();
            }
        }
        if let Some(outcome) = line.commands.poll() {
            match outcome {
                Outcome::Raised(Ok(())) => self.on_carrier(now, at, false),
                Outcome::Raised(Err(why)) => {
                    let line = &mut self.lines[at];
                    line.manager.handle_failed(now, CARRIER, &why);
                    // What is half raised may cost all the same.
                    if let Some(command) = line.settings.drop.clone() {
                        line.commands.drop(command);
                    }
                }
                Outcome::Dropped(told) => {
                    self.tell_line(now, at);
                    let line = &mut self.lines[at];
                    if let Err(why) = &told {
                        let name = &line.name;
                        crate::log!(Warn, "the line may still be up", peer = name, why = why);
                    }
                    line.manager.handle_ended(now, CARRIER, "dropped", &mut line.books);
                }
            }
        }
        let modem = self.lines[at].modem;
        while let Some(told) =
            modem.and_then(|id| self.carrier.serial_mut(id)).and_then(|line| line.poll_told())
        {
            self.on_modem(now, at, told);
        }
        self.look_at_silence(now, at);
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
        match work {
            Work::Dial { attempt, .. } => {
                crate::log!(Debug, "the line is raised", peer = line.name, attempt = attempt);
                if let Some(modem) = line.modem {
                    return self.dial_modem(now, at, modem);
                }
                match line.settings.raise.clone() {
                    Some(command) => {
                        let patience = line.settings.manager.carriers[0].dial_timeout;
                        line.commands.raise(command, patience.to_std());
                    }
                    None => self.on_carrier(now, at, false),
                }
            }
            Work::Admit { carrier } => self.set_beside_up(now, at, carrier, true),
            Work::HangUp { carrier, .. } if carrier != CARRIER => {
                self.tell_line(now, at);
                self.set_beside_up(now, at, carrier, false);
            }
            Work::HangUp { cause, .. } => {
                self.tell_line(now, at);
                self.set_line_up(now, at, false);
                let (line, relay) = (&mut self.lines[at], &self.relay);
                let is_cut =
                    |c| matches!(c, DownCause::MaxCall | DownCause::Budget | DownCause::Ordered);
                if is_cut(cause) {
                    line.wait_for_the_next(now, |id| relay.is_undelivered(id));
                }
                if let Some(modem) = line.modem.and_then(|id| self.carrier.serial_mut(id)) {
                    modem.hang_up(now);
                    return;
                }
                match line.settings.drop.clone() {
                    Some(command) => line.commands.drop(command),
                    None => {
                        line.commands.give_up();
                        line.manager.handle_ended(now, CARRIER, "dropped", &mut line.books);
                    }
                }
            }
            Work::Tell(Event::State { carrier: CARRIER, state }) => {
                let (state, cause, id) = (state.name(), state.cause(), line.peer);
                crate::log!(Info, "the line changes", peer = line.name, to = state, why = cause);
                self.look_at_links(now, [id]);
            }
            // The link has told of it, with its own cause.
            Work::Tell(Event::State { .. }) => {
                let id = line.peer;
                self.look_at_links(now, [id]);
            }
            Work::Tell(Event::Budget { host, spent, of, stopped }) => {
                stops::tell(&line.name, host, [spent, of], stopped);
            }
        }
    }

    fn dial_modem(&mut self, now: Instant, at: usize, modem: link::CarrierId) {
        let line = &mut self.lines[at];
        let calls = line.settings.modem.as_ref().is_some_and(|modem| !modem.numbers.is_empty());
        match self.carrier.serial_mut(modem).filter(|_| calls) {
            Some(modem) => modem.dial(now),
            None => line.manager.handle_failed(now, CARRIER, "only the other end calls"),
        }
    }

    /// A modem has something to tell.
    fn on_modem(&mut self, now: Instant, at: usize, told: Told) {
        let line = &mut self.lines[at];
        let name = &line.name;
        match told {
            Told::Ready => crate::log!(Debug, "the modem is ready", peer = name),
            Told::Dialling(n) => crate::log!(Debug, "the modem dials", peer = name, number = n + 1),
            Told::Trouble(why) => crate::log!(Warn, "trouble with a modem", peer = name, why = why),
            Told::Connected { incoming, .. } => {
                self.on_carrier(now, at, incoming);
                self.note_call_times(now, at);
            }
            Told::Failed(why) => line.manager.handle_failed(now, CARRIER, &why.to_string()),
            Told::Ended(why) => {
                self.tell_line(now, at);
                self.set_line_up(now, at, false);
                let relay = &self.relay;
                self.lines[at].on_ended(now, &why.to_string(), |id| relay.is_undelivered(id));
            }
        }
    }

    /// The exchange bills a call from its first moment to its last, which come before and after
    /// what is known here.
    fn note_call_times(&mut self, now: Instant, at: usize) {
        let line = &mut self.lines[at];
        if let Some(modem) = line.modem.and_then(|id| self.carrier.serial(id)) {
            line.manager.handle_noticed_late(CARRIER, modem.noticed_late(now));
            line.manager.handle_hang_up_time(CARRIER, modem.hang_up_time());
        }
    }

    /// The carrier is there.
    fn on_carrier(&mut self, now: Instant, at: usize, incoming: bool) {
        self.tell_line(now, at);
        let heard = self.heard(now, at);
        let interface = self.interface_of(&self.lines[at]);
        self.carrier.rebind(&self.poller, super::UDP, super::MORE_UDP);
        let has_link = interface.is_none_or(|interface| linked().contains(&interface));
        self.lines[at].has_link = has_link;
        let line = &mut self.lines[at];
        (line.heard_before, line.connected_at, line.silent_since) = (heard, now, None);
        line.manager.handle_connected(now, CARRIER, incoming, &mut line.books);
        self.set_line_up(now, at, true);
    }

    /// A carrier on which the link has been silent for long is gone, whoever still bills it.
    fn look_at_silence(&mut self, now: Instant, at: usize) {
        let line = &mut self.lines[at];
        let peer = self.peers.with_id(line.peer);
        let since = match line.beside.is_empty() {
            true => peer.and_then(|peer| peer.silent_since),
            false => line.beside.line_silent_since,
        };
        let Some(since) = since else { return };
        if !line.is_up() || now.since(since.max(line.connected_at)) < SILENCE {
            return;
        }
        self.set_line_up(now, at, false);
        let line = &mut self.lines[at];
        line.silent_since = Some(since);
        let told = format!("nothing was heard for {}", lasting(SILENCE));
        if let Some(modem) = line.modem.and_then(|id| self.carrier.serial_mut(id)) {
            if modem.hang_up(now) {
                crate::log!(Warn, "a call is hung up", peer = line.name, why = told);
            }
            return;
        }
        self.lose_line(now, at, &told);
    }

    /// The carrier that a command raised is gone; what remains of it is dropped.
    fn lose_line(&mut self, now: Instant, at: usize, why: &str) {
        self.tell_line(now, at);
        self.set_line_up(now, at, false);
        let (line, relay) = (&mut self.lines[at], &self.relay);
        line.on_ended(now, why, |id| relay.is_undelivered(id));
        if let Some(command) = line.settings.drop.clone() {
            line.commands.drop(command);
        }
    }

    /// The interface that commands raise a line on, where the file names it.
    fn interface_of(&self, line: &ManagedLine) -> Option<String> {
        let carrier = line.settings.carrier.filter(|_| line.modem.is_none())?;
        let peer = self.peers.with_id(line.peer)?;
        peer.config.carriers.get(carrier)?.binding.interface.clone()
    }

    /// These interfaces have a link. A line whose interface has lost its is lost; one whose
    /// interface has none yet, as while a terminal registers, has the time of any that rises.
    pub(super) fn follow_line_links(&mut self, now: Instant, linked: &[String]) {
        for at in 0..self.lines.len() {
            let Some(interface) = self.interface_of(&self.lines[at]) else { continue };
            let line = &mut self.lines[at];
            let has_link = linked.contains(&interface);
            let lost = std::mem::replace(&mut line.has_link, has_link) && !has_link;
            if lost && line.is_up() {
                self.lose_line(now, at, &format!("{interface} has no link"));
            }
        }
    }

    /// A command has ended.
    pub(super) fn clear_lines(&mut self) {
        for line in &self.lines {
            line.commands.waker.clear();
        }
    }

    /// When lines have something to do.
    pub(super) fn lines_timeout(&self, now: Instant) -> Option<Instant> {
        let due = |line: &ManagedLine| {
            let tells = line.is_up() || line.crossed.values().any(|c| c.is_new);
            let told = tells.then(|| line.told_at + SPACING);
            let manager = line.manager.poll_timeout().map(|(at, _)| at.max(now));
            let unread = line.counts_unread().then_some(line.unread_at);
            [told, manager, unread, line.beside.poll_timeout()].into_iter().flatten().min()
        };
        self.lines.iter().filter_map(due).min()
    }
}

/// Drops the carrier if it is there, and writes down what it cost.
fn end(line: &mut ManagedLine, now: Instant, why: &str) {
    let was_up = line.manager.state(CARRIER).is_some_and(|s| !matches!(s, State::Down { .. }));
    line.manager.handle_ended(now, CARRIER, why, &mut line.books);
    line.beside.end(now, &mut line.manager, &mut line.books, why);
    line.ledger.keep(&mut line.books);
    if was_up && let Some(command) = line.settings.drop.clone() {
        line.commands.drop(command);
    }
}

/// Waits until the carrier is dropped and the books are on the disk.
fn finish(mut commands: Commands, mut ledger: Ledger) {
    commands.finish();
    ledger.finish();
}
