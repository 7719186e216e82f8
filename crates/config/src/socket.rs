//! Where a gateway is asked for its status unless its file says otherwise.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// Where the gateway that root runs is asked.
pub fn roots_socket() -> &'static Path {
    Path::new("/run/bentpipe.sock")
}

/// The admin socket that a file names, also one that is wrong elsewhere: the first line that sets
/// `admin`.
pub fn named_in(file: &Path) -> Option<PathBuf> {
    let text = fs::read_to_string(file).ok()?;
    let value = |line: &str| {
        let rest = line.trim().strip_prefix("admin")?.trim_start().strip_prefix('=')?.trim_start();
        let quote = rest.chars().next().filter(|c| ['"', '\''].contains(c))?;
        rest[1..].split(quote).next().map(str::to_owned)
    };
    let named = text.lines().find_map(value)?;
    Some(file.parent().unwrap_or(Path::new("")).join(named))
}

/// The socket of the user who runs the program: root's in `/run`, others' in their
/// runtime directory. Never in one that others can write to: theirs would be there first.
pub fn default_socket() -> PathBuf {
    // The owner of /proc/self is the effective user.
    let uid = fs::metadata("/proc/self").map_or(0, |about| about.uid());
    socket_of(uid, std::env::var_os("XDG_RUNTIME_DIR"))
}

fn socket_of(uid: u32, runtime_directory: Option<OsString>) -> PathBuf {
    if uid == 0 {
        return roots_socket().to_owned();
    }
    // A relative one is to be ignored (XDG base directory specification).
    match runtime_directory.map(PathBuf::from).filter(|dir| dir.is_absolute()) {
        Some(dir) if is_private(&dir, uid) => dir.join("bentpipe.sock"),
        _ => PathBuf::from(format!("/run/user/{uid}/bentpipe.sock")),
    }
}

/// Can others neither write there nor put another directory in its place? One that is not there
/// yet is not private.
fn is_private(dir: &Path, uid: u32) -> bool {
    let owned = fs::metadata(dir).is_ok_and(|about| {
        [0, uid].contains(&about.uid()) && about.is_dir() && about.mode() & 0o022 == 0
    });
    let stays = |above: &Path| {
        // In a sticky directory only the owner renames.
        let mode = fs::metadata(above).map_or(0o777, |about| about.mode());
        mode & 0o022 == 0 || mode & 0o1000 != 0
    };
    owned && dir.ancestors().skip(1).all(stays)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    /// Whose socket is there first may be another user's.
    #[test]
    fn the_default_socket_never_lies_in_a_directory_that_others_can_write_to() {
        let mine = fs::metadata("/proc/self").unwrap().uid();
        // Root's place is fixed; a user's is judged by the owner, which here is this test's.
        assert_eq!(socket_of(0, Some("/tmp".into())), roots_socket());
        let base = std::env::temp_dir().join(format!("bpsocket-{}", std::process::id()));
        fs::create_dir(&base).unwrap();
        let base = fs::canonicalize(base).unwrap();
        let dir = base.join("run");
        fs::create_dir(&dir).unwrap();
        let uid = if mine == 0 { 12_345 } else { mine };
        let fallback = PathBuf::from(format!("/run/user/{uid}/bentpipe.sock"));
        let set = |at: &Path, mode| {
            fs::set_permissions(at, fs::Permissions::from_mode(mode)).unwrap();
        };
        set(&base, 0o755);
        for (mode, is_taken) in
            [(0o700, true), (0o755, true), (0o777, false), (0o1777, false), (0o775, false)]
        {
            set(&dir, mode);
            let wanted = if is_taken { dir.join("bentpipe.sock") } else { fallback.clone() };
            assert_eq!(socket_of(uid, Some(dir.clone().into())), wanted, "{mode:o}");
        }
        set(&dir, 0o700);
        set(&base, 0o777);
        assert_eq!(socket_of(uid, Some(dir.clone().into())), fallback, "a parent of all");
        fs::remove_dir_all(&base).unwrap();
        for none in [None, Some("".into()), Some("run".into()), Some("/tmp".into())] {
            assert_eq!(socket_of(uid, none.clone()), fallback, "{none:?}");
        }
        assert_eq!(socket_of(uid, Some(dir.into())), fallback, "one that is not there");
        // What systemd makes, if it is there.
        let made = PathBuf::from(format!("/run/user/{mine}"));
        if mine != 0 && made.exists() {
            assert!(is_private(&made, mine));
        }
    }
}
