//! When the kernel received something, by its wall clock.

use units::Duration;

/// The wall clock in nanoseconds, for no purpose but to compare it with the kernel's
/// timestamps.
pub(crate) fn wall_clock() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |d| d.as_nanos() as u64)
}

/// How long ago the stamp was set; zero if there is none, or if it was longer ago than
/// `oldest`: then the wall clock was set meanwhile.
pub(crate) fn age(now: u64, stamp: Option<u64>, oldest: Duration) -> Duration {
    let age = Duration::from_nanos(stamp.map_or(0, |s| now.saturating_sub(s)));
    if age > oldest { Duration::ZERO } else { age }
}

/// The stamp as nanoseconds.
pub(crate) fn nanos(time: libc::timespec) -> u64 {
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_was_set_makes_nothing_old() {
        let oldest = Duration::from_secs(1);
        assert_eq!(age(5_000, Some(2_000), oldest), Duration::from_nanos(3_000));
        assert_eq!(age(5_000, Some(9_000), oldest), Duration::ZERO);
        assert_eq!(age(u64::MAX, Some(0), oldest), Duration::ZERO);
        assert_eq!(age(5_000, None, oldest), Duration::ZERO);
    }
}
