//! The kernel's capabilities: which are in force, and giving up all others.

use std::ffi::CString;
use std::io;

use crate::OsError;
use crate::error::OrCannot;
use crate::sys::check;

/// A right of the kernel's (capabilities(7)) that bentpipe uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Right {
    /// Signals to other users' processes.
    Kill = 5,
    /// To become another group, and user.
    SetGid = 6,
    /// The same.
    SetUid = 7,
    /// To take rights out of the bounding set.
    SetPcap = 8,
    /// Ports below 1024.
    BindService = 10,
    /// Interfaces, routes, nftables, transparent sockets, marks.
    NetAdmin = 12,
    /// Packet sockets.
    NetRaw = 13,
    /// Entering namespaces.
    SysAdmin = 21,
}

/// The rights that a gateway needs for as long as it runs.
const KEPT: [Right; 3] = [Right::BindService, Right::NetAdmin, Right::NetRaw];

/// `_LINUX_CAPABILITY_VERSION_3`: two words for each set.
const VERSION: u32 = 0x2008_0522;

#[repr(C)]
struct Header {
    version: u32,
    /// 0: the calling thread.
    pid: i32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
struct Word {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// True if the calling thread has `right` in force.
pub fn has_right(right: Right) -> bool {
    read().is_ok_and(|words| words[0].effective & bit(right) != 0)
}

/// Gives up, for good, all rights but those a gateway needs, here and in every child
/// (`ip` and `nft` get the same few). What the process does not have it does not gain.
/// Rights are a thread's own: call it before the first thread is started.
///
/// Files stay readable as far as their owner and mode say: root loses its exemption.
pub fn drop_rights() -> Result<(), OsError> {
    narrow(&KEPT, || Ok(())).or_cannot(|| "give up rights that are not needed".into())
}

/// Gives up, for good, all rights but these, here and in every child. For programs that start
/// others as other users.
pub fn keep_rights(rights: &[Right]) -> Result<(), OsError> {
    narrow(rights, || Ok(())).or_cannot(|| "give up rights that are not needed".into())
}

/// A user of this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    name: String,
    pub(super) uid: libc::uid_t,
    pub(super) gid: libc::gid_t,
}

impl User {
    /// One who need not be in any list.
    pub fn numbered(uid: u32, gid: u32) -> User {
        User { name: uid.to_string(), uid, gid }
    }

    /// Is he root?
    pub fn is_root(&self) -> bool {
        self.uid == 0 || self.gid == 0
    }

    /// His number and his group's.
    pub fn numbers(&self) -> (u32, u32) {
        (self.uid, self.gid)
    }
}

/// As [`drop_rights`], and goes on as this user, with the groups that he has as at a login: a modem
/// is mostly its group's. Needs root.
pub fn become_user(user: &User) -> Result<(), OsError> {
    let User { name, uid, gid } = user;
    let change = || {
        let login = std::ffi::CString::new(name.as_str())?;
        // SAFETY: the name ends with zero and outlives the call, which is the only one that has a
        // pointer.
        unsafe {
            // Without this, leaving root would leave the rights behind, too.
            check(libc::prctl(libc::PR_SET_KEEPCAPS, 1, 0, 0, 0))?;
            check(libc::initgroups(login.as_ptr(), *gid))?;
            check(libc::setgid(*gid))?;
            check(libc::setuid(*uid)).map(drop)
        }
    };
    narrow(&KEPT, change).map_err(|e| {
        OsError::new(format!("go on as the user {name}"), e).mend("start the program as root")
    })
}

/// Nobody's number, for user and group, on every Linux system.
const NOBODY: libc::uid_t = 65_534;

/// Between fork and exec: the program that follows has `right` and no other, and is not root if
/// that can be left, so that it opens no file that is not everybody's. It cannot be left where
/// this process has given that right up, or in a user namespace that knows no other user.
/// Allocates nothing.
pub(crate) fn confine(right: Right) -> io::Result<()> {
    // SAFETY: no pointers are passed: an empty list of groups is not looked at.
    unsafe {
        check(libc::prctl(libc::PR_SET_KEEPCAPS, 1, 0, 0, 0))?;
        if libc::geteuid() == 0 && libc::setgroups(0, std::ptr::null()) == 0 {
            let changed = check(libc::setresgid(NOBODY, NOBODY, NOBODY))
                .and_then(|_| check(libc::setresuid(NOBODY, NOBODY, NOBODY)));
            match changed {
                Err(e) if e.raw_os_error() != Some(libc::EINVAL) => return Err(e),
                _ => {}
            }
        }
    }
    let kept = read()?[0].permitted & bit(right);
    write([Word { effective: kept, permitted: kept, inheritable: kept }, Word::default()])?;
    // SAFETY: no pointers are passed.
    unsafe {
        check(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))?;
        if kept != 0 {
            let (raise, right) = (libc::PR_CAP_AMBIENT_RAISE, right as libc::c_ulong);
            check(libc::prctl(libc::PR_CAP_AMBIENT, raise, right, 0, 0))?;
        }
    }
    Ok(())
}

/// Between fork and exec: this process goes on as this user, with his group and no other. Where
/// it is that user already, it stays so. Allocates nothing.
pub(super) fn leave_root(uid: libc::uid_t, gid: libc::gid_t) -> io::Result<()> {
    // SAFETY: no pointers are passed: an empty list of groups is not looked at.
    unsafe {
        if libc::geteuid() == uid {
            return Ok(());
        }
        check(libc::setgroups(0, std::ptr::null()))?;
        check(libc::setresgid(gid, gid, gid))?;
        check(libc::setresuid(uid, uid, uid)).map(drop)
    }
}

