//! Where is kept what outlives the program, and how its files are written and read.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::{
    DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, lchown,
};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use link::keys::PublicKey;
use os::proc::User;
use serde::de::DeserializeOwned;

/// That of a user whom a gateway goes on as.
static OF_USER: OnceLock<PathBuf> = OnceLock::new();

/// systemd's state directory, root's `/var/lib/bentpipe`, or other users' own: `bentpipe` in
/// `XDG_STATE_HOME` or in `~/.local/state`. `None` where it cannot be made. Of a gateway that goes
/// on as another user ([`go_on_as`]) it is that user's directory in root's.
pub fn state_directory() -> Option<PathBuf> {
    OF_USER.get().cloned().or_else(own_directory)
}

fn own_directory() -> Option<PathBuf> {
    // The owner of /proc/self is the effective user.
    let is_root = fs::metadata("/proc/self").map_or(true, |about| about.uid() == 0);
    let dir = choose(is_root, |name| std::env::var_os(name).filter(|value| !value.is_empty()))?;
    fs::create_dir_all(&dir).is_ok().then_some(dir)
}

/// From now on [`state_directory`] is that of the gateway whose file says `user`, if this program
/// is root's. Once a process.
pub fn go_on_as(user: &str) {
    if let Some(dir) = own_directory().filter(|_| os::proc::is_root()) {
        let _ = OF_USER.set(dir.join(format!("user-{}", user.replace('/', "_"))));
    }
}

/// The gateway of the node with this key will go on as this user, who may write nothing in root's
/// directory: he has one of his own in it, with what the node left in root's while it had no user.
/// Where that fails the log says so, and nothing is kept.
pub fn give_state_to((name, user): (&str, &User), node: &PublicKey) {
    let Some(parent) = own_directory() else { return };
    go_on_as(name);
    let Some(dir) = OF_USER.get() else { return };
    // Base64 may hold a slash.
    let ours = format!("{}.", node.to_string().replace('/', "_"));
    if let Err(why) = give(&parent, dir, user.numbers(), &ours) {
        let dir = dir.display();
        crate::log!(Error, "the user has no state directory", dir = dir, why = why);
    }
}

/// Makes `dir` in `parent` for its user, with the files whose names begin with `ours`, and the
/// directory of usage: all but chunks, which may be too many to be given away at a start. One that
/// is there already gets what it lacks: an earlier start may have been cut off, the directory may
/// be of another node of the same user, or the node ran without a user for a while.
fn give(parent: &Path, dir: &Path, (uid, gid): (u32, u32), ours: &str) -> io::Result<()> {
    // He has to pass through it, and to read nothing.
    let mode = fs::metadata(parent)?.permissions().mode();
    if mode & 0o011 != 0o011 {
        fs::set_permissions(parent, Permissions::from_mode(mode & 0o7777 | 0o011))?;
    }
    match DirBuilder::new().mode(0o700).create(dir) {
        Ok(()) => {}
        Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
        Err(e) => return Err(e),
    }
    let own = fs::metadata(parent)?;
    let about = fs::symlink_metadata(dir)?;
    if !about.is_dir() || ![uid, own.uid()].contains(&about.uid()) {
        return Err(io::Error::other("it is there, and not the user's"));
    }
    let is_his = about.uid() == uid && own.uid() != uid;
    if is_his && !has_files(parent, ours)? {
        return Ok(());
    }
    // It is not his while things are moved: root may lack the right to write in it, and he may not
    // change what root is about to touch.
    lchown(dir, Some(own.uid()), Some(own.gid()))?;
    // Nor by a mode that he has given it.
    fs::set_permissions(dir, Permissions::from_mode(0o700))?;
    let moved = move_into(parent, dir, (uid, gid), ours);
    moved.and(lchown(dir, Some(uid), Some(gid)))
}

/// Is something of the node's in the directory?
fn has_files(parent: &Path, ours: &str) -> io::Result<bool> {
    for entry in fs::read_dir(parent)? {
        let entry = entry?;
        let (name, kind) = (entry.file_name(), entry.file_type()?);
        let text = name.to_string_lossy();
        if text.starts_with(ours) && (kind.is_file() || text == format!("{ours}usage")) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Moves the node's files and gives them away; who is cut off does so again.
fn move_into(parent: &Path, dir: &Path, (uid, gid): (u32, u32), ours: &str) -> io::Result<()> {
    let root = fs::metadata(parent)?.uid();
    for entry in fs::read_dir(parent)? {
        let entry = entry?;
        let (name, kind, from) = (entry.file_name(), entry.file_type()?, entry.path());
        let text = name.to_string_lossy();
        if kind.is_dir() && from != dir && text.starts_with("user-") {
            tell_of_others(&from, ours);
        }
        let is_usage = kind.is_dir() && text == format!("{ours}usage");
        let is_wanted = is_usage || kind.is_file() && text.starts_with(ours);
        if !is_wanted {
            continue;
        }
        let to = dir.join(&name);
        if fs::symlink_metadata(&to).is_ok() {
            crate::log!(
                Error,
                "the user has a file of the node's already, and what root kept is left out",
                file = from.display(),
                instead = to.display(),
                mend = "keep one of them"
            );
            continue;
        }
        fs::rename(&from, &to)?;
    }
    // Also what an earlier start has moved and not given away.
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let about = fs::symlink_metadata(entry.path())?;
        let is_ours = entry.file_name().to_string_lossy().starts_with(ours);
        if !is_ours || about.uid() != root || about.is_file() && about.nlink() != 1 {
            continue;
        }
        // First its files: once it is his he may change what is in it.
        let files = about.is_dir().then(|| fs::read_dir(entry.path())).transpose()?;
        for file in files.into_iter().flatten() {
            lchown(file?.path(), Some(uid), Some(gid))?;
        }
        lchown(entry.path(), Some(uid), Some(gid))?;
    }
    Ok(())
}

/// What the node kept as another user stays his: nobody can tell whether it is to be trusted.
fn tell_of_others(dir: &Path, ours: &str) {
    let names = fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.file_name());
    if names.into_iter().any(|name| name.to_string_lossy().starts_with(ours)) {
        crate::log!(
            Error,
            "what the node kept as another user, its books with it, is not read",
            directory = dir.display(),
            mend = "move it to the state directory and start anew"
        );
    }
}

