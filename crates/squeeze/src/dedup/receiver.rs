//! One link's receiving side: the store, what is waited for, and what the peer is told.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use super::chunker::MAX_CHUNK;
use super::decoder::Bad;
use super::keys::{Id, Keys, Tag, tag};
use super::link::Limits;
use super::store::{Found, Loaded, Op, Store, Written};
use super::wire::{MAX_RANGES, MAX_WANTED, Message, ranges};

/// Chunks that are waited for at once, on disk or from the peer. More streams wait in turn.
const MAX_PENDING: usize = 1024;
/// As many of them may be for what streams will come to.
const MAX_AHEAD: usize = 512;
/// Bytes of chunks that are there and that their streams have not fetched: beyond this those
/// are given up whose hosts take nothing.
const MAX_HERE: usize = 4 << 20;
/// News that the peer has not been told: beyond this it is told everything anew.
const MAX_NEWS: usize = 16 * 1024;

/// The receiving half of a link's deduplication.
pub struct Receiver {
    keys: Arc<Keys>,
    /// What is held.
    pub store: Store,
    pending: BTreeMap<u64, Pending>,
    /// Those of them that are there, and their bytes.
    here: BTreeSet<u64>,
    here_bytes: usize,
    /// Streams for which there was no room in `pending`.
    crowded: VecDeque<u64>,
    /// Streams that can go on.
    ready: VecDeque<u64>,
    to_want: BTreeSet<u64>,
    held_news: BTreeSet<u64>,
    gone_news: BTreeSet<u64>,
    tell_all: bool,
    /// Above all numbers that were named.
    next: u64,
    /// Chunks that have not come whole, by stream; when they were last added to, and the
    /// bytes of all, of which there is a limit.
    partial: BTreeMap<u64, Partial>,
    oldest: BTreeMap<u64, u64>,
    turn: u64,
    assembling: usize,
    assembling_limit: usize,
    asked: u64,
    gone: u64,
}

#[derive(Default)]
struct Partial {
    turn: u64,
    bytes: Vec<u8>,
}

/// A chunk that a stream waits for.
struct Pending {
    state: State,
    /// The streams.
    keys: Vec<u64>,
}

enum State {
    /// From disk.
    Loading,
    /// From the peer.
    Asked,
    /// There.
    Here { content: Arc<[u8]>, id: Id, from_peer: bool },
}

impl Receiver {
    pub(super) fn new(keys: Arc<Keys>, store: Store, assembling: usize) -> Receiver {
        let next = store.numbers().next_back().map_or(1, |n| n + 1);
        Receiver {
            keys,
            store,
            pending: BTreeMap::new(),
            here: BTreeSet::new(),
            here_bytes: 0,
            crowded: VecDeque::new(),
            ready: VecDeque::new(),
            to_want: BTreeSet::new(),
            held_news: BTreeSet::new(),
            gone_news: BTreeSet::new(),
            tell_all: true,
            next,
            partial: BTreeMap::new(),
            oldest: BTreeMap::new(),
            turn: 0,
            assembling: 0,
            assembling_limit: assembling,
            asked: 0,
            gone: 0,
        }
    }

    pub(super) fn set_limits(&mut self, limits: &Limits) {
        self.assembling_limit = limits.assembling;
        self.store.set_limits(limits.memory, limits.disk);
        self.note_gone();
    }

    /// A new session: its streams are new, and the peer is told what is held.
    pub(super) fn begin(&mut self) {
        self.pending.clear();
        self.here.clear();
        self.here_bytes = 0;
        self.crowded.clear();
        self.ready.clear();
        self.to_want.clear();
        self.partial.clear();
        self.oldest.clear();
        self.assembling = 0;
        self.tell_all = true;
    }

    /// Forgets everything, because the files are lost: the store is new, under `epoch`, a
    /// random number other than 0 that no store of this node had before. For tests.
    #[doc(hidden)]
    pub fn rebuild(&mut self, epoch: u64) {
        self.store.rebuild(epoch);
        self.ask_for_what_loads();
        self.tell_all = true;
    }

    /// Files do not answer, or do again: until they do, streams do not wait for them but for
    /// the peer.
    pub fn set_late(&mut self, late: bool) {
        self.store.set_late(late);
        if late {
            self.ask_for_what_loads();
        }
    }

    fn ask_for_what_loads(&mut self) {
        for (number, pending) in &mut self.pending {
            if matches!(pending.state, State::Loading) {
                pending.state = State::Asked;
                self.to_want.insert(*number);
            }
        }
    }

