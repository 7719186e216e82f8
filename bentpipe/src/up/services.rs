//! Services: programs that the gateway has started, and what it exchanges with them
//! (spec/service.md). Their sockets are shared by the shards; the first one watches over the
//! programs, takes what they say, and hands it to the shard that it concerns.
//!
//! ```text
//! Resting ── time ──▶ Starting ── hello ──▶ Running
//!    ▲                   │ no hello in time    │ hangs, or its socket ends
//!    └──── it ended ─────┴──────── Ending ◀────┘
//! ```

pub mod commands;
mod life;
pub mod line;
mod words;

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use os::OsError;
use os::closing::{Closer, Shared};
use os::poll::{Interest, Poller};
use os::seqpacket::SeqPacket;
use os::tcp::Stream;
use relay::Target;
use service::{Event, Reason, Request, Takes, packet};
use units::{Duration, Instant};

use crate::admin::{self, ServiceState, ServiceStatus, ServiceWaiting};
use crate::config::Service;
use crate::keeper::{Notice, Order, Spec};
use commands::{Asker, Commands};
use life::{Life, Look};
use line::{Answer, Line, Proxied, Sent};
use words::Words;

/// How long a program may take to say hello.
const HELLO: Duration = Duration::from_secs(10);
/// How often it is looked whether one hangs. Looks are counted, not the time between them: who does
/// not come to look, on a busy machine, cannot say of others that they do not come to answer.
const LOOK: Duration = Duration::from_secs(1);
/// The pause before a service that failed is started again: the first, and the longest.
const PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// Who has run for so long has not failed by being started.
const STEADY: Duration = Duration::from_secs(60);
/// Requests that are taken of one service before other work has its turn.
const AT_ONCE: usize = 64;
/// A service may have a quarter of the shard's processor by what it says, and so much at once.
const PARTS: u64 = 4;
const BURST: Duration = Duration::from_millis(2);
/// What a stream or a connection that it wants counts beside the time that reading it takes.
const DEAR: Duration = Duration::from_micros(50);
/// When it is looked again whether answers have found room.
const ROOM: Duration = Duration::from_millis(2);
/// Counters that a service may have, and kinds of what waits at it.
const MOST_TOLD: usize = 64;
/// The first user of those that services have who are given none: 60,706 to 61,183 belong to
/// nobody by the habit of Linux systems.
const FIRST_USER: u32 = 60_706;

/// What a service wants of a shard.
#[derive(Debug)]
pub struct Work {
    pub line: Arc<Line>,
    pub wish: Wish,
}

/// See [`Work`].
#[derive(Debug)]
pub enum Wish {
    /// [`Request::Open`].
    Open {
        request: u64,
        peer: String,
        class: Option<String>,
        client: Option<SocketAddr>,
        preface: Vec<u8>,
    },
    /// [`Request::Connect`].
    Connect { request: u64, peer: String, target: String, source: Option<SocketAddr> },
    /// [`Request::Resolve`].
    Resolve { request: u64, peer: String, name: String },
    /// [`Request::Back`].
    Back { request: u64, client: SocketAddr, server: SocketAddr },
    /// [`Request::Pass`].
    Pass { stream: Stream, client: SocketAddr, server: SocketAddr, dscp: u8, read: Vec<u8> },
    /// The same, of a client of the proxy.
    PassProxied { stream: Stream, it: Proxied, read: Vec<u8> },
    /// [`Request::Answer`].
    Answer { client: SocketAddr, server: SocketAddr, bytes: Vec<u8> },
    /// [`Request::Onward`].
    Onward { client: SocketAddr, server: SocketAddr, bytes: Vec<u8> },
}

/// What the driver is to do for a service.
#[derive(Debug)]
pub enum Do {
    /// It runs, or does not any more: all shards are to know.
    Is(String, Option<Arc<Line>>),
    /// It wants something of a peer's shard.
    Of(String, Work),
    /// It passes a connection to this server.
    Passed(SocketAddr, Work),
    /// It passes a client of the proxy that wants to go there.
    PassedProxied(Target, Work),
    /// It has too many requests open for one more.
    Refuse(Arc<Line>, u64),
    /// The operator's command has this answer.
    Answer(Asker, admin::Answer),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Resting { until: Instant },
    Starting { since: Instant },
    Running { since: Instant },
    Ending,
}

