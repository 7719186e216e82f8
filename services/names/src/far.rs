//! The half at the hub: asks the servers, and learns which names go together.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

use crate::Key;
use crate::cache::{Cache, Found};
use crate::exchange::Frame;
use crate::message::{self, Answer, Query};

/// Memory of the cache.
const MEMORY: usize = 64 << 20;
/// Names that follow another within so many milliseconds go together with it.
const TOGETHER: u64 = 3_000;
/// How many are learned: questions that others follow, and followers of each. A browser asks three of
/// a host, so that a page has eight.
const MOST_LEADERS: usize = 16_384;
const MOST_FOLLOWERS: usize = 24;
/// Questions of a peer that are remembered for that.
const MOST_RECENT: usize = 32;
/// Of pages that bring the names they need: how long ago a question for the page's own name may have
/// been, in milliseconds; how many questions a page has (for A, AAAA and HTTPS); and how many hosts it
/// brings for each.
const LATELY: u64 = 60_000;
const MOST_KINDS: usize = 3;
const MOST_BROUGHT: usize = 8;
/// Questions that are open at servers. A peer has no more of them than are free: servers that do not
/// answer one are not to keep the others from asking.
const MOST_DIALS: usize = 2048;
/// Bytes of answers that are handed on together. What is more a peer asks for itself: its stream
/// would not hold it.
const MOST_OUT: usize = 1 << 20;
/// Questions that wait for one answer: a terminal's cache asks once for all of its hosts.
const MOST_IDS: usize = 64;
/// A peer that may speak with a server is taken to for so long.
const PERMITTED: u64 = 60_000;
const MOST_PERMITTED: usize = 16_384;

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Do {
    /// To the half at this peer.
    Send(String, Frame),
    /// Ask the server for the peer, and call [`Far::on_answer`].
    Dial {
        /// Its number.
        dial: u64,
        /// For whom.
        peer: String,
        /// For which host of its.
        client: SocketAddr,
        /// Whom to ask.
        server: SocketAddr,
        /// What: a message without a number.
        query: Vec<u8>,
    },
}

struct Dial {
    peer: String,
    client: SocketAddr,
    key: Key,
    /// Whose numbers it answers; none: it goes along.
    ids: Vec<u32>,
}

/// What a peer's host asked lately.
struct Question {
    at: u64,
    client: SocketAddr,
    key: Key,
    /// The names that pages have brought for it.
    brought: Vec<Vec<u8>>,
}

/// See the module.
pub struct Far {
    cache: Cache,
    dials: BTreeMap<u64, Dial>,
    last: u64,
    followers: BTreeMap<Key, VecDeque<Key>>,
    /// Leaders as they were learned: the oldest is forgotten first.
    leaders: VecDeque<Key>,
    recent: BTreeMap<String, VecDeque<(u64, Key)>>,
    /// The last questions of each peer, newest last.
    questions: BTreeMap<String, VecDeque<Question>>,
    permitted: BTreeMap<(String, SocketAddr), u64>,
    out: Vec<Do>,
    /// Bytes of answers in it.
    out_bytes: usize,
}

impl Default for Far {
    fn default() -> Far {
        let (dials, followers, leaders) = Default::default();
        let (recent, questions, permitted, out, out_bytes) = Default::default();
        let cache = Cache::new(MEMORY);
        Far {
            cache,
            dials,
            last: 0,
            followers,
            leaders,
            recent,
            questions,
            permitted,
            out,
            out_bytes,
        }
    }
}

impl Far {
    /// What is to be done since it was asked last.
    pub fn take(&mut self) -> Vec<Do> {
        self.out_bytes = 0;
        std::mem::take(&mut self.out)
    }

    /// The other half says something. False: it broke the protocol.
    pub fn on_frame(&mut self, now: u64, peer: &str, frame: Frame) -> bool {
        let Frame::Ask { id, waits, client, server, query } = frame else { return false };
        // The other half asks only what it wrote itself.
        if Query::parse(&query).is_none_or(|q| q.canonical != query) {
            return false;
        }
        let key = (server, query);
        if waits {
            self.learn(now, peer, &key);
            self.note(now, peer, client, &key);
        }
        if self.may(now, peer, server)
            && waits
            && let Some(Found::Fresh { answer, age, .. }) = self.cache.find(now, &key)
        {
            let message = answer.aged(Some(age));
            self.send(peer, Frame::Answer { id, message });
            self.send_along(now, peer, client, &key);
        } else {
            self.dial(peer, client, key, Some(id));
        }
        true
    }

