//! The half at the terminal: answers what is known, and asks the other half for the rest.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use units::{Shares, host_in_network, one_host};

use crate::Key;
use crate::cache::{Cache, Found};
use crate::exchange::Frame;
use crate::message::{Answer, LONGEST_QUESTION, Query};

/// Memory of the cache. Of it the network or peer loses its own first that has the most, and in it
/// the host that does.
const MEMORY: usize = 16 << 20;
/// Questions that may be asked at once, and who waits for one. When all are asked the host that
/// has the most, in the network that does, loses its oldest to one that has fewer: it is carried
/// as ever.
const MOST_ASKED: usize = 1024;
const MOST_WAITING: usize = 64;
/// When a client gets what is past its time (RFC 8767 proposes it), and when the question itself
/// is carried to the server, in milliseconds.
const PATIENCE: u64 = 1_800;
const LONGEST: u64 = 3_000;
/// On a slow link it is carried later: all that is asked has to cross, and a question that is
/// carried, too, crosses twice. The time that the other half gives a server, in milliseconds; the
/// bytes that a question and its answer take; and when resolvers have given up, in milliseconds.
const SERVER_TIME: u64 = 2_500;
const ON_LINK: u64 = 400;
const SLOWEST: u64 = 15_000;
/// For how long an answer to a question that was carried is kept when it comes, in milliseconds.
const LATE: u64 = 60_000;
/// How long a server that did not answer a host by TCP is left to UDP, and how many are. The
/// questions of one host are no reason to carry another's as ever.
const PLAIN: u64 = 60_000;
const MOST_PLAIN: usize = 1024;

/// How a client asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// By a datagram.
    Datagram,
    /// By the connection of this number (RFC 7766).
    Connection(u64),
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Do {
    /// A datagram to the client.
    Answer(Datagram),
    /// The client's datagram is to go its way.
    Onward(Datagram),
    /// A message to the client of a connection.
    Reply(u64, Vec<u8>),
    /// The connection's question is to go its way.
    Pass(u64),
    /// To the half at this peer.
    Send(String, Frame),
}

/// What goes between a client and a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// Who asks.
    pub client: SocketAddr,
    /// Who is asked.
    pub server: SocketAddr,
    /// What is in it.
    pub bytes: Vec<u8>,
}

struct Waiter {
    client: SocketAddr,
    by: By,
    query: Query,
    bytes: Vec<u8>,
}

struct Asked {
    of: Of,
    /// Whose question it is that was first.
    holder: Holder,
    since: u64,
    waiters: Vec<Waiter>,
}

/// A question that was given up, and whose answer may come.
struct Late {
    of: Of,
    holder: Holder,
    since: u64,
}

/// What the link to a peer is like.
#[derive(Clone, Copy, Default)]
struct Pace {
    /// In bits per second; 0: not known.
    rate: u64,
    /// In milliseconds.
    round_trip: u64,
}

/// Of whom answers are, and open questions.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Group {
    /// Hosts' questions, and their answers.
    Network(IpAddr),
    /// What the half at a peer sent unasked.
    Peer(String),
}

/// A host in its network. A peer is one.
type Holder = (Group, IpAddr);

fn holder(client: SocketAddr) -> Holder {
    let (network, host) = host_in_network(client.ip());
    (Group::Network(network), host)
}

fn peer_as_holder(peer: &str) -> Holder {
    (Group::Peer(peer.to_owned()), Ipv4Addr::UNSPECIFIED.into())
}

/// A peer, and what it was asked: no peer says anything of servers behind another.
type Of = (String, Key);

/// What happened, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Answered from memory.
    pub hits: u64,
    /// Asked at the other half for a client.
    pub misses: u64,
    /// Answered with what was past its time.
    pub stale: u64,
    /// Asked before they ended.
    pub prefetched: u64,
    /// Answers that came before the question.
    pub along: u64,
    /// Carried as ever.
    pub onward: u64,
}

/// See the module.
pub struct Near {
    cache: Cache<Of, Group, IpAddr>,
    asked: BTreeMap<u32, Asked>,
    /// The same, by what is asked.
    asked_of: BTreeMap<Of, u32>,
    asked_by: Shares<Group, IpAddr, u32>,
    late: BTreeMap<u32, Late>,
    /// Until when, by host and server.
    plain: BTreeMap<(IpAddr, SocketAddr), u64>,
    plain_for: Shares<Group, IpAddr, (u64, IpAddr, SocketAddr)>,
    /// Peers towards which QUIC is refused.
    no_quic: BTreeSet<String>,
    /// Peers to whom nothing goes now: a question would wait, or raise a line that costs.
    down: BTreeSet<String>,
    /// Peers who have a session and are not heard now.
    silent: BTreeSet<String>,
    paces: BTreeMap<String, Pace>,
    last: u32,
    /// What it did.
    pub counts: Counts,
    out: Vec<Do>,
}

