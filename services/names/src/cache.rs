//! Answers by server and question, and at the terminal by peer, too; as many as memory is allowed
//! for. Each answer is held by the one for whom it was asked. Of the one who holds most of the
//! memory what was used least recently goes first, so that names that one makes up displace his
//! own.

use std::collections::BTreeMap;

use units::Shares;

use crate::Key;
use crate::message::Answer;

/// How long answers are kept past their time, in seconds (RFC 8767 proposes one to three days).
const STALE: u64 = 86_400;
/// How long a server that failed is spared, in milliseconds (RFC 8767, section 5).
const AFTER_FAILURE: u64 = 30_000;
/// What an answer takes beside its bytes.
const OVERHEAD: usize = 300;

struct Entry<H> {
    answer: Answer,
    holder: H,
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
pub struct Cache<K, G, M> {
    entries: BTreeMap<K, Entry<(G, M)>>,
    /// The keys, by when they were used last.
    order: BTreeMap<u64, K>,
    /// The memory of each holder, by when it was used last.
    shares: Shares<G, M, u64>,
    last: u64,
    limit: usize,
}

impl<K: Name, G: Ord + Clone, M: Ord + Clone> Cache<K, G, M> {
    /// Of `limit` bytes.
    pub fn new(limit: usize) -> Cache<K, G, M> {
        let (entries, order) = Default::default();
        Cache { entries, order, shares: Shares::default(), last: 0, limit }
    }

    /// What is known of a question.
    pub fn find(&mut self, now: u64, key: &K) -> Option<Found<'_>> {
        let past = |entry: &Entry<_>| now.saturating_sub(entry.came) / 1000;
        let gone = past(self.entries.get(key)?) > u64::from(self.entries[key].answer.ttl) + STALE;
        if gone {
            self.remove(key);
            return None;
        }
        self.last += 1;
        let entry = self.entries.get_mut(key)?;
        self.order.remove(&entry.used);
        self.order.insert(self.last, key.clone());
        self.shares.remove(&entry.holder, &entry.used);
        self.shares.add(&entry.holder, self.last, cost(key, &entry.answer));
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

    /// Keeps an answer for as long as it says, for the one who has asked for it. Who kept it before
    /// goes on holding it: nobody takes what is another's by asking again.
    pub fn keep(&mut self, now: u64, key: K, holder: (G, M), answer: Answer) {
        if answer.ttl == 0 {
            // It is not to be given again, and what it takes the place of even less.
            if !answer.is_failure() {
                self.remove(&key);
            }
            return;
        }
        let holder = self.remove(&key).unwrap_or(holder);
        self.last += 1;
        let used = self.last;
        self.shares.add(&holder, used, cost(&key, &answer));
        self.order.insert(used, key.clone());
        self.entries.insert(key, Entry { answer, holder, came: now, used, hits: 0, spared: 0 });
        while self.shares.sum() > self.limit
            && let Some(oldest) = self.shares.gives_way()
            && let Some(key) = self.order.get(oldest).cloned()
        {
            self.remove(&key);
        }
    }

    fn remove(&mut self, key: &K) -> Option<(G, M)> {
        let entry = self.entries.remove(key)?;
        self.order.remove(&entry.used);
        self.shares.remove(&entry.holder, &entry.used);
        Some(entry.holder)
    }

    /// How many there are, and their memory.
    pub fn size(&self) -> (usize, usize) {
        (self.entries.len(), self.shares.sum())
    }
}

fn cost(key: &impl Name, answer: &Answer) -> usize {
    2 * key.size() + answer.size() + OVERHEAD
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Query;
    use crate::message::tests::{answer, question};

    #[test]
    fn an_answer_that_may_not_be_kept_takes_the_place_of_the_one_before() {
        let query = Query::parse(&question(1, "a.example", None)).unwrap().canonical;
        let parsed = |ttl, code| {
            let mut message = answer(&query, ttl, 1);
            message[3] |= code;
            Answer::parse(&query, &message).unwrap()
        };
        let mut cache: Cache<Named, (), ()> = Cache::new(10_000);
        let key = || Named(query.clone());
        cache.keep(0, key(), ((), ()), parsed(60, 0));
        cache.keep(1_000, key(), ((), ()), parsed(0, 2));
        assert!(
            matches!(cache.find(2_000, &key()), Some(Found::Fresh { .. })),
            "the server failed"
        );
        cache.keep(3_000, key(), ((), ()), parsed(0, 0));
        assert!(cache.find(4_000, &key()).is_none());
        assert_eq!(cache.size(), (0, 0));
    }

    #[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
    struct Named(Vec<u8>);

    impl Name for Named {
        fn size(&self) -> usize {
            self.0.len()
        }
    }
}
