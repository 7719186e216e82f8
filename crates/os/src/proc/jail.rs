//! What a program that is not trusted may do: no rights, a user, limits, few files, and fewer
//! system calls. All of it is prepared before the fork; between fork and exec nothing is
//! allocated.

mod landlock;
mod seccomp;

use std::io;
use std::os::fd::{AsRawFd, FromRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use units::ByteCount;

use super::User;
use super::rights::{drop_all_rights, empty_bounding_set, leave_root};
use crate::OsError;
use crate::error::OrCannot;
use crate::sys::check;
use landlock::Landlock;
use seccomp::Filter;

/// The descriptor at which a jailed program finds the socket that it is given.
pub const SOCKET: i32 = 3;

/// Processes and threads of a jailed program's user.
const PROCESSES: u64 = 1024;

/// How a program is to be locked in.
#[derive(Clone, Debug)]
pub struct Jail {
    /// Whom it runs as; `None`: as this process does.
    pub user: Option<User>,
    /// Its address space.
    pub memory: ByteCount,
    /// Descriptors that it may have open.
    pub descriptors: u64,
    /// Files and directories that it may read, and run programs from. What is not there is
    /// passed over.
    pub reads: Vec<PathBuf>,
    /// Directories in which it may write, too.
    pub writes: Vec<PathBuf>,
}

/// Which of the kernel's means were there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Locks {
    /// The version of landlock; 0: none, so that only users and modes protect files.
    pub landlock: u32,
    /// System calls are filtered.
    pub seccomp: bool,
}

/// Where a program's shared libraries, interpreters and their data are. Of `/etc` only what the
/// C library asks for: its other files are others'.
const SYSTEM: [&str; 17] = [
    "/usr",
    "/bin",
    "/lib",
    "/lib32",
    "/lib64",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ssl",
    "/etc/ca-certificates",
    "/etc/localtime",
    "/etc/mime.types",
    "/etc/nsswitch.conf",
    "/etc/hosts",
    "/etc/resolv.conf",
    "/etc/passwd",
    "/etc/group",
    "/dev/urandom",
];

/// Has `command` run in `jail`, with `socket` as its descriptor [`SOCKET`] and, beside the
/// standard three, no other. It leads a process group of its own and dies with the thread that
/// starts it.
pub fn lock_in(command: &mut Command, jail: &Jail, socket: OwnedFd) -> Result<Locks, OsError> {
    occupy_socket_number()?;
    let system = SYSTEM.iter().map(PathBuf::from);
    let reads: Vec<PathBuf> = system.chain(jail.reads.iter().cloned()).collect();
    let landlock = Landlock::prepare(&reads, &jail.writes)?;
    let filter = Filter::new();
    let locks = Locks {
        landlock: landlock.as_ref().map_or(0, Landlock::version),
        seccomp: filter.is_some(),
    };
    let user = jail.user.as_ref().map(|user| (user.uid, user.gid));
    let limits = [
        (libc::RLIMIT_AS, jail.memory.0),
        (libc::RLIMIT_NOFILE, jail.descriptors),
        (libc::RLIMIT_CORE, super::NO_CORE),
        // They are counted by user: of the one who runs the gateway there may be many.
        (libc::RLIMIT_NPROC, if user.is_some() { PROCESSES } else { u64::MAX }),
    ];
    // SAFETY: getpid cannot fail.
    let parent = unsafe { libc::getpid() };
    let enter = move || {
        // SAFETY: no pointers are passed.
        check(unsafe { libc::setsid() })?;
        super::unblock_signals()?;
        empty_bounding_set();
        if let Some((uid, gid)) = user {
            leave_root(uid, gid)?;
        }
        // After the change of user, which would forget it.
        die_with(parent)?;
        drop_all_rights()?;
        for (what, most) in limits {
            limit(what, most)?;
        }
        if let Some(landlock) = &landlock {
            landlock.enter()?;
        }
        hand_over(&socket)?;
        filter.as_ref().map_or(Ok(()), Filter::enter)
    };
    // SAFETY: the closure makes plain system calls and allocates nothing, so it may run
    // between fork and exec.
    unsafe { command.pre_exec(enter) };
    Ok(locks)
}

/// The standard library has descriptors of its own between fork and exec, which must not have
/// the number of the socket.
fn occupy_socket_number() -> Result<(), OsError> {
    let null = std::fs::File::open("/dev/null").or_cannot(|| "open /dev/null".into())?;
    // The lowest number that is free from there on: never one that another thread has just got.
    // SAFETY: no pointers are passed.
    let kept = check(unsafe { libc::fcntl(null.as_raw_fd(), libc::F_DUPFD_CLOEXEC, SOCKET) })
        .or_cannot(|| "keep a descriptor's number".into())?;
    if kept != SOCKET {
        // SAFETY: it was made above, and nobody else knows of it.
        drop(unsafe { OwnedFd::from_raw_fd(kept) });
    }
    if null.as_raw_fd() == SOCKET {
        // For as long as this process lives.
        std::mem::forget(null);
    }
    Ok(())
}

fn die_with(parent: libc::pid_t) -> io::Result<()> {
    // SAFETY: no pointers are passed.
    check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) })?;
    // The parent may have died before the request.
    // SAFETY: getppid cannot fail.
    match unsafe { libc::getppid() } == parent {
        true => Ok(()),
        false => Err(io::Error::from_raw_os_error(libc::ESRCH)),
    }
}

/// Allocates nothing.
pub(super) fn limit(what: libc::__rlimit_resource_t, most: u64) -> io::Result<()> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` outlives both calls.
    unsafe {
        check(libc::getrlimit(what, &mut limit))?;
        // Nobody may raise a limit without the right to it.
        let most = most.min(limit.rlim_max);
        limit = libc::rlimit { rlim_cur: most, rlim_max: most };
        check(libc::setrlimit(what, &limit)).map(drop)
    }
}

/// `socket` gets its number, and everything above is closed on exec.
fn hand_over(socket: &OwnedFd) -> io::Result<()> {
    // SAFETY: no pointers are passed; CLOEXEC only marks descriptors.
    unsafe {
        libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, libc::CLOSE_RANGE_CLOEXEC);
        if socket.as_raw_fd() == SOCKET {
            return check(libc::fcntl(SOCKET, libc::F_SETFD, 0)).map(drop);
        }
        check(libc::dup2(socket.as_raw_fd(), SOCKET)).map(drop)
    }
}

#[cfg(test)]
mod tests;
