//! The paths of a tunnel: where the peer is on each of them, and which may be used.

use units::{Duration, Instant};

use super::address::Address;
use crate::keys::Entropy;
use crate::path::{CarrierId, MAX_PATHS, PathId, Remote};

/// The paths that packets may leave by, best first: handshakes go by the first, and by the
/// next where one comes to nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    ids: [PathId; MAX_PATHS],
    len: usize,
}

impl Route {
    /// By these, in this order.
    pub fn new(best_first: impl Iterator<Item = PathId>) -> Route {
        let mut route = Route { ids: [PathId::FIRST; MAX_PATHS], len: 0 };
        for (place, id) in route.ids.iter_mut().zip(best_first) {
            *place = id;
            route.len += 1;
        }
        route
    }

    /// The paths, best first.
    pub fn ids(&self) -> &[PathId] {
        &self.ids[..self.len]
    }
}

impl Default for Route {
    /// By the path that every session begins with.
    fn default() -> Route {
        Route::new(std::iter::once(PathId::FIRST))
    }
}

/// One path.
pub(super) struct Way {
    pub id: PathId,
    /// Where it begins, until the peer was heard on it.
    carrier: CarrierId,
    /// This node sends on it.
    pub up: bool,
    pub address: Address,
    /// The answer to the last challenge, and where that came from.
    pub answer: Option<(Remote, u64)>,
}

/// All paths of a tunnel: the first, those of this node, those that the peer opened.
pub(super) struct Ways {
    list: Vec<Way>,
    side: u64,
    pub route: Route,
    /// The peer is at lines alone ([`Remote::addr`] is `None`).
    lines_alone: bool,
}

impl Way {
    fn new(id: PathId, carrier: CarrierId, remote: Option<Remote>) -> Way {
        Way { id, carrier, up: true, address: Address::new(remote), answer: None }
    }

    fn carrier(&self) -> CarrierId {
        self.address.endpoint().map_or(self.carrier, |remote| remote.carrier)
    }
}

impl Ways {
    pub fn new(side: u64, first: Option<Remote>) -> Ways {
        let carrier = first.map_or(CarrierId(0), |remote| remote.carrier);
        let first = Way::new(PathId::FIRST, carrier, first);
        Ways { list: vec![first], side, route: Route::default(), lines_alone: false }
    }

    pub fn get(&self, id: PathId) -> Option<&Way> {
        self.list.iter().find(|w| w.id == id)
    }

    pub fn get_mut(&mut self, id: PathId) -> Option<&mut Way> {
        self.list.iter_mut().find(|w| w.id == id)
    }

    /// May a packet of this path be opened: is it known, or may the peer open it (L-PT-3)?
    pub fn admits(&self, id: PathId) -> bool {
        self.get(id).is_some() || id.is_opened_by(1 - self.side) && self.list.len() < MAX_PATHS
    }

    /// The path, made if it is not there.
    pub fn make(&mut self, id: PathId, carrier: CarrierId) -> &mut Way {
        let at = match self.list.iter().position(|w| w.id == id) {
            Some(at) => at,
            None => {
                self.list.push(Way::new(id, carrier, None));
                self.list.len() - 1
            }
        };
        &mut self.list[at]
    }

    /// There is such a path no more; the first stays, down and without an address.
    pub fn remove(&mut self, id: PathId) {
        match self.get_mut(id) {
            Some(way) if id.is_first() => {
                *way = Way { up: false, ..Way::new(id, way.carrier, None) }
            }
            _ => self.list.retain(|w| w.id != id),
        }
    }

    /// The peer is at lines alone from now on: no address of a network is its.
    pub fn keep_to_lines(&mut self) {
        self.lines_alone = true;
        for way in &mut self.list {
            if let Some(place) = way.address.endpoint().filter(|place| place.addr.is_some()) {
                way.address.forget(place);
            }
        }
    }

    /// May the peer be at this place?
    pub fn may_be_at(&self, place: Remote) -> bool {
        !self.lines_alone || place.addr.is_none()
    }

    /// The peer is no longer there, on any path.
    pub fn forget_place(&mut self, place: Remote) {
        self.list.iter_mut().for_each(|w| w.address.forget(place));
    }

    /// A new session begins by a handshake on path `kept`: others that the peer opened are gone.
    pub fn begin_anew(&mut self, kept: PathId) {
        let side = self.side;
        self.list.retain(|w| w.id == kept || !w.id.is_opened_by(1 - side));
    }

    pub fn endpoint(&self, id: PathId) -> Option<Remote> {
        self.get(id)?.address.endpoint()
    }

    /// Is the peer at this place, on any path?
    pub fn is_endpoint(&self, remote: Remote) -> bool {
        self.list.iter().any(|w| w.address.endpoint() == Some(remote))
    }

    /// The path and place for the `n`-th initiation of a series.
    pub fn for_initiation(&self, n: usize) -> Option<(PathId, Remote)> {
        let known = || self.route.ids().iter().filter_map(|id| Some((*id, self.endpoint(*id)?)));
        let count = known().count();
        known().nth(n.checked_rem(count)?)
    }

    /// Is it known where the peer is on a path that packets may leave by?
    pub fn is_any_known(&self) -> bool {
        self.route.ids().iter().any(|id| self.endpoint(*id).is_some())
    }

    /// Has this node put the path from there down, or, where none is known, all paths of the
    /// carrier? Then nothing goes there (L-PT-7).
    pub fn is_down(&self, from: Remote) -> bool {
        if let Some(way) = self.list.iter().find(|w| w.address.endpoint() == Some(from)) {
            return !way.up;
        }
        let mut ways = self.list.iter().filter(|w| w.carrier() == from.carrier).peekable();
        ways.peek().is_some() && ways.all(|w| !w.up)
    }

    /// A challenge that is due, with the path and place that it is for.
    pub fn poll_challenge(
        &mut self,
        now: Instant,
        patience: Duration,
    ) -> Option<(PathId, Remote, u64)> {
        let route = self.route;
        let asks = |w: &&mut Way| w.address.timeout().is_some() && route.ids().contains(&w.id);
        self.list.iter_mut().filter(asks).find_map(|w| {
            let (to, token) = w.address.poll_challenge(now, patience)?;
            Some((w.id, to, token))
        })
    }

    /// An answer to a challenge that is owed.
    pub fn poll_answer(&mut self) -> Option<(PathId, Remote, u64)> {
        let route = self.route;
        let owes = |w: &&mut Way| w.answer.is_some() && route.ids().contains(&w.id);
        self.list.iter_mut().filter(owes).find_map(|w| {
            let (to, token) = w.answer.take()?;
            Some((w.id, to, token))
        })
    }

    /// When the next challenge is due.
    pub fn timeout(&self) -> Option<Instant> {
        let due = |w: &Way| w.address.timeout().filter(|_| self.route.ids().contains(&w.id));
        self.list.iter().filter_map(due).min()
    }

    /// A packet of `len` bytes authenticated on a path; see [`Address::on_authenticated`].
    pub fn on_authenticated(
        &mut self,
        now: Instant,
        id: PathId,
        from: Remote,
        newest: bool,
        len: usize,
        entropy: &mut Entropy,
    ) {
        self.make(id, from.carrier).address.on_authenticated(now, from, newest, len, entropy);
    }
}
