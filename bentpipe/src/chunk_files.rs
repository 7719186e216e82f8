//! The files of a chunk store (spec/link.md, "Deduplication"): what `squeeze::dedup` wants of
//! a directory, done.
//!
//! One directory belongs to one peer and one process at a time:
//!
//! ```text
//! 1.data 1.index …   the segments of the log
//! names              what the peer holds: the catalogue's journal
//! bad.data bad.index the segment that was damaged last, for whoever wants to look at it
//! lock               with the number of the process that has it
//! unlisted           where the peer is not in the configuration any more: the days it was seen
//! ```
//!
//! Nothing is flushed to the disk: after a crash of the machine the log is found cut or with
//! bytes that are not their chunks', and both are seen for what they are.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use squeeze::dedup::{Dedup, Journal, Keys, Limits, Loaded, MAX_INDEX, Op, Recovery, Written};

/// The longest journal that is read, bytes: beyond it names are lost, not content.
const MAX_JOURNAL: u64 = 64 << 20;
/// Segments are numbered below this.
const MAX_SEGMENT: u64 = 1 << 48;

/// The file with the days on which a peer was not in the configuration, a date a line.
pub const UNLISTED: &str = "unlisted";

/// The lock of a directory is taken.
#[derive(Debug)]
pub struct Locked {
    /// By this process: it is still closing the files.
    pub is_own: bool,
    /// By whom, and what to do about it.
    why: String,
}

impl std::fmt::Display for Locked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.why)
    }
}

impl std::error::Error for Locked {}

/// Takes the lock.
fn take(lock: &File) -> io::Result<()> {
    match lock.try_lock() {
        Err(TryLockError::WouldBlock) => {
            Err(io::Error::new(io::ErrorKind::ResourceBusy, holder(lock)))
        }
        outcome => Ok(outcome?),
    }
}

/// Is it that the lock is taken?
pub fn locked(error: &io::Error) -> Option<&Locked> {
    error.get_ref()?.downcast_ref()
}

/// Who has the lock, as far as the file says.
fn holder(lock: &File) -> Locked {
    let mut bytes = [0; 20];
    let n = lock.read_at(&mut bytes, 0).unwrap_or(0);
    let text = String::from_utf8_lossy(&bytes[..n]);
    let Ok(process) = text.trim().parse::<u32>() else {
        let why = "another process uses them: stop it, or set dedup_dir for this one".to_owned();
        return Locked { is_own: false, why };
    };
    let name = fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
    let name = if name.trim().is_empty() { "another program" } else { name.trim() };
    let why =
        format!("{name}, process {process}, uses them: stop it, or set dedup_dir for this one");
    Locked { is_own: process == std::process::id(), why }
}

/// Writes down who has the lock; without it nobody knows.
fn sign(lock: &File) {
    let _ = lock
        .set_len(0)
        .and_then(|()| lock.write_at(format!("{}\n", std::process::id()).as_bytes(), 0));
}

/// The files of one peer's store.
pub struct ChunkFiles {
    dir: PathBuf,
    /// The segment that was written to last: its data and index, and how long they are.
    open: Option<(u64, [(File, u64); 2])>,
    /// The segment that was read from last.
    reading: Option<(u64, File)>,
    failures: u64,
    last_failure: Option<io::Error>,
    /// Locked for as long as the directory is ours.
    lock: File,
}