    /// Chunks that the peer was asked for, ever.
    pub fn asked(&self) -> u64 {
        self.asked
    }

    /// Chunks that the peer was told are not kept, or no more, ever.
    pub fn gone(&self) -> u64 {
        self.gone
    }

    /// Is there news for the peer that can wait ([`Dedup::poll_message`](super::Dedup))?
    pub fn has_news(&self) -> bool {
        !self.held_news.is_empty() || !self.gone_news.is_empty()
    }

    /// The next stream (by its key, see [`ItemDecoder::show`](super::ItemDecoder::show)) whose
    /// decoder may go on.
    pub fn poll_ready(&mut self) -> Option<u64> {
        self.ready.pop_front()
    }

    /// The next thing to be done with files. An [`Op::Append`] is answered by
    /// [`Receiver::appended`], an [`Op::Load`] by [`Receiver::loaded`].
    pub fn poll_op(&mut self) -> Option<Op> {
        self.store.poll_op()
    }

    /// An [`Op::Append`] is done, or has failed.
    pub fn appended(&mut self, segment: u64, written: Written) {
        self.store.appended(segment, written);
        self.note_gone();
    }

    /// An [`Op::Load`] is done. Bytes that are not the chunk's go nowhere: the peer is asked.
    pub fn loaded(&mut self, number: u64, segment: u64, loaded: Loaded<'_>) {
        let content = self.store.loaded(number, segment, loaded);
        self.note_gone();
        let id = self.store.id(number).copied();
        let waits = |p: &&mut Pending| matches!(p.state, State::Loading);
        let Some(pending) = self.pending.get_mut(&number).filter(waits) else { return };
        match (content, id) {
            (Some(content), Some(id)) => self.arrived(number, content, id, false),
            _ => match self.store.find(number) {
                Found::Loading => {} // It has been moved.
                Found::Memory(_) => {
                    let keys = self.drop_pending(number).map(|p| p.keys);
                    self.ready.extend(keys.into_iter().flatten());
                }
                Found::No => {
                    pending.state = State::Asked;
                    self.to_want.insert(number);
                }
            },
        }
    }

    /// A chunk that streams wait for is there.
    fn arrived(&mut self, number: u64, content: Arc<[u8]>, id: Id, from_peer: bool) {
        while self.here_bytes + content.len() > MAX_HERE && self.make_room() {}
        let Some(pending) = self.pending.get_mut(&number) else { return };
        self.here_bytes += content.len();
        self.here.insert(number);
        pending.state = State::Here { content, id, from_peer };
        self.ready.extend(&pending.keys);
        self.ready.extend(self.crowded.pop_front());
    }

    /// Nothing waits for this chunk any more.
    fn drop_pending(&mut self, number: u64) -> Option<Pending> {
        let pending = self.pending.remove(&number)?;
        if let State::Here { content, .. } = &pending.state {
            self.here_bytes -= content.len();
            self.here.remove(&number);
        }
        Some(pending)
    }

    // ---- for decoders ----------------------------------------------------------------

    /// The chunk of this number, if its id begins with `wanted`; `None`: `key` waits for it.
    pub(super) fn get(
        &mut self,
        number: u64,
        wanted: Tag,
        key: u64,
    ) -> Result<Option<Arc<[u8]>>, Bad> {
        if let Some(pending) = self.pending.get_mut(&number) {
            let State::Here { content, id, from_peer } = &pending.state else {
                if !pending.keys.contains(&key) {
                    pending.keys.push(key);
                    self.wake_next();
                }
                return Ok(None);
            };
            let (content, same, from_peer) = (content.clone(), tag(id) == wanted, *from_peer);
            if same || from_peer {
                self.leave_one(number, key);
                return if same { Ok(Some(content)) } else { Err(Bad::Chunk) };
            }
            // The two sides do not mean the same by this number: whoever waits asks anew.
            let keys = self.drop_pending(number).map(|p| p.keys).into_iter().flatten();
            self.ready.extend(keys.filter(|k| *k != key));
        }
        self.look(number, wanted, key, MAX_PENDING)
    }

