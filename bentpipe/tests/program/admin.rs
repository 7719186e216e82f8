//! The admin socket, asked by well-behaved and by other clients.

use std::io::{BufRead, Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration as StdDuration;

use bentpipe::admin::{
    self, AdminError, Answer, Event, Flow, LinkStatus, NodeStatus, Notice, Request, Server, Status,
};
use os::poll::{Clock, Events, Poller};
use units::Duration;

const FIRST_TOKEN: u64 = 100;

/// A gateway that does nothing but answer, in a thread of its own.
struct Gateway {
    dir: PathBuf,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<u64>>,
}

impl Gateway {
    /// `links` makes the answer as long as a test wants it.
    fn start(name: &str, links: usize) -> Gateway {
        Gateway::start_slow(name, links, 0)
    }

    /// Its status comes only every so many turns; 0 is at once.
    fn start_slow(name: &str, links: usize, later: u32) -> Gateway {
        let dir = std::env::temp_dir().join(format!("bentpipe-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a directory");
        let stop = Arc::new(AtomicBool::new(false));
        let mut poller = Poller::new().expect("a poller");
        let mut server = Server::open(&dir.join("s"), &poller, FIRST_TOKEN).expect("a server");
        let status = status(links);
        let ended = stop.clone();
        let thread = std::thread::spawn(move || {
            let clock = Clock::start();
            let mut events = Events::with_capacity(16);
            let (mut answers, mut turns) = (0, 0);
            while !ended.load(Ordering::Relaxed) {
                poller.wait(&mut events, Some(Duration::from_millis(5))).expect("a wait");
                let mut answer = |request: Request| {
                    answers += 1;
                    Some(match request {
                        Request::Status if later > 0 => return None,
                        Request::Status => Answer::Status(Box::new(status.clone())),
                        Request::Reload => Answer::Error("the file is wrong".to_owned()),
                        _ => Answer::Done,
                    })
                };
                for event in events.iter() {
                    server.handle(&poller, event.token, clock.now(), &mut answer);
                }
                server.handle_timeout(&poller, clock.now());
                turns += 1;
                if later > 0 && turns % later == 0 {
                    let answer = Answer::Status(Box::new(status.clone()));
                    server.answer_those_who_wait(&poller, &answer);
                }
            }
            answers
        });
        Gateway { dir, stop, thread: Some(thread) }
    }

    fn socket(&self) -> PathBuf {
        self.dir.join("s")
    }

    fn ask(&self, request: Request) -> Answer {
        admin::ask(&self.socket(), &request, Duration::from_secs(20)).expect("an answer")
    }

    /// Stops it and tells how many requests it answered.
    fn answers(mut self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().expect("a thread").join().expect("no panic")
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn status(links: usize) -> Status {
    let link = |n| LinkStatus { peer: format!("terminal-{n}"), ..LinkStatus::default() };
    Status {
        services: Vec::new(),
        telephones: Vec::new(),
        one_sided: Vec::new(),
        node: NodeStatus { version: "0.1.0".to_owned(), ..NodeStatus::default() },
        links: (0..links).map(link).collect(),
    }
}

fn exchange(socket: &Path, request: &[u8]) -> String {
    let mut stream = UnixStream::connect(socket).expect("a connection");
    stream.set_read_timeout(Some(StdDuration::from_secs(20))).expect("a time-out");
    stream.write_all(request).expect("a write");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}

#[test]
fn an_answer_that_comes_later_reaches_all_who_wait_and_nobody_else() {
    // Longer than a socket's buffer, so that it leaves in pieces.
    let gateway = Gateway::start_slow("later", 2_000, 20);
    let expected = Answer::Status(Box::new(status(2_000)));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| assert_eq!(gateway.ask(Request::Status), expected));
        }
        // One that has ended its direction, and one that goes away meanwhile.
        scope.spawn(|| {
            let mut stream = UnixStream::connect(gateway.socket()).expect("a connection");
            stream.write_all(b"{\"request\":\"status\"}").expect("a write");
            stream.shutdown(Shutdown::Write).expect("half a connection");
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).expect("an answer");
            assert_eq!(serde_json::from_slice::<Answer>(&answer).expect("JSON"), expected);
        });
        scope.spawn(|| {
            let mut stream = UnixStream::connect(gateway.socket()).expect("a connection");
            stream.write_all(b"{\"request\":\"status\"}\n").expect("a write");
        });
        assert_eq!(gateway.ask(Request::Stop), Answer::Done, "others have theirs at once");
    });
    assert_eq!(gateway.ask(Request::Status), expected, "all places are free again");
}

