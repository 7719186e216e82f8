//! This process: its limits, timers and entropy.

use crate::OsError;
use crate::error::OrCannot;
use crate::sys::check;

/// Timers of this thread fire when they are due, not up to 50 µs later.
pub fn precise_timers() -> Result<(), OsError> {
    // SAFETY: no pointers are passed.
    check(unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) })
        .map(drop)
        .or_cannot(|| "make timers precise".into())
}

/// Raises the limit of open descriptors as far as the system lets this process; the
/// limit in force.
pub fn raise_descriptor_limit() -> Result<u64, OsError> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` outlives both calls.
    unsafe {
        check(libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit))
            .or_cannot(|| "read the limit of open descriptors".into())?;
        limit.rlim_cur = limit.rlim_max;
        check(libc::setrlimit(libc::RLIMIT_NOFILE, &limit))
            .or_cannot(|| "raise the limit of open descriptors".into())?;
    }
    Ok(limit.rlim_cur)
}

/// 32 bytes of the system's entropy.
pub fn entropy() -> Result<[u8; 32], OsError> {
    let mut seed = [0u8; 32];
    // SAFETY: pointer and length describe `seed`. Up to 256 bytes come whole.
    check(unsafe { libc::getrandom(seed.as_mut_ptr().cast(), seed.len(), 0) } as libc::c_int)
        .or_cannot(|| "read the system's entropy".into())?;
    Ok(seed)
}
