//! The peers as the loop knows them. A hub has thousands, so nothing that is done often looks at
//! all of them: who is due is kept in order, and of those only that may have changed is it asked
//! again. Who is meant by a number, a key or a name is looked up in tables.

#[cfg(test)]
use std::cell::Cell;
use std::cell::{OnceCell, RefCell, RefMut};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use link::keys::PublicKey;
use link::session::Disagreements;
use link::{PathId, PeerId};
use units::Instant;

use super::interception::Clear;
use super::losses::Losses;
use super::report::Meter;
use crate::config::Peer;

/// A peer as its shard knows it: as configured, and what it is in the relay.
pub(super) struct KnownPeer {
    pub id: PeerId,
    pub config: Arc<Peer>,
    /// The path over each of its carriers, as far as this node opens them.
    pub paths: Vec<Option<PathId>>,
    pub meter: Meter,
    pub losses: Losses,
    /// Since when one direction of its link is dead, if one is.
    pub silent_since: Option<Instant>,
    /// A session has begun and was not ended.
    pub up: bool,
    /// The rate and its limit, as far as watchers have them.
    pub told_rate: (u64, u64),
    /// Bytes of link packets, sent and received, that are on the day's account.
    pub told_bytes: [u64; 2],
    /// When its name is to be asked for.
    pub resolve_at: Option<Instant>,
    /// What its file and ours do not agree on, as far as the log has it.
    pub told: Disagreements,
}

/// A peer as the first shard knows it, whoever has it.
pub(super) struct ListedPeer {
    pub config: Arc<Peer>,
    /// The number of the shard that has it, from its first place in the file until it is
    /// taken out.
    pub shard: usize,
    pub clear: Clear,
}

/// What has a name, and may be due at some time.
pub(super) trait Entry {
    type Name: Ord + Copy;
    fn name(&self) -> Self::Name;
    /// As the operator calls it.
    fn called(&self) -> &str;
    fn due(&self) -> Option<Instant>;
}

impl Entry for KnownPeer {
    type Name = PeerId;

    fn name(&self) -> PeerId {
        self.id
    }

    fn called(&self) -> &str {
        &self.config.name
    }

    fn due(&self) -> Option<Instant> {
        self.resolve_at
    }
}

impl Entry for ListedPeer {
    type Name = PublicKey;

    fn name(&self) -> PublicKey {
        self.config.public_key
    }

    fn called(&self) -> &str {
        &self.config.name
    }

    fn due(&self) -> Option<Instant> {
        self.clear_due()
    }
}

/// Peers. Who may have changed one has it looked at when it is asked who is due.
pub(super) struct Roster<P: Entry> {
    peers: Vec<P>,
    /// Where each of them is, once one was looked for.
    places: OnceCell<BTreeMap<P::Name, usize>>,
    /// The same by what the operator calls them.
    called: OnceCell<BTreeMap<Box<str>, usize>>,
    dues: RefCell<Dues>,
    /// How often one of them was looked at.
    #[cfg(test)]
    pub looked_at: Cell<usize>,
}

/// When peers are due, by their places.
#[derive(Default)]
struct Dues {
    each: Vec<Option<Instant>>,
    in_turn: BTreeSet<(Instant, usize)>,
    /// Those that may be due at another time by now.
    touched: Vec<usize>,
}

impl Dues {
    fn touch(&mut self, at: usize) {
        if self.touched.last() != Some(&at) {
            self.touched.push(at);
        }
    }

    fn set(&mut self, at: usize, due: Option<Instant>) {
        if self.each.len() <= at {
            self.each.resize(at + 1, None);
        }
        let before = std::mem::replace(&mut self.each[at], due);
        if before != due {
            if let Some(time) = before {
                self.in_turn.remove(&(time, at));
            }
            self.in_turn.extend(due.map(|time| (time, at)));
        }
    }
}

impl<P: Entry> Default for Roster<P> {
    fn default() -> Roster<P> {
        Roster {
            peers: Vec::new(),
            places: OnceCell::new(),
            called: OnceCell::new(),
            dues: RefCell::default(),
            #[cfg(test)]
            looked_at: Cell::default(),
        }
    }
}

impl<P: Entry> Roster<P> {
    fn place(&self, name: P::Name) -> Option<usize> {
        let each = || self.peers.iter().enumerate().map(|(at, peer)| (peer.name(), at)).collect();
        self.look(1);
        self.places.get_or_init(each).get(&name).copied()
    }

    /// The one of this name.
    pub fn named(&self, name: P::Name) -> Option<&P> {
        self.place(name).map(|at| &self.peers[at])
    }

