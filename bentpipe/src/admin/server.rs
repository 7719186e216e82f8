//! The gateway's end of the control socket.
//!
//! [`Server`] never blocks: it lives in the driver's one loop under [`Server::TOKENS`]
//! tokens of the driver's poller. Clients, their requests and the time they may take
//! are bounded; answers are made by the driver while it holds still, or later where it must
//! ask others first. Watchers stay as long as they read: one for whom too much waits is told so
//! and dropped (CT-7).

use std::fs;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use os::poll::{Interest, Poller};
use units::{Duration, Instant};

use super::AdminError;
use control::{Answer, Event, Notice, Request};

/// Clients served at once; more wait in the kernel's queue.
const MAX_CLIENTS: usize = 16;
/// Those of them that watch.
const MAX_WATCHERS: usize = 8;
/// Bytes of a request.
const MAX_REQUEST: usize = 4096;
/// A client that has not finished by then is dropped.
const PATIENCE: Duration = Duration::from_secs(10);
/// Another gateway that runs has taken whoever asks by then, into its queue at least.
const TAKEN_IN: Duration = Duration::from_secs(1);
/// How long it rests where no client can be accepted.
const REST: Duration = Duration::from_millis(100);
/// Bytes that wait for a watcher, beside its snapshot, before it is dropped.
const MAX_WAITING: usize = 1 << 20;

/// The admin socket of a running gateway.
pub struct Server {
    listener: UnixListener,
    path: PathBuf,
    /// What `path` was when it was made, so that a successor's socket is left alone.
    inode: u64,
    first_token: u64,
    clients: [Option<Client>; MAX_CLIENTS],
    /// Clients so far.
    served: u64,
    /// The listener is watched: false while all places are taken, and while it rests.
    listening: bool,
    /// Until when it rests, after a client that could not be accepted.
    resting: Option<Instant>,
}

struct Client {
    /// A token's clients have different ones.
    serial: u64,
    stream: UnixStream,
    /// `None`: it may stay as long as it reads.
    deadline: Option<Instant>,
    request: Vec<u8>,
    /// Its request is being worked on.
    waits: bool,
    /// It is told how far that is, and has its answer for itself.
    follows: bool,
    /// It watches.
    watch: Option<Watch>,
    answer: Vec<u8>,
    written: usize,
}

/// What a watcher is to hear, and how far it is.
struct Watch {
    /// Only this peer's events, and the gateway's own.
    peer: Option<String>,
    flows: bool,
    snapshot: Snapshot,
    /// What of the waiting bytes is the snapshot's and does not count.
    allowance: usize,
    /// It was dropped and is told so.
    ends: bool,
}

/// Whether a watcher has its snapshot.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Snapshot {
    /// It was not asked for.
    Wanted,
    /// It is being made. What happens meanwhile follows it.
    Asked,
    Given,
}

