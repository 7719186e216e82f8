//! One link's sending side: what the peer holds, and what it may still ask for.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::catalogue::{Catalogue, Journal};
use super::chunker::MAX_CHUNK;
use super::keys::Keys;
use super::wire::Message;

/// See [`Sender::fair`].
const SHARE: usize = 9;

/// The sending half of a link's deduplication.
pub struct Sender {
    pub(super) keys: Arc<Keys>,
    pub(super) catalogue: Catalogue,
    /// Counts sessions: encoders of one before release nothing of this one's.
    pub(super) session: u64,
    /// Content that was referred to and that the receiver has not taken.
    sources: BTreeMap<u64, Source>,
    source_bytes: usize,
    source_limit: usize,
    /// Chunks that were referred to, ever.
    pub(super) referred: u64,
    /// What the peer asked for.
    wanted: BTreeSet<u64>,
}

struct Source {
    content: Arc<[u8]>,
    uses: u32,
}

impl Sender {
    pub(super) fn new(keys: Arc<Keys>, chunks: usize, sources: usize) -> Sender {
        Sender {
            keys,
            catalogue: Catalogue::new(chunks),
            session: 0,
            sources: BTreeMap::new(),
            source_bytes: 0,
            source_limit: sources,
            referred: 0,
            wanted: BTreeSet::new(),
        }
    }

    pub(super) fn set_limits(&mut self, chunks: usize, sources: usize) {
        self.catalogue.set_limit(chunks);
        self.source_limit = sources;
    }

    /// Takes over what an earlier run of the program wrote by [`Sender::poll_journal`].
    pub fn load_journal(&mut self, journal: &[u8]) {
        let keys = self.keys.clone();
        self.catalogue.load(&keys, journal);
    }

    /// The peer can be answered no more: nothing is referred to or named until it has told
    /// anew what it holds.
    pub fn mute(&mut self) {
        self.catalogue.begin();
    }

    /// What is to be written to the journal's file now. To be asked every few seconds, and
    /// when the program ends.
    pub fn poll_journal(&mut self) -> Option<Journal> {
        self.catalogue.journal(self.keys.clone())
    }

    /// What [`Sender::poll_journal`] gave could not be written. It is all written anew the
    /// next time.
    pub fn journal_failed(&mut self) {
        self.catalogue.journal_failed();
    }

    /// A new session: its streams are new, and the peer tells anew what it holds.
    pub(super) fn begin(&mut self) {
        self.catalogue.begin();
        self.session += 1;
        self.sources.clear();
        self.source_bytes = 0;
        self.wanted.clear();
    }

    /// Keeps content until it is released as often; false if there is no room for it.
    pub(super) fn keep(&mut self, number: u64, content: &[u8]) -> bool {
        if let Some(source) = self.sources.get_mut(&number) {
            source.uses += 1;
            return true;
        }
        if self.source_bytes + content.len() > self.source_limit {
            return false;
        }
        self.source_bytes += content.len();
        self.sources.insert(number, Source { content: content.into(), uses: 1 });
        true
    }

    pub(super) fn release(&mut self, number: u64) {
        let Some(source) = self.sources.get_mut(&number) else { return };
        source.uses -= 1;
        if source.uses == 0 {
            self.source_bytes -= source.content.len();
            self.sources.remove(&number);
        }
    }

    /// Chunks that were referred to, ever.
    pub fn referred(&self) -> u64 {
        self.referred
    }

    /// What one direction may have under way that has `own` bytes under way already. Nothing of
    /// it can be taken back (L-DD-6), and hosts that take nothing are not to leave others
    /// without: the first half goes to whoever comes, and of the rest each direction may have a
    /// ninth of what others leave, so that ten of them leave a sixth of all; or a chunk, as
    /// long as that is not most of it.
    pub(super) fn fair(&self, own: usize) -> usize {
        let free = self.source_limit.saturating_sub(self.source_bytes.saturating_sub(own));
        let of_half = free.saturating_sub(self.source_limit / 2);
        of_half.max(free / SHARE).max(MAX_CHUNK.min(free / 2))
    }

    /// Is this chunk's content kept already, for others? Then to refer to it costs nothing.
    pub(super) fn keeps(&self, number: u64) -> bool {
        self.sources.contains_key(&number)
    }

    /// Bytes that are kept for what was referred to.
    pub fn sources(&self) -> usize {
        self.source_bytes
    }

    pub(super) fn handle(&mut self, message: &Message<'_>) {
        match message {
            Message::Store { epoch, next, held } => {
                self.catalogue.holds(*epoch, *next, held);
            }
            Message::News { epoch, held, gone } => {
                self.catalogue.news(*epoch, held, gone);
            }
            Message::Want(numbers) => {
                for number in numbers {
                    // What has no source was taken or given up meanwhile: it is named anew
                    // when it comes again.
                    let answered = self.sources.contains_key(number);
                    self.catalogue.lacks(*number, answered);
                    if answered {
                        self.wanted.insert(*number);
                    }
                }
            }
            Message::Bytes { .. } => {}
        }
    }

    pub(super) fn poll(&mut self, out: &mut Vec<u8>) -> bool {
        while let Some(number) = self.wanted.pop_first() {
            if let Some(source) = self.sources.get(&number) {
                Message::Bytes { number, content: &source.content }.write(out);
                return true;
            }
        }
        false
    }
}