/// Writes a file that only its owner can read, whole or not at all.
pub fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    let beside = path.with_extension("new");
    // One that a crash left may have other rights.
    let _ = fs::remove_file(&beside);
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside)?;
    let mut written = (&file).write_all(bytes).and_then(|()| file.sync_all());
    written = written.and_then(|()| fs::rename(&beside, path));
    if written.is_err() {
        // On a disk that is full it would take what others need.
        let _ = fs::remove_file(&beside);
        return written;
    }
    // The new name, too, is to survive a loss of power.
    File::open(dir)?.sync_all()
}

/// Reads what was written; `None` where there is nothing. A file that is damaged is put aside.
///
/// # Errors
/// The file cannot be read for now. It may be whole: nothing is to be written over it.
pub fn read_whole<T: DeserializeOwned>(path: &Path) -> io::Result<Option<T>> {
    let why = match read_sound(path) {
        Err(e) if e.kind() == ErrorKind::InvalidData => e,
        read => return read,
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

/// The same, but a file that is damaged is left where it is.
///
/// # Errors
/// The file cannot be read for now, or is damaged ([`ErrorKind::InvalidData`]).
pub fn read_sound<T: DeserializeOwned>(path: &Path) -> io::Result<Option<T>> {
    match fs::read(path) {
        Ok(bytes) => serde_json::from_slice(&bytes)
            .map(Some)
            .map_err(|e| io::Error::new(ErrorKind::InvalidData, e)),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
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

    #[test]
    fn a_user_gets_a_directory_of_his_own_with_what_the_node_had() {
        let parent = std::env::temp_dir().join(format!("bentpipe-state-{}", std::process::id()));
        let about = |path: &Path| fs::symlink_metadata(path).expect("it is there");
        DirBuilder::new().mode(0o700).create(&parent).expect("a directory");
        for name in ["K=.p.ledger", "K=.alive", "L=.alive"] {
            fs::write(parent.join(name), name).expect("a file");
        }
        DirBuilder::new().mode(0o700).create(parent.join("K=.usage")).expect("a directory");
        fs::write(parent.join("K=.usage/2026-11"), "days").expect("a file");
        // Who is not root gives to himself.
        let mine = (about(&parent).uid(), about(&parent).gid());
        let whom = if os::proc::is_root() { (65_534, 65_534) } else { mine };
        let dir = parent.join("user-x");
        for _ in 0..2 {
            give(&parent, &dir, whom, "K=.").expect("given");
        }
        // What was left behind follows, also where a start was cut off before the end.
        for name in ["K=.usage", "K=.p.ledger"] {
            fs::rename(dir.join(name), parent.join(name)).expect("moved");
        }
        lchown(&dir, Some(mine.0), Some(mine.1)).expect("as it was made");
        give(&parent, &dir, whom, "K=.").expect("given");
        // So does what another node of his has, and nothing is written over.
        give(&parent, &dir, whom, "L=.").expect("given");
        assert!(dir.join("L=.alive").exists());
        fs::write(parent.join("L=.alive"), "root's").expect("a file");
        give(&parent, &dir, whom, "L=.").expect("given");
        assert_eq!(fs::read_to_string(dir.join("L=.alive")).expect("his"), "L=.alive");
        assert_eq!(about(&parent).mode() & 0o777, 0o711, "he passes through it");
        assert_eq!((about(&dir).mode() & 0o777, about(&dir).uid()), (0o700, whom.0));
        let ledger = about(&dir.join("K=.p.ledger"));
        assert_eq!((ledger.uid(), ledger.gid()), whom);
        for usage in ["K=.usage", "K=.usage/2026-11"] {
            assert_eq!(about(&dir.join(usage)).uid(), whom.0, "{usage}");
        }
        assert!(parent.join("L=.alive").exists() && !parent.join("K=.alive").exists());
        let another = (whom.0 + 1, whom.1);
        assert!(give(&parent, &dir, another, "K=.").is_err(), "it is not his");
        let _ = fs::remove_dir_all(&parent);
    }
}
