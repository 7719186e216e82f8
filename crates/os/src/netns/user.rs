//! Namespaces without rights: root in a user namespace of its own.

use std::fs;
use std::io;

use crate::OsError;
use crate::sys::check;

/// Makes the calling process root in a user namespace of its own, with a network, a
/// mount table and an empty `/run` of its own, so that namespaces can be made without
/// rights. Call it first thing: the process must still have a single thread.
///
/// For root it is not needed, and would only take rights away.
pub fn enter_user_namespace() -> Result<(), OsError> {
    // SAFETY: these calls only read the process's own numbers.
    let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
    let kinds = libc::CLONE_NEWUSER | libc::CLONE_NEWNET | libc::CLONE_NEWNS;
    // SAFETY: no pointers are passed.
    check(unsafe { libc::unshare(kinds) }).map_err(|e| refused("make a user namespace", e))?;
    // Group mapping is allowed to the unprivileged only with setgroups switched off.
    write("/proc/self/setgroups", "deny")?;
    write("/proc/self/uid_map", &format!("0 {uid} 1"))?;
    write("/proc/self/gid_map", &format!("0 {gid} 1"))?;
    mount_empty_run().map_err(|e| refused("mount a /run of its own", e))
}

/// `ip netns` keeps its names in /run, which belongs to the real root.
fn mount_empty_run() -> io::Result<()> {
    // SAFETY: all strings are zero-terminated literals; the source and data are not used.
    unsafe {
        let all = libc::MS_REC | libc::MS_PRIVATE;
        check(libc::mount(c"none".as_ptr(), c"/".as_ptr(), c"".as_ptr(), all, std::ptr::null()))?;
        let tmpfs = c"tmpfs".as_ptr();
        check(libc::mount(tmpfs, c"/run".as_ptr(), tmpfs, 0, std::ptr::null()))?;
    }
    Ok(())
}

fn write(path: &str, text: &str) -> Result<(), OsError> {
    fs::write(path, text).map_err(|e| refused(&format!("write {path}"), e))
}

fn refused(what: &str, e: io::Error) -> OsError {
    let mend = match e.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            "run as root, or allow it: `sysctl kernel.unprivileged_userns_clone=1` and, \
             with AppArmor, `sysctl kernel.apparmor_restrict_unprivileged_userns=0`"
        }
        Some(libc::ENOSPC) => "raise the limit: `sysctl user.max_user_namespaces=1000`",
        Some(libc::EINVAL) => {
            "the process already has more than one thread, or the kernel lacks it"
        }
        _ => "run as root",
    };
    OsError::new(what, e).mend(mend)
}
