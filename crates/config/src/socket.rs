//! Where a gateway is asked for its status unless its file says otherwise.

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
    if uid == 0 {
        return roots_socket().to_owned();
    }
    match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(dir) if !dir.is_empty() => Path::new(&dir).join("bentpipe.sock"),
        _ => PathBuf::from(format!("/run/user/{uid}/bentpipe.sock")),
    }
}
