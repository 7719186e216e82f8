//! The paths to a peer, for whoever has the carriers.

use std::net::SocketAddr;

use units::{BitRate, Duration, Instant};

use super::event::{EndpointEvent, LinkEvent};
use super::peer::{Peer, PeerId};
use super::state::Endpoint;
use crate::path::{CarrierId, CarrierName, PathId, Remote};
use crate::session::{PathConfig, PathStatus, RateMode, Why};
use crate::tunnel::Route;

/// Changes of the path in use that are told at once, and how often one more is.
const NEWS_AT_ONCE: u8 = 10;
const NEWS_EVERY: Duration = Duration::from_secs(1);

impl Endpoint {
    fn peer_mut(&mut self, id: PeerId) -> Option<&mut Peer> {
        self.wake(id);
        self.peers.get_mut(id.index())?.as_deref_mut()
    }

    /// Opens one more path to a peer, over this carrier; `to`: where the peer is there, if the
    /// carrier has addresses. `None` if there are as many as there may be.
    pub fn add_path(
        &mut self,
        now: Instant,
        id: PeerId,
        config: PathConfig,
        carrier: CarrierId,
        to: Option<Remote>,
    ) -> Option<PathId> {
        let peer = self.peer_mut(id)?;
        let path = peer.session.add_path(now, config, to.is_some())?;
        peer.tunnel.make_path(path, carrier);
        if let Some(to) = to {
            peer.tunnel.set_endpoint(now, path, to);
        }
        peer.meet_path(now, path);
        self.mark(id);
        Some(path)
    }

    /// Which of two paths that are alive is preferred: that with the lower number; and how often
    /// it is asked about while it stands by ([`PathConfig::probe`]).
    pub fn set_path_habits(
        &mut self,
        now: Instant,
        id: PeerId,
        path: PathId,
        (priority, probe): (u8, Option<Duration>),
    ) {
        if let Some(peer) = self.peer_mut(id) {
            peer.session.set_path_habits(now, path, priority, probe);
            self.mark(id);
        }
    }

    /// What this node calls the carrier of a path: the peer is told, and classes may name it.
    pub fn name_path(&mut self, now: Instant, id: PeerId, path: PathId, name: CarrierName) {
        if let Some(peer) = self.peer_mut(id) {
            peer.session.name_path(now, path, name);
            self.mark(id);
        }
    }

    /// A path that this node opened has other rates, to the peer and from it: the peer is told.
    pub fn set_path_rates(
        &mut self,
        now: Instant,
        id: PeerId,
        path: PathId,
        mode: RateMode,
        rates: [BitRate; 2],
    ) {
        if let Some(peer) = self.peer_mut(id) {
            peer.session.set_path_rates(now, path, mode, rates);
            self.mark(id);
        }
    }

    /// The carrier of a path of this node's is there no more: nothing is sent on it from now on,
    /// and what was under way goes by another. Its number stays taken until the session ends; the
    /// path that sessions begin with stays, without an address.
    pub fn remove_path(&mut self, now: Instant, id: PeerId, path: PathId) {
        if let Some(peer) = self.peer_mut(id) {
            peer.session.retire_path(now, path);
            peer.tunnel.remove_path(path);
            self.mark(id);
        }
    }

    /// What the path goes by has a link, or has none, as this host knows: then nothing is sent,
    /// and another one carries everything.
    pub fn set_path_linked(&mut self, now: Instant, id: PeerId, path: PathId, linked: bool) {
        if let Some(peer) = self.peer_mut(id) {
            peer.session.set_path_linked(now, path, linked);
            self.mark(id);
        }
    }

    /// The path is up, or down: then nothing at all is sent on it, and the session keeps
    /// everything (L-PT-7).
    pub fn set_path_up(&mut self, now: Instant, id: PeerId, path: PathId, up: bool) {
        if let Some(peer) = self.peer_mut(id) {
            peer.tunnel.set_path_up(now, path, up);
            peer.session.set_path_up(now, path, up);
            self.mark(id);
        }
    }

    /// Both nodes are to send everything on this path, while it lives, or on the best.
    pub fn use_path(&mut self, now: Instant, id: PeerId, path: Option<PathId>) {
        if let Some(peer) = self.peer_mut(id) {
            peer.session.use_path(now, path);
            self.mark(id);
        }
    }

    /// All paths to the peer that are alive carry streams' bytes, or the best alone does.
    pub fn set_spread(&mut self, now: Instant, id: PeerId, spread: bool) {
        if let Some(peer) = self.peer_mut(id) {
            peer.session.set_spread(now, spread);
            self.mark(id);
        }
    }

    /// The peer is there on its first path (configured or resolved anew).
    pub fn set_endpoint(&mut self, now: Instant, id: PeerId, to: impl Into<Remote>) {
        self.set_path_endpoint(now, id, PathId::FIRST, to.into());
    }

