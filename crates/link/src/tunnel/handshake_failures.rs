//! Handshakes that come to nothing: what is known of them, for the operator.
//!
//! Nothing here changes what is sent. An attacker can add to the counts, so they only ever
//! become words for people.

use std::net::SocketAddr;

use units::{Duration, Instant};

/// How long handshakes may take before they count as failing, or four round trips.
const PATIENCE: Duration = Duration::from_secs(10);
/// A peer that has not initiated for so long does not try any more: the longest pause
/// between initiations is five minutes and a quarter (L-HS-11).
const GONE: Duration = Duration::from_secs(400);

/// Why handshakes with a peer come to nothing, as far as this node can tell. Later ones say
/// more than earlier ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Failure {
    /// Nothing came back to this node's initiations.
    Silence,
    /// The peer initiates, authentically, and takes none of the answers: they do not arrive,
    /// or the pre-shared key differs.
    AnswersNotTaken,
    /// Answers came that do not authenticate: the pre-shared key differs, or somebody who
    /// sees the initiations forges.
    AnswersForged,
    /// The peer has no cipher in common with this node.
    NoCommonCipher,
}

/// Handshakes with a peer fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failing {
    /// Why.
    pub failure: Failure,
    /// When the first of them began.
    pub since: Instant,
    /// Initiations that this node sent since then.
    pub initiations: u64,
    /// Initiations of the peer that this node answered since then.
    pub answered: u64,
    /// Where the last of those came from.
    pub from: Option<SocketAddr>,
}

/// Counts since the last handshake that succeeded, if there were any.
#[derive(Default)]
pub(super) struct Tally {
    since: Option<Instant>,
    initiations: u64,
    answered: u64,
    /// When the peer began to call: the first answer needs time to be taken, however long
    /// this node has called in vain before.
    called: Option<Instant>,
    /// When the last of the peer's initiations came, and where from.
    asked: Instant,
    from: Option<SocketAddr>,
    worst: Option<Failure>,
    told: Option<Failure>,
    /// Since the start: initiations that another followed because no good answer came in
    /// time, and answers to the peer that its next initiation followed.
    failed: u64,
}

impl Tally {
    pub fn on_initiated(&mut self, now: Instant) {
        self.since.get_or_insert(now);
        self.failed += u64::from(self.initiations > 0);
        self.initiations += 1;
    }

    /// The peer initiated and was answered.
    pub fn on_answered(&mut self, now: Instant, from: SocketAddr) {
        self.since.get_or_insert(now);
        self.failed += u64::from(self.answered > 0);
        self.answered += 1;
        if self.called.is_none() || now.since(self.asked) >= GONE {
            self.called = Some(now);
        }
        (self.asked, self.from) = (now, Some(from));
    }

    /// Something of the peer's, or to be it, was of no use.
    pub fn on_bad(&mut self, now: Instant, failure: Failure) {
        self.since.get_or_insert(now);
        self.asked = now;
        self.worst = self.worst.max(Some(failure));
    }

    /// The peer is there: what was counted has no meaning any more.
    pub fn on_success(&mut self) {
        if self.since.is_some() {
            *self = Tally { failed: self.failed, ..Tally::default() };
        }
    }

    /// Handshakes that failed since the start.
    pub fn failed(&self) -> u64 {
        self.failed
    }

    /// When [`Tally::failing`] may say more than it did, if it has said nothing yet.
    pub fn due(&self, rtt: Duration, established: bool) -> Option<Instant> {
        self.since?;
        let patience = patience(rtt);
        [self.since, self.called]
            .into_iter()
            .filter_map(|begin| begin.map(|begin| begin + patience))
            .find(|at| self.told < self.failure(*at, rtt, established))
    }

    /// What is known at `now`, once patience is over.
    pub fn failing(&self, now: Instant, rtt: Duration, established: bool) -> Option<Failing> {
        let since = self.since.filter(|since| now >= *since + patience(rtt))?;
        let failure = self.failure(now, rtt, established)?;
        let Tally { initiations, answered, from, .. } = *self;
        Some(Failing { failure, since, initiations, answered, from })
    }

    /// The same, if it is news.
    pub fn news(&mut self, now: Instant, rtt: Duration, established: bool) -> Option<Failing> {
        let due = self.due(rtt, established).filter(|at| *at <= now)?;
        let said = self.failure(due, rtt, established);
        let told = std::mem::replace(&mut self.told, said);
        // Where the loop slept for minutes, what was due may be over.
        self.failing(now, rtt, established).filter(|failing| told < Some(failing.failure))
    }

    /// Silence of a peer with a session is told otherwise, and an initiation of its that
    /// comes to nothing may be a replay then.
    fn failure(&self, now: Instant, rtt: Duration, established: bool) -> Option<Failure> {
        let asks = self.called.is_some_and(|called| now >= called + patience(rtt))
            && now.since(self.asked) < GONE;
        let asked = self.initiations > 0;
        self.worst
            .filter(|_| asked || now.since(self.asked) < GONE)
            .or(asks.then_some(Failure::AnswersNotTaken).filter(|_| !established))
            .or(asked.then_some(Failure::Silence).filter(|_| !established))
    }
}

fn patience(rtt: Duration) -> Duration {
    PATIENCE.max(rtt.times(4))
}