/// One service.
struct Program {
    config: Service,
    state: State,
    line: Option<Arc<Line>>,
    /// Closes what it has copies of, since it was first started.
    closer: Option<Arc<Closer>>,
    words: Option<Words>,
    pid: u32,
    starts: u64,
    /// When it said hello last.
    ready: Option<Instant>,
    /// Starts in a row that came to nothing.
    failures: u32,
    /// Its socket is not watched while its answers wait, nor before this time.
    paused: Option<Instant>,
    /// What it has taken of the processor, less what has drained since.
    taken: (Duration, Instant),
    life: Life,
    counters: BTreeMap<String, u64>,
    waiting: BTreeMap<(String, String), ServiceWaiting>,
    /// What lines before this one counted.
    before: BTreeMap<&'static str, u64>,
}

/// All services, and the keeper that starts them.
pub struct Services {
    keeper: Option<Keeper>,
    programs: Vec<Program>,
    commands: Commands,
    token: u64,
    looked: Instant,
    /// When services that are paused are looked at.
    resume: Option<Instant>,
    room: Vec<u8>,
}

struct Keeper {
    /// Killed when dropped would be too late for its children: its socket's end ends them.
    _child: Child,
    socket: SeqPacket,
}

impl Services {
    /// Starts the keeper, if the file names services: before rights are given up. `token` is the
    /// first of the poller's numbers for them, two for each service and one more.
    ///
    /// # Errors
    /// If a user is not there, or the system has no more processes.
    pub fn open(services: &[Service], poller: &Poller, token: u64) -> Result<Services, OsError> {
        let mut all = Services {
            keeper: None,
            programs: Vec::new(),
            commands: Commands::default(),
            token,
            looked: Instant::ZERO,
            resume: None,
            room: Vec::new(),
        };
        if services.is_empty() {
            return Ok(all);
        }
        all.room = service::room();
        let keeper = Keeper::start()?;
        poller.add(&keeper.socket, token, Interest::READ)?;
        for (config, n) in services.iter().zip(0..) {
            keeper.say(&Order::Service(spec(config, n)?), &[])?;
            all.programs.push(Program::new(config.clone()));
        }
        all.keeper = Some(keeper);
        Ok(all)
    }

    /// Is there anything to watch over?
    pub fn is_empty(&self) -> bool {
        self.programs.is_empty()
    }

    /// Is the poller's number one of these?
    pub fn has_token(&self, token: u64) -> bool {
        (self.token..=self.token + 2 * self.programs.len() as u64).contains(&token)
    }

