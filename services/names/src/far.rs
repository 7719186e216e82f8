//! The half at the hub: asks the servers, and learns which names go together.

mod ahead;
mod together;

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};

use service::quota::Quota;
use units::{Shares, is_private, one_host};

use crate::Key;
use crate::cache::{Cache, Found};
use crate::exchange::Frame;
use crate::message::{self, Answer, LARGEST, LONGEST_QUESTION, Query};
use ahead::Ahead;
use together::Together;

/// Memory of the cache. The peer for whom most of it was asked loses its own first.
const MEMORY: usize = 64 << 20;
/// Questions of a peer that are remembered for its pages.
const MOST_QUESTIONS: usize = 32;
/// Of pages that bring the names they need: how long ago a question for the page's own name may
/// have been, in milliseconds; how many questions a page has (for A, AAAA and HTTPS); and how many
/// hosts it brings for each.
const LATELY: u64 = 60_000;
const MOST_KINDS: usize = 3;
const MOST_BROUGHT: usize = 8;
/// Answers that go along with one because other peers' hosts asked for them.
const MOST_OF_OTHERS: usize = 8;
/// Questions that are open at servers ([`Quota`]), with those that were given up while the gateway
/// still tries to connect: servers that do not answer one are not to keep the others from asking.
const MOST_DIALS: usize = 2048;
/// Bytes of answers that are handed on together. What is more a peer asks for itself: its stream
/// would not hold it.
const MOST_OUT: usize = 1 << 20;
/// Questions that wait for one answer: a terminal's cache asks once for all of its hosts.
const MOST_IDS: usize = 64;
/// A peer that may speak with a server is taken to for so long. Of those that are remembered the
/// peer with the most loses its oldest.
const PERMITTED: u64 = 60_000;
const MOST_PERMITTED: usize = 16_384;

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Do {
    /// To the half at this peer.
    Send(String, Frame),
    /// Ask the server for the peer, and call [`Far::on_answer`], or [`Far::give_up`] and later
    /// [`Far::on_connect_over`].
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
    /// When a host asked it first that waits; `None`: its names are not learned.
    learned: Option<u64>,
    /// The half that asked is gone: its successor uses the same numbers again.
    orphan: bool,
}

/// What a peer's host asked lately.
struct Question {
    at: u64,
    client: SocketAddr,
    key: Key,
    /// The names that pages have brought for it.
    brought: Vec<Vec<u8>>,
}

/// A peer that may speak with a server.
struct Permit {
    until: u64,
    number: u64,
}

/// See the module.
pub struct Far {
    cache: Cache<(String, Key), String, ()>,
    dials: BTreeMap<u64, Dial>,
    /// The same, by who asks and what.
    dialled: BTreeMap<(String, Key), u64>,
    /// Those that were given up and count until the gateway has answered: the peer and its host.
    given_up: BTreeMap<u64, (String, IpAddr)>,
    quota: Quota<IpAddr>,
    last: u64,
    /// The number of the permit that was added last.
    added: u64,
    together: Together,
    ahead: Ahead,
    /// The last questions of each peer, newest last.
    questions: BTreeMap<String, VecDeque<Question>>,
    permitted: BTreeMap<(String, SocketAddr), Permit>,
    permits_of: Shares<String, (), (u64, (String, SocketAddr))>,
    out: Vec<Do>,
    /// Bytes of answers in it.
    out_bytes: usize,
}