    /// The same, to change something.
    pub fn named_mut(&mut self, name: P::Name) -> Option<&mut P> {
        let at = self.place(name)?;
        self.dues.get_mut().touch(at);
        Some(&mut self.peers[at])
    }

    /// The one that the operator calls so.
    pub fn called(&self, name: &str) -> Option<&P> {
        let each = || self.peers.iter().enumerate().map(|(at, peer)| (peer.called().into(), at));
        self.called.get_or_init(|| each().collect()).get(name).map(|at| &self.peers[*at])
    }

    /// All of them, which may be thousands.
    pub fn iter(&self) -> std::slice::Iter<'_, P> {
        self.look(self.peers.len());
        self.peers.iter()
    }

    /// The same, to change something.
    pub fn iter_mut(&mut self) -> std::slice::IterMut<'_, P> {
        self.look(self.peers.len());
        self.dues.get_mut().touched = (0..self.peers.len()).collect();
        self.peers.iter_mut()
    }

    pub fn len(&self) -> usize {
        self.peers.len()
    }

    pub fn push(&mut self, peer: P) {
        self.dues.get_mut().touch(self.peers.len());
        if let Some(called) = self.called.get_mut() {
            called.insert(peer.called().into(), self.peers.len());
        }
        if let Some(places) = self.places.get_mut() {
            places.insert(peer.name(), self.peers.len());
        }
        self.peers.push(peer);
    }

    /// Takes those out that are meant.
    pub fn take_out(&mut self, is_meant: impl Fn(&P) -> bool) -> Vec<P> {
        let (gone, stay) = std::mem::take(&mut self.peers).into_iter().partition(is_meant);
        self.peers = stay;
        self.moved();
        gone
    }

    /// Takes all of them out.
    pub fn drain(&mut self) -> impl Iterator<Item = P> {
        let all = std::mem::take(&mut self.peers);
        self.moved();
        all.into_iter()
    }

    /// They are at other places.
    fn moved(&mut self) {
        let touched = (0..self.peers.len()).collect();
        *self.dues.get_mut() = Dues { touched, ..Dues::default() };
        self.places.take();
        self.called.take();
    }

    /// When each is due, of those that may have changed.
    fn follow(&self) -> RefMut<'_, Dues> {
        let mut dues = self.dues.borrow_mut();
        let touched = std::mem::take(&mut dues.touched);
        self.look(touched.len());
        for at in touched {
            dues.set(at, self.peers.get(at).and_then(Entry::due));
        }
        dues
    }

    /// When the first of them is due.
    pub fn due(&self) -> Option<Instant> {
        self.follow().in_turn.first().map(|(time, _)| *time)
    }

    /// Those that are due by now: until they are changed.
    pub fn due_by(&self, now: Instant) -> Vec<P::Name> {
        let dues = self.follow();
        let due = dues.in_turn.range(..=(now, usize::MAX));
        due.map(|(_, at)| self.peers[*at].name()).collect()
    }

    fn look(&self, _at: usize) {
        #[cfg(test)]
        self.looked_at.set(self.looked_at.get() + _at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use units::Duration;

    struct Thing(u32, Option<Instant>);

    impl Entry for Thing {
        type Name = u32;
        fn name(&self) -> u32 {
            self.0
        }
        fn called(&self) -> &str {
            "it"
        }
        fn due(&self) -> Option<Instant> {
            self.1
        }
    }

    fn at(seconds: u64) -> Option<Instant> {
        Some(Instant::ZERO + Duration::from_secs(seconds))
    }

    #[test]
    fn who_is_due_follows_every_change() {
        let mut roster = Roster::default();
        (0..10).for_each(|n| roster.push(Thing(n, at(100 - u64::from(n)))));
        assert_eq!(roster.due(), at(91));
        roster.named_mut(3).expect("it is there").1 = at(5);
        roster.named_mut(4).expect("it is there").1 = at(6);
        assert_eq!((roster.due(), roster.due_by(at(6).unwrap())), (at(5), vec![3, 4]));
        roster.named_mut(3).expect("it is there").1 = None;
        assert_eq!(roster.due(), at(6));
        assert_eq!(roster.take_out(|it| it.0 == 4 || it.0 == 9).len(), 2);
        assert_eq!((roster.due(), roster.len()), (at(92), 8));
        roster.iter_mut().for_each(|it| it.1 = None);
        assert_eq!((roster.due(), roster.due_by(Instant::FAR_FUTURE)), (None, vec![]));
        roster.push(Thing(20, at(1)));
        assert_eq!(roster.due(), at(1));
        assert_eq!((roster.drain().count(), roster.due()), (9, None));
    }
}
