//! This process: limits, rights, precision, use of memory and time; and its children.

pub mod jail;
mod rights;

pub(crate) use rights::confine;
pub use rights::{Right, User, become_user, drop_rights, find_user, has_right, keep_rights};

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

use units::{ByteCount, Duration};

use crate::OsError;
use crate::error::OrCannot;
use crate::sys::{check, retry};

/// Raises the number of descriptors that may be open to the most that is allowed, and
/// returns it. A gateway needs one for each connection and some twenty besides.
pub fn raise_descriptor_limit() -> Result<u64, OsError> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` outlives both calls.
    unsafe {
        check(libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit))
            .or_cannot(|| "read the limit on open descriptors".into())?;
        limit.rlim_cur = limit.rlim_max;
        check(libc::setrlimit(libc::RLIMIT_NOFILE, &limit))
            .or_cannot(|| "raise the limit on open descriptors".into())?;
    }
    Ok(limit.rlim_cur)
}

/// The limit on images of a process that crashes under which the system writes none: no file fits
/// into a byte, and to a program that takes images the kernel gives none under just this limit
/// (Linux: `fs/coredump.c`; a limit of 0 does not count there, core(5)).
const NO_CORE: u64 = 1;

/// Has the system write no image of this process when it crashes: it would have the keys.
pub fn leave_no_core() -> Result<(), OsError> {
    jail::limit(libc::RLIMIT_CORE, NO_CORE).or_cannot(|| "set the limit on core files".into())
}

/// Gives memory that was freed back to the system: the allocator keeps it otherwise, and what
/// was needed once, to read a long file, would count for ever.
pub fn give_back_memory() {
    // SAFETY: the allocator does this under its own locks; no pointers are passed.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Makes the waits of this thread, and of those it starts from now on, end when they
/// should. The kernel otherwise allows itself 50 µs of slack to save power.
pub fn precise_timers() -> Result<(), OsError> {
    // SAFETY: no pointers are passed.
    check(unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) })
        .map(drop)
        .or_cannot(|| "ask for precise timers".into())
}

/// How much nicer than others a thread is that [`go_first`]: it gets nine times their part
/// of a processor that all want (sched(7)).
const FIRST: libc::c_int = -10;

/// Puts this thread before ordinary ones where a processor is short, as nice -10 does, but
/// not the threads and programs that it starts. Takes root or CAP_SYS_NICE; true if it
/// worked.
pub fn go_first() -> bool {
    // SAFETY: no pointers are passed; 0 is the calling thread.
    let nice = check(unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, FIRST) });
    let ordinary = libc::sched_param { sched_priority: 0 };
    let policy = libc::SCHED_OTHER | libc::SCHED_RESET_ON_FORK;
    // SAFETY: `ordinary` outlives the call; 0 is the calling thread.
    let own = check(unsafe { libc::sched_setscheduler(0, policy, &ordinary) });
    nice.is_ok() && own.is_ok()
}

/// Where this thread goes first, so do the threads and programs that it starts from now on,
/// until it calls [`go_first`] again: they need no right for it. Takes root or CAP_SYS_NICE;
/// true if it worked.
pub fn hand_going_first_down() -> bool {
    let ordinary = libc::sched_param { sched_priority: 0 };
    // SAFETY: `ordinary` outlives the call; 0 is the calling thread.
    check(unsafe { libc::sched_setscheduler(0, libc::SCHED_OTHER, &ordinary) }).is_ok()
}

/// Puts this thread among ordinary ones, if it was before them.
pub fn go_with_others() {
    // SAFETY: no pointers are passed; 0 is the calling thread. To be nicer needs no right.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 0) };
}

/// `N` bytes of the system's randomness, fit for keys.
pub fn entropy<const N: usize>() -> Result<[u8; N], OsError> {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        let rest = &mut bytes[filled..];
        let got = retry(|| {
            // SAFETY: pointer and length describe `rest`.
            crate::sys::check_len(unsafe {
                libc::getrandom(rest.as_mut_ptr().cast(), rest.len(), 0)
            })
        });
        filled += got.or_cannot(|| "get random bytes".into())?;
    }
    Ok(bytes)
}

/// What this process uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Memory in RAM, that of shared libraries included.
    pub resident: ByteCount,
    /// Processor time since the start, user and system, all threads.
    pub cpu: Duration,
}

/// What this process uses now.
pub fn usage() -> Result<Usage, OsError> {
    let what = || "read this process's use of memory".to_owned();
    let statm = fs::read_to_string("/proc/self/statm").or_cannot(what)?;
    let pages: u64 = statm.split(' ').nth(1).and_then(|n| n.parse().ok()).unwrap_or(0);
    // SAFETY: no pointers are passed.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) }.max(0) as u64;
    let cpu = time_of(libc::CLOCK_PROCESS_CPUTIME_ID)
        .or_cannot(|| "read this process's processor time".into())?;
    Ok(Usage { resident: ByteCount(pages * page), cpu })
}

/// Processor time that the process of this number has used, user and system, of all its threads,
/// also of those that have ended. It is as exact as the scheduler's own books, where
/// `/proc/PID/stat` tells both times in whole hundredths of a second.
///
/// # Errors
/// If there is no such process.
pub fn cpu_of(pid: u32) -> io::Result<Duration> {
    let mut clock = 0;
    // SAFETY: `clock` outlives the call.
    match unsafe { libc::clock_getcpuclockid(pid as libc::pid_t, &mut clock) } {
        0 => time_of(clock),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

fn time_of(clock: libc::clockid_t) -> io::Result<Duration> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` outlives the call.
    check(unsafe { libc::clock_gettime(clock, &mut time) })?;
    Ok(Duration::from_secs(time.tv_sec as u64) + Duration::from_nanos(time.tv_nsec as u64))
}