impl Default for Far {
    fn default() -> Far {
        let (dials, dialled, given_up, together, ahead, questions) = Default::default();
        let (permitted, permits_of, out, out_bytes) = Default::default();
        Far {
            cache: Cache::new(MEMORY),
            dials,
            dialled,
            given_up,
            quota: Quota::new(MOST_DIALS),
            last: 0,
            added: 0,
            together,
            ahead,
            questions,
            permitted,
            permits_of,
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
        // Of an earlier version: now it hands such a question back itself.
        if query.len() > LONGEST_QUESTION {
            self.send(peer, Frame::Failed { id });
            return true;
        }
        // The other half asks only what it wrote itself.
        if Query::parse(&query).is_none_or(|q| q.canonical != query) {
            return false;
        }
        let key = (server, query);
        let is_learned = waits && message::is_of_browsers(&key.1);
        if is_learned {
            self.note(now, peer, client, &key);
        }
        if self.may(now, peer, server)
            && waits
            && let Some(Found::Fresh { answer, age, .. }) =
                self.cache.find(now, &known_by(peer, &key))
        {
            let (message, left) = (answer.aged(Some(age)), answer.ttl - age);
            if self.has_room_for(&message) {
                self.ahead.tell(now, peer, &key, left);
            }
            self.send(peer, Frame::Answer { id, message });
            if is_learned {
                self.together.learn(now, now, peer, &key);
            }
            self.send_along(now, peer, client, &key);
        } else {
            self.dial(peer, client, key, Some(id), is_learned.then_some(now));
        }
        true
    }

    /// May this peer speak with the server, as far as is known?
    fn may(&self, now: u64, peer: &str, server: SocketAddr) -> bool {
        let permit = self.permitted.get(&(peer.to_owned(), server));
        permit.is_some_and(|permit| permit.until > now)
    }

    /// A page is on its way to the peer: its own host in the first line, and in the others the
    /// hosts that it will need, whose records go ahead. Each is asked as the page's own name was.
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
            self.together.follow(now, peer, &leader, &key);
            match self.may(now, peer, key.0) {
                true => self.send_one_along(now, peer, client, key),
                false => self.dial(peer, client, key, None, None),
            }
        }
    }

    fn note(&mut self, now: u64, peer: &str, client: SocketAddr, key: &Key) {
        let questions = self.questions.entry(peer.to_owned()).or_default();
        questions.retain(|q| now.saturating_sub(q.at) <= LATELY && q.key != *key);
        questions.push_back(Question { at: now, client, key: key.clone(), brought: Vec::new() });
        if questions.len() > MOST_QUESTIONS {
            questions.pop_front();
        }
    }

    fn has_room_for(&self, message: &[u8]) -> bool {
        self.out_bytes + message.len() <= MOST_OUT
    }

    fn send(&mut self, peer: &str, frame: Frame) {
        let frame = match frame {
            Frame::Answer { id, message } if !self.has_room_for(&message) => Frame::Failed { id },
            frame => frame,
        };
        if let Frame::Answer { message, .. } | Frame::Along { message, .. } = &frame {
            self.out_bytes += message.len();
        }
        self.out.push(Do::Send(peer.to_owned(), frame));
    }

    fn dial(
        &mut self,
        peer: &str,
        client: SocketAddr,
        key: Key,
        id: Option<u32>,
        learned: Option<u64>,
    ) {
        let of = (peer.to_owned(), key);
        let dial = self.dialled.get(&of).and_then(|number| self.dials.get_mut(number));
        if let Some(dial) = dial {
            if dial.ids.len() < MOST_IDS {
                dial.ids.extend(id);
                dial.orphan = false;
                dial.learned = dial.learned.or(learned);
            } else if let Some(id) = id {
                self.send(peer, Frame::Failed { id });
            }
        } else if !self.quota.has_room(peer, &one_host(client.ip())) {
            if let Some(id) = id {
                self.send(peer, Frame::Failed { id });
            }
        } else {
            self.last += 1;
            let (peer, key) = of.clone();
            let (dial, server, query) = (self.last, key.0, key.1.clone());
            let ids = id.into_iter().collect();
            self.quota.begin(&peer, one_host(client.ip()));
            self.dialled.insert(of, dial);
            self.out.push(Do::Dial { dial, peer: peer.clone(), client, server, query });
            self.dials.insert(dial, Dial { peer, client, key, ids, learned, orphan: false });
        }
    }

    fn remove_dial(&mut self, number: u64) -> Option<Dial> {
        let dial = self.dials.remove(&number)?;
        self.dialled.remove(&(dial.peer.clone(), dial.key.clone()));
        Some(dial)
    }

    /// The server has had its time, and the gateway still tries to connect to it. The question
    /// counts as the host's until [`Far::on_connect_over`].
    pub fn give_up(&mut self, number: u64) {
        let Some(Dial { peer, client, ids, .. }) = self.remove_dial(number) else { return };
        ids.into_iter().for_each(|id| self.send(&peer, Frame::Failed { id }));
        self.given_up.insert(number, (peer, one_host(client.ip())));
    }

    /// The gateway tries no longer to connect for a question that was given up.
    pub fn on_connect_over(&mut self, dial: u64) {
        if let Some((peer, host)) = self.given_up.remove(&dial) {
            self.quota.end(&peer, host);
        }
    }

    /// What a server said; `None`: nothing that counts.
    pub fn on_answer(&mut self, now: u64, dial: u64, message: Option<&[u8]>) {
        let Some(dial) = self.remove_dial(dial) else { return };
        let Dial { peer, client, key, ids, learned, orphan } = dial;
        self.quota.end(&peer, one_host(client.ip()));
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
        if let Some(at) = learned.filter(|_| !answer.is_failure()) {
            self.together.learn(now, at, &peer, &key);
        }
        let ttl = answer.ttl;
        self.cache.keep(now, known_by(&peer, &key), (peer.clone(), ()), answer);
        if orphan {
            return;
        }
        if ids.is_empty() {
            self.send_ahead(now, &peer, key, message, ttl);
        } else {
            if is_short && self.has_room_for(&message) {
                self.ahead.tell(now, &peer, &key, ttl);
            }
            self.send_along(now, &peer, client, &key);
        }
    }

    fn permit(&mut self, now: u64, peer: &str, server: SocketAddr) {
        let key = (peer.to_owned(), server);
        self.forget_permit(&key);
        self.added += 1;
        let (until, number) = (now + PERMITTED, self.added);
        self.permits_of.add(&(peer.to_owned(), ()), (number, key.clone()), 1);
        self.permitted.insert(key, Permit { until, number });
        while self.permitted.len() > MOST_PERMITTED
            && let Some((_, oldest)) = self.permits_of.gives_way().cloned()
        {
            self.forget_permit(&oldest);
        }
    }

    fn forget_permit(&mut self, key: &(String, SocketAddr)) {
        if let Some(permit) = self.permitted.remove(key) {
            self.permits_of.remove(&(key.0.clone(), ()), &(permit.number, key.clone()));
        }
    }

    /// Sends what follows a name, or asks for it first: what the peer itself has taught before what
    /// others have.
    fn send_along(&mut self, now: u64, peer: &str, client: SocketAddr, leader: &Key) {
        let (own, others) = self.together.followers(now, leader, peer);
        for key in own {
            self.send_one_along(now, peer, client, key);
        }
        let is_asked = |key: &Key| self.dialled.contains_key(&(peer.to_owned(), key.clone()));
        let is_new = |key: &Key| self.ahead.may(now, peer, key) && !is_asked(key);
        let others = others.into_iter().filter(is_new).take(MOST_OF_OTHERS);
        for key in others.collect::<Vec<_>>() {
            self.send_one_along(now, peer, client, key);
        }
    }

    fn send_one_along(&mut self, now: u64, peer: &str, client: SocketAddr, key: Key) {
        match self.cache.find(now, &known_by(peer, &key)) {
            _ if !self.ahead.may(now, peer, &key) => {}
            Some(Found::Fresh { answer, age, .. }) => {
                let (message, left) = (answer.aged(Some(age)), answer.ttl - age);
                self.send_ahead(now, peer, key, message, left);
            }
            _ => self.dial(peer, client, key, None, None),
        }
    }

    /// Sends an answer that holds for `ttl` seconds before it is asked for, if it is worth that.
    fn send_ahead(&mut self, now: u64, peer: &str, key: Key, message: Vec<u8>, ttl: u32) {
        let is_short = message.len() <= LARGEST && self.has_room_for(&message);
        if ttl > 0 && is_short && self.ahead.may(now, peer, &key) {
            self.ahead.tell(now, peer, &key, ttl);
            self.ahead.sent(now, peer, message.len() + key.1.len());
            self.send(peer, Frame::Along { server: key.0, query: key.1, message });
        }
    }

    /// The link to this peer sends so many bits per second; 0: not known.
    pub fn set_rate(&mut self, peer: &str, rate: u64) {
        self.ahead.set_rate(peer, rate);
    }

    /// The peer's half has gone.
    pub fn on_lost(&mut self, peer: &str) {
        self.together.on_lost(peer);
        self.ahead.on_lost(peer);
        self.questions.remove(peer);
        // N-X-14: who comes next begins to count anew.
        for dial in self.dials.values_mut().filter(|dial| dial.peer == peer) {
            dial.ids.clear();
            (dial.learned, dial.orphan) = (None, true);
        }
        let its = self.permitted.keys().filter(|(of, _)| of == peer).cloned();
        its.collect::<Vec<_>>().iter().for_each(|key| self.forget_permit(key));
    }
}

/// What an answer is known by: of a public server for all peers, of another for the one whose host
/// asked. A company's resolver may answer each network differently, which it tells by addresses
/// that peers keep; and it is near, so that asking it again costs nothing on the link.
fn known_by(peer: &str, key: &Key) -> (String, Key) {
    let of = if is_private(key.0.ip()) { peer.to_owned() } else { String::new() };
    (of, key.clone())
}

#[cfg(test)]
mod tests;