#[test]
fn a_request_gets_its_answer_and_the_connection_ends() {
    let gateway = Gateway::start("answer", 2);
    assert_eq!(gateway.ask(Request::Status), Answer::Status(Box::new(status(2))));
    assert_eq!(gateway.ask(Request::Reload), Answer::Error("the file is wrong".to_owned()));
    assert_eq!(exchange(&gateway.socket(), b"{\"request\":\"stop\"}\n"), "\"done\"\n");
    assert_eq!(gateway.answers(), 3);
}

/// CT-3.
#[test]
fn only_the_owner_can_open_the_socket_and_it_vanishes_with_the_gateway() {
    let gateway = Gateway::start("mode", 0);
    let about = std::fs::metadata(gateway.socket()).expect("a socket");
    assert!(about.file_type().is_socket());
    assert_eq!(about.permissions().mode() & 0o777, 0o600);
    let names: Vec<_> = std::fs::read_dir(&gateway.dir).expect("a directory").collect();
    assert_eq!(names.len(), 1, "nothing else is left beside it");
    let socket = gateway.socket();
    gateway.answers();
    assert!(!socket.exists());
}

#[test]
fn a_request_may_come_in_pieces_and_end_without_a_newline() {
    let gateway = Gateway::start("pieces", 0);
    let mut stream = UnixStream::connect(gateway.socket()).expect("a connection");
    for byte in b"{\"request\":\"stop\"}" {
        stream.write_all(&[*byte]).expect("a write");
        std::thread::sleep(StdDuration::from_millis(1));
    }
    stream.shutdown(Shutdown::Write).expect("a shutdown");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    assert_eq!(answer, "\"done\"\n");
}

/// CT-2.
#[test]
fn nonsense_is_answered_with_an_error_and_never_reaches_the_gateway() {
    let gateway = Gateway::start("nonsense", 0);
    let socket = gateway.socket();
    for nonsense in [&b"GET / HTTP/1.1\n"[..], b"{}\n", b"{\"request\":\"fly\"}\n", b"\xff\xfe\n"] {
        let answer = exchange(&socket, nonsense);
        assert!(answer.starts_with("{\"error\":\"not a request"), "{answer}");
    }
    let long = vec![b'['; 5_000];
    assert!(exchange(&socket, &long).starts_with("{\"error\":"));
    drop(UnixStream::connect(&socket).expect("a connection"));
    assert_eq!(gateway.answers(), 0);
}

#[test]
fn more_clients_than_places_are_all_served() {
    let gateway = Gateway::start("many", 1);
    let clients: Vec<_> = (0..40)
        .map(|_| {
            let socket = gateway.socket();
            std::thread::spawn(move || exchange(&socket, b"{\"request\":\"status\"}\n"))
        })
        .collect();
    for client in clients {
        assert!(client.join().expect("a client").contains("terminal-0"));
    }
    assert_eq!(gateway.answers(), 40);
}

#[test]
fn an_answer_larger_than_the_socket_buffer_arrives_whole_at_a_slow_reader() {
    let gateway = Gateway::start("large", 8_000);
    let mut stream = UnixStream::connect(gateway.socket()).expect("a connection");
    stream.write_all(b"{\"request\":\"status\"}\n").expect("a write");
    std::thread::sleep(StdDuration::from_millis(100));
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).expect("an answer");
    assert!(bytes.len() > 1_000_000, "{} bytes", bytes.len());
    let answer: Answer = serde_json::from_slice(&bytes).expect("JSON");
    assert_eq!(answer, Answer::Status(Box::new(status(8_000))));
}