/// Between fork and exec: no child of root's gets rights anew. Allocates nothing.
pub(super) fn empty_bounding_set() {
    for number in 0..64 {
        // SAFETY: no pointers are passed. It fails for numbers that this kernel does not have,
        // and without CAP_SETPCAP, where "no new privileges" has to do.
        unsafe { libc::prctl(libc::PR_CAPBSET_DROP, number, 0, 0, 0) };
    }
}

/// Between fork and exec: what follows has no rights and gains none. Allocates nothing.
pub(super) fn drop_all_rights() -> io::Result<()> {
    // SAFETY: no pointers are passed.
    unsafe {
        check(libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0))?;
        check(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))?;
    }
    write([Word::default(), Word::default()])
}

fn narrow(rights: &[Right], change_user: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    let before = read()?;
    let kept = rights.iter().copied().map(bit).fold(0, |all, b| all | b) & before[0].permitted;
    // The bounding set ends what a child run by root would get anew. Without CAP_SETPCAP
    // it cannot be changed, but then "no new privileges" is what counts.
    for number in 0..64 {
        if number >= 32 || kept & (1 << number) == 0 {
            // SAFETY: no pointers are passed to any prctl here. It fails for numbers that
            // this kernel does not have.
            unsafe { libc::prctl(libc::PR_CAPBSET_DROP, number, 0, 0, 0) };
        }
    }
    change_user()?;
    // SAFETY: see above.
    check(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) })?;
    let word = Word { effective: kept, permitted: kept, inheritable: kept };
    write([word, Word::default()])?;
    for right in rights.iter().filter(|r| kept & bit(**r) != 0) {
        let raise = libc::PR_CAP_AMBIENT_RAISE;
        // SAFETY: see above.
        check(unsafe { libc::prctl(libc::PR_CAP_AMBIENT, raise, *right as libc::c_ulong, 0, 0) })?;
    }
    Ok(())
}

/// The user called `name`, or with this number, whose group then has it, too.
///
/// # Errors
/// If there is none of this name.
pub fn find_user(name: &str) -> Result<User, OsError> {
    let user = |uid, gid| User { name: name.to_owned(), uid, gid };
    if let Ok(number) = name.parse() {
        return Ok(user(number, number));
    }
    let unknown = || {
        OsError::refused(format!("there is no user \"{name}\" on this host"))
            .mend(format!("add one: `useradd --system {name}`"))
    };
    let c_name = CString::new(name).map_err(|_| unknown())?;
    let mut buf = vec![0; 16 << 10];
    let mut found = std::ptr::null_mut();
    // SAFETY: a passwd is integers and pointers; all zero is valid.
    let mut entry: libc::passwd = unsafe { std::mem::zeroed() };
    // SAFETY: the name is zero-terminated; `entry`, `found` and `buf`, with its length,
    // outlive the call and the use of the answer.
    let failed = unsafe {
        libc::getpwnam_r(c_name.as_ptr(), &mut entry, buf.as_mut_ptr(), buf.len(), &mut found)
    };
    if failed != 0 || found.is_null() {
        return Err(unknown());
    }
    Ok(user(entry.pw_uid, entry.pw_gid))
}

fn bit(right: Right) -> u32 {
    1 << right as u32
}

fn read() -> io::Result<[Word; 2]> {
    let header = Header { version: VERSION, pid: 0 };
    let mut words = [Word::default(); 2];
    // SAFETY: version 3 reads the header and writes two words; both outlive the call.
    check(unsafe { libc::syscall(libc::SYS_capget, &raw const header, words.as_mut_ptr()) } as i32)?;
    Ok(words)
}

fn write(words: [Word; 2]) -> io::Result<()> {
    let header = Header { version: VERSION, pid: 0 };
    // SAFETY: version 3 reads the header and two words; both outlive the call.
    check(unsafe { libc::syscall(libc::SYS_capset, &raw const header, words.as_ptr()) } as i32)
        .map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netns::{NetNs, root_alone};
    use crate::tun::Tun;
    use std::fs;
    use std::process::Command;
    use std::thread;

    #[test]
    fn after_dropping_the_network_still_obeys_and_nothing_else_does() {
        if !root_alone() {
            return;
        }
        let ns = NetNs::unique("ostest", "rights").unwrap();
        let inside = ns.clone(); // the last handle removes it, which takes rights
        thread::spawn(move || {
            let ns = inside;
            ns.enter().unwrap();
            assert!(has_right(Right::SysAdmin) && has_right(Right::NetAdmin));
            drop_rights().unwrap();
            assert!(!has_right(Right::SysAdmin) && has_right(Right::NetAdmin));
            let _tun = Tun::open("bpr0", 1500).unwrap();
            let route = ["route", "add", "10.0.0.0/8", "dev", "bpr0"];
            let added = Command::new("ip").args(route).status().unwrap();
            assert!(added.success(), "a child has the rights, too");
            assert!(ns.enter().is_err(), "entering a namespace takes a right that is gone");
            let status = fs::read_to_string("/proc/thread-self/status").unwrap();
            let bounding = status.lines().find(|l| l.starts_with("CapBnd:")).unwrap();
            assert!(bounding.ends_with("0000000000003400"), "{bounding}");
        })
        .join()
        .unwrap();
    }

    #[test]
    fn users_are_found_by_name_and_number_and_unknown_ones_named() {
        let ids = |name| find_user(name).map(|user| (user.uid, user.gid)).unwrap();
        assert_eq!(ids("root"), (0, 0));
        assert_eq!(ids("65534"), (65_534, 65_534));
        for nobody in ["no-such-user", "nul\0", ""] {
            let e = find_user(nobody).unwrap_err().to_string();
            assert!(e.starts_with("there is no user"), "{e}");
        }
    }
}
