//! Asks a gateway, and watches one. Everything here blocks.

use std::io::{self, BufRead as _, BufReader, ErrorKind, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;

use socket2::{Domain, SockAddr, Socket, Type};
use units::Duration;

use crate::{Answer, Notice, Request, TestProgress};

/// Sends one request and waits for its answer, at most `patience`.
///
/// # Errors
/// The system's error when nobody listens on `path` or the answer does not come;
/// `UnexpectedEof` when the gateway ends before it is whole; `InvalidData` when it is no
/// answer.
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
        if line.last() != Some(&b'\n') {
            return Err(ErrorKind::UnexpectedEof.into());
        }
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
        if begun.is_empty() {
            return Err(ErrorKind::UnexpectedEof.into());
        }
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
    let mut stream = connect(path, patience)?;
    stream.set_read_timeout(Some(patience.to_std()))?;
    let mut line = serde_json::to_vec(request)?;
    line.push(b'\n');
    stream.write_all(&line)?;
    Ok(BufReader::new(stream))
}

/// Connects within `patience`: one that is hung and whose queue is full takes nobody.
///
/// # Errors
/// The system's; `WouldBlock` when nobody was taken in time.
pub fn connect(path: &Path, patience: Duration) -> io::Result<UnixStream> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_write_timeout(Some(patience.to_std()))?;
    socket.connect(&SockAddr::unix(path)?)?;
    Ok(OwnedFd::from(socket).into())
}

fn read<'a, T: serde::Deserialize<'a>>(line: &'a [u8]) -> io::Result<T> {
    serde_json::from_slice(line).map_err(|e| io::Error::new(ErrorKind::InvalidData, e))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    /// A path of this test's own; the file goes with it.
    struct Place(std::path::PathBuf);

    impl Place {
        fn new(name: &str) -> Place {
            let name = format!("bentpipe-control-{name}-{}", std::process::id());
            Place(std::env::temp_dir().join(name))
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    #[test]
    #[allow(clippy::disallowed_methods)] // everything here blocks
    fn a_gateway_that_ends_before_its_answer_is_whole_is_told_from_a_wrong_answer() {
        let place = Place::new("ends");
        let gateway = UnixListener::bind(&place.0).unwrap();
        for part in [&b""[..], b"{\"err"] {
            let answers = std::thread::spawn({
                let gateway = gateway.try_clone().unwrap();
                move || {
                    let (client, _) = gateway.accept().unwrap();
                    let mut request = String::new();
                    BufReader::new(&client).read_line(&mut request).unwrap();
                    (&client).write_all(part).unwrap();
                }
            });
            let e = ask(&place.0, &Request::Status, Duration::from_secs(30)).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::UnexpectedEof);
            answers.join().unwrap();
        }
    }

    #[test]
    fn a_gateway_that_takes_nobody_is_not_waited_for_longer_than_asked() {
        let place = Place::new("hung");
        let gateway = Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
        gateway.bind(&SockAddr::unix(&place.0).unwrap()).unwrap();
        gateway.listen(0).unwrap();
        // Those who gave up keep their places in the queue.
        let failed = (0..9).find_map(|_| {
            let connected = connect(&place.0, Duration::from_millis(100));
            connected.err()
        });
        assert_eq!(failed.map(|e| e.kind()), Some(ErrorKind::WouldBlock));
    }
}