    /// May this peer speak with the server, as far as is known?
    fn may(&self, now: u64, peer: &str, server: SocketAddr) -> bool {
        self.permitted.get(&(peer.to_owned(), server)).is_some_and(|until| *until > now)
    }

    /// A page is on its way to the peer: its own host in the first line, and in the others the hosts
    /// that it will need, whose records go ahead. Each is asked as the page's own name was.
    pub fn on_page(&mut self, now: u64, peer: &str, hosts: &[u8]) {
        let Ok(hosts) = std::str::from_utf8(hosts) else { return };
        let mut names = hosts.lines().map(message::name);
        let Some(page) = names.next().flatten() else { return };
        let others: Vec<Vec<u8>> = names.flatten().take(MOST_BROUGHT).collect();
        let Some(questions) = self.questions.get_mut(peer) else { return };
        let is_its = |q: &&mut Question| {
            now.saturating_sub(q.at) <= LATELY && message::name_of(&q.key.1) == Some(&page)
        };
        let mut todo = Vec::new();
        for question in questions.iter_mut().rev().filter(is_its).take(MOST_KINDS) {
            for name in &others {
                if question.brought.len() >= MOST_BROUGHT || question.brought.contains(name) {
                    continue;
                }
                question.brought.push(name.clone());
                let query = message::with_name(&question.key.1, name);
                // Only what near could have asked so.
                let query = query.filter(|q| Query::parse(q).is_some_and(|p| p.canonical == *q));
                let (leader, server) = (question.key.clone(), question.key.0);
                todo.extend(query.map(|query| (question.client, leader, (server, query))));
            }
        }
        for (client, leader, key) in todo {
            self.follow(leader, &key);
            match self.may(now, peer, key.0) {
                true => self.send_one_along(now, peer, client, key),
                false => self.dial(peer, client, key, None),
            }
        }
    }

    fn note(&mut self, now: u64, peer: &str, client: SocketAddr, key: &Key) {
        let questions = self.questions.entry(peer.to_owned()).or_default();
        questions.retain(|q| now.saturating_sub(q.at) <= LATELY && q.key != *key);
        questions.push_back(Question { at: now, client, key: key.clone(), brought: Vec::new() });
        if questions.len() > MOST_RECENT {
            questions.pop_front();
        }
    }

    fn has_room_for(&self, message: &[u8]) -> bool {
        self.out_bytes + message.len() <= MOST_OUT
    }

    fn send(&mut self, peer: &str, frame: Frame) {
        let frame = match frame {
            Frame::Answer { id, message } if !self.has_room_for(&message) => Frame::Failed { id },
            Frame::Along { message, .. } if !self.has_room_for(&message) => return,
            frame => frame,
        };
        if let Frame::Answer { message, .. } | Frame::Along { message, .. } = &frame {
            self.out_bytes += message.len();
        }
        self.out.push(Do::Send(peer.to_owned(), frame));
    }

    fn dial(&mut self, peer: &str, client: SocketAddr, key: Key, id: Option<u32>) {
        let mut dials = self.dials.values_mut().filter(|dial| dial.peer == peer);
        if let Some(dial) = dials.find(|dial| dial.key == key) {
            if dial.ids.len() < MOST_IDS {
                dial.ids.extend(id);
            } else if let Some(id) = id {
                self.send(peer, Frame::Failed { id });
            }
        } else if self.dials_of(peer) >= MOST_DIALS - self.dials.len() {
            if let Some(id) = id {
                self.send(peer, Frame::Failed { id });
            }
        } else {
            self.last += 1;
            let (dial, server, query) = (self.last, key.0, key.1.clone());
            let ids = id.into_iter().collect();
            self.dials.insert(dial, Dial { peer: peer.to_owned(), client, key, ids });
            self.out.push(Do::Dial { dial, peer: peer.to_owned(), client, server, query });
        }
    }