impl Default for Near {
    fn default() -> Near {
        let (asked, asked_of, asked_by, late, plain, plain_for) = Default::default();
        let (no_quic, down, silent, paces, counts) = Default::default();
        Near {
            cache: Cache::new(MEMORY),
            asked,
            asked_of,
            asked_by,
            late,
            plain,
            plain_for,
            no_quic,
            down,
            silent,
            paces,
            last: 0,
            counts,
            out: Vec::new(),
        }
    }
}

impl Near {
    /// What is to be done since it was asked last.
    pub fn take(&mut self) -> Vec<Do> {
        std::mem::take(&mut self.out)
    }

    /// Answers known, and their memory.
    pub fn size(&self) -> (usize, usize) {
        self.cache.size()
    }

    /// QUIC towards this peer is refused, or is not: whoever is told of HTTP/3 would try it in
    /// vain.
    pub fn set_quic(&mut self, peer: &str, refused: bool) {
        match refused {
            true => self.no_quic.insert(peer.to_owned()),
            false => self.no_quic.remove(peer),
        };
    }

    /// The link to this peer is down, or is not any more.
    pub fn set_down(&mut self, peer: &str, down: bool) {
        match down {
            true => self.down.insert(peer.to_owned()),
            false => self.down.remove(peer),
        };
    }

    /// This peer has a session and is not heard now, or is heard again.
    pub fn set_silent(&mut self, peer: &str, silent: bool) {
        match silent {
            true => self.silent.insert(peer.to_owned()),
            false => self.silent.remove(peer),
        };
    }

    /// The link to this peer sends so many bits per second, 0 if that is not known, and a round
    /// trip takes so many microseconds.
    pub fn set_pace(&mut self, peer: &str, rate: u64, rtt_us: u64) {
        let pace = Pace { rate, round_trip: rtt_us / 1_000 };
        self.paces.insert(peer.to_owned(), pace);
    }

    /// A client asks.
    pub fn on_question(
        &mut self,
        now: u64,
        peer: &str,
        (client, server): (SocketAddr, SocketAddr),
        by: By,
        bytes: &[u8],
    ) {
        let of_host = (client.ip().to_canonical(), server);
        let is_plain = self.plain.get(&of_host).is_some_and(|until| *until > now);
        let query = Query::parse(bytes).filter(|_| bytes.len() <= LONGEST_QUESTION);
        let Some(mut query) = query else {
            return self.onward(by, client, server, bytes);
        };
        if by != By::Datagram {
            query.by_connection();
        }
        let of = (peer.to_owned(), (server, query.canonical.clone()));
        let (is_down, no_quic) = (self.down.contains(peer), self.no_quic.contains(peer));
        let is_dark = is_down || self.silent.contains(peer);
        let (age, answer, soon) = match self.cache.find(now, &of) {
            Some(Found::Fresh { answer, age, soon }) => (Some(age), answer, soon && !is_down),
            // Nobody can be asked, or its server failed a moment ago (RFC 8767, section 5: it is
            // not asked each time).
            Some(Found::Stale { answer, failed }) if is_dark || is_plain || failed => {
                (None, answer, false)
            }
            // Carried as ever it waits for the link, and raises a line if it is to.
            _ if is_plain || is_down => return self.onward(by, client, server, bytes),
            _ => {
                let waiter = Waiter { client, by, query, bytes: bytes.to_vec() };
                return self.wait(now, of, waiter);
            }
        };
        self.out.push(answer_to(by, client, server, query.answer(answer, age, no_quic)));
        match age {
            Some(_) => self.counts.hits += 1,
            None => self.counts.stale += 1,
        }
        if soon && !self.asked_of.contains_key(&of) && self.asked.len() < MOST_ASKED {
            self.counts.prefetched += 1;
            self.ask(now, of, client, None);
        }
    }

    /// Is there room for one more question of this host? It is made where another has more.
    fn makes_room(&mut self, now: u64, client: SocketAddr) -> bool {
        if self.asked.len() < MOST_ASKED {
            return true;
        }
        let displaced = self.asked_by.gives_way_to(&holder(client), 1).copied();
        let Some(asked) = displaced.and_then(|id| self.remove_asked(id)) else { return false };
        self.give_up(now, asked);
        true
    }

    fn remove_asked(&mut self, id: u32) -> Option<Asked> {
        let asked = self.asked.remove(&id)?;
        self.asked_of.remove(&asked.of);
        self.asked_by.remove(&asked.holder, &id);
        Some(asked)
    }

