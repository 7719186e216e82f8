//! Asks a gateway, and watches one. Everything here blocks.

use std::io::{self, BufRead as _, BufReader, ErrorKind, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;

use units::Duration;

use crate::{Answer, Notice, Request, TestProgress};

/// Sends one request and waits for its answer, at most `patience`.
///
/// # Errors
/// The system's error when nobody listens on `path` or the answer does not come;
/// `InvalidData` when it is not an answer.
pub fn ask(path: &Path, request: &Request, patience: Duration) -> io::Result<Answer> {
    ask_following(path, request, patience, &mut |_| {})
}

/// The same of a request that takes long: `tell` hears how far it is, and `patience` is for each
/// news.
///
/// # Errors
/// As [`ask`] has.
pub fn ask_following(
    path: &Path,
    request: &Request,
    patience: Duration,
    tell: &mut dyn FnMut(&TestProgress),
) -> io::Result<Answer> {
    let mut answers = send(path, request, patience)?;
    let mut line = Vec::new();
    loop {
        line.clear();
        answers.read_until(b'\n', &mut line)?;
        match read(&line)? {
            Answer::Testing(progress) => tell(&progress),
            answer => return Ok(answer),
        }
    }
}

/// A gateway's events, from [`Watcher::open`] on.
pub struct Watcher {
    lines: BufReader<UnixStream>,
    line: Vec<u8>,
}

impl Watcher {
    /// Begins to watch the gateway behind `path`: [`Request::Watch`]. `patience` is for its
    /// answer.
    ///
    /// # Errors
    /// The system's error when nobody listens there; `InvalidInput`, with the gateway's
    /// sentence, when it refuses.
    pub fn open(path: &Path, request: &Request, patience: Duration) -> io::Result<Watcher> {
        let mut lines = send(path, request, patience)?;
        // The beginning of the first line is there when the gateway has answered.
        let begun = lines.fill_buf()?;
        let refused = begun.starts_with(br#"{"error""#) || begun.starts_with(b"\"");
        let mut line = Vec::new();
        if refused {
            lines.read_until(b'\n', &mut line)?;
            return Err(match read(&line)? {
                Answer::Error(why) => io::Error::new(ErrorKind::InvalidInput, why),
                _ => io::Error::new(ErrorKind::InvalidData, "it answers something else"),
            });
        }
        // News may be hours away.
        lines.get_ref().set_read_timeout(None)?;
        Ok(Watcher { lines, line })
    }

    /// The next event; `None`: the gateway has ended.
    ///
    /// # Errors
    /// The system's; `InvalidData` for a line that is none.
    pub fn next_notice(&mut self) -> io::Result<Option<Notice>> {
        self.line.clear();
        self.lines.read_until(b'\n', &mut self.line)?;
        match self.line.last() {
            None => Ok(None),
            // It was cut off: whoever wrote it is gone.
            Some(last) if *last != b'\n' => Ok(None),
            Some(_) => read(&self.line).map(Some),
        }
    }
}

fn send(path: &Path, request: &Request, patience: Duration) -> io::Result<BufReader<UnixStream>> {
    let mut stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(patience.to_std()))?;
    stream.set_write_timeout(Some(patience.to_std()))?;
    let mut line = serde_json::to_vec(request)?;
    line.push(b'\n');
    stream.write_all(&line)?;
    Ok(BufReader::new(stream))
}

fn read<'a, T: serde::Deserialize<'a>>(line: &'a [u8]) -> io::Result<T> {
    serde_json::from_slice(line).map_err(|e| io::Error::new(ErrorKind::InvalidData, e))
}