impl ChunkFiles {
    /// Opens the store in `dir`, which is made if it is not there, and brings back what it
    /// holds.
    ///
    /// # Errors
    /// If the directory cannot be made or listed, or is in use ([`locked`]). Files that
    /// cannot be read are no error: what they held is not there.
    pub fn open(dir: &Path, keys: &Arc<Keys>, limits: &Limits) -> io::Result<(ChunkFiles, Dedup)> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        let lock = options().read(true).write(true).create(true).open(dir.join("lock"))?;
        take(&lock)?;
        sign(&lock);
        let _ = fs::remove_file(dir.join(UNLISTED));
        let mut files = ChunkFiles {
            dir: dir.to_owned(),
            open: None,
            reading: None,
            failures: 0,
            last_failure: None,
            lock,
        };
        let mut recovery = Recovery::new(keys.clone(), limits.memory, limits.disk);
        for segment in segments(dir)? {
            let data = fs::metadata(files.path(segment, "data")).map_or(0, |m| m.len());
            let index = read_up_to(&files.path(segment, "index"), MAX_INDEX as u64);
            recovery.segment(segment, &index, data);
        }
        let mut epoch = [0; 8];
        getrandom::fill(&mut epoch).map_err(io::Error::other)?;
        let store = recovery.finish(u64::from_ne_bytes(epoch) | 1);
        let mut dedup = Dedup::new(keys.clone(), store, limits);
        dedup.sender.load_journal(&read_up_to(&dir.join("names"), MAX_JOURNAL));
        files.serve(&mut dedup);
        Ok((files, dedup))
    }

    /// Does all that is to be done with files now.
    pub fn serve(&mut self, dedup: &mut Dedup) {
        while let Some(op) = dedup.receiver.poll_op() {
            self.perform(op).tell(dedup);
        }
    }

    /// Does what the chunks want: reads a chunk, or writes 256 kB at the most, or puts a segment
    /// away.
    pub fn perform(&mut self, op: Op) -> Done {
        match op {
            Op::Append { segment, data, index } => {
                let done = self.append(segment, &data, &index);
                let written = match &done {
                    Ok(()) => Written::All,
                    Err(e) if is_full(e) => Written::Full,
                    Err(_) => Written::Failed,
                };
                self.note(done);
                Done::Appended { segment, written }
            }
            Op::Load { number, segment, offset, len } => {
                let content = self.load(segment, offset, len);
                // What is not there is damage; what cannot be read now may be read tomorrow.
                let damaged = content.as_ref().is_err_and(|e| {
                    matches!(e.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::NotFound)
                });
                Done::Loaded { number, segment, content: self.note(content), damaged }
            }
            Op::Remove { segment } => {
                let done = self.put_away(segment, |path, _| fs::remove_file(path));
                self.note(done);
                Done::PutAway
            }
            Op::Quarantine { segment } => {
                let dir = self.dir.clone();
                let done = self.put_away(segment, |path, part| {
                    fs::rename(path, dir.join(format!("bad.{part}")))
                });
                self.note(done);
                Done::PutAway
            }
        }
    }

    /// Writes down what the peer holds. To be called every few seconds and at the end.
    pub fn save(&mut self, dedup: &mut Dedup) {
        if let Some(journal) = dedup.sender.poll_journal() {
            self.write_journal(journal).tell(dedup);
        }
    }

    /// Writes to the journal.
    pub fn write_journal(&mut self, journal: Journal) -> Done {
        let names = self.dir.join("names");
        let done = if journal.replaces {
            // Renamed when it is whole: there is never half of it.
            let new = self.dir.join("names.new");
            let file = options().write(true).create(true).truncate(true).open(&new);
            let written = file.and_then(|mut f| f.write_all(&journal.into_bytes()));
            let done = written.and_then(|()| fs::rename(&new, names));
            if done.is_err() {
                let _ = fs::remove_file(new); // It would hold the last of the room.
            }
            done
        } else {
            let file = options().append(true).open(names);
            file.and_then(|mut f| f.write_all(&journal.into_bytes()))
        };
        Done::Saved { ok: self.note(done).is_some() }
    }

    /// Writes all that there is, at the end of the program.
    pub fn finish(&mut self, dedup: &mut Dedup) {
        dedup.receiver.store.flush();
        self.serve(dedup);
        self.save(dedup);
    }

    /// Operations that failed, and why the last one did.
    pub fn failures(&self) -> (u64, Option<&io::Error>) {
        (self.failures, self.last_failure.as_ref())
    }

    /// Why an operation failed since the last call, if one did.
    pub fn take_failure(&mut self) -> Option<io::Error> {
        self.last_failure.take()
    }

    fn note<T>(&mut self, result: io::Result<T>) -> Option<T> {
        result
            .map_err(|e| {
                self.failures += 1;
                self.last_failure = Some(e);
            })
            .ok()
    }

    fn path(&self, segment: u64, part: &str) -> PathBuf {
        self.dir.join(format!("{segment}.{part}"))
    }

    fn append(&mut self, segment: u64, data: &[u8], index: &[u8]) -> io::Result<()> {
        if self.open.as_ref().is_none_or(|(n, _)| *n != segment) {
            let begin = |part| -> io::Result<(File, u64)> {
                // It is ours to begin: what is there under this name was given up.
                let mut new = options();
                let new = new.write(true).create(true).truncate(true);
                Ok((new.open(self.path(segment, part))?, 0))
            };
            self.open = Some((segment, [begin("data")?, begin("index")?]));
        }
        let Some((_, parts)) = &mut self.open else { return Ok(()) };
        for ((file, len), bytes) in parts.iter_mut().zip([data, index]) {
            if let Err(e) = file.write_all_at(bytes, *len) {
                // What a full disk took of it is given back.
                let _ = file.set_len(*len);
                self.open = None;
                return Err(e);
            }
            *len += bytes.len() as u64;
        }
        Ok(())
    }

    fn load(&mut self, segment: u64, offset: u32, len: u32) -> io::Result<Vec<u8>> {
        if self.reading.as_ref().is_none_or(|(n, _)| *n != segment) {
            self.reading = Some((segment, File::open(self.path(segment, "data"))?));
        }
        let mut content = vec![0; len as usize];
        if let Some((_, file)) = &self.reading {
            file.read_exact_at(&mut content, u64::from(offset))?;
        }
        Ok(content)
    }

    fn put_away(
        &mut self,
        segment: u64,
        mut put: impl FnMut(&Path, &str) -> io::Result<()>,
    ) -> io::Result<()> {
        self.open = self.open.take().filter(|(n, _)| *n != segment);
        self.reading = self.reading.take().filter(|(n, _)| *n != segment);
        for part in ["data", "index"] {
            match put(&self.path(segment, part), part) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
                _ => {}
            }
        }
        Ok(())
    }
}

