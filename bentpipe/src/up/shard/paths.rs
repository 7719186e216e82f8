//! The paths to a shard's peers: opened as the file says, and used as the operator does.

use link::endpoint::PathStatus;
use link::keys::PublicKey;
use link::session::{ClassId, Why};
use link::{CarrierId, CarrierName, PathId, PeerId, Remote};
use units::Instant;

use super::Shard;
use crate::admin::{PathCause, PathCommand, PathReport, PathState};
use crate::config::Peer;
use crate::up::peer_table::KnownPeer;
use crate::up::peers;

/// A path, by its carrier's place in the file, by the name that the peer told, or by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    Carrier(usize),
    Told(CarrierName),
    Number(PathId),
}

impl Which {
    /// What `text` means: a carrier's name, in this node's file or the peer's, or a path's number.
    ///
    /// # Errors
    /// If the peer has no such carrier.
    pub fn of(peer: &Peer, text: &str) -> Result<Which, String> {
        let named = peer.carriers.iter().position(|c| c.name == text).map(Which::Carrier);
        let number = || text.parse().ok().and_then(PathId::new).map(Which::Number);
        let told = || {
            let told = CarrierName::new(text.as_bytes()).filter(|_| peer.carriers.is_empty());
            told.filter(|name| !name.is_empty()).map(Which::Told)
        };
        named.or_else(number).or_else(told).ok_or_else(|| {
            let names: Vec<&str> = peer.carriers.iter().map(|c| c.name.as_str()).collect();
            format!(
                "peer \"{}\" has no carrier \"{text}\"; `bentpipe path {}` lists its paths{}",
                peer.name,
                peer.name,
                if names.is_empty() { String::new() } else { format!(": {}", names.join(", ")) }
            )
        })
    }
}

impl Shard {
    /// Opens a path over each of the peer's carriers but the first, which sessions begin with.
    /// Answers which path each carrier has. `modems`: those of its lines, in their order.
    pub(super) fn open_paths(
        &mut self,
        now: Instant,
        id: PeerId,
        peer: &Peer,
        modems: &[Option<CarrierId>],
    ) -> Vec<Option<PathId>> {
        if peer.spread {
            self.relay.endpoint.set_spread(now, id, true);
        }
        let Some((first, others)) = peer.carriers.split_first() else { return Vec::new() };
        let place = self.place_of(first);
        let endpoint = &mut self.relay.endpoint;
        if let Some(to) = place {
            endpoint.set_endpoint(now, id, to);
        }
        endpoint.set_path_habits(now, id, PathId::FIRST, (first.priority, first.probe));
        endpoint.name_path(now, id, PathId::FIRST, peers::carrier_name(first));
        let mut paths = vec![Some(PathId::FIRST)];
        for (at, way) in others.iter().enumerate() {
            let place = self.place_of(way).or_else(|| calling(peer, 1 + at, modems));
            paths.push(self.open_path(now, id, peer, (way, place)));
        }
        self.follow_links_of(now, (id, peer, &paths), None);
        paths
    }

    /// The paths over carriers that are tied to interfaces have links as these have them now, or as
    /// is known already.
    pub(super) fn follow_links_of(
        &mut self,
        now: Instant,
        (id, peer, paths): (PeerId, &Peer, &[Option<PathId>]),
        known: Option<&[String]>,
    ) {
        if !self.carrier.has_interfaces() {
            return;
        }
        let Some(linked) = known.map(<[String]>::to_vec).or_else(linked) else { return };
        for (way, path) in peer.carriers.iter().zip(paths) {
            let interface = way.binding.interface.as_ref();
            let has_link = interface.is_none_or(|interface| {
                linked.contains(interface) && self.carrier.is_bound(&way.binding)
            });
            if let Some(path) = path {
                self.relay.endpoint.set_path_linked(now, id, *path, has_link);
            }
        }
    }

    /// The operator wants something of a path.
    ///
    /// # Errors
    /// If there is no such path now.
    pub fn set_path(
        &mut self,
        now: Instant,
        key: &PublicKey,
        which: Which,
        command: PathCommand,
    ) -> Result<(), String> {
        let (peer, path) = self.find_path(key, which)?;
        if let PathCommand::Up | PathCommand::Down = command
            && self.note_set_by_hand(now, peer, path, command == PathCommand::Up)
            && command == PathCommand::Up
        {
            return Err(BARRED.to_owned());
        }
        self.may_set(now, (peer, path), command)?;
        if command == PathCommand::Use {
            self.raise_to_use(now, peer, path);
        }
        let endpoint = &mut self.relay.endpoint;
        match command {
            PathCommand::Use => endpoint.use_path(now, peer, Some(path)),
            PathCommand::Auto => endpoint.use_path(now, peer, None),
            PathCommand::Up => endpoint.set_path_up(now, peer, path, true),
            PathCommand::Down => endpoint.set_path_up(now, peer, path, false),
        }
        Ok(())
    }

    /// The path that is meant.
    ///
    /// # Errors
    /// If there is no such path now.
    pub fn find_path(&self, key: &PublicKey, which: Which) -> Result<(PeerId, PathId), String> {
        let Some(known) = self.peers.with_key(key) else {
            return Err("the peer was taken out".to_owned());
        };
        let all = self.relay.endpoint.paths(Instant::ZERO, known.id);
        let path = match which {
            Which::Carrier(at) => known.paths.get(at).copied().flatten(),
            Which::Told(name) => {
                let named = all.iter().filter(|p| p.name == name);
                named.max_by_key(|p| (p.is_peer_up, p.is_alive)).map(|p| p.id)
            }
            Which::Number(id) => all.iter().map(|p| p.id).find(|p| *p == id),
        };
        let missing = || format!("peer \"{}\" has no such path now", known.config.name);
        path.map(|path| (known.id, path)).ok_or_else(missing)
    }