/// How long this thread has been ready to run and had no processor, since it began. `None`: the
/// kernel does not count that.
pub fn run_delay() -> Option<Duration> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split_ascii_whitespace().nth(1)?.parse().ok().map(Duration::from_nanos)
}

/// Processor time that the calling thread has used, user and system; zero where the kernel
/// does not tell.
pub fn thread_cpu() -> Duration {
    time_of(libc::CLOCK_THREAD_CPUTIME_ID).unwrap_or_default()
}

/// Starts `command` with no signal blocked, whatever [`crate::poll::Signals`] blocks here.
pub fn reset_signals(command: &mut Command) -> &mut Command {
    // SAFETY: the closure makes plain system calls and allocates nothing, so it may run
    // between fork and exec.
    unsafe { command.pre_exec(unblock_signals) }
}

/// Has the kernel kill the child when the thread that starts it ends, however that
/// happens. Start it from a thread that lives as long as it should.
pub fn die_with_parent(command: &mut Command) -> &mut Command {
    // SAFETY: getpid cannot fail.
    let parent = unsafe { libc::getpid() };
    let ask = move || {
        // SAFETY: no pointers are passed.
        check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) })?;
        // The parent may have died before the request.
        // SAFETY: getppid cannot fail.
        match unsafe { libc::getppid() } == parent {
            true => Ok(()),
            false => Err(io::Error::from_raw_os_error(libc::ESRCH)),
        }
    };
    // SAFETY: as in `reset_signals`.
    unsafe { command.pre_exec(ask) }
}

/// True if the child has ended. It stays to be waited for: its number is no other's before.
pub fn has_ended(child: &Child) -> io::Result<bool> {
    // SAFETY: a siginfo_t is integers; all zero is valid.
    let mut about: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let how = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: `about` outlives the call.
    check(unsafe { libc::waitid(libc::P_PID, child.id(), &mut about, how) })?;
    // SAFETY: waitid has filled it, with 0 where nothing has ended.
    Ok(unsafe { about.si_pid() } != 0)
}

/// A descriptor that can be read once the child has ended.
pub fn end_of(child: &Child) -> io::Result<OwnedFd> {
    // SAFETY: no pointers are passed.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, child.id() as libc::pid_t, 0u32) };
    crate::sys::own(fd as libc::c_int)
}