/// What came of something that was done with files.
pub enum Done {
    /// Of an [`Op::Append`].
    Appended {
        /// The segment.
        segment: u64,
        /// Whether it was written.
        written: Written,
    },
    /// Of an [`Op::Load`].
    Loaded {
        /// The chunk.
        number: u64,
        /// Its segment.
        segment: u64,
        /// What stood there; `None`: it could not be read.
        content: Option<Vec<u8>>,
        /// It could not be read because it is not there.
        damaged: bool,
    },
    /// Of a journal.
    Saved {
        /// All of it was written.
        ok: bool,
    },
    /// Of an [`Op::Remove`] or an [`Op::Quarantine`].
    PutAway,
}

impl Done {
    /// Tells the chunks.
    pub fn tell(self, dedup: &mut Dedup) {
        match self {
            Done::Appended { segment, written } => dedup.receiver.appended(segment, written),
            Done::Loaded { number, segment, content, damaged } => {
                let loaded = match &content {
                    Some(content) => Loaded::Content(content),
                    None if damaged => Loaded::Short,
                    None => Loaded::Failed,
                };
                dedup.receiver.loaded(number, segment, loaded);
            }
            Done::Saved { ok: false } => dedup.sender.journal_failed(),
            Done::Saved { ok: true } | Done::PutAway => {}
        }
    }
}

impl Drop for ChunkFiles {
    fn drop(&mut self) {
        // Closing is not enough while a child that was just forked has the file, too.
        let _ = self.lock.unlock();
    }
}

/// Does it say that there is no room, of the disk or of what this user may have of it?
fn is_full(error: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    [StorageFull, QuotaExceeded, FileTooLarge].contains(&error.kind())
}

/// Chunks are what users sent: nobody else may read them.
fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.mode(0o600);
    options
}

/// The segments in a directory, in their order.
fn segments(dir: &Path) -> io::Result<BTreeSet<u64>> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(dir)? {
        let name = entry?.file_name();
        let number = name.to_str().and_then(|name| {
            name.strip_suffix(".data").or_else(|| name.strip_suffix(".index"))?.parse::<u64>().ok()
        });
        found.extend(number.filter(|n| *n < MAX_SEGMENT));
    }
    Ok(found)
}

/// What there is of a file, up to `most` bytes; nothing if it cannot be read.
fn read_up_to(path: &Path, most: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Ok(file) = File::open(path) {
        let _ = file.take(most).read_to_end(&mut bytes);
    }
    bytes
}
