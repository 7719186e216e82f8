//! Browsers of three times, as far as their connections go: each reads a page, and asks for an
//! object as soon as the text has named it.

use std::io::{self, Read, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Mutex, mpsc};
use std::thread;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(120);

/// How a browser uses connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Browser {
    /// HTTP/1.0: one for each object, four at once.
    Old,
    /// HTTP/1.1: six that are kept.
    Kept,
    /// HTTP/1.1, all requests for objects at once on one.
    Pipelined,
}

/// What it got.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Got {
    /// Objects, with the page.
    pub objects: usize,
    /// Bytes of their bodies.
    pub bytes: usize,
}

impl Browser {
    /// All kinds.
    pub const ALL: [Browser; 3] = [Browser::Old, Browser::Kept, Browser::Pipelined];

    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Browser::Old => "HTTP/1.0, 4 connections",
            Browser::Kept => "HTTP/1.1, 6 connections",
            Browser::Pipelined => "HTTP/1.1, pipelined",
        }
    }

    /// Its place among all.
    pub fn number(self) -> usize {
        self as usize
    }

    /// Loads the page of this directory and all that it names.
    pub fn load(self, at: SocketAddr, directory: &str) -> io::Result<Got> {
        let (found, names) = mpsc::channel();
        let names = Mutex::new(names);
        let workers = match self {
            Browser::Old => 4,
            // One more has the page.
            Browser::Kept => 5,
            Browser::Pipelined => 1,
        };
        thread::scope(|scope| {
            let load = || match self {
                Browser::Old => each_anew(at, &names),
                Browser::Kept => one_by_one(at, &names),
                Browser::Pipelined => all_at_once(at, &names),
            };
            let workers: Vec<_> = (0..workers).map(|_| scope.spawn(load)).collect();
            let bytes = self.read_page(at, directory, &found)?;
            drop(found);
            let mut got = Got { objects: 1, bytes };
            for worker in workers {
                let part = worker.join().map_err(|_| io::Error::other("a thread panicked"))??;
                got.objects += part.objects;
                got.bytes += part.bytes;
            }
            Ok(got)
        })
    }

    fn version(self) -> &'static str {
        if self == Browser::Old { "HTTP/1.0" } else { "HTTP/1.1" }
    }

    /// Reads the page and tells what it names as it comes; its length.
    fn read_page(
        self,
        at: SocketAddr,
        directory: &str,
        found: &mpsc::Sender<String>,
    ) -> io::Result<usize> {
        let mut stream = connect(at)?;
        ask(&mut stream, at, directory, self.version(), "text/html,*/*")?;
        let mut left = body_length(&read_head(&mut stream)?)?;
        let (mut text, mut read) = (Vec::new(), 0);
        while left > 0 {
            let mut part = vec![0; left.min(1024)];
            let n = stream.read(&mut part)?;
            if n == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            left -= n;
            text.extend_from_slice(&part[..n]);
            let until = text.iter().rposition(|b| *b == b'>').map_or(read, |at| at + 1);
            for name in names_in(&text[read..until]) {
                // Nobody hears it any more only if a thread has failed, which is told there.
                let _ = found.send(format!("{directory}{name}"));
            }
            read = until.max(read);
        }
        Ok(text.len())
    }
}

/// Values of `src` and `href`.
fn names_in(text: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(text);
    let values = text.split(['<', '>']).filter_map(|tag| {
        let value = tag.split_once("src=\"").or_else(|| tag.split_once("href=\""))?.1;
        Some(value.split('"').next()?.to_owned())
    });
    values.collect()
}

fn next(names: &Mutex<mpsc::Receiver<String>>) -> Option<String> {
    names.lock().ok()?.recv().ok()
}

fn each_anew(at: SocketAddr, names: &Mutex<mpsc::Receiver<String>>) -> io::Result<Got> {
    let mut got = Got::default();
    while let Some(name) = next(names) {
        let mut stream = connect(at)?;
        ask(&mut stream, at, &name, "HTTP/1.0", "*/*")?;
        take(&mut stream, &mut got)?;
    }
    Ok(got)
}

fn one_by_one(at: SocketAddr, names: &Mutex<mpsc::Receiver<String>>) -> io::Result<Got> {
    let (mut got, mut kept) = (Got::default(), None);
    while let Some(name) = next(names) {
        let stream = match &mut kept {
            Some(stream) => stream,
            none => none.insert(connect(at)?),
        };
        ask(stream, at, &name, "HTTP/1.1", "*/*")?;
        take(stream, &mut got)?;
    }
    Ok(got)
}

fn all_at_once(at: SocketAddr, names: &Mutex<mpsc::Receiver<String>>) -> io::Result<Got> {
    let (mut got, mut asked) = (Got::default(), 0);
    // A connection on which nothing is said at first belongs to another protocol.
    let Some(first) = next(names) else { return Ok(got) };
    let mut stream = connect(at)?;
    let mut asking = stream.try_clone()?;
    thread::scope(|scope| {
        let (told, tell) = mpsc::channel();
        scope.spawn(move || {
            let rest = std::iter::from_fn(|| next(names));
            for name in std::iter::once(first).chain(rest) {
                let sent = ask(&mut asking, at, &name, "HTTP/1.1", "*/*");
                if told.send(sent).is_err() {
                    return;
                }
            }
        });
        for sent in tell {
            sent?;
            asked += 1;
            take(&mut stream, &mut got)?;
        }
        Ok(())
    })
    .map(|()| Got { objects: asked, ..got })
}

fn connect(at: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&at, PATIENCE)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    Ok(stream)
}

fn ask(
    stream: &mut TcpStream,
    at: SocketAddr,
    target: &str,
    version: &str,
    accept: &str,
) -> io::Result<()> {
    let request = format!(
        "GET {target} {version}\r\nHost: {}\r\nAccept: {accept}\r\nUser-Agent: lab\r\n\r\n",
        at.ip()
    );
    stream.write_all(request.as_bytes())
}

/// Reads one whole answer.
fn take(stream: &mut TcpStream, got: &mut Got) -> io::Result<()> {
    let length = body_length(&read_head(stream)?)?;
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    got.objects += 1;
    got.bytes += length;
    Ok(())
}

fn body_length(head: &str) -> io::Result<usize> {
    let fields = head.lines().filter_map(|line| line.split_once(": "));
    let mut lengths = fields.filter(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    let length = lengths.next().and_then(|(_, value)| value.parse().ok());
    let is_good = head.split(' ').nth(1) == Some("200");
    length.filter(|_| is_good).ok_or_else(|| io::Error::other(format!("an answer: {head}")))
}

/// The next message's head.
pub fn read_head(stream: &mut impl Read) -> io::Result<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}