    /// The same for what the stream will come to: it is read, or asked for, if it is not in
    /// memory. What is read must not drive out what others are about to fetch. False: there is no
    /// room for it now.
    pub(super) fn ahead(&mut self, number: u64, wanted: Tag, key: u64) -> bool {
        if self.pending.contains_key(&number) {
            return true;
        }
        let is_read = self.store.is_on_disk(number);
        if self.pending.len() >= MAX_AHEAD {
            return false;
        }
        // A disk answers soon, whenever it is asked.
        if !is_read || !self.store.reads_enough() && self.here_bytes < MAX_HERE / 2 {
            let _ = self.look(number, wanted, key, MAX_AHEAD);
        }
        true
    }

    /// The stream has not looked at all that it could.
    pub(super) fn look_again(&mut self, key: u64) {
        self.ready.extend([key]);
    }

    /// A stream that waits for a place may find one: it was woken for one that nobody took.
    fn wake_next(&mut self) {
        if self.pending.len() < MAX_PENDING || !self.here.is_empty() {
            self.ready.extend(self.crowded.pop_front());
        }
    }

    /// Looks up what is not among `pending`.
    fn look(
        &mut self,
        number: u64,
        wanted: Tag,
        key: u64,
        most: usize,
    ) -> Result<Option<Arc<[u8]>>, Bad> {
        if self.store.id(number).is_some_and(|id| tag(id) != wanted) {
            // The two sides do not mean the same by this number.
            self.store.remove(number);
        }
        let found = match self.store.find(number) {
            Found::Memory(content) => {
                self.wake_next();
                return Ok(Some(content));
            }
            found => found,
        };
        if self.pending.len() >= most && !self.make_room() {
            if !self.crowded.contains(&key) {
                self.crowded.push_back(key);
            }
            return Ok(None);
        }
        let state = match found {
            Found::Loading => State::Loading,
            _ => {
                self.to_want.insert(number);
                State::Asked
            }
        };
        self.pending.insert(number, Pending { state, keys: vec![key] });
        Ok(None)
    }

    /// Gives up a chunk that is there and that its streams do not fetch, because their hosts
    /// take nothing.
    fn make_room(&mut self) -> bool {
        let Some(number) = self.here.first().copied() else { return false };
        self.drop_pending(number).is_some()
    }

    /// A stream does not wait for this chunk any more.
    fn leave_one(&mut self, number: u64, key: u64) {
        let Some(pending) = self.pending.get_mut(&number) else { return };
        pending.keys.retain(|k| *k != key);
        if pending.keys.is_empty() {
            self.drop_pending(number);
            self.to_want.remove(&number);
            self.ready.extend(self.crowded.pop_front());
        }
    }

    /// A stream is over.
    pub(super) fn leave(&mut self, key: u64) {
        self.crowded.retain(|k| *k != key);
        let of_it = self.pending.iter().filter(|(_, p)| p.keys.contains(&key));
        let numbers: Vec<u64> = of_it.map(|(n, _)| *n).collect();
        numbers.into_iter().for_each(|number| self.leave_one(number, key));
        // It may have been woken for a place.
        self.wake_next();
        self.drop_partial(key);
    }

    /// More of a chunk has come, of which there was so much `before`. If all streams' are too
    /// much together, that which rested for longest is not kept.
    pub(super) fn assemble(&mut self, key: u64, before: usize, more: &[u8]) {
        let partial = self.partial.entry(key).or_default();
        if partial.bytes.len() != before || before + more.len() > MAX_CHUNK {
            self.drop_partial(key);
            return; // Its beginning was given up.
        }
        self.oldest.remove(&partial.turn);
        self.turn += 1;
        partial.turn = self.turn;
        partial.bytes.extend_from_slice(more);
        self.assembling += more.len();
        self.oldest.insert(self.turn, key);
        while self.assembling > self.assembling_limit {
            let Some((_, oldest)) = self.oldest.first_key_value() else { break };
            self.drop_partial(*oldest);
        }
    }

    fn drop_partial(&mut self, key: u64) -> Option<Vec<u8>> {
        let partial = self.partial.remove(&key)?;
        self.oldest.remove(&partial.turn);
        self.assembling -= partial.bytes.len();
        Some(partial.bytes)
    }

    /// The chunk of `len` bytes that a stream brought ends here, and is held under `number`
    /// if there was room for all of it and there is still.
    pub(super) fn end_chunk(&mut self, key: u64, len: usize, number: Option<u64>) {
        let content = self.drop_partial(key).filter(|bytes| bytes.len() == len);
        match (number, content) {
            (Some(number), Some(content)) => self.keep(number, &content),
            (Some(number), None) => {
                self.next = self.next.max(number + 1);
                // A number is used once (L-DD-5): what it meant stays.
                self.tell(number, self.store.id(number).is_some());
            }
            (None, _) => {}
        }
    }