    fn add_asked(&mut self, id: u32, asked: Asked) {
        self.asked_by.add(&asked.holder, id, 1);
        self.asked_of.insert(asked.of.clone(), id);
        self.asked.insert(id, asked);
    }

    fn wait(&mut self, now: u64, of: Of, waiter: Waiter) {
        let asked = self.asked_of.get(&of).and_then(|id| self.asked.get_mut(id));
        let Some(asked) = asked else {
            if !self.makes_room(now, waiter.client) {
                return self.onward(waiter.by, waiter.client, of.1.0, &waiter.bytes);
            }
            self.counts.misses += 1;
            return self.ask(now, of, waiter.client, Some(waiter));
        };
        let same = |w: &Waiter| {
            (w.client, w.by, w.query.id) == (waiter.client, waiter.by, waiter.query.id)
        };
        // No host has more of the places than are free.
        let host = |waiter: &Waiter| one_host(waiter.client.ip());
        let its = asked.waiters.iter().filter(|w| host(w) == host(&waiter)).count();
        if its >= MOST_WAITING - asked.waiters.len() {
            self.onward(waiter.by, waiter.client, of.1.0, &waiter.bytes);
        } else if !asked.waiters.iter().any(same) {
            asked.waiters.push(waiter);
        }
    }

    fn ask(&mut self, now: u64, of: Of, client: SocketAddr, waiter: Option<Waiter>) {
        let (peer, (server, query)) = of.clone();
        self.last = self.last.wrapping_add(1);
        let (id, waits, holder) = (self.last, waiter.is_some(), holder(client));
        let frame = Frame::Ask { id, waits, client, server, query };
        let waiters = waiter.into_iter().collect();
        self.add_asked(id, Asked { of, holder, since: now, waiters });
        self.out.push(Do::Send(peer, frame));
    }

    fn onward(&mut self, by: By, client: SocketAddr, server: SocketAddr, bytes: &[u8]) {
        self.counts.onward += 1;
        self.out.push(match by {
            By::Datagram => Do::Onward(Datagram { client, server, bytes: bytes.to_vec() }),
            By::Connection(number) => Do::Pass(number),
        });
    }

    /// The other half says something. False: it broke the protocol.
    pub fn on_frame(&mut self, now: u64, peer: &str, frame: Frame) -> bool {
        match frame {
            Frame::Answer { id, message } => {
                let Some(asked) = self.take_asked(peer, id) else {
                    return self.on_late(now, peer, id, &message);
                };
                let Some(answer) = Answer::parse(&asked.of.1.1, &message) else {
                    self.give_up(now, asked);
                    return false;
                };
                if answer.is_failure() {
                    self.cache.note_failure(now, &asked.of);
                    if self.serve_stale(now, &asked) {
                        return true;
                    }
                }
                self.answer(peer, &asked, &answer);
                self.cache.keep(now, asked.of, asked.holder, answer);
            }
            Frame::Failed { id } => {
                let Some(asked) = self.take_asked(peer, id) else { return true };
                self.leave_to_udp(now + PLAIN, &asked);
                self.give_up(now, asked);
            }
            Frame::Along { server, query, message } => {
                let Some(answer) = Answer::parse(&query, &message) else { return false };
                self.counts.along += 1;
                let of = (peer.to_owned(), (server, query));
                self.on_unasked(now, of, peer_as_holder(peer), answer);
            }
            Frame::Ask { .. } => return false,
        }
        true
    }

    /// An answer to a question that is not open: it may have been given up.
    fn on_late(&mut self, now: u64, peer: &str, id: u32, message: &[u8]) -> bool {
        if self.late.get(&id).is_none_or(|late| late.of.0 != peer) {
            return true;
        }
        let Some(Late { of, holder, .. }) = self.late.remove(&id) else { return true };
        let Some(answer) = Answer::parse(&of.1.1, message) else { return false };
        if !answer.is_failure() {
            self.on_unasked(now, of, holder, answer);
        }
        true
    }

    /// An answer that nobody waits for, as far as is known.
    fn on_unasked(&mut self, now: u64, of: Of, holder: Holder, answer: Answer) {
        // Who has asked for it meanwhile need not wait for his own answer.
        let asked = self.asked_of.get(&of).copied().and_then(|id| self.remove_asked(id));
        if let Some(asked) = &asked {
            self.answer(&of.0, asked, &answer);
        }
        let holder = asked.map_or(holder, |asked| asked.holder);
        self.cache.keep(now, of, holder, answer);
    }

    /// The answer for all who wait.
    fn answer(&mut self, peer: &str, asked: &Asked, answer: &Answer) {
        let no_quic = self.no_quic.contains(peer);
        for waiter in &asked.waiters {
            let (client, server) = (waiter.client, asked.of.1.0);
            let bytes = waiter.query.answer(answer, Some(0), no_quic);
            self.out.push(answer_to(waiter.by, client, server, bytes));
        }
    }