#[test]
fn silent_clients_are_dropped_and_do_not_keep_others_out() {
    let dir = std::env::temp_dir().join(format!("bentpipe-silent-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a directory");
    let poller = &mut Poller::new().expect("a poller");
    let mut server = Server::open(&dir.join("s"), poller, FIRST_TOKEN).expect("a server");
    let silent: Vec<_> =
        (0..8).map(|_| UnixStream::connect(dir.join("s")).expect("a connection")).collect();
    let start = units::Instant::ZERO;
    let mut no_answer = |_: Request| panic!("nobody asked");
    server.handle(poller, FIRST_TOKEN, start, &mut no_answer);
    let deadline = server.poll_timeout().expect("clients are connected");
    server.handle_timeout(poller, deadline);
    assert_eq!(server.poll_timeout(), None);

    // The end of a connection shows at the silent ones, and a new client is heard.
    let mut rest = Vec::new();
    (&silent[0]).read_to_end(&mut rest).expect("an end");
    assert!(rest.is_empty());
    let _new = UnixStream::connect(dir.join("s")).expect("a connection");
    let mut events = Events::with_capacity(4);
    poller.wait(&mut events, Some(Duration::from_secs(5))).expect("a wait");
    assert!(events.iter().any(|e| e.token == FIRST_TOKEN));
    drop(server);
    std::fs::remove_dir_all(&dir).expect("the directory is left empty");
}

#[test]
fn a_dead_gateways_socket_is_replaced_and_a_living_ones_is_not() {
    let dir = std::env::temp_dir().join(format!("bentpipe-stale-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a directory");
    let socket = dir.join("s");
    let poller = Poller::new().expect("a poller");

    drop(UnixListener::bind(&socket).expect("a listener")); // leaves its file behind
    let first = Server::open(&socket, &poller, FIRST_TOKEN).expect("the dead one is replaced");
    let second = Server::open(&socket, &poller, FIRST_TOKEN + 50);
    assert!(matches!(second, Err(AdminError::InUse(_))));
    drop(second);
    assert!(socket.exists(), "the refused one leaves the living one's socket alone");
    drop(first);

    std::fs::write(&socket, "precious").expect("a file");
    let third = Server::open(&socket, &poller, FIRST_TOKEN);
    assert!(matches!(third, Err(AdminError::NotASocket(_))));
    assert_eq!(std::fs::read_to_string(&socket).expect("the file"), "precious");
    std::fs::remove_dir_all(&dir).expect("the directory can go");
}

/// A server whose clients watch, driven by hand.
struct Watched {
    dir: PathBuf,
    poller: Poller,
    server: Server,
    now: units::Instant,
}

impl Watched {
    fn new(name: &str) -> Watched {
        let dir = std::env::temp_dir().join(format!("bentpipe-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a directory");
        let poller = Poller::new().expect("a poller");
        let server = Server::open(&dir.join("s"), &poller, FIRST_TOKEN).expect("a server");
        Watched { dir, poller, server, now: units::Instant::from_nanos(1) }
    }

    /// One turn of the loop; the clients that asked to watch.
    fn turn(&mut self) -> Vec<(u64, Option<String>, bool)> {
        let mut events = Events::with_capacity(32);
        let wait = Some(Duration::from_millis(50));
        self.poller.wait(&mut events, wait).expect("a wait");
        let mut asked = Vec::new();
        for event in events.iter() {
            self.server.handle(&self.poller, event.token, self.now, &mut |request| {
                let Request::Watch { peer, flows } = request else { panic!("{request:?}") };
                asked.push((event.token, peer, flows));
                None
            });
        }
        asked
    }

    /// A client that watches, or why it may not.
    fn watch(&mut self, request: &str) -> Result<UnixStream, String> {
        let mut client = UnixStream::connect(self.dir.join("s")).expect("a connection");
        client.set_read_timeout(Some(StdDuration::from_secs(20))).expect("a time-out");
        client.write_all(request.as_bytes()).expect("written");
        loop {
            if let Some((token, peer, flows)) = self.turn().into_iter().next() {
                self.server.watch(token, peer, flows)?;
                self.server.ask_for_snapshots();
                return Ok(client);
            }
        }
    }

    fn give_snapshots(&mut self) {
        self.server.give_snapshots(&self.poller, &|peer| {
            let status = Box::new(status(peer.map_or(3, |_| 1)));
            notice(None, Event::Snapshot { version: 1, status, outages: vec![] })
        });
    }

    fn tell(&mut self, news: &[Notice]) {
        self.server.tell_watchers(&self.poller, self.now, news);
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn notice(peer: Option<&str>, event: Event) -> Notice {
    Notice { at_ms: 1, peer: peer.map(str::to_owned), event }
}

fn moved(peer: &str, address: &str) -> Notice {
    notice(Some(peer), Event::LinkMoved { address: address.to_owned() })
}

fn next(lines: &mut impl BufRead) -> Event {
    let mut line = String::new();
    lines.read_line(&mut line).expect("a line");
    serde_json::from_str::<Notice>(&line).unwrap_or_else(|e| panic!("{e}: {line}")).event
}

/// CT-5, CT-6.
#[test]
fn a_watcher_has_its_snapshot_first_and_hears_what_it_asked_for() {
    let mut watched = Watched::new("watch");
    let all = watched.watch("{\"request\":\"watch\"}\n").expect("a watcher");
    let one = "{\"request\":\"watch\",\"peer\":\"ship\",\"flows\":false}\n";
    let one = watched.watch(one).expect("a watcher");
    // What happens while the snapshot is made follows it.
    watched.tell(&[moved("ship", "1"), moved("shore", "2")]);
    watched.give_snapshots();
    let flow = Flow { id: "0.7".to_owned(), ..Flow::default() };
    let closed = notice(Some("ship"), Event::FlowClosed { flow });
    watched.tell(&[closed.clone(), moved("shore", "3"), notice(None, Event::Missed { events: 9 })]);
    let [mut all, mut one] = [all, one].map(std::io::BufReader::new);
    let links = |event| match event {
        Event::Snapshot { status, .. } => status.links.len(),
        other => panic!("{other:?}"),
    };
    assert_eq!((links(next(&mut all)), links(next(&mut one))), (3, 1));
    let told: Vec<Event> = (0..5).map(|_| next(&mut all)).collect();
    let expected = [
        moved("ship", "1").event,
        moved("shore", "2").event,
        closed.event,
        moved("shore", "3").event,
        Event::Missed { events: 9 },
    ];
    assert_eq!(told, expected);
    let told = [next(&mut one), next(&mut one)];
    assert_eq!(told, [moved("ship", "1").event, Event::Missed { events: 9 }]);
    // One that goes away leaves its place, and who comes too much is refused.
    assert_eq!(watched.server.watched(), (true, true));
    drop(all);
    while watched.server.watched() != (true, false) {
        watched.turn();
    }
    let more: Vec<_> =
        (0..7).map(|_| watched.watch("{\"request\":\"watch\"}\n").expect("a place")).collect();
    assert!(watched.watch("{\"request\":\"watch\"}\n").is_err_and(|e| e.contains("8 programs")));
    drop(more);
}

/// CT-7: what waits for it is bounded, no line is cut, and it learns why.
#[test]
fn a_watcher_that_does_not_read_is_dropped_with_a_reason() {
    let mut watched = Watched::new("lazy");
    let mut lazy = watched.watch("{\"request\":\"watch\"}\n").expect("a watcher");
    watched.give_snapshots();
    let long = "x".repeat(100_000);
    let mut told = 0;
    while watched.server.poll_timeout().is_none() {
        watched.tell(&[moved("ship", &long)]);
        told += 1;
        assert!(told < 100, "{told} lines of 100 kB wait for a watcher that reads none");
    }
    assert!(told > 10, "dropped after {told} lines of 100 kB already");
    watched.tell(&[moved("ship", "too late")]);
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        lazy.read_to_string(&mut text).expect("what was left for it");
        text
    });
    while !reader.is_finished() {
        watched.turn();
    }
    let text = reader.join().expect("no panic");
    let lines: Vec<Event> =
        text.lines().map(|l| serde_json::from_str::<Notice>(l).expect("whole").event).collect();
    assert!(matches!(lines.first(), Some(Event::Snapshot { .. })));
    let Some(Event::Dropped { reason }) = lines.last() else { panic!("{} lines", lines.len()) };
    assert!(reason.contains("were not read"), "{reason}");
    assert!(lines.len() < told, "{} lines of {told}", lines.len());
    // One that reads nothing even then goes after a while.
    let lazy = watched.watch("{\"request\":\"watch\"}\n").expect("a watcher");
    watched.give_snapshots();
    while watched.server.poll_timeout().is_none() {
        watched.tell(&[moved("ship", &long)]);
    }
    let deadline = watched.server.poll_timeout().expect("it is to go");
    watched.server.handle_timeout(&watched.poller, deadline);
    assert_eq!(watched.server.watched(), (false, false));
    drop(lazy);
}
