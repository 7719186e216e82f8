//! Tests replay the fuzz targets' corpora: what fuzzers found worth keeping.

use std::path::Path;

/// Runs a target on each file of its corpus, `fuzz/corpus/NAME`, in the order of their names.
///
/// # Panics
/// If there is no such corpus, or none that can be read; and as `run` does: the file is the last
/// that was printed.
pub fn replay(name: &str, mut run: impl FnMut(&[u8])) {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(name);
    let entries = std::fs::read_dir(&dir)
        .unwrap_or_else(|why| panic!("{} cannot be read: {why}", dir.display()));
    let mut files: Vec<_> =
        entries.map(|entry| entry.expect("a file of the corpus").path()).collect();
    files.sort();
    assert!(!files.is_empty(), "{} is empty", dir.display());
    for file in files {
        println!("{}", file.display());
        run(&std::fs::read(&file).expect("a file of the corpus can be read"));
    }
}
