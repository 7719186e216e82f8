//! When and how often a node initiates.

use units::{Duration, Instant};

use crate::handshake::{Asked, Params};
use crate::keys::Entropy;
use crate::path::{PathId, Remote};

/// Initiations that may wait for their response at once: two come in a round trip, and the
/// first response may take several where a queue or a slow line delays it.
const MAX_TRIES: usize = 8;
/// The shortest wait for a response, and the shortest silence that counts as one.
const MIN_PATIENCE: Duration = Duration::from_secs(1);
/// Initiations of a series that follow each other [quickly](quick), after the first.
const QUICK: u32 = 16;
/// The shortest wait between these.
const MIN_QUICK: Duration = Duration::from_millis(500);
/// The longest wait between initiations while something waits to be sent.
const MAX_WAIT: Duration = Duration::from_secs(10);
/// The longest wait while nothing does.
const MAX_IDLE_WAIT: Duration = Duration::from_secs(300);
/// Waits are lengthened by up to a quarter, at random.
const JITTER_DIVISOR: u64 = 4;

/// max(1.5 round trips, 1 s): how long an answer may take (L-HS-11).
pub(super) fn patience(rtt: Duration) -> Duration {
    (rtt + rtt.divided_by(2)).max(MIN_PATIENCE)
}

/// max(half a round trip, 500 ms): how soon to try again once an answer is overdue. Where
/// three packets of ten are lost each way half of all exchanges fail, so it takes more than
/// ten for one to succeed surely (L-HS-15).
pub(super) fn quick(rtt: Duration) -> Duration {
    rtt.divided_by(2).max(MIN_QUICK)
}

/// An initiation that was sent.
pub(super) struct Try {
    pub asked: Asked,
    /// What it tells of this node.
    pub own: Params,
    pub path: PathId,
    pub to: Remote,
    pub sent: Instant,
    /// To recognise a cookie reply; taken by the first.
    pub mac1: Option<[u8; 16]>,
    pub had_cookie: bool,
}

/// A series of initiations, until one succeeds or none is wanted.
pub(super) struct Attempt {
    pub tries: Vec<Try>,
    pub not_before: Instant,
    /// A cookie reply already led to one initiation at once.
    pub hurried: bool,
    count: u32,
    /// New addresses for which the waits began anew.
    addresses: u32,
}

/// A name that has other addresses each time is no reason to call often for ever.
const MOST_ADDRESSES: u32 = 4;

impl Attempt {
    pub fn new(now: Instant) -> Attempt {
        Attempt { tries: Vec::new(), not_before: now, hurried: false, count: 0, addresses: 0 }
    }

    /// Notes an initiation; answers the index of the one that gave way, if any. The
    /// next comes when an answer is overdue, then some quickly, then ever more rarely.
    pub fn sent(
        &mut self,
        sent: Try,
        rtt: Duration,
        waiting: bool,
        entropy: &mut Entropy,
    ) -> Option<u32> {
        let longest = if waiting { MAX_WAIT } else { MAX_IDLE_WAIT };
        let patience = patience(rtt);
        let wait = match self.count {
            0 => patience,
            1..=QUICK => quick(rtt),
            n => patience.times(1 << (n - QUICK).min(20)).min(longest.max(patience)),
        };
        let jitter = entropy.next_u64() % (wait.as_nanos() / JITTER_DIVISOR + 1);
        self.not_before = sent.sent + wait + Duration::from_nanos(jitter);
        self.count += 1;
        let gone = (self.tries.len() == MAX_TRIES).then(|| self.tries.remove(0).asked.index());
        self.tries.push(sent);
        gone
    }

    /// Initiations of the series so far.
    pub fn count(&self) -> usize {
        self.count as usize
    }

    /// The same for an address that was told, of which there are some.
    pub fn restart_for_address(&mut self, now: Instant) {
        if self.addresses < MOST_ADDRESSES {
            self.addresses += 1;
            self.restart(now);
        }
    }

    /// Begins the waits anew.
    pub fn restart(&mut self, now: Instant) {
        self.count = 0;
        self.not_before = now;
    }

    /// Something waits now: the pause under way becomes one of those that are for that.
    pub fn hasten(&mut self, patience: Duration) {
        if let Some(last) = self.tries.last() {
            self.not_before = self.not_before.min(last.sent + MAX_WAIT.max(patience));
        }
    }

    pub fn find(&mut self, index: u32) -> Option<usize> {
        self.tries.iter().position(|t| t.asked.index() == index)
    }

    /// Whether an initiation to `to` may still be on its way.
    pub fn is_under_way(&self, now: Instant, to: Remote, patience: Duration) -> bool {
        self.tries.last().is_some_and(|t| t.to == to && now.since(t.sent) < patience)
    }
}
