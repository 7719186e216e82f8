//! The cache's files: one for each answer, in one directory. Everything here blocks.
//!
//! A file's name says what it holds (`digest-uri-number-length`, in hexadecimal digits), so that
//! the directory is its own index: at the start it is read once, and no file is opened. A file is
//! written under another name and gets its own when it is whole; it is not synchronised, and what a
//! crash of the machine leaves half written fails its checks (`cache/record.rs`) when it is read.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use blake2::Digest as _;
use bytes::Bytes;

use crate::cache::record::{PIECE, Record, TRAILER, check, read_trailer};
use crate::cache::{Now, Place};

/// Files that are being written.
const UNFINISHED: &str = "new-";
/// Read with the trailer: most answers have less about them.
const TAIL: u64 = 8 << 10;
/// Bodies up to here are read at once, and checked before the first byte is given out; of longer
/// ones the first piece is.
pub const SMALL: u64 = 64 << 10;
/// A name that says more is not ours.
const LONGEST: u64 = 1 << 40;
/// What freshening may add to a file before it is copied.
const SLACK: u64 = 64 << 10;

/// A directory of answers, for this process alone.
#[derive(Debug)]
pub struct Disk {
    directory: PathBuf,
    /// Locked as long as it is open.
    _lock: File,
}

/// An answer that was read.
#[derive(Debug)]
pub struct Loaded {
    /// What is known of it.
    pub record: Record,
    /// Its body, if it is small.
    pub body: Option<Bytes>,
    /// Its file.
    pub file: File,
}

/// A file that is being written.
#[derive(Debug)]
pub struct Growing {
    file: File,
    path: PathBuf,
    length: u64,
    checks: Vec<u64>,
    piece: blake2::Blake2b512,
}

impl Disk {
    /// Makes the directory, or waits until nobody else uses it, and says what is in it. Unfinished
    /// files are removed, and files that are not ours left alone.
    ///
    /// # Errors
    /// The system's, with what was tried.
    pub fn open(directory: &Path) -> io::Result<(Disk, Vec<Place>)> {
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(directory);
        made.map_err(|e| about(directory, e))?;
        let lock = directory.join("lock");
        let mut options = OpenOptions::new();
        let file = options.create(true).truncate(false).write(true).mode(0o600).open(&lock);
        let lock = file.map_err(|e| about(&lock, e))?;
        // One that was killed lets go of it with its last thread.
        lock.lock().map_err(|e| about(directory, e))?;
        let mut places = Vec::new();
        for entry in fs::read_dir(directory).map_err(|e| about(directory, e))? {
            let name = entry?.file_name();
            match name.to_str() {
                Some(name) if name.starts_with(UNFINISHED) => {
                    fs::remove_file(directory.join(name))?;
                }
                Some(name) => places.extend(place_of(name)),
                None => {}
            }
        }
        places.sort_by_key(|place| place.number);
        Ok((Disk { directory: directory.to_owned(), _lock: lock }, places))
    }

    /// Begins a file.
    ///
    /// # Errors
    /// The system's.
    pub fn begin(&self, number: u64) -> io::Result<Growing> {
        let path = self.directory.join(format!("{UNFINISHED}{number:x}"));
        let mut options = OpenOptions::new();
        let file = options.create(true).truncate(true).write(true).mode(0o600).open(&path)?;
        let (length, checks, piece) = (0, Vec::new(), blake2::Blake2b512::new());
        Ok(Growing { file, path, length, checks, piece })
    }

    /// Gives a file what is known of its answer, and its name. Its place says how long it is.
    ///
    /// # Errors
    /// The system's; `InvalidInput` if there is too much about it.
    pub fn finish(&self, grown: Growing, mut record: Record, now: Now) -> io::Result<Place> {
        let mut grown = grown;
        if !grown.length.is_multiple_of(PIECE as u64) {
            grown.end_piece();
        }
        record.checks = std::mem::take(&mut grown.checks);
        record.stored.length = grown.length;
        let about = record.encode(now).ok_or(ErrorKind::InvalidInput)?;
        grown.file.write_all(&about)?;
        let Record { stored, .. } = &record;
        let (uri, number) = (stored.key.uri_digest(), stored.number);
        let length = grown.length + about.len() as u64;
        let place = Place { digest: stored.digest(), uri, number, length };
        fs::rename(&grown.path, self.path(&place))?;
        // It has another name now, and is not removed.
        grown.path = PathBuf::new();
        Ok(place)
    }

    /// Writes anew what is known of an answer. Its file has another name then.
    ///
    /// # Errors
    /// The system's, and the file is as it was; `InvalidInput` if there is too much about it.
    pub fn freshen(&self, place: Place, record: &Record, now: Now) -> io::Result<Place> {
        let about = record.encode(now).ok_or(ErrorKind::InvalidInput)?;
        let (old, body) = (self.path(&place), record.stored.length);
        if place.length - body.min(place.length) > SLACK {
            let mut copy = self.begin(record.stored.number)?;
            io::copy(&mut File::open(&old)?.take(body), &mut copy)?;
            let new = self.finish(copy, record.clone(), now)?;
            if new != place {
                fs::remove_file(old)?;
            }
            return Ok(new);
        }
        let file = OpenOptions::new().write(true).open(&old)?;
        file.write_all_at(&about, place.length)?;
        let new = Place { length: place.length + about.len() as u64, ..place };
        fs::rename(old, self.path(&new))?;
        Ok(new)
    }

