//! Landlock (landlock(7)): which files a process may open, and that it makes no connections.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use crate::OsError;
use crate::error::OrCannot;
use crate::sys::{check, own};

/// `struct landlock_ruleset_attr`, as version 6 has it.
#[repr(C)]
struct Ruleset {
    files: u64,
    ports: u64,
    scoped: u64,
}

/// `struct landlock_path_beneath_attr`, which is packed.
#[repr(C, packed)]
struct Beneath {
    allowed: u64,
    parent: i32,
}

const CREATE_RULESET_VERSION: u32 = 1;
const RULE_PATH_BENEATH: u32 = 1;

const EXECUTE: u64 = 1;
const READ_FILE: u64 = 1 << 2;
const READ_DIR: u64 = 1 << 3;
/// All that version 1 knows, and what later ones added: to move between directories (2), to cut
/// files (3), to control devices (5).
const FILES_V1: u64 = (1 << 13) - 1;
const REFER: u64 = 1 << 13;
const TRUNCATE: u64 = 1 << 14;
const CONTROL_DEVICES: u64 = 1 << 15;
/// What may be granted for something that is no directory.
const OF_FILES: u64 = EXECUTE | READ_FILE | 1 << 1 | TRUNCATE | CONTROL_DEVICES;
/// To bind and connect TCP sockets (4).
const PORTS: u64 = 0b11;
/// Abstract Unix sockets of others, and signals to them (6).
const SCOPED: u64 = 0b11;

/// Rules that are ready to be entered.
#[derive(Debug)]
pub struct Landlock {
    rules: OwnedFd,
    version: u32,
}

impl Landlock {
    /// `None` where the kernel has none.
    pub fn prepare(reads: &[PathBuf], writes: &[PathBuf]) -> Result<Option<Landlock>, OsError> {
        // SAFETY: the call is asked for its version and reads nothing.
        let version = unsafe {
            let nothing = std::ptr::null::<Ruleset>();
            libc::syscall(
                libc::SYS_landlock_create_ruleset,
                nothing,
                0usize,
                CREATE_RULESET_VERSION,
            )
        };
        let Ok(version @ 1..) = u32::try_from(version) else { return Ok(None) };
        let later = |since, bits| if version >= since { bits } else { 0 };
        let files = FILES_V1 | later(2, REFER) | later(3, TRUNCATE) | later(5, CONTROL_DEVICES);
        let ruleset = Ruleset { files, ports: later(4, PORTS), scoped: later(6, SCOPED) };
        // Older kernels refuse what is longer than they know, unless the rest is zero.
        // SAFETY: pointer and length describe `ruleset`, which outlives the call.
        let rules = own(unsafe {
            let len = size_of::<Ruleset>();
            libc::syscall(libc::SYS_landlock_create_ruleset, &raw const ruleset, len, 0u32)
        } as libc::c_int)
        .or_cannot(|| "make rules for landlock".into())?;
        let landlock = Landlock { rules, version };
        for path in reads {
            landlock.grant(path, EXECUTE | READ_FILE | READ_DIR)?;
        }
        for path in writes {
            landlock.grant(path, files & !EXECUTE)?;
        }
        landlock.grant(Path::new("/dev/null"), READ_FILE | 1 << 1)?;
        Ok(Some(landlock))
    }

    pub fn version(&self) -> u32 {
        self.version
    }

    /// Below `path`; what is not there needs no grant.
    fn grant(&self, path: &Path, rights: u64) -> Result<(), OsError> {
        let name = CString::new(path.as_os_str().as_bytes())
            .map_err(|_| OsError::refused(format!("{} is no path", path.display())))?;
        // SAFETY: `name` ends in a zero and outlives the call.
        let opened = own(unsafe { libc::open(name.as_ptr(), libc::O_PATH | libc::O_CLOEXEC) });
        let Ok(place) = opened.map(File::from) else { return Ok(()) };
        let is_dir = place.metadata().is_ok_and(|about| about.is_dir());
        let allowed = if is_dir { rights } else { rights & OF_FILES };
        let beneath = Beneath { allowed, parent: place.as_raw_fd() };
        // SAFETY: `beneath` outlives the call, and both descriptors are open.
        check(unsafe {
            let rules = self.rules.as_raw_fd();
            libc::syscall(
                libc::SYS_landlock_add_rule,
                rules,
                RULE_PATH_BENEATH,
                &raw const beneath,
                0u32,
            )
        } as libc::c_int)
        .map(drop)
        .or_cannot(|| format!("let a program read {}", path.display()))
    }

    /// For this process, for good. It must have given up new privileges.
    pub fn enter(&self) -> io::Result<()> {
        // SAFETY: no pointers are passed.
        check(unsafe {
            libc::syscall(libc::SYS_landlock_restrict_self, self.rules.as_raw_fd(), 0u32)
        } as libc::c_int)
        .map(drop)
    }
}
