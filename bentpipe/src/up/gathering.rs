//! When the carrier is read. A packet that comes alone is read at once. While packets come
//! close together, those of a millisecond or two are read together: one wake-up, one call to
//! the kernel and one write to the host for all of them. Their times of arrival are the
//! kernel's, so that waiting here is no queue to the peer.

use units::{Duration, Instant};

/// Packets that come closer than this are a run.
const CLOSE: Duration = Duration::from_millis(1);
/// Packets of a run before any waits: short answers are over by then.
const RUN: u32 = 32;

/// What is known of the packets that come, and when they are read next.
#[derive(Debug, Default)]
pub struct Gathering {
    /// When the newest packet came.
    newest: Instant,
    /// Packets in a row that came closer than [`CLOSE`].
    run: u32,
    until: Option<Instant>,
    /// How long packets wait for more.
    span: Duration,
}

impl Gathering {
    /// A packet came at `arrived`.
    pub fn on_packet(&mut self, arrived: Instant) {
        let is_close = arrived.since(self.newest) < CLOSE;
        self.run = if is_close { self.run.saturating_add(1) } else { 0 };
        self.newest = self.newest.max(arrived);
    }

    /// The socket was empty at `now`; the next packets may wait for `span`, or not at all.
    pub fn on_empty(&mut self, now: Instant, span: Duration) {
        let runs = self.run >= RUN && now.since(self.newest) < CLOSE;
        self.span = span;
        self.until = (runs && span > Duration::ZERO).then(|| now + span);
    }

    /// When the socket is to be read; nothing where its news tells.
    pub fn until(&self) -> Option<Instant> {
        self.until
    }

    /// Is the socket to be read in a turn that begins at `now`? A turn that something else
    /// called for serves as well if it is near.
    pub fn is_due(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| until <= now + self.span.divided_by(2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPAN: Duration = Duration::from_millis(1);

    fn at(us: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(1) + Duration::from_micros(us)
    }

    /// Reads each of `count` packets, `apart` µs from each other, as it comes; answers when the
    /// last did.
    fn read(gathering: &mut Gathering, count: u64, apart: u64, span: Duration) -> Instant {
        for n in 0..count {
            gathering.on_packet(at(n * apart));
            gathering.on_empty(at(n * apart), span);
        }
        at((count - 1) * apart)
    }

    #[test]
    fn packets_of_a_long_run_wait_a_millisecond_for_each_other() {
        let mut gathering = Gathering::default();
        let now = read(&mut gathering, 100, 250, SPAN);
        assert_eq!(gathering.until(), Some(now + SPAN));
        assert!(!gathering.is_due(now + Duration::from_micros(400)));
        assert!(gathering.is_due(now + Duration::from_micros(600)), "with another turn");
        assert!(gathering.is_due(now + SPAN));
    }

    #[test]
    fn a_few_packets_and_those_that_come_far_apart_are_read_at_once() {
        for (count, apart) in [(1, 0), (20, 250), (100, 1_000), (1_000, 20_000)] {
            let mut gathering = Gathering::default();
            let now = read(&mut gathering, count, apart, SPAN);
            assert_eq!(gathering.until(), None, "{count} packets {apart} µs apart");
            assert!(!gathering.is_due(now + SPAN));
        }
    }

    #[test]
    fn nothing_waits_while_somebody_waits_for_it() {
        let mut gathering = Gathering::default();
        let now = read(&mut gathering, 100, 250, Duration::ZERO);
        assert_eq!(gathering.until(), None);
        // Nobody does any more.
        gathering.on_empty(now, SPAN);
        assert_eq!(gathering.until(), Some(now + SPAN));
        gathering.on_empty(now, Duration::ZERO);
        assert_eq!(gathering.until(), None);
    }

    #[test]
    fn a_run_is_over_when_nothing_came_for_a_millisecond() {
        let mut gathering = Gathering::default();
        let now = read(&mut gathering, 100, 250, SPAN);
        gathering.on_empty(now + SPAN, SPAN);
        assert_eq!(gathering.until(), None);
        gathering.on_packet(now + SPAN.times(5));
        gathering.on_empty(now + SPAN.times(5), SPAN);
        assert_eq!(gathering.until(), None, "it begins anew");
    }
}
