//! The admin API: a unix stream socket that only the owner can open.
//!
//! A client connects, writes one request (a JSON object and a newline) and reads one
//! answer (a JSON object and a newline), before which the answer to `test` has one each second. So `socat - UNIX:/run/bentpipe.sock` with
//! `{"request":"status"}` is a complete client.
//!
//! [`Server`] never blocks: it lives in the driver's one loop under [`Server::TOKENS`]
//! tokens of the driver's poller. Clients, their requests and the time they may take
//! are bounded; answers are made by the driver while it holds still, or later where it must
//! ask others first.

mod failing;
mod services;
mod tested;
mod types;

use std::fs;
use std::io::{self, BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use config::socket::roots_socket;
use miette::miette;
use os::poll::{Interest, Poller};
use units::{Duration, Instant};

use crate::blocked;

pub use config::socket::default_socket;
pub use failing::{Failing, Reason, Stranger};
pub use services::{ServiceState, ServiceStatus, ServiceWaiting};
pub use tested::{LinkTest, Spread, TestProgress, TestedDirection, mbits, percent};
pub use types::{
    Answer, CompressedBytes, Compression, DatagramCounts, Dead, Deduplication, Direction,
    HandshakeCounts, HostAccount, HostCompression, LinkState, LinkStatus, NodeStatus, RateReport,
    RekeyState, Request, Status, StreamCompression, Way,
};

/// Clients served at once; more wait in the kernel's queue.
const MAX_CLIENTS: usize = 8;
/// Bytes of a request.
const MAX_REQUEST: usize = 4096;
/// A client that has not finished by then is dropped.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why the admin socket could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    /// Another program answers there.
    #[error(
        "another gateway answers on {0}: stop it, or give this one a socket of its own with \
         admin = \"…\" in [node]"
    )]
    InUse(PathBuf),
    /// Something that is no socket is in the way.
    #[error("{0} is in the way of the admin socket and is not a socket: move it elsewhere")]
    NotASocket(PathBuf),
    /// The system refused.
    #[error("cannot open the admin socket {0}: {1}")]
    Io(PathBuf, io::Error),
}

/// Bytes of memory that this process has in use, or `None` without `/proc`.
pub fn resident_memory() -> Option<u64> {
    let text = fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok().map(|kb| kb * 1024)
}

/// The admin socket of a running gateway.
pub struct Server {
    listener: UnixListener,
    path: PathBuf,
    /// What `path` was when it was made, so that a successor's socket is left alone.
    inode: u64,
    first_token: u64,
    clients: [Option<Client>; MAX_CLIENTS],
    /// The listener is watched: false while all places are taken.
    listening: bool,
}

struct Client {
    stream: UnixStream,
    deadline: Instant,
    request: Vec<u8>,
    /// Its request is being worked on.
    waits: bool,
    /// It is told how far that is, and has its answer for itself.
    follows: bool,
    answer: Vec<u8>,
    written: usize,
}

enum Progress {
    Waiting,
    /// The answer comes by [`Server::answer_those_who_wait`].
    Later,
    Writing,
    Done,
}

impl Server {
    /// How many tokens of the poller it uses, from the first one given to
    /// [`Server::open`].
    pub const TOKENS: u64 = 1 + MAX_CLIENTS as u64;

    /// Opens the socket `path` with mode 0600 and watches it on `poller`. A socket that
    /// nobody answers on is replaced.
    ///
    /// # Errors
    /// [`AdminError`], one sentence each.
    pub fn open(path: &Path, poller: &Poller, first_token: u64) -> Result<Server, AdminError> {
        make_way(path)?;
        let cannot = |e| AdminError::Io(path.to_owned(), e);
        // Bound under another name and moved, so that it is never open to others.
        let mut hidden = path.as_os_str().to_owned();
        hidden.push(format!(".{}", std::process::id()));
        let hidden = PathBuf::from(hidden);
        let listener = UnixListener::bind(&hidden).map_err(cannot)?;
        let finish = || -> io::Result<u64> {
            fs::set_permissions(&hidden, fs::Permissions::from_mode(0o600))?;
            listener.set_nonblocking(true)?;
            let inode = fs::metadata(&hidden)?.ino();
            fs::rename(&hidden, path)?;
            poller.add(&listener, first_token, Interest::READ).map_err(io::Error::other)?;
            Ok(inode)
        };
        let inode = finish().map_err(|e| {
            let _ = fs::remove_file(&hidden);
            cannot(e)
        })?;
        Ok(Server {
            listener,
            path: path.to_owned(),
            inode,
            first_token,
            clients: [const { None }; MAX_CLIENTS],
            listening: true,
        })
    }