    /// When [`Services::handle_timeout`] is to be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let looks = |p: &Program| !matches!(p.state, State::Resting { .. });
        let rests = self.programs.iter().filter_map(|p| match p.state {
            State::Resting { until } => Some(until),
            _ => None,
        });
        let look = self.programs.iter().any(looks).then(|| self.looked + LOOK);
        self.keeper.as_ref()?;
        rests.chain(look).chain(self.resume).min()
    }

    /// Starts what is due, and ends what hangs.
    pub fn handle_timeout(&mut self, now: Instant, poller: &Poller) -> Vec<Do> {
        let mut todo = Vec::new();
        if self.keeper.is_none() {
            return todo;
        }
        for n in 0..self.programs.len() {
            if matches!(self.programs[n].state, State::Resting { until } if until <= now) {
                self.start(now, n, poller);
            }
        }
        if self.resume.is_some_and(|at| at <= now) {
            (0..self.programs.len()).for_each(|n| self.resume(now, n, poller));
            let paused = self.programs.iter().filter_map(|p| p.paused);
            self.resume = paused.map(|until| until.max(now + ROOM)).min();
        }
        if now.since(self.looked) >= LOOK {
            self.looked = now;
            for n in 0..self.programs.len() {
                self.look(now, n, &mut todo);
            }
            self.give_up_commands(now, None, &mut todo);
        }
        todo
    }

    /// Gives a service what the operator wants of it; `asker` is answered later.
    ///
    /// # Errors
    /// A sentence.
    pub fn command(
        &mut self,
        now: Instant,
        name: &str,
        words: Vec<String>,
        asker: Asker,
    ) -> Result<(), String> {
        let at = self.programs.iter().position(|p| p.config.name == name);
        let at = at.ok_or_else(|| {
            format!("the file has no service \"{name}\": a table [service.{name}] is one")
        })?;
        let line = self.programs[at].line.clone();
        let runs = matches!(self.programs[at].state, State::Running { .. });
        let line = line.filter(|_| runs);
        let line = line.ok_or_else(|| format!("the service {name} does not run now"))?;
        let request = self.commands.begin(now, at, asker);
        match line.send(&Event::Command { request, words }, b"", None) {
            Sent::Done => Ok(()),
            _ => {
                self.commands.end(at, request, true, b"");
                Err(format!("the service {name} does not take the command: its queue is full"))
            }
        }
    }

    fn give_up_commands(&mut self, now: Instant, ended: Option<usize>, todo: &mut Vec<Do>) {
        let over = self.commands.give_up(now, ended);
        todo.extend(over.into_iter().map(|(asker, answer)| Do::Answer(asker, answer)));
    }

    /// Does it live?
    fn look(&mut self, now: Instant, n: usize, todo: &mut Vec<Do>) {
        let p = &mut self.programs[n];
        let why = match (p.state, &p.line) {
            (State::Starting { since }, _) if now.since(since) >= HELLO => "it does not say hello",
            (State::Running { .. }, Some(line)) => {
                // A pong is not heard while what it says has to wait, nor owed by one that ends.
                let can_answer = p.paused.is_none() && !line.is_closed();
                match p.life.look(line.unread() > 0, can_answer) {
                    Look::Lives => return,
                    Look::Ping => {
                        p.life.pinged = line.send(&Event::Ping, b"", None) == Sent::Done;
                        return;
                    }
                    Look::Hangs(why) => why,
                }
            }
            _ => return,
        };
        self.end(n, why, todo);
    }

    /// Something happened to a descriptor.
    pub fn on_event(&mut self, now: Instant, poller: &Poller, token: u64) -> Vec<Do> {
        let mut todo = Vec::new();
        let Some(at) = (token - self.token).checked_sub(1) else {
            self.hear_keeper(now, poller, &mut todo);
            return todo;
        };
        let n = at as usize / 2;
        if at % 2 == 1 {
            let p = &mut self.programs[n];
            if let Some(words) = &mut p.words
                && !words.hear(now, &p.config.name)
            {
                p.words = None;
            }
            return todo;
        }
        self.hear(now, n, poller, &mut todo);
        todo
    }

    /// Takes what a service says.
    fn hear(&mut self, now: Instant, n: usize, poller: &Poller, todo: &mut Vec<Do>) {
        let mut room = std::mem::take(&mut self.room);
        let (begin, mut dear) = (os::proc::thread_cpu(), 0);
        for _ in 0..AT_ONCE {
            let p = &mut self.programs[n];
            let Some(line) = p.line.clone() else { break };
            if line.waiting() > 0 {
                // It is to read answers before it asks for more.
                self.pause(now, n, now, poller);
                break;
            }
            let why = match line.receive(&mut room) {
                Ok((len @ 1.., descriptors)) => {
                    p.life.hear();
                    match packet::decode::<Request>(&room[..len]) {
                        Ok((Request::Told { request, failed }, bytes)) => {
                            let told = self.commands.end(n, request, failed, bytes);
                            todo.extend(told.map(|(asker, answer)| Do::Answer(asker, answer)));
                            None
                        }
                        Ok((Request::Hint { service, peer }, bytes)) => {
                            self.hand_over(n, &service, peer, bytes);
                            None
                        }
                        Ok((request, bytes)) => {
                            dear += u64::from(is_dear(&request));
                            p.obey(now, &line, request, bytes, descriptors, todo)
                        }
                        Err(_) => Some("it says what is no message"),
                    }
                }
                Ok(_) => Some("its socket has ended"),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == io::ErrorKind::InvalidData => {
                    Some("it says what is no message")
                }
                Err(_) => Some("its socket has ended"),
            };
            if let Some(why) = why {
                self.end(n, why, todo);
                break;
            }
        }
        self.room = room;
        let spent = os::proc::thread_cpu() - begin + DEAR.times(dear);
        if let Some(until) = self.programs[n].charge(now, spent) {
            self.pause(now, n, until, poller);
        }
    }

    /// Gives another service what this one says to it, if that takes it now. Nobody waits for it.
    fn hand_over(&self, from: usize, to: &str, peer: String, bytes: &[u8]) {
        let runs = |p: &&Program| matches!(p.state, State::Running { .. });
        let Some(from) = self.programs.get(from).filter(runs) else { return };
        let to = self.programs.iter().filter(runs).find(|p| p.config.name == to);
        if let Some(line) = to.and_then(|p| p.line.as_ref()).filter(|line| line.has_room()) {
            let event = Event::Hinted { service: from.config.name.clone(), peer };
            // Where it does not fit it is lost.
            line.send(&event, bytes, None);
        }
    }

    /// What a service says is not taken before `until`, nor while answers wait for it.
    fn pause(&mut self, now: Instant, n: usize, until: Instant, poller: &Poller) {
        let (p, token) = (&mut self.programs[n], token_of(self.token, n));
        let Some(line) = &p.line else { return };
        if poller.modify(&**line, token, Interest::NONE).is_ok() {
            p.paused = Some(until);
            let at = until.max(now + ROOM);
            self.resume = Some(self.resume.map_or(at, |resume| resume.min(at)));
        }
    }

    fn resume(&mut self, now: Instant, n: usize, poller: &Poller) {
        let (p, token) = (&mut self.programs[n], token_of(self.token, n));
        let is_due = p.paused.is_some_and(|until| until <= now);
        if let Some(line) = p.line.as_ref().filter(|line| is_due && line.waiting() == 0)
            && poller.modify(&**line, token, Interest::READ).is_ok()
        {
            p.paused = None;
        }
    }

    fn start(&mut self, now: Instant, n: usize, poller: &Poller) {
        if let Err(why) = self.try_start(now, n, poller) {
            let p = &mut self.programs[n];
            crate::log!(Error, "a service was not started", service = p.config.name, because = why);
            p.line = None;
            p.rest(now);
        }
    }

    fn try_start(&mut self, now: Instant, n: usize, poller: &Poller) -> Result<(), OsError> {
        let Some(keeper) = &self.keeper else { return Ok(()) };
        let pipe = |e| OsError::new("make a pipe for a service", e);
        let (ours, theirs) = SeqPacket::pair()?;
        let (reader, writer) = io::pipe().map_err(pipe)?;
        os::poll::set_nonblocking(&reader).map_err(pipe)?;
        let p = &mut self.programs[n];
        let closer = match &p.closer {
            Some(closer) => closer.clone(),
            None => p.closer.insert(Closer::start()?).clone(),
        };
        poller.add(&ours, token_of(self.token, n), Interest::READ)?;
        poller.add(&reader, token_of(self.token, n) + 1, Interest::READ)?;
        keeper.say(&Order::Start { service: n }, &[theirs.as_fd(), writer.as_fd()])?;
        let line = Line::new(&p.config.name, ours, &closer);
        let hello = Event::Hello { version: service::VERSION, service: p.config.name.clone() };
        line.send(&hello, b"", None);
        p.keep_counts();
        p.line = Some(Arc::new(line));
        p.words = Some(Words::new(reader));
        p.state = State::Starting { since: now };
        (p.paused, p.life) = (None, Life::default());
        p.starts += 1;
        Ok(())
    }

    /// Has a service ended, because of what it does or does not do.
    fn end(&mut self, n: usize, why: &str, todo: &mut Vec<Do>) {
        let p = &mut self.programs[n];
        if p.state == State::Ending {
            return;
        }
        crate::log!(Warn, "a service is ended", service = p.config.name, because = why);
        p.state = State::Ending;
        p.forget(todo);
        if let Some(keeper) = &self.keeper {
            // Without the keeper there is none that could be ended.
            let _ = keeper.say(&Order::End { service: n }, &[]);
        }
    }

    fn hear_keeper(&mut self, now: Instant, poller: &Poller, todo: &mut Vec<Do>) {
        loop {
            let Some(keeper) = &self.keeper else { return };
            let got = match keeper.socket.receive(&mut self.room, false) {
                Ok(got) if got.len > 0 => got,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                _ => return self.lose_keeper(poller, todo),
            };
            match packet::decode::<Notice>(&self.room[..got.len]) {
                Ok((Notice::Started { service, pid, landlock, seccomp }, _)) => {
                    let Some(p) = self.programs.get_mut(service) else { continue };
                    p.pid = pid;
                    let name = &p.config.name;
                    crate::log!(
                        Info,
                        "a service was started",
                        service = name,
                        pid = pid,
                        landlock = landlock,
                        seccomp = seccomp
                    );
                }
                Ok((Notice::Ended { service, how }, _)) => {
                    let Some(p) = self.programs.get_mut(service) else { continue };
                    let name = &p.config.name;
                    crate::log!(Warn, "a service has ended", service = name, how = how);
                    if let Some(words) = &mut p.words {
                        words.hear(now, name);
                    }
                    p.words = None;
                    p.forget(todo);
                    p.rest(now);
                    self.give_up_commands(now, Some(service), todo);
                }
                Err(_) => return self.lose_keeper(poller, todo),
            }
        }
    }

    /// Without the keeper nothing can be started; what it had started has died with it.
    fn lose_keeper(&mut self, poller: &Poller, todo: &mut Vec<Do>) {
        if let Some(keeper) = self.keeper.take() {
            let _ = poller.remove(&keeper.socket);
            crate::log!(
                Error,
                "the keeper of services has ended; there are none until the gateway is started again"
            );
        }
        for p in &mut self.programs {
            p.forget(todo);
            p.state = State::Ending;
        }
    }

    /// The gateway ends: they are to take nothing new, and finish what is open.
    pub fn stop(&self) {
        for line in self.programs.iter().filter_map(|p| p.line.as_ref()) {
            // One that does not read is ended with the gateway.
            line.send(&Event::Stop, b"", None);
            line.close();
        }
    }

    /// What is told of them.
    pub fn status(&self, now: Instant) -> Vec<ServiceStatus> {
        self.programs.iter().map(|p| p.status(now)).collect()
    }
}