    /// A chunk has come whole.
    pub(super) fn keep(&mut self, number: u64, content: &[u8]) {
        self.next = self.next.max(number + 1);
        if self.store.id(number).is_some() {
            return; // A number is used once (L-DD-5): what it meant stays.
        }
        let id = self.keys.id(content);
        let held = self.store.insert(number, id, content.into());
        self.tell(number, held);
        self.note_gone();
    }

    /// What is told of `pending` beside it is true of it.
    #[cfg(any(test, fuzzing))]
    pub(super) fn check(&self) {
        let mut here = BTreeSet::new();
        let mut bytes = 0;
        for (number, pending) in &self.pending {
            assert!(!pending.keys.is_empty(), "nobody waits for {number}");
            if let State::Here { content, .. } = &pending.state {
                here.insert(*number);
                bytes += content.len();
            }
        }
        assert_eq!((&here, bytes), (&self.here, self.here_bytes));
    }

    /// Chunks that are waited for, news that was not told, bytes that have not come whole.
    #[cfg(any(test, fuzzing))]
    pub(super) fn burden(&self) -> (usize, usize, usize) {
        (self.pending.len(), self.held_news.len() + self.gone_news.len(), self.assembling)
    }

    // ---- messages --------------------------------------------------------------------

    fn tell(&mut self, number: u64, held: bool) {
        self.gone += u64::from(!held);
        if self.tell_all {
            return;
        }
        let (news, other) = match held {
            true => (&mut self.held_news, &mut self.gone_news),
            false => (&mut self.gone_news, &mut self.held_news),
        };
        other.remove(&number);
        news.insert(number);
        self.tell_all |= self.held_news.len() + self.gone_news.len() > MAX_NEWS;
    }

    fn note_gone(&mut self) {
        for number in self.store.take_gone() {
            self.tell(number, false);
        }
    }

    /// Everything that has no answer is said again.
    #[cfg(test)]
    pub(super) fn repeat(&mut self) {
        let asked = self.pending.iter().filter(|(_, p)| matches!(p.state, State::Asked));
        self.to_want.extend(asked.map(|(number, _)| *number));
        self.tell_all = true;
    }

    pub(super) fn handle(&mut self, message: &Message<'_>) {
        let Message::Bytes { number, content } = message else { return };
        let waits = |p: &&mut Pending| matches!(p.state, State::Asked);
        if self.pending.get_mut(number).filter(waits).is_none() {
            return;
        }
        let (id, content): (Id, Arc<[u8]>) = (self.keys.id(content), (*content).into());
        self.arrived(*number, content.clone(), id, true);
        self.to_want.remove(number);
        let held = self.store.insert(*number, id, content);
        self.next = self.next.max(number + 1);
        self.tell(*number, held);
        self.note_gone();
    }

    pub(super) fn poll(&mut self, news: bool, out: &mut Vec<u8>) -> bool {
        let epoch = self.store.epoch();
        if self.tell_all {
            self.tell_all = false;
            self.held_news.clear();
            self.gone_news.clear();
            let mut held = ranges(self.store.numbers());
            // The oldest are told no more where they lie scattered: they age away.
            held.drain(..held.len().saturating_sub(MAX_RANGES));
            Message::Store { epoch, next: self.next, held }.write(out);
            return true;
        }
        if !self.to_want.is_empty() {
            let mut wanted = Vec::new();
            while let Some(number) = self.to_want.pop_first() {
                wanted.push(number);
                if wanted.len() == MAX_WANTED {
                    break;
                }
            }
            self.asked += wanted.len() as u64;
            Message::Want(wanted).write(out);
            return true;
        }
        if !news || self.held_news.is_empty() && self.gone_news.is_empty() {
            return false;
        }
        let held = take_ranges(&mut self.held_news);
        let gone = take_ranges(&mut self.gone_news);
        Message::News { epoch, held, gone }.write(out);
        true
    }
}

fn take_ranges(numbers: &mut BTreeSet<u64>) -> Vec<(u64, u64)> {
    let mut all = ranges(numbers.iter().copied());
    all.truncate(MAX_RANGES);
    match all.last() {
        Some((_, last)) => *numbers = numbers.split_off(&(last + 1)),
        None => numbers.clear(),
    }
    all
}