    /// Moves on with what `token` has news about; `answer` is asked at most once per
    /// client, and may leave its client waiting (`None`). Tokens that are not this server's
    /// do nothing.
    pub fn handle(
        &mut self,
        poller: &Poller,
        token: u64,
        now: Instant,
        answer: &mut dyn FnMut(Request) -> Option<Answer>,
    ) {
        match token.checked_sub(self.first_token) {
            Some(0) => self.accept(poller, now),
            Some(n) if n < Server::TOKENS => self.advance(poller, n as usize - 1, answer),
            _ => return,
        }
        self.listen_again(poller);
    }

    /// Gives the client of `token`, whose answer was left for later, this one.
    pub fn answer_later(&mut self, poller: &Poller, token: u64, answer: &Answer) {
        let Some(place) = token.checked_sub(self.first_token + 1) else { return };
        self.answer_at(poller, place as usize, &line_of(answer));
        self.listen_again(poller);
    }

    /// Gives all clients whose answer was left for later this one.
    pub fn answer_those_who_wait(&mut self, poller: &Poller, answer: &Answer) {
        let bytes = line_of(answer);
        for place in 0..self.clients.len() {
            if self.clients[place].as_ref().is_some_and(|c| !c.follows) {
                self.answer_at(poller, place, &bytes);
            }
        }
        self.listen_again(poller);
    }

    /// Does the client of `token` wait for an answer that was left for later?
    pub fn is_waiting(&self, token: u64) -> bool {
        let place = token.checked_sub(self.first_token + 1);
        let client = place.and_then(|place| self.clients.get(place as usize)?.as_ref());
        client.is_some_and(|c| c.waits)
    }

    /// The client of `token` waits until `deadline` for an answer of its own, and is told how
    /// far it is by [`Server::tell`].
    pub fn follow_until(&mut self, token: u64, deadline: Instant) {
        if let Some(client) = self.client_at(token) {
            (client.follows, client.deadline) = (true, deadline);
        }
    }

    /// Tells the client of `token`, whose answer was left for later, how far that is. One that
    /// has not read what it was told before is told nothing.
    pub fn tell(&mut self, poller: &Poller, token: u64, news: &Answer) {
        let Some(client) = self.client_at(token).filter(|c| c.waits && c.answer.is_empty()) else {
            return;
        };
        client.answer = line_of(news);
        let progress = client.write();
        let place = (token - self.first_token - 1) as usize;
        self.follow(poller, place, progress);
        self.listen_again(poller);
    }

    fn client_at(&mut self, token: u64) -> Option<&mut Client> {
        let place = token.checked_sub(self.first_token + 1)?;
        self.clients.get_mut(place as usize)?.as_mut()
    }

    fn answer_at(&mut self, poller: &Poller, place: usize, line: &[u8]) {
        let client = self.clients.get_mut(place).and_then(Option::as_mut);
        let Some(client) = client.filter(|c| c.waits) else { return };
        client.waits = false;
        client.answer.extend_from_slice(line);
        let progress = client.write();
        self.follow(poller, place, progress);
    }

