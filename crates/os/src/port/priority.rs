//! What a thread needs that has to act at given times to a fraction of a millisecond.

use crate::sys::check;

/// Wakes the calling thread at the time it asked for (the kernel may be 50 µs late
/// otherwise) and puts it before ordinary threads. Without the rights for the second
/// the first still holds; true if both worked.
pub fn hurry() -> bool {
    const ONE_NANOSECOND: libc::c_ulong = 1;
    const FIRST_AMONG_ORDINARY: libc::c_int = -20;
    // SAFETY: this call takes integers and changes the calling thread only.
    let slack = check(unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, ONE_NANOSECOND) });
    // SAFETY: no pointers are passed; on Linux 0 means the calling thread.
    let nice = check(unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, FIRST_AMONG_ORDINARY) });
    slack.is_ok() && nice.is_ok()
}
