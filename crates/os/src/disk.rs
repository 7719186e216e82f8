//! How much room a disk has.

use std::ffi::CString;
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Bytes that an ordinary user may write where `path`, or what of it exists, is: 0 on a full
/// disk. `None` where files are in memory (tmpfs, ramfs).
///
/// # Errors
/// As statfs(2).
pub fn free(path: &Path) -> io::Result<Option<u64>> {
    // The last ancestor of a relative path is empty.
    let there = path.ancestors().find(|p| p.exists()).unwrap_or(Path::new("."));
    let name = CString::new(there.as_os_str().as_bytes())?;
    let mut stat = MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: the kernel reads a string that ends with zero and fills a structure of its own;
    // both outlive the call.
    let done = unsafe { libc::statfs(name.as_ptr(), stat.as_mut_ptr()) };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: statfs succeeded, so the structure is filled.
    let stat = unsafe { stat.assume_init() };
    let in_memory = [libc::TMPFS_MAGIC, 0x8584_58f6].contains(&stat.f_type);
    Ok((!in_memory).then(|| stat.f_bavail.saturating_mul(stat.f_bsize as u64)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_has_room_and_memory_has_none_to_tell() {
        assert!(free(Path::new("/usr/there/is/no/such/directory")).is_ok());
        assert!(free(Path::new("no/such/directory")).is_ok());
        assert_eq!(free(Path::new("/dev/shm/none")).ok(), Some(None));
        // Mounted everywhere, no file system in memory, and always full.
        assert_eq!(free(Path::new("/proc/none")).ok(), Some(Some(0)));
    }
}