impl Watch {
    fn hears(&self, notice: &Notice) -> bool {
        let of_flow = matches!(notice.event, Event::FlowOpened { .. } | Event::FlowClosed { .. });
        let others = |wanted: &String| notice.peer.as_ref().is_some_and(|peer| peer != wanted);
        !self.ends && (self.flows || !of_flow) && !self.peer.as_ref().is_some_and(others)
    }
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
        let hidden = hidden_beside(path);
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
            served: 0,
            listening: true,
            resting: None,
        })
    }

    /// Where the socket is, and its inode.
    pub fn place(&self) -> (&Path, u64) {
        (&self.path, self.inode)
    }

    /// Whether a socket could be opened there, which nobody answers on. Nothing of it stays.
    ///
    /// # Errors
    /// As [`Server::open`] has.
    pub fn try_place(path: &Path) -> Result<(), AdminError> {
        if fs::symlink_metadata(path).is_ok_and(|about| !about.file_type().is_socket()) {
            return Err(AdminError::NotASocket(path.to_owned()));
        }
        let hidden = hidden_beside(path);
        UnixListener::bind(&hidden).map_err(|e| AdminError::Io(path.to_owned(), e))?;
        let _ = fs::remove_file(&hidden);
        Ok(())
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
            if self.clients[place].as_ref().is_some_and(|c| !c.follows && c.watch.is_none()) {
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

    /// Which of all clients has `token` now; 0: none.
    pub fn serial(&self, token: u64) -> u64 {
        let place = token.checked_sub(self.first_token + 1);
        let client = place.and_then(|place| self.clients.get(place as usize)?.as_ref());
        client.map_or(0, |client| client.serial)
    }

    /// The client of `token` waits until `deadline` for an answer of its own, and is told how
    /// far it is by [`Server::tell`].
    pub fn follow_until(&mut self, token: u64, deadline: Instant) {
        if let Some(client) = self.client_at(token) {
            (client.follows, client.deadline) = (true, Some(deadline));
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

    /// The client of `token`, whose answer was left for later, watches from now on.
    ///
    /// # Errors
    /// A sentence, if too many do already.
    pub fn watch(&mut self, token: u64, peer: Option<String>, flows: bool) -> Result<(), String> {
        if self.clients.iter().flatten().filter(|c| c.watch.is_some()).count() >= MAX_WATCHERS {
            return Err(format!("{MAX_WATCHERS} programs watch already: end one of them"));
        }
        if let Some(client) = self.client_at(token) {
            let (snapshot, allowance, ends) = (Snapshot::Wanted, 0, false);
            client.watch = Some(Watch { peer, flows, snapshot, allowance, ends });
            client.deadline = None;
        }
        Ok(())
    }

    /// Does anybody watch, and split connections, too?
    pub fn watched(&self) -> (bool, bool) {
        let mut watches = self.clients.iter().flatten().filter_map(|c| c.watch.as_ref());
        (watches.clone().next().is_some(), watches.any(|w| w.flows && !w.ends))
    }

    /// Snapshots that nobody asked for yet are asked for now. True if there are such.
    pub fn ask_for_snapshots(&mut self) -> bool {
        let mut any = false;
        for watch in self.clients.iter_mut().flatten().filter_map(|c| c.watch.as_mut()) {
            if watch.snapshot == Snapshot::Wanted {
                (watch.snapshot, any) = (Snapshot::Asked, true);
            }
        }
        any
    }

    /// Gives their snapshots to those who asked, made by `snapshot` for the peer that they want.
    pub fn give_snapshots(&mut self, poller: &Poller, snapshot: &dyn Fn(Option<&str>) -> Notice) {
        for place in 0..self.clients.len() {
            let Some(client) = &mut self.clients[place] else { continue };
            let Some(watch) = client.watch.as_mut().filter(|w| w.snapshot == Snapshot::Asked)
            else {
                continue;
            };
            watch.snapshot = Snapshot::Given;
            let mut first = line_of(&snapshot(watch.peer.as_deref()));
            watch.allowance = first.len();
            first.append(&mut client.answer);
            client.answer = first;
            let progress = client.write();
            self.follow(poller, place, progress);
        }
        self.listen_again(poller);
    }

    /// Tells the watchers what happened.
    pub fn tell_watchers(&mut self, poller: &Poller, now: Instant, news: &[Notice]) {
        if news.is_empty() || !self.watched().0 {
            return;
        }
        let lines: Vec<_> = news.iter().map(|notice| (notice, line_of(notice))).collect();
        for place in 0..self.clients.len() {
            let Some(client) = &mut self.clients[place] else { continue };
            if client.watch.is_none() {
                continue;
            }
            let was_idle = client.answer.is_empty();
            client.hear(now, &lines);
            let given = client.watch.as_ref().is_some_and(|w| w.snapshot == Snapshot::Given);
            if was_idle && given && !client.answer.is_empty() {
                let progress = client.write();
                self.follow(poller, place, progress);
            }
        }
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
        self.clients.iter().flatten().filter_map(|c| c.deadline).chain(self.resting).min()
    }

    /// Drops the clients whose time is up.
    pub fn handle_timeout(&mut self, poller: &Poller, now: Instant) {
        for place in &mut self.clients {
            if place.as_ref().is_some_and(|c| c.deadline.is_some_and(|at| at <= now)) {
                *place = None;
            }
        }
        self.resting = self.resting.filter(|until| *until > now);
        self.listen_again(poller);
    }

    fn accept(&mut self, poller: &Poller, now: Instant) {
        while let Some(place) = self.clients.iter().position(Option::is_none) {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return,
                // No descriptors are left: news of those who wait would spin meanwhile.
                Err(_) => {
                    self.resting = Some(now + REST);
                    break;
                }
            };
            let token = self.first_token + 1 + place as u64;
            if stream.set_nonblocking(true).is_err()
                || poller.add(&stream, token, Interest::READ).is_err()
            {
                continue;
            }
            self.served += 1;
            self.clients[place] = Some(Client {
                serial: self.served,
                stream,
                deadline: Some(now + PATIENCE),
                request: Vec::new(),
                waits: false,
                follows: false,
                watch: None,
                answer: Vec::new(),
                written: 0,
            });
        }
        // All places are taken, or it rests: level-triggered news of more would spin.
        self.listening = poller.modify(&self.listener, self.first_token, Interest::NONE).is_err();
    }

    fn listen_again(&mut self, poller: &Poller) {
        if !self.listening && self.resting.is_none() && self.clients.iter().any(Option::is_none) {
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
    /// Adds the lines that a watcher is to hear to what waits for it.
    fn hear(&mut self, now: Instant, lines: &[(&Notice, Vec<u8>)]) {
        let Some(watch) = &mut self.watch else { return };
        // A slow reader's buffer must not grow by what it has read. The last byte says whether
        // it has a whole line.
        if self.written > MAX_WAITING / 4 {
            self.answer.drain(..self.written - 1);
            self.written = 1;
        }
        for (_, line) in lines.iter().filter(|(notice, _)| watch.hears(notice)) {
            self.answer.extend_from_slice(line);
        }
        let waiting = self.answer.len() - self.written;
        if waiting <= MAX_WAITING + watch.allowance || watch.ends {
            return;
        }
        // What it has the beginning of is finished; then it learns why it hears no more.
        let begun = self.written > 0 && self.answer[self.written - 1] != b'\n';
        let rest = self.answer[self.written..].iter().position(|byte| *byte == b'\n');
        let keep = if begun { rest.map_or(0, |at| at + 1) } else { 0 };
        self.answer.truncate(self.written + keep);
        let reason = format!("{waiting} bytes of events waited and were not read");
        crate::log!(Warn, "a watcher of the control socket was dropped", because = reason);
        let at_ms = lines.last().map_or(0, |(notice, _)| notice.at_ms);
        let told = Notice { at_ms, peer: None, event: Event::Dropped { reason } };
        self.answer.extend_from_slice(&line_of(&told));
        self.answer.shrink_to_fit();
        watch.ends = true;
        self.deadline = Some(now + PATIENCE);
    }

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
        if self.waits && !self.watch.as_ref().is_some_and(|watch| watch.ends) {
            (self.answer, self.written) = (Vec::new(), 0);
            if let Some(watch) = &mut self.watch {
                watch.allowance = 0;
            }
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

/// For the fuzzers: whatever is asked, there is one answer, in one line; and a request that is
/// understood is the same when it is written down.
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub fn fuzz(line: &[u8]) {
    let mut asked = None;
    let answer = respond(line, &mut |request| {
        asked = Some(serde_json::to_vec(&request).unwrap_or_default());
        Some(Answer::Error(String::new()))
    });
    let answer = answer.unwrap_or_default();
    assert_eq!(answer.iter().filter(|b| **b == b'\n').count(), 1);
    assert!(serde_json::from_slice::<Answer>(&answer).is_ok());
    if let Some(asked) = asked {
        let again = serde_json::from_slice::<Request>(&asked).map(|r| serde_json::to_vec(&r));
        assert!(again.is_ok_and(|r| r.is_ok_and(|r| r == asked)));
    }
}

fn line_of(answer: &impl serde::Serialize) -> Vec<u8> {
    let mut bytes = serde_json::to_vec(answer).unwrap_or_else(|_| b"{}".to_vec());
    bytes.push(b'\n');
    bytes
}

fn hidden_beside(path: &Path) -> PathBuf {
    let mut hidden = path.as_os_str().to_owned();
    hidden.push(format!(".{}", std::process::id()));
    PathBuf::from(hidden)
}

/// Removes a socket that a dead program left.
fn make_way(path: &Path) -> Result<(), AdminError> {
    let about = match fs::symlink_metadata(path) {
        Ok(about) => about,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(AdminError::Io(path.to_owned(), e)),
    };
    if !about.file_type().is_socket() {
        return Err(AdminError::NotASocket(path.to_owned()));
    }
    match control::client::connect(path, TAKEN_IN) {
        Ok(_) => Err(AdminError::InUse(path.to_owned())),
        Err(e) if e.kind() == ErrorKind::ConnectionRefused => {
            fs::remove_file(path).map_err(|e| AdminError::Io(path.to_owned(), e))
        }
        // It hangs, and its queue is full.
        Err(e) if e.kind() == ErrorKind::WouldBlock => Err(AdminError::InUse(path.to_owned())),
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

#[cfg(test)]
mod tests {
    #[test]
    fn the_corpus_of_requests_replays() {
        corpus::replay("admin", super::fuzz);
    }
}
