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
mod keeper;
mod life;
pub mod line;
mod program;
mod wishes;
mod words;

pub use wishes::{Do, Wish, Work};

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use os::OsError;
use os::closing::Closer;
use os::poll::{Interest, Poller};
use os::seqpacket::SeqPacket;
use service::{Event, Request, packet};
use units::{Duration, Instant};

use crate::admin::ServiceStatus;
use crate::config::Node;
use crate::keeper::{Notice, Order};
use commands::{Asker, Commands};
use keeper::{Keeper, spec};
use life::{Life, Look};
use line::{Line, Sent};
use program::{Program, State};
use words::Words;

/// How long a program may take to say hello.
const HELLO: Duration = Duration::from_secs(10);
/// How often it is looked whether one hangs. Looks are counted, not the time between them: who does
/// not come to look, on a busy machine, cannot say of others that they do not come to answer.
const LOOK: Duration = Duration::from_secs(1);
/// Requests that are taken of one service before other work has its turn.
const AT_ONCE: usize = 64;
/// What a stream or a connection that it wants counts beside the time that reading it takes.
const DEAR: Duration = Duration::from_micros(50);
/// When it is looked again whether answers have found room.
const ROOM: Duration = Duration::from_millis(2);

/// All services, and the keeper that starts them.
pub struct Services {
    keeper: Option<Keeper>,
    programs: Vec<Program>,
    commands: Commands,
    token: u64,
    /// The gateway ends: none is started again.
    stops: bool,
    looked: Instant,
    /// When services that are paused are looked at.
    resume: Option<Instant>,
    room: Vec<u8>,
}

impl Services {
    /// Starts the keeper, if the file names services: before rights are given up. `token` is the
    /// first of the poller's numbers for them, two for each service and one more.
    ///
    /// # Errors
    /// If a user is not there, or the system has no more processes.
    pub fn open(node: &Node, poller: &Poller, token: u64) -> Result<Services, OsError> {
        let services = &node.services;
        let mut all = Services {
            keeper: None,
            programs: Vec::new(),
            commands: Commands::default(),
            token,
            stops: false,
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
        let users = keeper::users(services, node.private_key.public());
        for (config, user) in services.iter().zip(users) {
            keeper.say(&Order::Service(spec(config, user)?), &[])?;
            all.programs.push(Program::new(config.clone()));
        }
        keeper.say(&Order::Sealed, &[])?;
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
            State::Resting { until } if !self.stops => Some(until),
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
            let rested = matches!(self.programs[n].state, State::Resting { until } if until <= now);
            if rested && !self.stops {
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
                self.look(now, n, poller, &mut todo);
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
    fn look(&mut self, now: Instant, n: usize, poller: &Poller, todo: &mut Vec<Do>) {
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
        self.end(n, why, poller, todo);
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
                self.end(n, why, poller, todo);
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
        let has_room = |line: &&Arc<Line>| line.has_room_for(&peer);
        if let Some(line) = to.and_then(|p| p.line.as_ref()).filter(has_room) {
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
            p.fail(now, format!("it was not started: {why}"));
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
    fn end(&mut self, n: usize, why: &'static str, poller: &Poller, todo: &mut Vec<Do>) {
        let p = &mut self.programs[n];
        if p.state == State::Ending {
            return;
        }
        // One that was told to end is waited for.
        if !self.stops {
            crate::log!(Warn, "a service is ended", service = p.config.name, because = why);
        }
        (p.state, p.ended_for) = (State::Ending, Some(why));
        p.forget(poller, todo);
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
                    match self.stops {
                        true => crate::log!(Info, "a service has ended", service = name),
                        false => {
                            crate::log!(Warn, "a service has ended", service = name, how = how);
                        }
                    }
                    if let Some(words) = &mut p.words {
                        words.hear(now, name);
                    }
                    p.forget(poller, todo);
                    p.fail(now, how);
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
            p.forget(poller, todo);
            p.state = State::Ending;
        }
    }

    /// The gateway ends: they are to take nothing new, and finish what is open.
    pub fn stop(&mut self) {
        self.stops = true;
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
