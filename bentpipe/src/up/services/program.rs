//! One service: its state, what it has told, and what it asks for.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use os::closing::{Closer, Shared};
use os::poll::Poller;
use os::tcp::Stream;
use service::{Request, Takes};
use units::{Duration, Instant};

use super::life::Life;
use super::line::Line;
use super::wishes::{Do, Wish, Work};
use super::words::Words;
use crate::admin::{ServiceState, ServiceStatus, ServiceWaiting};
use crate::config::Service;

/// The pause before a service that failed is started again: the first, and the longest.
const PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// Who has run for so long has not failed by being started.
const STEADY: Duration = Duration::from_secs(60);
/// A service may have a quarter of the shard's processor by what it says, and so much at once.
const PARTS: u64 = 4;
const BURST: Duration = Duration::from_millis(2);
/// Counters that a service may have, and kinds of what waits at it.
const MOST_TOLD: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Resting { until: Instant },
    Starting { since: Instant },
    Running { since: Instant },
    Ending,
}

/// One service.
pub struct Program {
    pub config: Service,
    pub state: State,
    pub line: Option<Arc<Line>>,
    /// Closes what it has copies of, since it was first started.
    pub closer: Option<Arc<Closer>>,
    pub words: Option<Words>,
    pub pid: u32,
    pub starts: u64,
    /// When it said hello last.
    pub ready: Option<Instant>,
    /// Starts in a row that came to nothing.
    pub failures: u32,
    /// Why this gateway ends it, or has ended it last.
    pub ended_for: Option<&'static str>,
    /// How it ended last, and the last line that it had written.
    pub ended: Option<(String, Option<String>)>,
    /// Its socket is not watched while its answers wait, nor before this time.
    pub paused: Option<Instant>,
    /// What it has taken of the processor, less what has drained since.
    pub taken: (Duration, Instant),
    pub life: Life,
    pub counters: BTreeMap<String, u64>,
    pub waiting: BTreeMap<(String, String), ServiceWaiting>,
    /// What lines before this one counted.
    pub before: BTreeMap<&'static str, u64>,
}