    /// When [`Server::handle_timeout`] should be called, if any client is connected.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.clients.iter().flatten().map(|c| c.deadline).min()
    }

    /// Drops the clients whose time is up.
    pub fn handle_timeout(&mut self, poller: &Poller, now: Instant) {
        for place in &mut self.clients {
            if place.as_ref().is_some_and(|c| c.deadline <= now) {
                *place = None;
            }
        }
        self.listen_again(poller);
    }

    fn accept(&mut self, poller: &Poller, now: Instant) {
        while let Some(place) = self.clients.iter().position(Option::is_none) {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                // Nobody is left, or no descriptors are: those who wait are told again.
                Err(_) => return,
            };
            let token = self.first_token + 1 + place as u64;
            if stream.set_nonblocking(true).is_err()
                || poller.add(&stream, token, Interest::READ).is_err()
            {
                continue;
            }
            self.clients[place] = Some(Client {
                stream,
                deadline: now + PATIENCE,
                request: Vec::new(),
                waits: false,
                follows: false,
                answer: Vec::new(),
                written: 0,
            });
        }
        // All places are taken: level-triggered news of more would spin.
        self.listening = poller.modify(&self.listener, self.first_token, Interest::NONE).is_err();
    }

    fn listen_again(&mut self, poller: &Poller) {
        if !self.listening && self.clients.iter().any(Option::is_none) {
            self.listening =
                poller.modify(&self.listener, self.first_token, Interest::READ).is_ok();
        }
    }

    fn advance(
        &mut self,
        poller: &Poller,
        place: usize,
        answer: &mut dyn FnMut(Request) -> Option<Answer>,
    ) {
        let Some(client) = &mut self.clients[place] else { return };
        let progress = client.advance(answer);
        self.follow(poller, place, progress);
    }

    /// Watches for what a client waits for now.
    fn follow(&mut self, poller: &Poller, place: usize, progress: Progress) {
        let Some(client) = &self.clients[place] else { return };
        let interest = match progress {
            Progress::Waiting => return,
            // It may have ended its direction, which would be told again and again.
            Progress::Later => Interest::NONE,
            Progress::Writing => Interest::WRITE,
            Progress::Done => return self.clients[place] = None,
        };
        let token = self.first_token + 1 + place as u64;
        if poller.modify(&client.stream, token, interest).is_err() {
            self.clients[place] = None;
        }
    }
}

impl Client {
    fn advance(&mut self, answer: &mut dyn FnMut(Request) -> Option<Answer>) -> Progress {
        if self.waits && self.answer.is_empty() {
            return Progress::Done; // Only that it is gone is told of it now.
        }
        if self.answer.is_empty() {
            match self.read() {
                Ok(None) => return Progress::Waiting,
                Ok(Some(line)) => match respond(&line, answer) {
                    Some(answer) => self.answer = answer,
                    None => {
                        self.waits = true;
                        return Progress::Later;
                    }
                },
                Err(_) => return Progress::Done,
            }
        }
        self.write()
    }

