//! Answers by server and question, and at the terminal by peer, too; as many as memory is allowed
//! for: what was used least recently goes first.

use std::collections::BTreeMap;

use crate::Key;
use crate::message::Answer;

/// How long answers are kept past their time, in seconds (RFC 8767 proposes one to three days).
const STALE: u64 = 86_400;
/// How long a server that failed is spared, in milliseconds (RFC 8767, section 5).
const AFTER_FAILURE: u64 = 30_000;
/// What an answer takes beside its bytes.
const OVERHEAD: usize = 300;

struct Entry {
    answer: Answer,
    /// When it came, in milliseconds.
    came: u64,
    used: u64,
    hits: u32,
    /// Until when its server is not asked again, in milliseconds.
    spared: u64,
}

/// What is known.
pub enum Found<'a> {
    /// It holds. `soon`: it is popular, and will not for much longer.
    Fresh {
        /// What was said.
        answer: &'a Answer,
        /// How long ago, in seconds.
        age: u32,
        /// Ask again.
        soon: bool,
    },
    /// It is past its time.
    Stale {
        /// What was said.
        answer: &'a Answer,
        /// The server failed when it was asked for a newer one, a moment ago.
        failed: bool,
    },
}

/// What an answer is known by.
pub trait Name: Ord + Clone {
    /// Bytes of it.
    fn size(&self) -> usize;
}

impl Name for Key {
    fn size(&self) -> usize {
        self.1.len()
    }
}

impl Name for (String, Key) {
    fn size(&self) -> usize {
        self.0.len() + self.1.size()
    }
}

/// See the module.
pub struct Cache<K = Key> {
    entries: BTreeMap<K, Entry>,
    /// The keys, by when they were used last.
    order: BTreeMap<u64, K>,
    last: u64,
    size: usize,
    limit: usize,
}

impl<K: Name> Cache<K> {
    /// Of `limit` bytes.
    pub fn new(limit: usize) -> Cache<K> {
        Cache { entries: BTreeMap::new(), order: BTreeMap::new(), last: 0, size: 0, limit }
    }

    /// What is known of a question.
    pub fn find(&mut self, now: u64, key: &K) -> Option<Found<'_>> {
        let past = |entry: &Entry| now.saturating_sub(entry.came) / 1000;
        let gone = past(self.entries.get(key)?) > u64::from(self.entries[key].answer.ttl) + STALE;
        if gone {
            self.remove(key);
            return None;
        }
        self.last += 1;
        let entry = self.entries.get_mut(key)?;
        self.order.remove(&entry.used);
        self.order.insert(self.last, key.clone());
        (entry.used, entry.hits) = (self.last, entry.hits.saturating_add(1));
        let (age, ttl) = (past(entry) as u32, entry.answer.ttl);
        let soon = entry.hits >= 2 && ttl - ttl.min(age) <= ttl / 10;
        let (answer, failed) = (&entry.answer, now < entry.spared);
        Some(match age < ttl {
            true => Found::Fresh { answer, age, soon },
            false => Found::Stale { answer, failed },
        })
    }

    /// The server failed when it was asked again.
    pub fn note_failure(&mut self, now: u64, key: &K) {
        if let Some(entry) = self.entries.get_mut(key) {
            entry.spared = now + AFTER_FAILURE;
        }
    }

    /// Keeps an answer for as long as it says.
    pub fn keep(&mut self, now: u64, key: K, answer: Answer) {
        if answer.ttl == 0 {
            return;
        }
        self.remove(&key);
        self.last += 1;
        self.size += cost(&key, &answer);
        self.order.insert(self.last, key.clone());
        self.entries.insert(key, Entry { answer, came: now, used: self.last, hits: 0, spared: 0 });
        while self.size > self.limit
            && let Some((_, oldest)) = self.order.first_key_value()
        {
            self.remove(&oldest.clone());
        }
    }

    fn remove(&mut self, key: &K) {
        if let Some(entry) = self.entries.remove(key) {
            self.order.remove(&entry.used);
            self.size -= cost(key, &entry.answer);
        }
    }

    /// How many there are, and their memory.
    pub fn size(&self) -> (usize, usize) {
        (self.entries.len(), self.size)
    }
}

fn cost(key: &impl Name, answer: &Answer) -> usize {
    2 * key.size() + answer.size() + OVERHEAD
}
