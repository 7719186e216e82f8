//! Self-tests of links: streams without sockets, whose bytes are drawn here and counted here.
//! The rest of their way is that of every stream of the class bulk (spec/link.md, "Self-test").
//!
//! A node measures what it asks for ([`asked`]) and serves what its peers ask for ([`served`]);
//! in both it has one of two parts of a direction: it sends, or it counts ([`parts`]).

mod asked;
mod parts;
mod served;

use std::sync::mpsc::Sender;

use link::PeerId;
use link::session::PathHealth;
use os::poll::Waker;
use relay::self_test::{LONGEST, Part};
use relay::{FlowId, Relay, ResetReason};
use units::{Duration, Instant, Rng};

use super::connections::CODING;
use crate::admin::{LinkTest, TestProgress};
use asked::Asked;
use served::Served;

/// How often tests look at the link.
const TICK: Duration = Duration::from_millis(50);
/// Tests that this node may have asked for at once.
pub const MOST_ASKED: usize = 4;
/// What each direction may take beside its time: the answer on a slow and lossy link.
const GRACE: Duration = Duration::from_secs(30);
/// What raising the line of a test may take: dialling, training, and the first handshake.
pub const RAISING: Duration = Duration::from_secs(300);
/// Random bytes that are drawn at once.
const BUFFER: usize = 64 * 1024;

/// What the operator wants measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// For how long each direction is measured.
    pub time: Duration,
    /// What this node sends, and what it receives.
    pub send: bool,
    /// See `send`.
    pub receive: bool,
    /// Measure also where that costs, and raise a line that is down for it.
    pub raise: bool,
}

impl Wanted {
    /// What was asked for, if it is within its bounds.
    ///
    /// # Errors
    /// One sentence.
    pub fn checked(seconds: u64, send: bool, receive: bool) -> Result<Wanted, String> {
        let longest = LONGEST.as_millis() / 1000;
        if !(1..=longest).contains(&seconds) {
            return Err(format!("a test measures for 1 to {longest} seconds, not {seconds}"));
        }
        if !(send || receive) {
            return Err("a test measures what is sent, what is received, or both".to_owned());
        }
        Ok(Wanted { time: Duration::from_secs(seconds), send, receive, raise: false })
    }

    /// Longer than this no test takes.
    pub fn longest(&self) -> Duration {
        let raising = if self.raise { RAISING } else { Duration::ZERO };
        (self.time + GRACE).times(2) + GRACE + raising
    }
}

/// What whoever asked for a test is told.
#[derive(Debug)]
pub enum TestNews {
    /// How far it is.
    Progress(TestProgress),
    /// What it found.
    Done(Box<LinkTest>),
    /// Why it found nothing, in one sentence.
    Failed(String),
}

/// Where the news go: to the thread of the admin API.
pub struct Listener {
    /// It ends the test that nobody listens any more.
    pub news: Sender<TestNews>,
    /// Wakes the thread, where it is another.
    pub waker: Option<Waker>,
}

impl Listener {
    /// False if nobody listens.
    pub(super) fn tell(&self, news: TestNews) -> bool {
        let heard = self.news.send(news).is_ok();
        if let Some(waker) = &self.waker {
            waker.wake();
        }
        heard
    }
}

/// What tests draw from and write to.
struct Tools {
    random: Rng,
    buffer: Vec<u8>,
}

/// The self-tests of a shard.
pub struct Tests {
    asked: Vec<Asked>,
    served: Vec<Served>,
    tools: Tools,
    /// A flow has news.
    ready: bool,
    tick_at: Instant,
}

impl Tests {
    /// None yet.
    pub fn new(seed: u64) -> Tests {
        Tests {
            asked: Vec::new(),
            served: Vec::new(),
            tools: Tools { random: Rng::new(seed), buffer: Vec::new() },
            ready: false,
            tick_at: Instant::ZERO,
        }
    }

    fn is_empty(&self) -> bool {
        self.asked.is_empty() && self.served.is_empty()
    }

    /// Is a turn to be had at once?
    pub fn has_work(&self) -> bool {
        self.ready && !self.is_empty() // The last may be gone before its turn.
    }