impl Program {
    /// One that is to be started at once.
    pub fn new(config: Service) -> Program {
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
            ended_for: None,
            ended: None,
            paused: None,
            taken: (Duration::ZERO, Instant::ZERO),
            life: Life::default(),
            counters: BTreeMap::new(),
            waiting: BTreeMap::new(),
            before: BTreeMap::new(),
        }
    }

    /// Its socket is nobody's any more.
    pub fn forget(&mut self, poller: &Poller, todo: &mut Vec<Do>) {
        self.keep_counts();
        self.paused = None;
        self.waiting.clear();
        if let Some(line) = self.line.take() {
            // Others may have it open for a while yet, and its end would be told for as long.
            let _ = poller.remove(&*line);
            line.leave();
            todo.push(Do::Is(self.config.name.clone(), None));
        }
    }

    /// It has taken so much of the processor; until when it has to wait, if that is too much.
    pub fn charge(&mut self, now: Instant, spent: Duration) -> Option<Instant> {
        let (level, at) = self.taken;
        let drained = now.since(at).divided_by(PARTS);
        let level = level - drained.min(level) + spent;
        self.taken = (level, now);
        (level > BURST).then(|| now + (level - BURST).times(PARTS))
    }

    /// It has ended so, or was not started: it rests. What it wrote last may say why.
    pub fn fail(&mut self, now: Instant, how: String) {
        let how = match self.ended_for.take() {
            Some(why) => format!("it was ended, because {why}"),
            None => how,
        };
        let last = self.words.take().and_then(|words| words.last);
        self.ended = Some((how, last));
        self.rest(now);
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
    pub fn obey(
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
            Request::Open { request, ref peer, .. }
            | Request::Connect { request, ref peer, .. }
            | Request::Resolve { request, ref peer, .. }
                if !line.begin_request(request, Some(peer)) =>
            {
                todo.push(Do::Refuse(line.clone(), request));
            }
            Request::Back { request, .. } if !line.begin_request(request, None) => {
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
    pub fn keep_counts(&mut self) {
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

    pub fn status(&self, now: Instant) -> ServiceStatus {
        let (state, since) = match self.state {
            State::Resting { .. } => (ServiceState::Resting, None),
            State::Starting { since } => (ServiceState::Starting, Some(since)),
            State::Running { since } => (ServiceState::Running, Some(since)),
            State::Ending => (ServiceState::Ending, None),
        };
        // Who has run for long has not failed by being started.
        let is_steady = self.ready.is_some_and(|since| now.since(since) >= STEADY);
        let ended = self.ended.as_ref().filter(|_| !is_steady);
        ServiceStatus {
            name: self.config.name.clone(),
            state,
            failures: if is_steady { 0 } else { u64::from(self.failures) },
            ended: ended.map(|(how, _)| how.clone()),
            last_line: ended.and_then(|(_, line)| line.clone()),
            next_start_ms: match self.state {
                State::Resting { until } => Some(until.since(now).as_millis()),
                _ => None,
            },
            running_ms: since.map(|since| now.since(since).as_millis()),
            pid: self.line.as_ref().map(|_| u64::from(self.pid)),
            starts: self.starts,
            gateway: self.counts().into_iter().map(|(k, v)| (k.to_owned(), v)).collect(),
            counters: self.counters.clone(),
            waiting: self.waiting.values().cloned().collect(),
        }
    }
}

/// A connection that a service gives, with its client and its server.
fn connection(fd: Shared) -> Option<(Stream, SocketAddr, SocketAddr)> {
    let stream = Stream::given(fd).ok()?;
    let (client, server) = (stream.peer_addr().ok()?, stream.local_addr().ok()?);
    Some((stream, client, server))
}

#[cfg(test)]
mod tests {
    use os::poll::{Events, Interest};
    use os::seqpacket::SeqPacket;

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

    /// A socket whose other end is gone has news for as long as anybody has it open.
    #[test]
    fn the_line_of_a_service_that_has_ended_has_no_news() {
        let (ours, theirs) = SeqPacket::pair().unwrap();
        let line = Arc::new(Line::new("web", ours, &Closer::start().unwrap()));
        let mut poller = Poller::new().unwrap();
        poller.add(&*line, 7, Interest::READ).unwrap();
        let mut program = Program { line: Some(line.clone()), ..program() };
        drop(theirs);
        program.forget(&poller, &mut Vec::new());
        let mut events = Events::with_capacity(4);
        assert_eq!(poller.wait(&mut events, Some(Duration::ZERO)).unwrap(), 0);
        assert!(line.is_gone());
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

    /// Each time it says why, and ends.
    #[test]
    fn a_service_that_fails_over_and_over_is_told_with_its_last_line_and_next_start() {
        use std::io::Write as _;
        let (mut p, mut now) = (program(), Instant::ZERO + Duration::from_secs(1));
        assert!(!p.status(now).keeps_failing());
        for failures in 1..=3 {
            let (reader, mut writer) = std::io::pipe().unwrap();
            os::poll::set_nonblocking(&reader).unwrap();
            let mut words = Words::new(reader);
            writer.write_all(b"first\n<3>ca.key is open to others\n").unwrap();
            assert!(words.hear(now, "rogue"));
            (p.words, p.state) = (Some(words), State::Starting { since: now });
            p.fail(now, "exit status: 1".into());
            let status = p.status(now);
            assert_eq!((status.failures, status.keeps_failing()), (failures, failures >= 2));
            assert_eq!(status.end_in_words(), "exit status: 1, \"ca.key is open to others\"");
            assert_eq!(status.next_start_ms, Some(100 << failures));
            now += Duration::from_secs(1);
        }
        // One that was ended for what it does not do.
        p.ended_for = Some("it does not say hello");
        p.fail(now, "signal: 9 (SIGKILL)".into());
        let words = p.status(now).end_in_words();
        assert_eq!(words, "it was ended, because it does not say hello");
        (p.state, p.ready) = (State::Running { since: now }, Some(now));
        assert!(p.status(now).keeps_failing(), "it may end again");
        let status = p.status(now + STEADY);
        assert_eq!((status.failures, status.ended), (0, None), "it has held");
    }

    /// What the program wants is done but for connections, which no server answers; is it refused?
    fn wants_a_connection(p: &mut Program, line: &Arc<Line>, request: u64, peer: &str) -> bool {
        let (peer, target) = (peer.to_owned(), "203.0.113.9:80".to_owned());
        let connect = Request::Connect { request, peer, target, source: None };
        let mut todo = Vec::new();
        assert_eq!(p.obey(Instant::ZERO, line, connect, b"", Vec::new(), &mut todo), None);
        match &todo[..] {
            [Do::Refuse(line, of)] => {
                assert_eq!(*of, request);
                line.end_request(request);
                true
            }
            [Do::Of(..)] => false,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn connections_that_no_server_answers_one_peer_keep_no_other_from_having_some() {
        let line =
            Arc::new(Line::new("web", SeqPacket::pair().unwrap().0, &Closer::start().unwrap()));
        let running = State::Running { since: Instant::ZERO };
        let mut p = Program { line: Some(line.clone()), state: running, ..program() };
        let refused = (0..5_000).filter(|n| wants_a_connection(&mut p, &line, *n, "evil")).count();
        assert_eq!(refused, 5_000 - 2_048, "half of all are one peer's at most");
        assert!((5_000..5_100).all(|n| !wants_a_connection(&mut p, &line, n, "ship")));
        (0..5_000).for_each(|n| line.end_request(n));
        assert!(
            !wants_a_connection(&mut p, &line, 1, "evil"),
            "those that have ended count no more"
        );
    }

    #[test]
    fn a_number_that_a_service_uses_twice_counts_twice_and_ends_twice() {
        let line = Line::new("rogue", SeqPacket::pair().unwrap().0, &Closer::start().unwrap());
        assert!((0..2_048).all(|_| line.begin_request(7, Some("ship"))));
        assert!(!line.begin_request(7, Some("ship")), "so there are no more of them at once");
        (0..2_048).for_each(|_| line.end_request(7));
        assert!(!(0..2_048).all(|n| line.begin_request(n, Some("ship"))), "one is open still");
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
