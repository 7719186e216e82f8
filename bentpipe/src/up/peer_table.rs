//! The table of peers: each is found by its public key, by its id in the relay or by its name.
//!
//! A hub has thousands of peers, so nothing that is done often looks at all of them. Times at which
//! peers are due are kept in order; only a peer that may have changed is asked again. A shard has a
//! table of its own peers ([`KnownPeer`]), the first shard also one of everybody's
//! ([`ListedPeer`]). A peer is in the table from its place in the source ([`super::peer_source`])
//! on; its session begins with the first contact.

#[cfg(test)]
use std::cell::Cell;
use std::cell::{OnceCell, RefCell, RefMut};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use link::keys::PublicKey;
use link::session::Disagreements;
use link::{PathId, PeerId};
use units::{BitRate, Instant};

use super::in_clear::Clear;
use super::losses::Losses;
use super::meter::Meter;
use super::turns::Turns;
use super::twins::Twins;
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
    /// What the modem said last.
    pub reported: Option<BitRate>,
    /// The rate and its limit, as far as watchers have them.
    pub told_rate: (u64, u64),
    /// Bytes of link packets, sent and received, that are on the day's account.
    pub told_bytes: [u64; 2],
    /// When its name is to be asked for.
    pub resolve_at: Option<Instant>,
    /// Whose turn it is of its name's addresses.
    pub turns: Turns,
    /// What its file and ours do not agree on, as far as the log has it.
    pub told: Disagreements,
    /// Whether two nodes have its key.
    pub twins: Twins,
}

/// A peer as the first shard knows it, whoever has it.
pub(super) struct ListedPeer {
    pub config: Arc<Peer>,
    /// The number of the shard that has it, from its first place in the file until it is
    /// taken out.
    pub shard: usize,
    pub clear: Clear,
}

/// What a table holds of a peer.
pub(super) trait Entry {
    fn key(&self) -> PublicKey;
    /// Its number in the relay, where that is of this shard.
    fn id(&self) -> Option<PeerId>;
    /// As the operator calls it.
    fn called(&self) -> &str;
    fn due(&self) -> Option<Instant>;
}

impl Entry for KnownPeer {
    fn key(&self) -> PublicKey {
        self.config.public_key
    }

    fn id(&self) -> Option<PeerId> {
        Some(self.id)
    }

    fn called(&self) -> &str {
        &self.config.name
    }

    fn due(&self) -> Option<Instant> {
        self.resolve_at
    }
}

impl Entry for ListedPeer {
    fn key(&self) -> PublicKey {
        self.config.public_key
    }

    /// Only its own shard knows it.
    fn id(&self) -> Option<PeerId> {
        None
    }

    fn called(&self) -> &str {
        &self.config.name
    }

    fn due(&self) -> Option<Instant> {
        self.clear.due(self.config.on_failure)
    }
}

/// Peers in the order in which they came. An index is made when it is first asked, and kept from
/// then on. A peer that was lent for a change is asked for its time before the next answer about
/// times.
pub(super) struct PeerTable<P: Entry> {
    peers: Vec<P>,
    by_id: OnceCell<BTreeMap<PeerId, usize>>,
    by_key: OnceCell<BTreeMap<PublicKey, usize>>,
    by_name: OnceCell<BTreeMap<Box<str>, usize>>,
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

impl<P: Entry> Default for PeerTable<P> {
    fn default() -> PeerTable<P> {
        PeerTable {
            peers: Vec::new(),
            by_id: OnceCell::new(),
            by_key: OnceCell::new(),
            by_name: OnceCell::new(),
            dues: RefCell::default(),
            #[cfg(test)]
            looked_at: Cell::default(),
        }
    }
}

impl<P: Entry> PeerTable<P> {
    /// The peers, each with its place.
    fn places(&self) -> impl Iterator<Item = (usize, &P)> {
        self.peers.iter().enumerate()
    }

    fn place_of_id(&self, id: PeerId) -> Option<usize> {
        self.look(1);
        let index = || self.places().filter_map(|(at, peer)| Some((peer.id()?, at))).collect();
        self.by_id.get_or_init(index).get(&id).copied()
    }

    fn place_of_key(&self, key: &PublicKey) -> Option<usize> {
        self.look(1);
        let index = || self.places().map(|(at, peer)| (peer.key(), at)).collect();
        self.by_key.get_or_init(index).get(key).copied()
    }

    /// The peer with this number in the relay.
    pub fn with_id(&self, id: PeerId) -> Option<&P> {
        self.place_of_id(id).map(|at| &self.peers[at])
    }

    /// The same, to change something.
    pub fn with_id_mut(&mut self, id: PeerId) -> Option<&mut P> {
        let at = self.place_of_id(id)?;
        self.lend(at)
    }

    /// The peer with this public key.
    pub fn with_key(&self, key: &PublicKey) -> Option<&P> {
        self.place_of_key(key).map(|at| &self.peers[at])
    }

    /// The same, to change something.
    pub fn with_key_mut(&mut self, key: &PublicKey) -> Option<&mut P> {
        let at = self.place_of_key(key)?;
        self.lend(at)
    }

    /// The peer that the operator calls so.
    pub fn called(&self, name: &str) -> Option<&P> {
        self.place_called(name).map(|at| &self.peers[at])
    }

    /// One of them is called otherwise from now on.
    pub fn on_renamed(&mut self) {
        self.by_name.take();
    }

