//! The carriers of a peer beside its lines, which are there by themselves: as long as one of them
//! works the lines stay down, and when it works again they go idle. Whether they work is the
//! link's to say ([`link::endpoint::PathStatus::fault`]); what follows is the manager's.

use std::collections::BTreeSet;

use dial::books::Books;
use dial::manager::{CarrierId, Manager, State};
use link::PathId;
use link::endpoint::PathStatus;
use link::session::Why;
use units::{Duration, Instant};

/// How often the paths are looked at.
pub(super) const LOOK: Duration = Duration::from_millis(250);
/// After the start they have so long until they are known to work.
const GRACE: Duration = Duration::from_secs(10);

/// The carriers beside a peer's lines.
pub(super) struct Beside {
    /// What the manager calls each, and the path over it; `None`: the peer opens it.
    pub(super) carriers: Vec<(CarrierId, Option<PathId>)>,
    /// Paths that the operator has set down by name; they stay so when the budget allows them
    /// again.
    pub(super) set_down: BTreeSet<PathId>,
    /// As they are preferred by what they cost; empty: by their priorities.
    pub(super) ranking: Vec<CarrierId>,
    pub(super) look_at: Instant,
    pub(super) until: Instant,
    /// There is more than one way to the peer.
    pub(super) looks: bool,
}

impl Beside {
    /// Those with these paths, beside so many lines.
    pub fn new(now: Instant, lines: usize, paths: impl Iterator<Item = Option<PathId>>) -> Beside {
        let carriers: Vec<_> =
            paths.enumerate().map(|(n, path)| (CarrierId(lines + n), path)).collect();
        let (ranking, until) = (Vec::new(), now + GRACE);
        let set_down = BTreeSet::new();
        let looks = lines > 1 || !carriers.is_empty();
        Beside { carriers, set_down, ranking, look_at: now, until, looks }
    }

    /// They are taken to work, until they have had the time for it.
    pub fn begin(&self, now: Instant, manager: &mut Manager, books: &mut Books) {
        for (carrier, _) in &self.carriers {
            manager.handle_connected(now, *carrier, false, books);
            manager.handle_ready(now, *carrier);
        }
    }

    /// Their part of the books ends.
    pub fn end(&self, now: Instant, manager: &mut Manager, books: &mut Books, why: &str) {
        for (carrier, _) in &self.carriers {
            manager.handle_ended(now, *carrier, why, books);
        }
    }

    pub fn is_empty(&self) -> bool {
        self.carriers.is_empty()
    }

    /// Does one of them work?
    pub fn carries(&self, manager: &Manager) -> bool {
        self.carriers.iter().any(|(id, _)| manager.state(*id).is_some_and(State::carries))
    }

    /// When to look at the paths again.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.looks.then_some(self.look_at)
    }

    /// What speaks against a path, if it has had its time.
    pub fn fault(&self, now: Instant, path: &PathStatus) -> Option<Why> {
        path.fault.filter(|why| now >= self.until || *why != Why::NothingReceived)
    }
}