    /// What the operator is told of a peer's paths; nothing where there is one.
    pub(in crate::up) fn path_reports(&self, now: Instant, peer: &KnownPeer) -> Vec<PathReport> {
        let paths = self.relay.endpoint.paths(now, peer.id);
        if paths.len() < 2 && peer.config.carriers.is_empty() {
            return Vec::new();
        }
        let why = self.relay.endpoint.why(peer.id);
        let reports = paths.iter().map(|path| {
            let mut report = report(now, peer, path, why);
            if report.state == PathState::Down {
                report.cause = Some(self.cause_of_down(peer.id, path));
            }
            report
        });
        reports.collect()
    }

    /// Interfaces of carriers lost their links, or have them again.
    pub(super) fn follow_links(&mut self, now: Instant) {
        self.carrier.rebind(&self.poller, super::UDP, super::MORE_UDP);
        let Some(linked) = linked() else { return };
        let of = |p: &KnownPeer| (p.id, p.config.clone(), p.paths.clone());
        let peers: Vec<_> = self.peers.iter().filter(|p| !p.paths.is_empty()).map(of).collect();
        for (id, peer, paths) in peers {
            self.follow_links_of(now, (id, &peer, &paths), Some(&linked));
        }
        self.follow_line_links(now, &linked);
    }
}

/// Why a carrier is not set up by hand.
const BARRED: &str = "the month's budget is used up: the carrier comes up with the next month, or \
                      with a higher `budget` and a reload";

/// The far end of a modem that calls, if this carrier of the peer's is one; who is only called
/// learns from the call who is there.
fn calling(peer: &Peer, at: usize, modems: &[Option<CarrierId>]) -> Option<Remote> {
    let mut lines = peer.line.iter().flat_map(|line| &line.lines).zip(modems);
    let (line, modem) = lines.find(|(line, _)| line.carrier == Some(at))?;
    modem.filter(|_| line.calls()).map(|carrier| Remote { carrier, addr: None })
}

/// Interfaces that have a link. `None`: the system does not tell now, as where descriptors have run
/// out; what was known of them stands.
pub(super) fn linked() -> Option<Vec<String>> {
    os::links::linked().inspect_err(|why| crate::log!(Warn, why)).ok()
}

/// What people call a path to the peer. `told`: what its opener calls it.
pub(super) fn name_of(peer: &KnownPeer, path: PathId, told: CarrierName) -> String {
    let at = peer.paths.iter().position(|id| *id == Some(path));
    let carrier = at.and_then(|at| peer.config.carriers.get(at));
    match carrier {
        Some(carrier) => carrier.name.clone(),
        None if told.is_empty() => path.to_string(),
        None => told.as_str().to_owned(),
    }
}

/// The classes that go by a path, where some class names its carriers.
fn classes_of(peer: &Peer, path: &PathStatus) -> Vec<String> {
    let traffic = &peer.traffic;
    if traffic.classes.iter().all(|class| class.carriers.is_empty()) {
        return Vec::new();
    }
    let all = (0..traffic.classes.len()).filter(|class| path.classes >> class & 1 == 1);
    all.map(|class| traffic.class_name(ClassId::from_index(class)).to_owned()).collect()
}

/// As the control socket calls it.
pub(super) fn cause(why: Why) -> PathCause {
    match why {
        Why::Preferred => PathCause::Preferred,
        Why::Chosen => PathCause::Chosen,
        Why::NothingReceived => PathCause::Silent,
        Why::TransmitDead => PathCause::Unheard,
        Why::Missed => PathCause::Missed,
        Why::Down => PathCause::Down,
        Why::PeerDown => PathCause::PeerDown,
        Why::NoLink => PathCause::NoLink,
        Why::Held => PathCause::Held,
        Why::Poor => PathCause::Poor,
    }
}

fn report(now: Instant, peer: &KnownPeer, path: &PathStatus, why: Why) -> PathReport {
    let state = match path {
        PathStatus { is_up: false, .. } => PathState::Down,
        PathStatus { is_peer_up: false, .. } => PathState::PeerDown,
        PathStatus { is_alive: false, .. } => PathState::Dead,
        PathStatus { is_active: true, .. } => PathState::InUse,
        _ => PathState::StandsBy,
    };
    let told = path.arrived + path.lost;
    PathReport {
        name: name_of(peer, path.id, path.name),
        number: path.id.number().into(),
        state,
        // That nothing else is there makes no path one that works.
        cause: match state {
            PathState::InUse => Some(cause(why)),
            _ => path.fault.map(cause),
        },
        held_ms: path.held_until.map(|t| t.since(now).as_millis()),
        classes: classes_of(&peer.config, path),
        endpoint: path.remote.map(|remote| remote.to_string()),
        rate_bps: path.rate.rate.as_bps(),
        rtt_us: path.rtt.as_micros(),
        loss_ppm: (path.lost * 1_000_000).checked_div(told).unwrap_or(0),
        mtu: path.mtu.into(),
        sent_bytes: path.traffic.bytes_out,
        received_bytes: path.traffic.bytes_in,
    }
}