    /// The place of that peer among all.
    pub fn place_called(&self, name: &str) -> Option<usize> {
        let index = || self.places().map(|(at, peer)| (peer.called().into(), at)).collect();
        self.by_name.get_or_init(index).get(name).copied()
    }

    fn lend(&mut self, at: usize) -> Option<&mut P> {
        self.dues.get_mut().touch(at);
        self.peers.get_mut(at)
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
        let at = self.peers.len();
        self.dues.get_mut().touch(at);
        if let Some(index) = self.by_name.get_mut() {
            index.insert(peer.called().into(), at);
        }
        if let Some(index) = self.by_key.get_mut() {
            index.insert(peer.key(), at);
        }
        if let Some((index, id)) = self.by_id.get_mut().zip(peer.id()) {
            index.insert(id, at);
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

    /// They are at other places.
    fn moved(&mut self) {
        let touched = (0..self.peers.len()).collect();
        *self.dues.get_mut() = Dues { touched, ..Dues::default() };
        self.by_id.take();
        self.by_key.take();
        self.by_name.take();
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
    pub fn due_by(&self, now: Instant) -> Vec<PublicKey> {
        let dues = self.follow();
        let due = dues.in_turn.range(..=(now, usize::MAX));
        due.map(|(_, at)| self.peers[*at].key()).collect()
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

    /// A peer that is known by a number.
    struct Thing(u8, Option<Instant>);

    fn key(n: u8) -> PublicKey {
        PublicKey::from_bytes([n; 32])
    }

    fn id(n: u8) -> PeerId {
        PeerId::from_index(1000 + usize::from(n))
    }

    const NAMES: [&str; 3] = ["ship", "yacht", "island"];

    impl Entry for Thing {
        fn key(&self) -> PublicKey {
            key(self.0)
        }
        fn id(&self) -> Option<PeerId> {
            (self.0 != 7).then(|| id(self.0))
        }
        fn called(&self) -> &str {
            NAMES.get(usize::from(self.0)).unwrap_or(&"another")
        }
        fn due(&self) -> Option<Instant> {
            self.1
        }
    }

    fn at(seconds: u64) -> Option<Instant> {
        Some(Instant::ZERO + Duration::from_secs(seconds))
    }

    fn table(of: impl IntoIterator<Item = u8>) -> PeerTable<Thing> {
        let mut table = PeerTable::default();
        of.into_iter().for_each(|n| table.push(Thing(n, at(100 - u64::from(n)))));
        table
    }

    /// Two that change their names, at a reload.
    #[test]
    fn a_peer_is_found_by_the_name_that_it_has_now() {
        let mut table = table(0..2);
        let called = |table: &PeerTable<Thing>, name| table.called(name).map(Thing::due);
        assert_eq!(
            [called(&table, "ship"), called(&table, "yacht")],
            [Some(at(100)), Some(at(99))]
        );
        table.peers.iter_mut().for_each(|peer| peer.0 = 1 - peer.0);
        table.on_renamed();
        assert_eq!(
            [called(&table, "ship"), called(&table, "yacht")],
            [Some(at(99)), Some(at(100))]
        );
    }

    #[test]
    fn a_peer_is_found_by_its_key_its_id_and_its_name_whenever_it_came() {
        let mut table = table(0..9);
        let found = |table: &PeerTable<Thing>, n: u8| {
            let of = |peer: Option<&Thing>| peer.map(|peer| peer.0);
            [of(table.with_key(&key(n))), of(table.with_id(id(n)))]
        };
        assert_eq!(found(&table, 3), [Some(3); 2]);
        assert_eq!(found(&table, 7), [Some(7), None], "no other shard's id is known");
        assert_eq!(found(&table, 9), [None; 2]);
        assert_eq!(table.called("yacht").map(|peer| peer.0), Some(1));
        assert_eq!((table.place_called("island"), table.place_called("plane")), (Some(2), None));
        // One that comes when the indices are there, and others that move when one goes.
        table.push(Thing(9, None));
        assert_eq!(found(&table, 9), [Some(9); 2]);
        assert_eq!(table.take_out(|peer| peer.0 == 1).len(), 1);
        assert_eq!((found(&table, 1), found(&table, 9)), ([None; 2], [Some(9); 2]));
        assert!(table.called("yacht").is_none());
        assert_eq!(table.place_called("island"), Some(1));
    }

    #[test]
    fn who_is_due_follows_every_change() {
        let mut table = table(0..10);
        assert_eq!(table.due(), at(91));
        table.with_id_mut(id(3)).expect("it is there").1 = at(5);
        table.with_key_mut(&key(4)).expect("it is there").1 = at(6);
        let both = vec![key(3), key(4)];
        assert_eq!((table.due(), table.due_by(at(6).unwrap())), (at(5), both));
        table.with_id_mut(id(3)).expect("it is there").1 = None;
        assert_eq!(table.due(), at(6));
        assert_eq!(table.take_out(|it| it.0 == 4 || it.0 == 9).len(), 2);
        assert_eq!((table.due(), table.len()), (at(92), 8));
        table.iter_mut().for_each(|it| it.1 = None);
        assert_eq!((table.due(), table.due_by(Instant::FAR_FUTURE)), (None, vec![]));
        table.push(Thing(20, at(1)));
        assert_eq!(table.due(), at(1));
        assert_eq!((table.take_out(|_| true).len(), table.due()), (9, None));
    }
}
