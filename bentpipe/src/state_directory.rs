//! Where is kept what outlives the program, and how its files are written and read.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;

/// systemd's state directory, root's `/var/lib/bentpipe`, or other users' own: `bentpipe` in
/// `XDG_STATE_HOME` or in `~/.local/state`. `None` where it cannot be made.
pub fn state_directory() -> Option<PathBuf> {
    // The owner of /proc/self is the effective user.
    let is_root = fs::metadata("/proc/self").map_or(true, |about| about.uid() == 0);
    let dir = choose(is_root, |name| std::env::var_os(name).filter(|value| !value.is_empty()))?;
    fs::create_dir_all(&dir).is_ok().then_some(dir)
}

/// Writes a file that only its owner can read, whole or not at all.
pub fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let dir = path.parent().unwrap_or(Path::new("/"));
    DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    let beside = path.with_extension("new");
    // One that a crash left may have other rights.
    let _ = fs::remove_file(&beside);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&beside, path)?;
    // The new name, too, is to survive a loss of power.
    File::open(dir)?.sync_all()
}

/// Reads what was written; `None` where there is nothing. A file that is damaged is put aside.
///
/// # Errors
/// The file cannot be read for now. It may be whole: nothing is to be written over it.
pub fn read_whole<T: DeserializeOwned>(path: &Path) -> io::Result<Option<T>> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e),
    };
    let why = match serde_json::from_slice(&bytes) {
        Ok(value) => return Ok(Some(value)),
        Err(e) => e,
    };
    let aside = path.with_extension("damaged");
    let _ = fs::rename(path, &aside);
    crate::log!(
        Warn,
        "a file of the state directory is damaged and was put aside",
        file = aside.display(),
        why = why
    );
    Ok(None)
}

fn choose(is_root: bool, variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    if let Some(dir) = variable("STATE_DIRECTORY") {
        return Some(dir.into());
    }
    if is_root {
        return Some(PathBuf::from("/var/lib/bentpipe"));
    }
    let of_the_home = || Some(Path::new(&variable("HOME")?).join(".local/state"));
    let users = variable("XDG_STATE_HOME").map(PathBuf::from).or_else(of_the_home)?;
    Some(users.join("bentpipe"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_user_has_a_place_of_his_own() {
        let with = |set: &'static [(&str, &str)]| {
            move |name: &str| set.iter().find(|(n, _)| *n == name).map(|(_, v)| OsString::from(v))
        };
        let home = &[("HOME", "/home/ann")];
        let both = &[("HOME", "/home/ann"), ("XDG_STATE_HOME", "/x")];
        let given = &[("HOME", "/root"), ("STATE_DIRECTORY", "/s")];
        for (is_root, set, dir) in [
            (true, &home[..], Some("/var/lib/bentpipe")),
            (false, &home[..], Some("/home/ann/.local/state/bentpipe")),
            (false, &both[..], Some("/x/bentpipe")),
            (true, &given[..], Some("/s")),
            (false, &given[..], Some("/s")),
            (false, &[], None),
        ] {
            assert_eq!(choose(is_root, with(set)).as_deref(), dir.map(Path::new), "{set:?}");
        }
    }
}