/// Does it lead to a connection or a stream?
fn is_dear(request: &Request) -> bool {
    use Request::{Back, Connect, Open, Pass};
    matches!(request, Open { .. } | Connect { .. } | Back { .. } | Pass { .. })
}

fn token_of(first: u64, n: usize) -> u64 {
    first + 1 + 2 * n as u64
}

impl Program {
    fn new(config: Service) -> Program {
        Program {
            config,
            state: State::Resting { until: Instant::ZERO },
            line: None,
            closer: None,
            words: None,
            pid: 0,
            starts: 0,
            ready: None,
            failures: 0,
            paused: None,
            taken: (Duration::ZERO, Instant::ZERO),
            life: Life::default(),
            counters: BTreeMap::new(),
            waiting: BTreeMap::new(),
            before: BTreeMap::new(),
        }
    }

    /// Its socket is nobody's any more.
    fn forget(&mut self, todo: &mut Vec<Do>) {
        self.keep_counts();
        self.paused = None;
        self.waiting.clear();
        if let Some(line) = self.line.take() {
            line.leave();
            todo.push(Do::Is(self.config.name.clone(), None));
        }
    }

    /// It has taken so much of the processor; until when it has to wait, if that is too much.
    fn charge(&mut self, now: Instant, spent: Duration) -> Option<Instant> {
        let (level, at) = self.taken;
        let drained = now.since(at).divided_by(PARTS);
        let level = level - drained.min(level) + spent;
        self.taken = (level, now);
        (level > BURST).then(|| now + (level - BURST).times(PARTS))
    }