    fn take_asked(&mut self, peer: &str, id: u32) -> Option<Asked> {
        self.asked.get(&id).filter(|asked| asked.of.0 == peer)?;
        self.remove_asked(id)
    }

    /// A server that does not answer by TCP is asked by UDP until then.
    fn leave_to_udp(&mut self, until: u64, asked: &Asked) {
        let (host, server) = (asked.holder.1, asked.of.1.0);
        if let Some(before) = self.plain.insert((host, server), until) {
            self.plain_for.remove(&asked.holder, &(before, host, server));
        }
        self.plain_for.add(&asked.holder, (until, host, server), 1);
        while self.plain.len() > MOST_PLAIN
            && let Some(oldest) = self.plain_for.gives_way().copied()
        {
            let (_, host, server) = oldest;
            self.plain.remove(&(host, server));
            self.plain_for.remove(&holder(SocketAddr::new(host, 0)), &oldest);
        }
    }

    /// There is no answer: what is past its time, or the way of old.
    fn give_up(&mut self, now: u64, asked: Asked) {
        if !self.serve_stale(now, &asked) {
            for waiter in asked.waiters {
                self.onward(waiter.by, waiter.client, asked.of.1.0, &waiter.bytes);
            }
        }
    }

    fn serve_stale(&mut self, now: u64, asked: &Asked) -> bool {
        let Some(Found::Stale { answer, .. }) = self.cache.find(now, &asked.of) else {
            return false;
        };
        let no_quic = self.no_quic.contains(&asked.of.0);
        for waiter in &asked.waiters {
            let (client, server) = (waiter.client, asked.of.1.0);
            let bytes = waiter.query.answer(answer, None, no_quic);
            self.out.push(answer_to(waiter.by, client, server, bytes));
        }
        self.counts.stale += asked.waiters.len() as u64;
        true
    }

    /// The stream to the other half is no more.
    pub fn on_lost(&mut self, now: u64, peer: &str) {
        let lost: Vec<u32> =
            self.asked.iter().filter(|(_, a)| a.of.0 == peer).map(|(id, _)| *id).collect();
        for id in lost {
            if let Some(asked) = self.remove_asked(id) {
                self.give_up(now, asked);
            }
        }
    }

    /// Looks whether somebody has waited long enough: a few times a second.
    pub fn on_time(&mut self, now: u64) {
        let waited = |a: &Asked| now.saturating_sub(a.since);
        let due = self.asked.iter().filter(|(_, a)| waited(a) >= PATIENCE);
        let due: Vec<_> = due.map(|(id, _)| *id).collect();
        let mut open: BTreeMap<String, u64> = BTreeMap::new();
        for asked in self.asked.values().filter(|_| !due.is_empty()) {
            *open.entry(asked.of.0.clone()).or_default() += 1;
        }
        for id in due {
            let Some(mut asked) = self.remove_asked(id) else { continue };
            let peer = &asked.of.0;
            if waited(&asked) >= self.longest(peer, open.get(peer).copied().unwrap_or(0)) {
                self.note_late(now, id, &asked);
                self.give_up(now, asked);
                continue;
            }
            if self.serve_stale(now, &asked) {
                asked.waiters.clear();
            }
            self.add_asked(id, asked);
        }
    }

    /// How long a question waits for this peer, with so many that are open there.
    fn longest(&self, peer: &str, open: u64) -> u64 {
        let Pace { rate, round_trip } = self.paces.get(peer).copied().unwrap_or_default();
        let crossing = (open * ON_LINK * 8_000).checked_div(rate).unwrap_or(0);
        (SERVER_TIME + 2 * round_trip + crossing).clamp(LONGEST, SLOWEST)
    }

    fn note_late(&mut self, now: u64, id: u32, asked: &Asked) {
        let Asked { of, holder, .. } = asked;
        self.late.retain(|_, late| now.saturating_sub(late.since) < LATE);
        self.late.insert(id, Late { of: of.clone(), holder: holder.clone(), since: now });
        if self.late.len() > MOST_ASKED {
            self.late.pop_first();
        }
    }

    /// Does anybody wait?
    pub fn waits(&self) -> bool {
        !self.asked.is_empty()
    }
}

fn answer_to(by: By, client: SocketAddr, server: SocketAddr, bytes: Vec<u8>) -> Do {
    match by {
        By::Datagram => Do::Answer(Datagram { client, server, bytes }),
        By::Connection(number) => Do::Reply(number, bytes),
    }
}

#[cfg(test)]
mod tests;
