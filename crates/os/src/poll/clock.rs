//! The kernel's steady clocks, since the program's start.

use units::{Duration, Instant};

/// Which of the kernel's clocks to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum ClockSource {
    /// Goes on while the machine sleeps: right for keys, tariffs and time-outs.
    #[default]
    BootTime,
    /// Stands still while the machine sleeps.
    Monotonic,
}

/// Time since this clock was started. Neither source follows the wall clock, so a
/// ship's clock may be set without anything here noticing. Reading costs no system call.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    id: libc::clockid_t,
    start: u64,
}

impl Clock {
    /// A clock that shows zero now and counts sleep.
    pub fn start() -> Clock {
        Clock::start_on(ClockSource::default())
    }

    /// A clock on `source` that shows zero now.
    pub fn start_on(source: ClockSource) -> Clock {
        let id = match source {
            ClockSource::BootTime => libc::CLOCK_BOOTTIME,
            ClockSource::Monotonic => libc::CLOCK_MONOTONIC,
        };
        Clock { id, start: read(id) }
    }

    /// The time since the start.
    pub fn now(&self) -> Instant {
        Instant::from_nanos(read(self.id).saturating_sub(self.start))
    }
}

/// How long the machine has slept since it was booted.
pub fn asleep() -> Duration {
    loop {
        let awake = read(libc::CLOCK_MONOTONIC);
        let all = read(libc::CLOCK_BOOTTIME);
        // A thread that others kept waiting between the readings did not sleep.
        if read(libc::CLOCK_MONOTONIC) - awake < 100_000_000 {
            return Duration::from_nanos(all.saturating_sub(awake));
        }
    }
}

fn read(id: libc::clockid_t) -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `t` outlives the call. It cannot fail: both clocks exist since Linux 2.6.39.
    unsafe { libc::clock_gettime(id, &mut t) };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_clocks_start_near_zero_and_never_step_back() {
        for source in [ClockSource::BootTime, ClockSource::Monotonic] {
            let clock = Clock::start_on(source);
            let mut last = clock.now();
            assert!(last < Instant::from_nanos(10_000_000_000));
            for _ in 0..1_000 {
                let now = clock.now();
                assert!(now >= last);
                last = now;
            }
            assert!(last > Instant::ZERO);
        }
    }
}