    /// When [`Tests::work`] is to be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.is_empty() {
            return None;
        }
        let ends = self.asked.iter().filter_map(Asked::ends);
        let ends = ends.chain(self.served.iter().filter_map(Served::ends));
        ends.chain([self.tick_at]).min()
    }

    /// Is the flow a test's? Then it has news, if it has any.
    pub fn enqueue(&mut self, flow: FlowId) -> bool {
        let is_ours = self.asked.iter().any(|t| t.flow() == Some(flow))
            || self.served.iter().any(|t| t.flow == flow);
        self.ready |= is_ours;
        is_ours
    }

    /// The operator wants the link to `peer` measured. What comes of it, a refusal too, is
    /// told to the listener.
    pub fn ask(&mut self, now: Instant, relay: &Relay, test: NewTest) {
        let (id, name) = (test.peer, &test.name);
        let session = relay.endpoint.session(id);
        let refusal = if !works(relay, id) {
            Some(format!("the link to {name} is not up: `bentpipe status` says where it stands"))
        } else if !session.is_some_and(|s| s.peer_answers_tests()) {
            Some(format!("{name} runs an older version of bentpipe that answers no tests"))
        } else if self.is_testing(id) {
            Some(format!("a test of the link to {name} is under way: try again when it is over"))
        } else {
            None
        };
        match refusal {
            Some(why) => drop(test.listener.tell(TestNews::Failed(why))),
            None => {
                self.asked.push(Asked::new(now, relay, test));
                (self.ready, self.tick_at) = (true, now);
            }
        }
    }

    /// The peer of `flow` asks for a test.
    pub fn serve(&mut self, now: Instant, relay: &mut Relay, flow: FlowId) {
        let Some(peer) = relay.flow_peer(flow) else { return };
        if self.is_testing(peer) {
            return relay.connect_failed(now, flow, ResetReason::Exhausted);
        }
        // Of one that has told its report only the end may be missing.
        self.served.retain(|old| {
            let other = old.peer != peer;
            if !other {
                relay.local_reset(now, old.flow, ResetReason::HostReset);
            }
            other
        });
        relay.connected(flow);
        self.served.push(Served::new(now, flow, peer));
        (self.ready, self.tick_at) = (true, now);
    }

    /// Whose links are measured for this node's operator.
    pub fn peers(&self) -> Vec<PeerId> {
        self.asked.iter().map(Asked::peer).collect()
    }

    /// Does the link work, so that a test of it may begin?
    pub fn can_begin(&self, relay: &Relay, peer: PeerId) -> bool {
        works(relay, peer)
    }

    /// The link to this peer is down, and is known to be.
    pub fn fail(&mut self, now: Instant, relay: &mut Relay, peer: PeerId, why: String) {
        if let Some(at) = self.asked.iter().position(|t| t.peer() == peer) {
            self.asked.remove(at).end(now, relay, TestNews::Failed(why));
        }
    }

    fn is_testing(&self, peer: PeerId) -> bool {
        self.asked.iter().any(|t| t.peer() == peer)
            || self.served.iter().any(|t| t.peer == peer && t.is_measuring())
    }

    /// The flow's peer gave up, or (`None`) its session is over. False if it is no test's.
    pub fn gone(
        &mut self,
        now: Instant,
        relay: &mut Relay,
        flow: FlowId,
        reason: Option<ResetReason>,
    ) -> bool {
        if let Some(at) = self.asked.iter().position(|t| t.flow() == Some(flow)) {
            let test = self.asked.remove(at);
            let name = &test.new.name;
            let why = match reason {
                Some(ResetReason::Exhausted) => {
                    format!("{name} is busy with another test of this link: try again later")
                }
                Some(ResetReason::ShuttingDown) => format!("the gateway {name} ends"),
                Some(_) => format!("{name} ended the test"),
                None => format!("the session with {name} ended during the test"),
            };
            test.end(now, relay, TestNews::Failed(why));
            return true;
        }
        let served = self.served.iter().position(|t| t.flow == flow);
        if let Some(at) = served {
            self.served.remove(at);
            relay.closed(now, flow);
        }
        served.is_some()
    }

    /// Ends all tests: the node ends.
    pub fn end_all(&mut self, now: Instant, relay: &mut Relay) {
        for test in self.asked.drain(..) {
            test.end(now, relay, TestNews::Failed("the gateway ends".to_owned()));
        }
        for test in self.served.drain(..) {
            relay.local_reset(now, test.flow, ResetReason::ShuttingDown);
        }
    }

    /// Moves on with all of them.
    pub fn work(&mut self, now: Instant, relay: &mut Relay) {
        if self.is_empty() || !(self.ready || self.poll_timeout().is_some_and(|at| at <= now)) {
            return;
        }
        self.ready = false;
        let tick = self.tick_at <= now;
        if tick {
            self.tick_at = now + TICK;
        }
        self.tools.buffer.resize(BUFFER, 0);
        let mut at = 0;
        while let Some(test) = self.asked.get_mut(at) {
            match test.turn(now, relay, &mut self.tools, tick) {
                Turn::Rests => at += 1,
                Turn::HasMore => (self.ready, at) = (true, at + 1),
                Turn::Over(news) => self.asked.remove(at).end(now, relay, news),
            }
        }
        let begin = relay.codec_time();
        let mut has_time = true;
        self.served.retain_mut(|test| {
            has_time &= relay.codec_time() - begin <= CODING;
            if !has_time {
                return true;
            }
            let work = relay.work_begins(test.flow);
            let turn = test.turn(now, relay, &mut self.tools, tick);
            relay.charge(work);
            self.ready |= matches!(turn, Turn::HasMore);
            !matches!(turn, Turn::Over(()))
        });
        if !has_time {
            // The others come first then.
            self.ready = true;
            self.served.rotate_left(1);
        }
        if self.is_empty() {
            self.tools.buffer = Vec::new();
        }
    }
}

/// A test that the operator wants.
pub struct NewTest {
    pub peer: PeerId,
    /// The peer's name.
    pub name: String,
    /// The rates of the file: bits per second to the peer, and from it.
    pub configured_bps: [u64; 2],
    /// The most of it that the file leaves the class bulk.
    pub cap_bps: Option<u64>,
    pub wanted: Wanted,
    pub listener: Listener,
}

/// How a test's turn ended.
enum Turn<T> {
    /// Nothing to do until there is news.
    Rests,
    /// It gave way to others.
    HasMore,
    /// It is over; it has closed its flow, unless it has something to tell of it.
    Over(T),
}

/// Is there a session in which both hear each other?
fn works(relay: &Relay, peer: PeerId) -> bool {
    relay.endpoint.is_established(peer) && relay.endpoint.health(peer) == PathHealth::Alive
}

/// What the peer does while this node does `part`.
fn other(part: Part) -> Part {
    match part {
        Part::Count => Part::Send,
        Part::Send => Part::Count,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_of_a_minute_at_most_and_measure_something() {
        assert!(Wanted::checked(1, true, false).is_ok() && Wanted::checked(60, true, true).is_ok());
        for wrong in [0, 61, u64::MAX] {
            let why = Wanted::checked(wrong, true, true).expect_err("out of bounds");
            assert!(why.contains("1 to 60 seconds"), "{why}");
        }
        assert!(Wanted::checked(10, false, false).is_err());
    }
}
