//! Browsers of several times, as far as their connections go: each reads a page, and asks for an
//! object as soon as the text has named it.

use std::io::{self, Read, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use serde::Deserialize;

const PATIENCE: Duration = Duration::from_secs(120);
/// What is read of an object at once.
const PIECE: usize = 4096;

/// How a browser uses connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Browser {
    /// HTTP/1.0: one for each object, four at once.
    Old,
    /// HTTP/1.1: six that are kept.
    Kept,
    /// HTTP/1.1: two that are kept.
    Few,
    /// HTTP/1.1: one for the page, and one on which all requests for objects go at once.
    Pipelined,
    /// HTTP/1.1: one for all, one object after the other.
    Single,
    /// HTTP/1.1: one for all, all requests at once.
    SinglePipelined,
}

/// What it got.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Got {
    /// Objects, with the page.
    pub objects: usize,
    /// Bytes of their bodies.
    pub bytes: usize,
    /// Connections that it opened.
    pub connections: usize,
    /// Seconds until the page's head was there.
    pub first_byte: f64,
    /// When each object was asked for and when it had come, in seconds.
    pub elements: Vec<(f64, f64)>,
}

impl Got {
    fn one(&mut self, asked: f64, came: f64, bytes: usize) {
        self.objects += 1;
        self.bytes += bytes;
        self.elements.push((asked, came));
    }

    fn add(&mut self, other: Got) {
        self.objects += other.objects;
        self.bytes += other.bytes;
        self.connections += other.connections;
        self.elements.extend(other.elements);
    }
}

/// Where a page is, and since when it is loaded.
#[derive(Clone, Copy)]
struct Load {
    at: SocketAddr,
    begin: Instant,
    /// It offers no larger receive window than this.
    window: Option<u32>,
}

type Names = Mutex<mpsc::Receiver<String>>;

