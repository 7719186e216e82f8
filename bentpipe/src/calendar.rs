//! The wall clock, for what is kept for days: files of peers that are gone, and since when
//! hosts are blocked. Nothing else may
//! depend on it (L-CL-1), as it may be set at any time.

use std::time::SystemTime;

/// Seconds since 1970; 0 where the clock stands before that.
pub fn seconds() -> u64 {
    seconds_of(SystemTime::now())
}

/// The same of a file's time.
pub fn seconds_of(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}
