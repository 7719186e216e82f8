//! A megabyte of this project's source code, which rows about compression send.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::{fs, io};

const BYTES: usize = 1_000_000;

/// The first megabyte of the crates' code, in the order of its files' names.
///
/// # Errors
/// If the directory that this program was built in is gone, or holds less.
pub(super) fn code() -> io::Result<&'static [u8]> {
    static CODE: OnceLock<Vec<u8>> = OnceLock::new();
    if let Some(code) = CODE.get() {
        return Ok(code);
    }
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("crates");
    let mut code = Vec::with_capacity(BYTES);
    let cannot = |e| format!("the project's source code cannot be read at {crates:?}: {e}");
    gather(&crates, &mut code).map_err(|e| io::Error::other(cannot(e)))?;
    code.truncate(BYTES);
    if code.len() < BYTES {
        return Err(io::Error::other(format!("{crates:?} holds less than {BYTES} bytes of code")));
    }
    Ok(CODE.get_or_init(|| code))
}

fn gather(dir: &Path, code: &mut Vec<u8>) -> io::Result<()> {
    let mut paths: Vec<PathBuf> = Vec::new();
    for entry in fs::read_dir(dir)? {
        paths.push(entry?.path());
    }
    paths.sort();
    for path in paths {
        if path.is_dir() {
            gather(&path, code)?;
        } else if path.extension().is_some_and(|e| e == "rs") && code.len() < BYTES {
            code.extend(fs::read(&path)?);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_a_megabyte_of_code_to_send() {
        assert_eq!(code().expect("the project's code").len(), BYTES);
    }
}