    /// Removes a file.
    ///
    /// # Errors
    /// The system's, but not that there is none.
    pub fn remove(&self, place: &Place) -> io::Result<()> {
        match fs::remove_file(self.path(place)) {
            Err(e) if e.kind() != ErrorKind::NotFound => Err(e),
            _ => Ok(()),
        }
    }

    /// Reads what is known of an answer, and its body if it is small.
    ///
    /// # Errors
    /// The system's; `InvalidData` if the file is not what it was.
    pub fn load(&self, place: &Place, now: Now) -> io::Result<Loaded> {
        let file = File::open(self.path(place))?;
        let tail = read_at(&file, place.length.saturating_sub(TAIL), TAIL.min(place.length))?;
        let at = tail.len().checked_sub(TRAILER).ok_or(ErrorKind::InvalidData)?;
        let (length, expected) = read_trailer(&tail[at..]).ok_or(ErrorKind::InvalidData)?;
        let begins = (place.length - TRAILER as u64).checked_sub(length as u64);
        let begins = begins.ok_or(ErrorKind::InvalidData)?;
        let about = match at.checked_sub(length) {
            Some(from) => tail[from..at].to_vec(),
            None => read_at(&file, begins, length as u64)?,
        };
        let record = Record::decode(&about, expected, place.number, now);
        let record = record.filter(|record| record.stored.digest() == place.digest);
        let record = record.ok_or(ErrorKind::InvalidData)?;
        if record.stored.length > begins {
            return Err(ErrorKind::InvalidData.into());
        }
        let body = match record.stored.length <= SMALL {
            true => Some(whole_body(&file, &record)?),
            false => {
                read_piece(&file, record.stored.length, &record.checks, 0)?;
                None
            }
        };
        Ok(Loaded { record, body, file })
    }

    fn path(&self, place: &Place) -> PathBuf {
        let Place { digest, uri, number, length } = place;
        self.directory.join(format!("{digest:032x}-{uri:016x}-{number:x}-{length:x}"))
    }
}

/// One piece of a body, checked.
///
/// # Errors
/// The system's; `InvalidData` if it is not what it was.
pub fn read_piece(file: &File, length: u64, checks: &[u64], n: usize) -> io::Result<Bytes> {
    let from = (n * PIECE) as u64;
    let bytes = read_at(file, from, (PIECE as u64).min(length.saturating_sub(from)))?;
    match checks.get(n) == Some(&check(&bytes)) {
        true => Ok(bytes.into()),
        false => Err(ErrorKind::InvalidData.into()),
    }
}

fn whole_body(file: &File, record: &Record) -> io::Result<Bytes> {
    let body = read_at(file, 0, record.stored.length)?;
    let sound = body.chunks(PIECE).map(check).eq(record.checks.iter().copied());
    if sound { Ok(body.into()) } else { Err(ErrorKind::InvalidData.into()) }
}

fn read_at(file: &File, at: u64, length: u64) -> io::Result<Vec<u8>> {
    // Lengths are a file's own, or bounded by constants.
    let mut bytes = vec![0; usize::try_from(length).map_err(|_| ErrorKind::InvalidData)?];
    match file.read_exact_at(&mut bytes, at) {
        Ok(()) => Ok(bytes),
        Err(e) if e.kind() == ErrorKind::UnexpectedEof => Err(ErrorKind::InvalidData.into()),
        Err(e) => Err(e),
    }
}

fn place_of(name: &str) -> Option<Place> {
    let mut parts = name.split('-');
    let digest = u128::from_str_radix(parts.next()?, 16).ok()?;
    let mut number = || u64::from_str_radix(parts.next()?, 16).ok();
    let (uri, number, length) = (number()?, number()?, number()?);
    let sane = parts.next().is_none() && length <= LONGEST;
    sane.then_some(Place { digest, uri, number, length })
}

fn about(path: &Path, why: io::Error) -> io::Error {
    io::Error::new(why.kind(), format!("{}: {why}", path.display()))
}

impl Growing {
    /// Bytes that it has.
    pub fn length(&self) -> u64 {
        self.length
    }

    fn end_piece(&mut self) {
        let hash = self.piece.finalize_reset();
        self.checks.push(u64::from_be_bytes(std::array::from_fn(|n| hash[n])));
    }
}

impl io::Write for Growing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = PIECE - (self.length % PIECE as u64) as usize;
        let written = self.file.write(&bytes[..bytes.len().min(room)])?;
        self.piece.update(&bytes[..written]);
        self.length += written as u64;
        if written == room {
            self.end_piece();
        }
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Growing {
    fn drop(&mut self) {
        if !self.path.as_os_str().is_empty() {
            // If that fails the next start removes it.
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests;