    /// The peer is there on a path (configured or resolved anew).
    pub fn set_path_endpoint(&mut self, now: Instant, id: PeerId, path: PathId, to: Remote) {
        if let Some(peer) = self.peer_mut(id) {
            peer.tunnel.set_endpoint(now, path, to);
            peer.meet_path(now, path);
            self.mark(id);
        }
    }

    /// The peer is reached by lines alone ([`Remote::addr`] is `None`): it gets no session by an
    /// address of a network, whoever asks for one, or its line is paid for and carries nothing.
    pub fn keep_to_lines(&mut self, id: PeerId) {
        if let Some(peer) = self.peer_mut(id) {
            peer.tunnel.keep_to_lines();
            self.mark(id);
        }
    }

    /// The peer is no longer at this place, on any path: a call that led to it is over, and the
    /// next one on that line is somebody else's. The session waits until it is heard elsewhere.
    pub fn forget_place(&mut self, now: Instant, id: PeerId, place: Remote) {
        let Some(peer) = self.peer_mut(id) else { return };
        peer.tunnel.forget_place(place);
        peer.session.paths().collect::<Vec<_>>().into_iter().for_each(|path| {
            peer.meet_path(now, path);
        });
        self.mark(id);
    }

    /// Where the peer is, on the path that carries everything.
    pub fn peer_endpoint(&self, id: PeerId) -> Option<SocketAddr> {
        let peer = self.peer(id)?;
        peer.tunnel.endpoint(peer.session.active_path())?.addr
    }

    /// What is known of the paths to a peer.
    pub fn paths(&self, now: Instant, id: PeerId) -> Vec<PathStatus> {
        let Some(peer) = self.peer(id) else { return Vec::new() };
        peer.session.paths().filter_map(|path| peer.path_status(now, path)).collect()
    }

    /// What the carrier of a path to a peer is called, as far as this node knows.
    pub fn path_name(&self, id: PeerId, path: PathId) -> CarrierName {
        let path = self.peer(id).and_then(|peer| peer.session.path(path));
        path.map(|path| path.name()).unwrap_or_default()
    }

    /// Why the path to a peer that carries everything does.
    pub fn why(&self, id: PeerId) -> Why {
        self.peer(id).map(|p| p.session.why()).unwrap_or_default()
    }
}

impl Peer {
    fn path_status(&self, now: Instant, id: PathId) -> Option<PathStatus> {
        let remote = self.tunnel.endpoint(id);
        let is_active = self.session.active_path() == id;
        let classes = self.session.classes_of(id);
        Some(PathStatus { remote, is_active, classes, ..self.session.path(id)?.status(now) })
    }

    /// The path is there, and perhaps it is known where the peer is on it.
    pub(super) fn meet_path(&mut self, now: Instant, id: PathId) {
        let remote = self.tunnel.endpoint(id);
        if let (Some(remote), Some(path)) = (remote, self.session.path_mut(id)) {
            path.set_remote(remote);
        }
        self.session.set_reachable(now, id, remote.is_some());
    }

    /// The tunnel sends by the paths that the session would take.
    pub(super) fn follow_route(&mut self, now: Instant) {
        self.tunnel.set_route(match self.session.has_one_path() {
            true => Route::default(),
            false => Route::new(self.session.path_order(now)),
        });
    }

    /// What is new about the path that carries everything. A peer that puts paths up and down with
    /// each packet is not told of each time: later news has what holds then.
    pub(super) fn see_path(&mut self, now: Instant, id: PeerId) -> Option<EndpointEvent> {
        let path = self.session.active_path();
        if path == self.path {
            return None;
        }
        let (told, since) = &mut self.path_news;
        let more = now.since(*since).as_millis() / NEWS_EVERY.as_millis();
        if more > 0 {
            *told = told.saturating_sub(u8::try_from(more).unwrap_or(u8::MAX));
            *since += NEWS_EVERY.times(more);
        }
        if *told >= NEWS_AT_ONCE {
            return None;
        }
        *told += 1;
        self.path = path;
        Some(EndpointEvent::Link(id, LinkEvent::Using(path, self.session.why())))
    }

    /// The path by which a packet to this place goes: the one whose peer is there, else one of the
    /// same carrier.
    pub(super) fn path_to(&self, to: Remote) -> PathId {
        let active = self.session.active_path();
        if self.session.has_one_path() {
            return active;
        }
        let place = |id: &PathId| self.tunnel.endpoint(*id);
        let here = self.session.paths().find(|id| place(id) == Some(to));
        let near = || {
            let same = |id: &PathId| place(id).is_some_and(|at| at.carrier == to.carrier);
            self.session.paths().find(same)
        };
        here.or_else(near).unwrap_or(active)
    }
}