    fn dials_of(&self, peer: &str) -> usize {
        self.dials.values().filter(|dial| dial.peer == peer).count()
    }

    /// What a server said; `None`: nothing that counts.
    pub fn on_answer(&mut self, now: u64, dial: u64, message: Option<&[u8]>) {
        let Some(Dial { peer, client, key, ids }) = self.dials.remove(&dial) else { return };
        let answer = message.and_then(|message| {
            Answer::parse(&key.1, message).or_else(|| Answer::of_failure(&key.1, message))
        });
        let Some(answer) = answer else {
            ids.into_iter().for_each(|id| self.send(&peer, Frame::Failed { id }));
            return;
        };
        self.permit(now, &peer, key.0);
        let message = answer.aged(Some(0));
        // One that the exchange cannot hold is for the client to ask for itself.
        let is_short = !Frame::Answer { id: 0, message: message.clone() }.encode().is_empty();
        for &id in &ids {
            let frame = match is_short && self.has_room_for(&message) {
                true => Frame::Answer { id, message: message.clone() },
                false => Frame::Failed { id },
            };
            self.send(&peer, frame);
        }
        let keeps = answer.ttl > 0;
        self.cache.keep(now, key.clone(), answer);
        if ids.is_empty() && keeps {
            self.send(&peer, Frame::Along { server: key.0, query: key.1, message });
        } else if !ids.is_empty() {
            self.send_along(now, &peer, client, &key);
        }
    }

    fn permit(&mut self, now: u64, peer: &str, server: SocketAddr) {
        if self.permitted.len() >= MOST_PERMITTED {
            self.permitted.retain(|_, until| *until > now);
        }
        if self.permitted.len() < MOST_PERMITTED {
            self.permitted.insert((peer.to_owned(), server), now + PERMITTED);
        }
    }

    /// Sends what follows a name, or asks for it first.
    fn send_along(&mut self, now: u64, peer: &str, client: SocketAddr, leader: &Key) {
        for key in self.followers.get(leader).cloned().unwrap_or_default() {
            self.send_one_along(now, peer, client, key);
        }
    }

    fn send_one_along(&mut self, now: u64, peer: &str, client: SocketAddr, key: Key) {
        match self.cache.find(now, &key) {
            Some(Found::Fresh { answer, age, .. }) => {
                let message = answer.aged(Some(age));
                self.send(peer, Frame::Along { server: key.0, query: key.1, message });
            }
            _ => self.dial(peer, client, key, None),
        }
    }

    fn learn(&mut self, now: u64, peer: &str, key: &Key) {
        let recent = self.recent.entry(peer.to_owned()).or_default();
        recent.retain(|(at, before)| now.saturating_sub(*at) <= TOGETHER && before != key);
        let leaders: Vec<Key> =
            recent.iter().map(|(_, k)| k).filter(|k| k.0 == key.0).cloned().collect();
        recent.push_back((now, key.clone()));
        if recent.len() > MOST_RECENT {
            recent.pop_front();
        }
        for leader in leaders {
            self.follow(leader, key);
        }
    }

    /// The second goes together with the first.
    fn follow(&mut self, leader: Key, key: &Key) {
        if !self.followers.contains_key(&leader) {
            self.leaders.push_back(leader.clone());
        }
        let followers = self.followers.entry(leader).or_default();
        followers.retain(|follower| follower != key);
        followers.push_back(key.clone());
        if followers.len() > MOST_FOLLOWERS {
            followers.pop_front();
        }
        while self.leaders.len() > MOST_LEADERS {
            if let Some(oldest) = self.leaders.pop_front() {
                self.followers.remove(&oldest);
            }
        }
    }

    /// The peer's half has gone.
    pub fn on_lost(&mut self, peer: &str) {
        self.recent.remove(peer);
        self.questions.remove(peer);
        self.permitted.retain(|(of, _), _| of != peer);
    }
}

#[cfg(test)]
mod tests;