    /// The whole request once its newline, or the end, is there.
    fn read(&mut self) -> io::Result<Option<Vec<u8>>> {
        let mut buf = [0; 1024];
        loop {
            match self.stream.read(&mut buf) {
                Ok(0) if self.request.is_empty() => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(0) => return Ok(Some(std::mem::take(&mut self.request))),
                Ok(n) => self.request.extend_from_slice(&buf[..n]),
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
            if let Some(end) = self.request.iter().position(|b| *b == b'\n') {
                self.request.truncate(end);
                return Ok(Some(std::mem::take(&mut self.request)));
            }
            if self.request.len() > MAX_REQUEST {
                return Ok(Some(std::mem::take(&mut self.request)));
            }
        }
    }

    fn write(&mut self) -> Progress {
        while self.written < self.answer.len() {
            match self.stream.write(&self.answer[self.written..]) {
                Ok(0) => return Progress::Done,
                Ok(n) => self.written += n,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Progress::Writing,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Progress::Done,
            }
        }
        if self.waits {
            (self.answer, self.written) = (Vec::new(), 0);
            return Progress::Later;
        }
        Progress::Done
    }
}

fn respond(line: &[u8], answer: &mut dyn FnMut(Request) -> Option<Answer>) -> Option<Vec<u8>> {
    let answer = match serde_json::from_slice::<Request>(line) {
        Ok(request) => answer(request)?,
        Err(e) if line.len() <= MAX_REQUEST => {
            Answer::Error(format!("not a request such as {{\"request\":\"status\"}}: {e}"))
        }
        Err(_) => Answer::Error(format!("a request has at most {MAX_REQUEST} bytes")),
    };
    Some(line_of(&answer))
}

fn line_of(answer: &Answer) -> Vec<u8> {
    let mut bytes = serde_json::to_vec(answer).unwrap_or_else(|_| b"{}".to_vec());
    bytes.push(b'\n');
    bytes
}

/// Removes a socket that a dead program left.
fn make_way(path: &Path) -> Result<(), AdminError> {
    use std::os::unix::fs::FileTypeExt as _;
    let about = match fs::symlink_metadata(path) {
        Ok(about) => about,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(AdminError::Io(path.to_owned(), e)),
    };
    if !about.file_type().is_socket() {
        return Err(AdminError::NotASocket(path.to_owned()));
    }
    match UnixStream::connect(path) {
        Ok(_) => Err(AdminError::InUse(path.to_owned())),
        Err(e) if e.kind() == ErrorKind::ConnectionRefused => {
            fs::remove_file(path).map_err(|e| AdminError::Io(path.to_owned(), e))
        }
        Err(e) => Err(AdminError::Io(path.to_owned(), e)),
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if fs::symlink_metadata(&self.path).is_ok_and(|about| about.ino() == self.inode) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Asks the gateway behind `socket` for a person, who is told in one sentence what is wrong:
/// nothing runs there, it is not theirs to ask, it does not answer in `patience`, it refuses.
///
/// # Errors
/// That sentence.
pub fn request(socket: &Path, request: &Request, patience: Duration) -> miette::Result<Answer> {
    request_following(socket, request, patience, &mut |_| {})
}

/// The same of a request that takes long: `tell` hears how far it is, and `patience` is for each
/// news.
///
/// # Errors
/// That sentence.
pub fn request_following(
    socket: &Path,
    request: &Request,
    patience: Duration,
    tell: &mut dyn FnMut(&TestProgress),
) -> miette::Result<Answer> {
    let name = socket.display();
    match ask_following(socket, request, patience, tell) {
        Ok(Answer::Error(why)) => Err(miette!("{why}")),
        Ok(answer) => Ok(answer),
        Err(e) => Err(match e.kind() {
            ErrorKind::NotFound | ErrorKind::ConnectionRefused => match blocked::blocked_now() {
                Some(blocked) => miette!(
                    help = "start it with `bentpipe up FILE`; `bentpipe down FILE` lets the \
                            traffic flow in clear",
                    "no gateway runs here: nothing listens on {name}; {blocked}"
                ),
                None if socket != roots_socket() && roots_socket().exists() => miette!(
                    help = "ask root's: `sudo bentpipe status`",
                    "no gateway of this user's runs here: nothing listens on {name}; one of \
                     root's has {}",
                    roots_socket().display()
                ),
                None => miette!(
                    help =
                        "start one with `bentpipe up FILE`, or name its socket with --socket PATH",
                    "no gateway runs here: nothing listens on {name}"
                ),
            },
            ErrorKind::PermissionDenied => miette!(
                help = "ask as root, or as the user who started it",
                "{name} belongs to another user"
            ),
            ErrorKind::WouldBlock | ErrorKind::TimedOut => {
                miette!("the gateway behind {name} has not answered for {patience}")
            }
            _ => miette!("cannot ask the gateway behind {name}: {e}"),
        }),
    }
}

/// Sends one request and waits for its answer, at most `patience`.
///
/// # Errors
/// The system's error when nobody listens on `path` or the answer does not come;
/// `InvalidData` when it is not an answer.
pub fn ask(path: &Path, request: &Request, patience: Duration) -> io::Result<Answer> {
    ask_following(path, request, patience, &mut |_| {})
}

fn ask_following(
    path: &Path,
    request: &Request,
    patience: Duration,
    tell: &mut dyn FnMut(&TestProgress),
) -> io::Result<Answer> {
    let mut stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(patience.to_std()))?;
    stream.set_write_timeout(Some(patience.to_std()))?;
    let mut line = serde_json::to_vec(request)?;
    line.push(b'\n');
    stream.write_all(&line)?;
    let mut answers = BufReader::new(stream);
    loop {
        line.clear();
        answers.read_until(b'\n', &mut line)?;
        match serde_json::from_slice(&line) {
            Ok(Answer::Testing(progress)) => tell(&progress),
            Ok(answer) => return Ok(answer),
            Err(e) => return Err(io::Error::new(ErrorKind::InvalidData, e)),
        }
    }
}