    fn rest(&mut self, now: Instant) {
        if self.ready.take().is_some_and(|since| now.since(since) >= STEADY) {
            self.failures = 0;
        }
        let pause = PAUSE.times(1 << self.failures.min(10)).min(LONGEST_PAUSE);
        self.failures += 1;
        self.state = State::Resting { until: now + pause };
    }

    /// Does what it asks, or says why it has to end.
    fn obey(
        &mut self,
        now: Instant,
        line: &Arc<Line>,
        request: Request,
        bytes: &[u8],
        mut sockets: Vec<Shared>,
        todo: &mut Vec<Do>,
    ) -> Option<&'static str> {
        let running = matches!(self.state, State::Running { .. });
        let socket = sockets.pop();
        if request.has_socket() != socket.is_some() && request != Request::Unknown {
            return Some("it says what is no message");
        }
        let of = |wish| Work { line: line.clone(), wish };
        match request {
            Request::Hello { version: service::VERSION, datagrams, offline, pings, proxied }
                if !running =>
            {
                self.life.pings = pings;
                line.set_takes(Takes { datagrams, offline, proxied });
                self.state = State::Running { since: now };
                self.ready = Some(now);
                crate::log!(Info, "a service is ready", service = self.config.name);
                todo.push(Do::Is(self.config.name.clone(), Some(line.clone())));
            }
            Request::Hello { .. } => return Some("it speaks another version of the protocol"),
            _ if !running => return Some("it does not say hello first"),
            Request::Open { request, .. }
            | Request::Connect { request, .. }
            | Request::Resolve { request, .. }
            | Request::Back { request, .. }
                if !line.begin_request() =>
            {
                todo.push(Do::Refuse(line.clone(), request));
            }
            Request::Open { request, peer, class, client } => {
                let preface = bytes.to_vec();
                let wish = Wish::Open { request, peer: peer.clone(), class, client, preface };
                todo.push(Do::Of(peer, of(wish)));
            }
            Request::Connect { request, peer, target, source } => {
                let wish = Wish::Connect { request, peer: peer.clone(), target, source };
                todo.push(Do::Of(peer, of(wish)));
            }
            Request::Resolve { request, peer, name } => {
                let wish = Wish::Resolve { request, peer: peer.clone(), name };
                todo.push(Do::Of(peer, of(wish)));
            }
            Request::Back { request, port } => match socket.and_then(connection) {
                Some((_, client, server)) => {
                    let client = SocketAddr::new(client.ip(), port);
                    let wish = Wish::Back { request, client, server };
                    todo.push(Do::Passed(server, of(wish)));
                }
                // The host has reset it meanwhile.
                None => todo.push(Do::Refuse(line.clone(), request)),
            },
            Request::Pass { dscp } => {
                // What is no connection, or none any more, is dropped, which resets it.
                if let Some((stream, client, server)) = socket.and_then(connection) {
                    if !line.take_back() {
                        return Some("it passes more connections than it was given");
                    }
                    let (dscp, read) = (dscp & 63, bytes.to_vec());
                    if let Some(it) = line.take_proxied((client, server)) {
                        let target = it.target.clone();
                        let wish = Wish::PassProxied { stream, it, read };
                        todo.push(Do::PassedProxied(target, of(wish)));
                        return None;
                    }
                    let wish = Wish::Pass { stream, client, server, dscp, read };
                    todo.push(Do::Passed(server, of(wish)));
                }
            }
            Request::Answer { client, server } => {
                let wish = Wish::Answer { client, server, bytes: bytes.to_vec() };
                todo.push(Do::Passed(server, of(wish)));
            }
            Request::Onward { client, server } => {
                let wish = Wish::Onward { client, server, bytes: bytes.to_vec() };
                todo.push(Do::Passed(server, of(wish)));
            }
            Request::Waiting { peer, class, bytes, urgency, oldest_ms } => {
                let key = (peer.clone(), class.clone());
                if bytes == 0 {
                    self.waiting.remove(&key);
                } else if self.waiting.len() < MOST_TOLD || self.waiting.contains_key(&key) {
                    let it = ServiceWaiting { peer, class, bytes, urgency, oldest_ms };
                    self.waiting.insert(key, it);
                }
            }
            Request::Stats { mut counters } => {
                while counters.len() > MOST_TOLD {
                    counters.pop_last();
                }
                self.counters = counters;
            }
            Request::Stop => {
                line.close();
                todo.push(Do::Is(self.config.name.clone(), None));
            }
            // The first two are taken before they come here.
            Request::Told { .. } | Request::Hint { .. } => {}
            // That it says anything is what is asked for.
            Request::Pong | Request::Unknown => {}
        }
        None
    }

    /// A line's counts are added to those of the lines before it.
    fn keep_counts(&mut self) {
        self.before = self.counts();
    }

    fn counts(&self) -> BTreeMap<&'static str, u64> {
        let mut all = self.before.clone();
        let Some(line) = &self.line else { return all };
        let c = &line.counts;
        for (name, count) in [
            ("accepted", &c.accepted),
            ("overflowed", &c.overflowed),
            ("datagrams", &c.datagrams),
            ("passed", &c.passed),
            ("opened", &c.opened),
            ("incoming", &c.incoming),
            ("connected", &c.connected),
            ("failed", &c.failed),
        ] {
            *all.entry(name).or_default() += count.load(Relaxed);
        }
        all
    }

    fn status(&self, now: Instant) -> ServiceStatus {
        let (state, since) = match self.state {
            State::Resting { .. } => (ServiceState::Resting, None),
            State::Starting { since } => (ServiceState::Starting, Some(since)),
            State::Running { since } => (ServiceState::Running, Some(since)),
            State::Ending => (ServiceState::Ending, None),
        };
        ServiceStatus {
            name: self.config.name.clone(),
            state,
            running_ms: since.map(|since| now.since(since).as_millis()),
            pid: self.line.as_ref().map(|_| u64::from(self.pid)),
            starts: self.starts,
            gateway: self.counts().into_iter().map(|(k, v)| (k.to_owned(), v)).collect(),
            counters: self.counters.clone(),
            waiting: self.waiting.values().cloned().collect(),
        }
    }
}

