//! What a thread needs that has to act at given times to a fraction of a millisecond.

use crate::sys::check;

/// Wakes the calling thread at the time it asked for (the kernel may be 50 µs late
/// otherwise) and puts it before ordinary threads: in the lowest real-time class, so
/// that the very processes whose packets it delivers do not interrupt it in the middle
/// of a batch. The caller must sleep often; the kernel leaves others 5 % in any case.
/// Without the rights for the second the first still holds; true if both worked.
pub fn hurry() -> bool {
    const ONE_NANOSECOND: libc::c_ulong = 1;
    // SAFETY: this call takes integers and changes the calling thread only.
    let slack = check(unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, ONE_NANOSECOND) });
    let lowest = libc::sched_param { sched_priority: 1 };
    // A child must not inherit it by accident.
    let policy = libc::SCHED_RR | libc::SCHED_RESET_ON_FORK;
    // SAFETY: `lowest` outlives the call; 0 means the calling thread.
    let class = check(unsafe { libc::sched_setscheduler(0, policy, &lowest) });
    slack.is_ok() && class.is_ok()
}
