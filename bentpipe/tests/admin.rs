//! The admin socket, asked by well-behaved and by other clients.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration as StdDuration;

use bentpipe::admin::{self, AdminError, Answer, LinkStatus, NodeStatus, Request, Server, Status};
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
                        Request::Stop | Request::Rate { .. } | Request::Test { .. } => Answer::Done,
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
