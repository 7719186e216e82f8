//! Gathers a megabyte of this project's source code, in the order of its files' names: what
//! `bentpipe bench` sends where it measures compression.

use std::path::{Path, PathBuf};
use std::{env, fs, io};

const BYTES: usize = 1_000_000;

fn main() -> io::Result<()> {
    let mut code = Vec::with_capacity(BYTES);
    for room in ["../crates", "src", "tests"] {
        println!("cargo::rerun-if-changed={room}");
        gather(Path::new(room), &mut code)?;
    }
    code.truncate(BYTES);
    let out = env::var_os("OUT_DIR").map(PathBuf::from).ok_or(io::ErrorKind::NotFound)?;
    fs::write(out.join("source-code"), code)
}

fn gather(room: &Path, code: &mut Vec<u8>) -> io::Result<()> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(room)? {
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