impl Keeper {
    fn start() -> Result<Keeper, OsError> {
        let failed = |e| OsError::new("start the keeper of services", e);
        let (ours, theirs) = SeqPacket::pair()?;
        let mut command = Command::new("/proc/self/exe");
        std::os::unix::process::CommandExt::arg0(&mut command, "bentpipe");
        command.arg("keeper").stdin(Stdio::from(OwnedFd::from(theirs)));
        let child = command.spawn().map_err(failed)?;
        Ok(Keeper { _child: child, socket: ours })
    }

    fn say(&self, order: &Order, sockets: &[std::os::fd::BorrowedFd<'_>]) -> Result<(), OsError> {
        let packet = packet::encode(order, b"").map_err(|_| {
            OsError::refused("a service's command and paths are longer than 4,000 bytes")
        })?;
        self.socket
            .send(&[io::IoSlice::new(&packet)], sockets, false)
            .map_err(|e| OsError::new("tell the keeper of services", e))
    }
}

/// How the service at place `n` is to be started.
fn spec(config: &Service, n: u32) -> Result<Spec, OsError> {
    let user = config.user.as_deref().map(os::proc::find_user).transpose()?;
    if let Some(user) = user.as_ref().filter(|user| user.is_root()) {
        let message = format!("the service {} would run as root: {user:?}", config.name);
        return Err(OsError::refused(message).mend("give it a user of its own, or none"));
    }
    let user = match user {
        Some(user) => Some(user.numbers()),
        None => os::proc::is_root().then_some((FIRST_USER + n, FIRST_USER + n)),
    };
    if let Some(directory) = &config.directory {
        make_directory(directory, user)?;
    }
    Ok(Spec {
        name: config.name.clone(),
        command: config.command.clone(),
        user,
        memory: config.memory.0,
        descriptors: config.descriptors,
        directory: config.directory.clone(),
        reads: config.reads.clone(),
    })
}

/// Makes a service's directory, which others may enter and not read, where there is none. One that is there is left
/// as it is: whose it is the operator has decided.
fn make_directory(directory: &Path, user: Option<(u32, u32)>) -> Result<(), OsError> {
    let cannot = |e| {
        let what = format!("make {} for a service", directory.display());
        OsError::new(what, e).mend("make it for the service's user, or name another directory")
    };
    if directory.exists() {
        return Ok(());
    }
    if let Some(parent) = directory.parent() {
        std::fs::create_dir_all(parent).map_err(cannot)?;
    }
    // The keeper, who has given up reading what is others', enters it before it becomes that user.
    std::fs::DirBuilder::new().mode(0o711).create(directory).map_err(cannot)?;
    let (user, group) = user.unzip();
    std::os::unix::fs::chown(directory, user, group).map_err(cannot)
}

/// A connection that a service gives, with its client and its server.
fn connection(fd: Shared) -> Option<(Stream, SocketAddr, SocketAddr)> {
    let stream = Stream::given(fd).ok()?;
    let (client, server) = (stream.peer_addr().ok()?, stream.local_addr().ok()?);
    Some((stream, client, server))
}

/// What the link protocol's reasons are called here.
pub fn reason_of(reason: relay::ResetReason) -> Reason {
    use relay::ResetReason as R;
    match reason {
        R::HostReset => Reason::HostReset,
        R::Refused => Reason::Refused,
        R::Unreachable => Reason::Unreachable,
        R::TimedOut => Reason::TimedOut,
        R::Denied => Reason::Denied,
        R::NoSuchName => Reason::NoSuchName,
        R::Exhausted => Reason::Exhausted,
        R::PeerRestarted => Reason::PeerRestarted,
        R::ShuttingDown => Reason::ShuttingDown,
        R::Protocol => Reason::Protocol,
        R::NoSuchService => Reason::NoSuchService,
        R::Icmp(code) => Reason::Icmp(code),
        R::Icmpv6(code) => Reason::Icmpv6(code),
    }
}

impl Answer {
    /// A request came to nothing.
    pub fn failed(request: u64, reason: Reason) -> Answer {
        Answer { event: Event::Failed { request, reason }, socket: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program() -> Program {
        Program::new(Service {
            name: "rogue".into(),
            command: vec!["/bin/true".into()],
            user: None,
            memory: units::ByteCount(1 << 20),
            descriptors: 10,
            directory: None,
            reads: Vec::new(),
        })
    }

    /// One that says as much as it can, whenever it is heard, has a quarter of the time.
    #[test]
    fn a_service_that_talks_without_end_has_its_part_of_the_processor() {
        let (mut p, turn) = (program(), Duration::from_micros(900));
        let (mut now, mut spent) = (Instant::ZERO + Duration::from_secs(1), Duration::ZERO);
        let end = now + Duration::from_secs(10);
        while now < end {
            let wait = p.charge(now, turn);
            spent += turn;
            now = wait.unwrap_or(now) + turn;
        }
        let most = Duration::from_secs(10).divided_by(PARTS) + BURST + turn;
        assert!(spent <= most && spent > most.divided_by(2), "{spent}");
    }

    #[test]
    fn a_service_that_says_little_never_waits() {
        let mut p = program();
        for n in 0..10_000 {
            let now = Instant::ZERO + Duration::from_micros(500 * n);
            assert_eq!(p.charge(now, Duration::from_micros(60)), None);
        }
    }
}