/// Is this process root's?
pub fn is_root() -> bool {
    // SAFETY: it cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// Kills a child that has a process group of its own, with all that is in the group.
pub fn kill_group(child: &Child) {
    // SAFETY: no pointers are passed; the child has not been waited for, so the number is its.
    unsafe { libc::kill(-(child.id() as libc::pid_t), libc::SIGKILL) };
}

/// One that was killed and still runs hangs in the kernel, as on a device that does: nobody waits
/// longer for it.
const DIES: std::time::Duration = std::time::Duration::from_secs(2);

/// Ends a child that has a process group of its own, with all that is in the group.
pub fn end_group(child: &mut Child) {
    kill_group(child);
    let until = std::time::Instant::now() + DIES;
    while !has_ended(child).unwrap_or(true) {
        if std::time::Instant::now() >= until {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let _ = child.wait();
}

/// For use between fork and exec.
pub(crate) fn unblock_signals() -> io::Result<()> {
    let mut set = std::mem::MaybeUninit::uninit();
    // SAFETY: sigemptyset initialises `set` before it is used.
    check(unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigprocmask(libc::SIG_SETMASK, set.as_ptr(), std::ptr::null_mut())
    })
    .map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn the_descriptor_limit_ends_at_its_maximum() {
        let limit = raise_descriptor_limit().unwrap();
        assert!(limit >= 1024);
        let seen = Command::new("sh").args(["-c", "ulimit -n"]).output().unwrap();
        assert_eq!(String::from_utf8(seen.stdout).unwrap().trim(), limit.to_string());
    }

    #[test]
    fn timers_of_this_thread_become_precise() {
        thread::spawn(|| {
            precise_timers().unwrap();
            // SAFETY: no pointers are passed.
            assert_eq!(unsafe { libc::prctl(libc::PR_GET_TIMERSLACK) }, 1);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_thread_that_goes_first_does_not_hand_that_down_unless_told() {
        // SAFETY: no pointers are passed.
        let nice = || unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
        thread::spawn(move || {
            let before = nice();
            // Only root may.
            let first = go_first();
            assert_eq!(nice(), if first { FIRST } else { before });
            let child = thread::spawn(nice).join().unwrap();
            assert!(child >= 0 || !first, "{child}");
            // Unless that is wanted, and then again until it is not.
            if first && hand_going_first_down() {
                let heir = move || (nice(), go_first(), thread::spawn(nice).join().unwrap());
                assert_eq!(thread::spawn(heir).join().unwrap(), (FIRST, true, 0));
                let modest = move || (go_with_others(), nice());
                assert_eq!(thread::spawn(modest).join().unwrap(), ((), 0));
                assert!(go_first());
                assert_eq!(thread::spawn(nice).join().unwrap(), 0);
            }
        })
        .join()
        .unwrap();
    }

    #[test]
    fn random_bytes_fill_the_whole_array_and_differ() {
        // L-KY-3: each start of a node is seeded by it.
        let (a, b) = (entropy::<300>().unwrap(), entropy::<300>().unwrap());
        assert_ne!(a, b);
        assert!(a.rchunks(44).all(|piece| piece.iter().any(|byte| *byte != 0)));
    }

    #[test]
    fn memory_that_is_touched_and_time_that_is_spent_are_counted() {
        let before = usage().unwrap();
        let mut block = vec![1u8; 32 << 20];
        let enough = before.cpu + Duration::from_millis(10);
        while usage().unwrap().cpu < enough {
            block.iter_mut().for_each(|byte| *byte = byte.wrapping_add(1));
        }
        assert!(block.iter().all(|byte| *byte == block[0]));
        assert!(usage().unwrap().resident.0 > 16 << 20);
    }

    #[test]
    fn processor_time_of_another_process_is_told_while_it_runs_and_not_when_it_is_gone() {
        let mut child = Command::new("sh")
            .args(["-c", "n=0; while [ $n -lt 99999999 ]; do n=$((n+1)); done"])
            .spawn()
            .unwrap();
        let (before, mut after) = (cpu_of(child.id()).unwrap(), Duration::ZERO);
        while after < before + Duration::from_millis(3) {
            after = cpu_of(child.id()).unwrap();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(cpu_of(child.id()).is_err());
        let [own, told] = [usage().unwrap().cpu, cpu_of(std::process::id()).unwrap()];
        assert!(told >= own, "{told} {own}");
    }

    #[test]
    fn a_child_may_be_stopped_by_a_signal_that_is_blocked_here() {
        let status = thread::spawn(|| {
            let _signals = crate::poll::Signals::take().unwrap();
            let mut command = Command::new("sh");
            command.args(["-c", "kill -TERM $$; echo survived"]);
            (reset_signals(&mut command).status().unwrap(), {
                let mut blocked = Command::new("sh");
                blocked.args(["-c", "kill -TERM $$; exit 7"]).status().unwrap()
            })
        });
        let (reset, blocked) = status.join().unwrap();
        assert_eq!(reset.code(), None);
        assert_eq!(blocked.code(), Some(7));
    }

    #[test]
    fn a_child_dies_with_the_thread_that_started_it() {
        let mut child = thread::spawn(|| {
            let mut command = Command::new("sleep");
            die_with_parent(command.arg("600")).spawn().unwrap()
        })
        .join()
        .unwrap();
        assert_eq!(child.wait().unwrap().code(), None);
    }
}
