//! How long a host is waited for that takes nothing of what it is still to get. Sans-IO.

use units::{Duration, Instant};

/// How long a host may take nothing of what came before its peer's reset.
pub const RESET: Duration = Duration::from_secs(5);
/// The same of a far host, while ours has reset and not all is read that it gave before: what is
/// under way is the link's business, and told about by reports that may be late.
pub const FAR_RESET: Duration = Duration::from_secs(60);

/// A limit on time without progress.
#[derive(Debug)]
pub struct Patience {
    limit: Duration,
    until: Instant,
    progress: u64,
}

impl Patience {
    /// From now on. `progress` is any number that changes when something moves.
    pub fn begin(now: Instant, limit: Duration, progress: u64) -> Patience {
        Patience { limit, until: now + limit, progress }
    }

    /// Has the time passed without progress? Progress since the last look begins it anew.
    pub fn is_over(&mut self, now: Instant, progress: u64) -> bool {
        if progress != self.progress {
            *self = Patience::begin(now, self.limit, progress);
        }
        self.until <= now
    }

    /// When it is over if nothing moves.
    pub fn until(&self) -> Instant {
        self.until
    }
}

/// How far the bytes are that came before a reset.
#[derive(Clone, Copy, Debug)]
pub struct Moved {
    /// Any number of bytes that grows when some of them move.
    pub bytes: u64,
    /// The host has all that could be given to it; the rest is still on the link.
    pub link_delivers: bool,
}

/// A flow of which one side gave up. What came before is the other host's, for as long as it takes
/// of it; the link may take whatever time it needs.
#[derive(Debug)]
pub struct Resetting(Patience);

impl Resetting {
    /// The reset has come. The host that is left may take nothing for `limit`.
    pub fn begin(now: Instant, limit: Duration, moved: Moved) -> Resetting {
        Resetting(Patience::begin(now, limit, moved.bytes))
    }

    /// When it is to be looked at.
    pub fn at(&self) -> Instant {
        self.0.until()
    }

    /// Is the host to be reset now, whatever it has not taken?
    pub fn is_due(&mut self, now: Instant, moved: Moved) -> bool {
        if moved.link_delivers {
            *self = Resetting::begin(now, self.0.limit, moved);
        }
        self.0.is_over(now, moved.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STOPPED: Moved = Moved { bytes: 0, link_delivers: false };

    fn at(secs: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(secs)
    }

    #[test]
    fn a_host_that_takes_nothing_is_reset_after_five_seconds() {
        let mut resetting = Resetting::begin(at(1), RESET, STOPPED);
        assert_eq!(resetting.at(), at(6));
        assert!((1..6).all(|secs| !resetting.is_due(at(secs), STOPPED)));
        assert!(resetting.is_due(at(6), STOPPED));
    }

    #[test]
    fn a_host_that_takes_a_byte_each_two_seconds_is_never_reset() {
        let mut resetting = Resetting::begin(at(0), RESET, STOPPED);
        for secs in 1..1000 {
            let moved = Moved { bytes: secs / 2, ..STOPPED };
            assert!(!resetting.is_due(at(secs), moved), "after {secs} s");
            assert!(resetting.at() > at(secs));
        }
    }

    #[test]
    fn a_look_once_in_five_seconds_sees_what_moved_in_between() {
        let mut resetting = Resetting::begin(at(0), RESET, STOPPED);
        for n in 1..200 {
            let now = resetting.at();
            assert!(!resetting.is_due(now, Moved { bytes: n, ..STOPPED }));
        }
        let stopped = Moved { bytes: 199, ..STOPPED };
        assert!(resetting.is_due(resetting.at(), stopped));
    }

    #[test]
    fn while_the_link_delivers_nobody_is_reset() {
        let begin = Moved { bytes: 0, link_delivers: true };
        let mut resetting = Resetting::begin(at(0), RESET, begin);
        assert!((1..1000).all(|secs| !resetting.is_due(at(secs), begin)));
        // Bytes come though the host takes none of those before: that has an end, and is
        // waited for.
        let coming = |secs| Moved { bytes: secs, ..STOPPED };
        assert!((1000..1100).all(|secs| !resetting.is_due(at(secs), coming(secs))));
        assert!(!resetting.is_due(at(1103), coming(1099)));
        assert!(resetting.is_due(at(1104), coming(1099)));
    }
}
