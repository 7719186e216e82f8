//! What managers of lines are told, and what they want done.

use std::collections::BTreeMap;

use control::{LineCommand, LineReport};
use dial::books::Host;
use dial::manager::{CarrierId, Command, Event, State, Work};
use dial::rules::Flow;
use dial::tariff::Rates;
use link::PeerId;
use link::keys::PublicKey;
use link::session::ClassId;
use relay::{FlowId, Moved, Target};
use units::{Duration, Instant};

use super::managed::{Carried, ManagedLine, WaitKey};
use super::packets::TCP;
use super::report::tell_budget;
use crate::calendar::wall;
use crate::up::shard::Shard;

/// How often the manager is told what crossed.
pub(super) const SPACING: Duration = Duration::from_millis(100);
/// The same of the wall clock, which somebody may set.
const CLOCK_SPACING: Duration = Duration::from_secs(60);
/// How often it is asked how much hosts have sent that was not taken.
const LOOK_AT_UNREAD: Duration = Duration::from_millis(500);

impl Shard {
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
        line.orders.keep(&line.name, &line.settings, &line.manager);
        let id = line.peer;
        self.look_at_links(now, [id]);
        self.work_lines(now);
    }

    /// What the operator is told of a peer's lines.
    pub(in crate::up) fn line_report(&self, now: Instant, id: PeerId) -> Option<LineReport> {
        let line = self.lines.iter().find(|line| line.peer == id && line.settings.raises);
        line.map(|line| line.report(now))
    }

    /// Why the books of what the link to this peer costs cannot be written.
    pub(in crate::up::shard) fn books_unwritten(&self, id: PeerId) -> Option<String> {
        self.lines.iter().find(|line| line.peer == id)?.ledger.trouble()
    }

    /// The prices of the carrier by which everything goes to this peer now, or of the line that
    /// would be raised where nothing does. Bytes that a monthly price includes cost as others do:
    /// they are used up.
    pub(in crate::up::shard) fn rates_of(&self, now: Instant, id: PeerId) -> Option<&Rates> {
        let line = self.lines.iter().find(|line| line.peer == id)?;
        let paths = self.relay.endpoint.paths(now, id);
        let active = paths.iter().find(|path| path.is_active && line.carries());
        let carrier = active.map_or(line.shown(), |path| line.carrier_of(path).0);
        let carrier = line.settings.manager.carriers.get(carrier)?;
        Some(carrier.tariff.rates(line.manager.zone()))
    }

    /// The same in words; `None`: what crosses costs nothing that the file tells.
    pub(in crate::up::shard) fn prices_of(&self, now: Instant, id: PeerId) -> Option<String> {
        let line = self.lines.iter().find(|line| line.peer == id)?;
        self.rates_of(now, id)?.words(line.settings.manager.currency)
    }

    /// Has the peer a line that has to be raised before anything is carried?
    pub(in crate::up::shard) fn is_line_down(&self, id: PeerId) -> bool {
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
    pub(in crate::up::shard) fn work_lines(&mut self, now: Instant) {
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
    pub(super) fn carried(&self, now: Instant, line: &ManagedLine) -> Carried {
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

    pub(super) fn tell_line(&mut self, now: Instant, at: usize) {
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
        line.ledger.keep(now, &mut line.books);
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
                    self.tell_watchers_of_line(at, carrier, &state);
                }
                self.look_at_links(now, [id]);
            }
            Work::Tell(Event::Budget { host, spent, of, stopped }) => {
                tell_budget(&line.name, host, [spent, of], stopped);
            }
            Work::Tell(Event::HostShort { host, spent, of }) => {
                let what = "a host's budget does not pay a call's beginning: it raises no line";
                crate::log!(Warn, what, peer = line.name, host = host, spent = spent, of = of);
            }
            Work::Tell(Event::LineBudget { carrier, spent, of, stopped }) => {
                let what = match stopped {
                    true => "a line's budget is used up: it is raised for nothing that costs more",
                    false if spent >= of => "a line's budget is used up",
                    false => "a line's budget is nearly used up",
                };
                let name = line.title(carrier.0);
                crate::log!(Warn, what, peer = name, spent = spent, of = of);
            }
        }
    }

    /// A line that lingers is up to watchers: it is used again at any moment.
    fn tell_watchers_of_line(&mut self, at: usize, carrier: CarrierId, state: &State) {
        let line = &mut self.lines[at];
        let name = match state {
            State::Lingering { .. } => "up",
            state => state.name(),
        };
        if std::mem::replace(&mut line.each[carrier.0].told_state, name) == name {
            return;
        }
        let event = control::Event::Line {
            line: line.carrier_title(carrier.0),
            state: name.to_owned(),
            cause: state.cause(),
        };
        if let Some(peer) = self.peers.with_id(line.peer) {
            self.tidings.push(peer, event);
        }
    }

    /// A command has ended.
    pub(in crate::up::shard) fn clear_lines(&mut self) {
        for one in self.lines.iter().flat_map(|line| &line.each) {
            one.commands.waker.clear();
        }
    }

    /// When lines have something to do.
    pub(in crate::up::shard) fn lines_timeout(&self, now: Instant) -> Option<Instant> {
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

    /// Tells the manager what hosts have sent and this gateway has not taken, where an amount
    /// matters.
    fn count_unread(&mut self, now: Instant, at: usize) {
        let line = &mut self.lines[at];
        if now < line.unread_at || !line.counts_unread() {
            return;
        }
        line.unread_at = now + LOOK_AT_UNREAD;
        for (key, waiting) in line.waiting.iter_mut().filter(|(_, waiting)| waiting.counts) {
            let WaitKey::Connection(flow) = key else { continue };
            let unread = self.connections.unread(*flow);
            if std::mem::replace(&mut waiting.unread, unread) != unread {
                line.manager.handle_waiting(now, waiting.id, &waiting.flow, waiting.all());
            }
        }
    }
}