impl Browser {
    /// All kinds.
    pub const ALL: [Browser; 6] = [
        Browser::Old,
        Browser::Kept,
        Browser::Few,
        Browser::Pipelined,
        Browser::Single,
        Browser::SinglePipelined,
    ];
    /// Those that the bench has.
    pub const BENCH: [Browser; 3] = [Browser::Old, Browser::Kept, Browser::Pipelined];

    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Browser::Old => "HTTP/1.0, 4 connections",
            Browser::Kept => "HTTP/1.1, 6 connections",
            Browser::Few => "HTTP/1.1, 2 connections",
            Browser::Pipelined => "HTTP/1.1, pipelined",
            Browser::Single => "HTTP/1.1, 1 connection",
            Browser::SinglePipelined => "HTTP/1.1, 1 connection, pipelined",
        }
    }

    /// Its place among all.
    pub fn number(self) -> usize {
        self as usize
    }

    /// Loads the page of this directory and all that it names.
    ///
    /// # Errors
    /// If a connection fails, or an answer is none.
    pub fn load(self, at: SocketAddr, directory: &str, window: Option<u32>) -> io::Result<Got> {
        let it = Load { at, begin: Instant::now(), window };
        let workers = match self {
            Browser::Old => 4,
            // One more has the page.
            Browser::Kept => 5,
            Browser::Few | Browser::Pipelined => 1,
            Browser::Single | Browser::SinglePipelined => return self.load_by_one(it, directory),
        };
        let (found, names) = mpsc::channel();
        let names = Mutex::new(names);
        thread::scope(|scope| {
            let load = || match self {
                Browser::Old => it.each_anew(&names),
                Browser::Kept | Browser::Few => it.one_by_one(&names),
                _ => it.all_at_once(&names),
            };
            let workers: Vec<_> = (0..workers).map(|_| scope.spawn(load)).collect();
            let mut stream = it.connect()?;
            let mut got = Got { connections: 1, ..Got::default() };
            // Nobody hears a name any more only if a thread has failed, which is told there.
            let tell = |name: String| {
                let _ = found.send(name);
                Ok(())
            };
            self.read_page(it, &mut stream, directory, &mut got, tell)?;
            drop(found);
            for worker in workers {
                got.add(worker.join().map_err(|_| io::Error::other("a thread panicked"))??);
            }
            Ok(got)
        })
    }

    fn load_by_one(self, it: Load, directory: &str) -> io::Result<Got> {
        let mut stream = it.connect()?;
        let mut asking = stream.try_clone()?;
        let mut got = Got { connections: 1, ..Got::default() };
        let (mut names, mut asked) = (Vec::new(), Vec::new());
        self.read_page(it, &mut stream, directory, &mut got, |name| {
            if self == Browser::SinglePipelined {
                asked.push(it.now());
                ask(&mut asking, it.at, &name, "HTTP/1.1", "*/*")?;
            }
            names.push(name);
            Ok(())
        })?;
        for (n, name) in names.iter().enumerate() {
            let asked = match asked.get(n) {
                Some(asked) => *asked,
                None => {
                    let now = it.now();
                    ask(&mut stream, it.at, name, "HTTP/1.1", "*/*")?;
                    now
                }
            };
            it.take(&mut stream, asked, &mut got)?;
        }
        Ok(got)
    }

    fn version(self) -> &'static str {
        if self == Browser::Old { "HTTP/1.0" } else { "HTTP/1.1" }
    }

    /// Reads the page and tells what it names as it comes.
    fn read_page(
        self,
        it: Load,
        stream: &mut TcpStream,
        directory: &str,
        got: &mut Got,
        mut found: impl FnMut(String) -> io::Result<()>,
    ) -> io::Result<()> {
        let asked = it.now();
        ask(stream, it.at, directory, self.version(), "text/html,*/*")?;
        let mut left = body_length(&read_head(stream)?)?;
        got.first_byte = it.now();
        let (mut text, mut read) = (Vec::new(), 0);
        while left > 0 {
            it.limit(stream)?;
            let mut part = vec![0; left.min(1024)];
            let n = stream.read(&mut part)?;
            if n == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            left -= n;
            text.extend_from_slice(&part[..n]);
            let until = text.iter().rposition(|b| *b == b'>').map_or(read, |at| at + 1);
            for name in names_in(&text[read..until]) {
                found(format!("{directory}{name}"))?;
            }
            read = until.max(read);
        }
        got.one(asked, it.now(), text.len());
        Ok(())
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

fn next(names: &Names) -> Option<String> {
    names.lock().ok()?.recv().ok()
}

impl Load {
    fn now(&self) -> f64 {
        self.begin.elapsed().as_secs_f64()
    }

    fn connect(&self) -> io::Result<TcpStream> {
        let stream = TcpStream::connect_timeout(&self.at, PATIENCE)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        self.limit(&stream)?;
        Ok(stream)
    }

    /// Again and again: the kernel raises it when it measures its buffers anew.
    fn limit(&self, stream: &TcpStream) -> io::Result<()> {
        match self.window {
            Some(window) => os::tcp::Stream::from(stream.try_clone()?).set_window_limit(window),
            None => Ok(()),
        }
    }

    /// Reads one whole answer.
    fn take(&self, stream: &mut TcpStream, asked: f64, got: &mut Got) -> io::Result<()> {
        let length = body_length(&read_head(stream)?)?;
        let mut body = vec![0; length];
        for piece in body.chunks_mut(PIECE) {
            self.limit(stream)?;
            stream.read_exact(piece)?;
        }
        got.one(asked, self.now(), length);
        Ok(())
    }

    fn each_anew(&self, names: &Names) -> io::Result<Got> {
        let mut got = Got::default();
        while let Some(name) = next(names) {
            let asked = self.now();
            let mut stream = self.connect()?;
            got.connections += 1;
            ask(&mut stream, self.at, &name, "HTTP/1.0", "*/*")?;
            self.take(&mut stream, asked, &mut got)?;
        }
        Ok(got)
    }

    fn one_by_one(&self, names: &Names) -> io::Result<Got> {
        let (mut got, mut kept) = (Got::default(), None);
        while let Some(name) = next(names) {
            let asked = self.now();
            let stream = match &mut kept {
                Some(stream) => stream,
                none => none.insert(self.connect()?),
            };
            got.connections = 1;
            ask(stream, self.at, &name, "HTTP/1.1", "*/*")?;
            self.take(stream, asked, &mut got)?;
        }
        Ok(got)
    }

    fn all_at_once(&self, names: &Names) -> io::Result<Got> {
        let mut got = Got::default();
        // A connection on which nothing is said at first belongs to another protocol.
        let Some(first) = next(names) else { return Ok(got) };
        let mut stream = self.connect()?;
        got.connections = 1;
        let mut asking = stream.try_clone()?;
        thread::scope(|scope| {
            let (told, tell) = mpsc::channel();
            scope.spawn(move || {
                let rest = std::iter::from_fn(|| next(names));
                for name in std::iter::once(first).chain(rest) {
                    let asked = self.now();
                    let sent = ask(&mut asking, self.at, &name, "HTTP/1.1", "*/*");
                    if told.send(sent.map(|()| asked)).is_err() {
                        return;
                    }
                }
            });
            for asked in tell {
                self.take(&mut stream, asked?, &mut got)?;
            }
            Ok(got)
        })
    }
}

/// Sends a request for this target.
///
/// # Errors
/// If it cannot be sent.
pub fn ask(
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

/// The length of the body behind this head of an answer.
///
/// # Errors
/// If it is no good answer, or tells none.
pub fn body_length(head: &str) -> io::Result<usize> {
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
